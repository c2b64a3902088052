//! Walking states: what each root reaches, and what of it cannot be read.

use std::collections::HashSet;

use super::visited::Visited;
use super::{Affected, MAX_AFFECTED, Origin, Report};
use crate::chunk::{Chunk, ChunkKind};
use crate::chunk_store::ChunkStore;
use crate::error::Result;
use crate::id::ChunkId;
use crate::local::{LocalStore, Survey};
use crate::root::Root;
use crate::tree::{Expected, TreeFault, check_tree_chunk};

/// Levels of chunks below a root; more can only come from a hostile store.
const MAX_DEPTH: usize = 64;

/// A walk over any number of states, which share what they have in common.
pub(crate) struct Walk<'a> {
    store: &'a LocalStore,
    /// Knows the records that are bad.
    survey: &'a Survey,
    /// Chunks with nothing wrong below.
    clean: Visited<'a>,
    /// Chunks with something wrong below, of states walked before this one.
    dirty: HashSet<ChunkId>,
    pub(crate) report: Report,
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct At<'a> {
    origin: &'a Origin,
    map: &'a str,
    key: &'a [u8],
    depth: usize,
}

impl<'a> Walk<'a> {
    /// Begins a walk that adds to a report.
    pub(crate) fn new(store: &'a LocalStore, survey: &'a Survey, report: Report) -> Self {
        Self { store, survey, clean: Visited::new(store), dirty: HashSet::new(), report }
    }

    /// Returns the report.
    pub(crate) fn finish(mut self) -> Report {
        self.report.reachable = self.clean.len();
        self.report
    }

    /// Tells whether a chunk has been found whole with all that it reaches.
    pub(crate) fn is_clean(&self, id: &ChunkId) -> bool {
        self.clean.contains(id)
    }

    /// Walks a state; tells whether all of it can be read.
    pub(crate) fn state(&mut self, origin: &Origin, root: ChunkId) -> Result<bool> {
        let at = At { origin, map: "", key: &[], depth: 0 };
        self.any(root, at)
    }

    /// Walks a body; tells whether all of it can be read.
    pub(crate) fn body(&mut self, origin: &Origin, id: ChunkId) -> Result<bool> {
        self.walk_body(id, At { origin, map: "", key: &[], depth: 0 })
    }

    fn any(&mut self, id: ChunkId, at: At<'_>) -> Result<bool> {
        if let Some(known) = self.known(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(self.settle(id, false));
        };
        match chunk.kind() {
            ChunkKind::Root => {}
            // A ref may also keep a single map or body alive.
            ChunkKind::Leaf | ChunkKind::Interior => return self.walk_tree(id, at, None),
            ChunkKind::Body | ChunkKind::BodyList => return self.walk_body(id, at),
        }
        let root = match Root::parse(&chunk, &id) {
            Ok(root) => root,
            Err(error) => {
                self.note(at, id, error.to_string());
                return Ok(self.settle(id, false));
            }
        };
        let mut is_clean = true;
        for (map, tree) in &root.maps {
            if let Some(root) = tree.root() {
                is_clean &= self.walk_tree(root, At { map, ..at }, None)?;
            }
        }
        Ok(self.settle(id, is_clean))
    }

    /// Walks a part of a tree; `expected` is what the parent says about it.
    fn walk_tree(&mut self, id: ChunkId, at: At<'_>, expected: Option<&Expected>) -> Result<bool> {
        if let Some(known) = self.known(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(self.settle(id, false));
        };
        let parts = match check_tree_chunk(&chunk, &id, expected) {
            Ok(parts) => parts,
            Err(TreeFault(fault)) => {
                self.note(at, id, fault.to_owned());
                return Ok(self.settle(id, false));
            }
        };
        let mut is_clean = true;
        for child in &parts.children {
            let key = child.lower.as_slice();
            let at = At { key, depth: at.depth + 1, ..at };
            is_clean &= self.walk_tree(child.id, at, Some(child))?;
        }
        for (key, body) in &parts.bodies {
            let at = At { key, depth: at.depth + 1, ..at };
            is_clean &= self.walk_body(*body, at)?;
        }
        Ok(self.settle(id, is_clean))
    }

    fn walk_body(&mut self, id: ChunkId, at: At<'_>) -> Result<bool> {
        if let Some(known) = self.known(&id, at) {
            return Ok(known);
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(self.settle(id, false));
        };
        if !matches!(chunk.kind(), ChunkKind::Body | ChunkKind::BodyList) {
            self.note(at, id, "it is not a body".to_owned());
            return Ok(self.settle(id, false));
        }
        let mut is_clean = true;
        for blob in chunk.blob_refs() {
            // The body is whole all the same, so that this is noted once.
            if self.store.is_damaged_blob(&blob, self.survey) {
                self.note(at, id, format!("blob `{blob}` is damaged"));
                self.report.damaged_blobs.insert(blob);
            } else if !self.store.contains_blob(&blob)? {
                self.report.blobs_elsewhere.insert(blob);
            }
        }
        for piece in chunk.chunk_refs() {
            let depth = at.depth + 1;
            is_clean &= self.walk_body(piece, At { depth, ..at })?;
        }
        Ok(self.settle(id, is_clean))
    }

    /// Returns what an earlier visit has shown, if another need not tell more.
    fn known(&self, id: &ChunkId, at: At<'_>) -> Option<bool> {
        if self.clean.contains(id) {
            return Some(true);
        }
        // Each ref and lease lists what it cannot read; revisions add what no other state does.
        let is_listed = matches!(at.origin, Origin::Revision { .. }) && self.dirty.contains(id);
        is_listed.then_some(false)
    }

    fn settle(&mut self, id: ChunkId, is_clean: bool) -> bool {
        if is_clean {
            self.clean.insert(id);
        } else {
            self.dirty.insert(id);
        }
        is_clean
    }

    /// Reads a chunk past the cache; notes it and returns `None` if it is damaged or missing.
    fn load(&mut self, id: &ChunkId, at: At<'_>) -> Result<Option<Chunk>> {
        if at.depth > MAX_DEPTH {
            self.note(at, *id, "it is nested too deeply".to_owned());
            return Ok(None);
        }
        Ok(match self.store.read_surveyed(id, self.survey)? {
            Ok(chunk) => Some(chunk),
            Err(fault) => {
                self.note(at, *id, fault);
                None
            }
        })
    }

    fn note(&mut self, at: At<'_>, chunk: ChunkId, fault: String) {
        if self.report.affected.len() >= MAX_AFFECTED {
            self.report.unlisted += 1;
            return;
        }
        self.report.affected.push(Affected {
            origin: at.origin.clone(),
            map: at.map.to_owned(),
            key: at.key.to_vec(),
            chunk,
            fault,
        });
    }
}
