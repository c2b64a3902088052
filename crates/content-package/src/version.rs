//! Versions of packages, and version ranges.
//!
//! The order is Maven's, which FileVault follows: `2.1-SNAPSHOT` is before `2.1`, `2.9` before `2.11`, and `1.0` equals
//! `1`. A range is written `[1.0,2.0)`; a version alone means that version or a later one.

use std::cmp::Ordering;
use std::fmt;

/// A version, in Maven's sort order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageVersion {
    text: String,
    tokens: Vec<VersionToken>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct VersionToken {
    /// True if a hyphen, or a change between digits and letters, precedes it; false for a dot.
    is_after_hyphen: bool,
    item: VersionItem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum VersionItem {
    /// Digits without leading zeros; empty is 0.
    Number(String),
    /// A word in lower case.
    Qualifier(String),
}

impl VersionItem {
    fn from_text(text: &str, is_before_digit: bool) -> Self {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Number(text.trim_start_matches('0').to_owned());
        }
        let qualifier = text.to_lowercase();
        let qualifier = match (qualifier.as_str(), is_before_digit) {
            ("a", true) => "alpha",
            ("b", true) => "beta",
            ("m", true) => "milestone",
            ("cr", _) => "rc",
            ("ga" | "final" | "release", _) => "",
            (text_qualifier, _) => text_qualifier,
        };
        Self::Qualifier(qualifier.to_owned())
    }

    fn is_zero_or_release(&self) -> bool {
        matches!(self, Self::Number(text) | Self::Qualifier(text) if text.is_empty())
    }
}

/// Qualifiers in their order; others follow them, sorted.
const ORDERED_QUALIFIERS: [&str; 7] = ["alpha", "beta", "milestone", "rc", "snapshot", "", "sp"];

impl PackageVersion {
    /// Parses a version; every text is valid.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.trim();
        Self { text: text.to_owned(), tokens: tokenize(text) }
    }

    /// Returns true if the version is empty, as for a package without one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the version as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for PackageVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialOrd for PackageVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.compare(other))
    }
}

impl PackageVersion {
    /// Compares two versions; different spellings of one version are equal.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        for position in 0..self.tokens.len().max(other.tokens.len()) {
            let (left, right) = (self.tokens.get(position), other.tokens.get(position));
            let order = match (left, right) {
                (Some(left), Some(right)) => compare_tokens(left, right),
                (Some(left), None) => compare_tokens(left, &padding_token(left)),
                (None, Some(right)) => compare_tokens(&padding_token(right), right),
                (None, None) => Ordering::Equal,
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }
}

/// Returns the token to compare with a token of the other version if this one has no more.
fn padding_token(counterpart: &VersionToken) -> VersionToken {
    let item = match counterpart.item {
        VersionItem::Number(_) => VersionItem::Number(String::new()),
        VersionItem::Qualifier(_) => VersionItem::Qualifier(String::new()),
    };
    VersionToken { item, ..*counterpart }
}

fn compare_tokens(left: &VersionToken, right: &VersionToken) -> Ordering {
    match (&left.item, &right.item) {
        (VersionItem::Qualifier(_), VersionItem::Number(_)) => Ordering::Less,
        (VersionItem::Number(_), VersionItem::Qualifier(_)) => Ordering::Greater,
        (VersionItem::Qualifier(left), VersionItem::Qualifier(right)) => {
            qualifier_rank(left).cmp(&qualifier_rank(right))
        }
        (VersionItem::Number(left_number), VersionItem::Number(right_number)) => {
            // `1-1` is before `1.1`.
            let separators = right.is_after_hyphen.cmp(&left.is_after_hyphen);
            separators
                .then(left_number.len().cmp(&right_number.len()))
                .then_with(|| left_number.cmp(right_number))
        }
    }
}

fn qualifier_rank(qualifier: &str) -> (usize, &str) {
    match ORDERED_QUALIFIERS.iter().position(|candidate| *candidate == qualifier) {
        Some(rank) => (rank, ""),
        None => (ORDERED_QUALIFIERS.len(), qualifier),
    }
}

/// Splits a version at dots, hyphens, and between digits and letters.
fn tokenize(text: &str) -> Vec<VersionToken> {
    let mut out = Vec::new();
    let mut is_qualifying = false;
    let mut rest = text;
    while !rest.is_empty() {
        let is_number = rest.starts_with(|first: char| first.is_ascii_digit());
        let ends = |character: char| {
            character == '.' || character == '-' || character.is_ascii_digit() != is_number
        };
        let (token, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let is_before_digit = after.starts_with(|next: char| next.is_ascii_digit());
        // An empty part between two separators is 0.
        let item = if token.is_empty() {
            VersionItem::Number(String::new())
        } else {
            VersionItem::from_text(token, is_before_digit)
        };
        out.push(VersionToken { is_after_hyphen: is_qualifying, item });
        is_qualifying = !after.starts_with('.');
        rest = after.strip_prefix(['.', '-']).unwrap_or(after);
    }
    without_trailing_nulls(out)
}

/// Removes tokens without meaning: `0` and `final` at the end and before a hyphen.
fn without_trailing_nulls(tokens: Vec<VersionToken>) -> Vec<VersionToken> {
    let mut out: Vec<VersionToken> = Vec::new();
    for token in tokens {
        if token.is_after_hyphen {
            while out.last().is_some_and(|last| last.item.is_zero_or_release()) {
                out.pop();
            }
        }
        out.push(token);
    }
    while out.last().is_some_and(|last| last.item.is_zero_or_release()) {
        out.pop();
    }
    out
}

/// A range of versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionRange {
    lower_bound: Option<VersionBound>,
    upper_bound: Option<VersionBound>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct VersionBound {
    version: PackageVersion,
    is_inclusive: bool,
}

impl VersionRange {
    /// Parses a range: `[1.0,2.0)`, `(,3]`, `1.0` for that version or later, an empty text for all. The error describes
    /// the fault.
    ///
    /// # Errors
    /// If brackets are missing or the range is empty.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bound = |text: &str, is_inclusive| {
            let version = PackageVersion::new(text);
            (!version.is_empty()).then_some(VersionBound { version, is_inclusive })
        };
        let Some((low, high)) = text.split_once(',') else {
            // `[1.0]` is exactly that version.
            let exact = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            return Ok(match exact {
                Some(exact) => {
                    Self { lower_bound: bound(exact, true), upper_bound: bound(exact, true) }
                }
                None => Self { lower_bound: bound(text, true), upper_bound: None },
            });
        };
        let (low, has_low) = match (low.strip_prefix('['), low.strip_prefix('(')) {
            (Some(low), _) => (low, true),
            (None, Some(low)) => (low, false),
            (None, None) => {
                return Err(format!("the range `{text}` must begin with `[` or `(`"));
            }
        };
        let (high, has_high) = match (high.strip_suffix(']'), high.strip_suffix(')')) {
            (Some(high), _) => (high, true),
            (None, Some(high)) => (high, false),
            (None, None) => {
                return Err(format!("the range `{text}` must end with `]` or `)`"));
            }
        };
        let range = Self { lower_bound: bound(low, has_low), upper_bound: bound(high, has_high) };
        if let (Some(low), Some(high)) = (&range.lower_bound, &range.upper_bound) {
            let is_point = low.is_inclusive && high.is_inclusive;
            match low.version.compare(&high.version) {
                Ordering::Less => {}
                Ordering::Equal if is_point => {}
                _ => return Err(format!("the range `{text}` contains no version")),
            }
        }
        Ok(range)
    }

    /// Creates the range of exactly one version.
    #[must_use]
    pub fn exactly(version: &str) -> Self {
        let bound = VersionBound { version: PackageVersion::new(version), is_inclusive: true };
        let bound = (!bound.version.is_empty()).then_some(bound);
        Self { lower_bound: bound.clone(), upper_bound: bound }
    }

    /// Returns true if the range contains a version.
    #[must_use]
    pub fn contains(&self, version: &PackageVersion) -> bool {
        let is_above =
            self.lower_bound.as_ref().is_none_or(|low| match version.compare(&low.version) {
                Ordering::Greater => true,
                Ordering::Equal => low.is_inclusive,
                Ordering::Less => false,
            });
        let is_below =
            self.upper_bound.as_ref().is_none_or(|high| match version.compare(&high.version) {
                Ordering::Less => true,
                Ordering::Equal => high.is_inclusive,
                Ordering::Greater => false,
            });
        is_above && is_below
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.lower_bound, &self.upper_bound) {
            (None, None) => Ok(()),
            (Some(low), None) if low.is_inclusive && !low.version.text.starts_with(['[', '(']) => {
                write!(f, "{}", low.version)
            }
            (low, high) => {
                let is_open = |bound: &Option<VersionBound>| {
                    bound.as_ref().is_some_and(|limit| !limit.is_inclusive)
                };
                let text = |bound: &Option<VersionBound>| {
                    bound.as_ref().map_or(String::new(), |limit| limit.version.to_string())
                };
                let (open, close) = (
                    if is_open(low) { '(' } else { '[' },
                    if is_open(high) || high.is_none() { ')' } else { ']' },
                );
                write!(f, "{open}{},{}{close}", text(low), text(high))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_mavens_do() {
        // Each version is before the next.
        let rising = [
            "1-alpha-1",
            "1-alpha2",
            "1-beta",
            "1-m1",
            "1-rc",
            "1-SNAPSHOT",
            "1",
            "1-sp",
            "1-foo",
            "1-foo1",
            "1-1",
            "1.0.1",
            "1.1",
            "2.0.1",
            "2.1-RC1",
            "2.1-SNAPSHOT",
            "2.1",
            "2.1.1",
            "2.9",
            "2.11",
            "10.0",
        ];
        for (left_rank, left) in rising.iter().enumerate() {
            for (right_rank, right) in rising.iter().enumerate() {
                let order = PackageVersion::new(left).compare(&PackageVersion::new(right));
                assert_eq!(order, left_rank.cmp(&right_rank), "{left} and {right}");
            }
        }
        for (left, right) in [
            ("1", "1.0.0"),
            ("1.0-ga", "1"),
            ("1-RC", "1-cr"),
            ("01", "1"),
            ("1.0.0-foo.0.0", "1-foo"),
            ("", "0"),
        ] {
            assert_eq!(
                PackageVersion::new(left).compare(&PackageVersion::new(right)),
                Ordering::Equal,
                "{left} and {right}"
            );
        }
    }

    #[test]
    fn ranges_hold_their_bounds() {
        let check = |range: &str, inside: &[&str], outside: &[&str]| {
            let parsed = VersionRange::parse(range).unwrap();
            for version in inside {
                assert!(parsed.contains(&PackageVersion::new(version)), "{version} in {range}");
            }
            for version in outside {
                assert!(
                    !parsed.contains(&PackageVersion::new(version)),
                    "{version} not in {range}"
                );
            }
        };
        check(
            "[1.0,2.0)",
            &["1.0", "1", "1.9", "2.0-SNAPSHOT"],
            &["0.9", "2.0", "2.0.1", "1.0-SNAPSHOT"],
        );
        check("(1.0,2.0]", &["1.0.1", "2.0"], &["1.0", "2.0.1"]);
        check("1.5", &["1.5", "3"], &["1.4"]);
        check("(,2.0)", &["", "1"], &["2"]);
        check("[1,)", &["1", "9"], &["0.9"]);
        check("[1.2]", &["1.2"], &["1.2.1", "1.1"]);
        check("", &["", "1"], &[]);
        for refused in ["1.0,2.0", "[1.0,2.0", "[2.0,1.0]", "(1.0,1.0]"] {
            assert!(VersionRange::parse(refused).is_err(), "{refused}");
        }
        for text in ["", "1.0", "[1.0,2.0)", "(1.0,2.0]", "[,2.0]", "[[1],)"] {
            assert_eq!(VersionRange::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(VersionRange::exactly("1.0").to_string(), "[1.0,1.0]");
    }
}
