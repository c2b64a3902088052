//! The order of scenarios with weights.

/// Maximum length of the order of a mix.
const MAX_MIX_LENGTH: u64 = 100_000;

/// Returns the order of weighted scenarios, evenly spread; `None` if it is too long.
pub fn weighted_order(weights: &[u64]) -> Option<Vec<usize>> {
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    let weights: Vec<i64> =
        weights.iter().map(|weight| i64::try_from(weight / divisor).unwrap_or(i64::MAX)).collect();
    let sum = weights.iter().try_fold(0i64, |sum, weight| sum.checked_add(*weight))?;
    if u64::try_from(sum).ok()? > MAX_MIX_LENGTH {
        return None;
    }
    // In each turn every scenario gains its weight, and the one with the most pays the sum: no scenario waits longer
    // than necessary.
    let mut credit = vec![0i64; weights.len()];
    let mut order = Vec::new();
    for _ in 0..sum {
        credit.iter_mut().zip(&weights).for_each(|(credit, weight)| *credit += weight);
        let most = credit.iter().copied().max()?;
        let next = credit.iter().position(|credit| *credit == most)?;
        if let Some(credit) = credit.get_mut(next) {
            *credit -= sum;
        }
        order.push(next);
    }
    Some(order)
}

fn greatest_common_divisor(left: u64, right: u64) -> u64 {
    if right == 0 { left } else { greatest_common_divisor(right, left % right) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_mix_spreads_its_scenarios_evenly() {
        assert_eq!(weighted_order(&[2, 1]), Some(vec![0, 1, 0]));
        assert_eq!(weighted_order(&[50, 50]), Some(vec![0, 1]));
        assert_eq!(weighted_order(&[7]), Some(vec![0]));
        assert_eq!(weighted_order(&[100_001, 1]), None);
        let order = weighted_order(&[70, 25, 4, 1]).unwrap();
        let count = |which| order.iter().filter(|turn| **turn == which).count();
        assert_eq!([order.len(), count(0), count(1), count(2), count(3)], [100, 70, 25, 4, 1]);
    }

    proptest! {
        #[test]
        fn every_turn_of_a_mix_has_exactly_its_shares(weights in prop::collection::vec(1u64..40, 1..6)) {
            let order = weighted_order(&weights).unwrap();
            let sum: u64 = weights.iter().sum();
            for (place, weight) in weights.iter().enumerate() {
                let count = order.iter().filter(|one| **one == place).count() as u64;
                prop_assert_eq!(count * sum, weight * order.len() as u64);
            }
        }
    }
}
