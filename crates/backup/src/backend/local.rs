//! A vault in a local folder.
//!
//! Invariants
//! * A file is written under a unique name in `tmp`, synced, renamed, and its folder synced: after a power loss it is
//!   complete or absent.
//! * A file system that cannot sync folders, lock files or remove write permission, as some network file systems, is
//!   reported once and can still hold a vault.
//! * Files that a crash left in `tmp` are removed by a later run: their writer held a lock on them, which is released
//!   when the process ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tracing::warn;

use super::vault_backend::VaultBackend;
use super::vault_file::{
    TEMP_DIR, VaultFileKind, kind_folder_name, vault_file_path, vault_folders,
};
use crate::object_id::VaultObjectId;

/// The file system calls that a vault folder makes, one method per call. Tests implement it to simulate what a power
/// loss may leave behind. Reads do not go through it.
pub trait VaultFileSystem: Send + Sync + std::fmt::Debug {
    /// Creates a new file with the given bytes and locks it until it is closed. Nothing is durable yet.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<File>;

    /// Makes the bytes of a file durable.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()>;

    /// Renames a file, replacing an existing file with the new name.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates a folder and its missing parents.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct NativeFileSystem;

impl VaultFileSystem for NativeFileSystem {
    fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        // Some file systems offer no locks. Without a lock, a sweep treats the file as abandoned after an hour.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::NOLCK) => {}
            Err(error) if is_unsupported(&error.into()) => {}
            locked => locked?,
        }
        file.write_all(bytes)?;
        match file.set_permissions(fs::Permissions::from_mode(0o400)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied || is_unsupported(&error) => {
            }
            set => set?,
        }
        Ok(file)
    }

    fn sync_file(&self, file: &File, _: &Path) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Minimum age of a file in `tmp` before it may be swept. A younger file may not have been locked yet by the process
/// that created it.
const MIN_SWEEP_AGE: Duration = Duration::from_hours(1);
/// Maximum number of packs that stay open for reading.
const MAX_OPEN_PACKS: usize = 64;

/// A vault in a local folder.
#[derive(Debug)]
pub struct LocalBackend {
    dir: PathBuf,
    /// The most recently read packs, newest at the end.
    open_packs: Mutex<Vec<(VaultObjectId, std::sync::Arc<File>)>>,
    file_system: Box<dyn VaultFileSystem>,
    /// Set once the warning that folders cannot be synced has been logged.
    has_warned_of_sync: AtomicBool,
}

impl LocalBackend {
    /// Creates a backend for the folder, without accessing it.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self::with_file_system(Box::new(NativeFileSystem), dir)
    }

    /// Like [`LocalBackend::new`], with a given file system.
    #[must_use]
    pub fn with_file_system(disk: Box<dyn VaultFileSystem>, dir: impl Into<PathBuf>) -> Self {
        let (open, is_warned) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        Self { dir: dir.into(), open_packs: open, file_system: disk, has_warned_of_sync: is_warned }
    }

    /// Makes the names in a folder durable, where the file system supports it.
    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        match self.file_system.sync_folder(folder) {
            Err(error) if is_unsupported(&error) => {
                if !self.has_warned_of_sync.swap(true, Ordering::Relaxed) {
                    warn!(file = %folder.display(), %error, "the file system cannot sync folders: a power \
                        loss may lose the data that was saved last");
                }
                Ok(())
            }
            synced => synced,
        }
    }

    fn file_path(&self, kind: VaultFileKind, id: &VaultObjectId) -> PathBuf {
        self.dir.join(vault_file_path(kind, id))
    }

    /// Returns the open file of a pack.
    fn open_pack(&self, id: &VaultObjectId) -> io::Result<std::sync::Arc<File>> {
        if let Some((_, file)) = self.open_packs.lock().iter().find(|(of, _)| of == id) {
            return Ok(file.clone());
        }
        let file = std::sync::Arc::new(File::open(self.file_path(VaultFileKind::Pack, id))?);
        let mut open = self.open_packs.lock();
        if open.len() >= MAX_OPEN_PACKS {
            open.remove(0);
        }
        open.push((*id, file.clone()));
        Ok(file)
    }

    /// Removes files that crashed writers left.
    fn remove_abandoned_files(&self, now: SystemTime) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(self.dir.join(TEMP_DIR)) else { return Ok(()) };
        for entry in entries {
            let path = entry?.path();
            let Ok(file) = File::open(&path) else { continue };
            let age = file.metadata()?.modified()?;
            let is_old = now.duration_since(age).is_ok_and(|age| age > MIN_SWEEP_AGE);
            if is_old && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            {
                self.file_system.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

impl VaultBackend for LocalBackend {
    fn location(&self) -> String {
        self.dir.display().to_string()
    }

    fn create(&self) -> io::Result<()> {
        self.file_system.create_folder(&self.dir)?;
        if fs::read_dir(&self.dir)?.next().is_some() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        for folder in vault_folders().collect::<Vec<_>>().iter().rev() {
            self.file_system.create_folder(&self.dir.join(folder))?;
        }
        self.sync_folder(&self.dir.join("data"))?;
        self.sync_folder(&self.dir)?;
        let above = self.dir.parent().filter(|above| above.is_dir());
        above.map_or(Ok(()), |above| self.sync_folder(above))
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        let mut objects = Vec::new();
        match kind {
            VaultFileKind::Config => {
                let length = fs::metadata(self.dir.join("config"))?.len();
                objects.push((VaultObjectId::default(), length));
            }
            VaultFileKind::Pack => {
                for folder in fs::read_dir(self.dir.join("data"))? {
                    let folder = folder?;
                    if folder.file_type()?.is_dir() {
                        list_folder(&folder.path(), &mut objects)?;
                    }
                }
            }
            _ => list_folder(&self.dir.join(kind_folder_name(kind)), &mut objects)?,
        }
        Ok(objects)
    }

    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        self.file_path(kind, id).try_exists()
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.file_path(kind, id))?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let file = match kind {
            VaultFileKind::Pack => self.open_pack(id)?,
            _ => std::sync::Arc::new(File::open(self.file_path(kind, id))?),
        };
        // The length comes from an index, which may be wrong: the file's length bounds the allocation.
        if file.metadata()?.len() < start.saturating_add(length as u64) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        let path = self.file_path(kind, id);
        let folder = path.parent().unwrap_or(&self.dir);
        let temporary = self.temp_path()?;
        let written = self.file_system.write_new(&temporary, bytes).and_then(|locked| {
            self.file_system.sync_file(&locked, &temporary)?;
            match self.file_system.rename(&temporary, &path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.file_system.create_folder(folder)?;
                    folder.parent().map_or(Ok(()), |above| self.sync_folder(above))?;
                    self.file_system.rename(&temporary, &path)
                }
                renamed => renamed,
            }?;
            self.sync_folder(folder)
        });
        if written.is_err() {
            // The error to report is the one of the failed write. If the file cannot be removed now, a later sweep
            // removes it.
            self.file_system.remove_file(&temporary).ok();
        }
        written
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        if kind == VaultFileKind::Pack {
            self.open_packs.lock().retain(|(open, _)| open != id);
        }
        let path = self.file_path(kind, id);
        match self.file_system.remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        self.sync_folder(path.parent().unwrap_or(&self.dir))
    }

    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        self.remove_abandoned_files(now)
    }

    fn remove_folders(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join(TEMP_DIR)).into_iter().flatten().flatten() {
            // A file that cannot be removed makes the removal of its folder fail, which reports it.
            self.file_system.remove_file(&entry.path()).ok();
        }
        let folders = vault_folders().map(|folder| self.dir.join(folder)).chain([self.dir.clone()]);
        // Remove every folder that can be removed, even if others fail.
        folders.map(|folder| remove_folder(&folder)).fold(Ok(()), Result::and)
    }
}

impl LocalBackend {
    /// Returns an unused path in `tmp`.
    fn temp_path(&self) -> io::Result<PathBuf> {
        let mut random = [0; 12];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let name = hex::encode(random);
        let folder = self.dir.join(TEMP_DIR);
        if !folder.is_dir() {
            // Vaults created by restic have no such folder.
            self.file_system.create_folder(&folder)?;
        }
        Ok(folder.join(name))
    }
}

/// Removes an empty folder; a missing folder is not an error.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn list_folder(folder: &Path, objects: &mut Vec<(VaultObjectId, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        match entry.metadata() {
            Ok(facts) if facts.is_file() => objects.push((id, facts.len())),
            Ok(_) => {}
            // Another process removed it concurrently.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns true if the file system does not support the requested operation.
fn is_unsupported(error: &io::Error) -> bool {
    let unsupported_errors = [Errno::INVAL, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS];
    Errno::from_io_error(error).is_some_and(|error| unsupported_errors.contains(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system's file system with a replaced folder sync.
    struct FaultySyncFileSystem(fn(&Path) -> io::Result<()>);

    impl std::fmt::Debug for FaultySyncFileSystem {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Odd")
        }
    }

    impl VaultFileSystem for FaultySyncFileSystem {
        fn write_new(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
            NativeFileSystem.write_new(path, bytes)
        }
        fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
            NativeFileSystem.sync_file(file, path)
        }
        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            NativeFileSystem.rename(from, to)
        }
        fn create_folder(&self, path: &Path) -> io::Result<()> {
            NativeFileSystem.create_folder(path)
        }
        fn remove_file(&self, path: &Path) -> io::Result<()> {
            NativeFileSystem.remove_file(path)
        }
        fn sync_folder(&self, path: &Path) -> io::Result<()> {
            (self.0)(path)
        }
    }

    fn written_with(sync: fn(&Path) -> io::Result<()>) -> (io::Result<()>, LocalBackend) {
        let dir = tempfile::tempdir().unwrap();
        let backend = LocalBackend::with_file_system(
            Box::new(FaultySyncFileSystem(sync)),
            dir.path().join("vault"),
        );
        backend
            .create()
            .and_then(|()| {
                let id = VaultObjectId::of(b"bytes");
                backend.write(VaultFileKind::Pack, &id, b"bytes")?;
                assert_eq!(backend.read(VaultFileKind::Pack, &id)?, b"bytes");
                backend.remove(VaultFileKind::Pack, &id)
            })
            .map_or_else(|error| (Err(error), LocalBackend::new("")), |()| (Ok(()), backend))
    }

    #[test]
    fn a_file_system_that_syncs_no_folders_holds_a_vault() {
        for refuse in [(|_| Err(Errno::INVAL.into())) as fn(&Path) -> io::Result<()>, |_| {
            Err(Errno::NOTSUP.into())
        }] {
            let (written, backend) = written_with(refuse);
            written.unwrap();
            assert!(backend.has_warned_of_sync.into_inner());
        }
    }

    #[test]
    fn a_sync_that_fails_otherwise_fails_the_write() {
        let (written, _) = written_with(|_| Err(Errno::IO.into()));
        assert_eq!(written.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        let (written, backend) = written_with(|folder| File::open(folder)?.sync_all());
        written.unwrap();
        assert!(!backend.has_warned_of_sync.into_inner());
    }
}
