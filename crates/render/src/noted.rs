//! What a drawing has read so far, as hashes of paths: a note costs a few instructions and no allocation.
//!
//! In: texts of paths and aspects, as they are read. Out: [`Dependencies`], of the whole drawing or of the component that
//! is drawn now.
//!
//! Invariants
//! * What was noted is in the set that comes out, or the subtree that holds it is.
//! * What an outer component noted does not stand for a note of an inner one, nor the other way round where the inner one is
//!   set aside: each is kept for itself.
//!
//! Not here: which reads there are ([`crate::reads`]).

use std::sync::Arc;

use tympan_content::NodePath;

use crate::dependency::{Aspects, Dependencies, Dependency, Digest, hash_text};
use crate::listing::Listing;

/// The places in which notes are found again; a power of two.
const SLOTS: usize = 128;

/// Room for the notes of a drawing that reads little, and of one that reads much.
const FEW: usize = 60;
const MANY: usize = 600;

/// Where components live: the scopes of what is noted of scripts.
const PROGRAMS: [&str; 2] = ["/apps", "/libs"];

/// Notes in the order of reading. A path may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Noted {
    pairs: Vec<Dependency>,
    /// The subtrees that hold everything that was noted by its path, should it be too much.
    scopes: Vec<Box<str>>,
}

impl Noted {
    /// Adds a note without looking for an earlier one.
    pub(crate) fn add(&mut self, path: &str, aspects: Aspects) {
        self.push(path, hash_text(path), aspects);
    }

    fn push(&mut self, path: &str, hash: u64, aspects: Aspects) {
        self.pairs.push((hash, aspects));
        self.cover(path);
    }

    /// Notes the scope of a path.
    fn cover(&mut self, path: &str) {
        if !self.scopes.iter().any(|scope| is_within(path, scope)) {
            self.scopes.push(scope_of(path).into());
        }
    }

    /// Returns what was noted, with lists.
    pub(crate) fn dependencies(&self, listings: &[Arc<Listing>]) -> Dependencies {
        self.since(0, listings)
    }

    /// Digests the notes in their order.
    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.add_all(&self.pairs);
    }

    /// Returns what was noted from a place on, with lists.
    fn since(&self, begin: usize, listings: &[Arc<Listing>]) -> Dependencies {
        let pairs = self.pairs.iter().skip(begin).copied();
        let set = Dependencies::of_parts(pairs, listings.iter().cloned());
        if set.count_paths() <= Dependencies::MAX {
            return set;
        }
        let scopes = self.scopes.iter().map(|scope| &**scope).chain(PROGRAMS);
        let pairs = scopes.map(|scope| (hash_text(scope), Aspects::BELOW));
        Dependencies::of_parts(pairs, listings.iter().cloned())
    }
}

/// How many names a scope has at most.
const SCOPE_NAMES: usize = 2;

/// Returns the scope of a site that a path lies in: `/content/site`, `/content/dam`, `/home/users`.
pub(crate) fn scope_of(path: &str) -> &str {
    let slashes = path.match_indices('/');
    let end = slashes.map(|(at, _)| at).nth(SCOPE_NAMES).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

/// Tells whether a path lies at or below a scope.
#[inline]
pub(crate) fn is_within(path: &str, scope: &str) -> bool {
    let (path, scope) = (path.as_bytes(), scope.as_bytes());
    let Some((begin, rest)) = path.split_at_checked(scope.len()) else { return false };
    matches!(rest.first(), None | Some(b'/')) && is_same(begin, scope)
}

/// Compares texts of one length. Most are two to four words long, and a call costs more than to compare these.
#[inline]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let ends = |bytes: &[u8]| {
        let (first, last) = (bytes.first_chunk()?, bytes.last_chunk()?);
        Some((u64::from_le_bytes(*first), u64::from_le_bytes(*last)))
    };
    match ends(one) {
        Some(same) if one.len() <= 16 => Some(same) == ends(other),
        Some(same) => Some(same) == ends(other) && one == other,
        None => one == other,
    }
}

/// What a request notes while it is drawn.
#[derive(Debug)]
pub(crate) struct Notes {
    noted: Noted,
    /// For some hashes, which note was the latest about them.
    latest: [u32; SLOTS],
    /// Where scripts were looked for, once for each type.
    places: Vec<Arc<[u64]>>,
    /// The scripts that were run, each once.
    scripts: Vec<Arc<str>>,
    listings: Vec<Arc<Listing>>,
    kept: Vec<Arc<Dependencies>>,
    /// What components noted that were set aside: it counts for the whole drawing alone.
    aside: Aside,
    /// Where the component began that is drawn now.
    begin: Begin,
    /// A child's path while it is hashed.
    path: String,
    /// How many notes there may be, by the drawing before.
    room: usize,
}

/// What counts for the whole drawing, and for no component.
#[derive(Debug, Default)]
struct Aside {
    pairs: Vec<Dependency>,
    listings: Vec<Arc<Listing>>,
    kept: Vec<Arc<Dependencies>>,
}

/// How many notes there were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Begin {
    pairs: usize,
    places: usize,
    scripts: usize,
    listings: usize,
    kept: usize,
    depth: usize,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            noted: Noted::default(),
            latest: [0; SLOTS],
            places: Vec::new(),
            scripts: Vec::new(),
            listings: Vec::new(),
            kept: Vec::new(),
            aside: Aside::default(),
            begin: Begin::default(),
            path: String::new(),
            room: FEW,
        }
    }
}

impl Notes {
    /// Notes something about a path.
    pub(crate) fn add(&mut self, path: &str, aspects: Aspects) {
        self.add_hashed(path, hash_text(path), aspects);
    }

    /// Notes something about a path with a hash.
    pub(crate) fn add_hashed(&mut self, path: &str, hash: u64, aspects: Aspects) {
        if !self.add_to_known(hash, aspects) {
            self.noted.push(path, hash, aspects);
        }
    }

    /// Notes something about a child. A name that no node can have is noted like any other.
    pub(crate) fn add_child(&mut self, parent: &NodePath, name: &str, aspects: Aspects) {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        if !parent.is_root() {
            path.push_str(parent.as_str());
        }
        path.push('/');
        path.push_str(name);
        self.add(&path, aspects);
        self.path = path;
    }

    /// Notes something about children of a node.
    pub(crate) fn add_children<'a>(
        &mut self,
        parent: &NodePath,
        children: impl ExactSizeIterator<Item = &'a str>,
        aspects: Aspects,
    ) {
        if parent.depth() < SCOPE_NAMES {
            children.for_each(|path| self.add(path, aspects));
            return;
        }
        // They lie in the scope of their parent.
        self.noted.cover(parent.as_str());
        self.noted.pairs.reserve(children.len());
        children.for_each(|path| self.add_program(hash_text(path), aspects));
    }

    /// Notes the scope of a path.
    pub(crate) fn cover(&mut self, path: &str) {
        self.noted.cover(path);
    }

    /// Notes all of these, so many, which lie in these scopes.
    pub(crate) fn add_all<'a>(
        &mut self,
        (count, pairs): (usize, impl Iterator<Item = Dependency>),
        scopes: impl Iterator<Item = &'a str>,
    ) {
        self.noted.pairs.reserve(count);
        // That one or another is there already does no harm, and to find out costs more.
        self.noted.pairs.extend(pairs);
        // Of fewer each stands for itself.
        if self.noted.pairs.len() + self.aside.pairs.len() > Dependencies::MAX {
            scopes.for_each(|scope| self.noted.cover(scope));
        }
    }

    /// Forgets everything, and keeps the room for it.
    pub(crate) fn clear(&mut self) {
        let Self { noted, places, scripts, listings, kept, aside, begin, .. } = self;
        // What is latest is looked up among the notes, and found there no more.
        noted.pairs.clear();
        noted.scopes.clear();
        places.clear();
        scripts.clear();
        listings.clear();
        kept.clear();
        *aside = Aside::default();
        *begin = Begin::default();
    }

    /// Notes something about what a script is or where scripts lie.
    pub(crate) fn add_program(&mut self, hash: u64, aspects: Aspects) {
        if !self.add_to_known(hash, aspects) {
            if self.noted.pairs.capacity() == 0 {
                self.noted.pairs.reserve(self.room);
            }
            self.noted.pairs.push((hash, aspects));
        }
    }

    /// Notes that scripts were looked for in these folders.
    pub(crate) fn add_places(&mut self, folders: Arc<[u64]>) {
        // A page draws many components of few types.
        let known = self.places.get(self.begin.places..).unwrap_or_default();
        if known.iter().any(|known| Arc::ptr_eq(known, &folders)) {
            return;
        }
        folders.iter().for_each(|folder| self.add_program(*folder, Aspects::SCRIPTS));
        self.places.push(folders);
    }

    /// Notes that a script was run, with all that lies below it.
    pub(crate) fn add_script(&mut self, script: &Arc<str>) {
        // A page runs few scripts, some of them often.
        let known = self.scripts.get(self.begin.scripts..).unwrap_or_default();
        if known.iter().any(|known| Arc::ptr_eq(known, script)) {
            return;
        }
        self.add_program(hash_text(script), Aspects::BELOW);
        self.scripts.push(Arc::clone(script));
    }

    /// Adds what was read for a kept fragment.
    pub(crate) fn add_kept(&mut self, read: Arc<Dependencies>) {
        self.kept.push(read);
    }

    /// Adds to what the running component noted of a path lately; tells whether there is such a note.
    fn add_to_known(&mut self, hash: u64, aspects: Aspects) -> bool {
        let next = self.noted.pairs.len();
        let Some(latest) = self.latest.get_mut(hash as usize % SLOTS) else { return false };
        let at = *latest as usize;
        if at >= self.begin.pairs
            && let Some((known, joined)) = self.noted.pairs.get_mut(at)
            && *known == hash
        {
            *joined = joined.and(aspects);
            return true;
        }
        *latest = u32::try_from(next).unwrap_or(u32::MAX);
        false
    }

    /// Begins a component; [`Notes::end`] takes what this returns.
    pub(crate) fn begin(&mut self) -> Begin {
        let outer = self.begin;
        self.begin = Begin {
            pairs: self.noted.pairs.len(),
            places: self.places.len(),
            scripts: self.scripts.len(),
            listings: self.listings.len(),
            kept: self.kept.len(),
            depth: outer.depth + 1,
        };
        outer
    }

    /// Ends a component: what it noted counts for the one around it, too.
    pub(crate) fn end(&mut self, outer: Begin) {
        self.begin = outer;
    }

    /// Ends a component and sets aside what it noted.
    pub(crate) fn end_aside(&mut self, outer: Begin) {
        let Begin { pairs, places, scripts, listings, kept, .. } = self.begin;
        // What follows is noted anew: nothing finds these any more.
        self.aside.pairs.extend(self.noted.pairs.drain(pairs..));
        self.places.truncate(places);
        self.scripts.truncate(scripts);
        self.aside.listings.extend(self.listings.drain(listings..));
        self.aside.kept.extend(self.kept.drain(kept..));
        self.begin = outer;
    }

    /// Notes a list, which stands for all that was read for it.
    pub(crate) fn add_list(&mut self, listing: Listing) {
        let known = self.listings.get(self.begin.listings..).unwrap_or_default();
        if !known.iter().any(|known| **known == listing) {
            self.listings.push(Arc::new(listing));
        }
    }

    /// Tells whether a component is drawn whose notes are looked at for themselves.
    pub(crate) fn is_inside(&self) -> bool {
        self.begin.depth > 0
    }

    /// Returns what was noted since the component began.
    pub(crate) fn of_component(&self) -> Dependencies {
        let listings = self.listings.get(self.begin.listings..).unwrap_or_default();
        let kept = self.kept.get(self.begin.kept..).unwrap_or_default();
        joined(self.noted.since(self.begin.pairs, listings), kept)
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> (Noted, Vec<Arc<Listing>>, Vec<Arc<Dependencies>>) {
        let Self { noted, listings, kept, aside, .. } = self;
        noted.pairs.append(&mut aside.pairs);
        listings.append(&mut aside.listings);
        kept.append(&mut aside.kept);
        self.room = noted.pairs.len().clamp(FEW, MANY);
        (std::mem::take(noted), std::mem::take(listings), std::mem::take(kept))
    }
}

/// Joins what was read with what was read for kept fragments.
pub(crate) fn joined(own: Dependencies, kept: &[Arc<Dependencies>]) -> Dependencies {
    if kept.is_empty() {
        return own;
    }
    Dependencies::join(std::iter::once(&own).chain(kept.iter().map(|one| &**one)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    #[test]
    fn a_child_is_noted_as_its_path_is() {
        let (mut notes, mut other) = (Notes::default(), Notes::default());
        notes.add_child(&path("/content/a"), "b", Aspects::HEAD);
        notes.add_child(&NodePath::root(), "content", Aspects::DATE);
        other.add("/content/a/b", Aspects::HEAD);
        other.add("/content", Aspects::DATE);
        assert_eq!(notes.of_component(), other.of_component());
    }

    #[test]
    fn children_are_noted_as_their_paths_are() {
        for parent in ["/", "/content", "/content/site", "/content/site/en"] {
            let (mut notes, mut other) = (Notes::default(), Notes::default());
            let children: Vec<NodePath> =
                ["a", "b", "c"].map(|name| path(parent).child(name).unwrap()).into();
            let paths = children.iter().chain(children.first()).map(NodePath::as_str);
            paths.clone().for_each(|path| other.add(path, Aspects::HEAD));
            let all: Vec<&str> = paths.collect();
            notes.add_children(&path(parent), all.into_iter(), Aspects::HEAD);
            assert_eq!(notes.of_component(), other.of_component(), "{parent}");
            assert_eq!(notes.noted, other.noted, "{parent}");
        }
    }

    #[test]
    fn an_inner_component_has_its_own_notes() {
        let mut notes = Notes::default();
        notes.add("/a", Aspects::HEAD);
        let outer = notes.begin();
        assert!(notes.is_inside() && notes.of_component().is_empty());
        notes.add("/a", Aspects::HEAD);
        notes.add("/b", Aspects::HEAD);
        assert_eq!(notes.of_component().len(), 2);
        notes.end(outer);
        notes.add("/b", Aspects::DATE);
        let all = notes.of_component();
        assert_eq!(all.len(), 2);
        assert!(all.aspects_of(hash_text("/b")).holds(Aspects::HEAD.and(Aspects::DATE)));
    }

    #[test]
    fn too_many_paths_become_their_subtrees() {
        let mut notes = Notes::default();
        for number in 0..=Dependencies::MAX {
            notes.add(&format!("/content/site/en/p{number}"), Aspects::HEAD);
        }
        notes.add("/content", Aspects::EXISTENCE);
        notes.add_program(hash_text("/apps/site/page"), Aspects::SCRIPTS);
        let set = notes.of_component();
        for scope in ["/content/site", "/content", "/apps", "/libs"] {
            assert_eq!(set.aspects_of(hash_text(scope)), Aspects::BELOW, "{scope}");
        }
        assert_eq!(set.len(), 4);
    }

    /// What a drawing does.
    #[derive(Debug, Clone)]
    enum Act {
        Add(u16, u8),
        Begin,
        End,
        EndAside,
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            8 => (0..600_u16, 0..5_u8).prop_map(|(number, bit)| Act::Add(number, bit)),
            1 => Just(Act::Begin),
            1 => Just(Act::End),
            1 => Just(Act::EndAside),
        ]
    }

    proptest! {
        /// However components lie within each other, each has exactly what was noted since it began, but for what was set
        /// aside.
        #[test]
        fn components_have_what_was_noted_since_they_began(acts in prop::collection::vec(act(), 0..400)) {
            let aspects = [
                Aspects::EXISTENCE,
                Aspects::HEAD,
                Aspects::DATE,
                Aspects::CHILDREN,
                Aspects::property("text"),
            ];
            let mut notes = Notes::default();
            let mut all: Vec<(NodePath, Aspects)> = Vec::new();
            // What each open component noted, the outermost first.
            let mut open = vec![(Begin::default(), Vec::new())];
            for act in acts {
                match act {
                    Act::Add(number, bit) => {
                        let path = path(&format!("/content/site/p{number}"));
                        let note = (path.clone(), aspects[usize::from(bit)]);
                        notes.add(path.as_str(), note.1);
                        open.last_mut().unwrap().1.push(note.clone());
                        all.push(note);
                    }
                    Act::Begin => open.push((notes.begin(), Vec::new())),
                    Act::End | Act::EndAside if open.len() == 1 => {}
                    Act::End => {
                        let (outer, own) = open.pop().unwrap();
                        prop_assert_eq!(notes.of_component(), Dependencies::of(&own));
                        notes.end(outer);
                        open.last_mut().unwrap().1.extend(own);
                    }
                    Act::EndAside => {
                        let (outer, own) = open.pop().unwrap();
                        prop_assert_eq!(notes.of_component(), Dependencies::of(&own));
                        notes.end_aside(outer);
                    }
                }
            }
            while open.len() > 1 {
                let (outer, own) = open.pop().unwrap();
                notes.end(outer);
                open.last_mut().unwrap().1.extend(own);
            }
            prop_assert_eq!(notes.of_component(), Dependencies::of(&open[0].1));
            let (noted, listings, kept) = notes.take();
            prop_assert!(kept.is_empty());
            prop_assert_eq!(noted.dependencies(&listings), Dependencies::of(&all));
        }
    }
}
