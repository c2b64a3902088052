//! Backends that wrap another one and change part of its behavior.

use std::fmt;
use std::io;
use std::time::SystemTime;

use super::staged_file::StagedFile;
use super::vault_backend::VaultBackend;
use super::vault_file::{VaultFileKind, VaultFileListing};
use crate::object_id::VaultObjectId;

/// A backend around another one; methods that it does not define are forwarded to the inner one.
///
/// Each method is that of [`VaultBackend`] with the same name.
pub trait BackendWrapper: Send + Sync + fmt::Debug {
    /// Returns the inner backend.
    fn inner(&self) -> &dyn VaultBackend;

    /// As [`VaultBackend::connections`].
    fn connections(&self) -> usize {
        self.inner().connections()
    }

    /// As [`VaultBackend::is_remote`].
    fn is_remote(&self) -> bool {
        self.inner().is_remote()
    }

    /// As [`VaultBackend::create`].
    fn create(&self) -> io::Result<()> {
        self.inner().create()
    }

    /// As [`VaultBackend::list`].
    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        self.inner().list(kind)
    }

    /// As [`VaultBackend::contains`].
    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        self.inner().contains(kind, id)
    }

    /// As [`VaultBackend::read`].
    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        self.inner().read(kind, id)
    }

    /// As [`VaultBackend::read_range`].
    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        self.inner().read_range(kind, id, start, length)
    }

    /// As [`VaultBackend::write`].
    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        self.inner().write(kind, id, bytes)
    }

    /// As [`VaultBackend::stage`]. An implementation that overrides [`BackendWrapper::write`] receives the file when it
    /// is revealed, unless it forwards these four methods as well.
    ///
    /// # Errors
    /// As [`VaultBackend::stage`].
    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        Ok(StagedFile::in_memory(kind, *id, bytes))
    }

    /// As [`VaultBackend::reveal`].
    ///
    /// # Errors
    /// As [`VaultBackend::reveal`].
    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        BackendWrapper::write(self, staged.kind, &staged.id, &staged.bytes)
    }

    /// As [`VaultBackend::reveal_then_list`].
    ///
    /// # Errors
    /// As [`VaultBackend::reveal_then_list`].
    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        BackendWrapper::reveal(self, staged)?;
        Ok(kinds.iter().map(|kind| BackendWrapper::list(self, *kind)).collect())
    }

    /// As [`VaultBackend::discard`].
    fn discard(&self, staged: &StagedFile) {
        let _ = staged;
    }

    /// As [`VaultBackend::expect_writes`].
    fn expect_writes(&self, files: usize) {
        self.inner().expect_writes(files);
    }

    /// As [`VaultBackend::expect_no_writes`].
    fn expect_no_writes(&self) {
        self.inner().expect_no_writes();
    }

    /// As [`VaultBackend::remove`].
    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        self.inner().remove(kind, id)
    }

    /// As [`VaultBackend::remove_leftovers`].
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        self.inner().remove_leftovers(now)
    }

    /// As [`VaultBackend::remove_folders`].
    fn remove_folders(&self) -> io::Result<()> {
        self.inner().remove_folders()
    }
}

impl<T: BackendWrapper> VaultBackend for T {
    fn location(&self) -> String {
        self.inner().location()
    }

    fn connections(&self) -> usize {
        BackendWrapper::connections(self)
    }

    fn is_remote(&self) -> bool {
        BackendWrapper::is_remote(self)
    }

    fn create(&self) -> io::Result<()> {
        BackendWrapper::create(self)
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        BackendWrapper::list(self, kind)
    }

    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        BackendWrapper::contains(self, kind, id)
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        BackendWrapper::read(self, kind, id)
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        BackendWrapper::read_range(self, kind, id, start, length)
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        BackendWrapper::write(self, kind, id, bytes)
    }

    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        BackendWrapper::stage(self, kind, id, bytes)
    }

    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        BackendWrapper::reveal(self, staged)
    }

    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        BackendWrapper::reveal_then_list(self, staged, kinds)
    }

    fn discard(&self, staged: &StagedFile) {
        BackendWrapper::discard(self, staged);
    }

    fn expect_writes(&self, files: usize) {
        BackendWrapper::expect_writes(self, files);
    }

    fn expect_no_writes(&self) {
        BackendWrapper::expect_no_writes(self);
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        BackendWrapper::remove(self, kind, id)
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        BackendWrapper::remove_leftovers(self, now)
    }

    fn remove_folders(&self) -> io::Result<()> {
        BackendWrapper::remove_folders(self)
    }
}
