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

use crate::sql::{CutSide, Dialect, Transaction, Writes, database, millis, span_millis};
use crate::topic::check_topic;
use crate::workflow::{ModelRoots, Steps};
use crate::{Error, JobId, JobState, NewJob, Result};

/// A job that is held for longer is released: whoever held it failed to say so.
const HOLD: Duration = Duration::from_mins(10);
/// The most bytes of a job's properties: a queue is no place for content.
pub const MAX_PROPERTIES_BYTES: usize = 1 << 20;
/// Jobs of one statement: enough to make its cost that of the rows, few enough for every limit on parameters.
const ROWS: usize = 100;
/// Jobs of one transaction of many callers.
const GROUP: usize = 4096;

/// The queues of one state database. Clones share it.
#[derive(Debug, Clone)]
pub struct Queues {
    pub(crate) pool: AnyPool,
    pub(crate) dialect: Dialect,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What callers wait to have stored.
    pending: Mutex<Vec<Pending>>,
    /// Held by whoever stores what is pending.
    writing: tokio::sync::Mutex<()>,
    /// Held by whoever writes, where only one can.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Topics that the table of topics holds already.
    seen: Mutex<HashSet<String>>,
    /// Rings when something may be claimed.
    bell: Notify,
    /// What is written, counted.
    writes: Arc<Writes>,
    /// What steps of workflows may name here; nothing where no worker carries them out.
    steps: Mutex<Weak<Steps>>,
    /// Where models of workflows are.
    model_roots: Mutex<Arc<ModelRoots>>,
}

#[derive(Debug)]
struct Pending {
    job: NewJob,
    now: SystemTime,
    answer: oneshot::Sender<Result<JobId, String>>,
}

impl Queues {
    /// Uses a database that has this room's tables ([`crate::MIGRATIONS`]).
    #[must_use]
    pub fn new(pool: AnyPool) -> Self {
        let dialect = Dialect::of(&pool);
        Self { pool, dialect, shared: Arc::default() }
    }

    pub(crate) async fn begin(&self, action: &'static str) -> Result<Transaction> {
        let turn = match self.dialect {
            Dialect::Sqlite => Some(Arc::clone(&self.shared.turn).lock_owned().await),
            Dialect::Postgres => None,
        };
        self.shared.writes.check().map_err(database(action))?;
        let inner = self.pool.begin_with(self.dialect.begin()).await.map_err(database(action))?;
        Ok(Transaction::new(inner, self.shared.writes.clone(), turn))
    }

    /// Carries out one statement that writes; returns how many rows it changed.
    pub(crate) async fn execute(
        &self,
        action: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, AnyArguments>,
    ) -> Result<u64> {
        let done = self.shared.writes.one(query.execute(&self.pool)).await;
        Ok(done.map_err(database(action))?.rows_affected())
    }

    /// Returns how many transactions and single statements have written so far. Each is one sync of the database, so
    /// that their ratio to the jobs tells what a job costs.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.shared.writes.count()
    }

    /// Cuts all clones of these queues off from their database at a write from now on, as a kill would. For tests.
    #[doc(hidden)]
    pub fn cut_off(&self, at: u64, side: CutSide) {
        self.shared.writes.cut(at, side);
    }

    /// Tells whether they were cut off. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.shared.writes.is_cut()
    }

    /// Notes what steps of workflows may name, as others must not be started.
    pub(crate) fn know_steps(&self, steps: &Arc<Steps>) {
        *self.shared.steps.lock() = Arc::downgrade(steps);
    }

    /// Notes where models of workflows are.
    pub(crate) fn know_model_roots(&self, roots: ModelRoots) {
        *self.shared.model_roots.lock() = Arc::new(roots);
    }

    /// Returns where models of workflows are.
    pub(crate) fn model_roots(&self) -> Arc<ModelRoots> {
        Arc::clone(&self.shared.model_roots.lock())
    }

    /// Returns what steps of workflows may name here.
    pub(crate) fn known_steps(&self) -> Option<Arc<Steps>> {
        self.shared.steps.lock().upgrade()
    }

    /// Tells workers of this process that there may be something to do.
    pub fn ring(&self) {
        self.shared.bell.notify_one();
    }

    /// Waits until something may be claimed.
    pub(crate) async fn rung(&self) {
        self.shared.bell.notified().await;
    }

    /// Stores a job durably and returns its number; the number of the present one if its key is there already. Calls at
    /// the same time share one sync.
    ///
    /// # Errors
    /// [`Error::Topic`] and [`Error::TooLarge`] for what cannot be stored; the database's.
    pub async fn add(&self, job: NewJob, now: SystemTime) -> Result<JobId> {
        check(&job)?;
        let (answer, mut answered) = oneshot::channel();
        self.shared.pending.lock().push(Pending { job, now, answer });
        let turn = self.shared.writing.lock().await;
        // Whoever was stored with an earlier caller's group leaves at once: to write the few that came since would make
        // each group as small as one job.
        if let Ok(answer) = answered.try_recv() {
            return answer.map_err(Error::Group);
        }
        let group: Vec<Pending> = {
            let mut pending = self.shared.pending.lock();
            let count = pending.len().min(GROUP);
            pending.drain(..count).collect()
        };
        if group.is_empty() {
            drop(turn);
        } else {
            let queues = self.clone();
            // A caller that goes away in the middle takes nobody's jobs with it.
            let written = tokio::spawn(async move { queues.add_group(group).await }).await;
            drop(turn);
            written.map_err(|error| Error::Group(error.to_string()))?;
        }
        answered.await.map_err(|error| Error::Group(error.to_string()))?.map_err(Error::Group)
    }

    /// Stores what several callers wait for, and answers each.
    async fn add_group(&self, group: Vec<Pending>) {
        let mut waiting = Vec::with_capacity(group.len());
        let mut jobs = Vec::with_capacity(group.len());
        for Pending { job, now, answer } in group {
            jobs.push((job, now));
            waiting.push(answer);
        }
        let stored = self.store(&jobs).await;
        self.ring();
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
    /// As [`Queues::add`].
    pub async fn add_all(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        for job in &jobs {
            check(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let ids = self.store(&jobs).await?;
        self.ring();
        Ok(ids)
    }

    async fn store(&self, jobs: &[(NewJob, SystemTime)]) -> Result<Vec<JobId>> {
        let action = "add a job";
        let mut transaction = self.begin(action).await?;
        let ids = self.insert(&mut transaction, jobs, None).await?;
        transaction.commit().await.map_err(database(action))?;
        self.note_seen(jobs);
        Ok(ids)
    }

    /// Stores jobs that wait for [`Queues::release`], all or none: the work that they announce comes between. An ordered
    /// queue waits for them. After a crash [`Queues::release_all`] releases them as they are.
    ///
    /// # Errors
    /// As [`Queues::add`].
    pub async fn add_held(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        let action = "hold jobs";
        for job in &jobs {
            check(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let mut transaction = self.begin(action).await?;
        let ids = self.insert(&mut transaction, &jobs, Some(JobState::Held)).await?;
        transaction.commit().await.map_err(database(action))?;
        self.note_seen(&jobs);
        Ok(ids)
    }

    /// Lets held jobs be claimed, with the properties that are known by now, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release(&self, jobs: &[(JobId, Value)], now: SystemTime) -> Result<()> {
        let action = "release held jobs";
        let mut transaction = self.begin(action).await?;
        for (id, properties) in jobs {
            sqlx::query(
                "UPDATE job SET state = 'QUEUED', payload = $1, run_at = $2, lease_until = NULL \
                 WHERE id = $3 AND state = 'HELD'",
            )
            .bind(properties.to_string())
            .bind(millis(now))
            .bind(id.0)
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        }
        transaction.commit().await.map_err(database(action))?;
        self.ring();
        Ok(())
    }

    /// Gives a job that does not run other properties. Tells whether there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn amend(&self, id: JobId, properties: &Value) -> Result<bool> {
        let query = sqlx::query(
            "UPDATE job SET payload = $1 WHERE id = $2 AND state NOT IN ('ACTIVE', 'HELD')",
        );
        let query = query.bind(properties.to_string()).bind(id.0);
        Ok(self.execute("change a job's properties", query).await? > 0)
    }

    /// Removes held jobs whose work did not come about.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn discard(&self, jobs: &[JobId]) -> Result<()> {
        for id in jobs {
            let query = sqlx::query("DELETE FROM job WHERE id = $1 AND state = 'HELD'").bind(id.0);
            self.execute("discard held jobs", query).await?;
        }
        Ok(())
    }

    /// Returns the root that a follower has digested, if it has begun.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn digested(&self, follower: &str) -> Result<Option<String>> {
        let action = "read a follower's root";
        let row = sqlx::query("SELECT root FROM follower WHERE name = $1")
            .bind(follower)
            .fetch_optional(&self.pool)
            .await
            .map_err(database(action))?;
        row.map(|row| row.try_get(0)).transpose().map_err(database(action))
    }

    /// Returns the roots that followers have digested: they will compare the next state with these.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn all_digested(&self) -> Result<Vec<String>> {
        let action = "read the followers' roots";
        let rows = sqlx::query("SELECT root FROM follower").fetch_all(&self.pool).await;
        let rows = rows.map_err(database(action))?;
        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(database(action))
    }

    /// Gives the place of one follower to several that follow in its stead, and forgets it, all or none. Those that have a
    /// place keep it. Tells whether there was one to give.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn divide(&self, follower: &str, into: &[String]) -> Result<bool> {
        let action = "divide a follower's place";
        let mut transaction = self.begin(action).await?;
        let row = sqlx::query("DELETE FROM follower WHERE name = $1 RETURNING root")
            .bind(follower)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(database(action))?;
        let Some(row) = row else { return Ok(false) };
        let root: String = row.try_get(0).map_err(database(action))?;
        for name in into {
            sqlx::query(
                "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            )
            .bind(&root)
            .bind(name)
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        }
        transaction.commit().await.map_err(database(action))?;
        Ok(true)
    }

    /// Forgets the place of a follower that is gone: the state where it stood need not be kept for it any more.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn forget_follower(&self, follower: &str) -> Result<()> {
        let query = sqlx::query("DELETE FROM follower WHERE name = $1").bind(follower);
        self.execute("forget a follower", query).await.map(drop)
    }

    /// Moves a follower from one root to the next and stores the jobs that follow from the difference, all or none.
    /// Tells whether it was still at the first root; otherwise nothing is stored.
    ///
    /// # Errors
    /// As [`Queues::add`].
    pub async fn digest(
        &self,
        follower: &str,
        (from, to): (Option<&str>, &str),
        jobs: Vec<NewJob>,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "move a follower";
        let mut transaction = self.begin(action).await?;
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
        let moved = moved.execute(&mut *transaction).await.map_err(database(action))?;
        if moved.rows_affected() == 0 {
            return Ok(false);
        }
        for job in &jobs {
            check(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        self.insert(&mut transaction, &jobs, None).await?;
        transaction.commit().await.map_err(database(action))?;
        self.note_seen(&jobs);
        self.ring();
        Ok(true)
    }

    /// Inserts jobs inside a transaction; without a state each gets that of its delay.
    pub(crate) async fn insert(
        &self,
        transaction: &mut Transaction,
        jobs: &[(NewJob, SystemTime)],
        state: Option<JobState>,
    ) -> Result<Vec<JobId>> {
        self.insert_topics(transaction, jobs).await?;
        let mut ids = Vec::with_capacity(jobs.len());
        // Those with a key may be there already; the others go in many at a time, in their order.
        for run in jobs.chunk_by(|left, right| left.0.key.is_none() && right.0.key.is_none()) {
            for rows in run.chunks(ROWS) {
                ids.extend(insert_rows(transaction, rows, state).await?);
            }
        }
        Ok(ids)
    }

    async fn insert_topics(
        &self,
        transaction: &mut Transaction,
        jobs: &[(NewJob, SystemTime)],
    ) -> Result<()> {
        let new: HashSet<(&str, i64)> = {
            let seen = self.shared.seen.lock();
            let unseen = jobs.iter().filter(|(job, _)| !seen.contains(&job.topic));
            unseen.map(|(job, now)| (job.topic.as_str(), millis(*now))).collect()
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
                .map_err(database("note a topic"))?;
        }
        Ok(())
    }

    /// Remembers that topics are stored, once the transaction is.
    fn note_seen(&self, jobs: &[(NewJob, SystemTime)]) {
        let mut seen = self.shared.seen.lock();
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

fn check(job: &NewJob) -> Result<()> {
    check_topic(&job.topic)?;
    // An estimate without writing it out: texts make up what is large.
    let bytes = job.properties.to_string().len();
    if bytes > MAX_PROPERTIES_BYTES {
        return Err(Error::TooLarge { topic: job.topic.clone(), bytes, max: MAX_PROPERTIES_BYTES });
    }
    Ok(())
}

/// Returns the lane of a topic and a tenant.
pub(crate) fn lane_of(topic: &str, tenant: &str) -> String {
    format!("{topic}\n{tenant}")
}

const COLUMNS: &str = "topic, tenant, lane, payload, job_key, priority, state, run_at, lease_until, created, created_by, \
                       about, attempt";
/// Those that are bound.
const BOUND: usize = 12;

async fn insert_rows(
    transaction: &mut Transaction,
    rows: &[(NewJob, SystemTime)],
    state: Option<JobState>,
) -> Result<Vec<JobId>> {
    let action = "add a job";
    let values: Vec<String> = (0..rows.len())
        .map(|row| {
            let places: Vec<String> =
                (1..=BOUND).map(|place| format!("${}", row * BOUND + place)).collect();
            format!("({}, 0)", places.join(", "))
        })
        .collect();
    let text = format!(
        "INSERT INTO job ({COLUMNS}) VALUES {} ON CONFLICT (topic, job_key) WHERE job_key IS NOT NULL DO NOTHING RETURNING id",
        values.join(", ")
    );
    let mut query =
        sqlx::query(sqlx::AssertSqlSafe(text)).persistent(rows.len() == 1 || rows.len() == ROWS);
    for (job, now) in rows {
        let state =
            state.unwrap_or(if job.delay.is_zero() { JobState::Queued } else { JobState::Delayed });
        let held_until = (state == JobState::Held).then(|| millis(*now) + span_millis(HOLD));
        query = query
            .bind(job.topic.as_str())
            .bind(job.tenant.as_str())
            .bind(lane_of(&job.topic, &job.tenant))
            .bind(job.properties.to_string())
            .bind(job.key.as_deref())
            .bind(job.priority.rank())
            .bind(state.name())
            .bind(millis(*now).saturating_add(span_millis(job.delay)))
            .bind(held_until)
            .bind(millis(*now))
            .bind(job.user.as_str())
            .bind(job.about.as_ref().map(NodePath::as_str));
    }
    let inserted = query.fetch_all(&mut **transaction).await.map_err(database(action))?;
    let mut ids = Vec::with_capacity(rows.len());
    for row in &inserted {
        ids.push(JobId(row.try_get(0).map_err(database(action))?));
    }
    if let (true, [(job, _)]) = (ids.is_empty(), rows) {
        let row = sqlx::query("SELECT id FROM job WHERE topic = $1 AND job_key = $2")
            .bind(job.topic.as_str())
            .bind(job.key.as_deref())
            .fetch_one(&mut **transaction)
            .await
            .map_err(database(action))?;
        ids.push(JobId(row.try_get(0).map_err(database(action))?));
    }
    // Numbers grow in the order of the rows, whatever the order in which they come back.
    ids.sort_unstable();
    Ok(ids)
}
