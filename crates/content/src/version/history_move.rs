//! Moving version histories along with their nodes.

use super::version_entry::{
    HistoryStatus, VersionHistory, VersionKeyRange, VersionMapEntry, VersionMapKey,
    is_path_history, parse_version_key, path_history_key, version_key,
};
use crate::{NodePath, Result, Session};

impl Session {
    /// Returns the locations of the histories that move with a node: its own, and those of everything below it.
    pub(crate) fn histories_from(
        &mut self,
        from: &NodePath,
    ) -> Result<Vec<(Vec<u8>, VersionMapEntry)>> {
        let snapshot = self.unrestricted_snapshot()?;
        let mut entries = snapshot.view.version_entries(&VersionKeyRange::at_path(from))?;
        if !entries.is_empty() {
            let own = snapshot.history_at(from)?;
            entries.retain(|(key, _)| {
                matches!(parse_version_key(key), Ok(VersionMapKey::PathHistory { history, .. }) if own.as_deref() == Some(history))
            });
        }
        entries.extend(snapshot.view.version_entries(&VersionKeyRange::below_path(from))?);
        Ok(entries)
    }

    /// Moves the histories of a node that has moved.
    pub(crate) fn move_histories(
        &mut self,
        histories: Vec<(Vec<u8>, VersionMapEntry)>,
        from: &NodePath,
        to: &NodePath,
    ) -> Result<()> {
        for (key, slot) in histories {
            let (
                VersionMapKey::PathHistory { path, history },
                VersionMapEntry::PathHistory(status),
            ) = (parse_version_key(&key)?, slot)
            else {
                continue;
            };
            let Some(target) = NodePath::new(path)?.rebase(from, to) else { continue };
            let (target, id) = (NodePath::new(target.as_str())?, history.to_owned());
            if status == HistoryStatus::Current {
                self.end_histories_at(&target)?;
            }
            let view = self.pending_view_mut();
            let stored_history = view.version_history(&id)?;
            view.version_edits
                .insert(path_history_key(&target, &id), Some(VersionMapEntry::PathHistory(status)));
            if let Some(history) = stored_history {
                let history = VersionHistory { path: target, ..history };
                view.version_edits
                    .insert(version_key(&id, ""), Some(VersionMapEntry::History(history)));
            }
            view.version_edits.insert(key, None);
        }
        Ok(())
    }

    /// Ends the histories of deleted nodes at a path to which another node with a history moves.
    fn end_histories_at(&mut self, path: &NodePath) -> Result<()> {
        for (key, _) in self.pending_view_mut().version_entries(&VersionKeyRange::at_path(path))? {
            if matches!(parse_version_key(&key)?, VersionMapKey::PathHistory { history, .. } if is_path_history(history))
            {
                self.pending_view_mut()
                    .version_edits
                    .insert(key, Some(VersionMapEntry::PathHistory(HistoryStatus::Ended)));
            }
        }
        Ok(())
    }
}
