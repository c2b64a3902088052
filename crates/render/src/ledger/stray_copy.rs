//! Strays: copies rendered from a state at which no follower is.
//!
//! A follower goes from one state to the next, and the difference between the two says nothing about a copy of an
//! intermediate state. A text that is published and withdrawn within one step appears in no difference, but the page
//! rendered in between shows it. So the states of such copies are recorded, and each is compared with the state in
//! which a step ends.
//!
//! Invariants
//! * The number of states of a URL's strays is limited; a URL with more has strays of unknown state.
//! * A copy that was recorded after a step was processed is a stray after that step, too, unless it is of the state in
//!   which the step ends.

use std::collections::{BTreeSet, HashMap};

use tympan_content::ChunkId;

/// Maximum number of distinct states per URL.
const MAX_ROOTS_PER_URL: usize = 4;
/// Maximum number of states that are compared with the one in which a step ends.
const MAX_COMPARED_ROOTS: usize = 16;

/// Copies of a URL that were rendered from one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StrayCopy {
    /// The state; `None` if unknown.
    root: Option<ChunkId>,
    /// The time of the latest record of one of them.
    recorded_at: u64,
}

/// The strays of all URLs, by slot.
#[derive(Debug, Default)]
pub(super) struct StrayCopies(HashMap<u32, Vec<StrayCopy>>);

impl StrayCopies {
    /// Records a copy again; returns false if there was none of that state.
    pub(super) fn refresh_copy(&mut self, at: u32, root: Option<ChunkId>, now: u64) -> bool {
        let mut strays = self.0.get_mut(&at).into_iter().flatten();
        let known_copy = strays.find(|copy| copy.root == root || copy.root.is_none());
        known_copy.is_some_and(|copy| {
            copy.recorded_at = now;
            true
        })
    }

    /// Records a copy; returns true if it is the URL's first stray.
    pub(super) fn add_copy(&mut self, at: u32, root: Option<ChunkId>, now: u64) -> bool {
        if self.refresh_copy(at, root, now) {
            return false;
        }
        let strays = self.0.entry(at).or_default();
        if root.is_none() || strays.len() >= MAX_ROOTS_PER_URL {
            let is_first = strays.is_empty();
            *strays = vec![StrayCopy { root: None, recorded_at: now }];
            return is_first;
        }
        strays.push(StrayCopy { root, recorded_at: now });
        strays.len() == 1
    }

    pub(super) fn has_copies(&self, at: u32) -> bool {
        self.0.contains_key(&at)
    }

    /// Returns the number of URLs with strays.
    pub(super) fn url_count(&self) -> usize {
        self.0.len()
    }

    /// Removes the strays of an evicted URL.
    pub(super) fn remove_url(&mut self, at: u32) {
        self.0.remove(&at);
    }

    /// Removes those of a URL that were recorded up to a time; returns true if it had some and has none left.
    pub(super) fn remove_recorded_until(&mut self, at: u32, step_end: u64) -> bool {
        let Some(strays) = self.0.get_mut(&at) else { return false };
        strays.retain(|copy| copy.recorded_at > step_end);
        let is_over = strays.is_empty();
        if is_over {
            self.0.remove(&at);
        }
        is_over
    }

    /// Removes those that were recorded up to a time, and those of a state; returns the URLs that have none left.
    pub(super) fn remove_acknowledged(&mut self, step_end: u64, root: ChunkId) -> Vec<u32> {
        let mut urls = Vec::new();
        self.0.retain(|at, strays| {
            strays.retain(|copy| copy.recorded_at > step_end && copy.root != Some(root));
            if strays.is_empty() {
                urls.push(*at);
            }
            !strays.is_empty()
        });
        urls
    }

    /// Removes all; returns their URLs.
    pub(super) fn clear(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.0).into_keys().collect()
    }

    /// Returns the states to compare with the one in which a step ends, except those that the step itself compares.
    pub(super) fn roots_to_compare(&self, ends: [ChunkId; 2]) -> Vec<ChunkId> {
        let all = self.0.values().flatten().filter_map(|copy| copy.root);
        let others: BTreeSet<ChunkId> = all.filter(|root| !ends.contains(root)).collect();
        others.into_iter().take(MAX_COMPARED_ROOTS).collect()
    }

    /// Returns each URL with strays, and their states.
    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (u32, impl Iterator<Item = Option<ChunkId>>)> {
        self.0.iter().map(|(at, strays)| (*at, strays.iter().map(|copy| copy.root)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(number: u8) -> ChunkId {
        ChunkId::from_bytes([number; 32])
    }

    #[test]
    fn strays_stay_until_a_step_that_saw_them_is_settled() {
        let mut strays = StrayCopies::default();
        assert!(strays.add_copy(1, Some(root(1)), 10));
        assert!(!strays.add_copy(1, Some(root(1)), 11), "the same state");
        assert!(!strays.add_copy(1, Some(root(2)), 12), "another one of the same URL");
        assert!(strays.add_copy(2, Some(root(3)), 13));
        assert_eq!(strays.roots_to_compare([root(1), root(9)]), [root(2), root(3)]);
        // Processed at clock 11: later copies wait for the next step, except for those of the end state.
        assert_eq!(strays.remove_acknowledged(11, root(3)), [2]);
        assert!(strays.has_copies(1) && !strays.has_copies(2));
        assert_eq!(strays.roots_to_compare([root(8), root(9)]), [root(2)]);
        // Recorded again since.
        assert!(strays.refresh_copy(1, Some(root(2)), 20));
        assert_eq!(strays.remove_acknowledged(19, root(9)), [0_u32; 0]);
        assert!(
            !strays.remove_recorded_until(1, 19)
                && strays.remove_recorded_until(1, 20)
                && !strays.has_copies(1)
        );
        assert!(!strays.remove_recorded_until(1, 20), "it has none any more");
    }

    #[test]
    fn of_many_states_nobody_knows_which() {
        let mut strays = StrayCopies::default();
        for number in 0..8 {
            strays.add_copy(1, Some(root(number)), u64::from(number));
        }
        let (_, mut states) = strays.iter().next().unwrap();
        assert_eq!((states.next(), states.next()), (Some(None), None));
        drop(states);
        assert!(
            strays.refresh_copy(1, Some(root(99)), 50),
            "whatever it is drawn from now is among them"
        );
        assert_eq!(strays.remove_acknowledged(49, root(99)), [0_u32; 0]);
        assert_eq!(strays.remove_acknowledged(50, root(99)), [1]);
        // An unknown state makes the other states unknown.
        strays.add_copy(2, Some(root(1)), 60);
        assert!(!strays.add_copy(2, None, 61));
        assert_eq!(strays.roots_to_compare([root(8), root(9)]), [] as [ChunkId; 0]);
        assert_eq!(strays.clear(), [2]);
    }
}
