//! Enforcement of the limits of document roots, and of free disk space.
//!
//! Input: the usage counted by stores, `/x-maxSize`, `/x-maxFiles` and `/x-minFree` of the farms, and the free space of
//! the file system. Output: the least recently used files are evicted, down to [`LOW_WATER_PERCENT`] of the exceeded
//! limit.
//!
//! Invariants
//! * A root is counted completely only when a limit may be exceeded, after a start, and occasionally after folders were
//!   flushed, so that counting costs a fixed share of the cost of stores.
//! * Files used within [`RECENT_USE_PERIOD`] are evicted only for an explicitly configured limit, or for a full disk.
//!
//! On failure: files that cannot be evicted are reported once and tried again later; pages are served in any case.
//!
//! Not here: choosing and removing files (`cache::survey_and_eviction`).

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::cache::cacheability::is_reserved_name;
use crate::cache::page_variant::variant_base_name;
use crate::cache::response_memory::ResponseMemory;
use crate::cache::suffix_folder::url_path_of_file;
use crate::cache::{DiskAmount, Docroot, DocrootState, DocrootWalkRules, FileSystemSpace};
use crate::clock::DispatcherClock;
use crate::config::{DiskQuota, FarmConfig, StatFileLayout};
use crate::dispatcher_state::DispatcherState;
use crate::farm_state::FarmState;
use crate::observe::log::{DispatcherLog, LogLevel};
use crate::upstream::request_coalescing::FetchCoalescer;

/// The interval at which the file system is checked without a request.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The interval at which a root is recounted after folders were removed.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(3600);
/// The percentage of the limit at which eviction stops.
const LOW_WATER_PERCENT: u64 = 90;
/// The time since the last use within which files are not evicted for free space alone.
const RECENT_USE_PERIOD: Duration = Duration::from_secs(600);
/// The divisor of a root's size that gives the amount to evict when the disk is full although it seems to have free
/// space, for example because of a quota.
const FULL_DISK_EVICTION_DIVISOR: u64 = 20;

/// The reason for an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionReason {
    MaxSize,
    MaxFiles,
    MinFree,
    FullDisk,
}

impl EvictionReason {
    fn description(self) -> &'static str {
        match self {
            Self::MaxSize => "more than /x-maxSize",
            Self::MaxFiles => "more than /x-maxFiles",
            Self::MinFree => "less than /x-minFree",
            Self::FullDisk => "the disk is full",
        }
    }
}

/// The facts from which an eviction goal is computed.
#[derive(Debug, Clone, Copy)]
struct DiskUsageState {
    usage: DiskAmount,
    file_system_space: FileSystemSpace,
    is_full: bool,
}

/// The amount to evict, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EvictionGoal {
    required_amount: DiskAmount,
    spared_period: Duration,
    reason: EvictionReason,
}

/// Returns the amount to evict; `None` if there is nothing to evict.
fn eviction_goal(bounds: &DiskQuota, state: DiskUsageState) -> Option<EvictionGoal> {
    // Without configured limits no files are removed: some may have been put there by the owner.
    if *bounds == DiskQuota::default() {
        return None;
    }
    let DiskUsageState { usage, file_system_space, is_full } = state;
    let over = |usage: u64, bound: Option<u64>| {
        bound.filter(|bound| usage > *bound).map_or(0, |bound| usage - low_water_mark(bound))
    };
    let bytes = over(usage.bytes, bounds.max_bytes);
    let files = over(usage.files, bounds.max_files);
    let floor = bounds
        .min_free
        .unwrap_or_else(|| DiskQuota::default_min_free(file_system_space.total_bytes));
    let lacking = if file_system_space.free_bytes < floor {
        (floor + floor / 10).saturating_sub(file_system_space.free_bytes)
    } else {
        0
    };
    let bounded = DiskAmount { files, bytes };
    if is_full {
        let share = |count: u64| count.div_ceil(FULL_DISK_EVICTION_DIVISOR);
        let files = if file_system_space.is_out_of_inodes { share(usage.files) } else { 0 };
        let free_space_amount = DiskAmount { files, bytes: share(usage.bytes).max(lacking) };
        return Some(EvictionGoal {
            required_amount: bounded.max_of_each(free_space_amount),
            spared_period: Duration::ZERO,
            reason: EvictionReason::FullDisk,
        });
    }
    if bytes > 0 || files > 0 {
        let why = if bytes > 0 { EvictionReason::MaxSize } else { EvictionReason::MaxFiles };
        return Some(EvictionGoal {
            required_amount: bounded,
            spared_period: Duration::ZERO,
            reason: why,
        });
    }
    let amount = DiskAmount { files: 0, bytes: lacking };
    (lacking > 0).then_some(EvictionGoal {
        required_amount: amount,
        spared_period: RECENT_USE_PERIOD,
        reason: EvictionReason::MinFree,
    })
}

fn low_water_mark(bound: u64) -> u64 {
    u64::try_from(u128::from(bound) * u128::from(LOW_WATER_PERCENT) / 100).unwrap_or(bound)
}

/// The enforcer of the limits of one document root.
#[derive(Debug)]
struct DiskQuotaEnforcer {
    root: Arc<DocrootState>,
    /// The farms that store their files there.
    farms: Vec<Arc<FarmConfig>>,
    /// All farms: one that stores its files elsewhere may also name paths in this root.
    all_farms: Vec<Arc<FarmConfig>>,
    quota: DiskQuota,
    fetches: Arc<FetchCoalescer>,
    memory: Arc<ResponseMemory>,
    clock: DispatcherClock,
    log: DispatcherLog,
    is_stopped: AtomicBool,
}

/// Stops an enforcer when its task ends.
struct DiskQuotaEnforcerGuard(Arc<DiskQuotaEnforcer>);

impl Drop for DiskQuotaEnforcerGuard {
    fn drop(&mut self) {
        self.0.is_stopped.store(true, Ordering::SeqCst);
        self.0.root.usage.remove_enforcer();
    }
}

/// The state of an enforcer between rounds.
#[derive(Debug, Default)]
struct DiskQuotaEnforcerMemo {
    last_recount: Option<Instant>,
    /// True if the failure to satisfy a limit was reported.
    is_failure_reported: bool,
}

impl DispatcherState {
    /// Starts the enforcers of all document roots.
    pub(crate) fn start_quota_enforcers(&self, runtime: &Handle) -> Vec<JoinHandle<()>> {
        let keep = |root: &Arc<DocrootState>| {
            let (root, farms) = (Arc::clone(root), self.farms_on_root(root));
            let own = farms.iter().filter_map(|farm| farm.cache.as_ref());
            let bounds =
                own.map(|cache| cache.disk_quota).reduce(DiskQuota::narrowest).unwrap_or_default();
            let enforcer = DiskQuotaEnforcer {
                root,
                farms,
                all_farms: self.parts.farms.iter().map(|state| Arc::clone(&state.config)).collect(),
                quota: bounds,
                fetches: Arc::clone(&self.parts.fetch_coalescer),
                memory: Arc::clone(&self.parts.response_memory),
                clock: self.parts.runtime.clock.clone(),
                log: self.parts.runtime.log.clone(),
                is_stopped: AtomicBool::new(false),
            };
            runtime.spawn(enforce_quota(Arc::new(enforcer)))
        };
        self.document_roots().into_iter().map(keep).collect()
    }

    /// Returns the distinct document roots.
    fn document_roots(&self) -> Vec<&Arc<DocrootState>> {
        let mut roots: Vec<&Arc<DocrootState>> = Vec::new();
        for root in self.parts.farms.iter().filter_map(|farm| farm.docroot.as_ref()) {
            if !roots.iter().any(|listed_root| Arc::ptr_eq(listed_root, root)) {
                roots.push(root);
            }
        }
        roots
    }

    fn farms_on_root(&self, root: &Arc<DocrootState>) -> Vec<Arc<FarmConfig>> {
        let is_there = |state: &&Arc<FarmState>| {
            state.docroot.as_ref().is_some_and(|own| Arc::ptr_eq(own, root))
        };
        self.parts.farms.iter().filter(is_there).map(|state| Arc::clone(&state.config)).collect()
    }

    /// Returns the disk usage of document roots in Prometheus' text format.
    pub(crate) fn document_roots_to_text(&self) -> String {
        let mut text = String::new();
        let roots = self.document_roots();
        for (name, kind, help, value) in ROOT_METRICS {
            let name = format!("tympan_dispatcher_{name}");
            // Writing to a string cannot fail.
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
            for root in &roots {
                writeln!(text, "{name}{{docroot=\"{}\"}} {}", root_label(root), value(root)).ok();
            }
        }
        let name = "tympan_dispatcher_flush_order_total";
        let help = "Numbered flushes by their order relative to the previous ones; `gap`, `first_seen` and `restored` \
            made all pages stale.";
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter").ok();
        for root in &roots {
            for (order, count) in root.flush_orders.counts() {
                writeln!(
                    text,
                    "{name}{{docroot=\"{}\",order=\"{order}\"}} {count}",
                    root_label(root)
                )
                .ok();
            }
        }
        text
    }
}

/// Formats a document root's path as a label value.
fn root_label(root: &DocrootState) -> String {
    let path = root.path().display().to_string();
    path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "?")
}

type RootMetric = (&'static str, &'static str, &'static str, fn(&DocrootState) -> u64);

/// The metrics of each document root: name, kind and help text.
const ROOT_METRICS: [RootMetric; 5] = [
    (
        "cache_bytes",
        "gauge",
        "Approximate disk usage of the cache files, in whole blocks.",
        |root| root.usage.current_amount().bytes,
    ),
    (
        "cache_files",
        "gauge",
        "Approximate number of cache files, side files and folders.",
        |root| root.usage.current_amount().files,
    ),
    (
        "evicted_files_total",
        "counter",
        "Cache files and side files evicted to make room; a steady rise means that the limit is too small.",
        |root| root.usage.evicted_files.load(Ordering::Relaxed),
    ),
    ("evicted_bytes_total", "counter", "Disk usage of the evicted files.", |root| {
        root.usage.evicted_bytes.load(Ordering::Relaxed)
    }),
    (
        "disk_full_total",
        "counter",
        "Stores that failed because the disk was full; their pages were served but not cached. Give the cache \
         more room.",
        |root| root.usage.disk_full_count.load(Ordering::Relaxed),
    ),
];

/// The disk usage of a document root, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskStatus {
    /// The path of the document root.
    pub docroot: String,
    /// The approximate number of bytes of cache files, in whole blocks.
    pub bytes: u64,
    /// The approximate number of cache files, side files and folders.
    pub files: u64,
    /// True if the files were counted since the start; before that, the figures include only what was stored since.
    pub is_counted: bool,
    /// The number of free bytes on the file system.
    pub free: u64,
    /// The number of files evicted.
    pub evicted_files: u64,
    /// The number of bytes evicted.
    pub evicted_bytes: u64,
    /// The number of stores that met a full disk.
    pub disk_full: u64,
    /// The counts of numbered flushes by their order.
    pub flush_orders: Vec<(&'static str, u64)>,
}

/// Returns the disk usage of a document root.
pub(crate) fn disk_status(root: &DocrootState) -> DiskStatus {
    let (usage, amount) = (&root.usage, root.usage.current_amount());
    DiskStatus {
        docroot: root.path().display().to_string(),
        bytes: amount.bytes,
        files: amount.files,
        is_counted: usage.is_counted(),
        free: root.docroot_for_reading().file_system_space().map_or(0, |space| space.free_bytes),
        evicted_files: usage.evicted_files.load(Ordering::Relaxed),
        evicted_bytes: usage.evicted_bytes.load(Ordering::Relaxed),
        disk_full: usage.disk_full_count.load(Ordering::Relaxed),
        flush_orders: root.flush_orders.counts(),
    }
}

async fn enforce_quota(enforcer: Arc<DiskQuotaEnforcer>) {
    let watched = DiskQuotaEnforcerGuard(Arc::clone(&enforcer));
    let usage = &watched.0.root.usage;
    let or_all = |bound: Option<u64>| bound.unwrap_or(u64::MAX);
    let (files, bytes) = (or_all(enforcer.quota.max_files), or_all(enforcer.quota.max_bytes));
    usage.set_limit(DiskAmount { files, bytes });
    usage.add_enforcer();
    let mut memo = DiskQuotaEnforcerMemo::default();
    loop {
        let working = Arc::clone(&enforcer);
        let check = tokio::task::spawn_blocking(move || {
            working.run_round(&mut memo);
            memo
        });
        // After a panic the state starts anew.
        memo = check.await.unwrap_or_default();
        tokio::select! {
            () = usage.eviction_signal.notified() => {}
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
        }
    }
}

impl DiskQuotaEnforcer {
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst) || self.fetches.has_stopped_storing()
    }

    /// Checks once, and evicts what exceeds the limits.
    fn run_round(&self, memo: &mut DiskQuotaEnforcerMemo) {
        let usage = &self.root.usage;
        let is_full = usage.take_disk_full();
        if !self.is_stopped()
            && let Err(error) = self.check_and_evict(&self.root.last_opened(), is_full, memo)
        {
            tracing::warn!(file = %self.root.path().display(), reason = %error, "cannot enforce the disk \
                limits of the document root");
        }
        usage.record_round_end();
    }

    fn check_and_evict(
        &self,
        docroot: &Docroot,
        is_full: bool,
        memo: &mut DiskQuotaEnforcerMemo,
    ) -> std::io::Result<()> {
        let usage = &self.root.usage;
        let state = DiskUsageState {
            usage: usage.current_amount(),
            file_system_space: docroot.file_system_space()?,
            is_full,
        };
        let is_old = memo.last_recount.is_none_or(|counted| counted.elapsed() > RECOUNT_INTERVAL);
        let is_counted = usage.is_counted() && !(usage.has_drifted() && is_old);
        if is_counted && eviction_goal(&self.quota, state).is_none() {
            memo.is_failure_reported = false;
            return Ok(());
        }
        let now = self.clock.now();
        let named = self.protected_paths(docroot.path());
        let is_own = |path: &str| {
            let file = Path::new(path.trim_start_matches('/'));
            // Paths that one farm names must not be removed by another.
            !named.iter().any(|own| file.starts_with(own))
                && self.farms.iter().any(|farm| may_be_cache_file_of(farm, path))
        };
        let is_over = || self.is_stopped();
        let is_patient = !is_full;
        let rules = DocrootWalkRules {
            is_cache_path: &is_own,
            is_cancelled: &is_over,
            now,
            is_throttled: is_patient,
        };
        let count = usage.begin_count();
        let survey = docroot.survey_files(&rules);
        if self.is_stopped() {
            return Ok(());
        }
        usage.finish_count(count, survey.total);
        memo.last_recount = Some(Instant::now());
        let Some(goal) =
            eviction_goal(&self.quota, DiskUsageState { usage: survey.total, ..state })
        else {
            return Ok(());
        };
        let Some(cut) = survey.cutoff_for(goal.required_amount, goal.spared_period) else {
            self.log_insufficient_eviction(goal, memo);
            return Ok(());
        };
        let (evicted, failure) = docroot.evict_beyond(&rules, cut);
        usage.evicted_files.fetch_add(evicted.files, Ordering::Relaxed);
        usage.evicted_bytes.fetch_add(evicted.bytes, Ordering::Relaxed);
        self.memory.record_change();
        self.root.surrogate_keys.remove_missing_files(docroot);
        self.log_eviction(goal, evicted, now);
        if !evicted.covers(goal.required_amount) {
            self.log_insufficient_eviction(goal, memo);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns the files and folders below the root that the configuration names for something other than cache files.
    ///
    /// They are compared by their resolved paths: the configuration may name root and file in unrelated ways.
    fn protected_paths(&self, root: &Path) -> Vec<PathBuf> {
        let root = resolve_links(root);
        let all = self.all_farms.iter().flat_map(|farm| configured_paths(farm));
        all.filter_map(|own| resolve_links(own).strip_prefix(&root).ok().map(Path::to_owned))
            .collect()
    }

    fn log_eviction(&self, goal: EvictionGoal, evicted: DiskAmount, now: SystemTime) {
        let (root, why) = (self.root.path().display(), goal.reason.description());
        tracing::info!(file = %root, files = evicted.files, bytes = evicted.bytes, reason = why, at = ?now,
            "cache files evicted");
        self.log.write(&self.clock, LogLevel::Info, || {
            let DiskAmount { files, bytes } = evicted;
            format!("Evicted {files} cache files of {bytes} bytes from {root}: {why}")
        });
    }

    fn log_insufficient_eviction(&self, goal: EvictionGoal, memo: &mut DiskQuotaEnforcerMemo) {
        if !std::mem::replace(&mut memo.is_failure_reported, true) {
            tracing::warn!(file = %self.root.path().display(), reason = goal.reason.description(), bytes = goal.required_amount.bytes,
                "too few cache files can be evicted; check what else fills the disk");
        }
    }
}

/// Returns true if a farm's cache may have written the file of a URL path.
///
/// Users put their own files next to those of the cache. Files that the farm would not store belong to them, as do
/// files that httpd hides.
fn may_be_cache_file_of(farm: &FarmConfig, path: &str) -> bool {
    let Some(cache) = &farm.cache else { return false };
    let path = &*url_path_of_file(path);
    let Some((_, name)) = path.rsplit_once('/') else { return false };
    let has_extension = name.rfind('.').is_some_and(|dot| dot > 0);
    if !has_extension || name.starts_with(".ht") || path.split('/').any(is_reserved_name) {
        return false;
    }
    let Some(base) = variant_base_name(name) else { return cache.rules.allows(path) };
    // The rules refer to a variant by its page.
    let folder = path.strip_suffix(name).unwrap_or_default();
    cache.rules.allows(&format!("{folder}{base}"))
}

/// Returns the files and folders that a farm stores besides its cache files.
fn configured_paths(farm: &FarmConfig) -> impl Iterator<Item = &PathBuf> {
    let stat_file = farm.cache.as_ref().and_then(|cache| match &cache.stat_files {
        StatFileLayout::Single(file) => Some(file),
        StatFileLayout::Level(_) => None,
    });
    let vanity = farm.vanity_urls.as_ref().and_then(|urls| urls.list_file.as_ref());
    let sessions = farm.session_management.as_ref().map(|sessions| &sessions.directory);
    stat_file.into_iter().chain(vanity).chain(sessions)
}

/// Returns a path with links resolved, as far as it exists.
fn resolve_links(path: &Path) -> PathBuf {
    let resolved = path.ancestors().find_map(|folder| {
        let rest = path.strip_prefix(folder).ok()?;
        Some(folder.canonicalize().ok()?.join(rest))
    });
    resolved.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{
        DiskAmount, DiskUsageState, EvictionGoal, EvictionReason, FileSystemSpace,
        RECENT_USE_PERIOD, eviction_goal,
    };
    use crate::config::DiskQuota;
    use std::time::Duration;

    fn state(usage: DiskAmount, free: u64) -> DiskUsageState {
        let space =
            FileSystemSpace { total_bytes: 100_000, free_bytes: free, is_out_of_inodes: false };
        DiskUsageState { usage, file_system_space: space, is_full: false }
    }

    #[test]
    fn a_bound_that_is_passed_is_undercut_by_a_tenth() {
        let bounds = DiskQuota { max_bytes: Some(1000), max_files: Some(100), min_free: Some(500) };
        let check = |files, bytes, free, expected: Option<(u64, u64, EvictionReason)>| {
            let goal = eviction_goal(&bounds, state(DiskAmount { files, bytes }, free));
            let expected = expected.map(|(files, bytes, why)| {
                let spared =
                    if why == EvictionReason::MinFree { RECENT_USE_PERIOD } else { Duration::ZERO };
                EvictionGoal {
                    required_amount: DiskAmount { files, bytes },
                    spared_period: spared,
                    reason: why,
                }
            });
            assert_eq!(goal, expected, "{files} {bytes} {free}");
        };
        check(100, 1000, 500, None);
        check(100, 1001, 500, Some((0, 101, EvictionReason::MaxSize)));
        check(101, 1000, 500, Some((11, 0, EvictionReason::MaxFiles)));
        check(101, 1001, 0, Some((11, 101, EvictionReason::MaxSize)));
        check(100, 1000, 499, Some((0, 51, EvictionReason::MinFree)));
    }

    #[test]
    fn without_settings_nothing_is_removed_and_with_some_a_fiftieth_stays_free() {
        let huge = DiskAmount { files: 1 << 40, bytes: 1 << 50 };
        let full = DiskUsageState { is_full: true, ..state(huge, 0) };
        assert_eq!(eviction_goal(&DiskQuota::default(), full), None);
        let bounds = DiskQuota { max_files: Some(u64::MAX), ..DiskQuota::default() };
        assert_eq!(eviction_goal(&bounds, state(huge, 2000)), None);
        assert_eq!(
            eviction_goal(&bounds, state(huge, 1999)).map(|goal| goal.required_amount.bytes),
            Some(201)
        );
        let none = DiskQuota { min_free: Some(0), ..bounds };
        assert_eq!(eviction_goal(&none, state(huge, 0)), None);
    }

    #[test]
    fn a_full_disk_gets_some_space_whatever_the_file_system_says() {
        let bounds = DiskQuota { min_free: Some(0), ..DiskQuota::default() };
        let full = DiskUsageState {
            is_full: true,
            ..state(DiskAmount { files: 200, bytes: 4000 }, 90_000)
        };
        let amount = |state| eviction_goal(&bounds, state).map(|goal| goal.required_amount);
        assert_eq!(amount(full), Some(DiskAmount { files: 0, bytes: 200 }));
        let space = FileSystemSpace { is_out_of_inodes: true, ..full.file_system_space };
        assert_eq!(
            amount(DiskUsageState { file_system_space: space, ..full }),
            Some(DiskAmount { files: 10, bytes: 200 })
        );
    }
}
