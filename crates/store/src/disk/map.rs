//! The whole content of a file: mapped into memory, or a copy.

use std::io;
use std::ops::Deref;

use bytes::Bytes;
use memmap2::Mmap;

/// The whole content of a file.
#[derive(Debug)]
pub struct Mapped(Content);

#[derive(Debug)]
enum Content {
    File(Mmap),
    Copy(Bytes),
}

impl Mapped {
    /// Maps a file that is never cut while the map lives.
    pub(super) fn file(file: &std::fs::File) -> io::Result<Self> {
        if file.metadata()?.len() == 0 {
            return Ok(Self::copy(Bytes::new()));
        }
        // SAFETY: this crate maps index files, which are immutable once renamed into place, and packs, which only grow.
        // Packs are mapped by the process that holds the lock of the folder alone: during recovery nobody cuts them
        // while the map lives, and a survey reads no further than a length that is never cut away.
        #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; see SAFETY")]
        let map = unsafe { Mmap::map(file)? };
        Ok(Self(Content::File(map)))
    }

    /// Wraps a copy of the content.
    #[must_use]
    pub fn copy(bytes: impl Into<Bytes>) -> Self {
        Self(Content::Copy(bytes.into()))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Content::File(map) => map,
            Content::Copy(bytes) => bytes,
        }
    }
}
