//! Reading the files of a place: as many bytes as were listed, or none.

use std::io::Read;

use tympan_blobs::BlobStore;
use tympan_content::BlobId;

use super::source::{Entry, MAX_FILE_BYTES, Source, SourceError};
use crate::worker::chain;

/// What a file gave.
pub(super) enum Fetched {
    /// Its asset has these bytes already.
    Present,
    Blob(BlobId),
    /// Why there are no bytes, and the error if the place may be to blame.
    Failed(String, Option<SourceError>),
}

/// Reads one file into a blob.
pub(super) fn fetch_one(source: &dyn Source, blobs: &dyn BlobStore, entry: &Entry) -> Fetched {
    if entry.bytes.is_some_and(|bytes| bytes > MAX_FILE_BYTES) {
        return Fetched::Failed(format!("it is larger than {MAX_FILE_BYTES} bytes"), None);
    }
    let opened = match source.open(entry) {
        Ok(opened) => opened,
        Err(error) => {
            let is_transient = error.is_transient();
            return Fetched::Failed(chain(&error), is_transient.then_some(error));
        }
    };
    let left = entry.bytes.unwrap_or(MAX_FILE_BYTES);
    let mut reader = Measured { source: opened, left, is_exact: entry.bytes.is_some() };
    match blobs.put(&mut reader) {
        Ok(blob) => Fetched::Blob(blob),
        Err(error) => Fetched::Failed(chain(&error), None),
    }
}

/// Reads no more than was listed, and fails if it is not exactly that.
struct Measured {
    source: Box<dyn Read + Send>,
    left: u64,
    is_exact: bool,
}

impl Read for Measured {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let other = || std::io::Error::other("it has not the length that was listed");
        if self.left == 0 {
            // The end is read, so that whoever compares at the end does.
            return match self.source.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(other()),
            };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.source.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.left -= read as u64;
        if read == 0 && self.is_exact {
            return Err(other());
        }
        Ok(read)
    }
}
