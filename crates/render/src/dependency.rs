//! What a drawing depends on: aspects of paths, small enough to be kept for every URL of a site.
//!
//! In: paths and the [`Aspects`] of each that were read. Out: [`Dependencies`], a sorted set of hashes that is compared
//! with what a change touched.
//!
//! Invariants
//! * Two sets that share no aspect of any path are about different things. Hashes that collide make a drawing depend on
//!   more, never on less.
//! * The encoding is the same on every machine; [`FORMAT`] changes with it.
//!
//! Not here: who reads ([`crate::reads`]), what a change touches ([`crate::touched`]).

use std::fmt;

use tympan_content::NodePath;

/// The version of hashes and aspects, as they are stored.
pub(crate) const FORMAT: i64 = 2;

/// The bits below this one have a meaning each; those from here on stand for names of properties.
const FIRST_PROPERTY: u32 = 16;
/// How many bits the names of properties share.
const PROPERTY_BITS: u64 = 48;

/// The properties that are stamps.
const STAMPS: [&str; 14] = [
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

/// What of a path was read, or changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Aspects(u64);

impl Aspects {
    /// Whether there is a node.
    pub const EXISTENCE: Self = Self(1);
    /// The names of its children, and their order.
    pub const CHILDREN: Self = Self(1 << 1);
    /// What navigations show of it: title, type, whether it hides.
    pub const HEAD: Self = Self(1 << 2);
    /// When it was last modified, as its record's header tells.
    pub const DATE: Self = Self(1 << 3);
    /// Which pages that navigations show lie directly below it, and their order.
    pub const CHILD_HEADS: Self = Self(1 << 4);
    /// The dates of the pages that navigations show directly below it.
    pub const CHILD_DATES: Self = Self(1 << 5);
    /// Which pages lie below it at any depth, and which of them hide.
    pub const HEADS_BELOW: Self = Self(1 << 6);
    /// The dates of the pages below it.
    pub const DATES_BELOW: Self = Self(1 << 7);
    /// Anything in the document at this path.
    pub const DOCUMENT: Self = Self(1 << 8);
    /// Anything at or below this path.
    pub const BELOW: Self = Self(1 << 9);
    /// Which scripts the resource type has whose folder this is, and its super type.
    pub const SCRIPTS: Self = Self(1 << 10);
    /// Any script: of components whose scripts take in others.
    pub const ANY_SCRIPT: Self = Self(1 << 11);
    /// The titles of the pages below it.
    pub const TITLES_BELOW: Self = Self(1 << 12);
    /// When and by whom it was made, saved or activated, as properties say: they change with everything and show seldom.
    pub const STAMPS: Self = Self(1 << 13);
    /// All properties.
    pub const PROPERTIES: Self = Self(!0 << FIRST_PROPERTY | 1 << 13);
    /// Everything.
    pub const ALL: Self = Self(!0);
    /// What is mostly shown where it was read: a change of it shows.
    pub(crate) const SHOWN: Self = Self(Self::PROPERTIES.0 | Self::HEAD.0 | Self::DATE.0);

    /// Returns the aspect of the property with a name; some names share one.
    #[must_use]
    pub fn property(name: &str) -> Self {
        if STAMPS.contains(&name) {
            return Self::STAMPS;
        }
        Self(1 << (u64::from(FIRST_PROPERTY) + hash(name) % PROPERTY_BITS))
    }

    /// Returns the aspects of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the aspects that both have.
    #[must_use]
    pub const fn only(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Tells whether the two have an aspect in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Tells whether these hold all of the others.
    #[must_use]
    pub const fn holds(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Tells whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for Aspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 14] = [
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
        ];
        let named = NAMES.iter().enumerate().filter(|(bit, _)| self.0 & (1 << bit) != 0);
        let mut words: Vec<&str> = named.map(|(_, name)| *name).collect();
        match self.0 >> FIRST_PROPERTY {
            0 => {}
            some if some == !0 >> FIRST_PROPERTY => words.push("properties"),
            _ => words.push("some-properties"),
        }
        f.write_str(&words.join("+"))
    }
}

/// A set of aspects of paths, sorted by the hashes of the paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dependencies(Box<[Dependency]>);

/// The hash of a path, and what of it matters.
pub(crate) type Dependency = (u64, Aspects);

/// Stands for a path that every change touches.
pub(crate) const ANYTHING: u64 = 0;

impl Dependencies {
    /// More paths than this are replaced by the subtrees that hold them.
    pub const MAX: usize = 4096;

    /// Makes the set of what was noted.
    #[must_use]
    pub fn of(noted: &[(NodePath, Aspects)]) -> Self {
        let set = Self::of_pairs(noted.iter().map(|(path, aspects)| (hash_path(path), *aspects)));
        if set.0.len() <= Self::MAX {
            return set;
        }
        // The scope of a site: `/content/site`, `/apps/site`, `/content/dam`.
        let scope = |path: &NodePath| {
            let mut scope = path.clone();
            while scope.depth() > 2
                && let Some(parent) = scope.parent()
            {
                scope = parent;
            }
            hash_path(&scope)
        };
        Self::of_pairs(noted.iter().map(|(path, _)| (scope(path), Aspects::BELOW)))
    }

    /// Makes the set that every change touches.
    pub(crate) fn anything() -> Self {
        Self(Box::new([(ANYTHING, Aspects::ALL)]))
    }

    /// Makes the set that every change of a script touches.
    pub(crate) fn any_script() -> Self {
        Self(Box::new([(hash("/apps"), Aspects::ANY_SCRIPT)]))
    }

    /// Makes the set of all of these.
    pub(crate) fn join<'a>(sets: impl Iterator<Item = &'a Self>) -> Self {
        Self::of_pairs(sets.flat_map(|set| set.0.iter().copied()))
    }

    /// Sorts and joins.
    fn of_pairs(pairs: impl Iterator<Item = Dependency>) -> Self {
        let mut sorted: Vec<Dependency> = pairs.collect();
        sorted.sort_unstable_by_key(|(path, _)| *path);
        sorted.dedup_by(|(path, aspects), (kept, joined)| {
            let is_same = path == kept;
            if is_same {
                *joined = joined.and(*aspects);
            }
            is_same
        });
        Self(sorted.into())
    }

    /// Returns the set of both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        Self::of_pairs(self.0.iter().chain(&other.0).copied())
    }

    /// Tells whether everything of the other set is in this one.
    pub(crate) fn holds(&self, other: &Self) -> bool {
        other.0.iter().all(|(path, aspects)| self.aspects_of(*path).holds(*aspects))
    }

    /// Returns what of a path is in the set.
    pub(crate) fn aspects_of(&self, path: u64) -> Aspects {
        let found = self.0.binary_search_by_key(&path, |(path, _)| *path).ok();
        found.and_then(|at| self.0.get(at)).map_or(Aspects::default(), |(_, aspects)| *aspects)
    }

    /// Returns the hashes of the paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(path, _)| *path)
    }

    /// Returns how many paths there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes the set as bytes: for each path its hash and its aspects, 8 bytes each, least significant first.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let pairs = self.0.iter();
        pairs
            .flat_map(|(path, aspects)| [path.to_le_bytes(), aspects.0.to_le_bytes()])
            .flatten()
            .collect()
    }

    /// Reads a set; nothing if the bytes are none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let (pairs, odd) = numbers.as_chunks::<2>();
        (rest.is_empty() && odd.is_empty()).then_some(())?;
        let pairs = pairs.iter().map(|[path, aspects]| {
            (u64::from_le_bytes(*path), Aspects(u64::from_le_bytes(*aspects)))
        });
        Some(Self::of_pairs(pairs))
    }
}

/// Hashes a path.
pub(crate) fn hash_path(path: &NodePath) -> u64 {
    // Zero is taken.
    hash(path.as_str()).max(1)
}

/// Hashes a text, eight bytes at a time: in this crate the speed of a render depends on it, nobody's safety does.
pub(crate) fn hash(text: &str) -> u64 {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let mut last = [0_u8; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let start = mix(text.len() as u64);
    let state = words.iter().fold(start, |state, word| mix(state ^ u64::from_le_bytes(*word)));
    mix(state ^ u64::from_le_bytes(last))
}

/// Spreads the bits of a number over all bits.
pub(crate) fn mix(number: u64) -> u64 {
    let product =
        u128::from(number ^ 0x9e37_79b9_7f4a_7c15) * u128::from(0xd6e8_feb8_6659_fd93_u64);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    #[test]
    fn a_path_noted_twice_has_both_aspects() {
        let noted = [
            (path("/a"), Aspects::EXISTENCE),
            (path("/b"), Aspects::HEAD),
            (path("/a"), Aspects::property("text")),
        ];
        let set = Dependencies::of(&noted);
        assert_eq!(set.len(), 2);
        let aspects = set.aspects_of(hash_path(&path("/a")));
        assert_eq!(aspects, Aspects::EXISTENCE.and(Aspects::property("text")));
        assert!(set.aspects_of(hash_path(&path("/c"))).is_empty());
        assert_eq!(format!("{aspects:?}"), "existence+some-properties");
    }

    #[test]
    fn sets_are_read_back() {
        let set = Dependencies::of(&[(path("/a/b"), Aspects::ALL), (path("/c"), Aspects::DATE)]);
        assert_eq!(Dependencies::from_bytes(&set.to_bytes()), Some(set.clone()));
        assert_eq!(Dependencies::from_bytes(&[0; 15]), None);
        assert_eq!(Dependencies::from_bytes(&[0; 24]), None);
        assert!(set.holds(&set) && set.holds(&Dependencies::default()));
        assert!(!Dependencies::default().holds(&set));
    }

    #[test]
    fn very_many_paths_become_their_subtrees() {
        let noted: Vec<_> = (0..Dependencies::MAX + 1)
            .map(|number| (path(&format!("/content/site/en/p{number}")), Aspects::HEAD))
            .collect();
        let set = Dependencies::of(&noted);
        assert_eq!(set.len(), 1);
        assert_eq!(set.aspects_of(hash_path(&path("/content/site"))), Aspects::BELOW);
    }

    #[test]
    fn hashes_differ_and_stay() {
        // Stored by every publisher: a change of these is a new format.
        assert_eq!(hash(""), hash(""));
        assert_ne!(hash("/content/a"), hash("/content/b"));
        assert_ne!(hash("a\0"), hash("a"));
        let many: std::collections::HashSet<u64> =
            (0..100_000).map(|number| hash(&format!("/content/site/page-{number}"))).collect();
        assert_eq!(many.len(), 100_000);
        assert!(
            !Aspects::property("jcr:title").overlaps(Aspects::EXISTENCE.and(Aspects::ANY_SCRIPT))
        );
    }
}
