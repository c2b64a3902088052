//! Restoring: from a snapshot to a folder.
//!
//! In: a snapshot, or a folder or file of it, and a target. Out: the same files, with all that was known about them.
//!
//! Invariants
//! * Nothing is written outside of the target, whatever the vault says: folders are opened one in another, without
//!   following links.
//! * A file appears under its name when it is whole. Until then it has a name of its own, and is locked: what a run that was
//!   killed left under such a name is locked by nobody, and removed by the next one that restores into the folder.
//! * What cannot be restored is told as a fault; the rest is. A vault that cannot be read now ends the restore.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use rayon::prelude::*;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Gid, Mode, OFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use tracing::debug;

use crate::deep;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::removal::{names_in, remove};
use crate::save::{Fault, Faults, Progress};
use crate::selection::{AppliedSelection, Selection};
use crate::source::facts::attributes_of;
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index};
use crate::vault::node::{Attribute, Node, NodeKind, Tree, go_mode};

/// What happens where something is in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// The target must be empty, or not exist.
    #[default]
    Refuse,
    /// Files that differ, be it in a byte, are replaced; what the snapshot does not hold stays.
    Replace,
    /// Files that differ are replaced, and what the snapshot does not hold is removed.
    Mirror,
}

/// How to restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreOptions {
    /// What happens where something is in the way.
    pub existing: Existing,
    /// What is restored; of the rest, nothing is made, changed or removed.
    pub selection: Selection,
    /// The path of what is restored in its snapshot, by which it is selected.
    pub path: PathBuf,
}

/// What came of a restore.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// Files, folders and other things.
    pub items: u64,
    /// Bytes written.
    pub bytes: u64,
    /// What could not be restored.
    pub faults: Vec<Fault>,
    /// Things that were removed as the snapshot does not hold them.
    pub removed: u64,
    /// Whether some of it is damaged in the vault, or not there.
    pub is_vault_damaged: bool,
}

impl Restored {
    /// Adds what came of restoring something else.
    pub fn add(&mut self, other: Self) {
        self.items += other.items;
        self.bytes += other.bytes;
        self.removed += other.removed;
        self.faults.extend(other.faults);
        self.is_vault_damaged |= other.is_vault_damaged;
    }
}

const PROTECTED: Mode = Mode::from_raw_mode(0o700);
/// The names of files that are not whole yet begin so; a process and a number follow.
const UNFINISHED: &str = ".tympan-restore-";
/// How often another name is tried where one is taken.
const MAX_ATTEMPTS: usize = 1_000;
/// Files up to this length are read ahead, some of a folder at a time, where each call costs a round trip.
const SMALL: u64 = 256 << 10;
/// So many bytes of a folder's small files are read ahead at once, and so many entries looked at.
const AHEAD_BYTES: u64 = 2 << 20;
const AHEAD_ENTRIES: usize = 4096;
/// Runs of zero bytes of this length become holes.
const HOLE: usize = 4096;

/// Restores a folder of a vault, with what is in it, into `target`.
///
/// # Errors
/// [`Error::Refused`] for a target that is not empty, or what stops the whole: other faults are in
/// [`Restored::faults`].
pub fn restore(
    (vault, index): (&Arc<Vault>, &Index),
    node: &Node,
    target: &Path,
    (options, progress): (&RestoreOptions, &Progress),
) -> Result<Restored> {
    let failed = |source| Error::Target { path: target.to_owned(), source };
    fs::create_dir_all(target).map_err(failed)?;
    let is_empty = fs::read_dir(target).map_err(failed)?.next().is_none();
    if options.existing == Existing::Refuse && !is_empty {
        return Err(Error::Refused(format!(
            "`{}` is not empty; restore into a new folder, or replace what differs with `--in-place`",
            target.display()
        )));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder =
        rustix::fs::open(target, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let path = Path::new("/").join(&options.path);
    let from = (&**vault, index);
    let restorer = Restorer {
        vault,
        index,
        progress,
        existing: options.existing,
        selection: AppliedSelection::of(&options.selection, from, (node, &path)),
        path: &path,
        removed: AtomicU64::new(0),
        top: (folder.as_fd(), target),
        is_root: rustix::process::geteuid().is_root(),
        links: Mutex::default(),
        ahead: Mutex::default(),
        faults: Faults::default(),
        is_vault_damaged: AtomicBool::new(false),
        temporary: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        items: AtomicU64::new(0),
    };
    if !is_empty {
        restorer.sweep(folder.as_fd(), target);
    }
    let threads = if vault.backend().is_remote() { vault.backend().connections() } else { 0 };
    deep::run_by(threads, || match node.subtree {
        Some(tree) => {
            restorer.restore_entries(folder.as_fd(), (target, 0), &tree)?;
            // The name of the target is its owner's; what a snapshot's own topmost folder was is told by its node.
            if !node.name.is_empty()
                && let Err(error) = restorer.describe(folder.as_fd(), node)
            {
                restorer.faults.add(target, &error);
            }
            Ok(())
        }
        None => restorer.restore_node(folder.as_fd(), (target, 0), node),
    })?;
    if let Err(error) = sync(&folder) {
        restorer.faults.add(target, &error);
    }
    Ok(Restored {
        items: restorer.items.into_inner(),
        bytes: restorer.bytes.into_inner(),
        removed: restorer.removed.into_inner(),
        faults: restorer.faults.into_sorted(),
        is_vault_damaged: restorer.is_vault_damaged.into_inner(),
    })
}

/// Makes what was restored durable, as far as the system offers it for a whole file system.
fn sync(folder: &OwnedFd) -> io::Result<()> {
    match rustix::fs::syncfs(folder) {
        // Without it a restore is as durable as a copy: nothing is lost but by a loss of power soon after.
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(()),
        synced => Ok(synced?),
    }
}

/// A name of a file that has several, written in this restore.
struct First {
    /// The folder, from the target on.
    folder: PathBuf,
    name: Vec<u8>,
    content: Option<Vec<Id>>,
    /// What the system calls the file: device and number.
    file: (u64, u64),
}

struct Restorer<'a> {
    vault: &'a Arc<Vault>,
    index: &'a Index,
    progress: &'a Progress,
    existing: Existing,
    selection: AppliedSelection<'a>,
    /// The path of what is restored in its snapshot.
    path: &'a Path,
    removed: AtomicU64,
    /// The target, and its path.
    top: (BorrowedFd<'a>, &'a Path),
    is_root: bool,
    /// The first name of each file that has several, by what the snapshot calls the file.
    links: Mutex<HashMap<(u64, u64), First>>,
    /// Pieces of small files that are about to be written.
    ahead: Mutex<HashMap<Id, Vec<u8>>>,
    faults: Faults,
    is_vault_damaged: AtomicBool,
    temporary: AtomicU64,
    bytes: AtomicU64,
    items: AtomicU64,
}

impl Restorer<'_> {
    fn restore_entries(
        &self,
        folder: BorrowedFd<'_>,
        (path, depth): (&Path, usize),
        tree: &Id,
    ) -> Result<()> {
        let read = deep::bound(depth, tree).and_then(|()| self.vault.read_tree(self.index, tree));
        let tree: Tree = match read {
            Ok(tree) => tree,
            Err(error @ Error::Blob { .. }) => {
                self.add_damage(path, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if self.existing == Existing::Mirror {
            self.remove_others(folder, path, &tree);
        }
        let is_selected = |node: &&Node| {
            let path = self.path_of(&path.join(OsStr::from_bytes(&node.name)));
            match node.kind {
                NodeKind::Dir => self.selection.reaches(&path),
                _ => self.selection.contains(&path),
            }
        };
        // Names of one file are made one after another: the first has the bytes.
        let (linked, single): (Vec<&Node>, Vec<&Node>) = tree
            .nodes
            .iter()
            .filter(is_selected)
            .partition(|node| node.kind == NodeKind::File && node.links > 1);
        let above = (path, depth);
        let mut left = single.as_slice();
        while !left.is_empty() {
            let (some, later) = left.split_at(self.part_of(left));
            let ahead = self.read_ahead(folder, some);
            some.par_iter().try_for_each(|node| self.restore_node(folder, above, node))?;
            let mut kept = self.ahead.lock();
            ahead.iter().for_each(|id| drop(kept.remove(id)));
            left = later;
        }
        linked.iter().try_for_each(|node| self.restore_node(folder, above, node))
    }

    /// Returns the path in the snapshot of what is restored to a path.
    fn path_of(&self, target: &Path) -> PathBuf {
        target
            .strip_prefix(self.top.1)
            .map_or_else(|_| target.to_owned(), |path| self.path.join(path))
    }

    /// Removes what is selected and not in a folder of the snapshot.
    fn remove_others(&self, folder: BorrowedFd<'_>, path: &Path, tree: &Tree) {
        let names = match names_in(folder) {
            Ok(names) => names,
            Err(error) => return self.faults.add(path, &error),
        };
        let is_selected = |path: &Path| self.selection.contains(&self.path_of(path));
        for name in names {
            if tree.find(&name).is_some() || is_unfinished(&name) {
                continue;
            }
            let path = path.join(OsStr::from_bytes(&name));
            match remove(folder, &name, (&path, &is_selected)) {
                Ok(removed) => {
                    self.removed.fetch_add(removed, Ordering::Relaxed);
                }
                Err(error) => self.faults.add(path, &error),
            }
        }
    }

    /// Notes what could not be restored because of the vault.
    fn add_damage(&self, path: impl Into<PathBuf>, error: &Error) {
        self.is_vault_damaged.store(true, Ordering::Relaxed);
        self.faults.add(path, error);
    }

    /// Returns how many entries of a folder are taken up together: all, where nothing is read ahead.
    fn part_of(&self, nodes: &[&Node]) -> usize {
        if !self.vault.backend().is_remote() {
            return nodes.len();
        }
        let mut bytes = 0;
        let fits = |node: &&&Node| {
            bytes += if is_small(node) { node.size } else { 0 };
            bytes <= AHEAD_BYTES
        };
        nodes.iter().take(AHEAD_ENTRIES).take_while(fits).count().max(1)
    }

    /// Reads the pieces of small files, where each call costs a round trip; returns which.
    fn read_ahead(&self, folder: BorrowedFd<'_>, nodes: &[&Node]) -> Vec<Id> {
        if !self.vault.backend().is_remote() {
            return Vec::new();
        }
        let lacking = nodes.iter().filter(|node| is_small(node) && !looks_like_it(folder, node));
        let ids: Vec<Id> =
            lacking.flat_map(|node| node.content.iter().flatten().copied()).collect();
        let read = self.vault.read_near(self.index, &ids);
        let ids = read.keys().copied().collect();
        self.ahead.lock().extend(read);
        ids
    }

    fn restore_node(
        &self,
        folder: BorrowedFd<'_>,
        (above, depth): (&Path, usize),
        node: &Node,
    ) -> Result<()> {
        self.progress.go_on()?;
        let path = above.join(OsStr::from_bytes(&node.name));
        let done = match node.kind {
            NodeKind::Dir => self.restore_folder(folder, (&path, depth + 1), node),
            NodeKind::File => self.restore_file(folder, &path, node),
            _ => self.restore_special(folder, node).map_err(Trouble::Io),
        };
        match done {
            Ok(()) => {
                self.items.fetch_add(1, Ordering::Relaxed);
                self.progress.add(1, 0);
            }
            Err(Trouble::Io(error)) => self.faults.add(path, &error),
            Err(Trouble::Vault(error @ Error::Blob { .. })) => self.add_damage(path, &error),
            Err(Trouble::Vault(error)) => return Err(error),
        }
        Ok(())
    }

    fn restore_folder(
        &self,
        above: BorrowedFd<'_>,
        (path, depth): (&Path, usize),
        node: &Node,
    ) -> Result<(), Trouble> {
        let name = node.name.as_slice();
        let mut was_there = false;
        match rustix::fs::mkdirat(above, name, PROTECTED) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
                was_there = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
                if !was_there {
                    rustix::fs::unlinkat(above, name, AtFlags::empty())?;
                    rustix::fs::mkdirat(above, name, PROTECTED)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(above, name, flags, Mode::empty())?;
        if was_there {
            self.sweep(folder.as_fd(), path);
        }
        if let Some(tree) = &node.subtree {
            self.restore_entries(folder.as_fd(), (path, depth), tree)?;
        }
        // Last, as what is made in a folder changes its times, and its mode may forbid it.
        self.describe(folder.as_fd(), node)?;
        Ok(())
    }

    /// Gives what was opened all that was known about it; what is refused keeps nothing else from being tried.
    ///
    /// A new owner costs a file its capabilities, which are attributes; attributes may only be set by who may write; an access
    /// control list changes the mode. So the owner comes first, then the attributes, then the mode.
    fn describe(&self, opened: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
        let owned = self.own(opened, node);
        let mut described = set_attributes(opened, node);
        if described.as_ref().is_err_and(is_denied) && rustix::fs::fchmod(opened, PROTECTED).is_ok()
        {
            // What is there had a mode by which its owner may not write.
            described = set_attributes(opened, node);
        }
        let mut mode = self.permitted_mode(node);
        if owned.is_err() {
            // Rights of an owner that it does not have.
            mode &= Mode::from_raw_mode(0o1777);
        }
        let tried = [
            described,
            rustix::fs::fchmod(opened, mode).map_err(Into::into),
            rustix::fs::futimens(opened, &times_of(node)).map_err(Into::into),
        ];
        tried.into_iter().fold(owned, Result::and)
    }

    /// Returns the mode that a file gets: whoever is not root owns all that it restores, and lends its own rights to nobody
    /// because a file of root was lent.
    fn permitted_mode(&self, node: &Node) -> Mode {
        let mode = mode_of(node);
        match node.kind {
            _ if self.is_root => mode,
            // The group's bit of a folder is about what is made in it.
            NodeKind::Dir => mode & Mode::from_raw_mode(0o3777),
            _ => mode & Mode::from_raw_mode(0o1777),
        }
    }

    fn own(&self, file: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
        match rustix::fs::fchown(file, Some(uid), Some(gid)) {
            // Only root can give files away; others get their own.
            Err(Errno::PERM) if !self.is_root => Ok(()),
            owned => Ok(owned?),
        }
    }

    fn restore_file(
        &self,
        folder: BorrowedFd<'_>,
        path: &Path,
        node: &Node,
    ) -> Result<(), Trouble> {
        let name = node.name.as_slice();
        let key = (node.device_id, node.inode);
        if node.links > 1 {
            // Held until the file is whole, so that other names wait for it.
            let mut links = self.links.lock();
            // The source's system may have given one number to two files, one after another.
            if let Some(first) = links.get(&key).filter(|first| first.content == node.content) {
                match self.link(first, folder, name) {
                    Ok(()) => return Ok(()),
                    // Another file system, one without links, or one file with all the names that it may have: the bytes
                    // matter more than that they lie there once.
                    Err(error) => debug!(%error, file = %path.display(), "written a second time"),
                }
            }
            let file = self.write_file(folder, node)?;
            let above = path.parent().and_then(|above| above.strip_prefix(self.top.1).ok());
            let folder = above.unwrap_or(Path::new("")).to_owned();
            let (name, content) = (node.name.clone(), node.content.clone());
            links.insert(key, First { folder, name, content, file });
            return Ok(());
        }
        if self.is_there(folder, node)? && self.describe_file(folder, node).is_ok() {
            return Ok(());
        }
        self.write_file(folder, node).map(|_| ())
    }

    /// Gives a file that was written before another name. Its folder is found again without following links.
    fn link(&self, first: &First, folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut above = rustix::fs::openat(self.top.0, ".", flags, Mode::empty())?;
        for part in &first.folder {
            above = rustix::fs::openat(&above, part, flags, Mode::empty())?;
        }
        let there = rustix::fs::statat(&above, first.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
        if number_of(&there) != first.file {
            return Err(io::Error::other("somebody has replaced the file"));
        }
        self.clear(folder, name)?;
        Ok(rustix::fs::linkat(&above, first.name.as_slice(), folder, name, AtFlags::empty())?)
    }

    /// Gives a file that is there what was known about it.
    fn describe_file(&self, folder: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, node.name.as_slice(), flags, Mode::empty())?;
        self.describe(file.as_fd(), node)
    }

    /// Tells whether a file has the length, the time and the bytes that it should have. Length and time alone tell too
    /// little: what a repository holds has no times, and a disk that goes bad changes neither.
    fn is_there(&self, folder: BorrowedFd<'_>, node: &Node) -> Result<bool> {
        if !looks_like_it(folder, node) {
            return Ok(false);
        }
        match self.has_bytes(folder, node) {
            Ok(has_bytes) => Ok(has_bytes),
            // What cannot be read is written anew.
            Err(Trouble::Io(_)) => Ok(false),
            Err(Trouble::Vault(error)) => Err(error),
        }
    }

    /// Compares the bytes of a file with the hashes of its pieces; nothing is read from the vault.
    fn has_bytes(&self, folder: BorrowedFd<'_>, node: &Node) -> Result<bool, Trouble> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, node.name.as_slice(), flags, Mode::empty())?;
        let (mut file, mut piece) = (File::from(file), Vec::new());
        for id in node.content.iter().flatten() {
            self.progress.go_on()?;
            let Some(length) = self.index.plain_length(BlobKind::Data, id) else {
                return Ok(false);
            };
            piece.clear();
            (&mut file).take(length).read_to_end(&mut piece)?;
            if Id::of(&piece) != *id {
                return Ok(false);
            }
        }
        Ok(file.read(&mut [0])? == 0)
    }

    /// Writes a file under another name, describes it, and renames it. Returns what the system calls it.
    fn write_file(&self, folder: BorrowedFd<'_>, node: &Node) -> Result<(u64, u64), Trouble> {
        let (file, temporary) = self.create(folder)?;
        let written = self.write_content(&file, node).and_then(|()| {
            // What cannot be told about a file, such as an owner that this system does not know, must not cost its bytes.
            let described = self.describe(file.as_fd(), node);
            if rustix::fs::renameat(folder, temporary.as_str(), folder, node.name.as_slice())
                .is_err()
            {
                self.clear(folder, &node.name)?;
                rustix::fs::renameat(folder, temporary.as_str(), folder, node.name.as_slice())?;
            }
            described?;
            Ok(number_of(&rustix::fs::fstat(&file)?))
        });
        if written.is_err() {
            // What is told is why the file could not be written.
            rustix::fs::unlinkat(folder, temporary.as_str(), AtFlags::empty()).ok();
        }
        written
    }

    /// Makes a file under a name that nobody has, and locks it. A process of the same number, on another machine or before,
    /// may have taken names.
    fn create(&self, folder: BorrowedFd<'_>) -> io::Result<(File, String)> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        for _ in 0..MAX_ATTEMPTS {
            let number = self.temporary.fetch_add(1, Ordering::Relaxed);
            let name = format!("{UNFINISHED}{}-{number}", std::process::id());
            let file = match rustix::fs::openat(folder, name.as_str(), flags, mode) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened?),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Somebody sweeps, and has come before the lock.
                Err(Errno::WOULDBLOCK) => continue,
                // A file system without locks: nobody sweeps there either.
                Err(_) => return Ok((file, name)),
                Ok(()) => {}
            }
            if rustix::fs::fstat(&file)?.st_nlink > 0 {
                return Ok((file, name));
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "all names for unfinished files are taken",
        ))
    }

    /// Removes what runs that were killed left in a folder. What cannot be removed stays, and is told in the log.
    fn sweep(&self, folder: BorrowedFd<'_>, path: &Path) {
        if let Err(error) = sweep(folder) {
            debug!(%error, file = %path.display(), "what an earlier restore left is not removed");
        }
    }

    fn write_content(&self, file: &File, node: &Node) -> Result<(), Trouble> {
        let mut at = 0;
        for id in node.content.iter().flatten() {
            self.progress.go_on()?;
            let ahead = self.ahead.lock().remove(id);
            let piece = match ahead {
                Some(piece) => piece,
                None => self.vault.read_blob(self.index, BlobKind::Data, id)?,
            };
            at = write_sparse(file, at, &piece)?;
            self.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
            self.progress.add(0, piece.len() as u64);
        }
        file.set_len(at)?;
        Ok(())
    }

    /// Makes room for a name.
    fn clear(&self, folder: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {
                // A folder that still holds something is not thrown away.
                Ok(rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn restore_special(&self, folder: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
        let name = node.name.as_slice();
        let mode = Mode::from_raw_mode(node.mode & 0o777);
        let kind = match node.kind {
            NodeKind::Symlink => FileType::Symlink,
            NodeKind::Fifo => FileType::Fifo,
            NodeKind::Dev => FileType::BlockDevice,
            NodeKind::Chardev => FileType::CharacterDevice,
            _ => return Ok(()),
        };
        self.clear(folder, name)?;
        match kind {
            FileType::Symlink => rustix::fs::symlinkat(node.target(), folder, name)?,
            kind => rustix::fs::mknodat(folder, name, kind, mode, node.device)?,
        }
        // Whoever owns the folder may have put something else there meanwhile: what is described is what was made.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(folder, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&made)?.st_mode) != kind {
            return Err(io::Error::other("somebody has replaced it"));
        }
        let (uid, gid) = (Some(Uid::from_raw(node.uid)), Some(Gid::from_raw(node.gid)));
        match rustix::fs::chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH) {
            Err(Errno::PERM) if !self.is_root => {}
            owned => owned?,
        }
        if kind != FileType::Symlink {
            // A descriptor that only names a file has no other way to its mode.
            let made = format!("/proc/self/fd/{}", made.as_raw_fd());
            let mode = self.permitted_mode(node);
            rustix::fs::chmodat(rustix::fs::CWD, made, mode, AtFlags::empty())?;
        }
        rustix::fs::utimensat(folder, name, &times_of(node), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}

fn is_small(node: &Node) -> bool {
    node.kind == NodeKind::File && node.size <= SMALL
}

/// Tells whether a file has the length and the time that it should have.
fn looks_like_it(folder: BorrowedFd<'_>, node: &Node) -> bool {
    let there = rustix::fs::statat(folder, node.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
    there.is_ok_and(|there| {
        FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && u64::try_from(there.st_size) == Ok(node.size)
            && there.st_mtime == node.mtime.seconds
            && u32::try_from(there.st_mtime_nsec) == Ok(node.mtime.nanos)
    })
}

/// Why one file could not be restored.
enum Trouble {
    Io(io::Error),
    Vault(Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Vault(error)
    }
}

/// Removes the unfinished files in a folder that no living run has locked.
fn sweep(folder: BorrowedFd<'_>) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_unfinished(name.to_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // What cannot be opened is no file of a restore, or gone by now, or has a mode by which nobody may look at it.
        let Ok(file) = rustix::fs::openat(folder, name, flags, Mode::empty()) else { continue };
        let is_plain =
            FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) == FileType::RegularFile;
        if is_plain && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// Tells whether a name is one of a file that is not whole yet.
fn is_unfinished(name: &[u8]) -> bool {
    let number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let rest = name.strip_prefix(UNFINISHED.as_bytes());
    let mut parts = rest.unwrap_or_default().splitn(2, |byte| *byte == b'-');
    parts.next().is_some_and(number) && parts.next().is_some_and(number)
}

/// Writes bytes at a place, and leaves out long runs of zeros; returns where they end.
fn write_sparse(file: &File, start: u64, bytes: &[u8]) -> io::Result<u64> {
    let mut at = start;
    let mut pending: Option<(u64, usize, usize)> = None;
    for (number, block) in bytes.chunks(HOLE).enumerate() {
        let from = number * HOLE;
        let is_hole = block.len() == HOLE && block.iter().all(|byte| *byte == 0);
        pending = match (pending, is_hole) {
            (Some((at, begin, _)), false) => Some((at, begin, from + block.len())),
            (None, false) => Some((at, from, from + block.len())),
            (Some(run), true) => {
                write_run(file, bytes, run)?;
                None
            }
            (None, true) => None,
        };
        at += block.len() as u64;
    }
    if let Some(run) = pending {
        write_run(file, bytes, run)?;
    }
    Ok(at)
}

fn write_run(file: &File, bytes: &[u8], (at, begin, end): (u64, usize, usize)) -> io::Result<()> {
    file.write_all_at(bytes.get(begin..end).unwrap_or_default(), at)
}

/// Returns what the system calls a file: its device and its number there.
const fn number_of(facts: &rustix::fs::Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

/// Turns the mode of a vault into that of this system.
pub(crate) fn mode_of(node: &Node) -> Mode {
    let special = [(0o4000, go_mode::SETUID), (0o2000, go_mode::SETGID), (0o1000, go_mode::STICKY)];
    let set = special.iter().filter(|(_, bit)| node.mode & bit != 0);
    Mode::from_raw_mode(set.fold(node.mode & 0o777, |all, (bit, _)| all | bit))
}

fn times_of(node: &Node) -> Timestamps {
    let time = Timespec { tv_sec: node.mtime.seconds, tv_nsec: node.mtime.nanos.into() };
    let access = Timespec { tv_sec: node.atime.seconds, tv_nsec: node.atime.nanos.into() };
    Timestamps { last_access: access, last_modification: time }
}

/// Sets all attributes that can be, and removes those that the node does not have; the first failure is returned. What is
/// as it should be is not touched.
fn set_attributes(file: BorrowedFd<'_>, node: &Node) -> io::Result<()> {
    let there = attributes_of(file).unwrap_or_default();
    let set = |attribute: &Attribute| {
        let Attribute { name, value } = attribute;
        if there.contains(attribute) {
            return Ok(());
        }
        match rustix::fs::fsetxattr(file, name.as_str(), value, XattrFlags::empty()) {
            // The target's file system has none, or the attribute is one that only the system sets.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            set => set.map_err(Into::into),
        }
    };
    let remove =
        |attribute: &Attribute| match rustix::fs::fremovexattr(file, attribute.name.as_str()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NODATA) => Ok(()),
            removed => removed.map_err(Into::into),
        };
    let wanted = &node.extended_attributes;
    let is_extra = |attribute: &&Attribute| {
        is_given_by_people(&attribute.name) && wanted.iter().all(|one| one.name != attribute.name)
    };
    let set = wanted.iter().map(set).fold(Ok(()), Result::and);
    there.iter().filter(is_extra).map(remove).fold(set, Result::and)
}

/// Tells whether an attribute is there because somebody has set it. All others belong to the system.
fn is_given_by_people(name: &str) -> bool {
    ["user.", "trusted."].iter().any(|kind| name.starts_with(kind))
        || matches!(name, "system.posix_acl_access" | "system.posix_acl_default")
}

/// Tells whether the mode of a file, or somebody else who owns it, forbids what was tried.
fn is_denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ACCESS.raw_os_error())
}

/// Writes a file of a vault to a stream.
pub(crate) fn stream(
    (vault, index): (&Vault, &Index),
    node: &Node,
    out: &mut dyn Write,
) -> Result<()> {
    for id in node.content.iter().flatten() {
        let piece = vault.read_blob(index, BlobKind::Data, id)?;
        let failed = |source| Error::Target { path: PathBuf::from("-"), source };
        out.write_all(&piece).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use jiff::Timestamp;

    use super::*;
    use crate::backend::LocalBackend;
    use crate::vault::{KeyCost, Who};

    /// Whoever owns the target puts a link in the place of a folder while root restores: the file behind it gets no name.
    #[test]
    fn a_name_is_not_given_to_a_file_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (Index::default(), Progress::default());
        let (target, outside) = (dir.path().join("target"), dir.path().join("outside"));
        for folder in [&target, &outside, &target.join("folder")] {
            fs::create_dir(folder).unwrap();
        }
        symlink("../outside", target.join("way")).unwrap();
        for folder in [&outside, &target.join("folder")] {
            fs::write(folder.join("file"), "bytes").unwrap();
        }
        let top = File::open(&target).unwrap();
        let restorer = restorer((&vault, &index), &progress, (top.as_fd(), &target));
        let link = |folder: &str, of: &Path| {
            let facts = fs::metadata(of).unwrap();
            let file = (facts.dev(), facts.ino());
            let (folder, name) = (PathBuf::from(folder), b"file".to_vec());
            let first = First { folder, name, content: None, file };
            restorer.link(&first, top.as_fd(), b"twin")
        };
        link("way", &outside.join("file")).unwrap_err();
        assert_eq!(fs::metadata(outside.join("file")).unwrap().nlink(), 1);
        // Nor to another file than the one that was written.
        link("folder", &outside.join("file")).unwrap_err();
        assert!(!target.join("twin").exists());
        link("folder", &target.join("folder/file")).unwrap();
        assert_eq!(fs::read(target.join("twin")).unwrap(), b"bytes");
    }

    fn vault_in(dir: &Path) -> Arc<Vault> {
        let backend = Arc::new(LocalBackend::new(dir.join("vault")));
        let by = (&Who::this_process(), Timestamp::UNIX_EPOCH);
        Arc::new(Vault::init(backend, b"x", KeyCost { log_rounds: 4 }, by).unwrap())
    }

    fn restorer<'a>(
        (vault, index): (&'a Arc<Vault>, &'a Index),
        progress: &'a Progress,
        top: (BorrowedFd<'a>, &'a Path),
    ) -> Restorer<'a> {
        Restorer {
            vault,
            index,
            progress,
            existing: Existing::Replace,
            selection: AppliedSelection::of(
                &Selection::Everything,
                (&**vault, index),
                (&Node::new("", NodeKind::Dir, 0), Path::new("/")),
            ),
            path: Path::new("/"),
            removed: AtomicU64::new(0),
            top,
            is_root: false,
            links: Mutex::default(),
            ahead: Mutex::default(),
            faults: Faults::default(),
            is_vault_damaged: AtomicBool::new(false),
            temporary: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            items: AtomicU64::new(0),
        }
    }

    /// A file of root that lends root's rights would lend those of whoever restores it.
    #[test]
    fn only_root_restores_bits_that_lend_rights() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (Index::default(), Progress::default());
        let top = File::open(dir.path()).unwrap();
        let mut restorer = restorer((&vault, &index), &progress, (top.as_fd(), dir.path()));
        let special = go_mode::SETUID | go_mode::SETGID | go_mode::STICKY;
        let mut check = |is_root: bool, kind: NodeKind, expected: u32| {
            restorer.is_root = is_root;
            let node = Node::new("name", kind, 0o755 | special);
            assert_eq!(
                restorer.permitted_mode(&node).as_raw_mode(),
                expected,
                "{is_root} {kind:?}"
            );
        };
        check(true, NodeKind::File, 0o7755);
        check(false, NodeKind::File, 0o1755);
        check(false, NodeKind::Fifo, 0o1755);
        check(true, NodeKind::Dir, 0o7755);
        check(false, NodeKind::Dir, 0o3755);
    }

    /// A file may take hours to compare or to write: whoever stops the restore does not wait for its end, and what is there
    /// does not pass for another file.
    #[test]
    fn a_restore_is_stopped_within_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let vault = vault_in(dir.path());
        let (index, progress) = (Index::default(), Progress::default());
        let target = dir.path().join("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("file"), "bytes").unwrap();
        let facts = fs::metadata(target.join("file")).unwrap();
        let mut node = Node::new("file", NodeKind::File, 0o600);
        node.size = facts.size();
        node.mtime.seconds = facts.mtime();
        node.mtime.nanos = u32::try_from(facts.mtime_nsec()).unwrap();
        node.content = Some(vec![Id::of(b"bytes")]);
        let top = File::open(&target).unwrap();
        let restorer = restorer((&vault, &index), &progress, (top.as_fd(), &target));
        // No index lists its piece.
        assert!(!restorer.is_there(top.as_fd(), &node).unwrap());
        progress.stop();
        let error = restorer.is_there(top.as_fd(), &node).unwrap_err();
        assert!(matches!(error, Error::Interrupted), "{error:?}");
        let file = tempfile::tempfile().unwrap();
        let written = restorer.write_content(&file, &node);
        assert!(matches!(written, Err(Trouble::Vault(Error::Interrupted))));
        let restored = restorer.restore_file(top.as_fd(), &target.join("file"), &node);
        assert!(matches!(restored, Err(Trouble::Vault(Error::Interrupted))));
        assert_eq!(fs::read(target.join("file")).unwrap(), b"bytes");
    }
}
