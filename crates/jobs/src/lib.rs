//! Stored work: queues whose jobs survive a crash, and the worker that carries them out.
//!
//! In: jobs with a topic and properties, handlers by topic, configurations of queues. Out: each job carried out by the
//! handler of its topic, as its queue says, until it is done or given up with a reason.
//!
//! Invariants
//! * A job that was added is done at least once; a worker that dies gives its job back when the lease ends.
//! * A job never runs twice at the same time, as long as clocks of machines differ by less than a lease.
//! * A job with a key that is waiting or running already is not added again.
//! * In an ordered queue a job waits until every older one has ended.
//! * A change of a queue's configuration needs no restart and moves no stored job.
//!
//! Not here: what a job does. Handlers live with those who registered the topic.

mod about;
pub mod asset;
mod choose;
mod claim;
mod config;
mod configurator;
mod cron;
mod error;
mod floor;
mod follower;
mod handler;
mod job;
mod look;
pub mod mount;
mod osgi;
#[cfg(test)]
mod plan;
mod pool;
mod queue;
mod round;
mod schedule;
mod sql;
mod table;
mod topic;
mod worker;
pub mod workflow;

pub use claim::Claim;
pub use config::{
    EXTERNAL_TOPIC, MAIN_QUEUE, MAIN_QUEUE_PID, MAINTENANCE_TOPIC, MaxParallel, QUEUE_FACTORY,
    QueueConfig, QueueKind, QueueOf, QueueSet, TIMEOUT_TOPIC, TRANSIENT_TOPIC, WORKFLOW_TOPIC,
    default_queues,
};
pub use configurator::Configurator;
pub use cron::{Cron, Rule};
pub use error::{Error, Result, chain};
pub use follower::{Behind, Rounds, changes_behind};
pub use handler::{Handler, JobContext, Outcome};
pub use job::{Job, JobId, JobState, NewJob, Priority, Progress};
pub use look::{JobFilter, TopicStatistics, WorkerProcess};
pub use osgi::{CONFIG_TYPE, ConfigFault, Configs, OsgiConfig, is_config_path, set_queue_property};
pub use queue::{MAX_PROPERTIES_BYTES, Queues};
pub use schedule::Schedule;
#[doc(hidden)]
pub use sql::CutSide;
pub use table::MIGRATIONS;
pub use topic::{MAX_TOPIC_BYTES, TopicPattern, aem_names, check_topic, own_topic, topic_part};
pub use worker::{RemovalClock, Worker, WorkerOptions};
