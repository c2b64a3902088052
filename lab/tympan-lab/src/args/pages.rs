//! Arguments of the commands that analyze single pages: page, components, slo.

use std::path::PathBuf;

use clap::Args;

use super::PlanlessRunArgs;

/// The identity that requests are sent with.
#[derive(Debug, Args)]
pub(crate) struct RequestIdentityArgs {
    /// A header, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// An administrator's name and password, sent with every request; the environment variable is safer.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true, value_name = "USER:PASSWORD")]
    pub(crate) login: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabPageArgs {
    /// The pages.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Number of visits of each page.
    #[arg(long, default_value_t = 3)]
    pub(crate) visits: usize,
    /// Uses the browser's cache for visits after the first one; the first one is not judged.
    #[arg(long)]
    pub(crate) warm: bool,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabComponentsArgs {
    /// The page.
    pub(crate) url: String,
    /// Number of requests; the median of the times counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabSloArgs {
    /// The pages, requested in turn.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Total number of requests.
    #[arg(long, default_value_t = 100)]
    pub(crate) samples: u64,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    /// Appended to every URL so that the server renders the page; `_flex=nocache` with a login.
    #[arg(long, value_name = "QUERY")]
    pub(crate) bypass: Option<String>,
    /// The server's admin listener, `http://host:port`, which reports its role and its counters.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// Exits with 3 unless all five conditions of the goal are known to hold.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Measures again whenever a file below --watch-dir changes, or else every 5 seconds, and prints a line each time.
    #[arg(long)]
    pub(crate) watch: bool,
    /// The folder to watch for changes, such as a site's `apps`.
    #[arg(long, value_name = "DIR", requires = "watch")]
    pub(crate) watch_dir: Option<PathBuf>,
    /// Stops after this number of measurements.
    #[arg(long, requires = "watch")]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}
