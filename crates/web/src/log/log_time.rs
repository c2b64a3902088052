//! Timestamps in log lines: `21/Nov/2026:00:50:16 +0000`, with second precision and offset.

use std::cell::RefCell;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::Offset;

/// A timestamp in seconds, with its UTC offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogTime {
    unix_seconds: i64,
    offset_seconds: i32,
}

impl LogTime {
    /// Returns the second of `time`, in UTC.
    #[must_use]
    pub fn from_system(time: SystemTime) -> Self {
        let unix_seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |s| -s),
        };
        Self { unix_seconds, offset_seconds: 0 }
    }

    /// Returns the seconds since 1970 in UTC.
    #[must_use]
    pub fn unix_seconds(self) -> i64 {
        self.unix_seconds
    }

    /// Returns the time at the start of `text`, and the rest of the text.
    pub(crate) fn parse_time_prefix(text: &str) -> Option<(Self, &str)> {
        // Require all digits: negative years and one-digit hours would be written differently from how they were read.
        const SHAPE: &str = "00/aaa/0000:00:00:00 +0000";
        let (stamp, rest) = (text.get(..SHAPE.len())?, text.get(SHAPE.len()..)?);
        let has_shape =
            stamp.bytes().zip(SHAPE.bytes()).all(|(byte, shape_byte)| match shape_byte {
                b'0' => byte.is_ascii_digit(),
                b'a' => byte.is_ascii_alphabetic(),
                b'+' => matches!(byte, b'+' | b'-'),
                _ => byte == shape_byte,
            });
        if !has_shape {
            return None;
        }
        let zoned = jiff::fmt::strtime::parse("%d/%b/%Y:%H:%M:%S %z", stamp).ok()?;
        let time = Self {
            unix_seconds: zoned.to_timestamp().ok()?.as_second(),
            offset_seconds: zoned.offset()?.seconds(),
        };
        Some((time, rest))
    }
}

/// The numbers below 100, with two digits each.
const TWO_DIGIT_NUMBERS: [[u8; 2]; 100] = two_digit_numbers();

#[expect(clippy::indexing_slicing, reason = "a number below 100")]
const fn two_digit_numbers() -> [[u8; 2]; 100] {
    let mut digits = [[0; 2]; 100];
    let mut number = 0_u8;
    while number < 100 {
        digits[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    digits
}

thread_local! {
    /// The second that this thread formatted last, and its text: a busy server writes many lines in each second.
    static LAST: RefCell<Option<(LogTime, String)>> = const { RefCell::new(None) };
}

impl fmt::Display for LogTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_cached(f)
    }
}

impl LogTime {
    /// Writes the time, with its text cached for the next line.
    pub(crate) fn write_cached(self, out: &mut impl fmt::Write) -> fmt::Result {
        LAST.with_borrow_mut(|last| match last {
            Some((time, text)) if *time == self => out.write_str(text),
            _ => {
                let mut text = String::with_capacity(32);
                self.write_uncached(&mut text)?;
                let (_, text) = last.insert((self, text));
                out.write_str(text)
            }
        })
    }

    /// Formats the time without the cache.
    fn write_uncached(self, f: &mut impl fmt::Write) -> fmt::Result {
        let timestamp = Timestamp::from_second(self.unix_seconds).map_err(|_range| fmt::Error)?;
        let offset = Offset::from_seconds(self.offset_seconds).map_err(|_range| fmt::Error)?;
        let at = offset.to_datetime(timestamp);
        const MONTHS: [&str; 12] =
            ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let month = usize::try_from(at.month() - 1)
            .ok()
            .and_then(|index| MONTHS.get(index))
            .ok_or(fmt::Error)?;
        let sign = if self.offset_seconds < 0 { "-" } else { "+" };
        let minutes = self.offset_seconds.unsigned_abs() / 60;
        // Two digits each, except for years before 1 or after 9999; formatted directly, because the time is most of a
        // log line.
        let two_digits = |number: u32| {
            TWO_DIGIT_NUMBERS
                .get(number as usize)
                .map_or("", |digits| std::str::from_utf8(digits).unwrap_or_default())
        };
        let of = |number: i8| two_digits(u32::from(number.unsigned_abs()));
        f.write_str(of(at.day()))?;
        f.write_str("/")?;
        f.write_str(month)?;
        f.write_str("/")?;
        match u32::try_from(at.year()) {
            Ok(year) => [two_digits(year / 100), two_digits(year % 100)]
                .iter()
                .try_for_each(|number_text| f.write_str(number_text))?,
            Err(_) => write!(f, "{:04}", at.year())?,
        }
        let rest = [":", of(at.hour()), ":", of(at.minute()), ":", of(at.second()), " ", sign];
        rest.iter().try_for_each(|text| f.write_str(text))?;
        [two_digits(minutes / 60), two_digits(minutes % 60)]
            .iter()
            .try_for_each(|number_text| f.write_str(number_text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_in_the_form_that_is_written_and_in_no_other() {
        let text = "21/Nov/2026:00:50:16 +0200";
        let (time, rest) = LogTime::parse_time_prefix("21/Nov/2026:00:50:16 +0200 more").unwrap();
        assert_eq!((time.to_string().as_str(), rest), (text, " more"));
        assert_eq!((time.unix_seconds, time.offset_seconds), (1_795_215_016, 7200));
        for malformed in [
            "21/Nov/-3103:1:08:20 +2000",
            "21/Nov/2026:00:50:16 +020",
            "1/Nov/2026:00:50:16 +02000",
            "21/Nov/2026:00:50:16 Z0200",
            "21/Nov/2026:24:50:16 +0200",
            "31/Feb/2026:00:50:16 +0200",
            "21/Nov/2026:00:50:1é +0200",
        ] {
            assert!(LogTime::parse_time_prefix(malformed).is_none(), "{malformed}");
        }
    }
}
