//! The requests of the last hour by minute, with a histogram of their durations: for rates, percentiles and the classes
//! of page times.
//!
//! Invariants
//! * Memory is constant: one slot for each minute of an hour.
//! * Recording takes no lock. Requests that end while a slot begins a new minute may be lost, which no figure shows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of minutes that are kept.
const MINUTE_COUNT: usize = 60;
/// Number of buckets of durations.
const BUCKET_COUNT: usize = 64;
/// Upper bound of the first bucket in seconds; each further one is longer by [`BUCKET_GROWTH`], the last one is 61 s.
const FIRST_BOUND_SECONDS: f64 = 0.0002;
const BUCKET_GROWTH: f64 = 1.222;
/// Upper bounds of the classes of page times in milliseconds, as AEM's performance guide sets them; slower pages are in
/// one more class.
pub(crate) const PAGE_CLASS_BOUNDS_MS: [u64; 4] = [100, 300, 500, 1000];
/// Number of classes of page times.
pub(crate) const PAGE_CLASS_COUNT: usize = PAGE_CLASS_BOUNDS_MS.len() + 1;

/// The requests of one minute.
#[derive(Debug)]
struct MinuteSlot {
    /// Minutes since 1970; 0 while unused.
    minute: AtomicU64,
    errors: AtomicU32,
    buckets: [AtomicU32; BUCKET_COUNT],
    page_classes: [AtomicU32; PAGE_CLASS_COUNT],
}

impl Default for MinuteSlot {
    fn default() -> Self {
        Self {
            minute: AtomicU64::new(0),
            errors: AtomicU32::new(0),
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
            page_classes: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl MinuteSlot {
    /// Empties the slot for a minute, unless another thread does so.
    fn begin_minute(&self, minute: u64) {
        let before = self.minute.load(Ordering::Acquire);
        if before == minute {
            return;
        }
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if self.minute.compare_exchange(before, minute, order.0, order.1).is_ok() {
            let counts = self.buckets.iter().chain(&self.page_classes).chain([&self.errors]);
            counts.for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }
}

/// A completed request, as the history counts it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOutcome {
    pub(crate) elapsed: Duration,
    pub(crate) is_server_error: bool,
    /// True if the response is a page of HTML.
    pub(crate) is_page: bool,
}

/// The requests of the last hour.
#[derive(Debug)]
pub(crate) struct RequestHistory(Box<[MinuteSlot; MINUTE_COUNT]>);

impl Default for RequestHistory {
    fn default() -> Self {
        Self(Box::new(std::array::from_fn(|_| MinuteSlot::default())))
    }
}

/// The figures of one minute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MinuteReport {
    /// The start of the minute.
    pub(crate) start: SystemTime,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
}

/// The figures of the last hour.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestHistoryReport {
    /// The minutes, oldest first, also those without requests; the last one is not over.
    pub(crate) minutes: Vec<MinuteReport>,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Percentiles in milliseconds: 50, 90, 95, 99.
    pub(crate) percentiles_ms: [f64; 4],
    /// The number of pages in each class.
    pub(crate) page_classes: [u64; PAGE_CLASS_COUNT],
}

impl RequestHistory {
    /// Counts a request that ended at `now`.
    pub(crate) fn record_request(&self, outcome: RequestOutcome, now: SystemTime) {
        let minute = minute_of(now);
        let Some(slot) = self.slot(minute) else { return };
        slot.begin_minute(minute);
        if let Some(count) = slot.buckets.get(bucket_of(outcome.elapsed)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if outcome.is_server_error {
            slot.errors.fetch_add(1, Ordering::Relaxed);
        } else if outcome.is_page {
            let millis = outcome.elapsed.as_secs_f64() * 1000.0;
            #[expect(clippy::cast_precision_loss, reason = "the bounds are small")]
            let class = PAGE_CLASS_BOUNDS_MS.partition_point(|bound| *bound as f64 <= millis);
            if let Some(count) = slot.page_classes.get(class) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn slot(&self, minute: u64) -> Option<&MinuteSlot> {
        self.0.get(usize::try_from(minute).ok()? % MINUTE_COUNT)
    }

    /// Returns the figures of the hour that ends at `now`.
    pub(crate) fn report(&self, now: SystemTime) -> RequestHistoryReport {
        let last = minute_of(now);
        let first = last.saturating_sub(MINUTE_COUNT as u64 - 1);
        let (mut all, mut classes, mut errors) = ([0; BUCKET_COUNT], [0; PAGE_CLASS_COUNT], 0);
        let mut minutes = Vec::new();
        for minute in first..=last {
            let slot = self.slot(minute);
            let slot = slot.filter(|slot| slot.minute.load(Ordering::Acquire) == minute);
            let read = |count: &AtomicU32| u64::from(count.load(Ordering::Relaxed));
            let mut own = [0; BUCKET_COUNT];
            let mut own_errors = 0;
            if let Some(slot) = slot {
                own_errors = read(&slot.errors);
                for (sum, count) in own.iter_mut().zip(&slot.buckets) {
                    *sum = read(count);
                }
                for (sum, count) in classes.iter_mut().zip(&slot.page_classes) {
                    *sum += read(count);
                }
            }
            all.iter_mut().zip(own).for_each(|(sum, count)| *sum += count);
            errors += own_errors;
            minutes.push(MinuteReport {
                start: UNIX_EPOCH + Duration::from_secs(minute * 60),
                requests: own.iter().sum(),
                errors: own_errors,
                p50_ms: percentile_ms(&own, 0.5),
                p95_ms: percentile_ms(&own, 0.95),
            });
        }
        RequestHistoryReport {
            minutes,
            requests: all.iter().sum(),
            errors,
            percentiles_ms: [0.5, 0.9, 0.95, 0.99].map(|part| percentile_ms(&all, part)),
            page_classes: classes,
        }
    }
}

fn minute_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60
}

fn bucket_of(elapsed: Duration) -> usize {
    let seconds = elapsed.as_secs_f64();
    if seconds <= FIRST_BOUND_SECONDS {
        return 0;
    }
    let number = ((seconds / FIRST_BOUND_SECONDS).ln() / BUCKET_GROWTH.ln()).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is positive, and longer durations are in the last bucket"
    )]
    let number = number as usize;
    number.min(BUCKET_COUNT - 1)
}

/// Returns the upper bound of the bucket that contains a percentile, in milliseconds: at most 23 % too long. 0 without
/// requests.
fn percentile_ms(buckets: &[u64; BUCKET_COUNT], part: f64) -> f64 {
    let total: u64 = buckets.iter().sum();
    if total == 0 {
        return 0.0;
    }
    #[expect(clippy::cast_precision_loss, reason = "a count of requests of an hour")]
    let wanted = (total as f64 * part).ceil();
    let mut sum = 0.0;
    for (number, count) in (0_i32..).zip(buckets) {
        #[expect(clippy::cast_precision_loss, reason = "a count of requests of an hour")]
        let count = *count as f64;
        sum += count;
        if sum >= wanted {
            return FIRST_BOUND_SECONDS * BUCKET_GROWTH.powi(number) * 1000.0;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_790_000_000);

    fn record(history: &RequestHistory, millis: u64, at: Duration) {
        let outcome = RequestOutcome {
            elapsed: Duration::from_millis(millis),
            is_server_error: false,
            is_page: true,
        };
        history.record_request(outcome, UNIX_EPOCH + at);
    }

    #[test]
    fn pages_are_counted_by_the_classes_of_the_guide() {
        let history = RequestHistory::default();
        for millis in [0, 99, 100, 299, 300, 499, 500, 999, 1000, 90_000] {
            record(&history, millis, NOW);
        }
        let report = history.report(UNIX_EPOCH + NOW);
        assert_eq!(report.page_classes, [2, 2, 2, 2, 2]);
        assert_eq!((report.requests, report.errors), (10, 0));
    }

    #[test]
    fn percentiles_are_near_the_truth() {
        let history = RequestHistory::default();
        for millis in 1..=1000 {
            record(&history, millis, NOW);
        }
        let report = history.report(UNIX_EPOCH + NOW);
        for (found, exact) in report.percentiles_ms.into_iter().zip([500.0, 900.0, 950.0, 990.0]) {
            assert!(found >= exact && found <= exact * 1.23, "{found} for {exact}");
        }
    }

    #[test]
    fn requests_leave_the_report_after_an_hour() {
        let history = RequestHistory::default();
        record(&history, 1, NOW);
        let later = |minutes: u64| NOW + Duration::from_secs(minutes * 60);
        record(&history, 1, later(59));
        let report = history.report(UNIX_EPOCH + later(59));
        assert_eq!((report.requests, report.minutes.len()), (2, MINUTE_COUNT));
        assert_eq!((report.minutes[0].requests, report.minutes[59].requests), (1, 1));
        assert_eq!(history.report(UNIX_EPOCH + later(60)).requests, 1);
        // A slot is used again for another minute.
        record(&history, 1, later(60));
        assert_eq!(history.report(UNIX_EPOCH + later(60)).requests, 2);
        assert_eq!(history.report(UNIX_EPOCH + later(600)).requests, 0);
    }
}
