//! The memory in front of the document roots: answers that the full way gave, kept ready to be given again.
//!
//! In: an answer from a valid file, or from an old one while it is fetched again, with where it came from. Out: the same
//! answer for the same request, as long as the full way would give it.
//!
//! Invariants
//! * An answer is kept only for requests whose every part is in the key, or is known not to change answers ([`uses`]).
//! * A kept answer is used only while its file, its header file and its `.stat` files are as they were: the change
//!   counter moves with every flush, every stored file and every change that the kernel reports of a watched folder, and
//!   an answer that was compared at another count, or more than a second ago, is compared again.
//! * Nothing that one configuration kept is used by another.
//! * Memory stays below the bound; the least valuable answers are evicted first. Nothing is remembered of requests whose
//!   host and target are longer than [`MAX_KEY_BYTES`].
//!
//! Not here: what an answer says (`hit`, `plan`) and whether a file is fresh (`freshness`); both are asked, not repeated.

mod encode;
mod key;
mod ready;
mod uses;
mod watch;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use tympan_web::listen::Peer;

pub(crate) use encode::{add_vary, is_encodable};
pub(crate) use key::{Key, KeyRef, Kind, key_of};
pub(crate) use ready::{
    Form, Keepable, KeptBody, Ready, SMALL_BODY_BYTES, SMALL_TLS_BODY_BYTES, Source, slice,
    write_head,
};
pub(crate) use uses::{Use, may_hold_credentials, use_of};

use crate::answer::Outcome;
use crate::cache::{Docroot, Lookup};
use crate::config::{Farm, StatFiles, read_host};
use crate::dispatcher::Inner;
use crate::freshness::{Freshness, judge, valid_until};
use crate::log::{Level, escaped};
use crate::metrics::Counter;
use crate::page::{Body, empty};
use ready::{COMPARE_AFTER, Checked};
use watch::Watch;

/// What kept answers may take together.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// Longer keys would make 4096 counts of former uses take more than a few MiB; URLs that many ask for are shorter.
const MAX_KEY_BYTES: usize = 2048;
/// An answer's likely weight, by which tables are sized at first.
const LIKELY_BYTES: u64 = 8 * 1024;

/// Kept answers of a dispatcher.
#[derive(Debug)]
pub(crate) struct Memory {
    entries: Cache<Key, Arc<Ready>, Weight>,
    changes: AtomicU64,
    watch: Watch,
    started: Instant,
    /// How often answers were used that are not kept any more.
    heat: Cache<Key, u32>,
    encoding: Encoding,
}

/// Answers that wait to be encoded, one after the other.
#[derive(Debug, Default)]
struct Encoding(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    answers: VecDeque<(Key, Arc<Ready>)>,
    is_working: bool,
}

/// So many wait at most; the others stay as they are until they are kept anew.
const MAX_WAITING: usize = 4096;

impl Encoding {
    /// Adds an answer; returns whether nobody works yet.
    fn push(&self, key: Key, ready: Arc<Ready>) -> bool {
        let mut waiting = self.0.lock();
        if waiting.answers.len() >= MAX_WAITING {
            return false;
        }
        waiting.answers.push_back((key, ready));
        !std::mem::replace(&mut waiting.is_working, true)
    }

    /// Takes the next one; without one, nobody works any more.
    fn take(&self) -> Option<(Key, Arc<Ready>)> {
        let mut waiting = self.0.lock();
        let next = waiting.answers.pop_front();
        waiting.is_working = next.is_some();
        next
    }
}

/// What an answer counts towards the bound.
#[derive(Debug, Clone)]
struct Weight {
    /// For an open file, so that not too many are open.
    file: u64,
}

impl Weighter<Key, Arc<Ready>> for Weight {
    fn weight(&self, key: &Key, ready: &Arc<Ready>) -> u64 {
        let bytes = (key.bytes() + ready.bytes()) as u64;
        match ready.body() {
            KeptBody::Memory(_) => bytes,
            KeptBody::File(_) => bytes.max(self.file),
        }
    }
}

/// One moment, read once for several requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The dispatcher's clock.
    pub(crate) now: SystemTime,
    /// Milliseconds of the memory's own clock, which nobody sets.
    at_ms: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            entries: Cache::with_weighter(
                usize::try_from(MAX_BYTES / LIKELY_BYTES).unwrap_or(1024),
                MAX_BYTES,
                Weight { file: MAX_BYTES / max_files() },
            ),
            changes: AtomicU64::new(0),
            watch: Watch::new(),
            started: Instant::now(),
            heat: Cache::new(4096),
            encoding: Encoding::default(),
        }
    }
}

/// Returns how many files may be held open: most of what the process may open is for connections.
fn max_files() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (limit.unwrap_or(u64::MAX) / 4).clamp(16, 4096)
}

impl Memory {
    /// Notes that files changed: every answer is compared with its file before it is used again.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Learns of changes that others made; what was complete before the call counts from now on.
    pub(crate) fn learn(&self) {
        self.watch.drain(|| self.note_change());
    }

    /// Returns the state of the change counter.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.entries.clear();
        self.watch.clear();
        self.note_change();
    }

    /// Makes the encodings of all answers that wait for them.
    fn encode_waiting(&self) {
        while let Some((key, ready)) = self.encoding.take() {
            let Some(encoded) = ready.with_encodings() else { continue };
            let is_kept =
                self.entries.peek(&key.borrowed()).is_some_and(|kept| Arc::ptr_eq(&kept, &ready));
            if is_kept {
                self.entries.insert(key, Arc::new(encoded));
            }
        }
    }

    /// Returns how many answers are kept, and about how many bytes they take.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.entries.len() as u64, self.entries.weight())
    }

    /// Reads the memory's own clock.
    pub(crate) fn moment(&self, now: SystemTime) -> Moment {
        let at_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Moment { now, at_ms }
    }

    /// Watches the folders whose changes concern `file`; returns whether all of them are watched.
    pub(crate) fn watch(&self, docroot: &Docroot, file: &Path, stat_files: &StatFiles) -> bool {
        let folders = file.ancestors().skip(1);
        let mut is_watched = true;
        for folder in folders {
            is_watched &= self.watch.add(&docroot.path().join(folder));
        }
        if let StatFiles::Single(stat) = stat_files {
            is_watched &= stat.parent().is_some_and(|folder| self.watch.add(folder));
        }
        is_watched
    }

    /// Returns the kept answers for which `is_wanted` holds, the one with the most uses first.
    pub(crate) fn hottest(&self, is_wanted: impl Fn(&Ready) -> bool) -> Vec<Arc<Ready>> {
        let mut found: Vec<Arc<Ready>> =
            self.entries.iter().map(|(_, ready)| ready).filter(|ready| is_wanted(ready)).collect();
        found.sort_by_key(|ready| std::cmp::Reverse(ready.hits()));
        found
    }
}

/// Tells whether a farm's pages are not for everyone.
fn is_private(farm: &Farm) -> bool {
    farm.auth_checker.is_some() || farm.sessions.is_some()
}

impl Inner {
    /// Tells whether answers may be kept at all: what decides about them must be in their keys, and each must write all
    /// its log lines.
    pub(crate) fn keeps_answers(&self) -> bool {
        let log = &self.runtime.log;
        let tells_steps = log.file.is_some() && log.level > Level::Info;
        let hears_proxies = self.switches.uses_forwarded_host || !self.gate.trusted.is_empty();
        !self.has_shares && !hears_proxies && !tells_steps
    }

    /// Reads the time for look-ups in the memory, and learns of changes that others made.
    pub(crate) fn moment(&self) -> Moment {
        self.memory.learn();
        self.memory.moment(self.runtime.clock.now())
    }

    /// Returns the kept answer to a request, if it is what the full way would answer now.
    pub(crate) fn find_kept(&self, key: &KeyRef<'_>, moment: Moment) -> Option<Arc<Ready>> {
        let ready = self.memory.entries.get(key)?;
        if ready.source.serial == self.serial && self.is_valid(&ready, moment) {
            return Some(ready);
        }
        if let Some((key, ready)) = self.memory.entries.remove(key) {
            // Old fame counts less.
            self.memory.heat.insert(key, ready.hits() / 2);
        }
        None
    }

    /// Returns the answer whose head a request by HEAD gets in place of its own, which has no encodings: that of the GET,
    /// if it is kept too and of the same file.
    pub(crate) fn find_whole(
        &self,
        key: &KeyRef<'_>,
        ready: &Ready,
        moment: Moment,
    ) -> Option<Arc<Ready>> {
        let compresses = ready.source.farm.farm.cache.as_ref().is_some_and(|cache| cache.compress);
        if !compresses || !key.kind.is_head() {
            return None;
        }
        let whole = self.find_kept(&key.as_get(), moment)?;
        let is_same =
            whole.source.stamp == ready.source.stamp && whole.source.file == ready.source.file;
        is_same.then_some(whole)
    }

    fn is_valid(&self, ready: &Ready, moment: Moment) -> bool {
        let changes = self.memory.changes();
        let checked = *ready.checked.lock();
        if checked.until.is_some_and(|until| moment.now > until) {
            return false;
        }
        let is_recent =
            u128::from(moment.at_ms.saturating_sub(checked.at_ms)) < COMPARE_AFTER.as_millis();
        if checked.changes == Some(changes) && is_recent {
            return true;
        }
        let compared = self.compare(&ready.source, changes, moment);
        if let Some(checked) = compared {
            *ready.checked.lock() = checked;
        }
        compared.is_some()
    }

    /// Looks the file up again and judges it; nothing if it is another one, or out of date.
    fn compare(&self, source: &Source, changes: u64, moment: Moment) -> Option<Checked> {
        let farm = &source.farm;
        let (root, cache) = (farm.docroot.as_ref()?, farm.farm.cache.as_ref()?);
        let docroot = root.opened();
        let is_watched = self.memory.watch(&docroot, &source.file, &cache.stat_files);
        let Ok(Lookup::File(cached)) = docroot.look_up(&source.file, cache.enable_ttl) else {
            return None;
        };
        if cached.stamp != source.stamp {
            return None;
        }
        let facts = docroot.facts(cache, (&source.file, &source.path), &cached, moment.now);
        let is_fresh = judge(facts, cache.patience()) == Freshness::Valid;
        docroot.note_use(&source.file, moment.now);
        let (is_valid, until) = if source.is_old {
            let until = cached.marked.map(|marked| marked + cache.max_stale);
            (!is_fresh && self.is_awaited(farm, &source.file), until)
        } else {
            (is_fresh, valid_until(facts, cache.patience()))
        };
        is_valid.then(|| Checked {
            changes: is_watched.then_some(changes),
            at_ms: moment.at_ms,
            until,
        })
    }

    /// Answers from memory, or on the full way.
    pub(crate) async fn recall_or_answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let peer = request.extensions().get::<Peer>().copied();
        let peer = peer.filter(|_| self.keeps_answers());
        let key = peer.and_then(|peer| key_of(&request, peer.is_tls));
        let client = peer.map(|peer| peer.addr.ip().to_canonical());
        let kept = key
            .as_ref()
            .zip(client)
            .and_then(|(key, client)| self.answer_kept(key, client, request.headers()));
        if let Some(response) = kept {
            return response;
        }
        let mut response = self.answer(request).await;
        self.keep(key, &mut response);
        response
    }

    /// Keeps an answer if it came from a valid file and nothing but its key decided about it.
    pub(crate) fn keep(&self, key: Option<Key>, response: &mut Response<Body>) {
        let Some(keepable) = response.extensions_mut().remove::<Keepable>() else { return };
        let source = &keepable.source;
        let Some(key) = key.filter(|key| self.is_decided_by_key(key, source)) else { return };
        let is_head = key.borrowed().kind.is_head();
        // The length of a body that is read piece by piece stands only in the head.
        let announced = response.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let length = response.body().size_hint().exact().or(announced);
        let has_whole_body = is_head || length == Some(source.length);
        if response.status() != StatusCode::OK || !has_whole_body {
            return;
        }
        let moment = self.memory.moment(self.runtime.clock.now());
        // What changed since the look-up is found by comparing once more.
        let changes = self.memory.changes();
        let Some(checked) = self.compare(source, changes, moment) else { return };
        let mut headers = response.headers().clone();
        headers.remove(header::DATE);
        if !headers.contains_key(header::AGE) {
            return;
        }
        let compresses =
            !is_head && source.farm.farm.cache.as_ref().is_some_and(|cache| cache.compress);
        let log_text = self.log_text(source, is_head);
        let head = (key.borrowed().kind, &headers);
        let ready = Arc::new(Ready::new(keepable, head, log_text, checked));
        ready.count_from(self.memory.heat.remove(&key).map_or(0, |(_, hits)| hits));
        self.memory.entries.insert(key.clone(), Arc::clone(&ready));
        if compresses && ready.is_encodable() && self.memory.encoding.push(key, ready) {
            let memory = Arc::clone(&self.memory);
            tokio::task::spawn_blocking(move || memory.encode_waiting());
        }
    }

    /// Returns what the dispatcher's own log says of a kept answer; nothing if it says nothing of hits.
    fn log_text(&self, source: &Source, is_head: bool) -> Box<str> {
        if !self.runtime.log.writes(Level::Info) {
            return Box::default();
        }
        let farm = &source.farm.farm.name;
        let method = if is_head { "HEAD" } else { "GET" };
        escaped(&format!("\"{method} {}\" - hit [{farm}/-] 0ms", source.path)).into()
    }

    fn is_decided_by_key(&self, key: &Key, source: &Source) -> bool {
        let farm = &source.farm.farm;
        if source.serial != self.serial || !self.keeps_answers() || is_private(farm) {
            return false;
        }
        if key.length() > MAX_KEY_BYTES {
            return false;
        }
        let key = key.borrowed();
        let Ok(authority) = std::str::from_utf8(key.host) else { return false };
        let (host, _port) = read_host(authority);
        self.switches.routes.is_decided_by_target(&host)
    }

    /// Gives a kept answer on the way through hyper.
    pub(crate) fn answer_kept(
        &self,
        key: &Key,
        client: IpAddr,
        conditions: &HeaderMap,
    ) -> Option<Response<Body>> {
        let moment = self.moment();
        let ready = self.find_kept(&key.borrowed(), moment)?;
        let is_head = key.borrowed().kind.is_head();
        let whole = self.find_whole(&key.borrowed(), &ready, moment);
        let shown = whole.as_ref().unwrap_or(&ready);
        let accepted = conditions.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes);
        let form = shown.form(accepted, Some(conditions), is_head);
        let told = shown.tell(form, conditions, is_head, moment.now)?;
        let is_empty = is_head || told.length == 0;
        let body = if is_empty { empty() } else { form.body.part(told.start, told.length).ok()? };
        // Last, as the full way asks again.
        self.gate.admit(client).ok()?;
        self.note_kept(&ready, is_head, told.status);
        if let Some(warning) = &ready.source.warning {
            self.log(Level::Warn, || warning.to_string());
        }
        self.log(Level::Info, || ready.log_text.to_string());
        let mut response = Response::new(body);
        *response.status_mut() = told.status;
        *response.headers_mut() = told.headers;
        Some(response)
    }

    /// Counts a kept answer that was given with a status to a GET, or to a HEAD.
    pub(crate) fn note_kept(&self, ready: &Ready, is_head: bool, status: StatusCode) {
        ready.note_hit();
        let (counter, outcome) = match ready.source.is_old {
            true => (Counter::Stale, Outcome::Stale),
            false => (Counter::Hits, Outcome::Hit),
        };
        self.metrics.count(counter);
        self.metrics.count(Counter::KeptHits);
        let tally = &ready.source.farm.tally;
        tally.count_kept(&ready.served, &ready.source.path, outcome);
        let method = if is_head { &Method::HEAD } else { &Method::GET };
        tally.times.note(method, status, Duration::ZERO);
    }
}
