//! The base of a clone: the part of a repository that another owner saves.
//!
//! A clone owns only what was written to it. Everything else is below the root of its base that it leases, and the
//! owner of the base saves that. A snapshot of the clone alone names the base in `stores.json`; it can be imported
//! again over that base, or without it if missing content is allowed.
//!
//! Invariant: what a snapshot omits was in the base when the save checked it. If the base cannot be reached, everything
//! that the clone does not have is omitted without a check.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tracing::warn;
use tympan_blobs::ReadBlobs;
use tympan_notation::error_chain_text;
use tympan_store::{BaseStore, BlobId, ChunkId};

use crate::error::{Error, Result};
use crate::inspection::find_path;
use crate::object_id::VaultObjectId;
use crate::vault::IndexedVault;
use crate::vault::snapshot::VaultSnapshot;

/// The file in a snapshot that names its base.
pub(crate) const BASE_STORE_FILE_NAME: &str = "stores.json";
const BASE_STORE_FORMAT_VERSION: u32 = 1;
/// Prefix of the tag of a snapshot that has a base.
const BASE_STORE_TAG_PREFIX: &str = "below:";

/// The base of a clone, as recorded in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseStoreReference {
    /// The folder of the base's home, or the URL of its instance.
    pub from: String,
    /// The root of the base that the clone leases, in hexadecimal digits.
    pub root: String,
    /// The holder of the clone's lease on that root.
    pub holder: String,
}

#[derive(Serialize, Deserialize)]
struct BaseStoreFile {
    format: u32,
    base: BaseStoreReference,
}

impl BaseStoreReference {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let stores = BaseStoreFile { format: BASE_STORE_FORMAT_VERSION, base: self.clone() };
        serde_json::to_vec_pretty(&stores).unwrap_or_default()
    }

    /// Parses the content of [`BASE_STORE_FILE_NAME`].
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let refused =
            |text: String| Error::InvalidRequest(format!("`{BASE_STORE_FILE_NAME}` {text}"));
        let stores: BaseStoreFile = serde_json::from_slice(json)
            .map_err(|error| refused(format!("cannot be parsed: {error}")))?;
        if stores.format != BASE_STORE_FORMAT_VERSION {
            return Err(refused("has an unsupported format version".to_owned()));
        }
        Ok(stores.base)
    }

    /// Returns the tag of a snapshot with this base. Only snapshots with the same tag omit the same parts.
    pub(crate) fn tag(&self) -> String {
        format!("{BASE_STORE_TAG_PREFIX}{}", self.root)
    }
}

/// Returns the base of a repository snapshot; `None` if the snapshot is self-contained.
///
/// # Errors
/// [`Error::InvalidRequest`] if the recorded base cannot be parsed; a failed read.
pub fn find_snapshot_base(
    IndexedVault { vault, index }: IndexedVault<'_>,
    snapshot: &VaultSnapshot,
) -> Result<Option<BaseStoreReference>> {
    let node = match find_path(vault, index, snapshot, BASE_STORE_FILE_NAME) {
        Err(Error::PathMissing { .. }) => return Ok(None),
        result => result?,
    };
    let mut json = Vec::new();
    crate::restore::stream_file(IndexedVault::new(vault, index), &node, &mut json)?;
    BaseStoreReference::parse(&json).map(Some)
}

/// Returns the base of a restored repository snapshot in a folder; `None` if the folder is self-contained.
///
/// # Errors
/// As [`find_snapshot_base`].
pub fn find_folder_base(dir: &std::path::Path) -> Result<Option<BaseStoreReference>> {
    let path = dir.join(BASE_STORE_FILE_NAME);
    match std::fs::read(&path) {
        Ok(json) => BaseStoreReference::parse(&json).map(Some),
        Err(error) if crate::error::is_data_lost(&error) => Ok(None),
        Err(source) => Err(Error::Source { path, source }),
    }
}

/// Returns true if a snapshot has this base, or no base for `None`.
pub(crate) fn has_base(snapshot: &VaultSnapshot, reference: Option<&BaseStoreReference>) -> bool {
    let tag = snapshot.tags().iter().find(|tag| tag.starts_with(BASE_STORE_TAG_PREFIX));
    tag.cloned() == reference.map(BaseStoreReference::tag)
}

/// A base that a save leaves to its owner.
#[derive(Clone, Copy)]
pub struct SeparateBase<'a> {
    /// The reference recorded in the snapshot.
    pub reference: &'a BaseStoreReference,
    /// The stores in which to check that the base has what the clone lacks, if it can be reached.
    pub stores: Option<(&'a dyn BaseStore, &'a dyn ReadBlobs)>,
}

impl std::fmt::Debug for SeparateBase<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SeparateBase").field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// The amount of content that is omitted because it is in the base, or that is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OmittedCounts {
    /// The number of chunks; what is below them is not counted.
    pub chunk_count: u64,
    /// The number of blobs, small and large.
    pub blob_count: u64,
}

/// Checks and counts what a save omits.
pub(crate) struct OmissionTracker<'a> {
    base: Option<SeparateBase<'a>>,
    is_base_unreachable: AtomicBool,
    chunk_count: AtomicU64,
    blob_count: AtomicU64,
}

impl<'a> OmissionTracker<'a> {
    pub(crate) const fn new(below: Option<SeparateBase<'a>>) -> Self {
        let (chunks, blobs) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            base: below,
            is_base_unreachable: AtomicBool::new(false),
            chunk_count: chunks,
            blob_count: blobs,
        }
    }

    /// Returns true if anything may be omitted.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.base.is_some()
    }

    pub(crate) fn counts(&self) -> OmittedCounts {
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        OmittedCounts { chunk_count: count(&self.chunk_count), blob_count: count(&self.blob_count) }
    }

    /// Omits chunks that the repository does not have. Returns those that the base does not have either.
    pub(crate) fn omit_chunks(&self, absent: &[ChunkId]) -> Result<Vec<ChunkId>> {
        let Some((base, _)) = self.base_stores().filter(|_| !absent.is_empty()) else {
            self.chunk_count.fetch_add(absent.len() as u64, Ordering::Relaxed);
            return Ok(Vec::new());
        };
        let there =
            match self.accept_base_result(base.contains_chunks(absent).map_err(Error::Store))? {
                None => vec![true; absent.len()],
                Some(there) => there,
            };
        let lost = absent.iter().zip(there).filter(|(_, is_there)| !is_there);
        let lost: Vec<ChunkId> = lost.map(|(id, _)| *id).collect();
        self.chunk_count.fetch_add((absent.len() - lost.len()) as u64, Ordering::Relaxed);
        Ok(lost)
    }

    /// Omits a blob that the repository does not have. Returns `false` if omission is disabled, or if the base does not
    /// have the blob either.
    pub(crate) fn omit_blob(&self, id: &BlobId) -> Result<bool> {
        if !self.is_enabled() {
            return Ok(false);
        }
        if let Some((base, blobs)) = self.base_stores() {
            let is_small = id.length() < tympan_blobs::SMALL_BLOB_BYTES as u64;
            let is_present = if is_small {
                let read = base.read_blobs(std::slice::from_ref(id)).map_err(Error::Store);
                read.map(|contents| contents.iter().all(Option::is_some))
            } else {
                blobs.contains(id).map_err(Error::Blobs)
            };
            if self.accept_base_result(is_present)? == Some(false) {
                return Ok(false);
            }
        }
        self.blob_count.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn base_stores(&self) -> Option<(&'a dyn BaseStore, &'a dyn ReadBlobs)> {
        let reach = self.base.and_then(|below| below.stores);
        reach.filter(|_| !self.is_base_unreachable.load(Ordering::Relaxed))
    }

    /// Returns a result of the base; `None` if it cannot be reached, which is logged once.
    fn accept_base_result<T>(&self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Err(error) if error.is_transient() => {
                if !self.is_base_unreachable.swap(true, Ordering::Relaxed) {
                    let reason = error_chain_text(&error);
                    warn!(reason, "cannot reach the base; its data is not checked");
                }
                Ok(None)
            }
            result => result.map(Some),
        }
    }
}

/// Returns the name in a fault of a chunk that neither the repository nor its base has.
pub(crate) fn lost_chunk_name(id: &ChunkId) -> String {
    format!("chunk {}", VaultObjectId::from_bytes(*id.as_bytes()))
}
