//! Reads `project.toml`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;
use tympan_lab_plan::Error as PlanError;
use tympan_lab_plan::FileFinding;
use tympan_notation::parse_duration;

use super::performance_project::{
    Kpi, MapEdge, MapElement, PROJECT_PHASES, PerformanceProject, ProjectPhaseState,
    REPORT_SECTIONS, UseCase,
};
use crate::{Error, Result};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFile {
    title: String,
    #[serde(default)]
    architecture: Vec<String>,
    #[serde(default)]
    runs: ProjectFileRuns,
    #[serde(default)]
    phases: std::collections::BTreeMap<Spanned<String>, Spanned<String>>,
    #[serde(default)]
    report: std::collections::BTreeMap<Spanned<String>, Vec<String>>,
    #[serde(default)]
    use_case: Vec<Spanned<ProjectFileUseCase>>,
    #[serde(default)]
    element: Vec<Spanned<ProjectFileElement>>,
    #[serde(default)]
    edge: Vec<Spanned<ProjectFileEdge>>,
}

/// Reports of runs in JSON, located below the project's folder.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFileRuns {
    average: Option<Spanned<String>>,
    peak: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFileUseCase {
    name: String,
    kind: Spanned<String>,
    kpi: Spanned<String>,
    #[serde(default)]
    tool: String,
    average: Spanned<String>,
    peak: Spanned<String>,
    label: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFileElement {
    name: String,
    kind: String,
    column: Option<usize>,
    #[serde(default)]
    use_cases: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProjectFileEdge {
    from: String,
    to: String,
    #[serde(default)]
    text: String,
}

/// Fewer use cases leave gaps; more are unmanageable.
const USE_CASE_COUNT_RANGE: std::ops::RangeInclusive<usize> = 5..=10;
/// More columns cannot be rendered.
const MAX_MAP_COLUMNS: usize = 20;

/// Reads a project. Reports of runs are located relative to `folder`.
///
/// # Errors
/// `Error::InvalidFile` lists every error in the file; [`Error::FileAccess`] if a report cannot be read.
pub fn read_project(text: &str, file: &str, folder: &Path) -> Result<PerformanceProject> {
    let mut reader = ProjectFileReader { text, file, findings: Vec::new() };
    let parsed: ProjectFile = match toml::from_str(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            reader.add_finding(at, error.message().to_owned());
            return Err(PlanError::InvalidFile(reader.findings).into());
        }
    };
    let average = reader.read_report(parsed.runs.average.as_ref(), folder)?;
    let peak = reader.read_report(parsed.runs.peak.as_ref(), folder)?;
    let mut project = PerformanceProject {
        title: parsed.title,
        architecture: parsed.architecture,
        ..PerformanceProject::default()
    };
    project.runs = [&parsed.runs.average, &parsed.runs.peak]
        .into_iter()
        .flatten()
        .map(|run| run.get_ref().clone())
        .collect();
    for case in parsed.use_case {
        if let Some(mut case) = reader.read_use_case(case) {
            case.measured_average =
                average.as_ref().and_then(|report| measured_value(&case, report));
            case.measured_peak = peak.as_ref().and_then(|report| measured_value(&case, report));
            project.use_cases.push(case);
        }
    }
    if !USE_CASE_COUNT_RANGE.contains(&project.use_cases.len()) {
        project.remarks.push(format!(
            "{} use cases: 5 to 10 can be managed and cover what matters",
            project.use_cases.len()
        ));
    }
    for (name, state) in parsed.phases {
        reader.read_phase(&mut project, &name, &state);
    }
    for (name, lines) in parsed.report {
        if REPORT_SECTIONS.iter().any(|(section_name, _)| section_name == name.get_ref()) {
            project.sections.insert(name.into_inner(), lines);
        } else {
            reader.add_unknown_name(
                &name,
                "section",
                &REPORT_SECTIONS.map(|(section_name, _)| section_name),
            );
        }
    }
    reader.read_map(&mut project, parsed.element, parsed.edge);
    if reader.findings.is_empty() {
        Ok(project)
    } else {
        Err(PlanError::InvalidFile(reader.findings).into())
    }
}

struct ProjectFileReader<'a> {
    text: &'a str,
    file: &'a str,
    findings: Vec<FileFinding>,
}

impl ProjectFileReader<'_> {
    fn add_finding(&mut self, at: usize, message: String) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        self.findings.push(FileFinding {
            file: self.file.to_owned(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column).unwrap_or(u32::MAX),
            message,
        });
    }

    fn add_unknown_name(&mut self, name: &Spanned<String>, kind: &str, candidates: &[&str]) {
        let message = format!(
            "unknown {kind} `{}`; expected one of {}",
            name.get_ref(),
            candidates.join(", ")
        );
        self.add_finding(name.span().start, message);
    }

    fn read_report(
        &mut self,
        run: Option<&Spanned<String>>,
        folder: &Path,
    ) -> Result<Option<Value>> {
        let Some(run) = run else { return Ok(None) };
        let path = folder.join(run.get_ref());
        let bytes = std::fs::read(&path).map_err(|error| Error::read_failed(&path, error))?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(report) if report.get("total").is_some() => Ok(Some(report)),
            _ => {
                self.add_finding(
                    run.span().start,
                    format!("`{}` contains no lab report; create one with --json", path.display()),
                );
                Ok(None)
            }
        }
    }

    fn read_use_case(&mut self, case: Spanned<ProjectFileUseCase>) -> Option<UseCase> {
        let case = case.into_inner();
        let is_business = match case.kind.get_ref().as_str() {
            "business" => true,
            "technical" => false,
            _ => {
                self.add_unknown_name(&case.kind, "use case kind", &["business", "technical"]);
                false
            }
        };
        let Some(kpi) = parse_kpi(case.kpi.get_ref()) else {
            let candidates = ["p50", "p90", "p95", "p98", "p99", "max", "mean", "rate", "errors"];
            self.add_unknown_name(&case.kpi, "KPI", &candidates);
            return None;
        };
        let average = self.read_target(kpi, &case.average)?;
        let peak = self.read_target(kpi, &case.peak)?;
        Some(UseCase {
            name: case.name,
            is_business,
            kpi,
            tool: case.tool,
            average_target: average,
            peak_target: peak,
            label: case.label,
            measured_average: None,
            measured_peak: None,
        })
    }

    fn read_target(&mut self, kpi: Kpi, text: &Spanned<String>) -> Option<f64> {
        let target_text = text.get_ref().trim();
        let (value, expected) = match kpi {
            Kpi::Quantile(_) | Kpi::MeanTime => (
                parse_duration(target_text).ok().map(|time| time.as_secs_f64() * 1000.0),
                "a time such as 300ms",
            ),
            Kpi::RequestRate => {
                (target_text.trim_end_matches("/s").parse().ok(), "a rate such as 200/s")
            }
            Kpi::ErrorRate => {
                (target_text.trim_end_matches('%').trim().parse().ok(), "a share such as 0.1%")
            }
        };
        if value.is_none() {
            self.add_finding(
                text.span().start,
                format!("invalid target `{target_text}`; expected {expected}"),
            );
        }
        value
    }

    fn read_phase(
        &mut self,
        project: &mut PerformanceProject,
        name: &Spanned<String>,
        state: &Spanned<String>,
    ) {
        if !PROJECT_PHASES.iter().any(|(phase_name, _)| phase_name == name.get_ref()) {
            self.add_unknown_name(name, "phase", &PROJECT_PHASES.map(|(phase_name, _)| phase_name));
            return;
        }
        let state = match state.get_ref().as_str() {
            "open" => ProjectPhaseState::Open,
            "running" => ProjectPhaseState::Running,
            "done" => ProjectPhaseState::Done,
            _ => {
                self.add_unknown_name(state, "phase state", &["open", "running", "done"]);
                return;
            }
        };
        project.phases.insert(name.get_ref().clone(), state);
    }

    fn read_map(
        &mut self,
        project: &mut PerformanceProject,
        elements: Vec<Spanned<ProjectFileElement>>,
        edges: Vec<Spanned<ProjectFileEdge>>,
    ) {
        for element in elements {
            let at = element.span().start;
            let element = element.into_inner();
            for name in &element.use_cases {
                if !project.use_cases.iter().any(|case| case.name == *name) {
                    self.add_finding(
                        at,
                        format!(
                            "`{}` lists the use case `{name}`, which does not exist",
                            element.name
                        ),
                    );
                }
            }
            if element.column.is_some_and(|column| column >= MAX_MAP_COLUMNS) {
                self.add_finding(
                    at,
                    format!("`{}` is beyond column {}", element.name, MAX_MAP_COLUMNS - 1),
                );
            }
            if project.elements.iter().any(|entry| entry.name == element.name) {
                self.add_finding(at, format!("duplicate element `{}`", element.name));
            }
            project.elements.push(MapElement {
                name: element.name,
                kind: element.kind,
                column: element.column,
                use_cases: element.use_cases,
            });
        }
        for edge in edges {
            let at = edge.span().start;
            let edge = edge.into_inner();
            for end in [&edge.from, &edge.to] {
                if !project.elements.iter().any(|entry| entry.name == *end) {
                    self.add_finding(
                        at,
                        format!("the edge refers to `{end}`, which is not an element"),
                    );
                }
            }
            project.edges.push(MapEdge { from: edge.from, to: edge.to, text: edge.text });
        }
    }
}

fn parse_kpi(text: &str) -> Option<Kpi> {
    Some(match text {
        "p50" => Kpi::Quantile(500),
        "p90" => Kpi::Quantile(900),
        "p95" => Kpi::Quantile(950),
        "p98" => Kpi::Quantile(980),
        "p99" => Kpi::Quantile(990),
        "max" => Kpi::Quantile(1000),
        "mean" => Kpi::MeanTime,
        "rate" => Kpi::RequestRate,
        "errors" => Kpi::ErrorRate,
        _ => return None,
    })
}

/// Returns the value that a report gives for a use case; `None` if the report does not contain its label.
fn measured_value(case: &UseCase, report: &Value) -> Option<f64> {
    let stats = match &case.label {
        None => report.get("total")?,
        Some(label) => report
            .get("labels")
            .and_then(|labels| labels.get(label))
            .or_else(|| report.get("transactions").and_then(|labels| labels.get(label)))?,
    };
    let number = |name: &str| stats.get(name).and_then(Value::as_f64);
    match case.kpi {
        Kpi::Quantile(1000) => number("max_ms"),
        Kpi::Quantile(share) => number(&format!("p{}_ms", share / 10)),
        Kpi::MeanTime => number("mean_ms"),
        Kpi::RequestRate => number("per_second"),
        Kpi::ErrorRate => {
            let samples = number("samples").filter(|samples| *samples > 0.0)?;
            Some(number("errors")? / samples * 100.0)
        }
    }
}
