//! Blobs in packs: their kind, where they are, and their entry in an index file.

use serde::{Deserialize, Serialize};

use crate::object_id::VaultObjectId;
use crate::vault_encryption::SEAL_OVERHEAD_BYTES;

/// The kind of a blob in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PackBlobKind {
    /// A piece of a file.
    Data,
    /// A folder.
    Tree,
}

impl PackBlobKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Data => "piece",
            Self::Tree => "folder",
        }
    }
}

/// The location of a blob.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackBlobLocation {
    /// The number of the pack.
    pub(super) pack: u32,
    /// The offset of the blob in the pack.
    pub(crate) offset: u32,
    /// The sealed length.
    pub(crate) length: u32,
    /// The plain length if the blob is compressed, or 0.
    pub(crate) uncompressed_length: u32,
}

impl PackBlobLocation {
    /// Returns the plain length.
    pub(super) fn plain_length(&self) -> u64 {
        match self.uncompressed_length {
            0 => u64::from(self.length).saturating_sub(SEAL_OVERHEAD_BYTES as u64),
            raw => raw.into(),
        }
    }

    /// Returns the location of a blob with an arbitrary pack number.
    pub(super) fn from_stored(blob: &StoredBlob) -> Self {
        let raw = blob.uncompressed_length.unwrap_or(0);
        Self { pack: 0, offset: blob.offset, length: blob.length, uncompressed_length: raw }
    }
}

/// The stored form of a blob in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredBlob {
    pub(crate) id: VaultObjectId,
    #[serde(rename = "type")]
    pub(crate) kind: PackBlobKind,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uncompressed_length: Option<u32>,
}
