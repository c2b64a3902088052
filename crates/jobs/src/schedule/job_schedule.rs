//! Schedules: jobs that are added repeatedly, or at a given time.
//!
//! Invariants
//! * A schedule adds its job and advances to its next time in one transaction: no time is lost or used twice.
//! * While a job of a schedule waits or runs, the next one is not added.
//! * Times that passed while no process ran are made up for once.

use std::time::SystemTime;

use serde_json::Value;
use sqlx::Row;
use tracing::warn;

use crate::queue::sql::{WriteTransaction, database_error, from_epoch_millis, to_epoch_millis};
use crate::schedule::schedule_rule::ScheduleRule;
use crate::worker::job_worker::JobWorkerState;
use crate::{Error, JobId, JobQueues, NewJob, Result};

/// A stored schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSchedule {
    /// Its name.
    pub name: String,
    /// The topic of its jobs.
    pub topic: String,
    /// Their properties.
    pub properties: Value,
    /// The rule of the schedule: see [`ScheduleRule::parse`].
    pub rule_text: String,
    /// The next run time; `None` if the schedule is over.
    pub next_run: Option<SystemTime>,
    /// The tenant of its jobs.
    pub tenant: String,
    /// The user who requested it.
    pub user: String,
    /// True if the schedule is paused.
    pub is_paused: bool,
}

impl JobSchedule {
    /// Returns the job that the schedule adds.
    fn into_job(self) -> NewJob {
        NewJob::new(self.topic, self.properties)
            .with_key(format!("schedule {}", self.name))
            .with_tenant(self.tenant)
            .with_user(self.user)
    }
}

/// The schedules of queues.
#[derive(Debug, Clone)]
pub struct JobSchedules {
    queues: JobQueues,
}

impl JobQueues {
    /// Returns the schedules.
    #[must_use]
    pub fn schedules(&self) -> JobSchedules {
        JobSchedules { queues: self.clone() }
    }
}

impl JobSchedules {
    /// Stores a schedule, or replaces the one of this name; an unchanged schedule keeps its next time.
    ///
    /// # Errors
    /// [`Error::InvalidSchedule`] if the rule is invalid or never fires; errors of the database.
    pub async fn add(&self, name: &str, rule: &str, job: &NewJob, now: SystemTime) -> Result<()> {
        crate::queue::topic::check_topic(&job.topic)?;
        let refused = |reason: String| Error::InvalidSchedule { name: name.to_owned(), reason };
        let parsed = ScheduleRule::parse(rule).map_err(refused)?;
        let next =
            parsed.next_run_after(now).ok_or_else(|| refused("it never fires".to_owned()))?;
        sqlx::query(
            "INSERT INTO job_schedule (name, topic, payload, rule, next_run, tenant, created_by) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (name) DO UPDATE SET topic = excluded.topic, \
             payload = excluded.payload, tenant = excluded.tenant, created_by = excluded.created_by, \
             next_run = CASE WHEN job_schedule.rule = excluded.rule THEN job_schedule.next_run \
             ELSE excluded.next_run END, rule = excluded.rule",
        )
        .bind(name)
        .bind(job.topic.as_str())
        .bind(job.properties.to_string())
        .bind(rule)
        .bind(to_epoch_millis(next))
        .bind(job.tenant.as_str())
        .bind(job.user.as_str())
        .execute(&self.queues.pool)
        .await
        .map_err(database_error("store a schedule"))?;
        self.queues.wake_job_workers();
        Ok(())
    }

    /// Removes a schedule; a job that it has already added stays. Returns true if there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove(&self, name: &str) -> Result<bool> {
        let done = sqlx::query("DELETE FROM job_schedule WHERE name = $1")
            .bind(name)
            .execute(&self.queues.pool)
            .await
            .map_err(database_error("remove a schedule"))?;
        Ok(done.rows_affected() > 0)
    }

    /// Adds the job of a schedule now, regardless of its next time, which is unchanged. Returns the job, or the one
    /// that already waits or runs; `None` if there is no such schedule.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn run_now(&self, name: &str, user: &str, now: SystemTime) -> Result<Option<JobId>> {
        let row =
            sqlx::query(SELECT_SCHEDULE_SQL).bind(name).fetch_optional(&self.queues.pool).await;
        let Some(row) = row.map_err(database_error(READ_SCHEDULES_ACTION))? else {
            return Ok(None);
        };
        let schedule = JobSchedule { user: user.to_owned(), ..schedule_from_row(&row)? };
        Ok(Some(self.queues.add_job(schedule.into_job(), now).await?))
    }

    /// Pauses or resumes a schedule. Returns true if it exists.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn set_paused(&self, name: &str, is_paused: bool) -> Result<bool> {
        let done = sqlx::query("UPDATE job_schedule SET is_paused = $1 WHERE name = $2")
            .bind(i64::from(is_paused))
            .bind(name)
            .execute(&self.queues.pool)
            .await
            .map_err(database_error("pause a schedule"))?;
        self.queues.wake_job_workers();
        Ok(done.rows_affected() > 0)
    }

    /// Lists the schedules by name.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list(&self) -> Result<Vec<JobSchedule>> {
        let rows = sqlx::query(SELECT_ALL_SCHEDULES_SQL).fetch_all(&self.queues.pool).await;
        rows.map_err(database_error(READ_SCHEDULES_ACTION))?.iter().map(schedule_from_row).collect()
    }
}

const READ_SCHEDULES_ACTION: &str = "read schedules";
const SELECT_ALL_SCHEDULES_SQL: &str = "SELECT name, topic, payload, rule, next_run, tenant, created_by, is_paused FROM job_schedule \
                          ORDER BY name";
const SELECT_SCHEDULE_SQL: &str = "SELECT name, topic, payload, rule, next_run, tenant, created_by, is_paused FROM job_schedule \
                          WHERE name = $1";
const SELECT_DUE_SCHEDULES_SQL: &str = "SELECT name, topic, payload, rule, next_run, tenant, created_by, is_paused FROM job_schedule \
                          WHERE next_run <= $1 AND is_paused = 0 ORDER BY name";

fn schedule_from_row(row: &sqlx::any::AnyRow) -> Result<JobSchedule> {
    let text =
        |at: usize| row.try_get::<String, _>(at).map_err(database_error(READ_SCHEDULES_ACTION));
    let next: Option<i64> = row.try_get(4).map_err(database_error(READ_SCHEDULES_ACTION))?;
    let is_paused: i64 = row.try_get(7).map_err(database_error(READ_SCHEDULES_ACTION))?;
    Ok(JobSchedule {
        name: text(0)?,
        topic: text(1)?,
        properties: serde_json::from_str(&text(2)?).unwrap_or_default(),
        rule_text: text(3)?,
        next_run: next.map(from_epoch_millis),
        tenant: text(5)?,
        user: text(6)?,
        is_paused: is_paused != 0,
    })
}

impl JobWorkerState {
    /// Adds the jobs of schedules that are due.
    pub(crate) async fn run_due_schedules(
        &self,
        transaction: &mut WriteTransaction,
        now: SystemTime,
    ) -> Result<()> {
        let rows = sqlx::query(SELECT_DUE_SCHEDULES_SQL)
            .bind(to_epoch_millis(now))
            .fetch_all(&mut **transaction)
            .await;
        for row in &rows.map_err(database_error(READ_SCHEDULES_ACTION))? {
            let schedule = schedule_from_row(row)?;
            let next = match ScheduleRule::parse(&schedule.rule_text) {
                Ok(rule) => rule.next_run_after(now),
                Err(reason) => {
                    warn!(schedule = schedule.name, reason, "cannot read a stored schedule");
                    None
                }
            };
            // Of two concurrent processes one finds the schedule already advanced.
            let moved = sqlx::query(
                "UPDATE job_schedule SET next_run = $1 WHERE name = $2 AND next_run = $3",
            )
            .bind(next.map(to_epoch_millis))
            .bind(schedule.name.as_str())
            .bind(schedule.next_run.map(to_epoch_millis))
            .execute(&mut **transaction)
            .await
            .map_err(database_error(READ_SCHEDULES_ACTION))?;
            if moved.rows_affected() == 0 {
                continue;
            }
            self.queues.insert_jobs(transaction, &[(schedule.into_job(), now)], None).await?;
        }
        Ok(())
    }
}
