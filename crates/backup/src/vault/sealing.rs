//! The sealing of a vault's files: compressed, then encrypted with its key.

use std::io;

use serde::Serialize;

use super::pack_blob::{PackBlobKind, PackBlobLocation, StoredBlob};
use crate::backend::VaultFileKind;
use crate::compression::{
    CompressionMode, compress_append, compress_json_append, decompress, decompress_unsized,
};
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;
use crate::vault_encryption::VaultKey;

/// Marks a sealed file that is compressed.
const COMPRESSED_FILE_MARKER: u8 = 2;
/// Maximum decompressed length of a piece or folder.
const MAX_BLOB_BYTES: usize = 1 << 30;

/// Seals and opens the files of a vault.
#[derive(Clone, Debug)]
pub(crate) struct VaultSealing {
    key: VaultKey,
    /// The version of the vault's format; version 1 has no compression.
    format_version: u32,
    compression: CompressionMode,
}

impl VaultSealing {
    /// Seals with this key, as the format of this version does.
    pub(super) fn new(key: VaultKey, format_version: u32) -> Self {
        Self { key, format_version, compression: CompressionMode::default() }
    }

    /// Returns the key.
    pub(super) const fn key(&self) -> &VaultKey {
        &self.key
    }

    /// Sets the compression of later writes.
    pub(super) const fn set_compression(&mut self, compression: CompressionMode) {
        self.compression = compression;
    }

    /// Seals JSON while it is serialized.
    pub(crate) fn seal_json<T: Serialize>(
        &self,
        kind: VaultFileKind,
        value: &T,
    ) -> Result<Vec<u8>> {
        let mut sealed = Vec::new();
        self.key.seal_appended(&mut sealed, |out| {
            let encoded = if self.format_version == 1 {
                serde_json::to_writer(out, value).map_err(io::Error::from)
            } else {
                out.push(COMPRESSED_FILE_MARKER);
                compress_json_append(value, self.compression, out)
            };
            encoded
                .map_err(|error| Error::InvalidRequest(format!("cannot encode a {kind}: {error}")))
        })?;
        Ok(sealed)
    }

    /// Seals a piece or a folder for a pack into a buffer; returns the plain length if it is compressed.
    pub(super) fn seal_blob(
        &self,
        kind: PackBlobKind,
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u32>> {
        let is_compressed = self.format_version > 1
            && (kind == PackBlobKind::Tree || self.compression != CompressionMode::Off);
        let compression = match kind {
            PackBlobKind::Data => self.compression,
            PackBlobKind::Tree => self.compression.for_folders(),
        };
        self.key.seal_appended(out, |out| {
            let before = out.len();
            let packed =
                if is_compressed { compress_append(plain, compression, out) } else { None };
            if packed.is_some_and(|length| length < plain.len() || kind == PackBlobKind::Tree) {
                return Ok(Some(u32::try_from(plain.len()).unwrap_or(u32::MAX)));
            }
            out.truncate(before);
            out.extend_from_slice(plain);
            Ok(None)
        })
    }

    /// Opens a blob cut from a pack, and verifies it against its id.
    pub(crate) fn open_blob(
        &self,
        kind: PackBlobKind,
        id: &VaultObjectId,
        location: PackBlobLocation,
        sealed: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let damaged = |fault: &str| Error::UnreadableBlob {
            what: kind.name(),
            id: *id,
            fault: fault.to_owned(),
        };
        let bytes = self.key.open(sealed).ok_or_else(|| damaged("it cannot be decrypted"))?;
        let plain = match location.uncompressed_length {
            0 => bytes,
            raw => decompress(&bytes, (raw as usize).min(MAX_BLOB_BYTES))
                .ok_or_else(|| damaged("it cannot be decompressed"))?,
        };
        if VaultObjectId::of(&plain) != *id {
            return Err(damaged("its content does not match its hash"));
        }
        Ok(plain)
    }

    pub(crate) fn open_bytes(&self, sealed: Vec<u8>) -> Option<Vec<u8>> {
        self.key.open(sealed)
    }

    pub(crate) fn seal_bytes(&self, plain: &[u8]) -> Result<Vec<u8>> {
        self.key.seal(plain)
    }

    /// Opens a blob given by its index entry.
    pub(crate) fn open_stored_blob(&self, blob: &StoredBlob, sealed: Vec<u8>) -> Result<Vec<u8>> {
        self.open_blob(blob.kind, &blob.id, PackBlobLocation::from_stored(blob), sealed)
    }
}

/// Returns the content of an unsealed file: as it is, or decompressed to at most `limit` bytes.
pub(crate) fn unpack_file(bytes: Vec<u8>, limit: usize) -> Result<Vec<u8>, &'static str> {
    match bytes.split_first() {
        Some((b'{' | b'[', _)) => Ok(bytes),
        Some((&COMPRESSED_FILE_MARKER, packed)) => {
            decompress_unsized(packed, limit).ok_or("it cannot be decompressed")
        }
        _ => Err("its encoding is unknown"),
    }
}
