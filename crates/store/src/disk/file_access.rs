//! The interface of a disk and of its files.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::mapped_file::MappedFile;

/// A folder of files.
pub trait Disk: Debug + Send + Sync {
    /// Opens an existing file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or an error of the operating system.
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates an empty file, replacing an existing one, and the folders it needs.
    ///
    /// # Errors
    /// An error of the operating system.
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, replacing an existing one, and creates the folders it needs.
    ///
    /// # Errors
    /// An error of the operating system.
    fn rename_file(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// An error of the operating system.
    fn remove_file(&self, name: &str) -> io::Result<()>;

    /// Returns the names of the files and folders directly in `folder`, sorted; empty if the folder does not exist.
    /// `""` is the disk's own folder.
    ///
    /// # Errors
    /// An error of the operating system.
    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes creations, renames and removals in `folder` durable.
    ///
    /// # Errors
    /// An error of the operating system.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Locks the folder for this process until the guard is dropped.
    ///
    /// # Errors
    /// [`DiskLockError::AlreadyLocked`] while another guard exists.
    fn lock_folder(&self) -> Result<DiskLock, DiskLockError>;

    /// Returns the path of the folder, for messages.
    fn display_path(&self) -> PathBuf;
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the length in bytes.
    ///
    /// # Errors
    /// An error of the operating system.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the file is empty.
    ///
    /// # Errors
    /// An error of the operating system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends earlier, or an error of the operating system.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Appends `bytes` to the file. After an error, any part of `bytes` may have been written.
    ///
    /// # Errors
    /// An error of the operating system.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Truncates the file to `length` bytes.
    ///
    /// # Errors
    /// An error of the operating system.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes content and length durable.
    ///
    /// # Errors
    /// An error of the operating system. After any error, the state of everything written since the last sync is
    /// unknown.
    fn sync(&self) -> io::Result<()>;

    /// Returns the whole content, mapped where the disk supports it. The file must not be truncated while the map
    /// exists.
    ///
    /// # Errors
    /// An error of the operating system.
    fn map_content(&self) -> io::Result<MappedFile>;

    /// Returns the file handle of the operating system, if there is one, for sending without copying.
    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Holds the lock of a [`Disk`] until it is dropped.
#[derive(Debug)]
pub struct DiskLock {
    _guard: Box<dyn Debug + Send + Sync>,
}

impl DiskLock {
    /// Wraps a value that releases the lock when it is dropped.
    #[must_use]
    pub fn new(guard: impl Debug + Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(guard) }
    }
}

/// The reason why a disk cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum DiskLockError {
    /// Another process or guard holds the lock.
    #[error("in use")]
    AlreadyLocked {
        /// The process that holds the lock, if the lock file names it.
        pid: Option<u32>,
    },
    /// The operating system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}
