//! A file of a project that is not taken over, and the reason.

use serde::Serialize;

/// A file that is not taken over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOutFile {
    /// The file.
    pub file: String,
    /// The reason.
    pub reason: String,
}

impl LeftOutFile {
    pub(super) fn new(file: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { file: file.into(), reason: reason.into() }
    }
}
