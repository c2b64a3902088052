//! Errors that are remembered for a short time (`/x-negativeTTL`), so that a crowd at a page that is missing, or that
//! fails, reaches the render once.
//!
//! They live in memory alone: whoever reads the document root as files must not meet an error's text as a page.
//!
//! Invariants
//! * No error outlives a flush: the first flush, purge or flush by keys of its document root ends all that were asked for
//!   before it, whatever it names. A page that is published at last must not stay missing.
//! * A `.stat` file that others touched counts as well, whether or not `/invalidate` allows the path.
//! * An error counts only while no file stands at its place, and for no farm whose pages are not for everyone.
//! * Memory stays below [`MAX_BYTES`]; the least used errors go first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, header};
use quick_cache::Weighter;
use quick_cache::sync::Cache as Kept;

use crate::answer::{Exchange, Outcome};
use crate::cache::Docroot;
use crate::config::Farm;
use crate::dispatcher::{FarmState, Inner};
use crate::hit::age;
use crate::metrics::Counter;
use crate::page::{Body, empty, full};

/// What remembered errors of one document root may take.
const MAX_BYTES: u64 = 8 * 1024 * 1024;
/// A longer text is not remembered.
pub(crate) const MAX_BODY_BYTES: usize = 64 * 1024;
/// What an entry takes beside its texts, and how many are likely.
const ENTRY_BYTES: u64 = 512;

/// One error.
#[derive(Debug)]
pub(crate) struct Negative {
    pub(crate) status: StatusCode,
    /// What every visitor gets.
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// When the request that it answered was sent.
    pub(crate) fetched: SystemTime,
    pub(crate) until: SystemTime,
    /// Which flushes had come when it was asked for.
    pub(crate) epoch: u64,
}

#[derive(Debug, Clone)]
struct Weight;

impl Weighter<PathBuf, Arc<Negative>> for Weight {
    fn weight(&self, file: &PathBuf, negative: &Arc<Negative>) -> u64 {
        let headers = negative.headers.iter();
        let headers: usize =
            headers.map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        let texts = file.as_os_str().len() + negative.body.len() + headers;
        texts as u64 + ENTRY_BYTES
    }
}

/// The errors of one document root.
#[derive(Debug)]
pub(crate) struct Negatives {
    kept: Kept<PathBuf, Arc<Negative>, Weight>,
    epoch: AtomicU64,
}

impl Default for Negatives {
    fn default() -> Self {
        let likely = usize::try_from(MAX_BYTES / ENTRY_BYTES / 4).unwrap_or(1024);
        Self { kept: Kept::with_weighter(likely, MAX_BYTES, Weight), epoch: AtomicU64::new(0) }
    }
}

impl Negatives {
    /// Returns which flushes have come, for a request that is about to be sent.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Ends all errors that were asked for until now.
    pub(crate) fn note_flush(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        self.kept.clear();
    }

    /// Remembers an error.
    pub(crate) fn note(&self, file: &Path, negative: Negative) {
        if negative.epoch == self.epoch() && negative.until > negative.fetched {
            self.kept.insert(file.to_owned(), Arc::new(negative));
        }
    }

    /// Returns the error at `file`, if it counts at `now`.
    fn find(
        &self,
        (file, farm): (&Path, &Farm),
        docroot: &Docroot,
        now: SystemTime,
    ) -> Option<Arc<Negative>> {
        let cache = farm.cache.as_ref()?;
        let negative = self.kept.get(file)?;
        let is_touched = || {
            let flushed = docroot.flushed_at(file, &cache.stat_files);
            flushed.is_some_and(|flushed| flushed > negative.fetched)
        };
        // A clock that was set back gives no error a longer life; times of requests may run ahead of it by moments.
        let is_past = now + Duration::from_secs(1) >= negative.fetched;
        let is_valid = negative.epoch == self.epoch()
            && now <= negative.until
            && is_past
            && cache.negative.contains_key(&negative.status.as_u16())
            && !is_touched();
        if !is_valid {
            self.kept.remove(file);
        }
        is_valid.then_some(negative)
    }
}

/// Returns how long an answer with this status is remembered in a farm.
pub(crate) fn time_of(farm: &Farm, status: StatusCode) -> Option<Duration> {
    let cache = farm.cache.as_ref()?;
    if farm.auth_checker.is_some() || farm.sessions.is_some() {
        return None;
    }
    cache.negative.get(&status.as_u16()).copied()
}

impl FarmState {
    /// Ends all remembered errors of the farm's document root, as a flush came.
    pub(crate) fn forget_negatives(&self) {
        if let Some(root) = &self.docroot {
            root.negatives.note_flush();
        }
    }
}

impl Inner {
    /// Answers with the error that is remembered for a file, if there is one.
    pub(crate) fn answer_negative(
        &self,
        exchange: &mut Exchange<'_>,
        docroot: &Docroot,
        file: &Path,
    ) -> Option<Response<Body>> {
        let farm = &exchange.farm.farm;
        if farm.cache.as_ref().is_none_or(|cache| cache.negative.is_empty())
            || farm.auth_checker.is_some()
            || farm.sessions.is_some()
            // Another process obeys the flushes by now.
            || self.flights.is_closed()
        {
            return None;
        }
        let root = exchange.farm.docroot.as_ref()?;
        let now = self.runtime.clock.now();
        let negative = root.negatives.find((file, farm), docroot, now)?;
        self.metrics.count(Counter::NegativeHits);
        exchange.cache = "hit";
        exchange.outcome = Outcome::Negative;
        "negative answer cached".clone_into(&mut exchange.info);
        let is_head = exchange.view.method == Method::HEAD;
        let body = if is_head { empty() } else { full(negative.body.clone()) };
        let mut response = Response::new(body);
        *response.status_mut() = negative.status;
        *response.headers_mut() = negative.headers.clone();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, negative.body.len().into());
        headers.insert(header::AGE, age(negative.fetched, now).as_secs().into());
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BYTES, Negative, Negatives};
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn negative(epoch: u64, bytes: usize) -> Negative {
        let fetched = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        Negative {
            status: StatusCode::NOT_FOUND,
            headers: HeaderMap::new(),
            body: Bytes::from(vec![b'x'; bytes]),
            fetched,
            until: fetched + Duration::from_secs(10),
            epoch,
        }
    }

    #[test]
    fn an_error_that_was_asked_for_before_a_flush_is_not_remembered() {
        let negatives = Negatives::default();
        let before = negatives.epoch();
        negatives.note(Path::new("a.html"), negative(before, 1));
        assert_eq!(negatives.kept.len(), 1);
        negatives.note_flush();
        assert_eq!(negatives.kept.len(), 0);
        negatives.note(Path::new("a.html"), negative(before, 1));
        assert_eq!(negatives.kept.len(), 0);
        negatives.note(Path::new("a.html"), negative(negatives.epoch(), 1));
        assert_eq!(negatives.kept.len(), 1);
    }

    #[test]
    fn a_flood_of_missing_pages_takes_bounded_memory() {
        let negatives = Negatives::default();
        for number in 0..20_000 {
            negatives.note(Path::new(&format!("{number}.html")), negative(0, 1000));
        }
        assert!(negatives.kept.weight() <= MAX_BYTES, "{}", negatives.kept.weight());
        assert!(negatives.kept.len() > 1000, "{}", negatives.kept.len());
    }
}
