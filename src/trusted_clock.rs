//! The clock by which things are removed for their age.
//!
//! A clock that jumps ahead, be it for seconds, makes everything look old. So the time by which history, leases, versions,
//! logins, ended jobs and marked packs of a vault are removed is not what the clock says now, but what it has been seen to say
//! for a while. What it was seen to say is noted in the home's file `clock`, by a running instance every few minutes, and by
//! each command that removes; for a vault, in a file of this user.
//!
//! Invariants
//! * The time that is returned is never later than what the clock says.
//! * It follows the clock over any step that the time since the machine was started confirms, and over others in steps of at
//!   most [`MAX_STEADY_STEP`]; over a longer one it stands still until the clock has been seen to go on from there for
//!   [`JUMP_PROBATION`].
//! * A clock that goes back is followed at once: then everything looks younger.
//!
//! On failure: a note that cannot be read is none, and one that cannot be written keeps the time where it was. Both keep more.
//!
//! Not here: whether a login is still good, which is judged by what the clock says.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tympan_store::ChunkStore;

use crate::home_origin::MAIN_BRANCH;

/// How often a running instance looks at the clock.
pub(crate) const CLOCK_CHECK_INTERVAL: Duration = Duration::from_mins(10);
/// A longer step between two looks is a jump, or a time in which nobody looked.
const MAX_STEADY_STEP: Duration = Duration::from_hours(1);
/// How long a clock must have gone on from where it jumped to until it is believed.
const JUMP_PROBATION: Duration = Duration::from_hours(24);
/// What the time between two looks counts of that at most where nothing else confirms it: a second jump is no time.
const MAX_UNCONFIRMED_CREDIT: Duration = Duration::from_hours(6);
/// Revisions among which the first note of a home finds its time.
const REVISION_SAMPLE_COUNT: usize = 101;
/// How old the snapshot before the last of a vault may be for a clock of which nothing else is known to be believed.
const MAX_USUAL_SNAPSHOT_AGE: Duration = Duration::from_hours(31 * 24);
/// The file with the note.
const CLOCK_RECORD_FILE: &str = "clock";

/// What the clock was seen to say. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockRecord {
    /// The last time that was believed.
    trusted: u64,
    /// What was seen since the clock has jumped from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jump: Option<ClockJump>,
    /// How long the machine had been running at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<BootTime>,
}

/// A clock that has jumped ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockJump {
    /// What it said last.
    seen: u64,
    /// For how many seconds it has gone on.
    steady: u64,
}

/// The time since a machine was started, which nobody sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BootTime {
    /// Which start it was.
    id: String,
    seconds: u64,
}

impl BootTime {
    /// Reads it from the system; nothing where that does not tell.
    fn read_system() -> Option<Self> {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
        Some(Self { id, seconds: u64::try_from(since).ok()? })
    }
}

/// What the clocks of the machine say at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClockReading {
    /// In seconds since 1970.
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

    /// Returns how many seconds have passed since the last look, if the machine has run for all of them.
    fn elapsed_seconds(&self, reading: &ClockReading) -> Option<u64> {
        let (then, now) = (self.boot.as_ref()?, reading.boot.as_ref()?);
        if then.id != now.id {
            return None;
        }
        now.seconds.checked_sub(then.seconds)
    }

    /// Returns the note after a look at the clock.
    fn advance(self, reading: &ClockReading) -> Self {
        let (now, boot) = (reading.now, reading.boot.clone());
        let elapsed = self.elapsed_seconds(reading);
        let last = self.jump.map_or(self.trusted, |jump| jump.seen);
        let is_confirmed = elapsed.is_some_and(|elapsed| {
            now.saturating_sub(last).abs_diff(elapsed) <= MAX_STEADY_STEP.as_secs()
        });
        // So much time has passed in any case.
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

    /// Returns the time that is believed, which is never later than what the clock says.
    fn trusted_time(&self, reading: &ClockReading) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.trusted.min(reading.now))
    }
}

/// Notes what the clock of a home says now, and returns the time by which things may be removed. A home without a note
/// begins where most of its last revisions were made.
pub(crate) fn trusted_now(home: &Path, store: &dyn ChunkStore, now: SystemTime) -> SystemTime {
    trusted_at_reading(home, store, &ClockReading::at_time(now))
}

fn trusted_at_reading(home: &Path, store: &dyn ChunkStore, reading: &ClockReading) -> SystemTime {
    let file = home.join(CLOCK_RECORD_FILE);
    let known = read_clock_record(&file);
    let note = known.unwrap_or_else(|| initial_clock_record(store, reading.now)).advance(reading);
    store_record(&file, &note, reading);
    note.trusted_time(reading)
}

/// Returns the time by which things of a home may be removed, by what a running instance has noted lately. Without a note
/// nothing is old enough. Costs reading one small file.
pub(crate) fn recorded_trusted_now(home: &Path, now: SystemTime) -> SystemTime {
    let reading = ClockReading::at_time(now);
    let note = read_clock_record(&home.join(CLOCK_RECORD_FILE)).map(|note| note.advance(&reading));
    note.map_or(UNIX_EPOCH, |note| note.trusted_time(&reading))
}

/// Notes what the clock says now in a file that is kept for a vault, and returns the time by which things of the vault may be
/// removed. `snapshots` gives the times of all snapshots; they are asked for where the file does not tell enough.
///
/// # Errors
/// Those of `snapshots`.
pub(crate) fn trusted_for_vault<E>(
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
    let known = file.and_then(read_clock_record);
    let note = match known {
        Some(note) if note.elapsed_seconds(reading).is_some() => note.advance(reading),
        known => {
            // The last snapshot may have been made by the clock that is asked about.
            let mut times: Vec<u64> = snapshots()?.into_iter().map(unix_seconds).collect();
            times.sort_unstable();
            let witness = times.iter().rev().nth(1).or(times.first()).copied();
            let is_usual = witness.is_none_or(|witness| {
                reading.now.saturating_sub(witness) <= MAX_USUAL_SNAPSHOT_AGE.as_secs()
            });
            match known {
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
            // What is wrong with it is said where the note is written.
            fs::create_dir_all(folder).ok();
        }
        store_record(file, &note, reading);
    }
    Ok(note.trusted_time(reading))
}

/// Writes a note, and says so if the clock has jumped.
fn store_record(file: &Path, note: &ClockRecord, reading: &ClockReading) {
    if let Err(error) = write_clock_record(file, note) {
        tracing::warn!(file = %file.display(), reason = %error, "what the clock says is not noted");
    }
    // Said once for each jump.
    if note.jump.is_some_and(|jump| jump.steady == 0) {
        tracing::warn!(
            trusted = note.trusted,
            now = reading.now,
            "the clock has jumped, or nobody has looked for long: until it has gone on for a day, what is removed for its age \
             is judged by the time before"
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

/// Makes the first note of a home: a few revisions that a clock dated wrongly do not count.
fn initial_clock_record(store: &dyn ChunkStore, now: u64) -> ClockRecord {
    let revisions = store.ref_history(MAIN_BRANCH, None, REVISION_SAMPLE_COUNT).unwrap_or_default();
    let mut times: Vec<u64> =
        revisions.iter().map(|one| unix_seconds(one.update.updated_at)).collect();
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
        // Several times, and each time for less than a day.
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
        // A second jump is no day.
        let looks = [later, later + YEAR, later + 2 * YEAR];
        assert!(follow(&looks).iter().all(|trusted| *trusted == 1_000 * HOUR));
    }

    /// Moves `main` at some times, in seconds since 1970, in a new store.
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

    /// A collection while the clock is two years ahead drops no revision, also the first one of a home, and though a revision
    /// was made meanwhile; a day later it goes by the clock again.
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
        // Back where it was, and then really two years later.
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

    /// Looks at a clock that says `now` on a machine that has been running for `up`, since its `start`.
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
        // Nobody has looked for ten days, in which the machine ran.
        assert_eq!(trusted(look(start + 240 * HOUR, ("a", 10 + 240 * HOUR))), 240 * HOUR);
        // A jump for a moment, and a second one, move nothing but the time that has passed.
        let up = 10 + 240 * HOUR;
        assert_eq!(trusted(look(start + 2 * YEAR, ("a", up + 60))), 240 * HOUR + 60);
        assert_eq!(trusted(look(start + 3 * YEAR, ("a", up + 120))), 240 * HOUR + 120);
        assert_eq!(trusted(look(start + 241 * HOUR, ("a", up + HOUR))), 241 * HOUR);
        // A clock that was set right, and goes on for a day.
        assert_eq!(trusted(look(start + 2 * YEAR, ("a", up + 2 * HOUR))), 242 * HOUR);
        let later = look(start + 2 * YEAR + 24 * HOUR, ("a", up + 26 * HOUR));
        assert_eq!(trusted(later), 2 * YEAR + 24 * HOUR);
        // After another start, nothing confirms a step.
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
        // Also with a snapshot that the clock dated wrongly.
        assert_eq!(time(None, &[start - day, start, start + 2 * YEAR], &jumped), at(start));
        assert_eq!(time(None, &[start], &jumped), at(start));
        assert_eq!(time(None, &[start - 7 * day, start - day], &look(start, ("a", 5))), at(start));
        assert_eq!(time(None, &[], &look(start, ("a", 5))), at(start));
        // From a note on, the time since the machine's start tells, and no snapshot is read.
        let file = Some(&*file);
        assert_eq!(time(file, &[start - day], &look(start, ("a", 5))), at(start));
        let unread = |reading: &ClockReading| trusted_vault_time(file, || Err(()), reading);
        assert_eq!(unread(&look(start + 2 * day, ("a", 65))), Ok(at(start + 60)));
        assert_eq!(unread(&look(start + day, ("a", 5 + day))), Ok(at(start + day)));
        // After another start, they are.
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
