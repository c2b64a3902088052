//! The payloads of head, commit and seal records.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::record::MAX_PAYLOAD;
use crate::batch::{Batch, LeaseUpdate, RefUpdate};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::ChunkId;
use crate::keep::Lease;
use crate::tree::Map;

const VERSION: u32 = 1;
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const IS_GRANTED: u8 = 1;
const EXPIRES: u8 = 2;
const MAX_NAME_BYTES: usize = 255;
/// So that a revision fits the value of a record.
const MAX_TEXT_BYTES: usize = 7_900;
/// No move of a ref or lease takes more beside its texts; and so many of this length that their number needs more than
/// 16 bits are too long together.
const MOVE_BYTES: usize = 256;
/// So many refs and leases fit the head of a pack, however long their names are.
const SURELY_FIT: usize = MAX_PAYLOAD / (MAX_NAME_BYTES + MOVE_BYTES);

/// All refs of a store.
pub(crate) type Refs = BTreeMap<String, ChunkId>;

/// Everything that a store remembers beside its records, as of one commit point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) refs: Refs,
    pub(crate) leases: BTreeMap<String, Lease>,
    pub(crate) log: Log,
    /// The sequence number of the next move of a ref.
    pub(crate) sequence: u64,
}

/// Where the revisions are that commit records no longer hold alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    /// The map of kept revisions.
    pub(crate) map: Map,
    /// Revisions below this sequence number are in the map or gone.
    pub(crate) folded: u64,
    /// How many collections there have been.
    pub(crate) generation: u64,
}

/// The first record of a pack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) pack: u32,
    pub(super) tables: Tables,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.pack.to_le_bytes());
        self.tables.encode(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != VERSION {
            return None;
        }
        let pack = reader.u32()?;
        let tables = reader.tables()?;
        reader.is_done().then_some(Self { pack, tables })
    }
}

/// A record that makes what precedes it take effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    /// The pack was durable up to here when the record was written.
    pub(super) synced: u64,
    /// The sequence number of the first move; the others follow.
    pub(super) sequence: u64,
    pub(super) updates: Vec<RefUpdate>,
    pub(super) leases: Vec<LeaseUpdate>,
    pub(super) log: Option<Log>,
}

impl Commit {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.synced.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&count(self.updates.len()));
        for update in &self.updates {
            encode_update(update, &mut bytes);
        }
        bytes.extend_from_slice(&count(self.leases.len()));
        for update in &self.leases {
            match update {
                LeaseUpdate::Grant(lease) => encode_lease(lease, &mut bytes),
                LeaseUpdate::Release { holder } => {
                    bytes.push(0);
                    encode_name(holder, &mut bytes);
                }
            }
        }
        bytes.push(u8::from(self.log.is_some()));
        if let Some(log) = self.log {
            encode_log(log, &mut bytes);
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let synced = reader.u64()?;
        let sequence = reader.u64()?;
        let mut updates = Vec::new();
        for _ in 0..reader.u16()? {
            updates.push(reader.update()?);
        }
        let mut leases = Vec::new();
        for _ in 0..reader.u16()? {
            leases.push(reader.lease_update()?);
        }
        let log = match reader.u8()? {
            0 => None,
            1 => Some(reader.log()?),
            _ => return None,
        };
        reader.is_done().then_some(Self { synced, sequence, updates, leases, log })
    }

    /// Returns the moves as revisions.
    pub(super) fn into_revisions(self) -> impl DoubleEndedIterator<Item = Revision> {
        let first = self.sequence;
        let numbered = self.updates.into_iter().enumerate();
        numbered.map(move |(index, update)| {
            let sequence = first.saturating_add(index as u64);
            Revision { sequence, update }
        })
    }
}

impl Tables {
    /// Applies a commit.
    pub(super) fn apply(&mut self, commit: &Commit) {
        for update in &commit.updates {
            match update.new {
                Some(root) => self.refs.insert(update.name.clone(), root),
                None => self.refs.remove(&update.name),
            };
        }
        for update in &commit.leases {
            match update {
                LeaseUpdate::Grant(lease) => {
                    self.leases.insert(lease.holder.clone(), lease.clone())
                }
                LeaseUpdate::Release { holder } => self.leases.remove(holder),
            };
        }
        if let Some(log) = commit.log {
            self.log = log;
        }
        let next = commit.sequence.saturating_add(commit.updates.len() as u64);
        self.sequence = self.sequence.max(next);
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        encode_log(self.log, bytes);
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        bytes.extend_from_slice(&number(self.refs.len()));
        for (name, root) in &self.refs {
            encode_name(name, bytes);
            bytes.extend_from_slice(root.as_bytes());
        }
        bytes.extend_from_slice(&number(self.leases.len()));
        for lease in self.leases.values() {
            encode_lease(lease, bytes);
        }
    }

    /// Refuses moves after which the tables would not fit the head of a pack.
    pub(super) fn check_room(&self, batch: &Batch) -> Result<()> {
        let (updates, leases) = (batch.ref_updates(), batch.lease_updates());
        let entries = self.refs.len() + self.leases.len() + updates.len() + leases.len();
        if entries < SURELY_FIT {
            return Ok(());
        }
        let mut after = self.clone();
        let (updates, leases) = (updates.to_vec(), leases.to_vec());
        after.apply(&Commit { updates, leases, ..Commit::default() });
        let length = Head { pack: 0, tables: after }.encode().len();
        let (what, limit) = ("list of all refs and leases", MAX_PAYLOAD);
        if length < limit { Ok(()) } else { Err(Error::TooLong { what, length, limit }) }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let tables = reader.tables()?;
        reader.is_done().then_some(tables)
    }
}

/// Refuses what no commit record can hold, each by itself or all together.
pub(crate) fn check_moves(updates: &[RefUpdate], leases: &[LeaseUpdate]) -> Result<()> {
    updates.iter().try_for_each(check_update)?;
    leases.iter().try_for_each(check_lease)?;
    let bytes_of = |one: &RefUpdate| one.name.len() + one.author.len() + one.message.len();
    let texts: usize = updates.iter().map(bytes_of).sum();
    let holders: usize = leases.iter().map(|one| one.holder().len()).sum();
    let length = texts + holders + (updates.len() + leases.len() + 1) * MOVE_BYTES;
    let (what, limit) = ("list of moves in one commit", MAX_PAYLOAD);
    if length < limit { Ok(()) } else { Err(Error::TooLong { what, length, limit }) }
}

/// Refuses an update that no commit record can hold.
pub(crate) fn check_update(update: &RefUpdate) -> Result<()> {
    let limits = [
        ("author", update.author.len(), MAX_TEXT_BYTES),
        ("message", update.message.len(), MAX_TEXT_BYTES),
    ];
    for (what, length, limit) in limits {
        if length > limit {
            return Err(Error::TooLong { what, length, limit });
        }
    }
    check_name("name of a ref", &update.name)
}

/// Refuses a change of a lease that no commit record can hold.
pub(crate) fn check_lease(update: &LeaseUpdate) -> Result<()> {
    check_name("holder of a lease", update.holder())
}

fn check_name(what: &'static str, name: &str) -> Result<()> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Error::TooLong { what, length: name.len(), limit: MAX_NAME_BYTES });
    }
    if name.is_empty() {
        return Err(Error::KeyMalformed { component: String::new(), fault: "a name is empty" });
    }
    if name.bytes().any(|byte| byte < b' ') {
        let component = name.to_owned();
        return Err(Error::KeyMalformed { component, fault: "it holds a control character" });
    }
    Ok(())
}

/// Encodes a move, in commit records and in the log alike.
pub(super) fn encode_update(update: &RefUpdate, bytes: &mut Vec<u8>) {
    let flags = if update.expected.is_some() { HAS_OLD } else { 0 }
        | if update.new.is_some() { HAS_NEW } else { 0 };
    bytes.push(flags);
    encode_name(&update.name, bytes);
    for root in update.expected.iter().chain(&update.new) {
        bytes.extend_from_slice(root.as_bytes());
    }
    bytes.extend_from_slice(&micros(update.at).to_le_bytes());
    for text in [&update.author, &update.message] {
        bytes.extend_from_slice(&count(text.len()));
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// Decodes what [`encode_update`] wrote.
pub(super) fn decode_update(bytes: &[u8]) -> Option<RefUpdate> {
    let mut reader = Reader(bytes);
    let update = reader.update()?;
    reader.is_done().then_some(update)
}

/// Encodes a lease, in commit records, tables and lease files alike.
pub(super) fn encode_lease(lease: &Lease, bytes: &mut Vec<u8>) {
    bytes.push(IS_GRANTED | if lease.expires.is_some() { EXPIRES } else { 0 });
    encode_name(&lease.holder, bytes);
    bytes.extend_from_slice(lease.root.as_bytes());
    if let Some(expires) = lease.expires {
        bytes.extend_from_slice(&micros(expires).to_le_bytes());
    }
}

/// Decodes what [`encode_lease`] wrote.
pub(super) fn decode_lease(bytes: &[u8]) -> Option<Lease> {
    let mut reader = Reader(bytes);
    match reader.lease_update()? {
        LeaseUpdate::Grant(lease) => reader.is_done().then_some(lease),
        LeaseUpdate::Release { .. } => None,
    }
}

fn encode_log(log: Log, bytes: &mut Vec<u8>) {
    let root = log.map.root();
    bytes.push(u8::from(root.is_some()));
    bytes.extend(root.iter().flat_map(|root| *root.as_bytes()));
    bytes.extend_from_slice(&log.folded.to_le_bytes());
    bytes.extend_from_slice(&log.generation.to_le_bytes());
}

fn count(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

fn encode_name(name: &str, bytes: &mut Vec<u8>) {
    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(name.as_bytes());
}

fn micros(at: SystemTime) -> i64 {
    let clamp = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => clamp(after),
        Err(before) => -clamp(before.duration()),
    }
}

fn time(micros: i64) -> Option<SystemTime> {
    let span = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) }
}

/// Takes values off the front; `None` once the bytes end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*value)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn id_if(&mut self, is_present: bool) -> Option<Option<ChunkId>> {
        if !is_present {
            return Some(None);
        }
        self.array().map(|id| Some(ChunkId::from_bytes(id)))
    }

    fn string(&mut self, length: usize) -> Option<String> {
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn name(&mut self) -> Option<String> {
        let length = usize::from(self.u8()?);
        self.string(length)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::from(self.u16()?);
        self.string(length)
    }

    fn id(&mut self) -> Option<ChunkId> {
        self.array().map(ChunkId::from_bytes)
    }

    fn time(&mut self) -> Option<SystemTime> {
        time(i64::from_le_bytes(self.array()?))
    }

    fn update(&mut self) -> Option<RefUpdate> {
        let flags = self.u8()?;
        let name = self.name()?;
        let expected = self.id_if(flags & HAS_OLD != 0)?;
        let new = self.id_if(flags & HAS_NEW != 0)?;
        let at = self.time()?;
        let author = self.text()?;
        let message = self.text()?;
        Some(RefUpdate { name, expected, new, at, author, message })
    }

    fn lease_update(&mut self) -> Option<LeaseUpdate> {
        let flags = self.u8()?;
        let holder = self.name()?;
        if flags & IS_GRANTED == 0 {
            return Some(LeaseUpdate::Release { holder });
        }
        let root = self.id()?;
        let expires = if flags & EXPIRES == 0 { None } else { Some(self.time()?) };
        Some(LeaseUpdate::Grant(Lease { holder, root, expires }))
    }

    fn log(&mut self) -> Option<Log> {
        let has_root = self.u8()? != 0;
        let map = Map::from_root(self.id_if(has_root)?);
        Some(Log { map, folded: self.u64()?, generation: self.u64()? })
    }

    fn tables(&mut self) -> Option<Tables> {
        let mut tables = Tables { sequence: self.u64()?, log: self.log()?, ..Tables::default() };
        for _ in 0..self.u32()? {
            let name = self.name()?;
            tables.refs.insert(name, self.id()?);
        }
        for _ in 0..self.u32()? {
            let LeaseUpdate::Grant(lease) = self.lease_update()? else {
                return None;
            };
            tables.leases.insert(lease.holder.clone(), lease);
        }
        Some(tables)
    }

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_back() {
        let root = ChunkId::of(b"root");
        let lease = |holder: &str, expires| Lease { holder: holder.to_owned(), root, expires };
        let leases = [lease("a", None), lease("b", Some(UNIX_EPOCH + Duration::from_secs(9)))];
        let log = Log { map: Map::from_root(Some(root)), folded: 8, generation: 3 };
        let tables = Tables {
            refs: Refs::from([("main".to_owned(), root), ("b/x".to_owned(), root)]),
            leases: leases.iter().map(|one| (one.holder.clone(), one.clone())).collect(),
            log,
            sequence: 12,
        };
        let head = Head { pack: 7, tables };
        assert_eq!(Head::decode(&head.encode()), Some(head));
        for (expected, new) in
            [(None, Some(root)), (Some(root), None), (Some(root), Some(ChunkId::of(b"")))]
        {
            let update = RefUpdate {
                name: "main".to_owned(),
                expected,
                new,
                at: UNIX_EPOCH - Duration::from_micros(5),
                author: "Ada".to_owned(),
                message: "moves the title".to_owned(),
            };
            let mut changes: Vec<LeaseUpdate> =
                leases.iter().cloned().map(LeaseUpdate::Grant).collect();
            changes.push(LeaseUpdate::Release { holder: "a".to_owned() });
            let commit = Commit {
                synced: 12,
                sequence: 4,
                updates: vec![update.clone(), update],
                leases: changes,
                log: Some(log),
            };
            let bytes = commit.encode();
            assert_eq!(Commit::decode(&bytes), Some(commit));
            for cut in 0..bytes.len() {
                assert_eq!(Commit::decode(bytes.get(..cut).unwrap()), None, "cut {cut}");
            }
        }
    }
}
