//! The one door to content while a request is drawn, which notes everything that was read.
//!
//! In: a pinned snapshot. Out: nodes, and a [`Reads`] that says what the drawing depends on: nodes, listings,
//! whole subtrees, and places where nothing was found.
//!
//! Invariant: components, resolution and default output reach nodes only through [`Reader`].
//!
//! On failure: look-ups that fail answer "nothing there" and leave the error in [`Reader::failure`], which the
//! renderer asks before it hands anything out.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tympan_content::query::{Page, QueryEngine, Request};
use tympan_content::{Error, Node, NodePath, Result, Snapshot, Viewer};

/// What a drawing read at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Read {
    /// The node, and perhaps its properties.
    Node,
    /// The list of its children.
    Children,
    /// Every page and folder below it.
    Subtree,
    /// Nothing: no node was there.
    Missing,
}

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
    /// What was read where, in order of the first reading; empty unless paths were asked for.
    pub paths: Vec<(Read, NodePath)>,
}

/// Reads content and notes it.
#[derive(Debug)]
pub(crate) struct Reader {
    /// What the request's viewer sees.
    snapshot: Snapshot,
    /// The same state with what viewers need not see of components.
    program: Snapshot,
    count: AtomicU64,
    paths: Option<Mutex<Vec<(Read, NodePath)>>>,
    failure: OnceLock<Error>,
}

impl Reader {
    pub(crate) fn new(snapshot: Snapshot, recording: Recording) -> Self {
        let paths = (recording == Recording::Paths).then(Mutex::default);
        let program = snapshot.seen_by(&Viewer::system());
        Self { snapshot, program, count: AtomicU64::new(0), paths, failure: OnceLock::new() }
    }

    /// Finds a node.
    pub(crate) fn node(&self, path: &NodePath) -> Option<Node> {
        let snapshot = if is_program(path) { &self.program } else { &self.snapshot };
        let found = self.keep(snapshot.node(path)).flatten();
        self.note(if found.is_some() { Read::Node } else { Read::Missing }, path);
        found
    }

    /// Finds the node that a URL names, if the viewer sees it.
    pub(crate) fn resource_at(&self, path: &str) -> Option<Node> {
        let path = NodePath::new(path).ok()?;
        let found = self.keep(self.snapshot.node(&path)).flatten();
        self.note(if found.is_some() { Read::Node } else { Read::Missing }, &path);
        found
    }

    /// Finds a node by a path that may be no valid path at all.
    pub(crate) fn node_at(&self, path: &str) -> Option<Node> {
        self.node(&NodePath::new(path).ok()?)
    }

    /// Finds a child.
    pub(crate) fn child(&self, node: &Node, name: &str) -> Option<Node> {
        let found = self.keep(node.child(name)).flatten();
        match &found {
            Some(child) => self.note(Read::Node, child.path()),
            // A name that no node can have will not be there later either.
            None => {
                if let Ok(path) = node.path().child(name) {
                    self.note(Read::Missing, &path);
                }
            }
        }
        found
    }

    /// Finds a node below by a relative path.
    pub(crate) fn find(&self, node: &Node, relative: &str) -> Option<Node> {
        let names = relative.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(node.clone(), |node, name| self.child(&node, name))
    }

    /// Returns the children in order.
    pub(crate) fn children(&self, node: &Node) -> Vec<Node> {
        self.note(Read::Children, node.path());
        self.keep(node.children()).unwrap_or_default()
    }

    /// Returns the children that are folders, pages and documents, in order, without reading their bodies.
    pub(crate) fn listed_children(&self, node: &Node) -> Vec<Node> {
        self.note(Read::Children, node.path());
        self.keep(node.listed_children()).unwrap_or_default()
    }

    /// Returns the folders, pages and documents below, at any depth, without reading their bodies.
    pub(crate) fn listed_descendants(&self, node: &Node) -> Vec<Node> {
        self.note(Read::Subtree, node.path());
        self.keep(node.listed_descendants()).unwrap_or_default()
    }

    /// Runs a query for nodes below a path; what it finds depends on everything there.
    ///
    /// # Errors
    /// Errors of the query.
    pub(crate) fn query(
        &self,
        engine: &QueryEngine,
        request: &Request<'_>,
        below: &NodePath,
    ) -> Result<Page> {
        self.note(Read::Subtree, below);
        let page = engine.page(&self.snapshot, request)?;
        page.rows.iter().filter_map(|row| row.node()).for_each(|node| {
            self.note(Read::Node, node.path());
        });
        Ok(page)
    }

    /// Finds the parent.
    pub(crate) fn parent(&self, node: &Node) -> Option<Node> {
        self.node(&node.path().parent()?)
    }

    /// Keeps an error that was met outside of the reader.
    pub(crate) fn fail(&self, error: Error) {
        let _: Option<()> = self.keep(Err(error));
    }

    /// Returns the first failure of the store, if there was any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get().or_else(|| self.snapshot.failure())
    }

    /// Returns what was read so far, each path once for each way it was read.
    pub(crate) fn reads(&self) -> Reads {
        let mut paths = self.paths.as_ref().map(|paths| paths.lock().clone()).unwrap_or_default();
        let mut seen = std::collections::HashSet::new();
        paths.retain(|read| seen.insert(read.clone()));
        Reads { count: self.count.load(Ordering::Relaxed), paths }
    }

    fn note(&self, read: Read, path: &NodePath) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if let Some(paths) = &self.paths {
            paths.lock().push((read, path.clone()));
        }
    }

    /// Keeps the first error for [`Reader::failure`].
    fn keep<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.failure.set(error)).ok()
    }
}

/// Tells whether a path leads to components, which draw for everybody.
fn is_program(path: &NodePath) -> bool {
    ["/apps/", "/libs/"].iter().any(|root| path.as_str().starts_with(root))
}
