//! The holds of this process: records that its writers rely on before a ref retains them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::record::RecordKind;
use crate::id::ChunkId;

/// All live holds, and the records found present under them.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalHolds {
    state: Arc<Mutex<LocalHoldState>>,
    /// True while packs are being condemned. A caller that records a hit now may be too late and must look it up again
    /// afterwards.
    is_condemning: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct LocalHoldState {
    next_hold: u64,
    /// For each hold, the pack that was open when it began. Records stored under the hold are in this pack or a later
    /// one.
    open_packs: BTreeMap<u64, u32>,
    /// The records reported to writers as present, each with the newest hold at that time.
    hits: HashMap<(RecordKind, [u8; 32]), u64>,
    /// The number of hits at which hits that no hold needs are searched and removed.
    prune_threshold: usize,
}

impl LocalHolds {
    /// Begins a hold while `open_pack` is the open pack.
    pub(super) fn begin_hold(&self, open_pack: u32) -> impl Send + Sync + 'static {
        let mut state = self.state.lock();
        let number = state.next_hold;
        state.next_hold += 1;
        state.open_packs.insert(number, open_pack);
        LocalHoldGuard { hold_number: number, holds: self.clone() }
    }

    /// Records that these were reported to a writer as present.
    pub(super) fn record_hits(&self, hits: impl Iterator<Item = (RecordKind, [u8; 32])>) {
        let mut state = self.state.lock();
        let Some(newest) = state.open_packs.keys().next_back().copied() else {
            return;
        };
        state.hits.extend(hits.map(|hit| (hit, newest)));
        if state.hits.len() > state.prune_threshold {
            let oldest = state.open_packs.keys().next().copied().unwrap_or(newest);
            state.hits.retain(|_, hold| *hold >= oldest);
            state.prune_threshold = (state.hits.len() * 2).max(1_024);
        }
    }

    /// Marks packs as being condemned until the guard is dropped.
    pub(super) fn begin_condemning(&self) -> impl Drop {
        self.is_condemning.store(true, Ordering::SeqCst);
        CondemningGuard(Arc::clone(&self.is_condemning))
    }

    /// Returns true while packs are being condemned.
    pub(super) fn is_condemning(&self) -> bool {
        self.is_condemning.load(Ordering::SeqCst)
    }

    /// Returns the first pack that may contain records stored under a hold; `u32::MAX` without holds.
    pub(super) fn first_held_pack(&self) -> u32 {
        self.state.lock().open_packs.values().copied().min().unwrap_or(u32::MAX)
    }

    /// Returns the chunks reported to writers as present.
    pub(super) fn chunk_hits(&self) -> Vec<ChunkId> {
        let state = self.state.lock();
        let chunks = state.hits.keys().filter(|(kind, _)| *kind == RecordKind::Chunk);
        chunks.map(|(_, id)| ChunkId::from_bytes(*id)).collect()
    }

    /// Returns the blobs reported to writers as present.
    pub(super) fn blob_hits(&self) -> Vec<[u8; 32]> {
        let state = self.state.lock();
        let blobs = state.hits.keys().filter(|(kind, _)| *kind == RecordKind::Blob);
        blobs.map(|(_, digest)| *digest).collect()
    }
}

struct CondemningGuard(Arc<AtomicBool>);

impl Drop for CondemningGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct LocalHoldGuard {
    hold_number: u64,
    holds: LocalHolds,
}

impl Drop for LocalHoldGuard {
    fn drop(&mut self) {
        let mut state = self.holds.state.lock();
        state.open_packs.remove(&self.hold_number);
        if state.open_packs.is_empty() {
            state.hits.clear();
        }
    }
}
