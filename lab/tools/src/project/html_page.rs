//! Renders the project's page: one HTML file that works from disk.

use std::fmt::Write as _;

use tympan_lab_engine::report::REPORT_CSS;
use tympan_notation::escape_html;

use super::architecture_map;
use super::performance_project::{
    Kpi, PROJECT_PHASES, PerformanceProject, ProjectPhaseState, REPORT_SECTIONS, UseCase,
};

/// Returns the page as HTML.
#[must_use]
pub fn render_html_page(project: &PerformanceProject) -> String {
    let title = escape_html(&project.title);
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{REPORT_CSS}\
         .map{{max-width:100%}}.map-frame{{overflow-x:auto}}.map-frame svg{{min-width:640px}}ol.phases{{padding-left:1.2rem}}.done{{color:var(--good)}}</style></head><body><main><h1>{title}</h1>"
    );
    for remark in &project.remarks {
        write!(out, "<p class=\"doubt\">{}</p>", escape_html(remark)).ok();
    }
    out.push_str("<h2>Architecture</h2>");
    write_list(&mut out, &project.architecture, "Not described.");
    out.push_str("<h2>Application map</h2><div class=\"map-frame\">");
    out.push_str(&architecture_map::render_map_svg(project));
    out.push_str("</div><p>Green: all targets met. Amber: met on average, missed at the peak. Red: missed. Grey: not measured.</p>");
    write_use_cases(&mut out, project);
    write_phases(&mut out, project);
    for (name, heading) in REPORT_SECTIONS {
        write!(out, "<h2>{heading}</h2>").ok();
        let lines = project.sections.get(name).map(Vec::as_slice).unwrap_or_default();
        write_list(&mut out, lines, "None.");
    }
    if !project.runs.is_empty() {
        out.push_str("<h2>Runs</h2>");
        write_list(&mut out, &project.runs, "None.");
    }
    out.push_str("</main></body></html>\n");
    out
}

fn write_list(out: &mut String, lines: &[String], none: &str) {
    if lines.is_empty() {
        write!(out, "<p>{none}</p>").ok();
        return;
    }
    out.push_str("<ul>");
    for line in lines {
        write!(out, "<li>{}</li>", escape_html(line)).ok();
    }
    out.push_str("</ul>");
}

fn write_use_cases(out: &mut String, project: &PerformanceProject) {
    out.push_str("<h2>Use cases</h2><div class=\"wide\"><table><thead><tr><th>Use case</th><th>Kind</th><th>KPI</th><th>Tool</th><th>Target, average</th><th>Measured</th><th>Target, peak</th><th>Measured</th><th></th></tr></thead><tbody>");
    for case in &project.use_cases {
        let (class, label) = match case.color() {
            super::TargetColor::Grey => ("", "not measured"),
            super::TargetColor::Green => ("good", "met"),
            super::TargetColor::Amber => ("bad", "peak missed"),
            super::TargetColor::Red => ("bad", "missed"),
        };
        write!(
            out,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{label}</td></tr>",
            escape_html(&case.name),
            if case.is_business { "business" } else { "technical" },
            kpi_name(case.kpi),
            escape_html(&case.tool),
            format_kpi_value(case, Some(case.average_target)),
            format_kpi_value(case, case.measured_average),
            format_kpi_value(case, Some(case.peak_target)),
            format_kpi_value(case, case.measured_peak),
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

fn write_phases(out: &mut String, project: &PerformanceProject) {
    out.push_str("<h2>Phases</h2><ol class=\"phases\">");
    for (name, heading) in PROJECT_PHASES {
        let (class, label) = match project.phases.get(name).copied().unwrap_or_default() {
            ProjectPhaseState::Open => ("", "open"),
            ProjectPhaseState::Running => ("", "in progress"),
            ProjectPhaseState::Done => ("done", "done"),
        };
        write!(out, "<li class=\"{class}\">{heading}: {label}</li>").ok();
    }
    out.push_str("</ol>");
}

/// Returns a KPI's name.
pub(super) fn kpi_name(kpi: Kpi) -> String {
    match kpi {
        Kpi::Quantile(1000) => "longest time".to_owned(),
        Kpi::Quantile(share) => format!("{} % of the requests", share / 10),
        Kpi::MeanTime => "mean time".to_owned(),
        Kpi::RequestRate => "requests/s".to_owned(),
        Kpi::ErrorRate => "errors".to_owned(),
    }
}

fn format_kpi_value(case: &UseCase, value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match case.kpi {
        Kpi::Quantile(_) | Kpi::MeanTime => format!("{value:.1} ms"),
        Kpi::RequestRate => format!("{value:.1}/s"),
        Kpi::ErrorRate => format!("{value:.2} %"),
    }
}
