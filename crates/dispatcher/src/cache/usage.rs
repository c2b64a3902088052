//! What a document root takes of the disk, and about when each of its files was used last.
//!
//! Invariants
//! * The memory for uses does not grow with the number of files.
//! * A use that was noted is never forgotten: where two files share a place, both count as used when the later one was.
//!
//! Not here: counting files anew and choosing those that go (`survey`), and when that happens (`quota_enforcement`).

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

/// File systems give room in blocks of about this size.
const BLOCK_BYTES: u64 = 4096;

/// Files, side files and folders, and their bytes in whole blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskAmount {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl DiskAmount {
    /// Returns what one file of `length` bytes takes.
    pub(crate) fn of_file(length: u64) -> Self {
        Self { files: 1, bytes: length.div_ceil(BLOCK_BYTES) * BLOCK_BYTES }
    }

    /// Returns what one folder takes, beside what is in it.
    pub(crate) fn of_folder() -> Self {
        Self { files: 1, bytes: BLOCK_BYTES }
    }

    /// Tells whether neither part is less than the other's.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.files >= other.files && self.bytes >= other.bytes
    }

    /// Returns the greater of each part.
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
    /// What is not there cannot be taken away.
    fn sub(self, other: Self) -> Self {
        Self {
            files: self.files.saturating_sub(other.files),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// The room that a document root takes, and what was done to keep it small.
#[derive(Debug, Default)]
pub(crate) struct DocrootUsage {
    counts: Mutex<Counts>,
    /// Whether all files were counted since the root was opened.
    is_counted: AtomicBool,
    /// Whether more was removed than was counted.
    has_drifted: AtomicBool,
    /// Whether the disk was full at a store since room was made last.
    was_disk_full: AtomicBool,
    pub(crate) last_uses: LastUseTable,
    /// Rings when somebody needs room.
    pub(crate) eviction_signal: Notify,
    /// From how much on the bell rings at a store.
    signal_limit: Mutex<Option<DiskAmount>>,
    eviction_rounds: EvictionRounds,
    pub(crate) evicted_files: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    /// Stores that met a full disk.
    pub(crate) disk_full_count: AtomicU64,
}

/// The running totals of a document root.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    amount: DiskAmount,
    /// The sum of everything added since the start. It never falls, so that its rise during a count tells what the count
    /// may have missed.
    added: DiskAmount,
}

/// The start of a count of all files: see [`DocrootUsage::begin_count`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountStart {
    added: DiskAmount,
}

/// Lets those who need room wait for the end of a round of eviction.
#[derive(Debug, Default)]
struct EvictionRounds {
    state: Mutex<EvictionRoundState>,
    round_ended: Condvar,
}

#[derive(Debug, Default)]
struct EvictionRoundState {
    ended_count: u64,
    /// How many make room when the bell rings: two while one takes over from another.
    enforcer_count: u32,
}

impl DocrootUsage {
    /// Returns what the root takes, as far as it is known.
    pub(crate) fn current_amount(&self) -> DiskAmount {
        self.counts.lock().amount
    }

    /// Starts a count of all files; its result goes to [`DocrootUsage::finish_count`].
    pub(crate) fn begin_count(&self) -> CountStart {
        CountStart { added: self.counts.lock().added }
    }

    /// Takes over the result of a count.
    ///
    /// What was stored while it ran is added to it. Files that the count met as well are then in the total twice, until
    /// the next count: a total that is too high costs one count more, one that is too low would let the root outgrow its
    /// bounds.
    pub(crate) fn finish_count(&self, start: CountStart, amount: DiskAmount) {
        let mut counts = self.counts.lock();
        counts.amount = amount + (counts.added - start.added);
        drop(counts);
        self.is_counted.store(true, Ordering::Relaxed);
        self.has_drifted.store(false, Ordering::Relaxed);
    }

    /// Forgets what was counted: another folder stands at the root's path.
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

    /// Notes that `new` took the place of `old`.
    pub(crate) fn record_replacement(&self, old: DiskAmount, new: DiskAmount) {
        let mut counts = self.counts.lock();
        counts.amount = counts.amount + new - old;
        counts.added = counts.added + (new - old);
        drop(counts);
        if self.exceeds_limit_by(DiskAmount::default()) {
            self.eviction_signal.notify_one();
        }
    }

    /// Notes that a folder was removed of which nobody knows what it held.
    pub(crate) fn record_unknown_removal(&self) {
        self.has_drifted.store(true, Ordering::Relaxed);
    }

    /// Lets the bell ring once the root takes more than this.
    pub(crate) fn set_limit(&self, limit: DiskAmount) {
        *self.signal_limit.lock() = Some(limit);
    }

    /// Tells whether the root takes more than its limit and `more`.
    fn exceeds_limit_by(&self, more: DiskAmount) -> bool {
        let (now, limit) = (self.current_amount(), *self.signal_limit.lock());
        limit.is_some_and(|limit| {
            now.files > limit.files.saturating_add(more.files)
                || now.bytes > limit.bytes.saturating_add(more.bytes)
        })
    }

    /// Tells whether the root takes a twentieth more than its limit.
    pub(crate) fn is_overflowing(&self) -> bool {
        let limit = self.signal_limit.lock().unwrap_or_default();
        self.exceeds_limit_by(DiskAmount { files: limit.files / 20, bytes: limit.bytes / 20 })
    }

    /// Notes that the disk is full, and asks for room.
    pub(crate) fn record_disk_full(&self) {
        self.disk_full_count.fetch_add(1, Ordering::Relaxed);
        self.was_disk_full.store(true, Ordering::SeqCst);
        self.eviction_signal.notify_one();
    }

    /// Tells whether the disk was full at a store, and forgets it.
    pub(crate) fn take_disk_full(&self) -> bool {
        self.was_disk_full.swap(false, Ordering::SeqCst)
    }

    /// Says that somebody makes room when the bell rings.
    pub(crate) fn add_enforcer(&self) {
        self.eviction_rounds.state.lock().enforcer_count += 1;
    }

    /// Undoes [`DocrootUsage::add_enforcer`].
    pub(crate) fn remove_enforcer(&self) {
        let mut state = self.eviction_rounds.state.lock();
        state.enforcer_count = state.enforcer_count.saturating_sub(1);
        self.eviction_rounds.round_ended.notify_all();
    }

    /// Notes the end of a round.
    pub(crate) fn record_round_end(&self) {
        self.eviction_rounds.state.lock().ended_count += 1;
        self.eviction_rounds.round_ended.notify_all();
    }

    /// Asks for room and waits until it was made, for up to `patience`; tells whether it makes sense to try again.
    ///
    /// Blocks, and must not be called while files are put into place.
    pub(crate) fn wait_for_disk_space(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.eviction_rounds.state.lock();
        // A round that runs already may have begun before the disk was full.
        let wanted = state.ended_count + 2;
        self.record_disk_full();
        let first = state.ended_count + 1;
        loop {
            if state.enforcer_count == 0 {
                return false;
            }
            if state.ended_count >= wanted
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

/// How many last uses are remembered at once.
const LAST_USE_SLOT_COUNT: usize = 1 << 19;

/// About when files were used last: two places in a table for each file, of which the earlier time counts.
#[derive(Debug, Default)]
pub(crate) struct LastUseTable(OnceLock<Box<[AtomicU32]>>);

impl LastUseTable {
    fn slots_of(file: &Path) -> [usize; 2] {
        let mut hasher = DefaultHasher::new();
        OsStr::as_bytes(file.as_os_str()).hash(&mut hasher);
        let hash = hasher.finish();
        let place = |bits: u64| usize::try_from(bits % LAST_USE_SLOT_COUNT as u64).unwrap_or(0);
        [place(hash & 0xffff_ffff), place(hash >> 32)]
    }

    /// Notes a use of `file`, below the document root.
    pub(crate) fn record_use(&self, file: &Path, now: SystemTime) {
        let second = seconds_since_epoch(now);
        let table = self.0.get_or_init(|| {
            std::iter::repeat_with(AtomicU32::default).take(LAST_USE_SLOT_COUNT).collect()
        });
        for place in Self::slots_of(file) {
            if let Some(cell) = table.get(place) {
                cell.fetch_max(second, Ordering::Relaxed);
            }
        }
    }

    /// Returns when `file` was used last, or a later time; nothing if it was not used since the start.
    pub(crate) fn last_use(&self, file: &Path) -> Option<SystemTime> {
        let table = self.0.get()?;
        let cells = Self::slots_of(file)
            .map(|place| table.get(place).map_or(0, |cell| cell.load(Ordering::Relaxed)));
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
    fn nobody_waits_for_room_that_nobody_makes() {
        let usage = DocrootUsage::default();
        assert!(!usage.wait_for_disk_space(Duration::from_secs(3600)));
        assert!(usage.take_disk_full() && !usage.take_disk_full());
    }
}
