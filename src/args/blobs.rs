//! Arguments of `tympan blobs`: checks, garbage collection and sharing of large blobs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tympan_notation::parse_duration;

#[derive(Debug, Args)]
pub(crate) struct BlobsArgs {
    /// The PostgreSQL database that stores the repository, instead of the home's packs.
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
    /// Checks that every blob that content refers to exists, and names the nodes whose blobs are missing.
    #[command(after_help = "Example: tympan blobs check --home /srv/author")]
    Check {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Also reads all bytes, and compares them with the hashes in the blob names.
        #[arg(long)]
        rehash: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Records which blobs this repository needs, and moves blobs that no repository needs to the trash.
    #[command(after_help = "Examples: tympan blobs gc --dry-run --home /srv/author
          tympan blobs gc --grace 48h --window 30d --home /srv/author")]
    Gc {
        /// The home; its instance must not be running. A running instance collects garbage by itself.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Moves and marks nothing; prints what would be moved.
        #[arg(long)]
        dry_run: bool,
        /// Records what this repository needs, and leaves the sweep to others.
        #[arg(long, conflicts_with = "dry_run")]
        mark_only: bool,
        /// The maximum time between storing a blob and the commit that refers to it.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
        grace: Duration,
        /// The time that blobs stay in the trash.
        #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_duration)]
        window: Duration,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Counts blobs, and lists the repositories that share them.
    #[command(after_help = "Example: tympan blobs stats --home /srv/author")]
    Stats {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists blobs with the time of their last use, in no particular order.
    #[command(after_help = "Example: tympan blobs list --trash --home /srv/author")]
    List {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Lists the blobs in the trash, with the time at which they were moved there.
        #[arg(long)]
        trash: bool,
        /// Prints JSON, one object per line.
        #[arg(long)]
        json: bool,
    },
    /// Restores blobs from the trash.
    #[command(after_help = "Example: tympan blobs undelete --all --home /srv/author")]
    Undelete {
        /// The blobs, as `<hex>#<length>`.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        blobs: Vec<String>,
        /// Restores all blobs.
        #[arg(long)]
        all: bool,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a repository that no longer exists from those that share the blobs: blobs that only it needs become
    /// garbage.
    #[command(after_help = "Example: tympan blobs forget 7pq4mnx2rt --home /srv/author")]
    Forget {
        /// Its name, as `stats` lists it.
        repository: String,
        /// A home that shares the blobs; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Copies the blobs that nodes refer to into the blob store of another home or instance that lacks them.
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
    /// The target home, whose instance may be running; or the URL of an instance that receives.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) to: String,
    /// For a URL: a file with its replication key.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The source home; its instance must not be running.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
