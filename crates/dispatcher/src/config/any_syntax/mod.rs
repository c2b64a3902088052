//! The parser of the brace language of `dispatcher.any`: turns text into a tree of items and reports each error with
//! its position.
//!
//! Input: a file, an environment for `${NAME}`, and the folder for absolute include paths. Output:
//! [`ParsedConfigFile`], which holds the items and all diagnostics; a file with errors still yields the items that
//! could be read.
//!
//! Invariants
//! * No input makes the parser panic, recurse without bound or read without bound.
//! * Textual order is preserved: labels carry no meaning, and the last matching rule wins.
//!
//! Not here: the meaning of the keys (`config`).

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
