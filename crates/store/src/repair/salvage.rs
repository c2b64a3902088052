//! Salvages a state: its readable content, completed from older revisions.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::SystemTime;

use super::derived_map::DeriveMaps;
use super::ref_state::RefState;
use super::replacement::{ReplacementState, ReplacementStates};
use super::report::{MAX_LISTED_REPAIRS, RepairedPart, RepairedPartOutcome, StoreRepairReport};
use crate::check::{
    MapKeySpan, MapPart, RootOrigin, StateWalk, StoreCheckReport, UnreadableSpan, visit_map_parts,
    visit_map_parts_except,
};
use crate::chunk::{Chunk, ChunkKind, MapValue};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::interface::chunk_batch::ChunkBatch;
use crate::interface::chunk_reader::ReadChunks;
use crate::interface::chunk_store::ChunkStore;
use crate::local::{LocalStore, PackSurvey};
use crate::store_root::StoreRoot;
use crate::tree::SortedMap;

/// The maximum number of older revisions searched for content that a state lacks.
const MAX_SALVAGE_SOURCES: usize = 1_000;
/// The approximate size in bytes of the pieces in which records are written.
const SALVAGE_FLUSH_BYTES: usize = 4 << 20;
/// A revision that differs in more records than this from the next newer one is walked completely.
const MAX_NEIGHBOR_CHANGES: usize = 100_000;
/// The map name used for a ref that names a single map.
const SINGLE_MAP_NAME: &str = "";

/// Salvages states of one store.
pub(super) struct StateSalvager<'a, D> {
    store: &'a LocalStore,
    survey: &'a PackSurvey,
    map_deriver: &'a D,
    /// The time of the new revisions; with `None`, nothing is written.
    written_at: Option<SystemTime>,
    walk: RefCell<StateWalk<'a>>,
    notes: RefCell<SalvageNotes>,
}

/// The findings about the current state of refs.
#[derive(Default)]
struct SalvageNotes {
    parts: Vec<RepairedPart>,
    restored_records: u64,
    lost_records: u64,
    unlisted_count: u64,
}

/// A state that a part can be restored from.
struct SalvageSource {
    state: RefState,
    is_clean: bool,
    /// The maps that the root lists; the inner `None` if they cannot be read.
    maps: OnceCell<Option<StoreRoot>>,
}

/// The state that is being salvaged.
struct SalvageTarget<'a> {
    ref_name: &'a str,
    map_name: &'a str,
    /// The state itself, and the older ones, newest first.
    sources: &'a [SalvageSource],
    /// True if parts are recorded. Those of refs are recorded; those of revisions are counted with the revisions.
    is_recorded: bool,
}

/// A revision that has been processed, and its result: the next older revision differs little from it.
struct SalvagedNeighbor {
    original: StoreRoot,
    salvaged: StoreRoot,
}

impl<'a, D: DeriveMaps> StateSalvager<'a, D> {
    pub(super) fn new(
        store: &'a LocalStore,
        survey: &'a PackSurvey,
        derived: &'a D,
        writes: Option<SystemTime>,
    ) -> Self {
        let walk = RefCell::new(StateWalk::new(store, survey, StoreCheckReport::default()));
        Self {
            store,
            survey,
            map_deriver: derived,
            written_at: writes,
            walk,
            notes: RefCell::default(),
        }
    }

    /// Adds the recorded findings to a report.
    pub(super) fn complete_report(&self, repaired: StoreRepairReport) -> StoreRepairReport {
        let SalvageNotes { parts, restored_records, lost_records, unlisted_count: unlisted } =
            self.notes.take();
        let unlisted = repaired.unlisted_count + unlisted;
        StoreRepairReport {
            parts,
            restored_records,
            lost_records,
            unlisted_count: unlisted,
            ..repaired
        }
    }

    fn is_plan_only(&self) -> bool {
        self.written_at.is_none()
    }

    /// Returns true if all of a state can be read.
    pub(super) fn is_state_clean(&self, origin: &RootOrigin, root: ChunkId) -> Result<bool> {
        self.walk.borrow_mut().walk_state(origin, root)
    }

    /// Returns the newest revision among the states that can be read completely.
    pub(super) fn newest_clean_revision(
        &self,
        chain: &[RefState],
    ) -> Result<Option<(u64, SystemTime)>> {
        for state in chain {
            if self.is_state_clean(&state_origin("", *state), state.root)? {
                return Ok(state.revision);
            }
        }
        Ok(None)
    }

    /// Salvages the states of one ref, newest first, so that each needs little more work than the one before.
    pub(super) fn salvage_ref(
        &self,
        name: &str,
        chain: &[RefState],
        replaced: &mut ReplacementStates,
    ) -> Result<(), D::Error> {
        let mut sources = Vec::new();
        for state in chain {
            let is_clean = self.is_state_clean(&state_origin(name, *state), state.root)?;
            sources.push(SalvageSource { state: *state, is_clean, maps: OnceCell::new() });
        }
        let mut neighbor: Option<SalvagedNeighbor> = None;
        for (index, source) in sources.iter().enumerate() {
            let root = source.state.root;
            if source.is_clean {
                let source_root = self.source_maps(source)?.cloned();
                neighbor = source_root
                    .map(|root| SalvagedNeighbor { original: root.clone(), salvaged: root });
                continue;
            }
            if replaced.contains_key(&root) {
                continue;
            }
            let end = sources.len().min(index + MAX_SALVAGE_SOURCES);
            let target = SalvageTarget {
                ref_name: name,
                map_name: SINGLE_MAP_NAME,
                sources: sources.get(index..end).unwrap_or_default(),
                is_recorded: source.state.is_current,
            };
            let new = if self.is_plan_only() && !source.state.is_current {
                ReplacementState::Planned
            } else {
                self.salvage_state(&target, &mut neighbor)?
            };
            replaced.insert(root, new);
        }
        Ok(())
    }

    /// Salvages one state.
    fn salvage_state(
        &self,
        target: &SalvageTarget<'_>,
        neighbor: &mut Option<SalvagedNeighbor>,
    ) -> Result<ReplacementState, D::Error> {
        let made = |root: Option<ChunkId>| match root {
            Some(_) if self.is_plan_only() => ReplacementState::Planned,
            Some(root) => ReplacementState::Stored(root),
            None => ReplacementState::Unrecoverable,
        };
        let mut first = None;
        for (index, source) in target.sources.iter().enumerate() {
            if let Some(chunk) = self.read_readable_chunk(&source.state.root)? {
                first = Some((index, source, chunk.kind()));
                break;
            }
        }
        let Some((first, source, kind)) = first else {
            return Ok(ReplacementState::Unrecoverable);
        };
        if first > 0 {
            self.record_outcome(target, b"", RepairedPartOutcome::Span { to: None, records: 0 });
        }
        match kind {
            ChunkKind::Body | ChunkKind::BodyList => {
                let whole = target.sources.iter().find(|source| source.is_clean);
                let source_revision = whole.and_then(|source| source.state.revision);
                let outcome = source_revision.map_or(RepairedPartOutcome::Lost, |(sequence, _)| {
                    RepairedPartOutcome::Restored { sequence }
                });
                self.record_outcome(target, b"", outcome);
                return Ok(made(whole.map(|source| source.state.root)));
            }
            ChunkKind::Leaf | ChunkKind::Interior => {
                let map = self.salvage_map(target, first, neighbor.as_ref())?;
                let root = if self.is_plan_only() { Some(source.state.root) } else { map.root() };
                return Ok(made(root));
            }
            ChunkKind::Root => {}
        }
        let original = self.source_maps(source)?.cloned().unwrap_or_default();
        // The losses of a neighbor are not recorded again when its map is reused. For a current state, all losses are
        // recorded.
        let from = if target.is_recorded { None } else { neighbor.as_ref() };
        let mut root = StoreRoot::default();
        for (name, map) in &original.maps {
            if self.map_deriver.is_derived(name) {
                continue;
            }
            let is_whole = first == 0 && map.root().is_none_or(|id| self.is_known_clean(&id));
            let target = SalvageTarget { map_name: name, ..*target };
            let map = if is_whole { *map } else { self.salvage_map(&target, first, from)? };
            if !map.is_empty() {
                root.maps.insert(name.clone(), map);
            }
        }
        if self.is_plan_only() {
            return Ok(ReplacementState::Planned);
        }
        let base = match &neighbor {
            Some(neighbor) => neighbor.salvaged.clone(),
            None => self.newest_clean_root(target.sources)?,
        };
        self.map_deriver.derive_maps(&base, &mut root)?;
        let mut batch = ChunkBatch::new();
        let id = root.write(&mut batch)?;
        self.store.commit(batch)?;
        *neighbor = Some(SalvagedNeighbor { original, salvaged: root });
        Ok(ReplacementState::Stored(id))
    }

    fn newest_clean_root(&self, sources: &[SalvageSource]) -> Result<StoreRoot> {
        for source in sources.iter().filter(|source| source.is_clean) {
            if let Some(root) = self.source_maps(source)? {
                return Ok(root.clone());
            }
        }
        Ok(StoreRoot::default())
    }

    /// Salvages one map of the source number `first`.
    fn salvage_map(
        &self,
        target: &SalvageTarget<'_>,
        first: usize,
        near: Option<&SalvagedNeighbor>,
    ) -> Result<SortedMap> {
        let near = near.filter(|_| !self.is_plan_only());
        if let Some(near) = near
            && let Some(map) = self.salvage_map_from_neighbor(target, first, near)?
        {
            return Ok(map);
        }
        let mut out = SalvagedMapWriter::new(self.store, SortedMap::EMPTY_MAP);
        out.is_dry_run = self.is_plan_only();
        self.salvage_span(target, &MapKeySpan::ALL_KEYS, first, &mut out)?;
        out.flush_edits()?;
        Ok(out.map)
    }

    /// Salvages a map by its differences from its neighbor; `None` if they cannot be determined.
    fn salvage_map_from_neighbor(
        &self,
        target: &SalvageTarget<'_>,
        first: usize,
        near: &SalvagedNeighbor,
    ) -> Result<Option<SortedMap>> {
        let Some(source) = target.sources.get(first) else {
            return Ok(None);
        };
        let map = self
            .source_maps(source)?
            .map_or(SortedMap::EMPTY_MAP, |root| root.map(target.map_name));
        let reads = ReadableChunks { store: self.store, survey: self.survey };
        let mut out = SalvagedMapWriter::new(self.store, near.salvaged.map(target.map_name));
        for (number, change) in near.original.map(target.map_name).diff(&map, &reads).enumerate() {
            // Parts that both have and neither can read are skipped; any other unreadable part ends the comparison.
            let Ok(change) = change else { return Ok(None) };
            if number >= MAX_NEIGHBOR_CHANGES {
                return Ok(None);
            }
            match change.right {
                Some(value) if self.is_body_readable(&value)? => {
                    out.put_edit(change.key.to_vec(), Some(value))?
                }
                Some(_) => {
                    out.put_edit(change.key.to_vec(), None)?;
                    self.salvage_record(target, &change.key, first + 1, &mut out)?;
                }
                None => out.put_edit(change.key.to_vec(), None)?,
            }
        }
        out.flush_edits()?;
        Ok(Some(out.map))
    }

    /// Salvages a span of a map from source number `from` on. Returns the number of records in it, including lost ones;
    /// `None` if there is no source.
    fn salvage_span(
        &self,
        target: &SalvageTarget<'_>,
        span: &MapKeySpan,
        from: usize,
        out: &mut SalvagedMapWriter<'_>,
    ) -> Result<Option<u64>> {
        let mut candidate = None;
        for (index, source) in target.sources.iter().enumerate().skip(from) {
            if let Some(root) = self.source_maps(source)? {
                candidate = Some((index, source, root.map(target.map_name)));
                break;
            }
        }
        let Some((index, source, map)) = candidate else {
            self.record_outcome(target, &span.start, RepairedPartOutcome::Lost);
            return Ok(None);
        };
        let (store, survey) = (self.store, self.survey);
        let read = |id: &ChunkId| store.read_surveyed_chunk(id, survey);
        // A plan can skip unchanged content.
        let mut skips = |id: &ChunkId| self.is_plan_only() && index == 0 && self.is_known_clean(id);
        let mut records = 0;
        visit_map_parts_except(&read, map, span, &mut skips, &mut |part| {
            match part {
                MapPart::Skipped => {}
                MapPart::Record(key, value) => {
                    records += 1;
                    if !self.is_body_readable(&value)? {
                        return self.salvage_record(target, &key, index + 1, out);
                    }
                    if index > 0 {
                        self.record_restored(target, &key, source);
                    }
                    out.put_edit(key.to_vec(), Some(value))?;
                }
                MapPart::Unreadable(lost) => {
                    records += self.salvage_unreadable(target, &lost, index + 1, out)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(records))
    }

    /// Salvages a part that one source cannot read, from the next source on. Content that no source has is lost.
    fn salvage_unreadable(
        &self,
        target: &SalvageTarget<'_>,
        part: &UnreadableSpan,
        from: usize,
        out: &mut SalvagedMapWriter<'_>,
    ) -> Result<u64> {
        let UnreadableSpan { span, record_count: records, .. } = part;
        self.record_outcome(
            target,
            &span.start,
            RepairedPartOutcome::Span { to: span.end.clone(), records: *records },
        );
        let accounted = self.salvage_span(target, span, from, out)?;
        let missing = match accounted {
            Some(accounted) => records.saturating_sub(accounted),
            None => (*records).max(1),
        };
        if target.is_recorded {
            self.notes.borrow_mut().lost_records += missing;
        }
        Ok(accounted.unwrap_or(0) + missing)
    }

    /// Salvages a record whose body cannot be read, from source number `from` on.
    fn salvage_record(
        &self,
        target: &SalvageTarget<'_>,
        key: &[u8],
        from: usize,
        out: &mut SalvagedMapWriter<'_>,
    ) -> Result<()> {
        let read = |id: &ChunkId| self.store.read_surveyed_chunk(id, self.survey);
        for source in target.sources.iter().skip(from) {
            let Some(root) = self.source_maps(source)? else { continue };
            let mut result = Ok(None);
            visit_map_parts(
                &read,
                root.map(target.map_name),
                &MapKeySpan::of_key(key),
                &mut |part| {
                    match part {
                        MapPart::Record(_, value) => result = Ok(Some(value)),
                        MapPart::Unreadable(_) => result = Err(()),
                        MapPart::Skipped => {}
                    }
                    Ok(())
                },
            )?;
            match result {
                Ok(Some(value)) if self.is_body_readable(&value)? => {
                    self.record_restored(target, key, source);
                    return out.put_edit(key.to_vec(), Some(value));
                }
                // The record did not exist then, so a record with this key in an older revision is another one.
                Ok(None) => break,
                Ok(Some(_)) | Err(()) => {}
            }
        }
        self.notes.borrow_mut().lost_records += u64::from(target.is_recorded);
        self.record_outcome(target, key, RepairedPartOutcome::Lost);
        Ok(())
    }

    /// Returns true if the body of a record can be read.
    fn is_body_readable(&self, value: &MapValue) -> Result<bool> {
        let Some(body) = value.body else { return Ok(true) };
        let origin = RootOrigin::Revision { name: String::new(), sequence: 0 };
        self.walk.borrow_mut().walk_state_body(&origin, body)
    }

    fn is_known_clean(&self, id: &ChunkId) -> bool {
        self.walk.borrow().is_chunk_clean(id)
    }

    /// Returns the maps of a state, including a state that is a single map; `None` if its root cannot be read.
    fn source_maps<'s>(&self, source: &'s SalvageSource) -> Result<Option<&'s StoreRoot>> {
        if source.maps.get().is_none() {
            let id = source.state.root;
            let root = self.read_readable_chunk(&id)?.and_then(|chunk| match chunk.kind() {
                ChunkKind::Root => StoreRoot::parse_chunk(&chunk, &id).ok(),
                ChunkKind::Leaf | ChunkKind::Interior => {
                    let map = SortedMap::from_root(Some(id));
                    Some(StoreRoot { maps: BTreeMap::from([(SINGLE_MAP_NAME.to_owned(), map)]) })
                }
                ChunkKind::Body | ChunkKind::BodyList => None,
            });
            source.maps.get_or_init(|| root);
        }
        Ok(source.maps.get().and_then(Option::as_ref))
    }

    fn read_readable_chunk(&self, id: &ChunkId) -> Result<Option<Chunk>> {
        Ok(self.store.read_surveyed_chunk(id, self.survey)?.ok())
    }

    fn record_restored(&self, target: &SalvageTarget<'_>, key: &[u8], source: &SalvageSource) {
        self.notes.borrow_mut().restored_records += u64::from(target.is_recorded);
        let sequence = source.state.revision.map_or(0, |(sequence, _)| sequence);
        self.record_outcome(target, key, RepairedPartOutcome::Restored { sequence });
    }

    fn record_outcome(&self, target: &SalvageTarget<'_>, key: &[u8], outcome: RepairedPartOutcome) {
        if !target.is_recorded {
            return;
        }
        let mut notes = self.notes.borrow_mut();
        if notes.parts.len() >= MAX_LISTED_REPAIRS {
            notes.unlisted_count += 1;
            return;
        }
        let (name, map) = (target.ref_name.to_owned(), target.map_name.to_owned());
        notes.parts.push(RepairedPart { ref_name: name, map, key: key.to_vec(), outcome });
    }
}

fn state_origin(name: &str, state: RefState) -> RootOrigin {
    let sequence = state.revision.map_or(0, |(sequence, _)| sequence);
    RootOrigin::Revision { name: name.to_owned(), sequence }
}

/// A map under construction.
struct SalvagedMapWriter<'a> {
    store: &'a LocalStore,
    map: SortedMap,
    edits: BTreeMap<Vec<u8>, Option<MapValue>>,
    bytes: usize,
    /// True if nothing is written.
    is_dry_run: bool,
}

impl<'a> SalvagedMapWriter<'a> {
    fn new(store: &'a LocalStore, map: SortedMap) -> Self {
        Self { store, map, edits: BTreeMap::new(), bytes: 0, is_dry_run: false }
    }

    fn put_edit(&mut self, key: Vec<u8>, value: Option<MapValue>) -> Result<()> {
        if self.is_dry_run {
            return Ok(());
        }
        self.bytes += key.len() + value.as_ref().map_or(0, |value| value.bytes.len()) + 64;
        self.edits.insert(key, value);
        if self.bytes >= SALVAGE_FLUSH_BYTES { self.flush_edits() } else { Ok(()) }
    }

    fn flush_edits(&mut self) -> Result<()> {
        if self.edits.is_empty() {
            return Ok(());
        }
        let mut batch = ChunkBatch::new();
        let edits = std::mem::take(&mut self.edits);
        self.map = self.map.edit(self.store, &mut batch, edits)?;
        self.bytes = 0;
        self.store.commit(batch)
    }
}

/// Reads the chunks that the survey has found readable.
struct ReadableChunks<'a> {
    store: &'a LocalStore,
    survey: &'a PackSurvey,
}

impl ReadChunks for ReadableChunks<'_> {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let chunk = self.store.read_surveyed_chunk(id, self.survey)?;
        chunk.map_err(|_| Error::ChunkMissing { id: *id })
    }
}
