//! The number of hot pages of a farm that may still be fetched in the current minute (`/x-refetchBudget`).

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The remaining budget of the current minute.
#[derive(Debug, Default)]
pub(crate) struct HotRefetchBudget(Mutex<Option<(Instant, u32)>>);

const BUDGET_PERIOD: Duration = Duration::from_secs(60);

impl HotRefetchBudget {
    /// Takes up to `requested_count` from the remaining budget.
    pub(super) fn take_up_to(&self, requested_count: u32, budget: u32, now: Instant) -> u32 {
        let mut spent = self.0.lock();
        let (since, used) = spent
            .filter(|(since, _)| now.duration_since(*since) < BUDGET_PERIOD)
            .unwrap_or((now, 0));
        let granted_count = requested_count.min(budget.saturating_sub(used));
        *spent = Some((since, used + granted_count));
        granted_count
    }
}

#[cfg(test)]
mod tests {
    use super::{BUDGET_PERIOD, HotRefetchBudget};
    use std::time::Instant;

    #[test]
    fn a_budget_lasts_a_minute() {
        let budget = HotRefetchBudget::default();
        let now = Instant::now();
        assert_eq!(budget.take_up_to(5, 8, now), 5);
        assert_eq!(budget.take_up_to(5, 8, now + BUDGET_PERIOD / 2), 3);
        assert_eq!(budget.take_up_to(5, 8, now + BUDGET_PERIOD / 2), 0);
        assert_eq!(budget.take_up_to(5, 8, now + BUDGET_PERIOD), 5);
    }
}
