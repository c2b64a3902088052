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

/// The tag of a snapshot that lacks parts of what was to be saved.
pub(crate) const INCOMPLETE_TAG: &str = "incomplete";

/// Prefix of the tag that names the root of a repository snapshot.
const ROOT_TAG_PREFIX: &str = "root:";

/// Prefix of the tag that identifies what a repository snapshot contains beside its root: branches, and files of the
/// home.
pub(crate) const EXTRAS_TAG_PREFIX: &str = "beside:";

/// Returns true for a tag that is meaningful only to programs: the root of a snapshot, its other content, or its
/// layout.
#[must_use]
pub fn is_internal_tag(tag: &str) -> bool {
    tag.starts_with(ROOT_TAG_PREFIX)
        || tag.starts_with(EXTRAS_TAG_PREFIX)
        || tag.starts_with("layout:")
}

/// The clients whose snapshots are considered, where a name is ambiguous or all snapshots are processed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFilter {
    /// All clients that share the vault.
    All,
    /// The clients with these names, which are host names unless a save was given another one.
    Named(Vec<String>),
}

impl ClientFilter {
    /// Returns true if a snapshot is considered.
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
    /// The start time, with the UTC offset of the client.
    pub time: String,
    /// The parent snapshot that it was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<VaultObjectId>,
    /// The snapshot that this one was made from, as restic does to repair, tag or copy one. This one may lack data of
    /// the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original: Option<VaultObjectId>,
    /// The topmost folder.
    pub tree: VaultObjectId,
    /// The saved paths.
    pub paths: Vec<String>,
    /// The host name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The user name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The user id.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uid: u32,
    /// The group id.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gid: u32,
    /// The exclude patterns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excludes: Vec<String>,
    /// The tags given by users or Tympan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// The program that made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program_version: String,
    /// The id, which is the name of its file.
    #[serde(skip)]
    pub id: VaultObjectId,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl VaultSnapshot {
    /// Returns the start time.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        self.time.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Returns the tags.
    #[must_use]
    pub fn tags(&self) -> &[String] {
        self.tags.as_deref().unwrap_or_default()
    }

    /// Returns true if the snapshot lacks parts of what was to be saved. No later snapshot of a repository reuses data
    /// from it; one of folders checks each file anyway, and reads what is missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.tags().iter().any(|tag| tag == INCOMPLETE_TAG)
    }

    /// Returns the root of the saved content repository; `None` for other snapshots.
    #[must_use]
    pub fn repository_root(&self) -> Option<&str> {
        self.tags().iter().find_map(|tag| tag.strip_prefix(ROOT_TAG_PREFIX))
    }
}

/// Creates the error that none of the snapshots is considered.
fn client_missing_error(clients: &ClientFilter, all: &[VaultSnapshot]) -> Error {
    let others: BTreeSet<&str> = all.iter().map(|snapshot| snapshot.hostname.as_str()).collect();
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

    /// Returns the readable snapshots, oldest first, and the errors of the others.
    ///
    /// # Errors
    /// If the backend cannot be read.
    pub fn read_readable_snapshots(&self) -> Result<(Vec<VaultSnapshot>, Vec<Error>)> {
        self.known_snapshots.lock().clear();
        self.read_new_snapshots(&self.files().list(VaultFileKind::Snapshot)?)
    }

    /// Returns the snapshots of a listing, oldest first, read anew.
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

    /// Reads snapshots in advance; errors are reported on the later read.
    pub(crate) fn prefetch_snapshots(&self, listed: &[(VaultObjectId, u64)]) {
        self.read_new_snapshots(listed).ok();
    }

    /// Like [`Vault::read_readable_snapshots`], for a listing, without reading known snapshots again.
    fn read_new_snapshots(
        &self,
        listed: &[(VaultObjectId, u64)],
    ) -> Result<(Vec<VaultSnapshot>, Vec<Error>)> {
        let (mut snapshots, mut faults) = (Vec::new(), Vec::new());
        let all: Vec<VaultObjectId> = listed.iter().map(|(id, _)| *id).collect();
        let is_new = |id: &&VaultObjectId| !self.known_snapshots.lock().contains_key(*id);
        let new: Vec<VaultObjectId> = all.iter().filter(is_new).copied().collect();
        let read = |id: &VaultObjectId| {
            self.files().read_json::<VaultSnapshot>(VaultFileKind::Snapshot, id)
        };
        let known_snapshots = self.known_snapshots.lock().clone();
        snapshots.extend(all.iter().filter_map(|id| known_snapshots.get(id).cloned()));
        for (id, snapshot) in new.iter().zip(self.files().read_many(&new, read)) {
            match snapshot {
                Ok(snapshot) => {
                    let snapshot = VaultSnapshot { id: *id, ..snapshot };
                    self.known_snapshots.lock().insert(*id, snapshot.clone());
                    snapshots.push(snapshot);
                }
                // It was removed concurrently.
                Err(Error::Backend { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                Err(error @ Error::Damaged { .. }) => faults.push(error),
                Err(error) => return Err(error),
            }
        }
        snapshots.sort_by_key(|snapshot| (snapshot.timestamp(), snapshot.id));
        Ok((snapshots, faults))
    }

    /// Returns the readable snapshots, oldest first; the others are logged.
    pub(crate) fn read_usable_snapshots(&self) -> Result<Vec<VaultSnapshot>> {
        self.read_listed_usable(&self.files().list(VaultFileKind::Snapshot)?)
    }

    /// As [`Vault::read_usable_snapshots`], for a listing.
    pub(crate) fn read_listed_usable(
        &self,
        listed: &[(VaultObjectId, u64)],
    ) -> Result<Vec<VaultSnapshot>> {
        let (snapshots, faults) = self.read_new_snapshots(listed)?;
        for error in &faults {
            warn!(%error, "skipped an unreadable snapshot");
        }
        Ok(snapshots)
    }

    /// Finds a snapshot by `latest`, the newest one of the clients, or by its id or a prefix of it, of any client.
    /// Damage to others does not matter.
    ///
    /// # Errors
    /// [`Error::SnapshotMissing`], [`Error::ClientMissing`] or [`Error::SnapshotAmbiguous`]; a damaged snapshot.
    pub fn find_snapshot(&self, name: &str, clients: &ClientFilter) -> Result<VaultSnapshot> {
        if name == "latest" {
            let all = self.read_usable_snapshots()?;
            return match all.iter().rfind(|candidate| clients.includes(candidate)) {
                Some(latest) => Ok(latest.clone()),
                None => Err(client_missing_error(clients, &all)),
            };
        }
        let id = self.find_snapshot_id(name, clients)?;
        let snapshot: VaultSnapshot = self.files().read_json(VaultFileKind::Snapshot, &id)?;
        Ok(VaultSnapshot { id, ..snapshot })
    }

    /// Like [`Vault::find_snapshot`]; for `latest`, returns all snapshots of the same run: folders first, then
    /// repositories, by their paths.
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
        together.retain(|snapshot| {
            snapshot.time == newest.time && snapshot.hostname == newest.hostname
        });
        together.sort_by_cached_key(|snapshot| {
            (snapshot.repository_root().is_some(), snapshot.paths.clone())
        });
        Ok(together)
    }

    /// Finds the id of a snapshot, which may be damaged, like [`Vault::find_snapshot`].
    ///
    /// # Errors
    /// [`Error::SnapshotMissing`], [`Error::ClientMissing`] or [`Error::SnapshotAmbiguous`].
    pub fn find_snapshot_id(&self, name: &str, clients: &ClientFilter) -> Result<VaultObjectId> {
        if name == "latest" {
            return self.find_snapshot(name, clients).map(|snapshot| snapshot.id);
        }
        let named = |id: &VaultObjectId| !name.is_empty() && id.to_string().starts_with(name);
        let mut ids =
            self.files().list(VaultFileKind::Snapshot)?.into_iter().map(|(id, _)| id).filter(named);
        match (ids.next(), ids.next()) {
            (None, _) => Err(Error::SnapshotMissing { name: name.to_owned() }),
            (Some(id), None) => Ok(id),
            _ => Err(Error::SnapshotAmbiguous { name: name.to_owned() }),
        }
    }

    /// Removes a snapshot; data that only it refers to stays until a prune.
    ///
    /// # Errors
    /// A failed removal.
    pub fn remove_snapshot(&self, id: &VaultObjectId) -> Result<()> {
        self.files().remove(VaultFileKind::Snapshot, id)
    }
}
