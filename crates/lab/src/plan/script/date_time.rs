//! Dates in scripts: Java's `Date`, `LocalDate`, `LocalDateTime` and `Instant`, and their format patterns.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use super::super::java_date;
use super::value::ScriptValue;

/// A date or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum ScriptDateTime {
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

    fn to_zoned(self) -> Option<Zoned> {
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

    fn plus_span(self, span: Span) -> Option<Self> {
        Some(match self {
            Self::Date(_) => Self::Date(self.to_zoned()?.checked_add(span).ok()?.timestamp()),
            Self::Instant(_) => Self::Instant(self.to_zoned()?.checked_add(span).ok()?.timestamp()),
            Self::LocalDate(day) => Self::LocalDate(day.checked_add(span).ok()?),
            Self::LocalDateTime(at) => Self::LocalDateTime(at.checked_add(span).ok()?),
        })
    }

    /// Calls a method.
    ///
    /// # Errors
    /// Java's exception, or an unsupported method.
    pub(super) fn call_method(
        self,
        name: &str,
        arguments: &[ScriptValue],
    ) -> Result<ScriptValue, String> {
        let number = match arguments.first() {
            Some(ScriptValue::Int(number)) => *number,
            _ => 0,
        };
        let at = self.to_zoned().ok_or("java.time.DateTimeException")?;
        let millis = at.timestamp().as_millisecond();
        if let Some(span) = span_for_method(name, number) {
            let moved = span.and_then(|span| self.plus_span(span));
            return moved
                .map(ScriptValue::DateTime)
                .ok_or_else(|| "java.time.DateTimeException".to_owned());
        }
        Ok(match name {
            "format" => match arguments.first() {
                Some(ScriptValue::DateFormat(pattern)) => {
                    ScriptValue::from_text(self.format(pattern)?)
                }
                Some(ScriptValue::Text(pattern)) => ScriptValue::from_text(self.format(pattern)?),
                _ => ScriptValue::from_text(self.to_string()),
            },
            "getTime" | "toEpochMilli" => ScriptValue::Int(millis),
            "getEpochSecond" => ScriptValue::Int(millis.div_euclid(1000)),
            "getYear" => ScriptValue::Int(at.year().into()),
            "getMonthValue" => ScriptValue::Int(at.month().into()),
            "getDayOfMonth" => ScriptValue::Int(at.day().into()),
            "getHour" => ScriptValue::Int(at.hour().into()),
            "getMinute" => ScriptValue::Int(at.minute().into()),
            "getSecond" => ScriptValue::Int(at.second().into()),
            "toString" => ScriptValue::from_text(self.to_string()),
            "equals" => ScriptValue::Bool(
                matches!(arguments.first(), Some(ScriptValue::DateTime(other)) if *other == self),
            ),
            "isBefore" | "before" | "isAfter" | "after" => {
                let Some(ScriptValue::DateTime(other)) = arguments.first() else {
                    return Err(format!("script calls `{name}()` without a date"));
                };
                let order = at.timestamp().cmp(&other.to_zoned().ok_or("no date")?.timestamp());
                ScriptValue::Bool(if name.to_ascii_lowercase().ends_with("before") {
                    order.is_lt()
                } else {
                    order.is_gt()
                })
            }
            _ => return Err(format!("script calls `{name}()` of a date (not supported)")),
        })
    }
}

/// Returns the span that `plusDays` and similar methods add; `None` for other methods, `Some(None)` if the span is too
/// long.
fn span_for_method(name: &str, number: i64) -> Option<Option<Span>> {
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
