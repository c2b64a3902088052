//! Decimal numbers with units.

use std::fmt;

/// A unit's name, and its size in the smallest unit.
pub(crate) type UnitScale = (&'static str, u64);

/// A text that is not a quantity of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseQuantityError {
    text: String,
    /// The kind of quantity with examples.
    expected: &'static str,
}

impl ParseQuantityError {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

impl fmt::Display for ParseQuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not {}", self.text, self.expected)
    }
}

impl std::error::Error for ParseQuantityError {}

/// Parses a decimal number with a unit at the start of a text. Returns its value in the smallest unit, rounded down,
/// and the rest of the text. Only `0` needs no unit.
pub(crate) fn parse_term<'t>(text: &'t str, units: &[UnitScale]) -> Option<(u128, &'t str)> {
    let text = text.trim_start();
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(number_end);
    let rest = rest.trim_start();
    let unit_end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let scale = match units.iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => *scale,
        None if unit.is_empty() && number == "0" => 1,
        None => return None,
    };
    Some((scale_decimal(number, scale)?, rest))
}

/// Multiplies a decimal number with at most 18 decimals by an integer, and rounds down.
fn scale_decimal(number: &str, scale: u64) -> Option<u128> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && decimals.is_empty() || decimals.len() > 18 {
        return None;
    }
    let digits =
        |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<u64>().ok() };
    let decimal_scale = 10_u128.pow(u32::try_from(decimals.len()).ok()?);
    let fraction = u128::from(digits(decimals)?) * u128::from(scale) / decimal_scale;
    Some(u128::from(digits(whole)?) * u128::from(scale) + fraction)
}
