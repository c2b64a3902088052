//! The entries of the map of versions, and their keys.
//!
//! | key | value |
//! |---|---|
//! | 0x01, history, 0x00, name | [`Kept`]: the version |
//! | 0x01, history, 0x00 | [`History`]: where the node is, and what it is based on |
//! | 0x02, path, 0x00, history | [`Standing`]: a node with this history is, or was, at the path |
//!
//! A history is named by the node's `jcr:uuid`, or by the path where the node was first checked in.

use std::collections::BTreeSet;
use std::ops::Bound;

use tympan_store::{Batch, Value as Stored};

use super::Version;
use crate::codec::{Cursor, put_bytes, put_number, put_signed};
use crate::order::OrderKey;
use crate::record::{BodyPlace, Record, Summary};
use crate::{Date, Error, NodePath, Result};

/// The name of the map.
pub(crate) const VERSIONS: &str = "versions";
/// The version of the entries' bytes.
const VERSION: u8 = 1;
const OF_HISTORY: u8 = 1;
const OF_PLACE: u8 = 2;
/// The longest path whose versions can be kept: a key holds it twice.
pub(super) const MAX_PATH_BYTES: usize = 900;
/// The longest identifier that names a history; a node with a longer one is known by its path.
const MAX_IDENTIFIER_BYTES: usize = 200;

/// One entry.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    Version(Kept),
    History(History),
    Place(Standing),
}

/// A version as it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    /// Its place among the versions of its history, ascending.
    pub(super) number: u64,
    /// Where the node was.
    pub(super) path: NodePath,
    /// How many names at the end of the path lie inside the document.
    pub(super) depth: usize,
    pub(super) at: Date,
    pub(super) user: String,
    pub(super) comment: String,
    /// The version that the node was based on; empty for the first.
    pub(super) predecessor: String,
    pub(super) labels: BTreeSet<String>,
    /// The document.
    pub(super) body: BodyPlace,
}

/// What is known about the versions of one node together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct History {
    /// The number of the newest version there ever was.
    pub(super) last: u64,
    /// The version that the node is based on.
    pub(super) base: String,
    /// Where the node is, or was when it was deleted.
    pub(super) path: NodePath,
}

/// Whether a node that comes to be at a path goes on with the history there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Current,
    /// Another node has moved to the place of the one that was deleted.
    Ended,
}

impl Slot {
    /// Writes the entry, and a version's document beside it if that is too long to stay inside.
    ///
    /// # Errors
    /// If the document exceeds what the store can hold.
    pub(crate) fn encode(&self, batch: &mut Batch) -> tympan_store::Result<Stored> {
        match self {
            Self::Version(kept) => kept.encode(batch),
            Self::History(history) => {
                let mut out = vec![VERSION];
                put_number(&mut out, history.last);
                put_bytes(&mut out, history.base.as_bytes());
                put_bytes(&mut out, history.path.as_str().as_bytes());
                Ok(Stored { bytes: out.into(), body: None })
            }
            Self::Place(standing) => {
                let out = vec![VERSION, u8::from(*standing == Standing::Ended)];
                Ok(Stored { bytes: out.into(), body: None })
            }
        }
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it makes no sense.
    pub(crate) fn decode(key: &[u8], stored: &Stored) -> Result<Self> {
        let slot = match key.first() {
            Some(&OF_PLACE) => decode_place(stored).map(Self::Place),
            Some(&OF_HISTORY) if key.last() == Some(&0) => {
                decode_history(stored).map(Self::History)
            }
            _ => Kept::decode(stored).map(Self::Version),
        };
        slot.ok_or_else(|| damaged(key))
    }
}

impl Kept {
    fn encode(&self, batch: &mut Batch) -> tympan_store::Result<Stored> {
        let (inline, stored) = self.body.store(batch)?;
        let mut out = vec![VERSION, u8::from(inline.is_some())];
        put_number(&mut out, self.number);
        put_bytes(&mut out, self.path.as_str().as_bytes());
        put_number(&mut out, self.depth as u64);
        put_signed(&mut out, self.at.millis);
        put_bytes(&mut out, self.user.as_bytes());
        put_bytes(&mut out, self.comment.as_bytes());
        put_bytes(&mut out, self.predecessor.as_bytes());
        put_number(&mut out, self.labels.len() as u64);
        for label in &self.labels {
            put_bytes(&mut out, label.as_bytes());
        }
        if let Some(bytes) = inline {
            out.extend_from_slice(bytes);
        }
        Ok(Stored { bytes: out.into(), body: stored })
    }

    fn decode(stored: &Stored) -> Option<Self> {
        let mut cursor = Cursor::new(&stored.bytes, 0);
        if cursor.byte()? != VERSION {
            return None;
        }
        let is_inline = cursor.byte()? != 0;
        let number = cursor.number()?;
        let path = NodePath::new(cursor.text()?).ok()?;
        let depth = cursor.length()?;
        let at = Date { millis: cursor.signed()?, offset_minutes: 0 };
        let (user, comment) = (cursor.text()?.to_owned(), cursor.text()?.to_owned());
        let predecessor = cursor.text()?.to_owned();
        let mut labels = BTreeSet::new();
        for _ in 0..cursor.number()? {
            labels.insert(cursor.text()?.to_owned());
        }
        let body = match stored.body {
            Some(id) if !is_inline && cursor.is_at_end() => BodyPlace::Stored(id),
            None if is_inline => BodyPlace::Inline(stored.bytes.slice(cursor.at()..)),
            _ => return None,
        };
        let is_sound = depth <= path.depth();
        is_sound.then_some(Self {
            number,
            path,
            depth,
            at,
            user,
            comment,
            predecessor,
            labels,
            body,
        })
    }

    /// Returns the path of the document.
    pub(super) fn document(&self) -> NodePath {
        let mut path = self.path.clone();
        for _ in 0..self.depth {
            path = path.parent().unwrap_or_else(NodePath::root);
        }
        path
    }

    /// Returns the node's path relative to its document; empty for the document's own node.
    pub(super) fn relative(&self) -> String {
        let document = self.document();
        self.path.relative_to(&document).unwrap_or_default().to_owned()
    }

    /// Returns a record that holds the document, to read its body.
    pub(super) fn record(&self) -> Record {
        let (order, summary) = (OrderKey::default(), Summary::default());
        Record { order, summary, body: self.body.clone() }
    }

    /// Shows the version under its name.
    pub(super) fn version(&self, history: &str, name: &str, base: Option<&str>) -> Version {
        Version {
            name: name.to_owned(),
            path: self.path.clone(),
            at: self.at.to_system_time(),
            user: self.user.clone(),
            comment: self.comment.clone(),
            labels: self.labels.iter().cloned().collect(),
            predecessor: Some(self.predecessor.clone()).filter(|name| !name.is_empty()),
            is_base: base == Some(name),
            history: history.to_owned(),
            kept: self.clone(),
        }
    }
}

fn decode_history(stored: &Stored) -> Option<History> {
    let mut cursor = Cursor::new(&stored.bytes, 0);
    if cursor.byte()? != VERSION {
        return None;
    }
    let last = cursor.number()?;
    let base = cursor.text()?.to_owned();
    let path = NodePath::new(cursor.text()?).ok()?;
    (cursor.is_at_end() && stored.body.is_none()).then_some(History { last, base, path })
}

fn decode_place(stored: &Stored) -> Option<Standing> {
    match (&*stored.bytes, stored.body) {
        ([VERSION, 0], None) => Some(Standing::Current),
        ([VERSION, 1], None) => Some(Standing::Ended),
        _ => None,
    }
}

/// Tells whether an identifier can name a history.
pub(super) fn names_history(identifier: &str) -> bool {
    !identifier.is_empty()
        && identifier.len() <= MAX_IDENTIFIER_BYTES
        && !identifier.starts_with('/')
        && !identifier.contains('\0')
}

/// Tells whether a history is named by a path.
pub(super) fn is_of_path(history: &str) -> bool {
    history.starts_with('/')
}

/// Returns the key of a version, or with an empty name that of what is known about its history.
pub(super) fn version_key(history: &str, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(history.len() + name.len() + 2);
    key.push(OF_HISTORY);
    key.extend_from_slice(history.as_bytes());
    key.push(0);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Returns the key that says which history is at a path.
pub(super) fn place_key(path: &NodePath, history: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(path.as_str().len() + history.len() + 2);
    key.push(OF_PLACE);
    key.extend_from_slice(path.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(history.as_bytes());
    key
}

/// What an entry is about, read from its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject<'a> {
    /// A version by its name, or its history where the name is empty.
    Version { history: &'a str, name: &'a str },
    /// A history at a path.
    Place { path: &'a str, history: &'a str },
}

/// Reads a key.
///
/// # Errors
/// [`Error::Damaged`] if it is none.
pub(super) fn subject(key: &[u8]) -> Result<Subject<'_>> {
    let parse = || {
        let (kind, rest) = key.split_first()?;
        let (left, right) = std::str::from_utf8(rest).ok()?.split_once('\0')?;
        match *kind {
            OF_HISTORY => Some(Subject::Version { history: left, name: right }),
            OF_PLACE => Some(Subject::Place { path: left, history: right }),
            _ => None,
        }
    };
    parse().ok_or_else(|| damaged(key))
}

/// Owned bounds of a range of keys: from the first, to before the second.
#[derive(Debug, Clone)]
pub(super) struct Keys(Vec<u8>, Vec<u8>);

impl Keys {
    /// All entries of one history.
    pub(super) fn of_history(history: &str) -> Self {
        Self::prefixed(version_key(history, ""))
    }

    /// All versions and what is known about their histories.
    pub(super) fn of_histories() -> Self {
        Self::prefixed(vec![OF_HISTORY])
    }

    /// The histories at one path.
    pub(super) fn at(path: &NodePath) -> Self {
        Self::prefixed(place_key(path, ""))
    }

    /// The histories at paths below one.
    pub(super) fn below(path: &NodePath) -> Self {
        let slash = if path.is_root() { "" } else { "/" };
        Self::prefixed([&[OF_PLACE], path.as_str().as_bytes(), slash.as_bytes()].concat())
    }

    /// All keys that begin with these bytes, the last of which is below 0xff.
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

fn damaged(key: &[u8]) -> Error {
    let text = String::from_utf8_lossy(key.get(1..).unwrap_or_default());
    let path = text.split('\0').next().and_then(|path| NodePath::new(path).ok());
    let path = path.unwrap_or_else(NodePath::root);
    Error::Damaged { path, reason: "an entry of the map of versions does not decode" }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn kept() -> Kept {
        Kept {
            number: 7,
            path: NodePath::new("/content/page/jcr:content").unwrap(),
            depth: 1,
            at: Date { millis: -5, offset_minutes: 0 },
            user: "ann".to_owned(),
            comment: "before the launch".to_owned(),
            predecessor: "1.0".to_owned(),
            labels: ["gold".to_owned()].into(),
            body: BodyPlace::Inline(Bytes::from_static(b"body")),
        }
    }

    #[test]
    fn a_version_reads_back_and_a_cut_one_does_not() {
        let stored = Slot::Version(kept()).encode(&mut Batch::new()).unwrap();
        let key = version_key("u-1", "1.1");
        let Slot::Version(read) = Slot::decode(&key, &stored).unwrap() else { panic!() };
        let stored_again = Slot::Version(read.clone()).encode(&mut Batch::new()).unwrap();
        assert_eq!(stored_again, stored);
        assert_eq!((read.document().as_str(), &*read.relative()), ("/content/page", "jcr:content"));
        // The body's own bytes are read elsewhere.
        for at in 0..stored.bytes.len() - b"body".len() {
            let cut = Stored { bytes: stored.bytes.slice(..at), body: None };
            assert!(Slot::decode(&key, &cut).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let history =
            History { last: 2, base: "1.1".to_owned(), path: NodePath::new("/a").unwrap() };
        let stored = Slot::History(history.clone()).encode(&mut Batch::new()).unwrap();
        assert_eq!(&*stored.bytes, b"\x01\x02\x031.1\x02/a");
        let key = version_key("/a", "");
        assert_eq!(key, b"\x01/a\x00");
        let Slot::History(read) = Slot::decode(&key, &stored).unwrap() else { panic!() };
        assert_eq!(read, history);
        let place = Slot::Place(Standing::Ended).encode(&mut Batch::new()).unwrap();
        assert_eq!(&*place.bytes, b"\x01\x01");
        let path = NodePath::new("/a").unwrap();
        assert_eq!(place_key(&path, "u"), b"\x02/a\x00u");
        assert_eq!(subject(b"\x02/a\x00u").unwrap(), Subject::Place { path: "/a", history: "u" });
        assert!(subject(b"\x03x\x00").is_err() && subject(b"").is_err());
    }

    #[test]
    fn ranges_hold_what_they_say() {
        let path = |text: &str| NodePath::new(text).unwrap();
        let holds = |keys: &Keys, key: &[u8]| {
            let (Bound::Included(from), Bound::Excluded(to)) = keys.bounds() else { panic!() };
            from <= key && key < to
        };
        let below = Keys::below(&path("/a"));
        assert!(holds(&below, &place_key(&path("/a/b"), "u")));
        assert!(!holds(&below, &place_key(&path("/a"), "u")));
        assert!(!holds(&below, &place_key(&path("/ab"), "u")));
        assert!(!holds(&below, &place_key(&path("/a.b"), "u")));
        assert!(holds(&Keys::below(&NodePath::root()), &place_key(&path("/a"), "u")));
        assert!(holds(&Keys::at(&path("/a")), &place_key(&path("/a"), "/a")));
        assert!(holds(&Keys::of_history("/a"), &version_key("/a", "1.0")));
        assert!(!holds(&Keys::of_history("/a"), &version_key("/a/b", "1.0")));
    }
}
