//! The repository: checks, history, branches, clones.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct RepoArgs {
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
    pub(crate) command: RepoCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RepoCommand {
    /// Re-hashes everything, walks every ref, and says what is damaged, which paths that affects and what a repair
    /// would do.
    #[command(after_help = "Example: tympan repo check --home /srv/author --repair")]
    Check {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Repairs what is damaged: the newest good state, completed with what can still be read. Nothing is deleted;
        /// everything that is restored or lost is printed.
        #[arg(long)]
        repair: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes a staging home in constant time, a full copy, or a standby.
    Clone(RepoCloneArgs),
    /// Lets a standby take over: it becomes a home of its own.
    #[command(after_help = "Example: tympan repo promote --home /mnt/standby")]
    Promote {
        /// The standby; nothing may follow into it any more.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Collects garbage: what no branch, kept revision, lease or pin reaches.
    #[command(after_help = "Example: tympan repo gc --dry-run --home /srv/author")]
    Gc {
        /// The home; its instance must not run. A running one collects by itself.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Says what would go and what keeps the rest; removes nothing.
        #[arg(long)]
        dry_run: bool,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the revisions of a branch, newest first.
    #[command(after_help = "Example: tympan repo log --limit 10 --home /srv/author")]
    Log {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
        /// How many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists the documents that differ between two states, each a root or the name of a branch.
    #[command(after_help = "Example: tympan repo diff main launch --home /srv/author")]
    Diff {
        /// The earlier state.
        from: String,
        /// The later state.
        to: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Takes a branch back to an earlier state, as a new revision.
    #[command(after_help = "Example: tympan repo revert 4f5c… --home /srv/author")]
    Revert {
        /// The root of the state, as `log` lists it.
        root: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// The branch.
        #[arg(long, default_value = "main")]
        branch: String,
    },
    /// Brings a node back as it was, with everything below it, as a new revision.
    RestorePath(RestorePathArgs),
    /// Looks after branches.
    #[command(subcommand)]
    Branch(RepoBranchCommand),
    /// Counts what is stored.
    #[command(after_help = "Example: tympan repo stats --home /srv/author")]
    Stats {
        /// The home; its instance must not run.
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
    /// The home to clone, whose instance may run; or the URL of a running instance.
    #[arg(long, value_name = "URL|DIR")]
    pub(crate) from: String,
    /// The home to make; it must not exist, or be empty, or be a standby of the same origin.
    #[arg(long, value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// Copies everything, in place of reading from the origin what was not changed here.
    #[arg(long, conflicts_with = "follow")]
    pub(crate) full: bool,
    /// Copies everything and goes on copying what is committed, until it is stopped.
    #[arg(long)]
    pub(crate) follow: bool,
    /// For a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// For a URL: a token of its `tympan user token admin`.
    #[arg(long, value_name = "T", conflicts_with = "key")]
    pub(crate) token: Option<String>,
    /// For an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// For a home: where its lease is kept, in place of the home itself, so that nothing at all is written there; one of
    /// the folders that the home names as `leases` in the section `[history]` of its `tympan.toml`.
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
    /// The node; it need not exist any more.
    pub(crate) path: String,
    /// The time at which it was right: ISO 8601, UTC without an offset.
    #[arg(long, value_name = "TIME", required_unless_present_any = ["revision", "version"])]
    pub(crate) at: Option<String>,
    /// The number of the revision in which it was right, as `log --json` lists it.
    #[arg(long, value_name = "N", conflicts_with = "at")]
    pub(crate) revision: Option<u64>,
    /// A version of the node, by name or label; what has records of its own below it stays.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["at", "revision"])]
    pub(crate) version: Option<String>,
    /// Where to put it; default where it was.
    #[arg(long, value_name = "PATH")]
    pub(crate) to: Option<String>,
    /// The branch that gets it.
    #[arg(long, default_value = "main")]
    pub(crate) branch: String,
    /// The branch in whose history it was right; default the one that gets it.
    #[arg(long, value_name = "BRANCH")]
    pub(crate) from: Option<String>,
    /// The home; its instance must not run.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Whose side counts where both changed the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PreferredMergeSide {
    /// What is being merged.
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
    /// Merges this node and everything below it, not the rest; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) only: Vec<String>,
    /// Whose side counts where both changed the same; without it, conflicts are listed and nothing is merged.
    #[arg(long, value_name = "SIDE")]
    pub(crate) prefer: Option<PreferredMergeSide>,
    /// In conflicts at this node and below it, the merged branch counts; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) mine: Vec<String>,
    /// In conflicts at this node and below it, the branch merged into counts; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) theirs: Vec<String>,
    /// Says what would change; merges nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The home; its instance must not run.
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
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes a branch, which copies nothing.
    #[command(after_help = "Examples: tympan repo branch create launch --home /srv/author
          tympan repo branch create look-back --at 2026-03-01T09:00 --home /srv/author")]
    Create {
        /// Its name.
        name: String,
        /// The branch that it begins as.
        #[arg(long, default_value = "main")]
        from: String,
        /// Begins as that branch was at this time: ISO 8601, UTC without an offset.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        /// The home; its instance must not run.
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
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a branch; its states stay for as long as history is kept.
    #[command(after_help = "Example: tympan repo branch delete launch --home /srv/author")]
    Delete {
        /// Its name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists what a branch has changed since it was made or last merged.
    #[command(after_help = "Example: tympan repo branch diff launch --details --home /srv/author")]
    Diff {
        /// Its name.
        name: String,
        /// Lists every node and property that differs inside the documents.
        #[arg(long)]
        details: bool,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON, one document a line.
        #[arg(long)]
        json: bool,
    },
    /// Merges what a branch has changed since it was made or last merged, or a part of that.
    Merge(MergeBranchArgs),
}
