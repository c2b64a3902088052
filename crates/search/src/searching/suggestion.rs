//! Completions and corrections from the words of the index. For a reader with restricted access, they come from the
//! words that this reader may see.

use std::cell::Cell;
use std::collections::BTreeMap;

use tantivy::Term;
use tantivy::query::FuzzyTermQuery;
use tympan_content_query::ReadableTextFn;

use crate::analyzer::{build_word_analyzer, tokenize};
use crate::error::{Error, Result};
use crate::searching::query_planner::TextQueryPlanner;
use crate::searching::reader_vocabulary::ReaderVocabulary;
use crate::searching::word_expansion::{MAX_SCANNED_WORDS, WordLocation, most_frequent};

/// The minimum length of words that are corrected, in characters.
const MIN_CORRECTED_CHARACTERS: usize = 3;
/// The maximum number of words that are corrected; the words after these are left unchanged.
const MAX_CORRECTED_WORDS: usize = 32;
/// The maximum length of words for which one wrong letter is assumed; for longer ones, up to two.
const MAX_SINGLE_ERROR_CHARACTERS: usize = 5;
/// The maximum number of similar words that are checked for a reader with restricted access.
const MAX_NEAR_WORDS: usize = 1_000;
/// The maximum count of occurrences of such a word, for ranking by frequency.
const MAX_WORD_COUNT: u64 = 20;

/// Returns completions of the last word of a text, most frequent first, with the words before it.
///
/// # Errors
/// Errors of the index, and those of the reader.
pub(crate) fn suggest_completions(
    planner: &TextQueryPlanner<'_>,
    reader: Option<ReadableTextFn<'_>>,
    prefix: &str,
    limit: usize,
) -> Result<Vec<String>> {
    // After a space, no word has been started.
    let Some(last) = tokenize(&mut build_word_analyzer(), prefix)
        .pop()
        .filter(|last| last.offset_to == prefix.len())
    else {
        return Ok(Vec::new());
    };
    let before = prefix.get(..last.offset_from).unwrap_or_default().to_lowercase();
    let frequencies = match reader {
        None => words_with_prefix(planner, &last.text)?,
        Some(reader) => {
            match ReaderVocabulary::new(planner, reader).find_words_with_prefix(&last.text) {
                // There are too many words.
                Err(Error::Refused(_)) => BTreeMap::new(),
                result => result?,
            }
        }
    };
    let words = most_frequent(frequencies, limit).into_iter();
    Ok(words.map(|(word, _)| format!("{before}{word}")).collect())
}

/// Returns the words with a prefix from all documents. If there are too many, only the first ones in alphabetical order
/// are counted.
fn words_with_prefix(
    planner: &TextQueryPlanner<'_>,
    prefix: &str,
) -> Result<BTreeMap<String, u64>> {
    let mut frequencies = BTreeMap::<String, u64>::new();
    let left = Cell::new(MAX_SCANNED_WORDS);
    for location in [planner.fields.words, planner.fields.file_words].map(WordLocation::of_field) {
        let words = location.expand(planner.searcher, prefix, &|_| true, &left);
        for (word, count) in words.map_err(|error| planner.query_error(error))? {
            *frequencies.entry(word).or_default() += count;
        }
    }
    Ok(frequencies)
}

/// Returns a text with its unknown words corrected, in up to `limit` variants. The result is empty if all words are
/// known, if none is similar, or if a reader may see so little that the search takes too long.
///
/// # Errors
/// Errors of the index, and those of the reader.
pub(crate) fn spellcheck(
    planner: &TextQueryPlanner<'_>,
    reader: Option<ReadableTextFn<'_>>,
    text: &str,
    limit: usize,
) -> Result<Vec<String>> {
    let mut vocabulary = reader.map(|reader| ReaderVocabulary::new(planner, reader));
    let mut corrected = vec![String::new()];
    let mut is_changed = false;
    let mut at = 0;
    for (number, token) in tokenize(&mut build_word_analyzer(), text).into_iter().enumerate() {
        let between = text.get(at..token.offset_from).unwrap_or_default();
        corrected.iter_mut().for_each(|correction| correction.push_str(between));
        at = token.offset_to;
        let is_looked_at =
            number < MAX_CORRECTED_WORDS && token.text.chars().count() >= MIN_CORRECTED_CHARACTERS;
        let mut choices = match &mut vocabulary {
            _ if !is_looked_at => Vec::new(),
            None => find_near_words(planner, &token.text)?,
            Some(vocabulary) => match find_readable_near_words(vocabulary, planner, &token.text)? {
                Some(choices) => choices,
                None => return Ok(Vec::new()),
            },
        };
        if choices.is_empty() {
            choices.push(token.text);
        } else {
            is_changed = true;
        }
        let longer = corrected.iter().flat_map(|correction| {
            choices.iter().map(move |choice| format!("{correction}{choice}"))
        });
        corrected = longer.take(limit).collect();
    }
    let rest = text.get(at..).unwrap_or_default();
    corrected.iter_mut().for_each(|correction| correction.push_str(rest));
    Ok(if is_changed { corrected } else { Vec::new() })
}

/// Returns the known words similar to an unknown one, by distance and then by descending frequency.
fn find_near_words(planner: &TextQueryPlanner<'_>, word: &str) -> Result<Vec<String>> {
    for field in [planner.fields.words, planner.fields.file_words] {
        if planner.count_documents(&Term::from_field_text(field, word))? > 0 {
            return Ok(Vec::new());
        }
    }
    for distance in 1..=max_edit_distance(word) {
        let frequencies = words_at_distance(planner, word, distance)?;
        if !frequencies.is_empty() {
            return Ok(sort_by_frequency(frequencies));
        }
    }
    Ok(Vec::new())
}

/// Like [`find_near_words`], for the words that a reader sees; `None` if the scan limit is exceeded.
fn find_readable_near_words(
    vocabulary: &mut ReaderVocabulary<'_>,
    planner: &TextQueryPlanner<'_>,
    word: &str,
) -> Result<Option<Vec<String>>> {
    match vocabulary.count_readable(word, 1)? {
        None => return Ok(None),
        Some(0) => {}
        Some(_) => return Ok(Some(Vec::new())),
    }
    for distance in 1..=max_edit_distance(word) {
        let mut frequencies = BTreeMap::new();
        for word in words_at_distance(planner, word, distance)?.into_keys().take(MAX_NEAR_WORDS) {
            let Some(count) = vocabulary.count_readable(&word, MAX_WORD_COUNT)? else {
                return Ok(None);
            };
            if count > 0 {
                frequencies.insert(word, count);
            }
        }
        if !frequencies.is_empty() {
            return Ok(Some(sort_by_frequency(frequencies)));
        }
    }
    Ok(Some(Vec::new()))
}

/// Returns the maximum number of wrong letters in a word.
fn max_edit_distance(word: &str) -> u8 {
    if word.chars().count() <= MAX_SINGLE_ERROR_CHARACTERS { 1 } else { 2 }
}

fn sort_by_frequency(frequencies: BTreeMap<String, u64>) -> Vec<String> {
    most_frequent(frequencies, usize::MAX).into_iter().map(|(word, _)| word).collect()
}

/// Returns the words of the index within a given edit distance from a word.
fn words_at_distance(
    planner: &TextQueryPlanner<'_>,
    word: &str,
    distance: u8,
) -> Result<BTreeMap<String, u64>> {
    let find = || -> tantivy::Result<BTreeMap<String, u64>> {
        let mut frequencies = BTreeMap::<String, u64>::new();
        for segment in planner.searcher.segment_readers() {
            for field in [planner.fields.words, planner.fields.file_words] {
                let term = Term::from_field_text(field, word);
                let index = segment.inverted_index(field)?;
                let automaton = FuzzyTermQuery::new(term, distance, true).automaton()?;
                let mut stream = index.terms().search(automaton).into_stream()?;
                while let Some((key, info)) = stream.next() {
                    if let Ok(word) = std::str::from_utf8(key) {
                        *frequencies.entry(word.to_owned()).or_default() +=
                            u64::from(info.doc_freq);
                    }
                }
            }
        }
        Ok(frequencies)
    };
    find().map_err(|error| planner.query_error(error))
}
