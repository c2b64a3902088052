//! What a job is: work to store, and stored work.

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

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Stored before what it is for is done; not claimed until it is released.
    Held,
    /// Waiting for its time: delayed, or between two attempts.
    Delayed,
    /// Waiting to be claimed.
    Queued,
    /// Claimed by a worker, until its lease ends.
    Active,
    /// Done, and kept because its queue keeps jobs.
    Succeeded,
    /// Cancelled while it ran.
    Stopped,
    /// Given up after its last attempt; kept until someone retries or cancels it.
    GivenUp,
    /// Failed in a way that trying again cannot mend; kept until someone retries or cancels it.
    Error,
}

impl JobState {
    /// All of them.
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

    /// Returns Sling's name of the state, where it has one.
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

    /// Finds a state by its name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(name))
    }

    /// Tells whether the job will run without anybody doing something.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Held | Self::Delayed | Self::Queued | Self::Active)
    }
}

/// Which of the waiting jobs of one tenant goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum JobPriority {
    /// When nothing else waits: bulk work.
    Low,
    /// By age.
    #[default]
    Normal,
    /// Before all others: somebody waits for it.
    High,
}

impl JobPriority {
    /// Returns the number that is stored; higher goes first.
    #[must_use]
    pub fn rank(self) -> i64 {
        match self {
            Self::Low => -1,
            Self::Normal => 0,
            Self::High => 1,
        }
    }

    /// Finds the priority of a stored number.
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
    /// What kind of work it is; see [`crate::check_topic`].
    pub topic: String,
    /// What the handler needs to know.
    pub properties: Value,
    /// A name for the work within its topic; while a job of this key waits or runs, adding another is the same one again.
    /// A running job may have read what it works on already, so name the state that is worked on, not only the place.
    pub key: Option<String>,
    /// Which of the waiting jobs goes first.
    pub priority: JobPriority,
    /// Whose work it is; tenants take turns.
    pub tenant: String,
    /// How long to wait before it may run.
    pub delay: Duration,
    /// The user who asked for it.
    pub user: String,
    /// The node that it is about, where others need to find it by that once it was given up.
    pub subject_path: Option<NodePath>,
}

impl NewJob {
    /// Describes work that may run at once.
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

    /// Names the work, so that it is not stored twice while it waits or runs.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Lets it go before or after others.
    #[must_use]
    pub fn with_priority(mut self, priority: JobPriority) -> Self {
        self.priority = priority;
        self
    }

    /// Tells whose work it is.
    #[must_use]
    pub fn with_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = tenant.into();
        self
    }

    /// Lets it wait.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Tells who asked for it.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = user.into();
        self
    }

    /// Lets it be found by the node that it is about ([`crate::JobQueues::find_given_up_about`]).
    #[must_use]
    pub fn with_subject_path(mut self, path: NodePath) -> Self {
        self.subject_path = Some(path);
        self
    }
}

/// How far a running job has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobProgress {
    /// Steps that are done.
    pub completed: u64,
    /// Steps there are; 0 if nobody knows.
    pub total: u64,
    /// What is being done.
    pub message: String,
}

/// Stored work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// What kind of work it is.
    pub topic: String,
    /// What the handler needs to know.
    pub properties: Value,
    /// The name of the work.
    pub key: Option<String>,
    /// Which of the waiting jobs goes first.
    pub priority: JobPriority,
    /// Whose work it is.
    pub tenant: String,
    /// Where it stands.
    pub state: JobState,
    /// How many times it was begun.
    pub attempt: u32,
    /// When it may be claimed next.
    pub run_at: SystemTime,
    /// When it was added.
    pub created_at: SystemTime,
    /// When its last attempt began.
    pub started_at: Option<SystemTime>,
    /// When it ended, if it has.
    pub ended_at: Option<SystemTime>,
    /// The user who asked for it.
    pub user: String,
    /// Who runs it.
    pub worker: Option<String>,
    /// How far it has come.
    pub progress: Option<JobProgress>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}
