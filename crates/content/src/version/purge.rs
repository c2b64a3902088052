//! Retention of versions: the maximum number per node, and the maximum age.
//!
//! Always retained: labeled versions, the newest of each node, and the one on which the node is based. A deleted node
//! retains its newest version until that exceeds the maximum age.

use std::time::{Duration, SystemTime};

use tympan_store::{SortedMap, StoreRoot};

use super::version_entry::{
    NodeVersion, VERSIONS_MAP, VersionKeyRange, VersionMapEntry, VersionMapKey, parse_version_key,
};
use crate::{Repository, Result, RevisionDetails, Session};

/// The maximum number of versions that one commit removes.
const PURGE_BATCH_SIZE: usize = 1_000;

/// The retention limits of versions; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRetention {
    /// The maximum number of versions of one node. Default 50.
    pub max_count: Option<usize>,
    /// The maximum age of a version. Default none.
    pub max_age: Option<Duration>,
}

impl Default for VersionRetention {
    fn default() -> Self {
        Self { max_count: Some(50), max_age: None }
    }
}

/// The result of a purge, or of a dry run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VersionPurgeReport {
    /// The number of versions examined.
    pub version_count: usize,
    /// The number of versions removed.
    pub removed_count: usize,
}

impl VersionRetention {
    /// Returns the versions of one node to remove; the input is in the order of creation.
    fn outdated_versions<'a>(
        &self,
        versions: &'a [NodeVersion],
        is_gone: bool,
        now: SystemTime,
    ) -> Vec<&'a NodeVersion> {
        let surplus = self.max_count.map_or(0, |max| versions.len().saturating_sub(max.max(1)));
        let is_old = |version: &NodeVersion| {
            let age = now.duration_since(version.created_at).unwrap_or_default();
            self.max_age.is_some_and(|max| age > max)
        };
        let goes = |(at, version): &(usize, &NodeVersion)| {
            let is_last = at + 1 == versions.len();
            let is_needed = (is_last || version.is_base) && !(is_gone && is_old(version));
            let is_kept = !version.labels.is_empty() || is_needed;
            !is_kept && (*at < surplus || is_old(version))
        };
        versions.iter().enumerate().filter(goes).map(|(_, version)| version).collect()
    }
}

impl Repository {
    /// Removes the versions that exceed the retention limits, in commits of at most 1,000. The next collection frees
    /// their states, unless something else references them.
    ///
    /// # Errors
    /// If the store fails; versions removed before the failure stay removed.
    pub fn purge_versions(
        &self,
        retention: &VersionRetention,
        revising: RevisionDetails<'_>,
    ) -> Result<VersionPurgeReport> {
        let mut purged = VersionPurgeReport::default();
        if retention.max_count.is_none() && retention.max_age.is_none() {
            return Ok(purged);
        }
        let mut session = self.session(revising.user)?;
        let mut pending = 0;
        for history in self.history_names()? {
            let view = session.snapshot()?;
            let versions = view.view.history_versions(&history)?;
            let history_path = view.view.version_history(&history)?.map(|history| history.path);
            let is_gone = match &history_path {
                Some(path) => {
                    let key = super::version_entry::path_history_key(path, &history);
                    match view.view.version_entry(&key)? {
                        Some(VersionMapEntry::PathHistory(status)) => {
                            view.is_deleted(path, &history, status)?
                        }
                        _ => false,
                    }
                }
                None => true,
            };
            drop(view);
            purged.version_count += versions.len();
            for version in retention.outdated_versions(&versions, is_gone, revising.time) {
                session.versions().remove_version_entries(version)?;
                pending += 1;
                purged.removed_count += 1;
            }
            if pending >= PURGE_BATCH_SIZE {
                commit_purge(&mut session, revising)?;
                pending = 0;
            }
        }
        commit_purge(&mut session, revising)?;
        Ok(purged)
    }

    /// Returns the names of all histories, sorted.
    fn history_names(&self) -> Result<Vec<String>> {
        let snapshot = self.snapshot()?;
        let reads = snapshot.view.repository_state.chunk_reader();
        let map: SortedMap = StoreRoot::read(reads, &snapshot.view.root_id)?.map(VERSIONS_MAP);
        let range = VersionKeyRange::of_histories();
        let mut histories = Vec::new();
        for entry in map.range(reads, range.bounds()) {
            let (key, _) = entry?;
            if let VersionMapKey::Version { history, name: "" } = parse_version_key(&key)? {
                histories.push(history.to_owned());
            }
        }
        Ok(histories)
    }
}

fn commit_purge(session: &mut Session, revising: RevisionDetails<'_>) -> Result<()> {
    if session.has_changes()? {
        session.commit(revising.message, revising.time)?;
    }
    Ok(())
}
