//! Completions and corrections, from the words of the index; for a reader who may not read everything, from the words
//! that this one may read.

use std::cell::Cell;
use std::collections::BTreeMap;

use tantivy::Term;
use tantivy::query::FuzzyTermQuery;
use tympan_content::query::Reader;

use crate::analyzer::{split, words};
use crate::error::{Error, Result};
use crate::expand::{MAX_LOOKED_AT, Place, most_frequent};
use crate::query::Planner;
use crate::sight::Sight;

/// Shorter words are left as they are.
const MIN_CORRECTED: usize = 3;
/// Words behind so many are left as they are.
const MAX_CORRECTED: usize = 32;
/// Up to this length a word is one letter wrong, longer ones up to two.
const MAX_ONE_WRONG: usize = 5;
/// So many words near a wrong one are looked at for a reader who may not read everything.
const MAX_NEAR: usize = 1_000;
/// How often such a word is counted, to tell which is said more often.
const MAX_COUNTED: u64 = 20;

/// Returns completions of the last word of a text, most frequent first, with the words before it.
///
/// # Errors
/// Errors of the index, and those of the reader.
pub(crate) fn suggest(
    planner: &Planner<'_>,
    reader: Option<Reader<'_>>,
    prefix: &str,
    limit: usize,
) -> Result<Vec<String>> {
    // After a space the next word is not begun.
    let Some(last) =
        split(&mut words(), prefix).pop().filter(|last| last.offset_to == prefix.len())
    else {
        return Ok(Vec::new());
    };
    let before = prefix.get(..last.offset_from).unwrap_or_default().to_lowercase();
    let found = match reader {
        None => all_from(planner, &last.text)?,
        Some(reader) => match Sight::new(planner, reader).words_from(&last.text) {
            // There are too many words.
            Err(Error::Refused(_)) => BTreeMap::new(),
            found => found?,
        },
    };
    let found = most_frequent(found, limit).into_iter();
    Ok(found.map(|(word, _)| format!("{before}{word}")).collect())
}

/// Returns the words of all documents that begin so. However many there are: the first ones of the alphabet count then.
fn all_from(planner: &Planner<'_>, prefix: &str) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::<String, u64>::new();
    let left = Cell::new(MAX_LOOKED_AT);
    for place in [planner.fields.words, planner.fields.files].map(Place::field) {
        let words = place.expand(planner.searcher, prefix, &|_| true, &left);
        for (word, count) in words.map_err(|error| planner.failed(error))? {
            *found.entry(word).or_default() += count;
        }
    }
    Ok(found)
}

/// Returns a text with its unknown words corrected, in up to `limit` ways; nothing if all are known or none is near, or
/// if a reader may read so little that looking for it takes too long.
///
/// # Errors
/// Errors of the index, and those of the reader.
pub(crate) fn spellcheck(
    planner: &Planner<'_>,
    reader: Option<Reader<'_>>,
    text: &str,
    limit: usize,
) -> Result<Vec<String>> {
    let mut sight = reader.map(|reader| Sight::new(planner, reader));
    let mut corrected = vec![String::new()];
    let mut is_changed = false;
    let mut at = 0;
    for (number, token) in split(&mut words(), text).into_iter().enumerate() {
        let between = text.get(at..token.offset_from).unwrap_or_default();
        corrected.iter_mut().for_each(|one| one.push_str(between));
        at = token.offset_to;
        let is_looked_at = number < MAX_CORRECTED && token.text.chars().count() >= MIN_CORRECTED;
        let mut choices = match &mut sight {
            _ if !is_looked_at => Vec::new(),
            None => near(planner, &token.text)?,
            Some(sight) => match near_for(sight, planner, &token.text)? {
                Some(choices) => choices,
                None => return Ok(Vec::new()),
            },
        };
        if choices.is_empty() {
            choices.push(token.text);
        } else {
            is_changed = true;
        }
        let longer = corrected
            .iter()
            .flat_map(|one| choices.iter().map(move |choice| format!("{one}{choice}")));
        corrected = longer.take(limit).collect();
    }
    let rest = text.get(at..).unwrap_or_default();
    corrected.iter_mut().for_each(|one| one.push_str(rest));
    Ok(if is_changed { corrected } else { Vec::new() })
}

/// Returns the known words near an unknown one, nearest and then most frequent first.
fn near(planner: &Planner<'_>, word: &str) -> Result<Vec<String>> {
    for field in [planner.fields.words, planner.fields.files] {
        if planner.count(&Term::from_field_text(field, word))? > 0 {
            return Ok(Vec::new());
        }
    }
    for distance in 1..=most_wrong(word) {
        let found = at_distance(planner, word, distance)?;
        if !found.is_empty() {
            return Ok(by_frequency(found));
        }
    }
    Ok(Vec::new())
}

/// As [`near`], of the words that a reader sees; nothing if too many documents were looked at.
fn near_for(
    sight: &mut Sight<'_>,
    planner: &Planner<'_>,
    word: &str,
) -> Result<Option<Vec<String>>> {
    match sight.count(word, 1)? {
        None => return Ok(None),
        Some(0) => {}
        Some(_) => return Ok(Some(Vec::new())),
    }
    for distance in 1..=most_wrong(word) {
        let mut found = BTreeMap::new();
        for word in at_distance(planner, word, distance)?.into_keys().take(MAX_NEAR) {
            let Some(count) = sight.count(&word, MAX_COUNTED)? else { return Ok(None) };
            if count > 0 {
                found.insert(word, count);
            }
        }
        if !found.is_empty() {
            return Ok(Some(by_frequency(found)));
        }
    }
    Ok(Some(Vec::new()))
}

/// Returns how many letters of a word may be wrong.
fn most_wrong(word: &str) -> u8 {
    if word.chars().count() <= MAX_ONE_WRONG { 1 } else { 2 }
}

fn by_frequency(found: BTreeMap<String, u64>) -> Vec<String> {
    most_frequent(found, usize::MAX).into_iter().map(|(word, _)| word).collect()
}

/// Returns the words of the index of which up to so many letters differ from a word.
fn at_distance(planner: &Planner<'_>, word: &str, distance: u8) -> Result<BTreeMap<String, u64>> {
    let find = || -> tantivy::Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::<String, u64>::new();
        for segment in planner.searcher.segment_readers() {
            for field in [planner.fields.words, planner.fields.files] {
                let term = Term::from_field_text(field, word);
                let index = segment.inverted_index(field)?;
                let automaton = FuzzyTermQuery::new(term, distance, true).automaton()?;
                let mut stream = index.terms().search(automaton).into_stream()?;
                while let Some((key, info)) = stream.next() {
                    if let Ok(word) = std::str::from_utf8(key) {
                        *found.entry(word.to_owned()).or_default() += u64::from(info.doc_freq);
                    }
                }
            }
        }
        Ok(found)
    };
    find().map_err(|error| planner.failed(error))
}
