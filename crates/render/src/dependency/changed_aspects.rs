//! Computes the effect of a change: the difference of two states of content, as aspects of paths.
//!
//! Input: two snapshots. Output: [`ChangedAspects`], everything that a rendering that read it may show differently in
//! the later state. The cost is proportional to the documents that differ.
//!
//! Invariant: if a rendering of the later state differs from one of the earlier state, it read something in this set,
//! because a rendering is a function of its request and of what it read.
//!
//! Not here: what renderings read ([`crate::dependency::content_reader`]), which URLs are affected ([`crate::ledger`]).

use std::collections::HashMap;

use tympan_content::{
    BorrowedNode, JCR_CONTENT, Node, NodePath, NodeSummary, Snapshot, Viewer, is_path_within,
};

use crate::Result;
use crate::dependency::DependencySet;
use crate::dependency::path_dependency::{ANY_PATH, PathAspects, PathDependency, hash_bytes};
use crate::script_language::{ScriptLanguage, is_javascript_name};

/// Properties that map URLs to nodes or paths to URLs: they affect any link, on any page.
const ROUTE_PROPERTIES: [&str; 6] = [
    "sling:vanityPath",
    "sling:vanityOrder",
    "sling:redirect",
    "sling:redirectStatus",
    "sling:alias",
    "sling:internalRedirect",
];

/// Folders whose content affects everything: groups (access), mappings (links), indexes (results of names and queries).
const GLOBAL_FOLDERS: [&str; 3] = ["/home", "/etc/map", "/oak:index"];

/// Aspects of the ancestors that change when a page that navigations show, or any page, is added or removed.
const VISIBLE_PAGE_ASPECTS: PathAspects =
    PathAspects::CHILD_HEADS.combine(PathAspects::CHILD_DATES);
const LISTED_PAGE_ASPECTS: PathAspects = PathAspects::HEADS_BELOW
    .combine(PathAspects::DATES_BELOW)
    .combine(PathAspects::TITLES_BELOW)
    .combine(PathAspects::LIST_KEYS_BELOW);

/// Properties of a page's content by which lists select and order.
const LIST_ORDER_PROPERTIES: [&str; 3] = ["cq:tags", "date", PRIMARY_TYPE];

/// Policies may show nodes of some types and hide others: a changed type may show a node to visitors or hide it.
const PRIMARY_TYPE: &str = "jcr:primaryType";

/// Aspects of paths that differ between two states.
#[derive(Debug, Clone, Default)]
pub struct ChangedAspects {
    aspects_by_path: HashMap<u64, PathAspects>,
    /// True if the rest of the difference is unknown: access rights changed, and so who sees what, or the meaning of
    /// URLs.
    is_everything_changed: bool,
    /// The documents that differ.
    changed_documents: Vec<NodePath>,
    /// Number of additions, to detect changes in a part of a document.
    addition_count: u64,
}

impl ChangedAspects {
    /// Compares two states.
    ///
    /// # Errors
    /// If the store fails.
    pub fn between_snapshots(before: &Snapshot, after: &Snapshot) -> Result<Self> {
        let (before, after) =
            (before.as_viewer(&Viewer::system()), after.as_viewer(&Viewer::system()));
        let mut touched = Self::default();
        for path in before.changed_paths(&after)? {
            let (old, new) = (before.document_node(&path)?, after.document_node(&path)?);
            touched.add_document(&path, old.as_ref(), new.as_ref());
            touched.changed_documents.push(path);
        }
        for snapshot in [&before, &after] {
            if snapshot.failure().is_some() {
                let reason = "a changed document cannot be read";
                let path = NodePath::root();
                return Err(tympan_content::Error::Damaged { path, reason }.into());
            }
        }
        if !touched.changed_documents.is_empty() {
            touched.aspects_by_path.insert(ANY_PATH, PathAspects::EVERYTHING);
        }
        Ok(touched)
    }

    /// Returns true if nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed_documents.is_empty()
    }

    /// Returns true if every rendering may differ.
    #[must_use]
    pub fn is_everything_changed(&self) -> bool {
        self.is_everything_changed
    }

    /// Returns the number of documents that differ.
    #[must_use]
    pub fn document_count(&self) -> usize {
        self.changed_documents.len()
    }

    /// Returns true if a rendering with these dependencies may differ.
    #[must_use]
    pub fn affects(&self, read: &DependencySet) -> bool {
        if self.is_everything_changed
            || read.list_queries().any(|query| self.affects_dependency(query.scope_dependency()))
        {
            return true;
        }
        if read.len() < self.aspects_by_path.len() {
            return read.path_hashes().any(|path| {
                self.aspects_by_path
                    .get(&path)
                    .is_some_and(|own| own.overlaps(read.aspects_with_scopes(path)))
            });
        }
        self.aspects_by_path.iter().any(|(path, own)| own.overlaps(read.aspects_with_scopes(*path)))
    }

    /// Returns true if an aspect of a path differs.
    pub(crate) fn affects_dependency(&self, (path, aspects): PathDependency) -> bool {
        self.aspects_by_path.get(&path).is_some_and(|own| own.overlaps(aspects))
    }

    /// Returns the documents that differ.
    pub fn changed_documents(&self) -> impl Iterator<Item = &NodePath> {
        self.changed_documents.iter()
    }

    /// Returns the aspects of these dependencies that differ; empty if [`ChangedAspects::affects`] returns false.
    #[must_use]
    pub fn common_aspects(&self, read: &DependencySet) -> PathAspects {
        let own = read.path_hashes().filter_map(|path| {
            let aspects = self.aspects_by_path.get(&path)?;
            Some(aspects.intersection(read.aspects_with_scopes(path)))
        });
        own.fold(PathAspects::default(), PathAspects::combine)
    }

    /// Returns true if a document at or below a path differs.
    pub(crate) fn has_change_below(&self, path: &str) -> bool {
        self.changed_documents.iter().any(|document| is_path_within(document.as_str(), path))
    }

    /// Returns true if a document differs that lies below none of the given paths.
    pub(crate) fn has_change_outside(&self, paths: &[&String]) -> bool {
        self.changed_documents
            .iter()
            .any(|document| !paths.iter().any(|path| is_path_within(document.as_str(), path)))
    }

    /// Returns the hashes of the paths, with the aspects that differ.
    pub fn changed_paths(&self) -> impl Iterator<Item = (u64, PathAspects)> {
        self.aspects_by_path.iter().map(|(path, aspects)| (*path, *aspects))
    }

    fn add_aspects(&mut self, path: &str, aspects: PathAspects) {
        self.is_everything_changed |=
            GLOBAL_FOLDERS.iter().any(|folder| is_path_within(path, folder));
        let path_aspects = self.aspects_by_path.entry(hash_bytes(path).max(1)).or_default();
        *path_aspects = path_aspects.combine(aspects);
        self.addition_count += 1;
    }

    /// Adds aspects to a path and to all its ancestors.
    fn add_with_ancestors(&mut self, path: &str, aspects: PathAspects) {
        let mut path = path;
        loop {
            self.add_aspects(path, aspects);
            match path.rfind('/') {
                Some(0) if path.len() > 1 => path = "/",
                Some(at) if at > 0 => path = path.get(..at).unwrap_or("/"),
                _ => return,
            }
        }
    }

    /// Adds the differences of one document.
    fn add_document(&mut self, path: &NodePath, old: Option<&Node>, new: Option<&Node>) {
        let text = path.as_str();
        self.add_aspects(text, PathAspects::WHOLE_DOCUMENT);
        self.add_with_ancestors(text, PathAspects::SUBTREE);
        let (left, right) = (old.and_then(Node::as_borrowed), new.and_then(Node::as_borrowed));
        if ["/apps", "/libs"].iter().any(|root| is_path_within(text, root)) {
            self.add_aspects("/apps", PathAspects::ANY_SCRIPT);
            // A changed script text affects only those who ran it; which script runs is decided by everything else.
            let is_text = left
                .zip(right)
                .is_some_and(|(left, right)| differ_only_in_scripts(path.name(), left, right));
            if !is_text {
                self.add_with_ancestors(text, PathAspects::SCRIPTS);
            }
        }
        // A policy stored as a document of its own decides who sees what.
        self.is_everything_changed |= is_access_policy(path.name());
        if differ_in_list_order(left, right) || path.name() == JCR_CONTENT {
            self.add_with_ancestors(text, PathAspects::LIST_KEYS_BELOW);
        }
        let mut current_path = text.to_owned();
        self.compare_nodes(&mut current_path, left, right);
        match (old, new) {
            (Some(old), Some(new)) => self.compare_headers(path, old, new),
            (None, None) => {}
            (Some(node), None) | (None, Some(node)) => {
                self.add_aspects(text, PathAspects::EVERYTHING);
                let (is_visible, listed) = (is_visible_page(node), node.is_page());
                self.add_to_ancestors(
                    path,
                    PathAspects::CHILDREN.combine(if is_visible {
                        VISIBLE_PAGE_ASPECTS
                    } else {
                        PathAspects::default()
                    }),
                    if listed { LISTED_PAGE_ASPECTS } else { PathAspects::default() },
                );
            }
        }
    }

    /// Adds aspects to the parent, and others to the document itself and all its ancestors.
    fn add_to_ancestors(&mut self, path: &NodePath, parent: PathAspects, all: PathAspects) {
        if let Some(above) = path.parent() {
            self.add_aspects(above.as_str(), parent);
            self.add_with_ancestors(above.as_str(), all);
        }
    }

    /// Compares the parts of a document that listings show.
    fn compare_headers(&mut self, path: &NodePath, old: &Node, new: &Node) {
        let text = path.as_str();
        let (left, right) = (old.summary(), new.summary());
        let (is_shown, is_page) =
            (is_visible_page(old) || is_visible_page(new), old.is_page() || new.is_page());
        // Lists do not show what they exclude both before and after.
        let visible_aspects = |aspects| if is_shown { aspects } else { PathAspects::default() };
        let listed = |aspects| if is_page { aspects } else { PathAspects::default() };
        if left.map(listing_kind) != right.map(listing_kind) {
            self.add_aspects(text, PathAspects::NAVIGATION_HEAD);
            self.add_to_ancestors(
                path,
                visible_aspects(PathAspects::CHILD_HEADS),
                listed(PathAspects::HEADS_BELOW),
            );
        }
        if left.and_then(NodeSummary::title) != right.and_then(NodeSummary::title) {
            self.add_aspects(text, PathAspects::NAVIGATION_HEAD);
            self.add_to_ancestors(path, PathAspects::default(), listed(PathAspects::TITLES_BELOW));
        }
        if left.and_then(NodeSummary::last_modified) != right.and_then(NodeSummary::last_modified) {
            self.add_aspects(text, PathAspects::MODIFIED_DATE);
            self.add_to_ancestors(
                path,
                visible_aspects(PathAspects::CHILD_DATES),
                listed(PathAspects::DATES_BELOW),
            );
        }
        if !old.has_same_sibling_position(new) {
            let above = PathAspects::CHILDREN.combine(visible_aspects(PathAspects::CHILD_HEADS));
            self.add_to_ancestors(path, above, PathAspects::default());
        }
    }

    /// Compares two states of a node and of its descendants in the same document.
    fn compare_nodes(
        &mut self,
        current_path: &mut String,
        old: Option<BorrowedNode<'_>>,
        new: Option<BorrowedNode<'_>>,
    ) {
        let (Some(old), Some(new)) = (old, new) else {
            return self.add_subtree(current_path, old.or(new));
        };
        let changed = self.changed_properties(old, new);
        if !changed.is_empty() {
            self.add_aspects(current_path, changed);
        }
        if differ_in_property(old, new, PRIMARY_TYPE) {
            self.add_aspects(current_path, PathAspects::EXISTENCE);
            let above =
                current_path.rfind('/').and_then(|at| current_path.get(..at.max(1))).unwrap_or("/");
            self.add_aspects(above, PathAspects::CHILDREN);
        }
        if !old.children().map(BorrowedNode::name).eq(new.children().map(BorrowedNode::name)) {
            self.add_aspects(current_path, PathAspects::CHILDREN);
        }
        for child in old.children() {
            self.with_child_path(current_path, child.name(), |touched, current_path| {
                touched.compare_nodes(current_path, Some(child), new.child(child.name()));
            });
        }
        for child in new.children().filter(|child| old.child(child.name()).is_none()) {
            self.with_child_path(current_path, child.name(), |touched, current_path| {
                touched.add_subtree(current_path, Some(child))
            });
        }
    }

    /// Adds a node that exists in one state only, with its descendants in the same document.
    fn add_subtree(&mut self, current_path: &mut String, node: Option<BorrowedNode<'_>>) {
        let Some(node) = node else { return };
        self.add_aspects(current_path, PathAspects::EVERYTHING);
        self.is_everything_changed |=
            node.properties().any(|(name, _)| ROUTE_PROPERTIES.contains(&name));
        for child in node.children() {
            self.with_child_path(current_path, child.name(), |touched, current_path| {
                touched.add_subtree(current_path, Some(child))
            });
        }
    }

    /// Runs a function with the path of a child.
    fn with_child_path(
        &mut self,
        current_path: &mut String,
        name: &str,
        work: impl FnOnce(&mut Self, &mut String),
    ) {
        let length = current_path.len();
        if !current_path.ends_with('/') {
            current_path.push('/');
        }
        current_path.push_str(name);
        let added = self.addition_count;
        work(self, current_path);
        // Subtrees also begin inside documents, and a changed policy makes everything uncertain.
        if self.addition_count > added {
            self.is_everything_changed |= is_access_policy(name);
            self.add_aspects(current_path, PathAspects::SUBTREE);
        }
        current_path.truncate(length);
    }

    /// Returns the properties that differ.
    fn changed_properties(&mut self, old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> PathAspects {
        let gone_or_other = old.properties().filter(|(name, value)| {
            !new.property(name).is_some_and(|new_value| value.has_equal_values(new_value))
        });
        let added = new.properties().filter(|(name, _)| old.property(name).is_none());
        gone_or_other.chain(added).fold(PathAspects::default(), |changed, (name, _)| {
            self.is_everything_changed |= ROUTE_PROPERTIES.contains(&name);
            changed.combine(PathAspects::property(name))
        })
    }
}

/// Returns true if a node defines who may read its parent.
fn is_access_policy(name: &str) -> bool {
    name.starts_with("rep:")
}

/// Returns the values that decide whether listings include a document.
fn listing_kind(summary: &NodeSummary) -> (&str, bool) {
    (summary.primary_type(), summary.is_hidden_in_nav())
}

/// Returns true if navigations show a document.
fn is_visible_page(node: &Node) -> bool {
    node.is_page() && !node.summary().is_some_and(NodeSummary::is_hidden_in_nav)
}

/// Returns true if lists may select or order two states of a page differently because of its content.
fn differ_in_list_order(old: Option<BorrowedNode<'_>>, new: Option<BorrowedNode<'_>>) -> bool {
    let [old, new] = [old, new].map(|node| node.and_then(|node| node.child(JCR_CONTENT)));
    match (old, new) {
        (None, None) => false,
        (Some(old), Some(new)) => {
            LIST_ORDER_PROPERTIES.iter().any(|name| differ_in_property(old, new, name))
        }
        _ => true,
    }
}

/// Returns true if two states of a node differ in a property.
fn differ_in_property(old: BorrowedNode<'_>, new: BorrowedNode<'_>, name: &str) -> bool {
    match (old.property(name), new.property(name)) {
        (None, None) => false,
        (Some(old), Some(new)) => !old.has_equal_values(new),
        _ => true,
    }
}

/// Returns true if two states of a node differ only in the texts of scripts at or below it.
fn differ_only_in_scripts(name: &str, old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    let is_script = ScriptLanguage::from_file_name(name).is_some() || is_javascript_name(name);
    has_same_properties(old, new)
        && old.children().map(BorrowedNode::name).eq(new.children().map(BorrowedNode::name))
        && old.children().all(|child| {
            let is_text = is_script && child.name() == JCR_CONTENT;
            let new_child = new.child(child.name());
            new_child.is_some_and(|new| is_text || differ_only_in_scripts(child.name(), child, new))
        })
}

fn has_same_properties(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    old.properties().count() == new.properties().count()
        && old.properties().all(|(name, value)| {
            new.property(name).is_some_and(|new_value| value.has_equal_values(new_value))
        })
}
