//! An in-memory cache of frequently used blobs, and of their open files: serving a page's pictures costs no opening
//! then, and no copy where a socket accepts a file.
//!
//! Invariants
//! * Memory stays under the limit, and open files under [`MAX_OPEN_FILES`]; a blob that was read once evicts none that
//!   is read often.
//! * Cached bytes are those that the store returned: blobs never change, so they are never checked again. A cached file
//!   is returned only as long as the system reports that it did not change.
//!
//! Not here: sending (`web::shortcut`). Bodies in the general HTTP stack are bytes, for which a descriptor is of no
//! use.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_store::BlobId;

use crate::verified_files::FileStamp;
use crate::{BlobContent, BlobStore, Error, Result};

/// Larger blobs are read from the store: for those the bytes dominate the cost, not the opening.
const MAX_CACHED_BLOB_BYTES: u64 = 256 * 1024;
/// Maximum number of cached open files. One that is removed concurrently occupies its disk space until it is evicted.
const MAX_OPEN_FILES: usize = 512;
/// Estimated average size of a cached blob, which determines the size of the cache's own tables.
const ESTIMATED_BLOB_BYTES: u64 = 32 * 1024;

/// A blob store with a cache in front.
#[derive(Debug)]
pub struct CachedBlobStore {
    store: Arc<dyn BlobStore>,
    cache: Cache<BlobId, Bytes, BlobBytesWeighter>,
    open_files: Cache<BlobId, (Arc<File>, FileStamp)>,
}

#[derive(Debug, Clone, Copy)]
struct BlobBytesWeighter;

impl Weighter<BlobId, Bytes> for BlobBytesWeighter {
    fn weight(&self, _: &BlobId, bytes: &Bytes) -> u64 {
        // Approximate overhead of the cache's own tables per blob.
        const ENTRY: u64 = 128;
        bytes.len() as u64 + ENTRY
    }
}

impl CachedBlobStore {
    /// Caches up to `max_bytes` of a store's blobs.
    #[must_use]
    pub fn new(store: Arc<dyn BlobStore>, max_bytes: u64) -> Self {
        let items = usize::try_from(max_bytes / ESTIMATED_BLOB_BYTES).unwrap_or(usize::MAX);
        let cache = Cache::with_weighter(items.max(16), max_bytes, BlobBytesWeighter);
        Self { store, cache, open_files: Cache::new(MAX_OPEN_FILES) }
    }

    /// Caches an open file that the store has returned.
    fn cache_file(&self, id: &BlobId, file: &Arc<File>) {
        if let Ok(stamp) = FileStamp::from_file(file) {
            self.open_files.insert(*id, (file.clone(), stamp));
        }
    }

    /// Returns the number of cached bytes.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cache.weight()
    }
}

impl BlobStore for CachedBlobStore {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        self.store.put(source)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        self.store.put_all(blobs)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        self.store.put_named(id, source)
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.store.touch(id)
    }

    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if id.length() > MAX_CACHED_BLOB_BYTES {
            return self.store.open(id);
        }
        if let Some(bytes) = self.cache.get(id) {
            return Ok(Some(BlobContent::Bytes(bytes)));
        }
        let Some(content) = self.store.open(id)? else {
            return Ok(None);
        };
        // A blob that is in memory is already cached by the store, or not worth caching.
        let BlobContent::File { file, .. } = &content else {
            return Ok(Some(content));
        };
        // If no descriptor is available, the bytes are enough.
        let file = file.try_clone().ok();
        let mut bytes = Vec::with_capacity(usize::try_from(id.length()).unwrap_or(0));
        content.into_reader().read_to_end(&mut bytes).map_err(Error::Source)?;
        if bytes.len() as u64 != id.length() {
            return Err(Error::Damaged { id: *id, length: bytes.len() as u64 });
        }
        let bytes = Bytes::from(bytes);
        self.cache.insert(*id, bytes.clone());
        if let Some(file) = file {
            self.cache_file(id, &Arc::new(file));
        }
        Ok(Some(BlobContent::Bytes(bytes)))
    }

    fn find_in_memory(&self, id: &BlobId) -> Option<Bytes> {
        self.cache.get(id)
    }

    fn find_file(&self, id: &BlobId) -> Option<Arc<File>> {
        if let Some((file, stamp)) = self.open_files.get(id) {
            if FileStamp::from_file(&file).is_ok_and(|now| now == stamp) {
                return Some(file);
            }
            self.open_files.remove(id);
        }
        let file = self.store.find_file(id)?;
        self.cache_file(id, &file);
        Some(file)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        self.store.contains(id)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::BlobFolder;
    use crate::LocalBlobStore;

    /// Counts how often a blob is opened.
    #[derive(Debug)]
    struct OpenCountingStore(LocalBlobStore, AtomicUsize);

    impl BlobStore for OpenCountingStore {
        fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
            self.0.put(source)
        }

        fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.open(id)
        }

        fn find_file(&self, id: &BlobId) -> Option<Arc<File>> {
            self.0.find_file(id)
        }

        fn contains(&self, id: &BlobId) -> Result<bool> {
            self.0.contains(id)
        }
    }

    #[test]
    fn what_is_read_again_is_not_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let small = Arc::new(tympan_store::LocalStore::open_in_memory().unwrap());
        let folder = Arc::new(BlobFolder::open(dir.path()).unwrap());
        let store = Arc::new(OpenCountingStore(
            LocalBlobStore::with_storage(folder, small),
            AtomicUsize::new(0),
        ));
        let hot = CachedBlobStore::new(store.clone(), 1 << 20);
        let opened = |id: &BlobId| {
            let before = store.1.load(Ordering::SeqCst);
            let mut bytes = Vec::new();
            let content = hot.open(id).unwrap().unwrap();
            content.into_reader().read_to_end(&mut bytes).unwrap();
            assert_eq!(BlobId::hash_of(&bytes), *id);
            store.1.load(Ordering::SeqCst) - before
        };
        let picture = hot.put(&mut &[1; 100_000][..]).unwrap();
        assert!(hot.find_in_memory(&picture).is_none());
        assert_eq!([opened(&picture), opened(&picture), opened(&picture)], [1, 0, 0]);
        assert_eq!(hot.find_in_memory(&picture).unwrap(), [1; 100_000][..]);
        let mut buffer = vec![0; 100_000];
        let file = hot.find_file(&picture).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&*file, &mut buffer, 0).unwrap();
        assert_eq!(buffer, [1; 100_000]);
        // A blob that was not read yet is opened in the store, and stays open.
        let other_id = hot.put(&mut &[7; 100_000][..]).unwrap();
        let file = hot.find_file(&other_id).unwrap();
        assert!(Arc::ptr_eq(&file, &hot.find_file(&other_id).unwrap()));
        assert!(
            hot.find_in_memory(&other_id).is_none()
                && hot.find_file(&BlobId::hash_of(&[8])).is_none()
        );
        assert_eq!(opened(&other_id), 1);
        // A large blob is read from the disk each time.
        let film = hot.put(&mut &vec![2; 300_000][..]).unwrap();
        assert_eq!([opened(&film), opened(&film)], [1, 1]);
        assert!(hot.open(&BlobId::new([9; 32], 50_000)).unwrap().is_none());
        for seed in 3..40 {
            opened(&hot.put(&mut &[seed; 200_000][..]).unwrap());
            assert!(hot.cached_bytes() <= 1 << 20, "{}", hot.cached_bytes());
        }
    }
}
