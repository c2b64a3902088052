//! Builds and follows the index: the documents, the builds in a folder, the follower, and rebuilds.

pub(crate) mod document_writer;
pub(crate) mod index_document;
pub(crate) mod index_folder;
pub(crate) mod index_follower;
pub(crate) mod index_state;
pub(crate) mod index_status;
pub(crate) mod memory_budget;
pub(crate) mod merge_policy;
pub(crate) mod rebuild;
pub(crate) mod rebuild_control;
pub(crate) mod schema;
pub(crate) mod unsynced_directory;
