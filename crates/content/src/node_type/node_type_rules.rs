//! The node types and namespaces of a state, and their cache.

use std::sync::Arc;

use tympan_store::ChunkId;

use super::namespace::NamespaceRegistry;
use super::type_registry::NodeTypes;

/// The node types and namespaces of a state of the content.
#[derive(Debug, Clone)]
pub(crate) struct NodeTypeRules {
    pub(crate) node_types: Arc<NodeTypes>,
    pub(crate) namespaces: Arc<NamespaceRegistry>,
}

/// A cache of the rules, by the hashes of the documents that hold them.
pub(crate) type NodeTypeRulesCache = quick_cache::sync::Cache<(ChunkId, ChunkId), NodeTypeRules>;

/// Maximum number of cached rules: enough for a few branches.
pub(crate) const MAX_CACHED_RULES: usize = 8;
