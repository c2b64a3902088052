//! The index: which pack holds which piece or folder.
//!
//! In memory a table of about 60 bytes per piece; in the vault one JSON file for some packs each; here, where a folder for it
//! is given, a table of what many of these files say (`index_table`), of 48 bytes per piece, which a run that writes it has in
//! memory once more while it does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Vault;
use super::index_table::{IndexTable, IndexTableFile};
use super::lock::Lock;
use crate::backend::{FileKind, Listing};
use crate::error::{Error, Result};
use crate::id::Id;
use crate::id_map::IdMap;
use crate::save::Fault;

/// What a blob of a pack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BlobKind {
    /// A piece of a file.
    Data,
    /// A folder.
    Tree,
}

impl BlobKind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Data => "piece",
            Self::Tree => "folder",
        }
    }
}

/// Where a blob is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The number of the pack.
    pub(super) pack: u32,
    /// Where it begins.
    pub(crate) offset: u32,
    /// Its sealed length.
    pub(crate) length: u32,
    /// Its plain length if it is compressed, or 0.
    pub(crate) raw: u32,
}

impl Place {
    /// Returns the plain length.
    fn plain_length(&self) -> u64 {
        match self.raw {
            0 => u64::from(self.length).saturating_sub(crate::seal::OVERHEAD as u64),
            raw => raw.into(),
        }
    }

    /// Returns the place of a blob in a pack whose number does not matter.
    pub(super) fn of(blob: &StoredBlob) -> Self {
        let raw = blob.uncompressed_length.unwrap_or(0);
        Self { pack: 0, offset: blob.offset, length: blob.length, raw }
    }
}

/// The stored form of a blob in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredBlob {
    pub(crate) id: Id,
    #[serde(rename = "type")]
    pub(crate) kind: BlobKind,
    pub(crate) offset: u32,
    pub(crate) length: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uncompressed_length: Option<u32>,
}

/// The stored form of a pack in an index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredPack {
    pub(crate) id: Id,
    pub(crate) blobs: Vec<StoredBlob>,
}

/// The stored form of a pack that a prune marked: nobody reads from it any more, and it goes when its grace is over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MarkedPack {
    pub(crate) id: Id,
    /// What it holds; nothing where no index ever listed it.
    #[serde(default)]
    pub(crate) blobs: Vec<StoredBlob>,
    /// When it was marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<String>,
    /// Its length, as rustic wants it of packs without blobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u32>,
}

/// An index file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct StoredIndex {
    #[serde(default)]
    pub(crate) packs: Vec<StoredPack>,
    /// Under the name that rustic gave it; restic passes it over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) packs_to_delete: Vec<MarkedPack>,
}

/// All index files, loaded.
#[derive(Debug, Default)]
pub struct Index {
    /// What was not read from index files in this run; its packs are the first ones.
    table: Option<IndexTable>,
    packs: Vec<Id>,
    known_packs: HashSet<Id>,
    data: IdMap<Id, Place>,
    trees: IdMap<Id, Place>,
    /// The index files that this was loaded from.
    files: Vec<Id>,
    /// Those among them that are damaged.
    damage: Vec<Fault>,
}

/// What happens where an index file is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DamagedFiles {
    /// What it lists is not known, and told in [`Index::damage`].
    PassedOver,
    /// Nothing is loaded.
    Refused,
}

impl Index {
    /// Loads all index files of a vault, without what is marked for removal. Of what a damaged one lists, nothing is known:
    /// [`Index::damage`] names it.
    ///
    /// # Errors
    /// A failed read.
    pub fn load(vault: &Vault) -> Result<Self> {
        Self::load_by_table(vault, vault.list(FileKind::Index)?)
    }

    /// As [`Index::load`], for whoever has just taken a lock: what was listed with the locks is not listed again, and new
    /// snapshots are read meanwhile.
    ///
    /// # Errors
    /// As [`Index::load`].
    pub fn load_locked(vault: &Vault, lock: &Lock) -> Result<Self> {
        let files = lock.list_index()?;
        let ahead = || vault.read_snapshots_ahead(&lock.early_snapshots());
        vault.both(|| Self::load_by_table(vault, files), ahead).0
    }

    /// Loads what the table here does not tell, and writes a new table where that was much.
    fn load_by_table(vault: &Vault, files: Listing) -> Result<Self> {
        let Some(kept) = &vault.index_table else {
            return Ok(Self::load_files(vault, &sorted(files), DamagedFiles::PassedOver)?.0);
        };
        let files = sorted(files);
        let table = kept.read(vault, &files);
        let known = table.as_ref().map_or(&[][..], |table| table.files.as_slice());
        let is_new = |file: &&Id| known.binary_search(file).is_err();
        let new: Vec<Id> = files.iter().filter(is_new).copied().collect();
        let mut index = table.map_or_else(Self::default, Self::over);
        index.add_files(vault, &new, DamagedFiles::PassedOver)?;
        index.files = files;
        let tabled = index.table.as_ref().map_or(0, IndexTable::len);
        // A table speaks for whole files.
        if index.damage.is_empty()
            && IndexTableFile::is_due(tabled, index.data.len() + index.trees.len())
        {
            kept.write(vault, index.to_table());
        }
        Ok(index)
    }

    /// Begins with what a table tells.
    fn over(table: IndexTable) -> Self {
        let packs = table.packs.clone();
        let known_packs = packs.iter().copied().collect();
        Self { table: Some(table), packs, known_packs, ..Self::default() }
    }

    /// Encodes all that is known as a table.
    fn to_table(&self) -> Vec<u8> {
        let tabled = self.table.as_ref().map_or(0, IndexTable::len);
        let most = self.data.len() + self.trees.len() + tabled;
        let entries = [BlobKind::Data, BlobKind::Tree].map(|kind| self.places(kind));
        IndexTable::encode((&self.files, &self.packs), most, entries)
    }

    /// Lists all blobs of a kind, each once.
    fn places(&self, kind: BlobKind) -> impl Iterator<Item = (Id, Place)> + '_ {
        let read = match kind {
            BlobKind::Data => &self.data,
            BlobKind::Tree => &self.trees,
        };
        let tabled = self.table.iter().flat_map(move |table| table.all(kind));
        let tabled = tabled.filter(move |(id, _)| !read.contains_key(id));
        read.iter().map(|(id, place)| (*id, *place)).chain(tabled)
    }

    /// As [`Index::load`], with the packs that are marked for removal and listed nowhere else; for somebody who removes what
    /// no index lists, and to whom a damaged file is an error.
    pub(crate) fn load_with_marks(vault: &Vault) -> Result<(Self, Vec<MarkedPack>)> {
        let files = sorted(vault.list(FileKind::Index)?);
        Self::load_files(vault, &files, DamagedFiles::Refused)
    }

    fn load_files(
        vault: &Vault,
        files: &[Id],
        damaged: DamagedFiles,
    ) -> Result<(Self, Vec<MarkedPack>)> {
        let mut index = Self { files: files.to_vec(), ..Self::default() };
        let mut marked = index.add_files(vault, files, damaged)?;
        marked.retain(|id, _| !index.known_packs.contains(id));
        Ok((index, marked.into_values().collect()))
    }

    /// Adds what some files say; returns what they mark for removal.
    fn add_files(
        &mut self,
        vault: &Vault,
        files: &[Id],
        damaged: DamagedFiles,
    ) -> Result<HashMap<Id, MarkedPack>> {
        let mut marked = HashMap::new();
        // Some files at a time, so that their JSON is not in memory all at once.
        for some in files.chunks(16) {
            let read = |id: &Id| vault.read_json::<StoredIndex>(FileKind::Index, id);
            for (file, stored) in some.iter().zip(vault.read_many(some, read)) {
                let stored = match stored {
                    Err(error) if damaged == DamagedFiles::PassedOver && error.is_damage() => {
                        self.note_damage(file, &error);
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

    fn note_damage(&mut self, file: &Id, error: &Error) {
        let path = format!("index/{file}").into();
        let message = format!("{}; `tympan backup repair` makes it anew", crate::chain(error));
        tracing::warn!(reason = message, "what an index file lists is not known");
        self.damage.push(Fault { path, message });
    }

    /// Returns the index files that are damaged: what only they list cannot be found.
    #[must_use]
    pub fn damage(&self) -> &[Fault] {
        &self.damage
    }

    /// Brings an index that was kept to what the vault has now: new files are read, and all anew if one is gone.
    ///
    /// # Errors
    /// As [`Index::load`].
    pub fn catch_up(kept: &mut Arc<Self>, vault: &Vault) -> Result<()> {
        Self::catch_up_to(kept, vault, vault.list(FileKind::Index)?)
    }

    /// As [`Index::catch_up`], for whoever has just taken a lock, as [`Index::load_locked`].
    ///
    /// # Errors
    /// As [`Index::load`].
    pub fn catch_up_locked(kept: &mut Arc<Self>, vault: &Vault, lock: &Lock) -> Result<()> {
        let files = lock.list_index()?;
        let ahead = || vault.read_snapshots_ahead(&lock.early_snapshots());
        vault.both(ahead, || Self::catch_up_to(kept, vault, files)).1
    }

    fn catch_up_to(kept: &mut Arc<Self>, vault: &Vault, files: Listing) -> Result<()> {
        let files = sorted(files);
        if kept.files == files {
            return Ok(());
        }
        if kept.files.iter().any(|file| files.binary_search(file).is_err()) {
            *kept = Arc::new(Self::load(vault)?);
            return Ok(());
        }
        let added = files.iter().filter(|file| kept.files.binary_search(file).is_err());
        let added: Vec<Id> = added.copied().collect();
        let Some(index) = Arc::get_mut(kept) else {
            *kept = Arc::new(Self::load(vault)?);
            return Ok(());
        };
        // What is not read now is read next time.
        index.add_files(vault, &added, DamagedFiles::PassedOver)?;
        index.files = files;
        Ok(())
    }

    /// Adds what a pack holds.
    pub(crate) fn add(&mut self, pack: &StoredPack) {
        if !self.known_packs.insert(pack.id) {
            return;
        }
        let number = u32::try_from(self.packs.len()).unwrap_or(u32::MAX);
        self.packs.push(pack.id);
        for blob in &pack.blobs {
            let StoredBlob { offset, length, .. } = *blob;
            let raw = blob.uncompressed_length.unwrap_or(0);
            let place = Place { pack: number, offset, length, raw };
            self.table(blob.kind).entry(blob.id).or_insert(place);
        }
    }

    fn table(&mut self, kind: BlobKind) -> &mut IdMap<Id, Place> {
        match kind {
            BlobKind::Data => &mut self.data,
            BlobKind::Tree => &mut self.trees,
        }
    }

    pub(crate) fn find(&self, kind: BlobKind, id: &Id) -> Option<Place> {
        let read = match kind {
            BlobKind::Data => self.data.get(id).copied(),
            BlobKind::Tree => self.trees.get(id).copied(),
        };
        read.or_else(|| self.table.as_ref()?.find(kind, id))
    }

    pub(crate) fn contains(&self, kind: BlobKind, id: &Id) -> bool {
        self.find(kind, id).is_some()
    }

    /// Returns the plain length of a blob.
    pub(crate) fn plain_length(&self, kind: BlobKind, id: &Id) -> Option<u64> {
        self.find(kind, id).as_ref().map(Place::plain_length)
    }

    /// Returns how many blobs of a kind there are, with their plain and their stored bytes.
    pub(crate) fn totals(&self, kind: BlobKind) -> (u64, u64, u64) {
        self.places(kind).fold((0, 0, 0), |(count, plain, stored), (_, place)| {
            (count + 1, plain + place.plain_length(), stored + u64::from(place.length))
        })
    }

    pub(crate) fn pack(&self, place: Place) -> Id {
        self.packs.get(place.pack as usize).copied().unwrap_or_default()
    }

    /// Returns the files that the index was loaded from, ascending.
    pub(crate) fn files(&self) -> &[Id] {
        &self.files
    }
}

fn sorted(files: Listing) -> Vec<Id> {
    let mut files: Vec<Id> = files.into_iter().map(|(id, _)| id).collect();
    files.sort_unstable();
    files
}
