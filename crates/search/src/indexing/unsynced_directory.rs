//! The files of a build: written without waiting for the disk, and verified with checksums after a power failure.
//!
//! A commit of the index consists of ten files and two folders. Each would need a sync, although everything in them can
//! be rebuilt. Data written by a process survives the process in the page cache; only if the machine stops before
//! writing it back, a part is lost. A file beside the builds, the *mark*, stores the boot id of the machine under which
//! they were last written. It is synced before the first of them is written, and removed after all of them are synced.
//!
//! Invariants
//! * A build whose mark has another boot id is not served before its checksums are verified.
//!
//! Not here: removing and replacing builds (`index_folder`).

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

/// The extension of the files that list deleted documents.
const DELETED_EXTENSION: &str = "del";
/// The file name of the mark.
const UNSYNCED_MARKER: &str = "unsynced";
/// The file with the boot id of the system.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// A file system directory to which files are written without waiting for the disk.
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
    /// If it does not exist.
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
        // Mapped files would be cached by name, but these files may be rewritten.
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
        // A file of this name belongs to a commit that was never completed, because its writer was killed or failed.
        // The names of files with deleted documents recur, because they are numbered from the last commit on.
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

/// Returns true if the machine may have been restarted since builds were last written, so that a part of them may be
/// lost.
pub(crate) fn may_be_lost(dir: &Path) -> bool {
    match fs::read_to_string(dir.join(UNSYNCED_MARKER)) {
        Ok(mark) => read_boot_id().is_none_or(|start| start != mark),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Writes the mark. It must be called before any build is written.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn write_unsynced_marker(dir: &Path) -> io::Result<()> {
    // The folder may have been deleted while the process runs.
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

/// Syncs a build to disk, and removes the mark.
///
/// # Errors
/// If the disk fails: the mark is then retained.
pub(crate) fn sync_build(dir: &Path, build: &Path) -> io::Result<()> {
    if !dir.join(UNSYNCED_MARKER).exists() {
        return Ok(());
    }
    for file in fs::read_dir(build)? {
        let file = File::open(file?.path());
        match file.and_then(|file| file.sync_all()) {
            // The last merge may still be removing files.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            synced => synced?,
        }
    }
    File::open(build)?.sync_all()?;
    fs::remove_file(dir.join(UNSYNCED_MARKER))?;
    File::open(dir)?.sync_all()
}

/// Returns the boot id of the machine; `None` if the system does not provide one.
fn read_boot_id() -> Option<String> {
    let start = fs::read_to_string(BOOT_ID_PATH).ok()?;
    Some(start.trim().to_owned()).filter(|start| !start.is_empty())
}

/// Returns the files of the last commit whose bytes do not match their checksums.
///
/// # Errors
/// If the list of files in the commit cannot be read.
pub(crate) fn find_damaged_files(index: &tantivy::Index) -> tantivy::Result<Vec<PathBuf>> {
    let directory = index.directory();
    let metas = index.load_metas()?;
    let mut files = metas.list_segment_files();
    // The library lists this file for every segment. For a segment without deletions it is not part of the commit: an
    // existing one was left by a killed writer.
    for segment in metas.segments.iter().filter(|segment| !segment.has_deletes()) {
        files.remove(&segment.relative_path(SegmentComponent::Delete));
    }
    let mut files: Vec<PathBuf> = files.into_iter().collect();
    files.sort();
    // Files that were never created, or that a merge is removing, are not damage. A missing file is detected when the
    // index is opened.
    files.retain(|file| {
        directory.exists(file).unwrap_or(true)
            && !directory.validate_checksum(file).unwrap_or_else(|_| {
                // The file was removed between the two checks.
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
