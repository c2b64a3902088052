//! Writes a report of several measurements side by side: verdicts, tables, curves.
//!
//! In: a [`ReportSheet`] that a command fills. Out: one HTML file that works from disk, text, Markdown, JSON or JUnit
//! XML.

use std::fmt::Write as _;

use serde_json::Value;
use tympan_notation::{escape_html, escape_xml};

use super::chart::{self, ChartLine};
use super::html::REPORT_CSS;
use super::text;
use crate::measurement::log_watch_result::LogWatchResult;
use crate::measurement::{ProcessMetrics, TimingHistogram};
use crate::report::goal::GoalResult;
use crate::report::process_chart;

/// The rating of a verdict or a table row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReportTone {
    /// Neither good nor bad.
    #[default]
    Plain,
    /// As desired.
    Good,
    /// Not as desired.
    Bad,
    /// Not trustworthy.
    Doubtful,
}

impl ReportTone {
    fn css_class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubtful => "doubt",
        }
    }
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct ReportTable {
    /// The table's title.
    pub title: String,
    /// The names of the columns.
    pub column_names: Vec<String>,
    /// The rows, each with its rating.
    pub rows: Vec<(ReportTone, Vec<String>)>,
}

impl ReportTable {
    /// Returns an empty table.
    #[must_use]
    pub fn new(title: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.to_owned(), column_names: head, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add_row(&mut self, tone: ReportTone, cells: Vec<String>) {
        self.rows.push((tone, cells));
    }
}

/// A line chart.
#[derive(Debug, Clone)]
pub struct ReportChart {
    /// The chart's title.
    pub title: String,
    /// Unit of the vertical axis.
    pub vertical_unit: String,
    /// Unit of the horizontal axis.
    pub horizontal_unit: String,
    /// Names and points of the lines.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// One request in a waterfall, in milliseconds since the waterfall's start.
#[derive(Debug, Clone)]
pub struct WaterfallBar {
    /// The request's name.
    pub request_name: String,
    /// Start of the request.
    pub start_ms: f64,
    /// Time to connect.
    pub connect_ms: f64,
    /// Time from the connection to the first byte.
    pub wait_ms: f64,
    /// Time from the first byte to the last.
    pub receive_ms: f64,
    /// True if the request failed.
    pub is_failed: bool,
}

/// A part of a sheet.
#[derive(Debug, Clone)]
pub enum ReportPart {
    /// A sentence.
    Text(String),
    /// A table.
    Table(ReportTable),
    /// A chart; text output omits it.
    Chart(ReportChart),
    /// Times by percentile: the heading, and the names and times.
    Percentiles(String, Vec<(String, TimingHistogram)>),
    /// Requests over time.
    Waterfall(Vec<WaterfallBar>),
}

/// A report of several measurements.
#[derive(Debug, Clone, Default)]
pub struct ReportSheet {
    /// The heading.
    pub title: String,
    /// The verdicts, the most important first.
    pub verdicts: Vec<(ReportTone, String)>,
    /// Goals with their results.
    pub judged_goals: Vec<GoalResult>,
    /// The remaining parts.
    pub parts: Vec<ReportPart>,
    /// The result as JSON.
    pub json_result: Value,
}

impl ReportSheet {
    /// Returns an empty report.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Adds a verdict.
    pub fn add_verdict(&mut self, tone: ReportTone, text: impl Into<String>) {
        self.verdicts.push((tone, text.into()));
    }

    /// Adds the results of watched logs: a goal for each log, and the error lines.
    pub fn add_log_watches(&mut self, logged: &[LogWatchResult]) {
        let mut grid = ReportTable::new("Errors logged", &["log", "line"]);
        for log in logged {
            self.judged_goals.push(log.to_judged_goal());
            if let Some(reason) = &log.read_failure {
                self.add_verdict(ReportTone::Doubtful, format!("LOG NOT READ {reason}"));
            }
            for line in &log.errors.first_lines {
                grid.add_row(ReportTone::Bad, vec![log.log_file.clone(), line.clone()]);
            }
        }
        if !grid.rows.is_empty() {
            self.parts.push(ReportPart::Table(grid));
        }
        if self.json_result.is_null() {
            self.json_result = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut self.json_result
            && !logged.is_empty()
        {
            let logged = logged.iter().map(LogWatchResult::to_json).collect();
            fields.insert("errors_logged".to_owned(), Value::Array(logged));
        }
    }

    /// Adds measurements of the tested process made during the load.
    pub fn add_target_facts(&mut self, processes: &[ProcessMetrics]) {
        self.parts.extend(target_chart_parts(processes));
        if self.json_result.is_null() {
            self.json_result = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut self.json_result {
            fields.insert("target".to_owned(), text::target_to_json(processes));
        }
    }

    /// Returns true if any result is bad.
    #[must_use]
    pub fn has_bad_result(&self) -> bool {
        self.verdicts.iter().any(|(tone, _)| *tone == ReportTone::Bad)
            || self.judged_goals.iter().any(|goal| !goal.is_met)
    }

    /// Returns true if the measurements cannot be trusted.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.verdicts.iter().any(|(tone, _)| *tone == ReportTone::Doubtful)
    }

    /// Returns the report as one HTML file.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = escape_html(&self.title);
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{REPORT_CSS}</style></head><body><main><h1>{title}</h1>"
        );
        for (tone, text) in &self.verdicts {
            write!(out, "<p class=\"{}\">{}</p>", tone.css_class(), escape_html(text)).ok();
        }
        if !self.judged_goals.is_empty() {
            write_html_table(&mut out, &self.goal_table());
        }
        for part in &self.parts {
            match part {
                ReportPart::Text(text) => {
                    write!(out, "<p>{}</p>", escape_html(text)).ok();
                }
                ReportPart::Table(grid) => write_html_table(&mut out, grid),
                ReportPart::Chart(curves) => write_line_chart(&mut out, curves),
                ReportPart::Percentiles(title, lines) => {
                    write_percentile_chart(&mut out, title, lines)
                }
                ReportPart::Waterfall(bars) => write_waterfall(&mut out, bars),
            }
        }
        out.push_str("</main></body></html>\n");
        out
    }

    /// Returns the report as text for a terminal.
    #[must_use]
    pub fn to_plain_text(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                ReportPart::Text(text) => {
                    writeln!(out, "{text}").ok();
                }
                ReportPart::Table(grid) => out.push_str(&align_columns(grid)),
                ReportPart::Chart(_) | ReportPart::Percentiles(..) | ReportPart::Waterfall(_) => {}
            }
        }
        for goal in &self.judged_goals {
            let status = if goal.is_met { "met   " } else { "MISSED" };
            writeln!(
                out,
                "goal {status} {}: {}, measured {}",
                goal.label, goal.requirement, goal.measured
            )
            .ok();
        }
        for (_, text) in &self.verdicts {
            writeln!(out, "{text}").ok();
        }
        out
    }

    /// Returns the report as Markdown for a pull request.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut out = format!("## {}\n\n", self.title);
        for (tone, text) in &self.verdicts {
            let text = cell(text);
            let line = if *tone == ReportTone::Plain { text } else { format!("**{text}**") };
            writeln!(out, "{line}\n").ok();
        }
        let goals = (!self.judged_goals.is_empty()).then(|| self.goal_table());
        let grids = self.parts.iter().filter_map(|part| match part {
            ReportPart::Table(grid) => Some(grid),
            _ => None,
        });
        for grid in goals.iter().chain(grids) {
            let row = |cells: &[String]| {
                let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
                format!("| {} |\n", cells.join(" | "))
            };
            out.push_str(&row(&grid.column_names));
            out.push_str(&format!("|{}\n", "---|".repeat(grid.column_names.len())));
            grid.rows.iter().for_each(|(_, cells)| out.push_str(&row(cells)));
            out.push('\n');
        }
        out
    }

    /// Returns the goals as JUnit XML, for build servers.
    #[must_use]
    pub fn to_junit_xml(&self) -> String {
        let failures = self.judged_goals.iter().filter(|goal| !goal.is_met).count();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\">\n",
            escape_xml(&self.title),
            self.judged_goals.len()
        );
        for goal in &self.judged_goals {
            let (label, requirement) = (escape_xml(&goal.label), escape_xml(&goal.requirement));
            write!(out, "  <testcase classname=\"{label}\" name=\"{requirement}\"").ok();
            match goal.is_met {
                true => out.push_str("/>\n"),
                false => {
                    let measured = escape_xml(&goal.measured);
                    writeln!(out, "><failure message=\"measured {measured}\"/></testcase>").ok();
                }
            }
        }
        out.push_str("</testsuite>\n");
        out
    }

    /// Returns the report as JSON: the command's result and the verdicts.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = self.json_result.clone();
        if json.is_null() {
            json = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut json {
            let verdicts: Vec<Value> =
                self.verdicts.iter().map(|(_, text)| Value::from(text.as_str())).collect();
            let goals: Vec<Value> = self
                .judged_goals
                .iter()
                .map(|goal| serde_json::json!({ "label": goal.label, "wanted": goal.requirement, "measured": goal.measured, "met": goal.is_met }))
                .collect();
            fields.insert("title".to_owned(), Value::from(self.title.as_str()));
            fields.insert("verdicts".to_owned(), Value::from(verdicts));
            fields.insert("goals".to_owned(), Value::from(goals));
            fields.insert(
                "good".to_owned(),
                Value::from(!self.has_bad_result() && !self.is_doubtful()),
            );
        }
        json
    }

    fn goal_table(&self) -> ReportTable {
        let mut grid = ReportTable::new("Goals", &["label", "wanted", "measured", ""]);
        for goal in &self.judged_goals {
            let (tone, status) =
                if goal.is_met { (ReportTone::Good, "met") } else { (ReportTone::Bad, "missed") };
            let cells = [&goal.label, &goal.requirement, &goal.measured].map(Clone::clone);
            grid.add_row(tone, cells.into_iter().chain([status.to_owned()]).collect());
        }
        grid
    }
}

/// Returns the charts of a tested process; none if it was sampled only once.
pub fn target_chart_parts(processes: &[ProcessMetrics]) -> Vec<ReportPart> {
    if processes.len() < 2 {
        return Vec::new();
    }
    let part = |chart: process_chart::ProcessChart| {
        ReportPart::Chart(ReportChart {
            title: chart.title.to_owned(),
            vertical_unit: chart.unit.to_owned(),
            horizontal_unit: "s".to_owned(),
            lines: chart.lines,
        })
    };
    process_chart::build_process_charts(processes).into_iter().map(part).collect()
}

fn write_html_table(out: &mut String, grid: &ReportTable) {
    write!(
        out,
        "<h2>{}</h2><div class=\"wide\"><table class=\"stack\"><thead><tr>",
        escape_html(&grid.title)
    )
    .ok();
    for name in &grid.column_names {
        write!(out, "<th>{}</th>", escape_html(name)).ok();
    }
    out.push_str("</tr></thead><tbody>");
    for (tone, cells) in &grid.rows {
        out.push_str("<tr>");
        for (index, cell) in cells.iter().enumerate() {
            // The last cell shows the row's verdict.
            let class = if index + 1 == cells.len() { tone.css_class() } else { "" };
            write!(out, "<td class=\"{class}\"").ok();
            // On narrow screens each value is shown with its column's name.
            if let Some(name) =
                grid.column_names.get(index).filter(|name| index > 0 && !name.is_empty())
            {
                write!(out, " data-n=\"{}\"", escape_html(name)).ok();
            }
            write!(out, ">{}</td>", escape_html(cell)).ok();
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// CSS classes of lines; more than six cannot be distinguished.
pub(super) const LINE_CSS_CLASSES: [&str; 6] = ["c1", "c2", "c3", "c4", "c5", "c6"];

fn write_percentile_chart(out: &mut String, title: &str, lines: &[(String, TimingHistogram)]) {
    let names: Vec<String> = lines.iter().map(|(name, _)| escape_html(name)).collect();
    let lines: Vec<ChartLine<'_>> = (names.iter().zip(lines).zip(LINE_CSS_CLASSES.iter().cycle()))
        .map(|((name, (_, times)), class)| ChartLine {
            name,
            class,
            points: chart::percentile_points(times),
        })
        .collect();
    out.push_str(&chart::render_percentile_chart(&escape_html(title), &lines));
}

fn write_line_chart(out: &mut String, curves: &ReportChart) {
    let names: Vec<String> = curves.lines.iter().map(|(name, _)| escape_html(name)).collect();
    let lines: Vec<ChartLine<'_>> =
        (names.iter().zip(&curves.lines).zip(LINE_CSS_CLASSES.iter().cycle()))
            .map(|((name, (_, points)), class)| ChartLine { name, class, points: points.clone() })
            .collect();
    out.push_str(&chart::render_line_chart(
        &escape_html(&curves.title),
        &escape_html(&curves.vertical_unit),
        &escape_html(&curves.horizontal_unit),
        &lines,
    ));
}

fn write_waterfall(out: &mut String, bars: &[WaterfallBar]) {
    const HEIGHT: f64 = 18.0;
    const LEFT: f64 = 260.0;
    const WIDTH: f64 = 720.0;
    let end = |bar: &WaterfallBar| bar.start_ms + bar.connect_ms + bar.wait_ms + bar.receive_ms;
    let last = bars.iter().map(end).fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - 60.0) / last;
    let height = HEIGHT * bars.len() as f64 + 8.0;
    write!(out, "<figure><figcaption>Waterfall: connecting, waiting, receiving</figcaption><svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Waterfall\">").ok();
    for (row, bar) in bars.iter().enumerate() {
        let y = row as f64 * HEIGHT;
        let mut name: String =
            bar.request_name.chars().rev().take(38).collect::<Vec<_>>().into_iter().rev().collect();
        if name.len() < bar.request_name.len() {
            name.insert(0, '…');
        }
        let class = if bar.is_failed { "bad" } else { "" };
        write!(
            out,
            "<text class=\"{class}\" x=\"2\" y=\"{:.1}\"><title>{}</title>{}</text>",
            y + 13.0,
            escape_html(&bar.request_name),
            escape_html(&name)
        )
        .ok();
        let mut x = LEFT + bar.start_ms * scale;
        for (span, opacity) in [(bar.connect_ms, 0.35), (bar.wait_ms, 0.6), (bar.receive_ms, 1.0)] {
            write!(out, "<rect class=\"heat\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\"{opacity}\"/>", y + 3.0, (span * scale).max(0.3), HEIGHT - 6.0).ok();
            x += span * scale;
        }
        write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{:.0} ms</text>", x + 4.0, y + 13.0, end(bar))
            .ok();
    }
    out.push_str("</svg></figure>");
}

/// Returns a table as text with aligned columns. All columns but the first are right-aligned.
fn align_columns(grid: &ReportTable) -> String {
    let mut widths: Vec<usize> =
        grid.column_names.iter().map(|name| name.chars().count()).collect();
    for (_, cells) in &grid.rows {
        for (column, cell) in cells.iter().enumerate() {
            match widths.get_mut(column) {
                Some(width) => *width = (*width).max(cell.chars().count()),
                None => widths.push(cell.chars().count()),
            }
        }
    }
    let mut out = format!("{}\n", grid.title);
    let rows = std::iter::once(&grid.column_names).chain(grid.rows.iter().map(|(_, cells)| cells));
    for cells in rows {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let width = *width;
            match column {
                0 => write!(line, "  {cell:<width$}").ok(),
                _ => write!(line, "  {cell:>width$}").ok(),
            };
        }
        writeln!(out, "{}", line.trim_end()).ok();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> ReportSheet {
        let mut sheet = ReportSheet::new("a <b>");
        let mut grid = ReportTable::new("Phases", &["phase", "rate"]);
        grid.add_row(ReportTone::Bad, vec!["launch".to_owned(), "80/s | \"x\"".to_owned()]);
        sheet.parts.push(ReportPart::Table(grid));
        let bar = WaterfallBar {
            request_name: "/é".repeat(40),
            start_ms: 0.0,
            connect_ms: 1.0,
            wait_ms: 2.0,
            receive_ms: 3.0,
            is_failed: true,
        };
        sheet.parts.push(ReportPart::Waterfall(vec![bar]));
        sheet.add_verdict(ReportTone::Good, "it holds");
        sheet
    }

    #[test]
    fn a_sheet_tells_the_same_in_every_form() {
        let sheet = sheet();
        assert_eq!(
            sheet.to_plain_text(),
            "Phases\n  phase         rate\n  launch  80/s | \"x\"\nit holds\n"
        );
        assert!(sheet.to_markdown().contains("| launch | 80/s \\| \"x\" |"));
        let html = sheet.to_html();
        assert!(
            html.contains("<h1>a &lt;b&gt;</h1>")
                && html.contains("<td class=\"bad\" data-n=\"rate\">80/s | &quot;x&quot;</td>")
        );
        assert_eq!(sheet.to_json()["good"], true);
    }

    #[test]
    fn what_was_logged_as_an_error_misses_a_goal_and_is_reported() {
        use crate::measurement::log_watch_result::LogErrors;

        let log = |lines: &[&str], unread: Option<&str>| LogWatchResult {
            log_file: "e.log".to_owned(),
            errors: LogErrors {
                error_count: lines.len() as u64,
                first_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            },
            read_failure: unread.map(str::to_owned),
        };
        let mut quiet = sheet();
        quiet.add_log_watches(&[log(&[], None)]);
        assert!(!quiet.has_bad_result() && !quiet.is_doubtful());
        assert_eq!(quiet.to_json()["errors_logged"][0]["count"], 0);
        let mut loud = sheet();
        loud.add_log_watches(&[log(&["ERROR <x>"], None)]);
        assert!(loud.has_bad_result() && !loud.is_doubtful());
        assert!(loud.to_plain_text().contains("e.log  ERROR <x>"), "{}", loud.to_plain_text());
        assert!(
            loud.to_plain_text().contains("goal MISSED e.log: no new error lines, measured 1 line")
        );
        assert!(loud.to_html().contains("ERROR &lt;x&gt;"));
        assert_eq!(loud.to_json()["errors_logged"][0]["lines"][0], "ERROR <x>");
        let mut lost = sheet();
        lost.add_log_watches(&[log(&[], Some("cannot read `e.log`"))]);
        assert!(lost.is_doubtful());
    }

    #[test]
    fn what_was_seen_of_the_target_is_reported_beside_the_load() {
        let at = |seconds: u64| ProcessMetrics {
            elapsed: std::time::Duration::from_secs(seconds),
            cpu_time: std::time::Duration::from_millis(seconds * 500),
            memory_bytes: 1000 + seconds,
            thread_count: 3,
            ..ProcessMetrics::default()
        };
        let mut sheet = sheet();
        sheet.add_target_facts(&[at(0), at(1), at(2)]);
        let json = sheet.to_json();
        assert_eq!(json["target"]["cpu_seconds"], 1.0);
        assert_eq!(json["target"]["max_memory_bytes"], 1002);
        assert!(sheet.to_html().contains("Memory of the tested process"), "{}", sheet.to_html());
        let mut unseen = ReportSheet::new("x");
        unseen.add_target_facts(&[]);
        assert!(unseen.parts.is_empty() && unseen.to_json()["target"].is_null());
    }

    #[test]
    fn what_is_bad_or_doubtful_is_not_good() {
        let mut sheet = sheet();
        sheet.add_verdict(ReportTone::Doubtful, "saturated");
        assert!(sheet.is_doubtful() && !sheet.has_bad_result());
        sheet.add_verdict(ReportTone::Bad, "broke");
        assert!(sheet.has_bad_result());
        assert_eq!(sheet.to_json()["good"], false);
    }
}
