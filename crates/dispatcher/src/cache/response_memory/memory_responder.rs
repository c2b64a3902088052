//! Answers from the response memory, and the storing of responses in it, according to one configuration.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body::Body as _;

use super::cached_response::{CachedResponse, FILE_CHECK_INTERVAL, LastFileCheck, ResponseSource};
use super::dispatcher_response::{CacheFileContent, DispatcherResponse};
use super::response_key::{ResponseKey, ResponseKeyRef};
use super::{LookupTime, MAX_KEY_BYTES, ResponseMemory};
use crate::cache::CacheFileLookup;
use crate::cache::freshness::{CacheFileFreshness, assess_freshness, valid_until};
use crate::cache::outcome::CacheOutcome;
use crate::config::compiled_settings::CompiledSettings;
use crate::config::front_settings::RequestGate;
use crate::config::{FarmConfig, parse_host};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::response_body::{ResponseBody, empty_body};
use crate::observe::log::{LogLevel, escape_control_chars};
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::upstream::request_coalescing::FetchCoalescer;

/// Returns true if a farm's pages are not for everyone.
fn is_private_farm(farm: &FarmConfig) -> bool {
    farm.auth_checker.is_some() || farm.session_management.is_some()
}

/// Returns true if responses may be stored with a configuration: everything that determines them must be in their keys,
/// and each must write all its log lines.
fn can_cache_responses(parts: &DispatcherParts) -> bool {
    let log = &parts.runtime.log;
    let is_log_verbose = log.file.is_some() && log.level > LogLevel::Info;
    let depends_on_proxy_headers =
        parts.settings.uses_forwarded_host || !parts.request_gate.trusted_proxies.is_empty();
    !parts.has_shares && !depends_on_proxy_headers && !is_log_verbose
}

/// Answers requests from the response memory and stores responses in it, according to one configuration.
#[derive(Debug)]
pub(crate) struct MemoryResponder {
    memory: Arc<ResponseMemory>,
    fetch_coalescer: Arc<FetchCoalescer>,
    request_gate: Arc<RequestGate>,
    settings: Arc<CompiledSettings>,
    runtime: Arc<DispatcherRuntime>,
    metrics: Arc<DispatcherMetrics>,
    config_serial: u64,
    is_enabled: bool,
}

impl MemoryResponder {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self {
            memory: Arc::clone(&parts.response_memory),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            request_gate: Arc::clone(&parts.request_gate),
            settings: Arc::clone(&parts.settings),
            runtime: Arc::clone(&parts.runtime),
            metrics: Arc::clone(&parts.metrics),
            config_serial: parts.config_serial,
            is_enabled: can_cache_responses(parts),
        }
    }

    /// Returns true if responses may be stored at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Reads the time for look-ups in the memory, and reads changes by other programs.
    pub(crate) fn lookup_time(&self) -> LookupTime {
        self.memory.drain_changes();
        self.memory.lookup_time(self.runtime.clock.now())
    }

    /// Returns the cached response to a request, if it is what the regular path would return now; removes it from the
    /// memory otherwise.
    pub(crate) fn find_cached(
        &self,
        key: &ResponseKeyRef<'_>,
        lookup_time: LookupTime,
    ) -> Option<Arc<CachedResponse>> {
        let response = self.memory.responses.get(key)?;
        if response.source.config_serial == self.config_serial
            && self.is_cached_valid(&response, lookup_time)
        {
            return Some(response);
        }
        if let Some((key, response)) = self.memory.responses.remove(key) {
            // Earlier uses count less.
            self.memory.evicted_hits.insert(key, response.hits() / 2);
        }
        None
    }

    /// Returns the response whose head is used for a HEAD request in place of its own, which has no encodings: that of
    /// the GET, if it is cached too and from the same file.
    pub(crate) fn find_cached_get(
        &self,
        key: &ResponseKeyRef<'_>,
        response: &CachedResponse,
        lookup_time: LookupTime,
    ) -> Option<Arc<CachedResponse>> {
        let compresses =
            response.source.farm.config.cache.as_ref().is_some_and(|cache| cache.compress);
        if !compresses || !key.flags.is_head() {
            return None;
        }
        let get_response = self.find_cached(&key.as_get(), lookup_time)?;
        let is_same_file = get_response.source.file_stamp == response.source.file_stamp
            && get_response.source.file == response.source.file;
        is_same_file.then_some(get_response)
    }

    fn is_cached_valid(&self, response: &CachedResponse, lookup_time: LookupTime) -> bool {
        let change_count = self.memory.change_count();
        let last_check = *response.last_check.lock();
        if last_check.valid_until.is_some_and(|until| lookup_time.now > until) {
            return false;
        }
        let is_recent = u128::from(lookup_time.memory_ms.saturating_sub(last_check.memory_ms))
            < FILE_CHECK_INTERVAL.as_millis();
        if last_check.change_count == Some(change_count) && is_recent {
            return true;
        }
        let new_check = self.check_file(&response.source, change_count, lookup_time);
        if let Some(new_check) = new_check {
            *response.last_check.lock() = new_check;
        }
        new_check.is_some()
    }

    /// Checks the file and its freshness; returns `None` if it was replaced or is out of date.
    ///
    /// Also watches the folders of the file for changes, and records a use of the file for the eviction from the
    /// document root.
    fn check_file(
        &self,
        source: &ResponseSource,
        change_count: u64,
        lookup_time: LookupTime,
    ) -> Option<LastFileCheck> {
        let farm = &source.farm;
        let (root, cache) = (farm.docroot.as_ref()?, farm.config.cache.as_ref()?);
        let docroot = root.docroot_for_reading();
        let is_watched = self.memory.watch_folders(&docroot, &source.file, &cache.stat_files);
        let Ok(CacheFileLookup::File(cached)) =
            docroot.look_up_file(&source.file, cache.enable_ttl)
        else {
            return None;
        };
        if cached.stamp != source.file_stamp {
            return None;
        }
        let facts =
            docroot.freshness_facts(cache, &source.file, &source.path, &cached, lookup_time.now);
        let is_fresh = assess_freshness(facts, cache.stale_limits()) == CacheFileFreshness::Valid;
        docroot.record_use(&source.file, lookup_time.now);
        let (is_valid, valid_until) = if source.is_stale {
            let valid_until = cached.marked_at.map(|marked| marked + cache.max_stale);
            (
                !is_fresh && farm.is_replacement_pending(&source.file, &self.fetch_coalescer),
                valid_until,
            )
        } else {
            (is_fresh, valid_until(facts, cache.stale_limits()))
        };
        is_valid.then(|| LastFileCheck {
            change_count: is_watched.then_some(change_count),
            memory_ms: lookup_time.memory_ms,
            valid_until,
        })
    }

    /// Stores a response to the request with a key if it may be stored, and returns it.
    pub(crate) fn store_response(
        &self,
        key: Option<ResponseKey>,
        response: DispatcherResponse,
    ) -> Response<ResponseBody> {
        let (response, content) = response.into_parts();
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
        let announced_length = response.headers().get(header::CONTENT_LENGTH);
        let announced_length =
            announced_length.and_then(|length| length.to_str().ok()?.parse().ok());
        let length = response.body().size_hint().exact().or(announced_length);
        let has_whole_body = is_head || length == Some(source.length);
        if response.status() != StatusCode::OK || !has_whole_body {
            return;
        }
        let lookup_time = self.memory.lookup_time(self.runtime.clock.now());
        // Changes since the look-up are detected by another check.
        let change_count = self.memory.change_count();
        let Some(file_check) = self.check_file(source, change_count, lookup_time) else { return };
        let mut headers = response.headers().clone();
        if !source.has_own_date {
            headers.remove(header::DATE);
        }
        if !headers.contains_key(header::AGE) {
            return;
        }
        let compresses =
            !is_head && source.farm.config.cache.as_ref().is_some_and(|cache| cache.compress);
        let log_text = self.hit_log_text(source, is_head);
        let head = (key.as_key_ref().flags, &headers);
        let cached_response = Arc::new(CachedResponse::new(content, head, log_text, file_check));
        cached_response.set_hits(self.memory.evicted_hits.remove(&key).map_or(0, |(_, hits)| hits));
        self.memory.responses.insert(key.clone(), Arc::clone(&cached_response));
        if compresses
            && cached_response.is_encodable()
            && self.memory.encoding_queue.push(key, cached_response)
        {
            let memory = Arc::clone(&self.memory);
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
        if source.config_serial != self.config_serial || !self.is_enabled || is_private_farm(farm) {
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
    pub(crate) fn serve_from_memory(
        &self,
        key: &ResponseKey,
        client: IpAddr,
        conditions: &HeaderMap,
    ) -> Option<Response<ResponseBody>> {
        let lookup_time = self.lookup_time();
        let cached_response = self.find_cached(&key.as_key_ref(), lookup_time)?;
        let is_head = key.as_key_ref().flags.is_head();
        let get_response = self.find_cached_get(&key.as_key_ref(), &cached_response, lookup_time);
        let variant = get_response.as_ref().unwrap_or(&cached_response);
        let accepted = conditions.get(header::ACCEPT_ENCODING).map(HeaderValue::as_bytes);
        let representation = variant.choose_representation(accepted, Some(conditions), is_head);
        let conditional =
            variant.conditional_response(representation, conditions, is_head, lookup_time.now)?;
        let is_empty = is_head || conditional.length == 0;
        let body = if is_empty {
            empty_body()
        } else {
            representation.body.read_part(conditional.start, conditional.length).ok()?
        };
        // Checked last, because the regular path checks again.
        self.request_gate.admit(client).ok()?;
        self.record_cached_hit(&cached_response, is_head, conditional.status);
        if let Some(warning) = &cached_response.source.warning {
            self.runtime.write_log(LogLevel::Warn, || warning.to_string());
        }
        self.runtime.write_log(LogLevel::Info, || cached_response.log_text.to_string());
        let mut response = Response::new(body);
        *response.status_mut() = conditional.status;
        *response.headers_mut() = conditional.headers;
        Some(response)
    }

    /// Counts a cached response that was sent with a status for a GET or a HEAD.
    pub(crate) fn record_cached_hit(
        &self,
        cached_response: &CachedResponse,
        is_head: bool,
        status: StatusCode,
    ) {
        cached_response.record_hit();
        let (counter, outcome) = match cached_response.source.is_stale {
            true => (DispatcherCounter::Stale, CacheOutcome::Stale),
            false => (DispatcherCounter::Hits, CacheOutcome::Hit),
        };
        self.metrics.increment(counter);
        self.metrics.increment(DispatcherCounter::MemoryHits);
        let farm_metrics = &cached_response.source.farm.farm_metrics;
        farm_metrics.count_request_with(
            &cached_response.prefix_counter,
            &cached_response.source.path,
            outcome,
        );
        let method = if is_head { &Method::HEAD } else { &Method::GET };
        farm_metrics.request_histogram.record_request(method, status, Duration::ZERO);
    }
}
