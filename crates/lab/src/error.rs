use std::path::PathBuf;

use crate::finding::FileFinding;

/// Why a run, a plan or an analysis did not come about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of a target does not read.
    #[error(
        "`{url}` is no URL that a load can go to: {reason}; expected `http://host[:port]/path` or `https://...`"
    )]
    InvalidUrl {
        /// The address as it was given.
        url: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// The name of a host has no address.
    #[error("cannot find an address of `{host}`")]
    Resolve {
        /// The host.
        host: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {verb} `{}`", path.display())]
    FileAccess {
        /// `read` or `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A plan, a goals file or a log has faults; nothing was run.
    #[error("{}", format_findings(.0))]
    InvalidFile(Vec<FileFinding>),
    /// The input does not hold what the analysis needs.
    #[error("{0}")]
    UnusableInput(String),
    /// The system gave no epoll, thread or socket.
    #[error("cannot start the load engine")]
    Engine(#[source] std::io::Error),
    /// A target gave no whole answer.
    #[error("`{url}` gave no answer: {reason}")]
    NoResponse {
        /// What was asked for.
        url: String,
        /// What happened instead.
        reason: String,
    },
    /// A program that was to be measured failed.
    #[error("`{command}` {outcome}{}", stderr_suffix(.stderr_tail))]
    ProgramFailed {
        /// The words that started it.
        command: String,
        /// How it ended.
        outcome: String,
        /// The end of what it wrote to standard error.
        stderr_tail: String,
    },
    /// Agents, or their controller, cannot be reached or went away.
    #[error("{0}")]
    FleetConnection(String),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

impl Error {
    /// Reports whether the fault lies in what the caller gave, not in the system or the target.
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
    if text.is_empty() { String::new() } else { format!("; it said: {text}") }
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
