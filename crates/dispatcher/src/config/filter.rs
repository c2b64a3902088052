//! The rules of `/filter`.

use super::access_list::{RuleVerdict, read_verdict};
use super::reader::ConfigReader;
use super::request_element::{REQUEST_ELEMENT_KEYS, RequestElement};
use crate::config::any_syntax::{ConfigBlock, ConfigItem, QuoteStyle, SourcePosition};
use crate::config::pattern::RulePattern;

/// The part of the request that a rule matches.
#[derive(Debug, Clone)]
pub enum FilterMatcher {
    /// The whole request line (`/glob`).
    RequestLine(RulePattern),
    /// Single elements; all must match.
    Elements(Vec<(RequestElement, RulePattern)>),
}

/// One rule.
#[derive(Debug, Clone)]
pub struct FilterRule {
    /// The position of the rule.
    pub position: SourcePosition,
    /// Its label, if present.
    pub label: Option<String>,
    /// Its verdict.
    pub verdict: RuleVerdict,
    /// The matcher for its subject.
    pub matcher: FilterMatcher,
}

const FILTER_RULE_KEYS: [&str; 10] = [
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

pub(super) fn read_filter(reader: &mut ConfigReader, block: &ConfigBlock) -> Vec<FilterRule> {
    let rules = reader.rule_blocks(block);
    rules.into_iter().filter_map(|(item, inner)| read_filter_rule(reader, item, inner)).collect()
}

fn read_filter_rule(
    reader: &mut ConfigReader,
    item: &ConfigItem,
    block: &ConfigBlock,
) -> Option<FilterRule> {
    let at = item.position().unwrap_or(&block.position).clone();
    let (mut verdict, mut line, mut elements) = (None, None, Vec::new());
    for entry in reader.labelled_entries(block) {
        let element = REQUEST_ELEMENT_KEYS.iter().find(|(_, key)| *key == entry.name());
        match (entry.name(), element) {
            ("type", _) => verdict = read_verdict(reader, &entry),
            ("glob", _) => {
                line = reader.read_value(&entry).map(|text| reader.compile_pattern(text))
            }
            (_, Some((element, _))) => {
                if let Some(text) = reader.read_value(&entry) {
                    warn_of_glob_in_regex(reader, text);
                    elements.push((*element, reader.compile_pattern(text)));
                }
            }
            _ => reader.warn_of_unknown_key(&entry, &FILTER_RULE_KEYS),
        }
    }
    // Only one type of a rule without a type is harmless.
    let verdict = verdict.unwrap_or_else(|| {
        reader.add_warning(&at, "this rule has no valid `/type`; it denies");
        RuleVerdict::Deny
    });
    let matcher = match line {
        Some(_) if !elements.is_empty() => {
            reader.add_error(
                &at,
                "a rule must have either `/glob` or single elements such as `/url`, not both",
            );
            return None;
        }
        Some(pattern) => {
            if verdict == RuleVerdict::Allow {
                reader.add_warning(
                    &at,
                    "unsafe: this rule allows by `/glob`, which also matches in the query; use `/url`, `/method`, ...",
                );
            }
            FilterMatcher::RequestLine(pattern)
        }
        None if elements.is_empty() => {
            reader.add_warning(&at, "this rule has nothing to match and is skipped");
            return None;
        }
        None => FilterMatcher::Elements(elements),
    };
    Some(FilterRule { position: at, label: item.name().map(str::to_owned), verdict, matcher })
}

fn warn_of_glob_in_regex(reader: &mut ConfigReader, text: &crate::config::any_syntax::ConfigText) {
    let is_suspect = text.quote == QuoteStyle::Single && text.text.starts_with('*');
    if is_suspect {
        reader.add_warning(
            &text.position,
            "single quotes hold a regular expression, but this looks like a glob; use double quotes",
        );
    }
}
