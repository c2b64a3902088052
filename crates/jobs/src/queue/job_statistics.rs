//! Counts of jobs and workers, for people and for decisions of other parts.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sqlx::Row;

use crate::queue::job_query::{COUNT_JOBS_SQL, NEXT_ORDERED_SQL, TopicStatistics, WorkerProcess};
use crate::queue::sql::{database_error, from_epoch_millis, runs, to_epoch_millis};
use crate::{JobQueues, JobState, Result};

/// Counts of the jobs and workers of queues.
#[derive(Debug, Clone)]
pub struct JobStatistics {
    queues: JobQueues,
}

impl JobQueues {
    /// Returns the counts of jobs and workers.
    #[must_use]
    pub fn statistics(&self) -> JobStatistics {
        JobStatistics { queues: self.clone() }
    }
}

impl JobStatistics {
    /// Returns the number of stored jobs of a topic, including those given up.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn count_jobs(&self, topic: &str) -> Result<u64> {
        let action = "count jobs";
        let row = sqlx::query("SELECT COUNT(*) FROM job WHERE topic = $1")
            .bind(topic)
            .fetch_one(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        Ok(row.try_get::<i64, _>(0).map_err(database_error(action))?.unsigned_abs())
    }

    /// Returns the time at which the oldest job of a topic may be claimed in order, or `None` if there is no job.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next_ordered_run(&self, topic: &str) -> Result<Option<SystemTime>> {
        let action = "find the next job";
        let row = sqlx::query(NEXT_ORDERED_SQL)
            .bind(topic)
            .fetch_optional(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        let due = row.map(|row| row.try_get::<Option<i64>, _>(0)).transpose();
        Ok(due.map_err(database_error(action))?.flatten().map(from_epoch_millis))
    }

    /// Returns the names of all topics that were ever seen.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn topic_names(&self) -> Result<Vec<String>> {
        let action = "read the topics";
        let rows = sqlx::query("SELECT topic FROM job_topic ORDER BY topic")
            .fetch_all(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database_error(action))).collect()
    }

    /// Returns the statistics of all topics that were ever seen.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn topic_statistics(&self) -> Result<BTreeMap<String, TopicStatistics>> {
        let action = "read the topics";
        let mut statistics_by_topic: BTreeMap<String, TopicStatistics> = BTreeMap::new();
        let rows = sqlx::query(
            "SELECT topic, first_seen, finished, failed, cancelled, wait_ms, run_ms, last_ended FROM job_topic",
        )
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        for row in &rows {
            let number = |at: usize| row.try_get::<i64, _>(at).map_err(database_error(action));
            let count = |at: usize| number(at).map(i64::unsigned_abs);
            let last: Option<i64> = row.try_get(7).map_err(database_error(action))?;
            let statistics = TopicStatistics {
                first_seen: Some(from_epoch_millis(number(1)?)),
                finished: count(2)?,
                failed: count(3)?,
                cancelled: count(4)?,
                total_wait: Duration::from_millis(count(5)?),
                total_run: Duration::from_millis(count(6)?),
                last_ended: last.map(from_epoch_millis),
                ..TopicStatistics::default()
            };
            statistics_by_topic.insert(row.try_get(0).map_err(database_error(action))?, statistics);
        }
        let rows = sqlx::query(COUNT_JOBS_SQL)
            .fetch_all(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        for row in &rows {
            let topic: String = row.try_get(0).map_err(database_error(action))?;
            let state: String = row.try_get(1).map_err(database_error(action))?;
            let count = row.try_get::<i64, _>(2).map_err(database_error(action))?.unsigned_abs();
            let statistics = statistics_by_topic.entry(topic).or_default();
            match JobState::from_name(&state) {
                Some(JobState::Held | JobState::Delayed | JobState::Queued) => {
                    statistics.queued += count;
                }
                Some(JobState::Active) => statistics.active += count,
                Some(JobState::GivenUp | JobState::Error) => statistics.given_up += count,
                Some(JobState::Succeeded | JobState::Stopped) | None => {}
            }
        }
        Ok(statistics_by_topic)
    }

    /// Returns the start time of the oldest running job, if there is one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn oldest_active_start(&self) -> Result<Option<SystemTime>> {
        let action = "find the oldest running job";
        let row = sqlx::query(concat!("SELECT MIN(started) FROM job WHERE ", runs!()))
            .fetch_one(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        Ok(row.try_get::<Option<i64>, _>(0).map_err(database_error(action))?.map(from_epoch_millis))
    }

    /// Counts by topic the jobs that failed permanently after a time and were neither retried nor canceled, the highest
    /// count first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn count_given_up_since(&self, since: SystemTime) -> Result<Vec<(String, u64)>> {
        let action = "count the jobs that failed";
        // Searching by end time reads few rows; a search by state would read all jobs that ever failed.
        let rows = sqlx::query(
            "SELECT topic || '', COUNT(*) FROM job WHERE ended > $1 AND state || '' IN ('GIVEN_UP', 'ERROR') \
             GROUP BY topic || '' ORDER BY 2 DESC, 1",
        )
        .bind(to_epoch_millis(since))
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        let counted = |row: &sqlx::any::AnyRow| -> Result<(String, u64)> {
            let count: i64 = row.try_get(1).map_err(database_error(action))?;
            Ok((row.try_get(0).map_err(database_error(action))?, count.unsigned_abs()))
        };
        rows.iter().map(counted).collect()
    }

    /// Returns the live processes that work on this database.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn live_workers(&self, now: SystemTime) -> Result<Vec<WorkerProcess>> {
        let action = "read the workers";
        let rows = sqlx::query(
            "SELECT name, role, until, facts FROM job_worker WHERE until > $1 ORDER BY name",
        )
        .bind(to_epoch_millis(now))
        .fetch_all(&self.queues.pool)
        .await
        .map_err(database_error(action))?;
        let worker = |row: &sqlx::any::AnyRow| -> Result<WorkerProcess> {
            Ok(WorkerProcess {
                name: row.try_get(0).map_err(database_error(action))?,
                role: row.try_get(1).map_err(database_error(action))?,
                alive_until: from_epoch_millis(row.try_get(2).map_err(database_error(action))?),
                // A process of an earlier version stores no facts.
                shared_facts: serde_json::from_str(row.try_get(3).map_err(database_error(action))?)
                    .unwrap_or_default(),
            })
        };
        rows.iter().map(worker).collect()
    }

    /// Returns the live processes in which a fact differs from this one's, each with the fact's name.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn find_fact_mismatches(
        &self,
        facts: &BTreeMap<String, String>,
        now: SystemTime,
    ) -> Result<Vec<(String, WorkerProcess)>> {
        let mut unlike = Vec::new();
        for worker in self.live_workers(now).await? {
            for (name, value) in facts {
                if worker.shared_facts.get(name).is_some_and(|peer_value| peer_value != value) {
                    unlike.push((name.clone(), worker.clone()));
                }
            }
        }
        Ok(unlike)
    }
}
