//! The ledger in memory: URLs and what they were drawn from, found by what a change touches.
//!
//! Invariants
//! * `by_path` names every URL whose set holds a path. It may name others; the set of a URL decides.
//! * Nothing is kept that the journal does not name or a stored row does not hold, also not that a URL has strays.
//! * A copy that is no stray looks as one of the state in which the latest step ended would, unless its URL is owed.
//! * URLs that show faults take no room from others: there are at most a tenth as many, and of one more no copy may be kept.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tympan_content::ChunkId;

use super::drawing::{Candidate, Concerned, Drawn, Kept, Settled, Sketch, Spared, Step};
use super::journal::Journal;
use super::look::Look;
use super::scopes::{Scopes, folder_of};
use super::strays::Strays;
use super::table::{Batch, Kind, Row, Unstored};
use crate::dependency::{Aspects, Dependencies};
use crate::listing::Listing;
use crate::touched::Touched;

/// Steps that are remembered for drawings that take longer than they.
const MAX_STEPS: usize = 256;
/// Longer URLs are known by their folder only: indexes of databases have limits.
const MAX_URL_BYTES: usize = 1024;
/// Links that may be left over from earlier sets before all are made anew.
const SPARE_LINKS: usize = 100_000;

/// A URL that was drawn.
#[derive(Debug)]
struct Entry {
    url: Arc<str>,
    read: Arc<Dependencies>,
    /// The digest of a drawing that read just this, if there was one.
    digest: Option<u64>,
    /// How all copies look; nothing if they differ or nobody knows.
    look: Option<Arc<Look>>,
    /// What was drawn since an answer named it: the flushes for that answer need not reach these copies.
    later: Option<(Arc<Dependencies>, Option<Arc<Look>>)>,
    /// When it was last drawn, as a count of drawings.
    drawn: u64,
    /// Whether flushes for it are stored, so that the next drawing begins a new set.
    is_flushed: bool,
    is_dirty: bool,
    /// Whether all drawings of it showed that nothing is there: such URLs can be made up without end.
    is_fault: bool,
}

impl Entry {
    /// Notes a drawing after an answer that named the URL.
    fn add_later(&mut self, read: &Dependencies, look: Option<&Arc<Look>>) {
        self.later = Some(match self.later.take() {
            None => (Arc::new(read.clone()), look.cloned()),
            Some((known, old)) => (Arc::new(known.union(read)), joined(old.as_ref(), look)),
        });
    }
}

/// Returns how all copies of two kinds look; nothing if they differ or nobody knows.
fn joined(one: Option<&Arc<Look>>, other: Option<&Arc<Look>>) -> Option<Arc<Look>> {
    let (one, other) = (one?, other?);
    if one == other { Some(Arc::clone(one)) } else { one.joined(other).map(Arc::new) }
}

/// Hashes what is a hash already.
#[derive(Debug, Default)]
struct Same(u64);

impl Hasher for Same {
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

/// What is known.
#[derive(Debug)]
pub(super) struct Index {
    journal: Journal,
    max_urls: usize,
    by_url: HashMap<Arc<str>, u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_path: HashMap<u64, Vec<u32>, BuildHasherDefault<Same>>,
    /// The lists of all sets, and perhaps others.
    listings: HashMap<u64, Arc<Listing>, BuildHasherDefault<Same>>,
    /// How many URLs show faults.
    faults: usize,
    /// How many links `by_path` holds, and how many of them sets need.
    links: usize,
    needed: usize,
    /// The newest steps; the last one has the number `number`.
    steps: VecDeque<Step>,
    number: u64,
    /// The state in which the last step ended that was answered, and the one whose flushes are stored.
    end: Option<ChunkId>,
    base: Option<ChunkId>,
    /// The number of the answer that led to `base`.
    settled: u64,
    strays: Strays,
    /// Counts drawings and answers.
    clock: u64,
    dirty: Vec<u32>,
    gone: Vec<Arc<str>>,
    /// Folders that have to be flushed as a whole.
    scopes: Scopes,
    /// URLs to be named by the next answer, whatever it is about.
    owed: BTreeSet<Arc<str>>,
    /// Whether URLs are in doubt that no answer was about since.
    is_doubtful: bool,
    /// Whether the same content may be drawn otherwise since the last step.
    is_altered: bool,
    /// Drawings that began before this step may be of templates of before.
    altered: u64,
}

impl Index {
    pub(super) fn new(journal: Journal, max_urls: usize) -> Self {
        Self {
            journal,
            max_urls: max_urls.max(16),
            by_url: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            by_path: HashMap::default(),
            listings: HashMap::default(),
            faults: 0,
            links: 0,
            needed: 0,
            steps: VecDeque::new(),
            number: 0,
            end: None,
            base: None,
            settled: 0,
            strays: Strays::default(),
            clock: 0,
            dirty: Vec::new(),
            gone: Vec::new(),
            scopes: Scopes::default(),
            owed: BTreeSet::new(),
            is_doubtful: false,
            is_altered: false,
            altered: 0,
        }
    }

    /// Returns how many steps were answered.
    pub(super) fn steps(&self) -> u64 {
        self.number
    }

    /// Returns the state in which the last step ended that was answered.
    pub(super) fn end(&self) -> Option<ChunkId> {
        self.end
    }

    /// Returns the states of strays that a step between two others has to look at.
    pub(super) fn stray_roots(&self, ends: [ChunkId; 2]) -> Vec<ChunkId> {
        self.strays.roots(ends)
    }

    /// Returns how many URLs have copies of states at which no follower stands.
    pub(super) fn strays(&self) -> usize {
        self.strays.len()
    }

    /// Returns how many URLs there are, and how many dependencies.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.by_url.len(), self.needed)
    }

    /// Takes up a stored row.
    pub(super) fn load(&mut self, row: Row) {
        match row.kind {
            Kind::Url => {
                let at = self.put(&row.url, Arc::new(row.read));
                self.set_look(at, row.look.map(Arc::new));
                self.set_fault(at, row.is_fault);
                if row.is_stray {
                    self.strays.add(at, None, self.clock);
                    // Perhaps what it shows is told of no change to come.
                    self.is_doubtful = true;
                }
            }
            Kind::Scope => self.scopes.load(row.url, row.is_stray, self.clock),
        }
    }

    /// Takes up a URL whose drawing was not stored in time.
    pub(super) fn load_unstored(&mut self, url: &str) {
        let read = self
            .known(url)
            .map_or_else(Dependencies::anything, |known| known.union(&Dependencies::anything()));
        let at = self.put(url, Arc::new(read));
        self.set_look(at, None);
        self.set_fault(at, false);
        self.strays.add(at, None, self.clock);
        self.mark(at);
    }

    /// Takes every URL for one of which copies of an unknown state are about.
    pub(super) fn doubt_all(&mut self) {
        let all: Vec<u32> = self.by_url.values().copied().collect();
        for at in all {
            self.strays.add(at, None, self.clock);
            self.mark(at);
        }
        self.is_doubtful = !self.by_url.is_empty();
    }

    /// Takes every copy for one that would be drawn otherwise now, also those that are drawn until the next step: nobody knows
    /// of which templates they are.
    pub(super) fn alter(&mut self) {
        self.doubt_all();
        self.is_altered = true;
    }

    /// Tells whether the next step is about everything that was drawn.
    pub(super) fn is_altered(&self) -> bool {
        self.is_altered
    }

    /// Takes up a row of a publisher that is gone.
    pub(super) fn take_over(&mut self, row: Row) {
        if row.kind == Kind::Scope {
            return self.add_due(&row.url);
        }
        let read =
            self.known(&row.url).map_or_else(|| row.read.clone(), |known| known.union(&row.read));
        let at = self.put(&row.url, Arc::new(read));
        // What this publisher draws is not what the other one drew.
        self.set_look(at, None);
        self.set_fault(at, false);
        // That it is owed has to be known after a kill, too.
        self.strays.add(at, None, self.clock);
        self.mark(at);
        self.owed.insert(row.url.into());
    }

    /// Forgets the URLs that the journal names, as all of them are stored.
    pub(super) fn empty_journal(&mut self) {
        [0, 1].into_iter().for_each(|file| self.journal.empty(file));
    }

    fn known(&self, url: &str) -> Option<Arc<Dependencies>> {
        let at = *self.by_url.get(url)?;
        Some(Arc::clone(&self.entry(at)?.read))
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.entries.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// Tells whether copies of a state are strays: no follower stands there. While an answer waits for its flushes to be
    /// stored, the next step begins where that one ends, and after a kill where it began; so all copies are strays then.
    fn is_astray(&self, root: Option<ChunkId>) -> bool {
        root.is_none() || root != self.base || self.base != self.end
    }

    /// Tells whether a drawing that began after the step with a number read, looks and is like the URL is known, as
    /// most are; nothing else need be recorded of it then.
    pub(super) fn is_known(&mut self, began: u64, sketch: Sketch<'_>) -> bool {
        let Sketch { url, root, digest, look, is_fault } = sketch;
        if began != self.number || (!self.owed.is_empty() && self.owed.contains(url)) {
            return false;
        }
        let clock = self.clock + 1;
        let Some(at) = self.by_url.get(url).copied() else { return false };
        let is_astray = self.is_astray(root);
        let Some(entry) = self.entry_mut(at) else { return false };
        let looks_alike = match (entry.look.as_deref(), look) {
            // The first copy after a flush begins anew.
            (known, look) if entry.is_flushed => known == look,
            (Some(known), Some(look)) => known.covers(look),
            (known, _) => known.is_none(),
        };
        let is_known = entry.digest == Some(digest) && looks_alike && entry.is_fault == is_fault;
        if !is_known || (is_astray && !self.strays.note_again(at, root, clock)) {
            return false;
        }
        if let Some(entry) = self.entry_mut(at) {
            (entry.drawn, entry.is_flushed) = (clock, false);
            self.clock = clock;
        }
        true
    }

    /// Records a drawing that began after the step with a number.
    pub(super) fn record(&mut self, began: u64, drawn: Drawn<'_>) -> Kept {
        let Drawn { url, root, read, digest, look, is_fault } = drawn;
        if self.is_outdated(began, root, read) {
            return Kept::Outdated;
        }
        if url.len() > MAX_URL_BYTES {
            if is_fault {
                return Kept::Crowded;
            }
            self.add_scope(folder_of(url));
            return Kept::Grown { given_up: 1 };
        }
        self.clock += 1;
        let clock = self.clock;
        let at = self.by_url.get(url).copied();
        if at.is_none() && is_fault && self.faults >= self.max_faults() {
            return Kept::Crowded;
        }
        let (mut grown, mut look, mut known_at) = (None, look.map(Arc::new), None);
        let (is_owed, mut only_faults) = (self.owed.contains(url), is_fault);
        let is_astray = self.is_astray(root);
        if let Some(entry) = at.and_then(|at| self.entry_mut(at)) {
            entry.drawn = clock;
            if is_owed {
                entry.add_later(read, look.as_ref());
            }
            if !entry.is_flushed {
                // Copies of an earlier drawing may be about that look otherwise.
                look = joined(entry.look.as_ref(), look.as_ref());
                only_faults &= entry.is_fault;
            }
            let is_known =
                if entry.is_flushed { *entry.read == *read } else { entry.read.holds(read) };
            // A row with an older look would let a change pass that leads back to it.
            if is_known && entry.look == look && entry.is_fault == only_faults {
                entry.is_flushed = false;
                entry.digest = digest.filter(|_| *entry.read == *read).or(entry.digest);
                known_at = at;
            } else {
                grown = (!entry.is_flushed).then(|| entry.read.union(read));
            }
        }
        // That there are strays must be known after a kill, too; that there are more of them need not.
        if let Some(at) = known_at.filter(|at| !is_astray || self.strays.has(*at)) {
            if is_astray {
                self.strays.add(at, root, clock);
            }
            return Kept::Known;
        }
        if let Err(error) = self.journal.add(url) {
            tracing::error!(file = url, error = %error, "a drawing cannot be noted in the ledger");
            return Kept::Lost;
        }
        if let Some(at) = known_at {
            self.strays.add(at, root, clock);
            self.mark(at);
            return Kept::Grown { given_up: 0 };
        }
        let digest = digest.filter(|_| grown.is_none());
        let at = self.put(url, Arc::new(grown.unwrap_or_else(|| read.clone())));
        self.set_look(at, look);
        self.set_fault(at, only_faults);
        if let Some(entry) = self.entry_mut(at) {
            entry.digest = digest;
        }
        if is_astray {
            self.strays.add(at, root, clock);
        }
        self.mark(at);
        Kept::Grown { given_up: self.give_up() }
    }

    /// Returns how many URLs may show faults.
    fn max_faults(&self) -> usize {
        self.max_urls / 10
    }

    fn set_fault(&mut self, at: u32, is_fault: bool) {
        let Some(entry) = self.entry_mut(at) else { return };
        let was_fault = std::mem::replace(&mut entry.is_fault, is_fault);
        self.faults = self.faults + usize::from(is_fault) - usize::from(was_fault);
    }

    /// Tells whether a step that was answered since a drawing began concerns it, or may: one of a state between the ends of
    /// steps has nothing that it could be held against.
    fn is_outdated(&self, began: u64, root: Option<ChunkId>, read: &Dependencies) -> bool {
        let missed = usize::try_from(self.number.saturating_sub(began)).unwrap_or(usize::MAX);
        if missed == 0 {
            return false;
        }
        if began < self.altered {
            return true;
        }
        let Some(first) = self.steps.len().checked_sub(missed) else { return true };
        let steps = || self.steps.range(first..);
        // States with the same root are the same, whichever way led there.
        let ended = steps().rposition(|step| Some(step.ends[1]) == root).map(|at| at + 1);
        let begun = steps().next().filter(|step| Some(step.ends[0]) == root).map(|_| 0);
        let Some(later) = ended.or(begun) else { return true };
        steps().skip(later).any(|step| step.touched.concerns(read))
    }

    /// Sets what a URL was drawn from.
    fn put(&mut self, url: &str, read: Arc<Dependencies>) -> u32 {
        let known = self.by_url.get(url).copied();
        let at = known.unwrap_or_else(|| {
            self.free.pop().unwrap_or_else(|| {
                self.entries.push(None);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            })
        });
        let old = known.and_then(|at| Some(Arc::clone(&self.entry(at)?.read)));
        for key in read.own_keys() {
            if old.as_ref().is_none_or(|old| old.own_aspects_of(key).is_empty()) {
                self.by_path.entry(key).or_default().push(at);
                self.links += 1;
            }
        }
        for listing in read.listings() {
            self.listings.entry(listing.id()).or_insert_with(|| Arc::clone(listing));
        }
        self.needed = self.needed + read.len() - old.map_or(0, |old| old.len());
        let drawn = self.clock;
        match self.entry_mut(at) {
            Some(entry) => {
                (entry.read, entry.drawn, entry.is_flushed) = (read, drawn, false);
                entry.digest = None;
            }
            None => {
                let url: Arc<str> = url.into();
                self.by_url.insert(Arc::clone(&url), at);
                if let Some(place) = self.entries.get_mut(at as usize) {
                    let (look, later, is_flushed, is_dirty) = (None, None, false, false);
                    let (digest, is_fault) = (None, false);
                    *place = Some(Entry {
                        url,
                        read,
                        digest,
                        look,
                        later,
                        drawn,
                        is_flushed,
                        is_dirty,
                        is_fault,
                    });
                }
            }
        }
        if self.links > 2 * self.needed + SPARE_LINKS {
            self.relink();
        }
        at
    }

    fn set_look(&mut self, at: u32, look: Option<Arc<Look>>) {
        if let Some(entry) = self.entry_mut(at) {
            entry.look = look;
        }
    }

    /// Makes all links anew, without those that no set needs any more.
    fn relink(&mut self) {
        self.by_path.clear();
        self.listings.clear();
        for (at, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            for key in entry.read.own_keys() {
                self.by_path.entry(key).or_default().push(u32::try_from(at).unwrap_or(u32::MAX));
            }
            for listing in entry.read.listings() {
                self.listings.entry(listing.id()).or_insert_with(|| Arc::clone(listing));
            }
        }
        self.links = self.needed;
    }

    /// Notes that a row has to be stored.
    fn mark(&mut self, at: u32) {
        if let Some(entry) = self.entry_mut(at).filter(|entry| !entry.is_dirty) {
            entry.is_dirty = true;
            self.dirty.push(at);
        }
    }

    /// Notes that all rows have to be stored.
    pub(super) fn mark_all(&mut self) {
        let all: Vec<u32> = self.by_url.values().copied().collect();
        all.into_iter().for_each(|at| self.mark(at));
        self.scopes.mark_all();
    }

    /// Gives up a tenth of the URLs, those not drawn for longest, if there are too many; returns how many.
    fn give_up(&mut self) -> u64 {
        if self.by_url.len() - self.faults <= self.max_urls {
            return 0;
        }
        let drawn = |at: &u32| {
            let entry = self.entry(*at).filter(|entry| !entry.is_fault)?;
            Some((entry.drawn, *at))
        };
        let mut oldest: Vec<(u64, u32)> = self.by_url.values().filter_map(drawn).collect();
        let count = (self.max_urls / 10).max(1).min(oldest.len() - 1);
        oldest.select_nth_unstable(count);
        oldest.truncate(count);
        for (_, at) in oldest {
            if let Some(url) = self.remove(at) {
                self.add_scope(folder_of(&url));
            }
        }
        count as u64
    }

    /// Forgets a URL.
    fn remove(&mut self, at: u32) -> Option<Arc<str>> {
        let entry = self.entries.get_mut(at as usize).and_then(Option::take)?;
        self.by_url.remove(&entry.url);
        self.strays.remove(at);
        self.needed -= entry.read.len();
        self.faults -= usize::from(entry.is_fault);
        self.free.push(at);
        self.gone.push(Arc::clone(&entry.url));
        Some(entry.url)
    }

    /// Notes that anything below a path may depend on anything.
    pub(super) fn add_scope(&mut self, scope: &str) {
        self.clock += 1;
        self.scopes.add(scope, self.clock);
    }

    /// Notes that anything below a path may have depended on what changed already.
    pub(super) fn add_due(&mut self, scope: &str) {
        self.clock += 1;
        self.scopes.add_due(scope, self.clock);
    }

    /// Returns those of some folders that are flushed although nothing changed.
    pub(super) fn due(&self, scopes: Vec<String>) -> Vec<String> {
        self.scopes.due(scopes)
    }

    /// Returns the lists of URLs whose answers a change may have changed.
    pub(super) fn doubtful_listings(&mut self, touched: &Touched) -> Vec<Arc<Listing>> {
        let (entries, by_path) = (&self.entries, &self.by_path);
        let is_needed = |listing: &Listing| {
            let holds = |at: &u32| {
                let entry = entries.get(*at as usize).and_then(Option::as_ref);
                entry.is_some_and(|entry| !entry.read.own_aspects_of(listing.id()).is_empty())
            };
            by_path.get(&listing.id()).is_some_and(|at| at.iter().any(holds))
        };
        let (mut doubtful, mut idle) = (Vec::new(), Vec::new());
        for listing in self.listings.values().filter(|one| touched.touches(one.scope())) {
            match is_needed(listing) {
                true => doubtful.push(Arc::clone(listing)),
                false => idle.push(listing.id()),
            }
        }
        for id in idle {
            self.listings.remove(&id);
        }
        doubtful
    }

    /// Tells whether a list is among those that changes are held against.
    pub(super) fn has_listing(&self, id: u64) -> bool {
        self.listings.contains_key(&id)
    }

    /// Counts a step and returns the URLs that it concerns, those first of which it is not sure that they show it. Of
    /// some lists it is known that their answers are the same at both ends, of some states of strays what differs from them
    /// to the end; strays of others are taken for concerned.
    pub(super) fn concerned(
        &mut self,
        step: Step,
        same: &HashSet<u64>,
        since: &HashMap<ChunkId, Touched>,
    ) -> Concerned {
        self.number += 1;
        self.clock += 1;
        self.is_doubtful = false;
        if std::mem::take(&mut self.is_altered) {
            self.altered = self.number;
            self.doubt_all();
            self.is_doubtful = false;
        }
        let mut found = self.touched_by(&step.touched, same);
        let by_step = found.len();
        for (at, mut roots) in self.strays.iter() {
            let Some(entry) = self.entry(at) else { continue };
            let is_concerned = roots.any(|root| match root {
                Some(root) if step.ends.contains(&root) => false,
                Some(root) => since.get(&root).is_none_or(|touched| touched.concerns(&entry.read)),
                None => true,
            });
            if is_concerned {
                found.entry(at).or_default();
            }
        }
        self.end = Some(step.ends[1]);
        self.steps.push_back(step);
        if self.steps.len() > MAX_STEPS {
            self.steps.pop_front();
        }
        let strays = found.len() - by_step;
        let candidate = |(at, shared): (u32, Aspects)| {
            let Entry { url, look, .. } = self.entry(at)?;
            Some(Candidate { url: Arc::clone(url), shared, look: look.clone() })
        };
        let mut candidates: Vec<Candidate> = found.into_iter().filter_map(candidate).collect();
        candidates.sort_unstable_by(|left, right| {
            let key = |one: &Candidate| !one.is_doubtful();
            (key(left), &left.url).cmp(&(key(right), &right.url))
        });
        Concerned { candidates, seen: self.clock, strays }
    }

    /// Returns the URLs that read what differs between the ends of a step, and what of that.
    fn touched_by(&self, touched: &Touched, same: &HashSet<u64>) -> HashMap<u32, Aspects> {
        let mut found: HashMap<u32, Aspects> = HashMap::new();
        if touched.is_everything() {
            found.extend(self.by_url.values().map(|at| (*at, Aspects::default())));
            return found;
        }
        // A list that was noted since the others were asked again counts like those with another answer.
        let answers = self.listings.values();
        let answers = answers
            .filter(|one| touched.touches(one.scope()) && !same.contains(&one.id()))
            .map(|one| (one.id(), Aspects::ANSWER));
        for (key, aspects) in touched.paths().chain(answers) {
            for at in self.by_path.get(&key).into_iter().flatten() {
                let Some(entry) = self.entry(*at) else { continue };
                let shared = entry.read.own_aspects_of(key).only(aspects);
                if !shared.is_empty() {
                    let known = found.entry(*at).or_default();
                    *known = known.and(shared);
                }
            }
        }
        found
    }

    /// Notes that a URL looks the same after a change, drawn from this; nothing if that does not hold for all its copies.
    pub(super) fn spare(&mut self, candidate: &Candidate, read: &Dependencies) -> Option<Spared> {
        let at = *self.by_url.get(&candidate.url)?;
        let entry = self.entry(at)?;
        let is_same = entry.look.is_some() && entry.look == candidate.look && !entry.is_flushed;
        if !is_same {
            return None;
        }
        let url = Arc::clone(&entry.url);
        let read = Arc::new(read.clone());
        if entry.read.holds(&read) {
            let joined = Arc::clone(&entry.read);
            return Some(Spared { url, joined, read });
        }
        let joined = Arc::new(entry.read.union(&read));
        self.journal.add(&url).ok()?;
        self.put(&url, Arc::clone(&joined));
        self.mark(at);
        Some(Spared { url, joined, read })
    }

    /// Returns what is owed without a change.
    pub(super) fn owed(&mut self) -> (u64, Vec<String>, Vec<String>) {
        self.answer(&[])
    }

    /// Tells whether anything is owed without a change.
    pub(super) fn is_owing(&self) -> bool {
        !self.owed.is_empty() || self.is_doubtful || self.is_altered || self.scopes.is_owing()
    }

    /// Returns the URLs that have to be flushed and the folders to be flushed as a whole, those not settled included.
    pub(super) fn answer(&mut self, urls: &[Arc<str>]) -> (u64, Vec<String>, Vec<String>) {
        self.clock += 1;
        self.owed.extend(urls.iter().cloned());
        let urls = self.owed.iter().map(|url| url.to_string()).collect();
        (self.clock, urls, self.scopes.all())
    }

    /// Notes that flushes for an answer are stored.
    pub(super) fn settle(&mut self, answer: Settled<'_>) {
        let Settled { number: answered, end, urls, scopes } = answer;
        if let Some((seen, end)) = end.filter(|_| self.settled < answered) {
            (self.settled, self.base) = (answered, Some(end));
            let over = self.strays.settle(seen, end);
            over.into_iter().for_each(|at| self.mark(at));
        }
        for url in urls {
            self.owed.remove(url.as_str());
            let Some(at) = self.by_url.get(url.as_str()).copied() else { continue };
            if self.strays.remove_until(at, answered) {
                self.mark(at);
            }
            let Some(entry) = self.entry_mut(at) else { continue };
            let drawn = entry.drawn;
            let Some((read, look)) = entry.later.take() else {
                entry.is_flushed = drawn <= answered;
                if entry.is_flushed && entry.is_fault {
                    // Nobody has a copy any more, and perhaps nobody asks again.
                    self.remove(at);
                }
                continue;
            };
            self.put(url, read);
            self.set_look(at, look);
            self.mark(at);
            if let Some(entry) = self.entry_mut(at) {
                entry.drawn = drawn;
            }
        }
        self.scopes.settle(scopes, answered);
    }

    /// Notes that the follower stands at a state although no step that ends there was answered: nobody was to be told.
    pub(super) fn pass(&mut self, root: ChunkId) {
        if self.base == Some(root) && self.end == self.base {
            return;
        }
        (self.base, self.end) = (Some(root), Some(root));
        self.is_doubtful = false;
        let over = self.strays.clear();
        over.into_iter().for_each(|at| self.mark(at));
    }

    /// Forgets what spared URLs were drawn from before the change: nobody asks any more from the state before it.
    pub(super) fn settle_spared(&mut self, spared: &[Spared]) {
        for Spared { url, joined, read } in spared {
            let known = self.by_url.get(url).and_then(|at| self.entry(*at));
            let is_last = |entry: &&Entry| !entry.is_flushed && Arc::ptr_eq(&entry.read, joined);
            if let Some(entry) = known.filter(is_last) {
                let drawn = entry.drawn;
                let at = self.put(url, Arc::clone(read));
                if let Some(entry) = self.entry_mut(at) {
                    entry.drawn = drawn;
                }
            }
        }
    }

    /// Takes what has to be stored.
    pub(super) fn take_batch(&mut self) -> Option<Batch> {
        if self.dirty.is_empty() && self.gone.is_empty() && !self.scopes.is_changed() {
            return None;
        }
        let mut rows = Vec::with_capacity(self.dirty.len());
        for at in std::mem::take(&mut self.dirty) {
            // The place of a URL that was given up may be another one's by now, and be here twice.
            if let Some(entry) = self.entry_mut(at).filter(|entry| entry.is_dirty) {
                entry.is_dirty = false;
                let (url, read) = (Arc::clone(&entry.url), Arc::clone(&entry.read));
                let (look, is_fault) = (entry.look.clone(), entry.is_fault);
                rows.push(Unstored { url, read, look, is_fault, is_stray: self.strays.has(at) });
            }
        }
        let (scopes, gone) = (self.scopes.take_rows(), std::mem::take(&mut self.gone));
        Some(Batch { rows, gone, scopes, file: self.journal.turn() })
    }

    /// Empties the journal of what was stored, or takes back what was not.
    pub(super) fn end_batch(&mut self, batch: &Batch, is_stored: bool) {
        if is_stored {
            return self.journal.empty(batch.file);
        }
        for row in &batch.rows {
            if let Some(at) = self.by_url.get(&row.url).copied() {
                self.mark(at);
            }
        }
        self.gone.extend(batch.gone.iter().cloned());
        self.scopes.put_back(&batch.scopes);
    }
}
