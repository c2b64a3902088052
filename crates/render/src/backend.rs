//! Data of other systems on a page: JSON from configured HTTP back ends, so that a page over a slow system stays up.
//!
//! In: the name of a back end and a path. Out: the value, perhaps an older copy; nothing if there is none.
//!
//! Invariants
//! * Only configured back ends are asked, below their base URL; what an author or visitor typed cannot choose another.
//! * One request per address runs at a time, and at most `connections` to a back end; the others wait no longer than a
//!   request may take, and share its answer.
//! * What is sent to a back end is sent once, and what was asked about the same subject before is asked again.
//! * A back end that fails `CIRCUIT_BREAKER_FAILURES` times in a row is left alone for `retry_after`; then one request tries it. So is a
//!   single address that used up its time, though others of the back end answer.
//! * No more than `MAX_WAITING_RENDERS` renders, or three for each connection, wait for a back end, as each one keeps a thread.
//! * The answers kept for a back end take no more than `MAX_CACHED_BYTES` of memory, or one answer where a single one takes more.
//!
//! On failure: the copy is used while it is younger than `max_stale`; then there is no value, and the template prints what
//! it has in its place.
//!
//! Not here: HTTP ([`BackendClient`]). What is drawn from such data is no fragment, and its answer says for how long it may be kept
//! ([`crate::RequestReads::max_age`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::Value;
use minijinja::value::Serde;
use parking_lot::{Condvar, Mutex};

/// Failures in a row after which a back end is left alone.
const CIRCUIT_BREAKER_FAILURES: u32 = 5;

/// Answers kept for one back end, and the memory that they take together, in bytes; the oldest goes first.
const MAX_CACHED_VALUES: usize = 2_000;
const MAX_CACHED_BYTES: usize = 64 << 20;

/// Renders that may wait for a back end, if it has few connections.
const MAX_WAITING_RENDERS: u64 = 32;

/// The longest path that is asked for.
const MAX_PATH_BYTES: usize = 2_000;

/// A back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendConfig {
    /// The begin of all its addresses, such as `http://10.0.0.5:8080/api`.
    pub base_url: String,
    /// How many requests may run at a time.
    pub max_connections: usize,
    /// How long a request may take, with the wait for its turn.
    pub timeout: Duration,
    /// How long an answer is used without asking again.
    pub max_age: Duration,
    /// How long an answer stands in for a back end that does not answer.
    pub max_stale: Duration,
    /// How long a back end that failed is left alone.
    pub retry_after: Duration,
    /// The largest answer, in bytes.
    pub max_response_bytes: usize,
}

impl BackendConfig {
    /// Makes a back end with the usual bounds.
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
    /// Gets the body of an answer with status 200.
    ///
    /// # Errors
    /// In words, for the log, if there is no such answer in time or it is too large.
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String>;

    /// Posts JSON, once, and gets the body of an answer with status 200 or 201.
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

/// What happened at a back end since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackendCounts {
    /// Requests that were sent.
    pub fetches: u64,
    /// Requests without a usable answer.
    pub failures: u64,
    /// Answers from the copy while it was fresh.
    pub hits: u64,
    /// Answers from an older copy.
    pub stale_hits: u64,
    /// Questions without an answer.
    pub unanswered: u64,
    /// Requests that run now.
    pub in_flight: u64,
    /// Renders that wait now.
    pub waiting_renders: u64,
    /// How many may run.
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
    /// The memory that the copies take, in bytes.
    cached_bytes: usize,
    /// The addresses that are asked now.
    in_flight_paths: Vec<String>,
    consecutive_failures: u32,
    circuit_open_until: Option<Instant>,
    /// Addresses that used up their time when they were last asked, and until when they are left alone.
    timed_out_paths: HashMap<String, Instant>,
    /// How many answers arrived, and how often something was sent.
    response_count: u64,
    post_count: u64,
}

#[derive(Debug, Clone)]
struct CachedBackendValue {
    value: Value,
    /// The memory that it takes, in bytes.
    bytes: usize,
    fetched_at: Instant,
    /// The number of its arrival.
    response_number: u64,
    /// Whether something was sent since that may have changed it.
    is_invalidated: bool,
}

/// Stands among the requests that run for one that sends; no path is like it.
const POST_IN_FLIGHT_PATH: &str = "";

/// What is to be done for an address.
enum BackendFetchDecision {
    Cached(Option<Value>),
    /// Ask, when so often something was sent.
    Fetch(u64),
}

impl BackendRegistry {
    /// Takes the configured back ends by name, and what sends requests to them.
    #[must_use]
    pub fn new(back_ends: BTreeMap<String, BackendConfig>, fetch: Box<dyn BackendClient>) -> Self {
        let place = |(name, back_end)| {
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
        Self { client: fetch, endpoints: back_ends.into_iter().map(place).collect() }
    }

    /// Returns the names of all back ends.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.keys().map(String::as_str)
    }

    /// Returns what happened at each back end.
    #[must_use]
    pub fn counts(&self) -> Vec<(&str, BackendCounts)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let places = self.endpoints.iter();
        places
            .map(|(name, place)| {
                let counts = BackendCounts {
                    fetches: read(&place.counters.fetches),
                    failures: read(&place.counters.failures),
                    hits: read(&place.counters.hits),
                    stale_hits: read(&place.counters.stale_hits),
                    unanswered: read(&place.counters.unanswered),
                    in_flight: place.state.lock().in_flight_paths.len() as u64,
                    waiting_renders: read(&place.counters.waiting_renders),
                    max_connections: place.config.max_connections as u64,
                };
                (name.as_str(), counts)
            })
            .collect()
    }

    /// Returns how long answers of a back end are used, and so what is drawn from them.
    pub(crate) fn max_age(&self, name: &str) -> Option<Duration> {
        self.endpoints.get(name).map(|place| place.config.max_age)
    }

    /// Returns the value at a path of a back end.
    ///
    /// # Errors
    /// In words, if there is no such back end or the path is none.
    pub(crate) fn fetch_value(
        &self,
        name: &str,
        path: &str,
        now: Instant,
    ) -> Result<Option<Value>, String> {
        let place = self.find_endpoint(name)?;
        validate_path(path)?;
        let until = now + place.config.timeout;
        match place.acquire_fetch_slot(path, (now, until)) {
            BackendFetchDecision::Cached(answer) => Ok(answer),
            BackendFetchDecision::Fetch(sent) => {
                Ok(self.fetch_and_cache((name, place), path, (now, until, sent)))
            }
        }
    }

    /// Sends JSON to a path of a back end and returns what it says; nothing if it says nothing in time.
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
        let place = self.find_endpoint(name)?;
        validate_path(path)?;
        let until = now + place.config.timeout;
        if !place.acquire_post_slot((now, until)) {
            return Ok(None);
        }
        let back_end = &place.config;
        let url = format!("{}{path}", back_end.base_url.trim_end_matches('/'));
        increment(&place.counters.fetches);
        let asked = BackendRequestStart::start_now(until);
        let answer = self.client.post_json(&url, body, asked.timeout, back_end.max_response_bytes);
        let answer = answer.and_then(|bytes| match bytes.is_empty() {
            true => Ok(Value::from(true)),
            false => parse_json_response(&bytes).map(|(value, _)| value),
        });
        let mut state = place.state.lock();
        // Also what failed may have come through.
        state.invalidate_subject(path);
        place.finish_request(&mut state, POST_IN_FLIGHT_PATH, (name, asked), answer.as_ref().err());
        Ok(answer.ok())
    }

    fn find_endpoint(&self, name: &str) -> Result<&BackendEndpoint, String> {
        self.endpoints.get(name).ok_or_else(|| {
            format!("there is no back end `{name}`; `[back_ends.{name}]` in tympan.toml makes one")
        })
    }

    /// Asks the back end and keeps the answer.
    fn fetch_and_cache(
        &self,
        (name, place): (&str, &BackendEndpoint),
        path: &str,
        (now, until, sent): (Instant, Instant, u64),
    ) -> Option<Value> {
        let back_end = &place.config;
        let url = format!("{}{path}", back_end.base_url.trim_end_matches('/'));
        increment(&place.counters.fetches);
        let asked = BackendRequestStart::start_now(until);
        let answer = self.client.fetch(&url, asked.timeout, back_end.max_response_bytes);
        let answer = answer.and_then(|bytes| parse_json_response(&bytes));
        let mut state = place.state.lock();
        place.finish_request(&mut state, path, (name, asked), answer.as_ref().err());
        match answer {
            Ok((value, bytes)) => {
                let is_outdated = state.post_count != sent;
                state.cache_value(path, (&value, bytes), (now, is_outdated));
                Some(value)
            }
            Err(_) => place.stale_value(&state, path, now),
        }
    }
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct BackendRequestStart {
    started_at: Instant,
    /// What the wait for its turn left of its time.
    timeout: Duration,
}

impl BackendRequestStart {
    fn start_now(until: Instant) -> Self {
        let at = Instant::now();
        Self { started_at: at, timeout: until.saturating_duration_since(at) }
    }
}

/// Reads an answer; tells about how many bytes of memory it takes.
fn parse_json_response(bytes: &[u8]) -> Result<(Value, usize), String> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the answer is no JSON: {error}"))?;
    Ok((Value::from(Serde(&value)), estimate_memory(&value)))
}

/// Returns about how many bytes a value takes as templates have it: a short answer of many small parts takes far more than
/// its text.
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
    /// Waits for the turn to ask, or finds the answer meanwhile.
    fn acquire_fetch_slot(
        &self,
        path: &str,
        (now, until): (Instant, Instant),
    ) -> BackendFetchDecision {
        let mut state = self.state.lock();
        let before = state.response_count;
        let mut has_waited = false;
        loop {
            let copy = state.cached_values.get(path);
            let is_good = |copy: &&CachedBackendValue| {
                // What arrived while this waited was asked for by somebody else in the same moment.
                !copy.is_invalidated
                    && (now < copy.fetched_at + self.config.max_age
                        || copy.response_number > before)
            };
            if let Some(copy) = copy.filter(is_good) {
                increment(&self.counters.hits);
                return BackendFetchDecision::Cached(Some(copy.value.clone()));
            }
            let is_asked = state.in_flight_paths.iter().any(|one| one == path);
            let is_closed = state.circuit_open_until.is_some_and(|until| now < until);
            // One request finds out whether a back end answers again; the others do not wait for it.
            let is_tried = state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES
                && !state.in_flight_paths.is_empty();
            let silent_until = state.timed_out_paths.get(path);
            let is_silent = silent_until.is_some_and(|until| now < *until || is_asked);
            // Who keeps no answers waits for the one that comes.
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

    /// Waits for the turn to send; tells whether it came.
    fn acquire_post_slot(&self, (now, until): (Instant, Instant)) -> bool {
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

    /// Tells whether as many renders wait as may.
    fn is_wait_queue_full(&self) -> bool {
        let connections = u64::try_from(self.config.max_connections).unwrap_or(u64::MAX);
        let most = connections.saturating_mul(3).max(MAX_WAITING_RENDERS);
        self.counters.waiting_renders.load(Ordering::Relaxed) >= most
    }

    /// Ends a request, and notes how it went.
    fn finish_request(
        &self,
        state: &mut BackendState,
        path: &str,
        (name, asked): (&str, BackendRequestStart),
        failure: Option<&String>,
    ) {
        let ended = Instant::now();
        if let Some(at) = state.in_flight_paths.iter().position(|one| one == path) {
            state.in_flight_paths.swap_remove(at);
        }
        self.state_changed.notify_all();
        let Some(reason) = failure else {
            if state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES {
                tracing::info!(back_end = name, "back end answers again");
            }
            state.consecutive_failures = 0;
            state.circuit_open_until = None;
            state.timed_out_paths.remove(path);
            return;
        };
        increment(&self.counters.failures);
        // Who had little time left says nothing about the back end.
        if asked.timeout * 2 >= self.config.timeout {
            state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        }
        if state.consecutive_failures >= CIRCUIT_BREAKER_FAILURES {
            state.circuit_open_until = Some(ended + self.config.retry_after);
        }
        // One that is refused at once keeps no thread, so it may be asked again.
        let took = ended.saturating_duration_since(asked.started_at);
        if path != POST_IN_FLIGHT_PATH && took * 2 >= self.config.timeout {
            state.suspend_path(path, (ended, ended + self.config.retry_after));
        }
        if state.consecutive_failures <= CIRCUIT_BREAKER_FAILURES {
            tracing::warn!(back_end = name, path, reason, "back end failed");
        }
    }

    /// Returns the copy that stands in for an answer.
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
        (value, bytes): (&Value, usize),
        (now, is_outdated): (Instant, bool),
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
            let gone = self.cached_values.remove(&oldest);
            self.cached_bytes -= gone.map_or(0, |gone| gone.bytes);
        }
    }

    /// Notes that an address is not asked for a while.
    fn suspend_path(&mut self, path: &str, (now, until): (Instant, Instant)) {
        if self.timed_out_paths.len() >= MAX_CACHED_VALUES {
            self.timed_out_paths.retain(|_, until| now < *until);
        }
        if self.timed_out_paths.len() < MAX_CACHED_VALUES || self.timed_out_paths.contains_key(path)
        {
            self.timed_out_paths.insert(path.to_owned(), until);
        }
    }

    /// Notes that something was sent to a path: what is known of its subject may have changed.
    fn invalidate_subject(&mut self, path: &str) {
        self.post_count += 1;
        let subject = path_subject(path);
        let about =
            self.cached_values.iter_mut().filter(|(known, _)| path_subject(known) == subject);
        about.for_each(|(_, copy)| copy.is_invalidated = true);
    }
}

/// Returns what an address is about: `/orders/17` of `/orders/17/lines?all`.
fn path_subject(path: &str) -> &str {
    let names = path.split('?').next().unwrap_or(path);
    let end = names.match_indices('/').nth(2).map_or(names.len(), |(at, _)| at);
    names.get(..end).unwrap_or(names)
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Refuses what would leave the back end's base URL.
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
        "`{path}` is no path of a back end: it begins with one `/`, has no `..`, and what is put into it goes through \
         `urlencode`"
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
            state.cache_value(path, (&Value::from(1), bytes), (now, false));
            let mut kept: Vec<_> = state.cached_values.keys().cloned().collect();
            kept.sort_unstable();
            assert_eq!(
                state.cached_bytes,
                state.cached_values.values().map(|copy| copy.bytes).sum::<usize>()
            );
            kept.join(" ")
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
