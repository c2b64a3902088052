//! The only access to content while a request is rendered; records everything that is read.
//!
//! Input: a pinned snapshot. Output: nodes, and a [`RequestReads`] with the dependencies of the rendering: nodes,
//! properties, listings, whole subtrees, scripts, and paths where nothing was found.
//!
//! Invariants
//! * Components, resolution and default output reach nodes only through [`ContentReader`].
//! * Every read of a node is recorded. [`ContentReader::node`] and similar functions record all properties of the
//!   returned nodes, so that callers cannot forget any. The existence functions ([`ContentReader::node_existence`])
//!   record only the node's existence and primary type; callers read more of such a node through
//!   [`ContentReader::property`], [`ContentReader::text_property`] or [`ContentReader::record_type`].
//! * A listing covers which pages exist and which are hidden. Titles are recorded with [`ContentReader::record_head`]
//!   or [`ContentReader::record_titles_below`]; dates are read with [`ContentReader::last_modified`].
//! * Reads inside [`ContentReader::read_list`] affect only its result; reads of the result are recorded as usual.
//! * One thread renders a request: two threads that count at the same time may lose one lookup in the counter. Records
//!   are never lost.
//!
//! On failure: failed lookups return "not found" and store the error in [`ContentReader::failure`], which the renderer
//! checks before it returns anything.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tympan_content::{
    BorrowedProperty, ChildList, Error, JcrDate, Node, NodePath, NodeSummary, Property, Result,
    Snapshot, Viewer, is_path_within,
};
use tympan_content_query::{FullTextIndexStatus, QueryEngine, QueryPage, QueryRequest};

use crate::dependency::log::{DependencyLogMark, RecordedDependencies, join_dependencies};
use crate::dependency::path_dependency::{PathAspects, hash_path_text};
use crate::dependency::recorder::DependencyRecorder;
use crate::dependency::{DependencyHasher, DependencySet};
use crate::page::list_query::{ListQuery, ListQueryKind};
use crate::resource_merge::{find_merged_node, is_merged_path, merged_paths};

/// Selects whether a request records the paths it reads, or only counts reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadRecording {
    /// Count the reads.
    #[default]
    Count,
    /// Count the reads and record the paths.
    Paths,
}

/// The reads of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestReads {
    /// Number of lookups of nodes and listings.
    pub read_count: u64,
    /// Number of queries.
    pub query_count: u64,
    /// The recorded reads; empty unless paths were requested.
    pub(crate) recorded: RecordedDependencies,
    /// The lists that were queried, in place of their reads.
    pub(crate) list_queries: Vec<Arc<ListQuery>>,
    /// The dependencies of cached fragments, recorded when they were rendered.
    pub fragment_dependencies: Vec<Arc<DependencySet>>,
    /// The facts of the request that the rendering used.
    pub facts: RequestFacts,
    /// Maximum age of the rendering regardless of content changes, if it shows data of other systems.
    pub max_age: Option<Duration>,
}

impl RequestReads {
    /// Returns the dependencies of the rendering, as stored in the ledger.
    #[must_use]
    pub fn dependencies(&self) -> DependencySet {
        join_dependencies(
            self.recorded.dependencies(&self.list_queries),
            &self.fragment_dependencies,
        )
    }

    /// Returns a number that is equal for renderings that read the same in the same order. Other renderings have
    /// another number, and a collision cannot be provoked without the keys.
    pub(crate) fn digest(&self, keys: [u64; 2]) -> u64 {
        let mut digest = DependencyHasher::new(keys);
        self.recorded.add_to_digest(&mut digest);
        digest.add_list_queries(&self.list_queries);
        self.fragment_dependencies.iter().for_each(|read| read.add_to_digest(&mut digest));
        digest.finish()
    }

    /// Returns true if the rendering must not be cached at all, because a cached copy would be outdated at once.
    #[must_use]
    pub fn is_uncacheable(&self) -> bool {
        self.max_age.is_some_and(|age| age < Duration::from_secs(1))
    }
}

/// The facts of a request that a rendering used: another request may get another rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestFacts(u32);

impl RequestFacts {
    /// The requested page.
    pub const PAGE: Self = Self(1);
    /// The rest of the URL: selectors, extension, suffix.
    pub const URL: Self = Self(1 << 1);
    /// Parameters of the query.
    pub const PARAMETERS: Self = Self(1 << 2);
    /// Edit mode of an author.
    pub const EDIT: Self = Self(1 << 3);
    /// The user.
    pub const USER: Self = Self(1 << 4);
    /// A header.
    pub const HEADER: Self = Self(1 << 5);
    /// A cookie.
    pub const COOKIE: Self = Self(1 << 6);
    /// The time of day, or data that another system returned at that time.
    pub const TIME: Self = Self(1 << 7);
    /// The requested host and scheme: mapped addresses depend on them.
    pub const HOST: Self = Self(1 << 8);
    /// The fault that an error page reports.
    pub const FAULT: Self = Self(1 << 9);
    /// The results that an index had found so far.
    pub const INDEX: Self = Self(1 << 10);
    /// Content below `/home`: users see their own there.
    pub const ACCOUNTS: Self = Self(1 << 11);
    /// Content that the user may see and anonymous visitors may not, or the other way round.
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

    /// Returns the union of both.
    #[must_use]
    pub const fn combine(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if both have a fact in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns these facts without the others.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the names of the facts.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Self::FACT_NAMES.iter().enumerate();
        all.filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| *name)
    }
}

/// The aspect of every lookup of a node.
static EXISTENCE_ASPECTS: LazyLock<PathAspects> =
    LazyLock::new(|| PathAspects::EXISTENCE.combine(PathAspects::property("jcr:primaryType")));
/// The aspects that select the script of a resource.
static TYPE_ASPECTS: LazyLock<PathAspects> = LazyLock::new(|| {
    PathAspects::property("sling:resourceType")
        .combine(PathAspects::property("sling:resourceSuperType"))
});

/// Maximum number of merged resources that one request may use, those that do not exist included.
const MAX_MERGED_RESOURCES: usize = 50;

/// The folder of content fragment models below a configuration.
const FRAGMENT_MODELS_FOLDER: &str = "/settings/dam/cfm/models/";
/// The folders of a configuration that contain its templates and policies.
const TEMPLATES_FOLDER: &str = "/settings/wcm/templates/";
const POLICIES_FOLDER: &str = "/settings/wcm/policies/";

/// Reads content and records the reads.
#[derive(Debug)]
pub(crate) struct ContentReader {
    /// The content visible to the request's viewer.
    snapshot: Snapshot,
    /// The same state, with the parts of components that viewers need not see.
    component_snapshot: Snapshot,
    read_count: AtomicU64,
    query_count: AtomicU64,
    facts: AtomicU32,
    /// The facts of detached components.
    detached_facts: AtomicU32,
    max_age: Mutex<Option<Duration>>,
    recorder: Option<Box<DependencyRecorder>>,
    /// True while a list is read; its query is recorded in place of the reads.
    is_in_list_query: AtomicBool,
    failure: OnceLock<Error>,
    existence_aspects: PathAspects,
    type_aspects: PathAspects,
    /// The folders of settings that render for all users, because a page has a template that uses them.
    open_settings: Mutex<Vec<Box<str>>>,
    /// The merged resources that were requested so far; `None` if their paths lead to no such resources.
    merged_nodes: Option<Mutex<HashMap<NodePath, Option<Node>>>>,
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
            open_settings: Mutex::default(),
            merged_nodes: None,
        }
    }

    /// Finds merged resources too, below `/mnt/overlay` and `/mnt/override`.
    pub(crate) fn with_merged_resources(mut self) -> Self {
        self.merged_nodes = Some(Mutex::default());
        self
    }

    /// Opens the template of a page that the viewer may read: its structure and mapping, and the policies of its
    /// configuration, render for all users from now on, and so do its layouts. What else the template has, such as the
    /// initial content of new pages, remains for those who may read it.
    pub(crate) fn open_template(&self, template: &str) {
        let template = template.trim_end_matches('/');
        let Some((settings, _)) = template.split_once(TEMPLATES_FOLDER) else { return };
        if !settings.starts_with("/conf/") {
            return;
        }
        let folders = [
            format!("{template}/structure/"),
            format!("{template}/policies/"),
            format!("{template}/cq:responsive/"),
            format!("{template}/jcr:content/cq:responsive/"),
            format!("{template}/initial/jcr:content/cq:responsive/"),
            format!("{settings}{POLICIES_FOLDER}"),
            format!("/conf/global{POLICIES_FOLDER}"),
        ];
        let mut open_settings = self.open_settings.lock();
        for folder in folders {
            if !open_settings.iter().any(|open_folder| **open_folder == folder) {
                open_settings.push(folder.into());
            }
        }
    }

    /// Opens the model of a content fragment that the viewer may read: pages show the titles of its elements to everyone.
    pub(crate) fn open_fragment_model(&self, model: &str) {
        let model = model.trim_end_matches('/');
        let is_model = model.starts_with("/conf/") && model.contains(FRAGMENT_MODELS_FOLDER);
        let folder = format!("{model}/");
        let mut open_settings = self.open_settings.lock();
        if is_model && !open_settings.iter().any(|open_folder| **open_folder == folder) {
            open_settings.push(folder.into());
        }
    }

    /// Finds a node; records all its properties.
    pub(crate) fn node(&self, path: &NodePath) -> Option<Node> {
        let node = self.find_node(path);
        self.record(path, node.as_ref().map_or(PathAspects::EXISTENCE, node_aspects));
        node
    }

    /// Finds a node; records only existence and type.
    pub(crate) fn node_existence(&self, path: &NodePath) -> Option<Node> {
        self.record(path, self.existence_aspects);
        self.find_node(path)
    }

    /// Finds the node that a URL names if the viewer sees it; records only existence and type.
    pub(crate) fn resource_at(&self, path: &str) -> Option<Node> {
        let path = NodePath::new(path).ok()?;
        self.record(&path, self.existence_aspects);
        if let Some(merged) = self.find_merged(&path) {
            return merged;
        }
        self.ok_or_record(self.snapshot.node(&path)).flatten()
    }

    /// Finds a node by a path that may be invalid.
    pub(crate) fn node_at(&self, path: &str) -> Option<Node> {
        self.node(&NodePath::new(path).ok()?)
    }

    /// Finds a node by a path that may be invalid; records only existence and type.
    pub(crate) fn node_existence_at(&self, path: &str) -> Option<Node> {
        self.node_existence(&NodePath::new(path).ok()?)
    }

    /// Finds a node of a site's settings, which render for all users, and records anything at and below it as read. The
    /// node gives its parts without the reader.
    pub(crate) fn settings_subtree(&self, path: &NodePath) -> Option<Node> {
        self.record(path, PathAspects::EXISTENCE.combine(PathAspects::SUBTREE));
        self.ok_or_record(self.component_snapshot.node(path)).flatten()
    }

    /// Returns the state with the settings that render for all users. What is read of it is not recorded.
    pub(crate) fn settings_snapshot(&self) -> &Snapshot {
        &self.component_snapshot
    }

    /// Returns the state as the viewer sees it. What is read of it is not recorded.
    pub(crate) fn viewer_snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Records that anything at and below a path may be read.
    pub(crate) fn record_subtree(&self, path: &NodePath) {
        self.record_additional(path, PathAspects::EXISTENCE.combine(PathAspects::SUBTREE));
    }

    /// Finds a child; records all its properties.
    pub(crate) fn child(&self, node: &Node, name: &str) -> Option<Node> {
        let child_node = self.ok_or_record(node.child(name)).flatten();
        match &child_node {
            Some(child) => self.record(child.path(), node_aspects(child)),
            None => self.record_missing_child(node, name, PathAspects::EXISTENCE),
        }
        child_node
    }

    /// Finds a child; records only existence and type.
    pub(crate) fn child_existence(&self, node: &Node, name: &str) -> Option<Node> {
        let child_node = self.ok_or_record(node.child(name)).flatten();
        match &child_node {
            Some(child) => self.record(child.path(), self.existence_aspects),
            None => self.record_missing_child(node, name, self.existence_aspects),
        }
        child_node
    }

    /// Finds a descendant by a relative path.
    pub(crate) fn descendant(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child(&node, name))
    }

    /// Finds a descendant by a relative path; records only existence and type.
    pub(crate) fn descendant_existence(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child_existence(&node, name))
    }

    /// Returns the children in order; records all properties of each.
    pub(crate) fn children(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::CHILDREN);
        let children = self.ok_or_record(node.children()).unwrap_or_default();
        children.iter().for_each(|child| self.record_additional(child.path(), node_aspects(child)));
        children
    }

    /// Returns the children in order; records existence and resource type of each.
    pub(crate) fn children_existence(&self, node: &Node) -> Vec<Node> {
        let Some(list) = self.child_list(node) else { return Vec::new() };
        let children: Vec<Node> = list.iter().collect();
        let aspects = self.existence_aspects.combine(self.type_aspects);
        // If one child leads to accounts, all do, except for children of the root.
        let leads = |child: &Node| reads_accounts(child.path().as_str(), aspects);
        if node.path().is_root() || children.first().is_some_and(leads) {
            children.iter().for_each(|child| self.record_additional(child.path(), aspects));
        } else if let Some(notes) = self.active_recorder() {
            let paths = children.iter().map(|child| child.path().as_str());
            notes.record_children(node.path(), paths, aspects);
        }
        children
    }

    /// Returns the children in order; records only their names. The caller records each child that it uses with
    /// [`ContentReader::record_listed_child`].
    pub(crate) fn child_list(&self, node: &Node) -> Option<ChildList> {
        self.record(node.path(), PathAspects::CHILDREN);
        self.ok_or_record(node.child_list())
    }

    /// Records existence and resource type of a child that was reached in a list.
    pub(crate) fn record_listed_child(&self, child: &Node) {
        self.record_additional(child.path(), self.existence_aspects.combine(self.type_aspects));
    }

    /// Returns the child pages that navigations show, in order, without reading their bodies.
    pub(crate) fn visible_child_pages(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::CHILD_HEADS);
        let mut children = self.ok_or_record(node.listed_children()).unwrap_or_default();
        let hides = |child: &Node| child.summary().is_some_and(NodeSummary::is_hidden_in_nav);
        children.retain(|child| child.is_page() && !hides(child));
        children
    }

    /// Returns all descendant pages, without reading their bodies.
    pub(crate) fn pages_below(&self, node: &Node) -> Vec<Node> {
        self.record(node.path(), PathAspects::HEADS_BELOW);
        let mut pages = self.ok_or_record(node.listed_descendants()).unwrap_or_default();
        pages.retain(Node::is_page);
        pages
    }

    /// Returns a property of a node that was found by existence only.
    pub(crate) fn property(&self, node: &Node, name: &str) -> Option<Property> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.property(name)
    }

    /// Returns a borrowed property of a node that was found by existence only.
    pub(crate) fn borrowed_property<'a>(
        &self,
        node: &'a Node,
        name: &str,
    ) -> Option<BorrowedProperty<'a>> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.as_borrowed()?.property(name)
    }

    /// Returns a single text-like property of a node that was found by existence only.
    pub(crate) fn text_property(&self, node: &Node, name: &str) -> Option<String> {
        self.record_additional(node.path(), PathAspects::property(name));
        node.text(name)
    }

    /// Records that the resource type of a node is read.
    pub(crate) fn record_type(&self, node: &Node) {
        self.record_additional(node.path(), self.type_aspects);
    }

    /// Records that the title of a page is read.
    pub(crate) fn record_head(&self, page: &Node) {
        self.record_additional(page.path(), PathAspects::NAVIGATION_HEAD);
    }

    /// Records a dependency on the titles of everything below a node.
    pub(crate) fn record_titles_below(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::TITLES_BELOW);
    }

    /// Records that all properties of a node are read.
    pub(crate) fn record_properties(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::PROPERTIES);
    }

    /// Records that anything in a node's document may be read, also if the node is a part of a larger one, as in a file
    /// or an asset.
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

    /// Records a dependency on the dates of everything below a node, so that the pages need no record of their own.
    pub(crate) fn record_dates_below(&self, node: &Node) {
        self.record_additional(node.path(), PathAspects::DATES_BELOW);
    }

    /// Reads a list. Its query is recorded in place of all the reads.
    pub(crate) fn read_list<T>(&self, question: ListQueryKind, read: impl FnOnce() -> T) -> T {
        let Some(notes) = &self.recorder else { return read() };
        let Some(listing) = ListQuery::new(question) else { return read() };
        if reads_accounts(listing.root().as_str(), PathAspects::ANY_BELOW) {
            self.record_fact(RequestFacts::ACCOUNTS);
        }
        let was_listing = self.is_in_list_query.swap(true, Ordering::Relaxed);
        let result = read();
        self.is_in_list_query.store(was_listing, Ordering::Relaxed);
        if !was_listing {
            notes.record_list_query(listing);
        }
        result
    }

    /// Records a search for a script of a resource type in the folders with these hashes.
    pub(crate) fn record_script_folders(&self, folders: Arc<[u64]>) {
        if let Some(notes) = &self.recorder {
            notes.record_script_folders(folders);
        }
    }

    /// Records that a script was run.
    pub(crate) fn record_script(&self, script: &Arc<str>) {
        if let Some(notes) = &self.recorder {
            notes.record_script(script);
        }
    }

    /// Records that a script includes others.
    pub(crate) fn record_any_script(&self) {
        if let Some(notes) = &self.recorder {
            notes.record_component_code(hash_path_text("/apps"), PathAspects::ANY_SCRIPT);
        }
    }

    /// Records that a fact of the request was used.
    pub(crate) fn record_fact(&self, fact: RequestFacts) {
        // Most facts are recorded many times, and a check costs less than an atomic update.
        if self.facts.load(Ordering::Relaxed) & fact.0 != fact.0 {
            self.facts.fetch_or(fact.0, Ordering::Relaxed);
        }
    }

    /// Records the use of data of another system, and its maximum age.
    pub(crate) fn record_external_data(&self, max_age: Duration) {
        self.record_fact(RequestFacts::TIME);
        let mut current = self.max_age.lock();
        *current = Some(current.map_or(max_age, |current| current.min(max_age)));
    }

    /// Runs a query for nodes below a path; the result depends on everything there. Full-text results depend on
    /// weights, and these on the whole index. While an index is not up to date, its result is valid for this moment
    /// only: no content change signals its completion.
    ///
    /// # Errors
    /// Errors of the query.
    pub(crate) fn run_query(
        &self,
        engine: &QueryEngine,
        request: &QueryRequest<'_>,
        below: &NodePath,
    ) -> tympan_content_query::Result<QueryPage> {
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

    /// Describes where a query scans all nodes; `None` if an index serves it.
    pub(crate) fn describe_unindexed(
        &self,
        engine: &QueryEngine,
        request: &QueryRequest<'_>,
    ) -> Option<String> {
        let explained = engine.explain(&self.snapshot, request, false).ok()?;
        let bounds = explained.steps.into_iter().flat_map(|step| step.bounds);
        bounds.into_iter().find(|bound| bound.starts_with("everything below"))
    }

    /// Stores an error that occurred outside of the reader.
    pub(crate) fn record_failure(&self, error: Error) {
        let _: Option<()> = self.ok_or_record(Err(error));
    }

    /// Returns the first failure of the store, if there was any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get().or_else(|| self.snapshot.failure())
    }

    /// Returns the number of lookups so far.
    pub(crate) fn read_count(&self) -> u64 {
        self.read_count.load(Ordering::Relaxed)
    }

    /// Returns the number of queries so far.
    pub(crate) fn query_count(&self) -> u64 {
        self.query_count.load(Ordering::Relaxed)
    }

    /// Begins to record the reads of one component.
    pub(crate) fn begin_component(&self) -> ComponentReadMark {
        let Some(notes) = &self.recorder else { return ComponentReadMark::default() };
        let outer = notes.begin_component();
        ComponentReadMark { outer_mark: outer, facts: self.facts.swap(0, Ordering::Relaxed) }
    }

    /// Returns the reads and facts since the latest begin.
    pub(crate) fn component_reads(&self) -> (DependencySet, RequestFacts) {
        let facts = self.used_facts();
        let read = self.recorder.as_ref().map(|notes| notes.component_dependencies());
        (read.unwrap_or_default(), facts)
    }

    /// Ends the component that [`ContentReader::begin_component`] began; its reads count for the enclosing component,
    /// too.
    pub(crate) fn end_component(&self, mark: ComponentReadMark) {
        self.facts.fetch_or(mark.facts, Ordering::Relaxed);
        if let Some(notes) = &self.recorder {
            notes.end_component(mark.outer_mark);
        }
    }

    /// Ends the component that [`ContentReader::begin_component`] began; its reads count for the request, but not for
    /// the enclosing component.
    pub(crate) fn end_component_detached(&self, mark: ComponentReadMark) {
        let facts = self.facts.swap(mark.facts, Ordering::Relaxed);
        self.detached_facts.fetch_or(facts, Ordering::Relaxed);
        if let Some(notes) = &self.recorder {
            notes.end_component_detached(mark.outer_mark);
        }
    }

    /// Returns true if a component with reads of its own is being rendered.
    pub(crate) fn is_in_component(&self) -> bool {
        self.recorder.as_ref().is_some_and(|notes| notes.is_in_component())
    }

    /// Records the reads of a memoized lookup again: every node from a path up to another one.
    pub(crate) fn record_path_range(&self, from: &NodePath, to: Option<&NodePath>) {
        let mut next = Some(from.clone());
        while let Some(path) = next {
            self.record_additional(&path, self.existence_aspects);
            next = path.parent().filter(|_| Some(&path) != to);
        }
    }

    /// Records the dependencies of a cached fragment that is reused.
    pub(crate) fn record_fragment(&self, read: &Arc<DependencySet>, facts: RequestFacts) {
        self.record_fact(facts);
        if let Some(notes) = &self.recorder {
            notes.record_fragment(Arc::clone(read));
        }
    }

    /// Takes all recorded reads.
    pub(crate) fn take_reads(&self) -> RequestReads {
        let recorded_reads = self.recorder.as_ref().map(|notes| notes.take_all());
        let (recorded, listings, fragment_dependencies) = recorded_reads.unwrap_or_default();
        RequestReads {
            read_count: self.read_count(),
            query_count: self.query_count(),
            recorded,
            list_queries: listings,
            fragment_dependencies,
            facts: self
                .used_facts()
                .combine(RequestFacts(self.detached_facts.load(Ordering::Relaxed))),
            max_age: *self.max_age.lock(),
        }
    }

    /// Returns the facts of the request that were used. An access decision counts from its first difference on,
    /// regardless of which component met it.
    fn used_facts(&self) -> RequestFacts {
        let facts = RequestFacts(self.facts.load(Ordering::Relaxed));
        match self.snapshot.is_seen_alike() {
            Some(false) => facts.combine(RequestFacts::ACCESS_RIGHTS),
            Some(true) | None => facts,
        }
    }

    /// Returns a fingerprint of what the viewer may see, independent of the viewer's identity; empty if everything is
    /// visible.
    pub(crate) fn access_fingerprint(&self) -> String {
        self.snapshot.access_fingerprint().map(|sight| sight.to_string()).unwrap_or_default()
    }

    /// Finds a node without recording; a merged one records what it consists of.
    fn find_node(&self, path: &NodePath) -> Option<Node> {
        if let Some(merged) = self.find_merged(path) {
            return merged;
        }
        let renders_for_all = is_component_path(path) || self.is_open_setting(path);
        let snapshot = if renders_for_all { &self.component_snapshot } else { &self.snapshot };
        self.ok_or_record(snapshot.node(path)).flatten()
    }

    /// Finds a merged resource as far as the viewer may read what it consists of; the outer option is `None` if the path
    /// is not that of a merged resource. One that is too large is absent.
    fn find_merged(&self, path: &NodePath) -> Option<Option<Node>> {
        let mut merged_nodes =
            self.merged_nodes.as_ref().filter(|_| is_merged_path(path.as_str()))?.lock();
        if let Some(node) = merged_nodes.get(path) {
            return Some(node.clone());
        }
        if merged_nodes.len() >= MAX_MERGED_RESOURCES {
            tracing::warn!(path = %path, "a request uses too many merged resources");
            return Some(None);
        }
        for source in self.ok_or_record(merged_paths(&self.snapshot, path)).unwrap_or_default() {
            self.record_path_range(&source, None);
            self.record_additional(&source, PathAspects::SUBTREE);
        }
        let node = match find_merged_node(&self.snapshot, path) {
            Err(error @ Error::InvalidEdit { .. }) => {
                tracing::warn!(path = %path, error = %error, "a merged resource is left out");
                None
            }
            result => self.ok_or_record(result).flatten(),
        };
        merged_nodes.insert(path.clone(), node.clone());
        Some(node)
    }

    /// Returns true if a path lies in the settings of an open template.
    fn is_open_setting(&self, path: &NodePath) -> bool {
        path.as_str().starts_with("/conf/")
            && self.open_settings.lock().iter().any(|folder| path.as_str().starts_with(&**folder))
    }

    /// Returns the root of the snapshot.
    pub(crate) fn root(&self) -> tympan_content::ChunkId {
        self.snapshot.root_id()
    }

    /// Counts a lookup and records it.
    fn record(&self, path: &NodePath, aspects: PathAspects) {
        self.increment_read_count();
        self.record_additional(path, aspects);
    }

    /// Records a lookup of a missing child.
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

    /// Counts a lookup without the cost of an atomic addition.
    fn increment_read_count(&self) {
        self.read_count.store(self.read_count() + 1, Ordering::Relaxed);
    }

    /// Records further aspects of an earlier lookup.
    fn record_additional(&self, path: &NodePath, aspects: PathAspects) {
        if let Some(notes) = self.active_recorder() {
            if reads_accounts(path.as_str(), aspects) {
                self.record_fact(RequestFacts::ACCOUNTS);
            }
            notes.record(path.as_str(), aspects);
        }
    }

    /// Returns the recorder; `None` if reads are not recorded.
    fn active_recorder(&self) -> Option<&DependencyRecorder> {
        self.recorder.as_deref().filter(|_| !self.is_in_list_query.load(Ordering::Relaxed))
    }

    /// Stores the first error for [`ContentReader::failure`].
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

/// The enclosing component of the one being rendered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ComponentReadMark {
    outer_mark: DependencyLogMark,
    facts: u32,
}

/// Returns the aspects that a caller may read of a returned node: parts of files and assets are read without the
/// reader.
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

/// Returns true if accounts were read: at their path, or in a list of nodes below the root.
fn reads_accounts(path: &str, aspects: PathAspects) -> bool {
    // Runs for every read; the first letters rule out most paths.
    match path.as_bytes() {
        [b'/', b'h', ..] => is_path_within(path, "/home"),
        [b'/'] => aspects.overlaps(PathAspects::ANY_BELOW),
        _ => false,
    }
}

/// Returns true if a path lies below components, which render for all users.
fn is_component_path(path: &NodePath) -> bool {
    ["/apps/", "/libs/"].iter().any(|root| path.as_str().starts_with(root))
}
