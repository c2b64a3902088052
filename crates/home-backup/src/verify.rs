//! Compares snapshots with the current data that they were made of.

use std::sync::Arc;

use tympan_backup::{
    BackupProgress, IndexedVault, Vault, VaultIndex, VaultSnapshot, verify_snapshot,
};
use tympan_home::{HomeAccess, MAIN_BRANCH};

use crate::error::Result;
use crate::repository_source::{InstanceAccess, open_source_by_snapshot_path};

/// What a comparison of snapshots with the current data uses.
#[derive(Debug)]
pub struct SnapshotVerification<'a> {
    /// How homes are opened.
    pub access: &'a HomeAccess,
    /// How running instances are accessed.
    pub instance: &'a InstanceAccess,
    /// The vault.
    pub vault: &'a Arc<Vault>,
    /// The progress of the comparison.
    pub progress: &'a Arc<BackupProgress>,
}

impl SnapshotVerification<'_> {
    /// Returns the differences between a snapshot and the current data, as text.
    ///
    /// # Errors
    /// If the vault or the source cannot be read.
    pub fn find_differences(&self, snapshot: &VaultSnapshot) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        if snapshot.is_incomplete() {
            findings.push(
                "the snapshot is incomplete: parts could not be read when it was created"
                    .to_owned(),
            );
        }
        if let Some(saved) = snapshot.repository_root() {
            let path = snapshot.paths.first().map_or("", String::as_str);
            let repository = open_source_by_snapshot_path(self.access, path, self.instance)?;
            let refs = repository.base.list_refs()?;
            let live =
                refs.iter().find(|(name, _)| name == MAIN_BRANCH).map(|(_, root)| root.to_string());
            if live.as_deref() != Some(saved) {
                let live = live.unwrap_or_else(|| "none".to_owned());
                findings.push(format!("{path}: the root is {live}, but {saved} was saved"));
            }
        } else {
            let index = VaultIndex::load(self.vault)?;
            findings.extend(index.damaged_files().iter().map(ToString::to_string));
            let faults =
                verify_snapshot(IndexedVault::new(self.vault, &index), snapshot, self.progress)?;
            findings.extend(faults.iter().map(ToString::to_string));
        }
        Ok(findings)
    }
}
