//! A performance project: its map, use cases, phases and report sections.

use std::collections::BTreeMap;

/// The phases of a performance project, in order.
pub const PROJECT_PHASES: [(&str, &str); 5] = [
    ("knowledge", "Verification of knowledge"),
    ("scope", "Scope definition"),
    ("methodology", "Test methodologies"),
    ("goals", "Performance goals"),
    ("optimization", "Optimization"),
];

/// The fixed sections of the final report, in order.
pub const REPORT_SECTIONS: [(&str, &str); 4] = [
    ("critical", "Critical errors"),
    ("open", "Non-critical issues that need more investigation"),
    ("assumptions", "Assumptions"),
    ("recommendations", "Recommendations"),
];

/// The progress of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProjectPhaseState {
    /// Not begun.
    #[default]
    Open,
    /// In progress.
    Running,
    /// Done.
    Done,
}

/// The result of comparing measurements with targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetColor {
    /// Nothing was measured.
    Grey,
    /// All targets are met.
    Green,
    /// The average target is met, the peak target is not.
    Amber,
    /// The average target is missed, or there are too many errors.
    Red,
}

impl TargetColor {
    /// Returns the color's name.
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

/// The quantity that is measured for a use case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kpi {
    /// The response time that this share of the requests does not exceed, in thousandths; 1000 is the longest time.
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
    /// The use case's name.
    pub name: String,
    /// True for a business use case, false for a technical one.
    pub is_business: bool,
    /// The quantity that is measured.
    pub kpi: Kpi,
    /// The tool that measures it.
    pub tool: String,
    /// The target under the average load, in the KPI's unit (milliseconds, per second, percent).
    pub average_target: f64,
    /// The target under the peak load.
    pub peak_target: f64,
    /// The label in the runs; `None` means all labels together.
    pub label: Option<String>,
    /// The value measured under the average load.
    pub measured_average: Option<f64>,
    /// The value measured under the peak load.
    pub measured_peak: Option<f64>,
}

impl UseCase {
    /// Returns true if a value meets a target.
    #[must_use]
    pub fn meets_target(&self, value: f64, target: f64) -> bool {
        if self.kpi == Kpi::RequestRate { value >= target } else { value <= target }
    }

    /// Returns the color for the measured values and the targets.
    #[must_use]
    pub fn color(&self) -> TargetColor {
        let average =
            self.measured_average.map(|value| self.meets_target(value, self.average_target));
        let peak = self.measured_peak.map(|value| self.meets_target(value, self.peak_target));
        match (average, peak) {
            (None, None) => TargetColor::Grey,
            (Some(false), _) => TargetColor::Red,
            (Some(true), Some(false)) => TargetColor::Amber,
            // A target met at the peak is met on average; a target missed at the peak alone says nothing about the
            // average.
            (_, Some(true)) | (Some(true), None) => TargetColor::Green,
            (None, Some(false)) => TargetColor::Amber,
        }
    }
}

/// A box of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapElement {
    /// The element's name.
    pub name: String,
    /// The element's kind, such as `dispatcher`.
    pub kind: String,
    /// The column, counted from the left. If absent, the element is placed after those that lead to it.
    pub column: Option<usize>,
    /// The use cases that pass through the element; its color is the worst of theirs.
    pub use_cases: Vec<String>,
}

/// A line of the map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapEdge {
    /// Name of the element at the start of the line.
    pub from: String,
    /// Name of the element at the end of the line.
    pub to: String,
    /// Label of the line, such as a rate.
    pub text: String,
}

/// A performance project.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PerformanceProject {
    /// The project's title.
    pub title: String,
    /// The description of the architecture.
    pub architecture: Vec<String>,
    /// The boxes of the map.
    pub elements: Vec<MapElement>,
    /// The lines of the map.
    pub edges: Vec<MapEdge>,
    /// The use cases under test.
    pub use_cases: Vec<UseCase>,
    /// The progress of each phase, by its short name.
    pub phases: BTreeMap<String, ProjectPhaseState>,
    /// Lines of the fixed sections, by their short name.
    pub sections: BTreeMap<String, Vec<String>>,
    /// The reports that supply the measurements.
    pub runs: Vec<String>,
    /// Remarks for the reader, such as too many use cases.
    pub remarks: Vec<String>,
}

impl PerformanceProject {
    /// Returns the color of a box: the worst color of its use cases.
    #[must_use]
    pub fn element_color(&self, element: &MapElement) -> TargetColor {
        self.use_cases
            .iter()
            .filter(|case| element.use_cases.contains(&case.name))
            .map(UseCase::color)
            .max()
            .unwrap_or(TargetColor::Grey)
    }

    /// Returns true if any target is missed.
    #[must_use]
    pub fn has_missed_target(&self) -> bool {
        self.use_cases.iter().any(|case| case.color() >= TargetColor::Amber)
    }
}
