//! The payloads of head, commit and seal records.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::record::MAX_PAYLOAD_BYTES;
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::{ChunkBatch, LeaseUpdate, RefUpdate};
use crate::interface::history::Revision;
use crate::interface::root_retention::RootLease;
use crate::tree::SortedMap;

const PAYLOAD_VERSION: u32 = 1;
const HAS_OLD_ROOT: u8 = 1;
const HAS_NEW_ROOT: u8 = 2;
const IS_GRANTED: u8 = 1;
const HAS_EXPIRY: u8 = 2;
const MAX_NAME_BYTES: usize = 255;
/// The maximum size in bytes of a text, so that a revision fits the value of a record.
const MAX_TEXT_BYTES: usize = 7_900;
/// The maximum size in bytes of a ref or lease update without its texts. If there are so many updates of this size that
/// their number needs more than 16 bits, their total size exceeds the limit too.
const MAX_UPDATE_BYTES: usize = 256;
/// The number of refs and leases that fit the head of a pack, however long their names are.
const MAX_UNCHECKED_UPDATES: usize = MAX_PAYLOAD_BYTES / (MAX_NAME_BYTES + MAX_UPDATE_BYTES);

/// All refs of a store.
pub(crate) type RefTable = BTreeMap<String, ChunkId>;

/// The state of a store beside its records, as of one commit point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreTables {
    pub(crate) refs: RefTable,
    pub(crate) leases: BTreeMap<String, RootLease>,
    pub(crate) log: RevisionLog,
    /// The sequence number of the next ref update.
    pub(crate) next_sequence: u64,
}

/// The location of the revisions that are not only in commit records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RevisionLog {
    /// The map of retained revisions.
    pub(crate) map: SortedMap,
    /// Revisions below this sequence number are in the map or have been removed.
    pub(crate) folded_below: u64,
    /// The number of collections so far.
    pub(crate) generation: u64,
}

/// The first record of a pack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PackHead {
    pub(super) pack: u32,
    pub(super) tables: StoreTables,
}

impl PackHead {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&PAYLOAD_VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.pack.to_le_bytes());
        self.tables.encode(&mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(bytes);
        if reader.read_u32()? != PAYLOAD_VERSION {
            return None;
        }
        let pack = reader.read_u32()?;
        let tables = reader.read_tables()?;
        reader.is_at_end().then_some(Self { pack, tables })
    }
}

/// A record that makes the records before it take effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommitRecord {
    /// The length in bytes up to which the pack was durable when the record was written.
    pub(super) synced_length: u64,
    /// The sequence number of the first update; the others follow.
    pub(super) first_sequence: u64,
    pub(super) updates: Vec<RefUpdate>,
    pub(super) leases: Vec<LeaseUpdate>,
    pub(super) new_log: Option<RevisionLog>,
}

impl CommitRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.synced_length.to_le_bytes());
        bytes.extend_from_slice(&self.first_sequence.to_le_bytes());
        bytes.extend_from_slice(&encode_count(self.updates.len()));
        for update in &self.updates {
            encode_update(update, &mut bytes);
        }
        bytes.extend_from_slice(&encode_count(self.leases.len()));
        for update in &self.leases {
            match update {
                LeaseUpdate::Grant(lease) => encode_lease(lease, &mut bytes),
                LeaseUpdate::Release { holder } => {
                    bytes.push(0);
                    encode_name(holder, &mut bytes);
                }
            }
        }
        bytes.push(u8::from(self.new_log.is_some()));
        if let Some(log) = self.new_log {
            encode_revision_log(log, &mut bytes);
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(bytes);
        let synced = reader.read_u64()?;
        let sequence = reader.read_u64()?;
        let mut updates = Vec::new();
        for _ in 0..reader.read_u16()? {
            updates.push(reader.read_update()?);
        }
        let mut leases = Vec::new();
        for _ in 0..reader.read_u16()? {
            leases.push(reader.read_lease_update()?);
        }
        let log = match reader.read_u8()? {
            0 => None,
            1 => Some(reader.read_log()?),
            _ => return None,
        };
        reader.is_at_end().then_some(Self {
            synced_length: synced,
            first_sequence: sequence,
            updates,
            leases,
            new_log: log,
        })
    }

    /// Returns the updates as revisions.
    pub(super) fn into_revisions(self) -> impl DoubleEndedIterator<Item = Revision> {
        let first = self.first_sequence;
        let numbered = self.updates.into_iter().enumerate();
        numbered.map(move |(index, update)| {
            let sequence = first.saturating_add(index as u64);
            Revision { sequence, update }
        })
    }
}

impl StoreTables {
    /// Applies a commit.
    pub(super) fn apply_commit(&mut self, commit: &CommitRecord) {
        for update in &commit.updates {
            match update.new_root {
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
        if let Some(log) = commit.new_log {
            self.log = log;
        }
        let next = commit.first_sequence.saturating_add(commit.updates.len() as u64);
        self.next_sequence = self.next_sequence.max(next);
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.next_sequence.to_le_bytes());
        encode_revision_log(self.log, bytes);
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

    /// Returns an error for updates after which the tables would not fit the head of a pack.
    pub(super) fn check_capacity(&self, batch: &ChunkBatch) -> Result<()> {
        let (updates, leases) = (batch.ref_updates(), batch.lease_updates());
        let entries = self.refs.len() + self.leases.len() + updates.len() + leases.len();
        if entries < MAX_UNCHECKED_UPDATES {
            return Ok(());
        }
        let mut after = self.clone();
        let (updates, leases) = (updates.to_vec(), leases.to_vec());
        after.apply_commit(&CommitRecord { updates, leases, ..CommitRecord::default() });
        let length = PackHead { pack: 0, tables: after }.encode().len();
        let (what, limit) = ("list of all refs and leases", MAX_PAYLOAD_BYTES);
        if length < limit { Ok(()) } else { Err(Error::TooLong { what, length, limit }) }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = PayloadReader(bytes);
        let tables = reader.read_tables()?;
        reader.is_at_end().then_some(tables)
    }
}

/// Returns an error for updates that no commit record can hold, each by itself or all together.
pub(crate) fn check_updates(updates: &[RefUpdate], leases: &[LeaseUpdate]) -> Result<()> {
    updates.iter().try_for_each(check_update)?;
    leases.iter().try_for_each(check_lease_update)?;
    let bytes_of =
        |update: &RefUpdate| update.name.len() + update.author.len() + update.message.len();
    let texts: usize = updates.iter().map(bytes_of).sum();
    let holders: usize = leases.iter().map(|lease_update| lease_update.holder().len()).sum();
    let length = texts + holders + (updates.len() + leases.len() + 1) * MAX_UPDATE_BYTES;
    let (what, limit) = ("list of moves in one commit", MAX_PAYLOAD_BYTES);
    if length < limit { Ok(()) } else { Err(Error::TooLong { what, length, limit }) }
}

/// Returns an error for an update that no commit record can hold.
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
    check_name_length("name of a ref", &update.name)
}

/// Returns an error for a lease update that no commit record can hold.
pub(crate) fn check_lease_update(update: &LeaseUpdate) -> Result<()> {
    check_name_length("holder of a lease", update.holder())
}

fn check_name_length(what: &'static str, name: &str) -> Result<()> {
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

/// Encodes a ref update, for both commit records and the log.
pub(super) fn encode_update(update: &RefUpdate, bytes: &mut Vec<u8>) {
    let flags = if update.expected_root.is_some() { HAS_OLD_ROOT } else { 0 }
        | if update.new_root.is_some() { HAS_NEW_ROOT } else { 0 };
    bytes.push(flags);
    encode_name(&update.name, bytes);
    for root in update.expected_root.iter().chain(&update.new_root) {
        bytes.extend_from_slice(root.as_bytes());
    }
    bytes.extend_from_slice(&to_micros(update.updated_at).to_le_bytes());
    for text in [&update.author, &update.message] {
        bytes.extend_from_slice(&encode_count(text.len()));
        bytes.extend_from_slice(text.as_bytes());
    }
}

/// Decodes the output of [`encode_update`].
pub(super) fn decode_update(bytes: &[u8]) -> Option<RefUpdate> {
    let mut reader = PayloadReader(bytes);
    let update = reader.read_update()?;
    reader.is_at_end().then_some(update)
}

/// Encodes a lease, for commit records, tables and lease files.
pub(super) fn encode_lease(lease: &RootLease, bytes: &mut Vec<u8>) {
    bytes.push(IS_GRANTED | if lease.expires_at.is_some() { HAS_EXPIRY } else { 0 });
    encode_name(&lease.holder, bytes);
    bytes.extend_from_slice(lease.root.as_bytes());
    if let Some(expires) = lease.expires_at {
        bytes.extend_from_slice(&to_micros(expires).to_le_bytes());
    }
}

/// Decodes the output of [`encode_lease`].
pub(super) fn decode_lease(bytes: &[u8]) -> Option<RootLease> {
    let mut reader = PayloadReader(bytes);
    match reader.read_lease_update()? {
        LeaseUpdate::Grant(lease) => reader.is_at_end().then_some(lease),
        LeaseUpdate::Release { .. } => None,
    }
}

fn encode_revision_log(log: RevisionLog, bytes: &mut Vec<u8>) {
    let root = log.map.root();
    bytes.push(u8::from(root.is_some()));
    bytes.extend(root.iter().flat_map(|root| *root.as_bytes()));
    bytes.extend_from_slice(&log.folded_below.to_le_bytes());
    bytes.extend_from_slice(&log.generation.to_le_bytes());
}

fn encode_count(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

fn encode_name(name: &str, bytes: &mut Vec<u8>) {
    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(name.as_bytes());
}

fn to_micros(at: SystemTime) -> i64 {
    let clamp = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => clamp(after),
        Err(before) => -clamp(before.duration()),
    }
}

fn from_micros(micros: i64) -> Option<SystemTime> {
    let span = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) }
}

/// Reads values from the front of the bytes; `None` once they end.
struct PayloadReader<'a>(&'a [u8]);

impl PayloadReader<'_> {
    fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*value)
    }

    fn read_u8(&mut self) -> Option<u8> {
        self.read_array::<1>().map(u8::from_le_bytes)
    }

    fn read_u16(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_le_bytes)
    }

    fn read_u32(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_le_bytes)
    }

    fn read_u64(&mut self) -> Option<u64> {
        self.read_array().map(u64::from_le_bytes)
    }

    fn read_id_if(&mut self, is_present: bool) -> Option<Option<ChunkId>> {
        if !is_present {
            return Some(None);
        }
        self.read_array().map(|id| Some(ChunkId::from_bytes(id)))
    }

    fn read_string(&mut self, length: usize) -> Option<String> {
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn read_name(&mut self) -> Option<String> {
        let length = usize::from(self.read_u8()?);
        self.read_string(length)
    }

    fn read_text(&mut self) -> Option<String> {
        let length = usize::from(self.read_u16()?);
        self.read_string(length)
    }

    fn read_id(&mut self) -> Option<ChunkId> {
        self.read_array().map(ChunkId::from_bytes)
    }

    fn read_time(&mut self) -> Option<SystemTime> {
        from_micros(i64::from_le_bytes(self.read_array()?))
    }

    fn read_update(&mut self) -> Option<RefUpdate> {
        let flags = self.read_u8()?;
        let name = self.read_name()?;
        let expected = self.read_id_if(flags & HAS_OLD_ROOT != 0)?;
        let new = self.read_id_if(flags & HAS_NEW_ROOT != 0)?;
        let at = self.read_time()?;
        let author = self.read_text()?;
        let message = self.read_text()?;
        Some(RefUpdate {
            name,
            expected_root: expected,
            new_root: new,
            updated_at: at,
            author,
            message,
        })
    }

    fn read_lease_update(&mut self) -> Option<LeaseUpdate> {
        let flags = self.read_u8()?;
        let holder = self.read_name()?;
        if flags & IS_GRANTED == 0 {
            return Some(LeaseUpdate::Release { holder });
        }
        let root = self.read_id()?;
        let expires = if flags & HAS_EXPIRY == 0 { None } else { Some(self.read_time()?) };
        Some(LeaseUpdate::Grant(RootLease { holder, root, expires_at: expires }))
    }

    fn read_log(&mut self) -> Option<RevisionLog> {
        let has_root = self.read_u8()? != 0;
        let map = SortedMap::from_root(self.read_id_if(has_root)?);
        Some(RevisionLog { map, folded_below: self.read_u64()?, generation: self.read_u64()? })
    }

    fn read_tables(&mut self) -> Option<StoreTables> {
        let mut tables = StoreTables {
            next_sequence: self.read_u64()?,
            log: self.read_log()?,
            ..StoreTables::default()
        };
        for _ in 0..self.read_u32()? {
            let name = self.read_name()?;
            tables.refs.insert(name, self.read_id()?);
        }
        for _ in 0..self.read_u32()? {
            let LeaseUpdate::Grant(lease) = self.read_lease_update()? else {
                return None;
            };
            tables.leases.insert(lease.holder.clone(), lease);
        }
        Some(tables)
    }

    fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_read_back() {
        let root = ChunkId::hash_of(b"root");
        let lease = |holder: &str, expires| RootLease {
            holder: holder.to_owned(),
            root,
            expires_at: expires,
        };
        let leases = [lease("a", None), lease("b", Some(UNIX_EPOCH + Duration::from_secs(9)))];
        let log =
            RevisionLog { map: SortedMap::from_root(Some(root)), folded_below: 8, generation: 3 };
        let tables = StoreTables {
            refs: RefTable::from([("main".to_owned(), root), ("b/x".to_owned(), root)]),
            leases: leases
                .iter()
                .map(|root_lease| (root_lease.holder.clone(), root_lease.clone()))
                .collect(),
            log,
            next_sequence: 12,
        };
        let head = PackHead { pack: 7, tables };
        assert_eq!(PackHead::decode(&head.encode()), Some(head));
        for (expected, new) in
            [(None, Some(root)), (Some(root), None), (Some(root), Some(ChunkId::hash_of(b"")))]
        {
            let update = RefUpdate {
                name: "main".to_owned(),
                expected_root: expected,
                new_root: new,
                updated_at: UNIX_EPOCH - Duration::from_micros(5),
                author: "Ada".to_owned(),
                message: "moves the title".to_owned(),
            };
            let mut changes: Vec<LeaseUpdate> =
                leases.iter().cloned().map(LeaseUpdate::Grant).collect();
            changes.push(LeaseUpdate::Release { holder: "a".to_owned() });
            let commit = CommitRecord {
                synced_length: 12,
                first_sequence: 4,
                updates: vec![update.clone(), update],
                leases: changes,
                new_log: Some(log),
            };
            let bytes = commit.encode();
            assert_eq!(CommitRecord::decode(&bytes), Some(commit));
            for cut in 0..bytes.len() {
                assert_eq!(CommitRecord::decode(bytes.get(..cut).unwrap()), None, "cut {cut}");
            }
        }
    }
}
