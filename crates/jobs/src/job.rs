//! Jobs: work to store, and stored work.

pub(crate) mod job_subject;

use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tympan_content::NodePath;

/// The number of a job; later jobs have higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Stored before its prerequisite is done; not claimed until it is released.
    Held,
    /// Waiting for its run time: delayed, or between two attempts.
    Delayed,
    /// Waiting to be claimed.
    Queued,
    /// Claimed by a worker, until its lease ends.
    Active,
    /// Done, and retained because its queue retains jobs.
    Succeeded,
    /// Canceled while it ran.
    Stopped,
    /// Given up after its last attempt; retained until someone retries or cancels it.
    GivenUp,
    /// Failed in a way that a retry cannot fix; retained until someone retries or cancels it.
    Error,
}

impl JobState {
    /// All states.
    pub const ALL: [Self; 8] = [
        Self::Held,
        Self::Delayed,
        Self::Queued,
        Self::Active,
        Self::Succeeded,
        Self::Stopped,
        Self::GivenUp,
        Self::Error,
    ];

    /// Returns Sling's name of the state, if there is one.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Delayed => "DELAYED",
            Self::Queued => "QUEUED",
            Self::Active => "ACTIVE",
            Self::Succeeded => "SUCCEEDED",
            Self::Stopped => "STOPPED",
            Self::GivenUp => "GIVEN_UP",
            Self::Error => "ERROR",
        }
    }

    /// Returns the state with the given name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// Returns true if the job will run without intervention.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Held | Self::Delayed | Self::Queued | Self::Active)
    }
}

/// Priority among the waiting jobs of one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum JobPriority {
    /// Runs when nothing else waits: bulk work.
    Low,
    /// Runs by age.
    #[default]
    Normal,
    /// Runs before all others, because somebody waits for it.
    High,
}

impl JobPriority {
    /// Returns the number that is stored; a higher value runs first.
    #[must_use]
    pub fn rank(self) -> i64 {
        match self {
            Self::Low => -1,
            Self::Normal => 0,
            Self::High => 1,
        }
    }

    /// Returns the priority of a stored number.
    #[must_use]
    pub fn from_rank(rank: i64) -> Self {
        match rank {
            ..0 => Self::Low,
            0 => Self::Normal,
            1.. => Self::High,
        }
    }
}

/// Work to store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// The topic of the job; see [`crate::check_topic`].
    pub topic: String,
    /// The handler's input.
    pub properties: Value,
    /// A name for the work within its topic. While a job of this key waits or runs, adding another returns the existing
    /// one. A running job may have read its input already, so the key must name the state of the input, not only its
    /// path.
    pub key: Option<String>,
    /// Priority among the waiting jobs.
    pub priority: JobPriority,
    /// The tenant of the job; tenants take turns.
    pub tenant: String,
    /// Delay before the job may run.
    pub delay: Duration,
    /// The user who requested the job.
    pub user: String,
    /// The node that the job concerns, if others need to find the job by it after it was given up.
    pub subject_path: Option<NodePath>,
}

impl NewJob {
    /// Creates a job that may run at once.
    #[must_use]
    pub fn new(topic: impl Into<String>, properties: Value) -> Self {
        Self {
            topic: topic.into(),
            properties,
            key: None,
            priority: JobPriority::Normal,
            tenant: String::new(),
            delay: Duration::ZERO,
            user: "system".to_owned(),
            subject_path: None,
        }
    }

    /// Sets the key, so that the job is not stored twice while it waits or runs.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: JobPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Sets the delay.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets the user who requested it.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets the node by which the job can be found ([`crate::JobQueues::find_given_up_about`]).
    #[must_use]
    pub fn with_subject_path(mut self, path: NodePath) -> Self {
        self.subject_path = Some(path);
        self
    }
}

/// Progress of a running job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobProgress {
    /// Number of completed steps.
    pub completed: u64,
    /// Total number of steps; 0 if unknown.
    pub total: u64,
    /// Description of the current step.
    pub message: String,
}

/// Stored work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The job's number.
    pub id: JobId,
    /// The topic of the job.
    pub topic: String,
    /// The handler's input.
    pub properties: Value,
    /// The job's key.
    pub key: Option<String>,
    /// Priority among the waiting jobs.
    pub priority: JobPriority,
    /// The tenant of the job.
    pub tenant: String,
    /// The job's state.
    pub state: JobState,
    /// Number of attempts begun.
    pub attempt: u32,
    /// Time at which it may be claimed next.
    pub run_at: SystemTime,
    /// Time at which it was added.
    pub created_at: SystemTime,
    /// Start of the last attempt.
    pub started_at: Option<SystemTime>,
    /// Time at which it ended, if it has.
    pub ended_at: Option<SystemTime>,
    /// The user who requested the job.
    pub user: String,
    /// The worker that runs it.
    pub worker: Option<String>,
    /// The job's progress.
    pub progress: Option<JobProgress>,
    /// The reason why the last attempt failed.
    pub last_error: Option<String>,
}
