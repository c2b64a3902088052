//! Patterns of rules: a glob in double quotes, an anchored regular expression in single quotes.

use regex::Regex;

use crate::any_syntax::{ConfigText, QuoteStyle};
use crate::glob::Glob;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub enum RulePattern {
    /// `"…"` or a bare word.
    Glob(Glob),
    /// `'…'`, matching the whole text.
    Regex(Regex),
    /// A regular expression that could not be read, or a pattern that is missing.
    Invalid,
}

impl RulePattern {
    /// Compiles `text` by the way in which it is quoted.
    ///
    /// # Errors
    /// The reason why a regular expression cannot be read; use [`RulePattern::Invalid`] then.
    pub fn parse(text: &ConfigText) -> Result<Self, String> {
        match text.quote {
            QuoteStyle::Double | QuoteStyle::Bare => Ok(Self::Glob(Glob::new(&text.text))),
            QuoteStyle::Single => compile_posix_regex(&text.text).map(Self::Regex),
        }
    }

    /// Tells whether the pattern matches the whole of `text`; a broken one does as `if_broken` says.
    ///
    /// A rule whose pattern is broken must err to safety: one that denies matches, one that allows does not.
    #[must_use]
    pub fn matches(&self, text: &str, if_broken: BrokenPatternPolicy) -> bool {
        match self {
            Self::Glob(glob) => glob.matches(text),
            Self::Regex(regex) => regex.is_match(text),
            Self::Invalid => if_broken == BrokenPatternPolicy::MatchAll,
        }
    }

    /// Tells whether the pattern matches where the element that it stands for is absent.
    ///
    /// A regular expression is tried on the empty text; of globs only `""` means absence, as otherwise `"*"` on
    /// selectors would hit every page that has none.
    #[must_use]
    pub fn matches_absence(&self, if_broken: BrokenPatternPolicy) -> bool {
        match self {
            Self::Glob(glob) => glob.source().is_empty(),
            Self::Regex(regex) => regex.is_match(""),
            Self::Invalid => if_broken == BrokenPatternPolicy::MatchAll,
        }
    }
}

/// What a broken pattern does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenPatternPolicy {
    /// It matches everything (in a rule on the safe side, as one that denies).
    MatchAll,
    /// It matches nothing (in any other, as one that allows).
    MatchNone,
}

/// Compiles a POSIX extended expression, anchored at both ends.
fn compile_posix_regex(source: &str) -> Result<Regex, String> {
    // Alone first: `a)|(?:b` would be well-formed inside the anchors, and escape them.
    Regex::new(source).and_then(|_alone| Regex::new(&format!("(?s)^(?:{source})$"))).map_err(
        |error| {
            // The crate's message spans several lines; the last one holds the reason.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            reason.trim_start_matches("error: ").to_owned()
        },
    )
}
