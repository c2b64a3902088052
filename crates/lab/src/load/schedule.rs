//! When requests are due in the open model.
//!
//! Invariants
//! * The schedule is a function of its parameters and its seed: a run can be repeated.
//! * The shares of all workers together are exactly the whole schedule.

use std::time::Duration;

/// How arrivals follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Process {
    /// At equal distances.
    Uniform,
    /// Independently of each other, as visitors come.
    Poisson,
}

/// The arrivals of one worker, as times since the start.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    process: Process,
    rate: f64,
    end: Duration,
    share: u64,
    shares: u64,
    seed: u64,
    index: u64,
    at: f64,
}

impl Schedule {
    /// Returns the arrivals `share`, `share + shares`, ... of a schedule of `rate` per second until `end`.
    pub(crate) fn new(process: Process, rate: f64, end: Duration, seed: u64) -> Self {
        Self { process, rate, end, share: 0, shares: 1, seed, index: 0, at: 0.0 }
    }

    /// Returns the part of the schedule that falls to one of `shares` workers.
    pub(crate) fn share(&self, share: usize, shares: usize) -> Self {
        Self { share: share as u64, shares: shares.max(1) as u64, ..self.clone() }
    }

    /// Returns the arrivals per second of all shares.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    fn following(&mut self) -> f64 {
        let at = match self.process {
            // From the count, so that rounding does not add up.
            Process::Uniform => self.index as f64 / self.rate,
            Process::Poisson => {
                self.at += -unit(self.seed, self.index).ln() / self.rate;
                self.at
            }
        };
        self.index += 1;
        at
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        loop {
            let mine = self.index % self.shares == self.share;
            let at = self.following();
            if !at.is_finite() || at >= self.end.as_secs_f64() {
                return None;
            }
            if mine {
                return Some(Duration::from_secs_f64(at));
            }
        }
    }
}

/// Returns the number `index` of a sequence that `seed` chooses (SplitMix64).
pub(crate) fn random(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the number `index` of a sequence between 0 (never) and 1.
fn unit(seed: u64, index: u64) -> f64 {
    ((random(seed, index) >> 11) as f64 + 1.0) / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(schedule: Schedule) -> Vec<Duration> {
        schedule.collect()
    }

    #[test]
    fn uniform_arrivals_have_equal_distances_and_the_wanted_count() {
        let times = all(Schedule::new(Process::Uniform, 1000.0, Duration::from_secs(10), 0));
        assert_eq!(times.len(), 10_000);
        assert_eq!(times[0], Duration::ZERO);
        assert_eq!(times[9_999], Duration::from_millis(9_999));
    }

    #[test]
    fn poisson_arrivals_have_the_wanted_rate_and_spread() {
        let times = all(Schedule::new(Process::Poisson, 1000.0, Duration::from_secs(100), 7));
        assert!((times.len() as f64 - 100_000.0).abs() < 2_000.0, "{}", times.len());
        let gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation =
            (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.02, "an exponential's deviation is its mean");
        assert_eq!(
            times,
            all(Schedule::new(Process::Poisson, 1000.0, Duration::from_secs(100), 7))
        );
    }

    #[test]
    fn shares_are_together_the_whole() {
        for process in [Process::Uniform, Process::Poisson] {
            let whole = Schedule::new(process, 333.0, Duration::from_secs(3), 5);
            let mut union: Vec<_> = (0..4).flat_map(|share| whole.share(share, 4)).collect();
            union.sort_unstable();
            assert_eq!(union, all(whole));
        }
    }

    #[test]
    fn a_rate_that_is_no_rate_has_no_arrivals() {
        for rate in [0.0, f64::NAN] {
            assert_eq!(
                all(Schedule::new(Process::Poisson, rate, Duration::from_secs(1), 1)).len(),
                0
            );
        }
    }
}
