//! The progress of a run, and the limits on what it reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::rate_pacer::{RateLimit, RatePacer};
use crate::throttle_controller::{RunThrottle, WorkGuard};

/// Limits on reading a source, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceReadLimits {
    /// The limit in bytes.
    pub bytes: Option<RateLimit>,
    /// The limit in reads, each of a file, a piece of a long one, or several chunks together.
    pub calls: Option<RateLimit>,
}

/// Maximum time of one sleep, so that a stop request is noticed soon.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The progress of a run; other threads may read it and stop the run.
#[derive(Debug, Default)]
pub struct BackupProgress {
    /// The number of finished files and other items.
    pub items: AtomicU64,
    /// The number of items that had to be read.
    pub read_items: AtomicU64,
    /// The number of finished bytes, read or not.
    pub bytes: AtomicU64,
    /// The number of source bytes read.
    pub read_bytes: AtomicU64,
    /// The number of read calls.
    pub reads: AtomicU64,
    /// The expected number of items, if known.
    pub expected_items: AtomicU64,
    /// The expected number of bytes, if known.
    pub expected_bytes: AtomicU64,
    is_stopped: AtomicBool,
    throttle: OnceLock<Arc<RunThrottle>>,
    /// The pacers of source reads: by bytes, and by calls.
    read_pacers: OnceLock<[Option<Mutex<RatePacer>>; 2]>,
}

impl BackupProgress {
    /// Requests the run to stop soon.
    pub fn request_stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Sets the throttle of the run; only the first call has an effect.
    pub fn set_throttle(&self, throttle: Arc<RunThrottle>) {
        // A second throttle would belong to another user: the first stays.
        self.throttle.set(throttle).ok();
    }

    /// Limits the read rate of the source from now on; only the first call has an effect.
    pub fn set_read_limits(&self, limits: SourceReadLimits) {
        let pace = |rate: Option<RateLimit>| rate.map(|rate| Mutex::new(RatePacer::new(rate)));
        // As in `set_throttle`.
        self.read_pacers.set([pace(limits.bytes), pace(limits.calls)]).ok();
    }

    /// Records that one call read some bytes of the source; waits until the limits allow it, or the run is to stop.
    pub(crate) fn record_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
        if let Some(until) = self.reserve_read(bytes, Instant::now()) {
            while let Some(left) = until.checked_duration_since(Instant::now())
                && !self.is_stopped.load(Ordering::Relaxed)
            {
                std::thread::sleep(left.min(MAX_SLEEP));
            }
        }
    }

    /// Takes a read of some bytes from the budgets; returns when the limits allow to continue.
    fn reserve_read(&self, bytes: u64, now: Instant) -> Option<Instant> {
        let [by_bytes, by_calls] = self.read_pacers.get()?;
        let take = |pace: &Option<Mutex<RatePacer>>, amount| {
            let mut pace = pace.as_ref()?.lock();
            pace.reserve(amount, now);
            pace.available_at
        };
        take(by_bytes, bytes).max(take(by_calls, 1)).filter(|at| *at > now)
    }

    /// Returns an error if the run was asked to stop; waits while it is throttled.
    pub(crate) fn check_running(&self) -> Result<()> {
        if let Some(throttle) = self.throttle.get() {
            throttle.pause_if_due(&self.is_stopped);
        }
        if self.is_stopped.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Like [`BackupProgress::check_running`], at the start of some work: this thread counts as waiting once the guard
    /// is dropped, until it begins more work.
    pub(crate) fn begin_work(&self) -> Result<WorkGuard> {
        self.check_running()?;
        Ok(WorkGuard)
    }

    pub(crate) fn add_done(&self, items: u64, bytes: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_source_is_read_no_faster_than_both_limits_allow() {
        let rate = |number| NonZeroU64::new(number).map(RateLimit);
        let begin = Instant::now();
        for (bytes, calls, least_ms) in [
            (rate(1_000), None, 10_000),
            (None, rate(5), 800),
            (rate(1_000), rate(5), 10_000),
            (rate(1 << 40), rate(5), 800),
        ] {
            let progress = BackupProgress::default();
            progress.set_read_limits(SourceReadLimits { bytes, calls });
            let mut now = begin;
            for _ in 0..4 {
                now = progress.reserve_read(2_500, now).unwrap_or(now);
            }
            let expected = begin + Duration::from_millis(least_ms);
            assert_eq!(now, expected, "{bytes:?} {calls:?}");
        }
        assert_eq!(BackupProgress::default().reserve_read(1 << 40, begin), None);
    }

    /// The limits require waiting for an hour; a run that is to stop does not wait.
    #[test]
    fn who_is_to_stop_does_not_wait_for_a_limit() {
        let progress = BackupProgress::default();
        progress.set_read_limits(SourceReadLimits {
            bytes: NonZeroU64::new(1).map(RateLimit),
            calls: None,
        });
        progress.request_stop();
        progress.record_read(3_600);
        assert_eq!(progress.read_bytes.load(Ordering::Relaxed), 3_600);
        assert_eq!(progress.reads.load(Ordering::Relaxed), 1);
    }
}
