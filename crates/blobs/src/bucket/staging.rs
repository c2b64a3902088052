//! Blobs that are acknowledged and not in the bucket yet: a folder that is the queue itself, so that nothing is lost
//! with the process.
//!
//! A blob is a file here from before `put` returns until the bucket has it completely. A failed upload is retried
//! later; no blob is ever given up.

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
use tympan_notation::error_chain_text;
use tympan_store::BlobId;

use super::bucket_counts::BucketCounts;
use super::options::BucketOptions;
use super::read_cache::BlobReadCache;
use super::remote_bucket::RemoteBucket;
use crate::blob_file::{self, blob_hex_digest, disk_error, ignore_absent};
use crate::{BlobContent, Error, Result};

/// The folder, below that of the cache, for blobs that wait for their upload.
pub(super) const UPLOAD_DIR: &str = "upload";

/// The staging area of a bucket.
pub(super) struct UploadStaging {
    dir: PathBuf,
    max_bytes: u64,
    threads: usize,
    retry_interval: Duration,
    state: Mutex<StagingState>,
    state_changed: Condvar,
    upload_queue: UnboundedSender<BlobId>,
    /// Locked by the one task that processes the queue.
    queue_receiver: TurnMutex<UnboundedReceiver<BlobId>>,
    uploaded: AtomicU64,
    upload_failures: AtomicU64,
}

#[derive(Default)]
struct StagingState {
    pending_ids: HashSet<BlobId>,
    bytes: u64,
    /// The last error message of each blob.
    last_failures: HashMap<BlobId, String>,
}

impl UploadStaging {
    /// Opens the area and queues the blobs that an earlier process left in it.
    pub(super) fn open(dir: &Path, options: &BucketOptions) -> Result<Self> {
        blob_file::create_folder(dir)?;
        let (queue, pending) = unbounded_channel();
        let mut state = StagingState::default();
        let _all = blob_file::list_blob_files(dir, &mut |listed| {
            state.bytes += listed.id.length();
            state.pending_ids.insert(listed.id);
            // The receiver is held below.
            queue.send(listed.id).ok();
            ControlFlow::Continue(())
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            max_bytes: options.staging_bytes,
            threads: options.upload_threads.max(1),
            retry_interval: options.retry_interval,
            state: Mutex::new(state),
            state_changed: Condvar::new(),
            upload_queue: queue,
            queue_receiver: TurnMutex::new(pending),
            uploaded: AtomicU64::new(0),
            upload_failures: AtomicU64::new(0),
        })
    }

    /// Starts uploading the queued blobs.
    pub(super) fn start_uploads(
        self: &Arc<Self>,
        runtime: &Handle,
        remote: &Arc<RemoteBucket>,
        cache: &Arc<BlobReadCache>,
    ) {
        let (staging, remote, cache) = (self.clone(), remote.clone(), cache.clone());
        runtime.spawn(async move {
            let permits = Arc::new(Semaphore::new(staging.threads));
            let mut pending = staging.queue_receiver.lock().await;
            while let Some(id) = pending.recv().await {
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                let (staging, remote, cache) = (staging.clone(), remote.clone(), cache.clone());
                tokio::spawn(async move {
                    let done = staging.upload(&remote, &cache, &id).await;
                    drop(permit);
                    if let Err(error) = done {
                        staging.record_failure(&id, &error);
                        tokio::time::sleep(staging.retry_interval).await;
                        staging.upload_queue.send(id).ok();
                    }
                });
            }
        });
    }

    async fn upload(
        &self,
        remote: &RemoteBucket,
        cache: &BlobReadCache,
        id: &BlobId,
    ) -> Result<()> {
        if !self.contains(id) {
            // Deleted concurrently.
            return Ok(());
        }
        let path = self.staged_path(id);
        remote.upload(&path, id).await?;
        self.uploaded.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        if state.pending_ids.contains(id) {
            cache.move_in_file(&path, id)?;
            state.remove_pending(id);
        }
        drop(state);
        self.state_changed.notify_all();
        Ok(())
    }

    fn record_failure(&self, id: &BlobId, error: &Error) {
        self.upload_failures.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(blob = %id, reason = %error_chain_text(error), "staged blob upload failed; it will be \
            retried");
        self.state.lock().last_failures.insert(*id, error_chain_text(error));
        self.state_changed.notify_all();
    }

    /// Stages a complete file, durably; returns it if there is no capacity, or staging is disabled.
    pub(super) fn stage_file(
        &self,
        file: NamedTempFile,
        id: &BlobId,
    ) -> Result<Option<NamedTempFile>> {
        {
            let mut state = self.state.lock();
            if state.pending_ids.contains(id) {
                return Ok(None);
            }
            if state.bytes + id.length() > self.max_bytes {
                return Ok(Some(file));
            }
            // Reserve the capacity before the lock is released, so that others see it.
            state.bytes += id.length();
        }
        let staged = self.write_staged_file(file, id);
        let mut state = self.state.lock();
        if staged.is_err() || !state.pending_ids.insert(*id) {
            state.bytes = state.bytes.saturating_sub(id.length());
        }
        drop(state);
        staged?;
        self.upload_queue.send(*id).ok();
        Ok(None)
    }

    fn write_staged_file(&self, file: NamedTempFile, id: &BlobId) -> Result<()> {
        file.as_file().sync_data().map_err(disk_error("sync", file.path()))?;
        let path = self.staged_path(id);
        file.persist(&path).map_err(|failed| disk_error("rename to", &path)(failed.error))?;
        File::open(&self.dir)
            .and_then(|folder| folder.sync_all())
            .map_err(disk_error("sync", &self.dir))
    }

    fn staged_path(&self, id: &BlobId) -> PathBuf {
        self.dir.join(blob_hex_digest(id))
    }

    pub(super) fn contains(&self, id: &BlobId) -> bool {
        self.state.lock().pending_ids.contains(id)
    }

    /// Opens a staged blob; `None` if it is not staged.
    pub(super) fn open_blob(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if !self.contains(id) {
            return Ok(None);
        }
        blob_file::open_blob_file(&self.staged_path(id), id)
    }

    /// Removes a staged blob; `false` if it is not staged.
    pub(super) fn remove_staged(&self, id: &BlobId) -> Result<bool> {
        let mut state = self.state.lock();
        if !state.pending_ids.contains(id) {
            return Ok(false);
        }
        let path = self.staged_path(id);
        ignore_absent(fs::remove_file(&path)).map_err(disk_error("remove", &path))?;
        state.remove_pending(id);
        Ok(true)
    }

    pub(super) fn pending_ids(&self) -> HashSet<BlobId> {
        self.state.lock().pending_ids.clone()
    }

    pub(super) fn record_upload(&self) {
        self.uploaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until no blob is staged.
    pub(super) fn wait_for_uploads(&self, dir: &Path) -> Result<()> {
        let mut state = self.state.lock();
        state.last_failures.clear();
        while !state.pending_ids.is_empty() {
            if let Some((id, reason)) = state.last_failures.iter().next() {
                return Err(Error::UploadsPending {
                    dir: dir.to_owned(),
                    count: state.pending_ids.len(),
                    reason: format!("`{id}`: {reason}"),
                });
            }
            self.state_changed.wait(&mut state);
        }
        Ok(())
    }

    pub(super) fn add_counts(&self, counts: &mut BucketCounts) {
        let state = self.state.lock();
        counts.pending_uploads = state.pending_ids.len() as u64;
        counts.pending_upload_bytes = state.bytes;
        counts.uploaded = self.uploaded.load(Ordering::Relaxed);
        counts.upload_failures = self.upload_failures.load(Ordering::Relaxed);
    }
}

impl StagingState {
    fn remove_pending(&mut self, id: &BlobId) {
        if self.pending_ids.remove(id) {
            self.bytes = self.bytes.saturating_sub(id.length());
            self.last_failures.remove(id);
        }
    }
}
