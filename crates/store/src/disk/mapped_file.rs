//! The whole content of a file: mapped into memory, or a copy.

use std::io;
use std::ops::Deref;

use bytes::Bytes;
use memmap2::Mmap;

/// The whole content of a file.
#[derive(Debug)]
pub struct MappedFile(MappedContent);

#[derive(Debug)]
enum MappedContent {
    File(Mmap),
    Copy(Bytes),
}

impl MappedFile {
    /// Maps a file, which must not be truncated while the map exists.
    pub(super) fn map_file(file: &std::fs::File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::from_copy(Bytes::new()));
        }
        // SAFETY: this crate maps index files, which are immutable once renamed into place, and packs, which only grow.
        // Packs are mapped by the process that holds the lock of the folder alone: during recovery nobody cuts them
        // while the map lives, and a survey reads no further than a length that is never cut away.
        #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; see SAFETY")]
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(MappedContent::File(map)))
    }

    /// Creates content from a copy of the bytes.
    #[must_use]
    pub fn from_copy(bytes: impl Into<Bytes>) -> Self {
        Self(MappedContent::Copy(bytes.into()))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            MappedContent::File(map) => map,
            MappedContent::Copy(bytes) => bytes,
        }
    }
}
