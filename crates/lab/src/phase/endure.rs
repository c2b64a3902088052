//! Endurance: one load for hours, and whether the target gets worse meanwhile.
//!
//! Each figure's change per hour is the median of the slopes of all pairs of windows (Theil and Sen), with its 95 %
//! interval, so that single bad minutes do not make a trend. The first minutes are left out: caches fill.

use std::time::Duration;

use serde_json::json;

use super::{Measured, Phase, Subject, measure, pace, with_errors};
use crate::Result;
use crate::goal::{Goal, judge, show};
use crate::plan::Offer;
use crate::record::Timing;
use crate::report::sheet::{Curves, Grid, Part, Sheet, Tone};

/// What to watch for.
#[derive(Debug, Clone)]
pub struct Endurance {
    /// The load.
    pub offer: Offer,
    /// What is left out at the beginning.
    pub warm_up: Duration,
    /// The change per hour that is allowed, as a share of the median.
    pub trend: f64,
    /// Limits of the whole run.
    pub goals: Vec<Goal>,
}

/// A change over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slope {
    /// Per hour.
    pub per_hour: f64,
    /// Ends of the 95 % interval.
    pub low: f64,
    /// See `low`.
    pub high: f64,
}

/// Windows that a run is cut into at most: the pairs grow with the square.
const WINDOWS: u64 = 120;
const P95: &str = "p95 ms";
/// Changes per hour that are nothing.
const P95_FLOOR: f64 = 0.5;
/// Fewer windows show no trend.
const FEWEST: usize = 6;
/// Fewer samples say nothing of a window's times.
const FEWEST_SAMPLES: u64 = 10;

/// Returns the slope of points (seconds, value); `None` with fewer than three.
#[must_use]
pub fn theil_sen(points: &[(f64, f64)]) -> Option<Slope> {
    let count = points.len();
    if count < 3 {
        return None;
    }
    let mut slopes: Vec<f64> = Vec::with_capacity(count * (count - 1) / 2);
    for (place, one) in points.iter().enumerate() {
        for other in points.iter().skip(place + 1) {
            if other.0 > one.0 {
                slopes.push((other.1 - one.1) / (other.0 - one.0) * 3600.0);
            }
        }
    }
    if slopes.is_empty() {
        return None;
    }
    slopes.sort_by(f64::total_cmp);
    let n = count as f64;
    // The spread of Kendall's statistic tells how far from the middle the interval's ends are.
    let spread = 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let pairs = slopes.len() as f64;
    let at = |rank: f64| {
        let place = rank.round().clamp(0.0, pairs - 1.0) as usize;
        slopes.get(place).copied().unwrap_or(0.0)
    };
    Some(Slope {
        per_hour: median(&slopes),
        low: at((pairs - spread) / 2.0 - 1.0),
        high: at((pairs + spread) / 2.0),
    })
}

fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    let upper = sorted.get(half).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 {
        upper
    } else {
        (upper + sorted.get(half.wrapping_sub(1)).copied().unwrap_or(upper)) / 2.0
    }
}

/// Which direction is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worse {
    More,
    Less,
}

/// What is followed over time.
struct Series {
    name: &'static str,
    worse: Worse,
    points: Vec<(f64, f64)>,
    /// Smaller changes per hour are nothing, in the series' own unit.
    floor: f64,
}

/// How a series went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    /// Per hour, in the series' own unit.
    pub slope: Slope,
    /// The middle value.
    pub median: f64,
    /// The change per hour as a share of the median.
    pub share: f64,
    /// Worse than allowed, and surely so.
    pub is_worse: bool,
    /// Neither surely worse than allowed nor surely not.
    pub is_unclear: bool,
    /// The worst change per hour that is not ruled out, as a share of the median; positive for the worse.
    pub bad_end: f64,
}

impl Series {
    fn trend(&self, allowed: f64) -> Option<Trend> {
        if self.points.len() < FEWEST {
            return None;
        }
        let slope = theil_sen(&self.points)?;
        let mut values: Vec<f64> = self.points.iter().map(|point| point.1).collect();
        values.sort_by(f64::total_cmp);
        let median = median(&values);
        let share = if median == 0.0 { 0.0 } else { slope.per_hour / median };
        let (bad, is_sure) = match self.worse {
            Worse::More => (share, slope.low > 0.0),
            Worse::Less => (-share, slope.high < 0.0),
        };
        let is_worse = bad > allowed && is_sure && slope.per_hour.abs() > self.floor;
        let end = match self.worse {
            Worse::More => slope.high,
            Worse::Less => -slope.low,
        };
        let bad_end = if median == 0.0 { 0.0 } else { end / median };
        let is_unclear = !is_worse && bad_end > allowed && end > self.floor;
        Some(Trend { slope, median, share, is_worse, is_unclear, bad_end })
    }
}

/// Returns how the 95th percentile of a whole run went, of some labels together; `None` if it was too short for a trend.
pub(crate) fn trend<'s>(
    labels: impl Iterator<Item = &'s crate::record::Series>,
    lasts: Duration,
    allowed: f64,
) -> Option<Trend> {
    let (width, windows) = windows(labels, 0, lasts.as_secs());
    let points = windows.iter().enumerate().filter(|(_, window)| window.0 > 0);
    let points = points.map(|(place, window)| {
        ((place as u64 * width) as f64, window.1.quantile(0.95).as_secs_f64() * 1000.0)
    });
    let series =
        Series { name: P95, worse: Worse::More, points: points.collect(), floor: P95_FLOOR };
    series.trend(allowed)
}

/// Runs the load and looks for trends.
///
/// # Errors
/// As [`measure`].
pub fn run(subject: &Subject<'_>, endurance: &Endurance) -> Result<Sheet> {
    let phase = Phase { name: "endurance".to_owned(), offer: endurance.offer.clone() };
    let measured = measure(subject, phase)?;
    Ok(tell(endurance, &measured))
}

/// What became of all series.
struct TrendTable {
    grid: Grid,
    json: serde_json::Map<String, serde_json::Value>,
    /// In words, the series that got worse.
    worse: Vec<String>,
    /// In words, those that may have got worse.
    unclear: Vec<String>,
    /// How many series had enough points.
    judged: usize,
}

fn trend_table(all: &[Series], allowed: f64) -> TrendTable {
    let mut grid = Grid::new(
        "Change per hour",
        &["figure", "median", "per hour", "95 % interval", "share", ""],
    );
    let mut trends = serde_json::Map::new();
    let (mut worse, mut unclear, mut judged) = (Vec::new(), Vec::new(), 0);
    for series in all {
        let Some(trend) = series.trend(allowed) else { continue };
        judged += 1;
        let (tone, word) = match (trend.is_worse, trend.is_unclear) {
            (true, _) => (Tone::Bad, "worse"),
            (false, true) => (Tone::Doubt, "unclear"),
            (false, false) => (Tone::Good, "steady"),
        };
        if trend.is_worse {
            worse.push(format!("{} {:+.1} %/h", series.name, trend.share * 100.0));
        } else if trend.is_unclear {
            unclear.push(format!("{} up to {:+.1} %/h", series.name, trend.bad_end * 100.0));
        }
        grid.add(
            tone,
            vec![
                series.name.to_owned(),
                format!("{:.2}", trend.median),
                format!("{:+.3}", trend.slope.per_hour),
                format!("{:+.3} .. {:+.3}", trend.slope.low, trend.slope.high),
                format!("{:+.2} %", trend.share * 100.0),
                word.to_owned(),
            ],
        );
        trends.insert(
            series.name.to_owned(),
            json!({
                "median": trend.median, "per_hour": trend.slope.per_hour, "low": trend.slope.low,
                "high": trend.slope.high, "share_per_hour": trend.share, "worse": trend.is_worse,
            }),
        );
    }
    TrendTable { grid, json: trends, worse, unclear, judged }
}

fn tell(endurance: &Endurance, measured: &Measured) -> Sheet {
    let mut sheet = Sheet::new("Endurance");
    sheet.goals = judge(&with_errors(&endurance.goals), &measured.results);
    sheet.goals.extend(pace(measured));
    let all = series(endurance, measured);
    let TrendTable { grid, json: trends, worse, unclear, judged } =
        trend_table(&all, endurance.trend);
    for doubt in &measured.doubts {
        sheet.say(Tone::Doubt, doubt.clone());
    }
    if measured.is_unreachable() {
        sheet.say(Tone::Doubt, "the target never answered");
    }
    if !unclear.is_empty() {
        sheet.say(
            Tone::Doubt,
            format!(
                "too little data: what was measured allows changes for the worse of {}; a longer run, or more load, tells",
                unclear.join(", ")
            ),
        );
    }
    match (judged, worse.is_empty()) {
        (0, _) => sheet.say(
            Tone::Doubt,
            format!(
                "too short for a trend, with too little data: it needs {FEWEST} windows of {FEWEST_SAMPLES} samples after the warm-up of {}",
                show(endurance.warm_up)
            ),
        ),
        (_, true) if !unclear.is_empty() => {}
        (_, true) => sheet.say(
            Tone::Good,
            format!(
                "steady: nothing gets worse by more than {:.1} % per hour",
                endurance.trend * 100.0
            ),
        ),
        (_, false) => sheet.say(Tone::Bad, format!("gets worse: {}", worse.join(", "))),
    }
    let mut table = super::grid("The whole run");
    super::add_row(&mut table, measured, Tone::Plain, "");
    sheet.parts.push(Part::Grid(table));
    if judged > 0 {
        sheet.parts.push(Part::Grid(grid));
    }
    for series in &all {
        sheet.parts.push(Part::Curves(Curves {
            title: series.name.to_owned(),
            unit: String::new(),
            axis: "s".to_owned(),
            lines: vec![(series.name.to_owned(), series.points.clone())],
        }));
    }
    // Processors; memory, threads and files are among the figures above.
    sheet.parts.extend(super::target_charts(&[measured]).into_iter().take(1));
    sheet.json = json!({ "run": measured.to_json(), "trends": trends });
    sheet
}

/// Cuts a run from one second to another into windows of as many seconds; each has its samples and their times.
fn windows<'s>(
    labels: impl Iterator<Item = &'s crate::record::Series>,
    first: u64,
    last: u64,
) -> (u64, Vec<(u64, Timing)>) {
    let span = last.saturating_sub(first);
    let labels: Vec<_> = labels.collect();
    let samples: u64 = labels
        .iter()
        .flat_map(|series| series.seconds.range(u32::try_from(first).unwrap_or(u32::MAX)..))
        .map(|(_, values)| values.count)
        .sum();
    // Windows are as wide as their times need, as long as enough of them are left.
    let by_samples = (span * FEWEST_SAMPLES * 2).div_ceil(samples.max(1));
    let widest = span / (2 * FEWEST as u64);
    let width = span.div_ceil(WINDOWS).max(by_samples.min(widest)).max(1);
    let count = usize::try_from(last.saturating_sub(first) / width).unwrap_or(0);
    let mut windows: Vec<(u64, Timing)> = Vec::new();
    windows.resize_with(count, || (0, Timing::new()));
    for series in labels {
        for (&second, values) in &series.seconds {
            let Some(since) = u64::from(second).checked_sub(first) else { continue };
            let place = usize::try_from(since / width).unwrap_or(usize::MAX);
            let Some(window) = windows.get_mut(place) else { continue };
            window.0 += values.count;
            values.times.iter().for_each(|&(time, count)| window.1.record_us(time, count));
        }
    }
    (width, windows)
}

/// Returns what is followed over the run.
fn series(endurance: &Endurance, measured: &Measured) -> Vec<Series> {
    let first = endurance.warm_up.as_secs();
    let last = endurance.offer.lasts.as_secs();
    let (width, windows) = windows(measured.results.labels.values(), first, last);
    let at = |place: usize| (first + place as u64 * width + width / 2) as f64;
    let over = |value: &dyn Fn(&(u64, Timing)) -> f64| -> Vec<(f64, f64)> {
        windows.iter().enumerate().map(|(place, window)| (at(place), value(window))).collect()
    };
    // A window without samples has no times; one with few of them has them by chance.
    let quantile = |share: f64| -> Vec<(f64, f64)> {
        let told = windows.iter().enumerate().filter(|(_, window)| window.0 >= FEWEST_SAMPLES);
        told.map(|(place, window)| (at(place), window.1.quantile(share).as_secs_f64() * 1000.0))
            .collect()
    };
    let watched = |value: &dyn Fn(&super::watch::Facts) -> f64| -> Vec<(f64, f64)> {
        let seen: Vec<_> =
            measured.watched.iter().filter(|facts| facts.at.as_secs() >= first).collect();
        let step = seen.len().div_ceil(usize::try_from(WINDOWS).unwrap_or(1)).max(1);
        seen.iter().step_by(step).map(|facts| (facts.at.as_secs_f64(), value(facts))).collect()
    };
    let all = [
        ("p50 ms", Worse::More, quantile(0.5), 0.2),
        (P95, Worse::More, quantile(0.95), P95_FLOOR),
        ("throughput 1/s", Worse::Less, over(&|window| window.0 as f64 / width as f64), 0.0),
        ("memory MB", Worse::More, watched(&|facts| facts.memory as f64 / 1e6), 1.0),
        ("open files", Worse::More, watched(&|facts| facts.files as f64), 1.0),
        ("threads", Worse::More, watched(&|facts| facts.threads as f64), 1.0),
    ];
    let tells_pools = measured.watched.iter().any(|facts| !facts.pools.is_empty());
    let waiting = |facts: &super::watch::Facts| facts.pools.iter().map(|pool| pool.waiting).sum();
    let waiting = if tells_pools { watched(&waiting) } else { Vec::new() };
    all.into_iter()
        .chain([("waiting for places", Worse::More, waiting, 1.0)])
        .filter(|(_, _, points, _)| !points.is_empty())
        .map(|(name, worse, points, floor)| Series { name, worse, points, floor })
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
            (slope.per_hour - 10.0).abs() < 0.5 && slope.low > 0.0 && slope.high < 15.0,
            "{slope:?}"
        );
        assert_eq!(theil_sen(&points[..2]), None);
    }

    /// Ten seconds say nothing of an hour, whatever they look like.
    #[test]
    fn a_short_run_is_not_steady() {
        let series = |apart: f64| Series {
            name: P95,
            worse: Worse::More,
            points: (0..10u64)
                .map(|at| (at as f64 * apart, 100.0 + (crate::load::random(1, at) % 5) as f64))
                .collect(),
            floor: P95_FLOOR,
        };
        let short = series(1.0).trend(0.02).unwrap();
        assert!(short.is_unclear && !short.is_worse, "{short:?}");
        let long = series(36_000.0).trend(0.02).unwrap();
        assert!(!long.is_unclear && !long.is_worse, "{long:?}");
    }

    #[test]
    fn windows_are_as_wide_as_their_samples_need() {
        let second = |count| crate::record::Second { count, ..crate::record::Second::default() };
        let mut series = crate::record::Series::default();
        (0..600).for_each(|at| drop(series.seconds.insert(at, second(1))));
        let (width, all) = windows(std::iter::once(&series), 0, 600);
        assert_eq!((width, all.len()), (20, 30));
        assert!(all.iter().all(|window| window.0 >= FEWEST_SAMPLES));
    }

    #[test]
    fn noise_is_no_trend_and_growth_is() {
        let series = |value: &dyn Fn(u64) -> f64| Series {
            name: "p95 ms",
            worse: Worse::More,
            points: (0..60).map(|at| (at as f64 * 60.0, value(at))).collect(),
            floor: 0.5,
        };
        let noise = series(&|at| 100.0 + (crate::load::random(1, at) % 20) as f64);
        assert!(!noise.trend(0.02).unwrap().is_worse);
        let grows = series(&|at| 100.0 + at as f64 / 6.0 + (crate::load::random(1, at) % 3) as f64);
        let trend = grows.trend(0.02).unwrap();
        assert!(trend.is_worse && (trend.share - 0.09).abs() < 0.02, "{trend:?}");
        // More throughput is not worse, less is.
        let falls = Series { worse: Worse::Less, ..series(&|at| 100.0 - at as f64 / 6.0) };
        assert!(falls.trend(0.02).unwrap().is_worse);
        assert!(
            !Series { worse: Worse::Less, ..series(&|at| 100.0 + at as f64 / 6.0) }
                .trend(0.02)
                .unwrap()
                .is_worse
        );
    }
}
