//! What can go wrong with stored work.

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The state database failed.
    #[error("cannot {action} in the state database")]
    Database {
        /// What was tried, as a verb and its object.
        action: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
    /// A stored payload is not JSON.
    #[error("the payload of job {id} is not JSON")]
    Payload {
        /// The job.
        id: i64,
        /// The cause.
        source: serde_json::Error,
    },
    /// The job belongs to somebody else by now: its lease ended, or it was cancelled.
    #[error("job {0} is not held by this worker any more")]
    LeaseLost(i64),
}
