//! Files that are brought to a place before they may be seen there.

use super::VaultFileKind;
use crate::object_id::VaultObjectId;

/// A file that is in a place, or ready to be, and not there under its name yet.
#[derive(Debug)]
pub struct StagedFile {
    pub(super) kind: VaultFileKind,
    pub(super) id: VaultObjectId,
    /// Kept until the file has appeared: a place may lose what has no name.
    pub(super) bytes: Vec<u8>,
    /// What it is called in the place meanwhile; nothing if it is only here.
    pub(super) temp_name: Option<String>,
}

impl StagedFile {
    /// Returns a file that is only here.
    #[must_use]
    pub const fn in_memory(kind: VaultFileKind, id: VaultObjectId, bytes: Vec<u8>) -> Self {
        Self { kind, id, bytes, temp_name: None }
    }

    /// Returns the name that it will have.
    #[must_use]
    pub const fn id(&self) -> VaultObjectId {
        self.id
    }

    /// Returns what kind of file it is.
    #[must_use]
    pub const fn kind(&self) -> VaultFileKind {
        self.kind
    }

    /// Returns its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
