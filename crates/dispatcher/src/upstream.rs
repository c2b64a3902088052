//! Asking the renders of a farm: rounds of attempts, failover, time limits.
//!
//! Invariants
//! * A request with a body is repeated only while nothing of its body was read; one without effects also after a
//!   connection broke.
//! * Every wait has the limits of the render's configuration.

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
use tympan_web::client::{Client, Error, Options};
use tympan_web::limit::{Limited, Pace, Wait, is_stalled, is_too_large, limited};

use crate::admission::{Door, Place};
use crate::balance::Scores;
use crate::clock::Clock;
use crate::coding::Decoded;
use crate::config::{Farm, Render};
use crate::dispatcher::Runtime;
use crate::health::{Health, Standing};
use crate::log::{Level, Log};

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A health page that takes longer is bad.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// A visitor that sends no byte of its body for this long is given up.
pub(crate) const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// The renders of one farm.
#[derive(Debug)]
pub(crate) struct Upstream {
    farm: Arc<Farm>,
    targets: Vec<Target>,
    scores: Arc<Scores>,
    log: Log,
    clock: Clock,
}

#[derive(Debug)]
struct Target {
    render: Render,
    client: Client,
    door: Door,
    /// Bad answers of the health page in a row.
    bad_probes: AtomicU32,
    health: Health,
    answered: AtomicU64,
    failed: AtomicU64,
    /// Answers to visitors whose cookie names this render.
    sticky: AtomicU64,
}

/// How a render is doing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RenderStatus {
    pub(crate) name: String,
    pub(crate) address: String,
    /// `in`, `slow start`, `trial`, `out`, or `ill` by its health page.
    pub(crate) standing: &'static str,
    pub(crate) in_flight: u32,
    pub(crate) waiting: usize,
    pub(crate) answered: u64,
    pub(crate) failed: u64,
    /// Answers to visitors whose cookie names this render.
    pub(crate) sticky: u64,
    /// In milliseconds.
    pub(crate) score: f64,
}

/// One request to whichever render answers.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: CallBody,
    /// The render that a sticky cookie names.
    pub(crate) sticky: Option<String>,
}

/// Why no render answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No render could be reached: 502.
    NoConnection,
    /// The connection broke: 502.
    Broken,
    /// A render was reached but did not answer in time: 504.
    Timeout,
    /// All renders are busy and enough requests wait already: 503.
    Overloaded,
    /// The visitor's body is too large: 413.
    BodyTooLarge,
    /// The visitor's body did not arrive: 408.
    BodyStalled,
    /// The visitor's body broke off, or its chunks cannot be read: 400.
    BodyBroken,
}

impl Failure {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::NoConnection | Self::Broken => StatusCode::BAD_GATEWAY,
            Self::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyStalled => StatusCode::REQUEST_TIMEOUT,
            Self::BodyBroken => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns why an exchange failed, if the visitor's body did and not who was asked.
    pub(crate) fn of_visitor(error: &Error, body: &CallBody) -> Option<Self> {
        let Error::Broken { source, .. } = error else { return None };
        if is_too_large(&**source) {
            Some(Self::BodyTooLarge)
        } else if is_stalled(&**source) {
            Some(Self::BodyStalled)
        } else {
            body.is_broken().then_some(Self::BodyBroken)
        }
    }

    /// Tells whether the visitor's body failed and not a render.
    pub(crate) fn is_visitors(self) -> bool {
        matches!(self, Self::BodyTooLarge | Self::BodyStalled | Self::BodyBroken)
    }
}

/// An answer and who gave it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) response: Response<ReceivedBody>,
    pub(crate) render: String,
}

impl Upstream {
    pub(crate) fn new(farm: &Arc<Farm>, runtime: &Runtime, keep_alive: Option<Duration>) -> Self {
        let default = Options::default();
        let idle_timeout = keep_alive.unwrap_or(default.idle_timeout);
        let targets: Vec<Target> = farm
            .renders
            .iter()
            .map(|render| Target {
                render: render.clone(),
                door: Door::new(render),
                bad_probes: AtomicU32::new(0),
                health: Health::new(farm.health),
                answered: AtomicU64::new(0),
                failed: AtomicU64::new(0),
                sticky: AtomicU64::new(0),
                client: Client::new(Options {
                    connect_timeout: render.timeout,
                    response_timeout: render.receive_timeout,
                    trust: runtime.trust.clone(),
                    idle_timeout,
                    // A secure connection resolves its name itself, so only a new one does it anew.
                    max_idle_per_host: if idle_timeout.is_zero()
                        || (render.is_secure && render.is_always_resolved)
                    {
                        0
                    } else {
                        default.max_idle_per_host
                    },
                    outgoing: None,
                }),
            })
            .collect();
        let scores = Arc::new(Scores::new(targets.len(), farm.categories.len()));
        Self {
            farm: Arc::clone(farm),
            targets,
            scores,
            log: runtime.log.clone(),
            clock: runtime.clock.clone(),
        }
    }

    /// Sends `call` to the best render, and to others if that one fails.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, Failure> {
        let category = self.category(&call.target);
        let mut refused = None;
        let mut is_busy = false;
        for round in 0..self.farm.rounds {
            // With every breaker open, an answer now is better than the same one after all rounds.
            if self.is_open() {
                return Err(Failure::NoConnection);
            }
            if round > 0 {
                tokio::time::sleep(self.farm.retry_delay).await;
            }
            for index in self.order(category, call.sticky.as_deref()) {
                match self.attempt(index, category, call).await {
                    Ok(answer) => match self.judge(index, call, answer).await {
                        Verdict::Take(answer) => return Ok(answer),
                        Verdict::AskAnother(answer) => refused = Some(answer),
                    },
                    Err(Attempt::TryNext) => {}
                    Err(Attempt::Busy) => is_busy = true,
                    Err(Attempt::GiveUp(failure)) => return Err(failure),
                }
            }
            if let Some(answer) = refused.take() {
                return Ok(answer);
            }
            // Who waited in a queue is not sent into it again.
            if is_busy {
                tracing::warn!(farm = %self.farm.name, "all renders are busy");
                return Err(Failure::Overloaded);
            }
        }
        tracing::warn!(farm = %self.farm.name, "unable to connect to any backend");
        self.log.write(&self.clock, Level::Error, || {
            format!("Unable to connect to any backend in farm {}", self.farm.name)
        });
        Err(Failure::NoConnection)
    }

    /// Tells whether every render is left alone by a breaker.
    fn is_open(&self) -> bool {
        let now = Instant::now();
        let is_out = |target: &Target| target.health.standing(now) == Standing::Out;
        self.farm.health.has_breaker && !self.targets.is_empty() && self.targets.iter().all(is_out)
    }

    fn order(&self, category: usize, sticky: Option<&str>) -> Vec<usize> {
        let now = Instant::now();
        let standing = |index: usize| {
            let target = self.targets.get(index);
            target.map_or(Standing::Out, |target| target.health.standing(now))
        };
        let mut order = self.scores.order(category, now, |index| match standing(index) {
            Standing::In(part) => part,
            Standing::Trial | Standing::Out => 1.0,
        });
        if self.farm.health.has_breaker {
            order.retain(|index| standing(*index) != Standing::Out);
        }
        // A render that is ill or out is asked when all others failed, a busy one when no other is free, and one whose
        // time out has passed is tried by the next request.
        order.sort_by_key(|index| {
            let target = self.targets.get(*index);
            let standing = standing(*index);
            let is_ill =
                standing == Standing::Out || target.is_some_and(|target| self.is_ejected(target));
            let is_free = target.is_some_and(|target| target.door.is_free());
            (is_ill, standing != Standing::Trial, !is_free)
        });
        let wanted = sticky
            .and_then(|name| self.targets.iter().position(|target| target.render.name == name));
        let is_well = |wanted: &usize| {
            let is_ejected =
                self.targets.get(*wanted).is_some_and(|target| self.is_ejected(target));
            let is_in = matches!(standing(*wanted), Standing::In(_));
            self.scores.is_live(*wanted, now) && !is_ejected && is_in
        };
        if let Some(wanted) = wanted.filter(is_well) {
            order.retain(|index| *index != wanted);
            order.insert(0, wanted);
        }
        order
    }

    /// Returns the number of the category that a URL belongs to; the last number stands for none.
    fn category(&self, target: &str) -> usize {
        let path = target.split('?').next().unwrap_or(target);
        let categories = &self.farm.categories;
        categories
            .iter()
            .position(|category| category.glob.matches(path))
            .unwrap_or(categories.len())
    }

    async fn attempt(&self, index: usize, category: usize, call: &Call) -> Result<Answer, Attempt> {
        let Some(target) = self.targets.get(index) else {
            return Err(Attempt::TryNext);
        };
        let Some(place) = target.door.enter().await else {
            return Err(Attempt::Busy);
        };
        let place = Arc::new(place);
        let started = Instant::now();
        target.health.begin(started);
        let mut outcome = self.exchange(index, target, call, &place).await;
        if matches!(outcome, Err(Error::Broken { .. })) && call.is_repeatable() {
            // The render may have closed a pooled connection at the moment of its reuse.
            outcome = self.exchange(index, target, call, &place).await;
        }
        let now = Instant::now();
        let error = match outcome {
            Ok(response) => {
                self.scores.succeed(index, category, now - started, now);
                self.note(target, !is_gateway_failure(response.status()), now);
                let render = target.render.name.clone();
                if call.sticky.as_deref() == Some(render.as_str()) {
                    target.sticky.fetch_add(1, Ordering::Relaxed);
                }
                self.log.write(&self.clock, Level::Debug, || {
                    let Render { hostname, port, .. } = &target.render;
                    format!("Connected to backend {render} ({hostname}:{port})")
                });
                return Ok(Answer { response, render });
            }
            Err(error) => error,
        };
        // A visitor's own body that broke off says nothing about the render.
        if let Some(failure) = Failure::of_visitor(&error, &call.body) {
            return Err(Attempt::GiveUp(failure));
        }
        self.scores.fail(index, self.farm.unavailable_penalty, now);
        self.note(target, false, now);
        tracing::debug!(farm = %self.farm.name, render = %target.render.name, reason = %error, "render failed");
        Err(self.sort(&error, call))
    }

    /// Notes what a render's answer says about it.
    fn note(&self, target: &Target, is_well: bool, now: Instant) {
        let (farm, render) = (&self.farm.name, &target.render.name);
        if is_well {
            target.answered.fetch_add(1, Ordering::Relaxed);
            if target.health.succeed(now) {
                tracing::info!(%farm, %render, "a render answers again");
            }
        } else {
            target.failed.fetch_add(1, Ordering::Relaxed);
            if target.health.fail(now) {
                tracing::warn!(%farm, %render, "a render failed several times in a row and is left alone for a while");
            }
        }
    }

    /// Returns how the renders are doing.
    pub(crate) fn renders(&self) -> Vec<RenderStatus> {
        let now = Instant::now();
        let status = |(index, target): (usize, &Target)| RenderStatus {
            name: target.render.name.clone(),
            address: format!("{}:{}", target.render.hostname, target.render.port),
            standing: match target.health.standing(now) {
                _ if self.is_ejected(target) => "ill",
                Standing::In(_) if !self.scores.is_live(index, now) => "failing",
                Standing::In(part) if part < 1.0 => "slow start",
                Standing::In(_) => "in",
                Standing::Trial => "trial",
                Standing::Out => "out",
            },
            in_flight: self.scores.in_flight(index),
            waiting: target.door.waiting(),
            answered: target.answered.load(Ordering::Relaxed),
            failed: target.failed.load(Ordering::Relaxed),
            sticky: target.sticky.load(Ordering::Relaxed),
            score: self.scores.score(index, now),
        };
        self.targets.iter().enumerate().map(status).collect()
    }

    fn sort(&self, error: &Error, call: &Call) -> Attempt {
        match error {
            Error::Timeout { .. } => Attempt::GiveUp(Failure::Timeout),
            Error::Broken { .. } if call.is_repeatable() && self.targets.len() > 1 => {
                Attempt::TryNext
            }
            error if error.is_unsent() && call.body.is_untouched() => Attempt::TryNext,
            _ => Attempt::GiveUp(Failure::Broken),
        }
    }

    async fn exchange(
        &self,
        index: usize,
        target: &Target,
        call: &Call,
        place: &Arc<Place>,
    ) -> Result<Response<ReceivedBody>, Error> {
        let render = &target.render;
        let scheme = if render.is_secure { "https" } else { "http" };
        let own = format!("{}:{}", render.hostname, render.port);
        let address = if render.is_always_resolved || render.takes_any_ipv4 {
            resolve(render).await
        } else {
            None
        };
        let authority = address.map_or_else(|| own.clone(), |address| address.to_string());
        let uri = format!("{scheme}://{authority}{}", call.target);
        let mut request = Request::new(call.body.clone());
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri.parse().map_err(|_invalid| Error::Request {
            uri: uri.clone(),
            reason: "the URI cannot be read".to_owned(),
        })?;
        *request.headers_mut() = call.headers.clone();
        // Otherwise the address would stand in for the name; the usual port is not named.
        let is_usual = render.port == if render.is_secure { 443 } else { 80 };
        if let Ok(own) = HeaderValue::from_str(if is_usual { &render.hostname } else { &own }) {
            request.headers_mut().entry(header::HOST).or_insert(own);
        }
        let flight = InFlight::begin(&self.scores, index, place);
        let response = target.client.send(request).await?;
        let patience = render.receive_timeout;
        let (mut parts, body) = response.into_parts();
        let decoded = Decoded::of_answer(&mut parts.headers, body);
        let body = decoded.map_err(|error| Error::Broken { host: own, source: error.into() })?;
        Ok(Response::from_parts(parts, ReceivedBody::new(body, patience, flight)))
    }

    /// Decides whether an error of a render is the visitor's answer or a reason to ask another.
    async fn judge(&self, index: usize, call: &Call, answer: Answer) -> Verdict {
        let status = answer.response.status();
        if !self.farm.has_failover || !status.is_server_error() || !call.body.is_untouched() {
            return Verdict::Take(answer);
        }
        let is_ill = status == StatusCode::SERVICE_UNAVAILABLE || self.is_ill(index).await;
        if !is_ill {
            return Verdict::Take(answer);
        }
        self.scores.fail(index, self.farm.unavailable_penalty, Instant::now());
        Verdict::AskAnother(answer)
    }

    /// Tells whether the health page of a render was bad too often.
    fn is_ejected(&self, target: &Target) -> bool {
        target.bad_probes.load(Ordering::Relaxed) >= self.farm.probe_failures
    }

    /// Returns how many requests wait for a busy render.
    pub(crate) fn waiting(&self) -> usize {
        self.targets.iter().map(|target| target.door.waiting()).sum()
    }

    /// Returns how many renders are asked last as their health page is bad.
    pub(crate) fn ejected(&self) -> usize {
        self.targets.iter().filter(|target| self.is_ejected(target)).count()
    }

    /// Asks the health page of every render again and again.
    pub(crate) async fn keep_probing(&self, url: &str, interval: Duration) {
        loop {
            for (index, target) in self.targets.iter().enumerate() {
                let call = Call::get(url.to_owned());
                let place = Arc::new(Place::beside());
                let probe = self.exchange(index, target, &call, &place);
                let answer = tokio::time::timeout(PROBE_PATIENCE, probe).await;
                let is_good = matches!(answer, Ok(Ok(answer)) if answer.status().is_success());
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
                        tracing::warn!(%farm, %render, "the health page of a render is bad")
                    }
                    (true, false) => {
                        target.health.come_back(Instant::now());
                        tracing::info!(%farm, %render, "a render is well again");
                    }
                    _ => {}
                }
            }
            tokio::time::sleep(interval).await;
        }
    }

    /// Asks the health page of a render; only a 500 says that it is ill.
    async fn is_ill(&self, index: usize) -> bool {
        let (Some(url), Some(target)) = (&self.farm.health_check, self.targets.get(index)) else {
            return false;
        };
        let call = Call::get(url.clone());
        // The page is asked beside the queue: a render that is merely busy must not count as ill.
        let place = Arc::new(Place::beside());
        match self.exchange(index, target, &call, &place).await {
            Ok(response) => response.status() == StatusCode::INTERNAL_SERVER_ERROR,
            Err(_unreachable) => true,
        }
    }
}

/// Resolves a render's name anew; nothing where the connection itself has to, as TLS needs the name.
async fn resolve(render: &Render) -> Option<SocketAddr> {
    if render.is_secure {
        return None;
    }
    let found = tokio::net::lookup_host((render.hostname.as_str(), render.port)).await.ok()?;
    let found: Vec<SocketAddr> =
        found.filter(|address| !render.takes_any_ipv4 || address.is_ipv4()).collect();
    // The least bits of a clock are chance enough to spread connections.
    let turn = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos() as usize / 64);
    let index = if render.takes_any_ipv4 { turn % found.len().max(1) } else { 0 };
    found.get(index).copied()
}

/// Tells whether a status says that a render, or what stands behind it, does not work.
fn is_gateway_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

enum Attempt {
    TryNext,
    Busy,
    GiveUp(Failure),
}

enum Verdict {
    Take(Answer),
    AskAnother(Answer),
}

impl Call {
    /// Returns a request without headers and body.
    pub(crate) fn get(target: String) -> Self {
        Self {
            method: Method::GET,
            target,
            headers: HeaderMap::new(),
            body: CallBody::empty(),
            sticky: None,
        }
    }

    fn is_repeatable(&self) -> bool {
        self.body.is_empty() && (self.method.is_safe() || self.method.is_idempotent())
    }
}

/// A visitor's body, which attempts share until one of them begins to read it.
#[derive(Debug)]
pub(crate) struct CallBody {
    state: Arc<Mutex<BodyState>>,
    reading: Option<Limited<Incoming>>,
    length: Option<u64>,
}

impl Clone for CallBody {
    /// Returns the body for another attempt, which finds it only if none has begun to read it.
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), reading: None, length: self.length }
    }
}

#[derive(Debug)]
enum BodyState {
    Empty,
    Waiting(Option<Limited<Incoming>>),
    /// It ended before it was whole.
    Broken,
}

impl CallBody {
    pub(crate) fn empty() -> Self {
        Self { state: Arc::new(Mutex::new(BodyState::Empty)), reading: None, length: Some(0) }
    }

    /// Returns a visitor's body, which fails beyond `max_bytes` and where it does not keep the pace.
    pub(crate) fn new(body: Incoming, max_bytes: u64, pace: Option<Pace>) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        let length = body.size_hint().exact();
        let body = limited(body, max_bytes).stalling_at_most(BODY_PATIENCE).keeping(pace);
        Self { state: Arc::new(Mutex::new(BodyState::Waiting(Some(body)))), reading: None, length }
    }

    fn is_empty(&self) -> bool {
        matches!(*self.state.lock(), BodyState::Empty)
    }

    /// Tells whether nothing of the body was read yet.
    fn is_untouched(&self) -> bool {
        match &*self.state.lock() {
            BodyState::Empty => true,
            BodyState::Waiting(body) => body.is_some(),
            BodyState::Broken => false,
        }
    }

    /// Tells whether the visitor did not send all of it.
    fn is_broken(&self) -> bool {
        matches!(*self.state.lock(), BodyState::Broken)
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.reading.is_none() {
            let taken = match &mut *self.state.lock() {
                BodyState::Empty => return Poll::Ready(None),
                BodyState::Waiting(body) => body.take(),
                BodyState::Broken => None,
            };
            let Some(body) = taken else {
                return Poll::Ready(Some(Err("another attempt read the body".into())));
            };
            self.reading = Some(body);
        }
        let Some(body) = &mut self.reading else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(Some(Err(_)))) {
            *self.state.lock() = BodyState::Broken;
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
struct InFlight {
    scores: Arc<Scores>,
    render: usize,
    _place: Arc<Place>,
}

impl InFlight {
    fn begin(scores: &Arc<Scores>, render: usize, place: &Arc<Place>) -> Self {
        scores.begin(render);
        Self { scores: Arc::clone(scores), render, _place: Arc::clone(place) }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.scores.end(self.render);
    }
}

/// A render's body, which fails when nothing arrives for the render's receive timeout.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    body: Decoded<Incoming>,
    wait: Wait,
    _flight: InFlight,
}

impl ReceivedBody {
    fn new(body: Decoded<Incoming>, patience: Option<Duration>, flight: InFlight) -> Self {
        Self { body, wait: Wait::new(patience), _flight: flight }
    }

    /// Takes the content codings off that can be, for an answer that is to be stored: it goes to visitors who take none.
    pub(crate) fn take_off_content_codings(&mut self, headers: &mut HeaderMap) {
        self.body.take_off_content_codings(headers);
    }

    /// Fails also where the body does not keep the pace.
    pub(crate) fn keep_pace(&mut self, pace: Option<Pace>) {
        self.wait.set_pace(pace);
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            self.wait.arrive(data.map_or(0, |data| data.len() as u64));
            return Poll::Ready(frame);
        }
        self.wait.poll(cx).map(|reason| Some(Err(reason)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
