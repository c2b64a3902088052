//! Whose turn it is to sweep: one process at a time sweeps a place.
//!
//! A bucket has no rename: what two sweepers move at the same moment could be lost between them. So each takes a turn: a
//! note with the next number, which only one of those who try can create, and which it renews while it goes on.
//!
//! Invariants
//! * The turn is that of the note with the highest number, until the time that it names.
//! * The note with the highest number stays: a number never comes twice.
//!
//! On failure: the turn of a process that died is over after its life and [`SKEW`]. One that stood still finds out that it
//! lost its turn before it moves anything.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::member::{read_note, write_json};
use super::sorter::{micros_of, time_of};
use super::sweep::SweepOptions;
use crate::{Error, Result, WriteBlobs};

const SWEEP: &str = "sweep-";
/// What the clocks of machines may differ by, with how long a request may be on its way.
const SKEW: Duration = Duration::from_mins(5);
/// How often a turn that others take is looked for anew.
const MAX_LOOKS: usize = 8;

/// What tells the time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// Returns a clock that asks `now`.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The note of a turn.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Who sweeps, if that is one process at most.
    sweeper: Option<String>,
    until: u64,
}

/// The turn of this process.
pub(super) struct Turn<'a> {
    place: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    number: u64,
    renewed: SystemTime,
}

/// What became of asking for the turn.
pub(super) enum Asked<'a> {
    Mine(Turn<'a>),
    /// Somebody else sweeps, at most until then.
    Others(SystemTime),
}

impl<'a> Turn<'a> {
    /// Takes the turn, unless somebody has it.
    pub(super) fn take(place: &'a dyn WriteBlobs, options: &'a SweepOptions) -> Result<Asked<'a>> {
        for _ in 0..MAX_LOOKS {
            let now = options.clock.now();
            let last = last_number(place)?;
            if let Some((number, written)) = last {
                match read_note::<Note>(place, &name_of(number)) {
                    Ok(None) => continue,
                    Ok(Some(note)) if is_free(&note, options, now) => {}
                    Ok(Some(note)) => return Ok(Asked::Others(time_of(note.until))),
                    // Whoever wrote it has no longer than any other.
                    Err(Error::NoteMalformed { .. }) if written + options.turn + SKEW < now => {}
                    Err(Error::NoteMalformed { .. }) => {
                        return Ok(Asked::Others(written + options.turn));
                    }
                    Err(error) => return Err(error),
                }
            }
            let number = last.map_or(1, |(number, _)| number + 1);
            let turn = Self { place, options, number, renewed: now };
            let note = serde_json::to_vec(&turn.note(now + options.turn));
            let note = note.map_err(|error| Error::Source(error.into()))?;
            if !place.create_note(&name_of(number), &note)? {
                continue;
            }
            // It may have been created behind a higher one whose time has come and gone.
            if !turn.is_last()? {
                place.delete_note(&name_of(number))?;
                continue;
            }
            turn.remove_former()?;
            return Ok(Asked::Mine(turn));
        }
        Ok(Asked::Others(options.clock.now() + options.turn))
    }

    /// Tells whether the turn is still that of this process, and renews it where it is time.
    pub(super) fn go_on(&mut self) -> Result<bool> {
        let now = self.options.clock.now();
        let due = self.renewed + self.options.turn / 4;
        if (self.renewed..due).contains(&now) {
            return Ok(true);
        }
        self.write(now + self.options.turn)?;
        self.renewed = now;
        self.is_last()
    }

    /// Lets others sweep.
    pub(super) fn end(self) -> Result<()> {
        if self.is_last()? { self.write(SystemTime::UNIX_EPOCH) } else { Ok(()) }
    }

    fn note(&self, until: SystemTime) -> Note {
        Note { sweeper: self.options.sweeper.clone(), until: micros_of(until) }
    }

    fn write(&self, until: SystemTime) -> Result<()> {
        write_json(self.place, &name_of(self.number), &self.note(until))
    }

    fn is_last(&self) -> Result<bool> {
        Ok(last_number(self.place)?.is_some_and(|(last, _)| last == self.number))
    }

    fn remove_former(&self) -> Result<()> {
        for (number, _) in numbers(self.place)? {
            if number < self.number {
                self.place.delete_note(&name_of(number))?;
            }
        }
        Ok(())
    }
}

/// Tells whether a turn is over, or was that of this very process before it died.
fn is_free(note: &Note, options: &SweepOptions, now: SystemTime) -> bool {
    let is_own = note.sweeper.is_some() && note.sweeper == options.sweeper;
    is_own || note.until == 0 || time_of(note.until) + SKEW < now
}

fn name_of(number: u64) -> String {
    format!("{SWEEP}{number}")
}

fn numbers(place: &dyn WriteBlobs) -> Result<impl Iterator<Item = (u64, SystemTime)>> {
    let notes = place.list_notes(SWEEP)?.into_iter();
    Ok(notes.filter_map(|(name, at)| Some((name.strip_prefix(SWEEP)?.parse().ok()?, at))))
}

fn last_number(place: &dyn WriteBlobs) -> Result<Option<(u64, SystemTime)>> {
    Ok(numbers(place)?.max_by_key(|(number, _)| *number))
}
