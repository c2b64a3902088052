//! A template's text with what the pass added, and the way back to the text that its author wrote.

use std::ops::Range;
use std::sync::Arc;

/// A template as it is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// The text as it was written.
    pub original: Arc<str>,
    /// The text to compile.
    pub text: String,
    /// What was added: where in the new text, and how many bytes.
    added: Vec<(usize, usize)>,
}

/// Something to put into a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    /// Where in the original text.
    pub at: usize,
    pub text: String,
}

impl Rewritten {
    /// Puts the edits into a text.
    pub(super) fn new(original: Arc<str>, mut edits: Vec<Edit>) -> Self {
        edits.sort_by_key(|edit| edit.at);
        let mut text = String::with_capacity(original.len() + edits.len() * 24);
        let mut added = Vec::with_capacity(edits.len());
        let mut read = 0;
        for edit in edits {
            text.push_str(original.get(read..edit.at).unwrap_or_default());
            added.push((text.len(), edit.text.len()));
            text.push_str(&edit.text);
            read = edit.at;
        }
        text.push_str(original.get(read..).unwrap_or_default());
        Self { original, text, added }
    }

    /// Finds the range of the original text that a range of the new one comes from.
    pub(crate) fn origin(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.origin_of(range.start);
        start..self.origin_of(range.end).max(start)
    }

    fn origin_of(&self, at: usize) -> usize {
        let before = self.added.iter().take_while(|(start, _)| *start < at);
        let added: usize = before.map(|(start, length)| (*length).min(at - start)).sum();
        at - added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_way_back() {
        let edits = vec![Edit { at: 5, text: ")|f".into() }, Edit { at: 2, text: "(".into() }];
        let rewritten = Rewritten::new("{{abc}}".into(), edits);
        assert_eq!(rewritten.text, "{{(abc)|f}}");
        assert_eq!(rewritten.origin(&(3..6)), 2..5);
        assert_eq!(rewritten.origin(&(2..9)), 2..5);
        assert_eq!(rewritten.origin(&(9..11)), 5..7);
    }
}
