//! A disk on a folder of the file system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FlockOperation;

use super::file_access::{Disk, DiskFile, DiskLock, DiskLockError};
use super::mapped_file::MappedFile;

const LOCK_FILE: &str = "lock";
/// The file mode: no access for the group and for other users of the machine. The content can hold confidential data
/// and password hashes.
const FILE_PERMISSIONS: u32 = 0o600;
const FOLDER_PERMISSIONS: u32 = 0o700;

/// A disk on a folder of the file system.
#[derive(Clone, Debug)]
pub struct FileDisk {
    dir: PathBuf,
    /// True if another process writes the folder.
    is_read_only: bool,
}

impl FileDisk {
    /// Opens a folder; creates it and its parents if they are missing.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        create_dir_durably(&dir)?;
        Ok(Self { dir, is_read_only: false })
    }

    /// Opens a folder that another process writes. No file in it is opened for writing, even if the permissions allow
    /// it.
    #[must_use]
    pub fn open_read_only(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), is_read_only: true }
    }

    /// Returns true if a process has locked the folder. Nothing in it is created or changed.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn is_folder_locked(&self) -> io::Result<bool> {
        let file = match File::open(self.path_of(LOCK_FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        // Shared, so that two processes that ask at the same time do not see each other.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns an error if the disk is read-only.
    fn check_writable(&self) -> io::Result<()> {
        if self.is_read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates the parent folders of a file, durably.
    fn create_folders(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            // The disk's own folder is not created again if someone has removed it.
            Some(folder) if folder != self.dir && self.dir.is_dir() => create_dir_durably(folder),
            _ => Ok(()),
        }
    }
}

impl Disk for FileDisk {
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.path_of(name);
        if self.is_read_only {
            return Ok(Arc::new(SystemFile { file: File::open(path)? }));
        }
        let file = match OpenOptions::new().read(true).append(true).open(&path) {
            // A folder that is mounted read-only can still be read.
            Err(error) if is_read_only_error(&error) => File::open(path)?,
            file => file?,
        };
        Ok(Arc::new(SystemFile { file }))
    }

    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.check_writable()?;
        let path = self.path_of(name);
        self.create_folders(&path)?;
        // Truncation and appending exclude each other when opening; the file is truncated right after.
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(FILE_PERMISSIONS);
        let file = options.open(path)?;
        file.set_len(0)?;
        Ok(Arc::new(SystemFile { file }))
    }

    fn rename_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.check_writable()?;
        let to = self.path_of(to);
        self.create_folders(&to)?;
        fs::rename(self.path_of(from), to)
    }

    fn remove_file(&self, name: &str) -> io::Result<()> {
        self.check_writable()?;
        fs::remove_file(self.path_of(name))
    }

    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path_of(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // This program writes no file names that are not UTF-8.
            names.extend(entry?.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        sync_dir(&self.path_of(folder))
    }

    fn lock_folder(&self) -> Result<DiskLock, DiskLockError> {
        self.check_writable()?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_PERMISSIONS)
            .open(self.path_of(LOCK_FILE))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok();
                let pid = pid.and_then(|_| text.trim().parse().ok());
                return Err(DiskLockError::AlreadyLocked { pid });
            }
            Err(error) => return Err(DiskLockError::Io(error.into())),
        }
        // The pid is only information for other processes: on a full disk the lock holds without it.
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::debug!(reason = %error, "cannot write the process id to the lock file");
        }
        Ok(DiskLock::new(file))
    }

    fn display_path(&self) -> PathBuf {
        self.dir.clone()
    }
}

/// Creates a folder and its missing parents, each durably.
fn create_dir_durably(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().unwrap_or(Path::new(""));
    create_dir_durably(parent)?;
    match fs::DirBuilder::new().mode(FOLDER_PERMISSIONS).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !dir.is_dir() => Err(error),
        _ => sync_dir(parent),
    }
}

fn is_read_only_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)?.sync_all()
}

#[derive(Debug)]
struct SystemFile {
    file: File,
}

impl DiskFile for SystemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn map_content(&self) -> io::Result<MappedFile> {
        MappedFile::map_file(&self.file)
    }

    fn as_file(&self) -> Option<&File> {
        Some(&self.file)
    }
}
