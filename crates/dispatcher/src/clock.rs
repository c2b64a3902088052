//! The clock of the dispatcher, which is injected and made strictly increasing where order matters.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type ReadClockFn = dyn Fn() -> SystemTime + Send + Sync;

/// A clock; clones return the same time.
#[derive(Clone)]
pub struct DispatcherClock {
    read_time: Arc<ReadClockFn>,
    last_tick: Arc<AtomicU64>,
}

impl fmt::Debug for DispatcherClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DispatcherClock").finish_non_exhaustive()
    }
}

impl DispatcherClock {
    /// Returns a clock that reads the time from `read`.
    pub fn new(read: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self { read_time: Arc::new(read), last_tick: Arc::new(AtomicU64::new(0)) }
    }

    /// Returns the current time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        (self.read_time)()
    }

    /// Returns a time later than all times that this function returned before.
    ///
    /// Fetches and flushes take their times from here, so that the times of their files show their order even if the
    /// clock is set back in between.
    pub(crate) fn tick(&self) -> SystemTime {
        let since = self.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2);
        let next = |last: u64| Some(now.max(last + 1));
        let before =
            self.last_tick.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or(now);
        UNIX_EPOCH + Duration::from_nanos(now.max(before + 1))
    }
}
