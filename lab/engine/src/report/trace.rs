//! Complete exchanges: request, response, source and rendered page, as in JMeter's View Results Tree.
//!
//! Invariant: a tested page cannot execute anything in the report. It is rendered in a frame without any permission,
//! under a policy that loads nothing, and its text enters the report only escaped.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use tympan_notation::escape_html;

use super::figure_text;
use crate::measurement::{ExchangeTrace, RunResults};
use crate::report::goal::format_response_time;

/// The policy of a rendered page: it may show itself and its own styles. It comes first, so that the page cannot loosen
/// it.
const PAGE_SECURITY_POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">";

pub(super) fn write_traces(out: &mut String, results: &RunResults) {
    if results.traces.values().all(Vec::is_empty) {
        return;
    }
    out.push_str("<h2>Exchanges</h2>");
    for (label, traces) in &results.traces {
        write!(out, "<h3>{}</h3>", escape_html(if label.is_empty() { "(no name)" } else { label }))
            .ok();
        traces.iter().for_each(|trace| write_trace(out, trace));
    }
}

fn write_trace(out: &mut String, trace: &ExchangeTrace) {
    let (class, status) = if trace.is_ok { ("good", "ok") } else { ("bad", "failed") };
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(trace.started_ms);
    write!(
        out,
        "<details class=\"trace\"><summary><span class=\"{class}\">{status}</span> {} {} \u{b7} {} \u{b7} {} \u{b7} {}</summary>",
        escape_html(&trace.code),
        escape_html(&trace.message),
        escape_html(&trace.url),
        format_response_time(Duration::from_micros(trace.elapsed_us)),
        figure_text::format_date(at)
    )
    .ok();
    if !trace.failure.is_empty() {
        write!(out, "<p class=\"bad\">{}</p>", escape_html(&trace.failure)).ok();
    }
    let mut part = |name: &str, text: &str| {
        if !text.is_empty() {
            write!(out, "<h4>{name}</h4><pre>{}</pre>", escape_html(text)).ok();
        }
    };
    part("Request", &trace.request);
    part("Response", &trace.head);
    part(&format!("Body ({})", figure_text::format_bytes(trace.body_bytes)), &trace.body);
    if trace.media_type.contains("html") && !trace.body.is_empty() {
        write!(
            out,
            "<h4>Rendered, without scripts and without what it would load</h4><iframe sandbox=\"\" loading=\"lazy\" title=\"rendered response\" srcdoc=\"{}\"></iframe>",
            escape_html(&format!("{PAGE_SECURITY_POLICY}{}", trace.body))
        )
        .ok();
    }
    out.push_str("</details>");
}
