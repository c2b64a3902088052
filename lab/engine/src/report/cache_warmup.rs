//! Shows when responses began to come from a cache: after a flush, how long visitors waited for a page to be rendered.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tympan_notation::escape_html;

use super::figure_text::format_count;
use crate::measurement::{CacheEvidence, FirstCachedResponse, RunResults};
use crate::report::goal::format_response_time;

/// Maximum number of lines on a terminal, and of rows in the table.
const MAX_SHOWN_LABELS: (usize, usize) = (10, 100);

/// Returns the labels with cache data, the last to be cached first.
fn labels_by_first_cached(results: &RunResults) -> Vec<(&str, FirstCachedResponse)> {
    let of = results.labels.iter();
    let mut all: Vec<(&str, FirstCachedResponse)> =
        of.filter_map(|(name, series)| Some((&**name, series.total.first_cached()?))).collect();
    // Labels that never came from a cache are first.
    all.sort_by_key(|(_, response)| {
        (response.first_cached.is_some(), std::cmp::Reverse(response.first_cached))
    });
    all
}

fn evidence_name(evidence: CacheEvidence) -> &'static str {
    match evidence {
        CacheEvidence::Header => "a header",
        CacheEvidence::ResponseTime => "its response time",
    }
}

fn label_name(label: &str) -> &str {
    if label.is_empty() { "(no name)" } else { label }
}

/// Writes the table of cache warm-up.
pub(super) fn write_warmup_table(out: &mut String, results: &RunResults) {
    let all = labels_by_first_cached(results);
    if all.is_empty() {
        return;
    }
    out.push_str("<h2>First cached responses</h2><p>Times count from the beginning of the run. Where headers say nothing of a cache, a response counts as cached that took a tenth of the first one's time.</p><div class=\"wide\"><table class=\"stack\"><thead><tr><th>Label</th><th>First response at</th><th>It took</th><th>First cached at</th><th>Known by</th></tr></thead><tbody>");
    let more = all.len().saturating_sub(MAX_SHOWN_LABELS.1);
    for (label, response) in all.into_iter().take(MAX_SHOWN_LABELS.1) {
        write!(
            out,
            "<tr><td>{}</td><td data-n=\"First response at\">{}</td><td data-n=\"It took\">{}</td><td data-n=\"First cached at\">{}</td><td data-n=\"Known by\">{}</td></tr>",
            escape_html(label_name(label)),
            format_response_time(response.first_response),
            format_response_time(response.first_response_time),
            response.first_cached.map_or_else(|| "never".to_owned(), format_response_time),
            evidence_name(response.evidence)
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
    if more > 0 {
        write!(out, "<p>{} more labels are left out.</p>", format_count(more as u64)).ok();
    }
}

/// Returns the cache data of one label as JSON.
pub(super) fn first_cached_to_json(response: Option<FirstCachedResponse>) -> Value {
    let Some(response) = response else { return Value::Null };
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    json!({
        "first_answer_s": seconds(response.first_response),
        "first_took_s": seconds(response.first_response_time),
        "first_cached_s": response.first_cached.map(seconds),
        "known_by": match response.evidence {
            CacheEvidence::Header => "header",
            CacheEvidence::ResponseTime => "time",
        },
    })
}

/// Writes the labels that were not cached from their first response on, for a terminal.
pub(super) fn write_warmup_text(out: &mut String, results: &RunResults) {
    let all = labels_by_first_cached(results);
    let late = all
        .into_iter()
        .filter(|(_, response)| response.first_cached != Some(response.first_response));
    for (label, response) in late.take(MAX_SHOWN_LABELS.0) {
        let cached = match response.first_cached {
            Some(at) => format!(
                "first cached response at {} by {}",
                format_response_time(at),
                evidence_name(response.evidence)
            ),
            None => "no cached response".to_owned(),
        };
        writeln!(
            out,
            "cached     {}: {cached}; the first response at {} took {}",
            label_name(label),
            format_response_time(response.first_response),
            format_response_time(response.first_response_time)
        )
        .ok();
    }
}
