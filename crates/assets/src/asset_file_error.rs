//! A fault of a file, as its decoder describes it.

/// The fault of a file that prevents its renditions or metadata: a clause about the file, for people. The decoder process
/// reports it, and the server returns it as [`super::RenditionError::File`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AssetFileError(pub(crate) String);

impl AssetFileError {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
