//! Arguments of `tympan lab read`: commands that evaluate results and logs.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tympan_lab_tools::metric_comparison::BetterDirection;

use super::LabOutputArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum LabReadCommand {
    Report(LabReportArgs),
    Log(LabLogArgs),
    CacheRatio(LabCacheRatioArgs),
    Compare(LabCompareArgs),
    Map(LabMapArgs),
}

/// Makes a report from a result file (.jtl), including JMeter's own, or one report of several runs.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab report results.jtl -o report.html\n         \
                  tympan lab report runs/ -o all.html\n         \
                  tympan lab report runs/run-1700000000 runs/run-1700000600 -o both.html\n         \
                  tympan lab report results.jtl --request-log publish/logs/request.log -o report.html")]
pub(crate) struct LabReportArgs {
    /// A result file; or runs to overlay: folders that `--keep` made, folders of such folders, summaries of `--json`,
    /// result files.
    #[arg(
        required_unless_present = "project",
        conflicts_with = "project",
        value_name = "FILE|RUN"
    )]
    pub(crate) runs: Vec<PathBuf>,
    /// Makes the report of a project instead.
    #[arg(long, value_name = "project.toml")]
    pub(crate) project: Option<PathBuf>,
    /// The path of the HTML file.
    #[arg(short = 'o', long = "out", value_name = "FILE.html")]
    pub(crate) out: Option<PathBuf>,
    /// The server's request.log of a run with --mark: shows the server's share of the samples' time. May be repeated,
    /// or list several separated by commas.
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "project")]
    pub(crate) request_log: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// Analyzes a request.log: the slowest requests, times per type, concurrent requests.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab read log -n 20 logs/request.log")]
pub(crate) struct LabLogArgs {
    /// Maximum number of lines.
    #[arg(short = 'n', value_name = "RESULTS")]
    pub(crate) most_results: Option<usize>,
    /// Maximum number of requests.
    #[arg(short = 'm', value_name = "REQUESTS")]
    pub(crate) most_requests: Option<u64>,
    /// `-xdev` leaves out POST requests to CRXDE.
    #[arg(short = 'x', value_name = "dev", value_parser = ["dev"])]
    pub(crate) exclude: Option<String>,
    /// Also prints the paths with the highest total time, times per type, and the latency goal.
    #[arg(long)]
    pub(crate) summary: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The request.log.
    pub(crate) file: PathBuf,
}

/// Computes the cache hit ratio from logs.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab read cache-ratio --access-log a.log --request-log publish/request.log"
)]
pub(crate) struct LabCacheRatioArgs {
    /// access.log of a dispatcher; may be repeated, or list several separated by commas.
    #[arg(long, alias = "access", value_name = "FILE", value_delimiter = ',')]
    pub(crate) access_log: Vec<PathBuf>,
    /// request.log of a publisher; may be repeated, or list several separated by commas.
    #[arg(long, alias = "request", value_name = "FILE", value_delimiter = ',')]
    pub(crate) request_log: Vec<PathBuf>,
    /// Total number of requests, instead of logs.
    #[arg(long, value_name = "COUNT", requires = "reached", conflicts_with = "access_log")]
    pub(crate) total: Option<u64>,
    /// Number of requests that reached the publisher, instead of logs.
    #[arg(long, value_name = "COUNT", requires = "total")]
    pub(crate) reached: Option<u64>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The numbers that are better: the same option for all commands that compare.
#[derive(Debug, Args)]
pub(crate) struct BetterNumbersArgs {
    /// Whether smaller numbers are better, as with times, or larger ones, as with throughput.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "less")]
    better: BetterNumbers,
    /// The former spelling of `--better less`.
    #[arg(long, hide = true, conflicts_with = "better")]
    less_is_better: bool,
    /// The former spelling of `--better more`.
    #[arg(long, hide = true, conflicts_with_all = ["better", "less_is_better"])]
    more_is_better: bool,
}

impl BetterNumbersArgs {
    pub(crate) fn direction(&self) -> BetterDirection {
        match self.better {
            BetterNumbers::Less if !self.more_is_better => BetterDirection::Lower,
            BetterNumbers::Less | BetterNumbers::More => BetterDirection::Higher,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BetterNumbers {
    Less,
    More,
}

/// Compares two series of runs, and reports whether the difference is larger than noise.
///
/// A and B are files of numbers, reports of `--json`, folders of such reports, or with --runs the command lines of
/// two programs, which then run alternately.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab read compare before.txt after.txt --trim 1 --better more\n         \
                  tympan lab read compare './old 7' './new 7' --runs 20 --interleave --trim 1"
)]
pub(crate) struct LabCompareArgs {
    /// The first series.
    pub(crate) before: String,
    /// The second series.
    pub(crate) after: String,
    /// Number of smallest and of largest values left out of the means.
    #[arg(long, default_value_t = 1)]
    pub(crate) trim: usize,
    #[command(flatten)]
    pub(crate) better: BetterNumbersArgs,
    /// Number of runs of two command lines.
    #[arg(long, value_name = "COUNT")]
    pub(crate) runs: Option<usize>,
    /// Runs the two alternately, which is always done.
    #[arg(long, requires = "runs")]
    pub(crate) interleave: bool,
    /// Number of warm-up runs of each, which are not counted.
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "runs")]
    pub(crate) warm_ups: usize,
    /// A regular expression that finds another number to compare in the output.
    #[arg(long, value_name = "PATTERN", requires = "runs")]
    pub(crate) metric: Option<String>,
    /// The seed that chooses which of the two begins.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Exits with 1 if anything got worse by more than noise, and with 3 if there are too few runs to decide.
    #[arg(long)]
    pub(crate) fail_if_worse: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Draws the application map of a project, colored by what was measured.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab read map project.toml -o map.svg")]
pub(crate) struct LabMapArgs {
    /// The project.
    #[arg(default_value = "project.toml")]
    pub(crate) project: PathBuf,
    /// The file of the map; standard output by default.
    #[arg(short = 'o', long = "out", value_name = "FILE.svg")]
    pub(crate) out: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
