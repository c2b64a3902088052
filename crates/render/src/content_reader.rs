//! The one door to content while a request is drawn, which notes everything that was read.
//!
//! In: a pinned snapshot. Out: nodes, and a [`RequestReads`] that says what the drawing depends on: nodes, properties,
//! listings, whole subtrees, scripts, and places where nothing was found.
//!
//! Invariants
//! * Components, resolution and default output reach nodes only through [`ContentReader`].
//! * What a node is asked for is noted. [`ContentReader::node`] and its like note all properties of what they hand out, so that
//!   whoever reads them forgets nothing. Those that glance ([`ContentReader::node_existence`]) note the node's existence and primary type
//!   alone; who reads more of such a node does it through [`ContentReader::property`], [`ContentReader::text_property`] or [`ContentReader::record_type`].
//! * A listing covers which pages there are, and which hide. Their titles are noted with
//!   [`ContentReader::record_head`] or [`ContentReader::record_titles_below`], dates are asked for with [`ContentReader::last_modified`].
//! * What [`ContentReader::read_list`] reads decides about its answer alone; what is read of the answer is noted like all else.
//! * One thread draws a request: two that count at the same time may count one look-up less. Notes are never lost.
//!
//! On failure: look-ups that fail answer "nothing there" and leave the error in [`ContentReader::failure`], which the
//! renderer asks before it hands anything out.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tympan_content::query::{FullTextIndexStatus, QueryEngine, QueryPage, QueryRequest};
use tympan_content::{
    BorrowedProperty, ChildList, Error, JcrDate, Node, NodePath, NodeSummary, Property, Result,
    Snapshot, Viewer,
};

use crate::dependency::{DependencyHasher, DependencySet, PathAspects, hash_path_text};
use crate::dependency_log::{DependencyLogMark, RecordedDependencies, join_dependencies};
use crate::dependency_recorder::DependencyRecorder;
use crate::list_query::{ListQuery, ListQueryKind};

/// Whether a request keeps the paths it read, or counts only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadRecording {
    /// Count the reads.
    #[default]
    Count,
    /// Count them and keep the paths.
    Paths,
}

/// What one request read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestReads {
    /// How many look-ups of nodes and listings there were.
    pub read_count: u64,
    /// How many queries were run.
    pub query_count: u64,
    /// What was read where; nothing unless paths were asked for.
    pub(crate) recorded: RecordedDependencies,
    /// The lists that were asked for, in place of what they read.
    pub(crate) list_queries: Vec<Arc<ListQuery>>,
    /// What was read for kept fragments, when they were drawn.
    pub fragment_dependencies: Vec<Arc<DependencySet>>,
    /// What of the request the drawing used.
    pub facts: RequestFacts,
    /// How long the drawing is good for at most, whatever changes in content: it shows data of other systems.
    pub max_age: Option<Duration>,
}

impl RequestReads {
    /// Returns what the drawing depends on, as the ledger keeps it.
    #[must_use]
    pub fn dependencies(&self) -> DependencySet {
        join_dependencies(
            self.recorded.dependencies(&self.list_queries),
            &self.fragment_dependencies,
        )
    }

    /// Returns a number that drawings have in common which read the same in the same order. Others have another one, and
    /// nobody who does not know the keys can aim at it.
    pub(crate) fn digest(&self, keys: [u64; 2]) -> u64 {
        let mut digest = DependencyHasher::new(keys);
        self.recorded.add_to_digest(&mut digest);
        digest.add_list_queries(&self.list_queries);
        self.fragment_dependencies.iter().for_each(|read| read.add_to_digest(&mut digest));
        digest.finish()
    }

    /// Tells whether the drawing is good for no second: whoever kept it would show others what was.
    #[must_use]
    pub fn is_uncacheable(&self) -> bool {
        self.max_age.is_some_and(|age| age < Duration::from_secs(1))
    }
}

/// What of a request a drawing used, so that another request may get something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestFacts(u32);

impl RequestFacts {
    /// The page that was asked for.
    pub const PAGE: Self = Self(1);
    /// The URL beyond the page: selectors, extension, suffix.
    pub const URL: Self = Self(1 << 1);
    /// Parameters of the query.
    pub const PARAMETERS: Self = Self(1 << 2);
    /// Whether an author edits.
    pub const EDIT: Self = Self(1 << 3);
    /// Who asks.
    pub const USER: Self = Self(1 << 4);
    /// A header.
    pub const HEADER: Self = Self(1 << 5);
    /// A cookie.
    pub const COOKIE: Self = Self(1 << 6);
    /// The time of day, or what another system said at that time.
    pub const TIME: Self = Self(1 << 7);
    /// The host and scheme that were asked for: addresses that are mapped differ by them.
    pub const HOST: Self = Self(1 << 8);
    /// The fault that an error page is about.
    pub const FAULT: Self = Self(1 << 9);
    /// What an index had found so far.
    pub const INDEX: Self = Self(1 << 10);
    /// What lies below `/home`: users see what is their own there.
    pub const ACCOUNTS: Self = Self(1 << 11);
    /// What who asks may see and somebody without a login may not, or the other way round.
    pub const ACCESS_RIGHTS: Self = Self(1 << 12);

    const FACT_NAMES: [&str; 13] = [
        "page",
        "url",
        "parameters",
        "edit",
        "user",
        "header",
        "cookie",
        "time",
        "host",
        "fault",
        "index",
        "accounts",
        "sight",
    ];

    /// Returns the facts of both.
    #[must_use]
    pub const fn combine(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Tells whether these hold any of the others.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns those that the others do not hold.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the words for them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Self::FACT_NAMES.iter().enumerate();
        all.filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| *name)
    }
}

/// What every look at a node is about.
static EXISTENCE_ASPECTS: LazyLock<PathAspects> =
    LazyLock::new(|| PathAspects::EXISTENCE.combine(PathAspects::property("jcr:primaryType")));
/// What decides about the script of a resource.
static TYPE_ASPECTS: LazyLock<PathAspects> = LazyLock::new(|| {
    PathAspects::property("sling:resourceType")
        .combine(PathAspects::property("sling:resourceSuperType"))
});

/// Reads content and notes it.
#[derive(Debug)]
pub(crate) struct ContentReader {
    /// What the request's viewer sees.
    snapshot: Snapshot,
    /// The same state with what viewers need not see of components.
    component_snapshot: Snapshot,
    read_count: AtomicU64,
    query_count: AtomicU64,
    facts: AtomicU32,
    /// Those of components that were set aside.
    detached_facts: AtomicU32,
    max_age: Mutex<Option<Duration>>,
    recorder: Option<Box<DependencyRecorder>>,
    /// Whether a list is read, for which its question stands.
    is_in_list_query: AtomicBool,
    failure: OnceLock<Error>,
    existence_aspects: PathAspects,
    type_aspects: PathAspects,
}

impl ContentReader {
    pub(crate) fn new(snapshot: Snapshot, recording: ReadRecording) -> Self {
        let notes = (recording == ReadRecording::Paths).then(DependencyRecorder::acquire);
        let program = snapshot.as_viewer(&Viewer::system());
        Self {
            snapshot,
            component_snapshot: program,
            read_count: AtomicU64::new(0),
            query_count: AtomicU64::new(0),
            facts: AtomicU32::new(0),
            detached_facts: AtomicU32::new(0),
            max_age: Mutex::default(),
            recorder: notes,
            is_in_list_query: AtomicBool::new(false),
            failure: OnceLock::new(),
            existence_aspects: *EXISTENCE_ASPECTS,
            type_aspects: *TYPE_ASPECTS,
        }
    }

    /// Finds a node, all of which may be read.
    pub(crate) fn node(&self, path: &NodePath) -> Option<Node> {
        let found = self.find_node(path);
        self.record(path, found.as_ref().map_or(PathAspects::EXISTENCE, node_aspects));
        found
    }

    /// Finds a node of which existence and type matter.
    pub(crate) fn node_existence(&self, path: &NodePath) -> Option<Node> {
        self.record(path, self.existence_aspects);
        self.find_node(path)
    }

    /// Finds the node that a URL names, if the viewer sees it; existence and type matter.
    pub(crate) fn resource_at(&self, path: &str) -> Option<Node> {
        let path = NodePath::new(path).ok()?;
        self.record(&path, self.existence_aspects);
        self.ok_or_record(self.snapshot.node(&path)).flatten()
    }

    /// Finds a node by a path that may be no valid path at all.
    pub(crate) fn node_at(&self, path: &str) -> Option<Node> {
        self.node(&NodePath::new(path).ok()?)
    }

    /// Finds a node of which existence and type matter, by a path that may be no valid path at all.
    pub(crate) fn node_existence_at(&self, path: &str) -> Option<Node> {
        self.node_existence(&NodePath::new(path).ok()?)
    }

    /// Finds a child, all of which may be read.
    pub(crate) fn child(&self, node: &Node, name: &str) -> Option<Node> {
        let found = self.ok_or_record(node.child(name)).flatten();
        match &found {
            Some(child) => self.record(child.path(), node_aspects(child)),
            None => self.record_missing_child(node, name, PathAspects::EXISTENCE),
        }
        found
    }

    /// Finds a child of which existence and type matter.
    pub(crate) fn child_existence(&self, node: &Node, name: &str) -> Option<Node> {
        let found = self.ok_or_record(node.child(name)).flatten();
        match &found {
            Some(child) => self.record(child.path(), self.existence_aspects),
            None => self.record_missing_child(node, name, self.existence_aspects),
        }
        found
    }

    /// Finds a node below by a relative path.
    pub(crate) fn descendant(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child(&node, name))
    }

    /// Finds a node below of which existence and type matter.
    pub(crate) fn descendant_existence(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child_existence(&node, name))
    }

    /// Returns the children in order, all of each of which may be read.
    pub(crate) fn children(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::CHILDREN);
        let children = self.ok_or_record(node.children()).unwrap_or_default();
        children.iter().for_each(|child| self.record_additional(child.path(), node_aspects(child)));
        children
    }

    /// Returns the children in order; of each, existence and the type that draws it matter.
    pub(crate) fn children_existence(&self, node: &Node) -> Vec<Node> {
        let Some(list) = self.child_list(node) else { return Vec::new() };
        let children: Vec<Node> = list.iter().collect();
        let aspects = self.existence_aspects.combine(self.type_aspects);
        // Where one child leads to accounts, all do, but for those of the root.
        let leads = |child: &Node| reads_accounts(child.path().as_str(), aspects);
        if node.path().is_root() || children.first().is_some_and(leads) {
            children.iter().for_each(|child| self.record_additional(child.path(), aspects));
        } else if let Some(notes) = self.active_recorder() {
            let paths = children.iter().map(|child| child.path().as_str());
            notes.record_children(node.path(), paths, aspects);
        }
        children
    }

    /// Returns the children in order, of which only their names are read; whoever reaches one says so by
    /// [`ContentReader::record_listed_child`].
    pub(crate) fn child_list(&self, node: &Node) -> Option<ChildList> {
        self.record(node.path(), PathAspects::CHILDREN);
        self.ok_or_record(node.child_list())
    }

    /// Notes existence and the type that draws it of a child that was reached in a list.
    pub(crate) fn record_listed_child(&self, child: &Node) {
        self.record_additional(child.path(), self.existence_aspects.combine(self.type_aspects));
    }

    /// Returns the children that are pages and do not hide from navigations, in order, without reading their bodies.
    pub(crate) fn visible_child_pages(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::CHILD_HEADS);
        let mut children = self.ok_or_record(node.listed_children()).unwrap_or_default();
        let hides = |child: &Node| child.summary().is_some_and(NodeSummary::is_hidden_in_nav);
        children.retain(|child| child.is_page() && !hides(child));
        children
    }

    /// Returns the pages below, at any depth, without reading their bodies.
    pub(crate) fn pages_below(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::HEADS_BELOW);
        let mut pages = self.ok_or_record(node.listed_descendants()).unwrap_or_default();
        pages.retain(Node::is_page);
        pages
    }

    /// Returns a property of a node that was glanced at.
    pub(crate) fn property(&self, node: &Node, name: &str) -> Option<Property> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.property(name)
    }

    /// Returns a property of a node that was glanced at, where it is stored.
    pub(crate) fn borrowed_property<'a>(
        &self,
        node: &'a Node,
        name: &str,
    ) -> Option<BorrowedProperty<'a>> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.as_borrowed()?.property(name)
    }

    /// Returns a single text-like property of a node that was glanced at.
    pub(crate) fn text_property(&self, node: &Node, name: &str) -> Option<String> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.text(name)
    }

    /// Notes that the type that draws a node is read.
    pub(crate) fn record_type(&self, node: &Node) {
        self.record_additional(node.path(), self.type_aspects);
    }

    /// Notes that the title of a page is read.
    pub(crate) fn record_head(&self, page: &Node) {
        self.record_additional(page.path(), PathAspects::NAVIGATION_HEAD);
    }

    /// Notes that the titles of everything below a node decide.
    pub(crate) fn record_titles_below(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::TITLES_BELOW);
    }

    /// Notes that all properties of a node are read.
    pub(crate) fn record_properties(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::PROPERTIES);
    }

    /// Notes that anything in a node's document may be read, also where the node is a part of a larger one: the parts of a
    /// file or an asset.
    pub(crate) fn record_document(&self, node: &Node) {
        self.record_additional(
            node.path(),
            PathAspects::WHOLE_DOCUMENT.combine(PathAspects::SUBTREE),
        );
    }

    /// Returns when a page was last modified.
    pub(crate) fn last_modified(&self, page: &Node) -> Option<JcrDate> {
        self.record_additional(page.path(), PathAspects::MODIFIED_DATE);
        page.summary().and_then(NodeSummary::last_modified)
    }

    /// Notes that the dates of everything below a node decide, so that no page need be noted for its own.
    pub(crate) fn record_dates_below(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::DATES_BELOW);
    }

    /// Reads a list. In place of all that is read for it, the question is noted.
    pub(crate) fn read_list<T>(&self, question: ListQueryKind, read: impl FnOnce() -> T) -> T {
        let Some(notes) = &self.recorder else { return read() };
        let Some(listing) = ListQuery::new(question) else { return read() };
        if reads_accounts(listing.root().as_str(), PathAspects::ANY_BELOW) {
            self.record_fact(RequestFacts::ACCOUNTS);
        }
        let was_listing = self.is_in_list_query.swap(true, Ordering::Relaxed);
        let found = read();
        self.is_in_list_query.store(was_listing, Ordering::Relaxed);
        if !was_listing {
            notes.record_list_query(listing);
        }
        found
    }

    /// Notes that a script of a resource type was looked for in the folders with these hashes.
    pub(crate) fn record_script_folders(&self, folders: Arc<[u64]>) {
        if let Some(notes) = &self.recorder {
            notes.record_script_folders(folders);
        }
    }

    /// Notes that a script was run.
    pub(crate) fn record_script(&self, script: &Arc<str>) {
        if let Some(notes) = &self.recorder {
            notes.record_script(script);
        }
    }

    /// Notes that a script took in others.
    pub(crate) fn record_any_script(&self) {
        if let Some(notes) = &self.recorder {
            notes.record_component_code(hash_path_text("/apps"), PathAspects::ANY_SCRIPT);
        }
    }

    /// Notes that something of the request was used.
    pub(crate) fn record_fact(&self, fact: RequestFacts) {
        // Most are noted many times, and to look costs less than to add.
        if self.facts.load(Ordering::Relaxed) & fact.0 != fact.0 {
            self.facts.fetch_or(fact.0, Ordering::Relaxed);
        }
    }

    /// Notes that data of another system was used, which is good for so long.
    pub(crate) fn record_external_data(&self, max_age: Duration) {
        self.record_fact(RequestFacts::TIME);
        let mut known = self.max_age.lock();
        *known = Some(known.map_or(max_age, |known| known.min(max_age)));
    }

    /// Runs a query for nodes below a path; what it finds depends on everything there. Where words decide, weights do, and
    /// these on everything that the index has. What an index says that has not come up yet is good for this moment alone: no
    /// change of content tells when it has.
    ///
    /// # Errors
    /// Errors of the query.
    pub(crate) fn run_query(
        &self,
        engine: &QueryEngine,
        request: &QueryRequest<'_>,
        below: &NodePath,
    ) -> Result<QueryPage> {
        self.query_count.fetch_add(1, Ordering::Relaxed);
        self.record_fact(RequestFacts::INDEX);
        self.record(below, PathAspects::SUBTREE);
        let page = engine.query_page(&self.snapshot, request)?;
        if page.full_text_status != FullTextIndexStatus::Unused {
            self.record_additional(&NodePath::root(), PathAspects::SUBTREE);
        }
        if matches!(
            page.full_text_status,
            FullTextIndexStatus::Stale | FullTextIndexStatus::Building
        ) {
            self.record_external_data(Duration::ZERO);
        }
        page.rows.iter().filter_map(|row| row.node()).for_each(|node| {
            self.record(node.path(), node_aspects(node));
        });
        Ok(page)
    }

    /// Tells where a query looks at everything; nothing if an index serves it.
    pub(crate) fn describe_unindexed(
        &self,
        engine: &QueryEngine,
        request: &QueryRequest<'_>,
    ) -> Option<String> {
        let explained = engine.explain(&self.snapshot, request, false).ok()?;
        let bounds = explained.steps.into_iter().flat_map(|step| step.bounds);
        bounds.into_iter().find(|bound| bound.starts_with("everything below"))
    }

    /// Keeps an error that was met outside of the reader.
    pub(crate) fn record_failure(&self, error: Error) {
        let _: Option<()> = self.ok_or_record(Err(error));
    }

    /// Returns the first failure of the store, if there was any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get().or_else(|| self.snapshot.failure())
    }

    /// Returns how many look-ups there were so far.
    pub(crate) fn read_count(&self) -> u64 {
        self.read_count.load(Ordering::Relaxed)
    }

    /// Returns how many queries were run so far.
    pub(crate) fn query_count(&self) -> u64 {
        self.query_count.load(Ordering::Relaxed)
    }

    /// Begins to note what one component reads.
    pub(crate) fn begin_component(&self) -> ComponentReadMark {
        let Some(notes) = &self.recorder else { return ComponentReadMark::default() };
        let outer = notes.begin_component();
        ComponentReadMark { outer_mark: outer, facts: self.facts.swap(0, Ordering::Relaxed) }
    }

    /// Returns what was read and used since the latest beginning.
    pub(crate) fn component_reads(&self) -> (DependencySet, RequestFacts) {
        let facts = self.used_facts();
        let read = self.recorder.as_ref().map(|notes| notes.component_dependencies());
        (read.unwrap_or_default(), facts)
    }

    /// Ends what [`ContentReader::begin_component`] began: what was read counts for the component around it, too.
    pub(crate) fn end_component(&self, mark: ComponentReadMark) {
        self.facts.fetch_or(mark.facts, Ordering::Relaxed);
        if let Some(notes) = &self.recorder {
            notes.end_component(mark.outer_mark);
        }
    }

    /// Ends what [`ContentReader::begin_component`] began: what was read counts for the request, and not for the component around it.
    pub(crate) fn end_component_detached(&self, mark: ComponentReadMark) {
        let facts = self.facts.swap(mark.facts, Ordering::Relaxed);
        self.detached_facts.fetch_or(facts, Ordering::Relaxed);
        if let Some(notes) = &self.recorder {
            notes.end_component_detached(mark.outer_mark);
        }
    }

    /// Tells whether a component is being drawn whose reads are noted for themselves.
    pub(crate) fn is_in_component(&self) -> bool {
        self.recorder.as_ref().is_some_and(|notes| notes.is_in_component())
    }

    /// Notes again what a look-up read whose result was remembered: every node from a path up to another one.
    pub(crate) fn record_path_range(&self, from: &NodePath, to: Option<&NodePath>) {
        let mut next = Some(from.clone());
        while let Some(path) = next {
            self.record_additional(&path, self.existence_aspects);
            next = path.parent().filter(|_| Some(&path) != to);
        }
    }

    /// Notes what was read when a fragment was drawn that is used again.
    pub(crate) fn record_fragment(&self, read: &Arc<DependencySet>, facts: RequestFacts) {
        self.record_fact(facts);
        if let Some(notes) = &self.recorder {
            notes.record_fragment(Arc::clone(read));
        }
    }

    /// Hands out what was read.
    pub(crate) fn take_reads(&self) -> RequestReads {
        let taken = self.recorder.as_ref().map(|notes| notes.take_all());
        let (noted, listings, kept) = taken.unwrap_or_default();
        RequestReads {
            read_count: self.read_count(),
            query_count: self.query_count(),
            recorded: noted,
            list_queries: listings,
            fragment_dependencies: kept,
            facts: self
                .used_facts()
                .combine(RequestFacts(self.detached_facts.load(Ordering::Relaxed))),
            max_age: *self.max_age.lock(),
        }
    }

    /// Returns what was used of the request. What was decided about reading counts from its first difference on, whichever
    /// component met it.
    fn used_facts(&self) -> RequestFacts {
        let noted = RequestFacts(self.facts.load(Ordering::Relaxed));
        match self.snapshot.is_seen_alike() {
            Some(false) => noted.combine(RequestFacts::ACCESS_RIGHTS),
            Some(true) | None => noted,
        }
    }

    /// Returns what the request's viewer may see, apart from who it is; empty if it may see everything.
    pub(crate) fn access_fingerprint(&self) -> String {
        self.snapshot.access_fingerprint().map(|sight| sight.to_string()).unwrap_or_default()
    }

    /// Finds a node, noting nothing.
    fn find_node(&self, path: &NodePath) -> Option<Node> {
        let snapshot =
            if is_component_path(path) { &self.component_snapshot } else { &self.snapshot };
        self.ok_or_record(snapshot.node(path)).flatten()
    }

    /// Returns the root that is read.
    pub(crate) fn root(&self) -> tympan_content::ChunkId {
        self.snapshot.root_id()
    }

    /// Counts a look-up and notes it.
    fn record(&self, path: &NodePath, aspects: PathAspects) {
        self.increment_read_count();
        self.record_additional(path, aspects);
    }

    /// Notes a look-up of a child that is not there.
    fn record_missing_child(&self, node: &Node, name: &str, aspects: PathAspects) {
        self.increment_read_count();
        let Some(notes) = self.active_recorder() else { return };
        let parent = node.path();
        if reads_accounts(parent.as_str(), PathAspects::EXISTENCE)
            || (parent.is_root() && name == "home")
        {
            self.record_fact(RequestFacts::ACCOUNTS);
        }
        notes.record_child(parent, name, aspects);
    }

    /// Counts a look-up, without the price of an atomic addition.
    fn increment_read_count(&self) {
        self.read_count.store(self.read_count() + 1, Ordering::Relaxed);
    }

    /// Notes something more about what was looked up already.
    fn record_additional(&self, path: &NodePath, aspects: PathAspects) {
        if let Some(notes) = self.active_recorder() {
            if reads_accounts(path.as_str(), aspects) {
                self.record_fact(RequestFacts::ACCOUNTS);
            }
            notes.record(path.as_str(), aspects);
        }
    }

    /// Returns where reads are noted; nothing if they are not.
    fn active_recorder(&self) -> Option<&DependencyRecorder> {
        self.recorder.as_deref().filter(|_| !self.is_in_list_query.load(Ordering::Relaxed))
    }

    /// Keeps the first error for [`ContentReader::failure`].
    fn ok_or_record<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.failure.set(error)).ok()
    }
}

impl Drop for ContentReader {
    fn drop(&mut self) {
        if let Some(notes) = self.recorder.take() {
            DependencyRecorder::release(notes);
        }
    }
}

/// The component around one that is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ComponentReadMark {
    outer_mark: DependencyLogMark,
    facts: u32,
}

/// Returns what may be read of a node that is handed out: the parts of files and assets are reached past the reader.
fn node_aspects(node: &Node) -> PathAspects {
    let own = PathAspects::EXISTENCE
        .combine(PathAspects::PROPERTIES)
        .combine(PathAspects::NAVIGATION_HEAD);
    match node.primary_type() {
        "nt:file" | "dam:Asset" => {
            own.combine(PathAspects::WHOLE_DOCUMENT).combine(PathAspects::SUBTREE)
        }
        _ => own,
    }
}

/// Tells whether accounts were read: at their path, or in a list of what is below the root.
fn reads_accounts(path: &str, aspects: PathAspects) -> bool {
    // Asked of every read, most of which lie elsewhere by one letter.
    match path.as_bytes() {
        [b'/', b'h', ..] => {
            let rest = path.strip_prefix("/home");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        [b'/'] => aspects.overlaps(PathAspects::ANY_BELOW),
        _ => false,
    }
}

/// Tells whether a path leads to components, which draw for everybody.
fn is_component_path(path: &NodePath) -> bool {
    ["/apps/", "/libs/"].iter().any(|root| path.as_str().starts_with(root))
}
