//! Requests to the renders of a farm: rounds of attempts, failover, timeouts.
//!
//! Invariants
//! * A request with a body is repeated only while nothing of its body was read; one without side effects also after a
//!   connection broke.
//! * Every wait has the timeouts of the render's configuration.

pub(crate) mod admission;
pub(crate) mod content_coding;
pub(crate) mod header_forwarding;
pub(crate) mod load_balancer;
pub(crate) mod page_fetch;
pub(crate) mod page_include;
pub(crate) mod render_health;
pub(crate) mod request_coalescing;
pub(crate) mod revalidation;
pub(crate) mod shadow;
pub(crate) mod sibling_copy;
pub(crate) mod websocket;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::Instant;
use tympan_web::body_limit::{
    BodyReadTimeout, LimitedBody, MinReadRate, is_body_timeout, is_body_too_large, limit_body,
};
use tympan_web::client::{ClientError, ClientOptions, HttpClient};

use crate::clock::DispatcherClock;
use crate::config::{FarmConfig, RenderConfig};
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::observe::log::{DispatcherLog, LogLevel};
use crate::upstream::admission::{RenderAdmission, RenderPermit};
use crate::upstream::content_coding::{DecodedBody, UpstreamBoxError};
use crate::upstream::load_balancer::RenderScoreboard;
use crate::upstream::render_health::{RenderAvailability, RenderHealth};

/// The timeout for a health page; exceeding it counts as a failure.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time without a byte of its body after which a visitor's request is given up.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The renders of one farm.
#[derive(Debug)]
pub(crate) struct Upstream {
    farm: Arc<FarmConfig>,
    targets: Vec<RenderTarget>,
    scores: Arc<RenderScoreboard>,
    log: DispatcherLog,
    clock: DispatcherClock,
}

#[derive(Debug)]
struct RenderTarget {
    render: RenderConfig,
    client: HttpClient,
    admission: RenderAdmission,
    /// The number of consecutive bad responses of the health page.
    bad_probes: AtomicU32,
    health: RenderHealth,
    answered_count: AtomicU64,
    failed_count: AtomicU64,
    /// The number of responses to visitors whose cookie names this render.
    sticky_count: AtomicU64,
}

/// The status of a render.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RenderStatus {
    pub(crate) name: String,
    pub(crate) address: String,
    /// The state: `in`, `slow start`, `trial`, `out`, or `ill` by its health page.
    pub(crate) availability: &'static str,
    pub(crate) in_flight: u32,
    pub(crate) waiting_count: usize,
    pub(crate) answered_count: u64,
    pub(crate) failed_count: u64,
    /// The number of responses to visitors whose cookie names this render.
    pub(crate) sticky_count: u64,
    /// The score in milliseconds.
    pub(crate) score: f64,
}

/// A request to any render of the farm.
#[derive(Debug)]
pub(crate) struct UpstreamRequest {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: VisitorBody,
    /// The render that a sticky cookie names.
    pub(crate) sticky_render: Option<String>,
}

/// The reason why no render responded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No render could be reached: 502.
    NoConnection,
    /// The connection broke: 502.
    ConnectionBroken,
    /// A render was reached but did not respond in time: 504.
    Timeout,
    /// All renders are busy and their queues are full: 503.
    Overloaded,
    /// The visitor's body is too large: 413.
    BodyTooLarge,
    /// The visitor's body did not arrive in time: 408.
    BodyStalled,
    /// The visitor's body was cut off, or its chunks are malformed: 400.
    BodyBroken,
}

impl UpstreamFailure {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::NoConnection | Self::ConnectionBroken => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyStalled => StatusCode::REQUEST_TIMEOUT,
            Self::BodyBroken => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns the failure if the visitor's body caused it; `None` if the server did.
    pub(crate) fn from_visitor_body(error: &ClientError, body: &VisitorBody) -> Option<Self> {
        let ClientError::Broken { source, .. } = error else { return None };
        if is_body_too_large(&**source) {
            Some(Self::BodyTooLarge)
        } else if is_body_timeout(&**source) {
            Some(Self::BodyStalled)
        } else {
            body.is_broken().then_some(Self::BodyBroken)
        }
    }

    /// Returns true if the visitor's body failed and not a render.
    pub(crate) fn is_visitor_failure(self) -> bool {
        matches!(self, Self::BodyTooLarge | Self::BodyStalled | Self::BodyBroken)
    }
}

/// A response and the render that sent it.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) response: Response<RenderBody>,
    pub(crate) render: String,
}

impl Upstream {
    pub(crate) fn new(
        farm: &Arc<FarmConfig>,
        runtime: &DispatcherRuntime,
        keep_alive: Option<Duration>,
    ) -> Self {
        let default = ClientOptions::default();
        let idle_timeout = keep_alive.unwrap_or(default.idle_timeout);
        let targets: Vec<RenderTarget> = farm
            .renders
            .iter()
            .map(|render| RenderTarget {
                render: render.clone(),
                admission: RenderAdmission::new(render),
                bad_probes: AtomicU32::new(0),
                health: RenderHealth::new(farm.health),
                answered_count: AtomicU64::new(0),
                failed_count: AtomicU64::new(0),
                sticky_count: AtomicU64::new(0),
                client: HttpClient::new(ClientOptions {
                    connect_timeout: render.connect_timeout,
                    response_timeout: render.receive_timeout,
                    tls_trust: runtime.trust.clone(),
                    idle_timeout,
                    // A secure connection resolves its name itself, so only a new connection resolves it again.
                    max_idle_per_host: if idle_timeout.is_zero()
                        || (render.is_secure && render.is_always_resolved)
                    {
                        0
                    } else {
                        default.max_idle_per_host
                    },
                    outgoing_policy: None,
                }),
            })
            .collect();
        let scores = Arc::new(RenderScoreboard::new(targets.len(), farm.categories.len()));
        Self {
            farm: Arc::clone(farm),
            targets,
            scores,
            log: runtime.log.clone(),
            clock: runtime.clock.clone(),
        }
    }

    /// Sends `call` to the best render, and to others if that one fails.
    pub(crate) async fn send(
        &self,
        call: &UpstreamRequest,
    ) -> Result<UpstreamResponse, UpstreamFailure> {
        let category = self.category_index(&call.target);
        let mut refused = None;
        let mut is_busy = false;
        for retry_round in 0..self.farm.retry_rounds {
            // With every circuit breaker open, an immediate response is better than the same one after all rounds.
            if self.is_breaker_open() {
                return Err(UpstreamFailure::NoConnection);
            }
            if retry_round > 0 {
                tokio::time::sleep(self.farm.retry_delay).await;
            }
            for index in self.render_order(category, call.sticky_render.as_deref()) {
                match self.attempt_render(index, category, call).await {
                    Ok(response) => match self.judge_response(index, call, response).await {
                        RenderVerdict::Accept(response) => return Ok(response),
                        RenderVerdict::TryAnother(response) => refused = Some(response),
                    },
                    Err(AttemptFailure::TryNext) => {}
                    Err(AttemptFailure::Busy) => is_busy = true,
                    Err(AttemptFailure::GiveUp(failure)) => return Err(failure),
                }
            }
            if let Some(response) = refused.take() {
                return Ok(response);
            }
            // A request that waited in a queue is not queued again.
            if is_busy {
                tracing::warn!(farm = %self.farm.name, "all renders are busy");
                return Err(UpstreamFailure::Overloaded);
            }
        }
        tracing::warn!(farm = %self.farm.name, "unable to connect to any backend");
        self.log.write(&self.clock, LogLevel::Error, || {
            format!("Unable to connect to any backend in farm {}", self.farm.name)
        });
        Err(UpstreamFailure::NoConnection)
    }

    /// Returns true if every render is disabled by its circuit breaker.
    fn is_breaker_open(&self) -> bool {
        let now = Instant::now();
        let is_out = |target: &RenderTarget| {
            target.health.availability(now) == RenderAvailability::Unavailable
        };
        self.farm.health.has_circuit_breaker
            && !self.targets.is_empty()
            && self.targets.iter().all(is_out)
    }

    fn render_order(&self, category: usize, sticky: Option<&str>) -> Vec<usize> {
        let now = Instant::now();
        let standing = |index: usize| {
            let target = self.targets.get(index);
            target.map_or(RenderAvailability::Unavailable, |target| target.health.availability(now))
        };
        let mut order = self.scores.rank_renders(category, now, |index| match standing(index) {
            RenderAvailability::Available(part) => part,
            RenderAvailability::Trial | RenderAvailability::Unavailable => 1.0,
        });
        if self.farm.health.has_circuit_breaker {
            order.retain(|index| standing(*index) != RenderAvailability::Unavailable);
        }
        // A render that is ill or out is tried after all others failed, a busy one if no other is free, and one whose
        // outage has ended is tried by the next request.
        order.sort_by_key(|index| {
            let target = self.targets.get(*index);
            let standing = standing(*index);
            let is_ill = standing == RenderAvailability::Unavailable
                || target.is_some_and(|target| self.is_ejected(target));
            let is_free = target.is_some_and(|target| target.admission.is_free());
            (is_ill, standing != RenderAvailability::Trial, !is_free)
        });
        let preferred = sticky
            .and_then(|name| self.targets.iter().position(|target| target.render.name == name));
        let is_well = |preferred: &usize| {
            let is_ejected =
                self.targets.get(*preferred).is_some_and(|target| self.is_ejected(target));
            let is_in = matches!(standing(*preferred), RenderAvailability::Available(_));
            self.scores.is_live(*preferred, now) && !is_ejected && is_in
        };
        if let Some(preferred) = preferred.filter(is_well) {
            order.retain(|index| *index != preferred);
            order.insert(0, preferred);
        }
        order
    }

    /// Returns the index of the category of a URL; the last index stands for none.
    fn category_index(&self, target: &str) -> usize {
        let path = target.split('?').next().unwrap_or(target);
        let categories = &self.farm.categories;
        categories
            .iter()
            .position(|category| category.glob.matches(path))
            .unwrap_or(categories.len())
    }

    async fn attempt_render(
        &self,
        index: usize,
        category: usize,
        call: &UpstreamRequest,
    ) -> Result<UpstreamResponse, AttemptFailure> {
        let Some(target) = self.targets.get(index) else {
            return Err(AttemptFailure::TryNext);
        };
        let Some(permit) = target.admission.acquire().await else {
            return Err(AttemptFailure::Busy);
        };
        let permit = Arc::new(permit);
        let started = Instant::now();
        target.health.begin_request(started);
        let mut outcome = self.exchange_with_render(index, target, call, &permit).await;
        if matches!(outcome, Err(ClientError::Broken { .. })) && call.is_repeatable() {
            // The render may have closed a pooled connection at the moment of its reuse.
            outcome = self.exchange_with_render(index, target, call, &permit).await;
        }
        let now = Instant::now();
        let error = match outcome {
            Ok(response) => {
                self.scores.record_success(index, category, now - started, now);
                self.record_result(target, !is_gateway_failure(response.status()), now);
                let render = target.render.name.clone();
                if call.sticky_render.as_deref() == Some(render.as_str()) {
                    target.sticky_count.fetch_add(1, Ordering::Relaxed);
                }
                self.log.write(&self.clock, LogLevel::Debug, || {
                    let RenderConfig { hostname, port, .. } = &target.render;
                    format!("Connected to backend {render} ({hostname}:{port})")
                });
                return Ok(UpstreamResponse { response, render });
            }
            Err(error) => error,
        };
        // A visitor's own body that was cut off says nothing about the render.
        if let Some(failure) = UpstreamFailure::from_visitor_body(&error, &call.body) {
            return Err(AttemptFailure::GiveUp(failure));
        }
        self.scores.record_failure(index, self.farm.unavailable_penalty, now);
        self.record_result(target, false, now);
        tracing::debug!(farm = %self.farm.name, render = %target.render.name, reason = %error, "render failed");
        Err(self.classify_error(&error, call))
    }

    /// Records the result of a render's response for its health.
    fn record_result(&self, target: &RenderTarget, is_well: bool, now: Instant) {
        let (farm, render) = (&self.farm.name, &target.render.name);
        if is_well {
            target.answered_count.fetch_add(1, Ordering::Relaxed);
            if target.health.record_success(now) {
                tracing::info!(%farm, %render, "render available again");
            }
        } else {
            target.failed_count.fetch_add(1, Ordering::Relaxed);
            if target.health.record_failure(now) {
                tracing::warn!(%farm, %render, "render failed several times in a row; not using it for a \
                    while");
            }
        }
    }

    /// Returns the status of the renders.
    pub(crate) fn render_statuses(&self) -> Vec<RenderStatus> {
        let now = Instant::now();
        let status = |(index, target): (usize, &RenderTarget)| RenderStatus {
            name: target.render.name.clone(),
            address: format!("{}:{}", target.render.hostname, target.render.port),
            availability: match target.health.availability(now) {
                _ if self.is_ejected(target) => "ill",
                RenderAvailability::Available(_) if !self.scores.is_live(index, now) => "failing",
                RenderAvailability::Available(part) if part < 1.0 => "slow start",
                RenderAvailability::Available(_) => "in",
                RenderAvailability::Trial => "trial",
                RenderAvailability::Unavailable => "out",
            },
            in_flight: self.scores.in_flight(index),
            waiting_count: target.admission.waiting_count(),
            answered_count: target.answered_count.load(Ordering::Relaxed),
            failed_count: target.failed_count.load(Ordering::Relaxed),
            sticky_count: target.sticky_count.load(Ordering::Relaxed),
            score: self.scores.render_score(index, now),
        };
        self.targets.iter().enumerate().map(status).collect()
    }

    fn classify_error(&self, error: &ClientError, call: &UpstreamRequest) -> AttemptFailure {
        match error {
            ClientError::Timeout { .. } => AttemptFailure::GiveUp(UpstreamFailure::Timeout),
            ClientError::Broken { .. } if call.is_repeatable() && self.targets.len() > 1 => {
                AttemptFailure::TryNext
            }
            error if error.is_unsent() && call.body.is_untouched() => AttemptFailure::TryNext,
            _ => AttemptFailure::GiveUp(UpstreamFailure::ConnectionBroken),
        }
    }

    async fn exchange_with_render(
        &self,
        index: usize,
        target: &RenderTarget,
        call: &UpstreamRequest,
        permit: &Arc<RenderPermit>,
    ) -> Result<Response<RenderBody>, ClientError> {
        let render = &target.render;
        let scheme = if render.is_secure { "https" } else { "http" };
        let own = format!("{}:{}", render.hostname, render.port);
        let address = if render.is_always_resolved || render.picks_random_ipv4 {
            resolve_render(render).await
        } else {
            None
        };
        let authority = address.map_or_else(|| own.clone(), |address| address.to_string());
        let uri = format!("{scheme}://{authority}{}", call.target);
        let mut request = Request::new(call.body.clone());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri.parse().map_err(|_invalid| ClientError::Request {
            uri: uri.clone(),
            reason: "the URI cannot be parsed".to_owned(),
        })?;
        *request.headers_mut() = call.headers.clone();
        // Otherwise the address would replace the name; the default port is omitted.
        let is_usual = render.port == if render.is_secure { 443 } else { 80 };
        if let Ok(own) = HeaderValue::from_str(if is_usual { &render.hostname } else { &own }) {
            request.headers_mut().entry(header::HOST).or_insert(own);
        }
        let in_flight = InFlightRequest::begin(&self.scores, index, permit);
        let response = target.client.send(request).await?;
        let timeout = render.receive_timeout;
        let (mut parts, body) = response.into_parts();
        let decoded = DecodedBody::from_response(&mut parts.headers, body);
        let body =
            decoded.map_err(|error| ClientError::Broken { host: own, source: error.into() })?;
        Ok(Response::from_parts(parts, RenderBody::new(body, timeout, in_flight)))
    }

    /// Decides if a render's error is returned to the visitor or another render is tried.
    async fn judge_response(
        &self,
        index: usize,
        call: &UpstreamRequest,
        response: UpstreamResponse,
    ) -> RenderVerdict {
        let status = response.response.status();
        if !self.farm.has_failover || !status.is_server_error() || !call.body.is_untouched() {
            return RenderVerdict::Accept(response);
        }
        let is_ill = status == StatusCode::SERVICE_UNAVAILABLE || self.is_unhealthy(index).await;
        if !is_ill {
            return RenderVerdict::Accept(response);
        }
        self.scores.record_failure(index, self.farm.unavailable_penalty, Instant::now());
        RenderVerdict::TryAnother(response)
    }

    /// Returns true if the health page of a render failed too often.
    fn is_ejected(&self, target: &RenderTarget) -> bool {
        target.bad_probes.load(Ordering::Relaxed) >= self.farm.probe_failures
    }

    /// Returns the number of requests that wait for a busy render.
    pub(crate) fn waiting_count(&self) -> usize {
        self.targets.iter().map(|target| target.admission.waiting_count()).sum()
    }

    /// Returns the number of renders that are tried last because their health page fails.
    pub(crate) fn ejected_count(&self) -> usize {
        self.targets.iter().filter(|target| self.is_ejected(target)).count()
    }

    /// Periodically requests the health page of every render.
    pub(crate) async fn keep_probing(&self, url: &str, interval: Duration) {
        loop {
            for (index, target) in self.targets.iter().enumerate() {
                let call = UpstreamRequest::get(url.to_owned());
                let permit = Arc::new(RenderPermit::uncounted());
                let probe = self.exchange_with_render(index, target, &call, &permit);
                let response = tokio::time::timeout(PROBE_TIMEOUT, probe).await;
                let is_good = matches!(response, Ok(Ok(answer)) if answer.status().is_success());
                let was_ejected = self.is_ejected(target);
                if is_good {
                    target.bad_probes.store(0, Ordering::Relaxed);
                } else {
                    let bad = target.bad_probes.load(Ordering::Relaxed).saturating_add(1);
                    target.bad_probes.store(bad, Ordering::Relaxed);
                }
                let (farm, render) = (&self.farm.name, &target.render.name);
                match (was_ejected, self.is_ejected(target)) {
                    (false, true) => {
                        tracing::warn!(%farm, %render, "health check of a render failed")
                    }
                    (true, false) => {
                        target.health.start_slowly(Instant::now());
                        tracing::info!(%farm, %render, "render healthy again");
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// Requests the health page of a render; only a 500 means that it is ill.
    async fn is_unhealthy(&self, index: usize) -> bool {
        let (Some(url), Some(target)) = (&self.farm.health_check, self.targets.get(index)) else {
            return false;
        };
        let call = UpstreamRequest::get(url.clone());
        // The page is requested outside the queue: a render that is merely busy must not count as ill.
        let permit = Arc::new(RenderPermit::uncounted());
        match self.exchange_with_render(index, target, &call, &permit).await {
            Ok(response) => response.status() == StatusCode::INTERNAL_SERVER_ERROR,
            Err(_unreachable) => true,
        }
    }
}

/// Resolves a render's name again; `None` where the connection itself does it, as TLS needs the name.
async fn resolve_render(render: &RenderConfig) -> Option<SocketAddr> {
    if render.is_secure {
        return None;
    }
    let addresses = tokio::net::lookup_host((render.hostname.as_str(), render.port)).await.ok()?;
    let addresses: Vec<SocketAddr> =
        addresses.filter(|address| !render.picks_random_ipv4 || address.is_ipv4()).collect();
    // The low bits of the clock are random enough to spread connections.
    let turn = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos() as usize / 64);
    let index = if render.picks_random_ipv4 { turn % addresses.len().max(1) } else { 0 };
    addresses.get(index).copied()
}

/// Returns true if a status means that a render, or a server behind it, does not work.
fn is_gateway_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

enum AttemptFailure {
    TryNext,
    Busy,
    GiveUp(UpstreamFailure),
}

enum RenderVerdict {
    Accept(UpstreamResponse),
    TryAnother(UpstreamResponse),
}

impl UpstreamRequest {
    /// Returns a request without headers and body.
    pub(crate) fn get(target: String) -> Self {
        Self {
            method: Method::GET,
            target,
            headers: HeaderMap::new(),
            body: VisitorBody::empty(),
            sticky_render: None,
        }
    }

    fn is_repeatable(&self) -> bool {
        self.body.is_empty() && (self.method.is_safe() || self.method.is_idempotent())
    }
}

/// A visitor's body, which attempts share until one of them begins to read it.
#[derive(Debug)]
pub(crate) struct VisitorBody {
    state: Arc<Mutex<VisitorBodyState>>,
    active_body: Option<LimitedBody<Incoming>>,
    length: Option<u64>,
}

impl Clone for VisitorBody {
    /// Returns the body for another attempt, which is available only if no attempt has begun to read it.
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), active_body: None, length: self.length }
    }
}

#[derive(Debug)]
enum VisitorBodyState {
    Empty,
    Waiting(Option<LimitedBody<Incoming>>),
    /// It ended before it was complete.
    Broken,
}

impl VisitorBody {
    pub(crate) fn empty() -> Self {
        Self {
            state: Arc::new(Mutex::new(VisitorBodyState::Empty)),
            active_body: None,
            length: Some(0),
        }
    }

    /// Returns a visitor's body, which fails beyond `max_bytes` or below the minimum rate.
    pub(crate) fn new(body: Incoming, max_bytes: u64, pace: Option<MinReadRate>) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        let length = body.size_hint().exact();
        let body =
            limit_body(body, max_bytes).with_idle_timeout(BODY_TIMEOUT).with_min_read_rate(pace);
        Self {
            state: Arc::new(Mutex::new(VisitorBodyState::Waiting(Some(body)))),
            active_body: None,
            length,
        }
    }

    fn is_empty(&self) -> bool {
        matches!(*self.state.lock(), VisitorBodyState::Empty)
    }

    /// Returns true if nothing of the body was read yet.
    fn is_untouched(&self) -> bool {
        match &*self.state.lock() {
            VisitorBodyState::Empty => true,
            VisitorBodyState::Waiting(body) => body.is_some(),
            VisitorBodyState::Broken => false,
        }
    }

    /// Returns true if the visitor did not send all of it.
    fn is_broken(&self) -> bool {
        matches!(*self.state.lock(), VisitorBodyState::Broken)
    }
}

impl Body for VisitorBody {
    type Data = Bytes;
    type Error = UpstreamBoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBoxError>>> {
        if self.active_body.is_none() {
            let body_state = match &mut *self.state.lock() {
                VisitorBodyState::Empty => return Poll::Ready(None),
                VisitorBodyState::Waiting(body) => body.take(),
                VisitorBodyState::Broken => None,
            };
            let Some(body) = body_state else {
                return Poll::Ready(Some(Err("another attempt has already read the body".into())));
            };
            self.active_body = Some(body);
        }
        let Some(body) = &mut self.active_body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(Err(_)))) {
            *self.state.lock() = VisitorBodyState::Broken;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.length == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// Counts a request at its render until it is dropped.
#[derive(Debug)]
struct InFlightRequest {
    scores: Arc<RenderScoreboard>,
    render: usize,
    _permit: Arc<RenderPermit>,
}

impl InFlightRequest {
    fn begin(scores: &Arc<RenderScoreboard>, render: usize, permit: &Arc<RenderPermit>) -> Self {
        scores.begin_request(render);
        Self { scores: Arc::clone(scores), render, _permit: Arc::clone(permit) }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.scores.end_request(self.render);
    }
}

/// A render's body, which fails if nothing arrives for the render's receive timeout.
#[derive(Debug)]
pub(crate) struct RenderBody {
    body: DecodedBody<Incoming>,
    read_timeout: BodyReadTimeout,
    _in_flight: InFlightRequest,
}

impl RenderBody {
    fn new(
        body: DecodedBody<Incoming>,
        timeout: Option<Duration>,
        in_flight: InFlightRequest,
    ) -> Self {
        Self { body, read_timeout: BodyReadTimeout::new(timeout), _in_flight: in_flight }
    }

    /// Removes supported content codings from a response to be stored, because it is also sent to visitors who accept
    /// none.
    fn decode_content_codings(&mut self, headers: &mut HeaderMap) {
        self.body.decode_content_codings(headers);
    }

    /// Makes the body also fail below the minimum rate.
    fn enforce_min_rate(&mut self, pace: Option<MinReadRate>) {
        self.read_timeout.set_min_read_rate(pace);
    }
}

impl Body for RenderBody {
    type Data = Bytes;
    type Error = UpstreamBoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.read_timeout.record_bytes(data.map_or(0, |data| data.len() as u64));
            return Poll::Ready(frame);
        }
        self.read_timeout.poll_timeout(cx).map(|reason| Some(Err(reason)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
