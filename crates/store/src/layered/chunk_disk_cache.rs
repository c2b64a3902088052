//! A disk cache for chunks that were read: a folder on the local machine between memory and a database, or another
//! instance. Small blobs are cached too, where the user of the cache adds them.
//!
//! The cache has two local stores, a young and an old one. Chunks are added to the young one. When it is full, the old
//! one is removed and the young one takes its place. A chunk that is found in the old one is copied to the young one.
//!
//! On failure: data that is damaged or cannot be written counts as absent, and the folder is started anew.
//!
//! Not here: verification, which the local stores do with every read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use tympan_notation::ByteSize;

use crate::chunk::Chunk;
use crate::disk::FileDisk;
use crate::error::Error;
use crate::id::{BlobId, ChunkId};
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::local::{LocalStore, LocalStoreOptions};

/// A folder on the local machine that caches chunks that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkDiskCacheOptions {
    /// The folder; no other process uses it.
    pub dir: PathBuf,
    /// The maximum size of the folder.
    pub max_size: ByteSize,
}

/// A cache in a folder.
#[derive(Debug)]
pub(crate) struct ChunkDiskCache {
    dir: PathBuf,
    /// The size in bytes at which the young store replaces the old one.
    young_limit: u64,
    generations: RwLock<CacheGenerations>,
}

#[derive(Debug, Default)]
struct CacheGenerations {
    young: Option<LocalStore>,
    young_bytes: u64,
    old: Option<LocalStore>,
}

const YOUNG_FOLDER: &str = "young";
const OLD_FOLDER: &str = "old";

impl ChunkDiskCache {
    /// Opens the folder. The store works without the cache, so a failure is only logged and returns `None`.
    pub(crate) fn open(cache: &ChunkDiskCacheOptions) -> Option<Self> {
        let near = Self {
            dir: cache.dir.clone(),
            young_limit: (cache.max_size.as_bytes() / 2).max(1),
            generations: RwLock::default(),
        };
        let old = open_generation(&near.dir.join(OLD_FOLDER));
        let young = open_generation(&near.dir.join(YOUNG_FOLDER)).inspect_err(|error| {
            tracing::warn!(reason = %error, "cannot open the chunk disk cache");
        });
        let young = young.ok()?;
        let young_bytes = folder_bytes(&near.dir.join(YOUNG_FOLDER));
        *near.generations.write() =
            CacheGenerations { young: Some(young), young_bytes, old: old.ok() };
        Some(near)
    }

    pub(crate) fn find_chunk(&self, id: &ChunkId) -> Option<Chunk> {
        let halves = self.generations.read();
        match halves.young.as_ref()?.read_chunk(id) {
            Ok(chunk) => return Some(chunk),
            Err(Error::ChunkMissing { .. }) => {}
            Err(error) => {
                drop(halves);
                self.reset_young(&error);
                return None;
            }
        }
        let chunk = halves.old.as_ref()?.read_chunk(id).ok()?;
        drop(halves);
        self.add_chunks(std::iter::once(&chunk));
        Some(chunk)
    }

    /// Returns a small blob, or `None` if the cache does not hold it.
    pub(crate) fn find_blob(&self, id: &BlobId) -> Option<Bytes> {
        let halves = self.generations.read();
        match halves.young.as_ref()?.read_blob(id) {
            Ok(Some(bytes)) => return Some(bytes),
            Ok(None) => {}
            Err(error) => {
                drop(halves);
                self.reset_young(&error);
                return None;
            }
        }
        let bytes = halves.old.as_ref()?.read_blob(id).ok()??;
        drop(halves);
        self.add_blobs(std::iter::once((*id, bytes.clone())));
        Some(bytes)
    }

    /// Adds chunks to the cache.
    pub(crate) fn add_chunks<'a>(&self, chunks: impl Iterator<Item = &'a Chunk>) {
        let mut batch = ChunkBatch::new();
        let mut added = 0;
        for chunk in chunks {
            let bytes: Bytes = chunk.bytes().clone();
            added += bytes.len() as u64;
            batch.add_chunk(bytes);
        }
        self.commit_batch(batch, added);
    }

    /// Adds small blobs to the cache.
    pub(crate) fn add_blobs(&self, blobs: impl Iterator<Item = (BlobId, Bytes)>) {
        let mut batch = ChunkBatch::new();
        let mut added = 0;
        for (id, bytes) in blobs {
            added += bytes.len() as u64;
            batch.add_blob(id, bytes);
        }
        self.commit_batch(batch, added);
    }

    fn commit_batch(&self, batch: ChunkBatch, added: u64) {
        if batch.is_empty() {
            return;
        }
        let mut halves = self.generations.write();
        let Some(young) = &halves.young else {
            return;
        };
        if let Err(error) = young.commit(batch) {
            drop(halves);
            self.reset_young(&error);
            return;
        }
        halves.young_bytes += added;
        if halves.young_bytes >= self.young_limit {
            self.rotate_generations(&mut halves);
        }
    }

    /// Closes the stores of the folder.
    pub(crate) fn close(&self) {
        *self.generations.write() = CacheGenerations::default();
    }

    /// Replaces the old store with the young one and starts a new young store.
    fn rotate_generations(&self, halves: &mut CacheGenerations) {
        *halves = CacheGenerations::default();
        let (young, old) = (self.dir.join(YOUNG_FOLDER), self.dir.join(OLD_FOLDER));
        let turned = remove_folder(&old).and_then(|()| std::fs::rename(&young, &old));
        if let Err(error) = turned {
            tracing::warn!(reason = %error, "cannot rotate the chunk disk cache; clearing it");
            remove_folder(&young).ok();
        }
        halves.old = open_generation(&old).ok();
        halves.young = open_generation(&young).ok();
    }

    fn reset_young(&self, error: &Error) {
        tracing::warn!(reason = %error, "chunk disk cache failed; clearing it");
        let mut halves = self.generations.write();
        *halves = CacheGenerations::default();
        for half in [YOUNG_FOLDER, OLD_FOLDER] {
            remove_folder(&self.dir.join(half)).ok();
        }
        halves.young = open_generation(&self.dir.join(YOUNG_FOLDER)).ok();
    }
}

fn open_generation(dir: &Path) -> Result<LocalStore, Error> {
    let open = |dir: &Path| {
        let disk = FileDisk::open(dir).map_err(|source| {
            let file = dir.display().to_string();
            Error::FileRead { file, source }
        })?;
        // Chunks read from here go to the memory cache of the store in front, so these stores need only a small one.
        let options = LocalStoreOptions {
            cache_size: ByteSize::from_kib(64),
            ..LocalStoreOptions::default()
        };
        LocalStore::open(Arc::new(disk), options)
    };
    match open(dir) {
        Err(error) if !matches!(error, Error::Locked { .. }) => {
            remove_folder(dir).ok();
            open(dir)
        }
        result => result,
    }
}

fn remove_folder(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn folder_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}
