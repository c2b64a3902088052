//! The command line, as DESIGN fixes it: scripts rely on these names.

mod activation;
mod assets;
pub(crate) mod backup;
mod blobs;
pub(crate) mod exclude;
mod jobs;
pub(crate) mod lab;
pub(crate) mod lab_analysis;
pub(crate) mod lab_author;
pub(crate) mod lab_fleet;
pub(crate) mod lab_pages;
pub(crate) mod lab_phases;
pub(crate) mod obnam;
mod package;
mod pair;
#[cfg(test)]
mod printed_commands;
mod repo;
mod server;
mod user;
pub(crate) mod vault;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

pub(crate) use activation::{ActivateArgs, DeactivateArgs};
pub(crate) use assets::{AssetMountCommand, AssetsCommand, OnOffSwitch};
pub(crate) use blobs::{BlobsArgs, BlobsCommand, PromoteBlobsArgs};
pub(crate) use jobs::JobsCommand;
pub(crate) use package::{IndexCommand, PackageCommand};
pub(crate) use pair::{PairArgs, PairPurpose};
pub(crate) use repo::{
    MergeBranchArgs, PreferredMergeSide, RepoArgs, RepoBranchCommand, RepoCloneArgs, RepoCommand,
    RestorePathArgs,
};
pub(crate) use server::{
    DemoArgs, DispatcherArgs, DispatcherCommand, ExportArgs, ExportMode, InstanceArgs,
};
pub(crate) use user::{TokenScope, UserCommand, UserGroupCommand};

/// Runs a content website end to end: author, publish, dispatcher.
#[derive(Debug, Parser)]
#[command(name = "tympan", version, max_term_width = 100, after_help = "Example: tympan demo")]
pub(crate) struct TympanArgs {
    #[command(subcommand)]
    pub(crate) command: TympanCommand,
}

impl TympanArgs {
    /// Returns the file that the log goes to, if the command names one.
    pub(crate) fn log_file(&self) -> Option<&Path> {
        match &self.command {
            TympanCommand::Backup(backup) => backup.log.as_deref(),
            _ => None,
        }
    }
}

/// The command that reads PDF for another process of this program.
pub(crate) const READ_PDF_COMMAND: &str = "read-pdf";
/// The command that draws pictures for another process of this program.
pub(crate) const RENDER_IMAGES_COMMAND: &str = "draw-pictures";
/// The command that runs another program with bounds.
pub(crate) const RUN_TOOL_COMMAND: &str = "run-tool";

#[derive(Debug, Subcommand)]
pub(crate) enum TympanCommand {
    /// Runs author, publish and dispatcher in one process, with a sample site.
    Demo(DemoArgs),
    /// Runs an author instance.
    Author(InstanceArgs),
    /// Runs a publish instance.
    Publish(InstanceArgs),
    /// Runs, checks or explains a dispatcher.
    #[command(args_conflicts_with_subcommands = true)]
    Dispatcher(DispatcherArgs),
    /// Begins and checks the folder of a site.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Installs and builds content packages.
    #[command(subcommand)]
    Package(PackageCommand),
    /// Looks after indexes and tells how queries are run.
    #[command(subcommand)]
    Index(IndexCommand),
    /// Writes the pages of a site as files that any web server serves.
    Export(ExportArgs),
    /// Looks after a repository.
    Repo(RepoArgs),
    /// Looks after the large blobs of a home, which it may share with others.
    Blobs(BlobsArgs),
    /// Saves folders and repositories in a vault, and restores them.
    Backup(backup::BackupArgs),
    /// Makes, accepts, lists and removes the credentials that two instances have with each other.
    Pair(PairArgs),
    /// Looks after users and their tokens.
    #[command(subcommand)]
    User(UserCommand),
    /// Looks after the queues of a running instance.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Shows pages and assets of a running author to visitors, with what they refer to where wanted.
    #[command(
        after_help = "Example: tympan activate /content/site/en --deep --companions --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Activate(ActivateArgs),
    /// Takes pages and assets, and all below them, away from visitors.
    #[command(
        after_help = "Example: tympan deactivate /content/site/en/old --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Deactivate(DeactivateArgs),
    /// Looks after mounts, imports and duplicates of assets of a running author.
    #[command(subcommand)]
    Assets(AssetsCommand),
    /// Puts a site under load and judges what comes back: URLs, plans of JMeter, logs, reports.
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Tells the health of a running instance, with reasons.
    #[command(after_help = "Example: tympan status --url http://127.0.0.1:4502")]
    Status(RemoteInstanceArgs),
    /// Reads a PDF from standard input and writes its text; the full-text index starts it.
    #[command(name = READ_PDF_COMMAND, hide = true)]
    ReadPdf,
    /// Draws the pictures that arrive on standard input, a socket; asset processing starts it.
    #[command(name = RENDER_IMAGES_COMMAND, hide = true)]
    DrawPictures,
    /// Runs a program with bounds on memory and time; asset processing starts it.
    #[command(name = RUN_TOOL_COMMAND, hide = true)]
    RunTool(RunToolArgs),
    /// Draws the standard renditions of a file; measurements use it.
    #[command(name = "draw-file", hide = true)]
    DrawFile(RenderFileArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SiteCommand {
    /// Writes a small site that runs, to begin with.
    #[command(after_help = "Example: tympan site new ./shop && tympan demo --site ./shop")]
    New {
        /// The folder; it must not exist, or be empty. Its name becomes the site's.
        dir: PathBuf,
    },
    /// Reads templates, components and content, and tells what is wrong, as `file:line:column: message`.
    #[command(after_help = "Example: tympan site check ./shop")]
    Check {
        /// The folder, with its `site.toml`.
        dir: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunToolArgs {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Seconds of processor time.
    pub(crate) seconds: u64,
    /// How much it stands behind others.
    pub(crate) niceness: i32,
    /// The program.
    pub(crate) program: String,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RenderFileArgs {
    /// The file.
    pub(crate) file: PathBuf,
    /// The folder that gets `web.jpg`, `319.png`, `140.png` and `48.png`.
    pub(crate) folder: PathBuf,
    /// The quality of the JPEG.
    #[arg(long, default_value_t = 90)]
    pub(crate) quality: u8,
}

/// A home, or a running instance.
#[derive(Debug, Args)]
pub(crate) struct HomeOrInstanceArgs {
    /// The home; its instance must not run.
    #[arg(long, value_name = "DIR", required_unless_present = "url", conflicts_with = "url")]
    pub(crate) home: Option<PathBuf>,
    /// The running instance.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A token of `tympan user token`.
    #[arg(long, value_name = "T", requires = "url")]
    pub(crate) token: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoteInstanceArgs {
    /// The instance.
    #[arg(long, value_name = "URL")]
    pub(crate) url: String,
    /// A token of `tympan user token`.
    #[arg(long, value_name = "T")]
    pub(crate) token: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
