//! The cache of pages: a document root whose files are the responses.
//!
//! `docs/formats/cache-docroot.md` describes the files.

mod beneath;
mod delete;
mod docroot;
mod headers;
mod root;
mod stat;
mod store;

pub(crate) use delete::{Deleted, Fate};
pub(crate) use docroot::{CacheFile, Docroot, Lookup, MARK, TEMPORARY_FOLDER};
pub(crate) use root::Root;
pub(crate) use store::{NewFile, Temporary};
