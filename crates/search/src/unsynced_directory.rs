//! The files of a build: written without waiting for the disk, and compared with their checksums after it lost power.
//!
//! A commit of the index is ten files and two folders, each of which would be waited for, while everything in them can
//! be made anew. What a process has written outlives it in the memory of the machine; only a machine that stops without
//! writing it back loses a part. A file beside the builds, the *mark*, says under which start of the machine they were
//! written to last. It is on disk before the first of them is written, and removed after all of them are on disk.
//!
//! Invariants
//! * A build whose mark is of another start of the machine answers nothing before its checksums are compared.
//!
//! Not here: who removes and replaces builds (`index_folder`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, MmapDirectory, OwnedBytes,
    TerminatingWrite, WatchCallback, WatchHandle, WritePtr,
};
use tantivy::index::SegmentComponent;

/// How the names of files end that say which documents are deleted.
const DELETED_EXTENSION: &str = "del";
/// The name of the mark.
const UNSYNCED_MARKER: &str = "unsynced";
/// Where the system says under which start it runs.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// A directory of the file system that is written to without waiting.
#[derive(Debug, Clone)]
pub(crate) struct UnsyncedDirectory {
    mmap_directory: MmapDirectory,
    dir: PathBuf,
}

/// A file that is being written.
struct UnsyncedFile(File);

impl UnsyncedDirectory {
    /// Opens a directory.
    ///
    /// # Errors
    /// If it is not there.
    pub(crate) fn open_unsynced(dir: &Path) -> tantivy::Result<Box<dyn Directory>> {
        Ok(Box::new(Self { mmap_directory: MmapDirectory::open(dir)?, dir: dir.to_owned() }))
    }
}

impl Write for UnsyncedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TerminatingWrite for UnsyncedFile {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.0.flush()
    }
}

impl Directory for UnsyncedDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        if path.extension().is_none_or(|extension| extension != DELETED_EXTENSION) {
            return self.mmap_directory.get_file_handle(path);
        }
        // What is mapped is remembered by name, but these files may be written again.
        match fs::read(self.dir.join(path)) {
            Ok(bytes) => Ok(Arc::new(OwnedBytes::new(bytes))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(OpenReadError::FileDoesNotExist(path.to_owned()))
            }
            Err(error) => Err(OpenReadError::wrap_io_error(error, path.to_owned())),
        }
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        self.mmap_directory.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mmap_directory.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let full = self.dir.join(path);
        // A file of this name belongs to a commit that never was: its writer was killed, or failed. The names of deleted
        // documents come again, as they are numbered from the last commit on.
        let removed = fs::remove_file(&full);
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            return Err(OpenWriteError::wrap_io_error(error, path.to_owned()));
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(full);
        let file = file.map_err(|error| OpenWriteError::wrap_io_error(error, path.to_owned()))?;
        Ok(BufWriter::new(Box::new(UnsyncedFile(file))))
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.mmap_directory.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
        file.write_all(bytes)?;
        file.persist(self.dir.join(path))?;
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.mmap_directory.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        self.mmap_directory.watch(callback)
    }
}

/// Tells whether the machine may have stopped since builds were last written to, so that a part of them may be lost.
pub(crate) fn may_be_lost(dir: &Path) -> bool {
    match fs::read_to_string(dir.join(UNSYNCED_MARKER)) {
        Ok(mark) => read_boot_id().is_none_or(|start| start != mark),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Makes the mark, before anything is written.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_unsynced_marker(dir: &Path) -> io::Result<()> {
    // It may have been deleted under the running process.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let start = read_boot_id().unwrap_or_default();
    if fs::read_to_string(dir.join(UNSYNCED_MARKER)).is_ok_and(|mark| mark == start) {
        return Ok(());
    }
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(start.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(dir.join(UNSYNCED_MARKER))?;
    File::open(dir)?.sync_all()
}

/// Waits until a build is on disk, and removes the mark.
///
/// # Errors
/// If the disk fails: then the mark stays.
pub(crate) fn sync_build(dir: &Path, build: &Path) -> io::Result<()> {
    if !dir.join(UNSYNCED_MARKER).exists() {
        return Ok(());
    }
    for file in fs::read_dir(build)? {
        let file = File::open(file?.path());
        match file.and_then(|file| file.sync_all()) {
            // A merge that ended last may still clean up.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            synced => synced?,
        }
    }
    File::open(build)?.sync_all()?;
    fs::remove_file(dir.join(UNSYNCED_MARKER))?;
    File::open(dir)?.sync_all()
}

/// Returns what tells this start of the machine from others; nothing if the system does not say.
fn read_boot_id() -> Option<String> {
    let start = fs::read_to_string(BOOT_ID_PATH).ok()?;
    Some(start.trim().to_owned()).filter(|start| !start.is_empty())
}

/// Returns the files of the last commit whose bytes are not those that were written.
///
/// # Errors
/// If what the commit consists of cannot be read.
pub(crate) fn find_damaged_files(index: &tantivy::Index) -> tantivy::Result<Vec<PathBuf>> {
    let directory = index.directory();
    let metas = index.load_metas()?;
    let mut files = metas.list_segment_files();
    // The library lists this file of every segment. Where nothing is deleted it is no part of the commit: one that is
    // there was left by a writer that was killed.
    for segment in metas.segments.iter().filter(|segment| !segment.has_deletes()) {
        files.remove(&segment.relative_path(SegmentComponent::Delete));
    }
    let mut files: Vec<PathBuf> = files.into_iter().collect();
    files.sort();
    // Files that were never made, or that a merge removes meanwhile, are no damage: a missing one shows when the
    // index is opened.
    files.retain(|file| {
        directory.exists(file).unwrap_or(true)
            && !directory.validate_checksum(file).unwrap_or_else(|_| {
                // Removed between the two.
                !directory.exists(file).unwrap_or(true)
            })
    });
    Ok(files)
}

#[cfg(test)]
mod tests {
    use tantivy::schema::{Schema, TEXT};
    use tantivy::{IndexSettings, TantivyDocument, doc};

    use super::*;

    #[test]
    fn files_of_commits_that_never_were_are_no_damage() {
        let folder = tempfile::tempdir().unwrap();
        let mut schema = Schema::builder();
        let text = schema.add_text_field("text", TEXT);
        let files = UnsyncedDirectory::open_unsynced(folder.path()).unwrap();
        let index =
            tantivy::Index::create(files, schema.build(), IndexSettings::default()).unwrap();
        let mut writer = index.writer_with_num_threads::<TantivyDocument>(1, 20 << 20).unwrap();
        writer.add_document(doc!(text => "alpha")).unwrap();
        writer.commit().unwrap();
        drop(writer);
        let segment = index.load_metas().unwrap().segments.remove(0);
        let left = segment.relative_path(SegmentComponent::Delete);
        fs::write(folder.path().join(left), "not of this commit").unwrap();
        assert_eq!(find_damaged_files(&index).unwrap(), Vec::<PathBuf>::new());

        let terms = segment.relative_path(SegmentComponent::Terms);
        let mut bytes = fs::read(folder.path().join(&terms)).unwrap();
        bytes[0] ^= 1;
        fs::write(folder.path().join(&terms), bytes).unwrap();
        assert_eq!(find_damaged_files(&index).unwrap(), [terms]);
    }
}
