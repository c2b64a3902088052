//! Where the files of a vault lie: the seam that folders, and other places later, fill in.
//!
//! Invariants of every backend
//! * A file is whole and durable when `write` returns, or not there.
//! * A file is never changed, only made and removed.

mod local;

use std::fmt;
use std::io;

pub use local::LocalBackend;

use crate::id::Id;

/// The kinds of files in a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// The one that says what the vault is.
    Config,
    /// The vault's key, sealed with a password.
    Key,
    /// A process that uses the vault.
    Lock,
    /// A finished backup.
    Snapshot,
    /// What is in some packs.
    Index,
    /// Pieces of files, and folders.
    Pack,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Config => "config",
            Self::Key => "key",
            Self::Lock => "lock",
            Self::Snapshot => "snapshot",
            Self::Index => "index",
            Self::Pack => "pack",
        })
    }
}

/// A place that keeps the files of a vault.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns how people name the place.
    fn place(&self) -> String;

    /// Makes the folders of a new vault in an empty place.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if anything is there; otherwise what the system says.
    fn create(&self) -> io::Result<()>;

    /// Lists the files of a kind with their lengths, in no order. Files with other names are passed over.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, kind: FileKind) -> io::Result<Vec<(Id, u64)>>;

    /// Reads a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or what else the system says.
    fn read(&self, kind: FileKind, id: &Id) -> io::Result<Vec<u8>>;

    /// Reads a part of a file.
    ///
    /// # Errors
    /// As [`Backend::read`]; [`io::ErrorKind::UnexpectedEof`] if the file is shorter.
    fn read_range(&self, kind: FileKind, id: &Id, start: u64, length: usize)
    -> io::Result<Vec<u8>>;

    /// Makes a file, durably.
    ///
    /// # Errors
    /// What the system says; the file is not there then.
    fn write(&self, kind: FileKind, id: &Id, bytes: &[u8]) -> io::Result<()>;

    /// Removes a file; it is fine if it is gone.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, kind: FileKind, id: &Id) -> io::Result<()>;
}
