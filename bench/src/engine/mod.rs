//! The peers that keep rows: SQLite, redb, LMDB, each opened with the durability that our store has.

mod lmdb;
mod redb;
mod sqlite;

use std::path::Path;

use tympan_content::{Property, Subtree};

use crate::Outcome;

/// A key and its value.
pub(crate) type Row = (Vec<u8>, Vec<u8>);
/// Is given keys and values, borrowed from the engine.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]);

/// Memory for pages, where an engine has a cache of its own; the default of our store.
const CACHE_BYTES: usize = 64 << 20;

/// What the rows are, as engines lay out small and large values differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nodes: a path, some hundred bytes.
    Nodes,
    /// Chunks: a hash, some thousand bytes.
    Chunks,
}

/// One table of rows, sorted by key.
pub(crate) trait Engine {
    /// Returns the engine's name.
    fn name(&self) -> &'static str;

    /// Writes rows in one transaction, durable on return.
    fn commit(&mut self, rows: &[Row]) -> Outcome<()>;

    /// Brings what was only logged to its place.
    fn settle(&mut self) -> Outcome<()>;

    /// Visits the rows whose key begins with `prefix`, in one read transaction.
    fn scan(&self, prefix: &[u8], visit: Visit<'_>) -> Outcome<()>;

    /// Visits the rows of some keys, in one read transaction.
    fn read(&self, keys: &[Vec<u8>], visit: Visit<'_>) -> Outcome<()>;
}

/// Opens an empty table in every engine.
///
/// # Errors
/// If an engine cannot be opened.
pub(crate) fn open_all(folder: &Path, shape: Shape) -> Outcome<Vec<Box<dyn Engine>>> {
    std::fs::create_dir_all(folder)?;
    Ok(vec![
        Box::new(sqlite::Sqlite::open(&folder.join("sqlite.db"), shape)?),
        Box::new(redb::Redb::open(&folder.join("redb.db"))?),
        Box::new(lmdb::Lmdb::open(&folder.join("lmdb"))?),
    ])
}

/// Returns the end of the range of keys that begin with `prefix`.
fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    // No key here holds this byte: paths are UTF-8.
    end.push(0xff);
    end
}

/// Encodes a node's properties as the value of a row.
pub(crate) fn encode(node: &Subtree) -> Vec<u8> {
    let mut value = Vec::with_capacity(320);
    for (name, property) in &node.properties {
        let text = property.first().map(|value| value.to_text()).unwrap_or_default();
        value.push(u8::from(property.value_type() == tympan_content::ValueType::Name));
        for part in [name.as_str(), &text] {
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            value.extend_from_slice(&length.to_le_bytes());
            value.extend_from_slice(part.as_bytes());
        }
    }
    value
}

/// Reads a row's value in place: whether a property is a name, what it is called, its text.
pub(crate) fn fields(mut value: &[u8]) -> impl Iterator<Item = (bool, &str, &str)> {
    std::iter::from_fn(move || {
        let (kind, rest) = value.split_first()?;
        let (name, rest) = part(rest)?;
        let (text, rest) = part(rest)?;
        value = rest;
        Some((*kind == 1, name, text))
    })
}

/// Decodes a row's value: the same values that `content` hands out.
pub(crate) fn decode(value: &[u8]) -> Vec<(String, Property)> {
    let mut properties = Vec::with_capacity(8);
    properties.extend(fields(value).map(|(is_name, name, text)| {
        let property = if is_name { Property::name(text) } else { Property::text(text) };
        (name.to_owned(), property)
    }));
    properties
}

fn part(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_keep_rows() {
        let folder = tempfile::tempdir().unwrap();
        for mut engine in open_all(folder.path(), Shape::Nodes).unwrap() {
            let rows: Vec<Row> =
                ["/a", "/a/1", "/a/2", "/b"].map(|key| (key.into(), b"v".to_vec())).into();
            engine.commit(&rows).unwrap();
            engine.settle().unwrap();
            let mut seen = Vec::new();
            engine
                .scan(b"/a/", &mut |key, _| seen.push(String::from_utf8_lossy(key).into_owned()))
                .unwrap();
            assert_eq!(seen, ["/a/1", "/a/2"], "{}", engine.name());
            let mut count = 0;
            engine
                .read(&[b"/b".to_vec(), b"/c".to_vec()], &mut |_, value| count += value.len())
                .unwrap();
            assert_eq!(count, 1, "{}", engine.name());
        }
    }

    #[test]
    fn rows_decode_to_the_same_properties() {
        let node = Subtree::new("a", "nt:unstructured").with_property("text", "words");
        let expected: Vec<_> = node.properties.clone().into_iter().collect();
        assert_eq!(decode(&encode(&node)), expected);
    }
}
