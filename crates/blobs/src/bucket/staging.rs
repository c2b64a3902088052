//! Blobs that are acknowledged and not in the bucket yet: a folder that is the queue itself, so that nothing of it is
//! lost with the process.
//!
//! A blob is a file here from before `put` returns until the bucket has it whole. What fails waits for its next turn;
//! nothing is ever given up.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tempfile::NamedTempFile;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as TurnMutex, Semaphore};
use tympan_store::BlobId;

use super::cache::ReadCache;
use super::remote::Remote;
use super::{BucketCounts, BucketOptions};
use crate::files::{self, disk, hex_of, ignore_absent};
use crate::{BlobContent, Error, Result};

/// The staging area of a bucket.
pub(super) struct Staging {
    dir: PathBuf,
    max_bytes: u64,
    threads: usize,
    retry_every: Duration,
    state: Mutex<State>,
    changed: Condvar,
    queue: UnboundedSender<BlobId>,
    /// Taken by the one task that works it off.
    pending: TurnMutex<UnboundedReceiver<BlobId>>,
    uploaded: AtomicU64,
    failures: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: HashSet<BlobId>,
    bytes: u64,
    /// What was said last about a failure, by blob.
    failed: HashMap<BlobId, String>,
}

impl Staging {
    /// Opens the area and queues what an earlier process left in it.
    pub(super) fn open(dir: &Path, options: &BucketOptions) -> Result<Self> {
        files::create_folder(dir)?;
        let (queue, pending) = unbounded_channel();
        let mut state = State::default();
        let _all = files::list_files(dir, &mut |one| {
            state.bytes += one.id.length();
            state.waiting.insert(one.id);
            // The other end is held below.
            queue.send(one.id).ok();
            ControlFlow::Continue(())
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            max_bytes: options.staging_bytes,
            threads: options.upload_threads.max(1),
            retry_every: options.retry_every,
            state: Mutex::new(state),
            changed: Condvar::new(),
            queue,
            pending: TurnMutex::new(pending),
            uploaded: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        })
    }

    /// Begins to upload what waits.
    pub(super) fn start(
        self: &Arc<Self>,
        runtime: &Handle,
        remote: &Arc<Remote>,
        cache: &Arc<ReadCache>,
    ) {
        let (staging, remote, cache) = (self.clone(), remote.clone(), cache.clone());
        runtime.spawn(async move {
            let permits = Arc::new(Semaphore::new(staging.threads));
            let mut pending = staging.pending.lock().await;
            while let Some(id) = pending.recv().await {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                let (staging, remote, cache) = (staging.clone(), remote.clone(), cache.clone());
                tokio::spawn(async move {
                    let done = staging.upload(&remote, &cache, &id).await;
                    drop(permit);
                    if let Err(error) = done {
                        staging.note_failure(&id, &error);
                        tokio::time::sleep(staging.retry_every).await;
                        staging.queue.send(id).ok();
                    }
                });
            }
        });
    }

    async fn upload(&self, remote: &Remote, cache: &ReadCache, id: &BlobId) -> Result<()> {
        if !self.contains(id) {
            // Deleted meanwhile.
            return Ok(());
        }
        let path = self.file(id);
        remote.upload(&path, id).await?;
        self.uploaded.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.waiting.contains(id) {
            cache.take(&path, id)?;
            state.forget(id);
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn note_failure(&self, id: &BlobId, error: &Error) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(blob = %id, reason = %chain(error), "a staged blob was not uploaded; it waits for its next turn");
        self.state.lock().failed.insert(*id, chain(error));
        self.changed.notify_all();
    }

    /// Takes a complete file in, durably; gives it back if there is no room, or nothing is staged at all.
    pub(super) fn stage(&self, file: NamedTempFile, id: &BlobId) -> Result<Option<NamedTempFile>> {
        {
            let mut state = self.state.lock();
            if state.waiting.contains(id) {
                return Ok(None);
            }
            if state.bytes + id.length() > self.max_bytes {
                return Ok(Some(file));
            }
            // Room is taken before the lock goes, so that others see it.
            state.bytes += id.length();
        }
        let staged = self.write(file, id);
        let mut state = self.state.lock();
        if staged.is_err() || !state.waiting.insert(*id) {
            state.bytes = state.bytes.saturating_sub(id.length());
        }
        drop(state);
        staged?;
        self.queue.send(*id).ok();
        Ok(None)
    }

    fn write(&self, file: NamedTempFile, id: &BlobId) -> Result<()> {
        file.as_file().sync_data().map_err(disk("sync", file.path()))?;
        let path = self.file(id);
        file.persist(&path).map_err(|failed| disk("rename to", &path)(failed.error))?;
        File::open(&self.dir).and_then(|folder| folder.sync_all()).map_err(disk("sync", &self.dir))
    }

    fn file(&self, id: &BlobId) -> PathBuf {
        self.dir.join(hex_of(id))
    }

    pub(super) fn contains(&self, id: &BlobId) -> bool {
        self.state.lock().waiting.contains(id)
    }

    /// Opens a staged blob; nothing if it does not wait here.
    pub(super) fn open_blob(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if !self.contains(id) {
            return Ok(None);
        }
        files::open_file(&self.file(id), id)
    }

    /// Removes a staged blob; `false` if it does not wait here.
    pub(super) fn forget(&self, id: &BlobId) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.waiting.contains(id) {
            return Ok(false);
        }
        let path = self.file(id);
        ignore_absent(fs::remove_file(&path)).map_err(disk("remove", &path))?;
        state.forget(id);
        Ok(true)
    }

    pub(super) fn waiting(&self) -> HashSet<BlobId> {
        self.state.lock().waiting.clone()
    }

    pub(super) fn note_uploaded(&self) {
        self.uploaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until nothing waits.
    pub(super) fn drain(&self, place: &Path) -> Result<()> {
        let mut state = self.state.lock();
        state.failed.clear();
        while !state.waiting.is_empty() {
            if let Some((id, reason)) = state.failed.iter().next() {
                return Err(Error::Waiting {
                    dir: place.to_owned(),
                    count: state.waiting.len(),
                    reason: format!("`{id}`: {reason}"),
                });
            }
            self.changed.wait(&mut state);
        }
        Ok(())
    }

    pub(super) fn count(&self, counts: &mut BucketCounts) {
        let state = self.state.lock();
        counts.waiting = state.waiting.len() as u64;
        counts.waiting_bytes = state.bytes;
        counts.uploaded = self.uploaded.load(Ordering::Relaxed);
        counts.upload_failures = self.failures.load(Ordering::Relaxed);
    }
}

impl State {
    fn forget(&mut self, id: &BlobId) {
        if self.waiting.remove(id) {
            self.bytes = self.bytes.saturating_sub(id.length());
            self.failed.remove(id);
        }
    }
}

/// Joins an error's message with those of its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}
