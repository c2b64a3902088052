//! The parts of URL paths, and the cache files that belong to them.

pub mod cache_path;
pub mod decimal_digits;
pub mod sling_url;
