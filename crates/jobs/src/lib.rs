//! Stored jobs: queues whose jobs survive a crash, and the worker that carries them out.
//!
//! In: jobs with a topic and properties, handlers by topic, configurations of queues. Out: each job carried out by the
//! handler of its topic, as its queue specifies, until it is done or given up with a reason.
//!
//! Invariants
//! * An added job is done at least once; the jobs of a worker that dies are released when the lease ends.
//! * A job never runs twice at the same time, as long as clocks of machines differ by less than a lease.
//! * A job with a key that is already waiting or running is not added again.
//! * In an ordered queue a job waits until every older one has ended.
//! * A change of a queue's configuration needs no restart and moves no stored job.
//!
//! Not here: the work of a job. Handlers are defined where their topics are registered. Workflow processes of higher
//! crates, such as write-back and activation, are registered by them.

mod config;
mod error;
mod follower_loop;
mod job;
mod osgi_config;
mod queue;
mod schedule;
mod worker;
pub mod workflow;

pub use config::{JobsSection, WorkflowsSection};
pub use error::{Error, Result};
pub use follower_loop::{ChangesAfterCursor, FollowerLoop, read_changes_after};
pub use job::{Job, JobId, JobPriority, JobProgress, JobState, NewJob};
pub use osgi_config::watcher::OsgiConfigWatcher;
pub use osgi_config::{
    ConfigFault, OSGI_CONFIG_NODE_TYPE, OsgiConfig, OsgiConfigParser, OsgiConfigs,
    can_change_configs, choose_configs, config_file_parser, config_folder_run_modes,
    property_to_json, set_queue_property,
};
pub use queue::follower_root::FollowerRoots;
pub use queue::held_job::HeldJobs;
pub use queue::job_claim::JobClaim;
pub use queue::job_query::{JobFilter, TopicStatistics, WorkerProcess};
pub use queue::job_queue::{JobQueues, MAX_JOB_PROPERTIES_BYTES};
pub use queue::job_statistics::JobStatistics;
pub use queue::queue_config::{
    EXTERNAL_TOPIC, MAIN_QUEUE, MAIN_QUEUE_PID, MAINTENANCE_TOPIC, MaxParallel, QUEUE_FACTORY,
    QueueConfig, QueueKind, QueueSet, ResolvedQueue, TIMEOUT_TOPIC, TRANSIENT_TOPIC,
    WORKFLOW_TOPIC, default_queues,
};
pub use queue::schema::JOB_MIGRATIONS;
#[doc(hidden)]
pub use queue::sql::WriteCutSide;
pub use queue::sql::WriteTransaction;
pub use queue::topic::{
    MAX_TOPIC_BYTES, TopicPattern, aem_topic_names, check_topic, escape_topic_part,
    topic_of_aem_name,
};
pub use schedule::job_schedule::{JobSchedule, JobSchedules};
pub use schedule::schedule_rule::{CronExpression, ScheduleRule};
pub use worker::job_handler::{JobContext, JobHandler, JobOutcome};
pub use worker::job_worker::{JobWorker, JobWorkerOptions, RemovalClock};
