//! The users of a mount.

/// The users with access to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountAccess {
    /// The user who mounted it, who may read everything.
    #[default]
    Owner,
    /// All users of the machine, subject to owners and modes.
    All,
}
