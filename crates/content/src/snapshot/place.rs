//! Where nodes were found: kept in memory for whoever looks for them in the same state again, and what viewers saw there.

use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Weak};

use quick_cache::Equivalent;
use tympan_store::ChunkId;

use crate::NodePath;
use crate::access::Gate;
use crate::body::{Body, BodyNode};
use crate::boundary::{is_container, is_own_content};
use crate::record::Record;

/// Where a node was found, kept for whoever looks for it in the same state of the content again.
pub(crate) struct Place {
    pub(super) path: NodePath,
    pub(super) kind: PlaceKind,
    pub(super) seen: Seen,
}

/// A document's own node, which needs no body to be known, or one inside a document.
pub(super) enum PlaceKind {
    Document(Record),
    Inside {
        document: Arc<Place>,
        at: BodyNode,
        /// The body while the cache of bodies has it. One inside a record is small and opened again.
        body: Weak<Body>,
    },
}

impl Place {
    pub(super) fn new(path: NodePath, kind: PlaceKind) -> Arc<Self> {
        Arc::new(Self { path, kind, seen: Seen::default() })
    }

    /// Tells whether a child of this name has a record of its own, if it is there.
    pub(super) fn has_record_of(&self, name: &str) -> bool {
        let PlaceKind::Document(record) = &self.kind else { return false };
        let primary_type = record.summary.primary_type();
        is_container(self.path.name(), primary_type) && !is_own_content(primary_type, name)
    }

    /// Returns path and record of the document.
    pub(super) fn document(&self) -> (&NodePath, &Record) {
        let (place, record) = self.document_place();
        (&place.path, record)
    }

    /// Returns place and record of the document.
    pub(super) fn document_place(&self) -> (&Self, &Record) {
        match &self.kind {
            PlaceKind::Document(record) => (self, record),
            PlaceKind::Inside { document, .. } => document.document_place(),
        }
    }
}

/// What viewers saw of a place lately, who are bound by the rules with this number ([`Gate::number`]). A place belongs to one
/// content map, so that the same rules decide alike about it each time.
#[derive(Default)]
pub(super) struct Seen {
    /// Rules by which the node is seen.
    pub(super) node: AtomicU64,
    /// Rules by which all is seen that the record's header tells; of documents.
    pub(super) header: AtomicU64,
    /// Rules by which all of the document is seen; of documents.
    pub(super) document: AtomicU64,
}

/// Tells whether a viewer saw a place lately by the same rules.
pub(super) fn is_known_to(gate: &Gate, known: &AtomicU64) -> bool {
    gate.number().is_some_and(|number| known.load(atomic::Ordering::Relaxed) == number)
}

/// Decides about a place, unless the same rules did so lately. What is not seen is asked about each time.
pub(super) fn is_seen_by(gate: &Gate, known: &AtomicU64, decide: impl FnOnce() -> bool) -> bool {
    let Some(number) = gate.number() else { return decide() };
    if is_known_to(gate, known) {
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
pub(crate) struct PlaceKey(pub(super) ChunkId, pub(super) NodePath);

/// A [`PlaceKey`] that need not be made to look for it.
#[derive(Hash)]
pub(super) struct PlaceQuery<'a>(pub(super) &'a ChunkId, pub(super) &'a NodePath);

impl Equivalent<PlaceKey> for PlaceQuery<'_> {
    fn equivalent(&self, key: &PlaceKey) -> bool {
        *self.0 == key.0 && *self.1 == key.1
    }
}
