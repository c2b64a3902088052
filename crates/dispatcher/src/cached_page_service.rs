//! Answers of a farm to page requests: from a cache file, with a fetch that fills the cache, or forwarded without it.
//!
//! Not here: look-ups of files (`cache::docroot`), their freshness (`cache::freshness`), the memory of finished responses
//! (`cache::response_memory`), and fetches (`upstream::page_fetch`).

mod variant_refusal;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tokio::sync::oneshot;

use crate::cache::cacheability::check_request_cacheable;
use crate::cache::file_response::{self, CacheFileHead, cache_age};
use crate::cache::freshness::{CacheFileFreshness, assess_freshness, is_flushed};
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::cache::page_variant;
use crate::cache::response_memory::{
    CacheFileContent, CachedBody, DispatcherResponse, ResponseSource, SMALL_BODY_BYTES,
    SMALL_TLS_BODY_BYTES, add_vary_accept_encoding, is_encodable,
};
use crate::cache::storage_terms::{ReceivedResponse, StorageTerms};
use crate::cache::ttl::StaleLenience;
use crate::cache::vary::{VarySelection, sort_languages};
use crate::cache::{CacheFileLookup, CacheFileStamp, Docroot, OpenCacheFile};
use crate::config::{CacheConfig, FlushMode};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::own_response::own_response;
use crate::edge::own_response::with_connection_close;
use crate::edge::response_body::{FetchedPage, ResponseBody, boxed_body, empty_body, full_body};
use crate::edge::response_plan::StoredEntity;
use crate::flush::visit_address::VisitAddress;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::auth_check::{AuthCheckResult, check_permission, needs_permission};
use crate::request::decision::is_accepted;
use crate::request::exchange::RequestExchange;
use crate::request::sticky_cookie;
use crate::request::view::RequestView;
use crate::upstream::header_forwarding::{
    ForwardPurpose, clean_response_headers, has_origin_override, request_headers,
};
use crate::upstream::page_fetch::{FetchResult, PageFetch, PageFetcher};
use crate::upstream::request_coalescing::{
    FetchCoalescer, FetchOutcome, FetchRole, FetchTicket, FetchWait, FetchWaitResult, PendingFetch,
};
use crate::upstream::{UpstreamFailure, UpstreamRequest, UpstreamResponse, VisitorBody};

const STALE_CACHE_INFO: &str = "caching: stat file is more recent";

/// The maximum number of other visitors' fetches that a visitor waits for; a further one is awaited only if the one
/// before was given up.
const MAX_FETCH_WAITS: usize = 4;
/// The `Retry-After` value in seconds for a visitor whose wait timed out.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("10");

/// A cache file of a farm that is known to have a cache.
struct CacheFileLocation<'a> {
    docroot: &'a Docroot,
    cache: &'a CacheConfig,
    /// The file of the page, or of the variant for the request's headers.
    file: &'a Path,
    /// The file of the page.
    page_file: &'a Path,
}

/// The file that a request may get, or the place for it.
struct SelectedFile {
    file: PathBuf,
    lookup: CacheFileLookup,
}

/// Answers page requests from document roots and renders, according to one configuration.
#[derive(Debug)]
pub(crate) struct CachedPageService {
    fetcher: Arc<PageFetcher>,
    fetch_coalescer: Arc<FetchCoalescer>,
    runtime: Arc<DispatcherRuntime>,
    metrics: Arc<DispatcherMetrics>,
    config_serial: u64,
}

impl CachedPageService {
    pub(crate) fn new(parts: &DispatcherParts, fetcher: Arc<PageFetcher>) -> Self {
        Self {
            fetcher,
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            runtime: Arc::clone(&parts.runtime),
            metrics: Arc::clone(&parts.metrics),
            config_serial: parts.config_serial,
        }
    }

    /// Responds with the cached error for a file, if there is one.
    fn serve_from_negative_cache(
        &self,
        exchange: &mut RequestExchange<'_>,
        docroot: &Docroot,
        file: &Path,
    ) -> Option<DispatcherResponse> {
        let farm = &exchange.farm.config;
        let has_errors =
            |cache: &CacheConfig| cache.is_http_cache || !cache.negative_ttls.is_empty();
        if !farm.cache.as_ref().is_some_and(has_errors)
            || farm.auth_checker.is_some()
            || farm.session_management.is_some()
            // Another process handles the flushes now.
            || self.fetch_coalescer.has_stopped_storing()
        {
            return None;
        }
        let root = exchange.farm.docroot.as_ref()?;
        let now = self.runtime.clock.now();
        let negative = root.negative_cache.find_valid(file, farm, docroot, now)?;
        let is_for_others = negative
            .selection
            .as_ref()
            .is_some_and(|own| !own.matches(&selecting_headers(exchange)));
        if is_for_others {
            return None;
        }
        self.metrics.increment(DispatcherCounter::NegativeHits);
        exchange.cache_label = "hit";
        exchange.outcome = CacheOutcome::NegativeHit;
        "negative answer cached".clone_into(&mut exchange.cache_info);
        let is_head = exchange.view.method == Method::HEAD;
        let body = if is_head { empty_body() } else { full_body(negative.body.clone()) };
        let mut response = Response::new(body);
        *response.status_mut() = negative.status;
        *response.headers_mut() = negative.headers.clone();
        let headers = response.headers_mut();
        if negative.status != StatusCode::NO_CONTENT {
            headers.insert(header::CONTENT_LENGTH, negative.body.len().into());
        }
        let age = negative.initial_age + cache_age(negative.fetch_time, now);
        headers.insert(header::AGE, age.as_secs().into());
        Some(response.into())
    }

    /// Responds with a file of the document root; fetches it first if it is absent or out of date.
    pub(crate) async fn serve_from_docroot(
        &self,
        exchange: &mut RequestExchange<'_>,
        file: &Path,
    ) -> DispatcherResponse {
        let farm = exchange.farm;
        let (Some(root), Some(cache)) = (&farm.docroot, &farm.config.cache) else {
            return self
                .forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::NoDocroot)
                .await;
        };
        let docroot = root.docroot_for_reading();
        let page_file = file;
        let selected = self.look_up_for_request(exchange, (&docroot, cache), page_file);
        let (file, lookup) = match selected {
            Ok(SelectedFile { file, lookup }) => (file, Ok(lookup)),
            Err(error) => (page_file.to_owned(), Err(error)),
        };
        let file = file.as_path();
        let location = CacheFileLocation { docroot: &docroot, cache, file, page_file };
        match lookup {
            Err(error) => {
                let path = farm.absolute_path(file);
                tracing::warn!(file = %path.display(), reason = %error, "cannot read a cache file");
                self.forward_uncached(
                    exchange,
                    VisitorBody::empty(),
                    NotCacheableReason::Unwritable,
                )
                .await
            }
            Ok(CacheFileLookup::Directory) => {
                self.forward_uncached(
                    exchange,
                    VisitorBody::empty(),
                    NotCacheableReason::TargetIsDirectory,
                )
                .await
            }
            Ok(CacheFileLookup::Absent) => self.serve_miss(exchange, &location).await,
            Ok(CacheFileLookup::File(cached)) if !may_use_for_request(&cached, exchange) => {
                let reason = NotCacheableReason::Authorization;
                self.forward_uncached(exchange, VisitorBody::empty(), reason).await
            }
            Ok(CacheFileLookup::File(cached)) => {
                let freshness = self.assess_cache_file(&location, exchange.view, &cached);
                if freshness == CacheFileFreshness::Valid {
                    self.serve_hit(exchange, &location, cached).await
                } else {
                    self.serve_stale(exchange, &location, cached, freshness).await
                }
            }
        }
    }

    /// Looks up the file of a page, or that of the variant for the request if the page's own is for other requests.
    fn look_up_for_request(
        &self,
        exchange: &RequestExchange<'_>,
        (docroot, cache): (&Docroot, &CacheConfig),
        page_file: &Path,
    ) -> std::io::Result<SelectedFile> {
        let page = docroot.look_up_file(page_file, cache.enable_ttl)?;
        let own = |page| Ok(SelectedFile { file: page_file.to_owned(), lookup: page });
        let CacheFileLookup::File(cached) = page else { return own(page) };
        let Some(selection) = cached.selection() else {
            return own(CacheFileLookup::File(cached));
        };
        let headers = selecting_headers(exchange);
        if is_selected((&selection, &cached), exchange, &headers) {
            return own(CacheFileLookup::File(cached));
        }
        let [first, second] = selection.variant_files(page_file, &headers);
        let mut free_file = None;
        for file in [&first, &second] {
            match docroot.look_up_file(file, cache.enable_ttl)? {
                CacheFileLookup::File(cached)
                    if cached.selection().is_none_or(|own| own.matches(&headers)) =>
                {
                    let lookup = CacheFileLookup::File(cached);
                    return Ok(SelectedFile { file: file.clone(), lookup });
                }
                CacheFileLookup::File(_) => {}
                CacheFileLookup::Absent | CacheFileLookup::Directory => {
                    free_file = free_file.or(Some(file));
                }
            }
        }
        let file = free_file.unwrap_or(&first).clone();
        Ok(SelectedFile { file, lookup: CacheFileLookup::Absent })
    }

    fn assess_cache_file(
        &self,
        location: &CacheFileLocation<'_>,
        view: &RequestView,
        cached: &OpenCacheFile,
    ) -> CacheFileFreshness {
        let cache = location.cache;
        let (file, path) = (location.file, view.path.as_str());
        let facts =
            location.docroot.freshness_facts(cache, file, path, cached, self.runtime.clock.now());
        let freshness = assess_freshness(facts, cache.stale_limits());
        let has_time_left = cached.expires_at.is_some() && freshness != CacheFileFreshness::Expired;
        if has_time_left {
            self.runtime.write_log(LogLevel::Debug, || {
                let file = location.docroot.path().join(location.file);
                format!("cache file has not expired: {}", file.display())
            });
        }
        self.runtime.write_log(LogLevel::Debug, || {
            let file = location.docroot.path().join(location.file);
            let file = file.display();
            match freshness {
                CacheFileFreshness::Valid => {
                    format!("cache file is newer than lastflush -> use cache [{file}]")
                }
                CacheFileFreshness::Expired => format!("cache file has expired: {file}"),
                CacheFileFreshness::Stale | CacheFileFreshness::Marked => {
                    format!("cache file is older than lastflush -> flush [{file}]")
                }
            }
        });
        freshness
    }

    async fn serve_hit(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> DispatcherResponse {
        let permission = check_permission(exchange).await;
        let AuthCheckResult::Granted(extra) = permission else {
            return self
                .forward_uncached(
                    exchange,
                    VisitorBody::empty(),
                    NotCacheableReason::AuthCheckerDenied,
                )
                .await;
        };
        self.log_action(exchange, "DELIVER");
        self.metrics.increment(DispatcherCounter::Hits);
        exchange.cache_info = "target file cached".to_owned();
        exchange.outcome = CacheOutcome::Hit;
        let mut response = self.serve_file(exchange, location, cached);
        for (name, value) in &extra {
            response.headers_mut().append(name, value.clone());
        }
        response
    }

    /// Responds with a file regardless of its age.
    fn serve_file(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> DispatcherResponse {
        exchange.cache_label = "hit";
        location.docroot.record_use(location.file, self.runtime.clock.now());
        self.build_file_response(exchange, location, cached).unwrap_or_else(|error| {
            let file = location.docroot.path().join(location.file);
            tracing::error!(file = %file.display(), reason = %error, "cannot read a cache file");
            own_response(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }

    fn build_file_response(
        &self,
        exchange: &RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> std::io::Result<DispatcherResponse> {
        let view = exchange.view;
        let (cached_selection, terms) = (cached.selection(), cached.terms());
        let CacheFileHead { mut headers, etag, modification_time } =
            file_response::read_cache_file_head(location.file, &cached, self.runtime.clock.now());
        if location.cache.compress && is_encodable(&headers) {
            add_vary_accept_encoding(&mut headers);
        }
        let is_head = view.method == Method::HEAD;
        let length = cached.length;
        let has_own_date = headers.contains_key(header::DATE);
        let entity =
            StoredEntity { etag: &etag, modification_time, length, supports_ranges: !is_head };
        let conditional = file_response::conditional_response(&view.headers, &entity, headers);
        let cached_body = if is_head {
            CachedBody::Memory(Bytes::new())
        } else {
            let most = if view.is_tls { SMALL_TLS_BODY_BYTES } else { SMALL_BODY_BYTES };
            CachedBody::read(cached.body, cached.length, most)?
        };
        let has_body = !is_head && conditional.length > 0;
        let body = if has_body {
            cached_body.read_part(conditional.start, conditional.length)?
        } else {
            empty_body()
        };
        let mut response = Response::new(body);
        *response.status_mut() = conditional.status;
        *response.headers_mut() = conditional.headers;
        // For a page that only the list of vanity URLs permits, the rules alone do not decide. The memory does not compare
        // the headers that select a variant.
        let farm = &exchange.farm.config;
        let is_for_some =
            cached_selection.is_some_and(|own| own.may_separate_requests(&farm.client_headers));
        if is_for_some || farm.vanity_urls.is_some() && !is_accepted(farm, view) {
            return Ok(response.into());
        }
        let source = ResponseSource {
            farm: Arc::clone(exchange.farm),
            config_serial: self.config_serial,
            file: location.file.into(),
            path: view.path.as_str().into(),
            length: cached.length,
            file_stamp: cached.stamp,
            fetch_time: cached.fetched_at,
            initial_age: terms.map(|terms| terms.initial_age).unwrap_or_default(),
            has_own_date,
            etag,
            modification_time,
            warning: exchange.warning.as_deref().map(Into::into),
            is_stale: matches!(exchange.outcome, CacheOutcome::Stale),
        };
        let content = CacheFileContent { source: Arc::new(source), body: cached_body };
        Ok(DispatcherResponse::from_cache_file(response, content))
    }

    /// Serves the old file while it is replaced, and lets one visitor start the replacement.
    async fn serve_stale(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
        freshness: CacheFileFreshness,
    ) -> DispatcherResponse {
        let farm = exchange.farm;
        let is_too_old = cached.marked_at.is_some_and(|marked| {
            let age = self.runtime.clock.now().duration_since(marked);
            age.unwrap_or_default() > location.cache.max_stale
        });
        if is_too_old || needs_permission(exchange) {
            return self.serve_miss(exchange, location).await;
        }
        let is_flushed = freshness != CacheFileFreshness::Expired;
        if location.cache.is_http_cache && !is_flushed {
            return self.serve_expired(exchange, location, cached).await;
        }
        let key = farm.absolute_path(location.file);
        if farm.refetch_queue.contains(location.file) {
            return self.serve_old_file(exchange, location, cached);
        }
        if exchange.view.method == Method::HEAD {
            if self.fetch_coalescer.is_fetching(&key) {
                return self.serve_old_file(exchange, location, cached);
            }
            return self
                .forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::Head)
                .await;
        }
        let FetchRole::Lead(ticket) = self.fetch_coalescer.join_or_lead(&key) else {
            return self.serve_old_file(exchange, location, cached);
        };
        if let Some(newer) = self.recheck_cache_file(location, exchange) {
            ticket.finish_fetch(FetchOutcome::Retry);
            return self.serve_hit(exchange, location, newer).await;
        }
        let allowed = self.stale_allowance(location, exchange.view, &cached);
        let wait = self.begin_fetch(exchange, ticket, location, STALE_CACHE_INFO);
        let is_soft = location.cache.flush_mode == FlushMode::Soft;
        if freshness == CacheFileFreshness::Marked && is_soft || allowed.while_revalidating {
            return self.serve_old_file(exchange, location, cached);
        }
        let first = wait.await.unwrap_or(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
        let stands_in = location.cache.serve_stale_on_error && is_stale_on_error_failure(&first)
            || allowed.if_error
                && is_stale_if_error_failure(&first)
                && self.is_stale_still_allowed(location, exchange.view, cached.stamp);
        if stands_in {
            return self.serve_in_place_of_error(exchange, location, cached);
        }
        self.serve_fetch_result(exchange, first)
    }

    /// Responds from a copy whose lifetime has ended, as HTTP allows: validated, or without validation only where its
    /// response allowed that.
    async fn serve_expired(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> DispatcherResponse {
        let allowed = self.stale_allowance(location, exchange.view, &cached);
        if exchange.view.method == Method::HEAD {
            if allowed.while_revalidating {
                return self.serve_old_file(exchange, location, cached);
            }
            return self
                .forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::Head)
                .await;
        }
        let key = exchange.farm.absolute_path(location.file);
        let mut waiting = FetchWait::new(location.cache.collapse_wait);
        for _ in 0..MAX_FETCH_WAITS {
            let fetch = match self.fetch_coalescer.join_or_lead(&key) {
                FetchRole::Lead(ticket) => {
                    return self.revalidate_expired(exchange, location, (ticket, cached)).await;
                }
                FetchRole::Join(fetch) => fetch,
                FetchRole::Pass(_) => break,
            };
            if allowed.while_revalidating {
                return self.serve_old_file(exchange, location, cached);
            }
            if let Some(response) = self.join_fetch(exchange, location, &fetch, &mut waiting).await
            {
                let may_stand_in = self.may_stand_in(location, exchange.view, &cached);
                if may_stand_in && matches!(response.status().as_u16(), 500 | 502..=504) {
                    return self.serve_in_place_of_error(exchange, location, cached);
                }
                return response;
            }
        }
        let reason = NotCacheableReason::NoLifetime;
        self.forward_uncached(exchange, VisitorBody::empty(), reason).await
    }

    /// Validates an expired copy on behalf of all visitors who wait.
    async fn revalidate_expired(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        (ticket, cached): (FetchTicket, OpenCacheFile),
    ) -> DispatcherResponse {
        if let Some(newer) = self.recheck_cache_file(location, exchange) {
            ticket.finish_fetch(FetchOutcome::Retry);
            return self.serve_hit(exchange, location, newer).await;
        }
        let allowed = self.stale_allowance(location, exchange.view, &cached);
        let wait = self.begin_fetch(exchange, ticket, location, STALE_CACHE_INFO);
        if allowed.while_revalidating {
            return self.serve_old_file(exchange, location, cached);
        }
        let first = wait.await.unwrap_or(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
        let is_failure = is_stale_if_error_failure(&first)
            && self.is_stale_still_allowed(location, exchange.view, cached.stamp)
            || location.cache.serve_stale_on_error && is_stale_on_error_failure(&first);
        if is_failure && self.may_stand_in(location, exchange.view, &cached) {
            return self.serve_in_place_of_error(exchange, location, cached);
        }
        self.serve_fetch_result(exchange, first)
    }

    /// Returns true if an expired copy may be served in place of an error.
    fn may_stand_in(
        &self,
        location: &CacheFileLocation<'_>,
        view: &RequestView,
        cached: &OpenCacheFile,
    ) -> bool {
        let is_prohibited = cached.terms().is_none_or(|terms| terms.prohibits_stale);
        let is_configured = location.cache.serve_stale_on_error && !is_prohibited;
        is_configured || self.stale_allowance(location, view, cached).if_error
    }

    fn serve_in_place_of_error(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> DispatcherResponse {
        self.metrics.increment(DispatcherCounter::StaleOnError);
        let mut response = self.serve_old_file(exchange, location, cached);
        let warning = HeaderValue::from_static("111 - \"Revalidation Failed\"");
        response.headers_mut().insert(header::WARNING, warning);
        response
    }

    /// Returns the allowances of the render for a copy that expired. A flushed copy has none.
    fn stale_allowance(
        &self,
        location: &CacheFileLocation<'_>,
        view: &RequestView,
        cached: &OpenCacheFile,
    ) -> StaleAllowance {
        let cache = location.cache;
        let (Some(expires), Some(stored)) = (cached.expires_at, &cached.headers) else {
            return StaleAllowance::default();
        };
        if !cache.obeys_stale_directives {
            return StaleAllowance::default();
        }
        let now = self.runtime.clock.now();
        let facts =
            location.docroot.freshness_facts(cache, location.file, view.path.as_str(), cached, now);
        if is_flushed(facts) {
            return StaleAllowance::default();
        }
        let lenience = StaleLenience::from_stored(&stored.headers);
        StaleAllowance {
            while_revalidating: now <= expires + lenience.while_revalidating,
            if_error: now <= expires + lenience.if_error,
        }
    }

    /// Returns true if a copy may still be served in place of its render: a flush may have arrived after the render was
    /// asked.
    fn is_stale_still_allowed(
        &self,
        location: &CacheFileLocation<'_>,
        view: &RequestView,
        stamp: CacheFileStamp,
    ) -> bool {
        match location.docroot.look_up_file(location.file, location.cache.enable_ttl) {
            Ok(CacheFileLookup::File(cached)) => {
                cached.stamp == stamp && self.stale_allowance(location, view, &cached).if_error
            }
            _ => false,
        }
    }

    fn serve_old_file(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        cached: OpenCacheFile,
    ) -> DispatcherResponse {
        self.log_action(exchange, "DELIVER");
        self.metrics.increment(DispatcherCounter::Stale);
        exchange.cache_info = "target file cached".to_owned();
        exchange.outcome = CacheOutcome::Stale;
        let mut response = self.serve_file(exchange, location, cached);
        if !exchange.farm.is_replacement_pending(location.file, &self.fetch_coalescer) {
            response.forbid_storing();
        }
        response
    }

    /// Fetches an absent file, or waits for the visitor that fetches it.
    async fn serve_miss(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
    ) -> DispatcherResponse {
        if let Some(response) =
            self.serve_from_negative_cache(exchange, location.docroot, location.file)
        {
            return response;
        }
        let key = exchange.farm.absolute_path(location.file);
        // A request that joins a fetch causes no rendering.
        let is_drawn =
            exchange.view.method == Method::HEAD || !self.fetch_coalescer.is_fetching(&key);
        if is_drawn && let Some(response) = self.limit_variants(exchange).await {
            return response;
        }
        if exchange.view.method == Method::HEAD {
            return self
                .forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::Head)
                .await;
        }
        let mut waiting = FetchWait::new(location.cache.collapse_wait);
        for _ in 0..MAX_FETCH_WAITS {
            match self.fetch_coalescer.join_or_pass(&key) {
                FetchRole::Lead(ticket) => {
                    return self.lead_fetch(exchange, location, ticket).await;
                }
                FetchRole::Join(_) if needs_permission(exchange) => {
                    let reason = NotCacheableReason::AuthCheckerDenied;
                    return self.forward_uncached(exchange, VisitorBody::empty(), reason).await;
                }
                FetchRole::Join(fetch) => {
                    let joined = self.join_fetch(exchange, location, &fetch, &mut waiting).await;
                    if let Some(response) = joined {
                        return response;
                    }
                }
                FetchRole::Pass(reason) => {
                    return self.forward_uncached(exchange, VisitorBody::empty(), reason).await;
                }
            }
        }
        self.forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::Flushed).await
    }

    /// Fetches a file for all requests that wait for it.
    async fn lead_fetch(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        ticket: FetchTicket,
    ) -> DispatcherResponse {
        if !needs_permission(exchange)
            && let Some(newer) = self.recheck_cache_file(location, exchange)
        {
            ticket.finish_fetch(FetchOutcome::Retry);
            return self.serve_hit(exchange, location, newer).await;
        }
        let wait = self.begin_fetch(exchange, ticket, location, "caching");
        let first = wait.await.unwrap_or(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
        self.serve_fetch_result(exchange, first)
    }

    /// Waits for the fetch of another request; returns `None` if the file has to be fetched nevertheless.
    async fn join_fetch(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
        fetch: &PendingFetch,
        waiting: &mut FetchWait,
    ) -> Option<DispatcherResponse> {
        if waiting.is_new() {
            self.metrics.increment(DispatcherCounter::Coalesced);
        }
        Some(match fetch.wait_as_visitor(waiting).await {
            FetchWaitResult::Finished(FetchOutcome::Shared(page))
                if !is_page_for_request(&page, exchange) =>
            {
                self.serve_other_variant(exchange, location).await
            }
            FetchWaitResult::Finished(FetchOutcome::Shared(page)) => {
                let response = self.serve_fetched_page(exchange, &page, &page.stored_headers);
                exchange.outcome = CacheOutcome::Miss { is_collapsed: true };
                response
            }
            FetchWaitResult::Finished(FetchOutcome::Failed(failure)) => {
                own_response(failure.status())
            }
            FetchWaitResult::Finished(FetchOutcome::Unshared(reason)) => {
                match self.serve_from_negative_cache(exchange, location.docroot, location.file) {
                    Some(response) => response,
                    None => self.forward_uncached(exchange, VisitorBody::empty(), reason).await,
                }
            }
            FetchWaitResult::Finished(FetchOutcome::Retry) => {
                let newer = self.recheck_cache_file(location, exchange)?;
                self.serve_hit(exchange, location, newer).await
            }
            FetchWaitResult::FetchSelf => {
                self.forward_uncached(
                    exchange,
                    VisitorBody::empty(),
                    NotCacheableReason::Incomplete,
                )
                .await
            }
            FetchWaitResult::TimedOut => {
                self.metrics.increment(DispatcherCounter::CoalescingFailures);
                let mut response = own_response(StatusCode::SERVICE_UNAVAILABLE);
                response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
                response
            }
        })
    }

    /// Responds to a visitor who waited for a page that turned out to be for visitors with other headers.
    async fn serve_other_variant(
        &self,
        exchange: &mut RequestExchange<'_>,
        location: &CacheFileLocation<'_>,
    ) -> DispatcherResponse {
        // Each fetch may vary by other headers.
        if std::mem::replace(&mut exchange.has_waited_in_vain, true) {
            let reason = NotCacheableReason::Vary;
            return self.forward_uncached(exchange, VisitorBody::empty(), reason).await;
        }
        Box::pin(self.serve_from_docroot(exchange, location.page_file)).await
    }

    /// Looks up the file again, because another fetch may have ended in the meantime.
    fn recheck_cache_file(
        &self,
        location: &CacheFileLocation<'_>,
        exchange: &RequestExchange<'_>,
    ) -> Option<OpenCacheFile> {
        let lookup = location.docroot.look_up_file(location.file, location.cache.enable_ttl);
        let Ok(CacheFileLookup::File(cached)) = lookup else { return None };
        let is_for_request = cached
            .selection()
            .is_none_or(|own| is_selected((&own, &cached), exchange, &selecting_headers(exchange)));
        let is_valid = is_for_request
            && self.assess_cache_file(location, exchange.view, &cached)
                == CacheFileFreshness::Valid;
        is_valid.then_some(cached)
    }

    fn begin_fetch(
        &self,
        exchange: &RequestExchange<'_>,
        ticket: FetchTicket,
        location: &CacheFileLocation<'_>,
        info: &'static str,
    ) -> oneshot::Receiver<FetchResult> {
        self.log_action(exchange, "CREATE");
        let target = page_variant::variant_target(location.cache, exchange.view);
        let fetch = PageFetch {
            call: UpstreamRequest {
                target,
                ..build_upstream_request(exchange, VisitorBody::empty(), ForwardPurpose::Cache)
            },
            file: location.file.to_owned(),
            path: exchange.view.path.as_str().to_owned(),
            host: exchange.view.headers.get(header::HOST).cloned(),
            // A page for a host that no farm has must not be shown to others.
            visit: VisitAddress::from_request(exchange.view).filter(|_| exchange.warning.is_none()),
            min_sequence: None,
            cache_info: info,
        };
        self.fetcher.spawn_fetch(exchange.farm, ticket, fetch)
    }

    /// Responds to the request that caused a fetch.
    fn serve_fetch_result(
        &self,
        exchange: &mut RequestExchange<'_>,
        first: FetchResult,
    ) -> DispatcherResponse {
        match first {
            FetchResult::Page(page) => {
                let mut response = self.serve_fetched_page(exchange, &page, &page.headers);
                sticky_cookie::add_sticky_cookie(response.headers_mut(), exchange, &page.render);
                response
            }
            FetchResult::Uncached(mut response, render, reason) => {
                self.metrics.increment(DispatcherCounter::Passes);
                sticky_cookie::add_sticky_cookie(response.headers_mut(), exchange, &render);
                exchange.render = Some(render);
                exchange.record_pass(reason);
                response.into()
            }
            FetchResult::Failed(failure) => own_response(failure.status()),
            FetchResult::Outdated => own_response(StatusCode::BAD_GATEWAY),
        }
    }

    fn serve_fetched_page(
        &self,
        exchange: &mut RequestExchange<'_>,
        page: &FetchedPage,
        headers: &HeaderMap,
    ) -> DispatcherResponse {
        self.metrics.increment(DispatcherCounter::Misses);
        exchange.cache_label = "miss";
        exchange.outcome = CacheOutcome::Miss { is_collapsed: false };
        exchange.render = Some(page.render.clone());
        exchange.cache_info.clone_from(&page.cache_info);
        let mut response = Response::new(page.body.to_response_body());
        *response.headers_mut() = headers.clone();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        let compresses = exchange.farm.config.cache.as_ref().is_some_and(|cache| cache.compress);
        if compresses && is_encodable(headers) {
            add_vary_accept_encoding(response.headers_mut());
        }
        if let Some(length) = page.body.known_length() {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        let is_http = exchange.farm.config.cache.as_ref().is_some_and(|cache| cache.is_http_cache);
        if is_http && let Some(part) = conditional_page(exchange.view, page, response.headers()) {
            return part.into();
        }
        response.into()
    }

    /// Forwards the request and stores nothing.
    pub(crate) async fn forward_uncached(
        &self,
        exchange: &mut RequestExchange<'_>,
        body: VisitorBody,
        reason: NotCacheableReason,
    ) -> DispatcherResponse {
        self.log_action(exchange, "NONE");
        self.metrics.increment(DispatcherCounter::Passes);
        exchange.record_pass(reason);
        let call = build_upstream_request(exchange, body, ForwardPurpose::Pass);
        let sent = self.runtime.clock.tick();
        match exchange.farm.upstream.send(&call).await {
            Ok(upstream_response) if is_page_of_post(exchange, &upstream_response) => {
                self.store_page_of_post(exchange, (upstream_response, sent)).await
            }
            Ok(upstream_response) => {
                let mut response = upstream_response.response.map(boxed_body);
                clean_response_headers(response.headers_mut());
                sticky_cookie::add_sticky_cookie(
                    response.headers_mut(),
                    exchange,
                    &upstream_response.render,
                );
                exchange.render = Some(upstream_response.render);
                response.into()
            }
            Err(failure) => {
                if failure.is_visitor_failure() {
                    return with_connection_close(own_response(failure.status()));
                }
                self.metrics.increment(DispatcherCounter::RenderFailures);
                own_response(failure.status())
            }
        }
    }

    /// Stores the response to a POST as the page of its URL (RFC 9110, section 9.3.3), and responds with it.
    async fn store_page_of_post(
        &self,
        exchange: &mut RequestExchange<'_>,
        (mut upstream_response, sent): (UpstreamResponse, SystemTime),
    ) -> DispatcherResponse {
        let farm = exchange.farm;
        let view = RequestView { method: Method::GET, ..exchange.view.clone() };
        let file = check_request_cacheable(&farm.config, &view).ok();
        let key = file.as_ref().map(|file| farm.absolute_path(file));
        let role = key.map(|key| self.fetch_coalescer.join_or_lead(&key));
        let (Some(file), Some(FetchRole::Lead(ticket)), Some(root)) = (file, role, &farm.docroot)
        else {
            clean_response_headers(upstream_response.response.headers_mut());
            return upstream_response.response.map(boxed_body).into();
        };
        let inner = RequestExchange::new(farm, &view);
        let fetch = PageFetch {
            call: build_upstream_request(&inner, VisitorBody::empty(), ForwardPurpose::Cache),
            file,
            path: view.path.as_str().to_owned(),
            host: view.headers.get(header::HOST).cloned(),
            visit: None,
            min_sequence: None,
            cache_info: "caching",
        };
        let epoch = root.negative_cache.flush_epoch();
        let received = (upstream_response, (sent, epoch));
        let wait = self.fetcher.spawn_store(farm, (ticket, fetch), received);
        let first = wait.await.unwrap_or(FetchResult::Failed(UpstreamFailure::ConnectionBroken));
        self.serve_fetch_result(exchange, first)
    }

    fn log_action(&self, exchange: &RequestExchange<'_>, action: &str) {
        self.runtime.write_log(LogLevel::Debug, || {
            format!("cache-action for [{}]: {action}", exchange.view.path)
        });
    }
}

/// Returns true if the response to a POST says that it is the page of the same URL, with a lifetime of its own.
fn is_page_of_post(exchange: &RequestExchange<'_>, response: &UpstreamResponse) -> bool {
    let (view, headers) = (exchange.view, response.response.headers());
    if !exchange.farm.config.is_http_cache
        || view.method != Method::POST
        || response.response.status() != StatusCode::OK
        || has_origin_override(&view.headers)
        || exchange.farm.config.auth_checker.is_some()
        || exchange.farm.config.session_management.is_some()
    {
        return false;
    }
    let location =
        headers.get(header::CONTENT_LOCATION).and_then(|location| location.to_str().ok());
    let has_lifetime = StorageTerms::of_response(&ReceivedResponse {
        status: StatusCode::OK,
        headers,
        fetch_time: SystemTime::UNIX_EPOCH,
        is_authorized: view.headers.contains_key(header::AUTHORIZATION),
        default_lifetime: Duration::ZERO,
    })
    .is_ok();
    has_lifetime && location.is_some_and(|location| location == view.wire_target())
}

/// Returns the response to a request with conditions or a range from a fetched page; `None` for the whole page.
fn conditional_page(
    view: &RequestView,
    page: &FetchedPage,
    headers: &HeaderMap,
) -> Option<Response<ResponseBody>> {
    let length = page.body.known_length()?;
    let date = |name| httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok();
    let etag = headers.get(header::ETAG).cloned().unwrap_or(HeaderValue::from_static("\"\""));
    let entity = StoredEntity {
        etag: &etag,
        // Without a date of its own it is newer than any that the visitor may name.
        modification_time: date(header::LAST_MODIFIED)
            .or_else(|| date(header::DATE))
            .unwrap_or_else(SystemTime::now),
        length,
        supports_ranges: view.method == Method::GET,
    };
    let conditional = file_response::conditional_response(&view.headers, &entity, headers.clone());
    if conditional.status == StatusCode::OK {
        return None;
    }
    let body = page.body.to_part_body(conditional.start, conditional.length);
    let mut response = Response::new(body);
    *response.status_mut() = conditional.status;
    *response.headers_mut() = conditional.headers;
    Some(response)
}

/// Returns the headers of the request that would be sent to a render to fill the cache.
fn selecting_headers(exchange: &RequestExchange<'_>) -> HeaderMap {
    let farm = &exchange.farm.config;
    let mut headers = request_headers(farm, exchange.view, ForwardPurpose::Cache);
    if farm.is_http_cache {
        sort_languages(&mut headers);
    }
    headers
}

/// Returns true if a file with this selection is for a request with these selecting headers.
fn is_selected(
    (selection, cached): (&VarySelection, &OpenCacheFile),
    exchange: &RequestExchange<'_>,
    headers: &HeaderMap,
) -> bool {
    let stored = cached.headers.as_ref().filter(|_| exchange.farm.config.is_http_cache);
    match stored {
        Some(stored) => selection.matches_in_http(&stored.headers, headers),
        None => selection.matches(headers),
    }
}

/// Returns true if a fetched page may be sent to the visitor.
fn is_page_for_request(page: &FetchedPage, exchange: &RequestExchange<'_>) -> bool {
    let is_authorized = exchange.view.headers.contains_key(header::AUTHORIZATION);
    (page.shares_authorized || !is_authorized)
        && page.selection.as_ref().is_none_or(|own| own.matches(&selecting_headers(exchange)))
}

/// Returns true if a file may be used for a request, with regard to its `Authorization` (RFC 9111, section 3.5).
fn may_use_for_request(cached: &OpenCacheFile, exchange: &RequestExchange<'_>) -> bool {
    let is_authorized = exchange.view.headers.contains_key(header::AUTHORIZATION);
    !is_authorized || cached.terms().is_none_or(|terms| terms.shares_authorized)
}

/// The allowances of a render for an expired copy.
#[derive(Debug, Clone, Copy, Default)]
struct StaleAllowance {
    while_revalidating: bool,
    if_error: bool,
}

/// Returns true for failures in place of which `stale-if-error` serves the old file (RFC 5861, section 4).
fn is_stale_if_error_failure(first: &FetchResult) -> bool {
    match first {
        FetchResult::Uncached(response, _, _) => {
            matches!(response.status().as_u16(), 500 | 502..=504)
        }
        other => is_stale_on_error_failure(other),
    }
}

/// Returns true for failures in place of which `/serveStaleOnError` serves the old file.
fn is_stale_on_error_failure(first: &FetchResult) -> bool {
    match first {
        FetchResult::Page(_) => false,
        FetchResult::Uncached(response, _, _) => {
            matches!(response.status().as_u16(), 429 | 502 | 503 | 504)
        }
        FetchResult::Failed(_) | FetchResult::Outdated => true,
    }
}

/// Returns the request that is sent to a render.
fn build_upstream_request(
    exchange: &RequestExchange<'_>,
    body: VisitorBody,
    purpose: ForwardPurpose,
) -> UpstreamRequest {
    let view = exchange.view;
    UpstreamRequest {
        method: view.method.clone(),
        target: view.wire_target(),
        headers: request_headers(&exchange.farm.config, view, purpose),
        body,
        sticky_render: view
            .cookie(sticky_cookie::STICKY_COOKIE)
            .and_then(|render| Some(std::str::from_utf8(render).ok()?.to_owned()))
            .or_else(|| view.page_render.clone()),
    }
}
