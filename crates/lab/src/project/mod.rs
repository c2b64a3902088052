//! The performance project on one page: architecture, application map, use cases, phases, and what is to be reported.
//!
//! In: `project.toml`, and the reports of runs that it names. Out: a [`Project`], its map as SVG, and its page as HTML.
//!
//! Invariants
//! * The whole file is read at once; every fault is told with its line.
//! * Colors say what was measured: green where all targets are met, amber where only the average's are, red where not
//!   even those are, grey where nothing was measured.
//!
//! Not here: runs, and goals of single runs ([`crate::goal`]).

mod map;
mod page;
mod read;

use std::collections::BTreeMap;

pub use map::svg;
pub use page::html;
pub use read::read;

/// The phases of a performance project, in their order.
pub const PHASES: [(&str, &str); 5] = [
    ("knowledge", "Verification of knowledge"),
    ("scope", "Scope definition"),
    ("methodology", "Test methodologies"),
    ("goals", "Performance goals"),
    ("optimization", "Optimization"),
];

/// The fixed sections of the final report, in their order.
pub const SECTIONS: [(&str, &str); 4] = [
    ("critical", "Critical errors"),
    ("open", "Non-critical issues that need more investigation"),
    ("assumptions", "Assumptions"),
    ("recommendations", "Recommendations"),
];

/// How far a phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Not begun.
    #[default]
    Open,
    /// Under way.
    Running,
    /// Done.
    Done,
}

/// What a measurement says about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Color {
    /// Nothing was measured.
    Grey,
    /// All targets are met.
    Green,
    /// The average's target is met, the peak's is not.
    Amber,
    /// Not even the average's target is met, or there were too many errors.
    Red,
}

impl Color {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Grey => "grey",
            Self::Green => "green",
            Self::Amber => "amber",
            Self::Red => "red",
        }
    }
}

/// What is measured of a use case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kpi {
    /// A time that this share of the requests stays under, in thousandths; 1000 is the longest.
    Under(u16),
    /// The mean time.
    Mean,
    /// Requests per second.
    Rate,
    /// Errors in percent.
    Errors,
}

/// One use case.
#[derive(Debug, Clone, PartialEq)]
pub struct UseCase {
    /// Its name.
    pub name: String,
    /// Business, or technical.
    pub is_business: bool,
    /// What is measured.
    pub kpi: Kpi,
    /// The tool that measures it.
    pub tool: String,
    /// The target under the average load, in the KPI's unit (milliseconds, per second, percent).
    pub average: f64,
    /// The target under the peak load.
    pub peak: f64,
    /// The label of the runs; all labels together if there is none.
    pub label: Option<String>,
    /// What was measured under the average load.
    pub measured_average: Option<f64>,
    /// What was measured under the peak load.
    pub measured_peak: Option<f64>,
}

impl UseCase {
    /// Reports whether a value meets a target.
    #[must_use]
    pub fn meets(&self, value: f64, target: f64) -> bool {
        if self.kpi == Kpi::Rate { value >= target } else { value <= target }
    }

    /// Returns what was measured says about the targets.
    #[must_use]
    pub fn color(&self) -> Color {
        let average = self.measured_average.map(|value| self.meets(value, self.average));
        let peak = self.measured_peak.map(|value| self.meets(value, self.peak));
        match (average, peak) {
            (None, None) => Color::Grey,
            (Some(false), _) => Color::Red,
            (Some(true), Some(false)) => Color::Amber,
            // What holds at the peak holds on average; what fails there alone says nothing about the average.
            (_, Some(true)) | (Some(true), None) => Color::Green,
            (None, Some(false)) => Color::Amber,
        }
    }
}

/// A box of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// What it is, such as `dispatcher`.
    pub kind: String,
    /// Where it stands from left to right; after those that lead to it unless it is given.
    pub column: Option<usize>,
    /// The use cases that go through it; its color is the worst of theirs.
    pub use_cases: Vec<String>,
}

/// A line of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// What stands at it, such as a rate.
    pub text: String,
}

/// A project.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Project {
    /// Its title.
    pub title: String,
    /// The architecture in words.
    pub architecture: Vec<String>,
    /// The boxes of the map.
    pub elements: Vec<Element>,
    /// Its lines.
    pub edges: Vec<Edge>,
    /// What is tested.
    pub use_cases: Vec<UseCase>,
    /// How far each phase is, by its short name.
    pub phases: BTreeMap<String, State>,
    /// Lines of the fixed sections, by their short name.
    pub sections: BTreeMap<String, Vec<String>>,
    /// The reports that the figures come from.
    pub runs: Vec<String>,
    /// What a reader should know, such as too many use cases.
    pub remarks: Vec<String>,
}

impl Project {
    /// Returns the color of a box: the worst of its use cases.
    #[must_use]
    pub fn color(&self, element: &Element) -> Color {
        self.use_cases
            .iter()
            .filter(|case| element.use_cases.contains(&case.name))
            .map(UseCase::color)
            .max()
            .unwrap_or(Color::Grey)
    }

    /// Returns whether any target is missed.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.use_cases.iter().any(|case| case.color() >= Color::Amber)
    }
}
