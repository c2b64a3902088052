//! Building property indexes of a repository that is in use, and the index of links of one from before it.
//!
//! In: definitions whose maps the newest state lacks. Out: these maps, put into the state by one commit.
//!
//! Invariants
//! * Commits go on meanwhile. The content is read in bounded steps over a pinned root; then the difference to what was
//!   committed since is applied, again and again, and the last small difference in the commit that adds the maps.
//! * A branch begins with the maps of `main`, where that has them, and reads only what differs.
//! * Until that commit no query uses the index; after it, the map is what commits of the same content make.
//!
//! On failure: a build that stops is begun again from nothing. Its chunks are garbage. One that the content does not
//! allow is begun again when a document that is in its way changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_store::{Batch, ChunkStore, Hold, Map, ReadChunks, RefUpdate, Root, Value as Stored};

use crate::index::{IndexEdits, LINK, Maps, empty_link_map};
use crate::property_index::{DEFINITIONS, Definitions, empty_maps};
use crate::record::Record;
use crate::repository::{MAIN, Repository};
use crate::snapshot::View;
use crate::{Error, NodePath, Property, Result, Snapshot, Value, commit, keys};

/// The author of what no user asked for.
const SYSTEM_USER: &str = "system";
/// Documents that are read in one step.
const STEP: usize = 5_000;
/// A difference of at most this many documents is applied inside the commit.
const SMALL_DIFFERENCE: usize = 200;

/// A property index and what it can do now.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexStatus {
    /// The name of its definition.
    pub name: String,
    /// The property, with the relative path to it; or the function of it.
    pub property: String,
    /// Its state.
    pub state: IndexState,
}

/// What an index can do now.
#[derive(Debug, Clone, PartialEq)]
pub enum IndexState {
    /// It serves queries.
    Ready {
        /// How many entries it has.
        entries: u64,
    },
    /// It waits to be built.
    Waiting,
    /// It is being built.
    Building {
        /// Documents that have been read.
        done: u64,
        /// Documents there are.
        total: u64,
    },
    /// It cannot be built as the content is.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What builds are doing, by branch and map.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<BTreeMap<(String, String), Build>>);

/// What one build is doing.
#[derive(Debug, Clone)]
struct Build {
    state: IndexState,
    /// Of a failed one, the documents that are in the way, as they were: it is begun again when one is another.
    obstacles: Vec<(Vec<u8>, Option<Stored>)>,
}

/// A build under way.
#[derive(Debug)]
pub struct IndexBuild {
    repository: Repository,
    definitions: Arc<Definitions>,
    /// Which maps it builds besides those of the definitions.
    kinds: Maps,
    /// The state that has been read, up to `next`.
    base: Snapshot,
    /// The key behind which the next step goes on; none when all was read.
    next: Option<Bound<Vec<u8>>>,
    maps: BTreeMap<String, Map>,
    done: u64,
    total: u64,
    /// Keeps the chunks of the maps, to which nothing refers yet.
    _hold: Hold,
}

impl Repository {
    /// Returns the property indexes of the newest state, sorted by name.
    ///
    /// # Errors
    /// If the store fails.
    pub fn index_statuses(&self) -> Result<Vec<IndexStatus>> {
        let snapshot = self.snapshot()?;
        let reads = self.0.reads();
        let maps = Root::read(reads, &snapshot.root_id())?.maps;
        let builds = self.0.bodies.builds.0.lock().clone();
        let mut statuses = Vec::new();
        for index in &Definitions::cached(&snapshot.0)?.0 {
            let build = builds.get(&self.build_of(&index.map));
            let state = match maps.get(&index.map) {
                // The empty key is no entry.
                Some(map) => IndexState::Ready { entries: map.count(reads)?.saturating_sub(1) },
                None => build.map_or(IndexState::Waiting, |build| build.state.clone()),
            };
            let property = index.what();
            statuses.push(IndexStatus { name: index.name.clone(), property, state });
        }
        statuses.sort_by(|left, right| {
            (&left.name, &left.property).cmp(&(&right.name, &right.property))
        });
        Ok(statuses)
    }

    /// Begins to build the indexes that the newest state lacks; nothing if it lacks none that can be built.
    ///
    /// # Errors
    /// If the store fails.
    pub fn begin_index_build(&self) -> Result<Option<IndexBuild>> {
        let base = self.snapshot()?;
        let maps = Root::read(self.0.reads(), &base.root_id())?.maps;
        let definitions = Definitions::cached(&base.0)?;
        let mut missing = Vec::new();
        for index in definitions.0.iter().filter(|index| !maps.contains_key(&index.map)) {
            if !self.is_in_vain(&index.map, base.0.content)? {
                missing.push(index.clone());
            }
        }
        let definitions = Arc::new(Definitions(missing));
        let lacks_links = !maps.contains_key(LINK);
        if definitions.0.is_empty() && !lacks_links {
            return Ok(None);
        }
        let hold = self.hold()?;
        if let Some((base, maps)) = self.maps_of_main(&definitions, lacks_links)? {
            let kinds = kinds_of(maps.contains_key(LINK));
            let have = definitions.0.iter().filter(|index| maps.contains_key(&index.map));
            let definitions = Arc::new(Definitions(have.cloned().collect()));
            return Ok(Some(IndexBuild {
                repository: self.clone(),
                definitions,
                kinds,
                base,
                next: None,
                maps,
                done: 0,
                total: 0,
                _hold: hold,
            }));
        }
        let mut batch = Batch::new();
        let mut maps = empty_maps(&definitions, &mut batch)?;
        if lacks_links {
            maps.insert(LINK.to_owned(), empty_link_map(&mut batch)?);
        }
        self.chunks().commit(batch)?;
        let total = base.0.content.count(self.0.reads())?;
        Ok(Some(IndexBuild {
            repository: self.clone(),
            definitions,
            kinds: kinds_of(lacks_links),
            base,
            next: Some(Bound::Unbounded),
            maps,
            done: 0,
            total,
            _hold: hold,
        }))
    }

    fn build_of(&self, map: &str) -> (String, String) {
        (self.0.branch.clone(), map.to_owned())
    }

    /// Tells whether a build would fail as it did: whether what was in the way is as it was.
    fn is_in_vain(&self, map: &str, content: Map) -> Result<bool> {
        let build = self.0.bodies.builds.0.lock().get(&self.build_of(map)).cloned();
        let Some(Build { state: IndexState::Failed { .. }, obstacles }) = build else {
            return Ok(false);
        };
        for (key, was) in obstacles {
            if content.get(self.0.reads(), &key)? != was {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the maps among the missing ones that `main` has, with its state: a branch needs no more than what it
    /// differs in.
    fn maps_of_main(
        &self,
        missing: &Definitions,
        lacks_links: bool,
    ) -> Result<Option<(Snapshot, BTreeMap<String, Map>)>> {
        if self.0.branch == MAIN {
            return Ok(None);
        }
        let Some(root) = self.chunks().read_ref(MAIN)? else { return Ok(None) };
        let base = self.snapshot_at(root)?;
        let mut maps = Root::read(self.0.reads(), &root)?.maps;
        maps.retain(|map, _| {
            missing.0.iter().any(|index| index.map == *map) || (lacks_links && map == LINK)
        });
        Ok((!maps.is_empty()).then_some((base, maps)))
    }

    /// Builds all indexes that the newest state lacks; tells how many. Definitions that asked to be built anew ask no
    /// more.
    ///
    /// # Errors
    /// If the store fails. An index that the content does not allow is logged and left out.
    pub fn build_indexes(&self) -> Result<usize> {
        let mut count = 0;
        while let Some(mut build) = self.begin_index_build()? {
            while !build.step()? {}
            count += build.definitions.0.len();
        }
        self.settle_reindex()?;
        Ok(count)
    }

    /// Sets `reindex` back to false, and counts, where the index has been built.
    fn settle_reindex(&self) -> Result<()> {
        // The state that the session begins with decides, so that nobody asks anew in between unnoticed.
        let mut session = self.session(SYSTEM_USER)?;
        let snapshot = session.snapshot()?;
        let definitions = Definitions::cached(&snapshot.0)?;
        if !definitions.0.iter().any(|index| index.reindex) {
            return Ok(());
        }
        let maps = Root::read(self.0.reads(), &snapshot.root_id())?.maps;
        let has_all = |name: &str| {
            let mut own = definitions.0.iter().filter(|index| index.name == name);
            own.all(|index| maps.contains_key(&index.map))
        };
        let asked: BTreeSet<&str> =
            definitions.0.iter().filter(|one| one.reindex).map(|one| &*one.name).collect();
        for name in asked.into_iter().filter(|name| has_all(name)) {
            let path = NodePath::new(DEFINITIONS)?.child(name)?;
            let Some(node) = snapshot.node(&path)? else { continue };
            let count = match node.property("reindexCount").as_ref().and_then(Property::first) {
                Some(Value::Long(count)) => count.saturating_add(1),
                _ => 1,
            };
            session.set_property(&path, "reindex", Value::Boolean(false).into())?;
            session.set_property(&path, "reindexCount", Value::Long(count).into())?;
        }
        match session.commit("indexes are built anew", SystemTime::UNIX_EPOCH) {
            // Somebody changed a definition at the same time; its new form is looked at next.
            Err(Error::Conflicts(_)) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Drops the maps of an index, or of all of them, so that they are built anew; tells how many indexes that are.
    ///
    /// # Errors
    /// If the store fails.
    pub fn drop_indexes(&self, name: Option<&str>) -> Result<usize> {
        let commits = self.0.commits.as_ref().ok_or(Error::NotContent(self.head()?))?;
        let branch = &self.0.branch;
        self.0.bodies.builds.0.lock().retain(|(on, _), _| on != branch);
        commits.committer.commit(|head| {
            let head = commit::open_head(&commits.staged, head)?;
            let mut maps = Root::read(head.shared.reads(), &head.root)?.maps;
            let before = maps.len();
            let mut count = 0;
            for index in &Definitions::cached(&head)?.0 {
                if name.is_none_or(|name| name == index.name) {
                    maps.remove(&index.map);
                    count += 1;
                }
            }
            let is_same = maps.len() == before;
            let batch = if is_same { Batch::new() } else { moved(&head, maps, "drop indexes")? };
            Ok((batch, count))
        })
    }
}

impl IndexBuild {
    /// Reads the next documents, or finishes; tells whether it has.
    ///
    /// # Errors
    /// If the store fails.
    pub fn step(&mut self) -> Result<bool> {
        let result = match self.next.take() {
            Some(start) => self.read(&start).map(|()| false),
            None => self.finish(),
        };
        match result {
            Ok(is_done) => {
                self.note_progress(is_done);
                Ok(is_done)
            }
            Err(error @ Error::NotUnique { .. }) => {
                self.note_failure(&error)?;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn note_progress(&self, is_done: bool) {
        let state = IndexState::Building { done: self.done, total: self.total };
        let mut builds = self.repository.0.bodies.builds.0.lock();
        for index in &self.definitions.0 {
            let build = self.repository.build_of(&index.map);
            if is_done {
                builds.remove(&build);
            } else {
                builds.insert(build, Build { state: state.clone(), obstacles: Vec::new() });
            }
        }
    }

    /// Notes why an index cannot be built, and which documents would have to change for that.
    fn note_failure(&self, error: &Error) -> Result<()> {
        let Error::NotUnique { property, path, other } = error else { return Ok(()) };
        let reason = error.to_string();
        tracing::warn!(reason, "an index cannot be built");
        let failed = self.definitions.0.iter();
        for index in failed.filter(|index| index.unique && index.property == *property) {
            let mut obstacles = Vec::new();
            for subject in [Some(path), other.as_ref()].into_iter().flatten() {
                let holder = subject.resolve(&index.parents)?;
                let node = self.base.node(&holder)?;
                let owner = node.map_or_else(|| subject.clone(), |node| node.owner().clone());
                let key = keys::key_of(&owner)?;
                let stored = self.base.0.content.get(self.repository.0.reads(), &key)?;
                obstacles.push((key, stored));
            }
            let state = IndexState::Failed { reason: reason.clone() };
            let build = Build { state, obstacles };
            let mut builds = self.repository.0.bodies.builds.0.lock();
            builds.insert(self.repository.build_of(&index.map), build);
        }
        Ok(())
    }

    fn read(&mut self, start: &Bound<Vec<u8>>) -> Result<()> {
        let store = self.repository.chunks().clone();
        let content = self.base.0.content;
        let start = start.as_ref().map(Vec::as_slice);
        let mut edits = self.edits();
        let mut count = 0;
        for entry in content.range(&*store, (start, Bound::Unbounded)).take(STEP) {
            let (key, stored) = entry?;
            note(&mut edits, &key, [None, Some(&stored)], &*store)?;
            count += 1;
            if count == STEP {
                self.next = Some(Bound::Excluded(key.to_vec()));
            }
        }
        self.done += count as u64;
        self.apply(edits, &*store)
    }

    fn edits(&self) -> IndexEdits {
        IndexEdits::new(self.kinds, self.definitions.clone())
    }

    fn apply(&mut self, edits: IndexEdits, store: &dyn ChunkStore) -> Result<()> {
        let mut batch = Batch::new();
        edits.apply(&mut self.maps, store, &mut batch)?;
        Ok(store.commit(batch)?)
    }

    /// Applies what was committed since the build began; when that is little, inside a commit.
    fn finish(&mut self) -> Result<bool> {
        let store = self.repository.chunks().clone();
        loop {
            let head = self.repository.snapshot()?;
            let mut edits = self.edits();
            let mut count = 0;
            for change in self.base.0.content.diff(&head.0.content, &*store) {
                let change = change?;
                let sides = [change.left.as_ref(), change.right.as_ref()];
                note(&mut edits, &change.key, sides, &*store)?;
                count += 1;
                if count % STEP == 0 {
                    let part = std::mem::replace(&mut edits, self.edits());
                    self.apply(part, &*store)?;
                }
            }
            self.apply(edits, &*store)?;
            self.base = head;
            if count <= SMALL_DIFFERENCE {
                return self.commit();
            }
        }
    }

    fn commit(&self) -> Result<bool> {
        let shared = &self.repository.0;
        let commits = shared.commits.as_ref().ok_or(Error::NotContent(self.base.root_id()))?;
        commits.committer.commit(|head| {
            let head = commit::open_head(&commits.staged, head)?;
            let reads = head.shared.reads();
            let mut batch = Batch::new();
            let mut built = self.maps.clone();
            let mut edits = self.edits();
            for change in self.base.0.content.diff(&head.content, reads) {
                let change = change?;
                note(
                    &mut edits,
                    &change.key,
                    [change.left.as_ref(), change.right.as_ref()],
                    reads,
                )?;
            }
            edits.apply(&mut built, reads, &mut batch)?;
            // Definitions may have gone while their maps were built.
            let wanted = Definitions::cached(&head)?;
            built.retain(|map, _| map == LINK || wanted.0.iter().any(|index| index.map == *map));
            let mut maps = Root::read(reads, &head.root)?.maps;
            maps.extend(built);
            let moved = moved(&head, maps, "build indexes")?;
            batch.append(moved);
            Ok((batch, true))
        })
    }
}

/// Returns which maps a build makes.
fn kinds_of(has_links: bool) -> Maps {
    if has_links { Maps::PropertiesAndLinks } else { Maps::Properties }
}

/// Stages a state with other index maps and the move of the ref to it.
fn moved(head: &View, maps: BTreeMap<String, Map>, message: &str) -> Result<Batch> {
    let mut batch = Batch::new();
    let new = Root { maps }.write(&mut batch)?;
    batch.move_ref(RefUpdate {
        name: head.shared.branch.clone(),
        expected: Some(head.root),
        new: Some(new),
        at: SystemTime::UNIX_EPOCH,
        author: SYSTEM_USER.to_owned(),
        message: message.to_owned(),
    });
    Ok(batch)
}

/// Notes what a document was and what it is. One that does not decode has no entries.
fn note(
    edits: &mut IndexEdits,
    key: &[u8],
    sides: [Option<&Stored>; 2],
    reads: &dyn ReadChunks,
) -> Result<()> {
    let path: NodePath = keys::path_of(key)?;
    let read = |stored: Option<&Stored>| -> Result<_> {
        let Some(record) = stored.and_then(Record::decode) else { return Ok(None) };
        let body = record.read_body(reads)?;
        Ok(body.map(|body| (record, body)))
    };
    let [old, new] = sides;
    let (old, new) = (read(old)?, read(new)?);
    let old = old.as_ref().map(|(record, body)| (record, &**body));
    let new = new.as_ref().map(|(record, body)| (record, &**body));
    edits.change(&path, old, new);
    Ok(())
}

/// Adds the maps of property indexes, and that of links, that a small state lacks.
pub(crate) fn build_missing(
    chunks: &dyn ChunkStore,
    batch: &mut Batch,
    content: Map,
    maps: &mut BTreeMap<String, Map>,
) -> Result<()> {
    let definitions = Definitions::stored(content, chunks)?;
    let missing = definitions.0.iter().filter(|index| !maps.contains_key(&index.map));
    let missing = Arc::new(Definitions(missing.cloned().collect()));
    let mut built = empty_maps(&missing, batch)?;
    let lacks_links = !maps.contains_key(LINK);
    if lacks_links {
        built.insert(LINK.to_owned(), empty_link_map(batch)?);
    }
    let mut edits = IndexEdits::new(kinds_of(lacks_links), missing);
    for entry in content.range(chunks, (Bound::Unbounded, Bound::Unbounded)) {
        let (key, stored) = entry?;
        note(&mut edits, &key, [None, Some(&stored)], chunks)?;
    }
    edits.apply(&mut built, chunks, batch)?;
    maps.extend(built);
    Ok(())
}
