//! Patterns of rules: a glob in double quotes, an anchored regular expression in single quotes.

use regex::Regex;

use crate::config::any_syntax::{ConfigText, QuoteStyle};
use crate::config::glob::DispatcherGlob;

/// A compiled pattern.
#[derive(Debug, Clone)]
pub enum RulePattern {
    /// `"…"` or a bare word.
    Glob(DispatcherGlob),
    /// `'…'`, matching the whole text.
    Regex(Regex),
    /// A regular expression that cannot be compiled, or a missing pattern.
    Invalid,
}

impl RulePattern {
    /// Compiles `text` according to its quoting.
    ///
    /// # Errors
    /// Returns the reason why a regular expression cannot be compiled; use [`RulePattern::Invalid`] then.
    pub fn parse(text: &ConfigText) -> Result<Self, String> {
        match text.quote {
            QuoteStyle::Double | QuoteStyle::Bare => {
                Ok(Self::Glob(DispatcherGlob::new(&text.text)))
            }
            QuoteStyle::Single => compile_posix_regex(&text.text).map(Self::Regex),
        }
    }

    /// Returns true if the pattern matches the whole of `text`; a broken pattern behaves as `if_broken` says.
    ///
    /// A rule with a broken pattern must err on the safe side: a rule that denies matches, a rule that allows does not.
    #[must_use]
    pub fn matches(&self, text: &str, if_broken: BrokenPatternPolicy) -> bool {
        match self {
            Self::Glob(glob) => glob.matches(text),
            Self::Regex(regex) => regex.is_match(text),
            Self::Invalid => if_broken == BrokenPatternPolicy::MatchAll,
        }
    }

    /// Returns true if the pattern matches selectors: together, or one by one; a rule on the safe side matches if any of
    /// them does, another one only if all do.
    #[must_use]
    pub(crate) fn matches_selectors(
        &self,
        selectors: &str,
        if_broken: BrokenPatternPolicy,
    ) -> bool {
        let matches = |selector: &str| self.matches(selector, if_broken);
        matches(selectors)
            || match if_broken {
                BrokenPatternPolicy::MatchAll => selectors.split('.').any(matches),
                BrokenPatternPolicy::MatchNone => selectors.split('.').all(matches),
            }
    }

    /// Returns true if the pattern matches an absent element.
    ///
    /// A regular expression is matched against the empty text; of globs only `""` means absence, as otherwise `"*"` on
    /// selectors would match every page that has none.
    #[must_use]
    pub fn matches_absence(&self, if_broken: BrokenPatternPolicy) -> bool {
        match self {
            Self::Glob(glob) => glob.source().is_empty(),
            Self::Regex(regex) => regex.is_match(""),
            Self::Invalid => if_broken == BrokenPatternPolicy::MatchAll,
        }
    }
}

/// The behavior of a broken pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenPatternPolicy {
    /// It matches everything (in a rule on the safe side, such as one that denies).
    MatchAll,
    /// It matches nothing (in any other rule, such as one that allows).
    MatchNone,
}

/// Compiles a POSIX extended regular expression, anchored at both ends.
fn compile_posix_regex(source: &str) -> Result<Regex, String> {
    // Compile it alone first: `a)|(?:b` would be well-formed inside the anchors, and escape them.
    Regex::new(source).and_then(|_alone| Regex::new(&format!("(?s)^(?:{source})$"))).map_err(
        |error| {
            // The crate's message spans several lines; the last one holds the reason.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default();
            reason.trim_start_matches("error: ").to_owned()
        },
    )
}
