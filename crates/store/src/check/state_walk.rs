//! Walks states: the chunks and blobs reachable from each root, and those among them that cannot be read.

use std::collections::HashSet;

use super::report::{DamagedLocation, MAX_LISTED_LOCATIONS, RootOrigin, StoreCheckReport};
use super::visited_set::VisitedChunks;
use crate::chunk::{Chunk, ChunkKind};
use crate::error::Result;
use crate::id::ChunkId;
use crate::interface::chunk_store::ChunkStore;
use crate::local::{LocalStore, PackSurvey};
use crate::store_root::StoreRoot;
use crate::tree::{ExpectedChild, TreeFault, check_tree_chunk};

/// The maximum number of chunk levels below a root; only a hostile store can have more.
const MAX_WALK_DEPTH: usize = 64;

/// A walk over any number of states; chunks that they share are walked once.
pub(crate) struct StateWalk<'a> {
    store: &'a LocalStore,
    /// The damaged records.
    survey: &'a PackSurvey,
    /// Chunks with no fault in them or below them.
    clean_chunks: VisitedChunks<'a>,
    /// Chunks with a fault in them or below them, from states walked earlier.
    damaged_chunks: HashSet<ChunkId>,
    pub(crate) report: StoreCheckReport,
}

/// The current position of the walk.
#[derive(Clone, Copy)]
struct WalkPosition<'a> {
    origin: &'a RootOrigin,
    map: &'a str,
    key: &'a [u8],
    depth: usize,
}

impl<'a> StateWalk<'a> {
    /// Starts a walk that adds its findings to a report.
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

    /// Returns true if a chunk and everything reachable from it has been found intact.
    pub(crate) fn is_chunk_clean(&self, id: &ChunkId) -> bool {
        self.clean_chunks.contains(id)
    }

    /// Walks a state; returns true if all of it can be read.
    pub(crate) fn walk_state(&mut self, origin: &RootOrigin, root: ChunkId) -> Result<bool> {
        let at = WalkPosition { origin, map: "", key: &[], depth: 0 };
        self.walk_chunk(root, at)
    }

    /// Walks a body; returns true if all of it can be read.
    pub(crate) fn walk_state_body(&mut self, origin: &RootOrigin, id: ChunkId) -> Result<bool> {
        self.walk_body(id, WalkPosition { origin, map: "", key: &[], depth: 0 })
    }

    fn walk_chunk(&mut self, id: ChunkId, at: WalkPosition<'_>) -> Result<bool> {
        if let Some(result) = self.known_result(&id, at) {
            return Ok(result);
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

    /// Walks a part of a tree; `expected` is what the parent states about it.
    fn walk_tree(
        &mut self,
        id: ChunkId,
        at: WalkPosition<'_>,
        expected: Option<&ExpectedChild>,
    ) -> Result<bool> {
        if let Some(result) = self.known_result(&id, at) {
            return Ok(result);
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
        if let Some(result) = self.known_result(&id, at) {
            return Ok(result);
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
            // The body itself is intact, so the damaged blob is recorded only once.
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

    /// Returns the result of an earlier visit, or `None` if the chunk must be walked again.
    fn known_result(&self, id: &ChunkId, at: WalkPosition<'_>) -> Option<bool> {
        if self.clean_chunks.contains(id) {
            return Some(true);
        }
        // Each ref and lease lists everything it cannot read; revisions list only what no other state lists.
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

    /// Reads a chunk past the cache; records the fault and returns `None` if the chunk is damaged or missing.
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
