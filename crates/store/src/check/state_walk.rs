//! Walking states: what each root reaches, and what of it cannot be read.

use std::collections::HashSet;

use super::visited_set::VisitedChunks;
use super::{DamagedLocation, MAX_LISTED_LOCATIONS, RootOrigin, StoreCheckReport};
use crate::chunk::{Chunk, ChunkKind};
use crate::chunk_store::ChunkStore;
use crate::error::Result;
use crate::id::ChunkId;
use crate::local::{LocalStore, PackSurvey};
use crate::store_root::StoreRoot;
use crate::tree::{ExpectedChild, TreeFault, check_tree_chunk};

/// Levels of chunks below a root; more can only come from a hostile store.
const MAX_WALK_DEPTH: usize = 64;

/// A walk over any number of states, which share what they have in common.
pub(crate) struct StateWalk<'a> {
    store: &'a LocalStore,
    /// Knows the records that are bad.
    survey: &'a PackSurvey,
    /// Chunks with nothing wrong below.
    clean_chunks: VisitedChunks<'a>,
    /// Chunks with something wrong below, of states walked before this one.
    damaged_chunks: HashSet<ChunkId>,
    pub(crate) report: StoreCheckReport,
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct WalkPosition<'a> {
    origin: &'a RootOrigin,
    map: &'a str,
    key: &'a [u8],
    depth: usize,
}

impl<'a> StateWalk<'a> {
    /// Begins a walk that adds to a report.
    pub(crate) fn new(
        store: &'a LocalStore,
        survey: &'a PackSurvey,
        report: StoreCheckReport,
    ) -> Self {
        Self {
            store,
            survey,
            clean_chunks: VisitedChunks::new(store),
            damaged_chunks: HashSet::new(),
            report,
        }
    }

    /// Returns the report.
    pub(crate) fn into_report(mut self) -> StoreCheckReport {
        self.report.reachable_chunks = self.clean_chunks.len();
        self.report
    }

    /// Tells whether a chunk has been found whole with all that it reaches.
    pub(crate) fn is_chunk_clean(&self, id: &ChunkId) -> bool {
        self.clean_chunks.contains(id)
    }

    /// Walks a state; tells whether all of it can be read.
    pub(crate) fn walk_state(&mut self, origin: &RootOrigin, root: ChunkId) -> Result<bool> {
        let at = WalkPosition { origin, map: "", key: &[], depth: 0 };
        self.walk_chunk(root, at)
    }

    /// Walks a body; tells whether all of it can be read.
    pub(crate) fn walk_state_body(&mut self, origin: &RootOrigin, id: ChunkId) -> Result<bool> {
        self.walk_body(id, WalkPosition { origin, map: "", key: &[], depth: 0 })
    }

    fn walk_chunk(&mut self, id: ChunkId, at: WalkPosition<'_>) -> Result<bool> {
        if let Some(known) = self.known_result(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load_chunk(&id, at)? else {
            return Ok(self.record_result(id, false));
        };
        match chunk.kind() {
            ChunkKind::Root => {}
            // A ref may also keep a single map or body alive.
            ChunkKind::Leaf | ChunkKind::Interior => return self.walk_tree(id, at, None),
            ChunkKind::Body | ChunkKind::BodyList => return self.walk_body(id, at),
        }
        let root = match StoreRoot::parse_chunk(&chunk, &id) {
            Ok(root) => root,
            Err(error) => {
                self.record_damage(at, id, error.to_string());
                return Ok(self.record_result(id, false));
            }
        };
        let mut is_clean = true;
        for (map, tree) in &root.maps {
            if let Some(root) = tree.root() {
                is_clean &= self.walk_tree(root, WalkPosition { map, ..at }, None)?;
            }
        }
        Ok(self.record_result(id, is_clean))
    }

    /// Walks a part of a tree; `expected` is what the parent says about it.
    fn walk_tree(
        &mut self,
        id: ChunkId,
        at: WalkPosition<'_>,
        expected: Option<&ExpectedChild>,
    ) -> Result<bool> {
        if let Some(known) = self.known_result(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load_chunk(&id, at)? else {
            return Ok(self.record_result(id, false));
        };
        let parts = match check_tree_chunk(&chunk, &id, expected) {
            Ok(parts) => parts,
            Err(TreeFault(fault)) => {
                self.record_damage(at, id, fault.to_owned());
                return Ok(self.record_result(id, false));
            }
        };
        let mut is_clean = true;
        for child in &parts.children {
            let key = child.lower.as_slice();
            let at = WalkPosition { key, depth: at.depth + 1, ..at };
            is_clean &= self.walk_tree(child.id, at, Some(child))?;
        }
        for (key, body) in &parts.bodies {
            let at = WalkPosition { key, depth: at.depth + 1, ..at };
            is_clean &= self.walk_body(*body, at)?;
        }
        Ok(self.record_result(id, is_clean))
    }

    fn walk_body(&mut self, id: ChunkId, at: WalkPosition<'_>) -> Result<bool> {
        if let Some(known) = self.known_result(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load_chunk(&id, at)? else {
            return Ok(self.record_result(id, false));
        };
        if !matches!(chunk.kind(), ChunkKind::Body | ChunkKind::BodyList) {
            self.record_damage(at, id, "it is not a body".to_owned());
            return Ok(self.record_result(id, false));
        }
        let mut is_clean = true;
        for blob in chunk.blob_refs() {
            // The body is whole all the same, so that this is noted once.
            if self.store.is_damaged_blob(&blob, self.survey) {
                self.record_damage(at, id, format!("blob `{blob}` is damaged"));
                self.report.damaged_blobs.insert(blob);
            } else if !self.store.contains_blob(&blob)? {
                self.report.external_blobs.insert(blob);
            }
        }
        for piece in chunk.chunk_refs() {
            let depth = at.depth + 1;
            is_clean &= self.walk_body(piece, WalkPosition { depth, ..at })?;
        }
        Ok(self.record_result(id, is_clean))
    }

    /// Returns what an earlier visit has shown, if another need not tell more.
    fn known_result(&self, id: &ChunkId, at: WalkPosition<'_>) -> Option<bool> {
        if self.clean_chunks.contains(id) {
            return Some(true);
        }
        // Each ref and lease lists what it cannot read; revisions add what no other state does.
        let is_listed =
            matches!(at.origin, RootOrigin::Revision { .. }) && self.damaged_chunks.contains(id);
        is_listed.then_some(false)
    }

    fn record_result(&mut self, id: ChunkId, is_clean: bool) -> bool {
        if is_clean {
            self.clean_chunks.insert(id);
        } else {
            self.damaged_chunks.insert(id);
        }
        is_clean
    }

    /// Reads a chunk past the cache; notes it and returns `None` if it is damaged or missing.
    fn load_chunk(&mut self, id: &ChunkId, at: WalkPosition<'_>) -> Result<Option<Chunk>> {
        if at.depth > MAX_WALK_DEPTH {
            self.record_damage(at, *id, "it is nested too deeply".to_owned());
            return Ok(None);
        }
        Ok(match self.store.read_surveyed_chunk(id, self.survey)? {
            Ok(chunk) => Some(chunk),
            Err(fault) => {
                self.record_damage(at, *id, fault);
                None
            }
        })
    }

    fn record_damage(&mut self, at: WalkPosition<'_>, chunk: ChunkId, fault: String) {
        if self.report.damaged_locations.len() >= MAX_LISTED_LOCATIONS {
            self.report.unlisted_count += 1;
            return;
        }
        self.report.damaged_locations.push(DamagedLocation {
            origin: at.origin.clone(),
            map: at.map.to_owned(),
            key: at.key.to_vec(),
            chunk,
            fault,
        });
    }
}
