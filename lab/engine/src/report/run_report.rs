//! The contents of a report, and its remarks on the validity of the measurements.

use super::figure_text::format_count;
use super::goal::GoalResult;
use super::result_validity;
use crate::measurement::{MAX_LABELS, OTHER_LABELS, RunResults};

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
                "{} samples have labels beyond the first {}; they are counted together as `{OTHER_LABELS}`. \
                 Use one label for samples that differ only in a value",
                format_count(others),
                format_count(MAX_LABELS as u64)
            )
        };
        let breach = self.results.breached_goal.as_ref();
        let breach = breach.map(|goal| format!("a missed goal ended the run early: {goal}"));
        let sums = self.results.has_only_transactions.then(|| {
            "the file contains only transaction samples, which are counted instead; a nested transaction \
             counts twice"
                .to_owned()
        });
        let repeated = self.results.generator.repeated_requests;
        let repeats = (repeated > 0).then(|| {
            format!(
                "{} requests were sent a second time, because the server closed their keep-alive connection \
                 without a response; only GET, HEAD, OPTIONS and TRACE are repeated",
                format_count(repeated)
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
