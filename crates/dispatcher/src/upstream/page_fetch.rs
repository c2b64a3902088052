//! Fetching of a page from a render into the cache, once for all visitors that wait for it.
//!
//! Invariants
//! * A stored file carries the time before the request was sent, so that every later flush counts.
//! * Waiting visitors get the stored headers, and nothing meant only for the visitor who caused the fetch (cookies).
//! * A page carries the request headers that its `Vary` names, as they were sent to the render, and visitors with others
//!   do not get it.
//! * An incomplete response is never stored. In a farm with `/x-http` its rest is requested first, where a strong tag
//!   guarantees that both parts are of the same bytes.
//! * A 304 renews a copy only if it is still the file that was revalidated; otherwise the whole page is requested.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{oneshot, watch};
use tympan_web::body_limit::MinReadRate;
use tympan_web::flush_message::SEQUENCE_HEADER;

use crate::cache::cacheability::check_response_cacheable;
use crate::cache::file_response::{
    INTERNAL_HEADERS, is_same_media_type, media_type_of_name, remove_internal_headers,
    with_declared_charset,
};
use crate::cache::negative_cache::{self, CachedError};
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::response_memory::ResponseMemory;
use crate::cache::storage_terms::{
    ReceivedResponse, STORED_TERMS_HEADER, StorageTerms, StoredTerms,
};
use crate::cache::surrogate_key::{STORED_KEYS_HEADER, SURROGATE_KEY_HEADER, surrogate_keys};
use crate::cache::ttl::{STORED_LENIENCE_HEADER, StaleLenience, response_expiry};
use crate::cache::vary::{STORED_VARY_HEADER, VaryRule, VarySelection, sort_languages};
use crate::cache::{
    CacheFileLookup, CacheFileStamp, DocrootState, NewCacheFile, OpenCacheFile, TemporaryCacheFile,
};
use crate::config::{FarmConfig, RevalidateMode};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::response_body::{
    FetchedBody, FetchedPage, FileWriteProgress, GrowingFile, MAX_BUFFERED_BODY_BYTES,
    ResponseBody, boxed_body, full_body, read_file_at,
};
use crate::farm_state::FarmState;
use crate::flush::visit_address::VisitAddress;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::upstream::header_forwarding::{INCLUDE_HEADER, clean_response_headers};
use crate::upstream::request_coalescing::{FetchOutcome, FetchTicket};
use crate::upstream::revalidation::{RevalidationRequest, is_strong_etag, store_validators};
use crate::upstream::shadow::{ShadowVerdict, ShadowedPage};
use crate::upstream::sibling_copy;
use crate::upstream::{RenderBody, UpstreamFailure, UpstreamRequest, UpstreamResponse};

/// The description of a fetch.
#[derive(Debug)]
pub(crate) struct PageFetch {
    pub(crate) call: UpstreamRequest,
    /// The file below the document root.
    pub(crate) file: PathBuf,
    /// The page's path, as rules see it.
    pub(crate) path: String,
    /// The host of the request.
    pub(crate) host: Option<HeaderValue>,
    /// The address at which visitors request it, if it belongs to the farm.
    pub(crate) visit: Option<VisitAddress>,
    /// The sequence number that the render's content must have reached.
    pub(crate) min_sequence: Option<u64>,
    /// The value of the header `X-Cache-Info` if the page is stored.
    pub(crate) cache_info: &'static str,
}

/// The result for the request that caused the fetch.
pub(crate) enum FetchResult {
    /// A page that all waiting visitors get.
    Page(Arc<FetchedPage>),
    /// A response that is not stored.
    Uncached(Response<ResponseBody>, String, NotCacheableReason),
    /// The render's content is older than a flush.
    Outdated,
    /// The fetch failed.
    Failed(UpstreamFailure),
}

/// Returns true if a render's response is older than a flush.
pub(crate) fn is_outdated_response(min_sequence: Option<u64>, headers: &HeaderMap) -> bool {
    let reached = headers
        .get(SEQUENCE_HEADER)
        .and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    min_sequence.zip(reached).is_some_and(|(min_sequence, reached)| reached < min_sequence)
}

/// Fetches pages from renders and stores them.
#[derive(Debug)]
pub(crate) struct PageFetcher {
    runtime: Arc<DispatcherRuntime>,
    metrics: Arc<DispatcherMetrics>,
    response_memory: Arc<ResponseMemory>,
    /// The minimum rate of responses that are to be stored.
    min_render_rate: Option<MinReadRate>,
}

impl PageFetcher {
    pub(crate) fn new(parts: &DispatcherParts) -> Self {
        Self {
            runtime: Arc::clone(&parts.runtime),
            metrics: Arc::clone(&parts.metrics),
            response_memory: Arc::clone(&parts.response_memory),
            min_render_rate: parts.settings.min_render_rate,
        }
    }

    /// Starts the fetch in its own task, which continues if no visitor waits any more.
    pub(crate) fn spawn_fetch(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        ticket: FetchTicket,
        fetch: PageFetch,
    ) -> oneshot::Receiver<FetchResult> {
        let (first, wait) = oneshot::channel();
        let lead = FetchTask {
            fetcher: Arc::clone(self),
            farm: Arc::clone(farm),
            fetch,
            result_sender: Some(first),
            resumed_at: AtomicU64::new(0),
        };
        tokio::spawn(lead.run_fetch(ticket));
        wait
    }

    /// Stores a response that was received already, and returns the result for its visitor.
    pub(crate) fn spawn_store(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        (ticket, fetch): (FetchTicket, PageFetch),
        (response, sent): (UpstreamResponse, (SystemTime, u64)),
    ) -> oneshot::Receiver<FetchResult> {
        let (first, wait) = oneshot::channel();
        let task = FetchTask {
            fetcher: Arc::clone(self),
            farm: Arc::clone(farm),
            fetch,
            result_sender: Some(first),
            resumed_at: AtomicU64::new(0),
        };
        tokio::spawn(task.receive_response(ticket, response, sent));
        wait
    }

    /// Requests a page from the shadow of a farm, if it is in the sample.
    fn send_to_shadow(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        fetched: impl FnOnce() -> ShadowedPage,
    ) {
        let Some(shadow) = farm.shadow.as_ref().filter(|shadow| shadow.is_next_sampled()) else {
            return;
        };
        let Some(permit) = shadow.try_acquire_permit() else {
            return self.metrics.increment(DispatcherCounter::ShadowsSkipped);
        };
        let (fetcher, farm, fetched) = (Arc::clone(self), Arc::clone(farm), fetched());
        tokio::spawn(async move {
            let _place = permit;
            let target = fetched.target.clone();
            let Some(shadow) = &farm.shadow else { return };
            fetcher.metrics.increment(match shadow.compare_response(fetched).await {
                ShadowVerdict::Identical => DispatcherCounter::ShadowMatches,
                ShadowVerdict::Failed => DispatcherCounter::ShadowFailures,
                ShadowVerdict::Different(how) => {
                    tracing::info!(farm = %farm.config.name, path = target, reason = how, "shadow response \
                        differs");
                    fetcher.runtime.write_log(LogLevel::Warn, || format!("Shadow differs for [{target}]: {how}"));
                    DispatcherCounter::ShadowDifferences
                }
            });
        });
    }
}

struct FetchTask {
    fetcher: Arc<PageFetcher>,
    farm: Arc<FarmState>,
    fetch: PageFetch,
    result_sender: Option<oneshot::Sender<FetchResult>>,
    /// The number of bytes after which the rest was last requested; 0 if it was not.
    resumed_at: AtomicU64,
}

/// The head of a storable response.
struct StorableHead {
    headers: HeaderMap,
    fetched_at: SystemTime,
    render: String,
    length: Option<u64>,
}

impl FetchTask {
    async fn run_fetch(mut self, ticket: FetchTicket) {
        let Some(revalidation) = self.revalidation_request() else {
            if let Some(ticket) = self.fetch_from_sibling(ticket).await {
                self.fetch_whole_page(ticket).await;
            }
            return;
        };
        let unconditional_headers = self.fetch.call.headers.clone();
        self.fetch.call.headers.extend(revalidation.conditions.clone());
        let epoch = self.fetch_epoch();
        let fetched = self.fetcher.runtime.clock.tick();
        let response = self.farm.upstream.send(&self.fetch.call).await;
        self.fetch.call.headers = unconditional_headers;
        let ticket = match response {
            Ok(response) if response.response.status() == StatusCode::NOT_MODIFIED => {
                match self.renew_copy(ticket, &revalidation, response, fetched).await {
                    Some(ticket) => ticket,
                    None => return,
                }
            }
            response => return self.handle_response(ticket, response, (fetched, epoch)).await,
        };
        // It is only known that the copy is out of date.
        self.fetch_whole_page(ticket).await;
    }

    /// Requests the whole page.
    async fn fetch_whole_page(self, ticket: FetchTicket) {
        let epoch = self.fetch_epoch();
        let fetched = self.fetcher.runtime.clock.tick();
        let response = self.farm.upstream.send(&self.fetch.call).await;
        self.handle_response(ticket, response, (fetched, epoch)).await;
    }

    async fn handle_response(
        mut self,
        ticket: FetchTicket,
        response: Result<UpstreamResponse, UpstreamFailure>,
        sent: (SystemTime, u64),
    ) {
        match response {
            Ok(response) => self.receive_response(ticket, response, sent).await,
            Err(failure) => {
                self.fetcher.metrics.increment(DispatcherCounter::RenderFailures);
                ticket.finish_fetch(FetchOutcome::Failed(failure));
                self.send_result(FetchResult::Failed(failure));
            }
        }
    }

    /// Fetches an absent page from a sibling; returns the ticket if the render must be asked.
    async fn fetch_from_sibling(&mut self, ticket: FetchTicket) -> Option<FetchTicket> {
        let farm = Arc::clone(&self.farm);
        let is_private =
            farm.config.auth_checker.is_some() || farm.config.session_management.is_some();
        // A flushed page is requested from the render: siblings may not have received the flush yet.
        if farm.sibling_upstream.is_none() || is_private || self.fetch.min_sequence.is_some() {
            return Some(ticket);
        }
        let Some(root) = &farm.docroot else { return Some(ticket) };
        if root.docroot_for_reading().exists(&self.fetch.file) {
            return Some(ticket);
        }
        self.fetcher.metrics.increment(DispatcherCounter::SiblingQueries);
        let sent = self.fetcher.runtime.clock.tick();
        let (target, host) = (&self.fetch.call.target, self.fetch.host.as_ref());
        let Some(copy) = sibling_copy::fetch_sibling_copy(&farm, target, host, sent).await else {
            return Some(ticket);
        };
        // The sibling cannot know the headers of this visitor.
        let is_for_others = VarySelection::from_stored(&copy.headers)
            .is_some_and(|own| own.has_names() || !own.matches(&self.selecting_headers()));
        if is_for_others || is_flushed_since(root, &farm.config, &self.fetch.file, copy.fetch_time)
        {
            return Some(ticket);
        }
        let mut headers = copy.headers.clone();
        remove_internal_headers(&mut headers);
        headers.entry(header::CONTENT_TYPE).or_insert_with(|| media_type_of_name(&self.fetch.file));
        let (fetched, length) = (copy.fetch_time, Some(copy.body.len() as u64));
        let head =
            StorableHead { headers, fetched_at: fetched, render: copy.sibling.clone(), length };
        let new_file = NewCacheFile {
            destination: self.fetch.file.clone(),
            fetched_at: fetched,
            headers: copy.headers,
            expires_at: copy.expiry,
            mode: farm.config.cache.as_ref().map_or(0o755, |cache| cache.mode),
        };
        let (body, storing) = (copy.body.clone(), Arc::clone(&farm));
        let work = move || {
            let stored = ticket.store_unless_flushed(|| {
                let root = storing.docroot.as_ref().ok_or(NotCacheableReason::NoDocroot)?;
                if is_flushed_since(root, &storing.config, &new_file.destination, fetched) {
                    return Err(NotCacheableReason::Flushed);
                }
                let mut temporary = begin_temporary_file(&storing)?;
                temporary.write(&body).map_err(unwritable_reason)?;
                commit_new_file(&storing, &new_file, temporary)
            });
            (ticket, stored)
        };
        let ticket = match tokio::task::spawn_blocking(work).await {
            Ok((ticket, Ok(()))) => ticket,
            Ok((ticket, Err(_))) => return Some(ticket),
            Err(_panicked) => {
                self.send_result(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
                return None;
            }
        };
        self.record_store_result(Ok(()), copy.body.len() as u64);
        self.fetcher.metrics.increment(DispatcherCounter::SiblingHits);
        let page = self.new_page(&head, FetchedBody::Buffered(copy.body), None);
        ticket.finish_fetch(FetchOutcome::Shared(Arc::clone(&page)));
        self.send_result(FetchResult::Page(page));
        None
    }

    /// Returns the flush epoch at the time the request is about to be sent.
    fn fetch_epoch(&self) -> u64 {
        self.farm.docroot.as_ref().map_or(0, |root| root.negative_cache.flush_epoch())
    }

    /// Returns the revalidation request for the copy to be replaced; `None` if it cannot be revalidated.
    fn revalidation_request(&self) -> Option<RevalidationRequest> {
        let farm = &self.farm.config;
        let cache = farm.cache.as_ref()?;
        let is_private = farm.auth_checker.is_some() || farm.session_management.is_some();
        if cache.revalidate == RevalidateMode::Never || is_private {
            return None;
        }
        let docroot = self.farm.docroot.as_ref()?.docroot_for_reading();
        let Ok(CacheFileLookup::File(copy)) =
            docroot.look_up_file(&self.fetch.file, cache.enable_ttl)
        else {
            return None;
        };
        // A 304 by date says nothing about the copy of a visitor with other headers.
        if copy.selection().is_some_and(|own| !own.matches(&self.selecting_headers())) {
            return None;
        }
        let now = self.fetcher.runtime.clock.now();
        let facts = docroot.freshness_facts(cache, &self.fetch.file, &self.fetch.path, &copy, now);
        RevalidationRequest::for_copy(&copy, facts, cache.stale_limits(), cache.revalidate)
    }

    /// Renews the copy after a 304; returns the ticket if the whole page must be requested.
    async fn renew_copy(
        &mut self,
        ticket: FetchTicket,
        revalidation: &RevalidationRequest,
        response: UpstreamResponse,
        fetched: SystemTime,
    ) -> Option<FetchTicket> {
        if is_outdated_response(self.fetch.min_sequence, response.response.headers()) {
            ticket.finish_fetch(FetchOutcome::Retry);
            self.send_result(FetchResult::Outdated);
            return None;
        }
        let Some(mut headers) = revalidation.renewed_headers(response.response.headers()) else {
            return Some(ticket);
        };
        clean_response_headers(&mut headers);
        if self.check_cacheable(StatusCode::OK, &headers, fetched).is_err() {
            return Some(ticket);
        }
        let head =
            StorableHead { headers, fetched_at: fetched, render: response.render, length: None };
        let new_file = self.new_cache_file(&head);
        if revalidation.loses_expiry(new_file.expires_at) {
            return Some(ticket);
        }
        let (farm, stamp) = (Arc::clone(&self.farm), revalidation.file_stamp);
        let work = move || {
            let renewed =
                rewrite_copy(&farm, &new_file.destination, stamp).and_then(|(temporary, body)| {
                    ticket.store_unless_flushed(|| {
                        // Removal of the file by other means than flushes counts as well.
                        find_unchanged_copy(&farm, &new_file.destination, stamp)?;
                        commit_new_file(&farm, &new_file, temporary)
                    })?;
                    Ok(body)
                });
            (ticket, renewed)
        };
        let (ticket, body) = match tokio::task::spawn_blocking(work).await {
            Ok((ticket, Ok(body))) => (ticket, body),
            Ok((ticket, Err(_))) => return Some(ticket),
            Err(_panicked) => {
                self.send_result(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
                return None;
            }
        };
        self.fetcher.response_memory.record_change();
        self.fetcher.metrics.increment(DispatcherCounter::Revalidated);
        self.fetcher.runtime.write_log(LogLevel::Debug, || {
            format!("Cache file renewed: {}", self.farm.absolute_path(&self.fetch.file).display())
        });
        let page = self.new_page(&head, body, None);
        ticket.finish_fetch(self.outcome_for_others(&head, &page));
        self.send_result(FetchResult::Page(page));
        None
    }

    async fn receive_response(
        mut self,
        ticket: FetchTicket,
        mut upstream_response: UpstreamResponse,
        (fetched, epoch): (SystemTime, u64),
    ) {
        if is_outdated_response(self.fetch.min_sequence, upstream_response.response.headers()) {
            // The response is for one visitor, so waiting visitors send their own requests.
            ticket.finish_fetch(FetchOutcome::Retry);
            return self.send_result(FetchResult::Outdated);
        }
        let (mut parts, mut body) = upstream_response.response.into_parts();
        body.decode_content_codings(&mut parts.headers);
        upstream_response.response = Response::from_parts(parts, body);
        let status = upstream_response.response.status();
        if self.is_http_cache() && status != StatusCode::OK {
            return self.receive_http_status(ticket, upstream_response, (fetched, epoch)).await;
        }
        let checked = self.check_cacheable(status, upstream_response.response.headers(), fetched);
        if let Err(reason) = checked {
            if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                self.remove_file_of_gone_page(&ticket);
            }
            if let Some(time) = self.negative_ttl(status, upstream_response.response.headers()) {
                return self
                    .receive_negative(ticket, upstream_response, fetched, epoch, time)
                    .await;
            }
            ticket.finish_fetch(FetchOutcome::Unshared(reason));
            clean_response_headers(upstream_response.response.headers_mut());
            let response = upstream_response.response.map(boxed_body);
            return self.send_result(FetchResult::Uncached(
                response,
                upstream_response.render,
                reason,
            ));
        }
        let length = upstream_response.response.body().size_hint().exact();
        let (mut parts, mut body) = upstream_response.response.into_parts();
        // Other visitors wait for it, and an endless stream would never be complete.
        body.enforce_min_rate(self.fetcher.min_render_rate);
        clean_response_headers(&mut parts.headers);
        let head = StorableHead {
            headers: parts.headers,
            fetched_at: fetched,
            render: upstream_response.render,
            length,
        };
        self.collect_body(ticket, head, body).await;
    }

    /// Returns the headers of the request as they select stored responses.
    fn selecting_headers(&self) -> Cow<'_, HeaderMap> {
        let headers = &self.fetch.call.headers;
        if !self.is_http_cache() || !headers.contains_key(header::ACCEPT_LANGUAGE) {
            return Cow::Borrowed(headers);
        }
        let mut headers = headers.clone();
        sort_languages(&mut headers);
        Cow::Owned(headers)
    }

    /// Returns the requests for which a response is; `None` for everyone.
    fn selection_of(&self, response_headers: &HeaderMap) -> Option<VarySelection> {
        let request_headers = self.selecting_headers();
        match self.is_http_cache() {
            true => Some(VarySelection::of_http_response(response_headers, &request_headers)),
            false => VarySelection::of_response(response_headers, &request_headers),
        }
    }

    fn is_http_cache(&self) -> bool {
        self.farm.config.cache.as_ref().is_some_and(|cache| cache.is_http_cache)
    }

    /// Returns the terms of HTTP on which a response may be stored.
    fn storage_terms(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        fetch_time: SystemTime,
    ) -> Result<StorageTerms, NotCacheableReason> {
        let cache = self.farm.config.cache.as_ref();
        StorageTerms::of_response(&ReceivedResponse {
            status,
            headers,
            fetch_time,
            is_authorized: self.fetch.call.headers.contains_key(header::AUTHORIZATION),
            default_lifetime: cache.map(|cache| cache.default_lifetime).unwrap_or_default(),
        })
    }

    /// Checks if a response may be stored, by the rules of the farm.
    fn check_cacheable(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        fetch_time: SystemTime,
    ) -> Result<(), NotCacheableReason> {
        if self.is_http_cache() {
            return self.storage_terms(status, headers, fetch_time).map(drop);
        }
        check_response_cacheable(status, headers)
    }

    /// Stores a response with another status than 200 in memory, as HTTP allows, or passes it on.
    async fn receive_http_status(
        mut self,
        ticket: FetchTicket,
        mut upstream_response: UpstreamResponse,
        (fetched, epoch): (SystemTime, u64),
    ) {
        let status = upstream_response.response.status();
        let headers = upstream_response.response.headers();
        let varies =
            VaryRule::parse(headers).may_separate_requests(&self.farm.config.client_headers);
        let terms = match varies {
            true => Err(NotCacheableReason::Vary),
            false => self.storage_terms(status, headers, fetched),
        };
        // A copy stays for `stale-if-error`, and for a range or condition that failed.
        let replaces_copy = matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
            || terms.is_ok() && !status.is_server_error();
        if replaces_copy {
            self.remove_file_of_gone_page(&ticket);
        }
        match terms {
            Ok(terms) if terms.expiry > fetched => {
                let time = terms.expiry.duration_since(fetched).unwrap_or_default();
                self.receive_negative(ticket, upstream_response, fetched, epoch, time).await;
            }
            terms => {
                let configured = self.negative_ttl(status, upstream_response.response.headers());
                if let (Err(NotCacheableReason::NoLifetime), Some(time)) = (&terms, configured) {
                    return self
                        .receive_negative(ticket, upstream_response, fetched, epoch, time)
                        .await;
                }
                let reason = terms.err().unwrap_or(NotCacheableReason::NoLifetime);
                ticket.finish_fetch(FetchOutcome::Unshared(reason));
                clean_response_headers(upstream_response.response.headers_mut());
                let response = upstream_response.response.map(boxed_body);
                let render = upstream_response.render;
                self.send_result(FetchResult::Uncached(response, render, reason));
            }
        }
    }

    /// Returns the time for which an error is cached: as configured in the farm, and no longer than the render allows.
    fn negative_ttl(&self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        let time = negative_cache::negative_ttl(&self.farm.config, status)?;
        if VaryRule::parse(headers).may_separate_requests(&self.farm.config.client_headers) {
            return None;
        }
        let is_for_all = check_response_cacheable(StatusCode::OK, headers)
            .map_or_else(|reason| reason == NotCacheableReason::EmptyBody, |()| true);
        is_for_all.then_some(time)
    }

    /// Reads an error to its end and caches it.
    async fn receive_negative(
        mut self,
        ticket: FetchTicket,
        upstream_response: UpstreamResponse,
        fetched: SystemTime,
        epoch: u64,
        time: Duration,
    ) {
        let render = upstream_response.render;
        let (mut parts, mut body) = upstream_response.response.into_parts();
        body.enforce_min_rate(self.fetcher.min_render_rate);
        clean_response_headers(&mut parts.headers);
        let mut bytes = BytesMut::new();
        let is_whole = loop {
            match body.frame().await {
                None => break true,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        bytes.extend_from_slice(data);
                    }
                }
                Some(Err(_broken)) => {
                    self.fetcher.metrics.increment(DispatcherCounter::RenderFailures);
                    ticket.finish_fetch(FetchOutcome::Failed(UpstreamFailure::ConnectionBroken));
                    return self
                        .send_result(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
                }
            }
            if bytes.len() > negative_cache::MAX_ERROR_BODY_BYTES {
                break false;
            }
        };
        let bytes = bytes.freeze();
        let mut response = if is_whole {
            self.store_negative(&ticket, &parts, bytes.clone(), fetched, epoch, time);
            let mut response = Response::new(full_body(bytes));
            *response.headers_mut() = parts.headers;
            response
        } else {
            let headers = parts.headers;
            let head =
                StorableHead { headers, fetched_at: fetched, render: render.clone(), length: None };
            streamed_response(&head, bytes, body)
        };
        *response.status_mut() = parts.status;
        ticket.finish_fetch(FetchOutcome::Unshared(NotCacheableReason::Status));
        self.send_result(FetchResult::Uncached(response, render, NotCacheableReason::Status));
    }

    fn store_negative(
        &self,
        ticket: &FetchTicket,
        parts: &http::response::Parts,
        body: Bytes,
        fetched: SystemTime,
        epoch: u64,
        time: Duration,
    ) {
        let Some(root) = &self.farm.docroot else { return };
        let mut headers = self.stored_headers(&parts.headers, (parts.status, fetched));
        let terms = StoredTerms::from_stored(&headers);
        let selection = VarySelection::from_stored(&headers);
        remove_internal_headers(&mut headers);
        // The file name gives the type of the page, not of the error in its place.
        headers.remove(header::CONTENT_TYPE);
        if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, kind.clone());
        }
        let limit = fetched + time;
        let stated = response_expiry(&parts.headers, fetched).filter(|_| !self.is_http_cache());
        let until = stated.map_or(limit, |expires| expires.min(limit));
        let status = parts.status;
        let negative = CachedError {
            status,
            headers,
            body,
            fetch_time: fetched,
            initial_age: terms.map(|terms| terms.initial_age).unwrap_or_default(),
            expiry: until,
            flush_epoch: epoch,
            selection,
        };
        let note = || {
            root.negative_cache.insert(&self.fetch.file, negative);
            Ok(())
        };
        // A page flushed during the fetch may have changed, so its error is not cached.
        ticket.store_unless_flushed(note).ok();
    }

    /// Removes the file of a page that no longer exists.
    fn remove_file_of_gone_page(&self, ticket: &FetchTicket) {
        let Some(docroot) = self.farm.docroot.as_ref().map(|root| root.docroot_for_reading())
        else {
            return;
        };
        let removal = || {
            docroot
                .remove_cache_file(&self.fetch.file)
                .map_err(|_reported| NotCacheableReason::Unwritable)
        };
        // After a flush, that flush handles the file.
        ticket.store_unless_flushed(removal).ok();
        self.fetcher.response_memory.record_change();
    }

    /// Reads a body into memory, and above a size limit into a file.
    async fn collect_body(mut self, ticket: FetchTicket, head: StorableHead, mut body: RenderBody) {
        let mut bytes = BytesMut::new();
        loop {
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        bytes.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => {
                    self.fetcher.metrics.increment(DispatcherCounter::RenderFailures);
                    tracing::debug!(farm = %self.farm.config.name, reason = %error, "response of a render \
                        incomplete");
                    if let Some(rest) = self.request_rest(&head, bytes.len() as u64).await {
                        body = rest;
                        continue;
                    }
                    // Nothing was sent to visitors yet, so an error is better than half a page.
                    ticket.finish_fetch(FetchOutcome::Failed(UpstreamFailure::ConnectionBroken));
                    return self
                        .send_result(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
                }
            }
            if bytes.len() > MAX_BUFFERED_BODY_BYTES {
                return self.spill_to_file(ticket, head, bytes.freeze(), body).await;
            }
        }
        let bytes = bytes.freeze();
        self.fetcher.send_to_shadow(&self.farm, || ShadowedPage {
            target: self.fetch.call.target.clone(),
            request_headers: self.fetch.call.headers.clone(),
            content_type: head.headers.get(header::CONTENT_TYPE).cloned(),
            body: bytes.clone(),
        });
        let (ticket, stored) = self.store_body(ticket, &head, bytes.clone()).await;
        if stored.is_ok() {
            self.warn_of_ignored_headers(&head);
        }
        let page = self.new_page(&head, FetchedBody::Buffered(bytes), stored.err());
        if let Some(ticket) = ticket {
            ticket.finish_fetch(self.outcome_for_others(&head, &page));
        }
        self.send_result(FetchResult::Page(page));
    }

    /// Returns the outcome of a fetch for waiting visitors: in HTTP, a response without a lifetime is for its own visitor
    /// until it is validated.
    fn outcome_for_others(&self, head: &StorableHead, page: &Arc<FetchedPage>) -> FetchOutcome {
        let is_fresh = !self.is_http_cache()
            || self
                .storage_terms(StatusCode::OK, &head.headers, head.fetched_at)
                .is_ok_and(|terms| terms.expiry > head.fetched_at);
        match is_fresh {
            true => FetchOutcome::Shared(Arc::clone(page)),
            false => FetchOutcome::Unshared(NotCacheableReason::NoLifetime),
        }
    }

    /// Requests the rest of a response that broke off, and returns it if it is of the same bytes, as a strong tag
    /// guarantees (RFC 9110, section 15.3.7.3). Each request must have brought bytes before the next one is sent.
    async fn request_rest(&self, head: &StorableHead, received_bytes: u64) -> Option<RenderBody> {
        let tag = head.headers.get(header::ETAG).filter(|tag| is_strong_etag(tag))?;
        let last = self.resumed_at.fetch_max(received_bytes, Ordering::Relaxed);
        if !self.is_http_cache() || received_bytes <= last {
            return None;
        }
        let mut headers = self.fetch.call.headers.clone();
        headers.insert(header::IF_RANGE, tag.clone());
        headers.insert(
            header::RANGE,
            HeaderValue::from_str(&format!("bytes={received_bytes}-")).ok()?,
        );
        let call = UpstreamRequest {
            method: self.fetch.call.method.clone(),
            headers,
            sticky_render: Some(head.render.clone()),
            ..UpstreamRequest::get(self.fetch.call.target.clone())
        };
        let rest = self.farm.upstream.send(&call).await.ok()?.response;
        let is_rest = rest.status() == StatusCode::PARTIAL_CONTENT
            && rest.headers().get(header::ETAG) == Some(tag)
            && !rest.headers().contains_key(header::CONTENT_ENCODING)
            && is_rest_of(rest.headers(), received_bytes, head.length);
        if !is_rest {
            return None;
        }
        self.fetcher.metrics.increment(DispatcherCounter::Resumed);
        let mut body = rest.into_body();
        body.enforce_min_rate(self.fetcher.min_render_rate);
        Some(body)
    }

    async fn store_body(
        &self,
        ticket: FetchTicket,
        head: &StorableHead,
        bytes: Bytes,
    ) -> (Option<FetchTicket>, Result<(), NotCacheableReason>) {
        if bytes.is_empty() && !self.is_http_cache() {
            return (Some(ticket), Err(NotCacheableReason::EmptyBody));
        }
        let new_file = self.new_cache_file(head);
        let farm = Arc::clone(&self.farm);
        let size = bytes.len() as u64;
        let work = move || {
            let stored = ticket.store_unless_flushed(|| {
                let mut temporary = begin_temporary_file(&farm)?;
                temporary.write(&bytes).map_err(unwritable_reason)?;
                commit_new_file(&farm, &new_file, temporary)
            });
            (ticket, stored)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok((ticket, stored)) => {
                self.record_store_result(stored, size);
                (Some(ticket), stored)
            }
            Err(_panicked) => (None, Err(NotCacheableReason::Unwritable)),
        }
    }

    fn record_store_result(&self, stored: Result<(), NotCacheableReason>, size: u64) {
        let path = self.farm.absolute_path(&self.fetch.file);
        match stored {
            Ok(()) => {
                self.fetcher.response_memory.record_change();
                if let (Some(root), Some(visit)) = (&self.farm.docroot, &self.fetch.visit) {
                    root.visits.record_visit(&self.fetch.file, visit);
                }
                self.fetcher.metrics.increment(DispatcherCounter::Stored);
                self.fetcher.metrics.add(DispatcherCounter::BytesStored, size);
                self.fetcher.runtime.write_log(LogLevel::Debug, || {
                    format!("Cache file successfully created: {}", path.display())
                });
            }
            Err(NotCacheableReason::Unwritable) => {
                self.fetcher.metrics.increment(DispatcherCounter::StoreFailures);
                self.fetcher.runtime.write_log(LogLevel::Error, || {
                    format!("Unable to create cache file {}", path.display())
                });
            }
            Err(NotCacheableReason::ParentIsFile) => {
                self.fetcher.runtime.write_log(LogLevel::Warn, || {
                    let parent = path.parent().unwrap_or(&path).display();
                    format!("Unable to create parent directory {parent}: Not a directory")
                })
            }
            Err(_) => {}
        }
    }

    /// Continues in a file, from which all waiting visitors read while it grows.
    async fn spill_to_file(
        mut self,
        ticket: FetchTicket,
        head: StorableHead,
        bytes: Bytes,
        body: RenderBody,
    ) {
        let farm = Arc::clone(&self.farm);
        let prefix = bytes.clone();
        let length = head.length;
        let spill = tokio::task::spawn_blocking(move || {
            let mut temporary = begin_temporary_file(&farm)?;
            temporary.write(&prefix).map_err(unwritable_reason)?;
            let reader = temporary.open_reader(length).map_err(unwritable_reason)?;
            Ok::<_, NotCacheableReason>((temporary, reader))
        });
        let Ok(Ok((temporary, reader))) = spill.await else {
            // The disk is full: this visitor gets the rest as it arrives, and the others send their own requests.
            self.fetcher.metrics.increment(DispatcherCounter::StoreFailures);
            ticket.finish_fetch(FetchOutcome::Unshared(NotCacheableReason::Unwritable));
            let response = streamed_response(&head, bytes, body);
            return self.send_result(FetchResult::Uncached(
                response,
                head.render,
                NotCacheableReason::Unwritable,
            ));
        };
        let written = bytes.len() as u64;
        let (progress, watcher) = watch::channel(FileWriteProgress::Written(written));
        let growing =
            GrowingFile { file: Arc::new(reader), progress: watcher, length: head.length };
        let page = self.new_page(&head, FetchedBody::Growing(growing), None);
        ticket.announce_outcome(self.outcome_for_others(&head, &page));
        self.send_result(FetchResult::Page(page));
        let growth = GrowingFileWriter { temporary, written_bytes: written, progress };
        self.write_growing_file(ticket, &head, growth, body).await;
    }

    async fn write_growing_file(
        &self,
        ticket: FetchTicket,
        head: &StorableHead,
        growth: GrowingFileWriter,
        mut body: RenderBody,
    ) {
        let GrowingFileWriter { mut temporary, mut written_bytes, progress } = growth;
        while let Some(frame) = body.frame().await {
            let Some(data) = frame.ok().map(|frame| frame.into_data().unwrap_or_default()) else {
                if let Some(rest) = self.request_rest(head, written_bytes).await {
                    self.fetcher.metrics.increment(DispatcherCounter::RenderFailures);
                    body = rest;
                    continue;
                }
                progress.send_replace(FileWriteProgress::Failed(written_bytes));
                return self.fetcher.metrics.increment(DispatcherCounter::RenderFailures);
            };
            let size = data.len() as u64;
            let appended =
                tokio::task::spawn_blocking(move || temporary.write(&data).map(|()| temporary));
            temporary = match appended.await {
                Ok(Ok(temporary)) => temporary,
                _ => {
                    progress.send_replace(FileWriteProgress::Failed(written_bytes));
                    return self
                        .record_store_result(Err(NotCacheableReason::Unwritable), written_bytes);
                }
            };
            written_bytes += size;
            progress.send_replace(FileWriteProgress::Written(written_bytes));
        }
        progress.send_replace(FileWriteProgress::Complete(written_bytes));
        let new_file = self.new_cache_file(head);
        let farm = Arc::clone(&self.farm);
        let work =
            move || ticket.store_unless_flushed(|| commit_new_file(&farm, &new_file, temporary));
        let stored = tokio::task::spawn_blocking(work).await;
        let stored = stored.unwrap_or(Err(NotCacheableReason::Unwritable));
        self.record_store_result(stored, written_bytes);
        if stored.is_ok() {
            self.warn_of_ignored_headers(head);
        }
    }

    /// Counts a page that is not the same for everyone, and warns of cookies, once for each URL pattern.
    fn warn_of_ignored_headers(&self, head: &StorableHead) {
        if VaryRule::parse(&head.headers).may_separate_requests(&self.farm.config.client_headers) {
            self.fetcher.metrics.increment(DispatcherCounter::HeaderVariants);
        }
        if !head.headers.contains_key(header::SET_COOKIE) {
            return;
        }
        self.fetcher.metrics.increment(DispatcherCounter::CookiesOmitted);
        let name = "Set-Cookie";
        if let Some(pattern) = self.farm.farm_metrics.first_warning(name, &self.fetch.path) {
            tracing::warn!(farm = %self.farm.config.name, path = %pattern, reason = name,
                "pages cached for everyone despite a header of their render");
            self.fetcher.runtime.write_log(LogLevel::Warn, || {
                format!("Stored despite its {name} header: {pattern}")
            });
        }
    }

    fn new_cache_file(&self, head: &StorableHead) -> NewCacheFile {
        let cache = self.farm.config.cache.as_ref();
        let has_ttl = cache.is_some_and(|cache| cache.enable_ttl);
        NewCacheFile {
            destination: self.fetch.file.clone(),
            fetched_at: head.fetched_at,
            headers: self.stored_headers(&head.headers, (StatusCode::OK, head.fetched_at)),
            expires_at: if self.is_http_cache() {
                // A response without terms is not stored.
                let terms = self.storage_terms(StatusCode::OK, &head.headers, head.fetched_at);
                Some(terms.map_or(head.fetched_at, |terms| terms.expiry))
            } else if has_ttl {
                response_expiry(&head.headers, head.fetched_at)
            } else {
                None
            },
            mode: cache.map_or(0o755, |cache| cache.mode),
        }
    }

    /// Returns the headers that `/headers` names, the protective headers, and the media type if the file name does not
    /// determine it.
    fn stored_headers(
        &self,
        all: &HeaderMap,
        (status, fetched_at): (StatusCode, SystemTime),
    ) -> HeaderMap {
        let mut stored = HeaderMap::new();
        let cache = self.farm.config.cache.as_ref();
        let terms = match self.is_http_cache() {
            true => self.storage_terms(status, all, fetched_at).ok(),
            false => None,
        };
        let selection = self.selection_of(all);
        for (name, value) in all {
            let is_named = PROTECTIVE_HEADERS.contains(&name.as_str())
                || cache.is_some_and(|cache| cache.stores_header(name.as_str()))
                || terms.is_some() && cache.is_some_and(|cache| cache.headers.is_empty())
                || terms.is_some() && HTTP_HEADERS.contains(name);
            let is_own = match &terms {
                Some(terms) => {
                    [header::CONTENT_LENGTH, header::AGE].contains(name)
                        || terms.omitted_headers.contains(name)
                }
                // A cookie belongs to one visitor; a length or date would contradict the file's.
                None => [header::SET_COOKIE, header::CONTENT_LENGTH, header::DATE].contains(name),
            };
            // Needed when the file is served later, to find its includes, and by caches behind this one.
            let is_needed = *name == INCLUDE_HEADER || *name == header::VARY && selection.is_some();
            // A render must not state for the dispatcher for whom a page is.
            let is_internal = INTERNAL_HEADERS.contains(name);
            if (is_named || is_needed) && !is_own && !is_internal {
                stored.append(name, value.clone());
            }
        }
        for value in all.get_all(SURROGATE_KEY_HEADER) {
            stored.append(STORED_KEYS_HEADER, value.clone());
        }
        if let Some(selection) = selection.as_ref().and_then(VarySelection::to_value) {
            stored.insert(STORED_VARY_HEADER, selection);
        }
        if cache.is_some_and(|cache| cache.revalidate != RevalidateMode::Never) {
            store_validators(&mut stored, all);
        }
        if cache.is_some_and(|cache| cache.obeys_stale_directives && cache.enable_ttl)
            && let Some(lenience) = terms
                .as_ref()
                .map_or_else(|| StaleLenience::from_response(all), |terms| terms.lenience)
                .to_value()
        {
            stored.insert(STORED_LENIENCE_HEADER, lenience);
        }
        if let Some(terms) = terms {
            stored.insert(STORED_TERMS_HEADER, terms.to_value());
            return stored;
        }
        if let Some(kind) = all.get(header::CONTENT_TYPE)
            && !is_same_media_type(kind, &media_type_of_name(&self.fetch.file))
        {
            stored.insert(header::CONTENT_TYPE, kind.clone());
        }
        stored
    }

    fn new_page(
        &self,
        head: &StorableHead,
        body: FetchedBody,
        refused: Option<NotCacheableReason>,
    ) -> Arc<FetchedPage> {
        let mut stored = self.stored_headers(&head.headers, (StatusCode::OK, head.fetched_at));
        let terms = StoredTerms::from_stored(&stored);
        remove_internal_headers(&mut stored);
        stored.entry(header::CONTENT_TYPE).or_insert_with(|| {
            let kind = media_type_of_name(&self.fetch.file);
            let is_told = head.headers.contains_key(header::CONTENT_TYPE);
            match &body {
                FetchedBody::Buffered(page) if !is_told => with_declared_charset(kind, page),
                _ => kind,
            }
        });
        Arc::new(FetchedPage {
            headers: head.headers.clone(),
            stored_headers: stored,
            body,
            render: head.render.clone(),
            cache_info: match refused {
                None => self.fetch.cache_info.to_owned(),
                Some(reason) => format!("not cacheable: {reason}"),
            },
            selection: self.selection_of(&head.headers),
            shares_authorized: terms.is_none_or(|terms| terms.shares_authorized),
        })
    }

    fn send_result(&mut self, first: FetchResult) {
        if let Some(sender) = self.result_sender.take() {
            // The visitor may have disconnected.
            sender.send(first).ok();
        }
    }
}

/// The headers that a file of a shared HTTP cache always has: those behind it need them.
const HTTP_HEADERS: [http::HeaderName; 8] = [
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_TYPE,
    header::DATE,
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::VARY,
];

/// The headers by which a render restricts how browsers use a response. They belong to its body: a copy without them
/// would be less restricted than the render intended, such as an upload that runs as a page.
const PROTECTIVE_HEADERS: [&str; 14] = [
    "content-disposition",
    "content-security-policy",
    "content-security-policy-report-only",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "document-policy",
    "origin-agent-cluster",
    "permissions-policy",
    "referrer-policy",
    "strict-transport-security",
    "x-content-type-options",
    "x-frame-options",
    "x-permitted-cross-domain-policies",
];

/// Returns true if a partial response has everything from `first` on of a body with this length, if that is known.
fn is_rest_of(headers: &HeaderMap, first: u64, length: Option<u64>) -> bool {
    let range = headers.get(header::CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let parts = range
        .and_then(|range| range.strip_prefix("bytes ")?.split_once('/'))
        .and_then(|(range, all)| Some((range.split_once('-')?, all.parse::<u64>().ok()?)));
    let Some(((begin, end), all)) = parts else { return false };
    begin.parse() == Ok(first)
        && end.parse::<u64>().is_ok_and(|end| end.checked_add(1) == Some(all))
        && length.is_none_or(|length| length == all)
}

/// A file that is read by others while it is written.
struct GrowingFileWriter {
    temporary: TemporaryCacheFile,
    written_bytes: u64,
    progress: watch::Sender<FileWriteProgress>,
}

/// Puts a file into place, unless one of its keys was flushed since it was fetched.
fn commit_new_file(
    farm: &FarmState,
    new_file: &NewCacheFile,
    temporary: TemporaryCacheFile,
) -> Result<(), NotCacheableReason> {
    let keys = surrogate_keys(&new_file.headers, &STORED_KEYS_HEADER);
    let tags = farm.docroot.as_ref().map(|root| &root.surrogate_keys);
    if tags.is_some_and(|tags| tags.is_flushed(&keys, new_file.fetched_at)) {
        return Err(NotCacheableReason::Flushed);
    }
    let destination = &new_file.destination;
    if let Some(root) = &farm.docroot
        && let Err(error) = root.docroot_for_reading().move_old_folder_away(destination)
    {
        tracing::warn!(file = %farm.absolute_path(destination).display(), reason = %error,
            "cannot move away a folder of an earlier version at the path of a page");
    }
    temporary.commit_file(new_file).map_err(|error| match error.kind() {
        std::io::ErrorKind::IsADirectory => NotCacheableReason::TargetIsDirectory,
        std::io::ErrorKind::NotADirectory => NotCacheableReason::ParentIsFile,
        _ => unwritable_reason(error),
    })?;
    if let Some(tags) = tags {
        tags.record_keys(destination, &keys);
    }
    if let (Some(root), Some(cache)) = (&farm.docroot, &farm.config.cache)
        && let Err(error) = root.docroot_for_reading().create_missing_stat_files(destination, cache)
    {
        // The file stays, and goes stale with flushes of its neighbors.
        tracing::debug!(reason = %error, "cannot create a `.stat` file");
    }
    Ok(())
}

/// Returns the copy at `file` if it is still the one that was revalidated.
fn find_unchanged_copy(
    farm: &FarmState,
    file: &Path,
    stamp: CacheFileStamp,
) -> Result<OpenCacheFile, NotCacheableReason> {
    let docroot = farm.docroot.as_ref().ok_or(NotCacheableReason::NoDocroot)?.docroot_for_reading();
    match docroot.look_up_file(file, false) {
        Ok(CacheFileLookup::File(copy)) if copy.stamp == stamp => Ok(copy),
        _ => Err(NotCacheableReason::Incomplete),
    }
}

/// Rewrites the body of a copy, and returns it for waiting visitors, too.
fn rewrite_copy(
    farm: &FarmState,
    file: &Path,
    stamp: CacheFileStamp,
) -> Result<(TemporaryCacheFile, FetchedBody), NotCacheableReason> {
    let copy = find_unchanged_copy(farm, file, stamp)?;
    let mut temporary = begin_temporary_file(farm)?;
    let length = copy.length;
    if usize::try_from(length).is_ok_and(|length| length <= MAX_BUFFERED_BODY_BYTES) {
        let bytes = read_file_at(&copy.body, 0, length).map_err(unwritable_reason)?;
        temporary.write(&bytes).map_err(unwritable_reason)?;
        return Ok((temporary, FetchedBody::Buffered(bytes)));
    }
    if temporary.append_file(&copy.body).map_err(unwritable_reason)? != length {
        return Err(NotCacheableReason::Incomplete);
    }
    let (_, progress) = watch::channel(FileWriteProgress::Complete(length));
    let growing = GrowingFile { file: Arc::new(copy.body), progress, length: Some(length) };
    Ok((temporary, FetchedBody::Growing(growing)))
}

/// Returns true if a flush arrived since a copy was fetched, or its `.stat` file was touched.
fn is_flushed_since(
    root: &DocrootState,
    farm: &FarmConfig,
    file: &Path,
    fetched: SystemTime,
) -> bool {
    let stat = farm.cache.as_ref().map(|cache| &cache.stat_files);
    let touched = stat.and_then(|stat| root.docroot_for_reading().last_flush_above(file, stat));
    root.last_flush_at().max(touched).is_some_and(|at| at >= fetched)
}

fn begin_temporary_file(farm: &FarmState) -> Result<TemporaryCacheFile, NotCacheableReason> {
    let docroot = farm.docroot.as_ref().ok_or(NotCacheableReason::NoDocroot)?;
    let mode = farm.config.cache.as_ref().map_or(0o755, |cache| cache.mode);
    docroot
        .docroot_for_writing()
        .and_then(|docroot| docroot.create_temporary(mode))
        .map_err(unwritable_reason)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of `map_err`")]
fn unwritable_reason(error: std::io::Error) -> NotCacheableReason {
    tracing::debug!(reason = %error, "cannot write a cache file");
    NotCacheableReason::Unwritable
}

/// Returns a response that begins with `prefix` and continues with `body`.
fn streamed_response(
    head: &StorableHead,
    prefix: Bytes,
    body: RenderBody,
) -> Response<ResponseBody> {
    let begin = stream::iter([Ok(Frame::data(prefix))]);
    let rest =
        stream::unfold(
            body,
            |mut body| async move { body.frame().await.map(|frame| (frame, body)) },
        );
    let mut response = Response::new(boxed_body(StreamBody::new(begin.chain(rest))));
    *response.headers_mut() = head.headers.clone();
    response
}
