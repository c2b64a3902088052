//! Storing jobs in the state database: one by one, many at once, held, or with the root of a follower.
//!
//! Times are arguments; nothing here reads the clock. Query texts hold `$1` so that SQLite and PostgreSQL take the same.
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

use crate::sql::{
    DatabaseWrites, SqlDialect, WriteCutSide, WriteTransaction, database_error, duration_to_millis,
    to_epoch_millis,
};
use crate::topic::check_topic;
use crate::workflow::{StepRegistry, WorkflowModelRoots};
use crate::{Error, JobId, JobState, NewJob, Result};

/// A job that is held for longer is released: whoever held it failed to say so.
const HELD_JOB_TIMEOUT: Duration = Duration::from_mins(10);
/// The most bytes of a job's properties: a queue is no place for content.
pub const MAX_JOB_PROPERTIES_BYTES: usize = 1 << 20;
/// Jobs of one statement: enough to make its cost that of the rows, few enough for every limit on parameters.
const ROWS_PER_STATEMENT: usize = 100;
/// Jobs of one transaction of many callers.
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
    /// What callers wait to have stored.
    pending_jobs: Mutex<Vec<PendingJob>>,
    /// Held by whoever stores what is pending.
    group_write_lock: tokio::sync::Mutex<()>,
    /// Held by whoever writes, where only one can.
    write_lock: Arc<tokio::sync::Mutex<()>>,
    /// Topics that the table of topics holds already.
    stored_topics: Mutex<HashSet<String>>,
    /// Rings when something may be claimed.
    job_available: Notify,
    /// What is written, counted.
    writes: Arc<DatabaseWrites>,
    /// What steps of workflows may name here; nothing where no worker carries them out.
    step_registry: Mutex<Weak<StepRegistry>>,
    /// Where models of workflows are.
    model_roots: Mutex<Arc<WorkflowModelRoots>>,
}

#[derive(Debug)]
struct PendingJob {
    job: NewJob,
    now: SystemTime,
    reply: oneshot::Sender<Result<JobId, String>>,
}

impl JobQueues {
    /// Uses a database that has this room's tables ([`crate::JOB_MIGRATIONS`]).
    #[must_use]
    pub fn new(pool: AnyPool) -> Self {
        let dialect = SqlDialect::of_pool(&pool);
        Self { pool, dialect, shared: Arc::default() }
    }

    pub(crate) async fn begin_write(&self, action: &'static str) -> Result<WriteTransaction> {
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

    /// Carries out one statement that writes; returns how many rows it changed.
    pub(crate) async fn execute_write(
        &self,
        action: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, AnyArguments>,
    ) -> Result<u64> {
        let done = self.shared.writes.perform_write(query.execute(&self.pool)).await;
        Ok(done.map_err(database_error(action))?.rows_affected())
    }

    /// Returns how many transactions and single statements have written so far. Each is one sync of the database, so
    /// that their ratio to the jobs tells what a job costs.
    #[must_use]
    pub fn write_count(&self) -> u64 {
        self.shared.writes.write_count()
    }

    /// Cuts all clones of these queues off from their database at a write from now on, as a kill would. For tests.
    #[doc(hidden)]
    pub fn cut_off_writes(&self, at: u64, side: WriteCutSide) {
        self.shared.writes.cut_off_at(at, side);
    }

    /// Tells whether they were cut off. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.shared.writes.is_cut_off()
    }

    /// Notes what steps of workflows may name, as others must not be started.
    pub(crate) fn set_step_registry(&self, steps: &Arc<StepRegistry>) {
        *self.shared.step_registry.lock() = Arc::downgrade(steps);
    }

    /// Notes where models of workflows are.
    pub(crate) fn set_model_roots(&self, roots: WorkflowModelRoots) {
        *self.shared.model_roots.lock() = Arc::new(roots);
    }

    /// Returns where models of workflows are.
    pub(crate) fn model_roots(&self) -> Arc<WorkflowModelRoots> {
        Arc::clone(&self.shared.model_roots.lock())
    }

    /// Returns what steps of workflows may name here.
    pub(crate) fn step_registry(&self) -> Option<Arc<StepRegistry>> {
        self.shared.step_registry.lock().upgrade()
    }

    /// Tells workers of this process that there may be something to do.
    pub fn notify_workers(&self) {
        self.shared.job_available.notify_one();
    }

    /// Waits until something may be claimed.
    pub(crate) async fn wait_for_work(&self) {
        self.shared.job_available.notified().await;
    }

    /// Stores a job durably and returns its number; the number of the present one if its key is there already. Calls at
    /// the same time share one sync.
    ///
    /// # Errors
    /// [`Error::InvalidTopic`] and [`Error::TooLarge`] for what cannot be stored; the database's.
    pub async fn add_job(&self, job: NewJob, now: SystemTime) -> Result<JobId> {
        check_new_job(&job)?;
        let (answer, mut answered) = oneshot::channel();
        self.shared.pending_jobs.lock().push(PendingJob { job, now, reply: answer });
        let turn = self.shared.group_write_lock.lock().await;
        // Whoever was stored with an earlier caller's group leaves at once: to write the few that came since would make
        // each group as small as one job.
        if let Ok(answer) = answered.try_recv() {
            return answer.map_err(Error::GroupFailed);
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
            // A caller that goes away in the middle takes nobody's jobs with it.
            let written = tokio::spawn(async move { queues.store_group(group).await }).await;
            drop(turn);
            written.map_err(|error| Error::GroupFailed(error.to_string()))?;
        }
        answered
            .await
            .map_err(|error| Error::GroupFailed(error.to_string()))?
            .map_err(Error::GroupFailed)
    }

    /// Stores what several callers wait for, and answers each.
    async fn store_group(&self, group: Vec<PendingJob>) {
        let mut waiting = Vec::with_capacity(group.len());
        let mut jobs = Vec::with_capacity(group.len());
        for PendingJob { job, now, reply: answer } in group {
            jobs.push((job, now));
            waiting.push(answer);
        }
        let stored = self.store_jobs(&jobs).await;
        self.notify_workers();
        match stored {
            Ok(ids) => {
                for (answer, id) in waiting.into_iter().zip(ids) {
                    // The caller may have gone.
                    answer.send(Ok(id)).ok();
                }
            }
            Err(error) => {
                let reason = std::error::Error::source(&error)
                    .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
                for answer in waiting {
                    answer.send(Err(reason.clone())).ok();
                }
            }
        }
    }

    /// Stores jobs in one transaction, all or none, and returns their numbers.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn add_jobs(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let ids = self.store_jobs(&jobs).await?;
        self.notify_workers();
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

    /// Stores jobs that wait for [`JobQueues::release_held`], all or none: the work that they announce comes between. An ordered
    /// queue waits for them. After a crash [`JobQueues::release_all_claims`] releases them as they are.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn add_held_jobs(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        let action = "hold jobs";
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let mut transaction = self.begin_write(action).await?;
        let ids = self.insert_jobs(&mut transaction, &jobs, Some(JobState::Held)).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.remember_topics(&jobs);
        Ok(ids)
    }

    /// Lets held jobs be claimed, with the properties that are known by now, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release_held(&self, jobs: &[(JobId, Value)], now: SystemTime) -> Result<()> {
        let action = "release held jobs";
        let mut transaction = self.begin_write(action).await?;
        for (id, properties) in jobs {
            sqlx::query(
                "UPDATE job SET state = 'QUEUED', payload = $1, run_at = $2, lease_until = NULL \
                 WHERE id = $3 AND state = 'HELD'",
            )
            .bind(properties.to_string())
            .bind(to_epoch_millis(now))
            .bind(id.0)
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        self.notify_workers();
        Ok(())
    }

    /// Gives a job that does not run other properties. Tells whether there was one.
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

    /// Removes held jobs whose work did not come about.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn discard_held(&self, jobs: &[JobId]) -> Result<()> {
        for id in jobs {
            let query = sqlx::query("DELETE FROM job WHERE id = $1 AND state = 'HELD'").bind(id.0);
            self.execute_write("discard held jobs", query).await?;
        }
        Ok(())
    }

    /// Returns the root that a follower has digested, if it has begun.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn follower_root(&self, follower: &str) -> Result<Option<String>> {
        let action = "read a follower's root";
        let row = sqlx::query("SELECT root FROM follower WHERE name = $1")
            .bind(follower)
            .fetch_optional(&self.pool)
            .await
            .map_err(database_error(action))?;
        row.map(|row| row.try_get(0)).transpose().map_err(database_error(action))
    }

    /// Returns the roots that followers have digested: they will compare the next state with these.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn follower_roots(&self) -> Result<Vec<String>> {
        let action = "read the followers' roots";
        let rows = sqlx::query("SELECT root FROM follower").fetch_all(&self.pool).await;
        let rows = rows.map_err(database_error(action))?;
        rows.iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()
            .map_err(database_error(action))
    }

    /// Gives the place of one follower to several that follow in its stead, and forgets it, all or none. Those that have a
    /// place keep it. Tells whether there was one to give.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn split_follower(&self, follower: &str, into: &[String]) -> Result<bool> {
        let action = "divide a follower's place";
        let mut transaction = self.begin_write(action).await?;
        let row = sqlx::query("DELETE FROM follower WHERE name = $1 RETURNING root")
            .bind(follower)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(false) };
        let root: String = row.try_get(0).map_err(database_error(action))?;
        for name in into {
            sqlx::query(
                "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            )
            .bind(&root)
            .bind(name)
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        Ok(true)
    }

    /// Forgets the place of a follower that is gone: the state where it stood need not be kept for it any more.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove_follower(&self, follower: &str) -> Result<()> {
        let query = sqlx::query("DELETE FROM follower WHERE name = $1").bind(follower);
        self.execute_write("forget a follower", query).await.map(drop)
    }

    /// Moves a follower from one root to the next and stores the jobs that follow from the difference, all or none.
    /// Tells whether it was still at the first root; otherwise nothing is stored.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn advance_follower(
        &self,
        follower: &str,
        (from, to): (Option<&str>, &str),
        jobs: Vec<NewJob>,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "move a follower";
        let mut transaction = self.begin_write(action).await?;
        let moved = match from {
            Some(from) => {
                sqlx::query("UPDATE follower SET root = $1 WHERE name = $2 AND root = $3")
                    .bind(to)
                    .bind(follower)
                    .bind(from)
            }
            None => sqlx::query(
                "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            )
            .bind(to)
            .bind(follower),
        };
        let moved = moved.execute(&mut *transaction).await.map_err(database_error(action))?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        self.insert_jobs(&mut transaction, &jobs, None).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.remember_topics(&jobs);
        self.notify_workers();
        Ok(true)
    }

    /// Inserts jobs inside a transaction; without a state each gets that of its delay.
    pub(crate) async fn insert_jobs(
        &self,
        transaction: &mut WriteTransaction,
        jobs: &[(NewJob, SystemTime)],
        state: Option<JobState>,
    ) -> Result<Vec<JobId>> {
        self.insert_topics(transaction, jobs).await?;
        let mut ids = Vec::with_capacity(jobs.len());
        // Those with a key may be there already; the others go in many at a time, in their order.
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
            let seen = self.shared.stored_topics.lock();
            let unseen = jobs.iter().filter(|(job, _)| !seen.contains(&job.topic));
            unseen.map(|(job, now)| (job.topic.as_str(), to_epoch_millis(*now))).collect()
        };
        let mut new: Vec<_> = new.into_iter().collect();
        // Always in one order, so that two writers never wait for each other in a circle.
        new.sort_unstable();
        for (topic, now) in new {
            sqlx::query("INSERT INTO job_topic (topic, first_seen) VALUES ($1, $2) ON CONFLICT (topic) DO NOTHING")
                .bind(topic)
                .bind(now)
                .execute(&mut **transaction)
                .await
                .map_err(database_error("note a topic"))?;
        }
        Ok(())
    }

    /// Remembers that topics are stored, once the transaction is.
    fn remember_topics(&self, jobs: &[(NewJob, SystemTime)]) {
        let mut seen = self.shared.stored_topics.lock();
        // Forgotten now and then: it only saves a statement.
        if seen.len() > 10_000 {
            seen.clear();
        }
        for (job, _) in jobs {
            if !seen.contains(&job.topic) {
                seen.insert(job.topic.clone());
            }
        }
    }
}

fn check_new_job(job: &NewJob) -> Result<()> {
    check_topic(&job.topic)?;
    // An estimate without writing it out: texts make up what is large.
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
/// Those that are bound.
const BOUND_COLUMN_COUNT: usize = 12;

async fn insert_job_rows(
    transaction: &mut WriteTransaction,
    rows: &[(NewJob, SystemTime)],
    state: Option<JobState>,
) -> Result<Vec<JobId>> {
    let action = "add a job";
    let values: Vec<String> = (0..rows.len())
        .map(|row| {
            let places: Vec<String> = (1..=BOUND_COLUMN_COUNT)
                .map(|place| format!("${}", row * BOUND_COLUMN_COUNT + place))
                .collect();
            format!("({}, 0)", places.join(", "))
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
    // Numbers grow in the order of the rows, whatever the order in which they come back.
    ids.sort_unstable();
    Ok(ids)
}
