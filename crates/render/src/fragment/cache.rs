//! Cached fragments, keyed by the component's path and the request's variation.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use tympan_content::{ChunkId, Snapshot, is_path_within};

use super::ghost::GhostFragmentList;
use super::{FragmentDirectives, UncachedReason};
use crate::dependency::DependencySet;
use crate::dependency::changed_aspects::ChangedAspects;
use crate::dependency::content_reader::RequestFacts;
use crate::dependency::path_dependency::hash_bytes;
use crate::dynamic_inclusion::DynamicChildInclusions;

/// How long a request waits for another one that renders the same fragment.
const RENDER_WAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of recent lookups that fully count for judging the size of the cache.
const RECENT_LOOKUP_WINDOW: u64 = 20_000;
/// Memory overhead of a fragment beside its text and dependencies, in bytes.
const FRAGMENT_OVERHEAD_BYTES: usize = 256;

/// The fragments that a change removes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FragmentInvalidationMode {
    /// All fragments, the default of OpenCms.
    Full,
    /// All fragments if a changed path lies below one of the first list; else the fragments whose components lie in a
    /// bucket with a changed path. A bucket is a list of paths.
    Buckets(Vec<String>, Vec<Vec<String>>),
    /// The fragments that depend on something that changed.
    #[default]
    Tags,
}

/// The limits of a cache, named as in OpenCms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentCacheOptions {
    /// Maximum total size of the fragments, in bytes.
    pub max_bytes: usize,
    /// Total size that remains after an eviction, in bytes.
    pub avg_bytes: usize,
    /// Maximum size of a fragment, in bytes; larger ones are not cached.
    pub max_entry_bytes: usize,
    /// Maximum number of components.
    pub max_components: usize,
    /// The fragments that a change removes.
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

/// An included component, which is looked up separately each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FragmentHole {
    pub path: tympan_content::NodePath,
    pub forced_type: Option<String>,
    pub selectors: Arc<[String]>,
    /// True if the node itself is rendered, even if it is a page; otherwise a page's content is rendered.
    pub renders_node_itself: bool,
    /// The inclusions that the enclosing component declares for its children.
    pub child_inclusions: Option<Arc<DynamicChildInclusions>>,
}

/// A cached rendering.
#[derive(Debug)]
pub(crate) struct CachedFragment {
    pub pieces: Box<[FragmentPiece]>,
    /// The reads of the rendering, except those of the components in its holes, which are looked up separately.
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

/// Known properties of a component at its path.
#[derive(Debug, Clone)]
pub(crate) struct ComponentTraits {
    pub directives: Arc<FragmentDirectives>,
    /// The facts of requests that its renderings used so far.
    pub request_facts: RequestFacts,
}

/// The result of a lookup.
pub(crate) enum FragmentLookup {
    Hit(Arc<CachedFragment>),
    /// The fragment has to be rendered; with a permit it may be cached.
    Miss(Option<FragmentRenderPermit>),
}

/// The permit to render and cache a fragment; other requests wait until it is dropped.
pub(crate) struct FragmentRenderPermit {
    cache: Arc<FragmentCache>,
    component: Arc<str>,
    variation: String,
    root: ChunkId,
    requester_id: u64,
    is_returning: bool,
    is_released: bool,
}

/// The identity and mode of a request that looks up fragments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FragmentRequester {
    /// Identifies the request among concurrent ones.
    pub id: u64,
    pub now: SystemTime,
    /// True if the request renders cached fragments again.
    pub bypasses_cached: bool,
}

/// The cache entry of a component.
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
    /// A request renders it. Meanwhile others get the previous fragment if it is expired or being renewed.
    Rendering {
        requester_id: u64,
        previous: Option<StoredFragment>,
    },
    Ready(StoredFragment),
}

/// A cached fragment in its slot.
#[derive(Debug)]
struct StoredFragment {
    fragment: Arc<CachedFragment>,
    bytes: usize,
    last_used: u64,
    expires_at: Option<SystemTime>,
    /// True if it was cached again after an eviction.
    is_returning: bool,
}

#[derive(Debug, Default)]
struct FragmentCacheState {
    /// The content state for which all cached fragments are valid.
    snapshot: Option<Snapshot>,
    components: HashMap<Arc<str>, ComponentCacheEntry>,
    bytes: usize,
    clock: u64,
    /// Maps each waiting request to the request that renders the fragment.
    waiting_for: HashMap<u64, u64>,
    ghosts: GhostFragmentList,
    /// Lookups that a larger cache would have hit.
    ghost_hits: u64,
    /// Recent lookups, and how many of them a larger cache would have hit.
    recent_lookups: u64,
    recent_ghost_hits: u64,
    evicted: u64,
    removed: u64,
    stored: u64,
}

/// Fragments by their memory address, which is not reused while they are held here, and whether a change affects them.
type AffectedFragments = HashMap<usize, (Arc<CachedFragment>, bool)>;

/// The fragment cache of one instance.
pub struct FragmentCache {
    state: Mutex<FragmentCacheState>,
    /// Held while the cache advances to another content state.
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
    /// Creates an empty cache.
    #[must_use]
    pub fn new(options: FragmentCacheOptions) -> Arc<Self> {
        let options =
            FragmentCacheOptions { avg_bytes: options.avg_bytes.min(options.max_bytes), ..options };
        let (state, ready_signal, waiting_count) =
            (Mutex::default(), Condvar::new(), AtomicU64::new(0));
        Arc::new(Self {
            state,
            advance_lock: Mutex::default(),
            rendering_finished: ready_signal,
            options,
            requester_count: waiting_count,
        })
    }

    /// Returns a unique request identifier.
    pub(crate) fn new_requester_id(&self) -> u64 {
        self.requester_count.fetch_add(1, Ordering::Relaxed)
    }

    /// Advances the cache to the state of a request. Returns false if the request does not use the newest state and has
    /// to render without the cache: the cache never goes back, nor to a branch. Requests of the previous state continue
    /// concurrently.
    pub(crate) fn advance_to(&self, snapshot: &Snapshot) -> bool {
        let root = snapshot.root_id();
        let is_there = || {
            let state = self.state.lock();
            state.snapshot.as_ref().is_some_and(|current| current.root_id() == root)
        };
        if is_there() {
            return true;
        }
        let _turn = self.advance_lock.lock();
        if is_there() {
            return true;
        }
        // Checked under the lock, so that of two requests the later state wins.
        if !snapshot.is_newest().unwrap_or(false) {
            return false;
        }
        let previous = self.state.lock().snapshot.clone();
        let touched = previous.map(|previous_snapshot| {
            ChangedAspects::between_snapshots(&previous_snapshot, snapshot)
        });
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
                tracing::warn!(error = %error, "cannot compare two states; dropping all fragments");
                state.remove_if(|_, _| true);
            }
        }
        true
    }

    /// Determines for each fragment whether a change affects it. The expensive work runs while others use the cache.
    fn affected_fragments(&self, touched: &ChangedAspects) -> AffectedFragments {
        let fragments: Vec<Arc<CachedFragment>> = {
            let state = self.state.lock();
            let slots = state.components.values().flat_map(|component| component.slots.values());
            slots
                .filter_map(FragmentSlot::stored_fragment)
                .map(|stored| Arc::clone(&stored.fragment))
                .collect()
        };
        let judged = fragments.into_iter().map(|fragment| {
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
            // The directives of components, and the facts that they use, may have changed.
            state.components.values_mut().for_each(|component| component.traits = None);
        }
        match &self.options.invalidation {
            FragmentInvalidationMode::Full => state.remove_if(|_, _| true),
            FragmentInvalidationMode::Tags => state.remove_if(|_, fragment| {
                match concerned.get(&std::ptr::from_ref(fragment).addr()) {
                    Some((_, is_concerned)) => *is_concerned,
                    // The fragment was cached in the meantime.
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
                state.remove_if(|component_key, _| {
                    let path = component_key.split('\0').next().unwrap_or_default();
                    let is_in = |bucket: &Vec<String>| {
                        bucket.iter().any(|folder| is_path_within(path, folder))
                    };
                    let is_other = !buckets.iter().any(is_in);
                    (is_other && others) || changed.iter().any(|bucket| is_in(bucket))
                });
            }
        }
    }

    /// Returns the known traits of a component.
    pub(crate) fn component_traits(&self, component_key: &str) -> Option<ComponentTraits> {
        self.state.lock().components.get(component_key)?.traits.clone()
    }

    /// Counts a rendering that is not cached, if the component's known directives forbid caching; returns these
    /// directives then.
    pub(crate) fn record_if_uncached(
        &self,
        component_key: &str,
    ) -> Option<Arc<FragmentDirectives>> {
        let mut state = self.state.lock();
        let component = state.components.get_mut(component_key)?;
        let directives = Arc::clone(&component.traits.as_ref()?.directives);
        let reason = directives.refusal_reason()?;
        *component.uncached_counts.entry(reason).or_default() += 1;
        Some(directives)
    }

    /// Looks up a fragment. Waits for one that another request renders, unless that one waits for this request.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        component_key: &Arc<str>,
        variation: &str,
        root: ChunkId,
        requester: FragmentRequester,
    ) -> FragmentLookup {
        let deadline = Instant::now() + RENDER_WAIT_TIMEOUT;
        let mut state = self.state.lock();
        loop {
            if state.snapshot.as_ref().is_none_or(|current| current.root_id() != root) {
                return FragmentLookup::Miss(None);
            }
            state.clock += 1;
            let clock = state.clock;
            let component = state.components.entry(Arc::clone(component_key)).or_default();
            component.last_used = clock;
            let stored =
                component.slots.get_mut(variation).and_then(|slot| slot.usable_fragment(requester));
            if let Some(stored) = stored {
                stored.last_used = clock;
                let fragment = Arc::clone(&stored.fragment);
                component.hits += 1;
                component.saved_time += fragment.render_time;
                state.record_recent_lookup(false);
                return FragmentLookup::Hit(fragment);
            }
            if let Some(FragmentSlot::Rendering { requester_id: by, .. }) =
                component.slots.get(variation)
            {
                let by = *by;
                if state.would_deadlock(requester.id, by) {
                    return FragmentLookup::Miss(None);
                }
                state.waiting_for.insert(requester.id, by);
                let waited = self.rendering_finished.wait_until(&mut state, deadline);
                state.waiting_for.remove(&requester.id);
                if waited.timed_out() {
                    return FragmentLookup::Miss(None);
                }
                continue;
            }
            let last = match component.slots.remove(variation) {
                Some(FragmentSlot::Ready(fallback)) => Some(fallback),
                _ => None,
            };
            let by = requester.id;
            component.slots.insert(
                variation.to_owned(),
                FragmentSlot::Rendering { requester_id: by, previous: last },
            );
            component.misses += 1;
            let has_returned = state.record_miss(component_key, variation);
            let (cache, unit) = (Arc::clone(self), Arc::clone(component_key));
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

    /// Records that a component was rendered and not cached.
    pub(crate) fn record_uncached(&self, component_key: &Arc<str>, reason: UncachedReason) {
        let mut state = self.state.lock();
        *state
            .components
            .entry(Arc::clone(component_key))
            .or_default()
            .uncached_counts
            .entry(reason)
            .or_default() += 1;
        self.enforce_component_limit(&mut state);
    }

    /// Records the traits of a component.
    pub(crate) fn record_component_traits(
        &self,
        component_key: &Arc<str>,
        directives: &Arc<FragmentDirectives>,
        facts: RequestFacts,
    ) {
        let mut state = self.state.lock();
        let traits_slot =
            &mut state.components.entry(Arc::clone(component_key)).or_default().traits;
        let facts =
            traits_slot.as_ref().map_or(facts, |traits| traits.request_facts.combine(facts));
        *traits_slot =
            Some(ComponentTraits { directives: Arc::clone(directives), request_facts: facts });
    }

    /// Evicts fragments until memory is below the limit.
    fn enforce_memory_limit(&self, state: &mut FragmentCacheState) {
        if state.bytes <= self.options.max_bytes {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>, String, usize)> = Vec::new();
        for (component_key, component) in &state.components {
            for (variation, slot) in &component.slots {
                if let FragmentSlot::Ready(stored) = slot {
                    oldest.push((
                        stored.last_used,
                        Arc::clone(component_key),
                        variation.clone(),
                        stored.bytes,
                    ));
                }
            }
        }
        oldest.sort_unstable_by_key(|(used, ..)| *used);
        for (_, component_key, variation, bytes) in oldest {
            if state.bytes <= self.options.avg_bytes {
                break;
            }
            let removed_slot = state
                .components
                .get_mut(&component_key)
                .and_then(|component| component.slots.remove(&variation));
            let has_returned =
                matches!(removed_slot, Some(FragmentSlot::Ready(kept)) if kept.is_returning);
            state.bytes -= bytes;
            state.evicted += 1;
            state.ghosts.add(
                ghost_key(&component_key, &variation),
                (bytes, has_returned),
                state.clock,
            );
        }
    }

    /// Evicts the least recently used tenth of the components if there are too many.
    fn enforce_component_limit(&self, state: &mut FragmentCacheState) {
        if state.components.len() <= self.options.max_components {
            return;
        }
        let mut oldest: Vec<(u64, Arc<str>)> = state
            .components
            .iter()
            .map(|(component_key, component)| (component.last_used, Arc::clone(component_key)))
            .collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        for (_, component_key) in oldest.into_iter().take(self.options.max_components / 10 + 1) {
            if let Some(removed_component) = state.components.remove(&component_key) {
                state.bytes -=
                    removed_component.slots.values().map(FragmentSlot::byte_size).sum::<usize>();
            }
        }
    }

    /// Removes everything; implements `_flex=clearcache`.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.clear_fragments();
        state.components.clear();
    }

    /// Removes the fragments and retains the traits of components; implements `_flex=clearvariations`.
    pub fn clear_fragments(&self) {
        self.state.lock().clear_fragments();
    }

    /// Returns counters, and the components with the most bytes.
    #[must_use]
    pub fn report(&self, most: usize) -> FragmentCacheReport {
        let state = self.state.lock();
        let mut units: Vec<ComponentCacheReport> = state
            .components
            .iter()
            .map(|(component_key, component)| ComponentCacheReport {
                component_key: component_key.replace('\0', " "),
                variation_count: component.slots.len(),
                bytes: component.slots.values().map(FragmentSlot::byte_size).sum(),
                hits: component.hits,
                misses: component.misses,
                saved_time: component.saved_time,
                uncached_counts: component
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
    /// Removes fragments; those that are being rendered are not cached when they are done, as their root is outdated
    /// then.
    fn remove_if(&mut self, mut is_gone: impl FnMut(&str, &CachedFragment) -> bool) {
        for (component_key, component) in &mut self.components {
            component.slots.retain(|_, slot| {
                let stored = slot
                    .stored_fragment()
                    .filter(|stored| is_gone(component_key, &stored.fragment));
                let Some(stored) = stored else { return true };
                self.bytes -= stored.bytes;
                self.removed += 1;
                match slot {
                    FragmentSlot::Ready(_) => false,
                    FragmentSlot::Rendering { previous, .. } => {
                        *previous = None;
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

    /// Counts a miss; returns true if the fragment was evicted before.
    fn record_miss(&mut self, component_key: &str, variation: &str) -> bool {
        let has_gone = self.ghosts.take_recent(ghost_key(component_key, variation), self.clock);
        self.ghost_hits += u64::from(has_gone);
        self.record_recent_lookup(has_gone);
        has_gone
    }

    /// Counts a recent lookup; older ones count for less and less.
    fn record_recent_lookup(&mut self, is_regretted: bool) {
        if self.recent_lookups >= RECENT_LOOKUP_WINDOW {
            self.recent_lookups /= 2;
            self.recent_ghost_hits /= 2;
        }
        self.recent_lookups += 1;
        self.recent_ghost_hits += u64::from(is_regretted);
    }

    /// Returns true if a request is the other one, or the other one waits for it, directly or not.
    fn would_deadlock(&self, seeker: u64, by: u64) -> bool {
        let mut next = Some(by);
        // Requests never begin to wait in a cycle, so that this loop ends.
        while let Some(requester) = next {
            if requester == seeker {
                return true;
            }
            next = self.waiting_for.get(&requester).copied();
        }
        false
    }
}

impl FragmentSlot {
    /// Returns the fragment that a request may use.
    fn usable_fragment(&mut self, requester: FragmentRequester) -> Option<&mut StoredFragment> {
        let is_good = |stored: &&mut StoredFragment| {
            stored.expires_at.is_none_or(|expires| requester.now < expires)
        };
        match self {
            Self::Ready(stored) => {
                Some(stored).filter(|_| !requester.bypasses_cached).filter(is_good)
            }
            // Another request renders it.
            Self::Rendering { requester_id, previous } => previous
                .as_mut()
                .filter(|_| !requester.bypasses_cached && *requester_id != requester.id),
        }
    }

    /// Returns the stored fragment.
    fn stored_fragment(&self) -> Option<&StoredFragment> {
        match self {
            Self::Rendering { previous, .. } => previous.as_ref(),
            Self::Ready(stored) => Some(stored),
        }
    }

    fn byte_size(&self) -> usize {
        self.stored_fragment().map_or(0, |stored| stored.bytes)
    }
}

fn ghost_key(component_key: &str, variation: &str) -> u64 {
    hash_bytes(component_key).rotate_left(1) ^ hash_bytes(variation)
}

impl FragmentRenderPermit {
    /// Caches the rendering, or returns the reason why not.
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
        if state.snapshot.as_ref().is_none_or(|current| current.root_id() != self.root) {
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
        let component = state.components.entry(Arc::clone(&self.component)).or_default();
        let old = component.slots.insert(std::mem::take(&mut self.variation), slot);
        state.bytes = state.bytes + bytes - old.as_ref().map_or(0, FragmentSlot::byte_size);
        state.stored += 1;
        self.cache.enforce_memory_limit(&mut state);
        self.cache.enforce_component_limit(&mut state);
        self.is_released = true;
        self.cache.rendering_finished.notify_all();
        Ok(())
    }

    /// Selects another variation, because the rendering used more facts of the request than were known.
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

    /// Releases the slot, so that other requests may render it.
    fn release_slot(&self, then: ReplacedFragmentFate) {
        let mut state = self.cache.state.lock();
        let state = &mut *state;
        if let Some(component) = state.components.get_mut(&self.component)
            && matches!(component.slots.get(&self.variation), Some(FragmentSlot::Rendering { requester_id, .. }) if *requester_id == self.requester_id)
            && let Some(FragmentSlot::Rendering { previous: Some(last), .. }) =
                component.slots.remove(&self.variation)
        {
            match then {
                ReplacedFragmentFate::Restored => {
                    component.slots.insert(self.variation.clone(), FragmentSlot::Ready(last));
                }
                ReplacedFragmentFate::Dropped => state.bytes -= last.bytes,
            }
        }
        self.cache.rendering_finished.notify_all();
    }
}

/// The fate of a fragment that was to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReplacedFragmentFate {
    Restored,
    /// It is no longer needed.
    Dropped,
}

impl Drop for FragmentRenderPermit {
    fn drop(&mut self) {
        if !self.is_released {
            self.release_slot(ReplacedFragmentFate::Restored);
        }
    }
}

/// Contents and counters of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentCacheReport {
    /// Number of components.
    pub component_count: usize,
    /// Number of cached fragments.
    pub fragment_count: usize,
    /// Their total size, in bytes.
    pub bytes: usize,
    /// Maximum total size, in bytes.
    pub max_bytes: usize,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Fragments evicted.
    pub evicted: u64,
    /// Fragments that changes removed.
    pub removed: u64,
    /// Fragments cached.
    pub stored: u64,
    /// Lookups of evicted fragments.
    pub ghost_hits: u64,
    /// Recent lookups.
    pub recent_lookups: u64,
    /// Recent lookups of evicted fragments.
    pub recent_ghost_hits: u64,
    /// Approximate size of the site's working set, in bytes.
    pub working_set_bytes: usize,
    /// Renderings that were not cached, by reason.
    pub uncached_counts: Vec<(UncachedReason, u64)>,
    /// The components with the most bytes.
    pub components: Vec<ComponentCacheReport>,
}

impl FragmentCacheReport {
    /// Returns a recommendation to the operator; `None` if there is none.
    #[must_use]
    pub fn operator_warning(&self) -> Option<String> {
        let (looked, regretted) = (self.recent_lookups, self.recent_ghost_hits);
        if looked < 1000 || regretted * 20 < looked {
            return None;
        }
        // Add some margin, so that the next report does not name a larger size.
        let fitting = (self.working_set_bytes + self.working_set_bytes / 4) >> 20;
        Some(format!(
            "the fragment cache is too small: {regretted} of the last {looked} look-ups were for fragments \
             that had been evicted; `max_bytes = \"{} MiB\"` would hold them",
            fitting + 1
        ))
    }
}

/// Cached fragments of one component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentCacheReport {
    /// The path, then the forced type, the selectors and the extension.
    pub component_key: String,
    /// Cached variations.
    pub variation_count: usize,
    /// Their size, in bytes.
    pub bytes: usize,
    /// Lookups that hit.
    pub hits: u64,
    /// Lookups that missed.
    pub misses: u64,
    /// Render time saved by hits.
    pub saved_time: Duration,
    /// Renderings that were not cached, by reason.
    pub uncached_counts: Vec<(UncachedReason, u64)>,
}

#[cfg(test)]
mod tests {
    use tympan_content::Repository;

    use super::*;

    /// A cache at an empty content state.
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

    /// Looks up the fragment of a component at a time in seconds.
    fn look(
        cache: &Arc<FragmentCache>,
        root: ChunkId,
        (component_key, at): (&str, u64),
    ) -> FragmentLookup {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        look_as(
            cache,
            root,
            component_key,
            FragmentRequester { id: cache.new_requester_id(), now, bypasses_cached: false },
        )
    }

    fn look_as(
        cache: &Arc<FragmentCache>,
        root: ChunkId,
        component_key: &str,
        requester: FragmentRequester,
    ) -> FragmentLookup {
        cache.look_up(&component_key.into(), "", root, requester)
    }

    fn text(lookup: FragmentLookup) -> String {
        match lookup {
            FragmentLookup::Hit(fragment) => match &*fragment.pieces {
                [FragmentPiece::Text(text)] => text.to_string(),
                result => panic!("{result:?}"),
            },
            FragmentLookup::Miss(Some(_)) => "to draw".to_owned(),
            FragmentLookup::Miss(None) => "to draw for itself".to_owned(),
        }
    }

    fn drawing(lookup: FragmentLookup) -> FragmentRenderPermit {
        match lookup {
            FragmentLookup::Miss(Some(drawing)) => drawing,
            result => panic!("{}", text(result)),
        }
    }

    #[test]
    fn an_expired_fragment_is_served_while_one_request_renders_it_again() {
        let (cache, root) = cache();
        let expires = |at| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        let first = drawing(look(&cache, root, ("/a", 0)));
        first.store(fragment("first"), expires(10)).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 9))), "first");
        let second = drawing(look(&cache, root, ("/a", 10)));
        assert_eq!(text(look(&cache, root, ("/a", 11))), "first", "nobody waits");
        // If the rendering fails, the next request tries.
        drop(second);
        let third = drawing(look(&cache, root, ("/a", 12)));
        let bytes = cache.report(0).bytes;
        third.store(fragment("third"), expires(20)).unwrap();
        assert_eq!(text(look(&cache, root, ("/a", 13))), "third");
        assert_eq!(cache.report(0).bytes, bytes, "the first one counts no more");
        // A fragment affected by a change is never returned.
        let fourth = drawing(look(&cache, root, ("/a", 21)));
        cache.state.lock().remove_if(|_, _| true);
        assert_eq!(cache.report(0).bytes, 0);
        drop(fourth);
        assert_eq!(text(look(&cache, root, ("/a", 22))), "to draw");
    }

    #[test]
    fn a_renewal_renders_what_is_cached() {
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
        let [first, second] = [(); 2].map(|()| FragmentRequester {
            id: cache.new_requester_id(),
            now,
            bypasses_cached: false,
        });
        let a = drawing(look_as(&cache, root, "/a", first));
        let b = drawing(look_as(&cache, root, "/b", second));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| text(look_as(&cache, root, "/a", second)));
            while !cache.state.lock().waiting_for.contains_key(&second.id) {
                std::thread::yield_now();
            }
            // The other request waits for this one, so that this one renders without the cache, and neither waits
            // forever.
            assert_eq!(text(look_as(&cache, root, "/b", first)), "to draw for itself");
            assert_eq!(text(look_as(&cache, root, "/a", first)), "to draw for itself");
            a.store(fragment("a"), None).unwrap();
            assert_eq!(waiting.join().unwrap(), "a");
        });
        b.store(fragment("b"), None).unwrap();
        assert!(cache.state.lock().waiting_for.is_empty());
    }
}
