//! The clock by which things are removed for their age.
//!
//! A clock that jumps ahead, be it for seconds, makes everything look old. So the time by which history, leases, versions and
//! logins are removed is not what the clock says now, but what it has been seen to say for a while. What it was seen to say
//! is noted in the home's file `clock`, by a running instance every few minutes, and by each command that removes.
//!
//! Invariants
//! * The time that is returned is never later than what the clock says.
//! * It follows the clock in steps of at most [`STEADY_STEP`]; over a longer one it stands still until the clock has been seen
//!   to go on from there for [`PROBATION`].
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

use crate::base::MAIN;

/// How often a running instance looks at the clock.
pub(crate) const LOOK_EVERY: Duration = Duration::from_mins(10);
/// A longer step between two looks is a jump, or a time in which nobody looked.
const STEADY_STEP: Duration = Duration::from_hours(1);
/// How long a clock must have gone on from where it jumped to until it is believed.
const PROBATION: Duration = Duration::from_hours(24);
/// What the time between two looks counts of that at most: a second jump is no time.
const LONGEST_CREDIT: Duration = Duration::from_hours(6);
/// Revisions among which the first note of a home finds its time.
const WITNESSES: usize = 101;
/// The file with the note.
const NOTE_FILE: &str = "clock";

/// What the clock was seen to say. Times are in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockNote {
    /// The last time that was believed.
    trusted: u64,
    /// What was seen since the clock has jumped from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jump: Option<ClockJump>,
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

impl ClockNote {
    /// Returns the note after a look at the clock.
    fn after(self, now: u64) -> Self {
        let step = now.saturating_sub(self.trusted);
        if step <= STEADY_STEP.as_secs() {
            return Self { trusted: now, jump: None };
        }
        let steady = match self.jump {
            Some(ClockJump { seen, steady }) if seen <= now => {
                steady + (now - seen).min(LONGEST_CREDIT.as_secs())
            }
            _ => 0,
        };
        if steady >= PROBATION.as_secs() {
            return Self { trusted: now, jump: None };
        }
        Self { jump: Some(ClockJump { seen: now, steady }), ..self }
    }
}

/// Notes what the clock of a home says now, and returns the time by which things may be removed. A home without a note
/// begins where most of its last revisions were made.
pub(crate) fn trusted_now(home: &Path, store: &dyn ChunkStore, now: SystemTime) -> SystemTime {
    let file = home.join(NOTE_FILE);
    let seconds = seconds_of(now);
    let known = read(&file);
    let note = known.unwrap_or_else(|| first_note(store, seconds)).after(seconds);
    if known != Some(note)
        && let Err(error) = write(&file, note)
    {
        tracing::warn!(file = %file.display(), reason = %error, "what the clock says is not noted");
    }
    // Said once for each jump.
    if note.jump.is_some_and(|jump| jump.steady == 0) {
        tracing::warn!(
            trusted = note.trusted,
            now = seconds,
            "the clock has jumped, or nobody has looked for long: until it has gone on for a day, what is removed for its age \
             is judged by the time before"
        );
    }
    UNIX_EPOCH + Duration::from_secs(note.trusted.min(seconds))
}

fn seconds_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(file: &Path) -> Option<ClockNote> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn write(file: &Path, note: ClockNote) -> std::io::Result<()> {
    let new = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
    serde_json::to_writer(new.as_file(), &note).map_err(std::io::Error::other)?;
    new.persist(file)?;
    Ok(())
}

/// Makes the first note of a home: a few revisions that a clock dated wrongly do not count.
fn first_note(store: &dyn ChunkStore, now: u64) -> ClockNote {
    let revisions = store.history(MAIN, None, WITNESSES).unwrap_or_default();
    let mut times: Vec<u64> = revisions.iter().map(|one| seconds_of(one.update.at)).collect();
    times.sort_unstable();
    let trusted = times.get(times.len() / 2).copied().unwrap_or(now).min(now);
    ClockNote { trusted, jump: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use tympan_store::{
        Batch, CollectMode, CollectOptions, LocalStore, Map, RefUpdate, Root, Value,
    };

    use super::*;

    const HOUR: u64 = 3_600;
    const YEAR: u64 = 365 * 24 * HOUR;

    fn follow(looks: &[u64]) -> Vec<u64> {
        let mut note = ClockNote { trusted: 1_000 * HOUR, jump: None };
        let step = |look: &u64| {
            note = note.after(*look);
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
        let store = LocalStore::memory().unwrap();
        let mut expected = None;
        for (number, seconds) in times.iter().enumerate() {
            let mut batch = Batch::new();
            let edits = BTreeMap::from([(
                format!("content\u{1}page {number}\0").into_bytes(),
                Some(Value { bytes: b"x".to_vec().into(), body: None }),
            )]);
            let map = Map::EMPTY.edit(&store, &mut batch, edits).unwrap();
            let maps = BTreeMap::from([("content".to_owned(), map)]);
            let new = Some(Root { maps }.write(&mut batch).unwrap());
            batch.move_ref(RefUpdate {
                name: MAIN.to_owned(),
                expected,
                new,
                at: UNIX_EPOCH + Duration::from_secs(*seconds),
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
            let trusted = trusted_now(home.path(), &store, now);
            assert!(trusted <= now);
            let options =
                CollectOptions { mode: CollectMode::DryRun, ..CollectOptions::at(trusted) };
            let go_on = &mut |_: &_| ControlFlow::Continue(());
            store.collect(&options, go_on).unwrap().revisions_dropped
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
}
