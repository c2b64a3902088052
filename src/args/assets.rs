//! Arguments of `tympan assets`: assets and mounts.

use clap::Subcommand;

use super::instance_location::RemoteInstanceArgs;

/// The subcommands of `tympan assets`.
#[derive(Debug, Subcommand)]
pub(crate) enum AssetsCommand {
    /// Manages mounts: external locations whose files appear as assets.
    Mount {
        #[command(subcommand)]
        mount: AssetMountCommand,
    },
    /// Imports the files of a location as assets; run again, it resumes an interrupted import.
    #[command(
        after_help = "Example: tympan assets import /srv/press/2024 /content/dam/press --url http://127.0.0.1:4502 --token-file token"
    )]
    Import {
        /// The location of the files, which the server's `tympan.toml` must list: `/folder`, `davs://…`, `s3://…`,
        /// `cmis+https://…`.
        source: String,
        /// The target folder, below `/content/dam`.
        target: String,
        /// Writes nothing; prints what an import would do.
        #[arg(long)]
        dry_run: bool,
        /// Returns at once, without waiting for the import to end.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lists assets whose files have the same bytes.
    #[command(
        after_help = "Example: tympan assets duplicates /content/dam/press --url http://127.0.0.1:4502 --token-file token"
    )]
    Duplicates {
        /// The folder to search.
        #[arg(default_value = "/content/dam")]
        path: String,
        /// The maximum number of groups.
        #[arg(long, value_name = "COUNT", default_value_t = 1000)]
        limit: u32,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lists the places where an asset is used.
    #[command(
        after_help = "Example: tympan assets references /content/dam/press/a.jpg --url http://127.0.0.1:4502 --token-file token"
    )]
    References {
        /// The asset.
        path: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Switches the write-back of edited metadata into the files on or off.
    #[command(
        after_help = "Example: tympan assets write-back on --url http://127.0.0.1:4502 --token-file token"
    )]
    WriteBack {
        /// The new state.
        switch: OnOffSwitch,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnOffSwitch {
    On,
    Off,
}

/// The subcommands of `tympan assets mount`.
#[derive(Debug, Subcommand)]
pub(crate) enum AssetMountCommand {
    /// Lists the mounts with the results of their last passes.
    #[command(
        after_help = "Example: tympan assets mount list --url http://127.0.0.1:4502 --token-file token"
    )]
    List(RemoteInstanceArgs),
    /// Shows a mount, with the files that its last pass skipped.
    #[command(
        after_help = "Example: tympan assets mount status press --url http://127.0.0.1:4502 --token-file token"
    )]
    Status {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Starts a pass now, even if the mount is paused.
    #[command(
        after_help = "Example: tympan assets mount run press --url http://127.0.0.1:4502 --token-file token"
    )]
    Run {
        /// The mount.
        name: String,
        /// Accepts any number of missing files as removed.
        #[arg(long)]
        accept_removals: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Stops the current pass after its batch, and starts no other until resumed.
    #[command(
        after_help = "Example: tympan assets mount pause press --url http://127.0.0.1:4502 --token-file token"
    )]
    Pause {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Resumes passes, and starts the first at once.
    #[command(
        after_help = "Example: tympan assets mount resume press --url http://127.0.0.1:4502 --token-file token"
    )]
    Resume {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
}
