//! How a command names the home or the running instance that it works on, and its login there.

use std::path::PathBuf;

use clap::Args;

use super::heading;

/// The credentials for a running instance.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct InstanceLoginArgs {
    /// A user's name and password; the environment variable is safer.
    #[arg(
        long,
        value_name = "USER:PASSWORD",
        env = "TYMPAN_LOGIN",
        hide_env_values = true,
        help_heading = heading::INSTANCE
    )]
    pub(crate) login: Option<String>,
    /// A file with a token of `tympan user token`, instead of a name and a password.
    #[arg(long, value_name = "FILE", help_heading = heading::INSTANCE)]
    pub(crate) token_file: Option<PathBuf>,
    /// A token of `tympan user token`. Other users of the machine can read it in the list of processes.
    #[arg(
        long,
        hide = true,
        value_name = "TOKEN",
        conflicts_with = "token_file",
        help_heading = heading::INSTANCE
    )]
    pub(crate) token: Option<String>,
}

/// A home, or a running instance.
#[derive(Debug, Args)]
pub(crate) struct HomeOrUrlArgs {
    /// The home; its instance must not be running.
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "url",
        conflicts_with = "url",
        help_heading = heading::INSTANCE
    )]
    pub(crate) home: Option<PathBuf>,
    /// The running instance, instead of a home.
    #[arg(long, value_name = "URL", help_heading = heading::INSTANCE)]
    pub(crate) url: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: InstanceLoginArgs,
}

/// A home, or a running instance, and the output format.
#[derive(Debug, Args)]
pub(crate) struct HomeOrInstanceArgs {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) location: HomeOrUrlArgs,
}

impl HomeOrInstanceArgs {
    /// Returns the running instance that the arguments name, if any.
    pub(crate) fn remote(&self) -> Option<RemoteInstanceArgs> {
        Some(RemoteInstanceArgs { json: self.json, ..self.location.remote()? })
    }
}

impl HomeOrUrlArgs {
    /// Returns the running instance that the arguments name, if any.
    pub(crate) fn remote(&self) -> Option<RemoteInstanceArgs> {
        let (url, credentials) = (self.url.clone()?, self.credentials.clone());
        Some(RemoteInstanceArgs { json: false, url, credentials })
    }
}

/// Options of `tympan status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) remote: RemoteInstanceArgs,
    /// Writes an archive for support instead: versions, health, metrics, settings, findings of `doctor`, sizes and the
    /// ends of the logs, without secrets. The file must not exist.
    #[arg(long, value_name = "FILE.zip", requires = "home", conflicts_with = "json")]
    pub(crate) bundle: Option<PathBuf>,
    /// For the archive: the home of the instance, on this machine.
    #[arg(long, value_name = "DIR", requires = "bundle")]
    pub(crate) home: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct RemoteInstanceArgs {
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The running instance.
    #[arg(long, value_name = "URL", help_heading = heading::INSTANCE)]
    pub(crate) url: String,
    #[command(flatten)]
    pub(crate) credentials: InstanceLoginArgs,
}
