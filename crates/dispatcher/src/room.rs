//! Keeping document roots within their bounds, and the disk from filling up.
//!
//! In: what stores counted, `/x-maxSize`, `/x-maxFiles` and `/x-minFree` of the farms, and how full the file system is.
//! Out: the files that were used longest ago are evicted, down to [`LOW_WATER`] of the bound that was passed.
//!
//! Invariants
//! * A root is counted whole only when a bound may be passed, after a start, and now and then after folders were
//!   flushed, so that counting costs a fixed share of what stores cost.
//! * What was used within [`SPARED`] goes only for a bound that somebody wrote down, or for a disk that is full.
//!
//! On failure: what cannot be evicted is told once and tried again later; pages are served in any case.
//!
//! Not here: choosing and removing files (`cache::survey`).

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::cache::{Amount, Docroot, Root, Rules, Space};
use crate::cacheable::is_reserved_name;
use crate::clock::Clock;
use crate::config::{DiskBounds, Farm, StatFiles};
use crate::dispatcher::{FarmState, Inner};
use crate::flight::Flights;
use crate::log::{Level, Log};
use crate::memory::Memory;
use crate::suffix_folder::path_of;
use crate::variant::base_name;

/// How often the file system is looked at without being asked.
const EVERY: Duration = Duration::from_secs(15);
/// How often a root is counted anew of which folders were removed.
const RECOUNT: Duration = Duration::from_secs(3600);
/// Eviction goes on down to so many percent of the bound.
const LOW_WATER: u64 = 90;
/// What was used so lately is not evicted for the sake of free room alone.
const SPARED: Duration = Duration::from_secs(600);
/// The part of a root that goes when a disk is full although it does not look so, as by a quota: one in so many.
const FULL_SHARE: u64 = 20;

/// Why files were evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    MaxSize,
    MaxFiles,
    MinFree,
    FullDisk,
}

impl Why {
    fn text(self) -> &'static str {
        match self {
            Self::MaxSize => "more than /x-maxSize",
            Self::MaxFiles => "more than /x-maxFiles",
            Self::MinFree => "less than /x-minFree",
            Self::FullDisk => "the disk is full",
        }
    }
}

/// What is known when a goal is set.
#[derive(Debug, Clone, Copy)]
struct State {
    taken: Amount,
    space: Space,
    is_full: bool,
}

/// What has to go, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Goal {
    amount: Amount,
    spared: Duration,
    why: Why,
}

/// Decides what has to go.
fn goal(bounds: &DiskBounds, state: State) -> Option<Goal> {
    // Without a word of their owner, files are nobody's to remove: some may have been put there by hand.
    if *bounds == DiskBounds::default() {
        return None;
    }
    let State { taken, space, is_full } = state;
    let over = |taken: u64, bound: Option<u64>| {
        bound.filter(|bound| taken > *bound).map_or(0, |bound| taken - low(bound))
    };
    let bytes = over(taken.bytes, bounds.max_bytes);
    let files = over(taken.files, bounds.max_files);
    let floor = bounds.min_free.unwrap_or_else(|| DiskBounds::usual_floor(space.all));
    let lacking =
        if space.free < floor { (floor + floor / 10).saturating_sub(space.free) } else { 0 };
    let bounded = Amount { files, bytes };
    if is_full {
        let share = |count: u64| count.div_ceil(FULL_SHARE);
        let files = if space.is_out_of_files { share(taken.files) } else { 0 };
        let some = Amount { files, bytes: share(taken.bytes).max(lacking) };
        return Some(Goal { amount: bounded.or(some), spared: Duration::ZERO, why: Why::FullDisk });
    }
    if bytes > 0 || files > 0 {
        let why = if bytes > 0 { Why::MaxSize } else { Why::MaxFiles };
        return Some(Goal { amount: bounded, spared: Duration::ZERO, why });
    }
    let amount = Amount { files: 0, bytes: lacking };
    (lacking > 0).then_some(Goal { amount, spared: SPARED, why: Why::MinFree })
}

fn low(bound: u64) -> u64 {
    u64::try_from(u128::from(bound) * u128::from(LOW_WATER) / 100).unwrap_or(bound)
}

/// Looks after one document root.
#[derive(Debug)]
struct Keeper {
    root: Arc<Root>,
    /// The farms that keep their files there.
    farms: Vec<Arc<Farm>>,
    /// All farms: also one that keeps its files elsewhere may name something there.
    neighbors: Vec<Arc<Farm>>,
    bounds: DiskBounds,
    flights: Arc<Flights>,
    memory: Arc<Memory>,
    clock: Clock,
    log: Log,
    is_over: AtomicBool,
}

/// Ends a keeper's work when its task ends.
struct Watched(Arc<Keeper>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        self.0.root.usage.remove_keeper();
    }
}

/// What a keeper remembers between rounds.
#[derive(Debug, Default)]
struct Memo {
    counted: Option<Instant>,
    /// Whether it was told that a bound cannot be kept.
    is_told: bool,
}

impl Inner {
    /// Starts to look after all document roots.
    pub(crate) fn keep_roots(&self, runtime: &Handle) -> Vec<JoinHandle<()>> {
        let keep = |root: &Arc<Root>| {
            let (root, farms) = (Arc::clone(root), self.farms_of(root));
            let own = farms.iter().filter_map(|farm| farm.cache.as_ref());
            let bounds = own.map(|cache| cache.bounds).reduce(DiskBounds::and).unwrap_or_default();
            let keeper = Keeper {
                root,
                farms,
                neighbors: self.farms.iter().map(|state| Arc::clone(&state.farm)).collect(),
                bounds,
                flights: Arc::clone(&self.flights),
                memory: Arc::clone(&self.memory),
                clock: self.runtime.clock.clone(),
                log: self.runtime.log.clone(),
                is_over: AtomicBool::new(false),
            };
            runtime.spawn(keep(Arc::new(keeper)))
        };
        self.roots().into_iter().map(keep).collect()
    }

    /// Returns the document roots, each once.
    pub(crate) fn roots(&self) -> Vec<&Arc<Root>> {
        let mut roots: Vec<&Arc<Root>> = Vec::new();
        for root in self.farms.iter().filter_map(|farm| farm.docroot.as_ref()) {
            if !roots.iter().any(|known| Arc::ptr_eq(known, root)) {
                roots.push(root);
            }
        }
        roots
    }

    fn farms_of(&self, root: &Arc<Root>) -> Vec<Arc<Farm>> {
        let is_there = |state: &&Arc<FarmState>| {
            state.docroot.as_ref().is_some_and(|own| Arc::ptr_eq(own, root))
        };
        self.farms.iter().filter(is_there).map(|state| Arc::clone(&state.farm)).collect()
    }

    /// Returns what document roots take, in Prometheus' text format.
    pub(crate) fn roots_to_text(&self) -> String {
        let mut text = String::new();
        let roots = self.roots();
        for (name, kind, help, value) in ROOT_METRICS {
            let name = format!("tympan_dispatcher_{name}");
            // Writing to a string cannot fail.
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
            for root in &roots {
                writeln!(text, "{name}{{docroot=\"{}\"}} {}", label(root), value(root)).ok();
            }
        }
        let name = "tympan_dispatcher_flush_order_total";
        let help = "Numbered flushes by how they followed those before; `gap`, `joined` and `back` made all pages stale.";
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter").ok();
        for root in &roots {
            for (order, count) in root.orders.counts() {
                writeln!(text, "{name}{{docroot=\"{}\",order=\"{order}\"}} {count}", label(root))
                    .ok();
            }
        }
        text
    }
}

/// Writes a document root's path as a label has it.
fn label(root: &Root) -> String {
    let path = root.path().display().to_string();
    path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "?")
}

type RootMetric = (&'static str, &'static str, &'static str, fn(&Root) -> u64);

/// What is told of each document root: name, kind, what a rise means.
const ROOT_METRICS: [RootMetric; 5] = [
    ("cache_bytes", "gauge", "About how much the cache files take, in whole blocks.", |root| {
        root.usage.amount().bytes
    }),
    (
        "cache_files",
        "gauge",
        "About how many cache files, side files and folders there are.",
        |root| root.usage.amount().files,
    ),
    (
        "evicted_files_total",
        "counter",
        "Cache files and side files evicted to make room; a steady rise means that the bound is too small.",
        |root| root.usage.evicted_files.load(Ordering::Relaxed),
    ),
    ("evicted_bytes_total", "counter", "What these took.", |root| {
        root.usage.evicted_bytes.load(Ordering::Relaxed)
    }),
    (
        "disk_full_total",
        "counter",
        "Stores that met a full disk; their pages were served and not kept. Give the cache more room.",
        |root| root.usage.full.load(Ordering::Relaxed),
    ),
];

/// What a document root takes, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskStatus {
    /// The document root.
    pub docroot: String,
    /// About how many bytes the cache files take, in whole blocks.
    pub bytes: u64,
    /// About how many cache files, side files and folders there are.
    pub files: u64,
    /// Whether they were counted since the start; before, only what was stored since is in the figures.
    pub is_counted: bool,
    /// Bytes that are free on the file system.
    pub free: u64,
    /// Files that were evicted to make room.
    pub evicted_files: u64,
    /// What these took.
    pub evicted_bytes: u64,
    /// Stores that met a full disk.
    pub disk_full: u64,
    /// Numbered flushes by how they followed those before.
    pub flush_orders: Vec<(&'static str, u64)>,
}

/// Returns what a document root takes.
pub(crate) fn disk_status(root: &Root) -> DiskStatus {
    let (usage, amount) = (&root.usage, root.usage.amount());
    DiskStatus {
        docroot: root.path().display().to_string(),
        bytes: amount.bytes,
        files: amount.files,
        is_counted: usage.is_known(),
        free: root.opened().space().map_or(0, |space| space.free),
        evicted_files: usage.evicted_files.load(Ordering::Relaxed),
        evicted_bytes: usage.evicted_bytes.load(Ordering::Relaxed),
        disk_full: usage.full.load(Ordering::Relaxed),
        flush_orders: root.orders.counts(),
    }
}

async fn keep(keeper: Arc<Keeper>) {
    let watched = Watched(Arc::clone(&keeper));
    let usage = &watched.0.root.usage;
    let or_all = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
    let (files, bytes) = (or_all(keeper.bounds.max_files), or_all(keeper.bounds.max_bytes));
    usage.set_limit(Amount { files, bytes });
    usage.add_keeper();
    let mut memo = Memo::default();
    loop {
        let working = Arc::clone(&keeper);
        let round = tokio::task::spawn_blocking(move || {
            working.round(&mut memo);
            memo
        });
        // After a panic it begins anew.
        memo = round.await.unwrap_or_default();
        tokio::select! {
            () = usage.bell.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

impl Keeper {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst) || self.flights.is_closed()
    }

    /// Looks once, and evicts what has to go.
    fn round(&self, memo: &mut Memo) {
        let usage = &self.root.usage;
        let is_full = usage.take_full();
        if !self.is_over()
            && let Err(error) = self.look(&self.root.last_opened(), is_full, memo)
        {
            tracing::warn!(file = %self.root.path().display(), reason = %error, "cannot look after the document root");
        }
        usage.end_round();
    }

    fn look(&self, docroot: &Docroot, is_full: bool, memo: &mut Memo) -> std::io::Result<()> {
        let usage = &self.root.usage;
        let state = State { taken: usage.amount(), space: docroot.space()?, is_full };
        let is_old = memo.counted.is_none_or(|counted| counted.elapsed() > RECOUNT);
        let is_counted = usage.is_known() && !(usage.has_drifted() && is_old);
        if is_counted && goal(&self.bounds, state).is_none() {
            memo.is_told = false;
            return Ok(());
        }
        let now = self.clock.now();
        let named = self.named(docroot.path());
        let is_own = |path: &str| {
            let file = Path::new(path.trim_start_matches('/'));
            // What one farm names is no other's to remove.
            !named.iter().any(|own| file.starts_with(own))
                && self.farms.iter().any(|farm| may_have_written(farm, path))
        };
        let is_over = || self.is_over();
        let is_patient = !is_full;
        let rules = Rules { is_own: &is_own, is_over: &is_over, now, is_patient };
        let count = usage.begin_count();
        let survey = docroot.survey(&rules);
        if self.is_over() {
            return Ok(());
        }
        usage.finish_count(count, survey.all);
        memo.counted = Some(Instant::now());
        let Some(goal) = goal(&self.bounds, State { taken: survey.all, ..state }) else {
            return Ok(());
        };
        let Some(cut) = survey.cut(goal.amount, goal.spared) else {
            self.tell_in_vain(goal, memo);
            return Ok(());
        };
        let (evicted, failure) = docroot.evict(&rules, cut);
        usage.evicted_files.fetch_add(evicted.files, Ordering::Relaxed);
        usage.evicted_bytes.fetch_add(evicted.bytes, Ordering::Relaxed);
        self.memory.note_change();
        self.root.tags.forget_gone(docroot);
        self.tell(goal, evicted, now);
        if !evicted.covers(goal.amount) {
            self.tell_in_vain(goal, memo);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns the files and folders below the root that the configuration names for something else than cache files.
    ///
    /// They are compared by where they are: the configuration may name root and file in ways that have nothing in common.
    fn named(&self, root: &Path) -> Vec<PathBuf> {
        let root = resolved(root);
        let all = self.neighbors.iter().flat_map(|farm| named_by(farm));
        all.filter_map(|own| resolved(own).strip_prefix(&root).ok().map(Path::to_owned)).collect()
    }

    fn tell(&self, goal: Goal, evicted: Amount, now: SystemTime) {
        let (root, why) = (self.root.path().display(), goal.why.text());
        tracing::info!(file = %root, files = evicted.files, bytes = evicted.bytes, reason = why, at = ?now,
            "cache files evicted");
        self.log.write(&self.clock, Level::Info, || {
            let Amount { files, bytes } = evicted;
            format!("Evicted {files} cache files of {bytes} bytes from {root}: {why}")
        });
    }

    fn tell_in_vain(&self, goal: Goal, memo: &mut Memo) {
        if !std::mem::replace(&mut memo.is_told, true) {
            tracing::warn!(file = %self.root.path().display(), reason = goal.why.text(), bytes = goal.amount.bytes,
                "the cache holds too little that may be evicted; look what else fills the disk");
        }
    }
}

/// Tells whether a farm's cache may have written the file of a URL path.
///
/// People put files of their own beside those of the cache. What the farm would not store is theirs, and so is what httpd
/// hides.
fn may_have_written(farm: &Farm, path: &str) -> bool {
    let Some(cache) = &farm.cache else { return false };
    let path = &*path_of(path);
    let Some((_, name)) = path.rsplit_once('/') else { return false };
    let has_extension = name.rfind('.').is_some_and(|dot| dot > 0);
    if !has_extension || name.starts_with(".ht") || path.split('/').any(is_reserved_name) {
        return false;
    }
    let Some(base) = base_name(name) else { return cache.rules.allows(path) };
    // The rules know a variant by its page.
    let folder = path.strip_suffix(name).unwrap_or_default();
    cache.rules.allows(&format!("{folder}{base}"))
}

/// Returns the files and folders that a farm keeps beside its cache files.
fn named_by(farm: &Farm) -> impl Iterator<Item = &PathBuf> {
    let stat_file = farm.cache.as_ref().and_then(|cache| match &cache.stat_files {
        StatFiles::Single(file) => Some(file),
        StatFiles::Level(_) => None,
    });
    let vanity = farm.vanity_urls.as_ref().and_then(|urls| urls.file.as_ref());
    let sessions = farm.sessions.as_ref().map(|sessions| &sessions.directory);
    stat_file.into_iter().chain(vanity).chain(sessions)
}

/// Returns a path without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let known = path.ancestors().find_map(|folder| {
        let rest = path.strip_prefix(folder).ok()?;
        Some(folder.canonicalize().ok()?.join(rest))
    });
    known.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Amount, Goal, SPARED, Space, State, Why, goal};
    use crate::config::DiskBounds;
    use std::time::Duration;

    fn state(taken: Amount, free: u64) -> State {
        let space = Space { all: 100_000, free, is_out_of_files: false };
        State { taken, space, is_full: false }
    }

    #[test]
    fn a_bound_that_is_passed_is_undercut_by_a_tenth() {
        let bounds =
            DiskBounds { max_bytes: Some(1000), max_files: Some(100), min_free: Some(500) };
        let check = |files, bytes, free, expected: Option<(u64, u64, Why)>| {
            let found = goal(&bounds, state(Amount { files, bytes }, free));
            let expected = expected.map(|(files, bytes, why)| {
                let spared = if why == Why::MinFree { SPARED } else { Duration::ZERO };
                Goal { amount: Amount { files, bytes }, spared, why }
            });
            assert_eq!(found, expected, "{files} {bytes} {free}");
        };
        check(100, 1000, 500, None);
        check(100, 1001, 500, Some((0, 101, Why::MaxSize)));
        check(101, 1000, 500, Some((11, 0, Why::MaxFiles)));
        check(101, 1001, 0, Some((11, 101, Why::MaxSize)));
        check(100, 1000, 499, Some((0, 51, Why::MinFree)));
    }

    #[test]
    fn without_settings_nothing_is_removed_and_with_some_a_fiftieth_stays_free() {
        let huge = Amount { files: 1 << 40, bytes: 1 << 50 };
        let full = State { is_full: true, ..state(huge, 0) };
        assert_eq!(goal(&DiskBounds::default(), full), None);
        let bounds = DiskBounds { max_files: Some(u64::MAX), ..DiskBounds::default() };
        assert_eq!(goal(&bounds, state(huge, 2000)), None);
        assert_eq!(goal(&bounds, state(huge, 1999)).map(|goal| goal.amount.bytes), Some(201));
        let none = DiskBounds { min_free: Some(0), ..bounds };
        assert_eq!(goal(&none, state(huge, 0)), None);
    }

    #[test]
    fn a_full_disk_gets_some_room_whatever_the_file_system_says() {
        let bounds = DiskBounds { min_free: Some(0), ..DiskBounds::default() };
        let full = State { is_full: true, ..state(Amount { files: 200, bytes: 4000 }, 90_000) };
        let amount = |state| goal(&bounds, state).map(|goal| goal.amount);
        assert_eq!(amount(full), Some(Amount { files: 0, bytes: 200 }));
        let space = Space { is_out_of_files: true, ..full.space };
        assert_eq!(amount(State { space, ..full }), Some(Amount { files: 10, bytes: 200 }));
    }
}
