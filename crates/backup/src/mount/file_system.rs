//! Replies to FUSE requests of the kernel.

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
use tympan_notation::error_chain_text;

use super::inode_table::InodeTable;
use super::mount_access::MountAccess;
use super::mounted_snapshots::{MountItem, MountedSnapshots};
use crate::error::Result;
use crate::restore::to_system_mode;
use crate::vault::node::{NodeTime, SnapshotNode, SnapshotNodeKind};

/// The contents of a snapshot never change.
const SNAPSHOT_ENTRY_TTL: Duration = Duration::from_hours(1);
/// Snapshots are added and removed.
const VIRTUAL_ENTRY_TTL: Duration = Duration::from_secs(1);
/// The inode number reported when the real one is not known.
const UNKNOWN_INODE: INodeNo = INodeNo(0xffff_ffff);

pub(super) struct SnapshotFileSystem {
    snapshots: MountedSnapshots,
    inodes: Mutex<InodeTable>,
    open_handles: Mutex<(u64, HashMap<u64, OpenMountHandle>)>,
    /// The mount time, used as the time of everything outside snapshots.
    mounted_at: SystemTime,
    owner: (u32, u32),
    access: MountAccess,
    /// True if the kernel requests and enforces access control lists.
    supports_acls: bool,
}

/// The extended attribute that contains the access control list of a file.
const ACL_ATTRIBUTE: &str = "system.posix_acl_access";

/// An open file or folder.
#[derive(Clone)]
enum OpenMountHandle {
    Folder(Arc<Vec<(Vec<u8>, FileType)>>),
    File(Arc<OpenSnapshotFile>),
}

struct OpenSnapshotFile {
    node: Arc<SnapshotNode>,
    /// The offset of each piece, and the end of the last.
    piece_offsets: Vec<u64>,
    /// The most recently read pieces.
    cached_pieces: Mutex<Vec<(usize, Arc<Vec<u8>>)>>,
}

impl SnapshotFileSystem {
    pub(super) fn new(roots: MountedSnapshots, onlookers: MountAccess) -> Self {
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let since = SystemTime::now();
        Self {
            snapshots: roots,
            inodes: Mutex::new(InodeTable::new()),
            open_handles: Mutex::default(),
            mounted_at: since,
            owner,
            access: onlookers,
            supports_acls: false,
        }
    }

    fn find_item(&self, number: INodeNo) -> Result<MountItem, Errno> {
        self.inodes.lock().find(number.0).cloned().ok_or(Errno::ESTALE)
    }

    fn find_node(&self, number: INodeNo) -> Result<Arc<SnapshotNode>, Errno> {
        match self.find_item(number)? {
            MountItem::Stored(_, node) => Ok(node),
            _ => Err(Errno::ENODATA),
        }
    }

    /// Finds an entry of a folder by name.
    fn look_up_child(&self, parent: INodeNo, name: &OsStr) -> Result<MountItem, Errno> {
        match self.find_item(parent)? {
            MountItem::Virtual(above) => {
                let list = self.snapshots.list_virtual_folder(&above);
                let entry = list.into_iter().find(|(entry_name, _)| entry_name == name.as_bytes());
                entry.map(|(_, item)| item).ok_or(Errno::ENOENT)
            }
            MountItem::Stored(top, node) => {
                let id = node.subtree.ok_or(Errno::ENOTDIR)?;
                let tree = self.snapshots.read_tree(&id).map_err(|error| log_read_error(&error))?;
                let node = tree.find(name.as_bytes()).ok_or(Errno::ENOENT)?;
                Ok(MountItem::Stored(top, Arc::new(node.clone())))
            }
            MountItem::Link(_) => Err(Errno::ENOTDIR),
        }
    }

    fn list_folder(&self, number: INodeNo) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
        let mut entries =
            vec![(b".".to_vec(), FileType::Directory), (b"..".to_vec(), FileType::Directory)];
        match self.find_item(number)? {
            MountItem::Virtual(above) => {
                let list = self.snapshots.list_virtual_folder(&above);
                entries.extend(list.into_iter().map(|(name, item)| (name, item_file_type(&item))));
            }
            MountItem::Stored(_, node) => {
                let id = node.subtree.ok_or(Errno::ENOTDIR)?;
                let tree = self.snapshots.read_tree(&id).map_err(|error| log_read_error(&error))?;
                entries.extend(
                    tree.nodes.iter().map(|node| (node.name.clone(), node_file_type(node.kind))),
                );
            }
            MountItem::Link(_) => return Err(Errno::ENOTDIR),
        }
        Ok(entries)
    }

    /// Returns the attributes of an inode and how long they are valid.
    fn item_attributes(&self, number: u64, item: &MountItem) -> (Duration, FileAttr) {
        let mut facts = FileAttr {
            ino: INodeNo(number),
            size: 0,
            blocks: 0,
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind: item_file_type(item),
            perm: 0o555,
            nlink: 1,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        match item {
            MountItem::Virtual(_) => return (VIRTUAL_ENTRY_TTL, facts),
            MountItem::Link(to) => {
                facts.size = to.len() as u64;
                return (VIRTUAL_ENTRY_TTL, facts);
            }
            MountItem::Stored(_, node) => {
                facts.size = if node.kind == SnapshotNodeKind::Symlink {
                    node.target().len() as u64
                } else {
                    node.size
                };
                facts.blocks = facts.size.div_ceil(512);
                facts.perm = to_system_mode(node).as_raw_mode() as u16 & 0o7777;
                let has_list = || {
                    node.extended_attributes.iter().any(|attribute| attribute.name == ACL_ATTRIBUTE)
                };
                if self.access == MountAccess::All && !self.supports_acls && has_list() {
                    // With an access control list, the group bits are the mask, not the group's permissions.
                    facts.perm &= 0o7700;
                }
                facts.mtime = to_system_time(node.mtime);
                facts.atime = to_system_time(node.atime);
                facts.ctime = to_system_time(node.ctime);
                facts.nlink = u32::try_from(node.links).unwrap_or(u32::MAX).max(1);
                facts.uid = node.uid;
                facts.gid = node.gid;
                facts.rdev = u32::try_from(node.device).unwrap_or(0);
            }
        }
        (SNAPSHOT_ENTRY_TTL, facts)
    }

    fn register_handle(&self, open_handle: OpenMountHandle) -> FileHandle {
        let mut opened = self.open_handles.lock();
        opened.0 += 1;
        let handle = opened.0;
        opened.1.insert(handle, open_handle);
        FileHandle(handle)
    }

    fn find_handle(&self, handle: FileHandle) -> Result<OpenMountHandle, Errno> {
        self.open_handles.lock().1.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    fn open_file(&self, number: INodeNo) -> Result<FileHandle, Errno> {
        let node = self.find_node(number)?;
        let Some(starts) = self.snapshots.piece_offsets(&node) else {
            warn!(file = %node.text_name(), "part of a file is missing from the vault");
            return Err(Errno::EIO);
        };
        let file =
            OpenSnapshotFile { node, piece_offsets: starts, cached_pieces: Mutex::default() };
        Ok(self.register_handle(OpenMountHandle::File(Arc::new(file))))
    }

    /// Reads bytes of a file; fewer only at its end.
    fn read_file_range(
        &self,
        file: &OpenSnapshotFile,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Errno> {
        let end = file.piece_offsets.last().copied().unwrap_or(0);
        let end = offset.saturating_add(length as u64).min(end);
        let mut bytes = Vec::with_capacity(length);
        let mut at = offset;
        while at < end {
            // The last piece that begins at or before this offset; pieces are never empty.
            let number = file.piece_offsets.partition_point(|start| *start <= at).saturating_sub(1);
            let piece = self.read_piece(file, number)?;
            let start = file.piece_offsets.get(number).copied().unwrap_or(at);
            let from = usize::try_from(at - start).map_err(|_| Errno::EIO)?;
            let part_length = usize::try_from(end - at).unwrap_or(usize::MAX);
            let part = piece.get(from..).unwrap_or_default();
            let part = part.get(..part_length).unwrap_or(part);
            if part.is_empty() {
                warn!(file = %file.node.text_name(), "a piece of a file is shorter than the index says");
                return Err(Errno::EIO);
            }
            bytes.extend_from_slice(part);
            at += part.len() as u64;
        }
        Ok(bytes)
    }

    fn read_piece(&self, file: &OpenSnapshotFile, number: usize) -> Result<Arc<Vec<u8>>, Errno> {
        let cached_piece = |pieces: &Vec<(usize, Arc<Vec<u8>>)>| {
            pieces
                .iter()
                .find(|(piece_number, _)| *piece_number == number)
                .map(|(_, piece)| piece.clone())
        };
        if let Some(piece) = cached_piece(&file.cached_pieces.lock()) {
            return Ok(piece);
        }
        let ids = file.node.content.as_deref().unwrap_or_default();
        let id = ids.get(number).ok_or(Errno::EIO)?;
        let piece =
            Arc::new(self.snapshots.read_piece(id).map_err(|error| log_read_error(&error))?);
        let mut at_hand = file.cached_pieces.lock();
        at_hand.insert(0, (number, piece.clone()));
        at_hand.truncate(2);
        Ok(piece)
    }
}

fn log_read_error(error: &crate::Error) -> Errno {
    let reason = error_chain_text(error);
    warn!(reason, "cannot read part of the vault");
    Errno::EIO
}

fn item_file_type(item: &MountItem) -> FileType {
    match item {
        MountItem::Virtual(_) => FileType::Directory,
        MountItem::Link(_) => FileType::Symlink,
        MountItem::Stored(_, node) => node_file_type(node.kind),
    }
}

const fn node_file_type(kind: SnapshotNodeKind) -> FileType {
    match kind {
        SnapshotNodeKind::Dir => FileType::Directory,
        SnapshotNodeKind::Symlink => FileType::Symlink,
        SnapshotNodeKind::Dev => FileType::BlockDevice,
        SnapshotNodeKind::Chardev => FileType::CharDevice,
        SnapshotNodeKind::Fifo => FileType::NamedPipe,
        SnapshotNodeKind::Socket => FileType::Socket,
        SnapshotNodeKind::File | SnapshotNodeKind::Irregular => FileType::RegularFile,
    }
}

fn to_system_time(time: NodeTime) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Replies with bytes, or with their length if only that is requested.
fn reply_xattr(reply: ReplyXattr, bytes: &[u8], size: u32) {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(length),
        size if size < length => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

impl Filesystem for SnapshotFileSystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // With access control lists, the kernel checks modes, too; the user of a private mount may read everything.
        if self.access == MountAccess::All {
            self.supports_acls = config.add_capabilities(InitFlags::FUSE_POSIX_ACL).is_ok();
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up_child(parent, name) {
            Ok(item) => {
                let number = self
                    .inodes
                    .lock()
                    .record_lookup((parent.0, name.as_bytes().to_vec()), item.clone());
                let (holds, facts) = self.item_attributes(number, &item);
                reply.entry(&holds, &facts, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.inodes.lock().forget(number.0, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.find_item(number) {
            Ok(item) => {
                let (holds, facts) = self.item_attributes(number.0, &item);
                reply.attr(&holds, &facts);
            }
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.find_item(number) {
            Ok(MountItem::Link(to)) => reply.data(&to),
            Ok(MountItem::Stored(_, node)) if node.kind == SnapshotNodeKind::Symlink => {
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
        let bytes = self.find_handle(handle).and_then(|opened| match opened {
            OpenMountHandle::File(file) => self.read_file_range(&file, offset, size as usize),
            OpenMountHandle::Folder(_) => Err(Errno::EISDIR),
        });
        match bytes {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    /// In a private mount, its user may read everything; in a shared mount, the kernel decides.
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
        self.open_handles.lock().1.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.list_folder(number) {
            Ok(entries) => {
                let handle = self.register_handle(OpenMountHandle::Folder(Arc::new(entries)));
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
        let entries = match self.find_handle(handle) {
            Ok(OpenMountHandle::Folder(entries)) => entries,
            Ok(OpenMountHandle::File(_)) => return reply.error(Errno::ENOTDIR),
            Err(error) => return reply.error(error),
        };
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        for (at, (name, kind)) in entries.iter().enumerate().skip(begin) {
            let number = if name == b"." { number } else { UNKNOWN_INODE };
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
        self.open_handles.lock().1.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 4096, 255, 4096);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let node = match self.find_node(number) {
            Ok(node) => node,
            Err(error) => return reply.error(error),
        };
        let named =
            |attribute: &&crate::ExtendedAttribute| attribute.name.as_bytes() == name.as_bytes();
        match node.extended_attributes.iter().find(named) {
            Some(attribute) => reply_xattr(reply, &attribute.value, size),
            None => reply.error(Errno::ENODATA),
        }
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.find_node(number).map(|node| {
            let names =
                node.extended_attributes.iter().map(|attribute| format!("{}\0", attribute.name));
            names.collect::<String>()
        });
        reply_xattr(reply, names.unwrap_or_default().as_bytes(), size);
    }
}
