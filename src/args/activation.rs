//! Activating and deactivating.

use clap::Args;

use super::RemoteInstanceArgs;

/// What `tympan activate` is told.
#[derive(Debug, Args)]
pub(crate) struct ActivateArgs {
    /// The pages, assets, tags or folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    /// Activates all below them, too.
    #[arg(long)]
    pub(crate) deep: bool,
    /// Activates what visitors lack of that which they refer to, before them: assets, fragments, tags, templates, policies.
    #[arg(long)]
    pub(crate) companions: bool,
    /// Changes nothing, and lists what they refer to, with what visitors have of it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) remote: RemoteInstanceArgs,
}

/// What `tympan deactivate` is told.
#[derive(Debug, Args)]
pub(crate) struct DeactivateArgs {
    /// The pages, assets, tags or folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteInstanceArgs,
}
