//! Data from other systems for pages: JSON from configured HTTP back ends, cached so that a page does not fail with a
//! slow system.
//!
//! Input: the name of a back end and a path. Output: the value, possibly from an older cached copy, or `None`.
//!
//! Invariants
//! * Only configured back ends are requested, below their base URL. Input of authors or visitors cannot select another
//!   one.
//! * At most one request per address is in flight, and at most `connections` per back end. The others wait no longer
//!   than the request timeout and share the response.
//! * A POST is sent once. Values cached about the same subject before it are requested again.
//! * A back end that fails `CIRCUIT_BREAKER_FAILURES` times in a row is not requested for `retry_after`; then one
//!   request tries it. The same applies to a single address that timed out, even if others of the back end respond.
//! * At most `MAX_WAITING_RENDERS` renders, or three per connection, wait for a back end, as each one occupies a
//!   thread.
//! * The responses cached for a back end take at most `MAX_CACHED_BYTES` of memory, or one response if a single one is
//!   larger.
//!
//! On failure: the cached copy is used while it is younger than `max_stale`. After that there is no value, and the
//! template prints its own fallback.
//!
//! Not here: HTTP ([`BackendClient`], [`crate::HttpBackendClient`]). Output rendered from such data is never cached as a fragment, and its response
//! states how long it may be cached ([`crate::RequestReads::max_age`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::Value;
use minijinja::value::Serde;
use parking_lot::{Condvar, Mutex};

/// Number of consecutive failures after which a back end is not requested for a while.
const CIRCUIT_BREAKER_FAILURES: u32 = 5;

/// Maximum number of responses cached for one back end, and their total memory in bytes. The oldest response is evicted
/// first.
const MAX_CACHED_VALUES: usize = 2_000;
const MAX_CACHED_BYTES: usize = 64 << 20;

/// Maximum number of renders that wait for a back end with few connections.
const MAX_WAITING_RENDERS: u64 = 32;

/// The longest path that may be requested, in bytes.
const MAX_PATH_BYTES: usize = 2_000;

/// Configuration of a back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendConfig {
    /// The prefix of all its addresses, such as `http://10.0.0.5:8080/api`.
    pub base_url: String,
    /// Maximum number of requests in flight.
    pub max_connections: usize,
    /// Request timeout, including the wait for a connection.
    pub timeout: Duration,
    /// How long a response is used without a new request.
    pub max_age: Duration,
    /// How long a response is used while the back end does not respond.
    pub max_stale: Duration,
    /// How long a failed back end is not requested.
    pub retry_after: Duration,
    /// The largest response body, in bytes.
    pub max_response_bytes: usize,
}

impl BackendConfig {
    /// Creates a back end with the default limits.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            base_url: url.into(),
            max_connections: 16,
            timeout: Duration::from_secs(2),
            max_age: Duration::from_secs(10),
            max_stale: Duration::from_secs(3600),
            retry_after: Duration::from_secs(10),
            max_response_bytes: 1024 * 1024,
        }
    }
}

/// Sends requests to back ends.
pub trait BackendClient: fmt::Debug + Send + Sync {
    /// Fetches the body of a response with status 200.
    ///
    /// # Errors
    /// A message for the log, if there is no such response in time or it is too large.
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String>;

    /// Posts JSON once and returns the body of a response with status 200 or 201.
    ///
    /// # Errors
    /// As [`BackendClient::fetch`].
    fn post_json(
        &self,
        url: &str,
        body: &[u8],
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Vec<u8>, String>;
}

/// Counters of a back end since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackendCounts {
    /// Requests sent.
    pub fetches: u64,
    /// Requests without a usable response.
    pub failures: u64,
    /// Values served from a fresh cached copy.
    pub hits: u64,
    /// Values served from a stale cached copy.
    pub stale_hits: u64,
    /// Lookups that returned no value.
    pub unanswered: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Renders that are waiting now.
    pub waiting_renders: u64,
    /// Maximum number of requests in flight.
    pub max_connections: u64,
}

/// All configured back ends.
#[derive(Debug)]
pub struct BackendRegistry {
    client: Box<dyn BackendClient>,
    endpoints: BTreeMap<String, BackendEndpoint>,
}

#[derive(Debug)]
struct BackendEndpoint {
    config: BackendConfig,
    state: Mutex<BackendState>,
    state_changed: Condvar,
    counters: BackendCounters,
}

#[derive(Debug, Default)]
struct BackendCounters {
    fetches: AtomicU64,
    failures: AtomicU64,
    hits: AtomicU64,
    stale_hits: AtomicU64,
    unanswered: AtomicU64,
    waiting_renders: AtomicU64,
}

#[derive(Debug, Default)]
struct BackendState {
    cached_values: HashMap<String, CachedBackendValue>,
    /// Memory used by the cached copies, in bytes.
    cached_bytes: usize,
    /// The addresses with a request in flight.
    in_flight_paths: Vec<String>,
    consecutive_failures: u32,
    circuit_open_until: Option<Instant>,
    /// Addresses whose latest request timed out, and the time until which they are not requested.
    timed_out_paths: HashMap<String, Instant>,
    /// Number of responses received, and number of posts sent.
    response_count: u64,
    post_count: u64,
}

#[derive(Debug, Clone)]
struct CachedBackendValue {
    value: Value,
    /// Memory used by the value, in bytes.
    bytes: usize,
    fetched_at: Instant,
    /// The sequence number of its arrival.
    response_number: u64,
    /// True if a later post may have changed the value.
    is_invalidated: bool,
}

/// Represents a post in the list of requests in flight; no path equals it.
const POST_IN_FLIGHT_PATH: &str = "";

/// The action to take for an address.
enum BackendFetchDecision {
    Cached(Option<Value>),
    /// Send a request; holds the number of posts sent so far.
    Fetch(u64),
}

impl BackendRegistry {
    /// Creates a registry of the configured back ends by name, with the client that sends the requests.
    #[must_use]
    pub fn new(back_ends: BTreeMap<String, BackendConfig>, fetch: Box<dyn BackendClient>) -> Self {
        let new_endpoint = |(name, back_end)| {
            let (state, changed, counts) =
                (Mutex::default(), Condvar::new(), BackendCounters::default());
            (
                name,
                BackendEndpoint {
                    config: back_end,
                    state,
                    state_changed: changed,
                    counters: counts,
                },
            )
        };
        Self { client: fetch, endpoints: back_ends.into_iter().map(new_endpoint).collect() }
    }

    /// Returns the names of all back ends.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.keys().map(String::as_str)
    }

    /// Returns the counters of each back end.
    #[must_use]
    pub fn counts(&self) -> Vec<(&str, BackendCounts)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let endpoints = self.endpoints.iter();
        endpoints
            .map(|(name, endpoint)| {
                let counts = BackendCounts {
                    fetches: read(&endpoint.counters.fetches),
                    failures: read(&endpoint.counters.failures),
                    hits: read(&endpoint.counters.hits),
                    stale_hits: read(&endpoint.counters.stale_hits),
                    unanswered: read(&endpoint.counters.unanswered),
                    in_flight: endpoint.state.lock().in_flight_paths.len() as u64,
                    waiting_renders: read(&endpoint.counters.waiting_renders),
                    max_connections: endpoint.config.max_connections as u64,
                };
                (name.as_str(), counts)
            })
            .collect()
    }

    /// Returns how long responses of a back end, and output rendered from them, may be used.
    pub(crate) fn max_age(&self, name: &str) -> Option<Duration> {
        self.endpoints.get(name).map(|endpoint| endpoint.config.max_age)
    }

    /// Returns the value at a path of a back end.
    ///
    /// # Errors
    /// A message, if there is no such back end or the path is invalid.
    pub(crate) fn fetch_value(
        &self,
        name: &str,
        path: &str,
        now: Instant,
    ) -> Result<Option<Value>, String> {
        let endpoint = self.find_endpoint(name)?;
        validate_path(path)?;
        let until = now + endpoint.config.timeout;
        match endpoint.acquire_fetch_slot(path, now, until) {
            BackendFetchDecision::Cached(value) => Ok(value),
            BackendFetchDecision::Fetch(sent) => {
                Ok(self.fetch_and_cache(name, endpoint, path, now, until, sent))
            }
        }
    }

    /// Sends JSON to a path of a back end and returns the response; `None` if there is no response in time.
    ///
    /// # Errors
    /// As [`BackendRegistry::fetch_value`].
    pub(crate) fn post_json(
        &self,
        name: &str,
        path: &str,
        body: &[u8],
        now: Instant,
    ) -> Result<Option<Value>, String> {
        let endpoint = self.find_endpoint(name)?;
        validate_path(path)?;
        let until = now + endpoint.config.timeout;
        if !endpoint.acquire_post_slot(now, until) {
            return Ok(None);
        }
        let back_end = &endpoint.config;
        let url = format!("{}{path}", back_end.base_url.trim_end_matches('/'));
        increment(&endpoint.counters.fetches);
        let request_start = BackendRequestStart::start_now(until);
        let response =
            self.client.post_json(&url, body, request_start.timeout, back_end.max_response_bytes);
        let response = response.and_then(|bytes| match bytes.is_empty() {
            true => Ok(Value::from(true)),
            false => parse_json_response(&bytes).map(|(value, _)| value),
        });
        let mut state = endpoint.state.lock();
        // A failed post may have taken effect, too.
        state.invalidate_subject(path);
        endpoint.finish_request(
            &mut state,
            POST_IN_FLIGHT_PATH,
            (name, request_start),
            response.as_ref().err(),
        );
        Ok(response.ok())
    }

    fn find_endpoint(&self, name: &str) -> Result<&BackendEndpoint, String> {
        self.endpoints.get(name).ok_or_else(|| {
            format!(
                "there is no back end `{name}`; define it as `[back_ends.{name}]` in tympan.toml"
            )
        })
    }

    /// Requests the back end and caches the response.
    fn fetch_and_cache(
        &self,
        name: &str,
        endpoint: &BackendEndpoint,
        path: &str,
        now: Instant,
        until: Instant,
        sent: u64,
    ) -> Option<Value> {
        let back_end = &endpoint.config;
        let url = format!("{}{path}", back_end.base_url.trim_end_matches('/'));
        increment(&endpoint.counters.fetches);
        let request_start = BackendRequestStart::start_now(until);
        let response = self.client.fetch(&url, request_start.timeout, back_end.max_response_bytes);
        let response = response.and_then(|bytes| parse_json_response(&bytes));
        let mut state = endpoint.state.lock();
        endpoint.finish_request(&mut state, path, (name, request_start), response.as_ref().err());
        match response {
            Ok((value, bytes)) => {
                let is_outdated = state.post_count != sent;
                state.cache_value(path, &value, bytes, now, is_outdated);
                Some(value)
            }
            Err(_) => endpoint.stale_value(&state, path, now),
        }
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct BackendRequestStart {
    started_at: Instant,
    /// The part of the timeout that the wait for a connection left.
    timeout: Duration,
}

impl BackendRequestStart {
    fn start_now(until: Instant) -> Self {
        let at = Instant::now();
        Self { started_at: at, timeout: until.saturating_duration_since(at) }
    }
}

/// Parses a response; also returns the approximate memory that the value takes, in bytes.
fn parse_json_response(bytes: &[u8]) -> Result<(Value, usize), String> {
    let value: serde_json::Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("the response is not JSON: {error}"))?;
    Ok((Value::from(Serde(&value)), estimate_memory(&value)))
}

/// Estimates the memory of a value as templates hold it, in bytes: a short response of many small parts takes far more
/// than its text.
fn estimate_memory(value: &serde_json::Value) -> usize {
    const PART: usize = 48;
    PART + match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(parts) => parts.iter().map(estimate_memory).sum(),
        serde_json::Value::Object(members) => {
            members.iter().map(|(name, value)| PART + name.len() + estimate_memory(value)).sum()
        }
        _ => 0,
    }
}

impl BackendEndpoint {
    /// Waits for a connection slot, or returns the value if it arrives while waiting.
    fn acquire_fetch_slot(&self, path: &str, now: Instant, until: Instant) -> BackendFetchDecision {
        let mut state = self.state.lock();
        let before = state.response_count;
        let mut has_waited = false;
        loop {
            let copy = state.cached_values.get(path);
            let is_good = |copy: &&CachedBackendValue| {
                // A value that arrived during this wait was requested by another render at the same moment.
                !copy.is_invalidated
                    && (now < copy.fetched_at + self.config.max_age
                        || copy.response_number > before)
            };
            if let Some(copy) = copy.filter(is_good) {
                increment(&self.counters.hits);
                return BackendFetchDecision::Cached(Some(copy.value.clone()));
            }
            let is_asked =
                state.in_flight_paths.iter().any(|in_flight_path| in_flight_path == path);
            let is_closed = state.circuit_open_until.is_some_and(|until| now < until);
            // One request tests whether a back end responds again; the others do not wait for it.
            let is_tried = state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES
                && !state.in_flight_paths.is_empty();
            let silent_until = state.timed_out_paths.get(path);
            let is_silent = silent_until.is_some_and(|until| now < *until || is_asked);
            // Without caching, wait for the response that is in flight.
            let has_copy = !self.config.max_age.is_zero()
                && copy.is_some_and(|copy| {
                    !copy.is_invalidated && now < copy.fetched_at + self.config.max_stale
                });
            if is_closed || is_tried || is_silent || (is_asked && has_copy) {
                return BackendFetchDecision::Cached(self.stale_value(&state, path, now));
            }
            if !is_asked && state.in_flight_paths.len() < self.config.max_connections.max(1) {
                state.in_flight_paths.push(path.to_owned());
                return BackendFetchDecision::Fetch(state.post_count);
            }
            if !has_waited && self.is_wait_queue_full() {
                return BackendFetchDecision::Cached(self.stale_value(&state, path, now));
            }
            has_waited = true;
            self.counters.waiting_renders.fetch_add(1, Ordering::Relaxed);
            let waited = self.state_changed.wait_until(&mut state, until);
            self.counters.waiting_renders.fetch_sub(1, Ordering::Relaxed);
            if waited.timed_out() {
                return BackendFetchDecision::Cached(self.stale_value(&state, path, now));
            }
        }
    }

    /// Waits for a connection slot to post; returns true if it got one.
    fn acquire_post_slot(&self, now: Instant, until: Instant) -> bool {
        let mut state = self.state.lock();
        let mut has_waited = false;
        loop {
            let is_closed = state.circuit_open_until.is_some_and(|until| now < until);
            let is_tried = state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES
                && !state.in_flight_paths.is_empty();
            if is_closed || is_tried {
                increment(&self.counters.unanswered);
                return false;
            }
            if state.in_flight_paths.len() < self.config.max_connections.max(1) {
                state.in_flight_paths.push(POST_IN_FLIGHT_PATH.to_owned());
                return true;
            }
            if !has_waited && self.is_wait_queue_full() {
                increment(&self.counters.unanswered);
                return false;
            }
            has_waited = true;
            self.counters.waiting_renders.fetch_add(1, Ordering::Relaxed);
            let waited = self.state_changed.wait_until(&mut state, until);
            self.counters.waiting_renders.fetch_sub(1, Ordering::Relaxed);
            if waited.timed_out() {
                increment(&self.counters.unanswered);
                return false;
            }
        }
    }

    /// Returns true if the maximum number of renders is waiting.
    fn is_wait_queue_full(&self) -> bool {
        let connections = u64::try_from(self.config.max_connections).unwrap_or(u64::MAX);
        let most = connections.saturating_mul(3).max(MAX_WAITING_RENDERS);
        self.counters.waiting_renders.load(Ordering::Relaxed) >= most
    }

    /// Ends a request and records its outcome.
    fn finish_request(
        &self,
        state: &mut BackendState,
        path: &str,
        (name, request_start): (&str, BackendRequestStart),
        failure: Option<&String>,
    ) {
        let ended = Instant::now();
        if let Some(at) =
            state.in_flight_paths.iter().position(|in_flight_path| in_flight_path == path)
        {
            state.in_flight_paths.swap_remove(at);
        }
        self.state_changed.notify_all();
        let Some(reason) = failure else {
            if state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES {
                tracing::info!(back_end = name, "back end responds again");
            }
            state.consecutive_failures = 0;
            state.circuit_open_until = None;
            state.timed_out_paths.remove(path);
            return;
        };
        increment(&self.counters.failures);
        // A request that had little time left says nothing about the back end.
        if request_start.timeout * 2 >= self.config.timeout {
            state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        }
        if state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES {
            state.circuit_open_until = Some(ended + self.config.retry_after);
        }
        // An address that is refused at once blocks no thread, so it may be requested again.
        let took = ended.saturating_duration_since(request_start.started_at);
        if path != POST_IN_FLIGHT_PATH && took * 2 >= self.config.timeout {
            state.suspend_path(path, ended, ended + self.config.retry_after);
        }
        if state.consecutive_failures <= CIRCUIT_BREAKER_FAILURES {
            tracing::warn!(back_end = name, path, reason, "back end failed");
        }
    }

    /// Returns the stale copy to use in place of a response.
    fn stale_value(&self, state: &BackendState, path: &str, now: Instant) -> Option<Value> {
        let copy = state.cached_values.get(path);
        let copy = copy.filter(|copy| now < copy.fetched_at + self.config.max_stale);
        increment(if copy.is_some() {
            &self.counters.stale_hits
        } else {
            &self.counters.unanswered
        });
        copy.map(|copy| copy.value.clone())
    }
}

impl BackendState {
    fn cache_value(
        &mut self,
        path: &str,
        value: &Value,
        bytes: usize,
        now: Instant,
        is_outdated: bool,
    ) {
        self.response_count += 1;
        let bytes = bytes + path.len();
        let arrival = self.response_count;
        let copy = CachedBackendValue {
            value: value.clone(),
            bytes,
            fetched_at: now,
            response_number: arrival,
            is_invalidated: is_outdated,
        };
        self.cached_bytes += bytes;
        if let Some(old) = self.cached_values.insert(path.to_owned(), copy) {
            self.cached_bytes -= old.bytes;
        }
        while self.cached_values.len() > 1
            && (self.cached_values.len() > MAX_CACHED_VALUES
                || self.cached_bytes > MAX_CACHED_BYTES)
        {
            let oldest = self
                .cached_values
                .iter()
                .min_by_key(|(_, copy)| (copy.fetched_at, copy.response_number));
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else { return };
            let evicted = self.cached_values.remove(&oldest);
            self.cached_bytes -= evicted.map_or(0, |evicted_value| evicted_value.bytes);
        }
    }

    /// Records that an address is not requested for a while.
    fn suspend_path(&mut self, path: &str, now: Instant, until: Instant) {
        if self.timed_out_paths.len() >= MAX_CACHED_VALUES {
            self.timed_out_paths.retain(|_, until| now < *until);
        }
        if self.timed_out_paths.len() < MAX_CACHED_VALUES || self.timed_out_paths.contains_key(path)
        {
            self.timed_out_paths.insert(path.to_owned(), until);
        }
    }

    /// Records a post to a path: cached values of the same subject may have changed.
    fn invalidate_subject(&mut self, path: &str) {
        self.post_count += 1;
        let subject = path_subject(path);
        let about = self
            .cached_values
            .iter_mut()
            .filter(|(value_path, _)| path_subject(value_path) == subject);
        about.for_each(|(_, copy)| copy.is_invalidated = true);
    }
}

/// Returns the subject of an address: `/orders/17` for `/orders/17/lines?all`.
fn path_subject(path: &str) -> &str {
    let names = path.split('?').next().unwrap_or(path);
    let end = names.match_indices('/').nth(2).map_or(names.len(), |(at, _)| at);
    names.get(..end).unwrap_or(names)
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Rejects paths that would leave the back end's base URL.
fn validate_path(path: &str) -> Result<(), String> {
    let (names, _) = path.split_at(path.find('?').unwrap_or(path.len()));
    let names = percent_encoding::percent_decode_str(names).decode_utf8_lossy();
    let climbs = names.split(['/', '\\']).any(|name| name == "." || name == "..");
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\\\"<>".contains(&byte));
    if path.starts_with('/')
        && !path.starts_with("//")
        && is_plain
        && !climbs
        && path.len() <= MAX_PATH_BYTES
    {
        return Ok(());
    }
    Err(format!(
        "`{path}` is not a valid back-end path: it must begin with one `/` and contain no `..`, and inserted \
         values must be escaped with `urlencode`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_bounded_by_what_they_take() {
        let mut state = BackendState::default();
        let now = Instant::now();
        let mut keep = |path: &str, bytes: usize| {
            state.cache_value(path, &Value::from(1), bytes, now, false);
            let mut cached_paths: Vec<_> = state.cached_values.keys().cloned().collect();
            cached_paths.sort_unstable();
            assert_eq!(
                state.cached_bytes,
                state.cached_values.values().map(|copy| copy.bytes).sum::<usize>()
            );
            cached_paths.join(" ")
        };
        assert_eq!(keep("/a", MAX_CACHED_BYTES / 2), "/a");
        assert_eq!(keep("/b", MAX_CACHED_BYTES / 4), "/a /b");
        assert_eq!(keep("/c", MAX_CACHED_BYTES / 2), "/b /c");
        assert_eq!(keep("/b", 1), "/b /c");
        assert_eq!(keep("/d", 2 * MAX_CACHED_BYTES), "/d", "one is kept whatever it takes");
        assert_eq!(keep("/e", 1), "/e");
        // Two bytes of text for each part.
        let (_, bytes) =
            parse_json_response(format!("[{}1]", "1,".repeat(10_000)).as_bytes()).unwrap();
        assert!(bytes > 400_000, "{bytes}");
    }

    #[test]
    fn paths_stay_below_the_base() {
        for path in ["/", "/a/b?c=d%20e&f", "/%C3%A4", "/a.b/..c"] {
            assert_eq!(validate_path(path), Ok(()), "{path}");
        }
        for path in [
            "",
            "a",
            "//evil",
            "/a/../b",
            "/%2e%2e/b",
            "/a b",
            "/a#b",
            "/\\evil",
            "/a\r\nHost:x",
            "http://x/",
        ] {
            assert!(validate_path(path).is_err(), "{path}");
        }
    }
}
