//! The words of the commands of `tympan lab` that prove, tune and look at a site.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::lab::{IgnoredElementArgs, LabOutputArgs, RunFolderArgs, WatchedLogArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum LabAnalysisCommand {
    /// Compares what two sites answer to the same requests: status, headers, bodies without dates, nonces and hashes.
    #[command(
        after_help = "Example: tympan lab verify pages.txt --before http://127.0.0.1:4503 --after http://127.0.0.1:4504"
    )]
    Verify(LabVerifyArgs),
    /// Runs a program under many settings: times, memory, the smallest setting that is as good as the best.
    #[command(
        after_help = "Example: tympan lab sweep --set lru=256,1024 --set queue=128..10000:x2 --runs 2 -- backup --lru {lru} --queue {queue}"
    )]
    Sweep(LabSweepArgs),
    /// Finds good settings by itself, one knob at a time, until more is no better than noise.
    #[command(
        alias = "autotune",
        after_help = "Example: tympan lab tune --set workers=1..16:x2 --metric '([0-9.]+) pages/s' --more-is-better -- ./render {workers}"
    )]
    Tune(LabTuneArgs),
    /// Compares two series of runs, and says whether the difference is more than noise.
    ///
    /// A and B are files of numbers, reports of `--json`, folders of such reports, or with --runs the command lines of
    /// two programs, which then run in turn.
    #[command(
        after_help = "Example: tympan lab compare before.txt after.txt --trim 1 --less-is-better\n         \
                      tympan lab compare './old 7' './new 7' --runs 20 --interleave --trim 1"
    )]
    Compare(LabCompareArgs),
    /// Keeps the diary of tuning: one change per step, compared only with steps that asked for the same thing.
    #[command(
        after_help = "Example: tympan lab journal add \"query cache 32M\" -- get http://127.0.0.1:8080/content/site/en.html -c 10 -n 1000\n         \
                      tympan lab journal show\n         \
                      tympan lab journal diary.txt          (texts of ab, one after the other)"
    )]
    Journal(LabJournalArgs),
    /// Walks through a site and names, with reasons, what keeps its answers out of a cache.
    #[command(
        after_help = "Example: tympan lab cacheability http://127.0.0.1:8080/content/site/en.html"
    )]
    Cacheability(LabCacheabilityArgs),
    /// Turns an access.log into figures, a plan with the same mix, and goals.
    #[command(
        after_help = "Example: tympan lab profile access.log --target http://127.0.0.1:8080 --plan plan.toml --goals goals.toml"
    )]
    Profile(LabProfileArgs),
    /// Plays an access.log again, every request at its own time.
    #[command(
        after_help = "Example: tympan lab replay access.log --target http://127.0.0.1:8080 --speed 2x"
    )]
    Replay(LabReplayArgs),
    /// Stands between a browser and a site, and writes a plan of what goes through.
    #[command(
        after_help = "Example: tympan lab record --target http://127.0.0.1:4503 --listen 127.0.0.1:8888 -o plan.toml\n         \
                      tympan lab record --from-har visit.har -o plan.toml"
    )]
    Record(LabRecordArgs),
    /// Writes a plan of JMeter (.jmx) in TOML; what TOML has no words for is named, and nothing is written.
    #[command(after_help = "Example: tympan lab convert plan.jmx -o plan.toml")]
    Convert(LabConvertArgs),
    /// Writes a plan in TOML for another engine.
    #[command(after_help = "Example: tympan lab export --jmx plan.toml -o plan.jmx")]
    Export(LabExportArgs),
    /// Fills an author with pages, images and tags to measure with: the same for the same seed, in increments.
    #[command(
        after_help = "Example: tympan lab content --author http://127.0.0.1:4502 --password-file author/initial-password --pages 1000 --images 400\n         \
                      tympan lab content --dry-run --increments 5"
    )]
    Content(LabContentArgs),
    /// Measures two arrangements of a system under the same load and event, in turn.
    #[command(after_help = "Example: tympan lab experiment refetch.toml --at-least 4")]
    Experiment(LabExperimentArgs),
    /// Draws the application map of a project, colored by what was measured.
    #[command(after_help = "Example: tympan lab map project.toml -o map.svg")]
    Map(LabMapArgs),
}

#[derive(Debug, Args)]
pub(crate) struct LabVerifyArgs {
    /// A list of requests (`[METHOD] /path` or a URL per line), or a plan (.jmx, .toml).
    pub(crate) what: PathBuf,
    /// The site as it was.
    #[arg(long, value_name = "URL")]
    pub(crate) before: String,
    /// The site as it is.
    #[arg(long, value_name = "URL")]
    pub(crate) after: String,
    /// Sent with every request of a list, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// What may differ besides: a regular expression, or `PATTERN=>REPLACEMENT`; may be repeated.
    #[arg(long = "rule")]
    pub(crate) rules: Vec<String>,
    /// A header that may differ; may be repeated.
    #[arg(long = "ignore-header", value_name = "NAME")]
    pub(crate) ignored_headers: Vec<String>,
    /// Compares dates, nonces, hashes and all headers too.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// A property of the plan, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// What random numbers of the plan derive from: both sites get the same.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Longest wait for an answer.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramSettingArgs {
    /// A knob and its values, from small to large: `name=a,b`, `name=128..10000:x2`, `name=1..8:+1`; `default` leaves
    /// the option out; may be repeated. The first value is what the others are compared with.
    #[arg(long = "set", required = true, value_name = "NAME=VALUES")]
    pub(crate) knobs: Vec<String>,
    /// Runs of each setting.
    #[arg(long, default_value_t = 2)]
    pub(crate) runs: usize,
    /// Finds the number that counts in the output, instead of the time; the first group, of the last match.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) metric: Option<String>,
    /// A larger number is better.
    #[arg(long, requires = "metric")]
    pub(crate) more_is_better: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, with `{name}` where a value goes.
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabSweepArgs {
    #[command(flatten)]
    pub(crate) measured: ProgramSettingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabTuneArgs {
    /// Stops where every run is as good as this: a time such as `10s`, or a number where there is a metric.
    #[arg(long)]
    pub(crate) goal: Option<String>,
    #[command(flatten)]
    pub(crate) measured: ProgramSettingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabCompareArgs {
    /// The first series.
    pub(crate) before: String,
    /// The second series.
    pub(crate) after: String,
    /// How many of the smallest and of the largest values are left out of the means.
    #[arg(long, default_value_t = 1)]
    pub(crate) trim: usize,
    /// Smaller numbers are better, as with times.
    #[arg(long)]
    pub(crate) less_is_better: bool,
    /// Runs two command lines as often as this.
    #[arg(long)]
    pub(crate) runs: Option<usize>,
    /// Runs the two in turn, which is what is done in any case.
    #[arg(long, requires = "runs")]
    pub(crate) interleave: bool,
    /// Runs of each that do not count, before those that do.
    #[arg(long, default_value_t = 1, requires = "runs")]
    pub(crate) warm_ups: usize,
    /// Finds a number in the output that is compared too.
    #[arg(long, value_name = "PATTERN", requires = "runs")]
    pub(crate) metric: Option<String>,
    /// Chooses which of the two begins.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Exits with 1 if anything got worse by more than noise, and with 3 if there are too few runs to tell.
    #[arg(long)]
    pub(crate) fail_if_worse: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LabJournalArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<LabJournalCommand>,
    /// A file with texts of ab.
    #[arg(required = true)]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabJournalCommand {
    /// Measures, and adds a step.
    Add(JournalAddArgs),
    /// Shows all steps, each beside the one before and the first.
    Show(JournalShowArgs),
}

/// Which journal, and how it is told.
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
    /// What was changed.
    pub(crate) what: String,
    #[command(flatten)]
    pub(crate) book: JournalFileArgs,
    /// What measures: `get`, `ab`, `run`, `jmeter` or `replay` with their words.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JournalShowArgs {
    #[command(flatten)]
    pub(crate) book: JournalFileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabCacheabilityArgs {
    /// Where the walk begins; only its host and port are asked.
    pub(crate) url: String,
    /// Most addresses that are asked for.
    #[arg(long, default_value_t = 200)]
    pub(crate) most: usize,
    /// Examples that are shown per obstacle.
    #[arg(long, default_value_t = 5)]
    pub(crate) examples: usize,
    /// Sent with every request, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// What a known visitor sends besides, such as `Cookie: login=...`; may be repeated.
    #[arg(long = "visitor", value_name = "HEADER")]
    pub(crate) visitor: Vec<String>,
    /// Longest wait for an answer.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabProfileArgs {
    /// The log: Sling's, or Apache's combined or common one.
    pub(crate) log: PathBuf,
    /// Where the plan goes.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) target: String,
    /// Writes a plan with the same mix.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) plan: Option<PathBuf>,
    /// Writes goals.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) goals: Option<PathBuf>,
    /// Most addresses in the plan.
    #[arg(long, default_value_t = 100)]
    pub(crate) most: usize,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabReplayArgs {
    /// The log: Sling's, or Apache's combined or common one.
    pub(crate) log: PathBuf,
    /// Where the requests go.
    #[arg(long, value_name = "URL")]
    pub(crate) target: String,
    /// How much faster than the log, such as `2x`.
    #[arg(long, default_value = "1x")]
    pub(crate) speed: String,
    /// Sent with every request, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// Also sends methods that may change something, without bodies.
    #[arg(long)]
    pub(crate) all_methods: bool,
    /// Longest wait for a connection and for the next byte.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Threads; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) kept: RunFolderArgs,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabConvertArgs {
    /// The plan, .jmx.
    pub(crate) plan: PathBuf,
    /// The plan in TOML; beside the other one, with its name, unless given.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// A property, `name=value`, for numbers of threads and times; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    /// Replaces a file that is there.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabExportArgs {
    /// For JMeter; the plan in TOML.
    #[arg(long, value_name = "PLAN.toml")]
    pub(crate) jmx: PathBuf,
    /// The plan for JMeter; beside the other one, with its name, unless given.
    #[arg(short = 'o', long = "out", value_name = "FILE.jmx")]
    pub(crate) out: Option<PathBuf>,
    /// Replaces a file that is there.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabRecordArgs {
    /// Takes what a browser saved in a HAR file, instead of listening.
    #[arg(long, value_name = "FILE.har", conflicts_with_all = ["listen", "lasts", "requests"])]
    pub(crate) from_har: Option<PathBuf>,
    /// The site that requests go to, where they do not name one as a proxy's do; of a HAR file, the site whose requests
    /// are taken instead of the first one's.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:8888")]
    pub(crate) listen: SocketAddr,
    /// The plan; it is written anew with every request, so that it is complete whenever recording ends.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: PathBuf,
    /// Ends by itself after this time, such as `10m`.
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: Option<String>,
    /// Ends by itself after this many requests.
    #[arg(long)]
    pub(crate) requests: Option<usize>,
    /// Keeps images, styles and scripts as requests of their own.
    #[arg(long)]
    pub(crate) with_parts: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabContentArgs {
    /// The author that it is stored in.
    #[arg(long, value_name = "URL")]
    pub(crate) author: Option<String>,
    /// The user who stores it.
    #[arg(long, default_value = "admin")]
    pub(crate) user: String,
    /// A file with the user's password.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// The name under which it stands: /content/NAME, /content/dam/NAME, /content/cq:tags/NAME.
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// Pages per increment.
    #[arg(long, default_value_t = 700)]
    pub(crate) pages: u64,
    /// Images per increment, of 400 different files of 37 to 594 KB.
    #[arg(long, default_value_t = 200)]
    pub(crate) images: u64,
    /// Tags per increment.
    #[arg(long, default_value_t = 100)]
    pub(crate) tags: u64,
    /// The first increment, counted from 0: how many are there already.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// How many increments are made.
    #[arg(long, default_value_t = 1)]
    pub(crate) increments: u64,
    /// Children per node, at most 800; a page's `jcr:content` is one of them.
    #[arg(long, default_value_t = 800)]
    pub(crate) children: u64,
    /// What everything derives from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Counts only.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Longest wait for an answer.
    #[arg(long, default_value = "60s")]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
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

#[derive(Debug, Args)]
pub(crate) struct LabMapArgs {
    /// The project.
    #[arg(default_value = "project.toml")]
    pub(crate) project: PathBuf,
    /// Where the map goes; standard output unless given.
    #[arg(short = 'o', long = "out", value_name = "FILE.svg")]
    pub(crate) out: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
