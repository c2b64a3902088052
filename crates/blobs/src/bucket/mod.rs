//! Large blobs in an S3 bucket or an Azure container, shared by any number of machines.
//!
//! In: bytes and ids. Out: local files: blobs that are read are cached on the disk, so that the second read costs no
//! request. A blob that is put is in the bucket when `put` returns, or, if a staging area is configured, on the local
//! disk, from where it is uploaded even if the process is killed repeatedly.
//!
//! Invariants
//! * Nothing is returned that does not have its hash.
//! * An object gets its name when all its bytes are stored; its length is compared before the upload counts as done.
//! * A staged blob is removed from the staging area only after that.
//! * One process uses a cache folder at a time; any number of them use a bucket.
//!
//! On failure: a request is retried with growing waits for as long as [`BucketOptions::request_timeout`]; then `put`
//! and `open` return the error, and a staged upload waits for its next attempt.
//!
//! Not here: the configuration keys (the binary). `docs/formats/blobs.md` describes the names of objects.

mod bucket_counts;
mod connector;
mod credentials;
mod object_bucket;
mod options;
mod read_cache;
mod remote_bucket;
mod staged_blobs;
mod staging;

use std::fmt;
use std::future::Future;
use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tympan_store::BlobId;

pub use bucket_counts::BucketCounts;
pub use credentials::{parse_connection_string, parse_profile};
pub use object_bucket::ObjectBucket;
pub use options::BucketOptions;
use options::RUNTIME_THREAD_COUNT;

use self::read_cache::BlobReadCache;
use self::remote_bucket::RemoteBucket;
pub use self::staged_blobs::StagedBlobs;
use self::staging::{UPLOAD_DIR, UploadStaging};
use crate::blob_file::{self, disk_error};
use crate::storage::{check_note_name, verify_content};
use crate::{BlobContent, Error, ListedBlob, ReadBlobs, Result, WriteBlobs};

/// Maximum number of listed objects that wait for the visitor.
const LISTING_CHANNEL_CAPACITY: usize = 1_024;
/// Number of bytes that are read and hashed at a time.
const COPY_BUFFER_BYTES: usize = 128 * 1024;

/// A bucket, or a part of one below a prefix.
pub struct BlobBucket {
    remote: Arc<RemoteBucket>,
    cache: Arc<BlobReadCache>,
    staging: Arc<UploadStaging>,
    dir: PathBuf,
    /// Locks the cache folder against other processes.
    _lock: std::fs::File,
    /// Taken when the bucket is dropped.
    runtime: Option<Runtime>,
}

/// A temporary file with the id of its bytes.
struct BucketTempFile {
    file: NamedTempFile,
    id: BlobId,
}

impl BlobBucket {
    /// Opens a bucket and resumes uploads that an earlier process began. No request is sent to the bucket: it may be
    /// unavailable now, and is not created.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] for an invalid URL or setting; [`Error::CacheLocked`] if another process uses the
    /// cache folder; if that cannot be used.
    #[expect(clippy::needless_pass_by_value, reason = "callers make them for this call")]
    pub fn open(options: BucketOptions) -> Result<Self> {
        let dir = options.cache_dir.clone();
        let temporary = dir.join("tmp");
        blob_file::create_folder(&temporary)?;
        let lock_file = dir.join("lock");
        let mut private = std::fs::File::options();
        let lock = private.write(true).create(true).truncate(true).mode(0o600).open(&lock_file);
        let lock = lock.map_err(disk_error("create", &lock_file))?;
        lock.try_lock().map_err(|_| Error::CacheLocked { dir: dir.clone() })?;
        // No other process writes here now: existing files were left by a crash.
        for entry in std::fs::read_dir(&temporary).map_err(disk_error("list", &temporary))? {
            let path = entry.map_err(disk_error("list", &temporary))?.path();
            std::fs::remove_file(&path).map_err(disk_error("remove", &path))?;
        }
        let remote = Arc::new(RemoteBucket::connect(&options)?);
        let cache = Arc::new(BlobReadCache::open(&dir.join("download"), options.cache_bytes)?);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREAD_COUNT)
            .thread_name("bucket")
            .enable_all()
            .build()
            .map_err(disk_error("start threads for", &dir))?;
        let staging = UploadStaging::open(&dir.join(UPLOAD_DIR), &options)?;
        let staging = Arc::new(staging);
        staging.start_uploads(runtime.handle(), &remote, &cache);
        Ok(Self { remote, cache, staging, dir, _lock: lock, runtime: Some(runtime) })
    }

    /// Returns the counters since this was opened.
    #[must_use]
    pub fn counts(&self) -> BucketCounts {
        let mut counts = BucketCounts::default();
        self.cache.add_counts(&mut counts);
        self.staging.add_counts(&mut counts);
        counts
    }

    /// Requests a note that is never written, and returns true if the bucket lets this client read notes: for a bucket
    /// whose blobs are only read, it need not.
    ///
    /// # Errors
    /// If the bucket does not respond, or does not exist.
    pub fn can_read_notes(&self) -> Result<bool> {
        let request =
            self.send_requests("ask", 0, |remote| async move { remote.read_note("health").await });
        match request {
            Ok(_) => Ok(true),
            Err(Error::Bucket { source, .. })
                if matches!(
                    *source,
                    object_store::Error::PermissionDenied { .. }
                        | object_store::Error::Unauthenticated { .. }
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until there is nothing left to upload, or until a failure since this call.
    ///
    /// # Errors
    /// If an upload fails during the wait; it is still retried later.
    pub fn wait_for_uploads(&self) -> Result<()> {
        self.staging.wait_for_uploads(&self.dir)
    }

    /// Runs a future on the bucket's own threads and waits for it; the caller may be on a thread of any runtime that
    /// allows blocking.
    fn block_on_runtime<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let ended = || Error::StorageClosed { place: self.remote.location().to_owned() };
        let runtime = self.runtime.as_ref().ok_or_else(ended)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        runtime.spawn(async move { sender.send(work.await).ok() });
        receiver.recv().map_err(|_| ended())?
    }

    /// Waits for a few requests that transfer `bytes`, for no longer than the request timeout plus the time that the
    /// bytes take.
    fn send_requests<T, F>(
        &self,
        action: &'static str,
        bytes: u64,
        ask: impl FnOnce(Arc<RemoteBucket>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let remote = self.remote.clone();
        let request = ask(self.remote.clone());
        self.block_on_runtime(async move { remote.run_with_timeout(action, bytes, request).await })
    }

    /// Copies a source to a temporary file and hashes the bytes.
    fn write_temp_file(&self, source: &mut dyn Read) -> Result<BucketTempFile> {
        let temporary = self.dir.join("tmp");
        let failed = disk_error("create a file in", &temporary);
        let mut file = NamedTempFile::new_in(&temporary).map_err(failed)?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        loop {
            match blob_file::read_some(source, &mut buffer)? {
                [] => break,
                bytes => {
                    hash.update(bytes);
                    length += bytes.len() as u64;
                    file.write_all(bytes).map_err(disk_error("write", file.path()))?;
                }
            }
        }
        Ok(BucketTempFile { file, id: BlobId::new(hash.finalize().into(), length) })
    }

    /// Stages or uploads the blob in a temporary file.
    fn store_temp_file(&self, BucketTempFile { file, id }: BucketTempFile) -> Result<()> {
        let Some(file) = self.staging.stage_file(file, &id)? else { return Ok(()) };
        let remote = self.remote.clone();
        let path = file.path().to_owned();
        self.block_on_runtime(async move { remote.upload(&path, &id).await })?;
        self.staging.record_upload();
        self.cache.store_file(file, &id)
    }

    /// Opens a blob on the local disk.
    fn open_local(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        // When an upload ends, its file is moved from the one to the other.
        match self.staging.open_blob(id)? {
            Some(content) => Ok(Some(content)),
            None => self.cache.open_blob(id),
        }
    }

    /// Passes objects to a visitor as they are listed, on the caller's thread.
    fn visit_objects(
        &self,
        kind: remote_bucket::BucketObjectKind,
        visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let ended = || Error::StorageClosed { place: self.remote.location().to_owned() };
        let runtime = self.runtime.as_ref().ok_or_else(ended)?;
        // Bounded, so that a slow visitor does not fill memory; by a wait that does not block the threads that the
        // visitor's own requests need.
        let semaphore = Arc::new(Semaphore::new(LISTING_CHANNEL_CAPACITY));
        let (sender, receiver) = mpsc::channel();
        let (remote, permits) = (self.remote.clone(), semaphore.clone());
        let listing = runtime.spawn(async move { remote.list(kind, &sender, &permits).await });
        for listed in &receiver {
            semaphore.add_permits(1);
            if visit(listed).is_break() {
                semaphore.close();
                return Ok(ControlFlow::Break(()));
            }
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        runtime.spawn(async move { sender.send(listing.await).ok() });
        let ended_well = receiver.recv().map_err(|_| ended())?.map_err(|_| ended())?;
        ended_well.map(|()| ControlFlow::Continue(()))
    }
}

impl Drop for BlobBucket {
    fn drop(&mut self) {
        // Dropping a runtime waits for its tasks, which is not allowed on a thread of another runtime. Blobs that are
        // not uploaded yet are in the staging area.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for BlobBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.remote.location())
    }
}

impl ReadBlobs for BlobBucket {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if let Some(content) = self.open_local(id)? {
            return Ok(Some(content));
        }
        // One fetch per blob at a time: concurrent callers then find it in the cache.
        let turn = self.cache.fetch_lock(id);
        let _turn = turn.lock();
        if let Some(content) = self.open_local(id)? {
            return Ok(Some(content));
        }
        self.cache.record_miss();
        let temporary = self.dir.join("tmp");
        let failed = disk_error("create a file in", &temporary);
        let file = NamedTempFile::new_in(&temporary).map_err(failed)?;
        let (remote, id) = (self.remote.clone(), *id);
        let fetched = self.block_on_runtime(async move { remote.fetch(file, &id).await })?;
        let Some(file) = fetched else { return Ok(None) };
        let near = file.reopen().map_err(disk_error("open", file.path()))?;
        if let Err(error) = self.cache.store_file(file, &id) {
            // A full disk must not prevent serving the blob.
            tracing::warn!(blob = %id, reason = %error, "cannot cache the blob on the disk; serving it \
                uncached");
        }
        Ok(Some(BlobContent::File { file: near, length: id.length() }))
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        if self.staging.contains(id) {
            return Ok(true);
        }
        let id = *id;
        self.send_requests("ask", 0, |remote| async move { remote.contains(&id).await })
    }

    /// Lists the blobs in the bucket, then those that wait for upload. Touch markers are held in memory during the
    /// listing.
    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        let mut touched = std::collections::HashMap::new();
        let _all =
            self.visit_objects(remote_bucket::BucketObjectKind::TouchMarker, &mut |listed| {
                touched.insert(*listed.id.digest(), listed.modified);
                ControlFlow::Continue(())
            })?;
        let waiting = self.staging.pending_ids();
        let flow =
            self.visit_objects(remote_bucket::BucketObjectKind::Blob, &mut |mut listed| {
                if waiting.contains(&listed.id) {
                    return ControlFlow::Continue(());
                }
                let renewed = touched.get(listed.id.digest()).copied();
                listed.modified =
                    renewed.map_or(listed.modified, |renewed| renewed.max(listed.modified));
                visit(listed)
            })?;
        if flow.is_break() {
            return Ok(());
        }
        let modified = SystemTime::now();
        for id in waiting {
            if visit(ListedBlob { id, modified }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        check_note_name(name)?;
        let name = name.to_owned();
        let remote = self.remote.clone();
        let bytes = self.block_on_runtime(async move { remote.read_note(&name).await })?;
        Ok(bytes.map(BlobContent::Bytes))
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let (remote, prefix) = (self.remote.clone(), prefix.to_owned());
        self.block_on_runtime(async move { remote.list_notes(&prefix).await })
    }

    fn min_blob_bytes(&self) -> u64 {
        0
    }
}

impl WriteBlobs for BlobBucket {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let written = self.write_temp_file(source)?;
        let id = written.id;
        self.store_temp_file(written)?;
        Ok(id)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        if self.touch(id)? {
            return verify_content(id, source);
        }
        let written = self.write_temp_file(source)?;
        if written.id != *id {
            return Err(Error::IdMismatch { expected: *id, actual: written.id });
        }
        self.store_temp_file(written)
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        if self.staging.contains(id) {
            return Ok(true);
        }
        let id = *id;
        self.send_requests("touch a blob in", 0, |remote| async move { remote.touch(&id).await })
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        let was_staged = self.staging.remove_staged(id)?;
        self.cache.remove_blob(id)?;
        let id = *id;
        let was_there = self.send_requests("remove an object from", 0, |remote| async move {
            remote.delete(&id).await
        })?;
        Ok(was_there || was_staged)
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        if self.staging.contains(id) {
            return Ok(false);
        }
        let blob = *id;
        let is_gone =
            self.send_requests("copy an object in", id.length(), |remote| async move {
                remote.discard(&blob, unused_since).await
            })?;
        if is_gone {
            self.cache.remove_blob(id)?;
        }
        Ok(is_gone)
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        let id = *id;
        self.send_requests("copy an object in", id.length(), |remote| async move {
            remote.undelete(&id).await
        })
    }

    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        self.visit_objects(remote_bucket::BucketObjectKind::Trash, visit).map(|_| ())
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        let id = *id;
        self.send_requests(
            "remove an object from",
            0,
            |remote| async move { remote.purge(&id).await },
        )
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        check_note_name(name)?;
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.send_requests("write a note to", bytes.len() as u64, |remote| async move {
            remote.write_note(&name, bytes).await
        })
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        check_note_name(name)?;
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.send_requests("write a note to", bytes.len() as u64, |remote| async move {
            remote.create_note(&name, bytes).await
        })
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        check_note_name(name)?;
        let name = name.to_owned();
        self.send_requests("remove an object from", 0, |remote| async move {
            remote.delete_note(&name).await
        })
    }
}
