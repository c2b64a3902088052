//! Figures: a measured value, its goal, and the text of both.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::Outcome;
use crate::alternate::Spread;

/// What a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Just this.
    Exactly(f64),
    /// Told for context only.
    None,
}

impl Goal {
    fn is_met(self, measured: f64) -> Option<bool> {
        Some(match self {
            Self::AtMost(limit) => measured <= limit,
            Self::AtLeast(limit) => measured >= limit,
            Self::Exactly(value) => (measured - value).abs() < 1e-9,
            Self::None => return None,
        })
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {}", with_unit(limit, unit)),
            Self::AtLeast(limit) => format!("at least {}", with_unit(limit, unit)),
            Self::Exactly(value) => format!("exactly {}", with_unit(value, unit)),
            Self::None => String::new(),
        }
    }
}

/// One figure of a row.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    row: String,
    what: String,
    measured: Option<f64>,
    range: Option<(f64, f64)>,
    unit: String,
    peer: String,
    pairs: usize,
    goal: Goal,
    note: String,
}

impl Figure {
    /// A figure of one value.
    pub(crate) fn value(row: &str, what: impl Into<String>, measured: f64, unit: &str) -> Self {
        Self {
            row: row.to_owned(),
            what: what.into(),
            measured: Some(measured),
            range: None,
            unit: unit.to_owned(),
            peer: String::new(),
            pairs: 0,
            goal: Goal::None,
            note: String::new(),
        }
    }

    /// A figure of several measurements: their median and range.
    pub(crate) fn spread(row: &str, what: impl Into<String>, spread: &Spread, unit: &str) -> Self {
        let mut figure = Self::value(row, what, spread.median, unit);
        figure.range = Some((spread.low, spread.high));
        figure.pairs = spread.count;
        figure
    }

    /// A figure that could not be measured; it counts as not met.
    pub(crate) fn missing(row: &str, what: impl Into<String>, reason: impl Into<String>) -> Self {
        let mut figure = Self::value(row, what, 0.0, "");
        figure.measured = None;
        figure.note = reason.into();
        figure
    }

    /// Sets what the figure has to be.
    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goal = goal;
        self
    }

    /// Tells how many pairs there were.
    pub(crate) fn pairs(mut self, pairs: usize) -> Self {
        self.pairs = pairs;
        self
    }

    /// Names what the figure is relative to.
    pub(crate) fn against(mut self, peer: impl Into<String>) -> Self {
        self.peer = peer.into();
        self
    }

    /// Adds what a reader has to know.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Tells whether the goal is met; `None` for a figure without a goal.
    pub(crate) fn met(&self) -> Option<bool> {
        match self.measured {
            Some(measured) => self.goal.is_met(measured),
            None => Some(false),
        }
    }

    /// Returns the name of the row.
    pub(crate) fn row(&self) -> &str {
        &self.row
    }

    /// Returns the name of the figure, with what it is relative to.
    pub(crate) fn label(&self) -> String {
        match self.peer() {
            Some(peer) => format!("{}, against {peer}", self.what),
            None => self.what.clone(),
        }
    }

    /// Returns what the figure is relative to.
    pub(crate) fn peer(&self) -> Option<&str> {
        Some(self.peer.as_str()).filter(|peer| !peer.is_empty())
    }

    /// Returns the measured value with its unit and range; `None` if it could not be measured.
    pub(crate) fn measured_text(&self) -> Option<String> {
        let measured = with_unit(self.measured?, &self.unit);
        Some(match self.range {
            Some((low, high)) => format!("{measured} ({} to {})", number(low), number(high)),
            None => measured,
        })
    }

    /// Returns the goal with its unit; empty without a goal.
    pub(crate) fn goal_text(&self) -> String {
        self.goal.text(&self.unit)
    }

    fn to_json(&self) -> Value {
        json!({
            "row": self.row,
            "what": self.what,
            "goal": self.goal_text(),
            "measured": self.measured,
            "range": self.range.map(|(low, high)| [low, high]),
            "unit": self.unit,
            "peer": self.peer,
            "pairs": self.pairs,
            "met": self.met(),
            "note": self.note,
        })
    }

    fn cells(&self) -> [String; 5] {
        let measured = self.measured_text().unwrap_or_else(|| "not measured".to_owned());
        let met = match self.met() {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        [self.row.clone(), self.label(), measured, self.goal_text(), met.to_owned()]
    }
}

/// Writes a number with about three significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.095 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

/// Writes a number with its unit: `3 ms`, `0.62x`.
fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" | "x" => format!("{}{unit}", number(value)),
        _ => format!("{} {unit}", number(value)),
    }
}

/// Lays the figures out as a table.
pub(crate) fn table(figures: &[Figure]) -> String {
    let head = ["row", "figure", "measured", "goal", ""].map(str::to_owned);
    let rows: Vec<[String; 5]> =
        std::iter::once(head).chain(figures.iter().map(Figure::cells)).collect();
    let mut widths = [0; 5];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let notes = std::iter::once("").chain(figures.iter().map(|figure| figure.note.as_str()));
    let mut text = String::from("\n");
    for (row, note) in rows.iter().zip(notes) {
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            write!(text, "{cell:<width$}  ").ok();
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        if !note.is_empty() {
            writeln!(text, "{:<width$}  {note}", "", width = widths[0]).ok();
        }
    }
    text
}

/// Writes the file of results.
pub(crate) fn write(figures: &[Figure], file: &Path) -> Outcome<()> {
    let list: Vec<Value> = figures.iter().map(Figure::to_json).collect();
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, serde_json::to_string_pretty(&list)?)?;
    Ok(())
}
