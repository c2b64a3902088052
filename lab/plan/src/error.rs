//! Errors of plans.

use crate::FileFinding;

/// The error of a plan or of a file that goes with it; it always lies in the caller's input.
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
    /// A plan, a goals file or a log has errors; nothing was run.
    #[error("{}", format_findings(.0))]
    InvalidFile(Vec<FileFinding>),
    /// The input cannot be used for this purpose.
    #[error("{0}")]
    UnusableInput(String),
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
