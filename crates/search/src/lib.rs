//! The full-text index: derived from content, deletable and rebuildable at any time.
//!
//! In: the states of a [`tympan_content::Repository`], followed by the difference of two roots. Out: [`SearchIndex`],
//! which implements [`tympan_content_query::FullTextIndex`].
//!
//! Invariants
//! * A commit of content never waits for the index.
//! * The root for which the index is valid is written in the same atomic commit as the index data: after any crash, the
//!   index opens in a state that existed, and continues from there.
//! * Nothing waits for the disk: after a machine failure, data that may be lost is verified with checksums and rebuilt.
//! * The index data of a document depends only on the document, so following and rebuilding give the same result.
//! * A document that cannot be read is recorded as failed, and indexing continues.
//!
//! Not here: the permission to see a hit (the query engine checks it in content), HTTP, the syntax of queries.

mod analyzer;
mod config;
mod error;
mod index;
mod indexing;
mod language;
mod searching;
mod text_extraction;

pub use config::SearchSection;
pub use error::{Error, Result};
pub use index::SearchIndex;
pub use indexing::index_state::SearchIndexOptions;
pub use indexing::index_status::{
    IndexingFailure, SearchIndexCounters, SearchIndexProgress, SearchIndexStatus,
};
pub use text_extraction::{PdfReader, read_pdf};
