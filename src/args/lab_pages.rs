//! The words of the commands that look at single pages: page, components, slo.

use std::path::PathBuf;

use clap::Args;

use super::lab::PlanlessRunArgs;

/// Who asks.
#[derive(Debug, Args)]
pub(crate) struct RequestIdentityArgs {
    /// A header, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// An administrator's name and password, sent with every request; better given by the variable than here.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true, value_name = "USER:PASSWORD")]
    pub(crate) login: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabPageArgs {
    /// The pages.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// How often each page is visited.
    #[arg(long, default_value_t = 3)]
    pub(crate) visits: usize,
    /// Visits after the first one have the browser's cache; the first one is not judged.
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
    /// How often it is asked for; the middle of the times counts.
    #[arg(long, default_value_t = 5)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabSloArgs {
    /// The pages, asked in turn.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Requests in all.
    #[arg(long, default_value_t = 100)]
    pub(crate) samples: u64,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    /// Added to every address so that the server draws the page; `_flex=nocache` with a login.
    #[arg(long, value_name = "QUERY")]
    pub(crate) bypass: Option<String>,
    /// The server's admin listener, `http://host:port`, which tells its role and its counters.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// Ends with 3 unless all five conditions of the goal are known to hold.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Measures again whenever something changes below --watch-dir, or else every 5 seconds, and prints a line each time.
    #[arg(long)]
    pub(crate) watch: bool,
    /// The folder whose changes are waited for, such as a site's `apps`.
    #[arg(long, value_name = "DIR", requires = "watch")]
    pub(crate) watch_dir: Option<PathBuf>,
    /// Ends after so many measurements.
    #[arg(long, requires = "watch")]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}
