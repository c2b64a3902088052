//! The file access of `store` and `blobs`; no other module of theirs touches files.
//!
//! In: names relative to one folder, `/` between folders. Out: files that are read at any offset, appended to and
//! synced; renames that survive a crash after [`Disk::sync_folder`].
//!
//! Three disks exist: [`FileDisk`], [`MemoryDisk`], and the crash disk of the tests, which records every call.

mod file_access;
mod file_disk;
mod mapped_file;
mod memory_disk;

pub use file_access::{Disk, DiskFile, DiskLock, DiskLockError};
pub use file_disk::FileDisk;
pub use mapped_file::MappedFile;
pub use memory_disk::{MemoryDisk, MemoryFile};
