//! What notices new originals and has them processed, in the background of an author.
//!
//! In: the newest state of content. Out: finished assets.
//!
//! The work that waits is not stored anywhere: an asset whose original is not the one that its renditions are of is due,
//! and content itself says so. A crash loses nothing; the first pass after a start looks at every asset, later ones at
//! what two states differ in.
//!
//! Invariants
//! * An asset is processed by one thread at a time.
//! * Nothing is read while content does not change.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::{NodePath, Repository, Snapshot};

use super::ingest::{ASSET, Assets, Processed, needs_processing};

/// How often the newest root is looked at; where a look costs a round trip, less often.
const POLL: Duration = Duration::from_millis(100);
const COSTLY_POLL: Duration = Duration::from_secs(1);
/// How long an asset waits after the machine failed it: doubled each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// Finds the assets that are due.
#[derive(Debug)]
pub struct Follower {
    repository: Repository,
    seen: Option<Snapshot>,
}

impl Follower {
    /// Makes a follower that has seen nothing yet.
    #[must_use]
    pub fn new(repository: Repository) -> Self {
        Self { repository, seen: None }
    }

    /// Returns the assets that are due and were not before the last call; the first time, all that are due.
    ///
    /// # Errors
    /// If the store fails.
    pub fn due(&mut self) -> tympan_content::Result<Vec<NodePath>> {
        let newest = self.repository.snapshot()?;
        let mut due = Vec::new();
        match &self.seen {
            Some(seen) if seen.root_id() == newest.root_id() => return Ok(due),
            Some(seen) => {
                for path in seen.changed_paths(&newest)? {
                    if let Some(node) = newest.node(&path)?
                        && needs_processing(&node)?
                    {
                        due.push(path);
                    }
                }
            }
            None => {
                // A record that is damaged is somebody else's to report.
                for node in newest.document_nodes().filter_map(Result::ok) {
                    if node.primary_type() == ASSET && needs_processing(&node)? {
                        due.push(node.path().clone());
                    }
                }
            }
        }
        self.seen = Some(newest);
        Ok(due)
    }
}

/// Counts of a service since it began.
#[derive(Debug, Default)]
pub struct AssetCounters {
    /// Assets that have their renditions.
    pub processed: AtomicU64,
    /// Assets that cannot be drawn; each says why. A rise means files of a kind that nothing here reads.
    pub failed: AtomicU64,
    /// Attempts that the machine failed: no process, no memory, a store that does not answer.
    pub retried: AtomicU64,
}

/// Processes assets in the background until it is dropped.
#[derive(Debug)]
pub struct AssetService {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    assets: Assets,
    counters: AssetCounters,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    /// How many times the follower has begun to look, and how many times it has finished.
    looks_begun: u64,
    looks_done: u64,
    waiting: VecDeque<NodePath>,
    active: BTreeSet<NodePath>,
    /// Assets that changed again while they were processed.
    again: BTreeSet<NodePath>,
    /// Assets that wait for another attempt: when, and how often they failed.
    later: BTreeMap<NodePath, (Instant, u32)>,
}

impl AssetService {
    /// Begins with this many assets at once.
    ///
    /// # Errors
    /// If the system gives no threads.
    pub fn start(assets: Assets, parallel: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            assets,
            counters: AssetCounters::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared))
        };
        let mut threads = vec![spawn("asset-follower", follow)?];
        for _ in 0..parallel.max(1) {
            threads.push(spawn("asset-worker", work)?);
        }
        Ok(Self { shared, threads })
    }

    /// Returns what it has done so far.
    #[must_use]
    pub fn counters(&self) -> &AssetCounters {
        &self.shared.counters
    }

    /// Returns how many assets wait or are being processed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let state = self.shared.state.lock();
        state.waiting.len() + state.active.len() + state.later.len()
    }

    /// Waits until everything that content holds now is processed.
    pub fn wait_until_idle(&self) {
        let mut state = self.shared.state.lock();
        // A look that has begun may not have seen all of it.
        let wanted = state.looks_begun + 1;
        self.shared.changed.notify_all();
        while !state.is_stopped
            && (state.looks_done < wanted || !state.waiting.is_empty() || !state.active.is_empty())
        {
            self.shared.changed.wait(&mut state);
        }
    }
}

impl Drop for AssetService {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            thread.join().ok();
        }
    }
}

/// Looks for what is due, again and again.
fn follow(shared: &Shared) {
    let repository = shared.assets.repository();
    let costly = repository.chunks().has_costly_round_trips();
    let poll = if costly { COSTLY_POLL } else { POLL };
    let mut follower = Follower::new(repository.clone());
    loop {
        let look = {
            let mut state = shared.state.lock();
            state.looks_begun += 1;
            state.looks_begun
        };
        let due = follower.due();
        let mut state = shared.state.lock();
        match due {
            Ok(due) => {
                for path in due {
                    state.add(path);
                }
                state.looks_done = look;
            }
            Err(error) => {
                tracing::warn!(reason = %error, "assets cannot be looked for; trying again");
                // What was seen last may have been collected.
                follower = Follower::new(repository.clone());
            }
        }
        state.call_back(Instant::now());
        shared.changed.notify_all();
        if state.is_stopped {
            return;
        }
        shared.changed.wait_for(&mut state, poll);
        if state.is_stopped {
            return;
        }
    }
}

impl State {
    fn add(&mut self, path: NodePath) {
        self.later.remove(&path);
        if self.active.contains(&path) {
            self.again.insert(path);
        } else if !self.waiting.contains(&path) {
            self.waiting.push_back(path);
        }
    }

    /// Lets those wait in line again whose time has come.
    fn call_back(&mut self, now: Instant) {
        let ready: Vec<NodePath> = self
            .later
            .iter()
            .filter(|(path, (at, _))| *at <= now && !self.active.contains(*path))
            .map(|(path, _)| path.clone())
            .collect();
        for path in ready {
            // Its count of failures stays until it succeeds.
            if let Some((at, _)) = self.later.get_mut(&path) {
                *at = now + LONGEST_WAIT;
            }
            self.waiting.push_back(path);
        }
    }
}

/// Processes one asset after the other.
fn work(shared: &Shared) {
    loop {
        let mut state = shared.state.lock();
        let path = loop {
            if state.is_stopped {
                return;
            }
            match state.waiting.pop_front() {
                Some(path) => break path,
                None => shared.changed.wait(&mut state),
            }
        };
        state.active.insert(path.clone());
        drop(state);
        let begun = Instant::now();
        let result = shared.assets.process(&path, SystemTime::now());
        let mut state = shared.state.lock();
        state.active.remove(&path);
        let is_again = state.again.remove(&path);
        match result {
            Ok(processed) => {
                state.later.remove(&path);
                count(shared, &path, &processed, begun);
            }
            Err(error) => {
                shared.counters.retried.fetch_add(1, Ordering::Relaxed);
                let failures = state.later.get(&path).map_or(0, |(_, failures)| *failures);
                let wait = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LONGEST_WAIT);
                tracing::warn!(path = %path, reason = %chain(&error), "an asset waits for another attempt");
                state.later.insert(path.clone(), (Instant::now() + wait, failures + 1));
            }
        }
        if is_again {
            state.add(path);
        }
        shared.changed.notify_all();
    }
}

fn count(shared: &Shared, path: &NodePath, processed: &Processed, begun: Instant) {
    let elapsed_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    match processed {
        Processed::Done { renditions, .. } => {
            shared.counters.processed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(path = %path, renditions, elapsed_ms, "asset processed");
        }
        Processed::Failed(reason) => {
            shared.counters.failed.fetch_add(1, Ordering::Relaxed);
            tracing::info!(path = %path, reason, elapsed_ms, "asset cannot be drawn");
        }
        Processed::Gone => {}
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
