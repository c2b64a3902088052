//! Where a drawing notes what it reads: at hand what was read lately, which takes no lock, and the rest behind one, which would
//! cost more than all else.
//!
//! In: reads, as they happen. Out: [`DependencyLog`] of them.
//!
//! Invariants
//! * What was noted is at hand or in the notes; what is at hand is about the component that is drawn now.
//! * One thread writes what is at hand, the one that began the drawing. Another one notes past it; where it asks for the notes,
//!   it leaves what is at hand where it is, so that nothing is lost and something may be told twice.
//!
//! Not here: what notes are ([`crate::dependency_log`]) and which reads there are ([`crate::content_reader`]).

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tympan_content::NodePath;

use crate::dependency::{DependencySet, PathAspects, PathDependency, hash_path_text};
use crate::dependency_log::{
    DependencyLog, DependencyLogMark, RecordedDependencies, is_within, site_scope_of,
};
use crate::list_query::ListQuery;

thread_local! {
    /// What the last drawing of a thread noted in, empty. To make one is as dear as many notes: it is large.
    static SPARE: Cell<Option<Box<DependencyRecorder>>> = const { Cell::new(None) };
}

/// How many paths are at hand: a bit each of some words.
const RECENT_PATH_COUNT: usize = RECENT_PATH_WORDS * u64::BITS as usize;
const RECENT_PATH_WORDS: usize = 4;
/// How many scopes are at hand: what a page reads lies in a few.
const RECENT_SCOPE_COUNT: usize = 8;
/// How many scripts, and lists of folders, are told apart.
const RECENT_ADDRESS_COUNT: usize = 64;

/// What one drawing notes.
#[derive(Debug)]
pub(crate) struct DependencyRecorder {
    /// The thread that writes what is at hand.
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
    /// Returns an empty notepad that this thread writes; [`DependencyRecorder::release`] takes it when the drawing is over.
    pub(crate) fn acquire() -> Box<Self> {
        // Where a thread ends, its own is gone already.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut notepad = spare.unwrap_or_default();
        notepad.owner_thread = current_thread_number();
        notepad
    }

    /// Empties a notepad for the next drawing of this thread. The scopes that are at hand stay: they count once something lies
    /// in them.
    pub(crate) fn release(mut notepad: Box<Self>) {
        notepad.recent.clear();
        notepad.log.get_mut().clear();
        SPARE.try_with(|spare| spare.set(Some(notepad))).ok();
    }

    /// Notes something about a path.
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
            // Before it is gone, as another thread may ask.
            self.log.lock().record_component_code(hash, aspects);
        }
        hand.insert(hash, aspects);
    }

    /// Notes something about a child, by a name that perhaps no node can have.
    pub(crate) fn record_child(&self, parent: &NodePath, name: &str, aspects: PathAspects) {
        self.log.lock().record_child(parent, name, aspects);
    }

    /// Notes something about children of a node.
    pub(crate) fn record_children<'a>(
        &self,
        parent: &NodePath,
        children: impl ExactSizeIterator<Item = &'a str>,
        aspects: PathAspects,
    ) {
        self.log.lock().record_children(parent, children, aspects);
    }

    /// Notes something about what a script is or where scripts lie.
    pub(crate) fn record_component_code(&self, hash: u64, aspects: PathAspects) {
        self.log.lock().record_component_code(hash, aspects);
    }

    /// Notes that scripts were looked for in the folders with these hashes.
    pub(crate) fn record_script_folders(&self, folders: Arc<[u64]>) {
        let part = folders.as_ptr().addr();
        self.record_address(part, |notes| notes.record_script_folders(folders));
    }

    /// Notes that a script was run, with all that lies below it.
    pub(crate) fn record_script(&self, script: &Arc<str>) {
        self.record_address(script.as_ptr().addr(), |notes| notes.record_script(script));
    }

    /// Notes what lies at an address, which the notes hold from then on, so that nothing else comes to lie there.
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

    /// Adds what was read for a kept fragment.
    pub(crate) fn record_fragment(&self, read: Arc<DependencySet>) {
        self.log.lock().record_fragment(read);
    }

    /// Notes a list, which stands for all that was read for it.
    pub(crate) fn record_list_query(&self, listing: ListQuery) {
        self.log.lock().record_list_query(listing);
    }

    /// Begins a component; [`DependencyRecorder::end_component`] takes what this returns.
    pub(crate) fn begin_component(&self) -> DependencyLogMark {
        self.lock_flushed_log().begin_component()
    }

    /// Ends a component: what it noted counts for the one around it, too.
    pub(crate) fn end_component(&self, outer: DependencyLogMark) {
        self.lock_flushed_log().end_component(outer);
    }

    /// Ends a component and sets aside what it noted.
    pub(crate) fn end_component_detached(&self, outer: DependencyLogMark) {
        self.lock_flushed_log().end_component_detached(outer);
    }

    /// Tells whether a component is drawn whose notes are looked at for themselves.
    pub(crate) fn is_in_component(&self) -> bool {
        self.log.lock().is_in_component()
    }

    /// Returns what was noted since the component began.
    pub(crate) fn component_dependencies(&self) -> DependencySet {
        self.lock_flushed_log().component_dependencies()
    }

    /// Takes everything out.
    pub(crate) fn take_all(
        &self,
    ) -> (RecordedDependencies, Vec<Arc<ListQuery>>, Vec<Arc<DependencySet>>) {
        self.lock_flushed_log().take_all()
    }

    /// Returns what is at hand, if this thread writes it.
    fn own_recent(&self) -> Option<&RecentDependencies> {
        (self.owner_thread == current_thread_number()).then_some(&self.recent)
    }

    /// Returns the notes with all that is at hand. What one component noted is at hand for no other one.
    fn lock_flushed_log(&self) -> MutexGuard<'_, DependencyLog> {
        let mut notes = self.log.lock();
        notes.record_all(
            (self.recent.path_count(), self.recent.path_dependencies()),
            self.recent.used_scopes(),
        );
        if let Some(hand) = self.own_recent() {
            hand.clear_paths();
        }
        notes
    }
}

/// What was noted lately for the component that is drawn now.
#[derive(Debug)]
struct RecentDependencies {
    /// Which of the paths count, a bit each.
    filled_slots: [AtomicU64; RECENT_PATH_WORDS],
    /// Hashes of paths, each at the place that it gives itself or beside it, and what was noted of each.
    paths: [(AtomicU64, AtomicU64); RECENT_PATH_COUNT],
    /// Scopes of what was noted, by this drawing or earlier ones of the thread.
    scopes: [OnceLock<Box<str>>; RECENT_SCOPE_COUNT],
    /// Which of them hold what this drawing noted, a bit each.
    used_scopes: AtomicU64,
    /// Addresses of what the notes hold.
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
    /// Returns the two places of a path: the one that its hash gives it, and the one beside that.
    fn slots_of(hash: u64) -> [usize; 2] {
        let at = hash as usize % RECENT_PATH_COUNT;
        [at, at ^ 1]
    }

    fn is_slot_filled(&self, at: usize) -> bool {
        let word = self.filled_slots.get(at / u64::BITS as usize);
        word.is_some_and(|word| word.load(Relaxed) >> (at % u64::BITS as usize) & 1 == 1)
    }

    /// Adds to what is at hand of a path; tells whether anything is.
    fn merge_into_existing(&self, hash: u64, aspects: PathAspects) -> bool {
        for at in Self::slots_of(hash) {
            let Some((known, noted)) = self.paths.get(at) else { continue };
            if known.load(Relaxed) == hash && self.is_slot_filled(at) {
                let before = noted.load(Relaxed);
                if !PathAspects::from_bits(before).contains(aspects) {
                    noted.store(before | aspects.bits(), Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Returns what has to make room for a path: nothing if one of its places is free.
    fn eviction_candidate(&self, hash: u64) -> Option<PathDependency> {
        let places = Self::slots_of(hash);
        if !places.iter().all(|at| self.is_slot_filled(*at)) {
            return None;
        }
        let [at, _] = places;
        self.paths.get(at).map(|(known, noted)| {
            (known.load(Relaxed), PathAspects::from_bits(noted.load(Relaxed)))
        })
    }

    /// Puts a path that is not at hand into its free place, or into its own.
    fn insert(&self, hash: u64, aspects: PathAspects) {
        let [own, beside] = Self::slots_of(hash);
        let at =
            if self.is_slot_filled(own) && !self.is_slot_filled(beside) { beside } else { own };
        let Some((known, noted)) = self.paths.get(at) else { return };
        known.store(hash, Relaxed);
        noted.store(aspects.bits(), Relaxed);
        if let Some(word) = self.filled_slots.get(at / u64::BITS as usize) {
            word.store(word.load(Relaxed) | 1 << (at % u64::BITS as usize), Relaxed);
        }
    }

    /// Notes the scope of a path, if there is room. Tells whether a scope is at hand that holds it.
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

    /// Returns the scopes that hold what this drawing noted by what is at hand.
    fn used_scopes(&self) -> impl Iterator<Item = &str> {
        let used = self.used_scopes.load(Relaxed);
        let all = self.scopes.iter().enumerate();
        all.filter(move |(at, _)| used & 1 << at != 0)
            .filter_map(|(_, scope)| Some(&**scope.get()?))
    }

    /// Returns how many paths are at hand.
    fn path_count(&self) -> usize {
        self.filled_slots.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// Returns the paths that are at hand, by their places.
    fn path_dependencies(&self) -> impl Iterator<Item = PathDependency> {
        let words =
            self.filled_slots.iter().zip(self.paths.as_chunks::<{ u64::BITS as usize }>().0);
        words.flat_map(|(word, paths)| {
            let mut left = word.load(Relaxed);
            std::iter::from_fn(move || {
                let (hash, noted) = paths.get(left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some((hash.load(Relaxed), PathAspects::from_bits(noted.load(Relaxed))))
            })
        })
    }

    fn address_slot(&self, address: usize) -> Option<&AtomicUsize> {
        // Whatever is shared begins behind two counts of eight bytes.
        self.addresses.get(address / 16 % RECENT_ADDRESS_COUNT)
    }

    /// Tells whether what lies at an address was noted.
    fn has_address(&self, address: usize) -> bool {
        self.address_slot(address).is_some_and(|known| known.load(Relaxed) == address)
    }

    fn insert_address(&self, address: usize) {
        if let Some(known) = self.address_slot(address) {
            known.store(address, Relaxed);
        }
    }

    /// Forgets everything before another drawing. Scopes stay as long as there is room for others.
    fn clear(&mut self) {
        self.clear_paths();
        *self.used_scopes.get_mut() = 0;
        if self.scopes.iter().all(|scope| scope.get().is_some()) {
            self.scopes.iter_mut().for_each(|scope| drop(scope.take()));
        }
    }

    /// Forgets all but the scopes: what another component noted says nothing about this one.
    fn clear_paths(&self) {
        self.filled_slots.iter().for_each(|word| word.store(0, Relaxed));
        self.addresses.iter().for_each(|part| part.store(0, Relaxed));
    }
}

/// Returns a number that no other living thread has.
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
    fn what_is_at_hand_grows_until_it_makes_room() {
        let hand = RecentDependencies::default();
        assert!(!hand.merge_into_existing(7, PathAspects::NAVIGATION_HEAD));
        hand.insert(7, PathAspects::NAVIGATION_HEAD);
        assert!(hand.merge_into_existing(7, PathAspects::MODIFIED_DATE));
        let both = PathAspects::NAVIGATION_HEAD.combine(PathAspects::MODIFIED_DATE);
        assert_eq!(hand.path_dependencies().collect::<Vec<_>>(), [(7, both)]);
        // One at the same place goes beside it, and another one takes it.
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
    fn scopes_are_noted_whether_there_is_room_at_hand_or_not() {
        let (notepad, mut plain) = (DependencyRecorder::default(), DependencyLog::default());
        // So many paths that the scopes stand for them.
        for number in 0..=DependencySet::MAX_PATHS {
            let path = format!("/content/s{}/p{number}", number % (2 * RECENT_SCOPE_COUNT));
            notepad.record(&path, PathAspects::NAVIGATION_HEAD);
            plain.record(&path, PathAspects::NAVIGATION_HEAD);
        }
        let read = notepad.component_dependencies();
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
            let notepad = DependencyRecorder::acquire();
            // A scope of its own each time, and more than there is room for.
            for number in 0..=RECENT_SCOPE_COUNT {
                notepad
                    .record(&format!("/content/r{round}-{number}/a"), PathAspects::NAVIGATION_HEAD);
            }
            let begun = notepad.begin_component();
            for number in 0..=DependencySet::MAX_PATHS {
                notepad
                    .record(&format!("/content/r{round}/p{number}"), PathAspects::NAVIGATION_HEAD);
            }
            notepad.record_script(&"/apps/a/a.html".into());
            notepad.end_component_detached(begun);
            notepad.begin_component();
            let (noted, listings, kept) = notepad.take_all();
            assert!(listings.is_empty() && kept.is_empty());
            let read = noted.dependencies(&[]);
            let others = (0..3).filter(|other| *other != round);
            for scope in others.map(|other| format!("/content/r{other}")) {
                assert!(read.aspects_with_scopes(hash_path_text(&scope)).is_empty(), "{scope}");
            }
            let scope = hash_path_text(&format!("/content/r{round}"));
            assert_eq!(read.aspects_with_scopes(scope), PathAspects::SUBTREE);
            // What is left over when a drawing fails is gone, too.
            notepad.record("/content/left", PathAspects::NAVIGATION_HEAD);
            DependencyRecorder::release(notepad);
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
        let notepad = DependencyRecorder::default();
        notepad.record("/content/a", PathAspects::NAVIGATION_HEAD);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(notepad.own_recent().is_none());
                notepad.record("/content/a", PathAspects::MODIFIED_DATE);
                notepad.record("/content/b", PathAspects::NAVIGATION_HEAD);
                // It sees what is at hand, and takes it from nobody.
                assert!(
                    !notepad
                        .component_dependencies()
                        .aspects_with_scopes(hash_path_text("/content/a"))
                        .is_empty()
                );
                assert_eq!(notepad.recent.path_count(), 1);
            });
            other.join().unwrap();
        });
        notepad.record("/content/b", PathAspects::MODIFIED_DATE);
        let both = PathAspects::NAVIGATION_HEAD.combine(PathAspects::MODIFIED_DATE);
        let read = notepad.component_dependencies();
        assert_eq!(read.aspects_with_scopes(hash_path_text("/content/a")), both);
        assert_eq!(read.aspects_with_scopes(hash_path_text("/content/b")), both);
    }

    /// What a drawing does.
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
        /// With what is at hand and without, each component has the same, and so has the whole drawing.
        #[test]
        fn what_is_at_hand_is_left_out_nowhere(acts in prop::collection::vec(act(), 0..400)) {
            let aspects = [PathAspects::EXISTENCE, PathAspects::NAVIGATION_HEAD, PathAspects::property("text")];
            let (notepad, mut plain) = (DependencyRecorder::default(), DependencyLog::default());
            let scripts: Vec<Arc<str>> =
                (0..20).map(|number| format!("/apps/c{number}/c.html").into()).collect();
            let places: Vec<Arc<[u64]>> = (0..20_u64).map(|one| [one + 1, 99].into()).collect();
            let mut open = Vec::new();
            for act in acts {
                match act {
                    RecorderTestOperation::Record(number, bit) => {
                        let (path, aspects) = (format!("/content/site/p{number}"), aspects[usize::from(bit)]);
                        notepad.record(&path, aspects);
                        plain.record(&path, aspects);
                    }
                    RecorderTestOperation::RecordChild(number) => {
                        let (parent, name) = (NodePath::new("/content/site").unwrap(), format!("p{number}"));
                        notepad.record_child(&parent, &name, PathAspects::MODIFIED_DATE);
                        plain.record_child(&parent, &name, PathAspects::MODIFIED_DATE);
                    }
                    RecorderTestOperation::RecordScript(number) => {
                        notepad.record_script(&scripts[usize::from(number)]);
                        plain.record_script(&scripts[usize::from(number)]);
                    }
                    RecorderTestOperation::RecordScriptFolders(number) => {
                        notepad.record_script_folders(Arc::clone(&places[usize::from(number)]));
                        plain.record_script_folders(Arc::clone(&places[usize::from(number)]));
                    }
                    RecorderTestOperation::Begin => open.push((notepad.begin_component(), plain.begin_component())),
                    RecorderTestOperation::End | RecorderTestOperation::EndDetached => {
                        let Some((outer, plainly)) = open.pop() else { continue };
                        prop_assert_eq!(notepad.component_dependencies(), plain.component_dependencies());
                        if matches!(act, RecorderTestOperation::End) {
                            notepad.end_component(outer);
                            plain.end_component(plainly);
                        } else {
                            notepad.end_component_detached(outer);
                            plain.end_component_detached(plainly);
                        }
                    }
                }
                prop_assert_eq!(notepad.component_dependencies(), plain.component_dependencies());
            }
            let ((noted, ..), (plainly, ..)) = (notepad.take_all(), plain.take_all());
            prop_assert_eq!(noted.dependencies(&[]), plainly.dependencies(&[]));
        }
    }
}
