//! The words of the tests of several phases: breakpoint, endure, golive, errors, component.

use std::path::PathBuf;

use clap::Args;

use super::lab::{
    IgnoredElementArgs, LabOutputArgs, PlanlessRunArgs, WatchedLogArgs, WatchedProcessArgs,
    WorkingDayArgs,
};

/// A plan, and how to run it.
#[derive(Debug, Args)]
pub(crate) struct PhasePlanArgs {
    /// A plan (.toml, .jmx) or the address of a page.
    #[arg(value_name = "PLAN|URL")]
    pub(crate) plan: String,
    /// Another target than the plan's own, `http://host:port`; for plans in TOML.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    /// Threads that send; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// What random numbers derive from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keeps plan, arguments, summary and report in a new folder `run-...` below this one.
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
    /// Users at a time, who wait for answers.
    #[arg(long)]
    pub(crate) users: Option<u64>,
    /// How long.
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
    /// Steps are users who wait for answers, instead of visits per second.
    #[arg(long)]
    pub(crate) users: bool,
    /// How steps follow each other: `x1.5` or `+10`.
    #[arg(long, default_value = "x1.5")]
    pub(crate) step: String,
    /// Least time of a step; longer where 50 times the 99th percentile or 2,000 samples need it.
    #[arg(long, default_value = "30s")]
    pub(crate) dwell: String,
    /// Steps last as long as --dwell says, however few their samples are.
    #[arg(long)]
    pub(crate) exact_dwell: bool,
    /// Steps at most.
    #[arg(long, default_value_t = 20)]
    pub(crate) steps: usize,
    /// No step above this load.
    #[arg(long)]
    pub(crate) to: Option<f64>,
    /// Stops when 95 % of the answers take longer than that.
    #[arg(long, value_name = "TIME")]
    pub(crate) p95: Option<String>,
    /// Does not look between the last good step and the first bad one.
    #[arg(long)]
    pub(crate) no_narrow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabEndureArgs {
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
    #[command(flatten)]
    pub(crate) load: PhaseLoadArgs,
    /// What is left out at the beginning; a tenth of the time, at most 5 minutes, unless given.
    #[arg(long, value_name = "TIME")]
    pub(crate) warm_up: Option<String>,
    /// Change for the worse per hour that is allowed.
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
    /// Takes the average and the busiest minute of an access.log, of a predecessor site for instance.
    #[arg(long, value_name = "access.log", conflicts_with_all = ["avg", "peak"])]
    pub(crate) peak_from: Option<PathBuf>,
    /// How many times the peak the launch brings.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) factor: f64,
    /// How long each phase is held.
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
    /// A plan of errors; without it the usual mistakes are sent to the target.
    #[arg(long, value_name = "PLAN.toml")]
    pub(crate) errors: Option<PathBuf>,
    /// Where the usual mistakes go, if the plan is no address: `http://host:port/page.html`.
    #[arg(long, value_name = "URL", conflicts_with = "errors")]
    pub(crate) site: Option<String>,
    /// The path of the search, with `{}` for the term.
    #[arg(long, value_name = "PATH", conflicts_with = "errors")]
    pub(crate) search: Option<String>,
    /// A path to which too large uploads are sent; they are to be refused.
    #[arg(long, value_name = "PATH", conflicts_with = "errors")]
    pub(crate) upload: Option<String>,
    /// How large they are.
    #[arg(long, default_value = "64 MiB", value_name = "SIZE", requires = "upload")]
    pub(crate) upload_size: String,
    /// Clients beside the errors of whom each sends a byte every half second, and never a whole request.
    #[arg(long, value_name = "CLIENTS")]
    pub(crate) slow: Option<usize>,
    /// Takes a back end of the site away after the errors, and judges whether pages stay up: a name and a command for the
    /// shell, or an address that is posted to, such as `crm down=systemctl stop crm`. May be repeated.
    #[arg(long, value_name = "NAME=COMMAND|URL", requires = "restore")]
    pub(crate) outage: Vec<String>,
    /// Brings back what --outage takes away, whatever happened meanwhile: a command or an address.
    #[arg(long, value_name = "COMMAND|URL", requires = "outage")]
    pub(crate) restore: Option<String>,
    /// What stands on the page of the site in place of what the back end gives.
    #[arg(long, value_name = "TEXT", requires = "outage")]
    pub(crate) placeholder: Option<String>,
    /// Share of visits that may fail while a back end is away, beside those that fail anyway.
    #[arg(long, default_value = "1%", value_name = "PERCENT")]
    pub(crate) outage_errors: String,
    /// How many errors, as a share of the healthy visits.
    #[arg(long, default_value = "20%")]
    pub(crate) share: String,
    /// Longest time in which 95 % of the errors are answered.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub(crate) within: String,
    /// How much slower healthy answers may become.
    #[arg(long, default_value = "20%")]
    pub(crate) delta: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabComponentArgs {
    /// Addresses that draw one component each, such as `http://host/content/site/en/_jcr_content/nav.html`; with --all, a
    /// page.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Draws each component of the page alone, one after the other, and the page; compares the sum with the whole.
    #[arg(long, conflicts_with_all = ["avg", "peak", "pid", "metrics"])]
    pub(crate) all: bool,
    /// How often each is drawn with --all; the middle of the times counts.
    #[arg(long, default_value_t = 20)]
    pub(crate) samples: usize,
    #[command(flatten)]
    pub(crate) asker: super::lab_pages::RequestIdentityArgs,
    /// Transactions per second on average.
    #[arg(long, required_unless_present = "all")]
    pub(crate) avg: Option<String>,
    /// Transactions per second at the peak.
    #[arg(long, required_unless_present = "all")]
    pub(crate) peak: Option<String>,
    /// How long each is held.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    pub(crate) hold: String,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    /// Threads that send; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabUploadArgs {
    /// The folder of assets, such as `http://127.0.0.1:4502/content/dam/lab`.
    pub(crate) folder: String,
    /// The goal as a file in TOML: `assets`, `size`, `renditions`, `window`, `skew`, as `tympan lab upload-goal` takes them.
    #[arg(long, value_name = "FILE.toml", required_unless_present = "assets")]
    pub(crate) goal_from: Option<PathBuf>,
    /// Assets per window; `500/day` reads as 500.
    #[arg(long, requires = "size", conflicts_with = "goal_from")]
    pub(crate) assets: Option<String>,
    /// Megabytes of an original.
    #[arg(long)]
    pub(crate) size: Option<String>,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
    /// How long the peak is held.
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    pub(crate) lasts: String,
    /// A picture to upload, made different at its end each time; a bitmap of the goal's size is made without.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// An upload is done when it is answered, without its renditions.
    #[arg(long)]
    pub(crate) no_renditions: bool,
    /// Longest wait for the renditions of an asset.
    #[arg(long, value_name = "TIME", default_value = "10m")]
    pub(crate) patience: String,
    /// What names and bytes derive from; another one uploads other files.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) asker: super::lab_pages::RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}
