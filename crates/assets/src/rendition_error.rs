//! The error of the decoder process pool, which tells whether a retry can help.

use std::io;

/// The error of a request to a [`super::DecoderProcessPool`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenditionError {
    /// The file is at fault; a retry yields the same result.
    #[error("{0}")]
    File(String),
    /// The process was killed from outside, as systems that are short of memory do. A retry may help.
    #[error("the process that rendered it was killed; the system may be short of memory")]
    Killed,
    /// The time limit ended before the process used its share of processor time, so the machine may be overloaded.
    #[error(
        "rendering it took longer than {limit} s, in which it had {cpu_seconds} s of processor time; the \
         machine may be overloaded"
    )]
    CpuStarved {
        /// The time limit, in seconds.
        limit: u64,
        /// The processor time used, in seconds.
        cpu_seconds: u64,
    },
    /// The system failed; a retry can help.
    #[error("cannot {action}")]
    System {
        /// The attempted action, as a verb and its object.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
}

/// Returns the error of a failed action: a verb and its object.
pub(crate) fn system_error(action: &'static str) -> impl Fn(io::Error) -> RenditionError {
    move |source| RenditionError::System { action, source }
}
