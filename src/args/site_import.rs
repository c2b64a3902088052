//! Arguments of `tympan site import`.

use std::path::PathBuf;

use clap::Args;

use super::heading;
use super::instance_location::{InstanceLoginArgs, RemoteInstanceArgs};

#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan site import ./my-project --url http://127.0.0.1:4502 --token-file token\n\nA folder \
        may be a Maven project: its `target/*.zip` are used, or its `jcr_root` folders if nothing was built. Packages \
        and bundles within packages are read, too. Each package is one commit, and so is each repoinit script; what \
        was done before a failure stays, and a second run goes on from there."
)]
pub(crate) struct SiteImportArgs {
    /// Content packages, bundles (`.jar`), repoinit texts (`.repoinit`, `.txt`), and folders with any of them.
    #[arg(required = true, value_name = "DIR|FILE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Changes nothing; shows what would be done, and the report. Needs neither a home nor an instance.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The run modes that select folders such as `config.author.prod`; default `author` and those of the home's
    /// `[jobs] run_modes`.
    #[arg(long = "runmode", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) run_modes: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The home; its instance must not be running, and must have been started once.
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present_any = ["url", "dry_run"],
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

impl SiteImportArgs {
    /// Returns the running instance that the arguments name, if any.
    pub(crate) fn remote(&self) -> Option<RemoteInstanceArgs> {
        let (url, credentials) = (self.url.clone()?, self.credentials.clone());
        Some(RemoteInstanceArgs { json: self.json, url, credentials })
    }
}
