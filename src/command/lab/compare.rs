//! `compare`: two series side by side, from numbers, reports, or programs that run in turn.

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_lab::compare::{Basis, Better, Comparison, Verdict, compare as compare_series};
use tympan_lab::paired::{self, Turns};
use tympan_lab::program::Program;

use super::{fault, read_text, tune};
use crate::args::lab_proof::Compare;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn compare(arguments: &Compare) -> Outcome {
    let rows = match arguments.runs {
        Some(runs) => of_programs(arguments, runs)?,
        None if is_report(&arguments.before) && is_report(&arguments.after) => {
            let read =
                |text: &str| paired::read_reports(Path::new(text)).map_err(|error| fault(&error));
            let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
            paired::compare_reports(&before, &after, arguments.trim)
        }
        None => of_numbers(arguments)?,
    };
    if arguments.json {
        say!("{}", json!({ "metrics": rows.iter().map(row_json).collect::<Vec<_>>() }));
    } else {
        let is_colored = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        rows.iter().for_each(|row| say!("{}", line(row, is_colored)));
    }
    let is_any = |verdict: Verdict| rows.iter().any(|row| row.verdict() == verdict);
    Ok(match arguments.fail_if_worse {
        true if is_any(Verdict::Worse) => ExitCode::from(CHECK_FAILED),
        true if is_any(Verdict::TooFew) => ExitCode::from(3),
        _ => ExitCode::SUCCESS,
    })
}

/// Returns a comparison as a line; green and red tell the direction of goodness to those who see colors.
fn line(row: &Comparison, is_colored: bool) -> String {
    match (is_colored, row.is_good()) {
        (false, _) => row.to_string(),
        (true, true) => format!("\x1b[32m{row}\x1b[0m"),
        (true, false) => format!("\x1b[31m{row}\x1b[0m"),
    }
}

fn better(arguments: &Compare) -> Better {
    if arguments.less_is_better { Better::Less } else { Better::More }
}

fn row_json(row: &Comparison) -> serde_json::Value {
    json!({
        "metric": row.metric,
        "before": row.before,
        "after": row.after,
        "difference": row.difference,
        "share": row.share,
        "interval": [row.interval.0, row.interval.1],
        "interval_of": match row.basis {
            Basis::Share => "share",
            Basis::Difference => "difference",
        },
        "chance": row.chance,
        "verdict": match row.verdict() {
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Noise => "noise",
            Verdict::TooFew => "too few runs",
        },
    })
}

fn is_report(text: &str) -> bool {
    let path = Path::new(text);
    path.is_dir() || path.extension().is_some_and(|extension| extension == "json")
}

fn of_programs(arguments: &Compare, runs: usize) -> Result<Vec<Comparison>, Fault> {
    if runs == 0 {
        return Err(Fault::usage("--runs is at least 1"));
    }
    let metric = tune::metric(arguments.metric.as_deref())?;
    let program = |line: &str| Program {
        words: ["sh", "-c", line].map(str::to_owned).to_vec(),
        metric: metric.clone(),
    };
    let turns = Turns { runs, warm_ups: arguments.warm_ups, seed: arguments.seed };
    let (one, two) = (program(&arguments.before), program(&arguments.after));
    let paired = paired::measure(&one, &two, turns).map_err(|error| fault(&error))?;
    if !arguments.json {
        for (name, series) in [("before", &paired.before), ("after ", &paired.after)] {
            for run in series {
                let metric = run.metric.map(|metric| format!("  {metric}")).unwrap_or_default();
                say!("{name}  {:.4} s{metric}", run.elapsed.as_secs_f64());
            }
        }
    }
    Ok(paired.compare(arguments.trim, better(arguments)))
}

fn of_numbers(arguments: &Compare) -> Result<Vec<Comparison>, Fault> {
    let (names, before) = columns(Path::new(&arguments.before))?;
    let (_, after) = columns(Path::new(&arguments.after))?;
    let better = better(arguments);
    Ok(before
        .iter()
        .zip(&after)
        .enumerate()
        .map(|(number, (one, two))| {
            let name =
                names.get(number).cloned().unwrap_or_else(|| format!("column {}", number + 1));
            compare_series(&name, one, two, arguments.trim, better)
        })
        .collect())
}

/// Reads numbers: one run per line, columns parted by spaces, commas, tabs or `|`; a line with a word is a heading.
fn columns(path: &Path) -> Result<(Vec<String>, Vec<Vec<f64>>), Fault> {
    let mut names = Vec::new();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for line in read_text(path)?.lines() {
        let words: Vec<&str> = line
            .split(['|', ',', '\t', ';', ' '])
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect();
        let numbers: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
        match numbers {
            Some(numbers) => {
                columns.resize_with(columns.len().max(numbers.len()), Vec::new);
                columns.iter_mut().zip(numbers).for_each(|(column, number)| column.push(number));
            }
            None => names = words.iter().map(|word| (*word).to_owned()).collect(),
        }
    }
    if columns.is_empty() {
        return Err(Fault::usage(format!("`{}` holds no numbers", path.display())));
    }
    Ok((names, columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_better_is_green_and_the_words_say_it_too() {
        let row = |after: f64| compare_series("ms", &[10.0; 8], &[after; 8], 0, Better::Less);
        let (faster, slower) = (row(5.0), row(20.0));
        assert_eq!(line(&faster, true), format!("\x1b[32m{faster}\x1b[0m"));
        assert_eq!(line(&slower, true), format!("\x1b[31m{slower}\x1b[0m"));
        assert!(
            line(&faster, false).ends_with("better") && line(&slower, false).ends_with("worse")
        );
    }
}
