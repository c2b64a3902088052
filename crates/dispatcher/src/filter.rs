//! Whether a request may pass: the last rule that matches decides, and what no rule matches is refused.
//!
//! All stated elements of a rule must match. Several selectors are tried together and one by one: a rule that denies
//! matches if any of them does, a rule that allows only if all do, since `doc.infinity` must not open what `infinity`
//! closes.

use crate::config::{Element, FilterRule, Matcher, Verdict};
use crate::decompose::{Parts, decompose};
use crate::pattern::{IfBroken, Pattern};
use crate::request::RequestView;

/// Returns the rule that decides about `request`: the last one that matches.
#[must_use]
pub(crate) fn deciding<'a>(
    rules: &'a [FilterRule],
    request: &RequestView,
) -> Option<&'a FilterRule> {
    let subject =
        Subject { request, parts: decompose(request.path.as_str()), line: request.line() };
    rules.iter().rev().find(|rule| subject.is_matched_by(rule))
}

struct Subject<'a> {
    request: &'a RequestView,
    parts: Parts<'a>,
    line: String,
}

impl Subject<'_> {
    fn is_matched_by(&self, rule: &FilterRule) -> bool {
        let if_broken = rule.verdict.if_broken();
        match &rule.matcher {
            Matcher::RequestLine(pattern) => pattern.matches(&self.line, if_broken),
            Matcher::Elements(elements) => elements
                .iter()
                .all(|(element, pattern)| self.is_element_matched(*element, pattern, rule.verdict)),
        }
    }

    fn is_element_matched(&self, element: Element, pattern: &Pattern, verdict: Verdict) -> bool {
        let if_broken = verdict.if_broken();
        let request = self.request;
        let value = match element {
            Element::Method => Some(request.method.as_str()),
            Element::Url => Some(request.path.as_str()),
            Element::Protocol => Some(request.protocol),
            Element::Path => Some(self.parts.path),
            // A pattern on the query never matches its absence: not even `""` or `'()'` do.
            Element::Query => match &request.query {
                Some(query) => return pattern.matches(query, if_broken),
                None => return false,
            },
            Element::Selectors => match self.parts.selectors {
                Some(selectors) => return matches_selectors(pattern, selectors, verdict),
                None => None,
            },
            Element::Extension => self.parts.extension,
            Element::Suffix => self.parts.suffix,
        };
        match value {
            Some(value) => pattern.matches(value, if_broken),
            None => pattern.matches_absence(if_broken),
        }
    }
}

fn matches_selectors(pattern: &Pattern, selectors: &str, verdict: Verdict) -> bool {
    let if_broken = verdict.if_broken();
    let matches = |selector: &str| pattern.matches(selector, if_broken);
    matches(selectors)
        || match if_broken {
            IfBroken::Matches => selectors.split('.').any(matches),
            IfBroken::Misses => selectors.split('.').all(matches),
        }
}
