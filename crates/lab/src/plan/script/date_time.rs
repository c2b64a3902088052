//! Dates in scripts: Java's `Date`, `LocalDate`, `LocalDateTime` and `Instant`, and the patterns that write them.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use super::super::date;
use super::value::Value;

/// A date or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Time {
    /// `java.util.Date`.
    Moment(Timestamp),
    Instant(Timestamp),
    Day(Date),
    Local(DateTime),
}

impl Time {
    /// Returns the current time as an object of a class.
    pub(super) fn now(class: &str) -> Self {
        let now = Zoned::now();
        match class {
            "LocalDate" => Self::Day(now.date()),
            "LocalDateTime" => Self::Local(now.datetime()),
            "Instant" => Self::Instant(now.timestamp()),
            _ => Self::Moment(now.timestamp()),
        }
    }

    /// Returns a moment of the epoch.
    pub(super) fn of_millis(ms: i64) -> Option<Self> {
        Timestamp::from_millisecond(ms).ok().map(Self::Moment)
    }

    fn zoned(self) -> Option<Zoned> {
        match self {
            Self::Moment(at) | Self::Instant(at) => Some(at.to_zoned(TimeZone::system())),
            Self::Day(day) => day.to_zoned(TimeZone::system()).ok(),
            Self::Local(at) => at.to_zoned(TimeZone::system()).ok(),
        }
    }

    /// Writes the time by a pattern of Java.
    ///
    /// # Errors
    /// A pattern that is not understood.
    pub(super) fn write(self, pattern: &str) -> Result<String, String> {
        let written = self.zoned().and_then(|at| date::write_by(pattern, &at));
        written.ok_or_else(|| {
            format!("java.lang.IllegalArgumentException: Illegal pattern `{pattern}`")
        })
    }

    /// Returns the time some days later, as Groovy's `+` does.
    pub(super) fn plus_days(self, days: i64) -> Option<Self> {
        self.plus(Span::new().try_days(days).ok()?)
    }

    fn plus(self, span: Span) -> Option<Self> {
        Some(match self {
            Self::Moment(_) => Self::Moment(self.zoned()?.checked_add(span).ok()?.timestamp()),
            Self::Instant(_) => Self::Instant(self.zoned()?.checked_add(span).ok()?.timestamp()),
            Self::Day(day) => Self::Day(day.checked_add(span).ok()?),
            Self::Local(at) => Self::Local(at.checked_add(span).ok()?),
        })
    }

    /// Calls a method.
    ///
    /// # Errors
    /// Java's exception, or that the method is not supported.
    pub(super) fn call(self, name: &str, given: &[Value]) -> Result<Value, String> {
        let number = match given.first() {
            Some(Value::Int(number)) => *number,
            _ => 0,
        };
        let at = self.zoned().ok_or("java.time.DateTimeException")?;
        let millis = at.timestamp().as_millisecond();
        if let Some(span) = span(name, number) {
            let moved = span.and_then(|span| self.plus(span));
            return moved.map(Value::Time).ok_or_else(|| "java.time.DateTimeException".to_owned());
        }
        Ok(match name {
            "format" => match given.first() {
                Some(Value::Format(pattern)) => Value::text(self.write(pattern)?),
                Some(Value::Text(pattern)) => Value::text(self.write(pattern)?),
                _ => Value::text(self.to_string()),
            },
            "getTime" | "toEpochMilli" => Value::Int(millis),
            "getEpochSecond" => Value::Int(millis.div_euclid(1000)),
            "getYear" => Value::Int(at.year().into()),
            "getMonthValue" => Value::Int(at.month().into()),
            "getDayOfMonth" => Value::Int(at.day().into()),
            "getHour" => Value::Int(at.hour().into()),
            "getMinute" => Value::Int(at.minute().into()),
            "getSecond" => Value::Int(at.second().into()),
            "toString" => Value::text(self.to_string()),
            "equals" => {
                Value::Bool(matches!(given.first(), Some(Value::Time(other)) if *other == self))
            }
            "isBefore" | "before" | "isAfter" | "after" => {
                let Some(Value::Time(other)) = given.first() else {
                    return Err(format!("script calls `{name}()` without a date"));
                };
                let order = at.timestamp().cmp(&other.zoned().ok_or("no date")?.timestamp());
                Value::Bool(if name.to_ascii_lowercase().ends_with("before") {
                    order.is_lt()
                } else {
                    order.is_gt()
                })
            }
            _ => return Err(format!("script calls `{name}()` of a date (not supported)")),
        })
    }
}

/// Returns the span that `plusDays` and its like add; nothing for another method, an inner nothing for one that is too long.
fn span(name: &str, number: i64) -> Option<Option<Span>> {
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

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Moment(at) => {
                let at = at.to_zoned(TimeZone::system());
                write!(f, "{}", at.strftime("%a %b %d %H:%M:%S %Z %Y"))
            }
            Self::Instant(at) => write!(f, "{at}"),
            Self::Day(day) => write!(f, "{day}"),
            Self::Local(at) => write!(f, "{at}"),
        }
    }
}

/// Reads a date by a pattern of Java.
///
/// # Errors
/// Java's exception.
pub(super) fn parse(pattern: &str, text: &str) -> Result<Time, String> {
    let read = date::read_by(pattern, text).map(|at| Time::Moment(at.timestamp()));
    read.ok_or_else(|| format!("java.text.ParseException: Unparseable date: \"{text}\""))
}

/// Returns a day by its numbers.
pub(super) fn day(year: i64, month: i64, day: i64) -> Option<Time> {
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?);
    date.ok().map(Time::Day)
}
