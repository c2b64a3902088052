//! The request filter: the last matching rule decides, and a request that no rule matches is refused.
//!
//! All stated elements of a rule must match. Spellings that renders may treat as equal are judged together, so that a
//! path denied by a rule cannot be reached by another spelling. A rule that denies matches if any of the spellings
//! does; a rule that allows matches only if the spelling that was sent does:
//! * several selectors together and one by one, since `doc.infinity` must not open what `infinity` closes; here a rule
//!   that allows must match all of them;
//! * a query as it was sent, and with its escapes decoded;
//! * `_jcr_content` and `jcr:content`;
//! * in a rule that denies an extension, the extension of each later segment that differs from the first, since names
//!   of folders and files contain dots, too: `/dam/a.jpg/jcr:content.json` may be JSON.
//!
//! A path with parameters (`;x=1`) passes if it passes both as text and as servers cut it, and one with kept encoded
//! slashes if it also passes with those decoded.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use tympan_web::cache_path::CanonicalPath;
use tympan_web::sling_url::{
    SlingUrlReading, mangle_namespaces, strip_parameters, strip_to_slashes, unmangle_namespaces,
};

use crate::config::pattern::RulePattern;
use crate::config::{FilterMatcher, FilterRule, RequestElement, RuleVerdict};
use crate::request::view::RequestView;

/// The maximum number of later segments whose extensions are checked; for a path with more, a rule that denies any of
/// them matches.
const MAX_PATH_READINGS: usize = 32;

/// Returns the rule that decides about `request`: the last one that matches.
#[must_use]
pub(crate) fn deciding_filter_rule<'a>(
    rules: &'a [FilterRule],
    request: &RequestView,
) -> Option<&'a FilterRule> {
    let query = QueryReadings::from_request(request);
    let decide = |path: &str| {
        let subject = FilterSubject::new(request, &query, path);
        rules.iter().rev().find(|rule| subject.is_matched_by(rule, &subject.first_reading))
    };
    let own = request.path.as_str();
    let rule = decide(own)?;
    if request.has_kept_slash() && rule.verdict == RuleVerdict::Allow {
        // Not decoded again, so a `%` is literal.
        let decoded = own.replace("%2F", "/").replace('%', "%25");
        let decoded = CanonicalPath::parse(&decoded).ok()?;
        let decoded_decision = decide(decoded.as_str())?;
        if decoded_decision.verdict == RuleVerdict::Deny {
            return Some(decoded_decision);
        }
    }
    if own.contains(';') && rule.verdict == RuleVerdict::Allow {
        for cut in paths_without_path_parameters(request)? {
            let cut_decision = decide(&cut)?;
            if cut_decision.verdict == RuleVerdict::Deny {
                return Some(cut_decision);
            }
        }
    }
    Some(rule)
}

/// Returns the readings of the path that the rules refuse, although they permit the literal text of the request, as
/// numbers of [`SlingUrlReading::depth`].
#[must_use]
pub(crate) fn refused_readings(rules: &[FilterRule], request: &RequestView) -> Vec<usize> {
    let own = request.path.as_str();
    let path = match own.contains(';') {
        true => rendered_path(request).map_or(Cow::Borrowed(own), Cow::Owned),
        false => Cow::Borrowed(own),
    };
    let mut readings = SlingUrlReading::all_readings(&path).skip(1).peekable();
    if readings.peek().is_none() {
        return Vec::new();
    }
    let query = QueryReadings::from_request(request);
    let subject = FilterSubject::new(request, &query, &path);
    let is_let_in = |reading: &SlingUrlReading<'_>| {
        let rule = rules.iter().rev().find(|rule| subject.is_matched_by(rule, reading));
        rule.is_some_and(|rule| rule.verdict == RuleVerdict::Allow)
    };
    if !is_let_in(&subject.first_reading) {
        // The list of vanity URLs permitted it, and its entries are not patterns for readings.
        return Vec::new();
    }
    readings.filter(|reading| !is_let_in(reading)).map(|reading| reading.depth()).collect()
}

/// Returns the path that a publisher renders, without its parameters.
fn rendered_path(request: &RequestView) -> Option<String> {
    let cut = strip_parameters(&request.wire_path).ok()?;
    Some(CanonicalPath::parse(&cut).ok()?.as_str().to_owned())
}

/// Returns the path as seen by servers that cut parameters, before or after decoding; `None` if some server could not
/// read it.
fn paths_without_path_parameters(request: &RequestView) -> Option<Vec<String>> {
    let decoded = request.path.as_str();
    let mut paths = vec![rendered_path(request)?];
    for cut in [strip_parameters(decoded).ok()?.into_owned(), strip_to_slashes(decoded)] {
        // The cut path is not decoded again, so a `%` in it is literal.
        let cut = CanonicalPath::parse(&cut.replace('%', "%25")).ok()?.as_str().to_owned();
        if !paths.contains(&cut) {
            paths.push(cut);
        }
    }
    Some(paths)
}

/// A query in all its possible readings.
struct QueryReadings<'a> {
    raw: Option<&'a str>,
    /// The query with decoded names, if that differs.
    with_decoded_names: Option<String>,
    /// The query with decoded names and values, if that differs.
    with_decoded_values: Option<String>,
}

impl<'a> QueryReadings<'a> {
    fn from_request(request: &'a RequestView) -> Self {
        let raw = request.query.as_deref();
        let encoded = raw.filter(|query| query.contains(['%', '+']));
        let named = encoded.map(|query| {
            let pairs = query.split('&').map(|pair| match pair.split_once('=') {
                Some((name, value)) => format!("{}={value}", decode_form_component(name)),
                None => decode_form_component(pair),
            });
            pairs.collect::<Vec<_>>().join("&")
        });
        Self {
            raw,
            with_decoded_names: named,
            with_decoded_values: encoded.map(decode_form_component),
        }
    }

    /// Returns true if a rule's test of the query holds: for a denying rule in any of the readings, for an allowing
    /// rule in those it must meet.
    fn is_test_met(&self, verdict: RuleVerdict, test: impl Fn(Option<&str>) -> bool) -> bool {
        let holds = |query: &Option<String>| query.as_deref().map(|query| test(Some(query)));
        match verdict {
            RuleVerdict::Deny => {
                test(self.raw)
                    || [&self.with_decoded_names, &self.with_decoded_values]
                        .into_iter()
                        .any(|query| holds(query) == Some(true))
            }
            RuleVerdict::Allow => test(self.raw) && holds(&self.with_decoded_names) != Some(false),
        }
    }
}

/// Decodes a part of a query in form encoding.
fn decode_form_component(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// One path of a request that rules are matched against.
struct FilterSubject<'a> {
    request: &'a RequestView,
    query: &'a QueryReadings<'a>,
    path: &'a str,
    first_reading: SlingUrlReading<'a>,
    /// The path with `jcr:content` in place of `_jcr_content`, and vice versa, if that differs.
    aliases: Vec<String>,
}

impl<'a> FilterSubject<'a> {
    fn new(request: &'a RequestView, query: &'a QueryReadings<'a>, path: &'a str) -> Self {
        let mut aliases = Vec::new();
        aliases.extend(unmangle_namespaces(path).filter(|alias| alias != path));
        if path.contains(':') {
            aliases.extend(Some(mangle_namespaces(path)).filter(|alias| alias != path));
        }
        Self { request, query, path, first_reading: SlingUrlReading::by_first_dot(path), aliases }
    }

    /// Returns true if a rule matches under the path reading `reading`.
    fn is_matched_by(&self, rule: &FilterRule, reading: &SlingUrlReading<'_>) -> bool {
        let (verdict, if_broken) = (rule.verdict, rule.verdict.if_broken());
        let matches = |path: &str, reading: &SlingUrlReading<'_>| match &rule.matcher {
            FilterMatcher::RequestLine(pattern) => self.query.is_test_met(verdict, |query| {
                pattern.matches(&self.request_line(path, query), if_broken)
            }),
            FilterMatcher::Elements(elements) => elements.iter().all(|(element, pattern)| {
                self.is_element_matched(*element, pattern, path, reading, verdict)
            }),
        };
        if matches(self.path, reading) {
            return true;
        }
        if verdict == RuleVerdict::Allow {
            return false;
        }
        let of_alias = |alias: &String| {
            let same = SlingUrlReading::all_readings(alias)
                .find(|alias_reading| alias_reading.depth() == reading.depth());
            matches(alias, &same.unwrap_or_else(|| SlingUrlReading::by_first_dot(alias)))
        };
        self.aliases.iter().any(of_alias)
            || *reading == self.first_reading && self.is_denied_by_later_segment(rule, matches)
    }

    /// Returns true if a rule that denies an extension matches a later segment with a different extension.
    fn is_denied_by_later_segment(
        &self,
        rule: &FilterRule,
        matches: impl Fn(&str, &SlingUrlReading<'_>) -> bool,
    ) -> bool {
        let states = |requested_element: RequestElement| match &rule.matcher {
            FilterMatcher::Elements(elements) => {
                elements.iter().any(|(element, _)| *element == requested_element)
            }
            FilterMatcher::RequestLine(_) => false,
        };
        if !states(RequestElement::Extension) || states(RequestElement::Suffix) {
            return false;
        }
        let is_other = |reading: &SlingUrlReading<'_>| {
            reading.extension.is_some() && reading.extension != self.first_reading.extension
        };
        let mut later = SlingUrlReading::all_readings(self.path).skip(1).filter(is_other);
        later.by_ref().take(MAX_PATH_READINGS).any(|reading| matches(self.path, &reading))
            || later.next().is_some()
    }

    /// Returns the request line for a path and a query.
    fn request_line(&self, path: &str, query: Option<&str>) -> String {
        let (method, protocol) = (&self.request.method, self.request.protocol);
        match query {
            Some(query) => format!("{method} {path}?{query} {protocol}"),
            None => format!("{method} {path} {protocol}"),
        }
    }

    fn is_element_matched(
        &self,
        element: RequestElement,
        pattern: &RulePattern,
        path: &str,
        reading: &SlingUrlReading<'_>,
        verdict: RuleVerdict,
    ) -> bool {
        let if_broken = verdict.if_broken();
        let value = match element {
            RequestElement::Method => Some(self.request.method.as_str()),
            RequestElement::Url => Some(path),
            RequestElement::Protocol => Some(self.request.protocol),
            RequestElement::Path => Some(reading.path),
            // A pattern on the query never matches a missing query: not even `""` or `'()'` do.
            RequestElement::Query => {
                let test = |query: Option<&str>| {
                    query.is_some_and(|query| pattern.matches(query, if_broken))
                };
                return self.query.is_test_met(verdict, test);
            }
            RequestElement::Selectors => match reading.selectors {
                Some(selectors) => return pattern.matches_selectors(selectors, if_broken),
                None => None,
            },
            RequestElement::Extension => reading.extension,
            RequestElement::Suffix => reading.suffix,
        };
        match value {
            Some(value) => pattern.matches(value, if_broken),
            None => pattern.matches_absence(if_broken),
        }
    }
}

#[cfg(test)]
mod tests;
