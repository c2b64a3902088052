//! A template's text with the edits of the pass, and the mapping back to the original text.

use std::ops::Range;
use std::sync::Arc;

/// A template in its compiled form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RewrittenTemplate {
    /// The original text.
    pub original_text: Arc<str>,
    /// The text to compile.
    pub compiled_text: String,
    /// The insertions: offset in the new text, and number of bytes.
    insertions: Vec<(usize, usize)>,
}

/// An insertion into a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateEdit {
    /// Offset in the original text.
    pub offset: usize,
    pub text: String,
}

impl RewrittenTemplate {
    /// Applies the edits to a text.
    pub(super) fn new(original: Arc<str>, mut edits: Vec<TemplateEdit>) -> Self {
        edits.sort_by_key(|edit| edit.offset);
        let mut text = String::with_capacity(original.len() + edits.len() * 24);
        let mut added = Vec::with_capacity(edits.len());
        let mut read = 0;
        for edit in edits {
            text.push_str(original.get(read..edit.offset).unwrap_or_default());
            added.push((text.len(), edit.text.len()));
            text.push_str(&edit.text);
            read = edit.offset;
        }
        text.push_str(original.get(read..).unwrap_or_default());
        Self { original_text: original, compiled_text: text, insertions: added }
    }

    /// Maps a range of the new text to the range of the original text.
    pub(crate) fn original_range(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.original_offset(range.start);
        start..self.original_offset(range.end).max(start)
    }

    fn original_offset(&self, at: usize) -> usize {
        let before = self.insertions.iter().take_while(|(start, _)| *start < at);
        let added: usize = before.map(|(start, length)| (*length).min(at - start)).sum();
        at - added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_way_back() {
        let edits = vec![
            TemplateEdit { offset: 5, text: ")|f".into() },
            TemplateEdit { offset: 2, text: "(".into() },
        ];
        let rewritten = RewrittenTemplate::new("{{abc}}".into(), edits);
        assert_eq!(rewritten.compiled_text, "{{(abc)|f}}");
        assert_eq!(rewritten.original_range(&(3..6)), 2..5);
        assert_eq!(rewritten.original_range(&(2..9)), 2..5);
        assert_eq!(rewritten.original_range(&(9..11)), 5..7);
    }
}
