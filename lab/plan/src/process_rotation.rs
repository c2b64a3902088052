//! Distributes the rows of a plan's data if several processes share them.
//!
//! Every process reads the whole file and takes the rows of its own turns. The number of turns of a process is
//! proportional to its number of visits, so that each row is used once over all processes. If rows were assigned in
//! plain rotation, a process with many users would use rows twice, and one with few would leave rows unused.
//!
//! Invariant: every row is in the turn of exactly one process.

use std::sync::Arc;

use super::weighted_order::weighted_order;
use crate::load_portion::LoadPortion;

/// Maximum length of a rotation; larger sums of visits are rounded.
const MAX_ROTATION_LEN: u64 = 50_000;

/// The turns of all processes, repeated in this order.
#[derive(Debug, Clone)]
pub struct ProcessRotation {
    process_order: Arc<[usize]>,
    own_index: usize,
    /// Number of rows passed.
    position: usize,
}

impl ProcessRotation {
    /// Returns the rotation of a single process that takes all rows.
    pub(crate) fn single_process() -> Self {
        Self { process_order: Arc::from([0]), own_index: 0, position: 0 }
    }

    /// Returns the rotation of the process `portion` with one turn per process.
    pub(crate) fn one_row_each(portion: LoadPortion) -> Self {
        let count = usize::try_from(portion.count).unwrap_or(usize::MAX).max(1);
        Self {
            process_order: (0..count).collect(),
            own_index: usize::try_from(portion.index).unwrap_or(0),
            position: 0,
        }
    }

    /// Returns the rotation of the process `portion` with turns in proportion to the `visits` of each process.
    pub fn by_visits(visits: &[u64], portion: LoadPortion) -> Self {
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

    /// Advances to the next row of this process; returns the number of rows to skip before it, or `None` if it gets
    /// none.
    pub(crate) fn rows_before_next(&mut self) -> Option<usize> {
        let length = self.process_order.len();
        for between in 0..length {
            let process = self.process_order.get((self.position + between) % length)?;
            if *process == self.own_index {
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
        let mut row_numbers = Vec::new();
        for (mut turns, visits) in processes.into_iter().zip(visits) {
            let mut row = 0;
            for _ in 0..*visits {
                row += turns.rows_before_next().unwrap() + 1;
                row_numbers.push(row - 1);
            }
        }
        row_numbers.sort_unstable();
        row_numbers
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
