//! Stores jobs in the state database: singly, in batches, held, or with the root of a follower.
//!
//! Times are arguments; this module does not read the clock. Queries contain `$1`, which both SQLite and PostgreSQL
//! accept.
//!
//! Invariants
//! * When a function that stores jobs returns, they are on disk.
//! * Jobs that are added at the same time share one transaction and so one sync.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::Value;
use sqlx::any::AnyArguments;
use sqlx::{AnyPool, Row};
use tokio::sync::{Notify, oneshot};
use tympan_content::NodePath;

use crate::queue::sql::{
    DatabaseWrites, SqlDialect, WriteCutSide, WriteTransaction, database_error, duration_to_millis,
    to_epoch_millis,
};
use crate::queue::topic::check_topic;
use crate::workflow::{StepRegistry, WorkflowModelRoots};
use crate::{Error, JobId, JobState, NewJob, Result};

/// Time after which a held job is released, because its holder failed to release it.
const HELD_JOB_TIMEOUT: Duration = Duration::from_mins(10);
/// Maximum size of a job's properties, in bytes: a queue does not store content.
pub const MAX_JOB_PROPERTIES_BYTES: usize = 1 << 20;
/// Jobs per statement: enough for the cost to be that of the rows, few enough for every limit on parameters.
const ROWS_PER_STATEMENT: usize = 100;
/// Maximum number of jobs in one transaction of several callers.
const MAX_GROUP_JOBS: usize = 4096;

/// The queues of one state database. Clones share it.
#[derive(Debug, Clone)]
pub struct JobQueues {
    pub(crate) pool: AnyPool,
    pub(crate) dialect: SqlDialect,
    shared: Arc<JobQueuesShared>,
}

#[derive(Debug, Default)]
struct JobQueuesShared {
    /// Jobs that callers wait to have stored.
    pending_jobs: Mutex<Vec<PendingJob>>,
    /// Held while pending jobs are stored.
    group_write_lock: tokio::sync::Mutex<()>,
    /// Held during writes, if the database allows only one writer.
    write_lock: Arc<tokio::sync::Mutex<()>>,
    /// Topics that the table of topics already contains.
    stored_topics: Mutex<HashSet<String>>,
    /// Notified when a job may be claimable.
    job_available: Notify,
    /// Counter of writes.
    writes: Arc<DatabaseWrites>,
    /// The steps that workflows may name here; empty if no worker executes them.
    step_registry: Mutex<Weak<StepRegistry>>,
    /// Locations of workflow models.
    model_roots: Mutex<Arc<WorkflowModelRoots>>,
}

#[derive(Debug)]
struct PendingJob {
    job: NewJob,
    now: SystemTime,
    reply: oneshot::Sender<Result<JobId, String>>,
}

impl JobQueues {
    /// Creates queues on a database that has this crate's tables ([`crate::JOB_MIGRATIONS`]).
    #[must_use]
    pub fn new(pool: AnyPool) -> Self {
        let dialect = SqlDialect::of_pool(&pool);
        Self { pool, dialect, shared: Arc::default() }
    }

    /// Returns the pool of the state database, for tables of other crates that are read beside the queues. Several
    /// statements that write together need [`Self::begin_write`].
    #[must_use]
    pub fn database_pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Begins a writing transaction on the state database, also for tables of other crates. `action` names the attempt
    /// in errors, as a verb and its object.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn begin_write(&self, action: &'static str) -> Result<WriteTransaction> {
        let turn = match self.dialect {
            SqlDialect::Sqlite => Some(Arc::clone(&self.shared.write_lock).lock_owned().await),
            SqlDialect::Postgres => None,
        };
        self.shared.writes.check_cut_off().map_err(database_error(action))?;
        let inner = self
            .pool
            .begin_with(self.dialect.begin_write_sql())
            .await
            .map_err(database_error(action))?;
        Ok(WriteTransaction::new(inner, self.shared.writes.clone(), turn))
    }

    /// Executes one writing statement. Returns the number of changed rows.
    pub(crate) async fn execute_write(
        &self,
        action: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, AnyArguments>,
    ) -> Result<u64> {
        let done = self.shared.writes.perform_write(query.execute(&self.pool)).await;
        Ok(done.map_err(database_error(action))?.rows_affected())
    }

    /// Returns the number of transactions and single statements that have written so far. Each is one sync of the
    /// database, so their ratio to the number of jobs is the cost of a job.
    #[must_use]
    pub fn write_count(&self) -> u64 {
        self.shared.writes.write_count()
    }

    /// Cuts all clones of these queues off from their database at the given write from now on, as a kill would. For
    /// tests.
    #[doc(hidden)]
    pub fn cut_off_writes(&self, at: u64, side: WriteCutSide) {
        self.shared.writes.cut_off_at(at, side);
    }

    /// Returns true if the queues were cut off. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.shared.writes.is_cut_off()
    }

    /// Sets the steps that workflows may name; others must not be started.
    pub(crate) fn set_step_registry(&self, steps: &Arc<StepRegistry>) {
        *self.shared.step_registry.lock() = Arc::downgrade(steps);
    }

    /// Sets the locations of workflow models.
    pub(crate) fn set_model_roots(&self, roots: WorkflowModelRoots) {
        *self.shared.model_roots.lock() = Arc::new(roots);
    }

    /// Returns the locations of workflow models.
    pub(crate) fn model_roots(&self) -> Arc<WorkflowModelRoots> {
        Arc::clone(&self.shared.model_roots.lock())
    }

    /// Returns the steps that workflows may name here.
    pub(crate) fn step_registry(&self) -> Option<Arc<StepRegistry>> {
        self.shared.step_registry.lock().upgrade()
    }

    /// Notifies workers of this process that jobs may be claimable.
    pub fn wake_job_workers(&self) {
        self.shared.job_available.notify_one();
    }

    /// Waits until a job may be claimable.
    pub(crate) async fn wait_for_work(&self) {
        self.shared.job_available.notified().await;
    }

    /// Stores a job durably and returns its number; if a job with its key exists, returns that job's number. Concurrent
    /// calls share one sync.
    ///
    /// # Errors
    /// [`Error::InvalidTopic`] and [`Error::TooLarge`] for jobs that cannot be stored; errors of the database.
    pub async fn add_job(&self, job: NewJob, now: SystemTime) -> Result<JobId> {
        check_new_job(&job)?;
        let (reply_sender, mut answered) = oneshot::channel();
        self.shared.pending_jobs.lock().push(PendingJob { job, now, reply: reply_sender });
        let turn = self.shared.group_write_lock.lock().await;
        // A caller whose job was stored with an earlier group returns at once. If it wrote the few jobs that arrived
        // since, each group would be as small as one job.
        if let Ok(reply) = answered.try_recv() {
            return reply.map_err(Error::GroupFailed);
        }
        let group: Vec<PendingJob> = {
            let mut pending = self.shared.pending_jobs.lock();
            let count = pending.len().min(MAX_GROUP_JOBS);
            pending.drain(..count).collect()
        };
        if group.is_empty() {
            drop(turn);
        } else {
            let queues = self.clone();
            // The task continues if its caller is dropped, because it stores the jobs of other callers too.
            let written = tokio::spawn(async move { queues.store_group(group).await }).await;
            drop(turn);
            written.map_err(|error| Error::GroupFailed(error.to_string()))?;
        }
        answered
            .await
            .map_err(|error| Error::GroupFailed(error.to_string()))?
            .map_err(Error::GroupFailed)
    }

    /// Stores the jobs of several callers, and notifies each.
    async fn store_group(&self, group: Vec<PendingJob>) {
        let mut waiting = Vec::with_capacity(group.len());
        let mut jobs = Vec::with_capacity(group.len());
        for PendingJob { job, now, reply: reply_sender } in group {
            jobs.push((job, now));
            waiting.push(reply_sender);
        }
        let stored = self.store_jobs(&jobs).await;
        self.wake_job_workers();
        match stored {
            Ok(ids) => {
                for (reply_sender, id) in waiting.into_iter().zip(ids) {
                    // The caller may have been dropped.
                    reply_sender.send(Ok(id)).ok();
                }
            }
            Err(error) => {
                let reason = std::error::Error::source(&error)
                    .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
                for reply_sender in waiting {
                    reply_sender.send(Err(reason.clone())).ok();
                }
            }
        }
    }

    /// Stores jobs in one transaction, all or none. Returns their numbers.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn add_jobs(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let ids = self.store_jobs(&jobs).await?;
        self.wake_job_workers();
        Ok(ids)
    }

    async fn store_jobs(&self, jobs: &[(NewJob, SystemTime)]) -> Result<Vec<JobId>> {
        let action = "add a job";
        let mut transaction = self.begin_write(action).await?;
        let ids = self.insert_jobs(&mut transaction, jobs, None).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.remember_topics(jobs);
        Ok(ids)
    }

    /// Replaces the properties of a job that is not running. Returns true if there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn replace_properties(&self, id: JobId, properties: &Value) -> Result<bool> {
        let query = sqlx::query(
            "UPDATE job SET payload = $1 WHERE id = $2 AND state NOT IN ('ACTIVE', 'HELD')",
        );
        let query = query.bind(properties.to_string()).bind(id.0);
        Ok(self.execute_write("change a job's properties", query).await? > 0)
    }

    /// Inserts jobs inside a transaction. Without a given state, the state of each depends on its delay.
    pub(crate) async fn insert_jobs(
        &self,
        transaction: &mut WriteTransaction,
        jobs: &[(NewJob, SystemTime)],
        state: Option<JobState>,
    ) -> Result<Vec<JobId>> {
        self.insert_topics(transaction, jobs).await?;
        let mut ids = Vec::with_capacity(jobs.len());
        // A job with a key may exist already; the others are inserted in batches, in order.
        for run in jobs.chunk_by(|left, right| left.0.key.is_none() && right.0.key.is_none()) {
            for rows in run.chunks(ROWS_PER_STATEMENT) {
                ids.extend(insert_job_rows(transaction, rows, state).await?);
            }
        }
        Ok(ids)
    }

    async fn insert_topics(
        &self,
        transaction: &mut WriteTransaction,
        jobs: &[(NewJob, SystemTime)],
    ) -> Result<()> {
        let new: HashSet<(&str, i64)> = {
            let stored_topics = self.shared.stored_topics.lock();
            let unseen = jobs.iter().filter(|(job, _)| !stored_topics.contains(&job.topic));
            unseen.map(|(job, now)| (job.topic.as_str(), to_epoch_millis(*now))).collect()
        };
        let mut new: Vec<_> = new.into_iter().collect();
        // The fixed order prevents deadlocks between two writers.
        new.sort_unstable();
        for (topic, now) in new {
            sqlx::query("INSERT INTO job_topic (topic, first_seen) VALUES ($1, $2) ON CONFLICT (topic) DO NOTHING")
                .bind(topic)
                .bind(now)
                .execute(&mut **transaction)
                .await
                .map_err(database_error("record a topic"))?;
        }
        Ok(())
    }

    /// Records topics as stored, after the transaction has committed.
    pub(crate) fn remember_topics(&self, jobs: &[(NewJob, SystemTime)]) {
        let mut stored_topics = self.shared.stored_topics.lock();
        // The set is cleared occasionally, because it only saves a statement.
        if stored_topics.len() > 10_000 {
            stored_topics.clear();
        }
        for (job, _) in jobs {
            if !stored_topics.contains(&job.topic) {
                stored_topics.insert(job.topic.clone());
            }
        }
    }
}

pub(crate) fn check_new_job(job: &NewJob) -> Result<()> {
    check_topic(&job.topic)?;
    // An estimate that avoids serialization: large properties consist mostly of texts.
    let bytes = job.properties.to_string().len();
    if bytes > MAX_JOB_PROPERTIES_BYTES {
        return Err(Error::TooLarge {
            topic: job.topic.clone(),
            bytes,
            max: MAX_JOB_PROPERTIES_BYTES,
        });
    }
    Ok(())
}

/// Returns the lane of a topic and a tenant.
pub(crate) fn lane_key(topic: &str, tenant: &str) -> String {
    format!("{topic}\n{tenant}")
}

const INSERT_COLUMNS: &str = "topic, tenant, lane, payload, job_key, priority, state, run_at, lease_until, created, created_by, \
                       about, attempt";
/// Number of bound columns.
const BOUND_COLUMN_COUNT: usize = 12;

async fn insert_job_rows(
    transaction: &mut WriteTransaction,
    rows: &[(NewJob, SystemTime)],
    state: Option<JobState>,
) -> Result<Vec<JobId>> {
    let action = "add a job";
    let values: Vec<String> = (0..rows.len())
        .map(|row| {
            let placeholders: Vec<String> = (1..=BOUND_COLUMN_COUNT)
                .map(|column| format!("${}", row * BOUND_COLUMN_COUNT + column))
                .collect();
            format!("({}, 0)", placeholders.join(", "))
        })
        .collect();
    let text = format!(
        "INSERT INTO job ({INSERT_COLUMNS}) VALUES {} ON CONFLICT (topic, job_key) WHERE job_key IS NOT NULL DO NOTHING RETURNING id",
        values.join(", ")
    );
    let mut query = sqlx::query(sqlx::AssertSqlSafe(text))
        .persistent(rows.len() == 1 || rows.len() == ROWS_PER_STATEMENT);
    for (job, now) in rows {
        let state =
            state.unwrap_or(if job.delay.is_zero() { JobState::Queued } else { JobState::Delayed });
        let held_until = (state == JobState::Held)
            .then(|| to_epoch_millis(*now) + duration_to_millis(HELD_JOB_TIMEOUT));
        query = query
            .bind(job.topic.as_str())
            .bind(job.tenant.as_str())
            .bind(lane_key(&job.topic, &job.tenant))
            .bind(job.properties.to_string())
            .bind(job.key.as_deref())
            .bind(job.priority.rank())
            .bind(state.name())
            .bind(to_epoch_millis(*now).saturating_add(duration_to_millis(job.delay)))
            .bind(held_until)
            .bind(to_epoch_millis(*now))
            .bind(job.user.as_str())
            .bind(job.subject_path.as_ref().map(NodePath::as_str));
    }
    let inserted = query.fetch_all(&mut **transaction).await.map_err(database_error(action))?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in &inserted {
        ids.push(JobId(row.try_get(0).map_err(database_error(action))?));
    }
    if let (true, [(job, _)]) = (ids.is_empty(), rows) {
        let row = sqlx::query("SELECT id FROM job WHERE topic = $1 AND job_key = $2")
            .bind(job.topic.as_str())
            .bind(job.key.as_deref())
            .fetch_one(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        ids.push(JobId(row.try_get(0).map_err(database_error(action))?));
    }
    // Numbers grow in the order of the rows, whatever the order in which they are returned.
    ids.sort_unstable();
    Ok(ids)
}
