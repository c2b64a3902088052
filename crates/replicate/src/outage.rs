//! What to do while the other side is down: fail at once, and look again after a while.
//!
//! Invariants
//! * While it is down, one request at a time tries again, and not more often than the wait says.
//! * Any answer at all ends the outage.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The wait after the first failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// Whether the other side is down.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Option<Down>>);

#[derive(Debug)]
struct Down {
    reason: String,
    wait: Duration,
    /// When the next request may try.
    retry_at: Instant,
}

/// What a request may do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The other side is not known to be down.
    Go,
    /// It is down, and this request looks whether it still is.
    Probe,
    /// It is down, for this reason.
    Refuse(String),
}

impl Outage {
    /// Tells what a request may do now.
    pub(crate) fn turn(&self, now: Instant) -> Turn {
        match &mut *self.0.lock() {
            None => Turn::Go,
            Some(down) if now >= down.retry_at => {
                // Others wait for what this one finds.
                down.retry_at = now + down.wait;
                Turn::Probe
            }
            Some(down) => Turn::Refuse(down.reason.clone()),
        }
    }

    /// Notes that there was no answer.
    pub(crate) fn begin(&self, reason: &str, now: Instant) {
        let mut down = self.0.lock();
        let wait = down.as_ref().map_or(FIRST_WAIT, |down| (down.wait * 2).min(LAST_WAIT));
        *down = Some(Down { reason: reason.to_owned(), wait, retry_at: now + wait });
    }

    /// Notes that there was an answer.
    pub(crate) fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns why the other side cannot be reached, if so.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().as_ref().map(|down| down.reason.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_a_while_looks_whether_it_is_over() {
        let outage = Outage::default();
        let start = Instant::now();
        assert_eq!(outage.turn(start), Turn::Go);
        outage.begin("refused", start);
        assert_eq!(outage.turn(start), Turn::Refuse("refused".to_owned()));
        assert_eq!(outage.turn(start + FIRST_WAIT), Turn::Probe);
        assert_eq!(outage.turn(start + FIRST_WAIT), Turn::Refuse("refused".to_owned()));
        // Each failure makes the wait longer, up to a bound.
        let mut now = start;
        for _ in 0..20 {
            now += LAST_WAIT;
            outage.begin("refused", now);
        }
        assert_eq!(outage.turn(now + LAST_WAIT - FIRST_WAIT), Turn::Refuse("refused".to_owned()));
        assert_eq!(outage.turn(now + LAST_WAIT), Turn::Probe);
        outage.end();
        assert_eq!((outage.turn(now), outage.reason()), (Turn::Go, None));
    }
}
