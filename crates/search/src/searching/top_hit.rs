//! The best hits of a query, with continuation from a position: by descending score, then by path.
//!
//! Scores are compared without their last bits, because summing the same parts in another order changes them. The
//! collector passes the current minimum score to the scorers, so that they skip blocks of documents that cannot reach
//! it. Equal scores are ordered by path, which is a column of the segment. The documents of a segment are sorted by
//! path, so a word with the same score everywhere is read only until the page is full.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Bound;

use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::StrColumn;
use tantivy::query::Weight;
use tantivy::{
    DocAddress, DocId, Score, Searcher, SegmentOrdinal, SegmentReader, TantivyDocument,
    TantivyError,
};

use crate::indexing::schema::PATH_FIELD;

/// A hit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoredHit {
    pub(crate) score: Score,
    pub(crate) path: String,
    pub(crate) segment: SegmentOrdinal,
    pub(crate) document: DocId,
}

impl ScoredHit {
    /// Reads the stored fields of the document.
    ///
    /// # Errors
    /// A failed read.
    pub(crate) fn load_document(&self, searcher: &Searcher) -> tantivy::Result<TantivyDocument> {
        searcher.doc(DocAddress::new(self.segment, self.document))
    }

    /// Compares hits by rank; the better hit is less.
    fn compare_rank(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.path.cmp(&other.path))
    }
}

/// Collects the first hits after a position.
#[derive(Debug)]
pub(crate) struct TopHitsCollector {
    /// The maximum number of hits.
    pub(crate) limit: usize,
    /// Score and path of the last hit of the previous page.
    pub(crate) after_hit: Option<(Score, String)>,
}

/// The bits of a score that are ignored.
const INSIGNIFICANT_SCORE_BITS: u32 = 0x3ff;

/// Clears the last bits of a score; about four decimal digits remain.
fn round_score(score: Score) -> Score {
    Score::from_bits(score.to_bits() & !INSIGNIFICANT_SCORE_BITS)
}

/// The best hits of one segment.
pub(crate) struct SegmentTopHits {
    limit: usize,
    segment: SegmentOrdinal,
    paths: StrColumn,
    /// The score of the position, and the ordinal of the first path after it in this segment.
    after_position: Option<(Score, u64)>,
    /// The candidates; the worst one is on top.
    heap: BinaryHeap<HitCandidate>,
}

#[derive(PartialEq)]
struct HitCandidate {
    score: Score,
    path: u64,
    document: DocId,
}

impl Eq for HitCandidate {}

impl Ord for HitCandidate {
    /// Orders a worse hit as greater.
    fn cmp(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then_with(|| self.path.cmp(&other.path))
    }
}

impl PartialOrd for HitCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl SegmentTopHits {
    fn new(
        top: &TopHitsCollector,
        segment: SegmentOrdinal,
        reader: &SegmentReader,
    ) -> tantivy::Result<Self> {
        let paths = reader.fast_fields().str(PATH_FIELD)?;
        let paths = paths.ok_or_else(|| TantivyError::FieldNotFound("path".to_owned()))?;
        let after = match &top.after_hit {
            None => None,
            Some((score, path)) => {
                let dictionary = paths.dictionary();
                let behind = Bound::Excluded(path.as_bytes());
                let (first, _) = dictionary.term_bounds_to_ord(behind, Bound::Unbounded)?;
                let first = match first {
                    Bound::Included(ord) => ord,
                    Bound::Excluded(ord) => ord + 1,
                    Bound::Unbounded => 0,
                };
                Some((*score, first))
            }
        };
        let heap = BinaryHeap::with_capacity(top.limit + 1);
        Ok(Self { limit: top.limit, segment, paths, after_position: after, heap })
    }

    /// Adds a hit, and returns the score that further hits have to exceed.
    fn push(&mut self, document: DocId, score: Score) -> Score {
        let score = round_score(score);
        let worst = self.heap.peek().map(|worst| worst.score).filter(|_| self.is_full());
        let is_worse = worst.is_some_and(|worst| score < worst);
        let is_before = self.after_position.is_some_and(|(after, _)| score > after);
        if !is_worse && !is_before {
            let path = self.paths.ords().first(document).unwrap_or(u64::MAX);
            let is_behind =
                self.after_position.is_none_or(|(after, first)| score < after || path >= first);
            if is_behind {
                self.heap.push(HitCandidate { score, path, document });
                if self.heap.len() > self.limit {
                    self.heap.pop();
                }
            }
        }
        match self.heap.peek().filter(|_| self.is_full()) {
            // Documents are sorted by path, so a later one with at most an equal score ranks behind.
            Some(worst) => Score::from_bits(worst.score.to_bits() | INSIGNIFICANT_SCORE_BITS),
            None => Score::MIN,
        }
    }

    fn is_full(&self) -> bool {
        self.heap.len() >= self.limit
    }
}

impl SegmentCollector for SegmentTopHits {
    type Fruit = Vec<ScoredHit>;

    fn collect(&mut self, document: DocId, score: Score) {
        self.push(document, score);
    }

    fn harvest(self) -> Vec<ScoredHit> {
        let paths = self.paths;
        let hits = self.heap.into_iter().filter_map(|candidate| {
            let mut path = String::new();
            paths.ord_to_str(candidate.path, &mut path).ok().filter(|is_resolved| *is_resolved)?;
            let HitCandidate { score, document, .. } = candidate;
            Some(ScoredHit { score, path, segment: self.segment, document })
        });
        hits.collect()
    }
}

impl Collector for TopHitsCollector {
    type Fruit = Vec<ScoredHit>;
    type Child = SegmentTopHits;

    fn for_segment(
        &self,
        segment: SegmentOrdinal,
        reader: &SegmentReader,
    ) -> tantivy::Result<SegmentTopHits> {
        SegmentTopHits::new(self, segment, reader)
    }

    fn requires_scoring(&self) -> bool {
        true
    }

    fn merge_fruits(&self, fruits: Vec<Vec<ScoredHit>>) -> tantivy::Result<Vec<ScoredHit>> {
        let mut hits: Vec<ScoredHit> = fruits.into_iter().flatten().collect();
        hits.sort_by(ScoredHit::compare_rank);
        hits.truncate(self.limit);
        Ok(hits)
    }

    fn collect_segment(
        &self,
        weight: &dyn Weight,
        segment: SegmentOrdinal,
        reader: &SegmentReader,
    ) -> tantivy::Result<Vec<ScoredHit>> {
        let mut top = SegmentTopHits::new(self, segment, reader)?;
        let mut threshold = Score::MIN;
        let alive = reader.alive_bitset();
        weight.for_each_pruning(Score::MIN, reader, &mut |document, score| {
            if alive.is_none_or(|alive| alive.is_alive(document)) {
                threshold = top.push(document, score);
            }
            threshold
        })?;
        Ok(top.harvest())
    }
}
