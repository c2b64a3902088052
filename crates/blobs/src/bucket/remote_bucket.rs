//! Access to the bucket: object names, and requests with retries.

use std::fs::File;
use std::future::Future;
use std::io::{Read, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error as Failure, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig, WriteMultipart,
};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tympan_store::BlobId;

use super::BucketOptions;
use super::connector::{BucketConnector, transfer_time};
use crate::blob_file::{self, blob_hex_digest, disk_error};
use crate::{Error, ListedBlob, Result};

/// Blobs above this size are uploaded in parts of this size: one request per part, so that a failure costs no more than
/// a part.
const UPLOAD_PART_BYTES: usize = 8 << 20;
/// Maximum number of concurrent part uploads of one blob.
const MAX_PARALLEL_PARTS: usize = 4;
/// The wait before the first retry of a request; it doubles up to [`MAX_BACKOFF`].
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// The timestamp of an object has a resolution of one second.
const OBJECT_CLOCK_RESOLUTION: Duration = Duration::from_secs(1);

/// The kinds of objects that can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BucketObjectKind {
    /// Blobs.
    Blob,
    /// Empty objects, written when a blob is touched: the time of an object cannot be changed by itself.
    TouchMarker,
    /// Discarded blobs.
    Trash,
}

impl BucketObjectKind {
    fn folder(self) -> &'static str {
        match self {
            Self::Blob => "data",
            Self::TouchMarker => "touched",
            Self::Trash => "trash",
        }
    }
}

/// A bucket, or a part of one.
pub(super) struct RemoteBucket {
    store: Arc<dyn ObjectStore>,
    /// The prefix of all names.
    prefix: Path,
    /// The bucket as shown to users.
    location: String,
    request_timeout: Duration,
}

impl RemoteBucket {
    pub(super) fn connect(options: &BucketOptions) -> Result<Self> {
        let malformed = |reason: String| Error::InvalidAddress { url: options.url.clone(), reason };
        let (scheme, rest) = options.url.split_once("://").unwrap_or_default();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(malformed(
                "use `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`".to_owned(),
            ));
        }
        let prefix =
            Path::parse(prefix.trim_matches('/')).map_err(|error| malformed(error.to_string()))?;
        let connector = BucketConnector::new(options.trust.clone(), options.idle_timeout);
        let backoff =
            BackoffConfig { init_backoff: INITIAL_BACKOFF, max_backoff: MAX_BACKOFF, base: 2.0 };
        let retry =
            RetryConfig { backoff, max_retries: 20, retry_timeout: options.request_timeout };
        let names = options.settings.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
            "s3" | "s3a" => {
                let mut builder = AmazonS3Builder::new();
                for (name, value) in names.filter(|(name, _)| name.starts_with("aws_")) {
                    // The environment also contains variables of other programs.
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_bucket_name(bucket).with_retry(retry);
                builder.with_http_connector(connector).build().map(|store| Arc::new(store) as _)
            }
            "az" | "azure" => {
                let mut builder = MicrosoftAzureBuilder::new();
                for (name, value) in names.filter(|(name, _)| name.starts_with("azure_")) {
                    if let Ok(key) = name.parse() {
                        builder = builder.with_config(key, value);
                    }
                }
                let builder = builder.with_container_name(bucket).with_retry(retry);
                builder.with_http_connector(connector).build().map(|store| Arc::new(store) as _)
            }
            _ => {
                return Err(malformed("the URL must begin with `s3://` or `az://`".to_owned()));
            }
        };
        let store = store.map_err(|error| malformed(error.to_string()))?;
        Ok(Self {
            store,
            prefix,
            location: options.url.clone(),
            request_timeout: options.request_timeout,
        })
    }

    pub(super) fn location(&self) -> &str {
        &self.location
    }

    pub(super) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    /// Returns the full name of an object, given its name below the prefix.
    pub(super) fn object_path(&self, name: &str) -> Path {
        name.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), Path::join)
    }

    fn blob_path(&self, kind: BucketObjectKind, id: &BlobId) -> Path {
        self.prefix.clone().join(kind.folder()).join(blob_hex_digest(id))
    }

    fn note_path(&self, name: &str) -> Path {
        self.prefix.clone().join("notes").join(name)
    }

    pub(super) fn bucket_error(&self, action: &'static str, source: Failure) -> Error {
        Error::Bucket { action, place: self.location.clone(), source: Box::new(source) }
    }

    /// Waits for requests that together transfer `bytes` in bodies, for as long as the request timeout plus the time
    /// for the bytes: each request has its own timeout, and several in sequence could take several times as long.
    pub(super) async fn run_with_timeout<T>(
        &self,
        action: &'static str,
        bytes: u64,
        requests: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.request_timeout.saturating_add(transfer_time(bytes));
        let silent = || {
            let source = format!("no response within {} ms", limit.as_millis()).into();
            Err(self.bucket_error(action, Failure::Generic { store: "bucket", source }))
        };
        tokio::time::timeout(limit, requests).await.unwrap_or_else(|_| silent())
    }

    /// Returns the metadata of an object; `None` if it does not exist.
    pub(super) async fn head_object(&self, key: &Path) -> Result<Option<ObjectMeta>> {
        match self.store.head(key).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.bucket_error("ask", error)),
        }
    }

    /// Returns the metadata of a blob; `None` if it does not exist completely.
    async fn head_complete_blob(
        &self,
        kind: BucketObjectKind,
        id: &BlobId,
    ) -> Result<Option<ObjectMeta>> {
        let object = self.head_object(&self.blob_path(kind, id)).await?;
        Ok(object.filter(|object| object.size == id.length()))
    }

    pub(super) async fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.head_complete_blob(BucketObjectKind::Blob, id).await?.is_some())
    }

    /// Renews the time of a blob; `false` if it does not exist, or was discarded concurrently.
    pub(super) async fn touch(&self, id: &BlobId) -> Result<bool> {
        if !self.contains(id).await? {
            return Ok(false);
        }
        let key = self.blob_path(BucketObjectKind::TouchMarker, id);
        self.store
            .put(&key, Bytes::new().into())
            .await
            .map_err(|error| self.bucket_error("touch a blob in", error))?;
        self.contains(id).await
    }

    /// Uploads the blob in a file, or touches it if it exists. Returns when the bucket has it completely.
    pub(super) async fn upload(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        if id.length() <= UPLOAD_PART_BYTES as u64 {
            let uploaded = self.upload_with_retries(file, id);
            return self.run_with_timeout("upload a blob to", id.length(), uploaded).await;
        }
        // Each part has its own timeout: the upload may take as long as it progresses.
        self.upload_with_retries(file, id).await
    }

    async fn upload_with_retries(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        let deadline = Instant::now() + self.request_timeout;
        let mut wait = INITIAL_BACKOFF;
        loop {
            let done = self.upload_once(file, id).await;
            match done {
                Err(error) if error.is_transient() && Instant::now() + wait < deadline => {
                    tracing::debug!(blob = %id, reason = %error, "upload retried");
                    tokio::time::sleep(wait).await;
                    wait = MAX_BACKOFF.min(wait * 2);
                }
                done => return done,
            }
        }
    }

    async fn upload_once(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        if self.touch(id).await? {
            return Ok(());
        }
        let key = self.blob_path(BucketObjectKind::Blob, id);
        let is_there = self.head_object(&key).await?.is_some();
        if id.length() <= UPLOAD_PART_BYTES as u64 {
            let bytes = std::fs::read(file).map_err(disk_error("read", file))?;
            // An object that is too short is replaced, whoever wrote it.
            let mode = if is_there { PutMode::Overwrite } else { PutMode::Create };
            let options = PutOptions { mode, ..PutOptions::default() };
            match self.store.put_opts(&key, bytes.into(), options).await {
                Ok(_) | Err(Failure::AlreadyExists { .. }) => {}
                Err(error) => return Err(self.bucket_error("upload a blob to", error)),
            }
        } else {
            self.upload_parts(&key, file).await?;
        }
        match self.head_object(&key).await? {
            Some(object) if object.size == id.length() => Ok(()),
            Some(object) => Err(Error::Damaged { id: *id, length: object.size }),
            None => Err(Error::Lost { id: *id, place: self.location.clone() }),
        }
    }

    async fn upload_parts(&self, key: &Path, path: &FilePath) -> Result<()> {
        let failed = |error| self.bucket_error("upload a blob to", error);
        let upload = self.store.put_multipart(key).await.map_err(failed)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, UPLOAD_PART_BYTES);
        let mut file = File::open(path).map_err(disk_error("open", path))?;
        let mut sent = Ok(());
        loop {
            let mut part = Vec::with_capacity(UPLOAD_PART_BYTES);
            let read = (&mut file).take(UPLOAD_PART_BYTES as u64).read_to_end(&mut part);
            if let Err(error) = read {
                sent = Err(disk_error("read", path)(error));
                break;
            }
            if part.is_empty() {
                break;
            }
            if let Err(error) = parts.wait_for_capacity(MAX_PARALLEL_PARTS).await {
                sent = Err(failed(error));
                break;
            }
            parts.put(part.into());
        }
        match sent {
            Ok(()) => parts.finish().await.map(drop).map_err(failed),
            Err(error) => {
                // Remaining parts are removed by the bucket's own rule for incomplete uploads.
                parts.abort().await.ok();
                Err(error)
            }
        }
    }

    /// Reads a blob into a file and compares it with its hash; `None` if it does not exist.
    pub(super) async fn fetch(
        &self,
        mut file: NamedTempFile,
        id: &BlobId,
    ) -> Result<Option<NamedTempFile>> {
        let deadline = Instant::now() + self.request_timeout;
        let mut wait = INITIAL_BACKOFF;
        loop {
            match self.fetch_once(&mut file, id).await {
                Err(error) if error.is_transient() && Instant::now() + wait < deadline => {
                    tracing::debug!(blob = %id, reason = %error, "download retried");
                    tokio::time::sleep(wait).await;
                    wait = MAX_BACKOFF.min(wait * 2);
                }
                Ok(true) => return Ok(Some(file)),
                Ok(false) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    async fn fetch_once(&self, file: &mut NamedTempFile, id: &BlobId) -> Result<bool> {
        let path = file.path().to_owned();
        let failed = |error| self.bucket_error("read a blob from", error);
        // It may be moving into the trash, or back out of it.
        let mut object = None;
        for kind in [BucketObjectKind::Blob, BucketObjectKind::Trash, BucketObjectKind::Blob] {
            let key = self.blob_path(kind, id);
            let request = async {
                match self.store.get(&key).await {
                    Ok(there) => Ok(Some(there)),
                    Err(Failure::NotFound { .. }) => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            };
            object = self.run_with_timeout("read a blob from", 0, request).await?;
            if object.is_some() {
                break;
            }
        }
        let Some(object) = object else { return Ok(false) };
        if object.meta.size != id.length() {
            return Err(Error::Damaged { id: *id, length: object.meta.size });
        }
        let handle = file.as_file_mut();
        handle.set_len(0).map_err(disk_error("empty", &path))?;
        std::io::Seek::rewind(handle).map_err(disk_error("empty", &path))?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut body = object.into_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(failed)?;
            hash.update(&bytes);
            length += bytes.len() as u64;
            handle.write_all(&bytes).map_err(disk_error("write", &path))?;
        }
        let actual = BlobId::new(hash.finalize().into(), length);
        if actual != *id {
            return Err(Error::ContentMismatch { id: *id, actual, place: self.location.clone() });
        }
        Ok(true)
    }

    pub(super) async fn delete(&self, id: &BlobId) -> Result<bool> {
        let key = self.blob_path(BucketObjectKind::Blob, id);
        let was_there = self.head_object(&key).await?.is_some();
        self.remove_object(&key).await?;
        self.remove_object(&self.blob_path(BucketObjectKind::TouchMarker, id)).await?;
        Ok(was_there)
    }

    /// Removes an object; a missing object is not an error.
    pub(super) async fn remove_object(&self, key: &Path) -> Result<()> {
        match self.store.delete(key).await {
            Ok(()) | Err(Failure::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.bucket_error("remove an object from", error)),
        }
    }

    /// Returns when a blob was put or touched last; `None` if it does not exist.
    async fn last_used(&self, id: &BlobId) -> Result<Option<SystemTime>> {
        let Some(object) = self.head_complete_blob(BucketObjectKind::Blob, id).await? else {
            return Ok(None);
        };
        let touched = self.head_object(&self.blob_path(BucketObjectKind::TouchMarker, id)).await?;
        let put: SystemTime = object.last_modified.into();
        Ok(Some(touched.map_or(put, |touched| put.max(touched.last_modified.into()))))
    }

    pub(super) async fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        let is_unused = |used: SystemTime| used + OBJECT_CLOCK_RESOLUTION < unused_since;
        match self.last_used(id).await? {
            Some(used) if is_unused(used) => {}
            _ => return Ok(false),
        }
        let (key, trash) = (
            self.blob_path(BucketObjectKind::Blob, id),
            self.blob_path(BucketObjectKind::Trash, id),
        );
        match self.store.copy(&key, &trash).await {
            Ok(()) => {}
            // Another collector was faster.
            Err(Failure::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(self.bucket_error("copy an object in", error)),
        }
        self.remove_object(&key).await?;
        // A writer may have touched it in between, and relies on it.
        let touched_key = self.blob_path(BucketObjectKind::TouchMarker, id);
        let touched = self.head_object(&touched_key).await?;
        if touched.is_some_and(|touched| !is_unused(touched.last_modified.into())) {
            // The copy in the trash is purged later; another collector may need it until then.
            self.copy_object(&trash, &key).await?;
            return Ok(false);
        }
        self.remove_object(&touched_key).await?;
        Ok(true)
    }

    async fn copy_object(&self, from: &Path, to: &Path) -> Result<()> {
        self.store
            .copy(from, to)
            .await
            .map_err(|error| self.bucket_error("copy an object in", error))
    }

    pub(super) async fn undelete(&self, id: &BlobId) -> Result<bool> {
        let (key, trash) = (
            self.blob_path(BucketObjectKind::Blob, id),
            self.blob_path(BucketObjectKind::Trash, id),
        );
        if self.head_complete_blob(BucketObjectKind::Trash, id).await?.is_none() {
            return Ok(false);
        }
        if !self.contains(id).await? {
            self.copy_object(&trash, &key).await?;
        }
        self.remove_object(&trash).await?;
        Ok(true)
    }

    pub(super) async fn purge(&self, id: &BlobId) -> Result<bool> {
        let trash = self.blob_path(BucketObjectKind::Trash, id);
        let was_there = self.head_object(&trash).await?.is_some();
        self.remove_object(&trash).await?;
        Ok(was_there)
    }

    /// Sends all objects of a kind to a channel as it has capacity, until its receiver is dropped.
    pub(super) async fn list(
        &self,
        kind: BucketObjectKind,
        sender: &Sender<ListedBlob>,
        semaphore: &Semaphore,
    ) -> Result<()> {
        let folder = self.prefix.clone().join(kind.folder());
        let mut objects = self.store.list(Some(&folder));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| self.bucket_error("list", error))?;
            let name = object.location.filename().unwrap_or_default();
            let Some(digest) = blob_file::parse_digest(name) else { continue };
            let id = BlobId::new(digest, object.size);
            let listed = ListedBlob { id, modified: object.last_modified.into() };
            let Ok(permit) = semaphore.acquire().await else { return Ok(()) };
            permit.forget();
            if sender.send(listed).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) async fn write_note(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let put = self.store.put(&self.note_path(name), bytes.into()).await;
        put.map(drop).map_err(|error| self.bucket_error("write a note to", error))
    }

    /// Writes a note unless one with this name exists. `false` may also mean that it was written and the response was
    /// lost.
    pub(super) async fn create_note(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&self.note_path(name), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(Failure::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.bucket_error("write a note to", error)),
        }
    }

    pub(super) async fn read_note(&self, name: &str) -> Result<Option<Bytes>> {
        let failed = |error| self.bucket_error("read a note from", error);
        let key = self.note_path(name);
        let request = async {
            match self.store.get(&key).await {
                Ok(object) => Ok(Some(object)),
                Err(Failure::NotFound { .. }) => Ok(None),
                Err(error) => Err(failed(error)),
            }
        };
        match self.run_with_timeout("read a note from", 0, request).await? {
            // Notes may be long; an incomplete response is an error.
            Some(object) => object.bytes().await.map(Some).map_err(failed),
            None => Ok(None),
        }
    }

    pub(super) async fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let mut objects = self.store.list(Some(&self.prefix.clone().join("notes")));
        let mut notes = Vec::new();
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| self.bucket_error("list", error))?;
            let name = object.location.filename().unwrap_or_default();
            if name.starts_with(prefix) {
                notes.push((name.to_owned(), object.last_modified.into()));
            }
        }
        notes.sort();
        Ok(notes)
    }

    pub(super) async fn delete_note(&self, name: &str) -> Result<bool> {
        let key = self.note_path(name);
        let was_there = self.head_object(&key).await?.is_some();
        self.remove_object(&key).await?;
        Ok(was_there)
    }
}
