//! Held jobs: stored before the work that they announce, and released or discarded after it.

use std::time::SystemTime;

use serde_json::Value;

use crate::queue::job_queue::check_new_job;
use crate::queue::sql::{database_error, to_epoch_millis};
use crate::{JobId, JobQueues, JobState, NewJob, Result};

/// The held jobs of queues.
#[derive(Debug, Clone)]
pub struct HeldJobs {
    queues: JobQueues,
}

impl JobQueues {
    /// Returns the held jobs.
    #[must_use]
    pub fn held_jobs(&self) -> HeldJobs {
        HeldJobs { queues: self.clone() }
    }
}

impl HeldJobs {
    /// Stores jobs that wait for [`HeldJobs::release`], all or none. The work that they announce is done in
    /// between. An ordered queue waits for them. After a crash [`JobQueues::release_all_claims`] releases them
    /// unchanged.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn add(&self, jobs: Vec<NewJob>, now: SystemTime) -> Result<Vec<JobId>> {
        let action = "hold jobs";
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        let mut transaction = self.queues.begin_write(action).await?;
        let ids = self.queues.insert_jobs(&mut transaction, &jobs, Some(JobState::Held)).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.remember_topics(&jobs);
        Ok(ids)
    }

    /// Makes held jobs claimable, with their final properties, all or none.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn release(&self, jobs: &[(JobId, Value)], now: SystemTime) -> Result<()> {
        let action = "release held jobs";
        let mut transaction = self.queues.begin_write(action).await?;
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
        self.queues.wake_job_workers();
        Ok(())
    }

    /// Removes held jobs whose work was not done.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn discard(&self, jobs: &[JobId]) -> Result<()> {
        for id in jobs {
            let query = sqlx::query("DELETE FROM job WHERE id = $1 AND state = 'HELD'").bind(id.0);
            self.queues.execute_write("discard held jobs", query).await?;
        }
        Ok(())
    }
}
