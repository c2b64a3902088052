//! The history of refs: the author, time and target of each update, and the rules for its retention.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::interface::chunk_batch::RefUpdate;

/// An update of a ref, as recorded in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// The sequence number among all updates of all refs of the store, ascending.
    pub sequence: u64,
    /// The update of the ref.
    pub update: RefUpdate,
}

/// The retention rule for revisions. The newest revision of a ref is always retained.
///
/// All revisions younger than `full_period` are retained. Of older ones, the newest revision is retained of each of the
/// last `hourly_count` hours, `daily_count` days and `weekly_count` weeks that have one, counted per ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevisionRetention {
    /// The period in which every revision is retained. Default 24 hours.
    pub full_period: Duration,
    /// The number of hours for which one revision each is retained. Default 48.
    pub hourly_count: u32,
    /// The number of days for which one revision each is retained. Default 30.
    pub daily_count: u32,
    /// The number of weeks for which one revision each is retained. Default 52.
    pub weekly_count: u32,
}

impl Default for RevisionRetention {
    fn default() -> Self {
        Self {
            full_period: Duration::from_hours(24),
            hourly_count: 48,
            daily_count: 30,
            weekly_count: 52,
        }
    }
}

impl RevisionRetention {
    /// Retains only the newest revision of each ref.
    pub const KEEP_NEWEST: Self =
        Self { full_period: Duration::ZERO, hourly_count: 0, daily_count: 0, weekly_count: 0 };
    /// Retains every revision.
    pub const KEEP_ALL: Self =
        Self { full_period: Duration::MAX, hourly_count: 0, daily_count: 0, weekly_count: 0 };

    /// Returns the retained revisions of one ref; the input is sequence and time of each, newest first.
    #[must_use]
    pub fn select_retained(
        &self,
        revisions: impl Iterator<Item = (u64, SystemTime)>,
        now: SystemTime,
    ) -> BTreeSet<u64> {
        let spans = [
            (3_600, self.hourly_count),
            (24 * 3_600, self.daily_count),
            (7 * 24 * 3_600, self.weekly_count),
        ];
        // For each span: the slots seen so far, and their maximum number. Clocks differ and can be set back, so the
        // same slot can recur after another one.
        let mut slots = spans.map(|(seconds, count)| (seconds, BTreeSet::new(), count as usize));
        let mut retained_sequences = BTreeSet::new();
        for (position, (sequence, at)) in revisions.enumerate() {
            let age = now.duration_since(at).unwrap_or_default();
            if position == 0 || age < self.full_period {
                retained_sequences.insert(sequence);
            }
            let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            for (span, periods, most) in &mut slots {
                if periods.len() < *most && periods.insert(seconds / *span) {
                    retained_sequences.insert(sequence);
                }
            }
        }
        retained_sequences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(retention: RevisionRetention, ages_in_hours: &[u64]) -> Vec<u64> {
        let now = UNIX_EPOCH + Duration::from_hours(24 * 7 * 1_000);
        let revisions = ages_in_hours.iter().enumerate().map(|(index, hours)| {
            (1_000 - index as u64, now - Duration::from_hours(*hours) - Duration::from_secs(1))
        });
        let retained_sequences = retention.select_retained(revisions, now);
        // As positions in the list, newest first.
        retained_sequences.iter().rev().map(|sequence| 1_000 - sequence).collect()
    }

    #[test]
    fn the_newest_revision_is_always_kept() {
        assert_eq!(kept(RevisionRetention::KEEP_NEWEST, &[5_000, 6_000]), [0]);
        assert_eq!(kept(RevisionRetention::KEEP_NEWEST, &[]), [0_u64; 0]);
    }

    #[test]
    fn young_ones_are_kept_and_old_ones_thinned() {
        let retention = RevisionRetention {
            full_period: Duration::from_hours(3),
            hourly_count: 0,
            daily_count: 3,
            weekly_count: 0,
        };
        // The days by age: 0 | 0 0 | 1 1 | 3 | 8.
        let ages = [0, 1, 2, 10, 20, 25, 40, 80, 200];
        assert_eq!(kept(retention, &ages), [0, 1, 2, 5, 7], "two young ones, then one a day");
        let weekly = RevisionRetention { weekly_count: 2, ..RevisionRetention::KEEP_NEWEST };
        assert_eq!(kept(weekly, &ages), [0, 8]);
    }

    #[test]
    fn clocks_that_differ_use_up_no_more_slots() {
        let now = UNIX_EPOCH + Duration::from_hours(24 * 7 * 1_000);
        let retention = RevisionRetention { daily_count: 3, ..RevisionRetention::KEEP_NEWEST };
        // Two authors whose clocks differ by a minute save in turn around midnight; before that, there is one save per
        // day.
        let midnight = now - Duration::from_hours(24);
        let around =
            (0..50).map(|n| midnight - Duration::from_secs(30) + Duration::from_mins(n % 2));
        let before = (2..6).map(|days| now - Duration::from_hours(24 * days + 1));
        let times: Vec<SystemTime> = around.chain(before).collect();
        let revisions = times.iter().enumerate().map(|(at, time)| (1_000 - at as u64, *time));
        let retained_sequences = retention.select_retained(revisions, now);
        assert_eq!(
            retained_sequences.iter().rev().map(|one| 1_000 - one).collect::<Vec<_>>(),
            [0, 1, 50]
        );
    }
}
