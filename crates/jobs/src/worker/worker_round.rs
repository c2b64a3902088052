//! One round of a worker, in one transaction: stores ended attempts, renews leases, and claims jobs that may run.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use sqlx::Row;
use tracing::warn;

use crate::queue::job_claim::JobLane;
use crate::queue::job_query::PRUNE_BATCH_SIZE;
use crate::queue::job_selection::select_jobs;
use crate::queue::queue_config::{QueueConfig, QueueKind, QueueSet};
use crate::queue::sql::{
    WriteTransaction, database_error, duration_to_millis, join_job_ids, progress_to_json, runs,
    to_epoch_millis,
};
use crate::queue::topic::TopicPattern;
use crate::worker::job_executor::{EndedAttempt, QueueAllowance, ReadyJob};
use crate::worker::job_handler::JobContext;
use crate::worker::job_worker::{ClaimedJob, JobWorkerState, WorkerLoopState};
use crate::{Job, JobClaim, JobId, JobOutcome, JobState, Result};

/// As many jobs are claimed ahead as a queue completes in this time, so that short jobs need not wait for a sync.
const CLAIM_AHEAD_TIME: Duration = Duration::from_millis(50);
/// Maximum number of jobs of a queue that are claimed ahead.
const MAX_CLAIMED_AHEAD: usize = 512;
/// Interval at which stop requests of running jobs are read and progress is stored.
const RUNNING_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Retention time of completed or stopped jobs, in queues that retain them.
const DONE_RETENTION: Duration = Duration::from_hours(2 * 24);
/// Retention time of failed jobs.
const FAILED_RETENTION: Duration = Duration::from_hours(30 * 24);

/// Renews the leases of all jobs that a worker runs.
pub(crate) const RENEW_LEASES_SQL: &str =
    concat!("UPDATE job SET lease_until = $1 WHERE worker = $2 AND ", runs!());
/// Returns the jobs that a worker runs, with their stop requests.
pub(crate) const RUNNING_JOBS_SQL: &str =
    concat!("SELECT id, cancel FROM job WHERE lease_until > 0 AND worker = $1 AND ", runs!());

/// Statistics to store for a topic's ended jobs.
#[derive(Default)]
struct TopicTally {
    finished: i64,
    failed: i64,
    cancelled: i64,
    wait_millis: i64,
    run_millis: i64,
}

/// The final state of a job after an attempt.
enum JobDisposition {
    Removed,
    Retained(JobState, Option<String>),
    Requeued { run_at: SystemTime, reason: Option<String>, is_attempt_counted: bool },
}

impl JobWorkerState {
    fn job_claim(&self) -> JobClaim<'_> {
        JobClaim { worker: &self.options.name, lease: self.options.lease }
    }

    /// Runs one round. Returns the delay before the next one.
    pub(crate) async fn run_round(
        &self,
        loop_state: &mut WorkerLoopState,
        now: SystemTime,
    ) -> Result<Duration> {
        let action = "process queues";
        let began = Instant::now();
        let set = self.queue_set();
        let mut transaction = self.queues.begin_write(action).await?;
        let counted = self.count_started_attempts(&mut transaction, loop_state, now).await?;
        self.store_ended_jobs(&mut transaction, loop_state, &set, now).await?;
        let has_looked = self.check_running_jobs(&mut transaction, loop_state).await?;
        let has_renewed = self.renew_leases(&mut transaction, loop_state, now).await?;
        let is_pruning = (has_renewed || loop_state.is_pruning)
            && self.prune_ended_jobs(&mut transaction, now).await? == PRUNE_BATCH_SIZE;
        self.queues.recover_due_jobs(&mut transaction, now).await?;
        let mut claimed = Vec::new();
        if !loop_state.is_stopping {
            self.run_due_schedules(&mut transaction, now).await?;
            claimed = self.claim_for_queues(&mut transaction, loop_state, &set, now).await?;
        }
        let due = self.next_due_time(&mut transaction).await?;
        transaction.commit().await.map_err(database_error(action))?;
        // The state in memory is updated only after the commit.
        self.forget_stored(loop_state, &counted);
        loop_state.is_pruning = is_pruning;
        loop_state.running_checked_at =
            has_looked.then_some(began).or(loop_state.running_checked_at);
        loop_state.executor.update_allowances(|name| {
            set.config_for_queue(name).map(|config| self.queue_allowance(config))
        });
        for (job, queue, is_counted) in claimed {
            self.accept_claimed(loop_state, job, &queue, is_counted, &set, began);
        }
        if has_renewed {
            loop_state.leases_renewed_at = Some(began);
            for claimed_job in loop_state.claimed_jobs.values() {
                claimed_job.context.set_lease_deadline(began + self.options.lease);
            }
        }
        let until_due = due.map(|due| due.duration_since(now).unwrap_or_default());
        Ok(until_due
            .unwrap_or(self.options.poll_interval)
            .clamp(Duration::from_millis(1), self.options.poll_interval))
    }

    fn queue_allowance(&self, config: &QueueConfig) -> QueueAllowance {
        let jobs = match config.kind {
            QueueKind::Ordered => 1,
            QueueKind::Unordered | QueueKind::TopicRoundRobin => {
                config.max_parallel.job_limit(self.options.cores)
            }
        };
        QueueAllowance { max_jobs: jobs, priority: config.priority }
    }

    /// Removes stored attempts from memory.
    fn forget_stored(&self, loop_state: &mut WorkerLoopState, counted: &[JobId]) {
        for id in counted {
            if let Some(claimed_job) = loop_state.claimed_jobs.get_mut(id) {
                claimed_job.is_attempt_counted = true;
            }
        }
        for attempt in std::mem::take(&mut loop_state.ended_attempts) {
            let Some(claimed_job) = loop_state.claimed_jobs.remove(&attempt.id) else { continue };
            let pace =
                loop_state.average_run_times.entry(claimed_job.queue).or_insert(attempt.run_time);
            *pace = (*pace * 7 + attempt.run_time) / 8;
        }
    }

    fn accept_claimed(
        &self,
        loop_state: &mut WorkerLoopState,
        mut job: Job,
        queue: &str,
        is_counted: bool,
        set: &QueueSet,
        began: Instant,
    ) {
        let config = set.queue_for_topic(&job.topic).config;
        let spent = job.attempt - u32::from(is_counted);
        job.attempt = spent + 1;
        let is_last = config.retries.is_some_and(|retries| job.attempt > retries);
        let link = (self.queues.clone(), tokio::runtime::Handle::current());
        let context =
            JobContext::new((job.id, &self.options.name), link, self.options.lease, is_last);
        context.set_lease_deadline(began + self.options.lease);
        let (id, topic, run_at) = (job.id, job.topic.clone(), job.run_at);
        let claimed_job = ClaimedJob {
            topic: topic.clone(),
            attempt: job.attempt,
            run_at,
            context: context.clone(),
            queue: queue.to_owned(),
            is_attempt_counted: is_counted,
            is_stop_requested: false,
        };
        loop_state.claimed_jobs.insert(id, claimed_job);
        let failed = |reason: String| EndedAttempt {
            id,
            outcome: JobOutcome::Failed { reason },
            run_time: Duration::ZERO,
        };
        if config.retries.is_some_and(|retries| spent > retries) {
            // An attempt with another outcome gave the job up; the attempts before this one ended with their process.
            loop_state
                .ended_attempts
                .push(failed(format!("the process that ran it ended in each of {spent} attempts")));
        } else if let Some(handler) = self.find_handler(&topic) {
            loop_state.executor.push_ready(
                queue,
                self.queue_allowance(config),
                ReadyJob { job, context, handler },
            );
        } else {
            loop_state
                .ended_attempts
                .push(failed("its handler is no longer registered".to_owned()));
        }
    }

    async fn store_ended_jobs(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &mut WorkerLoopState,
        set: &QueueSet,
        now: SystemTime,
    ) -> Result<()> {
        if loop_state.ended_attempts.is_empty() {
            return Ok(());
        }
        let mut tallies: BTreeMap<String, TopicTally> = BTreeMap::new();
        let mut removed_ids = Vec::new();
        for attempt in &loop_state.ended_attempts {
            let Some(claimed_job) = loop_state.claimed_jobs.get(&attempt.id) else { continue };
            let config = set.queue_for_topic(&claimed_job.topic).config;
            let disposition =
                disposition_of(attempt, claimed_job, config, loop_state.is_stopping, now);
            let counts = tallies.entry(claimed_job.topic.clone()).or_default();
            counts.record_ended(attempt, claimed_job, &disposition);
            match disposition {
                JobDisposition::Removed => removed_ids.push(attempt.id),
                disposition => {
                    self.store_disposition(transaction, attempt.id, claimed_job, &disposition, now)
                        .await?
                }
            }
        }
        self.remove_jobs(transaction, &removed_ids).await?;
        for (topic, counts) in tallies {
            counts.store_tally(transaction, &topic, now).await?;
        }
        Ok(())
    }

    /// Removes completed jobs.
    async fn remove_jobs(&self, transaction: &mut WriteTransaction, ids: &[JobId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let text = format!(
            "DELETE FROM job WHERE id IN ({}) AND worker = $1 AND state = 'ACTIVE'",
            join_job_ids(ids.iter().copied())
        );
        let done = sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database_error("finish jobs"))?;
        let lost = (ids.len() as u64).saturating_sub(done.rows_affected());
        if lost > 0 {
            warn!(
                jobs = lost,
                "jobs ended after their lease; another worker may have run them again"
            );
        }
        Ok(())
    }

    async fn store_disposition(
        &self,
        transaction: &mut WriteTransaction,
        id: JobId,
        claimed_job: &ClaimedJob,
        disposition: &JobDisposition,
        now: SystemTime,
    ) -> Result<()> {
        let (state, reason, run_at, uncounted) = match disposition {
            JobDisposition::Removed => return Ok(()),
            JobDisposition::Retained(state, reason) => (*state, reason.as_deref(), None, 0),
            JobDisposition::Requeued { run_at, reason, is_attempt_counted } => {
                let state = if *run_at > now { JobState::Delayed } else { JobState::Queued };
                // A job that was claimed ahead and not begun has no counted attempt to give back.
                let was_counted =
                    claimed_job.is_attempt_counted || claimed_job.context.started_at().is_some();
                let given_back = i64::from(!is_attempt_counted && was_counted);
                (state, reason.as_deref(), Some(to_epoch_millis(*run_at)), given_back)
            }
        };
        let is_open = state.is_open();
        let key = if is_open { "job_key" } else { "NULL" };
        // An ended job keeps the name of its worker.
        let worker = if is_open { "NULL" } else { "worker" };
        let text = format!(
            "UPDATE job SET state = $1, run_at = COALESCE($2, run_at), worker = {worker}, lease_until = NULL, \
             attempt = attempt - $3, last_error = COALESCE($4, last_error), ended = $5, job_key = {key} \
             WHERE id = $6 AND worker = $7 AND state = 'ACTIVE'"
        );
        let done = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(state.name())
            .bind(run_at)
            .bind(uncounted)
            .bind(reason)
            .bind((!is_open).then(|| to_epoch_millis(now)))
            .bind(id.0)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database_error("end a job"))?;
        if done.rows_affected() == 0 {
            warn!(
                job = id.0,
                "a job ended after its lease; another worker may have started it again"
            );
        } else if matches!(state, JobState::GivenUp | JobState::Error) {
            warn!(job = id.0, queue = claimed_job.queue, reason, "job given up");
        }
        Ok(())
    }

    /// Counts the attempts of jobs that were claimed ahead and have begun since, except for completed ones. Returns
    /// their numbers.
    async fn count_started_attempts(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &WorkerLoopState,
        now: SystemTime,
    ) -> Result<Vec<JobId>> {
        let done =
            loop_state.ended_attempts.iter().filter(|attempt| attempt.outcome == JobOutcome::Done);
        let done: HashSet<JobId> = done.map(|attempt| attempt.id).collect();
        let has_begun = |claimed_job: &ClaimedJob| {
            !claimed_job.is_attempt_counted && claimed_job.context.started_at().is_some()
        };
        let started_jobs = loop_state
            .claimed_jobs
            .iter()
            .filter(|(id, claimed_job)| has_begun(claimed_job) && !done.contains(id));
        let started_ids: Vec<JobId> = started_jobs.map(|(id, _)| *id).collect();
        self.queues.begin_attempts(transaction, &started_ids, now).await?;
        Ok(started_ids)
    }

    /// Removes old ended jobs, up to the limit of one round. Returns the number of removed jobs.
    async fn prune_ended_jobs(
        &self,
        transaction: &mut WriteTransaction,
        now: SystemTime,
    ) -> Result<u64> {
        let trusted = self.options.removal_clock.trusted_time(now);
        let before = |age| trusted.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.queues.prune_batch(transaction, before(DONE_RETENTION), before(FAILED_RETENTION)).await
    }

    /// Renews the leases and the process's own liveness, if due. Returns true if it did.
    async fn renew_leases(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &WorkerLoopState,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "renew leases";
        if loop_state
            .leases_renewed_at
            .is_some_and(|renewed| renewed.elapsed() < self.options.lease / 3)
        {
            return Ok(false);
        }
        sqlx::query(RENEW_LEASES_SQL)
            .bind(to_epoch_millis(now) + duration_to_millis(self.options.lease))
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        sqlx::query("DELETE FROM job_worker WHERE until <= $1")
            .bind(to_epoch_millis(now))
            .execute(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        let reserves = if self.options.reserves_topics {
            self.options.accepted_topics.as_slice()
        } else {
            &[]
        };
        let reserves: Vec<&str> = reserves.iter().map(TopicPattern::text).collect();
        sqlx::query(
            "INSERT INTO job_worker (name, role, reserves, until, facts) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (name) DO UPDATE SET until = excluded.until",
        )
        .bind(self.options.name.as_str())
        .bind(self.options.role.as_str())
        .bind(reserves.join("\n"))
        .bind(to_epoch_millis(now) + duration_to_millis(self.options.lease))
        .bind(serde_json::json!(self.options.shared_facts).to_string())
        .execute(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        Ok(true)
    }

    /// Stores progress, stops jobs that were canceled or that another worker holds, and releases claims in this
    /// worker's name that it does not know. Does this at an interval, and returns true if it did.
    async fn check_running_jobs(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &mut WorkerLoopState,
    ) -> Result<bool> {
        let action = "check running jobs";
        if loop_state
            .running_checked_at
            .is_some_and(|looked| looked.elapsed() < RUNNING_CHECK_INTERVAL)
        {
            return Ok(false);
        }
        for (id, claimed_job) in &loop_state.claimed_jobs {
            let Some(progress) = claimed_job.context.take_changed_progress() else { continue };
            sqlx::query(
                "UPDATE job SET progress = $1 WHERE id = $2 AND worker = $3 AND state = 'ACTIVE'",
            )
            .bind(progress_to_json(&progress))
            .bind(id.0)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        }
        let rows = sqlx::query(RUNNING_JOBS_SQL)
            .bind(self.options.name.as_str())
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        let mut cancel_flags: BTreeMap<JobId, bool> = BTreeMap::new();
        for row in &rows {
            let id = JobId(row.try_get(0).map_err(database_error(action))?);
            let cancel: i64 = row.try_get(1).map_err(database_error(action))?;
            cancel_flags.insert(id, cancel != 0);
        }
        let ended: HashSet<JobId> =
            loop_state.ended_attempts.iter().map(|attempt| attempt.id).collect();
        for (id, claimed_job) in &mut loop_state.claimed_jobs {
            match cancel_flags.get(id) {
                Some(true) => {
                    claimed_job.is_stop_requested = true;
                    claimed_job.context.cancel();
                }
                Some(false) => {}
                None if ended.contains(id) => {}
                None => claimed_job.context.mark_lease_lost(),
            }
        }
        // A commit whose response was lost may have claimed jobs that are unknown here.
        let unknown =
            cancel_flags.into_keys().filter(|id| !loop_state.claimed_jobs.contains_key(id));
        self.release_jobs(transaction, &unknown.collect::<Vec<_>>()).await?;
        Ok(true)
    }

    async fn next_due_time(
        &self,
        transaction: &mut WriteTransaction,
    ) -> Result<Option<SystemTime>> {
        let action = "find the next job";
        let text = "SELECT MIN(due) FROM (SELECT MIN(run_at) AS due FROM job WHERE state = 'DELAYED' UNION ALL \
                    SELECT MIN(next_run) FROM job_schedule WHERE is_paused = 0) AS dues";
        let row = sqlx::query(text)
            .fetch_one(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        Ok(row
            .try_get::<Option<i64>, _>(0)
            .map_err(database_error(action))?
            .map(crate::queue::sql::from_epoch_millis))
    }

    /// Claims jobs up to the free capacity of the queues. Returns each job with its queue, and true if its attempt is
    /// counted.
    async fn claim_for_queues(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &mut WorkerLoopState,
        set: &QueueSet,
        now: SystemTime,
    ) -> Result<Vec<(Job, String, bool)>> {
        let lanes = self.queues.list_lanes(transaction).await?;
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let reserved = self.reserved_topics(transaction, now).await?;
        let paused = self.paused_queues(transaction).await?;
        let mut by_queue: BTreeMap<String, (&QueueConfig, Vec<JobLane>)> = BTreeMap::new();
        for lane in lanes {
            let is_mine = self.options.accepted_topics.is_empty()
                || self.options.accepted_topics.iter().any(|pattern| pattern.covers(&lane.topic));
            let is_reserved = reserved.iter().any(|pattern| pattern.covers(&lane.topic));
            if !is_mine || is_reserved || self.find_handler(&lane.topic).is_none() {
                continue;
            }
            let queue = set.queue_for_topic(&lane.topic);
            if paused.contains(&queue.name) {
                continue;
            }
            by_queue.entry(queue.name).or_insert((queue.config, Vec::new())).1.push(lane);
        }
        let mut order: Vec<_> = by_queue.into_iter().collect();
        order.sort_by_key(|(_, (config, _))| std::cmp::Reverse(config.priority));
        let mut claimed = Vec::new();
        for (name, (config, lanes)) in order {
            if config.kind == QueueKind::Ordered {
                if loop_state.executor.count_held(&name) == 0
                    && !loop_state
                        .claimed_jobs
                        .values()
                        .any(|claimed_job| claimed_job.queue == name)
                {
                    claimed.extend(
                        self.claim_ordered_job(transaction, loop_state, set, &name, &lanes, now)
                            .await?,
                    );
                }
            } else {
                claimed.extend(
                    self.claim_unordered_jobs(transaction, loop_state, &name, config, &lanes, now)
                        .await?,
                );
            }
        }
        Ok(claimed)
    }

    async fn claim_ordered_job(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &mut WorkerLoopState,
        set: &QueueSet,
        name: &str,
        lanes: &[JobLane],
        now: SystemTime,
    ) -> Result<Option<(Job, String, bool)>> {
        if lanes.iter().any(|lane| !loop_state.known_topics.contains(&lane.topic)) {
            loop_state.known_topics = self.load_topics(transaction).await?;
        }
        let topics: Vec<&str> = loop_state
            .known_topics
            .iter()
            .map(String::as_str)
            .filter(|topic| set.queue_for_topic(topic).name == name)
            .collect();
        let Some(id) = self.queues.find_oldest_open(transaction, &topics).await? else {
            return Ok(None);
        };
        let mut claimed_jobs =
            self.queues.claim_by_id(transaction, &[id], self.job_claim(), now).await?;
        let job = claimed_jobs.pop();
        // Another of the queue's topics may be reserved by another process.
        if let Some(job) = &job
            && !lanes.iter().any(|lane| lane.topic == job.topic)
        {
            self.release_jobs(transaction, &[job.id]).await?;
            return Ok(None);
        }
        Ok(job.map(|job| (job, name.to_owned(), true)))
    }

    async fn claim_unordered_jobs(
        &self,
        transaction: &mut WriteTransaction,
        loop_state: &mut WorkerLoopState,
        name: &str,
        config: &QueueConfig,
        lanes: &[JobLane],
        now: SystemTime,
    ) -> Result<Vec<(Job, String, bool)>> {
        let parallel = config.max_parallel.job_limit(self.options.cores).min(self.options.threads);
        let ahead = loop_state
            .average_run_times
            .get(name)
            .map_or(0, |pace| claim_ahead_count(parallel, *pace));
        let holds = loop_state.executor.count_held(name);
        let want = (parallel + ahead).saturating_sub(holds);
        // Little free capacity is not worth a round while enough jobs are ready.
        if want == 0 || (ahead > 0 && holds > parallel + ahead / 2) {
            return Ok(Vec::new());
        }
        let each = u32::try_from(want.div_ceil(lanes.len().min(want)) + 1).unwrap_or(u32::MAX);
        let mut waiting = Vec::with_capacity(lanes.len());
        for lane in lanes {
            waiting.push((lane.clone(), self.queues.first_of_lane(transaction, lane, each).await?));
        }
        let last = loop_state.last_served.get(name).map(String::as_str);
        let (ids, served) = select_jobs(&waiting, want, config.kind, last);
        if let Some(served) = served {
            loop_state.last_served.insert(name.to_owned(), served);
        }
        let now_free = parallel.saturating_sub(holds).min(ids.len());
        let (begin, later) = ids.split_at(now_free);
        let claimed_jobs =
            self.queues.claim_by_id(transaction, begin, self.job_claim(), now).await?;
        let reserved = self.queues.claim_ahead(transaction, later, self.job_claim(), now).await?;
        let claimed_jobs = claimed_jobs.into_iter().map(|job| (job, name.to_owned(), true));
        Ok(claimed_jobs
            .chain(reserved.into_iter().map(|job| (job, name.to_owned(), false)))
            .collect())
    }

    /// Returns the topics that other live processes reserve.
    async fn reserved_topics(
        &self,
        transaction: &mut WriteTransaction,
        now: SystemTime,
    ) -> Result<Vec<TopicPattern>> {
        let action = "read the topics that others reserve";
        let rows = sqlx::query(
            "SELECT reserves FROM job_worker WHERE until > $1 AND reserves <> '' AND name <> $2",
        )
        .bind(to_epoch_millis(now))
        .bind(self.options.name.as_str())
        .fetch_all(&mut **transaction)
        .await
        .map_err(database_error(action))?;
        let mut patterns = Vec::new();
        for row in &rows {
            let text: String = row.try_get(0).map_err(database_error(action))?;
            patterns.extend(text.lines().map(TopicPattern::parse_queue_pattern));
        }
        // Two processes that reserve the same topic share it.
        if self.options.reserves_topics {
            patterns.retain(|pattern| !self.options.accepted_topics.contains(pattern));
        }
        Ok(patterns)
    }

    async fn paused_queues(&self, transaction: &mut WriteTransaction) -> Result<Vec<String>> {
        let action = "read which queues are paused";
        let rows = sqlx::query("SELECT name FROM job_queue WHERE state = 'PAUSED'")
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database_error(action))).collect()
    }

    async fn load_topics(&self, transaction: &mut WriteTransaction) -> Result<Vec<String>> {
        let action = "read the topics";
        let rows = sqlx::query("SELECT topic FROM job_topic ORDER BY topic")
            .fetch_all(&mut **transaction)
            .await
            .map_err(database_error(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database_error(action))).collect()
    }

    async fn release_jobs(&self, transaction: &mut WriteTransaction, ids: &[JobId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let text = format!(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL, \
             attempt = CASE WHEN attempt > 0 THEN attempt - 1 ELSE 0 END \
             WHERE id IN ({}) AND worker = $1 AND state = 'ACTIVE'",
            join_job_ids(ids.iter().copied())
        );
        sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database_error("release jobs"))?;
        Ok(())
    }

    /// Releases all jobs that were not begun or do not end, and marks the process as stopped.
    pub(crate) async fn shut_down(&self, loop_state: &mut WorkerLoopState) -> Result<()> {
        let action = "stop a worker";
        let mut transaction = self.queues.begin_write(action).await?;
        // Jobs whose attempt is counted but that were not begun get the attempt back.
        let is_unbegun = |claimed_job: &ClaimedJob| {
            claimed_job.context.started_at().is_none() && claimed_job.is_attempt_counted
        };
        let unbegun =
            loop_state.claimed_jobs.iter().filter(|(_, claimed_job)| is_unbegun(claimed_job));
        let unbegun: Vec<JobId> = unbegun.map(|(id, _)| *id).collect();
        self.release_jobs(&mut transaction, &unbegun).await?;
        // Running jobs keep their lease, because they must not run twice at the same time.
        let running = loop_state
            .claimed_jobs
            .iter()
            .filter(|(_, claimed_job)| claimed_job.context.started_at().is_some());
        let running: Vec<JobId> = running.map(|(id, _)| *id).collect();
        if !running.is_empty() {
            let jobs = running.len();
            warn!(
                jobs,
                "jobs are still running; they start again when their lease expires, or at the next start"
            );
        }
        let running = join_job_ids(running);
        let text = format!(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL \
             WHERE worker = $1 AND {} AND id NOT IN ({})",
            runs!(),
            if running.is_empty() { "-1" } else { &running }
        );
        sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(self.options.name.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        sqlx::query("DELETE FROM job_worker WHERE name = $1")
            .bind(self.options.name.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        transaction.commit().await.map_err(database_error(action))?;
        loop_state.claimed_jobs.clear();
        Ok(())
    }
}

/// Returns the number of jobs of a queue to claim ahead.
fn claim_ahead_count(parallel: usize, pace: Duration) -> usize {
    if pace >= CLAIM_AHEAD_TIME {
        return 0;
    }
    let each = CLAIM_AHEAD_TIME.as_micros() / pace.as_micros().max(1);
    parallel
        .saturating_mul(usize::try_from(each).unwrap_or(MAX_CLAIMED_AHEAD))
        .min(MAX_CLAIMED_AHEAD)
}

fn disposition_of(
    attempt: &EndedAttempt,
    claimed_job: &ClaimedJob,
    config: &QueueConfig,
    is_stopping: bool,
    now: SystemTime,
) -> JobDisposition {
    match &attempt.outcome {
        JobOutcome::Done if config.keeps_finished_jobs => {
            JobDisposition::Retained(JobState::Succeeded, None)
        }
        JobOutcome::Done => JobDisposition::Removed,
        JobOutcome::Failed { reason } => {
            JobDisposition::Retained(JobState::Error, Some(reason.clone()))
        }
        JobOutcome::Retry { after, reason } => {
            if config.retries.is_some_and(|retries| claimed_job.attempt > retries) {
                return JobDisposition::Retained(JobState::GivenUp, Some(reason.clone()));
            }
            let at = now + after.unwrap_or(config.retry_delay);
            JobDisposition::Requeued {
                run_at: at,
                reason: Some(reason.clone()),
                is_attempt_counted: true,
            }
        }
        JobOutcome::Wait { after } => JobDisposition::Requeued {
            run_at: now + *after,
            reason: None,
            is_attempt_counted: false,
        },
        JobOutcome::Cancelled if is_stopping && !claimed_job.is_stop_requested => {
            JobDisposition::Requeued { run_at: now, reason: None, is_attempt_counted: false }
        }
        JobOutcome::Cancelled => JobDisposition::Retained(JobState::Stopped, None),
    }
}

impl TopicTally {
    fn record_ended(
        &mut self,
        attempt: &EndedAttempt,
        claimed_job: &ClaimedJob,
        disposition: &JobDisposition,
    ) {
        match attempt.outcome {
            JobOutcome::Done => {
                self.finished += 1;
                self.run_millis += duration_to_millis(attempt.run_time);
                let began = claimed_job.context.started_at();
                let waited = began.and_then(|at| at.duration_since(claimed_job.run_at).ok());
                self.wait_millis += duration_to_millis(waited.unwrap_or_default());
            }
            JobOutcome::Retry { .. } | JobOutcome::Failed { .. } => self.failed += 1,
            JobOutcome::Cancelled => {
                self.cancelled += i64::from(matches!(disposition, JobDisposition::Retained(..)))
            }
            JobOutcome::Wait { .. } => {}
        }
    }

    async fn store_tally(
        &self,
        transaction: &mut WriteTransaction,
        topic: &str,
        now: SystemTime,
    ) -> Result<()> {
        sqlx::query(
            "UPDATE job_topic SET finished = finished + $1, failed = failed + $2, cancelled = cancelled + $3, \
             wait_ms = wait_ms + $4, run_ms = run_ms + $5, last_ended = $6 WHERE topic = $7",
        )
        .bind(self.finished)
        .bind(self.failed)
        .bind(self.cancelled)
        .bind(self.wait_millis)
        .bind(self.run_millis)
        .bind(to_epoch_millis(now))
        .bind(topic)
        .execute(&mut **transaction)
        .await
        .map_err(database_error("count jobs"))?;
        Ok(())
    }
}
