//! Versions: states of one node that a user chose to keep.
//!
//! In: a node of a session (check-in), a version's name or label (restore). Out: [`NodeVersion`]s, and what they hold as a
//! [`Subtree`](crate::Subtree) or as a [`Snapshot`](crate::Snapshot) that shows the node as it was.
//!
//! Invariants
//! * A version is the hash of the stored document, so a check-in copies nothing, and equal states are stored once.
//! * The map `versions` is content: commits, branches, clones and backups carry it, collections keep what it names, and
//!   a repair salvages it. `docs/formats/versions.md` gives the bytes.
//! * A history stays with its node when that moves, and stays where it was when the node is deleted.
//! * Nothing but [`Session::remove_version`](crate::Session::remove_version) and a purge takes a version away: a merge
//!   keeps those of both sides, a revert those that are newer.
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
    /// Its name: `1.0`, `1.1`, …
    pub name: String,
    /// Where the node was.
    pub path: NodePath,
    /// When it was kept.
    pub created_at: SystemTime,
    /// Who kept it.
    pub user: String,
    /// Why.
    pub comment: String,
    /// Its labels, sorted.
    pub labels: Vec<String>,
    /// The version that the node was based on; nothing for the first.
    pub predecessor: Option<String>,
    /// Whether the node is based on this version: the last one kept or restored.
    pub is_base: bool,
    /// The history that it belongs to: the node's identifier, or the path where the node was first checked in.
    pub history_id: String,
    stored_version: StoredVersion,
}

/// What a check-in notes, and what becomes of the node.
#[derive(Debug, Clone, Copy)]
pub struct CheckInOptions<'a> {
    /// Why; may be empty.
    pub comment: &'a str,
    /// When.
    pub created_at: SystemTime,
    /// Whether the node can be changed afterwards.
    pub check_out_state: CheckOutState,
}

/// Whether a node can be changed after a check-in or restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckOutState {
    /// It can, as after AEM's *Create version* and JCR's `checkpoint`.
    CheckedOut,
    /// It is read-only until it is checked out, as after JCR's `checkin` and `restore`. Only for `mix:versionable`.
    CheckedIn,
}
