//! The blobs of a home: small ones are records in its chunk store, large ones are in a separate storage.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{BlobId, ChunkBatch, ChunkStore};

use crate::storage::verify_content;
use crate::{BlobContent, BlobFolder, BlobStore, Error, Result, SMALL_BLOB_BYTES, WriteBlobs};

/// A blob store that combines the chunk store for small blobs and the storage for large ones.
pub struct LocalBlobStore {
    small_store: Arc<dyn ChunkStore>,
    large_storage: Arc<dyn WriteBlobs>,
}

impl LocalBlobStore {
    /// Opens or creates the store with large blobs in the folder `dir`. Several processes may use the folder at the
    /// same time.
    ///
    /// # Errors
    /// If the folder cannot be created or cleaned.
    pub fn open(dir: &Path, small: Arc<dyn ChunkStore>) -> Result<Self> {
        Ok(Self::with_storage(Arc::new(BlobFolder::open(dir)?), small))
    }

    /// Returns the store with large blobs in a folder, a bucket or a composite.
    #[must_use]
    pub fn with_storage(large: Arc<dyn WriteBlobs>, small: Arc<dyn ChunkStore>) -> Self {
        Self { small_store: small, large_storage: large }
    }

    fn is_small(id: &BlobId) -> bool {
        id.length() < SMALL_BLOB_BYTES as u64
    }

    /// Stores a blob whose bytes are all in memory.
    fn put_small(&self, id: BlobId, bytes: Vec<u8>) -> Result<()> {
        if !self.small_store.contains_blob(&id)? {
            let mut batch = ChunkBatch::default();
            batch.add_blob(id, Bytes::from(bytes));
            self.small_store.commit(batch)?;
        }
        Ok(())
    }
}

impl fmt::Debug for LocalBlobStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalBlobs({:?})", self.large_storage)
    }
}

impl BlobStore for LocalBlobStore {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let mut head = Vec::with_capacity(SMALL_BLOB_BYTES);
        (&mut *source)
            .take(SMALL_BLOB_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(Error::Source)?;
        if head.len() == SMALL_BLOB_BYTES {
            return self.large_storage.put(&mut head.as_slice().chain(source));
        }
        let id = BlobId::hash_of(&head);
        self.put_small(id, head)?;
        Ok(id)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        let (mut batch, mut large, mut ids) = (ChunkBatch::default(), Vec::new(), Vec::new());
        for bytes in blobs {
            let id = BlobId::hash_of(bytes);
            if bytes.len() >= SMALL_BLOB_BYTES {
                large.push(*bytes);
            } else if !self.small_store.contains_blob(&id)? {
                batch.add_blob(id, Bytes::copy_from_slice(bytes));
            }
            ids.push(id);
        }
        self.large_storage.put_all(&large)?;
        if !batch.is_empty() {
            self.small_store.commit(batch)?;
        }
        Ok(ids)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        if !Self::is_small(id) {
            return self.large_storage.put_named(id, source);
        }
        if self.small_store.contains_blob(id)? {
            return verify_content(id, source);
        }
        let mut bytes = Vec::with_capacity(SMALL_BLOB_BYTES);
        (&mut *source).take(id.length()).read_to_end(&mut bytes).map_err(Error::Source)?;
        verify_content(id, &mut bytes.as_slice().chain(source))?;
        self.put_small(*id, bytes)
    }

    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        if Self::is_small(id) {
            let content = self.small_store.read_blob(id)?.map(BlobContent::Bytes);
            if content.is_some() || id.length() < self.large_storage.min_blob_bytes() {
                return Ok(content);
            }
        }
        self.large_storage.open(id)
    }

    fn find_file(&self, id: &BlobId) -> Option<Arc<File>> {
        (!Self::is_small(id)).then(|| self.large_storage.open_file(id))?.map(Arc::new)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        if Self::is_small(id) {
            let is_here = self.small_store.contains_blob(id)?;
            if is_here || id.length() < self.large_storage.min_blob_bytes() {
                return Ok(is_here);
            }
        }
        self.large_storage.contains(id)
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        if Self::is_small(id) {
            Ok(self.small_store.contains_blob(id)?)
        } else {
            self.large_storage.touch(id)
        }
    }
}
