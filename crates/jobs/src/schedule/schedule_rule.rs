//! Schedule rules: Quartz expressions, which Sling uses, a fixed period, or a single time.
//!
//! `second minute hour day month weekday [year]`; `*`, `?`, lists, ranges, steps, names of months and days, `L`, `nL`
//! and `n#k`. Times are UTC.

use std::time::{Duration, SystemTime};

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use tympan_notation::parse_duration;

/// A rule for the run times of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScheduleRule {
    /// A calendar expression.
    Cron(Box<CronExpression>),
    /// A fixed interval.
    Interval(Duration),
    /// A single time.
    Once(SystemTime),
}

impl ScheduleRule {
    /// Parses a rule: a Quartz expression, `every 90s` or `every 1h30m`, or `at` and a number of milliseconds since
    /// 1970.
    ///
    /// # Errors
    /// A message that describes the expected format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(period) = text.strip_prefix("every ") {
            return match parse_duration(period) {
                Ok(period) if period >= Duration::from_millis(1) => Ok(Self::Interval(period)),
                _ => Err(format!("`{text}` is not a period; write `every 90s` or `every 1h30m`")),
            };
        }
        if let Some(millis) = text.strip_prefix("at ") {
            let millis = millis.trim().parse::<u64>();
            return millis
                .map(|millis| Self::Once(SystemTime::UNIX_EPOCH + Duration::from_millis(millis)))
                .map_err(|_| {
                    format!("`{text}` is not a time; write `at` and milliseconds since 1970")
                });
        }
        CronExpression::parse(text).map(|cron| Self::Cron(Box::new(cron)))
    }

    /// Returns the first run time after `now`; `None` if there is none.
    #[must_use]
    pub fn next_run_after(&self, now: SystemTime) -> Option<SystemTime> {
        match self {
            Self::Cron(cron) => cron.next_run_after(now),
            Self::Interval(period) => now.checked_add(*period),
            Self::Once(time) => (*time > now).then_some(*time),
        }
    }
}

/// A Quartz expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronExpression {
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: CronDays,
    months: u64,
    years: Option<(i16, i16)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct CronDays {
    /// Days of the month; bit 0 means the last day.
    of_month: Option<u64>,
    /// Days of the week; Sunday is 1.
    of_week: Option<u64>,
    /// The last occurrence of this weekday in the month.
    last_weekday: Option<i8>,
    /// The weekday, and its occurrence number in the month.
    nth_weekday: Option<(i8, i8)>,
}

const MONTH_NAMES: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAY_NAMES: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
/// The last year that is searched.
const MAX_SCHEDULE_YEAR: i16 = 2199;

impl CronExpression {
    /// Parses an expression.
    ///
    /// # Errors
    /// A message that names the invalid part.
    pub fn parse(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let parts: Vec<&str> = upper.split_whitespace().collect();
        let wrong = || {
            format!(
                "`{text}` is not a schedule; write `second minute hour day month weekday`, such as `0 30 2 * \
                 * ?`"
            )
        };
        let (seconds, minutes, hours, day, month, weekday, year) = match parts.as_slice() {
            [s, m, h, d, mo, w] => (s, m, h, d, mo, w, None),
            [s, m, h, d, mo, w, y] => (s, m, h, d, mo, w, Some(*y)),
            _ => return Err(wrong()),
        };
        let years = match year {
            None | Some("*") => None,
            Some(text) => {
                let (first, last) = text.split_once('-').unwrap_or((text, text));
                let bound = |text: &str| text.parse::<i16>().map_err(|_| wrong());
                Some((bound(first)?, bound(last)?))
            }
        };
        Ok(Self {
            seconds: parse_field(seconds, (0, 59), &[])?,
            minutes: parse_field(minutes, (0, 59), &[])?,
            hours: parse_field(hours, (0, 23), &[])?,
            days: parse_days(day, weekday)?,
            months: parse_field(month, (1, 12), &MONTH_NAMES)?,
            years,
        })
    }

    fn next_run_after(&self, now: SystemTime) -> Option<SystemTime> {
        let after = Timestamp::try_from(now).ok()?.to_zoned(TimeZone::UTC).datetime();
        let after = after.with().subsec_nanosecond(0).build().ok()?.checked_add(1.second()).ok()?;
        let mut date = after.date();
        let mut floor = Some(after);
        while date.year()
            <= self.years.map_or(MAX_SCHEDULE_YEAR, |(_, last)| last.min(MAX_SCHEDULE_YEAR))
        {
            if self.matches_date(date)
                && let Some(time) =
                    self.first_time_of_day(date, floor.filter(|floor| floor.date() == date))
            {
                let zoned = time.to_zoned(TimeZone::UTC).ok()?;
                return Some(SystemTime::from(zoned.timestamp()));
            }
            floor = None;
            // A month that does not match is skipped at once.
            date = if contains_number(self.months, date.month()) {
                date.tomorrow().ok()?
            } else {
                date.last_of_month().tomorrow().ok()?
            };
        }
        None
    }

    fn matches_date(&self, date: Date) -> bool {
        let is_year = self.years.is_none_or(|(first, last)| (first..=last).contains(&date.year()));
        is_year && contains_number(self.months, date.month()) && self.days.matches_date(date)
    }

    /// Returns the first matching time of a day that is not before `floor`.
    fn first_time_of_day(&self, date: Date, floor: Option<DateTime>) -> Option<DateTime> {
        let least = floor.unwrap_or_else(|| date.at(0, 0, 0, 0));
        for hour in (least.hour()..24).filter(|hour| contains_number(self.hours, *hour)) {
            let is_first_hour = hour == least.hour();
            let from = if is_first_hour { least.minute() } else { 0 };
            for minute in (from..60).filter(|minute| contains_number(self.minutes, *minute)) {
                let is_first = is_first_hour && minute == least.minute();
                let from = if is_first { least.second() } else { 0 };
                if let Some(second) =
                    (from..60).find(|second| contains_number(self.seconds, *second))
                {
                    return Some(date.at(hour, minute, second, 0));
                }
            }
        }
        None
    }
}

impl CronDays {
    fn matches_date(&self, date: Date) -> bool {
        let of_month = self.of_month.is_none_or(|days| {
            contains_number(days, date.day())
                || (days & 1 == 1 && date.day() == date.days_in_month())
        });
        let weekday = weekday_number(date.weekday());
        let of_week = self.of_week.is_none_or(|days| contains_number(days, weekday));
        let last = self
            .last_weekday
            .is_none_or(|day| day == weekday && date.day() + 7 > date.days_in_month());
        let nth = self
            .nth_weekday
            .is_none_or(|(day, nth)| day == weekday && (date.day() - 1) / 7 + 1 == nth);
        of_month && of_week && last && nth
    }
}

fn weekday_number(weekday: Weekday) -> i8 {
    weekday.to_sunday_one_offset()
}

fn contains_number(set: u64, number: i8) -> bool {
    u32::try_from(number).is_ok_and(|number| set >> number & 1 == 1)
}

fn parse_days(day: &str, weekday: &str) -> Result<CronDays, String> {
    let mut days = CronDays::default();
    if !matches!(day, "*" | "?") {
        days.of_month = Some(if day == "L" { 1 } else { parse_field(day, (1, 31), &[])? });
    }
    if matches!(weekday, "*" | "?") {
        return Ok(days);
    }
    if let Some((name, nth)) = weekday.split_once('#') {
        let nth = nth.parse().ok().filter(|nth| (1..=5).contains(nth));
        let nth = nth.ok_or_else(|| format!("`{weekday}` must have a week number from 1 to 5"))?;
        days.nth_weekday = Some((parse_value(name, (1, 7), &WEEKDAY_NAMES)?, nth));
    } else if let Some(name) = weekday.strip_suffix('L').filter(|name| !name.is_empty()) {
        days.last_weekday = Some(parse_value(name, (1, 7), &WEEKDAY_NAMES)?);
    } else if weekday == "L" {
        days.of_week = Some(1 << 7);
    } else {
        days.of_week = Some(parse_field(weekday, (1, 7), &WEEKDAY_NAMES)?);
    }
    Ok(days)
}

/// Parses a list of numbers, ranges and steps as a bit set.
fn parse_field(text: &str, (least, most): (i8, i8), names: &[&str]) -> Result<u64, String> {
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                let step = step.parse::<i8>().ok().filter(|step| *step > 0);
                (range, step.ok_or_else(|| format!("`{part}` has no valid step"))?)
            }
            None => (part, 1),
        };
        let (first, last) = if matches!(range, "*" | "?") {
            (least, most)
        } else if let Some((first, last)) = range.split_once('-') {
            (parse_value(first, (least, most), names)?, parse_value(last, (least, most), names)?)
        } else {
            let first = parse_value(range, (least, most), names)?;
            (first, if part.contains('/') { most } else { first })
        };
        let mut at = first;
        loop {
            set |= 1 << at;
            // A range such as `FRI-MON` wraps around.
            let is_over =
                if first <= last { at + step > last } else { at < first && at + step > last };
            if is_over {
                break;
            }
            at += step;
            if at > most {
                if first <= last {
                    break;
                }
                at = at - most + least - 1;
                if at > last {
                    break;
                }
            }
        }
    }
    Ok(set)
}

fn parse_value(text: &str, (least, most): (i8, i8), names: &[&str]) -> Result<i8, String> {
    let named = names.iter().position(|name| *name == text).and_then(|at| i8::try_from(at).ok());
    let number = named.map(|at| at + least).or_else(|| text.parse().ok());
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("`{text}` is not between {least} and {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rule: &str, now: &str, expected: &[&str]) {
        let rule = ScheduleRule::parse(rule).unwrap();
        let mut at = SystemTime::from(now.parse::<Timestamp>().unwrap());
        for expected in expected {
            at = rule.next_run_after(at).unwrap();
            assert_eq!(Timestamp::try_from(at).unwrap().to_string(), *expected);
        }
    }

    #[test]
    fn calendars_are_followed() {
        check("0 30 2 * * ?", "2026-01-31T02:30:00Z", &["2026-02-01T02:30:00Z"]);
        check(
            "0/20 * * * * ?",
            "2026-01-01T00:00:10.5Z",
            &["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z", "2026-01-01T00:01:00Z"],
        );
        check("0 0 0 29 2 ?", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z"]);
        check(
            "0 0 1 L * ?",
            "2026-01-31T02:00:00Z",
            &["2026-02-28T01:00:00Z", "2026-03-31T01:00:00Z"],
        );
        check(
            "0 0 1 ? * SAT",
            "2026-01-01T00:00:00Z",
            &["2026-01-03T01:00:00Z", "2026-01-10T01:00:00Z"],
        );
        check(
            "0 0 1 ? * 2#1",
            "2026-01-01T00:00:00Z",
            &["2026-01-05T01:00:00Z", "2026-02-02T01:00:00Z"],
        );
        check("0 0 1 ? * 6L", "2026-01-01T00:00:00Z", &["2026-01-30T01:00:00Z"]);
        check(
            "0 0 0 ? JAN,MAR FRI-SUN",
            "2026-01-31T12:00:00Z",
            &["2026-03-01T00:00:00Z", "2026-03-06T00:00:00Z"],
        );
        check(
            "0 0 8-10/2 * * ? 2027",
            "2026-05-05T00:00:00Z",
            &["2027-01-01T08:00:00Z", "2027-01-01T10:00:00Z"],
        );
        check("every 90s", "2026-01-01T00:00:00Z", &["2026-01-01T00:01:30Z"]);
        check("every 1h30m", "2026-01-01T00:00:00Z", &["2026-01-01T01:30:00Z"]);
    }

    #[test]
    fn what_never_comes_is_known() {
        let rule = ScheduleRule::parse("0 0 0 30 2 ?").unwrap();
        assert_eq!(rule.next_run_after(SystemTime::UNIX_EPOCH), None);
        let rule = ScheduleRule::parse("at 1000").unwrap();
        assert_eq!(rule.next_run_after(SystemTime::UNIX_EPOCH + Duration::from_secs(1)), None);
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for bad in [
            "",
            "* * * * *",
            "60 * * * * ?",
            "0 0 0 0 * ?",
            "0 0 0 * 13 ?",
            "x * * * * ?",
            "0/0 * * * * ?",
            "0 0 0 ? * MON#6",
            "every 0s",
            "every x",
            "at x",
            "0 0 0 * * ? x",
        ] {
            ScheduleRule::parse(bad).unwrap_err();
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9*?,/#L -]{0,24}", now in 0_u64..4_000_000_000) {
            if let Ok(rule) = ScheduleRule::parse(&text) {
                let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
                if let Some(next) = rule.next_run_after(now) {
                    proptest::prop_assert!(next > now);
                }
            }
        }
    }
}
