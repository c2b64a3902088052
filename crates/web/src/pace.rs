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

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a body must bring on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// What it may be waited for beyond that, in all.
    pub grace: Duration,
    /// What it must bring for each further second.
    pub bytes_per_second: NonZeroU64,
}

impl Pace {
    /// Returns how long so many bytes may be waited for.
    fn allows(&self, bytes: u64) -> Duration {
        let rate = self.bytes_per_second.get();
        let rest = (bytes % rate).saturating_mul(1000) / rate;
        self.grace.saturating_add(Duration::from_secs(bytes / rate) + Duration::from_millis(rest))
    }
}

/// The peer sent no byte of the body for too long: answer 408 and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no byte of the body arrived for {} s", after.as_secs())]
pub struct Stalled {
    /// How long the body was waited for.
    pub after: Duration,
}

/// The body comes too slowly: answer 408 and close.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body brought only {bytes} bytes in {} s", after.as_secs())]
pub struct TooSlow {
    /// What arrived.
    pub bytes: u64,
    /// How long it was waited for.
    pub after: Duration,
}

/// The waiting for one body.
#[derive(Debug)]
pub struct Wait {
    silence: Option<Duration>,
    pace: Option<Pace>,
    bytes: u64,
    /// How long it was waited for until the last piece.
    waited: Duration,
    /// Since when nothing is there.
    since: Option<Instant>,
    // Made at the first wait only.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Wait {
    /// Returns a wait that ends after so long a silence, if that is bounded.
    #[must_use]
    pub fn new(silence: Option<Duration>) -> Self {
        Self { silence, pace: None, bytes: 0, waited: Duration::ZERO, since: None, alarm: None }
    }

    /// Ends after so long a silence from now on.
    pub fn set_silence(&mut self, silence: Duration) {
        self.silence = Some(silence);
    }

    /// Asks for a pace from now on, or for none.
    pub fn set_pace(&mut self, pace: Option<Pace>) {
        self.pace = pace;
    }

    /// Notes that so many bytes are there.
    pub fn arrive(&mut self, bytes: u64) {
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Notes that nothing is there; resolves with [`Stalled`] or [`TooSlow`] when it was waited for long enough.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<BoxError> {
        if self.since.is_none() {
            let now = Instant::now();
            self.since = Some(now);
            self.set_alarm(now);
        }
        let Some(alarm) = &mut self.alarm else { return Poll::Pending };
        std::task::ready!(alarm.as_mut().poll(cx));
        let silent = self.since.map(|since| since.elapsed()).unwrap_or_default();
        Poll::Ready(match self.silence {
            Some(after) if silent >= after => Stalled { after }.into(),
            _ => TooSlow { bytes: self.bytes, after: self.waited + silent }.into(),
        })
    }

    fn set_alarm(&mut self, now: Instant) {
        let rest = self.pace.map(|pace| pace.allows(self.bytes).saturating_sub(self.waited));
        let patience = match (self.silence, rest) {
            (Some(silence), Some(rest)) => silence.min(rest),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return self.alarm = None,
        };
        // What does not fit into the clock is for ever.
        let Some(end) = now.checked_add(patience) else { return self.alarm = None };
        match &mut self.alarm {
            Some(alarm) => alarm.as_mut().reset(end),
            None => self.alarm = Some(Box::pin(sleep_until(end))),
        }
    }
}
