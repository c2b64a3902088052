//! Requests of users and commits to publish and to withdraw, and the jobs that carry them out.

pub(crate) mod on_off_time;
pub(crate) mod referenced_document;
pub(crate) mod replication_request;
pub(crate) mod replication_status;
pub(crate) mod request_job;
pub(crate) mod requested_tree;
pub(crate) mod superseded_job;
pub(crate) mod tree_part;
pub(crate) mod withdrawal_job;
