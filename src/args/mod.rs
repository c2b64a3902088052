//! The command line. Commands, options and exit codes are stable: scripts depend on them.

mod activation;
mod assets;
pub(crate) mod backup;
mod blobs;
mod config;
pub(crate) mod exclude;
mod heading;
mod instance_location;
mod jobs;
#[cfg(test)]
mod json_output;
mod obnam;
mod package;
mod pair;
#[cfg(test)]
mod printed_commands;
#[cfg(test)]
mod quantity_options;
mod repo;
mod server;
mod service;
mod site_import;
mod user;
pub(crate) mod vault;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

pub(crate) use activation::{ActivateArgs, DeactivateArgs};
pub(crate) use assets::{AssetMountCommand, AssetsCommand, OnOffSwitch};
pub(crate) use blobs::{BlobsArgs, BlobsCommand, PromoteBlobsArgs};
pub(crate) use config::{ConfigCommand, ConfigShowArgs, ConfigSourceArgs};
pub(crate) use instance_location::{
    HomeOrInstanceArgs, HomeOrUrlArgs, InstanceLoginArgs, RemoteInstanceArgs, StatusArgs,
};
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
pub(crate) use service::{DoctorArgs, ServiceArgs, ServiceCommand, ServiceRole};
pub(crate) use site_import::SiteImportArgs;
pub(crate) use user::{TokenScope, UserCommand, UserGroupCommand};

/// Runs a content website end to end: author, publish, dispatcher.
#[derive(Debug, Parser)]
#[command(name = "tympan", version, max_term_width = 100, after_help = "Example: tympan demo")]
pub(crate) struct TympanArgs {
    #[command(subcommand)]
    pub(crate) command: TympanCommand,
}

impl TympanArgs {
    /// Parses a command line. A line of `tympan backup` that the parser refuses may be one of Obnam.
    pub(crate) fn parse_line(line: &[OsString]) -> Result<Self, clap::Error> {
        Self::try_parse_from(line).or_else(|error| match obnam::reorder_obnam_line::<Self>(line) {
            Some(ordered) => Self::try_parse_from(ordered),
            None => Err(error),
        })
    }

    /// Returns the path of the log file, if the command sets one.
    pub(crate) fn log_file(&self) -> Option<&Path> {
        match &self.command {
            TympanCommand::Backup(backup) => backup.log.as_deref(),
            _ => None,
        }
    }
}

/// The internal command that reads PDF files for another process of this program.
pub(crate) const READ_PDF_COMMAND: &str = "read-pdf";
/// The internal command that renders images for another process of this program.
pub(crate) const RENDER_IMAGES_COMMAND: &str = "render-images";
/// The internal command that runs another program with resource limits.
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
    /// Creates and checks the folder of a site.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Installs and builds content packages.
    #[command(subcommand)]
    Package(PackageCommand),
    /// Manages indexes and explains how queries are executed.
    #[command(subcommand)]
    Index(IndexCommand),
    /// Writes the pages of a site as files that any web server serves.
    Export(ExportArgs),
    /// Manages a repository.
    Repo(RepoArgs),
    /// Manages the large blobs of a home, which it may share with others.
    Blobs(BlobsArgs),
    /// Saves folders and repositories in a vault, and restores them.
    Backup(Box<backup::BackupArgs>),
    /// Creates, accepts, lists and removes the credentials that two instances use with each other.
    Pair(PairArgs),
    /// Manages users and their tokens.
    #[command(subcommand)]
    User(UserCommand),
    /// Manages the queues of a running instance.
    #[command(subcommand)]
    Jobs(JobsCommand),
    /// Publishes pages and assets of a running author, optionally with the resources that they refer to.
    #[command(
        after_help = "Example: tympan activate /content/site/en --deep --companions --url http://127.0.0.1:4502 --token-file token"
    )]
    Activate(ActivateArgs),
    /// Unpublishes pages and assets, and everything below them.
    #[command(
        after_help = "Example: tympan deactivate /content/site/en/old --url http://127.0.0.1:4502 --token-file token"
    )]
    Deactivate(DeactivateArgs),
    /// Manages mounts, imports and duplicates of assets of a running author.
    #[command(subcommand)]
    Assets(AssetsCommand),
    /// Puts a site under load and evaluates its responses: URLs, JMeter plans, logs, reports.
    // The program `tympan-lab` parses these arguments, and prints the help.
    #[command(disable_help_flag = true)]
    Lab(LabProgramArgs),
    /// Shows, checks and explains the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Looks for reasons why an instance does not start or will fail, and says what to do.
    Doctor(DoctorArgs),
    /// Sets the program up as a service of the machine.
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Prints a script by which a shell completes commands and options.
    #[command(
        after_help = "Example: tympan completions bash > /etc/bash_completion.d/tympan\n\nThe Debian package has \
            the scripts of all three shells. Those of the lab: `tympan lab completions bash`."
    )]
    Completions(CompletionsArgs),
    /// Prints the health of a running instance, with reasons.
    #[command(
        after_help = "Examples: tympan status --url http://127.0.0.1:4502\n          tympan status --url http://127.0.0.1:4502 --token-file token --bundle support.zip --home /srv/author"
    )]
    Status(StatusArgs),
    /// Reads a PDF from standard input and writes its text; used by the full-text index.
    #[command(name = READ_PDF_COMMAND, hide = true)]
    ReadPdf,
    /// Renders the images that arrive on standard input, a socket; used by asset processing.
    #[command(name = RENDER_IMAGES_COMMAND, alias = "draw-pictures", hide = true)]
    RenderImages,
    /// Runs a program with limits on memory and time; used by asset processing.
    #[command(name = RUN_TOOL_COMMAND, hide = true)]
    RunTool(RunToolArgs),
    /// Writes the man pages of all commands into a folder; used by packages.
    #[command(name = "man-pages", hide = true)]
    ManPages {
        /// The folder, which is created.
        dir: PathBuf,
    },
    /// Renders the standard renditions of a file; used by measurements.
    #[command(alias = "draw-file", hide = true)]
    RenderFile(RenderFileArgs),
}

/// The command line of the program `tympan-lab`.
#[derive(Debug, Args)]
pub(crate) struct LabProgramArgs {
    /// A command of the lab and its arguments; `tympan lab --help` lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SiteCommand {
    /// Creates a small working site as a starting point.
    #[command(after_help = "Example: tympan site new ./shop && tympan demo --site ./shop")]
    New {
        /// The folder, which must not exist or must be empty. Its name becomes the site's.
        dir: PathBuf,
    },
    /// Installs the components and client libraries of a site's folder into a running instance, in one commit.
    #[command(
        after_help = "Example: tympan site push ./shop --url http://127.0.0.1:4502 --token-file token\n\nThe site is \
            checked first. What the folder no longer has is removed below the site's own nodes. It is the package \
            `sites:NAME:1.0`, whose installation `tympan package uninstall` reverts."
    )]
    Push {
        /// The folder, with its `site.toml`.
        dir: PathBuf,
        /// Also replaces the content of the site, with all that was edited in it.
        #[arg(long)]
        content: bool,
        #[command(flatten)]
        instance: RemoteInstanceArgs,
    },
    /// Imports an AEM project: installs its packages, carries out its repoinit statements, and reports what runs and
    /// what must be rewritten.
    Import(SiteImportArgs),
    /// Checks templates, components and content, and prints problems as `file:line:column: message`.
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
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: tympan_terminal::CompletionShell,
}

#[derive(Debug, Args)]
pub(crate) struct RunToolArgs {
    /// Memory limit in bytes.
    pub(crate) memory: u64,
    /// Limit of processor time in seconds.
    pub(crate) seconds: u64,
    /// Niceness; a process with a higher value gets less processor time.
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
    /// The target folder of `web.jpg`, `319.png`, `140.png` and `48.png`.
    pub(crate) folder: PathBuf,
    /// JPEG quality.
    #[arg(long, default_value_t = 90)]
    pub(crate) quality: u8,
}
