//! What to do while the other side is down: fail at once, and look again after a while.
//!
//! Invariants
//! * While it is down, one request at a time tries again, and not more often than the wait says.
//! * Any answer at all ends the outage.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The wait after the first failure; it doubles.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(500);
/// The longest wait.
const MAX_PROBE_DELAY: Duration = Duration::from_secs(10);

/// Whether the other side is down.
#[derive(Debug, Default)]
pub(crate) struct StoreCircuitBreaker(Mutex<Option<OpenCircuit>>);

#[derive(Debug)]
struct OpenCircuit {
    reason: String,
    probe_delay: Duration,
    /// When the next request may try.
    retry_at: Instant,
}

/// What a request may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CircuitDecision {
    /// The other side is not known to be down.
    Allow,
    /// It is down, and this request looks whether it still is.
    Probe,
    /// It is down, for this reason.
    Reject(String),
}

impl StoreCircuitBreaker {
    /// Tells what a request may do now.
    pub(crate) fn decide_request(&self, now: Instant) -> CircuitDecision {
        match &mut *self.0.lock() {
            None => CircuitDecision::Allow,
            Some(down) if now >= down.retry_at => {
                // Others wait for what this one finds.
                down.retry_at = now + down.probe_delay;
                CircuitDecision::Probe
            }
            Some(down) => CircuitDecision::Reject(down.reason.clone()),
        }
    }

    /// Notes that there was no answer.
    pub(crate) fn record_failure(&self, reason: &str, now: Instant) {
        let mut down = self.0.lock();
        let wait = down
            .as_ref()
            .map_or(FIRST_PROBE_DELAY, |down| (down.probe_delay * 2).min(MAX_PROBE_DELAY));
        *down = Some(OpenCircuit {
            reason: reason.to_owned(),
            probe_delay: wait,
            retry_at: now + wait,
        });
    }

    /// Notes that there was an answer.
    pub(crate) fn record_success(&self) {
        *self.0.lock() = None;
    }

    /// Returns why the other side cannot be reached, if so.
    pub(crate) fn failure_reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|down| down.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_a_while_looks_whether_it_is_over() {
        let outage = StoreCircuitBreaker::default();
        let start = Instant::now();
        assert_eq!(outage.decide_request(start), CircuitDecision::Allow);
        outage.record_failure("refused", start);
        assert_eq!(outage.decide_request(start), CircuitDecision::Reject("refused".to_owned()));
        assert_eq!(outage.decide_request(start + FIRST_PROBE_DELAY), CircuitDecision::Probe);
        assert_eq!(
            outage.decide_request(start + FIRST_PROBE_DELAY),
            CircuitDecision::Reject("refused".to_owned())
        );
        // Each failure makes the wait longer, up to a bound.
        let mut now = start;
        for _ in 0..20 {
            now += MAX_PROBE_DELAY;
            outage.record_failure("refused", now);
        }
        assert_eq!(
            outage.decide_request(now + MAX_PROBE_DELAY - FIRST_PROBE_DELAY),
            CircuitDecision::Reject("refused".to_owned())
        );
        assert_eq!(outage.decide_request(now + MAX_PROBE_DELAY), CircuitDecision::Probe);
        outage.record_success();
        assert_eq!(
            (outage.decide_request(now), outage.failure_reason()),
            (CircuitDecision::Allow, None)
        );
    }
}
