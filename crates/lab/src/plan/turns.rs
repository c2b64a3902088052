//! Whose turn it is to take a row, when several processes share the rows of a plan's data.
//!
//! Every process reads the whole file and takes the rows of its own turns. A process has as many turns as it has visits
//! to make, so that each row is used once over all processes: rows that are handed out one to each would be used twice by
//! a process with many users, and left over by one with few.
//!
//! Invariant: every row is in the turn of exactly one process.

use std::sync::Arc;

use super::own::mix;
use crate::load::Portion;

/// Sums of visits that take longer orders are rounded.
const FINEST: u64 = 50_000;

/// The turns of all processes, again and again in this order.
#[derive(Debug, Clone)]
pub(crate) struct Turns {
    order: Arc<[usize]>,
    mine: usize,
    /// Rows passed.
    at: usize,
}

impl Turns {
    /// Returns the turns of one process that has all rows.
    pub(crate) fn alone() -> Self {
        Self { order: Arc::from([0]), mine: 0, at: 0 }
    }

    /// Returns the turns of the process `portion`, one for each in order.
    pub(crate) fn even(portion: Portion) -> Self {
        let count = usize::try_from(portion.count).unwrap_or(usize::MAX).max(1);
        Self {
            order: (0..count).collect(),
            mine: usize::try_from(portion.index).unwrap_or(0),
            at: 0,
        }
    }

    /// Returns the turns of the process `portion` where processes have so many visits.
    pub(crate) fn of(visits: &[u64], portion: Portion) -> Self {
        let sum = visits.iter().fold(0, |sum: u64, visits| sum.saturating_add(*visits));
        if sum == 0 {
            return Self::even(portion);
        }
        let rounded = |visits: &u64| match visits {
            0 => 0,
            &visits => (u128::from(visits) * u128::from(FINEST) / u128::from(sum)).max(1) as u64,
        };
        let order = mix(visits)
            .or_else(|| mix(&visits.iter().map(rounded).collect::<Vec<_>>()))
            .unwrap_or_else(|| (0..visits.len()).collect());
        Self { order: order.into(), mine: usize::try_from(portion.index).unwrap_or(0), at: 0 }
    }

    /// Passes to the next row that is this process's; returns how many rows lie before it, or `None` if no row is.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let length = self.order.len();
        for between in 0..length {
            let whose = self.order.get((self.at + between) % length)?;
            if *whose == self.mine {
                self.at = (self.at + between + 1) % length;
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
    fn rows(visits: &[u64], processes: Vec<Turns>) -> Vec<usize> {
        let mut taken = Vec::new();
        for (mut turns, visits) in processes.into_iter().zip(visits) {
            let mut row = 0;
            for _ in 0..*visits {
                row += turns.next().unwrap() + 1;
                taken.push(row - 1);
            }
        }
        taken.sort_unstable();
        taken
    }

    fn processes(visits: &[u64]) -> Vec<Turns> {
        let count = visits.len() as u64;
        (0..count).map(|index| Turns::of(visits, Portion { index, count })).collect()
    }

    #[test]
    fn who_has_no_visits_has_no_rows() {
        let mut turns = processes(&[1, 1, 0]);
        assert_eq!(turns.iter_mut().map(Turns::next).collect::<Vec<_>>(), [Some(0), Some(1), None]);
    }

    #[test]
    fn sums_beyond_measure_are_rounded() {
        let [mut first, mut second] = processes(&[3_000_001, 1_000_000]).try_into().unwrap();
        let count =
            |turns: &mut Turns| -> usize { (0..100).map(|_| turns.next().unwrap() + 1).sum() };
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
            let turns = (0..count).map(|index| Turns::even(Portion { index, count })).collect();
            let all: Vec<usize> = (0..(count * each) as usize).collect();
            prop_assert_eq!(rows(&vec![each; count as usize], turns), all);
        }
    }
}
