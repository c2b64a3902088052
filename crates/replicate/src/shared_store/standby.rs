//! A standby: a store of its own that follows another one, ready to replace it.
//!
//! In: the chunks and blobs of a base. Out: the same revisions of `main`, with author, message and time, complete.
//!
//! Invariants
//! * A ref is moved here only after everything that its new root reaches is durable here.
//! * [`StandbyLag::complete_until`] is never too late: everything that the base acknowledged before that time is here.
//!
//! On failure: what was copied is retained, and the next [`StandbyStore::catch_up`] continues from it.
//!
//! Not here: jobs, logins and keys, which are not content; the schedule of the copies.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_blobs::{BlobStore, ReadBlobs, SMALL_BLOB_BYTES};
use tympan_store::{
    BaseStore, BlobId, ChunkBatch, ChunkId, ChunkStore, ChunkSyncReport, ChunkSyncRoute,
    GarbageCollectionOptions, GarbageCollectionReport, LocalStore, RefUpdate, Revision,
    acquire_lease, sync_chunks,
};

use crate::{Error, Result};

/// The followed branch.
const FOLLOWED_BRANCH: &str = "main";
/// The number of revisions per request.
const REVISION_PAGE_SIZE: usize = 200;
/// The maximum number of revisions copied one by one; if there are more, only the newest is copied.
const MAX_COPIED_REVISIONS: usize = 5_000;
/// The maximum number of ref moves in one commit: even with the longest messages they fit its record.
const MAX_REF_UPDATES_PER_COMMIT: usize = 512;
/// The duration of the lease on a state while it is copied.
const COPY_LEASE_DURATION: Duration = Duration::from_hours(6);

/// The lag of a standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyLag {
    /// The number of revisions of the base that were missing here at the last check; 0 once they are copied.
    pub revisions: u64,
    /// The time before which everything that the base acknowledged is here; `None` until the first copy is complete.
    pub complete_until: Option<SystemTime>,
}

impl StandbyLag {
    /// Returns the age of the newest state that is certain to be here; `None` if there is none.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        self.complete_until.map(|until| now.duration_since(until).unwrap_or_default())
    }
}

/// The result of one copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StandbyCopyReport {
    /// The number of revisions copied.
    pub revisions: u64,
    /// The number of large blobs copied.
    pub large_blobs: u64,
    /// The chunks and small blobs copied, and the cost.
    pub sync_stats: ChunkSyncReport,
}

/// A store that follows a base.
pub struct StandbyStore {
    base: Arc<dyn BaseStore>,
    base_blobs: Arc<dyn ReadBlobs>,
    local_store: Arc<LocalStore>,
    local_blobs: Arc<dyn BlobStore>,
    lease_holder: String,
    lag: Mutex<StandbyLag>,
}

impl fmt::Debug for StandbyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Standby({})", self.base.display_name())
    }
}

impl StandbyStore {
    /// Creates a standby of `base` with a store and blobs of its own. `holder` names the lease that is taken for long
    /// copies.
    #[must_use]
    pub fn new(
        (base, base_blobs): (Arc<dyn BaseStore>, Arc<dyn ReadBlobs>),
        (own, blobs): (Arc<LocalStore>, Arc<dyn BlobStore>),
        holder: String,
    ) -> Self {
        let lag = Mutex::new(StandbyLag { revisions: 0, complete_until: None });
        Self { base, base_blobs, local_store: own, local_blobs: blobs, lease_holder: holder, lag }
    }

    /// Returns the lag at the last check.
    #[must_use]
    pub fn lag(&self) -> StandbyLag {
        *self.lag.lock()
    }

    /// Returns the root of the own store.
    ///
    /// # Errors
    /// If the store fails.
    pub fn local_root(&self) -> Result<Option<ChunkId>> {
        Ok(self.local_store.read_ref(FOLLOWED_BRANCH)?)
    }

    /// Copies what the base has committed since the last call. `now` is the time of the check.
    ///
    /// # Errors
    /// Errors of the base or of the own store; [`Error::is_transient`] returns true if a later retry can help.
    pub fn catch_up(&self, now: SystemTime) -> Result<StandbyCopyReport> {
        let refs = self.base.list_refs()?;
        let head = refs.iter().find(|(name, _)| name == FOLLOWED_BRANCH).map(|(_, root)| *root);
        let missing = || tympan_store::Error::RefNotFound {
            name: FOLLOWED_BRANCH.to_owned(),
            store: self.base.display_name(),
        };
        let head = head.ok_or_else(missing)?;
        let at = self.local_root()?;
        if at == Some(head) {
            *self.lag.lock() = StandbyLag { revisions: 0, complete_until: Some(now) };
            return Ok(StandbyCopyReport::default());
        }
        let mut done = match at {
            None => self.copy_newest(at, now)?,
            Some(at) => {
                let pending = self.pending_ref_updates(at)?;
                self.lag.lock().revisions = pending.len().max(1) as u64;
                match self.copy_states(&pending, Some(at)) {
                    // A collection of the base removed the chunk, or the base was replaced; the newest state is copied
                    // instead.
                    Err(Error::Store(tympan_store::Error::ChunkMissing { .. })) => {
                        self.copy_newest(Some(at), now)?
                    }
                    done => done?,
                }
            }
        };
        if done.revisions == 0 {
            done = self.copy_newest(at, now)?;
        }
        *self.lag.lock() = StandbyLag { revisions: 0, complete_until: Some(now) };
        Ok(done)
    }

    /// Collects garbage of the own store: everything that its `main` and the retained revisions do not reach.
    ///
    /// # Errors
    /// Errors of the own store.
    pub fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
    ) -> Result<GarbageCollectionReport> {
        Ok(self.local_store.collect_garbage(options, &mut |_| ControlFlow::Continue(()))?)
    }

    /// Returns the moves of the base's `main` since the one that led to `at`, oldest first; `None` if that one is not
    /// among them.
    fn pending_ref_updates(&self, at: ChunkId) -> Result<Vec<RefUpdate>> {
        let last = self
            .local_store
            .ref_history(FOLLOWED_BRANCH, None, 1)?
            .into_iter()
            .next()
            .map(|revision| revision.update);
        let is_last = |revision: &Revision| {
            let (theirs, ours) = (&revision.update, last.as_ref());
            theirs.new_root == Some(at)
                && ours.is_none_or(|ours| {
                    ours.updated_at == theirs.updated_at && ours.author == theirs.author
                })
        };
        let mut pending = Vec::new();
        let mut before = None;
        while pending.len() < MAX_COPIED_REVISIONS {
            let page = self.base.ref_history(FOLLOWED_BRANCH, before, REVISION_PAGE_SIZE)?;
            before = page.last().map(|revision| revision.sequence);
            let is_end = page.len() < REVISION_PAGE_SIZE;
            for revision in page {
                if is_last(&revision) {
                    pending.reverse();
                    return Ok(pending);
                }
                pending.push(revision.update);
            }
            if is_end {
                break;
            }
        }
        Ok(Vec::new())
    }

    /// Copies only the newest state, protected by a lease during the copy.
    fn copy_newest(&self, at: Option<ChunkId>, now: SystemTime) -> Result<StandbyCopyReport> {
        let base = self.base.as_ref();
        let lease =
            acquire_lease(base, &self.lease_holder, FOLLOWED_BRANCH, now, COPY_LEASE_DURATION)?;
        let newest = base.ref_history(FOLLOWED_BRANCH, None, REVISION_PAGE_SIZE)?;
        let base_revision =
            newest.into_iter().find(|revision| revision.update.new_root == Some(lease.root));
        let update = base_revision.map(|revision| revision.update).unwrap_or_else(|| RefUpdate {
            name: FOLLOWED_BRANCH.to_owned(),
            expected_root: at,
            new_root: Some(lease.root),
            updated_at: now,
            author: "system".to_owned(),
            message: format!("copied from {}", base.display_name()),
        });
        let done = self.copy_states(&[update], at);
        base.release_lease(&self.lease_holder)?;
        done
    }

    /// Copies states, then moves the ref through them.
    fn copy_states(&self, updates: &[RefUpdate], at: Option<ChunkId>) -> Result<StandbyCopyReport> {
        let roots: Vec<ChunkId> = updates.iter().filter_map(|update| update.new_root).collect();
        let known_roots: Vec<ChunkId> = at.into_iter().collect();
        let route = ChunkSyncRoute {
            source: self.base.as_ref(),
            target: self.local_store.as_ref(),
            small_blob_limit: SMALL_BLOB_BYTES as u64,
        };
        let hold = self.local_store.begin_hold()?;
        let mut visited_blobs = HashSet::new();
        let mut large_blobs = 0;
        let mut failed = None;
        let synced = sync_chunks(route, &roots, &known_roots, &mut |blobs| {
            for blob in blobs.iter().filter(|blob| visited_blobs.insert(**blob)) {
                match self.copy_blob(blob) {
                    Ok(is_new) => large_blobs += u64::from(is_new),
                    Err(error) => {
                        let fault = "it cannot be copied";
                        failed = Some(error);
                        return Err(tympan_store::Error::BlobDamaged { id: *blob, fault });
                    }
                }
            }
            Ok(())
        });
        let synced = match (failed, synced) {
            (Some(error), _) => return Err(error),
            (None, synced) => synced?,
        };
        let mut expected = at;
        for together in updates.chunks(MAX_REF_UPDATES_PER_COMMIT) {
            let mut batch = ChunkBatch::new();
            for update in together {
                batch.add_ref_update(RefUpdate { expected_root: expected, ..update.clone() });
                expected = update.new_root;
            }
            self.local_store.commit(batch)?;
        }
        drop(hold);
        Ok(StandbyCopyReport { revisions: updates.len() as u64, large_blobs, sync_stats: synced })
    }

    /// Copies a large blob unless it exists here, for example in shared storage; returns true if it was copied.
    fn copy_blob(&self, id: &BlobId) -> Result<bool> {
        if self.local_blobs.touch(id)? {
            return Ok(false);
        }
        let content = self.base_blobs.open(id)?.ok_or(Error::LostBlob(*id))?;
        let actual = self.local_blobs.put(&mut content.into_reader())?;
        if actual == *id {
            Ok(true)
        } else {
            let (expected, actual) = (id.to_string(), actual.to_string());
            Err(Error::Mismatch { expected, actual })
        }
    }
}
