//! The processing of a request up to its response.
//!
//! Order: canonical path, flush or rules of the host, farm, filter, vanity URLs, cacheability, look-up, render, error
//! document, log.
//!
//! Not here: the decisions of each step (`request::host_routing`, `request::decision`, `cache::freshness`,
//! `edge::response_plan`), the fetching of pages (`upstream::page_fetch`).

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tower::{Service, service_fn};
use tympan_web::access_log;
use tympan_web::body_limit::BodyLimit;
use tympan_web::cache_path::CanonicalPathError;
use tympan_web::client::ClientError;
use tympan_web::forwarded_client::forwarded_client_address;
use tympan_web::ip_network::IpNetwork;
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_time::LogTime;
use tympan_web::request_head;
use tympan_web::secret_parameter::redact_secrets;

use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::cache::page_variant;
use crate::cache::response_memory::{DispatcherResponse, response_key_of};
use crate::config::{ClientHeaderPolicy, FarmConfig};
use crate::dispatcher_state::DispatcherState;
use crate::edge::own_response::{own_response, with_connection_close};
use crate::edge::response_body::{ResponseBody, boxed_body, empty_body, full_body};
use crate::edge::visitor_session;
use crate::farm_state::FarmState;
use crate::flush::propagation::FLUSH_EVENTS_HEADER;
use crate::observe::log::LogLevel;
use crate::observe::metrics::DispatcherCounter;
use crate::request::decision::{RequestAction, decide_in_farm, decide_source, is_flush};
use crate::request::exchange::RequestExchange;
use crate::request::farm_selection::{FarmMatch, select_farm};
use crate::request::host_routing::{ProxyTarget, RouteOutcome};
use crate::request::rate_limit::check_rate_limit;
use crate::request::traffic_share;
use crate::request::view::RequestView;
use crate::request::view::VisitorSession;
use crate::upstream::content_coding::DecodedBody;
use crate::upstream::header_forwarding::CONDITIONAL_HEADERS;
use crate::upstream::header_forwarding::{
    ForwardPurpose, add_forwarded_host, clean_response_headers, is_in_forwarding_loop,
    proxy_headers, request_headers,
};
use crate::upstream::page_include::has_includes;
use crate::upstream::sibling_copy::SIBLING_HEADER;
use crate::upstream::websocket::{self, VisitorUpgrade, WebSocketHandshake};
use crate::upstream::{UpstreamFailure, UpstreamRequest, VisitorBody};

/// Returns the service for the requests of visitors. A request uses the state that is current at its beginning.
pub(crate) fn visitor_service(
    current_state: impl Fn() -> Arc<DispatcherState> + Clone + Send + 'static,
) -> impl Service<Request<Incoming>, Response = Response<ResponseBody>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static {
    service_fn(move |request: Request<Incoming>| {
        let state = current_state();
        async move { Ok(state.answer_logged(request).await) }
    })
}

impl DispatcherState {
    async fn answer_logged(self: Arc<Self>, request: Request<Incoming>) -> Response<ResponseBody> {
        let Some(log) = &self.parts.runtime.access_log else {
            return self.answer_from_memory_or_regular_path(request).await;
        };
        let mut line = new_access_line(&request, &self.parts.request_gate.trusted_proxies);
        let response = self.answer_from_memory_or_regular_path(request).await;
        line.completed_at = LogTime::from_system(self.parts.runtime.clock.now());
        line.status = response.status().as_u16();
        line.body_bytes = response
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        log.write(line);
        response
    }

    /// Responds from memory, or on the regular path.
    async fn answer_from_memory_or_regular_path(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Response<ResponseBody> {
        let memory = &self.memory_responder;
        let peer = request.extensions().get::<ConnectionPeer>().copied();
        let peer = peer.filter(|_| memory.is_enabled());
        let key = peer.and_then(|peer| response_key_of(&request, peer.is_tls));
        let client = peer.map(|peer| peer.addr.ip().to_canonical());
        let cached_response = key
            .as_ref()
            .zip(client)
            .and_then(|(key, client)| memory.serve_from_memory(key, client, request.headers()));
        if let Some(response) = cached_response {
            return response;
        }
        let response = self.answer_with_framing_check(request).await;
        memory.store_response(key, response)
    }

    async fn answer_with_framing_check(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> DispatcherResponse {
        // An intermediary may have seen the body end elsewhere, so bytes after a chunked body on its connection are not
        // trusted as a request (RFC 9112, section 6.1).
        let _present = self.parts.metrics.begin_request();
        if !request.headers().contains_key(header::TRANSFER_ENCODING) {
            return self.answer_request(request).await;
        }
        if !request_head::has_supported_transfer_coding(request.headers()) {
            // Renders would get the decoded chunks without information about their encoding.
            self.parts.metrics.increment(DispatcherCounter::Refused);
            return with_connection_close(own_response(StatusCode::NOT_IMPLEMENTED));
        }
        with_connection_close(self.answer_request(request).await)
    }

    async fn answer_request(self: &Arc<Self>, request: Request<Incoming>) -> DispatcherResponse {
        let (mut head, body) = request.into_parts();
        let upgrade = VisitorUpgrade::take(&mut head.extensions);
        let Some(peer) = head.extensions.get::<ConnectionPeer>().copied() else {
            return own_response(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let BodyLimit(limit) = BodyLimit::of_request(&head.extensions);
        if let Err(fault) = request_head::normalize_authority(&mut head) {
            self.parts.metrics.increment(DispatcherCounter::Refused);
            self.parts.runtime.write_log(LogLevel::Debug, || {
                format!("request declined: {fault} [{}]", head.uri.path())
            });
            // A sender of such a head may have meant more than one request.
            return with_connection_close(own_response(StatusCode::BAD_REQUEST));
        }
        let slashes = self.parts.settings.encoded_slashes;
        let mut view = match RequestView::from_head_with_slashes(&head, peer, slashes) {
            Ok(view) => view,
            // As httpd answers it.
            Err(CanonicalPathError::EncodedSlash) => {
                self.parts.metrics.increment(DispatcherCounter::Refused);
                return own_response(StatusCode::NOT_FOUND);
            }
            Err(fault) => {
                self.parts.metrics.increment(DispatcherCounter::Refused);
                self.parts.runtime.write_log(LogLevel::Debug, || {
                    format!("request declined: {fault} [{}]", head.uri.path())
                });
                return own_response(StatusCode::BAD_REQUEST);
            }
        };
        if !self.parts.request_gate.trusted_proxies.is_empty() {
            view.apply_forwarded(&self.parts.request_gate.trusted_proxies);
        }
        if self.parts.settings.uses_forwarded_host {
            view.apply_forwarded_host();
        }
        if is_in_forwarding_loop(&view) {
            return own_response(StatusCode::LOOP_DETECTED);
        }
        if view.method == Method::POST && view.headers.contains_key(FLUSH_EVENTS_HEADER) {
            return self.sibling_receiver.handle_sibling_request(&view, body).await;
        }
        self.catch_up_gate.wait_until_open().await;
        // A flush names pages as farms see them, so rules for visitors' URLs do not apply.
        if is_flush(&view) {
            return self.answer_flush(&view, body, limit).await;
        }
        if let Some(response) =
            check_rate_limit(&self.parts.request_gate, &self.parts.metrics, view.client)
        {
            return response;
        }
        // A sibling has applied the rules already; it gets only what is meant for siblings.
        if view.headers.contains_key(SIBLING_HEADER) {
            return self.answer_in_farm(&view, body, limit).await;
        }
        let host = self.parts.settings.routes.find_host(&view.host);
        let mut response = match self.parts.settings.routes.route_request(&view) {
            RouteOutcome::Serve(rewritten) => {
                if self.parts.settings.sends_raw_url && rewritten.is_none() {
                    head.uri.path().clone_into(&mut view.wire_path);
                }
                let view = rewritten.map_or(view, |rewritten| *rewritten);
                if self.parts.settings.declines_root_url && view.path.as_str() == "/" {
                    own_response(StatusCode::NOT_FOUND)
                } else {
                    self.answer_in_farm(&view, body, limit).await
                }
            }
            RouteOutcome::Redirect(status, location) => redirect_response(status, location),
            RouteOutcome::Respond(status) => own_response(status),
            RouteOutcome::Proxy(proxied) => {
                let upgrade = upgrade.filter(|_| proxied.opens_websockets);
                let handshake = match &upgrade {
                    Some(_) => {
                        WebSocketHandshake::of_request(&head.method, head.version, &head.headers)
                    }
                    None => Ok(None),
                };
                match (handshake, upgrade) {
                    (Err(status), _) => with_connection_close(own_response(status)),
                    (Ok(Some(handshake)), Some(upgrade)) => {
                        self.open_websocket(&view, &proxied, (handshake, upgrade)).await
                    }
                    (Ok(_), _) => {
                        let gate = &self.parts.request_gate;
                        let body = VisitorBody::new(body, limit, gate.min_body_rate);
                        self.answer_from_proxy(&view, &proxied, body).await
                    }
                }
            }
        };
        if let Some(host) = host {
            for (name, value) in &host.headers {
                response.shared_headers_mut().insert(name, value.clone());
            }
        }
        response
    }

    /// Carries out a flush in its farm, whatever the farm's filter says: flush farms deny everything there, and
    /// `/allowedClients` decides.
    async fn answer_flush(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
        limit: u64,
    ) -> DispatcherResponse {
        let started = Instant::now();
        let Some((farm, farm_match)) = self.select_farm(view, self.visitor_lot(view)) else {
            return own_response(StatusCode::NOT_FOUND);
        };
        let mut exchange = self.begin_exchange(farm, farm_match, view);
        let mut response = self.flushes.answer_flush(&mut exchange, body, limit).await;
        self.record_response(&exchange, &mut response, started);
        response
    }

    async fn answer_in_farm(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
        limit: u64,
    ) -> DispatcherResponse {
        let started = Instant::now();
        let lot = self.visitor_lot(view);
        let Some((farm, farm_match)) = self.select_farm(view, lot) else {
            return own_response(StatusCode::NOT_FOUND);
        };
        let view = &*self.with_session(farm, view);
        let mut exchange = self.begin_exchange(farm, farm_match, view);
        let action = self.allow_vanity_url(decide_in_farm(&farm.config, view), &exchange);
        // A sibling needs neither error documents nor parts specific to a visitor.
        let is_page =
            !matches!(action, RequestAction::Purge) && !view.headers.contains_key(SIBLING_HEADER);
        let mut response = self.perform_action(action, &mut exchange, body, limit).await;
        self.record_session(&exchange, response.status()).await;
        if is_page {
            response = self.complete_response(&exchange, response).await;
        }
        if let Some((lot, true)) = lot.filter(|_| is_page) {
            traffic_share::add_lot_cookie(response.headers_mut(), view, lot);
        }
        self.record_response(&exchange, &mut response, started);
        response
    }

    /// Returns the lot that selects among farms with shares of the visitors, and whether it is new; `None` if no farm
    /// has a share.
    fn visitor_lot(&self, view: &RequestView) -> Option<(u32, bool)> {
        self.parts.has_shares.then(|| self.shares.visitor_lot(view))
    }

    /// Selects the farm of a request.
    fn select_farm(
        &self,
        view: &RequestView,
        lot: Option<(u32, bool)>,
    ) -> Option<(&Arc<FarmState>, FarmMatch)> {
        let admits = |farm: &FarmConfig| {
            lot.is_none_or(|(lot, _)| self.shares.admits_visitor(farm, view, lot))
        };
        let (config, farm_match) = select_farm(&self.config, view, admits)?;
        let farm = self.parts.farms.iter().find(|farm| Arc::ptr_eq(&farm.config, config))?;
        Some((farm, farm_match))
    }

    /// Returns the request with the session of its visitor. Reading a session is file I/O, so only farms that use
    /// sessions do it.
    fn with_session<'a>(&self, farm: &FarmState, view: &'a RequestView) -> Cow<'a, RequestView> {
        if let Some(sessions) = &farm.config.session_management
            && view.session == VisitorSession::Absent
        {
            let now = self.parts.runtime.clock.now();
            let session = visitor_session::find_session(sessions, view, now);
            if session != VisitorSession::Absent {
                return Cow::Owned(RequestView { session, ..view.clone() });
            }
        }
        Cow::Borrowed(view)
    }

    /// Begins a request in its farm, with a warning if no farm matches its host.
    fn begin_exchange<'a>(
        &self,
        farm: &'a Arc<FarmState>,
        farm_match: FarmMatch,
        view: &'a RequestView,
    ) -> RequestExchange<'a> {
        let mut exchange = RequestExchange::new(farm, view);
        exchange.is_visitor_request = true;
        if farm_match == FarmMatch::Default {
            let (host, name) = (&view.host, &farm.config.name);
            let warning = format!("No farm matches host '{host}', selected last farm '{name}'");
            self.parts.runtime.write_log(LogLevel::Warn, || warning.clone());
            exchange.warning = Some(warning);
        }
        exchange
    }

    /// Replaces an error by its error document, and fills the includes of a response.
    async fn complete_response(
        self: &Arc<Self>,
        exchange: &RequestExchange<'_>,
        response: DispatcherResponse,
    ) -> DispatcherResponse {
        let response = self.with_error_document(exchange, response).await;
        if !has_includes(&response) {
            return response;
        }
        // A page whose includes cannot be filled is an error, too.
        let filled = self.include_filler.fill_includes(exchange, response).await;
        self.with_error_document(exchange, filled).await
    }

    /// Begins or ends the visitor's session according to the render's response.
    async fn record_session(&self, exchange: &RequestExchange<'_>, status: StatusCode) {
        let (farm, view) = (&exchange.farm.config, exchange.view);
        let Some(sessions) = &farm.session_management else { return };
        let is_asked = matches!(
            exchange.outcome,
            CacheOutcome::Pass(
                NotCacheableReason::SessionRequired | NotCacheableReason::SessionInvalid
            )
        );
        if is_asked
            && status == StatusCode::OK
            && view.method == Method::GET
            && visitor_session::has_credentials(sessions, view)
        {
            // A page that the farm does not cache, such as a login page, may be for everyone.
            let valid = RequestView { session: VisitorSession::Valid, ..view.clone() };
            if matches!(decide_source(farm, &valid), RequestAction::Cache(_))
                && is_refused_without_credentials(exchange).await
            {
                visitor_session::begin_session(sessions, view, self.parts.runtime.clock.now());
            }
        }
        let is_turned_away = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        if is_turned_away && view.session != VisitorSession::Absent {
            visitor_session::end_session(sessions, view);
        }
    }

    /// Permits a refused request if it is for a vanity URL.
    fn allow_vanity_url<'a>(
        &self,
        action: RequestAction<'a>,
        exchange: &RequestExchange<'_>,
    ) -> RequestAction<'a> {
        let RequestAction::Refuse(rule) = &action else {
            return action;
        };
        let (farm, view) = (exchange.farm, exchange.view);
        if farm.config.vanity_urls.is_some() {
            self.parts.runtime.write_log(LogLevel::Debug, || "Checking vanity URLs".to_owned());
            if farm.vanity_list.contains(view.path.as_str()) {
                return decide_source(&farm.config, view);
            }
        }
        self.parts
            .runtime
            .write_log(LogLevel::Debug, || format!("Filter rejects: {}", view.request_line()));
        if let Some(rule) = rule {
            self.parts.runtime.write_log(LogLevel::Trace, || {
                let label = rule.label.as_deref().unwrap_or("-");
                format!("'{}' was blocked because of /{label}", view.request_line())
            });
        }
        action
    }

    async fn perform_action(
        self: &Arc<Self>,
        action: RequestAction<'_>,
        exchange: &mut RequestExchange<'_>,
        body: Incoming,
        limit: u64,
    ) -> DispatcherResponse {
        let (view, farm) = (exchange.view, exchange.farm);
        self.log_query_effect(&action, exchange);
        match action {
            RequestAction::Purge => self.flushes.answer_purge(exchange).await,
            RequestAction::Refuse(_) | RequestAction::RefuseReserved => {
                self.parts.metrics.increment(DispatcherCounter::Refused);
                own_response(StatusCode::NOT_FOUND)
            }
            // Siblings do not request pages that are not cached here.
            RequestAction::Pass(_) if view.headers.contains_key(SIBLING_HEADER) => {
                own_response(StatusCode::NOT_FOUND)
            }
            RequestAction::Pass(reason) => {
                if view.is_get_or_head()
                    && let Some(response) = self.cached_page_service.limit_variants(exchange).await
                {
                    return response;
                }
                let body = VisitorBody::new(body, limit, self.parts.request_gate.min_body_rate);
                let response =
                    self.cached_page_service.forward_uncached(exchange, body, reason).await;
                let is_changed = farm.config.is_http_cache
                    && !view.method.is_safe()
                    && (response.status().is_success() || response.status().is_redirection());
                if is_changed {
                    self.flushes.invalidate_changed_pages(exchange, response.headers()).await;
                }
                response
            }
            RequestAction::Cache(file) if farm.docroot.is_some() => {
                self.parts
                    .runtime
                    .write_log(LogLevel::Debug, || format!("checking [{}]", view.path));
                if view.headers.contains_key(SIBLING_HEADER) {
                    return self.sibling_copies.serve_sibling_copy(exchange, &file);
                }
                self.cached_page_service.serve_from_docroot(exchange, &file).await
            }
            RequestAction::Cache(_) => {
                let body = VisitorBody::new(body, limit, self.parts.request_gate.min_body_rate);
                self.cached_page_service
                    .forward_uncached(exchange, body, NotCacheableReason::NoDocroot)
                    .await
            }
        }
    }

    /// Logs the effect of the query on caching.
    fn log_query_effect(&self, action: &RequestAction<'_>, exchange: &RequestExchange<'_>) {
        let Some(query) = exchange.view.query.as_deref() else { return };
        let shown_query = format!("?{query}");
        let shown_query = redact_secrets(&shown_query);
        let shown_query = shown_query.trim_start_matches('?');
        match action {
            RequestAction::Cache(_) => self
                .parts
                .runtime
                .write_log(LogLevel::Debug, || format!("Query string ignored: {shown_query}")),
            RequestAction::Pass(NotCacheableReason::Query) => {
                let cache = exchange.farm.config.cache.as_ref();
                let counts = |pair: &&str| {
                    cache.is_none_or(|cache| {
                        page_variant::parameter_use(cache, pair)
                            == page_variant::ParameterUse::Unknown
                    })
                };
                if let Some(pair) = page_variant::query_pairs(query).find(counts) {
                    self.parts.runtime.write_log(LogLevel::Debug, || {
                        let name = pair.split('=').next().unwrap_or(pair);
                        format!("Name not in ignored URL parameters ACL: {name}")
                    });
                }
                self.parts.runtime.write_log(LogLevel::Debug, || {
                    format!("request contains a query string: {shown_query}")
                });
            }
            _ => {}
        }
    }

    /// Forwards the request to another server.
    async fn answer_from_proxy(
        &self,
        view: &RequestView,
        proxied: &ProxyTarget,
        body: VisitorBody,
    ) -> DispatcherResponse {
        let Some(request) = build_proxy_request(view, proxied, body.clone()) else {
            return own_response(StatusCode::BAD_REQUEST);
        };
        self.parts.metrics.increment(DispatcherCounter::Proxied);
        match self.proxy_client.send(request).await {
            Ok(proxy_response) => self.relay_proxy_response(view, proxied, proxy_response),
            Err(error) => match UpstreamFailure::from_visitor_body(&error, &body) {
                Some(failure) => with_connection_close(own_response(failure.status())),
                None => self.answer_proxy_failure(view, &error),
            },
        }
    }

    /// Passes a WebSocket's handshake on to another server, and connects the visitor with it if it accepts.
    async fn open_websocket(
        &self,
        view: &RequestView,
        proxied: &ProxyTarget,
        (handshake, upgrade): (WebSocketHandshake, VisitorUpgrade),
    ) -> DispatcherResponse {
        let Some(place) = self.tunnels.try_acquire() else {
            self.parts.metrics.increment(DispatcherCounter::WebSocketsRefused);
            return own_response(StatusCode::SERVICE_UNAVAILABLE);
        };
        let Some(mut request) = build_proxy_request(view, proxied, VisitorBody::empty()) else {
            return own_response(StatusCode::BAD_REQUEST);
        };
        WebSocketHandshake::add_to_request(request.headers_mut());
        self.parts.metrics.increment(DispatcherCounter::Proxied);
        let accepted = match self.proxy_client.send(request).await {
            Ok(response) if response.status() != StatusCode::SWITCHING_PROTOCOLS => {
                return self.relay_proxy_response(view, proxied, response);
            }
            Ok(response) if !handshake.is_accepted_by(&response) => {
                tracing::warn!(path = %view.path, reason = "it does not accept the handshake that it got",
                    "WebSocket to a proxied server failed");
                self.parts.metrics.increment(DispatcherCounter::RenderFailures);
                return own_response(StatusCode::BAD_GATEWAY);
            }
            Ok(response) => response,
            Err(error) => return self.answer_proxy_failure(view, &error),
        };
        self.parts.metrics.increment(DispatcherCounter::WebSockets);
        let mut response = Response::new(empty_body());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = accepted.headers().clone();
        clean_response_headers(response.headers_mut());
        websocket::add_upgrade_headers(response.headers_mut());
        websocket::begin_tunnel(upgrade, accepted, place);
        response.into()
    }

    /// Returns the response of another server to its visitor.
    fn relay_proxy_response(
        &self,
        view: &RequestView,
        proxied: &ProxyTarget,
        response: Response<Incoming>,
    ) -> DispatcherResponse {
        let (mut parts, body) = response.into_parts();
        let body = match DecodedBody::from_response(&mut parts.headers, body) {
            Ok(body) => body,
            Err(error) => {
                tracing::warn!(path = %view.path, reason = %error, "request to a proxied server failed");
                self.parts.metrics.increment(DispatcherCounter::RenderFailures);
                return own_response(StatusCode::BAD_GATEWAY);
            }
        };
        let mut response = Response::from_parts(parts, boxed_body(body));
        clean_response_headers(response.headers_mut());
        proxied.rewrite_location(response.headers_mut());
        response.into()
    }

    /// Returns the response in place of that of another server, which failed.
    fn answer_proxy_failure(&self, view: &RequestView, error: &ClientError) -> DispatcherResponse {
        tracing::warn!(path = %view.path, reason = %error, "request to a proxied server failed");
        self.parts.metrics.increment(DispatcherCounter::RenderFailures);
        own_response(match error {
            ClientError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            _ => StatusCode::BAD_GATEWAY,
        })
    }

    /// Replaces an error by its error document, if one is configured.
    async fn with_error_document(
        self: &Arc<Self>,
        exchange: &RequestExchange<'_>,
        response: DispatcherResponse,
    ) -> DispatcherResponse {
        let status = response.status();
        let is_own = response.is_created_by_dispatcher();
        if status.as_u16() < 400 || !is_own && !self.parts.settings.replaces_error(status.as_u16())
        {
            return response;
        }
        let host = self.parts.settings.routes.find_host(&exchange.view.host);
        let Some(document) = self.parts.settings.error_document(host, status.as_u16()) else {
            return response;
        };
        if document.starts_with("http://") || document.starts_with("https://") {
            let location = HeaderValue::from_str(document);
            return location
                .map_or(response, |location| redirect_response(StatusCode::FOUND, location));
        }
        if !document.starts_with('/') {
            let mut text = Response::new(full_body(document.to_owned()));
            *text.status_mut() = status;
            let kind = HeaderValue::from_static("text/html; charset=utf-8");
            text.headers_mut().insert(header::CONTENT_TYPE, kind);
            return text.into();
        }
        let (path, query) = document.split_once('?').unwrap_or((document, ""));
        let query = (!query.is_empty()).then(|| query.to_owned());
        let Ok(mut view) = exchange.view.with_target(path, query) else {
            return response;
        };
        view.method = Method::GET;
        for name in CONDITIONAL_HEADERS {
            view.headers.remove(name);
        }
        let mut inner = RequestExchange::new(exchange.farm, &view);
        // The document belongs to the operator, so the filter is not applied.
        let mut page = match decide_source(&exchange.farm.config, &view) {
            RequestAction::Cache(file) if exchange.farm.docroot.is_some() => {
                self.cached_page_service.serve_from_docroot(&mut inner, &file).await
            }
            RequestAction::Pass(reason) => {
                self.cached_page_service
                    .forward_uncached(&mut inner, VisitorBody::empty(), reason)
                    .await
            }
            _ => {
                self.cached_page_service
                    .forward_uncached(
                        &mut inner,
                        VisitorBody::empty(),
                        NotCacheableReason::NoDocroot,
                    )
                    .await
            }
        };
        if has_includes(&page) {
            page = self.include_filler.fill_includes(&inner, page).await;
        }
        if page.status() != StatusCode::OK {
            return response;
        }
        page.set_status(status);
        // These describe the document, not the error.
        for name in [header::ETAG, header::LAST_MODIFIED, header::AGE, header::ACCEPT_RANGES] {
            page.headers_mut().remove(name);
        }
        page
    }

    /// Records the request in the counters and the log, and in response headers if the visitor requested them.
    fn record_response(
        &self,
        exchange: &RequestExchange<'_>,
        response: &mut DispatcherResponse,
        started: Instant,
    ) {
        let (view, farm) = (exchange.view, &exchange.farm.config);
        exchange.farm.farm_metrics.count_request(
            view.path.as_str(),
            exchange.outcome,
            response.status(),
        );
        exchange.farm.farm_metrics.request_histogram.record_request(
            &view.method,
            response.status(),
            started.elapsed(),
        );
        let headers = response.shared_headers_mut();
        if self.parts.settings.restricts_uncacheable_content
            && matches!(exchange.outcome, CacheOutcome::Pass(_))
        {
            headers.remove(header::EXPIRES);
            headers.remove(header::CACHE_CONTROL);
        }
        let wants_info =
            farm.answers_info_requests && view.headers.contains_key("x-dispatcher-info");
        if wants_info && let Ok(info) = HeaderValue::from_str(&exchange.cache_info) {
            headers.insert("x-cache-info", info);
        }
        let tells = wants_info || farm.sends_cache_status;
        if let Some(status) = exchange.outcome.cache_status_header().filter(|_| tells)
            && let Ok(status) = HeaderValue::from_str(&status)
        {
            headers.append("cache-status", status);
        }
        self.parts.runtime.write_log(LogLevel::Info, || {
            let status = match (exchange.cache_label, response.status()) {
                ("hit" | "miss", _) => "-".to_owned(),
                (_, status) => status.as_u16().to_string(),
            };
            let elapsed = started.elapsed().as_millis();
            let render = exchange.render.as_deref().unwrap_or("-");
            format!(
                "\"{} {}\" {status} {} [{}/{render}] {elapsed}ms",
                view.method, view.path, exchange.cache_label, farm.name
            )
        });
        let served = self.parts.metrics.value(DispatcherCounter::Hits);
        if served > 0 && served.is_multiple_of(1000) && exchange.cache_label == "hit" {
            self.parts.runtime.write_log(LogLevel::Info, || {
                format!("Current cache hit ratio: {:.2} %", self.parts.metrics.hit_ratio())
            });
        }
    }
}

/// Returns the request to another server; `None` if its URL is invalid.
fn build_proxy_request(
    view: &RequestView,
    proxied: &ProxyTarget,
    body: VisitorBody,
) -> Option<Request<VisitorBody>> {
    let mut request = Request::new(body);
    *request.method_mut() = view.method.clone();
    *request.headers_mut() = proxy_headers(&ClientHeaderPolicy::All, view, ForwardPurpose::Pass);
    add_forwarded_host(request.headers_mut(), view);
    if !proxied.keeps_host {
        request.headers_mut().remove(header::HOST);
    }
    *request.uri_mut() = proxied.url.parse().ok()?;
    Some(request)
}

/// Returns true if the render refuses a visitor without credentials the page of an exchange. A page that everyone gets
/// proves nothing about the credentials that were sent with the request for it.
async fn is_refused_without_credentials(exchange: &RequestExchange<'_>) -> bool {
    let farm = &exchange.farm.config;
    let mut view = exchange.view.clone();
    for name in [header::AUTHORIZATION, header::COOKIE] {
        view.headers.remove(name);
    }
    if let Some(sessions) = &farm.session_management {
        visitor_session::remove_credentials(sessions, &mut view.headers);
    }
    let request = UpstreamRequest {
        headers: request_headers(farm, &view, ForwardPurpose::Cache),
        ..UpstreamRequest::get(view.wire_target())
    };
    let Ok(answer) = exchange.farm.upstream.send(&request).await else { return false };
    let status = answer.response.status();
    let refusals = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::NOT_FOUND];
    refusals.contains(&status) || status.is_redirection()
}

/// Returns the log line for a request whose response is not known yet.
fn new_access_line(
    request: &Request<Incoming>,
    trusted: &[IpNetwork],
) -> access_log::AccessLogLine {
    let text = |name| {
        let value = request.headers().get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let peer = request.extensions().get::<ConnectionPeer>();
    let target = request.uri().path_and_query().map_or("*", PathAndQuery::as_str);
    access_log::AccessLogLine {
        client: peer.map_or_else(String::new, |peer| {
            forwarded_client_address(request.headers(), peer.addr.ip().to_canonical(), trusted)
                .to_string()
        }),
        user: None,
        completed_at: LogTime::from_system(std::time::UNIX_EPOCH),
        // HTTP/2 and absolute targets contain the host, too, which is not part of the line.
        request: format!("{} {target} {:?}", request.method(), request.version()),
        status: 0,
        body_bytes: None,
        referer: text(header::REFERER),
        user_agent: text(header::USER_AGENT),
    }
}

/// Returns a redirect response.
fn redirect_response(status: StatusCode, location: HeaderValue) -> DispatcherResponse {
    let mut response = own_response(status);
    response.headers_mut().insert(header::LOCATION, location);
    response
}
