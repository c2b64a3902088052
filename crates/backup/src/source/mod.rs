//! What is backed up: folders, and content repositories.

pub(crate) mod below;
pub(crate) mod directory;
pub(crate) mod estimate;
pub(crate) mod exclude;
pub(crate) mod facts;
pub(crate) mod frames;
pub(crate) mod glob;
pub(crate) mod import;
pub(crate) mod lease;
pub(crate) mod live;
pub(crate) mod names;
pub(crate) mod pattern;
pub(crate) mod repository;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod view;
