//! Retention: how many versions of a node are kept, and for how long.
//!
//! Always kept: labeled versions, the newest of each node, and the one that the node is based on. A node that is gone
//! keeps its newest version until that is too old.

use std::time::{Duration, SystemTime};

use tympan_store::{Map, Root};

use super::Version;
use super::entry::{Keys, Slot, Subject, VERSIONS, subject};
use crate::{Repository, Result, Revising, Session};

/// Versions that one commit takes away.
const STEP: usize = 1_000;

/// How long versions are kept; nothing stands for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRetention {
    /// Versions of one node. Default 50.
    pub max_count: Option<usize>,
    /// The age at which a version goes. Default none.
    pub max_age: Option<Duration>,
}

impl Default for VersionRetention {
    fn default() -> Self {
        Self { max_count: Some(50), max_age: None }
    }
}

/// What a purge has done, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Versions that were looked at.
    pub versions: usize,
    /// Versions that were taken away.
    pub removed: usize,
}

impl VersionRetention {
    /// Returns the versions of one node that go; they are given in the order in which they were kept.
    fn outdated<'a>(
        &self,
        versions: &'a [Version],
        is_gone: bool,
        now: SystemTime,
    ) -> Vec<&'a Version> {
        let surplus = self.max_count.map_or(0, |max| versions.len().saturating_sub(max.max(1)));
        let is_old = |version: &Version| {
            let age = now.duration_since(version.at).unwrap_or_default();
            self.max_age.is_some_and(|max| age > max)
        };
        let goes = |(at, version): &(usize, &Version)| {
            let is_last = at + 1 == versions.len();
            let is_needed = (is_last || version.is_base) && !(is_gone && is_old(version));
            let is_kept = !version.labels.is_empty() || is_needed;
            !is_kept && (*at < surplus || is_old(version))
        };
        versions.iter().enumerate().filter(goes).map(|(_, version)| version).collect()
    }
}

impl Repository {
    /// Takes away the versions that outlived their time, in commits of at most 1,000. Their states go with the next
    /// collection, unless something else holds them.
    ///
    /// # Errors
    /// If the store fails; what was taken away until then is gone.
    pub fn purge_versions(
        &self,
        retention: &VersionRetention,
        revising: Revising<'_>,
    ) -> Result<Purged> {
        let mut purged = Purged::default();
        if retention.max_count.is_none() && retention.max_age.is_none() {
            return Ok(purged);
        }
        let mut session = self.session(revising.user)?;
        let mut pending = 0;
        for history in self.histories()? {
            let view = session.snapshot()?;
            let versions = view.0.versions_of(&history)?;
            let place = view.0.history(&history)?.map(|history| history.path);
            let is_gone = match &place {
                Some(path) => {
                    let key = super::entry::place_key(path, &history);
                    match view.0.slot(&key)? {
                        Some(Slot::Place(standing)) => view.is_gone(path, &history, standing)?,
                        _ => false,
                    }
                }
                None => true,
            };
            drop(view);
            purged.versions += versions.len();
            for version in retention.outdated(&versions, is_gone, revising.at) {
                session.drop_version(version)?;
                pending += 1;
                purged.removed += 1;
            }
            if pending >= STEP {
                commit(&mut session, revising)?;
                pending = 0;
            }
        }
        commit(&mut session, revising)?;
        Ok(purged)
    }

    /// Returns the names of all histories, sorted.
    fn histories(&self) -> Result<Vec<String>> {
        let snapshot = self.snapshot()?;
        let reads = snapshot.0.shared.reads();
        let map: Map = Root::read(reads, &snapshot.0.root)?.map(VERSIONS);
        let range = Keys::of_histories();
        let mut histories = Vec::new();
        for entry in map.range(reads, range.bounds()) {
            let (key, _) = entry?;
            if let Subject::Version { history, name: "" } = subject(&key)? {
                histories.push(history.to_owned());
            }
        }
        Ok(histories)
    }
}

fn commit(session: &mut Session, revising: Revising<'_>) -> Result<()> {
    if session.has_changes()? {
        session.commit(revising.message, revising.at)?;
    }
    Ok(())
}
