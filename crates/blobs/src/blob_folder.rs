//! Large blobs in a folder of the local disk: files `ab/cd/<hex>`, their trash, and notes of the users of the folder.
//!
//! Several processes may write to a folder at the same time. `docs/formats/blobs.md` describes it.
//!
//! Invariants
//! * A file gets its name when all its bytes are on the disk, and the name is on the disk before its id is returned.
//! * A file is read by another process only after its bytes were compared with its hash.
//! * A blob that is put or touched is not discarded at the same moment: a writer checks again after the touch that the
//!   file still exists, and a process that discards checks again after the move that it was not touched.
//!
//! Not here: folders that are only read ([`ReadOnlyBlobFolder`](crate::ReadOnlyBlobFolder)), and which blobs are
//! garbage.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tympan_store::BlobId;

use crate::blob_file::{self, TRASH_DIR, blob_modified, disk_error, ignore_absent};
use crate::storage::{check_note_name, verify_content};
use crate::verified_files::VerifiedFiles;
use crate::{BlobContent, Error, ListedBlob, ReadBlobs, Result, WriteBlobs};

/// Number of bytes that are read and hashed at a time.
const COPY_BUFFER_BYTES: usize = 128 * 1024;
/// The folder for files that are still being written; in the same file system as the finished ones so that a rename
/// suffices.
const TEMP_DIR: &str = "tmp";

/// A folder that this and other processes write blobs to.
pub struct BlobFolder {
    dir: PathBuf,
    /// The blob folders, by the first digits of their names, whose own names are known to be on the disk.
    durable_folders: Mutex<HashSet<PathBuf>>,
    folder_syncs: AtomicU64,
    verified: VerifiedFiles,
}

/// A temporary file with the id of its bytes.
struct FolderTempFile {
    file: NamedTempFile,
    id: BlobId,
}

impl BlobFolder {
    /// Opens or creates the folder and removes files that a crash left incomplete. Files that another process is
    /// writing stay.
    ///
    /// # Errors
    /// If the folder cannot be created or cleaned.
    pub fn open(dir: &Path) -> Result<Self> {
        let temporary = dir.join(TEMP_DIR);
        blob_file::create_folder(&temporary)?;
        for entry in fs::read_dir(&temporary).map_err(disk_error("list", &temporary))? {
            let path = entry.map_err(disk_error("list", &temporary))?.path();
            if let Some(_claim) = lock_abandoned_file(&path)? {
                ignore_absent(fs::remove_file(&path)).map_err(disk_error("remove", &path))?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            durable_folders: Mutex::default(),
            folder_syncs: AtomicU64::new(0),
            verified: VerifiedFiles::new(),
        })
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of folder syncs since this was opened.
    #[must_use]
    pub fn folder_syncs(&self) -> u64 {
        self.folder_syncs.load(Ordering::Relaxed)
    }

    /// Copies a source to a temporary file and hashes the bytes.
    fn write_temp_file(&self, source: &mut dyn Read) -> Result<FolderTempFile> {
        let mut file = self.create_temp_file()?;
        let mut hash = Sha256::new();
        let mut length = 0;
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        loop {
            match blob_file::read_some(source, &mut buffer)? {
                [] => break,
                bytes => {
                    hash.update(bytes);
                    length += bytes.len() as u64;
                    file.write_all(bytes).map_err(disk_error("write", file.path()))?;
                }
            }
        }
        Ok(FolderTempFile { file, id: BlobId::new(hash.finalize().into(), length) })
    }

    /// Creates a temporary file that is locked as long as it is open.
    fn create_temp_file(&self) -> Result<NamedTempFile> {
        let temporary = self.dir.join(TEMP_DIR);
        loop {
            let file = NamedTempFile::new_in(&temporary)
                .map_err(disk_error("create a file in", &temporary))?;
            let is_mine = file.as_file().try_lock().is_ok();
            // Another process that opens the folder may have treated it as abandoned before it was locked.
            if is_mine && file.path().try_exists().map_err(disk_error("inspect", file.path()))? {
                return Ok(file);
            }
        }
    }

    /// Moves complete temporary files to their final names, durably: first all bytes, then all names.
    fn commit_temp_files(&self, files: Vec<FolderTempFile>) -> Result<()> {
        let mut new = Vec::with_capacity(files.len());
        let mut folders = BTreeSet::new();
        for FolderTempFile { file, id } in files {
            let path = blob_file::blob_path(&self.dir, &id);
            if self.renew_modified_time(&path, &id)? {
                // Another writer may have given it its name a moment ago, and not synced the folder yet.
                folders.insert(self.parent_of(&path));
            } else {
                new.push((file, path, id));
            }
        }
        for (file, path, _) in &new {
            file.as_file().sync_data().map_err(disk_error("sync", path))?;
        }
        for (file, path, id) in new {
            let folder = self.parent_of(&path);
            blob_file::create_folder(&folder)?;
            let file = file.persist(&path);
            let file = file.map_err(|failed| disk_error("rename to", &path)(failed.error))?;
            self.verified.mark_verified(&id, &file);
            folders.insert(folder);
        }
        self.sync_folders(folders)
    }

    /// Syncs the folders of new blobs, then the parents of folders whose own names are not known to be on the disk.
    fn sync_folders(&self, folders: BTreeSet<PathBuf>) -> Result<()> {
        let (mut unsynced_folders, mut new) = (folders.clone(), Vec::new());
        for folder in folders {
            self.add_unsynced_ancestors(&folder, &mut unsynced_folders, &mut new);
        }
        unsynced_folders.iter().try_for_each(|folder| self.sync_folder(folder))?;
        self.durable_folders.lock().extend(new);
        Ok(())
    }

    /// Adds the folders that have to be synced so that a folder's own name is on the disk, as far as that is not known;
    /// `new` gets the folders whose names will be.
    fn add_unsynced_ancestors(
        &self,
        folder: &Path,
        unsynced_folders: &mut BTreeSet<PathBuf>,
        new: &mut Vec<PathBuf>,
    ) {
        let durable = self.durable_folders.lock();
        for folder in folder.ancestors().take_while(|folder| *folder != self.dir) {
            if durable.contains(folder) {
                return;
            }
            unsynced_folders.extend(folder.parent().map(Path::to_owned));
            new.push(folder.to_owned());
        }
    }

    fn parent_of(&self, path: &Path) -> PathBuf {
        path.parent().unwrap_or(&self.dir).to_owned()
    }

    /// Makes renames in a folder durable.
    fn sync_folder(&self, folder: &Path) -> Result<()> {
        self.folder_syncs.fetch_add(1, Ordering::Relaxed);
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(disk_error("sync", folder))
    }

    /// Renews the time of a blob's file; `false` if it is absent, damaged, or was discarded concurrently.
    fn renew_modified_time(&self, path: &Path, id: &BlobId) -> Result<bool> {
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(disk_error("open", path)(error)),
        };
        let length = file.metadata().map_err(disk_error("inspect", path))?.len();
        if length != id.length() {
            return Ok(false);
        }
        match self.verified.verify(path, (id, &file)) {
            Err(Error::HashMismatch { .. }) => return Ok(false),
            verified => verified?,
        }
        file.set_modified(SystemTime::now()).map_err(disk_error("touch", path))?;
        self.verified.mark_verified(id, &file);
        path.try_exists().map_err(disk_error("inspect", path))
    }

    fn trashed_path(&self, id: &BlobId) -> PathBuf {
        blob_file::trashed_blob_path(&self.dir, id)
    }

    /// Moves a file to another folder; `false` if it does not exist. After a crash it is in exactly one of both.
    fn rename_file(&self, from: &Path, to: &Path) -> Result<bool> {
        let target = self.parent_of(to);
        blob_file::create_folder(&target)?;
        match fs::rename(from, to) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(disk_error("move", from)(error)),
        }
    }

    /// Moves a blob out of the trash, durably; `false` if it is not in the trash.
    fn restore_from_trash(&self, trashed: &Path, path: &Path) -> Result<bool> {
        if !self.rename_file(trashed, path)? {
            return Ok(false);
        }
        self.sync_folders(BTreeSet::from([self.parent_of(path)]))?;
        Ok(true)
    }

    /// Writes a note to a temporary file.
    fn write_note_temp_file(&self, name: &str, bytes: &[u8]) -> Result<NamedTempFile> {
        check_note_name(name)?;
        let mut file = self.create_temp_file()?;
        file.write_all(bytes).map_err(disk_error("write", file.path()))?;
        file.as_file().sync_data().map_err(disk_error("sync", file.path()))?;
        Ok(file)
    }

    fn remove_file(&self, path: &Path) -> Result<bool> {
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(disk_error("remove", path)(error)),
        }
    }
}

impl fmt::Debug for BlobFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dir.display())
    }
}

impl ReadBlobs for BlobFolder {
    fn open(&self, id: &BlobId) -> Result<Option<BlobContent>> {
        let path = blob_file::blob_path(&self.dir, id);
        if let Some(content) = self.verified.open(&path, id)? {
            return Ok(Some(content));
        }
        // It may be moving into the trash, or back out of it.
        match self.verified.open(&self.trashed_path(id), id)? {
            Some(content) => Ok(Some(content)),
            None => self.verified.open(&path, id),
        }
    }

    fn open_file(&self, id: &BlobId) -> Option<File> {
        self.verified.open_without_wait(&blob_file::blob_path(&self.dir, id), id)
    }

    fn contains(&self, id: &BlobId) -> Result<bool> {
        blob_file::is_complete_file(&blob_file::blob_path(&self.dir, id), id)
    }

    fn list(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        blob_file::list_blobs(&self.dir, visit).map(|_| ())
    }

    fn open_note(&self, name: &str) -> Result<Option<BlobContent>> {
        blob_file::open_note(&self.dir, name)
    }

    fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        blob_file::list_notes(&self.dir, prefix)
    }

    fn min_blob_bytes(&self) -> u64 {
        0
    }
}

impl WriteBlobs for BlobFolder {
    fn put(&self, source: &mut dyn Read) -> Result<BlobId> {
        let written = self.write_temp_file(source)?;
        let id = written.id;
        self.commit_temp_files(vec![written])?;
        Ok(id)
    }

    fn put_all(&self, blobs: &[&[u8]]) -> Result<Vec<BlobId>> {
        let mut ids = Vec::with_capacity(blobs.len());
        let mut files = Vec::new();
        for bytes in blobs {
            let id = BlobId::hash_of(bytes);
            if !ids.contains(&id) {
                let mut file = self.create_temp_file()?;
                file.write_all(bytes).map_err(disk_error("write", file.path()))?;
                files.push(FolderTempFile { file, id });
            }
            ids.push(id);
        }
        self.commit_temp_files(files)?;
        Ok(ids)
    }

    fn put_named(&self, id: &BlobId, source: &mut dyn Read) -> Result<()> {
        if self.touch(id)? {
            return verify_content(id, source);
        }
        let written = self.write_temp_file(source)?;
        if written.id != *id {
            return Err(Error::IdMismatch { expected: *id, actual: written.id });
        }
        self.commit_temp_files(vec![written])
    }

    fn touch(&self, id: &BlobId) -> Result<bool> {
        let path = blob_file::blob_path(&self.dir, id);
        let is_here = self.renew_modified_time(&path, id)?;
        if is_here {
            self.sync_folders(BTreeSet::from([self.parent_of(&path)]))?;
        }
        Ok(is_here)
    }

    fn delete(&self, id: &BlobId) -> Result<bool> {
        self.remove_file(&blob_file::blob_path(&self.dir, id))
    }

    fn discard(&self, id: &BlobId, unused_since: SystemTime) -> Result<bool> {
        let path = blob_file::blob_path(&self.dir, id);
        let is_unused = |path: &Path| -> Result<bool> {
            Ok(blob_modified(path, id)?.is_some_and(|modified| modified < unused_since))
        };
        if !is_unused(&path)? {
            return Ok(false);
        }
        let trashed = self.trashed_path(id);
        if !self.rename_file(&path, &trashed)? {
            return Ok(false);
        }
        if !is_unused(&trashed)? {
            // A writer put or touched it in between, and relies on it.
            self.restore_from_trash(&trashed, &path)?;
            return Ok(false);
        }
        match File::options().write(true).open(&trashed) {
            Ok(file) => {
                file.set_modified(SystemTime::now()).map_err(disk_error("touch", &trashed))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(disk_error("open", &trashed)(error)),
        }
        Ok(true)
    }

    fn undelete(&self, id: &BlobId) -> Result<bool> {
        let (trashed, path) = (self.trashed_path(id), blob_file::blob_path(&self.dir, id));
        if !blob_file::is_complete_file(&trashed, id)? {
            return Ok(false);
        }
        // Count the restoration as its last use; otherwise the next collection would discard it again at once.
        match File::options().write(true).open(&trashed) {
            Ok(file) => {
                file.set_modified(SystemTime::now()).map_err(disk_error("touch", &trashed))?
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(disk_error("open", &trashed)(error)),
        }
        self.restore_from_trash(&trashed, &path)
    }

    fn list_trash(&self, visit: &mut dyn FnMut(ListedBlob) -> ControlFlow<()>) -> Result<()> {
        blob_file::list_blob_files(&self.dir.join(TRASH_DIR), visit).map(|_| ())
    }

    fn purge(&self, id: &BlobId) -> Result<bool> {
        self.remove_file(&self.trashed_path(id))
    }

    fn write_note(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.write_note_temp_file(name, bytes)?;
        let path = self.dir.join(name);
        file.persist(&path).map_err(|failed| disk_error("rename to", &path)(failed.error))?;
        self.sync_folder(&self.dir)
    }

    fn create_note(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let file = self.write_note_temp_file(name, bytes)?;
        let path = self.dir.join(name);
        match file.persist_noclobber(&path) {
            Ok(_) => self.sync_folder(&self.dir).map(|()| true),
            Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(failed) => Err(disk_error("rename to", &path)(failed.error)),
        }
    }

    fn delete_note(&self, name: &str) -> Result<bool> {
        check_note_name(name)?;
        let is_removed = self.remove_file(&self.dir.join(name))?;
        self.sync_folder(&self.dir)?;
        Ok(is_removed)
    }
}

/// Locks a temporary file that no process writes to any more. A process that creates one locks it and then checks that
/// it still exists: so the lock has to be held until the file is removed.
fn lock_abandoned_file(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) if file.try_lock().is_ok() => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(disk_error("open", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    /// An upload that begins between the check of a file and its removal has to see the lock, and use another file.
    #[test]
    fn an_abandoned_file_stays_locked_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("half");
        fs::write(&path, b"half").unwrap();
        let claim = lock_abandoned_file(&path).unwrap().unwrap();
        assert!(File::open(&path).unwrap().try_lock().is_err());
        assert!(lock_abandoned_file(&path).unwrap().is_none());
        drop(claim);
        assert!(lock_abandoned_file(&path).unwrap().is_some());
        assert!(lock_abandoned_file(&dir.path().join("absent")).unwrap().is_none());
    }
}
