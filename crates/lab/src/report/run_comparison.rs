//! Compares several runs on one page: a row for each step of each run, and the curves overlaid.
//!
//! In: folders written by `--keep`, summaries of `--json`, result files. Out: a [`ReportSheet`].
//!
//! Invariants
//! * A figure from a summary is unchanged; a figure of a result file is computed from its rows. Nothing is averaged
//!   over runs.
//! * A run without times per second (one of several phases, a summary alone) has rows but no curves.
//!
//! Not here: whether a difference exceeds noise, which takes several runs of each ([`crate::comparison::metric_comparison`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::html::time_unit;
use super::report_sheet::{
    LINE_CSS_CLASSES, ReportChart, ReportPart, ReportSheet, ReportTable, ReportTone,
};
use super::{RunReport, figure_text, read_results, report_to_json};
use crate::measurement::{TimingHistogram, hlog};
use crate::{Error, Result};

/// One run.
#[derive(Debug, Clone, Default)]
pub struct ComparedRun {
    /// The name of its folder or file.
    pub name: String,
    /// The run's summary, as `--json` prints it.
    pub summary: Value,
    /// The words of the run's command, if known.
    pub command_line: String,
    /// All labels together in each second; empty if unknown.
    seconds: BTreeMap<u32, TimingHistogram>,
}

/// Maximum number of labels in a table.
const MAX_COMPARED_LABELS: usize = 50;

/// Reads runs. Each path is the folder of a run, a folder of such folders, a summary (.json) or a result file.
///
/// # Errors
/// [`Error::FileAccess`]; [`Error::UnusableInput`] if a path contains no run, or a file is not a run.
pub fn read_compared_runs(paths: &[PathBuf]) -> Result<Vec<ComparedRun>> {
    let mut runs = Vec::new();
    for path in paths {
        let before = runs.len();
        if path.is_dir() {
            read_run_folder(path, &mut runs)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            runs.push(read_run_summary(path, path)?);
        } else {
            runs.push(read_result_file(path)?);
        }
        if runs.len() == before {
            return Err(Error::UnusableInput(format!(
                "`{}` contains no lab run; create one with `--keep` of a command that loads a site",
                path.display()
            )));
        }
    }
    number_duplicate_names(&mut runs, paths);
    Ok(runs)
}

fn read_run_folder(folder: &Path, runs: &mut Vec<ComparedRun>) -> Result<()> {
    if let Some(run) = read_kept_run(folder)? {
        runs.push(run);
        return Ok(());
    }
    let lost = |error| Error::read_failed(folder, error);
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(folder).map_err(lost)?.collect();
    let mut folders: Vec<PathBuf> =
        entries.map_err(lost)?.iter().map(std::fs::DirEntry::path).collect();
    folders.sort();
    for entry in folders.into_iter().filter(|entry| entry.is_dir()) {
        runs.extend(read_kept_run(&entry)?);
    }
    Ok(())
}

/// Reads the files that `--keep` wrote for one run; `None` if the folder contains no run.
fn read_kept_run(folder: &Path) -> Result<Option<ComparedRun>> {
    let summary = folder.join("summary.json");
    if !summary.is_file() {
        return Ok(None);
    }
    let mut run = read_run_summary(&summary, folder)?;
    let run_file = std::fs::read_to_string(folder.join("run.toml")).unwrap_or_default();
    run.command_line = kept_command_line(&run_file).unwrap_or_default();
    let log = folder.join("hist.hlog");
    if log.is_file() {
        let text =
            std::fs::read_to_string(&log).map_err(|error| Error::read_failed(&log, error))?;
        for line in hlog::read_histogram_log(&text, &log.display().to_string())? {
            let histogram = run.seconds.entry(line.second).or_default();
            line.buckets.iter().for_each(|&(us, count)| histogram.record_us(us, count));
        }
    }
    Ok(Some(run))
}

/// Returns the words of a stored command without the program's path.
fn kept_command_line(text: &str) -> Option<String> {
    let table: toml::Table = text.parse().ok()?;
    let words = table.get("command")?.as_array()?.iter().skip(1);
    Some(words.filter_map(toml::Value::as_str).collect::<Vec<_>>().join(" "))
}

fn read_run_summary(file: &Path, named: &Path) -> Result<ComparedRun> {
    let bytes = std::fs::read(file).map_err(|error| Error::read_failed(file, error))?;
    let summary = serde_json::from_slice::<Value>(&bytes).ok();
    let summary = summary.filter(|summary| summary.get("title").is_some()).ok_or_else(|| {
        Error::UnusableInput(format!("`{}` is not a summary written by the lab", file.display()))
    })?;
    Ok(ComparedRun { name: last_path_segment(named), summary, ..ComparedRun::default() })
}

fn read_result_file(path: &Path) -> Result<ComparedRun> {
    let file = File::open(path).map_err(|error| Error::read_failed(path, error))?;
    let name = path.display().to_string();
    let results = read_results(&mut BufReader::new(file), &name)?;
    let report =
        RunReport { title: &name, results: &results, judged_goals: &[], is_own_load: false };
    let mut seconds: BTreeMap<u32, TimingHistogram> = BTreeMap::new();
    for (&second, values) in results.labels.values().flat_map(|series| &series.seconds) {
        let histogram = seconds.entry(second).or_default();
        values.time_buckets.iter().for_each(|&(us, count)| histogram.record_us(us, count));
    }
    Ok(ComparedRun {
        name: last_path_segment(path),
        summary: report_to_json(&report),
        command_line: String::new(),
        seconds,
    })
}

fn last_path_segment(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| path.display().to_string())
}

/// Makes duplicate run names unique, by path or by number.
fn number_duplicate_names(runs: &mut [ComparedRun], paths: &[PathBuf]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (index, run) in runs.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == run.name).count() < 2 {
            continue;
        }
        // The path as given, if each path is one run.
        run.name = match paths.get(index).filter(|_| paths.len() == names.len()) {
            Some(path) => path.display().to_string(),
            None => format!("{} ({})", run.name, index + 1),
        };
    }
}

/// A row of the table: a run, or one of its steps.
struct ComparedRunRow {
    step_name: String,
    figures: BTreeMap<&'static str, f64>,
    conclusion: (ReportTone, String),
}

/// Names of figures in summaries of runs and of phases.
const SUMMARY_FIGURES: [(&str, &[&str]); 7] = [
    ("samples", &["samples"]),
    ("per second", &["per_second", "achieved_per_second"]),
    ("errors", &["errors"]),
    ("p50", &["p50_ms"]),
    ("p95", &["p95_ms"]),
    ("p99", &["p99_ms"]),
    ("max", &["max_ms"]),
];

impl ComparedRun {
    /// Returns the number of goals that the run met, and the number that it missed.
    #[must_use]
    pub fn goal_counts(&self) -> (usize, usize) {
        let goals = self.summary.get("goals").and_then(Value::as_array);
        let is_met = |goal: &&Value| goal.get("met").and_then(Value::as_bool) == Some(true);
        let all = goals.map_or(0, Vec::len);
        let met = goals.map_or(0, |goals| goals.iter().filter(is_met).count());
        (met, all - met)
    }

    fn title(&self) -> String {
        self.summary.get("title").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn table_rows(&self) -> Vec<ComparedRunRow> {
        if let Some(total) = self.summary.get("total") {
            let row = ComparedRunRow {
                step_name: self.title(),
                figures: summary_figures(total),
                conclusion: self.conclusion(),
            };
            return vec![row];
        }
        let mut rows = vec![ComparedRunRow {
            step_name: self.title(),
            figures: BTreeMap::new(),
            conclusion: self.conclusion(),
        }];
        for_each_step(&self.summary, &mut |step, name| {
            let doubts = step.get("doubts").and_then(Value::as_array).map_or(0, Vec::len);
            let statement = match doubts {
                0 => (ReportTone::Plain, String::new()),
                _ => (ReportTone::Doubtful, "unreliable".to_owned()),
            };
            rows.push(ComparedRunRow {
                step_name: format!("- {name}"),
                figures: summary_figures(step),
                conclusion: statement,
            });
        });
        rows
    }

    /// Returns the run's verdict.
    fn conclusion(&self) -> (ReportTone, String) {
        let is_full = |name: &str| {
            let list = self.summary.get(name).and_then(Value::as_array);
            list.is_some_and(|list| !list.is_empty())
        };
        if is_full("doubts") || is_full("incomplete") {
            return (ReportTone::Doubtful, "unreliable".to_owned());
        }
        let verdict = self.summary.get("verdicts").and_then(|all| all.get(0)?.as_str());
        let is_good = self.summary.get("good").and_then(Value::as_bool) == Some(true);
        if let Some(verdict) = verdict {
            return (if is_good { ReportTone::Good } else { ReportTone::Bad }, verdict.to_owned());
        }
        match self.goal_counts() {
            (0, 0) => (ReportTone::Plain, String::new()),
            (met, 0) => (ReportTone::Good, format!("{met} of {met} goals met")),
            (met, missed) => {
                (ReportTone::Bad, format!("{missed} of {} goals missed", met + missed))
            }
        }
    }

    /// Returns points over the time of the run, in the unit of an axis. A partial last second is left out.
    fn points_over_time(
        &self,
        unit: f64,
        value: &dyn Fn(&TimingHistogram) -> f64,
    ) -> Vec<(f64, f64)> {
        let last = self.seconds.keys().next_back().copied().unwrap_or(0);
        let whole = if last < 10 { u32::MAX } else { last };
        let seconds = self.seconds.range(..whole);
        seconds.map(|(&second, times)| (f64::from(second) / unit, value(times))).collect()
    }

    fn all_times(&self) -> TimingHistogram {
        let mut all = TimingHistogram::new();
        self.seconds.values().for_each(|times| all.merge(times));
        all
    }
}

fn summary_figures(summary: &Value) -> BTreeMap<&'static str, f64> {
    let number = |names: &[&str]| names.iter().find_map(|name| summary.get(name)?.as_f64());
    SUMMARY_FIGURES.iter().filter_map(|(name, keys)| Some((*name, number(keys)?))).collect()
}

/// Calls `each` with every phase in a summary, at any depth, and the phase's name.
fn for_each_step(summary: &Value, each: &mut dyn FnMut(&Value, &str)) {
    match summary {
        Value::Object(fields) => match (fields.get("phase"), fields.get("samples")) {
            (Some(Value::String(name)), Some(_)) => each(summary, name),
            _ => fields.values().for_each(|field| for_each_step(field, each)),
        },
        Value::Array(list) => list.iter().for_each(|entry| for_each_step(entry, each)),
        _ => {}
    }
}

/// Returns the comparison page of the runs.
#[must_use]
pub fn run_comparison_sheet(runs: &[ComparedRun]) -> ReportSheet {
    let title = match runs {
        [run] => run.name.clone(),
        runs => format!("{} runs", runs.len()),
    };
    let mut sheet = ReportSheet::new(&title);
    sheet.parts.push(ReportPart::Table(run_table(runs)));
    sheet.parts.extend(command_table(runs).map(ReportPart::Table));
    let plotted_runs: Vec<&ComparedRun> =
        runs.iter().filter(|run| !run.seconds.is_empty()).collect();
    if plotted_runs.len() > LINE_CSS_CLASSES.len() {
        let first = LINE_CSS_CLASSES.len();
        let text = format!("The curves show the first {first} of {} runs.", plotted_runs.len());
        sheet.parts.push(ReportPart::Text(text));
    }
    let plotted_runs: Vec<&ComparedRun> =
        plotted_runs.into_iter().take(LINE_CSS_CLASSES.len()).collect();
    if !plotted_runs.is_empty() {
        sheet.parts.extend(time_charts(&plotted_runs));
    }
    sheet.parts.extend(load_charts(runs));
    sheet.parts.extend(label_table(runs).map(ReportPart::Table));
    sheet.json_result = json!({ "runs": runs.iter().map(run_to_json).collect::<Vec<_>>() });
    sheet
}

fn run_table(runs: &[ComparedRun]) -> ReportTable {
    let names = ["run", "step"].into_iter().chain(SUMMARY_FIGURES.iter().map(|(name, _)| *name));
    let head: Vec<&str> = names.chain([""]).collect();
    let mut grid = ReportTable::new("Runs", &head);
    for run in runs {
        for row in run.table_rows() {
            let cell = |(name, _): &(&str, _)| match row.figures.get(name) {
                None => "-".to_owned(),
                Some(&value) if name.starts_with('p') || *name == "max" => match *name {
                    "per second" => format!("{value:.1}"),
                    _ => format_ms(value),
                },
                Some(&value) => figure_text::format_count(value as u64),
            };
            let (tone, conclusion) = row.conclusion;
            let cells = [run.name.clone(), row.step_name].into_iter();
            grid.add_row(
                tone,
                cells.chain(SUMMARY_FIGURES.iter().map(cell)).chain([conclusion]).collect(),
            );
        }
    }
    grid
}

fn format_ms(ms: f64) -> String {
    crate::report::goal::format_response_time(
        Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default(),
    )
}

/// Returns a table of the runs' commands, where they are known.
fn command_table(runs: &[ComparedRun]) -> Option<ReportTable> {
    let mut grid = ReportTable::new("Commands", &["run", "started", "command"]);
    for run in runs.iter().filter(|run| !run.command_line.is_empty()) {
        let started = run.summary.get("started").and_then(Value::as_str).unwrap_or_default();
        grid.add_row(
            ReportTone::Plain,
            vec![run.name.clone(), started.to_owned(), run.command_line.clone()],
        );
    }
    (!grid.rows.is_empty()).then_some(grid)
}

fn time_charts(runs: &[&ComparedRun]) -> Vec<ReportPart> {
    let longest = runs.iter().filter_map(|run| run.seconds.keys().next_back()).max();
    let elapsed = Duration::from_secs(longest.map_or(0, |&second| u64::from(second) + 1));
    let (unit, axis) = time_unit(elapsed);
    let over = |title: &str, of: &str, value: &dyn Fn(&TimingHistogram) -> f64| {
        ReportPart::Chart(ReportChart {
            title: title.to_owned(),
            vertical_unit: of.to_owned(),
            horizontal_unit: axis.to_owned(),
            lines: runs
                .iter()
                .map(|run| (run.name.clone(), run.points_over_time(unit, value)))
                .collect(),
        })
    };
    let ms =
        |share: f64| move |times: &TimingHistogram| times.quantile(share).as_secs_f64() * 1000.0;
    let whole = runs.iter().map(|run| (run.name.clone(), run.all_times())).collect();
    vec![
        over("Response time, median", "ms", &ms(0.5)),
        over("Response time, 95 %", "ms", &ms(0.95)),
        over("Samples", "1/s", &|times| times.count() as f64),
        ReportPart::Percentiles("Response time by percentile".to_owned(), whole),
    ]
}

/// Returns charts over the offered load, for runs that offered several loads.
fn load_charts(runs: &[ComparedRun]) -> Vec<ReportPart> {
    let mut lines = [Vec::new(), Vec::new()];
    for run in runs {
        let mut points: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
        for_each_step(&run.summary, &mut |step, _| {
            let number = |name: &str| step.get(name).and_then(Value::as_f64);
            let load = number("offered_per_second").or_else(|| number("users"));
            for (points, name) in points.iter_mut().zip(["achieved_per_second", "p95_ms"]) {
                points.extend(load.zip(number(name)));
            }
        });
        for (lines, mut points) in lines.iter_mut().zip(points) {
            points.sort_by(|left, right| left.0.total_cmp(&right.0));
            if points.len() > 1 && lines.len() < LINE_CSS_CLASSES.len() {
                lines.push((run.name.clone(), points));
            }
        }
    }
    let [achieved, p95] = lines;
    let part = |title: &str, unit: &str, lines: Vec<_>| {
        let (title, unit) = (title.to_owned(), unit.to_owned());
        ReportPart::Chart(ReportChart {
            title,
            vertical_unit: unit,
            horizontal_unit: "offered".to_owned(),
            lines,
        })
    };
    if achieved.is_empty() {
        return Vec::new();
    }
    vec![
        part("Achieved rate against offered rate", "1/s", achieved),
        part("Response time, 95 %, against offered rate", "ms", p95),
    ]
}

/// Returns a table of the 95th percentiles of labels that several runs share.
fn label_table(runs: &[ComparedRun]) -> Option<ReportTable> {
    let of = |run: &ComparedRun, label: &str| {
        run.summary.get("labels")?.get(label)?.get("p95_ms").and_then(Value::as_f64)
    };
    let compared: Vec<&ComparedRun> = runs
        .iter()
        .filter(|run| run.summary.get("labels").is_some())
        .take(LINE_CSS_CLASSES.len())
        .collect();
    let (first, last) = (compared.first()?, compared.last()?);
    if compared.len() < 2 {
        return None;
    }
    let names = first.summary.get("labels")?.as_object()?.keys();
    let names = names.filter(|label| compared.iter().skip(1).any(|run| of(run, label).is_some()));
    let head: Vec<&str> = std::iter::once("label")
        .chain(compared.iter().map(|run| run.name.as_str()))
        .chain(["last / first"])
        .collect();
    let mut grid = ReportTable::new("95 % by label", &head);
    for label in names.take(MAX_COMPARED_LABELS) {
        let times = compared.iter().map(|run| of(run, label).map_or("-".to_owned(), format_ms));
        let ratio = of(last, label).zip(of(first, label)).filter(|(_, first)| *first > 0.0);
        let ratio = ratio.map_or("-".to_owned(), |(last, first)| format!("x{:.2}", last / first));
        let cells = std::iter::once(label.clone()).chain(times).chain([ratio]);
        grid.add_row(ReportTone::Plain, cells.collect());
    }
    (!grid.rows.is_empty()).then_some(grid)
}

fn run_to_json(run: &ComparedRun) -> Value {
    let (met, missed) = run.goal_counts();
    let rows: Vec<Value> = run
        .table_rows()
        .into_iter()
        .map(|row| {
            let figures = row.figures.iter().map(|(name, value)| {
                let is_time = SUMMARY_FIGURES.iter().any(|(figure_name, keys)| {
                    figure_name == name && keys.iter().any(|key| key.ends_with("_ms"))
                });
                let end = if is_time { "_ms" } else { "" };
                (format!("{}{end}", name.replace(' ', "_")), json!(value))
            });
            let mut fields: serde_json::Map<String, Value> = figures.collect();
            fields.insert("step".to_owned(), json!(row.step_name.trim_start_matches("- ")));
            Value::Object(fields)
        })
        .collect();
    json!({
        "run": run.name, "command": run.command_line, "started": run.summary.get("started"),
        "goals_met": met, "goals_missed": missed, "steps": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(folder: &Path, name: &str, ms: u64, is_met: bool) {
        let run = folder.join(name);
        std::fs::create_dir_all(&run).unwrap();
        let mut results = crate::measurement::RunResults::new(std::time::SystemTime::UNIX_EPOCH);
        let series = results.labels.entry("GET /<a>".into()).or_default();
        for second in 0..20 {
            let histogram = series.seconds.entry(second).or_default();
            (histogram.sample_count, histogram.time_buckets) = (10, vec![(ms * 1000, 10)]);
            series.total.response_times.record_us(ms * 1000, 10);
        }
        *series.total.status_counts.entry(200).or_default() += 200;
        results.elapsed = Duration::from_secs(20);
        let goal = crate::report::goal::GoalResult {
            label: "*".to_owned(),
            requirement: "p95 at most 20 ms".to_owned(),
            measured: String::new(),
            is_met,
        };
        let report = RunReport {
            title: "<page>",
            results: &results,
            judged_goals: &[goal],
            is_own_load: true,
        };
        std::fs::write(run.join("summary.json"), report_to_json(&report).to_string()).unwrap();
        std::fs::write(run.join("hist.hlog"), hlog::format_histogram_log(&results)).unwrap();
        let run_file = "started = 1\ncommand = [\"/x/tympan\", \"lab\", \"get\"]\n";
        std::fs::write(run.join("run.toml"), run_file).unwrap();
    }

    #[test]
    fn runs_of_a_folder_are_laid_over_each_other() {
        let dir = tempfile::tempdir().unwrap();
        kept(dir.path(), "run-1", 10, true);
        kept(dir.path(), "run-2", 30, false);
        let phases = dir.path().join("run-3");
        std::fs::create_dir(&phases).unwrap();
        let step = |name: &str, rate: f64| {
            json!({ "phase": name, "samples": 9, "errors": 0, "offered_per_second": rate,
                    "achieved_per_second": rate / 2.0, "p95_ms": 7.0, "doubts": [] })
        };
        let steps = json!({ "title": "Breaking point", "goals": [], "good": true, "verdicts": ["breaks at 15/s"], "steps": [step("10/s", 10.0), step("15/s", 15.0)] });
        std::fs::write(phases.join("summary.json"), steps.to_string()).unwrap();
        std::fs::create_dir(dir.path().join("other")).unwrap();

        let runs = read_compared_runs(&[dir.path().to_owned()]).unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["run-1", "run-2", "run-3"]);
        assert_eq!(runs[0].all_times().count(), 200, "every time of the histograms counts");
        let sheet = run_comparison_sheet(&runs);
        let text = sheet.to_plain_text();
        for line in [
            "run-1",
            "1 of 1 goals met",
            "1 of 1 goals missed",
            "- 15/s",
            "breaks at 15/s",
            "lab get",
            "x3.00",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let page = sheet.to_html();
        assert!(page.contains("<span class=\"c1\">run-1</span> <span class=\"c2\">run-2</span>"));
        assert!(
            page.contains("Achieved rate against offered rate") && !page.contains("<page>"),
            "{page}"
        );
        let json = sheet.to_json();
        assert_eq!(json["runs"][1]["goals_missed"], 1);
        assert_eq!(json["runs"][1]["steps"][0]["p95_ms"], 30.0, "as the run told it");
        assert_eq!(json["runs"][2]["steps"][2]["per_second"], 7.5);
    }

    #[test]
    fn what_is_no_run_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let message = |path: &Path| read_compared_runs(&[path.to_owned()]).unwrap_err().to_string();
        assert!(message(dir.path()).contains("contains no lab run"), "{}", message(dir.path()));
        let json = dir.path().join("other.json");
        std::fs::write(&json, "{}").unwrap();
        assert!(
            message(&json).contains("is not a summary written by the lab"),
            "{}",
            message(&json)
        );
        kept(dir.path(), "run-1", 1, true);
        let log = dir.path().join("run-1/hist.hlog");
        std::fs::write(&log, "Tag=a,0.000,1.000,1.000,HISTFA\n").unwrap();
        assert!(message(dir.path()).contains("hist.hlog:1: not a line"), "{}", message(dir.path()));
        // Two runs of the same name are distinguished by their paths as given.
        std::fs::remove_file(&log).unwrap();
        kept(&dir.path().join("b"), "run-1", 1, true);
        let paths = ["run-1", "b/run-1"].map(|name| dir.path().join(name));
        let runs = read_compared_runs(&paths).unwrap();
        assert!(runs[1].name.ends_with("b/run-1") && runs[0].name != runs[1].name, "{runs:?}");
    }
}
