//! Where the files of a vault lie: the seam that folders, folders of other machines and buckets fill in.
//!
//! All of them have restic's layout. Calls block, and come from any number of threads.
//!
//! Invariants of every backend
//! * A file is whole and durable when `write` returns, or not there: nobody sees one that is half written.
//! * A file is never changed, only made and removed.

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

/// Files of a kind, with their lengths.
pub(crate) type VaultFileListing = Vec<(VaultObjectId, u64)>;

/// Returns the folder of a kind of files, from the vault's folder on.
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

/// Returns where a file lies, from the vault's folder on.
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

/// Returns an address as it may be shown: a password, or what else stands behind a user's name or a question mark, is left
/// out.
#[must_use]
pub fn redact_address(address: &str) -> String {
    let address = match address.split_once('?') {
        Some((before, _)) => format!("{before}?***"),
        None => address.to_owned(),
    };
    let (head, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => match address.split_once(':') {
            // The words before a host: `sftp:`, `s3:`, `rest:`.
            Some((scheme, rest)) if !scheme.contains(['/', '@']) => (format!("{scheme}:"), rest),
            _ => return address,
        },
    };
    // A password may hold a slash, against all rules; a path may hold the sign, too.
    let end = rest.find('/').filter(|end| rest.get(..*end).is_some_and(|host| host.contains('@')));
    let authority = rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest);
    let Some(at) = authority.rfind('@') else { return address };
    match (rest.get(..at).and_then(|user| user.split_once(':')), rest.get(at..)) {
        (Some((user, _)), Some(host)) => format!("{head}{user}:***{host}"),
        _ => address,
    }
}

/// A place that keeps the files of a vault.
pub trait VaultBackend: Send + Sync + fmt::Debug {
    /// Returns how people name the place.
    fn location(&self) -> String;

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
    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>>;

    /// Tells whether a file is there.
    ///
    /// # Errors
    /// What the system says.
    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        Ok(self.list(kind)?.iter().any(|(one, _)| one == id))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or what else the system says.
    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>>;

    /// Reads a part of a file.
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

    /// Makes a file, durably.
    ///
    /// # Errors
    /// What the system says; the file is not there then.
    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()>;

    /// Brings a file to the place without its name: nobody sees it until it is revealed. Files that wait for each other
    /// to appear can be brought at once this way. A place that has no such thing keeps the bytes here until then.
    ///
    /// # Errors
    /// What the system says; nothing is there then.
    fn stage(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        bytes: Vec<u8>,
    ) -> io::Result<StagedFile> {
        Ok(StagedFile::in_memory(kind, *id, bytes))
    }

    /// Lets a staged file appear under its name, whole and durable.
    ///
    /// # Errors
    /// As [`VaultBackend::write`].
    fn reveal(&self, staged: &StagedFile) -> io::Result<()> {
        self.write(staged.kind, &staged.id, &staged.bytes)
    }

    /// Lets a staged file appear, and then lists files of some kinds, which may take one round trip less: a file that was
    /// there by then is among them unless it was removed since.
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

    /// Removes a staged file that is not to appear, as far as that is possible now.
    fn discard(&self, staged: &StagedFile) {
        let _ = staged;
    }

    /// Says that up to so many short files will be written soon: a place may prepare for them while nobody waits.
    fn expect_writes(&self, files: usize) {
        let _ = files;
    }

    /// Says that no more files will be written soon: what was prepared goes.
    fn expect_no_writes(&self) {}

    /// Removes a file; it is fine if it is gone.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()>;

    /// Removes what crashed writers left, as far as it is certain that nobody writes it any more.
    ///
    /// # Errors
    /// If something that was left cannot be removed.
    fn remove_leftovers(&self, now: SystemTime) -> io::Result<()> {
        let _ = now;
        Ok(())
    }

    /// Removes the folders of a vault of which all files were removed and that nobody uses, with what writers left in them.
    /// A folder in which somebody else put something stays; a place without folders has nothing to remove.
    ///
    /// # Errors
    /// What the system says of what could not be removed.
    fn remove_folders(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The folders of a vault, each after those in it, from the vault's folder on.
fn vault_folders() -> impl Iterator<Item = String> {
    let packs = (0..=u8::MAX).map(|number| format!("data/{number:02x}"));
    packs.chain(["data", "index", "keys", "locks", "snapshots", TEMP_DIR].map(str::to_owned))
}

/// The folder for files that have no name yet.
const TEMP_DIR: &str = "tmp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let check = |address: &str, shown: &str| assert_eq!(redact_address(address), shown);
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
