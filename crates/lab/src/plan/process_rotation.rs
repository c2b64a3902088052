//! Whose turn it is to take a row, when several processes share the rows of a plan's data.
//!
//! Every process reads the whole file and takes the rows of its own turns. A process has as many turns as it has visits
//! to make, so that each row is used once over all processes: rows that are handed out one to each would be used twice by
//! a process with many users, and left over by one with few.
//!
//! Invariant: every row is in the turn of exactly one process.

use std::sync::Arc;

use super::toml_plan::weighted_order;
use crate::load::LoadPortion;

/// Sums of visits that take longer orders are rounded.
const MAX_ROTATION_LEN: u64 = 50_000;

/// The turns of all processes, again and again in this order.
#[derive(Debug, Clone)]
pub(crate) struct ProcessRotation {
    process_order: Arc<[usize]>,
    own_index: usize,
    /// Rows passed.
    position: usize,
}

impl ProcessRotation {
    /// Returns the turns of one process that has all rows.
    pub(crate) fn single_process() -> Self {
        Self { process_order: Arc::from([0]), own_index: 0, position: 0 }
    }

    /// Returns the turns of the process `portion`, one for each in order.
    pub(crate) fn one_row_each(portion: LoadPortion) -> Self {
        let count = usize::try_from(portion.count).unwrap_or(usize::MAX).max(1);
        Self {
            process_order: (0..count).collect(),
            own_index: usize::try_from(portion.index).unwrap_or(0),
            position: 0,
        }
    }

    /// Returns the turns of the process `portion` where processes have so many visits.
    pub(crate) fn by_visits(visits: &[u64], portion: LoadPortion) -> Self {
        let sum = visits.iter().fold(0, |sum: u64, visits| sum.saturating_add(*visits));
        if sum == 0 {
            return Self::one_row_each(portion);
        }
        let rounded = |visits: &u64| match visits {
            0 => 0,
            &visits => {
                (u128::from(visits) * u128::from(MAX_ROTATION_LEN) / u128::from(sum)).max(1) as u64
            }
        };
        let order = weighted_order(visits)
            .or_else(|| weighted_order(&visits.iter().map(rounded).collect::<Vec<_>>()))
            .unwrap_or_else(|| (0..visits.len()).collect());
        Self {
            process_order: order.into(),
            own_index: usize::try_from(portion.index).unwrap_or(0),
            position: 0,
        }
    }

    /// Passes to the next row that is this process's; returns how many rows lie before it, or `None` if no row is.
    pub(crate) fn rows_before_next(&mut self) -> Option<usize> {
        let length = self.process_order.len();
        for between in 0..length {
            let whose = self.process_order.get((self.position + between) % length)?;
            if *whose == self.own_index {
                self.position = (self.position + between + 1) % length;
                return Some(between);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the first rows of each process, `visits` of them.
    fn rows(visits: &[u64], processes: Vec<ProcessRotation>) -> Vec<usize> {
        let mut taken = Vec::new();
        for (mut turns, visits) in processes.into_iter().zip(visits) {
            let mut row = 0;
            for _ in 0..*visits {
                row += turns.rows_before_next().unwrap() + 1;
                taken.push(row - 1);
            }
        }
        taken.sort_unstable();
        taken
    }

    fn processes(visits: &[u64]) -> Vec<ProcessRotation> {
        let count = visits.len() as u64;
        (0..count)
            .map(|index| ProcessRotation::by_visits(visits, LoadPortion { index, count }))
            .collect()
    }

    #[test]
    fn who_has_no_visits_has_no_rows() {
        let mut turns = processes(&[1, 1, 0]);
        assert_eq!(
            turns.iter_mut().map(ProcessRotation::rows_before_next).collect::<Vec<_>>(),
            [Some(0), Some(1), None]
        );
    }

    #[test]
    fn sums_beyond_measure_are_rounded() {
        let [mut first, mut second] = processes(&[3_000_001, 1_000_000]).try_into().unwrap();
        let count = |turns: &mut ProcessRotation| -> usize {
            (0..100).map(|_| turns.rows_before_next().unwrap() + 1).sum()
        };
        assert!((130..=140).contains(&count(&mut first)));
        assert!((390..=401).contains(&count(&mut second)));
    }

    proptest! {
        #[test]
        fn visits_of_all_processes_use_each_row_once(visits in prop::collection::vec(0u64..60, 1..7)) {
            let sum: u64 = visits.iter().sum();
            let all: Vec<usize> = (0..sum as usize).collect();
            prop_assert_eq!(rows(&visits, processes(&visits)), all);
        }

        #[test]
        fn rows_that_go_round_are_each_in_one_turn(count in 1u64..9, each in 0u64..50) {
            let turns = (0..count).map(|index| ProcessRotation::one_row_each(LoadPortion { index, count })).collect();
            let all: Vec<usize> = (0..(count * each) as usize).collect();
            prop_assert_eq!(rows(&vec![each; count as usize], turns), all);
        }
    }
}
