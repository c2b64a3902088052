//! Group commit: ref updates of many threads to one ref, written together.
//!
//! Each thread stages its change on the state that the changes before it lead to, durable or not. While one group is
//! written, the next is gathered, so that one sync serves all waiting threads.
//!
//! Invariants
//! * A change is reported as committed when it and everything it builds on are durable.
//! * A change that cannot be staged leaves no trace in its group.
//!
//! On failure: if a group cannot be written, every change in it and in the group after it is staged again. A change
//! that fails again, alone, receives the error.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use crate::chunk::Chunk;
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::{ChunkBatch, read_layered};
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::interface::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::interface::history::Revision;
use crate::interface::root_retention::{CollectionHold, RootLease, RootPin};

/// The maximum number of times that a change is staged again because another writer moved the ref.
const MAX_COMMIT_ATTEMPTS: usize = 100;
/// The maximum number of changes in one group; with the longest messages they still fit one commit record.
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
    /// The contents of the next group.
    batch: ChunkBatch,
    /// The number of the next group, and of the changes in it.
    next_group: u64,
    change_count: usize,
    /// The root of the ref after everything staged; unknown before the first change, and after a failure.
    ref_head: Option<Option<ChunkId>>,
    is_writing: bool,
    /// Groups with lower numbers are written or have failed.
    ended_groups: u64,
    /// Failed groups, with the number of their changes that have not read the outcome yet.
    failed_groups: BTreeMap<u64, usize>,
}

impl RefCommitter {
    /// Creates the committer of a ref. There should be one for each ref and process, because two would cause each
    /// other's updates to fail.
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

    /// Returns the store with the staged changes applied; refs, history and all writes are those of the store itself.
    #[must_use]
    pub fn staged_store(&self) -> Arc<dyn ChunkStore> {
        Arc::clone(&self.overlay) as Arc<dyn ChunkStore>
    }

    /// Commits one change. `stage` receives the root that the ref will have, and returns the batch to store with the
    /// ref update in it, read through [`RefCommitter::staged_store`]. It is called again if the ref turns out to have
    /// another root. A batch without updates stores nothing, but the call still waits until the state it was based on
    /// is durable.
    ///
    /// # Errors
    /// The error that `stage` returns, or the error of the store for this change alone.
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

    /// Waits until a group is written, or writes it if no other thread is writing.
    fn wait_for_group(&self, group: u64) -> CommitGroupOutcome {
        let mut state = self.state.lock();
        loop {
            if group < state.ended_groups {
                return state.take_outcome(group);
            }
            if state.is_writing {
                self.group_ended.wait(&mut state);
            } else {
                // All earlier groups have ended, so this group is the next one.
                self.write_group(&mut state);
            }
        }
    }

    /// Writes the current group, while the next one is gathered.
    fn write_group(&self, state: &mut MutexGuard<'_, CommitGroupState>) {
        let group = state.next_group;
        let batch = std::mem::take(&mut state.batch);
        let members = std::mem::take(&mut state.change_count);
        state.next_group += 1;
        state.is_writing = true;
        let chunks: Vec<ChunkId> = batch.chunks().map(|(id, _)| *id).collect();
        let store = &self.overlay.store;
        let write = || if batch.is_empty() { Ok(()) } else { store.commit(batch) };
        // If the store panics, the other threads must not wait for a group that no thread writes.
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
        // Without an update staged after this group, the ref is read again, because other writers may move it.
        if state.change_count == 0 {
            state.ref_head = None;
        }
        self.group_ended.notify_all();
        if let Err(panic) = written {
            resume_unwind(panic);
        }
    }

    /// Fails a group, and the one that is gathered after it.
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

    /// Commits a change while no other is in progress, so that a failure is caused by this change.
    fn commit_exclusively<T, E: From<Error>>(
        &self,
        stage: &mut impl FnMut(Option<ChunkId>) -> Result<(ChunkBatch, T), E>,
    ) -> Result<T, E> {
        let mut state = self.state.lock();
        while state.is_writing || state.change_count > 0 {
            if state.is_writing {
                self.group_ended.wait(&mut state);
            } else {
                // The members of the group read its outcome themselves.
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

/// The outcome of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommitGroupOutcome {
    Written,
    /// Another writer moved the ref, or the previous group failed: staging the change again can help.
    RefMoved,
    /// The store returned an error.
    Failed,
}

impl CommitGroupState {
    /// Returns the outcome of a group to one of its members.
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

/// A store layered below chunks that are not written yet.
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

    fn sync(&self) -> Result<()> {
        self.store.sync()
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
