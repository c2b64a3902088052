//! Full-text conditions evaluated on nodes directly: for repositories without a full-text index, and for conditions
//! that an index cannot decompose.
//!
//! Words are split as in the full-text index, and the same properties of a whole node are searched, but there is no
//! stemming. `docs/compat/queries.md` lists the differences.

use tympan_content::{BorrowedNode, BorrowedProperty, BorrowedValue, ValueType};
use tympan_notation::{WildcardToken, matches_wildcards};
use unicode_normalization::UnicodeNormalization;

use crate::full_text::FullTextExpression;

/// The words of several texts, in order. Texts are kept separate, so that no phrase spans two of them.
#[derive(Debug, Default)]
pub(crate) struct TextWords(Vec<Vec<String>>);

impl TextWords {
    pub(crate) fn add_text(&mut self, text: &str) {
        let words = split_words(text);
        if !words.is_empty() {
            self.0.push(words);
        }
    }

    /// Adds the texts of a node and of everything below it in the same document.
    pub(crate) fn add_node(&mut self, node: BorrowedNode<'_>) {
        visit_texts(node, &mut |text| self.add_text(text));
    }

    /// Returns true if the words meet the condition; a condition without any word is never met.
    pub(crate) fn matches(&self, expression: &FullTextExpression) -> bool {
        self.evaluate(expression).unwrap_or(false)
    }

    /// Like [`TextWords::matches`], but returns `None` for a part without any word, which is ignored beside other
    /// parts.
    fn evaluate(&self, expression: &FullTextExpression) -> Option<bool> {
        let mut decided = None;
        match expression {
            FullTextExpression::Term(text) | FullTextExpression::Phrase(text) => {
                let phrase = split_words(text);
                (!phrase.is_empty()).then(|| self.has_phrase(&phrase, &|word, end| word == end))
            }
            FullTextExpression::Prefix(prefix) => {
                let phrase = split_words(prefix);
                (!phrase.is_empty())
                    .then(|| self.has_phrase(&phrase, &|word, end| word.starts_with(end)))
            }
            FullTextExpression::Wildcard(pattern)
                if pattern.chars().all(|character| character == '*') =>
            {
                Some(true)
            }
            FullTextExpression::Wildcard(pattern) if !pattern.contains(['*', '?']) => {
                self.evaluate(&FullTextExpression::Term(pattern.clone()))
            }
            FullTextExpression::Wildcard(pattern) => {
                let pattern = word_pattern(&normalize_word(pattern));
                let matches = |word: &str| matches_wildcards(pattern.iter().copied(), word);
                Some(self.any_word(&matches))
            }
            FullTextExpression::And(parts) => {
                for part in parts.iter().filter_map(|part| self.evaluate(part)) {
                    decided = Some(decided.unwrap_or(true) && part);
                }
                decided
            }
            FullTextExpression::Or(parts) => {
                for part in parts.iter().filter_map(|part| self.evaluate(part)) {
                    decided = Some(decided.unwrap_or(false) || part);
                }
                decided
            }
            FullTextExpression::Not(inner) => self.evaluate(inner).map(|is_met| !is_met),
            FullTextExpression::Boost(inner, _) => self.evaluate(inner),
            // Only an index can evaluate similarity.
            FullTextExpression::Similar(_) => Some(false),
        }
    }

    /// Returns true if the words occur in sequence; the last one is compared with `is_last`.
    fn has_phrase(&self, phrase: &[String], is_last: &dyn Fn(&str, &str) -> bool) -> bool {
        let Some((last, rest)) = phrase.split_last() else { return false };
        let fits = |window: &[String]| {
            window
                .split_last()
                .is_some_and(|(end, before)| before == rest && is_last(end.as_str(), last.as_str()))
        };
        self.0.iter().any(|words| words.windows(phrase.len()).any(fits))
    }

    fn any_word(&self, is_wanted: &dyn Fn(&str) -> bool) -> bool {
        self.0.iter().flatten().any(|word| is_wanted(word))
    }
}

/// Calls `show` with the texts of a node and of everything below it in the same document that are searched if no
/// property is named.
pub(crate) fn visit_texts(node: BorrowedNode<'_>, show: &mut dyn FnMut(&str)) {
    for (_, property) in
        node.properties().filter(|(name, candidate)| is_searched_property(name, *candidate))
    {
        let texts = property.values().filter_map(BorrowedValue::as_str);
        texts.filter(|text| !is_link_text(text)).for_each(&mut *show);
    }
    node.children().for_each(|child| visit_texts(child, show));
}

/// Properties whose text is not content. A search that names one of them still finds it.
const UNSEARCHED_PROPERTIES: [&str; 15] = [
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

/// Returns true if the texts of a property are searched if no property is named. Texts for which [`is_link_text`]
/// returns true are excluded.
#[must_use]
pub fn is_searched_property(name: &str, property: BorrowedProperty<'_>) -> bool {
    property.value_type() == ValueType::String
        && !name.starts_with("rep:")
        && !name.starts_with("oak:")
        && !UNSEARCHED_PROPERTIES.contains(&name)
}

/// Returns true if a text consists of a link only. Such a text is not searched if no property is named.
#[must_use]
pub fn is_link_text(text: &str) -> bool {
    text.starts_with('/') && !text.contains(char::is_whitespace)
}

/// Splits a text into normalized words.
fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    for character in text.chars() {
        if !is_word_character(character) || is_single_character_word(character) {
            words.push(std::mem::take(&mut word));
        }
        if is_word_character(character) {
            word.push(character);
        }
        if is_word_character(character) && is_single_character_word(character) {
            words.push(std::mem::take(&mut word));
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words.iter().map(|word| normalize_word(word)).collect()
}

/// Returns the form of a word used for comparison: in lower case and in a normalized Unicode form. Letters with marks
/// are composed, because some systems decompose them. `İ` becomes `i`, whose plain lower case would retain a combining
/// dot above. A final sigma of a Greek word becomes a medial one, because upper case has one letter for both.
#[must_use]
pub fn normalize_word(word: &str) -> String {
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
            letter_character => Some(letter_character),
        }
    });
    lower.nfc().collect()
}

/// Returns true if a character is part of words. Combining marks are, because Indic words would be split without them.
#[must_use]
pub fn is_word_character(character: char) -> bool {
    character.is_alphanumeric()
        || is_pictograph(character)
        || matches!(character, '\u{300}'..='\u{36f}' | '\u{900}'..='\u{dff}' | '\u{e31}' | '\u{e34}'..='\u{e4e}')
}

/// Returns true if a character is an emoji or a similar symbol. Characters that join or color several of them are not.
fn is_pictograph(character: char) -> bool {
    matches!(
        character,
        '\u{2300}'..='\u{23ff}'
        | '\u{2600}'..='\u{27bf}'
        | '\u{2b00}'..='\u{2bff}'
        | '\u{1f000}'..='\u{1f3fa}'
        | '\u{1f400}'..='\u{1faff}'
    )
}

/// Returns true if a character is a word by itself, because its script uses no spaces or because it is a pictograph.
#[must_use]
pub fn is_single_character_word(character: char) -> bool {
    is_pictograph(character)
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

/// Returns the tokens of a pattern of `*` and `?`, in which a backslash escapes the following character.
fn word_pattern(pattern: &str) -> Vec<WildcardToken> {
    let mut characters = pattern.chars();
    std::iter::from_fn(|| {
        Some(match characters.next()? {
            '*' => WildcardToken::AnyText,
            '?' => WildcardToken::AnyCharacter,
            '\\' => characters.next().map_or(WildcardToken::AnyCharacter, WildcardToken::Literal),
            literal => WildcardToken::Literal(literal),
        })
    })
    .collect()
}
