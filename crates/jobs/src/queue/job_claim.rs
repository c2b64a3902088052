//! Claims jobs, and stores their outcomes.
//!
//! Invariants
//! * A job is claimed by one worker at a time: a claim changes only rows that still wait, so of two concurrent claims
//!   one finds nothing.
//! * Only the worker that claimed a job can end it, and only while it holds the job.

use std::time::{Duration, SystemTime};

use sqlx::Row;
use sqlx::any::AnyArguments;

use crate::queue::job_queue::lane_key;
use crate::queue::sql::{
    SqlDialect, WriteTransaction, database_error, duration_to_millis, job_from_row, join_job_ids,
    runs, sql_placeholders, to_epoch_millis,
};
use crate::{Error, Job, JobId, JobQueues, JobState, Result};

/// The worker that claims, and the duration of the claim.
#[derive(Debug, Clone, Copy)]
pub struct JobClaim<'a> {
    /// The name of the worker, unique among all processes; the same name must finish the job.
    pub worker: &'a str,
    /// Duration of the claim unless it is renewed.
    pub lease: Duration,
}

/// The waiting jobs of one topic and one tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobLane {
    pub(crate) topic: String,
    pub(crate) tenant: String,
}

/// The fields of a waiting job that the selection needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WaitingJob {
    pub(crate) id: JobId,
    pub(crate) priority: i64,
}

impl JobQueues {
    /// Claims the oldest job of some topics if its run time has come and no other job of the topics is running. A job
    /// that waits for its next attempt blocks all later ones.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn claim_in_order(
        &self,
        topics: &[&str],
        claim: JobClaim<'_>,
        now: SystemTime,
    ) -> Result<Option<Job>> {
        let mut transaction = self.begin_write("claim a job").await?;
        self.recover_due_jobs(&mut transaction, now).await?;
        let oldest = self.find_oldest_open(&mut transaction, topics).await?;
        let claimed = match oldest {
            Some(id) => self.claim_by_id(&mut transaction, &[id], claim, now).await?,
            None => Vec::new(),
        };
        transaction.commit().await.map_err(database_error("claim a job"))?;
        Ok(claimed.into_iter().next())
    }

    /// Claims waiting jobs of a topic and a tenant, by priority and then by age, whether or not others run.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn claim_jobs(
        &self,
        topic: &str,
        tenant: &str,
        limit: u32,
        claim: JobClaim<'_>,
        now: SystemTime,
    ) -> Result<Vec<Job>> {
        let mut transaction = self.begin_write("claim jobs").await?;
        self.recover_due_jobs(&mut transaction, now).await?;
        let lane = JobLane { topic: topic.to_owned(), tenant: tenant.to_owned() };
        let ids: Vec<JobId> = self
            .first_of_lane(&mut transaction, &lane, limit)
            .await?
            .iter()
            .map(|job| job.id)
            .collect();
        let claimed = self.claim_by_id(&mut transaction, &ids, claim, now).await?;
        transaction.commit().await.map_err(database_error("claim jobs"))?;
        Ok(claimed)
    }

    /// Returns the oldest job of an ordered queue if it waits and none of the queue's jobs runs.
    pub(crate) async fn find_oldest_open(
        &self,
        transaction: &mut WriteTransaction,
        topics: &[&str],
    ) -> Result<Option<JobId>> {
        let action = "find the oldest job";
        if topics.is_empty() || !self.lock_ordered_queue(transaction, topics).await? {
            return Ok(None);
        }
        let mut query = sqlx::query(sqlx::AssertSqlSafe(oldest_job_sql(topics.len())));
        for topic in topics {
            query = query.bind(*topic);
        }
        let row = query.fetch_optional(&mut **transaction).await.map_err(database_error(action))?;
        let Some(row) = row else { return Ok(None) };
        let id: i64 = row.try_get(0).map_err(database_error(action))?;
        let state: String = row.try_get(1).map_err(database_error(action))?;
        let active: i64 = row.try_get(2).map_err(database_error(action))?;
        Ok((state == JobState::Queued.name() && active == 0).then_some(JobId(id)))
    }

    /// Prevents other processes from claiming from the same ordered queue until the transaction ends. Returns true if
    /// the lock was acquired.
    async fn lock_ordered_queue(
        &self,
        transaction: &mut WriteTransaction,
        topics: &[&str],
    ) -> Result<bool> {
        // SQLite allows only one writer at a time.
        if self.dialect == SqlDialect::Sqlite {
            return Ok(true);
        }
        let action = "lock an ordered queue";
        for topic in topics {
            let row = sqlx::query("SELECT CASE WHEN pg_try_advisory_xact_lock(hashtextextended(current_schema() || '/' || $1, 4501)) THEN 1 ELSE 0 END")
                .bind(*topic)
                .fetch_one(&mut **transaction)
                .await
                .map_err(database_error(action))?;
            let got: i32 = row.try_get(0).map_err(database_error(action))?;
            if got == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the lanes that contain waiting jobs.
    pub(crate) async fn list_lanes(
        &self,
        transaction: &mut WriteTransaction,
    ) -> Result<Vec<JobLane>> {
        let action = "find waiting jobs";
        let rows = sqlx::query(
            "WITH RECURSIVE found(lane) AS (\
             SELECT MIN(lane) FROM job WHERE state = 'QUEUED' \
             UNION ALL \
             SELECT (SELECT MIN(lane) FROM job WHERE state = 'QUEUED' AND lane > found.lane) \
             FROM found WHERE found.lane IS NOT NULL) \
             SELECT lane FROM found WHERE lane IS NOT NULL",
        )
        .fetch_all(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        let mut lanes = Vec::with_capacity(rows.len());
        for row in &rows {
            let lane: String = row.try_get(0).map_err(database_error(action))?;
            let (topic, tenant) = lane.split_once('\n').unwrap_or((&lane, ""));
            lanes.push(JobLane { topic: topic.to_owned(), tenant: tenant.to_owned() });
        }
        Ok(lanes)
    }

    /// Returns the first jobs of a lane.
    pub(crate) async fn first_of_lane(
        &self,
        transaction: &mut WriteTransaction,
        lane: &JobLane,
        limit: u32,
    ) -> Result<Vec<WaitingJob>> {
        let action = "choose jobs";
        let text = format!(
            "SELECT id, priority FROM job WHERE state = 'QUEUED' AND lane = $1 ORDER BY priority DESC, id LIMIT $2{}",
            self.dialect.skip_locked_sql()
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(lane_key(&lane.topic, &lane.tenant))
            .bind(i64::from(limit))
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        let mut waiting = Vec::with_capacity(rows.len());
        for row in &rows {
            let id = JobId(row.try_get(0).map_err(database_error(action))?);
            waiting
                .push(WaitingJob { id, priority: row.try_get(1).map_err(database_error(action))? });
        }
        Ok(waiting)
    }

    /// Claims waiting jobs for the worker. Returns those that still waited, in the requested order.
    pub(crate) async fn claim_by_id(
        &self,
        transaction: &mut WriteTransaction,
        ids: &[JobId],
        claim: JobClaim<'_>,
        now: SystemTime,
    ) -> Result<Vec<Job>> {
        let mut claimed_jobs = self.claim_ahead(transaction, ids, claim, now).await?;
        self.begin_attempts(transaction, ids, now).await?;
        for job in &mut claimed_jobs {
            job.attempt += 1;
            job.started_at = Some(now);
        }
        Ok(claimed_jobs)
    }

    /// Claims waiting jobs for the worker without counting an attempt, because they are not begun yet.
    pub(crate) async fn claim_ahead(
        &self,
        transaction: &mut WriteTransaction,
        ids: &[JobId],
        claim: JobClaim<'_>,
        now: SystemTime,
    ) -> Result<Vec<Job>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let text = format!(
            "UPDATE job SET state = 'ACTIVE', worker = $1, lease_until = $2, cancel = 0, progress = NULL \
             WHERE id IN ({}) AND state = 'QUEUED' RETURNING *",
            join_job_ids(ids.iter().copied())
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(claim.worker)
            .bind(to_epoch_millis(now + claim.lease))
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error("claim jobs"))?;
        let mut jobs: Vec<Job> = rows.iter().map(job_from_row).collect::<Result<_>>()?;
        let position_of = |job: &Job| ids.iter().position(|id| *id == job.id);
        if jobs.len() > 1 {
            jobs.sort_by_cached_key(position_of);
        }
        Ok(jobs)
    }

    /// Counts an attempt of the jobs that begin.
    pub(crate) async fn begin_attempts(
        &self,
        transaction: &mut WriteTransaction,
        ids: &[JobId],
        now: SystemTime,
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let text = format!(
            "UPDATE job SET attempt = attempt + 1, started = $1 WHERE id IN ({}) AND state = 'ACTIVE'",
            join_job_ids(ids.iter().copied())
        );
        sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(to_epoch_millis(now))
            .execute(&mut **transaction)
            .await
            .map_err(database_error("begin jobs"))?;
        Ok(())
    }

    /// Makes jobs claimable whose run time has come, whose worker is dead, or that were held for too long.
    pub(crate) async fn recover_due_jobs(
        &self,
        transaction: &mut WriteTransaction,
        now: SystemTime,
    ) -> Result<u64> {
        let action = "resume due jobs";
        let due =
            sqlx::query("UPDATE job SET state = 'QUEUED' WHERE state = 'DELAYED' AND run_at <= $1")
                .bind(to_epoch_millis(now))
                .execute(&mut **transaction)
                .await
                .map_err(database_error(action))?;
        let left = sqlx::query(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL \
             WHERE state IN ('ACTIVE', 'HELD') AND lease_until <= $1",
        )
        .bind(to_epoch_millis(now))
        .execute(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        Ok(due.rows_affected() + left.rows_affected())
    }

    /// Extends a claim.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the worker no longer holds the job; errors of the database.
    pub async fn renew_lease(
        &self,
        id: JobId,
        worker: &str,
        lease: Duration,
        now: SystemTime,
    ) -> Result<()> {
        let query = sqlx::query(
            "UPDATE job SET lease_until = $1 WHERE id = $2 AND worker = $3 AND state = 'ACTIVE'",
        )
        .bind(to_epoch_millis(now) + duration_to_millis(lease))
        .bind(id.0)
        .bind(worker);
        require_lease(id, self.execute_write("renew a lease", query).await?)
    }

    /// Removes a job that is done.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the worker no longer holds the job; errors of the database.
    pub async fn finish_job(&self, id: JobId, worker: &str) -> Result<()> {
        let query =
            sqlx::query("DELETE FROM job WHERE id = $1 AND worker = $2 AND state = 'ACTIVE'")
                .bind(id.0)
                .bind(worker);
        require_lease(id, self.execute_and_notify("finish a job", query).await?)
    }

    /// Returns a job after a failed attempt: to be claimed again at `retry_at`, or given up if that is `None`.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the worker no longer holds the job; errors of the database.
    pub async fn fail_job(
        &self,
        id: JobId,
        worker: &str,
        error: &str,
        retry_at: Option<SystemTime>,
        now: SystemTime,
    ) -> Result<()> {
        let state = match retry_at {
            Some(at) if at > now => JobState::Delayed,
            Some(_) => JobState::Queued,
            None => JobState::GivenUp,
        };
        let ended = (state == JobState::GivenUp).then(|| to_epoch_millis(now));
        let query = sqlx::query(
            "UPDATE job SET state = $1, run_at = COALESCE($2, run_at), worker = NULL, lease_until = NULL, \
             last_error = $3, ended = $4, job_key = CASE WHEN $5 = 'GIVEN_UP' THEN NULL ELSE job_key END \
             WHERE id = $6 AND worker = $7 AND state = 'ACTIVE'",
        )
        .bind(state.name())
        .bind(retry_at.map(to_epoch_millis))
        .bind(error)
        .bind(ended)
        .bind(state.name())
        .bind(id.0)
        .bind(worker);
        require_lease(id, self.execute_and_notify("fail a job", query).await?)
    }

    /// Makes a job run again now, with all its attempts, even if it was given up. Returns true if the job exists and is
    /// not running.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry_job(&self, id: JobId, now: SystemTime) -> Result<bool> {
        let query = sqlx::query(
            "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0, lease_until = NULL \
             WHERE id = $2 AND state NOT IN ('ACTIVE', 'HELD', 'SUCCEEDED')",
        );
        Ok(self
            .execute_and_notify("retry a job", query.bind(to_epoch_millis(now)).bind(id.0))
            .await?
            > 0)
    }

    /// Removes a job that is not running. Returns true if there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn cancel_job(&self, id: JobId) -> Result<bool> {
        let query = sqlx::query("DELETE FROM job WHERE id = $1 AND state <> 'ACTIVE'");
        Ok(self.execute_and_notify("cancel a job", query.bind(id.0)).await? > 0)
    }

    /// Requests a running job to stop; its worker reads the request within a second or two. Returns true if the job is
    /// running.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn request_stop(&self, id: JobId) -> Result<bool> {
        let query = sqlx::query("UPDATE job SET cancel = 1 WHERE id = $1 AND state = 'ACTIVE'");
        Ok(self.execute_and_notify("stop a job", query.bind(id.0)).await? > 0)
    }

    /// Releases every job that workers of an earlier run of this process held. Call it before any worker starts, and
    /// only if no other process uses the database.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release_all_claims(&self) -> Result<u64> {
        let query = sqlx::query(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL WHERE state IN ('ACTIVE', 'HELD')",
        );
        self.execute_write("release jobs", query).await
    }

    /// Changes jobs by one statement, and notifies the workers. Returns the number of changed jobs.
    async fn execute_and_notify(
        &self,
        action: &'static str,
        query: sqlx::query::Query<'_, sqlx::Any, AnyArguments>,
    ) -> Result<u64> {
        let changed = self.execute_write(action, query).await?;
        self.wake_job_workers();
        Ok(changed)
    }
}

/// Returns the statement that finds the oldest open job of the given number of topics, and the number of running ones.
/// It reads no ended job, and no more than one waiting job.
pub(crate) fn oldest_job_sql(topics: usize) -> String {
    let first = |topic| {
        format!("SELECT MIN(id) AS first FROM job WHERE topic = ${topic} AND ended IS NULL")
    };
    let firsts: Vec<String> = (1..=topics).map(first).collect();
    format!(
        "SELECT id, state, (SELECT COUNT(*) FROM job WHERE topic || '' IN ({}) AND {}) FROM job \
         WHERE id = (SELECT MIN(first) FROM ({}) AS firsts)",
        sql_placeholders(1, topics),
        runs!(),
        firsts.join(" UNION ALL ")
    )
}

fn require_lease(id: JobId, rows: u64) -> Result<()> {
    if rows == 0 { Err(Error::LeaseLost(id.0)) } else { Ok(()) }
}
