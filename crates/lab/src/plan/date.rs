//! Dates in the patterns of Java, for the functions of plans.
//!
//! Times are those of the system's time zone, as in JMeter.

use std::borrow::Cow;

use jiff::civil::{Date, DateTime};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::scope::Scope;
use super::template::Template;

/// The letters of Java's date patterns that are understood, with what they are to `strftime`.
const LETTERS: [(&str, &str); 35] = [
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
    ("XXX", UTC_AS_LETTER),
    ("Z", "%z"),
    ("z", "%Z"),
];

/// Stands for an offset that is `Z` where it is none: no letter of `strftime` says so.
const UTC_AS_LETTER: &str = "\u{1}";

/// Turns a Java date pattern into one of `strftime`.
fn pattern(java: &str) -> Option<String> {
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
            out.push_str(LETTERS.iter().find(|(java, _)| *java == letters)?.1);
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

/// Reports whether a pattern is understood, as far as the plan tells it.
///
/// # Errors
/// A pattern that is not.
pub(super) fn check(format: &Template) -> Result<(), String> {
    match format.as_literal() {
        Some(text) if !is_plain(text) && pattern(text).is_none() => {
            Err(format!("date pattern `{text}`: not supported"))
        }
        _ => Ok(()),
    }
}

fn is_plain(format: &str) -> bool {
    format.is_empty()
        || format.starts_with('/')
        || matches!(format, "YMD" | "HMS" | "YMDHMS" | "USER1" | "USER2")
}

/// Returns a moment, in milliseconds of the epoch, as `__time` writes it.
pub(super) fn now(format: &str, now_ms: u64) -> String {
    match format {
        "" => return now_ms.to_string(),
        "YMD" => return of_millis("yyyyMMdd", now_ms),
        "HMS" => return of_millis("HHmmss", now_ms),
        "YMDHMS" => return of_millis("yyyyMMdd-HHmmss", now_ms),
        _ => {}
    }
    if let Some(divisor) = format.strip_prefix('/').and_then(|number| number.parse::<u64>().ok()) {
        return now_ms.checked_div(divisor).unwrap_or(now_ms).to_string();
    }
    of_millis(format, now_ms)
}

fn of_millis(java: &str, ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map(|at| write(java, &at.to_zoned(TimeZone::system()))).unwrap_or_default()
}

fn write(java: &str, at: &Zoned) -> String {
    let Some(pattern) = pattern(java) else { return String::new() };
    let offset = if at.offset().seconds() == 0 { "Z" } else { "%:z" };
    at.strftime(&pattern.replace(UTC_AS_LETTER, offset)).to_string()
}

/// Reads a date by its pattern; what the pattern does not hold is that of the epoch's first moment.
fn read(java: &str, text: &str) -> Option<Zoned> {
    let pattern = pattern(java)?;
    // Where an offset is expected, `Z` is one too.
    let (pattern, text): (String, Cow<'_, str>) = match text.trim().strip_suffix('Z') {
        Some(bare) if pattern.ends_with(UTC_AS_LETTER) => {
            (pattern.replace(UTC_AS_LETTER, "%:z"), format!("{bare}+00:00").into())
        }
        _ => (pattern.replace(UTC_AS_LETTER, "%:z"), text.trim().into()),
    };
    let found = BrokenDownTime::parse(&pattern, &*text).ok()?;
    if let Ok(zoned) = found.to_zoned() {
        return Some(zoned);
    }
    let date = found.to_date().unwrap_or(Date::constant(1970, 1, 1));
    let at: DateTime = found.to_time().map(|time| date.to_datetime(time)).ok()?;
    at.to_zoned(TimeZone::system()).ok()
}

/// Shifts a date, or now, by a duration such as `P2D` or `-PT1H`, as `__timeShift` does.
pub(super) fn shift(format: &str, date: &str, amount: &str) -> String {
    let now = || i64::try_from(Scope::now_ms()).unwrap_or(i64::MAX);
    let given = match date.trim() {
        "" => Some(now()),
        date if format.is_empty() => date.parse().ok(),
        date => read(format, date).map(|at| at.timestamp().as_millisecond()),
    };
    // A date that does not read shifts nothing: JMeter tells it in its log and gives an empty text.
    let Some(mut ms) = given else { return String::new() };
    if let Ok(span) = amount.trim().parse::<jiff::Span>() {
        let day = jiff::SpanRelativeTo::days_are_24_hours();
        ms += span.total((jiff::Unit::Millisecond, day)).unwrap_or(0.0) as i64;
    }
    let ms = u64::try_from(ms).unwrap_or(0);
    if format.is_empty() { ms.to_string() } else { of_millis(format, ms) }
}

/// Writes a date in another pattern, as `__dateTimeConvert` does; without a pattern it is milliseconds of the epoch.
pub(super) fn convert(date: &str, from: &str, to: &str) -> String {
    if from.is_empty() {
        return date.trim().parse().map(|ms| of_millis(to, ms)).unwrap_or_default();
    }
    read(from, date).map(|at| write(to, &at)).unwrap_or_default()
}

/// Returns a day from the first one on and before the last one, as `__RandomDate` does; `at` is from 0 to below 1.
pub(super) fn random(format: &str, first: &str, last: &str, at: f64) -> String {
    let format = if format.is_empty() { "yyyy-MM-dd" } else { format };
    let day = |text: &str| match text.trim() {
        "" => Some(Zoned::now().date()),
        text => read(format, text).map(|at| at.date()),
    };
    let (Some(first), Some(last)) = (day(first), day(last)) else { return String::new() };
    let days = first.until(last).map_or(0, |span| span.get_days());
    let offset = (f64::from(days.max(0)) * at) as i64;
    let chosen = first.checked_add(jiff::Span::new().days(offset)).unwrap_or(first);
    let zoned = chosen.to_zoned(TimeZone::system());
    zoned.map(|at| write(format, &at)).unwrap_or_default()
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
            ("HH:mm", "12:30", "1970-01-01 12:30:00"),
        ] {
            assert_eq!(convert(text, format, "yyyy-MM-dd HH:mm:ss"), written, "{format}");
        }
        for broken in ["", "x", "2024-13-01"] {
            assert_eq!(convert(broken, "yyyy-MM-dd", "yyyy"), "", "{broken}");
        }
    }

    #[test]
    fn an_offset_of_nothing_is_a_letter() {
        let at = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        assert_eq!(write("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", &at), "1970-01-01T00:00:00.000Z");
        assert_eq!(write("HH:mmxxx", &at), "00:00+00:00");
        let read = read("yyyy-MM-dd'T'HH:mm:ssXXX", "1970-01-01T00:00:01Z").unwrap();
        assert_eq!(read.timestamp().as_second(), 1);
    }

    #[test]
    fn a_random_day_lies_before_the_last_one() {
        let day = |at| random("", "2024-01-01", "2024-01-11", at);
        assert_eq!((day(0.0), day(0.999)), ("2024-01-01".to_owned(), "2024-01-10".to_owned()));
    }
}
