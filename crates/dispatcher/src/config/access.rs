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
#[derive(Debug, Clone)]
pub struct AccessList {
    /// The rules in textual order.
    pub rules: Vec<AccessRule>,
    /// What errs to safety: a rule without `/type` says it, and one that says it counts for everything where its pattern
    /// is missing or broken.
    pub safe: Verdict,
}

impl Default for AccessList {
    fn default() -> Self {
        Self::new(Verdict::Deny)
    }
}

impl AccessList {
    /// Returns a list without rules.
    pub(super) fn new(safe: Verdict) -> Self {
        Self { rules: Vec::new(), safe }
    }

    /// Adds a rule at `at` that counts for everything, and says what is safe.
    pub(super) fn add_safe_rule(&mut self, at: &Position) {
        let (at, verdict) = (at.clone(), self.safe);
        self.rules.push(AccessRule { at, label: None, verdict, pattern: Pattern::Broken });
    }

    /// Returns the rule that decides about `text`: the last one that matches.
    #[must_use]
    pub fn deciding(&self, text: &str) -> Option<&AccessRule> {
        let if_broken = |rule: &AccessRule| {
            if rule.verdict == self.safe { IfBroken::Matches } else { IfBroken::Misses }
        };
        self.rules.iter().rev().find(|rule| rule.pattern.matches(text, if_broken(rule)))
    }

    /// Tells whether the list allows `text`; what no rule matches is not allowed.
    #[must_use]
    pub fn allows(&self, text: &str) -> bool {
        self.deciding(text).is_some_and(|rule| rule.verdict == Verdict::Allow)
    }
}

const RULE_KEYS: [&str; 2] = ["type", "glob"];

/// Reads a list of which `safe` errs to safety.
pub(super) fn read_list(reader: &mut Reader, block: &Block, safe: Verdict) -> AccessList {
    let mut list = AccessList::new(safe);
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
        let verdict = verdict.unwrap_or_else(|| {
            let does = if safe == Verdict::Deny { "denies" } else { "allows" };
            reader.warn(at, format!("this rule has no valid `/type`; it {does}"));
            safe
        });
        let pattern = pattern.unwrap_or_else(|| {
            let what = if verdict == safe { "everything" } else { "nothing" };
            reader.warn(at, format!("this rule has no `/glob`; it counts for {what}"));
            Pattern::Broken
        });
        let label = item.name().map(str::to_owned);
        list.rules.push(AccessRule { at: at.clone(), label, verdict, pattern });
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
