//! Arguments of the `tympan lab` commands that verify, tune and analyze a site.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::lab::{IgnoredElementArgs, LabOutputArgs, RunFolderArgs, WatchedLogArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum LabAnalysisCommand {
    /// Compares the responses of two sites to the same requests: status, headers, bodies without dates, nonces and
    /// hashes.
    #[command(
        after_help = "Example: tympan lab verify pages.txt --before http://127.0.0.1:4503 --after http://127.0.0.1:4504"
    )]
    Verify(LabVerifyArgs),
    /// Runs a program with many settings: times, memory, the smallest setting that is as good as the best.
    #[command(
        after_help = "Example: tympan lab sweep --set lru=256,1024 --set queue=128..10000:x2 --runs 2 -- backup --lru {lru} --queue {queue}"
    )]
    Sweep(LabSweepArgs),
    /// Finds good settings automatically, one knob at a time, until further gains are no larger than noise.
    #[command(
        alias = "autotune",
        after_help = "Example: tympan lab tune --set workers=1..16:x2 --metric '([0-9.]+) pages/s' --more-is-better -- ./render {workers}"
    )]
    Tune(LabTuneArgs),
    /// Compares two series of runs, and reports whether the difference is larger than noise.
    ///
    /// A and B are files of numbers, reports of `--json`, folders of such reports, or with --runs the command lines of
    /// two programs, which then run alternately.
    #[command(
        after_help = "Example: tympan lab compare before.txt after.txt --trim 1 --less-is-better\n         \
                      tympan lab compare './old 7' './new 7' --runs 20 --interleave --trim 1"
    )]
    Compare(LabCompareArgs),
    /// Maintains the journal of tuning: one change per step, compared only with steps that made the same requests.
    #[command(after_help = "Example: tympan lab journal add \"query cache 32M\" -- get \
            http://127.0.0.1:8080/content/site/en.html -c 10 -n 1000\n         tympan lab journal show\n         \
            tympan lab journal diary.txt          (outputs of ab, one after the other)")]
    Journal(LabJournalArgs),
    /// Crawls a site and lists, with reasons, what prevents its responses from being cached.
    #[command(
        after_help = "Example: tympan lab cacheability http://127.0.0.1:8080/content/site/en.html"
    )]
    Cacheability(LabCacheabilityArgs),
    /// Derives figures, a plan with the same mix, and goals from an access.log.
    #[command(
        after_help = "Example: tympan lab profile access.log --target http://127.0.0.1:8080 --plan plan.toml --goals goals.toml"
    )]
    Profile(LabProfileArgs),
    /// Replays an access.log, each request at its original time.
    #[command(
        after_help = "Example: tympan lab replay access.log --target http://127.0.0.1:8080 --speed 2x"
    )]
    Replay(LabReplayArgs),
    /// Runs a proxy between a browser and a site, and writes a plan of the recorded requests.
    #[command(
        after_help = "Example: tympan lab record --target http://127.0.0.1:4503 --listen 127.0.0.1:8888 -o plan.toml\n         \
                      tympan lab record --from-har visit.har -o plan.toml"
    )]
    Record(LabRecordArgs),
    /// Converts a JMeter plan (.jmx) to TOML; if the TOML format cannot express an element, names it and writes
    /// nothing.
    #[command(after_help = "Example: tympan lab convert plan.jmx -o plan.toml")]
    Convert(LabConvertArgs),
    /// Converts a TOML plan to the format of another engine.
    #[command(after_help = "Example: tympan lab export --jmx plan.toml -o plan.jmx")]
    Export(LabExportArgs),
    /// Fills an author with pages, images and tags for measurements: the same for the same seed, in increments.
    #[command(
        after_help = "Example: tympan lab content --author http://127.0.0.1:4502 --password-file author/initial-password --pages 1000 --images 400\n         \
                      tympan lab content --dry-run --increments 5"
    )]
    Content(LabContentArgs),
    /// Measures two configurations of a system under the same load and event, alternately.
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
    /// The site before the change.
    #[arg(long, value_name = "URL")]
    pub(crate) before: String,
    /// The site after the change.
    #[arg(long, value_name = "URL")]
    pub(crate) after: String,
    /// A header sent with every request of a list, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// An additional difference to ignore: a regular expression, or `PATTERN=>REPLACEMENT`; may be repeated.
    #[arg(long = "rule")]
    pub(crate) rules: Vec<String>,
    /// A header to ignore; may be repeated.
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
    /// The seed of the plan's random numbers: both sites get the same values.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Timeout of a response.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProgramSettingArgs {
    /// A knob and its values, from small to large: `name=a,b`, `name=128..10000:x2`, `name=1..8:+1`; `default` leaves
    /// the option out; may be repeated. The first value is the baseline of the comparison.
    #[arg(long = "set", required = true, value_name = "NAME=VALUES")]
    pub(crate) knobs: Vec<String>,
    /// Number of runs of each setting.
    #[arg(long, default_value_t = 2)]
    pub(crate) runs: usize,
    /// A regular expression that finds the number to compare in the output, instead of the time; the first group of the
    /// last match is used.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) metric: Option<String>,
    /// Treats larger numbers as better.
    #[arg(long, requires = "metric")]
    pub(crate) more_is_better: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, with `{name}` in place of a value.
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
    /// Stops as soon as every run reaches this value: a time such as `10s`, or a number if there is a metric.
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
    /// Number of smallest and of largest values left out of the means.
    #[arg(long, default_value_t = 1)]
    pub(crate) trim: usize,
    /// Treats smaller numbers as better, as with times.
    #[arg(long)]
    pub(crate) less_is_better: bool,
    /// Number of runs of two command lines.
    #[arg(long)]
    pub(crate) runs: Option<usize>,
    /// Runs the two alternately, which is always done.
    #[arg(long, requires = "runs")]
    pub(crate) interleave: bool,
    /// Number of warm-up runs of each, which are not counted.
    #[arg(long, default_value_t = 1, requires = "runs")]
    pub(crate) warm_ups: usize,
    /// A regular expression that finds another number to compare in the output.
    #[arg(long, value_name = "PATTERN", requires = "runs")]
    pub(crate) metric: Option<String>,
    /// The seed that chooses which of the two begins.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Exits with 1 if anything got worse by more than noise, and with 3 if there are too few runs to decide.
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

#[derive(Debug, Args)]
pub(crate) struct LabCacheabilityArgs {
    /// The start URL; only its host and port are crawled.
    pub(crate) url: String,
    /// Maximum number of URLs to request.
    #[arg(long, default_value_t = 200)]
    pub(crate) most: usize,
    /// Number of examples shown per obstacle.
    #[arg(long, default_value_t = 5)]
    pub(crate) examples: usize,
    /// A header sent with every request, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// An additional header of a known visitor, such as `Cookie: login=...`; may be repeated.
    #[arg(long = "visitor", value_name = "HEADER")]
    pub(crate) visitor: Vec<String>,
    /// Timeout of a response.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabProfileArgs {
    /// The log, in the format of Sling, or in Apache's combined or common format.
    pub(crate) log: PathBuf,
    /// The target of the plan.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) target: String,
    /// Writes a plan with the same mix.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) plan: Option<PathBuf>,
    /// Writes goals.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) goals: Option<PathBuf>,
    /// Maximum number of URLs in the plan.
    #[arg(long, default_value_t = 100)]
    pub(crate) most: usize,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
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
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// Also sends methods that may change data, without bodies.
    #[arg(long)]
    pub(crate) all_methods: bool,
    /// Timeout for connecting and for the next byte.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Number of threads; one per processor by default.
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
    /// The TOML plan; by default next to the JMeter plan, with its name.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// A property, `name=value`, for numbers of threads and times; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    /// Replaces an existing file.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabExportArgs {
    /// The TOML plan to convert for JMeter.
    #[arg(long, value_name = "PLAN.toml")]
    pub(crate) jmx: PathBuf,
    /// The JMeter plan; by default next to the TOML plan, with its name.
    #[arg(short = 'o', long = "out", value_name = "FILE.jmx")]
    pub(crate) out: Option<PathBuf>,
    /// Replaces an existing file.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabRecordArgs {
    /// Reads the requests from a HAR file saved by a browser, instead of listening.
    #[arg(long, value_name = "FILE.har", conflicts_with_all = ["listen", "lasts", "requests"])]
    pub(crate) from_har: Option<PathBuf>,
    /// The site to forward requests to if they do not name one, as proxy requests do; with a HAR file, the site whose
    /// requests are used instead of the first one's.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// The address to listen on.
    #[arg(long, default_value = "127.0.0.1:8888")]
    pub(crate) listen: SocketAddr,
    /// The plan; it is rewritten after every request, so that it is complete whenever recording ends.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: PathBuf,
    /// Stops after this time, such as `10m`.
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: Option<String>,
    /// Stops after this number of requests.
    #[arg(long)]
    pub(crate) requests: Option<usize>,
    /// Records images, styles and scripts as separate requests.
    #[arg(long)]
    pub(crate) with_parts: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabContentArgs {
    /// The author that stores the content.
    #[arg(long, value_name = "URL")]
    pub(crate) author: Option<String>,
    /// The user who creates the content.
    #[arg(long, default_value = "admin")]
    pub(crate) user: String,
    /// A file with the user's password.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// The name of the content: /content/NAME, /content/dam/NAME, /content/cq:tags/NAME.
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// Pages per increment.
    #[arg(long, default_value_t = 700)]
    pub(crate) pages: u64,
    /// Images per increment, of 400 distinct files of 37 to 594 KB.
    #[arg(long, default_value_t = 200)]
    pub(crate) images: u64,
    /// Tags per increment.
    #[arg(long, default_value_t = 100)]
    pub(crate) tags: u64,
    /// The first increment, counted from 0: the number of increments that already exist.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
    /// Number of increments to create.
    #[arg(long, default_value_t = 1)]
    pub(crate) increments: u64,
    /// Children per node, at most 800; a page's `jcr:content` is one of them.
    #[arg(long, default_value_t = 800)]
    pub(crate) children: u64,
    /// The seed of all content.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Only counts.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Timeout of a response.
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
    /// The file of the map; standard output by default.
    #[arg(short = 'o', long = "out", value_name = "FILE.svg")]
    pub(crate) out: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
