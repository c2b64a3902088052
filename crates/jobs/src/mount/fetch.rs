//! Reading the files of a place: as many bytes as were listed, or none.

use std::io::Read;

use tympan_blobs::BlobStore;
use tympan_content::BlobId;

use super::source::{Entry, MAX_FILE_BYTES, Source, SourceError};
use crate::error::chain;

/// What a file gave.
pub(super) enum Fetched {
    /// Its asset has these bytes already.
    Present,
    Blob(BlobId),
    /// Why there are no bytes, and the error if the place may be to blame.
    Failed(String, Option<SourceError>),
}

/// A file that was read.
pub(super) enum Taken {
    /// A short one, still in memory.
    Short(Vec<u8>),
    /// Any other.
    Done(Fetched),
}

/// Files up to this long are stored together with others of their batch: each alone would wait for the disk.
const SHORT: u64 = 64 << 10;

/// Reads one file: into a blob, or into memory if it is short.
pub(super) fn fetch_one(source: &dyn Source, blobs: &dyn BlobStore, entry: &Entry) -> Taken {
    if entry.bytes.is_none_or(|bytes| bytes > SHORT) {
        return Taken::Done(fetch(source, entry, |reader| blobs.put(reader).map(Fetched::Blob)));
    }
    let mut bytes = Vec::new();
    let read = |reader: &mut dyn Read| match reader.read_to_end(&mut bytes) {
        Ok(_) => Ok(Fetched::Present),
        Err(error) => Err(tympan_blobs::Error::Source(error)),
    };
    match fetch(source, entry, read) {
        failed @ Fetched::Failed(..) => Taken::Done(failed),
        Fetched::Present | Fetched::Blob(_) => Taken::Short(bytes),
    }
}

/// Stores what a batch has read into memory.
pub(super) fn store_short(blobs: &dyn BlobStore, batch: Vec<Taken>) -> Vec<Fetched> {
    let short = batch.iter().filter_map(|one| match one {
        Taken::Short(bytes) => Some(&**bytes),
        Taken::Done(_) => None,
    });
    let stored = blobs.put_all(&short.collect::<Vec<_>>());
    let (stored, failure) = match stored {
        Ok(stored) => (stored, String::new()),
        Err(error) => (Vec::new(), chain(&error)),
    };
    let mut stored = stored.into_iter();
    let finished = batch.into_iter().map(|one| match one {
        Taken::Done(fetched) => fetched,
        Taken::Short(_) => match stored.next() {
            Some(blob) => Fetched::Blob(blob),
            None => Fetched::Failed(failure.clone(), None),
        },
    });
    finished.collect()
}

fn fetch(
    source: &dyn Source,
    entry: &Entry,
    read: impl FnOnce(&mut dyn Read) -> tympan_blobs::Result<Fetched>,
) -> Fetched {
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
    read(&mut reader).unwrap_or_else(|error| Fetched::Failed(chain(&error), None))
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
