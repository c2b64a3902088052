//! Arguments of `tympan jobs`: queues and jobs.

use clap::Subcommand;

use super::instance_location::RemoteInstanceArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// Lists the known topics, each with its queue and the outcomes of its jobs.
    #[command(
        after_help = "Example: tympan jobs topics --url http://127.0.0.1:4502 --token-file token"
    )]
    Topics(RemoteInstanceArgs),
    /// Lists the queues with their configuration and state.
    #[command(
        after_help = "Example: tympan jobs queues --url http://127.0.0.1:4502 --token-file token"
    )]
    Queues(RemoteInstanceArgs),
    /// Lists the workflow models; exits with 1 if one refers to something unknown here and therefore starts nothing.
    #[command(
        after_help = "Example: tympan jobs models --url http://127.0.0.1:4502 --token-file token"
    )]
    Models(RemoteInstanceArgs),
    /// Lists jobs, oldest first.
    #[command(
        after_help = "Example: tympan jobs list --state given_up --url http://127.0.0.1:4502 --token-file token"
    )]
    List {
        /// Only jobs of this queue.
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,
        /// Only jobs of this topic.
        #[arg(long, value_name = "TOPIC", conflicts_with = "queue")]
        topic: Option<String>,
        /// Only jobs in this state, such as queued, active, given_up, error.
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// The maximum number of jobs.
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: u32,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Creates a queue for topics; the queue that handled them before no longer does.
    #[command(
        after_help = "Example: tympan jobs add-queue 'DAM Update Asset' com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model --set queue.maxparallel=0.5 --url http://127.0.0.1:4502 --token-file token"
    )]
    AddQueue {
        /// The queue's name.
        name: String,
        /// The topics that the queue handles: `a/b` is exact, `a/b/*` includes all below, `a/b/.` includes those
        /// directly below.
        #[arg(required = true)]
        topics: Vec<String>,
        /// A property, such as `queue.maxparallel=0.5`; may be repeated.
        #[arg(long, value_name = "NAME=VALUE")]
        set: Vec<String>,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Changes properties of a queue, with immediate effect.
    #[command(
        after_help = "Example: tympan jobs set 'Granite Workflow Queue' queue.maxparallel=2 --url http://127.0.0.1:4502 --token-file token"
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
    /// Stops a queue from starting jobs; running jobs continue.
    #[command(
        after_help = "Example: tympan jobs pause 'Granite Workflow Queue' --wait --url http://127.0.0.1:4502 --token-file token"
    )]
    Pause {
        /// The queue's name.
        queue: String,
        /// Waits until none of its jobs is running.
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lets a queue start jobs again.
    #[command(
        after_help = "Example: tympan jobs resume 'Granite Workflow Queue' --url http://127.0.0.1:4502 --token-file token"
    )]
    Resume {
        /// The queue's name.
        queue: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lists the schedules, with the time of the next run.
    #[command(
        after_help = "Example: tympan jobs schedules --url http://127.0.0.1:4502 --token-file token"
    )]
    Schedules(RemoteInstanceArgs),
    /// Runs a schedule now, such as a maintenance task.
    #[command(
        after_help = "Example: tympan jobs run maintenance/garbage --url http://127.0.0.1:4502 --token-file token"
    )]
    Run {
        /// The schedule's name.
        schedule: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Runs a job again now, or all given-up jobs of a queue.
    #[command(
        after_help = "Example: tympan jobs retry 17 --url http://127.0.0.1:4502 --token-file token"
    )]
    Retry {
        /// The job's number.
        #[arg(required_unless_present = "queue")]
        id: Option<i64>,
        /// All given-up jobs of this queue.
        #[arg(long, value_name = "NAME", conflicts_with = "id")]
        queue: Option<String>,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
}
