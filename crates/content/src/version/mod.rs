//! Versions: states of one node that a user chose to keep.
//!
//! In: a node of a session (check-in), a version's name or label (restore). Out: [`NodeVersion`]s, and their content as
//! a [`Subtree`](crate::Subtree) or as a [`Snapshot`](crate::Snapshot) that shows the node as it was.
//!
//! Invariants
//! * A version is the hash of the stored document, so a check-in copies nothing, and equal states are stored once.
//! * The map `versions` is content: it is part of commits, branches, clones and backups, collections retain what it
//!   references, and a repair salvages it. `docs/formats/versions.md` specifies the bytes.
//! * A history moves with its node, and stays at the path when the node is deleted.
//! * Only [`Session::remove_version`](crate::Session::remove_version) and a purge remove a version: a merge keeps those
//!   of both sides, a revert keeps the newer ones.
//!
//! Not here: the history of a whole branch (`branch`, `launch`).

mod check_in;
mod checked_in;
mod history;
mod history_move;
mod purge;
mod restore;
mod version_entry;
mod version_merge;
mod version_visibility;

use std::time::SystemTime;

pub use check_in::LabelConflictPolicy;
pub(crate) use checked_in::{CheckInBypass, IS_CHECKED_OUT, is_read_only};
pub use history::DeletedNode;
pub use purge::{VersionPurgeReport, VersionRetention};
pub(crate) use version_entry::VERSIONS_MAP;
pub(crate) use version_merge::{VersionEdits, merge_version_edits, version_edits_between};
pub(crate) use version_visibility::check_version_privilege;

use crate::NodePath;
use version_entry::StoredVersion;

/// A state of one node that a user chose to keep.
#[derive(Debug, Clone)]
pub struct NodeVersion {
    /// The name: `1.0`, `1.1`, …
    pub name: String,
    /// The path of the node at that time.
    pub path: NodePath,
    /// The time of creation.
    pub created_at: SystemTime,
    /// The user who created the version.
    pub user: String,
    /// The comment of the user.
    pub comment: String,
    /// The labels, sorted.
    pub labels: Vec<String>,
    /// The version on which the node was based; `None` for the first.
    pub predecessor: Option<String>,
    /// True if the node is based on this version: the last one created or restored.
    pub is_base: bool,
    /// The history of the version: the node's identifier, or the path where the node was first checked in.
    pub history_id: String,
    stored_version: StoredVersion,
}

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
