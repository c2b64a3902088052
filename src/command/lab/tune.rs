//! `sweep` and `tune`: programs under many settings.

use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_lab::compare::Better;
use tympan_lab::program::{Measure, Metric, Program};
use tympan_lab::sweep::{self, Aim, Choice, Knob, Row, Setting, Table};
use tympan_lab::tune::{Tuning, tune as find};

use super::{duration, fault};
use crate::args::lab_proof::{Measured, Sweep, Tune};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn metric(text: Option<&str>) -> Result<Option<Metric>, Fault> {
    text.map(Metric::parse).transpose().map_err(|error| fault(&error))
}

/// What both commands are told.
struct Bench<'a> {
    knobs: Vec<Knob>,
    metric: Option<Metric>,
    aim: Aim,
    arguments: &'a Measured,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Measured) -> Result<Self, Fault> {
        let knobs = arguments.knobs.iter().map(|text| Knob::parse(text));
        let knobs: Vec<Knob> = knobs.collect::<Result<_, _>>().map_err(|error| fault(&error))?;
        let mut names: Vec<&str> = knobs.iter().map(|knob| knob.name.as_str()).collect();
        names.sort_unstable();
        if let Some([one, _]) = names.array_windows().find(|[one, two]| one == two) {
            return Err(Fault::usage(format!("`{one}` is set twice; give all its values at once")));
        }
        // A place that is missing is told before anything runs.
        Setting::at(&knobs, &[]).fill(&arguments.program).map_err(|error| fault(&error))?;
        let better = if arguments.more_is_better { Better::More } else { Better::Less };
        Ok(Self {
            knobs,
            metric: metric(arguments.metric.as_deref())?,
            aim: Aim { better, by_metric: arguments.metric.is_some() },
            arguments,
        })
    }

    fn measure(&self, setting: &Setting, round: usize) -> tympan_lab::Result<Measure> {
        let program =
            Program { words: setting.fill(&self.arguments.program)?, metric: self.metric.clone() };
        let measure = program.measure()?;
        if !self.arguments.json {
            let metric = measure.metric.map(|metric| format!(", {metric}")).unwrap_or_default();
            say!("run {} of {setting}: {}{metric}", round + 1, sweep::clock(measure.elapsed));
        }
        Ok(measure)
    }
}

pub(super) fn sweep(arguments: &Sweep) -> Outcome {
    let bench = Bench::new(&arguments.measured)?;
    let settings = Setting::all(&bench.knobs).map_err(|error| fault(&error))?;
    let table =
        sweep::sweep(settings, arguments.measured.runs, bench.aim, &mut |setting, round| {
            bench.measure(setting, round)
        })
        .map_err(|error| fault(&error))?;
    if arguments.measured.json {
        let choice = table.choice();
        say!("{}", table_json(&table, choice.as_ref()));
    } else {
        say!("\n{table}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn tune(arguments: &Tune) -> Outcome {
    let bench = Bench::new(&arguments.measured)?;
    let goal = match &arguments.goal {
        None => None,
        Some(text) if bench.aim.by_metric => {
            Some(text.parse().map_err(|_| Fault::usage(format!("--goal `{text}` is no number")))?)
        }
        Some(text) => Some(duration(text)?.as_secs_f64()),
    };
    let tuning = Tuning { runs: arguments.measured.runs, aim: bench.aim, goal };
    let tuned = find(&bench.knobs, tuning, &mut |setting, round| bench.measure(setting, round))
        .map_err(|error| fault(&error))?;
    let setting = tuned.row().map(|row| row.setting.to_string()).unwrap_or_default();
    let factor = tuned.table.factor_of(tuned.chosen);
    if arguments.measured.json {
        let mut told = table_json(&tuned.table, tuned.choice().as_ref());
        if let Value::Object(members) = &mut told {
            members.insert("decisions".to_owned(), json!(tuned.told));
            members.insert("goal_reached".to_owned(), json!(tuned.is_reached));
        }
        say!("{told}");
    } else {
        say!("\n{}", tuned.table.rows_text());
        for line in &tuned.told {
            say!("{line}");
        }
        match factor {
            Some(factor) if factor.worst > 1.0 => {
                say!("chosen   {setting}: {factor} better than where it began")
            }
            _ => say!("chosen   {setting}: nothing is better beyond noise"),
        }
        match tuned.is_reached {
            Some(true) => say!("the goal is reached"),
            Some(false) => say!("the goal is MISSED"),
            None => {}
        }
    }
    Ok(if tuned.is_reached == Some(false) {
        ExitCode::from(CHECK_FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

fn table_json(table: &Table, choice: Option<&Choice>) -> Value {
    let setting = |row: &Row| -> serde_json::Map<String, Value> {
        row.setting.pairs().map(|(name, value)| (name.to_owned(), json!(value))).collect()
    };
    let rows: Vec<Value> = table
        .rows
        .iter()
        .map(|row| {
            let runs: Vec<Value> = row
                .runs
                .iter()
                .map(|run| {
                    json!({
                        "seconds": run.elapsed.as_secs_f64(),
                        "cpu_seconds": run.cpu.as_secs_f64(),
                        "peak_bytes": run.peak,
                        "metric": run.metric,
                    })
                })
                .collect();
            json!({ "setting": setting(row), "runs": runs })
        })
        .collect();
    let named = |place: usize| table.rows.get(place).map(setting);
    json!({
        "rows": rows,
        "best": choice.and_then(|choice| named(choice.best)),
        "chosen": choice.and_then(|choice| named(choice.chosen)),
        "noise": choice.map(|choice| choice.noise),
        "at_least": choice.and_then(|choice| choice.factor).map(|factor| factor.worst),
        "mean_factor": choice.and_then(|choice| choice.factor).map(|factor| factor.mean),
    })
}
