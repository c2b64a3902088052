//! What a drawing has read so far, as hashes of paths: a note costs a few instructions and no allocation.
//!
//! In: texts of paths and aspects, as they are read. Out: [`DependencySet`], of the whole drawing or of the component that
//! is drawn now.
//!
//! Invariants
//! * What was noted is in the set that comes out, or the subtree that holds it is.
//! * What an outer component noted does not stand for a note of an inner one, nor the other way round where the inner one is
//!   set aside: each is kept for itself.
//!
//! Not here: which reads there are ([`crate::content_reader`]).

use std::sync::Arc;

use tympan_content::NodePath;

use crate::dependency::{
    DependencyHasher, DependencySet, PathAspects, PathDependency, hash_path_text,
};
use crate::list_query::ListQuery;

/// The places in which notes are found again; a power of two.
const DEDUP_SLOT_COUNT: usize = 128;

/// Room for the notes of a drawing that reads little, and of one that reads much.
const SMALL_LOG_CAPACITY: usize = 60;
const LARGE_LOG_CAPACITY: usize = 600;

/// Where components live: the scopes of what is noted of scripts.
const COMPONENT_SCOPES: [&str; 2] = ["/apps", "/libs"];

/// Notes in the order of reading. A path may come more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecordedDependencies {
    path_dependencies: Vec<PathDependency>,
    /// The subtrees that hold everything that was noted by its path, should it be too much.
    scopes: Vec<Box<str>>,
}

impl RecordedDependencies {
    /// Adds a note without looking for an earlier one.
    pub(crate) fn add(&mut self, path: &str, aspects: PathAspects) {
        self.push(path, hash_path_text(path), aspects);
    }

    fn push(&mut self, path: &str, hash: u64, aspects: PathAspects) {
        self.path_dependencies.push((hash, aspects));
        self.add_scope(path);
    }

    /// Notes the scope of a path.
    fn add_scope(&mut self, path: &str) {
        if !self.scopes.iter().any(|scope| is_within(path, scope)) {
            self.scopes.push(site_scope_of(path).into());
        }
    }

    /// Returns what was noted, with lists.
    pub(crate) fn dependencies(&self, listings: &[Arc<ListQuery>]) -> DependencySet {
        self.dependencies_since(0, listings)
    }

    /// Digests the notes in their order.
    pub(crate) fn add_to_digest(&self, digest: &mut DependencyHasher) {
        digest.add_path_dependencies(&self.path_dependencies);
    }

    /// Returns what was noted from a place on, with lists.
    fn dependencies_since(&self, begin: usize, listings: &[Arc<ListQuery>]) -> DependencySet {
        let pairs = self.path_dependencies.iter().skip(begin).copied();
        let set = DependencySet::from_parts(pairs, listings.iter().cloned());
        if set.path_count() <= DependencySet::MAX_PATHS {
            return set;
        }
        let scopes = self.scopes.iter().map(|scope| &**scope).chain(COMPONENT_SCOPES);
        let pairs = scopes.map(|scope| (hash_path_text(scope), PathAspects::SUBTREE));
        DependencySet::from_parts(pairs, listings.iter().cloned())
    }
}

/// How many names a scope has at most.
const MAX_SCOPE_NAMES: usize = 2;

/// Returns the scope of a site that a path lies in: `/content/site`, `/content/dam`, `/home/users`.
pub(crate) fn site_scope_of(path: &str) -> &str {
    let slashes = path.match_indices('/');
    let end = slashes.map(|(at, _)| at).nth(MAX_SCOPE_NAMES).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

/// Tells whether a path lies at or below a scope.
#[inline]
pub(crate) fn is_within(path: &str, scope: &str) -> bool {
    let (path, scope) = (path.as_bytes(), scope.as_bytes());
    let Some((begin, rest)) = path.split_at_checked(scope.len()) else { return false };
    matches!(rest.first(), None | Some(b'/')) && is_equal_text(begin, scope)
}

/// Compares texts of one length. Most are two to four words long, and a call costs more than to compare these.
#[inline]
fn is_equal_text(one: &[u8], other: &[u8]) -> bool {
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
pub(crate) struct DependencyLog {
    recorded: RecordedDependencies,
    /// For some hashes, which note was the latest about them.
    latest_index: [u32; DEDUP_SLOT_COUNT],
    /// Where scripts were looked for, once for each type.
    script_folders: Vec<Arc<[u64]>>,
    /// The scripts that were run, each once.
    scripts: Vec<Arc<str>>,
    list_queries: Vec<Arc<ListQuery>>,
    fragment_dependencies: Vec<Arc<DependencySet>>,
    /// What components noted that were set aside: it counts for the whole drawing alone.
    detached: DetachedDependencies,
    /// Where the component began that is drawn now.
    component_start: DependencyLogMark,
    /// A child's path while it is hashed.
    child_path: String,
    /// How many notes there may be, by the drawing before.
    capacity: usize,
}

/// What counts for the whole drawing, and for no component.
#[derive(Debug, Default)]
struct DetachedDependencies {
    path_dependencies: Vec<PathDependency>,
    list_queries: Vec<Arc<ListQuery>>,
    fragment_dependencies: Vec<Arc<DependencySet>>,
}

/// How many notes there were at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DependencyLogMark {
    path_dependency_count: usize,
    script_folder_count: usize,
    script_count: usize,
    list_query_count: usize,
    fragment_count: usize,
    depth: usize,
}

impl Default for DependencyLog {
    fn default() -> Self {
        Self {
            recorded: RecordedDependencies::default(),
            latest_index: [0; DEDUP_SLOT_COUNT],
            script_folders: Vec::new(),
            scripts: Vec::new(),
            list_queries: Vec::new(),
            fragment_dependencies: Vec::new(),
            detached: DetachedDependencies::default(),
            component_start: DependencyLogMark::default(),
            child_path: String::new(),
            capacity: SMALL_LOG_CAPACITY,
        }
    }
}

impl DependencyLog {
    /// Notes something about a path.
    pub(crate) fn record(&mut self, path: &str, aspects: PathAspects) {
        self.record_hashed(path, hash_path_text(path), aspects);
    }

    /// Notes something about a path with a hash.
    pub(crate) fn record_hashed(&mut self, path: &str, hash: u64, aspects: PathAspects) {
        if !self.merge_into_recent(hash, aspects) {
            self.recorded.push(path, hash, aspects);
        }
    }

    /// Notes something about a child. A name that no node can have is noted like any other.
    pub(crate) fn record_child(&mut self, parent: &NodePath, name: &str, aspects: PathAspects) {
        let mut path = std::mem::take(&mut self.child_path);
        path.clear();
        if !parent.is_root() {
            path.push_str(parent.as_str());
        }
        path.push('/');
        path.push_str(name);
        self.record(&path, aspects);
        self.child_path = path;
    }

    /// Notes something about children of a node.
    pub(crate) fn record_children<'a>(
        &mut self,
        parent: &NodePath,
        children: impl ExactSizeIterator<Item = &'a str>,
        aspects: PathAspects,
    ) {
        if parent.depth() < MAX_SCOPE_NAMES {
            children.for_each(|path| self.record(path, aspects));
            return;
        }
        // They lie in the scope of their parent.
        self.recorded.add_scope(parent.as_str());
        self.recorded.path_dependencies.reserve(children.len());
        children.for_each(|path| self.record_component_code(hash_path_text(path), aspects));
    }

    /// Notes the scope of a path.
    pub(crate) fn record_scope(&mut self, path: &str) {
        self.recorded.add_scope(path);
    }

    /// Notes all of these, so many, which lie in these scopes.
    pub(crate) fn record_all<'a>(
        &mut self,
        (count, pairs): (usize, impl Iterator<Item = PathDependency>),
        scopes: impl Iterator<Item = &'a str>,
    ) {
        self.recorded.path_dependencies.reserve(count);
        // That one or another is there already does no harm, and to find out costs more.
        self.recorded.path_dependencies.extend(pairs);
        // Of fewer each stands for itself.
        if self.recorded.path_dependencies.len() + self.detached.path_dependencies.len()
            > DependencySet::MAX_PATHS
        {
            scopes.for_each(|scope| self.recorded.add_scope(scope));
        }
    }

    /// Forgets everything, and keeps the room for it.
    pub(crate) fn clear(&mut self) {
        let Self {
            recorded: noted,
            script_folders: places,
            scripts,
            list_queries: listings,
            fragment_dependencies: kept,
            detached: aside,
            component_start: begin,
            ..
        } = self;
        // What is latest is looked up among the notes, and found there no more.
        noted.path_dependencies.clear();
        noted.scopes.clear();
        places.clear();
        scripts.clear();
        listings.clear();
        kept.clear();
        *aside = DetachedDependencies::default();
        *begin = DependencyLogMark::default();
    }

    /// Notes something about what a script is or where scripts lie.
    pub(crate) fn record_component_code(&mut self, hash: u64, aspects: PathAspects) {
        if !self.merge_into_recent(hash, aspects) {
            if self.recorded.path_dependencies.capacity() == 0 {
                self.recorded.path_dependencies.reserve(self.capacity);
            }
            self.recorded.path_dependencies.push((hash, aspects));
        }
    }

    /// Notes that scripts were looked for in these folders.
    pub(crate) fn record_script_folders(&mut self, folders: Arc<[u64]>) {
        // A page draws many components of few types.
        let known =
            self.script_folders.get(self.component_start.script_folder_count..).unwrap_or_default();
        if known.iter().any(|known| Arc::ptr_eq(known, &folders)) {
            return;
        }
        folders.iter().for_each(|folder| self.record_component_code(*folder, PathAspects::SCRIPTS));
        self.script_folders.push(folders);
    }

    /// Notes that a script was run, with all that lies below it.
    pub(crate) fn record_script(&mut self, script: &Arc<str>) {
        // A page runs few scripts, some of them often.
        let known = self.scripts.get(self.component_start.script_count..).unwrap_or_default();
        if known.iter().any(|known| Arc::ptr_eq(known, script)) {
            return;
        }
        self.record_component_code(hash_path_text(script), PathAspects::SUBTREE);
        self.scripts.push(Arc::clone(script));
    }

    /// Adds what was read for a kept fragment.
    pub(crate) fn record_fragment(&mut self, read: Arc<DependencySet>) {
        self.fragment_dependencies.push(read);
    }

    /// Adds to what the running component noted of a path lately; tells whether there is such a note.
    fn merge_into_recent(&mut self, hash: u64, aspects: PathAspects) -> bool {
        let next = self.recorded.path_dependencies.len();
        let Some(latest) = self.latest_index.get_mut(hash as usize % DEDUP_SLOT_COUNT) else {
            return false;
        };
        let at = *latest as usize;
        if at >= self.component_start.path_dependency_count
            && let Some((known, joined)) = self.recorded.path_dependencies.get_mut(at)
            && *known == hash
        {
            *joined = joined.combine(aspects);
            return true;
        }
        *latest = u32::try_from(next).unwrap_or(u32::MAX);
        false
    }

    /// Begins a component; [`DependencyLog::end_component`] takes what this returns.
    pub(crate) fn begin_component(&mut self) -> DependencyLogMark {
        let outer = self.component_start;
        self.component_start = DependencyLogMark {
            path_dependency_count: self.recorded.path_dependencies.len(),
            script_folder_count: self.script_folders.len(),
            script_count: self.scripts.len(),
            list_query_count: self.list_queries.len(),
            fragment_count: self.fragment_dependencies.len(),
            depth: outer.depth + 1,
        };
        outer
    }

    /// Ends a component: what it noted counts for the one around it, too.
    pub(crate) fn end_component(&mut self, outer: DependencyLogMark) {
        self.component_start = outer;
    }

    /// Ends a component and sets aside what it noted.
    pub(crate) fn end_component_detached(&mut self, outer: DependencyLogMark) {
        let DependencyLogMark {
            path_dependency_count: pairs,
            script_folder_count: places,
            script_count: scripts,
            list_query_count: listings,
            fragment_count: kept,
            ..
        } = self.component_start;
        // What follows is noted anew: nothing finds these any more.
        self.detached.path_dependencies.extend(self.recorded.path_dependencies.drain(pairs..));
        self.script_folders.truncate(places);
        self.scripts.truncate(scripts);
        self.detached.list_queries.extend(self.list_queries.drain(listings..));
        self.detached.fragment_dependencies.extend(self.fragment_dependencies.drain(kept..));
        self.component_start = outer;
    }

    /// Notes a list, which stands for all that was read for it.
    pub(crate) fn record_list_query(&mut self, listing: ListQuery) {
        let known =
            self.list_queries.get(self.component_start.list_query_count..).unwrap_or_default();
        if !known.iter().any(|known| **known == listing) {
            self.list_queries.push(Arc::new(listing));
        }
    }

    /// Tells whether a component is drawn whose notes are looked at for themselves.
    pub(crate) fn is_in_component(&self) -> bool {
        self.component_start.depth > 0
    }

    /// Returns what was noted since the component began.
    pub(crate) fn component_dependencies(&self) -> DependencySet {
        let listings =
            self.list_queries.get(self.component_start.list_query_count..).unwrap_or_default();
        let kept = self
            .fragment_dependencies
            .get(self.component_start.fragment_count..)
            .unwrap_or_default();
        join_dependencies(
            self.recorded.dependencies_since(self.component_start.path_dependency_count, listings),
            kept,
        )
    }

    /// Takes everything out.
    pub(crate) fn take_all(
        &mut self,
    ) -> (RecordedDependencies, Vec<Arc<ListQuery>>, Vec<Arc<DependencySet>>) {
        let Self {
            recorded: noted,
            list_queries: listings,
            fragment_dependencies: kept,
            detached: aside,
            ..
        } = self;
        noted.path_dependencies.append(&mut aside.path_dependencies);
        listings.append(&mut aside.list_queries);
        kept.append(&mut aside.fragment_dependencies);
        self.capacity = noted.path_dependencies.len().clamp(SMALL_LOG_CAPACITY, LARGE_LOG_CAPACITY);
        (std::mem::take(noted), std::mem::take(listings), std::mem::take(kept))
    }
}

/// Joins what was read with what was read for kept fragments.
pub(crate) fn join_dependencies(own: DependencySet, kept: &[Arc<DependencySet>]) -> DependencySet {
    if kept.is_empty() {
        return own;
    }
    DependencySet::union_of(std::iter::once(&own).chain(kept.iter().map(|one| &**one)))
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
        let (mut notes, mut other) = (DependencyLog::default(), DependencyLog::default());
        notes.record_child(&path("/content/a"), "b", PathAspects::NAVIGATION_HEAD);
        notes.record_child(&NodePath::root(), "content", PathAspects::MODIFIED_DATE);
        other.record("/content/a/b", PathAspects::NAVIGATION_HEAD);
        other.record("/content", PathAspects::MODIFIED_DATE);
        assert_eq!(notes.component_dependencies(), other.component_dependencies());
    }

    #[test]
    fn children_are_noted_as_their_paths_are() {
        for parent in ["/", "/content", "/content/site", "/content/site/en"] {
            let (mut notes, mut other) = (DependencyLog::default(), DependencyLog::default());
            let children: Vec<NodePath> =
                ["a", "b", "c"].map(|name| path(parent).child(name).unwrap()).into();
            let paths = children.iter().chain(children.first()).map(NodePath::as_str);
            paths.clone().for_each(|path| other.record(path, PathAspects::NAVIGATION_HEAD));
            let all: Vec<&str> = paths.collect();
            notes.record_children(&path(parent), all.into_iter(), PathAspects::NAVIGATION_HEAD);
            assert_eq!(notes.component_dependencies(), other.component_dependencies(), "{parent}");
            assert_eq!(notes.recorded, other.recorded, "{parent}");
        }
    }

    #[test]
    fn an_inner_component_has_its_own_notes() {
        let mut notes = DependencyLog::default();
        notes.record("/a", PathAspects::NAVIGATION_HEAD);
        let outer = notes.begin_component();
        assert!(notes.is_in_component() && notes.component_dependencies().is_empty());
        notes.record("/a", PathAspects::NAVIGATION_HEAD);
        notes.record("/b", PathAspects::NAVIGATION_HEAD);
        assert_eq!(notes.component_dependencies().len(), 2);
        notes.end_component(outer);
        notes.record("/b", PathAspects::MODIFIED_DATE);
        let all = notes.component_dependencies();
        assert_eq!(all.len(), 2);
        assert!(
            all.aspects_with_scopes(hash_path_text("/b"))
                .contains(PathAspects::NAVIGATION_HEAD.combine(PathAspects::MODIFIED_DATE))
        );
    }

    #[test]
    fn too_many_paths_become_their_subtrees() {
        let mut notes = DependencyLog::default();
        for number in 0..=DependencySet::MAX_PATHS {
            notes.record(&format!("/content/site/en/p{number}"), PathAspects::NAVIGATION_HEAD);
        }
        notes.record("/content", PathAspects::EXISTENCE);
        notes.record_component_code(hash_path_text("/apps/site/page"), PathAspects::SCRIPTS);
        let set = notes.component_dependencies();
        for scope in ["/content/site", "/content", "/apps", "/libs"] {
            assert_eq!(
                set.aspects_with_scopes(hash_path_text(scope)),
                PathAspects::SUBTREE,
                "{scope}"
            );
        }
        assert_eq!(set.len(), 4);
    }

    /// What a drawing does.
    #[derive(Debug, Clone)]
    enum LogTestOperation {
        Record(u16, u8),
        Begin,
        End,
        EndDetached,
    }

    fn act() -> impl Strategy<Value = LogTestOperation> {
        prop_oneof![
            8 => (0..600_u16, 0..5_u8).prop_map(|(number, bit)| LogTestOperation::Record(number, bit)),
            1 => Just(LogTestOperation::Begin),
            1 => Just(LogTestOperation::End),
            1 => Just(LogTestOperation::EndDetached),
        ]
    }

    proptest! {
        /// However components lie within each other, each has exactly what was noted since it began, but for what was set
        /// aside.
        #[test]
        fn components_have_what_was_noted_since_they_began(acts in prop::collection::vec(act(), 0..400)) {
            let aspects = [
                PathAspects::EXISTENCE,
                PathAspects::NAVIGATION_HEAD,
                PathAspects::MODIFIED_DATE,
                PathAspects::CHILDREN,
                PathAspects::property("text"),
            ];
            let mut notes = DependencyLog::default();
            let mut all: Vec<(NodePath, PathAspects)> = Vec::new();
            // What each open component noted, the outermost first.
            let mut open = vec![(DependencyLogMark::default(), Vec::new())];
            for act in acts {
                match act {
                    LogTestOperation::Record(number, bit) => {
                        let path = path(&format!("/content/site/p{number}"));
                        let note = (path.clone(), aspects[usize::from(bit)]);
                        notes.record(path.as_str(), note.1);
                        open.last_mut().unwrap().1.push(note.clone());
                        all.push(note);
                    }
                    LogTestOperation::Begin => open.push((notes.begin_component(), Vec::new())),
                    LogTestOperation::End | LogTestOperation::EndDetached if open.len() == 1 => {}
                    LogTestOperation::End => {
                        let (outer, own) = open.pop().unwrap();
                        prop_assert_eq!(notes.component_dependencies(), DependencySet::from_recorded(&own));
                        notes.end_component(outer);
                        open.last_mut().unwrap().1.extend(own);
                    }
                    LogTestOperation::EndDetached => {
                        let (outer, own) = open.pop().unwrap();
                        prop_assert_eq!(notes.component_dependencies(), DependencySet::from_recorded(&own));
                        notes.end_component_detached(outer);
                    }
                }
            }
            while open.len() > 1 {
                let (outer, own) = open.pop().unwrap();
                notes.end_component(outer);
                open.last_mut().unwrap().1.extend(own);
            }
            prop_assert_eq!(notes.component_dependencies(), DependencySet::from_recorded(&open[0].1));
            let (noted, listings, kept) = notes.take_all();
            prop_assert!(kept.is_empty());
            prop_assert_eq!(noted.dependencies(&listings), DependencySet::from_recorded(&all));
        }
    }
}
