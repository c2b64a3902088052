//! The entries of the map of versions, and their keys.
//!
//! | key | value |
//! |---|---|
//! | 0x01, history, 0x00, name | [`StoredVersion`]: the version |
//! | 0x01, history, 0x00 | [`VersionHistory`]: where the node is, and what it is based on |
//! | 0x02, path, 0x00, history | [`HistoryStatus`]: a node with this history is, or was, at the path |
//!
//! A history is named by the node's `jcr:uuid`, or by the path where the node was first checked in.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, MapValue};

use crate::document::codec::{
    ByteCursor, write_length_prefixed, write_signed_varint, write_varint,
};
use crate::document::record::{ContentRecord, NodeSummary, RecordBody};
use crate::model::order_key::OrderKey;
use crate::{Error, JcrDate, NodePath, Result};

/// Pending edits of the map of versions by key: an entry put, or `None` for a removed one.
pub(crate) type VersionEdits = BTreeMap<Vec<u8>, Option<VersionMapEntry>>;

/// The name of the map.
pub(crate) const VERSIONS_MAP: &str = "versions";
/// The version of the entries' bytes.
const ENTRY_VERSION: u8 = 1;
const HISTORY_KEY_TAG: u8 = 1;
const PATH_HISTORY_KEY_TAG: u8 = 2;
/// The maximum length of a path with versions, because a key contains it twice.
pub(super) const MAX_VERSIONED_PATH_BYTES: usize = 900;
/// The maximum length of an identifier that names a history; the history of a node with a longer one is named by its
/// path.
const MAX_HISTORY_IDENTIFIER_BYTES: usize = 200;

/// An entry of the map.
#[derive(Debug, Clone)]
pub(crate) enum VersionMapEntry {
    Version(StoredVersion),
    History(VersionHistory),
    PathHistory(HistoryStatus),
}

/// The stored form of a version.
#[derive(Debug, Clone)]
pub(crate) struct StoredVersion {
    /// The sequence number of the version in its history, ascending.
    pub(super) number: u64,
    /// The path of the node at that time.
    pub(super) path: NodePath,
    /// The number of names at the end of the path that are inside the document.
    pub(super) inner_depth: usize,
    pub(super) created_at: JcrDate,
    pub(super) user: String,
    pub(super) comment: String,
    /// The version on which the node was based; empty for the first.
    pub(super) predecessor: String,
    pub(super) labels: BTreeSet<String>,
    /// The document.
    pub(super) body: RecordBody,
}

/// The state shared by all versions of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionHistory {
    /// The highest number that any version had.
    pub(super) last_number: u64,
    /// The version on which the node is based.
    pub(super) base_version: String,
    /// The path of the node, or its last path if it is deleted.
    pub(crate) path: NodePath,
}

/// The state of a history at a path: whether a new node at the path continues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryStatus {
    Current,
    /// Another node moved to the path of the deleted one.
    Ended,
}

impl VersionMapEntry {
    /// Encodes the entry, and writes a version's document to the batch if it is too long to be inline.
    ///
    /// # Errors
    /// If the document exceeds what the store can hold.
    pub(crate) fn encode(&self, batch: &mut ChunkBatch) -> tympan_store::Result<MapValue> {
        match self {
            Self::Version(version) => version.encode(batch),
            Self::History(history) => {
                let mut out = vec![ENTRY_VERSION];
                write_varint(&mut out, history.last_number);
                write_length_prefixed(&mut out, history.base_version.as_bytes());
                write_length_prefixed(&mut out, history.path.as_str().as_bytes());
                Ok(MapValue { bytes: out.into(), body: None })
            }
            Self::PathHistory(status) => {
                let out = vec![ENTRY_VERSION, u8::from(*status == HistoryStatus::Ended)];
                Ok(MapValue { bytes: out.into(), body: None })
            }
        }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is malformed.
    pub(crate) fn decode(key: &[u8], stored: &MapValue) -> Result<Self> {
        let slot = match key.first() {
            Some(&PATH_HISTORY_KEY_TAG) => decode_path_history(stored).map(Self::PathHistory),
            Some(&HISTORY_KEY_TAG) if key.last() == Some(&0) => {
                decode_history(stored).map(Self::History)
            }
            _ => StoredVersion::decode(stored).map(Self::Version),
        };
        slot.ok_or_else(|| damaged_entry_error(key))
    }
}

/// A state of one node that a user chose to keep.
#[derive(Debug, Clone)]
pub struct NodeVersion {
    /// The name: `1.0`, `1.1`, …
    pub name: String,
    /// The path of the node at that time.
    pub path: NodePath,
    /// The time of creation.
    pub created_at: SystemTime,
    /// The user who created the version.
    pub user: String,
    /// The comment of the user.
    pub comment: String,
    /// The labels, sorted.
    pub labels: Vec<String>,
    /// The version on which the node was based; `None` for the first.
    pub predecessor: Option<String>,
    /// True if the node is based on this version: the last one created or restored.
    pub is_base: bool,
    /// The history of the version: the node's identifier, or the path where the node was first checked in.
    pub history_id: String,
    pub(super) stored_version: StoredVersion,
}

impl StoredVersion {
    fn encode(&self, batch: &mut ChunkBatch) -> tympan_store::Result<MapValue> {
        let (inline, stored) = self.body.write_to_batch(batch)?;
        let mut out = vec![ENTRY_VERSION, u8::from(inline.is_some())];
        write_varint(&mut out, self.number);
        write_length_prefixed(&mut out, self.path.as_str().as_bytes());
        write_varint(&mut out, self.inner_depth as u64);
        write_signed_varint(&mut out, self.created_at.millis);
        write_length_prefixed(&mut out, self.user.as_bytes());
        write_length_prefixed(&mut out, self.comment.as_bytes());
        write_length_prefixed(&mut out, self.predecessor.as_bytes());
        write_varint(&mut out, self.labels.len() as u64);
        for label in &self.labels {
            write_length_prefixed(&mut out, label.as_bytes());
        }
        if let Some(bytes) = inline {
            out.extend_from_slice(bytes);
        }
        Ok(MapValue { bytes: out.into(), body: stored })
    }

    fn decode(stored: &MapValue) -> Option<Self> {
        let mut cursor = ByteCursor::new(&stored.bytes, 0);
        if cursor.read_byte()? != ENTRY_VERSION {
            return None;
        }
        let is_inline = cursor.read_byte()? != 0;
        let number = cursor.read_varint()?;
        let path = NodePath::new(cursor.read_prefixed_text()?).ok()?;
        let depth = cursor.read_length()?;
        let at = JcrDate { millis: cursor.read_signed_varint()?, offset_minutes: 0 };
        let (user, comment) =
            (cursor.read_prefixed_text()?.to_owned(), cursor.read_prefixed_text()?.to_owned());
        let predecessor = cursor.read_prefixed_text()?.to_owned();
        let mut labels = BTreeSet::new();
        for _ in 0..cursor.read_varint()? {
            labels.insert(cursor.read_prefixed_text()?.to_owned());
        }
        let body = match stored.body {
            Some(id) if !is_inline && cursor.is_at_end() => RecordBody::Stored(id),
            None if is_inline => RecordBody::Inline(stored.bytes.slice(cursor.offset()..)),
            _ => return None,
        };
        let is_sound = depth <= path.depth();
        is_sound.then_some(Self {
            number,
            path,
            inner_depth: depth,
            created_at: at,
            user,
            comment,
            predecessor,
            labels,
            body,
        })
    }

    /// Returns the path of the document.
    fn document_path(&self) -> NodePath {
        let mut path = self.path.clone();
        for _ in 0..self.inner_depth {
            path = path.parent().unwrap_or_else(NodePath::root);
        }
        path
    }

    /// Returns the node's path relative to its document; empty for the document's own node.
    pub(super) fn relative_path(&self) -> String {
        let document = self.document_path();
        self.path.relative_to(&document).unwrap_or_default().to_owned()
    }

    /// Returns a record with the document, for reading its body.
    pub(super) fn to_record(&self) -> ContentRecord {
        let (order, summary) = (OrderKey::default(), NodeSummary::default());
        ContentRecord { order_key: order, summary, body: self.body.clone() }
    }

    /// Converts the stored version to its public form, under a given name.
    pub(super) fn to_version(&self, history: &str, name: &str, base: Option<&str>) -> NodeVersion {
        NodeVersion {
            name: name.to_owned(),
            path: self.path.clone(),
            created_at: self.created_at.to_system_time(),
            user: self.user.clone(),
            comment: self.comment.clone(),
            labels: self.labels.iter().cloned().collect(),
            predecessor: Some(self.predecessor.clone()).filter(|name| !name.is_empty()),
            is_base: base == Some(name),
            history_id: history.to_owned(),
            stored_version: self.clone(),
        }
    }
}

fn decode_history(stored: &MapValue) -> Option<VersionHistory> {
    let mut cursor = ByteCursor::new(&stored.bytes, 0);
    if cursor.read_byte()? != ENTRY_VERSION {
        return None;
    }
    let last = cursor.read_varint()?;
    let base = cursor.read_prefixed_text()?.to_owned();
    let path = NodePath::new(cursor.read_prefixed_text()?).ok()?;
    (cursor.is_at_end() && stored.body.is_none()).then_some(VersionHistory {
        last_number: last,
        base_version: base,
        path,
    })
}

fn decode_path_history(stored: &MapValue) -> Option<HistoryStatus> {
    match (&*stored.bytes, stored.body) {
        ([ENTRY_VERSION, 0], None) => Some(HistoryStatus::Current),
        ([ENTRY_VERSION, 1], None) => Some(HistoryStatus::Ended),
        _ => None,
    }
}

/// Returns true if an identifier can name a history.
pub(super) fn is_history_identifier(identifier: &str) -> bool {
    !identifier.is_empty()
        && identifier.len() <= MAX_HISTORY_IDENTIFIER_BYTES
        && !identifier.starts_with('/')
        && !identifier.contains('\0')
}

/// Returns true if a history is named by a path.
pub(super) fn is_path_history(history: &str) -> bool {
    history.starts_with('/')
}

/// Returns the key of a version, or, with an empty name, the key of its history.
pub(super) fn version_key(history: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(history.len() + name.len() + 2);
    key.push(HISTORY_KEY_TAG);
    key.extend_from_slice(history.as_bytes());
    key.push(0);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Returns the key of the entry for a history at a path.
pub(super) fn path_history_key(path: &NodePath, history: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.as_str().len() + history.len() + 2);
    key.push(PATH_HISTORY_KEY_TAG);
    key.extend_from_slice(path.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(history.as_bytes());
    key
}

/// The decoded key of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionMapKey<'a> {
    /// A version by its name, or its history if the name is empty.
    Version { history: &'a str, name: &'a str },
    /// A history at a path.
    PathHistory { path: &'a str, history: &'a str },
}

/// Decodes a key.
///
/// # Errors
/// [`Error::Damaged`] if it is malformed.
pub(crate) fn parse_version_key(key: &[u8]) -> Result<VersionMapKey<'_>> {
    let parse = || {
        let (kind, rest) = key.split_first()?;
        let (left, right) = std::str::from_utf8(rest).ok()?.split_once('\0')?;
        match *kind {
            HISTORY_KEY_TAG => Some(VersionMapKey::Version { history: left, name: right }),
            PATH_HISTORY_KEY_TAG => Some(VersionMapKey::PathHistory { path: left, history: right }),
            _ => None,
        }
    };
    parse().ok_or_else(|| damaged_entry_error(key))
}

/// Owned bounds of a half-open range of keys.
#[derive(Debug, Clone)]
pub(super) struct VersionKeyRange(Vec<u8>, Vec<u8>);

impl VersionKeyRange {
    /// Returns the range of all entries of one history.
    pub(super) fn of_history(history: &str) -> Self {
        Self::prefixed(version_key(history, ""))
    }

    /// Returns the range of all versions and histories.
    pub(super) fn of_histories() -> Self {
        Self::prefixed(vec![HISTORY_KEY_TAG])
    }

    /// Returns the range of the histories at one path.
    pub(super) fn at_path(path: &NodePath) -> Self {
        Self::prefixed(path_history_key(path, ""))
    }

    /// Returns the range of the histories at paths below a given one.
    pub(super) fn below_path(path: &NodePath) -> Self {
        let slash = if path.is_root() { "" } else { "/" };
        Self::prefixed(
            [&[PATH_HISTORY_KEY_TAG], path.as_str().as_bytes(), slash.as_bytes()].concat(),
        )
    }

    /// Returns the range of all keys that begin with these bytes, the last of which is below 0xff.
    fn prefixed(start: Vec<u8>) -> Self {
        let mut end = start.clone();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Self(start, end)
    }

    pub(super) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&self.0), Bound::Excluded(&self.1))
    }
}

fn damaged_entry_error(key: &[u8]) -> Error {
    let text = String::from_utf8_lossy(key.get(1..).unwrap_or_default());
    let path = text.split('\0').next().and_then(|path| NodePath::new(path).ok());
    let path = path.unwrap_or_else(NodePath::root);
    Error::Damaged { path, reason: "an entry of the version map cannot be decoded" }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn kept() -> StoredVersion {
        StoredVersion {
            number: 7,
            path: NodePath::new("/content/page/jcr:content").unwrap(),
            inner_depth: 1,
            created_at: JcrDate { millis: -5, offset_minutes: 0 },
            user: "ann".to_owned(),
            comment: "before the launch".to_owned(),
            predecessor: "1.0".to_owned(),
            labels: ["gold".to_owned()].into(),
            body: RecordBody::Inline(Bytes::from_static(b"body")),
        }
    }

    #[test]
    fn a_version_reads_back_and_a_cut_one_does_not() {
        let stored = VersionMapEntry::Version(kept()).encode(&mut ChunkBatch::new()).unwrap();
        let key = version_key("u-1", "1.1");
        let VersionMapEntry::Version(read) = VersionMapEntry::decode(&key, &stored).unwrap() else {
            panic!()
        };
        let stored_again =
            VersionMapEntry::Version(read.clone()).encode(&mut ChunkBatch::new()).unwrap();
        assert_eq!(stored_again, stored);
        assert_eq!(
            (read.document_path().as_str(), &*read.relative_path()),
            ("/content/page", "jcr:content")
        );
        // The inline body at the end is decoded elsewhere.
        for at in 0..stored.bytes.len() - b"body".len() {
            let cut = MapValue { bytes: stored.bytes.slice(..at), body: None };
            assert!(VersionMapEntry::decode(&key, &cut).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let history = VersionHistory {
            last_number: 2,
            base_version: "1.1".to_owned(),
            path: NodePath::new("/a").unwrap(),
        };
        let stored =
            VersionMapEntry::History(history.clone()).encode(&mut ChunkBatch::new()).unwrap();
        assert_eq!(&*stored.bytes, b"\x01\x02\x031.1\x02/a");
        let key = version_key("/a", "");
        assert_eq!(key, b"\x01/a\x00");
        let VersionMapEntry::History(read) = VersionMapEntry::decode(&key, &stored).unwrap() else {
            panic!()
        };
        assert_eq!(read, history);
        let entry = VersionMapEntry::PathHistory(HistoryStatus::Ended)
            .encode(&mut ChunkBatch::new())
            .unwrap();
        assert_eq!(&*entry.bytes, b"\x01\x01");
        let path = NodePath::new("/a").unwrap();
        assert_eq!(path_history_key(&path, "u"), b"\x02/a\x00u");
        assert_eq!(
            parse_version_key(b"\x02/a\x00u").unwrap(),
            VersionMapKey::PathHistory { path: "/a", history: "u" }
        );
        assert!(parse_version_key(b"\x03x\x00").is_err() && parse_version_key(b"").is_err());
    }

    #[test]
    fn ranges_hold_what_they_say() {
        let path = |text: &str| NodePath::new(text).unwrap();
        let holds = |keys: &VersionKeyRange, key: &[u8]| {
            let (Bound::Included(from), Bound::Excluded(to)) = keys.bounds() else { panic!() };
            from <= key && key < to
        };
        let below = VersionKeyRange::below_path(&path("/a"));
        assert!(holds(&below, &path_history_key(&path("/a/b"), "u")));
        assert!(!holds(&below, &path_history_key(&path("/a"), "u")));
        assert!(!holds(&below, &path_history_key(&path("/ab"), "u")));
        assert!(!holds(&below, &path_history_key(&path("/a.b"), "u")));
        assert!(holds(
            &VersionKeyRange::below_path(&NodePath::root()),
            &path_history_key(&path("/a"), "u")
        ));
        assert!(holds(
            &VersionKeyRange::at_path(&path("/a")),
            &path_history_key(&path("/a"), "/a")
        ));
        assert!(holds(&VersionKeyRange::of_history("/a"), &version_key("/a", "1.0")));
        assert!(!holds(&VersionKeyRange::of_history("/a"), &version_key("/a/b", "1.0")));
    }
}
