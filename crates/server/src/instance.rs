//! An instance: the state shared by all its requests.

use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderName, StatusCode};
use sha2::{Digest, Sha256};
use tympan_content::{NodePath, PrivilegeCause, Privileges, Repository, Viewer};
use tympan_jobs::{JobQueues, OsgiConfigWatcher};
use tympan_render::ledger::DependencyLedger;
use tympan_render::profile::RenderProfile;
use tympan_render::{ImageSigningKey, Renderer};
use tympan_replicate::{
    ActivationVersioning, HomePairs, ReplicationRequest, Replicator, RequestRecording,
};
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_file::{LogFile, LogRotation};
use tympan_web::request_histogram::RequestHistogram;
use tympan_web::{access_log, request_log};

use crate::backup_log::BackupLog;
use crate::change_follower::ChangeFollowers;
use crate::effective_settings::EffectiveSettings;
use crate::export::static_export::StaticExport;
use crate::failure::{RequestFailure, Result};
use crate::known_dispatcher::KnownDispatchers;
use crate::login::{LoginTokenScope, Logins, RequestIdentity, SessionUse};
use crate::observe::external_health::ExternalHealthChecks;
use crate::observe::external_metrics::ExternalMetrics;
use crate::observe::metrics::{Metrics, increment};
use crate::observe::pool::{AdmissionGate, ExternalPools};
use crate::observe::readiness_probe::ReadinessProbes;
use crate::observe::request_history::RequestHistory;
use crate::observe::request_totals::RequestTotals;
use crate::page::headers::PageHeaders;
use crate::page::hot_response_cache::HotResponses;
use crate::page::image_service::ImageService;
use crate::presence_board::PresenceBoard;
use crate::query::budget::{QueryBudgets, QueryEngines};
use crate::query::index_maintenance::maintain_indexes;
use crate::saved_content::SavedContentSource;

/// The purpose of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceRole {
    /// For editors; everything requires a login.
    Author,
    /// For visitors; only replication writes.
    Publish,
}

impl InstanceRole {
    /// Returns the name of the role in commands, logs and agents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Author => "author",
            Self::Publish => "publish",
        }
    }
}

/// The audience that may see response timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimingAudience {
    /// Only administrators who request it.
    Nobody,
    /// Logged-in users.
    Users,
    /// All users and visitors.
    Everybody,
}

impl TimingAudience {
    /// Returns true if the user, or an anonymous visitor, belongs to the audience.
    pub(crate) fn includes(self, user: Option<&str>) -> bool {
        match self {
            Self::Nobody => false,
            Self::Users => user.is_some(),
            Self::Everybody => true,
        }
    }
}

/// Disclosure of response timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimingDisclosure {
    /// Audience of the header `Server-Timing`.
    pub header_audience: TimingAudience,
    /// Audience of the comment at the end of a page, which lists all components.
    pub comment_audience: TimingAudience,
}

impl Default for TimingDisclosure {
    /// Users see the header.
    fn default() -> Self {
        Self { header_audience: TimingAudience::Users, comment_audience: TimingAudience::Nobody }
    }
}

/// The parts of an instance.
#[derive(Debug)]
pub struct InstanceOptions {
    /// Role of the instance.
    pub role: InstanceRole,
    /// Content repository.
    pub repository: Repository,
    /// Resource limits of queries, by user.
    pub query_budgets: QueryBudgets,
    /// Determines whether activated documents are stored as versions.
    pub activation_versioning: ActivationVersioning,
    /// Renderer of pages.
    pub renderer: Renderer,
    /// Records the dependencies of a publisher's pages.
    pub dependency_ledger: Option<DependencyLedger>,
    /// The response header with the surrogate keys by which caches invalidate a response.
    pub surrogate_key: Option<HeaderName>,
    /// Headers that a publisher adds to rendered pages; an author has its own.
    pub page_headers: PageHeaders,
    /// Persistent job queues.
    pub queues: JobQueues,
    /// Applies the queue configuration in content to the worker.
    pub configurator: OsgiConfigWatcher,
    /// Processes the queues of the agents.
    pub replicator: Replicator,
    /// Full-text index.
    pub search: Arc<tympan_search::SearchIndex>,
    /// Tokens and passwords of users.
    pub logins: Logins,
    /// The key shared by authors and publishers.
    pub replication_key: String,
    /// Credentials paired with individual instances.
    pub home_pairs: HomePairs,
    /// The folder for incomplete uploads.
    pub spool_folder: PathBuf,
    /// The folder for `request.log` and `access.log`.
    pub log_folder: PathBuf,
    /// Rotation policy of the log files.
    pub rotation: LogRotation,
    /// Maximum number of requests that may render or edit at once; others wait.
    pub work_permits: usize,
    /// Maximum number of waiting requests; further ones are told to retry later.
    pub max_waiting_work: usize,
    /// Audience and form of response timing.
    pub timing_disclosure: TimingDisclosure,
    /// Maximum time without new data of a request body before the request fails.
    pub body_timeout: Duration,
}

/// A running instance, shared by all its requests.
pub struct Instance {
    pub(crate) role: InstanceRole,
    pub(crate) repository: Repository,
    pub(crate) query_engines: QueryEngines,
    pub(crate) renderer: Renderer,
    pub(crate) dependency_ledger: Option<DependencyLedger>,
    pub(crate) surrogate_key: Option<HeaderName>,
    pub(crate) page_headers: PageHeaders,
    pub(crate) profile: RenderProfile,
    pub(crate) queues: JobQueues,
    pub(crate) configurator: OsgiConfigWatcher,
    pub(crate) replicator: Replicator,
    pub(crate) search: Arc<tympan_search::SearchIndex>,
    pub(crate) logins: Logins,
    pub(crate) replication_key: String,
    pub(crate) home_pairs: HomePairs,
    pub(crate) spool_folder: PathBuf,
    pub(crate) log_folder: PathBuf,
    pub(crate) work_gate: AdmissionGate,
    pub(crate) timing_disclosure: TimingDisclosure,
    pub(crate) body_timeout: Duration,
    pub(crate) metrics: Metrics,
    /// Total cost of all requests, for `/manager/status`.
    pub(crate) request_totals: RequestTotals,
    /// Time from a request to the last byte of its response.
    pub(crate) request_latency: RequestHistogram,
    pub(crate) request_numbers: request_log::RequestNumberSequence,
    pub(crate) request_log: LogFile<request_log::RequestLogLine>,
    pub(crate) access_log: LogFile<access_log::AccessLogLine>,
    pub(crate) started_at: SystemTime,
    pub(crate) followers: Arc<ChangeFollowers>,
    /// The key of entity tags.
    pub(crate) tag_key: [u8; 32],
    pub(crate) image_service: std::sync::OnceLock<ImageService>,
    pub(crate) static_export: std::sync::OnceLock<StaticExport>,
    pub(crate) external_pools: ExternalPools,
    pub(crate) external_metrics: ExternalMetrics,
    /// The paths that an author receives from other instances.
    pub(crate) received_paths: parking_lot::RwLock<Vec<tympan_content::NodePath>>,
    /// The health checks that `/health` shows besides the instance's own.
    pub(crate) health_checks: ExternalHealthChecks,
    pub(crate) readiness_probes: ReadinessProbes,
    pub(crate) mounts: std::sync::OnceLock<tympan_mounts::MountService>,
    pub(crate) backup_log: BackupLog,
    pub(crate) effective_settings: EffectiveSettings,
    pub(crate) dispatchers: KnownDispatchers,
    pub(crate) saved_content: SavedContentSource,
    /// The requests of the last hour.
    pub(crate) request_history: RequestHistory,
    /// Who has which page open in an editor.
    pub(crate) presence: PresenceBoard,
    /// The cache of responses that are served directly.
    pub(crate) hot_responses: std::sync::OnceLock<HotResponses>,
    /// Registrations of other instances that read these blobs over HTTP and report which ones they need.
    pub(crate) guest_notes: std::sync::OnceLock<tympan_replicate::GuestNotes>,
}

/// Maximum time that a request waits for a work permit before it is told to retry later.
const WORK_WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time that a request waits for authentication.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(10);

impl Instance {
    /// Opens the logs and assembles the instance.
    ///
    /// # Errors
    /// If a log file or the spool folder cannot be opened, or the initial policies cannot be installed.
    pub fn open(options: InstanceOptions, now: SystemTime) -> std::io::Result<Arc<Self>> {
        // Remove uploads that were interrupted by a crash.
        if options.spool_folder.exists() {
            std::fs::remove_dir_all(&options.spool_folder)?;
        }
        create_private_folder(&options.spool_folder)?;
        create_private_folder(&options.log_folder)?;
        let installed = options.repository.install_initial_policies(now);
        if installed.map_err(std::io::Error::other)? {
            tracing::info!("initial policies installed");
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
            queues: options.queues,
            configurator: options.configurator,
            replicator: options.replicator,
            search: options.search,
            logins: options.logins,
            replication_key: options.replication_key,
            home_pairs: options.home_pairs,
            spool_folder: options.spool_folder,
            log_folder: options.log_folder.clone(),
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
            followers: Arc::default(),
            tag_key,
            image_service: std::sync::OnceLock::new(),
            static_export: std::sync::OnceLock::new(),
            external_pools: ExternalPools::default(),
            external_metrics: ExternalMetrics::default(),
            received_paths: parking_lot::RwLock::default(),
            health_checks: ExternalHealthChecks::default(),
            readiness_probes: ReadinessProbes::default(),
            mounts: std::sync::OnceLock::new(),
            backup_log: BackupLog::default(),
            effective_settings: EffectiveSettings::default(),
            dispatchers: KnownDispatchers::default(),
            saved_content: SavedContentSource::default(),
            request_history: RequestHistory::default(),
            presence: PresenceBoard::default(),
            hot_responses: std::sync::OnceLock::new(),
            guest_notes: std::sync::OnceLock::new(),
        };
        let instance = Arc::new(instance);
        maintain_indexes(&instance, |instance| &instance.repository);
        Ok(instance)
    }

    /// Returns true if no policy restricts the viewer: `admin` and the members of `administrators`.
    pub(crate) fn is_administrator(&self, viewer: &Viewer) -> Result<bool> {
        let reasons = self.repository.explain_privileges(
            viewer,
            &NodePath::root(),
            Privileges::READ_NODES,
        )?;
        Ok(reasons.iter().all(|reason| reason.cause == PrivilegeCause::Administrator))
    }

    /// Refuses users who are not administrators; `action` completes "only administrators may".
    pub(crate) fn require_administrator(&self, viewer: &Viewer, action: &str) -> Result<()> {
        if self.is_administrator(viewer)? {
            return Ok(());
        }
        let message = format!("only administrators may {action}; join the group `administrators`");
        Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
    }

    /// Reopens the logs, for tools that rotate them by renaming.
    pub fn reopen_logs(&self) {
        self.request_log.reopen();
        self.access_log.reopen();
    }

    /// Ends operations that would last as long as their client likes: change streams, and requests that wait for
    /// changes.
    pub fn stop(&self) {
        self.followers.stop();
    }

    /// Authenticates a request; `None` if it has no credentials. A read-only token is refused for all methods except
    /// those for reading.
    pub(crate) async fn identify(&self, parts: &Parts) -> Result<Option<RequestIdentity>> {
        let identity = self.identify_reader(parts).await?;
        if let Some(identity) = identity.as_ref().filter(|_| !parts.method.is_safe()) {
            identity.require_write_scope()?;
        }
        Ok(identity)
    }

    /// Authenticates a request that changes nothing whatever its method: long queries are sent by POST.
    pub(crate) async fn identify_reader(&self, parts: &Parts) -> Result<Option<RequestIdentity>> {
        let identity = self.identify_monitoring(parts).await?;
        if let Some(identity) = &identity {
            identity.require_content_scope()?;
        }
        Ok(identity)
    }

    /// Authenticates a request as [`Self::identify`], and refuses it if it has no credentials.
    pub(crate) async fn require_user(&self, parts: &Parts) -> Result<RequestIdentity> {
        self.identify(parts).await?.ok_or_else(missing_login)
    }

    /// Authenticates a request as [`Self::identify_reader`], and refuses it if it has no credentials.
    pub(crate) async fn require_reader(&self, parts: &Parts) -> Result<RequestIdentity> {
        self.identify_reader(parts).await?.ok_or_else(missing_login)
    }

    /// Refuses users who may not see the metrics of the instance, which reveal the activity of all users.
    /// Administrators and tokens for monitoring are allowed.
    pub(crate) async fn require_monitoring(self: &Arc<Self>, parts: &Parts) -> Result<()> {
        let identity = self.identify_monitoring(parts).await?.ok_or_else(missing_login)?;
        if identity.scope == LoginTokenScope::Monitor {
            return Ok(());
        }
        let instance = Arc::clone(self);
        // Do not use the pool that renders pages: metrics are needed when it is full.
        tokio::task::spawn_blocking(move || {
            let viewer = identity.viewer();
            let action = "read the metrics of an instance without a token created by `tympan user token \
                --scope monitor`";
            instance.require_administrator(&viewer, action)
        })
        .await?
    }

    /// Authenticates a request for the state of the instance, for which a monitoring token is also accepted.
    pub(crate) async fn identify_monitoring(
        &self,
        parts: &Parts,
    ) -> Result<Option<RequestIdentity>> {
        let client = (&parts.headers, parts.extensions.get::<ConnectionPeer>().copied());
        let identified = self.logins.identify(client, SessionUse::Request, SystemTime::now());
        let identity = tokio::time::timeout(IDENTIFY_TIMEOUT, identified).await;
        let identity = identity.unwrap_or_else(|_| {
            let message = "the login database does not respond; try again in a moment";
            Err(RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message))
        });
        identity.inspect_err(|failure| self.metrics.count_failed_login(failure))
    }

    /// Carries out replication requests of a viewer; they are recorded in content on the pool of requests. The operation completes
    /// even if the client disconnects.
    pub(crate) async fn replicate(
        self: &Arc<Self>,
        viewer: Viewer,
        requests: Vec<ReplicationRequest>,
    ) -> Result<()> {
        let instance = Arc::clone(self);
        let replication = tokio::spawn(async move {
            let run_recording =
                |recording: RequestRecording| instance.run_work(move |_| Ok(recording()?));
            let (replicator, now) = (&instance.replicator, SystemTime::now());
            replicator.replicate_in(viewer, requests, now, run_recording).await
        });
        replication.await??;
        increment(&self.metrics.activations);
        Ok(())
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

fn missing_login() -> RequestFailure {
    RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first")
}

/// Creates a folder that only its owner can access, regardless of the umask of the process and of an existing folder's
/// mode.
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
