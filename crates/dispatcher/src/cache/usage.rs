//! What a document root takes of the disk, and about when each of its files was used last.
//!
//! Invariants
//! * The memory for uses does not grow with the number of files.
//! * A use that was noted is never forgotten: where two files share a place, both count as used when the later one was.
//!
//! Not here: counting files anew and choosing those that go (`survey`), and when that happens (`room`).

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
pub(crate) struct Amount {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Amount {
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
    pub(crate) fn or(self, other: Self) -> Self {
        Self { files: self.files.max(other.files), bytes: self.bytes.max(other.bytes) }
    }
}

impl Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self { files: self.files + other.files, bytes: self.bytes + other.bytes }
    }
}

impl Mul<u64> for Amount {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self { files: self.files * count, bytes: self.bytes * count }
    }
}

impl Sub for Amount {
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
pub(crate) struct Usage {
    counts: Mutex<Counts>,
    /// Whether all files were counted since the root was opened.
    is_known: AtomicBool,
    /// Whether more was removed than was counted.
    has_drifted: AtomicBool,
    /// Whether the disk was full at a store since room was made last.
    is_full: AtomicBool,
    pub(crate) uses: Uses,
    /// Rings when somebody needs room.
    pub(crate) bell: Notify,
    /// From how much on the bell rings at a store.
    limit: Mutex<Option<Amount>>,
    rounds: Rounds,
    pub(crate) evicted_files: AtomicU64,
    pub(crate) evicted_bytes: AtomicU64,
    /// Stores that met a full disk.
    pub(crate) full: AtomicU64,
}

/// The running totals of a document root.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    amount: Amount,
    /// The sum of everything added since the start. It never falls, so that its rise during a count tells what the count
    /// may have missed.
    added: Amount,
}

/// The start of a count of all files: see [`Usage::begin_count`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountStart {
    added: Amount,
}

/// Lets those who need room wait for the end of a round of eviction.
#[derive(Debug, Default)]
struct Rounds {
    state: Mutex<RoundState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct RoundState {
    count: u64,
    /// How many make room when the bell rings: two while one takes over from another.
    keepers: u32,
}

impl Usage {
    /// Returns what the root takes, as far as it is known.
    pub(crate) fn amount(&self) -> Amount {
        self.counts.lock().amount
    }

    /// Starts a count of all files; its result goes to [`Usage::finish_count`].
    pub(crate) fn begin_count(&self) -> CountStart {
        CountStart { added: self.counts.lock().added }
    }

    /// Takes over the result of a count.
    ///
    /// What was stored while it ran is added to it. Files that the count met as well are then in the total twice, until
    /// the next count: a total that is too high costs one count more, one that is too low would let the root outgrow its
    /// bounds.
    pub(crate) fn finish_count(&self, start: CountStart, amount: Amount) {
        let mut counts = self.counts.lock();
        counts.amount = amount + (counts.added - start.added);
        drop(counts);
        self.is_known.store(true, Ordering::Relaxed);
        self.has_drifted.store(false, Ordering::Relaxed);
    }

    /// Forgets what was counted: another folder stands at the root's path.
    pub(crate) fn reset(&self) {
        self.counts.lock().amount = Amount::default();
        self.has_drifted.store(false, Ordering::Relaxed);
        self.is_known.store(false, Ordering::Relaxed);
        self.bell.notify_one();
    }

    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    pub(crate) fn has_drifted(&self) -> bool {
        self.has_drifted.load(Ordering::Relaxed)
    }

    /// Notes that `new` took the place of `old`.
    pub(crate) fn replace(&self, old: Amount, new: Amount) {
        let mut counts = self.counts.lock();
        counts.amount = counts.amount + new - old;
        counts.added = counts.added + (new - old);
        drop(counts);
        if self.exceeds(Amount::default()) {
            self.bell.notify_one();
        }
    }

    /// Notes that a folder was removed of which nobody knows what it held.
    pub(crate) fn note_unknown_removal(&self) {
        self.has_drifted.store(true, Ordering::Relaxed);
    }

    /// Lets the bell ring once the root takes more than this.
    pub(crate) fn set_limit(&self, limit: Amount) {
        *self.limit.lock() = Some(limit);
    }

    /// Tells whether the root takes more than its limit and `more`.
    fn exceeds(&self, more: Amount) -> bool {
        let (now, limit) = (self.amount(), *self.limit.lock());
        limit.is_some_and(|limit| {
            now.files > limit.files.saturating_add(more.files)
                || now.bytes > limit.bytes.saturating_add(more.bytes)
        })
    }

    /// Tells whether the root takes a twentieth more than its limit.
    pub(crate) fn is_overflowing(&self) -> bool {
        let limit = self.limit.lock().unwrap_or_default();
        self.exceeds(Amount { files: limit.files / 20, bytes: limit.bytes / 20 })
    }

    /// Notes that the disk is full, and asks for room.
    pub(crate) fn note_full(&self) {
        self.full.fetch_add(1, Ordering::Relaxed);
        self.is_full.store(true, Ordering::SeqCst);
        self.bell.notify_one();
    }

    /// Tells whether the disk was full at a store, and forgets it.
    pub(crate) fn take_full(&self) -> bool {
        self.is_full.swap(false, Ordering::SeqCst)
    }

    /// Says that somebody makes room when the bell rings.
    pub(crate) fn add_keeper(&self) {
        self.rounds.state.lock().keepers += 1;
    }

    /// Undoes [`Usage::add_keeper`].
    pub(crate) fn remove_keeper(&self) {
        let mut state = self.rounds.state.lock();
        state.keepers = state.keepers.saturating_sub(1);
        self.rounds.ended.notify_all();
    }

    /// Notes the end of a round.
    pub(crate) fn end_round(&self) {
        self.rounds.state.lock().count += 1;
        self.rounds.ended.notify_all();
    }

    /// Asks for room and waits until it was made, for up to `patience`; tells whether it makes sense to try again.
    ///
    /// Blocks, and must not be called while files are put into place.
    pub(crate) fn wait_for_room(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.rounds.state.lock();
        // A round that runs already may have begun before the disk was full.
        let wanted = state.count + 2;
        self.note_full();
        let first = state.count + 1;
        loop {
            if state.keepers == 0 {
                return false;
            }
            if state.count >= wanted
                || (state.count >= first && !self.is_full.load(Ordering::SeqCst))
            {
                return true;
            }
            if self.rounds.ended.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
    }
}

/// How many last uses are remembered at once.
const PLACES: usize = 1 << 19;

/// About when files were used last: two places in a table for each file, of which the earlier time counts.
#[derive(Debug, Default)]
pub(crate) struct Uses(OnceLock<Box<[AtomicU32]>>);

impl Uses {
    fn places(file: &Path) -> [usize; 2] {
        let mut hasher = DefaultHasher::new();
        OsStr::as_bytes(file.as_os_str()).hash(&mut hasher);
        let hash = hasher.finish();
        let place = |bits: u64| usize::try_from(bits % PLACES as u64).unwrap_or(0);
        [place(hash & 0xffff_ffff), place(hash >> 32)]
    }

    /// Notes a use of `file`, below the document root.
    pub(crate) fn note(&self, file: &Path, now: SystemTime) {
        let second = seconds(now);
        let table = self
            .0
            .get_or_init(|| std::iter::repeat_with(AtomicU32::default).take(PLACES).collect());
        for place in Self::places(file) {
            if let Some(cell) = table.get(place) {
                cell.fetch_max(second, Ordering::Relaxed);
            }
        }
    }

    /// Returns when `file` was used last, or a later time; nothing if it was not used since the start.
    pub(crate) fn last(&self, file: &Path) -> Option<SystemTime> {
        let table = self.0.get()?;
        let cells = Self::places(file)
            .map(|place| table.get(place).map_or(0, |cell| cell.load(Ordering::Relaxed)));
        let second = cells.into_iter().min().filter(|second| *second > 0)?;
        Some(UNIX_EPOCH + Duration::from_secs(second.into()))
    }
}

fn seconds(time: SystemTime) -> u32 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Amount, Usage, Uses};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn uses_are_never_earlier_than_they_were() {
        let uses = Uses::default();
        assert_eq!(uses.last(Path::new("a.html")), None);
        let at = |second| UNIX_EPOCH + Duration::from_secs(second);
        let file = |number: u64| PathBuf::from(format!("content/{number}.html"));
        for number in 0..10_000 {
            uses.note(&file(number), at(1000 + number));
        }
        // An earlier time, as from a clock that was set back, changes nothing.
        uses.note(&file(5000), at(7));
        let exact =
            (0..10_000).filter(|number| uses.last(&file(*number)) == Some(at(1000 + number)));
        assert!(exact.count() > 9_900);
        assert!((0..10_000).all(|number| uses.last(&file(number)) >= Some(at(1000 + number))));
        assert_eq!(uses.last(Path::new("never.html")), None);
    }

    #[test]
    fn files_take_whole_blocks() {
        for (length, bytes) in [(0, 0), (1, 4096), (4096, 4096), (4097, 8192)] {
            assert_eq!(Amount::of_file(length), Amount { files: 1, bytes }, "{length}");
        }
    }

    #[test]
    fn what_is_replaced_is_counted_once() {
        let usage = Usage::default();
        let (small, large) = (Amount::of_file(1), Amount::of_file(10_000));
        usage.replace(Amount::default(), large + small);
        usage.replace(large, small);
        assert_eq!(usage.amount(), small + small);
        usage.replace(large + large + large, Amount::default());
        assert_eq!(usage.amount(), Amount::default());
    }

    #[test]
    fn stores_during_a_count_are_not_lost() {
        let usage = Usage::default();
        let file = Amount::of_file(1);
        usage.replace(Amount::default(), file);
        let start = usage.begin_count();
        usage.replace(Amount::default(), file);
        usage.replace(file, Amount::default());
        // The count met one of the two files before the other was removed.
        usage.finish_count(start, file);
        assert_eq!(usage.amount(), file + file);
        let start = usage.begin_count();
        usage.finish_count(start, file);
        assert_eq!(usage.amount(), file);
    }

    #[test]
    fn nobody_waits_for_room_that_nobody_makes() {
        let usage = Usage::default();
        assert!(!usage.wait_for_room(Duration::from_secs(3600)));
        assert!(usage.take_full() && !usage.take_full());
    }
}
