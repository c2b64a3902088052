//! Findings of the parsers of plans and goals, with their position in the file.

use std::fmt;

/// One finding, displayed as `file:line:column: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileFinding {
    /// The file as the caller named it.
    pub file: String,
    /// Line number, counted from 1; 0 if the finding concerns the whole file.
    pub line: u32,
    /// Column number, counted from 1.
    pub column: u32,
    /// The problem and how to fix it.
    pub message: String,
}

impl fmt::Display for FileFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}
