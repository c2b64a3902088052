//! The dispatcher as a service that can change its configuration while it serves.
//!
//! Invariants
//! * A request uses one configuration from its beginning to its end; a reload swaps the whole configuration.
//! * A reload preserves the counters, the running fetches, the open document roots, the re-fetch queues and the vanity
//!   URLs, so that visitors do not notice it.
//!
//! Not here: the handling of a request (`request_pipeline`, `cached_page_service`), the effects of a flush (`flush`).

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::Request;
use hyper::body::Incoming;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tower::service_fn;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::fast_path::FastPath;
use tympan_web::listen::{ListenerCounters, ListenerOptions};
use tympan_web::tls::TlsTrust;

use crate::Error;
use crate::cache::DocrootState;
use crate::cache::response_memory::memory_responder::MemoryResponder;
use crate::cache::variant_limiter::VariantLimiter;
use crate::cached_page_service::CachedPageService;
use crate::config::front_settings::RequestGate;
use crate::config::settings::DispatcherSettings;
use crate::config::{DispatcherConfig, FarmConfig};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::dispatcher_state::DispatcherState;
use crate::edge::visitor_session;
use crate::farm_state::FarmState;
use crate::flush::FlushService;
use crate::flush::batch::FlushBatcher;
use crate::flush::batch_queue::FlushQueue;
use crate::flush::propagation::catch_up::catch_up_with_siblings;
use crate::flush::propagation::receiver::SiblingFlushReceiver;
use crate::flush::propagation::recording::wait_for_log_writers;
use crate::flush::propagation::{CatchUpGate, FarmSiblings, SenderContext, new_random_id};
use crate::flush::refetch::PageRefetcher;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{
    connections_to_text, farms_to_text, renders_to_text, siblings_to_text,
};
use crate::observe::status::DispatcherStatus;
use crate::request::https_redirect::HttpsRedirectSettings;
use crate::request::traffic_share::has_shares;
use crate::request::vanity_list::VanityList;
use crate::request_pipeline::visitor_service;
use crate::upstream::Upstream;
use crate::upstream::page_fetch::PageFetcher;
use crate::upstream::page_include::IncludeFiller;
use crate::upstream::shadow::FarmShadow;
use crate::upstream::sibling_copy::{SiblingCopyServer, farm_siblings};
use crate::upstream::websocket::TunnelLimiter;

/// The default of `max_websockets`.
const DEFAULT_MAX_WEBSOCKETS: usize = 1000;

/// The caching proxy; clones share one instance.
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<DispatcherShared>);

#[derive(Debug)]
struct DispatcherShared {
    current_state: RwLock<Arc<DispatcherState>>,
    background: Mutex<BackgroundTasks>,
    started_at: Instant,
    /// The counters of the visitor listeners.
    connection_counters: Mutex<Vec<Arc<ListenerCounters>>>,
    metrics_sources: MetricsSources,
}

/// The metrics of the surroundings, such as the process.
#[derive(Default)]
struct MetricsSources(RwLock<Vec<Box<dyn Fn() -> String + Send + Sync>>>);

impl std::fmt::Debug for MetricsSources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsSources")
    }
}

/// The tasks that run besides requests.
#[derive(Debug, Default)]
struct BackgroundTasks {
    /// The runtime that serves, while it does.
    runtime_handle: Option<Handle>,
    tasks: Vec<JoinHandle<()>>,
    /// The task that fills the cache at the start; it continues over reloads.
    warm_up: Option<JoinHandle<()>>,
    /// Lives as long as a listener uses it.
    fast_path: Option<Weak<dyn FastPath>>,
}

impl Dispatcher {
    /// Opens the document roots of `config`.
    ///
    /// A root that cannot be opened is reported, and its farm forwards everything.
    ///
    /// # Errors
    /// [`Error::NoFarm`].
    pub fn new(config: DispatcherConfig, runtime: DispatcherRuntime) -> Result<Self, Error> {
        Self::with_settings(config, &DispatcherSettings::default(), runtime)
    }

    /// As [`Dispatcher::new`], with the settings of `tympan.toml`.
    ///
    /// # Errors
    /// [`Error::NoFarm`], or [`Error::Setting`] with the key that is wrong.
    pub fn with_settings(
        config: DispatcherConfig,
        settings: &DispatcherSettings,
        runtime: DispatcherRuntime,
    ) -> Result<Self, Error> {
        let inner = DispatcherState::open_state(config, settings, runtime, None)?;
        Ok(Self(Arc::new(DispatcherShared {
            current_state: RwLock::new(Arc::new(inner)),
            background: Mutex::default(),
            started_at: Instant::now(),
            connection_counters: Mutex::default(),
            metrics_sources: MetricsSources::default(),
        })))
    }

    /// Adds a source to the metrics, which returns Prometheus text. It may read small files.
    pub fn add_metrics_source(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        self.0.metrics_sources.0.write().push(Box::new(source));
    }

    /// Switches new requests to another configuration, and trusts the renders that `trust` accepts; running requests
    /// finish with the old configuration.
    ///
    /// # Errors
    /// As [`Dispatcher::with_settings`]; the old configuration then stays in use.
    pub fn reload(
        &self,
        config: DispatcherConfig,
        settings: &DispatcherSettings,
        trust: Option<TlsTrust>,
    ) -> Result<(), Error> {
        let old = self.current_state();
        let runtime = DispatcherRuntime { trust, ..(*old.parts.runtime).clone() };
        let inner = Arc::new(DispatcherState::open_state(config, settings, runtime, Some(&old))?);
        *self.0.current_state.write() = Arc::clone(&inner);
        inner.shares.clear_overrides();
        inner.refetcher.take_over_queues();
        for farm in &*old.parts.farms {
            if !inner
                .parts
                .farms
                .iter()
                .any(|own| Arc::ptr_eq(&own.refetch_queue, &farm.refetch_queue))
            {
                farm.refetch_queue.clear();
            }
        }
        inner.parts.response_memory.clear();
        // Errors of other renders say nothing about the current ones.
        inner.parts.farms.iter().for_each(|farm| farm.invalidate_cached_errors());
        let mut background = self.0.background.lock();
        if let Some(runtime) = background.runtime_handle.clone() {
            for task in background.tasks.drain(..) {
                task.abort();
            }
            background.tasks = inner.spawn_background_tasks(&runtime);
        }
        Ok(())
    }

    pub(crate) fn current_state(&self) -> Arc<DispatcherState> {
        Arc::clone(&self.0.current_state.read())
    }

    /// Serves on `listener` until `shutdown` resolves and the open requests have ended.
    ///
    /// May run several times at once, with one socket each.
    ///
    /// # Errors
    /// Fails if the socket cannot be used.
    pub async fn serve(
        &self,
        listener: TcpListener,
        front: ListenerOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let is_first = self.ensure_background_tasks();
        if is_first {
            // Visitors must not get pages that siblings know to be out of date.
            let state = self.current_state();
            let (receiver, gate) = (&state.sibling_receiver, &state.catch_up_gate);
            tokio::spawn(catch_up_with_siblings(Arc::clone(receiver), Arc::clone(gate)));
        }
        self.0.connection_counters.lock().push(Arc::clone(&front.counters));
        if let Ok(address) = listener.local_addr() {
            self.current_state().parts.listener_ports.add(address.port(), front.tls.is_some());
        }
        let dispatcher = self.clone();
        let service = visitor_service(move || dispatcher.current_state());
        let front = ListenerOptions { fast_path: Some(self.fast_path()), ..front };
        let served = tympan_web::listen::serve_listener(listener, service, front, shutdown).await;
        if is_first {
            let mut background = self.0.background.lock();
            background.runtime_handle = None;
            let warming = background.warm_up.take();
            for task in background.tasks.drain(..).chain(warming) {
                task.abort();
            }
        }
        Ok(served?)
    }

    /// Serves the admin endpoints, as [`Dispatcher::serve`] serves visitors.
    ///
    /// # Errors
    /// Fails if the socket cannot be used.
    pub async fn serve_admin(
        &self,
        listener: TcpListener,
        front: ListenerOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let dispatcher = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let dispatcher = dispatcher.clone();
            async move { Ok::<_, Infallible>(dispatcher.answer_admin(request).await) }
        });
        Ok(tympan_web::listen::serve_listener(listener, service, front, shutdown).await?)
    }

    /// Redirects visitors without TLS to `https`, as [`Dispatcher::serve`] serves visitors.
    ///
    /// # Errors
    /// Fails if the socket cannot be used.
    pub async fn serve_https_redirect(
        &self,
        settings: HttpsRedirectSettings,
        listener: TcpListener,
        front: ListenerOptions,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let settings = Arc::new(settings);
        let service = service_fn(move |request: Request<Incoming>| {
            let settings = Arc::clone(&settings);
            // Blocking is acceptable: a challenge is a small file that is requested a few times a year.
            async move { Ok::<_, Infallible>(settings.respond(request)) }
        });
        Ok(tympan_web::listen::serve_listener(listener, service, front, shutdown).await?)
    }

    /// Stops storing, because another process has taken over the cache. Fetches continue for their visitors; flushes to
    /// be passed on to siblings are left to the other process. Waits for files that are being written.
    pub fn leave_cache(&self) {
        let inner = self.current_state();
        inner.parts.fetch_coalescer.stop_storing();
        wait_for_log_writers(&inner.parts.farms);
    }

    /// Returns the current status of the dispatcher.
    #[must_use]
    pub fn status(&self) -> DispatcherStatus {
        self.current_state().collect_status(self.0.started_at.elapsed())
    }

    /// Returns the fast path for cached responses, which all listeners share.
    fn fast_path(&self) -> Arc<dyn FastPath> {
        let mut background = self.0.background.lock();
        if let Some(fast_path) = background.fast_path.as_ref().and_then(Weak::upgrade) {
            return fast_path;
        }
        let fast_path = self.open_fast_path();
        background.fast_path = Some(Arc::downgrade(&fast_path));
        drop(background);
        // Report at the start if the fast path cannot run.
        fast_path.is_open();
        fast_path
    }

    /// Starts the background tasks; returns true if they were not running already.
    fn ensure_background_tasks(&self) -> bool {
        let mut background = self.0.background.lock();
        if background.runtime_handle.is_some() {
            return false;
        }
        let runtime = Handle::current();
        background.tasks = self.current_state().spawn_background_tasks(&runtime);
        background.warm_up = Some(runtime.spawn(self.clone().run_warm_up()));
        background.runtime_handle = Some(runtime);
        true
    }

    /// Sets the percentage of visitors of a farm with `/x-share`, until the next reload; returns true if there is such
    /// a farm.
    #[must_use]
    pub fn set_share(&self, farm: &str, percent: f64) -> bool {
        let inner = self.current_state();
        let is_known =
            inner.config.farms.iter().any(|own| own.name == farm && own.visitor_share.is_some());
        if is_known {
            inner.shares.set_share(farm, percent);
        }
        is_known
    }

    /// Returns all counters in Prometheus' text format.
    #[must_use]
    pub fn prometheus_metrics(&self) -> String {
        let mut text = self.current_state().format_metrics();
        connections_to_text(&mut text, &self.0.connection_counters.lock());
        text.extend(self.0.metrics_sources.0.read().iter().map(|source| source()));
        text
    }
}

impl DispatcherState {
    /// Opens the resources of a configuration and reuses those that an earlier one has open.
    fn open_state(
        config: DispatcherConfig,
        settings: &DispatcherSettings,
        runtime: DispatcherRuntime,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        if config.farms.is_empty() {
            return Err(Error::NoFarm);
        }
        let previous_parts = old.map(|old| &old.parts);
        let settings_of_config = settings.compile_settings()?;
        let gate = RequestGate::from_settings(
            &settings.front,
            previous_parts.map(|old| &*old.request_gate),
        )?;
        let max_websockets = settings.front.max_websockets.unwrap_or(DEFAULT_MAX_WEBSOCKETS);
        let mut runtime = runtime;
        if let Some(level) = settings_of_config.log_level {
            runtime.log.level = level;
        }
        let mut farms: Vec<Arc<FarmState>> = Vec::new();
        for farm in &config.farms {
            let reusable_farms = ReusableFarms {
                previous_farms: previous_parts.map_or(&[], |old| &old.farms),
                opened_farms: &farms,
            };
            let state = open_farm(farm, &runtime, settings_of_config.keep_alive, reusable_farms);
            farms.push(Arc::new(state));
        }
        let has_peers = farms.iter().any(|farm| farm.flush_siblings.is_some());
        let parts = DispatcherParts {
            settings: Arc::new(settings_of_config),
            farms: farms.into(),
            runtime: Arc::new(runtime),
            request_gate: Arc::new(gate),
            has_shares: has_shares(&config),
            fetch_coalescer: previous_parts
                .map(|old| Arc::clone(&old.fetch_coalescer))
                .unwrap_or_default(),
            response_memory: previous_parts
                .map(|old| Arc::clone(&old.response_memory))
                .unwrap_or_default(),
            metrics: previous_parts.map(|old| Arc::clone(&old.metrics)).unwrap_or_default(),
            listener_ports: previous_parts
                .map(|old| Arc::clone(&old.listener_ports))
                .unwrap_or_default(),
            instance_id: previous_parts
                .map_or_else(|| new_random_id().into(), |old| Arc::clone(&old.instance_id)),
            config_serial: previous_parts.map_or(0, |old| old.config_serial + 1),
        };
        let fetcher = Arc::new(PageFetcher::new(&parts));
        let cached_page_service = Arc::new(CachedPageService::new(&parts, Arc::clone(&fetcher)));
        let old_refetcher = old.map(|old| &*old.refetcher);
        let refetcher = Arc::new(PageRefetcher::new(&parts, Arc::clone(&fetcher), old_refetcher));
        let batcher = Arc::new(FlushBatcher::new(&parts));
        let flushes =
            Arc::new(FlushService::new(&parts, Arc::clone(&batcher), Arc::clone(&refetcher)));
        Ok(Self {
            config,
            shares: old.map(|old| Arc::clone(&old.shares)).unwrap_or_default(),
            proxy_client: old.map_or_else(
                || HttpClient::new(ClientOptions::default()),
                |old| old.proxy_client.clone(),
            ),
            tunnels: old
                .map_or_else(|| TunnelLimiter::new(max_websockets), |old| old.tunnels.clone()),
            catch_up_gate: old.map_or_else(
                || Arc::new(CatchUpGate::new(!has_peers)),
                |old| Arc::clone(&old.catch_up_gate),
            ),
            memory_responder: MemoryResponder::new(&parts),
            include_filler: IncludeFiller::new(&parts, Arc::clone(&cached_page_service)),
            sibling_copies: SiblingCopyServer::new(&parts),
            sibling_receiver: Arc::new(SiblingFlushReceiver::new(
                &parts,
                Arc::clone(&flushes),
                batcher,
            )),
            fetcher,
            cached_page_service,
            refetcher,
            flushes,
            parts,
        })
    }

    fn format_metrics(&self) -> String {
        let queued = self.parts.farms.iter().map(|farm| farm.refetch_queue.len()).sum();
        let mut text = self.parts.metrics.to_text(&[
            (
                "fetches",
                "Pages being fetched now; a persistently high value means slow renders.",
                self.parts.fetch_coalescer.pending_count() as u64,
            ),
            (
                "refetch_queue",
                "Flushed pages that wait to be fetched again; a steady rise means too many flushes.",
                queued,
            ),
            (
                "in_flight",
                "Requests being answered now; a rise means slow renders or slow clients.",
                self.parts.metrics.in_flight(),
            ),
            (
                "render_queue",
                "Requests that wait for a busy render; a rise means that renders are too slow for the load.",
                self.parts.farms.iter().map(|farm| farm.upstream.waiting_count() as u64).sum(),
            ),
            (
                "memory_responses",
                "Responses cached in memory; few with many hits mean that rules check more than the URL.",
                self.parts.response_memory.size().0,
            ),
            (
                "memory_bytes",
                "Approximate memory usage of these responses, with a surcharge for open files; it stays below \
                 64 MiB.",
                self.parts.response_memory.size().1,
            ),
            (
                "renders_ejected",
                "Renders that are used last because their health check fails; check their logs.",
                self.parts.farms.iter().map(|farm| farm.upstream.ejected_count() as u64).sum(),
            ),
        ]);
        let tallies =
            self.parts.farms.iter().map(|farm| (farm.config.name.as_str(), &*farm.farm_metrics));
        text.push_str(&farms_to_text(tallies));
        let renders = self
            .parts
            .farms
            .iter()
            .map(|farm| (farm.config.name.as_str(), farm.upstream.render_statuses()));
        text.push_str(&renders_to_text(renders));
        let siblings = self.parts.farms.iter().filter_map(|farm| {
            let (peers, root) = (farm.flush_siblings.as_ref()?, farm.docroot.as_ref()?);
            let last = root.event_log_of(&farm.config.name).last_event_number();
            Some((farm.config.name.as_str(), peers.sibling_statuses(last)))
        });
        text.push_str(&siblings_to_text(siblings));
        text.push_str(&self.document_roots_to_text());
        text
    }

    fn spawn_background_tasks(&self, handle: &Handle) -> Vec<JoinHandle<()>> {
        let load_vanity = |farm: &Arc<FarmState>| {
            let vanity = farm.config.vanity_urls.clone()?;
            let farm = Arc::clone(farm);
            let runtime = self.parts.runtime.clone();
            Some(handle.spawn(async move {
                farm.vanity_list.keep_loading(&farm.upstream, &vanity, &runtime).await;
            }))
        };
        let probe = |farm: &Arc<FarmState>| {
            let (url, interval) = (farm.config.health_check.clone()?, farm.config.probe_interval?);
            let farm = Arc::clone(farm);
            Some(handle.spawn(async move { farm.upstream.keep_probing(&url, interval).await }))
        };
        let sweep = |farm: &Arc<FarmState>| {
            let sessions = farm.config.session_management.clone()?;
            let clock = self.parts.runtime.clock.clone();
            Some(handle.spawn(async move {
                loop {
                    tokio::time::sleep(sessions.timeout.max(Duration::from_secs(60))).await;
                    let (sessions, now) = (sessions.clone(), clock.now());
                    tokio::task::spawn_blocking(move || {
                        visitor_session::sweep_sessions(&sessions, now)
                    })
                    .await
                    .ok();
                }
            }))
        };
        let farms = self.parts.farms.iter();
        let tasks = farms.clone().filter_map(load_vanity).chain(farms.clone().filter_map(probe));
        let tell = |farm: &Arc<FarmState>| {
            let (Some(peers), Some(root)) = (&farm.flush_siblings, &farm.docroot) else {
                return Vec::new();
            };
            let context = SenderContext {
                farm: &farm.config.name,
                root,
                fetches: &self.parts.fetch_coalescer,
                metrics: &self.parts.metrics,
                instance_id: &self.parts.instance_id,
            };
            peers.start_senders(&context, handle)
        };
        let tasks = tasks.chain(farms.clone().filter_map(sweep)).chain(farms.flat_map(tell));
        tasks.chain(self.start_quota_enforcers(handle)).collect()
    }
}

/// Farms whose open resources another one may share.
#[derive(Debug, Clone, Copy)]
struct ReusableFarms<'a> {
    /// The farms of the previous configuration.
    previous_farms: &'a [Arc<FarmState>],
    /// The farms already opened in the new configuration.
    opened_farms: &'a [Arc<FarmState>],
}

impl ReusableFarms<'_> {
    fn farms(&self) -> impl Iterator<Item = &Arc<FarmState>> {
        self.previous_farms.iter().chain(self.opened_farms)
    }

    /// Returns the root at `path`.
    ///
    /// Opening a root sweeps it, and must not sweep files that a running fetch writes there. Farms that name one folder
    /// in two ways share one root as well, because counting, eviction and flushes there concern both. The root of an
    /// old farm is found by its name alone, because a name that the configuration no longer contains is not checked any
    /// more.
    fn docroot_at(&self, path: &Path) -> Option<&Arc<DocrootState>> {
        let named = self.farms().filter_map(|farm| farm.docroot.as_ref());
        let same = self.opened_farms.iter().filter_map(|farm| farm.docroot.as_ref());
        let mut docroots = named.filter(|root| root.path() == path);
        docroots.next().or_else(|| same.into_iter().find(|root| root.is_same_folder_as(path)))
    }
}

/// Opens a farm.
fn open_farm(
    farm: &Arc<FarmConfig>,
    runtime: &DispatcherRuntime,
    keep_alive: Option<Duration>,
    reusable_farms: ReusableFarms<'_>,
) -> FarmState {
    let docroot = farm.cache.as_ref().and_then(|cache| {
        let path = cache.docroot.as_ref()?;
        if let Some(root) = reusable_farms.docroot_at(path) {
            return Some(Arc::clone(root));
        }
        let opened = DocrootState::open(path, cache.mode);
        if let Err(error) = &opened {
            tracing::error!(farm = %farm.name, file = %path.display(), reason = %error,
                "cannot open the document root; the farm caches nothing");
        }
        runtime.log.write(&runtime.clock, LogLevel::Debug, || {
            format!("farms[{}].cache.docroot = {}", farm.name, path.display())
        });
        opened.ok().map(Arc::new)
    });
    if let Some(checker) = &farm.auth_checker {
        runtime.log.write(&runtime.clock, LogLevel::Debug, || {
            format!("AuthChecker: initialized with URL '{}'.", checker.url)
        });
    }
    let is_open_to_all = farm.cache.as_ref().is_some_and(|cache| {
        cache.allowed_clients.as_ref().is_none_or(|list| list.rules.is_empty())
    });
    if is_open_to_all && !runtime.flush_keys.has_any() {
        tracing::warn!(farm = %farm.name, "anyone may flush this farm; add /allowedClients");
    }
    let old = reusable_farms.farms().find(|old| old.config.name == farm.name);
    let is_same_list = |old: &&Arc<FarmState>| old.config.vanity_urls == farm.vanity_urls;
    let vanity =
        old.filter(is_same_list).map(|old| Arc::clone(&old.vanity_list)).unwrap_or_else(|| {
            let vanity = VanityList::default();
            if let Some(file) = farm.vanity_urls.as_ref().and_then(|urls| urls.list_file.as_ref()) {
                vanity.load_file(file, runtime);
            }
            Arc::new(vanity)
        });
    FarmState {
        config: Arc::clone(farm),
        docroot,
        upstream: Upstream::new(farm, runtime, keep_alive),
        sibling_upstream: farm_siblings(farm, runtime, keep_alive),
        flush_siblings: FarmSiblings::for_farm(farm, runtime),
        shadow: FarmShadow::for_farm(farm, runtime),
        refetch_queue: old.map(|old| Arc::clone(&old.refetch_queue)).unwrap_or_default(),
        flush_queue: FlushQueue::default(),
        handlers: old.map(|old| Arc::clone(&old.handlers)).unwrap_or_default(),
        hot_refetch_budget: old.map(|old| Arc::clone(&old.hot_refetch_budget)).unwrap_or_default(),
        variant_limiter: farm.variant_limit.map(|limit| {
            let previous_limiter = old.and_then(|old| old.variant_limiter.as_ref());
            match previous_limiter.filter(|previous_limiter| previous_limiter.limit() == limit) {
                Some(previous_limiter) => Arc::clone(previous_limiter),
                None => Arc::new(VariantLimiter::new(limit)),
            }
        }),
        vanity_list: vanity,
        farm_metrics: old.map(|old| Arc::clone(&old.farm_metrics)).unwrap_or_default(),
    }
}
