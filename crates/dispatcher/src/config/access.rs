//! Ordered lists of `/type` and `/glob`, in which the last matching rule wins.

use super::read::{Entry, Reader};
use crate::any::{Block, Position};
use crate::pattern::{IfBroken, Pattern};

/// What a rule says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// `/type "allow"`.
    Allow,
    /// `/type "deny"`.
    Deny,
}

impl Verdict {
    /// Returns what a broken pattern of such a rule does.
    #[must_use]
    pub fn if_broken(self) -> IfBroken {
        match self {
            Self::Allow => IfBroken::Misses,
            Self::Deny => IfBroken::Matches,
        }
    }
}

/// One rule of a list.
#[derive(Debug, Clone)]
pub struct AccessRule {
    /// Where it stands.
    pub at: Position,
    /// Its label, if it has one.
    pub label: Option<String>,
    /// What it says.
    pub verdict: Verdict,
    /// What it says it about.
    pub pattern: Pattern,
}

/// A list of rules.
#[derive(Debug, Clone, Default)]
pub struct AccessList {
    /// The rules in textual order.
    pub rules: Vec<AccessRule>,
}

impl AccessList {
    /// Returns the rule that decides about `text`: the last one that matches.
    #[must_use]
    pub fn deciding(&self, text: &str) -> Option<&AccessRule> {
        self.rules.iter().rev().find(|rule| rule.pattern.matches(text, rule.verdict.if_broken()))
    }

    /// Tells whether the list allows `text`; what no rule matches is not allowed.
    #[must_use]
    pub fn allows(&self, text: &str) -> bool {
        self.deciding(text).is_some_and(|rule| rule.verdict == Verdict::Allow)
    }
}

const RULE_KEYS: [&str; 2] = ["type", "glob"];

pub(super) fn read_list(reader: &mut Reader, block: &Block) -> AccessList {
    let mut list = AccessList::default();
    for (item, inner) in reader.rules(block) {
        let (mut verdict, mut pattern) = (None, None);
        for entry in reader.entries(inner) {
            match entry.name() {
                "type" => verdict = read_verdict(reader, &entry),
                "glob" => pattern = reader.value(&entry).map(|text| reader.pattern(text)),
                _ => reader.unknown(&entry, &RULE_KEYS),
            }
        }
        let at = item.at().unwrap_or(&inner.at);
        match (verdict, pattern) {
            (Some(verdict), Some(pattern)) => list.rules.push(AccessRule {
                at: at.clone(),
                label: item.name().map(str::to_owned),
                verdict,
                pattern,
            }),
            (None, _) => reader.warn(at, "this rule has no `/type` and is skipped"),
            (_, None) => reader.warn(at, "this rule has no `/glob` and is skipped"),
        }
    }
    list
}

pub(super) fn read_verdict(reader: &mut Reader, entry: &Entry<'_>) -> Option<Verdict> {
    let text = reader.value(entry)?;
    match text.text.to_ascii_lowercase().as_str() {
        "allow" => Some(Verdict::Allow),
        "deny" => Some(Verdict::Deny),
        other => {
            reader.warn(&text.at, format!("`/type` is `allow` or `deny`, not `{other}`"));
            None
        }
    }
}
