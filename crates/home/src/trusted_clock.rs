//! The clock that expiry is measured against.
//!
//! A clock that jumps ahead, even for seconds, makes everything look old. Therefore history, leases, versions, logins,
//! ended jobs and marked packs of a vault are not removed by the current clock time, but by a time that the clock has
//! been observed to pass steadily. The observations are recorded in the home's file `clock`, by a running instance
//! every few minutes, and by each command that removes data; for a vault, in a file of this user.
//!
//! Invariants
//! * The returned time is never later than the clock.
//! * It follows the clock over any step that the time since boot confirms, and over others in steps of at most
//!   [`MAX_STEADY_STEP`]; over a longer one it stands still until the clock has been observed to continue from there
//!   for [`JUMP_PROBATION`].
//! * A clock that goes back is followed at once: then everything looks younger.
//!
//! On failure: a record that cannot be read counts as absent, and one that cannot be written leaves the time unchanged.
//! Both keep more data.
//!
//! The validity of a login is not measured against this clock, but against the system clock.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tympan_store::ChunkStore;

use crate::origin::MAIN_BRANCH;

/// The interval at which a running instance checks the clock.
pub const CLOCK_CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// A longer step between two checks is a jump, or a period without checks.
const MAX_STEADY_STEP: Duration = Duration::from_hours(1);
/// The time that a clock must continue from where it jumped to before it is trusted.
const JUMP_PROBATION: Duration = Duration::from_hours(24);
/// The maximum credit of one interval between two checks toward the probation if nothing else confirms it: a second
/// jump is not elapsed time.
const MAX_UNCONFIRMED_CREDIT: Duration = Duration::from_hours(6);
/// The number of revisions that determine the time of a home's first record.
const REVISION_SAMPLE_COUNT: usize = 101;
/// The maximum age of the second-to-last snapshot of a vault at which a clock without other evidence is trusted.
const MAX_USUAL_SNAPSHOT_AGE: Duration = Duration::from_hours(31 * 24);
/// The file of the record.
const CLOCK_RECORD_FILE: &str = "clock";

/// The observations of a clock. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockRecord {
    /// The last trusted time.
    trusted: u64,
    /// The observations since the clock jumped ahead of the trusted time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jump: Option<ClockJump>,
    /// The time since boot at the last check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<BootTime>,
}

/// The state of a clock that has jumped ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockJump {
    /// The last time that the clock showed.
    seen: u64,
    /// The number of seconds for which the clock has continued steadily.
    steady: u64,
}

/// The time since a machine was booted, which cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootTime {
    /// The identifier of the boot.
    id: String,
    seconds: u64,
}

impl BootTime {
    /// Reads the boot time from the system; `None` if the system does not report it.
    fn read_system() -> Option<Self> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
        Some(Self { id, seconds: u64::try_from(since).ok()? })
    }
}

/// The state of the machine's clocks at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClockReading {
    /// The clock time in seconds since 1970.
    now: u64,
    boot: Option<BootTime>,
}

impl ClockReading {
    fn at_time(now: SystemTime) -> Self {
        Self { now: unix_seconds(now), boot: BootTime::read_system() }
    }
}

impl ClockRecord {
    const fn new(trusted: u64) -> Self {
        Self { trusted, jump: None, boot: None }
    }

    /// Returns the number of seconds since the last check, if the machine has run for all of them.
    fn elapsed_seconds(&self, reading: &ClockReading) -> Option<u64> {
        let (then, now) = (self.boot.as_ref()?, reading.boot.as_ref()?);
        if then.id != now.id {
            return None;
        }
        now.seconds.checked_sub(then.seconds)
    }

    /// Returns the record after a check of the clock.
    fn advance(self, reading: &ClockReading) -> Self {
        let (now, boot) = (reading.now, reading.boot.clone());
        let elapsed = self.elapsed_seconds(reading);
        let last = self.jump.map_or(self.trusted, |jump| jump.seen);
        let is_confirmed = elapsed.is_some_and(|elapsed| {
            now.saturating_sub(last).abs_diff(elapsed) <= MAX_STEADY_STEP.as_secs()
        });
        // This much time has certainly passed.
        let trusted = self.trusted.saturating_add(elapsed.unwrap_or(0));
        if now.saturating_sub(trusted) <= MAX_STEADY_STEP.as_secs() {
            return Self { trusted: now, jump: None, boot };
        }
        let steady = match (self.jump, elapsed) {
            (Some(ClockJump { steady, .. }), Some(elapsed)) if is_confirmed => steady + elapsed,
            (Some(ClockJump { seen, steady }), None) if seen <= now => {
                steady + (now - seen).min(MAX_UNCONFIRMED_CREDIT.as_secs())
            }
            _ => 0,
        };
        if steady >= JUMP_PROBATION.as_secs() {
            return Self { trusted: now, jump: None, boot };
        }
        Self { trusted, jump: Some(ClockJump { seen: now, steady }), boot }
    }

    /// Returns the trusted time, which is never later than the clock.
    fn trusted_time(&self, reading: &ClockReading) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.trusted.min(reading.now))
    }
}

/// Records the clock of a home, and returns the time that expiry is measured against. A home without a record starts at
/// the time when most of its last revisions were made.
pub fn trusted_now(home: &Path, store: &dyn ChunkStore, now: SystemTime) -> SystemTime {
    trusted_at_reading(home, store, &ClockReading::at_time(now))
}

fn trusted_at_reading(home: &Path, store: &dyn ChunkStore, reading: &ClockReading) -> SystemTime {
    let file = home.join(CLOCK_RECORD_FILE);
    let clock_record = read_clock_record(&file);
    let note =
        clock_record.unwrap_or_else(|| initial_clock_record(store, reading.now)).advance(reading);
    store_record(&file, &note, reading);
    note.trusted_time(reading)
}

/// Returns the time that expiry in a home is measured against, from the last record of a running instance. Without a
/// record nothing counts as expired. Costs reading one small file.
pub fn recorded_trusted_now(home: &Path, now: SystemTime) -> SystemTime {
    let reading = ClockReading::at_time(now);
    let note = read_clock_record(&home.join(CLOCK_RECORD_FILE)).map(|note| note.advance(&reading));
    note.map_or(UNIX_EPOCH, |note| note.trusted_time(&reading))
}

/// Records the clock in a file for a vault, and returns the time that expiry in the vault is measured against.
/// `snapshots` returns the times of all snapshots; it is called if the file is not sufficient.
///
/// # Errors
/// Those of `snapshots`.
pub fn trusted_for_vault<E>(
    file: Option<&Path>,
    snapshots: impl FnOnce() -> Result<Vec<SystemTime>, E>,
    now: SystemTime,
) -> Result<SystemTime, E> {
    trusted_vault_time(file, snapshots, &ClockReading::at_time(now))
}

fn trusted_vault_time<E>(
    file: Option<&Path>,
    snapshots: impl FnOnce() -> Result<Vec<SystemTime>, E>,
    reading: &ClockReading,
) -> Result<SystemTime, E> {
    let clock_record = file.and_then(read_clock_record);
    let note = match clock_record {
        Some(note) if note.elapsed_seconds(reading).is_some() => note.advance(reading),
        clock_record => {
            // The last snapshot may have been dated by the clock that is being checked.
            let mut times: Vec<u64> = snapshots()?.into_iter().map(unix_seconds).collect();
            times.sort_unstable();
            let witness = times.iter().rev().nth(1).or(times.first()).copied();
            let is_usual = witness.is_none_or(|witness| {
                reading.now.saturating_sub(witness) <= MAX_USUAL_SNAPSHOT_AGE.as_secs()
            });
            match clock_record {
                _ if is_usual => {
                    ClockRecord { boot: reading.boot.clone(), ..ClockRecord::new(reading.now) }
                }
                Some(note) => note.advance(reading),
                None => ClockRecord::new(witness.unwrap_or(reading.now)).advance(reading),
            }
        }
    };
    if let Some(file) = file {
        if let Some(folder) = file.parent() {
            // An error is reported when the record is written.
            fs::create_dir_all(folder).ok();
        }
        store_record(file, &note, reading);
    }
    Ok(note.trusted_time(reading))
}

/// Writes a record, and logs a warning if the clock has jumped.
fn store_record(file: &Path, note: &ClockRecord, reading: &ClockReading) {
    if let Err(error) = write_clock_record(file, note) {
        tracing::warn!(file = %file.display(), reason = %error, "cannot write the clock record");
    }
    // Warn once for each jump.
    if note.jump.is_some_and(|jump| jump.steady == 0) {
        tracing::warn!(
            trusted = note.trusted,
            now = reading.now,
            "the clock jumped, or was not checked for a long time; until it has run steadily for a day, the \
             previous time decides what is old enough to be removed"
        );
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read_clock_record(file: &Path) -> Option<ClockRecord> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn write_clock_record(file: &Path, note: &ClockRecord) -> std::io::Result<()> {
    let new = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
    serde_json::to_writer(new.as_file(), note).map_err(std::io::Error::other)?;
    new.persist(file)?;
    Ok(())
}

/// Creates the first record of a home: a few revisions with wrong dates have no influence.
fn initial_clock_record(store: &dyn ChunkStore, now: u64) -> ClockRecord {
    let revisions = store.ref_history(MAIN_BRANCH, None, REVISION_SAMPLE_COUNT).unwrap_or_default();
    let mut times: Vec<u64> =
        revisions.iter().map(|revision| unix_seconds(revision.update.updated_at)).collect();
    times.sort_unstable();
    ClockRecord::new(times.get(times.len() / 2).copied().unwrap_or(now).min(now))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use tympan_store::{
        ChunkBatch, GarbageCollectionMode, GarbageCollectionOptions, LocalStore, MapValue,
        RefUpdate, SortedMap, StoreRoot,
    };

    use super::*;

    const HOUR: u64 = 3_600;
    const YEAR: u64 = 365 * 24 * HOUR;

    fn follow(looks: &[u64]) -> Vec<u64> {
        let mut note = ClockRecord::new(1_000 * HOUR);
        let step = |look: &u64| {
            note = note.clone().advance(&ClockReading { now: *look, boot: None });
            note.trusted.min(*look)
        };
        looks.iter().map(step).collect()
    }

    #[test]
    fn a_clock_that_goes_on_is_followed() {
        let looks: Vec<u64> = (0..100).map(|step| 1_000 * HOUR + step * 600).collect();
        assert_eq!(follow(&looks), looks);
    }

    #[test]
    fn a_clock_that_jumps_ahead_for_a_while_moves_nothing() {
        let start = 1_000 * HOUR;
        let looks = [start + 600, start + 2 * YEAR, start + 2 * YEAR + 600, start + 1_800];
        assert_eq!(follow(&looks), [start + 600, start + 600, start + 600, start + 1_800]);
        // Several checks, each after less than a day.
        let looks: Vec<u64> = (0..10_u64)
            .flat_map(|turn| [start + turn * 600, start + YEAR, start + YEAR + 23 * HOUR])
            .collect();
        assert!(follow(&looks).iter().all(|trusted| *trusted <= start + 6_000));
    }

    #[test]
    fn a_home_that_nobody_looked_at_for_long_is_followed_after_a_day() {
        let later = 1_000 * HOUR + YEAR;
        let looks: Vec<u64> = (0..=5).map(|turn| later + turn * 6 * HOUR).collect();
        let mut expected = vec![1_000 * HOUR; 4];
        expected.extend([looks[4], looks[4]]);
        assert_eq!(follow(&looks), expected);
        // A second jump does not count as a day.
        let looks = [later, later + YEAR, later + 2 * YEAR];
        assert!(follow(&looks).iter().all(|trusted| *trusted == 1_000 * HOUR));
    }

    /// Creates a new store in which `main` was moved at the given times, in seconds since 1970.
    fn store_with_revisions(times: &[u64]) -> LocalStore {
        let store = LocalStore::open_in_memory().unwrap();
        let mut expected = None;
        for (number, seconds) in times.iter().enumerate() {
            let mut batch = ChunkBatch::new();
            let edits = BTreeMap::from([(
                format!("content\u{1}page {number}\0").into_bytes(),
                Some(MapValue { bytes: b"x".to_vec().into(), body: None }),
            )]);
            let map = SortedMap::EMPTY_MAP.edit(&store, &mut batch, edits).unwrap();
            let maps = BTreeMap::from([("content".to_owned(), map)]);
            let new = Some(StoreRoot { maps }.write(&mut batch).unwrap());
            batch.add_ref_update(RefUpdate {
                name: MAIN_BRANCH.to_owned(),
                expected_root: expected,
                new_root: new,
                updated_at: UNIX_EPOCH + Duration::from_secs(*seconds),
                author: "test".to_owned(),
                message: String::new(),
            });
            store.commit(batch).unwrap();
            expected = new;
        }
        store
    }

    /// A collection while the clock is two years ahead drops no revision, even if it is the first one of a home, and
    /// even if a revision was made in the meantime; a day later it follows the clock again.
    #[test]
    fn a_jump_drops_no_revisions() {
        let start = 1_000_000 * HOUR;
        let mut times: Vec<u64> = (0..20).map(|number| start + number * 60).collect();
        times.push(start + 2 * YEAR);
        let store = store_with_revisions(&times);
        let home = tempfile::tempdir().unwrap();
        let dropped = |seconds: u64| {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            let trusted =
                trusted_at_reading(home.path(), &store, &ClockReading { now: seconds, boot: None });
            assert!(trusted <= now);
            let options = GarbageCollectionOptions {
                mode: GarbageCollectionMode::DryRun,
                ..GarbageCollectionOptions::at_time(trusted)
            };
            let go_on = &mut |_: &_| ControlFlow::Continue(());
            store.collect_garbage(&options, go_on).unwrap().dropped_revisions
        };
        assert_eq!(dropped(start + 2 * YEAR), 0);
        assert_eq!(dropped(start + 2 * YEAR + 23 * HOUR), 0);
        // The clock is back where it was, and then really two years later.
        assert_eq!(dropped(start + 2 * HOUR), 0);
        assert_eq!(dropped(start + 2 * YEAR), 0);
        let day = (1..=4).map(|turn| dropped(start + 2 * YEAR + turn * 6 * HOUR));
        assert_eq!(day.map(|dropped| u64::from(dropped > 0)).collect::<Vec<_>>(), [0, 0, 1, 1]);
    }

    #[test]
    fn a_clock_that_goes_back_is_followed_at_once() {
        let start = 1_000 * HOUR;
        let looks = [start - 900 * HOUR, start - 900 * HOUR + 600];
        assert_eq!(follow(&looks), looks);
    }

    /// Returns a reading of a clock that shows `now` on a machine that has been running for `up`, since its `start`.
    fn look(now: u64, (start, up): (&str, u64)) -> ClockReading {
        ClockReading { now, boot: Some(BootTime { id: start.to_owned(), seconds: up }) }
    }

    #[test]
    fn the_time_since_the_start_of_the_machine_confirms_long_steps() {
        let start = 1_000 * HOUR;
        let mut note = ClockRecord::new(start);
        let mut trusted = |reading: ClockReading| {
            note = note.clone().advance(&reading);
            note.trusted.min(reading.now) - start
        };
        assert_eq!(trusted(look(start, ("a", 10))), 0);
        // No check for ten days, in which the machine ran.
        assert_eq!(trusted(look(start + 240 * HOUR, ("a", 10 + 240 * HOUR))), 240 * HOUR);
        // A momentary jump, and a second one, advance the time only by the elapsed time.
        let up = 10 + 240 * HOUR;
        assert_eq!(trusted(look(start + 2 * YEAR, ("a", up + 60))), 240 * HOUR + 60);
        assert_eq!(trusted(look(start + 3 * YEAR, ("a", up + 120))), 240 * HOUR + 120);
        assert_eq!(trusted(look(start + 241 * HOUR, ("a", up + HOUR))), 241 * HOUR);
        // A corrected clock that continues for a day.
        assert_eq!(trusted(look(start + 2 * YEAR, ("a", up + 2 * HOUR))), 242 * HOUR);
        let later = look(start + 2 * YEAR + 24 * HOUR, ("a", up + 26 * HOUR));
        assert_eq!(trusted(later), 2 * YEAR + 24 * HOUR);
        // After another boot, nothing confirms a step.
        assert_eq!(trusted(look(start + 3 * YEAR, ("b", 5))), 2 * YEAR + 24 * HOUR);
    }

    #[test]
    fn a_vault_goes_by_its_snapshots_where_no_note_tells() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new/vault.clock");
        let day = 24 * HOUR;
        let start = 40_000 * HOUR;
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let time = |file: Option<&Path>, snapshots: &[u64], reading: &ClockReading| {
            let snapshots = snapshots.iter().map(|seconds| at(*seconds)).collect();
            trusted_vault_time(file, || Ok::<_, ()>(snapshots), reading).unwrap()
        };
        let jumped = look(start + 2 * YEAR, ("a", 100));
        // Even with a snapshot that the clock dated wrongly.
        assert_eq!(time(None, &[start - day, start, start + 2 * YEAR], &jumped), at(start));
        assert_eq!(time(None, &[start], &jumped), at(start));
        assert_eq!(time(None, &[start - 7 * day, start - day], &look(start, ("a", 5))), at(start));
        assert_eq!(time(None, &[], &look(start, ("a", 5))), at(start));
        // Once there is a record, the time since boot is sufficient, and no snapshot is read.
        let file = Some(&*file);
        assert_eq!(time(file, &[start - day], &look(start, ("a", 5))), at(start));
        let unread = |reading: &ClockReading| trusted_vault_time(file, || Err(()), reading);
        assert_eq!(unread(&look(start + 2 * day, ("a", 65))), Ok(at(start + 60)));
        assert_eq!(unread(&look(start + day, ("a", 5 + day))), Ok(at(start + day)));
        // After another boot, snapshots are read.
        assert_eq!(unread(&look(start + 3 * day, ("b", 5))), Err(()));
        let reading = look(start + 3 * day, ("b", 5));
        assert_eq!(time(file, &[start, start + 2 * day], &reading), at(start + 3 * day));
    }

    #[test]
    fn without_a_note_nothing_is_old() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(recorded_trusted_now(home.path(), SystemTime::now()), UNIX_EPOCH);
        let store = store_with_revisions(&[]);
        let now = SystemTime::now();
        trusted_now(home.path(), &store, now);
        assert_eq!(unix_seconds(recorded_trusted_now(home.path(), now)), unix_seconds(now));
        let jumped = now + Duration::from_secs(YEAR);
        assert!(recorded_trusted_now(home.path(), jumped) < now + Duration::from_secs(HOUR));
    }
}
