//! Arguments of `tympan lab load`: commands that send requests.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::ab::LabAbArgs;
use super::fleet::{LabAgentArgs, LabAgentsArgs, LabEmitArgs};
use super::jmeter::LabJmeterArgs;
use super::{IgnoredElementArgs, LabOutputArgs, RunFolderArgs, WatchedLogArgs, heading};

#[derive(Debug, Subcommand)]
pub(crate) enum LabLoadCommand {
    Get(LabGetArgs),
    Ab(LabAbArgs),
    Jmeter(LabJmeterArgs),
    Run(LabRunArgs),
    Replay(LabReplayArgs),
    Agent(LabAgentArgs),
}

/// Puts one or more URLs under load: with users who wait for responses, or at a fixed rate.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab get http://127.0.0.1:8080/content/site/en.html -c 20 -z 30s\n         \
                  tympan lab get http://127.0.0.1:8080/content/site/en.html --rate 500 -z 30s --goals goals.toml"
)]
pub(crate) struct LabGetArgs {
    /// The URLs to request, in turn: addresses, or files with one address per line.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Number of concurrent users, each of whom waits for the response.
    #[arg(short = 'c', long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) users: usize,
    /// Total number of requests.
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub(crate) requests: Option<u64>,
    /// The duration of the load, such as `30s`.
    #[arg(short = 'z', long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Arrivals per second, independent of whether earlier requests have completed.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// The distribution of the intervals between arrivals.
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) arrivals: ArrivalDistribution,
    /// The maximum number of concurrent users with a rate.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) max_users: usize,
    /// Pause between a response and the next request, such as `2s`.
    #[arg(long, value_name = "TIME")]
    pub(crate) think: Option<String>,
    /// A header, `Name: value`; may be repeated.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = heading::REQUESTS
    )]
    pub(crate) headers: Vec<String>,
    /// The method; GET by default, or POST with a body.
    #[arg(short = 'X', long, help_heading = heading::REQUESTS)]
    pub(crate) method: Option<String>,
    /// A file to send as the body.
    #[arg(long, value_name = "FILE", help_heading = heading::REQUESTS)]
    pub(crate) body: Option<PathBuf>,
    /// Opens a new connection for each request.
    #[arg(long, help_heading = heading::REQUESTS)]
    pub(crate) no_keep_alive: bool,
    /// Makes a full TLS handshake for each connection, instead of resuming an earlier session.
    #[arg(long, help_heading = heading::REQUESTS)]
    pub(crate) no_tls_resume: bool,
    /// Uses HTTP/2, with one request at a time on each connection; without TLS with prior knowledge.
    #[arg(long, conflicts_with = "agents", help_heading = heading::REQUESTS)]
    pub(crate) http2: bool,
    /// Follows redirects.
    #[arg(short = 'L', long, help_heading = heading::REQUESTS)]
    pub(crate) follow: bool,
    /// Timeout for connecting and for the next byte.
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = heading::REQUESTS)]
    pub(crate) timeout: String,
    /// Number of sending threads; one per processor by default.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = heading::MEASUREMENT
    )]
    pub(crate) workers: usize,
    /// Writes one row per request, in JMeter's format.
    #[arg(long, value_name = "FILE.jtl", help_heading = heading::OUTPUT)]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to the rows: the duration of the sample in microseconds.
    #[arg(long, requires = "jtl", help_heading = heading::OUTPUT)]
    pub(crate) jtl_us: bool,
    /// Sends a header that identifies the run and the sample (`X-Tympan-Lab`) with each request, so that the request
    /// can be found in the server's request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long, help_heading = heading::MEASUREMENT)]
    pub(crate) mark: bool,
    /// The seed of random arrivals.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::MEASUREMENT)]
    pub(crate) seed: u64,
    /// Stores N complete exchanges of each label, and N that failed, and shows them in the report.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = heading::MEASUREMENT)]
    pub(crate) trace: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) run_options: RunFolderArgs,
    #[command(flatten)]
    pub(crate) agents: LabAgentsArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

impl LabGetArgs {
    /// Returns the HTTP method to use.
    pub(crate) fn http_method(&self) -> String {
        let usual = if self.body.is_some() { "POST" } else { "GET" };
        self.method.as_deref().unwrap_or(usual).to_uppercase()
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ArrivalDistribution {
    /// At equal intervals.
    Uniform,
    /// As a Poisson process: independent arrivals, as visitors come.
    Poisson,
}

/// Runs a plan: a TOML plan or a JMeter plan.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab load run plan.jmx -Jthreads=100 --report report.html")]
pub(crate) struct LabRunArgs {
    /// The plan: .toml or .jmx.
    pub(crate) plan: PathBuf,
    /// Another target than the plan's own, `http://host:port`; for TOML plans.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Visits per second instead of the plan's own load, such as `50/s`, independent of whether earlier visits have
    /// ended.
    #[arg(long, conflicts_with = "users")]
    pub(crate) rate: Option<String>,
    /// Number of concurrent users, who wait for responses, instead of the plan's own load.
    #[arg(long, value_name = "COUNT")]
    pub(crate) users: Option<u64>,
    /// The duration of a load of --rate or --users; one minute by default.
    #[arg(long, alias = "for", value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property", value_name = "NAME=VALUE", help_heading = heading::PLAN)]
    pub(crate) properties: Vec<String>,
    /// The address of a host name for this run, `name=address`, which overrides the system's resolver; may be repeated.
    #[arg(long, value_name = "NAME=ADDRESS", help_heading = heading::REQUESTS)]
    pub(crate) resolve: Vec<String>,
    /// Uses HTTP/2, with one request at a time on each connection; without TLS with prior knowledge.
    #[arg(long, conflicts_with = "agents", help_heading = heading::REQUESTS)]
    pub(crate) http2: bool,
    /// Result file.
    #[arg(long, value_name = "FILE.jtl", help_heading = heading::OUTPUT)]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to the rows: the duration of the sample in microseconds.
    #[arg(long, requires = "jtl", help_heading = heading::OUTPUT)]
    pub(crate) jtl_us: bool,
    /// Sends a header that identifies the run and the sample (`X-Tympan-Lab`) with each request, so that the request
    /// can be found in the server's request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long, help_heading = heading::MEASUREMENT)]
    pub(crate) mark: bool,
    /// Does not write the result files that listeners of the plan name.
    #[arg(long, help_heading = heading::PLAN)]
    pub(crate) without_listeners: bool,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// Number of sending threads; one per processor by default.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = heading::MEASUREMENT
    )]
    pub(crate) workers: usize,
    /// The seed of random numbers, so that a run can be repeated with the same values; random by default.
    #[arg(long, value_name = "NUMBER", help_heading = heading::MEASUREMENT)]
    pub(crate) seed: Option<u64>,
    /// Stores N complete exchanges of each label, and N that failed, and shows them in the report.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = heading::MEASUREMENT)]
    pub(crate) trace: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) run_options: RunFolderArgs,
    #[command(flatten)]
    pub(crate) agents: LabAgentsArgs,
    #[command(flatten)]
    pub(crate) emit: LabEmitArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// Replays an access.log, each request at its original time.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab load replay access.log --target http://127.0.0.1:8080 --speed 2x"
)]
pub(crate) struct LabReplayArgs {
    /// The log, in the format of Sling, or in Apache's combined or common format.
    pub(crate) log: PathBuf,
    /// The target of the requests.
    #[arg(long, value_name = "URL")]
    pub(crate) target: String,
    /// Speed relative to the log, such as `2x`.
    #[arg(long, default_value = "1x")]
    pub(crate) speed: String,
    /// A header sent with every request, `Name: value`; may be repeated.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = heading::REQUESTS
    )]
    pub(crate) headers: Vec<String>,
    /// Also sends methods that may change data, without bodies.
    #[arg(long, help_heading = heading::REQUESTS)]
    pub(crate) all_methods: bool,
    /// Timeout for connecting and for the next byte.
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = heading::REQUESTS)]
    pub(crate) timeout: String,
    /// Number of sending threads; one per processor by default.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = heading::MEASUREMENT
    )]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) run_options: RunFolderArgs,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}
