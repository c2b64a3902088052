//! ApacheBench: its options in `tympan lab ab`, and its text, printed and read.
//!
//! Differences, each because ab's own behavior misleads: with `-k` requests are HTTP/1.1, so that chunked answers keep
//! their connection; an answer of another length is counted as failed only with `strict`, else told as varying; a
//! socket error does not end the run.

mod markup;
mod print;
mod read;
mod send;
mod speech;

pub use read::{AbText, Comparison, parse, parse_all};
pub use send::{Ab, AbRun, Listener, Markup, Word};
