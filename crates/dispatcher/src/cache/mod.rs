//! The cache of pages: a document root whose files are the responses.
//!
//! `docs/formats/cache-docroot.md` describes the files.

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
pub(crate) mod suffix_folder;
pub(crate) mod surrogate_key;
pub(crate) mod tar_archive;
pub(crate) mod ttl;
pub(crate) mod variant_limiter;

mod confined_open;
mod deletion;
mod docroot;
mod docroot_state;
mod file_time;
mod stat_file;
mod storage;
mod stored_headers;
mod survey;
mod usage;
mod walk;

pub(crate) use deletion::{FileFlushAction, FileFlushResult, FileFlushTarget};
pub(crate) use docroot::{
    CacheFileLookup, CacheFileStamp, Docroot, OWN_FILE_PREFIX, OpenCacheFile, STALE_MARK_MODE,
};
pub(crate) use docroot_state::DocrootState;
pub(crate) use storage::{NewCacheFile, TemporaryCacheFile};
pub(crate) use stored_headers::StoredHeaders;
pub(crate) use survey::{DocrootWalkRules, FileSystemSpace};
pub(crate) use usage::DiskAmount;
