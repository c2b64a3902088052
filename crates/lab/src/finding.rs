//! What a reader of plans and goals says about a place in a file.

use std::fmt;

/// One fault, as `file:line:column: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileFinding {
    /// The file as the caller named it.
    pub file: String,
    /// Counted from 1; 0 if the fault is the whole file's.
    pub line: u32,
    /// Counted from 1.
    pub column: u32,
    /// What is wrong, and what to do.
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
