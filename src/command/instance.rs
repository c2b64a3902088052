//! `tympan author` and `tympan publish`: run one instance until it is stopped.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tympan_assets::{
    ASSET_UPDATE_USER, AssetFollower, AssetHandler, AssetProcessor, WriteBackWorkflowStep,
};
use tympan_content::Repository;
use tympan_home::{
    Home, cluster_facts, random_text, read_or_create_replication_key, require_own_blob_folder,
    require_same_blob_folder,
};
use tympan_jobs::workflow::{StepRegistry, WorkflowEngine, WorkflowHandler, WorkflowLauncher};
use tympan_jobs::{JobQueues, JobWorker, OsgiConfigWatcher, RemovalClock, TopicPattern};
use tympan_mounts::{MountService, MountSettings};
use tympan_render::{RenderMode, Renderer};
use tympan_replicate::{HomePairs, OnOffTimeFollower, OnOffTimeHandler, Replicator};
use tympan_search::SearchIndex;
use tympan_server::{
    DispatcherAdmin, Instance, InstanceOptions, InstanceRole, InstanceShortcut, LedgerUrlResolver,
    Logins, PoolState, admin_router, connection_metrics_source, main_router, shorten_ledger_name,
};
use tympan_store::{PostgresStore, StateDatabase};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};
use tympan_web::listen::{
    ListenerOptions, OverflowPolicy, PortReuse, bind_listener, serve_listener,
};
use tympan_web::listener_certificate::ListenerCertificate;

use crate::args;
use crate::command::certificate_metrics::certificate_metrics;
use crate::command::config::effective_settings;
use crate::command::export::start_export;
use crate::command::process_signals::ProcessSignals;
use crate::command::renderer::{create_plain_renderer, image_options};
use crate::command::rendition_process::{self, RenderUrgency};
use crate::command::runtime::create_runtime;
use crate::command::service_manager;
use crate::config::TympanConfig;
use crate::home::{ConfiguredHome, close_home, create_admin, home_access, open_home, open_state};
use crate::home_fault::home_fault;
use crate::ledger::RenderingFacts;
use crate::scheduled_backup;

/// The default maximum time without data in a request body.
const DEFAULT_BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The default maximum size of uploads and replication requests.
const DEFAULT_MAX_BODY_BYTES: u64 = 4 << 30;

/// Number of responses for pictures, files and small pages that are remembered; each is estimated at 400 bytes without
/// its own data. The ledger has 100,000 addresses.
const DEFAULT_LEDGER_RESPONSES: usize = 65_536;

/// The startup parameters of an instance.
pub(crate) struct InstancePlan<'a> {
    pub(crate) role: InstanceRole,
    pub(crate) home: &'a Home,
    pub(crate) config: &'a TympanConfig,
    pub(crate) listen: SocketAddr,
    pub(crate) admin_listen: Option<SocketAddr>,
    /// The folder with `replication.key`.
    pub(crate) key_dir: PathBuf,
    /// A site folder whose scripts are read live.
    pub(crate) site: Option<PathBuf>,
    /// True if it runs only the heavy asset work.
    pub(crate) is_asset_worker: bool,
}

/// The loops and listeners of an instance.
type InstanceTasks = JoinSet<Result<(), CommandFault>>;

/// A running instance.
pub(crate) struct RunningInstance {
    pub(crate) state: StateDatabase,
    pub(crate) logins: Logins,
    pub(crate) address: SocketAddr,
    /// The address of the admin listener, if any.
    pub(crate) admin_address: Option<SocketAddr>,
    certificate: Option<ListenerCertificate>,
    search: Arc<SearchIndex>,
    instance: Arc<Instance>,
    stop: watch::Sender<bool>,
    tasks: InstanceTasks,
}

impl RunningInstance {
    /// Lets open requests and jobs complete, then closes the state database.
    pub(crate) async fn shut_down(mut self) {
        self.instance.stop();
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        let search = self.search;
        // A panic of the thread has been reported already.
        tokio::task::spawn_blocking(move || search.close()).await.ok();
        self.state.close().await;
    }

    /// Lets administrators see and flush a dispatcher.
    pub(crate) fn add_dispatcher(&self, dispatcher: DispatcherAdmin) {
        self.instance.add_dispatcher(dispatcher);
    }

    /// Returns a callback that reopens the logs, and reloads the certificate.
    pub(crate) fn reload_callback(&self) -> impl Fn() + use<> {
        let (instance, certificate) = (self.instance.clone(), self.certificate.clone());
        move || {
            instance.reopen_logs();
            if let Some(certificate) = &certificate {
                certificate.reload();
            }
        }
    }

    /// Returns `http` or `https`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.certificate.is_some() { "https" } else { "http" }
    }

    /// Returns when a listener fails, which does not happen in a healthy process.
    pub(crate) async fn wait_for_failure(&mut self) -> CommandFault {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Err(fault))) => return fault,
                Some(_) => {}
                None => std::future::pending::<()>().await,
            }
        }
    }
}

/// Starts an instance: sockets first, so that a port in use is detected before anything else happens.
///
/// # Errors
/// With the role and the address if a socket is in use.
pub(crate) async fn start_instance(
    plan: &InstancePlan<'_>,
) -> Result<RunningInstance, CommandFault> {
    let role = plan.role;
    let bound = |address| {
        bind_listener(address, PortReuse::Exclusive).map_err(|error| {
            CommandFault::cannot_run(format!("{}: {}", role.name(), error_chain_text(&error)))
        })
    };
    let listener = bound(plan.listen)?;
    let address = listener.local_addr().unwrap_or(plan.listen);
    let admin_listener = plan.admin_listen.map(bound).transpose()?;
    let admin_address = admin_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let config = plan.config;
    let certificate = config.listen.read_certificate().map_err(CommandFault::usage)?;
    let mut front = config.listen.listener_options(certificate.as_ref(), DEFAULT_MAX_BODY_BYTES);
    front.limits.overflow = OverflowPolicy::Refuse;
    // Registered before another repository could collect blobs that came with the home.
    let sharing = plan.home.blob_sharing();
    sharing.register().map_err(home_fault)?;
    let state = open_state(&plan.home.dir).await?;
    let repository = plan.home.repository.clone();
    let queues = JobQueues::new(state.pool().clone());
    let failed = |error: &dyn std::error::Error| CommandFault::cannot_run(error_chain_text(error));
    if !state.is_shared() {
        // No other process holds claims of an earlier run of this process.
        queues.release_all_claims().await.map_err(|error| failed(&error))?;
    }
    let (configurator, mounts) = create_job_configurator(plan, &queues, state.is_shared())?;
    if plan.is_asset_worker {
        let facts = &configurator.worker().options().shared_facts;
        require_same_blob_folder(&home_access(), plan.home, facts, &queues)
            .await
            .map_err(home_fault)?;
    }
    let key = read_or_create_replication_key(&plan.key_dir).map_err(home_fault)?;
    // Instances on one database share one identity towards others.
    let key = match state.is_shared() {
        true => tympan_server::ensure_shared_secret(state.pool(), "replication.key", &key)
            .await
            .map_err(|error| failed(&error))?,
        false => key,
    };
    let pairs = HomePairs::in_dir(plan.key_dir.join(super::pair::PAIRS_FOLDER));
    let replicator = Replicator::new(
        role.name(),
        repository.clone(),
        queues.clone(),
        key.clone(),
        pairs.clone(),
    );
    let models = plan.config.workflows.model_roots().map_err(CommandFault::usage)?;
    let workflows = WorkflowEngine::new(queues.clone()).with_model_roots(models);
    replicator.set_queue_name_source(configurator.worker().clone());
    register_workflow_steps(plan, &workflows, configurator.worker(), &replicator)?;
    if !plan.is_asset_worker {
        tympan_home::register_maintenance(configurator.worker(), plan.home)
            .await
            .map_err(home_fault)?;
    }
    let mut logins = Logins::new(state.pool().clone(), repository.clone())
        .with_trusted_proxies(&config.login.trusted_proxies().map_err(CommandFault::usage)?);
    if let Some(idle) = config.login.idle_timeout {
        logins = logins.with_session_idle_timeout(idle.0);
    }
    let now = HomeClock::of(plan.home).trusted_now().await;
    logins.remove_stale_tokens(now).await.map_err(|error| failed(&error))?;
    let search = SearchIndex::open(
        repository.clone(),
        &plan.home.dir.join("search"),
        config.search.search_options(rendition_process::pdf_reader()),
    );
    let search = Arc::new(search.map_err(|error| failed(&error))?);
    let site_state = crate::ledger::site_files_state(plan.site.as_deref())?;
    let rendering = RenderingFacts::new(config, &key);
    let ledger = match role {
        InstanceRole::Publish => {
            let fingerprint = rendering.fingerprint(site_state);
            Some(crate::ledger::open_home_ledger(plan.home, &state, config, &fingerprint).await?)
        }
        InstanceRole::Author => None,
    };
    let options = InstanceOptions {
        role,
        dependency_ledger: ledger.clone(),
        surrogate_key: config.ledger.surrogate_key().map_err(CommandFault::cannot_run)?,
        page_headers: config.publish.page_headers().map_err(CommandFault::cannot_run)?,
        renderer: create_renderer(plan, config)?,
        repository,
        queues: queues.clone(),
        configurator: configurator.clone(),
        replicator: replicator.clone(),
        search: search.clone(),
        logins: logins.clone(),
        replication_key: key,
        home_pairs: pairs,
        spool_folder: plan.home.dir.join("spool"),
        log_folder: plan.home.dir.join("logs"),
        work_permits: config.work.permits(),
        max_waiting_work: config.work.max_waiting(),
        timing_disclosure: config.timing.to_timing_disclosure(),
        rotation: config.logs.rotation(),
        body_timeout: config.listen.body_timeout.map_or(DEFAULT_BODY_TIMEOUT, |timeout| timeout.0),
        query_budgets: config.query.budgets(),
        activation_versioning: config.versions.version_keeping(),
    };
    let instance = Instance::open(options, SystemTime::now()).map_err(|error| failed(&error))?;
    for dispatcher in config.operations.dispatcher_admins().map_err(CommandFault::usage)? {
        instance.add_dispatcher(dispatcher);
    }
    instance.set_effective_settings(effective_settings(&plan.home.dir, plan.listen));
    if let Some(mounts) = &mounts {
        instance.set_mounts(mounts.clone());
    }
    let received_paths = config.receive.received_paths().map_err(CommandFault::usage)?;
    instance.set_received_paths(received_paths);
    // A database may have to be queried for the newest root, and scripts of a site folder change without a commit.
    if plan.home.local.is_some() && plan.site.is_none() {
        instance.enable_hot_responses(DEFAULT_LEDGER_RESPONSES);
    }
    if let Some(ledger) = &ledger {
        replicator.set_url_resolver(Arc::new(LedgerUrlResolver::new(ledger.clone(), &instance)));
        replicator.set_publisher(&crate::ledger::publisher_short_name(plan.home)?);
        let all = ledger.publisher_names().await.map_err(|error| failed(&error))?;
        let all: Vec<String> = all.iter().map(|name| shorten_ledger_name(name)).collect();
        replicator.split_shared_follower(&all).await.map_err(|error| failed(&error))?;
    }
    register_image_rendering(plan, &instance, configurator.worker());
    register_pool_metrics(&instance, plan.home.database.clone(), &state, &front);
    add_dependency_probes(plan, &instance);
    let (buckets, composite) = (plan.home.blobs.buckets.clone(), plan.home.blobs.composite.clone());
    instance.add_metrics_source(move |role| {
        tympan_blobs::format_blob_metrics(role, &buckets, composite.as_deref())
    });
    instance.add_metrics_source(connection_metrics_source(Arc::clone(&front.counters)));
    let chain = config.listen.tls_certificate.clone();
    instance.add_metrics_source(move |_| certificate_metrics(chain.clone()));
    instance.set_guest_notes(sharing.guest_note_sources());
    let exports = role == InstanceRole::Publish && {
        let key = read_or_create_replication_key(&plan.key_dir).map_err(home_fault)?;
        start_export(&instance, plan.home, config, &key)?
    };
    if !plan.is_asset_worker {
        let worker = configurator.worker();
        scheduled_backup::register_save_job(worker, plan.home, &config.backup, &instance).await?;
    }
    if role == InstanceRole::Publish {
        // Flush changes that a crash prevented from being flushed.
        replicator.store_flushes(SystemTime::now()).await.map_err(|error| failed(&error))?;
    }
    if role == InstanceRole::Publish {
        front.shortcut = Some(Arc::new(InstanceShortcut::new(instance.clone())));
    }
    let (stop, stopped) = watch::channel(false);
    instance.add_health_check("blobs", sharing.register_remotely(&stopped));
    let mut tasks = JoinSet::new();
    tasks.spawn(serve_until_stopped(
        listener,
        main_router(instance.clone()),
        front,
        stopped.clone(),
    ));
    if let Some(certificate) = certificate.clone() {
        let stopped = stopped.clone();
        spawn_loop(&mut tasks, async move { certificate.reload_on_change(stopped).await });
    }
    if exports {
        let following = instance.clone().follow_exports(stopped.clone());
        spawn_loop(&mut tasks, following);
    }
    if let Some(listener) = admin_listener {
        let router = admin_router(instance.clone());
        tasks.spawn(serve_until_stopped(
            listener,
            router,
            config.admin.listener_options(),
            stopped.clone(),
        ));
    }
    if let Some(composite) = plan.home.composite.clone() {
        let stopped = stopped.clone();
        let watched = composite.clone();
        instance.add_health_check("base", move || watched.current_fault());
        spawn_loop(&mut tasks, tympan_home::renew_lease_until_stopped(composite, stopped));
    }
    let processing = JobProcessing { configurator, mounts };
    processing.start(plan, &replicator, &mut tasks, &stopped);
    tasks.spawn({
        let clock = HomeClock::of(plan.home);
        remove_expired_logins(clock, logins.clone(), stopped.clone())
    });
    if role == InstanceRole::Publish {
        let following = replicator.clone().run_flush_loop(stopped.clone());
        spawn_loop(&mut tasks, following);
    }
    spawn_loop(&mut tasks, {
        let stopped = stopped.clone();
        async move { replicator.run(stopped).await }
    });
    if let (Some(ledger), Some(site)) = (ledger.clone(), plan.site.clone()) {
        let fingerprint = move |state| rendering.fingerprint(Some(state));
        let following = ledger.follow_site_folder(site, site_state, fingerprint, stopped.clone());
        spawn_loop(&mut tasks, following);
    }
    if let Some(ledger) = ledger {
        spawn_loop(&mut tasks, async move { ledger.run_maintenance(stopped).await });
    }
    Ok(RunningInstance {
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

/// Checks the clock periodically, so that its jumps are detected, and removes the logins that have expired by a trusted
/// time.
async fn remove_expired_logins(
    clock: HomeClock,
    logins: Logins,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), CommandFault> {
    loop {
        tokio::select! {
            // Also ends if the sender was dropped.
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
            () = tokio::time::sleep(tympan_home::CLOCK_CHECK_INTERVAL) => {}
        }
        let now = clock.trusted_now().await;
        if let Err(error) = logins.remove_stale_tokens(now).await {
            tracing::warn!(reason = error_chain_text(&error), "cannot remove ended logins");
        }
    }
}

/// The clock of a home, which is checked for jumps.
#[derive(Clone)]
struct HomeClock {
    home: PathBuf,
    repository: Repository,
}

impl HomeClock {
    fn of(home: &Home) -> Self {
        Self { home: home.dir.clone(), repository: home.repository.clone() }
    }

    /// Returns the time that expiry is measured against.
    async fn trusted_now(&self) -> SystemTime {
        let Self { home, repository } = self.clone();
        let look =
            move || tympan_home::trusted_now(&home, &**repository.chunks(), SystemTime::now());
        // If the check fails, nothing counts as expired.
        tokio::task::spawn_blocking(look).await.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// Adds the dependencies to `/health` that the instance cannot serve without: the database and the buckets; and whether
/// its packs can still be written.
fn add_dependency_probes(plan: &InstancePlan<'_>, instance: &Instance) {
    if let Some(database) = plan.home.database.clone() {
        instance.add_dependency_probe("database", move || {
            database.ping().map_err(|error| error_chain_text(&error))?;
            store_write_result(database.write_failure())
        });
    }
    if let Some(local) = plan.home.local.clone() {
        instance.add_dependency_probe("packs", move || store_write_result(local.write_failure()));
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
    instance.add_dependency_probe("bucket", move || {
        for (role, bucket, is_written) in &buckets {
            match bucket.can_read_notes() {
                Ok(false) if *is_written => {
                    return Err(format!("`{role}` refuses the credentials of this instance"));
                }
                Ok(_) => {}
                Err(error) => return Err(format!("`{role}`: {}", error_chain_text(&error))),
            }
        }
        Ok(())
    });
}

/// Returns an error if a store accepts no more writes.
fn store_write_result(reason: Option<&str>) -> Result<(), String> {
    reason.map_or(Ok(()), |reason| {
        Err(format!(
            "the store accepts no more writes: {reason}; restart the \
        instance"
        ))
    })
}

/// Adds metrics of the connections of clients, to the state database and to the repository's database to `/metrics`.
fn register_pool_metrics(
    instance: &Instance,
    database: Option<Arc<PostgresStore>>,
    state: &StateDatabase,
    front: &ListenerOptions,
) {
    if let Some(database) = database {
        instance.add_pool_source(move || {
            let counters = database.counters();
            vec![PoolState {
                name: "store".to_owned(),
                in_use: counters.connections_in_use,
                idle: counters.idle_connections,
                limit: counters.connection_limit,
                waiting: counters.waiting_calls,
                timeouts: counters.busy_rejections,
                refused: 0,
            }]
        });
    }
    let (pool, counters) = (state.pool().clone(), Arc::clone(&front.counters));
    let most = front.limits.max_connections as u64;
    instance.add_pool_source(move || {
        vec![PoolState::of_connections(&counters, most), PoolState::of_database("state", &pool)]
    });
}

/// Enables an instance to render pictures, and an author's worker to process assets.
fn register_image_rendering(plan: &InstancePlan<'_>, instance: &Instance, worker: &JobWorker) {
    let config = plan.config;
    let limits = config.assets.processing_limits();
    let mut counters = None;
    if plan.role == InstanceRole::Author {
        let decoder_pool =
            rendition_process::create_process_pool(config, RenderUrgency::Background);
        let repository = plan.home.repository.clone();
        let assets = AssetProcessor::new(
            repository,
            decoder_pool,
            config.assets.rendition_profile(),
            limits,
        );
        let handler = AssetHandler::new(assets);
        counters = Some(handler.counters());
        worker.register_handler(Arc::new(handler));
    }
    instance.set_image_options(image_options(config, RenderUrgency::Interactive, counters));
}

/// Creates the job engine, with the configurations in content; and the mounts of an author.
fn create_job_configurator(
    plan: &InstancePlan<'_>,
    queues: &JobQueues,
    is_shared: bool,
) -> Result<(OsgiConfigWatcher, Option<MountService>), CommandFault> {
    let section = &plan.config.jobs;
    let role = if plan.is_asset_worker { ASSET_WORKER_ROLE } else { plan.role.name() };
    let name =
        format!("{role}-{}", random_text().map_err(home_fault)?.get(..12).unwrap_or_default());
    let mut options = section.worker_options(role, name);
    let home = plan.home.dir.clone();
    options.removal_clock =
        RemovalClock::new(move |now| tympan_home::recorded_trusted_now(&home, now));
    if plan.is_asset_worker {
        options.accepted_topics =
            ASSET_TOPICS.iter().map(|topic| TopicPattern::parse_queue_pattern(topic)).collect();
        options.reserves_topics = true;
    }
    let settings = match plan.role {
        InstanceRole::Author => {
            let outgoing = plan.config.outgoing.to_outgoing().map_err(CommandFault::usage)?;
            Some(
                plan.config
                    .mounts
                    .mount_settings(&plan.home.dir, outgoing)
                    .map_err(CommandFault::usage)?,
            )
        }
        InstanceRole::Publish => None,
    };
    if is_shared && plan.role == InstanceRole::Author {
        let mounts = settings.as_ref().map(MountSettings::fingerprint);
        options.shared_facts =
            cluster_facts(&home_access(), plan.home, mounts).map_err(home_fault)?;
    }
    let worker = JobWorker::new(queues.clone(), options);
    let runtime = tokio::runtime::Handle::current();
    let mut mounts = None;
    if let Some(settings) = settings {
        let made =
            MountService::new(plan.home.repository.clone(), queues.clone(), runtime, settings);
        made.handlers().into_iter().for_each(|handler| worker.register_handler(handler));
        mounts = Some(made);
    }
    let mut modes = vec![plan.role.name()];
    modes.extend(section.run_modes.iter().map(String::as_str));
    let configurator = OsgiConfigWatcher::new(worker, plan.home.repository.clone(), &modes);
    configurator
        .refresh_configs()
        .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
    if let Some(mounts) = &mounts {
        mounts.load_configs(&configurator.configs());
    }
    Ok((configurator, mounts))
}

/// Registers the workflow steps: those of the engine, and on authors those that replicate.
fn register_workflow_steps(
    plan: &InstancePlan<'_>,
    workflows: &WorkflowEngine,
    worker: &JobWorker,
    replicator: &Replicator,
) -> Result<(), CommandFault> {
    let runtime = tokio::runtime::Handle::current();
    let decoder_pool =
        rendition_process::create_process_pool(plan.config, RenderUrgency::Background);
    let write_back =
        WriteBackWorkflowStep::new(plan.home.repository.clone()).with_decoder_pool(decoder_pool);
    let mut steps =
        StepRegistry::standard(&plan.home.repository).with_process(Arc::new(write_back));
    for process in tympan_assets::await_asset_workflow_steps(&plan.home.repository) {
        steps = steps.with_process(process);
    }
    let outgoing = plan.config.outgoing.to_outgoing().map_err(CommandFault::usage)?;
    steps = steps.with_external_hosts(&outgoing);
    if plan.role == InstanceRole::Author {
        for process in tympan_replicate::replication_processes(replicator, &runtime) {
            steps = steps.with_process(process);
        }
    }
    for handler in WorkflowHandler::for_registry(workflows, &runtime, steps) {
        worker.register_handler(handler);
    }
    if plan.role == InstanceRole::Author {
        let handler = OnOffTimeHandler::new(replicator.clone(), runtime);
        worker.register_handler(Arc::new(handler));
    }
    Ok(())
}

/// The job engine of an instance, and the mounts of an author.
struct JobProcessing {
    configurator: OsgiConfigWatcher,
    mounts: Option<MountService>,
}

impl JobProcessing {
    /// Starts the observers of content and the processing of the queues.
    fn start(
        self,
        plan: &InstancePlan<'_>,
        replicator: &Replicator,
        tasks: &mut InstanceTasks,
        stopped: &watch::Receiver<bool>,
    ) {
        let Self { configurator, mounts } = self;
        if plan.role == InstanceRole::Author && !plan.is_asset_worker {
            let following =
                create_launcher(&configurator, plan, replicator.queues()).run(stopped.clone());
            spawn_loop(tasks, following);
            let following = OnOffTimeFollower::new(replicator.clone()).run(stopped.clone());
            spawn_loop(tasks, following);
            let following = replicator.clone().run_withdrawal_loop(stopped.clone());
            spawn_loop(tasks, following);
            let assets =
                AssetFollower::new(plan.home.repository.clone(), replicator.queues().clone());
            let following = assets.run(stopped.clone());
            spawn_loop(tasks, following);
        }
        if let Some(mounts) = mounts {
            let following =
                mounts.run(configurator.clone(), !plan.is_asset_worker, stopped.clone());
            spawn_loop(tasks, following);
        }
        let working = configurator.worker().clone().run(stopped.clone());
        spawn_loop(tasks, working);
        spawn_loop(tasks, configurator.run(stopped.clone()));
    }
}

/// Runs a loop that ends when the instance stops.
fn spawn_loop(tasks: &mut InstanceTasks, running: impl Future<Output = ()> + Send + 'static) {
    tasks.spawn(async move {
        running.await;
        Ok(())
    });
}

/// Creates the component that starts the workflows of launchers.
fn create_launcher(
    configurator: &OsgiConfigWatcher,
    plan: &InstancePlan<'_>,
    queues: &JobQueues,
) -> WorkflowLauncher {
    let workflows = WorkflowEngine::new(queues.clone());
    let modes: Vec<&str> = configurator.run_modes().collect();
    WorkflowLauncher::new(workflows, plan.home.repository.clone(), &modes)
        .ignoring_user(ASSET_UPDATE_USER)
}

/// The role of a process that runs the heavy asset work.
const ASSET_WORKER_ROLE: &str = "assets";
/// The topics that such a process handles, and that others leave to it.
const ASSET_TOPICS: &[&str] = &[
    "dam/*",
    "com/adobe/granite/workflow/job/etc/workflow/models/dam/*",
    "com/adobe/granite/workflow/job/conf/global/settings/workflow/models/dam/*",
    "com/adobe/granite/workflow/job/var/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/etc/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/conf/global/settings/workflow/models/dam/*",
    "com/adobe/granite/workflow/transient/job/var/workflow/models/dam/*",
];

async fn serve_until_stopped(
    listener: std::net::TcpListener,
    router: axum::Router,
    front: ListenerOptions,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), CommandFault> {
    let until = async move {
        // The sender lives as long as the process serves.
        stopped.wait_for(|stopped| *stopped).await.ok();
    };
    serve_listener(listener, router, front, until)
        .await
        .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))
}

fn create_renderer(
    plan: &InstancePlan<'_>,
    config: &TympanConfig,
) -> Result<Renderer, CommandFault> {
    let mode =
        if plan.role == InstanceRole::Author { RenderMode::Author } else { RenderMode::Publish };
    create_plain_renderer(&plan.home.repository, mode, plan.site.as_deref(), config)
}

/// Runs an instance until a signal.
pub(crate) fn run_instance(role: InstanceRole, arguments: &args::InstanceArgs) -> CommandOutcome {
    tympan_web::passed_socket::register_passed_sockets();
    crate::home::set_database_url_override(arguments.database.as_deref());
    crate::home::set_blob_url_override(arguments.blobs.as_deref());
    crate::home::mark_instance_process();
    if arguments.role.is_some()
        && home_access().has_database_configured(&arguments.home).map_err(home_fault)?
    {
        require_own_blob_folder(&home_access(), &arguments.home).map_err(home_fault)?;
    }
    let ConfiguredHome { home, config } = open_home(&arguments.home)?;
    if arguments.role.is_some() && home.local.is_some() {
        return Err(CommandFault::usage(
            "`--role assets` shares its queues with another process: name their database with `--database`",
        ));
    }
    if let Some(password) = create_admin(&home)? {
        let (admin, file) = (crate::home::ADMIN_USER, arguments.home.join("initial-password"));
        let file = file.display();
        // Output that goes elsewhere ends up in logs, which others read.
        match std::io::stdout().is_terminal() {
            true => say!(
                "user `{admin}` has the password {password}, which is also in `{file}`: change it"
            ),
            false => say!("the password of user `{admin}` is in `{file}`: change it"),
        }
    }
    let service_role = match role {
        InstanceRole::Author => args::ServiceRole::Author,
        InstanceRole::Publish => args::ServiceRole::Publish,
    };
    let default = service_role.default_address();
    let plan = InstancePlan {
        role,
        listen: arguments.listen.or(config.listen.address).unwrap_or(default),
        admin_listen: arguments.admin_listen.or(config.admin.address),
        key_dir: home.dir.clone(),
        site: None,
        is_asset_worker: arguments.role.is_some(),
        home: &home,
        config: &config,
    };
    let permits = config.work.permits();
    create_runtime(permits + 64)?.block_on(async {
        let mut signals = ProcessSignals::listen()?.with_hangup()?;
        let mut running = start_instance(&plan).await?;
        say!("{} listens on {}://{}", role.name(), running.scheme(), running.address);
        say!("ready");
        service_manager::report_ready(&format!("{} serves", role.name()));
        let reload = running.reload_callback();
        let reopen = || {
            let _report = service_manager::report_reloading();
            reload();
        };
        tokio::select! {
            fault = running.wait_for_failure() => return Err(fault),
            () = signals.wait_for_end_or_hangup(reopen) => {}
        }
        service_manager::report_stopping();
        running.shut_down().await;
        Ok(())
    })?;
    close_home(&home)?;
    Ok(ExitCode::SUCCESS)
}
