//! Conversion between paths and keys of the content map.

use tympan_store::key;
pub(crate) use tympan_store::key::KeyRange;

use crate::model::order_key::OrderKey;
use crate::{Error, NodePath, Result};

/// The map of records by path.
pub(crate) const CONTENT_MAP: &str = "content";
/// The map of ordered children (`siblings`).
pub(crate) const ORDER_MAP: &str = "order";

/// Returns the key of the record at a path.
pub(crate) fn record_key(path: &NodePath) -> Result<Vec<u8>> {
    Ok(key::record_key(&path.names().collect::<Vec<_>>())?)
}

/// Returns the key of the record at an absolute, normalized path: same as [`record_key`], without validating names
/// again.
pub(crate) fn record_key_at(path: &str) -> Vec<u8> {
    let names = path.trim_start_matches('/');
    let mut key = Vec::with_capacity(names.len() + 1);
    match names.rsplit_once('/') {
        None if names.is_empty() => {}
        None => key.push(0),
        Some((parents, _)) => {
            key.extend(parents.bytes().map(|byte| if byte == b'/' { 1 } else { byte }));
            key.push(0);
        }
    }
    key.extend_from_slice(names.rsplit_once('/').map_or(names, |(_, name)| name).as_bytes());
    key
}

/// Returns the key range of the records of a node's children.
pub(crate) fn child_key_range(path: &NodePath) -> Result<KeyRange> {
    Ok(key::children_range(&path.names().collect::<Vec<_>>())?)
}

/// Returns the key range of the records of all descendants of a node.
pub(crate) fn descendant_key_range(path: &NodePath) -> Result<KeyRange> {
    Ok(key::subtree_range(&path.names().collect::<Vec<_>>())?)
}

/// Returns the entry of a record in the order map: its own key, with the order key inserted before the name.
///
/// In an order key, 0x00 is escaped as 0x00 0xff; 0x00 terminates it. No name begins with 0xff, so entries sort by
/// order key, then name, within the range of the children's records.
pub(crate) fn order_map_key(record: &[u8], order: &OrderKey) -> Vec<u8> {
    let start = record.iter().rposition(|byte| *byte == 0).map_or(0, |at| at + 1);
    let (parent, name) = record.split_at(start);
    let mut entry = Vec::with_capacity(record.len() + order.0.len() + 4);
    entry.extend_from_slice(parent);
    for byte in &order.0 {
        entry.push(*byte);
        if *byte == 0 {
            entry.push(0xff);
        }
    }
    entry.push(0);
    entry.extend_from_slice(name);
    entry
}

/// Returns the order key in an entry of the order map; `parent` is the start of the range of the parent's children.
pub(crate) fn order_key_of(entry: &[u8], parent: &[u8]) -> OrderKey {
    let rest = entry.get(parent.len()..).unwrap_or_default();
    let end = rest.iter().rposition(|byte| *byte == 0).unwrap_or(0);
    let escaped = rest.get(..end).unwrap_or_default();
    let mut order = Vec::with_capacity(escaped.len());
    let mut bytes = escaped.iter();
    while let Some(byte) = bytes.next() {
        order.push(*byte);
        if *byte == 0 {
            bytes.next();
        }
    }
    OrderKey(order.into())
}

/// Returns the path of the record with a key.
pub(crate) fn record_path(key: &[u8]) -> Result<NodePath> {
    NodePath::new(&format!("/{}", key::parse_key(key)?.join("/")))
}

/// Returns the name of the node to which a key of a record or of an entry in the order map belongs.
pub(crate) fn record_name(key: &[u8]) -> Result<&str> {
    let name = key.rsplit(|byte| *byte == 0).next().unwrap_or_default();
    let reason = "the content map contains a key that is not a path";
    std::str::from_utf8(name).map_err(|_| Error::Damaged { path: NodePath::root(), reason })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ways_to_a_key_agree() {
        for path in ["/", "/a", "/a/b", "/a/b/c", "/content/\u{e9}t\u{e9}/jcr:content"] {
            let path = NodePath::new(path).unwrap();
            assert_eq!(record_key_at(path.as_str()), record_key(&path).unwrap(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn entries_sort_by_order_then_name(
            mut siblings in prop::collection::vec((prop::collection::vec(0_u8..=3, 0..5), "[a-c\u{e9}\u{fffd}]{1,2}"), 2..9),
            depth in 0_usize..3,
        ) {
            let parent = NodePath::new(["/", "/p", "/p/q"][depth]).unwrap();
            let range = child_key_range(&parent).unwrap();
            siblings.sort();
            siblings.dedup();
            let mut last = Vec::new();
            for (order, name) in siblings {
                let order = OrderKey(Bytes::from(order));
                let entry = order_map_key(&record_key(&parent.child(&name).unwrap()).unwrap(), &order);
                prop_assert!(last < entry && range.contains_key(&entry));
                prop_assert_eq!(order_key_of(&entry, &range.start), order);
                prop_assert_eq!(record_name(&entry).unwrap(), name);
                last = entry;
            }
        }
    }
}
