//! The ledger in memory: URLs and their dependencies, indexed by the aspects that a change touches.
//!
//! Invariants
//! * `slots_by_path` lists every URL whose set contains a path. It may list others; the set of a URL decides.
//! * Nothing is held in memory that is neither in the journal nor in a stored row, including the fact that a URL has
//!   strays.
//! * A copy that is no stray looks like a rendering of the state in which the latest step ended, unless its URL is
//!   pending.
//! * URLs that show faults do not displace others: there are at most a tenth as many, and copies of further ones must
//!   not be cached.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tympan_content::ChunkId;

use super::flush_scope::{FlushScopes, url_folder};
use super::journal::LedgerJournal;
use super::response_fingerprint::ResponseFingerprint;
use super::stray_copy::StrayCopies;
use super::table::{LedgerBatch, LedgerRow, LedgerRowKind, UnstoredUrl};
use super::url_rendering::{
    AcknowledgedAnswer, FlushCandidate, FollowerStep, IndexRecordOutcome, StepImpact, UnchangedUrl,
    UrlRendering, UrlRenderingDigest,
};
use crate::dependency::DependencySet;
use crate::dependency::changed_aspects::ChangedAspects;
use crate::dependency::path_dependency::PathAspects;
use crate::page::list_query::ListQuery;

/// Number of steps remembered for renderings that take longer than they do.
const MAX_RECENT_STEPS: usize = 256;
/// Maximum length of a URL, in bytes; longer ones are known by their folder only, because database indexes have limits.
const MAX_URL_BYTES: usize = 1024;
/// Maximum number of obsolete links of earlier sets before all links are rebuilt.
const MAX_OBSOLETE_LINKS: usize = 100_000;

/// A URL that was rendered.
#[derive(Debug)]
struct UrlDependencyEntry {
    url: Arc<str>,
    dependencies: Arc<DependencySet>,
    /// The digest of a rendering with exactly these reads, if there was one.
    digest: Option<u64>,
    /// The fingerprint common to all copies; `None` if they differ or it is unknown.
    fingerprint: Option<Arc<ResponseFingerprint>>,
    /// The renderings since an answer named the URL: the flushes of that answer need not reach these copies.
    since_answer: Option<(Arc<DependencySet>, Option<Arc<ResponseFingerprint>>)>,
    /// The rendering count at its last rendering.
    last_rendered: u64,
    /// True if flushes for it are stored, so that the next rendering begins a new set.
    is_flushed: bool,
    is_dirty: bool,
    /// True if all renderings of it showed "not found": the number of such URLs is unlimited.
    is_fault: bool,
}

impl UrlDependencyEntry {
    /// Records a rendering after an answer that named the URL.
    fn record_since_answer(
        &mut self,
        read: &DependencySet,
        look: Option<&Arc<ResponseFingerprint>>,
    ) {
        self.since_answer = Some(match self.since_answer.take() {
            None => (Arc::new(read.clone()), look.cloned()),
            Some((dependencies, old)) => {
                (Arc::new(dependencies.union(read)), join_fingerprints(old.as_ref(), look))
            }
        });
    }
}

/// Returns the fingerprint common to copies of two kinds; `None` if they differ or it is unknown.
fn join_fingerprints(
    left: Option<&Arc<ResponseFingerprint>>,
    right: Option<&Arc<ResponseFingerprint>>,
) -> Option<Arc<ResponseFingerprint>> {
    let (left, right) = (left?, right?);
    if left == right { Some(Arc::clone(left)) } else { left.join(right).map(Arc::new) }
}

/// A hasher for values that are hashes already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// An index of URLs by their dependencies.
#[derive(Debug)]
pub(super) struct UrlDependencyIndex {
    journal: LedgerJournal,
    max_urls: usize,
    slot_by_url: HashMap<Arc<str>, u32>,
    entries: Vec<Option<UrlDependencyEntry>>,
    free_slots: Vec<u32>,
    slots_by_path: HashMap<u64, Vec<u32>, BuildHasherDefault<IdentityHasher>>,
    /// The lists of all sets, and possibly others.
    list_queries: HashMap<u64, Arc<ListQuery>, BuildHasherDefault<IdentityHasher>>,
    /// Number of URLs that show faults.
    fault_count: usize,
    /// Number of links in `slots_by_path`, and number of those that sets need.
    link_count: usize,
    needed_link_count: usize,
    /// The newest steps; the last one has the number `number`.
    recent_steps: VecDeque<FollowerStep>,
    step_number: u64,
    /// The state in which the last answered step ended, and the one whose flushes are stored.
    answered_root: Option<ChunkId>,
    acknowledged_root: Option<ChunkId>,
    /// The number of the answer that led to `base`.
    acknowledged_number: u64,
    stray_copies: StrayCopies,
    /// Counts renderings and answers.
    clock: u64,
    dirty_slots: Vec<u32>,
    removed_urls: Vec<Arc<str>>,
    /// Folders that have to be flushed as a whole.
    scopes: FlushScopes,
    /// URLs that the next answer includes, regardless of the change.
    pending_urls: BTreeSet<Arc<str>>,
    /// True if there are doubtful URLs that no answer has covered since.
    has_doubtful_urls: bool,
    /// True if the same content may render differently since the last step.
    is_rendering_changed: bool,
    /// Renderings that began before this step may use earlier templates.
    rendering_changed_at: u64,
}

impl UrlDependencyIndex {
    pub(super) fn new(journal: LedgerJournal, max_urls: usize) -> Self {
        Self {
            journal,
            max_urls: max_urls.max(16),
            slot_by_url: HashMap::new(),
            entries: Vec::new(),
            free_slots: Vec::new(),
            slots_by_path: HashMap::default(),
            list_queries: HashMap::default(),
            fault_count: 0,
            link_count: 0,
            needed_link_count: 0,
            recent_steps: VecDeque::new(),
            step_number: 0,
            answered_root: None,
            acknowledged_root: None,
            acknowledged_number: 0,
            stray_copies: StrayCopies::default(),
            clock: 0,
            dirty_slots: Vec::new(),
            removed_urls: Vec::new(),
            scopes: FlushScopes::default(),
            pending_urls: BTreeSet::new(),
            has_doubtful_urls: false,
            is_rendering_changed: false,
            rendering_changed_at: 0,
        }
    }

    /// Returns the number of answered steps.
    pub(super) fn step_count(&self) -> u64 {
        self.step_number
    }

    /// Returns the state in which the last answered step ended.
    pub(super) fn answered_root(&self) -> Option<ChunkId> {
        self.answered_root
    }

    /// Returns the states of strays that a step between two others has to compare.
    pub(super) fn stray_roots(&self, ends: [ChunkId; 2]) -> Vec<ChunkId> {
        self.stray_copies.roots_to_compare(ends)
    }

    /// Returns the number of URLs with copies of states at which no follower is.
    pub(super) fn stray_url_count(&self) -> usize {
        self.stray_copies.url_count()
    }

    /// Returns the number of URLs, and the number of dependencies.
    pub(super) fn url_and_dependency_counts(&self) -> (usize, usize) {
        (self.slot_by_url.len(), self.needed_link_count)
    }

    /// Loads a stored row.
    pub(super) fn load_row(&mut self, row: LedgerRow) {
        match row.kind {
            LedgerRowKind::Url => {
                let at = self.set_dependencies(&row.url, Arc::new(row.dependencies));
                self.set_fingerprint(at, row.fingerprint.map(Arc::new));
                self.set_fault(at, row.is_fault);
                if row.is_stray {
                    self.stray_copies.add_copy(at, None, self.clock);
                    // No later change may cover what it shows.
                    self.has_doubtful_urls = true;
                }
            }
            LedgerRowKind::Scope => self.scopes.load_scope(row.url, row.is_stray, self.clock),
        }
    }

    /// Loads a URL whose rendering was not stored in time.
    pub(super) fn load_unstored_url(&mut self, url: &str) {
        let read =
            self.dependencies_of(url).map_or_else(DependencySet::on_anything, |dependencies| {
                dependencies.union(&DependencySet::on_anything())
            });
        let at = self.set_dependencies(url, Arc::new(read));
        self.set_fingerprint(at, None);
        self.set_fault(at, false);
        self.stray_copies.add_copy(at, None, self.clock);
        self.mark_dirty(at);
    }

    /// Marks every URL as having copies of an unknown state.
    pub(super) fn mark_all_doubtful(&mut self) {
        let all: Vec<u32> = self.slot_by_url.values().copied().collect();
        for at in all {
            self.stray_copies.add_copy(at, None, self.clock);
            self.mark_dirty(at);
        }
        self.has_doubtful_urls = !self.slot_by_url.is_empty();
    }

    /// Marks every copy as outdated by changed rendering, including those that are rendered until the next step,
    /// because their templates are unknown.
    pub(super) fn mark_rendering_changed(&mut self) {
        self.mark_all_doubtful();
        self.is_rendering_changed = true;
    }

    /// Returns true if the next step affects everything that was rendered.
    pub(super) fn is_rendering_changed(&self) -> bool {
        self.is_rendering_changed
    }

    /// Adopts a row of a removed publisher.
    pub(super) fn adopt_row(&mut self, row: LedgerRow) {
        if row.kind == LedgerRowKind::Scope {
            return self.add_pending_scope(&row.url);
        }
        let read = self.dependencies_of(&row.url).map_or_else(
            || row.dependencies.clone(),
            |dependencies| dependencies.union(&row.dependencies),
        );
        let at = self.set_dependencies(&row.url, Arc::new(read));
        // This publisher's output differs from that of the other one.
        self.set_fingerprint(at, None);
        self.set_fault(at, false);
        // The pending state must survive a kill, too.
        self.stray_copies.add_copy(at, None, self.clock);
        self.mark_dirty(at);
        self.pending_urls.insert(row.url.into());
    }

    /// Clears the journaled URLs, as all of them are stored.
    pub(super) fn clear_journal(&mut self) {
        [0, 1].into_iter().for_each(|file| self.journal.clear_file(file));
    }

    fn dependencies_of(&self, url: &str) -> Option<Arc<DependencySet>> {
        let at = *self.slot_by_url.get(url)?;
        Some(Arc::clone(&self.entry(at)?.dependencies))
    }

    fn entry(&self, at: u32) -> Option<&UrlDependencyEntry> {
        self.entries.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut UrlDependencyEntry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// Returns true if copies of a state are strays, because no follower is at that state. While an answer waits for
    /// its flushes to be stored, the next step begins where that one ends, and after a kill where it began; so all
    /// copies are strays then.
    fn is_stray_root(&self, root: Option<ChunkId>) -> bool {
        root.is_none()
            || root != self.acknowledged_root
            || self.acknowledged_root != self.answered_root
    }

    /// Returns true if a rendering that began after the step with a number has the recorded reads, fingerprint and kind
    /// of its URL, as most have; nothing else need be recorded then.
    pub(super) fn record_if_known(&mut self, began: u64, sketch: UrlRenderingDigest<'_>) -> bool {
        let UrlRenderingDigest { url, root, digest, fingerprint, is_fault } = sketch;
        if began != self.step_number
            || (!self.pending_urls.is_empty() && self.pending_urls.contains(url))
        {
            return false;
        }
        let clock = self.clock + 1;
        let Some(at) = self.slot_by_url.get(url).copied() else { return false };
        let is_astray = self.is_stray_root(root);
        let Some(entry) = self.entry_mut(at) else { return false };
        let looks_alike = match (entry.fingerprint.as_deref(), fingerprint) {
            // The first copy after a flush starts anew.
            (recorded_look, fingerprint) if entry.is_flushed => recorded_look == fingerprint,
            (Some(recorded_look), Some(fingerprint)) => recorded_look.covers(fingerprint),
            (recorded_look, _) => recorded_look.is_none(),
        };
        let is_known = entry.digest == Some(digest) && looks_alike && entry.is_fault == is_fault;
        if !is_known || (is_astray && !self.stray_copies.refresh_copy(at, root, clock)) {
            return false;
        }
        if let Some(entry) = self.entry_mut(at) {
            (entry.last_rendered, entry.is_flushed) = (clock, false);
            self.clock = clock;
        }
        true
    }

    /// Records a rendering that began after the step with a number.
    pub(super) fn record(&mut self, began: u64, rendering: UrlRendering<'_>) -> IndexRecordOutcome {
        let UrlRendering { url, root, dependencies, digest, fingerprint: look, is_fault } =
            rendering;
        if self.is_outdated(began, root, dependencies) {
            return IndexRecordOutcome::Outdated;
        }
        if url.len() > MAX_URL_BYTES {
            if is_fault {
                return IndexRecordOutcome::TooManyFaults;
            }
            self.add_scope(url_folder(url));
            return IndexRecordOutcome::Changed { evicted_count: 1 };
        }
        self.clock += 1;
        let clock = self.clock;
        let at = self.slot_by_url.get(url).copied();
        if at.is_none() && is_fault && self.fault_count >= self.max_faults() {
            return IndexRecordOutcome::TooManyFaults;
        }
        let (mut grown, mut look, mut known_at) = (None, look.map(Arc::new), None);
        let (is_owed, mut only_faults) = (self.pending_urls.contains(url), is_fault);
        let is_astray = self.is_stray_root(root);
        if let Some(entry) = at.and_then(|at| self.entry_mut(at)) {
            entry.last_rendered = clock;
            if is_owed {
                entry.record_since_answer(dependencies, look.as_ref());
            }
            if !entry.is_flushed {
                // Copies of an earlier rendering with another fingerprint may exist.
                look = join_fingerprints(entry.fingerprint.as_ref(), look.as_ref());
                only_faults &= entry.is_fault;
            }
            let is_known = if entry.is_flushed {
                *entry.dependencies == *dependencies
            } else {
                entry.dependencies.contains(dependencies)
            };
            // A row with an older fingerprint would hide a change back to it.
            if is_known && entry.fingerprint == look && entry.is_fault == only_faults {
                entry.is_flushed = false;
                entry.digest =
                    digest.filter(|_| *entry.dependencies == *dependencies).or(entry.digest);
                known_at = at;
            } else {
                grown = (!entry.is_flushed).then(|| entry.dependencies.union(dependencies));
            }
        }
        // The existence of strays must survive a kill, too; their number need not.
        if let Some(at) = known_at.filter(|at| !is_astray || self.stray_copies.has_copies(*at)) {
            if is_astray {
                self.stray_copies.add_copy(at, root, clock);
            }
            return IndexRecordOutcome::AlreadyKnown;
        }
        if let Err(error) = self.journal.append_url(url) {
            tracing::error!(file = url, error = %error, "cannot record a rendering in the ledger");
            return IndexRecordOutcome::NotRecorded;
        }
        if let Some(at) = known_at {
            self.stray_copies.add_copy(at, root, clock);
            self.mark_dirty(at);
            return IndexRecordOutcome::Changed { evicted_count: 0 };
        }
        let digest = digest.filter(|_| grown.is_none());
        let at =
            self.set_dependencies(url, Arc::new(grown.unwrap_or_else(|| dependencies.clone())));
        self.set_fingerprint(at, look);
        self.set_fault(at, only_faults);
        if let Some(entry) = self.entry_mut(at) {
            entry.digest = digest;
        }
        if is_astray {
            self.stray_copies.add_copy(at, root, clock);
        }
        self.mark_dirty(at);
        IndexRecordOutcome::Changed { evicted_count: self.evict_if_full() }
    }

    /// Returns the maximum number of URLs that may show faults.
    fn max_faults(&self) -> usize {
        self.max_urls / 10
    }

    fn set_fault(&mut self, at: u32, is_fault: bool) {
        let Some(entry) = self.entry_mut(at) else { return };
        let was_fault = std::mem::replace(&mut entry.is_fault, is_fault);
        self.fault_count = self.fault_count + usize::from(is_fault) - usize::from(was_fault);
    }

    /// Returns true if a step answered since a rendering began affects it, or may: a rendering of a state between the
    /// ends of steps cannot be compared with anything.
    fn is_outdated(&self, began: u64, root: Option<ChunkId>, read: &DependencySet) -> bool {
        let missed = usize::try_from(self.step_number.saturating_sub(began)).unwrap_or(usize::MAX);
        if missed == 0 {
            return false;
        }
        if began < self.rendering_changed_at {
            return true;
        }
        let Some(first) = self.recent_steps.len().checked_sub(missed) else { return true };
        let steps = || self.recent_steps.range(first..);
        // States with the same root are equal, regardless of their history.
        let ended = steps().rposition(|step| Some(step.end_roots[1]) == root).map(|at| at + 1);
        let start = steps().next().filter(|step| Some(step.end_roots[0]) == root).map(|_| 0);
        let Some(later) = ended.or(start) else { return true };
        steps().skip(later).any(|step| step.changes.affects(read))
    }

    /// Sets the dependencies of a URL.
    fn set_dependencies(&mut self, url: &str, read: Arc<DependencySet>) -> u32 {
        let known_slot = self.slot_by_url.get(url).copied();
        let at = known_slot.unwrap_or_else(|| {
            self.free_slots.pop().unwrap_or_else(|| {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let old = known_slot.and_then(|at| Some(Arc::clone(&self.entry(at)?.dependencies)));
        for key in read.path_and_query_keys() {
            if old.as_ref().is_none_or(|old| old.aspects_with_results(key).is_empty()) {
                self.slots_by_path.entry(key).or_default().push(at);
                self.link_count += 1;
            }
        }
        for listing in read.list_queries() {
            self.list_queries.entry(listing.id()).or_insert_with(|| Arc::clone(listing));
        }
        self.needed_link_count =
            self.needed_link_count + read.len() - old.map_or(0, |old| old.len());
        let rendered_at = self.clock;
        match self.entry_mut(at) {
            Some(entry) => {
                (entry.dependencies, entry.last_rendered, entry.is_flushed) =
                    (read, rendered_at, false);
                entry.digest = None;
            }
            None => {
                let url: Arc<str> = url.into();
                self.slot_by_url.insert(Arc::clone(&url), at);
                if let Some(slot) = self.entries.get_mut(at as usize) {
                    let (look, later, is_flushed, is_dirty) = (None, None, false, false);
                    let (digest, is_fault) = (None, false);
                    *slot = Some(UrlDependencyEntry {
                        url,
                        dependencies: read,
                        digest,
                        fingerprint: look,
                        since_answer: later,
                        last_rendered: rendered_at,
                        is_flushed,
                        is_dirty,
                        is_fault,
                    });
                }
            }
        }
        if self.link_count > 2 * self.needed_link_count + MAX_OBSOLETE_LINKS {
            self.rebuild_links();
        }
        at
    }

    fn set_fingerprint(&mut self, at: u32, look: Option<Arc<ResponseFingerprint>>) {
        if let Some(entry) = self.entry_mut(at) {
            entry.fingerprint = look;
        }
    }

    /// Rebuilds all links, without those that no set needs.
    fn rebuild_links(&mut self) {
        self.slots_by_path.clear();
        self.list_queries.clear();
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            for key in entry.dependencies.path_and_query_keys() {
                self.slots_by_path
                    .entry(key)
                    .or_default()
                    .push(u32::try_from(at).unwrap_or(u32::MAX));
            }
            for listing in entry.dependencies.list_queries() {
                self.list_queries.entry(listing.id()).or_insert_with(|| Arc::clone(listing));
            }
        }
        self.link_count = self.needed_link_count;
    }

    /// Marks a row to be stored.
    fn mark_dirty(&mut self, at: u32) {
        if let Some(entry) = self.entry_mut(at).filter(|entry| !entry.is_dirty) {
            entry.is_dirty = true;
            self.dirty_slots.push(at);
        }
    }

    /// Marks all rows to be stored.
    pub(super) fn mark_all_dirty(&mut self) {
        let all: Vec<u32> = self.slot_by_url.values().copied().collect();
        all.into_iter().for_each(|at| self.mark_dirty(at));
        self.scopes.mark_all_dirty();
    }

    /// Evicts the tenth of the URLs that was not rendered for longest, if there are too many; returns their number.
    fn evict_if_full(&mut self) -> u64 {
        if self.slot_by_url.len() - self.fault_count <= self.max_urls {
            return 0;
        }
        let rendered_at = |at: &u32| {
            let entry = self.entry(*at).filter(|entry| !entry.is_fault)?;
            Some((entry.last_rendered, *at))
        };
        let mut oldest: Vec<(u64, u32)> =
            self.slot_by_url.values().filter_map(rendered_at).collect();
        let count = (self.max_urls / 10).max(1).min(oldest.len() - 1);
        oldest.select_nth_unstable(count);
        oldest.truncate(count);
        for (_, at) in oldest {
            if let Some(url) = self.remove_url(at) {
                self.add_scope(url_folder(&url));
            }
        }
        count as u64
    }

    /// Removes a URL.
    fn remove_url(&mut self, at: u32) -> Option<Arc<str>> {
        let entry = self.entries.get_mut(at as usize).and_then(Option::take)?;
        self.slot_by_url.remove(&entry.url);
        self.stray_copies.remove_url(at);
        self.needed_link_count -= entry.dependencies.len();
        self.fault_count -= usize::from(entry.is_fault);
        self.free_slots.push(at);
        self.removed_urls.push(Arc::clone(&entry.url));
        Some(entry.url)
    }

    /// Records that anything below a path may depend on anything.
    pub(super) fn add_scope(&mut self, scope: &str) {
        self.clock += 1;
        self.scopes.add_scope(scope, self.clock);
    }

    /// Records that anything below a path may have depended on an earlier change.
    pub(super) fn add_pending_scope(&mut self, scope: &str) {
        self.clock += 1;
        self.scopes.add_pending_scope(scope, self.clock);
    }

    /// Returns those of the given folders that are flushed without a change.
    pub(super) fn pending_scopes(&self, scopes: Vec<String>) -> Vec<String> {
        self.scopes.filter_pending(scopes)
    }

    /// Returns the lists of URLs whose results a change may have changed.
    pub(super) fn possibly_changed_queries(
        &mut self,
        touched: &ChangedAspects,
    ) -> Vec<Arc<ListQuery>> {
        let (entries, by_path) = (&self.entries, &self.slots_by_path);
        let is_needed = |listing: &ListQuery| {
            let holds = |at: &u32| {
                let entry = entries.get(*at as usize).and_then(Option::as_ref);
                entry.is_some_and(|entry| {
                    !entry.dependencies.aspects_with_results(listing.id()).is_empty()
                })
            };
            by_path.get(&listing.id()).is_some_and(|at| at.iter().any(holds))
        };
        let (mut doubtful, mut idle) = (Vec::new(), Vec::new());
        for listing in self
            .list_queries
            .values()
            .filter(|query| touched.affects_dependency(query.scope_dependency()))
        {
            match is_needed(listing) {
                true => doubtful.push(Arc::clone(listing)),
                false => idle.push(listing.id()),
            }
        }
        for id in idle {
            self.list_queries.remove(&id);
        }
        doubtful
    }

    /// Returns true if a list is among those that are compared with changes.
    pub(super) fn has_list_query(&self, id: u64) -> bool {
        self.list_queries.contains_key(&id)
    }

    /// Records a step and returns the URLs that it affects, doubtful ones first. For some lists the results at both
    /// ends are known to be equal, and for some states of strays the differences to the end are known; strays of other
    /// states count as affected.
    pub(super) fn record_step(
        &mut self,
        step: FollowerStep,
        same: &HashSet<u64>,
        since: &HashMap<ChunkId, ChangedAspects>,
    ) -> StepImpact {
        self.step_number += 1;
        self.clock += 1;
        self.has_doubtful_urls = false;
        if std::mem::take(&mut self.is_rendering_changed) {
            self.rendering_changed_at = self.step_number;
            self.mark_all_doubtful();
            self.has_doubtful_urls = false;
        }
        let mut affected = self.affected_slots(&step.changes, same);
        let by_step = affected.len();
        for (at, mut roots) in self.stray_copies.iter() {
            let Some(entry) = self.entry(at) else { continue };
            let is_concerned = roots.any(|root| match root {
                Some(root) if step.end_roots.contains(&root) => false,
                Some(root) => {
                    since.get(&root).is_none_or(|touched| touched.affects(&entry.dependencies))
                }
                None => true,
            });
            if is_concerned {
                affected.entry(at).or_default();
            }
        }
        self.answered_root = Some(step.end_roots[1]);
        self.recent_steps.push_back(step);
        if self.recent_steps.len() > MAX_RECENT_STEPS {
            self.recent_steps.pop_front();
        }
        let strays = affected.len() - by_step;
        let candidate = |(at, shared): (u32, PathAspects)| {
            let UrlDependencyEntry { url, fingerprint, .. } = self.entry(at)?;
            Some(FlushCandidate {
                url: Arc::clone(url),
                touched_aspects: shared,
                fingerprint: fingerprint.clone(),
            })
        };
        let mut candidates: Vec<FlushCandidate> =
            affected.into_iter().filter_map(candidate).collect();
        candidates.sort_unstable_by(|left, right| {
            let key = |flush_candidate: &FlushCandidate| !flush_candidate.may_be_unaffected();
            (key(left), &left.url).cmp(&(key(right), &right.url))
        });
        StepImpact { candidates, clock: self.clock, stray_only_count: strays }
    }

    /// Returns the URLs that read something that differs between the ends of a step, and the aspects that differ.
    fn affected_slots(
        &self,
        touched: &ChangedAspects,
        same: &HashSet<u64>,
    ) -> HashMap<u32, PathAspects> {
        let mut aspects_by_slot: HashMap<u32, PathAspects> = HashMap::new();
        if touched.is_everything_changed() {
            aspects_by_slot
                .extend(self.slot_by_url.values().map(|at| (*at, PathAspects::default())));
            return aspects_by_slot;
        }
        // A list recorded since the repetition counts as changed.
        let list_results = self.list_queries.values();
        let list_results = list_results
            .filter(|query| {
                touched.affects_dependency(query.scope_dependency()) && !same.contains(&query.id())
            })
            .map(|query| (query.id(), PathAspects::LIST_RESULT));
        for (key, aspects) in touched.changed_paths().chain(list_results) {
            for at in self.slots_by_path.get(&key).into_iter().flatten() {
                let Some(entry) = self.entry(*at) else { continue };
                let shared = entry.dependencies.aspects_with_results(key).intersection(aspects);
                if !shared.is_empty() {
                    let slot_aspects = aspects_by_slot.entry(*at).or_default();
                    *slot_aspects = slot_aspects.combine(shared);
                }
            }
        }
        aspects_by_slot
    }

    /// Records that a URL looks the same after a change, with these dependencies; `None` if that does not hold for all
    /// its copies.
    pub(super) fn record_unchanged(
        &mut self,
        candidate: &FlushCandidate,
        read: &DependencySet,
    ) -> Option<UnchangedUrl> {
        let at = *self.slot_by_url.get(&candidate.url)?;
        let entry = self.entry(at)?;
        let is_same = entry.fingerprint.is_some()
            && entry.fingerprint == candidate.fingerprint
            && !entry.is_flushed;
        if !is_same {
            return None;
        }
        let url = Arc::clone(&entry.url);
        let read = Arc::new(read.clone());
        if entry.dependencies.contains(&read) {
            let joined = Arc::clone(&entry.dependencies);
            return Some(UnchangedUrl { url, joined_dependencies: joined, dependencies: read });
        }
        let joined = Arc::new(entry.dependencies.union(&read));
        self.journal.append_url(&url).ok()?;
        self.set_dependencies(&url, Arc::clone(&joined));
        self.mark_dirty(at);
        Some(UnchangedUrl { url, joined_dependencies: joined, dependencies: read })
    }

    /// Takes the URLs that are pending without a change.
    pub(super) fn take_pending(&mut self) -> (u64, Vec<String>, Vec<String>) {
        self.collect_answer(&[])
    }

    /// Returns true if something is pending without a change.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending_urls.is_empty()
            || self.has_doubtful_urls
            || self.is_rendering_changed
            || self.scopes.has_pending()
    }

    /// Returns the URLs that have to be flushed and the folders to be flushed as a whole, including unacknowledged
    /// ones.
    pub(super) fn collect_answer(&mut self, urls: &[Arc<str>]) -> (u64, Vec<String>, Vec<String>) {
        self.clock += 1;
        self.pending_urls.extend(urls.iter().cloned());
        let urls = self.pending_urls.iter().map(|url| url.to_string()).collect();
        (self.clock, urls, self.scopes.to_vec())
    }

    /// Records that the flushes of an answer are stored.
    pub(super) fn acknowledge(&mut self, answer: AcknowledgedAnswer<'_>) {
        let AcknowledgedAnswer { answer_number, step_end, urls, scopes } = answer;
        if let Some((seen_number, step_end)) =
            step_end.filter(|_| self.acknowledged_number < answer_number)
        {
            (self.acknowledged_number, self.acknowledged_root) = (answer_number, Some(step_end));
            let over = self.stray_copies.remove_acknowledged(seen_number, step_end);
            over.into_iter().for_each(|at| self.mark_dirty(at));
        }
        for url in urls {
            self.pending_urls.remove(url.as_str());
            let Some(at) = self.slot_by_url.get(url.as_str()).copied() else { continue };
            if self.stray_copies.remove_recorded_until(at, answer_number) {
                self.mark_dirty(at);
            }
            let Some(entry) = self.entry_mut(at) else { continue };
            let rendered_at = entry.last_rendered;
            let Some((read, look)) = entry.since_answer.take() else {
                entry.is_flushed = rendered_at <= answer_number;
                if entry.is_flushed && entry.is_fault {
                    // No copy exists any more, and the URL may never be requested again.
                    self.remove_url(at);
                }
                continue;
            };
            self.set_dependencies(url, read);
            self.set_fingerprint(at, look);
            self.mark_dirty(at);
            if let Some(entry) = self.entry_mut(at) {
                entry.last_rendered = rendered_at;
            }
        }
        self.scopes.acknowledge(scopes, answer_number);
    }

    /// Records that the follower is at a state although no answered step ends there: no flush was needed.
    pub(super) fn skip_to_root(&mut self, root: ChunkId) {
        if self.acknowledged_root == Some(root) && self.answered_root == self.acknowledged_root {
            return;
        }
        (self.acknowledged_root, self.answered_root) = (Some(root), Some(root));
        self.has_doubtful_urls = false;
        let over = self.stray_copies.clear();
        over.into_iter().for_each(|at| self.mark_dirty(at));
    }

    /// Drops the dependencies of unchanged URLs before the change: no more requests come from the state before it.
    pub(super) fn acknowledge_unchanged(&mut self, spared: &[UnchangedUrl]) {
        for UnchangedUrl { url, joined_dependencies: joined, dependencies: read } in spared {
            let known_entry = self.slot_by_url.get(url).and_then(|at| self.entry(*at));
            let is_last = |entry: &&UrlDependencyEntry| {
                !entry.is_flushed && Arc::ptr_eq(&entry.dependencies, joined)
            };
            if let Some(entry) = known_entry.filter(is_last) {
                let rendered_at = entry.last_rendered;
                let at = self.set_dependencies(url, Arc::clone(read));
                if let Some(entry) = self.entry_mut(at) {
                    entry.last_rendered = rendered_at;
                }
            }
        }
    }

    /// Takes the rows that have to be stored.
    pub(super) fn take_batch(&mut self) -> Option<LedgerBatch> {
        if self.dirty_slots.is_empty() && self.removed_urls.is_empty() && !self.scopes.has_unsaved()
        {
            return None;
        }
        let mut rows = Vec::with_capacity(self.dirty_slots.len());
        for at in std::mem::take(&mut self.dirty_slots) {
            // The slot of an evicted URL may be reused, and occur twice here.
            if let Some(entry) = self.entry_mut(at).filter(|entry| entry.is_dirty) {
                entry.is_dirty = false;
                let (url, read) = (Arc::clone(&entry.url), Arc::clone(&entry.dependencies));
                let (look, is_fault) = (entry.fingerprint.clone(), entry.is_fault);
                rows.push(UnstoredUrl {
                    url,
                    dependencies: read,
                    fingerprint: look,
                    is_fault,
                    is_stray: self.stray_copies.has_copies(at),
                });
            }
        }
        let (scopes, removed_urls) =
            (self.scopes.take_rows(), std::mem::take(&mut self.removed_urls));
        Some(LedgerBatch { rows, removed_urls, scopes, journal_file: self.journal.rotate() })
    }

    /// Removes stored URLs from the journal, or restores what was not stored.
    pub(super) fn finish_batch(&mut self, batch: &LedgerBatch, is_stored: bool) {
        if is_stored {
            return self.journal.clear_file(batch.journal_file);
        }
        for row in &batch.rows {
            if let Some(at) = self.slot_by_url.get(&row.url).copied() {
                self.mark_dirty(at);
            }
        }
        self.removed_urls.extend(batch.removed_urls.iter().cloned());
        self.scopes.restore_rows(&batch.scopes);
    }
}
