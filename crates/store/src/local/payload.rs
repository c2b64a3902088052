//! The payloads of head, commit and seal records.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::batch::RefUpdate;
use crate::error::{Error, Result};
use crate::id::ChunkId;

const VERSION: u32 = 1;
const HAS_OLD: u8 = 1;
const HAS_NEW: u8 = 2;
const MAX_NAME_BYTES: usize = 255;
const MAX_TEXT_BYTES: usize = 65_535;

/// All refs of a store.
pub(crate) type Refs = BTreeMap<String, ChunkId>;

/// The first record of a pack.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) pack: u32,
    pub(super) refs: Refs,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.pack.to_le_bytes());
        encode_refs(&self.refs, &mut bytes);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != VERSION {
            return None;
        }
        let pack = reader.u32()?;
        let refs = reader.refs()?;
        reader.is_done().then_some(Self { pack, refs })
    }
}

/// A record that makes what precedes it take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    /// The pack was durable up to here when the record was written.
    pub(super) synced: u64,
    pub(super) updates: Vec<RefUpdate>,
}

impl Commit {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&self.synced.to_le_bytes());
        let count = u16::try_from(self.updates.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&count.to_le_bytes());
        for update in &self.updates {
            let flags = if update.expected.is_some() { HAS_OLD } else { 0 }
                | if update.new.is_some() { HAS_NEW } else { 0 };
            bytes.push(flags);
            encode_name(&update.name, &mut bytes);
            for root in update.expected.iter().chain(&update.new) {
                bytes.extend_from_slice(root.as_bytes());
            }
            bytes.extend_from_slice(&micros(update.at).to_le_bytes());
            for text in [&update.author, &update.message] {
                let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let synced = reader.u64()?;
        let count = reader.u16()?;
        let mut updates = Vec::new();
        for _ in 0..count {
            let flags = reader.u8()?;
            let name = reader.name()?;
            let expected = reader.id_if(flags & HAS_OLD != 0)?;
            let new = reader.id_if(flags & HAS_NEW != 0)?;
            let at = time(i64::from_le_bytes(reader.array()?))?;
            let author = reader.text()?;
            let message = reader.text()?;
            updates.push(RefUpdate { name, expected, new, at, author, message });
        }
        reader.is_done().then_some(Self { synced, updates })
    }
}

/// Refuses an update that no commit record can hold.
pub(super) fn check_update(update: &RefUpdate) -> Result<()> {
    let limits = [
        ("name of a ref", update.name.len(), MAX_NAME_BYTES),
        ("author", update.author.len(), MAX_TEXT_BYTES),
        ("message", update.message.len(), MAX_TEXT_BYTES),
    ];
    for (what, length, limit) in limits {
        if length > limit {
            return Err(Error::TooLong { what, length, limit });
        }
    }
    if update.name.is_empty() {
        return Err(Error::KeyMalformed {
            component: String::new(),
            fault: "the name of a ref is empty",
        });
    }
    Ok(())
}

/// Applies a ref's move.
pub(super) fn apply(refs: &mut Refs, update: &RefUpdate) {
    match update.new {
        Some(root) => refs.insert(update.name.clone(), root),
        None => refs.remove(&update.name),
    };
}

pub(super) fn encode_refs(refs: &Refs, bytes: &mut Vec<u8>) {
    let count = u32::try_from(refs.len()).unwrap_or(u32::MAX);
    bytes.extend_from_slice(&count.to_le_bytes());
    for (name, root) in refs {
        encode_name(name, bytes);
        bytes.extend_from_slice(root.as_bytes());
    }
}

pub(super) fn decode_refs(bytes: &[u8]) -> Option<Refs> {
    let mut reader = Reader(bytes);
    let refs = reader.refs()?;
    reader.is_done().then_some(refs)
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

    fn refs(&mut self) -> Option<Refs> {
        let count = self.u32()?;
        let mut refs = Refs::new();
        for _ in 0..count {
            let name = self.name()?;
            refs.insert(name, ChunkId::from_bytes(self.array()?));
        }
        Some(refs)
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
        let refs = Refs::from([("main".to_owned(), root), ("b/x".to_owned(), root)]);
        let head = Head { pack: 7, refs };
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
            let commit = Commit { synced: 12, updates: vec![update.clone(), update] };
            let bytes = commit.encode();
            assert_eq!(Commit::decode(&bytes), Some(commit));
            for cut in 0..bytes.len() {
                assert_eq!(Commit::decode(bytes.get(..cut).unwrap()), None, "cut {cut}");
            }
        }
    }
}
