//! A local cache for a vault on another machine: index files, snapshots, and packs with folders.
//!
//! In: sealed files, unmodified. Out: the same bytes, without a round trip.
//!
//! Invariants
//! * The caller verifies cached bytes as if they came from the vault; a file that fails is removed from the cache and
//!   fetched again.
//! * The total size stays under the limit, except for one file that is being stored; the least recently used files are
//!   evicted first.
//!
//! On failure: a file that cannot be cached is fetched again the next time; a run never fails because of the cache.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tracing::debug;

use crate::backend::VaultFileKind;
use crate::object_id::VaultObjectId;

/// A folder with the cached files of one vault.
#[derive(Debug)]
pub(super) struct VaultCache {
    dir: PathBuf,
    max_bytes: u64,
    bytes: AtomicU64,
    /// Packs whose modification time was updated in this run.
    touched_packs: Mutex<HashSet<VaultObjectId>>,
    /// Held during an eviction.
    eviction_lock: Mutex<()>,
    evicted_bytes: AtomicU64,
}

const fn cache_folder(kind: VaultFileKind) -> Option<&'static str> {
    match kind {
        VaultFileKind::Index => Some("index"),
        VaultFileKind::Snapshot => Some("snapshots"),
        VaultFileKind::Pack => Some("folders"),
        VaultFileKind::Config | VaultFileKind::Key | VaultFileKind::Lock => None,
    }
}

const CACHE_FOLDERS: [&str; 3] = ["index", "snapshots", "folders"];

impl VaultCache {
    pub(super) fn open(dir: &Path, max_bytes: u64) -> io::Result<Self> {
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        for folder in CACHE_FOLDERS {
            make.create(dir.join(folder))?;
        }
        let cache = Self {
            dir: dir.to_owned(),
            max_bytes,
            bytes: AtomicU64::new(0),
            touched_packs: Mutex::default(),
            eviction_lock: Mutex::new(()),
            evicted_bytes: AtomicU64::new(0),
        };
        let bytes = cache.list_files()?.iter().map(|(_, length, _)| length).sum();
        cache.bytes.store(bytes, Ordering::Relaxed);
        Ok(cache)
    }

    fn file_path(&self, kind: VaultFileKind, id: &VaultObjectId) -> Option<PathBuf> {
        Some(self.dir.join(cache_folder(kind)?).join(id.to_string()))
    }

    /// Lists all cached files: time of last use, length and path.
    fn list_files(&self) -> io::Result<Vec<(SystemTime, u64, PathBuf)>> {
        let mut files = Vec::new();
        for folder in CACHE_FOLDERS {
            for entry in fs::read_dir(self.dir.join(folder))? {
                let entry = entry?;
                // Another process may have removed it.
                let Ok(facts) = entry.metadata() else { continue };
                files.push((facts.modified()?, facts.len(), entry.path()));
            }
        }
        Ok(files)
    }

    /// Reads a file; `None` if it is not cached.
    pub(super) fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> Option<Vec<u8>> {
        fs::read(self.file_path(kind, id)?).ok()
    }

    /// Reads a range of a pack; `None` if it is not cached.
    pub(super) fn read_range(
        &self,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> Option<Vec<u8>> {
        let file = File::open(self.file_path(VaultFileKind::Pack, id)?).ok()?;
        if file.metadata().ok()?.len() < start.checked_add(length as u64)? {
            return None;
        }
        if self.touched_packs.lock().insert(*id) {
            // Only the order of eviction depends on it.
            file.set_modified(SystemTime::now()).ok();
        }
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start).ok()?;
        Some(bytes)
    }

    /// Returns true if fetching a whole pack is worthwhile: it is not if packs evict each other.
    pub(super) fn can_cache_pack(&self) -> bool {
        self.evicted_bytes.load(Ordering::Relaxed) == 0
    }

    /// Stores a file in the cache.
    pub(super) fn store(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) {
        if bytes.len() as u64 > self.max_bytes {
            return;
        }
        if let Err(error) = self.try_store(kind, id, bytes) {
            debug!(%error, "cannot cache a file of the vault");
        }
    }

    fn try_store(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        let Some(path) = self.file_path(kind, id) else { return Ok(()) };
        // Another process may store the same file.
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(bytes)?;
        if file.persist_noclobber(&path).is_ok() {
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.evict()
    }

    /// Removes a file from the cache.
    pub(super) fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) {
        if let Some(path) = self.file_path(kind, id) {
            self.remove_path(&path);
        }
    }

    fn remove_path(&self, path: &Path) {
        let length = fs::metadata(path).map_or(0, |facts| facts.len());
        if fs::remove_file(path).is_ok() {
            self.bytes.fetch_sub(length.min(self.bytes.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }

    /// Removes cached files of a kind that the vault no longer has.
    pub(super) fn retain_listed(&self, kind: VaultFileKind, there: &[(VaultObjectId, u64)]) {
        let Some(folder) = cache_folder(kind).filter(|_| kind != VaultFileKind::Pack) else {
            return;
        };
        let there: HashSet<String> = there.iter().map(|(id, _)| id.to_string()).collect();
        let Ok(entries) = fs::read_dir(self.dir.join(folder)) else { return };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_none_or(|name| !there.contains(name)) {
                self.remove_path(&entry.path());
            }
        }
    }

    fn evict(&self) -> io::Result<()> {
        if self.bytes.load(Ordering::Relaxed) <= self.max_bytes {
            return Ok(());
        }
        let _alone = self.eviction_lock.lock();
        let mut files = self.list_files()?;
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, length, _)| length).sum();
        // Evict a little more than necessary, so that the folder is not listed for each file.
        let bound = self.max_bytes - self.max_bytes / 8;
        for (_, length, path) in files {
            if bytes <= bound {
                break;
            }
            fs::remove_file(path).ok();
            bytes -= length;
            self.evicted_bytes.fetch_add(1, Ordering::Relaxed);
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_lately_goes_and_the_bound_holds() {
        let dir = tempfile::tempdir().unwrap();
        let cache = VaultCache::open(dir.path(), 1000).unwrap();
        let id = |number: u8| VaultObjectId::of(&[number]);
        cache.store(VaultFileKind::Pack, &id(1), &[1; 400]);
        let old = SystemTime::UNIX_EPOCH;
        let path = cache.file_path(VaultFileKind::Pack, &id(1)).unwrap();
        File::open(&path).unwrap().set_modified(old).unwrap();
        cache.store(VaultFileKind::Index, &id(2), &[2; 400]);
        let path = cache.file_path(VaultFileKind::Index, &id(2)).unwrap();
        File::open(&path).unwrap().set_modified(old + std::time::Duration::from_secs(1)).unwrap();
        assert_eq!(cache.read_range(&id(1), 10, 5).unwrap(), [1; 5]);
        assert!(cache.read_range(&id(1), 399, 2).is_none());
        assert!(cache.can_cache_pack());
        cache.store(VaultFileKind::Snapshot, &id(3), &[3; 400]);
        assert!(cache.read(VaultFileKind::Index, &id(2)).is_none(), "it was used least lately");
        assert!(cache.read(VaultFileKind::Snapshot, &id(3)).is_some());
        assert!(cache.read_range(&id(1), 0, 400).is_some());
        assert!(!cache.can_cache_pack());
        cache.store(VaultFileKind::Pack, &id(4), &[4; 1001]);
        assert!(cache.read(VaultFileKind::Pack, &id(4)).is_none());
        cache.retain_listed(VaultFileKind::Snapshot, &[]);
        assert!(cache.read(VaultFileKind::Snapshot, &id(3)).is_none());
        cache.store(VaultFileKind::Lock, &id(5), &[5; 5]);
        assert_eq!(cache.list_files().unwrap().len(), 1);
    }
}
