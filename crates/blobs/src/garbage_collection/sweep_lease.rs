//! The sweep lease: one process at a time sweeps a storage.
//!
//! A bucket has no rename: blobs that two sweepers move at the same moment could be lost between them. So each sweeper
//! acquires a lease: a note with the next number, which only one of several concurrent processes can create, and which
//! it renews while it continues.
//!
//! Invariants
//! * The lease belongs to the note with the highest number, until the time in it.
//! * The note with the highest number stays: a number never occurs twice.
//!
//! On failure: the lease of a process that died ends after its duration plus [`MAX_CLOCK_SKEW`]. A process that was
//! suspended finds out that it lost its lease before it moves anything.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::id_sorter::{from_unix_micros, to_unix_micros};
use super::json_note::{read_note, write_json_note};
use super::sweep_options::SweepOptions;
use crate::{Error, Result, WriteBlobs};

const SWEEP_NOTE_PREFIX: &str = "sweep-";
/// Maximum clock skew between machines, including the transfer time of a request.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);
/// Maximum number of attempts to acquire a lease that others acquire concurrently.
const MAX_ACQUIRE_ATTEMPTS: usize = 8;

/// The note of a lease.
#[derive(Debug, Serialize, Deserialize)]
struct SweepLeaseNote {
    /// The name of the sweeper, if at most one process uses it.
    sweeper: Option<String>,
    until: u64,
}

/// The lease of this process.
pub(super) struct SweepLease<'a> {
    storage: &'a dyn WriteBlobs,
    options: &'a SweepOptions,
    number: u64,
    renewed_at: SystemTime,
}

/// The result of acquiring the lease.
pub(super) enum SweepLeaseOutcome<'a> {
    Acquired(SweepLease<'a>),
    /// Another process sweeps, at most until this time.
    Occupied(SystemTime),
}

impl<'a> SweepLease<'a> {
    /// Acquires the lease, unless another process holds it.
    pub(super) fn acquire(
        storage: &'a dyn WriteBlobs,
        options: &'a SweepOptions,
    ) -> Result<SweepLeaseOutcome<'a>> {
        for _ in 0..MAX_ACQUIRE_ATTEMPTS {
            let now = options.clock.now();
            let last = latest_lease_number(storage)?;
            if let Some((number, written)) = last {
                match read_note::<SweepLeaseNote>(storage, &lease_note_name(number)) {
                    Ok(None) => continue,
                    Ok(Some(note)) if is_lease_free(&note, options, now) => {}
                    Ok(Some(note)) => {
                        return Ok(SweepLeaseOutcome::Occupied(from_unix_micros(note.until)));
                    }
                    // The writer of a malformed note has the same duration as any other.
                    Err(Error::MalformedNote { .. })
                        if written + options.lease_duration + MAX_CLOCK_SKEW < now => {}
                    Err(Error::MalformedNote { .. }) => {
                        return Ok(SweepLeaseOutcome::Occupied(written + options.lease_duration));
                    }
                    Err(error) => return Err(error),
                }
            }
            let number = last.map_or(1, |(number, _)| number + 1);
            let turn = Self { storage, options, number, renewed_at: now };
            let note = serde_json::to_vec(&turn.lease_note(now + options.lease_duration));
            let note = note.map_err(Error::NoteEncoding)?;
            if !storage.create_note(&lease_note_name(number), &note)? {
                continue;
            }
            // It may have been created after a higher one that has already expired.
            if !turn.is_latest()? {
                storage.delete_note(&lease_note_name(number))?;
                continue;
            }
            turn.remove_former_notes()?;
            return Ok(SweepLeaseOutcome::Acquired(turn));
        }
        Ok(SweepLeaseOutcome::Occupied(options.clock.now() + options.lease_duration))
    }

    /// Returns true if this process still holds the lease, and renews the lease when due.
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

    /// Releases the lease.
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

/// Returns true if a lease has expired, or belonged to the same sweeper before it died.
fn is_lease_free(note: &SweepLeaseNote, options: &SweepOptions, now: SystemTime) -> bool {
    let is_own = note.sweeper.is_some() && note.sweeper == options.sweeper_name;
    is_own || note.until == 0 || from_unix_micros(note.until) + MAX_CLOCK_SKEW < now
}

fn lease_note_name(number: u64) -> String {
    format!("{SWEEP_NOTE_PREFIX}{number}")
}

fn list_lease_numbers(storage: &dyn WriteBlobs) -> Result<impl Iterator<Item = (u64, SystemTime)>> {
    let notes = storage.list_notes(SWEEP_NOTE_PREFIX)?.into_iter();
    Ok(notes
        .filter_map(|(name, at)| Some((name.strip_prefix(SWEEP_NOTE_PREFIX)?.parse().ok()?, at))))
}

fn latest_lease_number(storage: &dyn WriteBlobs) -> Result<Option<(u64, SystemTime)>> {
    Ok(list_lease_numbers(storage)?.max_by_key(|(number, _)| *number))
}
