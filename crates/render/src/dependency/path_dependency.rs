//! Aspects of paths, and the hashes of paths.

use std::fmt;

use tympan_content::NodePath;

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

/// The hash of a path, and the aspects that were read.
pub(crate) type PathDependency = (u64, PathAspects);

/// Represents a path that every change touches.
pub(crate) const ANY_PATH: u64 = 0;

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
pub(super) const FIRST_END_MARK: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const SECOND_END_MARK: u64 = 0xd6e8_feb8_6659_fd93;

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
