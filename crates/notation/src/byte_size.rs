//! Sizes: numbers of bytes with units.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error as _};

use crate::quantity::{ParseQuantityError, UnitScale, parse_term};

const SIZE_UNITS: [UnitScale; 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A number of bytes. Its text is a number with a unit: `512 B`, `64 MiB` (powers of 1024), `1.5 GB` (powers of 1000);
/// `0` needs no unit. It is displayed as an integer of the largest binary unit that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// Creates a size from a number of bytes.
    #[must_use]
    pub const fn from_bytes(count: u64) -> Self {
        Self(count)
    }

    /// Creates a size from a number of KiB.
    #[must_use]
    pub const fn from_kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// Creates a size from a number of MiB.
    #[must_use]
    pub const fn from_mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BINARY_UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let exponent = if self.0 == 0 { 0 } else { (self.0.trailing_zeros() / 10).min(4) };
        let unit = BINARY_UNITS.get(exponent as usize).copied().unwrap_or_default();
        write!(f, "{} {unit}", self.0 >> (10 * exponent))
    }
}

impl FromStr for ByteSize {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = match parse_term(text, &SIZE_UNITS) {
            Some((bytes, rest)) if rest.trim().is_empty() => u64::try_from(bytes).ok(),
            _ => None,
        };
        bytes.map(Self).ok_or_else(|| {
            ParseQuantityError::new(
                text,
                "a size; write a number with a unit, such as `512 B`, `64 MiB` or `1.5 GB`",
            )
        })
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "size" })
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0 B", Some(0)),
            ("12B", Some(12)),
            (" 512 B ", Some(512)),
            ("300 kB", Some(300_000)),
            ("1.5 GB", Some(1_500_000_000)),
            ("2TB", Some(2_000_000_000_000)),
            ("4 KiB", Some(4 << 10)),
            ("64 MiB", Some(64 << 20)),
            ("1.5MiB", Some(3 << 19)),
            ("20GiB", Some(20 << 30)),
            ("1 TiB", Some(1 << 40)),
            ("1.1 KiB", Some(1126)),
            ("18446744073709551615 B", Some(u64::MAX)),
            ("18446744073709551616 B", None),
            ("99999999999 TiB", None),
            ("1", None),
            ("20M", None),
            ("64 mib", None),
            ("1 MB/s", None),
            ("1 KiB 2 B", None),
            ("-1 MiB", None),
            ("1.2.3 B", None),
            (". B", None),
            ("B", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok().map(ByteSize::as_bytes), expected, "{text}");
        }
        assert_eq!(
            "64 Mb".parse::<ByteSize>().unwrap_err().to_string(),
            "`64 Mb` is not a size; write a number with a unit, such as `512 B`, `64 MiB` or `1.5 GB`"
        );
    }

    #[test]
    fn sizes_are_displayed_in_the_largest_unit_that_loses_nothing() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1025, "1025 B"),
            (3 << 19, "1536 KiB"),
            (64 << 20, "64 MiB"),
            (1 << 30, "1 GiB"),
            (1 << 50, "1024 TiB"),
        ] {
            assert_eq!(ByteSize::from_bytes(bytes).to_string(), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn displayed_sizes_are_parsed_to_the_same_value(number: u64, shift in 0_u32..64) {
            let size = ByteSize::from_bytes(number >> shift << (shift / 2));
            proptest::prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_is_a_size_or_refused(text in "[0-9.]{0,25} ?[BkKMGTi]{0,3}") {
            drop(text.parse::<ByteSize>());
        }
    }
}
