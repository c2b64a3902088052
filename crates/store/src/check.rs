//! The check: every record re-read, every ref walked.
//!
//! In: a local store. Out: a [`Report`] of what is damaged and which refs and keys that affects.
//!
//! Invariants
//! * Nothing is changed.
//! * A reachable chunk is visited once, however many refs reach it, unless something below it is damaged.
//!
//! Not here: large blobs; the report lists those that the store does not hold, for `blobs` to verify.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use crate::chunk::{Chunk, ChunkKind};
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::error::{Error, Result};
use crate::id::{BlobId, ChunkId};
use crate::local::{LocalStore, Survey};
use crate::root::Root;
use crate::tree::{Expected, Map, TreeFault, check_tree_chunk};

/// Levels of chunks below a root; more can only come from a hostile store.
const MAX_DEPTH: usize = 64;
/// Places that a report lists; more are counted.
const MAX_AFFECTED: usize = 1_000;

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pack files.
    pub packs: usize,
    /// Chunk records in them.
    pub chunks: u64,
    /// Small blobs in them.
    pub blobs: u64,
    /// Commit records in them.
    pub commits: u64,
    /// Bytes of all packs.
    pub bytes: u64,
    /// Refs that were walked.
    pub refs: usize,
    /// Chunks that the refs reach.
    pub reachable: u64,
    /// What is wrong with files, with place.
    pub faults: Vec<String>,
    /// What cannot be read because of it.
    pub affected: Vec<Affected>,
    /// How many more places are affected than `affected` lists.
    pub unlisted: u64,
    /// Blobs that the refs reach and the store does not hold: to be verified in the blob store.
    pub blobs_elsewhere: BTreeSet<BlobId>,
}

impl Report {
    /// Tells whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.affected.is_empty()
    }
}

/// One place that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affected {
    /// The ref that reaches it.
    pub name: String,
    /// The map; empty for the root itself.
    pub map: String,
    /// The key of the record whose body is affected, or where the affected part of the map begins.
    pub key: Vec<u8>,
    /// The chunk that cannot be read.
    pub chunk: ChunkId,
    /// Why.
    pub fault: String,
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        write!(
            f,
            "ref `{}`, map `{}`, from key `{}`: {}",
            self.name,
            self.map,
            key.escape_debug(),
            self.fault
        )
    }
}

/// Re-reads every record of every pack, then walks every ref through all that it reaches.
///
/// # Errors
/// Only what prevents the check itself, such as a pack that cannot be opened; damage is in the report.
pub fn check(store: &LocalStore) -> Result<Report> {
    let mut survey = store.survey()?;
    let mut walk = Walk {
        store,
        clean: HashSet::new(),
        report: Report {
            packs: survey.packs,
            chunks: survey.chunks,
            blobs: survey.blobs,
            commits: survey.commits,
            bytes: survey.bytes,
            faults: std::mem::take(&mut survey.faults),
            ..Report::default()
        },
        survey,
    };
    for (name, root) in store.refs()? {
        walk.report.refs += 1;
        walk.walk_root(&name, root)?;
    }
    walk.report.reachable = walk.clean.len() as u64;
    Ok(walk.report)
}

struct Walk<'a> {
    store: &'a LocalStore,
    /// Knows the records that are bad. The cache may still hold a good copy, which must not hide that.
    survey: Survey,
    /// Chunks with nothing wrong below.
    clean: HashSet<ChunkId>,
    report: Report,
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct At<'a> {
    name: &'a str,
    map: &'a str,
    key: &'a [u8],
    depth: usize,
}

impl Walk<'_> {
    fn walk_root(&mut self, name: &str, id: ChunkId) -> Result<()> {
        let at = At { name, map: "", key: &[], depth: 0 };
        if self.clean.contains(&id) {
            return Ok(());
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(());
        };
        match chunk.kind() {
            ChunkKind::Root => {}
            // A ref may also keep a single map or body alive.
            ChunkKind::Leaf | ChunkKind::Interior => {
                return self.walk_tree(id, at, None).map(drop);
            }
            ChunkKind::Body | ChunkKind::BodyList => return self.walk_body(id, at).map(drop),
        }
        let root = Root::read(&self.store.with_base(), &id)?;
        let mut is_clean = true;
        for (map, tree) in &root.maps {
            let at = At { map, ..at };
            is_clean &= self.walk_map(tree, at)?;
        }
        if is_clean {
            self.clean.insert(id);
        }
        Ok(())
    }

    fn walk_map(&mut self, map: &Map, at: At<'_>) -> Result<bool> {
        match map.root() {
            Some(id) => self.walk_tree(id, at, None),
            None => Ok(true),
        }
    }

    /// Walks a part of a tree; `expected` is what the parent says about it. Returns whether nothing is wrong.
    fn walk_tree(&mut self, id: ChunkId, at: At<'_>, expected: Option<&Expected>) -> Result<bool> {
        if self.clean.contains(&id) {
            return Ok(true);
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(false);
        };
        let parts = match check_tree_chunk(&chunk, &id, expected) {
            Ok(parts) => parts,
            Err(TreeFault(fault)) => {
                self.note(at, id, fault.to_owned());
                return Ok(false);
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
        if is_clean {
            self.clean.insert(id);
        }
        Ok(is_clean)
    }

    fn walk_body(&mut self, id: ChunkId, at: At<'_>) -> Result<bool> {
        if self.clean.contains(&id) {
            return Ok(true);
        }
        let Some(chunk) = self.load(&id, at)? else {
            return Ok(false);
        };
        if !matches!(chunk.kind(), ChunkKind::Body | ChunkKind::BodyList) {
            self.note(at, id, "it is not a body".to_owned());
            return Ok(false);
        }
        let mut is_clean = true;
        for blob in chunk.blob_refs() {
            if !self.store.contains_blob(&blob)? {
                self.report.blobs_elsewhere.insert(blob);
                continue;
            }
            if let Err(error) = self.store.read_blob(&blob) {
                self.note(at, id, error.to_string());
                is_clean = false;
            }
        }
        for piece in chunk.chunk_refs() {
            let depth = at.depth + 1;
            is_clean &= self.walk_body(piece, At { depth, ..at })?;
        }
        if is_clean {
            self.clean.insert(id);
        }
        Ok(is_clean)
    }

    /// Reads a chunk; notes it and returns `None` if it is damaged or missing.
    fn load(&mut self, id: &ChunkId, at: At<'_>) -> Result<Option<Chunk>> {
        if at.depth > MAX_DEPTH {
            self.note(at, *id, "it is nested too deeply".to_owned());
            return Ok(None);
        }
        if self.store.is_damaged(id, &self.survey) {
            self.note(at, *id, format!("chunk `{id}` is damaged"));
            return Ok(None);
        }
        match self.store.with_base().read(id) {
            Ok(chunk) => Ok(Some(chunk)),
            Err(error @ (Error::ChunkMissing { .. } | Error::ChunkDamaged { .. })) => {
                self.note(at, *id, error.to_string());
                Ok(None)
            }
            Err(other) => Err(other),
        }
    }

    fn note(&mut self, at: At<'_>, chunk: ChunkId, fault: String) {
        if self.report.affected.len() >= MAX_AFFECTED {
            self.report.unlisted += 1;
            return;
        }
        self.report.affected.push(Affected {
            name: at.name.to_owned(),
            map: at.map.to_owned(),
            key: at.key.to_vec(),
            chunk,
            fault,
        });
    }
}
