//! The words of `tympan backup`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::exclude::{ExcludeArgs, SourceListArgs};
use super::vault::{VaultLocationArgs, parse_rate_arg, parse_size_arg};

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Writes the log to the end of this file, in place of standard error.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) log: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: BackupCommand,
}

/// Which vault, and how it opens.
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
    /// A file whose first line is the password. Without it, and without a command, TYMPAN_VAULT_PASSWORD has it.
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// A command that writes the password.
    #[arg(long, value_name = "COMMAND", conflicts_with = "password_file")]
    pub(crate) password_command: Option<String>,
    /// Waits so many seconds for others that use the vault.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) retry_lock: u64,
    /// Prints JSON, one line for each thing, and for how far a long run is; why it failed, if it did, on standard error.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: VaultLocationArgs,
}

/// Whose snapshots are meant.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SnapshotClientArgs {
    /// Only snapshots of the client with this name, in place of this host's; may stand several times.
    #[arg(long, value_name = "NAME", visible_alias = "client-name", env = "TYMPAN_CLIENT_NAME")]
    pub(crate) host: Vec<String>,
    /// Those of all clients that share the vault.
    #[arg(long, visible_alias = "all-hosts")]
    pub(crate) all_clients: bool,
}

/// How somebody looks who writes nothing.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct VaultReadArgs {
    /// Takes no lock: for a vault that cannot be written, such as one on a medium that is mounted read-only. A prune meanwhile
    /// may take away what is being read.
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
    /// Makes a vault.
    #[command(after_help = "Example: tympan backup init -r /backup/site --password-file secret")]
    Init(VaultArgs),
    /// Saves folders, and repositories of homes, whose instances may run.
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
    /// Lists the clients that share a vault: how many snapshots each has, and when it made the last.
    #[command(after_help = "Example: tympan backup clients -r /backup/site")]
    Clients(VaultArgs),
    /// Lists the saves of this user from this machine: when, of what kind, how long, how much.
    #[command(after_help = "Example: tympan backup runs -r /backup/site")]
    Runs(VaultArgs),
    /// Lists what a snapshot holds.
    #[command(after_help = "Example: tympan backup ls -r /backup/site latest /etc")]
    Ls {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The snapshot: `latest`, the newest one of this client, or the first digits of its id.
        snapshot: String,
        /// Only what is below this path.
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
        /// The name; `*` and `?` stand for letters.
        pattern: String,
    },
    /// Tells how two snapshots differ.
    #[command(after_help = "Example: tympan backup diff -r /backup/site 3f2a latest")]
    Diff {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// The earlier one.
        old: String,
        /// The later one.
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
    /// Compares a snapshot with what is there now: files byte by byte, a repository by its root.
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
    /// Removes snapshots of this client by a rule, or any by their ids.
    #[command(
        after_help = "Example: tympan backup forget -r /backup/site --keep 7d,4w,12m --prune"
    )]
    Forget(ForgetSnapshotsArgs),
    /// Removes what no snapshot refers to.
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
        /// Reads all packs, to the last byte.
        #[arg(long)]
        read_data: bool,
        /// Reads one part of so many, such as `2/7`.
        #[arg(long, value_name = "N/M", conflicts_with = "read_data")]
        read_data_subset: Option<String>,
    },
    /// Makes a damaged vault sound again: lists what is there, takes what is whole out of damaged packs, and takes what is
    /// lost out of snapshots.
    #[command(after_help = "Example: tympan backup repair -r /backup/site --read-data")]
    Repair {
        #[command(flatten)]
        vault: VaultArgs,
        /// Reads all packs, to the last byte. Without it, those that the index does not list, or whose length is wrong.
        #[arg(long)]
        read_data: bool,
    },
    /// Copies snapshots, with all that they refer to, from another vault.
    #[command(
        after_help = "Example: tympan backup copy -r /second/site --from-vault /backup/site --from-password-file secret"
    )]
    Copy(CopySnapshotsArgs),
    /// Changes the words that snapshots have.
    #[command(
        after_help = "Example: tympan backup tag -r /backup/site --add before-relaunch latest"
    )]
    Tag(TagSnapshotsArgs),
    /// Looks after the vault's passwords.
    #[command(
        after_help = "Example: tympan backup key -r /backup/site add --new-password-file second"
    )]
    Key {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(subcommand)]
        command: VaultKeyCommand,
    },
    /// Removes the locks of processes that are gone.
    #[command(after_help = "Example: tympan backup unlock -r /backup/site")]
    Unlock {
        #[command(flatten)]
        vault: VaultArgs,
        /// All locks, also of processes that may live.
        #[arg(long)]
        remove_all: bool,
    },
    /// Says what the next save, and a first one, would take in time and room.
    #[command(after_help = "Example: tympan backup estimate -r /backup/site repo:/srv/author /etc")]
    Estimate(BackupSaveArgs),
    /// Counts what snapshots would restore, and what they take.
    #[command(after_help = "Example: tympan backup stats -r /backup/site latest")]
    Stats {
        #[command(flatten)]
        vault: VaultArgs,
        #[command(flatten)]
        clients: SnapshotClientArgs,
        /// Only these snapshots.
        snapshots: Vec<String>,
    },
    /// Searches settings that make saves of these sources into this vault fast, by saves into a vault beside it.
    #[command(after_help = "Example: tympan backup tune -r sftp://backup@host/site /srv/files")]
    Tune(BackupTuneArgs),
    /// Shows the snapshots as folders that can only be read, until Ctrl-C or `umount`.
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
        /// Lets other users of the machine look, as owners and modes in the snapshots allow.
        #[arg(long)]
        allow_other: bool,
    },
}

impl BackupCommand {
    /// Tells whether programs read what is printed.
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
    /// What is saved: folders, or `repo:HOME`.
    #[arg(required = true, value_name = "SOURCE")]
    pub(crate) sources: Vec<String>,
    /// What is measured: a first save, one that finds nothing changed, or one that reads everything again.
    #[arg(long, value_enum, default_value = "full")]
    pub(crate) scenario: BackupTuneScenario,
    /// Keeps nothing of what was found.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What trials measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackupTuneScenario {
    /// A first save.
    Full,
    /// One that finds nothing changed.
    Nochange,
    /// One that reads everything again, and finds it there.
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
    /// Makes a plain copy of a repository in place of a snapshot, without a vault: in a folder, where an earlier copy becomes
    /// that of the new state, or as a new file that ends with `.zip`.
    #[arg(long, value_name = "DIR|FILE.zip", conflicts_with_all = ["exclude", "iexclude", "exclude_file", "iexclude_file", "exclude_regex", "tag", "beside"])]
    pub(crate) to: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) excludes: ExcludeArgs,
    #[command(flatten)]
    pub(crate) source_lists: SourceListArgs,
    /// Writes nothing; says what would be stored.
    #[arg(short = 'n', long, alias = "pretend", conflicts_with = "to")]
    pub(crate) dry_run: bool,
    /// Gives the snapshot a word.
    #[arg(long, value_name = "WORD")]
    pub(crate) tag: Vec<String>,
    /// The host's name in the snapshot, in place of this one's.
    #[arg(long, value_name = "NAME", visible_alias = "client-name", env = "TYMPAN_CLIENT_NAME")]
    pub(crate) host: Option<String>,
    /// Reads everything, also what did not change.
    #[arg(long, visible_alias = "full-walk")]
    pub(crate) force: bool,
    /// How hard to compress. Obnam's `deflate` stands for `auto`, and its `none` for `off`.
    #[arg(long, value_enum, default_value = "auto", visible_alias = "compress-with")]
    pub(crate) compression: CompressionLevel,
    /// Keeps no table of what was seen, and uses none: each folder's tree is read from the vault.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Leaves out the folder `content`, in which people read a repository.
    #[arg(long)]
    pub(crate) no_view: bool,
    /// Saves jobs and logins of a home with its repository: who restores goes on with them. Its configuration and its keys are
    /// always saved with it.
    #[arg(long)]
    pub(crate) with_state: bool,
    /// Saves earlier revisions of a repository's branch `main` with it, as far as the `[history]` of its home keeps them: who
    /// restores can go back to them. The first save of each reads all of it.
    #[arg(long)]
    pub(crate) with_history: bool,
    /// Saves what a clone reads of its base with it. Without it, that is left to the base's owner, and named.
    #[arg(long)]
    pub(crate) with_base: bool,
    #[command(flatten)]
    pub(crate) instance: RepositoryInstanceArgs,
    #[command(flatten)]
    pub(crate) tuning: SaveTuningArgs,
}

/// What a running instance is asked with for its repository.
#[derive(Debug, Args)]
pub(crate) struct RepositoryInstanceArgs {
    /// For a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// For a URL: a file with a token of its `tympan user token admin`.
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    pub(crate) token_file: Option<PathBuf>,
    /// For an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

/// How much of the machine, and of the way to the vault, a save takes.
#[derive(Debug, Args)]
pub(crate) struct SaveTuningArgs {
    /// How much may wait to be written or be on its way, in finished packs; packs are no larger than this.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_arg)]
    pub(crate) upload_queue: Option<u64>,
    /// The same in Obnam's nodes of 256 KiB.
    #[arg(long, value_name = "NODES", conflicts_with = "upload_queue")]
    pub(crate) upload_queue_size: Option<u64>,
    /// `--tree-cache` in Obnam's nodes of 256 KiB.
    #[arg(long, value_name = "NODES", conflicts_with = "tree_cache")]
    pub(crate) lru_size: Option<u64>,
    /// Waits so many milliseconds before each new piece is written.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    pub(crate) delay_ms: u64,
    /// Reads the sources no faster: `20 MiB` in a second; a number alone is in KiB.
    #[arg(long, value_name = "RATE", value_parser = parse_rate_arg, conflicts_with = "to")]
    pub(crate) limit_read: Option<NonZeroU64>,
    /// Reads so many times in a second at most: a file or a piece of a long one, or some chunks of a repository together.
    #[arg(long, value_name = "COUNT", conflicts_with = "to")]
    pub(crate) limit_iops: Option<NonZeroU64>,
    /// The home of an instance that serves meanwhile: the save works less while its visitors wait longer than before.
    #[arg(long, value_name = "HOME")]
    pub(crate) beside: Option<PathBuf>,
    /// By when a save that gives way to visitors has to be through: `2h`.
    #[arg(long, value_name = "TIME", value_parser = parse_duration_arg, requires = "beside")]
    pub(crate) finish_within: Option<Duration>,
    /// Says nothing unless something is wrong.
    #[arg(long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Says more about the run.
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
    /// Only what is at this path of the snapshot.
    #[arg(long, default_value = "/", value_name = "PATH")]
    pub(crate) path: String,
    /// The folder to restore into.
    #[arg(long, value_name = "DIR", required_unless_present = "home")]
    pub(crate) to: Option<PathBuf>,
    /// The new home to make of a snapshot of a repository.
    #[arg(long, value_name = "DIR", conflicts_with = "to")]
    pub(crate) home: Option<PathBuf>,
    /// Replaces files that differ in a folder that is not empty; what the snapshot does not hold stays.
    #[arg(long)]
    pub(crate) in_place: bool,
    /// Removes what is in the folder and not in the snapshot.
    #[arg(long, requires = "in_place")]
    pub(crate) delete: bool,
    /// Restores only what fits, with the folders above it. Patterns are those of `save --exclude`, about paths as the snapshot
    /// has them.
    #[arg(short = 'i', long, value_name = "PATTERN", conflicts_with = "home")]
    pub(crate) include: Vec<String>,
    /// The same, whatever the case of letters.
    #[arg(long, value_name = "PATTERN", conflicts_with = "home")]
    pub(crate) iinclude: Vec<String>,
    /// Restores all but what fits.
    #[arg(
        short = 'e',
        long,
        value_name = "PATTERN",
        conflicts_with_all = ["home", "include", "iinclude"]
    )]
    pub(crate) exclude: Vec<String>,
    /// The same, whatever the case of letters.
    #[arg(long, value_name = "PATTERN", conflicts_with_all = ["home", "include", "iinclude"])]
    pub(crate) iexclude: Vec<String>,
    /// Where the base is now that a clone stood on when it was saved, if not where it was: a home's directory, or the URL of
    /// its instance.
    #[arg(long, value_name = "DIR|URL", requires = "home")]
    pub(crate) base: Option<String>,
    /// For a base at a URL: a file with the key that `tympan pair --purpose clone` made in its home.
    #[arg(long, value_name = "FILE", requires = "home")]
    pub(crate) key: Option<PathBuf>,
    /// For a base at a URL: a file with a token of its `tympan user token admin`.
    #[arg(long, value_name = "FILE", conflicts_with = "key", requires = "home")]
    pub(crate) token_file: Option<PathBuf>,
    /// For a base at an `https` URL: a PEM file with the certificate that must have signed that of the instance.
    #[arg(long, value_name = "FILE", requires = "home")]
    pub(crate) ca: Option<PathBuf>,
    /// Makes the home also without blobs that the snapshot lacks, and without the base that a clone stood on: it needs that
    /// to be started.
    #[arg(long, requires = "home")]
    pub(crate) allow_missing: bool,
    /// Takes a folder that a snapshot of a repository was restored into, by whatever program, or a plain copy, in place of a
    /// vault.
    #[arg(long, value_name = "DIR|FILE.zip", requires = "home")]
    pub(crate) unpacked: Option<PathBuf>,
}

/// A vault that is not needed for everything.
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
    /// A command that writes the password.
    #[arg(long, value_name = "COMMAND", conflicts_with = "password_file")]
    pub(crate) password_command: Option<String>,
    /// Waits so many seconds for others that use the vault.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) retry_lock: u64,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: VaultLocationArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CopySnapshotsArgs {
    /// The vault that they are copied to.
    #[command(flatten)]
    pub(crate) vault: VaultArgs,
    #[command(flatten)]
    pub(crate) clients: SnapshotClientArgs,
    /// The vault that they are copied from.
    #[arg(
        long,
        alias = "from-repo",
        value_name = "VAULT",
        env = "TYMPAN_FROM_VAULT",
        hide_env_values = true
    )]
    pub(crate) from_vault: String,
    /// A file whose first line is the password of that vault; without it, and without a command, it has the password of the
    /// other one.
    #[arg(long, value_name = "FILE")]
    pub(crate) from_password_file: Option<PathBuf>,
    /// A command that writes the password of that vault.
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
    /// Only these snapshots: `latest`, or the first digits of their ids; otherwise all of this client.
    pub(crate) snapshots: Vec<String>,
    /// Gives them these words in place of those that they have.
    #[arg(
        long,
        value_name = "WORD",
        conflicts_with_all = ["add", "remove"],
        required_unless_present_any = ["add", "remove"]
    )]
    pub(crate) set: Vec<String>,
    /// Gives them a word more.
    #[arg(long, value_name = "WORD")]
    pub(crate) add: Vec<String>,
    /// Takes a word from them.
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
    /// Keeps the last of so many hours, days, weeks, months and years in which there was one: `24h,7d,4w,12m,3y`. Counts
    /// for each client and each set of paths.
    #[arg(
        long,
        value_name = "RULE",
        conflicts_with = "snapshots",
        required_unless_present = "snapshots"
    )]
    pub(crate) keep: Option<String>,
    /// Keeps those with this word.
    #[arg(long, value_name = "WORD", requires = "keep")]
    pub(crate) keep_tag: Vec<String>,
    /// Tells what would go.
    #[arg(long, alias = "pretend")]
    pub(crate) dry_run: bool,
    /// Removes what no snapshot refers to any more.
    #[arg(long)]
    pub(crate) prune: bool,
    #[command(flatten)]
    pub(crate) grace: PruneGraceArgs,
}

/// How long what nobody needs stays.
#[derive(Debug, Args)]
pub(crate) struct PruneGraceArgs {
    /// Packs that nobody needs are marked, and removed by a prune so much later (`90min`, `23h`). `0s` removes at once,
    /// which is safe where all who save into the vault take locks, as Tympan and restic do.
    #[arg(long, value_name = "TIME", default_value = "23h", value_parser = parse_duration_arg)]
    pub(crate) grace: Duration,
}

fn parse_duration_arg(text: &str) -> Result<Duration, String> {
    let unknown = || format!("`{text}` is no time; write `90min`, `23h` or `0s`");
    crate::config::parse_span(text).ok_or_else(unknown)
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
