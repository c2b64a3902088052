//! Kept fragments: found by the place of a component and the variation of a request.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::{ChunkId, Snapshot};

use super::ghost::GhostFragmentList;
use super::{FragmentDirectives, UncachedReason};
use crate::changed_aspects::ChangedAspects;
use crate::content_reader::RequestFacts;
use crate::dependency::{DependencySet, hash_bytes};
use crate::dynamic_inclusion::DynamicChildInclusions;

/// How long a request waits for another one that draws the same.
const RENDER_WAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Look-ups that count in full for whether the cache is large enough.
const RECENT_LOOKUP_WINDOW: u64 = 20_000;
/// What a fragment takes beside its text and dependencies.
const FRAGMENT_OVERHEAD_BYTES: usize = 256;

/// What a change removes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FragmentInvalidationMode {
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
pub struct FragmentCacheOptions {
    /// Bytes that fragments may take together.
    pub max_bytes: usize,
    /// Bytes that are left when fragments had to go.
    pub avg_bytes: usize,
    /// Larger fragments are not kept.
    pub max_entry_bytes: usize,
    /// Places of components that are known at once.
    pub max_components: usize,
    /// What a change removes.
    pub invalidation: FragmentInvalidationMode,
}

impl Default for FragmentCacheOptions {
    fn default() -> Self {
        let (max_bytes, avg_bytes) = (64 << 20, 48 << 20);
        let (max_entry_bytes, max_keys) = (4 << 20, 50_000);
        Self {
            max_bytes,
            avg_bytes,
            max_entry_bytes,
            max_components: max_keys,
            invalidation: FragmentInvalidationMode::Tags,
        }
    }
}

/// A piece of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FragmentPiece {
    Text(Box<str>),
    Hole(FragmentHole),
}

/// A component that is included, and looked up for itself each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FragmentHole {
    pub path: tympan_content::NodePath,
    pub forced_type: Option<String>,
    pub selectors: Arc<[String]>,
    /// Whether it is the node itself that is drawn, and not the content of the page that it may be.
    pub renders_node_itself: bool,
    /// What the component around it says of those that it includes.
    pub child_inclusions: Option<Arc<DynamicChildInclusions>>,
}

/// A kept drawing.
#[derive(Debug)]
pub(crate) struct CachedFragment {
    pub pieces: Box<[FragmentPiece]>,
    /// What was read for it, but by the components in its holes: these are looked up for themselves.
    pub dependencies: Arc<DependencySet>,
    pub request_facts: RequestFacts,
    pub render_time: Duration,
}

impl CachedFragment {
    fn byte_size(&self) -> usize {
        let text: usize = self
            .pieces
            .iter()
            .map(|piece| match piece {
                FragmentPiece::Text(text) => text.len(),
                FragmentPiece::Hole(hole) => hole.path.as_str().len() + 64,
            })
            .sum();
        text + 16 * self.dependencies.len() + FRAGMENT_OVERHEAD_BYTES
    }
}

/// What is known of a component at its place.
#[derive(Debug, Clone)]
pub(crate) struct ComponentTraits {
    pub directives: Arc<FragmentDirectives>,
    /// What its drawings used of requests so far.
    pub request_facts: RequestFacts,
}

/// The answer to a look-up.
pub(crate) enum FragmentLookup {
    Hit(Arc<CachedFragment>),
    /// It is to be drawn; with a permit it may be kept.
    Miss(Option<FragmentRenderPermit>),
}

/// The permit to draw and keep a fragment; others wait until it is dropped.
pub(crate) struct FragmentRenderPermit {
    cache: Arc<FragmentCache>,
    component: Arc<str>,
    variation: String,
    root: ChunkId,
    requester_id: u64,
    is_returning: bool,
    is_released: bool,
}

/// How a request looks for fragments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FragmentRequester {
    /// What tells it from others that look at the same time.
    pub id: u64,
    pub now: SystemTime,
    /// Whether it draws anew what is kept.
    pub bypasses_cached: bool,
}

/// A place of a component.
#[derive(Debug, Default)]
struct ComponentCacheEntry {
    traits: Option<ComponentTraits>,
    slots: HashMap<String, FragmentSlot>,
    last_used: u64,
    hits: u64,
    misses: u64,
    uncached_counts: BTreeMap<UncachedReason, u64>,
    saved_time: Duration,
}

#[derive(Debug)]
enum FragmentSlot {
    /// A request draws it. Others get the one whose time is over, or that is renewed, as long as that takes.
    Rendering {
        requester_id: u64,
        previous: Option<StoredFragment>,
    },
    Ready(StoredFragment),
}

/// A fragment in its slot.
#[derive(Debug)]
struct StoredFragment {
    fragment: Arc<CachedFragment>,
    bytes: usize,
    last_used: u64,
    expires_at: Option<SystemTime>,
    /// Whether it came back after it had gone for want of room.
    is_returning: bool,
}

#[derive(Debug, Default)]
struct FragmentCacheState {
    /// The state of content that everything kept is true for.
    snapshot: Option<Snapshot>,
    components: HashMap<Arc<str>, ComponentCacheEntry>,
    bytes: usize,
    clock: u64,
    /// For each request that waits for a drawing, the request that draws it.
    waiting_for: HashMap<u64, u64>,
    ghosts: GhostFragmentList,
    /// Look-ups that a larger cache would have answered.
    ghost_hits: u64,
    /// Look-ups of late, and how many of them a larger cache would have answered.
    recent_lookups: u64,
    recent_ghost_hits: u64,
    evicted: u64,
    removed: u64,
    stored: u64,
}

/// Fragments by their addresses in memory, which nothing else has as long as they are held here, and whether a change
/// concerns them.
type AffectedFragments = HashMap<usize, (Arc<CachedFragment>, bool)>;

/// The fragments of one instance.
pub struct FragmentCache {
    state: Mutex<FragmentCacheState>,
    /// Held by who brings the cache to another state of content.
    advance_lock: Mutex<()>,
    rendering_finished: Condvar,
    options: FragmentCacheOptions,
    requester_count: AtomicU64,
}

impl fmt::Debug for FragmentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FragmentCache").field("options", &self.options).finish_non_exhaustive()
    }
}

impl FragmentCache {
    /// Makes an empty cache.
    #[must_use]
    pub fn new(options: FragmentCacheOptions) -> Arc<Self> {
        let options =
            FragmentCacheOptions { avg_bytes: options.avg_bytes.min(options.max_bytes), ..options };
        let (state, ready, seekers) = (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Arc::new(Self {
            state,
            advance_lock: Mutex::default(),
            rendering_finished: ready,
            options,
            requester_count: seekers,
        })
    }

    /// Returns what tells a request from all others.
    pub(crate) fn new_requester_id(&self) -> u64 {
        self.requester_count.fetch_add(1, Ordering::Relaxed)
    }

    /// Brings the cache to the state of a request; false if the request looks at another state than the newest, and has to
    /// draw for itself: the cache never goes back, nor to a branch. Requests of the state before go on meanwhile.
    pub(crate) fn advance_to(&self, snapshot: &Snapshot) -> bool {
        let root = snapshot.root_id();
        let is_there = || {
            let state = self.state.lock();
            state.snapshot.as_ref().is_some_and(|known| known.root_id() == root)
        };
        if is_there() {
            return true;
        }
        let _turn = self.advance_lock.lock();
        if is_there() {
            return true;
        }
        // Asked while nobody else can move the cache, so that of two requests the later state stays.
        if !snapshot.is_newest().unwrap_or(false) {
            return false;
        }
        let known = self.state.lock().snapshot.clone();
        let touched = known.map(|known| ChangedAspects::between_snapshots(&known, snapshot));
        let concerned = match &touched {
            Some(Ok(touched)) if self.options.invalidation == FragmentInvalidationMode::Tags => {
                self.affected_fragments(touched)
            }
            _ => AffectedFragments::new(),
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
    fn affected_fragments(&self, touched: &ChangedAspects) -> AffectedFragments {
        let kept: Vec<Arc<CachedFragment>> = {
            let state = self.state.lock();
            let slots = state.components.values().flat_map(|known| known.slots.values());
            slots
                .filter_map(FragmentSlot::stored_fragment)
                .map(|kept| Arc::clone(&kept.fragment))
                .collect()
        };
        let judged = kept.into_iter().map(|fragment| {
            let is_concerned = touched.affects(&fragment.dependencies);
            (Arc::as_ptr(&fragment).addr(), (fragment, is_concerned))
        });
        judged.collect()
    }

    fn invalidate(
        &self,
        state: &mut FragmentCacheState,
        touched: &ChangedAspects,
        concerned: &AffectedFragments,
    ) {
        if ["/apps", "/libs"].iter().any(|root| touched.has_change_below(root)) {
            // What components say, and what they use of requests, may be something else now.
            state.components.values_mut().for_each(|place| place.traits = None);
        }
        match &self.options.invalidation {
            FragmentInvalidationMode::Full => state.remove_if(|_, _| true),
            FragmentInvalidationMode::Tags => state.remove_if(|_, fragment| {
                match concerned.get(&std::ptr::from_ref(fragment).addr()) {
                    Some((_, is_concerned)) => *is_concerned,
                    // It was kept meanwhile.
                    None => touched.affects(&fragment.dependencies),
                }
            }),
            FragmentInvalidationMode::Buckets(clear_all, buckets) => {
                let touches = |path: &String| touched.has_change_below(path);
                if touched.is_everything_changed() || clear_all.iter().any(touches) {
                    return state.remove_if(|_, _| true);
                }
                let changed: Vec<&Vec<String>> =
                    buckets.iter().filter(|bucket| bucket.iter().any(touches)).collect();
                let others =
                    touched.has_change_outside(&buckets.iter().flatten().collect::<Vec<_>>());
                state.remove_if(|place, _| {
                    let path = place.split('\0').next().unwrap_or_default();
                    let is_in =
                        |bucket: &Vec<String>| bucket.iter().any(|one| is_at_or_below(path, one));
                    let is_other = !buckets.iter().any(is_in);
                    (is_other && others) || changed.iter().any(|bucket| is_in(bucket))
                });
            }
        }
    }

    /// Returns what is known of a component at its place.
    pub(crate) fn component_traits(&self, place: &str) -> Option<ComponentTraits> {
        self.state.lock().components.get(place)?.traits.clone()
    }

    /// Counts that a component is not kept, if it says so as far as is known; returns what it says then.
    pub(crate) fn record_if_uncached(&self, place: &str) -> Option<Arc<FragmentDirectives>> {
        let mut state = self.state.lock();
        let known = state.components.get_mut(place)?;
        let directives = Arc::clone(&known.traits.as_ref()?.directives);
        let reason = directives.refusal_reason()?;
        *known.uncached_counts.entry(reason).or_default() += 1;
        Some(directives)
    }

    /// Looks for a fragment. Waits for one that another request draws, unless that one waits for this request.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        place: &Arc<str>,
        variation: &str,
        root: ChunkId,
        seeker: FragmentRequester,
    ) -> FragmentLookup {
        let deadline = Instant::now() + RENDER_WAIT_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            if state.snapshot.as_ref().is_none_or(|known| known.root_id() != root) {
                return FragmentLookup::Miss(None);
            }
            state.clock += 1;
            let clock = state.clock;
            let known = state.components.entry(Arc::clone(place)).or_default();
            known.last_used = clock;
            let kept = known.slots.get_mut(variation).and_then(|slot| slot.usable_fragment(seeker));
            if let Some(kept) = kept {
                kept.last_used = clock;
                let fragment = Arc::clone(&kept.fragment);
                known.hits += 1;
                known.saved_time += fragment.render_time;
                state.record_recent_lookup(false);
                return FragmentLookup::Hit(fragment);
            }
            if let Some(FragmentSlot::Rendering { requester_id: by, .. }) =
                known.slots.get(variation)
            {
                let by = *by;
                if state.would_deadlock(seeker.id, by) {
                    return FragmentLookup::Miss(None);
                }
                state.waiting_for.insert(seeker.id, by);
                let waited = self.rendering_finished.wait_until(&mut state, deadline);
                state.waiting_for.remove(&seeker.id);
                if waited.timed_out() {
                    return FragmentLookup::Miss(None);
                }
                continue;
            }
            let last = match known.slots.remove(variation) {
                Some(FragmentSlot::Ready(kept)) => Some(kept),
                _ => None,
            };
            let by = seeker.id;
            known.slots.insert(
                variation.to_owned(),
                FragmentSlot::Rendering { requester_id: by, previous: last },
            );
            known.misses += 1;
            let has_returned = state.record_miss(place, variation);
            let (cache, unit) = (Arc::clone(self), Arc::clone(place));
            let variation = variation.to_owned();
            let is_done = false;
            let drawing = FragmentRenderPermit {
                cache,
                component: unit,
                variation,
                root,
                requester_id: by,
                is_returning: has_returned,
                is_released: is_done,
            };
            return FragmentLookup::Miss(Some(drawing));
        }
    }

    /// Notes that a component was drawn and not kept.
    pub(crate) fn record_uncached(&self, place: &Arc<str>, reason: UncachedReason) {
        let mut state = self.state.lock();
        *state
            .components
            .entry(Arc::clone(place))
            .or_default()
            .uncached_counts
            .entry(reason)
            .or_default() += 1;
        self.enforce_component_limit(&mut state);
    }

    /// Notes what is known of a component.
    pub(crate) fn record_component_traits(
        &self,
        place: &Arc<str>,
        directives: &Arc<FragmentDirectives>,
        facts: RequestFacts,
    ) {
        let mut state = self.state.lock();
        let known = &mut state.components.entry(Arc::clone(place)).or_default().traits;
        let facts = known.as_ref().map_or(facts, |known| known.request_facts.combine(facts));
        *known = Some(ComponentTraits { directives: Arc::clone(directives), request_facts: facts });
    }

    /// Drops fragments until memory is below its bound again.
    fn enforce_memory_limit(&self, state: &mut FragmentCacheState) {
        if state.bytes <= self.options.max_bytes {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>, String, usize)> = Vec::new();
        for (place, known) in &state.components {
            for (variation, slot) in &known.slots {
                if let FragmentSlot::Ready(kept) = slot {
                    oldest.push((kept.last_used, Arc::clone(place), variation.clone(), kept.bytes));
                }
            }
        }
        oldest.sort_unstable_by_key(|(used, ..)| *used);
        for (_, place, variation, bytes) in oldest {
            if state.bytes <= self.options.avg_bytes {
                break;
            }
            let gone =
                state.components.get_mut(&place).and_then(|one| one.slots.remove(&variation));
            let has_returned = matches!(gone, Some(FragmentSlot::Ready(kept)) if kept.is_returning);
            state.bytes -= bytes;
            state.evicted += 1;
            state.ghosts.add(ghost_key(&place, &variation), (bytes, has_returned), state.clock);
        }
    }

    /// Drops the places that were not used for longest, a tenth of them, if there are too many.
    fn enforce_component_limit(&self, state: &mut FragmentCacheState) {
        if state.components.len() <= self.options.max_components {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>)> = state
            .components
            .iter()
            .map(|(place, known)| (known.last_used, Arc::clone(place)))
            .collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        for (_, place) in oldest.into_iter().take(self.options.max_components / 10 + 1) {
            if let Some(known) = state.components.remove(&place) {
                state.bytes -= known.slots.values().map(FragmentSlot::byte_size).sum::<usize>();
            }
        }
    }

    /// Drops everything; the answer to `_flex=clearcache`.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.clear_fragments();
        state.components.clear();
    }

    /// Drops what was drawn, and keeps what is known of components; the answer to `_flex=clearvariations`.
    pub fn clear_fragments(&self) {
        self.state.lock().clear_fragments();
    }

    /// Returns counts, and the places of components with the most bytes.
    #[must_use]
    pub fn report(&self, most: usize) -> FragmentCacheReport {
        let state = self.state.lock();
        let mut units: Vec<ComponentCacheReport> = state
            .components
            .iter()
            .map(|(place, known)| ComponentCacheReport {
                component_key: place.replace('\0', " "),
                variation_count: known.slots.len(),
                bytes: known.slots.values().map(FragmentSlot::byte_size).sum(),
                hits: known.hits,
                misses: known.misses,
                saved_time: known.saved_time,
                uncached_counts: known
                    .uncached_counts
                    .iter()
                    .map(|(why, count)| (*why, *count))
                    .collect(),
            })
            .collect();
        units.sort_by_key(|unit| std::cmp::Reverse((unit.bytes, unit.hits)));
        let sum = |count: fn(&ComponentCacheReport) -> u64| units.iter().map(count).sum();
        let mut uncached: BTreeMap<UncachedReason, u64> = BTreeMap::new();
        for (why, count) in units.iter().flat_map(|unit| &unit.uncached_counts) {
            *uncached.entry(*why).or_default() += count;
        }
        let report = FragmentCacheReport {
            component_count: units.len(),
            fragment_count: units.iter().map(|unit| unit.variation_count).sum(),
            bytes: state.bytes,
            max_bytes: self.options.max_bytes,
            hits: sum(|unit| unit.hits),
            misses: sum(|unit| unit.misses),
            evicted: state.evicted,
            removed: state.removed,
            stored: state.stored,
            ghost_hits: state.ghost_hits,
            recent_lookups: state.recent_lookups,
            recent_ghost_hits: state.recent_ghost_hits,
            working_set_bytes: state.bytes + state.ghosts.returning_bytes(),
            uncached_counts: uncached.into_iter().collect(),
            components: Vec::new(),
        };
        units.truncate(most);
        FragmentCacheReport { components: units, ..report }
    }
}

impl FragmentCacheState {
    /// Removes fragments; those that are being drawn are not kept when they are done, as their root is old then.
    fn remove_if(&mut self, mut is_gone: impl FnMut(&str, &CachedFragment) -> bool) {
        for (place, known) in &mut self.components {
            known.slots.retain(|_, slot| {
                let kept = slot.stored_fragment().filter(|kept| is_gone(place, &kept.fragment));
                let Some(kept) = kept else { return true };
                self.bytes -= kept.bytes;
                self.removed += 1;
                match slot {
                    FragmentSlot::Ready(_) => false,
                    FragmentSlot::Rendering { previous: last, .. } => {
                        *last = None;
                        true
                    }
                }
            });
        }
    }

    /// Removes all fragments.
    fn clear_fragments(&mut self) {
        self.remove_if(|_, _| true);
        self.ghosts = GhostFragmentList::default();
    }

    /// Counts a miss; tells whether the fragment had gone for want of room.
    fn record_miss(&mut self, place: &str, variation: &str) -> bool {
        let has_gone = self.ghosts.take_recent(ghost_key(place, variation), self.clock);
        self.ghost_hits += u64::from(has_gone);
        self.record_recent_lookup(has_gone);
        has_gone
    }

    /// Counts a look-up among those of late; earlier ones count for less and less.
    fn record_recent_lookup(&mut self, is_regretted: bool) {
        if self.recent_lookups >= RECENT_LOOKUP_WINDOW {
            self.recent_lookups /= 2;
            self.recent_ghost_hits /= 2;
        }
        self.recent_lookups += 1;
        self.recent_ghost_hits += u64::from(is_regretted);
    }

    /// Tells whether a request is another one, or that one waits for it, perhaps for others between.
    fn would_deadlock(&self, seeker: u64, by: u64) -> bool {
        let mut next = Some(by);
        // Nobody begins to wait in a circle, so that this ends.
        while let Some(one) = next {
            if one == seeker {
                return true;
            }
            next = self.waiting_for.get(&one).copied();
        }
        false
    }
}

impl FragmentSlot {
    /// Returns what a request may use of it.
    fn usable_fragment(&mut self, seeker: FragmentRequester) -> Option<&mut StoredFragment> {
        let is_good =
            |kept: &&mut StoredFragment| kept.expires_at.is_none_or(|expires| seeker.now < expires);
        match self {
            Self::Ready(kept) => Some(kept).filter(|_| !seeker.bypasses_cached).filter(is_good),
            // Another one is on its way.
            Self::Rendering { requester_id: by, previous: last } => {
                last.as_mut().filter(|_| !seeker.bypasses_cached && *by != seeker.id)
            }
        }
    }

    /// Returns the fragment in it.
    fn stored_fragment(&self) -> Option<&StoredFragment> {
        match self {
            Self::Rendering { previous: last, .. } => last.as_ref(),
            Self::Ready(kept) => Some(kept),
        }
    }

    fn byte_size(&self) -> usize {
        self.stored_fragment().map_or(0, |kept| kept.bytes)
    }
}

fn ghost_key(place: &str, variation: &str) -> u64 {
    hash_bytes(place).rotate_left(1) ^ hash_bytes(variation)
}

fn is_at_or_below(path: &str, outer: &str) -> bool {
    outer == "/"
        || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl FragmentRenderPermit {
    /// Keeps what was drawn, or says why not.
    pub(crate) fn store(
        mut self,
        fragment: CachedFragment,
        expires: Option<SystemTime>,
    ) -> Result<(), UncachedReason> {
        let bytes = fragment.byte_size() + self.variation.len();
        let options = &self.cache.options;
        if bytes > options.max_entry_bytes {
            return Err(UncachedReason::TooLarge);
        }
        let mut state = self.cache.state.lock();
        if state.snapshot.as_ref().is_none_or(|known| known.root_id() != self.root) {
            return Err(UncachedReason::Outdated);
        }
        let used = state.clock;
        let (fragment, has_returned) = (Arc::new(fragment), self.is_returning);
        let slot = FragmentSlot::Ready(StoredFragment {
            fragment,
            bytes,
            last_used: used,
            expires_at: expires,
            is_returning: has_returned,
        });
        let place = state.components.entry(Arc::clone(&self.component)).or_default();
        let old = place.slots.insert(std::mem::take(&mut self.variation), slot);
        state.bytes = state.bytes + bytes - old.as_ref().map_or(0, FragmentSlot::byte_size);
        state.stored += 1;
        self.cache.enforce_memory_limit(&mut state);
        self.cache.enforce_component_limit(&mut state);
        self.is_released = true;
        self.cache.rendering_finished.notify_all();
        Ok(())
    }

    /// Keeps under another variation, as the drawing used more of the request than was known.
    pub(crate) fn change_variation(&mut self, variation: String) {
        if variation == self.variation {
            return;
        }
        self.release_slot(ReplacedFragmentFate::Dropped);
        self.variation = variation;
    }

    pub(crate) fn variation(&self) -> &str {
        &self.variation
    }

    /// Lets others draw it.
    fn release_slot(&self, then: ReplacedFragmentFate) {
        let mut state = self.cache.state.lock();
        let state = &mut *state;
        if let Some(place) = state.components.get_mut(&self.component)
            && matches!(place.slots.get(&self.variation), Some(FragmentSlot::Rendering { requester_id, .. }) if *requester_id == self.requester_id)
            && let Some(FragmentSlot::Rendering { previous: Some(last), .. }) =
                place.slots.remove(&self.variation)
        {
            match then {
                ReplacedFragmentFate::Restored => {
                    place.slots.insert(self.variation.clone(), FragmentSlot::Ready(last));
                }
                ReplacedFragmentFate::Dropped => state.bytes -= last.bytes,
            }
        }
        self.cache.rendering_finished.notify_all();
    }
}

/// What becomes of a fragment in whose stead another one was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplacedFragmentFate {
    Restored,
    /// Nobody looks for it any more.
    Dropped,
}

impl Drop for FragmentRenderPermit {
    fn drop(&mut self) {
        if !self.is_released {
            self.release_slot(ReplacedFragmentFate::Restored);
        }
    }
}

/// What a cache holds and has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentCacheReport {
    /// Places of components.
    pub component_count: usize,
    /// Kept fragments.
    pub fragment_count: usize,
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
    pub ghost_hits: u64,
    /// Look-ups of late.
    pub recent_lookups: u64,
    /// How many of them were of fragments that had gone for want of room.
    pub recent_ghost_hits: u64,
    /// About how many bytes the site needs at once.
    pub working_set_bytes: usize,
    /// Drawings that were not kept, by reason.
    pub uncached_counts: Vec<(UncachedReason, u64)>,
    /// The places with the most bytes.
    pub components: Vec<ComponentCacheReport>,
}

impl FragmentCacheReport {
    /// Returns what an operator should do, if anything.
    #[must_use]
    pub fn operator_warning(&self) -> Option<String> {
        let (looked, regretted) = (self.recent_lookups, self.recent_ghost_hits);
        if looked < 1000 || regretted * 20 < looked {
            return None;
        }
        // Some room, so that the next look does not name a larger one.
        let fitting = (self.working_set_bytes + self.working_set_bytes / 4) >> 20;
        Some(format!(
            "the fragment cache is too small: {regretted} of the last {looked} look-ups were for fragments that went for want \
             of room; `max_bytes = \"{} MiB\"` would hold them",
            fitting + 1
        ))
    }
}

/// What is kept of a component at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentCacheReport {
    /// The path, then the type that was forced, the selectors and the extension.
    pub component_key: String,
    /// Kept variations.
    pub variation_count: usize,
    /// What they take.
    pub bytes: usize,
    /// Look-ups that were answered.
    pub hits: u64,
    /// Look-ups that were not.
    pub misses: u64,
    /// The time that drawings would have taken.
    pub saved_time: Duration,
    /// Why drawings were not kept.
    pub uncached_counts: Vec<(UncachedReason, u64)>,
}

#[cfg(test)]
mod tests {
    use tympan_content::Repository;

    use super::*;

    /// A cache that follows an empty state.
    fn cache() -> (Arc<FragmentCache>, ChunkId) {
        let (cache, snapshot) = (
            FragmentCache::new(FragmentCacheOptions::default()),
            Repository::in_memory().unwrap().snapshot().unwrap(),
        );
        assert!(cache.advance_to(&snapshot));
        (cache, snapshot.root_id())
    }

    fn fragment(text: &str) -> CachedFragment {
        let (read, facts) = (Arc::new(DependencySet::default()), RequestFacts::default());
        CachedFragment {
            pieces: [FragmentPiece::Text(text.into())].into(),
            dependencies: read,
            request_facts: facts,
            render_time: Duration::ZERO,
        }
    }

    /// Looks for the fragment of a place at a second.
    fn look(cache: &Arc<FragmentCache>, root: ChunkId, (place, at): (&str, u64)) -> FragmentLookup {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        look_as(
            cache,
            root,
            place,
            FragmentRequester { id: cache.new_requester_id(), now, bypasses_cached: false },
        )
    }

    fn look_as(
        cache: &Arc<FragmentCache>,
        root: ChunkId,
        place: &str,
        seeker: FragmentRequester,
    ) -> FragmentLookup {
        cache.look_up(&place.into(), "", root, seeker)
    }

    fn text(found: FragmentLookup) -> String {
        match found {
            FragmentLookup::Hit(fragment) => match &*fragment.pieces {
                [FragmentPiece::Text(text)] => text.to_string(),
                other => panic!("{other:?}"),
            },
            FragmentLookup::Miss(Some(_)) => "to draw".to_owned(),
            FragmentLookup::Miss(None) => "to draw for itself".to_owned(),
        }
    }

    fn drawing(found: FragmentLookup) -> FragmentRenderPermit {
        match found {
            FragmentLookup::Miss(Some(drawing)) => drawing,
            other => panic!("{}", text(other)),
        }
    }

    #[test]
    fn what_is_over_its_time_is_given_out_while_one_draws_it_anew() {
        let (cache, root) = cache();
        let expires = |at| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        let first = drawing(look(&cache, root, ("/a", 0)));
        first.store(fragment("first"), expires(10)).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 9))), "first");
        let second = drawing(look(&cache, root, ("/a", 10)));
        assert_eq!(text(look(&cache, root, ("/a", 11))), "first", "nobody waits");
        // Where it cannot be drawn, the next one tries.
        drop(second);
        let third = drawing(look(&cache, root, ("/a", 12)));
        let bytes = cache.report(0).bytes;
        third.store(fragment("third"), expires(20)).unwrap();
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
        drawing(look(&cache, root, ("/a", 0))).store(fragment("first"), None).unwrap();
        let renewing = || {
            let (id, now) = (cache.new_requester_id(), SystemTime::UNIX_EPOCH);
            look_as(&cache, root, "/a", FragmentRequester { id, now, bypasses_cached: true })
        };
        drop(drawing(renewing()));
        assert_eq!(text(look(&cache, root, ("/a", 1))), "first", "the drawing failed");
        let second = drawing(renewing());
        assert_eq!(text(look(&cache, root, ("/a", 1))), "first");
        second.store(fragment("second"), None).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 1))), "second");
    }

    #[test]
    fn no_two_requests_wait_for_each_other() {
        let (cache, root) = cache();
        let now = SystemTime::UNIX_EPOCH;
        let [one, other] = [(); 2].map(|()| FragmentRequester {
            id: cache.new_requester_id(),
            now,
            bypasses_cached: false,
        });
        let a = drawing(look_as(&cache, root, "/a", one));
        let b = drawing(look_as(&cache, root, "/b", other));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| text(look_as(&cache, root, "/a", other)));
            while !cache.state.lock().waiting_for.contains_key(&other.id) {
                std::thread::yield_now();
            }
            // The other one waits for this one, so that this one draws for itself, and neither waits for ever.
            assert_eq!(text(look_as(&cache, root, "/b", one)), "to draw for itself");
            assert_eq!(text(look_as(&cache, root, "/a", one)), "to draw for itself");
            a.store(fragment("a"), None).unwrap();
            assert_eq!(waiting.join().unwrap(), "a");
        });
        b.store(fragment("b"), None).unwrap();
        assert!(cache.state.lock().waiting_for.is_empty());
    }
}
