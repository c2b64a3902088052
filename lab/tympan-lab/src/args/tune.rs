//! Arguments of `tympan lab tune`: commands that search and document good settings.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::WatchedLogArgs;
use super::read::BetterNumbersArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum LabTuneCommand {
    Sweep(LabSweepArgs),
    Settings(LabSettingsArgs),
    Journal(LabJournalArgs),
    Experiment(LabExperimentArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ProgramSettingArgs {
    /// A knob and its values, from small to large: `name=a,b`, `name=128..10000:x2`, `name=1..8:+1`; `default` leaves
    /// the option out; may be repeated. The first value is the baseline of the comparison.
    #[arg(long = "set", required = true, value_name = "NAME=VALUES")]
    pub(crate) knobs: Vec<String>,
    /// Number of runs of each setting.
    #[arg(long, value_name = "COUNT", default_value_t = 2)]
    pub(crate) runs: usize,
    /// A regular expression that finds the number to compare in the output, instead of the time; the first group of the
    /// last match is used.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) metric: Option<String>,
    #[command(flatten)]
    pub(crate) better: BetterNumbersArgs,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, with `{name}` in place of a value.
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}

/// Runs a program with many settings: times, memory, the smallest setting that is as good as the best.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab tune sweep --set lru=256,1024 --set queue=128..10000:x2 --runs 2 -- backup --lru {lru} --queue {queue}"
)]
pub(crate) struct LabSweepArgs {
    #[command(flatten)]
    pub(crate) measured: ProgramSettingArgs,
}

/// Finds good settings automatically, one knob at a time, until further gains are no larger than noise.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab tune settings --set workers=1..16:x2 --metric '([0-9.]+) pages/s' --better more -- ./render {workers}"
)]
pub(crate) struct LabSettingsArgs {
    /// Stops as soon as every run reaches this value: a time such as `10s`, or a number if there is a metric.
    #[arg(long)]
    pub(crate) goal: Option<String>,
    #[command(flatten)]
    pub(crate) measured: ProgramSettingArgs,
}

/// Maintains the journal of tuning: one change per step, compared only with steps that made the same requests.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Example: tympan lab tune journal add \"query cache 32M\" -- get \
                  http://127.0.0.1:8080/content/site/en.html -c 10 -n 1000\n         tympan lab tune journal show\n         \
                  tympan lab tune journal diary.txt          (outputs of ab, one after the other)")]
pub(crate) struct LabJournalArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<LabJournalCommand>,
    /// A file with output of ab.
    #[arg(required = true)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabJournalCommand {
    /// Runs a measurement and adds a step.
    Add(JournalAddArgs),
    /// Shows all steps, each compared with the previous and the first.
    Show(JournalShowArgs),
}

/// The journal file and the output format.
#[derive(Debug, Args)]
pub(crate) struct JournalFileArgs {
    /// The journal.
    #[arg(long, default_value = "lab-journal.jsonl")]
    pub(crate) journal: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct JournalAddArgs {
    /// A description of the change.
    pub(crate) what: String,
    #[command(flatten)]
    pub(crate) book: JournalFileArgs,
    /// The measurement: `get`, `ab`, `run`, `jmeter` or `replay` with their arguments.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JournalShowArgs {
    #[command(flatten)]
    pub(crate) book: JournalFileArgs,
}

/// Measures two configurations of a system under the same load and event, alternately.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab tune experiment refetch.toml --at-least 4")]
pub(crate) struct LabExperimentArgs {
    /// The experiment.
    pub(crate) file: PathBuf,
    /// Exits with 1 if the throughput does not grow by at least this factor.
    #[arg(long)]
    pub(crate) at_least: Option<f64>,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
