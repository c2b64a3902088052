//! The samples that took longest, where servers were told which sample a request belongs to: by their marks they are found
//! in a `request.log`, and what a client waited for divides into the server's work and the rest.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::html::escape;
use super::text;
use crate::goal::show;
use crate::record::{Joined, Results, Slow, Timing};

/// Rows of the table.
const MOST: usize = 50;
/// Lines on a terminal.
const MOST_LINES: usize = 10;

/// Writes the table.
pub(super) fn write(out: &mut String, results: &Results) {
    let all = results.slowest.all();
    if all.is_empty() {
        return;
    }
    out.push_str("<h2>Slowest samples</h2>");
    match &results.joined {
        None => out.push_str(
            "<p>Servers were told which sample a request belongs to (<code>X-Tympan-Lab</code>): Tympan's <code>request.log</code> has the mark behind the media type.</p>",
        ),
        Some(joined) => write_joined(out, joined),
    }
    let has_log = results.joined.is_some();
    out.push_str("<div class=\"wide\"><table class=\"stack\"><thead><tr><th>Label</th>");
    let server: &[&str] = if has_log { &["Server", "Elsewhere"] } else { &[] };
    let tells = all.iter().any(|slow| slow.server_timing.is_some());
    let timing: &[&str] = if tells { &["Server-Timing"] } else { &[] };
    let columns = ["Mark", "Sent at", "Answer", "Response", "Service"];
    let columns = || columns.iter().chain(server).chain(timing);
    columns().for_each(|name| write!(out, "<th>{name}</th>").unwrap_or_default());
    out.push_str("</tr></thead><tbody>");
    for slow in all.into_iter().take(MOST) {
        let mut values = vec![
            slow.mark.to_string(),
            clock(slow.started_ms),
            slow.answer.to_string(),
            micros(slow.response_us),
            micros(slow.service_us),
        ];
        if has_log {
            values.push(served(slow));
            values.push(slow.elsewhere().map_or_else(String::new, show));
        }
        if tells {
            values.push(slow.server_timing.as_deref().unwrap_or_default().to_owned());
        }
        let name = if slow.label.is_empty() { "(no name)" } else { &slow.label };
        write!(out, "<tr><td>{}</td>", escape(name)).ok();
        for (column, value) in columns().zip(&values) {
            let class = if *column == "Server-Timing" { " class=\"names\"" } else { "" };
            write!(out, "<td{class} data-n=\"{column}\">{}</td>", escape(value)).ok();
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn write_joined(out: &mut String, joined: &Joined) {
    write!(
        out,
        "<p>The server's log knows {} of {} marked samples. What clients waited for besides the server's time is network and queues.</p>",
        text::count(joined.found),
        text::count(joined.samples)
    )
    .ok();
    if joined.found == 0 {
        return;
    }
    out.push_str("<div class=\"wide\"><table class=\"stack\"><thead><tr><th>Of these</th><th>Mean</th><th>Median</th><th>95 %</th><th>99 %</th><th>Max</th></tr></thead><tbody>");
    for (name, timing) in parts(joined) {
        write!(
            out,
            "<tr><td>{name}</td><td data-n=\"Mean\">{}</td><td data-n=\"Median\">{}</td><td data-n=\"95 %\">{}</td><td data-n=\"99 %\">{}</td><td data-n=\"Max\">{}</td></tr>",
            show(timing.mean()),
            show(timing.quantile(0.5)),
            show(timing.quantile(0.95)),
            show(timing.quantile(0.99)),
            show(timing.max())
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
}

fn parts(joined: &Joined) -> [(&'static str, &Timing); 3] {
    [("client", &joined.client), ("server", &joined.server), ("elsewhere", &joined.elsewhere)]
}

/// Returns the slowest samples as JSON.
pub(super) fn slowest(results: &Results) -> Vec<Value> {
    let ms = |us: u64| us as f64 / 1e3;
    let tell = |slow: &Slow| {
        json!({
            "label": &*slow.label,
            "mark": &*slow.mark,
            "started_ms": slow.started_ms,
            "answer": &*slow.answer,
            "response_ms": ms(slow.response_us),
            "service_ms": ms(slow.service_us),
            "server_timing": slow.server_timing.as_deref(),
            "server_ms": slow.served.map(|served| served.elapsed.as_secs_f64() * 1e3),
            "server_requests": slow.served.map(|served| served.requests),
            "elsewhere_ms": slow.elsewhere().map(|time| time.as_secs_f64() * 1e3),
        })
    };
    results.slowest.all().into_iter().take(MOST).map(tell).collect()
}

/// Returns how the time of all marked samples divides, if a log was read.
pub(super) fn joined(results: &Results) -> Value {
    let Some(joined) = &results.joined else { return Value::Null };
    let mut told = json!({ "samples": joined.samples, "found": joined.found });
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    if let Some(fields) = told.as_object_mut() {
        for (name, timing) in parts(joined) {
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
    told
}

/// Tells the slowest samples on a terminal.
pub(super) fn tell(out: &mut String, results: &Results) {
    let all = results.slowest.all();
    if all.is_empty() && results.joined.is_none() {
        return;
    }
    if let Some(joined) = &results.joined {
        writeln!(out, "{} of {} marked samples stand in the log", joined.found, joined.samples)
            .ok();
        for (name, timing) in parts(joined).into_iter().filter(|_| joined.found > 0) {
            writeln!(
                out,
                "  {name:<10} p50 {:>9}  p95 {:>9}  p99 {:>9}  max {:>9}",
                show(timing.quantile(0.5)),
                show(timing.quantile(0.95)),
                show(timing.quantile(0.99)),
                show(timing.max())
            )
            .ok();
        }
    }
    for slow in all.into_iter().take(MOST_LINES) {
        write!(out, "slow {:>9} {} {}", micros(slow.response_us), slow.mark, slow.label).ok();
        match (slow.elsewhere(), &slow.server_timing) {
            (Some(rest), _) => write!(out, ": server {}, elsewhere {}", served(slow), show(rest)),
            (None, Some(header)) => write!(out, ": {header}"),
            (None, None) => Ok(()),
        }
        .ok();
        out.push('\n');
    }
}

fn micros(us: u64) -> String {
    show(Duration::from_micros(us))
}

/// Shows what the server took, and for how many requests if there were several.
fn served(slow: &Slow) -> String {
    match slow.served {
        None => "not in the log".to_owned(),
        Some(served) if served.requests > 1 => {
            format!("{} ({} requests)", show(served.elapsed), served.requests)
        }
        Some(served) => show(served.elapsed),
    }
}

/// Shows a moment to the millisecond.
fn clock(ms: u64) -> String {
    let at = text::date(SystemTime::UNIX_EPOCH + Duration::from_millis(ms));
    match at.strip_suffix(" UTC") {
        Some(at) => format!("{at}.{:03} UTC", ms % 1000),
        None => at,
    }
}
