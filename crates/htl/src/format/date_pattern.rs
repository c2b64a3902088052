//! Dates by the patterns of Java's `SimpleDateFormat`, with names of months, days and halves of the day by CLDR.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use icu_calendar::Gregorian;
use icu_datetime::FixedCalendarDateTimeFormatter;
use icu_datetime::fieldsets::enums::{CompositeDateTimeFieldSet, DateFieldSet};
use icu_datetime::fieldsets::{YMD, YMDE};
use icu_datetime::input::{Date, DateTime as CalendarTime, Time};
use icu_datetime::options::Length;
use icu_datetime::pattern::{DateTimePattern, FixedCalendarDateTimeNames};
use icu_locale_core::Locale;
use jiff::civil::{DateTime, Weekday};
use writeable::TryWriteable;

use super::locale_name::parse_locale;
use crate::value::HtlDate;

/// What a date is formatted with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DateFormat<'a> {
    /// A pattern, or `short`, `medium`, `long`, `full` or `default`.
    pub(crate) pattern: &'a str,
    pub(crate) locale: &'a str,
    /// The name of the time zone, for the letter `z`.
    pub(crate) zone: Option<&'a str>,
}

/// Returns the offset in minutes of a zone that needs no table: `UTC`, `GMT`, `Z`, `GMT+01:00`.
pub(crate) fn parse_fixed_zone(zone: &str) -> Option<i32> {
    let zone = zone.trim();
    if matches!(zone, "UTC" | "GMT" | "Z" | "Etc/UTC" | "Etc/GMT") {
        return Some(0);
    }
    let rest = zone.strip_prefix("GMT").or_else(|| zone.strip_prefix("UTC"))?;
    let (sign, digits) = match rest.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, rest.strip_prefix('+')?),
    };
    let (hours, minutes) = match digits.split_once(':') {
        Some(parts) => parts,
        None => digits
            .split_at_checked(digits.len().saturating_sub(2))
            .filter(|(hours, _)| !hours.is_empty())
            .unwrap_or((digits, "0")),
    };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..24).contains(&hours) && (0..60).contains(&minutes))
        .then_some(sign * (hours * 60 + minutes))
}

/// Formats a date.
///
/// # Errors
/// A message if the pattern is not valid or the date out of range.
pub(crate) fn format_date_pattern(date: HtlDate, format: DateFormat<'_>) -> Result<String, String> {
    let out_of_range = || "the date is out of range".to_owned();
    let offset = jiff::tz::Offset::from_seconds(date.offset_minutes.saturating_mul(60));
    let offset = offset.map_err(|_| out_of_range())?;
    let timestamp = jiff::Timestamp::from_millisecond(date.millis).map_err(|_| out_of_range())?;
    let time = offset.to_datetime(timestamp);
    let locale = parse_locale(format.locale);
    let style = match &*format.pattern.to_ascii_lowercase() {
        "default" | "medium" => Some(YMD::medium()),
        "short" => Some(YMD::short()),
        "long" => Some(YMD::long()),
        "full" => None,
        _ => return PatternWriter { time, date, format, locale }.write(),
    };
    let fields = match style {
        Some(day) => DateFieldSet::YMD(day),
        None => DateFieldSet::YMDE(YMDE::for_length(Length::Long)),
    };
    let fields = CompositeDateTimeFieldSet::Date(fields);
    let formatter = FixedCalendarDateTimeFormatter::try_new((&locale).into(), fields);
    let formatter = formatter.map_err(|error| error.to_string())?;
    let input = calendar_time(time).ok_or_else(out_of_range)?;
    Ok(formatter.format(&input).to_string())
}

fn calendar_time(time: DateTime) -> Option<CalendarTime<Gregorian>> {
    let (month, day) = (u8::try_from(time.month()).ok()?, u8::try_from(time.day()).ok()?);
    let date = Date::try_new_gregorian(i32::from(time.year()), month, day).ok()?;
    let (hour, minute) = (u8::try_from(time.hour()).ok()?, u8::try_from(time.minute()).ok()?);
    Some(CalendarTime { date, time: Time::try_new(hour, minute, 0, 0).ok()? })
}

struct PatternWriter<'a> {
    time: DateTime,
    date: HtlDate,
    format: DateFormat<'a>,
    locale: Locale,
}

impl PatternWriter<'_> {
    fn write(&self) -> Result<String, String> {
        let mut out = String::new();
        let mut chars = self.format.pattern.chars().peekable();
        while let Some(next) = chars.next() {
            match next {
                '\'' => copy_quoted(&mut chars, &mut out)?,
                'a'..='z' | 'A'..='Z' => {
                    let mut count = 1;
                    while chars.next_if_eq(&next).is_some() {
                        count += 1;
                    }
                    self.field(next, count, &mut out)?;
                }
                _ => out.push(next),
            }
        }
        Ok(out)
    }

    /// Writes a name in the language of the locale.
    fn name(&self, pattern: &str, out: &mut String) -> Result<(), String> {
        let pattern: DateTimePattern = pattern.parse().map_err(|_| pattern.to_owned())?;
        let names = FixedCalendarDateTimeNames::<_, CompositeDateTimeFieldSet>::try_new(
            (&self.locale).into(),
        );
        let mut names = names.map_err(|error| error.to_string())?;
        let formatter = names.include_for_pattern(&pattern).map_err(|error| error.to_string())?;
        let input = calendar_time(self.time).ok_or("the date is out of range")?;
        let name = formatter.format(&input);
        let name = name.try_write_to_string().map_err(|_| "the date has no name".to_owned())?;
        out.push_str(&name);
        Ok(())
    }

    fn field(&self, letter: char, count: usize, out: &mut String) -> Result<(), String> {
        let time = self.time;
        let (hour, year) = (i32::from(time.hour()), i32::from(time.year()));
        let mut number = |value: i32| write!(out, "{value:0count$}").unwrap_or_default();
        match letter {
            'G' => out.push_str(if year > 0 { "AD" } else { "BC" }),
            'y' | 'Y' => {
                let year = if letter == 'Y' { self.week().0 } else { year };
                if count == 2 {
                    write!(out, "{:02}", year.rem_euclid(100)).unwrap_or_default();
                } else {
                    number(year);
                }
            }
            'M' => match count {
                1 | 2 => number(i32::from(time.month())),
                3 => return self.name("MMM", out),
                _ => return self.name("MMMM", out),
            },
            'L' => match count {
                1 | 2 => number(i32::from(time.month())),
                3 => return self.name("LLL", out),
                _ => return self.name("LLLL", out),
            },
            'E' => return self.name(if count < 4 { "EEE" } else { "EEEE" }, out),
            'w' => number(self.week().1),
            'W' => {
                let (first_day, minimum) = self.week_rule();
                let first = time.first_of_month().weekday();
                number(week_number(i32::from(time.day()), first, first_day, minimum));
            }
            'D' => number(i32::from(time.day_of_year())),
            'd' => number(i32::from(time.day())),
            'F' => number((i32::from(time.day()) - 1) / 7 + 1),
            'u' => number(i32::from(time.weekday().to_monday_one_offset())),
            'a' => return self.name("a", out),
            'H' => number(hour),
            'k' => number(if hour == 0 { 24 } else { hour }),
            'K' => number(hour % 12),
            'h' => number(if hour % 12 == 0 { 12 } else { hour % 12 }),
            'm' => number(i32::from(time.minute())),
            's' => number(i32::from(time.second())),
            'S' => number(i32::from(time.millisecond())),
            'z' => match self.format.zone {
                Some(zone) if matches!(zone, "UTC" | "GMT") => out.push_str(zone),
                _ if self.date.offset_minutes == 0 => out.push_str("GMT"),
                _ => {
                    out.push_str("GMT");
                    self.offset(true, true, out);
                }
            },
            'Z' => self.offset(false, true, out),
            'X' if self.date.offset_minutes == 0 => out.push('Z'),
            'X' => match count {
                1 => self.offset(false, false, out),
                2 => self.offset(false, true, out),
                3 => self.offset(true, true, out),
                _ => return Err("the date pattern has more than three `X`".to_owned()),
            },
            _ => return Err(format!("`{letter}` has no meaning in a date pattern")),
        }
        Ok(())
    }

    fn offset(&self, has_colon: bool, has_minutes: bool, out: &mut String) {
        let minutes = self.date.offset_minutes;
        let sign = if minutes < 0 { '-' } else { '+' };
        let (hours, minutes) = (minutes.abs() / 60, minutes.abs() % 60);
        let colon = if has_colon { ":" } else { "" };
        write!(out, "{sign}{hours:02}").unwrap_or_default();
        if has_minutes {
            write!(out, "{colon}{minutes:02}").unwrap_or_default();
        }
    }

    /// Returns the first day of a week and the days that the first week of a year has at least.
    fn week_rule(&self) -> (Weekday, i32) {
        const ISO_REGIONS: [&str; 36] = [
            "AD", "AT", "AX", "BE", "BG", "CH", "CZ", "DE", "DK", "EE", "ES", "FI", "FJ", "FO",
            "FR", "GB", "GG", "GI", "GR", "HU", "IE", "IM", "IS", "IT", "JE", "LI", "LT", "LU",
            "MC", "NL", "NO", "PL", "RU", "SE", "SK", "SM",
        ];
        const ISO_LANGUAGES: [&str; 18] = [
            "bg", "ca", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hu", "is", "it", "lt",
            "nl", "pl", "sk", "sv",
        ];
        const MONDAY_LANGUAGES: [&str; 12] =
            ["bs", "hr", "lv", "mk", "ro", "sl", "sq", "sr", "tr", "uk", "vi", "sr"];
        let id = &self.locale.id;
        let is_iso = match id.region {
            Some(region) => ISO_REGIONS.contains(&region.as_str()),
            None => {
                ISO_LANGUAGES.contains(&id.language.as_str())
                    || matches!(id.language.as_str(), "nb" | "nn" | "no" | "ru")
            }
        };
        if is_iso {
            (Weekday::Monday, 4)
        } else if MONDAY_LANGUAGES.contains(&id.language.as_str()) {
            (Weekday::Monday, 1)
        } else {
            (Weekday::Sunday, 1)
        }
    }

    /// Returns the year that a week belongs to, and the week's number in it.
    fn week(&self) -> (i32, i32) {
        let (first_day, minimum) = self.week_rule();
        let year = i32::from(self.time.year());
        let number = |day: i32, first: Weekday| week_number(day, first, first_day, minimum);
        let week = number(i32::from(self.time.day_of_year()), self.time.first_of_year().weekday());
        if week == 0 {
            let before = self.time.date().yesterday().ok();
            let last = before.map_or(365, |_| if is_leap(year - 1) { 366 } else { 365 });
            let first = self.time.first_of_year().weekday();
            let first_before = first.wrapping_sub(i64::from(last % 7));
            return (year - 1, number(last + i32::from(self.time.day_of_year()), first_before));
        }
        let days = if is_leap(year) { 366 } else { 365 };
        let next_first = self.time.first_of_year().weekday().wrapping_add(i64::from(days % 7));
        let next = number(i32::from(self.time.day_of_year()) - days, next_first);
        if next >= 1 { (year + 1, next) } else { (year, week) }
    }
}

fn is_leap(year: i32) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

/// Returns the week of a day, counted from 1, in a period that begins with `first`; zero in front of the first week.
fn week_number(day: i32, first: Weekday, first_day: Weekday, minimum: i32) -> i32 {
    // Days of the period's beginning that belong to a week which began before it.
    let into_week = i32::from(first_day.until(first));
    let first_week_days = 7 - into_week;
    let has_first = first_week_days >= minimum;
    let index = (day - 1 + into_week).div_euclid(7);
    if has_first { index + 1 } else { index }
}

fn copy_quoted(chars: &mut Peekable<Chars<'_>>, out: &mut String) -> Result<(), String> {
    if chars.next_if_eq(&'\'').is_some() {
        out.push('\'');
        return Ok(());
    }
    while let Some(next) = chars.next() {
        if next != '\'' {
            out.push(next);
        } else if chars.next_if_eq(&'\'').is_some() {
            out.push('\'');
        } else {
            return Ok(());
        }
    }
    Err("the date pattern has a quote without an end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, zone: &str, locale: &str, expected: &str) {
        // 1918-12-01T00:00Z, a Sunday.
        let millis = -1_612_137_600_000;
        let offset_minutes = parse_fixed_zone(zone).unwrap();
        let format = DateFormat { pattern, locale, zone: Some(zone) };
        let text = format_date_pattern(HtlDate { millis, offset_minutes }, format);
        assert_eq!(text.unwrap_or_else(|error| error), expected, "{pattern}");
    }

    #[test]
    fn formats_the_examples_of_the_specification() {
        check("yyyy-MM-dd HH:mm:ss.SSSXXX", "UTC", "en", "1918-12-01 00:00:00.000Z");
        check("yyyy-MM-dd HH:mm:ss.SSSXXX", "GMT+02:00", "en", "1918-12-01 02:00:00.000+02:00");
        check(
            "yyyy-MM-dd HH:mm:ss.SSS(z)",
            "GMT+02:00",
            "en",
            "1918-12-01 02:00:00.000(GMT+02:00)",
        );
        check("yyyy-MM-dd HH:mm:ss.SSSZ", "GMT+02:00", "en", "1918-12-01 02:00:00.000+0200");
        check(
            "dd MMMM ''yy hh:mm a; 'day in year': D; 'week in year': w",
            "UTC",
            "en",
            "01 December '18 12:00 AM; day in year: 335; week in year: 49",
        );
        check("EEEE, d MMM y", "UTC", "de", "Sonntag, 1 Dez. 1918");
        check("EEEE, MMM d, y", "UTC", "en_US", "Sunday, Dec 1, 1918");
    }

    #[test]
    fn formats_every_letter() {
        check(
            "G y yy yyyyy Y L LLLL W F u k K h X XX",
            "GMT-01:30",
            "fr",
            "AD 1918 18 01918 1918 11 novembre 4 5 6 22 10 10 -01 -0130",
        );
        check("w", "UTC", "de", "48");
        check("EE E dd", "UTC", "en", "Sun Sun 01");
    }

    #[test]
    fn formats_styles() {
        check("short", "UTC", "en", "12/1/1918");
        check("medium", "UTC", "en", "Dec 1, 1918");
        check("default", "UTC", "de", "01.12.1918");
        check("long", "UTC", "de", "1. Dezember 1918");
        check("full", "UTC", "en", "Sunday, December 1, 1918");
    }

    #[test]
    fn reports_faults() {
        check("yyyy-b", "UTC", "en", "`b` has no meaning in a date pattern");
        check("'a", "UTC", "en", "the date pattern has a quote without an end");
        assert_eq!(parse_fixed_zone("GMT+5"), Some(300));
        assert_eq!(parse_fixed_zone("GMT-0530"), Some(-330));
        assert_eq!(parse_fixed_zone("Europe/Berlin"), None);
        assert_eq!(parse_fixed_zone("GMT+99:00"), None);
    }

    #[test]
    fn weeks_belong_to_years() {
        let week = |date: &str, locale: &str| {
            let day: jiff::civil::Date = date.parse().unwrap();
            let millis =
                day.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_millisecond();
            let format = DateFormat { pattern: "Y-w", locale, zone: None };
            format_date_pattern(HtlDate { millis, offset_minutes: 0 }, format).unwrap()
        };
        assert_eq!(week("2021-01-03", "de"), "2020-53");
        assert_eq!(week("2024-12-30", "de"), "2025-1");
        assert_eq!(week("2023-01-01", "de"), "2022-52");
        assert_eq!(week("2024-12-29", "en_US"), "2025-1");
        assert_eq!(week("2023-01-01", "en_US"), "2023-1");
    }
}
