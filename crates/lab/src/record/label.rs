//! How many labels a run tells apart: a plan may write variables into its labels, and neither memory nor report may grow
//! with what they hold.
//!
//! Invariant: every sample counts under exactly one label, so totals do not depend on the limit.
//!
//! Not here: rows of result files, which keep the labels of their samples.

/// Most labels that a run tells apart, of samples, and as many of transactions.
pub const MOST_LABELS: usize = 1_000;
/// What samples of all further labels count as.
pub const OTHER_LABELS: &str = "(other labels)";

/// Returns the label that a sample of `name` counts under, where `count` labels are known already.
pub(crate) fn told(name: &str, is_known: impl Fn(&str) -> bool, count: usize) -> &str {
    // That of all others takes nobody's place.
    let told_apart = count - usize::from(is_known(OTHER_LABELS));
    if is_known(name) || told_apart < MOST_LABELS { name } else { OTHER_LABELS }
}
