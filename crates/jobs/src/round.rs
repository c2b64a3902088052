//! One round of a worker, in one transaction: what ended is stored, leases are renewed, what may run is claimed.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use sqlx::Row;
use tracing::warn;

use crate::choose::choose;
use crate::claim::Lane;
use crate::config::{QueueConfig, QueueKind, QueueSet};
use crate::floor::{Allowance, Ended, Ready};
use crate::handler::JobContext;
use crate::look::PRUNED;
use crate::sql::{Transaction, database, millis, numbers, progress_json, runs, span_millis};
use crate::topic::TopicPattern;
use crate::worker::{Desk, Held, Inner};
use crate::{Claim, Job, JobId, JobState, Outcome, Result};

/// Jobs that are claimed ahead are as many as a queue does in this time, so that short ones need not wait for a sync.
const AHEAD: Duration = Duration::from_millis(50);
/// The most jobs of a queue that are claimed ahead.
const MAX_AHEAD: usize = 512;
/// How often running jobs hear that someone stopped them, and progress is stored.
const LOOK: Duration = Duration::from_secs(1);

/// How long jobs stay in the list that were done or stopped, in queues that keep them.
const KEPT_DONE: Duration = Duration::from_hours(2 * 24);
/// How long jobs that failed wait for someone.
const KEPT_FAILED: Duration = Duration::from_hours(30 * 24);

/// Renews the lease of all that a worker runs.
pub(crate) const RENEW_TEXT: &str =
    concat!("UPDATE job SET lease_until = $1 WHERE worker = $2 AND ", runs!());
/// Finds what a worker runs, and what of it someone stopped.
pub(crate) const MINE_TEXT: &str =
    concat!("SELECT id, cancel FROM job WHERE lease_until > 0 AND worker = $1 AND ", runs!());

/// What is written about a topic's ended jobs.
#[derive(Default)]
struct Tally {
    finished: i64,
    failed: i64,
    cancelled: i64,
    waited: i64,
    ran: i64,
}

/// What becomes of a job.
enum Fate {
    Gone,
    Kept(JobState, Option<String>),
    Again { at: SystemTime, reason: Option<String>, is_counted: bool },
}

impl Inner {
    fn claim(&self) -> Claim<'_> {
        Claim { worker: &self.options.name, lease: self.options.lease }
    }

    /// Does one round. Returns how long to wait for the next one.
    pub(crate) async fn write_round(&self, desk: &mut Desk, now: SystemTime) -> Result<Duration> {
        let action = "work off queues";
        let began = Instant::now();
        let set = self.queue_set();
        let mut transaction = self.queues.begin(action).await?;
        let counted = self.count_begun(&mut transaction, desk, now).await?;
        self.store_ended(&mut transaction, desk, &set, now).await?;
        let has_looked = self.look_after(&mut transaction, desk).await?;
        let has_renewed = self.renew_all(&mut transaction, desk, now).await?;
        let is_pruning =
            (has_renewed || desk.is_pruning) && self.prune(&mut transaction, now).await? == PRUNED;
        self.queues.tidy(&mut transaction, now).await?;
        let mut claimed = Vec::new();
        if !desk.is_stopping {
            self.run_schedules(&mut transaction, now).await?;
            claimed = self.claim_all(&mut transaction, desk, &set, now).await?;
        }
        let due = self.next_due(&mut transaction).await?;
        transaction.commit().await.map_err(database(action))?;
        // Only what is stored is believed.
        self.settle(desk, &counted);
        desk.is_pruning = is_pruning;
        desk.looked = has_looked.then_some(began).or(desk.looked);
        desk.floor.allow(|name| set.config_of(name).map(|config| self.allowance(config)));
        for (job, queue, is_counted) in claimed {
            self.hold(desk, (job, queue, is_counted), &set, began);
        }
        if has_renewed {
            desk.renewed = Some(began);
            for held in desk.held.values() {
                held.context.hold_until(began + self.options.lease);
            }
        }
        let until_due = due.map(|due| due.duration_since(now).unwrap_or_default());
        Ok(until_due
            .unwrap_or(self.options.idle)
            .clamp(Duration::from_millis(1), self.options.idle))
    }

    fn allowance(&self, config: &QueueConfig) -> Allowance {
        let jobs = match config.kind {
            QueueKind::Ordered => 1,
            QueueKind::Unordered | QueueKind::TopicRoundRobin => {
                config.max_parallel.jobs(self.options.cores)
            }
        };
        Allowance { jobs, priority: config.priority }
    }

    /// Forgets what is stored now.
    fn settle(&self, desk: &mut Desk, counted: &[JobId]) {
        for id in counted {
            if let Some(held) = desk.held.get_mut(id) {
                held.is_counted = true;
            }
        }
        for one in std::mem::take(&mut desk.ended) {
            let Some(held) = desk.held.remove(&one.id) else { continue };
            let pace = desk.pace.entry(held.queue).or_insert(one.ran);
            *pace = (*pace * 7 + one.ran) / 8;
        }
    }

    fn hold(
        &self,
        desk: &mut Desk,
        (mut job, queue, is_counted): (Job, String, bool),
        set: &QueueSet,
        began: Instant,
    ) {
        let config = set.queue_of(&job.topic).config;
        let spent = job.attempt - u32::from(is_counted);
        job.attempt = spent + 1;
        let is_last = config.retries.is_some_and(|retries| job.attempt > retries);
        let link = (self.queues.clone(), tokio::runtime::Handle::current());
        let context =
            JobContext::new((job.id, &self.options.name), link, self.options.lease, is_last);
        context.hold_until(began + self.options.lease);
        let (id, topic, run_at) = (job.id, job.topic.clone(), job.run_at);
        let held = Held {
            topic: topic.clone(),
            attempt: job.attempt,
            run_at,
            context: context.clone(),
            queue: queue.clone(),
            is_counted,
            is_stopped: false,
        };
        desk.held.insert(id, held);
        let failed =
            |reason: String| Ended { id, outcome: Outcome::Failed { reason }, ran: Duration::ZERO };
        if config.retries.is_some_and(|retries| spent > retries) {
            // Each attempt that ended otherwise gave it up: those before this one ended with their process.
            desk.ended
                .push(failed(format!("the process that ran it ended in each of {spent} attempts")));
        } else if let Some(handler) = self.handler_of(&topic) {
            desk.floor.push(&queue, self.allowance(config), Ready { job, context, handler });
        } else {
            desk.ended.push(failed("its handler is gone".to_owned()));
        }
    }

    async fn store_ended(
        &self,
        transaction: &mut Transaction,
        desk: &mut Desk,
        set: &QueueSet,
        now: SystemTime,
    ) -> Result<()> {
        if desk.ended.is_empty() {
            return Ok(());
        }
        let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
        let mut gone = Vec::new();
        for one in &desk.ended {
            let Some(held) = desk.held.get(&one.id) else { continue };
            let config = set.queue_of(&held.topic).config;
            let fate = fate_of(one, held, config, (desk.is_stopping, now));
            let tally = tallies.entry(held.topic.clone()).or_default();
            tally.add(one, held, &fate);
            match fate {
                Fate::Gone => gone.push(one.id),
                fate => self.store_fate(transaction, (one.id, held), &fate, now).await?,
            }
        }
        self.remove(transaction, &gone).await?;
        for (topic, tally) in tallies {
            tally.store(transaction, &topic, now).await?;
        }
        Ok(())
    }

    /// Removes jobs that are done.
    async fn remove(&self, transaction: &mut Transaction, ids: &[JobId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let text = format!(
            "DELETE FROM job WHERE id IN ({}) AND worker = $1 AND state = 'ACTIVE'",
            numbers(ids.iter().copied())
        );
        let done = sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database("finish jobs"))?;
        let lost = (ids.len() as u64).saturating_sub(done.rows_affected());
        if lost > 0 {
            warn!(
                jobs = lost,
                "jobs ended after their lease; another worker may have done them again"
            );
        }
        Ok(())
    }

    async fn store_fate(
        &self,
        transaction: &mut Transaction,
        (id, held): (JobId, &Held),
        fate: &Fate,
        now: SystemTime,
    ) -> Result<()> {
        let (state, reason, at, uncounted) = match fate {
            Fate::Gone => return Ok(()),
            Fate::Kept(state, reason) => (*state, reason.as_deref(), None, 0),
            Fate::Again { at, reason, is_counted } => {
                let state = if *at > now { JobState::Delayed } else { JobState::Queued };
                // What was claimed ahead and not begun has no attempt to give back.
                let was_counted = held.is_counted || held.context.began().is_some();
                let given_back = i64::from(!is_counted && was_counted);
                (state, reason.as_deref(), Some(millis(*at)), given_back)
            }
        };
        let is_open = state.is_open();
        let key = if is_open { "job_key" } else { "NULL" };
        // Of one that ended it is told who ran it.
        let worker = if is_open { "NULL" } else { "worker" };
        let text = format!(
            "UPDATE job SET state = $1, run_at = COALESCE($2, run_at), worker = {worker}, lease_until = NULL, \
             attempt = attempt - $3, last_error = COALESCE($4, last_error), ended = $5, job_key = {key} \
             WHERE id = $6 AND worker = $7 AND state = 'ACTIVE'"
        );
        let done = sqlx::query(sqlx::AssertSqlSafe(text))
            .bind(state.name())
            .bind(at)
            .bind(uncounted)
            .bind(reason)
            .bind((!is_open).then(|| millis(now)))
            .bind(id.0)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database("end a job"))?;
        if done.rows_affected() == 0 {
            warn!(
                job = id.0,
                "a job ended after its lease; another worker may have begun it again"
            );
        } else if matches!(state, JobState::GivenUp | JobState::Error) {
            warn!(job = id.0, queue = held.queue, reason, "job given up");
        }
        Ok(())
    }

    /// Counts the attempts of jobs that were claimed ahead and began since, but for those that are done. Returns which.
    async fn count_begun(
        &self,
        transaction: &mut Transaction,
        desk: &Desk,
        now: SystemTime,
    ) -> Result<Vec<JobId>> {
        let done = desk.ended.iter().filter(|one| one.outcome == Outcome::Done);
        let done: HashSet<JobId> = done.map(|one| one.id).collect();
        let has_begun = |held: &Held| !held.is_counted && held.context.began().is_some();
        let begun = desk.held.iter().filter(|(id, held)| has_begun(held) && !done.contains(id));
        let begun: Vec<JobId> = begun.map(|(id, _)| *id).collect();
        self.queues.begin_attempts(transaction, &begun, now).await?;
        Ok(begun)
    }

    /// Removes jobs that ended long ago, as many as one round may. Returns how many.
    async fn prune(&self, transaction: &mut Transaction, now: SystemTime) -> Result<u64> {
        let trusted = self.options.removal_clock.at(now);
        let before = |age| trusted.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        self.queues.prune_in(transaction, before(KEPT_DONE), before(KEPT_FAILED)).await
    }

    /// Renews what this process holds and says that it lives, if it is time to. Tells whether it did.
    async fn renew_all(
        &self,
        transaction: &mut Transaction,
        desk: &Desk,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "renew leases";
        if desk.renewed.is_some_and(|renewed| renewed.elapsed() < self.options.lease / 3) {
            return Ok(false);
        }
        sqlx::query(RENEW_TEXT)
            .bind(millis(now) + span_millis(self.options.lease))
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database(action))?;
        sqlx::query("DELETE FROM job_worker WHERE until <= $1")
            .bind(millis(now))
            .execute(&mut **transaction)
            .await
            .map_err(database(action))?;
        let reserves = if self.options.is_reserving { self.options.takes.as_slice() } else { &[] };
        let reserves: Vec<&str> = reserves.iter().map(TopicPattern::text).collect();
        sqlx::query(
            "INSERT INTO job_worker (name, role, reserves, until, facts) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (name) DO UPDATE SET until = excluded.until",
        )
        .bind(self.options.name.as_str())
        .bind(self.options.role.as_str())
        .bind(reserves.join("\n"))
        .bind(millis(now) + span_millis(self.options.lease))
        .bind(serde_json::json!(self.options.facts).to_string())
        .execute(&mut **transaction)
        .await
        .map_err(database(action))?;
        Ok(true)
    }

    /// Stores progress, tells jobs to stop that someone cancelled or another worker has, and gives back what is claimed in
    /// this worker's name without its knowledge. Does so now and then, and tells whether it did.
    async fn look_after(&self, transaction: &mut Transaction, desk: &mut Desk) -> Result<bool> {
        let action = "look after running jobs";
        if desk.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(false);
        }
        for (id, held) in &desk.held {
            let Some(progress) = held.context.take_progress() else { continue };
            sqlx::query(
                "UPDATE job SET progress = $1 WHERE id = $2 AND worker = $3 AND state = 'ACTIVE'",
            )
            .bind(progress_json(&progress))
            .bind(id.0)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database(action))?;
        }
        let rows = sqlx::query(MINE_TEXT)
            .bind(self.options.name.as_str())
            .fetch_all(&mut **transaction)
            .await
            .map_err(database(action))?;
        let mut mine: BTreeMap<JobId, bool> = BTreeMap::new();
        for row in &rows {
            let id = JobId(row.try_get(0).map_err(database(action))?);
            let cancel: i64 = row.try_get(1).map_err(database(action))?;
            mine.insert(id, cancel != 0);
        }
        let ended: HashSet<JobId> = desk.ended.iter().map(|one| one.id).collect();
        for (id, held) in &mut desk.held {
            match mine.get(id) {
                Some(true) => {
                    held.is_stopped = true;
                    held.context.cancel();
                }
                Some(false) => {}
                None if ended.contains(id) => {}
                None => held.context.lose(),
            }
        }
        // A commit whose answer was lost has claimed what nobody here knows of.
        let unknown = mine.into_keys().filter(|id| !desk.held.contains_key(id));
        self.give_back(transaction, &unknown.collect::<Vec<_>>()).await?;
        Ok(true)
    }

    async fn next_due(&self, transaction: &mut Transaction) -> Result<Option<SystemTime>> {
        let action = "find the next job";
        let text = "SELECT MIN(due) FROM (SELECT MIN(run_at) AS due FROM job WHERE state = 'DELAYED' UNION ALL \
                    SELECT MIN(next_run) FROM job_schedule WHERE is_paused = 0) AS dues";
        let row =
            sqlx::query(text).fetch_one(&mut **transaction).await.map_err(database(action))?;
        Ok(row.try_get::<Option<i64>, _>(0).map_err(database(action))?.map(crate::sql::time))
    }

    /// Claims what queues have room for. Returns each job with its queue, and whether its attempt is counted.
    async fn claim_all(
        &self,
        transaction: &mut Transaction,
        desk: &mut Desk,
        set: &QueueSet,
        now: SystemTime,
    ) -> Result<Vec<(Job, String, bool)>> {
        let lanes = self.queues.lanes(transaction).await?;
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let reserved = self.reserved(transaction, now).await?;
        let paused = self.paused(transaction).await?;
        let mut by_queue: BTreeMap<String, (&QueueConfig, Vec<Lane>)> = BTreeMap::new();
        for lane in lanes {
            let is_mine = self.options.takes.is_empty()
                || self.options.takes.iter().any(|pattern| pattern.covers(&lane.topic));
            let is_reserved = reserved.iter().any(|pattern| pattern.covers(&lane.topic));
            if !is_mine || is_reserved || self.handler_of(&lane.topic).is_none() {
                continue;
            }
            let queue = set.queue_of(&lane.topic);
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
                if desk.floor.holds(&name) == 0
                    && !desk.held.values().any(|held| held.queue == name)
                {
                    claimed.extend(
                        self.claim_ordered(transaction, desk, (set, &name, &lanes), now).await?,
                    );
                }
            } else {
                claimed.extend(
                    self.claim_some(transaction, desk, (&name, config, &lanes), now).await?,
                );
            }
        }
        Ok(claimed)
    }

    async fn claim_ordered(
        &self,
        transaction: &mut Transaction,
        desk: &mut Desk,
        (set, name, lanes): (&QueueSet, &str, &[Lane]),
        now: SystemTime,
    ) -> Result<Option<(Job, String, bool)>> {
        if lanes.iter().any(|lane| !desk.topics.contains(&lane.topic)) {
            desk.topics = self.all_topics(transaction).await?;
        }
        let topics: Vec<&str> = desk
            .topics
            .iter()
            .map(String::as_str)
            .filter(|topic| set.queue_of(topic).name == name)
            .collect();
        let Some(id) = self.queues.oldest(transaction, &topics).await? else { return Ok(None) };
        let mut taken = self.queues.take(transaction, &[id], self.claim(), now).await?;
        let job = taken.pop();
        // Another of its topics may be left to another process.
        if let Some(job) = &job
            && !lanes.iter().any(|lane| lane.topic == job.topic)
        {
            self.give_back(transaction, &[job.id]).await?;
            return Ok(None);
        }
        Ok(job.map(|job| (job, name.to_owned(), true)))
    }

    async fn claim_some(
        &self,
        transaction: &mut Transaction,
        desk: &mut Desk,
        (name, config, lanes): (&str, &QueueConfig, &[Lane]),
        now: SystemTime,
    ) -> Result<Vec<(Job, String, bool)>> {
        let parallel = config.max_parallel.jobs(self.options.cores).min(self.options.threads);
        let ahead = desk.pace.get(name).map_or(0, |pace| jobs_ahead(parallel, *pace));
        let holds = desk.floor.holds(name);
        let want = (parallel + ahead).saturating_sub(holds);
        // Few free places are not worth a round while there is enough at hand.
        if want == 0 || (ahead > 0 && holds > parallel + ahead / 2) {
            return Ok(Vec::new());
        }
        let each = u32::try_from(want.div_ceil(lanes.len().min(want)) + 1).unwrap_or(u32::MAX);
        let mut waiting = Vec::with_capacity(lanes.len());
        for lane in lanes {
            waiting.push((lane.clone(), self.queues.first(transaction, lane, each).await?));
        }
        let last = desk.served.get(name).map(String::as_str);
        let (ids, served) = choose(&waiting, want, config.kind, last);
        if let Some(served) = served {
            desk.served.insert(name.to_owned(), served);
        }
        let now_free = parallel.saturating_sub(holds).min(ids.len());
        let (begin, later) = ids.split_at(now_free);
        let taken = self.queues.take(transaction, begin, self.claim(), now).await?;
        let reserved = self.queues.reserve(transaction, later, self.claim(), now).await?;
        let taken = taken.into_iter().map(|job| (job, name.to_owned(), true));
        Ok(taken.chain(reserved.into_iter().map(|job| (job, name.to_owned(), false))).collect())
    }

    /// Returns what living processes keep for themselves, but for this one.
    async fn reserved(
        &self,
        transaction: &mut Transaction,
        now: SystemTime,
    ) -> Result<Vec<TopicPattern>> {
        let action = "read what others reserve";
        let rows = sqlx::query(
            "SELECT reserves FROM job_worker WHERE until > $1 AND reserves <> '' AND name <> $2",
        )
        .bind(millis(now))
        .bind(self.options.name.as_str())
        .fetch_all(&mut **transaction)
        .await
        .map_err(database(action))?;
        let mut patterns = Vec::new();
        for row in &rows {
            let text: String = row.try_get(0).map_err(database(action))?;
            patterns.extend(text.lines().map(TopicPattern::of_queue));
        }
        // Two that reserve the same share it.
        if self.options.is_reserving {
            patterns.retain(|pattern| !self.options.takes.contains(pattern));
        }
        Ok(patterns)
    }

    async fn paused(&self, transaction: &mut Transaction) -> Result<Vec<String>> {
        let action = "read which queues are paused";
        let rows = sqlx::query("SELECT name FROM job_queue WHERE state = 'PAUSED'")
            .fetch_all(&mut **transaction)
            .await
            .map_err(database(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database(action))).collect()
    }

    async fn all_topics(&self, transaction: &mut Transaction) -> Result<Vec<String>> {
        let action = "read the topics";
        let rows = sqlx::query("SELECT topic FROM job_topic ORDER BY topic")
            .fetch_all(&mut **transaction)
            .await
            .map_err(database(action))?;
        rows.iter().map(|row| row.try_get(0).map_err(database(action))).collect()
    }

    async fn give_back(&self, transaction: &mut Transaction, ids: &[JobId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let text = format!(
            "UPDATE job SET state = 'QUEUED', worker = NULL, lease_until = NULL, \
             attempt = CASE WHEN attempt > 0 THEN attempt - 1 ELSE 0 END \
             WHERE id IN ({}) AND worker = $1 AND state = 'ACTIVE'",
            numbers(ids.iter().copied())
        );
        sqlx::query(sqlx::AssertSqlSafe(text))
            .persistent(false)
            .bind(self.options.name.as_str())
            .execute(&mut **transaction)
            .await
            .map_err(database("give jobs back"))?;
        Ok(())
    }

    /// Gives back all jobs that were not begun or do not end, and says that the process is gone.
    pub(crate) async fn leave(&self, desk: &mut Desk) -> Result<()> {
        let action = "end a worker";
        let mut transaction = self.queues.begin(action).await?;
        // Those whose attempt is counted and that were not begun get it back.
        let is_unbegun = |held: &Held| held.context.began().is_none() && held.is_counted;
        let unbegun = desk.held.iter().filter(|(_, held)| is_unbegun(held));
        let unbegun: Vec<JobId> = unbegun.map(|(id, _)| *id).collect();
        self.give_back(&mut transaction, &unbegun).await?;
        // Those that still run keep their lease: they are not to run twice at the same time.
        let running = desk.held.iter().filter(|(_, held)| held.context.began().is_some());
        let running: Vec<JobId> = running.map(|(id, _)| *id).collect();
        if !running.is_empty() {
            let jobs = running.len();
            warn!(
                jobs,
                "jobs still run and are begun again when their lease ends, or at the next start"
            );
        }
        let running = numbers(running);
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
            .map_err(database(action))?;
        sqlx::query("DELETE FROM job_worker WHERE name = $1")
            .bind(self.options.name.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(database(action))?;
        transaction.commit().await.map_err(database(action))?;
        desk.held.clear();
        Ok(())
    }
}

/// Returns how many jobs of a queue to claim ahead.
fn jobs_ahead(parallel: usize, pace: Duration) -> usize {
    if pace >= AHEAD {
        return 0;
    }
    let each = AHEAD.as_micros() / pace.as_micros().max(1);
    parallel.saturating_mul(usize::try_from(each).unwrap_or(MAX_AHEAD)).min(MAX_AHEAD)
}

fn fate_of(
    one: &Ended,
    held: &Held,
    config: &QueueConfig,
    (is_stopping, now): (bool, SystemTime),
) -> Fate {
    match &one.outcome {
        Outcome::Done if config.is_keeping_jobs => Fate::Kept(JobState::Succeeded, None),
        Outcome::Done => Fate::Gone,
        Outcome::Failed { reason } => Fate::Kept(JobState::Error, Some(reason.clone())),
        Outcome::Retry { after, reason } => {
            if config.retries.is_some_and(|retries| held.attempt > retries) {
                return Fate::Kept(JobState::GivenUp, Some(reason.clone()));
            }
            let at = now + after.unwrap_or(config.retry_delay);
            Fate::Again { at, reason: Some(reason.clone()), is_counted: true }
        }
        Outcome::Wait { after } => {
            Fate::Again { at: now + *after, reason: None, is_counted: false }
        }
        Outcome::Cancelled if is_stopping && !held.is_stopped => {
            Fate::Again { at: now, reason: None, is_counted: false }
        }
        Outcome::Cancelled => Fate::Kept(JobState::Stopped, None),
    }
}

impl Tally {
    fn add(&mut self, one: &Ended, held: &Held, fate: &Fate) {
        match one.outcome {
            Outcome::Done => {
                self.finished += 1;
                self.ran += span_millis(one.ran);
                let began = held.context.began();
                let waited = began.and_then(|at| at.duration_since(held.run_at).ok());
                self.waited += span_millis(waited.unwrap_or_default());
            }
            Outcome::Retry { .. } | Outcome::Failed { .. } => self.failed += 1,
            Outcome::Cancelled => self.cancelled += i64::from(matches!(fate, Fate::Kept(..))),
            Outcome::Wait { .. } => {}
        }
    }

    async fn store(
        &self,
        transaction: &mut Transaction,
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
        .bind(self.waited)
        .bind(self.ran)
        .bind(millis(now))
        .bind(topic)
        .execute(&mut **transaction)
        .await
        .map_err(database("count jobs"))?;
        Ok(())
    }
}
