//! One pass over a place: what is new, changed, moved or gone there becomes so here.
//!
//! In: a [`Mount`], the ledger of what earlier passes did. Out: commits, and a [`Report`].
//!
//! Invariants
//! * The bytes of those files only are read whose mark is not the one in the ledger, and of those no more than were
//!   listed.
//! * Only assets that this mount made are changed, moved or removed, and of those none whose original a person
//!   replaced.
//! * A listing that breaks off removes nothing; nor does one that lacks all files, or of more than ten more than half,
//!   until a person says that this is right.
//! * Content first, ledger second: a crash between the two costs a look at the assets of one batch.
//! * Memory grows with the number of files by a few bytes each, and with the changes up to [`MAX_WORK`].

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_content::{JCR_CONTENT, NodePath, Repository, Revising, Snapshot};

use super::fetch::{Fetched, Taken, fetch_one, store_short};
use super::ledger::{Known, LastPass, Ledger, Row, key, short};
use super::report::Report;
use super::source::{Entry, Found, Source, SourceError};
use super::target::{FILE, MARK, MOUNT, Put, Target, Verdict};
use crate::Result;
use crate::error::chain;

/// In whose name assets come and go.
pub(crate) const USER: &str = "asset-synchronization-service";
/// Files that are committed together, at most, and their bytes.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 256 << 20;
/// Files that are read at once.
const PARALLEL: usize = 4;
/// The most changes of one pass; the next begins at once.
pub const MAX_WORK: usize = 50_000;
/// Files that are gone are believed without asking up to this many, as long as others are left.
const FEW: usize = 10;
/// Files that cannot be read one after the other until the place counts as gone.
const MAX_FAILURES: usize = 8;
const ATTEMPTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// What becomes of files that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The folder shows what the place holds, now and later.
    Follow,
    /// Files become assets like uploaded ones, once.
    Import,
}

/// A place with files, and the folder that gets them.
#[derive(Debug, Clone)]
pub struct Mount {
    /// Its name, by which its assets are known.
    pub name: String,
    /// The folder.
    pub target: NodePath,
    /// The place.
    pub source: Arc<dyn Source>,
    /// What becomes of them.
    pub purpose: Purpose,
    /// How long ago a file must have been written to be taken.
    pub settle: Duration,
}

/// What a pass is told.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// The time.
    pub now: SystemTime,
    /// Whether files that are gone are believed to be, however many they are.
    pub accepts_removals: bool,
    /// Whether nothing is written.
    pub is_dry: bool,
}

/// Why a pass ended early. What it committed until then stays, and the next pass goes on there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The place cannot be read.
    #[error("the mount `{mount}` is not synchronized")]
    Source {
        /// The mount.
        mount: String,
        /// The cause.
        source: SourceError,
    },
    /// Content or the ledger cannot be read or written.
    #[error("the mount `{mount}` is not synchronized")]
    Store {
        /// The mount.
        mount: String,
        /// The cause.
        source: Box<crate::Error>,
    },
}

impl PassError {
    /// Tells whether the next pass may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Source { source, .. } => source.is_transient(),
            Self::Store { source, .. } => source.is_transient(),
        }
    }
}

/// What tells how far a pass has come, of how many; it says whether to go on.
pub type Going<'a> = dyn FnMut(u64, u64) -> bool + 'a;

/// Makes a pass.
///
/// # Errors
/// [`PassError`]; the ledger notes why.
pub fn synchronize(
    repository: &Repository,
    ledger: &Ledger,
    mount: &Mount,
    order: Order,
    going: &mut Going<'_>,
) -> Result<Report, PassError> {
    let store = |source| PassError::Store { mount: mount.name.clone(), source: Box::new(source) };
    let begun = repository.snapshot().map_err(|error| store(error.into()))?;
    let mut known = ledger.known(&mount.name).map_err(store)?;
    let mut pass = Pass { repository, ledger, mount, order, going, report: Report::default() };
    let ran = pass.run(&begun, &mut known);
    if !order.is_dry {
        let failure = ran.as_ref().err().map(|error| chain(error));
        // Where what changed here may not be noted in the ledger, the next pass looks at every asset.
        let root = match &ran {
            Err(PassError::Store { .. }) => String::new(),
            _ => pass.end(&begun, &mut known).unwrap_or_default(),
        };
        let last = LastPass { root, ended: order.now, report: pass.report.clone(), failure };
        ledger.end(&mount.name, &last).map_err(store)?;
    }
    ran.map(|()| pass.report)
}

struct Pass<'a, 'b> {
    repository: &'a Repository,
    ledger: &'a Ledger,
    mount: &'a Mount,
    order: Order,
    going: &'a mut Going<'b>,
    report: Report,
}

/// What a listing left to do.
#[derive(Default)]
struct Work {
    entries: Vec<Entry>,
    listed: u64,
}

impl Pass<'_, '_> {
    fn run(&mut self, begun: &Snapshot, known: &mut HashMap<u128, Known>) -> Result<(), PassError> {
        let mount = self.mount.name.clone();
        let store = |source| PassError::Store { mount: mount.clone(), source: Box::new(source) };
        if !self.order.is_dry {
            self.forget_since_last(begun, known).map_err(store)?;
        }
        let before = known.len();
        let mut work = self.list(known)?;
        let mut gone = known.values().filter(|known| !known.is_seen).count();
        let follows = self.mount.purpose == Purpose::Follow;
        // What is gone may come under another name in the part of the listing that had no room.
        let is_whole = follows && self.report.waiting == 0;
        if self.order.is_dry {
            self.report.added = work.entries.len() as u64;
            return Ok(());
        }
        if is_whole && gone > 0 {
            gone -= self.move_renamed(known, &mut work).map_err(store)?;
        }
        if !self.write_all(&work.entries)? {
            return Ok(());
        }
        if is_whole && gone > 0 {
            let is_believed = self.order.accepts_removals
                || (work.listed > 0 && (gone <= FEW || gone * 2 <= before));
            if is_believed {
                self.remove_gone(known).map_err(store)?;
            } else {
                self.report.held_back = gone as u64;
            }
        }
        Ok(())
    }

    /// Forgets the files whose assets people removed, moved or changed since the last pass, so that they are looked at.
    fn forget_since_last(&self, begun: &Snapshot, known: &mut HashMap<u128, Known>) -> Result<()> {
        let Some(last) = self.ledger.last_blocking(&self.mount.name)? else { return Ok(()) };
        let before = last.root.parse().ok().and_then(|root| self.repository.snapshot_at(root).ok());
        self.forget_changed(before.as_ref(), begun, known)
    }

    /// Does the same for what they changed while the pass ran. Returns the root from which the next one goes on.
    fn end(&self, begun: &Snapshot, known: &mut HashMap<u128, Known>) -> Result<String> {
        let ended = self.repository.snapshot()?;
        self.forget_changed(Some(begun), &ended, known)?;
        Ok(ended.root_id().to_string())
    }

    /// Forgets the files whose assets are not as they were noted, among those that differ between two states; among all if
    /// the earlier one is collected by now.
    fn forget_changed(
        &self,
        before: Option<&Snapshot>,
        after: &Snapshot,
        known: &mut HashMap<u128, Known>,
    ) -> Result<()> {
        let name = &*self.mount.name;
        let changed = before.and_then(|before| before.changed_paths(after).ok());
        let mut stale: Vec<String> = Vec::new();
        match changed {
            Some(changed) => {
                for path in changed.iter().filter(|path| path.is_within(&self.mount.target)) {
                    // What the pass itself committed is among them, and most of it.
                    if self.is_known(after, path, known)? {
                        continue;
                    }
                    if let Some((file, mark)) = self.ledger.of_asset(name, path.as_str())?
                        && !self.target().is_as_noted(after, path, &mark)?
                    {
                        stale.push(file);
                    }
                }
            }
            None => self.ledger.each(name, |row| {
                let path = NodePath::new(&row.asset)?;
                if !self.target().is_as_noted(after, &path, &row.mark)? {
                    stale.push(row.path);
                }
                Ok(())
            })?,
        }
        for file in &stale {
            known.remove(&key(file));
        }
        let stale: Vec<&str> = stale.iter().map(String::as_str).collect();
        self.ledger.forget(name, &stale)
    }

    /// Tells whether an asset says of itself what the ledger knows.
    fn is_known(
        &self,
        snapshot: &Snapshot,
        path: &NodePath,
        known: &HashMap<u128, Known>,
    ) -> Result<bool> {
        let Some(node) = snapshot.node(path)? else { return Ok(false) };
        let Some(content) = node.child(JCR_CONTENT)? else { return Ok(false) };
        let (Some(file), Some(mark)) = (content.text(FILE), content.text(MARK)) else {
            return Ok(false);
        };
        let is_here = content.text(MOUNT).as_deref() == Some(&*self.mount.name)
            && self.target().path_of(&file).is_ok_and(|expected| expected == *path);
        Ok(is_here && known.get(&key(&file)).is_some_and(|known| known.mark == short(&mark)))
    }

    fn list(&mut self, known: &mut HashMap<u128, Known>) -> Result<Work, PassError> {
        let mut work = Work::default();
        let (report, going, order) = (&mut self.report, &mut self.going, self.order);
        let settle = self.mount.settle;
        let mut look = |found: Found| {
            let entry = match found {
                Found::LeftOut(path, reason) => {
                    report.skip(&path, reason);
                    return Ok(());
                }
                Found::File(entry) => entry,
            };
            work.listed += 1;
            if work.listed.is_multiple_of(1000) && !going(0, 0) {
                return Err(SourceError::Stopped);
            }
            let (at, mark) = (key(&entry.path), short(&entry.mark));
            let present = known.get_mut(&at);
            if let Some(present) = present {
                present.is_seen = true;
                if present.mark == mark {
                    report.unchanged += 1;
                    return Ok(());
                }
            }
            let age = entry.modified.and_then(|modified| order.now.duration_since(modified).ok());
            if age.is_some_and(|age| age < settle) {
                report.settling += 1;
            } else if work.entries.len() >= MAX_WORK {
                report.waiting += 1;
            } else {
                // A place that tells a file twice has it read once.
                known.insert(at, Known { mark, is_seen: true });
                work.entries.push(entry);
            }
            Ok(())
        };
        match self.mount.source.list(&mut look) {
            Ok(()) => Ok(work),
            Err(source) => Err(PassError::Source { mount: self.mount.name.clone(), source }),
        }
    }

    /// Moves the assets whose file has another name now, and takes them out of the work. Returns how many.
    fn move_renamed(&mut self, known: &HashMap<u128, Known>, work: &mut Work) -> Result<usize> {
        let mut news: HashMap<&str, usize> = HashMap::new();
        for (at, entry) in work.entries.iter().enumerate() {
            if let Some(identity) = &entry.identity {
                news.insert(identity, at);
            }
        }
        let mut pairs: Vec<(Row, usize)> = Vec::new();
        let mut taken = HashSet::new();
        self.ledger.each(&self.mount.name, |row| {
            let is_gone = known.get(&key(&row.path)).is_some_and(|known| !known.is_seen);
            let new =
                row.identity.as_deref().filter(|_| is_gone).and_then(|identity| news.get(identity));
            let is_lasting = self.mount.source.has_lasting_identities();
            let is_it = |entry: &Entry| is_lasting || entry.mark == row.mark;
            if let Some(at) = new
                && work.entries.get(*at).is_some_and(is_it)
                && taken.insert(*at)
            {
                pairs.push((row, *at));
            }
            Ok(())
        })?;
        let (mut moved, mut count) = (HashSet::new(), 0);
        for batch in pairs.chunks(BATCH) {
            let revising = self.revising("move assets whose files moved");
            let done = self.repository.retry(ATTEMPTS, revising, |session| {
                let mut done = Vec::new();
                for (row, at) in batch {
                    let Some(entry) = work.entries.get(*at) else { continue };
                    if self.target().move_one(session, row, entry)? {
                        done.push(*at);
                    }
                }
                Ok(done)
            })?;
            // The others have new bytes, too, which are still to be read.
            let is_read = |(row, at): &&(Row, usize)| {
                done.contains(at)
                    && work.entries.get(*at).is_some_and(|entry| entry.mark == row.mark)
            };
            let read: Vec<usize> = batch.iter().filter(is_read).map(|(_, at)| *at).collect();
            let of = |at: &usize| work.entries.get(*at);
            let rows: Vec<(&Entry, String)> = read
                .iter()
                .filter_map(|at| Some((of(at)?, self.target().asset_of(of(at)?).ok()?.to_string())))
                .collect();
            self.ledger.note(&self.mount.name, &rows)?;
            let is_done = |(_, at): &&(Row, usize)| done.contains(at);
            let old: Vec<&str> = batch.iter().filter(is_done).map(|(row, _)| &*row.path).collect();
            self.ledger.forget(&self.mount.name, &old)?;
            count += done.len();
            moved.extend(read);
        }
        self.report.moved += count as u64;
        let mut at = 0;
        work.entries.retain(|_| {
            at += 1;
            !moved.contains(&(at - 1))
        });
        Ok(count)
    }

    /// Reads and commits what is new and changed; false if it was told to stop.
    fn write_all(&mut self, entries: &[Entry]) -> Result<bool, PassError> {
        let (total, mut done, mut failures) = (entries.len() as u64, 0_u64, 0);
        let mut rest = entries;
        while !rest.is_empty() {
            if !(self.going)(done, total) {
                return Ok(false);
            }
            let mut bytes = 0_u64;
            let count = rest.iter().take(BATCH).take_while(|entry| {
                let is_within = bytes == 0 || bytes < BATCH_BYTES;
                bytes = bytes.saturating_add(entry.bytes.unwrap_or(1 << 20));
                is_within
            });
            let (batch, left) = rest.split_at(count.count().max(1).min(rest.len()));
            rest = left;
            let failed = self.write(batch).map_err(|source| PassError::Store {
                mount: self.mount.name.clone(),
                source: Box::new(source),
            })?;
            done += batch.len() as u64;
            failures = if failed.0 == batch.len() { failures + failed.0 } else { 0 };
            if failures >= MAX_FAILURES
                && let Some(source) = failed.1
            {
                return Err(PassError::Source { mount: self.mount.name.clone(), source });
            }
        }
        (self.going)(done, total);
        Ok(true)
    }

    /// Reads and commits a batch. Returns how many files the place did not give, and the last reason.
    fn write(&mut self, batch: &[Entry]) -> Result<(usize, Option<SourceError>)> {
        // The blobs are kept until the commit refers to them.
        let _hold = self.repository.hold()?;
        let fetched = self.fetch(batch)?;
        let revising = self.revising("synchronize assets");
        let outcomes = self.repository.retry(ATTEMPTS, revising, |session| {
            let put =
                |(entry, fetched): (&Entry, &Fetched)| self.target().put(session, entry, fetched);
            batch.iter().zip(&fetched).map(put).collect::<tympan_content::Result<Vec<_>>>()
        })?;
        let mut rows = Vec::new();
        for (entry, outcome) in batch.iter().zip(&outcomes) {
            match outcome {
                Put::Added => self.report.added += 1,
                Put::Changed => self.report.changed += 1,
                Put::Same => self.report.unchanged += 1,
                // What the ledger said of it stays: the next pass looks at it again.
                Put::Skipped(reason) => {
                    self.report.skip(&entry.path, reason);
                    continue;
                }
            }
            rows.push((entry, self.target().asset_of(entry)?.to_string()));
        }
        self.ledger.note(&self.mount.name, &rows)?;
        let mut failed = (0, None);
        for one in fetched {
            match one {
                Fetched::Blob(blob) => self.report.bytes += blob.length(),
                Fetched::Failed(_, error) => {
                    failed.0 += 1;
                    failed.1 = error.or(failed.1);
                }
                Fetched::Present => {}
            }
        }
        Ok(failed)
    }

    /// Reads the files of a batch, some at once.
    fn fetch(&self, batch: &[Entry]) -> Result<Vec<Fetched>> {
        let snapshot = self.repository.snapshot()?;
        let mut taken: Vec<Mutex<Option<Taken>>> = Vec::new();
        for entry in batch {
            // What will not be taken is not read.
            let one = match self.target().verdict(&snapshot, entry)? {
                Verdict::Present => Some(Fetched::Present),
                Verdict::Blocked(reason) => Some(Fetched::Failed(reason, None)),
                Verdict::New(_) | Verdict::Same(..) | Verdict::Replace(..) => None,
            };
            taken.push(Mutex::new(one.map(Taken::Done)));
        }
        let (source, blobs) = (&*self.mount.source, self.repository.blobs());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL.min(batch.len()) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let (Some(entry), Some(place)) = (batch.get(at), taken.get(at)) else {
                            return;
                        };
                        let is_open = place.lock().is_none();
                        if is_open {
                            let one = fetch_one(source, blobs, entry);
                            *place.lock() = Some(one);
                        }
                    }
                });
            }
        });
        let missing = || Taken::Done(Fetched::Failed("it was not read".to_owned(), None));
        let taken = taken.into_iter().map(|one| one.into_inner().unwrap_or_else(missing));
        Ok(store_short(blobs, taken.collect()))
    }

    fn remove_gone(&mut self, known: &HashMap<u128, Known>) -> Result<()> {
        let mut gone: Vec<Row> = Vec::new();
        let name = &*self.mount.name;
        let ledger = self.ledger;
        let mut removed = (0, Vec::new());
        let mut flush = |gone: &mut Vec<Row>| -> Result<()> {
            let revising = self.revising("remove assets whose files are gone");
            let batch = self.repository.retry(ATTEMPTS, revising, |session| {
                let mut batch = (0, Vec::new());
                for row in gone.iter() {
                    match self.target().remove_one(session, row)? {
                        true => batch.0 += 1,
                        false => batch.1.push(row.path.clone()),
                    }
                }
                Ok(batch)
            })?;
            removed.0 += batch.0;
            removed.1.extend(batch.1);
            ledger.forget(name, &gone.iter().map(|row| &*row.path).collect::<Vec<_>>())?;
            gone.clear();
            Ok(())
        };
        ledger.each(name, |row| {
            if known.get(&key(&row.path)).is_some_and(|known| !known.is_seen) {
                gone.push(row);
                if gone.len() >= BATCH {
                    flush(&mut gone)?;
                }
            }
            Ok(())
        })?;
        flush(&mut gone)?;
        self.report.removed += removed.0;
        for path in removed.1 {
            self.report.skip(
                &path,
                "its file is gone; the asset stays, as it is not the mount's any more",
            );
        }
        Ok(())
    }

    fn target(&self) -> Target<'_> {
        Target { mount: self.mount, now: self.order.now }
    }

    fn revising(&self, message: &'static str) -> Revising<'static> {
        Revising { user: USER, message, at: self.order.now }
    }
}
