//! Which snapshots to keep: the last of each of so many hours, days, weeks, months and years in which there was one.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use crate::error::{Error, Result};
use crate::vault::snapshot::VaultSnapshot;

/// How many to keep of what. Nothing asked for keeps everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The last ones.
    pub last: u32,
    /// The last of an hour.
    pub hourly: u32,
    /// The last of a day.
    pub daily: u32,
    /// The last of a week.
    pub weekly: u32,
    /// The last of a month.
    pub monthly: u32,
    /// The last of a year.
    pub yearly: u32,
    /// Those with one of these tags.
    pub tags: Vec<String>,
}

impl RetentionPolicy {
    /// Reads a list such as `7d,4w,12m,3y`: `h`ours, `d`ays, `w`eeks, `m`onths, `y`ears; a number alone stands for the
    /// last ones.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], which says what was not understood.
    pub fn parse(text: &str) -> Result<Self> {
        let mut keep = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            let unit = part.get(digits.len()..).unwrap_or_default();
            let refused = || {
                let text = format!(
                    "`{part}` says not how much to keep; write `7d,4w,12m` with h, d, w, m or y"
                );
                Error::InvalidRequest(text)
            };
            let number = digits.parse().map_err(|_| refused())?;
            *match unit {
                "" => &mut keep.last,
                "h" => &mut keep.hourly,
                "d" => &mut keep.daily,
                "w" => &mut keep.weekly,
                "m" => &mut keep.monthly,
                "y" => &mut keep.yearly,
                _ => return Err(refused()),
            } = number;
        }
        Ok(keep)
    }

    /// Tells whether nothing is asked for.
    #[must_use]
    pub fn keeps_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionReason {
    /// Nothing says that any may go.
    Everything,
    /// It is one of the last.
    Last,
    /// It is the last of an hour.
    Hour,
    /// It is the last of a day.
    Day,
    /// It is the last of a week.
    Week,
    /// It is the last of a month.
    Month,
    /// It is the last of a year.
    Year,
    /// It has a tag.
    Tag,
}

type PeriodKey = fn(&DateTime) -> (i32, i32, i32);

/// Tells for each snapshot why it is kept; those without a reason may go. Snapshots of one host and the same paths are
/// counted together.
#[must_use]
pub fn apply_retention<'a>(
    snapshots: &'a [VaultSnapshot],
    keep: &RetentionPolicy,
) -> Vec<(&'a VaultSnapshot, Vec<RetentionReason>)> {
    let mut groups: BTreeMap<(&str, BTreeSet<&str>), Vec<&VaultSnapshot>> = BTreeMap::new();
    for snapshot in snapshots {
        let paths = snapshot.paths.iter().map(String::as_str).collect();
        groups.entry((&snapshot.hostname, paths)).or_default().push(snapshot);
    }
    groups.into_values().flat_map(|group| apply_retention_to_group(group, keep)).collect()
}

fn apply_retention_to_group<'a>(
    mut group: Vec<&'a VaultSnapshot>,
    keep: &RetentionPolicy,
) -> Vec<(&'a VaultSnapshot, Vec<RetentionReason>)> {
    group.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.timestamp()));
    let periods: [(u32, RetentionReason, PeriodKey); 5] = [
        (keep.hourly, RetentionReason::Hour, |at| {
            (at.year().into(), at.day_of_year().into(), at.hour().into())
        }),
        (keep.daily, RetentionReason::Day, |at| (at.year().into(), at.day_of_year().into(), 0)),
        (keep.weekly, RetentionReason::Week, |at| {
            let week = at.date().iso_week_date();
            (week.year().into(), week.week().into(), 0)
        }),
        (keep.monthly, RetentionReason::Month, |at| (at.year().into(), at.month().into(), 0)),
        (keep.yearly, RetentionReason::Year, |at| (at.year().into(), 0, 0)),
    ];
    let mut left = periods.map(|(count, ..)| (count, None));
    let mut last = keep.last;
    let mut chosen = Vec::new();
    for snapshot in group {
        let mut reasons = Vec::new();
        if keep.keeps_everything() {
            reasons.push(RetentionReason::Everything);
        }
        if last > 0 {
            last -= 1;
            reasons.push(RetentionReason::Last);
        }
        if snapshot.tags().iter().any(|tag| keep.tags.contains(tag)) {
            reasons.push(RetentionReason::Tag);
        }
        let at = local_time(snapshot);
        for ((_, reason, period), (count, before)) in periods.iter().zip(&mut left) {
            let this = Some(period(&at));
            if *count > 0 && *before != this {
                *count -= 1;
                *before = this;
                reasons.push(*reason);
            }
        }
        chosen.push((snapshot, reasons));
    }
    chosen
}

/// Returns what the clock of the snapshot's host said.
fn local_time(snapshot: &VaultSnapshot) -> DateTime {
    // The offset is left out: a day is a day where it was made.
    let text = snapshot.time.get(..19).unwrap_or_default();
    text.parse().unwrap_or_else(|_| jiff::tz::TimeZone::UTC.to_datetime(snapshot.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VaultObjectId;

    fn snapshot(time: &str) -> VaultSnapshot {
        let json =
            format!(r#"{{"time":"{time}","tree":"{}","paths":["/a"]}}"#, VaultObjectId::default());
        serde_json::from_str(&json).unwrap()
    }

    fn check(keep: &str, times: &[&str], kept: &[&str]) {
        let snapshots: Vec<VaultSnapshot> = times.iter().map(|time| snapshot(time)).collect();
        let chosen = apply_retention(&snapshots, &RetentionPolicy::parse(keep).unwrap());
        let mut found: Vec<&str> = chosen
            .iter()
            .filter(|(_, reasons)| !reasons.is_empty())
            .map(|(snapshot, _)| snapshot.time.as_str())
            .collect();
        found.sort_unstable();
        assert_eq!(found, kept, "{keep}");
    }

    #[test]
    fn the_last_of_each_period_that_has_one_is_kept() {
        let times = [
            "2026-01-01T08:00:00Z",
            "2026-01-01T09:00:00Z",
            "2026-03-05T10:00:00Z",
            "2026-03-05T10:30:00Z",
            "2026-03-07T10:00:00Z",
        ];
        check("1", &times, &times[4..]);
        check("2d", &times, &times[3..]);
        // Days without a snapshot do not count.
        check("3d", &times, &[times[1], times[3], times[4]]);
        check("2m", &times, &[times[1], times[4]]);
        check("9h", &times, &[times[0], times[1], times[3], times[4]]);
        check("1w", &times, &times[4..]);
        check("1y,2", &times, &times[3..]);
        check("", &times, &times);
        assert!(RetentionPolicy::parse("7x").is_err() && RetentionPolicy::parse("d").is_err());
    }

    #[test]
    fn a_day_is_a_day_where_it_was_made() {
        check(
            "5d",
            &["2026-01-01T23:30:00-05:00", "2026-01-02T00:30:00-05:00"],
            &["2026-01-01T23:30:00-05:00", "2026-01-02T00:30:00-05:00"],
        );
    }
}
