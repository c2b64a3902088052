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

use crate::batch::{Batch, read_over};
use crate::chunk::Chunk;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::collect::{CollectOptions, Collected, Progress};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::{Hold, Lease, Pin};

/// How often a change is staged anew because someone else moved the ref.
const MAX_ATTEMPTS: usize = 100;
/// Changes of one group, at most; with the longest messages they still fit one commit record.
const MAX_MEMBERS: usize = 256;

/// Commits the changes of many threads to one ref.
pub struct Committer {
    name: String,
    overlay: Arc<Overlay>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What the next group stores.
    batch: Batch,
    /// The number of the next group, and of the changes in it.
    group: u64,
    members: usize,
    /// Where the ref will be after everything staged; unknown before the first change, and after a failure.
    head: Option<Option<ChunkId>>,
    is_writing: bool,
    /// Groups below are written or have failed.
    ended: u64,
    /// Groups that failed, with the number of changes that have not noticed yet.
    failed: BTreeMap<u64, usize>,
}

impl Committer {
    /// Makes the committer of a ref. There should be one for each ref and process: two would move it from under each
    /// other.
    #[must_use]
    pub fn new(store: Arc<dyn ChunkStore>, name: impl Into<String>) -> Self {
        let overlay = Overlay { store, staged: RwLock::default() };
        Self {
            name: name.into(),
            overlay: Arc::new(overlay),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the store as staged changes leave it; refs, history and all writes are the store's own.
    #[must_use]
    pub fn staged(&self) -> Arc<dyn ChunkStore> {
        Arc::clone(&self.overlay) as Arc<dyn ChunkStore>
    }

    /// Commits one change: `stage` gets where the ref will be, and returns what to store, with the move of the ref in
    /// it, read through [`Committer::staged`]. It is called again if that place turns out to be another. A batch that
    /// moves nothing stores nothing, but the call still waits for what it was decided on.
    ///
    /// # Errors
    /// What `stage` returns, or what the store says about this change alone.
    pub fn commit<T, E: From<Error>>(
        &self,
        mut stage: impl FnMut(Option<ChunkId>) -> Result<(Batch, T), E>,
    ) -> Result<T, E> {
        for _ in 0..MAX_ATTEMPTS {
            let (group, result) = self.stage(&mut stage)?;
            match self.wait(group) {
                Ended::Written => return Ok(result),
                Ended::Moved => {}
                Ended::Failed => return self.commit_alone(&mut stage),
            }
        }
        self.commit_alone(&mut stage)
    }

    /// Adds a change to the next group. Returns its number.
    fn stage<T, E: From<Error>>(
        &self,
        stage: &mut impl FnMut(Option<ChunkId>) -> Result<(Batch, T), E>,
    ) -> Result<(u64, T), E> {
        let mut state = self.state.lock();
        while state.members >= MAX_MEMBERS {
            self.changed.wait(&mut state);
        }
        let head = self.head(&mut state)?;
        let (batch, result) = stage(head)?;
        if batch.moves_anything() {
            let last = batch.ref_updates().iter().rev().find(|update| update.name == self.name);
            if let Some(last) = last {
                state.head = Some(last.new);
            }
            self.overlay.add(&batch);
            state.batch.append(batch);
        }
        state.members += 1;
        Ok((state.group, result))
    }

    fn head(&self, state: &mut State) -> Result<Option<ChunkId>> {
        Ok(match state.head {
            Some(head) => head,
            None => *state.head.insert(self.overlay.store.read_ref(&self.name)?),
        })
    }

    /// Waits until a group is written, or writes it if nobody else is writing.
    fn wait(&self, group: u64) -> Ended {
        let mut state = self.state.lock();
        loop {
            if group < state.ended {
                return state.notice(group);
            }
            if state.is_writing {
                self.changed.wait(&mut state);
            } else {
                // Everything before this group has ended, so that it is the next one.
                self.write(&mut state);
            }
        }
    }

    /// Writes the group that gathers, while the next one can.
    fn write(&self, state: &mut MutexGuard<'_, State>) {
        let group = state.group;
        let batch = std::mem::take(&mut state.batch);
        let members = std::mem::take(&mut state.members);
        state.group += 1;
        state.is_writing = true;
        let chunks: Vec<ChunkId> = batch.chunks().map(|(id, _)| *id).collect();
        let store = &self.overlay.store;
        let write = || if batch.is_empty() { Ok(()) } else { store.commit(batch) };
        // A store that panics must not leave the others waiting for a group that nobody writes.
        let written = MutexGuard::unlocked(state, || catch_unwind(AssertUnwindSafe(write)));
        state.is_writing = false;
        state.ended = group + 1;
        match &written {
            Ok(Ok(())) => self.overlay.remove(&chunks),
            Ok(Err(Error::RefMoved { .. })) => self.fail(state, group * 2 + MOVED, members),
            Ok(Err(_)) | Err(_) => self.fail(state, group * 2 + FAILED, members),
        }
        // Without a move staged behind this group, the ref is asked again: others may move it.
        if state.members == 0 {
            state.head = None;
        }
        self.changed.notify_all();
        if let Err(panic) = written {
            resume_unwind(panic);
        }
    }

    /// Fails a group, and the one that gathers behind it.
    fn fail(&self, state: &mut State, group_and_reason: u64, members: usize) {
        state.failed.insert(group_and_reason, members);
        if state.members > 0 {
            let behind = state.group;
            state.failed.insert(behind * 2 + MOVED, state.members);
            state.members = 0;
            state.batch = Batch::new();
            state.group += 1;
            state.ended = behind + 1;
        }
        state.head = None;
        self.overlay.clear();
    }

    /// Commits a change while no other is under way, so that what fails is this one.
    fn commit_alone<T, E: From<Error>>(
        &self,
        stage: &mut impl FnMut(Option<ChunkId>) -> Result<(Batch, T), E>,
    ) -> Result<T, E> {
        let mut state = self.state.lock();
        while state.is_writing || state.members > 0 {
            if state.is_writing {
                self.changed.wait(&mut state);
            } else {
                // Its members notice by themselves what became of it.
                self.write(&mut state);
            }
        }
        let mut attempts = 0;
        loop {
            state.head = None;
            let (batch, result) = stage(self.head(&mut state)?)?;
            state.head = None;
            match self.overlay.store.commit(batch) {
                Ok(()) => return Ok(result),
                Err(Error::RefMoved { .. }) if attempts < MAX_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

const FAILED: u64 = 0;
const MOVED: u64 = 1;

/// What became of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    Written,
    /// Someone else moved the ref, or the group before failed: staging anew can help.
    Moved,
    /// The store refused.
    Failed,
}

impl State {
    /// Tells a member what became of its group.
    fn notice(&mut self, group: u64) -> Ended {
        for (reason, ended) in [(FAILED, Ended::Failed), (MOVED, Ended::Moved)] {
            let key = group * 2 + reason;
            if let Some(left) = self.failed.get_mut(&key) {
                *left -= 1;
                if *left == 0 {
                    self.failed.remove(&key);
                }
                return ended;
            }
        }
        Ended::Written
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Committer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A store with chunks before it that are not written yet.
struct Overlay {
    store: Arc<dyn ChunkStore>,
    staged: RwLock<HashMap<ChunkId, Bytes>>,
}

impl Overlay {
    fn add(&self, batch: &Batch) {
        let mut staged = self.staged.write();
        staged.extend(batch.chunks().map(|(id, bytes)| (*id, bytes.clone())));
    }

    fn remove(&self, ids: &[ChunkId]) {
        let mut staged = self.staged.write();
        for id in ids {
            staged.remove(id);
        }
    }

    fn clear(&self) {
        self.staged.write().clear();
    }

    fn find(&self, id: &ChunkId) -> Option<Bytes> {
        self.staged.read().get(id).cloned()
    }
}

impl ReadChunks for Overlay {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        match self.find(id) {
            Some(bytes) => Chunk::parse(bytes),
            None => self.store.read(id),
        }
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        read_over(&*self.store, ids, |id| self.find(id))
    }

    fn has_costly_round_trips(&self) -> bool {
        self.store.has_costly_round_trips()
    }
}

impl ChunkStore for Overlay {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        self.store.contains_many(ids)
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        self.store.read_blob(id)
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        self.store.contains_blob(id)
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.store.commit(batch)
    }

    fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        self.store.read_ref(name)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        self.store.refs()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        self.store.history(name, before, limit)
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.store.leases()
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.store.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        self.store.hold()
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.store.collect(options, pace)
    }
}
