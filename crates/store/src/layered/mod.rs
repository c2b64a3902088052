//! Stores that consist of others: caches, a store over a base, and copies between stores.

pub(crate) mod cached_base_store;
pub(crate) mod chunk_disk_cache;
pub(crate) mod chunk_sync;
pub(crate) mod layered_store;
pub(crate) mod read_only_base;
