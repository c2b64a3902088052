//! A folder of this system as a source: everything in it, with all that the system knows about it.
//!
//! In: absolute paths, and the snapshot before. Out: a snapshot.
//!
//! Invariants
//! * A file whose length, times and number are those of the snapshot before is not opened, unless it changed so shortly
//!   before that snapshot was begun, or later, that a second change may have left all of them alike.
//! * A folder in which nothing differs keeps its id without being written again; if the table of the source knows it,
//!   without being read from the vault.
//! * What becomes of a source is the same with and without a table, and whatever the snapshot before was.
//! * What cannot be read is told as a fault, also a source that is not there; the rest is saved.
//!
//! Not here: following symbolic links, which are saved as links; sockets, which only their process can make anew.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use rustix::fs::OFlags;

use super::below::LeftOut;
use super::facts::{attributes, mode_of, time};
use super::names::Names;
use super::table::{Entry, FolderTable, NewTable, TableFile, UNSETTLED, facts_of};
use crate::cut::PieceReader;
use crate::deep;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::save::{Faults, SaveOptions, Saved, Session};
use crate::vault::index::BlobKind;
use crate::vault::node::{Node, NodeKind, Time, Tree};
use crate::vault::snapshot::INCOMPLETE;
use crate::vault::write::Writer;

/// Saves folders, and files, of this system as one snapshot.
///
/// # Errors
/// If none of the paths is there, all of them stay out, or the vault fails. What else cannot be read is in
/// [`Saved::faults`].
pub fn save_directories(
    session: &Session<'_>,
    paths: &[PathBuf],
    options: &SaveOptions,
) -> Result<Saved> {
    deep::run(|| save_below(session, paths, options))
}

fn save_below(session: &Session<'_>, paths: &[PathBuf], options: &SaveOptions) -> Result<Saved> {
    let Sources { wanted, names, faults } = Sources::find(paths, options)?;
    // Also one that lacks something: each file is looked at anyway, and what is missing is read.
    let parent = session.earlier(options, &names)?.alike.pop();
    let writer = Writer::new(session.vault, session.index, session.lock);
    let system = Names::of_system();
    let file = TableFile::of(session.vault, options, &names, &system);
    let table = match (&file, &parent) {
        (Some(file), Some(parent)) => file.read(&parent.tree, session.index),
        _ => FolderTable::default(),
    };
    let saver = Saver {
        session,
        writer: &writer,
        options,
        names: system,
        faults,
        trusted_until: parent
            .as_ref()
            .map_or(Time::default(), |parent| tick_before(parent.timestamp())),
        settled_until: tick_before(options.now),
        table,
        new_table: NewTable::default(),
    };
    let old = parent.as_ref().map(|parent| parent.tree);
    let tree = saver.save_wanted(Path::new("/"), &wanted, old)?;
    let Saver { faults, new_table, .. } = saver;
    let faults = faults.into_sorted();
    let mut options = options.clone();
    if !faults.is_empty() {
        options.tags.push(INCOMPLETE.to_owned());
    }
    let (snapshot, written, listed) = session.finish(writer, tree, (&options, names, parent))?;
    if let Some(file) = file.filter(|_| !session.vault.is_dry()) {
        let files: Vec<Id> = session.index.files().iter().chain(&listed).copied().collect();
        file.write(new_table, (&tree, &files), &faults);
    }
    Ok(Saved { snapshot, written, faults, left_out: LeftOut::default() })
}

/// The paths of a save.
struct Sources {
    /// Those that are there and do not stay out.
    wanted: Wanted,
    /// All that were asked for, sorted, so that a save that lacks one still belongs to the others of the same paths.
    names: Vec<String>,
    /// Those that are not there.
    faults: Faults,
}

impl Sources {
    fn find(paths: &[PathBuf], options: &SaveOptions) -> Result<Self> {
        let (mut wanted, mut names, faults) = (Wanted::default(), Vec::new(), Faults::default());
        let (mut first_error, mut is_empty) = (None, true);
        for path in paths {
            names.push(source_path(path).to_string_lossy().into_owned());
            match absolute(path) {
                Ok(absolute) => {
                    let facts = fs::symlink_metadata(&absolute);
                    if facts.is_ok_and(|facts| !options.excludes.contains_source(&absolute, &facts))
                    {
                        wanted.insert(&absolute);
                        is_empty = false;
                    }
                }
                Err(Error::Source { path, source }) => {
                    faults.add(&path, &format!("it cannot be read: {source}"));
                    first_error = first_error.or(Some(Error::Source { path, source }));
                }
                Err(error) => return Err(error),
            }
        }
        if is_empty {
            let all_stay_out = || Error::Refused("all sources are excluded".to_owned());
            return Err(first_error.unwrap_or_else(all_stay_out));
        }
        names.sort();
        names.dedup();
        Ok(Self { wanted, names, faults })
    }
}

/// Returns the path by which snapshots name a source, which may not be there now.
#[must_use]
pub fn source_path(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|_| {
        let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        full.components().collect()
    })
}

/// Makes the path of something that is there absolute, as snapshots name it: without resolving links in it.
///
/// # Errors
/// If it is not there.
pub fn absolute(path: &Path) -> Result<PathBuf> {
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

pub(super) struct Saver<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) writer: &'a Writer,
    pub(super) options: &'a SaveOptions,
    pub(super) names: Names,
    pub(super) faults: Faults,
    /// Files that changed later than this may have changed again since the snapshot before, without any sign of it.
    pub(super) trusted_until: Time,
    /// The same for whoever is compared with this snapshot.
    pub(super) settled_until: Time,
    /// What is known of the snapshot before.
    pub(super) table: FolderTable,
    pub(super) new_table: NewTable,
}

/// What is in a folder now.
struct Listing {
    /// By ascending name, without what stays out.
    entries: Vec<Entry>,
    /// Whether the system told of all of them.
    is_whole: bool,
}

impl Saver<'_> {
    /// Saves the folders above what is asked for, with only that in them.
    fn save_wanted(&self, path: &Path, wanted: &Wanted, old: Option<Id>) -> Result<Id> {
        if wanted.is_whole {
            let device = fs::symlink_metadata(path).map_or(0, |facts| facts.dev());
            return self.save_entries(path, old, device);
        }
        let old = self.session.old_tree(old.as_ref());
        let mut nodes = Vec::new();
        for (name, below) in &wanted.below {
            let path = path.join(name);
            let old = old.as_ref().and_then(|tree| tree.find(name.as_bytes()));
            // A link on the way is a folder in the snapshot: what was asked for is below it.
            let facts =
                if below.is_whole { fs::symlink_metadata(&path) } else { fs::metadata(&path) };
            let facts = match facts {
                Ok(facts) => facts,
                // It was there when the save began.
                Err(error) => {
                    self.faults.add(&path, &error);
                    continue;
                }
            };
            if below.is_whole && !facts.is_dir() {
                nodes.extend(self.save_path(&path, &facts, old)?);
                continue;
            }
            let mut node = self.describe(&path, &facts, NodeKind::Dir);
            node.subtree = Some(self.save_wanted(&path, below, old.and_then(|old| old.subtree))?);
            if below.is_whole {
                self.session.progress.add(1, 0);
            }
            nodes.push(node);
        }
        self.writer.add(BlobKind::Tree, &Tree::of(nodes).to_bytes()).map(|(id, _)| id)
    }

    /// Lists the files at and below a path, as a save would find them.
    pub(super) fn list_files(&self, path: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
        let path = absolute(path)?;
        let failed = |source| Error::Source { path: path.clone(), source };
        let facts = fs::symlink_metadata(&path).map_err(failed)?;
        if !facts.is_dir() {
            return Ok(if facts.is_file() { vec![(path, facts)] } else { Vec::new() });
        }
        self.list_below(&path, facts.dev())
    }

    fn list_below(&self, path: &Path, device: u64) -> Result<Vec<(PathBuf, Metadata)>> {
        self.session.progress.go_on()?;
        let entries = self.list(path).entries;
        let below = entries.par_iter().map(|(name, facts)| {
            let path = path.join(name);
            let stays_out = self.options.excludes.other_file_systems && facts.dev() != device;
            match (facts.is_dir(), facts.is_file()) {
                (true, _) if !stays_out => self.list_below(&path, device),
                (_, true) => Ok(vec![(path, facts.clone())]),
                _ => Ok(Vec::new()),
            }
        });
        Ok(below.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Saves what is at a path and is no folder; nothing if it cannot be, which is a fault.
    pub(super) fn save_path(
        &self,
        path: &Path,
        facts: &Metadata,
        old: Option<&Node>,
    ) -> Result<Option<Node>> {
        self.session.progress.go_on()?;
        let kind = facts.file_type();
        let node = if kind.is_file() {
            match self.save_file(path, facts, old)? {
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

    /// Saves what is in a folder; `old` is its tree in the snapshot before.
    fn save_entries(&self, path: &Path, old: Option<Id>, device: u64) -> Result<Id> {
        self.session.progress.go_on()?;
        let Listing { entries, is_whole } = self.list(path);
        let facts = facts_of(&entries);
        let is_settled = entries.iter().all(|(_, facts)| {
            !facts.is_file() || time(facts.ctime(), facts.ctime_nsec()) < self.settled_until
        });
        let noted = if is_settled { facts } else { UNSETTLED };
        let known = self.table.find(path, &facts);
        let known = known.filter(|id| is_whole && self.writer.contains(BlobKind::Tree, id));
        // What the table knows needs no reading, unless something deeper differs.
        let mut old_tree = if known.is_some() { None } else { self.session.old_tree(old.as_ref()) };
        let old_below = |name: &OsStr| match &old_tree {
            Some(tree) => tree.find(name.as_bytes()).and_then(|node| node.subtree),
            None => self.table.tree(&path.join(name)),
        };
        let folders: Vec<&Entry> = entries.iter().filter(|(_, facts)| facts.is_dir()).collect();
        let below = folders.par_iter().map(|entry| {
            let (name, facts) = *entry;
            let old = old_below(name);
            let new = self.save_folder(&path.join(name), facts, (old, device))?;
            Ok((name.as_os_str(), new, old == Some(new)))
        });
        let below = below.collect::<Result<Vec<_>>>()?;
        if let Some(id) = known {
            if below.iter().all(|(_, _, is_same)| *is_same) {
                self.new_table.add(path, noted, id);
                let files = entries.iter().filter(|(_, facts)| facts.is_file());
                let bytes = files.map(|(_, facts)| facts.len()).sum();
                self.session.progress.add(entries.len() as u64, bytes);
                return Ok(id);
            }
            old_tree = self.session.old_tree(Some(&id));
        }
        let below: HashMap<&OsStr, Id> =
            below.into_iter().map(|(name, id, _)| (name, id)).collect();
        let save = |(name, facts): &Entry| {
            let path = path.join(name);
            if let Some(subtree) = below.get(name.as_os_str()) {
                let mut node = self.describe(&path, facts, NodeKind::Dir);
                node.subtree = Some(*subtree);
                self.session.progress.add(1, 0);
                return Ok(Some(node));
            }
            let old = old_tree.as_ref().and_then(|tree| tree.find(name.as_bytes()));
            self.save_path(&path, facts, old)
        };
        let nodes = entries.par_iter().map(save).collect::<Result<Vec<Option<Node>>>>()?;
        let tree = Tree { nodes: nodes.into_iter().flatten().collect() };
        let same = known.or(old).filter(|id| {
            old_tree.as_ref() == Some(&tree) && self.writer.contains(BlobKind::Tree, id)
        });
        let id = match same {
            Some(id) => id,
            None => self.writer.add(BlobKind::Tree, &tree.to_bytes())?.0,
        };
        if is_whole {
            self.new_table.add(path, noted, id);
        }
        Ok(id)
    }

    /// Saves what is in a folder of a folder, unless another file system is there that stays out.
    fn save_folder(
        &self,
        path: &Path,
        facts: &Metadata,
        (old, device): (Option<Id>, u64),
    ) -> Result<Id> {
        if self.options.excludes.other_file_systems && facts.dev() != device {
            return Ok(self.writer.add(BlobKind::Tree, &Tree::default().to_bytes())?.0);
        }
        self.save_entries(path, old, device)
    }

    /// Lists a folder, without what stays out.
    fn list(&self, path: &Path) -> Listing {
        let (names, mut is_whole) = match list(path) {
            Ok(names) => (names, true),
            Err(error) => {
                self.faults.add(path, &error);
                (Vec::new(), false)
            }
        };
        let excludes = &self.options.excludes;
        let marks = excludes.marks_in(path);
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let path = path.join(&name);
            let is_marked = marks.iter().any(|mark| name != mark.name.as_str());
            if is_marked || excludes.contains(&path) {
                continue;
            }
            match fs::symlink_metadata(&path) {
                Ok(facts) if excludes.is_too_large(&facts) => {}
                Ok(facts) => entries.push((name, facts)),
                // It was removed since the folder was listed: then it is not part of the state that is saved.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    self.faults.add(path, &error);
                    is_whole = false;
                }
            }
        }
        Listing { entries, is_whole }
    }

    fn save_file(&self, path: &Path, facts: &Metadata, old: Option<&Node>) -> Result<Option<Node>> {
        let mut node = self.facts(path, facts, NodeKind::File);
        let is_trusted = |old: &&Node| is_unchanged(old, &node) && old.ctime < self.trusted_until;
        if let Some(old) = old.filter(is_trusted)
            && let Some(content) = &old.content
            && content.iter().all(|id| self.writer.contains(BlobKind::Data, id))
        {
            node.content = Some(content.clone());
            // Changing an attribute changes `ctime`.
            node.extended_attributes.clone_from(&old.extended_attributes);
            return Ok(Some(node));
        }
        self.add_attributes(path, &mut node);
        self.session.progress.read_items.fetch_add(1, Ordering::Relaxed);
        let read = open(path).map_err(|source| Error::Source { path: path.to_owned(), source });
        match read.and_then(|file| self.save_content(path, file, node.size)) {
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
    fn save_content(&self, path: &Path, file: File, expected: u64) -> Result<(Vec<Id>, u64)> {
        let failed = |source| Error::Source { path: path.to_owned(), source };
        // What is appended meanwhile belongs to the next save: whoever writes faster than this reads would hold it up forever.
        // Files of `/proc` say that they have no length.
        let length = file.metadata().map_err(failed)?.len();
        let file = file.take(if length == 0 { u64::MAX } else { length });
        let progress = self.session.progress;
        let mut pieces = PieceReader::new(file, Some(self.session.vault.cutter()), expected);
        let (mut content, mut length) = (Vec::new(), 0);
        while let Some(piece) = pieces.next(|bytes| progress.has_read(bytes)).map_err(failed)? {
            progress.go_on()?;
            content.push(self.writer.add(BlobKind::Data, piece)?.0);
            length += piece.len() as u64;
        }
        Ok((content, length))
    }

    /// Returns a node with all that the system knows about a path.
    fn describe(&self, path: &Path, facts: &Metadata, kind: NodeKind) -> Node {
        let mut node = self.facts(path, facts, kind);
        self.add_attributes(path, &mut node);
        node
    }

    fn add_attributes(&self, path: &Path, node: &mut Node) {
        match attributes(path) {
            Ok(attributes) => node.extended_attributes = attributes,
            Err(error) => self.faults.add(path, &format!("its extended attributes: {error}")),
        }
    }

    /// Returns a node with what the system says in one call.
    fn facts(&self, path: &Path, facts: &Metadata, kind: NodeKind) -> Node {
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
        node
    }
}

/// Clocks of file systems go in ticks: of some milliseconds here, of up to two seconds elsewhere.
const TICK: i64 = 2;

/// Returns the time at which the clock of any file system said something earlier than now for sure.
fn tick_before(now: jiff::Timestamp) -> Time {
    Time { seconds: now.as_second().saturating_sub(TICK), nanos: 0 }
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

/// Opens a file that was one a moment ago: neither a link nor a pipe in its place holds up the run.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}
