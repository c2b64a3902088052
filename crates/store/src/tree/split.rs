//! Where a level is cut into chunks: from the keys' hashes and the chunk's size, in exact integers.
//!
//! The rule is step by step in `docs/formats/tree.md`. It is a part of the format: another rule gives equal content
//! another root.

/// A chunk whose entries, written in full, reach this length ends. It bounds chunks whose keys share long prefixes.
pub(super) const FULL_BYTES: usize = 32_768;
const LEAF_TARGET: usize = 4_096;
const INTERIOR_TARGET: usize = 4_096;

/// Cuts one level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Splitter {
    level: u8,
    target: usize,
    min_entries: usize,
}

/// The chunk after its newest entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) entries: usize,
    pub(super) full: usize,
    pub(super) size: usize,
    /// The size before the newest entry, 0 for the first one.
    pub(super) before: usize,
}

impl Splitter {
    pub(super) fn new(level: u8) -> Self {
        let (target, min_entries) = if level == 0 {
            (LEAF_TARGET, 1)
        } else {
            (INTERIOR_TARGET, 2)
        };
        Self {
            level,
            target,
            min_entries,
        }
    }

    /// Tells whether the chunk ends after the entry with this key.
    pub(super) fn ends_after(&self, key: &[u8], chunk: Measure) -> bool {
        if chunk.entries < self.min_entries {
            return false;
        }
        if chunk.full >= FULL_BYTES {
            return true;
        }
        if chunk.size < self.target / 8 {
            return false;
        }
        if chunk.size >= self.target * 4 {
            return true;
        }
        let hazard = fourth_power(chunk.size).saturating_sub(fourth_power(chunk.before));
        let upper_half = u128::from(hash(self.level, key) >> 32);
        upper_half * (fourth_power(self.target) + hazard) < hazard << 32
    }
}

/// Sizes are below 2^16 here, so that powers stay below 2^64 and the products of `ends_after` below 2^128.
fn fourth_power(size: usize) -> u128 {
    let square = (size as u128) * (size as u128);
    square * square
}

/// Hashes a key, salted by the level.
fn hash(level: u8, key: &[u8]) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(level) + 1);
    let mut mix = |word: [u8; 8]| {
        state = fold(state ^ u64::from_le_bytes(word), 0xA076_1D64_78BD_642F)
            .wrapping_add(0xE703_7ED1_A0B4_28DB);
    };
    let (words, rest) = key.as_chunks::<8>();
    words.iter().for_each(|word| mix(*word));
    if !rest.is_empty() {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(rest) {
            *to = *from;
        }
        mix(word);
    }
    fold(state ^ key.len() as u64, 0x8EBC_6AF0_9C88_C6E3)
}

fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}
