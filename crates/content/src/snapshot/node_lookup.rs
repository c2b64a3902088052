//! Resolves paths to nodes.

use std::sync::Arc;

use super::node::{LoadedDocument, Node, NodeBody};
use super::node_location::{NodeLocation, NodeLocationKey, NodeLocationKeyRef, NodeLocationKind};
use super::pinned_snapshot::Snapshot;
use crate::document::body::DocumentBody;
use crate::document::boundary::{is_container, is_own_content};
use crate::document::record::ContentRecord;
use crate::{Error, NodePath, Result, Subtree, document::record_key};

impl Snapshot {
    /// Finds the node at a path.
    ///
    /// # Errors
    /// If the store fails or a record on the way is damaged.
    pub fn node(&self, path: &NodePath) -> Result<Option<Node>> {
        Ok(self.unrestricted_node(path)?.filter(Node::is_visible))
    }

    /// Finds the node at a path, visible or not.
    fn unrestricted_node(&self, path: &NodePath) -> Result<Option<Node>> {
        let Some(content) = self.view.cacheable_map_id() else {
            return self.find_node(path);
        };
        let locations = &self.view.repository_state.cache.locations;
        if let Some(location) = locations.get(&NodeLocationKeyRef(&content, path))
            && let Some(node) = self.node_at_location(location)
        {
            return Ok(Some(node));
        }
        let absent = &self.view.repository_state.cache.absent_paths;
        if absent.get(&NodeLocationKeyRef(&content, path)).is_some() {
            return Ok(None);
        }
        // If all children of a known node have records, one lookup is enough. Paths with extensions are looked up in
        // this way.
        let parent =
            path.parent().and_then(|parent| locations.get(&NodeLocationKeyRef(&content, &parent)));
        let node = if parent.is_some_and(|parent| parent.has_child_record(path.name())) {
            let record = self.view.find_record(&record_key::record_key_at(path.as_str()))?;
            record.map(|record| self.record_node(path.clone(), record))
        } else {
            self.find_node(path)?
        };
        let key = NodeLocationKey(content, path.clone());
        match &node {
            Some(node) => locations.insert(key, node.location.clone()),
            None => absent.insert(key, ()),
        }
        Ok(node)
    }

    /// Returns the node at a cached location; `None` if its body has to be loaded again.
    fn node_at_location(&self, location: Arc<NodeLocation>) -> Option<Node> {
        let body = match &location.kind {
            NodeLocationKind::Document(_) => NodeBody::default(),
            NodeLocationKind::Inside { body, .. } => NodeBody::Loaded(body.upgrade()?),
        };
        Some(Node::at_location(self.clone(), location, body))
    }

    /// Finds the document that holds a node, and the node in it.
    ///
    /// Records exist at every depth from the root down to the document's, and nowhere below. The most likely depths are
    /// tried first: the path's own, then its parent's; then the search bisects the rest.
    fn find_node(&self, path: &NodePath) -> Result<Option<Node>> {
        let text = path.as_str();
        // Below `jcr:content` there are no records. It usually belongs to a page or asset, so that depth is tried
        // first.
        let (deepest, mut depth) = match find_content_offset(text) {
            Some(at) if text.get(at + "/jcr:content".len()..).is_some_and(is_name_end) => {
                let above = path_depth(text.get(..at).unwrap_or_default());
                (above + 1, above)
            }
            _ => (path.depth(), path.depth()),
        };
        // The document's depth is in the half-open range from `low` to `high`.
        let (mut low, mut high) = (0, deepest + 1);
        let mut is_parent_tried = depth < deepest;
        while low < high {
            let owner = path_prefix(text, depth);
            match self.view.find_record(&record_key::record_key_at(owner))? {
                Some(record) => {
                    let primary_type = record.summary.primary_type();
                    let name = owner.rsplit_once('/').map_or("", |(_, name)| name);
                    let rest = text.get(owner.len()..).unwrap_or_default().trim_start_matches('/');
                    let next = rest.split_once('/').map_or(rest, |(next, _)| next);
                    let has_record_below = !next.is_empty()
                        && is_container(name, primary_type)
                        && !is_own_content(primary_type, next);
                    if !has_record_below {
                        let owner =
                            if rest.is_empty() { path.clone() } else { NodePath::new(owner)? };
                        return self.node_in_record(record, owner, path);
                    }
                    low = depth + 1;
                }
                None => high = depth,
            }
            depth = if is_parent_tried || depth < low || depth == 0 {
                low.midpoint(high.saturating_sub(1))
            } else {
                depth - 1
            };
            is_parent_tried = true;
        }
        Ok(None)
    }

    /// Finds a node by its position in the document whose record was found.
    fn node_in_record(
        &self,
        record: ContentRecord,
        owner: NodePath,
        path: &NodePath,
    ) -> Result<Option<Node>> {
        let Some(relative) = path.relative_to(&owner) else {
            return Ok(None);
        };
        if relative.is_empty() {
            return Ok(Some(self.record_node(owner, record)));
        }
        let body = self.view.load_body(&record, &owner)?;
        let Some(at) = body.find_relative(relative) else {
            return Ok(None);
        };
        let document = NodeLocation::new(owner, NodeLocationKind::Document(record));
        Ok(Some(Node::in_document(self.clone(), document, at, path.clone(), body)))
    }

    /// Creates a document's own node.
    pub(crate) fn record_node(&self, path: NodePath, record: ContentRecord) -> Node {
        let location = NodeLocation::new(path, NodeLocationKind::Document(record));
        Node::at_location(self.clone(), location, NodeBody::default())
    }

    /// Creates the nodes of a document that was read already.
    pub(crate) fn loaded_document(
        &self,
        path: NodePath,
        record: ContentRecord,
        body: Arc<DocumentBody>,
    ) -> LoadedDocument {
        let document = NodeLocation::new(path, NodeLocationKind::Document(record));
        LoadedDocument { snapshot: self.clone(), document, body }
    }

    /// Returns the root node.
    ///
    /// # Errors
    /// If the store fails.
    pub fn root_node(&self) -> Result<Node> {
        let root = NodePath::root();
        self.node(&root)?.ok_or(Error::NodeMissing(root))
    }

    /// Decodes the node at a path with everything below it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read_subtree(&self, path: &NodePath) -> Result<Option<Subtree>> {
        self.node(path)?.map(|node| node.read_subtree()).transpose()
    }
}

/// Finds the first name that begins like a page's content. Paths are too short for a search algorithm that needs
/// preparation.
fn find_content_offset(path: &str) -> Option<usize> {
    const CONTENT: &[u8; 12] = b"/jcr:content";
    path.as_bytes().windows(CONTENT.len()).position(|text| text == CONTENT)
}

/// Returns true if a name ends before this rest of a path.
fn is_name_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

/// Returns the number of names in a path; 0 for the empty path of the root.
fn path_depth(path: &str) -> usize {
    path.bytes().filter(|byte| *byte == b'/').count()
}

/// Returns the path of the ancestor of `path` at `depth` names below the root, or `path` itself.
fn path_prefix(path: &str, depth: usize) -> &str {
    if depth == 0 {
        return "/";
    }
    let mut slashes = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    let end = slashes.nth(depth).map_or(path.len(), |(at, _)| at);
    path.get(..end).unwrap_or(path)
}
