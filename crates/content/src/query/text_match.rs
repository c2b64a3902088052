//! Full-text conditions decided by looking at a node: for repositories without a full-text index, and for conditions
//! that an index cannot take apart.
//!
//! Words are runs of letters and digits in small letters; there is no stemming. `docs/compat/queries.md` says what that
//! differs in.

use std::collections::HashSet;

use crate::borrowed::BorrowedNode;

use super::full_text::TextExpression;

/// The words of some texts, in order; texts are told apart so that no phrase spans two.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<Vec<String>>);

impl Words {
    pub(crate) fn add(&mut self, text: &str) {
        let words = text.split(|one: char| !one.is_alphanumeric());
        let words: Vec<String> =
            words.filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        if !words.is_empty() {
            self.0.push(words);
        }
    }

    /// Adds the texts of a node and of everything below it in the same document.
    pub(crate) fn add_node(&mut self, node: BorrowedNode<'_>) {
        for (name, property) in node.properties() {
            if name != "jcr:primaryType" && name != "jcr:mixinTypes" {
                property
                    .values()
                    .filter_map(|value| value.as_str())
                    .for_each(|text| self.add(text));
            }
        }
        node.children().for_each(|child| self.add_node(child));
    }

    /// Tells whether all words of a text with markup are among them.
    pub(crate) fn hold_all(&self, text: &str) -> bool {
        let mut plain = String::with_capacity(text.len());
        let mut is_tag = false;
        for one in text.chars() {
            match one {
                '<' => is_tag = true,
                '>' => is_tag = false,
                one if !is_tag => plain.push(one),
                _ => {}
            }
        }
        let mut wanted = Self::default();
        wanted.add(&plain);
        let known: HashSet<&String> = self.0.iter().flatten().collect();
        wanted.0.iter().flatten().all(|word| known.contains(word))
    }

    /// Tells whether the words meet the condition.
    pub(crate) fn matches(&self, expression: &TextExpression) -> bool {
        match expression {
            TextExpression::Term(text) | TextExpression::Phrase(text) => {
                let mut wanted = Self::default();
                wanted.add(text);
                wanted.0.pop().is_some_and(|phrase| {
                    self.0
                        .iter()
                        .any(|words| words.windows(phrase.len()).any(|window| *window == *phrase))
                })
            }
            TextExpression::Prefix(prefix) => {
                let prefix = prefix.to_lowercase();
                self.any(&|word| word.starts_with(&prefix))
            }
            TextExpression::Wildcard(pattern) => {
                let pattern: Vec<char> = pattern.to_lowercase().chars().collect();
                self.any(&|word| glob(&pattern, &word.chars().collect::<Vec<_>>()))
            }
            TextExpression::And(parts) => parts.iter().all(|part| self.matches(part)),
            TextExpression::Or(parts) => parts.iter().any(|part| self.matches(part)),
            TextExpression::Not(inner) => !self.matches(inner),
            TextExpression::Boost(inner, _) => self.matches(inner),
            // Likeness is for an index to tell.
            TextExpression::Similar(_) => false,
        }
    }

    fn any(&self, is_wanted: &dyn Fn(&str) -> bool) -> bool {
        self.0.iter().flatten().any(|word| is_wanted(word))
    }
}

/// Matches `*` and `?`; a backslash takes the meaning from the character behind it. Takes time in proportion to the
/// product of the lengths at most.
fn glob(pattern: &[char], text: &[char]) -> bool {
    let mut tokens = Vec::new();
    let mut characters = pattern.iter();
    while let Some(one) = characters.next() {
        tokens.push(match one {
            '*' => None,
            '?' => Some(None),
            '\\' => Some(characters.next().copied()),
            other => Some(Some(*other)),
        });
    }
    wildcard_match(&tokens, text)
}

/// Matches a pattern of characters (`Some(None)` for any one) and gaps (`None`).
pub(crate) fn wildcard_match(pattern: &[Option<Option<char>>], text: &[char]) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut gap = None;
    while at < text.len() {
        match pattern.get(next) {
            Some(None) => {
                gap = Some((next, at));
                next += 1;
            }
            Some(Some(one)) if one.is_none_or(|one| Some(&one) == text.get(at)) => {
                at += 1;
                next += 1;
            }
            _ => match gap {
                Some((place, from)) => {
                    gap = Some((place, from + 1));
                    (next, at) = (place + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.get(next..).unwrap_or_default().iter().all(Option::is_none)
}
