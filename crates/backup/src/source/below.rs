//! What a repository stands on and somebody else saves: the base of a clone.
//!
//! A clone has of its own what was written to it. All else is below the root of its base that it leases, and that base's
//! owner saves it. A snapshot of the clone alone names the base in `stores.json`; it becomes a repository again over that base,
//! or over nothing if what is missing is allowed to be.
//!
//! Invariant: what a snapshot leaves out was in the base when the save looked for it. A base that cannot be reached cannot be
//! asked; then it is what the clone does not have.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tracing::warn;
use tympan_blobs::ReadBlobs;
use tympan_store::{Base, BlobId, ChunkId};

use crate::error::{Error, Result};
use crate::id::Id;
use crate::look::find_path;
use crate::vault::Vault;
use crate::vault::index::Index;
use crate::vault::snapshot::Snapshot;

/// Where a snapshot names what it stands on.
pub(crate) const STORES: &str = "stores.json";
const FORMAT: u32 = 1;
/// What the tag of a snapshot begins with that stands on something.
const TAG: &str = "below:";

/// The base of a clone, as a snapshot names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreReference {
    /// The folder of its home, or the URL of its instance.
    pub from: String,
    /// The root of it that the clone stands on, in hexadecimal digits.
    pub root: String,
    /// Who holds the clone's lease on that root.
    pub holder: String,
}

#[derive(Serialize, Deserialize)]
struct Stores {
    format: u32,
    base: StoreReference,
}

impl StoreReference {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let stores = Stores { format: FORMAT, base: self.clone() };
        serde_json::to_vec_pretty(&stores).unwrap_or_default()
    }

    /// Understands what [`STORES`] says.
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        let refused = |text: String| Error::Refused(format!("`{STORES}` {text}"));
        let stores: Stores = serde_json::from_slice(json)
            .map_err(|error| refused(format!("cannot be understood: {error}")))?;
        if stores.format != FORMAT {
            return Err(refused("has a format that this version does not know".to_owned()));
        }
        Ok(stores.base)
    }

    /// Returns the tag of a snapshot that stands on it. Only such snapshots have the same parts left out.
    pub(crate) fn tag(&self) -> String {
        format!("{TAG}{}", self.root)
    }
}

/// Returns what a snapshot of a repository stands on; nothing if it holds all.
///
/// # Errors
/// [`Error::Refused`] if what it says cannot be understood; a failed read.
pub fn stands_on(
    (vault, index): (&Vault, &Index),
    snapshot: &Snapshot,
) -> Result<Option<StoreReference>> {
    let node = match find_path(vault, index, snapshot, STORES) {
        Err(Error::PathMissing { .. }) => return Ok(None),
        found => found?,
    };
    let mut json = Vec::new();
    crate::restore::stream((vault, index), &node, &mut json)?;
    StoreReference::parse(&json).map(Some)
}

/// Returns what a folder stands on that a snapshot of a repository was restored into; nothing if it holds all.
///
/// # Errors
/// As [`stands_on`].
pub fn folder_stands_on(dir: &std::path::Path) -> Result<Option<StoreReference>> {
    let path = dir.join(STORES);
    match std::fs::read(&path) {
        Ok(json) => StoreReference::parse(&json).map(Some),
        Err(error) if crate::error::is_lost(&error) => Ok(None),
        Err(source) => Err(Error::Source { path, source }),
    }
}

/// Tells whether a snapshot stands on this, or on nothing.
pub(crate) fn is_on(snapshot: &Snapshot, reference: Option<&StoreReference>) -> bool {
    let tag = snapshot.tags().iter().find(|tag| tag.starts_with(TAG));
    tag.cloned() == reference.map(StoreReference::tag)
}

/// A base that a save leaves to its owner.
#[derive(Clone, Copy)]
pub struct Below<'a> {
    /// What the snapshot says of it.
    pub reference: &'a StoreReference,
    /// Where it is looked whether the base has what the clone does not have, if it can be reached.
    pub reach: Option<(&'a dyn Base, &'a dyn ReadBlobs)>,
}

impl std::fmt::Debug for Below<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Below").field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// How much is left to the owner of what a repository stands on, or is missing, among all that was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Chunks; what is below them is not counted.
    pub chunks: u64,
    /// Blobs, small and large.
    pub blobs: u64,
}

/// Counts what is left out by a save, and looks it up.
pub(crate) struct Leaving<'a> {
    below: Option<Below<'a>>,
    is_away: AtomicBool,
    chunks: AtomicU64,
    blobs: AtomicU64,
}

impl<'a> Leaving<'a> {
    pub(crate) const fn new(below: Option<Below<'a>>) -> Self {
        let (chunks, blobs) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { below, is_away: AtomicBool::new(false), chunks, blobs }
    }

    /// Tells whether anything is left out at all.
    pub(crate) const fn is_any(&self) -> bool {
        self.below.is_some()
    }

    pub(crate) fn counts(&self) -> LeftOut {
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        LeftOut { chunks: count(&self.chunks), blobs: count(&self.blobs) }
    }

    /// Leaves chunks out that the repository does not have. Returns those that the base does not have either.
    pub(crate) fn chunks(&self, absent: &[ChunkId]) -> Result<Vec<ChunkId>> {
        let Some((base, _)) = self.reach().filter(|_| !absent.is_empty()) else {
            self.chunks.fetch_add(absent.len() as u64, Ordering::Relaxed);
            return Ok(Vec::new());
        };
        let there = match self.looked_up(base.contains_many(absent).map_err(Error::Store))? {
            None => vec![true; absent.len()],
            Some(there) => there,
        };
        let lost = absent.iter().zip(there).filter(|(_, is_there)| !is_there);
        let lost: Vec<ChunkId> = lost.map(|(id, _)| *id).collect();
        self.chunks.fetch_add((absent.len() - lost.len()) as u64, Ordering::Relaxed);
        Ok(lost)
    }

    /// Leaves a blob out that the repository does not have, unless nothing is left out, or the base does not have it either:
    /// then `false`.
    pub(crate) fn blob(&self, id: &BlobId) -> Result<bool> {
        if !self.is_any() {
            return Ok(false);
        }
        if let Some((base, blobs)) = self.reach() {
            let is_small = id.length() < tympan_blobs::SMALL_BYTES as u64;
            let found = if is_small {
                let read = base.read_blobs(std::slice::from_ref(id)).map_err(Error::Store);
                read.map(|found| found.iter().all(Option::is_some))
            } else {
                blobs.contains(id).map_err(Error::Blobs)
            };
            if self.looked_up(found)? == Some(false) {
                return Ok(false);
            }
        }
        self.blobs.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn reach(&self) -> Option<(&'a dyn Base, &'a dyn ReadBlobs)> {
        let reach = self.below.and_then(|below| below.reach);
        reach.filter(|_| !self.is_away.load(Ordering::Relaxed))
    }

    /// Passes an answer of the base on; nothing if it cannot be reached, which is told once.
    fn looked_up<T>(&self, answer: Result<T>) -> Result<Option<T>> {
        match answer {
            Err(error) if error.is_transient() => {
                if !self.is_away.swap(true, Ordering::Relaxed) {
                    let reason = crate::chain(&error);
                    warn!(reason, "the base cannot be asked: what is left to it is not looked up");
                }
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }
}

/// Returns the name that a fault has for something that neither the repository nor its base holds.
pub(crate) fn lost_chunk(id: &ChunkId) -> String {
    format!("chunk {}", Id::from_bytes(*id.as_bytes()))
}
