//! Arguments of `tympan lab`. Commands, options and exit codes are stable: scripts depend on them.

pub(crate) mod ab;
pub(crate) mod author;
pub(crate) mod estimate;
mod flat_name;
pub(crate) mod fleet;
pub(crate) mod jmeter;
pub(crate) mod limit;
pub(crate) mod load;
pub(crate) mod page;
pub(crate) mod plan;
pub(crate) mod read;
pub(crate) mod tune;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};

pub(crate) use self::flat_name::expand_flat_name;

/// The headings of options in the help.
mod heading {
    pub(super) const PLAN: &str = "Plan";
    pub(super) const CONTENT: &str = "Content";
    pub(super) const REQUESTS: &str = "Requests";
    pub(super) const OUTAGES: &str = "Outages";
    pub(super) const WATCHING: &str = "Watching";
    pub(super) const AGENTS: &str = "Agents";
    pub(super) const MEASUREMENT: &str = "Measurement";
    pub(super) const OUTPUT: &str = "Output";
}

/// Puts a site under load and evaluates its responses: URLs, JMeter plans, logs, reports.
// Help and errors name the program as it was started: `tympan lab` passes that name.
#[derive(Debug, Parser)]
#[command(
    name = "tympan-lab",
    version,
    max_term_width = 100,
    after_help = "Examples: tympan lab get http://127.0.0.1:8080/content/site/en.html -c 20 -z 30s\n          \
                  tympan lab load --help"
)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

impl LabArgs {
    /// Parses the command line of this process.
    pub(crate) fn parse_process() -> Self {
        let mut words = std::env::args_os();
        let program = words.next().unwrap_or_else(|| "tympan-lab".into());
        let words = expand_flat_name(words.collect::<Vec<OsString>>());
        Self::parse_from(std::iter::once(program).chain(words))
    }
}

/// Returns the definition of all commands and options, for tests of texts that print commands.
#[must_use]
pub fn command_definition() -> clap::Command {
    LabArgs::command()
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Sends requests: to URLs, from plans, from logs.
    #[command(subcommand)]
    Load(load::LabLoadCommand),
    /// Checks, converts and creates plans.
    #[command(subcommand)]
    Plan(plan::LabPlanCommand),
    /// Tests the limits of a target: breaking point, endurance, launch, errors, single components.
    #[command(subcommand)]
    Limit(limit::LabLimitCommand),
    /// Examines single pages: parts, components, latency, cacheability, equality.
    #[command(subcommand)]
    Page(page::LabPageCommand),
    /// Evaluates results and logs.
    #[command(subcommand)]
    Read(read::LabReadCommand),
    /// Searches good settings of a program or a system, and documents the steps.
    #[command(subcommand)]
    Tune(tune::LabTuneCommand),
    /// Fills an author, puts it under load, and measures uploads and backups.
    #[command(subcommand)]
    Author(author::LabAuthorCommand),
    /// Calculates loads and goals from figures, without sending a request.
    #[command(subcommand)]
    Estimate(estimate::LabEstimateCommand),
    Get(load::LabGetArgs),
    Ab(ab::LabAbArgs),
    Jmeter(jmeter::LabJmeterArgs),
    Report(read::LabReportArgs),
    /// Prints a script by which a shell completes the commands and options of `tympan-lab`.
    #[command(
        after_help = "Example: tympan lab completions bash > /etc/bash_completion.d/tympan-lab"
    )]
    Completions(LabCompletionsArgs),
    /// Writes the man pages of all commands into a folder; used by packages.
    #[command(name = "man-pages", hide = true)]
    ManPages {
        /// The folder, which is created.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LabCompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: tympan_terminal::CompletionShell,
}

/// The credentials that requests are sent with.
#[derive(Debug, Args)]
pub(crate) struct LabLoginArgs {
    /// A user's name and password; the environment variable is safer.
    #[arg(
        long,
        env = "TYMPAN_LAB_LOGIN",
        hide_env_values = true,
        value_name = "USER:PASSWORD",
        help_heading = heading::REQUESTS
    )]
    pub(crate) login: Option<String>,
    /// A file with a token of `tympan user token`, instead of a name and a password.
    #[arg(long, value_name = "FILE", help_heading = heading::REQUESTS)]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LabOutputArgs {
    /// Goals that the run must meet.
    #[arg(long, value_name = "FILE.toml", help_heading = heading::OUTPUT)]
    pub(crate) goals: Option<PathBuf>,
    /// Writes the report as one HTML file.
    #[arg(long, value_name = "FILE.html", help_heading = heading::OUTPUT)]
    pub(crate) report: Option<PathBuf>,
    /// Writes the goals as JUnit XML.
    #[arg(long, value_name = "FILE.xml", help_heading = heading::OUTPUT)]
    pub(crate) junit: Option<PathBuf>,
    /// Writes a summary in Markdown.
    #[arg(long, value_name = "FILE.md", help_heading = heading::OUTPUT)]
    pub(crate) markdown: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
}

/// The elements of a plan that may be left out.
#[derive(Debug, Default, Args)]
pub(crate) struct IgnoredElementArgs {
    /// Leaves out elements of this class that cannot be run, with everything below them, as if they were disabled; for
    /// JMeter plans, such as `JDBCSampler`. May be repeated.
    #[arg(
        long = "allow-ignore",
        value_name = "CLASS",
        value_delimiter = ',',
        help_heading = heading::PLAN
    )]
    pub(crate) allow_ignore: Vec<String>,
}

/// The logs in which a target reports errors.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedLogArgs {
    /// Fails if new error lines appear in this log; may be repeated.
    #[arg(long, value_name = "FILE", help_heading = heading::MEASUREMENT)]
    pub(crate) watch_log: Vec<PathBuf>,
    /// The regular expression that identifies an error line, instead of the built-in one.
    #[arg(
        long,
        value_name = "PATTERN",
        requires = "watch_log",
        help_heading = heading::MEASUREMENT
    )]
    pub(crate) log_pattern: Option<String>,
}

/// The output of a command that takes no plan.
#[derive(Debug, Args)]
pub(crate) struct PlanlessRunArgs {
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// Stores arguments, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR", help_heading = heading::OUTPUT)]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// What is monitored during a load.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedProcessArgs {
    /// A process of this machine to monitor during the load: processors, memory, files, threads.
    #[arg(long, value_name = "PID", help_heading = heading::MEASUREMENT)]
    pub(crate) pid: Option<u32>,
    /// The URL of the target's Prometheus metrics, such as `http://127.0.0.1:4523/metrics`, read once a second instead
    /// of a process of this machine.
    #[arg(long, value_name = "URL", conflicts_with = "pid", help_heading = heading::MEASUREMENT)]
    pub(crate) metrics: Option<String>,
}

/// The folder that stores the results of a run.
#[derive(Debug, Args)]
pub(crate) struct RunFolderArgs {
    /// Stores arguments, plan, histograms, seconds, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR", help_heading = heading::OUTPUT)]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
}

/// The distribution of assets over a working day.
#[derive(Debug, Args)]
pub(crate) struct WorkingDayArgs {
    /// Size of an asset's renditions in megabytes.
    #[arg(long, value_name = "MEGABYTES", default_value = "0")]
    pub(crate) renditions: String,
    /// The window, such as `8h`.
    #[arg(long, value_name = "TIME", default_value = "8h")]
    pub(crate) window: String,
    /// Share of the work and share of the time in which it falls, in percent.
    #[arg(long, default_value = "80/20")]
    pub(crate) skew: String,
}
