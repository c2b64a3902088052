//! A backend that is read and never written: the run counts what it would write, and the backend drops it.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::vault_backend::VaultBackend;
use super::vault_file::VaultFileKind;
use super::wrapper::BackendWrapper;
use crate::object_id::VaultObjectId;

/// Reads from the inner backend and discards writes.
#[derive(Debug)]
pub(crate) struct DryRunBackend(pub(crate) Arc<dyn VaultBackend>);

impl BackendWrapper for DryRunBackend {
    fn inner(&self) -> &dyn VaultBackend {
        &*self.0
    }

    fn create(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn write(&self, _: VaultFileKind, _: &VaultObjectId, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn expect_writes(&self, _: usize) {}

    fn remove(&self, _: VaultFileKind, _: &VaultObjectId) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove_leftovers(&self, _: SystemTime) -> io::Result<()> {
        Ok(())
    }

    fn remove_folders(&self) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}
