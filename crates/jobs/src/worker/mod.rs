//! Workers that run the handlers of claimed jobs.

pub(crate) mod job_executor;
pub(crate) mod job_handler;
pub(crate) mod job_worker;
pub(crate) mod thread_pool;
pub(crate) mod worker_round;
