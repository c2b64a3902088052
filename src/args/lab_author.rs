//! The words of the commands of `tympan lab` that load an author.

use std::path::PathBuf;

use clap::Args;

use super::lab::{PlanlessRunArgs, WatchedProcessArgs};

#[derive(Debug, Args)]
pub(crate) struct LabToughArgs {
    /// A predefined suite (toughday, get_tests, authoring, tree_authoring, publish; several with commas), or a
    /// configuration of Tough Day (.yaml).
    #[arg(value_name = "SUITE|FILE", default_value = "toughday")]
    pub(crate) what: String,
    /// The author, instead of the file's.
    #[arg(long, value_name = "URL")]
    pub(crate) author: Option<String>,
    /// Publish, or the dispatcher before it: where visitors look.
    #[arg(long, value_name = "URL")]
    pub(crate) publish: Option<String>,
    /// `user:password`; better in the environment.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true)]
    pub(crate) login: Option<String>,
    /// Users who each wait for the end of an execution, instead of the mode of the file.
    #[arg(long, conflicts_with = "rate")]
    pub(crate) concurrency: Option<u32>,
    /// The pause of such a user between executions.
    #[arg(long, value_name = "TIME", default_value = "300ms")]
    pub(crate) wait: String,
    /// Executions per second, such as `20/s`, instead of the mode of the file.
    #[arg(long)]
    pub(crate) rate: Option<String>,
    /// How long each phase lasts, instead of the file's time, or of a day.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// The name below which everything is made: `/content/NAME`, `/content/dam/NAME`, `/content/cq:tags/NAME`.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Leaves what was made.
    #[arg(long)]
    pub(crate) keep_content: bool,
    /// A picture to upload, instead of a drawn one.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Only tells what would be done.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What the picture derives from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabBackupImpactArgs {
    /// The author that works while backups run.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4502")]
    pub(crate) author: String,
    /// `user:password`; better in the environment.
    #[arg(long, env = "TYMPAN_LAB_LOGIN", hide_env_values = true)]
    pub(crate) login: Option<String>,
    /// Percent of traversals, queries and creations.
    #[arg(long, default_value = "75/24/1")]
    pub(crate) mix: String,
    /// Threads that work.
    #[arg(long, default_value_t = 4)]
    pub(crate) threads: usize,
    /// The share of these threads' peak that arrives while backups run.
    #[arg(long, default_value = "80%")]
    pub(crate) load: String,
    /// What stands for `{delay}` in the words of the backup, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub(crate) delay: Vec<String>,
    /// Runs of each backup.
    #[arg(long, default_value_t = 1)]
    pub(crate) runs: usize,
    /// How long the peak is looked for, and how long the load runs alone.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) span: String,
    /// Finds the bytes that were saved in the backup's output; the first group, of the last match.
    #[arg(long, value_name = "PATTERN")]
    pub(crate) bytes: Option<String>,
    /// A command for the shell before each backup, such as one that adds content or empties the vault.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) before: Option<String>,
    /// A path that traversals ask for; may be repeated.
    #[arg(long, value_name = "PATH", default_value = "/content.2.json")]
    pub(crate) traverse: Vec<String>,
    /// The name below which the work creates pages; they are deleted at the end.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) kept: PlanlessRunArgs,
    /// The backup: a program and its arguments.
    #[arg(last = true, required = true)]
    pub(crate) program: Vec<String>,
}
