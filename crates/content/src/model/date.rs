//! JCR dates: an instant in milliseconds together with the offset it was written with.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{Timestamp, Zoned};

use crate::{Error, Result};

/// A date value. As in JCR, dates with the same instant and different offsets are different values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JcrDate {
    /// Milliseconds since 1970-01-01T00:00:00Z.
    pub millis: i64,
    /// The offset from UTC in minutes, positive to the east.
    pub offset_minutes: i16,
}

impl JcrDate {
    /// Parses ISO 8601 in JCR's form: `2019-03-01T10:20:30.456+01:00`, with or without milliseconds.
    ///
    /// # Errors
    /// [`Error::ValueFormat`] if the text is not such a date.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = || Error::ValueFormat { text: text.to_owned(), expected_type: "Date" };
        let (civil, minutes) = split_utc_offset(text).ok_or_else(invalid)?;
        let civil: DateTime = civil.parse().map_err(|_| invalid())?;
        let offset = Offset::from_seconds(i32::from(minutes) * 60).map_err(|_| invalid())?;
        let millis = offset.to_timestamp(civil).map_err(|_| invalid())?.as_millisecond();
        Ok(Self { millis, offset_minutes: minutes })
    }

    /// Parses a date in any form that Sling's POST protocol accepts: ISO 8601 with or without offset and time, `EEE MMM
    /// dd yyyy HH:mm:ss 'GMT'Z`, and `dd.MM.yyyy` with or without a time. The default offset is UTC.
    ///
    /// # Errors
    /// [`Error::ValueFormat`] if the text has none of these forms.
    pub fn parse_lenient(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Ok(date) = Self::parse(text) {
            return Ok(date);
        }
        if let Ok(zoned) = jiff::fmt::strtime::parse("%a %b %d %Y %H:%M:%S GMT%z", text)
            .and_then(|parsed| parsed.to_timestamp())
        {
            let offset = format!("T{}", text.rsplit("GMT").next().unwrap_or_default());
            let offset_minutes = split_utc_offset(&offset).map_or(0, |(_, minutes)| minutes);
            return Ok(Self { millis: zoned.as_millisecond(), offset_minutes });
        }
        const FORMS: [&str; 5] =
            ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%d.%m.%Y %H:%M:%S", "%Y-%m-%d", "%d.%m.%Y"];
        let civil = FORMS.iter().find_map(|form| {
            let parsed = jiff::fmt::strtime::parse(form, text).ok()?;
            parsed
                .to_datetime()
                .ok()
                .or_else(|| Some(parsed.to_date().ok()?.to_datetime(jiff::civil::Time::midnight())))
        });
        match civil {
            Some(civil) => Self::parse(&format!("{civil}Z")),
            None => Err(Error::ValueFormat { text: text.to_owned(), expected_type: "Date" }),
        }
    }

    /// Converts a system time, with the offset of UTC.
    #[must_use]
    pub fn from_system_time(time: SystemTime) -> Self {
        let millis = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        Self { millis, offset_minutes: 0 }
    }

    /// Returns the instant.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        let distance = Duration::from_millis(self.millis.unsigned_abs());
        if self.millis >= 0 {
            SystemTime::UNIX_EPOCH + distance
        } else {
            SystemTime::UNIX_EPOCH - distance
        }
    }

    /// Returns the calendar date and time at its own offset; `None` outside the supported range of years.
    #[must_use]
    pub fn to_zoned(self) -> Option<Zoned> {
        let offset = Offset::from_seconds(i32::from(self.offset_minutes) * 60).ok()?;
        Some(Timestamp::from_millisecond(self.millis).ok()?.to_zoned(offset.to_time_zone()))
    }

    /// Writes the date as Sling's JSON does: `Sat Nov 21 2026 00:50:16 GMT+0000`.
    #[must_use]
    pub fn to_ecma(self) -> String {
        self.to_zoned().map_or_else(String::new, |zoned| {
            zoned.strftime("%a %b %d %Y %H:%M:%S GMT%z").to_string()
        })
    }
}

/// Splits `…+01:00`, `…-0500` or `…Z` into the local part and the offset in minutes.
fn split_utc_offset(text: &str) -> Option<(&str, i16)> {
    if let Some(civil) = text.strip_suffix('Z') {
        return Some((civil, 0));
    }
    let time = text.find('T')?;
    let sign = text.rfind(['+', '-']).filter(|at| *at > time)?;
    let (civil, offset) = text.split_at_checked(sign)?;
    let digits: String = offset.get(1..)?.chars().filter(|character| *character != ':').collect();
    if digits.len() != 4 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let minutes =
        digits.get(..2)?.parse::<i16>().ok()? * 60 + digits.get(2..)?.parse::<i16>().ok()?;
    Some((civil, if offset.starts_with('-') { -minutes } else { minutes }))
}

impl fmt::Display for JcrDate {
    /// Writes ISO 8601 with milliseconds, `Z` for UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(zoned) = self.to_zoned() else {
            return write!(f, "@{}", self.millis);
        };
        let millis = self.millis.rem_euclid(1000);
        write!(f, "{}.{millis:03}", zoned.strftime("%Y-%m-%dT%H:%M:%S"))?;
        match self.offset_minutes {
            0 => f.write_str("Z"),
            minutes => {
                let sign = if minutes < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_instant_and_offset() {
        for text in [
            "2019-03-01T10:20:30.456+01:00",
            "1969-12-31T23:59:59.999Z",
            "2021-07-04T00:00:00.000-05:30",
        ] {
            assert_eq!(JcrDate::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            JcrDate::parse("2020-02-29T12:00:00Z").unwrap().to_string(),
            "2020-02-29T12:00:00.000Z"
        );
        assert_eq!(JcrDate::parse("2020-02-29T12:00:00.000+0100").unwrap().offset_minutes, 60);
        for bad in [
            "",
            "2020",
            "2020-02-30T12:00:00.000Z",
            "2020-02-29T12:00:00.000",
            "2020-02-29T12:00:00+1:00",
        ] {
            assert!(JcrDate::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_slings_post_forms() {
        for (text, expected) in [
            ("Sat Nov 21 2026 00:50:16 GMT+0100", "2026-11-21T00:50:16.000+01:00"),
            ("2026-11-21T00:50:16", "2026-11-21T00:50:16.000Z"),
            ("2026-11-21T00:50", "2026-11-21T00:50:00.000Z"),
            ("2026-11-21", "2026-11-21T00:00:00.000Z"),
            ("21.11.2026 00:50:16", "2026-11-21T00:50:16.000Z"),
            ("21.11.2026", "2026-11-21T00:00:00.000Z"),
        ] {
            assert_eq!(JcrDate::parse_lenient(text).unwrap().to_string(), expected, "{text}");
        }
        assert!(JcrDate::parse_lenient("tomorrow").is_err());
    }

    #[test]
    fn writes_slings_json_form() {
        let date = JcrDate::parse("2026-11-21T00:50:16.000Z").unwrap();
        assert_eq!(date.to_ecma(), "Sat Nov 21 2026 00:50:16 GMT+0000");
    }
}
