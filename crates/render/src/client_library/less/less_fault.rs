//! Why a style sheet cannot be compiled.

/// The reason why a style sheet cannot be compiled, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LessFault {
    /// The path in the library: of the file, or of one that it imports.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    pub reason: String,
}
