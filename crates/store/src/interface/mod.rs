//! The interface of every chunk store: reading chunks, commits, the history of refs, retention, and garbage collection.
//!
//! Not here: the stores themselves (`local`, `postgres`), and those that consist of others (`layered`).

pub(crate) mod base_store;
pub(crate) mod chunk_batch;
pub(crate) mod chunk_reader;
pub(crate) mod chunk_store;
pub(crate) mod garbage_collection;
pub(crate) mod history;
pub(crate) mod root_retention;
