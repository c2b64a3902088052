//! The reason why a file has no rendition.

/// The reason why no rendition was generated: a sentence about the file for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AssetFileError(pub(crate) String);

impl AssetFileError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
