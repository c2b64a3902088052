//! Two programs measured in turn, and two series of reports side by side.
//!
//! Two systems that were measured on different days differ by the days. So runs go A B A B, beginning with the one that
//! a seed chooses, after one run of each that does not count.
//!
//! Not here: what a difference amounts to ([`crate::compare`]).

use std::path::Path;

use serde_json::Value;

use crate::compare::{Better, Comparison, compare};
use crate::journal::Figures;
use crate::load::random;
use crate::program::{Measure, Program};
use crate::{Error, Result};

/// Runs of two programs, in pairs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Paired {
    /// The first program's.
    pub before: Vec<Measure>,
    /// The second's.
    pub after: Vec<Measure>,
}

/// How to measure in turn.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    /// Runs of each that count.
    pub runs: usize,
    /// Runs of each before that, which do not.
    pub warm_ups: usize,
    /// Chooses who begins.
    pub seed: u64,
}

/// Measures two programs in turn.
///
/// # Errors
/// As [`Program::measure`].
pub fn measure(one: &Program, two: &Program, turns: Turns) -> Result<Paired> {
    let mut paired = Paired::default();
    let begins_with_two = random(turns.seed, 0) % 2 == 1;
    for round in 0..turns.warm_ups + turns.runs {
        for turn in [begins_with_two, !begins_with_two] {
            let (program, series) =
                if turn { (two, &mut paired.after) } else { (one, &mut paired.before) };
            let measured = program.measure()?;
            if round >= turns.warm_ups {
                series.push(measured);
            }
        }
    }
    Ok(paired)
}

impl Paired {
    /// Compares times, memory and, where both print one, the number that was looked for.
    #[must_use]
    pub fn compare(&self, trim: usize, better: Better) -> Vec<Comparison> {
        let of = |series: &[Measure], value: &dyn Fn(&Measure) -> Option<f64>| -> Vec<f64> {
            series.iter().filter_map(value).collect()
        };
        let mut rows = Vec::new();
        let mut add = |name: &str, better, value: &dyn Fn(&Measure) -> Option<f64>| {
            let (one, two) = (of(&self.before, value), of(&self.after, value));
            if !one.is_empty() && !two.is_empty() {
                rows.push(compare(name, &one, &two, trim, better));
            }
        };
        add("metric", better, &|run| run.metric);
        add("seconds", Better::Less, &|run| Some(run.elapsed.as_secs_f64()));
        add("processor seconds", Better::Less, &|run| Some(run.cpu.as_secs_f64()));
        add("peak MiB", Better::Less, &|run| run.peak.map(|peak| peak as f64 / 1_048_576.0));
        rows
    }
}

/// Reads a report in JSON, or every report in a folder and the folders in it, in the order of their names.
///
/// # Errors
/// [`Error::File`]; [`Error::Input`] if nothing there is a report.
pub fn read_reports(path: &Path) -> Result<Vec<Figures>> {
    let mut figures = Vec::new();
    if path.is_dir() {
        let lost = |error| Error::read(path, error);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path).map_err(lost)? {
            entries.push(entry.map_err(lost)?.path());
        }
        entries.sort();
        for entry in entries {
            let is_json = entry.extension().is_some_and(|extension| extension == "json");
            if is_json || entry.is_dir() {
                // Other files of a run may be JSON too.
                figures.extend(read_reports(&entry).unwrap_or_default());
            }
        }
    } else {
        let bytes = std::fs::read(path).map_err(|error| Error::read(path, error))?;
        let report = serde_json::from_slice::<Value>(&bytes).ok();
        figures.extend(report.as_ref().and_then(Figures::of_report));
    }
    if figures.is_empty() {
        return Err(Error::Input(format!(
            "`{}` holds no report of the lab; make one with --json",
            path.display()
        )));
    }
    Ok(figures)
}

/// Compares every figure of two series of reports.
#[must_use]
pub fn compare_reports(before: &[Figures], after: &[Figures], trim: usize) -> Vec<Comparison> {
    type Value = fn(&Figures) -> f64;
    let metrics: [(&str, Better, Value); 7] = [
        ("requests/s", Better::More, |run| run.rate),
        ("mean ms", Better::Less, |run| run.mean_ms),
        ("p50 ms", Better::Less, |run| run.p50_ms),
        ("p95 ms", Better::Less, |run| run.p95_ms),
        ("p99 ms", Better::Less, |run| run.p99_ms),
        ("max ms", Better::Less, |run| run.max_ms),
        ("errors %", Better::Less, |run| run.errors as f64 * 100.0 / run.samples.max(1) as f64),
    ];
    metrics
        .into_iter()
        .map(|(name, better, value)| {
            let series = |runs: &[Figures]| runs.iter().map(value).collect::<Vec<f64>>();
            compare(name, &series(before), &series(after), trim, better)
        })
        .collect()
}
