//! Answering from the cache, or around it.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use tokio::sync::oneshot;

use crate::answer::{Exchange, Outcome as Told, refusal, the_last};
use crate::auth::Permission;
use crate::cache::{CacheFile, Docroot, Lookup, Stamp};
use crate::cacheable::Reason;
use crate::config::{Cache, FlushMode};
use crate::decision::is_accepted;
use crate::dispatcher::{FarmState, Inner};
use crate::fetch::{Fetch, First, start};
use crate::flight::{Flight, Outcome, Role, Ticket, Waited, Waiting};
use crate::forward::{Purpose, clean_response, request_headers};
use crate::freshness::{Freshness, is_flushed, judge};
use crate::hit::{self, Known};
use crate::log::Level;
use crate::memory::{
    Keepable, KeptBody, SMALL_BODY_BYTES, SMALL_TLS_BODY_BYTES, Source, add_vary, is_encodable,
};
use crate::metrics::Counter;
use crate::page::{Body, Page, boxed, empty};
use crate::plan::Entity;
use crate::request::RequestView;
use crate::sticky;
use crate::ttl::Lenience;
use crate::upstream::{Call, CallBody, Failure};
use crate::variant;
use crate::visits::Visit;

const STALE_INFO: &str = "caching: stat file is more recent";

/// So many fetches of others a visitor waits for, of which the next one is needed only if the one before was given up.
const MAX_WAITS: usize = 4;
/// When someone may ask again who waited in vain, in seconds.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("10");

/// A cache file whose farm is known to have a cache.
struct Found<'a> {
    docroot: &'a Docroot,
    cache: &'a Cache,
    file: &'a Path,
}

impl Inner {
    /// Answers from the file, fetching it first where it is absent or out of date.
    pub(crate) async fn cached(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        file: &Path,
    ) -> Response<Body> {
        let farm = exchange.farm;
        let (Some(root), Some(cache)) = (&farm.docroot, &farm.farm.cache) else {
            return self.pass(exchange, CallBody::empty(), Reason::NoDocroot).await;
        };
        let docroot = root.opened();
        let found = Found { docroot: &docroot, cache, file };
        match docroot.look_up(file, cache.enable_ttl) {
            Err(error) => {
                let path = farm.absolute(file);
                tracing::warn!(file = %path.display(), reason = %error, "cannot read a cache file");
                self.pass(exchange, CallBody::empty(), Reason::Unwritable).await
            }
            Ok(Lookup::Directory) => {
                self.pass(exchange, CallBody::empty(), Reason::TargetIsDirectory).await
            }
            Ok(Lookup::Absent) => self.absent(exchange, &found).await,
            Ok(Lookup::File(cached)) => {
                let freshness = self.judge(&found, exchange.view, &cached);
                if freshness == Freshness::Valid {
                    self.hit(exchange, &found, cached).await
                } else {
                    self.stale(exchange, &found, cached, freshness).await
                }
            }
        }
    }

    fn judge(&self, found: &Found<'_>, view: &RequestView, cached: &CacheFile) -> Freshness {
        let cache = found.cache;
        let (file, path) = (found.file, view.path.as_str());
        let facts = found.docroot.facts(cache, (file, path), cached, self.runtime.clock.now());
        let freshness = judge(facts, cache.patience());
        let has_time_left = cached.expires.is_some() && freshness != Freshness::Expired;
        if has_time_left {
            self.log(Level::Debug, || {
                let file = found.docroot.path().join(found.file);
                format!("cache file has not expired: {}", file.display())
            });
        }
        self.log(Level::Debug, || {
            let file = found.docroot.path().join(found.file);
            let file = file.display();
            match freshness {
                Freshness::Valid => {
                    format!("cache file is newer than lastflush -> use cache [{file}]")
                }
                Freshness::Expired => format!("cache file has expired: {file}"),
                Freshness::Stale | Freshness::Marked => {
                    format!("cache file is older than lastflush -> flush [{file}]")
                }
            }
        });
        freshness
    }

    async fn hit(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        cached: CacheFile,
    ) -> Response<Body> {
        let permission = self.ask_permission(exchange).await;
        let Permission::Granted(extra) = permission else {
            return self.pass(exchange, CallBody::empty(), Reason::AuthCheckerDenied).await;
        };
        self.note_action(exchange, "DELIVER");
        self.metrics.count(Counter::Hits);
        exchange.info = "target file cached".to_owned();
        exchange.outcome = Told::Hit;
        let mut response = self.serve_file(exchange, found, cached);
        for (name, value) in &extra {
            response.headers_mut().append(name, value.clone());
        }
        response
    }

    /// Answers with a file, whatever its age.
    fn serve_file(
        &self,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        cached: CacheFile,
    ) -> Response<Body> {
        exchange.cache = "hit";
        found.docroot.note_use(found.file, self.runtime.clock.now());
        self.read_file(exchange, found, cached).unwrap_or_else(|error| {
            let file = found.docroot.path().join(found.file);
            tracing::error!(file = %file.display(), reason = %error, "cannot read a cache file");
            refusal(StatusCode::INTERNAL_SERVER_ERROR)
        })
    }

    fn read_file(
        &self,
        exchange: &Exchange<'_>,
        found: &Found<'_>,
        cached: CacheFile,
    ) -> std::io::Result<Response<Body>> {
        let view = exchange.view;
        let Known { mut headers, etag, modified } =
            hit::know(found.file, &cached, self.runtime.clock.now());
        if found.cache.compress && is_encodable(&headers) {
            add_vary(&mut headers);
        }
        let is_head = view.method == Method::HEAD;
        let length = cached.length;
        let entity = Entity { etag: &etag, modified, length, has_parts: !is_head };
        let told = hit::tell(&view.headers, &entity, headers);
        let kept = if is_head {
            KeptBody::Memory(Bytes::new())
        } else {
            let most = if view.is_tls { SMALL_TLS_BODY_BYTES } else { SMALL_BODY_BYTES };
            KeptBody::read(cached.body, cached.length, most)?
        };
        let has_body = !is_head && told.length > 0;
        let body = if has_body { kept.part(told.start, told.length)? } else { empty() };
        let mut response = Response::new(body);
        *response.status_mut() = told.status;
        *response.headers_mut() = told.headers;
        // A page that only the list of vanity URLs lets through is not decided by rules alone.
        if exchange.farm.farm.vanity_urls.is_none() || is_accepted(&exchange.farm.farm, view) {
            let source = Source {
                farm: Arc::clone(exchange.farm),
                serial: self.serial,
                file: found.file.into(),
                path: view.path.as_str().into(),
                length: cached.length,
                stamp: cached.stamp,
                fetched: cached.fetched,
                etag,
                modified,
                warning: exchange.warning.as_deref().map(Into::into),
                is_old: matches!(exchange.outcome, Told::Stale),
            };
            let keepable = Keepable { source: Arc::new(source), body: kept };
            response.extensions_mut().insert(keepable);
        }
        Ok(response)
    }

    /// Serves the old file while it is replaced, and lets one visitor replace it.
    async fn stale(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        cached: CacheFile,
        freshness: Freshness,
    ) -> Response<Body> {
        let farm = exchange.farm;
        let is_too_old = cached.marked.is_some_and(|marked| {
            let age = self.runtime.clock.now().duration_since(marked);
            age.unwrap_or_default() > found.cache.max_stale
        });
        if is_too_old || self.is_private(exchange) {
            return self.absent(exchange, found).await;
        }
        let key = farm.absolute(found.file);
        if farm.refetch.holds(found.file) {
            return self.old(exchange, found, cached);
        }
        if exchange.view.method == Method::HEAD {
            if self.flights.is_fetching(&key) {
                return self.old(exchange, found, cached);
            }
            return self.pass(exchange, CallBody::empty(), Reason::Head).await;
        }
        let Role::Lead(ticket) = self.flights.lead_or_join(&key) else {
            return self.old(exchange, found, cached);
        };
        if let Some(newer) = self.look_again(found, exchange.view) {
            ticket.finish(Outcome::Again);
            return self.hit(exchange, found, newer).await;
        }
        let allowed = self.allowed(found, exchange.view, &cached);
        let wait = self.begin(exchange, ticket, found, STALE_INFO);
        let is_soft = found.cache.flush_mode == FlushMode::Soft;
        if freshness == Freshness::Marked && is_soft || allowed.while_fetched {
            return self.old(exchange, found, cached);
        }
        let first = wait.await.unwrap_or(First::Failed(Failure::Broken));
        let stands_in = found.cache.serve_stale_on_error && is_error(&first)
            || allowed.while_failing
                && is_failure(&first)
                && self.is_still_allowed(found, exchange.view, cached.stamp);
        if stands_in {
            self.metrics.count(Counter::StaleOnError);
            let mut response = self.old(exchange, found, cached);
            response.extensions_mut().remove::<Keepable>();
            let warning = HeaderValue::from_static("111 - \"Revalidation Failed\"");
            response.headers_mut().insert(header::WARNING, warning);
            return response;
        }
        self.first(exchange, first)
    }

    /// Returns what the render allows for a copy that it let expire. What a flush concerns is allowed nothing.
    fn allowed(&self, found: &Found<'_>, view: &RequestView, cached: &CacheFile) -> Allowed {
        let cache = found.cache;
        let (Some(expires), Some(stored)) = (cached.expires, &cached.headers) else {
            return Allowed::default();
        };
        if !cache.obeys_stale_directives {
            return Allowed::default();
        }
        let now = self.runtime.clock.now();
        let facts = found.docroot.facts(cache, (found.file, view.path.as_str()), cached, now);
        if is_flushed(facts) {
            return Allowed::default();
        }
        let lenience = Lenience::kept(&stored.headers);
        Allowed {
            while_fetched: now <= expires + lenience.while_fetched,
            while_failing: now <= expires + lenience.while_failing,
        }
    }

    /// Tells whether a copy may still stand in for its render: a flush may have come since it was asked.
    fn is_still_allowed(&self, found: &Found<'_>, view: &RequestView, stamp: Stamp) -> bool {
        match found.docroot.look_up(found.file, found.cache.enable_ttl) {
            Ok(Lookup::File(cached)) => {
                cached.stamp == stamp && self.allowed(found, view, &cached).while_failing
            }
            _ => false,
        }
    }

    fn old(
        &self,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        cached: CacheFile,
    ) -> Response<Body> {
        self.note_action(exchange, "DELIVER");
        self.metrics.count(Counter::Stale);
        exchange.info = "target file cached".to_owned();
        exchange.outcome = Told::Stale;
        let mut response = self.serve_file(exchange, found, cached);
        if !self.is_awaited(exchange.farm, found.file) {
            response.extensions_mut().remove::<Keepable>();
        }
        response
    }

    /// Tells whether a newer file is on its way, so that visitors get the old one meanwhile.
    pub(crate) fn is_awaited(&self, farm: &FarmState, file: &Path) -> bool {
        farm.refetch.holds(file) || self.flights.is_fetching(&farm.absolute(file))
    }

    /// Fetches a file that is not there, or waits for the one who does.
    async fn absent(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
    ) -> Response<Body> {
        if let Some(response) = self.answer_negative(exchange, found.docroot, found.file) {
            return response;
        }
        let key = exchange.farm.absolute(found.file);
        // Who joins a fetch makes no render draw.
        let is_drawn = exchange.view.method == Method::HEAD || !self.flights.is_fetching(&key);
        if is_drawn && let Some(response) = self.limit_variants(exchange).await {
            return response;
        }
        if exchange.view.method == Method::HEAD {
            return self.pass(exchange, CallBody::empty(), Reason::Head).await;
        }
        let mut waiting = Waiting::new(found.cache.collapse_wait);
        for _ in 0..MAX_WAITS {
            match self.flights.enter(&key) {
                Role::Lead(ticket) => return self.lead(exchange, found, ticket).await,
                Role::Join(_) if self.is_private(exchange) => {
                    let reason = Reason::AuthCheckerDenied;
                    return self.pass(exchange, CallBody::empty(), reason).await;
                }
                Role::Join(flight) => {
                    let joined = self.join(exchange, found, (&flight, &mut waiting)).await;
                    if let Some(response) = joined {
                        return response;
                    }
                }
                Role::Pass(reason) => {
                    return self.pass(exchange, CallBody::empty(), reason).await;
                }
            }
        }
        self.pass(exchange, CallBody::empty(), Reason::Flushed).await
    }

    /// Fetches a file for all who wait for it.
    async fn lead(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        ticket: Ticket,
    ) -> Response<Body> {
        if !self.is_private(exchange)
            && let Some(newer) = self.look_again(found, exchange.view)
        {
            ticket.finish(Outcome::Again);
            return self.hit(exchange, found, newer).await;
        }
        let wait = self.begin(exchange, ticket, found, "caching");
        let first = wait.await.unwrap_or(First::Failed(Failure::Broken));
        self.first(exchange, first)
    }

    /// Waits for another one's fetch; nothing if the file has to be fetched nevertheless.
    async fn join(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        found: &Found<'_>,
        (flight, waiting): (&Flight, &mut Waiting),
    ) -> Option<Response<Body>> {
        if waiting.is_new() {
            self.metrics.count(Counter::Collapsed);
        }
        Some(match flight.wait(waiting).await {
            Waited::Ended(Outcome::Shared(page)) => {
                let response = self.page(exchange, &page, &page.stored);
                exchange.outcome = Told::Miss { is_collapsed: true };
                response
            }
            Waited::Ended(Outcome::Failed(failure)) => refusal(failure.status()),
            Waited::Ended(Outcome::Alone(reason)) => {
                match self.answer_negative(exchange, found.docroot, found.file) {
                    Some(response) => response,
                    None => self.pass(exchange, CallBody::empty(), reason).await,
                }
            }
            Waited::Ended(Outcome::Again) => {
                let newer = self.look_again(found, exchange.view)?;
                self.hit(exchange, found, newer).await
            }
            Waited::MayPass => self.pass(exchange, CallBody::empty(), Reason::Incomplete).await,
            Waited::InVain => {
                self.metrics.count(Counter::CollapsedInVain);
                let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE);
                response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
                response
            }
        })
    }

    /// Looks the file up once more: another fetch may have ended since.
    fn look_again(&self, found: &Found<'_>, view: &RequestView) -> Option<CacheFile> {
        match found.docroot.look_up(found.file, found.cache.enable_ttl) {
            Ok(Lookup::File(cached)) => {
                (self.judge(found, view, &cached) == Freshness::Valid).then_some(cached)
            }
            _ => None,
        }
    }

    fn begin(
        self: &Arc<Self>,
        exchange: &Exchange<'_>,
        ticket: Ticket,
        found: &Found<'_>,
        info: &'static str,
    ) -> oneshot::Receiver<First> {
        self.note_action(exchange, "CREATE");
        let target = variant::target_of(found.cache, exchange.view);
        let fetch = Fetch {
            call: Call { target, ..call(exchange, CallBody::empty(), Purpose::Cache) },
            file: found.file.to_owned(),
            path: exchange.view.path.as_str().to_owned(),
            host: exchange.view.headers.get(header::HOST).cloned(),
            // For a host that no farm has, the page is none that anybody else should see.
            visit: Visit::of(exchange.view).filter(|_| exchange.warning.is_none()),
            sequence: None,
            info,
        };
        start(self, exchange.farm, ticket, fetch)
    }

    /// Answers the one who caused a fetch.
    fn first(&self, exchange: &mut Exchange<'_>, first: First) -> Response<Body> {
        match first {
            First::Page(page) => {
                let mut response = self.page(exchange, &page, &page.headers);
                sticky::add_cookie(&mut response, exchange, &page.render);
                response
            }
            First::Answer(mut response, render, reason) => {
                self.metrics.count(Counter::Passes);
                sticky::add_cookie(&mut response, exchange, &render);
                exchange.render = Some(render);
                exchange.note_pass(reason);
                response
            }
            First::Failed(failure) => refusal(failure.status()),
            First::Behind => refusal(StatusCode::BAD_GATEWAY),
        }
    }

    fn page(
        &self,
        exchange: &mut Exchange<'_>,
        page: &Page,
        headers: &HeaderMap,
    ) -> Response<Body> {
        self.metrics.count(Counter::Misses);
        exchange.cache = "miss";
        exchange.outcome = Told::Miss { is_collapsed: false };
        exchange.render = Some(page.render.clone());
        exchange.info.clone_from(&page.info);
        let mut response = Response::new(page.body.open());
        *response.headers_mut() = headers.clone();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        let compresses = exchange.farm.farm.cache.as_ref().is_some_and(|cache| cache.compress);
        if compresses && is_encodable(headers) {
            add_vary(response.headers_mut());
        }
        if let Some(length) = page.body.length() {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        response
    }

    /// Forwards the request and stores nothing.
    pub(crate) async fn pass(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        body: CallBody,
        reason: Reason,
    ) -> Response<Body> {
        self.note_action(exchange, "NONE");
        self.metrics.count(Counter::Passes);
        exchange.note_pass(reason);
        let call = call(exchange, body, Purpose::Pass);
        match exchange.farm.upstream.send(&call).await {
            Ok(answer) => {
                let mut response = answer.response.map(boxed);
                clean_response(response.headers_mut());
                sticky::add_cookie(&mut response, exchange, &answer.render);
                exchange.render = Some(answer.render);
                response
            }
            Err(failure) => {
                if failure.is_visitors() {
                    return the_last(refusal(failure.status()));
                }
                self.metrics.count(Counter::RenderFailures);
                refusal(failure.status())
            }
        }
    }

    fn note_action(&self, exchange: &Exchange<'_>, action: &str) {
        self.log(Level::Debug, || format!("cache-action for [{}]: {action}", exchange.view.path));
    }
}

/// What a render allows for a copy that expired.
#[derive(Debug, Clone, Copy, Default)]
struct Allowed {
    while_fetched: bool,
    while_failing: bool,
}

/// Answers in whose place `stale-if-error` puts the old file (RFC 5861, section 4).
fn is_failure(first: &First) -> bool {
    match first {
        First::Answer(response, _, _) => matches!(response.status().as_u16(), 500 | 502..=504),
        other => is_error(other),
    }
}

/// Answers in whose place `/serveStaleOnError` puts the old file.
fn is_error(first: &First) -> bool {
    match first {
        First::Page(_) => false,
        First::Answer(response, _, _) => {
            matches!(response.status().as_u16(), 429 | 502 | 503 | 504)
        }
        First::Failed(_) | First::Behind => true,
    }
}

/// Returns the request that a render gets.
fn call(exchange: &Exchange<'_>, body: CallBody, purpose: Purpose) -> Call {
    let view = exchange.view;
    Call {
        method: view.method.clone(),
        target: view.wire_target(),
        headers: request_headers(&exchange.farm.farm, view, purpose),
        body,
        sticky: view
            .cookie(sticky::COOKIE)
            .and_then(|render| Some(std::str::from_utf8(render).ok()?.to_owned()))
            .or_else(|| view.render.clone()),
    }
}
