//! Blobs that are asked for again and again, kept in memory, and their files open: a page's pictures cost no opening then,
//! and no copy where a socket takes a file.
//!
//! Invariants
//! * Memory stays under the bound, and open files under [`MAX_FILES`]; a blob that was read once pushes none out that is
//!   read often.
//! * Bytes that are kept are what the store gave: blobs never change, so they are never looked at again. A file that is kept
//!   open is given out only as long as the system says that it did not change.
//!
//! Not here: sending (`web::shortcut`). Bodies in the general HTTP stack are bytes, for which a descriptor is of no use.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_store::BlobId;

use crate::verified::FileStamp;
use crate::{BlobContent, BlobStore, Error, Result};

/// Larger blobs are read from where they lie: of those the bytes cost, not the opening.
const MAX_BYTES: u64 = 256 * 1024;
/// Files that stay open. One that is removed meanwhile takes its room on the disk until others push it out.
const MAX_FILES: usize = 512;
/// An estimate of the blobs that fit sizes the cache's own tables.
const USUAL_BYTES: u64 = 32 * 1024;

/// A store with a cache in front.
#[derive(Debug)]
pub struct HotBlobs {
    store: Arc<dyn BlobStore>,
    cache: Cache<BlobId, Bytes, BlobBytes>,
    files: Cache<BlobId, (Arc<File>, FileStamp)>,
}

#[derive(Debug, Clone, Copy)]
struct BlobBytes;

impl Weighter<BlobId, Bytes> for BlobBytes {
    fn weight(&self, _: &BlobId, bytes: &Bytes) -> u64 {
        // The cache's own tables take about this much per blob.
        const ENTRY: u64 = 128;
        bytes.len() as u64 + ENTRY
    }
}

impl HotBlobs {
    /// Keeps up to `max_bytes` of what is read of a store.
    #[must_use]
    pub fn new(store: Arc<dyn BlobStore>, max_bytes: u64) -> Self {
        let items = usize::try_from(max_bytes / USUAL_BYTES).unwrap_or(usize::MAX);
        let cache = Cache::with_weighter(items.max(16), max_bytes, BlobBytes);
        Self { store, cache, files: Cache::new(MAX_FILES) }
    }

    /// Keeps a file open that the store has given.
    fn keep_file(&self, id: &BlobId, file: &Arc<File>) {
        if let Ok(stamp) = FileStamp::of(file) {
            self.files.insert(*id, (file.clone(), stamp));
        }
    }

    /// Returns the bytes that are kept now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.cache.weight()
    }
}

impl BlobStore for HotBlobs {
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
        if id.length() > MAX_BYTES {
            return self.store.open(id);
        }
        if let Some(bytes) = self.cache.get(id) {
            return Ok(Some(BlobContent::Bytes(bytes)));
        }
        let Some(content) = self.store.open(id)? else {
            return Ok(None);
        };
        // What is in memory already is kept by the store, or not worth it.
        let BlobContent::File { file, .. } = &content else {
            return Ok(Some(content));
        };
        // Without a descriptor to spare, the bytes do.
        let file = file.try_clone().ok();
        let mut bytes = Vec::with_capacity(usize::try_from(id.length()).unwrap_or(0));
        content.into_reader().read_to_end(&mut bytes).map_err(Error::Source)?;
        if bytes.len() as u64 != id.length() {
            return Err(Error::Damaged { id: *id, length: bytes.len() as u64 });
        }
        let bytes = Bytes::from(bytes);
        self.cache.insert(*id, bytes.clone());
        if let Some(file) = file {
            self.keep_file(id, &Arc::new(file));
        }
        Ok(Some(BlobContent::Bytes(bytes)))
    }

    fn find_at_hand(&self, id: &BlobId) -> Option<Bytes> {
        self.cache.get(id)
    }

    fn find_file(&self, id: &BlobId) -> Option<Arc<File>> {
        if let Some((file, stamp)) = self.files.get(id) {
            if FileStamp::of(&file).is_ok_and(|now| now == stamp) {
                return Some(file);
            }
            self.files.remove(id);
        }
        let file = self.store.find_file(id)?;
        self.keep_file(id, &file);
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
    use crate::Folder;
    use crate::LocalBlobs;

    /// Counts how often a blob is opened.
    #[derive(Debug)]
    struct Counting(LocalBlobs, AtomicUsize);

    impl BlobStore for Counting {
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
        let small = Arc::new(tympan_store::LocalStore::memory().unwrap());
        let folder = Arc::new(Folder::open(dir.path()).unwrap());
        let store = Arc::new(Counting(LocalBlobs::over(folder, small), AtomicUsize::new(0)));
        let hot = HotBlobs::new(store.clone(), 1 << 20);
        let opened = |id: &BlobId| {
            let before = store.1.load(Ordering::SeqCst);
            let mut bytes = Vec::new();
            let content = hot.open(id).unwrap().unwrap();
            content.into_reader().read_to_end(&mut bytes).unwrap();
            assert_eq!(BlobId::of(&bytes), *id);
            store.1.load(Ordering::SeqCst) - before
        };
        let picture = hot.put(&mut &[1; 100_000][..]).unwrap();
        assert!(hot.find_at_hand(&picture).is_none());
        assert_eq!([opened(&picture), opened(&picture), opened(&picture)], [1, 0, 0]);
        assert_eq!(hot.find_at_hand(&picture).unwrap(), [1; 100_000][..]);
        let mut kept = vec![0; 100_000];
        let file = hot.find_file(&picture).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&*file, &mut kept, 0).unwrap();
        assert_eq!(kept, [1; 100_000]);
        // What nobody read yet is opened where it lies, and stays open.
        let other = hot.put(&mut &[7; 100_000][..]).unwrap();
        let file = hot.find_file(&other).unwrap();
        assert!(Arc::ptr_eq(&file, &hot.find_file(&other).unwrap()));
        assert!(hot.find_at_hand(&other).is_none() && hot.find_file(&BlobId::of(&[8])).is_none());
        assert_eq!(opened(&other), 1);
        // A film is read from the disk each time.
        let film = hot.put(&mut &vec![2; 300_000][..]).unwrap();
        assert_eq!([opened(&film), opened(&film)], [1, 1]);
        assert!(hot.open(&BlobId::new([9; 32], 50_000)).unwrap().is_none());
        for seed in 3..40 {
            opened(&hot.put(&mut &[seed; 200_000][..]).unwrap());
            assert!(hot.bytes() <= 1 << 20, "{}", hot.bytes());
        }
    }
}
