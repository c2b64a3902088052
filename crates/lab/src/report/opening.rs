//! When answers began to come from a cache: after a flush, how long visitors waited for a page to be drawn.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::html::escape;
use super::text::count;
use crate::goal::show;
use crate::record::{FirstCached, Known, Results};

/// Lines on a terminal, and rows of the table.
const MOST: (usize, usize) = (10, 100);

/// Returns the labels of which something is known, the last to be cached first.
fn labels(results: &Results) -> Vec<(&str, FirstCached)> {
    let of = results.labels.iter();
    let mut all: Vec<(&str, FirstCached)> =
        of.filter_map(|(name, series)| Some((&**name, series.total.first_cached()?))).collect();
    // What never came from a cache stands first.
    all.sort_by_key(|(_, found)| (found.cached.is_some(), std::cmp::Reverse(found.cached)));
    all
}

fn by(known: Known) -> &'static str {
    match known {
        Known::Header => "a header",
        Known::Time => "its time",
    }
}

fn name_of(label: &str) -> &str {
    if label.is_empty() { "(no name)" } else { label }
}

/// Writes the table.
pub(super) fn write(out: &mut String, results: &Results) {
    let all = labels(results);
    if all.is_empty() {
        return;
    }
    out.push_str("<h2>First cached answers</h2><p>Times count from the beginning of the run. Where headers say nothing of a cache, an answer counts as cached that took a tenth of the first one's time.</p><div class=\"wide\"><table class=\"stack\"><thead><tr><th>Label</th><th>First answer at</th><th>It took</th><th>First cached at</th><th>Known by</th></tr></thead><tbody>");
    let more = all.len().saturating_sub(MOST.1);
    for (label, found) in all.into_iter().take(MOST.1) {
        write!(
            out,
            "<tr><td>{}</td><td data-n=\"First answer at\">{}</td><td data-n=\"It took\">{}</td><td data-n=\"First cached at\">{}</td><td data-n=\"Known by\">{}</td></tr>",
            escape(name_of(label)),
            show(found.first),
            show(found.took),
            found.cached.map_or_else(|| "never".to_owned(), show),
            by(found.known)
        )
        .ok();
    }
    out.push_str("</tbody></table></div>");
    if more > 0 {
        write!(out, "<p>{} more labels are left out.</p>", count(more as u64)).ok();
    }
}

/// Returns what is known of one label as JSON.
pub(super) fn to_json(found: Option<FirstCached>) -> Value {
    let Some(found) = found else { return Value::Null };
    let seconds = |time: std::time::Duration| time.as_secs_f64();
    json!({
        "first_answer_s": seconds(found.first),
        "first_took_s": seconds(found.took),
        "first_cached_s": found.cached.map(seconds),
        "known_by": match found.known {
            Known::Header => "header",
            Known::Time => "time",
        },
    })
}

/// Tells on a terminal which labels were not cached from their first answer on.
pub(super) fn tell(out: &mut String, results: &Results) {
    let all = labels(results);
    let late = all.into_iter().filter(|(_, found)| found.cached != Some(found.first));
    for (label, found) in late.take(MOST.0) {
        let cached = match found.cached {
            Some(at) => format!("first cached answer at {} by {}", show(at), by(found.known)),
            None => "no answer of a cache".to_owned(),
        };
        writeln!(
            out,
            "cached     {}: {cached}; the first answer at {} took {}",
            name_of(label),
            show(found.first),
            show(found.took)
        )
        .ok();
    }
}
