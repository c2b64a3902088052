//! The worker of a process: claims the jobs of topics that have handlers, and runs them as their queues are configured.
//!
//! In: handlers, configurations of queues. Out: outcomes, stored.
//!
//! One loop writes: each round is one transaction with all ended attempts, all claims and, at intervals, the leases of
//! all running jobs, so many short jobs share one sync.
//!
//! Invariants
//! * The number of concurrent jobs does not exceed the limit of each queue, or the number of threads in total.
//! * Topics that another live process reserves are left to it.
//! * A worker that stops releases the jobs that it has not begun, and those that do not end in time.
//!
//! On failure: outcomes that cannot be stored are retained and stored when the database is available again; the leases
//! determine when other workers may take over.
//!
//! Not here: the order in which jobs are selected (`job_selection`), and the statements of a round (`worker_round`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};
use tympan_notation::error_chain_text;

use crate::queue::queue_config::{QueueConfig, QueueSet};
use crate::queue::topic::TopicPattern;
use crate::worker::job_executor::{EndedAttempt, JobExecutor};
use crate::worker::job_handler::JobContext;
use crate::{JobHandler, JobId, JobQueues};

/// Options of a worker.
#[derive(Debug, Clone)]
pub struct JobWorkerOptions {
    /// The role of the process: `author`, `publish`, `assets`.
    pub role: String,
    /// A name that no other process has, now or later.
    pub name: String,
    /// Maximum number of concurrent jobs, over all queues.
    pub threads: usize,
    /// Number of processors, of which queues take shares.
    pub cores: usize,
    /// Time after which other workers may run this process's jobs again.
    pub lease: Duration,
    /// Interval at which the queues are polled if nothing in this process adds a job.
    pub poll_interval: Duration,
    /// The accepted topics, as patterns of queues; all if empty.
    pub accepted_topics: Vec<TopicPattern>,
    /// True if other processes leave these topics to this one while it lives.
    pub reserves_topics: bool,
    /// Maximum time for running jobs to end when the worker stops.
    pub drain_timeout: Duration,
    /// Values by name that must be the same in all processes on the database, such as the folder of their blobs. See
    /// [`JobStatistics::find_fact_mismatches`].
    pub shared_facts: BTreeMap<String, String>,
    /// The clock for the removal of ended jobs.
    pub removal_clock: RemovalClock,
}

/// The clock for the removal of ended jobs by age. A clock that jumped ahead must not make all of them look old.
#[derive(Clone)]
pub struct RemovalClock(Arc<dyn Fn(SystemTime) -> SystemTime + Send + Sync>);

impl RemovalClock {
    /// Creates a clock from `trusted`, which maps the system time to the trusted time. It is called occasionally in the
    /// claiming loop, so it must return quickly.
    #[must_use]
    pub fn new(trusted: impl Fn(SystemTime) -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(trusted))
    }

    /// Returns the trusted time, which is never later than `now`.
    pub(crate) fn trusted_time(&self, now: SystemTime) -> SystemTime {
        (self.0)(now).min(now)
    }
}

impl Default for RemovalClock {
    /// Returns a clock that trusts the system time.
    fn default() -> Self {
        Self::new(|now| now)
    }
}

impl fmt::Debug for RemovalClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemovalClock")
    }
}

impl JobWorkerOptions {
    /// Returns the default options; `name` must be unique among all processes.
    #[must_use]
    pub fn new(role: &str, name: String) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            role: role.to_owned(),
            name,
            threads: 64,
            cores,
            lease: Duration::from_secs(60),
            poll_interval: Duration::from_secs(1),
            accepted_topics: Vec::new(),
            reserves_topics: false,
            drain_timeout: Duration::from_secs(20),
            shared_facts: BTreeMap::new(),
            removal_clock: RemovalClock::default(),
        }
    }
}

/// Carries out jobs. Clones are the same worker.
#[derive(Clone)]
pub struct JobWorker {
    pub(crate) state: Arc<JobWorkerState>,
}

pub(crate) struct JobWorkerState {
    pub(crate) queues: JobQueues,
    pub(crate) options: JobWorkerOptions,
    handlers: RwLock<Vec<(TopicPattern, Arc<dyn JobHandler>)>>,
    queue_set: RwLock<Arc<QueueSet>>,
    /// Numbers of running jobs, and of claimed jobs that wait, by queue.
    queue_load: Mutex<BTreeMap<String, (usize, usize)>>,
    /// The reason why queues cannot be processed at the moment, if any.
    claim_fault: Mutex<Option<String>>,
}

/// A claimed job.
pub(crate) struct ClaimedJob {
    pub(crate) topic: String,
    pub(crate) attempt: u32,
    pub(crate) run_at: SystemTime,
    pub(crate) context: JobContext,
    pub(crate) queue: String,
    /// True if its attempt is counted in the table.
    pub(crate) is_attempt_counted: bool,
    /// True if a stop was requested.
    pub(crate) is_stop_requested: bool,
}

/// State of a worker's loop.
pub(crate) struct WorkerLoopState {
    pub(crate) executor: Arc<JobExecutor>,
    pub(crate) claimed_jobs: HashMap<JobId, ClaimedJob>,
    /// The fairness key that was served last, by queue.
    pub(crate) last_served: HashMap<String, String>,
    /// Approximate run time of a job, by queue.
    pub(crate) average_run_times: HashMap<String, Duration>,
    /// Ended attempts that are not stored yet.
    pub(crate) ended_attempts: Vec<EndedAttempt>,
    /// Time of the last lease renewal.
    pub(crate) leases_renewed_at: Option<Instant>,
    /// Time at which stop requests were last read and progress was last stored.
    pub(crate) running_checked_at: Option<Instant>,
    /// Topics of the table, for ordered queues.
    pub(crate) known_topics: Vec<String>,
    pub(crate) is_stopping: bool,
    /// True if more old ended jobs wait to be removed.
    pub(crate) is_pruning: bool,
    is_failing: bool,
}

impl JobWorker {
    /// Creates a worker without handlers, with the default queues.
    #[must_use]
    pub fn new(queues: JobQueues, options: JobWorkerOptions) -> Self {
        let inner = JobWorkerState {
            queues,
            options,
            handlers: RwLock::default(),
            queue_set: RwLock::new(Arc::new(QueueSet::default())),
            queue_load: Mutex::default(),
            claim_fault: Mutex::default(),
        };
        Self { state: Arc::new(inner) }
    }

    /// Registers a handler for its topic. If several patterns match a topic, the most specific one applies.
    pub fn register_handler(&self, handler: Arc<dyn JobHandler>) {
        let pattern = TopicPattern::parse_handler_pattern(handler.topic());
        self.state.handlers.write().push((pattern, handler));
        self.state.queues.wake_job_workers();
    }

    /// Replaces the configurations of queues. Claimed jobs are carried out as before.
    pub fn set_queue_configs(&self, queues: Vec<QueueConfig>) {
        *self.state.queue_set.write() = Arc::new(QueueSet::new(queues));
        self.state.queues.wake_job_workers();
    }

    /// Returns the current queue configurations.
    #[must_use]
    pub fn queue_set(&self) -> Arc<QueueSet> {
        self.state.queue_set.read().clone()
    }

    /// Returns the stored queues.
    #[must_use]
    pub fn queues(&self) -> &JobQueues {
        &self.state.queues
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &JobWorkerOptions {
        &self.state.options
    }

    /// Returns the patterns of the topics that have a handler here.
    #[must_use]
    pub fn handled_topics(&self) -> Vec<String> {
        self.state.handlers.read().iter().map(|(pattern, _)| pattern.text().to_owned()).collect()
    }

    /// Returns true if a handler here accepts a topic.
    #[must_use]
    pub fn has_handler_for(&self, topic: &str) -> bool {
        self.state.find_handler(topic).is_some()
    }

    /// Returns for each queue with jobs how many run in this process, and how many are claimed and wait.
    #[must_use]
    pub fn queue_load(&self) -> BTreeMap<String, (usize, usize)> {
        self.state.queue_load.lock().clone()
    }

    /// Returns the reason why queues cannot be processed at the moment; `None` if they can.
    #[must_use]
    pub fn claim_fault(&self) -> Option<String> {
        self.state.claim_fault.lock().clone()
    }

    /// Works until `stop` turns true, then waits for running jobs to end.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let (sender, mut ended) = mpsc::unbounded_channel();
        let mut loop_state =
            WorkerLoopState::new(JobExecutor::new(self.state.options.threads, sender));
        while !*stop.borrow() {
            let wait = self.run_worker_round(&mut loop_state, &mut ended).await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.state.queues.wait_for_work() => {}
                Some(one) = ended.recv() => loop_state.ended_attempts.push(one),
                _ = stop.changed() => {}
            }
        }
        self.drain_running_jobs(&mut loop_state, &mut ended).await;
    }

    /// Stores ended attempts and starts jobs that may run. Returns the delay before the next round.
    async fn run_worker_round(
        &self,
        loop_state: &mut WorkerLoopState,
        ended: &mut mpsc::UnboundedReceiver<EndedAttempt>,
    ) -> Duration {
        while let Ok(attempt) = ended.try_recv() {
            loop_state.ended_attempts.push(attempt);
        }
        let wait = match self.state.run_round(loop_state, SystemTime::now()).await {
            Ok(wait) => {
                if std::mem::take(&mut loop_state.is_failing) {
                    info!("queues are processed again");
                    *self.state.claim_fault.lock() = None;
                }
                wait
            }
            Err(failure) => {
                let reason = error_chain_text(&failure);
                if !std::mem::replace(&mut loop_state.is_failing, true) {
                    error!(reason, "cannot process queues");
                }
                *self.state.claim_fault.lock() = Some(reason);
                // Attempts that end during the wait are retained, and stored with the next successful round.
                tokio::time::sleep(FAILURE_BACKOFF).await;
                Duration::ZERO
            }
        };
        loop_state.executor.start_ready();
        *self.state.queue_load.lock() = loop_state.executor.queue_load();
        wait
    }

    /// Waits for running jobs to end, requests them to stop, and releases the rest.
    async fn drain_running_jobs(
        &self,
        loop_state: &mut WorkerLoopState,
        ended: &mut mpsc::UnboundedReceiver<EndedAttempt>,
    ) {
        loop_state.is_stopping = true;
        let until = Instant::now() + self.state.options.drain_timeout;
        loop_state.executor.clear_ready(|_| true);
        for claimed_job in loop_state.claimed_jobs.values() {
            claimed_job.context.cancel();
        }
        loop {
            while let Ok(attempt) = ended.try_recv() {
                loop_state.ended_attempts.push(attempt);
            }
            if let Err(failure) = self.state.run_round(loop_state, SystemTime::now()).await {
                warn!(reason = %error_chain_text(&failure), "cannot store ended jobs");
            }
            let runs = loop_state
                .claimed_jobs
                .values()
                .any(|claimed_job| claimed_job.context.started_at().is_some());
            let left = until.saturating_duration_since(Instant::now());
            if !runs || left.is_zero() {
                break;
            }
            tokio::select! {
                Some(one) = ended.recv() => loop_state.ended_attempts.push(one),
                () = tokio::time::sleep(left.min(self.state.options.lease / 3)) => {}
            }
        }
        if let Err(failure) = self.state.shut_down(loop_state).await {
            warn!(reason = %error_chain_text(&failure), "cannot record that the worker stopped");
        }
        self.state.queue_load.lock().clear();
    }
}

/// Delay after a database failure.
const FAILURE_BACKOFF: Duration = Duration::from_millis(500);

impl JobWorkerState {
    /// Returns the handler of a topic.
    pub(crate) fn find_handler(&self, topic: &str) -> Option<Arc<dyn JobHandler>> {
        let handlers = self.handlers.read();
        let covering = handlers.iter().filter(|(pattern, _)| pattern.covers(topic));
        covering
            .max_by_key(|(pattern, _)| pattern.specificity())
            .map(|(_, handler)| handler.clone())
    }

    pub(crate) fn queue_set(&self) -> Arc<QueueSet> {
        self.queue_set.read().clone()
    }
}

impl WorkerLoopState {
    fn new(executor: Arc<JobExecutor>) -> Self {
        Self {
            executor,
            claimed_jobs: HashMap::new(),
            last_served: HashMap::new(),
            average_run_times: HashMap::new(),
            ended_attempts: Vec::new(),
            leases_renewed_at: None,
            running_checked_at: None,
            known_topics: Vec::new(),
            is_stopping: false,
            is_pruning: false,
            is_failing: false,
        }
    }
}

impl fmt::Debug for JobWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobWorker").field("options", &self.state.options).finish_non_exhaustive()
    }
}
