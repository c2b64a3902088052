//! Dates in scripts: Java's `Date`, `LocalDate`, `LocalDateTime` and `Instant`, and their format patterns.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use super::super::java_date;

/// A date or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScriptDateTime {
    /// `java.util.Date`.
    Date(Timestamp),
    Instant(Timestamp),
    LocalDate(Date),
    LocalDateTime(DateTime),
}

impl ScriptDateTime {
    /// Returns the current time as an object of the given class.
    pub(super) fn now(class: &str) -> Self {
        let now = Zoned::now();
        match class {
            "LocalDate" => Self::LocalDate(now.date()),
            "LocalDateTime" => Self::LocalDateTime(now.datetime()),
            "Instant" => Self::Instant(now.timestamp()),
            _ => Self::Date(now.timestamp()),
        }
    }

    /// Returns a time from milliseconds since the epoch.
    pub(super) fn from_epoch_ms(ms: i64) -> Option<Self> {
        Timestamp::from_millisecond(ms).ok().map(Self::Date)
    }

    pub(super) fn to_zoned(self) -> Option<Zoned> {
        match self {
            Self::Date(at) | Self::Instant(at) => Some(at.to_zoned(TimeZone::system())),
            Self::LocalDate(day) => day.to_zoned(TimeZone::system()).ok(),
            Self::LocalDateTime(at) => at.to_zoned(TimeZone::system()).ok(),
        }
    }

    /// Formats the time by a Java pattern.
    ///
    /// # Errors
    /// An unsupported pattern.
    pub(super) fn format(self, pattern: &str) -> Result<String, String> {
        let written = self.to_zoned().and_then(|at| java_date::format_by_pattern(pattern, &at));
        written.ok_or_else(|| {
            format!("java.lang.IllegalArgumentException: Illegal pattern `{pattern}`")
        })
    }

    /// Returns the time plus a number of days, as Groovy's `+` does.
    pub(super) fn plus_days(self, days: i64) -> Option<Self> {
        self.plus_span(Span::new().try_days(days).ok()?)
    }

    pub(super) fn plus_span(self, span: Span) -> Option<Self> {
        Some(match self {
            Self::Date(_) => Self::Date(self.to_zoned()?.checked_add(span).ok()?.timestamp()),
            Self::Instant(_) => Self::Instant(self.to_zoned()?.checked_add(span).ok()?.timestamp()),
            Self::LocalDate(day) => Self::LocalDate(day.checked_add(span).ok()?),
            Self::LocalDateTime(at) => Self::LocalDateTime(at.checked_add(span).ok()?),
        })
    }
}

/// Returns the span that `plusDays` and similar methods add; `None` for other methods, `Some(None)` if the span is too
/// long.
pub(super) fn span_for_method(name: &str, number: i64) -> Option<Option<Span>> {
    let (unit, number) = match (name.strip_prefix("plus"), name.strip_prefix("minus")) {
        (Some(unit), _) => (unit, Some(number)),
        (_, Some(unit)) => (unit, number.checked_neg()),
        _ => return None,
    };
    let span = Span::new();
    let of = |number: i64| match unit {
        "Years" => span.try_years(number).ok(),
        "Months" => span.try_months(number).ok(),
        "Weeks" => span.try_weeks(number).ok(),
        "Days" => span.try_days(number).ok(),
        "Hours" => span.try_hours(number).ok(),
        "Minutes" => span.try_minutes(number).ok(),
        "Seconds" => span.try_seconds(number).ok(),
        "Millis" => span.try_milliseconds(number).ok(),
        _ => None,
    };
    let is_known = ["Years", "Months", "Weeks", "Days", "Hours", "Minutes", "Seconds", "Millis"]
        .contains(&unit);
    is_known.then(|| number.and_then(of))
}

impl std::fmt::Display for ScriptDateTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Date(at) => {
                let at = at.to_zoned(TimeZone::system());
                write!(f, "{}", at.strftime("%a %b %d %H:%M:%S %Z %Y"))
            }
            Self::Instant(at) => write!(f, "{at}"),
            Self::LocalDate(day) => write!(f, "{day}"),
            Self::LocalDateTime(at) => write!(f, "{at}"),
        }
    }
}

/// Parses a date by a Java pattern.
///
/// # Errors
/// Java's exception.
pub(super) fn parse_date_time(pattern: &str, text: &str) -> Result<ScriptDateTime, String> {
    let read =
        java_date::parse_by_pattern(pattern, text).map(|at| ScriptDateTime::Date(at.timestamp()));
    read.ok_or_else(|| format!("java.text.ParseException: Unparseable date: \"{text}\""))
}

/// Returns the date of the given year, month and day.
pub(super) fn local_date(year: i64, month: i64, day: i64) -> Option<ScriptDateTime> {
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?);
    date.ok().map(ScriptDateTime::LocalDate)
}
