//! Whose turn it is to sweep: one process at a time sweeps a place.
//!
//! A bucket has no rename: what two sweepers move at the same moment could be lost between them. So each takes a turn: a
//! note with the next number, which only one of those who try can create, and which it renews while it goes on.
//!
//! Invariants
//! * The turn is that of the note with the highest number, until the time that it names.
//! * The note with the highest number stays: a number never comes twice.
//!
//! On failure: the turn of a process that died is over after its life and [`MAX_CLOCK_SKEW`]. One that stood still finds out that it
//! lost its turn before it moves anything.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::id_sorter::{from_unix_micros, to_unix_micros};
use super::member::{read_note, write_json_note};
use super::sweep::SweepOptions;
use crate::{Error, Result, WriteBlobs};

const SWEEP_NOTE_PREFIX: &str = "sweep-";
/// What the clocks of machines may differ by, with how long a request may be on its way.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// How often a turn that others take is looked for anew.
const MAX_ACQUIRE_ATTEMPTS: usize = 8;

/// What tells the time.
#[derive(Clone)]
pub struct SweepClock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl SweepClock {
    /// Returns a clock that asks `now`.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl fmt::Debug for SweepClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// The note of a turn.
#[derive(Debug, Serialize, Deserialize)]
struct SweepLeaseNote {
    /// Who sweeps, if that is one process at most.
    sweeper: Option<String>,
    until: u64,
}

/// The turn of this process.
pub(super) struct SweepLease<'a> {
    storage: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    number: u64,
    renewed_at: SystemTime,
}

/// What became of asking for the turn.
pub(super) enum SweepLeaseOutcome<'a> {
    Acquired(SweepLease<'a>),
    /// Somebody else sweeps, at most until then.
    Occupied(SystemTime),
}

impl<'a> SweepLease<'a> {
    /// Takes the turn, unless somebody has it.
    pub(super) fn acquire(
        place: &'a dyn WriteBlobs,
        options: &'a SweepOptions,
    ) -> Result<SweepLeaseOutcome<'a>> {
        for _ in 0..MAX_ACQUIRE_ATTEMPTS {
            let now = options.clock.now();
            let last = latest_lease_number(place)?;
            if let Some((number, written)) = last {
                match read_note::<SweepLeaseNote>(place, &lease_note_name(number)) {
                    Ok(None) => continue,
                    Ok(Some(note)) if is_lease_free(&note, options, now) => {}
                    Ok(Some(note)) => {
                        return Ok(SweepLeaseOutcome::Occupied(from_unix_micros(note.until)));
                    }
                    // Whoever wrote it has no longer than any other.
                    Err(Error::MalformedNote { .. })
                        if written + options.lease_duration + MAX_CLOCK_SKEW < now => {}
                    Err(Error::MalformedNote { .. }) => {
                        return Ok(SweepLeaseOutcome::Occupied(written + options.lease_duration));
                    }
                    Err(error) => return Err(error),
                }
            }
            let number = last.map_or(1, |(number, _)| number + 1);
            let turn = Self { storage: place, options, number, renewed_at: now };
            let note = serde_json::to_vec(&turn.lease_note(now + options.lease_duration));
            let note = note.map_err(|error| Error::Source(error.into()))?;
            if !place.create_note(&lease_note_name(number), &note)? {
                continue;
            }
            // It may have been created behind a higher one whose time has come and gone.
            if !turn.is_latest()? {
                place.delete_note(&lease_note_name(number))?;
                continue;
            }
            turn.remove_former_notes()?;
            return Ok(SweepLeaseOutcome::Acquired(turn));
        }
        Ok(SweepLeaseOutcome::Occupied(options.clock.now() + options.lease_duration))
    }

    /// Tells whether the turn is still that of this process, and renews it where it is time.
    pub(super) fn renew_if_due(&mut self) -> Result<bool> {
        let now = self.options.clock.now();
        let due = self.renewed_at + self.options.lease_duration / 4;
        if (self.renewed_at..due).contains(&now) {
            return Ok(true);
        }
        self.write_lease_note(now + self.options.lease_duration)?;
        self.renewed_at = now;
        self.is_latest()
    }

    /// Lets others sweep.
    pub(super) fn release(self) -> Result<()> {
        if self.is_latest()? { self.write_lease_note(SystemTime::UNIX_EPOCH) } else { Ok(()) }
    }

    fn lease_note(&self, until: SystemTime) -> SweepLeaseNote {
        SweepLeaseNote { sweeper: self.options.sweeper_name.clone(), until: to_unix_micros(until) }
    }

    fn write_lease_note(&self, until: SystemTime) -> Result<()> {
        write_json_note(self.storage, &lease_note_name(self.number), &self.lease_note(until))
    }

    fn is_latest(&self) -> Result<bool> {
        Ok(latest_lease_number(self.storage)?.is_some_and(|(last, _)| last == self.number))
    }

    fn remove_former_notes(&self) -> Result<()> {
        for (number, _) in list_lease_numbers(self.storage)? {
            if number < self.number {
                self.storage.delete_note(&lease_note_name(number))?;
            }
        }
        Ok(())
    }
}

/// Tells whether a turn is over, or was that of this very process before it died.
fn is_lease_free(note: &SweepLeaseNote, options: &SweepOptions, now: SystemTime) -> bool {
    let is_own = note.sweeper.is_some() && note.sweeper == options.sweeper_name;
    is_own || note.until == 0 || from_unix_micros(note.until) + MAX_CLOCK_SKEW < now
}

fn lease_note_name(number: u64) -> String {
    format!("{SWEEP_NOTE_PREFIX}{number}")
}

fn list_lease_numbers(place: &dyn WriteBlobs) -> Result<impl Iterator<Item = (u64, SystemTime)>> {
    let notes = place.list_notes(SWEEP_NOTE_PREFIX)?.into_iter();
    Ok(notes
        .filter_map(|(name, at)| Some((name.strip_prefix(SWEEP_NOTE_PREFIX)?.parse().ok()?, at))))
}

fn latest_lease_number(place: &dyn WriteBlobs) -> Result<Option<(u64, SystemTime)>> {
    Ok(list_lease_numbers(place)?.max_by_key(|(number, _)| *number))
}
