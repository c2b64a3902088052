//! The tuning journal: one change at a time, with the requests made, the measurements, and which steps are comparable.
//!
//! In: [`JournalStep`]s, one JSON object per line of a file. Out: a table with a factor per step, or the reason why
//! there is none.
//!
//! Invariants
//! * A factor is given only between steps that made the same requests; otherwise the differences in
//!   [`JournalStep::asked`] are listed instead.
//! * The file is append-only.
//!
//! Not here: running the measurement of a step (the binary), parsing journals of ab's text
//! ([`crate::ab::parse_ab_reports`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tympan_lab_plan::FileFinding;

use crate::ab::AbReport;
use crate::{Error, Result};

/// Responses whose mean length differs by more than this share count as a different document.
const MAX_LENGTH_DIFFERENCE: f64 = 0.01;
/// The key of the mean response length in [`JournalStep::asked`].
const MEAN_LENGTH_KEY: &str = "document length";

/// One step of the journal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalStep {
    /// The change.
    pub what: String,
    /// The time, as RFC 3339.
    pub at: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// The parameters of the requests by name: everything that must be equal for two runs to be comparable.
    pub asked: BTreeMap<String, String>,
    /// The measurements.
    pub figures: RunFigures,
}

/// The measurements of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFigures {
    /// Number of requests.
    pub samples: u64,
    /// Number of failed requests.
    pub errors: u64,
    /// Requests per second.
    pub rate: f64,
    /// Mean time.
    pub mean_ms: f64,
    /// Median time.
    pub p50_ms: f64,
    /// 95th percentile of the time.
    pub p95_ms: f64,
    /// 98th percentile of the time.
    pub p98_ms: f64,
    /// 99th percentile of the time.
    pub p99_ms: f64,
    /// Maximum time.
    pub max_ms: f64,
    /// Mean length of a response body.
    pub length: f64,
}

impl RunFigures {
    /// Returns the figures of a JSON report of this lab; `None` if it is not one.
    #[must_use]
    pub fn from_report(report: &Value) -> Option<Self> {
        let total = report.get("total")?;
        let number = |name: &str| total.get(name).and_then(Value::as_f64);
        let samples = total.get("samples")?.as_u64()?;
        let per_sample = |bytes: f64| bytes / samples.max(1) as f64;
        Some(Self {
            samples,
            errors: total.get("errors")?.as_u64()?,
            rate: number("per_second")?,
            mean_ms: number("mean_ms")?,
            p50_ms: number("p50_ms")?,
            p95_ms: number("p95_ms")?,
            p98_ms: number("p98_ms").or_else(|| number("p99_ms"))?,
            p99_ms: number("p99_ms")?,
            max_ms: number("max_ms")?,
            length: per_sample(number("body_bytes").or_else(|| number("received_bytes"))?),
        })
    }

    /// Returns the figures of a run of ab.
    #[must_use]
    pub fn from_ab_report(run: &AbReport) -> Self {
        let percentile = |percent| run.percentile(percent).map_or(0.0, |ms| ms as f64);
        Self {
            samples: run.completed_requests,
            errors: run.failed_requests,
            rate: run.requests_per_second,
            mean_ms: run.ms_per_request,
            p50_ms: percentile(50),
            p95_ms: percentile(95),
            p98_ms: percentile(98),
            p99_ms: percentile(99),
            max_ms: percentile(100),
            length: run.html_transferred as f64 / run.completed_requests.max(1) as f64,
        }
    }
}

impl JournalStep {
    /// Records the response length among the parameters of the requests.
    pub fn record_response_length(&mut self) {
        self.asked.insert(MEAN_LENGTH_KEY.to_owned(), format!("{:.0}", self.figures.length));
    }

    /// Returns the reasons why this step is not comparable with an earlier one; empty if it is.
    #[must_use]
    pub fn differences_from(&self, before: &Self) -> Vec<String> {
        let mut names: Vec<&String> = self.asked.keys().chain(before.asked.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let value = |step: &Self, name: &str| {
            step.asked.get(name).cloned().unwrap_or_else(|| "-".to_owned())
        };
        names
            .into_iter()
            .filter_map(|name| {
                let (old, new) = (value(before, name), value(self, name));
                let is_same =
                    if name == MEAN_LENGTH_KEY { is_same_length(&old, &new) } else { old == new };
                (!is_same).then(|| format!("{name} {old} -> {new}"))
            })
            .collect()
    }
}

fn is_same_length(old: &str, new: &str) -> bool {
    match (old.parse::<f64>(), new.parse::<f64>()) {
        (Ok(old), Ok(new)) => (old - new).abs() <= old.max(new) * MAX_LENGTH_DIFFERENCE,
        _ => old == new,
    }
}

/// Appends a step to a file, which is created if it does not exist.
///
/// # Errors
/// [`Error::FileAccess`].
pub fn append_step(path: &Path, step: &JournalStep) -> Result<()> {
    let lost = |error| Error::write_failed(path, error);
    let mut line = serde_json::to_vec(step).map_err(|error| lost(error.into()))?;
    line.push(b'\n');
    let mut file = File::options().append(true).create(true).open(path).map_err(lost)?;
    file.write_all(&line).and_then(|()| file.sync_data()).map_err(lost)
}

/// Reads all steps of a file.
///
/// # Errors
/// [`Error::FileAccess`]; `Error::InvalidFile` with every invalid line.
pub fn read_steps(path: &Path) -> Result<Vec<JournalStep>> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::read_failed(path, error))?;
    let mut steps = Vec::new();
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(step) => steps.push(step),
            Err(error) => findings.push(FileFinding {
                file: path.display().to_string(),
                line: u32::try_from(number + 1).unwrap_or(u32::MAX),
                column: u32::try_from(error.column()).unwrap_or(1),
                message: format!("invalid journal step: {error}"),
            }),
        }
    }
    if findings.is_empty() {
        Ok(steps)
    } else {
        Err(tympan_lab_plan::Error::InvalidFile(findings).into())
    }
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JournalRow {
    /// Row number, counted from 1.
    pub number: usize,
    /// The change.
    pub what: String,
    /// The measurements.
    pub figures: RunFigures,
    /// Requests per second, divided by those of the previous step; `None` if the two are not comparable.
    pub factor: Option<f64>,
    /// The same against the first step.
    pub of_first: Option<f64>,
    /// The reasons why there is no factor.
    pub differences: Vec<String>,
    /// True if the step repeats the previous one, which filled its caches.
    pub is_repeat: bool,
}

/// Compares each step with the previous and the first step.
#[must_use]
pub fn compare_steps(steps: &[JournalStep]) -> Vec<JournalRow> {
    let factor = |step: &JournalStep, before: &JournalStep| {
        let may = step.differences_from(before).is_empty() && before.figures.rate > 0.0;
        may.then(|| step.figures.rate / before.figures.rate)
    };
    steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let before = index.checked_sub(1).and_then(|index| steps.get(index));
            let first = steps.first().filter(|_| index > 0);
            JournalRow {
                number: index + 1,
                what: step.what.clone(),
                figures: step.figures,
                factor: before.and_then(|before| factor(step, before)),
                of_first: first.and_then(|first| factor(step, first)),
                differences: before.map(|before| step.differences_from(before)).unwrap_or_default(),
                is_repeat: before.is_some_and(|before| before.what == step.what),
            }
        })
        .collect()
}

/// Returns the table as text.
#[must_use]
pub fn format_journal_table(rows: &[JournalRow]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0).clamp(6, 48);
    let mut out = format!(
        "{:>3} {:<width$} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "#", "change", "req/s", "x before", "x first", "p50 ms", "p98 ms", "max ms"
    );
    let times =
        |factor: Option<f64>| factor.map_or("-".to_owned(), |factor| format!("{factor:.2}x"));
    for row in rows {
        let step: String = row.what.chars().take(width).collect();
        // Writing to a string cannot fail.
        write!(
            out,
            "{:>3} {step:<width$} {:>10.2} {:>9} {:>9} {:>9.1} {:>9.1} {:>9.1}",
            row.number,
            row.figures.rate,
            times(row.factor),
            times(row.of_first),
            row.figures.p50_ms,
            row.figures.p98_ms,
            row.figures.max_ms
        )
        .ok();
        if row.figures.errors > 0 {
            write!(out, "  {} errors", row.figures.errors).ok();
        }
        if row.is_repeat {
            out.push_str("  repeat: caches were filled by the previous step");
        }
        if !row.differences.is_empty() {
            let differences = row.differences.join(", ");
            write!(out, "  not comparable with step {}: {differences}", row.number - 1).ok();
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}
