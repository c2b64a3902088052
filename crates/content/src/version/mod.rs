//! Versions: states of one node that a user chose to keep.
//!
//! In: a node of a session (check-in), a version's name or label (restore). Out: [`NodeVersion`](crate::NodeVersion)s, and their content
//! as a [`Subtree`](crate::Subtree) or as a [`Snapshot`](crate::Snapshot) that shows the node as it was.
//!
//! Invariants
//! * A version is the hash of the stored document, so a check-in copies nothing, and equal states are stored once.
//! * The map `versions` is content: it is part of commits, branches, clones and backups, collections retain what it
//!   references, and a repair salvages it. `docs/formats/versions.md` specifies the bytes.
//! * A history moves with its node, and stays at the path when the node is deleted.
//! * Only [`VersionEditor::remove_version`](crate::Session::remove_version) and a purge remove a version: a merge keeps those
//!   of both sides, a revert keeps the newer ones.
//!
//! Not here: the history of a whole branch (`branch`, `launch`).

pub(crate) mod check_in;
pub(crate) mod checked_in;
pub(crate) mod history;
mod history_move;
mod installed_check_in;
pub(crate) mod purge;
mod restore;
pub(crate) mod version_entry;
pub(crate) mod version_merge;
mod version_name;
pub(crate) mod version_visibility;

use std::time::SystemTime;

/// The options of a check-in.
#[derive(Debug, Clone, Copy)]
pub struct CheckInOptions<'a> {
    /// The comment; may be empty.
    pub comment: &'a str,
    /// The time of the check-in.
    pub created_at: SystemTime,
    /// The state of the node afterwards.
    pub check_out_state: CheckOutState,
}

/// The state of a node after a check-in or restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutState {
    /// The node can be changed, as after AEM's *Create version* and JCR's `checkpoint`.
    CheckedOut,
    /// The node is read-only until it is checked out, as after JCR's `checkin` and `restore`. Only for
    /// `mix:versionable`.
    CheckedIn,
}
