//! The full-text index: derived from content, deletable and rebuildable at any time.
//!
//! In: the states of a [`tympan_content::Repository`], followed by the difference of two roots.
//! Out: [`Index`], which answers as [`tympan_content::query::FullText`].
//!
//! Invariants
//! * A commit of content never waits for the index.
//! * The root that the index answers for is written in the same atomic commit as what it answers with: after any crash
//!   it opens at a state that was, and goes on from there.
//! * Nobody waits for the disk: what a machine that stops may lose is compared with checksums, and built anew.
//! * What the index holds of a document follows from the document alone, so following and building anew agree.
//! * A document that cannot be read is noted and stops nothing.
//!
//! Not here: who may see a hit (the query engine asks content), HTTP, the syntax of queries.

mod analyzer;
mod budget;
mod document;
mod error;
mod excerpt;
mod expand;
mod extract;
mod facet;
mod files;
mod folder;
mod follow;
mod index;
mod language;
mod merge;
mod query;
mod rebuild;
mod schema;
mod sight;
mod similar;
mod state;
mod status;
mod suggest;
mod top;
mod write;

pub use error::{Error, Result};
pub use extract::{PdfReader, read_pdf};
pub use index::{Index, Options};
pub use status::{Counters, Failure, Progress, Status};
