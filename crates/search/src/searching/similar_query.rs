//! Documents similar to a given one: those that share its significant words.

use std::collections::BTreeMap;

use tantivy::query::{BooleanQuery, EmptyQuery, Occur, Query, TermQuery};
use tantivy::schema::{IndexRecordOption, Value};
use tantivy::{DocAddress, TantivyDocument, Term};
use tympan_content::NodePath;

use crate::analyzer::{build_word_analyzer, tokenize};
use crate::error::Result;
use crate::searching::query_planner::{PlannedTextQuery, TextQueryPlanner};
use crate::searching::top_hit::TopHitsCollector;

/// The maximum number of words that represent a document.
const MAX_SIGNIFICANT_WORDS: usize = 25;
/// The minimum length of a significant word, in characters.
const MIN_WORD_CHARACTERS: usize = 3;

/// Plans the query for the documents similar to the one at a path, which is itself excluded.
///
/// # Errors
/// Errors of the index.
pub(crate) fn plan_similar(
    planner: &TextQueryPlanner<'_>,
    path: &NodePath,
) -> Result<PlannedTextQuery> {
    let own = Term::from_field_text(planner.fields.path, path.as_str());
    let own: Box<dyn Query> = Box::new(TermQuery::new(own, IndexRecordOption::Basic));
    let text = stored_text(planner, &*own)?;
    let mut counts = BTreeMap::<String, u32>::new();
    for token in tokenize(&mut build_word_analyzer(), &text) {
        if token.text.chars().count() >= MIN_WORD_CHARACTERS {
            *counts.entry(token.text).or_default() += 1;
        }
    }
    let documents = planner.searcher.num_docs().max(1);
    let mut telling = Vec::new();
    for (word, count) in counts {
        for field in [planner.fields.words, planner.fields.file_words] {
            let term = Term::from_field_text(field, &word);
            let document_count = planner.count_documents(&term)?;
            // A word that occurs only in this document finds no others.
            if document_count > 1 {
                let rarity = (documents as f64 / document_count as f64).ln() + 1.0;
                telling.push((f64::from(count).sqrt() * rarity, term));
            }
        }
    }
    telling.sort_by(|(left, left_term), (right, right_term)| {
        right.total_cmp(left).then_with(|| left_term.cmp(right_term))
    });
    telling.truncate(MAX_SIGNIFICANT_WORDS);
    let mut parts = Vec::new();
    for (_, term) in telling {
        parts.extend(planner.plan_scored_term(term, 1.0)?);
    }
    if parts.is_empty() {
        return Ok(PlannedTextQuery { query: Box::new(EmptyQuery), estimated_matches: 0 });
    }
    let union = planner.plan_union(parts);
    let others = BooleanQuery::new(vec![(Occur::Must, union.query), (Occur::MustNot, own)]);
    Ok(PlannedTextQuery { query: Box::new(others), estimated_matches: union.estimated_matches })
}

/// Returns the stored text of a document; empty if the document does not exist.
fn stored_text(planner: &TextQueryPlanner<'_>, own: &dyn Query) -> Result<String> {
    let failed = |error| planner.query_error(error);
    let top = TopHitsCollector { limit: 1, after_hit: None };
    let hits = planner.searcher.search(own, &top).map_err(failed)?;
    let Some(hit) = hits.first() else { return Ok(String::new()) };
    let address = DocAddress::new(hit.segment, hit.document);
    let document: TantivyDocument = planner.searcher.doc(address).map_err(failed)?;
    let text = document.get_first(planner.fields.excerpt).and_then(|value| value.as_str());
    Ok(text.unwrap_or_default().to_owned())
}
