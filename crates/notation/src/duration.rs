//! Durations: numbers with units of time.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error as _};

use crate::quantity::{ParseQuantityError, UnitScale, parse_term};

/// Units in nanoseconds, the largest first. `min` is a second name of `m`.
const TIME_UNITS: [UnitScale; 8] = [
    ("d", 24 * 3_600 * SECOND_NANOS),
    ("h", 3_600 * SECOND_NANOS),
    ("m", 60 * SECOND_NANOS),
    ("s", SECOND_NANOS),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("min", 60 * SECOND_NANOS),
];
const SECOND_NANOS: u64 = 1_000_000_000;

/// Parses a duration: numbers with units, which are added up: `250ms`, `90s`, `30m` or `30min`, `1h30m`, `1.5h`, `2d`.
/// `0` needs no unit.
///
/// # Errors
/// A message that names the text and says what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, ParseQuantityError> {
    sum_terms(text).ok_or_else(|| {
        ParseQuantityError::new(
            text,
            "a duration; write numbers with units, such as `250ms`, `90s`, `30m`, `1h30m`, `1.5h` or `2d`",
        )
    })
}

/// Parses a duration like [`parse_duration`], or an integer without a unit, which counts `unit`s.
///
/// # Errors
/// As for [`parse_duration`].
pub fn parse_duration_or_count(text: &str, unit: Duration) -> Result<Duration, ParseQuantityError> {
    let counted = text.trim().parse().ok().and_then(|count| unit.checked_mul(count));
    counted.map_or_else(|| parse_duration(text), Ok)
}

fn sum_terms(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut nanos = 0_u128;
    loop {
        let (term, after) = parse_term(rest, &TIME_UNITS)?;
        nanos = nanos.checked_add(term)?;
        rest = after.trim_start();
        if rest.is_empty() {
            break;
        }
    }
    let second_nanos = u128::from(SECOND_NANOS);
    let seconds = u64::try_from(nanos / second_nanos).ok()?;
    Some(Duration::new(seconds, u32::try_from(nanos % second_nanos).ok()?))
}

/// A duration with a text. It is displayed in the form that [`parse_duration`] reads, without loss: `1h30m`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DurationText(pub Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_zero() {
            return f.write_str("0s");
        }
        let mut nanos = self.0.as_nanos();
        for (name, scale) in TIME_UNITS {
            let count = nanos / u128::from(scale);
            if count > 0 {
                write!(f, "{count}{name}")?;
                nanos %= u128::from(scale);
            }
        }
        Ok(())
    }
}

impl JsonSchema for DurationText {
    fn schema_name() -> Cow<'static, str> {
        "DurationText".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "duration" })
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let ms = Duration::from_millis;
        let seconds = Duration::from_secs;
        for (text, expected) in [
            ("0", Some(Duration::ZERO)),
            ("0s", Some(Duration::ZERO)),
            ("7ns", Some(Duration::from_nanos(7))),
            ("1.5us", Some(Duration::from_nanos(1500))),
            ("250ms", Some(ms(250))),
            ("90s", Some(seconds(90))),
            ("2 min", Some(seconds(120))),
            ("30m", Some(seconds(1800))),
            ("30min", Some(seconds(1800))),
            (" 1h30m ", Some(seconds(5400))),
            ("1h 30 min", Some(seconds(5400))),
            ("1.5h", Some(seconds(5400))),
            (".5s", Some(ms(500))),
            ("22m21s", Some(seconds(1341))),
            ("2d", Some(seconds(172_800))),
            ("1d12h", Some(seconds(129_600))),
            ("0.123456789s", Some(Duration::from_nanos(123_456_789))),
            ("18446744073709551615s", Some(seconds(u64::MAX))),
            ("18446744073709551616s", None),
            ("99999999999999999999d", None),
            ("60", None),
            ("1h30", None),
            ("s", None),
            ("5M", None),
            ("1 week", None),
            ("-1s", None),
            ("1..5s", None),
            ("", None),
        ] {
            assert_eq!(parse_duration(text).ok(), expected, "{text}");
        }
        assert_eq!(
            parse_duration("soon").unwrap_err().to_string(),
            "`soon` is not a duration; write numbers with units, such as `250ms`, `90s`, `30m`, `1h30m`, `1.5h` or `2d`"
        );
    }

    #[test]
    fn a_number_alone_counts_the_unit_of_its_option() {
        let parse = |text| parse_duration_or_count(text, Duration::from_secs(60)).ok();
        assert_eq!(parse("5"), Some(Duration::from_secs(300)));
        assert_eq!(parse("5s"), Some(Duration::from_secs(5)));
        assert_eq!(parse("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse("1.5"), None);
        assert_eq!(parse("-5"), None);
    }

    #[test]
    fn durations_are_displayed_without_loss() {
        for (nanos, expected) in [
            (0, "0s"),
            (250_000_000, "250ms"),
            (90 * SECOND_NANOS, "1m30s"),
            (5_400 * SECOND_NANOS, "1h30m"),
            (176_400 * SECOND_NANOS, "2d1h"),
            (SECOND_NANOS + 1_002_003, "1s1ms2us3ns"),
        ] {
            assert_eq!(DurationText(Duration::from_nanos(nanos)).to_string(), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn displayed_durations_are_parsed_to_the_same_value(
            seconds: u64,
            shift in 0_u32..64,
            nanos in 0_u32..1_000_000_000,
        ) {
            let duration = Duration::new(seconds >> shift, nanos);
            proptest::prop_assert_eq!(parse_duration(&DurationText(duration).to_string()), Ok(duration));
        }

        #[test]
        fn any_text_is_a_duration_or_refused(text in "([0-9.]{0,22} ?[dhmsin]{0,3}){0,3}") {
            drop(parse_duration(&text));
        }
    }
}
