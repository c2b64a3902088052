//! The way of a request to its answer.
//!
//! Order: canonical path, flush or rules of the host, farm, filter, vanity URLs, cacheability, look-up, render, error
//! document, log.
//!
//! Not here: how each step decides (`route`, `decision`, `freshness`, `plan`), how pages are fetched (`fetch`).

use std::sync::Arc;
use std::time::Instant;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tympan_web::access_log;
use tympan_web::forwarded::client_behind;
use tympan_web::limit::BodyLimit;
use tympan_web::listen::Peer;
use tympan_web::log_time::LogTime;
use tympan_web::network::Network;
use tympan_web::secret_parameters::without_secrets;

use crate::authority;
use crate::cacheable::Reason;
use crate::coding::Decoded;
use crate::config::{ClientHeaders, Farm};
use crate::decision::{Action, decide_among, is_flush, place};
use crate::dispatcher::{FarmState, Inner};
use crate::farm::Found;
use crate::forward::{Purpose, add_forwarded_host, clean_response, is_circling, proxy_headers};
use crate::gossip::PASSED;
use crate::include::has_includes;
use crate::log::Level;
use crate::memory::Keepable;
use crate::metrics::Counter;
use crate::page::{Body, boxed, full};
use crate::request::RequestView;
use crate::route::{Proxied, Routed};
use crate::sessions::{self, Session};
use crate::share;
use crate::sibling::SIBLING;
use crate::upstream::{CallBody, Failure};
use crate::variant;

/// One request on its way, with what the log tells about it in the end.
pub(crate) struct Exchange<'a> {
    pub(crate) farm: &'a Arc<FarmState>,
    pub(crate) view: &'a RequestView,
    /// `hit`, `miss`, `none` or `purge`.
    pub(crate) cache: &'static str,
    pub(crate) render: Option<String>,
    /// For the header `X-Cache-Info`.
    pub(crate) info: String,
    /// What the log was warned of.
    pub(crate) warning: Option<String>,
    /// What the cache did, for the counters and the header `Cache-Status`.
    pub(crate) outcome: Outcome,
    /// Whether a visitor chose the URL, and not a page that names its parts or a rule that names a document.
    pub(crate) is_visitors: bool,
}

/// What the cache did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing: it never came to the cache.
    Apart,
    /// Served from a fresh file.
    Hit,
    /// Served with an error that is remembered.
    Negative,
    /// Served from a file that is out of date.
    Stale,
    /// Fetched, or waited for another one's fetch.
    Miss { is_collapsed: bool },
    /// Forwarded and not stored.
    Pass(Reason),
    /// Neither forwarded nor served.
    Refused(Reason),
}

/// Marks answers that the dispatcher made itself.
#[derive(Debug, Clone, Copy)]
struct OwnAnswer;

impl Inner {
    pub(crate) async fn answer_logged(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        let Some(log) = &self.runtime.access_log else {
            return self.recall_or_answer(request).await;
        };
        let mut line = access_line(&request, &self.gate.trusted);
        let response = self.recall_or_answer(request).await;
        line.at = LogTime::from_system(self.runtime.clock.now());
        line.status = response.status().as_u16();
        line.bytes = response
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        log.write(line);
        response
    }

    pub(crate) async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        // Another server on the way may have seen the body end elsewhere, so what follows a chunked body on its
        // connection is not believed to be a request (RFC 9112, section 6.1).
        let coding = request.headers().get(header::TRANSFER_ENCODING).cloned();
        let _present = self.metrics.enter();
        let Some(coding) = coding else { return self.answer_one(request).await };
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            // What is in the chunks would reach renders without a word about how it is encoded.
            self.metrics.count(Counter::Refused);
            return the_last(refusal(StatusCode::NOT_IMPLEMENTED));
        }
        the_last(self.answer_one(request).await)
    }

    async fn answer_one(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (mut head, body) = request.into_parts();
        let Some(peer) = head.extensions.get::<Peer>().copied() else {
            return refusal(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let limit = head.extensions.get::<BodyLimit>().map_or(u64::MAX, |limit| limit.0);
        if let Err(fault) = authority::settle(&mut head) {
            self.metrics.count(Counter::Refused);
            self.log(Level::Debug, || format!("request declined: {fault} [{}]", head.uri.path()));
            // Who writes such a head may have meant more by it than one request.
            return the_last(refusal(StatusCode::BAD_REQUEST));
        }
        let mut view = match RequestView::read(&head, peer) {
            Ok(view) => view,
            Err(fault) => {
                self.metrics.count(Counter::Refused);
                self.log(Level::Debug, || {
                    format!("request declined: {fault} [{}]", head.uri.path())
                });
                return refusal(StatusCode::BAD_REQUEST);
            }
        };
        if !self.gate.trusted.is_empty() {
            view.use_forwarded(&self.gate.trusted);
        }
        if self.switches.uses_forwarded_host {
            view.use_forwarded_host();
        }
        if is_circling(&view) {
            return refusal(StatusCode::LOOP_DETECTED);
        }
        if view.method == Method::POST && view.headers.contains_key(PASSED) {
            return self.hear(&view, body).await;
        }
        self.ready.wait().await;
        // A flush names pages as farms know them, so no rule of visitors' URLs concerns it.
        if is_flush(&view) {
            return self.answer_in_farm(&view, body, limit).await;
        }
        if let Some(response) = self.limit_rate(&view) {
            return response;
        }
        // A sibling has applied the rules already; what is not for it, it does not get.
        if view.headers.contains_key(SIBLING) {
            return self.answer_in_farm(&view, body, limit).await;
        }
        let host = self.switches.routes.host(&view.host);
        let mut response = match self.switches.routes.apply(&view) {
            Routed::Serve(rewritten) => {
                if self.switches.sends_raw_url && rewritten.is_none() {
                    head.uri.path().clone_into(&mut view.wire_path);
                }
                let view = rewritten.map_or(view, |rewritten| *rewritten);
                if self.switches.declines_root && view.path.as_str() == "/" {
                    refusal(StatusCode::NOT_FOUND)
                } else {
                    self.answer_in_farm(&view, body, limit).await
                }
            }
            Routed::Redirect(status, location) => moved(status, location),
            Routed::Answer(status) => refusal(status),
            Routed::Proxy(proxied) => {
                let body = CallBody::new(body, limit, self.gate.pace);
                self.answer_by_proxy(&view, &proxied, body).await
            }
        };
        if let Some(host) = host {
            for (name, value) in &host.headers {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }

    /// Counts a request of its client; returns the answer if it asks too much.
    pub(crate) fn limit_rate(&self, view: &RequestView) -> Option<Response<Body>> {
        let wait = self.gate.admit(view.client).err()?;
        self.metrics.count(Counter::RateLimited);
        let mut response = refusal(StatusCode::TOO_MANY_REQUESTS);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
        Some(response)
    }

    async fn answer_in_farm(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
        limit: u64,
    ) -> Response<Body> {
        let started = Instant::now();
        let lot = self.has_shares.then(|| self.shares.lot(view));
        let admits = |farm: &Farm| lot.is_none_or(|(lot, _)| self.shares.admits(farm, view, lot));
        let Some(decision) = decide_among(&self.config, view, admits) else {
            return refusal(StatusCode::NOT_FOUND);
        };
        // A visitor's session is a file, so only farms that ask for it look.
        if let Some(sessions) = &decision.farm.sessions
            && view.session == Session::Absent
        {
            let session = sessions::find(sessions, view, self.runtime.clock.now());
            if session != Session::Absent {
                let view = RequestView { session, ..view.clone() };
                return Box::pin(self.answer_in_farm(&view, body, limit)).await;
            }
        }
        let state = self.farms.iter().find(|state| Arc::ptr_eq(&state.farm, decision.farm));
        let Some(state) = state else {
            return refusal(StatusCode::NOT_FOUND);
        };
        let mut exchange = Exchange::new(state, view);
        exchange.is_visitors = true;
        if decision.found == Found::Default {
            let (host, name) = (&view.host, &state.farm.name);
            let warning = format!("No farm matches host '{host}', selected last farm '{name}'");
            self.log(Level::Warn, || warning.clone());
            exchange.warning = Some(warning);
        }
        let action = self.open_by_vanity(decision.action, &exchange);
        // A sibling wants neither error documents nor parts that are one visitor's.
        let is_page =
            !matches!(action, Action::Flush | Action::Purge) && !view.headers.contains_key(SIBLING);
        let mut response = self.act(action, &mut exchange, body, limit).await;
        self.note_session(&exchange, response.status());
        if is_page {
            response = self.complete(&exchange, response).await;
        }
        if let Some((lot, true)) = lot.filter(|_| is_page) {
            share::add_cookie(&mut response, view, lot);
        }
        self.finish(&exchange, &mut response, started);
        response
    }

    /// Puts an error document in the place of an error, and parts into the places that an answer has for them.
    async fn complete(
        self: &Arc<Self>,
        exchange: &Exchange<'_>,
        response: Response<Body>,
    ) -> Response<Body> {
        let response = self.with_error_document(exchange, response).await;
        if !has_includes(&response) {
            return response;
        }
        // A page whose places cannot be filled is an error, too.
        let filled = self.fill(exchange, response).await;
        self.with_error_document(exchange, filled).await
    }

    /// Believes a visitor's credentials, or does so no more, as the render's answer says.
    fn note_session(&self, exchange: &Exchange<'_>, status: StatusCode) {
        let (farm, view) = (&exchange.farm.farm, exchange.view);
        let Some(sessions) = &farm.sessions else { return };
        let is_asked = matches!(
            exchange.outcome,
            Outcome::Pass(Reason::SessionRequired | Reason::SessionInvalid)
        );
        if is_asked && status == StatusCode::OK && view.method == Method::GET {
            // What the farm does not cache, such as a page to log in, may be for everyone.
            let valid = RequestView { session: Session::Valid, ..view.clone() };
            if matches!(place(farm, &valid), Action::Cache(_)) {
                sessions::begin(sessions, view, self.runtime.clock.now());
            }
        }
        let is_turned_away = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_turned_away && view.session != Session::Absent {
            sessions::end(sessions, view);
        }
    }

    /// Lets a refused request pass if it asks for a vanity URL.
    fn open_by_vanity<'a>(&self, action: Action<'a>, exchange: &Exchange<'_>) -> Action<'a> {
        let Action::Refuse(rule) = &action else {
            return action;
        };
        let (farm, view) = (exchange.farm, exchange.view);
        if farm.farm.vanity_urls.is_some() {
            self.log(Level::Debug, || "Checking vanity URLs".to_owned());
            if farm.vanity.contains(view.path.as_str()) {
                return place(&farm.farm, view);
            }
        }
        self.log(Level::Debug, || format!("Filter rejects: {}", view.line()));
        if let Some(rule) = rule {
            self.log(Level::Trace, || {
                let label = rule.label.as_deref().unwrap_or("-");
                format!("'{}' was blocked because of /{label}", view.line())
            });
        }
        action
    }

    async fn act(
        self: &Arc<Self>,
        action: Action<'_>,
        exchange: &mut Exchange<'_>,
        body: Incoming,
        limit: u64,
    ) -> Response<Body> {
        let (view, farm) = (exchange.view, exchange.farm);
        self.log_query(&action, exchange);
        match action {
            Action::Flush => self.flush(exchange, body, limit).await,
            Action::Purge => self.purge(exchange).await,
            Action::Refuse(_) | Action::RefuseReserved => {
                self.metrics.count(Counter::Refused);
                refusal(StatusCode::NOT_FOUND)
            }
            // What is not kept here, no sibling asks for.
            Action::Pass(_) if view.headers.contains_key(SIBLING) => refusal(StatusCode::NOT_FOUND),
            Action::Pass(reason) => {
                if view.is_read()
                    && let Some(response) = self.limit_variants(exchange).await
                {
                    return response;
                }
                let body = CallBody::new(body, limit, self.gate.pace);
                self.pass(exchange, body, reason).await
            }
            Action::Cache(file) if farm.docroot.is_some() => {
                self.log(Level::Debug, || format!("checking [{}]", view.path));
                if view.headers.contains_key(SIBLING) {
                    return self.answer_sibling(exchange, &file);
                }
                self.cached(exchange, &file).await
            }
            Action::Cache(_) => {
                let body = CallBody::new(body, limit, self.gate.pace);
                self.pass(exchange, body, Reason::NoDocroot).await
            }
        }
    }

    /// Tells what the query means for the cache.
    fn log_query(&self, action: &Action<'_>, exchange: &Exchange<'_>) {
        let Some(query) = exchange.view.query.as_deref() else { return };
        let shown = format!("?{query}");
        let shown = without_secrets(&shown);
        let shown = shown.trim_start_matches('?');
        match action {
            Action::Cache(_) => self.log(Level::Debug, || format!("Query string ignored: {shown}")),
            Action::Pass(Reason::Query) => {
                let cache = exchange.farm.farm.cache.as_ref();
                let counts = |pair: &&str| {
                    cache.is_none_or(|cache| variant::use_of(cache, pair) == variant::Use::Unknown)
                };
                if let Some(pair) = variant::pairs(query).find(counts) {
                    self.log(Level::Debug, || {
                        let name = pair.split('=').next().unwrap_or(pair);
                        format!("Name not in ignored URL parameters ACL: {name}")
                    });
                }
                self.log(Level::Debug, || format!("request contains a query string: {shown}"));
            }
            _ => {}
        }
    }

    /// Lets another server answer.
    async fn answer_by_proxy(
        &self,
        view: &RequestView,
        proxied: &Proxied,
        body: CallBody,
    ) -> Response<Body> {
        let mut request = Request::new(body.clone());
        *request.method_mut() = view.method.clone();
        *request.headers_mut() = proxy_headers(&ClientHeaders::All, view, Purpose::Pass);
        add_forwarded_host(request.headers_mut(), view);
        if !proxied.keeps_host {
            request.headers_mut().remove(header::HOST);
        }
        let Ok(uri) = proxied.url.parse() else {
            return refusal(StatusCode::BAD_REQUEST);
        };
        *request.uri_mut() = uri;
        self.metrics.count(Counter::Proxied);
        match self.proxy.send(request).await {
            Ok(answer) => {
                let (mut parts, body) = answer.into_parts();
                let body = match Decoded::of_answer(&mut parts.headers, body) {
                    Ok(body) => body,
                    Err(error) => {
                        tracing::warn!(path = %view.path, reason = %error, "a proxied server did not answer");
                        self.metrics.count(Counter::RenderFailures);
                        return refusal(StatusCode::BAD_GATEWAY);
                    }
                };
                let mut response = Response::from_parts(parts, boxed(body));
                clean_response(response.headers_mut());
                proxied.reverse(response.headers_mut());
                response
            }
            Err(error) => {
                if let Some(failure) = Failure::of_visitor(&error, &body) {
                    return the_last(refusal(failure.status()));
                }
                tracing::warn!(path = %view.path, reason = %error, "a proxied server did not answer");
                self.metrics.count(Counter::RenderFailures);
                refusal(match error {
                    tympan_web::client::Error::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::BAD_GATEWAY,
                })
            }
        }
    }

    /// Puts the error document in the place of an error, if one is set for it.
    async fn with_error_document(
        self: &Arc<Self>,
        exchange: &Exchange<'_>,
        response: Response<Body>,
    ) -> Response<Body> {
        let status = response.status();
        let is_own = response.extensions().get::<OwnAnswer>().is_some();
        if status.as_u16() < 400 || !is_own && !self.switches.passes_error(status.as_u16()) {
            return response;
        }
        let host = self.switches.routes.host(&exchange.view.host);
        let Some(document) = self.switches.error_document(host, status.as_u16()) else {
            return response;
        };
        if document.starts_with("http://") || document.starts_with("https://") {
            let location = HeaderValue::from_str(document);
            return location.map_or(response, |location| moved(StatusCode::FOUND, location));
        }
        if !document.starts_with('/') {
            let mut text = Response::new(full(document.to_owned()));
            *text.status_mut() = status;
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            text.headers_mut().insert(header::CONTENT_TYPE, kind);
            return text;
        }
        let (path, query) = document.split_once('?').unwrap_or((document, ""));
        let query = (!query.is_empty()).then(|| query.to_owned());
        let Ok(mut view) = exchange.view.with_target(path, query) else {
            return response;
        };
        view.method = Method::GET;
        for name in CONDITIONS {
            view.headers.remove(name);
        }
        let mut inner = Exchange::new(exchange.farm, &view);
        // The document is the operator's own, so the filter is not asked.
        let mut page = match place(&exchange.farm.farm, &view) {
            Action::Cache(file) if exchange.farm.docroot.is_some() => {
                self.cached(&mut inner, &file).await
            }
            Action::Pass(reason) => self.pass(&mut inner, CallBody::empty(), reason).await,
            _ => self.pass(&mut inner, CallBody::empty(), Reason::NoDocroot).await,
        };
        if has_includes(&page) {
            page = self.fill(&inner, page).await;
        }
        if page.status() != StatusCode::OK {
            return response;
        }
        // It is no answer from a file any more, and its head is not that of the document.
        page.extensions_mut().remove::<Keepable>();
        *page.status_mut() = status;
        for name in [header::ETAG, header::LAST_MODIFIED, header::AGE, header::ACCEPT_RANGES] {
            page.headers_mut().remove(name);
        }
        page
    }

    /// Writes what happened to the counters and the log, and to the visitor if it asked.
    fn finish(&self, exchange: &Exchange<'_>, response: &mut Response<Body>, started: Instant) {
        let (view, farm) = (exchange.view, &exchange.farm.farm);
        exchange.farm.tally.count(view.path.as_str(), exchange.outcome);
        exchange.farm.tally.times.note(&view.method, response.status(), started.elapsed());
        let headers = response.headers_mut();
        if self.switches.restricts_uncacheable && matches!(exchange.outcome, Outcome::Pass(_)) {
            headers.remove(header::EXPIRES);
            headers.remove(header::CACHE_CONTROL);
        }
        let wants_info = farm.has_info && view.headers.contains_key("x-dispatcher-info");
        if wants_info && let Ok(info) = HeaderValue::from_str(&exchange.info) {
            headers.insert("x-cache-info", info);
        }
        let tells = wants_info || farm.tells_cache_status;
        if let Some(status) = exchange.outcome.cache_status().filter(|_| tells)
            && let Ok(status) = HeaderValue::from_str(&status)
        {
            headers.append("cache-status", status);
        }
        self.log(Level::Info, || {
            let status = match (exchange.cache, response.status()) {
                ("hit" | "miss", _) => "-".to_owned(),
                (_, status) => status.as_u16().to_string(),
            };
            let elapsed = started.elapsed().as_millis();
            let render = exchange.render.as_deref().unwrap_or("-");
            format!(
                "\"{} {}\" {status} {} [{}/{render}] {elapsed}ms",
                view.method, view.path, exchange.cache, farm.name
            )
        });
        let served = self.metrics.value(Counter::Hits);
        if served > 0 && served.is_multiple_of(1000) && exchange.cache == "hit" {
            self.log(Level::Info, || {
                format!("Current cache hit ratio: {:.2} %", self.metrics.hit_ratio())
            });
        }
    }
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(farm: &'a Arc<FarmState>, view: &'a RequestView) -> Self {
        Self {
            farm,
            view,
            cache: "none",
            render: None,
            info: String::new(),
            warning: None,
            outcome: Outcome::Apart,
            is_visitors: false,
        }
    }

    /// Notes that the answer is not stored, and why.
    pub(crate) fn note_pass(&mut self, reason: Reason) {
        self.info = format!("not cacheable: {reason}");
        self.outcome = Outcome::Pass(reason);
    }
}

impl Outcome {
    /// Returns the header `Cache-Status` (RFC 9211).
    fn cache_status(self) -> Option<String> {
        Some(match self {
            Self::Apart => return None,
            // It was not forwarded (RFC 9211, section 2.2, has `fwd` for what was).
            Self::Refused(reason) => format!("tympan; detail=\"{reason}\""),
            Self::Hit => "tympan; hit".to_owned(),
            Self::Negative => "tympan; hit; detail=negative".to_owned(),
            Self::Stale => "tympan; hit; fwd=stale; detail=stale".to_owned(),
            Self::Miss { is_collapsed: false } => "tympan; fwd=uri-miss; stored".to_owned(),
            Self::Miss { is_collapsed: true } => "tympan; fwd=uri-miss; collapsed".to_owned(),
            Self::Pass(reason) => {
                let by = if reason.is_of_method() { "method" } else { "bypass" };
                format!("tympan; fwd={by}; detail=\"{reason}\"")
            }
        })
    }
}

/// What a visitor asked of another page.
pub(crate) const CONDITIONS: [header::HeaderName; 6] = [
    header::RANGE,
    header::IF_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
];

/// Returns the line for a request whose answer is not known yet.
fn access_line(request: &Request<Incoming>, trusted: &[Network]) -> access_log::Line {
    let text = |name| {
        let value = request.headers().get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let peer = request.extensions().get::<Peer>();
    let target = request.uri().path_and_query().map_or("*", PathAndQuery::as_str);
    access_log::Line {
        client: peer.map_or_else(String::new, |peer| {
            client_behind(request.headers(), peer.addr.ip().to_canonical(), trusted).to_string()
        }),
        user: None,
        at: LogTime::from_system(std::time::UNIX_EPOCH),
        // HTTP/2 and absolute targets name the host too, which is no part of the line.
        request: format!("{} {target} {:?}", request.method(), request.version()),
        status: 0,
        bytes: None,
        referer: text(header::REFERER),
        user_agent: text(header::USER_AGENT),
    }
}

/// Makes an answer the last one of its connection.
pub(crate) fn the_last(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns an answer of the dispatcher's own.
pub(crate) fn refusal(status: StatusCode) -> Response<Body> {
    let reason = status.canonical_reason().unwrap_or("Error");
    let text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>{0} {reason}</title></head>\
         <body><h1>{reason}</h1></body></html>\n",
        status.as_u16()
    );
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.extensions_mut().insert(OwnAnswer);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

/// Sends the visitor elsewhere.
fn moved(status: StatusCode, location: HeaderValue) -> Response<Body> {
    let mut response = refusal(status);
    response.headers_mut().insert(header::LOCATION, location);
    response
}
