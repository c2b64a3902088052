//! The full-text index: derived from content, deletable and rebuildable at any time.
//!
//! In: the states of a [`tympan_content::Repository`], followed by the difference of two roots.
//! Out: [`SearchIndex`], which answers as [`tympan_content::query::FullTextIndex`].
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
mod document_writer;
mod error;
mod excerpt;
mod facet;
mod index;
mod index_document;
mod index_folder;
mod index_follower;
mod index_status;
mod index_view;
mod language;
mod memory_budget;
mod merge_policy;
mod query_planner;
mod reader_vocabulary;
mod rebuild;
mod schema;
mod similar_query;
mod suggestion;
mod text_extraction;
mod top_hit;
mod unsynced_directory;
mod word_expansion;

pub use error::{Error, Result};
pub use index::{SearchIndex, SearchIndexOptions};
pub use index_status::{
    IndexingFailure, SearchIndexCounters, SearchIndexProgress, SearchIndexStatus,
};
pub use text_extraction::{PdfReader, read_pdf};
