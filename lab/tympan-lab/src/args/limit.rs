//! Arguments of `tympan lab limit`: tests with several phases.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::page::RequestIdentityArgs;
use super::{
    IgnoredElementArgs, LabOutputArgs, PlanlessRunArgs, WatchedLogArgs, WatchedProcessArgs, heading,
};

#[derive(Debug, Subcommand)]
pub(crate) enum LabLimitCommand {
    Breakpoint(LabBreakpointArgs),
    Endure(LabEndureArgs),
    Golive(LabGoliveArgs),
    Errors(Box<LabErrorsArgs>),
    Component(LabComponentArgs),
}

/// A plan and how to run it.
#[derive(Debug, Args)]
pub(crate) struct PhasePlanArgs {
    /// A plan (.toml, .jmx) or the URL of a page.
    #[arg(value_name = "PLAN|URL")]
    pub(crate) plan: String,
    /// Another target than the plan's own, `http://host:port`; for TOML plans.
    #[arg(long, value_name = "URL", help_heading = heading::PLAN)]
    pub(crate) target: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property", value_name = "NAME=VALUE", help_heading = heading::PLAN)]
    pub(crate) properties: Vec<String>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    /// Number of sending threads; one per processor by default.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 0,
        hide_default_value = true,
        help_heading = heading::MEASUREMENT
    )]
    pub(crate) workers: usize,
    /// The seed of random numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::MEASUREMENT)]
    pub(crate) seed: u64,
    /// Stores plan, arguments, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR", help_heading = heading::OUTPUT)]
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
    #[arg(long, value_name = "COUNT")]
    pub(crate) users: Option<u64>,
    /// The duration of the load.
    #[arg(long, alias = "for", value_name = "TIME")]
    pub(crate) duration: String,
}

/// The quantity that the steps of a breakpoint search increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SteppedQuantity {
    /// Visits per second, independent of whether earlier visits have ended.
    Rate,
    /// Concurrent users, who wait for responses.
    Users,
}

/// Increases the load in steps until a target breaks, and reports what breaks first.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab limit breakpoint plan.toml --from 10 --step x1.5 --dwell 30s"
)]
pub(crate) struct LabBreakpointArgs {
    /// The first step: visits per second, or with `--vary users` a number of users.
    #[arg(long, default_value_t = 10.0)]
    pub(crate) from: f64,
    /// The quantity that steps increase.
    #[arg(long, value_enum, default_value = "rate")]
    pub(crate) vary: SteppedQuantity,
    /// The earlier spelling of `--vary users`.
    #[arg(long, hide = true, conflicts_with = "vary")]
    pub(crate) users: bool,
    /// The increment between steps: `x1.5` or `+10`.
    #[arg(long, default_value = "x1.5")]
    pub(crate) step: String,
    /// Minimum duration of a step; longer if 50 times the 99th percentile or 2,000 samples require it.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) dwell: String,
    /// Steps last exactly as long as --dwell, regardless of the number of samples.
    #[arg(long)]
    pub(crate) exact_dwell: bool,
    /// Maximum number of steps.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
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
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
}

impl LabBreakpointArgs {
    /// Returns true if steps are numbers of users instead of visits per second.
    pub(crate) fn steps_are_users(&self) -> bool {
        self.users || self.vary == SteppedQuantity::Users
    }
}

/// Keeps up a load for a long time, and reports whether the target degrades.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab limit endure plan.toml --rate 20/s --duration 8h --pid 4711"
)]
pub(crate) struct LabEndureArgs {
    #[command(flatten)]
    pub(crate) load: PhaseLoadArgs,
    /// The warm-up time to leave out; by default a tenth of the duration, at most 5 minutes.
    #[arg(long, value_name = "TIME")]
    pub(crate) warm_up: Option<String>,
    /// The degradation per hour that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub(crate) trend: String,
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
}

/// Tests the average, the peak and the launch load, side by side against the same goals.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab limit golive plan.toml --peak-from access.log --factor 3 --duration 30m --soft 10%"
)]
pub(crate) struct LabGoliveArgs {
    /// Visits per second on average.
    #[arg(long, value_name = "RATE", required_unless_present = "peak_from")]
    pub(crate) avg: Option<String>,
    /// Visits per second at the peak.
    #[arg(long, value_name = "RATE", required_unless_present = "peak_from")]
    pub(crate) peak: Option<String>,
    /// Reads the average and the busiest minute from an access.log, of a predecessor site for instance.
    #[arg(long, value_name = "access.log", conflicts_with_all = ["avg", "peak"])]
    pub(crate) peak_from: Option<PathBuf>,
    /// The launch load as a multiple of the peak.
    #[arg(long, default_value_t = 3.0)]
    pub(crate) factor: f64,
    /// The duration of each phase.
    #[arg(long, alias = "hold", default_value = "30m", value_name = "TIME")]
    pub(crate) duration: String,
    /// A soft launch before the launch, with this share of its load.
    #[arg(long, value_name = "PERCENT")]
    pub(crate) soft: Option<String>,
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
}

/// Sends healthy traffic alone, and then the same traffic with errors added.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab limit errors plan.toml --errors errors.toml --rate 50/s --duration 5m\n         \
                  tympan lab limit errors http://127.0.0.1:8080/content/site/en.html --rate 50/s --duration 1m --outage 'crm down=systemctl stop crm' --restore 'systemctl start crm'"
)]
pub(crate) struct LabErrorsArgs {
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
    #[arg(
        long,
        value_name = "NAME=COMMAND|URL",
        requires = "restore",
        help_heading = heading::OUTAGES
    )]
    pub(crate) outage: Vec<String>,
    /// Restores the back ends that --outage takes down, even after a failure: a shell command or a URL to POST to.
    #[arg(long, value_name = "COMMAND|URL", requires = "outage", help_heading = heading::OUTAGES)]
    pub(crate) restore: Option<String>,
    /// The text on the page of the site that replaces the content of the back end.
    #[arg(long, value_name = "TEXT", requires = "outage", help_heading = heading::OUTAGES)]
    pub(crate) placeholder: Option<String>,
    /// Share of visits that may fail while a back end is down, in addition to those that fail anyway.
    #[arg(long, default_value = "1%", value_name = "PERCENT", help_heading = heading::OUTAGES)]
    pub(crate) outage_errors: String,
    /// The number of errors, as a share of the healthy visits.
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    pub(crate) share: String,
    /// Maximum of the 95th percentile of the response times of the errors.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub(crate) within: String,
    /// The slowdown of healthy responses that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    pub(crate) delta: String,
    #[command(flatten)]
    pub(crate) subject: PhasePlanArgs,
}

/// Tests single components, each alone, at their average and their peak load.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab limit component http://127.0.0.1:4503/content/site/en/_jcr_content/nav.html --avg 20/s --peak 80/s"
)]
pub(crate) struct LabComponentArgs {
    /// URLs that each render one component, such as `http://host/content/site/en/_jcr_content/nav.html`; with --all, a
    /// page.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Renders each component of the page alone, one after the other, and the page; compares the sum with the whole.
    #[arg(long, conflicts_with_all = ["avg", "peak", "pid", "metrics"])]
    pub(crate) all: bool,
    /// Number of times each is rendered with --all; the median of the times counts.
    #[arg(long, alias = "samples", value_name = "COUNT", default_value_t = 20)]
    pub(crate) requests: usize,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    /// Transactions per second on average.
    #[arg(long, value_name = "RATE", required_unless_present = "all")]
    pub(crate) avg: Option<String>,
    /// Transactions per second at the peak.
    #[arg(long, value_name = "RATE", required_unless_present = "all")]
    pub(crate) peak: Option<String>,
    /// The duration of each phase.
    #[arg(long, alias = "hold", default_value = "30s", value_name = "TIME")]
    pub(crate) duration: String,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
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
    pub(crate) run_options: PlanlessRunArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{LabArgs, LabCommand};

    #[test]
    fn a_breakpoint_search_varies_users_by_both_spellings() {
        for (option, expected) in [
            (&[][..], false),
            (&["--vary", "rate"], false),
            (&["--vary", "users"], true),
            (&["--users"], true),
        ] {
            let words = ["tympan lab", "limit", "breakpoint", "plan.toml"].iter().chain(option);
            let command = LabArgs::try_parse_from(words).unwrap().command;
            let LabCommand::Limit(LabLimitCommand::Breakpoint(arguments)) = command else {
                panic!("{option:?} is another command");
            };
            assert_eq!(arguments.steps_are_users(), expected, "{option:?}");
        }
    }
}
