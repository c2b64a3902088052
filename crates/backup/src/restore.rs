//! Restoring: writes the contents of a snapshot to a folder.
//!
//! In: a snapshot, or a folder or file of it, and a target. Out: the same files, with all their recorded metadata.
//!
//! Invariants
//! * Nothing is written outside of the target, whatever the vault contains: each folder is opened relative to its
//!   parent, without following links.
//! * A file appears under its final name when it is complete. Until then it has a temporary name and is locked: files
//!   under such names that a killed run left are not locked, and the next run that restores into the folder removes
//!   them.
//! * What cannot be restored is reported as a fault; the rest is restored. A vault that cannot be read now ends the
//!   restore.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rayon::prelude::*;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use tracing::debug;

use crate::backup_progress::BackupProgress;
use crate::deep_stack;
use crate::error::{Error, Result};
use crate::fault::{BackupFault, FaultCollector};
use crate::object_id::VaultObjectId;
use crate::removal::{list_names, remove_recursively};
use crate::selection::{AppliedSelection, RestoreSelection};
use crate::source::file_metadata::read_file_attributes;
use crate::vault::index::VaultIndex;
use crate::vault::node::{
    ExtendedAttribute, SnapshotNode, SnapshotNodeKind, SnapshotTree, go_mode,
};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::{IndexedVault, Vault};

/// The policy for existing files in the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingFilePolicy {
    /// The target must be empty, or not exist.
    #[default]
    Refuse,
    /// Files that differ in any byte are replaced; files that the snapshot does not contain stay.
    Replace,
    /// Files that differ are replaced, and files that the snapshot does not contain are removed.
    Mirror,
}

/// Options of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// The policy for existing files.
    pub existing: ExistingFilePolicy,
    /// The part that is restored; nothing else is created, changed or removed.
    pub selection: RestoreSelection,
    /// The path of the restored node in its snapshot, which the selection applies to.
    pub path: PathBuf,
}

/// The result of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// The number of restored files, folders and other nodes.
    pub items: u64,
    /// The number of bytes written.
    pub written_bytes: u64,
    /// What could not be restored.
    pub faults: Vec<BackupFault>,
    /// The number of items removed because the snapshot does not contain them.
    pub removed_items: u64,
    /// True if part of the data is damaged in the vault or missing.
    pub is_vault_damaged: bool,
}

impl RestoreReport {
    /// Adds the result of another restore.
    pub fn add(&mut self, other: Self) {
        self.items += other.items;
        self.written_bytes += other.written_bytes;
        self.removed_items += other.removed_items;
        self.faults.extend(other.faults);
        self.is_vault_damaged |= other.is_vault_damaged;
    }
}

const OWNER_ONLY_MODE: Mode = Mode::from_raw_mode(0o700);
/// Prefix of temporary file names; a process id and a number follow.
const UNFINISHED_PREFIX: &str = ".tympan-restore-";
/// Maximum number of attempts to find an unused name.
const MAX_NAME_ATTEMPTS: usize = 1_000;
/// Files up to this length are read ahead, several of a folder at a time, if each call costs a round trip.
const SMALL_FILE_BYTES: u64 = 256 << 10;
/// Number of bytes of a folder's small files that are read ahead at a time, and number of entries examined for it.
const READ_AHEAD_BYTES: u64 = 2 << 20;
const READ_AHEAD_ENTRIES: usize = 4096;
/// Minimum length of a run of zero bytes that becomes a hole.
const MIN_HOLE_BYTES: usize = 4096;

/// Restores a folder of a vault, with its contents, into `target`.
///
/// # Errors
/// [`Error::InvalidRequest`] for a target that is not empty, or an error that aborts the whole restore: other faults
/// are in [`RestoreReport::faults`].
pub fn restore_snapshot(
    IndexedVault { vault, index }: IndexedVault<'_>,
    node: &SnapshotNode,
    target: &Path,
    options: &RestoreOptions,
    progress: &BackupProgress,
) -> Result<RestoreReport> {
    let failed = |source| Error::Target { path: target.to_owned(), source };
    fs::create_dir_all(target).map_err(failed)?;
    let is_empty = fs::read_dir(target).map_err(failed)?.next().is_none();
    if options.existing == ExistingFilePolicy::Refuse && !is_empty {
        return Err(Error::InvalidRequest(format!(
            "`{}` is not empty; restore into a new folder, or replace different files with `--in-place`",
            target.display()
        )));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder =
        rustix::fs::open(target, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let path = Path::new("/").join(&options.path);
    let from = IndexedVault::new(vault, index);
    let restorer = SnapshotRestorer {
        vault,
        index,
        progress,
        existing: options.existing,
        selection: AppliedSelection::apply(&options.selection, from, (node, &path)),
        path: &path,
        removed_items: AtomicU64::new(0),
        target: (folder.as_fd(), target),
        is_root: rustix::process::geteuid().is_root(),
        first_links: Mutex::default(),
        pieces_ahead: Mutex::default(),
        faults: FaultCollector::default(),
        is_vault_damaged: AtomicBool::new(false),
        temp_counter: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        items: AtomicU64::new(0),
    };
    if !is_empty {
        restorer.remove_abandoned_files(folder.as_fd(), target);
    }
    let threads =
        if vault.files().backend().is_remote() { vault.files().backend().connections() } else { 0 };
    deep_stack::run_on_deep_stacks(threads, || match node.subtree {
        Some(tree) => {
            restorer.restore_entries(folder.as_fd(), target, 0, &tree)?;
            // The target folder's metadata belongs to its owner; the metadata of a snapshot's own topmost folder is in
            // its node.
            if !node.name.is_empty()
                && let Err(error) = restorer.apply_metadata(folder.as_fd(), node)
            {
                restorer.faults.add(target, &error);
            }
            Ok(())
        }
        None => restorer.restore_node(folder.as_fd(), (target, 0), node),
    })?;
    if let Err(error) = sync_file_system(&folder) {
        restorer.faults.add(target, &error);
    }
    Ok(RestoreReport {
        items: restorer.items.into_inner(),
        written_bytes: restorer.bytes.into_inner(),
        removed_items: restorer.removed_items.into_inner(),
        faults: restorer.faults.into_sorted(),
        is_vault_damaged: restorer.is_vault_damaged.into_inner(),
    })
}

/// Makes the restored files durable, as far as the system can sync a whole file system.
fn sync_file_system(folder: &OwnedFd) -> io::Result<()> {
    match rustix::fs::syncfs(folder) {
        // Without it a restore is as durable as a copy: only a power loss soon after can lose data.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        synced => Ok(synced?),
    }
}

/// The first name of a hard-linked file that was written in this restore.
struct FirstHardLink {
    /// The folder, relative to the target.
    folder: PathBuf,
    name: Vec<u8>,
    content: Option<Vec<VaultObjectId>>,
    /// The device and inode number of the file.
    device_and_inode: (u64, u64),
}

struct SnapshotRestorer<'a> {
    vault: &'a Vault,
    index: &'a VaultIndex,
    progress: &'a BackupProgress,
    existing: ExistingFilePolicy,
    selection: AppliedSelection<'a>,
    /// The path of the restored node in its snapshot.
    path: &'a Path,
    removed_items: AtomicU64,
    /// The target, and its path.
    target: (BorrowedFd<'a>, &'a Path),
    is_root: bool,
    /// The first name of each hard-linked file, by its device and inode in the snapshot.
    first_links: Mutex<HashMap<(u64, u64), FirstHardLink>>,
    /// Pieces of small files that were read ahead.
    pieces_ahead: Mutex<HashMap<VaultObjectId, Vec<u8>>>,
    faults: FaultCollector,
    is_vault_damaged: AtomicBool,
    temp_counter: AtomicU64,
    bytes: AtomicU64,
    items: AtomicU64,
}

impl SnapshotRestorer<'_> {
    fn restore_entries(
        &self,
        folder: BorrowedFd<'_>,
        path: &Path,
        depth: usize,
        tree: &VaultObjectId,
    ) -> Result<()> {
        let read = deep_stack::check_folder_depth(depth, tree)
            .and_then(|()| self.vault.read_tree(self.index, tree));
        let tree: SnapshotTree = match read {
            Ok(tree) => tree,
            Err(error @ Error::UnreadableBlob { .. }) => {
                self.record_damage(path, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if self.existing == ExistingFilePolicy::Mirror {
            self.remove_extraneous(folder, path, &tree);
        }
        let is_selected = |node: &&SnapshotNode| {
            let path = self.snapshot_path(&path.join(OsStr::from_bytes(&node.name)));
            match node.kind {
                SnapshotNodeKind::Dir => self.selection.contains_or_leads_to(&path),
                _ => self.selection.contains(&path),
            }
        };
        // Names of one file are processed in sequence: the first gets the bytes.
        let (linked, single): (Vec<&SnapshotNode>, Vec<&SnapshotNode>) = tree
            .nodes
            .iter()
            .filter(is_selected)
            .partition(|node| node.kind == SnapshotNodeKind::File && node.links > 1);
        let above = (path, depth);
        let mut left = single.as_slice();
        while !left.is_empty() {
            let (batch, later) = left.split_at(self.batch_length(left));
            let ahead = self.read_ahead(folder, batch);
            batch.par_iter().try_for_each(|node| self.restore_node(folder, above, node))?;
            let mut pieces = self.pieces_ahead.lock();
            ahead.iter().for_each(|id| drop(pieces.remove(id)));
            left = later;
        }
        linked.iter().try_for_each(|node| self.restore_node(folder, above, node))
    }

    /// Returns the path in the snapshot that corresponds to a restored path.
    fn snapshot_path(&self, target: &Path) -> PathBuf {
        target
            .strip_prefix(self.target.1)
            .map_or_else(|_| target.to_owned(), |path| self.path.join(path))
    }

    /// Removes selected entries that a folder of the snapshot does not contain.
    fn remove_extraneous(&self, folder: BorrowedFd<'_>, path: &Path, tree: &SnapshotTree) {
        let names = match list_names(folder) {
            Ok(names) => names,
            Err(error) => return self.faults.add(path, &error),
        };
        let is_selected = |path: &Path| self.selection.contains(&self.snapshot_path(path));
        for name in names {
            if tree.find(&name).is_some() || is_unfinished(&name) {
                continue;
            }
            let path = path.join(OsStr::from_bytes(&name));
            match remove_recursively(folder, &name, &path, &is_selected) {
                Ok(removed) => {
                    self.removed_items.fetch_add(removed, Ordering::Relaxed);
                }
                Err(error) => self.faults.add(path, &error),
            }
        }
    }

    /// Records a fault that was caused by the vault.
    fn record_damage(&self, path: impl Into<PathBuf>, error: &Error) {
        self.is_vault_damaged.store(true, Ordering::Relaxed);
        self.faults.add(path, error);
    }

    /// Returns the number of entries of a folder that are processed together: all, if nothing is read ahead.
    fn batch_length(&self, nodes: &[&SnapshotNode]) -> usize {
        if !self.vault.files().backend().is_remote() {
            return nodes.len();
        }
        let mut bytes = 0;
        let fits = |node: &&&SnapshotNode| {
            bytes += if is_small_file(node) { node.size } else { 0 };
            bytes <= READ_AHEAD_BYTES
        };
        nodes.iter().take(READ_AHEAD_ENTRIES).take_while(fits).count().max(1)
    }

    /// Reads the pieces of small files ahead, if each call costs a round trip; returns their ids.
    fn read_ahead(&self, folder: BorrowedFd<'_>, nodes: &[&SnapshotNode]) -> Vec<VaultObjectId> {
        if !self.vault.files().backend().is_remote() {
            return Vec::new();
        }
        let lacking = nodes
            .iter()
            .filter(|node| is_small_file(node) && !has_same_size_and_time(folder, node));
        let ids: Vec<VaultObjectId> =
            lacking.flat_map(|node| node.content.iter().flatten().copied()).collect();
        let read = self.vault.read_pieces(self.index, &ids);
        let ids = read.keys().copied().collect();
        self.pieces_ahead.lock().extend(read);
        ids
    }

    fn restore_node(
        &self,
        folder: BorrowedFd<'_>,
        (above, depth): (&Path, usize),
        node: &SnapshotNode,
    ) -> Result<()> {
        self.progress.check_running()?;
        let path = above.join(OsStr::from_bytes(&node.name));
        let done = match node.kind {
            SnapshotNodeKind::Dir => self.restore_folder(folder, &path, depth + 1, node),
            SnapshotNodeKind::File => self.restore_file(folder, &path, node),
            _ => self.restore_special(folder, node).map_err(RestoreFailure::Io),
        };
        match done {
            Ok(()) => {
                self.items.fetch_add(1, Ordering::Relaxed);
                self.progress.add_done(1, 0);
            }
            Err(RestoreFailure::Io(error)) => self.faults.add(path, &error),
            Err(RestoreFailure::Vault(error @ Error::UnreadableBlob { .. })) => {
                self.record_damage(path, &error)
            }
            Err(RestoreFailure::Vault(error)) => return Err(error),
        }
        Ok(())
    }

    fn restore_folder(
        &self,
        above: BorrowedFd<'_>,
        path: &Path,
        depth: usize,
        node: &SnapshotNode,
    ) -> Result<(), RestoreFailure> {
        let name = node.name.as_slice();
        let mut was_there = false;
        match rustix::fs::mkdirat(above, name, OWNER_ONLY_MODE) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
                was_there = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
                if !was_there {
                    rustix::fs::unlinkat(above, name, AtFlags::empty())?;
                    rustix::fs::mkdirat(above, name, OWNER_ONLY_MODE)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(above, name, flags, Mode::empty())?;
        if was_there {
            self.remove_abandoned_files(folder.as_fd(), path);
        }
        if let Some(tree) = &node.subtree {
            self.restore_entries(folder.as_fd(), path, depth, tree)?;
        }
        // Applied last, because creating entries in a folder changes its times, and its mode may forbid it.
        self.apply_metadata(folder.as_fd(), node)?;
        Ok(())
    }

    /// Applies all recorded metadata to an open file; a failure of one item does not prevent the others.
    ///
    /// Changing the owner removes a file's capabilities, which are attributes; only a user with write permission may
    /// set attributes; an access control list changes the mode. So the owner is set first, then the attributes, then
    /// the mode.
    fn apply_metadata(&self, opened: BorrowedFd<'_>, node: &SnapshotNode) -> io::Result<()> {
        let owned = self.set_owner(opened, node);
        let mut described = set_attributes(opened, node);
        if described.as_ref().is_err_and(is_permission_error)
            && rustix::fs::fchmod(opened, OWNER_ONLY_MODE).is_ok()
        {
            // The existing file had a mode that denies its owner writing.
            described = set_attributes(opened, node);
        }
        let mut mode = self.permitted_mode(node);
        if owned.is_err() {
            // Drop the set-user-id and set-group-id bits of an owner that could not be set.
            mode &= Mode::from_raw_mode(0o1777);
        }
        let tried = [
            described,
            rustix::fs::fchmod(opened, mode).map_err(Into::into),
            rustix::fs::futimens(opened, &node_timestamps(node)).map_err(Into::into),
        ];
        tried.into_iter().fold(owned, Result::and)
    }

    /// Returns the mode that a file gets. Unless run by root, a restore owns all files that it creates, and must not
    /// grant its user's rights through a set-id bit of root's file.
    fn permitted_mode(&self, node: &SnapshotNode) -> Mode {
        let mode = to_system_mode(node);
        match node.kind {
            _ if self.is_root => mode,
            // The set-group-id bit of a folder applies to new entries in it.
            SnapshotNodeKind::Dir => mode & Mode::from_raw_mode(0o3777),
            _ => mode & Mode::from_raw_mode(0o1777),
        }
    }

    fn set_owner(&self, file: BorrowedFd<'_>, node: &SnapshotNode) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
        match rustix::fs::fchown(file, Some(uid), Some(gid)) {
            // Only root can change owners; others own what they restore.
            Err(Errno::PERM) if !self.is_root => Ok(()),
            owned => Ok(owned?),
        }
    }

    fn restore_file(
        &self,
        folder: BorrowedFd<'_>,
        path: &Path,
        node: &SnapshotNode,
    ) -> Result<(), RestoreFailure> {
        let name = node.name.as_slice();
        let key = (node.device_id, node.inode);
        if node.links > 1 {
            // Held until the file is complete, so that other names wait for it.
            let mut links = self.first_links.lock();
            // The source's system may have reused an inode number for another file.
            if let Some(first) = links.get(&key).filter(|first| first.content == node.content) {
                match self.create_hard_link(first, folder, name) {
                    Ok(()) => return Ok(()),
                    // Another file system, one without links, or a file at its maximum link count: the content matters
                    // more than storing it once.
                    Err(error) => {
                        debug!(%error, file = %path.display(), "cannot create a hard link; writing \
                        the file again")
                    }
                }
            }
            let file = self.write_file(folder, node)?;
            let above = path.parent().and_then(|above| above.strip_prefix(self.target.1).ok());
            let folder = above.unwrap_or(Path::new("")).to_owned();
            let (name, content) = (node.name.clone(), node.content.clone());
            links.insert(key, FirstHardLink { folder, name, content, device_and_inode: file });
            return Ok(());
        }
        if self.is_up_to_date(folder, node)? && self.update_file_metadata(folder, node).is_ok() {
            return Ok(());
        }
        self.write_file(folder, node).map(|_| ())
    }

    /// Creates a hard link to a file written before. Its folder is opened again without following links.
    fn create_hard_link(
        &self,
        first: &FirstHardLink,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut above = rustix::fs::openat(self.target.0, ".", flags, Mode::empty())?;
        for part in &first.folder {
            above = rustix::fs::openat(&above, part, flags, Mode::empty())?;
        }
        let there = rustix::fs::statat(&above, first.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
        if device_and_inode(&there) != first.device_and_inode {
            return Err(io::Error::other("another process replaced the file"));
        }
        self.clear_existing(folder, name)?;
        Ok(rustix::fs::linkat(&above, first.name.as_slice(), folder, name, AtFlags::empty())?)
    }

    /// Applies the recorded metadata to an existing file.
    fn update_file_metadata(&self, folder: BorrowedFd<'_>, node: &SnapshotNode) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, node.name.as_slice(), flags, Mode::empty())?;
        self.apply_metadata(file.as_fd(), node)
    }

    /// Returns true if a file has the expected length, time and bytes. Length and time are not sufficient: a
    /// repository's files have no times, and a failing disk changes neither.
    fn is_up_to_date(&self, folder: BorrowedFd<'_>, node: &SnapshotNode) -> Result<bool> {
        if !has_same_size_and_time(folder, node) {
            return Ok(false);
        }
        match self.has_same_content(folder, node) {
            Ok(has_bytes) => Ok(has_bytes),
            // A file that cannot be read is written anew.
            Err(RestoreFailure::Io(_)) => Ok(false),
            Err(RestoreFailure::Vault(error)) => Err(error),
        }
    }

    /// Compares the bytes of a file with the hashes of its pieces, without reading the vault.
    fn has_same_content(
        &self,
        folder: BorrowedFd<'_>,
        node: &SnapshotNode,
    ) -> Result<bool, RestoreFailure> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, node.name.as_slice(), flags, Mode::empty())?;
        let (mut file, mut piece) = (File::from(file), Vec::new());
        for id in node.content.iter().flatten() {
            self.progress.check_running()?;
            let Some(length) = self.index.plain_length(PackBlobKind::Data, id) else {
                return Ok(false);
            };
            piece.clear();
            (&mut file).take(length).read_to_end(&mut piece)?;
            if VaultObjectId::of(&piece) != *id {
                return Ok(false);
            }
        }
        Ok(file.read(&mut [0])? == 0)
    }

    /// Writes a file under a temporary name, applies its metadata, and renames it. Returns its device and inode.
    fn write_file(
        &self,
        folder: BorrowedFd<'_>,
        node: &SnapshotNode,
    ) -> Result<(u64, u64), RestoreFailure> {
        let (file, temporary) = self.create_temp_file(folder)?;
        let written = self.write_content(&file, node).and_then(|()| {
            // Metadata that cannot be applied, such as an owner that this system does not know, must not prevent
            // writing the content.
            let described = self.apply_metadata(file.as_fd(), node);
            if rustix::fs::renameat(folder, temporary.as_str(), folder, node.name.as_slice())
                .is_err()
            {
                self.clear_existing(folder, &node.name)?;
                rustix::fs::renameat(folder, temporary.as_str(), folder, node.name.as_slice())?;
            }
            described?;
            Ok(device_and_inode(&rustix::fs::fstat(&file)?))
        });
        if written.is_err() {
            // The error to report is the one of the failed write.
            rustix::fs::unlinkat(folder, temporary.as_str(), AtFlags::empty()).ok();
        }
        written
    }

    /// Creates a file under an unused name and locks it. Another process with the same id, on another machine or
    /// earlier, may have used names.
    fn create_temp_file(&self, folder: BorrowedFd<'_>) -> io::Result<(File, String)> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        for _ in 0..MAX_NAME_ATTEMPTS {
            let number = self.temp_counter.fetch_add(1, Ordering::Relaxed);
            let name = format!("{UNFINISHED_PREFIX}{}-{number}", std::process::id());
            let file = match rustix::fs::openat(folder, name.as_str(), flags, mode) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened?),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A sweep has locked the file first.
                Err(Errno::WOULDBLOCK) => continue,
                // A file system without locks: sweeps do not run there either.
                Err(_) => return Ok((file, name)),
                Ok(()) => {}
            }
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                return Ok((file, name));
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free name for a temporary file"))
    }

    /// Removes files that killed runs left in a folder. Failures are logged.
    fn remove_abandoned_files(&self, folder: BorrowedFd<'_>, path: &Path) {
        if let Err(error) = remove_unfinished_files(folder) {
            debug!(%error, file = %path.display(), "cannot remove leftovers of an earlier restore");
        }
    }

    fn write_content(&self, file: &File, node: &SnapshotNode) -> Result<(), RestoreFailure> {
        let mut at = 0;
        for id in node.content.iter().flatten() {
            self.progress.check_running()?;
            let ahead = self.pieces_ahead.lock().remove(id);
            let piece = match ahead {
                Some(piece) => piece,
                None => self.vault.read_blob(self.index, PackBlobKind::Data, id)?,
            };
            at = write_sparse(file, at, &piece)?;
            self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            self.progress.add_done(0, piece.len() as u64);
        }
        file.set_len(at)?;
        Ok(())
    }

    /// Removes an existing entry with this name.
    fn clear_existing(&self, folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {
                // A folder that is not empty is not removed.
                Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn restore_special(&self, folder: BorrowedFd<'_>, node: &SnapshotNode) -> io::Result<()> {
        let name = node.name.as_slice();
        let mode = Mode::from_raw_mode(node.mode & 0o777);
        let kind = match node.kind {
            SnapshotNodeKind::Symlink => FileType::Symlink,
            SnapshotNodeKind::Fifo => FileType::Fifo,
            SnapshotNodeKind::Dev => FileType::BlockDevice,
            SnapshotNodeKind::Chardev => FileType::CharacterDevice,
            _ => return Ok(()),
        };
        self.clear_existing(folder, name)?;
        match kind {
            FileType::Symlink => rustix::fs::symlinkat(node.target(), folder, name)?,
            kind => rustix::fs::mknodat(folder, name, kind, mode, node.device)?,
        }
        // The owner of the folder may have replaced the new entry: apply the metadata to the entry that was created.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(folder, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&made)?.st_mode) != kind {
            return Err(io::Error::other("another process replaced it"));
        }
        let (uid, gid) = (Some(Uid::from_raw(node.uid)), Some(Gid::from_raw(node.gid)));
        match rustix::fs::chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH) {
            Err(Errno::PERM) if !self.is_root => {}
            owned => owned?,
        }
        if kind != FileType::Symlink {
            // A descriptor opened with `O_PATH` allows changing the mode only this way.
            let made = format!("/proc/self/fd/{}", made.as_raw_fd());
            let mode = self.permitted_mode(node);
            rustix::fs::chmodat(rustix::fs::CWD, made, mode, AtFlags::empty())?;
        }
        rustix::fs::utimensat(folder, name, &node_timestamps(node), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

fn is_small_file(node: &SnapshotNode) -> bool {
    node.kind == SnapshotNodeKind::File && node.size <= SMALL_FILE_BYTES
}

/// Returns true if a file has the expected length and time.
fn has_same_size_and_time(folder: BorrowedFd<'_>, node: &SnapshotNode) -> bool {
    let there = rustix::fs::statat(folder, node.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| {
        FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && u64::try_from(there.st_size) == Ok(node.size)
            && there.st_mtime == node.mtime.seconds
            && u32::try_from(there.st_mtime_nsec) == Ok(node.mtime.nanos)
    })
}

/// The reason a single file could not be restored.
enum RestoreFailure {
    Io(io::Error),
    Vault(Error),
}

impl From<io::Error> for RestoreFailure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for RestoreFailure {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<Error> for RestoreFailure {
    fn from(error: Error) -> Self {
        Self::Vault(error)
    }
}

/// Removes the unfinished files in a folder that are not locked by a running process.
fn remove_unfinished_files(folder: BorrowedFd<'_>) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_unfinished(name.to_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // What cannot be opened is not a file of a restore, has been removed, or has a mode that denies access.
        let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { continue };
        let is_plain =
            FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile;
        if is_plain && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Returns true for the name of an unfinished file.
fn is_unfinished(name: &[u8]) -> bool {
    let number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let rest = name.strip_prefix(UNFINISHED_PREFIX.as_bytes());
    let mut parts = rest.unwrap_or_default().splitn(2, |byte| *byte == b'-');
    parts.next().is_some_and(number) && parts.next().is_some_and(number)
}

/// Writes bytes at an offset and leaves long runs of zeros as holes; returns the end offset.
fn write_sparse(file: &File, start: u64, bytes: &[u8]) -> io::Result<u64> {
    let mut at = start;
    // The offset in the file and the range of the bytes.
    let mut pending: Option<(u64, Range<usize>)> = None;
    for (number, block) in bytes.chunks(MIN_HOLE_BYTES).enumerate() {
        let from = number * MIN_HOLE_BYTES;
        let is_hole = block.len() == MIN_HOLE_BYTES && block.iter().all(|byte| *byte == 0);
        pending = match (pending, is_hole) {
            (Some((at, run)), false) => Some((at, run.start..from + block.len())),
            (None, false) => Some((at, from..from + block.len())),
            (Some((at, run)), true) => {
                write_range(file, at, bytes, run)?;
                None
            }
            (None, true) => None,
        };
        at += block.len() as u64;
    }
    if let Some((at, run)) = pending {
        write_range(file, at, bytes, run)?;
    }
    Ok(at)
}

/// Writes a range of `bytes` at an offset.
fn write_range(file: &File, offset: u64, bytes: &[u8], range: Range<usize>) -> io::Result<()> {
    file.write_all_at(bytes.get(range).unwrap_or_default(), offset)
}

/// Returns the device and inode number of a file.
const fn device_and_inode(facts: &rustix::fs::Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

/// Converts a vault mode to a system mode.
pub(crate) fn to_system_mode(node: &SnapshotNode) -> Mode {
    let special = [(0o4000, go_mode::SETUID), (0o2000, go_mode::SETGID), (0o1000, go_mode::STICKY)];
    let set = special.iter().filter(|(_, bit)| node.mode & bit != 0);
    Mode::from_raw_mode(set.fold(node.mode & 0o777, |all, (bit, _)| all | bit))
}

fn node_timestamps(node: &SnapshotNode) -> Timestamps {
    let time = Timespec { tv_sec: node.mtime.seconds, tv_nsec: node.mtime.nanos.into() };
    let access = Timespec { tv_sec: node.atime.seconds, tv_nsec: node.atime.nanos.into() };
    Timestamps { last_access: access, last_modification: time }
}

/// Sets all attributes that can be set, and removes those that the node does not have; returns the first failure.
/// Correct attributes are not touched.
fn set_attributes(file: BorrowedFd<'_>, node: &SnapshotNode) -> io::Result<()> {
    let there = read_file_attributes(file).unwrap_or_default();
    let set = |attribute: &ExtendedAttribute| {
        let ExtendedAttribute { name, value } = attribute;
        if there.contains(attribute) {
            return Ok(());
        }
        match rustix::fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty()) {
            // The target's file system has no attributes, or only the system may set this one.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            set => set.map_err(Into::into),
        }
    };
    let remove = |attribute: &ExtendedAttribute| match rustix::fs::fremovexattr(
        file,
        attribute.name.as_str(),
    ) {
        Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NODATA) => Ok(()),
        removed => removed.map_err(Into::into),
    };
    let attributes = &node.extended_attributes;
    let is_extra = |attribute: &&ExtendedAttribute| {
        is_user_attribute(&attribute.name)
            && attributes.iter().all(|saved_attribute| saved_attribute.name != attribute.name)
    };
    let set = attributes.iter().map(set).fold(Ok(()), Result::and);
    there.iter().filter(is_extra).map(remove).fold(set, Result::and)
}

/// Returns true for an attribute that users set. All others belong to the system.
fn is_user_attribute(name: &str) -> bool {
    ["user.", "trusted."].iter().any(|kind| name.starts_with(kind))
        || matches!(name, "system.posix_acl_access" | "system.posix_acl_default")
}

/// Returns true if the error means that the file's mode or owner forbids the operation.
fn is_permission_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ACCESS.raw_os_error())
}

/// Writes the content of a vault file to a stream.
pub(crate) fn stream_file(
    IndexedVault { vault, index }: IndexedVault<'_>,
    node: &SnapshotNode,
    out: &mut dyn Write,
) -> Result<()> {
    for id in node.content.iter().flatten() {
        let piece = vault.read_blob(index, PackBlobKind::Data, id)?;
        let failed = |source| Error::Target { path: PathBuf::from("-"), source };
        out.write_all(&piece).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use jiff::Timestamp;

    use std::sync::Arc;

    use super::*;
    use crate::backend::LocalBackend;
    use crate::vault::{IndexedVault, KeyDerivationCost, VaultUser};

    /// The owner of the target replaces a folder by a link while root restores: no hard link is created to the file
    /// behind it.
    #[test]
    fn a_name_is_not_given_to_a_file_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (VaultIndex::default(), BackupProgress::default());
        let (target, outside) = (dir.path().join("target"), dir.path().join("outside"));
        for folder in [&target, &outside, &target.join("folder")] {
            fs::create_dir(folder).unwrap();
        }
        symlink("../outside", target.join("way")).unwrap();
        for folder in [&outside, &target.join("folder")] {
            fs::write(folder.join("file"), "bytes").unwrap();
        }
        let top = File::open(&target).unwrap();
        let restorer =
            restorer(IndexedVault::new(&vault, &index), &progress, (top.as_fd(), &target));
        let link = |folder: &str, of: &Path| {
            let facts = fs::metadata(of).unwrap();
            let file = (facts.dev(), facts.ino());
            let (folder, name) = (PathBuf::from(folder), b"file".to_vec());
            let first = FirstHardLink { folder, name, content: None, device_and_inode: file };
            restorer.create_hard_link(&first, top.as_fd(), b"twin")
        };
        link("way", &outside.join("file")).unwrap_err();
        assert_eq!(fs::metadata(outside.join("file")).unwrap().nlink(), 1);
        // Nor is a link created to a file other than the written one.
        link("folder", &outside.join("file")).unwrap_err();
        assert!(!target.join("twin").exists());
        link("folder", &target.join("folder/file")).unwrap();
        assert_eq!(fs::read(target.join("twin")).unwrap(), b"bytes");
    }

    fn vault_in(dir: &Path) -> Arc<Vault> {
        let backend = Arc::new(LocalBackend::new(dir.join("vault")));
        let by = (&VaultUser::this_process(), Timestamp::UNIX_EPOCH);
        Arc::new(Vault::init(backend, b"x", KeyDerivationCost { log_rounds: 4 }, by).unwrap())
    }

    fn restorer<'a>(
        IndexedVault { vault, index }: IndexedVault<'a>,
        progress: &'a BackupProgress,
        top: (BorrowedFd<'a>, &'a Path),
    ) -> SnapshotRestorer<'a> {
        SnapshotRestorer {
            vault,
            index,
            progress,
            existing: ExistingFilePolicy::Replace,
            selection: AppliedSelection::apply(
                &RestoreSelection::Everything,
                IndexedVault::new(vault, index),
                (&SnapshotNode::new("", SnapshotNodeKind::Dir, 0), Path::new("/")),
            ),
            path: Path::new("/"),
            removed_items: AtomicU64::new(0),
            target: top,
            is_root: false,
            first_links: Mutex::default(),
            pieces_ahead: Mutex::default(),
            faults: FaultCollector::default(),
            is_vault_damaged: AtomicBool::new(false),
            temp_counter: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            items: AtomicU64::new(0),
        }
    }

    /// A set-user-id file of root would otherwise grant the rights of the user who restores it.
    #[test]
    fn only_root_restores_bits_that_lend_rights() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (VaultIndex::default(), BackupProgress::default());
        let top = File::open(dir.path()).unwrap();
        let mut restorer =
            restorer(IndexedVault::new(&vault, &index), &progress, (top.as_fd(), dir.path()));
        let special = go_mode::SETUID | go_mode::SETGID | go_mode::STICKY;
        let mut check = |is_root: bool, kind: SnapshotNodeKind, expected: u32| {
            restorer.is_root = is_root;
            let node = SnapshotNode::new("name", kind, 0o755 | special);
            assert_eq!(
                restorer.permitted_mode(&node).as_raw_mode(),
                expected,
                "{is_root} {kind:?}"
            );
        };
        check(true, SnapshotNodeKind::File, 0o7755);
        check(false, SnapshotNodeKind::File, 0o1755);
        check(false, SnapshotNodeKind::Fifo, 0o1755);
        check(true, SnapshotNodeKind::Dir, 0o7755);
        check(false, SnapshotNodeKind::Dir, 0o3755);
    }

    /// Comparing or writing a file may take hours: a stopped restore does not wait for its end, and an existing file is
    /// not mistaken for a different one.
    #[test]
    fn a_restore_is_stopped_within_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (VaultIndex::default(), BackupProgress::default());
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("file"), "bytes").unwrap();
        let facts = fs::metadata(target.join("file")).unwrap();
        let mut node = SnapshotNode::new("file", SnapshotNodeKind::File, 0o600);
        node.size = facts.size();
        node.mtime.seconds = facts.mtime();
        node.mtime.nanos = u32::try_from(facts.mtime_nsec()).unwrap();
        node.content = Some(vec![VaultObjectId::of(b"bytes")]);
        let top = File::open(&target).unwrap();
        let restorer =
            restorer(IndexedVault::new(&vault, &index), &progress, (top.as_fd(), &target));
        // No index lists the piece of this file.
        assert!(!restorer.is_up_to_date(top.as_fd(), &node).unwrap());
        progress.request_stop();
        let error = restorer.is_up_to_date(top.as_fd(), &node).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error:?}");
        let file = tempfile::tempfile().unwrap();
        let written = restorer.write_content(&file, &node);
        assert!(matches!(written, Err(RestoreFailure::Vault(Error::Interrupted))));
        let restored = restorer.restore_file(top.as_fd(), &target.join("file"), &node);
        assert!(matches!(restored, Err(RestoreFailure::Vault(Error::Interrupted))));
        assert_eq!(fs::read(target.join("file")).unwrap(), b"bytes");
    }
}
