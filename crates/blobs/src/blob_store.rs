//! The seam between content and the places that keep blobs.

use std::fs::File;
use std::io::{Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use crate::Result;

/// A place that keeps blobs.
pub trait BlobStore: Send + Sync + std::fmt::Debug {
    /// Stores all bytes of `source` and returns their id. Storing what is there already costs reading it, no space.
    ///
    /// # Errors
    /// [`crate::Error::Source`] if the source fails; other variants if the store does. Nothing is stored then.
    fn put(&self, source: &mut dyn Read) -> Result<BlobId>;

    /// Stores several blobs that belong together, in no more waits for the disk than one would take. Returns their ids
    /// in order; after an error some may be stored.
    ///
    /// # Errors
    /// As [`BlobStore::put`].
    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        blobs.iter().map(|bytes| self.put(&mut &**bytes)).collect()
    }

    /// Stores bytes whose id their sender named. If the blob is there already, they are compared and nothing is written.
    ///
    /// # Errors
    /// [`crate::Error::IdMismatch`] if other bytes came; otherwise as [`BlobStore::put`]. Nothing that content could name
    /// is stored then.
    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        let actual = self.put(source)?;
        if actual == *id { Ok(()) } else { Err(crate::Error::IdMismatch { expected: *id, actual }) }
    }

    /// Tells whether this store holds the blob, and keeps it from garbage collection for as long as a new one: for
    /// those who name it next, without sending its bytes again.
    ///
    /// # Errors
    /// If the store cannot tell.
    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.contains(id)
    }

    /// Opens a blob to read; nothing if this store does not hold it.
    ///
    /// # Errors
    /// If the store cannot tell, or the stored file is damaged: never "nothing" in place of an error.
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>>;

    /// Returns a blob that is in memory; nothing if it would have to be read. Never waits.
    fn find_in_memory(&self, _id: &BlobId) -> Option<Bytes> {
        None
    }

    /// Returns a blob's file, to be sent from; nothing if it does not lie on a disk of this machine, or is kept otherwise.
    /// Its position is not to be relied on, nor moved. Waits for nothing but that disk, as whoever sends from it does.
    fn find_file(&self, _id: &BlobId) -> Option<Arc<File>> {
        None
    }

    /// Tells whether this store holds the blob.
    ///
    /// # Errors
    /// If the store cannot tell.
    fn contains(&self, id: &BlobId) -> Result<bool>;
}

/// Reads a source to its end and returns the id of its bytes.
///
/// # Errors
/// If the source cannot be read.
pub fn compute_blob_id(source: &mut dyn Read) -> std::io::Result<BlobId> {
    let mut hash = Sha256::new();
    let length = std::io::copy(source, &mut HashWriter(&mut hash))?;
    Ok(BlobId::new(hash.finalize().into(), length))
}

/// Hashes what is written to it.
struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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
