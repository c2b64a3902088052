//! Files that are uploaded before they become visible.

use super::vault_file::VaultFileKind;
use crate::object_id::VaultObjectId;

/// A file that is uploaded, or ready to be, and is not yet visible under its final name.
#[derive(Debug)]
pub struct StagedFile {
    pub(super) kind: VaultFileKind,
    pub(super) id: VaultObjectId,
    /// Retained until the file is revealed: a backend may lose a file without a final name.
    pub(super) bytes: Vec<u8>,
    /// The temporary name in the backend; `None` if the file is only in memory.
    pub(super) temp_name: Option<String>,
}

impl StagedFile {
    /// Returns a file that exists only in memory.
    #[must_use]
    pub const fn in_memory(kind: VaultFileKind, id: VaultObjectId, bytes: Vec<u8>) -> Self {
        Self { kind, id, bytes, temp_name: None }
    }

    /// Returns the name that the file gets.
    #[must_use]
    pub const fn id(&self) -> VaultObjectId {
        self.id
    }

    /// Returns the kind of the file.
    #[must_use]
    pub const fn kind(&self) -> VaultFileKind {
        self.kind
    }

    /// Returns the bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
