//! The performance project on one page: architecture, application map, use cases, phases, and what is to be reported.
//!
//! In: `project.toml`, and the reports of runs that it names. Out: a [`PerformanceProject`], its map as SVG, and its page as HTML.
//!
//! Invariants
//! * The whole file is read at once; every fault is told with its line.
//! * Colors say what was measured: green where all targets are met, amber where only the average's are, red where not
//!   even those are, grey where nothing was measured.
//!
//! Not here: runs, and goals of single runs ([`crate::goal`]).

mod architecture_map;
mod html_page;
mod project_file;

use std::collections::BTreeMap;

pub use architecture_map::render_map_svg;
pub use html_page::render_html_page;
pub use project_file::read_project;

/// The phases of a performance project, in their order.
pub const PROJECT_PHASES: [(&str, &str); 5] = [
    ("knowledge", "Verification of knowledge"),
    ("scope", "Scope definition"),
    ("methodology", "Test methodologies"),
    ("goals", "Performance goals"),
    ("optimization", "Optimization"),
];

/// The fixed sections of the final report, in their order.
pub const REPORT_SECTIONS: [(&str, &str); 4] = [
    ("critical", "Critical errors"),
    ("open", "Non-critical issues that need more investigation"),
    ("assumptions", "Assumptions"),
    ("recommendations", "Recommendations"),
];

/// How far a phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProjectPhaseState {
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
pub enum TargetColor {
    /// Nothing was measured.
    Grey,
    /// All targets are met.
    Green,
    /// The average's target is met, the peak's is not.
    Amber,
    /// Not even the average's target is met, or there were too many errors.
    Red,
}

impl TargetColor {
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
    Quantile(u16),
    /// The mean time.
    MeanTime,
    /// Requests per second.
    RequestRate,
    /// Errors in percent.
    ErrorRate,
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
    pub average_target: f64,
    /// The target under the peak load.
    pub peak_target: f64,
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
    pub fn meets_target(&self, value: f64, target: f64) -> bool {
        if self.kpi == Kpi::RequestRate { value >= target } else { value <= target }
    }

    /// Returns what was measured says about the targets.
    #[must_use]
    pub fn color(&self) -> TargetColor {
        let average =
            self.measured_average.map(|value| self.meets_target(value, self.average_target));
        let peak = self.measured_peak.map(|value| self.meets_target(value, self.peak_target));
        match (average, peak) {
            (None, None) => TargetColor::Grey,
            (Some(false), _) => TargetColor::Red,
            (Some(true), Some(false)) => TargetColor::Amber,
            // What holds at the peak holds on average; what fails there alone says nothing about the average.
            (_, Some(true)) | (Some(true), None) => TargetColor::Green,
            (None, Some(false)) => TargetColor::Amber,
        }
    }
}

/// A box of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapElement {
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
pub struct MapEdge {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// What stands at it, such as a rate.
    pub text: String,
}

/// A project.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerformanceProject {
    /// Its title.
    pub title: String,
    /// The architecture in words.
    pub architecture: Vec<String>,
    /// The boxes of the map.
    pub elements: Vec<MapElement>,
    /// Its lines.
    pub edges: Vec<MapEdge>,
    /// What is tested.
    pub use_cases: Vec<UseCase>,
    /// How far each phase is, by its short name.
    pub phases: BTreeMap<String, ProjectPhaseState>,
    /// Lines of the fixed sections, by their short name.
    pub sections: BTreeMap<String, Vec<String>>,
    /// The reports that the figures come from.
    pub runs: Vec<String>,
    /// What a reader should know, such as too many use cases.
    pub remarks: Vec<String>,
}

impl PerformanceProject {
    /// Returns the color of a box: the worst of its use cases.
    #[must_use]
    pub fn element_color(&self, element: &MapElement) -> TargetColor {
        self.use_cases
            .iter()
            .filter(|case| element.use_cases.contains(&case.name))
            .map(UseCase::color)
            .max()
            .unwrap_or(TargetColor::Grey)
    }

    /// Returns whether any target is missed.
    #[must_use]
    pub fn has_missed_target(&self) -> bool {
        self.use_cases.iter().any(|case| case.color() >= TargetColor::Amber)
    }
}
