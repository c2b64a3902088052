//! Errors of the exporter; a model that cannot be exported is left out, not returned as an error.

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A limit that an export exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The resource has too many components, those of its experience fragments included.
    #[error("the resource has more than {0} components")]
    TooManyComponents(usize),
    /// The exported values are too large.
    #[error("the exported values are larger than {0} bytes")]
    OutputTooLarge(usize),
}
