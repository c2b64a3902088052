//! Builds missing property indexes of a repository in use, and the index of links of a repository that predates it.
//!
//! In: definitions whose maps the newest state lacks. Out: these maps, added to the state by one commit.
//!
//! Invariants
//! * Commits continue during a build. The content is read in bounded steps over a pinned root. Then the difference to
//!   later commits is applied repeatedly, and the last small difference in the commit that adds the maps.
//! * A branch starts from the maps of `main`, if `main` has them, and reads only the differences.
//! * Until that commit no query uses the index; after it, the map equals the one that commits of the same content
//!   produce.
//!
//! On failure: an interrupted build restarts from the beginning. Its chunks are garbage. A build that the content does
//! not allow restarts when a blocking document changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use tympan_store::{ChunkBatch, ChunkStore, CollectionHold, RefUpdate, SortedMap, StoreRoot};

use crate::branch::branch_ref::MAIN_BRANCH;
use crate::commit::staged_head::open_staged_head;
use crate::index::build_progress::{IndexBuildProgress, IndexState};
use crate::index::missing_maps::{map_selection_for, record_document_change};
use crate::index::property_index::{DEFINITIONS_PATH, IndexDefinitions, create_empty_maps};
use crate::index::{IndexEdits, IndexMapSelection, LINK_MAP, create_empty_link_map};
use crate::repository::Repository;
use crate::snapshot::SnapshotView;
use crate::{Error, NodePath, Property, Result, Snapshot, Value, document::record_key};

/// The author of commits that no user requested.
const SYSTEM_USER_NAME: &str = "system";
/// Number of documents read in one step.
const STEP_DOCUMENT_COUNT: usize = 5_000;
/// Maximum number of documents in a difference that is applied inside the commit.
const MAX_COMMIT_DIFFERENCE: usize = 200;

/// The status of a property index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexStatus {
    /// The name of its index definition.
    pub name: String,
    /// The property, with the relative path to it, or the function of the property.
    pub property: String,
    /// Its state.
    pub state: IndexState,
}

/// An index build in progress.
#[derive(Debug)]
pub struct IndexBuild {
    repository: Repository,
    definitions: Arc<IndexDefinitions>,
    /// The maps to build besides those of the definitions.
    map_selection: IndexMapSelection,
    /// The state that is being read, up to `next`.
    base_snapshot: Snapshot,
    /// The key from which the next step continues; `None` when all documents were read.
    next_key: Option<Bound<Vec<u8>>>,
    maps: BTreeMap<String, SortedMap>,
    documents_done: u64,
    documents_total: u64,
    /// Protects the chunks of the maps from collection, because nothing refers to them yet.
    _chunk_hold: CollectionHold,
}

impl Repository {
    /// Returns the property indexes of the newest state, sorted by name.
    ///
    /// # Errors
    /// If the store fails.
    pub fn index_statuses(&self) -> Result<Vec<IndexStatus>> {
        let snapshot = self.snapshot()?;
        let reads = self.0.chunk_reader();
        let maps = StoreRoot::read(reads, &snapshot.root_id())?.maps;
        let builds = self.0.cache.index_builds.0.lock().clone();
        let mut statuses = Vec::new();
        for index in &IndexDefinitions::read_cached(&snapshot.view)?.0 {
            let build = builds.get(&self.build_key(&index.map_name));
            let state = match maps.get(&index.map_name) {
                // The empty key is not an entry.
                Some(map) => {
                    IndexState::Ready { entries: map.count_records(reads)?.saturating_sub(1) }
                }
                None => build.map_or(IndexState::Waiting, |build| build.state.clone()),
            };
            let property = index.expression();
            statuses.push(IndexStatus { name: index.name.clone(), property, state });
        }
        statuses.sort_by(|left, right| {
            (&left.name, &left.property).cmp(&(&right.name, &right.property))
        });
        Ok(statuses)
    }

    /// Begins to build the indexes that the newest state lacks; `None` if it lacks none that can be built.
    ///
    /// # Errors
    /// If the store fails.
    pub fn begin_index_build(&self) -> Result<Option<IndexBuild>> {
        let base = self.snapshot()?;
        let maps = StoreRoot::read(self.0.chunk_reader(), &base.root_id())?.maps;
        let definitions = IndexDefinitions::read_cached(&base.view)?;
        let mut missing = Vec::new();
        for index in definitions.0.iter().filter(|index| !maps.contains_key(&index.map_name)) {
            if !self.is_known_to_fail(&index.map_name, base.view.content_map)? {
                missing.push(index.clone());
            }
        }
        let definitions = Arc::new(IndexDefinitions(missing));
        let lacks_links = !maps.contains_key(LINK_MAP);
        if definitions.0.is_empty() && !lacks_links {
            return Ok(None);
        }
        let hold = self.hold_blobs()?;
        if let Some((base, maps)) = self.reusable_main_maps(&definitions, lacks_links)? {
            let kinds = map_selection_for(maps.contains_key(LINK_MAP));
            let have = definitions.0.iter().filter(|index| maps.contains_key(&index.map_name));
            let definitions = Arc::new(IndexDefinitions(have.cloned().collect()));
            return Ok(Some(IndexBuild {
                repository: self.clone(),
                definitions,
                map_selection: kinds,
                base_snapshot: base,
                next_key: None,
                maps,
                documents_done: 0,
                documents_total: 0,
                _chunk_hold: hold,
            }));
        }
        let mut batch = ChunkBatch::new();
        let mut maps = create_empty_maps(&definitions, &mut batch)?;
        if lacks_links {
            maps.insert(LINK_MAP.to_owned(), create_empty_link_map(&mut batch)?);
        }
        self.chunks().commit(batch)?;
        let total = base.view.content_map.count_records(self.0.chunk_reader())?;
        Ok(Some(IndexBuild {
            repository: self.clone(),
            definitions,
            map_selection: map_selection_for(lacks_links),
            base_snapshot: base,
            next_key: Some(Bound::Unbounded),
            maps,
            documents_done: 0,
            documents_total: total,
            _chunk_hold: hold,
        }))
    }

    fn build_key(&self, map: &str) -> (String, String) {
        (self.0.branch.clone(), map.to_owned())
    }

    /// Returns true if a build would fail again because the blocking documents are unchanged.
    fn is_known_to_fail(&self, map: &str, content: SortedMap) -> Result<bool> {
        let build = self.0.cache.index_builds.0.lock().get(&self.build_key(map)).cloned();
        let Some(IndexBuildProgress { state: IndexState::Failed { .. }, blocking_documents }) =
            build
        else {
            return Ok(false);
        };
        for (key, was) in blocking_documents {
            if content.get(self.0.chunk_reader(), &key)? != was {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the missing maps that `main` has, with its state: a branch then needs only the difference.
    fn reusable_main_maps(
        &self,
        missing: &IndexDefinitions,
        lacks_links: bool,
    ) -> Result<Option<(Snapshot, BTreeMap<String, SortedMap>)>> {
        if self.0.branch == MAIN_BRANCH {
            return Ok(None);
        }
        let Some(root) = self.chunks().read_ref(MAIN_BRANCH)? else { return Ok(None) };
        let base = self.snapshot_at(root)?;
        let mut maps = StoreRoot::read(self.0.chunk_reader(), &root)?.maps;
        maps.retain(|map, _| {
            missing.0.iter().any(|index| index.map_name == *map) || (lacks_links && map == LINK_MAP)
        });
        Ok((!maps.is_empty()).then_some((base, maps)))
    }

    /// Builds all indexes that the newest state lacks; returns their number. Resets the reindex request of their
    /// definitions.
    ///
    /// # Errors
    /// If the store fails. An index that the content does not allow is logged and skipped.
    pub fn build_indexes(&self) -> Result<usize> {
        let mut count = 0;
        while let Some(mut build) = self.begin_index_build()? {
            while !build.run_step()? {}
            count += build.definitions.0.len();
        }
        self.reset_reindex_flags()?;
        Ok(count)
    }

    /// Sets `reindex` back to false, and increments the counter, where the index has been built.
    fn reset_reindex_flags(&self) -> Result<()> {
        // The base state of the session decides, so that a new request made in the meantime is not lost.
        let mut session = self.session(SYSTEM_USER_NAME)?;
        let snapshot = session.snapshot()?;
        let definitions = IndexDefinitions::read_cached(&snapshot.view)?;
        if !definitions.0.iter().any(|index| index.needs_reindex) {
            return Ok(());
        }
        let maps = StoreRoot::read(self.0.chunk_reader(), &snapshot.root_id())?.maps;
        let has_all = |name: &str| {
            let mut own = definitions.0.iter().filter(|index| index.name == name);
            own.all(|index| maps.contains_key(&index.map_name))
        };
        let requested_names: BTreeSet<&str> = definitions
            .0
            .iter()
            .filter(|definition| definition.needs_reindex)
            .map(|definition| &*definition.name)
            .collect();
        for name in requested_names.into_iter().filter(|name| has_all(name)) {
            let path = NodePath::new(DEFINITIONS_PATH)?.child(name)?;
            let Some(node) = snapshot.node(&path)? else { continue };
            let count = match node.property("reindexCount").as_ref().and_then(Property::first) {
                Some(Value::Long(count)) => count.saturating_add(1),
                _ => 1,
            };
            session.set_property(&path, "reindex", Value::Boolean(false).into())?;
            session.set_property(&path, "reindexCount", Value::Long(count).into())?;
        }
        match session.commit("rebuild indexes", SystemTime::UNIX_EPOCH) {
            // A definition was changed concurrently; its new form is checked next.
            Err(Error::Conflicts(_)) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Drops the maps of one index, or of all, so that they are rebuilt; returns the number of indexes dropped.
    ///
    /// # Errors
    /// If the store fails.
    pub fn drop_indexes(&self, name: Option<&str>) -> Result<usize> {
        let commits =
            self.0.session_committer.as_ref().ok_or(Error::MissingContentMap(self.head_root()?))?;
        let branch = &self.0.branch;
        self.0.cache.index_builds.0.lock().retain(|(on, _), _| on != branch);
        commits.committer.commit_change(|head| {
            let head = open_staged_head(&commits.staged_state, head)?;
            let mut maps =
                StoreRoot::read(head.repository_state.chunk_reader(), &head.root_id)?.maps;
            let before = maps.len();
            let mut count = 0;
            for index in &IndexDefinitions::read_cached(&head)?.0 {
                if name.is_none_or(|name| name == index.name) {
                    maps.remove(&index.map_name);
                    count += 1;
                }
            }
            let is_same = maps.len() == before;
            let batch = if is_same {
                ChunkBatch::new()
            } else {
                stage_index_maps(&head, maps, "drop indexes")?
            };
            Ok((batch, count))
        })
    }
}

impl IndexBuild {
    /// Reads the next documents, or finishes the build; returns true if the build is finished.
    ///
    /// # Errors
    /// If the store fails.
    pub fn run_step(&mut self) -> Result<bool> {
        let result = match self.next_key.take() {
            Some(start) => self.read_documents(&start).map(|()| false),
            None => self.finish(),
        };
        match result {
            Ok(is_done) => {
                self.record_progress(is_done);
                Ok(is_done)
            }
            Err(error @ Error::NotUnique { .. }) => {
                self.record_failure(&error)?;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn record_progress(&self, is_done: bool) {
        let state = IndexState::Building {
            documents_done: self.documents_done,
            documents_total: self.documents_total,
        };
        let mut builds = self.repository.0.cache.index_builds.0.lock();
        for index in &self.definitions.0 {
            let build = self.repository.build_key(&index.map_name);
            if is_done {
                builds.remove(&build);
            } else {
                builds.insert(
                    build,
                    IndexBuildProgress { state: state.clone(), blocking_documents: Vec::new() },
                );
            }
        }
    }

    /// Records the reason for which an index cannot be built, and the blocking documents.
    fn record_failure(&self, error: &Error) -> Result<()> {
        let Error::NotUnique { property, path, existing_path } = error else {
            return Ok(());
        };
        let reason = error.to_string();
        tracing::warn!(reason, "cannot build an index");
        let failed = self.definitions.0.iter();
        for index in failed.filter(|index| index.is_unique && index.property == *property) {
            let mut blocking_documents = Vec::new();
            for subject in [Some(path), existing_path.as_ref()].into_iter().flatten() {
                let holder = subject.resolve(&index.property_parent)?;
                let node = self.base_snapshot.node(&holder)?;
                let owner = node.map_or_else(|| subject.clone(), |node| node.record_path().clone());
                let key = record_key::record_key(&owner)?;
                let stored = self
                    .base_snapshot
                    .view
                    .content_map
                    .get(self.repository.0.chunk_reader(), &key)?;
                blocking_documents.push((key, stored));
            }
            let state = IndexState::Failed { reason: reason.clone() };
            let build = IndexBuildProgress { state, blocking_documents };
            let mut builds = self.repository.0.cache.index_builds.0.lock();
            builds.insert(self.repository.build_key(&index.map_name), build);
        }
        Ok(())
    }

    fn read_documents(&mut self, start: &Bound<Vec<u8>>) -> Result<()> {
        let store = self.repository.chunks().clone();
        let content = self.base_snapshot.view.content_map;
        let start = start.as_ref().map(Vec::as_slice);
        let mut edits = self.new_edits();
        let mut count = 0;
        for entry in content.range(&*store, (start, Bound::Unbounded)).take(STEP_DOCUMENT_COUNT) {
            let (key, stored) = entry?;
            record_document_change(&mut edits, &key, [None, Some(&stored)], &*store)?;
            count += 1;
            if count == STEP_DOCUMENT_COUNT {
                self.next_key = Some(Bound::Excluded(key.to_vec()));
            }
        }
        self.documents_done += count as u64;
        self.apply_edits(edits, &*store)
    }

    fn new_edits(&self) -> IndexEdits {
        IndexEdits::new(self.map_selection, self.definitions.clone())
    }

    fn apply_edits(&mut self, edits: IndexEdits, store: &dyn ChunkStore) -> Result<()> {
        let mut batch = ChunkBatch::new();
        edits.apply(&mut self.maps, store, &mut batch)?;
        Ok(store.commit(batch)?)
    }

    /// Applies the commits since the build began; a small difference is applied inside a commit.
    fn finish(&mut self) -> Result<bool> {
        let store = self.repository.chunks().clone();
        loop {
            let head = self.repository.snapshot()?;
            let mut edits = self.new_edits();
            let mut count = 0;
            for change in self.base_snapshot.view.content_map.diff(&head.view.content_map, &*store)
            {
                let change = change?;
                let sides = [change.left.as_ref(), change.right.as_ref()];
                record_document_change(&mut edits, &change.key, sides, &*store)?;
                count += 1;
                if count % STEP_DOCUMENT_COUNT == 0 {
                    let part = std::mem::replace(&mut edits, self.new_edits());
                    self.apply_edits(part, &*store)?;
                }
            }
            self.apply_edits(edits, &*store)?;
            self.base_snapshot = head;
            if count <= MAX_COMMIT_DIFFERENCE {
                return self.commit();
            }
        }
    }

    fn commit(&self) -> Result<bool> {
        let shared = &self.repository.0;
        let commits = shared
            .session_committer
            .as_ref()
            .ok_or(Error::MissingContentMap(self.base_snapshot.root_id()))?;
        commits.committer.commit_change(|head| {
            let head = open_staged_head(&commits.staged_state, head)?;
            let reads = head.repository_state.chunk_reader();
            let mut batch = ChunkBatch::new();
            let mut built = self.maps.clone();
            let mut edits = self.new_edits();
            for change in self.base_snapshot.view.content_map.diff(&head.content_map, reads) {
                let change = change?;
                record_document_change(
                    &mut edits,
                    &change.key,
                    [change.left.as_ref(), change.right.as_ref()],
                    reads,
                )?;
            }
            edits.apply(&mut built, reads, &mut batch)?;
            // Definitions may have been removed during the build.
            let definitions = IndexDefinitions::read_cached(&head)?;
            built.retain(|map, _| {
                map == LINK_MAP || definitions.0.iter().any(|index| index.map_name == *map)
            });
            let mut maps = StoreRoot::read(reads, &head.root_id)?.maps;
            maps.extend(built);
            let moved = stage_index_maps(&head, maps, "build indexes")?;
            batch.append(moved);
            Ok((batch, true))
        })
    }
}

/// Stages a state with other index maps and the move of the ref to it.
fn stage_index_maps(
    head: &SnapshotView,
    maps: BTreeMap<String, SortedMap>,
    message: &str,
) -> Result<ChunkBatch> {
    let mut batch = ChunkBatch::new();
    let new = StoreRoot { maps }.write(&mut batch)?;
    batch.add_ref_update(RefUpdate {
        name: head.repository_state.branch.clone(),
        expected_root: Some(head.root_id),
        new_root: Some(new),
        updated_at: SystemTime::UNIX_EPOCH,
        author: SYSTEM_USER_NAME.to_owned(),
        message: message.to_owned(),
    });
    Ok(batch)
}
