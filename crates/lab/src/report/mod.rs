//! Writes the report of a run: one HTML file, JSON, JUnit XML, Markdown, plain text.

pub mod calculator;
pub(crate) mod finding;
pub mod goal;
pub mod live_display;
pub mod result_validity;

mod cache_warmup;
mod chart;
mod html;
pub mod report_sheet;
pub mod run_comparison;
pub(crate) mod slow_sample;
mod statistics;
mod text;
mod trace;

use std::io::BufRead;
use std::time::{Duration, SystemTime};

pub use html::render_report_html;
pub(crate) use html::{REPORT_CSS, escape_html};
pub use statistics::render_jmeter_statistics;
pub use text::{report_to_json, report_to_junit, report_to_markdown, report_to_plain_text};

use crate::Result;
use crate::measurement::{MAX_LABELS, OTHER_LABELS, RunResults, ServerLogJoin, jtl};
use crate::report::goal::GoalResult;

/// The contents of a report.
#[derive(Debug)]
pub struct RunReport<'a> {
    /// The heading, usually the plan's or the file's name.
    pub title: &'a str,
    /// The measurements.
    pub results: &'a RunResults,
    /// Goals with their results.
    pub judged_goals: &'a [GoalResult],
    /// True if the lab itself generated the load, so that its own limits are known.
    pub is_own_load: bool,
}

impl RunReport<'_> {
    /// Returns the reasons not to trust the measurements; empty if there are none.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        if self.is_own_load { result_validity::validity_doubts(self.results) } else { Vec::new() }
    }

    /// Returns notes on how the measurements were combined.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let others = self.results.other_label_samples();
        let note = || {
            format!(
                "{} samples have labels beyond the first {}; they count together as `{OTHER_LABELS}`. Give samples \
                 that differ in a value only one label",
                text::format_count(others),
                text::format_count(MAX_LABELS as u64)
            )
        };
        let breach = self.results.breached_goal.as_ref();
        let breach = breach.map(|goal| format!("a missed goal ended the run early: {goal}"));
        let sums = self.results.has_only_transactions.then(|| {
            "the file holds no samples but those of transactions, which are counted in their place; a \
             transaction within another one counts twice"
                .to_owned()
        });
        let repeated = self.results.generator.repeated_requests;
        let repeats = (repeated > 0).then(|| {
            format!(
                "{} requests were sent a second time, because the server closed their kept connection without an \
                 answer; only GET, HEAD, OPTIONS and TRACE are repeated",
                text::format_count(repeated)
            )
        });
        breach.into_iter().chain((others > 0).then(note)).chain(sums).chain(repeats).collect()
    }

    /// Returns descriptions of the missing load.
    #[must_use]
    pub fn losses(&self) -> Vec<String> {
        result_validity::agent_losses(self.results)
    }
}

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
