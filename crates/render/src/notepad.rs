//! Where a drawing notes what it reads. Most of it was noted a moment before, and to find that out takes no lock, which would
//! cost more than all the rest.
//!
//! In: reads, as they happen. Out: [`Notes`] of them.
//!
//! Invariants
//! * What the memo holds is in the notes of the component that is drawn now.
//! * One thread reads and writes the memo, the one that began the drawing: what it finds in two steps belongs together. What
//!   another one reads for the drawing goes to the notes.
//!
//! Not here: what notes are ([`crate::noted`]) and which reads there are ([`crate::reads`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use parking_lot::Mutex;
use tympan_content::NodePath;

use crate::dependency::{Aspects, Dependencies, hash_text};
use crate::listing::Listing;
use crate::noted::{Begin, Noted, Notes};

/// How many paths the memo tells apart: a bit each of a number.
const PATHS: usize = u64::BITS as usize;
/// How many scripts, and lists of folders, the memo tells apart.
const PARTS: usize = 16;

/// What one drawing notes.
#[derive(Debug)]
pub(crate) struct Notepad {
    /// The thread that uses the memo.
    owner: usize,
    memo: Memo,
    notes: Mutex<Notes>,
}

impl Default for Notepad {
    fn default() -> Self {
        Self { owner: this_thread(), memo: Memo::default(), notes: Mutex::default() }
    }
}

impl Notepad {
    /// Notes something about a path.
    pub(crate) fn add(&self, path: &str, aspects: Aspects) {
        let hash = hash_text(path);
        let memo = self.own_memo();
        if memo.is_some_and(|memo| memo.has(hash, aspects)) {
            return;
        }
        self.notes.lock().add_hashed(path, hash, aspects);
        if let Some(memo) = memo {
            memo.put(hash, aspects);
        }
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
        let memo = self.own_memo();
        if memo.is_some_and(|memo| memo.has_part(part)) {
            return;
        }
        add(&mut self.notes.lock());
        if let Some(memo) = memo {
            memo.put_part(part);
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
        self.memo.forget();
        self.notes.lock().begin()
    }

    /// Ends a component: what it noted counts for the one around it, too.
    pub(crate) fn end(&self, outer: Begin) {
        self.memo.forget();
        self.notes.lock().end(outer);
    }

    /// Ends a component and sets aside what it noted.
    pub(crate) fn end_aside(&self, outer: Begin) {
        self.memo.forget();
        self.notes.lock().end_aside(outer);
    }

    /// Tells whether a component is drawn whose notes are looked at for themselves.
    pub(crate) fn is_inside(&self) -> bool {
        self.notes.lock().is_inside()
    }

    /// Returns what was noted since the component began.
    pub(crate) fn of_component(&self) -> Dependencies {
        self.notes.lock().of_component()
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> (Noted, Vec<Arc<Listing>>, Vec<Arc<Dependencies>>) {
        self.memo.forget();
        self.notes.lock().take()
    }

    /// Returns the memo, if this thread uses it.
    fn own_memo(&self) -> Option<&Memo> {
        (self.owner == this_thread()).then_some(&self.memo)
    }
}

/// What was noted lately for the component that is drawn now.
#[derive(Debug)]
struct Memo {
    /// Which of the paths count, a bit each.
    filled: AtomicU64,
    /// Hashes of paths, each at the place that it gives itself, and what was noted of each.
    paths: [(AtomicU64, AtomicU64); PATHS],
    /// Addresses of what the notes hold.
    parts: [AtomicUsize; PARTS],
}

impl Default for Memo {
    fn default() -> Self {
        Self {
            filled: AtomicU64::new(0),
            paths: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; PATHS],
            parts: [const { AtomicUsize::new(0) }; PARTS],
        }
    }
}

impl Memo {
    /// Returns the bit of a path and its place.
    fn place(&self, hash: u64) -> Option<(u64, &(AtomicU64, AtomicU64))> {
        let at = hash as usize % PATHS;
        Some((1 << at, self.paths.get(at)?))
    }

    /// Tells whether all of this was noted of a path.
    fn has(&self, hash: u64, aspects: Aspects) -> bool {
        self.place(hash).is_some_and(|(bit, (known, noted))| {
            self.filled.load(Relaxed) & bit != 0
                && known.load(Relaxed) == hash
                && Aspects::of_bits(noted.load(Relaxed)).holds(aspects)
        })
    }

    fn put(&self, hash: u64, aspects: Aspects) {
        let Some((bit, (known, noted))) = self.place(hash) else { return };
        let filled = self.filled.load(Relaxed);
        let is_known = filled & bit != 0 && known.load(Relaxed) == hash;
        let before = if is_known { noted.load(Relaxed) } else { 0 };
        known.store(hash, Relaxed);
        noted.store(before | aspects.bits(), Relaxed);
        self.filled.store(filled | bit, Relaxed);
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

    /// Forgets everything: what another component noted says nothing about this one.
    fn forget(&self) {
        self.filled.store(0, Relaxed);
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
    fn what_was_noted_is_found_until_a_component_begins_or_ends() {
        let memo = Memo::default();
        assert!(!memo.has(7, Aspects::HEAD));
        memo.put(7, Aspects::HEAD);
        memo.put(7, Aspects::DATE);
        assert!(memo.has(7, Aspects::HEAD.and(Aspects::DATE)) && !memo.has(7, Aspects::EXISTENCE));
        // One at the same place takes it.
        let other = 7 + PATHS as u64;
        assert!(!memo.has(other, Aspects::HEAD));
        memo.put(other, Aspects::EXISTENCE);
        assert!(memo.has(other, Aspects::EXISTENCE) && !memo.has(other, Aspects::HEAD));
        assert!(!memo.has(7, Aspects::HEAD));
        memo.put_part(48);
        assert!(memo.has_part(48) && !memo.has_part(48 + 16 * PARTS));
        memo.forget();
        assert!(!memo.has(other, Aspects::EXISTENCE) && !memo.has_part(48));
        memo.put(other, Aspects::DATE);
        assert!(!memo.has(other, Aspects::EXISTENCE), "it was of an earlier component");
    }

    #[test]
    fn another_thread_notes_without_the_memo() {
        let notepad = Notepad::default();
        notepad.add("/content/a", Aspects::HEAD);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                assert!(notepad.own_memo().is_none());
                notepad.add("/content/a", Aspects::DATE);
                notepad.add("/content/b", Aspects::HEAD);
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
        Add(u8, u8),
        AddChild(u8),
        AddScript(u8),
        AddPlaces(u8),
        Begin,
        End,
        EndAside,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            8 => (0..90_u8, 0..3_u8).prop_map(|(number, bit)| Act::Add(number, bit)),
            2 => (0..90_u8).prop_map(Act::AddChild),
            2 => (0..20_u8).prop_map(Act::AddScript),
            2 => (0..20_u8).prop_map(Act::AddPlaces),
            1 => Just(Act::Begin),
            1 => Just(Act::End),
            1 => Just(Act::EndAside),
        ]
    }

    proptest! {
        /// With the memo and without, each component has the same, and so has the whole drawing.
        #[test]
        fn the_memo_leaves_nothing_out(acts in prop::collection::vec(act(), 0..400)) {
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
