//! Objects of a bucket by name, for data other than blobs: vaults of backups.
//!
//! When [`ObjectBucket::put`] returns, an object is stored completely, or unchanged. Requests are retried with growing
//! waits for as long as [`BucketOptions::request_timeout`].

use std::fmt;
use std::future::Future;
use std::ops::Range;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{Error as Failure, ObjectStoreExt};
use tokio::runtime::{Builder, Runtime};

use super::options::{BucketOptions, RUNTIME_THREAD_COUNT};
use super::remote_bucket::RemoteBucket;
use crate::blob_file::disk_error;
use crate::{Error, Result};

/// A bucket, or a part of one below a prefix.
pub struct ObjectBucket {
    remote: RemoteBucket,
    /// Taken on drop.
    runtime: Option<Runtime>,
}

impl fmt::Debug for ObjectBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectBucket")
            .field("place", &self.remote.location())
            .finish_non_exhaustive()
    }
}

impl ObjectBucket {
    /// Opens a bucket without sending a request. Options that concern a local folder are not used.
    ///
    /// # Errors
    /// [`Error::InvalidAddress`] for an invalid URL or setting.
    pub fn open(options: &BucketOptions) -> Result<Self> {
        let remote = RemoteBucket::connect(options)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREAD_COUNT)
            .thread_name("objects")
            .enable_all()
            .build()
            .map_err(disk_error("start threads for", &options.cache_dir))?;
        Ok(Self { remote, runtime: Some(runtime) })
    }

    fn block_on_runtime<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let ended = || Error::StorageClosed { place: self.remote.location().to_owned() };
        self.runtime.as_ref().ok_or_else(ended)?.block_on(work)
    }

    /// Writes an object, replacing an existing one.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        self.block_on_runtime(async {
            let put = self.remote.store().put(&self.remote.object_path(name), bytes.into()).await;
            put.map(drop).map_err(|error| self.remote.bucket_error("write an object to", error))
        })
    }

    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn read(&self, name: &str) -> Result<Option<Bytes>> {
        self.block_on_runtime(async {
            match self.remote.store().get(&self.remote.object_path(name)).await {
                Ok(object) => {
                    let bytes = object.bytes().await;
                    bytes.map(Some).map_err(|error| self.remote.bucket_error("read from", error))
                }
                Err(Failure::NotFound { .. }) => Ok(None),
                Err(error) => Err(self.remote.bucket_error("read from", error)),
            }
        })
    }

    /// Reads a range of an object, which may be shorter than requested; `None` if the object does not exist.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn read_range(&self, name: &str, range: Range<u64>) -> Result<Option<Bytes>> {
        self.block_on_runtime(async {
            let key = self.remote.object_path(name);
            match self.remote.store().get_range(&key, range.clone()).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(Failure::NotFound { .. }) => Ok(None),
                // A server refuses a range that begins beyond the end.
                Err(error) => match self.remote.head_object(&key).await? {
                    Some(object) if object.size < range.end => Ok(Some(Bytes::new())),
                    _ => Err(self.remote.bucket_error("read from", error)),
                },
            }
        })
    }

    /// Returns the length of an object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn length(&self, name: &str) -> Result<Option<u64>> {
        let object = self.block_on_runtime(async {
            self.remote.head_object(&self.remote.object_path(name)).await
        })?;
        Ok(object.map(|object| object.size))
    }

    /// Lists the objects in a folder, recursively, by the last components of their names, with their lengths. An empty
    /// folder name lists all objects.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn list(&self, folder: &str) -> Result<Vec<(String, u64)>> {
        self.block_on_runtime(async {
            let folder: Path = self.remote.object_path(folder);
            let mut objects = self.remote.store().list(Some(&folder));
            let mut notes = Vec::new();
            while let Some(object) = objects.next().await {
                let object = object.map_err(|error| self.remote.bucket_error("list", error))?;
                let name = object.location.filename().unwrap_or_default();
                notes.push((name.to_owned(), object.size));
            }
            Ok(notes)
        })
    }

    /// Removes an object; a missing object is not an error.
    ///
    /// # Errors
    /// [`Error::Bucket`].
    pub fn remove(&self, name: &str) -> Result<()> {
        self.block_on_runtime(async {
            self.remote.remove_object(&self.remote.object_path(name)).await
        })
    }
}

impl Drop for ObjectBucket {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
