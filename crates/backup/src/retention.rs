//! Retention: keeps the last snapshot of each of a number of hours, days, weeks, months and years that have one.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use crate::error::{Error, Result};
use crate::vault::snapshot::VaultSnapshot;

/// The number of snapshots to keep per period. If all are zero, everything is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The number of most recent snapshots to keep.
    pub last: u32,
    /// The number of hours to keep a snapshot of.
    pub hourly: u32,
    /// The number of days to keep a snapshot of.
    pub daily: u32,
    /// The number of weeks to keep a snapshot of.
    pub weekly: u32,
    /// The number of months to keep a snapshot of.
    pub monthly: u32,
    /// The number of years to keep a snapshot of.
    pub yearly: u32,
    /// Snapshots with one of these tags are kept.
    pub tags: Vec<String>,
}

impl RetentionPolicy {
    /// Parses a list such as `7d,4w,12m,3y`: `h`ours, `d`ays, `w`eeks, `m`onths, `y`ears; a number alone is the number
    /// of most recent snapshots.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], which names the part that cannot be parsed.
    pub fn parse(text: &str) -> Result<Self> {
        let mut keep = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let digits = part.trim_end_matches(|letter: char| !letter.is_ascii_digit());
            let unit = part.get(digits.len()..).unwrap_or_default();
            let refused = || {
                let text = format!(
                    "`{part}` does not say how much to keep; write `7d,4w,12m` with h, d, w, m or y"
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

    /// Returns true if the policy is empty.
    #[must_use]
    pub fn keeps_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// The reason a snapshot is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionReason {
    /// The policy is empty.
    Everything,
    /// It is one of the most recent snapshots.
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

/// Returns for each snapshot the reasons for keeping it; one without a reason may be removed. Snapshots are counted per
/// host and set of paths.
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

/// Returns the local time on the snapshot's host.
fn local_time(snapshot: &VaultSnapshot) -> DateTime {
    // The offset is ignored: days are those of the host.
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

    fn check(keep: &str, times: &[&str], expected: &[&str]) {
        let snapshots: Vec<VaultSnapshot> = times.iter().map(|time| snapshot(time)).collect();
        let chosen = apply_retention(&snapshots, &RetentionPolicy::parse(keep).unwrap());
        let mut retained: Vec<&str> = chosen
            .iter()
            .filter(|(_, reasons)| !reasons.is_empty())
            .map(|(snapshot, _)| snapshot.time.as_str())
            .collect();
        retained.sort_unstable();
        assert_eq!(retained, expected, "{keep}");
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
