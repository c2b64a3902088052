//! How many labels a run tells apart: a plan may write variables into its labels, and neither memory nor report may grow
//! with what they hold.
//!
//! Invariant: every sample counts under exactly one label, so totals do not depend on the limit.
//!
//! Not here: rows of result files, which keep the labels of their samples.

/// Most labels that a run tells apart, of samples, and as many of transactions.
pub const MAX_LABELS: usize = 1_000;
/// What samples of all further labels count as.
pub const OTHER_LABELS: &str = "(other labels)";

/// Most bytes of a label: a plan may write a whole answer into one.
const MAX_LABEL_BYTES: usize = 300;

/// Returns the label that a sample of `name` counts under, where `count` labels are known already.
pub(crate) fn counted_label(name: &str, is_known: impl Fn(&str) -> bool, count: usize) -> &str {
    let end = (0..=MAX_LABEL_BYTES.min(name.len())).rev().find(|&at| name.is_char_boundary(at));
    let name = name.get(..end.unwrap_or(0)).unwrap_or(name);
    // That of all others takes nobody's place.
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
