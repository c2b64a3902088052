//! Flushes from publishers to dispatchers and other caches.

pub(crate) mod affected_url;
pub(crate) mod flush;
pub(crate) mod flush_number;
pub(crate) mod purge_template;
pub(crate) mod url_path;
