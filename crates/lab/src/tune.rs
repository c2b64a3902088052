//! Finds good settings by itself, one knob at a time.
//!
//! In: [`Knob`]s in the order in which they are tried, and a way to measure a [`Setting`]. Out: a [`Tuned`].
//!
//! The rule: raise one knob step by step until the gain is no more than noise; keep the smallest value that had all the
//! gain; only then touch the next. Knobs with a plain list of values have no direction, so all of them are tried. Tuning
//! ends as soon as a goal is reached: what is fast enough needs no further setting.
//!
//! Not here: starting programs ([`crate::program`]); trying all settings ([`crate::sweep`]).

use crate::Result;
use crate::compare::Better;
use crate::program::Measure;
use crate::sweep::{Aim, Choice, Knob, Row, Setting, Table, noise};

/// What tuning came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// Everything that was measured, in that order; the first row is where it began.
    pub table: Table,
    /// The row that it ended at.
    pub chosen: usize,
    /// What was decided, one line per knob.
    pub told: Vec<String>,
    /// Whether the goal is reached; `None` without one.
    pub is_reached: Option<bool>,
}

/// How to tune.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Runs of each setting.
    pub runs: usize,
    /// What counts.
    pub aim: Aim,
    /// Where to stop: every run of a setting is at least as good.
    pub goal: Option<f64>,
}

/// Tunes.
///
/// # Errors
/// What `measure` returns.
pub fn tune(
    knobs: &[Knob],
    tuning: Tuning,
    measure: &mut dyn FnMut(&Setting, usize) -> Result<Measure>,
) -> Result<Tuned> {
    let mut search = Search { tuning, rows: Vec::new(), measure };
    let mut places = vec![0; knobs.len()];
    let mut best = search.run(Setting::at(knobs, &places))?;
    let mut told = Vec::new();
    for (number, knob) in knobs.iter().enumerate() {
        if search.reaches(best) {
            told.push(format!("{}: not touched, the goal is reached", knob.name));
            continue;
        }
        let start = best;
        for place in 1..knob.values.len() {
            let mut next = places.clone();
            if let Some(own) = next.get_mut(number) {
                *own = place;
            }
            let row = search.run(Setting::at(knobs, &next))?;
            if search.is_better(row, best) {
                best = row;
                places = next;
                if search.reaches(best) {
                    break;
                }
            } else if knob.is_range {
                break;
            }
        }
        let value = |place: usize| knob.values.get(place).map_or("", String::as_str);
        let chosen = places.get(number).copied().unwrap_or(0);
        told.push(if best == start {
            format!("{}: stays {}, more is not better beyond noise", knob.name, value(0))
        } else {
            format!("{}: {}", knob.name, value(chosen))
        });
    }
    let is_reached = tuning.goal.map(|_| search.reaches(best));
    let table = Table { rows: search.rows, aim: tuning.aim };
    Ok(Tuned { table, chosen: best, told, is_reached })
}

struct Search<'a> {
    tuning: Tuning,
    rows: Vec<Row>,
    measure: &'a mut dyn FnMut(&Setting, usize) -> Result<Measure>,
}

impl Search<'_> {
    fn run(&mut self, setting: Setting) -> Result<usize> {
        let mut runs = Vec::new();
        for round in 0..self.tuning.runs.max(1) {
            runs.push((self.measure)(&setting, round)?);
        }
        self.rows.push(Row { setting, runs });
        Ok(self.rows.len() - 1)
    }

    /// Reports whether all runs of a row are better than all of another, by more than runs of one setting differ.
    fn is_better(&self, row: usize, other: usize) -> bool {
        let aim = self.tuning.aim;
        let (Some(row), Some(other)) = (self.rows.get(row), self.rows.get(other)) else {
            return false;
        };
        let (_, most) = row.range(aim);
        let (least, _) = other.range(aim);
        most * (1.0 + noise(&self.rows, aim)) < least
    }

    fn reaches(&self, row: usize) -> bool {
        let Some(goal) = self.tuning.goal else { return false };
        let Some(row) = self.rows.get(row) else { return false };
        row.values(self.tuning.aim).iter().all(|value| match self.tuning.aim.better {
            Better::Less => *value <= goal,
            Better::More => *value >= goal,
        })
    }
}

impl Tuned {
    /// Returns the row that tuning ended at.
    #[must_use]
    pub fn row(&self) -> Option<&Row> {
        self.table.rows.get(self.chosen)
    }

    /// Returns the table's choice with the row that tuning ended at.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        let mut choice = self.table.choice()?;
        choice.chosen = self.chosen;
        choice.factor = self.table.factor_of(self.chosen);
        Some(choice)
    }
}
