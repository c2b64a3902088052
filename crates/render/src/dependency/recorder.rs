//! The recorder of a rendering's reads: recent reads are kept in a lock-free cache, the rest behind a lock, which would
//! otherwise cost more than everything else.
//!
//! Input: reads, as they happen. Output: a [`DependencyLog`] of them.
//!
//! Invariants
//! * Every recorded read is in the recent cache or in the log; the recent cache belongs to the component that is being
//!   rendered.
//! * Only the thread that began the rendering writes the recent cache. Other threads write to the log directly. When
//!   another thread requests the log, it leaves the recent cache in place, so that nothing is lost and some reads may
//!   be recorded twice.
//!
//! Not here: the log ([`crate::dependency::log`]) and the kinds of reads ([`crate::dependency::content_reader`]).

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tympan_content::NodePath;

use crate::dependency::DependencySet;
use crate::dependency::log::{
    DependencyLog, DependencyLogMark, RecordedDependencies, is_within, site_scope_of,
};
use crate::dependency::path_dependency::{PathAspects, PathDependency, hash_path_text};
use crate::page::list_query::ListQuery;

thread_local! {
    /// The emptied recorder of the thread's previous rendering. It is large: allocating one costs as much as many
    /// records.
    static SPARE: Cell<Option<Box<DependencyRecorder>>> = const { Cell::new(None) };
}

/// Number of paths in the recent cache: one bit each in some words.
const RECENT_PATH_COUNT: usize = RECENT_PATH_WORDS * u64::BITS as usize;
const RECENT_PATH_WORDS: usize = 4;
/// Number of scopes in the recent cache; a page reads in few scopes.
const RECENT_SCOPE_COUNT: usize = 8;
/// Number of slots for scripts and lists of folders.
const RECENT_ADDRESS_COUNT: usize = 64;

/// Records the reads of one rendering.
#[derive(Debug)]
pub(crate) struct DependencyRecorder {
    /// The thread that writes the recent cache.
    owner_thread: usize,
    recent: RecentDependencies,
    log: Mutex<DependencyLog>,
}

impl Default for DependencyRecorder {
    fn default() -> Self {
        Self {
            owner_thread: current_thread_number(),
            recent: RecentDependencies::default(),
            log: Mutex::default(),
        }
    }
}

impl DependencyRecorder {
    /// Returns an empty recorder owned by this thread; pass it to [`DependencyRecorder::release`] after the rendering.
    pub(crate) fn acquire() -> Box<Self> {
        // While a thread ends, its spare recorder may be dropped already.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut recorder = spare.unwrap_or_default();
        recorder.owner_thread = current_thread_number();
        recorder
    }

    /// Empties a recorder for the next rendering of this thread. Cached scopes stay; each counts only once a read lies
    /// in it.
    pub(crate) fn release(mut recorder: Box<Self>) {
        recorder.recent.clear();
        recorder.log.get_mut().clear();
        SPARE.try_with(|spare| spare.set(Some(recorder))).ok();
    }

    /// Records aspects of a path.
    pub(crate) fn record(&self, path: &str, aspects: PathAspects) {
        let hash = hash_path_text(path);
        let Some(hand) = self.own_recent() else {
            self.log.lock().record_hashed(path, hash, aspects);
            return;
        };
        if hand.merge_into_existing(hash, aspects) {
            return;
        }
        if !hand.insert_scope(path) {
            self.log.lock().record_scope(path);
        }
        if let Some((hash, aspects)) = hand.eviction_candidate(hash) {
            // Write the log before evicting, as another thread may request it.
            self.log.lock().record_component_code(hash, aspects);
        }
        hand.insert(hash, aspects);
    }

    /// Records aspects of a child by a name that may be invalid.
    pub(crate) fn record_child(&self, parent: &NodePath, name: &str, aspects: PathAspects) {
        self.log.lock().record_child(parent, name, aspects);
    }

    /// Records aspects of children of a node.
    pub(crate) fn record_children<'a>(
        &self,
        parent: &NodePath,
        children: impl ExactSizeIterator<Item = &'a str>,
        aspects: PathAspects,
    ) {
        self.log.lock().record_children(parent, children, aspects);
    }

    /// Records aspects of a script or of the location of scripts.
    pub(crate) fn record_component_code(&self, hash: u64, aspects: PathAspects) {
        self.log.lock().record_component_code(hash, aspects);
    }

    /// Records a search for scripts in the folders with these hashes.
    pub(crate) fn record_script_folders(&self, folders: Arc<[u64]>) {
        let part = folders.as_ptr().addr();
        self.record_address(part, |notes| notes.record_script_folders(folders));
    }

    /// Records that a script was run, with everything below it.
    pub(crate) fn record_script(&self, script: &Arc<str>) {
        self.record_address(script.as_ptr().addr(), |notes| notes.record_script(script));
    }

    /// Records a value by its address. The log owns the value from then on, so that the address is not reused.
    fn record_address(&self, part: usize, add: impl FnOnce(&mut DependencyLog)) {
        let hand = self.own_recent();
        if hand.is_some_and(|hand| hand.has_address(part)) {
            return;
        }
        add(&mut self.log.lock());
        if let Some(hand) = hand {
            hand.insert_address(part);
        }
    }

    /// Adds the dependencies of a cached fragment.
    pub(crate) fn record_fragment(&self, read: Arc<DependencySet>) {
        self.log.lock().record_fragment(read);
    }

    /// Records a list in place of all the reads that it needs.
    pub(crate) fn record_list_query(&self, listing: ListQuery) {
        self.log.lock().record_list_query(listing);
    }

    /// Begins a component; pass the result to [`DependencyRecorder::end_component`].
    pub(crate) fn begin_component(&self) -> DependencyLogMark {
        self.lock_flushed_log().begin_component()
    }

    /// Ends a component; its records count for the enclosing component, too.
    pub(crate) fn end_component(&self, outer: DependencyLogMark) {
        self.lock_flushed_log().end_component(outer);
    }

    /// Ends a component and detaches its records.
    pub(crate) fn end_component_detached(&self, outer: DependencyLogMark) {
        self.lock_flushed_log().end_component_detached(outer);
    }

    /// Returns true if a component with records of its own is being rendered.
    pub(crate) fn is_in_component(&self) -> bool {
        self.log.lock().is_in_component()
    }

    /// Returns the reads recorded since the component began.
    pub(crate) fn component_dependencies(&self) -> DependencySet {
        self.lock_flushed_log().component_dependencies()
    }

    /// Takes all records.
    pub(crate) fn take_all(
        &self,
    ) -> (RecordedDependencies, Vec<Arc<ListQuery>>, Vec<Arc<DependencySet>>) {
        self.lock_flushed_log().take_all()
    }

    /// Returns the recent cache if this thread owns it.
    fn own_recent(&self) -> Option<&RecentDependencies> {
        (self.owner_thread == current_thread_number()).then_some(&self.recent)
    }

    /// Returns the log after flushing the recent cache into it. Records of one component are never in the cache for
    /// another.
    fn lock_flushed_log(&self) -> MutexGuard<'_, DependencyLog> {
        let mut notes = self.log.lock();
        notes.record_all(
            self.recent.path_count(),
            self.recent.path_dependencies(),
            self.recent.used_scopes(),
        );
        if let Some(hand) = self.own_recent() {
            hand.clear_paths();
        }
        notes
    }
}

/// The recent reads of the component that is being rendered.
#[derive(Debug)]
struct RecentDependencies {
    /// Bit set of the paths in use.
    filled_slots: [AtomicU64; RECENT_PATH_WORDS],
    /// Path hashes, each in the slot given by the hash or the one beside it, with the recorded aspects.
    paths: [(AtomicU64, AtomicU64); RECENT_PATH_COUNT],
    /// Scopes of the records of this rendering or earlier ones of the thread.
    scopes: [OnceLock<Box<str>>; RECENT_SCOPE_COUNT],
    /// Bit set of the scopes that contain reads of this rendering.
    used_scopes: AtomicU64,
    /// Addresses of values that the log owns.
    addresses: [AtomicUsize; RECENT_ADDRESS_COUNT],
}

impl Default for RecentDependencies {
    fn default() -> Self {
        Self {
            filled_slots: [const { AtomicU64::new(0) }; RECENT_PATH_WORDS],
            paths: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; RECENT_PATH_COUNT],
            scopes: [const { OnceLock::new() }; RECENT_SCOPE_COUNT],
            used_scopes: AtomicU64::new(0),
            addresses: [const { AtomicUsize::new(0) }; RECENT_ADDRESS_COUNT],
        }
    }
}

impl RecentDependencies {
    /// Returns the two slots of a path: the one given by its hash, and the one beside it.
    fn slots_of(hash: u64) -> [usize; 2] {
        let at = hash as usize % RECENT_PATH_COUNT;
        [at, at ^ 1]
    }

    fn is_slot_filled(&self, at: usize) -> bool {
        let word = self.filled_slots.get(at / u64::BITS as usize);
        word.is_some_and(|word| word.load(Relaxed) >> (at % u64::BITS as usize) & 1 == 1)
    }

    /// Merges aspects into a cached path; returns false if the path is not cached.
    fn merge_into_existing(&self, hash: u64, aspects: PathAspects) -> bool {
        for at in Self::slots_of(hash) {
            let Some((path_slot, aspects_slot)) = self.paths.get(at) else { continue };
            if path_slot.load(Relaxed) == hash && self.is_slot_filled(at) {
                let before = aspects_slot.load(Relaxed);
                if !PathAspects::from_bits(before).contains(aspects) {
                    aspects_slot.store(before | aspects.bits(), Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Returns the entry that has to be evicted for a path; `None` if one of its slots is free.
    fn eviction_candidate(&self, hash: u64) -> Option<PathDependency> {
        let slots = Self::slots_of(hash);
        if !slots.iter().all(|at| self.is_slot_filled(*at)) {
            return None;
        }
        let [at, _] = slots;
        self.paths.get(at).map(|(path_slot, aspects_slot)| {
            (path_slot.load(Relaxed), PathAspects::from_bits(aspects_slot.load(Relaxed)))
        })
    }

    /// Inserts a path that is not cached into its free slot, or else into its first slot.
    fn insert(&self, hash: u64, aspects: PathAspects) {
        let [own, beside] = Self::slots_of(hash);
        let at =
            if self.is_slot_filled(own) && !self.is_slot_filled(beside) { beside } else { own };
        let Some((path_slot, aspects_slot)) = self.paths.get(at) else { return };
        path_slot.store(hash, Relaxed);
        aspects_slot.store(aspects.bits(), Relaxed);
        if let Some(word) = self.filled_slots.get(at / u64::BITS as usize) {
            word.store(word.load(Relaxed) | 1 << (at % u64::BITS as usize), Relaxed);
        }
    }

    /// Records the scope of a path if there is capacity. Returns true if a cached scope contains the path.
    fn insert_scope(&self, path: &str) -> bool {
        for (at, scope) in self.scopes.iter().enumerate() {
            if is_within(path, scope.get_or_init(|| site_scope_of(path).into())) {
                let used = self.used_scopes.load(Relaxed);
                if used & 1 << at == 0 {
                    self.used_scopes.store(used | 1 << at, Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Returns the scopes that contain cached reads of this rendering.
    fn used_scopes(&self) -> impl Iterator<Item = &str> {
        let used = self.used_scopes.load(Relaxed);
        let all = self.scopes.iter().enumerate();
        all.filter(move |(at, _)| used & 1 << at != 0)
            .filter_map(|(_, scope)| Some(&**scope.get()?))
    }

    /// Returns the number of cached paths.
    fn path_count(&self) -> usize {
        self.filled_slots.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// Returns the cached paths, in slot order.
    fn path_dependencies(&self) -> impl Iterator<Item = PathDependency> {
        let words =
            self.filled_slots.iter().zip(self.paths.as_chunks::<{ u64::BITS as usize }>().0);
        words.flat_map(|(word, paths)| {
            let mut left = word.load(Relaxed);
            std::iter::from_fn(move || {
                let (hash, aspects_slot) = paths.get(left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some((hash.load(Relaxed), PathAspects::from_bits(aspects_slot.load(Relaxed))))
            })
        })
    }

    fn address_slot(&self, address: usize) -> Option<&AtomicUsize> {
        // The data of an `Arc` begins after two counters of eight bytes.
        self.addresses.get(address / 16 % RECENT_ADDRESS_COUNT)
    }

    /// Returns true if the value at an address was recorded.
    fn has_address(&self, address: usize) -> bool {
        self.address_slot(address).is_some_and(|slot| slot.load(Relaxed) == address)
    }

    fn insert_address(&self, address: usize) {
        if let Some(slot) = self.address_slot(address) {
            slot.store(address, Relaxed);
        }
    }

    /// Clears everything for another rendering. Scopes stay while there is capacity for more.
    fn clear(&mut self) {
        self.clear_paths();
        *self.used_scopes.get_mut() = 0;
        if self.scopes.iter().all(|scope| scope.get().is_some()) {
            self.scopes.iter_mut().for_each(|scope| drop(scope.take()));
        }
    }

    /// Clears everything but the scopes: reads of another component say nothing about this one.
    fn clear_paths(&self) {
        self.filled_slots.iter().for_each(|word| word.store(0, Relaxed));
        self.addresses.iter().for_each(|part| part.store(0, Relaxed));
    }
}

/// Returns a number that is unique among the living threads.
fn current_thread_number() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_recorder_grows_until_it_evicts() {
        let hand = RecentDependencies::default();
        assert!(!hand.merge_into_existing(7, PathAspects::NAVIGATION_HEAD));
        hand.insert(7, PathAspects::NAVIGATION_HEAD);
        assert!(hand.merge_into_existing(7, PathAspects::MODIFIED_DATE));
        let both = PathAspects::NAVIGATION_HEAD.combine(PathAspects::MODIFIED_DATE);
        assert_eq!(hand.path_dependencies().collect::<Vec<_>>(), [(7, both)]);
        // A path with the same slot goes beside it, and a third one evicts it.
        let [second, third] = [1, 2].map(|turn| 7 + turn * RECENT_PATH_COUNT as u64);
        assert_eq!(hand.eviction_candidate(second), None);
        hand.insert(second, PathAspects::EXISTENCE);
        assert!(
            hand.merge_into_existing(7, PathAspects::NAVIGATION_HEAD)
                && hand.merge_into_existing(second, PathAspects::MODIFIED_DATE)
        );
        assert_eq!(hand.eviction_candidate(third), Some((7, both)));
        hand.insert(third, PathAspects::NAVIGATION_HEAD);
        assert!(!hand.merge_into_existing(7, PathAspects::NAVIGATION_HEAD));
        assert_eq!(hand.path_count(), 2);
        hand.insert_address(48);
        assert!(hand.has_address(48) && !hand.has_address(48 + 16 * RECENT_ADDRESS_COUNT));
        hand.clear_paths();
        assert!(!hand.merge_into_existing(second, PathAspects::EXISTENCE) && !hand.has_address(48));
        assert_eq!((hand.path_count(), hand.path_dependencies().count()), (0, 0));
        for hash in 1..=RECENT_PATH_COUNT as u64 {
            assert_eq!(hand.eviction_candidate(hash), None);
            hand.insert(hash, PathAspects::NAVIGATION_HEAD);
        }
        assert_eq!(
            (hand.path_count(), hand.path_dependencies().count()),
            (RECENT_PATH_COUNT, RECENT_PATH_COUNT)
        );
    }

    #[test]
    fn scopes_are_recorded_whether_there_is_space_or_not() {
        let (recorder, mut plain) = (DependencyRecorder::default(), DependencyLog::default());
        // Enough paths to be replaced by their scopes.
        for number in 0..=DependencySet::MAX_PATHS {
            let path = format!("/content/s{}/p{number}", number % (2 * RECENT_SCOPE_COUNT));
            recorder.record(&path, PathAspects::NAVIGATION_HEAD);
            plain.record(&path, PathAspects::NAVIGATION_HEAD);
        }
        let read = recorder.component_dependencies();
        assert_eq!(read, plain.component_dependencies());
        for scope in 0..2 * RECENT_SCOPE_COUNT {
            let path = format!("/content/s{scope}");
            assert_eq!(
                read.aspects_with_scopes(hash_path_text(&path)),
                PathAspects::SUBTREE,
                "{path}"
            );
        }
    }

    #[test]
    fn a_notepad_that_is_taken_up_again_is_empty() {
        for round in 0..3 {
            let recorder = DependencyRecorder::acquire();
            // A new scope each time, and more than the cache can hold.
            for number in 0..=RECENT_SCOPE_COUNT {
                recorder
                    .record(&format!("/content/r{round}-{number}/a"), PathAspects::NAVIGATION_HEAD);
            }
            let component_mark = recorder.begin_component();
            for number in 0..=DependencySet::MAX_PATHS {
                recorder
                    .record(&format!("/content/r{round}/p{number}"), PathAspects::NAVIGATION_HEAD);
            }
            recorder.record_script(&"/apps/a/a.html".into());
            recorder.end_component_detached(component_mark);
            recorder.begin_component();
            let (recorded, listings, fragments) = recorder.take_all();
            assert!(listings.is_empty() && fragments.is_empty());
            let read = recorded.dependencies(&[]);
            let others = (0..3).filter(|other_round| *other_round != round);
            for scope in others.map(|other_round| format!("/content/r{other_round}")) {
                assert!(read.aspects_with_scopes(hash_path_text(&scope)).is_empty(), "{scope}");
            }
            let scope = hash_path_text(&format!("/content/r{round}"));
            assert_eq!(read.aspects_with_scopes(scope), PathAspects::SUBTREE);
            // The records left by a failed rendering are removed, too.
            recorder.record("/content/left", PathAspects::NAVIGATION_HEAD);
            DependencyRecorder::release(recorder);
            let again = DependencyRecorder::acquire();
            assert!(again.component_dependencies().is_empty() && !again.is_in_component());
            again.record("/content/left", PathAspects::MODIFIED_DATE);
            assert_eq!(again.component_dependencies(), {
                let mut plain = DependencyLog::default();
                plain.record("/content/left", PathAspects::MODIFIED_DATE);
                plain.component_dependencies()
            });
            DependencyRecorder::release(again);
        }
    }

    #[test]
    fn another_thread_notes_past_what_is_at_hand() {
        let recorder = DependencyRecorder::default();
        recorder.record("/content/a", PathAspects::NAVIGATION_HEAD);
        std::thread::scope(|scope| {
            let other_thread = scope.spawn(|| {
                assert!(recorder.own_recent().is_none());
                recorder.record("/content/a", PathAspects::MODIFIED_DATE);
                recorder.record("/content/b", PathAspects::NAVIGATION_HEAD);
                // The other thread sees the recent cache, and removes nothing from it.
                assert!(
                    !recorder
                        .component_dependencies()
                        .aspects_with_scopes(hash_path_text("/content/a"))
                        .is_empty()
                );
                assert_eq!(recorder.recent.path_count(), 1);
            });
            other_thread.join().unwrap();
        });
        recorder.record("/content/b", PathAspects::MODIFIED_DATE);
        let both = PathAspects::NAVIGATION_HEAD.combine(PathAspects::MODIFIED_DATE);
        let read = recorder.component_dependencies();
        assert_eq!(read.aspects_with_scopes(hash_path_text("/content/a")), both);
        assert_eq!(read.aspects_with_scopes(hash_path_text("/content/b")), both);
    }

    /// An operation of a rendering.
    #[derive(Debug, Clone)]
    enum RecorderTestOperation {
        Record(u16, u8),
        RecordChild(u16),
        RecordScript(u8),
        RecordScriptFolders(u8),
        Begin,
        End,
        EndDetached,
    }

    fn act() -> impl Strategy<Value = RecorderTestOperation> {
        prop_oneof![
            8 => (0..600_u16, 0..3_u8).prop_map(|(number, bit)| RecorderTestOperation::Record(number, bit)),
            2 => (0..600_u16).prop_map(RecorderTestOperation::RecordChild),
            2 => (0..20_u8).prop_map(RecorderTestOperation::RecordScript),
            2 => (0..20_u8).prop_map(RecorderTestOperation::RecordScriptFolders),
            1 => Just(RecorderTestOperation::Begin),
            1 => Just(RecorderTestOperation::End),
            1 => Just(RecorderTestOperation::EndDetached),
        ]
    }

    proptest! {
        /// With and without the recent cache, each component and the whole rendering have the same dependencies.
        #[test]
        fn what_is_at_hand_is_left_out_nowhere(acts in prop::collection::vec(act(), 0..400)) {
            let aspects = [PathAspects::EXISTENCE, PathAspects::NAVIGATION_HEAD, PathAspects::property("text")];
            let (recorder, mut plain) = (DependencyRecorder::default(), DependencyLog::default());
            let scripts: Vec<Arc<str>> =
                (0..20).map(|number| format!("/apps/c{number}/c.html").into()).collect();
            let places: Vec<Arc<[u64]>> = (0..20_u64).map(|one| [one + 1, 99].into()).collect();
            let mut open = Vec::new();
            for act in acts {
                match act {
                    RecorderTestOperation::Record(number, bit) => {
                        let (path, aspects) = (format!("/content/site/p{number}"), aspects[usize::from(bit)]);
                        recorder.record(&path, aspects);
                        plain.record(&path, aspects);
                    }
                    RecorderTestOperation::RecordChild(number) => {
                        let (parent, name) = (NodePath::new("/content/site").unwrap(), format!("p{number}"));
                        recorder.record_child(&parent, &name, PathAspects::MODIFIED_DATE);
                        plain.record_child(&parent, &name, PathAspects::MODIFIED_DATE);
                    }
                    RecorderTestOperation::RecordScript(number) => {
                        recorder.record_script(&scripts[usize::from(number)]);
                        plain.record_script(&scripts[usize::from(number)]);
                    }
                    RecorderTestOperation::RecordScriptFolders(number) => {
                        recorder.record_script_folders(Arc::clone(&places[usize::from(number)]));
                        plain.record_script_folders(Arc::clone(&places[usize::from(number)]));
                    }
                    RecorderTestOperation::Begin => open.push((recorder.begin_component(), plain.begin_component())),
                    RecorderTestOperation::End | RecorderTestOperation::EndDetached => {
                        let Some((outer, plainly)) = open.pop() else { continue };
                        prop_assert_eq!(recorder.component_dependencies(), plain.component_dependencies());
                        if matches!(act, RecorderTestOperation::End) {
                            recorder.end_component(outer);
                            plain.end_component(plainly);
                        } else {
                            recorder.end_component_detached(outer);
                            plain.end_component_detached(plainly);
                        }
                    }
                }
                prop_assert_eq!(recorder.component_dependencies(), plain.component_dependencies());
            }
            let ((noted, ..), (plainly, ..)) = (recorder.take_all(), plain.take_all());
            prop_assert_eq!(noted.dependencies(&[]), plainly.dependencies(&[]));
        }
    }
}
