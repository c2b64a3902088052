//! The commit of a session: its permissions are checked, its edits are committed, and refusals are limited to what the
//! viewer may know.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tympan_store::ChunkId;

use super::Session;
use crate::access::{CommitPermission, ErrorRedactor, SessionChanges};
use crate::commit::commit_details::{CommitChecks, CommitDetails};
use crate::commit::{CommitConditions, commit_edits};
use crate::{Error, MergeConflict, Result};

impl Session {
    /// Commits the pending edits as a new revision, merged onto the commits of other sessions since, and continues from
    /// there. Without edits, nothing is written.
    ///
    /// # Errors
    /// [`Error::Conflicts`] with all conflicts; [`Error::ConstraintViolations`] with everything that breaks a rule of
    /// node types, names or references; errors of the store. The edits stay pending.
    pub fn commit(&mut self, message: &str, at: SystemTime) -> Result<ChunkId> {
        self.write_back_edited_document()?;
        if self.commit_checks == CommitChecks::Package {
            self.check_in_installed(&self.base.clone(), message, at)?;
            self.write_back_edited_document()?;
        }
        let changes = SessionChanges {
            base_snapshot: &self.base,
            pending_snapshot: &self.pending,
            moves: &self.moves,
        };
        let permission = CommitPermission::check(&self.repository, changes, &self.viewer)?;
        self.check_in_bypass.check_edits(&self.base, &self.pending, &self.moves)?;
        let versions = &self.pending.view.version_edits;
        let (moves, replication) = (&self.moves, self.replication_changes.as_ref());
        let user = &self.user;
        let change =
            CommitDetails { user, message, time: at, version_edits: versions, moves, replication };
        let edits = &self.pending.view.record_edits;
        let conditions =
            CommitConditions { guarded_keys: &self.guarded_keys, permission: &permission };
        let done = commit_edits(&self.base, edits, &conditions, &change, self.commit_checks);
        let root = done.map_err(|error| self.redact_error(error))?;
        self.guarded_keys.clear();
        self.base = self.repository.snapshot_at(root)?;
        self.reset_pending();
        Ok(root)
    }

    /// Returns the reason for which a commit was rejected, limited to what the viewer may know.
    fn redact_error(&self, error: Error) -> Error {
        if self.access_gate.is_none() {
            return error;
        }
        match self.repository.snapshot() {
            Ok(head) => {
                let viewer_snapshots =
                    [&self.base, &head].map(|snapshot| snapshot.as_viewer(&self.viewer));
                let mut error = ErrorRedactor(viewer_snapshots).redact_error(error);
                if let Error::Conflicts(conflicts) = &mut error {
                    self.redact_conflict_messages(conflicts);
                }
                error
            }
            Err(error) => error,
        }
    }

    /// Removes the messages of revisions from conflicts, unless the viewer may know of everything that these revisions
    /// changed.
    fn redact_conflict_messages(&self, conflicts: &mut [MergeConflict]) {
        let mut message_by_revision = BTreeMap::new();
        for changed in conflicts.iter_mut().filter_map(|conflict| conflict.last_change.as_mut()) {
            let revision = changed.revision;
            let message = message_by_revision.entry(revision).or_insert_with(|| {
                self.repository.visible_message(&self.viewer, revision).unwrap_or_default()
            });
            changed.message.clone_from(message);
        }
    }
}
