//! The selection of segments to merge, so that the cost of following is proportional to the changes.
//!
//! Each commit creates a segment of a few documents. Segments are merged with others of similar size, so that a
//! document is rewritten once each time the index grows eightfold, and not every few commits.

use tantivy::index::SegmentMeta;
use tantivy::merge_policy::{MergeCandidate, MergePolicy};

/// The number of segments of one level that are merged into one of the next.
const SEGMENTS_PER_MERGE: usize = 8;
/// The number of documents below which a segment belongs to the first level.
const FIRST_LEVEL_DOCUMENTS: u32 = 32;
/// The number of documents below which a segment is not rewritten to purge deleted documents, because it is soon merged
/// for its size.
const MIN_PURGED_DOCUMENTS: u32 = 1024;
/// Segments with at least this many live documents are not merged any more.
const MAX_MERGED_DOCUMENTS: u32 = 10_000_000;

/// A policy that merges segments of similar size.
#[derive(Debug)]
pub(crate) struct SizeTieredMergePolicy;

impl MergePolicy for SizeTieredMergePolicy {
    fn compute_merge_candidates(&self, segments: &[SegmentMeta]) -> Vec<MergeCandidate> {
        let sizes = segments.iter().map(|segment| (segment.num_docs(), segment.max_doc()));
        let groups = merge_groups(&sizes.collect::<Vec<_>>());
        let ids = |group: Vec<usize>| group.into_iter().filter_map(|at| segments.get(at));
        groups
            .into_iter()
            .map(|group| MergeCandidate(ids(group).map(SegmentMeta::id).collect()))
            .collect()
    }
}

/// Returns groups of segment indexes to merge. Each segment is given as its number of live documents and its total
/// number of documents.
fn merge_groups(sizes: &[(u32, u32)]) -> Vec<Vec<usize>> {
    let mut levels: Vec<Vec<usize>> = Vec::new();
    for (at, (alive, _)) in
        sizes.iter().enumerate().filter(|(_, (alive, _))| *alive < MAX_MERGED_DOCUMENTS)
    {
        let level = level_of(*alive);
        if levels.len() <= level {
            levels.resize(level + 1, Vec::new());
        }
        if let Some(level) = levels.get_mut(level) {
            level.push(at);
        }
    }
    levels.retain(|level| level.len() >= SEGMENTS_PER_MERGE);
    for (at, (alive, all)) in sizes.iter().enumerate() {
        let is_worn = *all >= MIN_PURGED_DOCUMENTS && all - alive > all / 3;
        if is_worn && !levels.iter().flatten().any(|index| *index == at) {
            levels.push(vec![at]);
        }
    }
    levels
}

fn level_of(documents: u32) -> usize {
    let mut level = 0;
    let mut bound = FIRST_LEVEL_DOCUMENTS;
    while documents >= bound && bound < MAX_MERGED_DOCUMENTS {
        bound = bound.saturating_mul(8);
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(sizes: &[u32]) -> Vec<(u32, u32)> {
        sizes.iter().map(|size| (*size, *size)).collect()
    }

    #[test]
    fn merges_what_is_of_one_size() {
        assert_eq!(merge_groups(&whole(&[1, 1, 1, 1, 1, 1, 1])), Vec::<Vec<usize>>::new());
        assert_eq!(
            merge_groups(&whole(&[5000, 1, 1, 1, 31, 1, 1, 1, 1])),
            [[1, 2, 3, 4, 5, 6, 7, 8]]
        );
        assert_eq!(merge_groups(&whole(&[40, 1, 1, 1, 1, 1, 1, 1])), Vec::<Vec<usize>>::new());
        assert_eq!(merge_groups(&[]), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn writes_worn_segments_again() {
        assert_eq!(merge_groups(&[(5000, 9000), (1, 3), (8999, 9000)]), [[0]]);
    }

    /// With commits of one document each, the number of times that a document is rewritten grows with the logarithm of
    /// the number of documents.
    #[test]
    fn writes_documents_again_a_few_times() {
        let mut segments = whole(&[100_000]);
        let mut written = 0;
        for _ in 0..4096 {
            segments.push((1, 1));
            while let Some(group) = merge_groups(&segments).first().cloned() {
                let size = group.iter().map(|at| segments[*at].0).sum();
                written += size;
                let mut at = 0;
                segments.retain(|_| {
                    at += 1;
                    !group.contains(&(at - 1))
                });
                segments.push((size, size));
            }
            assert!(segments.len() < 40, "{segments:?}");
        }
        assert!(written < 4096 * 8, "{written}");
    }
}
