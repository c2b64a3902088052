//! Where nodes were found: kept in memory for whoever looks for them in the same state again, and what viewers saw there.

use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Weak};

use quick_cache::Equivalent;
use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::AccessGate;
use crate::document_body::{BodyNode, DocumentBody};
use crate::document_boundary::{is_container, is_own_content};
use crate::record::ContentRecord;

/// Where a node was found, kept for whoever looks for it in the same state of the content again.
pub(crate) struct NodeLocation {
    pub(super) path: NodePath,
    pub(super) kind: NodeLocationKind,
    pub(super) visibility: LocationVisibility,
}

/// A document's own node, which needs no body to be known, or one inside a document.
pub(super) enum NodeLocationKind {
    Document(ContentRecord),
    Inside {
        document: Arc<NodeLocation>,
        body_node: BodyNode,
        /// The body while the cache of bodies has it. One inside a record is small and opened again.
        body: Weak<DocumentBody>,
    },
}

impl NodeLocation {
    pub(super) fn new(path: NodePath, kind: NodeLocationKind) -> Arc<Self> {
        Arc::new(Self { path, kind, visibility: LocationVisibility::default() })
    }

    /// Tells whether a child of this name has a record of its own, if it is there.
    pub(super) fn has_child_record(&self, name: &str) -> bool {
        let NodeLocationKind::Document(record) = &self.kind else { return false };
        let primary_type = record.summary.primary_type();
        is_container(self.path.name(), primary_type) && !is_own_content(primary_type, name)
    }

    /// Returns path and record of the document.
    pub(super) fn document_record(&self) -> (&NodePath, &ContentRecord) {
        let (place, record) = self.document_location();
        (&place.path, record)
    }

    /// Returns place and record of the document.
    pub(super) fn document_location(&self) -> (&Self, &ContentRecord) {
        match &self.kind {
            NodeLocationKind::Document(record) => (self, record),
            NodeLocationKind::Inside { document, .. } => document.document_location(),
        }
    }
}

/// What viewers saw of a place lately, who are bound by the rules with this number ([`AccessGate::rule_number`]). A place belongs to one
/// content map, so that the same rules decide alike about it each time.
#[derive(Default)]
pub(super) struct LocationVisibility {
    /// Rules by which the node is seen.
    pub(super) node_rules: AtomicU64,
    /// Rules by which all is seen that the record's header tells; of documents.
    pub(super) header_rules: AtomicU64,
    /// Rules by which all of the document is seen; of documents.
    pub(super) document_rules: AtomicU64,
}

/// Tells whether a viewer saw a place lately by the same rules.
pub(super) fn is_visibility_cached(gate: &AccessGate, known: &AtomicU64) -> bool {
    gate.rule_number().is_some_and(|number| known.load(atomic::Ordering::Relaxed) == number)
}

/// Decides about a place, unless the same rules did so lately. What is not seen is asked about each time.
pub(super) fn is_visible_to(
    gate: &AccessGate,
    known: &AtomicU64,
    decide: impl FnOnce() -> bool,
) -> bool {
    let Some(number) = gate.rule_number() else { return decide() };
    if is_visibility_cached(gate, known) {
        return true;
    }
    let is_seen = decide();
    if is_seen {
        known.store(number, atomic::Ordering::Relaxed);
    }
    is_seen
}

/// A content map and a path in it.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct NodeLocationKey(pub(super) ChunkId, pub(super) NodePath);

/// A [`NodeLocationKey`] that need not be made to look for it.
#[derive(Hash)]
pub(super) struct NodeLocationKeyRef<'a>(pub(super) &'a ChunkId, pub(super) &'a NodePath);

impl Equivalent<NodeLocationKey> for NodeLocationKeyRef<'_> {
    fn equivalent(&self, key: &NodeLocationKey) -> bool {
        *self.0 == key.0 && *self.1 == key.1
    }
}
