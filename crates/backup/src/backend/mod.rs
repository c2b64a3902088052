//! Where the files of a vault lie: the seam that folders, folders of other machines and buckets fill in.
//!
//! All of them have restic's layout. Calls block, and come from any number of threads.
//!
//! Invariants of every backend
//! * A file is whole and durable when `write` returns, or not there: nobody sees one that is half written.
//! * A file is never changed, only made and removed.

mod append_only;
mod dry;
mod local;
mod paced;
mod s3;
mod sftp;

use std::fmt;
use std::io;
use std::time::SystemTime;

pub use append_only::AppendOnly;
pub(crate) use dry::DryBackend;
pub use local::LocalBackend;
pub use paced::{PacedBackend, Rate};
pub use s3::{S3Address, S3Backend};
pub use sftp::{SftpAddress, SftpBackend, SftpOptions, UnknownHost};

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

/// Returns the folder of a kind of files, from the vault's folder on.
const fn folder_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Config => "",
        FileKind::Key => "keys",
        FileKind::Lock => "locks",
        FileKind::Snapshot => "snapshots",
        FileKind::Index => "index",
        FileKind::Pack => "data",
    }
}

/// Returns where a file lies, from the vault's folder on.
fn file_name(kind: FileKind, id: &Id) -> String {
    match kind {
        FileKind::Config => "config".to_owned(),
        FileKind::Pack => {
            let name = id.to_string();
            format!("data/{}/{name}", name.get(..2).unwrap_or_default())
        }
        _ => format!("{}/{id}", folder_name(kind)),
    }
}

/// A place that keeps the files of a vault.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Returns how people name the place.
    fn place(&self) -> String;

    /// Returns how many calls at once pay off.
    fn connections(&self) -> usize {
        2
    }

    /// Tells whether each call costs a round trip to another machine.
    fn is_remote(&self) -> bool {
        false
    }

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

    /// Tells whether a file is there.
    ///
    /// # Errors
    /// What the system says.
    fn contains(&self, kind: FileKind, id: &Id) -> io::Result<bool> {
        Ok(self.list(kind)?.iter().any(|(one, _)| one == id))
    }

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

    /// Removes what crashed writers left, as far as it is certain that nobody writes it any more.
    ///
    /// # Errors
    /// If something that was left cannot be removed.
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let _ = now;
        Ok(())
    }
}
