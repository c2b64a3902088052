//! Queues and jobs.

use clap::Subcommand;

use super::RemoteInstanceArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Lists the topics that were seen, each with its queue and what became of its jobs.
    #[command(
        after_help = "Example: tympan jobs topics --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Topics(RemoteInstanceArgs),
    /// Lists the queues with how they are configured and how they do.
    #[command(
        after_help = "Example: tympan jobs queues --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Queues(RemoteInstanceArgs),
    /// Lists the models of workflows; exits with 1 if one names what is not known here, and so starts nothing.
    #[command(
        after_help = "Example: tympan jobs models --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Models(RemoteInstanceArgs),
    /// Lists jobs, oldest first.
    #[command(
        after_help = "Example: tympan jobs list --state given_up --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    List {
        /// Those of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        /// Those of this topic.
        #[arg(long, value_name = "TOPIC", conflicts_with = "queue")]
        topic: Option<String>,
        /// Those in this state, such as queued, active, given_up, error.
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// How many at most.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Makes a queue for topics; the queue that took them so far no longer does.
    #[command(
        after_help = "Example: tympan jobs add-queue 'DAM Update Asset' com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model --set queue.maxparallel=0.5 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    AddQueue {
        /// The queue's name.
        name: String,
        /// The topics that it takes: `a/b` is exact, `a/b/*` all below, `a/b/.` those directly below.
        #[arg(required = true)]
        topics: Vec<String>,
        /// A property, such as `queue.maxparallel=0.5`; may be repeated.
        #[arg(long, value_name = "NAME=VALUE")]
        set: Vec<String>,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Changes properties of a queue; it works by them at once.
    #[command(
        after_help = "Example: tympan jobs set 'Granite Workflow Queue' queue.maxparallel=2 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Set {
        /// The queue's name or PID.
        queue: String,
        /// Properties, such as `queue.maxparallel=2` or `queue.retries=3`.
        #[arg(required = true, value_name = "NAME=VALUE")]
        properties: Vec<String>,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Keeps jobs of a queue from being begun; those that run go on.
    #[command(
        after_help = "Example: tympan jobs pause 'Granite Workflow Queue' --wait --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Pause {
        /// The queue's name.
        queue: String,
        /// Waits until none of its jobs runs.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lets jobs of a queue be begun again.
    #[command(
        after_help = "Example: tympan jobs resume 'Granite Workflow Queue' --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Resume {
        /// The queue's name.
        queue: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Shows what runs by itself, and when next.
    #[command(
        after_help = "Example: tympan jobs schedules --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Schedules(RemoteInstanceArgs),
    /// Runs now what is scheduled, such as a task of maintenance.
    #[command(
        after_help = "Example: tympan jobs run maintenance/garbage --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Run {
        /// The schedule's name.
        schedule: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lets a job run again now, or all of a queue that were given up.
    #[command(
        after_help = "Example: tympan jobs retry 17 --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Retry {
        /// The job's number.
        #[arg(required_unless_present = "queue")]
        id: Option<i64>,
        /// All jobs of this queue that were given up.
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        queue: Option<String>,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
}
