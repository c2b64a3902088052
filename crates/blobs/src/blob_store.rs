//! The trait through which content accesses blob storage.

use std::fs::File;
use std::io::{Cursor, Read};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tympan_store::BlobId;

use crate::Result;

/// A store of blobs.
pub trait BlobStore: Send + Sync + std::fmt::Debug {
    /// Stores all bytes of `source` and returns their id. Storing an existing blob costs reading the source, but no
    /// space.
    ///
    /// # Errors
    /// [`crate::Error::Source`] if the source fails; other variants if the store does. Nothing is stored then.
    fn put(&self, source: &mut dyn Read) -> Result<BlobId>;

    /// Stores several blobs that belong together, with no more disk syncs than one blob would take. Returns their ids
    /// in order; after an error some may be stored.
    ///
    /// # Errors
    /// As [`BlobStore::put`].
    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        blobs.iter().map(|bytes| self.put(&mut &**bytes)).collect()
    }

    /// Stores bytes whose id was given by the sender. If the blob exists, the bytes are compared and nothing is
    /// written.
    ///
    /// # Errors
    /// [`crate::Error::IdMismatch`] if the bytes have another id; otherwise as [`BlobStore::put`]. Nothing that content
    /// could refer to is stored then.
    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        let actual = self.put(source)?;
        if actual == *id { Ok(()) } else { Err(crate::Error::IdMismatch { expected: *id, actual }) }
    }

    /// Returns true if this store has the blob, and protects it from garbage collection for as long as a new one: for
    /// callers that refer to it next, without sending its bytes again.
    ///
    /// # Errors
    /// If the store cannot tell.
    fn touch(&self, id: &BlobId) -> Result<bool> {
        self.contains(id)
    }

    /// Opens a blob for reading; `None` if this store does not have it.
    ///
    /// # Errors
    /// If the store cannot tell, or the stored file is damaged: never `None` in place of an error.
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>>;

    /// Returns a blob that is in memory; `None` if it would have to be read. Never blocks.
    fn find_in_memory(&self, _id: &BlobId) -> Option<Bytes> {
        None
    }

    /// Returns a blob's file, to be sent from; `None` if it is not a file on a local disk. The file position is
    /// unspecified, and must not be changed. Blocks only on that disk, as sending from the file does.
    fn find_file(&self, _id: &BlobId) -> Option<Arc<File>> {
        None
    }

    /// Returns true if this store has the blob.
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
        /// The open file; it stays readable as long as it is open.
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
