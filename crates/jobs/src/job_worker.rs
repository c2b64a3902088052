//! The worker of a process: claims the jobs of topics that have handlers, and runs them as their queues say.
//!
//! In: handlers, configurations of queues. Out: outcomes, stored.
//!
//! One loop writes: each round is one transaction with all that ended, all that is claimed and, now and then, the leases
//! of all that runs, so that many short jobs share one sync.
//!
//! Invariants
//! * Not more jobs of a queue run at once than it allows, and not more in all than there are threads.
//! * What another process reserves for itself is left to it as long as it lives.
//! * A worker that stops gives back what it has not begun, and what does not end in time.
//!
//! On failure: what cannot be stored is kept and stored when the database is there again; the leases tell others when not
//! to wait any longer.
//!
//! Not here: in which order jobs are chosen (`choose`), and what a round does to the tables (`worker_round`).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::error::format_error_chain;
use crate::job_executor::{EndedAttempt, JobExecutor};
use crate::job_handler::JobContext;
use crate::queue_config::{QueueConfig, QueueSet};
use crate::topic::TopicPattern;
use crate::{JobHandler, JobId, JobQueues};

/// How a worker works.
#[derive(Debug, Clone)]
pub struct JobWorkerOptions {
    /// What the process is: `author`, `publish`, `assets`.
    pub role: String,
    /// A name that no other process has, now or later.
    pub name: String,
    /// Jobs that run at once at most, of all queues together.
    pub threads: usize,
    /// The processors of which queues take shares.
    pub cores: usize,
    /// How long others wait for this process before its jobs run again.
    pub lease: Duration,
    /// How often the queues are looked at if nobody in this process adds something.
    pub poll_interval: Duration,
    /// The topics that it takes, as patterns of queues; all if there are none.
    pub accepted_topics: Vec<TopicPattern>,
    /// Whether those are left to it by others as long as it lives.
    pub reserves_topics: bool,
    /// How long jobs that run may go on when the worker stops.
    pub drain_timeout: Duration,
    /// What has to be the same in all processes on the database, by names: such as which folder holds their blobs. See
    /// [`JobQueues::find_fact_mismatches`].
    pub shared_facts: BTreeMap<String, String>,
    /// The clock by which ended jobs are removed.
    pub removal_clock: RemovalClock,
}

/// The clock by which ended jobs are removed for their age: one that jumped ahead must not make all of them look old.
#[derive(Clone)]
pub struct RemovalClock(Arc<dyn Fn(SystemTime) -> SystemTime + Send + Sync>);

impl RemovalClock {
    /// Asks `trusted` for the time that is trusted, given what the clock says. It is called now and then where jobs are
    /// claimed, so it must not take long.
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
    /// Trusts what the clock says.
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
    /// Returns the usual ones; `name` is one that no other process has.
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
    /// Jobs by queue: those that run, and those that are claimed and wait for their turn.
    queue_load: Mutex<BTreeMap<String, (usize, usize)>>,
    /// Why queues cannot be worked off at the moment, if they cannot.
    claim_fault: Mutex<Option<String>>,
}

/// A job that was claimed.
pub(crate) struct ClaimedJob {
    pub(crate) topic: String,
    pub(crate) attempt: u32,
    pub(crate) run_at: SystemTime,
    pub(crate) context: JobContext,
    pub(crate) queue: String,
    /// Whether its attempt is counted in the table.
    pub(crate) is_attempt_counted: bool,
    /// Whether someone asked for it to stop.
    pub(crate) is_stop_requested: bool,
}

/// What the loop of a worker knows.
pub(crate) struct WorkerLoopState {
    pub(crate) executor: Arc<JobExecutor>,
    pub(crate) claimed_jobs: HashMap<JobId, ClaimedJob>,
    /// Who was served last, by queue.
    pub(crate) last_served: HashMap<String, String>,
    /// How long a job of a queue takes, roughly.
    pub(crate) average_run_times: HashMap<String, Duration>,
    /// What ended and is not stored yet.
    pub(crate) ended_attempts: Vec<EndedAttempt>,
    /// When leases were renewed.
    pub(crate) leases_renewed_at: Option<Instant>,
    /// When jobs were asked for that someone stopped, and progress was stored.
    pub(crate) running_checked_at: Option<Instant>,
    /// Topics of the table, for ordered queues.
    pub(crate) known_topics: Vec<String>,
    pub(crate) is_stopping: bool,
    /// Whether more jobs that ended long ago wait to be removed.
    pub(crate) is_pruning: bool,
    is_failing: bool,
}

impl JobWorker {
    /// Makes a worker without handlers, with the queues that come with the program.
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

    /// Lets a handler have the jobs of its topic. Of several whose patterns cover a topic, the closest gets it.
    pub fn register_handler(&self, handler: Arc<dyn JobHandler>) {
        let pattern = TopicPattern::parse_handler_pattern(handler.topic());
        self.state.handlers.write().push((pattern, handler));
        self.state.queues.notify_workers();
    }

    /// Replaces the configurations of queues. What is claimed already is carried out as before.
    pub fn set_queue_configs(&self, queues: Vec<QueueConfig>) {
        *self.state.queue_set.write() = Arc::new(QueueSet::new(queues));
        self.state.queues.notify_workers();
    }

    /// Returns the queues as they are configured now.
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

    /// Returns the topics that have a handler here, as patterns.
    #[must_use]
    pub fn handled_topics(&self) -> Vec<String> {
        self.state.handlers.read().iter().map(|(pattern, _)| pattern.text().to_owned()).collect()
    }

    /// Tells whether some handler here takes a topic.
    #[must_use]
    pub fn has_handler_for(&self, topic: &str) -> bool {
        self.state.find_handler(topic).is_some()
    }

    /// Returns for each queue that has any how many jobs run in this process, and how many are claimed and wait.
    #[must_use]
    pub fn queue_load(&self) -> BTreeMap<String, (usize, usize)> {
        self.state.queue_load.lock().clone()
    }

    /// Returns why queues cannot be worked off at the moment; nothing if they can.
    #[must_use]
    pub fn claim_fault(&self) -> Option<String> {
        self.state.claim_fault.lock().clone()
    }

    /// Works until `stop` turns true, then lets running jobs end.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let (sender, mut ended) = mpsc::unbounded_channel();
        let mut desk = WorkerLoopState::new(JobExecutor::new(self.state.options.threads, sender));
        while !*stop.borrow() {
            let wait = self.run_worker_round(&mut desk, &mut ended).await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.state.queues.wait_for_work() => {}
                Some(one) = ended.recv() => desk.ended_attempts.push(one),
                _ = stop.changed() => {}
            }
        }
        self.drain_running_jobs(&mut desk, &mut ended).await;
    }

    /// Stores what ended and begins what may run. Returns how long to wait for the next round.
    async fn run_worker_round(
        &self,
        desk: &mut WorkerLoopState,
        ended: &mut mpsc::UnboundedReceiver<EndedAttempt>,
    ) -> Duration {
        while let Ok(one) = ended.try_recv() {
            desk.ended_attempts.push(one);
        }
        let wait = match self.state.run_round(desk, SystemTime::now()).await {
            Ok(wait) => {
                if std::mem::take(&mut desk.is_failing) {
                    info!("queues can be worked off again");
                    *self.state.claim_fault.lock() = None;
                }
                wait
            }
            Err(failure) => {
                let reason = format_error_chain(&failure);
                if !std::mem::replace(&mut desk.is_failing, true) {
                    error!(reason, "queues cannot be worked off");
                }
                *self.state.claim_fault.lock() = Some(reason);
                // What ended meanwhile is kept, and stored with the next round that succeeds.
                tokio::time::sleep(FAILURE_BACKOFF).await;
                Duration::ZERO
            }
        };
        desk.executor.start_ready();
        *self.state.queue_load.lock() = desk.executor.queue_load();
        wait
    }

    /// Lets running jobs end, tells those that ask to stop, and gives back the rest.
    async fn drain_running_jobs(
        &self,
        desk: &mut WorkerLoopState,
        ended: &mut mpsc::UnboundedReceiver<EndedAttempt>,
    ) {
        desk.is_stopping = true;
        let until = Instant::now() + self.state.options.drain_timeout;
        desk.executor.clear_ready(|_| true);
        for held in desk.claimed_jobs.values() {
            held.context.cancel();
        }
        loop {
            while let Ok(one) = ended.try_recv() {
                desk.ended_attempts.push(one);
            }
            if let Err(failure) = self.state.run_round(desk, SystemTime::now()).await {
                warn!(reason = %format_error_chain(&failure), "what ended cannot be stored");
            }
            let runs = desk.claimed_jobs.values().any(|held| held.context.started_at().is_some());
            let left = until.saturating_duration_since(Instant::now());
            if !runs || left.is_zero() {
                break;
            }
            tokio::select! {
                Some(one) = ended.recv() => desk.ended_attempts.push(one),
                () = tokio::time::sleep(left.min(self.state.options.lease / 3)) => {}
            }
        }
        if let Err(failure) = self.state.shut_down(desk).await {
            warn!(reason = %format_error_chain(&failure), "the worker could not say that it ends");
        }
        self.state.queue_load.lock().clear();
    }
}

/// How long a worker waits for a database that fails.
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
    fn new(floor: Arc<JobExecutor>) -> Self {
        Self {
            executor: floor,
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
