//! How long a body is waited for that arrives piece by piece: without a byte, and on average.
//!
//! In: when nothing is there, and what arrived. Out: when to give up.
//!
//! Invariants
//! * Only the time counts in which somebody waits for the body. A reader that is busy meanwhile, such as a render that
//!   takes an upload slowly, is not held against the sender.
//! * A body that is there is never given up, however late it is looked at.

use std::num::NonZeroU64;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

type BodyTimeoutBoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a body must bring on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinReadRate {
    /// What it may be waited for beyond that, in all.
    pub grace_period: Duration,
    /// What it must bring for each further second.
    pub bytes_per_second: NonZeroU64,
}

impl MinReadRate {
    /// Returns how long so many bytes may be waited for.
    fn allowed_time(&self, bytes: u64) -> Duration {
        let rate = self.bytes_per_second.get();
        let rest = (bytes % rate).saturating_mul(1000) / rate;
        self.grace_period
            .saturating_add(Duration::from_secs(bytes / rate) + Duration::from_millis(rest))
    }
}

/// The peer sent no byte of the body for too long: answer 408 and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no byte of the body arrived for {} s", elapsed.as_secs())]
pub struct BodyIdleTimeout {
    /// How long the body was waited for.
    pub elapsed: Duration,
}

/// The body comes too slowly: answer 408 and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body brought only {received_bytes} bytes in {} s", elapsed.as_secs())]
pub struct BodyTooSlow {
    /// What arrived.
    pub received_bytes: u64,
    /// How long it was waited for.
    pub elapsed: Duration,
}

/// The waiting for one body.
#[derive(Debug)]
pub struct BodyReadTimeout {
    idle_timeout: Option<Duration>,
    min_read_rate: Option<MinReadRate>,
    received_bytes: u64,
    /// How long it was waited for until the last piece.
    waited_time: Duration,
    /// Since when nothing is there.
    waiting_since: Option<Instant>,
    // Made at the first wait only.
    deadline_timer: Option<Pin<Box<Sleep>>>,
}

impl BodyReadTimeout {
    /// Returns a wait that ends after so long a silence, if that is bounded.
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

    /// Ends after so long a silence from now on.
    pub fn set_idle_timeout(&mut self, silence: Duration) {
        self.idle_timeout = Some(silence);
    }

    /// Asks for a pace from now on, or for none.
    pub fn set_min_read_rate(&mut self, pace: Option<MinReadRate>) {
        self.min_read_rate = pace;
    }

    /// Notes that so many bytes are there.
    pub fn record_bytes(&mut self, bytes: u64) {
        if let Some(since) = self.waiting_since.take() {
            self.waited_time += since.elapsed();
        }
        self.received_bytes = self.received_bytes.saturating_add(bytes);
    }

    /// Notes that nothing is there; resolves with [`BodyIdleTimeout`] or [`BodyTooSlow`] when it was waited for long enough.
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
        let patience = match (self.idle_timeout, rest) {
            (Some(silence), Some(rest)) => silence.min(rest),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return self.deadline_timer = None,
        };
        // What does not fit into the clock is for ever.
        let Some(end) = now.checked_add(patience) else { return self.deadline_timer = None };
        match &mut self.deadline_timer {
            Some(alarm) => alarm.as_mut().reset(end),
            None => self.deadline_timer = Some(Box::pin(sleep_until(end))),
        }
    }
}
