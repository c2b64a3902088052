//! Checks and repairs the stores of a home, also of one whose content can no longer be read.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tympan_notation::error_chain_text;

use tympan_blobs::{BlobContent, BlobStore, compute_blob_id};
use tympan_content::{IndexFault, IndexMapRebuilder};
use tympan_store::{
    BlobId, ChunkStore, LocalStore, StoreCheckReport, StoreInspection, StoreRepairReport,
    inspect_store, plan_repair, repair_store,
};

use crate::access::HomeAccess;
use crate::chunk_store::HomeChunkStore;
use crate::config::HomeConfig;
use crate::error::{Error, Result};

/// The action on damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepairMode {
    /// The possible repair is reported.
    Plan,
    /// Damage is repaired.
    Repair,
}

/// The stores of a home that are checked.
pub struct HomeStoreCheck {
    local: Arc<LocalStore>,
    /// The packs, layered over the base if the home is a clone.
    chunks: Arc<dyn ChunkStore>,
    blobs: Arc<dyn BlobStore>,
}

impl fmt::Debug for HomeStoreCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeStoreCheck").field("local", &self.local).finish_non_exhaustive()
    }
}

impl HomeStoreCheck {
    /// Opens the stores of a home.
    ///
    /// # Errors
    /// [`Error::Refused`] if a database stores the repository; otherwise if another process has the home open.
    pub fn open(access: &HomeAccess, home: &Path, config: &HomeConfig) -> Result<Self> {
        let backend = HomeChunkStore::open(access, home, config)?;
        let blobs = backend.open_blobs(access, home, config)?.store;
        let chunks = backend.chunks;
        let local = backend.local.ok_or_else(|| {
            Error::refused(
                "the repository of this home is stored in a database, which checks itself",
            )
        })?;
        Ok(Self { local, chunks, blobs })
    }

    /// Verifies the hash of every record, and walks every ref, lease and kept revision.
    ///
    /// # Errors
    /// If the packs cannot be read at all.
    pub fn inspect(&self, now: SystemTime) -> Result<StoreInspection> {
        Ok(inspect_store(&self.local, now)?)
    }

    /// Repairs the damage that an inspection found, or only plans the repair.
    ///
    /// # Errors
    /// If the packs cannot be read or written.
    pub fn repair(
        &self,
        inspection: &StoreInspection,
        mode: RepairMode,
        now: SystemTime,
    ) -> Result<StoreRepairReport> {
        let maps = IndexMapRebuilder::new(&*self.local);
        let done = match mode {
            RepairMode::Plan => plan_repair(&self.local, inspection, &maps),
            RepairMode::Repair => repair_store(&self.local, inspection, &maps, now),
        };
        done.map_err(|error| Error::failed("the repair failed", error))
    }

    /// Compares the index maps of all refs with those derived from their content.
    ///
    /// # Errors
    /// If the content cannot be read.
    pub fn check_index_maps(&self) -> Result<Vec<IndexFault>> {
        Ok(IndexMapRebuilder::new(&*self.chunks).find_faults()?)
    }

    /// Rebuilds the index maps of the refs with a wrong one.
    ///
    /// # Errors
    /// If the content cannot be read, or the maps cannot be written.
    pub fn rebuild_index_maps(&self, faults: &[IndexFault], now: SystemTime) -> Result<()> {
        let maps = IndexMapRebuilder::new(&*self.chunks);
        let names: BTreeSet<&str> = faults.iter().map(|fault| &*fault.ref_name).collect();
        for name in names {
            maps.rebuild_ref(name, now)?;
        }
        Ok(())
    }

    /// Returns the faults that remain after indexes were rebuilt.
    ///
    /// # Errors
    /// If the content cannot be read.
    pub fn remaining_index_faults(&self, faults: &[IndexFault]) -> Result<Vec<String>> {
        if faults.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.check_index_maps()?.iter().map(ToString::to_string).collect())
    }

    /// Returns the faults of blobs that are not stored in the packs.
    pub fn check_blobs(&self, report: &StoreCheckReport) -> Vec<String> {
        let check = |blob: &BlobId| match self.blobs.open(blob) {
            Ok(Some(content)) => blob_damage(blob, content),
            Ok(None) => Some(format!("the blob {blob} is missing; restore it from a backup")),
            Err(error) => Some(error_chain_text(&error)),
        };
        report.external_blobs.iter().filter_map(check).collect()
    }
}

/// Verifies the hash of a large blob; `None` if it matches its id.
fn blob_damage(expected: &BlobId, content: BlobContent) -> Option<String> {
    match compute_blob_id(&mut content.into_reader()) {
        Ok(actual) if actual == *expected => None,
        Ok(actual) => Some(format!(
            "the blob {expected} is damaged: its content has the id {actual}; restore it from a backup"
        )),
        Err(error) => {
            Some(format!("the blob {expected} cannot be read: {}", error_chain_text(&error)))
        }
    }
}
