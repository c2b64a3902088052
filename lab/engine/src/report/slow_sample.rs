//! The slowest samples, for runs that mark their requests. The marks join samples with a `request.log`, which splits
//! the client's wait into the server's work and the rest.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_notation::escape_html;

use super::figure_text;
use crate::measurement::{RunResults, ServerLogJoin, SlowSample, TimingHistogram};
use crate::report::goal::format_response_time;

/// Maximum number of rows of the table.
const MAX_TABLE_ROWS: usize = 50;
/// Maximum number of lines on a terminal.
const MAX_TEXT_LINES: usize = 10;

/// Writes the table of slowest samples.
pub(super) fn write_slow_sample_table(out: &mut String, results: &RunResults) {
    let all = results.slowest_samples.sorted();
    if all.is_empty() {
        return;
    }
    out.push_str("<h2>Slowest samples</h2>");
    match &results.server_log_join {
        None => out.push_str(
            "<p>Servers were told which sample a request belongs to (<code>X-Tympan-Lab</code>): Tympan's <code>request.log</code> has the mark behind the media type.</p>",
        ),
        Some(joined) => write_server_log_join(out, joined),
    }
    let has_log = results.server_log_join.is_some();
    out.push_str("<div class=\"wide\"><table class=\"stack\"><thead><tr><th>Label</th>");
    let server: &[&str] = if has_log { &["Server", "Elsewhere"] } else { &[] };
    let tells = all.iter().any(|slow| slow.server_timing.is_some());
    let timing: &[&str] = if tells { &["Server-Timing"] } else { &[] };
    let columns = ["Mark", "Sent at", "Outcome", "Response", "Service"];
    let columns = || columns.iter().chain(server).chain(timing);
    columns().for_each(|name| write!(out, "<th>{name}</th>").unwrap_or_default());
    out.push_str("</tr></thead><tbody>");
    for slow in all.into_iter().take(MAX_TABLE_ROWS) {
        let mut values = vec![
            slow.mark.to_string(),
            format_time_of_day(slow.started_ms),
            slow.outcome.to_string(),
            format_us(slow.response_us),
            format_us(slow.service_us),
        ];
        if has_log {
            values.push(format_server_timing(slow));
            values.push(slow.time_outside_server().map_or_else(String::new, format_response_time));
        }
        if tells {
            values.push(slow.server_timing.as_deref().unwrap_or_default().to_owned());
        }
        let name = if slow.label.is_empty() { "(no name)" } else { &slow.label };
        write!(out, "<tr><td>{}</td>", escape_html(name)).ok();
        for (column, value) in columns().zip(&values) {
            let class = if *column == "Server-Timing" { " class=\"names\"" } else { "" };
            write!(out, "<td{class} data-n=\"{column}\">{}</td>", escape_html(value)).ok();
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn write_server_log_join(out: &mut String, joined: &ServerLogJoin) {
    write!(
        out,
        "<p>The server's log knows {} of {} marked samples. What clients waited for besides the server's time is network and queues.</p>",
        figure_text::format_count(joined.matched_samples),
        figure_text::format_count(joined.marked_samples)
    )
    .ok();
    if joined.matched_samples == 0 {
        return;
    }
    out.push_str("<div class=\"wide\"><table class=\"stack\"><thead><tr><th>Of these</th><th>Mean</th><th>Median</th><th>95 %</th><th>99 %</th><th>Max</th></tr></thead><tbody>");
    for (name, timing) in join_time_parts(joined) {
        write!(
            out,
            "<tr><td>{name}</td><td data-n=\"Mean\">{}</td><td data-n=\"Median\">{}</td><td data-n=\"95 %\">{}</td><td data-n=\"99 %\">{}</td><td data-n=\"Max\">{}</td></tr>",
            format_response_time(timing.mean()),
            format_response_time(timing.quantile(0.5)),
            format_response_time(timing.quantile(0.95)),
            format_response_time(timing.quantile(0.99)),
            format_response_time(timing.max())
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

fn join_time_parts(joined: &ServerLogJoin) -> [(&'static str, &TimingHistogram); 3] {
    [
        ("client", &joined.client_times),
        ("server", &joined.server_times),
        ("elsewhere", &joined.other_times),
    ]
}

/// Returns the slowest samples as JSON.
pub(super) fn slowest_to_json(results: &RunResults) -> Vec<Value> {
    let ms = |us: u64| us as f64 / 1e3;
    let tell = |slow: &SlowSample| {
        json!({
            "label": &*slow.label,
            "mark": &*slow.mark,
            "started_ms": slow.started_ms,
            "answer": &*slow.outcome,
            "response_ms": ms(slow.response_us),
            "service_ms": ms(slow.service_us),
            "server_timing": slow.server_timing.as_deref(),
            "server_ms": slow.server_log_timing.map(|served| served.elapsed.as_secs_f64() * 1e3),
            "server_requests": slow.server_log_timing.map(|served| served.request_count),
            "elsewhere_ms": slow.time_outside_server().map(|time| time.as_secs_f64() * 1e3),
        })
    };
    results.slowest_samples.sorted().into_iter().take(MAX_TABLE_ROWS).map(tell).collect()
}

/// Returns as JSON how the time of all marked samples is split, if a log was read.
pub(super) fn server_log_join_to_json(results: &RunResults) -> Value {
    let Some(joined) = &results.server_log_join else { return Value::Null };
    let mut summary = json!({ "samples": joined.marked_samples, "found": joined.matched_samples });
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    if let Some(fields) = summary.as_object_mut() {
        for (name, timing) in join_time_parts(joined) {
            let part = json!({
                "mean_ms": ms(timing.mean()),
                "p50_ms": ms(timing.quantile(0.5)),
                "p95_ms": ms(timing.quantile(0.95)),
                "p99_ms": ms(timing.quantile(0.99)),
                "max_ms": ms(timing.max()),
            });
            fields.insert(name.to_owned(), part);
        }
    }
    summary
}

/// Writes the slowest samples as text for a terminal.
pub(super) fn write_slow_sample_text(out: &mut String, results: &RunResults) {
    let all = results.slowest_samples.sorted();
    if all.is_empty() && results.server_log_join.is_none() {
        return;
    }
    if let Some(joined) = &results.server_log_join {
        writeln!(
            out,
            "{} of {} marked samples are in the log",
            joined.matched_samples, joined.marked_samples
        )
        .ok();
        for (name, timing) in
            join_time_parts(joined).into_iter().filter(|_| joined.matched_samples > 0)
        {
            writeln!(
                out,
                "  {name:<10} p50 {:>9}  p95 {:>9}  p99 {:>9}  max {:>9}",
                format_response_time(timing.quantile(0.5)),
                format_response_time(timing.quantile(0.95)),
                format_response_time(timing.quantile(0.99)),
                format_response_time(timing.max())
            )
            .ok();
        }
    }
    for slow in all.into_iter().take(MAX_TEXT_LINES) {
        write!(out, "slow {:>9} {} {}", format_us(slow.response_us), slow.mark, slow.label).ok();
        match (slow.time_outside_server(), &slow.server_timing) {
            (Some(rest), _) => write!(
                out,
                ": server {}, elsewhere {}",
                format_server_timing(slow),
                format_response_time(rest)
            ),
            (None, Some(header)) => write!(out, ": {header}"),
            (None, None) => Ok(()),
        }
        .ok();
        out.push('\n');
    }
}

fn format_us(us: u64) -> String {
    format_response_time(Duration::from_micros(us))
}

/// Formats the server's time, and the number of requests if there were several.
fn format_server_timing(slow: &SlowSample) -> String {
    match slow.server_log_timing {
        None => "not in the log".to_owned(),
        Some(served) if served.request_count > 1 => {
            format!("{} ({} requests)", format_response_time(served.elapsed), served.request_count)
        }
        Some(served) => format_response_time(served.elapsed),
    }
}

/// Formats a time of day with milliseconds.
fn format_time_of_day(ms: u64) -> String {
    let at = figure_text::format_date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
    match at.strip_suffix(" UTC") {
        Some(at) => format!("{at}.{:03} UTC", ms % 1000),
        None => at,
    }
}
