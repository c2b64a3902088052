//! Assets and mounts.

use clap::Subcommand;

use super::RemoteInstanceArgs;

/// What `tympan assets` does.
#[derive(Debug, Subcommand)]
pub(crate) enum AssetsCommand {
    /// Places with files that are kept as assets.
    Mount {
        #[command(subcommand)]
        mount: AssetMountCommand,
    },
    /// Makes assets of the files of a place; asked for again, goes on where it was.
    #[command(
        after_help = "Example: tympan assets import /srv/press/2024 /content/dam/press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Import {
        /// Where the files are, in a place that the server's `tympan.toml` lists: `/folder`, `davs://…`, `s3://…`,
        /// `cmis+https://…`.
        source: String,
        /// The folder that gets them, below `/content/dam`.
        target: String,
        /// Writes nothing, and says what would be.
        #[arg(long)]
        dry_run: bool,
        /// Does not wait for the end.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lists assets whose files have the same bytes.
    #[command(
        after_help = "Example: tympan assets duplicates /content/dam/press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Duplicates {
        /// The folder to look in.
        #[arg(default_value = "/content/dam")]
        path: String,
        /// How many groups at most.
        #[arg(long, default_value_t = 1000)]
        limit: u32,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lists where an asset is used.
    #[command(
        after_help = "Example: tympan assets references /content/dam/press/a.jpg --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    References {
        /// The asset.
        path: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Switches on or off that edited metadata is written into the files.
    #[command(
        after_help = "Example: tympan assets write-back on --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    WriteBack {
        /// Whether it is on.
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

/// What `tympan assets mount` does.
#[derive(Debug, Subcommand)]
pub(crate) enum AssetMountCommand {
    /// Lists the mounts with what their last passes did.
    #[command(
        after_help = "Example: tympan assets mount list --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    List(RemoteInstanceArgs),
    /// Shows a mount, with the files that its last pass left out.
    #[command(
        after_help = "Example: tympan assets mount status press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Status {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Begins a pass now, also of a mount that is paused.
    #[command(
        after_help = "Example: tympan assets mount run press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Run {
        /// The mount.
        name: String,
        /// Believes that files are gone, however many.
        #[arg(long)]
        accept_removals: bool,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Ends the present pass after its batch, and begins no other.
    #[command(
        after_help = "Example: tympan assets mount pause press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Pause {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
    /// Lets passes begin again, the first at once.
    #[command(
        after_help = "Example: tympan assets mount resume press --url http://127.0.0.1:4502 --token \"$TOKEN\""
    )]
    Resume {
        /// The mount.
        name: String,
        #[command(flatten)]
        remote: RemoteInstanceArgs,
    },
}
