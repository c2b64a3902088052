//! Finds good settings automatically, one parameter at a time.
//!
//! In: [`SweepParameter`]s in the order in which they are tried, and a way to measure a [`SweepSetting`]. Out: a
//! [`TuningOutcome`].
//!
//! The rule: raise one parameter step by step until the gain is no more than noise; select the smallest value that has
//! the full gain; then proceed to the next parameter. Parameters with a plain list of values have no direction, so all
//! their values are tried. Tuning ends as soon as a goal is reached.
//!
//! Not here: starting programs ([`crate::comparison::program`]); trying all settings ([`crate::comparison::sweep`]).

use crate::Result;
use crate::comparison::metric_comparison::BetterDirection;
use crate::comparison::program::ProgramMeasurement;
use crate::comparison::sweep::{
    SweepChoice, SweepObjective, SweepParameter, SweepRow, SweepSetting, SweepTable, run_noise,
};

/// The outcome of tuning.
#[derive(Debug, Clone, PartialEq)]
pub struct TuningOutcome {
    /// All measurements in order; the first row is the initial setting.
    pub measured_table: SweepTable,
    /// The row of the final setting.
    pub chosen_row: usize,
    /// The decisions, one line per parameter.
    pub decisions: Vec<String>,
    /// True if the goal is reached; `None` without a goal.
    pub is_goal_reached: Option<bool>,
}

/// Options of tuning.
#[derive(Debug, Clone, Copy)]
pub struct TuningOptions {
    /// Number of runs of each setting.
    pub runs_per_setting: usize,
    /// The quantity to optimize.
    pub objective: SweepObjective,
    /// The value at which to stop: every run of a setting is at least as good.
    pub goal_value: Option<f64>,
}

/// Runs the tuning.
///
/// # Errors
/// The errors of `measure`.
pub fn run_tuning(
    knobs: &[SweepParameter],
    tuning: TuningOptions,
    measure: &mut dyn FnMut(&SweepSetting, usize) -> Result<ProgramMeasurement>,
) -> Result<TuningOutcome> {
    let mut search = TuningSearch { options: tuning, rows: Vec::new(), measure };
    let mut indexes = vec![0; knobs.len()];
    let mut best = search.measure_setting(SweepSetting::at_indexes(knobs, &indexes))?;
    let mut notes = Vec::new();
    for (number, knob) in knobs.iter().enumerate() {
        if search.reaches_goal(best) {
            notes.push(format!("{}: unchanged, the goal is reached", knob.name));
            continue;
        }
        let start = best;
        for index in 1..knob.values.len() {
            let mut next = indexes.clone();
            if let Some(own) = next.get_mut(number) {
                *own = index;
            }
            let row = search.measure_setting(SweepSetting::at_indexes(knobs, &next))?;
            if search.is_better(row, best) {
                best = row;
                indexes = next;
                if search.reaches_goal(best) {
                    break;
                }
            } else if knob.is_range {
                break;
            }
        }
        let value = |index: usize| knob.values.get(index).map_or("", String::as_str);
        let chosen = indexes.get(number).copied().unwrap_or(0);
        notes.push(if best == start {
            format!("{}: stays {}, further values give no gain beyond noise", knob.name, value(0))
        } else {
            format!("{}: {}", knob.name, value(chosen))
        });
    }
    let is_reached = tuning.goal_value.map(|_| search.reaches_goal(best));
    let table = SweepTable { rows: search.rows, objective: tuning.objective };
    Ok(TuningOutcome {
        measured_table: table,
        chosen_row: best,
        decisions: notes,
        is_goal_reached: is_reached,
    })
}

struct TuningSearch<'a> {
    options: TuningOptions,
    rows: Vec<SweepRow>,
    measure: &'a mut dyn FnMut(&SweepSetting, usize) -> Result<ProgramMeasurement>,
}

impl TuningSearch<'_> {
    fn measure_setting(&mut self, setting: SweepSetting) -> Result<usize> {
        let mut runs = Vec::new();
        for round in 0..self.options.runs_per_setting.max(1) {
            runs.push((self.measure)(&setting, round)?);
        }
        self.rows.push(SweepRow { setting, runs });
        Ok(self.rows.len() - 1)
    }

    /// Returns true if all runs of a row are better than all of another, by more than the noise of one setting.
    fn is_better(&self, row: usize, other: usize) -> bool {
        let aim = self.options.objective;
        let (Some(row), Some(other)) = (self.rows.get(row), self.rows.get(other)) else {
            return false;
        };
        let (_, most) = row.cost_range(aim);
        let (least, _) = other.cost_range(aim);
        most * (1.0 + run_noise(&self.rows, aim)) < least
    }

    fn reaches_goal(&self, row: usize) -> bool {
        let Some(goal) = self.options.goal_value else { return false };
        let Some(row) = self.rows.get(row) else { return false };
        row.run_values(self.options.objective).iter().all(|value| {
            match self.options.objective.better_direction {
                BetterDirection::Lower => *value <= goal,
                BetterDirection::Higher => *value >= goal,
            }
        })
    }
}

impl TuningOutcome {
    /// Returns the row of the final setting.
    #[must_use]
    pub fn chosen_sweep_row(&self) -> Option<&SweepRow> {
        self.measured_table.rows.get(self.chosen_row)
    }

    /// Returns the table's choice, with the row of the final setting.
    #[must_use]
    pub fn final_choice(&self) -> Option<SweepChoice> {
        let mut choice = self.measured_table.choose_setting()?;
        choice.chosen_row = self.chosen_row;
        choice.improvement_factor = self.measured_table.improvement_of(self.chosen_row);
        Some(choice)
    }
}
