//! Several runs on one page: all of a folder, a row for each of their steps, and their curves laid over each other.
//!
//! In: folders that `--keep` made, summaries of `--json`, result files. Out: a [`Sheet`].
//!
//! Invariants
//! * A figure stands as its run told it; of a result file it is counted anew. Nothing is averaged over runs.
//! * A run without times per second (one of several phases, a summary alone) has rows and no curves.
//!
//! Not here: whether a difference is more than noise, which takes several runs of each ([`crate::compare`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::html::time_unit;
use super::sheet::{CLASSES, Curves, Grid, Part, Sheet, Tone};
use super::{Report, json as summary_of, read_rows, text};
use crate::record::{Timing, hlog};
use crate::{Error, Result};

/// One run.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The name of its folder or file.
    pub name: String,
    /// Its summary, as `--json` prints it.
    pub summary: Value,
    /// The words of its command, if they are known.
    pub asked: String,
    /// All labels together in each second; empty where they are not known.
    seconds: BTreeMap<u32, Timing>,
}

/// Most labels in a table.
const MOST_LABELS: usize = 50;

/// Reads runs: each path is a folder of a run, a folder with such folders in it, a summary (.json) or a result file.
///
/// # Errors
/// [`Error::File`]; [`Error::Input`] for a path that holds no run, or a file that is none.
pub fn read_runs(paths: &[PathBuf]) -> Result<Vec<Taken>> {
    let mut runs = Vec::new();
    for path in paths {
        let before = runs.len();
        if path.is_dir() {
            read_folder(path, &mut runs)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            runs.push(read_summary(path, path)?);
        } else {
            runs.push(read_result_file(path)?);
        }
        if runs.len() == before {
            return Err(Error::Input(format!(
                "`{}` holds no run of the lab; `--keep` of the commands that load a site makes one",
                path.display()
            )));
        }
    }
    name_apart(&mut runs, paths);
    Ok(runs)
}

fn read_folder(folder: &Path, runs: &mut Vec<Taken>) -> Result<()> {
    if let Some(run) = read_kept(folder)? {
        runs.push(run);
        return Ok(());
    }
    let lost = |error| Error::read(folder, error);
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(folder).map_err(lost)?.collect();
    let mut folders: Vec<PathBuf> =
        entries.map_err(lost)?.iter().map(std::fs::DirEntry::path).collect();
    folders.sort();
    for entry in folders.into_iter().filter(|entry| entry.is_dir()) {
        runs.extend(read_kept(&entry)?);
    }
    Ok(())
}

/// Reads what `--keep` made of one run; `None` if the folder is none.
fn read_kept(folder: &Path) -> Result<Option<Taken>> {
    let summary = folder.join("summary.json");
    if !summary.is_file() {
        return Ok(None);
    }
    let mut run = read_summary(&summary, folder)?;
    let asked = std::fs::read_to_string(folder.join("run.toml")).unwrap_or_default();
    run.asked = command(&asked).unwrap_or_default();
    let log = folder.join("hist.hlog");
    if log.is_file() {
        let text = std::fs::read_to_string(&log).map_err(|error| Error::read(&log, error))?;
        for line in hlog::read(&text, &log.display().to_string())? {
            let place = run.seconds.entry(line.second).or_default();
            line.times.iter().for_each(|&(us, count)| place.record_us(us, count));
        }
    }
    Ok(Some(run))
}

/// Returns the words of a kept command without the program's path.
fn command(text: &str) -> Option<String> {
    let table: toml::Table = text.parse().ok()?;
    let words = table.get("command")?.as_array()?.iter().skip(1);
    Some(words.filter_map(toml::Value::as_str).collect::<Vec<_>>().join(" "))
}

fn read_summary(file: &Path, named: &Path) -> Result<Taken> {
    let bytes = std::fs::read(file).map_err(|error| Error::read(file, error))?;
    let summary = serde_json::from_slice::<Value>(&bytes).ok();
    let summary = summary.filter(|summary| summary.get("title").is_some()).ok_or_else(|| {
        Error::Input(format!("`{}` is no summary that the lab wrote", file.display()))
    })?;
    Ok(Taken { name: last_of(named), summary, ..Taken::default() })
}

fn read_result_file(path: &Path) -> Result<Taken> {
    let file = File::open(path).map_err(|error| Error::read(path, error))?;
    let name = path.display().to_string();
    let results = read_rows(&mut BufReader::new(file), &name)?;
    let report = Report { title: &name, results: &results, goals: &[], is_own: false };
    let mut seconds: BTreeMap<u32, Timing> = BTreeMap::new();
    for (&second, values) in results.labels.values().flat_map(|series| &series.seconds) {
        let place = seconds.entry(second).or_default();
        values.times.iter().for_each(|&(us, count)| place.record_us(us, count));
    }
    Ok(Taken { name: last_of(path), summary: summary_of(&report), asked: String::new(), seconds })
}

fn last_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| path.display().to_string())
}

/// Gives runs of the same name the numbers of their places.
fn name_apart(runs: &mut [Taken], paths: &[PathBuf]) {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (place, run) in runs.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == run.name).count() < 2 {
            continue;
        }
        // As it was given, where each path is one run.
        run.name = match paths.get(place).filter(|_| paths.len() == names.len()) {
            Some(path) => path.display().to_string(),
            None => format!("{} ({})", run.name, place + 1),
        };
    }
}

/// A line of the table: a run, or one of its steps.
struct Row {
    step: String,
    figures: BTreeMap<&'static str, f64>,
    statement: (Tone, String),
}

/// Names of figures in summaries of runs and of phases.
const FIGURES: [(&str, &[&str]); 7] = [
    ("samples", &["samples"]),
    ("per second", &["per_second", "achieved_per_second"]),
    ("errors", &["errors"]),
    ("p50", &["p50_ms"]),
    ("p95", &["p95_ms"]),
    ("p99", &["p99_ms"]),
    ("max", &["max_ms"]),
];

impl Taken {
    /// Returns the goals that the run met, and those that it missed.
    #[must_use]
    pub fn goals(&self) -> (usize, usize) {
        let goals = self.summary.get("goals").and_then(Value::as_array);
        let is_met = |goal: &&Value| goal.get("met").and_then(Value::as_bool) == Some(true);
        let all = goals.map_or(0, Vec::len);
        let met = goals.map_or(0, |goals| goals.iter().filter(is_met).count());
        (met, all - met)
    }

    fn title(&self) -> String {
        self.summary.get("title").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn rows(&self) -> Vec<Row> {
        if let Some(total) = self.summary.get("total") {
            let row =
                Row { step: self.title(), figures: figures(total), statement: self.statement() };
            return vec![row];
        }
        let mut rows =
            vec![Row { step: self.title(), figures: BTreeMap::new(), statement: self.statement() }];
        steps(&self.summary, &mut |step, name| {
            let doubts = step.get("doubts").and_then(Value::as_array).map_or(0, Vec::len);
            let statement = match doubts {
                0 => (Tone::Plain, String::new()),
                _ => (Tone::Doubt, "not to be trusted".to_owned()),
            };
            rows.push(Row { step: format!("- {name}"), figures: figures(step), statement });
        });
        rows
    }

    /// Returns what the run amounts to.
    fn statement(&self) -> (Tone, String) {
        let is_full = |name: &str| {
            let list = self.summary.get(name).and_then(Value::as_array);
            list.is_some_and(|list| !list.is_empty())
        };
        if is_full("doubts") || is_full("incomplete") {
            return (Tone::Doubt, "not to be trusted".to_owned());
        }
        let verdict = self.summary.get("verdicts").and_then(|all| all.get(0)?.as_str());
        let is_good = self.summary.get("good").and_then(Value::as_bool) == Some(true);
        if let Some(verdict) = verdict {
            return (if is_good { Tone::Good } else { Tone::Bad }, verdict.to_owned());
        }
        match self.goals() {
            (0, 0) => (Tone::Plain, String::new()),
            (met, 0) => (Tone::Good, format!("{met} of {met} goals met")),
            (met, missed) => (Tone::Bad, format!("{missed} of {} goals missed", met + missed)),
        }
    }

    /// Returns points over the time of the run, in the unit of an axis; a last second that the run did not fill is left out.
    fn over(&self, unit: f64, value: &dyn Fn(&Timing) -> f64) -> Vec<(f64, f64)> {
        let last = self.seconds.keys().next_back().copied().unwrap_or(0);
        let whole = if last < 10 { u32::MAX } else { last };
        let seconds = self.seconds.range(..whole);
        seconds.map(|(&second, times)| (f64::from(second) / unit, value(times))).collect()
    }

    fn times(&self) -> Timing {
        let mut all = Timing::new();
        self.seconds.values().for_each(|times| all.add(times));
        all
    }
}

fn figures(told: &Value) -> BTreeMap<&'static str, f64> {
    let number = |names: &[&str]| names.iter().find_map(|name| told.get(name)?.as_f64());
    FIGURES.iter().filter_map(|(name, keys)| Some((*name, number(keys)?))).collect()
}

/// Calls `each` with every phase that a summary holds, wherever it stands, and the phase's name.
fn steps(told: &Value, each: &mut dyn FnMut(&Value, &str)) {
    match told {
        Value::Object(fields) => match (fields.get("phase"), fields.get("samples")) {
            (Some(Value::String(name)), Some(_)) => each(told, name),
            _ => fields.values().for_each(|field| steps(field, each)),
        },
        Value::Array(list) => list.iter().for_each(|entry| steps(entry, each)),
        _ => {}
    }
}

/// Returns the page of some runs.
#[must_use]
pub fn sheet(runs: &[Taken]) -> Sheet {
    let title = match runs {
        [run] => run.name.clone(),
        runs => format!("{} runs", runs.len()),
    };
    let mut sheet = Sheet::new(&title);
    sheet.parts.push(Part::Grid(table(runs)));
    sheet.parts.extend(commands(runs).map(Part::Grid));
    let drawn: Vec<&Taken> = runs.iter().filter(|run| !run.seconds.is_empty()).collect();
    if drawn.len() > CLASSES.len() {
        let first = CLASSES.len();
        let text = format!("The curves show the first {first} of {} runs.", drawn.len());
        sheet.parts.push(Part::Text(text));
    }
    let drawn: Vec<&Taken> = drawn.into_iter().take(CLASSES.len()).collect();
    if !drawn.is_empty() {
        sheet.parts.extend(curves(&drawn));
    }
    sheet.parts.extend(against_load(runs));
    sheet.parts.extend(labels(runs).map(Part::Grid));
    sheet.json = json!({ "runs": runs.iter().map(to_json).collect::<Vec<_>>() });
    sheet
}

fn table(runs: &[Taken]) -> Grid {
    let names = ["run", "step"].into_iter().chain(FIGURES.iter().map(|(name, _)| *name));
    let head: Vec<&str> = names.chain([""]).collect();
    let mut grid = Grid::new("Runs", &head);
    for run in runs {
        for row in run.rows() {
            let cell = |(name, _): &(&str, _)| match row.figures.get(name) {
                None => "-".to_owned(),
                Some(&value) if name.starts_with('p') || *name == "max" => match *name {
                    "per second" => format!("{value:.1}"),
                    _ => time(value),
                },
                Some(&value) => text::count(value as u64),
            };
            let (tone, word) = row.statement;
            let cells = [run.name.clone(), row.step].into_iter();
            grid.add(tone, cells.chain(FIGURES.iter().map(cell)).chain([word]).collect());
        }
    }
    grid
}

fn time(ms: f64) -> String {
    crate::goal::show(Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default())
}

/// Returns what was asked of each run, where that is known.
fn commands(runs: &[Taken]) -> Option<Grid> {
    let mut grid = Grid::new("What was asked", &["run", "started", "command"]);
    for run in runs.iter().filter(|run| !run.asked.is_empty()) {
        let started = run.summary.get("started").and_then(Value::as_str).unwrap_or_default();
        grid.add(Tone::Plain, vec![run.name.clone(), started.to_owned(), run.asked.clone()]);
    }
    (!grid.rows.is_empty()).then_some(grid)
}

fn curves(runs: &[&Taken]) -> Vec<Part> {
    let longest = runs.iter().filter_map(|run| run.seconds.keys().next_back()).max();
    let elapsed = Duration::from_secs(longest.map_or(0, |&second| u64::from(second) + 1));
    let (unit, axis) = time_unit(elapsed);
    let over = |title: &str, of: &str, value: &dyn Fn(&Timing) -> f64| {
        Part::Curves(Curves {
            title: title.to_owned(),
            unit: of.to_owned(),
            axis: axis.to_owned(),
            lines: runs.iter().map(|run| (run.name.clone(), run.over(unit, value))).collect(),
        })
    };
    let ms = |share: f64| move |times: &Timing| times.quantile(share).as_secs_f64() * 1000.0;
    let whole = runs.iter().map(|run| (run.name.clone(), run.times())).collect();
    vec![
        over("Response time, median", "ms", &ms(0.5)),
        over("Response time, 95 %", "ms", &ms(0.95)),
        over("Samples", "1/s", &|times| times.count() as f64),
        Part::Percentiles("Response time by percentile".to_owned(), whole),
    ]
}

/// Returns curves over the offered load of runs that offered several.
fn against_load(runs: &[Taken]) -> Vec<Part> {
    let mut lines = [Vec::new(), Vec::new()];
    for run in runs {
        let mut points: [Vec<(f64, f64)>; 2] = [Vec::new(), Vec::new()];
        steps(&run.summary, &mut |step, _| {
            let number = |name: &str| step.get(name).and_then(Value::as_f64);
            let load = number("offered_per_second").or_else(|| number("users"));
            for (points, name) in points.iter_mut().zip(["achieved_per_second", "p95_ms"]) {
                points.extend(load.zip(number(name)));
            }
        });
        for (lines, mut points) in lines.iter_mut().zip(points) {
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            if points.len() > 1 && lines.len() < CLASSES.len() {
                lines.push((run.name.clone(), points));
            }
        }
    }
    let [achieved, p95] = lines;
    let part = |title: &str, unit: &str, lines: Vec<_>| {
        let (title, unit) = (title.to_owned(), unit.to_owned());
        Part::Curves(Curves { title, unit, axis: "offered".to_owned(), lines })
    };
    if achieved.is_empty() {
        return Vec::new();
    }
    vec![
        part("Achieved against what was offered", "1/s", achieved),
        part("Response time, 95 %, against what was offered", "ms", p95),
    ]
}

/// Returns the 95th percentiles of labels that several runs have, side by side.
fn labels(runs: &[Taken]) -> Option<Grid> {
    let of = |run: &Taken, label: &str| {
        run.summary.get("labels")?.get(label)?.get("p95_ms").and_then(Value::as_f64)
    };
    let compared: Vec<&Taken> =
        runs.iter().filter(|run| run.summary.get("labels").is_some()).take(CLASSES.len()).collect();
    let (first, last) = (compared.first()?, compared.last()?);
    if compared.len() < 2 {
        return None;
    }
    let names = first.summary.get("labels")?.as_object()?.keys();
    let names = names.filter(|label| compared.iter().skip(1).any(|run| of(run, label).is_some()));
    let head: Vec<&str> = std::iter::once("label")
        .chain(compared.iter().map(|run| run.name.as_str()))
        .chain(["last of first"])
        .collect();
    let mut grid = Grid::new("95 % by label", &head);
    for label in names.take(MOST_LABELS) {
        let times = compared.iter().map(|run| of(run, label).map_or("-".to_owned(), time));
        let ratio = of(last, label).zip(of(first, label)).filter(|(_, first)| *first > 0.0);
        let ratio = ratio.map_or("-".to_owned(), |(last, first)| format!("x{:.2}", last / first));
        let cells = std::iter::once(label.clone()).chain(times).chain([ratio]);
        grid.add(Tone::Plain, cells.collect());
    }
    (!grid.rows.is_empty()).then_some(grid)
}

fn to_json(run: &Taken) -> Value {
    let (met, missed) = run.goals();
    let rows: Vec<Value> = run
        .rows()
        .into_iter()
        .map(|row| {
            let figures = row.figures.iter().map(|(name, value)| {
                let is_time = FIGURES.iter().any(|(known, keys)| {
                    known == name && keys.iter().any(|key| key.ends_with("_ms"))
                });
                let end = if is_time { "_ms" } else { "" };
                (format!("{}{end}", name.replace(' ', "_")), json!(value))
            });
            let mut fields: serde_json::Map<String, Value> = figures.collect();
            fields.insert("step".to_owned(), json!(row.step.trim_start_matches("- ")));
            Value::Object(fields)
        })
        .collect();
    json!({
        "run": run.name, "command": run.asked, "started": run.summary.get("started"),
        "goals_met": met, "goals_missed": missed, "steps": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(folder: &Path, name: &str, ms: u64, is_met: bool) {
        let run = folder.join(name);
        std::fs::create_dir_all(&run).unwrap();
        let mut results = crate::record::Results::new(std::time::SystemTime::UNIX_EPOCH);
        let series = results.labels.entry("GET /<a>".into()).or_default();
        for second in 0..20 {
            let place = series.seconds.entry(second).or_default();
            (place.count, place.times) = (10, vec![(ms * 1000, 10)]);
            series.total.response.record_us(ms * 1000, 10);
        }
        *series.total.statuses.entry(200).or_default() += 200;
        results.elapsed = Duration::from_secs(20);
        let goal = crate::goal::Judged {
            label: "*".to_owned(),
            wanted: "p95 at most 20 ms".to_owned(),
            measured: String::new(),
            is_met,
        };
        let report = Report { title: "<page>", results: &results, goals: &[goal], is_own: true };
        std::fs::write(run.join("summary.json"), summary_of(&report).to_string()).unwrap();
        std::fs::write(run.join("hist.hlog"), hlog::text(&results)).unwrap();
        let asked = "started = 1\ncommand = [\"/x/tympan\", \"lab\", \"get\"]\n";
        std::fs::write(run.join("run.toml"), asked).unwrap();
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

        let runs = read_runs(&[dir.path().to_owned()]).unwrap();
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["run-1", "run-2", "run-3"]);
        assert_eq!(runs[0].times().count(), 200, "every time of the histograms counts");
        let sheet = sheet(&runs);
        let text = sheet.plain();
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
        let page = sheet.html();
        assert!(page.contains("<span class=\"c1\">run-1</span> <span class=\"c2\">run-2</span>"));
        assert!(page.contains("against what was offered") && !page.contains("<page>"), "{page}");
        let json = sheet.to_json();
        assert_eq!(json["runs"][1]["goals_missed"], 1);
        assert_eq!(json["runs"][1]["steps"][0]["p95_ms"], 30.0, "as the run told it");
        assert_eq!(json["runs"][2]["steps"][2]["per_second"], 7.5);
    }

    #[test]
    fn what_is_no_run_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let told = |path: &Path| read_runs(&[path.to_owned()]).unwrap_err().to_string();
        assert!(told(dir.path()).contains("holds no run of the lab"), "{}", told(dir.path()));
        let json = dir.path().join("other.json");
        std::fs::write(&json, "{}").unwrap();
        assert!(told(&json).contains("is no summary that the lab wrote"), "{}", told(&json));
        kept(dir.path(), "run-1", 1, true);
        let log = dir.path().join("run-1/hist.hlog");
        std::fs::write(&log, "Tag=a,0.000,1.000,1.000,HISTFA\n").unwrap();
        assert!(told(dir.path()).contains("hist.hlog:1: is no line"), "{}", told(dir.path()));
        // Two runs of one name are told apart by how they were given.
        std::fs::remove_file(&log).unwrap();
        kept(&dir.path().join("b"), "run-1", 1, true);
        let paths = ["run-1", "b/run-1"].map(|name| dir.path().join(name));
        let runs = read_runs(&paths).unwrap();
        assert!(runs[1].name.ends_with("b/run-1") && runs[0].name != runs[1].name, "{runs:?}");
    }
}
