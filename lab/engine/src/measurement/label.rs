//! Limits the number of distinct labels of a run: a plan may write variables into its labels, and neither memory nor
//! report may grow with their values.
//!
//! Invariant: every sample counts under exactly one label, so totals do not depend on the limit.
//!
//! Not here: rows of result files, which keep the labels of their samples.

/// Maximum number of distinct labels of samples in a run, and separately of transactions.
pub const MAX_LABELS: usize = 1_000;
/// The label that samples of all further labels count under.
pub const OTHER_LABELS: &str = "(other labels)";

/// Maximum size of a label in bytes: a plan may write a whole response into one.
const MAX_LABEL_BYTES: usize = 300;

/// Returns the label that a sample of `name` counts under, if `count` labels are already known.
pub(crate) fn counted_label(name: &str, is_known: impl Fn(&str) -> bool, count: usize) -> &str {
    let end = (0..=MAX_LABEL_BYTES.min(name.len())).rev().find(|&at| name.is_char_boundary(at));
    let name = name.get(..end.unwrap_or(0)).unwrap_or(name);
    // The label for all others does not count toward the limit.
    let told_apart = count - usize::from(is_known(OTHER_LABELS));
    if is_known(name) || told_apart < MAX_LABELS { name } else { OTHER_LABELS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_a_whole_answer_is_cut_between_characters() {
        let long = "\u{20ac}".repeat(1_000_000);
        let label = counted_label(&long, |_| false, 0);
        assert_eq!(label.len(), MAX_LABEL_BYTES);
        assert_eq!(counted_label(label, |known| known == label, MAX_LABELS), label);
        assert_eq!(counted_label("page", |_| false, 0), "page");
        assert_eq!(counted_label("page", |_| false, MAX_LABELS), OTHER_LABELS);
    }
}
