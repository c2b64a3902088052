//! Whether a request may pass: the last rule that matches decides, and what no rule matches is refused.
//!
//! All stated elements of a rule must match. What renders may take for the same thing is judged together, so that what a
//! rule closes cannot be opened by another spelling; a rule that denies matches if any of the spellings does, a rule that
//! allows only if the one that was sent does:
//! * several selectors together and one by one, since `doc.infinity` must not open what `infinity` closes; here a rule that
//!   allows must match all of them;
//! * a query as it was sent, and with its escapes decoded;
//! * `_jcr_content` and `jcr:content`;
//! * in a rule that denies an extension, the extension of each later segment that has another one than the first, since folders
//!   and files have dots in their names, too: `/dam/a.jpg/jcr:content.json` may be JSON.
//!
//! A path with parameters (`;x=1`) passes if it does as text and as servers cut it.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use tympan_web::cache_path::CanonicalPath;
use tympan_web::sling_url::{Reading, cut_parameters, cut_to_slashes, mangle, unmangle};

use crate::config::{Element, FilterRule, Matcher, Verdict};
use crate::pattern::{IfBroken, Pattern};
use crate::request::RequestView;

/// Later segments whose extensions are looked at; of a path with more, a rule that denies any takes one for its own.
const MAX_READINGS: usize = 32;

/// Returns the rule that decides about `request`: the last one that matches.
#[must_use]
pub(crate) fn deciding<'a>(
    rules: &'a [FilterRule],
    request: &RequestView,
) -> Option<&'a FilterRule> {
    let query = Query::of(request);
    let decide = |path: &str| {
        let subject = Subject::new(request, &query, path);
        rules.iter().rev().find(|rule| subject.is_matched_by(rule, &subject.first))
    };
    let own = request.path.as_str();
    let rule = decide(own)?;
    if own.contains(';') && rule.verdict == Verdict::Allow {
        for cut in paths_without_parameters(request)? {
            let other = decide(&cut)?;
            if other.verdict == Verdict::Deny {
                return Some(other);
            }
        }
    }
    Some(rule)
}

/// Returns the readings of the path that the rules refuse, although they let the request pass as its text reads: numbers as
/// [`Reading::depth`] gives them.
#[must_use]
pub(crate) fn refused_readings(rules: &[FilterRule], request: &RequestView) -> Vec<usize> {
    let own = request.path.as_str();
    let path = match own.contains(';') {
        true => drawn_path(request).map_or(Cow::Borrowed(own), Cow::Owned),
        false => Cow::Borrowed(own),
    };
    let mut readings = Reading::all(&path).skip(1).peekable();
    if readings.peek().is_none() {
        return Vec::new();
    }
    let query = Query::of(request);
    let subject = Subject::new(request, &query, &path);
    let is_let_in = |reading: &Reading<'_>| {
        let rule = rules.iter().rev().find(|rule| subject.is_matched_by(rule, reading));
        rule.is_some_and(|rule| rule.verdict == Verdict::Allow)
    };
    if !is_let_in(&subject.first) {
        // The list of vanity URLs let it in, whose entries are no patterns of readings.
        return Vec::new();
    }
    readings.filter(|reading| !is_let_in(reading)).map(|reading| reading.depth()).collect()
}

/// Returns the path that a publisher draws, without its parameters.
fn drawn_path(request: &RequestView) -> Option<String> {
    let cut = cut_parameters(&request.wire_path).ok()?;
    Some(CanonicalPath::parse(&cut).ok()?.as_str().to_owned())
}

/// Returns the path as servers see it that cut parameters, whether they decode before or after; nothing if some server could
/// not read it.
fn paths_without_parameters(request: &RequestView) -> Option<Vec<String>> {
    let decoded = request.path.as_str();
    let mut paths = vec![drawn_path(request)?];
    for cut in [cut_parameters(decoded).ok()?.into_owned(), cut_to_slashes(decoded)] {
        // What is cut is not decoded again, so that a `%` in it is one.
        let cut = CanonicalPath::parse(&cut.replace('%', "%25")).ok()?.as_str().to_owned();
        if !paths.contains(&cut) {
            paths.push(cut);
        }
    }
    Some(paths)
}

/// A query in the ways in which it can be read.
struct Query<'a> {
    raw: Option<&'a str>,
    /// With decoded names, if that makes a difference.
    named: Option<String>,
    /// With decoded names and values, if that makes a difference.
    decoded: Option<String>,
}

impl<'a> Query<'a> {
    fn of(request: &'a RequestView) -> Self {
        let raw = request.query.as_deref();
        let encoded = raw.filter(|query| query.contains(['%', '+']));
        let named = encoded.map(|query| {
            let pairs = query.split('&').map(|pair| match pair.split_once('=') {
                Some((name, value)) => format!("{}={value}", decode(name)),
                None => decode(pair),
            });
            pairs.collect::<Vec<_>>().join("&")
        });
        Self { raw, named, decoded: encoded.map(decode) }
    }

    /// Tells whether a test that a rule makes of the query holds for any of these, or for those that an allowance must meet.
    fn is_matched(&self, verdict: Verdict, test: impl Fn(Option<&str>) -> bool) -> bool {
        let holds = |query: &Option<String>| query.as_deref().map(|query| test(Some(query)));
        match verdict {
            Verdict::Deny => {
                test(self.raw)
                    || [&self.named, &self.decoded]
                        .into_iter()
                        .any(|query| holds(query) == Some(true))
            }
            Verdict::Allow => test(self.raw) && holds(&self.named) != Some(false),
        }
    }
}

/// Decodes a part of a query as forms are encoded.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// One path of a request, which rules look at.
struct Subject<'a> {
    request: &'a RequestView,
    query: &'a Query<'a>,
    path: &'a str,
    first: Reading<'a>,
    /// The path with `jcr:content` for `_jcr_content`, and the other way round, where that differs.
    aliases: Vec<String>,
}

impl<'a> Subject<'a> {
    fn new(request: &'a RequestView, query: &'a Query<'a>, path: &'a str) -> Self {
        let mut aliases = Vec::new();
        aliases.extend(unmangle(path).filter(|alias| alias != path));
        if path.contains(':') {
            aliases.extend(Some(mangle(path)).filter(|alias| alias != path));
        }
        Self { request, query, path, first: Reading::first(path), aliases }
    }

    /// Tells whether a rule matches if `reading` is what the path says.
    fn is_matched_by(&self, rule: &FilterRule, reading: &Reading<'_>) -> bool {
        let (verdict, if_broken) = (rule.verdict, rule.verdict.if_broken());
        let matches = |path: &str, reading: &Reading<'_>| match &rule.matcher {
            Matcher::RequestLine(pattern) => self
                .query
                .is_matched(verdict, |query| pattern.matches(&self.line(path, query), if_broken)),
            Matcher::Elements(elements) => elements.iter().all(|(element, pattern)| {
                self.is_element_matched((*element, pattern), path, reading, verdict)
            }),
        };
        if matches(self.path, reading) {
            return true;
        }
        if verdict == Verdict::Allow {
            return false;
        }
        let of_alias = |alias: &String| {
            let same = Reading::all(alias).find(|other| other.depth() == reading.depth());
            matches(alias, &same.unwrap_or_else(|| Reading::first(alias)))
        };
        self.aliases.iter().any(of_alias)
            || *reading == self.first && self.is_denied_later(rule, matches)
    }

    /// Tells whether a rule that denies an extension matches a later segment with another one.
    fn is_denied_later(
        &self,
        rule: &FilterRule,
        matches: impl Fn(&str, &Reading<'_>) -> bool,
    ) -> bool {
        let states = |wanted: Element| match &rule.matcher {
            Matcher::Elements(elements) => elements.iter().any(|(element, _)| *element == wanted),
            Matcher::RequestLine(_) => false,
        };
        if !states(Element::Extension) || states(Element::Suffix) {
            return false;
        }
        let is_other = |reading: &Reading<'_>| {
            reading.extension.is_some() && reading.extension != self.first.extension
        };
        let mut later = Reading::all(self.path).skip(1).filter(is_other);
        later.by_ref().take(MAX_READINGS).any(|reading| matches(self.path, &reading))
            || later.next().is_some()
    }

    /// Returns the request line with a path and a query.
    fn line(&self, path: &str, query: Option<&str>) -> String {
        let (method, protocol) = (&self.request.method, self.request.protocol);
        match query {
            Some(query) => format!("{method} {path}?{query} {protocol}"),
            None => format!("{method} {path} {protocol}"),
        }
    }

    fn is_element_matched(
        &self,
        (element, pattern): (Element, &Pattern),
        path: &str,
        reading: &Reading<'_>,
        verdict: Verdict,
    ) -> bool {
        let if_broken = verdict.if_broken();
        let value = match element {
            Element::Method => Some(self.request.method.as_str()),
            Element::Url => Some(path),
            Element::Protocol => Some(self.request.protocol),
            Element::Path => Some(reading.path),
            // A pattern on the query never matches its absence: not even `""` or `'()'` do.
            Element::Query => {
                let test = |query: Option<&str>| {
                    query.is_some_and(|query| pattern.matches(query, if_broken))
                };
                return self.query.is_matched(verdict, test);
            }
            Element::Selectors => match reading.selectors {
                Some(selectors) => return matches_selectors(pattern, selectors, verdict),
                None => None,
            },
            Element::Extension => reading.extension,
            Element::Suffix => reading.suffix,
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

#[cfg(test)]
mod tests;
