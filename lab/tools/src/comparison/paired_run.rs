//! Measures two programs in alternation, and compares two series of reports.
//!
//! Systems that are measured on different days differ by the conditions of those days. Therefore runs go A B A B,
//! beginning with the one that a seed selects, after one uncounted run of each.
//!
//! Not here: the significance of a difference ([`crate::comparison::metric_comparison`]).

use std::path::Path;

use serde_json::Value;
use tympan_lab_plan::random_number;

use crate::comparison::journal::RunFigures;
use crate::comparison::metric_comparison::{BetterDirection, MetricComparison, compare_series};
use crate::comparison::program::{MeasuredProgram, ProgramMeasurement};
use crate::{Error, Result};

/// Runs of two programs, in pairs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairedRuns {
    /// Measurements of the first program.
    pub measures_before: Vec<ProgramMeasurement>,
    /// Measurements of the second program.
    pub measures_after: Vec<ProgramMeasurement>,
}

/// Options of alternating measurements.
#[derive(Debug, Clone, Copy)]
pub struct PairedRunOptions {
    /// Number of counted runs per program.
    pub runs_per_program: usize,
    /// Number of uncounted warm-up runs per program.
    pub warm_up_runs: usize,
    /// Selects the program that runs first.
    pub seed: u64,
}

/// Measures two programs in alternation.
///
/// # Errors
/// As [`MeasuredProgram::measure`].
pub fn measure_pairs(
    before: &MeasuredProgram,
    after: &MeasuredProgram,
    turns: PairedRunOptions,
) -> Result<PairedRuns> {
    let mut paired = PairedRuns::default();
    let begins_with_two = random_number(turns.seed, 0) % 2 == 1;
    for round in 0..turns.warm_up_runs + turns.runs_per_program {
        for turn in [begins_with_two, !begins_with_two] {
            let (program, series) = if turn {
                (after, &mut paired.measures_after)
            } else {
                (before, &mut paired.measures_before)
            };
            let measured = program.measure()?;
            if round >= turns.warm_up_runs {
                series.push(measured);
            }
        }
    }
    Ok(paired)
}

impl PairedRuns {
    /// Compares times, memory and, if both programs print it, the extracted number.
    #[must_use]
    pub fn compare_metrics(&self, trim: usize, better: BetterDirection) -> Vec<MetricComparison> {
        let of = |series: &[ProgramMeasurement],
                  value: &dyn Fn(&ProgramMeasurement) -> Option<f64>|
         -> Vec<f64> { series.iter().filter_map(value).collect() };
        let mut rows = Vec::new();
        let mut add = |name: &str, better, value: &dyn Fn(&ProgramMeasurement) -> Option<f64>| {
            let (before, after) =
                (of(&self.measures_before, value), of(&self.measures_after, value));
            if !before.is_empty() && !after.is_empty() {
                rows.push(compare_series(name, &before, &after, trim, better));
            }
        };
        add("metric", better, &|run| run.metric);
        add("seconds", BetterDirection::Lower, &|run| Some(run.elapsed.as_secs_f64()));
        add("processor seconds", BetterDirection::Lower, &|run| Some(run.cpu_time.as_secs_f64()));
        add("peak MiB", BetterDirection::Lower, &|run| {
            run.peak_memory.map(|peak| peak as f64 / 1_048_576.0)
        });
        rows
    }
}

/// Reads a JSON report, or every report in a folder and its subfolders, ordered by name.
///
/// # Errors
/// [`Error::FileAccess`]; [`Error::UnusableInput`] if there is no report.
pub fn read_reports(path: &Path) -> Result<Vec<RunFigures>> {
    let mut figures = Vec::new();
    if path.is_dir() {
        let lost = |error| Error::read_failed(path, error);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path).map_err(lost)? {
            entries.push(entry.map_err(lost)?.path());
        }
        entries.sort();
        for entry in entries {
            let is_json = entry.extension().is_some_and(|extension| extension == "json");
            if is_json || entry.is_dir() {
                // Other JSON files of a run may be in the folder.
                figures.extend(read_reports(&entry).unwrap_or_default());
            }
        }
    } else {
        let bytes = std::fs::read(path).map_err(|error| Error::read_failed(path, error))?;
        let report = serde_json::from_slice::<Value>(&bytes).ok();
        figures.extend(report.as_ref().and_then(RunFigures::from_report));
    }
    if figures.is_empty() {
        return Err(Error::UnusableInput(format!(
            "`{}` contains no lab report; create one with --json",
            path.display()
        )));
    }
    Ok(figures)
}

/// Compares every figure of two series of reports.
#[must_use]
pub fn compare_reports(
    before: &[RunFigures],
    after: &[RunFigures],
    trim: usize,
) -> Vec<MetricComparison> {
    type Value = fn(&RunFigures) -> f64;
    let metrics: [(&str, BetterDirection, Value); 7] = [
        ("requests/s", BetterDirection::Higher, |run| run.rate),
        ("mean ms", BetterDirection::Lower, |run| run.mean_ms),
        ("p50 ms", BetterDirection::Lower, |run| run.p50_ms),
        ("p95 ms", BetterDirection::Lower, |run| run.p95_ms),
        ("p99 ms", BetterDirection::Lower, |run| run.p99_ms),
        ("max ms", BetterDirection::Lower, |run| run.max_ms),
        ("errors %", BetterDirection::Lower, |run| {
            run.errors as f64 * 100.0 / run.samples.max(1) as f64
        }),
    ];
    metrics
        .into_iter()
        .map(|(name, better, value)| {
            let series = |runs: &[RunFigures]| runs.iter().map(value).collect::<Vec<f64>>();
            compare_series(name, &series(before), &series(after), trim, better)
        })
        .collect()
}
