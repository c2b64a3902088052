//! What is backed up: folders, and content repositories.

pub(crate) mod directory;
pub(crate) mod exclude;
pub(crate) mod names;
pub(crate) mod repository;
