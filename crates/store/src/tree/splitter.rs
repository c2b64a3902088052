//! The chunk boundaries of a level, determined by the hashes of the keys and the size of the chunk, in exact integers.
//!
//! The rule is described step by step in `docs/formats/tree.md`. It is a part of the format: another rule gives equal
//! content another root.

use crate::chunk::{MAX_CHUNK_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// The size in bytes, without prefix sharing, at which a chunk ends. It bounds chunks whose keys share long prefixes.
const MAX_UNSHARED_BYTES: usize = 32_768;
/// The value bytes of a whole leaf must stay below the maximum of a chunk, because their ends are u16.
const _: () =
    assert!(MAX_UNSHARED_BYTES + MAX_KEY_BYTES + MAX_VALUE_BYTES + 4_096 < MAX_CHUNK_BYTES);
/// The target length of a chunk in bytes: the limits are an eighth and four times of it.
const TARGET_CHUNK_BYTES: usize = 4_096;

/// Splits one level into chunks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkSplitter {
    level: u8,
    min_entries: usize,
}

/// The size of the chunk after its newest entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkMeasure {
    pub(super) entry_count: usize,
    pub(super) unshared_size: usize,
    pub(super) encoded_size: usize,
    /// The size before the newest entry; 0 for the first one.
    pub(super) previous_size: usize,
}

impl ChunkSplitter {
    pub(super) fn new(level: u8) -> Self {
        Self {
            level,
            // Interior chunks with one child each would stack up without limit.
            min_entries: if level == 0 { 1 } else { 2 },
        }
    }

    /// Returns true if the chunk ends after the entry with this key.
    pub(super) fn is_boundary(&self, key: &[u8], chunk: ChunkMeasure) -> bool {
        if chunk.entry_count < self.min_entries {
            return false;
        }
        if chunk.unshared_size >= MAX_UNSHARED_BYTES {
            return true;
        }
        if chunk.encoded_size < TARGET_CHUNK_BYTES / 8 {
            return false;
        }
        if chunk.encoded_size >= TARGET_CHUNK_BYTES * 4 {
            return true;
        }
        let hazard =
            fourth_power(chunk.encoded_size).saturating_sub(fourth_power(chunk.previous_size));
        let upper_half = u128::from(hash_key(self.level, key) >> 32);
        upper_half * (fourth_power(TARGET_CHUNK_BYTES) + hazard) < hazard << 32
    }
}

/// Returns the fourth power of a size. Sizes are below 2^16 here, so powers stay below 2^64 and the products of
/// `is_boundary` below 2^128.
fn fourth_power(size: usize) -> u128 {
    let square = (size as u128) * (size as u128);
    square * square
}

/// Hashes a key, salted by the level.
fn hash_key(level: u8, key: &[u8]) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(level) + 1);
    let mut mix = |word: [u8; 8]| {
        state = fold_multiply(state ^ u64::from_le_bytes(word), 0xA076_1D64_78BD_642F)
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
    fold_multiply(state ^ key.len() as u64, 0x8EBC_6AF0_9C88_C6E3)
}

fn fold_multiply(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of keys in 10,000 at which a chunk of this size ends, the last entry being 200 bytes long.
    fn ends(level: u8, size: usize) -> usize {
        let splitter = ChunkSplitter::new(level);
        let chunk = ChunkMeasure {
            entry_count: 20,
            unshared_size: size,
            encoded_size: size,
            previous_size: size - 200,
        };
        let keys = (0..10_000_u32).map(|n| n.to_be_bytes());
        keys.filter(|key| splitter.is_boundary(key, chunk)).count()
    }

    #[test]
    fn cuts_follow_the_law_and_are_pinned() {
        // The probability is D / (T^4 + D) for D = size^4 - before^4. The counts are those of the pinned hash.
        let sizes = [511, 1_000, 2_000, 3_000, 4_000, 8_000, 16_383, 16_384];
        let counts = sizes.map(|size| ends(0, size));
        assert_eq!(counts, [0, 16, 183, 643, 1_422, 5_818, 9_259, 10_000]);
        assert_ne!(ends(1, 4_000), ends(0, 4_000), "each level has its salt");
    }

    #[test]
    fn the_hash_is_pinned() {
        let hashes = [(0, ""), (1, ""), (0, "content"), (0, "content\u{1}site\0page")]
            .map(|(level, key)| hash_key(level, key.as_bytes()));
        let expected = [
            0x8223_4897_C7D0_4A2C,
            0x959A_E45F_2B37_DFBA,
            0xCBBC_E40B_A774_C3AB,
            0x0B33_1BE9_9F3C_6020,
        ];
        assert_eq!(hashes, expected);
    }

    #[test]
    fn limits_hold_for_any_key() {
        for key in [&b""[..], b"key", &[0xFF; 2_048]] {
            let at = |level, entries, full, size| {
                let before = 0;
                let chunk = ChunkMeasure {
                    entry_count: entries,
                    unshared_size: full,
                    encoded_size: size,
                    previous_size: before,
                };
                ChunkSplitter::new(level).is_boundary(key, chunk)
            };
            assert!(at(0, 1, MAX_UNSHARED_BYTES, 1_000), "shared prefixes are bounded");
            assert!(
                !at(1, 1, MAX_UNSHARED_BYTES, 60_000),
                "an interior chunk of one child goes on"
            );
            assert!(at(1, 2, MAX_UNSHARED_BYTES, 60_000));
        }
    }
}
