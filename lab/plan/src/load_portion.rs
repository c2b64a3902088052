//! The portion of a load that this process handles when several share it.
//!
//! Invariant: the portions for one count are disjoint, and together they form the whole.

use serde::{Deserialize, Serialize};

/// Every `count`th item, starting at `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPortion {
    /// The index of the first item.
    pub index: u64,
    /// Number of portions.
    pub count: u64,
}

impl Default for LoadPortion {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

impl LoadPortion {
    /// Returns true if item `number`, counted from 0, is in this portion.
    pub fn contains(self, number: u64) -> bool {
        number % self.count.max(1) == self.index
    }

    /// Returns how many of `whole` items are in this portion.
    pub fn share_of(self, whole: u64) -> u64 {
        let count = self.count.max(1);
        whole / count + u64::from(whole % count > self.index)
    }

    /// Converts an index within this portion, counted from 0, to the index in the whole.
    pub fn global_index(self, number: u64) -> u64 {
        number.saturating_mul(self.count.max(1)).saturating_add(self.index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn portions_are_together_the_whole(whole in 0u64..500, count in 1u64..9) {
            let mut seen = Vec::new();
            for index in 0..count {
                let portion = LoadPortion { index, count };
                let mine: Vec<u64> = (0..portion.share_of(whole)).map(|number| portion.global_index(number)).collect();
                prop_assert!(mine.iter().all(|&place| portion.contains(place)));
                seen.extend(mine);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..whole).collect::<Vec<_>>());
        }
    }
}
