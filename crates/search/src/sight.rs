//! The words that one reader may be told of, who may not read everything.
//!
//! Which words stand in a document follows from what the reader sees of it. So a hidden word is not offered, is not known
//! to a corrector, and leaves no gap among the words that are offered.
//!
//! Invariants
//! * Documents come by path, and what is hidden counts for nothing but for the number of documents that are looked at.
//!
//! Not here: what may be read, which content tells.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use tantivy::columnar::StrColumn;
use tantivy::query::{BooleanQuery, EnableScoring, Query, Scorer, TermQuery};
use tantivy::schema::{IndexRecordOption, Value};
use tantivy::{DocAddress, SegmentReader, TERMINATED, TantivyDocument, TantivyError, Term};
use tympan_content::NodePath;
use tympan_content::query::{Readable, Reader};

use crate::analyzer::{split, words};
use crate::error::Result;
use crate::extract::{looks_like_markup, strip};
use crate::query::Planner;
use crate::schema::PATH;

/// The documents that one search for words looks at.
const MAX_LOOKED_AT: usize = 5_000;
/// So many documents are read for the completions of a word.
const MAX_READ: usize = 200;

/// What one reader sees.
pub(crate) struct Sight<'a> {
    planner: &'a Planner<'a>,
    reader: Reader<'a>,
    /// Documents that may still be looked at.
    left: usize,
    seen: HashMap<String, Seen>,
}

/// The words of a document that may be read.
enum Seen {
    Nothing,
    These(BTreeSet<String>),
    All,
}

/// The documents that a query finds, by path.
struct Walk<'a> {
    segments: Vec<(Box<dyn Scorer>, StrColumn, &'a SegmentReader)>,
    /// The first document of each segment.
    next: BinaryHeap<Reverse<(String, usize)>>,
}

impl<'a> Sight<'a> {
    pub(crate) fn new(planner: &'a Planner<'a>, reader: Reader<'a>) -> Self {
        Self { planner, reader, left: MAX_LOOKED_AT, seen: HashMap::new() }
    }

    /// Returns the words that begin so, with the number of documents that hold each, of the first documents that may be
    /// read.
    ///
    /// # Errors
    /// Errors of the index and of the content.
    pub(crate) fn words_from(&mut self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let planned = self.planner.expanded(prefix, &|_| true)?;
        let mut walk = Walk::new(self.planner, &*planned.query)?;
        let mut found = BTreeMap::<String, u64>::new();
        let mut read = 0;
        while read < MAX_READ
            && let Some((path, address)) = self.failing(walk.next())?
            && let Some(seen) = self.look(&path)?
        {
            let words = match seen {
                Seen::Nothing => continue,
                Seen::These(words) => from(words, prefix),
                Seen::All => from(&self.failing(self.words_of(address))?, prefix),
            };
            read += 1;
            words.into_iter().for_each(|word| *found.entry(word).or_default() += 1);
        }
        Ok(found)
    }

    /// Counts the documents in which a word may be read, up to a number; nothing once too many were looked at.
    ///
    /// # Errors
    /// Errors of the index and of the content.
    pub(crate) fn count(&mut self, word: &str, most: u64) -> Result<Option<u64>> {
        let fields = self.planner.fields;
        let terms = [fields.words, fields.files].map(|field| Term::from_field_text(field, word));
        let queries = terms.map(|term| -> Box<dyn Query> {
            Box::new(TermQuery::new(term, IndexRecordOption::Basic))
        });
        let mut walk = Walk::new(self.planner, &BooleanQuery::union(queries.into()))?;
        let mut count = 0;
        while count < most
            && let Some((path, _)) = self.failing(walk.next())?
        {
            let Some(seen) = self.look(&path)? else { return Ok(None) };
            count += u64::from(match seen {
                Seen::Nothing => false,
                Seen::These(words) => words.contains(word),
                Seen::All => true,
            });
        }
        Ok(Some(count))
    }

    /// Tells what of a document may be read; nothing once too many were looked at.
    fn look(&mut self, path: &str) -> Result<Option<&Seen>> {
        if !self.seen.contains_key(path) {
            let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
            self.left = left;
            let seen = match (self.reader)(&NodePath::new(path)?)? {
                Readable::Nothing => Seen::Nothing,
                Readable::Part(texts) => {
                    Seen::These(texts.iter().flat_map(|text| words_in(text)).collect())
                }
                Readable::Whole => Seen::All,
            };
            self.seen.insert(path.to_owned(), seen);
        }
        Ok(self.seen.get(path))
    }

    /// Returns the words of a document, as far as the index keeps its text.
    fn words_of(&self, address: DocAddress) -> tantivy::Result<BTreeSet<String>> {
        let document: TantivyDocument = self.planner.searcher.doc(address)?;
        let text = document.get_first(self.planner.fields.excerpt);
        let text = text.and_then(|text| text.as_str()).unwrap_or_default();
        Ok(split_words(text).collect())
    }

    fn failing<T>(&self, result: tantivy::Result<T>) -> Result<T> {
        result.map_err(|error| self.planner.failed(error))
    }
}

impl<'a> Walk<'a> {
    fn new(planner: &Planner<'a>, query: &dyn Query) -> Result<Self> {
        let mut walk = Self { segments: Vec::new(), next: BinaryHeap::new() };
        walk.begin(planner, query).map_err(|error| planner.failed(error))?;
        Ok(walk)
    }

    fn begin(&mut self, planner: &Planner<'a>, query: &dyn Query) -> tantivy::Result<()> {
        let weight = query.weight(EnableScoring::disabled_from_searcher(planner.searcher))?;
        for (number, segment) in planner.searcher.segment_readers().iter().enumerate() {
            let paths = segment.fast_fields().str(PATH)?;
            let paths = paths.ok_or_else(|| TantivyError::FieldNotFound(PATH.to_owned()))?;
            self.segments.push((weight.scorer(segment, 1.0)?, paths, segment));
            self.put(number)?;
        }
        Ok(())
    }

    /// Notes the document at which a segment is, or the first one behind it that is not deleted.
    fn put(&mut self, number: usize) -> tantivy::Result<()> {
        let Some((documents, paths, segment)) = self.segments.get_mut(number) else {
            return Ok(());
        };
        let alive = segment.alive_bitset();
        while documents.doc() != TERMINATED
            && alive.is_some_and(|alive| alive.is_deleted(documents.doc()))
        {
            documents.advance();
        }
        if documents.doc() != TERMINATED {
            let mut path = String::new();
            let ord = paths.ords().first(documents.doc()).unwrap_or(u64::MAX);
            paths.ord_to_str(ord, &mut path)?;
            self.next.push(Reverse((path, number)));
        }
        Ok(())
    }

    /// Returns the next document.
    fn next(&mut self) -> tantivy::Result<Option<(String, DocAddress)>> {
        let Some(Reverse((path, number))) = self.next.pop() else { return Ok(None) };
        let Some((documents, ..)) = self.segments.get_mut(number) else { return Ok(None) };
        let segment = u32::try_from(number).unwrap_or(u32::MAX);
        let address = DocAddress::new(segment, documents.doc());
        documents.advance();
        self.put(number)?;
        Ok(Some((path, address)))
    }
}

fn from(words: &BTreeSet<String>, prefix: &str) -> Vec<String> {
    let behind = words.range(prefix.to_owned()..);
    behind.take_while(|word| word.starts_with(prefix)).cloned().collect()
}

/// Splits a text as it is indexed: without its tags.
fn words_in(text: &str) -> impl Iterator<Item = String> + use<> {
    if looks_like_markup(text) { split_words(&strip(text)) } else { split_words(text) }
}

fn split_words(text: &str) -> impl Iterator<Item = String> + use<> {
    split(&mut words(), text).into_iter().map(|token| token.text)
}
