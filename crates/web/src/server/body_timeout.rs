//! Timeouts for a body that arrives in pieces: a limit on the time without data, and a minimum average rate.
//!
//! In: the times at which no data is available, and the number of bytes received. Out: the time at which to give up.
//!
//! Invariants
//! * Only the time during which a reader waits for the body counts. Time in which the reader is busy, such as a render
//!   that accepts an upload slowly, does not count against the sender.
//! * Data that has arrived never times out, however late it is polled.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

type BodyTimeoutBoxError = Box<dyn std::error::Error + Send + Sync>;

/// Minimum average rate of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinReadRate {
    /// Total waiting time allowed in addition to the rate.
    pub grace_period: Duration,
    /// Minimum number of bytes for each further second.
    pub bytes_per_second: NonZeroU64,
}

impl MinReadRate {
    /// Returns the allowed waiting time for a number of bytes.
    fn allowed_time(&self, bytes: u64) -> Duration {
        let rate = self.bytes_per_second.get();
        let rest = (bytes % rate).saturating_mul(1000) / rate;
        self.grace_period
            .saturating_add(Duration::from_secs(bytes / rate) + Duration::from_millis(rest))
    }
}

/// The peer sent no data of the body for too long; the response is 408, and the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no bytes of the body arrived for {} s", elapsed.as_secs())]
pub struct BodyIdleTimeout {
    /// The time spent waiting for the body.
    pub elapsed: Duration,
}

/// The body arrives too slowly; the response is 408, and the connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("only {received_bytes} bytes of the body arrived in {} s", elapsed.as_secs())]
pub struct BodyTooSlow {
    /// Number of bytes received.
    pub received_bytes: u64,
    /// The time spent waiting for the body.
    pub elapsed: Duration,
}

/// The timeout state of one body.
#[derive(Debug)]
pub struct BodyReadTimeout {
    idle_timeout: Option<Duration>,
    min_read_rate: Option<MinReadRate>,
    received_bytes: u64,
    /// Total waiting time until the last piece.
    waited_time: Duration,
    /// Start of the current wait.
    waiting_since: Option<Instant>,
    // Created at the first wait only.
    deadline_timer: Option<Pin<Box<Sleep>>>,
}

impl BodyReadTimeout {
    /// Creates a timeout with a limit on the time without data, if given.
    #[must_use]
    pub fn new(silence: Option<Duration>) -> Self {
        Self {
            idle_timeout: silence,
            min_read_rate: None,
            received_bytes: 0,
            waited_time: Duration::ZERO,
            waiting_since: None,
            deadline_timer: None,
        }
    }

    /// Sets the limit on the time without data.
    pub fn set_idle_timeout(&mut self, silence: Duration) {
        self.idle_timeout = Some(silence);
    }

    /// Sets or removes the minimum rate.
    pub fn set_min_read_rate(&mut self, pace: Option<MinReadRate>) {
        self.min_read_rate = pace;
    }

    /// Records received bytes.
    pub fn record_bytes(&mut self, bytes: u64) {
        if let Some(since) = self.waiting_since.take() {
            self.waited_time += since.elapsed();
        }
        self.received_bytes = self.received_bytes.saturating_add(bytes);
    }

    /// Records that no data is available; resolves with [`BodyIdleTimeout`] or [`BodyTooSlow`] when the timeout is
    /// reached.
    pub fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<BodyTimeoutBoxError> {
        if self.waiting_since.is_none() {
            let now = Instant::now();
            self.waiting_since = Some(now);
            self.set_deadline(now);
        }
        let Some(alarm) = &mut self.deadline_timer else { return Poll::Pending };
        std::task::ready!(alarm.as_mut().poll(cx));
        let silent = self.waiting_since.map(|since| since.elapsed()).unwrap_or_default();
        Poll::Ready(match self.idle_timeout {
            Some(after) if silent >= after => BodyIdleTimeout { elapsed: after }.into(),
            _ => BodyTooSlow {
                received_bytes: self.received_bytes,
                elapsed: self.waited_time + silent,
            }
            .into(),
        })
    }

    fn set_deadline(&mut self, now: Instant) {
        let rest = self
            .min_read_rate
            .map(|pace| pace.allowed_time(self.received_bytes).saturating_sub(self.waited_time));
        let timeout = match (self.idle_timeout, rest) {
            (Some(silence), Some(rest)) => silence.min(rest),
            (Some(limit), None) | (None, Some(limit)) => limit,
            (None, None) => return self.deadline_timer = None,
        };
        // A deadline beyond the range of the clock means no timeout.
        let Some(end) = now.checked_add(timeout) else { return self.deadline_timer = None };
        match &mut self.deadline_timer {
            Some(alarm) => alarm.as_mut().reset(end),
            None => self.deadline_timer = Some(Box::pin(sleep_until(end))),
        }
    }
}
