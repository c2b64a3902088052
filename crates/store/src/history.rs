//! The history of refs: who moved what when, and how long that is kept.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::batch::RefUpdate;

/// One move of a ref, as the store remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Its place among all moves of all refs of the store, ascending.
    pub sequence: u64,
    /// The move.
    pub update: RefUpdate,
}

/// How long revisions are kept. The newest revision of a ref is always kept.
///
/// Everything younger than `all` is kept; of what is older, the newest revision of each of the last `hourly` hours,
/// `daily` days and `weekly` weeks that have one, counted per ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long every revision is kept. Default 24 hours.
    pub all: Duration,
    /// For how many hours one revision is kept. Default 48.
    pub hourly: u32,
    /// For how many days one revision is kept. Default 30.
    pub daily: u32,
    /// For how many weeks one revision is kept. Default 52.
    pub weekly: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { all: Duration::from_hours(24), hourly: 48, daily: 30, weekly: 52 }
    }
}

impl Retention {
    /// Keeps nothing but the newest revision of each ref.
    pub const NONE: Self = Self { all: Duration::ZERO, hourly: 0, daily: 0, weekly: 0 };
    /// Keeps every revision.
    pub const ALL: Self = Self { all: Duration::MAX, hourly: 0, daily: 0, weekly: 0 };

    /// Returns which revisions of one ref are kept, given as sequence and time, newest first.
    #[must_use]
    pub fn kept(
        &self,
        revisions: impl Iterator<Item = (u64, SystemTime)>,
        now: SystemTime,
    ) -> BTreeSet<u64> {
        let spans = [(3_600, self.hourly), (24 * 3_600, self.daily), (7 * 24 * 3_600, self.weekly)];
        // Of each span: the slots seen so far, and how many there may be. Clocks differ and are set back, so that the
        // same slot can come again after another one.
        let mut slots = spans.map(|(seconds, count)| (seconds, BTreeSet::new(), count as usize));
        let mut kept = BTreeSet::new();
        for (position, (sequence, at)) in revisions.enumerate() {
            let age = now.duration_since(at).unwrap_or_default();
            if position == 0 || age < self.all {
                kept.insert(sequence);
            }
            let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            for (span, seen, most) in &mut slots {
                if seen.len() < *most && seen.insert(seconds / *span) {
                    kept.insert(sequence);
                }
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(retention: Retention, ages_in_hours: &[u64]) -> Vec<u64> {
        let now = UNIX_EPOCH + Duration::from_hours(24 * 7 * 1_000);
        let revisions = ages_in_hours.iter().enumerate().map(|(index, hours)| {
            (1_000 - index as u64, now - Duration::from_hours(*hours) - Duration::from_secs(1))
        });
        let kept = retention.kept(revisions, now);
        // As positions in the list, newest first.
        kept.iter().rev().map(|sequence| 1_000 - sequence).collect()
    }

    #[test]
    fn the_newest_revision_is_always_kept() {
        assert_eq!(kept(Retention::NONE, &[5_000, 6_000]), [0]);
        assert_eq!(kept(Retention::NONE, &[]), [0_u64; 0]);
    }

    #[test]
    fn young_ones_are_kept_and_old_ones_thinned() {
        let retention = Retention { all: Duration::from_hours(3), hourly: 0, daily: 3, weekly: 0 };
        // Days by age: 0 | 0 0 | 1 1 | 3 | 8.
        let ages = [0, 1, 2, 10, 20, 25, 40, 80, 200];
        assert_eq!(kept(retention, &ages), [0, 1, 2, 5, 7], "two young ones, then one a day");
        let weekly = Retention { weekly: 2, ..Retention::NONE };
        assert_eq!(kept(weekly, &ages), [0, 8]);
    }

    #[test]
    fn clocks_that_differ_use_up_no_more_slots() {
        let now = UNIX_EPOCH + Duration::from_hours(24 * 7 * 1_000);
        let retention = Retention { daily: 3, ..Retention::NONE };
        // Two authors whose clocks differ by a minute save in turn around midnight; before that, a save a day.
        let midnight = now - Duration::from_hours(24);
        let around =
            (0..50).map(|n| midnight - Duration::from_secs(30) + Duration::from_mins(n % 2));
        let before = (2..6).map(|days| now - Duration::from_hours(24 * days + 1));
        let times: Vec<SystemTime> = around.chain(before).collect();
        let revisions = times.iter().enumerate().map(|(at, time)| (1_000 - at as u64, *time));
        let kept = retention.kept(revisions, now);
        assert_eq!(kept.iter().rev().map(|one| 1_000 - one).collect::<Vec<_>>(), [0, 1, 50]);
    }
}
