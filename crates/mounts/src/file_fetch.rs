//! Reads the files of a source: as many bytes as were listed, or none.

use std::io::Read;

use tympan_blobs::BlobStore;
use tympan_content::BlobId;
use tympan_notation::error_chain_text;

use crate::mount_source::{MAX_FILE_BYTES, MountSource, MountSourceError, SourceFile};

/// The result of fetching a file.
pub(crate) enum MountFileFetch {
    /// The asset has these bytes already.
    Present,
    Blob(BlobId),
    /// The reason why there are no bytes, and the error if the source may be at fault.
    Failed(String, Option<MountSourceError>),
}

/// The result of reading a file.
pub(crate) enum MountFileRead {
    /// A short file, still in memory.
    InMemory(Vec<u8>),
    /// Any other file.
    Completed(MountFileFetch),
}

/// Maximum length of files that are stored together with others of their batch, in bytes. Each stored singly would wait
/// for the disk.
const MAX_BATCHED_FILE_BYTES: u64 = 64 << 10;

/// Reads one file: into a blob, or into memory if it is short.
pub(crate) fn read_source_file(
    source: &dyn MountSource,
    blobs: &dyn BlobStore,
    entry: &SourceFile,
) -> MountFileRead {
    if entry.byte_count.is_none_or(|bytes| bytes > MAX_BATCHED_FILE_BYTES) {
        return MountFileRead::Completed(fetch_source_file(source, entry, |reader| {
            blobs.put(reader).map(MountFileFetch::Blob)
        }));
    }
    let mut bytes = Vec::new();
    let read = |reader: &mut dyn Read| match reader.read_to_end(&mut bytes) {
        Ok(_) => Ok(MountFileFetch::Present),
        Err(error) => Err(tympan_blobs::Error::Source(error)),
    };
    match fetch_source_file(source, entry, read) {
        failed @ MountFileFetch::Failed(..) => MountFileRead::Completed(failed),
        MountFileFetch::Present | MountFileFetch::Blob(_) => MountFileRead::InMemory(bytes),
    }
}

/// Stores the files that a batch has read into memory.
pub(crate) fn store_in_memory_files(
    blobs: &dyn BlobStore,
    batch: Vec<MountFileRead>,
) -> Vec<MountFileFetch> {
    let short = batch.iter().filter_map(|file_read| match file_read {
        MountFileRead::InMemory(bytes) => Some(&**bytes),
        MountFileRead::Completed(_) => None,
    });
    let stored = blobs.put_all(&short.collect::<Vec<_>>());
    let (stored, failure) = match stored {
        Ok(stored) => (stored, String::new()),
        Err(error) => (Vec::new(), error_chain_text(&error)),
    };
    let mut stored = stored.into_iter();
    let finished = batch.into_iter().map(|file_read| match file_read {
        MountFileRead::Completed(fetched) => fetched,
        MountFileRead::InMemory(_) => match stored.next() {
            Some(blob) => MountFileFetch::Blob(blob),
            None => MountFileFetch::Failed(failure.clone(), None),
        },
    });
    finished.collect()
}

fn fetch_source_file(
    source: &dyn MountSource,
    entry: &SourceFile,
    read: impl FnOnce(&mut dyn Read) -> tympan_blobs::Result<MountFileFetch>,
) -> MountFileFetch {
    if entry.byte_count.is_some_and(|bytes| bytes > MAX_FILE_BYTES) {
        return MountFileFetch::Failed(format!("it is larger than {MAX_FILE_BYTES} bytes"), None);
    }
    let opened = match source.open_file(entry) {
        Ok(opened) => opened,
        Err(error) => {
            let is_transient = error.is_transient();
            return MountFileFetch::Failed(error_chain_text(&error), is_transient.then_some(error));
        }
    };
    let left = entry.byte_count.unwrap_or(MAX_FILE_BYTES);
    let mut reader =
        ExactLengthReader { source: opened, remaining: left, is_exact: entry.byte_count.is_some() };
    read(&mut reader).unwrap_or_else(|error| MountFileFetch::Failed(error_chain_text(&error), None))
}

/// A reader that reads at most the listed number of bytes, and fails if the length differs.
struct ExactLengthReader {
    source: Box<dyn Read + Send>,
    remaining: u64,
    is_exact: bool,
}

impl Read for ExactLengthReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let length_error = || std::io::Error::other("its length differs from the listed length");
        if self.remaining == 0 {
            // The end is read as well, so that an inner reader that compares at the end does so.
            return match self.source.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(length_error()),
            };
        }
        let most = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.source.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.remaining -= read as u64;
        if read == 0 && self.is_exact {
            return Err(length_error());
        }
        Ok(read)
    }
}
