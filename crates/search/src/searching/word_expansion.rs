//! Expansion of a prefix, a pattern or a misspelling to the words of the index: ranges of the term dictionaries.

use std::cell::Cell;
use std::collections::BTreeMap;

use tantivy::schema::Field;
use tantivy::{Searcher, Term};

use crate::indexing::index_document::{is_indexed_node_name, property_keys};
use crate::indexing::schema::SearchIndexFields;

/// The maximum number of words collected at a time; the least frequent ones are dropped.
const MAX_COLLECTED_WORDS: usize = 4 * MAX_EXPANSION;
/// The maximum number of words to which one pattern expands; the most frequent ones are used.
pub(crate) const MAX_EXPANSION: usize = 16_384;
/// The maximum number of words that one search may scan: the dictionary of a very large site has a few million.
pub(crate) const MAX_SCANNED_WORDS: usize = 8_000_000;

/// The location of words: a field, or a property in the field of properties.
#[derive(Debug, Clone)]
pub(crate) struct WordLocation {
    field: Field,
    /// The prefix before the word in a key of the dictionary.
    key_prefix: Term,
    /// Terms of which a document must have at least one for its words to count in this location.
    pub(crate) required_terms: Vec<Term>,
}

impl WordLocation {
    /// Returns the location of all words of a field.
    pub(crate) fn of_field(field: Field) -> Self {
        Self { field, key_prefix: Term::from_field_text(field, ""), required_terms: Vec::new() }
    }

    /// Returns the locations in which the words of a property are searched. They may include more words than the
    /// property has, never fewer.
    pub(crate) fn of_property(fields: &SearchIndexFields, property: &str) -> Vec<Self> {
        let keys = property_keys(property);
        if keys.is_empty() {
            return vec![Self::of_field(fields.file_words)];
        }
        let mut locations: Vec<Self> =
            keys.iter().map(|key| Self::of_short_values(fields.properties, key)).collect();
        let among =
            keys.iter().map(|key| Term::from_field_text(fields.long_properties, key)).collect();
        locations.push(Self { required_terms: among, ..Self::of_field(fields.words) });
        locations
    }

    /// Returns the location of the words of nodes whose name is that of a property, or the last name of its path.
    pub(crate) fn of_nodes(fields: &SearchIndexFields, property: &str) -> Option<Self> {
        let name = property.rsplit_once('/').map_or(property, |(_, name)| name);
        let among = vec![Term::from_field_text(fields.node_names, name)];
        is_indexed_node_name(name)
            .then(|| Self { required_terms: among, ..Self::of_field(fields.words) })
    }

    /// Returns the location of the short values of one property.
    fn of_short_values(field: Field, key: &str) -> Self {
        let mut before = Term::from_field_json_path(field, &key.replace('.', "\\."), false);
        before.append_type_and_str("");
        Self { field, key_prefix: before, required_terms: Vec::new() }
    }

    /// Returns the term of a word.
    pub(crate) fn term_of(&self, word: &str) -> Term {
        let mut term = self.key_prefix.clone();
        term.append_bytes(word.as_bytes());
        term
    }

    /// Returns true if any word exists in this location.
    pub(crate) fn is_used(&self, searcher: &Searcher) -> tantivy::Result<bool> {
        for term in &self.required_terms {
            if searcher.doc_freq(term)? > 0 {
                return Ok(true);
            }
        }
        if !self.required_terms.is_empty() {
            return Ok(false);
        }
        let start = self.key_prefix.serialized_value_bytes();
        for segment in searcher.segment_readers() {
            let index = segment.inverted_index(self.field)?;
            let mut range = index.terms().range().ge(start);
            if let Some(end) = prefix_end(start) {
                range = range.lt(end);
            }
            if range.into_stream()?.advance() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the words that begin with a prefix and pass a test, with the number of documents that contain each.
    /// `left` is the number of words that may still be scanned.
    pub(crate) fn expand(
        &self,
        searcher: &Searcher,
        prefix: &str,
        is_match: &dyn Fn(&str) -> bool,
        left: &Cell<usize>,
    ) -> tantivy::Result<BTreeMap<String, u64>> {
        let mut words = BTreeMap::new();
        let start = self.term_of(prefix);
        let start = start.serialized_value_bytes();
        let before = self.key_prefix.serialized_value_bytes().len();
        for segment in searcher.segment_readers() {
            let index = segment.inverted_index(self.field)?;
            let mut range = index.terms().range().ge(start);
            if let Some(end) = prefix_end(start) {
                range = range.lt(end);
            }
            let mut stream = range.into_stream()?;
            while left.get() > 0
                && let Some((key, info)) = stream.next()
            {
                left.set(left.get() - 1);
                let word = key.get(before..).and_then(|word| std::str::from_utf8(word).ok());
                if let Some(word) = word.filter(|word| is_match(word)) {
                    *words.entry(word.to_owned()).or_default() += u64::from(info.doc_freq);
                    if words.len() > MAX_COLLECTED_WORDS {
                        words = most_frequent(words, MAX_COLLECTED_WORDS / 2).into_iter().collect();
                    }
                }
            }
        }
        Ok(words)
    }
}

/// Returns up to `most` of the words, the most frequent first; words of equal frequency are sorted by name.
pub(crate) fn most_frequent(words: BTreeMap<String, u64>, most: usize) -> Vec<(String, u64)> {
    let mut words: Vec<(String, u64)> = words.into_iter().collect();
    // The sort is stable, so words of equal frequency stay sorted by name.
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    words.truncate(most);
    words
}

/// Returns the first key after all keys that begin with these bytes.
fn prefix_end(start: &[u8]) -> Option<Vec<u8>> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_ranges() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(&[1, 255]), Some(vec![2]));
        assert_eq!(prefix_end(&[255]), None);
    }
}
