//! Errors of stored jobs.

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state database failed.
    #[error("cannot {action} in the state database")]
    Database {
        /// The attempted action, as a verb and its object.
        action: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// A stored payload is not JSON.
    #[error("the properties of job {id} are not JSON")]
    Payload {
        /// The job.
        id: i64,
        /// The cause.
        source: serde_json::Error,
    },
    /// Another worker holds the job: the lease expired, or the job was canceled.
    #[error("job {0} is no longer held by this worker")]
    LeaseLost(i64),
    /// An invalid topic name.
    #[error(
        "`{0}` is not a valid topic; write parts of letters, digits, `_`, `-` and `.`, joined by `/`"
    )]
    InvalidTopic(String),
    /// A job's properties exceed the limit.
    #[error(
        "the properties of a job of `{topic}` have {bytes} bytes; at most {max} are stored: store the rest in \
         content"
    )]
    TooLarge {
        /// The topic.
        topic: String,
        /// Size of the properties, in bytes.
        bytes: usize,
        /// Maximum size, in bytes.
        max: usize,
    },
    /// The context does not belong to a worker.
    #[error("this job runs outside of a worker, so it cannot add another job")]
    DetachedContext,
    /// Another job of the same stored group failed.
    #[error("the jobs of this group were not stored: {0}")]
    GroupFailed(String),
    /// An invalid schedule.
    #[error("the schedule `{name}` is invalid: {reason}")]
    InvalidSchedule {
        /// The schedule's name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A workflow cannot perform the requested action.
    #[error("{0}")]
    Workflow(String),
    /// A blob could not be read.
    #[error(transparent)]
    Blob(#[from] tympan_blobs::Error),
    /// Content could not be read or changed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
}

impl Error {
    /// Returns true if a retry can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database { source, .. } => matches!(
                source,
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Database(_)
            ),
            Self::GroupFailed(_) => true,
            Self::Content(error) => error.is_transient(),
            Self::Payload { .. }
            | Self::LeaseLost(_)
            | Self::InvalidTopic(_)
            | Self::TooLarge { .. }
            | Self::InvalidSchedule { .. }
            | Self::Workflow(_)
            | Self::Blob(_)
            | Self::DetachedContext => false,
        }
    }
}
