//! The error type of backups.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::backend::VaultFileKind;
use crate::object_id::VaultObjectId;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns true if the requested bytes are missing or unreadable on the medium, which is not a transient error.
pub(crate) fn is_data_lost(error: &io::Error) -> bool {
    let is_of_medium = || {
        let of_medium = [Errno::IO, Errno::BADMSG, Errno::UCLEAN];
        Errno::from_io_error(error).is_some_and(|errno| of_medium.contains(&errno))
    };
    match error.kind() {
        ErrorKind::NotFound
        | ErrorKind::UnexpectedEof
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory => true,
        _ => is_of_medium(),
    }
}

/// Returns true if the same call may succeed later: a broken connection, or a server that is busy or does not respond.
pub(crate) fn is_transient_io(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::WouldBlock
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
            | ErrorKind::ResourceBusy
            | ErrorKind::StaleNetworkFileHandle
    )
}

/// Errors of backups, restores and other vault operations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The location contains no vault.
    #[error("there is no vault at `{place}`; create one with `tympan backup init -r {place}`")]
    NoVault {
        /// The location.
        place: String,
    },
    /// A vault already exists.
    #[error(
        "`{place}` already contains a vault or other files; a new vault needs an empty location"
    )]
    VaultExists {
        /// The location.
        place: String,
    },
    /// No key of the vault opens with the password.
    #[error("the password does not open any key of the vault")]
    WrongPassword,
    /// The format version of the vault is not supported.
    #[error(
        "the vault has format version {version}; versions 1 and 2 can be read, and version 2 can be written"
    )]
    UnknownVersion {
        /// The version of the format.
        version: u32,
    },
    /// Another process uses the vault in a way that excludes this one.
    #[error(
        "the vault is locked{} by process {pid} of {user} on {host} since {since}; wait for it, or remove \
         stale locks with `tympan backup unlock`",
        if *exclusive { " exclusively" } else { "" }
    )]
    Locked {
        /// The host of the process.
        host: String,
        /// The user of the process.
        user: String,
        /// The process id.
        pid: u32,
        /// The time at which the lock was last refreshed.
        since: String,
        /// True if the lock excludes all other processes.
        exclusive: bool,
    },
    /// This process did not refresh its lock in time, so that others may have ignored it.
    #[error(
        "the lock of this run was not renewed in time, or was removed; nothing more was written: run it again"
    )]
    LockLost,
    /// The backend failed.
    #[error("cannot {action} {what} of the vault")]
    Backend {
        /// The attempted operation.
        action: &'static str,
        /// The file concerned.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A file of the vault does not match its name.
    #[error("the {kind} `{id}` of the vault is damaged: {fault}")]
    Damaged {
        /// The kind of the file.
        kind: VaultFileKind,
        /// The name of the file.
        id: VaultObjectId,
        /// The fault.
        fault: String,
    },
    /// A piece of a file, or a folder, is missing from the vault or damaged.
    #[error("the {what} `{id}` cannot be read from the vault: {fault}")]
    UnreadableBlob {
        /// What the blob is part of.
        what: &'static str,
        /// The id of the blob.
        id: VaultObjectId,
        /// The fault.
        fault: String,
    },
    /// No snapshot has this name.
    #[error("no snapshot is named `{name}`; `tympan backup list` shows all snapshots")]
    SnapshotMissing {
        /// The requested name.
        name: String,
    },
    /// None of the requested clients has saved into the vault.
    #[error(
        "the vault has no snapshot of `{names}`, only of `{others}`; select with `--host NAME` or \
         `--all-clients`"
    )]
    ClientMissing {
        /// The requested clients.
        names: String,
        /// The clients that have saved.
        others: String,
    },
    /// More than one snapshot id begins with this prefix.
    #[error("several snapshots begin with `{name}`; give more digits")]
    SnapshotAmbiguous {
        /// The requested name.
        name: String,
    },
    /// The snapshot does not contain the requested path.
    #[error("the snapshot `{snapshot}` does not hold `{path}`")]
    PathMissing {
        /// The snapshot, by its short id.
        snapshot: String,
        /// The requested path.
        path: String,
    },
    /// A source cannot be read at all.
    #[error("cannot read `{}`", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A target cannot be written.
    #[error("cannot write `{}`", path.display())]
    Target {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot mount the file system.
    #[error("cannot mount at `{}`: {advice}", dir.display())]
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// Advice for the user.
        advice: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The vault lacks data that its snapshots refer to, so nothing is removed from it.
    #[error(
        "{fault}; nothing is removed from a damaged vault: `tympan backup check` shows what is wrong, and \
         `tympan backup repair` repairs it"
    )]
    DamagedVault {
        /// The missing data.
        fault: String,
    },
    /// The access to a vault cannot be prepared.
    #[error("{0}")]
    Access(String),
    /// The request is not valid.
    #[error("{0}")]
    InvalidRequest(String),
    /// The repository no longer retains the root that was being read.
    #[error(
        "`{repository}` no longer retains the state that was being read, because this run could not renew its \
         lease in time: run it again"
    )]
    RootExpired {
        /// The repository, by its folder or URL.
        repository: String,
    },
    /// The content repository failed.
    #[error("cannot read the repository")]
    Store(#[from] tympan_store::Error),
    /// A document of a content repository cannot be rendered as text.
    #[error("cannot render the document `{path}`: {reason}")]
    Document {
        /// The path of the document.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The blobs of a content repository failed.
    #[error("cannot read the blobs of the repository")]
    Blobs(#[from] tympan_blobs::Error),
    /// The system provides no random bytes.
    #[error("cannot get random bytes from the system: {0}")]
    Random(String),
    /// The run was stopped from outside.
    #[error("the run was interrupted; the next run reuses what is already in the vault")]
    Interrupted,
}

impl Error {
    /// Creates the error of a backend call.
    pub(crate) fn backend(
        action: &'static str,
        kind: VaultFileKind,
        id: &VaultObjectId,
    ) -> impl FnOnce(io::Error) -> Self {
        let object = match kind {
            VaultFileKind::Config => "the file `config`".to_owned(),
            _ => format!("the {kind} `{id}`"),
        };
        move |source| Self::Backend { action, what: object, source }
    }

    /// Creates the error for a damaged vault file.
    pub(crate) fn damaged(kind: VaultFileKind, id: &VaultObjectId, fault: &impl ToString) -> Self {
        Self::Damaged { kind, id: *id, fault: fault.to_string() }
    }

    /// Returns true if a retry can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Locked { .. } | Self::RootExpired { .. } => true,
            Self::Backend { source, .. } => is_transient_io(source),
            Self::Store(error) => error.is_transient(),
            Self::Blobs(error) => error.is_transient(),
            _ => false,
        }
    }

    /// Returns true if a vault file exists but is damaged, or cannot be read from the medium.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Backend { source, .. } => {
                is_data_lost(source) && source.kind() != ErrorKind::NotFound
            }
            _ => false,
        }
    }

    /// Returns true if a source failed: other sources can still be saved into the vault.
    #[must_use]
    pub fn is_source_error(&self) -> bool {
        matches!(
            self,
            Self::Source { .. }
                | Self::Store(_)
                | Self::Blobs(_)
                | Self::Document { .. }
                | Self::RootExpired { .. }
                | Self::InvalidRequest(_)
        )
    }

    /// Returns true if vault data is lost rather than out of reach: the rest can still be read.
    pub(crate) fn is_loss(&self) -> bool {
        match self {
            Self::UnreadableBlob { .. } | Self::Damaged { .. } => true,
            Self::Backend { source, .. } => is_data_lost(source),
            _ => false,
        }
    }
}
