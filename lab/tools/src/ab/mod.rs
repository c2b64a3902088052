//! ApacheBench: its options in `tympan lab ab`, and its text output, both written and parsed.
//!
//! Differences, each because ab's own behavior misleads: with `-k` requests are HTTP/1.1, so that chunked responses
//! keep their connection; a response of a different length counts as failed only with `strict`, and is otherwise
//! reported as varying; a socket error does not end the run.

mod benchmark;
mod html_table;
mod report_parser;
mod text_report;
mod tls_option;

pub use benchmark::{AbMessage, AbMessageListener, AbOptions, AbRun, AbTableAttributes};
pub use report_parser::{AbComparison, AbReport, parse_ab_report, parse_ab_reports};
