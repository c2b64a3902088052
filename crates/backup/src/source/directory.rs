//! A folder of this system as a source: everything in it, with all that the system knows about it.
//!
//! In: absolute paths, and the snapshot before. Out: a snapshot.
//!
//! Invariants
//! * A file whose length, times and number are those of the snapshot before is not opened.
//! * A folder in which nothing differs keeps its id without being written again.
//! * What cannot be read is told as a fault; the rest is saved.
//!
//! Not here: following symbolic links, which are saved as links; sockets, which only their process can make anew.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use rustix::fs::OFlags;

use super::exclude::CACHE_MARK;
use super::names::Names;
use crate::cut::MAX_PIECE;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::save::{Faults, SaveOptions, Saved, Session};
use crate::vault::index::BlobKind;
use crate::vault::node::{Attribute, Node, NodeKind, Time, Tree, go_mode};
use crate::vault::snapshot::INCOMPLETE;
use crate::vault::write::Writer;

/// Saves folders, and files, of this system as one snapshot.
///
/// # Errors
/// If a path is not there at all, or the vault fails. What cannot be read below is in [`Saved::faults`].
pub fn save_directories(
    session: &Session<'_>,
    paths: &[PathBuf],
    options: &SaveOptions,
) -> Result<Saved> {
    let mut wanted = Wanted::default();
    let mut names = Vec::new();
    for path in paths {
        let absolute = absolute(path)?;
        wanted.insert(&absolute);
        names.push(absolute.to_string_lossy().into_owned());
    }
    names.sort();
    names.dedup();
    // Also one that lacks something: each file is looked at anyway, and what is missing is read.
    let parent = session.parent(options, &names, |_| true)?;
    let writer = Writer::new(session.vault, session.index, session.lock);
    let saver = Saver {
        session,
        writer: &writer,
        options,
        names: Names::of_system(),
        faults: Faults::default(),
    };
    let old = parent.as_ref().and_then(|parent| session.old_tree(Some(&parent.tree)));
    let tree = saver.save_wanted(Path::new("/"), &wanted, old.as_ref())?;
    let faults = saver.faults.into_sorted();
    let mut options = options.clone();
    if !faults.is_empty() {
        options.tags.push(INCOMPLETE.to_owned());
    }
    let (snapshot, written) = session.finish(writer, tree, (&options, names, parent))?;
    Ok(Saved { snapshot, written, faults })
}

/// Makes a path absolute, without resolving links in it.
fn absolute(path: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Source { path: path.to_owned(), source };
    fs::symlink_metadata(path).map_err(failed)?;
    let full = std::path::absolute(path).map_err(failed)?;
    if full.components().any(|part| part == Component::ParentDir) {
        // Only the system knows where `..` leads behind a link.
        return full.canonicalize().map_err(failed);
    }
    Ok(full.components().collect())
}

/// The paths that are asked for, as a tree of names.
#[derive(Debug, Default)]
struct Wanted {
    is_whole: bool,
    below: BTreeMap<OsString, Self>,
}

impl Wanted {
    fn insert(&mut self, path: &Path) {
        let mut at = self;
        for part in path.components() {
            if let Component::Normal(name) = part {
                at = at.below.entry(name.to_owned()).or_default();
            }
        }
        at.is_whole = true;
    }
}

struct Saver<'a> {
    session: &'a Session<'a>,
    writer: &'a Writer,
    options: &'a SaveOptions,
    names: Names,
    faults: Faults,
}

/// What of the parent is at the place that is saved.
#[derive(Clone, Copy)]
struct Before<'a> {
    node: Option<&'a Node>,
    /// The file system that the source is on.
    device: u64,
}

impl Saver<'_> {
    /// Saves the folders above what is asked for, with only that in them.
    fn save_wanted(&self, path: &Path, wanted: &Wanted, old: Option<&Tree>) -> Result<Id> {
        if wanted.is_whole {
            let device = fs::symlink_metadata(path).map_or(0, |facts| facts.dev());
            return self.save_entries(path, (old.cloned(), None), device);
        }
        let mut nodes = Vec::new();
        for (name, below) in &wanted.below {
            let path = path.join(name);
            let old = old.and_then(|tree| tree.find(name.as_bytes()));
            let failed = |source| Error::Source { path: path.clone(), source };
            let facts = fs::symlink_metadata(&path).map_err(failed)?;
            if below.is_whole {
                let before = Before { node: old, device: facts.dev() };
                let node = self.save_path(&path, &facts, before)?;
                nodes.extend(node);
                continue;
            }
            // A link on the way is a folder in the snapshot: what was asked for is below it.
            let facts = fs::metadata(&path).map_err(failed)?;
            let mut node = self.describe(&path, &facts, NodeKind::Dir);
            let old = self.session.old_tree(old.and_then(|old| old.subtree.as_ref()));
            node.subtree = Some(self.save_wanted(&path, below, old.as_ref())?);
            nodes.push(node);
        }
        self.writer.add(BlobKind::Tree, &Tree::of(nodes).to_bytes()).map(|(id, _)| id)
    }

    /// Saves what is at a path; nothing if it cannot be, which is a fault.
    fn save_path(&self, path: &Path, facts: &Metadata, before: Before<'_>) -> Result<Option<Node>> {
        self.session.progress.go_on()?;
        let kind = facts.file_type();
        let node = if kind.is_dir() {
            self.save_folder(path, facts, before)?
        } else if kind.is_file() {
            match self.save_file(path, facts, before.node)? {
                Some(node) => node,
                None => return Ok(None),
            }
        } else if kind.is_symlink() {
            let mut node = self.describe(path, facts, NodeKind::Symlink);
            match fs::read_link(path) {
                Ok(target) => {
                    let target = target.into_os_string().into_vec();
                    node.linktarget = String::from_utf8_lossy(&target).into_owned();
                    node.linktarget_raw =
                        Some(target).filter(|raw| raw != node.linktarget.as_bytes());
                }
                Err(error) => {
                    self.faults.add(path, &error);
                    return Ok(None);
                }
            }
            node
        } else if kind.is_fifo() {
            self.describe(path, facts, NodeKind::Fifo)
        } else if kind.is_block_device() {
            self.describe(path, facts, NodeKind::Dev)
        } else if kind.is_char_device() {
            self.describe(path, facts, NodeKind::Chardev)
        } else {
            return Ok(None);
        };
        self.session.progress.add(1, node.size);
        Ok(Some(node))
    }

    fn save_folder(&self, path: &Path, facts: &Metadata, before: Before<'_>) -> Result<Node> {
        let mut node = self.describe(path, facts, NodeKind::Dir);
        let other = self.options.excludes.other_file_systems && facts.dev() != before.device;
        if other {
            let (id, _) = self.writer.add(BlobKind::Tree, &Tree::default().to_bytes())?;
            node.subtree = Some(id);
            return Ok(node);
        }
        let old_id = before.node.and_then(|old| old.subtree);
        let old = self.session.old_tree(old_id.as_ref());
        node.subtree = Some(self.save_entries(path, (old, old_id), before.device)?);
        Ok(node)
    }

    /// Saves what is in a folder.
    fn save_entries(
        &self,
        path: &Path,
        (old, old_id): (Option<Tree>, Option<Id>),
        device: u64,
    ) -> Result<Id> {
        let mut entries = match list(path) {
            Ok(entries) => entries,
            Err(error) => {
                self.faults.add(path, &error);
                Vec::new()
            }
        };
        if self.options.excludes.caches && is_cache(path) {
            entries.retain(|name| name == "CACHEDIR.TAG");
        }
        let save = |name: &OsString| {
            let path = path.join(name);
            if self.options.excludes.contains(&path) {
                return Ok(None);
            }
            let facts = match fs::symlink_metadata(&path) {
                Ok(facts) => facts,
                // It was removed since the folder was listed: then it is not part of the state that is saved.
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => {
                    self.faults.add(path, &error);
                    return Ok(None);
                }
            };
            let node = old.as_ref().and_then(|tree| tree.find(name.as_bytes()));
            self.save_path(&path, &facts, Before { node, device })
        };
        let nodes = entries.par_iter().map(save).collect::<Result<Vec<Option<Node>>>>()?;
        let tree = Tree { nodes: nodes.into_iter().flatten().collect() };
        match old_id
            .filter(|id| old.as_ref() == Some(&tree) && self.writer.contains(BlobKind::Tree, id))
        {
            Some(id) => Ok(id),
            None => self.writer.add(BlobKind::Tree, &tree.to_bytes()).map(|(id, _)| id),
        }
    }

    fn save_file(&self, path: &Path, facts: &Metadata, old: Option<&Node>) -> Result<Option<Node>> {
        let mut node = self.describe(path, facts, NodeKind::File);
        if let Some(content) =
            old.filter(|old| is_unchanged(old, &node)).and_then(|old| old.content.clone())
            && content.iter().all(|id| self.writer.contains(BlobKind::Data, id))
        {
            node.content = Some(content);
            return Ok(Some(node));
        }
        self.session.progress.read_items.fetch_add(1, Ordering::Relaxed);
        let read = open(path).map_err(|source| Error::Source { path: path.to_owned(), source });
        match read.and_then(|mut file| self.save_content(path, &mut file, node.size)) {
            Ok((content, length)) => {
                node.content = Some(content);
                node.size = length;
                Ok(Some(node))
            }
            Err(Error::Source { source, .. }) => {
                self.faults.add(path, &source);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Saves the bytes of a file; returns its pieces and its length.
    fn save_content(&self, path: &Path, file: &mut File, expected: u64) -> Result<(Vec<Id>, u64)> {
        let failed = |source| Error::Source { path: path.to_owned(), source };
        let room = usize::try_from(expected).unwrap_or(MAX_PIECE).min(MAX_PIECE);
        let mut buffer = Vec::with_capacity(room + 1);
        let (mut content, mut length) = (Vec::new(), 0);
        loop {
            let lacking = (MAX_PIECE - buffer.len()) as u64;
            file.take(lacking).read_to_end(&mut buffer).map_err(failed)?;
            if buffer.is_empty() {
                return Ok((content, length));
            }
            self.session.progress.go_on()?;
            let cut = self.session.vault.cutter().first(&buffer);
            let piece = buffer.get(..cut).unwrap_or(&buffer);
            content.push(self.writer.add(BlobKind::Data, piece)?.0);
            length += cut as u64;
            buffer.drain(..cut);
        }
    }

    /// Returns a node with all that the system knows about a path.
    fn describe(&self, path: &Path, facts: &Metadata, kind: NodeKind) -> Node {
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let mut node = Node::new(name, kind, mode_of(facts.mode(), kind));
        node.mtime = time(facts.mtime(), facts.mtime_nsec());
        node.atime = node.mtime;
        node.ctime = time(facts.ctime(), facts.ctime_nsec());
        node.uid = facts.uid();
        node.gid = facts.gid();
        node.user = self.names.user(node.uid).unwrap_or_default().to_owned();
        node.group = self.names.group(node.gid).unwrap_or_default().to_owned();
        node.inode = facts.ino();
        if kind == NodeKind::File {
            node.size = facts.size();
        }
        if kind != NodeKind::Dir {
            node.links = facts.nlink();
            if node.links > 1 {
                node.device_id = facts.dev();
            }
        }
        if matches!(kind, NodeKind::Dev | NodeKind::Chardev) {
            node.device = facts.rdev();
        }
        match attributes(path) {
            Ok(attributes) => node.extended_attributes = attributes,
            Err(error) => self.faults.add(path, &format!("its extended attributes: {error}")),
        }
        node
    }
}

fn is_unchanged(old: &Node, new: &Node) -> bool {
    let facts = |node: &Node| (node.kind, node.size, node.mtime, node.ctime, node.inode);
    facts(old) == facts(new)
}

fn list(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name());
    }
    names.sort();
    Ok(names)
}

fn is_cache(path: &Path) -> bool {
    let mut mark = Vec::new();
    let read = File::open(path.join("CACHEDIR.TAG"))
        .and_then(|file| file.take(CACHE_MARK.len() as u64).read_to_end(&mut mark));
    read.is_ok() && mark == CACHE_MARK
}

/// Opens a file that was one a moment ago: neither a link nor a pipe in its place holds up the run.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn time(seconds: i64, nanos: i64) -> Time {
    Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) }
}

/// Turns the mode of this system into that of a vault.
fn mode_of(mode: u32, kind: NodeKind) -> u32 {
    let kind = match kind {
        NodeKind::File | NodeKind::Irregular => 0,
        NodeKind::Dir => go_mode::DIR,
        NodeKind::Symlink => go_mode::SYMLINK,
        NodeKind::Dev => go_mode::DEVICE,
        NodeKind::Chardev => go_mode::DEVICE | go_mode::CHARACTER,
        NodeKind::Fifo => go_mode::FIFO,
        NodeKind::Socket => go_mode::SOCKET,
    };
    let special = [(0o4000, go_mode::SETUID), (0o2000, go_mode::SETGID), (0o1000, go_mode::STICKY)];
    let set = special.iter().filter(|(bit, _)| mode & bit != 0);
    set.fold(mode & 0o777 | kind, |all, (_, bit)| all | bit)
}

/// Reads all extended attributes; none where the file system has none.
fn attributes(path: &Path) -> io::Result<Vec<Attribute>> {
    let mut names = Vec::new();
    match read_growing(
        &mut names,
        || rustix::fs::llistxattr_query(path),
        |buffer| rustix::fs::llistxattr(path, buffer),
    ) {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(Vec::new()),
        read => read?,
    }
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = Vec::new();
        match read_growing(
            &mut value,
            || rustix::fs::lgetxattr_query(path, name),
            |buffer| rustix::fs::lgetxattr(path, name, buffer),
        ) {
            // It was removed since they were listed, or may not be read by this user.
            Err(error) if matches!(error.raw_os_error(), Some(61 | 1 | 13)) => continue,
            read => read?,
        }
        found.push(Attribute { name: String::from_utf8_lossy(name).into_owned(), value });
    }
    found.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(found)
}

/// Asks for a length, and fills a buffer of it, again until nothing grew in between.
fn read_growing(
    buffer: &mut Vec<u8>,
    query: impl Fn() -> rustix::io::Result<usize>,
    read: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    loop {
        let length = query()?;
        if length == 0 {
            buffer.clear();
            return Ok(());
        }
        buffer.resize(length, 0);
        match read(buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(());
            }
            Err(rustix::io::Errno::RANGE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
