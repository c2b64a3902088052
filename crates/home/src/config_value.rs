//! Parsing of TOML values: sizes and durations with units, and errors with their position and the nearest known key.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};

/// A number of bytes, written as `"64 MiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigByteSize(pub u64);

/// A duration, written as `"30s"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for ConfigByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_size(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a size; write \"64 MiB\"")))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_span(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom(format!("`{text}` is not a duration; write \"30s\"")))
    }
}

/// Parses a size such as `64 MiB`.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text)?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Parses a duration such as `30s`.
pub fn parse_span(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    Some(match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        "d" => Duration::from_secs(number.checked_mul(24 * 3600)?),
        _ => return None,
    })
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let at = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    Some((number.parse().ok()?, unit.trim()))
}

/// Parses TOML; an error has the form `file:line:column: message`, with the nearest key for an unknown one.
pub fn parse_toml<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let before = text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = error.message();
        let hint =
            nearest_key(message).map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
        format!("{file}:{line}:{column}: {message}{hint}")
    })
}

/// Finds the expected key that is nearest to the unknown one in serde's message.
fn nearest_key(message: &str) -> Option<&str> {
    let mut names = message.split('`').skip(1).step_by(2);
    let unknown = names.next().filter(|_| message.starts_with("unknown field"))?;
    names.min_by_key(|candidate| edit_distance(unknown, candidate))
}

/// Returns the edit distance: the number of insertions, deletions and replacements that turn one text into the other.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, character) in left.chars().enumerate() {
        let mut diagonal = at;
        let mut previous = at + 1;
        for (cell, letter) in row.iter_mut().skip(1).zip(&right) {
            let replaced = diagonal + usize::from(character != *letter);
            diagonal = *cell;
            *cell = replaced.min(diagonal + 1).min(previous + 1);
            previous = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_have_units() {
        assert_eq!(parse_size("64 MiB"), Some(64 << 20));
        assert_eq!(parse_size("1B"), Some(1));
        assert_eq!(parse_size("64 MB"), None);
        assert_eq!(parse_span("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_span("5min"), Some(Duration::from_secs(300)));
        assert_eq!(parse_span("s"), None);
    }

    #[test]
    fn distances_count_edits() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }
}
