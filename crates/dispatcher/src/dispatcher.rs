//! The dispatcher as a service: from a request to an answer.
//!
//! Order: canonical path, farm, flush, filter, vanity URLs, cacheability, look-up, render, log.
//!
//! Not here: how each step decides (`decision`, `freshness`, `plan`), how pages are fetched (`fetch`), what a flush does
//! (`flush`).

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tower::service_fn;
use tympan_web::access_log;
use tympan_web::limit::BodyLimit;
use tympan_web::listen::{Front, Peer};
use tympan_web::log_file::LogFile;
use tympan_web::log_time::LogTime;
use tympan_web::tls::Trust;

use crate::Error;
use crate::cache::Root;
use crate::cacheable::Reason;
use crate::clock::Clock;
use crate::config::{Config, Farm};
use crate::decision::{Action, decide, place};
use crate::farm::Found;
use crate::flight::Flights;
use crate::forward::is_circling;
use crate::log::{Level, Log};
use crate::metrics::{Counter, Metrics};
use crate::page::{Body, full};
use crate::refetch::Queue;
use crate::request::RequestView;
use crate::upstream::{CallBody, Upstream};
use crate::vanity::VanityList;

/// What a dispatcher needs from outside.
#[derive(Debug, Clone)]
pub struct Runtime {
    /// The time.
    pub clock: Clock,
    /// Where its log goes.
    pub log: Log,
    /// Where a line per answer goes, if anywhere.
    pub access_log: Option<LogFile<access_log::Line>>,
    /// Whom renders with `/secure "1"` must be signed by.
    pub trust: Option<Trust>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            clock: Clock::new(std::time::SystemTime::now),
            log: Log::default(),
            access_log: None,
            trust: None,
        }
    }
}

/// The caching proxy; clones are the same one.
#[derive(Debug, Clone)]
pub struct Dispatcher(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) farms: Vec<Arc<FarmState>>,
    pub(crate) runtime: Runtime,
    pub(crate) flights: Arc<Flights>,
    pub(crate) metrics: Metrics,
    has_background: AtomicBool,
}

/// A farm and what belongs to it at run time.
#[derive(Debug)]
pub(crate) struct FarmState {
    pub(crate) farm: Arc<Farm>,
    pub(crate) docroot: Option<Root>,
    pub(crate) upstream: Upstream,
    pub(crate) refetch: Queue,
    pub(crate) vanity: VanityList,
}

impl FarmState {
    /// Returns the whole path of a file below the document root.
    pub(crate) fn absolute(&self, file: &Path) -> PathBuf {
        match &self.docroot {
            Some(docroot) => docroot.path().join(file),
            None => file.to_owned(),
        }
    }
}

/// One request on its way, with what the log tells about it in the end.
pub(crate) struct Exchange<'a> {
    pub(crate) farm: &'a Arc<FarmState>,
    pub(crate) view: &'a RequestView,
    /// `hit`, `miss`, `none` or `purge`.
    pub(crate) cache: &'static str,
    pub(crate) render: Option<String>,
    /// For the header `X-Cache-Info`.
    pub(crate) info: String,
}

impl Dispatcher {
    /// Opens the document roots of `config`.
    ///
    /// A root that cannot be opened is reported, and its farm forwards everything.
    ///
    /// # Errors
    /// [`Error::NoFarm`].
    pub fn new(config: Config, runtime: Runtime) -> Result<Self, Error> {
        if config.farms.is_empty() {
            return Err(Error::NoFarm);
        }
        let farms = config.farms.iter().map(|farm| Arc::new(open_farm(farm, &runtime))).collect();
        Ok(Self(Arc::new(Inner {
            config,
            farms,
            runtime,
            flights: Arc::default(),
            metrics: Metrics::default(),
            has_background: AtomicBool::new(false),
        })))
    }

    /// Serves on `listener` until `shutdown` resolves and the open requests have ended.
    ///
    /// May run several times at once, with one socket each.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn serve(
        &self,
        listener: TcpListener,
        front: Front,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let background = self.start_background();
        let inner = Arc::clone(&self.0);
        let service = service_fn(move |request: Request<Incoming>| {
            let inner = Arc::clone(&inner);
            async move { Ok::<_, Infallible>(inner.answer_logged(request).await) }
        });
        let served = tympan_web::listen::serve(listener, service, front, shutdown).await;
        for task in background {
            task.abort();
        }
        Ok(served?)
    }

    /// Starts what runs beside requests, once.
    fn start_background(&self) -> Vec<tokio::task::JoinHandle<()>> {
        if self.0.has_background.swap(true, Ordering::SeqCst) {
            return Vec::new();
        }
        self.0
            .farms
            .iter()
            .filter_map(|farm| {
                let vanity = farm.farm.vanity_urls.clone()?;
                let farm = Arc::clone(farm);
                let runtime = self.0.runtime.clone();
                Some(tokio::spawn(async move {
                    farm.vanity.keep_loading(&farm, &vanity, &runtime).await;
                }))
            })
            .collect()
    }

    /// Returns all counters in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let queued = self.0.farms.iter().map(|farm| farm.refetch.len()).sum();
        self.0.metrics.to_text(&[
            (
                "fetches",
                "Pages that are being fetched now; many for long means slow renders.",
                self.0.flights.count() as u64,
            ),
            (
                "refetch_queue",
                "Flushed pages that wait to be fetched again; a steady rise means too many flushes.",
                queued,
            ),
        ])
    }
}

fn open_farm(farm: &Arc<Farm>, runtime: &Runtime) -> FarmState {
    let docroot = farm.cache.as_ref().and_then(|cache| {
        let path = cache.docroot.as_ref()?;
        let opened = Root::open(path, cache.mode);
        if let Err(error) = &opened {
            tracing::error!(farm = %farm.name, file = %path.display(), reason = %error,
                "cannot open the document root; the farm caches nothing");
        }
        runtime.log.write(&runtime.clock, Level::Debug, || {
            format!("farms[{}].cache.docroot = {}", farm.name, path.display())
        });
        opened.ok()
    });
    let is_open_to_all = farm.cache.as_ref().is_some_and(|cache| {
        cache.allowed_clients.as_ref().is_none_or(|list| list.rules.is_empty())
    });
    if is_open_to_all {
        tracing::warn!(farm = %farm.name, "anyone may flush this farm; add /allowedClients");
    }
    let vanity = VanityList::default();
    if let Some(file) = farm.vanity_urls.as_ref().and_then(|urls| urls.file.as_ref()) {
        vanity.load_file(file, runtime);
    }
    FarmState {
        farm: Arc::clone(farm),
        docroot,
        upstream: Upstream::new(farm, runtime.trust.as_ref()),
        refetch: Queue::default(),
        vanity,
    }
}

impl Inner {
    pub(crate) fn log(&self, level: Level, text: impl FnOnce() -> String) {
        self.runtime.log.write(&self.runtime.clock, level, text);
    }

    async fn answer_logged(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let Some(log) = &self.runtime.access_log else {
            return self.answer(request).await;
        };
        let mut line = access_line(&request);
        let response = self.answer(request).await;
        line.at = LogTime::from_system(self.runtime.clock.now());
        line.status = response.status().as_u16();
        line.bytes = response
            .headers()
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        log.write(line);
        response
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let Some(peer) = head.extensions.get::<Peer>().copied() else {
            return refusal(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let limit = head.extensions.get::<BodyLimit>().map_or(u64::MAX, |limit| limit.0);
        let view = match RequestView::read(&head, peer) {
            Ok(view) => view,
            Err(fault) => {
                self.metrics.count(Counter::Refused);
                self.log(Level::Debug, || {
                    format!("request declined: {fault} [{}]", head.uri.path())
                });
                return refusal(StatusCode::BAD_REQUEST);
            }
        };
        let Some(decision) = decide(&self.config, &view) else {
            return refusal(StatusCode::NOT_FOUND);
        };
        let state = self.farms.iter().find(|state| Arc::ptr_eq(&state.farm, decision.farm));
        let Some(state) = state else {
            return refusal(StatusCode::NOT_FOUND);
        };
        if decision.found == Found::Default {
            self.log(Level::Warn, || {
                let (host, name) = (&view.host, &state.farm.name);
                format!("No farm matches host '{host}', selected last farm '{name}'")
            });
        }
        let mut exchange =
            Exchange { farm: state, view: &view, cache: "none", render: None, info: String::new() };
        let action = self.open_by_vanity(decision.action, &exchange);
        let mut response = self.act(action, &mut exchange, body, limit).await;
        self.finish(&exchange, &mut response, started);
        response
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
        if is_circling(view) {
            return refusal(StatusCode::LOOP_DETECTED);
        }
        match action {
            Action::Flush => self.flush(exchange, body, limit).await,
            Action::Refuse(_) | Action::RefuseReserved => {
                self.metrics.count(Counter::Refused);
                refusal(StatusCode::NOT_FOUND)
            }
            Action::Pass(reason) => {
                let body = CallBody::new(body, limit);
                self.pass(exchange, body, reason).await
            }
            Action::Cache(file) if farm.docroot.is_some() => {
                self.log(Level::Debug, || format!("checking [{}]", view.path));
                self.cached(exchange, &file).await
            }
            Action::Cache(_) => {
                let body = CallBody::new(body, limit);
                self.pass(exchange, body, Reason::NoDocroot).await
            }
        }
    }

    /// Writes what happened to the log, and to the visitor if it asked.
    fn finish(&self, exchange: &Exchange<'_>, response: &mut Response<Body>, started: Instant) {
        let (view, farm) = (exchange.view, &exchange.farm.farm);
        let wants_info = farm.has_info && view.headers.contains_key("x-dispatcher-info");
        if wants_info && let Ok(info) = HeaderValue::from_str(&exchange.info) {
            response.headers_mut().insert("x-cache-info", info);
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

/// Returns the line for a request whose answer is not known yet.
fn access_line(request: &Request<Incoming>) -> access_log::Line {
    let text = |name| {
        let value = request.headers().get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let peer = request.extensions().get::<Peer>();
    access_log::Line {
        client: peer.map_or_else(String::new, |peer| peer.addr.ip().to_string()),
        user: None,
        at: LogTime::from_system(std::time::UNIX_EPOCH),
        request: format!("{} {} {:?}", request.method(), request.uri(), request.version()),
        status: 0,
        bytes: None,
        referer: text(header::REFERER),
        user_agent: text(header::USER_AGENT),
    }
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
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}
