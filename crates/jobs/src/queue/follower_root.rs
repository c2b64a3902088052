//! The roots that followers have processed.
//!
//! Invariants
//! * A follower advances and its jobs are stored in one transaction.

use std::time::SystemTime;

use sqlx::Row;

use crate::queue::job_queue::check_new_job;
use crate::queue::sql::{WriteTransaction, database_error};
use crate::{JobQueues, NewJob, Result};

/// The roots that followers have processed.
#[derive(Debug, Clone)]
pub struct FollowerRoots {
    queues: JobQueues,
}

impl JobQueues {
    /// Returns the roots of followers.
    #[must_use]
    pub fn followers(&self) -> FollowerRoots {
        FollowerRoots { queues: self.clone() }
    }
}

impl FollowerRoots {
    /// Returns the root that a follower has processed, if it has begun.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn root_of(&self, follower: &str) -> Result<Option<String>> {
        let action = "read a follower's root";
        let row = sqlx::query("SELECT root FROM follower WHERE name = $1")
            .bind(follower)
            .fetch_optional(&self.queues.pool)
            .await
            .map_err(database_error(action))?;
        row.map(|row| row.try_get(0)).transpose().map_err(database_error(action))
    }

    /// Returns the roots that followers have processed. They will compare the next state with these roots.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn all_roots(&self) -> Result<Vec<String>> {
        let action = "read the followers' roots";
        let rows = sqlx::query("SELECT root FROM follower").fetch_all(&self.queues.pool).await;
        let rows = rows.map_err(database_error(action))?;
        rows.iter()
            .map(|row| row.try_get(0))
            .collect::<Result<_, _>>()
            .map_err(database_error(action))
    }

    /// Transfers the position of one follower to several that replace it, and removes the former, all or none.
    /// Followers that have a position keep it. Returns true if there was a position to transfer.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn split(&self, follower: &str, into: &[String]) -> Result<bool> {
        let action = "split a follower";
        let mut transaction = self.queues.begin_write(action).await?;
        let row = sqlx::query("DELETE FROM follower WHERE name = $1 RETURNING root")
            .bind(follower)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        let Some(row) = row else { return Ok(false) };
        let root: String = row.try_get(0).map_err(database_error(action))?;
        for name in into {
            sqlx::query(
                "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
            )
            .bind(&root)
            .bind(name)
            .execute(&mut *transaction)
            .await
            .map_err(database_error(action))?;
        }
        transaction.commit().await.map_err(database_error(action))?;
        Ok(true)
    }

    /// Removes the position of a deleted follower, so that its root need not be retained.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn remove(&self, follower: &str) -> Result<()> {
        let query = sqlx::query("DELETE FROM follower WHERE name = $1").bind(follower);
        self.queues.execute_write("remove a follower", query).await.map(drop)
    }

    /// Advances a follower from one root to the next and stores the jobs that follow from the difference, all or none.
    /// Returns true if the follower was still at the first root; otherwise nothing is stored.
    ///
    /// # Errors
    /// As [`JobQueues::add_job`].
    pub async fn advance(
        &self,
        follower: &str,
        (from, to): (Option<&str>, &str),
        jobs: Vec<NewJob>,
        now: SystemTime,
    ) -> Result<bool> {
        let action = "advance a follower";
        let mut transaction = self.queues.begin_write(action).await?;
        if !advance_root(&mut transaction, follower, from, to).await? {
            return Ok(false);
        }
        for job in &jobs {
            check_new_job(job)?;
        }
        let jobs: Vec<(NewJob, SystemTime)> = jobs.into_iter().map(|job| (job, now)).collect();
        self.queues.insert_jobs(&mut transaction, &jobs, None).await?;
        transaction.commit().await.map_err(database_error(action))?;
        self.queues.remember_topics(&jobs);
        self.queues.wake_job_workers();
        Ok(true)
    }
}

/// Advances a follower from one root to the next. Returns true if it was still at the first one.
pub(crate) async fn advance_root(
    transaction: &mut WriteTransaction,
    follower: &str,
    from: Option<&str>,
    to: &str,
) -> Result<bool> {
    let query = match from {
        Some(from) => sqlx::query("UPDATE follower SET root = $1 WHERE name = $2 AND root = $3")
            .bind(to)
            .bind(follower)
            .bind(from),
        None => sqlx::query(
            "INSERT INTO follower (root, name) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING",
        )
        .bind(to)
        .bind(follower),
    };
    let done = query.execute(&mut **transaction).await;
    Ok(done.map_err(database_error("advance a follower"))?.rows_affected() > 0)
}
