//! Queues in the state database: add, claim with a lease, finish or fail, look on.
//!
//! Times are arguments; nothing here reads the clock. Query texts hold `$1` so that SQLite and PostgreSQL take the same.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};

use crate::{Error, Result};

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
    /// Waiting to be claimed.
    Queued,
    /// Claimed by a worker, until its lease ends.
    Active,
    /// Given up after its last attempt; kept until someone retries or cancels it.
    GivenUp,
}

impl JobState {
    /// Returns Sling's name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Queued => "QUEUED",
            Self::Active => "ACTIVE",
            Self::GivenUp => "GIVEN_UP",
        }
    }
}

/// Work to store.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob<'a> {
    /// The queue it waits in.
    pub queue: &'a str,
    /// What kind of work it is.
    pub topic: &'a str,
    /// What the handler needs to know.
    pub payload: &'a Value,
    /// A name for the work; while a job of this key waits or runs, adding another is the same one again.
    pub key: Option<&'a str>,
    /// The user who asked for it.
    pub user: &'a str,
}

/// Stored work.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// The queue it waits in.
    pub queue: String,
    /// What kind of work it is.
    pub topic: String,
    /// What the handler needs to know.
    pub payload: Value,
    /// Where it stands.
    pub state: JobState,
    /// How many times it was claimed.
    pub attempt: u32,
    /// When it may be claimed next.
    pub run_at: SystemTime,
    /// When it was added.
    pub created: SystemTime,
    /// The user who asked for it.
    pub user: String,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// Whether jobs may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Strictly by age: a job that waits for its next attempt holds up all behind it.
    Strict,
    /// Any job whose time has come.
    Loose,
}

/// A worker's wish for the next job of a queue.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    /// The queue.
    pub queue: &'a str,
    /// Whether jobs may overtake each other.
    pub order: Order,
    /// Who claims; the same name must finish the job.
    pub worker: &'a str,
    /// How long the claim holds.
    pub lease: Duration,
}

/// A job that is held for longer is released: whoever held it failed to say so.
const HOLD_MILLIS: i64 = 10 * 60 * 1000;

/// The queues of one state database. Clones share it.
#[derive(Debug, Clone)]
pub struct Queues {
    pool: AnyPool,
}

impl Queues {
    /// Uses a database that has this room's tables ([`crate::MIGRATIONS`]).
    #[must_use]
    pub fn new(pool: AnyPool) -> Self {
        Self { pool }
    }

    /// Stores a job durably and returns its number; the number of the present one if its key is there already.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn add(&self, job: NewJob<'_>, now: SystemTime) -> Result<JobId> {
        let action = "add a job";
        let inserted = sqlx::query(
            "INSERT INTO job (queue, topic, payload, job_key, state, attempt, run_at, created, created_by) \
             VALUES ($1, $2, $3, $4, 'QUEUED', 0, $5, $5, $6) ON CONFLICT (queue, job_key) DO NOTHING RETURNING id",
        )
        .bind(job.queue)
        .bind(job.topic)
        .bind(job.payload.to_string())
        .bind(job.key)
        .bind(millis(now))
        .bind(job.user)
        .fetch_optional(&self.pool)
        .await
        .map_err(database(action))?;
        let row = match inserted {
            Some(row) => row,
            None => sqlx::query("SELECT id FROM job WHERE queue = $1 AND job_key = $2")
                .bind(job.queue)
                .bind(job.key)
                .fetch_one(&self.pool)
                .await
                .map_err(database(action))?,
        };
        Ok(JobId(row.try_get(0).map_err(database(action))?))
    }

    /// Stores jobs that wait for [`Queues::release`], all or none: the work that they announce comes between. A strict
    /// queue waits for them. After a crash [`Queues::release_all`] releases them as they are.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn add_held(&self, jobs: &[NewJob<'_>], now: SystemTime) -> Result<Vec<JobId>> {
        let action = "hold jobs";
        let mut transaction = self.pool.begin().await.map_err(database(action))?;
        let mut ids = Vec::with_capacity(jobs.len());
        for job in jobs {
            ids.push(insert(&mut transaction, job, JobState::Held, now).await?);
        }
        transaction.commit().await.map_err(database(action))?;
        Ok(ids)
    }

    /// Lets held jobs be claimed, with the payload that is known by now, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release(&self, jobs: &[(JobId, Value)], now: SystemTime) -> Result<()> {
        let action = "release held jobs";
        let mut transaction = self.pool.begin().await.map_err(database(action))?;
        for (id, payload) in jobs {
            sqlx::query("UPDATE job SET state = 'QUEUED', payload = $1, run_at = $2 WHERE id = $3 AND state = 'HELD'")
                .bind(payload.to_string())
                .bind(millis(now))
                .bind(id.0)
                .execute(&mut *transaction)
                .await
                .map_err(database(action))?;
        }
        transaction.commit().await.map_err(database(action))
    }

    /// Removes held jobs whose work did not come about.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn discard(&self, jobs: &[JobId]) -> Result<()> {
        for id in jobs {
            sqlx::query("DELETE FROM job WHERE id = $1 AND state = 'HELD'")
                .bind(id.0)
                .execute(&self.pool)
                .await
                .map_err(database("discard held jobs"))?;
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

    /// Moves a follower from one root to the next and stores the jobs that follow from the difference, all or none.
    /// Tells whether it was still at the first root; otherwise nothing is stored.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn digest(
        &self,
        follower: &str,
        (from, to): (Option<&str>, &str),
        jobs: &[NewJob<'_>],
        now: SystemTime,
    ) -> Result<bool> {
        let action = "move a follower";
        let mut transaction = self.pool.begin().await.map_err(database(action))?;
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
        for job in jobs {
            insert(&mut transaction, job, JobState::Queued, now).await?;
        }
        transaction.commit().await.map_err(database(action))?;
        Ok(true)
    }

    /// Claims the next job whose time has come; nothing if there is none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn claim(&self, claim: Claim<'_>, now: SystemTime) -> Result<Option<Job>> {
        // In a strict queue only the oldest job that has not been given up is looked at.
        let candidate = match claim.order {
            Order::Strict => {
                "SELECT id FROM job WHERE queue = $3 AND state <> 'GIVEN_UP' ORDER BY id LIMIT 1"
            }
            Order::Loose => {
                "SELECT id FROM job WHERE queue = $3 AND run_at <= $4 AND \
                 (state = 'QUEUED' OR (state = 'ACTIVE' AND lease_until <= $4)) ORDER BY run_at, id LIMIT 1"
            }
        };
        let text = format!(
            "UPDATE job SET state = 'ACTIVE', attempt = attempt + 1, worker = $1, lease_until = $2 \
             WHERE id = ({candidate}) AND run_at <= $4 \
             AND (state = 'QUEUED' OR (state = 'ACTIVE' AND lease_until <= $4) \
             OR (state = 'HELD' AND created <= $4 - {HOLD_MILLIS})) RETURNING *"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(claim.worker)
            .bind(millis(now + claim.lease))
            .bind(claim.queue)
            .bind(millis(now))
            .fetch_optional(&self.pool)
            .await
            .map_err(database("claim a job"))?;
        row.map(|row| job_of(&row)).transpose()
    }

    /// Removes a job that is done.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the worker does not hold it any more; the database's.
    pub async fn finish(&self, id: JobId, worker: &str) -> Result<()> {
        let done =
            sqlx::query("DELETE FROM job WHERE id = $1 AND worker = $2 AND state = 'ACTIVE'")
                .bind(id.0)
                .bind(worker)
                .execute(&self.pool)
                .await
                .map_err(database("finish a job"))?;
        held(id, done.rows_affected())
    }

    /// Gives a job back after a failed attempt: to be claimed again at `retry_at`, or given up without one.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the worker does not hold it any more; the database's.
    pub async fn fail(
        &self,
        id: JobId,
        worker: &str,
        error: &str,
        retry_at: Option<SystemTime>,
    ) -> Result<()> {
        let state = if retry_at.is_some() { JobState::Queued } else { JobState::GivenUp };
        let done = sqlx::query(
            "UPDATE job SET state = $1, run_at = COALESCE($2, run_at), worker = NULL, lease_until = NULL, \
             last_error = $3 WHERE id = $4 AND worker = $5 AND state = 'ACTIVE'",
        )
        .bind(state.name())
        .bind(retry_at.map(millis))
        .bind(error)
        .bind(id.0)
        .bind(worker)
        .execute(&self.pool)
        .await
        .map_err(database("fail a job"))?;
        held(id, done.rows_affected())
    }

    /// Lets a job run again now, also one that was given up. Tells whether there was one that does not run.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry(&self, id: JobId, now: SystemTime) -> Result<bool> {
        let done = sqlx::query(
            "UPDATE job SET state = 'QUEUED', run_at = $1 WHERE id = $2 AND state <> 'ACTIVE'",
        )
        .bind(millis(now))
        .bind(id.0)
        .execute(&self.pool)
        .await
        .map_err(database("retry a job"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Removes a job that does not run. Tells whether there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn cancel(&self, id: JobId) -> Result<bool> {
        let done = sqlx::query("DELETE FROM job WHERE id = $1 AND state <> 'ACTIVE'")
            .bind(id.0)
            .execute(&self.pool)
            .await
            .map_err(database("cancel a job"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Gives back every job that workers of an earlier run of this process held. Call it before any worker starts,
    /// where no other process uses the database.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release_all(&self) -> Result<u64> {
        let done = sqlx::query(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL WHERE state IN ('ACTIVE', 'HELD')",
        )
        .execute(&self.pool)
        .await
        .map_err(database("release jobs"))?;
        Ok(done.rows_affected())
    }

    /// Lists the oldest jobs of a queue, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list(&self, queue: &str, limit: u32) -> Result<Vec<Job>> {
        let rows = sqlx::query("SELECT * FROM job WHERE queue = $1 ORDER BY id LIMIT $2")
            .bind(queue)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(database("list jobs"))?;
        rows.iter().map(job_of).collect()
    }

    /// Counts the jobs of a queue, those given up included.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn count(&self, queue: &str) -> Result<u64> {
        let action = "count jobs";
        let row = sqlx::query("SELECT COUNT(*) FROM job WHERE queue = $1")
            .bind(queue)
            .fetch_one(&self.pool)
            .await
            .map_err(database(action))?;
        Ok(row.try_get::<i64, _>(0).map_err(database(action))?.unsigned_abs())
    }

    /// Returns when the next job of a queue may be claimed, or nothing if none waits.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next_run(&self, queue: &str, order: Order) -> Result<Option<SystemTime>> {
        let action = "find the next job";
        let text = match order {
            Order::Strict => {
                "SELECT CASE WHEN state = 'ACTIVE' THEN lease_until ELSE run_at END FROM job \
                 WHERE queue = $1 AND state <> 'GIVEN_UP' ORDER BY id LIMIT 1"
            }
            Order::Loose => {
                "SELECT CASE WHEN state = 'ACTIVE' THEN lease_until ELSE run_at END AS due FROM job \
                 WHERE queue = $1 AND state <> 'GIVEN_UP' ORDER BY due LIMIT 1"
            }
        };
        let row = sqlx::query(text)
            .bind(queue)
            .fetch_optional(&self.pool)
            .await
            .map_err(database(action))?;
        let due = row.map(|row| row.try_get::<i64, _>(0)).transpose().map_err(database(action))?;
        Ok(due.map(time))
    }
}

/// Inserts one job that has no key, inside a transaction.
async fn insert(
    transaction: &mut sqlx::Transaction<'_, sqlx::Any>,
    job: &NewJob<'_>,
    state: JobState,
    now: SystemTime,
) -> Result<JobId> {
    let action = "add a job";
    let row = sqlx::query(
        "INSERT INTO job (queue, topic, payload, job_key, state, attempt, run_at, created, created_by) \
         VALUES ($1, $2, $3, $4, $5, 0, $6, $6, $7) RETURNING id",
    )
    .bind(job.queue)
    .bind(job.topic)
    .bind(job.payload.to_string())
    .bind(job.key)
    .bind(state.name())
    .bind(millis(now))
    .bind(job.user)
    .fetch_one(&mut **transaction)
    .await
    .map_err(database(action))?;
    Ok(JobId(row.try_get(0).map_err(database(action))?))
}

fn held(id: JobId, rows: u64) -> Result<()> {
    if rows == 0 { Err(Error::LeaseLost(id.0)) } else { Ok(()) }
}

fn job_of(row: &AnyRow) -> Result<Job> {
    let action = "read a job";
    let id: i64 = row.try_get("id").map_err(database(action))?;
    let text = |name: &str| row.try_get::<String, _>(name).map_err(database(action));
    let number = |name: &str| row.try_get::<i64, _>(name).map_err(database(action));
    let state = match text("state")?.as_str() {
        "ACTIVE" => JobState::Active,
        "HELD" => JobState::Held,
        "GIVEN_UP" => JobState::GivenUp,
        _ => JobState::Queued,
    };
    Ok(Job {
        id: JobId(id),
        queue: text("queue")?,
        topic: text("topic")?,
        payload: serde_json::from_str(&text("payload")?)
            .map_err(|source| Error::Payload { id, source })?,
        state,
        attempt: u32::try_from(number("attempt")?).unwrap_or(u32::MAX),
        run_at: time(number("run_at")?),
        created: time(number("created")?),
        user: text("created_by")?,
        last_error: row.try_get("last_error").map_err(database(action))?,
    })
}

fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

/// Writes a time as milliseconds since 1970; earlier ones do not occur.
fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}
