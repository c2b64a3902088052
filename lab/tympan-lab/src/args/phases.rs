//! Arguments of the tests with several phases: breakpoint, endure, golive, errors, component.

use std::path::PathBuf;

use clap::Args;

use super::{
    IgnoredElementArgs, LabOutputArgs, PlanlessRunArgs, WatchedLogArgs, WatchedProcessArgs,
    WorkingDayArgs,
};

/// A plan and how to run it.
#[derive(Debug, Args)]
pub(crate) struct PhasePlanArgs {
    /// A plan (.toml, .jmx) or the URL of a page.
    #[arg(value_name = "PLAN|URL")]
    pub(crate) plan: String,
    /// Another target than the plan's own, `http://host:port`; for TOML plans.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    /// Number of sending threads; one per processor by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// The seed of random numbers.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stores plan, arguments, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// One load.
#[derive(Debug, Args)]
pub(crate) struct PhaseLoadArgs {
    /// Visits per second, such as `50/s` or `30/min`.
    #[arg(long, conflicts_with = "users")]
    pub(crate) rate: Option<String>,
    /// Number of concurrent users, who wait for responses.
    #[arg(long)]
    pub(crate) users: Option<u64>,
    /// The duration of the load.
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabBreakpointArgs {
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
    /// The first step: visits per second, or users with --users.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) from: f64,
    /// Steps are numbers of users who wait for responses, instead of visits per second.
    #[arg(long)]
    pub(crate) users: bool,
    /// The increment between steps: `x1.5` or `+10`.
    #[arg(long, default_value = "x1.5")]
    pub(crate) step: String,
    /// Minimum duration of a step; longer if 50 times the 99th percentile or 2,000 samples require it.
    #[arg(long, default_value = "30s")]
    pub(crate) dwell: String,
    /// Steps last exactly as long as --dwell, regardless of the number of samples.
    #[arg(long)]
    pub(crate) exact_dwell: bool,
    /// Maximum number of steps.
    #[arg(long, default_value_t = 20)]
    pub(crate) steps: usize,
    /// Maximum load of a step.
    #[arg(long)]
    pub(crate) to: Option<f64>,
    /// Stops when the 95th percentile of the response times exceeds this.
    #[arg(long, value_name = "TIME")]
    pub(crate) p95: Option<String>,
    /// Does not narrow down the range between the last good step and the first bad one.
    #[arg(long)]
    pub(crate) no_narrow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabEndureArgs {
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
    #[command(flatten)]
    pub(crate) load: PhaseLoadArgs,
    /// The warm-up time to leave out; by default a tenth of the duration, at most 5 minutes.
    #[arg(long, value_name = "TIME")]
    pub(crate) warm_up: Option<String>,
    /// The degradation per hour that is allowed.
    #[arg(long, default_value = "2%")]
    pub(crate) trend: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabGoliveArgs {
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
    /// Visits per second on average.
    #[arg(long, required_unless_present = "peak_from")]
    pub(crate) avg: Option<String>,
    /// Visits per second at the peak.
    #[arg(long, required_unless_present = "peak_from")]
    pub(crate) peak: Option<String>,
    /// Reads the average and the busiest minute from an access.log, of a predecessor site for instance.
    #[arg(long, value_name = "access.log", conflicts_with_all = ["avg", "peak"])]
    pub(crate) peak_from: Option<PathBuf>,
    /// The launch load as a multiple of the peak.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) factor: f64,
    /// The duration of each phase.
    #[arg(long, default_value = "30m", value_name = "TIME")]
    pub(crate) hold: String,
    /// A soft launch before the launch, with this share of its load.
    #[arg(long, value_name = "PERCENT")]
    pub(crate) soft: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabErrorsArgs {
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
    #[command(flatten)]
    pub(crate) load: PhaseLoadArgs,
    /// A plan of errors; without it, common errors are sent to the target.
    #[arg(long, value_name = "PLAN.toml")]
    pub(crate) errors: Option<PathBuf>,
    /// The target of the common errors, if the plan is not a URL: `http://host:port/page.html`.
    #[arg(long, value_name = "URL", conflicts_with = "errors")]
    pub(crate) site: Option<String>,
    /// The path of the search, with `{}` for the term.
    #[arg(long, value_name = "PATH", conflicts_with = "errors")]
    pub(crate) search: Option<String>,
    /// A path to which uploads that are too large are sent; the server should refuse them.
    #[arg(long, value_name = "PATH", conflicts_with = "errors")]
    pub(crate) upload: Option<String>,
    /// The size of these uploads.
    #[arg(long, default_value = "64 MiB", value_name = "SIZE", requires = "upload")]
    pub(crate) upload_size: String,
    /// Number of additional slow clients, each of which sends a byte every half second and never completes a request.
    #[arg(long, value_name = "CLIENTS")]
    pub(crate) slow: Option<usize>,
    /// Takes a back end of the site down after the errors, and judges whether pages stay available: a name and a shell
    /// command, or a URL to POST to, such as `crm down=systemctl stop crm`. May be repeated.
    #[arg(long, value_name = "NAME=COMMAND|URL", requires = "restore")]
    pub(crate) outage: Vec<String>,
    /// Restores the back ends that --outage takes down, even after a failure: a shell command or a URL to POST to.
    #[arg(long, value_name = "COMMAND|URL", requires = "outage")]
    pub(crate) restore: Option<String>,
    /// The text on the page of the site that replaces the content of the back end.
    #[arg(long, value_name = "TEXT", requires = "outage")]
    pub(crate) placeholder: Option<String>,
    /// Share of visits that may fail while a back end is down, in addition to those that fail anyway.
    #[arg(long, default_value = "1%", value_name = "PERCENT")]
    pub(crate) outage_errors: String,
    /// The number of errors, as a share of the healthy visits.
    #[arg(long, default_value = "20%")]
    pub(crate) share: String,
    /// Maximum of the 95th percentile of the response times of the errors.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub(crate) within: String,
    /// The slowdown of healthy responses that is allowed.
    #[arg(long, default_value = "20%")]
    pub(crate) delta: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabComponentArgs {
    /// URLs that each render one component, such as `http://host/content/site/en/_jcr_content/nav.html`; with --all, a
    /// page.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Renders each component of the page alone, one after the other, and the page; compares the sum with the whole.
    #[arg(long, conflicts_with_all = ["avg", "peak", "pid", "metrics"])]
    pub(crate) all: bool,
    /// Number of times each is rendered with --all; the median of the times counts.
    #[arg(long, default_value_t = 20)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) asker: super::pages::RequestIdentityArgs,
    /// Transactions per second on average.
    #[arg(long, required_unless_present = "all")]
    pub(crate) avg: Option<String>,
    /// Transactions per second at the peak.
    #[arg(long, required_unless_present = "all")]
    pub(crate) peak: Option<String>,
    /// The duration of each phase.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub(crate) hold: String,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    /// Number of sending threads; one per processor by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabUploadArgs {
    /// The asset folder, such as `http://127.0.0.1:4502/content/dam/lab`.
    pub(crate) folder: String,
    /// A TOML file with the goal: `assets`, `size`, `renditions`, `window`, `skew`, as for `tympan lab upload-goal`.
    #[arg(long, value_name = "FILE.toml", required_unless_present = "assets")]
    pub(crate) goal_from: Option<PathBuf>,
    /// Assets per window; `500/day` is read as 500.
    #[arg(long, requires = "size", conflicts_with = "goal_from")]
    pub(crate) assets: Option<String>,
    /// Size of an original in megabytes.
    #[arg(long)]
    pub(crate) size: Option<String>,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
    /// The duration of the peak.
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    pub(crate) lasts: String,
    /// A picture to upload, with a different end each time; by default a bitmap of the goal's size is generated.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Counts an upload as done with its response, without waiting for its renditions.
    #[arg(long)]
    pub(crate) no_renditions: bool,
    /// Maximum wait for the renditions of an asset.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) patience: String,
    /// The seed of names and contents; another seed uploads other files.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) asker: super::pages::RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}
