//! Retention of states beside refs and their history: leases, pins and holds.
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

/// A root that is retained for a client outside of this process: a staging clone, a backup, a remote reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLease {
    /// The name of the holder, 1 to 255 bytes; a later lease of the same holder replaces an earlier one.
    pub holder: String,
    /// The root of the state that stays readable.
    pub root: ChunkId,
    /// The expiry time; `None` for a lease that only a release ends.
    pub expires_at: Option<SystemTime>,
}

impl RootLease {
    /// Returns true if the lease still retains its root.
    #[must_use]
    pub fn is_live(&self, now: SystemTime) -> bool {
        self.expires_at.is_none_or(|expires| now < expires)
    }
}

/// Retains a readable root until it is dropped. Cloning is cheap.
#[derive(Clone)]
pub struct RootPin {
    root: ChunkId,
    _guard: Arc<dyn Send + Sync>,
}

impl RootPin {
    /// Returns the retained root.
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

/// Protects from collection the chunks and blobs that a writer stores, or that are reported to it as present, while the
/// hold is alive.
///
/// A writer that stores chunks or blobs in one call and refers to them in a later one takes a hold before the first and
/// drops it after the last. Content that it reuses from an older state without a presence check is retained by a
/// [`RootPin`] of that state.
pub struct CollectionHold {
    _guard: Box<dyn Send + Sync>,
}

impl CollectionHold {
    /// Wraps a guard that ends the hold when it is dropped.
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

    /// Returns the currently pinned roots.
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
