//! The table of a source: a digest of each folder's entries when they were saved, and the resulting tree.
//!
//! In: the folder for tables, the vault, and the tree of the parent snapshot. Out: for a folder whose entries are
//! unchanged, its tree, without reading anything from the vault.
//!
//! Invariants
//! * A table belongs to one topmost tree, by its id. With another parent snapshot, it is not used.
//! * It is sealed with the vault's key, so it cannot be forged, and a damaged one is not used.
//! * It names the index files of its time. When one of them has been removed, as after a prune, trees in the table may
//!   have been removed too, and it is not used.
//! * A folder in which something could not be saved is not in it.
//! * For a folder with a file that changed too recently, only the tree is recorded, and its entries are examined.
//!
//! On failure: a table that cannot be read or written costs time, never a save.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tracing::debug;

use super::user_group_names::UserGroupNames;
use crate::fault::BackupFault;
use crate::object_id::VaultObjectId;
use crate::save::SaveOptions;
use crate::vault::Vault;
use crate::vault::index::VaultIndex;

const TABLE_MAGIC: &[u8; 8] = b"tympfol1";
/// Maximum length of a decompressed table.
const MAX_TABLE_BYTES: usize = 1 << 30;

/// A digest of the metadata of a folder's entries.
pub(crate) type FolderDigest = [u8; 32];

/// The digest of entries that cannot be relied on: one of the files changed so recently that a second change may be
/// undetectable.
pub(crate) const UNSTABLE_DIGEST: FolderDigest = [0; 32];

/// An entry of a folder with its metadata.
pub(crate) type FolderEntry = (OsString, Metadata);

/// Digests everything that becomes part of a folder's tree, except the trees of its subfolders.
pub(crate) fn digest_entries(entries: &[FolderEntry]) -> FolderDigest {
    let mut digest = Sha256::new();
    for (name, facts) in entries {
        let is_folder = facts.is_dir();
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name.as_bytes());
        let (size, links) = if is_folder { (0, 0) } else { (facts.size(), facts.nlink()) };
        let device = if links > 1 { facts.dev() } else { 0 };
        for number in [size, links, device, facts.rdev(), facts.ino()] {
            digest.update(number.to_le_bytes());
        }
        for number in [facts.mode(), facts.uid(), facts.gid()] {
            digest.update(number.to_le_bytes());
        }
        let times = [facts.mtime(), facts.mtime_nsec(), facts.ctime(), facts.ctime_nsec()];
        times.iter().for_each(|number| digest.update(number.to_le_bytes()));
    }
    digest.finalize().into()
}

#[derive(Clone, Copy, Debug)]
struct FolderRecord {
    tree: VaultObjectId,
    digest: FolderDigest,
}

/// The recorded state of a source's folders, by path.
#[derive(Debug, Default)]
pub(crate) struct FolderTable(HashMap<PathBuf, FolderRecord>);

impl FolderTable {
    /// Decodes a table; `None` if it is damaged, or belongs to other names, another tree, or index files that are not
    /// all in `files`, which is sorted.
    pub(crate) fn parse(
        plain: &[u8],
        names: &[u8; 32],
        tree: &VaultObjectId,
        files: &[VaultObjectId],
    ) -> Option<Self> {
        let rest = plain.strip_prefix(TABLE_MAGIC)?;
        let (of_names, rest) = rest.split_first_chunk::<32>()?;
        let (of_tree, mut rest) = rest.split_first_chunk::<32>()?;
        if of_names != names || of_tree != tree.as_bytes() {
            return None;
        }
        for _ in 0..read_length(&mut rest)? {
            let (file, after) = rest.split_first_chunk::<32>()?;
            files.binary_search(&VaultObjectId::from_bytes(*file)).ok()?;
            rest = after;
        }
        let count = read_length(&mut rest)?;
        let mut folders = HashMap::with_capacity(count.min(rest.len() / 68));
        for _ in 0..count {
            let length = read_length(&mut rest)?;
            let (path, after) = rest.split_at_checked(length)?;
            let (tree, after) = after.split_first_chunk::<32>()?;
            let (facts, after) = after.split_first_chunk::<32>()?;
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            folders.insert(
                path,
                FolderRecord { tree: VaultObjectId::from_bytes(*tree), digest: *facts },
            );
            rest = after;
        }
        Some(Self(folders))
    }

    /// Returns the saved tree of a folder with exactly these entries.
    pub(crate) fn find_unchanged_tree(
        &self,
        path: &Path,
        facts: &FolderDigest,
    ) -> Option<VaultObjectId> {
        self.0.get(path).filter(|folder| folder.digest == *facts).map(|folder| folder.tree)
    }

    /// Returns the saved tree of a folder, whatever it contains now.
    pub(crate) fn find_tree(&self, path: &Path) -> Option<VaultObjectId> {
        self.0.get(path).map(|folder| folder.tree)
    }
}

/// A table under construction, filled from many threads.
#[derive(Debug, Default)]
pub(crate) struct NewFolderTable(Mutex<HashMap<PathBuf, FolderRecord>>);

impl NewFolderTable {
    pub(crate) fn add(&self, path: &Path, facts: FolderDigest, tree: VaultObjectId) {
        self.0.lock().insert(path.to_owned(), FolderRecord { tree, digest: facts });
    }

    /// Removes the folders of items that could not be saved, so that they are tried again.
    fn without_faulty(self, faults: &[BackupFault]) -> HashMap<PathBuf, FolderRecord> {
        let mut folders = self.0.into_inner();
        for fault in faults {
            folders.remove(&fault.path);
            fault.path.parent().map(|above| folders.remove(above));
        }
        folders
    }
}

/// The location of a source's table, and the conditions for using it.
#[derive(Debug)]
pub(crate) struct FolderTableFile<'a> {
    vault: &'a Vault,
    path: PathBuf,
    /// The digest of user and group names, because they are part of trees.
    name_digest: [u8; 32],
}

impl<'a> FolderTableFile<'a> {
    /// Returns the table file for these paths; `None` if the caller keeps no tables.
    pub(crate) fn for_paths(
        vault: &'a Vault,
        options: &SaveOptions,
        paths: &[String],
        names: &UserGroupNames,
    ) -> Option<Self> {
        let mut source = options.user.host.clone();
        for path in paths {
            source.push('\0');
            source.push_str(path);
        }
        let name = format!("folders-{}", VaultObjectId::of(source.as_bytes()).short());
        let path = options.table_dir.as_ref()?.join(vault.id()).join(name);
        Some(Self { vault, path, name_digest: names.digest() })
    }

    /// Reads the table; returns an empty one if there is no usable one.
    pub(crate) fn read(&self, tree: &VaultObjectId, index: &VaultIndex) -> FolderTable {
        let Ok(sealed) = fs::read(&self.path) else { return FolderTable::default() };
        let plain = self.vault.sealing().open_bytes(sealed);
        let plain = plain
            .and_then(|packed| crate::compression::decompress_unsized(&packed, MAX_TABLE_BYTES));
        let table = plain
            .and_then(|plain| FolderTable::parse(&plain, &self.name_digest, tree, index.files()));
        if table.is_none() {
            debug!(file = %self.path.display(), "folder table is out of date");
        }
        table.unwrap_or_default()
    }

    /// Stores a table for the next save. `files` are the index files that list everything it refers to.
    pub(crate) fn write(
        &self,
        table: NewFolderTable,
        (tree, files): (&VaultObjectId, &[VaultObjectId]),
        faults: &[BackupFault],
    ) {
        let folders = table.without_faulty(faults);
        let mut plain = TABLE_MAGIC.to_vec();
        plain.extend_from_slice(&self.name_digest);
        plain.extend_from_slice(tree.as_bytes());
        push_length(&mut plain, files.len());
        files.iter().for_each(|file| plain.extend_from_slice(file.as_bytes()));
        push_length(&mut plain, folders.len());
        for (path, FolderRecord { tree, digest }) in &folders {
            let path: &OsStr = path.as_os_str();
            push_length(&mut plain, path.len());
            plain.extend_from_slice(path.as_bytes());
            plain.extend_from_slice(tree.as_bytes());
            plain.extend_from_slice(digest);
        }
        if let Err(error) = self.store_table(&plain) {
            debug!(file = %self.path.display(), %error, "cannot store the folder table");
        }
    }

    fn store_table(&self, plain: &[u8]) -> io::Result<()> {
        let packed = crate::compression::compress(plain, crate::CompressionMode::Fastest);
        let packed = packed.ok_or(io::ErrorKind::OutOfMemory)?;
        let sealed = self.vault.sealing().seal_bytes(&packed).map_err(io::Error::other)?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        // Not synced, because the file has no value if a crash damages it.
        let file = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut file.as_file(), &sealed)?;
        file.persist(&self.path)?;
        Ok(())
    }
}

fn push_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn read_length(rest: &mut &[u8]) -> Option<usize> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    usize::try_from(u32::from_le_bytes(*length)).ok()
}
