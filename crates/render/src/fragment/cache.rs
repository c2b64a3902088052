//! Kept fragments: found by the place of a component and the variation of a request.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::{ChunkId, Snapshot};

use super::ghost::Ghosts;
use super::{Directives, Uncached};
use crate::dependency::{Dependencies, hash};
use crate::dynamic::DynamicChildren;
use crate::reads::Facts;
use crate::touched::Touched;

/// How long a request waits for another one that draws the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// Look-ups that count in full for whether the cache is large enough.
const LATELY: u64 = 20_000;
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
    /// What was read for it, but by the components in its holes: these are looked up for themselves.
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
    by: u64,
    has_returned: bool,
    is_done: bool,
}

/// How a request looks for fragments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeker {
    /// What tells it from others that look at the same time.
    pub id: u64,
    pub now: SystemTime,
    /// Whether it draws anew what is kept.
    pub renews: bool,
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
    /// A request draws it. Others get the one whose time is over, or that is renewed, as long as that takes.
    Drawing {
        by: u64,
        last: Option<Kept>,
    },
    Ready(Kept),
}

/// A fragment in its slot.
#[derive(Debug)]
struct Kept {
    fragment: Arc<Fragment>,
    bytes: usize,
    used: u64,
    expires: Option<SystemTime>,
    /// Whether it came back after it had gone for want of room.
    has_returned: bool,
}

#[derive(Debug, Default)]
struct State {
    /// The state of content that everything kept is true for.
    snapshot: Option<Snapshot>,
    places: HashMap<Arc<str>, Place>,
    bytes: usize,
    clock: u64,
    /// For each request that waits for a drawing, the request that draws it.
    waits: HashMap<u64, u64>,
    ghosts: Ghosts,
    /// Look-ups that a larger cache would have answered.
    regretted: u64,
    /// Look-ups of late, and how many of them a larger cache would have answered.
    looked_lately: u64,
    regretted_lately: u64,
    evicted: u64,
    removed: u64,
    stored: u64,
}

/// Fragments by their addresses in memory, which nothing else has as long as they are held here, and whether a change
/// concerns them.
type Concerned = HashMap<usize, (Arc<Fragment>, bool)>;

/// The fragments of one instance.
pub struct FragmentCache {
    state: Mutex<State>,
    /// Held by who brings the cache to another state of content.
    moving: Mutex<()>,
    ready: Condvar,
    options: FragmentOptions,
    seekers: AtomicU64,
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
        let (state, ready, seekers) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Arc::new(Self { state, moving: Mutex::default(), ready, options, seekers })
    }

    /// Returns what tells a request from all others.
    pub(crate) fn new_seeker(&self) -> u64 {
        self.seekers.fetch_add(1, Ordering::Relaxed)
    }

    /// Brings the cache to the state of a request; false if the request looks at another state than the newest, and has to
    /// draw for itself: the cache never goes back, nor to a branch. Requests of the state before go on meanwhile.
    pub(crate) fn follow(&self, snapshot: &Snapshot) -> bool {
        let root = snapshot.root_id();
        let is_there = || {
            let state = self.state.lock();
            state.snapshot.as_ref().is_some_and(|known| known.root_id() == root)
        };
        if is_there() {
            return true;
        }
        let _turn = self.moving.lock();
        if is_there() {
            return true;
        }
        // Asked while nobody else can move the cache, so that of two requests the later state stays.
        if !snapshot.is_newest().unwrap_or(false) {
            return false;
        }
        let known = self.state.lock().snapshot.clone();
        let touched = known.map(|known| Touched::between(&known, snapshot));
        let concerned = match &touched {
            Some(Ok(touched)) if self.options.invalidation == Invalidation::Tags => {
                self.concerned(touched)
            }
            _ => Concerned::new(),
        };
        let mut state = self.state.lock();
        state.snapshot = Some(snapshot.clone());
        match touched {
            None => {}
            Some(Ok(touched)) => self.invalidate(&mut state, &touched, &concerned),
            Some(Err(error)) => {
                tracing::warn!(error = %error, "fragments are dropped, as two states cannot be compared");
                state.remove_if(|_, _| true);
            }
        }
        true
    }

    /// Tells of each fragment whether a change concerns it: what takes its time is done while others use the cache.
    fn concerned(&self, touched: &Touched) -> Concerned {
        let kept: Vec<Arc<Fragment>> = {
            let state = self.state.lock();
            let slots = state.places.values().flat_map(|known| known.entries.values());
            slots.filter_map(Slot::kept).map(|kept| Arc::clone(&kept.fragment)).collect()
        };
        let judged = kept.into_iter().map(|fragment| {
            let is_concerned = touched.concerns(&fragment.read);
            (Arc::as_ptr(&fragment).addr(), (fragment, is_concerned))
        });
        judged.collect()
    }

    fn invalidate(&self, state: &mut State, touched: &Touched, concerned: &Concerned) {
        if ["/apps", "/libs"].iter().any(|root| touched.touches_below(root)) {
            // What components say, and what they use of requests, may be something else now.
            state.places.values_mut().for_each(|place| place.known = None);
        }
        match &self.options.invalidation {
            Invalidation::Full => state.remove_if(|_, _| true),
            Invalidation::Tags => state.remove_if(|_, fragment| {
                match concerned.get(&std::ptr::from_ref(fragment).addr()) {
                    Some((_, is_concerned)) => *is_concerned,
                    // It was kept meanwhile.
                    None => touched.concerns(&fragment.read),
                }
            }),
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

    /// Counts that a component is not kept, if it says so as far as is known; returns what it says then.
    pub(crate) fn pass(&self, place: &str) -> Option<Arc<Directives>> {
        let mut state = self.state.lock();
        let known = state.places.get_mut(place)?;
        let directives = Arc::clone(&known.known.as_ref()?.directives);
        let reason = directives.refused()?;
        *known.uncached.entry(reason).or_default() += 1;
        Some(directives)
    }

    /// Looks for a fragment. Waits for one that another request draws, unless that one waits for this request.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        place: &Arc<str>,
        variation: &str,
        root: ChunkId,
        seeker: Seeker,
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
            let kept = known.entries.get_mut(variation).and_then(|slot| slot.usable_by(seeker));
            if let Some(kept) = kept {
                kept.used = clock;
                let fragment = Arc::clone(&kept.fragment);
                known.hits += 1;
                known.saved += fragment.took;
                state.count_lately(false);
                return Found::Hit(fragment);
            }
            if let Some(Slot::Drawing { by, .. }) = known.entries.get(variation) {
                let by = *by;
                if state.is_waited_for(seeker.id, by) {
                    return Found::Miss(None);
                }
                state.waits.insert(seeker.id, by);
                let waited = self.ready.wait_until(&mut state, deadline);
                state.waits.remove(&seeker.id);
                if waited.timed_out() {
                    return Found::Miss(None);
                }
                continue;
            }
            let last = match known.entries.remove(variation) {
                Some(Slot::Ready(kept)) => Some(kept),
                _ => None,
            };
            let by = seeker.id;
            known.entries.insert(variation.to_owned(), Slot::Drawing { by, last });
            known.misses += 1;
            let has_returned = state.regret(place, variation);
            let (cache, unit) = (Arc::clone(self), Arc::clone(place));
            let variation = variation.to_owned();
            let is_done = false;
            let drawing = Drawing { cache, unit, variation, root, by, has_returned, is_done };
            return Found::Miss(Some(drawing));
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
                if let Slot::Ready(kept) = slot {
                    oldest.push((kept.used, Arc::clone(place), variation.clone(), kept.bytes));
                }
            }
        }
        oldest.sort_unstable_by_key(|(used, ..)| *used);
        for (_, place, variation, bytes) in oldest {
            if state.bytes <= self.options.avg_bytes {
                break;
            }
            let gone = state.places.get_mut(&place).and_then(|one| one.entries.remove(&variation));
            let has_returned = matches!(gone, Some(Slot::Ready(kept)) if kept.has_returned);
            state.bytes -= bytes;
            state.evicted += 1;
            state.ghosts.add(ghost_key(&place, &variation), (bytes, has_returned), state.clock);
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
        state.clear_drawings();
        state.places.clear();
    }

    /// Drops what was drawn, and keeps what is known of components; the answer to `_flex=clearvariations`.
    pub fn clear_drawings(&self) {
        self.state.lock().clear_drawings();
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
            looked_lately: state.looked_lately,
            regretted_lately: state.regretted_lately,
            working_set: state.bytes + state.ghosts.returning_bytes(),
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
            known.entries.retain(|_, slot| {
                let kept = slot.kept().filter(|kept| is_gone(place, &kept.fragment));
                let Some(kept) = kept else { return true };
                self.bytes -= kept.bytes;
                self.removed += 1;
                match slot {
                    Slot::Ready(_) => false,
                    Slot::Drawing { last, .. } => {
                        *last = None;
                        true
                    }
                }
            });
        }
    }

    /// Removes all fragments.
    fn clear_drawings(&mut self) {
        self.remove_if(|_, _| true);
        self.ghosts = Ghosts::default();
    }

    /// Counts a miss; tells whether the fragment had gone for want of room.
    fn regret(&mut self, place: &str, variation: &str) -> bool {
        let has_gone = self.ghosts.take(ghost_key(place, variation), self.clock);
        self.regretted += u64::from(has_gone);
        self.count_lately(has_gone);
        has_gone
    }

    /// Counts a look-up among those of late; earlier ones count for less and less.
    fn count_lately(&mut self, is_regretted: bool) {
        if self.looked_lately >= LATELY {
            self.looked_lately /= 2;
            self.regretted_lately /= 2;
        }
        self.looked_lately += 1;
        self.regretted_lately += u64::from(is_regretted);
    }

    /// Tells whether a request is another one, or that one waits for it, perhaps for others between.
    fn is_waited_for(&self, seeker: u64, by: u64) -> bool {
        let mut next = Some(by);
        // Nobody begins to wait in a circle, so that this ends.
        while let Some(one) = next {
            if one == seeker {
                return true;
            }
            next = self.waits.get(&one).copied();
        }
        false
    }
}

impl Slot {
    /// Returns what a request may use of it.
    fn usable_by(&mut self, seeker: Seeker) -> Option<&mut Kept> {
        let is_good = |kept: &&mut Kept| kept.expires.is_none_or(|expires| seeker.now < expires);
        match self {
            Self::Ready(kept) => Some(kept).filter(|_| !seeker.renews).filter(is_good),
            // Another one is on its way.
            Self::Drawing { by, last } => {
                last.as_mut().filter(|_| !seeker.renews && *by != seeker.id)
            }
        }
    }

    /// Returns the fragment in it.
    fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Drawing { last, .. } => last.as_ref(),
            Self::Ready(kept) => Some(kept),
        }
    }

    fn bytes(&self) -> usize {
        self.kept().map_or(0, |kept| kept.bytes)
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
        let (fragment, has_returned) = (Arc::new(fragment), self.has_returned);
        let slot = Slot::Ready(Kept { fragment, bytes, used, expires, has_returned });
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
        self.release(Last::Dropped);
        self.variation = variation;
    }

    pub(crate) fn variation(&self) -> &str {
        &self.variation
    }

    /// Lets others draw it.
    fn release(&self, then: Last) {
        let mut state = self.cache.state.lock();
        let state = &mut *state;
        if let Some(place) = state.places.get_mut(&self.unit)
            && matches!(place.entries.get(&self.variation), Some(Slot::Drawing { by, .. }) if *by == self.by)
            && let Some(Slot::Drawing { last: Some(last), .. }) =
                place.entries.remove(&self.variation)
        {
            match then {
                Last::Restored => {
                    place.entries.insert(self.variation.clone(), Slot::Ready(last));
                }
                Last::Dropped => state.bytes -= last.bytes,
            }
        }
        self.cache.ready.notify_all();
    }
}

/// What becomes of a fragment in whose stead another one was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Restored,
    /// Nobody looks for it any more.
    Dropped,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        if !self.is_done {
            self.release(Last::Restored);
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
    /// Look-ups of late.
    pub looked_lately: u64,
    /// How many of them were of fragments that had gone for want of room.
    pub regretted_lately: u64,
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
        let (looked, regretted) = (self.looked_lately, self.regretted_lately);
        if looked < 1000 || regretted * 20 < looked {
            return None;
        }
        // Some room, so that the next look does not name a larger one.
        let fitting = (self.working_set + self.working_set / 4) >> 20;
        Some(format!(
            "the fragment cache is too small: {regretted} of the last {looked} look-ups were for fragments that went for want \
             of room; `max_bytes = \"{} MiB\"` would hold them",
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

#[cfg(test)]
mod tests {
    use tympan_content::Repository;

    use super::*;

    /// A cache that follows an empty state.
    fn cache() -> (Arc<FragmentCache>, ChunkId) {
        let (cache, snapshot) = (
            FragmentCache::new(FragmentOptions::default()),
            Repository::memory().unwrap().snapshot().unwrap(),
        );
        assert!(cache.follow(&snapshot));
        (cache, snapshot.root_id())
    }

    fn fragment(text: &str) -> Fragment {
        let (read, facts) = (Arc::new(Dependencies::default()), Facts::default());
        Fragment { pieces: [Piece::Text(text.into())].into(), read, facts, took: Duration::ZERO }
    }

    /// Looks for the fragment of a place at a second.
    fn look(cache: &Arc<FragmentCache>, root: ChunkId, (place, at): (&str, u64)) -> Found {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        look_as(cache, root, place, Seeker { id: cache.new_seeker(), now, renews: false })
    }

    fn look_as(cache: &Arc<FragmentCache>, root: ChunkId, place: &str, seeker: Seeker) -> Found {
        cache.look_up(&place.into(), "", root, seeker)
    }

    fn text(found: Found) -> String {
        match found {
            Found::Hit(fragment) => match &*fragment.pieces {
                [Piece::Text(text)] => text.to_string(),
                other => panic!("{other:?}"),
            },
            Found::Miss(Some(_)) => "to draw".to_owned(),
            Found::Miss(None) => "to draw for itself".to_owned(),
        }
    }

    fn drawing(found: Found) -> Drawing {
        match found {
            Found::Miss(Some(drawing)) => drawing,
            other => panic!("{}", text(other)),
        }
    }

    #[test]
    fn what_is_over_its_time_is_given_out_while_one_draws_it_anew() {
        let (cache, root) = cache();
        let expires = |at| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        let first = drawing(look(&cache, root, ("/a", 0)));
        first.keep(fragment("first"), expires(10)).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 9))), "first");
        let second = drawing(look(&cache, root, ("/a", 10)));
        assert_eq!(text(look(&cache, root, ("/a", 11))), "first", "nobody waits");
        // Where it cannot be drawn, the next one tries.
        drop(second);
        let third = drawing(look(&cache, root, ("/a", 12)));
        let bytes = cache.report(0).bytes;
        third.keep(fragment("third"), expires(20)).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 13))), "third");
        assert_eq!(cache.report(0).bytes, bytes, "the first one counts no more");
        // What a change concerns is given out to nobody.
        let fourth = drawing(look(&cache, root, ("/a", 21)));
        cache.state.lock().remove_if(|_, _| true);
        assert_eq!(cache.report(0).bytes, 0);
        drop(fourth);
        assert_eq!(text(look(&cache, root, ("/a", 22))), "to draw");
    }

    #[test]
    fn who_renews_draws_what_is_kept() {
        let (cache, root) = cache();
        drawing(look(&cache, root, ("/a", 0))).keep(fragment("first"), None).unwrap();
        let renewing = || {
            let (id, now) = (cache.new_seeker(), SystemTime::UNIX_EPOCH);
            look_as(&cache, root, "/a", Seeker { id, now, renews: true })
        };
        drop(drawing(renewing()));
        assert_eq!(text(look(&cache, root, ("/a", 1))), "first", "the drawing failed");
        let second = drawing(renewing());
        assert_eq!(text(look(&cache, root, ("/a", 1))), "first");
        second.keep(fragment("second"), None).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 1))), "second");
    }

    #[test]
    fn no_two_requests_wait_for_each_other() {
        let (cache, root) = cache();
        let now = SystemTime::UNIX_EPOCH;
        let [one, other] = [(); 2].map(|()| Seeker { id: cache.new_seeker(), now, renews: false });
        let a = drawing(look_as(&cache, root, "/a", one));
        let b = drawing(look_as(&cache, root, "/b", other));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| text(look_as(&cache, root, "/a", other)));
            while !cache.state.lock().waits.contains_key(&other.id) {
                std::thread::yield_now();
            }
            // The other one waits for this one, so that this one draws for itself, and neither waits for ever.
            assert_eq!(text(look_as(&cache, root, "/b", one)), "to draw for itself");
            assert_eq!(text(look_as(&cache, root, "/a", one)), "to draw for itself");
            a.keep(fragment("a"), None).unwrap();
            assert_eq!(waiting.join().unwrap(), "a");
        });
        b.keep(fragment("b"), None).unwrap();
        assert!(cache.state.lock().waits.is_empty());
    }
}
