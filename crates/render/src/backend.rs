//! Data of other systems on a page: JSON from configured HTTP back ends, so that a page over a slow system stays up.
//!
//! In: the name of a back end and a path. Out: the value, perhaps an older copy; nothing if there is none.
//!
//! Invariants
//! * Only configured back ends are asked, below their base URL; what an author or visitor typed cannot choose another.
//! * One request per address runs at a time, and at most `connections` to a back end; the others wait no longer than a
//!   request may take, and share its answer.
//! * What is sent to a back end is sent once, and what was asked about the same subject before is asked again.
//! * A back end that fails `FAILURES` times in a row is left alone for `retry_after`; then one request tries it. So is a
//!   single address that used up its time, though others of the back end answer.
//! * No more than `MOST_WAITING` renders, or three for each connection, wait for a back end, as each one keeps a thread.
//! * The answers kept for a back end take no more than `MOST_BYTES` of memory, or one answer where a single one takes more.
//!
//! On failure: the copy is used while it is younger than `max_stale`; then there is no value, and the template prints what
//! it has in its place.
//!
//! Not here: HTTP ([`Fetch`]). What is drawn from such data is no fragment, and its answer says for how long it may be kept
//! ([`crate::Reads::max_age`]).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minijinja::Value;
use minijinja::value::Serde;
use parking_lot::{Condvar, Mutex};

/// Failures in a row after which a back end is left alone.
const FAILURES: u32 = 5;

/// Answers kept for one back end, and the memory that they take together, in bytes; the oldest goes first.
const MOST_COPIES: usize = 2_000;
const MOST_BYTES: usize = 64 << 20;

/// Renders that may wait for a back end, if it has few connections.
const MOST_WAITING: u64 = 32;

/// The longest path that is asked for.
const LONGEST_PATH: usize = 2_000;

/// A back end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackEnd {
    /// The begin of all its addresses, such as `http://10.0.0.5:8080/api`.
    pub url: String,
    /// How many requests may run at a time.
    pub connections: usize,
    /// How long a request may take, with the wait for its turn.
    pub timeout: Duration,
    /// How long an answer is used without asking again.
    pub max_age: Duration,
    /// How long an answer stands in for a back end that does not answer.
    pub max_stale: Duration,
    /// How long a back end that failed is left alone.
    pub retry_after: Duration,
    /// The largest answer, in bytes.
    pub max_bytes: usize,
}

impl BackEnd {
    /// Makes a back end with the usual bounds.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connections: 16,
            timeout: Duration::from_secs(2),
            max_age: Duration::from_secs(10),
            max_stale: Duration::from_secs(3600),
            retry_after: Duration::from_secs(10),
            max_bytes: 1024 * 1024,
        }
    }
}

/// Sends requests to back ends.
pub trait Fetch: fmt::Debug + Send + Sync {
    /// Gets the body of an answer with status 200.
    ///
    /// # Errors
    /// In words, for the log, if there is no such answer in time or it is too large.
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String>;

    /// Posts JSON, once, and gets the body of an answer with status 200 or 201.
    ///
    /// # Errors
    /// As [`Fetch::fetch`].
    fn send(
        &self,
        url: &str,
        body: &[u8],
        timeout: Duration,
        max_bytes: usize,
    ) -> Result<Vec<u8>, String>;
}

/// What happened at a back end since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BackEndCounts {
    /// Requests that were sent.
    pub fetches: u64,
    /// Requests without a usable answer.
    pub failures: u64,
    /// Answers from the copy while it was fresh.
    pub hits: u64,
    /// Answers from an older copy.
    pub stale: u64,
    /// Questions without an answer.
    pub refused: u64,
    /// Requests that run now.
    pub in_use: u64,
    /// Renders that wait now.
    pub waiting: u64,
    /// How many may run.
    pub limit: u64,
}

/// All configured back ends.
#[derive(Debug)]
pub struct BackEnds {
    fetch: Box<dyn Fetch>,
    places: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    back_end: BackEnd,
    state: Mutex<State>,
    changed: Condvar,
    counts: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    fetches: AtomicU64,
    failures: AtomicU64,
    hits: AtomicU64,
    stale: AtomicU64,
    refused: AtomicU64,
    waiting: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    copies: HashMap<String, Kept>,
    /// The memory that the copies take, in bytes.
    bytes: usize,
    /// The addresses that are asked now.
    running: Vec<String>,
    failures: u32,
    closed_until: Option<Instant>,
    /// Addresses that used up their time when they were last asked, and until when they are left alone.
    silent: HashMap<String, Instant>,
    /// How many answers arrived, and how often something was sent.
    arrived: u64,
    sent: u64,
}

#[derive(Debug, Clone)]
struct Kept {
    value: Value,
    /// The memory that it takes, in bytes.
    bytes: usize,
    read: Instant,
    /// The number of its arrival.
    arrival: u64,
    /// Whether something was sent since that may have changed it.
    is_outdated: bool,
}

/// Stands among the requests that run for one that sends; no path is like it.
const SENDING: &str = "";

/// What is to be done for an address.
enum Turn {
    Answer(Option<Value>),
    /// Ask, when so often something was sent.
    Ask(u64),
}

impl BackEnds {
    /// Takes the configured back ends by name, and what sends requests to them.
    #[must_use]
    pub fn new(back_ends: BTreeMap<String, BackEnd>, fetch: Box<dyn Fetch>) -> Self {
        let place = |(name, back_end)| {
            let (state, changed, counts) = (Mutex::default(), Condvar::new(), Counters::default());
            (name, Place { back_end, state, changed, counts })
        };
        Self { fetch, places: back_ends.into_iter().map(place).collect() }
    }

    /// Returns the names of all back ends.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Returns what happened at each back end.
    #[must_use]
    pub fn counts(&self) -> Vec<(&str, BackEndCounts)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let places = self.places.iter();
        places
            .map(|(name, place)| {
                let counts = BackEndCounts {
                    fetches: read(&place.counts.fetches),
                    failures: read(&place.counts.failures),
                    hits: read(&place.counts.hits),
                    stale: read(&place.counts.stale),
                    refused: read(&place.counts.refused),
                    in_use: place.state.lock().running.len() as u64,
                    waiting: read(&place.counts.waiting),
                    limit: place.back_end.connections as u64,
                };
                (name.as_str(), counts)
            })
            .collect()
    }

    /// Returns how long answers of a back end are used, and so what is drawn from them.
    pub(crate) fn max_age(&self, name: &str) -> Option<Duration> {
        self.places.get(name).map(|place| place.back_end.max_age)
    }

    /// Returns the value at a path of a back end.
    ///
    /// # Errors
    /// In words, if there is no such back end or the path is none.
    pub(crate) fn value(
        &self,
        name: &str,
        path: &str,
        now: Instant,
    ) -> Result<Option<Value>, String> {
        let place = self.place(name)?;
        check_path(path)?;
        let until = now + place.back_end.timeout;
        match place.take_turn(path, (now, until)) {
            Turn::Answer(answer) => Ok(answer),
            Turn::Ask(sent) => Ok(self.ask((name, place), path, (now, until, sent))),
        }
    }

    /// Sends JSON to a path of a back end and returns what it says; nothing if it says nothing in time.
    ///
    /// # Errors
    /// As [`BackEnds::value`].
    pub(crate) fn send(
        &self,
        name: &str,
        path: &str,
        body: &[u8],
        now: Instant,
    ) -> Result<Option<Value>, String> {
        let place = self.place(name)?;
        check_path(path)?;
        let until = now + place.back_end.timeout;
        if !place.take_place((now, until)) {
            return Ok(None);
        }
        let back_end = &place.back_end;
        let url = format!("{}{path}", back_end.url.trim_end_matches('/'));
        count(&place.counts.fetches);
        let asked = Asked::now(until);
        let answer = self.fetch.send(&url, body, asked.timeout, back_end.max_bytes);
        let answer = answer.and_then(|bytes| match bytes.is_empty() {
            true => Ok(Value::from(true)),
            false => read_json(&bytes).map(|(value, _)| value),
        });
        let mut state = place.state.lock();
        // Also what failed may have come through.
        state.outdate(path);
        place.settle(&mut state, SENDING, (name, asked), answer.as_ref().err());
        Ok(answer.ok())
    }

    fn place(&self, name: &str) -> Result<&Place, String> {
        self.places.get(name).ok_or_else(|| {
            format!("there is no back end `{name}`; `[back_ends.{name}]` in tympan.toml makes one")
        })
    }

    /// Asks the back end and keeps the answer.
    fn ask(
        &self,
        (name, place): (&str, &Place),
        path: &str,
        (now, until, sent): (Instant, Instant, u64),
    ) -> Option<Value> {
        let back_end = &place.back_end;
        let url = format!("{}{path}", back_end.url.trim_end_matches('/'));
        count(&place.counts.fetches);
        let asked = Asked::now(until);
        let answer = self.fetch.fetch(&url, asked.timeout, back_end.max_bytes);
        let answer = answer.and_then(|bytes| read_json(&bytes));
        let mut state = place.state.lock();
        place.settle(&mut state, path, (name, asked), answer.as_ref().err());
        match answer {
            Ok((value, bytes)) => {
                let is_outdated = state.sent != sent;
                state.keep(path, (&value, bytes), (now, is_outdated));
                Some(value)
            }
            Err(_) => place.stand_in(&state, path, now),
        }
    }
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct Asked {
    at: Instant,
    /// What the wait for its turn left of its time.
    timeout: Duration,
}

impl Asked {
    fn now(until: Instant) -> Self {
        let at = Instant::now();
        Self { at, timeout: until.saturating_duration_since(at) }
    }
}

/// Reads an answer; tells about how many bytes of memory it takes.
fn read_json(bytes: &[u8]) -> Result<(Value, usize), String> {
    let value: serde_json::Value =
        serde_json::from_slice(bytes).map_err(|error| format!("the answer is no JSON: {error}"))?;
    Ok((Value::from(Serde(&value)), memory_of(&value)))
}

/// Returns about how many bytes a value takes as templates have it: a short answer of many small parts takes far more than
/// its text.
fn memory_of(value: &serde_json::Value) -> usize {
    const PART: usize = 48;
    PART + match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(parts) => parts.iter().map(memory_of).sum(),
        serde_json::Value::Object(members) => {
            members.iter().map(|(name, value)| PART + name.len() + memory_of(value)).sum()
        }
        _ => 0,
    }
}

impl Place {
    /// Waits for the turn to ask, or finds the answer meanwhile.
    fn take_turn(&self, path: &str, (now, until): (Instant, Instant)) -> Turn {
        let mut state = self.state.lock();
        let before = state.arrived;
        let mut has_waited = false;
        loop {
            let copy = state.copies.get(path);
            let is_good = |copy: &&Kept| {
                // What arrived while this waited was asked for by somebody else in the same moment.
                !copy.is_outdated
                    && (now < copy.read + self.back_end.max_age || copy.arrival > before)
            };
            if let Some(copy) = copy.filter(is_good) {
                count(&self.counts.hits);
                return Turn::Answer(Some(copy.value.clone()));
            }
            let is_asked = state.running.iter().any(|one| one == path);
            let is_closed = state.closed_until.is_some_and(|until| now < until);
            // One request finds out whether a back end answers again; the others do not wait for it.
            let is_tried = state.failures >= FAILURES && !state.running.is_empty();
            let silent_until = state.silent.get(path);
            let is_silent = silent_until.is_some_and(|until| now < *until || is_asked);
            // Who keeps no answers waits for the one that comes.
            let has_copy = !self.back_end.max_age.is_zero()
                && copy.is_some_and(|copy| {
                    !copy.is_outdated && now < copy.read + self.back_end.max_stale
                });
            if is_closed || is_tried || is_silent || (is_asked && has_copy) {
                return Turn::Answer(self.stand_in(&state, path, now));
            }
            if !is_asked && state.running.len() < self.back_end.connections.max(1) {
                state.running.push(path.to_owned());
                return Turn::Ask(state.sent);
            }
            if !has_waited && self.is_crowded() {
                return Turn::Answer(self.stand_in(&state, path, now));
            }
            has_waited = true;
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = self.changed.wait_until(&mut state, until);
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            if waited.timed_out() {
                return Turn::Answer(self.stand_in(&state, path, now));
            }
        }
    }

    /// Waits for the turn to send; tells whether it came.
    fn take_place(&self, (now, until): (Instant, Instant)) -> bool {
        let mut state = self.state.lock();
        let mut has_waited = false;
        loop {
            let is_closed = state.closed_until.is_some_and(|until| now < until);
            let is_tried = state.failures >= FAILURES && !state.running.is_empty();
            if is_closed || is_tried {
                count(&self.counts.refused);
                return false;
            }
            if state.running.len() < self.back_end.connections.max(1) {
                state.running.push(SENDING.to_owned());
                return true;
            }
            if !has_waited && self.is_crowded() {
                count(&self.counts.refused);
                return false;
            }
            has_waited = true;
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            let waited = self.changed.wait_until(&mut state, until);
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            if waited.timed_out() {
                count(&self.counts.refused);
                return false;
            }
        }
    }

    /// Tells whether as many renders wait as may.
    fn is_crowded(&self) -> bool {
        let connections = u64::try_from(self.back_end.connections).unwrap_or(u64::MAX);
        let most = connections.saturating_mul(3).max(MOST_WAITING);
        self.counts.waiting.load(Ordering::Relaxed) >= most
    }

    /// Ends a request, and notes how it went.
    fn settle(
        &self,
        state: &mut State,
        path: &str,
        (name, asked): (&str, Asked),
        failure: Option<&String>,
    ) {
        let ended = Instant::now();
        if let Some(at) = state.running.iter().position(|one| one == path) {
            state.running.swap_remove(at);
        }
        self.changed.notify_all();
        let Some(reason) = failure else {
            if state.failures >= FAILURES {
                tracing::info!(back_end = name, "back end answers again");
            }
            state.failures = 0;
            state.closed_until = None;
            state.silent.remove(path);
            return;
        };
        count(&self.counts.failures);
        // Who had little time left says nothing about the back end.
        if asked.timeout * 2 >= self.back_end.timeout {
            state.failures = state.failures.saturating_add(1);
        }
        if state.failures >= FAILURES {
            state.closed_until = Some(ended + self.back_end.retry_after);
        }
        // One that is refused at once keeps no thread, so it may be asked again.
        let took = ended.saturating_duration_since(asked.at);
        if path != SENDING && took * 2 >= self.back_end.timeout {
            state.leave_alone(path, (ended, ended + self.back_end.retry_after));
        }
        if state.failures <= FAILURES {
            tracing::warn!(back_end = name, path, reason, "back end failed");
        }
    }

    /// Returns the copy that stands in for an answer.
    fn stand_in(&self, state: &State, path: &str, now: Instant) -> Option<Value> {
        let copy = state.copies.get(path);
        let copy = copy.filter(|copy| now < copy.read + self.back_end.max_stale);
        count(if copy.is_some() { &self.counts.stale } else { &self.counts.refused });
        copy.map(|copy| copy.value.clone())
    }
}

impl State {
    fn keep(
        &mut self,
        path: &str,
        (value, bytes): (&Value, usize),
        (now, is_outdated): (Instant, bool),
    ) {
        self.arrived += 1;
        let bytes = bytes + path.len();
        let arrival = self.arrived;
        let copy = Kept { value: value.clone(), bytes, read: now, arrival, is_outdated };
        self.bytes += bytes;
        if let Some(old) = self.copies.insert(path.to_owned(), copy) {
            self.bytes -= old.bytes;
        }
        while self.copies.len() > 1 && (self.copies.len() > MOST_COPIES || self.bytes > MOST_BYTES)
        {
            let oldest = self.copies.iter().min_by_key(|(_, copy)| (copy.read, copy.arrival));
            let Some(oldest) = oldest.map(|(path, _)| path.clone()) else { return };
            let gone = self.copies.remove(&oldest);
            self.bytes -= gone.map_or(0, |gone| gone.bytes);
        }
    }

    /// Notes that an address is not asked for a while.
    fn leave_alone(&mut self, path: &str, (now, until): (Instant, Instant)) {
        if self.silent.len() >= MOST_COPIES {
            self.silent.retain(|_, until| now < *until);
        }
        if self.silent.len() < MOST_COPIES || self.silent.contains_key(path) {
            self.silent.insert(path.to_owned(), until);
        }
    }

    /// Notes that something was sent to a path: what is known of its subject may have changed.
    fn outdate(&mut self, path: &str) {
        self.sent += 1;
        let subject = subject_of(path);
        let about = self.copies.iter_mut().filter(|(known, _)| subject_of(known) == subject);
        about.for_each(|(_, copy)| copy.is_outdated = true);
    }
}

/// Returns what an address is about: `/orders/17` of `/orders/17/lines?all`.
fn subject_of(path: &str) -> &str {
    let names = path.split('?').next().unwrap_or(path);
    let end = names.match_indices('/').nth(2).map_or(names.len(), |(at, _)| at);
    names.get(..end).unwrap_or(names)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Refuses what would leave the back end's base URL.
fn check_path(path: &str) -> Result<(), String> {
    let (names, _) = path.split_at(path.find('?').unwrap_or(path.len()));
    let names = percent_encoding::percent_decode_str(names).decode_utf8_lossy();
    let climbs = names.split(['/', '\\']).any(|name| name == "." || name == "..");
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"#\\\"<>".contains(&byte));
    if path.starts_with('/')
        && !path.starts_with("//")
        && is_plain
        && !climbs
        && path.len() <= LONGEST_PATH
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
        let mut state = State::default();
        let now = Instant::now();
        let mut keep = |path: &str, bytes: usize| {
            state.keep(path, (&Value::from(1), bytes), (now, false));
            let mut kept: Vec<_> = state.copies.keys().cloned().collect();
            kept.sort_unstable();
            assert_eq!(state.bytes, state.copies.values().map(|copy| copy.bytes).sum::<usize>());
            kept.join(" ")
        };
        assert_eq!(keep("/a", MOST_BYTES / 2), "/a");
        assert_eq!(keep("/b", MOST_BYTES / 4), "/a /b");
        assert_eq!(keep("/c", MOST_BYTES / 2), "/b /c");
        assert_eq!(keep("/b", 1), "/b /c");
        assert_eq!(keep("/d", 2 * MOST_BYTES), "/d", "one is kept whatever it takes");
        assert_eq!(keep("/e", 1), "/e");
        // Two bytes of text for each part.
        let (_, bytes) = read_json(format!("[{}1]", "1,".repeat(10_000)).as_bytes()).unwrap();
        assert!(bytes > 400_000, "{bytes}");
    }

    #[test]
    fn paths_stay_below_the_base() {
        for path in ["/", "/a/b?c=d%20e&f", "/%C3%A4", "/a.b/..c"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
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
            assert!(check_path(path).is_err(), "{path}");
        }
    }
}
