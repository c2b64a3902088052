//! Measures each component of a page in isolation and the whole page, and compares the sum of the parts with the whole.
//!
//! In: a page of a server that lists its components, as [`crate::page::component_profile`] parses them. Out: a
//! [`ReportSheet`].
//!
//! Requests are sent one at a time. Times are the server's if it reports them (`Server-Timing`), otherwise the
//! client's.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tympan_lab_engine::goal::format_response_time;
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::load::scripted_fetch::{
    ScriptedRequest, ScriptedResponse, run_fetch_script,
};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_plan::AbsoluteUrl;

use crate::page::component_profile::{self, ComponentProfileOptions, ComponentTimingRow};
use crate::page::visit::parse_server_timing;
use crate::{Error, Result};

/// The measurement of one URL.
#[derive(Debug, Clone, Default)]
struct AddressMeasurement {
    response_times: Vec<Duration>,
    /// The failure reason, if a request failed.
    failure_reason: Option<String>,
    is_server_time: bool,
}

impl AddressMeasurement {
    fn add_response(&mut self, got: &ScriptedResponse) {
        if !got.is_ok() {
            let why = got.failure.clone().unwrap_or_else(|| format!("status {}", got.status));
            self.failure_reason = Some(why);
            return;
        }
        let phases = parse_server_timing(&got.response_head);
        let render = phases.iter().find(|(name, _)| name == "render").map(|phase| phase.1);
        let render_time =
            render.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok());
        self.is_server_time = render_time.is_some();
        self.response_times.push(render_time.unwrap_or_else(|| got.elapsed()));
    }

    /// Returns the failure reason if no request succeeded.
    fn failure_if_never_ok(&self) -> Option<&String> {
        self.failure_reason.as_ref().filter(|_| self.response_times.is_empty())
    }

    fn median(&self) -> Duration {
        let mut times = self.response_times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// Renders each component of a page alone, and the page.
///
/// # Errors
/// `Error::InvalidUrl`; [`Error::UnusableInput`] if the server reports no components; [`Error::Engine`].
pub fn measure_components_alone(profile: &ComponentProfileOptions) -> Result<ReportSheet> {
    let page = AbsoluteUrl::parse(&profile.url)?;
    let responses = component_profile::fetch_page_repeatedly(profile)?;
    let answered: Vec<&ScriptedResponse> = responses.iter().filter(|got| got.is_ok()).collect();
    let rows: Vec<ComponentTimingRow> = component_profile::median_server_rows(&answered)
        .into_iter()
        .filter(|row| row.depth == 1 && row.node_path.starts_with('/'))
        .collect();
    if rows.is_empty() {
        return Err(Error::UnusableInput(format!(
            "`{}` reports no components; Tympan reports them to administrators (--login)",
            profile.url
        )));
    }
    let mut urls = vec![page.clone()];
    urls.extend(rows.iter().map(|row| AbsoluteUrl {
        path_and_query: component_url_path(&row.node_path),
        ..page.clone()
    }));
    // Bypass the server's caches, so that each component is rendered.
    for url in urls.iter_mut().filter(|_| profile.authorization.is_some()) {
        let sign = if url.path_and_query.contains('?') { '&' } else { '?' };
        url.path_and_query.push_str(&format!("{sign}_flex=nocache"));
    }
    let timed = measure_addresses(&urls, profile)?;
    Ok(build_component_sheet(profile, &rows, &timed))
}

/// Returns the URL path that renders the node at `path` alone; it contains `_jcr_content` for `jcr:content`, as in
/// Sling.
fn component_url_path(path: &str) -> String {
    let segment = |segment: &str| match segment.split_once(':') {
        Some((prefix, name)) => format!("_{prefix}_{name}"),
        None => segment.replace(' ', "%20"),
    };
    format!("{}.html", path.split('/').map(segment).collect::<Vec<_>>().join("/"))
}

/// Requests all URLs in turn, the configured number of times.
fn measure_addresses(
    urls: &[AbsoluteUrl],
    profile: &ComponentProfileOptions,
) -> Result<Vec<AddressMeasurement>> {
    let mut headers = profile.headers.clone();
    headers.extend(profile.authorization.as_ref().map(RequestAuthorization::to_header));
    let timed: Arc<Mutex<Vec<AddressMeasurement>>> =
        Arc::new(Mutex::new(vec![AddressMeasurement::default(); urls.len()]));
    let measurements = Arc::clone(&timed);
    let count = urls.len();
    let all: Vec<AbsoluteUrl> = urls.to_vec();
    let mut turns = (0..count * profile.request_count.max(1)).map(move |turn| turn % count);
    let mut last = None;
    run_fetch_script(1, move |got| {
        let mut measurements = measurements.lock().unwrap_or_else(PoisonError::into_inner);
        let measurement = last.and_then(|at: usize| measurements.get_mut(at));
        if let (Some(got), Some(measurement)) = (got.first(), measurement) {
            measurement.add_response(got);
        }
        last = turns.next();
        let next = last.and_then(|at| all.get(at).cloned());
        next.map(|url| ScriptedRequest::get(url, &headers)).into_iter().collect()
    })?;
    let timed = std::mem::take(&mut *timed.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(timed)
}

fn build_component_sheet(
    profile: &ComponentProfileOptions,
    rows: &[ComponentTimingRow],
    timed: &[AddressMeasurement],
) -> ReportSheet {
    let mut sheet =
        ReportSheet::new(&format!("Components of {}, each requested alone", profile.url));
    let Some((page, parts)) = timed.split_first() else { return sheet };
    if let Some(failure) = page.failure_if_never_ok() {
        sheet
            .add_verdict(ReportTone::Doubtful, format!("the page could not be fetched: {failure}"));
        return sheet;
    }
    let whole = page.median();
    let mut grid = ReportTable::new(
        "Components",
        &["component", "calls", "in the page", "alone", "of the page", ""],
    );
    let mut json_entries = Vec::new();
    let (mut sum, mut lost) = (Duration::ZERO, 0);
    for (row, part) in rows.iter().zip(parts) {
        let alone = part.median();
        let share = alone.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 100.0;
        let calls = u32::try_from(row.call_count).unwrap_or(u32::MAX);
        sum += alone.saturating_mul(calls);
        lost += usize::from(part.failure_if_never_ok().is_some());
        let tone = if part.failure_reason.is_some() { ReportTone::Bad } else { ReportTone::Plain };
        grid.add_row(
            tone,
            vec![
                format!("{} {}", row.script, row.node_path),
                row.call_count.to_string(),
                format_response_time(row.total_time),
                format_response_time(alone),
                format!("{share:.1} %"),
                part.failure_reason.clone().unwrap_or_default(),
            ],
        );
        json_entries.push(json!({
            "script": row.script, "path": row.node_path, "calls": row.call_count, "alone_us": duration_us(alone),
            "in_page_us": duration_us(row.total_time), "share_of_page": share / 100.0, "failure": part.failure_reason,
        }));
    }
    let difference = match sum > whole {
        true => format!(
            "{} more: work that the page does once is repeated for each (overlap)",
            format_response_time(sum.saturating_sub(whole))
        ),
        false => {
            format!(
                "{} less: the page's own work (overhead)",
                format_response_time(whole.saturating_sub(sum))
            )
        }
    };
    sheet.add_verdict(
        ReportTone::Plain,
        format!(
            "the page takes {}, its components requested alone {} in total: {difference}",
            format_response_time(whole),
            format_response_time(sum)
        ),
    );
    let clock = if page.is_server_time { "server's" } else { "client's" };
    sheet.add_verdict(
        ReportTone::Plain,
        format!("times are medians of {} by the {clock} clock", profile.request_count.max(1)),
    );
    if lost > 0 {
        sheet.add_verdict(
            ReportTone::Doubtful,
            format!("{lost} components cannot be rendered alone and count as 0"),
        );
    }
    sheet.parts.push(ReportPart::Table(grid));
    sheet.json_result = json!({
        "url": profile.url, "clock": clock, "page_us": duration_us(whole), "sum_us": duration_us(sum), "components": json_entries,
    });
    sheet
}

fn duration_us(time: Duration) -> Value {
    Value::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_without_colons() {
        assert_eq!(
            component_url_path("/content/en/jcr:content/nav bar"),
            "/content/en/_jcr_content/nav%20bar.html"
        );
    }
}
