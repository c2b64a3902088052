//! A standby: a store of its own that follows another one, ready to take its place.
//!
//! In: the chunks and blobs of a base. Out: the same revisions of `main`, with author, message and time, complete.
//!
//! Invariants
//! * A ref moves here only after everything that its new root reaches is durable here.
//! * [`Lag::complete_until`] is never later than the truth: what the base acknowledged before is here.
//!
//! On failure: what was copied is kept, and the next [`Standby::catch_up`] goes on from it.
//!
//! Not here: jobs, logins and keys, which are no content; when to look again.

use std::collections::HashSet;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_blobs::{BlobStore, ReadBlobs, SMALL_BYTES};
use tympan_store::{
    Base, Batch, BlobId, ChunkId, ChunkStore, CollectOptions, Collected, LocalStore, RefUpdate,
    Revision, Route, Synced, sync, take_lease,
};

use crate::{Error, Result};

/// The branch that is followed.
const MAIN: &str = "main";
/// Revisions that are asked for at a time.
const PAGE: usize = 200;
/// More revisions than this are not copied one by one: the newest stands for them.
const MAX_REVISIONS: usize = 5_000;
/// Moves of the ref that one commit holds: with the longest messages they still fit its record.
const MOVES: usize = 512;
/// How long a state is leased while it is copied.
const LEASE: Duration = Duration::from_hours(6);

/// How far a standby is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// Revisions of the base that were not here at the last look; 0 once they are copied.
    pub revisions: u64,
    /// Everything that the base acknowledged before this time is here; `None` until the first copy is complete.
    pub complete_until: Option<SystemTime>,
}

impl Lag {
    /// Returns how old the newest state is that is certain to be here; `None` if there is none.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        self.complete_until.map(|until| now.duration_since(until).unwrap_or_default())
    }
}

/// What one look has brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// Revisions that were copied.
    pub revisions: u64,
    /// Large blobs that were copied.
    pub large_blobs: u64,
    /// Chunks, small blobs, and what they cost.
    pub synced: Synced,
}

/// A store that follows a base.
pub struct Standby {
    base: Arc<dyn Base>,
    base_blobs: Arc<dyn ReadBlobs>,
    own: Arc<LocalStore>,
    blobs: Arc<dyn BlobStore>,
    holder: String,
    lag: Mutex<Lag>,
}

impl fmt::Debug for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Standby({})", self.base.name())
    }
}

impl Standby {
    /// Follows `base` into an own store, with blobs of its own. `holder` names the lease that is taken for long copies.
    #[must_use]
    pub fn new(
        (base, base_blobs): (Arc<dyn Base>, Arc<dyn ReadBlobs>),
        (own, blobs): (Arc<LocalStore>, Arc<dyn BlobStore>),
        holder: String,
    ) -> Self {
        let lag = Mutex::new(Lag { revisions: 0, complete_until: None });
        Self { base, base_blobs, own, blobs, holder, lag }
    }

    /// Returns how far behind the standby was at the last look.
    #[must_use]
    pub fn lag(&self) -> Lag {
        *self.lag.lock()
    }

    /// Returns the root that is here.
    ///
    /// # Errors
    /// If the store fails.
    pub fn root(&self) -> Result<Option<ChunkId>> {
        Ok(self.own.read_ref(MAIN)?)
    }

    /// Copies what the base has committed since the last look. `now` is the time of the look.
    ///
    /// # Errors
    /// What the base or the own store say; [`Error::is_transient`] tells whether waiting can help.
    pub fn catch_up(&self, now: SystemTime) -> Result<CaughtUp> {
        let refs = self.base.refs()?;
        let head = refs.iter().find(|(name, _)| name == MAIN).map(|(_, root)| *root);
        let missing =
            || tympan_store::Error::RefMissing { name: MAIN.to_owned(), store: self.base.name() };
        let head = head.ok_or_else(missing)?;
        let at = self.root()?;
        if at == Some(head) {
            *self.lag.lock() = Lag { revisions: 0, complete_until: Some(now) };
            return Ok(CaughtUp::default());
        }
        let mut done = match at {
            None => self.copy_newest(at, now)?,
            Some(at) => {
                let pending = self.pending(at)?;
                self.lag.lock().revisions = pending.len().max(1) as u64;
                match self.copy(&pending, Some(at)) {
                    // A collection of the base was faster, or the base is not what it was: the newest state will do.
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
        *self.lag.lock() = Lag { revisions: 0, complete_until: Some(now) };
        Ok(done)
    }

    /// Collects garbage of the own store: what its `main` and the revisions that are kept do not reach.
    ///
    /// # Errors
    /// What the own store says.
    pub fn collect(&self, options: &CollectOptions) -> Result<Collected> {
        Ok(self.own.collect(options, &mut |_| ControlFlow::Continue(()))?)
    }

    /// Returns the moves of the base's `main` since the one that led to `at`, oldest first; nothing if that one is
    /// not among them.
    fn pending(&self, at: ChunkId) -> Result<Vec<RefUpdate>> {
        let last = self.own.history(MAIN, None, 1)?.into_iter().next().map(|one| one.update);
        let is_last = |one: &Revision| {
            let (theirs, ours) = (&one.update, last.as_ref());
            theirs.new == Some(at)
                && ours.is_none_or(|ours| ours.at == theirs.at && ours.author == theirs.author)
        };
        let mut pending = Vec::new();
        let mut before = None;
        while pending.len() < MAX_REVISIONS {
            let page = self.base.history(MAIN, before, PAGE)?;
            before = page.last().map(|one| one.sequence);
            let is_end = page.len() < PAGE;
            for one in page {
                if is_last(&one) {
                    pending.reverse();
                    return Ok(pending);
                }
                pending.push(one.update);
            }
            if is_end {
                break;
            }
        }
        Ok(Vec::new())
    }

    /// Copies the newest state alone, kept by a lease meanwhile.
    fn copy_newest(&self, at: Option<ChunkId>, now: SystemTime) -> Result<CaughtUp> {
        let base = self.base.as_ref();
        let lease = take_lease(base, &self.holder, MAIN, (now, LEASE))?;
        let newest = base.history(MAIN, None, PAGE)?;
        let found = newest.into_iter().find(|one| one.update.new == Some(lease.root));
        let update = found.map(|one| one.update).unwrap_or_else(|| RefUpdate {
            name: MAIN.to_owned(),
            expected: at,
            new: Some(lease.root),
            at: now,
            author: "system".to_owned(),
            message: format!("copied from {}", base.name()),
        });
        let done = self.copy(&[update], at);
        base.release(&self.holder)?;
        done
    }

    /// Copies states, then moves the ref through them.
    fn copy(&self, updates: &[RefUpdate], at: Option<ChunkId>) -> Result<CaughtUp> {
        let roots: Vec<ChunkId> = updates.iter().filter_map(|update| update.new).collect();
        let known: Vec<ChunkId> = at.into_iter().collect();
        let route = Route {
            source: self.base.as_ref(),
            target: self.own.as_ref(),
            small_below: SMALL_BYTES as u64,
        };
        let hold = self.own.hold()?;
        let mut seen = HashSet::new();
        let mut large_blobs = 0;
        let mut failed = None;
        let synced = sync(route, &roots, &known, &mut |blobs| {
            for blob in blobs.iter().filter(|blob| seen.insert(**blob)) {
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
        for together in updates.chunks(MOVES) {
            let mut batch = Batch::new();
            for update in together {
                batch.move_ref(RefUpdate { expected, ..update.clone() });
                expected = update.new;
            }
            self.own.commit(batch)?;
        }
        drop(hold);
        Ok(CaughtUp { revisions: updates.len() as u64, large_blobs, synced })
    }

    /// Copies a large blob unless it is here, as in a place that both sides share; tells whether it was not.
    fn copy_blob(&self, id: &BlobId) -> Result<bool> {
        if self.blobs.touch(id)? {
            return Ok(false);
        }
        let content = self.base_blobs.open(id)?.ok_or(Error::BlobLost(*id))?;
        let actual = self.blobs.put(&mut content.into_reader())?;
        if actual == *id {
            Ok(true)
        } else {
            let (expected, actual) = (id.to_string(), actual.to_string());
            Err(Error::Mismatch { expected, actual })
        }
    }
}
