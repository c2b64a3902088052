//! Activating and deactivating.

use clap::Args;

use super::Remote;

/// What `tympan activate` is told.
#[derive(Debug, Args)]
pub(crate) struct Activate {
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
    pub(crate) remote: Remote,
}

/// What `tympan deactivate` is told.
#[derive(Debug, Args)]
pub(crate) struct Deactivate {
    /// The pages, assets, tags or folders.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<String>,
    #[command(flatten)]
    pub(crate) remote: Remote,
}
