//! Full-text conditions decided by looking at a node: for repositories without a full-text index, and for conditions
//! that an index cannot take apart.
//!
//! Words are what the full-text index takes for words, and of a whole node the same properties count; there is no
//! stemming. `docs/compat/queries.md` says what that differs in.

use unicode_normalization::UnicodeNormalization;

use crate::borrowed::{BorrowedNode, BorrowedProperty, BorrowedValue};
use crate::value::ValueType;

use super::full_text::TextExpression;

/// The words of some texts, in order; texts are told apart so that no phrase spans two.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<Vec<String>>);

impl Words {
    pub(crate) fn add(&mut self, text: &str) {
        let words = split(text);
        if !words.is_empty() {
            self.0.push(words);
        }
    }

    /// Adds the texts of a node and of everything below it in the same document.
    pub(crate) fn add_node(&mut self, node: BorrowedNode<'_>) {
        each_text(node, &mut |text| self.add(text));
    }

    /// Tells whether the words meet the condition; one without any word is met by nothing.
    pub(crate) fn matches(&self, expression: &TextExpression) -> bool {
        self.decides(expression).unwrap_or(false)
    }

    /// As [`Words::matches`]; nothing for a part without any word, which counts for nothing beside others.
    fn decides(&self, expression: &TextExpression) -> Option<bool> {
        let mut decided = None;
        match expression {
            TextExpression::Term(text) | TextExpression::Phrase(text) => {
                let phrase = split(text);
                (!phrase.is_empty()).then(|| self.has_phrase(&phrase, &|word, end| word == end))
            }
            TextExpression::Prefix(prefix) => {
                let phrase = split(prefix);
                (!phrase.is_empty())
                    .then(|| self.has_phrase(&phrase, &|word, end| word.starts_with(end)))
            }
            TextExpression::Wildcard(pattern) if pattern.chars().all(|one| one == '*') => {
                Some(true)
            }
            TextExpression::Wildcard(pattern) if !pattern.contains(['*', '?']) => {
                self.decides(&TextExpression::Term(pattern.clone()))
            }
            TextExpression::Wildcard(pattern) => {
                let pattern: Vec<char> = word_form(pattern).chars().collect();
                Some(self.any(&|word| glob(&pattern, word)))
            }
            TextExpression::And(parts) => {
                for part in parts.iter().filter_map(|part| self.decides(part)) {
                    decided = Some(decided.unwrap_or(true) && part);
                }
                decided
            }
            TextExpression::Or(parts) => {
                for part in parts.iter().filter_map(|part| self.decides(part)) {
                    decided = Some(decided.unwrap_or(false) || part);
                }
                decided
            }
            TextExpression::Not(inner) => self.decides(inner).map(|is_met| !is_met),
            TextExpression::Boost(inner, _) => self.decides(inner),
            // Likeness is for an index to tell.
            TextExpression::Similar(_) => Some(false),
        }
    }

    /// Tells whether words follow each other, of which the last one is compared in its own way.
    fn has_phrase(&self, phrase: &[String], is_last: &dyn Fn(&str, &str) -> bool) -> bool {
        let Some((last, rest)) = phrase.split_last() else { return false };
        let fits = |window: &[String]| {
            window
                .split_last()
                .is_some_and(|(end, before)| before == rest && is_last(end.as_str(), last.as_str()))
        };
        self.0.iter().any(|words| words.windows(phrase.len()).any(fits))
    }

    fn any(&self, is_wanted: &dyn Fn(&str) -> bool) -> bool {
        self.0.iter().flatten().any(|word| is_wanted(word))
    }
}

/// Shows the texts of a node and of everything below it in the same document that are searched where no property is
/// named.
pub(crate) fn each_text(node: BorrowedNode<'_>, show: &mut dyn FnMut(&str)) {
    for (_, property) in node.properties().filter(|(name, one)| is_searched(name, *one)) {
        let texts = property.values().filter_map(BorrowedValue::as_str);
        texts.filter(|text| !is_link(text)).for_each(&mut *show);
    }
    node.children().for_each(|child| each_text(child, show));
}

/// Properties whose text says nothing about the content; a search in one of them by name finds them all the same.
const TECHNICAL: [&str; 15] = [
    "cq:lastModifiedBy",
    "cq:lastReplicatedBy",
    "cq:lastReplicationAction",
    "cq:lastRolledoutBy",
    "cq:template",
    "jcr:createdBy",
    "jcr:encoding",
    "jcr:language",
    "jcr:lastModifiedBy",
    "jcr:mimeType",
    "jcr:uuid",
    "sling:resourceSuperType",
    "sling:resourceType",
    "dam:sha1",
    "dam:status",
];

/// Tells whether the texts of a property are searched where none is named. Those for which [`is_link`] holds are not.
#[must_use]
pub fn is_searched(name: &str, property: BorrowedProperty<'_>) -> bool {
    property.value_type() == ValueType::String
        && !name.starts_with("rep:")
        && !name.starts_with("oak:")
        && !TECHNICAL.contains(&name)
}

/// Tells whether a text is a link and nothing else, which is not searched where no property is named.
#[must_use]
pub fn is_link(text: &str) -> bool {
    text.starts_with('/') && !text.contains(char::is_whitespace)
}

/// Splits a text into words as they are compared.
fn split(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for one in text.chars() {
        if !is_word(one) || is_alone(one) {
            words.push(std::mem::take(&mut word));
        }
        if is_word(one) {
            word.push(one);
        }
        if is_word(one) && is_alone(one) {
            words.push(std::mem::take(&mut word));
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words.iter().map(|word| word_form(word)).collect()
}

/// Returns a word as it is compared with others: in lower case, and the same however it was typed. Letters with marks are
/// composed, as some systems take them apart; `İ` is `i`, which its lower case keeps a dot above; and the sigma at the end
/// of a Greek word is that of its middle, as upper case has one for both.
#[must_use]
pub fn word_form(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    let mut before = None;
    let lower = word.nfc().flat_map(char::to_lowercase).filter_map(|letter| {
        let is_second_dot = before == Some('i') && letter == '\u{307}';
        before = Some(letter);
        match letter {
            _ if is_second_dot => None,
            'ς' => Some('σ'),
            other => Some(other),
        }
    });
    lower.nfc().collect()
}

/// Tells whether a character is a part of words. Combining marks are: without them Indic words fall apart.
#[must_use]
pub fn is_word(character: char) -> bool {
    character.is_alphanumeric()
        || is_picture(character)
        || matches!(character, '\u{300}'..='\u{36f}' | '\u{900}'..='\u{dff}' | '\u{e31}' | '\u{e34}'..='\u{e4e}')
}

/// Tells whether a character is an emoji or a symbol of that kind. What joins or colors several of them is none.
fn is_picture(character: char) -> bool {
    matches!(
        character,
        '\u{2300}'..='\u{23ff}'
        | '\u{2600}'..='\u{27bf}'
        | '\u{2b00}'..='\u{2bff}'
        | '\u{1f000}'..='\u{1f3fa}'
        | '\u{1f400}'..='\u{1faff}'
    )
}

/// Tells whether a character is a word of its own, as its script writes no spaces, or it is a picture.
#[must_use]
pub fn is_alone(character: char) -> bool {
    is_picture(character)
        || matches!(
            character,
            '\u{e00}'..='\u{eff}'           // Thai and Lao
            | '\u{1000}'..='\u{109f}'       // Burmese
            | '\u{1780}'..='\u{17ff}'       // Khmer
            | '\u{3040}'..='\u{30ff}'       // Hiragana and Katakana
            | '\u{3400}'..='\u{4dbf}'       // Han
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{3ffff}'
        )
}

/// Matches `*` and `?`; a backslash takes the meaning from the character behind it. Takes time in proportion to the
/// product of the lengths at most.
fn glob(pattern: &[char], text: &str) -> bool {
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
pub(crate) fn wildcard_match(pattern: &[Option<Option<char>>], text: &str) -> bool {
    let (mut rest, mut next) = (text.chars(), 0);
    let mut gap = None;
    loop {
        match (pattern.get(next), rest.clone().next()) {
            (Some(None), _) if next + 1 == pattern.len() => return true,
            (Some(None), _) => {
                gap = Some((next, rest.clone()));
                next += 1;
            }
            (None, None) => return true,
            (Some(Some(_)), None) => return false,
            (Some(Some(one)), Some(other)) if one.is_none_or(|one| one == other) => {
                rest.next();
                next += 1;
            }
            (_, Some(_)) => {
                let Some((place, from)) = &mut gap else { return false };
                from.next();
                // The gap reaches at least to where the character behind it is.
                if let Some(Some(Some(one))) = pattern.get(*place + 1) {
                    let Some(found) = from.as_str().find(*one) else { return false };
                    *from = from.as_str().get(found..).unwrap_or_default().chars();
                }
                rest = from.clone();
                next = *place + 1;
            }
        }
    }
}
