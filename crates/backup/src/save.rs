//! What saving has in common for all sources: what was asked for, how far it is, what came of it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;

use crate::backend::FileKind;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::source::below::LeftOut;
use crate::source::exclude::Excludes;
use crate::throttle::{Throttle, Working};
use crate::vault::index::Index;
use crate::vault::lock::Lock;
use crate::vault::node::Tree;
use crate::vault::snapshot::Snapshot;
use crate::vault::write::{Writer, Written};
use crate::vault::{Vault, Who, index::BlobKind};

/// Which snapshot a save is compared with.
#[derive(Clone, Debug, Default)]
pub enum Parent {
    /// The last one of the same host and paths.
    #[default]
    Latest,
    /// None: everything is read.
    Nothing,
}

/// What a save is asked for.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// Who saves.
    pub who: Who,
    /// When.
    pub now: Timestamp,
    /// What stays out.
    pub excludes: Excludes,
    /// Words for the snapshot.
    pub tags: Vec<String>,
    /// What it is compared with.
    pub parent: Parent,
    /// Where tables of sources are kept, which spare reading what did not change; they may be thrown away at any time.
    pub tables: Option<PathBuf>,
    /// Chunks of one level of a repository that are read anew and in memory at once, about.
    pub at_once: usize,
}

/// What [`SaveOptions::at_once`] is unless somebody asks for something else.
const AT_ONCE: usize = 4096;

impl SaveOptions {
    /// Returns options that leave nothing out.
    #[must_use]
    pub fn new(who: Who, now: Timestamp) -> Self {
        let (excludes, parent) = (Excludes::default(), Parent::default());
        Self { who, now, excludes, tags: Vec::new(), parent, tables: None, at_once: AT_ONCE }
    }
}

/// How far a run is; another thread may look, and stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files and other things that are done.
    pub items: AtomicU64,
    /// Those among them that had to be read.
    pub read_items: AtomicU64,
    /// Bytes that are done, read or not.
    pub bytes: AtomicU64,
    /// Items that are expected, if that is known.
    pub expected_items: AtomicU64,
    /// Bytes that are expected, if that is known.
    pub expected_bytes: AtomicU64,
    stop: AtomicBool,
    throttle: OnceLock<Arc<Throttle>>,
}

impl Progress {
    /// Asks the run to stop soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Brakes the run from now on; once for each run.
    pub fn brake_with(&self, throttle: Arc<Throttle>) {
        // A second one would be another person's: the first stays.
        self.throttle.set(throttle).ok();
    }

    /// Fails if the run was asked to stop; waits if it is braked.
    pub(crate) fn go_on(&self) -> Result<()> {
        if let Some(throttle) = self.throttle.get() {
            throttle.pause(&self.stop);
        }
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// As [`Progress::go_on`], at the begin of some work: until more begins after it, this thread only waits.
    pub(crate) fn begin(&self) -> Result<Working> {
        self.go_on()?;
        Ok(Working)
    }

    pub(crate) fn add(&self, items: u64, bytes: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Something that could not be saved, restored or found right, while the rest could.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it is about.
    pub path: PathBuf,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

/// Faults from many threads.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    pub(crate) fn add(&self, path: impl Into<PathBuf>, message: &impl ToString) {
        let fault = Fault { path: path.into(), message: message.to_string() };
        warn!(file = %fault.path.display(), reason = fault.message, "passed over");
        self.0.lock().push(fault);
    }

    pub(crate) fn into_sorted(self) -> Vec<Fault> {
        let mut faults = self.0.into_inner();
        faults.sort_by(|left, right| left.path.cmp(&right.path));
        faults
    }
}

/// What came of a save.
#[derive(Clone, Debug)]
pub struct Saved {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// What the vault lacked.
    pub written: Written,
    /// What is not in the snapshot although it was asked for; the snapshot is incomplete if there is any.
    pub faults: Vec<Fault>,
    /// What is left to the owner of what the source stands on.
    pub left_out: LeftOut,
}

/// Snapshots that were made before a save.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Those of the same host and paths, oldest first.
    pub(crate) alike: Vec<Snapshot>,
    /// Those that any in the vault was made of, whether they are still there or not.
    pub(crate) originals: HashSet<Id>,
}

/// A vault that a save has opened for writing.
pub struct Session<'a> {
    pub(crate) vault: &'a Arc<Vault>,
    pub(crate) index: &'a Arc<Index>,
    pub(crate) lock: &'a Lock,
    pub(crate) progress: &'a Progress,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl<'a> Session<'a> {
    /// Puts together what a save needs. The index was loaded after the lock was taken.
    #[must_use]
    pub const fn new(
        (vault, index): (&'a Arc<Vault>, &'a Arc<Index>),
        lock: &'a Lock,
        progress: &'a Progress,
    ) -> Self {
        Self { vault, index, lock, progress }
    }

    /// Lists the snapshots that a save of these paths may be compared with.
    pub(crate) fn earlier(&self, options: &SaveOptions, paths: &[String]) -> Result<Earlier> {
        if let Parent::Nothing = options.parent {
            return Ok(Earlier::default());
        }
        let mut alike = self.vault.usable_of(&self.lock.list_snapshots()?)?;
        let originals = alike.iter().filter_map(|one| one.original).collect();
        alike.retain(|one| one.hostname == options.who.host && one.paths == paths);
        Ok(Earlier { alike, originals })
    }

    /// Reads a folder of the parent; nothing if it cannot be read, which costs only time.
    pub(crate) fn old_tree(&self, id: Option<&Id>) -> Option<Tree> {
        let id = id?;
        match self.vault.read_tree(self.index, id) {
            Ok(tree) => Some(tree),
            Err(error) => {
                warn!(%error, "a folder of the parent cannot be read; its files are read anew");
                None
            }
        }
    }

    /// Writes what is left, and then the snapshot; returns the index files that were added, too.
    pub(crate) fn finish(
        &self,
        writer: Writer,
        tree: Id,
        (options, paths, parent): (&SaveOptions, Vec<String>, Option<Snapshot>),
    ) -> Result<(Snapshot, Written, Vec<Id>)> {
        self.progress.go_on()?;
        let SaveOptions { who, now, excludes, tags, .. } = options;
        let mut snapshot = Snapshot {
            time: now.to_string(),
            parent: parent.map(|parent| parent.id),
            original: None,
            tree,
            paths,
            hostname: who.host.clone(),
            username: who.user.clone(),
            uid: who.uid,
            gid: who.gid,
            excludes: excludes.patterns().to_vec(),
            tags: (!tags.is_empty()).then(|| tags.clone()),
            program_version: concat!("tympan ", env!("CARGO_PKG_VERSION")).to_owned(),
            id: Id::default(),
        };
        let sealed = self.vault.seal_json(FileKind::Snapshot, &snapshot)?;
        let also = Some((FileKind::Snapshot, sealed));
        let (written, listed, staged) = writer.finish_with(self.lock, also)?;
        if let Some(staged) = staged {
            self.vault.reveal(&staged)?;
            snapshot.id = staged.id();
        }
        Ok((snapshot, written, listed.files))
    }
}

impl Vault {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`Error::Blob`] if it is not there or damaged; [`Error::Backend`] if the place cannot be read now.
    pub fn read_tree(&self, index: &Index, id: &Id) -> Result<Tree> {
        let bytes = self.read_blob(index, BlobKind::Tree, id)?;
        Tree::parse(&bytes).map_err(|fault| Error::Blob { what: "folder", id: *id, fault })
    }
}
