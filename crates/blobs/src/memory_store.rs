//! Blobs in memory: for tests and for repositories that are not persisted.

use std::collections::HashMap;
use std::io::Read;

use bytes::Bytes;
use parking_lot::RwLock;
use tympan_store::BlobId;

use crate::{BlobContent, BlobStore, Error, Result};

/// A blob store whose content is lost on drop.
#[derive(Debug, Default)]
pub struct MemoryBlobStore(RwLock<HashMap<BlobId, Bytes>>);

impl BlobStore for MemoryBlobStore {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).map_err(Error::Source)?;
        let id = BlobId::hash_of(&bytes);
        self.0.write().insert(id, bytes.into());
        Ok(id)
    }

    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        Ok(self.0.read().get(id).cloned().map(BlobContent::Bytes))
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        Ok(self.0.read().contains_key(id))
    }
}
