//! The repair: damaged packs go aside, and each damaged state becomes the newest whole one that can be made.
//!
//! In: a local store, and what a check has found. Out: a store that checks clean, and a [`StoreRepairReport`] that names all
//! that was restored and all that is lost.
//!
//! A state that is damaged keeps everything that can be read of it. A record that cannot be read is taken from the
//! newest kept revision that has it whole; a part of a map that cannot be read, from the newest revision where that part
//! can. The result is committed as a new revision. Kept revisions that are damaged are mended in the same way.
//!
//! Invariants
//! * Nothing is removed: damaged packs are renamed, and refs that cannot be restored stay where they are.
//! * What is not touched by damage stays byte for byte, as the same content has the same root.
//! * Whatever is not as it was before the damage is named or, above a bound, counted.
//!
//! On failure: a repair that is cut off can be run again.
//!
//! Not here: blobs. A record that names a small blob which is damaged stays; the blob is missing from then on.

mod ref_state;
mod salvage;

use std::collections::HashMap;
use std::time::SystemTime;

use crate::check::{RootOrigin, StoreInspection};
use crate::chunk_batch::{ChunkBatch, RefUpdate};
use crate::chunk_store::ChunkStore;
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::ChunkId;
use crate::local::{LocalStore, PackSurvey};
use crate::root_retention::RootLease;
use crate::store_root::StoreRoot;

use ref_state::{RefState, ref_states};
use salvage::StateSalvager;

/// Parts and revisions that are listed; more are counted.
const MAX_LISTED_REPAIRS: usize = 1_000;
/// Marks revisions that are not as they were.
const REPAIRED_SUFFIX: &str = " (repaired: parts of this revision could not be read)";

/// Knows which maps of a state follow from the others, and makes them.
pub trait DeriveMaps {
    /// What can go wrong.
    type Error: From<Error>;

    /// Tells whether a map follows from the others, so that it is made again rather than salvaged.
    fn is_derived(&self, map: &str) -> bool;

    /// Completes `root` with its derived maps, and its other maps with what must not be missing. `base` is a state whose
    /// maps are all in order, or an empty one.
    ///
    /// # Errors
    /// A failed read or write.
    fn derive_maps(&self, base: &StoreRoot, root: &mut StoreRoot) -> Result<(), Self::Error>;
}

/// What a repair has done, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRepairReport {
    /// Damaged files that were set aside, by their new names; in a plan, by those that they have.
    pub quarantined_files: Vec<String>,
    /// Index files that were made again from their packs.
    pub rebuilt_indexes: Vec<String>,
    /// Chunks and small blobs that were moved out of damaged packs.
    pub moved_records: u64,
    /// Refs whose state was damaged.
    pub refs: Vec<RepairedRef>,
    /// What could not be read of these states, in the order of refs, maps and keys.
    pub parts: Vec<RepairedPart>,
    /// Records that are now as an older revision has them.
    pub restored_records: u64,
    /// Records that no revision has, as far as they are known.
    pub lost_records: u64,
    /// Kept revisions that were damaged.
    pub revisions: Vec<RepairedRevision>,
    /// Leases whose state cannot be read as a whole; they were released.
    pub released_leases: Vec<RootLease>,
    /// What is wrong with the list of revisions.
    pub history_faults: Vec<String>,
    /// How many more parts and revisions there are than `parts` and `revisions` list.
    pub unlisted_count: u64,
}

impl StoreRepairReport {
    /// Tells whether there was nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A ref whose state was damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedRef {
    /// The ref.
    pub name: String,
    /// Where it was.
    pub damaged_root: ChunkId,
    /// Where it is now; `None` in a plan, and if nothing could be restored: then the ref stays where it was.
    pub new_root: Option<ChunkId>,
    /// The newest kept revision of it that can be read as a whole, with its time.
    pub last_good_revision: Option<(u64, SystemTime)>,
    /// Whether there is anything that it can be restored from.
    pub is_restorable: bool,
}

/// A part of a ref's state that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedPart {
    /// The ref.
    pub ref_name: String,
    /// The map; empty if the ref names no state with maps.
    pub map: String,
    /// The key of the record, or where the part begins.
    pub key: Vec<u8>,
    /// What became of it.
    pub outcome: RepairedPartOutcome,
}

/// What became of a part that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairedPartOutcome {
    /// The record is now as in this revision.
    Restored {
        /// The revision.
        sequence: u64,
    },
    /// The record is gone: no revision has it whole.
    Lost,
    /// A whole span could not be read. What was restored in it is listed by itself.
    Span {
        /// The first key behind the span; `None` if it ran to the end of the map.
        to: Option<Vec<u8>>,
        /// How many records were in it, if known, else 0.
        records: u64,
    },
}

/// A kept revision that was damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedRevision {
    /// The revision, as it was.
    pub revision: Revision,
    /// Its new state; `None` in a plan, and if nothing can be read of it: then it has left the list.
    pub new_root: Option<ChunkId>,
}

/// Tells what [`repair_store`] would do.
///
/// # Errors
/// Only what prevents looking, such as a failed read.
pub fn plan_repair<D: DeriveMaps>(
    store: &LocalStore,
    found: &StoreInspection,
    maps: &D,
) -> Result<StoreRepairReport, D::Error> {
    let mut repaired = StoreRepairReport {
        quarantined_files: found.survey.packs_to_quarantine(),
        rebuilt_indexes: found.survey.indexes_to_rebuild(),
        history_faults: store.readable_revisions(&found.survey)?.faults,
        ..StoreRepairReport::default()
    };
    let salvage = StateSalvager::new(store, &found.survey, maps, None);
    let StoreInspection { survey, checked_at: now, .. } = found;
    RepairContext { store, survey, salvager: &salvage, now: *now }.salvage_states(&mut repaired)?;
    Ok(salvage.complete_report(repaired))
}

/// Repairs a store: afterwards it checks clean, unless a ref could not be restored at all.
///
/// `found` is of this store, with nothing written since.
///
/// # Errors
/// [`Error::WriteDisabled`]: open the store again first. A failed read or write: the repair can be run again.
pub fn repair_store<D: DeriveMaps>(
    store: &LocalStore,
    found: &StoreInspection,
    maps: &D,
    now: SystemTime,
) -> Result<StoreRepairReport, D::Error> {
    if found.report.is_clean() {
        return Ok(StoreRepairReport::default());
    }
    let _turn = store.lock_collections()?;
    let survey = &found.survey;
    // What it says goes into the report; mending puts a whole list in the place of a damaged one.
    let history = store.readable_revisions(survey)?.faults;
    let mended = store.repair_packs(survey)?;
    let mut repaired = StoreRepairReport {
        quarantined_files: mended.quarantined_packs,
        rebuilt_indexes: mended.rebuilt_indexes,
        moved_records: mended.moved_records,
        history_faults: history,
        ..StoreRepairReport::default()
    };
    let salvage = StateSalvager::new(store, survey, maps, Some(now));
    let job = RepairContext { store, survey, salvager: &salvage, now: found.checked_at };
    let replaced = job.salvage_states(&mut repaired)?;
    let mut repaired = salvage.complete_report(repaired);
    job.commit_repair(&mut repaired, &replaced, now)?;
    Ok(repaired)
}

/// What a repair works with.
struct RepairContext<'a, D> {
    store: &'a LocalStore,
    survey: &'a PackSurvey,
    salvager: &'a StateSalvager<'a, D>,
    /// The time by which leases are judged.
    now: SystemTime,
}

/// What becomes of damaged states.
type ReplacementStates = HashMap<ChunkId, ReplacementState>;

/// What becomes of a damaged state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplacementState {
    /// Nothing can be read of it, nor of anything older.
    Unrecoverable,
    /// A new state can be made.
    Planned,
    /// A new state is stored.
    Stored(ChunkId),
}

impl ReplacementState {
    fn stored_root(self) -> Option<ChunkId> {
        match self {
            Self::Stored(root) => Some(root),
            Self::Unrecoverable | Self::Planned => None,
        }
    }
}

impl<D: DeriveMaps> RepairContext<'_, D> {
    /// Salvages every state that is damaged.
    fn salvage_states(
        &self,
        repaired: &mut StoreRepairReport,
    ) -> Result<ReplacementStates, D::Error> {
        let readable = self.store.readable_revisions(self.survey)?;
        let refs = self.store.list_refs()?;
        let mut replaced = ReplacementStates::new();
        for (name, chain) in ref_states(&refs, &readable.revisions) {
            self.salvager.salvage_ref(&name, &chain, &mut replaced)?;
            let Some(RefState { root, .. }) = chain.first().filter(|state| state.is_current) else {
                continue;
            };
            let Some(new) = replaced.get(root) else { continue };
            let good = self.salvager.newest_clean_revision(&chain)?;
            let is_restorable = *new != ReplacementState::Unrecoverable;
            let (damaged, root) = (*root, new.stored_root());
            repaired.refs.push(RepairedRef {
                name,
                damaged_root: damaged,
                new_root: root,
                last_good_revision: good,
                is_restorable,
            });
        }
        for revision in readable.revisions {
            let Some(root) = revision.update.new_root.and_then(|root| replaced.get(&root)) else {
                continue;
            };
            if repaired.revisions.len() < MAX_LISTED_REPAIRS {
                let root = root.stored_root();
                repaired.revisions.push(RepairedRevision { revision, new_root: root });
            } else {
                repaired.unlisted_count += 1;
            }
        }
        for lease in self.store.list_leases()? {
            let origin = RootOrigin::Lease(lease.holder.clone());
            if lease.is_live(self.now) && !self.salvager.is_state_clean(&origin, lease.root)? {
                repaired.released_leases.push(lease);
            }
        }
        Ok(replaced)
    }

    /// Moves refs, ends leases, and puts a list of revisions that can all be read in the place of the one there was.
    fn commit_repair(
        &self,
        repaired: &mut StoreRepairReport,
        replaced: &ReplacementStates,
        now: SystemTime,
    ) -> Result<()> {
        let own = self.store.next_sequence();
        let mut batch = ChunkBatch::new();
        for one in &repaired.refs {
            let Some(root) = one.new_root else { continue };
            batch.add_ref_update(RefUpdate {
                name: one.name.clone(),
                expected_root: Some(one.damaged_root),
                new_root: Some(root),
                updated_at: now,
                author: "repair".to_owned(),
                message: format!(
                    "repair: the state `{}` could not be read in full",
                    one.damaged_root
                ),
            });
        }
        for lease in &repaired.released_leases {
            batch.release_lease(lease.holder.clone());
            self.store.remove_lease_file(&lease.holder)?;
        }
        self.store.commit(batch)?;
        let mut readable = self.store.readable_revisions(self.survey)?;
        let is_whole = repaired.history_faults.is_empty() && readable.faults.is_empty();
        if replaced.is_empty() && is_whole {
            return self.store.flush();
        }
        readable.revisions.retain_mut(|one| {
            if one.sequence >= own {
                return true;
            }
            if let Some(root) = one.update.expected_root.and_then(|root| replaced.get(&root)) {
                one.update.expected_root = root.stored_root();
            }
            let Some(new) = one.update.new_root.and_then(|root| replaced.get(&root)) else {
                return true;
            };
            one.update.new_root = new.stored_root();
            append_repaired_suffix(&mut one.update.message);
            one.update.new_root.is_some()
        });
        self.store.rewrite_revision_log(&readable.revisions)
    }
}

/// Says in the message of a revision that it is not as it was.
fn append_repaired_suffix(message: &mut String) {
    /// So that the message stays within the bound of the format.
    const MAX_BYTES: usize = 7_800;
    if message.ends_with(REPAIRED_SUFFIX) {
        return;
    }
    while message.len() > MAX_BYTES {
        message.pop();
    }
    message.push_str(REPAIRED_SUFFIX);
}
