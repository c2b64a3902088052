//! The refs of branches and installed packages: their names, and their moves in a revision.

use std::time::SystemTime;

use tympan_store::{ChunkBatch, ChunkId, RefUpdate};

/// The branch that visitors and authors see.
pub(crate) const MAIN_BRANCH: &str = "main";
/// The prefix of refs to the base states of branches.
pub(crate) const BASE_REF_PREFIX: &str = "base/";
/// The prefix of refs to content that installations replaced.
pub(crate) const REPLACED_REF_PREFIX: &str = "package/";

/// The user, message and time of a revision.
#[derive(Debug, Clone, Copy)]
pub struct RevisionDetails<'a> {
    /// The user.
    pub user: &'a str,
    /// The message in the history.
    pub message: &'a str,
    /// The time.
    pub time: SystemTime,
}

/// Stages moves of refs, except those that stay the same.
pub(crate) fn stage_ref_moves<const N: usize>(
    batch: &mut ChunkBatch,
    moves: [(&str, Option<ChunkId>, Option<ChunkId>); N],
    revising: RevisionDetails<'_>,
) {
    for (name, expected, new) in moves {
        if expected == new {
            continue;
        }
        batch.add_ref_update(RefUpdate {
            name: name.to_owned(),
            expected_root: expected,
            new_root: new,
            updated_at: revising.time,
            author: revising.user.to_owned(),
            message: revising.message.to_owned(),
        });
    }
}

/// Returns the name of the base ref of a branch for merges into another one.
pub(crate) fn base_ref_name(name: &str, into: &str) -> String {
    // No branch name contains `@`.
    if into == MAIN_BRANCH {
        format!("{BASE_REF_PREFIX}{name}")
    } else {
        format!("{BASE_REF_PREFIX}{name}@{into}")
    }
}

/// Returns the two branches of a base ref.
pub(super) fn base_ref_branches(base: &str) -> (&str, &str) {
    let names = base.strip_prefix(BASE_REF_PREFIX).unwrap_or(base);
    names.split_once('@').unwrap_or((names, MAIN_BRANCH))
}
