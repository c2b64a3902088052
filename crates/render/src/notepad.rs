//! Where a drawing notes what it reads: at hand what was read lately, which takes no lock, and the rest behind one, which would
//! cost more than all else.
//!
//! In: reads, as they happen. Out: [`Notes`] of them.
//!
//! Invariants
//! * What was noted is at hand or in the notes; what is at hand is about the component that is drawn now.
//! * One thread writes what is at hand, the one that began the drawing. Another one notes past it; where it asks for the notes,
//!   it leaves what is at hand where it is, so that nothing is lost and something may be told twice.
//!
//! Not here: what notes are ([`crate::noted`]) and which reads there are ([`crate::reads`]).

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use tympan_content::NodePath;

use crate::dependency::{Aspects, Dependencies, Dependency, hash_text};
use crate::listing::Listing;
use crate::noted::{Begin, Noted, Notes, is_within, scope_of};

thread_local! {
    /// What the last drawing of a thread noted in, empty. To make one is as dear as many notes: it is large.
    static SPARE: Cell<Option<Box<Notepad>>> = const { Cell::new(None) };
}

/// How many paths are at hand: a bit each of some words.
const PATHS: usize = WORDS * u64::BITS as usize;
const WORDS: usize = 4;
/// How many scopes are at hand: what a page reads lies in a few.
const SCOPES: usize = 8;
/// How many scripts, and lists of folders, are told apart.
const PARTS: usize = 64;

/// What one drawing notes.
#[derive(Debug)]
pub(crate) struct Notepad {
    /// The thread that writes what is at hand.
    owner: usize,
    hand: Hand,
    notes: Mutex<Notes>,
}

impl Default for Notepad {
    fn default() -> Self {
        Self { owner: this_thread(), hand: Hand::default(), notes: Mutex::default() }
    }
}

impl Notepad {
    /// Returns an empty notepad that this thread writes; [`Notepad::give_back`] takes it when the drawing is over.
    pub(crate) fn take_up() -> Box<Self> {
        // Where a thread ends, its own is gone already.
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut notepad = spare.unwrap_or_default();
        notepad.owner = this_thread();
        notepad
    }

    /// Empties a notepad for the next drawing of this thread. The scopes that are at hand stay: they count once something lies
    /// in them.
    pub(crate) fn give_back(mut notepad: Box<Self>) {
        notepad.hand.clear();
        notepad.notes.get_mut().clear();
        SPARE.try_with(|spare| spare.set(Some(notepad))).ok();
    }

    /// Notes something about a path.
    pub(crate) fn add(&self, path: &str, aspects: Aspects) {
        let hash = hash_text(path);
        let Some(hand) = self.own_hand() else {
            self.notes.lock().add_hashed(path, hash, aspects);
            return;
        };
        if hand.add_to_known(hash, aspects) {
            return;
        }
        if !hand.cover(path) {
            self.notes.lock().cover(path);
        }
        if let Some((hash, aspects)) = hand.next_out(hash) {
            // Before it is gone, as another thread may ask.
            self.notes.lock().add_program(hash, aspects);
        }
        hand.put(hash, aspects);
    }

    /// Notes something about a child, by a name that perhaps no node can have.
    pub(crate) fn add_child(&self, parent: &NodePath, name: &str, aspects: Aspects) {
        self.notes.lock().add_child(parent, name, aspects);
    }

    /// Notes something about children of a node.
    pub(crate) fn add_children<'a>(
        &self,
        parent: &NodePath,
        children: impl ExactSizeIterator<Item = &'a str>,
        aspects: Aspects,
    ) {
        self.notes.lock().add_children(parent, children, aspects);
    }

    /// Notes something about what a script is or where scripts lie.
    pub(crate) fn add_program(&self, hash: u64, aspects: Aspects) {
        self.notes.lock().add_program(hash, aspects);
    }

    /// Notes that scripts were looked for in the folders with these hashes.
    pub(crate) fn add_places(&self, folders: Arc<[u64]>) {
        let part = folders.as_ptr().addr();
        self.add_part(part, |notes| notes.add_places(folders));
    }

    /// Notes that a script was run, with all that lies below it.
    pub(crate) fn add_script(&self, script: &Arc<str>) {
        self.add_part(script.as_ptr().addr(), |notes| notes.add_script(script));
    }

    /// Notes what lies at an address, which the notes hold from then on, so that nothing else comes to lie there.
    fn add_part(&self, part: usize, add: impl FnOnce(&mut Notes)) {
        let hand = self.own_hand();
        if hand.is_some_and(|hand| hand.has_part(part)) {
            return;
        }
        add(&mut self.notes.lock());
        if let Some(hand) = hand {
            hand.put_part(part);
        }
    }

    /// Adds what was read for a kept fragment.
    pub(crate) fn add_kept(&self, read: Arc<Dependencies>) {
        self.notes.lock().add_kept(read);
    }

    /// Notes a list, which stands for all that was read for it.
    pub(crate) fn add_list(&self, listing: Listing) {
        self.notes.lock().add_list(listing);
    }

    /// Begins a component; [`Notepad::end`] takes what this returns.
    pub(crate) fn begin(&self) -> Begin {
        self.whole().begin()
    }

    /// Ends a component: what it noted counts for the one around it, too.
    pub(crate) fn end(&self, outer: Begin) {
        self.whole().end(outer);
    }

    /// Ends a component and sets aside what it noted.
    pub(crate) fn end_aside(&self, outer: Begin) {
        self.whole().end_aside(outer);
    }

    /// Tells whether a component is drawn whose notes are looked at for themselves.
    pub(crate) fn is_inside(&self) -> bool {
        self.notes.lock().is_inside()
    }

    /// Returns what was noted since the component began.
    pub(crate) fn of_component(&self) -> Dependencies {
        self.whole().of_component()
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> (Noted, Vec<Arc<Listing>>, Vec<Arc<Dependencies>>) {
        self.whole().take()
    }

    /// Returns what is at hand, if this thread writes it.
    fn own_hand(&self) -> Option<&Hand> {
        (self.owner == this_thread()).then_some(&self.hand)
    }

    /// Returns the notes with all that is at hand. What one component noted is at hand for no other one.
    fn whole(&self) -> MutexGuard<'_, Notes> {
        let mut notes = self.notes.lock();
        notes.add_all((self.hand.count(), self.hand.pairs()), self.hand.scopes());
        if let Some(hand) = self.own_hand() {
            hand.forget();
        }
        notes
    }
}

/// What was noted lately for the component that is drawn now.
#[derive(Debug)]
struct Hand {
    /// Which of the paths count, a bit each.
    filled: [AtomicU64; WORDS],
    /// Hashes of paths, each at the place that it gives itself or beside it, and what was noted of each.
    paths: [(AtomicU64, AtomicU64); PATHS],
    /// Scopes of what was noted, by this drawing or earlier ones of the thread.
    scopes: [OnceLock<Box<str>>; SCOPES],
    /// Which of them hold what this drawing noted, a bit each.
    used: AtomicU64,
    /// Addresses of what the notes hold.
    parts: [AtomicUsize; PARTS],
}

impl Default for Hand {
    fn default() -> Self {
        Self {
            filled: [const { AtomicU64::new(0) }; WORDS],
            paths: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; PATHS],
            scopes: [const { OnceLock::new() }; SCOPES],
            used: AtomicU64::new(0),
            parts: [const { AtomicUsize::new(0) }; PARTS],
        }
    }
}

impl Hand {
    /// Returns the two places of a path: the one that its hash gives it, and the one beside that.
    fn places(hash: u64) -> [usize; 2] {
        let at = hash as usize % PATHS;
        [at, at ^ 1]
    }

    fn is_filled(&self, at: usize) -> bool {
        let word = self.filled.get(at / u64::BITS as usize);
        word.is_some_and(|word| word.load(Relaxed) >> (at % u64::BITS as usize) & 1 == 1)
    }

    /// Adds to what is at hand of a path; tells whether anything is.
    fn add_to_known(&self, hash: u64, aspects: Aspects) -> bool {
        for at in Self::places(hash) {
            let Some((known, noted)) = self.paths.get(at) else { continue };
            if known.load(Relaxed) == hash && self.is_filled(at) {
                let before = noted.load(Relaxed);
                if !Aspects::of_bits(before).holds(aspects) {
                    noted.store(before | aspects.bits(), Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Returns what has to make room for a path: nothing if one of its places is free.
    fn next_out(&self, hash: u64) -> Option<Dependency> {
        let places = Self::places(hash);
        if !places.iter().all(|at| self.is_filled(*at)) {
            return None;
        }
        let [at, _] = places;
        self.paths
            .get(at)
            .map(|(known, noted)| (known.load(Relaxed), Aspects::of_bits(noted.load(Relaxed))))
    }

    /// Puts a path that is not at hand into its free place, or into its own.
    fn put(&self, hash: u64, aspects: Aspects) {
        let [own, beside] = Self::places(hash);
        let at = if self.is_filled(own) && !self.is_filled(beside) { beside } else { own };
        let Some((known, noted)) = self.paths.get(at) else { return };
        known.store(hash, Relaxed);
        noted.store(aspects.bits(), Relaxed);
        if let Some(word) = self.filled.get(at / u64::BITS as usize) {
            word.store(word.load(Relaxed) | 1 << (at % u64::BITS as usize), Relaxed);
        }
    }

    /// Notes the scope of a path, if there is room. Tells whether a scope is at hand that holds it.
    fn cover(&self, path: &str) -> bool {
        for (at, scope) in self.scopes.iter().enumerate() {
            if is_within(path, scope.get_or_init(|| scope_of(path).into())) {
                let used = self.used.load(Relaxed);
                if used & 1 << at == 0 {
                    self.used.store(used | 1 << at, Relaxed);
                }
                return true;
            }
        }
        false
    }

    /// Returns the scopes that hold what this drawing noted by what is at hand.
    fn scopes(&self) -> impl Iterator<Item = &str> {
        let used = self.used.load(Relaxed);
        let all = self.scopes.iter().enumerate();
        all.filter(move |(at, _)| used & 1 << at != 0)
            .filter_map(|(_, scope)| Some(&**scope.get()?))
    }

    /// Returns how many paths are at hand.
    fn count(&self) -> usize {
        self.filled.iter().map(|word| word.load(Relaxed).count_ones() as usize).sum()
    }

    /// Returns the paths that are at hand, by their places.
    fn pairs(&self) -> impl Iterator<Item = Dependency> {
        let words = self.filled.iter().zip(self.paths.as_chunks::<{ u64::BITS as usize }>().0);
        words.flat_map(|(word, paths)| {
            let mut left = word.load(Relaxed);
            std::iter::from_fn(move || {
                let (hash, noted) = paths.get(left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some((hash.load(Relaxed), Aspects::of_bits(noted.load(Relaxed))))
            })
        })
    }

    fn part(&self, address: usize) -> Option<&AtomicUsize> {
        // Whatever is shared begins behind two counts of eight bytes.
        self.parts.get(address / 16 % PARTS)
    }

    /// Tells whether what lies at an address was noted.
    fn has_part(&self, address: usize) -> bool {
        self.part(address).is_some_and(|known| known.load(Relaxed) == address)
    }

    fn put_part(&self, address: usize) {
        if let Some(known) = self.part(address) {
            known.store(address, Relaxed);
        }
    }

    /// Forgets everything before another drawing. Scopes stay as long as there is room for others.
    fn clear(&mut self) {
        self.forget();
        *self.used.get_mut() = 0;
        if self.scopes.iter().all(|scope| scope.get().is_some()) {
            self.scopes.iter_mut().for_each(|scope| drop(scope.take()));
        }
    }

    /// Forgets all but the scopes: what another component noted says nothing about this one.
    fn forget(&self) {
        self.filled.iter().for_each(|word| word.store(0, Relaxed));
        self.parts.iter().for_each(|part| part.store(0, Relaxed));
    }
}

/// Returns a number that no other living thread has.
fn this_thread() -> usize {
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
        let hand = Hand::default();
        assert!(!hand.add_to_known(7, Aspects::HEAD));
        hand.put(7, Aspects::HEAD);
        assert!(hand.add_to_known(7, Aspects::DATE));
        let both = Aspects::HEAD.and(Aspects::DATE);
        assert_eq!(hand.pairs().collect::<Vec<_>>(), [(7, both)]);
        // One at the same place goes beside it, and another one takes it.
        let [second, third] = [1, 2].map(|turn| 7 + turn * PATHS as u64);
        assert_eq!(hand.next_out(second), None);
        hand.put(second, Aspects::EXISTENCE);
        assert!(hand.add_to_known(7, Aspects::HEAD) && hand.add_to_known(second, Aspects::DATE));
        assert_eq!(hand.next_out(third), Some((7, both)));
        hand.put(third, Aspects::HEAD);
        assert!(!hand.add_to_known(7, Aspects::HEAD));
        assert_eq!(hand.count(), 2);
        hand.put_part(48);
        assert!(hand.has_part(48) && !hand.has_part(48 + 16 * PARTS));
        hand.forget();
        assert!(!hand.add_to_known(second, Aspects::EXISTENCE) && !hand.has_part(48));
        assert_eq!((hand.count(), hand.pairs().count()), (0, 0));
        for hash in 1..=PATHS as u64 {
            assert_eq!(hand.next_out(hash), None);
            hand.put(hash, Aspects::HEAD);
        }
        assert_eq!((hand.count(), hand.pairs().count()), (PATHS, PATHS));
    }

    #[test]
    fn scopes_are_noted_whether_there_is_room_at_hand_or_not() {
        let (notepad, mut plain) = (Notepad::default(), Notes::default());
        // So many paths that the scopes stand for them.
        for number in 0..=Dependencies::MAX {
            let path = format!("/content/s{}/p{number}", number % (2 * SCOPES));
            notepad.add(&path, Aspects::HEAD);
            plain.add(&path, Aspects::HEAD);
        }
        let read = notepad.of_component();
        assert_eq!(read, plain.of_component());
        for scope in 0..2 * SCOPES {
            let path = format!("/content/s{scope}");
            assert_eq!(read.aspects_of(hash_text(&path)), Aspects::BELOW, "{path}");
        }
    }

    #[test]
    fn a_notepad_that_is_taken_up_again_is_empty() {
        for round in 0..3 {
            let notepad = Notepad::take_up();
            // A scope of its own each time, and more than there is room for.
            for number in 0..=SCOPES {
                notepad.add(&format!("/content/r{round}-{number}/a"), Aspects::HEAD);
            }
            let begun = notepad.begin();
            for number in 0..=Dependencies::MAX {
                notepad.add(&format!("/content/r{round}/p{number}"), Aspects::HEAD);
            }
            notepad.add_script(&"/apps/a/a.html".into());
            notepad.end_aside(begun);
            notepad.begin();
            let (noted, listings, kept) = notepad.take();
            assert!(listings.is_empty() && kept.is_empty());
            let read = noted.dependencies(&[]);
            let others = (0..3).filter(|other| *other != round);
            for scope in others.map(|other| format!("/content/r{other}")) {
                assert!(read.aspects_of(hash_text(&scope)).is_empty(), "{scope}");
            }
            let scope = hash_text(&format!("/content/r{round}"));
            assert_eq!(read.aspects_of(scope), Aspects::BELOW);
            // What is left over when a drawing fails is gone, too.
            notepad.add("/content/left", Aspects::HEAD);
            Notepad::give_back(notepad);
            let again = Notepad::take_up();
            assert!(again.of_component().is_empty() && !again.is_inside());
            again.add("/content/left", Aspects::DATE);
            assert_eq!(again.of_component(), {
                let mut plain = Notes::default();
                plain.add("/content/left", Aspects::DATE);
                plain.of_component()
            });
            Notepad::give_back(again);
        }
    }

    #[test]
    fn another_thread_notes_past_what_is_at_hand() {
        let notepad = Notepad::default();
        notepad.add("/content/a", Aspects::HEAD);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(notepad.own_hand().is_none());
                notepad.add("/content/a", Aspects::DATE);
                notepad.add("/content/b", Aspects::HEAD);
                // It sees what is at hand, and takes it from nobody.
                assert!(!notepad.of_component().aspects_of(hash_text("/content/a")).is_empty());
                assert_eq!(notepad.hand.count(), 1);
            });
            other.join().unwrap();
        });
        notepad.add("/content/b", Aspects::DATE);
        let both = Aspects::HEAD.and(Aspects::DATE);
        let read = notepad.of_component();
        assert_eq!(read.aspects_of(hash_text("/content/a")), both);
        assert_eq!(read.aspects_of(hash_text("/content/b")), both);
    }

    /// What a drawing does.
    #[derive(Debug, Clone)]
    enum Act {
        Add(u16, u8),
        AddChild(u16),
        AddScript(u8),
        AddPlaces(u8),
        Begin,
        End,
        EndAside,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            8 => (0..600_u16, 0..3_u8).prop_map(|(number, bit)| Act::Add(number, bit)),
            2 => (0..600_u16).prop_map(Act::AddChild),
            2 => (0..20_u8).prop_map(Act::AddScript),
            2 => (0..20_u8).prop_map(Act::AddPlaces),
            1 => Just(Act::Begin),
            1 => Just(Act::End),
            1 => Just(Act::EndAside),
        ]
    }

    proptest! {
        /// With what is at hand and without, each component has the same, and so has the whole drawing.
        #[test]
        fn what_is_at_hand_is_left_out_nowhere(acts in prop::collection::vec(act(), 0..400)) {
            let aspects = [Aspects::EXISTENCE, Aspects::HEAD, Aspects::property("text")];
            let (notepad, mut plain) = (Notepad::default(), Notes::default());
            let scripts: Vec<Arc<str>> =
                (0..20).map(|number| format!("/apps/c{number}/c.html").into()).collect();
            let places: Vec<Arc<[u64]>> = (0..20_u64).map(|one| [one + 1, 99].into()).collect();
            let mut open = Vec::new();
            for act in acts {
                match act {
                    Act::Add(number, bit) => {
                        let (path, aspects) = (format!("/content/site/p{number}"), aspects[usize::from(bit)]);
                        notepad.add(&path, aspects);
                        plain.add(&path, aspects);
                    }
                    Act::AddChild(number) => {
                        let (parent, name) = (NodePath::new("/content/site").unwrap(), format!("p{number}"));
                        notepad.add_child(&parent, &name, Aspects::DATE);
                        plain.add_child(&parent, &name, Aspects::DATE);
                    }
                    Act::AddScript(number) => {
                        notepad.add_script(&scripts[usize::from(number)]);
                        plain.add_script(&scripts[usize::from(number)]);
                    }
                    Act::AddPlaces(number) => {
                        notepad.add_places(Arc::clone(&places[usize::from(number)]));
                        plain.add_places(Arc::clone(&places[usize::from(number)]));
                    }
                    Act::Begin => open.push((notepad.begin(), plain.begin())),
                    Act::End | Act::EndAside => {
                        let Some((outer, plainly)) = open.pop() else { continue };
                        prop_assert_eq!(notepad.of_component(), plain.of_component());
                        if matches!(act, Act::End) {
                            notepad.end(outer);
                            plain.end(plainly);
                        } else {
                            notepad.end_aside(outer);
                            plain.end_aside(plainly);
                        }
                    }
                }
                prop_assert_eq!(notepad.of_component(), plain.of_component());
            }
            let ((noted, ..), (plainly, ..)) = (notepad.take(), plain.take());
            prop_assert_eq!(noted.dependencies(&[]), plainly.dependencies(&[]));
        }
    }
}
