//! The headings of options in the help.

pub(super) const INSTANCE: &str = "Instance";
pub(super) const CONNECTION: &str = "Connection to the vault";
pub(super) const REPOSITORIES: &str = "Repositories";
pub(super) const SNAPSHOTS: &str = "Snapshots";
pub(super) const SELECTION: &str = "Selection of files";
pub(super) const LIMITS: &str = "Limits";
