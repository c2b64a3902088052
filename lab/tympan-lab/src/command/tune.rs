//! `sweep` and `tune`: run programs with many settings.

use std::process::ExitCode;

use serde_json::{Value, json};
use tympan_lab_tools::metric_comparison::BetterDirection;
use tympan_lab_tools::program::{MeasuredProgram, OutputMetric, ProgramMeasurement};
use tympan_lab_tools::sweep;
use tympan_lab_tools::sweep::{
    SweepChoice, SweepObjective, SweepParameter, SweepRow, SweepSetting, SweepTable,
};
use tympan_lab_tools::tuning::{TuningOptions, run_tuning as find};
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::{duration_from_text, lab_fault};
use crate::args::tune::{LabSettingsArgs, LabSweepArgs, ProgramSettingArgs};

pub(super) fn parse_metric(text: Option<&str>) -> Result<Option<OutputMetric>, CommandFault> {
    text.map(OutputMetric::parse).transpose().map_err(lab_fault)
}

/// The options that both commands share.
struct ProgramTuningBench<'a> {
    parameters: Vec<SweepParameter>,
    metric: Option<OutputMetric>,
    objective: SweepObjective,
    arguments: &'a ProgramSettingArgs,
}

impl<'a> ProgramTuningBench<'a> {
    fn new(arguments: &'a ProgramSettingArgs) -> Result<Self, CommandFault> {
        let knobs = arguments.knobs.iter().map(|text| SweepParameter::parse(text));
        let knobs: Vec<SweepParameter> = knobs.collect::<Result<_, _>>().map_err(lab_fault)?;
        let mut names: Vec<&str> = knobs.iter().map(|knob| knob.name.as_str()).collect();
        names.sort_unstable();
        if let Some([duplicate, _]) = names.array_windows().find(|[left, right]| left == right) {
            return Err(CommandFault::usage(format!(
                "`{duplicate}` is set twice; give all its values at once"
            )));
        }
        // Report a missing placeholder before running anything.
        SweepSetting::at_indexes(&knobs, &[])
            .fill_placeholders(&arguments.program)
            .map_err(lab_fault)?;
        let better = arguments.better.direction();
        if better == BetterDirection::Higher && arguments.metric.is_none() {
            return Err(CommandFault::usage(
                "`--better more` needs `--metric`: shorter times are better",
            ));
        }
        Ok(Self {
            parameters: knobs,
            metric: parse_metric(arguments.metric.as_deref())?,
            objective: SweepObjective {
                better_direction: better,
                uses_metric: arguments.metric.is_some(),
            },
            arguments,
        })
    }

    fn measure_setting(
        &self,
        setting: &SweepSetting,
        round: usize,
    ) -> tympan_lab_tools::Result<ProgramMeasurement> {
        let program = MeasuredProgram {
            words: setting.fill_placeholders(&self.arguments.program)?,
            metric: self.metric.clone(),
        };
        let measure = program.measure()?;
        if !self.arguments.json {
            let metric = measure.metric.map(|metric| format!(", {metric}")).unwrap_or_default();
            say!(
                "run {} of {setting}: {}{metric}",
                round + 1,
                sweep::format_stopwatch(measure.elapsed)
            );
        }
        Ok(measure)
    }
}

pub(super) fn run_sweep(arguments: &LabSweepArgs) -> CommandOutcome {
    let bench = ProgramTuningBench::new(&arguments.measured)?;
    let settings = SweepSetting::all_combinations(&bench.parameters).map_err(lab_fault)?;
    let table = sweep::run_sweep(
        settings,
        arguments.measured.runs,
        bench.objective,
        &mut |setting, round| bench.measure_setting(setting, round),
    )
    .map_err(lab_fault)?;
    if arguments.measured.json {
        let choice = table.choose_setting();
        say!("{}", sweep_table_json(&table, choice.as_ref()));
    } else {
        say!("\n{table}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run_tuning(arguments: &LabSettingsArgs) -> CommandOutcome {
    let bench = ProgramTuningBench::new(&arguments.measured)?;
    let goal = match &arguments.goal {
        None => None,
        Some(text) if bench.objective.uses_metric => Some(
            text.parse()
                .map_err(|_| CommandFault::usage(format!("--goal `{text}` is not a number")))?,
        ),
        Some(text) => Some(duration_from_text(text)?.as_secs_f64()),
    };
    let tuning = TuningOptions {
        runs_per_setting: arguments.measured.runs,
        objective: bench.objective,
        goal_value: goal,
    };
    let tuned = find(&bench.parameters, tuning, &mut |setting, round| {
        bench.measure_setting(setting, round)
    })
    .map_err(lab_fault)?;
    let setting = tuned.chosen_sweep_row().map(|row| row.setting.to_string()).unwrap_or_default();
    let factor = tuned.measured_table.improvement_of(tuned.chosen_row);
    if arguments.measured.json {
        let mut report = sweep_table_json(&tuned.measured_table, tuned.final_choice().as_ref());
        if let Value::Object(members) = &mut report {
            members.insert("decisions".to_owned(), json!(tuned.decisions));
            members.insert("goal_reached".to_owned(), json!(tuned.is_goal_reached));
        }
        say!("{report}");
    } else {
        say!("\n{}", tuned.measured_table.format_rows());
        for line in &tuned.decisions {
            say!("{line}");
        }
        match factor {
            Some(factor) if factor.min_speedup > 1.0 => {
                say!("chosen   {setting}: {factor} better than the starting point")
            }
            _ => say!("chosen   {setting}: no setting is better beyond noise"),
        }
        match tuned.is_goal_reached {
            Some(true) => say!("the goal is reached"),
            Some(false) => say!("the goal is MISSED"),
            None => {}
        }
    }
    Ok(if tuned.is_goal_reached == Some(false) {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    })
}

fn sweep_table_json(table: &SweepTable, choice: Option<&SweepChoice>) -> Value {
    let setting = |row: &SweepRow| -> serde_json::Map<String, Value> {
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
                        "cpu_seconds": run.cpu_time.as_secs_f64(),
                        "peak_bytes": run.peak_memory,
                        "metric": run.metric,
                    })
                })
                .collect();
            json!({ "setting": setting(row), "runs": runs })
        })
        .collect();
    let named = |index: usize| table.rows.get(index).map(setting);
    json!({
        "rows": rows,
        "best": choice.and_then(|choice| named(choice.best_row)),
        "chosen": choice.and_then(|choice| named(choice.chosen_row)),
        "noise": choice.map(|choice| choice.noise_share),
        "min_speedup": choice.and_then(|choice| choice.improvement_factor).map(|factor| factor.min_speedup),
        "mean_speedup": choice.and_then(|choice| choice.improvement_factor).map(|factor| factor.mean_speedup),
    })
}
