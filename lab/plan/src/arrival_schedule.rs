//! The times at which requests are due in the open model.
//!
//! Invariants
//! * The schedule is a function of its parameters and its seed: a run can be repeated.
//! * The shares of all workers together are exactly the whole schedule.

use std::sync::Arc;
use std::time::Duration;

/// The distribution of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalProcess {
    /// At equal intervals.
    Uniform,
    /// Independent of each other, like visitors.
    Poisson,
}

/// A part of a schedule in which the rate changes linearly.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateInterval {
    /// Arrivals per second at the beginning.
    pub start_rate: f64,
    /// Arrivals per second at the end.
    pub end_rate: f64,
    /// Duration of the interval.
    pub duration: Duration,
}

impl RateInterval {
    /// Returns an interval with a constant rate.
    pub fn constant(rate: f64, duration: Duration) -> Self {
        Self { start_rate: rate, end_rate: rate, duration }
    }

    fn duration_seconds(&self) -> f64 {
        self.duration.as_secs_f64()
    }

    /// Returns the number of arrivals in the whole interval.
    fn arrival_count(&self) -> f64 {
        (self.start_rate + self.end_rate) / 2.0 * self.duration_seconds()
    }

    /// Returns the time in seconds until `count` arrivals have occurred.
    fn seconds_until_count(&self, count: f64) -> f64 {
        let slope = (self.end_rate - self.start_rate) / self.duration_seconds();
        if count <= 0.0 {
            return 0.0;
        }
        if slope == 0.0 {
            return count / self.start_rate;
        }
        // The root of slope / 2 * t^2 + from * t = count, in the form that is numerically stable for small slopes.
        let under = (self.start_rate * self.start_rate + 2.0 * slope * count).max(0.0).sqrt();
        2.0 * count / (self.start_rate + under)
    }
}

/// The arrivals of one worker, as times since the start.
#[derive(Debug, Clone)]
pub struct ArrivalSchedule {
    arrival_process: ArrivalProcess,
    rate_intervals: Arc<[RateInterval]>,
    share_index: u64,
    share_count: u64,
    seed: u64,
    arrival_index: u64,
    /// The number of past arrivals, on the clock of the arrival process.
    process_clock: f64,
    /// The interval of the last arrival, its start time, and the number of arrivals before it.
    interval_position: (usize, f64, f64),
}

impl ArrivalSchedule {
    /// Returns a schedule of `rate` per second until `end`.
    pub fn new(process: ArrivalProcess, rate: f64, end: Duration, seed: u64) -> Self {
        Self::from_intervals(process, &[RateInterval::constant(rate, end)], seed)
    }

    /// Returns a schedule with a varying rate; intervals without a valid rate have no arrivals.
    pub fn from_intervals(process: ArrivalProcess, stretches: &[RateInterval], seed: u64) -> Self {
        let is_sound = |rate: f64| rate.is_finite() && rate >= 0.0;
        let stretches = stretches.iter().map(|stretch| {
            let (from, to) = match is_sound(stretch.start_rate) && is_sound(stretch.end_rate) {
                true => (stretch.start_rate, stretch.end_rate),
                false => (0.0, 0.0),
            };
            RateInterval { start_rate: from, end_rate: to, duration: stretch.duration }
        });
        let stretches = stretches.collect();
        Self {
            arrival_process: process,
            rate_intervals: stretches,
            share_index: 0,
            share_count: 1,
            seed,
            arrival_index: 0,
            process_clock: 0.0,
            interval_position: (0, 0.0, 0.0),
        }
    }

    /// Returns the part of the schedule for one of `shares` workers.
    pub fn for_share(&self, share: usize, shares: usize) -> Self {
        Self { share_index: share as u64, share_count: shares.max(1) as u64, ..self.clone() }
    }

    /// Returns the mean number of arrivals per second of all shares.
    pub fn mean_rate(&self) -> f64 {
        let count: f64 = self.rate_intervals.iter().map(RateInterval::arrival_count).sum();
        let seconds = self.duration().as_secs_f64();
        if seconds > 0.0 { count / seconds } else { 0.0 }
    }

    /// Returns the end of the last interval.
    pub fn duration(&self) -> Duration {
        self.rate_intervals.iter().map(|stretch| stretch.duration).sum()
    }

    /// Returns the time of the next arrival; `None` after the last interval.
    fn next_arrival_seconds(&mut self) -> Option<f64> {
        self.process_clock = match self.arrival_process {
            // Computed from the index, so that rounding errors do not accumulate.
            ArrivalProcess::Uniform => self.arrival_index as f64,
            ArrivalProcess::Poisson => {
                self.process_clock - random_unit(self.seed, self.arrival_index).ln()
            }
        };
        self.arrival_index += 1;
        loop {
            let (number, start, before) = self.interval_position;
            let stretch = self.rate_intervals.get(number)?;
            let count = self.process_clock - before;
            if count < stretch.arrival_count() {
                return Some(start + stretch.seconds_until_count(count));
            }
            self.interval_position =
                (number + 1, start + stretch.duration_seconds(), before + stretch.arrival_count());
        }
    }
}

impl Iterator for ArrivalSchedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        loop {
            let is_own = self.arrival_index % self.share_count == self.share_index;
            let at = self.next_arrival_seconds()?;
            if is_own {
                return Duration::try_from_secs_f64(at).ok();
            }
        }
    }
}

/// Returns element `index` of the random sequence with this seed (SplitMix64).
pub fn random_number(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns element `index` of a random sequence between 0 (exclusive) and 1.
fn random_unit(seed: u64, index: u64) -> f64 {
    ((random_number(seed, index) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(schedule: ArrivalSchedule) -> Vec<Duration> {
        schedule.collect()
    }

    #[test]
    fn uniform_arrivals_have_equal_distances_and_the_wanted_count() {
        let times =
            all(ArrivalSchedule::new(ArrivalProcess::Uniform, 1000.0, Duration::from_secs(10), 0));
        assert_eq!(times.len(), 10_000);
        assert_eq!(times[0], Duration::ZERO);
        assert_eq!(times[9_999], Duration::from_millis(9_999));
    }

    #[test]
    fn poisson_arrivals_have_the_wanted_rate_and_spread() {
        let times =
            all(ArrivalSchedule::new(ArrivalProcess::Poisson, 1000.0, Duration::from_secs(100), 7));
        assert!((times.len() as f64 - 100_000.0).abs() < 2_000.0, "{}", times.len());
        let gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation =
            (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.02, "an exponential's deviation is its mean");
        assert_eq!(
            times,
            all(ArrivalSchedule::new(ArrivalProcess::Poisson, 1000.0, Duration::from_secs(100), 7))
        );
    }

    #[test]
    fn shares_are_together_the_whole() {
        for process in [ArrivalProcess::Uniform, ArrivalProcess::Poisson] {
            let whole = ArrivalSchedule::new(process, 333.0, Duration::from_secs(3), 5);
            let mut union: Vec<_> = (0..4).flat_map(|share| whole.for_share(share, 4)).collect();
            union.sort_unstable();
            assert_eq!(union, all(whole));
        }
    }

    #[test]
    fn a_ramp_has_the_arrivals_of_its_mean_rate() {
        let second = Duration::from_secs(1);
        let ramp = RateInterval { start_rate: 0.0, end_rate: 100.0, duration: 10 * second };
        let hold = RateInterval::constant(100.0, 10 * second);
        let fall = RateInterval { start_rate: 100.0, end_rate: 0.0, duration: 10 * second };
        let schedule =
            ArrivalSchedule::from_intervals(ArrivalProcess::Uniform, &[ramp, hold, fall], 1);
        assert_eq!((schedule.mean_rate(), schedule.duration()), (2000.0 / 30.0, 30 * second));
        let times = all(schedule);
        let between = |from: u32, to: u32| {
            let span = second * from..second * to;
            times.iter().filter(|at| span.contains(*at)).count()
        };
        assert_eq!([between(0, 10), between(10, 20), between(20, 30)], [500, 1000, 500]);
        // Half of a ramp's time has a quarter of its arrivals.
        assert_eq!([between(0, 5), between(25, 30)], [125, 125]);
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn a_rate_that_is_no_rate_has_no_arrivals() {
        for rate in [0.0, f64::NAN] {
            assert_eq!(
                all(ArrivalSchedule::new(ArrivalProcess::Poisson, rate, Duration::from_secs(1), 1))
                    .len(),
                0
            );
        }
    }
}
