//! Stored jobs: adding, claiming, selecting and listing them, and the configuration of their queues.

pub(crate) mod follower_root;
pub(crate) mod held_job;
pub(crate) mod job_claim;
pub(crate) mod job_query;
pub(crate) mod job_queue;
pub(crate) mod job_selection;
pub(crate) mod job_statistics;
#[cfg(test)]
pub(crate) mod query_plan;
pub(crate) mod queue_config;
pub(crate) mod schema;
pub(crate) mod sql;
pub(crate) mod topic;
