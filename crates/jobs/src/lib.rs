//! Stored work: queues whose jobs survive a crash.
//!
//! In: jobs with a topic and a JSON payload. Out: the same jobs, one claim at a time, until they are done.
//!
//! Invariants
//! * A job that was added is done at least once; a worker that dies gives its job back when the lease ends.
//! * A job with a key that is waiting or running already is not added again.
//! * In an ordered queue a job waits until every older one has ended.
//!
//! Not here: what a job does. Handlers live with those who registered the topic.

mod error;
mod queue;

pub use error::{Error, Result};
pub use queue::{Claim, Job, JobId, JobState, NewJob, Order, Queues};

/// The steps that bring a state database to this room's newest tables; `store::state` runs each once.
pub const MIGRATIONS: &[&str] = &[
    "CREATE TABLE job (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        queue TEXT NOT NULL,
        topic TEXT NOT NULL,
        payload TEXT NOT NULL,
        job_key TEXT,
        state TEXT NOT NULL,
        attempt BIGINT NOT NULL,
        run_at BIGINT NOT NULL,
        lease_until BIGINT,
        worker TEXT,
        created BIGINT NOT NULL,
        created_by TEXT NOT NULL,
        last_error TEXT
    )",
    "CREATE INDEX job_by_queue ON job (queue, id)",
    "CREATE UNIQUE INDEX job_by_key ON job (queue, job_key)",
    "CREATE TABLE follower (name TEXT PRIMARY KEY, root TEXT NOT NULL)",
];
