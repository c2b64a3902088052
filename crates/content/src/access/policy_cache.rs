//! The policies of the states that were read recently, and the gate that was opened last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwapOption;
use tympan_store::{ChunkId, SortedMap};

use super::access_gate::AccessGate;
use super::access_policies::AccessPolicies;
use super::viewer::Viewer;

/// Maximum number of states whose policies are cached.
pub(super) const MAX_CACHED_STATES: usize = 16;

/// The policies of the states that were read recently.
#[derive(Default)]
pub(crate) struct AccessPolicyCache {
    pub(super) cached_states: Mutex<Vec<CachedPolicyState>>,
    /// The newest state of `main` that was requested.
    pub(super) newest_main: Mutex<Option<(ChunkId, Arc<AccessPolicies>)>>,
    /// The former policies that apply to states that were read recently.
    pub(super) former_policies: Mutex<Vec<CachedFormerPolicies>>,
    /// The gate that was opened last; most requests come from one viewer (anonymous) and for one state.
    last_gate: ArcSwapOption<CachedAccessGate>,
    pub(super) next_id: AtomicU64,
    /// Number of documents read to find policies; for tests.
    pub(super) documents_read: AtomicU64,
}

/// A gate and the parameters it was opened with.
struct CachedAccessGate {
    root: ChunkId,
    /// The newest state of `main`, whose policies also apply.
    main_root: ChunkId,
    viewer: Viewer,
    gate: Arc<AccessGate>,
}

/// A state and its policies.
#[derive(Clone)]
pub(super) struct CachedPolicyState {
    pub(super) content_map: SortedMap,
    pub(super) type_map: SortedMap,
    pub(super) policies: Arc<AccessPolicies>,
}

/// The policies of the newest state of `main` together with former ones, by the maps of former policies of a state and
/// of `main`.
pub(super) struct CachedFormerPolicies {
    pub(super) own_map: SortedMap,
    pub(super) main_map: SortedMap,
    /// The set of policies of `main`.
    pub(super) main_id: u64,
    /// `None` if no former policy applies.
    pub(super) policies: Option<Arc<AccessPolicies>>,
}

impl AccessPolicyCache {
    /// Returns the cached gate if it was opened with these parameters.
    pub(crate) fn cached_gate(
        &self,
        root: ChunkId,
        main: ChunkId,
        viewer: &Viewer,
    ) -> Option<Arc<AccessGate>> {
        let last = self.last_gate.load();
        let last = last
            .as_ref()
            .filter(|last| last.main_root == main && last.root == root && last.viewer == *viewer);
        last.map(|last| Arc::clone(&last.gate))
    }

    /// Caches the gate that was opened last.
    pub(crate) fn cache_gate(
        &self,
        root: ChunkId,
        main: ChunkId,
        viewer: &Viewer,
        gate: &Arc<AccessGate>,
    ) {
        let (viewer, gate) = (viewer.clone(), Arc::clone(gate));
        self.last_gate.store(Some(Arc::new(CachedAccessGate {
            root,
            main_root: main,
            viewer,
            gate,
        })));
    }

    /// Returns the number of documents read to find policies.
    pub(crate) fn documents_read(&self) -> u64 {
        self.documents_read.load(Ordering::Relaxed)
    }
}
