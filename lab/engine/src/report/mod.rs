//! Writes the report of a run: one HTML file, JSON, JUnit XML, Markdown, plain text.

pub mod goal;
pub mod live_display;
pub mod result_validity;

mod cache_warmup;
mod chart;
mod figure_text;
mod html;
pub mod process_chart;
pub mod report_sheet;
pub mod run_comparison;
mod run_report;
pub(crate) mod slow_sample;
mod statistics;
mod text;
mod trace;

use std::io::BufRead;
use std::time::{Duration, SystemTime};

pub use html::REPORT_CSS;
pub use html::render_report_html;
pub use run_report::RunReport;
pub use statistics::render_jmeter_statistics;
pub use text::{report_to_json, report_to_junit, report_to_markdown, report_to_plain_text};

use crate::Result;
use crate::measurement::{RunResults, ServerLogJoin, jtl};

/// Maximum time by which other rows may begin before a file's first row, in milliseconds: years.
const MAX_START_SKEW_MS: u64 = (u32::MAX as u64 / 2) * 1000;

/// Returns the results computed from the rows of a file.
///
/// # Errors
/// As [`jtl::read_jtl`].
pub fn read_results(input: &mut dyn BufRead, name: &str) -> Result<RunResults> {
    read_results_with_log(input, name, None)
}

/// Returns the results computed from the rows of a file, joined by sample mark with the server's logs.
///
/// # Errors
/// As [`jtl::read_jtl`].
pub fn read_results_with_log(
    input: &mut dyn BufRead,
    name: &str,
    joined: Option<ServerLogJoin>,
) -> Result<RunResults> {
    let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
    results.server_log_join = joined;
    let (mut first, mut last, mut anchor) = (u64::MAX, 0, None);
    jtl::read_jtl(input, name, &mut |row| {
        // Rows of merged files come in any order, so the first row may not be the earliest.
        let anchor = *anchor.get_or_insert(row.start_ms.saturating_sub(MAX_START_SKEW_MS));
        first = first.min(row.start_ms);
        let end = row.start_ms.saturating_add(row.elapsed_ms);
        last = last.max(end);
        let second = end.saturating_sub(anchor) / 1000;
        results.add_row(row, u32::try_from(second).unwrap_or(u32::MAX));
    })?;
    if first == u64::MAX {
        first = 0;
    }
    let before = first.saturating_sub(anchor.unwrap_or(0)) / 1000;
    results.rebase_seconds(u32::try_from(before).unwrap_or(u32::MAX));
    results.started = SystemTime::UNIX_EPOCH + Duration::from_millis(first);
    results.elapsed = Duration::from_millis(last.saturating_sub(first));
    results.rebase_cache_warmups(first);
    results.use_transactions_as_labels();
    results.finish_rows();
    Ok(results)
}
