//! Trends of figures over a run: the median slope of all pairs of windows, with its 95 % interval.

use std::time::Duration;

use super::{LabelSeries, TimingHistogram};

/// A slope over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrendSlope {
    /// Change per hour.
    pub per_hour: f64,
    /// Lower bound of the 95 % interval.
    pub lower_bound: f64,
    /// Upper bound of the 95 % interval.
    pub upper_bound: f64,
}

/// Maximum number of windows: the number of pairs grows with the square.
pub const MAX_WINDOWS: u64 = 120;
/// The name of the series of 95th percentiles.
pub const P95_SERIES_NAME: &str = "p95 ms";
/// Changes per hour below this are ignored.
pub const MIN_P95_CHANGE_MS: f64 = 0.5;
/// Minimum number of windows for a trend.
pub const MIN_WINDOWS: usize = 6;
/// Minimum number of samples for the times of a window to be meaningful.
pub const MIN_WINDOW_SAMPLES: u64 = 10;

/// Returns the slope of the points (seconds, value); `None` with fewer than three.
fn theil_sen(points: &[(f64, f64)]) -> Option<TrendSlope> {
    let count = points.len();
    if count < 3 {
        return None;
    }
    let mut slopes: Vec<f64> = Vec::with_capacity(count * (count - 1) / 2);
    for (index, first) in points.iter().enumerate() {
        for second in points.iter().skip(index + 1) {
            if second.0 > first.0 {
                slopes.push((second.1 - first.1) / (second.0 - first.0) * 3600.0);
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let n = count as f64;
    // The variance of Kendall's statistic determines the distance of the interval's bounds from the median.
    let spread = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let pairs = slopes.len() as f64;
    let at = |rank: f64| {
        let index = rank.round().clamp(0.0, pairs - 1.0) as usize;
        slopes.get(index).copied().unwrap_or(0.0)
    };
    Some(TrendSlope {
        per_hour: median_of_sorted(&slopes),
        lower_bound: at((pairs - spread) / 2.0 - 1.0),
        upper_bound: at((pairs + spread) / 2.0),
    })
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    let upper = sorted.get(half).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 {
        upper
    } else {
        (upper + sorted.get(half.wrapping_sub(1)).copied().unwrap_or(upper)) / 2.0
    }
}

/// The direction in which a series degrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorseDirection {
    /// Higher values are worse.
    Higher,
    /// Lower values are worse.
    Lower,
}

/// A time series.
#[derive(Debug)]
pub struct TrendSeries {
    /// The name.
    pub name: &'static str,
    /// The direction of a change for the worse.
    pub worse_direction: WorseDirection,
    /// Seconds since the start, and values.
    pub points: Vec<(f64, f64)>,
    /// Smaller changes per hour are ignored; in the unit of the series.
    pub min_change_per_hour: f64,
}

/// The trend of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeriesTrend {
    /// Slope per hour, in the unit of the series.
    pub slope: TrendSlope,
    /// The median value.
    pub median: f64,
    /// The change per hour as a share of the median.
    pub median_share: f64,
    /// True if it degrades more than allowed, with confidence.
    pub is_worse: bool,
    /// True if the interval neither confirms nor excludes a degradation beyond the limit.
    pub is_inconclusive: bool,
    /// The worst change per hour that is not ruled out, as a share of the median; positive for a degradation.
    pub worst_bound: f64,
}

impl TrendSeries {
    /// Returns the trend, which may degrade by the `allowed` share of the median per hour; `None` if there are too few
    /// points.
    pub fn fit_trend(&self, allowed: f64) -> Option<SeriesTrend> {
        if self.points.len() < MIN_WINDOWS {
            return None;
        }
        let slope = theil_sen(&self.points)?;
        let mut values: Vec<f64> = self.points.iter().map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        let median = median_of_sorted(&values);
        let share = if median == 0.0 { 0.0 } else { slope.per_hour / median };
        let (bad, is_sure) = match self.worse_direction {
            WorseDirection::Higher => (share, slope.lower_bound > 0.0),
            WorseDirection::Lower => (-share, slope.upper_bound < 0.0),
        };
        let is_worse = bad > allowed && is_sure && slope.per_hour.abs() > self.min_change_per_hour;
        let end = match self.worse_direction {
            WorseDirection::Higher => slope.upper_bound,
            WorseDirection::Lower => -slope.lower_bound,
        };
        let bad_end = if median == 0.0 { 0.0 } else { end / median };
        let is_unclear = !is_worse && bad_end > allowed && end > self.min_change_per_hour;
        Some(SeriesTrend {
            slope,
            median,
            median_share: share,
            is_worse,
            is_inconclusive: is_unclear,
            worst_bound: bad_end,
        })
    }
}

/// Returns the trend of the 95th percentile over a whole run, of several labels together; `None` if it was too short
/// for a trend.
pub(crate) fn p95_trend<'s>(
    labels: impl Iterator<Item = &'s LabelSeries>,
    duration: Duration,
    allowed: f64,
) -> Option<SeriesTrend> {
    let (width, windows) = split_into_windows(labels, 0, duration.as_secs());
    let points = windows.iter().enumerate().filter(|(_, window)| window.0 > 0);
    let points = points.map(|(index, window)| {
        ((index as u64 * width) as f64, window.1.quantile(0.95).as_secs_f64() * 1000.0)
    });
    let series = TrendSeries {
        name: P95_SERIES_NAME,
        worse_direction: WorseDirection::Higher,
        points: points.collect(),
        min_change_per_hour: MIN_P95_CHANGE_MS,
    };
    series.fit_trend(allowed)
}

/// Splits a run between two seconds into windows of equal length; each has its sample count and times.
pub fn split_into_windows<'s>(
    labels: impl Iterator<Item = &'s LabelSeries>,
    first: u64,
    last: u64,
) -> (u64, Vec<(u64, TimingHistogram)>) {
    let span = last.saturating_sub(first);
    let labels: Vec<_> = labels.collect();
    let samples: u64 = labels
        .iter()
        .flat_map(|series| series.seconds.range(u32::try_from(first).unwrap_or(u32::MAX)..))
        .map(|(_, values)| values.sample_count)
        .sum();
    // Windows are as wide as their times require, as long as enough of them remain.
    let by_samples = (span * MIN_WINDOW_SAMPLES * 2).div_ceil(samples.max(1));
    let widest = span / (2 * MIN_WINDOWS as u64);
    let width = span.div_ceil(MAX_WINDOWS).max(by_samples.min(widest)).max(1);
    let count = usize::try_from(last.saturating_sub(first) / width).unwrap_or(0);
    let mut windows: Vec<(u64, TimingHistogram)> = Vec::new();
    windows.resize_with(count, || (0, TimingHistogram::new()));
    for series in labels {
        for (&second, values) in &series.seconds {
            let Some(since) = u64::from(second).checked_sub(first) else { continue };
            let index = usize::try_from(since / width).unwrap_or(usize::MAX);
            let Some(window) = windows.get_mut(index) else { continue };
            window.0 += values.sample_count;
            values.time_buckets.iter().for_each(|&(time, count)| window.1.record_us(time, count));
        }
    }
    (width, windows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::LabelSecond;

    #[test]
    fn slopes_do_not_mind_single_bad_minutes() {
        let mut points: Vec<(f64, f64)> = (0..60)
            .map(|minute| (f64::from(minute) * 60.0, 100.0 + f64::from(minute) / 6.0))
            .collect();
        let slope = theil_sen(&points).unwrap();
        assert!((slope.per_hour - 10.0).abs() < 1e-6, "{slope:?}");
        points[7].1 = 5000.0;
        points[41].1 = 5000.0;
        let slope = theil_sen(&points).unwrap();
        assert!(
            (slope.per_hour - 10.0).abs() < 0.5
                && slope.lower_bound > 0.0
                && slope.upper_bound < 15.0,
            "{slope:?}"
        );
        assert_eq!(theil_sen(&points[..2]), None);
    }

    /// Ten seconds allow no conclusion about an hour.
    #[test]
    fn a_short_run_is_not_steady() {
        let series = |apart: f64| TrendSeries {
            name: P95_SERIES_NAME,
            worse_direction: WorseDirection::Higher,
            points: (0..10u64)
                .map(|at| {
                    (at as f64 * apart, 100.0 + (tympan_lab_plan::random_number(1, at) % 5) as f64)
                })
                .collect(),
            min_change_per_hour: MIN_P95_CHANGE_MS,
        };
        let short = series(1.0).fit_trend(0.02).unwrap();
        assert!(short.is_inconclusive && !short.is_worse, "{short:?}");
        let long = series(36_000.0).fit_trend(0.02).unwrap();
        assert!(!long.is_inconclusive && !long.is_worse, "{long:?}");
    }

    #[test]
    fn windows_are_as_wide_as_their_samples_need() {
        let second = |count| LabelSecond { sample_count: count, ..LabelSecond::default() };
        let mut series = LabelSeries::default();
        (0..600).for_each(|at| drop(series.seconds.insert(at, second(1))));
        let (width, all) = split_into_windows(std::iter::once(&series), 0, 600);
        assert_eq!((width, all.len()), (20, 30));
        assert!(all.iter().all(|window| window.0 >= MIN_WINDOW_SAMPLES));
    }

    #[test]
    fn noise_is_no_trend_and_growth_is() {
        let series = |value: &dyn Fn(u64) -> f64| TrendSeries {
            name: "p95 ms",
            worse_direction: WorseDirection::Higher,
            points: (0..60).map(|at| (at as f64 * 60.0, value(at))).collect(),
            min_change_per_hour: 0.5,
        };
        let noise = series(&|at| 100.0 + (tympan_lab_plan::random_number(1, at) % 20) as f64);
        assert!(!noise.fit_trend(0.02).unwrap().is_worse);
        let grows = series(&|at| {
            100.0 + at as f64 / 6.0 + (tympan_lab_plan::random_number(1, at) % 3) as f64
        });
        let trend = grows.fit_trend(0.02).unwrap();
        assert!(trend.is_worse && (trend.median_share - 0.09).abs() < 0.02, "{trend:?}");
        // Rising throughput is not a degradation; falling throughput is.
        let falls = TrendSeries {
            worse_direction: WorseDirection::Lower,
            ..series(&|at| 100.0 - at as f64 / 6.0)
        };
        assert!(falls.fit_trend(0.02).unwrap().is_worse);
        assert!(
            !TrendSeries {
                worse_direction: WorseDirection::Lower,
                ..series(&|at| 100.0 + at as f64 / 6.0)
            }
            .fit_trend(0.02)
            .unwrap()
            .is_worse
        );
    }
}
