//! Histories go with their nodes when these move.

use super::entry::{
    History, Keys, Slot, Standing, Subject, is_of_path, place_key, subject, version_key,
};
use crate::{NodePath, Result, Session};

impl Session {
    /// Returns where histories are that move with a node: its own, and those of everything below it.
    pub(crate) fn histories_from(&mut self, from: &NodePath) -> Result<Vec<(Vec<u8>, Slot)>> {
        let snapshot = self.whole()?;
        let mut places = snapshot.0.slots(&Keys::at(from))?;
        if !places.is_empty() {
            let own = snapshot.history_at(from)?;
            places.retain(|(key, _)| {
                matches!(subject(key), Ok(Subject::Place { history, .. }) if own.as_deref() == Some(history))
            });
        }
        places.extend(snapshot.0.slots(&Keys::below(from))?);
        Ok(places)
    }

    /// Takes histories along with a node that has moved.
    pub(crate) fn move_histories(
        &mut self,
        histories: Vec<(Vec<u8>, Slot)>,
        from: &NodePath,
        to: &NodePath,
    ) -> Result<()> {
        for (key, slot) in histories {
            let (Subject::Place { path, history }, Slot::Place(standing)) = (subject(&key)?, slot)
            else {
                continue;
            };
            let Some(target) = NodePath::new(path)?.rebased(from, to) else { continue };
            let (target, id) = (NodePath::new(target.as_str())?, history.to_owned());
            if standing == Standing::Current {
                self.end_histories_at(&target)?;
            }
            let view = self.edits();
            let known = view.history(&id)?;
            view.versions.insert(place_key(&target, &id), Some(Slot::Place(standing)));
            if let Some(history) = known {
                let history = History { path: target, ..history };
                view.versions.insert(version_key(&id, ""), Some(Slot::History(history)));
            }
            view.versions.insert(key, None);
        }
        Ok(())
    }

    /// Ends the histories of deleted nodes at a path that another node with a history comes to.
    fn end_histories_at(&mut self, path: &NodePath) -> Result<()> {
        for (key, _) in self.edits().slots(&Keys::at(path))? {
            if matches!(subject(&key)?, Subject::Place { history, .. } if is_of_path(history)) {
                self.edits().versions.insert(key, Some(Slot::Place(Standing::Ended)));
            }
        }
        Ok(())
    }
}
