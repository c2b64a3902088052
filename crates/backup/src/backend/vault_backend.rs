//! The trait of every backend.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::staged_file::StagedFile;
use super::vault_file::{VaultFileKind, VaultFileListing};
use crate::object_id::VaultObjectId;

/// Storage for the files of a vault.
pub trait VaultBackend: Send + Sync + fmt::Debug {
    /// Returns the location as shown to users.
    fn location(&self) -> String;

    /// Returns the number of concurrent calls that is worthwhile.
    fn connections(&self) -> usize {
        2
    }

    /// Returns true if each call costs a round trip to another machine.
    fn is_remote(&self) -> bool {
        false
    }

    /// Creates the folders of a new vault in an empty location.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the location is not empty; otherwise any I/O error of the system.
    fn create(&self) -> io::Result<()>;

    /// Lists the files of a kind with their lengths, in no order. Files with other names are skipped.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>>;

    /// Returns true if the file exists.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        Ok(self.list(kind)?.iter().any(|(listed_id, _)| listed_id == id))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or any other I/O error of the system.
    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>>;

    /// Reads a range of a file.
    ///
    /// # Errors
    /// As [`VaultBackend::read`]; [`io::ErrorKind::UnexpectedEof`] if the file is shorter.
    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>>;

    /// Creates a file, durably.
    ///
    /// # Errors
    /// Any I/O error of the system; the file does not exist then.
    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()>;

    /// Uploads a file without its final name: it is not visible until it is revealed. This way files that must appear
    /// in order can be uploaded concurrently. A backend without this feature retains the bytes in memory until then.
    ///
    /// # Errors
    /// Any I/O error of the system; nothing is stored then.
    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        Ok(StagedFile::in_memory(kind, *id, bytes))
    }

    /// Makes a staged file visible under its final name, complete and durable.
    ///
    /// # Errors
    /// As [`VaultBackend::write`].
    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        self.write(staged.kind, &staged.id, &staged.bytes)
    }

    /// Reveals a staged file and then lists files of some kinds, which may save one round trip: a file that existed by
    /// then is listed unless it was removed since.
    ///
    /// # Errors
    /// As [`VaultBackend::reveal`]; for each kind as [`VaultBackend::list`].
    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        self.reveal(staged)?;
        let list = |kind: &VaultFileKind| self.list(*kind);
        if !self.is_remote() {
            return Ok(kinds.iter().map(list).collect());
        }
        Ok(std::thread::scope(|scope| {
            let lists: Vec<_> = kinds.iter().map(|kind| scope.spawn(move || list(kind))).collect();
            let stopped = |_| Err(io::ErrorKind::Interrupted.into());
            lists.into_iter().map(|list| list.join().unwrap_or_else(stopped)).collect()
        }))
    }

    /// Removes a staged file that is not to be revealed, on a best-effort basis.
    fn discard(&self, staged: &StagedFile) {
        let _ = staged;
    }

    /// Announces up to `files` short writes in the near future: a backend may prepare for them in the background.
    fn expect_writes(&self, files: usize) {
        let _ = files;
    }

    /// Announces that no more writes follow soon: the backend releases what it prepared.
    fn expect_no_writes(&self) {}

    /// Removes a file; a missing file is not an error.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()>;

    /// Removes files that crashed writers left, as far as it is certain that they are no longer being written.
    ///
    /// # Errors
    /// If a leftover file cannot be removed.
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let _ = now;
        Ok(())
    }

    /// Removes the folders of a vault whose files were all removed and that is not in use, including leftover temporary
    /// files. A folder with foreign files stays; a backend without folders does nothing.
    ///
    /// # Errors
    /// The error of the system for what could not be removed.
    fn remove_folders(&self) -> io::Result<()> {
        Ok(())
    }
}
