//! Planning of full-text expressions: from an expression to a query of the index, with an estimate of its hits.
//!
//! A word is searched as an exact word, in titles (with a higher weight) and as a stem in each language of the index.
//! The parts of such a union are plain terms, so that the scorers can skip blocks that cannot reach the first page: a
//! word that occurs in every document costs about as much as a rare one.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tantivy::query::{
    AllQuery, BooleanQuery, BoostQuery, ConstScoreQuery, EmptyQuery, Occur, PhrasePrefixQuery,
    PhraseQuery, Query, TermQuery, TermSetQuery,
};
use tantivy::schema::IndexRecordOption;
use tantivy::tokenizer::Token;
use tantivy::{Searcher, Term};
use tympan_content::NodePath;
use tympan_content_query::{FullTextExpression, FullTextRequest, normalize_word};
use tympan_notation::{matches_wildcards, wildcard_tokens};

use crate::analyzer::{all_stems_name, build_word_analyzer, tokenize};
use crate::error::{Error, Result};
use crate::indexing::schema::SearchIndexFields;
use crate::searching::similar_query;
use crate::searching::word_expansion::{MAX_EXPANSION, WordLocation, most_frequent};

/// The weight of a word in a title.
const TITLE_BOOST: f32 = 3.0;
/// The weight of a stem relative to the exact word.
const STEM_BOOST: f32 = 0.5;
/// The maximum number of expanded words of a prefix or pattern that are scored individually.
const MAX_SCORED_WORDS: usize = 64;
/// The maximum nesting depth of expressions; deeper ones are rejected.
const MAX_EXPRESSION_DEPTH: usize = 64;
/// The maximum number of words in an expression; longer ones are rejected.
const MAX_EXPRESSION_WORDS: usize = 1024;

/// A query and the estimated number of matching documents.
pub(crate) struct PlannedTextQuery {
    pub(crate) query: Box<dyn Query>,
    pub(crate) estimated_matches: u64,
}

/// The context in which a query is planned.
pub(crate) struct TextQueryPlanner<'a> {
    pub(crate) searcher: &'a Searcher,
    pub(crate) fields: &'a SearchIndexFields,
    /// The folder of the index, for error messages.
    pub(crate) dir: &'a Path,
    /// The property that must hold the words.
    pub(crate) property: Option<&'a str>,
    /// The number of dictionary words that the patterns of the query may still scan.
    pub(crate) remaining_scans: Cell<usize>,
}

impl TextQueryPlanner<'_> {
    /// Plans the query of a request, including its restrictions.
    ///
    /// # Errors
    /// [`Error::Refused`] for an expression that is too large; errors of the index.
    pub(crate) fn plan_request(&self, request: &FullTextRequest) -> Result<PlannedTextQuery> {
        check_expression_size(&request.expression, 0, &mut 0)?;
        let text = self.plan_expression(&request.expression)?;
        let mut planned =
            text.unwrap_or(PlannedTextQuery { query: Box::new(EmptyQuery), estimated_matches: 0 });
        let mut filters = Vec::new();
        if !request.node_types.is_empty() {
            let terms: Vec<Term> = request
                .node_types
                .iter()
                .map(|node_type| Term::from_field_text(self.fields.node_types, node_type))
                .collect();
            filters.push(self.plan_any_term(terms)?);
        }
        if let Some(below) = &request.ancestor
            && !below.is_root()
        {
            filters.push(self.plan_any_term(vec![self.subtree_term(below)?])?);
        }
        if filters.is_empty() {
            return Ok(planned);
        }
        let mut clauses = vec![(Occur::Must, planned.query)];
        for filter in filters {
            planned.estimated_matches = planned.estimated_matches.min(filter.estimated_matches);
            let silent: Box<dyn Query> = Box::new(ConstScoreQuery::new(filter.query, 0.0));
            clauses.push((Occur::Must, silent));
        }
        Ok(PlannedTextQuery {
            query: Box::new(BooleanQuery::new(clauses)),
            estimated_matches: planned.estimated_matches,
        })
    }

    /// Returns the term of all documents that hold nodes below a path. For a path inside a document, this is the term
    /// of the document.
    fn subtree_term(&self, below: &NodePath) -> Result<Term> {
        let mut owner = Some(below.clone());
        while let Some(path) = owner {
            let term = Term::from_field_text(self.fields.path, path.as_str());
            if self.count_documents(&term)? > 0 {
                let is_itself = path == *below;
                let within = Term::from_field_text(self.fields.ancestor_paths, path.as_str());
                return Ok(if is_itself { within } else { term });
            }
            owner = path.parent();
        }
        Ok(Term::from_field_text(self.fields.ancestor_paths, below.as_str()))
    }

    fn plan_any_term(&self, terms: Vec<Term>) -> Result<PlannedTextQuery> {
        let mut estimate = 0;
        for term in &terms {
            estimate += self.count_documents(term)?;
        }
        let query: Box<dyn Query> = match <[Term; 1]>::try_from(terms) {
            Ok([term]) => Box::new(TermQuery::new(term, IndexRecordOption::Basic)),
            Err(terms) => Box::new(TermSetQuery::new(terms)),
        };
        Ok(PlannedTextQuery { query, estimated_matches: estimate.min(self.searcher.num_docs()) })
    }

    /// Plans the query of an expression; `None` if it contains no word.
    fn plan_expression(&self, expression: &FullTextExpression) -> Result<Option<PlannedTextQuery>> {
        match expression {
            FullTextExpression::Term(text) => self.plan_term(text),
            FullTextExpression::Phrase(text) => self.plan_phrase(&tokenize_words(text), false),
            FullTextExpression::Prefix(text) => self.plan_prefix(text),
            FullTextExpression::Wildcard(pattern) => self.plan_wildcard(pattern),
            FullTextExpression::And(parts) => self.plan_all(parts),
            FullTextExpression::Or(parts) => self.plan_any(parts),
            FullTextExpression::Not(_) => self.plan_all(std::slice::from_ref(expression)),
            FullTextExpression::Boost(part, boost) => {
                let boost = if boost.is_finite() { boost.clamp(0.001, 1000.0) } else { 1.0 };
                Ok(self.plan_expression(part)?.map(|part| PlannedTextQuery {
                    query: Box::new(BoostQuery::new(part.query, boost)),
                    estimated_matches: part.estimated_matches,
                }))
            }
            FullTextExpression::Similar(path) => similar_query::plan_similar(self, path).map(Some),
        }
    }

    fn plan_all(&self, parts: &[FullTextExpression]) -> Result<Option<PlannedTextQuery>> {
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        let mut estimate = self.searcher.num_docs();
        for part in parts {
            let (occur, part) = match part {
                FullTextExpression::Not(part) => (Occur::MustNot, &**part),
                part => (Occur::Must, part),
            };
            let Some(planned) = self.plan_expression(part)? else { continue };
            estimate = match occur {
                Occur::Must => estimate.min(planned.estimated_matches),
                _ => {
                    estimate.min(self.searcher.num_docs().saturating_sub(planned.estimated_matches))
                }
            };
            clauses.push((occur, planned.query));
        }
        if clauses.is_empty() {
            return Ok(None);
        }
        if clauses.iter().all(|(occur, _)| *occur == Occur::MustNot) {
            clauses.push((Occur::Must, Box::new(AllQuery)));
        }
        Ok(Some(PlannedTextQuery {
            query: Box::new(BooleanQuery::new(clauses)),
            estimated_matches: estimate,
        }))
    }

    fn plan_any(&self, parts: &[FullTextExpression]) -> Result<Option<PlannedTextQuery>> {
        let mut planned = Vec::new();
        for part in parts {
            planned.extend(self.plan_expression(part)?);
        }
        Ok((!planned.is_empty()).then(|| self.plan_union(planned)))
    }

    pub(crate) fn plan_union(&self, parts: Vec<PlannedTextQuery>) -> PlannedTextQuery {
        let estimate = parts.iter().map(|part| part.estimated_matches).sum::<u64>();
        let queries = parts.into_iter().map(|part| part.query).collect();
        PlannedTextQuery {
            query: Box::new(BooleanQuery::union(queries)),
            estimated_matches: estimate.min(self.searcher.num_docs()),
        }
    }

    /// Plans the query of a term: a single word, or a phrase if punctuation splits it into several.
    fn plan_term(&self, text: &str) -> Result<Option<PlannedTextQuery>> {
        let tokens = tokenize_words(text);
        match (tokens.as_slice(), self.property) {
            ([_], None) => {}
            (tokens, _) => return self.plan_phrase(tokens, false),
        }
        let mut parts = self.plan_exact(text)?;
        let mut stems_as_words = BTreeSet::new();
        for (code, field) in &self.fields.stems {
            let language = Term::from_field_text(self.fields.language, code);
            if self.count_documents(&language)? == 0 {
                continue;
            }
            let analyzer = self.searcher.index().tokenizers().get(&all_stems_name(code));
            for stem in analyzer.map(|mut stems| tokenize(&mut stems, text)).unwrap_or_default() {
                let term = Term::from_field_text(*field, &stem.text);
                parts.extend(self.plan_scored_term(term, STEM_BOOST)?);
                stems_as_words.insert(stem.text);
            }
        }
        // A word that equals its stem is indexed only among the words.
        for stem in stems_as_words {
            if tokens.iter().all(|token| token.text != stem) {
                for field in [self.fields.words, self.fields.file_words] {
                    let term = Term::from_field_text(field, &stem);
                    parts.extend(self.plan_scored_term(term, STEM_BOOST)?);
                }
            }
        }
        Ok(Some(self.plan_overlapping_union(parts)))
    }

    /// Plans the queries for the exact word, in the text and in titles.
    fn plan_exact(&self, text: &str) -> Result<Vec<PlannedTextQuery>> {
        let mut parts = Vec::new();
        for token in tokenize_words(text) {
            for field in [self.fields.words, self.fields.file_words] {
                parts
                    .extend(self.plan_scored_term(Term::from_field_text(field, &token.text), 1.0)?);
            }
            let title = Term::from_field_text(self.fields.title, &token.text);
            parts.extend(self.plan_scored_term(title, TITLE_BOOST)?);
        }
        Ok(parts)
    }

    /// Plans the query for the documents that have a term; `None` if there are none.
    pub(crate) fn plan_scored_term(
        &self,
        term: Term,
        boost: f32,
    ) -> Result<Option<PlannedTextQuery>> {
        let estimate = self.count_documents(&term)?;
        if estimate == 0 {
            return Ok(None);
        }
        let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
        let query = if boost == 1.0 { query } else { Box::new(BoostQuery::new(query, boost)) };
        Ok(Some(PlannedTextQuery { query, estimated_matches: estimate }))
    }

    /// Plans a union of parts that match largely the same documents.
    fn plan_overlapping_union(&self, parts: Vec<PlannedTextQuery>) -> PlannedTextQuery {
        let estimate = parts.iter().map(|part| part.estimated_matches).max().unwrap_or(0);
        match <[PlannedTextQuery; 1]>::try_from(parts) {
            Ok([part]) => part,
            Err(parts) => {
                PlannedTextQuery { estimated_matches: estimate, ..self.plan_union(parts) }
            }
        }
    }

    /// Plans the query for a phrase; `None` if it contains no words. With `is_open`, the last word is a prefix.
    fn plan_phrase(&self, tokens: &[Token], is_open: bool) -> Result<Option<PlannedTextQuery>> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for location in self.exact_word_locations() {
            let terms: Vec<(usize, Term)> = tokens
                .iter()
                .map(|token| (token.position, location.term_of(&token.text)))
                .collect();
            let mut estimate = self.searcher.num_docs();
            let closed = terms.len() - usize::from(is_open);
            for (_, term) in terms.iter().take(closed) {
                estimate = estimate.min(self.count_documents(term)?);
            }
            if estimate == 0 {
                continue;
            }
            let query: Box<dyn Query> = match terms.as_slice() {
                [(_, term)] => Box::new(TermQuery::new(term.clone(), IndexRecordOption::WithFreqs)),
                _ if is_open => Box::new(PhrasePrefixQuery::new_with_offset(terms)),
                _ => Box::new(PhraseQuery::new_with_offset(terms)),
            };
            parts.extend(self.restrict_to_location(
                &location,
                PlannedTextQuery { query, estimated_matches: estimate },
            )?);
        }
        if self.property.is_none()
            && !is_open
            && let [token] = tokens
        {
            let title = Term::from_field_text(self.fields.title, &token.text);
            parts.extend(self.plan_scored_term(title, TITLE_BOOST)?);
        }
        Ok(Some(self.plan_overlapping_union(parts)))
    }

    /// Returns the locations in which exact words are searched.
    fn exact_word_locations(&self) -> Vec<WordLocation> {
        match self.property {
            None => [self.fields.words, self.fields.file_words].map(WordLocation::of_field).into(),
            // The name may also be a node name.
            Some(property) => {
                let nodes = WordLocation::of_nodes(self.fields, property);
                WordLocation::of_property(self.fields, property).into_iter().chain(nodes).collect()
            }
        }
    }

    /// Restricts a query to the documents of a location; `None` if there are none.
    fn restrict_to_location(
        &self,
        location: &WordLocation,
        text_query: PlannedTextQuery,
    ) -> Result<Option<PlannedTextQuery>> {
        if location.required_terms.is_empty() {
            return Ok(Some(text_query));
        }
        let among = self.plan_any_term(location.required_terms.clone())?;
        let estimate = text_query.estimated_matches.min(among.estimated_matches);
        let silent: Box<dyn Query> = Box::new(ConstScoreQuery::new(among.query, 0.0));
        let query = BooleanQuery::intersection(vec![text_query.query, silent]);
        Ok((estimate > 0)
            .then(|| PlannedTextQuery { query: Box::new(query), estimated_matches: estimate }))
    }

    fn plan_prefix(&self, text: &str) -> Result<Option<PlannedTextQuery>> {
        let tokens = tokenize_words(text);
        match tokens.as_slice() {
            [] => Ok(None),
            [token] => self.plan_expanded(&token.text, &|_| true).map(Some),
            tokens => self.plan_phrase(tokens, true),
        }
    }

    fn plan_wildcard(&self, pattern: &str) -> Result<Option<PlannedTextQuery>> {
        let pattern = normalize_word(pattern);
        if pattern.chars().all(|character| character == '*') {
            let estimate = self.searcher.num_docs();
            return Ok(Some(PlannedTextQuery {
                query: Box::new(AllQuery),
                estimated_matches: estimate,
            }));
        }
        if !pattern.contains(['*', '?']) {
            return self.plan_term(&pattern);
        }
        let prefix = pattern.split(['*', '?']).next().unwrap_or_default();
        let matches = |word: &str| matches_wildcards(wildcard_tokens(&pattern), word);
        self.plan_expanded(prefix, &matches).map(Some)
    }

    /// Plans the query for the documents that have any of the words that begin with a prefix and pass a test.
    pub(crate) fn plan_expanded(
        &self,
        prefix: &str,
        is_match: &dyn Fn(&str) -> bool,
    ) -> Result<PlannedTextQuery> {
        let mut parts = Vec::new();
        for location in self.exact_word_locations() {
            if location
                .required_terms
                .iter()
                .try_fold(0, |sum, term| self.count_documents(term).map(|count| sum + count))?
                == 0
                && !location.required_terms.is_empty()
            {
                continue;
            }
            let words = location.expand(self.searcher, prefix, is_match, &self.remaining_scans);
            let words = words.map_err(|error| self.query_error(error))?;
            if self.remaining_scans.get() == 0 {
                return Err(Error::Refused(
                    "its patterns cover too many words; begin them with more letters, or search for fewer",
                ));
            }
            if let Some(text_query) = self.plan_any_word(&location, words)? {
                parts.extend(self.restrict_to_location(&location, text_query)?);
            }
        }
        Ok(match parts.len() {
            0 => PlannedTextQuery { query: Box::new(EmptyQuery), estimated_matches: 0 },
            _ => self.plan_union(parts),
        })
    }

    /// Plans the query for the documents that have any of the given words in a location; `None` if there are no words.
    fn plan_any_word(
        &self,
        location: &WordLocation,
        words: BTreeMap<String, u64>,
    ) -> Result<Option<PlannedTextQuery>> {
        if words.len() <= MAX_SCORED_WORDS {
            let mut parts = Vec::new();
            for word in words.keys() {
                parts.extend(self.plan_scored_term(location.term_of(word), 1.0)?);
            }
            return Ok((!parts.is_empty()).then(|| self.plan_union(parts)));
        }
        let estimate = words.values().sum::<u64>().min(self.searcher.num_docs());
        let words = most_frequent(words, MAX_EXPANSION);
        let query = TermSetQuery::new(words.iter().map(|(word, _)| location.term_of(word)));
        Ok(Some(PlannedTextQuery { query: Box::new(query), estimated_matches: estimate }))
    }

    /// Counts the documents that have a term. Deleted documents are included until a merge removes them.
    pub(crate) fn count_documents(&self, term: &Term) -> Result<u64> {
        self.searcher.doc_freq(term).map_err(|error| self.query_error(error))
    }

    pub(crate) fn query_error(&self, error: tantivy::TantivyError) -> Error {
        Error::index_access("read", self.dir, error)
    }
}

fn tokenize_words(text: &str) -> Vec<Token> {
    tokenize(&mut build_word_analyzer(), text)
}

/// Rejects expressions that are too deep or too long.
fn check_expression_size(
    expression: &FullTextExpression,
    depth: usize,
    words: &mut usize,
) -> Result<()> {
    if depth > MAX_EXPRESSION_DEPTH {
        return Err(Error::Refused("its parts are nested too deeply"));
    }
    match expression {
        FullTextExpression::And(parts) | FullTextExpression::Or(parts) => {
            parts.iter().try_for_each(|part| check_expression_size(part, depth + 1, words))
        }
        FullTextExpression::Not(part) | FullTextExpression::Boost(part, _) => {
            check_expression_size(part, depth + 1, words)
        }
        FullTextExpression::Term(text)
        | FullTextExpression::Phrase(text)
        | FullTextExpression::Prefix(text)
        | FullTextExpression::Wildcard(text) => {
            *words += 1 + text.len() / 64;
            if *words > MAX_EXPRESSION_WORDS {
                Err(Error::Refused("it has too many words"))
            } else {
                Ok(())
            }
        }
        FullTextExpression::Similar(_) => Ok(()),
    }
}
