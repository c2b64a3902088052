//! The brace language of `dispatcher.any`: text to a tree of items, with every fault at its place.
//!
//! In: a file, an environment for `${NAME}`, and where absolute include paths live. Out: [`Parsed`], the items and
//! all diagnostics; a file with errors still gives what could be read.
//!
//! Invariants
//! * No input makes the parser panic, recurse without bound or read without bound.
//! * Textual order is kept: labels carry no meaning, and the last matching rule wins.
//!
//! Not here: what the keys mean (`config`).

mod diagnostic;
mod include;
mod lex;
mod parse;
mod tree;

pub(crate) use diagnostic::Findings;
pub use diagnostic::{Diagnostic, Position, Severity, nearest};
pub(crate) use include::expand;
pub use include::{Environment, Sources};
pub use parse::{Parsed, parse_file, parse_text};
pub use tree::{Block, Item, Key, Quote, Text, Value};
