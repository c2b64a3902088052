//! Kept fragments: found by the place of a component and the variation of a request.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::{ChunkId, Snapshot};

use super::{Directives, Uncached};
use crate::dependency::{Dependencies, hash};
use crate::dynamic::DynamicChildren;
use crate::reads::Facts;
use crate::touched::Touched;

/// How long a request waits for another one that draws the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// Fragments that were evicted and are remembered, to tell how large the cache should be.
const MAX_GHOSTS: usize = 50_000;
/// What a fragment takes beside its text and dependencies.
const OVERHEAD: usize = 256;

/// What a change removes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Invalidation {
    /// Everything, as OpenCms does unless told otherwise.
    Full,
    /// Everything if a changed path lies below one of the first; else the fragments whose places lie in a bucket with a
    /// changed path. A bucket is a list of paths.
    Buckets(Vec<String>, Vec<Vec<String>>),
    /// What was drawn from something that changed.
    #[default]
    Tags,
}

/// The bounds of a cache, by OpenCms's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentOptions {
    /// Bytes that fragments may take together.
    pub max_bytes: usize,
    /// Bytes that are left when fragments had to go.
    pub avg_bytes: usize,
    /// Larger fragments are not kept.
    pub max_entry_bytes: usize,
    /// Places of components that are known at once.
    pub max_keys: usize,
    /// What a change removes.
    pub invalidation: Invalidation,
}

impl Default for FragmentOptions {
    fn default() -> Self {
        let (max_bytes, avg_bytes) = (64 << 20, 48 << 20);
        let (max_entry_bytes, max_keys) = (4 << 20, 50_000);
        Self { max_bytes, avg_bytes, max_entry_bytes, max_keys, invalidation: Invalidation::Tags }
    }
}

/// A piece of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Text(Box<str>),
    Hole(Hole),
}

/// A component that is included, and looked up for itself each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hole {
    pub path: tympan_content::NodePath,
    pub forced: Option<String>,
    pub selectors: Arc<[String]>,
    /// Whether it is the node itself that is drawn, and not the content of the page that it may be.
    pub is_itself: bool,
    /// What the component around it says of those that it includes.
    pub around: Option<Arc<DynamicChildren>>,
}

/// A kept drawing.
#[derive(Debug)]
pub(crate) struct Fragment {
    pub pieces: Box<[Piece]>,
    /// Everything that was read for it, by the components in its holes too.
    pub read: Arc<Dependencies>,
    pub facts: Facts,
    pub took: Duration,
}

impl Fragment {
    fn bytes(&self) -> usize {
        let text: usize = self
            .pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.len(),
                Piece::Hole(hole) => hole.path.as_str().len() + 64,
            })
            .sum();
        text + 16 * self.read.len() + OVERHEAD
    }
}

/// What is known of a component at its place.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub directives: Arc<Directives>,
    /// What its drawings used of requests so far.
    pub facts: Facts,
}

/// The answer to a look-up.
pub(crate) enum Found {
    Hit(Arc<Fragment>),
    /// It is to be drawn; with a permit it may be kept.
    Miss(Option<Drawing>),
}

/// The permit to draw and keep a fragment; others wait until it is dropped.
pub(crate) struct Drawing {
    cache: Arc<FragmentCache>,
    unit: Arc<str>,
    variation: String,
    root: ChunkId,
    is_done: bool,
}

/// A place of a component.
#[derive(Debug, Default)]
struct Place {
    known: Option<Unit>,
    entries: HashMap<String, Slot>,
    used: u64,
    hits: u64,
    misses: u64,
    uncached: BTreeMap<Uncached, u64>,
    saved: Duration,
}

#[derive(Debug)]
enum Slot {
    Drawing,
    Ready { fragment: Arc<Fragment>, bytes: usize, used: u64, expires: Option<SystemTime> },
}

/// A fragment that went for want of room.
#[derive(Debug, Clone, Copy)]
struct Ghost {
    bytes: usize,
    went: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The state of content that everything kept is true for.
    snapshot: Option<Snapshot>,
    places: HashMap<Arc<str>, Place>,
    bytes: usize,
    clock: u64,
    ghosts: HashMap<u64, Ghost>,
    /// Look-ups that a larger cache would have answered, and the bytes of what they missed.
    regretted: u64,
    regretted_bytes: usize,
    evicted: u64,
    removed: u64,
    stored: u64,
}

/// The fragments of one instance.
pub struct FragmentCache {
    state: Mutex<State>,
    ready: Condvar,
    options: FragmentOptions,
}

impl fmt::Debug for FragmentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FragmentCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FragmentCache {
    /// Makes an empty cache.
    #[must_use]
    pub fn new(options: FragmentOptions) -> Arc<Self> {
        let options =
            FragmentOptions { avg_bytes: options.avg_bytes.min(options.max_bytes), ..options };
        Arc::new(Self { state: Mutex::default(), ready: Condvar::new(), options })
    }

    /// Brings the cache to the state of a request; false if the request looks at another state than the newest, and has to
    /// draw for itself: the cache never goes back, nor to a branch.
    pub(crate) fn follow(&self, snapshot: &Snapshot) -> bool {
        let root = snapshot.root_id();
        let mut state = self.state.lock();
        if state.snapshot.as_ref().is_some_and(|known| known.root_id() == root) {
            return true;
        }
        // Asked while nobody else can move the cache, so that of two requests the later state stays.
        if !snapshot.is_newest().unwrap_or(false) {
            return false;
        }
        if let Some(known) = state.snapshot.replace(snapshot.clone()) {
            match Touched::between(&known, snapshot) {
                Ok(touched) => self.invalidate(&mut state, &touched),
                Err(error) => {
                    tracing::warn!(error = %error, "fragments are dropped, as two states cannot be compared");
                    state.remove_if(|_, _| true);
                }
            }
        }
        true
    }

    fn invalidate(&self, state: &mut State, touched: &Touched) {
        if ["/apps", "/libs"].iter().any(|root| touched.touches_below(root)) {
            // What components say, and what they use of requests, may be something else now.
            state.places.values_mut().for_each(|place| place.known = None);
        }
        match &self.options.invalidation {
            Invalidation::Full => state.remove_if(|_, _| true),
            Invalidation::Tags => {
                state.remove_if(|_, fragment| touched.concerns(&fragment.read));
            }
            Invalidation::Buckets(clear_all, buckets) => {
                let touches = |path: &String| touched.touches_below(path);
                if touched.is_everything() || clear_all.iter().any(touches) {
                    return state.remove_if(|_, _| true);
                }
                let changed: Vec<&Vec<String>> =
                    buckets.iter().filter(|bucket| bucket.iter().any(touches)).collect();
                let others = touched.is_outside(&buckets.iter().flatten().collect::<Vec<_>>());
                state.remove_if(|place, _| {
                    let path = place.split('\0').next().unwrap_or_default();
                    let is_in = |bucket: &Vec<String>| bucket.iter().any(|one| is_below(path, one));
                    let is_other = !buckets.iter().any(is_in);
                    (is_other && others) || changed.iter().any(|bucket| is_in(bucket))
                });
            }
        }
    }

    /// Returns what is known of a component at its place.
    pub(crate) fn unit(&self, place: &str) -> Option<Unit> {
        self.state.lock().places.get(place)?.known.clone()
    }

    /// Looks for a fragment. Waits for one that is being drawn unless the request draws others that may wait for it.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        place: &Arc<str>,
        variation: &str,
        root: ChunkId,
        (now, may_wait): (SystemTime, bool),
    ) -> Found {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        loop {
            if state.snapshot.as_ref().is_none_or(|known| known.root_id() != root) {
                return Found::Miss(None);
            }
            state.clock += 1;
            let clock = state.clock;
            let known = state.places.entry(Arc::clone(place)).or_default();
            known.used = clock;
            match known.entries.get_mut(variation) {
                Some(Slot::Ready { fragment, used, expires, .. })
                    if expires.is_none_or(|expires| now < expires) =>
                {
                    *used = clock;
                    let fragment = Arc::clone(fragment);
                    known.hits += 1;
                    known.saved += fragment.took;
                    return Found::Hit(fragment);
                }
                Some(Slot::Drawing) => {
                    if !may_wait || self.ready.wait_until(&mut state, deadline).timed_out() {
                        return Found::Miss(None);
                    }
                }
                _ => {
                    let old = known.entries.insert(variation.to_owned(), Slot::Drawing);
                    known.misses += 1;
                    state.regret(place, variation);
                    if let Some(Slot::Ready { bytes, .. }) = old {
                        state.bytes -= bytes;
                    }
                    let (unit, variation) = (Arc::clone(place), variation.to_owned());
                    let cache = Arc::clone(self);
                    return Found::Miss(Some(Drawing {
                        cache,
                        unit,
                        variation,
                        root,
                        is_done: false,
                    }));
                }
            }
        }
    }

    /// Notes that a component was drawn and not kept.
    pub(crate) fn note_uncached(&self, place: &Arc<str>, reason: Uncached) {
        let mut state = self.state.lock();
        *state.places.entry(Arc::clone(place)).or_default().uncached.entry(reason).or_default() +=
            1;
        self.bound_places(&mut state);
    }

    /// Notes what is known of a component.
    pub(crate) fn note_unit(&self, place: &Arc<str>, directives: &Arc<Directives>, facts: Facts) {
        let mut state = self.state.lock();
        let known = &mut state.places.entry(Arc::clone(place)).or_default().known;
        let facts = known.as_ref().map_or(facts, |known| known.facts.and(facts));
        *known = Some(Unit { directives: Arc::clone(directives), facts });
    }

    /// Drops fragments until memory is below its bound again.
    fn bound(&self, state: &mut State) {
        if state.bytes <= self.options.max_bytes {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>, String, usize)> = Vec::new();
        for (place, known) in &state.places {
            for (variation, slot) in &known.entries {
                if let Slot::Ready { used, bytes, .. } = slot {
                    oldest.push((*used, Arc::clone(place), variation.clone(), *bytes));
                }
            }
        }
        oldest.sort_unstable_by_key(|(used, ..)| *used);
        for (_, place, variation, bytes) in oldest {
            if state.bytes <= self.options.avg_bytes {
                break;
            }
            if let Some(known) = state.places.get_mut(&place) {
                known.entries.remove(&variation);
            }
            state.bytes -= bytes;
            state.evicted += 1;
            if state.ghosts.len() < MAX_GHOSTS {
                let ghost = Ghost { bytes, went: state.clock };
                state.ghosts.insert(ghost_key(&place, &variation), ghost);
            }
        }
    }

    /// Drops the places that were not used for longest, a tenth of them, if there are too many.
    fn bound_places(&self, state: &mut State) {
        if state.places.len() <= self.options.max_keys {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>)> =
            state.places.iter().map(|(place, known)| (known.used, Arc::clone(place))).collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        for (_, place) in oldest.into_iter().take(self.options.max_keys / 10 + 1) {
            if let Some(known) = state.places.remove(&place) {
                state.bytes -= known.entries.values().map(Slot::bytes).sum::<usize>();
            }
        }
    }

    /// Drops everything; the answer to `_flex=clearcache`.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.remove_if(|_, _| true);
        state.places.clear();
        state.ghosts.clear();
    }

    /// Returns counts, and the places of components with the most bytes.
    #[must_use]
    pub fn report(&self, most: usize) -> FragmentReport {
        let state = self.state.lock();
        let mut units: Vec<UnitReport> = state
            .places
            .iter()
            .map(|(place, known)| UnitReport {
                place: place.replace('\0', " "),
                variations: known.entries.len(),
                bytes: known.entries.values().map(Slot::bytes).sum(),
                hits: known.hits,
                misses: known.misses,
                saved: known.saved,
                uncached: known.uncached.iter().map(|(why, count)| (*why, *count)).collect(),
            })
            .collect();
        units.sort_by_key(|unit| std::cmp::Reverse((unit.bytes, unit.hits)));
        let sum = |count: fn(&UnitReport) -> u64| units.iter().map(count).sum();
        let mut uncached: BTreeMap<Uncached, u64> = BTreeMap::new();
        for (why, count) in units.iter().flat_map(|unit| &unit.uncached) {
            *uncached.entry(*why).or_default() += count;
        }
        let report = FragmentReport {
            keys: units.len(),
            entries: units.iter().map(|unit| unit.variations).sum(),
            bytes: state.bytes,
            max_bytes: self.options.max_bytes,
            hits: sum(|unit| unit.hits),
            misses: sum(|unit| unit.misses),
            evicted: state.evicted,
            removed: state.removed,
            stored: state.stored,
            regretted: state.regretted,
            working_set: state.bytes + state.regretted_bytes,
            uncached: uncached.into_iter().collect(),
            units: Vec::new(),
        };
        units.truncate(most);
        FragmentReport { units, ..report }
    }
}

impl State {
    /// Removes fragments; those that are being drawn are not kept when they are done, as their root is old then.
    fn remove_if(&mut self, mut is_gone: impl FnMut(&str, &Fragment) -> bool) {
        for (place, known) in &mut self.places {
            known.entries.retain(|_, slot| match slot {
                Slot::Ready { fragment, bytes, .. } if is_gone(place, fragment) => {
                    self.bytes -= *bytes;
                    self.removed += 1;
                    false
                }
                _ => true,
            });
        }
    }

    /// Notes that a fragment was looked for which went for want of room.
    fn regret(&mut self, place: &str, variation: &str) {
        if let Some(ghost) = self.ghosts.remove(&ghost_key(place, variation)) {
            self.regretted += 1;
            // What comes back soon after it went belongs to what the site needs at once.
            if self.clock.saturating_sub(ghost.went) < MAX_GHOSTS as u64 {
                self.regretted_bytes =
                    (self.regretted_bytes + ghost.bytes).min(16 * self.bytes.max(1 << 20));
            }
        }
    }
}

impl Slot {
    fn bytes(&self) -> usize {
        match self {
            Self::Drawing => 0,
            Self::Ready { bytes, .. } => *bytes,
        }
    }
}

fn ghost_key(place: &str, variation: &str) -> u64 {
    hash(place).rotate_left(1) ^ hash(variation)
}

fn is_below(path: &str, outer: &str) -> bool {
    outer == "/"
        || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Drawing {
    /// Keeps what was drawn, or says why not.
    pub(crate) fn keep(
        mut self,
        fragment: Fragment,
        expires: Option<SystemTime>,
    ) -> Result<(), Uncached> {
        let bytes = fragment.bytes() + self.variation.len();
        let options = &self.cache.options;
        if bytes > options.max_entry_bytes {
            return Err(Uncached::TooLarge);
        }
        let mut state = self.cache.state.lock();
        if state.snapshot.as_ref().is_none_or(|known| known.root_id() != self.root) {
            return Err(Uncached::Outdated);
        }
        let used = state.clock;
        let slot = Slot::Ready { fragment: Arc::new(fragment), bytes, used, expires };
        let place = state.places.entry(Arc::clone(&self.unit)).or_default();
        let old = place.entries.insert(std::mem::take(&mut self.variation), slot);
        state.bytes = state.bytes + bytes - old.as_ref().map_or(0, Slot::bytes);
        state.stored += 1;
        self.cache.bound(&mut state);
        self.cache.bound_places(&mut state);
        self.is_done = true;
        self.cache.ready.notify_all();
        Ok(())
    }

    /// Keeps under another variation, as the drawing used more of the request than was known.
    pub(crate) fn rename(&mut self, variation: String) {
        if variation == self.variation {
            return;
        }
        self.release();
        self.variation = variation;
    }

    pub(crate) fn variation(&self) -> &str {
        &self.variation
    }

    /// Lets others draw it.
    fn release(&self) {
        let mut state = self.cache.state.lock();
        if let Some(place) = state.places.get_mut(&self.unit)
            && matches!(place.entries.get(&self.variation), Some(Slot::Drawing))
        {
            place.entries.remove(&self.variation);
        }
        self.cache.ready.notify_all();
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        if !self.is_done {
            self.release();
        }
    }
}

/// What a cache holds and has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentReport {
    /// Places of components.
    pub keys: usize,
    /// Kept fragments.
    pub entries: usize,
    /// What they take.
    pub bytes: usize,
    /// What they may take.
    pub max_bytes: usize,
    /// Look-ups that were answered.
    pub hits: u64,
    /// Look-ups that were not.
    pub misses: u64,
    /// Fragments that went for want of room.
    pub evicted: u64,
    /// Fragments that changes removed.
    pub removed: u64,
    /// Fragments kept.
    pub stored: u64,
    /// Look-ups of fragments that had gone for want of room.
    pub regretted: u64,
    /// About how many bytes the site needs at once.
    pub working_set: usize,
    /// Drawings that were not kept, by reason.
    pub uncached: Vec<(Uncached, u64)>,
    /// The places with the most bytes.
    pub units: Vec<UnitReport>,
}

impl FragmentReport {
    /// Returns what an operator should do, if anything.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let looked = self.hits + self.misses;
        if looked < 1000 || self.regretted * 20 < looked {
            return None;
        }
        // Some room, so that the next look does not name a larger one.
        let fitting = (self.working_set + self.working_set / 4) >> 20;
        Some(format!(
            "the fragment cache is too small: {} of {looked} look-ups were for fragments that went for want of room; \
             `max_bytes = \"{} MiB\"` would hold them",
            self.regretted,
            fitting + 1
        ))
    }
}

/// What is kept of a component at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitReport {
    /// The path, then the type that was forced, the selectors and the extension.
    pub place: String,
    /// Kept variations.
    pub variations: usize,
    /// What they take.
    pub bytes: usize,
    /// Look-ups that were answered.
    pub hits: u64,
    /// Look-ups that were not.
    pub misses: u64,
    /// The time that drawings would have taken.
    pub saved: Duration,
    /// Why drawings were not kept.
    pub uncached: Vec<(Uncached, u64)>,
}
