//! The time of each component of a page, as reported by the server: Tympan with `?tympan-profile=1`, other servers with
//! `Server-Timing`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::format_response_time;
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::load::scripted_fetch::{
    ScriptedRequest, ScriptedResponse, run_fetch_script,
};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_plan::{AbsoluteUrl, decode_text};

use crate::page::visit::parse_server_timing;
use crate::{Error, Result};

/// Options of a component profile.
#[derive(Debug, Clone)]
pub struct ComponentProfileOptions {
    /// The URL of the page.
    pub url: String,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// The credentials of an administrator; Tympan reports timings to administrators only.
    pub authorization: Option<RequestAuthorization>,
    /// Number of requests; the median of all times is reported.
    pub request_count: usize,
}

/// One component of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentTimingRow {
    /// Inclusion depth; the page is 0.
    pub depth: usize,
    /// Its script, or the name of a phase.
    pub script: String,
    /// The path of the rendered node.
    pub node_path: String,
    /// Time including all included components.
    pub total_time: Duration,
    /// Time excluding included components.
    pub own_time: Duration,
    /// Number of calls at this position.
    pub call_count: u64,
    /// Number of nodes read.
    pub node_reads: u64,
    /// Number of queries executed.
    pub query_count: u64,
}

/// Returns the rows that Tympan appends to a page; empty if there are none.
#[must_use]
pub fn parse_component_rows(page: &str) -> Vec<ComponentTimingRow> {
    let Some(at) = page.rfind("<!-- tympan: total us") else { return Vec::new() };
    let comment = page.get(at..).unwrap_or_default();
    let comment = comment.split("-->").next().unwrap_or_default();
    comment.lines().skip(1).filter_map(parse_row).collect()
}

fn parse_row(line: &str) -> Option<ComponentTimingRow> {
    let mut rest = line;
    let mut numbers = [0u64; 5];
    for number in &mut numbers {
        let trimmed = rest.trim_start();
        let end = trimmed.find(' ')?;
        *number = trimmed.get(..end)?.parse().ok()?;
        rest = trimmed.get(end..)?;
    }
    // Two spaces separate the numbers from the script; each level adds two more.
    let script = rest.trim_start();
    let depth = (rest.len() - script.len()).saturating_sub(2) / 2;
    let (script, path) = script.split_once(' ').unwrap_or((script, ""));
    let [total, own, calls, reads, queries] = numbers;
    Some(ComponentTimingRow {
        depth,
        script: script.to_owned(),
        node_path: path.trim().to_owned(),
        total_time: Duration::from_micros(total),
        own_time: Duration::from_micros(own),
        call_count: calls,
        node_reads: reads,
        query_count: queries,
    })
}

/// Requests the page and reports the times of its components.
///
/// # Errors
/// `Error::InvalidUrl`, [`Error::UnusableInput`], [`Error::Engine`].
pub fn profile_components(profile: &ComponentProfileOptions) -> Result<ReportSheet> {
    Ok(build_profile_sheet(profile, &fetch_page_repeatedly(profile)?))
}

/// Requests the page the configured number of times.
///
/// # Errors
/// As [`profile_components`].
pub(crate) fn fetch_page_repeatedly(
    profile: &ComponentProfileOptions,
) -> Result<Vec<ScriptedResponse>> {
    let mut url = AbsoluteUrl::parse(&profile.url)?;
    if profile.request_count == 0 {
        return Err(Error::UnusableInput("the number of requests must be at least 1".to_owned()));
    }
    let sign = if url.path_and_query.contains('?') { '&' } else { '?' };
    url.path_and_query.push_str(&format!("{sign}tympan-profile=1"));
    let mut headers = profile.headers.clone();
    headers.extend(profile.authorization.as_ref().map(RequestAuthorization::to_header));
    let all: Arc<Mutex<Vec<ScriptedResponse>>> = Arc::default();
    let (responses, mut left) = (Arc::clone(&all), profile.request_count);
    run_fetch_script(1, move |got| {
        responses.lock().unwrap_or_else(PoisonError::into_inner).extend(got);
        left = match left.checked_sub(1) {
            Some(left) => left,
            None => return Vec::new(),
        };
        vec![ScriptedRequest::get(url.clone(), &headers)]
    })?;
    let all = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(all)
}

/// Returns the median of the component times that the server reported; empty if it reported none.
pub(crate) fn median_server_rows(answered: &[&ScriptedResponse]) -> Vec<ComponentTimingRow> {
    let of = |got: &&ScriptedResponse| {
        let rows = parse_component_rows(&decode_text(
            got.body.clone(),
            got.response_head.header("Content-Type"),
        ));
        if rows.is_empty() { rows_from_header(got) } else { rows }
    };
    median_rows(&answered.iter().map(of).collect::<Vec<_>>())
}

fn build_profile_sheet(profile: &ComponentProfileOptions, all: &[ScriptedResponse]) -> ReportSheet {
    let mut sheet = ReportSheet::new(&format!("Components of {}", profile.url));
    let answered: Vec<&ScriptedResponse> = all.iter().filter(|got| got.is_ok()).collect();
    if answered.is_empty() {
        let why = all.first().map_or_else(String::new, |got| {
            got.failure.clone().unwrap_or_else(|| format!("status {}", got.status))
        });
        sheet.add_verdict(ReportTone::Doubtful, format!("the page could not be fetched: {why}"));
        return sheet;
    }
    let rows = median_server_rows(&answered);
    if rows.is_empty() {
        sheet.add_verdict(
            ReportTone::Doubtful,
            "the server reports no times: Tympan reports them to administrators (--login), other servers in \
             the header Server-Timing",
        );
        return sheet;
    }
    let mut grid = ReportTable::new(
        "Components",
        &["component", "total", "self", "share", "calls", "look-ups", "queries"],
    );
    let whole: Duration = rows.iter().map(|row| row.own_time).sum();
    for row in &rows {
        let share = row.own_time.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 100.0;
        grid.add_row(
            ReportTone::Plain,
            vec![
                format!("{}{} {}", "  ".repeat(row.depth), row.script, row.node_path)
                    .trim_end()
                    .to_owned(),
                format_response_time(row.total_time),
                format_response_time(row.own_time),
                format!("{share:.1} %"),
                row.call_count.to_string(),
                row.node_reads.to_string(),
                row.query_count.to_string(),
            ],
        );
    }
    let page: Duration = rows.iter().filter(|row| row.depth == 0).map(|row| row.total_time).sum();
    let parts: Duration = rows.iter().filter(|row| row.depth == 1).map(|row| row.total_time).sum();
    sheet.add_verdict(
        ReportTone::Plain,
        format!(
            "the page takes {}, its components {} of it; {} is its own or unattributed",
            format_response_time(page),
            format_response_time(parts),
            format_response_time(page.saturating_sub(parts))
        ),
    );
    if let Some(most) = rows.iter().max_by_key(|row| row.own_time) {
        sheet.add_verdict(
            ReportTone::Plain,
            format!("highest self time: {} ({})", most.script, format_response_time(most.own_time)),
        );
    }
    sheet.parts.push(ReportPart::Table(grid));
    sheet.json_result = json!({ "url": profile.url, "runs": answered.len(), "components": rows.iter().map(row_to_json).collect::<Vec<_>>() });
    sheet
}

fn row_to_json(row: &ComponentTimingRow) -> Value {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    json!({
        "depth": row.depth, "script": row.script, "path": row.node_path, "total_us": us(row.total_time),
        "self_us": us(row.own_time), "calls": row.call_count, "reads": row.node_reads, "queries": row.query_count,
    })
}

/// Returns the phases in the header as rows of equal depth.
fn rows_from_header(got: &ScriptedResponse) -> Vec<ComponentTimingRow> {
    let row = |(name, millis): (String, f64)| {
        let time = Duration::try_from_secs_f64(millis / 1000.0).unwrap_or_default();
        ComponentTimingRow {
            depth: 0,
            script: name,
            node_path: String::new(),
            total_time: time,
            own_time: time,
            call_count: 1,
            node_reads: 0,
            query_count: 0,
        }
    };
    parse_server_timing(&got.response_head).into_iter().map(row).collect()
}

/// Returns the rows of the run with the most rows, each with its median times.
fn median_rows(runs: &[Vec<ComponentTimingRow>]) -> Vec<ComponentTimingRow> {
    let Some(longest) = runs.iter().max_by_key(|rows| rows.len()) else { return Vec::new() };
    let is_same = |left: &ComponentTimingRow, right: &ComponentTimingRow| {
        (left.depth, &left.script, &left.node_path)
            == (right.depth, &right.script, &right.node_path)
    };
    longest
        .iter()
        .map(|row| {
            let same: Vec<&ComponentTimingRow> = runs
                .iter()
                .filter_map(|rows| rows.iter().find(|candidate| is_same(row, candidate)))
                .collect();
            let median = |value: &dyn Fn(&ComponentTimingRow) -> Duration| {
                let mut times: Vec<Duration> = same.iter().map(|row| value(row)).collect();
                times.sort_unstable();
                times.get(times.len() / 2).copied().unwrap_or_default()
            };
            ComponentTimingRow {
                total_time: median(&|row| row.total_time),
                own_time: median(&|row| row.own_time),
                ..row.clone()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<html></html>\n<!-- tympan: total us, self us, calls, look-ups, queries, script, path\n    1480      210     1    41   0  /apps/site/page.html.j2 /content/en/jcr:content\n     620      480     1    31   2    /apps/site/nav.html.j2 /content/en/jcr:content/nav\n     140      140     2     3   0      /apps/site/link.html.j2 /content/en/a b\nhit=12 miss=3 never=1 -->\n";

    #[test]
    fn the_tree_of_includes_is_read() {
        let rows = parse_component_rows(PAGE);
        let summaries: Vec<(usize, &str, u128, u128)> = rows
            .iter()
            .map(|row| {
                (
                    row.depth,
                    row.script.as_str(),
                    row.total_time.as_micros(),
                    row.own_time.as_micros(),
                )
            })
            .collect();
        assert_eq!(
            summaries,
            [
                (0, "/apps/site/page.html.j2", 1480, 210),
                (1, "/apps/site/nav.html.j2", 620, 480),
                (2, "/apps/site/link.html.j2", 140, 140),
            ]
        );
        assert_eq!(
            (rows[1].query_count, rows[2].call_count, rows[2].node_path.as_str()),
            (2, 2, "/content/en/a b")
        );
        assert_eq!(parse_component_rows("<html></html>"), []);
        assert_eq!(parse_component_rows("<!-- tympan: total us\nx y z"), []);
    }

    #[test]
    fn the_middle_of_several_runs_counts() {
        let run = |us| {
            vec![ComponentTimingRow {
                own_time: Duration::from_micros(us),
                ..parse_component_rows(PAGE).remove(0)
            }]
        };
        let rows = median_rows(&[run(5), run(900), run(7)]);
        assert_eq!(rows[0].own_time, Duration::from_micros(7));
    }
}
