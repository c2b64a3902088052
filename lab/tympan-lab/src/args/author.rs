//! Arguments of `tympan lab author`: commands that work on an author instance.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::page::RequestIdentityArgs;
use super::{LabLoginArgs, PlanlessRunArgs, WatchedProcessArgs, WorkingDayArgs, heading};

#[derive(Debug, Subcommand)]
pub(crate) enum LabAuthorCommand {
    Tough(LabToughArgs),
    Upload(LabUploadArgs),
    Content(LabContentArgs),
    BackupImpact(LabBackupImpactArgs),
}

/// Loads an author with the tests, weights and modes of Tough Day.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab author tough toughday --author http://127.0.0.1:4502 --publish http://127.0.0.1:4503 --users 20 --duration 10m\n         \
                  tympan lab author tough toughday.yaml --author http://127.0.0.1:4502 --dry-run"
)]
pub(crate) struct LabToughArgs {
    /// A predefined suite (toughday, get_tests, authoring, tree_authoring, publish; several separated by commas), or a
    /// Tough Day configuration (.yaml).
    #[arg(value_name = "SUITE|FILE", default_value = "toughday")]
    pub(crate) what: String,
    /// The author, instead of the one in the file.
    #[arg(long, value_name = "URL")]
    pub(crate) author: Option<String>,
    /// The publish instance, or the dispatcher in front of it, whose pages are checked.
    #[arg(long, value_name = "URL")]
    pub(crate) publish: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: LabLoginArgs,
    /// Number of concurrent users, each of whom waits for the end of an execution, instead of the mode of the file.
    #[arg(long, alias = "concurrency", value_name = "COUNT", conflicts_with = "rate")]
    pub(crate) users: Option<u32>,
    /// The pause of a user between executions.
    #[arg(long, alias = "wait", value_name = "TIME", default_value = "300ms")]
    pub(crate) think: String,
    /// Executions per second, such as `20/s`, instead of the mode of the file.
    #[arg(long)]
    pub(crate) rate: Option<String>,
    /// The duration of each phase, instead of the one in the file, or of one day.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// The name below which all content is created: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    #[arg(long, value_name = "NAME", help_heading = heading::CONTENT)]
    pub(crate) name: Option<String>,
    /// Does not delete the created content.
    #[arg(long, help_heading = heading::CONTENT)]
    pub(crate) keep_content: bool,
    /// An image to upload, instead of a generated one.
    #[arg(long, value_name = "FILE", help_heading = heading::CONTENT)]
    pub(crate) file: Option<PathBuf>,
    /// Runs nothing; prints what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The seed of the generated image.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::CONTENT)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
}

/// Uploads images at the peak rate of a working day, and reports whether an author keeps up.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab author upload http://127.0.0.1:4502/content/dam/lab --assets 500/day --size 12 --renditions 4 --duration 5m"
)]
pub(crate) struct LabUploadArgs {
    /// The asset folder, such as `http://127.0.0.1:4502/content/dam/lab`.
    pub(crate) folder: String,
    /// A TOML file with the goal: `assets`, `size`, `renditions`, `window`, `skew`, as for `tympan lab estimate upload-goal`.
    #[arg(long, value_name = "FILE.toml", required_unless_present = "assets")]
    pub(crate) goal_from: Option<PathBuf>,
    /// Assets per window; `500/day` is read as 500.
    #[arg(long, value_name = "COUNT", requires = "size", conflicts_with = "goal_from")]
    pub(crate) assets: Option<String>,
    /// Size of an original in megabytes.
    #[arg(long, value_name = "MEGABYTES")]
    pub(crate) size: Option<String>,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
    /// The duration of the peak.
    #[arg(long, alias = "for", value_name = "TIME", default_value = "5m")]
    pub(crate) duration: String,
    /// An image to upload, with a different end each time; by default a bitmap of the goal's size is generated.
    #[arg(long, value_name = "FILE", help_heading = heading::CONTENT)]
    pub(crate) file: Option<PathBuf>,
    /// Counts an upload as done with its response, without waiting for its renditions.
    #[arg(long, help_heading = heading::CONTENT)]
    pub(crate) no_renditions: bool,
    /// Maximum wait for the renditions of an asset.
    #[arg(
        long,
        alias = "patience",
        value_name = "TIME",
        default_value = "10m",
        help_heading = heading::CONTENT
    )]
    pub(crate) rendition_timeout: String,
    /// The seed of names and contents; another seed uploads other files.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::CONTENT)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
}

/// Fills an author with pages, images and tags for measurements: the same for the same seed, in increments.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab author content --author http://127.0.0.1:4502 --login admin:... --pages 1000 --images 400\n         \
                  tympan lab author content --dry-run --increments 5"
)]
pub(crate) struct LabContentArgs {
    /// The author that stores the content.
    #[arg(long, value_name = "URL")]
    pub(crate) author: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: LabLoginArgs,
    /// The user of `--password-file`.
    #[arg(long, hide = true, default_value = "admin")]
    pub(crate) user: String,
    /// A file with the user's password, instead of `--login` or `--token-file`.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// The name of the content: /content/NAME, /content/dam/NAME, /content/cq:tags/NAME.
    #[arg(long, default_value = "lab")]
    pub(crate) name: String,
    /// Pages per increment.
    #[arg(long, value_name = "COUNT", default_value_t = 700, help_heading = heading::CONTENT)]
    pub(crate) pages: u64,
    /// Images per increment, of 400 distinct files of 37 to 594 KB.
    #[arg(long, value_name = "COUNT", default_value_t = 200, help_heading = heading::CONTENT)]
    pub(crate) images: u64,
    /// Tags per increment.
    #[arg(long, value_name = "COUNT", default_value_t = 100, help_heading = heading::CONTENT)]
    pub(crate) tags: u64,
    /// The first increment, counted from 0: the number of increments that already exist.
    #[arg(long, default_value_t = 0, help_heading = heading::CONTENT)]
    pub(crate) from: u64,
    /// Number of increments to create.
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = heading::CONTENT)]
    pub(crate) increments: u64,
    /// Children per node, at most 800; a page's `jcr:content` is one of them.
    #[arg(long, value_name = "COUNT", default_value_t = 800, help_heading = heading::CONTENT)]
    pub(crate) children: u64,
    /// The seed of all content.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::CONTENT)]
    pub(crate) seed: u64,
    /// Only counts.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Timeout of a response.
    #[arg(long, value_name = "TIME", default_value = "60s", help_heading = heading::REQUESTS)]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
}

/// Measures how backups slow down work on an author, and the reverse: transactions lost, megabytes per second.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab author backup-impact --author http://127.0.0.1:4502 --delay 0,1,10 --bytes '\"data_added\":([0-9]+)' -- tympan backup save repo:author -r vault --delay-ms {delay} --json"
)]
pub(crate) struct LabBackupImpactArgs {
    /// The author to put under load while backups run.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4502")]
    pub(crate) author: String,
    #[command(flatten)]
    pub(crate) credentials: LabLoginArgs,
    /// Percentages of traversals, queries and creations.
    #[arg(long, default_value = "75/24/1")]
    pub(crate) mix: String,
    /// Number of concurrent users of the load.
    #[arg(long, alias = "threads", value_name = "COUNT", default_value_t = 4)]
    pub(crate) users: usize,
    /// The load while backups run, as a share of the peak of these users.
    #[arg(long, value_name = "PERCENT", default_value = "80%")]
    pub(crate) load: String,
    /// Values that replace `{delay}` in the arguments of the backup, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(crate) delay: Vec<String>,
    /// Number of runs of each backup.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) runs: usize,
    /// The duration of the search for the peak, and of the load alone.
    #[arg(long, alias = "span", value_name = "TIME", default_value = "30s")]
    pub(crate) duration: String,
    /// A regular expression that finds the number of saved bytes in the backup's output; the first group of the last
    /// match is used.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) bytes: Option<String>,
    /// A shell command to run before each backup, such as one that adds content or empties the vault.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) before: Option<String>,
    /// A path that traversals request; may be repeated.
    #[arg(long, value_name = "PATH", default_value = "/content.2.json")]
    pub(crate) traverse: Vec<String>,
    /// The name below which the load creates pages; they are deleted at the end.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
    /// The backup: a program and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}
