//! Group commit: the moves of many threads to one ref, written together.
//!
//! Each thread stages its change on the state that the changes before it lead to, whether or not those are durable
//! yet. While one group is written, the next gathers, so that one sync serves all that wait.
//!
//! Invariants
//! * A change is reported as done when it and all that it builds on are durable.
//! * A change that cannot be staged leaves no trace in its group.
//!
//! On failure: if a group cannot be written, every change in it and in the group behind it is staged anew; one that
//! fails again, alone, gets the reason.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::chunk::Chunk;
use crate::chunk_batch::{ChunkBatch, read_layered};
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::error::{Error, Result};
use crate::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::root_retention::{CollectionHold, RootLease, RootPin};

/// How often a change is staged anew because someone else moved the ref.
const MAX_COMMIT_ATTEMPTS: usize = 100;
/// Changes of one group, at most; with the longest messages they still fit one commit record.
const MAX_GROUP_CHANGES: usize = 256;

/// Commits the changes of many threads to one ref.
pub struct RefCommitter {
    ref_name: String,
    overlay: Arc<StagedOverlay>,
    state: Mutex<CommitGroupState>,
    group_ended: Condvar,
}

#[derive(Default)]
struct CommitGroupState {
    /// What the next group stores.
    batch: ChunkBatch,
    /// The number of the next group, and of the changes in it.
    next_group: u64,
    change_count: usize,
    /// Where the ref will be after everything staged; unknown before the first change, and after a failure.
    ref_head: Option<Option<ChunkId>>,
    is_writing: bool,
    /// Groups below are written or have failed.
    ended_groups: u64,
    /// Groups that failed, with the number of changes that have not noticed yet.
    failed_groups: BTreeMap<u64, usize>,
}

impl RefCommitter {
    /// Makes the committer of a ref. There should be one for each ref and process: two would move it from under each
    /// other.
    #[must_use]
    pub fn new(store: Arc<dyn ChunkStore>, name: impl Into<String>) -> Self {
        let overlay = StagedOverlay { store, staged_chunks: RwLock::default() };
        Self {
            ref_name: name.into(),
            overlay: Arc::new(overlay),
            state: Mutex::default(),
            group_ended: Condvar::new(),
        }
    }

    /// Returns the store as staged changes leave it; refs, history and all writes are the store's own.
    #[must_use]
    pub fn staged_store(&self) -> Arc<dyn ChunkStore> {
        Arc::clone(&self.overlay) as Arc<dyn ChunkStore>
    }

    /// Commits one change: `stage` gets where the ref will be, and returns what to store, with the move of the ref in
    /// it, read through [`RefCommitter::staged_store`]. It is called again if that place turns out to be another. A batch that
    /// moves nothing stores nothing, but the call still waits for what it was decided on.
    ///
    /// # Errors
    /// What `stage` returns, or what the store says about this change alone.
    pub fn commit_change<T, E: From<Error>>(
        &self,
        mut stage: impl FnMut(Option<ChunkId>) -> Result<(ChunkBatch, T), E>,
    ) -> Result<T, E> {
        for _ in 0..MAX_COMMIT_ATTEMPTS {
            let (group, result) = self.stage_change(&mut stage)?;
            match self.wait_for_group(group) {
                CommitGroupOutcome::Written => return Ok(result),
                CommitGroupOutcome::RefMoved => {}
                CommitGroupOutcome::Failed => return self.commit_exclusively(&mut stage),
            }
        }
        self.commit_exclusively(&mut stage)
    }

    /// Adds a change to the next group. Returns its number.
    fn stage_change<T, E: From<Error>>(
        &self,
        stage: &mut impl FnMut(Option<ChunkId>) -> Result<(ChunkBatch, T), E>,
    ) -> Result<(u64, T), E> {
        let mut state = self.state.lock();
        while state.change_count >= MAX_GROUP_CHANGES {
            self.group_ended.wait(&mut state);
        }
        let head = self.ensure_ref_head(&mut state)?;
        let (batch, result) = stage(head)?;
        if batch.has_updates() {
            let last = batch.ref_updates().iter().rev().find(|update| update.name == self.ref_name);
            if let Some(last) = last {
                state.ref_head = Some(last.new_root);
            }
            self.overlay.add_staged(&batch);
            state.batch.append(batch);
        }
        state.change_count += 1;
        Ok((state.next_group, result))
    }

    fn ensure_ref_head(&self, state: &mut CommitGroupState) -> Result<Option<ChunkId>> {
        Ok(match state.ref_head {
            Some(head) => head,
            None => *state.ref_head.insert(self.overlay.store.read_ref(&self.ref_name)?),
        })
    }

    /// Waits until a group is written, or writes it if nobody else is writing.
    fn wait_for_group(&self, group: u64) -> CommitGroupOutcome {
        let mut state = self.state.lock();
        loop {
            if group < state.ended_groups {
                return state.take_outcome(group);
            }
            if state.is_writing {
                self.group_ended.wait(&mut state);
            } else {
                // Everything before this group has ended, so that it is the next one.
                self.write_group(&mut state);
            }
        }
    }

    /// Writes the group that gathers, while the next one can.
    fn write_group(&self, state: &mut MutexGuard<'_, CommitGroupState>) {
        let group = state.next_group;
        let batch = std::mem::take(&mut state.batch);
        let members = std::mem::take(&mut state.change_count);
        state.next_group += 1;
        state.is_writing = true;
        let chunks: Vec<ChunkId> = batch.chunks().map(|(id, _)| *id).collect();
        let store = &self.overlay.store;
        let write = || if batch.is_empty() { Ok(()) } else { store.commit(batch) };
        // A store that panics must not leave the others waiting for a group that nobody writes.
        let written = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(write)));
        state.is_writing = false;
        state.ended_groups = group + 1;
        match &written {
            Ok(Ok(())) => self.overlay.remove_staged(&chunks),
            Ok(Err(Error::RefMoved { .. })) => {
                self.fail_group(state, group * 2 + REASON_REF_MOVED, members)
            }
            Ok(Err(_)) | Err(_) => self.fail_group(state, group * 2 + REASON_FAILED, members),
        }
        // Without a move staged behind this group, the ref is asked again: others may move it.
        if state.change_count == 0 {
            state.ref_head = None;
        }
        self.group_ended.notify_all();
        if let Err(panic) = written {
            resume_unwind(panic);
        }
    }

    /// Fails a group, and the one that gathers behind it.
    fn fail_group(&self, state: &mut CommitGroupState, group_and_reason: u64, members: usize) {
        state.failed_groups.insert(group_and_reason, members);
        if state.change_count > 0 {
            let behind = state.next_group;
            state.failed_groups.insert(behind * 2 + REASON_REF_MOVED, state.change_count);
            state.change_count = 0;
            state.batch = ChunkBatch::new();
            state.next_group += 1;
            state.ended_groups = behind + 1;
        }
        state.ref_head = None;
        self.overlay.clear_staged();
    }

    /// Commits a change while no other is under way, so that what fails is this one.
    fn commit_exclusively<T, E: From<Error>>(
        &self,
        stage: &mut impl FnMut(Option<ChunkId>) -> Result<(ChunkBatch, T), E>,
    ) -> Result<T, E> {
        let mut state = self.state.lock();
        while state.is_writing || state.change_count > 0 {
            if state.is_writing {
                self.group_ended.wait(&mut state);
            } else {
                // Its members notice by themselves what became of it.
                self.write_group(&mut state);
            }
        }
        let mut attempts = 0;
        loop {
            state.ref_head = None;
            let (batch, result) = stage(self.ensure_ref_head(&mut state)?)?;
            state.ref_head = None;
            match self.overlay.store.commit(batch) {
                Ok(()) => return Ok(result),
                Err(Error::RefMoved { .. }) if attempts < MAX_COMMIT_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

const REASON_FAILED: u64 = 0;
const REASON_REF_MOVED: u64 = 1;

/// What became of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitGroupOutcome {
    Written,
    /// Someone else moved the ref, or the group before failed: staging anew can help.
    RefMoved,
    /// The store refused.
    Failed,
}

impl CommitGroupState {
    /// Tells a member what became of its group.
    fn take_outcome(&mut self, group: u64) -> CommitGroupOutcome {
        for (reason, ended) in [
            (REASON_FAILED, CommitGroupOutcome::Failed),
            (REASON_REF_MOVED, CommitGroupOutcome::RefMoved),
        ] {
            let key = group * 2 + reason;
            if let Some(left) = self.failed_groups.get_mut(&key) {
                *left -= 1;
                if *left == 0 {
                    self.failed_groups.remove(&key);
                }
                return ended;
            }
        }
        CommitGroupOutcome::Written
    }
}

impl fmt::Debug for RefCommitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefCommitter").field("name", &self.ref_name).finish_non_exhaustive()
    }
}

/// A store with chunks before it that are not written yet.
struct StagedOverlay {
    store: Arc<dyn ChunkStore>,
    staged_chunks: RwLock<HashMap<ChunkId, Bytes>>,
}

impl StagedOverlay {
    fn add_staged(&self, batch: &ChunkBatch) {
        let mut staged = self.staged_chunks.write();
        staged.extend(batch.chunks().map(|(id, bytes)| (*id, bytes.clone())));
    }

    fn remove_staged(&self, ids: &[ChunkId]) {
        let mut staged = self.staged_chunks.write();
        for id in ids {
            staged.remove(id);
        }
    }

    fn clear_staged(&self) {
        self.staged_chunks.write().clear();
    }

    fn find_staged(&self, id: &ChunkId) -> Option<Bytes> {
        self.staged_chunks.read().get(id).cloned()
    }
}

impl ReadChunks for StagedOverlay {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        match self.find_staged(id) {
            Some(bytes) => Chunk::parse(bytes),
            None => self.store.read_chunk(id),
        }
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        read_layered(&*self.store, ids, |id| self.find_staged(id))
    }

    fn has_costly_round_trips(&self) -> bool {
        self.store.has_costly_round_trips()
    }
}

impl ChunkStore for StagedOverlay {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.store.contains_chunks(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        self.store.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.store.contains_blob(id)
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        self.store.commit(batch)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.store.read_ref(name)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.store.list_refs()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.store.ref_history(name, before, limit)
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.store.list_leases()
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.store.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.store.begin_hold()
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.store.collect_garbage(options, pace)
    }
}
