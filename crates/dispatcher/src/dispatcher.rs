//! The dispatcher as a service that can change its configuration while it serves.
//!
//! Invariants
//! * A request sees one configuration from its beginning to its end; a reload swaps the whole of it.
//! * Over a reload the counters, the fetches under way, the open document roots, the re-fetch queues and the vanity URLs
//!   stay, so that no visitor notices it.
//!
//! Not here: the way of a request (`answer`, `serve`), what a flush does (`flush`).

use std::convert::Infallible;
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use http::Request;
use hyper::body::Incoming;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tower::service_fn;
use tympan_web::access_log;
use tympan_web::client::{Client, Options};
use tympan_web::lane::Lane;
use tympan_web::listen::{Counters, Front};
use tympan_web::log_file::LogFile;
use tympan_web::tls::Trust;

use crate::Error;
use crate::cache::Root;
use crate::clock::Clock;
use crate::config::{Config, Farm};
use crate::fast::Opening;
use crate::flight::Flights;
use crate::flush_keys::FlushKeys;
use crate::front::Gate;
use crate::gossip::{Peers, Ready, new_word};
use crate::handler::Handlers;
use crate::hot::Budget;
use crate::log::{Level, Log};
use crate::memory::Memory;
use crate::metrics::{
    Metrics, Tally, connections_to_text, farms_to_text, renders_to_text, siblings_to_text,
};
use crate::refetch::Queue;
use crate::sessions;
use crate::settings::{Settings, Switches};
use crate::shadow::Shadow;
use crate::share::{Shares, has_shares};
use crate::sibling::siblings_of;
use crate::status::Status;
use crate::storm::Storm;
use crate::upstream::Upstream;
use crate::vanity::VanityList;
use crate::variant_limit::VariantLimiter;
use crate::visits::Doors;

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
    /// The keys of pairs that may flush all farms.
    pub flush_keys: FlushKeys,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            clock: Clock::new(std::time::SystemTime::now),
            log: Log::default(),
            access_log: None,
            trust: None,
            flush_keys: FlushKeys::default(),
        }
    }
}

/// The caching proxy; clones are the same one.
#[derive(Debug, Clone)]
pub struct Dispatcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    current: RwLock<Arc<Inner>>,
    background: Mutex<Background>,
    started: Instant,
    /// What the listeners of visitors count.
    counters: Mutex<Vec<Arc<Counters>>>,
}

/// What runs beside requests.
#[derive(Debug, Default)]
struct Background {
    /// The runtime that serves, while it does.
    runtime: Option<Handle>,
    tasks: Vec<JoinHandle<()>>,
    /// What fills the cache at the start, over reloads.
    warming: Option<JoinHandle<()>>,
    /// Lives as long as a listener uses it.
    lane: Weak<Opening>,
}

/// A dispatcher with one configuration.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) switches: Switches,
    pub(crate) farms: Vec<Arc<FarmState>>,
    pub(crate) runtime: Runtime,
    pub(crate) flights: Arc<Flights>,
    pub(crate) memory: Arc<Memory>,
    /// Tells this configuration from those before it.
    pub(crate) serial: u64,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shares: Arc<Shares>,
    pub(crate) has_shares: bool,
    /// For rules that let another server answer.
    pub(crate) proxy: Client,
    /// What is asked of each request before anything else.
    pub(crate) gate: Gate,
    /// Tells this dispatcher from its siblings.
    pub(crate) instance: Arc<str>,
    pub(crate) ready: Arc<Ready>,
    /// Where visitors come in.
    pub(crate) doors: Arc<Doors>,
}

/// A farm and what belongs to it at run time.
#[derive(Debug)]
pub(crate) struct FarmState {
    pub(crate) farm: Arc<Farm>,
    pub(crate) docroot: Option<Arc<Root>>,
    pub(crate) upstream: Upstream,
    /// Other dispatchers that may have a page.
    pub(crate) siblings: Option<Upstream>,
    /// Those of them that are told what is flushed.
    pub(crate) peers: Option<Peers>,
    /// Other renders whose answers are compared.
    pub(crate) shadow: Option<Shadow>,
    pub(crate) refetch: Arc<Queue>,
    pub(crate) storm: Storm,
    pub(crate) handlers: Arc<Handlers>,
    pub(crate) budget: Arc<Budget>,
    /// Who asked for how many variants of which page.
    pub(crate) variants: Option<Arc<VariantLimiter>>,
    pub(crate) vanity: Arc<VanityList>,
    pub(crate) tally: Arc<Tally>,
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

impl Dispatcher {
    /// Opens the document roots of `config`.
    ///
    /// A root that cannot be opened is reported, and its farm forwards everything.
    ///
    /// # Errors
    /// [`Error::NoFarm`].
    pub fn new(config: Config, runtime: Runtime) -> Result<Self, Error> {
        Self::with_settings(config, &Settings::default(), runtime)
    }

    /// As [`Dispatcher::new`], with what stands in `tympan.toml`.
    ///
    /// # Errors
    /// [`Error::NoFarm`], or [`Error::Setting`] with the key that is wrong.
    pub fn with_settings(
        config: Config,
        settings: &Settings,
        runtime: Runtime,
    ) -> Result<Self, Error> {
        let inner = Inner::open(config, settings, runtime, None)?;
        Ok(Self(Arc::new(Shared {
            current: RwLock::new(Arc::new(inner)),
            background: Mutex::default(),
            started: Instant::now(),
            counters: Mutex::default(),
        })))
    }

    /// Serves the requests that come from now on by another configuration, and asks renders that `trust` believes; those
    /// under way end by the old one.
    ///
    /// # Errors
    /// As [`Dispatcher::with_settings`]; the old configuration stays then.
    pub fn reload(
        &self,
        config: Config,
        settings: &Settings,
        trust: Option<Trust>,
    ) -> Result<(), Error> {
        let old = self.current();
        let runtime = Runtime { trust, ..old.runtime.clone() };
        let inner = Arc::new(Inner::open(config, settings, runtime, Some(&old))?);
        *self.0.current.write() = Arc::clone(&inner);
        inner.shares.reset();
        for farm in &inner.farms {
            farm.refetch.hand_over(&inner, farm);
        }
        for farm in &old.farms {
            if !inner.farms.iter().any(|own| Arc::ptr_eq(&own.refetch, &farm.refetch)) {
                farm.refetch.clear();
            }
        }
        inner.memory.clear();
        // What another render answered says nothing about those of now.
        inner.farms.iter().for_each(|farm| farm.forget_negatives());
        let mut background = self.0.background.lock();
        if let Some(runtime) = background.runtime.clone() {
            for task in background.tasks.drain(..) {
                task.abort();
            }
            background.tasks = inner.start_background(&runtime);
        }
        Ok(())
    }

    pub(crate) fn current(&self) -> Arc<Inner> {
        Arc::clone(&self.0.current.read())
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
        let is_first = self.begin_background();
        if is_first {
            // Nobody is shown what siblings know to be out of date.
            tokio::spawn(self.current().catch_up());
        }
        self.0.counters.lock().push(Arc::clone(&front.counters));
        if let Ok(address) = listener.local_addr() {
            self.current().doors.add(address.port(), front.tls.is_some());
        }
        let dispatcher = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let inner = dispatcher.current();
            async move { Ok::<_, Infallible>(inner.answer_logged(request).await) }
        });
        let front = Front { lane: Some(self.lane()), ..front };
        let served = tympan_web::listen::serve(listener, service, front, shutdown).await;
        if is_first {
            let mut background = self.0.background.lock();
            background.runtime = None;
            let warming = background.warming.take();
            for task in background.tasks.drain(..).chain(warming) {
                task.abort();
            }
        }
        Ok(served?)
    }

    /// Serves those who watch the dispatcher, as [`Dispatcher::serve`] serves visitors.
    ///
    /// # Errors
    /// When the socket cannot be used.
    pub async fn serve_admin(
        &self,
        listener: TcpListener,
        front: Front,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let dispatcher = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let dispatcher = dispatcher.clone();
            async move { Ok::<_, Infallible>(dispatcher.answer_admin(request).await) }
        });
        Ok(tympan_web::listen::serve(listener, service, front, shutdown).await?)
    }

    /// Stores nothing any more, as another process has taken the cache over. Fetches go on for their visitors; flushes that
    /// siblings are to be told are left to the other process. Waits for files that are being written.
    pub fn leave_cache(&self) {
        let inner = self.current();
        inner.flights.close();
        inner.leave_logs();
    }

    /// Returns what the dispatcher is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.current().status(self.0.started.elapsed())
    }

    /// Returns the lane for kept answers, which all listeners share.
    fn lane(&self) -> Arc<dyn Lane> {
        let mut background = self.0.background.lock();
        if let Some(lane) = background.lane.upgrade() {
            return lane;
        }
        let lane = Arc::new(Opening::new(self.clone()));
        background.lane = Arc::downgrade(&lane);
        drop(background);
        // What prevents it is told at the start.
        lane.is_open();
        lane
    }

    /// Starts what runs beside requests; returns whether it did not run already.
    fn begin_background(&self) -> bool {
        let mut background = self.0.background.lock();
        if background.runtime.is_some() {
            return false;
        }
        let runtime = Handle::current();
        background.tasks = self.current().start_background(&runtime);
        background.warming = Some(runtime.spawn(self.clone().warm_up()));
        background.runtime = Some(runtime);
        true
    }

    /// Changes for how many of a hundred visitors a farm with `/x-share` is, until the next reload; returns whether
    /// there is such a farm.
    #[must_use]
    pub fn set_share(&self, farm: &str, percent: f64) -> bool {
        let inner = self.current();
        let is_known = inner.config.farms.iter().any(|own| own.name == farm && own.share.is_some());
        if is_known {
            inner.shares.set(farm, percent);
        }
        is_known
    }

    /// Returns all counters in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        let mut text = self.current().metrics_text();
        connections_to_text(&mut text, &self.0.counters.lock());
        text
    }
}

impl Inner {
    /// Opens what a configuration needs, keeping what an earlier one has open.
    fn open(
        config: Config,
        settings: &Settings,
        runtime: Runtime,
        old: Option<&Self>,
    ) -> Result<Self, Error> {
        if config.farms.is_empty() {
            return Err(Error::NoFarm);
        }
        let switches = settings.switches()?;
        let gate = Gate::read(&settings.front, old.map(|old| &old.gate))?;
        let mut runtime = runtime;
        if let Some(level) = switches.log_level {
            runtime.log.level = level;
        }
        let has_shares = has_shares(&config);
        let mut farms: Vec<Arc<FarmState>> = Vec::new();
        for farm in &config.farms {
            let known = Known { old: old.map_or(&[], |old| &old.farms), new: &farms };
            let state = open_farm(farm, &runtime, switches.keep_alive, known);
            farms.push(Arc::new(state));
        }
        let has_peers = farms.iter().any(|farm| farm.peers.is_some());
        Ok(Self {
            config,
            switches,
            farms,
            runtime,
            flights: old.map(|old| Arc::clone(&old.flights)).unwrap_or_default(),
            memory: old.map(|old| Arc::clone(&old.memory)).unwrap_or_default(),
            serial: old.map_or(0, |old| old.serial + 1),
            metrics: old.map(|old| Arc::clone(&old.metrics)).unwrap_or_default(),
            shares: old.map(|old| Arc::clone(&old.shares)).unwrap_or_default(),
            has_shares,
            proxy: old.map_or_else(|| Client::new(Options::default()), |old| old.proxy.clone()),
            gate,
            instance: old.map_or_else(|| new_word().into(), |old| Arc::clone(&old.instance)),
            ready: old
                .map_or_else(|| Arc::new(Ready::new(!has_peers)), |old| Arc::clone(&old.ready)),
            doors: old.map(|old| Arc::clone(&old.doors)).unwrap_or_default(),
        })
    }

    fn metrics_text(&self) -> String {
        let queued = self.farms.iter().map(|farm| farm.refetch.len()).sum();
        let mut text = self.metrics.to_text(&[
            (
                "fetches",
                "Pages that are being fetched now; many for long means slow renders.",
                self.flights.count() as u64,
            ),
            (
                "refetch_queue",
                "Flushed pages that wait to be fetched again; a steady rise means too many flushes.",
                queued,
            ),
            (
                "in_flight",
                "Requests that are being answered; a rise means slow renders or slow clients.",
                self.metrics.present(),
            ),
            (
                "render_queue",
                "Requests that wait for a busy render; a rise means that renders are too slow for the load.",
                self.farms.iter().map(|farm| farm.upstream.waiting() as u64).sum(),
            ),
            (
                "kept_answers",
                "Answers that memory holds ready; few with many hits mean that rules look at more than URLs.",
                self.memory.size().0,
            ),
            (
                "kept_bytes",
                "About how many bytes these answers take, open files counted as more; it stays below 64 MiB.",
                self.memory.size().1,
            ),
            (
                "renders_ejected",
                "Renders that are asked last, as their health page is bad; look at their logs.",
                self.farms.iter().map(|farm| farm.upstream.ejected() as u64).sum(),
            ),
        ]);
        let tallies = self.farms.iter().map(|farm| (farm.farm.name.as_str(), &*farm.tally));
        text.push_str(&farms_to_text(tallies));
        let renders =
            self.farms.iter().map(|farm| (farm.farm.name.as_str(), farm.upstream.renders()));
        text.push_str(&renders_to_text(renders));
        let siblings = self.farms.iter().filter_map(|farm| {
            let (peers, root) = (farm.peers.as_ref()?, farm.docroot.as_ref()?);
            let last = root.log_of(&farm.farm.name).last();
            Some((farm.farm.name.as_str(), peers.status(last)))
        });
        text.push_str(&siblings_to_text(siblings));
        text.push_str(&self.roots_to_text());
        text
    }

    fn start_background(&self, handle: &Handle) -> Vec<JoinHandle<()>> {
        let load_vanity = |farm: &Arc<FarmState>| {
            let vanity = farm.farm.vanity_urls.clone()?;
            let farm = Arc::clone(farm);
            let runtime = self.runtime.clone();
            Some(handle.spawn(async move {
                farm.vanity.keep_loading(&farm, &vanity, &runtime).await;
            }))
        };
        let probe = |farm: &Arc<FarmState>| {
            let (url, interval) = (farm.farm.health_check.clone()?, farm.farm.probe_interval?);
            let farm = Arc::clone(farm);
            Some(handle.spawn(async move { farm.upstream.keep_probing(&url, interval).await }))
        };
        let sweep = |farm: &Arc<FarmState>| {
            let sessions = farm.farm.sessions.clone()?;
            let clock = self.runtime.clock.clone();
            Some(handle.spawn(async move {
                loop {
                    tokio::time::sleep(sessions.timeout.max(Duration::from_secs(60))).await;
                    let (sessions, now) = (sessions.clone(), clock.now());
                    tokio::task::spawn_blocking(move || sessions::sweep(&sessions, now)).await.ok();
                }
            }))
        };
        let farms = self.farms.iter();
        let tasks = farms.clone().filter_map(load_vanity).chain(farms.clone().filter_map(probe));
        let tell = |farm: &Arc<FarmState>| {
            let peers = farm.peers.as_ref();
            peers.map_or_else(Vec::new, |peers| peers.start((farm, self), handle))
        };
        let tasks = tasks.chain(farms.clone().filter_map(sweep)).chain(farms.flat_map(tell));
        tasks.chain(self.keep_roots(handle)).collect()
    }

    pub(crate) fn log(&self, level: Level, text: impl FnOnce() -> String) {
        self.runtime.log.write(&self.runtime.clock, level, text);
    }
}

/// Farms whose open parts another one may share.
#[derive(Debug, Clone, Copy)]
struct Known<'a> {
    /// Those of the configuration before.
    old: &'a [Arc<FarmState>],
    /// Those before it in its own configuration.
    new: &'a [Arc<FarmState>],
}

impl Known<'_> {
    fn farms(&self) -> impl Iterator<Item = &Arc<FarmState>> {
        self.old.iter().chain(self.new)
    }

    /// Returns the root at `path`.
    ///
    /// Opening a root sweeps it, and must not sweep what a fetch under way writes there. Farms that name one folder in two
    /// ways have one root as well: what is counted, evicted and flushed there concerns both. The root of an old farm goes by
    /// its name alone, as nobody looks after a name any more that the configuration has lost.
    fn root(&self, path: &Path) -> Option<&Arc<Root>> {
        let named = self.farms().filter_map(|farm| farm.docroot.as_ref());
        let same = self.new.iter().filter_map(|farm| farm.docroot.as_ref());
        let mut found = named.filter(|root| root.path() == path);
        found.next().or_else(|| same.into_iter().find(|root| root.is_at(path)))
    }
}

/// Opens a farm.
fn open_farm(
    farm: &Arc<Farm>,
    runtime: &Runtime,
    keep_alive: Option<Duration>,
    known: Known<'_>,
) -> FarmState {
    let docroot = farm.cache.as_ref().and_then(|cache| {
        let path = cache.docroot.as_ref()?;
        if let Some(root) = known.root(path) {
            return Some(Arc::clone(root));
        }
        let opened = Root::open(path, cache.mode);
        if let Err(error) = &opened {
            tracing::error!(farm = %farm.name, file = %path.display(), reason = %error,
                "cannot open the document root; the farm caches nothing");
        }
        runtime.log.write(&runtime.clock, Level::Debug, || {
            format!("farms[{}].cache.docroot = {}", farm.name, path.display())
        });
        opened.ok().map(Arc::new)
    });
    if let Some(checker) = &farm.auth_checker {
        runtime.log.write(&runtime.clock, Level::Debug, || {
            format!("AuthChecker: initialized with URL '{}'.", checker.url)
        });
    }
    let is_open_to_all = farm.cache.as_ref().is_some_and(|cache| {
        cache.allowed_clients.as_ref().is_none_or(|list| list.rules.is_empty())
    });
    if is_open_to_all && !runtime.flush_keys.has_any() {
        tracing::warn!(farm = %farm.name, "anyone may flush this farm; add /allowedClients");
    }
    let old = known.farms().find(|old| old.farm.name == farm.name);
    let is_same_list = |old: &&Arc<FarmState>| old.farm.vanity_urls == farm.vanity_urls;
    let vanity = old.filter(is_same_list).map(|old| Arc::clone(&old.vanity)).unwrap_or_else(|| {
        let vanity = VanityList::default();
        if let Some(file) = farm.vanity_urls.as_ref().and_then(|urls| urls.file.as_ref()) {
            vanity.load_file(file, runtime);
        }
        Arc::new(vanity)
    });
    FarmState {
        farm: Arc::clone(farm),
        docroot,
        upstream: Upstream::new(farm, runtime, keep_alive),
        siblings: siblings_of(farm, runtime, keep_alive),
        peers: Peers::of(farm, runtime),
        shadow: Shadow::of(farm, runtime),
        refetch: old.map(|old| Arc::clone(&old.refetch)).unwrap_or_default(),
        storm: Storm::default(),
        handlers: old.map(|old| Arc::clone(&old.handlers)).unwrap_or_default(),
        budget: old.map(|old| Arc::clone(&old.budget)).unwrap_or_default(),
        variants: farm.variant_limit.map(|limit| {
            let known = old.and_then(|old| old.variants.as_ref());
            match known.filter(|known| known.limit() == limit) {
                Some(known) => Arc::clone(known),
                None => Arc::new(VariantLimiter::new(limit)),
            }
        }),
        vanity,
        tally: old.map(|old| Arc::clone(&old.tally)).unwrap_or_default(),
    }
}
