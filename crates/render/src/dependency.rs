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
pub(crate) mod recorder;

use std::fmt;
use std::sync::Arc;

use tympan_content::NodePath;

use crate::dependency::log::RecordedDependencies;
use crate::page::list_query::ListQuery;

/// The version of the stored hashes, aspects and lists.
pub(crate) const DEPENDENCY_FORMAT: i64 = 7;

/// Each bit below this one has its own meaning; the bits from here on represent hashed property names.
const FIRST_PROPERTY_BIT: u32 = 16;
/// Number of bits that the property names share.
const PROPERTY_BIT_COUNT: u64 = 48;

/// The properties that count as stamps.
const STAMP_PROPERTIES: [&str; 14] = [
    "cq:lastModified",
    "cq:lastModifiedBy",
    "cq:lastReplicated",
    "cq:lastReplicatedBy",
    "cq:lastReplicationAction",
    "jcr:baseVersion",
    "jcr:created",
    "jcr:createdBy",
    "jcr:isCheckedOut",
    "jcr:lastModified",
    "jcr:lastModifiedBy",
    "jcr:predecessors",
    "jcr:uuid",
    "jcr:versionHistory",
];

/// The aspects of a path that were read or changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PathAspects(u64);

impl PathAspects {
    /// Existence of the node.
    pub const EXISTENCE: Self = Self(1);
    /// The names of its children, and their order.
    pub const CHILDREN: Self = Self(1 << 1);
    /// The parts that navigations show: title, type, hidden state.
    pub const NAVIGATION_HEAD: Self = Self(1 << 2);
    /// The date of its last modification, as in its record's header.
    pub const MODIFIED_DATE: Self = Self(1 << 3);
    /// The pages directly below it that navigations show, and their order.
    pub const CHILD_HEADS: Self = Self(1 << 4);
    /// The dates of the pages that navigations show directly below it.
    pub const CHILD_DATES: Self = Self(1 << 5);
    /// The pages below it at any depth, and which of them are hidden.
    pub const HEADS_BELOW: Self = Self(1 << 6);
    /// The dates of the pages below it.
    pub const DATES_BELOW: Self = Self(1 << 7);
    /// Anything in the document at this path.
    pub const WHOLE_DOCUMENT: Self = Self(1 << 8);
    /// Anything at or below this path.
    pub const SUBTREE: Self = Self(1 << 9);
    /// The scripts of the resource type with this folder, and its super type.
    pub const SCRIPTS: Self = Self(1 << 10);
    /// Any script; used for components whose scripts include others.
    pub const ANY_SCRIPT: Self = Self(1 << 11);
    /// The titles of the pages below it.
    pub const TITLES_BELOW: Self = Self(1 << 12);
    /// Properties that say when and by whom the node was created, saved or activated: they change with every edit and
    /// are rarely shown.
    pub const STAMPS: Self = Self(1 << 13);
    /// The values by which lists select and order the pages below, other than titles and dates in headers: tags, and
    /// the date that a page sets itself.
    pub const LIST_KEYS_BELOW: Self = Self(1 << 14);
    /// All aspects of nodes below a path.
    pub(crate) const ANY_BELOW: Self = Self(
        Self::CHILDREN.0
            | Self::CHILD_HEADS.0
            | Self::CHILD_DATES.0
            | Self::HEADS_BELOW.0
            | Self::DATES_BELOW.0
            | Self::TITLES_BELOW.0
            | Self::LIST_KEYS_BELOW.0
            | Self::WHOLE_DOCUMENT.0
            | Self::SUBTREE.0,
    );
    /// The result of a list, whose hash replaces that of a path.
    pub(crate) const LIST_RESULT: Self = Self(1 << 15);
    /// All properties.
    pub const PROPERTIES: Self = Self(!0 << FIRST_PROPERTY_BIT | 1 << 13);
    /// Everything.
    pub const EVERYTHING: Self = Self(!0);
    /// Aspects that are usually shown where they were read: a change of them is visible.
    pub(crate) const USUALLY_SHOWN: Self =
        Self(Self::PROPERTIES.0 | Self::NAVIGATION_HEAD.0 | Self::MODIFIED_DATE.0);

    /// Returns the aspect of a property by its name; some names share an aspect.
    #[must_use]
    pub fn property(name: &str) -> Self {
        // The first letter rules out most names.
        if matches!(name.as_bytes().first(), Some(b'c' | b'j')) && STAMP_PROPERTIES.contains(&name)
        {
            return Self::STAMPS;
        }
        Self(1 << (u64::from(FIRST_PROPERTY_BIT) + hash_bytes(name) % PROPERTY_BIT_COUNT))
    }

    /// Returns the union of both.
    #[must_use]
    pub const fn combine(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the aspects common to both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if both have an aspect in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if these contain all of the others.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if there are no aspects.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the aspects as a bit set.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Returns the aspects of a bit set.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for PathAspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 16] = [
            "existence",
            "children",
            "head",
            "date",
            "child-heads",
            "child-dates",
            "heads-below",
            "dates-below",
            "document",
            "below",
            "scripts",
            "any-script",
            "titles-below",
            "stamps",
            "marks-below",
            "answer",
        ];
        let named = NAMES.iter().enumerate().filter(|(bit, _)| self.0 & (1 << bit) != 0);
        let mut words: Vec<&str> = named.map(|(_, name)| *name).collect();
        match self.0 >> FIRST_PROPERTY_BIT {
            0 => {}
            bits if bits == !0 >> FIRST_PROPERTY_BIT => words.push("properties"),
            _ => words.push("some-properties"),
        }
        f.write_str(&words.join("+"))
    }
}

/// A set of aspects of paths, sorted by the hashes of the paths, and of lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DependencySet {
    path_dependencies: Box<[PathDependency]>,
    /// Sorted by their identifiers.
    list_queries: Box<[Arc<ListQuery>]>,
}

/// The hash of a path, and the aspects that were read.
pub(crate) type PathDependency = (u64, PathAspects);

/// Represents a path that every change touches.
pub(crate) const ANY_PATH: u64 = 0;

/// Maximum number of lists; more are replaced by their scopes.
const MAX_LIST_QUERIES: usize = 64;

impl DependencySet {
    /// Maximum number of paths; more are replaced by the subtrees that contain them.
    pub const MAX_PATHS: usize = 4096;

    /// Creates the set of recorded reads.
    #[must_use]
    pub fn from_recorded(recorded: &[(NodePath, PathAspects)]) -> Self {
        Self::from_recorded_and_queries(recorded, &[])
    }

    /// Creates the set of recorded reads and lists.
    pub(crate) fn from_recorded_and_queries(
        recorded: &[(NodePath, PathAspects)],
        listings: &[Arc<ListQuery>],
    ) -> Self {
        let mut all = RecordedDependencies::default();
        recorded.iter().for_each(|(path, aspects)| all.add(path.as_str(), *aspects));
        all.dependencies(listings)
    }

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
    pub(crate) fn union_of<'a>(sets: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let pairs = sets.clone().flat_map(|set| set.path_dependencies.iter().copied());
        Self::from_parts(pairs, sets.flat_map(|set| set.list_queries.iter().cloned()))
    }

    /// Sorts and merges the parts.
    pub(crate) fn from_parts(
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
    pub(crate) fn path_count(&self) -> usize {
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
    pub(crate) fn add_to_digest(&self, digest: &mut DependencyHasher) {
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
            bytes.extend_from_slice(&aspects.0.to_le_bytes());
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
            (u64::from_le_bytes(*path), PathAspects(u64::from_le_bytes(*aspects)))
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
    pub(crate) fn add_path_dependencies(&mut self, pairs: &[PathDependency]) {
        // The count keeps adjacent sequences apart.
        self.add_pair(FIRST_END_MARK, pairs.len() as u64);
        pairs.iter().for_each(|(path, aspects)| self.add_pair(*path, aspects.0));
    }

    /// Adds lists, in order.
    pub(crate) fn add_list_queries(&mut self, listings: &[Arc<ListQuery>]) {
        self.add_pair(SECOND_END_MARK, listings.len() as u64);
        listings.iter().for_each(|query| self.add_pair(query.id(), 0));
    }

    pub(crate) fn finish(self) -> u64 {
        self.state
    }
}

/// Hashes a path.
pub(crate) fn hash_path(path: &NodePath) -> u64 {
    hash_path_text(path.as_str())
}

/// Hashes the text of a path.
#[inline]
pub(crate) fn hash_path_text(path: &str) -> u64 {
    // Zero is reserved.
    hash_bytes(path).max(1)
}

/// Hashes a text sixteen bytes at a time. Render speed depends on this hash; security does not.
#[inline]
pub(crate) fn hash_bytes(text: &str) -> u64 {
    let bytes = text.as_bytes();
    // Each block has its own keys, so that its product does not depend on the one before.
    let join = |key: u64, [first, second]: [u64; 2]| {
        folded_multiply(first ^ key, second ^ SECOND_END_MARK)
    };
    let (blocks, rest) = bytes.as_chunks::<16>();
    let (mut state, mut key) = (bytes.len() as u64, FIRST_END_MARK);
    for block in blocks {
        state ^= join(key, read_word_pair(block));
        key = key.wrapping_add(BLOCK_KEY_STEP);
    }
    mix_bits(if rest.is_empty() { state } else { state ^ join(key, last_words(bytes)) })
}

/// Returns the last sixteen bytes as two numbers, or all bytes of a shorter text.
#[inline]
fn last_words(bytes: &[u8]) -> [u64; 2] {
    if let Some(last) = bytes.last_chunk::<16>() {
        return read_word_pair(last);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return [u64::from_le_bytes(*first), u64::from_le_bytes(*last)];
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return [u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into()];
    }
    [bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), 0]
}

/// Reads sixteen bytes as two numbers.
#[inline]
fn read_word_pair(bytes: &[u8; 16]) -> [u64; 2] {
    // Mapping over an array compiles to a call, which costs more than everything else here.
    let both = u128::from_le_bytes(*bytes);
    [both as u64, (both >> 64) as u64]
}

/// Keeps trailing zero bytes from colliding with the end of a hash; no text holds the second mark's bytes.
const FIRST_END_MARK: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND_END_MARK: u64 = 0xd6e8_feb8_6659_fd93;

/// Added to the key of a block to obtain the key of the next one.
const BLOCK_KEY_STEP: u64 = 0xa076_1d64_78bd_642f;

/// Multiplies two numbers and folds the halves of the product together.
#[inline]
pub(crate) fn folded_multiply(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product >> 64) as u64 ^ product as u64
}

/// Spreads the bits of a number over all bits.
#[inline]
pub(crate) fn mix_bits(number: u64) -> u64 {
    folded_multiply(number ^ FIRST_END_MARK, SECOND_END_MARK)
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
