//! A circuit breaker: while the remote side is down, requests fail at once, and one probes it from time to time.
//!
//! Invariants
//! * While the remote side is down, only one request at a time probes it, and no more often than the delay allows.
//! * Any response ends the outage.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The delay after the first failure; it doubles with each further one.
const FIRST_PROBE_DELAY: Duration = Duration::from_millis(500);
/// The maximum delay.
const MAX_PROBE_DELAY: Duration = Duration::from_secs(10);

/// The state of the circuit; `None` while it is closed.
#[derive(Debug, Default)]
pub(crate) struct StoreCircuitBreaker(Mutex<Option<OpenCircuit>>);

#[derive(Debug)]
struct OpenCircuit {
    reason: String,
    probe_delay: Duration,
    /// The time of the next probe.
    retry_at: Instant,
}

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CircuitDecision {
    /// The remote side is not known to be down.
    Allow,
    /// The remote side is down, and this request probes it.
    Probe,
    /// The remote side is down, for this reason.
    Reject(String),
}

impl StoreCircuitBreaker {
    /// Returns the decision for a request at this time.
    pub(crate) fn decide_request(&self, now: Instant) -> CircuitDecision {
        match &mut *self.0.lock() {
            None => CircuitDecision::Allow,
            Some(down) if now >= down.retry_at => {
                // Other requests wait for the result of this probe.
                down.retry_at = now + down.probe_delay;
                CircuitDecision::Probe
            }
            Some(down) => CircuitDecision::Reject(down.reason.clone()),
        }
    }

    /// Records that there was no response.
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

    /// Records that there was a response.
    pub(crate) fn record_success(&self) {
        *self.0.lock() = None;
    }

    /// Returns the reason why the remote side is unreachable, if it is.
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
        // Each failure increases the delay, up to a maximum.
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
