//! The disk usage of a document root, and the approximate last use of each of its files.
//!
//! Invariants
//! * The memory for last uses does not grow with the number of files.
//! * A recorded use is never lost: where two files share a slot, both count as used at the later time.
//!
//! Not here: recounting files and choosing those to evict (`survey_and_eviction`), and when that happens (`quota_enforcement`).

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::{Add, Mul, Sub};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// The approximate block size in which file systems allocate space.
const BLOCK_BYTES: u64 = 4096;

/// A number of files, side files and folders, and their bytes in whole blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskAmount {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl DiskAmount {
    /// Returns the disk usage of one file of `length` bytes.
    pub(crate) fn of_file(length: u64) -> Self {
        Self { files: 1, bytes: length.div_ceil(BLOCK_BYTES) * BLOCK_BYTES }
    }

    /// Returns the disk usage of one folder without its content.
    pub(crate) fn of_folder() -> Self {
        Self { files: 1, bytes: BLOCK_BYTES }
    }

    /// Returns true if both parts are at least as large as the other's.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.files >= other.files && self.bytes >= other.bytes
    }

    /// Returns the maximum of each part.
    pub(crate) fn max_of_each(self, other: Self) -> Self {
        Self { files: self.files.max(other.files), bytes: self.bytes.max(other.bytes) }
    }
}

impl Add for DiskAmount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { files: self.files + other.files, bytes: self.bytes + other.bytes }
    }
}

impl Mul<u64> for DiskAmount {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self { files: self.files * count, bytes: self.bytes * count }
    }
}

impl Sub for DiskAmount {
    type Output = Self;
    /// Saturates at zero.
    fn sub(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_sub(other.files),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The disk usage of a document root, and the counters of its evictions.
#[derive(Debug, Default)]
pub(crate) struct DocrootUsage {
    counts: Mutex<Counts>,
    /// True if all files were counted since the root was opened.
    is_counted: AtomicBool,
    /// True if more was removed than was counted.
    has_drifted: AtomicBool,
    /// True if a store met a full disk since space was last freed.
    was_disk_full: AtomicBool,
    pub(crate) last_uses: LastUseTable,
    /// Notified when space is needed.
    pub(crate) eviction_signal: Notify,
    /// The usage above which a store sends the eviction signal.
    signal_limit: Mutex<Option<DiskAmount>>,
    eviction_rounds: EvictionRounds,
    pub(crate) evicted_files: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    /// The number of stores that met a full disk.
    pub(crate) disk_full_count: AtomicU64,
}

/// The running totals of a document root.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    amount: DiskAmount,
    /// The sum of everything added since the start. It never decreases, so its increase during a count is the amount
    /// that the count may have missed.
    added: DiskAmount,
}

/// The start of a count of all files: see [`DocrootUsage::begin_count`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountStart {
    added: DiskAmount,
}

/// Lets threads that need space wait for the end of an eviction round.
#[derive(Debug, Default)]
struct EvictionRounds {
    state: Mutex<EvictionRoundState>,
    round_ended: Condvar,
}

#[derive(Debug, Default)]
struct EvictionRoundState {
    ended_count: u64,
    /// The number of enforcers that react to the eviction signal: two while one takes over from another.
    enforcer_count: u32,
}

impl DocrootUsage {
    /// Returns the known disk usage of the root.
    pub(crate) fn current_amount(&self) -> DiskAmount {
        self.counts.lock().amount
    }

    /// Starts a count of all files; pass its result to [`DocrootUsage::finish_count`].
    pub(crate) fn begin_count(&self) -> CountStart {
        CountStart { added: self.counts.lock().added }
    }

    /// Applies the result of a count.
    ///
    /// Files stored during the count are added to it. Files that the count also met are then counted twice until the
    /// next count. A total that is too high costs one more count; one that is too low would let the root exceed its
    /// limits.
    pub(crate) fn finish_count(&self, start: CountStart, amount: DiskAmount) {
        let mut counts = self.counts.lock();
        counts.amount = amount + (counts.added - start.added);
        drop(counts);
        self.is_counted.store(true, Ordering::Relaxed);
        self.has_drifted.store(false, Ordering::Relaxed);
    }

    /// Resets the count because another folder is at the root's path.
    pub(crate) fn forget_amount(&self) {
        self.counts.lock().amount = DiskAmount::default();
        self.has_drifted.store(false, Ordering::Relaxed);
        self.is_counted.store(false, Ordering::Relaxed);
        self.eviction_signal.notify_one();
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    pub(crate) fn has_drifted(&self) -> bool {
        self.has_drifted.load(Ordering::Relaxed)
    }

    /// Records that `new` replaced `old`.
    pub(crate) fn record_replacement(&self, old: DiskAmount, new: DiskAmount) {
        let mut counts = self.counts.lock();
        counts.amount = counts.amount + new - old;
        counts.added = counts.added + (new - old);
        drop(counts);
        if self.exceeds_limit_by(DiskAmount::default()) {
            self.eviction_signal.notify_one();
        }
    }

    /// Records the removal of a folder with unknown content.
    pub(crate) fn record_unknown_removal(&self) {
        self.has_drifted.store(true, Ordering::Relaxed);
    }

    /// Sets the usage above which the eviction signal is sent.
    pub(crate) fn set_limit(&self, limit: DiskAmount) {
        *self.signal_limit.lock() = Some(limit);
    }

    /// Returns true if the root uses more than its limit plus `more`.
    fn exceeds_limit_by(&self, more: DiskAmount) -> bool {
        let (now, limit) = (self.current_amount(), *self.signal_limit.lock());
        limit.is_some_and(|limit| {
            now.files > limit.files.saturating_add(more.files)
                || now.bytes > limit.bytes.saturating_add(more.bytes)
        })
    }

    /// Returns true if the root uses more than its limit plus one twentieth.
    pub(crate) fn is_overflowing(&self) -> bool {
        let limit = self.signal_limit.lock().unwrap_or_default();
        self.exceeds_limit_by(DiskAmount { files: limit.files / 20, bytes: limit.bytes / 20 })
    }

    /// Records that the disk is full, and requests space.
    pub(crate) fn record_disk_full(&self) {
        self.disk_full_count.fetch_add(1, Ordering::Relaxed);
        self.was_disk_full.store(true, Ordering::SeqCst);
        self.eviction_signal.notify_one();
    }

    /// Returns true if the disk was full at a store, and resets that state.
    pub(crate) fn take_disk_full(&self) -> bool {
        self.was_disk_full.swap(false, Ordering::SeqCst)
    }

    /// Registers an enforcer that reacts to the eviction signal.
    pub(crate) fn add_enforcer(&self) {
        self.eviction_rounds.state.lock().enforcer_count += 1;
    }

    /// Reverts [`DocrootUsage::add_enforcer`].
    pub(crate) fn remove_enforcer(&self) {
        let mut state = self.eviction_rounds.state.lock();
        state.enforcer_count = state.enforcer_count.saturating_sub(1);
        self.eviction_rounds.round_ended.notify_all();
    }

    /// Records the end of an eviction round.
    pub(crate) fn record_round_end(&self) {
        self.eviction_rounds.state.lock().ended_count += 1;
        self.eviction_rounds.round_ended.notify_all();
    }

    /// Requests space and waits up to `timeout` until it is freed; returns true if a retry makes sense.
    ///
    /// Blocks. Must not be called while files are put into place.
    pub(crate) fn wait_for_disk_space(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.eviction_rounds.state.lock();
        // A round that is already running may have begun before the disk was full.
        let target_count = state.ended_count + 2;
        self.record_disk_full();
        let first = state.ended_count + 1;
        loop {
            if state.enforcer_count == 0 {
                return false;
            }
            if state.ended_count >= target_count
                || (state.ended_count >= first && !self.was_disk_full.load(Ordering::SeqCst))
            {
                return true;
            }
            if self.eviction_rounds.round_ended.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
    }
}

/// The number of last-use slots.
const LAST_USE_SLOT_COUNT: usize = 1 << 19;

/// The approximate last use of files: two slots in a table for each file, of which the earlier time counts.
#[derive(Debug, Default)]
pub(crate) struct LastUseTable(OnceLock<Box<[AtomicU32]>>);

impl LastUseTable {
    fn slots_of(file: &Path) -> [usize; 2] {
        let mut hasher = DefaultHasher::new();
        OsStr::as_bytes(file.as_os_str()).hash(&mut hasher);
        let hash = hasher.finish();
        let slot = |bits: u64| usize::try_from(bits % LAST_USE_SLOT_COUNT as u64).unwrap_or(0);
        [slot(hash & 0xffff_ffff), slot(hash >> 32)]
    }

    /// Records a use of `file`, given below the document root.
    pub(crate) fn record_use(&self, file: &Path, now: SystemTime) {
        let second = seconds_since_epoch(now);
        let table = self.0.get_or_init(|| {
            std::iter::repeat_with(AtomicU32::default).take(LAST_USE_SLOT_COUNT).collect()
        });
        for slot in Self::slots_of(file) {
            if let Some(cell) = table.get(slot) {
                cell.fetch_max(second, Ordering::Relaxed);
            }
        }
    }

    /// Returns the time of the last use of `file`, or a later time; `None` if it was not used since the start.
    pub(crate) fn last_use(&self, file: &Path) -> Option<SystemTime> {
        let table = self.0.get()?;
        let cells = Self::slots_of(file)
            .map(|slot| table.get(slot).map_or(0, |cell| cell.load(Ordering::Relaxed)));
        let second = cells.into_iter().min().filter(|second| *second > 0)?;
        Some(UNIX_EPOCH + Duration::from_secs(second.into()))
    }
}

fn seconds_since_epoch(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{DiskAmount, DocrootUsage, LastUseTable};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn uses_are_never_earlier_than_they_were() {
        let uses = LastUseTable::default();
        assert_eq!(uses.last_use(Path::new("a.html")), None);
        let at = |second| UNIX_EPOCH + Duration::from_secs(second);
        let file = |number: u64| PathBuf::from(format!("content/{number}.html"));
        for number in 0..10_000 {
            uses.record_use(&file(number), at(1000 + number));
        }
        // An earlier time, as from a clock that was set back, changes nothing.
        uses.record_use(&file(5000), at(7));
        let exact =
            (0..10_000).filter(|number| uses.last_use(&file(*number)) == Some(at(1000 + number)));
        assert!(exact.count() > 9_900);
        assert!((0..10_000).all(|number| uses.last_use(&file(number)) >= Some(at(1000 + number))));
        assert_eq!(uses.last_use(Path::new("never.html")), None);
    }

    #[test]
    fn files_take_whole_blocks() {
        for (length, bytes) in [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)] {
            assert_eq!(DiskAmount::of_file(length), DiskAmount { files: 1, bytes }, "{length}");
        }
    }

    #[test]
    fn what_is_replaced_is_counted_once() {
        let usage = DocrootUsage::default();
        let (small, large) = (DiskAmount::of_file(1), DiskAmount::of_file(10_000));
        usage.record_replacement(DiskAmount::default(), large + small);
        usage.record_replacement(large, small);
        assert_eq!(usage.current_amount(), small + small);
        usage.record_replacement(large + large + large, DiskAmount::default());
        assert_eq!(usage.current_amount(), DiskAmount::default());
    }

    #[test]
    fn stores_during_a_count_are_not_lost() {
        let usage = DocrootUsage::default();
        let file = DiskAmount::of_file(1);
        usage.record_replacement(DiskAmount::default(), file);
        let start = usage.begin_count();
        usage.record_replacement(DiskAmount::default(), file);
        usage.record_replacement(file, DiskAmount::default());
        // The count met one of the two files before the other was removed.
        usage.finish_count(start, file);
        assert_eq!(usage.current_amount(), file + file);
        let start = usage.begin_count();
        usage.finish_count(start, file);
        assert_eq!(usage.current_amount(), file);
    }

    #[test]
    fn nobody_waits_for_space_that_nobody_frees() {
        let usage = DocrootUsage::default();
        assert!(!usage.wait_for_disk_space(Duration::from_secs(3600)));
        assert!(usage.take_disk_full() && !usage.take_disk_full());
    }
}
