//! What can go wrong with backups.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::io::Errno;

use crate::backend::VaultFileKind;
use crate::object_id::VaultObjectId;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Tells whether the bytes that were asked for are not there, or not to be read from the medium: nothing that passes.
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

/// Tells whether the same call may succeed a moment later: a connection that broke, a server that is busy or does not
/// answer.
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

/// Why a backup, a restore or a look into a vault failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no vault in this place.
    #[error("there is no vault at `{place}`; make one with `tympan backup init -r {place}`")]
    NoVault {
        /// Where one was looked for.
        place: String,
    },
    /// There is a vault already.
    #[error("`{place}` holds a vault, or other files; a new one needs an empty place")]
    VaultExists {
        /// Where one should be made.
        place: String,
    },
    /// No key of the vault opens with the password.
    #[error("the password opens no key of the vault")]
    WrongPassword,
    /// The vault has a version that is not known.
    #[error(
        "the vault has format version {version}; versions 1 and 2 can be read, and 2 be written"
    )]
    UnknownVersion {
        /// The version of the format.
        version: u32,
    },
    /// Another process uses the vault in a way that excludes this one.
    #[error(
        "the vault is locked{} by process {pid} of {user} on {host} since {since}; wait for it, or remove the locks of \
         processes that are gone with `tympan backup unlock`",
        if *exclusive { " exclusively" } else { "" }
    )]
    Locked {
        /// Its host.
        host: String,
        /// Its user.
        user: String,
        /// Its process.
        pid: u32,
        /// When it last said that it lives.
        since: String,
        /// Whether it excludes everybody.
        exclusive: bool,
    },
    /// This process could not tell others in time that it lives, so that they may have passed it over.
    #[error(
        "the lock of this run was not renewed for too long, or was removed; nothing more was written: run it again"
    )]
    LockLost,
    /// The backend failed.
    #[error("cannot {action} {what} of the vault")]
    Backend {
        /// What was tried.
        action: &'static str,
        /// With which file.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the vault is not what its name says.
    #[error("the {kind} `{id}` of the vault is damaged: {fault}")]
    Damaged {
        /// The kind of file.
        kind: VaultFileKind,
        /// Its name.
        id: VaultObjectId,
        /// What is wrong.
        fault: String,
    },
    /// A piece of a file, or a folder, is not in the vault, or damaged.
    #[error("the {what} `{id}` cannot be read from the vault: {fault}")]
    UnreadableBlob {
        /// What it is part of.
        what: &'static str,
        /// The piece.
        id: VaultObjectId,
        /// What is wrong.
        fault: String,
    },
    /// No snapshot has this name.
    #[error("no snapshot is called `{name}`; `tympan backup list` shows them")]
    SnapshotMissing {
        /// What was asked for.
        name: String,
    },
    /// None of the clients that are asked for has saved into the vault.
    #[error(
        "the vault holds no snapshot of `{names}`, but of `{others}`; choose with `--host NAME`, or `--all-clients`"
    )]
    ClientMissing {
        /// Who was asked for.
        names: String,
        /// Who has saved.
        others: String,
    },
    /// More than one snapshot has a name that begins so.
    #[error("several snapshots begin with `{name}`; give more of its digits")]
    SnapshotAmbiguous {
        /// What was asked for.
        name: String,
    },
    /// A snapshot does not hold what is asked for.
    #[error("the snapshot `{snapshot}` does not hold `{path}`")]
    PathMissing {
        /// The snapshot, by its short id.
        snapshot: String,
        /// What was asked for.
        path: String,
    },
    /// A source cannot be read at all.
    #[error("cannot read `{}`", path.display())]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A target cannot be written.
    #[error("cannot write `{}`", path.display())]
    Target {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not mount.
    #[error("cannot mount at `{}`: {advice}", dir.display())]
    Mount {
        /// Where.
        dir: PathBuf,
        /// What to do about it.
        advice: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The vault lacks what its snapshots refer to, so that nothing is removed from it.
    #[error(
        "{fault}; nothing is removed from a damaged vault: `tympan backup check` tells what is wrong, and \
         `tympan backup repair` makes it sound again"
    )]
    DamagedVault {
        /// What is lacking.
        fault: String,
    },
    /// A request that cannot be carried out as it stands.
    #[error("{0}")]
    InvalidRequest(String),
    /// The repository keeps the root no more that was being read.
    #[error(
        "`{repository}` no longer keeps the state that was being read, as this run could not renew its lease for too \
         long: run it again"
    )]
    RootExpired {
        /// The repository, by its folder or URL.
        repository: String,
    },
    /// The content repository failed.
    #[error("the repository cannot be read")]
    Store(#[from] tympan_store::Error),
    /// A document of a content repository cannot be drawn for people to read.
    #[error("the document `{path}` cannot be drawn: {reason}")]
    Document {
        /// Its path.
        path: String,
        /// Why not.
        reason: String,
    },
    /// The blobs of a content repository failed.
    #[error("the blobs of the repository cannot be read")]
    Blobs(#[from] tympan_blobs::Error),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    /// The run was stopped from outside.
    #[error("the run was interrupted; what is in the vault so far is found again by the next one")]
    Interrupted,
}

impl Error {
    /// Makes the error of a backend call.
    pub(crate) fn backend(
        action: &'static str,
        kind: VaultFileKind,
        id: &VaultObjectId,
    ) -> impl FnOnce(io::Error) -> Self {
        let what = match kind {
            VaultFileKind::Config => "the file `config`".to_owned(),
            _ => format!("the {kind} `{id}`"),
        };
        move |source| Self::Backend { action, what, source }
    }

    /// Makes the error of a file of the vault that is not what it should be.
    pub(crate) fn damaged(kind: VaultFileKind, id: &VaultObjectId, fault: &impl ToString) -> Self {
        Self::Damaged { kind, id: *id, fault: fault.to_string() }
    }

    /// Tells whether trying again can help.
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

    /// Tells whether a file of the vault is there and not what it should be, or not to be read from the medium.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Backend { source, .. } => {
                is_data_lost(source) && source.kind() != ErrorKind::NotFound
            }
            _ => false,
        }
    }

    /// Tells whether a source is what failed: others can still be saved into the vault.
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

    /// Tells whether something of the vault is lost, rather than out of reach: what else is there can still be had.
    pub(crate) fn is_loss(&self) -> bool {
        match self {
            Self::UnreadableBlob { .. } | Self::Damaged { .. } => true,
            Self::Backend { source, .. } => is_data_lost(source),
            _ => false,
        }
    }
}
