//! Templates that cannot be escaped, with the reasons.

use std::fmt;
use std::ops::Range;

/// Reason and position of a template's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TemplateRefusal {
    /// The path of the template.
    pub template: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1.
    pub column: usize,
    /// The affected byte range of the template's text.
    pub range: Range<usize>,
    /// The problem and its solution.
    pub message: String,
}

impl fmt::Display for TemplateRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.template, self.line, self.column, self.message)
    }
}

impl TemplateRefusal {
    /// Creates the refusal of a range in a template.
    pub(crate) fn new(template: &str, text: &str, range: Range<usize>, message: String) -> Self {
        let before = text.get(..range.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Self { template: template.to_owned(), line, column, range, message }
    }
}
