//! Endurance test: applies one load for hours and checks if the target degrades.
//!
//! The change per hour of each figure is the median of the slopes of all pairs of windows (Theil and Sen), with its 95
//! % interval, so that single bad minutes do not make a trend. The first minutes are excluded because caches fill.

use std::time::Duration;

use serde_json::json;

use super::{LoadPhase, PhaseMeasurement, PhaseSubject, judge_pace, run_phase, with_error_bound};
use crate::Result;
use crate::measurement::TimingHistogram;
use crate::plan::LoadOffer;
use crate::report::goal::{LoadGoal, format_response_time, judge_goals};
use crate::report::report_sheet::{ReportChart, ReportPart, ReportSheet, ReportTable, ReportTone};

/// Options of an endurance trial.
#[derive(Debug, Clone)]
pub struct EnduranceTrial {
    /// The load.
    pub load_offer: LoadOffer,
    /// Time excluded at the beginning.
    pub warm_up: Duration,
    /// Maximum change per hour, as a share of the median.
    pub max_trend_per_hour: f64,
    /// Limits of the whole run.
    pub goals: Vec<LoadGoal>,
}

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
const MAX_WINDOWS: u64 = 120;
const P95_SERIES_NAME: &str = "p95 ms";
/// Changes per hour below this are ignored.
const MIN_P95_CHANGE_MS: f64 = 0.5;
/// Minimum number of windows for a trend.
const MIN_WINDOWS: usize = 6;
/// Minimum number of samples for the times of a window to be meaningful.
const MIN_WINDOW_SAMPLES: u64 = 10;

/// Returns the slope of the points (seconds, value); `None` with fewer than three.
#[must_use]
pub fn theil_sen(points: &[(f64, f64)]) -> Option<TrendSlope> {
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
enum WorseDirection {
    Higher,
    Lower,
}

/// A time series.
struct TrendSeries {
    name: &'static str,
    worse_direction: WorseDirection,
    points: Vec<(f64, f64)>,
    /// Smaller changes per hour are ignored; in the unit of the series.
    min_change_per_hour: f64,
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
    fn fit_trend(&self, allowed: f64) -> Option<SeriesTrend> {
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
    labels: impl Iterator<Item = &'s crate::measurement::LabelSeries>,
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

/// Runs the load and evaluates trends.
///
/// # Errors
/// As [`run_phase`].
pub fn run_endurance_trial(
    subject: &PhaseSubject<'_>,
    endurance: &EnduranceTrial,
) -> Result<ReportSheet> {
    let phase =
        LoadPhase { name: "endurance".to_owned(), load_offer: endurance.load_offer.clone() };
    let measured = run_phase(subject, phase)?;
    Ok(build_endurance_sheet(endurance, &measured))
}

/// The trends of all series.
struct TrendTable {
    grid: ReportTable,
    json_fields: serde_json::Map<String, serde_json::Value>,
    /// Descriptions of the series that degraded.
    worsened: Vec<String>,
    /// Descriptions of the series that may have degraded.
    inconclusive: Vec<String>,
    /// Number of series with enough points.
    judged_count: usize,
}

fn build_trend_table(all: &[TrendSeries], allowed: f64) -> TrendTable {
    let mut grid = ReportTable::new(
        "Change per hour",
        &["figure", "median", "per hour", "95 % interval", "share", ""],
    );
    let mut trends = serde_json::Map::new();
    let (mut worse, mut unclear, mut judged) = (Vec::new(), Vec::new(), 0);
    for series in all {
        let Some(trend) = series.fit_trend(allowed) else { continue };
        judged += 1;
        let (tone, label) = match (trend.is_worse, trend.is_inconclusive) {
            (true, _) => (ReportTone::Bad, "worse"),
            (false, true) => (ReportTone::Doubtful, "unclear"),
            (false, false) => (ReportTone::Good, "steady"),
        };
        if trend.is_worse {
            worse.push(format!("{} {:+.1} %/h", series.name, trend.median_share * 100.0));
        } else if trend.is_inconclusive {
            unclear.push(format!("{} up to {:+.1} %/h", series.name, trend.worst_bound * 100.0));
        }
        grid.add_row(
            tone,
            vec![
                series.name.to_owned(),
                format!("{:.2}", trend.median),
                format!("{:+.3}", trend.slope.per_hour),
                format!("{:+.3} .. {:+.3}", trend.slope.lower_bound, trend.slope.upper_bound),
                format!("{:+.2} %", trend.median_share * 100.0),
                label.to_owned(),
            ],
        );
        trends.insert(
            series.name.to_owned(),
            json!({
                "median": trend.median, "per_hour": trend.slope.per_hour, "low": trend.slope.lower_bound,
                "high": trend.slope.upper_bound, "share_per_hour": trend.median_share, "worse": trend.is_worse,
            }),
        );
    }
    TrendTable {
        grid,
        json_fields: trends,
        worsened: worse,
        inconclusive: unclear,
        judged_count: judged,
    }
}

fn build_endurance_sheet(endurance: &EnduranceTrial, measured: &PhaseMeasurement) -> ReportSheet {
    let mut sheet = ReportSheet::new("Endurance");
    sheet.judged_goals = judge_goals(&with_error_bound(&endurance.goals), &measured.results);
    sheet.judged_goals.extend(judge_pace(measured));
    let all = collect_series(endurance, measured);
    let TrendTable {
        grid,
        json_fields: trends,
        worsened: worse,
        inconclusive: unclear,
        judged_count: judged,
    } = build_trend_table(&all, endurance.max_trend_per_hour);
    for doubt in &measured.doubts {
        sheet.add_verdict(ReportTone::Doubtful, doubt.clone());
    }
    if measured.is_unreachable() {
        sheet.add_verdict(ReportTone::Doubtful, "the target never answered");
    }
    if !unclear.is_empty() {
        sheet.add_verdict(
            ReportTone::Doubtful,
            format!(
                "too little data: what was measured allows changes for the worse of {}; a longer run, or more load, tells",
                unclear.join(", ")
            ),
        );
    }
    match (judged, worse.is_empty()) {
        (0, _) => sheet.add_verdict(
            ReportTone::Doubtful,
            format!(
                "too short for a trend, with too little data: it needs {MIN_WINDOWS} windows of {MIN_WINDOW_SAMPLES} samples after the warm-up of {}",
                format_response_time(endurance.warm_up)
            ),
        ),
        (_, true) if !unclear.is_empty() => {}
        (_, true) => sheet.add_verdict(
            ReportTone::Good,
            format!(
                "steady: nothing gets worse by more than {:.1} % per hour",
                endurance.max_trend_per_hour * 100.0
            ),
        ),
        (_, false) => sheet.add_verdict(ReportTone::Bad, format!("gets worse: {}", worse.join(", "))),
    }
    let mut table = super::phase_grid("The whole run");
    super::add_phase_row(&mut table, measured, ReportTone::Plain, "");
    sheet.parts.push(ReportPart::Table(table));
    if judged > 0 {
        sheet.parts.push(ReportPart::Table(grid));
    }
    for series in &all {
        sheet.parts.push(ReportPart::Chart(ReportChart {
            title: series.name.to_owned(),
            vertical_unit: String::new(),
            horizontal_unit: "s".to_owned(),
            lines: vec![(series.name.to_owned(), series.points.clone())],
        }));
    }
    // Processors only; memory, threads and files are among the figures above.
    sheet.parts.extend(super::process_charts(&[measured]).into_iter().take(1));
    sheet.json_result = json!({ "run": measured.to_json(), "trends": trends });
    sheet
}

/// Splits a run between two seconds into windows of equal length; each has its sample count and times.
fn split_into_windows<'s>(
    labels: impl Iterator<Item = &'s crate::measurement::LabelSeries>,
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

/// Returns the time series of the run.
fn collect_series(endurance: &EnduranceTrial, measured: &PhaseMeasurement) -> Vec<TrendSeries> {
    let first = endurance.warm_up.as_secs();
    let last = endurance.load_offer.duration.as_secs();
    let (width, windows) = split_into_windows(measured.results.labels.values(), first, last);
    let at = |index: usize| (first + index as u64 * width + width / 2) as f64;
    let over = |value: &dyn Fn(&(u64, TimingHistogram)) -> f64| -> Vec<(f64, f64)> {
        windows.iter().enumerate().map(|(index, window)| (at(index), value(window))).collect()
    };
    // A window without samples has no times, and the times of one with few samples are random.
    let quantile = |share: f64| -> Vec<(f64, f64)> {
        let populated =
            windows.iter().enumerate().filter(|(_, window)| window.0 >= MIN_WINDOW_SAMPLES);
        populated
            .map(|(index, window)| (at(index), window.1.quantile(share).as_secs_f64() * 1000.0))
            .collect()
    };
    let watched =
        |value: &dyn Fn(&super::process_watch::ProcessMetrics) -> f64| -> Vec<(f64, f64)> {
            let metrics: Vec<_> = measured
                .process_metrics
                .iter()
                .filter(|facts| facts.elapsed.as_secs() >= first)
                .collect();
            let step = metrics.len().div_ceil(usize::try_from(MAX_WINDOWS).unwrap_or(1)).max(1);
            metrics
                .iter()
                .step_by(step)
                .map(|facts| (facts.elapsed.as_secs_f64(), value(facts)))
                .collect()
        };
    let all = [
        ("p50 ms", WorseDirection::Higher, quantile(0.5), 0.2),
        (P95_SERIES_NAME, WorseDirection::Higher, quantile(0.95), MIN_P95_CHANGE_MS),
        (
            "throughput 1/s",
            WorseDirection::Lower,
            over(&|window| window.0 as f64 / width as f64),
            0.0,
        ),
        (
            "memory MB",
            WorseDirection::Higher,
            watched(&|facts| facts.memory_bytes as f64 / 1e6),
            1.0,
        ),
        ("open files", WorseDirection::Higher, watched(&|facts| facts.open_files as f64), 1.0),
        ("threads", WorseDirection::Higher, watched(&|facts| facts.thread_count as f64), 1.0),
    ];
    let tells_pools = measured.process_metrics.iter().any(|facts| !facts.pools.is_empty());
    let waiting = |facts: &super::process_watch::ProcessMetrics| {
        facts.pools.iter().map(|pool| pool.waiting).sum()
    };
    let waiting = if tells_pools { watched(&waiting) } else { Vec::new() };
    all.into_iter()
        .chain([("waiting for places", WorseDirection::Higher, waiting, 1.0)])
        .filter(|(_, _, points, _)| !points.is_empty())
        .map(|(name, worse, points, floor)| TrendSeries {
            name,
            worse_direction: worse,
            points,
            min_change_per_hour: floor,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    (at as f64 * apart, 100.0 + (crate::load::random_number(1, at) % 5) as f64)
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
        let second = |count| crate::measurement::LabelSecond {
            sample_count: count,
            ..crate::measurement::LabelSecond::default()
        };
        let mut series = crate::measurement::LabelSeries::default();
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
        let noise = series(&|at| 100.0 + (crate::load::random_number(1, at) % 20) as f64);
        assert!(!noise.fit_trend(0.02).unwrap().is_worse);
        let grows =
            series(&|at| 100.0 + at as f64 / 6.0 + (crate::load::random_number(1, at) % 3) as f64);
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
