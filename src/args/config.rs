//! Arguments of `tympan config`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Prints every setting: its value, where it comes from (default, file, environment, option), and what it is for.
    #[command(
        after_help = "Examples:\n  tympan config show --home /srv/author\n  tympan config show --home /srv/author \
            --changed --listen 127.0.0.1:4600\n\nThe options of the roles say what an instance that is started with \
            them uses. Passwords and keys are not printed."
    )]
    Show(ConfigShowArgs),
    /// Checks a tympan.toml: its keys, its values, and the files that it names.
    #[command(after_help = "Example: tympan config check --home /srv/author")]
    Check {
        #[command(flatten)]
        source: ConfigSourceArgs,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Explains a key or a section: type, default, and when to change it.
    #[command(after_help = "Example: tympan config explain listen.max_body")]
    Explain {
        /// The key, such as `listen.max_body`, or a section, such as `listen`.
        key: String,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// The file that is read.
#[derive(Debug, Args)]
#[group(required = false, multiple = false)]
pub(crate) struct ConfigSourceArgs {
    /// The home, whose tympan.toml is read.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The file, instead of that of a home.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) settings: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigShowArgs {
    #[command(flatten)]
    pub(crate) source: ConfigSourceArgs,
    /// Prints only settings that are not the default.
    #[arg(long)]
    pub(crate) changed: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// As of the roles: the listen address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// As of the roles: the address of the second listener.
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// As of the roles: the database.
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    /// As of the roles: the bucket for large blobs.
    #[arg(long, value_name = "URL")]
    pub(crate) blobs: Option<String>,
}
