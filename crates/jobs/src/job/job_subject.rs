//! Finds given-up jobs by the node that they concern, however many there are.
//!
//! In: a topic, a node, a job. Out: the earlier jobs of the topic that concern the node, one above or one below it.
//!
//! A job names its node when it is added ([`crate::NewJob::with_subject_path`]). Jobs stored by an earlier version do
//! not; the caller distinguishes them by their properties.

use sqlx::Row;
use tympan_content::NodePath;

use crate::queue::sql::{database_error, job_from_row, sql_placeholders};
use crate::{Job, JobId, JobQueues, Result};

/// Given-up jobs of the topic `$1` before the job `$2`. The condition on the state is written so that its index is not
/// used, which selects the index of the subject.
const EARLIER_GIVEN_UP_CONDITION: &str =
    "topic = $1 AND id < $2 AND ended IS NOT NULL AND state || '' = 'GIVEN_UP'";

/// Returns the statement that finds jobs about one of the given number of nodes.
pub(crate) fn jobs_about_nodes_sql(nodes: usize) -> String {
    format!(
        "SELECT id FROM job WHERE {EARLIER_GIVEN_UP_CONDITION} AND about IN ({})",
        sql_placeholders(3, nodes)
    )
}

/// Returns the statement that finds jobs about nodes below another one.
pub(crate) fn jobs_below_node_sql() -> String {
    format!("SELECT id FROM job WHERE {EARLIER_GIVEN_UP_CONDITION} AND about > $3 AND about < $4")
}

/// Returns the statement that finds jobs without a known subject.
pub(crate) fn jobs_without_subject_sql() -> String {
    format!(
        "SELECT * FROM job WHERE {EARLIER_GIVEN_UP_CONDITION} AND about IS NULL AND id > $3 ORDER BY id LIMIT $4"
    )
}

impl JobQueues {
    /// Returns the given-up jobs of a topic that were stored before another job and concern a node, one above it or one
    /// below it. No other jobs are read.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn find_given_up_about(
        &self,
        topic: &str,
        path: &NodePath,
        before: JobId,
    ) -> Result<Vec<JobId>> {
        let above = std::iter::successors(Some(path.clone()), NodePath::parent);
        let nodes: Vec<NodePath> = above.collect();
        let mut query = sqlx::query(sqlx::AssertSqlSafe(jobs_about_nodes_sql(nodes.len())));
        query = query.bind(topic).bind(before.0);
        for node in nodes {
            query = query.bind(node.as_str().to_owned());
        }
        let mut job_ids = self.fetch_job_ids(query).await?;
        // The character `0` follows the slash, so the paths below the node lie between the two.
        let above = path.as_str().trim_end_matches('/');
        let query = sqlx::query(sqlx::AssertSqlSafe(jobs_below_node_sql()));
        let query = query.bind(topic).bind(before.0);
        let query = query.bind(format!("{above}/")).bind(format!("{above}0"));
        job_ids.extend(self.fetch_job_ids(query).await?);
        job_ids.sort_unstable();
        job_ids.dedup();
        Ok(job_ids)
    }

    /// Like [`JobQueues::find_given_up_about`], but returns jobs that do not name a node, oldest first, beginning after
    /// a given one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_given_up_without_subject(
        &self,
        topic: &str,
        after: Option<JobId>,
        before: JobId,
        limit: u32,
    ) -> Result<Vec<Job>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(jobs_without_subject_sql()))
            .bind(topic)
            .bind(before.0)
            .bind(after.map_or(i64::MIN, |id| id.0))
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(database_error("list jobs"))?;
        rows.iter().map(job_from_row).collect()
    }

    async fn fetch_job_ids(
        &self,
        query: sqlx::query::Query<'_, sqlx::Any, sqlx::any::AnyArguments>,
    ) -> Result<Vec<JobId>> {
        let action = "find jobs";
        let rows = query.fetch_all(&self.pool).await.map_err(database_error(action))?;
        rows.iter().map(|row| Ok(JobId(row.try_get(0).map_err(database_error(action))?))).collect()
    }
}
