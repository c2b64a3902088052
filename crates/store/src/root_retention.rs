//! What keeps states from being collected beside refs and their history: leases, pins and holds.
//!
//! | | kept | until |
//! |---|---|---|
//! | [`RootLease`] | one root, durably, for someone outside | it expires or is released |
//! | [`RootPin`] | one root, for a reader of this process | it is dropped |
//! | [`CollectionHold`] | whatever is stored or found present from now on, for a writer that has not moved a ref yet | it is dropped |
//!
//! Not here: the collection itself (`garbage_collection`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::id::ChunkId;

/// A root that is kept for someone outside of this process: a staging clone, a backup, a remote reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLease {
    /// Who holds it, 1 to 255 bytes; a later lease of the same holder replaces an earlier one.
    pub holder: String,
    /// The state that stays readable.
    pub root: ChunkId,
    /// Until when; `None` for a pin that only a release ends.
    pub expires_at: Option<SystemTime>,
}

impl RootLease {
    /// Tells whether the lease still keeps its root.
    #[must_use]
    pub fn is_live(&self, now: SystemTime) -> bool {
        self.expires_at.is_none_or(|expires| now < expires)
    }
}

/// Keeps a root readable until it is dropped. Cloning is cheap.
#[derive(Clone)]
pub struct RootPin {
    root: ChunkId,
    _guard: Arc<dyn Send + Sync>,
}

impl RootPin {
    /// Returns the root that is kept.
    #[must_use]
    pub fn root(&self) -> ChunkId {
        self.root
    }
}

impl fmt::Debug for RootPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RootPin").field(&self.root).finish()
    }
}

/// Keeps from collection what a writer stores, or is told to be present, while the hold lives.
///
/// A writer that stores chunks or blobs in one call and refers to them in a later one takes a hold before the first
/// and drops it after the last. What it takes over from an older state, unasked, is kept by a [`RootPin`] of that state.
pub struct CollectionHold {
    _guard: Box<dyn Send + Sync>,
}

impl CollectionHold {
    /// Wraps whatever ends the hold on being dropped.
    #[must_use]
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(guard) }
    }
}

impl fmt::Debug for CollectionHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectionHold").finish_non_exhaustive()
    }
}

/// The roots that readers of this process have pinned.
#[derive(Clone, Debug, Default)]
pub struct RootPins {
    counts: Arc<Mutex<BTreeMap<ChunkId, usize>>>,
}

impl RootPins {
    /// Pins a root.
    #[must_use]
    pub fn pin_root(&self, root: ChunkId) -> RootPin {
        *self.counts.lock().entry(root).or_default() += 1;
        RootPin { root, _guard: Arc::new(RootPinGuard { root, pins: self.clone() }) }
    }

    /// Returns the roots that are pinned now.
    #[must_use]
    pub fn pinned_roots(&self) -> Vec<ChunkId> {
        self.counts.lock().keys().copied().collect()
    }
}

struct RootPinGuard {
    root: ChunkId,
    pins: RootPins,
}

impl Drop for RootPinGuard {
    fn drop(&mut self) {
        let mut counts = self.pins.counts.lock();
        if let Some(count) = counts.get_mut(&self.root) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.root);
            }
        }
    }
}
