//! Completions and corrections, from the words of the index.

use std::cell::Cell;
use std::collections::BTreeMap;

use tantivy::query::FuzzyTermQuery;
use tantivy::{Searcher, Term};

use crate::analyzer::{split, words};
use crate::expand::{MAX_LOOKED_AT, Place, most_frequent};
use crate::schema::Fields;

/// Shorter words are left as they are.
const MIN_CORRECTED: usize = 3;
/// Words behind so many are left as they are.
const MAX_CORRECTED: usize = 32;
/// Up to this length a word is one letter wrong, longer ones up to two.
const MAX_ONE_WRONG: usize = 5;

/// Returns completions of the last word of a text, most frequent first, with the words before it.
pub(crate) fn suggest(
    searcher: &Searcher,
    fields: &Fields,
    prefix: &str,
    limit: usize,
) -> tantivy::Result<Vec<String>> {
    // After a space the next word is not begun.
    let Some(last) =
        split(&mut words(), prefix).pop().filter(|last| last.offset_to == prefix.len())
    else {
        return Ok(Vec::new());
    };
    let before = prefix.get(..last.offset_from).unwrap_or_default().to_lowercase();
    let mut found = BTreeMap::<String, u64>::new();
    // However many there are: the first ones of the alphabet are offered then.
    let left = Cell::new(MAX_LOOKED_AT);
    for place in [fields.words, fields.files].map(Place::field) {
        for (word, count) in place.expand(searcher, &last.text, &|_| true, &left)? {
            *found.entry(word).or_default() += count;
        }
    }
    let found = most_frequent(found, limit).into_iter();
    Ok(found.map(|(word, _)| format!("{before}{word}")).collect())
}

/// Returns a text with its unknown words corrected, in up to `limit` ways; nothing if all are known or none is near.
pub(crate) fn spellcheck(
    searcher: &Searcher,
    fields: &Fields,
    text: &str,
    limit: usize,
) -> tantivy::Result<Vec<String>> {
    let mut corrected = vec![String::new()];
    let mut is_changed = false;
    let mut at = 0;
    let mut looked_at = 0;
    for token in split(&mut words(), text) {
        let between = text.get(at..token.offset_from).unwrap_or_default();
        corrected.iter_mut().for_each(|one| one.push_str(between));
        at = token.offset_to;
        let mut choices = Vec::new();
        if looked_at < MAX_CORRECTED {
            choices = near(searcher, fields, &token.text)?;
            looked_at += 1;
        }
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
fn near(searcher: &Searcher, fields: &Fields, word: &str) -> tantivy::Result<Vec<String>> {
    let places = [fields.words, fields.files];
    let length = word.chars().count();
    if length < MIN_CORRECTED {
        return Ok(Vec::new());
    }
    for field in places {
        if searcher.doc_freq(&Term::from_field_text(field, word))? > 0 {
            return Ok(Vec::new());
        }
    }
    let most = if length <= MAX_ONE_WRONG { 1 } else { 2 };
    for distance in 1..=most {
        let mut found = BTreeMap::<String, u64>::new();
        let segments = searcher.segment_readers().iter();
        for (segment, field) in segments.flat_map(|one| places.map(|field| (one, field))) {
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
        if !found.is_empty() {
            return Ok(most_frequent(found, usize::MAX)
                .into_iter()
                .map(|(word, _)| word)
                .collect());
        }
    }
    Ok(Vec::new())
}
