//! The replicator of one role: it accepts requests and manages the queues of the role's agents.
//!
//! Its loops are modules of their own: a worker for each agent, and followers of the content.

mod agent_worker;
mod flush_follower;
pub(crate) mod on_off_time_job;
pub(crate) mod tree_replication;
mod withdrawal_follower;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;
use tympan_content::{ChunkId, Repository, Viewer};
use tympan_jobs::{JobQueues, JobWorker, QueueSet};
use tympan_notation::error_chain_text;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::tls::TlsTrust;

use crate::agent::{ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};
use crate::blocking::run_blocking;
use crate::delivery::message_sender::MessageSender;
use crate::flushing::affected_url::{AffectedUrlResolver, UntrackedUrlResolver};
use crate::flushing::flush::test_flush;
use crate::flushing::flush_number::FlushNumberAllocator;
use crate::home_pair::HomePairs;
use crate::request::replication_request::{
    ActivationVersioning, ReplicationRequest, mark_if_permitted,
};
use crate::request::request_job::store_request_jobs;
use crate::{Error, Result};

/// The duration of a job's lease. After it, another process may send the job; it is renewed while the job is being
/// sent.
const JOB_LEASE: Duration = Duration::from_secs(60);
/// The timeout of one request to the remote side, including its body.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(3600);
/// The interval at which agents are read again and queues are checked without a wake-up.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which the newest state is checked; it is longer if a check costs a round trip.
const ROOT_POLL_INTERVAL: Duration = Duration::from_millis(100);
const COSTLY_ROOT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The recording of requests in content, which blocks. It returns the root to send from.
pub type RequestRecording = Box<dyn FnOnce() -> Result<ChunkId> + Send>;

/// Processes the queues of one role's agents. Clones share the same workers.
#[derive(Debug, Clone)]
pub struct Replicator {
    state: Arc<ReplicatorState>,
}

#[derive(Debug)]
struct ReplicatorState {
    role: &'static str,
    /// A name that is unique among the processes on the same database.
    process_name: String,
    sender: MessageSender,
    /// The client for flushes, with a short timeout, because dispatchers respond at once.
    flush_client: HttpClient,
    /// The client for caches over TLS, created when the first one needs it, or the reason why there is none.
    tls_flush_client: OnceLock<Result<HttpClient, String>>,
    /// The allocator of flush numbers.
    flush_numbers: FlushNumberAllocator,
    queues: JobQueues,
    /// Wakes all workers when there may be work.
    wake_signal: Notify,
    /// The reason for which each blocked agent waits.
    blocked_agents: Mutex<BTreeMap<String, String>>,
    /// Held while requests are recorded in content and their jobs are stored, so that both have the same order.
    request_lock: Arc<tokio::sync::Mutex<()>>,
    /// The worker that has the configuration of the queues.
    worker: Mutex<Option<JobWorker>>,
    /// The resolver of the URLs affected by a change.
    url_resolver: Mutex<Arc<dyn AffectedUrlResolver>>,
    /// The root up to which this process followed content. Held while following, so that the stored flushes are those
    /// of the resolver's last result.
    last_flushed_root: tokio::sync::Mutex<Option<ChunkId>>,
    /// The option to store versions of what is activated.
    versioning: Mutex<ActivationVersioning>,
}

impl Replicator {
    /// Creates the replicator of a role, `author` or `publish`; `key` is the shared key for agents without a pair of
    /// their own.
    #[must_use]
    pub fn new(
        role: &'static str,
        repository: Repository,
        queues: JobQueues,
        key: String,
        pairs: HomePairs,
    ) -> Self {
        // Large assets take long to transfer, and the response comes after the last byte.
        let options =
            ClientOptions { response_timeout: Some(DELIVERY_TIMEOUT), ..ClientOptions::default() };
        let sender =
            MessageSender { repository, client: HttpClient::new(options), farm_key: key, pairs };
        let inner = ReplicatorState {
            role,
            process_name: unique_process_name(role),
            sender,
            flush_client: HttpClient::default(),
            tls_flush_client: OnceLock::new(),
            flush_numbers: FlushNumberAllocator::new(),
            queues,
            wake_signal: Notify::new(),
            blocked_agents: Mutex::default(),
            request_lock: Arc::default(),
            worker: Mutex::default(),
            url_resolver: Mutex::new(Arc::new(UntrackedUrlResolver)),
            last_flushed_root: tokio::sync::Mutex::default(),
            versioning: Mutex::default(),
        };
        Self { state: Arc::new(inner) }
    }

    /// Notifies the workers that jobs were added.
    pub fn wake_agent_workers(&self) {
        self.state.wake_signal.notify_waiters();
    }

    /// Waits for the lock for recording requests and storing their jobs.
    async fn lock_requests(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.state.request_lock).lock_owned().await
    }

    /// Carries out requests: stores their jobs, records them in content, and releases them to the agents. Nothing is
    /// left incomplete when the process ends. Returns the root to send from.
    ///
    /// `viewer` needs the permission for all of them in the state in which they are recorded, even if it had the
    /// permission when the caller checked it: this may wait for other requests and for `run_recording`.
    ///
    /// `run_recording` runs the recording, which blocks. It is called after the jobs are stored; if it fails, they are
    /// discarded.
    ///
    /// # Errors
    /// As [`store_request_jobs`], [`require_replicate_permission`](crate::require_replicate_permission),
    /// [`mark_replicated`](crate::mark_replicated) and `run_recording`.
    pub async fn replicate_in<E, F>(
        &self,
        viewer: Viewer,
        requests: Vec<ReplicationRequest>,
        now: SystemTime,
        run_recording: impl FnOnce(RequestRecording) -> F,
    ) -> Result<ChunkId, E>
    where
        E: From<Error>,
        F: Future<Output = Result<ChunkId, E>>,
    {
        let turn = self.lock_requests().await;
        let (repository, queues) = (self.repository().clone(), self.queues());
        let request_jobs = store_request_jobs(&repository, queues, &requests, now).await?;
        let immediate_requests = request_jobs.immediate_requests(&requests);
        let options = (self.versioning(), now);
        let recording: RequestRecording = Box::new(move || {
            mark_if_permitted(&repository, &viewer, &requests, &immediate_requests, options)
        });
        let root = match run_recording(recording).await {
            Ok(root) => root,
            Err(error) => {
                request_jobs.discard(queues).await?;
                return Err(error);
            }
        };
        request_jobs.release(queues, root, now).await?;
        drop(turn);
        self.wake_agent_workers();
        Ok(root)
    }

    /// Carries out requests as [`Self::replicate_in`], and records them on any thread that may block.
    ///
    /// # Errors
    /// As [`store_request_jobs`], [`require_replicate_permission`](crate::require_replicate_permission) and
    /// [`mark_replicated`](crate::mark_replicated).
    pub async fn replicate(
        &self,
        viewer: Viewer,
        requests: Vec<ReplicationRequest>,
        now: SystemTime,
    ) -> Result<ChunkId> {
        let run_recording = async |recording: RequestRecording| run_blocking(recording).await?;
        self.replicate_in(viewer, requests, now, run_recording).await
    }

    /// Sets the name for this publisher's flushes, which must be stable across restarts. Dispatchers count flushes by
    /// it, and the state of content up to which flushes are stored is kept under it.
    pub fn set_publisher(&self, name: &str) {
        self.state.flush_numbers.set_publisher(name);
    }

    /// Sets whether versions are stored of what is activated; the default is to store them.
    pub fn set_versioning(&self, versioning: ActivationVersioning) {
        *self.state.versioning.lock() = versioning;
    }

    fn versioning(&self) -> ActivationVersioning {
        *self.state.versioning.lock()
    }

    /// Returns the name under which this process claims jobs.
    fn process_name(&self) -> &str {
        &self.state.process_name
    }

    /// Returns the role of the instance.
    fn role(&self) -> &'static str {
        self.state.role
    }

    /// Returns the signal that there may be work.
    fn wake_signal(&self) -> &Notify {
        &self.state.wake_signal
    }

    /// Returns the repository from which content is sent.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.state.sender.repository
    }

    /// Configures queues as those of a worker, so that a pause applies under the name in the worker's configuration.
    pub fn set_queue_name_source(&self, worker: JobWorker) {
        *self.state.worker.lock() = Some(worker);
    }

    /// Returns the currently configured name of an agent's queue.
    #[must_use]
    pub fn queue_name_of(&self, agent: &str) -> String {
        let topic = agent_topic(self.state.role, agent);
        match &*self.state.worker.lock() {
            Some(worker) => worker.queue_set().queue_for_topic(&topic).name,
            None => QueueSet::default().queue_for_topic(&topic).name,
        }
    }

    /// Returns the queues.
    #[must_use]
    pub fn queues(&self) -> &JobQueues {
        &self.state.queues
    }

    /// Returns the reason why an agent's queue is blocked, if it is.
    #[must_use]
    pub fn blocked_reason(&self, agent: &str) -> Option<String> {
        self.state.blocked_agents.lock().get(agent).cloned()
    }

    /// Records why an agent's queue is blocked, and logs it once.
    fn block_agent(&self, agent: &str, reason: &str) {
        let was = self.state.blocked_agents.lock().insert(agent.to_owned(), reason.to_owned());
        if was.is_none() {
            warn!(agent, reason, "replication blocked");
        }
    }

    /// Finds an agent of this role.
    ///
    /// # Errors
    /// [`Error::InvalidAgent`] if it does not exist; errors of the content.
    pub async fn find_agent(&self, name: &str) -> Result<ReplicationAgent> {
        let (repository, role) = (self.repository().clone(), self.state.role);
        let all = run_blocking(move || read_agents(&repository.snapshot()?, role)).await??;
        let missing = || Error::InvalidAgent {
            agent: name.to_owned(),
            reason: format!("there is no such agent below `/etc/replication/agents.{role}`"),
        };
        all.into_iter().find(|agent| agent.name == name).ok_or_else(missing)
    }

    /// Checks the connection to an agent's target, without side effects there.
    ///
    /// # Errors
    /// With the reason why the connection fails.
    pub async fn test_agent(&self, name: &str) -> Result<()> {
        let agent = self.find_agent(name).await?;
        if let Some(reason) = agent.config_error.clone() {
            return Err(Error::InvalidAgent { agent: agent.name, reason });
        }
        match agent.kind {
            ReplicationAgentKind::Publish => self.state.sender.test_publisher(&agent).await,
            _ => {
                let client = self.flush_client_for(&agent)?;
                test_flush(client, &self.state.sender.pairs, &agent).await
            }
        }
    }

    /// Returns the client for an agent's cache. Caches over TLS must have a certificate that the system trusts.
    fn flush_client_for(&self, agent: &ReplicationAgent) -> Result<&HttpClient> {
        let address = match agent.target.starts_with("{url}") {
            true => &agent.template.public_url,
            false => &agent.target,
        };
        if !address.starts_with("https:") {
            return Ok(&self.state.flush_client);
        }
        let client = self.state.tls_flush_client.get_or_init(|| {
            let trust = TlsTrust::system_roots().map_err(|error| error_chain_text(&error))?;
            Ok(HttpClient::new(ClientOptions {
                tls_trust: Some(trust),
                ..ClientOptions::default()
            }))
        });
        client.as_ref().map_err(|reason| Error::InvalidAgent {
            agent: agent.name.clone(),
            reason: reason.clone(),
        })
    }

    /// Pauses an agent: its jobs wait, and more may be added.
    ///
    /// # Errors
    /// If the agent does not exist or the queues fail.
    pub async fn pause_agent(&self, name: &str, user: &str, now: SystemTime) -> Result<()> {
        let agent = self.find_agent(name).await?;
        Ok(self.state.queues.pause_queue(&self.queue_name_of(&agent.name), user, now).await?)
    }

    /// Resumes an agent. Returns true if it was paused.
    ///
    /// # Errors
    /// If the agent does not exist or the queues fail.
    pub async fn resume_agent(&self, name: &str) -> Result<bool> {
        let agent = self.find_agent(name).await?;
        let is_changed = self.state.queues.resume_queue(&self.queue_name_of(&agent.name)).await?;
        self.wake_agent_workers();
        Ok(is_changed)
    }

    /// Removes all jobs of an agent except the one that is being sent. Returns their number.
    ///
    /// # Errors
    /// If the agent does not exist or the queues fail.
    pub async fn clear_jobs(&self, name: &str) -> Result<u64> {
        let agent = self.find_agent(name).await?;
        let removed =
            self.state.queues.clear_topic(&agent_topic(self.state.role, &agent.name)).await?;
        self.state.blocked_agents.lock().remove(&agent.name);
        if removed > 0 {
            // A gap in the numbers shows its dispatcher that flushes are missing.
            self.state.flush_numbers.skip_number(&agent.name);
        }
        self.wake_agent_workers();
        Ok(removed)
    }

    /// Lets all jobs of an agent run again now: failed ones, and those waiting for their next attempt. Returns their
    /// number.
    ///
    /// # Errors
    /// If the agent does not exist or the queues fail.
    pub async fn retry_jobs(&self, name: &str, now: SystemTime) -> Result<u64> {
        let agent = self.find_agent(name).await?;
        let topic = agent_topic(self.state.role, &agent.name);
        let count = self.state.queues.retry_topic(&topic, now).await?;
        self.wake_agent_workers();
        Ok(count)
    }

    /// Sets the resolver of the URLs affected by a change.
    pub fn set_url_resolver(&self, affected: Arc<dyn AffectedUrlResolver>) {
        *self.state.url_resolver.lock() = affected;
    }

    async fn load_agents(&self) -> Vec<ReplicationAgent> {
        let (repository, role) = (self.state.sender.repository.clone(), self.state.role);
        let read = run_blocking(move || -> Result<Vec<ReplicationAgent>> {
            read_agents(&repository.snapshot()?, role)
        })
        .await;
        read.and_then(|agents| agents).unwrap_or_else(|error| {
            warn!(reason = %error, "cannot read replication agents");
            Vec::new()
        })
    }
}

/// Returns the interval at which the newest state is checked.
fn root_poll_interval(repository: &Repository) -> Duration {
    if repository.chunks().has_costly_round_trips() {
        COSTLY_ROOT_POLL_INTERVAL
    } else {
        ROOT_POLL_INTERVAL
    }
}

/// Returns a name built from values that differ between processes that share a database.
fn unique_process_name(role: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("replicator-{role}-{}-{}", std::process::id(), since.as_nanos())
}
