//! Large blobs: checks, garbage, and who shares them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct BlobsArgs {
    /// The PostgreSQL database that the repository lies in, in place of the home's packs.
    #[arg(
        long,
        value_name = "URL",
        global = true,
        env = "TYMPAN_DATABASE",
        hide_env_values = true
    )]
    pub(crate) database: Option<String>,
    #[command(subcommand)]
    pub(crate) command: BlobsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BlobsCommand {
    /// Looks for every blob that content refers to, and names the nodes whose blobs are missing.
    #[command(after_help = "Example: tympan blobs check --home /srv/author")]
    Check {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Reads all bytes, too, and compares them with what their names say.
        #[arg(long)]
        rehash: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// States which blobs this repository needs, and moves those that no repository needs to the trash.
    #[command(after_help = "Examples: tympan blobs gc --dry-run --home /srv/author
          tympan blobs gc --grace 48h --window 30d --home /srv/author")]
    Gc {
        /// The home; its instance must not run. A running one collects by itself.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Says what would go; moves and marks nothing.
        #[arg(long)]
        dry_run: bool,
        /// States what this repository needs, and leaves sweeping to others.
        #[arg(long, conflicts_with = "dry_run")]
        mark_only: bool,
        /// How long it may take from storing a blob to the commit that refers to it.
        #[arg(long, value_name = "SPAN", default_value = "24h")]
        grace: String,
        /// How long blobs stay in the trash.
        #[arg(long, value_name = "SPAN", default_value = "7d")]
        window: String,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Counts blobs, and tells who shares them.
    #[command(after_help = "Example: tympan blobs stats --home /srv/author")]
    Stats {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists blobs, with the time of their last use, in no order.
    #[command(after_help = "Example: tympan blobs list --trash --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Those in the trash, with the time at which they went there.
        #[arg(long)]
        trash: bool,
        /// Prints JSON, one object on each line.
        #[arg(long)]
        json: bool,
    },
    /// Takes blobs back out of the trash.
    #[command(after_help = "Example: tympan blobs undelete --all --home /srv/author")]
    Undelete {
        /// The blobs, as `<hex>#<length>`.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        blobs: Vec<String>,
        /// Takes back everything.
        #[arg(long)]
        all: bool,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Takes a repository that is no more out of those that share the blobs: what only it needs is garbage then.
    #[command(after_help = "Example: tympan blobs forget 7pq4mnx2rt --home /srv/author")]
    Forget {
        /// Its name, as `stats` lists it.
        repository: String,
        /// A home that shares the blobs; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Copies the blobs that nodes refer to into the store of another home or instance, which lacks them.
    Promote(PromoteBlobsArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tympan blobs promote /content/dam/new --to /srv/author --home /srv/staging
          tympan blobs promote /content/dam/new --to https://author.example.org --key replication.key --home /srv/staging"
)]
pub(crate) struct PromoteBlobsArgs {
    /// The nodes, with everything below them.
    #[arg(required = true)]
    pub(crate) paths: Vec<String>,
    /// The home that gets them, whose instance may run; or the URL of an instance that receives.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) to: String,
    /// For a URL: a file with its replication key.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The home that has them; its instance must not run.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
