//! A cache of the locations of nodes and of their visibility to viewers, for repeated lookups in the same state.

use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Weak};

use quick_cache::Equivalent;
use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::AccessGate;
use crate::document::body::{BodyNode, DocumentBody};
use crate::document::boundary::{is_container, is_own_content};
use crate::document::record::ContentRecord;

/// The location of a node, cached for repeated lookups in the same state of the content.
pub(crate) struct NodeLocation {
    pub(super) path: NodePath,
    pub(super) kind: NodeLocationKind,
    pub(super) visibility: LocationVisibility,
}

/// The kind of a node: a document's own node, which is known without a body, or one inside a document.
pub(super) enum NodeLocationKind {
    Document(ContentRecord),
    Inside {
        document: Arc<NodeLocation>,
        body_node: BodyNode,
        /// The body as long as the body cache holds it. An inline body is small and opened again.
        body: Weak<DocumentBody>,
    },
}

impl NodeLocation {
    pub(super) fn new(path: NodePath, kind: NodeLocationKind) -> Arc<Self> {
        Arc::new(Self { path, kind, visibility: LocationVisibility::default() })
    }

    /// Returns true if a child of this name, if it exists, has a record of its own.
    pub(super) fn has_child_record(&self, name: &str) -> bool {
        let NodeLocationKind::Document(record) = &self.kind else { return false };
        let primary_type = record.summary.primary_type();
        is_container(self.path.name(), primary_type) && !is_own_content(primary_type, name)
    }

    /// Returns the path and record of the document.
    pub(super) fn document_record(&self) -> (&NodePath, &ContentRecord) {
        let (location, record) = self.document_location();
        (&location.path, record)
    }

    /// Returns the location and record of the document.
    pub(super) fn document_location(&self) -> (&Self, &ContentRecord) {
        match &self.kind {
            NodeLocationKind::Document(record) => (self, record),
            NodeLocationKind::Inside { document, .. } => document.document_location(),
        }
    }
}

/// The last visibility decisions about a location, each stored as the number of the rules that allowed it
/// ([`AccessGate::rule_number`]). A location belongs to one content map, so that the same rules always decide alike
/// about it.
#[derive(Default)]
pub(super) struct LocationVisibility {
    /// The rules by which the node is visible.
    pub(super) node_rules: AtomicU64,
    /// The rules by which everything in the record's header is visible; only for documents.
    pub(super) header_rules: AtomicU64,
    /// The rules by which the whole document is visible; only for documents.
    pub(super) document_rules: AtomicU64,
}

/// Returns true if the last viewer who saw a location had the same rules.
pub(super) fn is_visibility_cached(gate: &AccessGate, rules: &AtomicU64) -> bool {
    gate.rule_number().is_some_and(|number| rules.load(atomic::Ordering::Relaxed) == number)
}

/// Decides the visibility of a location, unless it is cached for the same rules. A negative decision is not cached.
pub(super) fn is_visible_to(
    gate: &AccessGate,
    rules: &AtomicU64,
    decide: impl FnOnce() -> bool,
) -> bool {
    let Some(number) = gate.rule_number() else { return decide() };
    if is_visibility_cached(gate, rules) {
        return true;
    }
    let is_seen = decide();
    if is_seen {
        rules.store(number, atomic::Ordering::Relaxed);
    }
    is_seen
}

/// A content map and a path in it.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct NodeLocationKey(pub(super) ChunkId, pub(super) NodePath);

/// A borrowed [`NodeLocationKey`] for lookups without allocation.
#[derive(Hash)]
pub(super) struct NodeLocationKeyRef<'a>(pub(super) &'a ChunkId, pub(super) &'a NodePath);

impl Equivalent<NodeLocationKey> for NodeLocationKeyRef<'_> {
    fn equivalent(&self, key: &NodeLocationKey) -> bool {
        *self.0 == key.0 && *self.1 == key.1
    }
}
