//! The common part of saving for all sources: options and result.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use tracing::warn;
use tympan_store::RevisionRetention;

use crate::backend::VaultFileKind;
use crate::backup_progress::BackupProgress;
use crate::error::{Error, Result};
use crate::fault::BackupFault;
use crate::object_id::VaultObjectId;
use crate::source::base_store::OmittedCounts;
use crate::source::exclude::ExcludeRules;
use crate::vault::index::VaultIndex;
use crate::vault::lock::VaultLock;
use crate::vault::node::SnapshotTree;
use crate::vault::pack_writer::{PackWriter, WriteTotals};
use crate::vault::snapshot::VaultSnapshot;
use crate::vault::tree_text::SnapshotTreeText;
use crate::vault::{Vault, VaultUser, pack_blob::PackBlobKind};

/// The parent snapshot that a save is compared with.
#[derive(Clone, Debug, Default)]
pub enum ParentSelection {
    /// The latest one of the same host and paths.
    #[default]
    LatestMatching,
    /// None: everything is read.
    Nothing,
}

/// The options of a save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// The user who saves.
    pub user: VaultUser,
    /// The start time of the save.
    pub started_at: Timestamp,
    /// The exclude rules.
    pub excludes: ExcludeRules,
    /// The tags of the snapshot.
    pub tags: Vec<String>,
    /// The choice of the parent snapshot.
    pub parent: ParentSelection,
    /// The folder for tables of sources, which avoid reading unchanged data; they may be deleted at any time.
    pub table_dir: Option<PathBuf>,
    /// The approximate number of chunks of one repository level that are newly read and in memory at once.
    pub chunk_batch_size: usize,
    /// The earlier revisions of a repository's ref that are saved with it; `None` saves none.
    pub revision_retention: Option<RevisionRetention>,
}

/// The default of [`SaveOptions::chunk_batch_size`].
const DEFAULT_CHUNK_BATCH_SIZE: usize = 4096;

impl SaveOptions {
    /// Returns options that exclude nothing.
    #[must_use]
    pub fn new(user: VaultUser, now: Timestamp) -> Self {
        let (excludes, parent) = (ExcludeRules::default(), ParentSelection::default());
        Self {
            user,
            started_at: now,
            excludes,
            tags: Vec::new(),
            parent,
            table_dir: None,
            chunk_batch_size: DEFAULT_CHUNK_BATCH_SIZE,
            revision_retention: None,
        }
    }
}

/// The result of a save.
#[derive(Clone, Debug)]
pub struct SaveSummary {
    /// The snapshot.
    pub snapshot: VaultSnapshot,
    /// The amount of new data in the vault.
    pub written: WriteTotals,
    /// What was requested but is not in the snapshot; the snapshot is incomplete if there is any.
    pub faults: Vec<BackupFault>,
    /// The amount of data left to the owner of the source's base.
    pub omitted: OmittedCounts,
}

/// Snapshots from before a save.
#[derive(Debug, Default)]
pub(crate) struct EarlierSnapshots {
    /// Those of the same host and paths, oldest first.
    pub(crate) comparable: Vec<VaultSnapshot>,
    /// The originals of all snapshots in the vault, whether they still exist or not.
    pub(crate) originals: HashSet<VaultObjectId>,
}

/// A vault opened for writing by a save.
pub struct SaveSession<'a> {
    pub(crate) vault: &'a Arc<Vault>,
    pub(crate) index: &'a Arc<VaultIndex>,
    pub(crate) lock: &'a VaultLock,
    pub(crate) progress: &'a BackupProgress,
}

impl std::fmt::Debug for SaveSession<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SaveSession").finish_non_exhaustive()
    }
}

impl<'a> SaveSession<'a> {
    /// Creates a session. The index must have been loaded after the lock was taken.
    #[must_use]
    pub const fn new(
        vault: &'a Arc<Vault>,
        index: &'a Arc<VaultIndex>,
        lock: &'a VaultLock,
        progress: &'a BackupProgress,
    ) -> Self {
        Self { vault, index, lock, progress }
    }

    /// Lists the snapshots that a save of these paths may use as parent.
    pub(crate) fn list_earlier_snapshots(
        &self,
        options: &SaveOptions,
        paths: &[String],
    ) -> Result<EarlierSnapshots> {
        if let ParentSelection::Nothing = options.parent {
            return Ok(EarlierSnapshots::default());
        }
        let mut alike = self.vault.read_listed_usable(&self.lock.list_snapshots()?)?;
        let originals = alike.iter().filter_map(|earlier| earlier.original).collect();
        alike.retain(|earlier| earlier.hostname == options.user.host && earlier.paths == paths);
        Ok(EarlierSnapshots { comparable: alike, originals })
    }

    /// Reads a folder of the parent; `None` if it cannot be read, which costs only time.
    pub(crate) fn read_previous_tree(&self, id: Option<&VaultObjectId>) -> Option<SnapshotTree> {
        readable_or_none(self.vault.read_tree(self.index, id?))
    }

    /// Like [`SaveSession::read_previous_tree`], for a folder of which few nodes are needed.
    pub(crate) fn read_previous_tree_text(
        &self,
        id: Option<&VaultObjectId>,
    ) -> Option<SnapshotTreeText> {
        readable_or_none(self.vault.read_tree_text(self.index, id?))
    }

    /// Writes the remaining data, and then the snapshot; also returns the added index files.
    pub(crate) fn finish_snapshot(
        &self,
        writer: PackWriter,
        tree: VaultObjectId,
        options: &SaveOptions,
        paths: Vec<String>,
        parent: Option<VaultSnapshot>,
    ) -> Result<(VaultSnapshot, WriteTotals, Vec<VaultObjectId>)> {
        self.progress.check_running()?;
        let SaveOptions { user, started_at, excludes, tags, .. } = options;
        let mut snapshot = VaultSnapshot {
            time: started_at.to_string(),
            parent: parent.map(|parent| parent.id),
            original: None,
            tree,
            paths,
            hostname: user.host.clone(),
            username: user.user.clone(),
            uid: user.uid,
            gid: user.gid,
            excludes: excludes.patterns().to_vec(),
            tags: (!tags.is_empty()).then(|| tags.clone()),
            program_version: concat!("tympan ", env!("CARGO_PKG_VERSION")).to_owned(),
            id: VaultObjectId::default(),
        };
        let sealed = self.vault.sealing().seal_json(VaultFileKind::Snapshot, &snapshot)?;
        let also = Some((VaultFileKind::Snapshot, sealed));
        let (written, listed, staged) = writer.finish_with(self.lock, also)?;
        if let Some(staged) = staged {
            self.vault.files().reveal(&staged)?;
            snapshot.id = staged.id();
        }
        Ok((snapshot, written, listed.files))
    }
}

/// Returns a folder of the parent; `None` if it cannot be read.
fn readable_or_none<T>(read: Result<T>) -> Option<T> {
    read.inspect_err(|error| {
        warn!(%error, "cannot read a folder of the parent; reading its files again");
    })
    .ok()
}

impl Vault {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`Error::UnreadableBlob`] if it is missing or damaged; [`Error::Backend`] if the backend cannot be read now.
    pub fn read_tree(&self, index: &VaultIndex, id: &VaultObjectId) -> Result<SnapshotTree> {
        let bytes = self.read_blob(index, PackBlobKind::Tree, id)?;
        SnapshotTree::parse(&bytes).map_err(|fault| Error::UnreadableBlob {
            what: "folder",
            id: *id,
            fault,
        })
    }

    /// Reads a folder as its text.
    fn read_tree_text(&self, index: &VaultIndex, id: &VaultObjectId) -> Result<SnapshotTreeText> {
        let bytes = self.read_blob(index, PackBlobKind::Tree, id)?;
        SnapshotTreeText::parse(bytes).map_err(|fault| Error::UnreadableBlob {
            what: "folder",
            id: *id,
            fault,
        })
    }
}
