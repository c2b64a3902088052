//! Snapshots: finished backups.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Vault;
use crate::backend::FileKind;
use crate::error::{Error, Result};
use crate::id::Id;

/// The tag of a snapshot that lacks parts of what was saved.
pub(crate) const INCOMPLETE: &str = "incomplete";

/// A finished backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was begun, with the offset of whoever made it.
    pub time: String,
    /// The snapshot that it was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Id>,
    /// The topmost folder.
    pub tree: Id,
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
    pub id: Id,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Snapshot {
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

    /// Tells whether the snapshot lacks parts of what was saved; no later one takes anything over from it.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.tags().iter().any(|tag| tag == INCOMPLETE)
    }

    /// Returns the root of the content repository that was saved, if one was.
    #[must_use]
    pub fn repository_root(&self) -> Option<&str> {
        self.tags().iter().find_map(|tag| tag.strip_prefix("root:"))
    }
}

impl Vault {
    /// Returns all snapshots, oldest first.
    ///
    /// # Errors
    /// A failed read, or a damaged snapshot.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let mut snapshots = Vec::new();
        for (id, _) in self.list(FileKind::Snapshot)? {
            let snapshot: Snapshot = self.read_json(FileKind::Snapshot, &id)?;
            snapshots.push(Snapshot { id, ..snapshot });
        }
        snapshots.sort_by_key(|snapshot| (snapshot.timestamp(), snapshot.id));
        Ok(snapshots)
    }

    /// Finds a snapshot by `latest`, its id, or the first digits of it.
    ///
    /// # Errors
    /// [`Error::SnapshotMissing`] or [`Error::SnapshotAmbiguous`].
    pub fn find_snapshot(&self, name: &str) -> Result<Snapshot> {
        let mut snapshots = self.snapshots()?;
        if name == "latest" {
            return snapshots.pop().ok_or_else(|| Error::SnapshotMissing { name: name.to_owned() });
        }
        snapshots.retain(|snapshot| !name.is_empty() && snapshot.id.to_string().starts_with(name));
        match snapshots.len() {
            0 => Err(Error::SnapshotMissing { name: name.to_owned() }),
            1 => Ok(snapshots.remove(0)),
            _ => Err(Error::SnapshotAmbiguous { name: name.to_owned() }),
        }
    }

    /// Removes a snapshot; what only it refers to stays until a prune.
    ///
    /// # Errors
    /// A failed removal.
    pub fn forget(&self, id: &Id) -> Result<()> {
        self.remove(FileKind::Snapshot, id)
    }
}
