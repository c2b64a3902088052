//! The dependencies of a rendering: aspects of paths, small enough to be stored for every URL of a site, and results of
//! lists.
//!
//! Input: the paths that were read with the [`PathAspects`] of each, and the lists that were queried. Output:
//! [`DependencySet`], a sorted set of hashes that is compared with the aspects that a change touches.
//!
//! A list has a scope like any other read. A caller that can repeat the query uses its result instead
//! ([`DependencySet::aspects_with_results`]).
//!
//! Invariants
//! * Two sets that share no aspect of any path are independent. Hash collisions make a rendering depend on more, never
//!   on less.
//! * The encoding is the same on every machine; [`DEPENDENCY_FORMAT`] changes with it.
//!
//! Not here: recording of reads ([`crate::dependency::content_reader`]), the aspects that a change touches
//! ([`crate::dependency::changed_aspects`]).

pub(crate) mod changed_aspects;
pub(crate) mod content_reader;
pub(crate) mod log;
pub(crate) mod path_dependency;
pub(crate) mod recorder;

use std::sync::Arc;

use tympan_content::NodePath;

use crate::dependency::path_dependency::{
    ANY_PATH, FIRST_END_MARK, PathDependency, SECOND_END_MARK, folded_multiply, hash_bytes,
    hash_path,
};
use crate::page::list_query::ListQuery;

pub use crate::dependency::path_dependency::PathAspects;

/// The version of the stored hashes, aspects and lists.
pub(crate) const DEPENDENCY_FORMAT: i64 = 7;

/// A set of aspects of paths, sorted by the hashes of the paths, and of lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DependencySet {
    path_dependencies: Box<[PathDependency]>,
    /// Sorted by their identifiers.
    list_queries: Box<[Arc<ListQuery>]>,
}

/// Maximum number of lists; more are replaced by their scopes.
const MAX_LIST_QUERIES: usize = 64;

impl DependencySet {
    /// Maximum number of paths; more are replaced by the subtrees that contain them.
    pub const MAX_PATHS: usize = 4096;

    /// Creates the set that every change touches.
    #[must_use]
    pub fn on_anything() -> Self {
        Self::from_parts(std::iter::once((ANY_PATH, PathAspects::EVERYTHING)), std::iter::empty())
    }

    /// Creates the set that every change of a script touches.
    pub(crate) fn on_any_script() -> Self {
        let pair = (hash_bytes("/apps"), PathAspects::ANY_SCRIPT);
        Self::from_parts(std::iter::once(pair), std::iter::empty())
    }

    /// Creates the union of sets.
    fn union_of<'a>(sets: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let pairs = sets.clone().flat_map(|set| set.path_dependencies.iter().copied());
        Self::from_parts(pairs, sets.flat_map(|set| set.list_queries.iter().cloned()))
    }

    /// Sorts and merges the parts.
    fn from_parts(
        pairs: impl Iterator<Item = PathDependency>,
        listings: impl Iterator<Item = Arc<ListQuery>>,
    ) -> Self {
        let mut listings: Vec<Arc<ListQuery>> = listings.collect();
        listings.sort_unstable_by_key(|query| query.id());
        listings.dedup_by_key(|query| query.id());
        let mut sorted: Vec<PathDependency> = pairs.collect();
        if listings.len() > MAX_LIST_QUERIES {
            sorted.extend(listings.drain(..).map(|query| query.scope_dependency()));
        }
        sorted.sort_unstable_by_key(|(path, _)| *path);
        sorted.dedup_by(|(path, aspects), (previous_path, joined)| {
            let is_same = path == previous_path;
            if is_same {
                *joined = joined.combine(*aspects);
            }
            is_same
        });
        Self { path_dependencies: sorted.into(), list_queries: listings.into() }
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::union_of([self, other].into_iter())
    }

    /// Returns true if this set contains everything of the other one.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        // A page that is rendered again mostly reads what it read before.
        if self.path_dependencies == other.path_dependencies
            && self.list_queries == other.list_queries
        {
            return true;
        }
        other
            .path_dependencies
            .iter()
            .all(|(path, aspects)| self.recorded_aspects(*path).contains(*aspects))
            && other.list_queries.iter().all(|query| {
                let (path, aspects) = query.scope_dependency();
                self.has_list_query(query.id()) || self.recorded_aspects(path).contains(aspects)
            })
    }

    /// Returns the recorded aspects of a path, without lists.
    fn recorded_aspects(&self, path: u64) -> PathAspects {
        let position = self.path_dependencies.binary_search_by_key(&path, |(path, _)| *path).ok();
        position
            .and_then(|at| self.path_dependencies.get(at))
            .map_or(PathAspects::default(), |(_, aspects)| *aspects)
    }

    fn has_list_query(&self, id: u64) -> bool {
        self.list_queries.binary_search_by_key(&id, |query| query.id()).is_ok()
    }

    /// Returns the aspects of a node in the set, including the scopes of lists.
    #[must_use]
    pub fn node_aspects(&self, path: &NodePath) -> PathAspects {
        self.aspects_with_scopes(hash_path(path))
    }

    /// Returns the number of paths, without lists.
    fn path_count(&self) -> usize {
        self.path_dependencies.len()
    }

    /// Returns the aspects of a path in the set, including the scopes of lists.
    #[must_use]
    pub fn aspects_with_scopes(&self, path: u64) -> PathAspects {
        let scopes = self
            .list_queries
            .iter()
            .map(|query| query.scope_dependency())
            .filter(|(own, _)| *own == path);
        scopes.fold(self.recorded_aspects(path), |all, (_, aspects)| all.combine(aspects))
    }

    /// Returns the hashes of the paths, including the scopes of lists.
    pub fn path_hashes(&self) -> impl Iterator<Item = u64> {
        let scopes = self
            .list_queries
            .iter()
            .enumerate()
            .map(|(at, query)| (at, query.scope_dependency().0));
        let scopes = scopes.filter(|(at, path)| {
            let before = self.list_queries.get(..*at).unwrap_or_default();
            self.recorded_aspects(*path).is_empty()
                && !before.iter().any(|earlier_query| earlier_query.scope_dependency().0 == *path)
        });
        self.path_dependencies.iter().map(|(path, _)| *path).chain(scopes.map(|(_, path)| path))
    }

    /// Returns the aspects of a path in the set for callers that repeat list queries: the result of a list is found at
    /// its identifier.
    pub(crate) fn aspects_with_results(&self, key: u64) -> PathAspects {
        let read = self.recorded_aspects(key);
        if self.has_list_query(key) { read.combine(PathAspects::LIST_RESULT) } else { read }
    }

    /// Returns the hashes of the paths, and the identifiers of the lists in place of their scopes.
    pub(crate) fn path_and_query_keys(&self) -> impl Iterator<Item = u64> {
        let listings = self.list_queries.iter().map(|query| query.id());
        self.path_dependencies.iter().map(|(path, _)| *path).chain(listings)
    }

    /// Returns the lists.
    pub(crate) fn list_queries(&self) -> impl Iterator<Item = &Arc<ListQuery>> {
        self.list_queries.iter()
    }

    /// Digests the set.
    fn add_to_digest(&self, digest: &mut DependencyHasher) {
        digest.add_path_dependencies(&self.path_dependencies);
        digest.add_list_queries(&self.list_queries);
    }

    /// Returns the number of paths and lists.
    #[must_use]
    pub fn len(&self) -> usize {
        self.path_dependencies.len() + self.list_queries.len()
    }

    /// Returns true if nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.path_dependencies.is_empty() && self.list_queries.is_empty()
    }

    /// Encodes the set: the number of paths in 4 bytes; for each path its hash and its aspects, 8 bytes each; then for
    /// each list its length in 2 bytes and its text. Numbers are little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let count = u32::try_from(self.path_dependencies.len()).unwrap_or(u32::MAX);
        let mut bytes = count.to_le_bytes().to_vec();
        for (path, aspects) in &self.path_dependencies {
            bytes.extend_from_slice(&path.to_le_bytes());
            bytes.extend_from_slice(&aspects.bits().to_le_bytes());
        }
        for listing in &self.list_queries {
            // No text is longer than this.
            let length = u16::try_from(listing.text().len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(listing.text().as_bytes());
        }
        bytes
    }

    /// Decodes a set; `None` if the bytes are malformed.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*count)).ok()?.checked_mul(16)?;
        let (pairs, mut rest) = rest.split_at_checked(length)?;
        let (numbers, _) = pairs.as_chunks::<8>();
        let (pairs, _) = numbers.as_chunks::<2>();
        let pairs = pairs.iter().map(|[path, aspects]| {
            (u64::from_le_bytes(*path), PathAspects::from_bits(u64::from_le_bytes(*aspects)))
        });
        let mut listings = Vec::new();
        while !rest.is_empty() {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            let (text, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
            listings.push(Arc::new(ListQuery::parse(std::str::from_utf8(text).ok()?)?));
            rest = behind;
        }
        Some(Self::from_parts(pairs, listings.into_iter()))
    }
}

/// Distinguishes reads from other reads without building a set. The hash is not stored.
#[derive(Debug)]
pub(crate) struct DependencyHasher {
    state: u64,
    key: u64,
}

impl DependencyHasher {
    /// Creates a hasher with keys that are secret from those who control what is read.
    pub(crate) fn new([state, key]: [u64; 2]) -> Self {
        Self { state, key }
    }

    fn add_pair(&mut self, left: u64, right: u64) {
        self.state = folded_multiply(self.state ^ left, self.key ^ right);
    }

    /// Adds aspects of paths, in order.
    fn add_path_dependencies(&mut self, pairs: &[PathDependency]) {
        // The count keeps adjacent sequences apart.
        self.add_pair(FIRST_END_MARK, pairs.len() as u64);
        pairs.iter().for_each(|(path, aspects)| self.add_pair(*path, aspects.bits()));
    }

    /// Adds lists, in order.
    fn add_list_queries(&mut self, listings: &[Arc<ListQuery>]) {
        self.add_pair(SECOND_END_MARK, listings.len() as u64);
        listings.iter().for_each(|query| self.add_pair(query.id(), 0));
    }

    pub(crate) fn finish(self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::list_query::ListQueryKind;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    #[test]
    fn a_path_noted_twice_has_both_aspects() {
        let recorded = [
            (path("/a"), PathAspects::EXISTENCE),
            (path("/b"), PathAspects::NAVIGATION_HEAD),
            (path("/a"), PathAspects::property("text")),
        ];
        let set = DependencySet::from_recorded(&recorded);
        assert_eq!(set.len(), 2);
        let aspects = set.aspects_with_scopes(hash_path(&path("/a")));
        assert_eq!(aspects, PathAspects::EXISTENCE.combine(PathAspects::property("text")));
        assert!(set.aspects_with_scopes(hash_path(&path("/c"))).is_empty());
        assert_eq!(format!("{aspects:?}"), "existence+some-properties");
    }

    fn listing(root: &str) -> Arc<ListQuery> {
        Arc::new(ListQuery::new(ListQueryKind::Tags { root: path(root) }).unwrap())
    }

    #[test]
    fn sets_are_read_back() {
        let recorded =
            [(path("/a/b"), PathAspects::EVERYTHING), (path("/c"), PathAspects::MODIFIED_DATE)];
        for set in [
            DependencySet::default(),
            DependencySet::from_recorded(&recorded),
            DependencySet::from_recorded_and_queries(&recorded, &[listing("/x"), listing("/c")]),
        ] {
            assert_eq!(DependencySet::from_bytes(&set.to_bytes()), Some(set.clone()));
            assert!(set.contains(&set) && set.contains(&DependencySet::default()));
            assert_eq!(DependencySet::default().contains(&set), set.is_empty());
        }
        for bytes in [&[0; 3][..], &[0, 0, 0, 0, 1], &[1, 0, 0, 0, 9], &[0, 0, 0, 0, 1, 0, b'x']] {
            assert_eq!(DependencySet::from_bytes(bytes), None);
        }
    }

    #[test]
    fn a_list_counts_by_its_answer_or_by_its_scope() {
        let list = listing("/c");
        let set = DependencySet::from_recorded_and_queries(
            &[(path("/c"), PathAspects::MODIFIED_DATE)],
            &[Arc::clone(&list)],
        );
        let (at, scope) = list.scope_dependency();
        assert_eq!(set.aspects_with_scopes(at), PathAspects::MODIFIED_DATE.combine(scope));
        assert_eq!(set.aspects_with_results(at), PathAspects::MODIFIED_DATE);
        assert_eq!(set.aspects_with_results(list.id()), PathAspects::LIST_RESULT);
        assert_eq!(set.path_hashes().collect::<Vec<_>>(), [at]);
        assert_eq!(set.path_and_query_keys().collect::<Vec<_>>(), [at, list.id()]);
        // More lists than the maximum.
        let many: Vec<_> =
            (0..=MAX_LIST_QUERIES).map(|number| listing(&format!("/{number}"))).collect();
        let folded = DependencySet::from_recorded_and_queries(&[], &many);
        assert_eq!((folded.list_queries().count(), folded.len()), (0, MAX_LIST_QUERIES + 1));
        let last = DependencySet::from_recorded_and_queries(&[], &many[MAX_LIST_QUERIES..]);
        assert!(folded.contains(&last) && !last.contains(&folded));
    }

    #[test]
    fn digests_tell_reads_apart() {
        let (left, right) = ((1, PathAspects::NAVIGATION_HEAD), (2, PathAspects::MODIFIED_DATE));
        let digest = |keys, pairs: &[PathDependency], listings: &[Arc<ListQuery>]| {
            let mut digest = DependencyHasher::new(keys);
            digest.add_path_dependencies(pairs);
            digest.add_list_queries(listings);
            digest.finish()
        };
        let [a, b] = [listing("/a"), listing("/b")];
        let different = [
            digest([7, 9], &[], &[]),
            digest([7, 9], &[left], &[]),
            digest([7, 9], &[right], &[]),
            digest([7, 9], &[(1, PathAspects::MODIFIED_DATE)], &[]),
            digest([7, 9], &[left, right], &[]),
            digest([7, 9], &[left, right], std::slice::from_ref(&a)),
            digest([7, 9], &[left, right], std::slice::from_ref(&b)),
            digest([7, 9], &[left, right], &[a, b]),
            digest([7, 10], &[left, right], &[]),
            digest([8, 9], &[left, right], &[]),
        ];
        let all: std::collections::HashSet<u64> = different.into_iter().collect();
        assert_eq!(all.len(), different.len());
        assert_eq!(digest([7, 9], &[left], &[]), digest([7, 9], &[left], &[]));
    }

    #[test]
    fn very_many_paths_become_their_subtrees() {
        let recorded: Vec<_> = (0..DependencySet::MAX_PATHS + 1)
            .map(|number| {
                (path(&format!("/content/site/en/p{number}")), PathAspects::NAVIGATION_HEAD)
            })
            .collect();
        let set = DependencySet::from_recorded(&recorded);
        assert_eq!(set.node_aspects(&path("/content/site")), PathAspects::SUBTREE);
        assert!(set.node_aspects(&path("/content/site/en/p1")).is_empty());
        assert_eq!(set.len(), 3, "and the programs");
    }

    #[test]
    fn hashes_differ_and_stay() {
        // Every publisher stores these hashes; changing them requires a new format.
        assert_eq!(hash_bytes(""), hash_bytes(""));
        assert_ne!(hash_bytes("/content/a"), hash_bytes("/content/b"));
        assert_ne!(hash_bytes("a\0"), hash_bytes("a"));
        let many: std::collections::HashSet<u64> = (0..100_000)
            .map(|number| hash_bytes(&format!("/content/site/page-{number}")))
            .collect();
        assert_eq!(many.len(), 100_000);
        // Swapped or repeated blocks change the hash.
        let blocks =
            ["/content/wayfare", "/en/journal-2026", "/night-train-to-", "jcr:content/root"];
        let orders = (0..1024_usize)
            .map(|order| (0..5).map(|at| blocks[order >> (2 * at) & 3]).collect::<String>());
        let all: std::collections::HashSet<u64> = orders.map(|text| hash_bytes(&text)).collect();
        assert_eq!(all.len(), 1024);
        // Each byte of a text counts, regardless of its length.
        for length in 0..70 {
            let text = "x".repeat(length);
            let others = (0..length).map(|at| format!("{}y{}", &text[..at], &text[at + 1..]));
            let all: std::collections::HashSet<u64> = others
                .chain([text.clone(), format!("{text}\0")])
                .map(|bytes| hash_bytes(&bytes))
                .collect();
            assert_eq!(all.len(), length + 2, "{length}");
        }
        assert!(
            !PathAspects::property("jcr:title")
                .overlaps(PathAspects::EXISTENCE.combine(PathAspects::ANY_SCRIPT))
        );
    }
}
