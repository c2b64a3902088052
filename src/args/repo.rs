//! Arguments of `tympan repo`: checks, history, branches, clones.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::heading;

#[derive(Debug, Args)]
pub(crate) struct RepoArgs {
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
    pub(crate) command: RepoCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RepoCommand {
    /// Verifies the hashes of everything, walks every ref, and reports damaged data, the affected paths and what a
    /// repair would do.
    #[command(after_help = "Example: tympan repo check --home /srv/author --repair")]
    Check {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Repairs damage: restores the newest good state, completed with everything that can still be read. Deletes
        /// nothing; prints everything that is restored or lost.
        #[arg(long)]
        repair: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Creates a staging home in constant time, a full copy, or a standby.
    Clone(RepoCloneArgs),
    /// Promotes a standby: it becomes a home of its own.
    #[command(after_help = "Example: tympan repo promote --home /mnt/standby")]
    Promote {
        /// The standby; no process may be following into it any more.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Collects garbage: data that no branch, kept revision, lease or pin reaches.
    #[command(after_help = "Example: tympan repo gc --dry-run --home /srv/author")]
    Gc {
        /// The home; its instance must not be running. A running instance collects garbage by itself.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Removes nothing; prints what would be removed, and why the rest is kept.
        #[arg(long)]
        dry_run: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the revisions of a branch, newest first.
    #[command(after_help = "Example: tympan repo log --limit 10 --home /srv/author")]
    Log {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
        /// The number of revisions.
        #[arg(long, value_name = "COUNT", default_value_t = 50)]
        limit: usize,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the documents that differ between two states, each of which is a root or the name of a branch.
    #[command(after_help = "Example: tympan repo diff main launch --home /srv/author")]
    Diff {
        /// The earlier state.
        from: String,
        /// The later state.
        to: String,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Reverts a branch to an earlier state, as a new revision.
    #[command(after_help = "Example: tympan repo revert 4f5c… --home /srv/author")]
    Revert {
        /// The root of the state, as printed by `log`.
        root: String,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
    },
    /// Restores an earlier state of a node, with everything below it, as a new revision.
    RestorePath(RestorePathArgs),
    /// Manages branches.
    #[command(subcommand)]
    Branch(RepoBranchCommand),
    /// Counts the stored objects.
    #[command(after_help = "Example: tympan repo stats --home /srv/author")]
    Stats {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples: tympan repo clone --from /srv/author --to /srv/staging
          tympan repo clone --from http://127.0.0.1:4502 --key standby.key --to /mnt/standby --follow")]
pub(crate) struct RepoCloneArgs {
    /// The home to clone, whose instance may be running; or the URL of a running instance.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) from: String,
    /// The home to create, which must not exist, be empty, or be a standby of the same origin.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// Copies everything, instead of reading unchanged data from the origin.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) full: bool,
    /// Copies everything, and continues to copy new commits until it is stopped.
    #[arg(long)]
    pub(crate) follow: bool,
    /// For a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE", help_heading = heading::INSTANCE)]
    pub(crate) key: Option<PathBuf>,
    /// For a URL: a file with a token of its `tympan user token admin`.
    #[arg(long, value_name = "FILE", conflicts_with = "key", help_heading = heading::INSTANCE)]
    pub(crate) token_file: Option<PathBuf>,
    /// For a URL: the token itself. Other users of the machine can read it in the list of processes.
    #[arg(
        long,
        hide = true,
        value_name = "TOKEN",
        conflicts_with_all = ["key", "token_file"],
        help_heading = heading::INSTANCE
    )]
    pub(crate) token: Option<String>,
    /// For an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE", help_heading = heading::INSTANCE)]
    pub(crate) ca: Option<PathBuf>,
    /// For a home: the folder that stores the lease, instead of the home itself, so that nothing is written there; one
    /// of the folders that the home lists as `leases` in the section `[history]` of its `tympan.toml`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["full", "follow"])]
    pub(crate) leases: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples: tympan repo restore-path /content/site/news --at 2026-03-01T09:00 --home /srv/author
          tympan repo restore-path /content/site/news --version 1.4 --to /content/site/old-news --home /srv/author"
)]
pub(crate) struct RestorePathArgs {
    /// The node, which may have been deleted.
    pub(crate) path: String,
    /// The time of the state to restore: ISO 8601, UTC without an offset.
    #[arg(long, value_name = "TIME", required_unless_present_any = ["revision", "version"])]
    pub(crate) at: Option<String>,
    /// The number of the revision to restore from, as printed by `log --json`.
    #[arg(long, value_name = "N", conflicts_with = "at")]
    pub(crate) revision: Option<u64>,
    /// A version of the node, by name or label; descendants with records of their own are not changed.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "revision"])]
    pub(crate) version: Option<String>,
    /// The target path; default the original path.
    #[arg(long, value_name = "PATH")]
    pub(crate) to: Option<String>,
    /// The branch to restore into.
    #[arg(long, default_value = "main")]
    pub(crate) branch: String,
    /// The branch whose history has the state; default the one restored into.
    #[arg(long, value_name = "BRANCH")]
    pub(crate) from: Option<String>,
    /// The home; its instance must not be running.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The side that wins a merge conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PreferredMergeSide {
    /// The branch to merge.
    Mine,
    /// The branch that it is merged into.
    Theirs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples: tympan repo branch merge launch --dry-run --home /srv/author
          tympan repo branch merge launch --only /content/site/news --theirs /content/site/news/one --home /srv/author")]
pub(crate) struct MergeBranchArgs {
    /// Its name.
    pub(crate) name: String,
    /// The branch that it is merged into.
    #[arg(long, default_value = "main")]
    pub(crate) into: String,
    /// Merges only this node and everything below it; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) only: Vec<String>,
    /// The side that wins a conflict; without it, conflicts are listed and nothing is merged.
    #[arg(long, value_name = "SIDE")]
    pub(crate) prefer: Option<PreferredMergeSide>,
    /// In conflicts at this node and below it, the merged branch wins; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) mine: Vec<String>,
    /// In conflicts at this node and below it, the branch merged into wins; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) theirs: Vec<String>,
    /// Merges nothing; prints what would change.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The home; its instance must not be running.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RepoBranchCommand {
    /// Lists all branches with their roots.
    #[command(after_help = "Example: tympan repo branch list --home /srv/author")]
    List {
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Creates a branch without copying data.
    #[command(after_help = "Examples: tympan repo branch create launch --home /srv/author
          tympan repo branch create look-back --at 2026-03-01T09:00 --home /srv/author")]
    Create {
        /// Its name.
        name: String,
        /// The branch to start from.
        #[arg(long, default_value = "main")]
        from: String,
        /// Starts from the state of that branch at this time: ISO 8601, UTC without an offset.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Renames a branch.
    #[command(after_help = "Example: tympan repo branch rename launch spring --home /srv/author")]
    Rename {
        /// Its name.
        from: String,
        /// Its new name.
        to: String,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a branch; its states remain as long as history is kept.
    #[command(after_help = "Example: tympan repo branch delete launch --home /srv/author")]
    Delete {
        /// Its name.
        name: String,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the changes of a branch since it was created or last merged.
    #[command(after_help = "Example: tympan repo branch diff launch --details --home /srv/author")]
    Diff {
        /// Its name.
        name: String,
        /// Lists every node and property that differs inside the documents.
        #[arg(long)]
        details: bool,
        /// The home; its instance must not be running.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON, one document per line.
        #[arg(long)]
        json: bool,
    },
    /// Merges the changes of a branch since it was created or last merged, or a part of them.
    Merge(MergeBranchArgs),
}
