//! Arguments of `tympan backup`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use tympan_notation::{ParseQuantityError, parse_duration, parse_duration_or_count};

use super::exclude::{ExcludeArgs, SourceListArgs};
use super::heading;
use super::vault::{VaultLocationArgs, parse_rate_arg, parse_size_arg};

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Appends the log to this file instead of standard error.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) log: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: BackupCommand,
}

/// The vault and how to open it.
#[derive(Clone, Debug, Args)]
pub(crate) struct VaultArgs {
    /// The vault, of the format of restic's repositories: a folder, `sftp://USER@HOST:PORT/PATH`, `sftp:USER@HOST:PATH`,
    /// `s3:HOST/BUCKET/PREFIX`, or `rest:https://USER@HOST:PORT/PATH`.
    #[arg(
        short = 'r',
        long = "vault",
        alias = "repository",
        value_name = "VAULT",
        env = "TYMPAN_VAULT",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) vault: String,
    /// A file whose first line is the password. Without this and without a command, the environment variable
    /// TYMPAN_VAULT_PASSWORD is used.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// A command that prints the password.
    #[arg(long, value_name = "COMMAND", conflicts_with = "password_file")]
    pub(crate) password_command: Option<String>,
    /// Waits up to this time for other processes that lock the vault: `10m`; a number alone is in seconds.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "0s",
        value_parser = parse_seconds_arg,
        help_heading = heading::CONNECTION
    )]
    pub(crate) retry_lock: Duration,
    /// Prints JSON, one line per item, and progress lines for a long run; if the command fails, the error goes to
    /// standard error.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: VaultLocationArgs,
}

/// Selects the clients whose snapshots are used.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SnapshotClientArgs {
    /// Only snapshots of the client with this name, instead of this host; may be repeated.
    #[arg(
        long,
        value_name = "NAME",
        visible_alias = "client-name",
        env = "TYMPAN_CLIENT_NAME",
        help_heading = heading::SNAPSHOTS
    )]
    pub(crate) host: Vec<String>,
    /// Snapshots of all clients that share the vault.
    #[arg(long, visible_alias = "all-hosts", help_heading = heading::SNAPSHOTS)]
    pub(crate) all_clients: bool,
}

/// Arguments of commands that only read a vault.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct VaultReadArgs {
    /// Takes no lock: for a vault that cannot be written, such as one on a read-only medium. A concurrent prune may
    /// remove data that is being read.
    #[arg(long)]
    pub(crate) no_lock: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CompressionLevel {
    #[value(alias = "deflate")]
    Auto,
    #[value(alias = "none")]
    Off,
    Fastest,
    Better,
    Max,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Creates a vault.
    #[command(after_help = "Example: tympan backup init -r /backup/site --password-file secret")]
    Init(VaultArgs),
    /// Saves folders, and repositories of homes, whose instances may be running.
    #[command(
        after_help = "Example: tympan backup save -r /backup/site repo:/srv/author /etc/tympan"
    )]
    Save(BackupSaveArgs),
    /// Lists the snapshots of this client.
    #[command(after_help = "Example: tympan backup list -r /backup/site --all-clients")]
    List {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
    },
    /// Lists the clients that share a vault, with the number of their snapshots and the time of the last one.
    #[command(after_help = "Example: tympan backup clients -r /backup/site")]
    Clients(VaultArgs),
    /// Lists the saves that this user made on this machine, with time, kind, duration and size.
    #[command(after_help = "Example: tympan backup runs -r /backup/site")]
    Runs(VaultArgs),
    /// Lists the contents of a snapshot.
    #[command(after_help = "Example: tympan backup ls -r /backup/site latest /etc")]
    Ls {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The snapshot: `latest`, the newest one of this client, or the first digits of its id.
        snapshot: String,
        /// Lists only what is below this path.
        #[arg(default_value = "/")]
        path: String,
    },
    /// Finds names in all snapshots of this client.
    #[command(after_help = "Example: tympan backup find -r /backup/site '*.toml'")]
    Find {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The name; `*` and `?` are wildcards.
        pattern: String,
    },
    /// Shows the differences between two snapshots.
    #[command(after_help = "Example: tympan backup diff -r /backup/site 3f2a latest")]
    Diff {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The earlier snapshot.
        old: String,
        /// The later snapshot.
        new: String,
    },
    /// Writes a file of a snapshot to standard output.
    #[command(after_help = "Example: tympan backup dump -r /backup/site latest /etc/fstab")]
    Dump {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The snapshot.
        snapshot: String,
        /// The file.
        path: String,
    },
    /// Restores a snapshot into a folder, or one of a repository into a new home.
    #[command(
        after_help = "Example: tympan backup restore -r /backup/site latest --home /srv/author2"
    )]
    Restore(BackupRestoreArgs),
    /// Compares a snapshot with the current data: files byte by byte, a repository by its root.
    #[command(after_help = "Example: tympan backup verify -r /backup/site latest")]
    Verify {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        #[command(flatten)]
        reading: VaultReadArgs,
        #[command(flatten)]
        instance: RepositoryInstanceArgs,
        /// The snapshot.
        #[arg(default_value = "latest")]
        snapshot: String,
    },
    /// Removes snapshots of this client by a retention policy, or any snapshots by their ids.
    #[command(
        after_help = "Example: tympan backup forget -r /backup/site --keep 7d,4w,12m --prune"
    )]
    Forget(ForgetSnapshotsArgs),
    /// Removes data that no snapshot refers to.
    #[command(after_help = "Example: tympan backup prune -r /backup/site")]
    Prune {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        grace: PruneGraceArgs,
    },
    /// Checks the vault.
    #[command(after_help = "Example: tympan backup check -r /backup/site --read-data")]
    Check {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        reading: VaultReadArgs,
        /// Reads all packs completely.
        #[arg(long)]
        read_data: bool,
        /// Reads one part of the packs out of a number of parts, such as `2/7`.
        #[arg(long, value_name = "N/M", conflicts_with = "read_data")]
        read_data_subset: Option<String>,
    },
    /// Repairs a damaged vault: rebuilds the index, recovers intact data from damaged packs, and removes lost data from
    /// snapshots.
    #[command(after_help = "Example: tympan backup repair -r /backup/site --read-data")]
    Repair {
        #[command(flatten)]
        vault: VaultArgs,
        /// Reads all packs completely. Without this, reads only packs that the index does not list or whose length is
        /// wrong.
        #[arg(long)]
        read_data: bool,
    },
    /// Copies snapshots, with all that they refer to, from another vault.
    #[command(
        after_help = "Example: tympan backup copy -r /second/site --from-vault /backup/site --from-password-file secret"
    )]
    Copy(CopySnapshotsArgs),
    /// Changes the tags of snapshots.
    #[command(
        after_help = "Example: tympan backup tag -r /backup/site --add before-relaunch latest"
    )]
    Tag(TagSnapshotsArgs),
    /// Manages the vault's passwords.
    #[command(
        after_help = "Example: tympan backup key -r /backup/site add --new-password-file second"
    )]
    Key {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(subcommand)]
        command: VaultKeyCommand,
    },
    /// Removes the locks of processes that no longer exist.
    #[command(after_help = "Example: tympan backup unlock -r /backup/site")]
    Unlock {
        #[command(flatten)]
        vault: VaultArgs,
        /// Removes all locks, including those of processes that may still run.
        #[arg(long)]
        remove_all: bool,
    },
    /// Estimates the time and space that the next save, and a first save, would take.
    #[command(after_help = "Example: tympan backup estimate -r /backup/site repo:/srv/author /etc")]
    Estimate(BackupSaveArgs),
    /// Counts the size of snapshots when restored, and the space that they use.
    #[command(after_help = "Example: tympan backup stats -r /backup/site latest")]
    Stats {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// Only these snapshots.
        snapshots: Vec<String>,
    },
    /// Searches settings that make saves of these sources into this vault fast, by trial saves into a temporary vault
    /// next to it.
    #[command(after_help = "Example: tympan backup tune -r sftp://backup@host/site /srv/files")]
    Tune(BackupTuneArgs),
    /// Mounts the snapshots as read-only folders, until Ctrl-C or `umount`.
    #[command(after_help = "Example: tympan backup mount -r /backup/site /mnt/backup")]
    Mount {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        #[command(flatten)]
        reading: VaultReadArgs,
        /// An empty folder.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
        /// Lets other users of the machine read the mount, subject to the owners and modes in the snapshots.
        #[arg(long)]
        allow_other: bool,
    },
}

impl BackupCommand {
    /// Returns true if the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        match self {
            Self::Init(vault) | Self::Clients(vault) | Self::Runs(vault) => vault.json,
            Self::Save(save) | Self::Estimate(save) => save.vault.json,
            Self::Restore(restore) => restore.vault.json,
            Self::Forget(forget) => forget.vault.json,
            Self::Copy(copy) => copy.vault.json,
            Self::Tag(tag) => tag.vault.json,
            Self::Tune(tune) => tune.vault.json,
            Self::List { vault, .. }
            | Self::Ls { vault, .. }
            | Self::Find { vault, .. }
            | Self::Diff { vault, .. }
            | Self::Dump { vault, .. }
            | Self::Verify { vault, .. }
            | Self::Prune { vault, .. }
            | Self::Check { vault, .. }
            | Self::Repair { vault, .. }
            | Self::Key { vault, .. }
            | Self::Unlock { vault, .. }
            | Self::Stats { vault, .. }
            | Self::Mount { vault, .. } => vault.json,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct BackupTuneArgs {
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    /// The sources to save: folders, or `repo:HOME`.
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) sources: Vec<String>,
    /// The scenario to measure: a first save, a save without changes, or a save that reads everything again.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) scenario: BackupTuneScenario,
    /// Does not store the settings that were found.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// The scenario that trials measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackupTuneScenario {
    /// A first save.
    Full,
    /// A save that finds nothing changed.
    Nochange,
    /// A save that reads everything again and finds it already stored.
    Walk,
}

#[derive(Debug, Args)]
pub(crate) struct BackupSaveArgs {
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    /// Folders and files; `repo:HOME` for the repository of a home; the URL of a running instance for its repository.
    #[arg(
        value_name = "SOURCE",
        required_unless_present_any = ["files_from", "files_from_verbatim", "files_from_raw", "stdin"]
    )]
    pub(crate) sources: Vec<String>,
    /// Makes a plain copy of a repository instead of a snapshot, without a vault: in a folder, where an earlier copy is
    /// updated to the new state, or as a new file that ends with `.zip`.
    #[arg(long, value_name = "DIR|FILE.zip", conflicts_with_all = ["exclude", "iexclude", "exclude_file", "iexclude_file", "exclude_regex", "tag", "beside"])]
    pub(crate) to: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
    #[command(flatten)]
    pub(crate) source_lists: SourceListArgs,
    /// Writes nothing; prints what would be stored.
    #[arg(short = 'n', long, alias = "pretend", conflicts_with = "to")]
    pub(crate) dry_run: bool,
    /// Adds a tag to the snapshot.
    #[arg(long, value_name = "WORD")]
    pub(crate) tag: Vec<String>,
    /// The host name in the snapshot, instead of this host's.
    #[arg(long, value_name = "NAME", visible_alias = "client-name", env = "TYMPAN_CLIENT_NAME")]
    pub(crate) host: Option<String>,
    /// Reads everything, even what did not change.
    #[arg(long, visible_alias = "full-walk")]
    pub(crate) force: bool,
    /// Compression level. Obnam's `deflate` is accepted for `auto`, and its `none` for `off`.
    #[arg(long, value_enum, default_value = "auto", visible_alias = "compress-with")]
    pub(crate) compression: CompressionLevel,
    /// Uses and writes no cache of known files: each folder's tree is read from the vault.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Leaves out the folder `content`, the human-readable view of a repository.
    #[arg(long, help_heading = heading::REPOSITORIES)]
    pub(crate) no_view: bool,
    /// Saves the jobs and logins of a home with its repository, so that a restored home continues with them. Its
    /// configuration and its keys are always saved.
    #[arg(long, help_heading = heading::REPOSITORIES)]
    pub(crate) with_state: bool,
    /// Saves earlier revisions of a repository's branch `main` as well, as far as the `[history]` of its home keeps
    /// them, so that a restored home can go back to them. The first save of each revision reads all of it.
    #[arg(long, help_heading = heading::REPOSITORIES)]
    pub(crate) with_history: bool,
    /// Saves the data that a clone reads from its base as well. Without this, the base is only named, and its owner has
    /// to back it up.
    #[arg(long, help_heading = heading::REPOSITORIES)]
    pub(crate) with_base: bool,
    #[command(flatten)]
    pub(crate) instance: RepositoryInstanceArgs,
    #[command(flatten)]
    pub(crate) tuning: SaveTuningArgs,
}

/// How to reach the repository of a running instance.
#[derive(Debug, Args)]
pub(crate) struct RepositoryInstanceArgs {
    /// For a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE", help_heading = heading::INSTANCE)]
    pub(crate) key: Option<PathBuf>,
    /// For a URL: a file with a token of its `tympan user token admin`.
    #[arg(long, value_name = "FILE", conflicts_with = "key", help_heading = heading::INSTANCE)]
    pub(crate) token_file: Option<PathBuf>,
    /// For an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE", help_heading = heading::INSTANCE)]
    pub(crate) ca: Option<PathBuf>,
}

/// Limits on the resources of the machine, and of the connection to the vault, that a save uses.
#[derive(Debug, Args)]
pub(crate) struct SaveTuningArgs {
    /// The maximum size of finished packs that wait for upload or are in transit; packs are no larger than this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_arg, help_heading = heading::LIMITS)]
    pub(crate) upload_queue: Option<u64>,
    /// The same in Obnam's nodes of 256 KiB.
    #[arg(
        long,
        value_name = "NODES",
        conflicts_with = "upload_queue",
        help_heading = heading::LIMITS
    )]
    pub(crate) upload_queue_size: Option<u64>,
    /// `--tree-cache` in Obnam's nodes of 256 KiB.
    #[arg(
        long,
        value_name = "NODES",
        conflicts_with = "tree_cache",
        help_heading = heading::LIMITS
    )]
    pub(crate) lru_size: Option<u64>,
    /// Waits this time before each new piece is written: `20ms`; a number alone is in milliseconds.
    #[arg(
        long = "delay-ms",
        value_name = "TIME",
        default_value = "0ms",
        value_parser = parse_milliseconds_arg,
        help_heading = heading::LIMITS
    )]
    pub(crate) piece_delay: Duration,
    /// Limits reads of the sources: `20 MiB` per second; a number alone is in KiB.
    #[arg(
        long,
        value_name = "RATE",
        value_parser = parse_rate_arg,
        conflicts_with = "to",
        help_heading = heading::LIMITS
    )]
    pub(crate) limit_read: Option<NonZeroU64>,
    /// Limits the number of reads per second: one read is a file, a piece of a long file, or several chunks of a
    /// repository.
    #[arg(long, value_name = "COUNT", conflicts_with = "to", help_heading = heading::LIMITS)]
    pub(crate) limit_iops: Option<NonZeroU64>,
    /// The home of an instance that serves during the save: the save slows down while its visitors wait longer than
    /// before.
    #[arg(long, value_name = "HOME", help_heading = heading::LIMITS)]
    pub(crate) beside: Option<PathBuf>,
    /// The deadline of a save that gives way to visitors: `1h30m`.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_duration,
        requires = "beside",
        help_heading = heading::LIMITS
    )]
    pub(crate) finish_within: Option<Duration>,
    /// Prints nothing unless there is a problem.
    #[arg(long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Prints more about the run.
    #[arg(long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BackupRestoreArgs {
    #[command(flatten)]
    pub(crate) vault: OptionalVaultArgs,
    #[command(flatten)]
    pub(crate) reading: VaultReadArgs,
    #[command(flatten)]
    pub(crate) clients: SnapshotClientArgs,
    /// The snapshot: `latest`, the newest one of this client, or the first digits of its id.
    #[arg(default_value = "latest")]
    pub(crate) snapshot: String,
    /// Restores only this path of the snapshot.
    #[arg(long, default_value = "/", value_name = "PATH")]
    pub(crate) path: String,
    /// The folder to restore into.
    #[arg(long, value_name = "DIR", required_unless_present = "home")]
    pub(crate) to: Option<PathBuf>,
    /// The new home to create from a snapshot of a repository.
    #[arg(long, value_name = "DIR", conflicts_with = "to")]
    pub(crate) home: Option<PathBuf>,
    /// Replaces files that differ in a folder that is not empty; files that the snapshot does not contain stay.
    #[arg(long, help_heading = heading::SELECTION)]
    pub(crate) in_place: bool,
    /// Removes files of the folder that are not in the snapshot.
    #[arg(long, requires = "in_place", help_heading = heading::SELECTION)]
    pub(crate) delete: bool,
    /// Restores only what matches, with the folders above it. The patterns are those of `save --exclude`, and match
    /// paths as the snapshot has them.
    #[arg(
        short = 'i',
        long,
        value_name = "PATTERN",
        conflicts_with = "home",
        help_heading = heading::SELECTION
    )]
    pub(crate) include: Vec<String>,
    /// Like `--include`, but case-insensitive.
    #[arg(long, value_name = "PATTERN", conflicts_with = "home", help_heading = heading::SELECTION)]
    pub(crate) iinclude: Vec<String>,
    /// Restores everything except what matches.
    #[arg(
        short = 'e',
        long,
        value_name = "PATTERN",
        conflicts_with_all = ["home", "include", "iinclude"],
        help_heading = heading::SELECTION
    )]
    pub(crate) exclude: Vec<String>,
    /// Like `--exclude`, but case-insensitive.
    #[arg(
        long,
        value_name = "PATTERN",
        conflicts_with_all = ["home", "include", "iinclude"],
        help_heading = heading::SELECTION
    )]
    pub(crate) iexclude: Vec<String>,
    /// The current location of the base of a clone, if it moved since the save: a home's directory, or the URL of its
    /// instance.
    #[arg(long, value_name = "DIR|URL", requires = "home", help_heading = heading::REPOSITORIES)]
    pub(crate) base: Option<String>,
    /// For a base at a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE", requires = "home", help_heading = heading::REPOSITORIES)]
    pub(crate) key: Option<PathBuf>,
    /// For a base at a URL: a file with a token of its `tympan user token admin`.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "key",
        requires = "home",
        help_heading = heading::REPOSITORIES
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// For a base at an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE", requires = "home", help_heading = heading::REPOSITORIES)]
    pub(crate) ca: Option<PathBuf>,
    /// Creates the home even if the snapshot lacks blobs, or if the base of a clone is missing: the home cannot start
    /// without its base.
    #[arg(long, requires = "home", help_heading = heading::REPOSITORIES)]
    pub(crate) allow_missing: bool,
    /// Reads a folder that a snapshot of a repository was restored into, by any program, or a plain copy, instead of a
    /// vault.
    #[arg(
        long,
        value_name = "DIR|FILE.zip",
        requires = "home",
        help_heading = heading::REPOSITORIES
    )]
    pub(crate) unpacked: Option<PathBuf>,
}

/// The vault, for commands that do not always need one.
#[derive(Debug, Args)]
pub(crate) struct OptionalVaultArgs {
    /// The vault.
    #[arg(
        short = 'r',
        long = "vault",
        alias = "repository",
        value_name = "VAULT",
        env = "TYMPAN_VAULT",
        hide_env_values = true,
        required_unless_present = "unpacked"
    )]
    pub(crate) vault: Option<String>,
    /// A file whose first line is the password.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// A command that prints the password.
    #[arg(long, value_name = "COMMAND", conflicts_with = "password_file")]
    pub(crate) password_command: Option<String>,
    /// Waits up to this time for other processes that lock the vault: `10m`; a number alone is in seconds.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "0s",
        value_parser = parse_seconds_arg,
        help_heading = heading::CONNECTION
    )]
    pub(crate) retry_lock: Duration,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: VaultLocationArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CopySnapshotsArgs {
    /// The vault to copy to.
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    #[command(flatten)]
    pub(crate) clients: SnapshotClientArgs,
    /// The vault to copy from.
    #[arg(
        long,
        alias = "from-repo",
        value_name = "VAULT",
        env = "TYMPAN_FROM_VAULT",
        hide_env_values = true
    )]
    pub(crate) from_vault: String,
    /// A file whose first line is the password of that vault. Without this and without a command, the password of the
    /// target vault is used.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_password_file: Option<PathBuf>,
    /// A command that prints the password of that vault.
    #[arg(long, value_name = "COMMAND", conflicts_with = "from_password_file")]
    pub(crate) from_password_command: Option<String>,
    /// Only these snapshots: `latest`, or the first digits of their ids.
    pub(crate) snapshots: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TagSnapshotsArgs {
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    #[command(flatten)]
    pub(crate) clients: SnapshotClientArgs,
    /// Only these snapshots: `latest`, or the first digits of their ids; otherwise all snapshots of this client.
    pub(crate) snapshots: Vec<String>,
    /// Replaces the tags of the snapshots with these.
    #[arg(
        long,
        value_name = "WORD",
        conflicts_with_all = ["add", "remove"],
        required_unless_present_any = ["add", "remove"]
    )]
    pub(crate) set: Vec<String>,
    /// Adds a tag.
    #[arg(long, value_name = "WORD")]
    pub(crate) add: Vec<String>,
    /// Removes a tag.
    #[arg(long, value_name = "WORD")]
    pub(crate) remove: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ForgetSnapshotsArgs {
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    #[command(flatten)]
    pub(crate) clients: SnapshotClientArgs,
    /// Snapshots to remove, by the first digits of their ids.
    pub(crate) snapshots: Vec<String>,
    /// Keeps the last snapshot of each of the given number of hours, days, weeks, months and years that have one:
    /// `24h,7d,4w,12m,3y`. Applies separately to each client and each set of paths.
    #[arg(
        long,
        value_name = "RULE",
        conflicts_with = "snapshots",
        required_unless_present = "snapshots"
    )]
    pub(crate) keep: Option<String>,
    /// Keeps snapshots with this tag.
    #[arg(long, value_name = "WORD", requires = "keep")]
    pub(crate) keep_tag: Vec<String>,
    /// Removes nothing; prints what would be removed.
    #[arg(long, alias = "pretend")]
    pub(crate) dry_run: bool,
    /// Removes data that no snapshot refers to any more.
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) grace: PruneGraceArgs,
}

/// The grace period of unused packs.
#[derive(Debug, Args)]
pub(crate) struct PruneGraceArgs {
    /// Unused packs are marked, and a prune after this time (`90m`, `23h`) removes them. `0s` removes them at once,
    /// which is safe if all programs that save into the vault take locks, as Tympan and restic do.
    #[arg(long, value_name = "TIME", default_value = "23h", value_parser = parse_duration)]
    pub(crate) grace: Duration,
}

fn parse_seconds_arg(text: &str) -> Result<Duration, ParseQuantityError> {
    parse_duration_or_count(text, Duration::from_secs(1))
}

fn parse_milliseconds_arg(text: &str) -> Result<Duration, ParseQuantityError> {
    parse_duration_or_count(text, Duration::from_millis(1))
}

#[derive(Debug, Subcommand)]
pub(crate) enum VaultKeyCommand {
    /// Lists the keys.
    List,
    /// Adds a password.
    Add(NewPasswordArgs),
    /// Removes a key.
    Remove {
        /// The first digits of its id.
        key: String,
    },
    /// Replaces the password that the vault was opened with.
    Passwd(NewPasswordArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NewPasswordArgs {
    /// A file whose first line is the new password.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_password_file: PathBuf,
}
