//! Timers that start the samples of many threads by one schedule: precise throughput, throughput shaping.
//!
//! Invariants
//! * Every start time is assigned to one thread. If several processes share a load, start time `i` goes to process `i
//!   mod N`.
//! * A precise schedule has exactly the specified number of start times in each of its periods, at random times.

use std::time::Duration;

use crate::arrival_schedule::{ArrivalProcess, ArrivalSchedule, RateInterval, random_number};
use crate::load_portion::LoadPortion;

/// Maximum number of start times that are prepared at once; longer periods are prepared in parts.
const MAX_PREPARED_SAMPLES: f64 = 100_000.0;

/// A schedule and the position in it.
#[derive(Debug)]
pub struct SamplePacer {
    schedule: PacerSchedule,
    portion: LoadPortion,
    /// Number of start times passed, including those of other processes.
    position: u64,
}

#[derive(Debug)]
enum PacerSchedule {
    Exact(ExactThroughputSchedule),
    Shaped(ArrivalSchedule),
}

/// Random start times, an exact number of them in each interval.
#[derive(Debug)]
struct ExactThroughputSchedule {
    /// Number of batches per interval.
    rate: f64,
    interval: Duration,
    seed: u64,
    /// Number of samples per batch, and the delay between them.
    batch: (u64, Duration),
    /// Number of intervals begun.
    interval_count: u64,
    /// Number of random numbers used.
    random_count: u64,
    /// Remaining times of the current interval, the last first.
    remaining: Vec<Duration>,
    /// The current batch, and the number of its samples already started.
    current_batch: Option<(Duration, u64)>,
}

impl SamplePacer {
    /// Returns a schedule of `count` samples in each `period`, repeated, in batches of `batch`.
    pub fn with_exact_throughput(
        count: f64,
        period: Duration,
        batch: (u64, Duration),
        seed: u64,
        portion: LoadPortion,
    ) -> Option<Self> {
        let batch = (batch.0.max(1), batch.1);
        let count = count / batch.0 as f64;
        if !(count.is_finite() && count > 0.0) || period.is_zero() {
            return None;
        }
        let pieces = (count / MAX_PREPARED_SAMPLES).ceil().max(1.0);
        let exact = ExactThroughputSchedule {
            rate: count / pieces,
            interval: period.div_f64(pieces),
            seed,
            batch,
            interval_count: 0,
            random_count: 0,
            remaining: Vec::new(),
            current_batch: None,
        };
        (!exact.interval.is_zero()).then_some(Self {
            schedule: PacerSchedule::Exact(exact),
            portion,
            position: 0,
        })
    }

    /// Returns a finite schedule with a varying rate.
    pub fn with_rate_intervals(stretches: &[RateInterval], portion: LoadPortion) -> Self {
        let schedule = ArrivalSchedule::from_intervals(ArrivalProcess::Uniform, stretches, 0);
        Self { schedule: PacerSchedule::Shaped(schedule), portion, position: 0 }
    }

    /// Returns the next start time, relative to the start of the run; `None` if none is left.
    pub fn next_start(&mut self) -> Option<Duration> {
        loop {
            let start_time = match &mut self.schedule {
                PacerSchedule::Exact(exact) => exact.next(),
                PacerSchedule::Shaped(schedule) => schedule.next()?,
            };
            self.position += 1;
            if self.portion.contains(self.position - 1) {
                return Some(start_time);
            }
        }
    }
}

impl ExactThroughputSchedule {
    fn next(&mut self) -> Duration {
        if let Some((start_time, count)) =
            self.current_batch.filter(|(_, count)| *count < self.batch.0)
        {
            self.current_batch = Some((start_time, count + 1));
            return start_time
                + self.batch.1.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        }
        while self.remaining.is_empty() {
            self.prepare_interval();
        }
        let start_time = self.remaining.pop().unwrap_or_default();
        self.current_batch = Some((start_time, 1));
        start_time
    }

    /// Generates the start times of the next interval.
    fn prepare_interval(&mut self) {
        let until = |pieces: u64| (self.rate * pieces as f64).floor();
        // Fractional samples accumulate for a later interval.
        let count = (until(self.interval_count + 1) - until(self.interval_count)) as u64;
        let start = self.interval.mul_f64(self.interval_count as f64);
        self.remaining = (0..count)
            .map(|number| {
                let share = random_number(self.seed, self.random_count + number) >> 11;
                start + self.interval.mul_f64(share as f64 / (1u64 << 53) as f64)
            })
            .collect();
        self.remaining.sort_unstable_by(|left, right| right.cmp(left));
        self.random_count += count;
        self.interval_count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(pacer: &mut SamplePacer, count: usize) -> Vec<Duration> {
        (0..count).map(|_| pacer.next_start().unwrap()).collect()
    }

    fn precise(count: f64, batch: u64, portion: LoadPortion) -> SamplePacer {
        let batch = (batch, Duration::from_millis(1));
        SamplePacer::with_exact_throughput(count, Duration::from_secs(60), batch, 7, portion)
            .unwrap()
    }

    #[test]
    fn a_precise_pace_has_its_number_in_every_period() {
        let mut pacer = precise(90.0, 1, LoadPortion::default());
        let all = moments(&mut pacer, 270);
        assert!(all.is_sorted());
        for minute in 0..3u64 {
            let within =
                all.iter().filter(|start_time| start_time.as_secs() / 60 == minute).count();
            assert_eq!(within, 90, "minute {minute}");
        }
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        assert!(gaps.iter().any(|gap| *gap < 0.1) && gaps.iter().any(|gap| *gap > 1.5));
        // A third of a sample per minute is one sample in three minutes.
        let mut rare = precise(1.0 / 3.0, 1, LoadPortion::default());
        let rare: Vec<u64> =
            moments(&mut rare, 3).iter().map(|start_time| start_time.as_secs() / 180).collect();
        assert_eq!(rare, [0, 1, 2]);
    }

    #[test]
    fn a_batch_begins_together() {
        let all = moments(&mut precise(60.0, 5, LoadPortion::default()), 60);
        for batch in all.chunks(5) {
            assert_eq!(batch[4] - batch[0], Duration::from_millis(4));
        }
        assert_eq!(all.iter().filter(|start_time| start_time.as_secs() < 60).count(), 60);
    }

    #[test]
    fn many_moments_are_prepared_in_pieces() {
        let mut pacer = precise(250_000.0, 1, LoadPortion::default());
        let all = moments(&mut pacer, 250_000);
        assert!(all.last().unwrap().as_secs_f64() <= 60.0 && all.is_sorted());
        assert!(pacer.next_start().unwrap() >= *all.last().unwrap());
    }

    #[test]
    fn processes_share_one_schedule() {
        let mut whole = moments(&mut precise(60.0, 1, LoadPortion::default()), 60);
        let mut parts: Vec<Duration> = (0..3)
            .flat_map(|index| moments(&mut precise(60.0, 1, LoadPortion { index, count: 3 }), 20))
            .collect();
        parts.sort_unstable();
        whole.sort_unstable();
        assert_eq!(parts, whole);
    }

    #[test]
    fn a_shaped_pace_follows_its_rows_and_ends() {
        let seconds = Duration::from_secs;
        let rows = [
            RateInterval { start_rate: 0.0, end_rate: 10.0, duration: seconds(4) },
            RateInterval::constant(10.0, seconds(2)),
        ];
        let mut pacer = SamplePacer::with_rate_intervals(&rows, LoadPortion::default());
        let all: Vec<Duration> = std::iter::from_fn(|| pacer.next_start()).collect();
        let before = |second: u64| all.iter().filter(|time| **time < seconds(second)).count();
        assert_eq!((before(2), before(4), before(6)), (5, 20, 40));
        assert!(
            SamplePacer::with_exact_throughput(
                0.0,
                seconds(1),
                (1, seconds(0)),
                0,
                LoadPortion::default()
            )
            .is_none()
        );
    }
}
