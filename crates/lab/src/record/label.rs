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

/// Most bytes of a label: a plan may write a whole answer into one.
const MOST_BYTES: usize = 300;

/// Returns the label that a sample of `name` counts under, where `count` labels are known already.
pub(crate) fn told(name: &str, is_known: impl Fn(&str) -> bool, count: usize) -> &str {
    let end = (0..=MOST_BYTES.min(name.len())).rev().find(|&at| name.is_char_boundary(at));
    let name = name.get(..end.unwrap_or(0)).unwrap_or(name);
    // That of all others takes nobody's place.
    let told_apart = count - usize::from(is_known(OTHER_LABELS));
    if is_known(name) || told_apart < MOST_LABELS { name } else { OTHER_LABELS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_is_a_whole_answer_is_cut_between_characters() {
        let long = "\u{20ac}".repeat(1_000_000);
        let label = told(&long, |_| false, 0);
        assert_eq!(label.len(), MOST_BYTES);
        assert_eq!(told(label, |known| known == label, MOST_LABELS), label);
        assert_eq!(told("page", |_| false, 0), "page");
        assert_eq!(told("page", |_| false, MOST_LABELS), OTHER_LABELS);
    }
}
