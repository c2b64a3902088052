//! The sources of backups: folders, and content repositories.

pub(crate) mod base_store;
pub(crate) mod directory;
pub(crate) mod document_view;
pub(crate) mod estimate;
pub(crate) mod exclude;
pub(crate) mod file_metadata;
pub(crate) mod folder_table;
pub(crate) mod frame;
pub(crate) mod glob;
pub(crate) mod import;
pub(crate) mod live_store;
pub(crate) mod pattern;
pub(crate) mod repository;
pub(crate) mod repository_layout;
pub(crate) mod root_lease;
pub(crate) mod source_list;
pub(crate) mod stream;
pub(crate) mod user_group_names;
