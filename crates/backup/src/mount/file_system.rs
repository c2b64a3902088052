//! Answers to the kernel.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use parking_lot::Mutex;
use tracing::warn;

use super::Onlookers;
use super::inodes::Inodes;
use super::roots::{Roots, Thing};
use crate::error::Result;
use crate::restore::mode_of;
use crate::vault::node::{Node, NodeKind, Time};

/// What a snapshot holds never changes.
const LONG: Duration = Duration::from_hours(1);
/// Snapshots come and go.
const SHORT: Duration = Duration::from_secs(1);
/// The number that stands for one that is not told.
const UNTOLD: INodeNo = INodeNo(0xffff_ffff);

pub(super) struct FileSystem {
    roots: Roots,
    inodes: Mutex<Inodes>,
    opened: Mutex<(u64, HashMap<u64, Opened>)>,
    /// When it was mounted: the time of what is in no snapshot.
    since: SystemTime,
    owner: (u32, u32),
    onlookers: Onlookers,
    /// Whether the kernel asks for access control lists and goes by them.
    knows_lists: bool,
}

/// The attribute that has the access control list of a file.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// What somebody has opened.
#[derive(Clone)]
enum Opened {
    Folder(Arc<Vec<(Vec<u8>, FileType)>>),
    File(Arc<File>),
}

struct File {
    node: Arc<Node>,
    /// Where each piece begins, and where the last ends.
    starts: Vec<u64>,
    /// The pieces that were read last.
    at_hand: Mutex<Vec<(usize, Arc<Vec<u8>>)>>,
}

impl FileSystem {
    pub(super) fn new(roots: Roots, onlookers: Onlookers) -> Self {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let since = SystemTime::now();
        Self {
            roots,
            inodes: Mutex::new(Inodes::new()),
            opened: Mutex::default(),
            since,
            owner,
            onlookers,
            knows_lists: false,
        }
    }

    fn thing(&self, number: INodeNo) -> Result<Thing, Errno> {
        self.inodes.lock().find(number.0).cloned().ok_or(Errno::ESTALE)
    }

    fn node(&self, number: INodeNo) -> Result<Arc<Node>, Errno> {
        match self.thing(number)? {
            Thing::Stored(_, node) => Ok(node),
            _ => Err(Errno::ENODATA),
        }
    }

    /// Finds what stands in a folder under a name.
    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<Thing, Errno> {
        match self.thing(parent)? {
            Thing::Above(above) => {
                let list = self.roots.list(&above);
                let found = list.into_iter().find(|(given, _)| given == name.as_bytes());
                found.map(|(_, thing)| thing).ok_or(Errno::ENOENT)
            }
            Thing::Stored(top, node) => {
                let id = node.subtree.ok_or(Errno::ENOTDIR)?;
                let tree = self.roots.tree(&id).map_err(|error| unreadable(&error))?;
                let node = tree.find(name.as_bytes()).ok_or(Errno::ENOENT)?;
                Ok(Thing::Stored(top, Arc::new(node.clone())))
            }
            Thing::Link(_) => Err(Errno::ENOTDIR),
        }
    }

    fn list(&self, number: INodeNo) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
        let mut entries =
            vec![(b".".to_vec(), FileType::Directory), (b"..".to_vec(), FileType::Directory)];
        match self.thing(number)? {
            Thing::Above(above) => {
                let list = self.roots.list(&above);
                entries.extend(list.into_iter().map(|(name, thing)| (name, kind_of(&thing))));
            }
            Thing::Stored(_, node) => {
                let id = node.subtree.ok_or(Errno::ENOTDIR)?;
                let tree = self.roots.tree(&id).map_err(|error| unreadable(&error))?;
                entries
                    .extend(tree.nodes.iter().map(|node| (node.name.clone(), type_of(node.kind))));
            }
            Thing::Link(_) => return Err(Errno::ENOTDIR),
        }
        Ok(entries)
    }

    /// Describes what stands under a number, and says for how long that holds.
    fn describe(&self, number: u64, thing: &Thing) -> (Duration, FileAttr) {
        let mut facts = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: kind_of(thing),
            perm: 0o555,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        match thing {
            Thing::Above(_) => return (SHORT, facts),
            Thing::Link(to) => {
                facts.size = to.len() as u64;
                return (SHORT, facts);
            }
            Thing::Stored(_, node) => {
                facts.size = if node.kind == NodeKind::Symlink {
                    node.target().len() as u64
                } else {
                    node.size
                };
                facts.blocks = facts.size.div_ceil(512);
                facts.perm = mode_of(node).as_raw_mode() as u16 & 0o7777;
                let has_list =
                    || node.extended_attributes.iter().any(|one| one.name == ACCESS_LIST);
                if self.onlookers == Onlookers::All && !self.knows_lists && has_list() {
                    // With a list, the bits of the group are what it allows at most, not what the group may.
                    facts.perm &= 0o7700;
                }
                facts.mtime = moment(node.mtime);
                facts.atime = moment(node.atime);
                facts.ctime = moment(node.ctime);
                facts.nlink = u32::try_from(node.links).unwrap_or(u32::MAX).max(1);
                facts.uid = node.uid;
                facts.gid = node.gid;
                facts.rdev = u32::try_from(node.device).unwrap_or(0);
            }
        }
        (LONG, facts)
    }

    fn keep(&self, what: Opened) -> FileHandle {
        let mut opened = self.opened.lock();
        opened.0 += 1;
        let handle = opened.0;
        opened.1.insert(handle, what);
        FileHandle(handle)
    }

    fn opened(&self, handle: FileHandle) -> Result<Opened, Errno> {
        self.opened.lock().1.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn open_file(&self, number: INodeNo) -> Result<FileHandle, Errno> {
        let node = self.node(number)?;
        let Some(starts) = self.roots.starts(&node) else {
            warn!(file = %node.text_name(), "the vault lacks a part of a file");
            return Err(Errno::EIO);
        };
        let file = File { node, starts, at_hand: Mutex::default() };
        Ok(self.keep(Opened::File(Arc::new(file))))
    }

    /// Reads bytes of a file; fewer only at its end.
    fn read_at(&self, file: &File, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let end = file.starts.last().copied().unwrap_or(0);
        let end = offset.saturating_add(length as u64).min(end);
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while at < end {
            // The last that begins at or before this place; pieces are never empty.
            let number = file.starts.partition_point(|start| *start <= at).saturating_sub(1);
            let piece = self.piece(file, number)?;
            let start = file.starts.get(number).copied().unwrap_or(at);
            let from = usize::try_from(at - start).map_err(|_| Errno::EIO)?;
            let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
            let part = piece.get(from..).unwrap_or_default();
            let part = part.get(..wanted).unwrap_or(part);
            if part.is_empty() {
                warn!(file = %file.node.text_name(), "a piece of a file is shorter than the index says");
                return Err(Errno::EIO);
            }
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Ok(bytes)
    }

    fn piece(&self, file: &File, number: usize) -> Result<Arc<Vec<u8>>, Errno> {
        let known = |pieces: &Vec<(usize, Arc<Vec<u8>>)>| {
            pieces.iter().find(|(kept, _)| *kept == number).map(|(_, piece)| piece.clone())
        };
        if let Some(piece) = known(&file.at_hand.lock()) {
            return Ok(piece);
        }
        let ids = file.node.content.as_deref().unwrap_or_default();
        let id = ids.get(number).ok_or(Errno::EIO)?;
        let piece = Arc::new(self.roots.piece(id).map_err(|error| unreadable(&error))?);
        let mut at_hand = file.at_hand.lock();
        at_hand.insert(0, (number, piece.clone()));
        at_hand.truncate(2);
        Ok(piece)
    }
}

fn unreadable(error: &crate::Error) -> Errno {
    let reason = crate::chain(error);
    warn!(reason, "a part of the vault cannot be read");
    Errno::EIO
}

fn kind_of(thing: &Thing) -> FileType {
    match thing {
        Thing::Above(_) => FileType::Directory,
        Thing::Link(_) => FileType::Symlink,
        Thing::Stored(_, node) => type_of(node.kind),
    }
}

const fn type_of(kind: NodeKind) -> FileType {
    match kind {
        NodeKind::Dir => FileType::Directory,
        NodeKind::Symlink => FileType::Symlink,
        NodeKind::Dev => FileType::BlockDevice,
        NodeKind::Chardev => FileType::CharDevice,
        NodeKind::Fifo => FileType::NamedPipe,
        NodeKind::Socket => FileType::Socket,
        NodeKind::File | NodeKind::Irregular => FileType::RegularFile,
    }
}

fn moment(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Answers with bytes, or with their number if that is all that is asked for.
fn answer(reply: ReplyXattr, bytes: &[u8], size: u32) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(length),
        size if size < length => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

impl Filesystem for FileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // With lists, the kernel checks modes, too: whoever mounted for no one else may read everything.
        if self.onlookers == Onlookers::All {
            self.knows_lists = config.add_capabilities(InitFlags::FUSE_POSIX_ACL).is_ok();
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(thing) => {
                let number =
                    self.inodes.lock().tell((parent.0, name.as_bytes().to_vec()), thing.clone());
                let (holds, facts) = self.describe(number, &thing);
                reply.entry(&holds, &facts, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.inodes.lock().forget(number.0, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.thing(number) {
            Ok(thing) => {
                let (holds, facts) = self.describe(number.0, &thing);
                reply.attr(&holds, &facts);
            }
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.thing(number) {
            Ok(Thing::Link(to)) => reply.data(&to),
            Ok(Thing::Stored(_, node)) if node.kind == NodeKind::Symlink => {
                reply.data(node.target());
            }
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_file(number) {
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.opened(handle).and_then(|opened| match opened {
            Opened::File(file) => self.read_at(&file, offset, size as usize),
            Opened::Folder(_) => Err(Errno::EISDIR),
        });
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    /// Whoever mounted may read everything; where all may look, the kernel decides.
    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.opened.lock().1.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.list(number) {
            Ok(entries) => {
                let handle = self.keep(Opened::Folder(Arc::new(entries)));
                reply.opened(handle, FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.opened(handle) {
            Ok(Opened::Folder(entries)) => entries,
            Ok(Opened::File(_)) => return reply.error(Errno::ENOTDIR),
            Err(error) => return reply.error(error),
        };
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, kind)) in entries.iter().enumerate().skip(begin) {
            let number = if name == b"." { number } else { UNTOLD };
            if reply.add(number, at as u64 + 1, *kind, OsStr::from_bytes(name)) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.opened.lock().1.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let node = match self.node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let named = |attribute: &&crate::Attribute| attribute.name.as_bytes() == name.as_bytes();
        match node.extended_attributes.iter().find(named) {
            Some(attribute) => answer(reply, &attribute.value, size),
            None => reply.error(Errno::ENODATA),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.node(number).map(|node| {
            let names = node.extended_attributes.iter().map(|one| format!("{}\0", one.name));
            names.collect::<String>()
        });
        answer(reply, names.unwrap_or_default().as_bytes(), size);
    }
}
