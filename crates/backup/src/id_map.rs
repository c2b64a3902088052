//! Hash maps keyed by ids: an id is a hash already, and large saves do many look-ups.
//!
//! Each map has its own random key, so that nobody can choose ids that collide, and so that inserting one map's entries
//! in iteration order into another does not degrade it.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A map by ids.
pub(crate) type IdMap<K, V> = HashMap<K, V, IdHasherBuilder>;

/// An odd multiplier without a pattern, derived from the golden ratio.
const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random key of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdHasherBuilder(u64);

impl Default for IdHasherBuilder {
    fn default() -> Self {
        static NEXT: LazyLock<AtomicU64> =
            LazyLock::new(|| AtomicU64::new(RandomState::new().hash_one(0_u8)));
        Self(NEXT.fetch_add(HASH_MULTIPLIER, Ordering::Relaxed))
    }
}

impl BuildHasher for IdHasherBuilder {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(self.0)
    }
}

/// Mixes the key with eight bytes of the id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let number = part.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
            self.write_u64(number);
        }
    }

    fn write_u64(&mut self, head: u64) {
        let product = u128::from(self.0 ^ head) * u128::from(HASH_MULTIPLIER);
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::VaultObjectId;

    #[test]
    fn ids_fall_apart_by_both_ends_of_their_hash() {
        let state = IdHasherBuilder::default();
        let other_state = IdHasherBuilder::default();
        let id = |number: u32| VaultObjectId::of(&number.to_le_bytes());
        // A hash table uses the low bits and the high ones.
        for bits in [|hash: u64| hash & 0xffff, |hash: u64| hash >> 48] {
            let buckets: HashSet<u64> =
                (0..65_536).map(|number| bits(state.hash_one(id(number)))).collect();
            // Expected number of distinct values by chance: all but a fraction of 1/e.
            assert!((40_000..43_000).contains(&buckets.len()), "{}", buckets.len());
        }
        assert!(
            (0..100).all(|number| state.hash_one(id(number)) != other_state.hash_one(id(number)))
        );
    }

    #[test]
    fn what_is_put_into_a_map_is_found() {
        let id = |number: u32| VaultObjectId::of(&number.to_le_bytes());
        let map: IdMap<VaultObjectId, u32> =
            (0..1_000).map(|number| (id(number), number)).collect();
        assert!((0..1_000).all(|number| map.get(&id(number)) == Some(&number)));
        assert!((1_000..2_000).all(|number| !map.contains_key(&id(number))));
    }
}
