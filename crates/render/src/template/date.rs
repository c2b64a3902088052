//! Formats dates: by a `strftime` format, or in the style of a language.
//!
//! Input: a date, or a text that contains one. Output: its text; an empty text for an undefined value or `none`.
//!
//! Not here: the language of a page (`page`).

use icu_datetime::FixedCalendarDateTimeFormatter;
use icu_datetime::fieldsets::enums::{
    CompositeDateTimeFieldSet, DateAndTimeFieldSet, DateFieldSet,
};
use icu_datetime::fieldsets::{YMD, YMDE};
use icu_datetime::input::{Date as Day, DateTime, Time};
use icu_datetime::options::Length;
use icu_locale_core::Locale;
use jiff::Zoned;
use jiff::fmt::strtime;
use minijinja::{Error, ErrorKind, Value};
use tympan_content::JcrDate;

use super::value::DateValue;

/// The default format of dates.
const DEFAULT_DATE_FORMAT: &str = "%Y-%m-%d";

/// The length of a date in a language's style.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DateStyle {
    length: Length,
    has_weekday: bool,
    /// True to include hour and minute.
    has_time: bool,
}

impl DateStyle {
    /// Returns the style of a keyword; `None` for others, which are `strftime` formats.
    pub(super) fn from_keyword(keyword: &str) -> Option<Self> {
        let (length, has_weekday) = match keyword {
            "short" => (Length::Short, false),
            "medium" => (Length::Medium, false),
            "long" => (Length::Long, false),
            "full" => (Length::Long, true),
            _ => return None,
        };
        Some(Self { length, has_weekday, has_time: false })
    }

    /// Sets whether hour and minute are included.
    pub(super) fn with_time(self, has_time: bool) -> Self {
        Self { has_time, ..self }
    }

    /// Formats a date in the style of a language; in English if the language is unknown.
    pub(super) fn format_date(self, value: &Value, language: &str) -> Result<Value, Error> {
        let Some(zoned) = parse_date(value)? else { return Ok(Value::from("")) };
        let locale = Locale::try_from_str(&language.trim().replace('_', "-"));
        let locale = locale.unwrap_or(icu_locale_core::locale!("en"));
        self.format_zoned(&zoned, &locale)
            .map(Value::from)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the date cannot be formatted"))
    }

    fn format_zoned(self, zoned: &Zoned, locale: &Locale) -> Option<String> {
        let (month, day) = (u8::try_from(zoned.month()).ok()?, u8::try_from(zoned.day()).ok()?);
        let date = Day::try_new_gregorian(i32::from(zoned.year()), month, day).ok()?;
        let (hour, minute) = (u8::try_from(zoned.hour()).ok()?, u8::try_from(zoned.minute()).ok()?);
        let time = Time::try_new(hour, minute, 0, 0).ok()?;
        let formatter =
            FixedCalendarDateTimeFormatter::try_new(locale.into(), self.date_fields()).ok()?;
        Some(formatter.format(&DateTime { date, time }).to_string())
    }

    /// Returns the fields of the date that are written.
    fn date_fields(self) -> CompositeDateTimeFieldSet {
        let (day, weekday) = (YMD::for_length(self.length), YMDE::for_length(self.length));
        match (self.has_weekday, self.has_time) {
            (false, false) => CompositeDateTimeFieldSet::Date(DateFieldSet::YMD(day)),
            (true, false) => CompositeDateTimeFieldSet::Date(DateFieldSet::YMDE(weekday)),
            (false, true) => {
                CompositeDateTimeFieldSet::DateTime(DateAndTimeFieldSet::YMDT(day.with_time_hm()))
            }
            (true, true) => CompositeDateTimeFieldSet::DateTime(DateAndTimeFieldSet::YMDET(
                weekday.with_time_hm(),
            )),
        }
    }
}

/// Formats a date with a `strftime` format.
pub(super) fn format_date_with(value: &Value, format: Option<&str>) -> Result<Value, Error> {
    let Some(zoned) = parse_date(value)? else { return Ok(Value::from("")) };
    let text = strtime::format(format.unwrap_or(DEFAULT_DATE_FORMAT), &zoned).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, format!("the date format is not valid: {error}"))
    })?;
    Ok(Value::from(text))
}

/// Parses a date from a value; `None` for an undefined value or `none`.
fn parse_date(value: &Value) -> Result<Option<Zoned>, Error> {
    if value.is_undefined() || value.is_none() {
        return Ok(None);
    }
    let date = to_zoned(value);
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("`{value}` is not a date"));
    date.ok_or_else(wrong).map(Some)
}

fn to_zoned(value: &Value) -> Option<Zoned> {
    if let Some(date) = value.downcast_object_ref::<DateValue>() {
        return date.0.to_zoned();
    }
    let text = value.as_str()?.trim();
    if let Ok(date) = JcrDate::parse(text) {
        return date.to_zoned();
    }
    // A form or a string property may contain only the day.
    let day: jiff::civil::Date = text.parse().ok()?;
    day.to_zoned(jiff::tz::TimeZone::UTC).ok()
}
