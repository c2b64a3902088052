//! The bucket itself: names of objects, and requests that are sent again while that can help.

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
use super::connect::{Connector, time_for};
use crate::files::{self, disk, hex_of};
use crate::{Error, Listed, Result};

/// Blobs above this go in parts of this size: one request a part, so that a broken one costs no more than a part.
const PART_BYTES: usize = 8 << 20;
/// Parts of one blob that are on their way at a time.
const PARTS: usize = 4;
/// The wait before a request is sent the second time; it doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The clock of an object counts whole seconds.
const TICK: Duration = Duration::from_secs(1);

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Blobs.
    Blob,
    /// Empty objects, written when a blob was touched: an object cannot get a new time by itself.
    Touched,
    /// What was discarded.
    Trash,
}

impl Kind {
    fn folder(self) -> &'static str {
        match self {
            Self::Blob => "data",
            Self::Touched => "touched",
            Self::Trash => "trash",
        }
    }
}

/// A bucket, or a part of one.
pub(super) struct Remote {
    store: Arc<dyn ObjectStore>,
    /// What all names begin with.
    prefix: Path,
    /// The bucket as people name it.
    place: String,
    patience: Duration,
}

impl Remote {
    pub(super) fn connect(options: &BucketOptions) -> Result<Self> {
        let malformed = |reason: String| Error::Address { url: options.url.clone(), reason };
        let (scheme, rest) = options.url.split_once("://").unwrap_or_default();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(malformed(
                "write `s3://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`".to_owned(),
            ));
        }
        let prefix =
            Path::parse(prefix.trim_matches('/')).map_err(|error| malformed(error.to_string()))?;
        let connector = Connector::new(options.trust.clone(), options.stall);
        let backoff =
            BackoffConfig { init_backoff: FIRST_WAIT, max_backoff: LONGEST_WAIT, base: 2.0 };
        let retry = RetryConfig { backoff, max_retries: 20, retry_timeout: options.patience };
        let names = options.settings.iter().map(|(name, value)| (name.to_ascii_lowercase(), value));
        let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
            "s3" | "s3a" => {
                let mut builder = AmazonS3Builder::new();
                for (name, value) in names.filter(|(name, _)| name.starts_with("aws_")) {
                    // The environment holds much that is for other programs.
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
                return Err(malformed(
                    "it begins neither with `s3://` nor with `az://`".to_owned(),
                ));
            }
        };
        let store = store.map_err(|error| malformed(error.to_string()))?;
        Ok(Self { store, prefix, place: options.url.clone(), patience: options.patience })
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    pub(super) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    /// Returns the whole name of an object, given by the parts below the prefix.
    pub(super) fn named(&self, name: &str) -> Path {
        name.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), Path::join)
    }

    fn key(&self, kind: Kind, id: &BlobId) -> Path {
        self.prefix.clone().join(kind.folder()).join(hex_of(id))
    }

    fn note_key(&self, name: &str) -> Path {
        self.prefix.clone().join("notes").join(name)
    }

    pub(super) fn failed(&self, action: &'static str, source: Failure) -> Error {
        Error::Bucket { action, place: self.place.clone(), source: Box::new(source) }
    }

    /// Waits for requests that together send or read `bytes` in bodies, for as long as the bucket's patience lasts and the
    /// bytes may take: each request has a bound of its own, and a few in a row would take several times as long.
    pub(super) async fn within<T>(
        &self,
        (action, bytes): (&'static str, u64),
        requests: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.patience.saturating_add(time_for(bytes));
        let silent = || {
            let source = format!("no answer within {} ms", limit.as_millis()).into();
            Err(self.failed(action, Failure::Generic { store: "bucket", source }))
        };
        tokio::time::timeout(limit, requests).await.unwrap_or_else(|_| silent())
    }

    /// Returns what the bucket says about an object; nothing if it is not there.
    pub(super) async fn head(&self, key: &Path) -> Result<Option<ObjectMeta>> {
        match self.store.head(key).await {
            Ok(found) => Ok(Some(found)),
            Err(Failure::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("ask", error)),
        }
    }

    /// Returns what the bucket says about a blob; nothing if it is not there whole.
    async fn head_whole(&self, kind: Kind, id: &BlobId) -> Result<Option<ObjectMeta>> {
        let found = self.head(&self.key(kind, id)).await?;
        Ok(found.filter(|found| found.size == id.length()))
    }

    pub(super) async fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.head_whole(Kind::Blob, id).await?.is_some())
    }

    /// Renews the time of a blob; `false` if it is not there, or was discarded at this moment.
    pub(super) async fn touch(&self, id: &BlobId) -> Result<bool> {
        if !self.contains(id).await? {
            return Ok(false);
        }
        let key = self.key(Kind::Touched, id);
        self.store
            .put(&key, Bytes::new().into())
            .await
            .map_err(|error| self.failed("touch a blob in", error))?;
        self.contains(id).await
    }

    /// Uploads the blob in a file, unless it is there; then it is touched. Returns when the bucket has it whole.
    pub(super) async fn upload(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        if id.length() <= PART_BYTES as u64 {
            let uploaded = self.upload_while_it_helps(file, id);
            return self.within(("upload a blob to", id.length()), uploaded).await;
        }
        // Each part has its own bound: so much is sent for as long as it takes, while it goes on.
        self.upload_while_it_helps(file, id).await
    }

    async fn upload_while_it_helps(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        let mut wait = FIRST_WAIT;
        loop {
            let done = self.upload_once(file, id).await;
            match done {
                Err(error) if error.is_transient() && Instant::now() + wait < deadline => {
                    tracing::debug!(blob = %id, reason = %error, "upload goes on");
                    tokio::time::sleep(wait).await;
                    wait = LONGEST_WAIT.min(wait * 2);
                }
                done => return done,
            }
        }
    }

    async fn upload_once(&self, file: &FilePath, id: &BlobId) -> Result<()> {
        if self.touch(id).await? {
            return Ok(());
        }
        let key = self.key(Kind::Blob, id);
        let is_there = self.head(&key).await?.is_some();
        if id.length() <= PART_BYTES as u64 {
            let bytes = std::fs::read(file).map_err(disk("read", file))?;
            // An object that is too short is replaced, whoever wrote it.
            let mode = if is_there { PutMode::Overwrite } else { PutMode::Create };
            let options = PutOptions { mode, ..PutOptions::default() };
            match self.store.put_opts(&key, bytes.into(), options).await {
                Ok(_) | Err(Failure::AlreadyExists { .. }) => {}
                Err(error) => return Err(self.failed("upload a blob to", error)),
            }
        } else {
            self.upload_parts(&key, file).await?;
        }
        match self.head(&key).await? {
            Some(found) if found.size == id.length() => Ok(()),
            Some(found) => Err(Error::Damaged { id: *id, length: found.size }),
            None => Err(Error::Lost { id: *id, place: self.place.clone() }),
        }
    }

    async fn upload_parts(&self, key: &Path, path: &FilePath) -> Result<()> {
        let failed = |error| self.failed("upload a blob to", error);
        let upload = self.store.put_multipart(key).await.map_err(failed)?;
        let mut parts = WriteMultipart::new_with_chunk_size(upload, PART_BYTES);
        let mut file = File::open(path).map_err(disk("open", path))?;
        let mut sent = Ok(());
        loop {
            let mut part = Vec::with_capacity(PART_BYTES);
            let read = (&mut file).take(PART_BYTES as u64).read_to_end(&mut part);
            if let Err(error) = read {
                sent = Err(disk("read", path)(error));
                break;
            }
            if part.is_empty() {
                break;
            }
            if let Err(error) = parts.wait_for_capacity(PARTS).await {
                sent = Err(failed(error));
                break;
            }
            parts.put(part.into());
        }
        match sent {
            Ok(()) => parts.finish().await.map(drop).map_err(failed),
            Err(error) => {
                // Parts that stay are removed by the bucket's own rule for unfinished uploads.
                parts.abort().await.ok();
                Err(error)
            }
        }
    }

    /// Reads a blob into a file and compares it with its hash; nothing if it is not there.
    pub(super) async fn fetch(
        &self,
        mut file: NamedTempFile,
        id: &BlobId,
    ) -> Result<Option<NamedTempFile>> {
        let deadline = Instant::now() + self.patience;
        let mut wait = FIRST_WAIT;
        loop {
            match self.fetch_once(&mut file, id).await {
                Err(error) if error.is_transient() && Instant::now() + wait < deadline => {
                    tracing::debug!(blob = %id, reason = %error, "a blob is read again");
                    tokio::time::sleep(wait).await;
                    wait = LONGEST_WAIT.min(wait * 2);
                }
                Ok(true) => return Ok(Some(file)),
                Ok(false) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    async fn fetch_once(&self, file: &mut NamedTempFile, id: &BlobId) -> Result<bool> {
        let path = file.path().to_owned();
        let failed = |error| self.failed("read a blob from", error);
        // It may be on its way into the trash, or back out of it.
        let mut found = None;
        for kind in [Kind::Blob, Kind::Trash, Kind::Blob] {
            let key = self.key(kind, id);
            let asked = async {
                match self.store.get(&key).await {
                    Ok(there) => Ok(Some(there)),
                    Err(Failure::NotFound { .. }) => Ok(None),
                    Err(error) => Err(failed(error)),
                }
            };
            found = self.within(("read a blob from", 0), asked).await?;
            if found.is_some() {
                break;
            }
        }
        let Some(found) = found else { return Ok(false) };
        if found.meta.size != id.length() {
            return Err(Error::Damaged { id: *id, length: found.meta.size });
        }
        let handle = file.as_file_mut();
        handle.set_len(0).map_err(disk("empty", &path))?;
        std::io::Seek::rewind(handle).map_err(disk("empty", &path))?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut body = found.into_stream();
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(failed)?;
            hash.update(&bytes);
            length += bytes.len() as u64;
            handle.write_all(&bytes).map_err(disk("write", &path))?;
        }
        let actual = BlobId::new(hash.finalize().into(), length);
        if actual != *id {
            return Err(Error::Altered { id: *id, actual, place: self.place.clone() });
        }
        Ok(true)
    }

    pub(super) async fn delete(&self, id: &BlobId) -> Result<bool> {
        let key = self.key(Kind::Blob, id);
        let was_there = self.head(&key).await?.is_some();
        self.remove(&key).await?;
        self.remove(&self.key(Kind::Touched, id)).await?;
        Ok(was_there)
    }

    /// Removes an object, which may be gone already.
    pub(super) async fn remove(&self, key: &Path) -> Result<()> {
        match self.store.delete(key).await {
            Ok(()) | Err(Failure::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("remove an object from", error)),
        }
    }

    /// Returns when a blob was put or touched last; nothing if it is not there.
    async fn used(&self, id: &BlobId) -> Result<Option<SystemTime>> {
        let Some(found) = self.head_whole(Kind::Blob, id).await? else { return Ok(None) };
        let touched = self.head(&self.key(Kind::Touched, id)).await?;
        let put: SystemTime = found.last_modified.into();
        Ok(Some(touched.map_or(put, |touched| put.max(touched.last_modified.into()))))
    }

    pub(super) async fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        let is_unused = |used: SystemTime| used + TICK < unused_since;
        match self.used(id).await? {
            Some(used) if is_unused(used) => {}
            _ => return Ok(false),
        }
        let (key, trash) = (self.key(Kind::Blob, id), self.key(Kind::Trash, id));
        match self.store.copy(&key, &trash).await {
            Ok(()) => {}
            // Another collector was faster.
            Err(Failure::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(self.failed("copy an object in", error)),
        }
        self.remove(&key).await?;
        // Somebody may have touched it between, and relies on it.
        let touched_key = self.key(Kind::Touched, id);
        let touched = self.head(&touched_key).await?;
        if touched.is_some_and(|touched| !is_unused(touched.last_modified.into())) {
            // What stays in the trash is purged in time; another collector may need it until then.
            self.copy(&trash, &key).await?;
            return Ok(false);
        }
        self.remove(&touched_key).await?;
        Ok(true)
    }

    async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.store.copy(from, to).await.map_err(|error| self.failed("copy an object in", error))
    }

    pub(super) async fn undelete(&self, id: &BlobId) -> Result<bool> {
        let (key, trash) = (self.key(Kind::Blob, id), self.key(Kind::Trash, id));
        if self.head_whole(Kind::Trash, id).await?.is_none() {
            return Ok(false);
        }
        if !self.contains(id).await? {
            self.copy(&trash, &key).await?;
        }
        self.remove(&trash).await?;
        Ok(true)
    }

    pub(super) async fn purge(&self, id: &BlobId) -> Result<bool> {
        let trash = self.key(Kind::Trash, id);
        let was_there = self.head(&trash).await?.is_some();
        self.remove(&trash).await?;
        Ok(was_there)
    }

    /// Sends all objects of a kind to where they are shown, as there is room, until nobody looks any more.
    pub(super) async fn list(
        &self,
        kind: Kind,
        shown: &Sender<Listed>,
        room: &Semaphore,
    ) -> Result<()> {
        let folder = self.prefix.clone().join(kind.folder());
        let mut objects = self.store.list(Some(&folder));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| self.failed("list", error))?;
            let name = object.location.filename().unwrap_or_default();
            let Some(digest) = files::parse_digest(name) else { continue };
            let id = BlobId::new(digest, object.size);
            let listed = Listed { id, modified: object.last_modified.into() };
            let Ok(permit) = room.acquire().await else { return Ok(()) };
            permit.forget();
            if shown.send(listed).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    pub(super) async fn write_note(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let put = self.store.put(&self.note_key(name), bytes.into()).await;
        put.map(drop).map_err(|error| self.failed("write a note to", error))
    }

    /// Writes a note unless there is one of this name. `false` may also mean that it was written and the answer got lost.
    pub(super) async fn create_note(&self, name: &str, bytes: Vec<u8>) -> Result<bool> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(&self.note_key(name), bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(Failure::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed("write a note to", error)),
        }
    }

    pub(super) async fn read_note(&self, name: &str) -> Result<Option<Bytes>> {
        let failed = |error| self.failed("read a note from", error);
        let key = self.note_key(name);
        let asked = async {
            match self.store.get(&key).await {
                Ok(found) => Ok(Some(found)),
                Err(Failure::NotFound { .. }) => Ok(None),
                Err(error) => Err(failed(error)),
            }
        };
        match self.within(("read a note from", 0), asked).await? {
            // Notes may be long; one that stops arriving is an error.
            Some(found) => found.bytes().await.map(Some).map_err(failed),
            None => Ok(None),
        }
    }

    pub(super) async fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let mut objects = self.store.list(Some(&self.prefix.clone().join("notes")));
        let mut notes = Vec::new();
        while let Some(object) = objects.next().await {
            let object = object.map_err(|error| self.failed("list", error))?;
            let name = object.location.filename().unwrap_or_default();
            if name.starts_with(prefix) {
                notes.push((name.to_owned(), object.last_modified.into()));
            }
        }
        notes.sort();
        Ok(notes)
    }

    pub(super) async fn delete_note(&self, name: &str) -> Result<bool> {
        let key = self.note_key(name);
        let was_there = self.head(&key).await?.is_some();
        self.remove(&key).await?;
        Ok(was_there)
    }
}
