//! What each component of a page took, as the server tells: Tympan by `?tympan-profile=1`, others by `Server-Timing`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::browse::{Ask, Got, basic, browse};
use crate::goal::show;
use crate::net::Url;
use crate::page::server_timing;
use crate::plan::answer::to_text;
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::{Error, Result};

/// How to ask.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The page.
    pub url: String,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// `user:password` of an administrator, without whom Tympan tells nothing.
    pub login: Option<String>,
    /// How often; the middle of all times counts.
    pub count: usize,
}

/// One component of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// How deep it is included; the page is 0.
    pub depth: usize,
    /// Its script, or the name of a phase.
    pub script: String,
    /// The node that it draws.
    pub path: String,
    /// With everything that it includes.
    pub total: Duration,
    /// Without.
    pub own: Duration,
    /// How often it was called there.
    pub calls: u64,
    /// Nodes that it looked up.
    pub reads: u64,
    /// Queries that it made.
    pub queries: u64,
}

/// Returns the rows that Tympan writes at the end of a page; empty if it writes none.
#[must_use]
pub fn parse(page: &str) -> Vec<Row> {
    let Some(at) = page.rfind("<!-- tympan: total us") else { return Vec::new() };
    let comment = page.get(at..).unwrap_or_default();
    let comment = comment.split("-->").next().unwrap_or_default();
    comment.lines().skip(1).filter_map(parse_row).collect()
}

fn parse_row(line: &str) -> Option<Row> {
    let mut rest = line;
    let mut numbers = [0u64; 5];
    for number in &mut numbers {
        let trimmed = rest.trim_start();
        let end = trimmed.find(' ')?;
        *number = trimmed.get(..end)?.parse().ok()?;
        rest = trimmed.get(end..)?;
    }
    // Two spaces part the numbers from the script; two more stand for each level.
    let script = rest.trim_start();
    let depth = (rest.len() - script.len()).saturating_sub(2) / 2;
    let (script, path) = script.split_once(' ').unwrap_or((script, ""));
    let [total, own, calls, reads, queries] = numbers;
    Some(Row {
        depth,
        script: script.to_owned(),
        path: path.trim().to_owned(),
        total: Duration::from_micros(total),
        own: Duration::from_micros(own),
        calls,
        reads,
        queries,
    })
}

/// Asks for the page and tells what its components took.
///
/// # Errors
/// [`Error::Url`], [`Error::Input`], [`Error::Engine`].
pub fn run(profile: &Profile) -> Result<Sheet> {
    Ok(tell(profile, &ask(profile)?))
}

/// Asks for the page as often as it is wanted.
///
/// # Errors
/// As [`run`].
pub(crate) fn ask(profile: &Profile) -> Result<Vec<Got>> {
    let mut url = Url::parse(&profile.url)?;
    if profile.count == 0 {
        return Err(Error::Input("the page is to be asked for 0 times".to_owned()));
    }
    let sign = if url.target.contains('?') { '&' } else { '?' };
    url.target.push_str(&format!("{sign}tympan-profile=1"));
    let mut headers = profile.headers.clone();
    headers.extend(profile.login.as_deref().map(basic));
    let all: Arc<Mutex<Vec<Got>>> = Arc::default();
    let (seen, mut left) = (Arc::clone(&all), profile.count);
    browse(1, move |got| {
        seen.lock().unwrap_or_else(PoisonError::into_inner).extend(got);
        left = match left.checked_sub(1) {
            Some(left) => left,
            None => return Vec::new(),
        };
        vec![Ask::get(url.clone(), &headers)]
    })?;
    let all = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(all)
}

/// Returns the middle of what the server told of components; nothing if it told nothing.
pub(crate) fn rows(answered: &[&Got]) -> Vec<Row> {
    let of = |got: &&Got| {
        let rows = parse(&to_text(got.body.clone(), got.head.header("Content-Type")));
        if rows.is_empty() { from_header(got) } else { rows }
    };
    middle(&answered.iter().map(of).collect::<Vec<_>>())
}

fn tell(profile: &Profile, all: &[Got]) -> Sheet {
    let mut sheet = Sheet::new(&format!("Components of {}", profile.url));
    let answered: Vec<&Got> = all.iter().filter(|got| got.is_ok()).collect();
    if answered.is_empty() {
        let why = all.first().map_or_else(String::new, |got| {
            got.failure.clone().unwrap_or_else(|| format!("status {}", got.status))
        });
        sheet.say(Tone::Doubt, format!("the page could not be had: {why}"));
        return sheet;
    }
    let rows = rows(&answered);
    if rows.is_empty() {
        sheet.say(
            Tone::Doubt,
            "the server tells no times: Tympan needs the login of an administrator (--login), others the header Server-Timing",
        );
        return sheet;
    }
    let mut grid = Grid::new(
        "Components",
        &["component", "total", "self", "share", "calls", "look-ups", "queries"],
    );
    let whole: Duration = rows.iter().map(|row| row.own).sum();
    for row in &rows {
        let share = row.own.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 100.0;
        grid.add(
            Tone::Plain,
            vec![
                format!("{}{} {}", "  ".repeat(row.depth), row.script, row.path)
                    .trim_end()
                    .to_owned(),
                show(row.total),
                show(row.own),
                format!("{share:.1} %"),
                row.calls.to_string(),
                row.reads.to_string(),
                row.queries.to_string(),
            ],
        );
    }
    let page: Duration = rows.iter().filter(|row| row.depth == 0).map(|row| row.total).sum();
    let parts: Duration = rows.iter().filter(|row| row.depth == 1).map(|row| row.total).sum();
    sheet.say(
        Tone::Plain,
        format!(
            "the page takes {}, its components {} of it; {} is its own or nobody's",
            show(page),
            show(parts),
            show(page.saturating_sub(parts))
        ),
    );
    if let Some(most) = rows.iter().max_by_key(|row| row.own) {
        sheet.say(Tone::Plain, format!("most by itself: {} ({})", most.script, show(most.own)));
    }
    sheet.parts.push(Part::Grid(grid));
    sheet.json = json!({ "url": profile.url, "runs": answered.len(), "components": rows.iter().map(to_json).collect::<Vec<_>>() });
    sheet
}

fn to_json(row: &Row) -> Value {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    json!({
        "depth": row.depth, "script": row.script, "path": row.path, "total_us": us(row.total),
        "self_us": us(row.own), "calls": row.calls, "reads": row.reads, "queries": row.queries,
    })
}

/// Returns the phases of the header as rows beside each other.
fn from_header(got: &Got) -> Vec<Row> {
    let row = |(name, millis): (String, f64)| {
        let time = Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
        Row {
            depth: 0,
            script: name,
            path: String::new(),
            total: time,
            own: time,
            calls: 1,
            reads: 0,
            queries: 0,
        }
    };
    server_timing(&got.head).into_iter().map(row).collect()
}

/// Returns the rows of the run with the most rows, each with the median of its times.
fn middle(runs: &[Vec<Row>]) -> Vec<Row> {
    let Some(longest) = runs.iter().max_by_key(|rows| rows.len()) else { return Vec::new() };
    let is_same = |one: &Row, other: &Row| {
        (one.depth, &one.script, &one.path) == (other.depth, &other.script, &other.path)
    };
    longest
        .iter()
        .map(|row| {
            let same: Vec<&Row> = runs
                .iter()
                .filter_map(|rows| rows.iter().find(|other| is_same(row, other)))
                .collect();
            let median = |value: &dyn Fn(&Row) -> Duration| {
                let mut times: Vec<Duration> = same.iter().map(|row| value(row)).collect();
                times.sort_unstable();
                times.get(times.len() / 2).copied().unwrap_or_default()
            };
            Row { total: median(&|row| row.total), own: median(&|row| row.own), ..row.clone() }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<html></html>\n<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n    1480      210     1    41   0  /apps/site/page.html.j2 /content/en/jcr:content\n     620      480     1    31   2    /apps/site/nav.html.j2 /content/en/jcr:content/nav\n     140      140     2     3   0      /apps/site/link.html.j2 /content/en/a b\nhit=12 miss=3 never=1 -->\n";

    #[test]
    fn the_tree_of_includes_is_read() {
        let rows = parse(PAGE);
        let told: Vec<(usize, &str, u128, u128)> = rows
            .iter()
            .map(|row| (row.depth, row.script.as_str(), row.total.as_micros(), row.own.as_micros()))
            .collect();
        assert_eq!(
            told,
            [
                (0, "/apps/site/page.html.j2", 1480, 210),
                (1, "/apps/site/nav.html.j2", 620, 480),
                (2, "/apps/site/link.html.j2", 140, 140),
            ]
        );
        assert_eq!(
            (rows[1].queries, rows[2].calls, rows[2].path.as_str()),
            (2, 2, "/content/en/a b")
        );
        assert_eq!(parse("<html></html>"), []);
        assert_eq!(parse("<!-- tympan: total us\nx y z"), []);
    }

    #[test]
    fn the_middle_of_several_runs_counts() {
        let run = |us| vec![Row { own: Duration::from_micros(us), ..parse(PAGE).remove(0) }];
        let rows = middle(&[run(5), run(900), run(7)]);
        assert_eq!(rows[0].own, Duration::from_micros(7));
    }
}
