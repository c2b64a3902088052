//! A report of several measurements side by side: verdicts, tables, curves; for people and for machines.
//!
//! In: a [`Sheet`] that a command fills. Out: one HTML file that works from disk, text, or Markdown.

use std::fmt::Write as _;

use serde_json::Value;

use super::chart::{self, Line};
use super::html::{STYLE, escape};
use super::text;
use crate::goal::Judged;
use crate::phase::watch::{self, Facts};
use crate::record::Timing;
use crate::watch_log::Logged;

/// How something is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// Neither good nor bad.
    #[default]
    Plain,
    /// What was wanted.
    Good,
    /// What was not wanted.
    Bad,
    /// What cannot be trusted.
    Doubt,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Doubt => "doubt",
        }
    }
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Grid {
    /// What it shows.
    pub title: String,
    /// The names of its columns.
    pub head: Vec<String>,
    /// Its rows, each with how it is to be read.
    pub rows: Vec<(Tone, Vec<String>)>,
}

impl Grid {
    /// Returns an empty table.
    #[must_use]
    pub fn new(title: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.to_owned(), head, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn add(&mut self, tone: Tone, cells: Vec<String>) {
        self.rows.push((tone, cells));
    }
}

/// Lines over one axis.
#[derive(Debug, Clone)]
pub struct Curves {
    /// What they show.
    pub title: String,
    /// What the vertical axis counts.
    pub unit: String,
    /// What the horizontal axis counts.
    pub axis: String,
    /// Names and points.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// One request in a waterfall, in milliseconds since its beginning.
#[derive(Debug, Clone)]
pub struct Bar {
    /// What was asked for.
    pub name: String,
    /// When it started.
    pub start: f64,
    /// Connecting.
    pub connect: f64,
    /// Until the first byte, after connecting.
    pub wait: f64,
    /// From the first byte to the last.
    pub receive: f64,
    /// Whether it failed.
    pub is_bad: bool,
}

/// A part of a sheet.
#[derive(Debug, Clone)]
pub enum Part {
    /// A sentence.
    Text(String),
    /// A table.
    Grid(Grid),
    /// Lines; a text shows none.
    Curves(Curves),
    /// Times by percentile: their heading, and names and times.
    Percentiles(String, Vec<(String, Timing)>),
    /// Requests over time.
    Waterfall(Vec<Bar>),
}

/// A report.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Its heading.
    pub title: String,
    /// What came out, the most important first.
    pub verdicts: Vec<(Tone, String)>,
    /// Goals, judged.
    pub goals: Vec<Judged>,
    /// The rest.
    pub parts: Vec<Part>,
    /// The same for machines.
    pub json: Value,
}

impl Sheet {
    /// Returns an empty report.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    /// Adds what came out.
    pub fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.verdicts.push((tone, text.into()));
    }

    /// Adds what was written to logs that were watched: a goal for each, and the lines of errors.
    pub fn add_logged(&mut self, logged: &[Logged]) {
        let mut grid = Grid::new("Errors logged", &["log", "line"]);
        for log in logged {
            self.goals.push(log.judged());
            if let Some(reason) = &log.unread {
                self.say(Tone::Doubt, format!("LOG NOT READ {reason}"));
            }
            for line in &log.errors.lines {
                grid.add(Tone::Bad, vec![log.file.clone(), line.clone()]);
            }
        }
        if !grid.rows.is_empty() {
            self.parts.push(Part::Grid(grid));
        }
        if self.json.is_null() {
            self.json = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut self.json
            && !logged.is_empty()
        {
            let logged = logged.iter().map(Logged::to_json).collect();
            fields.insert("errors_logged".to_owned(), Value::Array(logged));
        }
    }

    /// Adds what was seen of the tested process beside the load.
    pub fn add_target(&mut self, seen: &[Facts]) {
        self.parts.extend(target_parts(seen));
        if self.json.is_null() {
            self.json = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut self.json {
            fields.insert("target".to_owned(), text::target(seen));
        }
    }

    /// Reports whether anything is not as it was wanted.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        self.verdicts.iter().any(|(tone, _)| *tone == Tone::Bad)
            || self.goals.iter().any(|goal| !goal.is_met)
    }

    /// Reports whether the numbers cannot be trusted.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.verdicts.iter().any(|(tone, _)| *tone == Tone::Doubt)
    }

    /// Returns one HTML file.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let mut out = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        );
        for (tone, text) in &self.verdicts {
            write!(out, "<p class=\"{}\">{}</p>", tone.class(), escape(text)).ok();
        }
        if !self.goals.is_empty() {
            write_grid(&mut out, &self.goal_grid());
        }
        for part in &self.parts {
            match part {
                Part::Text(text) => {
                    write!(out, "<p>{}</p>", escape(text)).ok();
                }
                Part::Grid(grid) => write_grid(&mut out, grid),
                Part::Curves(curves) => write_curves(&mut out, curves),
                Part::Percentiles(title, lines) => write_percentiles(&mut out, title, lines),
                Part::Waterfall(bars) => write_waterfall(&mut out, bars),
            }
        }
        out.push_str("</main></body></html>\n");
        out
    }

    /// Returns the report for a terminal.
    #[must_use]
    pub fn plain(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => {
                    writeln!(out, "{text}").ok();
                }
                Part::Grid(grid) => out.push_str(&columns(grid)),
                Part::Curves(_) | Part::Percentiles(..) | Part::Waterfall(_) => {}
            }
        }
        for goal in &self.goals {
            let word = if goal.is_met { "met   " } else { "MISSED" };
            writeln!(
                out,
                "goal {word} {}: {}, measured {}",
                goal.label, goal.wanted, goal.measured
            )
            .ok();
        }
        for (_, text) in &self.verdicts {
            writeln!(out, "{text}").ok();
        }
        out
    }

    /// Returns the report for a pull request.
    #[must_use]
    pub fn markdown(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut out = format!("## {}\n\n", self.title);
        for (tone, text) in &self.verdicts {
            let text = cell(text);
            let line = if *tone == Tone::Plain { text } else { format!("**{text}**") };
            writeln!(out, "{line}\n").ok();
        }
        let goals = (!self.goals.is_empty()).then(|| self.goal_grid());
        let grids = self.parts.iter().filter_map(|part| match part {
            Part::Grid(grid) => Some(grid),
            _ => None,
        });
        for grid in goals.iter().chain(grids) {
            let row = |cells: &[String]| {
                let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
                format!("| {} |\n", cells.join(" | "))
            };
            out.push_str(&row(&grid.head));
            out.push_str(&format!("|{}\n", "---|".repeat(grid.head.len())));
            grid.rows.iter().for_each(|(_, cells)| out.push_str(&row(cells)));
            out.push('\n');
        }
        out
    }

    /// Returns the goals as JUnit XML, for build servers.
    #[must_use]
    pub fn junit(&self) -> String {
        let failures = self.goals.iter().filter(|goal| !goal.is_met).count();
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\">\n",
            escape(&self.title),
            self.goals.len()
        );
        for goal in &self.goals {
            let (label, wanted) = (escape(&goal.label), escape(&goal.wanted));
            write!(out, "  <testcase classname=\"{label}\" name=\"{wanted}\"").ok();
            match goal.is_met {
                true => out.push_str("/>\n"),
                false => {
                    let measured = escape(&goal.measured);
                    writeln!(out, "><failure message=\"measured {measured}\"/></testcase>").ok();
                }
            }
        }
        out.push_str("</testsuite>\n");
        out
    }

    /// Returns the report as JSON: what the command gave, and the verdicts.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = self.json.clone();
        if json.is_null() {
            json = Value::Object(serde_json::Map::new());
        }
        if let Value::Object(fields) = &mut json {
            let verdicts: Vec<Value> =
                self.verdicts.iter().map(|(_, text)| Value::from(text.as_str())).collect();
            let goals: Vec<Value> = self
                .goals
                .iter()
                .map(|goal| serde_json::json!({ "label": goal.label, "wanted": goal.wanted, "measured": goal.measured, "met": goal.is_met }))
                .collect();
            fields.insert("title".to_owned(), Value::from(self.title.as_str()));
            fields.insert("verdicts".to_owned(), Value::from(verdicts));
            fields.insert("goals".to_owned(), Value::from(goals));
            fields.insert("good".to_owned(), Value::from(!self.is_bad() && !self.is_doubtful()));
        }
        json
    }

    fn goal_grid(&self) -> Grid {
        let mut grid = Grid::new("Goals", &["label", "wanted", "measured", ""]);
        for goal in &self.goals {
            let (tone, word) =
                if goal.is_met { (Tone::Good, "met") } else { (Tone::Bad, "missed") };
            let cells = [&goal.label, &goal.wanted, &goal.measured].map(Clone::clone);
            grid.add(tone, cells.into_iter().chain([word.to_owned()]).collect());
        }
        grid
    }
}

/// Returns the charts of a tested process; none of a single look.
pub(crate) fn target_parts(seen: &[Facts]) -> Vec<Part> {
    if seen.len() < 2 {
        return Vec::new();
    }
    let part = |chart: watch::Chart| {
        Part::Curves(Curves {
            title: chart.title.to_owned(),
            unit: chart.unit.to_owned(),
            axis: "s".to_owned(),
            lines: chart.lines,
        })
    };
    watch::charts(seen).into_iter().map(part).collect()
}

fn write_grid(out: &mut String, grid: &Grid) {
    write!(
        out,
        "<h2>{}</h2><div class=\"wide\"><table class=\"stack\"><thead><tr>",
        escape(&grid.title)
    )
    .ok();
    for name in &grid.head {
        write!(out, "<th>{}</th>", escape(name)).ok();
    }
    out.push_str("</tr></thead><tbody>");
    for (tone, cells) in &grid.rows {
        out.push_str("<tr>");
        for (place, cell) in cells.iter().enumerate() {
            // The last cell tells the verdict of its row.
            let class = if place + 1 == cells.len() { tone.class() } else { "" };
            write!(out, "<td class=\"{class}\"").ok();
            // Narrow screens show each value with its column's name.
            if let Some(name) = grid.head.get(place).filter(|name| place > 0 && !name.is_empty()) {
                write!(out, " data-n=\"{}\"", escape(name)).ok();
            }
            write!(out, ">{}</td>", escape(cell)).ok();
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

/// The classes of lines; more than six cannot be told apart.
pub(super) const CLASSES: [&str; 6] = ["c1", "c2", "c3", "c4", "c5", "c6"];

fn write_percentiles(out: &mut String, title: &str, lines: &[(String, Timing)]) {
    let names: Vec<String> = lines.iter().map(|(name, _)| escape(name)).collect();
    let lines: Vec<Line<'_>> = (names.iter().zip(lines).zip(CLASSES.iter().cycle()))
        .map(|((name, (_, times)), class)| Line { name, class, points: chart::curve(times) })
        .collect();
    out.push_str(&chart::percentiles(&escape(title), &lines));
}

fn write_curves(out: &mut String, curves: &Curves) {
    let names: Vec<String> = curves.lines.iter().map(|(name, _)| escape(name)).collect();
    let lines: Vec<Line<'_>> = (names.iter().zip(&curves.lines).zip(CLASSES.iter().cycle()))
        .map(|((name, (_, points)), class)| Line { name, class, points: points.clone() })
        .collect();
    out.push_str(&chart::lines(
        &escape(&curves.title),
        &escape(&curves.unit),
        &escape(&curves.axis),
        &lines,
    ));
}

fn write_waterfall(out: &mut String, bars: &[Bar]) {
    const HEIGHT: f64 = 18.0;
    const LEFT: f64 = 260.0;
    const WIDTH: f64 = 720.0;
    let end = |bar: &Bar| bar.start + bar.connect + bar.wait + bar.receive;
    let last = bars.iter().map(end).fold(1.0, f64::max);
    let scale = (WIDTH - LEFT - 60.0) / last;
    let height = HEIGHT * bars.len() as f64 + 8.0;
    write!(out, "<figure><figcaption>Waterfall: connecting, waiting, receiving</figcaption><svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"Waterfall\">").ok();
    for (row, bar) in bars.iter().enumerate() {
        let y = row as f64 * HEIGHT;
        let mut name: String =
            bar.name.chars().rev().take(38).collect::<Vec<_>>().into_iter().rev().collect();
        if name.len() < bar.name.len() {
            name.insert(0, '…');
        }
        let class = if bar.is_bad { "bad" } else { "" };
        write!(
            out,
            "<text class=\"{class}\" x=\"2\" y=\"{:.1}\"><title>{}</title>{}</text>",
            y + 13.0,
            escape(&bar.name),
            escape(&name)
        )
        .ok();
        let mut x = LEFT + bar.start * scale;
        for (span, opacity) in [(bar.connect, 0.35), (bar.wait, 0.6), (bar.receive, 1.0)] {
            write!(out, "<rect class=\"heat\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\"{opacity}\"/>", y + 3.0, (span * scale).max(0.3), HEIGHT - 6.0).ok();
            x += span * scale;
        }
        write!(out, "<text x=\"{:.1}\" y=\"{:.1}\">{:.0} ms</text>", x + 4.0, y + 13.0, end(bar))
            .ok();
    }
    out.push_str("</svg></figure>");
}

/// Returns a table with aligned columns; all but the first stand to the right.
fn columns(grid: &Grid) -> String {
    let mut widths: Vec<usize> = grid.head.iter().map(|name| name.chars().count()).collect();
    for (_, cells) in &grid.rows {
        for (place, cell) in cells.iter().enumerate() {
            match widths.get_mut(place) {
                Some(width) => *width = (*width).max(cell.chars().count()),
                None => widths.push(cell.chars().count()),
            }
        }
    }
    let mut out = format!("{}\n", grid.title);
    let rows = std::iter::once(&grid.head).chain(grid.rows.iter().map(|(_, cells)| cells));
    for cells in rows {
        let mut line = String::new();
        for (place, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let width = *width;
            match place {
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

    fn sheet() -> Sheet {
        let mut sheet = Sheet::new("a <b>");
        let mut grid = Grid::new("Phases", &["phase", "rate"]);
        grid.add(Tone::Bad, vec!["launch".to_owned(), "80/s | \"x\"".to_owned()]);
        sheet.parts.push(Part::Grid(grid));
        let bar = Bar {
            name: "/é".repeat(40),
            start: 0.0,
            connect: 1.0,
            wait: 2.0,
            receive: 3.0,
            is_bad: true,
        };
        sheet.parts.push(Part::Waterfall(vec![bar]));
        sheet.say(Tone::Good, "it holds");
        sheet
    }

    #[test]
    fn a_sheet_tells_the_same_in_every_form() {
        let sheet = sheet();
        assert_eq!(
            sheet.plain(),
            "Phases\n  phase         rate\n  launch  80/s | \"x\"\nit holds\n"
        );
        assert!(sheet.markdown().contains("| launch | 80/s \\| \"x\" |"));
        let html = sheet.html();
        assert!(
            html.contains("<h1>a &lt;b&gt;</h1>")
                && html.contains("<td class=\"bad\" data-n=\"rate\">80/s | &quot;x&quot;</td>")
        );
        assert_eq!(sheet.to_json()["good"], true);
    }

    #[test]
    fn what_was_logged_as_an_error_misses_a_goal_and_is_told() {
        use crate::watch_log::Errors;

        let log = |lines: &[&str], unread: Option<&str>| Logged {
            file: "e.log".to_owned(),
            errors: Errors {
                count: lines.len() as u64,
                lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            },
            unread: unread.map(str::to_owned),
        };
        let mut quiet = sheet();
        quiet.add_logged(&[log(&[], None)]);
        assert!(!quiet.is_bad() && !quiet.is_doubtful());
        assert_eq!(quiet.to_json()["errors_logged"][0]["count"], 0);
        let mut loud = sheet();
        loud.add_logged(&[log(&["ERROR <x>"], None)]);
        assert!(loud.is_bad() && !loud.is_doubtful());
        assert!(loud.plain().contains("e.log  ERROR <x>"), "{}", loud.plain());
        assert!(
            loud.plain().contains("goal MISSED e.log: no new lines of errors, measured 1 line")
        );
        assert!(loud.html().contains("ERROR &lt;x&gt;"));
        assert_eq!(loud.to_json()["errors_logged"][0]["lines"][0], "ERROR <x>");
        let mut lost = sheet();
        lost.add_logged(&[log(&[], Some("cannot read `e.log`"))]);
        assert!(lost.is_doubtful());
    }

    #[test]
    fn what_was_seen_of_the_target_is_told_beside_the_load() {
        let at = |seconds: u64| Facts {
            at: std::time::Duration::from_secs(seconds),
            cpu: std::time::Duration::from_millis(seconds * 500),
            memory: 1000 + seconds,
            threads: 3,
            ..Facts::default()
        };
        let mut sheet = sheet();
        sheet.add_target(&[at(0), at(1), at(2)]);
        let json = sheet.to_json();
        assert_eq!(json["target"]["cpu_seconds"], 1.0);
        assert_eq!(json["target"]["most_memory_bytes"], 1002);
        assert!(sheet.html().contains("Memory of the tested process"), "{}", sheet.html());
        let mut unseen = Sheet::new("x");
        unseen.add_target(&[]);
        assert!(unseen.parts.is_empty() && unseen.to_json()["target"].is_null());
    }

    #[test]
    fn what_is_bad_or_doubtful_is_not_good() {
        let mut sheet = sheet();
        sheet.say(Tone::Doubt, "saturated");
        assert!(sheet.is_doubtful() && !sheet.is_bad());
        sheet.say(Tone::Bad, "broke");
        assert!(sheet.is_bad());
        assert_eq!(sheet.to_json()["good"], false);
    }
}
