//! Errors of the lab's tools.

use std::path::PathBuf;

/// The error of a test, an analysis or a comparison.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plan, or a file in the manner of plans, cannot be used.
    #[error(transparent)]
    Plan(#[from] tympan_lab_plan::Error),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] tympan_lab_engine::Error),
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
    /// The input lacks data that the analysis needs.
    #[error("{0}")]
    UnusableInput(String),
    /// The system could not provide a thread or a socket.
    #[error("cannot start the load engine")]
    Engine(#[source] std::io::Error),
    /// A target did not return a complete response.
    #[error("the request to `{url}` failed: {reason}")]
    NoResponse {
        /// The requested URL.
        url: String,
        /// The reason.
        reason: String,
    },
    /// A measured program failed.
    #[error("`{command}` {outcome}{}", stderr_suffix(.stderr_tail))]
    ProgramFailed {
        /// Its command line.
        command: String,
        /// Its exit status.
        outcome: String,
        /// The end of its standard error output.
        stderr_tail: String,
    },
    /// An agent or the controller cannot be reached or has disconnected.
    #[error("{0}")]
    FleetConnection(String),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

impl Error {
    /// Returns true if the error lies in the caller's input, not in the system or the target.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Plan(_) | Self::UnusableInput(_) => true,
            Self::Run(error) => error.is_usage(),
            _ => false,
        }
    }

    pub(crate) fn read_failed(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::FileAccess { verb: "read", path: path.to_owned(), source }
    }

    pub(crate) fn write_failed(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::FileAccess { verb: "write", path: path.to_owned(), source }
    }
}

fn stderr_suffix(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; stderr: {text}") }
}
