//! One instance: what all its requests share.

use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderName, StatusCode};
use sha2::{Digest, Sha256};
use tympan_content::{Cause, ChunkId, NodePath, Privileges, Repository, Viewer};
use tympan_jobs::{Configurator, Queues};
use tympan_render::ledger::Ledger;
use tympan_render::profile::Profile;
use tympan_render::{ImageKey, Renderer};
use tympan_replicate::{Keeping, Pairs, Replicator, Wish, mark_keeping};
use tympan_web::listen::Peer;
use tympan_web::log_file::{LogFile, Rotation};
use tympan_web::request_histogram::RequestHistogram;
use tympan_web::{access_log, request_log};

use crate::failure::{Failure, Result};
use crate::follow::Followers;
use crate::login::{Identity, Logins, SessionUse, TokenScope};
use crate::manager_status::RequestSums;
use crate::metrics::Metrics;
use crate::page_headers::PageHeaders;
use crate::pool::Gate;
use crate::query_budget::{QueryBudgets, QueryEngines};

/// What an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// People edit here; nothing is shown without a login.
    Author,
    /// Visitors read here; only replication writes.
    Publish,
}

impl Role {
    /// Returns the role's word in commands, logs and agents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Author => "author",
            Self::Publish => "publish",
        }
    }
}

/// Who is told what an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Nobody but administrators who ask for it.
    Nobody,
    /// Users who are logged in.
    Users,
    /// Everybody, visitors included.
    Everybody,
}

impl Told {
    /// Tells whether somebody is told.
    pub(crate) fn includes(self, user: Option<&str>) -> bool {
        match self {
            Self::Nobody => false,
            Self::Users => user.is_some(),
            Self::Everybody => true,
        }
    }
}

/// How it is told what an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Telling {
    /// In the header `Server-Timing`.
    pub header: Told,
    /// As a comment at the end of a page, with all components.
    pub comment: Told,
}

impl Default for Telling {
    /// Users see the header.
    fn default() -> Self {
        Self { header: Told::Users, comment: Told::Nobody }
    }
}

/// What an instance is made of.
#[derive(Debug)]
pub struct InstanceOptions {
    /// Its role.
    pub role: Role,
    /// Its content.
    pub repository: Repository,
    /// What queries may use, by who asks.
    pub query_budgets: QueryBudgets,
    /// Whether it keeps what is activated as versions.
    pub keeping: Keeping,
    /// What draws its pages.
    pub renderer: Renderer,
    /// What remembers from what a publisher's pages were drawn.
    pub ledger: Option<Ledger>,
    /// The header that names the keys by which caches drop an answer.
    pub surrogate_key: Option<HeaderName>,
    /// The headers that a publisher adds to the pages that it draws; an author has its own.
    pub page_headers: PageHeaders,
    /// Its stored work.
    pub queues: Queues,
    /// What keeps its worker's queues as content says.
    pub configurator: Configurator,
    /// What works off the queues of its agents.
    pub replicator: Replicator,
    /// Its full-text index.
    pub search: Arc<tympan_search::Index>,
    /// The tokens and passwords it accepts.
    pub logins: Logins,
    /// The key that authors and publishers share.
    pub replication_key: String,
    /// The credentials that it has with single instances.
    pub pairs: Pairs,
    /// The folder for uploads that are still arriving.
    pub spool: PathBuf,
    /// The folder for `request.log` and `access.log`.
    pub logs: PathBuf,
    /// When a new log file is begun.
    pub rotation: Rotation,
    /// How many requests may render or edit at once; the others wait.
    pub work_permits: usize,
    /// How many may wait; further ones are told to come again.
    pub work_waiting: usize,
    /// Who is told what an answer took, and how.
    pub telling: Telling,
    /// How long the body of a request may leave off arriving before it fails.
    pub body_timeout: Duration,
}

/// One running instance. It is shared by all its requests.
pub struct Instance {
    pub(crate) role: Role,
    pub(crate) repository: Repository,
    pub(crate) query_engines: QueryEngines,
    pub(crate) renderer: Renderer,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) surrogate_key: Option<HeaderName>,
    pub(crate) page_headers: PageHeaders,
    pub(crate) profile: Profile,
    keeping: Keeping,
    pub(crate) queues: Queues,
    pub(crate) configurator: Configurator,
    pub(crate) replicator: Replicator,
    pub(crate) search: Arc<tympan_search::Index>,
    pub(crate) logins: Logins,
    pub(crate) replication_key: String,
    pub(crate) pairs: Pairs,
    pub(crate) spool: PathBuf,
    pub(crate) work: Gate,
    pub(crate) telling: Telling,
    pub(crate) body_timeout: Duration,
    pub(crate) metrics: Metrics,
    /// What all requests together took, for `/manager/status`.
    pub(crate) request_sums: RequestSums,
    /// How long requests took until the last byte of their answers had left.
    pub(crate) request_times: RequestHistogram,
    pub(crate) numbers: request_log::Numbers,
    pub(crate) request_log: LogFile<request_log::Line>,
    pub(crate) access_log: LogFile<access_log::Line>,
    pub(crate) started: SystemTime,
    pub(crate) followers: Followers,
    /// What entity tags are made with.
    pub(crate) tag_key: [u8; 32],
    pub(crate) images: std::sync::OnceLock<crate::image::Images>,
    pub(crate) export: std::sync::OnceLock<crate::export::Export>,
    pub(crate) pools: crate::pool::Pools,
    pub(crate) watched: crate::watched::Watched,
    /// What an author takes from other instances.
    pub(crate) receives: parking_lot::RwLock<Vec<tympan_content::NodePath>>,
    /// What `/health` shows beside the instance's own checks.
    pub(crate) checks: crate::health::Checks,
    pub(crate) probes: crate::readiness::Probes,
    pub(crate) mounts: std::sync::OnceLock<tympan_jobs::mount::Mounts>,
    pub(crate) backups: crate::api::backup::BackupLog,
    /// Answers that are given again at once.
    pub(crate) hot: std::sync::OnceLock<crate::hot::HotAnswers>,
    /// Where others who read these blobs over HTTP say which they need.
    pub(crate) guest_notes: std::sync::OnceLock<tympan_replicate::GuestNotes>,
}

/// How long a request waits for a permit to work before it is told to come again.
const WORK_WAIT: Duration = Duration::from_secs(30);
/// How long a request waits for whoever tells who asks.
const IDENTIFY_WAIT: Duration = Duration::from_secs(10);

impl Instance {
    /// Opens the logs and puts the parts together.
    ///
    /// # Errors
    /// If a log file or the spool folder cannot be opened, or the initial policies cannot be installed.
    pub fn open(options: InstanceOptions, now: SystemTime) -> std::io::Result<Arc<Self>> {
        // Uploads that a crash cut off are of no use to anybody.
        if options.spool.exists() {
            std::fs::remove_dir_all(&options.spool)?;
        }
        create_closed(&options.spool)?;
        create_closed(&options.logs)?;
        let installed = options.repository.install_initial_policies(now);
        if installed.map_err(std::io::Error::other)? {
            tracing::info!("the initial policies are installed");
        }
        options.repository.identify_accounts(now).map_err(std::io::Error::other)?;
        let tag_key = Sha256::digest(format!("entity tags\n{}", options.replication_key)).into();
        let open = |name: &str| options.logs.join(name);
        let query_engines = QueryEngines::new(&options.query_budgets);
        query_engines.administrators.use_full_text(options.search.clone());
        options.replicator.set_keeping(options.keeping);
        let instance = Self {
            role: options.role,
            repository: options.repository,
            renderer: options
                .renderer
                .with_queries(query_engines.administrators.clone())
                .with_image_key(ImageKey::of_secret(&options.replication_key)),
            ledger: options.ledger,
            surrogate_key: options.surrogate_key,
            page_headers: match options.role {
                Role::Author => PageHeaders::of_author(),
                Role::Publish => options.page_headers,
            },
            profile: Profile::default(),
            query_engines,
            keeping: options.keeping,
            queues: options.queues,
            configurator: options.configurator,
            replicator: options.replicator,
            search: options.search,
            logins: options.logins,
            replication_key: options.replication_key,
            pairs: options.pairs,
            spool: options.spool,
            work: Gate::new(options.work_permits, options.work_waiting),
            telling: options.telling,
            body_timeout: options.body_timeout,
            metrics: Metrics::default(),
            request_sums: RequestSums::default(),
            request_times: RequestHistogram::default(),
            numbers: request_log::Numbers::default(),
            request_log: log(&open("request.log"), options.rotation)?,
            access_log: log(&open("access.log"), options.rotation)?,
            started: now,
            followers: Followers::default(),
            tag_key,
            images: std::sync::OnceLock::new(),
            export: std::sync::OnceLock::new(),
            pools: crate::pool::Pools::default(),
            watched: crate::watched::Watched::default(),
            receives: parking_lot::RwLock::default(),
            checks: crate::health::Checks::default(),
            probes: crate::readiness::Probes::default(),
            mounts: std::sync::OnceLock::new(),
            backups: crate::api::backup::BackupLog::default(),
            hot: std::sync::OnceLock::new(),
            guest_notes: std::sync::OnceLock::new(),
        };
        let instance = Arc::new(instance);
        crate::query::keep_indexes(&instance);
        Ok(instance)
    }

    /// Returns in whose name a request reads and changes content.
    pub(crate) fn viewer_of(&self, identity: Option<&Identity>) -> Result<Viewer> {
        Ok(self.repository.viewer(identity.map(|identity| &*identity.user))?)
    }

    /// Notes wishes in the content, and keeps what is activated as versions unless the configuration says otherwise.
    pub(crate) fn mark(&self, wishes: &[Wish], now: SystemTime) -> Result<ChunkId> {
        Ok(mark_keeping(&self.repository, wishes, self.keeping, now)?)
    }

    /// Tells whether no policy binds a viewer: `admin`, and the members of `administrators`.
    pub(crate) fn is_administrator(&self, viewer: &Viewer) -> Result<bool> {
        let reasons = self.repository.explain(viewer, &NodePath::root(), Privileges::READ_NODES)?;
        Ok(reasons.iter().all(|reason| reason.cause == Cause::Administrator))
    }

    /// Refuses whoever is no administrator; `what` completes "only administrators may".
    pub(crate) fn require_administrator(&self, viewer: &Viewer, what: &str) -> Result<()> {
        if self.is_administrator(viewer)? {
            return Ok(());
        }
        let message = format!("only administrators may {what}: join the group `administrators`");
        Err(Failure::new(StatusCode::FORBIDDEN, message))
    }

    /// Opens the logs anew, for tools that rotate them by renaming.
    pub fn reopen_logs(&self) {
        self.request_log.reopen();
        self.access_log.reopen();
    }

    /// Ends what would go on for as long as its client likes: streams of changes, and requests that wait for one.
    pub fn stop(&self) {
        self.followers.stop();
    }

    /// Tells who asks; nobody if the request proves nothing. A token for reading is refused for all methods but those of
    /// reading.
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<Option<Identity>> {
        let identity = self.identify_reader(parts).await?;
        if let Some(identity) = identity.as_ref().filter(|_| !parts.method.is_safe()) {
            identity.require_write_scope()?;
        }
        Ok(identity)
    }

    /// Tells who asks for something that changes nothing whatever the method: long queries are sent by POST.
    pub(crate) async fn identify_reader(&self, parts: &Parts) -> Result<Option<Identity>> {
        let identity = self.identify_watcher(parts).await?;
        if let Some(identity) = &identity {
            identity.require_content_scope()?;
        }
        Ok(identity)
    }

    /// Refuses whoever may not see the figures of the instance, which tell what all its users do: only administrators may, and
    /// tokens that are made for it.
    pub(crate) async fn require_watcher(self: &Arc<Self>, parts: &Parts) -> Result<()> {
        let Some(identity) = self.identify_watcher(parts).await? else {
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "log in first"));
        };
        if identity.scope == TokenScope::Monitor {
            return Ok(());
        }
        let instance = Arc::clone(self);
        // Not on the pool that pages are drawn on, whose figures are asked for when it is full.
        tokio::task::spawn_blocking(move || {
            let viewer = instance.viewer_of(Some(&identity))?;
            let what = "see the figures of an instance without a token of `tympan user token --scope monitor`";
            instance.require_administrator(&viewer, what)
        })
        .await?
    }

    /// Tells who asks for the state of the instance, which a token for monitoring shows, too.
    pub(crate) async fn identify_watcher(&self, parts: &Parts) -> Result<Option<Identity>> {
        let client = (&parts.headers, parts.extensions.get::<Peer>().copied());
        let identified = self.logins.identify(client, SessionUse::Request, SystemTime::now());
        let found = tokio::time::timeout(IDENTIFY_WAIT, identified).await;
        let found = found.unwrap_or_else(|_| {
            let message = "the database with the logins does not answer; try again in a moment";
            Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, message))
        });
        found.inspect_err(|failure| self.metrics.count_failed_login(failure))
    }

    /// Runs blocking work of a request on the bounded pool.
    pub(crate) async fn work<T, F>(self: &Arc<Self>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Instance) -> Result<T> + Send + 'static,
    {
        let permit = self.work.enter(WORK_WAIT).await.map_err(|_| {
            let message = "the server is busy; try again in a moment";
            let failure = Failure::new(StatusCode::SERVICE_UNAVAILABLE, message);
            Failure { retry_after: Some(1), ..failure }
        })?;
        let instance = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let result = work(&instance);
            drop(permit);
            result
        })
        .await?
    }
}

/// Makes a folder that only its owner may look into, whatever the process's mask of modes and an earlier version.
fn create_closed(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

fn log<L: fmt::Display>(file: &Path, rotation: Rotation) -> std::io::Result<LogFile<L>> {
    LogFile::open_daily(file, rotation).map_err(std::io::Error::other)
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({})", self.role.name())
    }
}
