//! Blobs of a home that lies over another one: its own first, then those of the base, which is only read.
//!
//! What is put is kept by the own store, also where the base holds it: the base may drop it one day.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tympan_store::BlobId;

use crate::local::{SMALL_BYTES, exists_in, open_in};
use crate::{BlobContent, BlobStore, LocalBlobs, ReadBlobs, Result};

/// The large blobs in the folder `blobs` of another home. Nothing in it is touched.
#[derive(Debug)]
pub struct FolderBlobs {
    dir: PathBuf,
}

impl FolderBlobs {
    /// Reads from a folder; one that does not exist holds nothing.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }
}

impl ReadBlobs for FolderBlobs {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        open_in(&self.dir, id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        exists_in(&self.dir, id)
    }
}

/// Own blobs over those of a base. The small ones of both lie in the chunk store.
#[derive(Debug)]
pub struct LayeredBlobs {
    own: LocalBlobs,
    base: Arc<dyn ReadBlobs>,
}

impl LayeredBlobs {
    /// Lays `own` over `base`.
    #[must_use]
    pub fn new(own: LocalBlobs, base: Arc<dyn ReadBlobs>) -> Self {
        Self { own, base }
    }
}

impl BlobStore for LayeredBlobs {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        self.own.put(source)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        self.own.put_all(blobs)
    }

    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        match self.own.open(id)? {
            Some(content) => Ok(Some(content)),
            None if id.length() < SMALL_BYTES as u64 => Ok(None),
            None if self.base.is_remote() => match self.base.open(id)? {
                Some(content) => {
                    let actual = self.own.put(&mut content.into_reader())?;
                    self.own.open(&actual)
                }
                None => Ok(None),
            },
            None => self.base.open(id),
        }
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        let is_small = id.length() < SMALL_BYTES as u64;
        Ok(self.own.contains(id)? || (!is_small && self.base.contains(id)?))
    }
}
