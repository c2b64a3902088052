//! Folders in a vault: lists of nodes in JSON, sorted by name.
//!
//! Invariants
//! * Names are bytes, written as Go writes a quoted string; a name that is read has no `/`, no zero byte, and is
//!   neither empty, `.` nor `..`.
//! * The names of a folder ascend strictly, so that they are unique.

use std::fmt::{self, Write as _};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::object_id::VaultObjectId;

/// Mode bits in Go's numbering.
pub(crate) mod go_mode {
    pub(crate) const DIR: u32 = 1 << 31;
    pub(crate) const SYMLINK: u32 = 1 << 27;
    pub(crate) const DEVICE: u32 = 1 << 26;
    pub(crate) const FIFO: u32 = 1 << 25;
    pub(crate) const SOCKET: u32 = 1 << 24;
    pub(crate) const SETUID: u32 = 1 << 23;
    pub(crate) const SETGID: u32 = 1 << 22;
    pub(crate) const CHARACTER: u32 = 1 << 21;
    pub(crate) const STICKY: u32 = 1 << 20;
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotNodeKind {
    /// A file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A block device.
    Dev,
    /// A character device.
    Chardev,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// The system did not report the type.
    Irregular,
}

/// The Unix epoch in text form.
const UNIX_EPOCH_TEXT: &str = "1970-01-01T00:00:00Z";

/// A time with nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct NodeTime {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

impl Serialize for NodeTime {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        // The files of a repository have no times of their own, and its folders are long.
        if *self == Self::default() {
            return out.serialize_str(UNIX_EPOCH_TEXT);
        }
        let nanos = i32::try_from(self.nanos).unwrap_or(0);
        // Years with more or fewer than four digits cannot be represented.
        let seconds = self.seconds.clamp(-62_135_596_800, 253_402_207_200);
        out.collect_str(&Timestamp::new(seconds, nanos).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl<'de> Deserialize<'de> for NodeTime {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        // Borrowed, because a folder contains many times.
        input.deserialize_str(NodeTimeVisitor)
    }
}

struct NodeTimeVisitor;

impl Visitor<'_> for NodeTimeVisitor {
    type Value = NodeTime;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<NodeTime, E> {
        if text == UNIX_EPOCH_TEXT {
            return Ok(NodeTime::default());
        }
        let time: Timestamp = match text.parse() {
            Ok(time) => time,
            // Go's zero time.
            Err(_) if text.starts_with("0001-01-01T") => Timestamp::UNIX_EPOCH,
            Err(error) => return Err(E::custom(error)),
        };
        let nanos = time.as_nanosecond();
        Ok(NodeTime {
            seconds: i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(0),
            nanos: u32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or(0),
        })
    }
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtendedAttribute {
    /// Its name.
    pub name: String,
    /// Its bytes.
    #[serde(with = "bytes_in_base64")]
    pub value: Vec<u8>,
}

mod bytes_in_base64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u8>, D::Error> {
        let text = Option::<String>::deserialize(input)?.unwrap_or_default();
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

mod some_bytes_in_base64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        out: S,
    ) -> Result<S::Ok, S::Error> {
        out.serialize_str(&STANDARD.encode(bytes.as_deref().unwrap_or_default()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        input: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(input)?;
        text.map(|text| STANDARD.decode(text).map_err(D::Error::custom)).transpose()
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A file, folder or other node in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotNode {
    /// Its name.
    #[serde(with = "quoted")]
    pub name: Vec<u8>,
    /// The type of the node.
    #[serde(rename = "type")]
    pub kind: SnapshotNodeKind,
    /// The mode, in Go's bits.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mode: u32,
    /// The time of the last content change.
    #[serde(default)]
    pub mtime: NodeTime,
    /// The access time; set to `mtime`, as no more is needed.
    #[serde(default)]
    pub atime: NodeTime,
    /// The time of the last metadata or content change.
    #[serde(default)]
    pub ctime: NodeTime,
    /// The user id of the owner.
    #[serde(default)]
    pub uid: u32,
    /// The group id.
    #[serde(default)]
    pub gid: u32,
    /// The name of the owner.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The name of the group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The inode number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub inode: u64,
    /// The device of the file system, recorded only for files with several names.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub device_id: u64,
    /// The length in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub size: u64,
    /// The number of hard links.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub links: u64,
    /// The target of a symbolic link, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub linktarget: String,
    /// The target as bytes, if it is not valid text.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "some_bytes_in_base64")]
    pub linktarget_raw: Option<Vec<u8>>,
    /// Extended attributes, access control lists among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_empty")]
    pub extended_attributes: Vec<ExtendedAttribute>,
    /// The device numbers of a device file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub device: u64,
    /// The pieces of a file.
    #[serde(default)]
    pub content: Option<Vec<VaultObjectId>>,
    /// The tree of a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subtree: Option<VaultObjectId>,
}

fn or_empty<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<ExtendedAttribute>, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

impl SnapshotNode {
    /// Returns a node with only a name, a type and a mode.
    #[must_use]
    pub fn new(name: impl Into<Vec<u8>>, kind: SnapshotNodeKind, mode: u32) -> Self {
        let time = NodeTime::default();
        Self {
            name: name.into(),
            kind,
            mode,
            mtime: time,
            atime: time,
            ctime: time,
            uid: 0,
            gid: 0,
            user: String::new(),
            group: String::new(),
            inode: 0,
            device_id: 0,
            size: 0,
            links: 0,
            linktarget: String::new(),
            linktarget_raw: None,
            extended_attributes: Vec::new(),
            device: 0,
            content: None,
            subtree: None,
        }
    }

    /// Returns the target of a symbolic link.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.linktarget_raw.as_deref().unwrap_or(self.linktarget.as_bytes())
    }

    /// Returns the name as text; invalid bytes are replaced.
    #[must_use]
    pub fn text_name(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// A folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotTree {
    /// The nodes, by ascending name.
    pub nodes: Vec<SnapshotNode>,
}

impl SnapshotTree {
    /// Returns the stored form.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Parses a folder, and rejects one that would be unsafe to restore.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let tree: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        check_node_names(tree.nodes.iter().map(|node| node.name.as_slice()))?;
        Ok(tree)
    }

    /// Finds a node by its name.
    pub(crate) fn find(&self, name: &[u8]) -> Option<&SnapshotNode> {
        let position = self.nodes.binary_search_by(|node| node.name.as_slice().cmp(name)).ok()?;
        self.nodes.get(position)
    }

    /// Creates a folder from nodes in any order; of several with one name, the last one is used.
    pub(crate) fn from_nodes(nodes: impl IntoIterator<Item = SnapshotNode>) -> Self {
        let mut nodes: Vec<SnapshotNode> = nodes.into_iter().collect();
        if has_ascending_names(&nodes) {
            return Self { nodes };
        }
        // Stable, so that of several with one name the last is kept.
        nodes.sort_by(|left, right| left.name.cmp(&right.name));
        nodes.reverse();
        nodes.dedup_by(|later, earlier| later.name == earlier.name);
        nodes.reverse();
        Self { nodes }
    }
}

/// Rejects names that would be unsafe to restore, and names that do not ascend.
pub(super) fn check_node_names<'a>(names: impl Iterator<Item = &'a [u8]>) -> Result<(), String> {
    let mut before: Option<&[u8]> = None;
    for name in names {
        if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            let text = String::from_utf8_lossy(name);
            return Err(format!("`{}` is not a valid name", text.escape_debug()));
        }
        if before.is_some_and(|before| before >= name) {
            return Err("its names are not in ascending order".to_owned());
        }
        before = Some(name);
    }
    Ok(())
}

fn has_ascending_names(nodes: &[SnapshotNode]) -> bool {
    nodes.is_sorted_by(|left, right| left.name < right.name)
}

/// Names in Go's string quoting, without the enclosing quotes.
mod quoted {
    use super::*;

    pub(super) fn serialize<S: Serializer>(name: &[u8], out: S) -> Result<S::Ok, S::Error> {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        match std::str::from_utf8(name) {
            Ok(text) if name.iter().all(is_plain) => out.serialize_str(text),
            _ => out.serialize_str(&quote_name(name)),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<u8>, D::Error> {
        input.deserialize_str(QuotedNameVisitor)
    }

    struct QuotedNameVisitor;

    impl Visitor<'_> for QuotedNameVisitor {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a quoted name")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<u8>, E> {
            unquote_name(text).ok_or_else(|| E::custom("a name is not quoted correctly"))
        }
    }
}

fn quote_name(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        for letter in part.valid().chars() {
            match letter {
                '"' => text.push_str("\\\""),
                '\\' => text.push_str("\\\\"),
                '\u{7}' => text.push_str("\\a"),
                '\u{8}' => text.push_str("\\b"),
                '\u{c}' => text.push_str("\\f"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                '\u{b}' => text.push_str("\\v"),
                '\0'..'\u{20}' | '\u{7f}' => push_quoted_byte(&mut text, letter as u8),
                _ => text.push(letter),
            }
        }
        for byte in part.invalid() {
            push_quoted_byte(&mut text, *byte);
        }
    }
    text
}

fn push_quoted_byte(text: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    write!(text, "\\x{byte:02x}").ok();
}

fn unquote_name(text: &str) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        name.extend_from_slice(before.as_bytes());
        let mut letters = after.chars();
        let letter = letters.next()?;
        rest = letters.as_str();
        let number = |text: &mut &str, digits: usize, radix: u32| -> Option<u32> {
            let (head, tail) = text.split_at_checked(digits)?;
            *text = tail;
            u32::from_str_radix(head, radix).ok()
        };
        match letter {
            'a' => name.push(7),
            'b' => name.push(8),
            'f' => name.push(12),
            'n' => name.push(b'\n'),
            'r' => name.push(b'\r'),
            't' => name.push(b'\t'),
            'v' => name.push(11),
            '\\' | '"' | '\'' => name.push(letter as u8),
            'x' => name.push(u8::try_from(number(&mut rest, 2, 16)?).ok()?),
            'u' | 'U' => {
                let digits = if letter == 'u' { 4 } else { 8 };
                let letter = char::from_u32(number(&mut rest, digits, 16)?)?;
                name.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            '0'..='7' => {
                let mut octal = after;
                name.push(u8::try_from(number(&mut octal, 3, 8)?).ok()?);
                rest = octal;
            }
            _ => return None,
        }
    }
    name.extend_from_slice(rest.as_bytes());
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_quoting() {
        for name in [b"plain".as_slice(), b"a\"b\\c", b"\xff\xfe\n\t\x01", "ü🦀".as_bytes()] {
            assert_eq!(unquote_name(&quote_name(name)).unwrap(), name);
            let tree =
                SnapshotTree { nodes: vec![SnapshotNode::new(name, SnapshotNodeKind::Fifo, 0)] };
            assert_eq!(SnapshotTree::parse(&tree.to_bytes()).unwrap(), tree);
        }
        assert_eq!(unquote_name("a\\u00e4\\x41\\101").unwrap(), "aäAA".as_bytes());
        assert!(
            unquote_name("\\q").is_none()
                && unquote_name("\\x4").is_none()
                && unquote_name("\\").is_none()
        );
    }

    #[test]
    fn times_are_written_as_others_write_them() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (0, 1, "1970-01-01T00:00:00.000000001Z"),
            (-1, 500_000_000, "1969-12-31T23:59:59.5Z"),
            (1_795_380_523, 0, "2026-11-22T20:48:43Z"),
        ] {
            let time = NodeTime { seconds, nanos };
            assert_eq!(serde_json::to_value(time).unwrap(), text);
            assert_eq!(serde_json::from_value::<NodeTime>(text.into()).unwrap(), time);
        }
        let read = |text: &str| serde_json::from_value::<NodeTime>(text.into());
        assert_eq!(read("1970-01-01T01:00:00+01:00").unwrap(), NodeTime::default());
        assert!(read("yesterday").is_err());
    }

    #[test]
    fn of_several_with_one_name_the_last_counts() {
        let node = |name: &str, size| SnapshotNode {
            size,
            ..SnapshotNode::new(name, SnapshotNodeKind::File, 0)
        };
        let tree = SnapshotTree::from_nodes([
            node("b", 1),
            node("a", 2),
            node("b", 3),
            node("c", 4),
            node("b", 5),
        ]);
        let all: Vec<_> = tree.nodes.iter().map(|node| (node.text_name(), node.size)).collect();
        assert_eq!(all, [("a".to_owned(), 2), ("b".to_owned(), 5), ("c".to_owned(), 4)]);
    }

    #[test]
    fn harmful_folders_are_refused() {
        let tree = |names: &[&str]| {
            let nodes = names
                .iter()
                .map(|name| SnapshotNode::new(*name, SnapshotNodeKind::Fifo, 0))
                .collect();
            SnapshotTree::parse(&SnapshotTree { nodes }.to_bytes())
        };
        assert!(tree(&["a", "b"]).is_ok());
        for bad in
            [["", "b"], [".", "b"], ["..", "b"], ["a/b", "b"], ["\0", "b"], ["b", "a"], ["a", "a"]]
        {
            assert!(tree(&bad).is_err(), "{bad:?}");
        }
    }
}
