//! What a run amounts to, for people and for machines: one HTML file, JSON, JUnit XML, Markdown, plain text.

mod chart;
mod html;
mod opening;
pub mod overlay;
pub mod sheet;
pub(crate) mod slow;
mod statistics;
mod text;
mod trace;

use std::io::BufRead;
use std::time::{Duration, SystemTime};

pub use html::html;
pub(crate) use html::{STYLE, escape};
pub use statistics::statistics;
pub use text::{json, junit, markdown, plain};

use crate::goal::Judged;
use crate::record::{Joined, MOST_LABELS, OTHER_LABELS, Results, jtl};
use crate::{Result, honesty};

/// What a report tells.
#[derive(Debug)]
pub struct Report<'a> {
    /// Its heading, commonly the plan's or the file's name.
    pub title: &'a str,
    /// The numbers.
    pub results: &'a Results,
    /// Goals, judged.
    pub goals: &'a [Judged],
    /// Whether the lab itself made the load, so that its own limits can be told.
    pub is_own: bool,
}

impl Report<'_> {
    /// Returns why the numbers cannot be trusted; nothing if they can.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        if self.is_own { honesty::doubts(self.results) } else { Vec::new() }
    }

    /// Returns what a reader has to know of how the numbers were put together.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let others = self.results.others();
        let note = || {
            format!(
                "{} samples have labels beyond the first {}; they count together as `{OTHER_LABELS}`. Give samples \
                 that differ in a value only one label",
                text::count(others),
                text::count(MOST_LABELS as u64)
            )
        };
        let breach = self.results.breach.as_ref();
        let breach = breach.map(|goal| format!("a missed goal ended the run early: {goal}"));
        let sums = self.results.is_of_sums.then(|| {
            "the file holds no samples but those of transactions, which are counted in their place; a \
             transaction within another one counts twice"
                .to_owned()
        });
        let repeated = self.results.generator.repeated;
        let repeats = (repeated > 0).then(|| {
            format!(
                "{} requests were sent a second time, because the server closed their kept connection without an \
                 answer; only GET, HEAD, OPTIONS and TRACE are repeated",
                text::count(repeated)
            )
        });
        breach.into_iter().chain((others > 0).then(note)).chain(sums).chain(repeats).collect()
    }

    /// Returns what of the load is missing.
    #[must_use]
    pub fn losses(&self) -> Vec<String> {
        honesty::losses(self.results)
    }
}

/// How much earlier than a file's first row others may begin, in milliseconds: years.
const BEFORE_FIRST: u64 = (u32::MAX as u64 / 2) * 1000;

/// Returns the results that the rows of a file amount to.
///
/// # Errors
/// As [`jtl::read`].
pub fn read_rows(input: &mut dyn BufRead, name: &str) -> Result<Results> {
    read_rows_with(input, name, None)
}

/// Returns the same, with what logs of the server say of the samples by their marks.
///
/// # Errors
/// As [`jtl::read`].
pub fn read_rows_with(
    input: &mut dyn BufRead,
    name: &str,
    joined: Option<Joined>,
) -> Result<Results> {
    let mut results = Results::new(SystemTime::UNIX_EPOCH);
    results.joined = joined;
    let (mut first, mut last, mut anchor) = (u64::MAX, 0, None);
    jtl::read(input, name, &mut |row| {
        // Rows of files that were put together come in any order: the first may not be the earliest.
        let anchor = *anchor.get_or_insert(row.time_stamp.saturating_sub(BEFORE_FIRST));
        first = first.min(row.time_stamp);
        let end = row.time_stamp.saturating_add(row.elapsed);
        last = last.max(end);
        let second = end.saturating_sub(anchor) / 1000;
        results.add_row(row, u32::try_from(second).unwrap_or(u32::MAX));
    })?;
    if first == u64::MAX {
        first = 0;
    }
    let before = first.saturating_sub(anchor.unwrap_or(0)) / 1000;
    results.count_seconds_from(u32::try_from(before).unwrap_or(u32::MAX));
    results.started = SystemTime::UNIX_EPOCH + Duration::from_millis(first);
    results.elapsed = Duration::from_millis(last.saturating_sub(first));
    results.count_openings_from(first);
    results.count_sums();
    results.sum_up();
    Ok(results)
}
