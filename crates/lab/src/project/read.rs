//! Reads `project.toml`.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use super::{Edge, Element, Kpi, PHASES, Project, SECTIONS, State, UseCase};
use crate::calculate::parse_duration;
use crate::{Error, Finding, Result};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    #[serde(default)]
    architecture: Vec<String>,
    #[serde(default)]
    runs: Runs,
    #[serde(default)]
    phases: std::collections::BTreeMap<Spanned<String>, Spanned<String>>,
    #[serde(default)]
    report: std::collections::BTreeMap<Spanned<String>, Vec<String>>,
    #[serde(default)]
    use_case: Vec<Spanned<Case>>,
    #[serde(default)]
    element: Vec<Spanned<Place>>,
    #[serde(default)]
    edge: Vec<Spanned<Line>>,
}

/// Reports of runs in JSON, below the project's folder.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Runs {
    average: Option<Spanned<String>>,
    peak: Option<Spanned<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
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
struct Place {
    name: String,
    kind: String,
    column: Option<usize>,
    #[serde(default)]
    use_cases: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    from: String,
    to: String,
    #[serde(default)]
    text: String,
}

/// Fewer use cases miss something, more cannot be managed.
const USE_CASES: std::ops::RangeInclusive<usize> = 5..=10;
/// More columns cannot be drawn.
const MOST_COLUMNS: usize = 20;

/// Reads a project; reports of runs are looked for in `folder`.
///
/// # Errors
/// [`Error::Refused`] with everything that is wrong; [`Error::File`] for a report that cannot be read.
pub fn read(text: &str, file: &str, folder: &Path) -> Result<Project> {
    let mut reader = Reader { text, file, findings: Vec::new() };
    let parsed: File = match toml::from_str(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            reader.note(at, error.message().to_owned());
            return Err(Error::Refused(reader.findings));
        }
    };
    let average = reader.report(parsed.runs.average.as_ref(), folder)?;
    let peak = reader.report(parsed.runs.peak.as_ref(), folder)?;
    let mut project =
        Project { title: parsed.title, architecture: parsed.architecture, ..Project::default() };
    project.runs = [&parsed.runs.average, &parsed.runs.peak]
        .into_iter()
        .flatten()
        .map(|run| run.get_ref().clone())
        .collect();
    for case in parsed.use_case {
        if let Some(mut case) = reader.use_case(case) {
            case.measured_average = average.as_ref().and_then(|report| measured(&case, report));
            case.measured_peak = peak.as_ref().and_then(|report| measured(&case, report));
            project.use_cases.push(case);
        }
    }
    if !USE_CASES.contains(&project.use_cases.len()) {
        project.remarks.push(format!(
            "{} use cases: 5 to 10 can be managed and cover what matters",
            project.use_cases.len()
        ));
    }
    for (name, state) in parsed.phases {
        reader.phase(&mut project, &name, &state);
    }
    for (name, lines) in parsed.report {
        if SECTIONS.iter().any(|(known, _)| known == name.get_ref()) {
            project.sections.insert(name.into_inner(), lines);
        } else {
            reader.unknown(&name, "section", &SECTIONS.map(|(known, _)| known));
        }
    }
    reader.map(&mut project, parsed.element, parsed.edge);
    if reader.findings.is_empty() { Ok(project) } else { Err(Error::Refused(reader.findings)) }
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    findings: Vec<Finding>,
}

impl Reader<'_> {
    fn note(&mut self, at: usize, message: String) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        self.findings.push(Finding {
            file: self.file.to_owned(),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column).unwrap_or(u32::MAX),
            message,
        });
    }

    fn unknown(&mut self, name: &Spanned<String>, what: &str, known: &[&str]) {
        let message = format!("`{}` is no {what}; there are {}", name.get_ref(), known.join(", "));
        self.note(name.span().start, message);
    }

    fn report(&mut self, run: Option<&Spanned<String>>, folder: &Path) -> Result<Option<Value>> {
        let Some(run) = run else { return Ok(None) };
        let path = folder.join(run.get_ref());
        let bytes = std::fs::read(&path).map_err(|error| Error::read(&path, error))?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(report) if report.get("total").is_some() => Ok(Some(report)),
            _ => {
                self.note(
                    run.span().start,
                    format!("`{}` is no report of the lab; make one with --json", path.display()),
                );
                Ok(None)
            }
        }
    }

    fn use_case(&mut self, case: Spanned<Case>) -> Option<UseCase> {
        let case = case.into_inner();
        let is_business = match case.kind.get_ref().as_str() {
            "business" => true,
            "technical" => false,
            _ => {
                self.unknown(&case.kind, "kind of use case", &["business", "technical"]);
                false
            }
        };
        let Some(kpi) = kpi(case.kpi.get_ref()) else {
            let known = ["p50", "p90", "p95", "p98", "p99", "max", "mean", "rate", "errors"];
            self.unknown(&case.kpi, "KPI that is measured", &known);
            return None;
        };
        let average = self.target(kpi, &case.average)?;
        let peak = self.target(kpi, &case.peak)?;
        Some(UseCase {
            name: case.name,
            is_business,
            kpi,
            tool: case.tool,
            average,
            peak,
            label: case.label,
            measured_average: None,
            measured_peak: None,
        })
    }

    fn target(&mut self, kpi: Kpi, text: &Spanned<String>) -> Option<f64> {
        let word = text.get_ref().trim();
        let (value, expected) = match kpi {
            Kpi::Under(_) | Kpi::Mean => (
                parse_duration(word).map(|time| time.as_secs_f64() * 1000.0),
                "a time such as 300ms",
            ),
            Kpi::Rate => (word.trim_end_matches("/s").parse().ok(), "a rate such as 200/s"),
            Kpi::Errors => (word.trim_end_matches('%').trim().parse().ok(), "a share such as 0.1%"),
        };
        if value.is_none() {
            self.note(text.span().start, format!("`{word}` is no target; expected {expected}"));
        }
        value
    }

    fn phase(&mut self, project: &mut Project, name: &Spanned<String>, state: &Spanned<String>) {
        if !PHASES.iter().any(|(known, _)| known == name.get_ref()) {
            self.unknown(name, "phase", &PHASES.map(|(known, _)| known));
            return;
        }
        let state = match state.get_ref().as_str() {
            "open" => State::Open,
            "running" => State::Running,
            "done" => State::Done,
            _ => {
                self.unknown(state, "state of a phase", &["open", "running", "done"]);
                return;
            }
        };
        project.phases.insert(name.get_ref().clone(), state);
    }

    fn map(
        &mut self,
        project: &mut Project,
        elements: Vec<Spanned<Place>>,
        edges: Vec<Spanned<Line>>,
    ) {
        for element in elements {
            let at = element.span().start;
            let element = element.into_inner();
            for name in &element.use_cases {
                if !project.use_cases.iter().any(|case| case.name == *name) {
                    self.note(
                        at,
                        format!(
                            "`{}` is on the way of `{name}`, which is no use case",
                            element.name
                        ),
                    );
                }
            }
            if element.column.is_some_and(|column| column >= MOST_COLUMNS) {
                self.note(
                    at,
                    format!("`{}` stands beyond column {}", element.name, MOST_COLUMNS - 1),
                );
            }
            if project.elements.iter().any(|known| known.name == element.name) {
                self.note(at, format!("`{}` is there twice", element.name));
            }
            project.elements.push(Element {
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
                if !project.elements.iter().any(|known| known.name == *end) {
                    self.note(at, format!("the edge ends at `{end}`, which is no element"));
                }
            }
            project.edges.push(Edge { from: edge.from, to: edge.to, text: edge.text });
        }
    }
}

fn kpi(text: &str) -> Option<Kpi> {
    Some(match text {
        "p50" => Kpi::Under(500),
        "p90" => Kpi::Under(900),
        "p95" => Kpi::Under(950),
        "p98" => Kpi::Under(980),
        "p99" => Kpi::Under(990),
        "max" => Kpi::Under(1000),
        "mean" => Kpi::Mean,
        "rate" => Kpi::Rate,
        "errors" => Kpi::Errors,
        _ => return None,
    })
}

/// Returns what a report says about a use case; `None` if it knows nothing of its label.
fn measured(case: &UseCase, report: &Value) -> Option<f64> {
    let stats = match &case.label {
        None => report.get("total")?,
        Some(label) => report
            .get("labels")
            .and_then(|labels| labels.get(label))
            .or_else(|| report.get("transactions").and_then(|labels| labels.get(label)))?,
    };
    let number = |name: &str| stats.get(name).and_then(Value::as_f64);
    match case.kpi {
        Kpi::Under(1000) => number("max_ms"),
        Kpi::Under(share) => number(&format!("p{}_ms", share / 10)),
        Kpi::Mean => number("mean_ms"),
        Kpi::Rate => number("per_second"),
        Kpi::Errors => {
            let samples = number("samples").filter(|samples| *samples > 0.0)?;
            Some(number("errors")? / samples * 100.0)
        }
    }
}
