//! Ordered lists of `/type` and `/glob`, in which the last matching rule wins.

use tympan_web::sling_url::SlingUrlReading;

use super::reader::{ConfigEntry, ConfigReader};
use super::request_element::{REQUEST_ELEMENT_KEYS, RequestElement};
use crate::config::any_syntax::{ConfigBlock, SourcePosition};
use crate::config::glob::DispatcherGlob;
use crate::config::pattern::{BrokenPatternPolicy, RulePattern};

/// The verdict of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict {
    /// `/type "allow"`.
    Allow,
    /// `/type "deny"`.
    Deny,
}

impl RuleVerdict {
    /// Returns the behavior of a broken pattern in a rule with this verdict.
    #[must_use]
    pub fn if_broken(self) -> BrokenPatternPolicy {
        match self {
            Self::Allow => BrokenPatternPolicy::MatchNone,
            Self::Deny => BrokenPatternPolicy::MatchAll,
        }
    }
}

/// One rule of a list.
#[derive(Debug, Clone)]
pub struct AccessRule {
    /// The position of the rule.
    pub position: SourcePosition,
    /// Its label, if present.
    pub label: Option<String>,
    /// Its verdict.
    pub verdict: RuleVerdict,
    /// The pattern that its subject must match.
    pub pattern: RulePattern,
    /// Patterns for parts of the subject, a path; all must match.
    pub elements: Vec<(RequestElement, RulePattern)>,
}

impl AccessRule {
    fn matches(&self, text: &str, if_broken: BrokenPatternPolicy) -> bool {
        if !self.pattern.matches(text, if_broken) {
            return false;
        }
        if self.elements.is_empty() {
            return true;
        }
        let reading = SlingUrlReading::by_first_dot(text);
        self.elements.iter().all(|(element, pattern)| {
            let part = match element {
                RequestElement::Path => Some(reading.path),
                RequestElement::Selectors => {
                    return match reading.selectors {
                        Some(selectors) => pattern.matches_selectors(selectors, if_broken),
                        None => pattern.matches_absence(if_broken),
                    };
                }
                RequestElement::Extension => reading.extension,
                RequestElement::Suffix => reading.suffix,
                _ => Some(text),
            };
            match part {
                Some(part) => pattern.matches(part, if_broken),
                None => pattern.matches_absence(if_broken),
            }
        })
    }
}

/// A list of rules.
#[derive(Debug, Clone)]
pub struct AccessList {
    /// The rules in textual order.
    pub rules: Vec<AccessRule>,
    /// The safe verdict. A rule without `/type` has this verdict. A rule with this verdict matches everything if its
    /// pattern is missing or broken.
    pub safe_verdict: RuleVerdict,
}

impl Default for AccessList {
    fn default() -> Self {
        Self::new(RuleVerdict::Deny)
    }
}

impl AccessList {
    /// Returns a list without rules.
    pub(super) fn new(safe: RuleVerdict) -> Self {
        Self { rules: Vec::new(), safe_verdict: safe }
    }

    /// Adds a rule at `at` that matches everything and has the safe verdict.
    pub(super) fn add_safe_rule(&mut self, at: &SourcePosition) {
        let (at, verdict) = (at.clone(), self.safe_verdict);
        self.rules.push(AccessRule {
            position: at,
            label: None,
            verdict,
            pattern: RulePattern::Invalid,
            elements: Vec::new(),
        });
    }

    /// Returns the rule that decides about `text`: the last one that matches.
    #[must_use]
    pub fn deciding_rule(&self, text: &str) -> Option<&AccessRule> {
        let if_broken = |rule: &AccessRule| {
            if rule.verdict == self.safe_verdict {
                BrokenPatternPolicy::MatchAll
            } else {
                BrokenPatternPolicy::MatchNone
            }
        };
        self.rules.iter().rev().find(|rule| rule.matches(text, if_broken(rule)))
    }

    /// Returns true if the list allows `text`; a text that no rule matches is not allowed.
    #[must_use]
    pub fn allows(&self, text: &str) -> bool {
        self.deciding_rule(text).is_some_and(|rule| rule.verdict == RuleVerdict::Allow)
    }
}

const ACCESS_RULE_KEYS: [&str; 2] = ["type", "glob"];
const PATH_RULE_KEYS: [&str; 7] =
    ["type", "glob", "url", "path", "selectors", "extension", "suffix"];

/// Reads a list whose safe verdict is `safe`.
pub(super) fn read_access_list(
    reader: &mut ConfigReader,
    block: &ConfigBlock,
    safe: RuleVerdict,
) -> AccessList {
    read_rules(reader, block, safe, &ACCESS_RULE_KEYS)
}

/// Reads a list of rules for paths, which may name parts of the path as the rules of `/filter` do.
pub(super) fn read_path_list(reader: &mut ConfigReader, block: &ConfigBlock) -> AccessList {
    read_rules(reader, block, RuleVerdict::Deny, &PATH_RULE_KEYS)
}

fn read_rules(
    reader: &mut ConfigReader,
    block: &ConfigBlock,
    safe: RuleVerdict,
    keys: &[&str],
) -> AccessList {
    let mut list = AccessList::new(safe);
    for (item, inner) in reader.rule_blocks(block) {
        let (mut verdict, mut pattern, mut elements) = (None, None, Vec::new());
        for entry in reader.labelled_entries(inner) {
            match entry.name() {
                "type" => verdict = read_verdict(reader, &entry),
                "glob" => {
                    pattern = reader.read_value(&entry).map(|text| reader.compile_pattern(text))
                }
                name => {
                    let element = REQUEST_ELEMENT_KEYS.iter().find(|(_, key)| *key == name);
                    match element.filter(|_| keys.contains(&name)) {
                        Some((element, _)) => {
                            if let Some(text) = reader.read_value(&entry) {
                                elements.push((*element, reader.compile_pattern(text)));
                            }
                        }
                        None => reader.warn_of_unknown_key(&entry, keys),
                    }
                }
            }
        }
        let at = item.position().unwrap_or(&inner.position);
        let verdict = verdict.unwrap_or_else(|| {
            let does = if safe == RuleVerdict::Deny { "denies" } else { "allows" };
            reader.add_warning(at, format!("this rule has no valid `/type`; it {does}"));
            safe
        });
        if pattern.is_none() && !elements.is_empty() {
            pattern = Some(RulePattern::Glob(DispatcherGlob::new("*")));
        }
        let pattern = pattern.unwrap_or_else(|| {
            let coverage = if verdict == safe { "everything" } else { "nothing" };
            reader.add_warning(at, format!("this rule has no `/glob`; it matches {coverage}"));
            RulePattern::Invalid
        });
        let label = item.name().map(str::to_owned);
        list.rules.push(AccessRule { position: at.clone(), label, verdict, pattern, elements });
    }
    list
}

pub(super) fn read_verdict(
    reader: &mut ConfigReader,
    entry: &ConfigEntry<'_>,
) -> Option<RuleVerdict> {
    let text = reader.read_value(entry)?;
    match text.text.to_ascii_lowercase().as_str() {
        "allow" => Some(RuleVerdict::Allow),
        "deny" => Some(RuleVerdict::Deny),
        other => {
            reader.add_warning(
                &text.position,
                format!("`/type` must be `allow` or `deny`, not `{other}`"),
            );
            None
        }
    }
}
