//! Versions of packages, and ranges of them.
//!
//! The order is Maven's, which FileVault follows: `2.1-SNAPSHOT` is before `2.1`, `2.9` before `2.11`, and `1.0` is
//! the same as `1`. A range is written `[1.0,2.0)`; a version alone means that version or a later one.

use std::cmp::Ordering;
use std::fmt;

/// A version, which sorts as Maven sorts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    /// Whether a hyphen, or a change between digits and letters, stands before it; otherwise a dot.
    is_qualifying: bool,
    item: Item,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    /// Digits without leading zeros; empty is 0.
    Number(String),
    /// A word in lower case.
    Word(String),
}

impl Item {
    fn of(text: &str, is_before_digit: bool) -> Self {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Number(text.trim_start_matches('0').to_owned());
        }
        let word = text.to_lowercase();
        let word = match (word.as_str(), is_before_digit) {
            ("a", true) => "alpha",
            ("b", true) => "beta",
            ("m", true) => "milestone",
            ("cr", _) => "rc",
            ("ga" | "final" | "release", _) => "",
            (other, _) => other,
        };
        Self::Word(word.to_owned())
    }

    fn is_null(&self) -> bool {
        matches!(self, Self::Number(text) | Self::Word(text) if text.is_empty())
    }
}

/// Words with a place in the order; others come behind them, sorted.
const WORDS: [&str; 7] = ["alpha", "beta", "milestone", "rc", "snapshot", "", "sp"];

impl Version {
    /// Reads a version; every text is one.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.trim();
        Self { text: text.to_owned(), tokens: tokens(text) }
    }

    /// Tells whether this is the version of a package that has none.
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

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.compare(other))
    }
}

impl Version {
    /// Compares two versions; different spellings of one version are equal here.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        for place in 0..self.tokens.len().max(other.tokens.len()) {
            let (left, right) = (self.tokens.get(place), other.tokens.get(place));
            let order = match (left, right) {
                (Some(left), Some(right)) => compare(left, right),
                (Some(left), None) => compare(left, &padding(left)),
                (None, Some(right)) => compare(&padding(right), right),
                (None, None) => Ordering::Equal,
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }
}

/// Returns what stands where a version has no token for one of the other's.
fn padding(other: &Token) -> Token {
    let item = match other.item {
        Item::Number(_) => Item::Number(String::new()),
        Item::Word(_) => Item::Word(String::new()),
    };
    Token { item, ..*other }
}

fn compare(left: &Token, right: &Token) -> Ordering {
    match (&left.item, &right.item) {
        (Item::Word(_), Item::Number(_)) => Ordering::Less,
        (Item::Number(_), Item::Word(_)) => Ordering::Greater,
        (Item::Word(left), Item::Word(right)) => rank(left).cmp(&rank(right)),
        (Item::Number(one), Item::Number(two)) => {
            // `1-1` is before `1.1`.
            let separators = right.is_qualifying.cmp(&left.is_qualifying);
            separators.then(one.len().cmp(&two.len())).then_with(|| one.cmp(two))
        }
    }
}

fn rank(word: &str) -> (usize, &str) {
    match WORDS.iter().position(|known| *known == word) {
        Some(place) => (place, ""),
        None => (WORDS.len(), word),
    }
}

/// Cuts a version at dots, hyphens, and between digits and letters.
fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut is_qualifying = false;
    let mut rest = text;
    while !rest.is_empty() {
        let is_number = rest.starts_with(|first: char| first.is_ascii_digit());
        let ends = |one: char| one == '.' || one == '-' || one.is_ascii_digit() != is_number;
        let (token, after) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        let is_before_digit = after.starts_with(|next: char| next.is_ascii_digit());
        // Nothing between two separators is 0.
        let item = if token.is_empty() {
            Item::Number(String::new())
        } else {
            Item::of(token, is_before_digit)
        };
        out.push(Token { is_qualifying, item });
        is_qualifying = !after.starts_with('.');
        rest = after.strip_prefix(['.', '-']).unwrap_or(after);
    }
    without_nulls(out)
}

/// Takes out what means nothing: `0` and `final` at the end and before a hyphen.
fn without_nulls(tokens: Vec<Token>) -> Vec<Token> {
    let mut out: Vec<Token> = Vec::new();
    for token in tokens {
        if token.is_qualifying {
            while out.last().is_some_and(|last| last.item.is_null()) {
                out.pop();
            }
        }
        out.push(token);
    }
    while out.last().is_some_and(|last| last.item.is_null()) {
        out.pop();
    }
    out
}

/// A range of versions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VersionRange {
    low: Option<Bound>,
    high: Option<Bound>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Bound {
    version: Version,
    is_inclusive: bool,
}

impl VersionRange {
    /// Reads a range: `[1.0,2.0)`, `(,3]`, `1.0` for that or later, nothing for all. The error says what is wrong.
    ///
    /// # Errors
    /// If brackets are missing or nothing lies between the bounds.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let bound = |text: &str, is_inclusive| {
            let version = Version::new(text);
            (!version.is_empty()).then_some(Bound { version, is_inclusive })
        };
        let Some((low, high)) = text.split_once(',') else {
            // `[1.0]` is that version and no other.
            let exact = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            return Ok(match exact {
                Some(exact) => Self { low: bound(exact, true), high: bound(exact, true) },
                None => Self { low: bound(text, true), high: None },
            });
        };
        let (low, has_low) = match (low.strip_prefix('['), low.strip_prefix('(')) {
            (Some(low), _) => (low, true),
            (None, Some(low)) => (low, false),
            (None, None) => {
                return Err(format!("the range `{text}` begins with neither `[` nor `(`"));
            }
        };
        let (high, has_high) = match (high.strip_suffix(']'), high.strip_suffix(')')) {
            (Some(high), _) => (high, true),
            (None, Some(high)) => (high, false),
            (None, None) => {
                return Err(format!("the range `{text}` ends with neither `]` nor `)`"));
            }
        };
        let range = Self { low: bound(low, has_low), high: bound(high, has_high) };
        if let (Some(low), Some(high)) = (&range.low, &range.high) {
            let is_point = low.is_inclusive && high.is_inclusive;
            match low.version.compare(&high.version) {
                Ordering::Less => {}
                Ordering::Equal if is_point => {}
                _ => return Err(format!("no version lies in the range `{text}`")),
            }
        }
        Ok(range)
    }

    /// Makes the range of one version.
    #[must_use]
    pub fn exactly(version: &str) -> Self {
        let bound = Bound { version: Version::new(version), is_inclusive: true };
        let bound = (!bound.version.is_empty()).then_some(bound);
        Self { low: bound.clone(), high: bound }
    }

    /// Tells whether a version lies in the range.
    #[must_use]
    pub fn contains(&self, version: &Version) -> bool {
        let is_above = self.low.as_ref().is_none_or(|low| match version.compare(&low.version) {
            Ordering::Greater => true,
            Ordering::Equal => low.is_inclusive,
            Ordering::Less => false,
        });
        let is_below = self.high.as_ref().is_none_or(|high| match version.compare(&high.version) {
            Ordering::Less => true,
            Ordering::Equal => high.is_inclusive,
            Ordering::Greater => false,
        });
        is_above && is_below
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.low, &self.high) {
            (None, None) => Ok(()),
            (Some(low), None) if low.is_inclusive && !low.version.text.starts_with(['[', '(']) => {
                write!(f, "{}", low.version)
            }
            (low, high) => {
                let is_open =
                    |bound: &Option<Bound>| bound.as_ref().is_some_and(|one| !one.is_inclusive);
                let text = |bound: &Option<Bound>| {
                    bound.as_ref().map_or(String::new(), |one| one.version.to_string())
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
        // Each is before the next.
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
        for (place, left) in rising.iter().enumerate() {
            for (other, right) in rising.iter().enumerate() {
                let order = Version::new(left).compare(&Version::new(right));
                assert_eq!(order, place.cmp(&other), "{left} and {right}");
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
                Version::new(left).compare(&Version::new(right)),
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
                assert!(parsed.contains(&Version::new(version)), "{version} in {range}");
            }
            for version in outside {
                assert!(!parsed.contains(&Version::new(version)), "{version} not in {range}");
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
