//! Folders of the local file system as a source: all their contents, with all metadata that the system has.
//!
//! In: absolute paths, and the parent snapshot. Out: a snapshot.
//!
//! Invariants
//! * A file whose length, times and inode number match the parent snapshot is not opened, unless it changed so shortly
//!   before that snapshot began, or later, that a second change may have left them all equal.
//! * A folder without differences keeps its id without being written again; if the table of the source knows it,
//!   without being read from the vault.
//! * The result does not depend on the table or on the parent snapshot.
//! * What cannot be read is reported as a fault, including a missing source; the rest is saved.
//!
//! Not here: following symbolic links, which are saved as links; sockets, which only their process can recreate.

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

use super::base_store::OmittedCounts;
use super::file_metadata::{node_time, read_attributes, to_vault_mode};
use super::folder_table::{
    FolderEntry, FolderTable, FolderTableFile, NewFolderTable, UNSTABLE_DIGEST, digest_entries,
};
use super::user_group_names::UserGroupNames;
use crate::deep_stack;
use crate::error::{Error, Result};
use crate::fault::FaultCollector;
use crate::object_id::VaultObjectId;
use crate::piece_splitter::PieceReader;
use crate::save::{SaveOptions, SaveSession, SaveSummary};
use crate::vault::node::{NodeTime, SnapshotNode, SnapshotNodeKind, SnapshotTree};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::pack_writer::PackWriter;
use crate::vault::snapshot::INCOMPLETE_TAG;

/// Saves local folders and files as one snapshot.
///
/// # Errors
/// If none of the paths exists, all of them are excluded, or the vault fails. Other unreadable items are in
/// [`SaveSummary::faults`].
pub fn save_directories(
    session: &SaveSession<'_>,
    paths: &[PathBuf],
    options: &SaveOptions,
) -> Result<SaveSummary> {
    deep_stack::run_on_deep_stack(|| save_source_paths(session, paths, options))
}

fn save_source_paths(
    session: &SaveSession<'_>,
    paths: &[PathBuf],
    options: &SaveOptions,
) -> Result<SaveSummary> {
    let SourcePaths { requested_paths, names, faults } = SourcePaths::find_sources(paths, options)?;
    // An incomplete snapshot is suitable as well: each file is checked anyway, and missing content is read.
    let parent = session.list_earlier_snapshots(options, &names)?.comparable.pop();
    let writer = PackWriter::new(session.vault, session.index, session.lock);
    let system = UserGroupNames::read_system();
    let file = FolderTableFile::for_paths(session.vault, options, &names, &system);
    let table = match (&file, &parent) {
        (Some(file), Some(parent)) => file.read(&parent.tree, session.index),
        _ => FolderTable::default(),
    };
    let saver = DirectorySaver {
        session,
        writer: &writer,
        options,
        names: system,
        faults,
        trusted_until: parent
            .as_ref()
            .map_or(NodeTime::default(), |parent| tick_before(parent.timestamp())),
        stable_until: tick_before(options.started_at),
        previous_table: table,
        new_table: NewFolderTable::default(),
    };
    let old = parent.as_ref().map(|parent| parent.tree);
    let tree = saver.save_requested_paths(Path::new("/"), &requested_paths, old)?;
    let DirectorySaver { faults, new_table, .. } = saver;
    let faults = faults.into_sorted();
    let mut options = options.clone();
    if !faults.is_empty() {
        options.tags.push(INCOMPLETE_TAG.to_owned());
    }
    let (snapshot, written, listed) =
        session.finish_snapshot(writer, tree, &options, names, parent)?;
    if let Some(file) = file.filter(|_| !session.vault.is_dry_run()) {
        let files: Vec<VaultObjectId> =
            session.index.files().iter().chain(&listed).copied().collect();
        file.write(new_table, (&tree, &files), &faults);
    }
    Ok(SaveSummary { snapshot, written, faults, omitted: OmittedCounts::default() })
}

/// The paths of a save.
struct SourcePaths {
    /// The existing paths that are not excluded.
    requested_paths: RequestedPathTree,
    /// All requested paths, sorted, so that a save that lacks one still belongs to the others of the same paths.
    names: Vec<String>,
    /// The missing paths.
    faults: FaultCollector,
}

impl SourcePaths {
    fn find_sources(paths: &[PathBuf], options: &SaveOptions) -> Result<Self> {
        let (mut requested_paths, mut names, faults) =
            (RequestedPathTree::default(), Vec::new(), FaultCollector::default());
        let (mut first_error, mut is_empty) = (None, true);
        for path in paths {
            names.push(source_path(path).to_string_lossy().into_owned());
            match absolute_path(path) {
                Ok(absolute) => {
                    let facts = fs::symlink_metadata(&absolute);
                    if facts.is_ok_and(|facts| !options.excludes.contains_source(&absolute, &facts))
                    {
                        requested_paths.insert(&absolute);
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
            let all_stay_out = || Error::InvalidRequest("all sources are excluded".to_owned());
            return Err(first_error.unwrap_or_else(all_stay_out));
        }
        names.sort();
        names.dedup();
        Ok(Self { requested_paths, names, faults })
    }
}

/// Returns the path by which snapshots name a source, which need not exist now.
#[must_use]
pub fn source_path(path: &Path) -> PathBuf {
    absolute_path(path).unwrap_or_else(|_| {
        let full = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        full.components().collect()
    })
}

/// Returns the absolute path of an existing item, as snapshots name it: without resolving links in it.
///
/// # Errors
/// If the path does not exist.
pub fn absolute_path(path: &Path) -> Result<PathBuf> {
    let failed = |source| Error::Source { path: path.to_owned(), source };
    fs::symlink_metadata(path).map_err(failed)?;
    let full = std::path::absolute(path).map_err(failed)?;
    if full.components().any(|part| part == Component::ParentDir) {
        // Only the system can resolve `..` after a link.
        return full.canonicalize().map_err(failed);
    }
    Ok(full.components().collect())
}

/// The requested paths, as a tree of names.
#[derive(Debug, Default)]
struct RequestedPathTree {
    is_requested: bool,
    children: BTreeMap<OsString, Self>,
}

impl RequestedPathTree {
    fn insert(&mut self, path: &Path) {
        let mut at = self;
        for part in path.components() {
            if let Component::Normal(name) = part {
                at = at.children.entry(name.to_owned()).or_default();
            }
        }
        at.is_requested = true;
    }
}

pub(super) struct DirectorySaver<'a> {
    pub(super) session: &'a SaveSession<'a>,
    pub(super) writer: &'a PackWriter,
    pub(super) options: &'a SaveOptions,
    pub(super) names: UserGroupNames,
    pub(super) faults: FaultCollector,
    /// Files that changed after this time may have changed again, undetectably, since the parent snapshot.
    pub(super) trusted_until: NodeTime,
    /// The same limit for a later save that uses this snapshot as parent.
    pub(super) stable_until: NodeTime,
    /// The folder table of the parent snapshot.
    pub(super) previous_table: FolderTable,
    pub(super) new_table: NewFolderTable,
}

/// The current entries of a folder.
struct DirectoryListing {
    /// The entries by ascending name, without excluded ones.
    entries: Vec<FolderEntry>,
    /// True if the system returned all entries.
    is_complete: bool,
}

impl DirectorySaver<'_> {
    /// Saves the parent folders of the requested paths, with only those paths in them.
    fn save_requested_paths(
        &self,
        path: &Path,
        requested_paths: &RequestedPathTree,
        old: Option<VaultObjectId>,
    ) -> Result<VaultObjectId> {
        if requested_paths.is_requested {
            let device = fs::symlink_metadata(path).map_or(0, |facts| facts.dev());
            return self.save_entries(path, old, device);
        }
        let old = self.session.read_previous_tree(old.as_ref());
        let mut nodes = Vec::new();
        for (name, below) in &requested_paths.children {
            let path = path.join(name);
            let old = old.as_ref().and_then(|tree| tree.find(name.as_bytes()));
            // A link on the way is saved as a folder, because the requested path is below it.
            let facts =
                if below.is_requested { fs::symlink_metadata(&path) } else { fs::metadata(&path) };
            let facts = match facts {
                Ok(facts) => facts,
                // It existed when the save began.
                Err(error) => {
                    self.faults.add(&path, &error);
                    continue;
                }
            };
            if below.is_requested && !facts.is_dir() {
                nodes.extend(self.save_path(&path, &facts, old)?);
                continue;
            }
            let mut node = self.node_with_attributes(&path, &facts, SnapshotNodeKind::Dir);
            node.subtree =
                Some(self.save_requested_paths(&path, below, old.and_then(|old| old.subtree))?);
            if below.is_requested {
                self.session.progress.add_done(1, 0);
            }
            nodes.push(node);
        }
        self.writer
            .add_blob(PackBlobKind::Tree, &SnapshotTree::from_nodes(nodes).to_bytes())
            .map(|(id, _)| id)
    }

    /// Lists the files at and below a path, as a save would find them.
    pub(super) fn list_files(&self, path: &Path) -> Result<Vec<(PathBuf, Metadata)>> {
        let path = absolute_path(path)?;
        let failed = |source| Error::Source { path: path.clone(), source };
        let facts = fs::symlink_metadata(&path).map_err(failed)?;
        if !facts.is_dir() {
            return Ok(if facts.is_file() { vec![(path, facts)] } else { Vec::new() });
        }
        self.list_below(&path, facts.dev())
    }

    fn list_below(&self, path: &Path, device: u64) -> Result<Vec<(PathBuf, Metadata)>> {
        self.session.progress.check_running()?;
        let entries = self.list_entries(path).entries;
        let below = entries.par_iter().map(|(name, facts)| {
            let path = path.join(name);
            let stays_out =
                self.options.excludes.excludes_other_file_systems && facts.dev() != device;
            match (facts.is_dir(), facts.is_file()) {
                (true, _) if !stays_out => self.list_below(&path, device),
                (_, true) => Ok(vec![(path, facts.clone())]),
                _ => Ok(Vec::new()),
            }
        });
        Ok(below.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// Saves the item at a path that is not a folder; returns `None` on failure, which is recorded as a fault.
    pub(super) fn save_path(
        &self,
        path: &Path,
        facts: &Metadata,
        old: Option<&SnapshotNode>,
    ) -> Result<Option<SnapshotNode>> {
        self.session.progress.check_running()?;
        let kind = facts.file_type();
        let node = if kind.is_file() {
            match self.save_file(path, facts, old)? {
                Some(node) => node,
                None => return Ok(None),
            }
        } else if kind.is_symlink() {
            let mut node = self.node_with_attributes(path, facts, SnapshotNodeKind::Symlink);
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
            self.node_with_attributes(path, facts, SnapshotNodeKind::Fifo)
        } else if kind.is_block_device() {
            self.node_with_attributes(path, facts, SnapshotNodeKind::Dev)
        } else if kind.is_char_device() {
            self.node_with_attributes(path, facts, SnapshotNodeKind::Chardev)
        } else {
            return Ok(None);
        };
        self.session.progress.add_done(1, node.size);
        Ok(Some(node))
    }

    /// Saves the entries of a folder; `old` is its tree in the parent snapshot.
    fn save_entries(
        &self,
        path: &Path,
        old: Option<VaultObjectId>,
        device: u64,
    ) -> Result<VaultObjectId> {
        self.session.progress.check_running()?;
        let DirectoryListing { entries, is_complete } = self.list_entries(path);
        let facts = digest_entries(&entries);
        let is_settled = entries.iter().all(|(_, facts)| {
            !facts.is_file() || node_time(facts.ctime(), facts.ctime_nsec()) < self.stable_until
        });
        let digest = if is_settled { facts } else { UNSTABLE_DIGEST };
        let unchanged_tree = self.previous_table.find_unchanged_tree(path, &facts);
        let unchanged_tree =
            unchanged_tree.filter(|id| is_complete && self.writer.contains(PackBlobKind::Tree, id));
        // A folder in the table need not be read, unless something deeper differs.
        let mut old_tree = if unchanged_tree.is_some() {
            None
        } else {
            self.session.read_previous_tree(old.as_ref())
        };
        let old_below = |name: &OsStr| match &old_tree {
            Some(tree) => tree.find(name.as_bytes()).and_then(|node| node.subtree),
            None => self.previous_table.find_tree(&path.join(name)),
        };
        let folders: Vec<&FolderEntry> =
            entries.iter().filter(|(_, facts)| facts.is_dir()).collect();
        let below = folders.par_iter().map(|entry| {
            let (name, facts) = *entry;
            let old = old_below(name);
            let new = self.save_folder(&path.join(name), facts, old, device)?;
            Ok((name.as_os_str(), new, old == Some(new)))
        });
        let below = below.collect::<Result<Vec<_>>>()?;
        if let Some(id) = unchanged_tree {
            if below.iter().all(|(_, _, is_same)| *is_same) {
                self.new_table.add(path, digest, id);
                let files = entries.iter().filter(|(_, facts)| facts.is_file());
                let bytes = files.map(|(_, facts)| facts.len()).sum();
                self.session.progress.add_done(entries.len() as u64, bytes);
                return Ok(id);
            }
            old_tree = self.session.read_previous_tree(Some(&id));
        }
        let below: HashMap<&OsStr, VaultObjectId> =
            below.into_iter().map(|(name, id, _)| (name, id)).collect();
        let save = |(name, facts): &FolderEntry| {
            let path = path.join(name);
            if let Some(subtree) = below.get(name.as_os_str()) {
                let mut node = self.node_with_attributes(&path, facts, SnapshotNodeKind::Dir);
                node.subtree = Some(*subtree);
                self.session.progress.add_done(1, 0);
                return Ok(Some(node));
            }
            let old = old_tree.as_ref().and_then(|tree| tree.find(name.as_bytes()));
            self.save_path(&path, facts, old)
        };
        let nodes = entries.par_iter().map(save).collect::<Result<Vec<Option<SnapshotNode>>>>()?;
        let tree = SnapshotTree { nodes: nodes.into_iter().flatten().collect() };
        let same = unchanged_tree.or(old).filter(|id| {
            old_tree.as_ref() == Some(&tree) && self.writer.contains(PackBlobKind::Tree, id)
        });
        let id = match same {
            Some(id) => id,
            None => self.writer.add_blob(PackBlobKind::Tree, &tree.to_bytes())?.0,
        };
        if is_complete {
            self.new_table.add(path, digest, id);
        }
        Ok(id)
    }

    /// Saves a subfolder, unless it is on an excluded file system.
    fn save_folder(
        &self,
        path: &Path,
        facts: &Metadata,
        old: Option<VaultObjectId>,
        device: u64,
    ) -> Result<VaultObjectId> {
        if self.options.excludes.excludes_other_file_systems && facts.dev() != device {
            return Ok(self
                .writer
                .add_blob(PackBlobKind::Tree, &SnapshotTree::default().to_bytes())?
                .0);
        }
        self.save_entries(path, old, device)
    }

    /// Lists a folder, without excluded entries.
    fn list_entries(&self, path: &Path) -> DirectoryListing {
        let (names, mut is_whole) = match list_folder_names(path) {
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
                // It was removed after the folder was listed, so it is not part of the saved state.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    self.faults.add(path, &error);
                    is_whole = false;
                }
            }
        }
        DirectoryListing { entries, is_complete: is_whole }
    }

    fn save_file(
        &self,
        path: &Path,
        facts: &Metadata,
        old: Option<&SnapshotNode>,
    ) -> Result<Option<SnapshotNode>> {
        let mut node = self.node_from_metadata(path, facts, SnapshotNodeKind::File);
        let is_trusted =
            |old: &&SnapshotNode| is_unchanged(old, &node) && old.ctime < self.trusted_until;
        if let Some(old) = old.filter(is_trusted)
            && let Some(content) = &old.content
            && content.iter().all(|id| self.writer.contains(PackBlobKind::Data, id))
        {
            node.content = Some(content.clone());
            // Changing an attribute changes `ctime`.
            node.extended_attributes.clone_from(&old.extended_attributes);
            return Ok(Some(node));
        }
        self.add_attributes(path, &mut node);
        self.session.progress.read_items.fetch_add(1, Ordering::Relaxed);
        let read = open_regular_file(path)
            .map_err(|source| Error::Source { path: path.to_owned(), source });
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
    fn save_content(
        &self,
        path: &Path,
        file: File,
        expected: u64,
    ) -> Result<(Vec<VaultObjectId>, u64)> {
        let failed = |source| Error::Source { path: path.to_owned(), source };
        // Data appended during the read belongs to the next save: a fast writer would otherwise delay the save forever.
        // Files of `/proc` report a length of zero.
        let length = file.metadata().map_err(failed)?.len();
        let file = file.take(if length == 0 { u64::MAX } else { length });
        let progress = self.session.progress;
        let mut pieces = PieceReader::new(file, Some(self.session.vault.splitter()), expected);
        let (mut content, mut length) = (Vec::new(), 0);
        while let Some(piece) = pieces.next(|bytes| progress.record_read(bytes)).map_err(failed)? {
            progress.check_running()?;
            content.push(self.writer.add_blob(PackBlobKind::Data, piece)?.0);
            length += piece.len() as u64;
        }
        Ok((content, length))
    }

    /// Returns a node with all metadata of a path.
    fn node_with_attributes(
        &self,
        path: &Path,
        facts: &Metadata,
        kind: SnapshotNodeKind,
    ) -> SnapshotNode {
        let mut node = self.node_from_metadata(path, facts, kind);
        self.add_attributes(path, &mut node);
        node
    }

    fn add_attributes(&self, path: &Path, node: &mut SnapshotNode) {
        match read_attributes(path) {
            Ok(attributes) => node.extended_attributes = attributes,
            Err(error) => {
                self.faults.add(path, &format!("cannot read its extended attributes: {error}"))
            }
        }
    }

    /// Returns a node with the metadata of one system call.
    fn node_from_metadata(
        &self,
        path: &Path,
        facts: &Metadata,
        kind: SnapshotNodeKind,
    ) -> SnapshotNode {
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        let mut node = SnapshotNode::new(name, kind, to_vault_mode(facts.mode(), kind));
        node.mtime = node_time(facts.mtime(), facts.mtime_nsec());
        node.atime = node.mtime;
        node.ctime = node_time(facts.ctime(), facts.ctime_nsec());
        node.uid = facts.uid();
        node.gid = facts.gid();
        node.user = self.names.user(node.uid).unwrap_or_default().to_owned();
        node.group = self.names.group(node.gid).unwrap_or_default().to_owned();
        node.inode = facts.ino();
        if kind == SnapshotNodeKind::File {
            node.size = facts.size();
        }
        if kind != SnapshotNodeKind::Dir {
            node.links = facts.nlink();
            if node.links > 1 {
                node.device_id = facts.dev();
            }
        }
        if matches!(kind, SnapshotNodeKind::Dev | SnapshotNodeKind::Chardev) {
            node.device = facts.rdev();
        }
        node
    }
}

/// Maximum granularity of file system timestamps: some milliseconds here, up to two seconds elsewhere.
const MAX_CLOCK_TICK_SECONDS: i64 = 2;

/// Returns a time at which the timestamp clock of any file system was certainly earlier than now.
fn tick_before(now: jiff::Timestamp) -> NodeTime {
    NodeTime { seconds: now.as_second().saturating_sub(MAX_CLOCK_TICK_SECONDS), nanos: 0 }
}

fn is_unchanged(old: &SnapshotNode, new: &SnapshotNode) -> bool {
    let facts = |node: &SnapshotNode| (node.kind, node.size, node.mtime, node.ctime, node.inode);
    facts(old) == facts(new)
}

fn list_folder_names(path: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name());
    }
    names.sort();
    Ok(names)
}

/// Opens a file that was a regular one a moment ago: a link or a pipe that replaced it does not block the run.
fn open_regular_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}
