//! The lines that JMeter's summariser prints while a plan runs; dashboards of build servers parse them.
//!
//! ```text
//! summary +   2175 in 00:00:05 =  435.0/s Avg:    22 Min:     1 Max:   310 Err:     0 (0.00%) Active: 10 Started: 10 Finished: 0
//! summary =   1016 in 00:00:05 =  187.7/s Avg:    34 Min:     0 Max:   327 Err:     0 (0.00%)
//! ```
//! Transactions do not count, because their samples do.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Counts of a time span, in whole milliseconds as JMeter counts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SummaryTally {
    /// Number of samples.
    pub count: u64,
    /// Sum of elapsed times.
    pub sum_ms: u64,
    /// Shortest elapsed time.
    pub min_ms: Option<u64>,
    /// Longest elapsed time.
    pub max_ms: u64,
    /// Number of failed samples.
    pub errors: u64,
    /// Start of the first sample, in milliseconds since the epoch.
    pub first_start: Option<u64>,
    /// End of the last sample, in milliseconds since the epoch.
    pub last_end: u64,
}

impl SummaryTally {
    /// Adds a sample.
    pub fn add_sample(&mut self, start_ms: u64, elapsed_ms: u64, is_ok: bool) {
        self.count += 1;
        self.sum_ms += elapsed_ms;
        self.min_ms = Some(self.min_ms.map_or(elapsed_ms, |min| min.min(elapsed_ms)));
        self.max_ms = self.max_ms.max(elapsed_ms);
        self.errors += u64::from(!is_ok);
        self.first_start = Some(self.first_start.map_or(start_ms, |first| first.min(start_ms)));
        self.last_end = self.last_end.max(start_ms + elapsed_ms);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ms += other.sum_ms;
        self.min_ms = match (self.min_ms, other.min_ms) {
            (Some(left), Some(right)) => Some(left.min(right)),
            (left, right) => left.or(right),
        };
        self.max_ms = self.max_ms.max(other.max_ms);
        self.errors += other.errors;
        self.first_start = match (self.first_start, other.first_start) {
            (Some(left), Some(right)) => Some(left.min(right)),
            (left, right) => left.or(right),
        };
        self.last_end = self.last_end.max(other.last_end);
    }

    /// Returns the time span of the samples, from the first start to the last end.
    #[must_use]
    pub fn span_ms(&self) -> u64 {
        self.last_end.saturating_sub(self.first_start.unwrap_or(self.last_end))
    }
}

/// Thread counts, as printed in a `+` line.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct ThreadCounts {
    /// Number of running threads.
    pub active: u64,
    /// Number of threads started so far.
    pub started: u64,
    /// Number of threads finished so far.
    pub finished: u64,
}

/// Formats a line; `span_ms` is the time that the rate is computed over.
#[must_use]
pub fn format_summary_line(
    name: &str,
    sign: char,
    totals: &SummaryTally,
    span_ms: u64,
    threads: Option<ThreadCounts>,
) -> String {
    let seconds = (span_ms + 500) / 1000;
    let (hours, minutes, left) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let rate = if span_ms > 0 {
        format!("{:.1}", totals.count as f64 * 1000.0 / span_ms as f64)
    } else {
        "******".to_owned()
    };
    let mean = totals.sum_ms.checked_div(totals.count).unwrap_or(0);
    // Without samples, JMeter prints the initial value of its minimum.
    let min = totals.min_ms.unwrap_or(i64::MAX.unsigned_abs());
    let share =
        if totals.count == 0 { 0.0 } else { totals.errors as f64 / totals.count as f64 * 100.0 };
    let mut out = format!(
        "{name} {sign} {:>6} in {hours:02}:{minutes:02}:{left:02} = {rate:>6}/s Avg: {mean:>5} Min: {min:>5} Max: {:>5} Err: {:>5} ({share:.2}%)",
        totals.count, totals.max_ms, totals.errors
    );
    if let Some(threads) = threads {
        // Writing to a string cannot fail.
        write!(
            out,
            " Active: {} Started: {} Finished: {}",
            threads.active, threads.started, threads.finished
        )
        .ok();
    }
    out
}

/// A parsed summary line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SummaryLine {
    /// Number of samples.
    pub sample_count: u64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Mean time in milliseconds.
    pub mean_ms: u64,
    /// Minimum time in milliseconds.
    pub min_ms: u64,
    /// Maximum time in milliseconds.
    pub max_ms: u64,
    /// Number of failed samples.
    pub error_count: u64,
    /// Percentage of failed samples.
    pub error_percent: f64,
}

/// Parses a line; `None` if it is not a summary line.
#[must_use]
pub fn parse_summary_line(line: &str) -> Option<SummaryLine> {
    let (head, rest) = line.split_once("/s Avg:")?;
    let (_, head) = head.split_once(['=', '+'])?;
    let (count, rate) = head.split_once(" in ")?;
    let (_, rate) = rate.rsplit_once('=')?;
    let mut words = rest.split_whitespace();
    let mean_ms = words.next()?.parse().ok()?;
    let mut after = |name: &str| {
        words.find(|token| *token == name)?;
        words.next()
    };
    let min_ms = after("Min:")?.parse().ok()?;
    let max_ms = after("Max:")?.parse().ok()?;
    let errors = after("Err:")?.parse().ok()?;
    let percent = words.next()?.trim_matches(['(', ')', '%']).parse().ok()?;
    Some(SummaryLine {
        sample_count: count.trim().parse().ok()?,
        samples_per_second: rate.trim().parse().unwrap_or(0.0),
        mean_ms,
        min_ms,
        max_ms,
        error_count: errors,
        error_percent: percent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_laid_out_as_jmeter_does() {
        let totals = SummaryTally {
            count: 1016,
            sum_ms: 34 * 1016,
            min_ms: Some(0),
            max_ms: 327,
            ..SummaryTally::default()
        };
        assert_eq!(
            format_summary_line("summary", '=', &totals, 5413, None),
            "summary =   1016 in 00:00:05 =  187.7/s Avg:    34 Min:     0 Max:   327 Err:     0 (0.00%)"
        );
        let totals = SummaryTally {
            count: 2175,
            sum_ms: 22 * 2175,
            min_ms: Some(1),
            max_ms: 310,
            ..SummaryTally::default()
        };
        let threads = ThreadCounts { active: 10, started: 10, finished: 0 };
        assert_eq!(
            format_summary_line("summary", '+', &totals, 5000, Some(threads)),
            "summary +   2175 in 00:00:05 =  435.0/s Avg:    22 Min:     1 Max:   310 Err:     0 (0.00%) Active: 10 Started: 10 Finished: 0"
        );
        assert_eq!(
            format_summary_line("summary", '=', &SummaryTally::default(), 0, None),
            "summary =      0 in 00:00:00 = ******/s Avg:     0 Min: 9223372036854775807 Max:     0 Err:     0 (0.00%)"
        );
    }
}
