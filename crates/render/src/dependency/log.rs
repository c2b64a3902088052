//! The reads of a rendering so far, as path hashes: a record costs a few instructions and no allocation.
//!
//! Input: path texts and aspects, as they are read. Output: the [`DependencySet`] of the whole rendering, or of the
//! component that is being rendered.
//!
//! Invariants
//! * Every recorded read is in the resulting set, or the subtree that contains it is.
//! * A record of an outer component does not replace one of an inner component, nor the other way round if the inner
//!   one is detached: each has its own records.
//!
//! Not here: the kinds of reads ([`crate::dependency::content_reader`]).

use std::sync::Arc;

use tympan_content::NodePath;

use crate::dependency::path_dependency::{PathAspects, PathDependency, hash_path_text};
use crate::dependency::{DependencyHasher, DependencySet};
use crate::page::list_query::ListQuery;

/// Number of slots for finding recent records; a power of two.
const DEDUP_SLOT_COUNT: usize = 128;

/// Initial capacity for a rendering with few reads, and for one with many.
const SMALL_LOG_CAPACITY: usize = 60;
const LARGE_LOG_CAPACITY: usize = 600;

/// Folders of components: the scopes of records about scripts.
const COMPONENT_SCOPES: [&str; 2] = ["/apps", "/libs"];

/// Records in the order of reading. A path may occur more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RecordedDependencies {
    path_dependencies: Vec<PathDependency>,
    /// The subtrees that contain all recorded paths; they replace the paths if there are too many.
    scopes: Vec<Box<str>>,
}

impl RecordedDependencies {
    /// Appends a record without searching for an earlier one.
    pub(crate) fn add(&mut self, path: &str, aspects: PathAspects) {
        self.push(path, hash_path_text(path), aspects);
    }

    fn push(&mut self, path: &str, hash: u64, aspects: PathAspects) {
        self.path_dependencies.push((hash, aspects));
        self.add_scope(path);
    }

    /// Records the scope of a path.
    fn add_scope(&mut self, path: &str) {
        if !self.scopes.iter().any(|scope| is_within(path, scope)) {
            self.scopes.push(site_scope_of(path).into());
        }
    }

    /// Returns the recorded reads and the lists as a set.
    pub(crate) fn dependencies(&self, listings: &[Arc<ListQuery>]) -> DependencySet {
        self.dependencies_since(0, listings)
    }

    /// Adds the records to a digest, in order.
    pub(crate) fn add_to_digest(&self, digest: &mut DependencyHasher) {
        digest.add_path_dependencies(&self.path_dependencies);
    }

    /// Returns the reads recorded since a position, with lists, as a set.
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

impl DependencySet {
    /// Creates the set of recorded reads.
    #[must_use]
    pub fn from_recorded(recorded: &[(NodePath, PathAspects)]) -> Self {
        Self::from_recorded_and_queries(recorded, &[])
    }

    /// Creates the set of recorded reads and lists.
    pub(crate) fn from_recorded_and_queries(
        recorded: &[(NodePath, PathAspects)],
        listings: &[Arc<ListQuery>],
    ) -> Self {
        let mut all = RecordedDependencies::default();
        recorded.iter().for_each(|(path, aspects)| all.add(path.as_str(), *aspects));
        all.dependencies(listings)
    }
}

/// Maximum number of path segments of a scope.
const MAX_SCOPE_NAMES: usize = 2;

/// Returns the site scope that contains a path: `/content/site`, `/content/dam`, `/home/users`.
pub(crate) fn site_scope_of(path: &str) -> &str {
    let slashes = path.match_indices('/');
    let end = slashes.map(|(at, _)| at).nth(MAX_SCOPE_NAMES).unwrap_or(path.len());
    path.get(..end).unwrap_or(path)
}

/// Returns true if a path lies at or below a scope.
#[inline]
pub(crate) fn is_within(path: &str, scope: &str) -> bool {
    let (path, scope) = (path.as_bytes(), scope.as_bytes());
    let Some((begin, rest)) = path.split_at_checked(scope.len()) else { return false };
    matches!(rest.first(), None | Some(b'/')) && is_equal_text(begin, scope)
}

/// Compares texts of equal length. Most are two to four words long, and a call would cost more than the comparison.
#[inline]
fn is_equal_text(left: &[u8], right: &[u8]) -> bool {
    let ends = |bytes: &[u8]| {
        let (first, last) = (bytes.first_chunk()?, bytes.last_chunk()?);
        Some((u64::from_le_bytes(*first), u64::from_le_bytes(*last)))
    };
    match ends(left) {
        Some(same) if left.len() <= 16 => Some(same) == ends(right),
        Some(same) => Some(same) == ends(right) && left == right,
        None => left == right,
    }
}

/// The reads that a request records while it is rendered.
#[derive(Debug)]
pub(crate) struct DependencyLog {
    recorded: RecordedDependencies,
    /// For some hashes, the index of the latest record.
    latest_index: [u32; DEDUP_SLOT_COUNT],
    /// The searched script folders, once per type.
    script_folders: Vec<Arc<[u64]>>,
    /// The scripts that were run, without duplicates.
    scripts: Vec<Arc<str>>,
    list_queries: Vec<Arc<ListQuery>>,
    fragment_dependencies: Vec<Arc<DependencySet>>,
    /// The reads of detached components: they count only for the whole rendering.
    detached: DetachedDependencies,
    /// The start of the component that is being rendered.
    component_start: DependencyLogMark,
    /// Buffer for a child's path while it is hashed.
    child_path: String,
    /// Expected number of records, based on the previous rendering.
    capacity: usize,
}

/// Reads that count for the whole rendering, and for no component.
#[derive(Debug, Default)]
struct DetachedDependencies {
    path_dependencies: Vec<PathDependency>,
    list_queries: Vec<Arc<ListQuery>>,
    fragment_dependencies: Vec<Arc<DependencySet>>,
}

/// The numbers of records at a point in time.
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
    /// Records aspects of a path.
    pub(crate) fn record(&mut self, path: &str, aspects: PathAspects) {
        self.record_hashed(path, hash_path_text(path), aspects);
    }

    /// Records aspects of a path with a known hash.
    pub(crate) fn record_hashed(&mut self, path: &str, hash: u64, aspects: PathAspects) {
        if !self.merge_into_recent(hash, aspects) {
            self.recorded.push(path, hash, aspects);
        }
    }

    /// Records aspects of a child. An invalid node name is recorded like any other.
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

    /// Records aspects of children of a node.
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
        // The children lie in the scope of their parent.
        self.recorded.add_scope(parent.as_str());
        self.recorded.path_dependencies.reserve(children.len());
        children.for_each(|path| self.record_component_code(hash_path_text(path), aspects));
    }

    /// Records the scope of a path.
    pub(crate) fn record_scope(&mut self, path: &str) {
        self.recorded.add_scope(path);
    }

    /// Records a known number of pairs, which lie in the given scopes.
    pub(crate) fn record_all<'a>(
        &mut self,
        count: usize,
        pairs: impl Iterator<Item = PathDependency>,
        scopes: impl Iterator<Item = &'a str>,
    ) {
        self.recorded.path_dependencies.reserve(count);
        // Duplicates do no harm, and detecting them would cost more.
        self.recorded.path_dependencies.extend(pairs);
        // Below this number, each path is stored on its own.
        if self.recorded.path_dependencies.len() + self.detached.path_dependencies.len()
            > DependencySet::MAX_PATHS
        {
            scopes.for_each(|scope| self.recorded.add_scope(scope));
        }
    }

    /// Removes all records, and retains the allocated memory.
    pub(crate) fn clear(&mut self) {
        let Self {
            recorded,
            script_folders,
            scripts,
            list_queries,
            fragment_dependencies,
            detached,
            component_start,
            ..
        } = self;
        // The index of the latest records is checked against the records, which are empty now.
        recorded.path_dependencies.clear();
        recorded.scopes.clear();
        script_folders.clear();
        scripts.clear();
        list_queries.clear();
        fragment_dependencies.clear();
        *detached = DetachedDependencies::default();
        *component_start = DependencyLogMark::default();
    }

    /// Records aspects of a script or of the location of scripts.
    pub(crate) fn record_component_code(&mut self, hash: u64, aspects: PathAspects) {
        if !self.merge_into_recent(hash, aspects) {
            if self.recorded.path_dependencies.capacity() == 0 {
                self.recorded.path_dependencies.reserve(self.capacity);
            }
            self.recorded.path_dependencies.push((hash, aspects));
        }
    }

    /// Records a search for scripts in these folders.
    pub(crate) fn record_script_folders(&mut self, folders: Arc<[u64]>) {
        // A page renders many components of few types.
        let known_folders =
            self.script_folders.get(self.component_start.script_folder_count..).unwrap_or_default();
        if known_folders.iter().any(|recorded_folders| Arc::ptr_eq(recorded_folders, &folders)) {
            return;
        }
        folders.iter().for_each(|folder| self.record_component_code(*folder, PathAspects::SCRIPTS));
        self.script_folders.push(folders);
    }

    /// Records that a script was run, with everything below it.
    pub(crate) fn record_script(&mut self, script: &Arc<str>) {
        // A page runs few scripts, some of them often.
        let recorded_scripts =
            self.scripts.get(self.component_start.script_count..).unwrap_or_default();
        if recorded_scripts.iter().any(|recorded_script| Arc::ptr_eq(recorded_script, script)) {
            return;
        }
        self.record_component_code(hash_path_text(script), PathAspects::SUBTREE);
        self.scripts.push(Arc::clone(script));
    }

    /// Adds the dependencies of a cached fragment.
    pub(crate) fn record_fragment(&mut self, read: Arc<DependencySet>) {
        self.fragment_dependencies.push(read);
    }

    /// Merges aspects into a recent record of the running component; returns true if there is such a record.
    fn merge_into_recent(&mut self, hash: u64, aspects: PathAspects) -> bool {
        let next = self.recorded.path_dependencies.len();
        let Some(latest) = self.latest_index.get_mut(hash as usize % DEDUP_SLOT_COUNT) else {
            return false;
        };
        let at = *latest as usize;
        if at >= self.component_start.path_dependency_count
            && let Some((recent_path, joined)) = self.recorded.path_dependencies.get_mut(at)
            && *recent_path == hash
        {
            *joined = joined.combine(aspects);
            return true;
        }
        *latest = u32::try_from(next).unwrap_or(u32::MAX);
        false
    }

    /// Begins a component; pass the result to [`DependencyLog::end_component`].
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

    /// Ends a component; its records count for the enclosing component, too.
    pub(crate) fn end_component(&mut self, outer: DependencyLogMark) {
        self.component_start = outer;
    }

    /// Ends a component and detaches its records.
    pub(crate) fn end_component_detached(&mut self, outer: DependencyLogMark) {
        let DependencyLogMark {
            path_dependency_count,
            script_folder_count,
            script_count,
            list_query_count,
            fragment_count,
            ..
        } = self.component_start;
        // Later reads are recorded anew: these records are no longer found.
        self.detached
            .path_dependencies
            .extend(self.recorded.path_dependencies.drain(path_dependency_count..));
        self.script_folders.truncate(script_folder_count);
        self.scripts.truncate(script_count);
        self.detached.list_queries.extend(self.list_queries.drain(list_query_count..));
        self.detached
            .fragment_dependencies
            .extend(self.fragment_dependencies.drain(fragment_count..));
        self.component_start = outer;
    }

    /// Records a list in place of all the reads that it needs.
    pub(crate) fn record_list_query(&mut self, listing: ListQuery) {
        let recorded_queries =
            self.list_queries.get(self.component_start.list_query_count..).unwrap_or_default();
        if !recorded_queries.iter().any(|recorded_query| **recorded_query == listing) {
            self.list_queries.push(Arc::new(listing));
        }
    }

    /// Returns true if a component with records of its own is being rendered.
    pub(crate) fn is_in_component(&self) -> bool {
        self.component_start.depth > 0
    }

    /// Returns the reads recorded since the component began.
    pub(crate) fn component_dependencies(&self) -> DependencySet {
        let listings =
            self.list_queries.get(self.component_start.list_query_count..).unwrap_or_default();
        let fragments = self
            .fragment_dependencies
            .get(self.component_start.fragment_count..)
            .unwrap_or_default();
        join_dependencies(
            self.recorded.dependencies_since(self.component_start.path_dependency_count, listings),
            fragments,
        )
    }

    /// Takes all records.
    pub(crate) fn take_all(
        &mut self,
    ) -> (RecordedDependencies, Vec<Arc<ListQuery>>, Vec<Arc<DependencySet>>) {
        let Self { recorded, list_queries, fragment_dependencies, detached: aside, .. } = self;
        recorded.path_dependencies.append(&mut aside.path_dependencies);
        list_queries.append(&mut aside.list_queries);
        fragment_dependencies.append(&mut aside.fragment_dependencies);
        self.capacity =
            recorded.path_dependencies.len().clamp(SMALL_LOG_CAPACITY, LARGE_LOG_CAPACITY);
        (
            std::mem::take(recorded),
            std::mem::take(list_queries),
            std::mem::take(fragment_dependencies),
        )
    }
}

/// Joins the reads of a rendering with those of the cached fragments in it.
pub(crate) fn join_dependencies(
    own: DependencySet,
    fragment_dependencies: &[Arc<DependencySet>],
) -> DependencySet {
    if fragment_dependencies.is_empty() {
        return own;
    }
    DependencySet::union_of(
        std::iter::once(&own)
            .chain(fragment_dependencies.iter().map(|dependencies| &**dependencies)),
    )
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
        let (mut notes, mut expected) = (DependencyLog::default(), DependencyLog::default());
        notes.record_child(&path("/content/a"), "b", PathAspects::NAVIGATION_HEAD);
        notes.record_child(&NodePath::root(), "content", PathAspects::MODIFIED_DATE);
        expected.record("/content/a/b", PathAspects::NAVIGATION_HEAD);
        expected.record("/content", PathAspects::MODIFIED_DATE);
        assert_eq!(notes.component_dependencies(), expected.component_dependencies());
    }

    #[test]
    fn children_are_noted_as_their_paths_are() {
        for parent in ["/", "/content", "/content/site", "/content/site/en"] {
            let (mut notes, mut expected) = (DependencyLog::default(), DependencyLog::default());
            let children: Vec<NodePath> =
                ["a", "b", "c"].map(|name| path(parent).child(name).unwrap()).into();
            let paths = children.iter().chain(children.first()).map(NodePath::as_str);
            paths.clone().for_each(|path| expected.record(path, PathAspects::NAVIGATION_HEAD));
            let all: Vec<&str> = paths.collect();
            notes.record_children(&path(parent), all.into_iter(), PathAspects::NAVIGATION_HEAD);
            assert_eq!(
                notes.component_dependencies(),
                expected.component_dependencies(),
                "{parent}"
            );
            assert_eq!(notes.recorded, expected.recorded, "{parent}");
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

    /// An operation of a rendering.
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
        /// Regardless of nesting, each component has exactly the records since it began, except for detached ones.
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
            // The records of each open component, the outermost first.
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
