//! Paths, values and nodes as plain data, without a store.

pub(crate) mod date;
pub(crate) mod markup;
pub(crate) mod node_difference;
pub(crate) mod node_path;
pub(crate) mod order_key;
pub(crate) mod reference;
pub(crate) mod referrer;
pub(crate) mod subtree;
pub(crate) mod subtree_children;
pub(crate) mod text_link;
pub(crate) mod value;
pub(crate) mod value_key;
