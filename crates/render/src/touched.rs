//! What a change touches: the difference of two states of content, as aspects of paths.
//!
//! In: two snapshots. Out: [`Touched`]: whatever a drawing that read it may show differently in the later state. The work
//! is in proportion to the documents that differ.
//!
//! Invariant: a drawing of the later state that differs from one of the earlier state read something that is in here,
//! because it is a function of its request and of what it read.
//!
//! Not here: what drawings read ([`crate::reads`]), which URLs that concerns ([`crate::ledger`]).

use std::collections::HashMap;

use tympan_content::{BorrowedNode, JCR_CONTENT, Node, NodePath, Snapshot, Summary, Viewer};

use crate::Result;
use crate::dependency::{ANYTHING, Aspects, Dependencies, Dependency, hash};

/// Properties that lead URLs to nodes, or make URLs of paths: of any link, wherever it stands.
const ROUTES: [&str; 6] = [
    "sling:vanityPath",
    "sling:vanityOrder",
    "sling:redirect",
    "sling:redirectStatus",
    "sling:alias",
    "sling:internalRedirect",
];

/// Folders of which everything decides: groups, who sees what; mappings, every link; indexes, what names and queries find.
const DECIDING: [&str; 3] = ["/home", "/etc/map", "/oak:index"];

/// How names of scripts end.
const SCRIPT_ENDING: &str = ".j2";

/// What a page that navigations show, and any page, changes above it when it comes or goes.
const SHOWN: Aspects = Aspects::CHILD_HEADS.and(Aspects::CHILD_DATES);
const LISTED: Aspects = Aspects::HEADS_BELOW
    .and(Aspects::DATES_BELOW)
    .and(Aspects::TITLES_BELOW)
    .and(Aspects::MARKS_BELOW);

/// Properties of a page's content that lists select and order by.
const MARKS: [&str; 3] = ["cq:tags", "date", PRIMARY_TYPE];

/// Policies may show nodes of some types and hide others: with another type a node may come or go for visitors.
const PRIMARY_TYPE: &str = "jcr:primaryType";

/// Aspects of paths that two states have differently.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    aspects: HashMap<u64, Aspects>,
    /// Whether it cannot be told what else differs: rights were changed, and so who sees what, or what URLs mean.
    is_everything: bool,
    /// The documents that differ.
    documents: Vec<NodePath>,
    /// How often something was added, to see whether a part of a document has changes.
    added: u64,
}

impl Touched {
    /// Compares two states.
    ///
    /// # Errors
    /// If the store fails.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Result<Self> {
        let (before, after) = (before.seen_by(&Viewer::system()), after.seen_by(&Viewer::system()));
        let mut touched = Self::default();
        for path in before.changed_paths(&after)? {
            let (old, new) = (before.document_node(&path)?, after.document_node(&path)?);
            touched.add_document(&path, old.as_ref(), new.as_ref());
            touched.documents.push(path);
        }
        for snapshot in [&before, &after] {
            if snapshot.failure().is_some() {
                let reason = "a document that changed cannot be read";
                let path = NodePath::root();
                return Err(tympan_content::Error::Damaged { path, reason }.into());
            }
        }
        if !touched.documents.is_empty() {
            touched.aspects.insert(ANYTHING, Aspects::ALL);
        }
        Ok(touched)
    }

    /// Tells whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Tells whether every drawing may differ.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.is_everything
    }

    /// Returns how many documents differ.
    #[must_use]
    pub fn documents(&self) -> usize {
        self.documents.len()
    }

    /// Tells whether a drawing that read these may differ.
    #[must_use]
    pub fn concerns(&self, read: &Dependencies) -> bool {
        if self.is_everything || read.listings().any(|one| self.touches(one.scope())) {
            return true;
        }
        if read.len() < self.aspects.len() {
            return read.paths().any(|path| {
                self.aspects.get(&path).is_some_and(|own| own.overlaps(read.aspects_of(path)))
            });
        }
        self.aspects.iter().any(|(path, own)| own.overlaps(read.aspects_of(*path)))
    }

    /// Tells whether something of a path differs.
    pub(crate) fn touches(&self, (path, aspects): Dependency) -> bool {
        self.aspects.get(&path).is_some_and(|own| own.overlaps(aspects))
    }

    /// Returns the documents that differ.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &NodePath> {
        self.documents.iter()
    }

    /// Returns what of these differs: nothing if [`Touched::concerns`] says no.
    #[must_use]
    pub fn shared_with(&self, read: &Dependencies) -> Aspects {
        let own = read.paths().filter_map(|path| {
            let aspects = self.aspects.get(&path)?;
            Some(aspects.only(read.aspects_of(path)))
        });
        own.fold(Aspects::default(), Aspects::and)
    }

    /// Tells whether a document at or below a path differs.
    pub(crate) fn touches_below(&self, path: &str) -> bool {
        self.documents.iter().any(|one| is_below(one.as_str(), path))
    }

    /// Tells whether a document differs that lies below none of some paths.
    pub(crate) fn is_outside(&self, paths: &[&String]) -> bool {
        self.documents.iter().any(|one| !paths.iter().any(|path| is_below(one.as_str(), path)))
    }

    /// Returns the hashes of the paths, with what differs.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (u64, Aspects)> {
        self.aspects.iter().map(|(path, aspects)| (*path, *aspects))
    }

    fn add(&mut self, path: &str, aspects: Aspects) {
        self.is_everything |= DECIDING.iter().any(|folder| is_below(path, folder));
        let known = self.aspects.entry(hash(path).max(1)).or_default();
        *known = known.and(aspects);
        self.added += 1;
    }

    /// Adds aspects to a path and to everything above it.
    fn add_upwards(&mut self, path: &str, aspects: Aspects) {
        let mut path = path;
        loop {
            self.add(path, aspects);
            match path.rfind('/') {
                Some(0) if path.len() > 1 => path = "/",
                Some(at) if at > 0 => path = path.get(..at).unwrap_or("/"),
                _ => return,
            }
        }
    }

    /// Adds what differs in one document.
    fn add_document(&mut self, path: &NodePath, old: Option<&Node>, new: Option<&Node>) {
        let text = path.as_str();
        self.add(text, Aspects::DOCUMENT);
        self.add_upwards(text, Aspects::BELOW);
        let (left, right) = (old.and_then(Node::borrowed), new.and_then(Node::borrowed));
        if ["/apps", "/libs"].iter().any(|root| is_below(text, root)) {
            self.add("/apps", Aspects::ANY_SCRIPT);
            // Another text of a script concerns those who ran it; which script is run, all else decides.
            let is_text = left
                .zip(right)
                .is_some_and(|(left, right)| differ_in_scripts(path.name(), left, right));
            if !is_text {
                self.add_upwards(text, Aspects::SCRIPTS);
            }
        }
        // A policy that is a document of its own decides who sees what.
        self.is_everything |= is_policy(path.name());
        if differ_in_marks(left, right) || path.name() == JCR_CONTENT {
            self.add_upwards(text, Aspects::MARKS_BELOW);
        }
        let mut place = text.to_owned();
        self.compare(&mut place, left, right);
        match (old, new) {
            (Some(old), Some(new)) => self.compare_headers(path, old, new),
            (None, None) => {}
            (Some(node), None) | (None, Some(node)) => {
                self.add(text, Aspects::ALL);
                let (shown, listed) = (is_shown(node), node.is_page());
                self.add_above(
                    path,
                    Aspects::CHILDREN.and(if shown { SHOWN } else { Aspects::default() }),
                    if listed { LISTED } else { Aspects::default() },
                );
            }
        }
    }

    /// Adds aspects to the parent, and others to everything above a document and to itself.
    fn add_above(&mut self, path: &NodePath, parent: Aspects, all: Aspects) {
        if let Some(above) = path.parent() {
            self.add(above.as_str(), parent);
            self.add_upwards(above.as_str(), all);
        }
    }

    /// Compares what listings show of a document.
    fn compare_headers(&mut self, path: &NodePath, old: &Node, new: &Node) {
        let text = path.as_str();
        let (left, right) = (old.summary(), new.summary());
        let (is_shown, is_page) = (is_shown(old) || is_shown(new), old.is_page() || new.is_page());
        // What lists do not take up, before or after, they do not show.
        let shown = |aspects| if is_shown { aspects } else { Aspects::default() };
        let listed = |aspects| if is_page { aspects } else { Aspects::default() };
        if left.map(kind_of) != right.map(kind_of) {
            self.add(text, Aspects::HEAD);
            self.add_above(path, shown(Aspects::CHILD_HEADS), listed(Aspects::HEADS_BELOW));
        }
        if left.and_then(Summary::title) != right.and_then(Summary::title) {
            self.add(text, Aspects::HEAD);
            self.add_above(path, Aspects::default(), listed(Aspects::TITLES_BELOW));
        }
        if left.and_then(Summary::modified) != right.and_then(Summary::modified) {
            self.add(text, Aspects::DATE);
            self.add_above(path, shown(Aspects::CHILD_DATES), listed(Aspects::DATES_BELOW));
        }
        if !old.is_placed_like(new) {
            let above = Aspects::CHILDREN.and(shown(Aspects::CHILD_HEADS));
            self.add_above(path, above, Aspects::default());
        }
    }

    /// Compares two states of a node and what is below it in its document.
    fn compare(
        &mut self,
        place: &mut String,
        old: Option<BorrowedNode<'_>>,
        new: Option<BorrowedNode<'_>>,
    ) {
        let (Some(old), Some(new)) = (old, new) else {
            return self.add_whole(place, old.or(new));
        };
        let changed = self.changed_properties(old, new);
        if !changed.is_empty() {
            self.add(place, changed);
        }
        if differ_in(old, new, PRIMARY_TYPE) {
            self.add(place, Aspects::EXISTENCE);
            let above = place.rfind('/').and_then(|at| place.get(..at.max(1))).unwrap_or("/");
            self.add(above, Aspects::CHILDREN);
        }
        if !old.children().map(BorrowedNode::name).eq(new.children().map(BorrowedNode::name)) {
            self.add(place, Aspects::CHILDREN);
        }
        for child in old.children() {
            self.below(place, child.name(), |touched, place| {
                touched.compare(place, Some(child), new.child(child.name()));
            });
        }
        for child in new.children().filter(|child| old.child(child.name()).is_none()) {
            self.below(place, child.name(), |touched, place| touched.add_whole(place, Some(child)));
        }
    }

    /// Adds a node that only one state has, with everything below it in its document.
    fn add_whole(&mut self, place: &mut String, node: Option<BorrowedNode<'_>>) {
        let Some(node) = node else { return };
        self.add(place, Aspects::ALL);
        self.is_everything |= node.properties().any(|(name, _)| ROUTES.contains(&name));
        for child in node.children() {
            self.below(place, child.name(), |touched, place| touched.add_whole(place, Some(child)));
        }
    }

    /// Works at the path of a child.
    fn below(&mut self, place: &mut String, name: &str, work: impl FnOnce(&mut Self, &mut String)) {
        let length = place.len();
        if !place.ends_with('/') {
            place.push('/');
        }
        place.push_str(name);
        let added = self.added;
        work(self, place);
        // Subtrees begin inside of documents too, and a changed policy makes all uncertain.
        if self.added > added {
            self.is_everything |= is_policy(name);
            self.add(place, Aspects::BELOW);
        }
        place.truncate(length);
    }

    /// Returns the properties that differ.
    fn changed_properties(&mut self, old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> Aspects {
        let gone_or_other = old
            .properties()
            .filter(|(name, value)| !new.property(name).is_some_and(|other| value.is_same(other)));
        let added = new.properties().filter(|(name, _)| old.property(name).is_none());
        gone_or_other.chain(added).fold(Aspects::default(), |changed, (name, _)| {
            self.is_everything |= ROUTES.contains(&name);
            changed.and(Aspects::property(name))
        })
    }
}

/// Tells whether a path is at or below another one.
fn is_below(path: &str, outer: &str) -> bool {
    outer == "/"
        || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Tells whether a node decides who may read its parent.
fn is_policy(name: &str) -> bool {
    name.starts_with("rep:")
}

/// Returns what decides whether listings take a document up.
fn kind_of(summary: &Summary) -> (&str, bool) {
    (summary.primary_type(), summary.hide_in_nav())
}

/// Tells whether navigations show a document.
fn is_shown(node: &Node) -> bool {
    node.is_page() && !node.summary().is_some_and(Summary::hide_in_nav)
}

/// Tells whether lists may select or order two states of a page differently, by what its content says.
fn differ_in_marks(old: Option<BorrowedNode<'_>>, new: Option<BorrowedNode<'_>>) -> bool {
    let [old, new] = [old, new].map(|node| node.and_then(|node| node.child(JCR_CONTENT)));
    match (old, new) {
        (None, None) => false,
        (Some(old), Some(new)) => MARKS.iter().any(|name| differ_in(old, new, name)),
        _ => true,
    }
}

/// Tells whether two states of a node differ in a property.
fn differ_in(old: BorrowedNode<'_>, new: BorrowedNode<'_>, name: &str) -> bool {
    match (old.property(name), new.property(name)) {
        (None, None) => false,
        (Some(old), Some(new)) => !old.is_same(new),
        _ => true,
    }
}

/// Tells whether two states of a node differ in nothing but the texts of scripts at or below it.
fn differ_in_scripts(name: &str, old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    let is_script = name.ends_with(SCRIPT_ENDING);
    has_same_properties(old, new)
        && old.children().map(BorrowedNode::name).eq(new.children().map(BorrowedNode::name))
        && old.children().all(|child| {
            let is_text = is_script && child.name() == JCR_CONTENT;
            let other = new.child(child.name());
            other.is_some_and(|new| is_text || differ_in_scripts(child.name(), child, new))
        })
}

fn has_same_properties(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    old.properties().count() == new.properties().count()
        && old
            .properties()
            .all(|(name, value)| new.property(name).is_some_and(|other| value.is_same(other)))
}
