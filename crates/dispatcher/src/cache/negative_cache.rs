//! A cache of errors for a short time (`/x-negativeTTL`), so that many requests for a missing or failing page reach the
//! render once. In a farm with `/x-http` it also holds all other responses with a lifetime and without status 200.
//!
//! Errors are stored only in memory: programs that read the document root as files must not find an error's text as a
//! page.
//!
//! Invariants
//! * No error outlives a flush: the first flush, purge or flush by keys of its document root invalidates all errors
//!   requested before it, whatever it names. A page that is finally published must not stay missing.
//! * A `.stat` file touched by other programs counts as well, whether or not `/invalidate` allows the path.
//! * An error is used only while no file exists at its path, and never in a farm whose pages are not for everyone.
//! * Memory stays below [`MAX_NEGATIVE_CACHE_BYTES`]; the least used errors are evicted first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use quick_cache::Weighter;
use quick_cache::sync::Cache as QuickCache;

use crate::cache::Docroot;
use crate::cache::vary::VarySelection;
use crate::config::FarmConfig;

/// The maximum memory for the cached errors of one document root, in bytes.
const MAX_NEGATIVE_CACHE_BYTES: u64 = 8 * 1024 * 1024;
/// The maximum size of the body of a cached error in bytes.
pub(crate) const MAX_ERROR_BODY_BYTES: usize = 64 * 1024;
/// The memory of an entry besides its texts; also used to estimate the number of entries.
const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// A cached error.
#[derive(Debug)]
pub(crate) struct CachedError {
    pub(crate) status: StatusCode,
    /// The headers for every visitor.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The time at which the request was sent.
    pub(crate) fetch_time: SystemTime,
    /// Its age at that time.
    pub(crate) initial_age: Duration,
    pub(crate) expiry: SystemTime,
    /// The flush epoch at the time of the request.
    pub(crate) flush_epoch: u64,
    /// The requests that it is for; `None` for all. Another origin's error takes its place.
    pub(crate) selection: Option<VarySelection>,
}

#[derive(Debug, Clone)]
struct CachedErrorWeight;

impl Weighter<PathBuf, Arc<CachedError>> for CachedErrorWeight {
    fn weight(&self, file: &PathBuf, negative: &Arc<CachedError>) -> u64 {
        let headers = negative.headers.iter();
        let headers: usize =
            headers.map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        let texts = file.as_os_str().len() + negative.body.len() + headers;
        texts as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// The cached errors of one document root.
#[derive(Debug)]
pub(crate) struct NegativeCache {
    errors: QuickCache<PathBuf, Arc<CachedError>, CachedErrorWeight>,
    flush_epoch: AtomicU64,
}

impl Default for NegativeCache {
    fn default() -> Self {
        let likely =
            usize::try_from(MAX_NEGATIVE_CACHE_BYTES / ENTRY_OVERHEAD_BYTES / 4).unwrap_or(1024);
        Self {
            errors: QuickCache::with_weighter(likely, MAX_NEGATIVE_CACHE_BYTES, CachedErrorWeight),
            flush_epoch: AtomicU64::new(0),
        }
    }
}

impl NegativeCache {
    /// Returns the current flush epoch, for a request that is about to be sent.
    pub(crate) fn flush_epoch(&self) -> u64 {
        self.flush_epoch.load(Ordering::SeqCst)
    }

    /// Invalidates all errors requested until now.
    pub(crate) fn invalidate_all(&self) {
        self.flush_epoch.fetch_add(1, Ordering::SeqCst);
        self.errors.clear();
    }

    /// Removes the error at `file`, if there is one.
    pub(crate) fn remove(&self, file: &Path) {
        self.errors.remove(file);
    }

    /// Caches an error.
    pub(crate) fn insert(&self, file: &Path, negative: CachedError) {
        if negative.flush_epoch == self.flush_epoch() && negative.expiry > negative.fetch_time {
            self.errors.insert(file.to_owned(), Arc::new(negative));
        }
    }

    /// Returns the error at `file` if it is valid at `now`.
    pub(crate) fn find_valid(
        &self,
        file: &Path,
        farm: &FarmConfig,
        docroot: &Docroot,
        now: SystemTime,
    ) -> Option<Arc<CachedError>> {
        let cache = farm.cache.as_ref()?;
        let negative = self.errors.get(file)?;
        let is_touched = || {
            let flushed = docroot.last_flush_above(file, &cache.stat_files);
            flushed.is_some_and(|flushed| flushed > negative.fetch_time)
        };
        // A clock that was set back must not prolong an error's lifetime; request times may be slightly ahead of the
        // clock.
        let is_past = now + Duration::from_secs(1) >= negative.fetch_time;
        let is_valid = negative.flush_epoch == self.flush_epoch()
            && now <= negative.expiry
            && is_past
            && (cache.is_http_cache || cache.negative_ttls.contains_key(&negative.status.as_u16()))
            && !is_touched();
        if !is_valid {
            self.errors.remove(file);
        }
        is_valid.then_some(negative)
    }
}

/// Returns the time for which a response with this status is cached in a farm; `None` if it is not cached.
pub(crate) fn negative_ttl(farm: &FarmConfig, status: StatusCode) -> Option<Duration> {
    let cache = farm.cache.as_ref()?;
    if farm.auth_checker.is_some() || farm.session_management.is_some() {
        return None;
    }
    cache.negative_ttls.get(&status.as_u16()).copied()
}

#[cfg(test)]
mod tests {
    use super::{CachedError, MAX_NEGATIVE_CACHE_BYTES, NegativeCache};
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn negative(epoch: u64, bytes: usize) -> CachedError {
        let fetched = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        CachedError {
            status: StatusCode::NOT_FOUND,
            headers: HeaderMap::new(),
            body: Bytes::from(vec![b'x'; bytes]),
            fetch_time: fetched,
            initial_age: Duration::ZERO,
            expiry: fetched + Duration::from_secs(10),
            flush_epoch: epoch,
            selection: None,
        }
    }

    #[test]
    fn an_error_that_was_asked_for_before_a_flush_is_not_remembered() {
        let negatives = NegativeCache::default();
        let before = negatives.flush_epoch();
        negatives.insert(Path::new("a.html"), negative(before, 1));
        assert_eq!(negatives.errors.len(), 1);
        negatives.invalidate_all();
        assert_eq!(negatives.errors.len(), 0);
        negatives.insert(Path::new("a.html"), negative(before, 1));
        assert_eq!(negatives.errors.len(), 0);
        negatives.insert(Path::new("a.html"), negative(negatives.flush_epoch(), 1));
        assert_eq!(negatives.errors.len(), 1);
    }

    #[test]
    fn a_flood_of_missing_pages_takes_bounded_memory() {
        let negatives = NegativeCache::default();
        for number in 0..20_000 {
            negatives.insert(Path::new(&format!("{number}.html")), negative(0, 1000));
        }
        assert!(
            negatives.errors.weight() <= MAX_NEGATIVE_CACHE_BYTES,
            "{}",
            negatives.errors.weight()
        );
        assert!(negatives.errors.len() > 1000, "{}", negatives.errors.len());
    }
}
