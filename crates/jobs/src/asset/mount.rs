//! Asset synchronization: folders of other systems, kept as assets.
//!
//! In: a [`Mount`]: a place with files, and a folder of content. Out: an asset for each file, and what a pass changed.
//!
//! Invariants
//! * A pass reads the bytes of those files only whose mark (size and time) is not the one that the asset has.
//! * Only assets that came from the mount are changed or removed; others in the folder are left alone.
//! * A place that cannot be listed as a whole removes nothing.
//! * Without mounts nothing runs ([`super::MountService`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tympan_content::{
    Date, JCR_CONTENT, NodePath, Property, Repository, Session, Subtree, Value, check_name,
};

use super::ingest::{ASSET, ORIGINAL, USER};

/// On `jcr:content` of an asset: the mount that it came from.
const MOUNT: &str = "dam:mount";
/// And the mark that the file had.
const MARK: &str = "dam:mountMark";
/// Files that are committed together.
const BATCH: usize = 32;
/// The deepest folder that is followed.
const MAX_DEPTH: usize = 32;
/// The most files of one mount.
const MAX_FILES: usize = 1_000_000;

/// A place with files.
pub trait Source: Debug + Send + Sync {
    /// Lists all files: relative paths with `/`, and a mark that differs when the bytes do.
    ///
    /// # Errors
    /// If any part of it cannot be listed.
    fn list(&self) -> io::Result<BTreeMap<String, String>>;

    /// Opens a file.
    ///
    /// # Errors
    /// If it cannot be read.
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>>;
}

/// A directory of this machine, or of one that it mounts.
#[derive(Debug, Clone)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// Names a directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn add(
        &self,
        folder: &Path,
        relative: &str,
        depth: usize,
        found: &mut BTreeMap<String, String>,
    ) -> io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // Hidden files are the other system's own; names that are not UTF-8 are no names of nodes.
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
            let path =
                if relative.is_empty() { name.to_owned() } else { format!("{relative}/{name}") };
            // Links are not followed: they could lead anywhere.
            let metadata = std::fs::symlink_metadata(entry.path())?;
            if metadata.is_dir() && depth < MAX_DEPTH {
                self.add(&entry.path(), &path, depth + 1, found)?;
            } else if metadata.is_file() {
                if found.len() >= MAX_FILES {
                    return Err(io::Error::other(format!("it has more than {MAX_FILES} files")));
                }
                let modified = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH);
                let modified = modified.map_or(0, |since| since.as_nanos());
                found.insert(path, format!("{}-{modified}", metadata.len()));
            }
        }
        Ok(())
    }
}

impl Source for Directory {
    fn list(&self) -> io::Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        self.add(&self.root, "", 0, &mut found)?;
        Ok(found)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(self.root.join(path))?))
    }
}

/// A place with files, and the folder that shows them.
#[derive(Debug)]
pub struct Mount {
    /// Its name, by which its assets are known.
    pub name: String,
    /// The folder.
    pub target: NodePath,
    /// The place.
    pub source: Box<dyn Source>,
}

/// What a pass over a mount did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Synchronized {
    /// Assets that are new.
    pub added: usize,
    /// Assets whose file changed.
    pub changed: usize,
    /// Assets whose file is gone.
    pub removed: usize,
    /// Files that are as they were.
    pub unchanged: usize,
    /// Files that are left out, with the reason.
    pub skipped: Vec<(String, String)>,
}

/// Why a pass ended early. What it committed until then stays, and the next pass goes on there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The place cannot be listed.
    #[error("the mount `{mount}` cannot be listed")]
    List {
        /// The mount.
        mount: String,
        /// The cause.
        source: io::Error,
    },
    /// Content cannot be read or written.
    #[error("the mount `{mount}` cannot be synchronized")]
    Content {
        /// The mount.
        mount: String,
        /// The cause.
        source: Box<tympan_content::Error>,
    },
}

/// Makes a folder show what a mount holds. `progress` is told how many of how many files are done, and says whether to go
/// on; a later pass goes on where this one ended.
///
/// # Errors
/// [`MountError`].
pub fn synchronize(
    repository: &Repository,
    mount: &Mount,
    now: SystemTime,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Synchronized, MountError> {
    let listed = mount.source.list();
    let files = listed.map_err(|source| MountError::List { mount: mount.name.clone(), source })?;
    let content =
        |source| MountError::Content { mount: mount.name.clone(), source: Box::new(source) };
    let mut pass = Pass { repository, mount, now, done: Synchronized::default() };
    let present = pass.present().map_err(content)?;
    let (mut work, mut wanted) = (Vec::new(), BTreeSet::new());
    for (file, mark) in &files {
        match target_of(&mount.target, file) {
            Err(reason) => pass.done.skipped.push((file.clone(), reason)),
            Ok(path) => {
                let known = present.get(&path);
                if known == Some(mark) {
                    pass.done.unchanged += 1;
                } else {
                    work.push((file, mark, path.clone()));
                }
                wanted.insert(path);
            }
        }
    }
    let total = work.len();
    for (number, batch) in work.chunks(BATCH).enumerate() {
        if !progress(number * BATCH, total) {
            return Ok(pass.done);
        }
        pass.write(batch).map_err(content)?;
    }
    let gone: Vec<&NodePath> = present.keys().filter(|path| !wanted.contains(*path)).collect();
    pass.remove(&gone).map_err(content)?;
    progress(total, total);
    Ok(pass.done)
}

/// Returns the asset of a file.
fn target_of(folder: &NodePath, file: &str) -> Result<NodePath, String> {
    let mut path = folder.clone();
    for name in file.split('/') {
        check_name(name).map_err(|error| error.to_string())?;
        path = path.child(name).map_err(|error| error.to_string())?;
    }
    Ok(path)
}

struct Pass<'a> {
    repository: &'a Repository,
    mount: &'a Mount,
    now: SystemTime,
    done: Synchronized,
}

impl Pass<'_> {
    /// Returns the assets of the mount with the marks of their files.
    fn present(&self) -> tympan_content::Result<BTreeMap<NodePath, String>> {
        let mut present = BTreeMap::new();
        let snapshot = self.repository.snapshot()?;
        let Some(folder) = snapshot.node(&self.mount.target)? else { return Ok(present) };
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for child in folder.listed_children()? {
                if child.primary_type() != ASSET {
                    folders.push(child);
                    continue;
                }
                let Some(content) = child.child(JCR_CONTENT)? else { continue };
                if content.text(MOUNT).as_deref() == Some(&*self.mount.name) {
                    present.insert(child.path().clone(), content.text(MARK).unwrap_or_default());
                }
            }
        }
        Ok(present)
    }

    fn write(&mut self, batch: &[(&String, &String, NodePath)]) -> tympan_content::Result<()> {
        let mut session = self.repository.session(USER)?;
        for (file, mark, path) in batch {
            let written = match self.mount.source.open(file) {
                Ok(mut source) => self.write_one(&mut session, path, mark, &mut source)?,
                Err(error) => Err(error.to_string()),
            };
            match written {
                Ok(true) => self.done.added += 1,
                Ok(false) => self.done.changed += 1,
                Err(reason) => self.done.skipped.push(((*file).clone(), reason)),
            }
        }
        session.commit("synchronize assets", self.now)?;
        Ok(())
    }

    /// Puts a file's bytes into its asset; tells whether the asset is new, or why it is left alone.
    fn write_one(
        &self,
        session: &mut Session,
        path: &NodePath,
        mark: &str,
        source: &mut dyn Read,
    ) -> tympan_content::Result<Result<bool, String>> {
        let present = session.node(path)?;
        if let Some(node) = &present {
            let content = node.child(JCR_CONTENT)?;
            let owner = content.and_then(|content| content.text(MOUNT));
            if owner.as_deref() != Some(&*self.mount.name) {
                return Ok(Err("something that is not of this mount has its name".to_owned()));
            }
        }
        let blob = match session.put_blob(source) {
            Ok(blob) => blob,
            Err(tympan_content::Error::Blobs(tympan_blobs::Error::Source(error))) => {
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let at = || Value::Date(Date::from_system_time(self.now));
        if present.is_some() {
            // Metadata and everything else that people gave it stays.
            let (content, original) = (path.child(JCR_CONTENT)?, path.resolve(ORIGINAL)?);
            session.set_property(&original, "jcr:data", Value::Binary(blob).into())?;
            session.set_property(&original, "jcr:lastModified", at().into())?;
            session.set_property(&content, MARK, Property::text(mark))?;
            return Ok(Ok(false));
        }
        make_folders(session, path)?;
        let resource = Subtree::new(JCR_CONTENT, "nt:resource")
            .with("jcr:data", Value::Binary(blob))
            .with("jcr:lastModified", at())
            .with("jcr:lastModifiedBy", Property::text(USER));
        let original = Subtree::new("original", "nt:file").with_child(resource);
        let content = Subtree::new(JCR_CONTENT, "dam:AssetContent")
            .with(MOUNT, Property::text(&*self.mount.name))
            .with(MARK, Property::text(mark))
            .with_child(Subtree::new("metadata", "nt:unstructured"))
            .with_child(Subtree::new("renditions", "nt:folder").with_child(original));
        session.put(path, Subtree::new(path.name(), ASSET).with_child(content))?;
        Ok(Ok(true))
    }

    fn remove(&mut self, gone: &[&NodePath]) -> tympan_content::Result<()> {
        for batch in gone.chunks(BATCH) {
            let mut session = self.repository.session(USER)?;
            for path in batch {
                session.remove(path)?;
                self.done.removed += 1;
            }
            session.commit("synchronize assets", self.now)?;
        }
        Ok(())
    }
}

/// Adds the folders above an asset that are not there.
fn make_folders(session: &mut Session, path: &NodePath) -> tympan_content::Result<()> {
    let mut missing = Vec::new();
    let mut above = path.parent();
    while let Some(folder) = above {
        if session.node(&folder)?.is_some() {
            break;
        }
        above = folder.parent();
        missing.push(folder);
    }
    missing.iter().rev().try_for_each(|folder| session.add_node(folder, "sling:Folder"))
}
