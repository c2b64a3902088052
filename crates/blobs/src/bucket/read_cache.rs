//! A cache on the local disk of blobs read from a bucket, with a maximum size in bytes.
//!
//! Invariants
//! * A file is stored under its digest only if its bytes have it: it is synced before it is named.
//! * The total size stays under the limit; a blob that is larger than the limit is not cached.
//!
//! An evicted file stays readable for those who have it open.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tympan_store::BlobId;

use super::bucket_counts::BucketCounts;
use crate::blob_file::{self, disk_error, ignore_absent};
use crate::verified_files::VerifiedFiles;
use crate::{BlobContent, Error, Result};

/// Number of locks for fetches of blobs; two blobs may share one.
const FETCH_LOCK_COUNT: usize = 64;

/// A folder of copies of blobs.
pub(super) struct BlobReadCache {
    dir: PathBuf,
    max_bytes: u64,
    index: Mutex<BlobRecencyIndex>,
    fetch_locks: Vec<Arc<Mutex<()>>>,
    verified: VerifiedFiles,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct BlobRecencyIndex {
    bytes: u64,
    use_counter: u64,
    /// The logical time of each blob's last use.
    last_used: HashMap<BlobId, u64>,
    /// The blobs by last use.
    ids_by_last_use: BTreeMap<u64, BlobId>,
}

impl BlobRecencyIndex {
    fn touch(&mut self, id: &BlobId) {
        self.use_counter += 1;
        match self.last_used.insert(*id, self.use_counter) {
            Some(before) => drop(self.ids_by_last_use.remove(&before)),
            None => self.bytes += id.length(),
        }
        self.ids_by_last_use.insert(self.use_counter, *id);
    }

    fn remove(&mut self, id: &BlobId) {
        if let Some(at) = self.last_used.remove(id) {
            self.ids_by_last_use.remove(&at);
            self.bytes = self.bytes.saturating_sub(id.length());
        }
    }

    /// Removes the least recently used blobs until the total size is within the limit; returns them.
    fn evict(&mut self, max_bytes: u64) -> Vec<BlobId> {
        let mut evicted = Vec::new();
        while self.bytes > max_bytes
            && let Some((_, id)) = self.ids_by_last_use.first_key_value()
        {
            let id = *id;
            self.remove(&id);
            evicted.push(id);
        }
        evicted
    }
}

impl BlobReadCache {
    /// Opens the cache with its previous content.
    pub(super) fn open(dir: &Path, max_bytes: u64) -> Result<Self> {
        blob_file::create_folder(dir)?;
        let mut blobs: Vec<(SystemTime, BlobId)> = Vec::new();
        let _all = blob_file::list_blobs(dir, &mut |listed| {
            blobs.push((listed.modified, listed.id));
            ControlFlow::Continue(())
        })?;
        blobs.sort();
        let mut index = BlobRecencyIndex::default();
        blobs.iter().for_each(|(_, id)| index.touch(id));
        let cache = Self {
            dir: dir.to_owned(),
            max_bytes,
            index: Mutex::new(index),
            fetch_locks: (0..FETCH_LOCK_COUNT).map(|_| Arc::default()).collect(),
            verified: VerifiedFiles::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        cache.evict_excess()?;
        Ok(cache)
    }

    /// Opens a blob; `None` if it is not cached.
    pub(super) fn open_blob(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        let path = blob_file::blob_path(&self.dir, id);
        match self.verified.open(&path, id) {
            Ok(Some(content)) => {
                self.index.lock().touch(id);
                self.hits.fetch_add(1, Ordering::Relaxed);
                Ok(Some(content))
            }
            Ok(None) => {
                self.index.lock().remove(id);
                Ok(None)
            }
            Err(Error::Damaged { .. } | Error::HashMismatch { .. }) => {
                // The bucket has an intact copy.
                self.remove_blob(id)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Stores a complete file, if it fits.
    pub(super) fn store_file(&self, file: NamedTempFile, id: &BlobId) -> Result<()> {
        if id.length() > self.max_bytes {
            return Ok(());
        }
        // After a crash, a file with its name but not its bytes would be served.
        file.as_file().sync_data().map_err(disk_error("sync", file.path()))?;
        let path = blob_file::blob_path(&self.dir, id);
        let folder = path.parent().unwrap_or(&self.dir);
        blob_file::create_folder(folder)?;
        file.persist(&path).map_err(|failed| disk_error("rename to", &path)(failed.error))?;
        self.index.lock().touch(id);
        self.evict_excess()
    }

    /// Moves a complete, synced file on the same file system into the cache.
    pub(super) fn move_in_file(&self, from: &Path, id: &BlobId) -> Result<()> {
        if id.length() > self.max_bytes {
            return ignore_absent(fs::remove_file(from)).map_err(disk_error("remove", from));
        }
        let path = blob_file::blob_path(&self.dir, id);
        let folder = path.parent().unwrap_or(&self.dir);
        blob_file::create_folder(folder)?;
        ignore_absent(fs::rename(from, &path)).map_err(disk_error("rename to", &path))?;
        self.index.lock().touch(id);
        self.evict_excess()
    }

    /// Removes a blob.
    pub(super) fn remove_blob(&self, id: &BlobId) -> Result<()> {
        self.index.lock().remove(id);
        let path = blob_file::blob_path(&self.dir, id);
        ignore_absent(fs::remove_file(&path)).map_err(disk_error("remove", &path))
    }

    fn evict_excess(&self) -> Result<()> {
        let evicted = self.index.lock().evict(self.max_bytes);
        for id in evicted {
            let path = blob_file::blob_path(&self.dir, &id);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(disk_error("remove", &path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the lock that serializes fetches of a blob.
    pub(super) fn fetch_lock(&self, id: &BlobId) -> Arc<Mutex<()>> {
        let [first, ..] = id.digest();
        self.fetch_locks.get(usize::from(*first) % FETCH_LOCK_COUNT).cloned().unwrap_or_default()
    }

    pub(super) fn record_miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_counts(&self, counts: &mut BucketCounts) {
        counts.cache_hits = self.hits.load(Ordering::Relaxed);
        counts.cache_misses = self.misses.load(Ordering::Relaxed);
        counts.cached_bytes = self.index.lock().bytes;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn keep(cache: &BlobReadCache, dir: &Path, seed: u8) -> BlobId {
        let bytes = vec![seed; 100];
        let mut file = NamedTempFile::new_in(dir).unwrap();
        file.write_all(&bytes).unwrap();
        let id = BlobId::hash_of(&bytes);
        cache.store_file(file, &id).unwrap();
        id
    }

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("download");
        let cache = BlobReadCache::open(&folder, 350).unwrap();
        let ids: Vec<BlobId> = (0..3).map(|seed| keep(&cache, dir.path(), seed)).collect();
        assert!(cache.open_blob(&ids[0]).unwrap().is_some());
        let last = keep(&cache, dir.path(), 3);
        let is_here = |id| cache.open_blob(id).unwrap().is_some();
        assert_eq!(
            [is_here(&ids[0]), is_here(&ids[1]), is_here(&ids[2]), is_here(&last)],
            [true, false, true, true]
        );
        let mut counts = BucketCounts::default();
        cache.add_counts(&mut counts);
        assert_eq!((counts.cached_bytes, counts.cache_hits), (300, 4));
        // A blob that is larger than the whole cache is not cached, and evicts nothing.
        let large = BlobId::hash_of(&[9; 400]);
        let mut file = NamedTempFile::new_in(dir.path()).unwrap();
        file.write_all(&[9; 400]).unwrap();
        cache.store_file(file, &large).unwrap();
        assert!(!is_here(&large) && is_here(&last));
        // The content is found again, and the limit is applied again.
        drop(cache);
        let smaller = BlobReadCache::open(&folder, 150).unwrap();
        smaller.add_counts(&mut counts);
        assert_eq!(counts.cached_bytes, 100);
    }

    #[test]
    fn a_shortened_file_is_fetched_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = BlobReadCache::open(dir.path(), 1_000).unwrap();
        let id = keep(&cache, dir.path(), 1);
        File::create(blob_file::blob_path(dir.path(), &id)).unwrap();
        assert!(cache.open_blob(&id).unwrap().is_none());
        assert!(cache.open_blob(&id).unwrap().is_none());
        keep(&cache, dir.path(), 1);
        assert!(cache.open_blob(&id).unwrap().is_some());
    }
}
