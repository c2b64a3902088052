//! Storage of vault files: the trait that is implemented for local folders, remote folders and buckets.
//!
//! All backends use restic's layout. Calls block, and may come from any number of threads.
//!
//! Invariants of every backend
//! * A file is complete and durable when `write` returns, or does not exist: a partially written file is never visible.
//! * A file is never changed, only created and removed.

mod append_only;
mod dry_run;
mod local;
mod rate_limited;
pub(crate) mod rest;
mod s3;
pub(crate) mod sftp;
mod staged_file;
mod wrapper;

use std::fmt;
use std::io;
use std::time::SystemTime;

pub use append_only::AppendOnlyBackend;
pub(crate) use dry_run::DryRunBackend;
pub use local::{LocalBackend, NativeFileSystem, VaultFileSystem};
pub use rate_limited::{RateLimitedBackend, TransferLimits};
pub use rest::{RestAddress, RestBackend, RestLogin};
pub use s3::{S3Address, S3Backend};
pub use sftp::{SftpAddress, SftpBackend, SftpOptions, UnknownHostPolicy};
pub use staged_file::StagedFile;
pub use wrapper::BackendWrapper;

use crate::object_id::VaultObjectId;

/// The kinds of files in a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VaultFileKind {
    /// The vault's configuration.
    Config,
    /// The vault's key, sealed with a password.
    Key,
    /// A process that uses the vault.
    Lock,
    /// A finished backup.
    Snapshot,
    /// The contents of some packs.
    Index,
    /// Pieces of files, and folders.
    Pack,
}

impl fmt::Display for VaultFileKind {
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

/// Files of one kind, with their lengths in bytes.
pub(crate) type VaultFileListing = Vec<(VaultObjectId, u64)>;

/// Returns the folder of a kind of files, relative to the vault's folder.
const fn kind_folder_name(kind: VaultFileKind) -> &'static str {
    match kind {
        VaultFileKind::Config => "",
        VaultFileKind::Key => "keys",
        VaultFileKind::Lock => "locks",
        VaultFileKind::Snapshot => "snapshots",
        VaultFileKind::Index => "index",
        VaultFileKind::Pack => "data",
    }
}

/// Returns the path of a file, relative to the vault's folder.
fn vault_file_path(kind: VaultFileKind, id: &VaultObjectId) -> String {
    match kind {
        VaultFileKind::Config => "config".to_owned(),
        VaultFileKind::Pack => {
            let name = id.to_string();
            format!("data/{}/{name}", name.get(..2).unwrap_or_default())
        }
        _ => format!("{}/{id}", kind_folder_name(kind)),
    }
}

/// Returns an address that is safe to display: a password, and anything else that follows a user name or a question
/// mark, is removed.
#[must_use]
pub fn redact_address(address: &str) -> String {
    let address = match address.split_once('?') {
        Some((before, _)) => format!("{before}?***"),
        None => address.to_owned(),
    };
    let (head, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => match address.split_once(':') {
            // The prefixes before a host: `sftp:`, `s3:`, `rest:`.
            Some((scheme, rest)) if !scheme.contains(['/', '@']) => (format!("{scheme}:"), rest),
            _ => return address,
        },
    };
    // A password may contain a slash, against all rules; a path may contain the `@`, too.
    let end = rest.find('/').filter(|end| rest.get(..*end).is_some_and(|host| host.contains('@')));
    let authority = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
    let Some(at) = authority.rfind('@') else { return address };
    match (rest.get(..at).and_then(|user| user.split_once(':')), rest.get(at..)) {
        (Some((user, _)), Some(host)) => format!("{head}{user}:***{host}"),
        _ => address,
    }
}

/// Storage for the files of a vault.
pub trait VaultBackend: Send + Sync + fmt::Debug {
    /// Returns the location as shown to users.
    fn location(&self) -> String;

    /// Returns the number of concurrent calls that is worthwhile.
    fn connections(&self) -> usize {
        2
    }

    /// Returns true if each call costs a round trip to another machine.
    fn is_remote(&self) -> bool {
        false
    }

    /// Creates the folders of a new vault in an empty location.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the location is not empty; otherwise any I/O error of the system.
    fn create(&self) -> io::Result<()>;

    /// Lists the files of a kind with their lengths, in no order. Files with other names are skipped.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>>;

    /// Returns true if the file exists.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        Ok(self.list(kind)?.iter().any(|(listed_id, _)| listed_id == id))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or any other I/O error of the system.
    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>>;

    /// Reads a range of a file.
    ///
    /// # Errors
    /// As [`VaultBackend::read`]; [`io::ErrorKind::UnexpectedEof`] if the file is shorter.
    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>>;

    /// Creates a file, durably.
    ///
    /// # Errors
    /// Any I/O error of the system; the file does not exist then.
    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()>;

    /// Uploads a file without its final name: it is not visible until it is revealed. This way files that must appear
    /// in order can be uploaded concurrently. A backend without this feature retains the bytes in memory until then.
    ///
    /// # Errors
    /// Any I/O error of the system; nothing is stored then.
    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        Ok(StagedFile::in_memory(kind, *id, bytes))
    }

    /// Makes a staged file visible under its final name, complete and durable.
    ///
    /// # Errors
    /// As [`VaultBackend::write`].
    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        self.write(staged.kind, &staged.id, &staged.bytes)
    }

    /// Reveals a staged file and then lists files of some kinds, which may save one round trip: a file that existed by
    /// then is listed unless it was removed since.
    ///
    /// # Errors
    /// As [`VaultBackend::reveal`]; for each kind as [`VaultBackend::list`].
    fn reveal_then_list(
        &self,
        staged: &StagedFile,
        kinds: &[VaultFileKind],
    ) -> io::Result<Vec<io::Result<VaultFileListing>>> {
        self.reveal(staged)?;
        let list = |kind: &VaultFileKind| self.list(*kind);
        if !self.is_remote() {
            return Ok(kinds.iter().map(list).collect());
        }
        Ok(std::thread::scope(|scope| {
            let lists: Vec<_> = kinds.iter().map(|kind| scope.spawn(move || list(kind))).collect();
            let stopped = |_| Err(io::ErrorKind::Interrupted.into());
            lists.into_iter().map(|list| list.join().unwrap_or_else(stopped)).collect()
        }))
    }

    /// Removes a staged file that is not to be revealed, on a best-effort basis.
    fn discard(&self, staged: &StagedFile) {
        let _ = staged;
    }

    /// Announces up to `files` short writes in the near future: a backend may prepare for them in the background.
    fn expect_writes(&self, files: usize) {
        let _ = files;
    }

    /// Announces that no more writes follow soon: the backend releases what it prepared.
    fn expect_no_writes(&self) {}

    /// Removes a file; a missing file is not an error.
    ///
    /// # Errors
    /// Any I/O error of the system.
    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()>;

    /// Removes files that crashed writers left, as far as it is certain that they are no longer being written.
    ///
    /// # Errors
    /// If a leftover file cannot be removed.
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let _ = now;
        Ok(())
    }

    /// Removes the folders of a vault whose files were all removed and that is not in use, including leftover temporary
    /// files. A folder with foreign files stays; a backend without folders does nothing.
    ///
    /// # Errors
    /// The error of the system for what could not be removed.
    fn remove_folders(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the folders of a vault, relative to the vault's folder, each after its subfolders.
fn vault_folders() -> impl Iterator<Item = String> {
    let packs = (0..=u8::MAX).map(|number| format!("data/{number:02x}"));
    packs.chain(["data", "index", "keys", "locks", "snapshots", TEMP_DIR].map(str::to_owned))
}

/// The folder for temporary files.
const TEMP_DIR: &str = "tmp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let check = |address: &str, expected: &str| assert_eq!(redact_address(address), expected);
        check("rest:https://ann:s3cret@host:8000/x/", "rest:https://ann:***@host:8000/x/");
        check("sftp://ann:s3cret@host/x", "sftp://ann:***@host/x");
        check("sftp:ann:s3cret@host:x", "sftp:ann:***@host:x");
        check("https://ann:s3/cret@host/x", "https://ann:***@host/x");
        check("https://ann:a@b@host/x", "https://ann:***@host/x");
        check("s3:https://key:s3cret@host/bucket", "s3:https://key:***@host/bucket");
        check("https://host/x?token=s3cret", "https://host/x?***");
        for plain in [
            "/srv/vault",
            "relative:ly/odd@name",
            "sftp://ann@host:22/x",
            "sftp:ann@host:/x@y",
            "s3:host/bucket/x",
            "rest:http://localhost:8000/",
        ] {
            check(plain, plain);
        }
    }
}
