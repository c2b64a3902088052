//! From paths to keys of the content map and back.

use tympan_store::key;
pub(crate) use tympan_store::key::KeyRange;

use crate::{Error, NodePath, Result};

/// Returns the key of the record at a path.
pub(crate) fn key_of(path: &NodePath) -> Result<Vec<u8>> {
    Ok(key::record(&path.names().collect::<Vec<_>>())?)
}

/// Returns the range of the records of a node's children.
pub(crate) fn children_of(path: &NodePath) -> Result<KeyRange> {
    Ok(key::children_range(&path.names().collect::<Vec<_>>())?)
}

/// Returns the range of the records of everything below a node.
pub(crate) fn below(path: &NodePath) -> Result<KeyRange> {
    Ok(key::subtree_range(&path.names().collect::<Vec<_>>())?)
}

/// Returns the path of the record with this key.
pub(crate) fn path_of(key: &[u8]) -> Result<NodePath> {
    NodePath::new(&format!("/{}", key::parse(key)?.join("/")))
}

/// Returns the name of the node whose record has this key.
pub(crate) fn name_of(key: &[u8]) -> Result<&str> {
    let name = key.rsplit(|byte| *byte == 0).next().unwrap_or_default();
    let reason = "the content map holds a key that is no path";
    std::str::from_utf8(name).map_err(|_| Error::Damaged { path: NodePath::root(), reason })
}
