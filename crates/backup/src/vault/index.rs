//! The index: maps pieces and folders to packs.
//!
//! In memory it is a table of about 60 bytes per piece; in the vault, one JSON file per group of packs; locally, if a
//! folder is configured, a table of many index files (`index_table`) with 48 bytes per piece, of which a run that
//! writes it holds another copy in memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tympan_notation::error_chain_text;

use super::Vault;
use super::index_table::{IndexTableFile, VaultIndexTable};
use super::lock::VaultLock;
use super::pack_blob::{PackBlobKind, PackBlobLocation, StoredBlob};
use crate::backend::{VaultFileKind, VaultFileListing};
use crate::error::{Error, Result};
use crate::fault::BackupFault;
use crate::id_map::IdMap;
use crate::object_id::VaultObjectId;

/// The stored form of a pack in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredPack {
    pub(crate) id: VaultObjectId,
    pub(crate) blobs: Vec<StoredBlob>,
}

/// The stored form of a pack that a prune marked: it is no longer read, and removed after its grace period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MarkedPack {
    pub(crate) id: VaultObjectId,
    /// The blobs of the pack; empty if no index ever listed them.
    #[serde(default)]
    pub(crate) blobs: Vec<StoredBlob>,
    /// The time at which it was marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
    /// The length of the pack, which rustic requires for packs without blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u32>,
}

/// An index file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoredIndex {
    #[serde(default)]
    pub(crate) packs: Vec<StoredPack>,
    /// Marked packs, under rustic's name; restic ignores it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) packs_to_delete: Vec<MarkedPack>,
}

/// The contents of all index files.
#[derive(Debug, Default)]
pub struct VaultIndex {
    /// Entries that were not read from index files in this run; its packs have the first numbers.
    table: Option<VaultIndexTable>,
    packs: Vec<VaultObjectId>,
    known_packs: HashSet<VaultObjectId>,
    data_blobs: IdMap<VaultObjectId, PackBlobLocation>,
    tree_blobs: IdMap<VaultObjectId, PackBlobLocation>,
    /// The index files that were loaded.
    files: Vec<VaultObjectId>,
    /// The damaged ones among them.
    damaged_files: Vec<BackupFault>,
}

/// The policy for damaged index files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DamagedIndexPolicy {
    /// The file is skipped and reported in [`VaultIndex::damaged_files`].
    Skip,
    /// Nothing is loaded.
    Refuse,
}

impl VaultIndex {
    /// Loads all index files of a vault, without marked packs. A damaged file is skipped: [`VaultIndex::damaged_files`]
    /// names it.
    ///
    /// # Errors
    /// A failed read.
    pub fn load(vault: &Vault) -> Result<Self> {
        Self::load_with_table(vault, vault.files().list(VaultFileKind::Index)?)
    }

    /// Like [`VaultIndex::load`], right after a lock was acquired: the listing made with the locks is reused, and new
    /// snapshots are read concurrently.
    ///
    /// # Errors
    /// As [`VaultIndex::load`].
    pub fn load_locked(vault: &Vault, lock: &VaultLock) -> Result<Self> {
        let files = lock.list_index()?;
        let ahead = || vault.prefetch_snapshots(&lock.initial_snapshots());
        vault.files().run_both(|| Self::load_with_table(vault, files), ahead).0
    }

    /// Loads the files that the local table does not cover, and writes a new table if there were many.
    fn load_with_table(vault: &Vault, files: VaultFileListing) -> Result<Self> {
        let Some(table_file) = &vault.index_table else {
            return Ok(
                Self::load_files(vault, &sorted_file_ids(files), DamagedIndexPolicy::Skip)?.0
            );
        };
        let files = sorted_file_ids(files);
        let table = table_file.read(vault, &files);
        let tabled_files = table.as_ref().map_or(&[][..], |table| table.files.as_slice());
        let is_new = |file: &&VaultObjectId| tabled_files.binary_search(file).is_err();
        let new: Vec<VaultObjectId> = files.iter().filter(is_new).copied().collect();
        let mut index = table.map_or_else(Self::default, Self::from_table);
        index.add_files(vault, &new, DamagedIndexPolicy::Skip)?;
        index.files = files;
        let tabled = index.table.as_ref().map_or(0, VaultIndexTable::len);
        // A table covers whole files only.
        if index.damaged_files.is_empty()
            && IndexTableFile::is_rewrite_due(
                tabled,
                index.data_blobs.len() + index.tree_blobs.len(),
            )
        {
            table_file.write(vault, index.to_table());
        }
        Ok(index)
    }

    /// Creates an index from a table.
    fn from_table(table: VaultIndexTable) -> Self {
        let packs = table.packs.clone();
        let known_packs = packs.iter().copied().collect();
        Self { table: Some(table), packs, known_packs, ..Self::default() }
    }

    /// Encodes all entries as a table.
    fn to_table(&self) -> Vec<u8> {
        let tabled = self.table.as_ref().map_or(0, VaultIndexTable::len);
        let most = self.data_blobs.len() + self.tree_blobs.len() + tabled;
        let entries =
            [PackBlobKind::Data, PackBlobKind::Tree].map(|kind| self.blob_locations(kind));
        VaultIndexTable::encode((&self.files, &self.packs), most, entries)
    }

    /// Lists all blobs of a kind, each once.
    fn blob_locations(
        &self,
        kind: PackBlobKind,
    ) -> impl Iterator<Item = (VaultObjectId, PackBlobLocation)> + '_ {
        let read = match kind {
            PackBlobKind::Data => &self.data_blobs,
            PackBlobKind::Tree => &self.tree_blobs,
        };
        let tabled = self.table.iter().flat_map(move |table| table.blob_locations(kind));
        let tabled = tabled.filter(move |(id, _)| !read.contains_key(id));
        read.iter().map(|(id, location)| (*id, *location)).chain(tabled)
    }

    /// Like [`VaultIndex::load`], with the marked packs that no index lists; for callers that remove unlisted packs,
    /// and for which a damaged file is an error.
    pub(crate) fn load_with_marks(vault: &Vault) -> Result<(Self, Vec<MarkedPack>)> {
        let files = sorted_file_ids(vault.files().list(VaultFileKind::Index)?);
        Self::load_files(vault, &files, DamagedIndexPolicy::Refuse)
    }

    fn load_files(
        vault: &Vault,
        files: &[VaultObjectId],
        damaged: DamagedIndexPolicy,
    ) -> Result<(Self, Vec<MarkedPack>)> {
        let mut index = Self { files: files.to_vec(), ..Self::default() };
        let mut marked = index.add_files(vault, files, damaged)?;
        marked.retain(|id, _| !index.known_packs.contains(id));
        Ok((index, marked.into_values().collect()))
    }

    /// Adds the entries of some files; returns the packs that they mark.
    fn add_files(
        &mut self,
        vault: &Vault,
        files: &[VaultObjectId],
        damaged: DamagedIndexPolicy,
    ) -> Result<HashMap<VaultObjectId, MarkedPack>> {
        let mut marked = HashMap::new();
        // In batches, so that not all JSON is in memory at once.
        for batch in files.chunks(16) {
            let read = |id: &VaultObjectId| {
                vault.files().read_json::<StoredIndex>(VaultFileKind::Index, id)
            };
            for (file, stored) in batch.iter().zip(vault.files().read_many(batch, read)) {
                let stored = match stored {
                    Err(error) if damaged == DamagedIndexPolicy::Skip && error.is_damage() => {
                        self.record_damage(file, &error);
                        continue;
                    }
                    stored => stored?,
                };
                for pack in &stored.packs {
                    self.add(pack);
                }
                marked.extend(stored.packs_to_delete.into_iter().map(|pack| (pack.id, pack)));
            }
        }
        Ok(marked)
    }

    fn record_damage(&mut self, file: &VaultObjectId, error: &Error) {
        let path = format!("index/{file}").into();
        let message = format!("{}; `tympan backup repair` rebuilds it", error_chain_text(error));
        tracing::warn!(reason = message, "cannot read an index file");
        self.damaged_files.push(BackupFault { path, message });
    }

    /// Returns the damaged index files: blobs that only they list cannot be found.
    #[must_use]
    pub fn damaged_files(&self) -> &[BackupFault] {
        &self.damaged_files
    }

    /// Updates a loaded index to the current state of the vault: new files are read, and the whole index if a file was
    /// removed.
    ///
    /// # Errors
    /// As [`VaultIndex::load`].
    pub fn catch_up(current: &mut Arc<Self>, vault: &Vault) -> Result<()> {
        Self::catch_up_to(current, vault, vault.files().list(VaultFileKind::Index)?)
    }

    /// Like [`VaultIndex::catch_up`], right after a lock was acquired, as [`VaultIndex::load_locked`].
    ///
    /// # Errors
    /// As [`VaultIndex::load`].
    pub fn catch_up_locked(current: &mut Arc<Self>, vault: &Vault, lock: &VaultLock) -> Result<()> {
        let files = lock.list_index()?;
        let ahead = || vault.prefetch_snapshots(&lock.initial_snapshots());
        vault.files().run_both(ahead, || Self::catch_up_to(current, vault, files)).1
    }

    fn catch_up_to(current: &mut Arc<Self>, vault: &Vault, files: VaultFileListing) -> Result<()> {
        let files = sorted_file_ids(files);
        if current.files == files {
            return Ok(());
        }
        if current.files.iter().any(|file| files.binary_search(file).is_err()) {
            *current = Arc::new(Self::load(vault)?);
            return Ok(());
        }
        let added = files.iter().filter(|file| current.files.binary_search(file).is_err());
        let added: Vec<VaultObjectId> = added.copied().collect();
        let Some(index) = Arc::get_mut(current) else {
            *current = Arc::new(Self::load(vault)?);
            return Ok(());
        };
        // Files that cannot be read now are read next time.
        index.add_files(vault, &added, DamagedIndexPolicy::Skip)?;
        index.files = files;
        Ok(())
    }

    /// Adds the blobs of a pack.
    pub(crate) fn add(&mut self, pack: &StoredPack) {
        if !self.known_packs.insert(pack.id) {
            return;
        }
        let number = u32::try_from(self.packs.len()).unwrap_or(u32::MAX);
        self.packs.push(pack.id);
        for blob in &pack.blobs {
            let StoredBlob { offset, length, .. } = *blob;
            let raw = blob.uncompressed_length.unwrap_or(0);
            let location =
                PackBlobLocation { pack: number, offset, length, uncompressed_length: raw };
            self.blob_map(blob.kind).entry(blob.id).or_insert(location);
        }
    }

    fn blob_map(&mut self, kind: PackBlobKind) -> &mut IdMap<VaultObjectId, PackBlobLocation> {
        match kind {
            PackBlobKind::Data => &mut self.data_blobs,
            PackBlobKind::Tree => &mut self.tree_blobs,
        }
    }

    pub(crate) fn find(&self, kind: PackBlobKind, id: &VaultObjectId) -> Option<PackBlobLocation> {
        let read = match kind {
            PackBlobKind::Data => self.data_blobs.get(id).copied(),
            PackBlobKind::Tree => self.tree_blobs.get(id).copied(),
        };
        read.or_else(|| self.table.as_ref()?.find(kind, id))
    }

    pub(crate) fn contains(&self, kind: PackBlobKind, id: &VaultObjectId) -> bool {
        self.find(kind, id).is_some()
    }

    /// Returns the plain length of a blob.
    pub(crate) fn plain_length(&self, kind: PackBlobKind, id: &VaultObjectId) -> Option<u64> {
        self.find(kind, id).as_ref().map(PackBlobLocation::plain_length)
    }

    /// Returns the number of blobs of a kind, and their plain and stored bytes.
    pub(crate) fn totals(&self, kind: PackBlobKind) -> (u64, u64, u64) {
        self.blob_locations(kind).fold((0, 0, 0), |(count, plain, stored), (_, location)| {
            (count + 1, plain + location.plain_length(), stored + u64::from(location.length))
        })
    }

    pub(crate) fn pack_id(&self, location: PackBlobLocation) -> VaultObjectId {
        self.packs.get(location.pack as usize).copied().unwrap_or_default()
    }

    /// Returns the loaded index files, ascending.
    pub(crate) fn files(&self) -> &[VaultObjectId] {
        &self.files
    }
}

fn sorted_file_ids(files: VaultFileListing) -> Vec<VaultObjectId> {
    let mut files: Vec<VaultObjectId> = files.into_iter().map(|(id, _)| id).collect();
    files.sort_unstable();
    files
}
