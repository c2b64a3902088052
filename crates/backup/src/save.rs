//! What saving has in common for all sources: what was asked for, how far it is, what came of it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::warn;
use tympan_store::Retention;

use crate::backend::FileKind;
use crate::error::{Error, Result};
use crate::id::Id;
use crate::pace::{Pace, Rate};
use crate::source::below::LeftOut;
use crate::source::exclude::Excludes;
use crate::throttle::{Throttle, Working};
use crate::vault::index::Index;
use crate::vault::lock::Lock;
use crate::vault::node::Tree;
use crate::vault::snapshot::Snapshot;
use crate::vault::tree_text::TreeText;
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
    /// Which earlier revisions of a repository's ref are saved with it; none without.
    pub history: Option<Retention>,
}

/// What [`SaveOptions::at_once`] is unless somebody asks for something else.
const AT_ONCE: usize = 4096;

impl SaveOptions {
    /// Returns options that leave nothing out.
    #[must_use]
    pub fn new(who: Who, now: Timestamp) -> Self {
        let (excludes, parent) = (Excludes::default(), Parent::default());
        Self {
            who,
            now,
            excludes,
            tags: Vec::new(),
            parent,
            tables: None,
            at_once: AT_ONCE,
            history: None,
        }
    }
}

/// How much of a source may be read in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes.
    pub bytes: Option<Rate>,
    /// Reads, each of a file, a piece of a long one, or some chunks together.
    pub calls: Option<Rate>,
}

/// A stop is soon seen: nobody sleeps for longer at once.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// How far a run is; another thread may look, and stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Files and other things that are done.
    pub items: AtomicU64,
    /// Those among them that had to be read.
    pub read_items: AtomicU64,
    /// Bytes that are done, read or not.
    pub bytes: AtomicU64,
    /// Bytes of the source that were read.
    pub read_bytes: AtomicU64,
    /// The calls by which they were.
    pub reads: AtomicU64,
    /// Items that are expected, if that is known.
    pub expected_items: AtomicU64,
    /// Bytes that are expected, if that is known.
    pub expected_bytes: AtomicU64,
    stop: AtomicBool,
    throttle: OnceLock<Arc<Throttle>>,
    /// When the source may be read next: by bytes, and by calls.
    paces: OnceLock<[Option<Mutex<Pace>>; 2]>,
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

    /// Bounds how fast the source is read from now on; once for each run.
    pub fn limit_reading(&self, limits: ReadLimits) {
        let pace = |rate: Option<Rate>| rate.map(|rate| Mutex::new(Pace::new(rate)));
        // As in `brake_with`.
        self.paces.set([pace(limits.bytes), pace(limits.calls)]).ok();
    }

    /// Notes that some bytes of the source were read by one call; waits until they may have been, or the run is to stop.
    pub(crate) fn has_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(until) = self.take_turn(bytes, Instant::now()) {
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !self.stop.load(Ordering::Relaxed)
            {
                std::thread::sleep(left.min(LONGEST_SLEEP));
            }
        }
    }

    /// Takes the time that a call for some bytes uses; returns when the limits allow to go on.
    fn take_turn(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let [by_bytes, by_calls] = self.paces.get()?;
        let take = |pace: &Option<Mutex<Pace>>, amount| {
            let mut pace = pace.as_ref()?.lock();
            pace.take(amount, now);
            pace.free_at
        };
        take(by_bytes, bytes).max(take(by_calls, 1)).filter(|at| *at > now)
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
        found(self.vault.read_tree(self.index, id?))
    }

    /// As [`Session::old_tree`], of a folder in which little is looked at.
    pub(crate) fn old_text(&self, id: Option<&Id>) -> Option<TreeText> {
        found(self.vault.read_tree_text(self.index, id?))
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

/// Returns a folder of the parent; nothing if it cannot be read.
fn found<T>(read: Result<T>) -> Option<T> {
    read.inspect_err(|error| {
        warn!(%error, "a folder of the parent cannot be read; its files are read anew");
    })
    .ok()
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

    /// Reads a folder as its text.
    fn read_tree_text(&self, index: &Index, id: &Id) -> Result<TreeText> {
        let bytes = self.read_blob(index, BlobKind::Tree, id)?;
        TreeText::parse(bytes).map_err(|fault| Error::Blob { what: "folder", id: *id, fault })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_source_is_read_no_faster_than_both_limits_allow() {
        let rate = |number| NonZeroU64::new(number).map(Rate);
        let begin = Instant::now();
        for (bytes, calls, least_ms) in [
            (rate(1_000), None, 10_000),
            (None, rate(5), 800),
            (rate(1_000), rate(5), 10_000),
            (rate(1 << 40), rate(5), 800),
        ] {
            let progress = Progress::default();
            progress.limit_reading(ReadLimits { bytes, calls });
            let mut now = begin;
            for _ in 0..4 {
                now = progress.take_turn(2_500, now).unwrap_or(now);
            }
            let expected = begin + Duration::from_millis(least_ms);
            assert_eq!(now, expected, "{bytes:?} {calls:?}");
        }
        assert_eq!(Progress::default().take_turn(1 << 40, begin), None);
    }

    /// An hour is due; a run that is to stop waits for none of it.
    #[test]
    fn who_is_to_stop_does_not_wait_for_a_limit() {
        let progress = Progress::default();
        progress.limit_reading(ReadLimits { bytes: NonZeroU64::new(1).map(Rate), calls: None });
        progress.stop();
        progress.has_read(3_600);
        assert_eq!(progress.read_bytes.load(Ordering::Relaxed), 3_600);
        assert_eq!(progress.reads.load(Ordering::Relaxed), 1);
    }
}
