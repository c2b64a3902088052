//! Snapshots as a read-only file system, mounted through FUSE and readable with any program.
//!
//! In: a vault, and an empty folder. Out: the folders `snapshots`, `ids`, `hosts` and `tags`, and in each of them
//! snapshots as folders. Snapshots that are made later appear.
//!
//! Invariants
//! * Nothing is written, neither here nor in the vault; the kernel rejects writes before they reach this code.
//! * In a mount for all users, the kernel decides by owners, modes and access control lists; where it does not support
//!   lists, a file that has one is accessible only to its owner.
//! * Data that cannot be read from the vault is an I/O error of the file concerned, never wrong bytes.
//! * Memory is bounded by the inodes that the kernel remembers, the cached folders, and two pieces for each open file.
//!
//! Not here: the lock that prevents a prune, which the caller holds.

mod file_system;
mod inode_table;
mod mount_access;
mod mounted_snapshots;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use self::file_system::SnapshotFileSystem;
pub use self::mount_access::MountAccess;
use self::mounted_snapshots::MountedSnapshots;
use crate::error::{Error, Result};
use crate::vault::Vault;
use crate::vault::snapshot::ClientFilter;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};

/// The FUSE device.
const FUSE_DEVICE: &str = "/dev/fuse";
/// The number of concurrently handled requests.
const REQUEST_THREAD_COUNT: usize = 4;

/// A mounted vault. It is unmounted on drop.
#[derive(Debug)]
pub struct VaultMount {
    dir: PathBuf,
    unmounter: SessionUnmounter,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// It was not in use.
    Idle,
    /// Files or folders were in use; their users get errors from now on.
    InUse,
}

/// Mounts the snapshots of some clients at an empty folder.
///
/// # Errors
/// [`Error::InvalidRequest`] if the path is not a folder or not empty; [`Error::Mount`] if the system cannot mount; an
/// error of the vault.
pub fn mount_vault(
    vault: Arc<Vault>,
    dir: &Path,
    (clients, onlookers): (ClientFilter, MountAccess),
) -> Result<VaultMount> {
    let failed = |source| Error::Source { path: dir.to_owned(), source };
    let dir = dir.canonicalize().map_err(failed)?;
    if fs::read_dir(&dir).map_err(failed)?.next().is_some() {
        let text = format!("`{}` is not empty; mount at an empty folder", dir.display());
        return Err(Error::InvalidRequest(text));
    }
    if let Err(source) = fs::metadata(FUSE_DEVICE) {
        let advice = "this machine has no FUSE; load the kernel module `fuse`";
        return Err(Error::Mount { dir, advice, source });
    }
    let options = [
        MountOption::RO,
        MountOption::FSName("tympan".to_owned()),
        MountOption::Subtype("tympan".to_owned()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
    ];
    let mut config = Config::default();
    config.mount_options = options.to_vec();
    config.n_threads = Some(REQUEST_THREAD_COUNT);
    if onlookers == MountAccess::All {
        config.acl = SessionACL::All;
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    let file_system = SnapshotFileSystem::new(MountedSnapshots::open(vault, clients)?, onlookers);
    let mut session = Session::new(file_system, &dir, &config).map_err(|source| {
        let advice = match source.kind() {
            ErrorKind::NotFound => {
                "users other than root need `fusermount3`, of the package `fuse3`"
            }
            ErrorKind::PermissionDenied => {
                "users other than root need `fusermount3`, and `user_allow_other` in `/etc/fuse.conf` to give \
                 others access"
            }
            _ => "the system does not allow it",
        };
        Error::Mount { dir: dir.clone(), advice, source }
    })?;
    let unmounter = session.unmount_callable();
    let thread = std::thread::spawn(move || session.run());
    Ok(VaultMount { dir, unmounter, thread: Some(thread) })
}

impl VaultMount {
    /// Returns true if it was unmounted from outside, by `umount`.
    #[must_use]
    pub fn is_unmounted(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts the file system, even while it is in use.
    ///
    /// # Errors
    /// Any I/O error of the system.
    pub fn unmount(mut self) -> io::Result<UnmountOutcome> {
        self.unmount_once()
    }

    fn unmount_once(&mut self) -> io::Result<UnmountOutcome> {
        let Some(thread) = self.thread.take() else { return Ok(UnmountOutcome::Idle) };
        if !thread.is_finished()
            && let Err(error) = self.unmounter.unmount()
        {
            if error.kind() != ErrorKind::ResourceBusy {
                return Err(error);
            }
            return detach_mount(&self.dir).map(|()| UnmountOutcome::InUse);
        }
        match thread.join() {
            Ok(ended) => ended.map(|()| UnmountOutcome::Idle),
            Err(_) => Err(io::Error::other("the thread that served the mount panicked")),
        }
    }
}

/// Unmounts lazily a mount that is in use: its name is removed now, and the rest when this process ends. New accesses
/// are no longer possible.
fn detach_mount(dir: &Path) -> io::Result<()> {
    let status = Command::new("umount").arg("-l").arg(dir).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("umount: {status}"))) }
}

impl Drop for VaultMount {
    fn drop(&mut self) {
        if let Err(error) = self.unmount_once() {
            tracing::warn!(%error, file = %self.dir.display(), "cannot unmount the vault");
        }
    }
}
