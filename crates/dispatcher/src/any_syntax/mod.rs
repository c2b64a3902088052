//! The brace language of `dispatcher.any`: text to a tree of items, with every fault at its place.
//!
//! In: a file, an environment for `${NAME}`, and where absolute include paths live. Out: [`ParsedConfigFile`], the items and
//! all diagnostics; a file with errors still gives what could be read.
//!
//! Invariants
//! * No input makes the parser panic, recurse without bound or read without bound.
//! * Textual order is kept: labels carry no meaning, and the last matching rule wins.
//!
//! Not here: what the keys mean (`config`).

mod diagnostic;
mod include;
mod lexer;
mod parser;
mod syntax_tree;

pub(crate) use diagnostic::DiagnosticCollector;
pub use diagnostic::{ConfigDiagnostic, DiagnosticSeverity, SourcePosition, nearest_key};
pub(crate) use include::expand_pattern;
pub use include::{ConfigEnvironment, ConfigSources};
pub use parser::{ParsedConfigFile, parse_file, parse_text};
pub use syntax_tree::{ConfigBlock, ConfigItem, ConfigKey, ConfigText, ConfigValue, QuoteStyle};
