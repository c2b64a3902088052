//! Dates in Java's patterns, for the functions of plans.
//!
//! Times are in the system's time zone, as in JMeter.

use std::borrow::Cow;

use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::template::TextTemplate;

/// The supported letters of Java's date patterns, with their `strftime` equivalents.
const STRFTIME_PATTERNS: [(&str, &str); 35] = [
    ("yyyy", "%Y"),
    ("uuuu", "%Y"),
    ("yy", "%y"),
    ("y", "%Y"),
    ("MMMM", "%B"),
    ("LLLL", "%B"),
    ("MMM", "%b"),
    ("LLL", "%b"),
    ("MM", "%m"),
    ("M", "%-m"),
    ("dd", "%d"),
    ("d", "%-d"),
    ("DDD", "%j"),
    ("HH", "%H"),
    ("H", "%-H"),
    ("hh", "%I"),
    ("h", "%-I"),
    ("mm", "%M"),
    ("m", "%-M"),
    ("ss", "%S"),
    ("s", "%-S"),
    ("S", "%1f"),
    ("SS", "%2f"),
    ("SSS", "%3f"),
    ("SSSSSS", "%6f"),
    ("SSSSSSSSS", "%9f"),
    ("EEEE", "%A"),
    ("EEE", "%a"),
    ("EE", "%a"),
    ("E", "%a"),
    ("a", "%p"),
    ("xxx", "%:z"),
    ("XXX", UTC_OFFSET_AS_Z),
    ("Z", "%z"),
    ("z", "%Z"),
];

/// Placeholder for an offset that is `Z` if it is zero, because `strftime` has no letter for it.
const UTC_OFFSET_AS_Z: &str = "\u{1}";

/// Converts a Java date pattern to `strftime`.
fn to_strftime(java: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = java;
    while let Some(c) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('\'') {
            let (text, after) = quoted.split_once('\'')?;
            out.push_str(if text.is_empty() { "'" } else { text });
            rest = after;
        } else if c.is_ascii_alphabetic() {
            let run = rest.len() - rest.trim_start_matches(c).len();
            let letters = rest.get(..run)?;
            out.push_str(STRFTIME_PATTERNS.iter().find(|(java, _)| *java == letters)?.1);
            rest = rest.get(run..)?;
        } else {
            out.push(c);
            if c == '%' {
                out.push('%');
            }
            rest = rest.get(c.len_utf8()..)?;
        }
    }
    Some(out)
}

/// Checks that a pattern is supported, as far as it is known from the plan.
///
/// # Errors
/// An unsupported pattern.
pub(super) fn check_pattern(format: &TextTemplate) -> Result<(), String> {
    match format.as_literal() {
        Some(text) if !is_plain_pattern(text) && to_strftime(text).is_none() => {
            Err(format!("date pattern `{text}`: not supported"))
        }
        _ => Ok(()),
    }
}

/// Checks that the day and month names in a pattern are those of the requested locale: only English names are
/// supported.
///
/// # Errors
/// Another locale.
pub(super) fn check_locale(
    format: &TextTemplate,
    locale: Option<&TextTemplate>,
) -> Result<(), String> {
    let Some(locale) = locale.and_then(TextTemplate::as_literal).map(str::trim) else {
        return Ok(());
    };
    let is_english = locale.is_empty() || locale.to_ascii_lowercase().starts_with("en");
    let has_names =
        |format: &str| ["MMM", "LLL", "E", "a"].iter().any(|letters| format.contains(letters));
    if is_english || !format.as_literal().is_some_and(has_names) {
        return Ok(());
    }
    Err(format!("names of days and months in the language `{locale}`: not supported, only English"))
}

fn is_plain_pattern(format: &str) -> bool {
    format.is_empty()
        || format.starts_with('/')
        || matches!(format, "YMD" | "HMS" | "YMDHMS" | "USER1" | "USER2")
}

/// Formats a time, in milliseconds since the epoch, as `__time` does.
pub(super) fn format_now(format: &str, now_ms: u64) -> String {
    match format {
        "" => return now_ms.to_string(),
        "YMD" => return format_millis("yyyyMMdd", now_ms),
        "HMS" => return format_millis("HHmmss", now_ms),
        "YMDHMS" => return format_millis("yyyyMMdd-HHmmss", now_ms),
        _ => {}
    }
    if let Some(divisor) = format.strip_prefix('/').and_then(|number| number.parse::<u64>().ok()) {
        return now_ms.checked_div(divisor).unwrap_or(now_ms).to_string();
    }
    format_millis(format, now_ms)
}

fn format_millis(java: &str, ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map(|at| format_date(java, &at.to_zoned(TimeZone::system()))).unwrap_or_default()
}

fn format_date(java: &str, at: &Zoned) -> String {
    let Some(pattern) = to_strftime(java) else { return String::new() };
    let offset = if at.offset().seconds() == 0 { "Z" } else { "%:z" };
    at.strftime(&pattern.replace(UTC_OFFSET_AS_Z, offset)).to_string()
}

/// Formats a date by a Java pattern; `None` if the pattern is unsupported.
pub(super) fn format_by_pattern(java: &str, at: &Zoned) -> Option<String> {
    to_strftime(java).map(|_| format_date(java, at))
}

/// Parses a date by a Java pattern; `None` if the text does not match.
pub(super) fn parse_by_pattern(java: &str, text: &str) -> Option<Zoned> {
    parse_date(java, text, MissingDateParts::Defaults { year: 1970 })
}

/// The treatment of date parts that the pattern does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingDateParts {
    /// Day, month and year are required.
    Rejected,
    /// The default is the first day, the first month, this year.
    Defaults { year: i16 },
}

/// Parses a date by its pattern. A day beyond the end of its month becomes the last one, as in Java.
fn parse_date(java: &str, text: &str, missing: MissingDateParts) -> Option<Zoned> {
    let pattern = to_strftime(java)?;
    // An offset may also be written as `Z`.
    let (pattern, text): (String, Cow<'_, str>) = match text.trim().strip_suffix('Z') {
        Some(bare) if pattern.ends_with(UTC_OFFSET_AS_Z) => {
            (pattern.replace(UTC_OFFSET_AS_Z, "%:z"), format!("{bare}+00:00").into())
        }
        _ => (pattern.replace(UTC_OFFSET_AS_Z, "%:z"), text.trim().into()),
    };
    let broken_down = BrokenDownTime::parse(&pattern, &*text).ok()?;
    if let Ok(zoned) = broken_down.to_zoned() {
        return Some(zoned);
    }
    let date = match (missing, broken_down.to_date()) {
        (_, Ok(date)) => date,
        (MissingDateParts::Rejected, Err(_)) => {
            clamp_day_to_month(broken_down.year()?, broken_down.month()?, broken_down.day()?)?
        }
        (MissingDateParts::Defaults { year }, Err(_)) => clamp_day_to_month(
            broken_down.year().unwrap_or(year),
            broken_down.month().unwrap_or(1),
            broken_down.day().unwrap_or(1),
        )?,
    };
    let at: DateTime = broken_down.to_time().map(|time| date.to_datetime(time)).ok()?;
    at.to_zoned(TimeZone::system()).ok()
}

/// Returns the date, with the day limited to the last one of its month.
fn clamp_day_to_month(year: i16, month: i8, day: i8) -> Option<Date> {
    let first = Date::new(year, month, 1).ok()?;
    Date::new(year, month, day.min(first.days_in_month())).ok()
}

/// Shifts a date, or the current time, by a duration such as `P2D` or `-PT1H`, as `__timeShift` does.
pub(super) fn shift_date(format: &str, date: &str, amount: &str, now_ms: u64) -> String {
    let now = i64::try_from(now_ms).unwrap_or(i64::MAX);
    let year =
        Timestamp::from_millisecond(now).map_or(1970, |at| at.to_zoned(TimeZone::system()).year());
    let milliseconds = match date.trim() {
        "" => None,
        date if format.is_empty() => date.parse().ok(),
        date => {
            let at = parse_date(format, date, MissingDateParts::Defaults { year });
            at.map(|at| at.timestamp().as_millisecond())
        }
    };
    // An invalid date means the current time: JMeter only logs it.
    let mut ms = milliseconds.unwrap_or(now);
    if let Some(span) = parse_java_duration(amount.trim()) {
        let day = jiff::SpanRelativeTo::days_are_24_hours();
        ms += span.total((jiff::Unit::Millisecond, day)).unwrap_or(0.0) as i64;
    }
    let ms = u64::try_from(ms).unwrap_or(0);
    if format.is_empty() { ms.to_string() } else { format_millis(format, ms) }
}

/// Parses a Java duration: days, hours, minutes and seconds; months, years and weeks are invalid.
fn parse_java_duration(text: &str) -> Option<jiff::Span> {
    let upper = text.to_ascii_uppercase();
    let (days, _) = upper.split_once('T').unwrap_or((&upper, ""));
    if days.contains(['Y', 'M', 'W', '.']) {
        return None;
    }
    // Java accepts a sign for each part too.
    let (sign, rest) = match upper.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, upper.as_str()),
    };
    let signed = rest.strip_prefix("P-").filter(|rest| !rest.contains(['-', '+']));
    match signed {
        Some(rest) => format!("P{rest}").parse::<jiff::Span>().ok()?.checked_mul(-sign).ok(),
        None => rest.parse::<jiff::Span>().ok()?.checked_mul(sign).ok(),
    }
}

/// Converts a date to another pattern, as `__dateTimeConvert` does; without a pattern it is in milliseconds since the
/// epoch.
pub(super) fn convert_date(date: &str, from: &str, to: &str) -> String {
    if from.is_empty() {
        return date.trim().parse().map(|ms| format_millis(to, ms)).unwrap_or_default();
    }
    parse_date(from, date, MissingDateParts::Rejected)
        .map(|at| format_date(to, &at))
        .unwrap_or_default()
}

/// Returns a random day from the first one up to but excluding the last one, as `__RandomDate` does; `at` is from 0 to
/// below 1.
pub(super) fn random_date(format: &str, first: &str, last: &str, at: f64) -> String {
    let format = if format.is_empty() { "yyyy-MM-dd" } else { format };
    let day = |text: &str| match text.trim() {
        "" => Some(Zoned::now().date()),
        text => parse_date(format, text, MissingDateParts::Rejected).map(|at| at.date()),
    };
    let (Some(first), Some(last)) = (day(first), day(last)) else { return String::new() };
    let days = first.until(last).map_or(0, |span| span.get_days());
    let offset = (f64::from(days.max(0)) * at) as i64;
    let chosen = first.checked_add(jiff::Span::new().days(offset)).unwrap_or(first);
    let zoned = chosen.to_zoned(TimeZone::system());
    zoned.map(|at| format_date(format, &at)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_by_the_patterns_that_write_them() {
        for (format, text, written) in [
            ("dd.MM.yyyy", "05.03.2024", "2024-03-05 00:00:00"),
            ("yyyy-MM-dd'T'HH:mm:ss", "2024-02-29T07:08:09", "2024-02-29 07:08:09"),
            ("MMM d, yyyy h:mm a", "Mar 5, 2024 3:07 PM", "2024-03-05 15:07:00"),
            ("dd/MM/yyyy", "30/02/2024", "2024-02-29 00:00:00"),
            // A date requires a day.
            ("HH:mm", "12:30", ""),
            ("MM yyyy", "01 2024", ""),
        ] {
            assert_eq!(convert_date(text, format, "yyyy-MM-dd HH:mm:ss"), written, "{format}");
        }
        for broken in ["", "x", "2024-13-01"] {
            assert_eq!(convert_date(broken, "yyyy-MM-dd", "yyyy"), "", "{broken}");
        }
    }

    #[test]
    fn an_offset_of_nothing_is_a_letter() {
        let at = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        assert_eq!(format_date("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", &at), "1970-01-01T00:00:00.000Z");
        assert_eq!(format_date("HH:mmxxx", &at), "00:00+00:00");
        let read = parse_date(
            "yyyy-MM-dd'T'HH:mm:ssXXX",
            "1970-01-01T00:00:01Z",
            MissingDateParts::Rejected,
        )
        .unwrap();
        assert_eq!(read.timestamp().as_second(), 1);
    }

    #[test]
    fn dates_are_shifted_as_in_java() {
        // The middle of 2026 in every time zone.
        let now_ms = 1_782_907_200_000;
        for (format, date, amount, expected) in [
            ("yyyy-MM-dd", "2024-02-30", "P1D", "2024-03-01"),
            ("yyyy-MM", "2024-02", "P1M", "2024-02"),
            ("MM/yyyy", "06/2024", "P31D", "07/2024"),
            ("dd/MM", "15/06", "P1D", "16/06"),
            ("dd/MM/yyyy", "28/02/2024", "-P1D", "27/02/2024"),
            ("dd/MM/yyyy", "28/02/2024", "P-1D", "27/02/2024"),
            ("yyyyMMdd", "20240228", "P2DT3H", "20240301"),
            ("yyyy-MM-dd", "2024-02-28", "PT36H", "2024-02-29"),
            ("yyyy-MM-dd", "2024-02-28", "P1Y", "2024-02-28"),
            ("yyyy-MM-dd", "2024-02-28", "P1W", "2024-02-28"),
            ("yyyy-MM-dd", "2024-02-28", "1D", "2024-02-28"),
            ("yyyy-MM-dd", "2024-02-28", "bogus", "2024-02-28"),
            ("", "1000", "PT1S", "2000"),
        ] {
            assert_eq!(
                shift_date(format, date, amount, now_ms),
                expected,
                "{format} {date} {amount}"
            );
        }
        assert!(shift_date("yyyy-MM", "bogus", "", now_ms).starts_with("2026-"));
    }

    #[test]
    fn a_random_day_lies_before_the_last_one() {
        let day = |at| random_date("", "2024-01-01", "2024-01-11", at);
        assert_eq!((day(0.0), day(0.999)), ("2024-01-01".to_owned(), "2024-01-10".to_owned()));
    }
}
