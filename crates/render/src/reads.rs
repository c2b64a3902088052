//! The one door to content while a request is drawn, which notes everything that was read.
//!
//! In: a pinned snapshot. Out: nodes, and a [`Reads`] that says what the drawing depends on: nodes, properties,
//! listings, whole subtrees, scripts, and places where nothing was found.
//!
//! Invariants
//! * Components, resolution and default output reach nodes only through [`Reader`].
//! * What a node is asked for is noted. [`Reader::node`] and its like note all properties of what they hand out, so that
//!   whoever reads them forgets nothing. Those that glance ([`Reader::glance`]) note the node's existence and primary type
//!   alone; who reads more of such a node does it through [`Reader::property`], [`Reader::text`] or [`Reader::note_type`].
//! * A listing covers which pages there are, and which hide. Their titles are noted with
//!   [`Reader::note_head`] or [`Reader::note_titles_below`], dates are asked for with [`Reader::modified`].
//! * What [`Reader::listed`] reads decides about its answer alone; what is read of the answer is noted like all else.
//! * One thread draws a request: two that count at the same time may count one look-up less. Notes are never lost.
//!
//! On failure: look-ups that fail answer "nothing there" and leave the error in [`Reader::failure`], which the
//! renderer asks before it hands anything out.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tympan_content::query::{Page, QueryEngine, Request, WordsBy};
use tympan_content::{
    BorrowedProperty, ChildList, Date, Error, Node, NodePath, Property, Result, Snapshot, Summary,
    Viewer,
};

use crate::dependency::{Aspects, Dependencies, Digest, hash_text};
use crate::listing::{Listing, Question};
use crate::noted::{Begin, Noted, joined};
use crate::notepad::Notepad;

/// Whether a request keeps the paths it read, or counts only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recording {
    /// Count the reads.
    #[default]
    Count,
    /// Count them and keep the paths.
    Paths,
}

/// What one request read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// How many look-ups of nodes and listings there were.
    pub count: u64,
    /// How many queries were run.
    pub queries: u64,
    /// What was read where; nothing unless paths were asked for.
    pub(crate) noted: Noted,
    /// The lists that were asked for, in place of what they read.
    pub(crate) listings: Vec<Arc<Listing>>,
    /// What was read for kept fragments, when they were drawn.
    pub kept: Vec<Arc<Dependencies>>,
    /// What of the request the drawing used.
    pub facts: Facts,
    /// How long the drawing is good for at most, whatever changes in content: it shows data of other systems.
    pub max_age: Option<Duration>,
}

impl Reads {
    /// Returns what the drawing depends on, as the ledger keeps it.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        joined(self.noted.dependencies(&self.listings), &self.kept)
    }

    /// Returns a number that drawings have in common which read the same in the same order. Others have another one, and
    /// nobody who does not know the keys can aim at it.
    pub(crate) fn digest(&self, keys: [u64; 2]) -> u64 {
        let mut digest = Digest::new(keys);
        self.noted.digest(&mut digest);
        digest.add_listings(&self.listings);
        self.kept.iter().for_each(|read| read.digest(&mut digest));
        digest.finish()
    }

    /// Tells whether the drawing is good for no second: whoever kept it would show others what was.
    #[must_use]
    pub fn is_momentary(&self) -> bool {
        self.max_age.is_some_and(|age| age < Duration::from_secs(1))
    }
}

/// What of a request a drawing used, so that another request may get something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts(u32);

impl Facts {
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
    pub const SIGHT: Self = Self(1 << 12);

    const NAMES: [&str; 13] = [
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
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Tells whether these hold any of the others.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns those that the others do not hold.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the words for them.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = Self::NAMES.iter().enumerate();
        all.filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| *name)
    }
}

/// What every look at a node is about.
static GLANCE: LazyLock<Aspects> =
    LazyLock::new(|| Aspects::EXISTENCE.and(Aspects::property("jcr:primaryType")));
/// What decides about the script of a resource.
static TYPES: LazyLock<Aspects> = LazyLock::new(|| {
    Aspects::property("sling:resourceType").and(Aspects::property("sling:resourceSuperType"))
});

/// Reads content and notes it.
#[derive(Debug)]
pub(crate) struct Reader {
    /// What the request's viewer sees.
    snapshot: Snapshot,
    /// The same state with what viewers need not see of components.
    program: Snapshot,
    count: AtomicU64,
    queries: AtomicU64,
    facts: AtomicU32,
    /// Those of components that were set aside.
    aside_facts: AtomicU32,
    max_age: Mutex<Option<Duration>>,
    notes: Option<Box<Notepad>>,
    /// Whether a list is read, for which its question stands.
    is_listing: AtomicBool,
    failure: OnceLock<Error>,
    glance: Aspects,
    types: Aspects,
}

impl Reader {
    pub(crate) fn new(snapshot: Snapshot, recording: Recording) -> Self {
        let notes = (recording == Recording::Paths).then(Notepad::take_up);
        let program = snapshot.seen_by(&Viewer::system());
        Self {
            snapshot,
            program,
            count: AtomicU64::new(0),
            queries: AtomicU64::new(0),
            facts: AtomicU32::new(0),
            aside_facts: AtomicU32::new(0),
            max_age: Mutex::default(),
            notes,
            is_listing: AtomicBool::new(false),
            failure: OnceLock::new(),
            glance: *GLANCE,
            types: *TYPES,
        }
    }

    /// Finds a node, all of which may be read.
    pub(crate) fn node(&self, path: &NodePath) -> Option<Node> {
        let found = self.find_node(path);
        self.note(path, found.as_ref().map_or(Aspects::EXISTENCE, whole));
        found
    }

    /// Finds a node of which existence and type matter.
    pub(crate) fn glance(&self, path: &NodePath) -> Option<Node> {
        self.note(path, self.glance);
        self.find_node(path)
    }

    /// Finds the node that a URL names, if the viewer sees it; existence and type matter.
    pub(crate) fn resource_at(&self, path: &str) -> Option<Node> {
        let path = NodePath::new(path).ok()?;
        self.note(&path, self.glance);
        self.keep(self.snapshot.node(&path)).flatten()
    }

    /// Finds a node by a path that may be no valid path at all.
    pub(crate) fn node_at(&self, path: &str) -> Option<Node> {
        self.node(&NodePath::new(path).ok()?)
    }

    /// Finds a node of which existence and type matter, by a path that may be no valid path at all.
    pub(crate) fn glance_at(&self, path: &str) -> Option<Node> {
        self.glance(&NodePath::new(path).ok()?)
    }

    /// Finds a child, all of which may be read.
    pub(crate) fn child(&self, node: &Node, name: &str) -> Option<Node> {
        let found = self.keep(node.child(name)).flatten();
        match &found {
            Some(child) => self.note(child.path(), whole(child)),
            None => self.note_child(node, name, Aspects::EXISTENCE),
        }
        found
    }

    /// Finds a child of which existence and type matter.
    pub(crate) fn glance_child(&self, node: &Node, name: &str) -> Option<Node> {
        let found = self.keep(node.child(name)).flatten();
        match &found {
            Some(child) => self.note(child.path(), self.glance),
            None => self.note_child(node, name, self.glance),
        }
        found
    }

    /// Finds a node below by a relative path.
    pub(crate) fn find(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child(&node, name))
    }

    /// Finds a node below of which existence and type matter.
    pub(crate) fn glance_below(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.glance_child(&node, name))
    }

    /// Returns the children in order, all of each of which may be read.
    pub(crate) fn children(&self, node: &Node) -> Vec<Node> {
        self.note(node.path(), Aspects::CHILDREN);
        let children = self.keep(node.children()).unwrap_or_default();
        children.iter().for_each(|child| self.also(child.path(), whole(child)));
        children
    }

    /// Returns the children in order; of each, existence and the type that draws it matter.
    pub(crate) fn glance_children(&self, node: &Node) -> Vec<Node> {
        let Some(list) = self.glance_list(node) else { return Vec::new() };
        let children: Vec<Node> = list.iter().collect();
        let aspects = self.glance.and(self.types);
        // Where one child leads to accounts, all do, but for those of the root.
        let leads = |child: &Node| leads_to_accounts(child.path().as_str(), aspects);
        if node.path().is_root() || children.first().is_some_and(leads) {
            children.iter().for_each(|child| self.also(child.path(), aspects));
        } else if let Some(notes) = self.open_notes() {
            let paths = children.iter().map(|child| child.path().as_str());
            notes.add_children(node.path(), paths, aspects);
        }
        children
    }

    /// Returns the children in order, of which only their names are read; whoever reaches one says so by
    /// [`Reader::note_listed`].
    pub(crate) fn glance_list(&self, node: &Node) -> Option<ChildList> {
        self.note(node.path(), Aspects::CHILDREN);
        self.keep(node.child_list())
    }

    /// Notes existence and the type that draws it of a child that was reached in a list.
    pub(crate) fn note_listed(&self, child: &Node) {
        self.also(child.path(), self.glance.and(self.types));
    }

    /// Returns the children that are pages and do not hide from navigations, in order, without reading their bodies.
    pub(crate) fn shown_children(&self, node: &Node) -> Vec<Node> {
        self.note(node.path(), Aspects::CHILD_HEADS);
        let mut children = self.keep(node.listed_children()).unwrap_or_default();
        let hides = |child: &Node| child.summary().is_some_and(Summary::hide_in_nav);
        children.retain(|child| child.is_page() && !hides(child));
        children
    }

    /// Returns the pages below, at any depth, without reading their bodies.
    pub(crate) fn pages_below(&self, node: &Node) -> Vec<Node> {
        self.note(node.path(), Aspects::HEADS_BELOW);
        let mut pages = self.keep(node.listed_descendants()).unwrap_or_default();
        pages.retain(Node::is_page);
        pages
    }

    /// Returns a property of a node that was glanced at.
    pub(crate) fn property(&self, node: &Node, name: &str) -> Option<Property> {
        self.also(node.path(), Aspects::property(name));
        node.property(name)
    }

    /// Returns a property of a node that was glanced at, where it is stored.
    pub(crate) fn borrowed<'a>(&self, node: &'a Node, name: &str) -> Option<BorrowedProperty<'a>> {
        self.also(node.path(), Aspects::property(name));
        node.borrowed()?.property(name)
    }

    /// Returns a single text-like property of a node that was glanced at.
    pub(crate) fn text(&self, node: &Node, name: &str) -> Option<String> {
        self.also(node.path(), Aspects::property(name));
        node.text(name)
    }

    /// Notes that the type that draws a node is read.
    pub(crate) fn note_type(&self, node: &Node) {
        self.also(node.path(), self.types);
    }

    /// Notes that the title of a page is read.
    pub(crate) fn note_head(&self, page: &Node) {
        self.also(page.path(), Aspects::HEAD);
    }

    /// Notes that the titles of everything below a node decide.
    pub(crate) fn note_titles_below(&self, node: &Node) {
        self.also(node.path(), Aspects::TITLES_BELOW);
    }

    /// Notes that all properties of a node are read.
    pub(crate) fn note_properties(&self, node: &Node) {
        self.also(node.path(), Aspects::PROPERTIES);
    }

    /// Notes that anything in a node's document may be read, also where the node is a part of a larger one: the parts of a
    /// file or an asset.
    pub(crate) fn note_document(&self, node: &Node) {
        self.also(node.path(), Aspects::DOCUMENT.and(Aspects::BELOW));
    }

    /// Returns when a page was last modified.
    pub(crate) fn modified(&self, page: &Node) -> Option<Date> {
        self.also(page.path(), Aspects::DATE);
        page.summary().and_then(Summary::modified)
    }

    /// Notes that the dates of everything below a node decide, so that no page need be noted for its own.
    pub(crate) fn note_dates_below(&self, node: &Node) {
        self.also(node.path(), Aspects::DATES_BELOW);
    }

    /// Reads a list. In place of all that is read for it, the question is noted.
    pub(crate) fn listed<T>(&self, question: Question, read: impl FnOnce() -> T) -> T {
        let Some(notes) = &self.notes else { return read() };
        let Some(listing) = Listing::new(question) else { return read() };
        if leads_to_accounts(listing.root().as_str(), Aspects::ANY_BELOW) {
            self.note_fact(Facts::ACCOUNTS);
        }
        let was_listing = self.is_listing.swap(true, Ordering::Relaxed);
        let found = read();
        self.is_listing.store(was_listing, Ordering::Relaxed);
        if !was_listing {
            notes.add_list(listing);
        }
        found
    }

    /// Notes that a script of a resource type was looked for in the folders with these hashes.
    pub(crate) fn note_scripts(&self, folders: Arc<[u64]>) {
        if let Some(notes) = &self.notes {
            notes.add_places(folders);
        }
    }

    /// Notes that a script was run.
    pub(crate) fn note_script(&self, script: &Arc<str>) {
        if let Some(notes) = &self.notes {
            notes.add_script(script);
        }
    }

    /// Notes that a script took in others.
    pub(crate) fn note_any_script(&self) {
        if let Some(notes) = &self.notes {
            notes.add_program(hash_text("/apps"), Aspects::ANY_SCRIPT);
        }
    }

    /// Notes that something of the request was used.
    pub(crate) fn note_fact(&self, fact: Facts) {
        // Most are noted many times, and to look costs less than to add.
        if self.facts.load(Ordering::Relaxed) & fact.0 != fact.0 {
            self.facts.fetch_or(fact.0, Ordering::Relaxed);
        }
    }

    /// Notes that data of another system was used, which is good for so long.
    pub(crate) fn note_data(&self, max_age: Duration) {
        self.note_fact(Facts::TIME);
        let mut known = self.max_age.lock();
        *known = Some(known.map_or(max_age, |known| known.min(max_age)));
    }

    /// Runs a query for nodes below a path; what it finds depends on everything there. Where words decide, weights do, and
    /// these on everything that the index has. What an index says that has not come up yet is good for this moment alone: no
    /// change of content tells when it has.
    ///
    /// # Errors
    /// Errors of the query.
    pub(crate) fn query(
        &self,
        engine: &QueryEngine,
        request: &Request<'_>,
        below: &NodePath,
    ) -> Result<Page> {
        self.queries.fetch_add(1, Ordering::Relaxed);
        self.note_fact(Facts::INDEX);
        self.note(below, Aspects::BELOW);
        let page = engine.page(&self.snapshot, request)?;
        if page.words_by != WordsBy::Nobody {
            self.also(&NodePath::root(), Aspects::BELOW);
        }
        if matches!(page.words_by, WordsBy::LateIndex | WordsBy::NoIndexYet) {
            self.note_data(Duration::ZERO);
        }
        page.rows.iter().filter_map(|row| row.node()).for_each(|node| {
            self.note(node.path(), whole(node));
        });
        Ok(page)
    }

    /// Tells where a query looks at everything; nothing if an index serves it.
    pub(crate) fn unindexed(&self, engine: &QueryEngine, request: &Request<'_>) -> Option<String> {
        let explained = engine.explain(&self.snapshot, request, false).ok()?;
        let bounds = explained.steps.into_iter().flat_map(|step| step.bounds);
        bounds.into_iter().find(|bound| bound.starts_with("everything below"))
    }

    /// Keeps an error that was met outside of the reader.
    pub(crate) fn fail(&self, error: Error) {
        let _: Option<()> = self.keep(Err(error));
    }

    /// Returns the first failure of the store, if there was any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get().or_else(|| self.snapshot.failure())
    }

    /// Returns how many look-ups there were so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns how many queries were run so far.
    pub(crate) fn queries(&self) -> u64 {
        self.queries.load(Ordering::Relaxed)
    }

    /// Begins to note what one component reads.
    pub(crate) fn begin(&self) -> Mark {
        let Some(notes) = &self.notes else { return Mark::default() };
        let outer = notes.begin();
        Mark { outer, facts: self.facts.swap(0, Ordering::Relaxed) }
    }

    /// Returns what was read and used since the latest beginning.
    pub(crate) fn read_since(&self) -> (Dependencies, Facts) {
        let facts = self.facts();
        let read = self.notes.as_ref().map(|notes| notes.of_component());
        (read.unwrap_or_default(), facts)
    }

    /// Ends what [`Reader::begin`] began: what was read counts for the component around it, too.
    pub(crate) fn end(&self, mark: Mark) {
        self.facts.fetch_or(mark.facts, Ordering::Relaxed);
        if let Some(notes) = &self.notes {
            notes.end(mark.outer);
        }
    }

    /// Ends what [`Reader::begin`] began: what was read counts for the request, and not for the component around it.
    pub(crate) fn end_aside(&self, mark: Mark) {
        let facts = self.facts.swap(mark.facts, Ordering::Relaxed);
        self.aside_facts.fetch_or(facts, Ordering::Relaxed);
        if let Some(notes) = &self.notes {
            notes.end_aside(mark.outer);
        }
    }

    /// Tells whether a component is being drawn whose reads are noted for themselves.
    pub(crate) fn is_inside(&self) -> bool {
        self.notes.as_ref().is_some_and(|notes| notes.is_inside())
    }

    /// Notes again what a look-up read whose result was remembered: every node from a path up to another one.
    pub(crate) fn note_trail(&self, from: &NodePath, to: Option<&NodePath>) {
        let mut next = Some(from.clone());
        while let Some(path) = next {
            self.also(&path, self.glance);
            next = path.parent().filter(|_| Some(&path) != to);
        }
    }

    /// Notes what was read when a fragment was drawn that is used again.
    pub(crate) fn add_read(&self, read: &Arc<Dependencies>, facts: Facts) {
        self.note_fact(facts);
        if let Some(notes) = &self.notes {
            notes.add_kept(Arc::clone(read));
        }
    }

    /// Hands out what was read.
    pub(crate) fn take_reads(&self) -> Reads {
        let taken = self.notes.as_ref().map(|notes| notes.take());
        let (noted, listings, kept) = taken.unwrap_or_default();
        Reads {
            count: self.count(),
            queries: self.queries(),
            noted,
            listings,
            kept,
            facts: self.facts().and(Facts(self.aside_facts.load(Ordering::Relaxed))),
            max_age: *self.max_age.lock(),
        }
    }

    /// Returns what was used of the request. What was decided about reading counts from its first difference on, whichever
    /// component met it.
    fn facts(&self) -> Facts {
        let noted = Facts(self.facts.load(Ordering::Relaxed));
        match self.snapshot.saw_alike() {
            Some(false) => noted.and(Facts::SIGHT),
            Some(true) | None => noted,
        }
    }

    /// Returns what the request's viewer may see, apart from who it is; empty if it may see everything.
    pub(crate) fn sight(&self) -> String {
        self.snapshot.sight().map(|sight| sight.to_string()).unwrap_or_default()
    }

    /// Finds a node, noting nothing.
    fn find_node(&self, path: &NodePath) -> Option<Node> {
        let snapshot = if is_program(path) { &self.program } else { &self.snapshot };
        self.keep(snapshot.node(path)).flatten()
    }

    /// Returns the root that is read.
    pub(crate) fn root(&self) -> tympan_content::ChunkId {
        self.snapshot.root_id()
    }

    /// Counts a look-up and notes it.
    fn note(&self, path: &NodePath, aspects: Aspects) {
        self.count_one();
        self.also(path, aspects);
    }

    /// Notes a look-up of a child that is not there.
    fn note_child(&self, node: &Node, name: &str, aspects: Aspects) {
        self.count_one();
        let Some(notes) = self.open_notes() else { return };
        let parent = node.path();
        if leads_to_accounts(parent.as_str(), Aspects::EXISTENCE)
            || (parent.is_root() && name == "home")
        {
            self.note_fact(Facts::ACCOUNTS);
        }
        notes.add_child(parent, name, aspects);
    }

    /// Counts a look-up, without the price of an atomic addition.
    fn count_one(&self) {
        self.count.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Notes something more about what was looked up already.
    fn also(&self, path: &NodePath, aspects: Aspects) {
        if let Some(notes) = self.open_notes() {
            if leads_to_accounts(path.as_str(), aspects) {
                self.note_fact(Facts::ACCOUNTS);
            }
            notes.add(path.as_str(), aspects);
        }
    }

    /// Returns where reads are noted; nothing if they are not.
    fn open_notes(&self) -> Option<&Notepad> {
        self.notes.as_deref().filter(|_| !self.is_listing.load(Ordering::Relaxed))
    }

    /// Keeps the first error for [`Reader::failure`].
    fn keep<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.failure.set(error)).ok()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(notes) = self.notes.take() {
            Notepad::give_back(notes);
        }
    }
}

/// The component around one that is drawn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mark {
    outer: Begin,
    facts: u32,
}

/// Returns what may be read of a node that is handed out: the parts of files and assets are reached past the reader.
fn whole(node: &Node) -> Aspects {
    let own = Aspects::EXISTENCE.and(Aspects::PROPERTIES).and(Aspects::HEAD);
    match node.primary_type() {
        "nt:file" | "dam:Asset" => own.and(Aspects::DOCUMENT).and(Aspects::BELOW),
        _ => own,
    }
}

/// Tells whether accounts were read: at their path, or in a list of what is below the root.
fn leads_to_accounts(path: &str, aspects: Aspects) -> bool {
    // Asked of every read, most of which lie elsewhere by one letter.
    match path.as_bytes() {
        [b'/', b'h', ..] => {
            let rest = path.strip_prefix("/home");
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        [b'/'] => aspects.overlaps(Aspects::ANY_BELOW),
        _ => false,
    }
}

/// Tells whether a path leads to components, which draw for everybody.
fn is_program(path: &NodePath) -> bool {
    ["/apps/", "/libs/"].iter().any(|root| path.as_str().starts_with(root))
}
