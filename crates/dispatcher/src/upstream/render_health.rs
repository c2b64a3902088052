//! Availability of renders, judged by their responses to visitors.
//!
//! A render that fails several times in a row is *out* for a while; then one request at a time tries it, and a success
//! brings it back, at first for a small part of the load. Each time it fails again it stays out twice as long.
//!
//! Not here: the health page (`upstream`, `/health_check`), and the choice among available renders (`load_balancer`).

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::HealthRules;

/// The maximum time for which a render is out.
const MAX_OUT_TIME: Duration = Duration::from_secs(300);

/// The part of the load that a returning render gets.
const SLOW_START_SHARE: f64 = 0.1;

/// The health of one render, derived from its responses.
#[derive(Debug)]
pub(crate) struct RenderHealth {
    rules: HealthRules,
    state: Mutex<RenderHealthState>,
}

#[derive(Debug, Clone, Copy, Default)]
struct RenderHealthState {
    /// The number of consecutive failures.
    failures: u32,
    /// The number of consecutive times that it was put out.
    consecutive_outages: u32,
    out_until: Option<Instant>,
    /// The time since which a trial request is running.
    trial_start: Option<Instant>,
    back_since: Option<Instant>,
}

/// The availability of a render.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RenderAvailability {
    /// It gets requests, with this part of its usual load.
    Available(f64),
    /// A trial request is due.
    Trial,
    /// It gets requests when no other render responds, or none at all (`/x-breaker`).
    Unavailable,
}

/// The time after which a trial counts as given up by its visitor.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(60);

impl RenderHealth {
    pub(crate) fn new(rules: HealthRules) -> Self {
        Self { rules, state: Mutex::default() }
    }

    pub(crate) fn availability(&self, now: Instant) -> RenderAvailability {
        let state = *self.state.lock();
        match state.out_until {
            Some(until) if now < until => RenderAvailability::Unavailable,
            Some(_) => {
                let is_tried = state.trial_start.is_some_and(|since| now < since + TRIAL_TIMEOUT);
                if is_tried { RenderAvailability::Unavailable } else { RenderAvailability::Trial }
            }
            None => RenderAvailability::Available(self.load_share(state.back_since, now)),
        }
    }

    fn load_share(&self, back_since: Option<Instant>, now: Instant) -> f64 {
        let Some(since) = back_since else { return 1.0 };
        let whole = self.rules.slow_start;
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= whole {
            return 1.0;
        }
        (elapsed.as_secs_f64() / whole.as_secs_f64()).max(SLOW_START_SHARE)
    }

    /// Records that a trial request starts now.
    pub(crate) fn begin_request(&self, now: Instant) {
        let mut state = self.state.lock();
        if state.out_until.is_some_and(|until| now >= until) {
            state.trial_start = Some(now);
        }
    }

    /// Records a response; returns true if the render is available again.
    pub(crate) fn record_success(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        state.failures = 0;
        let was_out = state.out_until.is_some();
        if was_out {
            state.out_until = None;
            state.trial_start = None;
            state.back_since = Some(now);
        } else if self.load_share(state.back_since, now) >= 1.0 {
            state.consecutive_outages = 0;
        }
        was_out
    }

    /// Records a failure; returns true if the render is now out.
    pub(crate) fn record_failure(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if self.rules.failures == 0 {
            return false;
        }
        state.failures = state.failures.saturating_add(1);
        let was_trial = state.trial_start.take().is_some();
        let is_running = state.out_until.is_some_and(|until| now < until);
        if is_running || (state.failures < self.rules.failures && !was_trial) {
            return false;
        }
        let factor = 1_u32.checked_shl(state.consecutive_outages.min(16)).unwrap_or(u32::MAX);
        state.consecutive_outages = state.consecutive_outages.saturating_add(1);
        let pause = self.rules.initial_pause.saturating_mul(factor).min(MAX_OUT_TIME);
        state.out_until = Some(now + pause);
        true
    }

    /// Makes a render that returns for another reason start slowly.
    pub(crate) fn start_slowly(&self, now: Instant) {
        let mut state = self.state.lock();
        *state = RenderHealthState {
            back_since: Some(now),
            consecutive_outages: state.consecutive_outages,
            ..RenderHealthState::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{RenderAvailability, RenderHealth};
    use crate::config::HealthRules;
    use std::time::Duration;
    use tokio::time::Instant;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn health() -> RenderHealth {
        let rules = HealthRules {
            failures: 3,
            initial_pause: seconds(10),
            slow_start: seconds(20),
            has_circuit_breaker: false,
        };
        RenderHealth::new(rules)
    }

    #[test]
    fn failures_in_a_row_put_a_render_out_and_a_success_brings_it_back_slowly() {
        let (health, now) = (health(), Instant::now());
        assert!(!health.record_failure(now) && !health.record_failure(now));
        assert!(!health.record_success(now), "a success in between begins the row anew");
        assert!(!health.record_failure(now) && !health.record_failure(now));
        assert_eq!(health.availability(now), RenderAvailability::Available(1.0));
        assert!(health.record_failure(now));
        assert_eq!(health.availability(now + seconds(9)), RenderAvailability::Unavailable);
        let then = now + seconds(10);
        assert_eq!(health.availability(then), RenderAvailability::Trial);
        health.begin_request(then);
        assert_eq!(health.availability(then), RenderAvailability::Unavailable, "one at a time");
        assert!(health.record_success(then));
        assert_eq!(health.availability(then), RenderAvailability::Available(0.1));
        assert_eq!(health.availability(then + seconds(10)), RenderAvailability::Available(0.5));
        assert_eq!(health.availability(then + seconds(20)), RenderAvailability::Available(1.0));
    }

    #[test]
    fn a_render_that_fails_again_stays_out_twice_as_long() {
        let (health, mut now) = (health(), Instant::now());
        for _ in 0..3 {
            health.record_failure(now);
        }
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(
                health.availability(now + seconds(pause - 1)),
                RenderAvailability::Unavailable,
                "{pause}"
            );
            now += seconds(pause);
            assert_eq!(health.availability(now), RenderAvailability::Trial, "{pause}");
            health.begin_request(now);
            assert!(health.record_failure(now), "one failed trial is enough");
        }
    }

    #[test]
    fn a_trial_that_nobody_ends_does_not_keep_a_render_out() {
        let (health, now) = (health(), Instant::now());
        for _ in 0..3 {
            health.record_failure(now);
        }
        let then = now + seconds(10);
        health.begin_request(then);
        assert_eq!(health.availability(then + seconds(59)), RenderAvailability::Unavailable);
        assert_eq!(health.availability(then + seconds(60)), RenderAvailability::Trial);
    }

    #[test]
    fn without_a_number_of_failures_nothing_is_judged() {
        let rules = HealthRules { failures: 0, ..HealthRules::default() };
        let (health, now) = (RenderHealth::new(rules), Instant::now());
        assert!((0..100).all(|_| !health.record_failure(now)));
        assert_eq!(health.availability(now), RenderAvailability::Available(1.0));
    }
}
