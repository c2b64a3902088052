//! Hybrid keys: the path of a node, encoded as the key of its record.
//!
//! The components of the parent are joined by 0x01; then come 0x00 and the name. The root has the empty key. 0x00 sorts
//! before 0x01, and both before any byte of a name. Therefore the children of a node are one contiguous range, and
//! everything below a node is one contiguous range, children first.

use std::ops::Bound;

use crate::chunk::MAX_KEY_BYTES;
use crate::error::{Error, Result};

const PARENT_SEPARATOR: u8 = 0x01;
const NAME_SEPARATOR: u8 = 0x00;
const AFTER_PARENT_SEPARATOR: u8 = 0x02;

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key that can be in the range.
    pub start: Vec<u8>,
    /// The first key after the range; `None` if it runs to the end of the map.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Returns the bounds of the range for [`SortedMap::range`](crate::SortedMap::range).
    #[must_use]
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        let end = self.end.as_deref();
        (Bound::Included(&self.start), end.map_or(Bound::Unbounded, Bound::Excluded))
    }

    /// Returns true if the range contains `key`.
    #[must_use]
    pub fn contains_key(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_deref().is_none_or(|end| key < end)
    }
}

/// Returns the key of the node at `components`; an empty slice is the root.
///
/// # Errors
/// [`Error::KeyMalformed`] for an empty component or one that contains a byte below 0x02, [`Error::TooLong`] above 2
/// KiB.
pub fn record_key(components: &[&str]) -> Result<Vec<u8>> {
    let Some((name, parents)) = components.split_last() else {
        return Ok(Vec::new());
    };
    check_component(name)?;
    let mut key = join_components(parents, name.len() + 1)?;
    key.push(NAME_SEPARATOR);
    key.extend_from_slice(name.as_bytes());
    check_key_length(&key)?;
    Ok(key)
}

/// Returns the range that contains exactly the children of the node at `components`.
///
/// # Errors
/// As [`record_key`].
pub fn children_range(components: &[&str]) -> Result<KeyRange> {
    let mut start = join_components(components, 1)?;
    let mut end = start.clone();
    start.push(NAME_SEPARATOR);
    end.push(PARENT_SEPARATOR);
    Ok(KeyRange { start, end: Some(end) })
}

/// Returns the range that contains exactly the descendants of the node at `components`, without the node's own record.
///
/// # Errors
/// As [`record_key`].
pub fn subtree_range(components: &[&str]) -> Result<KeyRange> {
    let mut start = join_components(components, 1)?;
    let end = (!start.is_empty()).then(|| {
        let mut end = start.clone();
        end.push(AFTER_PARENT_SEPARATOR);
        end
    });
    start.push(NAME_SEPARATOR);
    Ok(KeyRange { start, end })
}

/// Returns the components of the node whose record has this key; the inverse of [`record_key`].
///
/// # Errors
/// [`Error::KeyMalformed`] for bytes that [`record_key`] does not produce.
pub fn parse_key(key: &[u8]) -> Result<Vec<&str>> {
    if key.is_empty() {
        return Ok(Vec::new());
    }
    let malformed =
        |fault| Error::KeyMalformed { component: String::from_utf8_lossy(key).into_owned(), fault };
    let text = std::str::from_utf8(key).map_err(|_| malformed("it is not UTF-8"))?;
    let (parents, name) = text.split_once('\0').ok_or_else(|| malformed("it has no name"))?;
    let mut components: Vec<&str> = Vec::new();
    if !parents.is_empty() {
        components.extend(parents.split('\u{1}'));
    }
    components.push(name);
    for component in &components {
        check_component(component)?;
    }
    Ok(components)
}

fn join_components(components: &[&str], more: usize) -> Result<Vec<u8>> {
    let length: usize = components.iter().map(|component| component.len() + 1).sum();
    let mut key = Vec::with_capacity(length + more);
    for (index, component) in components.iter().enumerate() {
        check_component(component)?;
        if index > 0 {
            key.push(PARENT_SEPARATOR);
        }
        key.extend_from_slice(component.as_bytes());
    }
    check_key_length(&key)?;
    Ok(key)
}

fn check_component(component: &str) -> Result<()> {
    let fault = if component.is_empty() {
        "it is empty"
    } else if component.bytes().any(|byte| byte < AFTER_PARENT_SEPARATOR) {
        "it holds a byte below 0x02"
    } else {
        return Ok(());
    };
    Err(Error::KeyMalformed { component: component.to_owned(), fault })
}

fn check_key_length(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::TooLong { what: "key", length: key.len(), limit: MAX_KEY_BYTES });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(path: &str) -> Vec<&str> {
        path.split('/').filter(|name| !name.is_empty()).collect()
    }

    fn check(path: &str, expected: &[u8]) {
        let key = record_key(&components(path)).unwrap();
        assert_eq!(key, expected, "{path}");
        assert_eq!(parse_key(&key).unwrap(), components(path), "{path}");
    }

    #[test]
    fn keys_of_paths() {
        check("/", b"");
        check("/a", b"\0a");
        check("/a/b", b"a\0b");
        check("/a/b/c", b"a\x01b\0c");
    }

    #[test]
    fn ranges_hold_exactly_children_and_subtrees() {
        let paths = [
            "/",
            "/a",
            "/a-b",
            "/a-b/c",
            "/a/b",
            "/a/b/c",
            "/a/b/c/d",
            "/a/b\u{2}/x",
            "/a/bb",
            "/a/bb/c",
            "/b",
        ];
        for node in paths {
            let parent = components(node);
            let children = children_range(&parent).unwrap();
            let subtree = subtree_range(&parent).unwrap();
            for path in paths {
                let path = components(path);
                let key = record_key(&path).unwrap();
                let is_below = path.len() > parent.len() && path.starts_with(&parent);
                let is_child = is_below && path.len() == parent.len() + 1;
                assert_eq!(children.contains_key(&key), is_child, "{path:?} in {node}");
                assert_eq!(subtree.contains_key(&key), is_below, "{path:?} below {node}");
            }
        }
    }

    #[test]
    fn components_that_would_break_the_order_are_refused() {
        for bad in [&["a", ""][..], &["", "a"], &["a\0"], &["a\u{1}b", "c"]] {
            assert!(matches!(record_key(bad), Err(Error::KeyMalformed { .. })), "{bad:?}");
        }
        let long = "x".repeat(MAX_KEY_BYTES);
        assert!(matches!(record_key(&[&long]), Err(Error::TooLong { .. })));
        for bad in [&b"a"[..], b"a\0", b"\x01\0a", b"a\x01\0b", b"\xff\0a"] {
            assert!(parse_key(bad).is_err(), "{bad:?}");
        }
    }
}
