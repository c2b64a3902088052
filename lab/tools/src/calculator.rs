//! The arithmetic of a performance plan, such as the hand calculations that accompany a load test.

use std::fmt;
use std::time::Duration;

/// The share of a site's requests that a cache served.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheHitRatio {
    /// Total number of requests.
    pub total_requests: u64,
    /// Requests that reached the publisher.
    pub publisher_requests: u64,
}

impl CacheHitRatio {
    /// Returns the share that the cache served: (total - reached) / total.
    #[must_use]
    pub fn hit_share(&self) -> f64 {
        if self.total_requests == 0 {
            return 0.0;
        }
        (self.total_requests as f64 - self.publisher_requests as f64) / self.total_requests as f64
    }
}

impl fmt::Display for CacheHitRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "({} - {}) / {} = {:.1} %",
            self.total_requests,
            self.publisher_requests,
            self.total_requests,
            self.hit_share() * 100.0
        )
    }
}

/// Load from visitors who each send requests at intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VisitorLoad {
    /// Number of visitors.
    pub user_count: u64,
    /// Time between two requests of one visitor.
    pub request_interval: Duration,
    /// Duration of a response.
    pub response_time: Duration,
}

impl VisitorLoad {
    /// Returns arrivals per second.
    #[must_use]
    pub fn arrival_rate(&self) -> f64 {
        self.user_count as f64 / self.request_interval.as_secs_f64()
    }

    /// Returns the number of concurrent requests (Little's law), which is the value for ab's `-c`.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        self.arrival_rate() * self.response_time.as_secs_f64()
    }

    /// Returns the number of visitors that a rate corresponds to.
    #[must_use]
    pub fn users_for_rate(rate: f64, every: Duration) -> f64 {
        rate * every.as_secs_f64()
    }
}

impl fmt::Display for VisitorLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (every, response) =
            (self.request_interval.as_secs_f64(), self.response_time.as_secs_f64());
        writeln!(
            f,
            "arrivals   {} users / {every} s = {:.1} requests/s",
            self.user_count,
            self.arrival_rate()
        )?;
        if self.response_time.is_zero() {
            return write!(f, "in flight  unknown: give the response time with --response-time");
        }
        write!(
            f,
            "in flight  {:.1}/s x {response} s = {:.1} requests at a time (ab -c {})",
            self.arrival_rate(),
            self.in_flight(),
            self.in_flight().ceil().max(1.0)
        )
    }
}

/// Returns the ratio of peak load to average load, if `share` of the work falls into `time` of the time.
///
/// 80 % of all edits in 20 % of the time is four times the average.
#[must_use]
pub fn peak_factor(share: f64, time: f64) -> f64 {
    // Use whole per mille, because 0.8 / 0.2 is not 4 in binary fractions for every pair.
    (share * 1000.0).round() / (time * 1000.0).round()
}

/// Assets that arrive in a working day.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UploadWorkload {
    /// Assets per window.
    pub assets_per_window: f64,
    /// Megabytes of an original.
    pub original_mb: f64,
    /// Megabytes of its renditions.
    pub renditions_mb: f64,
    /// The length of the window.
    pub window: Duration,
    /// From [`peak_factor`].
    pub peak_factor: f64,
}

impl UploadWorkload {
    /// Returns the average throughput in megabytes per second.
    #[must_use]
    pub fn average_mb_per_second(&self) -> f64 {
        self.assets_per_window * (self.original_mb + self.renditions_mb) / self.window.as_secs_f64()
    }

    /// Returns the peak throughput in megabytes per second, which is the goal of an upload test.
    #[must_use]
    pub fn peak_mb_per_second(&self) -> f64 {
        self.average_mb_per_second() * self.peak_factor
    }

    /// Returns the peak number of assets per minute.
    #[must_use]
    pub fn peak_assets_per_minute(&self) -> f64 {
        self.assets_per_window / self.window.as_secs_f64() * 60.0 * self.peak_factor
    }
}

/// Returns the working time that a backup costs: its duration times the share of throughput that it takes.
#[must_use]
pub fn backup_cost(duration: Duration, loss: f64) -> Duration {
    duration.mul_f64(loss.clamp(0.0, 1.0))
}

/// The speedup of one setting over another, from the extremes of several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpeedupBounds {
    /// The fastest default run divided by the slowest run of the setting.
    pub min_speedup: f64,
    /// The slowest default run divided by the fastest run of the setting.
    pub max_speedup: f64,
    /// The mean default run divided by the mean run of the setting.
    pub mean_speedup: f64,
}

impl SpeedupBounds {
    /// Compares durations; `None` if one side has no run.
    #[must_use]
    pub fn from_runs(default: &[Duration], setting: &[Duration]) -> Option<Self> {
        let seconds = |runs: &[Duration]| -> Option<(f64, f64, f64)> {
            let all: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let least = all.iter().copied().reduce(f64::min)?;
            let most = all.iter().copied().reduce(f64::max)?;
            (least > 0.0).then_some((least, mean, most))
        };
        let (default, setting) = (seconds(default)?, seconds(setting)?);
        Some(Self {
            min_speedup: default.0 / setting.2,
            max_speedup: default.2 / setting.0,
            mean_speedup: default.1 / setting.1,
        })
    }
}

impl fmt::Display for SpeedupBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min_speedup >= 2.0 {
            write!(f, "at least {}x", self.min_speedup.floor())?;
        } else {
            write!(f, "at least {:.2}x", self.min_speedup)?;
        }
        write!(
            f,
            " (range {:.1}-{:.1}, mean {:.1})",
            self.min_speedup, self.max_speedup, self.mean_speedup
        )
    }
}
