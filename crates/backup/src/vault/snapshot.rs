//! Snapshots: finished backups.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::Vault;
use crate::backend::VaultFileKind;
use crate::error::{Error, Result};
use crate::object_id::VaultObjectId;

/// The tag of a snapshot that lacks parts of what was saved.
pub(crate) const INCOMPLETE_TAG: &str = "incomplete";

/// What the tag of a snapshot of a repository begins with that names its root.
const ROOT_TAG_PREFIX: &str = "root:";

/// What the tag of a snapshot of a repository begins with that names what is saved beside its root: branches, and files of the
/// home.
pub(crate) const EXTRAS_TAG_PREFIX: &str = "beside:";

/// Tells whether a tag says something to programs only: which root a snapshot has, what else, and how its files are cut.
#[must_use]
pub fn is_internal_tag(tag: &str) -> bool {
    tag.starts_with(ROOT_TAG_PREFIX)
        || tag.starts_with(EXTRAS_TAG_PREFIX)
        || tag.starts_with("layout:")
}

/// Whose snapshots count, where a name stands for more than one or all are gone through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFilter {
    /// Those of all who share the vault.
    All,
    /// Those of the clients with these names: the hosts' names, unless a save was told another one.
    Named(Vec<String>),
}

impl ClientFilter {
    /// Tells whether a snapshot counts.
    #[must_use]
    pub fn includes(&self, snapshot: &VaultSnapshot) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(&snapshot.hostname),
        }
    }
}

/// A finished backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VaultSnapshot {
    /// When it was begun, with the offset of whoever made it.
    pub time: String,
    /// The snapshot that it was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<VaultObjectId>,
    /// The snapshot that somebody made this one of, as restic does to mend, tag or copy one. This may lack what that had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<VaultObjectId>,
    /// The topmost folder.
    pub tree: VaultObjectId,
    /// What was saved.
    pub paths: Vec<String>,
    /// The host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The user's number.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uid: u32,
    /// The number of the user's group.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gid: u32,
    /// What was left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excludes: Vec<String>,
    /// Words that people, or Tympan, gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// What made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program_version: String,
    /// The name of its file.
    #[serde(skip)]
    pub id: VaultObjectId,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl VaultSnapshot {
    /// Returns when it was begun.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.time.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns the tags.
    #[must_use]
    pub fn tags(&self) -> &[String] {
        self.tags.as_deref().unwrap_or_default()
    }

    /// Tells whether the snapshot lacks parts of what was saved. No later one of a repository takes anything over from
    /// it; one of folders looks at each file anyway, and reads what is missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.tags().iter().any(|tag| tag == INCOMPLETE_TAG)
    }

    /// Returns the root of the content repository that was saved, if one was.
    #[must_use]
    pub fn repository_root(&self) -> Option<&str> {
        self.tags().iter().find_map(|tag| tag.strip_prefix(ROOT_TAG_PREFIX))
    }
}

/// Says that none of the snapshots counts.
fn client_missing_error(clients: &ClientFilter, all: &[VaultSnapshot]) -> Error {
    let others: BTreeSet<&str> = all.iter().map(|one| one.hostname.as_str()).collect();
    match clients {
        ClientFilter::Named(names) if !others.is_empty() => Error::ClientMissing {
            names: names.join("`, `"),
            others: others.into_iter().collect::<Vec<_>>().join("`, `"),
        },
        _ => Error::SnapshotMissing { name: "latest".to_owned() },
    }
}

impl Vault {
    /// Returns all snapshots, oldest first.
    ///
    /// # Errors
    /// A failed read, or a damaged snapshot.
    pub fn read_snapshots(&self) -> Result<Vec<VaultSnapshot>> {
        let (snapshots, faults) = self.read_readable_snapshots()?;
        faults.into_iter().next().map_or(Ok(snapshots), Err)
    }

    /// Returns the snapshots that can be read, oldest first, and what is wrong with the others.
    ///
    /// # Errors
    /// If the place cannot be read.
    pub fn read_readable_snapshots(&self) -> Result<(Vec<VaultSnapshot>, Vec<Error>)> {
        self.known_snapshots.lock().clear();
        self.read_new_snapshots(&self.list_files(VaultFileKind::Snapshot)?)
    }

    /// Returns the snapshots among those that were listed, oldest first, read anew.
    ///
    /// # Errors
    /// As [`Vault::read_snapshots`].
    pub(crate) fn read_listed_snapshots(
        &self,
        listed: &[(VaultObjectId, u64)],
    ) -> Result<Vec<VaultSnapshot>> {
        self.known_snapshots.lock().clear();
        let (snapshots, faults) = self.read_new_snapshots(listed)?;
        faults.into_iter().next().map_or(Ok(snapshots), Err)
    }

    /// Reads snapshots before somebody asks for them; what cannot be read will be told then.
    pub(crate) fn prefetch_snapshots(&self, listed: &[(VaultObjectId, u64)]) {
        self.read_new_snapshots(listed).ok();
    }

    /// As [`Vault::read_readable_snapshots`], of those that were listed, without reading again what was read before.
    fn read_new_snapshots(
        &self,
        listed: &[(VaultObjectId, u64)],
    ) -> Result<(Vec<VaultSnapshot>, Vec<Error>)> {
        let (mut snapshots, mut faults) = (Vec::new(), Vec::new());
        let all: Vec<VaultObjectId> = listed.iter().map(|(id, _)| *id).collect();
        let is_new = |id: &&VaultObjectId| !self.known_snapshots.lock().contains_key(*id);
        let new: Vec<VaultObjectId> = all.iter().filter(is_new).copied().collect();
        let read =
            |id: &VaultObjectId| self.read_json::<VaultSnapshot>(VaultFileKind::Snapshot, id);
        let known = self.known_snapshots.lock().clone();
        snapshots.extend(all.iter().filter_map(|id| known.get(id).cloned()));
        for (id, snapshot) in new.iter().zip(self.read_many(&new, read)) {
            match snapshot {
                Ok(snapshot) => {
                    let snapshot = VaultSnapshot { id: *id, ..snapshot };
                    self.known_snapshots.lock().insert(*id, snapshot.clone());
                    snapshots.push(snapshot);
                }
                // Somebody has forgotten it meanwhile.
                Err(Error::Backend { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error @ Error::Damaged { .. }) => faults.push(error),
                Err(error) => return Err(error),
            }
        }
        snapshots.sort_by_key(|snapshot| (snapshot.timestamp(), snapshot.id));
        Ok((snapshots, faults))
    }

    /// Returns the snapshots that can be read, oldest first; the others are told in the log.
    pub(crate) fn read_usable_snapshots(&self) -> Result<Vec<VaultSnapshot>> {
        self.read_listed_usable(&self.list_files(VaultFileKind::Snapshot)?)
    }

    /// As [`Vault::read_usable_snapshots`], of those that were listed.
    pub(crate) fn read_listed_usable(
        &self,
        listed: &[(VaultObjectId, u64)],
    ) -> Result<Vec<VaultSnapshot>> {
        let (snapshots, faults) = self.read_new_snapshots(listed)?;
        for error in &faults {
            warn!(%error, "a snapshot is passed over");
        }
        Ok(snapshots)
    }

    /// Finds a snapshot by `latest`, the newest one of the clients, or by its id or the first digits of it, whosever it
    /// is. Damage to others does not matter.
    ///
    /// # Errors
    /// [`Error::SnapshotMissing`], [`Error::ClientMissing`] or [`Error::SnapshotAmbiguous`]; a damaged snapshot.
    pub fn find_snapshot(&self, name: &str, clients: &ClientFilter) -> Result<VaultSnapshot> {
        if name == "latest" {
            let all = self.read_usable_snapshots()?;
            return match all.iter().rfind(|one| clients.includes(one)) {
                Some(latest) => Ok(latest.clone()),
                None => Err(client_missing_error(clients, &all)),
            };
        }
        let id = self.find_snapshot_id(name, clients)?;
        let snapshot: VaultSnapshot = self.read_json(VaultFileKind::Snapshot, &id)?;
        Ok(VaultSnapshot { id, ..snapshot })
    }

    /// As [`Vault::find_snapshot`]; for `latest`, all snapshots that the same run has made: folders first, then repositories,
    /// by their paths.
    ///
    /// # Errors
    /// As [`Vault::find_snapshot`].
    pub fn find_run_snapshots(
        &self,
        name: &str,
        clients: &ClientFilter,
    ) -> Result<Vec<VaultSnapshot>> {
        let newest = self.find_snapshot(name, clients)?;
        if name != "latest" {
            return Ok(vec![newest]);
        }
        let mut together = self.read_usable_snapshots()?;
        together.retain(|one| one.time == newest.time && one.hostname == newest.hostname);
        together.sort_by_cached_key(|one| (one.repository_root().is_some(), one.paths.clone()));
        Ok(together)
    }

    /// Finds the id of a snapshot, which may be damaged, as [`Vault::find_snapshot`] finds it.
    ///
    /// # Errors
    /// [`Error::SnapshotMissing`], [`Error::ClientMissing`] or [`Error::SnapshotAmbiguous`].
    pub fn find_snapshot_id(&self, name: &str, clients: &ClientFilter) -> Result<VaultObjectId> {
        if name == "latest" {
            return self.find_snapshot(name, clients).map(|snapshot| snapshot.id);
        }
        let named = |id: &VaultObjectId| !name.is_empty() && id.to_string().starts_with(name);
        let mut ids =
            self.list_files(VaultFileKind::Snapshot)?.into_iter().map(|(id, _)| id).filter(named);
        match (ids.next(), ids.next()) {
            (None, _) => Err(Error::SnapshotMissing { name: name.to_owned() }),
            (Some(id), None) => Ok(id),
            _ => Err(Error::SnapshotAmbiguous { name: name.to_owned() }),
        }
    }

    /// Removes a snapshot; what only it refers to stays until a prune.
    ///
    /// # Errors
    /// A failed removal.
    pub fn remove_snapshot(&self, id: &VaultObjectId) -> Result<()> {
        self.remove_file(VaultFileKind::Snapshot, id)
    }
}
