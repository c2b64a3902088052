//! An append-only vault backend: existing files are never removed or replaced, whatever the process that uses the
//! backend tries to do.
//!
//! Locks can be removed, because each process writes and removes its own.
//!
//! Not here: protection against someone who has the credentials of the storage itself; that is up to the storage's
//! access rights.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::staged_file::StagedFile;
use super::vault_backend::VaultBackend;
use super::vault_file::{VaultFileKind, VaultFileListing};
use super::wrapper::BackendWrapper;
use crate::object_id::VaultObjectId;

/// A backend that refuses to remove or replace any file except locks.
#[derive(Debug)]
pub struct AppendOnlyBackend {
    inner: Arc<dyn VaultBackend>,
}

impl AppendOnlyBackend {
    /// Wraps a backend.
    #[must_use]
    pub const fn new(inner: Arc<dyn VaultBackend>) -> Self {
        Self { inner }
    }
}

fn append_only_error(text: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("the vault is opened append-only: {text}"))
}

impl BackendWrapper for AppendOnlyBackend {
    fn inner(&self) -> &dyn VaultBackend {
        &*self.inner
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        // The config is the only file whose name is not the hash of its bytes.
        if kind == VaultFileKind::Config && self.inner.contains(kind, id)? {
            return Err(append_only_error("its `config` cannot be replaced"));
        }
        self.inner.write(kind, id, bytes)
    }

    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        self.inner.stage(kind, id, bytes)
    }

    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        match staged.kind {
            VaultFileKind::Config => {
                BackendWrapper::write(self, staged.kind, &staged.id, &staged.bytes)
            }
            _ => self.inner.reveal(staged),
        }
    }

    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        if staged.kind == VaultFileKind::Config {
            return Err(append_only_error("its `config` cannot be replaced"));
        }
        self.inner.reveal_then_list(staged, kinds)
    }

    fn discard(&self, staged: &StagedFile) {
        self.inner.discard(staged);
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        match kind {
            VaultFileKind::Lock => self.inner.remove(kind, id),
            _ => Err(append_only_error("nothing can be removed from it")),
        }
    }

    fn remove_folders(&self) -> io::Result<()> {
        Err(append_only_error("nothing can be removed from it"))
    }
}
