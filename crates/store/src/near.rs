//! The folder beside the process in which chunks that were read stay at hand: a cache between memory and a database, or
//! another instance. Small blobs are kept, too, where they are asked for.
//!
//! Two local stores, a young and an old one. Chunks go to the young one; when it is full, the old one is removed and
//! the young one takes its place. A chunk that is found in the old one moves to the young one.
//!
//! On failure: what is damaged or cannot be written is as if it were not there, and the folder starts anew.
//!
//! Not here: verification, which the local stores do with every read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::batch::Batch;
use crate::byte_size::ByteSize;
use crate::chunk::Chunk;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::disk::FileDisk;
use crate::error::Error;
use crate::id::{BlobId, ChunkId};
use crate::local::{LocalOptions, LocalStore};
use crate::postgres::NearCache;

/// The cache in a folder.
#[derive(Debug)]
pub(crate) struct Near {
    dir: PathBuf,
    /// At how many bytes the young store takes the place of the old one.
    limit: u64,
    halves: RwLock<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: Option<LocalStore>,
    young_bytes: u64,
    old: Option<LocalStore>,
}

const YOUNG: &str = "young";
const OLD: &str = "old";

impl Near {
    /// Opens the folder; without it the store works as well, so that a fault is only logged.
    pub(crate) fn open(cache: &NearCache) -> Option<Self> {
        let near = Self {
            dir: cache.dir.clone(),
            limit: (cache.size.as_bytes() / 2).max(1),
            halves: RwLock::default(),
        };
        let old = open_half(&near.dir.join(OLD));
        let young = open_half(&near.dir.join(YOUNG)).inspect_err(|error| {
            tracing::warn!(reason = %error, "chunks are not cached beside the process");
        });
        let young = young.ok()?;
        let young_bytes = bytes_in(&near.dir.join(YOUNG));
        *near.halves.write() = Halves { young: Some(young), young_bytes, old: old.ok() };
        Some(near)
    }

    pub(crate) fn find(&self, id: &ChunkId) -> Option<Chunk> {
        let halves = self.halves.read();
        match halves.young.as_ref()?.read(id) {
            Ok(chunk) => return Some(chunk),
            Err(Error::ChunkMissing { .. }) => {}
            Err(error) => {
                drop(halves);
                self.begin_anew(&error);
                return None;
            }
        }
        let chunk = halves.old.as_ref()?.read(id).ok()?;
        drop(halves);
        self.add(std::iter::once(&chunk));
        Some(chunk)
    }

    /// Returns a small blob.
    pub(crate) fn find_blob(&self, id: &BlobId) -> Option<Bytes> {
        let halves = self.halves.read();
        match halves.young.as_ref()?.read_blob(id) {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => {}
            Err(error) => {
                drop(halves);
                self.begin_anew(&error);
                return None;
            }
        }
        let bytes = halves.old.as_ref()?.read_blob(id).ok()??;
        drop(halves);
        self.add_blobs(std::iter::once((*id, bytes.clone())));
        Some(bytes)
    }

    /// Keeps chunks at hand.
    pub(crate) fn add<'a>(&self, chunks: impl Iterator<Item = &'a Chunk>) {
        let mut batch = Batch::new();
        let mut added = 0;
        for chunk in chunks {
            let bytes: Bytes = chunk.bytes().clone();
            added += bytes.len() as u64;
            batch.add_chunk(bytes);
        }
        self.commit(batch, added);
    }

    /// Keeps small blobs at hand.
    pub(crate) fn add_blobs(&self, blobs: impl Iterator<Item = (BlobId, Bytes)>) {
        let mut batch = Batch::new();
        let mut added = 0;
        for (id, bytes) in blobs {
            added += bytes.len() as u64;
            batch.add_blob(id, bytes);
        }
        self.commit(batch, added);
    }

    fn commit(&self, batch: Batch, added: u64) {
        if batch.is_empty() {
            return;
        }
        let mut halves = self.halves.write();
        let Some(young) = &halves.young else {
            return;
        };
        if let Err(error) = young.commit(batch) {
            drop(halves);
            self.begin_anew(&error);
            return;
        }
        halves.young_bytes += added;
        if halves.young_bytes >= self.limit {
            self.turn(&mut halves);
        }
    }

    /// Ends the use of the folder.
    pub(crate) fn close(&self) {
        *self.halves.write() = Halves::default();
    }

    /// Lets the young store take the place of the old one.
    fn turn(&self, halves: &mut Halves) {
        *halves = Halves::default();
        let (young, old) = (self.dir.join(YOUNG), self.dir.join(OLD));
        let turned = remove(&old).and_then(|()| std::fs::rename(&young, &old));
        if let Err(error) = turned {
            tracing::warn!(reason = %error, "the chunk cache beside the process is cleared");
            remove(&young).ok();
        }
        halves.old = open_half(&old).ok();
        halves.young = open_half(&young).ok();
    }

    fn begin_anew(&self, error: &Error) {
        tracing::warn!(reason = %error, "the chunk cache beside the process is cleared");
        let mut halves = self.halves.write();
        *halves = Halves::default();
        for half in [YOUNG, OLD] {
            remove(&self.dir.join(half)).ok();
        }
        halves.young = open_half(&self.dir.join(YOUNG)).ok();
    }
}

fn open_half(dir: &Path) -> Result<LocalStore, Error> {
    let open = |dir: &Path| {
        let disk = FileDisk::open(dir).map_err(|source| {
            let file = dir.display().to_string();
            Error::Read { file, source }
        })?;
        // Chunks that come from here go to the cache of the store in front.
        let options = LocalOptions { cache: ByteSize::kib(64), ..LocalOptions::default() };
        LocalStore::open(Arc::new(disk), options)
    };
    match open(dir) {
        Err(error) if !matches!(error, Error::Locked { .. }) => {
            remove(dir).ok();
            open(dir)
        }
        result => result,
    }
}

fn remove(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn bytes_in(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}
