//! Salvaging a state: what can be read of it, completed from older revisions.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::SystemTime;

use super::chain::State;
use super::{DeriveMaps, Fate, MAX_LISTED, New, Repaired, RepairedPart, Replaced};
use crate::batch::Batch;
use crate::check::{Origin, Part, Report, Span, Unreadable, Walk, parts, parts_but};
use crate::chunk::{Chunk, ChunkKind};
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::error::{Error, Result};
use crate::id::ChunkId;
use crate::local::{LocalStore, Survey};
use crate::root::Root;
use crate::tree::{Map, Value};

/// Older revisions that are asked for what a state lacks.
const MAX_SOURCES: usize = 1_000;
/// Records are written in pieces of about this many bytes.
const FLUSH_BYTES: usize = 4 << 20;
/// A revision that differs in more records from the next newer one is walked as a whole.
const MAX_CHANGES: usize = 100_000;
/// The name under which a ref that names a single map has it.
const SINGLE: &str = "";

/// Salvages states of one store.
pub(super) struct Salvage<'a, D> {
    store: &'a LocalStore,
    survey: &'a Survey,
    derived: &'a D,
    /// Without it, nothing is written.
    writes: Option<SystemTime>,
    walk: RefCell<Walk<'a>>,
    notes: RefCell<Notes>,
}

/// What is said about the current state of refs.
#[derive(Default)]
struct Notes {
    parts: Vec<RepairedPart>,
    restored: u64,
    lost: u64,
    unlisted: u64,
}

/// A state that a part can be taken from.
struct Source {
    state: State,
    is_clean: bool,
    /// What its root lists; the inner `None` if that cannot be read.
    maps: OnceCell<Option<Root>>,
}

/// What is being salvaged.
struct Target<'a> {
    name: &'a str,
    map: &'a str,
    /// The state itself, and the older ones, newest first.
    sources: &'a [Source],
    /// Whether parts are noted: those of refs are, those of revisions are counted with them.
    is_noted: bool,
}

/// A revision that has been dealt with, and what it has become: the next older one differs little from it.
struct Neighbor {
    original: Root,
    salvaged: Root,
}

impl<'a, D: DeriveMaps> Salvage<'a, D> {
    pub(super) fn new(
        store: &'a LocalStore,
        survey: &'a Survey,
        derived: &'a D,
        writes: Option<SystemTime>,
    ) -> Self {
        let walk = RefCell::new(Walk::new(store, survey, Report::default()));
        Self { store, survey, derived, writes, walk, notes: RefCell::default() }
    }

    /// Adds what was noted to a report.
    pub(super) fn finish(&self, repaired: Repaired) -> Repaired {
        let Notes { parts, restored, lost, unlisted } = self.notes.take();
        let unlisted = repaired.unlisted + unlisted;
        Repaired { parts, restored, lost, unlisted, ..repaired }
    }

    pub(super) fn is_plan(&self) -> bool {
        self.writes.is_none()
    }

    /// Tells whether all of a state can be read.
    pub(super) fn is_clean(&self, origin: &Origin, root: ChunkId) -> Result<bool> {
        self.walk.borrow_mut().state(origin, root)
    }

    /// Returns the newest revision among the states that can be read as a whole.
    pub(super) fn newest_clean(&self, chain: &[State]) -> Result<Option<(u64, SystemTime)>> {
        for state in chain {
            if self.is_clean(&origin_of("", *state), state.root)? {
                return Ok(state.revision);
            }
        }
        Ok(None)
    }

    /// Salvages the states of one ref, newest first, so that each needs little more than the one before.
    pub(super) fn chain(
        &self,
        name: &str,
        chain: &[State],
        replaced: &mut Replaced,
    ) -> Result<(), D::Error> {
        let mut sources = Vec::new();
        for state in chain {
            let is_clean = self.is_clean(&origin_of(name, *state), state.root)?;
            sources.push(Source { state: *state, is_clean, maps: OnceCell::new() });
        }
        let mut neighbor: Option<Neighbor> = None;
        for (index, source) in sources.iter().enumerate() {
            let root = source.state.root;
            if source.is_clean {
                let known = self.maps(source)?.cloned();
                neighbor = known.map(|root| Neighbor { original: root.clone(), salvaged: root });
                continue;
            }
            if replaced.contains_key(&root) {
                continue;
            }
            let end = sources.len().min(index + MAX_SOURCES);
            let target = Target {
                name,
                map: SINGLE,
                sources: sources.get(index..end).unwrap_or_default(),
                is_noted: source.state.is_current,
            };
            let new = if self.is_plan() && !source.state.is_current {
                New::Planned
            } else {
                self.state(&target, &mut neighbor)?
            };
            replaced.insert(root, new);
        }
        Ok(())
    }

    /// Salvages one state.
    fn state(&self, target: &Target<'_>, neighbor: &mut Option<Neighbor>) -> Result<New, D::Error> {
        let made = |root: Option<ChunkId>| match root {
            Some(_) if self.is_plan() => New::Planned,
            Some(root) => New::Made(root),
            None => New::Nothing,
        };
        let mut first = None;
        for (index, source) in target.sources.iter().enumerate() {
            if let Some(chunk) = self.chunk(&source.state.root)? {
                first = Some((index, source, chunk.kind()));
                break;
            }
        }
        let Some((first, source, kind)) = first else {
            return Ok(New::Nothing);
        };
        if first > 0 {
            self.note(target, b"", Fate::Span { to: None, records: 0 });
        }
        match kind {
            ChunkKind::Body | ChunkKind::BodyList => {
                let whole = target.sources.iter().find(|source| source.is_clean);
                let fate = whole.and_then(|source| source.state.revision);
                let fate = fate.map_or(Fate::Lost, |(sequence, _)| Fate::Restored { sequence });
                self.note(target, b"", fate);
                return Ok(made(whole.map(|source| source.state.root)));
            }
            ChunkKind::Leaf | ChunkKind::Interior => {
                let map = self.map(target, first, neighbor.as_ref())?;
                let root = if self.is_plan() { Some(source.state.root) } else { map.root() };
                return Ok(made(root));
            }
            ChunkKind::Root => {}
        }
        let original = self.maps(source)?.cloned().unwrap_or_default();
        // What a neighbor has lost is not told again when its map is taken over, and of a current state all is told.
        let from = if target.is_noted { None } else { neighbor.as_ref() };
        let mut root = Root::default();
        for (name, map) in &original.maps {
            if self.derived.is_derived(name) {
                continue;
            }
            let is_whole = first == 0 && map.root().is_none_or(|id| self.is_known_clean(&id));
            let target = Target { map: name, ..*target };
            let map = if is_whole { *map } else { self.map(&target, first, from)? };
            if !map.is_empty() {
                root.maps.insert(name.clone(), map);
            }
        }
        if self.is_plan() {
            return Ok(New::Planned);
        }
        let base = match &neighbor {
            Some(neighbor) => neighbor.salvaged.clone(),
            None => self.newest_clean_root(target.sources)?,
        };
        self.derived.derive(&base, &mut root)?;
        let mut batch = Batch::new();
        let id = root.write(&mut batch)?;
        self.store.commit(batch)?;
        *neighbor = Some(Neighbor { original, salvaged: root });
        Ok(New::Made(id))
    }

    fn newest_clean_root(&self, sources: &[Source]) -> Result<Root> {
        for source in sources.iter().filter(|source| source.is_clean) {
            if let Some(root) = self.maps(source)? {
                return Ok(root.clone());
            }
        }
        Ok(Root::default())
    }

    /// Salvages one map, as the source number `first` has it.
    fn map(&self, target: &Target<'_>, first: usize, near: Option<&Neighbor>) -> Result<Map> {
        let near = near.filter(|_| !self.is_plan());
        if let Some(near) = near
            && let Some(map) = self.map_near(target, first, near)?
        {
            return Ok(map);
        }
        let mut out = Output::new(self.store, Map::EMPTY);
        out.is_dry = self.is_plan();
        self.span(target, &Span::ALL, first, &mut out)?;
        out.flush()?;
        Ok(out.map)
    }

    /// Salvages a map by what it has differently from its neighbor; `None` if that cannot be told.
    fn map_near(&self, target: &Target<'_>, first: usize, near: &Neighbor) -> Result<Option<Map>> {
        let Some(source) = target.sources.get(first) else {
            return Ok(None);
        };
        let map = self.maps(source)?.map_or(Map::EMPTY, |root| root.map(target.map));
        let reads = Readable { store: self.store, survey: self.survey };
        let mut out = Output::new(self.store, near.salvaged.map(target.map));
        for (number, change) in near.original.map(target.map).diff(&map, &reads).enumerate() {
            // What both have and neither can read is passed over; anything else that cannot be read ends this.
            let Ok(change) = change else { return Ok(None) };
            if number >= MAX_CHANGES {
                return Ok(None);
            }
            match change.right {
                Some(value) if self.is_whole(&value)? => {
                    out.put(change.key.to_vec(), Some(value))?
                }
                Some(_) => {
                    out.put(change.key.to_vec(), None)?;
                    self.record(target, &change.key, first + 1, &mut out)?;
                }
                None => out.put(change.key.to_vec(), None)?,
            }
        }
        out.flush()?;
        Ok(Some(out.map))
    }

    /// Salvages a span of a map from source number `from` on. Returns how many records it accounts for, also as lost;
    /// `None` if there is no source.
    fn span(
        &self,
        target: &Target<'_>,
        span: &Span,
        from: usize,
        out: &mut Output<'_>,
    ) -> Result<Option<u64>> {
        let mut found = None;
        for (index, source) in target.sources.iter().enumerate().skip(from) {
            if let Some(root) = self.maps(source)? {
                found = Some((index, source, root.map(target.map)));
                break;
            }
        }
        let Some((index, source, map)) = found else {
            self.note(target, &span.from, Fate::Lost);
            return Ok(None);
        };
        let (store, survey) = (self.store, self.survey);
        let read = |id: &ChunkId| store.read_surveyed(id, survey);
        // A plan need not look at what stays.
        let mut skips = |id: &ChunkId| self.is_plan() && index == 0 && self.is_known_clean(id);
        let mut records = 0;
        parts_but(&read, map, span, &mut skips, &mut |part| {
            match part {
                Part::Skipped => {}
                Part::Record(key, value) => {
                    records += 1;
                    if !self.is_whole(&value)? {
                        return self.record(target, &key, index + 1, out);
                    }
                    if index > 0 {
                        self.note_restored(target, &key, source);
                    }
                    out.put(key.to_vec(), Some(value))?;
                }
                Part::Unreadable(lost) => {
                    records += self.unreadable(target, &lost, index + 1, out)?;
                }
            }
            Ok(())
        })?;
        Ok(Some(records))
    }

    /// Salvages a part that a source cannot read from the next one on. What was in it and nobody knows is lost.
    fn unreadable(
        &self,
        target: &Target<'_>,
        part: &Unreadable,
        from: usize,
        out: &mut Output<'_>,
    ) -> Result<u64> {
        let Unreadable { span, records, .. } = part;
        self.note(target, &span.from, Fate::Span { to: span.to.clone(), records: *records });
        let accounted = self.span(target, span, from, out)?;
        let missing = match accounted {
            Some(accounted) => records.saturating_sub(accounted),
            None => (*records).max(1),
        };
        if target.is_noted {
            self.notes.borrow_mut().lost += missing;
        }
        Ok(accounted.unwrap_or(0) + missing)
    }

    /// Salvages a record whose body cannot be read, from source number `from` on.
    fn record(
        &self,
        target: &Target<'_>,
        key: &[u8],
        from: usize,
        out: &mut Output<'_>,
    ) -> Result<()> {
        let read = |id: &ChunkId| self.store.read_surveyed(id, self.survey);
        for source in target.sources.iter().skip(from) {
            let Some(root) = self.maps(source)? else { continue };
            let mut found = Ok(None);
            parts(&read, root.map(target.map), &Span::of(key), &mut |part| {
                match part {
                    Part::Record(_, value) => found = Ok(Some(value)),
                    Part::Unreadable(_) => found = Err(()),
                    Part::Skipped => {}
                }
                Ok(())
            })?;
            match found {
                Ok(Some(value)) if self.is_whole(&value)? => {
                    self.note_restored(target, key, source);
                    return out.put(key.to_vec(), Some(value));
                }
                // There was no such record then, so whatever older revisions have is another one.
                Ok(None) => break,
                Ok(Some(_)) | Err(()) => {}
            }
        }
        self.notes.borrow_mut().lost += u64::from(target.is_noted);
        self.note(target, key, Fate::Lost);
        Ok(())
    }

    /// Tells whether the body of a record can be read.
    fn is_whole(&self, value: &Value) -> Result<bool> {
        let Some(body) = value.body else { return Ok(true) };
        let origin = Origin::Revision { name: String::new(), sequence: 0 };
        self.walk.borrow_mut().body(&origin, body)
    }

    fn is_known_clean(&self, id: &ChunkId) -> bool {
        self.walk.borrow().is_clean(id)
    }

    /// Returns the maps of a state, one that names a single map included; `None` if its root cannot be read.
    fn maps<'s>(&self, source: &'s Source) -> Result<Option<&'s Root>> {
        if source.maps.get().is_none() {
            let id = source.state.root;
            let root = self.chunk(&id)?.and_then(|chunk| match chunk.kind() {
                ChunkKind::Root => Root::parse(&chunk, &id).ok(),
                ChunkKind::Leaf | ChunkKind::Interior => {
                    let map = Map::from_root(Some(id));
                    Some(Root { maps: BTreeMap::from([(SINGLE.to_owned(), map)]) })
                }
                ChunkKind::Body | ChunkKind::BodyList => None,
            });
            source.maps.get_or_init(|| root);
        }
        Ok(source.maps.get().and_then(Option::as_ref))
    }

    fn chunk(&self, id: &ChunkId) -> Result<Option<Chunk>> {
        Ok(self.store.read_surveyed(id, self.survey)?.ok())
    }

    fn note_restored(&self, target: &Target<'_>, key: &[u8], source: &Source) {
        self.notes.borrow_mut().restored += u64::from(target.is_noted);
        let sequence = source.state.revision.map_or(0, |(sequence, _)| sequence);
        self.note(target, key, Fate::Restored { sequence });
    }

    fn note(&self, target: &Target<'_>, key: &[u8], fate: Fate) {
        if !target.is_noted {
            return;
        }
        let mut notes = self.notes.borrow_mut();
        if notes.parts.len() >= MAX_LISTED {
            notes.unlisted += 1;
            return;
        }
        let (name, map) = (target.name.to_owned(), target.map.to_owned());
        notes.parts.push(RepairedPart { name, map, key: key.to_vec(), fate });
    }
}

fn origin_of(name: &str, state: State) -> Origin {
    let sequence = state.revision.map_or(0, |(sequence, _)| sequence);
    Origin::Revision { name: name.to_owned(), sequence }
}

/// The map that is being made.
struct Output<'a> {
    store: &'a LocalStore,
    map: Map,
    edits: BTreeMap<Vec<u8>, Option<Value>>,
    bytes: usize,
    /// Nothing is written.
    is_dry: bool,
}

impl<'a> Output<'a> {
    fn new(store: &'a LocalStore, map: Map) -> Self {
        Self { store, map, edits: BTreeMap::new(), bytes: 0, is_dry: false }
    }

    fn put(&mut self, key: Vec<u8>, value: Option<Value>) -> Result<()> {
        if self.is_dry {
            return Ok(());
        }
        self.bytes += key.len() + value.as_ref().map_or(0, |value| value.bytes.len()) + 64;
        self.edits.insert(key, value);
        if self.bytes >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.edits.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let edits = std::mem::take(&mut self.edits);
        self.map = self.map.edit(self.store, &mut batch, edits)?;
        self.bytes = 0;
        self.store.commit(batch)
    }
}

/// Reads what the survey has found readable.
struct Readable<'a> {
    store: &'a LocalStore,
    survey: &'a Survey,
}

impl ReadChunks for Readable<'_> {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        let chunk = self.store.read_surveyed(id, self.survey)?;
        chunk.map_err(|_| Error::ChunkMissing { id: *id })
    }
}
