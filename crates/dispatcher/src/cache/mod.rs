//! The two caches of responses: files in document roots, and the response memory in front of them.
//!
//! `docs/formats/cache-docroot.md` describes the files.
//!
//! Not here: answering a request from a file or with a fetch (`cached_page_service`).

pub(crate) mod cache_directives;
pub(crate) mod cacheability;
pub(crate) mod export;
pub(crate) mod export_target;
pub(crate) mod file_response;
pub(crate) mod freshness;
pub(crate) mod negative_cache;
pub(crate) mod not_cacheable_reason;
pub(crate) mod outcome;
pub(crate) mod page_variant;
pub(crate) mod quota_enforcement;
pub(crate) mod response_memory;
pub(crate) mod storage_terms;
pub(crate) mod suffix_folder;
pub(crate) mod surrogate_key;
pub(crate) mod tar_archive;
pub(crate) mod ttl;
pub(crate) mod variant_limiter;
pub(crate) mod vary;

mod confined_open;
mod docroot;
mod docroot_state;
mod file_flush;
mod file_time;
mod stat_file;
mod storage;
mod stored_headers;
mod survey_and_eviction;
mod usage;
mod walk;

pub(crate) use docroot::{
    CacheFileLookup, CacheFileStamp, Docroot, OWN_FILE_PREFIX, OpenCacheFile, STALE_MARK_MODE,
};
pub(crate) use docroot_state::DocrootState;
pub(crate) use file_flush::{FileEffect, FileFlushResult, FileFlushTarget};
pub(crate) use storage::{NewCacheFile, TemporaryCacheFile};
pub(crate) use stored_headers::StoredHeaders;
pub(crate) use survey_and_eviction::{DocrootWalkRules, FileSystemSpace};
pub(crate) use usage::DiskAmount;
