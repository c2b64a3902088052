//! Endurance test: applies one load for hours and checks if the target degrades.
//!
//! The change per hour of each figure is the median of the slopes of all pairs of windows (Theil and Sen), with its 95
//! % interval, so that single bad minutes do not make a trend. The first minutes are excluded because caches fill.

use std::time::Duration;

use serde_json::json;
use tympan_lab_engine::goal::{format_response_time, judge_goals};
use tympan_lab_engine::measurement::TimingHistogram;
use tympan_lab_engine::measurement::trend::{
    MAX_WINDOWS, MIN_P95_CHANGE_MS, MIN_WINDOW_SAMPLES, MIN_WINDOWS, P95_SERIES_NAME, TrendSeries,
    WorseDirection, split_into_windows,
};
use tympan_lab_engine::plan_run::LoadOffer;
use tympan_lab_engine::report::report_sheet::{
    ReportChart, ReportPart, ReportSheet, ReportTable, ReportTone,
};
use tympan_lab_plan::goal::LoadGoal;

use super::{LoadPhase, PhaseMeasurement, PhaseSubject, judge_pace, run_phase, with_error_bound};
use crate::Result;

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
    let TrendTable { grid, json_fields, worsened, inconclusive, judged_count } =
        build_trend_table(&all, endurance.max_trend_per_hour);
    for doubt in &measured.doubts {
        sheet.add_verdict(ReportTone::Doubtful, doubt.clone());
    }
    if measured.is_unreachable() {
        sheet.add_verdict(ReportTone::Doubtful, "the target never responded");
    }
    if !inconclusive.is_empty() {
        sheet.add_verdict(
            ReportTone::Doubtful,
            format!(
                "too little data: the measurements do not exclude a degradation of {}; run longer or with \
                 more load",
                inconclusive.join(", ")
            ),
        );
    }
    match (judged_count, worsened.is_empty()) {
        (0, _) => sheet.add_verdict(
            ReportTone::Doubtful,
            format!(
                "too little data for a trend: it needs {MIN_WINDOWS} windows of {MIN_WINDOW_SAMPLES} samples \
                 after the warm-up of {}",
                format_response_time(endurance.warm_up)
            ),
        ),
        (_, true) if !inconclusive.is_empty() => {}
        (_, true) => sheet.add_verdict(
            ReportTone::Good,
            format!(
                "steady: nothing gets worse by more than {:.1} % per hour",
                endurance.max_trend_per_hour * 100.0
            ),
        ),
        (_, false) => sheet.add_verdict(ReportTone::Bad, format!("gets worse: {}", worsened.join(", "))),
    }
    let mut table = super::phase_grid("The whole run");
    super::add_phase_row(&mut table, measured, ReportTone::Plain, "");
    sheet.parts.push(ReportPart::Table(table));
    if judged_count > 0 {
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
    sheet.json_result = json!({ "run": measured.to_json(), "trends": json_fields });
    sheet
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
    let watched = |value: &dyn Fn(
        &tympan_lab_engine::measurement::ProcessMetrics,
    ) -> f64|
     -> Vec<(f64, f64)> {
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
    let waiting = |facts: &tympan_lab_engine::measurement::ProcessMetrics| {
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
