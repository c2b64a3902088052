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
use tympan_content::{ChunkId, NodePath, PrivilegeCause, Privileges, Repository, Viewer};
use tympan_jobs::{JobQueues, OsgiConfigWatcher};
use tympan_render::ledger::DependencyLedger;
use tympan_render::profile::RenderProfile;
use tympan_render::{ImageSigningKey, Renderer};
use tympan_replicate::{
    ActivationVersioning, HomePairs, ReplicationRequest, Replicator,
    mark_replicated_with_versioning,
};
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_file::{LogFile, LogRotation};
use tympan_web::request_histogram::RequestHistogram;
use tympan_web::{access_log, request_log};

use crate::change_follower::ChangeFollowers;
use crate::failure::{RequestFailure, Result};
use crate::login::{LoginTokenScope, Logins, RequestIdentity, SessionUse};
use crate::manager_status::RequestTotals;
use crate::metrics::Metrics;
use crate::page_headers::PageHeaders;
use crate::pool::AdmissionGate;
use crate::query_budget::{QueryBudgets, QueryEngines};

/// What an instance is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceRole {
    /// People edit here; nothing is shown without a login.
    Author,
    /// Visitors read here; only replication writes.
    Publish,
}

impl InstanceRole {
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
pub enum TimingAudience {
    /// Nobody but administrators who ask for it.
    Nobody,
    /// Users who are logged in.
    Users,
    /// Everybody, visitors included.
    Everybody,
}

impl TimingAudience {
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
pub struct TimingDisclosure {
    /// In the header `Server-Timing`.
    pub header_audience: TimingAudience,
    /// As a comment at the end of a page, with all components.
    pub comment_audience: TimingAudience,
}

impl Default for TimingDisclosure {
    /// Users see the header.
    fn default() -> Self {
        Self { header_audience: TimingAudience::Users, comment_audience: TimingAudience::Nobody }
    }
}

/// What an instance is made of.
#[derive(Debug)]
pub struct InstanceOptions {
    /// Its role.
    pub role: InstanceRole,
    /// Its content.
    pub repository: Repository,
    /// What queries may use, by who asks.
    pub query_budgets: QueryBudgets,
    /// Whether it keeps what is activated as versions.
    pub activation_versioning: ActivationVersioning,
    /// What draws its pages.
    pub renderer: Renderer,
    /// What remembers from what a publisher's pages were drawn.
    pub dependency_ledger: Option<DependencyLedger>,
    /// The header that names the keys by which caches drop an answer.
    pub surrogate_key: Option<HeaderName>,
    /// The headers that a publisher adds to the pages that it draws; an author has its own.
    pub page_headers: PageHeaders,
    /// Its stored work.
    pub queues: JobQueues,
    /// What keeps its worker's queues as content says.
    pub configurator: OsgiConfigWatcher,
    /// What works off the queues of its agents.
    pub replicator: Replicator,
    /// Its full-text index.
    pub search: Arc<tympan_search::SearchIndex>,
    /// The tokens and passwords it accepts.
    pub logins: Logins,
    /// The key that authors and publishers share.
    pub replication_key: String,
    /// The credentials that it has with single instances.
    pub home_pairs: HomePairs,
    /// The folder for uploads that are still arriving.
    pub spool_folder: PathBuf,
    /// The folder for `request.log` and `access.log`.
    pub log_folder: PathBuf,
    /// When a new log file is begun.
    pub rotation: LogRotation,
    /// How many requests may render or edit at once; the others wait.
    pub work_permits: usize,
    /// How many may wait; further ones are told to come again.
    pub max_waiting_work: usize,
    /// Who is told what an answer took, and how.
    pub timing_disclosure: TimingDisclosure,
    /// How long the body of a request may leave off arriving before it fails.
    pub body_timeout: Duration,
}

/// One running instance. It is shared by all its requests.
pub struct Instance {
    pub(crate) role: InstanceRole,
    pub(crate) repository: Repository,
    pub(crate) query_engines: QueryEngines,
    pub(crate) renderer: Renderer,
    pub(crate) dependency_ledger: Option<DependencyLedger>,
    pub(crate) surrogate_key: Option<HeaderName>,
    pub(crate) page_headers: PageHeaders,
    pub(crate) profile: RenderProfile,
    activation_versioning: ActivationVersioning,
    pub(crate) queues: JobQueues,
    pub(crate) configurator: OsgiConfigWatcher,
    pub(crate) replicator: Replicator,
    pub(crate) search: Arc<tympan_search::SearchIndex>,
    pub(crate) logins: Logins,
    pub(crate) replication_key: String,
    pub(crate) home_pairs: HomePairs,
    pub(crate) spool_folder: PathBuf,
    pub(crate) work_gate: AdmissionGate,
    pub(crate) timing_disclosure: TimingDisclosure,
    pub(crate) body_timeout: Duration,
    pub(crate) metrics: Metrics,
    /// What all requests together took, for `/manager/status`.
    pub(crate) request_totals: RequestTotals,
    /// How long requests took until the last byte of their answers had left.
    pub(crate) request_latency: RequestHistogram,
    pub(crate) request_numbers: request_log::RequestNumberSequence,
    pub(crate) request_log: LogFile<request_log::RequestLogLine>,
    pub(crate) access_log: LogFile<access_log::AccessLogLine>,
    pub(crate) started_at: SystemTime,
    pub(crate) followers: ChangeFollowers,
    /// What entity tags are made with.
    pub(crate) tag_key: [u8; 32],
    pub(crate) image_service: std::sync::OnceLock<crate::image::ImageService>,
    pub(crate) static_export: std::sync::OnceLock<crate::export::StaticExport>,
    pub(crate) external_pools: crate::pool::ExternalPools,
    pub(crate) external_metrics: crate::external_metrics::ExternalMetrics,
    /// What an author takes from other instances.
    pub(crate) received_paths: parking_lot::RwLock<Vec<tympan_content::NodePath>>,
    /// What `/health` shows beside the instance's own checks.
    pub(crate) health_checks: crate::health::ExternalHealthChecks,
    pub(crate) readiness_probes: crate::readiness::ReadinessProbes,
    pub(crate) mounts: std::sync::OnceLock<tympan_jobs::mount::MountService>,
    pub(crate) backup_log: crate::api::backup::BackupLog,
    /// Answers that are given again at once.
    pub(crate) hot_responses: std::sync::OnceLock<crate::hot_response::HotResponses>,
    /// Where others who read these blobs over HTTP say which they need.
    pub(crate) guest_notes: std::sync::OnceLock<tympan_replicate::GuestNotes>,
}

/// How long a request waits for a permit to work before it is told to come again.
const WORK_WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request waits for whoever tells who asks.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(10);

impl Instance {
    /// Opens the logs and puts the parts together.
    ///
    /// # Errors
    /// If a log file or the spool folder cannot be opened, or the initial policies cannot be installed.
    pub fn open(options: InstanceOptions, now: SystemTime) -> std::io::Result<Arc<Self>> {
        // Uploads that a crash cut off are of no use to anybody.
        if options.spool_folder.exists() {
            std::fs::remove_dir_all(&options.spool_folder)?;
        }
        create_private_folder(&options.spool_folder)?;
        create_private_folder(&options.log_folder)?;
        let installed = options.repository.install_initial_policies(now);
        if installed.map_err(std::io::Error::other)? {
            tracing::info!("the initial policies are installed");
        }
        options.repository.assign_account_identifiers(now).map_err(std::io::Error::other)?;
        let tag_key = Sha256::digest(format!("entity tags\n{}", options.replication_key)).into();
        let open = |name: &str| options.log_folder.join(name);
        let query_engines = QueryEngines::new(&options.query_budgets);
        query_engines.administrators.set_full_text_index(options.search.clone());
        options.replicator.set_versioning(options.activation_versioning);
        let instance = Self {
            role: options.role,
            repository: options.repository,
            renderer: options
                .renderer
                .with_query_engine(query_engines.administrators.clone())
                .with_image_key(ImageSigningKey::from_secret(&options.replication_key)),
            dependency_ledger: options.dependency_ledger,
            surrogate_key: options.surrogate_key,
            page_headers: match options.role {
                InstanceRole::Author => PageHeaders::author_defaults(),
                InstanceRole::Publish => options.page_headers,
            },
            profile: RenderProfile::default(),
            query_engines,
            activation_versioning: options.activation_versioning,
            queues: options.queues,
            configurator: options.configurator,
            replicator: options.replicator,
            search: options.search,
            logins: options.logins,
            replication_key: options.replication_key,
            home_pairs: options.home_pairs,
            spool_folder: options.spool_folder,
            work_gate: AdmissionGate::new(options.work_permits, options.max_waiting_work),
            timing_disclosure: options.timing_disclosure,
            body_timeout: options.body_timeout,
            metrics: Metrics::default(),
            request_totals: RequestTotals::default(),
            request_latency: RequestHistogram::default(),
            request_numbers: request_log::RequestNumberSequence::default(),
            request_log: open_log(&open("request.log"), options.rotation)?,
            access_log: open_log(&open("access.log"), options.rotation)?,
            started_at: now,
            followers: ChangeFollowers::default(),
            tag_key,
            image_service: std::sync::OnceLock::new(),
            static_export: std::sync::OnceLock::new(),
            external_pools: crate::pool::ExternalPools::default(),
            external_metrics: crate::external_metrics::ExternalMetrics::default(),
            received_paths: parking_lot::RwLock::default(),
            health_checks: crate::health::ExternalHealthChecks::default(),
            readiness_probes: crate::readiness::ReadinessProbes::default(),
            mounts: std::sync::OnceLock::new(),
            backup_log: crate::api::backup::BackupLog::default(),
            hot_responses: std::sync::OnceLock::new(),
            guest_notes: std::sync::OnceLock::new(),
        };
        let instance = Arc::new(instance);
        crate::query::maintain_indexes(&instance);
        Ok(instance)
    }

    /// Returns in whose name a request reads and changes content.
    pub(crate) fn viewer_of(&self, identity: Option<&RequestIdentity>) -> Result<Viewer> {
        Ok(self.repository.viewer(identity.map(|identity| &*identity.user))?)
    }

    /// Notes wishes in the content, and keeps what is activated as versions unless the configuration says otherwise.
    pub(crate) fn mark_replication(
        &self,
        wishes: &[ReplicationRequest],
        now: SystemTime,
    ) -> Result<ChunkId> {
        Ok(mark_replicated_with_versioning(
            &self.repository,
            wishes,
            self.activation_versioning,
            now,
        )?)
    }

    /// Tells whether no policy binds a viewer: `admin`, and the members of `administrators`.
    pub(crate) fn is_administrator(&self, viewer: &Viewer) -> Result<bool> {
        let reasons = self.repository.explain_privileges(
            viewer,
            &NodePath::root(),
            Privileges::READ_NODES,
        )?;
        Ok(reasons.iter().all(|reason| reason.cause == PrivilegeCause::Administrator))
    }

    /// Refuses whoever is no administrator; `what` completes "only administrators may".
    pub(crate) fn require_administrator(&self, viewer: &Viewer, what: &str) -> Result<()> {
        if self.is_administrator(viewer)? {
            return Ok(());
        }
        let message = format!("only administrators may {what}: join the group `administrators`");
        Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
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
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<Option<RequestIdentity>> {
        let identity = self.identify_reader(parts).await?;
        if let Some(identity) = identity.as_ref().filter(|_| !parts.method.is_safe()) {
            identity.require_write_scope()?;
        }
        Ok(identity)
    }

    /// Tells who asks for something that changes nothing whatever the method: long queries are sent by POST.
    pub(crate) async fn identify_reader(&self, parts: &Parts) -> Result<Option<RequestIdentity>> {
        let identity = self.identify_monitoring(parts).await?;
        if let Some(identity) = &identity {
            identity.require_content_scope()?;
        }
        Ok(identity)
    }

    /// Refuses whoever may not see the figures of the instance, which tell what all its users do: only administrators may, and
    /// tokens that are made for it.
    pub(crate) async fn require_monitoring(self: &Arc<Self>, parts: &Parts) -> Result<()> {
        let Some(identity) = self.identify_monitoring(parts).await? else {
            return Err(RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"));
        };
        if identity.scope == LoginTokenScope::Monitor {
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
    pub(crate) async fn identify_monitoring(
        &self,
        parts: &Parts,
    ) -> Result<Option<RequestIdentity>> {
        let client = (&parts.headers, parts.extensions.get::<ConnectionPeer>().copied());
        let identified = self.logins.identify(client, SessionUse::Request, SystemTime::now());
        let found = tokio::time::timeout(IDENTIFY_TIMEOUT, identified).await;
        let found = found.unwrap_or_else(|_| {
            let message = "the database with the logins does not answer; try again in a moment";
            Err(RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message))
        });
        found.inspect_err(|failure| self.metrics.count_failed_login(failure))
    }

    /// Runs blocking work of a request on the bounded pool.
    pub(crate) async fn run_work<T, F>(self: &Arc<Self>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Instance) -> Result<T> + Send + 'static,
    {
        let permit = self.work_gate.acquire(WORK_WAIT_TIMEOUT).await.map_err(|_| {
            let message = "the server is busy; try again in a moment";
            let failure = RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message);
            RequestFailure { retry_after_seconds: Some(1), ..failure }
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
fn create_private_folder(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

fn open_log<L: fmt::Display>(file: &Path, rotation: LogRotation) -> std::io::Result<LogFile<L>> {
    LogFile::open_daily(file, rotation).map_err(std::io::Error::other)
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({})", self.role.name())
    }
}
