//! The rules of `/filter`.

use super::access::{Verdict, read_verdict};
use super::read::Reader;
use crate::any::{Block, Item, Position, Quote};
use crate::pattern::Pattern;

/// A part of the request that a rule may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// `GET`.
    Method,
    /// The path without query.
    Url,
    /// What follows `?`.
    Query,
    /// `HTTP/1.1`.
    Protocol,
    /// The path before its first dot.
    Path,
    /// What stands between path and extension.
    Selectors,
    /// What stands between the last dot and the suffix.
    Extension,
    /// What follows the extension from a slash on.
    Suffix,
}

/// The elements with their keys.
pub const ELEMENTS: [(Element, &str); 8] = [
    (Element::Method, "method"),
    (Element::Url, "url"),
    (Element::Query, "query"),
    (Element::Protocol, "protocol"),
    (Element::Path, "path"),
    (Element::Selectors, "selectors"),
    (Element::Extension, "extension"),
    (Element::Suffix, "suffix"),
];

/// What a rule looks at.
#[derive(Debug, Clone)]
pub enum Matcher {
    /// The whole request line (`/glob`).
    RequestLine(Pattern),
    /// Single elements; all must match.
    Elements(Vec<(Element, Pattern)>),
}

/// One rule.
#[derive(Debug, Clone)]
pub struct FilterRule {
    /// Where it stands.
    pub at: Position,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// What it says.
    pub verdict: Verdict,
    /// What it says it about.
    pub matcher: Matcher,
}

const RULE_KEYS: [&str; 10] = [
    "type",
    "glob",
    "method",
    "url",
    "query",
    "protocol",
    "path",
    "selectors",
    "extension",
    "suffix",
];

pub(super) fn read_filter(reader: &mut Reader, block: &Block) -> Vec<FilterRule> {
    let rules = reader.rules(block);
    rules.into_iter().filter_map(|(item, inner)| read_rule(reader, item, inner)).collect()
}

fn read_rule(reader: &mut Reader, item: &Item, block: &Block) -> Option<FilterRule> {
    let at = item.at().unwrap_or(&block.at).clone();
    let (mut verdict, mut line, mut elements) = (None, None, Vec::new());
    for entry in reader.entries(block) {
        let element = ELEMENTS.iter().find(|(_, key)| *key == entry.name());
        match (entry.name(), element) {
            ("type", _) => verdict = read_verdict(reader, &entry),
            ("glob", _) => line = reader.value(&entry).map(|text| reader.pattern(text)),
            (_, Some((element, _))) => {
                if let Some(text) = reader.value(&entry) {
                    warn_of_glob_in_regex(reader, text);
                    elements.push((*element, reader.pattern(text)));
                }
            }
            _ => reader.unknown(&entry, &RULE_KEYS),
        }
    }
    // A rule without a type could only have been meant one way without harm.
    let verdict = verdict.unwrap_or_else(|| {
        reader.warn(&at, "this rule has no valid `/type`; it denies");
        Verdict::Deny
    });
    let matcher = match line {
        Some(_) if !elements.is_empty() => {
            reader.error(
                &at,
                "a rule has either `/glob` or single elements such as `/url`, not both",
            );
            return None;
        }
        Some(pattern) => {
            if verdict == Verdict::Allow {
                reader.warn(
                    &at,
                    "unsafe: this rule allows by `/glob`, which also matches in the query; use `/url`, `/method`, ...",
                );
            }
            Matcher::RequestLine(pattern)
        }
        None if elements.is_empty() => {
            reader.warn(&at, "this rule names nothing to match and is skipped");
            return None;
        }
        None => Matcher::Elements(elements),
    };
    Some(FilterRule { at, label: item.name().map(str::to_owned), verdict, matcher })
}

fn warn_of_glob_in_regex(reader: &mut Reader, text: &crate::any::Text) {
    let is_suspect = text.quote == Quote::Single && text.text.starts_with('*');
    if is_suspect {
        reader.warn(
            &text.at,
            "single quotes hold a regular expression, but this looks like a glob; use double quotes",
        );
    }
}
