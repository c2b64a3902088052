//! The only thing in `store` and `blobs` that touches files.
//!
//! In: names relative to one folder, `/` between folders.
//! Out: files that are read anywhere, appended to and synced; renames that survive a crash after [`Disk::sync_folder`].
//!
//! Three disks exist: [`FileDisk`], [`MemoryDisk`], and the crash disk of the tests, which records every call.

mod file_disk;
mod mapped_file;
mod memory_disk;

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use file_disk::FileDisk;
pub use mapped_file::MappedFile;
pub use memory_disk::{MemoryDisk, MemoryFile};

/// A folder of files.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file that exists.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or what the system says.
    fn open_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates an empty file, in place of one that exists, and the folders it needs.
    ///
    /// # Errors
    /// What the system says.
    fn create_file(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file, in place of one that exists, and creates the folders it needs.
    ///
    /// # Errors
    /// What the system says.
    fn rename_file(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove_file(&self, name: &str) -> io::Result<()>;

    /// Returns the names of the files and folders directly in `folder`, sorted; nothing if it does not exist. `""` is the
    /// disk's own folder.
    ///
    /// # Errors
    /// What the system says.
    fn list_folder(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Makes creations, renames and removals in `folder` durable.
    ///
    /// # Errors
    /// What the system says.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Takes the folder for this process until the guard is dropped.
    ///
    /// # Errors
    /// [`DiskLockError::AlreadyLocked`] while another guard exists.
    fn lock_folder(&self) -> Result<DiskLock, DiskLockError>;

    /// Returns where the folder is, for messages.
    fn display_path(&self) -> PathBuf;
}

/// One open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the length in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Tells whether there are no bytes.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the file ends earlier, or what the system says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes behind the last byte. After an error, any part of `bytes` may have been written.
    ///
    /// # Errors
    /// What the system says.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file to `length`.
    ///
    /// # Errors
    /// What the system says.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Makes content and length durable.
    ///
    /// # Errors
    /// What the system says. Whatever it is, what was written since the last sync is of unknown state from now on.
    fn sync(&self) -> io::Result<()>;

    /// Returns the whole content, mapped where the disk can do that. The file must not be cut while the map lives.
    ///
    /// # Errors
    /// What the system says.
    fn map_content(&self) -> io::Result<MappedFile>;

    /// Returns the system's file, if there is one, for sending without copying.
    fn as_file(&self) -> Option<&std::fs::File> {
        None
    }
}

/// Holds a [`Disk`] until it is dropped.
#[derive(Debug)]
pub struct DiskLock {
    _guard: Box<dyn Debug + Send + Sync>,
}

impl DiskLock {
    /// Wraps whatever releases the lock on being dropped.
    #[must_use]
    pub fn new(held: impl Debug + Send + Sync + 'static) -> Self {
        Self { _guard: Box::new(held) }
    }
}

/// Why a disk cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum DiskLockError {
    /// Someone holds it.
    #[error("in use")]
    AlreadyLocked {
        /// The process, if the lock file says.
        pid: Option<u32>,
    },
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] io::Error),
}
