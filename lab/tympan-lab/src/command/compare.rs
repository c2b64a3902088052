//! `compare`: compares two series of numbers, reports, or programs that run alternately.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_lab_tools::metric_comparison::{
    ComparisonVerdict, DifferenceBasis, MetricComparison, compare_series,
};
use tympan_lab_tools::paired_run;
use tympan_lab_tools::paired_run::PairedRunOptions;
use tympan_lab_tools::program::MeasuredProgram;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, is_color_shown, say};

use super::{lab_fault, read_text, tune};
use crate::args::read::LabCompareArgs;

pub(super) fn run_compare(arguments: &LabCompareArgs) -> CommandOutcome {
    let rows = match arguments.runs {
        Some(runs) => compare_programs(arguments, runs)?,
        None if is_report_json(&arguments.before) && is_report_json(&arguments.after) => {
            let read = |text: &str| paired_run::read_reports(Path::new(text)).map_err(lab_fault);
            let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
            paired_run::compare_reports(&before, &after, arguments.trim)
        }
        None => compare_numbers(arguments)?,
    };
    if arguments.json {
        say!("{}", json!({ "metrics": rows.iter().map(comparison_json).collect::<Vec<_>>() }));
    } else {
        let is_colored = is_color_shown(&std::io::stdout());
        rows.iter().for_each(|row| say!("{}", comparison_line(row, is_colored)));
    }
    let is_any = |verdict: ComparisonVerdict| rows.iter().any(|row| row.verdict() == verdict);
    Ok(match arguments.fail_if_worse {
        true if is_any(ComparisonVerdict::Worse) => ExitCode::from(CHECK_FAILED_EXIT_CODE),
        true if is_any(ComparisonVerdict::TooFewRuns) => ExitCode::from(3),
        _ => ExitCode::SUCCESS,
    })
}

/// Formats a comparison as a line; green marks an improvement and red a degradation if colors are enabled.
fn comparison_line(row: &MetricComparison, is_colored: bool) -> String {
    match (is_colored, row.is_improvement()) {
        (false, _) => row.to_string(),
        (true, true) => format!("\x1b[32m{row}\x1b[0m"),
        (true, false) => format!("\x1b[31m{row}\x1b[0m"),
    }
}

fn comparison_json(row: &MetricComparison) -> serde_json::Value {
    json!({
        "metric": row.metric,
        "before": row.mean_before,
        "after": row.mean_after,
        "difference": row.difference,
        "share": row.difference_share,
        "interval": [row.confidence_interval.0, row.confidence_interval.1],
        "interval_of": match row.interval_basis {
            DifferenceBasis::ShareOfMedian => "share",
            DifferenceBasis::AbsoluteDifference => "difference",
        },
        "p_value": row.p_value,
        "verdict": match row.verdict() {
            ComparisonVerdict::Better => "better",
            ComparisonVerdict::Worse => "worse",
            ComparisonVerdict::NoDifference => "noise",
            ComparisonVerdict::TooFewRuns => "too few runs",
        },
    })
}

fn is_report_json(text: &str) -> bool {
    let path = Path::new(text);
    path.is_dir() || path.extension().is_some_and(|extension| extension == "json")
}

fn compare_programs(
    arguments: &LabCompareArgs,
    runs: usize,
) -> Result<Vec<MetricComparison>, CommandFault> {
    if runs == 0 {
        return Err(CommandFault::usage("--runs must be at least 1"));
    }
    let metric = tune::parse_metric(arguments.metric.as_deref())?;
    let program = |line: &str| MeasuredProgram {
        words: ["sh", "-c", line].map(str::to_owned).to_vec(),
        metric: metric.clone(),
    };
    let turns = PairedRunOptions {
        runs_per_program: runs,
        warm_up_runs: arguments.warm_ups,
        seed: arguments.seed,
    };
    let (before_program, after_program) = (program(&arguments.before), program(&arguments.after));
    let paired =
        paired_run::measure_pairs(&before_program, &after_program, turns).map_err(lab_fault)?;
    if !arguments.json {
        for (name, series) in
            [("before", &paired.measures_before), ("after ", &paired.measures_after)]
        {
            for run in series {
                let metric = run.metric.map(|metric| format!("  {metric}")).unwrap_or_default();
                say!("{name}  {:.4} s{metric}", run.elapsed.as_secs_f64());
            }
        }
    }
    Ok(paired.compare_metrics(arguments.trim, arguments.better.direction()))
}

fn compare_numbers(arguments: &LabCompareArgs) -> Result<Vec<MetricComparison>, CommandFault> {
    let (names, before) = read_number_columns(Path::new(&arguments.before))?;
    let (_, after) = read_number_columns(Path::new(&arguments.after))?;
    let better = arguments.better.direction();
    Ok(before
        .iter()
        .zip(&after)
        .enumerate()
        .map(|(number, (before_numbers, after_numbers))| {
            let name =
                names.get(number).cloned().unwrap_or_else(|| format!("column {}", number + 1));
            compare_series(&name, before_numbers, after_numbers, arguments.trim, better)
        })
        .collect())
}

/// Reads numbers: one run per line, columns separated by spaces, commas, tabs or `|`; a line with a word is a heading.
fn read_number_columns(path: &Path) -> Result<(Vec<String>, Vec<Vec<f64>>), CommandFault> {
    let mut names = Vec::new();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for line in read_text(path)?.lines() {
        let words: Vec<&str> = line
            .split(['|', ',', '\t', ';', ' '])
            .map(str::trim)
            .filter(|field| !field.is_empty())
            .collect();
        let numbers: Option<Vec<f64>> = words.iter().map(|field| field.parse().ok()).collect();
        match numbers {
            Some(numbers) => {
                columns.resize_with(columns.len().max(numbers.len()), Vec::new);
                columns.iter_mut().zip(numbers).for_each(|(column, number)| column.push(number));
            }
            None => names = words.iter().map(|field| (*field).to_owned()).collect(),
        }
    }
    if columns.is_empty() {
        return Err(CommandFault::usage(format!("`{}` contains no numbers", path.display())));
    }
    Ok((names, columns))
}

#[cfg(test)]
mod tests {
    use tympan_lab_tools::metric_comparison::BetterDirection;

    use super::*;

    #[test]
    fn what_is_better_is_green_and_the_words_say_it_too() {
        let row =
            |after: f64| compare_series("ms", &[10.0; 8], &[after; 8], 0, BetterDirection::Lower);
        let (faster, slower) = (row(5.0), row(20.0));
        assert_eq!(comparison_line(&faster, true), format!("\x1b[32m{faster}\x1b[0m"));
        assert_eq!(comparison_line(&slower, true), format!("\x1b[31m{slower}\x1b[0m"));
        assert!(
            comparison_line(&faster, false).ends_with("better")
                && comparison_line(&slower, false).ends_with("worse")
        );
    }
}
