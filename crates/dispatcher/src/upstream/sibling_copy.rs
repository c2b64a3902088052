//! Requests for absent pages to other dispatchers of the same site before the render (`/x-siblings`), so that a new
//! machine does not cause every page to be rendered again.
//!
//! Input: a page that is not in the document root. Output: the copy of a sibling, with its headers and expiry, as if it
//! had been fetched here when the sibling fetched it.
//!
//! Invariants
//! * A copy is accepted only if it was fetched after the last flush that this dispatcher received for its document
//!   root, whatever that named: a sibling may receive a flush later, and its older copies are those that the flush
//!   concerns. The time is computed from the copy's age, which is measured after the request, so that clocks need not
//!   agree.
//! * A sibling responds with a fresh copy from its document root, or not at all: no render is asked, and there are no
//!   request loops.
//! * Only dispatchers that may flush a farm get a response, as it contains data that visitors never see (surrogate
//!   keys, includes).
//!
//! On failure: the render is asked, as if there were no siblings.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;

use crate::cache::freshness::{CacheFileFreshness, assess_freshness};
use crate::cache::response_memory::DispatcherResponse;
use crate::cache::{CacheFileLookup, StoredHeaders};
use crate::config::FarmConfig;
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::own_response::own_response;
use crate::edge::response_body::{MAX_BUFFERED_BODY_BYTES, full_body, read_file_at};
use crate::farm_state::FarmState;
use crate::flush::authorization::{FlushKeys, is_equal_constant_time, is_flush_allowed};
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::exchange::RequestExchange;
use crate::request::view::RequestView;
use crate::upstream::request_coalescing::FetchCoalescer;
use crate::upstream::{Upstream, UpstreamRequest, VisitorBody};

/// The header of a request from one dispatcher to another; the value is the farm's `/x-flushToken`, or any value
/// without one.
pub(crate) const SIBLING_HEADER: HeaderName = HeaderName::from_static("x-tympan-sibling");
/// The header file of the copy, in base64.
const STORED_HEADERS_HEADER: HeaderName = HeaderName::from_static("x-tympan-stored");
/// The age of the copy, in nanoseconds.
const COPY_AGE_HEADER: HeaderName = HeaderName::from_static("x-tympan-age");
/// The remaining lifetime of the copy, in nanoseconds; `-` if it has no expiry, and absent if expiry times are not
/// stored.
const COPY_LIFETIME_HEADER: HeaderName = HeaderName::from_static("x-tympan-left");

/// The maximum size of a header file to send, in bytes.
const MAX_STORED_HEADERS_BYTES: usize = 16 * 1024;
/// The timeout for connecting to a sibling and for its response: a slower one than from memory and disk is of no use.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const COPY_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A copy received from a sibling.
#[derive(Debug)]
pub(crate) struct SiblingCopy {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) fetch_time: SystemTime,
    pub(crate) expiry: Option<SystemTime>,
    pub(crate) sibling: String,
}

/// Returns the siblings of a farm, which are requested like renders, but once and with short timeouts.
pub(crate) fn farm_siblings(
    farm: &FarmConfig,
    runtime: &DispatcherRuntime,
    keep_alive: Option<Duration>,
) -> Option<Upstream> {
    if farm.siblings.is_empty() {
        return None;
    }
    let mut sibling_farm = farm.clone();
    sibling_farm.name = format!("{} (siblings)", farm.name);
    sibling_farm.renders = std::mem::take(&mut sibling_farm.siblings);
    for sibling in &mut sibling_farm.renders {
        sibling.connect_timeout =
            Some(sibling.connect_timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT));
        sibling.receive_timeout = Some(
            sibling.receive_timeout.unwrap_or(COPY_RESPONSE_TIMEOUT).min(COPY_RESPONSE_TIMEOUT),
        );
    }
    (sibling_farm.retry_rounds, sibling_farm.has_failover) = (1, false);
    // A failing sibling is skipped, so that no visitor waits for it.
    sibling_farm.health.has_circuit_breaker = true;
    Some(Upstream::new(&Arc::new(sibling_farm), runtime, keep_alive))
}

/// Returns the copy of a page from a sibling; `None` if no sibling has one.
pub(crate) async fn fetch_sibling_copy(
    farm: &FarmState,
    target: &str,
    host: Option<&HeaderValue>,
    sent: SystemTime,
) -> Option<SiblingCopy> {
    let (siblings, cache) = (farm.sibling_upstream.as_ref()?, farm.config.cache.as_ref()?);
    let mut headers = HeaderMap::new();
    // `Authorization` would make the response uncacheable.
    let token = cache.flush_token.as_deref().and_then(|token| HeaderValue::from_str(token).ok());
    headers.insert(SIBLING_HEADER, token.unwrap_or(HeaderValue::from_static("1")));
    if let Some(host) = host {
        headers.insert(header::HOST, host.clone());
    }
    let target = target.to_owned();
    let call = UpstreamRequest {
        method: Method::GET,
        target,
        headers,
        body: VisitorBody::empty(),
        sticky_render: None,
    };
    let response = siblings.send(&call).await.ok()?;
    if response.response.status() != StatusCode::OK {
        return None;
    }
    let (parts, mut body) = response.response.into_parts();
    let number = |name: &HeaderName| parts.headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let stored = STANDARD.decode(parts.headers.get(STORED_HEADERS_HEADER)?.as_bytes()).ok()?;
    let stored = StoredHeaders::parse(&stored)?;
    let expires = match parts.headers.get(COPY_LIFETIME_HEADER).map(HeaderValue::as_bytes) {
        _ if !cache.enable_ttl => None,
        // Its expiry is unknown, so it would never expire here.
        None => return None,
        Some(b"-") => None,
        Some(_) => Some(sent + Duration::from_nanos(number(&COPY_LIFETIME_HEADER)?)),
    };
    let fetched = sent.checked_sub(Duration::from_nanos(number(&COPY_AGE_HEADER)?))?;
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        bytes.extend_from_slice(&frame.ok()?.into_data().unwrap_or_default());
        if bytes.len() > MAX_BUFFERED_BODY_BYTES {
            return None;
        }
    }
    if bytes.is_empty() {
        return None;
    }
    let (body, sibling) = (Bytes::from(bytes), response.render);
    Some(SiblingCopy {
        headers: stored.headers,
        body,
        fetch_time: fetched,
        expiry: expires,
        sibling,
    })
}

/// Returns true if another dispatcher may get copies: by the token, or because it may flush.
fn may_request_copies(keys: &FlushKeys, farm: &FarmState, view: &RequestView) -> bool {
    let token = farm.config.cache.as_ref().and_then(|cache| cache.flush_token.as_deref());
    let shown_token = view.headers.get(SIBLING_HEADER).map(HeaderValue::as_bytes);
    let has_token = token
        .zip(shown_token)
        .is_some_and(|(token, shown_token)| is_equal_constant_time(token.as_bytes(), shown_token));
    has_token || is_flush_allowed(keys, &farm.config, view)
}

/// Serves copies of cached pages to other dispatchers.
#[derive(Debug)]
pub(crate) struct SiblingCopyServer {
    runtime: Arc<DispatcherRuntime>,
    fetch_coalescer: Arc<FetchCoalescer>,
    metrics: Arc<DispatcherMetrics>,
}

impl SiblingCopyServer {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self {
            runtime: Arc::clone(&parts.runtime),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            metrics: Arc::clone(&parts.metrics),
        }
    }

    /// Responds to another dispatcher with a copy that is fresh here.
    pub(crate) fn serve_sibling_copy(
        &self,
        exchange: &mut RequestExchange<'_>,
        file: &std::path::Path,
    ) -> DispatcherResponse {
        exchange.cache_label = "sibling";
        if !may_request_copies(&self.runtime.flush_keys, exchange.farm, exchange.view) {
            return own_response(StatusCode::FORBIDDEN);
        }
        let Some(response) = self.sibling_copy_response(exchange, file) else {
            return own_response(StatusCode::NOT_FOUND);
        };
        self.metrics.increment(DispatcherCounter::SiblingCopiesServed);
        response
    }

    fn sibling_copy_response(
        &self,
        exchange: &RequestExchange<'_>,
        file: &std::path::Path,
    ) -> Option<DispatcherResponse> {
        let farm = &exchange.farm.config;
        let (cache, root) = (farm.cache.as_ref()?, exchange.farm.docroot.as_ref()?);
        let is_private = farm.auth_checker.is_some() || farm.session_management.is_some();
        // Another process handles the flushes now.
        if is_private || self.fetch_coalescer.has_stopped_storing() {
            return None;
        }
        let docroot = root.docroot_for_reading();
        let Ok(CacheFileLookup::File(copy)) = docroot.look_up_file(file, cache.enable_ttl) else {
            return None;
        };
        let now = self.runtime.clock.now();
        let path = exchange.view.path.as_str();
        let facts = docroot.freshness_facts(cache, file, path, &copy, now);
        if assess_freshness(facts, cache.stale_limits()) != CacheFileFreshness::Valid
            || copy.length > MAX_BUFFERED_BODY_BYTES as u64
            // The request does not tell the headers of its visitor.
            || copy.separates_requests(&farm.client_headers)
        {
            return None;
        }
        // With a clock that was set back, its age is unknown.
        let age = now.duration_since(copy.fetched_at).ok()?;
        let headers = copy.headers.as_ref().map(|stored| stored.headers.clone());
        let stored =
            StoredHeaders { fetched_at: copy.fetched_at, headers: headers.unwrap_or_default() };
        let text = stored.to_text();
        if text.len() > MAX_STORED_HEADERS_BYTES {
            return None;
        }
        let body = read_file_at(&copy.body, 0, copy.length).ok()?;
        let nanoseconds =
            |time: Duration| HeaderValue::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let mut response = Response::new(full_body(body));
        let headers = response.headers_mut();
        headers.insert(STORED_HEADERS_HEADER, HeaderValue::from_str(&STANDARD.encode(text)).ok()?);
        headers.insert(COPY_AGE_HEADER, nanoseconds(age));
        if cache.enable_ttl {
            let left = match copy.expires_at {
                Some(expires) => nanoseconds(expires.duration_since(now).ok()?),
                None => HeaderValue::from_static("-"),
            };
            headers.insert(COPY_LIFETIME_HEADER, left);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Some(response.into())
    }
}
