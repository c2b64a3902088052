//! From an expression of words to a query of the index, with an estimate of its hits.
//!
//! A word is looked for as it is, in titles (where it counts more) and as a stem of each language that the index has.
//! The parts of such a union are plain terms, so that the scorers can pass over blocks that cannot reach the first
//! page: a word that stands everywhere costs about as much as a rare one.

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
use tympan_content::query::{TextExpression, TextRequest, word_form};

use crate::analyzer::{every_stem_of, split, words};
use crate::error::{Error, Result};
use crate::expand::{MAX_EXPANSION, Place, matches, most_frequent};
use crate::schema::Fields;
use crate::similar;

/// How much more a word in a title counts.
const TITLE_BOOST: f32 = 3.0;
/// How much a stem counts beside the exact word.
const STEM_BOOST: f32 = 0.5;
/// Up to so many words that a prefix or pattern stands for are scored one by one.
const MAX_SCORED: usize = 64;
/// Deeper expressions are refused.
const MAX_DEPTH: usize = 64;
/// Expressions with more words are refused.
const MAX_WORDS: usize = 1024;

/// A query and about how many documents it matches.
pub(crate) struct Planned {
    pub(crate) query: Box<dyn Query>,
    pub(crate) estimate: u64,
}

/// What a query is made against.
pub(crate) struct Planner<'a> {
    pub(crate) searcher: &'a Searcher,
    pub(crate) fields: &'a Fields,
    /// Where the index is, for errors.
    pub(crate) dir: &'a Path,
    /// The property that must hold the words.
    pub(crate) property: Option<&'a str>,
    /// How many words of the dictionary its patterns may still look at.
    pub(crate) left: Cell<usize>,
}

impl Planner<'_> {
    /// Makes the query of a request, its restrictions included.
    ///
    /// # Errors
    /// [`Error::Refused`] for an expression without end; errors of the index.
    pub(crate) fn plan(&self, request: &TextRequest) -> Result<Planned> {
        check_size(&request.expression, 0, &mut 0)?;
        let text = self.expression(&request.expression)?;
        let mut planned = text.unwrap_or(Planned { query: Box::new(EmptyQuery), estimate: 0 });
        let mut filters = Vec::new();
        if !request.node_types.is_empty() {
            let terms: Vec<Term> = request
                .node_types
                .iter()
                .map(|one| Term::from_field_text(self.fields.types, one))
                .collect();
            filters.push(self.any_of(terms)?);
        }
        if let Some(below) = &request.below
            && !below.is_root()
        {
            filters.push(self.any_of(vec![self.below(below)?])?);
        }
        if filters.is_empty() {
            return Ok(planned);
        }
        let mut clauses = vec![(Occur::Must, planned.query)];
        for filter in filters {
            planned.estimate = planned.estimate.min(filter.estimate);
            let silent: Box<dyn Query> = Box::new(ConstScoreQuery::new(filter.query, 0.0));
            clauses.push((Occur::Must, silent));
        }
        Ok(Planned { query: Box::new(BooleanQuery::new(clauses)), estimate: planned.estimate })
    }

    /// Returns the term that all documents have which hold nodes below a path. A path inside of a document stands
    /// for the document.
    fn below(&self, below: &NodePath) -> Result<Term> {
        let mut owner = Some(below.clone());
        while let Some(path) = owner {
            let term = Term::from_field_text(self.fields.path, path.as_str());
            if self.count(&term)? > 0 {
                let is_itself = path == *below;
                let within = Term::from_field_text(self.fields.within, path.as_str());
                return Ok(if is_itself { within } else { term });
            }
            owner = path.parent();
        }
        Ok(Term::from_field_text(self.fields.within, below.as_str()))
    }

    fn any_of(&self, terms: Vec<Term>) -> Result<Planned> {
        let mut estimate = 0;
        for term in &terms {
            estimate += self.count(term)?;
        }
        let query: Box<dyn Query> = match <[Term; 1]>::try_from(terms) {
            Ok([term]) => Box::new(TermQuery::new(term, IndexRecordOption::Basic)),
            Err(terms) => Box::new(TermSetQuery::new(terms)),
        };
        Ok(Planned { query, estimate: estimate.min(self.searcher.num_docs()) })
    }

    /// Makes the query of an expression; nothing if there is no word in it.
    fn expression(&self, expression: &TextExpression) -> Result<Option<Planned>> {
        match expression {
            TextExpression::Term(text) => self.term(text),
            TextExpression::Phrase(text) => self.phrase(&tokens(text), false),
            TextExpression::Prefix(text) => self.prefix(text),
            TextExpression::Wildcard(pattern) => self.wildcard(pattern),
            TextExpression::And(parts) => self.all(parts),
            TextExpression::Or(parts) => self.any(parts),
            TextExpression::Not(_) => self.all(std::slice::from_ref(expression)),
            TextExpression::Boost(part, boost) => {
                let boost = if boost.is_finite() { boost.clamp(0.001, 1000.0) } else { 1.0 };
                Ok(self.expression(part)?.map(|part| Planned {
                    query: Box::new(BoostQuery::new(part.query, boost)),
                    estimate: part.estimate,
                }))
            }
            TextExpression::Similar(path) => similar::query(self, path).map(Some),
        }
    }

    fn all(&self, parts: &[TextExpression]) -> Result<Option<Planned>> {
        let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::new();
        let mut estimate = self.searcher.num_docs();
        for part in parts {
            let (occur, part) = match part {
                TextExpression::Not(part) => (Occur::MustNot, &**part),
                part => (Occur::Must, part),
            };
            let Some(planned) = self.expression(part)? else { continue };
            estimate = match occur {
                Occur::Must => estimate.min(planned.estimate),
                _ => estimate.min(self.searcher.num_docs().saturating_sub(planned.estimate)),
            };
            clauses.push((occur, planned.query));
        }
        if clauses.is_empty() {
            return Ok(None);
        }
        if clauses.iter().all(|(occur, _)| *occur == Occur::MustNot) {
            clauses.push((Occur::Must, Box::new(AllQuery)));
        }
        Ok(Some(Planned { query: Box::new(BooleanQuery::new(clauses)), estimate }))
    }

    fn any(&self, parts: &[TextExpression]) -> Result<Option<Planned>> {
        let mut planned = Vec::new();
        for part in parts {
            planned.extend(self.expression(part)?);
        }
        Ok((!planned.is_empty()).then(|| self.union(planned)))
    }

    pub(crate) fn union(&self, parts: Vec<Planned>) -> Planned {
        let estimate = parts.iter().map(|part| part.estimate).sum::<u64>();
        let queries = parts.into_iter().map(|part| part.query).collect();
        Planned {
            query: Box::new(BooleanQuery::union(queries)),
            estimate: estimate.min(self.searcher.num_docs()),
        }
    }

    /// A word, or what punctuation makes of it: words that follow each other.
    fn term(&self, text: &str) -> Result<Option<Planned>> {
        let found = tokens(text);
        match (found.as_slice(), self.property) {
            ([_], None) => {}
            (found, _) => return self.phrase(found, false),
        }
        let mut parts = self.exact(text)?;
        let mut stems_as_words = BTreeSet::new();
        for (code, field) in &self.fields.stems {
            let language = Term::from_field_text(self.fields.language, code);
            if self.count(&language)? == 0 {
                continue;
            }
            let analyzer = self.searcher.index().tokenizers().get(&every_stem_of(code));
            for stem in analyzer.map(|mut stems| split(&mut stems, text)).unwrap_or_default() {
                let term = Term::from_field_text(*field, &stem.text);
                parts.extend(self.scored(term, STEM_BOOST)?);
                stems_as_words.insert(stem.text);
            }
        }
        // A word that is its own stem stands among the words alone.
        for stem in stems_as_words {
            if found.iter().all(|token| token.text != stem) {
                for field in [self.fields.words, self.fields.files] {
                    let term = Term::from_field_text(field, &stem);
                    parts.extend(self.scored(term, STEM_BOOST)?);
                }
            }
        }
        Ok(Some(self.largest(parts)))
    }

    /// The word as it is, in the text and in titles.
    fn exact(&self, text: &str) -> Result<Vec<Planned>> {
        let mut parts = Vec::new();
        for token in tokens(text) {
            for field in [self.fields.words, self.fields.files] {
                parts.extend(self.scored(Term::from_field_text(field, &token.text), 1.0)?);
            }
            let title = Term::from_field_text(self.fields.title, &token.text);
            parts.extend(self.scored(title, TITLE_BOOST)?);
        }
        Ok(parts)
    }

    /// The documents that have a term; nothing if there are none.
    pub(crate) fn scored(&self, term: Term, boost: f32) -> Result<Option<Planned>> {
        let estimate = self.count(&term)?;
        if estimate == 0 {
            return Ok(None);
        }
        let query: Box<dyn Query> = Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs));
        let query = if boost == 1.0 { query } else { Box::new(BoostQuery::new(query, boost)) };
        Ok(Some(Planned { query, estimate }))
    }

    /// A union of parts that match much the same documents.
    fn largest(&self, parts: Vec<Planned>) -> Planned {
        let estimate = parts.iter().map(|part| part.estimate).max().unwrap_or(0);
        match <[Planned; 1]>::try_from(parts) {
            Ok([part]) => part,
            Err(parts) => Planned { estimate, ..self.union(parts) },
        }
    }

    /// Words that follow each other, nothing if there are none; with `is_open` the last one only begins so.
    fn phrase(&self, found: &[Token], is_open: bool) -> Result<Option<Planned>> {
        if found.is_empty() {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for place in self.places() {
            let terms: Vec<(usize, Term)> =
                found.iter().map(|token| (token.position, place.term(&token.text))).collect();
            let mut estimate = self.searcher.num_docs();
            let closed = terms.len() - usize::from(is_open);
            for (_, term) in terms.iter().take(closed) {
                estimate = estimate.min(self.count(term)?);
            }
            if estimate == 0 {
                continue;
            }
            let query: Box<dyn Query> = match terms.as_slice() {
                [(_, term)] => Box::new(TermQuery::new(term.clone(), IndexRecordOption::WithFreqs)),
                _ if is_open => Box::new(PhrasePrefixQuery::new_with_offset(terms)),
                _ => Box::new(PhraseQuery::new_with_offset(terms)),
            };
            parts.extend(self.among(&place, Planned { query, estimate })?);
        }
        if self.property.is_none()
            && !is_open
            && let [token] = found
        {
            let title = Term::from_field_text(self.fields.title, &token.text);
            parts.extend(self.scored(title, TITLE_BOOST)?);
        }
        Ok(Some(self.largest(parts)))
    }

    /// Returns where exact words are looked for.
    fn places(&self) -> Vec<Place> {
        match self.property {
            None => [self.fields.words, self.fields.files].map(Place::field).into(),
            // The name may be one of nodes as well.
            Some(property) => {
                let nodes = Place::of_nodes(self.fields, property);
                Place::of_property(self.fields, property).into_iter().chain(nodes).collect()
            }
        }
    }

    /// Restricts what was found in a place to the documents that the place has; nothing if there are none.
    fn among(&self, place: &Place, found: Planned) -> Result<Option<Planned>> {
        if place.among.is_empty() {
            return Ok(Some(found));
        }
        let among = self.any_of(place.among.clone())?;
        let estimate = found.estimate.min(among.estimate);
        let silent: Box<dyn Query> = Box::new(ConstScoreQuery::new(among.query, 0.0));
        let query = BooleanQuery::intersection(vec![found.query, silent]);
        Ok((estimate > 0).then(|| Planned { query: Box::new(query), estimate }))
    }

    fn prefix(&self, text: &str) -> Result<Option<Planned>> {
        let found = tokens(text);
        match found.as_slice() {
            [] => Ok(None),
            [token] => self.expanded(&token.text, &|_| true).map(Some),
            found => self.phrase(found, true),
        }
    }

    fn wildcard(&self, pattern: &str) -> Result<Option<Planned>> {
        let pattern = word_form(pattern);
        if pattern.chars().all(|character| character == '*') {
            let estimate = self.searcher.num_docs();
            return Ok(Some(Planned { query: Box::new(AllQuery), estimate }));
        }
        if !pattern.contains(['*', '?']) {
            return self.term(&pattern);
        }
        let prefix = pattern.split(['*', '?']).next().unwrap_or_default();
        self.expanded(prefix, &|word| matches(&pattern, word)).map(Some)
    }

    /// The documents that have any of the words that begin so and pass the test.
    pub(crate) fn expanded(
        &self,
        prefix: &str,
        is_match: &dyn Fn(&str) -> bool,
    ) -> Result<Planned> {
        let mut parts = Vec::new();
        for place in self.places() {
            if place.among.iter().try_fold(0, |sum, term| self.count(term).map(|one| sum + one))?
                == 0
                && !place.among.is_empty()
            {
                continue;
            }
            let words = place.expand(self.searcher, prefix, is_match, &self.left);
            let words = words.map_err(|error| self.failed(error))?;
            if self.left.get() == 0 {
                return Err(Error::Refused(
                    "its patterns look at too many words; begin them with more letters, or search for fewer",
                ));
            }
            if let Some(found) = self.any_word(&place, words)? {
                parts.extend(self.among(&place, found)?);
            }
        }
        Ok(match parts.len() {
            0 => Planned { query: Box::new(EmptyQuery), estimate: 0 },
            _ => self.union(parts),
        })
    }

    /// The documents that have any of these words in a place; nothing if there are no words.
    fn any_word(&self, place: &Place, words: BTreeMap<String, u64>) -> Result<Option<Planned>> {
        if words.len() <= MAX_SCORED {
            let mut parts = Vec::new();
            for word in words.keys() {
                parts.extend(self.scored(place.term(word), 1.0)?);
            }
            return Ok((!parts.is_empty()).then(|| self.union(parts)));
        }
        let estimate = words.values().sum::<u64>().min(self.searcher.num_docs());
        let words = most_frequent(words, MAX_EXPANSION);
        let query = TermSetQuery::new(words.iter().map(|(word, _)| place.term(word)));
        Ok(Some(Planned { query: Box::new(query), estimate }))
    }

    /// Counts the documents that have a term, deleted ones included until they are merged away.
    pub(crate) fn count(&self, term: &Term) -> Result<u64> {
        self.searcher.doc_freq(term).map_err(|error| self.failed(error))
    }

    pub(crate) fn failed(&self, error: tantivy::TantivyError) -> Error {
        Error::of_index("read", self.dir, error)
    }
}

fn tokens(text: &str) -> Vec<Token> {
    split(&mut words(), text)
}

/// Refuses expressions that are too deep or too long.
fn check_size(expression: &TextExpression, depth: usize, words: &mut usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(Error::Refused("its parts are nested too deep"));
    }
    match expression {
        TextExpression::And(parts) | TextExpression::Or(parts) => {
            parts.iter().try_for_each(|part| check_size(part, depth + 1, words))
        }
        TextExpression::Not(part) | TextExpression::Boost(part, _) => {
            check_size(part, depth + 1, words)
        }
        TextExpression::Term(text)
        | TextExpression::Phrase(text)
        | TextExpression::Prefix(text)
        | TextExpression::Wildcard(text) => {
            *words += 1 + text.len() / 64;
            if *words > MAX_WORDS { Err(Error::Refused("it has too many words")) } else { Ok(()) }
        }
        TextExpression::Similar(_) => Ok(()),
    }
}
