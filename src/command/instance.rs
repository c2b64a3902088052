//! `tympan author` and `tympan publish`: one instance until it is told to stop.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tympan_content::{NodePath, Repository};
use tympan_jobs::asset::{AssetCounters, AssetFollower, AssetHandler, Assets, WriteBackProcess};
use tympan_jobs::mount::Mounts;
use tympan_jobs::workflow::{Launcher, Steps, WorkflowHandler, Workflows};
use tympan_jobs::{Configurator, Queues, RemovalClock, TopicPattern, Worker, WorkerOptions};
use tympan_render::{DirSource, FragmentCache, Mode, Options, Renderer, RepositorySource};
use tympan_replicate::{Pairs, Replicator, Times, TimesHandler};
use tympan_search::Index;
use tympan_server::{
    ImageOptions, Instance, InstanceOptions, InstanceShortcut, Logins, PoolState, Role,
    admin_router, router,
};
use tympan_store::{PostgresStore, State};
use tympan_web::listen::{Counters, Front, Limits, Overflow, Reuse, bind, serve};
use tympan_web::network::{Network, NotANetwork};

use crate::args;
use crate::backup;
use crate::base;
use crate::blob_metrics;
use crate::blobs::Sharing;
use crate::clock;
use crate::command::certificate::{Certificate, read_tls};
use crate::command::picture::{self, Urgency};
use crate::command::{Fault, Outcome, most_open_files, runtime};
use crate::config::Config;
use crate::data;
use crate::home::{Home, chain, random_text, replication_key};
use crate::ledger::Reached;
use crate::maintenance;
use crate::say;
use crate::shared;

/// How many requests render or edit at once unless configured.
const WORK_PERMITS: usize = 128;
/// How many wait unless configured: at a few milliseconds for a page, those behind them would wait for seconds.
const WORK_WAITING: usize = 4096;
/// How long the body of a request may leave off arriving unless configured.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Uploads and replication may be as large as this unless configured.
const BODY_BYTES: u64 = 4 << 30;

/// Pictures, files and little pages that are remembered; each is estimated at 400 bytes, without its own. The ledger knows
/// 100,000 addresses.
const REMEMBERED_ANSWERS: usize = 65_536;

/// What an instance is started with.
pub(crate) struct Plan<'a> {
    pub(crate) role: Role,
    pub(crate) home: &'a Home,
    pub(crate) listen: SocketAddr,
    pub(crate) admin_listen: Option<SocketAddr>,
    /// The folder with `replication.key`.
    pub(crate) key_dir: PathBuf,
    /// A site folder whose scripts are read live.
    pub(crate) site: Option<PathBuf>,
    /// Whether it takes the heavy work on assets, and nothing else.
    pub(crate) is_assets: bool,
}

/// A running instance.
pub(crate) struct Running {
    pub(crate) state: State,
    pub(crate) logins: Logins,
    pub(crate) address: SocketAddr,
    /// Where the admin listener answers, if there is one.
    pub(crate) admin_address: Option<SocketAddr>,
    certificate: Option<Certificate>,
    search: Arc<Index>,
    instance: Arc<Instance>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<Result<(), Fault>>,
}

impl Running {
    /// Lets open requests and jobs end, then closes the state database.
    pub(crate) async fn stop(mut self) {
        self.instance.stop();
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        let search = self.search;
        // A thread that panicked has said so.
        tokio::task::spawn_blocking(move || search.close()).await.ok();
        self.state.close().await;
    }

    /// Returns what opens the logs anew, and reads the certificate again.
    pub(crate) fn reopener(&self) -> impl Fn() + use<> {
        let (instance, certificate) = (self.instance.clone(), self.certificate.clone());
        move || {
            instance.reopen_logs();
            if let Some(certificate) = &certificate {
                certificate.renew();
            }
        }
    }

    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.certificate.is_some() { "https" } else { "http" }
    }

    /// Returns when a listener fails, which none does in a healthy process.
    pub(crate) async fn failed(&mut self) -> Fault {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Err(fault))) => return fault,
                Some(_) => {}
                None => std::future::pending::<()>().await,
            }
        }
    }
}

/// Starts an instance: sockets first, so that a taken port is found before anything else happens.
///
/// # Errors
/// With the role and the address if a socket is taken.
pub(crate) async fn start(plan: &Plan<'_>) -> Result<Running, Fault> {
    let role = plan.role;
    let bound = |address| {
        bind(address, Reuse::Exclusive)
            .map_err(|error| Fault::cannot_run(format!("{}: {}", role.name(), chain(&error))))
    };
    let listener = bound(plan.listen)?;
    let address = listener.local_addr().unwrap_or(plan.listen);
    let admin_listener = plan.admin_listen.map(bound).transpose()?;
    let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let config = &plan.home.config;
    let mut front = main_front(config, BODY_BYTES)?;
    front.limits.overflow = Overflow::Refuse;
    let certificate = Certificate::of(&front, config);
    // Before another repository could take for garbage what came with the home.
    let sharing = Sharing::of(plan.home);
    sharing.register()?;
    let state = plan.home.open_state().await?;
    let repository = plan.home.repository.clone();
    let queues = Queues::new(state.pool().clone());
    let failed = |error: &dyn std::error::Error| Fault::cannot_run(chain(error));
    if !state.is_shared() {
        // Nobody else holds what an earlier run of this process left.
        queues.release_all().await.map_err(|error| failed(&error))?;
    }
    let (configurator, mounts) = jobs(plan, &queues, state.is_shared())?;
    if plan.is_assets {
        let facts = &configurator.worker().options().facts;
        shared::require_same_blobs(plan.home, facts, &queues).await?;
    }
    let key = replication_key(&plan.key_dir)?;
    // Instances on one database speak to others as one.
    let key = match state.is_shared() {
        true => tympan_server::shared_secret(state.pool(), "replication.key", &key)
            .await
            .map_err(|error| failed(&error))?,
        false => key,
    };
    let pairs = Pairs::at(plan.key_dir.join(super::pair::FOLDER));
    let replicator = Replicator::new(
        role.name(),
        repository.clone(),
        queues.clone(),
        key.clone(),
        pairs.clone(),
    );
    let models = plan.home.config.workflows.roots()?;
    let workflows = Workflows::new(queues.clone()).with_models(models);
    replicator.configure_as(configurator.worker().clone());
    register_steps(plan, &workflows, configurator.worker(), &replicator)?;
    if !plan.is_assets {
        maintenance::register(configurator.worker(), plan.home).await?;
    }
    let mut logins = Logins::new(state.pool().clone(), repository.clone())
        .with_trusted_proxies(&trusted_proxies(config)?);
    if let Some(idle) = config.login.idle {
        logins = logins.with_session_idle(idle.0);
    }
    let now = look_at_clock(plan.home.dir.clone(), repository.clone()).await;
    logins.tidy(now).await.map_err(|error| failed(&error))?;
    let search =
        Index::open(repository.clone(), &plan.home.dir.join("search"), config.search.options());
    let search = Arc::new(search.map_err(|error| failed(&error))?);
    let site_state = crate::ledger::state_of(plan.site.as_deref())?;
    let ledger = match role {
        Role::Publish => Some(crate::ledger::open(plan.home, &state, (&key, site_state)).await?),
        Role::Author => None,
    };
    let site_key = key.clone();
    let options = InstanceOptions {
        role,
        ledger: ledger.clone(),
        surrogate_key: crate::ledger::surrogate_key(config)?,
        page_headers: config.publish.page_headers().map_err(Fault::cannot_run)?,
        renderer: renderer(plan, config)?,
        repository,
        queues: queues.clone(),
        configurator: configurator.clone(),
        replicator: replicator.clone(),
        search: search.clone(),
        logins: logins.clone(),
        replication_key: key,
        pairs,
        spool: plan.home.dir.join("spool"),
        logs: plan.home.dir.join("logs"),
        work_permits: config.work.permits.unwrap_or(WORK_PERMITS),
        work_waiting: config.work.max_waiting.unwrap_or(WORK_WAITING),
        telling: config.timing.telling(),
        rotation: config.logs.rotation(),
        body_timeout: config.listen.body_timeout.map_or(BODY_TIMEOUT, |timeout| timeout.0),
        query_budgets: config.query.budgets(),
        keeping: config.versions.keeping(),
    };
    let instance = Instance::open(options, SystemTime::now()).map_err(|error| failed(&error))?;
    if let Some(mounts) = &mounts {
        instance.synchronize_with(mounts.clone());
    }
    instance.receive_below(received_paths(config)?);
    // A database may have to be asked for the newest root, and scripts of a folder change by themselves.
    if plan.home.local.is_some() && plan.site.is_none() {
        instance.remember_answers(REMEMBERED_ANSWERS);
    }
    if let Some(ledger) = &ledger {
        replicator.ask(Arc::new(Reached::new(ledger.clone(), &instance)));
        replicator.set_publisher(&crate::ledger::short_name(plan.home)?);
        let all = ledger.publishers().await.map_err(|error| failed(&error))?;
        let all: Vec<String> = all.iter().map(|name| crate::ledger::short(name)).collect();
        replicator.divide_place(&all).await.map_err(|error| failed(&error))?;
    }
    draw_pictures(plan, &instance, configurator.worker());
    watch_pools(&instance, (&state, plan.home.database.as_ref()), &front);
    probe_dependencies(plan, &instance);
    instance.watch_metrics(blob_metrics::source(&plan.home.blobs));
    instance.watch_metrics(connection_metrics(Arc::clone(&front.counters)));
    instance.keep_guest_notes(sharing.guest_notes());
    let exports = super::export::start(plan, &instance)?;
    if !plan.is_assets {
        backup::register(configurator.worker(), plan.home, &instance).await?;
    }
    if role == Role::Publish {
        // What a crash kept from being flushed is flushed now.
        replicator.follow(SystemTime::now()).await.map_err(|error| failed(&error))?;
    }
    if role == Role::Publish {
        front.shortcut = Some(Arc::new(InstanceShortcut::new(instance.clone())));
    }
    let (stop, stopped) = watch::channel(false);
    instance.watch_health("blobs", sharing.register_far(&stopped));
    let mut tasks = JoinSet::new();
    tasks.spawn(listen(listener, router(instance.clone()), front, stopped.clone()));
    if let Some(certificate) = certificate.clone() {
        let stopped = stopped.clone();
        tasks.spawn(async move {
            certificate.follow(stopped).await;
            Ok(())
        });
    }
    if exports {
        let following = instance.clone().follow_exports(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
    }
    if let Some(listener) = admin_listener {
        let router = admin_router(instance.clone());
        tasks.spawn(listen(listener, router, admin_front(config), stopped.clone()));
    }
    if let Some(composite) = plan.home.composite.clone() {
        let stopped = stopped.clone();
        let watched = composite.clone();
        instance.watch_health("base", move || watched.fault());
        tasks.spawn(async move {
            base::keep_lease(composite, stopped).await;
            Ok(())
        });
    }
    work_off((configurator, mounts), plan, &replicator, (&mut tasks, &stopped));
    tasks.spawn({
        let (home, tidied, stopped) = (plan.home.dir.clone(), logins.clone(), stopped.clone());
        watch_clock((home, plan.home.repository.clone()), tidied, stopped)
    });
    if role == Role::Publish {
        let following = replicator.clone().keep_following(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
    }
    tasks.spawn({
        let stopped = stopped.clone();
        async move {
            replicator.run(stopped).await;
            Ok(())
        }
    });
    if let (Some(ledger), Some(site)) = (ledger.clone(), plan.site.clone()) {
        let (by, stopped) = ((config.clone(), site_key), stopped.clone());
        tasks.spawn(async move {
            crate::ledger::follow_site(ledger, by, (site, site_state), stopped).await;
            Ok(())
        });
    }
    if let Some(ledger) = ledger {
        tasks.spawn(async move {
            ledger.run(stopped).await;
            Ok(())
        });
    }
    Ok(Running {
        state,
        logins,
        address,
        admin_address,
        certificate,
        search,
        instance,
        stop,
        tasks,
    })
}

/// Looks at the clock now and then, so that its jumps are seen, and removes the logins that ended by a trusted time.
async fn watch_clock(
    (home, repository): (PathBuf, Repository),
    logins: Logins,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Fault> {
    loop {
        tokio::select! {
            // Also when whoever could say so is gone.
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            () = tokio::time::sleep(clock::LOOK_EVERY) => {}
        }
        let now = look_at_clock(home.clone(), repository.clone()).await;
        if let Err(error) = logins.tidy(now).await {
            tracing::warn!(reason = chain(&error), "logins that ended are not removed now");
        }
    }
}

/// Returns the time by which things are removed for their age.
async fn look_at_clock(home: PathBuf, repository: Repository) -> SystemTime {
    let look = move || clock::trusted_now(&home, &**repository.chunks(), SystemTime::now());
    // Without an answer nothing is old enough.
    tokio::task::spawn_blocking(look).await.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Returns the proxies that are believed where clients come from.
fn trusted_proxies(config: &Config) -> Result<Vec<Network>, Fault> {
    let parse = |text: &String| {
        text.parse().map_err(|error: NotANetwork| {
            Fault::usage(format!("tympan.toml: [login]: trusted_proxies: {error}"))
        })
    };
    config.login.trusted_proxies.iter().map(parse).collect()
}

/// Returns what an author takes from other instances.
fn received_paths(config: &Config) -> Result<Vec<NodePath>, Fault> {
    let parse = |path: &String| {
        NodePath::new(path).map_err(|error| {
            Fault::usage(format!("tympan.toml: [receive]: paths: {}", chain(&error)))
        })
    };
    config.receive.paths.iter().map(parse).collect()
}

/// Lets `/health` ask what the instance cannot answer without: the database and the buckets; and whether its packs can still
/// be written.
fn probe_dependencies(plan: &Plan<'_>, instance: &Instance) {
    if let Some(database) = plan.home.database.clone() {
        instance.probe_dependency("database", move || {
            database.ping().map_err(|error| chain(&error))?;
            poisoned(database.poisoned())
        });
    }
    if let Some(local) = plan.home.local.clone() {
        instance.probe_dependency("packs", move || poisoned(local.poisoned()));
    }
    let blobs = &plan.home.blobs;
    let buckets: Vec<_> = blobs
        .buckets
        .iter()
        .map(|(role, bucket)| {
            let is_written = blobs.writable.iter().any(|(written, _)| written == role);
            (role.clone(), bucket.clone(), is_written)
        })
        .collect();
    if buckets.is_empty() {
        return;
    }
    instance.probe_dependency("bucket", move || {
        for (role, bucket, is_written) in &buckets {
            match bucket.ping() {
                Ok(false) if *is_written => {
                    return Err(format!("`{role}` refuses the credentials of this instance"));
                }
                Ok(_) => {}
                Err(error) => return Err(format!("`{role}`: {}", chain(&error))),
            }
        }
        Ok(())
    });
}

/// Says that a store accepts no more writes, if so.
fn poisoned(reason: Option<&str>) -> Result<(), String> {
    reason.map_or(Ok(()), |reason| Err(format!("nothing more is stored: {reason}; start anew")))
}

/// Shows connections of clients, to the state database and to the repository's in `/metrics`.
fn watch_pools(
    instance: &Instance,
    (state, database): (&State, Option<&Arc<PostgresStore>>),
    front: &Front,
) {
    if let Some(database) = database.cloned() {
        instance.watch_pools(move || {
            let counters = database.counters();
            vec![PoolState {
                name: "store".to_owned(),
                in_use: counters.in_use,
                idle: counters.idle,
                limit: counters.limit,
                waiting: counters.waiting,
                timeouts: counters.busy,
                refused: 0,
            }]
        });
    }
    let (pool, counters) = (state.pool().clone(), Arc::clone(&front.counters));
    let most = front.limits.max_connections as u64;
    instance.watch_pools(move || {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let open = read(&counters.open);
        let connections = PoolState {
            name: "connections".to_owned(),
            in_use: open,
            idle: 0,
            limit: most,
            waiting: read(&counters.waiting),
            timeouts: read(&counters.late),
            refused: read(&counters.refused),
        };
        let (size, idle) = (u64::from(pool.size()), pool.num_idle() as u64);
        let state = PoolState {
            name: "state".to_owned(),
            in_use: size.saturating_sub(idle),
            idle,
            limit: u64::from(pool.options().get_max_connections()),
            ..PoolState::default()
        };
        vec![connections, state]
    });
}

/// What tells that more clients keep connections than there are places, as name, meaning and count.
type OfConnections = (&'static str, &'static str, fn(&Counters) -> &AtomicU64);

const CONNECTIONS: [OfConnections; 3] = [
    (
        "tympan_connections_saturated_total",
        "Connections that came while all places were taken; raise max_connections if it repeats.",
        |counters| &counters.saturated,
    ),
    (
        "tympan_connections_evicted_total",
        "Connections closed while nothing was asked on them, as others waited; raise max_connections.",
        |counters| &counters.evicted,
    ),
    (
        "tympan_connections_released_total",
        "Connections closed with an answer, as hardly any place was free; raise max_connections.",
        |counters| &counters.released,
    ),
];

/// Returns what writes the counters of the main listener as Prometheus text.
fn connection_metrics(counters: Arc<Counters>) -> impl Fn(&str) -> String + Send + Sync {
    move |role| {
        let line = |(name, help, read): &OfConnections| {
            let value = read(&counters).load(Ordering::Relaxed);
            format!(
                "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
            )
        };
        CONNECTIONS.iter().map(line).collect()
    }
}

/// Lets an instance draw pictures, and an author's worker process assets.
fn draw_pictures(plan: &Plan<'_>, instance: &Instance, worker: &Worker) {
    let config = &plan.home.config;
    let limits = config.assets.limits();
    let mut counters = None;
    if plan.role == Role::Author {
        let studio = picture::studio(config, Urgency::Later);
        let repository = plan.home.repository.clone();
        let assets = Assets::new(repository, studio, config.assets.profile(), limits);
        let handler = AssetHandler::new(assets);
        counters = Some(handler.counters());
        worker.register(Arc::new(handler));
    }
    instance.draw_with(image_options(config, Urgency::Now, counters));
}

/// Returns what pictures are drawn with.
pub(super) fn image_options(
    config: &Config,
    urgency: Urgency,
    counters: Option<Arc<AssetCounters>>,
) -> ImageOptions {
    ImageOptions {
        studio: picture::studio(config, urgency),
        limits: config.assets.limits(),
        widths: config.assets.url_widths.clone(),
        parallel: picture::cores(),
        assets: counters,
    }
}

/// Makes what works off the queues, with the configurations that content holds; and the mounts of an author.
fn jobs(
    plan: &Plan<'_>,
    queues: &Queues,
    is_shared: bool,
) -> Result<(Configurator, Option<Mounts>), Fault> {
    let section = &plan.home.config.jobs;
    let role = if plan.is_assets { ASSETS } else { plan.role.name() };
    let name = format!("{role}-{}", random_text()?.get(..12).unwrap_or_default());
    let mut options = WorkerOptions::new(role, name);
    if let Some(threads) = section.threads {
        options.threads = threads;
    }
    if let Some(drain) = section.drain {
        options.drain = drain.0;
    }
    if let Some(lease) = section.lease {
        options.lease = lease.0;
    }
    let home = plan.home.dir.clone();
    options.removal_clock = RemovalClock::new(move |now| clock::noted_now(&home, now));
    if plan.is_assets {
        options.takes = ASSET_TOPICS.iter().map(|topic| TopicPattern::of_queue(topic)).collect();
        options.is_reserving = true;
    }
    let settings = match plan.role {
        Role::Author => {
            Some(plan.home.config.mounts.settings(&plan.home.dir, &plan.home.config.outgoing)?)
        }
        Role::Publish => None,
    };
    if is_shared && plan.role == Role::Author {
        options.facts = shared::facts(plan.home, settings.as_ref())?;
    }
    let worker = Worker::new(queues.clone(), options);
    let runtime = tokio::runtime::Handle::current();
    let mut mounts = None;
    if let Some(settings) = settings {
        let made = Mounts::new(plan.home.repository.clone(), queues.clone(), runtime, settings);
        made.handlers().into_iter().for_each(|handler| worker.register(handler));
        mounts = Some(made);
    }
    let mut modes = vec![plan.role.name()];
    modes.extend(section.run_modes.iter().map(String::as_str));
    let configurator = Configurator::new(worker, plan.home.repository.clone(), &modes);
    configurator.refresh().map_err(|error| Fault::cannot_run(chain(&error)))?;
    if let Some(mounts) = &mounts {
        mounts.load(&configurator.configs());
    }
    Ok((configurator, mounts))
}

/// Lets steps of workflows be carried out: those that come with the engine, and on authors those that replicate.
fn register_steps(
    plan: &Plan<'_>,
    workflows: &Workflows,
    worker: &Worker,
    replicator: &Replicator,
) -> Result<(), Fault> {
    let runtime = tokio::runtime::Handle::current();
    let studio = picture::studio(&plan.home.config, Urgency::Later);
    let write_back = WriteBackProcess::new(plan.home.repository.clone()).with_studio(studio);
    let mut steps = Steps::standard(&plan.home.repository).process(Arc::new(write_back));
    let outgoing = plan.home.config.outgoing.listed().map_err(Fault::usage)?;
    steps = steps.asking(&outgoing);
    if plan.role == Role::Author {
        let keeping = plan.home.config.versions.keeping();
        for process in tympan_replicate::processes(replicator, keeping, &runtime) {
            steps = steps.process(process);
        }
    }
    for handler in WorkflowHandler::of(workflows, &runtime, steps) {
        worker.register(handler);
    }
    if plan.role == Role::Author {
        let keeping = plan.home.config.versions.keeping();
        let handler = TimesHandler::new(replicator.clone(), keeping, runtime);
        worker.register(Arc::new(handler));
    }
    Ok(())
}

/// Starts what follows content and works off the queues.
fn work_off(
    (configurator, mounts): (Configurator, Option<Mounts>),
    plan: &Plan<'_>,
    replicator: &Replicator,
    (tasks, stopped): (&mut JoinSet<Result<(), Fault>>, &watch::Receiver<bool>),
) {
    if plan.role == Role::Author && !plan.is_assets {
        let following = launcher(&configurator, plan, replicator.queues()).run(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
        let following = Times::new(replicator.clone()).run(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
        let following = replicator.clone().keep_withdrawing(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
        let assets = AssetFollower::new(plan.home.repository.clone(), replicator.queues().clone());
        let following = assets.run(stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
    }
    if let Some(mounts) = mounts {
        let following = mounts.run(configurator.clone(), !plan.is_assets, stopped.clone());
        tasks.spawn(async move {
            following.await;
            Ok(())
        });
    }
    let working = configurator.worker().clone().run(stopped.clone());
    tasks.spawn(async move {
        working.await;
        Ok(())
    });
    let following = configurator.run(stopped.clone());
    tasks.spawn(async move {
        following.await;
        Ok(())
    });
}

/// Makes what starts the workflows of launchers.
fn launcher(configurator: &Configurator, plan: &Plan<'_>, queues: &Queues) -> Launcher {
    let workflows = Workflows::new(queues.clone());
    let modes: Vec<&str> = configurator.run_modes().collect();
    Launcher::new(workflows, plan.home.repository.clone(), &modes)
}

/// The role of a process that takes the heavy work on assets.
const ASSETS: &str = "assets";
/// The topics that such a process takes, and that others leave to it.
const ASSET_TOPICS: &[&str] = &[
    "dam/*",
    "com/adobe/granite/workflow/job/etc/workflow/models/dam/*",
    "com/adobe/granite/workflow/job/conf/global/settings/workflow/models/dam/*",
    "com/adobe/granite/workflow/job/var/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/etc/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/conf/global/settings/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/var/workflow/models/dam/*",
];

async fn listen(
    listener: std::net::TcpListener,
    router: axum::Router,
    front: Front,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), Fault> {
    let until = async move {
        // The sender lives as long as the process serves.
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    serve(listener, router, front, until).await.map_err(|error| Fault::cannot_run(chain(&error)))
}

fn renderer(plan: &Plan<'_>, config: &Config) -> Result<Renderer, Fault> {
    let mode = if plan.role == Role::Author { Mode::Author } else { Mode::Publish };
    plain_renderer(&plan.home.repository, (mode, plan.site.as_deref()), config)
}

/// Makes a renderer with what the configuration gives templates.
pub(super) fn plain_renderer(
    repository: &Repository,
    (mode, site): (Mode, Option<&Path>),
    config: &Config,
) -> Result<Renderer, Fault> {
    let options = Options { mode, ..Options::default() };
    let renderer = match site {
        Some(site) => {
            let below = RepositorySource::new(repository.clone());
            Renderer::with_scripts(Box::new(DirSource::new(site.to_owned(), below)), options)
        }
        None => Renderer::new(repository, options),
    };
    let renderer = match data::back_ends(&config.back_ends, &config.outgoing)? {
        Some(back_ends) => renderer.with_back_ends(back_ends),
        None => renderer,
    };
    Ok(match config.fragments.options().filter(|_| mode == Mode::Publish) {
        Some(options) => renderer.with_fragments(FragmentCache::new(options)),
        None => renderer,
    })
}

/// Returns how many connections are served at once where so many files may be open, and says so if that is fewer than wanted:
/// idle ones make room for others then, which the kernel would refuse otherwise.
fn within_open_files(wanted: usize, files: Option<u64>) -> usize {
    let most = files.map_or(wanted, Limits::connections_within);
    if most < wanted {
        tracing::warn!(
            wanted,
            connections = most,
            files,
            "fewer connections at once than configured, as the system allows the process few open files"
        );
    }
    wanted.min(most)
}

/// Returns how the main listener serves; a request's body may be as large as `body_bytes` unless configured.
///
/// # Errors
/// If a certificate or key cannot be read.
pub(crate) fn main_front(config: &Config, body_bytes: u64) -> Result<Front, Fault> {
    let section = &config.listen;
    let mut limits = Limits { body_bytes, ..Limits::default() };
    if let Some(max) = section.max_connections {
        limits.max_connections = max;
    }
    limits.max_connections = within_open_files(limits.max_connections, most_open_files());
    if let Some(max) = section.max_header {
        limits.header_bytes = usize::try_from(max.0).unwrap_or(usize::MAX);
    }
    if let Some(max) = section.max_body {
        limits.body_bytes = max.0;
    }
    if let Some(timeout) = section.header_timeout {
        limits.header_timeout = timeout.0;
    }
    let tls = match (&section.tls_certificate, &section.tls_key) {
        (Some(certificate), Some(key)) => Some(read_tls(certificate, key)?),
        (None, None) => None,
        _ => return Err(Fault::usage("tympan.toml: `tls_certificate` and `tls_key` go together")),
    };
    Ok(Front { limits, tls, ..Front::default() })
}

fn admin_front(config: &Config) -> Front {
    let max_connections = config.admin.max_connections.unwrap_or(16);
    Limits { max_connections, header_bytes: 16 * 1024, body_bytes: 64 * 1024, ..Limits::default() }
        .into()
}

/// Runs an instance until a signal.
pub(crate) fn run(role: Role, arguments: &args::Instance) -> Outcome {
    crate::backend::choose_database(arguments.database.as_deref());
    crate::backend::choose_blobs(arguments.blobs.as_deref());
    crate::backend::serve();
    if arguments.role.is_some() && crate::backend::has_database(&arguments.home)? {
        shared::require_blobs(&arguments.home)?;
    }
    let home = Home::open(&arguments.home)?;
    if arguments.role.is_some() && home.local.is_some() {
        return Err(Fault::usage(
            "`--role assets` shares its queues with another process: name their database by `--database`",
        ));
    }
    if let Some(password) = home.create_admin()? {
        let (admin, file) = (crate::home::ADMIN, arguments.home.join("initial-password"));
        let file = file.display();
        // What is printed elsewhere ends in logs, which others read.
        match std::io::stdout().is_terminal() {
            true => say!(
                "user `{admin}` has the password {password}; it stands in `{file}` too: change it"
            ),
            false => say!("the password of user `{admin}` stands in `{file}`: change it"),
        }
    }
    let port = if role == Role::Author { 4502 } else { 4503 };
    let default = SocketAddr::from(([127, 0, 0, 1], port));
    let plan = Plan {
        role,
        listen: arguments.listen.or(home.config.listen.address).unwrap_or(default),
        admin_listen: arguments.admin_listen.or(home.config.admin.address),
        key_dir: home.dir.clone(),
        site: None,
        is_assets: arguments.role.is_some(),
        home: &home,
    };
    let permits = home.config.work.permits.unwrap_or(WORK_PERMITS);
    runtime(permits + 64)?.block_on(async {
        let mut signals = Signals::listen()?.with_hangup()?;
        let mut running = start(&plan).await?;
        say!("{} listens on {}://{}", role.name(), running.scheme(), running.address);
        say!("ready");
        let reopen = running.reopener();
        tokio::select! {
            fault = running.failed() => return Err(fault),
            () = signals.wait_or(reopen) => {}
        }
        running.stop().await;
        Ok(())
    })?;
    close(&home)?;
    Ok(ExitCode::SUCCESS)
}

/// Seals what is written, so that the next start need not scan.
pub(crate) fn close(home: &Home) -> Result<(), Fault> {
    match &home.local {
        Some(local) => local.close().map_err(|error| Fault::cannot_run(chain(&error))),
        None => Ok(()),
    }
}

/// Ctrl-C, requests to terminate and to open logs anew, heard from the moment this is made: nothing is announced as ready before.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn listen() -> Result<Self, Fault> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Fault::cannot_run(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Begins to listen for requests to open logs anew, too, which end a process that does not listen.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn with_hangup(self) -> Result<Self, Fault> {
        let hangup = signal(SignalKind::hangup())
            .map_err(|error| Fault::cannot_run(format!("cannot listen for signals: {error}")))?;
        Ok(Self { hangup: Some(hangup), ..self })
    }

    /// Waits until the process is to end.
    pub(crate) async fn wait(&mut self) {
        self.wait_or(|| {}).await;
    }

    /// Waits until the process is to end; `reopen` opens its logs anew, whenever that is asked for (SIGHUP).
    pub(crate) async fn wait_or(&mut self, reopen: impl Fn()) {
        let Self { interrupt, terminate, hangup } = self;
        loop {
            let hung_up = async {
                match hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => return,
                _ = terminate.recv() => return,
                _ = hung_up => reopen(),
            }
        }
    }
}
