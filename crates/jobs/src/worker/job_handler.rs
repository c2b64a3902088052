//! Job handlers, their outcomes, and the context of a running job.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::job::JobProgress;
use crate::{Error, Job, JobId, JobQueues, NewJob, Result};

/// Carries out the jobs of some topics. It runs on a thread of its own, so it may block.
///
/// A job runs at least once: if a process ends during a job, the job is begun again. Running it twice must have the
/// same effect as running it once.
pub trait JobHandler: Send + Sync {
    /// Returns the topic, or `a/*` for those directly below `a`, or `a/**` for all below.
    fn topic(&self) -> &str;

    /// Carries out one job. A panic counts as [`JobOutcome::Failed`].
    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome;
}

/// The outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOutcome {
    /// The work is done.
    Done,
    /// The job is retried after a delay. The queue limits the number of attempts.
    Retry {
        /// The delay; `None` means the queue's delay.
        after: Option<Duration>,
        /// The reason.
        reason: String,
    },
    /// The job continues after a delay: the work is in progress, for example in another system. Such checks are not
    /// counted as attempts.
    Wait {
        /// The delay.
        after: Duration,
    },
    /// A retry cannot help.
    Failed {
        /// The reason.
        reason: String,
    },
    /// The job stopped, because [`JobContext::is_cancelled`] returned true.
    Cancelled,
}

/// The context of a running job. Clones belong to the same job.
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
    /// Creates the context of a claimed job.
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

    /// Creates a context without queues, for handlers that are called outside a worker. Nothing cancels it, and it
    /// cannot add jobs.
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

    /// Reports the job's progress. It is stored with the next lease renewal at the latest, so that a call is cheap.
    pub fn report_progress(&self, done: u64, total: u64, message: &str) {
        *self.running_job.progress.lock() =
            (JobProgress { completed: done, total, message: message.to_owned() }, true);
    }

    /// Returns true if the job should stop: it was canceled, the process stops, or the lease could not be renewed, so
    /// that another worker may have the job. A long-running handler checks this regularly, and returns
    /// [`JobOutcome::Cancelled`].
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.running_job.is_cancelled.load(Ordering::Relaxed) || self.is_lease_lost()
    }

    /// Ensures that the job still belongs to this worker, and renews the lease. Leases are renewed automatically; call
    /// this before an action that must not be done twice.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the job belongs to another worker; errors of the database.
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

    /// Stores another job, and waits until it is durable.
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

    /// Returns true if [`JobOutcome::Retry`] would give the job up.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.running_job.is_last_attempt
    }

    /// Marks the job as started. Returns false if its lease no longer holds, in which case it must not run.
    pub(crate) fn mark_started(&self, now: SystemTime) -> bool {
        let may_begin = !self.is_lease_lost();
        if may_begin {
            *self.running_job.started_at.lock() = Some(now);
        }
        may_begin
    }

    /// Returns the start time of the job, if it has started.
    pub(crate) fn started_at(&self) -> Option<SystemTime> {
        *self.running_job.started_at.lock()
    }

    /// Requests the job to stop.
    pub(crate) fn cancel(&self) {
        self.running_job.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Records that another worker holds the job.
    pub(crate) fn mark_lease_lost(&self) {
        self.running_job.is_lease_lost.store(true, Ordering::Relaxed);
    }

    fn is_lease_lost(&self) -> bool {
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
