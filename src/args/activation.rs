//! Arguments of `tympan activate` and `tympan deactivate`.

use clap::Args;

use super::instance_location::RemoteInstanceArgs;

/// Arguments of `tympan activate`.
#[derive(Debug, Args)]
pub(crate) struct ActivateArgs {
    /// The pages, assets, tags or folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    /// Activates everything below them as well.
    #[arg(long)]
    pub(crate) deep: bool,
    /// Activates the resources that they refer to and that the publish instances lack, before them: assets, fragments,
    /// tags, templates, policies.
    #[arg(long)]
    pub(crate) companions: bool,
    /// Changes nothing; lists the resources that they refer to, with their publication state.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) remote: RemoteInstanceArgs,
}

/// Arguments of `tympan deactivate`.
#[derive(Debug, Args)]
pub(crate) struct DeactivateArgs {
    /// The pages, assets, tags or folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: RemoteInstanceArgs,
}
