//! The holds of this process: what their writers rely on before a ref keeps it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::record::Kind;
use crate::id::ChunkId;

/// All holds that live, and what was found present under them.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    state: Arc<Mutex<State>>,
    /// Packs are being condemned: whoever notes a hit now may come too late, and has to look again afterwards.
    condemning: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// For each hold, the pack that was open when it began: what was stored under it lies there or later.
    packs: BTreeMap<u64, u32>,
    /// What writers were told to be present, with the newest hold of that time.
    hits: HashMap<(Kind, [u8; 32]), u64>,
    /// How many hits there may be before those that no hold needs are looked for.
    prune_at: usize,
}

impl Holds {
    /// Begins a hold while `open_pack` is written.
    pub(super) fn begin(&self, open_pack: u32) -> impl Send + Sync + 'static {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.packs.insert(number, open_pack);
        Held { number, holds: self.clone() }
    }

    /// Notes that a writer was told that these are present.
    pub(super) fn note(&self, found: impl Iterator<Item = (Kind, [u8; 32])>) {
        let mut state = self.state.lock();
        let Some(newest) = state.packs.keys().next_back().copied() else {
            return;
        };
        state.hits.extend(found.map(|found| (found, newest)));
        if state.hits.len() > state.prune_at {
            let oldest = state.packs.keys().next().copied().unwrap_or(newest);
            state.hits.retain(|_, hold| *hold >= oldest);
            state.prune_at = (state.hits.len() * 2).max(1_024);
        }
    }

    /// Says that packs are being condemned until the guard is dropped.
    pub(super) fn condemn(&self) -> impl Drop {
        self.condemning.store(true, Ordering::SeqCst);
        Condemning(Arc::clone(&self.condemning))
    }

    /// Tells whether packs are being condemned.
    pub(super) fn is_condemning(&self) -> bool {
        self.condemning.load(Ordering::SeqCst)
    }

    /// Returns the first pack that may hold what was stored under a hold; `u32::MAX` without holds.
    pub(super) fn first_pack(&self) -> u32 {
        self.state.lock().packs.values().copied().min().unwrap_or(u32::MAX)
    }

    /// Returns the chunks that writers were told to be present.
    pub(super) fn hits(&self) -> Vec<ChunkId> {
        let state = self.state.lock();
        let chunks = state.hits.keys().filter(|(kind, _)| *kind == Kind::Chunk);
        chunks.map(|(_, id)| ChunkId::from_bytes(*id)).collect()
    }

    /// Returns the blobs that writers were told to be present.
    pub(super) fn blob_hits(&self) -> Vec<[u8; 32]> {
        let state = self.state.lock();
        let blobs = state.hits.keys().filter(|(kind, _)| *kind == Kind::Blob);
        blobs.map(|(_, digest)| *digest).collect()
    }
}

struct Condemning(Arc<AtomicBool>);

impl Drop for Condemning {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

struct Held {
    number: u64,
    holds: Holds,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.holds.state.lock();
        state.packs.remove(&self.number);
        if state.packs.is_empty() {
            state.hits.clear();
        }
    }
}
