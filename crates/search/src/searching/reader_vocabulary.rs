//! The vocabulary that may be disclosed to a reader with restricted access.
//!
//! The words of a document are determined from what the reader sees of it. A hidden word is therefore not suggested, is
//! unknown to the spelling corrector, and leaves no gap among the suggested words.
//!
//! Invariants
//! * Documents are visited in path order, and hidden content affects nothing except the number of documents scanned.
//!
//! Not here: access decisions, which are made by content.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use tantivy::columnar::StrColumn;
use tantivy::query::{BooleanQuery, EnableScoring, Query, Scorer, TermQuery};
use tantivy::schema::{IndexRecordOption, Value};
use tantivy::{DocAddress, SegmentReader, TERMINATED, TantivyDocument, TantivyError, Term};
use tympan_content::NodePath;
use tympan_content_query::{ReadableText, ReadableTextFn};

use crate::analyzer::{build_word_analyzer, tokenize};
use crate::error::Result;
use crate::indexing::schema::PATH_FIELD;
use crate::searching::query_planner::TextQueryPlanner;
use crate::text_extraction::{looks_like_markup, strip_markup};

/// The maximum number of documents that one search for words scans.
const MAX_SCANNED_DOCUMENTS: usize = 5_000;
/// The maximum number of documents read for the completions of a word.
const MAX_READ_DOCUMENTS: usize = 200;

/// The vocabulary visible to one reader.
pub(crate) struct ReaderVocabulary<'a> {
    planner: &'a TextQueryPlanner<'a>,
    reader: ReadableTextFn<'a>,
    /// The number of documents that may still be scanned.
    remaining_documents: usize,
    readable_words: HashMap<String, ReadableWords>,
}

/// The words of a document that the reader may see.
enum ReadableWords {
    Nothing,
    Part(BTreeSet<String>),
    All,
}

/// The documents that match a query, in path order.
struct PathOrderedMatches<'a> {
    segments: Vec<(Box<dyn Scorer>, StrColumn, &'a SegmentReader)>,
    /// The next document of each segment.
    next_documents: BinaryHeap<Reverse<(String, usize)>>,
}

impl<'a> ReaderVocabulary<'a> {
    pub(crate) fn new(planner: &'a TextQueryPlanner<'a>, reader: ReadableTextFn<'a>) -> Self {
        Self {
            planner,
            reader,
            remaining_documents: MAX_SCANNED_DOCUMENTS,
            readable_words: HashMap::new(),
        }
    }

    /// Returns the words with a prefix in the first readable documents, with the number of documents that contain each.
    ///
    /// # Errors
    /// Errors of the index and of the content.
    pub(crate) fn find_words_with_prefix(&mut self, prefix: &str) -> Result<BTreeMap<String, u64>> {
        let planned = self.planner.plan_expanded(prefix, &|_| true)?;
        let mut walk = PathOrderedMatches::new(self.planner, &*planned.query)?;
        let mut counts = BTreeMap::<String, u64>::new();
        let mut read = 0;
        while read < MAX_READ_DOCUMENTS
            && let Some((path, address)) = self.map_index_error(walk.next())?
            && let Some(readable_words) = self.readable_words_of(&path)?
        {
            let words = match readable_words {
                ReadableWords::Nothing => continue,
                ReadableWords::Part(words) => filter_by_prefix(words, prefix),
                ReadableWords::All => {
                    filter_by_prefix(&self.map_index_error(self.stored_words(address))?, prefix)
                }
            };
            read += 1;
            words.into_iter().for_each(|word| *counts.entry(word).or_default() += 1);
        }
        Ok(counts)
    }

    /// Counts the documents in which the reader may see a word, up to a maximum; `None` if the scan limit is exceeded.
    ///
    /// # Errors
    /// Errors of the index and of the content.
    pub(crate) fn count_readable(&mut self, word: &str, most: u64) -> Result<Option<u64>> {
        let fields = self.planner.fields;
        let terms =
            [fields.words, fields.file_words].map(|field| Term::from_field_text(field, word));
        let queries = terms.map(|term| -> Box<dyn Query> {
            Box::new(TermQuery::new(term, IndexRecordOption::Basic))
        });
        let mut walk = PathOrderedMatches::new(self.planner, &BooleanQuery::union(queries.into()))?;
        let mut count = 0;
        while count < most
            && let Some((path, _)) = self.map_index_error(walk.next())?
        {
            let Some(readable_words) = self.readable_words_of(&path)? else { return Ok(None) };
            count += u64::from(match readable_words {
                ReadableWords::Nothing => false,
                ReadableWords::Part(words) => words.contains(word),
                ReadableWords::All => true,
            });
        }
        Ok(Some(count))
    }

    /// Returns the words of a document that the reader may see; `None` if the scan limit is exceeded.
    fn readable_words_of(&mut self, path: &str) -> Result<Option<&ReadableWords>> {
        if !self.readable_words.contains_key(path) {
            let Some(left) = self.remaining_documents.checked_sub(1) else { return Ok(None) };
            self.remaining_documents = left;
            let readable_words = match (self.reader)(&NodePath::new(path)?)? {
                ReadableText::Nothing => ReadableWords::Nothing,
                ReadableText::Partial(texts) => {
                    ReadableWords::Part(texts.iter().flat_map(|text| words_in(text)).collect())
                }
                ReadableText::Whole => ReadableWords::All,
            };
            self.readable_words.insert(path.to_owned(), readable_words);
        }
        Ok(self.readable_words.get(path))
    }

    /// Returns the words of a document, as far as the index stores its text.
    fn stored_words(&self, address: DocAddress) -> tantivy::Result<BTreeSet<String>> {
        let document: TantivyDocument = self.planner.searcher.doc(address)?;
        let text = document.get_first(self.planner.fields.excerpt);
        let text = text.and_then(|text| text.as_str()).unwrap_or_default();
        Ok(split_words(text).collect())
    }

    fn map_index_error<T>(&self, result: tantivy::Result<T>) -> Result<T> {
        result.map_err(|error| self.planner.query_error(error))
    }
}

impl<'a> PathOrderedMatches<'a> {
    fn new(planner: &TextQueryPlanner<'a>, query: &dyn Query) -> Result<Self> {
        let mut walk = Self { segments: Vec::new(), next_documents: BinaryHeap::new() };
        walk.add_segments(planner, query).map_err(|error| planner.query_error(error))?;
        Ok(walk)
    }

    fn add_segments(
        &mut self,
        planner: &TextQueryPlanner<'a>,
        query: &dyn Query,
    ) -> tantivy::Result<()> {
        let weight = query.weight(EnableScoring::disabled_from_searcher(planner.searcher))?;
        for (number, segment) in planner.searcher.segment_readers().iter().enumerate() {
            let paths = segment.fast_fields().str(PATH_FIELD)?;
            let paths = paths.ok_or_else(|| TantivyError::FieldNotFound(PATH_FIELD.to_owned()))?;
            self.segments.push((weight.scorer(segment, 1.0)?, paths, segment));
            self.push_segment(number)?;
        }
        Ok(())
    }

    /// Adds the current document of a segment, or the first one after it that is not deleted.
    fn push_segment(&mut self, number: usize) -> tantivy::Result<()> {
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
            self.next_documents.push(Reverse((path, number)));
        }
        Ok(())
    }

    /// Returns the next document.
    fn next(&mut self) -> tantivy::Result<Option<(String, DocAddress)>> {
        let Some(Reverse((path, number))) = self.next_documents.pop() else { return Ok(None) };
        let Some((documents, ..)) = self.segments.get_mut(number) else { return Ok(None) };
        let segment = u32::try_from(number).unwrap_or(u32::MAX);
        let address = DocAddress::new(segment, documents.doc());
        documents.advance();
        self.push_segment(number)?;
        Ok(Some((path, address)))
    }
}

fn filter_by_prefix(words: &BTreeSet<String>, prefix: &str) -> Vec<String> {
    let behind = words.range(prefix.to_owned()..);
    behind.take_while(|word| word.starts_with(prefix)).cloned().collect()
}

/// Splits a text as for indexing: without its tags.
fn words_in(text: &str) -> impl Iterator<Item = String> + use<> {
    if looks_like_markup(text) { split_words(&strip_markup(text)) } else { split_words(text) }
}

fn split_words(text: &str) -> impl Iterator<Item = String> + use<> {
    tokenize(&mut build_word_analyzer(), text).into_iter().map(|token| token.text)
}
