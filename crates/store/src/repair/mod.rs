//! The repair: damaged packs go aside, and each damaged state becomes the newest whole one that can be made.
//!
//! In: a local store, and what a check has found. Out: a store that checks clean, and a [`Repaired`] that names all
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

mod chain;
mod salvage;

use std::collections::HashMap;
use std::time::SystemTime;

use crate::batch::{Batch, RefUpdate};
use crate::check::{Inspection, Origin};
use crate::chunk_store::ChunkStore;
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::ChunkId;
use crate::keep::Lease;
use crate::local::{LocalStore, Survey};
use crate::root::Root;

use chain::{State, chains};
use salvage::Salvage;

/// Parts and revisions that are listed; more are counted.
const MAX_LISTED: usize = 1_000;
/// Marks revisions that are not as they were.
const MENDED: &str = " (repaired: parts of this revision could not be read)";

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
    fn derive(&self, base: &Root, root: &mut Root) -> Result<(), Self::Error>;
}

/// What a repair has done, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Damaged files that were set aside, by their new names; in a plan, by those that they have.
    pub set_aside: Vec<String>,
    /// Index files that were made again from their packs.
    pub remade: Vec<String>,
    /// Chunks and small blobs that were moved out of damaged packs.
    pub moved: u64,
    /// Refs whose state was damaged.
    pub refs: Vec<RepairedRef>,
    /// What could not be read of these states, in the order of refs, maps and keys.
    pub parts: Vec<RepairedPart>,
    /// Records that are now as an older revision has them.
    pub restored: u64,
    /// Records that no revision has, as far as they are known.
    pub lost: u64,
    /// Kept revisions that were damaged.
    pub revisions: Vec<RepairedRevision>,
    /// Leases whose state cannot be read as a whole; they were released.
    pub leases: Vec<Lease>,
    /// What is wrong with the list of revisions.
    pub history: Vec<String>,
    /// How many more parts and revisions there are than `parts` and `revisions` list.
    pub unlisted: u64,
}

impl Repaired {
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
    pub damaged: ChunkId,
    /// Where it is now; `None` in a plan, and if nothing could be restored: then the ref stays where it was.
    pub root: Option<ChunkId>,
    /// The newest kept revision of it that can be read as a whole, with its time.
    pub good: Option<(u64, SystemTime)>,
    /// Whether there is anything that it can be restored from.
    pub is_restorable: bool,
}

/// A part of a ref's state that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedPart {
    /// The ref.
    pub name: String,
    /// The map; empty if the ref names no state with maps.
    pub map: String,
    /// The key of the record, or where the part begins.
    pub key: Vec<u8>,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a part that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
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
    pub root: Option<ChunkId>,
}

/// Tells what [`repair`] would do.
///
/// # Errors
/// Only what prevents looking, such as a failed read.
pub fn plan<D: DeriveMaps>(
    store: &LocalStore,
    found: &Inspection,
    maps: &D,
) -> Result<Repaired, D::Error> {
    let mut repaired = Repaired {
        set_aside: found.survey.packs_to_set_aside(),
        remade: found.survey.indexes_to_remake(),
        history: store.readable_revisions(&found.survey)?.faults,
        ..Repaired::default()
    };
    let salvage = Salvage::new(store, &found.survey, maps, None);
    let Inspection { survey, now, .. } = found;
    Job { store, survey, salvage: &salvage, now: *now }.states(&mut repaired)?;
    Ok(salvage.finish(repaired))
}

/// Repairs a store: afterwards it checks clean, unless a ref could not be restored at all.
///
/// `found` is of this store, with nothing written since.
///
/// # Errors
/// [`Error::Poisoned`]: open the store again first. A failed read or write: the repair can be run again.
pub fn repair<D: DeriveMaps>(
    store: &LocalStore,
    found: &Inspection,
    maps: &D,
    now: SystemTime,
) -> Result<Repaired, D::Error> {
    if found.report.is_clean() {
        return Ok(Repaired::default());
    }
    let _turn = store.begin_repair()?;
    let survey = &found.survey;
    // What it says goes into the report; mending puts a whole list in the place of a damaged one.
    let history = store.readable_revisions(survey)?.faults;
    let mended = store.mend(survey)?;
    let mut repaired = Repaired {
        set_aside: mended.set_aside,
        remade: mended.remade,
        moved: mended.moved,
        history,
        ..Repaired::default()
    };
    let salvage = Salvage::new(store, survey, maps, Some(now));
    let job = Job { store, survey, salvage: &salvage, now: found.now };
    let replaced = job.states(&mut repaired)?;
    let mut repaired = salvage.finish(repaired);
    job.commit(&mut repaired, &replaced, now)?;
    Ok(repaired)
}

/// What a repair works with.
struct Job<'a, D> {
    store: &'a LocalStore,
    survey: &'a Survey,
    salvage: &'a Salvage<'a, D>,
    /// The time by which leases are judged.
    now: SystemTime,
}

/// What becomes of damaged states.
type Replaced = HashMap<ChunkId, New>;

/// What becomes of a damaged state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    /// Nothing can be read of it, nor of anything older.
    Nothing,
    /// A new state can be made.
    Planned,
    /// A new state is stored.
    Made(ChunkId),
}

impl New {
    fn made(self) -> Option<ChunkId> {
        match self {
            Self::Made(root) => Some(root),
            Self::Nothing | Self::Planned => None,
        }
    }
}

impl<D: DeriveMaps> Job<'_, D> {
    /// Salvages every state that is damaged.
    fn states(&self, repaired: &mut Repaired) -> Result<Replaced, D::Error> {
        let readable = self.store.readable_revisions(self.survey)?;
        let refs = self.store.refs()?;
        let mut replaced = Replaced::new();
        for (name, chain) in chains(&refs, &readable.revisions) {
            self.salvage.chain(&name, &chain, &mut replaced)?;
            let Some(State { root, .. }) = chain.first().filter(|state| state.is_current) else {
                continue;
            };
            let Some(new) = replaced.get(root) else { continue };
            let good = self.salvage.newest_clean(&chain)?;
            let is_restorable = *new != New::Nothing;
            let (damaged, root) = (*root, new.made());
            repaired.refs.push(RepairedRef { name, damaged, root, good, is_restorable });
        }
        for revision in readable.revisions {
            let Some(root) = revision.update.new.and_then(|root| replaced.get(&root)) else {
                continue;
            };
            if repaired.revisions.len() < MAX_LISTED {
                let root = root.made();
                repaired.revisions.push(RepairedRevision { revision, root });
            } else {
                repaired.unlisted += 1;
            }
        }
        for lease in self.store.leases()? {
            let origin = Origin::Lease(lease.holder.clone());
            if lease.is_live(self.now) && !self.salvage.is_clean(&origin, lease.root)? {
                repaired.leases.push(lease);
            }
        }
        Ok(replaced)
    }

    /// Moves refs, ends leases, and puts a list of revisions that can all be read in the place of the one there was.
    fn commit(&self, repaired: &mut Repaired, replaced: &Replaced, now: SystemTime) -> Result<()> {
        let own = self.store.next_sequence();
        let mut batch = Batch::new();
        for one in &repaired.refs {
            let Some(root) = one.root else { continue };
            batch.move_ref(RefUpdate {
                name: one.name.clone(),
                expected: Some(one.damaged),
                new: Some(root),
                at: now,
                author: "repair".to_owned(),
                message: format!("repair: the state `{}` could not be read in full", one.damaged),
            });
        }
        for lease in &repaired.leases {
            batch.release(lease.holder.clone());
            self.store.end_lease_file(&lease.holder)?;
        }
        self.store.commit(batch)?;
        let mut readable = self.store.readable_revisions(self.survey)?;
        let is_whole = repaired.history.is_empty() && readable.faults.is_empty();
        if replaced.is_empty() && is_whole {
            return self.store.flush();
        }
        readable.revisions.retain_mut(|one| {
            if one.sequence >= own {
                return true;
            }
            if let Some(root) = one.update.expected.and_then(|root| replaced.get(&root)) {
                one.update.expected = root.made();
            }
            let Some(new) = one.update.new.and_then(|root| replaced.get(&root)) else {
                return true;
            };
            one.update.new = new.made();
            mark_mended(&mut one.update.message);
            one.update.new.is_some()
        });
        self.store.rewrite_log(&readable.revisions)
    }
}

/// Says in the message of a revision that it is not as it was.
fn mark_mended(message: &mut String) {
    /// So that the message stays within the bound of the format.
    const MAX_BYTES: usize = 7_800;
    if message.ends_with(MENDED) {
        return;
    }
    while message.len() > MAX_BYTES {
        message.pop();
    }
    message.push_str(MENDED);
}
