//! Arguments of the `tympan lab` commands that put an author under load.

use std::path::PathBuf;

use clap::Args;

use super::{PlanlessRunArgs, WatchedProcessArgs};

#[derive(Debug, Args)]
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
    /// `user:password`; the environment variable is safer.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true)]
    pub(crate) login: Option<String>,
    /// Number of concurrent users, each of whom waits for the end of an execution, instead of the mode of the file.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) concurrency: Option<u32>,
    /// The pause of a user between executions.
    #[arg(long, value_name = "TIME", default_value = "300ms")]
    pub(crate) wait: String,
    /// Executions per second, such as `20/s`, instead of the mode of the file.
    #[arg(long)]
    pub(crate) rate: Option<String>,
    /// The duration of each phase, instead of the one in the file, or of one day.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// The name below which all content is created: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Does not delete the created content.
    #[arg(long)]
    pub(crate) keep_content: bool,
    /// A picture to upload, instead of a generated one.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Runs nothing; prints what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The seed of the generated picture.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabBackupImpactArgs {
    /// The author to put under load while backups run.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4502")]
    pub(crate) author: String,
    /// `user:password`; the environment variable is safer.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true)]
    pub(crate) login: Option<String>,
    /// Percentages of traversals, queries and creations.
    #[arg(long, default_value = "75/24/1")]
    pub(crate) mix: String,
    /// Number of worker threads.
    #[arg(long, default_value_t = 4)]
    pub(crate) threads: usize,
    /// The load while backups run, as a share of the peak of these threads.
    #[arg(long, default_value = "80%")]
    pub(crate) load: String,
    /// Values that replace `{delay}` in the arguments of the backup, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(crate) delay: Vec<String>,
    /// Number of runs of each backup.
    #[arg(long, default_value_t = 1)]
    pub(crate) runs: usize,
    /// The duration of the search for the peak, and of the load alone.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) span: String,
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
    pub(crate) kept: PlanlessRunArgs,
    /// The backup: a program and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}
