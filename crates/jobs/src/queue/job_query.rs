//! Queries the queues: lists, counts, statistics by topic, paused queues.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sqlx::Row;

use crate::queue::sql::{
    WriteTransaction, database_error, job_from_row, sql_placeholders, to_epoch_millis,
};
use crate::{Job, JobId, JobQueues, JobState, Result};

/// Maximum number of jobs that one transaction removes, which bounds the wait of other writers.
pub(crate) const PRUNE_BATCH_SIZE: u64 = 2000;

/// Counts jobs by topic and state. Ended jobs may be very numerous and are counted by their index. The others are found
/// by the indexes of their states; grouping by the plain topic column would scan all jobs of each topic.
pub(crate) const COUNT_JOBS_SQL: &str = "\
    SELECT topic, state, COUNT(*) FROM job WHERE ended IS NOT NULL GROUP BY topic, state \
    UNION ALL SELECT topic || '', 'QUEUED', COUNT(*) FROM job WHERE state = 'QUEUED' GROUP BY topic || '' \
    UNION ALL SELECT topic || '', 'DELAYED', COUNT(*) FROM job WHERE state = 'DELAYED' GROUP BY topic || '' \
    UNION ALL SELECT topic || '', state, COUNT(*) FROM job WHERE state IN ('ACTIVE', 'HELD') \
    GROUP BY topic || '', state";

/// Removes jobs that ended before `$1`, and those that failed before `$2`, at most `$3`. They are found by their end
/// time, because a search by state would read all ended jobs to remove a few.
pub(crate) const PRUNE_JOBS_SQL: &str = "\
    DELETE FROM job WHERE id IN (SELECT id FROM job WHERE ended IS NOT NULL AND \
    ((ended <= $1 AND state || '' IN ('SUCCEEDED', 'STOPPED')) \
    OR (ended <= $2 AND state || '' IN ('GIVEN_UP', 'ERROR'))) LIMIT $3)";

/// Returns the time at which the oldest open job of the topic `$1` may be claimed.
pub(crate) const NEXT_ORDERED_SQL: &str = "\
    SELECT CASE WHEN state IN ('ACTIVE', 'HELD') THEN lease_until ELSE run_at END FROM job \
    WHERE topic = $1 AND ended IS NULL ORDER BY id LIMIT 1";

/// Returns the statement that lists jobs with numbers after `$1`, at most `$2`, of the topic `$3`.
pub(crate) fn list_jobs_sql(state: Option<JobState>, is_of_topic: bool) -> String {
    let mut text = "SELECT * FROM job WHERE id > $1".to_owned();
    if let Some(state) = state {
        // The name is a constant of this crate.
        text.push_str(&format!(" AND state = '{}'", state.name()));
        // The condition holds for each such job, and lets the database use the sorted indexes of ended or open jobs.
        text.push_str(if state.is_open() {
            " AND ended IS NULL"
        } else {
            " AND ended IS NOT NULL"
        });
    }
    if is_of_topic {
        text.push_str(" AND topic = $3");
    }
    text.push_str(" ORDER BY id LIMIT $2");
    text
}

/// A filter for lists of jobs.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Jobs of these topics; all if empty.
    pub topics: Vec<String>,
    /// Jobs in this state.
    pub state: Option<JobState>,
    /// Jobs with higher numbers.
    pub after_id: Option<JobId>,
}

/// Statistics of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicStatistics {
    /// Waiting jobs, including held and delayed ones.
    pub queued: u64,
    /// Running jobs.
    pub active: u64,
    /// Jobs that were given up and need attention.
    pub given_up: u64,
    /// Completed jobs.
    pub finished: u64,
    /// Failed attempts.
    pub failed: u64,
    /// Jobs that were stopped while they ran.
    pub cancelled: u64,
    /// Total waiting time of all finished jobs.
    pub total_wait: Duration,
    /// Total run time of all finished jobs.
    pub total_run: Duration,
    /// Time at which the topic was first seen.
    pub first_seen: Option<SystemTime>,
    /// Time at which a job of the topic last ended.
    pub last_ended: Option<SystemTime>,
}

impl TopicStatistics {
    /// Adds the statistics of another topic.
    pub fn merge(&mut self, other: &Self) {
        self.queued += other.queued;
        self.active += other.active;
        self.given_up += other.given_up;
        self.finished += other.finished;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.total_wait += other.total_wait;
        self.total_run += other.total_run;
        self.last_ended = self.last_ended.max(other.last_ended);
    }

    /// Returns the average time that a job waited before it ran.
    #[must_use]
    pub fn average_wait(&self) -> Duration {
        average_duration(self.total_wait, self.finished)
    }

    /// Returns the average run time of a job.
    #[must_use]
    pub fn average_run(&self) -> Duration {
        average_duration(self.total_run, self.finished)
    }
}

fn average_duration(sum: Duration, count: u64) -> Duration {
    let millis = sum.as_millis().checked_div(u128::from(count)).unwrap_or_default();
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A process that works on this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProcess {
    /// Its name.
    pub name: String,
    /// The role of the process: `author`, `publish`, `assets`.
    pub role: String,
    /// Time after which the process counts as dead.
    pub alive_until: SystemTime,
    /// Values that must be the same in all processes: [`crate::JobWorkerOptions::shared_facts`].
    pub shared_facts: BTreeMap<String, String>,
}

impl JobQueues {
    /// Finds a job.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn find_job(&self, id: JobId) -> Result<Option<Job>> {
        let row = sqlx::query("SELECT * FROM job WHERE id = $1")
            .bind(id.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(database_error("find a job"))?;
        row.as_ref().map(job_from_row).transpose()
    }

    /// Lists jobs by age, oldest first, at most `limit`. No more ended jobs are read than are listed of each topic.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_jobs(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>> {
        let Some((first, others)) = filter.topics.split_first() else {
            return self.list_jobs_page(filter, None, limit).await;
        };
        let mut jobs = self.list_jobs_page(filter, Some(first), limit).await?;
        for topic in others {
            jobs.extend(self.list_jobs_page(filter, Some(topic), limit).await?);
        }
        if !others.is_empty() {
            jobs.sort_unstable_by_key(|job| job.id);
            jobs.dedup_by_key(|job| job.id);
            jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(jobs)
    }

    /// Lists jobs of a topic, or of all.
    async fn list_jobs_page(
        &self,
        filter: &JobFilter,
        topic: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Job>> {
        let text = list_jobs_sql(filter.state, topic.is_some());
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(filter.after_id.map_or(i64::MIN, |id| id.0))
            .bind(i64::from(limit));
        let query = match topic {
            Some(topic) => query.bind(topic.to_owned()),
            None => query,
        };
        let rows = query.fetch_all(&self.pool).await.map_err(database_error("list jobs"))?;
        rows.iter().map(job_from_row).collect()
    }

    /// Lists the oldest jobs of a topic, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_topic(&self, topic: &str, limit: u32) -> Result<Vec<Job>> {
        let filter = JobFilter { topics: vec![topic.to_owned()], ..JobFilter::default() };
        self.list_jobs(&filter, limit).await
    }

    /// Returns the names of the paused queues.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn paused_queues(&self) -> Result<Vec<String>> {
        let action = "read which queues are paused";
        let rows = sqlx::query("SELECT name FROM job_queue WHERE state = 'PAUSED' ORDER BY name")
            .fetch_all(&self.pool)
            .await
            .map_err(database_error(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database_error(action))).collect()
    }

    /// Pauses a queue in all processes: no further jobs begin; running jobs continue.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn pause_queue(&self, queue: &str, user: &str, now: SystemTime) -> Result<()> {
        sqlx::query(
            "INSERT INTO job_queue (name, state, changed, by_user) VALUES ($1, 'PAUSED', $2, $3) \
             ON CONFLICT (name) DO UPDATE SET state = 'PAUSED', changed = excluded.changed, by_user = excluded.by_user",
        )
        .bind(queue)
        .bind(to_epoch_millis(now))
        .bind(user)
        .execute(&self.pool)
        .await
        .map_err(database_error("pause a queue"))?;
        self.wake_job_workers();
        Ok(())
    }

    /// Resumes a queue. Returns true if it was paused.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn resume_queue(&self, queue: &str) -> Result<bool> {
        let done = sqlx::query("DELETE FROM job_queue WHERE name = $1")
            .bind(queue)
            .execute(&self.pool)
            .await
            .map_err(database_error("resume a queue"))?;
        self.wake_job_workers();
        Ok(done.rows_affected() > 0)
    }

    /// Makes all given-up jobs of some topics run again. Returns the number of jobs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry_given_up_jobs(&self, topics: &[String], now: SystemTime) -> Result<u64> {
        let text = format!(
            "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0 \
             WHERE ended IS NOT NULL AND state IN ('GIVEN_UP', 'ERROR') AND topic IN ({})",
            sql_placeholders(2, topics.len().max(1))
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(text)).bind(to_epoch_millis(now));
        for topic in topics {
            query = query.bind(topic.as_str());
        }
        if topics.is_empty() {
            return Ok(0);
        }
        let done = query.execute(&self.pool).await.map_err(database_error("retry jobs"))?;
        self.wake_job_workers();
        Ok(done.rows_affected())
    }

    /// Removes all jobs of a topic except running ones. Returns the number of jobs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn clear_topic(&self, topic: &str) -> Result<u64> {
        let query = sqlx::query("DELETE FROM job WHERE topic = $1 AND state <> 'ACTIVE'");
        let removed = self.execute_write("clear a queue", query.bind(topic)).await?;
        self.wake_job_workers();
        Ok(removed)
    }

    /// Makes all jobs of a topic run now: those given up, and those that wait for their next attempt. Returns the
    /// number of jobs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry_topic(&self, topic: &str, now: SystemTime) -> Result<u64> {
        let query = sqlx::query(
            "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0, worker = NULL \
             WHERE topic = $2 AND state IN ('GIVEN_UP', 'ERROR', 'DELAYED')",
        );
        let count =
            self.execute_write("retry jobs", query.bind(to_epoch_millis(now)).bind(topic)).await?;
        self.wake_job_workers();
        Ok(count)
    }

    /// Removes jobs that were done or stopped before one time, and those that failed before another. Returns the number
    /// of jobs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn prune_ended_jobs(
        &self,
        done_before: SystemTime,
        failed_before: SystemTime,
    ) -> Result<u64> {
        let action = "remove ended jobs";
        let mut removed = 0;
        loop {
            let mut transaction = self.begin_write(action).await?;
            let batch_count =
                self.prune_batch(&mut transaction, done_before, failed_before).await?;
            transaction.commit().await.map_err(database_error(action))?;
            removed += batch_count;
            if batch_count < PRUNE_BATCH_SIZE {
                return Ok(removed);
            }
        }
    }

    /// Removes at most [`PRUNE_BATCH_SIZE`] such jobs.
    pub(crate) async fn prune_batch(
        &self,
        transaction: &mut WriteTransaction,
        done_before: SystemTime,
        failed_before: SystemTime,
    ) -> Result<u64> {
        let done = sqlx::query(PRUNE_JOBS_SQL)
            .bind(to_epoch_millis(done_before))
            .bind(to_epoch_millis(failed_before))
            .bind(i64::try_from(PRUNE_BATCH_SIZE).unwrap_or(i64::MAX))
            .execute(&mut **transaction)
            .await
            .map_err(database_error("remove ended jobs"))?;
        Ok(done.rows_affected())
    }
}
