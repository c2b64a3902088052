//! Errors of the load engine.

use std::path::PathBuf;

/// The error of a run, or of a file that a run writes or a report reads.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plan cannot be run.
    #[error(transparent)]
    Plan(#[from] tympan_lab_plan::Error),
    /// The name of a host cannot be resolved.
    #[error("cannot find an address of `{host}`")]
    Resolve {
        /// The host name.
        host: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {verb} `{}`", path.display())]
    FileAccess {
        /// `read` or `write`.
        verb: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The input lacks data that the run or the report needs.
    #[error("{0}")]
    UnusableInput(String),
    /// The system could not provide an epoll instance, a thread or a socket.
    #[error("cannot start the load engine")]
    Engine(#[source] std::io::Error),
    /// The caller's observer of the load refused the start, or is gone.
    #[error("{0}")]
    NotStarted(String),
    /// A target did not return a complete response.
    #[error("the request to `{url}` failed: {reason}")]
    NoResponse {
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

impl Error {
    /// Returns true if the error lies in the caller's input, not in the system or the target.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Plan(_) | Self::UnusableInput(_))
    }

    pub(crate) fn read_failed(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::FileAccess { verb: "read", path: path.to_owned(), source }
    }

    pub(crate) fn write_failed(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::FileAccess { verb: "write", path: path.to_owned(), source }
    }
}
