//! Errors of the lab.

use std::path::PathBuf;

use crate::report::finding::FileFinding;

/// The error of a run, a plan or an analysis.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL of a target is invalid.
    #[error(
        "`{url}` is not a valid target URL: {reason}; expected `http://host[:port]/path` or `https://...`"
    )]
    InvalidUrl {
        /// The URL as given.
        url: String,
        /// The reason.
        reason: &'static str,
    },
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
    /// A plan, a goals file or a log has errors; nothing was run.
    #[error("{}", format_findings(.0))]
    InvalidFile(Vec<FileFinding>),
    /// The input lacks data that the analysis needs.
    #[error("{0}")]
    UnusableInput(String),
    /// The system could not provide an epoll instance, a thread or a socket.
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
        matches!(self, Self::InvalidUrl { .. } | Self::InvalidFile(_) | Self::UnusableInput(_))
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

fn format_findings(findings: &[FileFinding]) -> String {
    let count = findings.len();
    let mut text = String::new();
    for finding in findings {
        text.push_str(&finding.to_string());
        text.push('\n');
    }
    let noun = if count == 1 { "problem" } else { "problems" };
    text.push_str(&format!("{count} {noun}; nothing was run"));
    text
}
