//! What carries out jobs: handlers, what they answer, and what they may ask for meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::job::Progress;
use crate::{Error, Job, JobId, NewJob, Queues, Result};

/// Carries out the jobs of some topics. It runs on a thread of its own, so that it may block.
///
/// A job runs at least once: a process that ends in the middle leaves it to be begun again, so that doing it twice must
/// come to the same as doing it once.
pub trait Handler: Send + Sync {
    /// Returns the topic, or `a/*` for those directly below `a`, or `a/**` for all below.
    fn topic(&self) -> &str;

    /// Carries out one job. A panic counts as [`Outcome::Failed`].
    fn run(&self, job: &Job, context: &JobContext) -> Outcome;
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
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
    /// It was stopped, because [`JobContext::cancelled`] said so.
    Cancelled,
}

/// What a running job may ask for. Clones belong to the same job.
#[derive(Clone)]
pub struct JobContext {
    inner: Arc<Running>,
}

pub(crate) struct Running {
    id: Option<(JobId, String)>,
    link: Option<(Queues, tokio::runtime::Handle)>,
    lease: Duration,
    is_cancelled: AtomicBool,
    is_lost: AtomicBool,
    held_until: Mutex<Option<Instant>>,
    progress: Mutex<(Progress, bool)>,
    began: Mutex<Option<SystemTime>>,
    is_last: bool,
}

impl JobContext {
    /// Makes the context of a claimed job.
    pub(crate) fn new(
        job: (JobId, &str),
        link: (Queues, tokio::runtime::Handle),
        lease: Duration,
        is_last: bool,
    ) -> Self {
        Self {
            inner: Arc::new(Running {
                id: Some((job.0, job.1.to_owned())),
                link: Some(link),
                lease,
                is_cancelled: AtomicBool::new(false),
                is_lost: AtomicBool::new(false),
                held_until: Mutex::new(Some(Instant::now() + lease)),
                progress: Mutex::default(),
                began: Mutex::default(),
                is_last,
            }),
        }
    }

    /// Makes a context without queues, for handlers that are called outside of a worker: nothing cancels it, and it adds
    /// no jobs.
    #[must_use]
    pub fn detached() -> Self {
        Self {
            inner: Arc::new(Running {
                id: None,
                link: None,
                lease: Duration::ZERO,
                is_cancelled: AtomicBool::new(false),
                is_lost: AtomicBool::new(false),
                held_until: Mutex::new(None),
                progress: Mutex::default(),
                began: Mutex::default(),
                is_last: false,
            }),
        }
    }

    /// Tells people how far the job has come. It is stored with the next lease at the latest, and costs nothing.
    pub fn progress(&self, done: u64, total: u64, message: &str) {
        *self.inner.progress.lock() = (Progress { done, total, message: message.to_owned() }, true);
    }

    /// Tells whether the job should stop: someone cancelled it, the process stops, or the lease could not be renewed, so
    /// that another worker may have it. A handler that takes long asks now and then, and answers
    /// [`Outcome::Cancelled`].
    #[must_use]
    pub fn cancelled(&self) -> bool {
        self.inner.is_cancelled.load(Ordering::Relaxed) || self.is_lost()
    }

    /// Makes sure that the job still belongs to this worker, and for how long it takes to renew at least. Leases are
    /// renewed without this; ask before doing what must not be done twice.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if it does not; the database's.
    pub fn renew(&self) -> Result<()> {
        let (Some((id, worker)), Some((queues, runtime))) = (&self.inner.id, &self.inner.link)
        else {
            return Ok(());
        };
        let began = Instant::now();
        let renewed =
            runtime.block_on(queues.renew(*id, worker, self.inner.lease, SystemTime::now()));
        match renewed {
            Ok(()) => self.hold_until(began + self.inner.lease),
            Err(Error::LeaseLost(_)) => self.lose(),
            Err(_) => {}
        }
        renewed
    }

    /// Stores another job; it waits for it to be durable.
    ///
    /// # Errors
    /// [`Error::Detached`] without queues; otherwise as [`Queues::add`].
    pub fn add(&self, job: NewJob) -> Result<JobId> {
        let (queues, runtime) = self.inner.link.as_ref().ok_or(Error::Detached)?;
        runtime.block_on(queues.add(job, SystemTime::now()))
    }

    /// Returns the async runtime of the worker.
    pub(crate) fn runtime(&self) -> Option<&tokio::runtime::Handle> {
        self.inner.link.as_ref().map(|(_, runtime)| runtime)
    }

    /// Tells whether [`Outcome::Retry`] would give the job up.
    #[must_use]
    pub fn is_last_attempt(&self) -> bool {
        self.inner.is_last
    }

    /// Notes that the job begins. Tells whether it may: whether its lease still holds.
    pub(crate) fn begin(&self, now: SystemTime) -> bool {
        let may_begin = !self.is_lost();
        if may_begin {
            *self.inner.began.lock() = Some(now);
        }
        may_begin
    }

    /// Returns when the job began, if it has.
    pub(crate) fn began(&self) -> Option<SystemTime> {
        *self.inner.began.lock()
    }

    /// Asks the job to stop.
    pub(crate) fn cancel(&self) {
        self.inner.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Notes that the job is held by someone else.
    pub(crate) fn lose(&self) {
        self.inner.is_lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.inner.is_lost.load(Ordering::Relaxed)
            || self.inner.held_until.lock().is_some_and(|until| Instant::now() >= until)
    }

    pub(crate) fn hold_until(&self, until: Instant) {
        *self.inner.held_until.lock() = Some(until);
    }

    /// Returns the progress, if it changed since the last call.
    pub(crate) fn take_progress(&self) -> Option<Progress> {
        let mut progress = self.inner.progress.lock();
        std::mem::take(&mut progress.1).then(|| progress.0.clone())
    }
}

impl fmt::Debug for JobContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobContext").field("job", &self.inner.id).finish_non_exhaustive()
    }
}
