//! The seam between content and the places that keep blobs.

use std::fs::File;
use std::io::{Cursor, Read};

use bytes::Bytes;
use tympan_store::BlobId;

use crate::Result;

/// A place that keeps blobs.
pub trait BlobStore: Send + Sync + std::fmt::Debug {
    /// Stores all bytes of `source` and returns their id. Storing what is there already costs reading it, no space.
    ///
    /// # Errors
    /// [`crate::Error::Source`] if the source fails; other variants if the store does. Nothing is stored then.
    fn put(&self, source: &mut dyn Read) -> Result<BlobId>;

    /// Opens a blob to read; nothing if this store does not hold it.
    ///
    /// # Errors
    /// If the store cannot tell, or the stored file is damaged: never "nothing" in place of an error.
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>>;

    /// Tells whether this store holds the blob.
    ///
    /// # Errors
    /// If the store cannot tell.
    fn contains(&self, id: &BlobId) -> Result<bool>;
}

/// An opened blob.
#[derive(Debug)]
pub enum BlobContent {
    /// A small blob, in memory.
    Bytes(Bytes),
    /// A large blob: its file, positioned at the start, and its length in bytes.
    File {
        /// The open file; it stays readable for as long as it is held.
        file: File,
        /// The length in bytes.
        length: u64,
    },
}

impl BlobContent {
    /// Returns the length in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    /// Returns a reader over the bytes from the start.
    #[must_use]
    pub fn into_reader(self) -> Box<dyn Read + Send> {
        match self {
            Self::Bytes(bytes) => Box::new(Cursor::new(bytes)),
            Self::File { file, length } => Box::new(file.take(length)),
        }
    }
}
