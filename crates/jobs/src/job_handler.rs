//! What carries out jobs: handlers, what they answer, and what they may ask for meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::job::JobProgress;
use crate::{Error, Job, JobId, JobQueues, NewJob, Result};

/// Carries out the jobs of some topics. It runs on a thread of its own, so that it may block.
///
/// A job runs at least once: a process that ends in the middle leaves it to be begun again, so that doing it twice must
/// come to the same as doing it once.
pub trait JobHandler: Send + Sync {
    /// Returns the topic, or `a/*` for those directly below `a`, or `a/**` for all below.
    fn topic(&self) -> &str;

    /// Carries out one job. A panic counts as [`JobOutcome::Failed`].
    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome;
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOutcome {
    /// The work is done.
    Done,
    /// Try again: after a while, or after the queue's delay. The queue limits how many times.
    Retry {
        /// How long to wait; the queue's delay if nothing.
        after: Option<Duration>,
        /// Why.
        reason: String,
    },
    /// Look again after a while: the work goes well and is not done, as with what another system does. Such looks are not
    /// counted as attempts.
    Wait {
        /// How long to wait.
        after: Duration,
    },
    /// Trying again cannot help.
    Failed {
        /// Why.
        reason: String,
    },
    /// It was stopped, because [`JobContext::is_cancelled`] said so.
    Cancelled,
}

/// What a running job may ask for. Clones belong to the same job.
#[derive(Clone)]
pub struct JobContext {
    running_job: Arc<RunningJob>,
}

pub(crate) struct RunningJob {
    claim: Option<(JobId, String)>,
    queue_access: Option<(JobQueues, tokio::runtime::Handle)>,
    lease: Duration,
    is_cancelled: AtomicBool,
    is_lease_lost: AtomicBool,
    lease_deadline: Mutex<Option<Instant>>,
    progress: Mutex<(JobProgress, bool)>,
    started_at: Mutex<Option<SystemTime>>,
    is_last_attempt: bool,
}

impl JobContext {
    /// Makes the context of a claimed job.
    pub(crate) fn new(
        job: (JobId, &str),
        link: (JobQueues, tokio::runtime::Handle),
        lease: Duration,
        is_last: bool,
    ) -> Self {
        Self {
            running_job: Arc::new(RunningJob {
                claim: Some((job.0, job.1.to_owned())),
                queue_access: Some(link),
                lease,
                is_cancelled: AtomicBool::new(false),
                is_lease_lost: AtomicBool::new(false),
                lease_deadline: Mutex::new(Some(Instant::now() + lease)),
                progress: Mutex::default(),
                started_at: Mutex::default(),
                is_last_attempt: is_last,
            }),
        }
    }

    /// Makes a context without queues, for handlers that are called outside of a worker: nothing cancels it, and it adds
    /// no jobs.
    #[must_use]
    pub fn detached() -> Self {
        Self {
            running_job: Arc::new(RunningJob {
                claim: None,
                queue_access: None,
                lease: Duration::ZERO,
                is_cancelled: AtomicBool::new(false),
                is_lease_lost: AtomicBool::new(false),
                lease_deadline: Mutex::new(None),
                progress: Mutex::default(),
                started_at: Mutex::default(),
                is_last_attempt: false,
            }),
        }
    }

    /// Tells people how far the job has come. It is stored with the next lease at the latest, and costs nothing.
    pub fn report_progress(&self, done: u64, total: u64, message: &str) {
        *self.running_job.progress.lock() =
            (JobProgress { completed: done, total, message: message.to_owned() }, true);
    }

    /// Tells whether the job should stop: someone cancelled it, the process stops, or the lease could not be renewed, so
    /// that another worker may have it. A handler that takes long asks now and then, and answers
    /// [`JobOutcome::Cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.running_job.is_cancelled.load(Ordering::Relaxed) || self.is_lease_lost()
    }

    /// Makes sure that the job still belongs to this worker, and for how long it takes to renew at least. Leases are
    /// renewed without this; ask before doing what must not be done twice.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it does not; the database's.
    pub fn renew_lease(&self) -> Result<()> {
        let (Some((id, worker)), Some((queues, runtime))) =
            (&self.running_job.claim, &self.running_job.queue_access)
        else {
            return Ok(());
        };
        let began = Instant::now();
        let renewed = runtime.block_on(queues.renew_lease(
            *id,
            worker,
            self.running_job.lease,
            SystemTime::now(),
        ));
        match renewed {
            Ok(()) => self.set_lease_deadline(began + self.running_job.lease),
            Err(Error::LeaseLost(_)) => self.mark_lease_lost(),
            Err(_) => {}
        }
        renewed
    }

    /// Stores another job; it waits for it to be durable.
    ///
    /// # Errors
    /// [`Error::DetachedContext`] without queues; otherwise as [`JobQueues::add_job`].
    pub fn add_job(&self, job: NewJob) -> Result<JobId> {
        let (queues, runtime) =
            self.running_job.queue_access.as_ref().ok_or(Error::DetachedContext)?;
        runtime.block_on(queues.add_job(job, SystemTime::now()))
    }

    /// Returns the async runtime of the worker.
    pub(crate) fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.running_job.queue_access.as_ref().map(|(_, runtime)| runtime)
    }

    /// Tells whether [`JobOutcome::Retry`] would give the job up.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.running_job.is_last_attempt
    }

    /// Notes that the job begins. Tells whether it may: whether its lease still holds.
    pub(crate) fn mark_started(&self, now: SystemTime) -> bool {
        let may_begin = !self.is_lease_lost();
        if may_begin {
            *self.running_job.started_at.lock() = Some(now);
        }
        may_begin
    }

    /// Returns when the job began, if it has.
    pub(crate) fn started_at(&self) -> Option<SystemTime> {
        *self.running_job.started_at.lock()
    }

    /// Asks the job to stop.
    pub(crate) fn cancel(&self) {
        self.running_job.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Notes that the job is held by someone else.
    pub(crate) fn mark_lease_lost(&self) {
        self.running_job.is_lease_lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_lease_lost(&self) -> bool {
        self.running_job.is_lease_lost.load(Ordering::Relaxed)
            || self.running_job.lease_deadline.lock().is_some_and(|until| Instant::now() >= until)
    }

    pub(crate) fn set_lease_deadline(&self, until: Instant) {
        *self.running_job.lease_deadline.lock() = Some(until);
    }

    /// Returns the progress, if it changed since the last call.
    pub(crate) fn take_changed_progress(&self) -> Option<JobProgress> {
        let mut progress = self.running_job.progress.lock();
        std::mem::take(&mut progress.1).then(|| progress.0.clone())
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("job", &self.running_job.claim).finish_non_exhaustive()
    }
}
