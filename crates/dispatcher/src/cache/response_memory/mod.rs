//! The memory cache in front of the document roots: responses of the regular path, stored ready to be sent again.
//!
//! Input: a response from a valid file, or from an old one while it is fetched again, with its source. Output: the same
//! response for the same request, as long as the regular path would produce it.
//!
//! Invariants
//! * A response is stored only for requests whose every part is in the key, or is known not to change responses
//!   ([`header_role`]).
//! * A cached response is used only while its file, its header file and its `.stat` files are unchanged: the change
//!   counter increases with every flush, every stored file and every change that the kernel reports of a watched
//!   folder, and a response that was checked at another count, or more than a second ago, is checked again.
//! * Responses stored by one configuration are not used by another.
//! * Memory stays below the limit; the least valuable responses are evicted first. Requests whose host and target are
//!   longer than [`MAX_KEY_BYTES`] are not recorded.
//!
//! Not here: the content of a response (`cache::file_response`, `edge::response_plan`) and the freshness of a file
//! (`cache::freshness`); both are called, not duplicated.

mod cached_response;
mod dispatcher_response;
mod folder_watcher;
mod header_role;
mod response_encoding;
mod response_key;

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
use tympan_web::listen::ConnectionPeer;

pub(crate) use cached_response::{
    CachedBody, CachedRepresentation, CachedResponse, ResponseSource, SMALL_BODY_BYTES,
    SMALL_TLS_BODY_BYTES, encode_response_head, slice_bytes,
};
pub(crate) use dispatcher_response::{CacheFileContent, DispatcherResponse};
pub(crate) use header_role::{RequestHeaderRole, header_role, may_hold_credentials};
pub(crate) use response_encoding::{add_vary_accept_encoding, is_encodable};
pub(crate) use response_key::{RequestFlags, ResponseKey, ResponseKeyRef, response_key_of};

use crate::cache::freshness::{CacheFileFreshness, assess_freshness, valid_until};
use crate::cache::outcome::CacheOutcome;
use crate::cache::{CacheFileLookup, Docroot};
use crate::config::{FarmConfig, StatFileLayout, parse_host};
use crate::dispatcher_state::DispatcherState;
use crate::edge::response_body::{ResponseBody, empty_body};
use crate::observe::log::{LogLevel, escape_control_chars};
use crate::observe::metrics::DispatcherCounter;
use cached_response::{FILE_CHECK_INTERVAL, LastFileCheck};
use folder_watcher::FolderWatcher;

/// The maximum memory of all cached responses in bytes.
const MAX_MEMORY_BYTES: u64 = 64 * 1024 * 1024;
/// The maximum size of a key in bytes. Longer keys would make 4096 counts of former uses take more than a few MiB;
/// frequently requested URLs are shorter.
const MAX_KEY_BYTES: usize = 2048;
/// The estimated size of a response in bytes, for the initial size of tables.
const ESTIMATED_RESPONSE_BYTES: u64 = 8 * 1024;

/// The cached responses of a dispatcher.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    responses: Cache<ResponseKey, Arc<CachedResponse>, CachedResponseWeight>,
    change_count: AtomicU64,
    folder_watcher: FolderWatcher,
    start_time: Instant,
    /// The use counts of evicted responses.
    evicted_hits: Cache<ResponseKey, u32>,
    encoding_queue: EncodingQueue,
}

/// The queue of responses to be encoded, one after the other.
#[derive(Debug, Default)]
struct EncodingQueue(Mutex<EncodingQueueState>);

#[derive(Debug, Default)]
struct EncodingQueueState {
    responses: VecDeque<(ResponseKey, Arc<CachedResponse>)>,
    has_worker: bool,
}

/// The maximum number of queued responses; others stay unencoded until they are stored anew.
const MAX_QUEUED_ENCODINGS: usize = 4096;

impl EncodingQueue {
    /// Adds a response; returns true if no worker is running yet.
    fn push(&self, key: ResponseKey, ready: Arc<CachedResponse>) -> bool {
        let mut waiting = self.0.lock();
        if waiting.responses.len() >= MAX_QUEUED_ENCODINGS {
            return false;
        }
        waiting.responses.push_back((key, ready));
        !std::mem::replace(&mut waiting.has_worker, true)
    }

    /// Takes the next response; if there is none, marks the worker as stopped.
    fn take_next(&self) -> Option<(ResponseKey, Arc<CachedResponse>)> {
        let mut waiting = self.0.lock();
        let next = waiting.responses.pop_front();
        waiting.has_worker = next.is_some();
        next
    }
}

/// The weight of a response toward the limit.
#[derive(Debug, Clone)]
struct CachedResponseWeight {
    /// The weight of an open file, which bounds the number of open files.
    file_bytes: u64,
}

impl Weighter<ResponseKey, Arc<CachedResponse>> for CachedResponseWeight {
    fn weight(&self, key: &ResponseKey, ready: &Arc<CachedResponse>) -> u64 {
        let bytes = (key.memory_bytes() + ready.memory_bytes()) as u64;
        match ready.identity_body() {
            CachedBody::Memory(_) => bytes,
            CachedBody::File(_) => bytes.max(self.file_bytes),
        }
    }
}

/// A time read once for several requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookupTime {
    /// The time of the dispatcher's clock.
    pub(crate) now: SystemTime,
    /// The time in milliseconds on the memory's own clock, which cannot be set back.
    memory_ms: u64,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        Self {
            responses: Cache::with_weighter(
                usize::try_from(MAX_MEMORY_BYTES / ESTIMATED_RESPONSE_BYTES).unwrap_or(1024),
                MAX_MEMORY_BYTES,
                CachedResponseWeight { file_bytes: MAX_MEMORY_BYTES / max_open_files() },
            ),
            change_count: AtomicU64::new(0),
            folder_watcher: FolderWatcher::new(),
            start_time: Instant::now(),
            evicted_hits: Cache::new(4096),
            encoding_queue: EncodingQueue::default(),
        }
    }
}

/// Returns the maximum number of open files: most of the process's limit is for connections.
fn max_open_files() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (limit.unwrap_or(u64::MAX) / 4).clamp(16, 4096)
}

impl ResponseMemory {
    /// Records that files changed: every response is checked against its file before it is used again.
    pub(crate) fn record_change(&self) {
        self.change_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads changes by other programs; changes complete before the call take effect.
    pub(crate) fn drain_changes(&self) {
        self.folder_watcher.drain_changes(|| self.record_change());
    }

    /// Returns the value of the change counter.
    pub(crate) fn change_count(&self) -> u64 {
        self.change_count.load(Ordering::SeqCst)
    }

    /// Removes all responses.
    pub(crate) fn clear(&self) {
        self.responses.clear();
        self.folder_watcher.unwatch_all();
        self.record_change();
    }

    /// Encodes all queued responses.
    fn encode_queued(&self) {
        while let Some((key, ready)) = self.encoding_queue.take_next() {
            let Some(encoded) = ready.with_encodings() else { continue };
            let is_kept = self
                .responses
                .peek(&key.as_key_ref())
                .is_some_and(|cached| Arc::ptr_eq(&cached, &ready));
            if is_kept {
                self.responses.insert(key, Arc::new(encoded));
            }
        }
    }

    /// Returns the number of cached responses, and their approximate size in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.responses.len() as u64, self.responses.weight())
    }

    /// Reads the memory's own clock.
    pub(crate) fn lookup_time(&self, now: SystemTime) -> LookupTime {
        let at_ms = u64::try_from(self.start_time.elapsed().as_millis()).unwrap_or(u64::MAX);
        LookupTime { now, memory_ms: at_ms }
    }

    /// Watches the folders whose changes concern `file`; returns true if all of them are watched.
    pub(crate) fn watch_folders(
        &self,
        docroot: &Docroot,
        file: &Path,
        stat_files: &StatFileLayout,
    ) -> bool {
        let folders = file.ancestors().skip(1);
        let mut is_watched = true;
        for folder in folders {
            is_watched &= self.folder_watcher.watch_folder(&docroot.path().join(folder));
        }
        if let StatFileLayout::Single(stat) = stat_files {
            is_watched &=
                stat.parent().is_some_and(|folder| self.folder_watcher.watch_folder(folder));
        }
        is_watched
    }

    /// Returns the cached responses for which `is_wanted` holds, the most used first.
    pub(crate) fn hottest(
        &self,
        is_wanted: impl Fn(&CachedResponse) -> bool,
    ) -> Vec<Arc<CachedResponse>> {
        let mut responses: Vec<Arc<CachedResponse>> = self
            .responses
            .iter()
            .map(|(_, ready)| ready)
            .filter(|ready| is_wanted(ready))
            .collect();
        responses.sort_by_key(|ready| std::cmp::Reverse(ready.hits()));
        responses
    }
}

/// Returns true if a farm's pages are not for everyone.
fn is_private_farm(farm: &FarmConfig) -> bool {
    farm.auth_checker.is_some() || farm.session_management.is_some()
}

impl DispatcherState {
    /// Returns true if responses may be stored at all: everything that determines them must be in their keys, and each
    /// must write all its log lines.
    pub(crate) fn can_cache_responses(&self) -> bool {
        let log = &self.runtime.log;
        let tells_steps = log.file.is_some() && log.level > LogLevel::Info;
        let hears_proxies =
            self.settings.uses_forwarded_host || !self.request_gate.trusted_proxies.is_empty();
        !self.has_shares && !hears_proxies && !tells_steps
    }

    /// Reads the time for look-ups in the memory, and reads changes by other programs.
    pub(crate) fn lookup_time(&self) -> LookupTime {
        self.response_memory.drain_changes();
        self.response_memory.lookup_time(self.runtime.clock.now())
    }

    /// Returns the cached response to a request, if it is what the regular path would return now.
    pub(crate) fn find_cached(
        &self,
        key: &ResponseKeyRef<'_>,
        moment: LookupTime,
    ) -> Option<Arc<CachedResponse>> {
        let ready = self.response_memory.responses.get(key)?;
        if ready.source.config_serial == self.config_serial && self.is_cached_valid(&ready, moment)
        {
            return Some(ready);
        }
        if let Some((key, ready)) = self.response_memory.responses.remove(key) {
            // Earlier uses count less.
            self.response_memory.evicted_hits.insert(key, ready.hits() / 2);
        }
        None
    }

    /// Returns the response whose head is used for a HEAD request in place of its own, which has no encodings: that of
    /// the GET, if it is cached too and from the same file.
    pub(crate) fn find_cached_get(
        &self,
        key: &ResponseKeyRef<'_>,
        ready: &CachedResponse,
        moment: LookupTime,
    ) -> Option<Arc<CachedResponse>> {
        let compresses =
            ready.source.farm.config.cache.as_ref().is_some_and(|cache| cache.compress);
        if !compresses || !key.flags.is_head() {
            return None;
        }
        let whole = self.find_cached(&key.as_get(), moment)?;
        let is_same = whole.source.file_stamp == ready.source.file_stamp
            && whole.source.file == ready.source.file;
        is_same.then_some(whole)
    }

    fn is_cached_valid(&self, ready: &CachedResponse, moment: LookupTime) -> bool {
        let changes = self.response_memory.change_count();
        let checked = *ready.last_check.lock();
        if checked.valid_until.is_some_and(|until| moment.now > until) {
            return false;
        }
        let is_recent = u128::from(moment.memory_ms.saturating_sub(checked.memory_ms))
            < FILE_CHECK_INTERVAL.as_millis();
        if checked.change_count == Some(changes) && is_recent {
            return true;
        }
        let compared = self.check_file(&ready.source, changes, moment);
        if let Some(checked) = compared {
            *ready.last_check.lock() = checked;
        }
        compared.is_some()
    }

    /// Checks the file and its freshness; returns `None` if it was replaced or is out of date.
    fn check_file(
        &self,
        source: &ResponseSource,
        changes: u64,
        moment: LookupTime,
    ) -> Option<LastFileCheck> {
        let farm = &source.farm;
        let (root, cache) = (farm.docroot.as_ref()?, farm.config.cache.as_ref()?);
        let docroot = root.docroot_for_reading();
        let is_watched =
            self.response_memory.watch_folders(&docroot, &source.file, &cache.stat_files);
        let Ok(CacheFileLookup::File(cached)) =
            docroot.look_up_file(&source.file, cache.enable_ttl)
        else {
            return None;
        };
        if cached.stamp != source.file_stamp {
            return None;
        }
        let facts =
            docroot.freshness_facts(cache, (&source.file, &source.path), &cached, moment.now);
        let is_fresh = assess_freshness(facts, cache.stale_limits()) == CacheFileFreshness::Valid;
        docroot.record_use(&source.file, moment.now);
        let (is_valid, until) = if source.is_stale {
            let until = cached.marked_at.map(|marked| marked + cache.max_stale);
            (!is_fresh && self.is_replacement_pending(farm, &source.file), until)
        } else {
            (is_fresh, valid_until(facts, cache.stale_limits()))
        };
        is_valid.then(|| LastFileCheck {
            change_count: is_watched.then_some(changes),
            memory_ms: moment.memory_ms,
            valid_until: until,
        })
    }

    /// Responds from memory, or on the regular path.
    pub(crate) async fn answer_from_memory_or_forward(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let peer = request.extensions().get::<ConnectionPeer>().copied();
        let peer = peer.filter(|_| self.can_cache_responses());
        let key = peer.and_then(|peer| response_key_of(&request, peer.is_tls));
        let client = peer.map(|peer| peer.addr.ip().to_canonical());
        let cached_response = key
            .as_ref()
            .zip(client)
            .and_then(|(key, client)| self.serve_cached(key, client, request.headers()));
        if let Some(response) = cached_response {
            return response;
        }
        let (response, content) = self.answer_with_framing_check(request).await.into_parts();
        if let (Some(key), Some(content)) = (key, content) {
            self.cache_response(key, content, &response);
        }
        response
    }

    /// Stores a response from a cache file if it is determined by its key alone.
    fn cache_response(
        &self,
        key: ResponseKey,
        content: CacheFileContent,
        response: &Response<ResponseBody>,
    ) {
        let source = &content.source;
        if !self.is_decided_by_response_key(&key, source) {
            return;
        }
        let is_head = key.as_key_ref().flags.is_head();
        // The length of a body that is read in pieces is only in the head.
        let announced = response.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
        let length = response.body().size_hint().exact().or(announced);
        let has_whole_body = is_head || length == Some(source.length);
        if response.status() != StatusCode::OK || !has_whole_body {
            return;
        }
        let moment = self.response_memory.lookup_time(self.runtime.clock.now());
        // Changes since the look-up are detected by another check.
        let changes = self.response_memory.change_count();
        let Some(checked) = self.check_file(source, changes, moment) else { return };
        let mut headers = response.headers().clone();
        headers.remove(header::DATE);
        if !headers.contains_key(header::AGE) {
            return;
        }
        let compresses =
            !is_head && source.farm.config.cache.as_ref().is_some_and(|cache| cache.compress);
        let log_text = self.hit_log_text(source, is_head);
        let head = (key.as_key_ref().flags, &headers);
        let ready = Arc::new(CachedResponse::new(content, head, log_text, checked));
        ready.set_hits(self.response_memory.evicted_hits.remove(&key).map_or(0, |(_, hits)| hits));
        self.response_memory.responses.insert(key.clone(), Arc::clone(&ready));
        if compresses
            && ready.is_encodable()
            && self.response_memory.encoding_queue.push(key, ready)
        {
            let memory = Arc::clone(&self.response_memory);
            tokio::task::spawn_blocking(move || memory.encode_queued());
        }
    }

    /// Returns the text for the dispatcher's own log about a cached response; empty if hits are not logged.
    fn hit_log_text(&self, source: &ResponseSource, is_head: bool) -> Box<str> {
        if !self.runtime.log.is_enabled(LogLevel::Info) {
            return Box::default();
        }
        let farm = &source.farm.config.name;
        let method = if is_head { "HEAD" } else { "GET" };
        escape_control_chars(&format!("\"{method} {}\" - hit [{farm}/-] 0ms", source.path)).into()
    }

    fn is_decided_by_response_key(&self, key: &ResponseKey, source: &ResponseSource) -> bool {
        let farm = &source.farm.config;
        if source.config_serial != self.config_serial
            || !self.can_cache_responses()
            || is_private_farm(farm)
        {
            return false;
        }
        if key.text_length() > MAX_KEY_BYTES {
            return false;
        }
        let key = key.as_key_ref();
        let Ok(authority) = std::str::from_utf8(key.host) else { return false };
        let (host, _port) = parse_host(authority);
        self.settings.routes.is_decided_by_target(&host)
    }

    /// Responds with a cached response on the path through hyper.
    pub(crate) fn serve_cached(
        &self,
        key: &ResponseKey,
        client: IpAddr,
        conditions: &HeaderMap,
    ) -> Option<Response<ResponseBody>> {
        let moment = self.lookup_time();
        let ready = self.find_cached(&key.as_key_ref(), moment)?;
        let is_head = key.as_key_ref().flags.is_head();
        let whole = self.find_cached_get(&key.as_key_ref(), &ready, moment);
        let variant = whole.as_ref().unwrap_or(&ready);
        let accepted = conditions.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes);
        let form = variant.choose_representation(accepted, Some(conditions), is_head);
        let conditional = variant.conditional_response(form, conditions, is_head, moment.now)?;
        let is_empty = is_head || conditional.length == 0;
        let body = if is_empty {
            empty_body()
        } else {
            form.body.read_part(conditional.start, conditional.length).ok()?
        };
        // Checked last, because the regular path checks again.
        self.request_gate.admit(client).ok()?;
        self.record_cached_hit(&ready, is_head, conditional.status);
        if let Some(warning) = &ready.source.warning {
            self.log(LogLevel::Warn, || warning.to_string());
        }
        self.log(LogLevel::Info, || ready.log_text.to_string());
        let mut response = Response::new(body);
        *response.status_mut() = conditional.status;
        *response.headers_mut() = conditional.headers;
        Some(response)
    }

    /// Counts a cached response that was sent with a status for a GET or a HEAD.
    pub(crate) fn record_cached_hit(
        &self,
        ready: &CachedResponse,
        is_head: bool,
        status: StatusCode,
    ) {
        ready.record_hit();
        let (counter, outcome) = match ready.source.is_stale {
            true => (DispatcherCounter::Stale, CacheOutcome::Stale),
            false => (DispatcherCounter::Hits, CacheOutcome::Hit),
        };
        self.metrics.increment(counter);
        self.metrics.increment(DispatcherCounter::MemoryHits);
        let tally = &ready.source.farm.farm_metrics;
        tally.count_request_with(&ready.prefix_counter, &ready.source.path, outcome);
        let method = if is_head { &Method::HEAD } else { &Method::GET };
        tally.request_histogram.record_request(method, status, Duration::ZERO);
    }
}
