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
mod survey;
mod usage;
mod walk;

pub(crate) use delete::{Deleted, Fate, Named};
pub(crate) use docroot::{CacheFile, Docroot, Lookup, MARK, OWN_PREFIX, Stamp};
pub(crate) use headers::StoredHeaders;
pub(crate) use root::Root;
pub(crate) use store::{NewFile, Temporary};
pub(crate) use survey::{Rules, Space};
pub(crate) use usage::Amount;
