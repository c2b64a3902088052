//! Looking at queues: lists, counts, statistics by topic, what is paused.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use sqlx::Row;

use crate::queue::lane_of;
use crate::sql::{Transaction, database, job_of, millis, places, runs, time};
use crate::{Job, JobId, JobState, Queues, Result};

/// Jobs that one transaction removes: others that write wait no longer than these take.
pub(crate) const PRUNED: u64 = 2000;

/// Counts jobs by topic and state. Those that ended may be very many: they are counted by their index. The others are found
/// by the indexes of their states; grouped as the topic stands, they would be looked for among all jobs of each.
pub(crate) const COUNT_TEXT: &str = "\
    SELECT topic, state, COUNT(*) FROM job WHERE ended IS NOT NULL GROUP BY topic, state \
    UNION ALL SELECT topic || '', 'QUEUED', COUNT(*) FROM job WHERE state = 'QUEUED' GROUP BY topic || '' \
    UNION ALL SELECT topic || '', 'DELAYED', COUNT(*) FROM job WHERE state = 'DELAYED' GROUP BY topic || '' \
    UNION ALL SELECT topic || '', state, COUNT(*) FROM job WHERE state IN ('ACTIVE', 'HELD') \
    GROUP BY topic || '', state";

/// Removes jobs that ended before `$1`, and those that failed before `$2`, at most `$3`. They are found by when they ended: by
/// their states, all that ended would be read to remove a few.
pub(crate) const PRUNE_TEXT: &str = "\
    DELETE FROM job WHERE id IN (SELECT id FROM job WHERE ended IS NOT NULL AND \
    ((ended <= $1 AND state || '' IN ('SUCCEEDED', 'STOPPED')) \
    OR (ended <= $2 AND state || '' IN ('GIVEN_UP', 'ERROR'))) LIMIT $3)";

/// Finds when the oldest open job of the topic `$1` may be claimed.
pub(crate) const NEXT_TEXT: &str = "\
    SELECT CASE WHEN state IN ('ACTIVE', 'HELD') THEN lease_until ELSE run_at END FROM job \
    WHERE topic = $1 AND ended IS NULL ORDER BY id LIMIT 1";

/// Returns the statement that lists jobs with numbers after `$1`, at most `$2`, of the topic `$3`.
pub(crate) fn list_text(state: Option<JobState>, is_of_topic: bool) -> String {
    let mut text = "SELECT * FROM job WHERE id > $1".to_owned();
    if let Some(state) = state {
        // One of our own names.
        text.push_str(&format!(" AND state = '{}'", state.name()));
        // True of each, and lets the database use the indexes of those that ended or did not, which have them in order.
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

/// Which jobs to list.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Those of these topics; all if there are none.
    pub topics: Vec<String>,
    /// Those in this state.
    pub state: Option<JobState>,
    /// Those with higher numbers.
    pub after: Option<JobId>,
}

/// What is known of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicStatistics {
    /// Jobs that wait, held and delayed ones included.
    pub queued: u64,
    /// Jobs that run.
    pub active: u64,
    /// Jobs that were given up and wait for someone.
    pub given_up: u64,
    /// Jobs that were done.
    pub finished: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Jobs that were stopped while they ran.
    pub cancelled: u64,
    /// How long all finished jobs waited together.
    pub waited: Duration,
    /// How long all finished jobs ran together.
    pub ran: Duration,
    /// When the topic was seen first.
    pub first_seen: Option<SystemTime>,
    /// When one of its jobs ended last.
    pub last_ended: Option<SystemTime>,
}

impl TopicStatistics {
    /// Adds those of another topic.
    pub fn add(&mut self, other: &Self) {
        self.queued += other.queued;
        self.active += other.active;
        self.given_up += other.given_up;
        self.finished += other.finished;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.waited += other.waited;
        self.ran += other.ran;
        self.last_ended = self.last_ended.max(other.last_ended);
    }

    /// Returns how long a job waited on average before it ran.
    #[must_use]
    pub fn average_wait(&self) -> Duration {
        average(self.waited, self.finished)
    }

    /// Returns how long a job ran on average.
    #[must_use]
    pub fn average_run(&self) -> Duration {
        average(self.ran, self.finished)
    }
}

fn average(sum: Duration, count: u64) -> Duration {
    let millis = sum.as_millis().checked_div(u128::from(count)).unwrap_or_default();
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A process that works on this database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerProcess {
    /// Its name.
    pub name: String,
    /// What it is: `author`, `publish`, `assets`.
    pub role: String,
    /// When it counts as dead.
    pub until: SystemTime,
    /// What it says has to be the same in all processes: [`crate::WorkerOptions::facts`].
    pub facts: BTreeMap<String, String>,
}

impl Queues {
    /// Finds a job.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn find(&self, id: JobId) -> Result<Option<Job>> {
        let row = sqlx::query("SELECT * FROM job WHERE id = $1")
            .bind(id.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(database("find a job"))?;
        row.as_ref().map(job_of).transpose()
    }

    /// Lists jobs by age, oldest first, at most `limit`. Of those that ended no more are read than are listed of each topic.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list(&self, filter: &JobFilter, limit: u32) -> Result<Vec<Job>> {
        let Some((first, others)) = filter.topics.split_first() else {
            return self.list_page(filter, None, limit).await;
        };
        let mut jobs = self.list_page(filter, Some(first), limit).await?;
        for topic in others {
            jobs.extend(self.list_page(filter, Some(topic), limit).await?);
        }
        if !others.is_empty() {
            jobs.sort_unstable_by_key(|job| job.id);
            jobs.dedup_by_key(|job| job.id);
            jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(jobs)
    }

    /// Lists jobs of a topic, or of all.
    async fn list_page(
        &self,
        filter: &JobFilter,
        topic: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Job>> {
        let text = list_text(filter.state, topic.is_some());
        let query = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(filter.after.map_or(i64::MIN, |id| id.0))
            .bind(i64::from(limit));
        let query = match topic {
            Some(topic) => query.bind(topic.to_owned()),
            None => query,
        };
        let rows = query.fetch_all(&self.pool).await.map_err(database("list jobs"))?;
        rows.iter().map(job_of).collect()
    }

    /// Lists the oldest jobs of a topic, at most `limit`.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_topic(&self, topic: &str, limit: u32) -> Result<Vec<Job>> {
        let filter = JobFilter { topics: vec![topic.to_owned()], ..JobFilter::default() };
        self.list(&filter, limit).await
    }

    /// Counts the jobs of a topic that are stored, those given up included.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn count(&self, topic: &str) -> Result<u64> {
        let action = "count jobs";
        let row = sqlx::query("SELECT COUNT(*) FROM job WHERE topic = $1")
            .bind(topic)
            .fetch_one(&self.pool)
            .await
            .map_err(database(action))?;
        Ok(row.try_get::<i64, _>(0).map_err(database(action))?.unsigned_abs())
    }

    /// Counts the jobs of a topic and a tenant that wait to be claimed.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn count_waiting(&self, topic: &str, tenant: &str) -> Result<u64> {
        let action = "count jobs";
        let row = sqlx::query("SELECT COUNT(*) FROM job WHERE state = 'QUEUED' AND lane = $1")
            .bind(lane_of(topic, tenant))
            .fetch_one(&self.pool)
            .await
            .map_err(database(action))?;
        Ok(row.try_get::<i64, _>(0).map_err(database(action))?.unsigned_abs())
    }

    /// Returns when the oldest job of a topic may be claimed in order, or nothing if there is none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn next_in_order(&self, topic: &str) -> Result<Option<SystemTime>> {
        let action = "find the next job";
        let row = sqlx::query(NEXT_TEXT)
            .bind(topic)
            .fetch_optional(&self.pool)
            .await
            .map_err(database(action))?;
        let due = row.map(|row| row.try_get::<Option<i64>, _>(0)).transpose();
        Ok(due.map_err(database(action))?.flatten().map(time))
    }

    /// Returns the names of all topics that were ever seen.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn topic_names(&self) -> Result<Vec<String>> {
        let action = "read the topics";
        let rows = sqlx::query("SELECT topic FROM job_topic ORDER BY topic")
            .fetch_all(&self.pool)
            .await
            .map_err(database(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database(action))).collect()
    }

    /// Returns all topics that were ever seen, with what is known of them.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn topics(&self) -> Result<BTreeMap<String, TopicStatistics>> {
        let action = "read the topics";
        let mut found: BTreeMap<String, TopicStatistics> = BTreeMap::new();
        let rows = sqlx::query(
            "SELECT topic, first_seen, finished, failed, cancelled, wait_ms, run_ms, last_ended FROM job_topic",
        )
        .fetch_all(&self.pool)
        .await
        .map_err(database(action))?;
        for row in &rows {
            let number = |at: usize| row.try_get::<i64, _>(at).map_err(database(action));
            let count = |at: usize| number(at).map(i64::unsigned_abs);
            let last: Option<i64> = row.try_get(7).map_err(database(action))?;
            let statistics = TopicStatistics {
                first_seen: Some(time(number(1)?)),
                finished: count(2)?,
                failed: count(3)?,
                cancelled: count(4)?,
                waited: Duration::from_millis(count(5)?),
                ran: Duration::from_millis(count(6)?),
                last_ended: last.map(time),
                ..TopicStatistics::default()
            };
            found.insert(row.try_get(0).map_err(database(action))?, statistics);
        }
        let rows = sqlx::query(COUNT_TEXT).fetch_all(&self.pool).await.map_err(database(action))?;
        for row in &rows {
            let topic: String = row.try_get(0).map_err(database(action))?;
            let state: String = row.try_get(1).map_err(database(action))?;
            let count = row.try_get::<i64, _>(2).map_err(database(action))?.unsigned_abs();
            let statistics = found.entry(topic).or_default();
            match JobState::find(&state) {
                Some(JobState::Held | JobState::Delayed | JobState::Queued) => {
                    statistics.queued += count;
                }
                Some(JobState::Active) => statistics.active += count,
                Some(JobState::GivenUp | JobState::Error) => statistics.given_up += count,
                Some(JobState::Succeeded | JobState::Stopped) | None => {}
            }
        }
        Ok(found)
    }

    /// Returns when the oldest running job began, if one runs.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn oldest_active(&self) -> Result<Option<SystemTime>> {
        let action = "find the oldest running job";
        let row = sqlx::query(concat!("SELECT MIN(started) FROM job WHERE ", runs!()))
            .fetch_one(&self.pool)
            .await
            .map_err(database(action))?;
        Ok(row.try_get::<Option<i64>, _>(0).map_err(database(action))?.map(time))
    }

    /// Counts by topic the jobs that failed for good after a time and that nobody has looked after, the most first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn given_up_since(&self, since: SystemTime) -> Result<Vec<(String, u64)>> {
        let action = "count the jobs that failed";
        // Found by when they ended, which are few; by their states, all that ever failed would be read.
        let rows = sqlx::query(
            "SELECT topic || '', COUNT(*) FROM job WHERE ended > $1 AND state || '' IN ('GIVEN_UP', 'ERROR') \
             GROUP BY topic || '' ORDER BY 2 DESC, 1",
        )
        .bind(millis(since))
        .fetch_all(&self.pool)
        .await
        .map_err(database(action))?;
        let counted = |row: &sqlx::any::AnyRow| -> Result<(String, u64)> {
            let count: i64 = row.try_get(1).map_err(database(action))?;
            Ok((row.try_get(0).map_err(database(action))?, count.unsigned_abs()))
        };
        rows.iter().map(counted).collect()
    }

    /// Returns the names of the queues from which nothing is claimed.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn paused(&self) -> Result<Vec<String>> {
        let action = "read which queues are paused";
        let rows = sqlx::query("SELECT name FROM job_queue WHERE state = 'PAUSED' ORDER BY name")
            .fetch_all(&self.pool)
            .await
            .map_err(database(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database(action))).collect()
    }

    /// Keeps jobs of a queue from being begun, in all processes; those that run go on.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn pause(&self, queue: &str, user: &str, now: SystemTime) -> Result<()> {
        sqlx::query(
            "INSERT INTO job_queue (name, state, changed, by_user) VALUES ($1, 'PAUSED', $2, $3) \
             ON CONFLICT (name) DO UPDATE SET state = 'PAUSED', changed = excluded.changed, by_user = excluded.by_user",
        )
        .bind(queue)
        .bind(millis(now))
        .bind(user)
        .execute(&self.pool)
        .await
        .map_err(database("pause a queue"))?;
        self.ring();
        Ok(())
    }

    /// Lets jobs of a queue be begun again. Tells whether it was paused.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn resume(&self, queue: &str) -> Result<bool> {
        let done = sqlx::query("DELETE FROM job_queue WHERE name = $1")
            .bind(queue)
            .execute(&self.pool)
            .await
            .map_err(database("resume a queue"))?;
        self.ring();
        Ok(done.rows_affected() > 0)
    }

    /// Lets all jobs of some topics that were given up run again. Returns how many.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry_all(&self, topics: &[String], now: SystemTime) -> Result<u64> {
        let text = format!(
            "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0 \
             WHERE ended IS NOT NULL AND state IN ('GIVEN_UP', 'ERROR') AND topic IN ({})",
            places(2, topics.len().max(1))
        );
        let mut query = sqlx::query(sqlx::AssertSqlSafe(text)).bind(millis(now));
        for topic in topics {
            query = query.bind(topic.as_str());
        }
        if topics.is_empty() {
            return Ok(0);
        }
        let done = query.execute(&self.pool).await.map_err(database("retry jobs"))?;
        self.ring();
        Ok(done.rows_affected())
    }

    /// Removes all jobs of a topic but those that run. Returns how many.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn clear(&self, topic: &str) -> Result<u64> {
        let query = sqlx::query("DELETE FROM job WHERE topic = $1 AND state <> 'ACTIVE'");
        let removed = self.execute("clear a queue", query.bind(topic)).await?;
        self.ring();
        Ok(removed)
    }

    /// Lets all jobs of a topic run now: those given up, and those that wait for their next attempt. Returns how many.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn retry_topic(&self, topic: &str, now: SystemTime) -> Result<u64> {
        let query = sqlx::query(
            "UPDATE job SET state = 'QUEUED', run_at = $1, attempt = 0, ended = NULL, cancel = 0, worker = NULL \
             WHERE topic = $2 AND state IN ('GIVEN_UP', 'ERROR', 'DELAYED')",
        );
        let count = self.execute("retry jobs", query.bind(millis(now)).bind(topic)).await?;
        self.ring();
        Ok(count)
    }

    /// Removes jobs that were done or stopped before one time, and those that failed before another. Returns how many.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn prune(&self, done_before: SystemTime, failed_before: SystemTime) -> Result<u64> {
        let action = "remove ended jobs";
        let mut removed = 0;
        loop {
            let mut transaction = self.begin(action).await?;
            let some = self.prune_in(&mut transaction, done_before, failed_before).await?;
            transaction.commit().await.map_err(database(action))?;
            removed += some;
            if some < PRUNED {
                return Ok(removed);
            }
        }
    }

    /// Removes at most [`PRUNED`] of them.
    pub(crate) async fn prune_in(
        &self,
        transaction: &mut Transaction,
        done_before: SystemTime,
        failed_before: SystemTime,
    ) -> Result<u64> {
        let done = sqlx::query(PRUNE_TEXT)
            .bind(millis(done_before))
            .bind(millis(failed_before))
            .bind(i64::try_from(PRUNED).unwrap_or(i64::MAX))
            .execute(&mut **transaction)
            .await
            .map_err(database("remove ended jobs"))?;
        Ok(done.rows_affected())
    }

    /// Returns the processes that work on this database and are alive.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn workers(&self, now: SystemTime) -> Result<Vec<WorkerProcess>> {
        let action = "read the workers";
        let rows = sqlx::query(
            "SELECT name, role, until, facts FROM job_worker WHERE until > $1 ORDER BY name",
        )
        .bind(millis(now))
        .fetch_all(&self.pool)
        .await
        .map_err(database(action))?;
        let worker = |row: &sqlx::any::AnyRow| -> Result<WorkerProcess> {
            Ok(WorkerProcess {
                name: row.try_get(0).map_err(database(action))?,
                role: row.try_get(1).map_err(database(action))?,
                until: time(row.try_get(2).map_err(database(action))?),
                // A process of an earlier version says nothing.
                facts: serde_json::from_str(row.try_get(3).map_err(database(action))?)
                    .unwrap_or_default(),
            })
        };
        rows.iter().map(worker).collect()
    }

    /// Returns the living processes in which a fact is not as here, each with the fact's name.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn unlike(
        &self,
        facts: &BTreeMap<String, String>,
        now: SystemTime,
    ) -> Result<Vec<(String, WorkerProcess)>> {
        let mut unlike = Vec::new();
        for worker in self.workers(now).await? {
            for (name, value) in facts {
                if worker.facts.get(name).is_some_and(|theirs| theirs != value) {
                    unlike.push((name.clone(), worker.clone()));
                }
            }
        }
        Ok(unlike)
    }
}
