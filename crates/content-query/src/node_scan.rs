//! A scan of all nodes, or of those below one node, without an index: document by document in key order.
//!
//! Invariants
//! * Only nodes that the filter admits are copied.
//! * Memory holds one document and its admitted nodes.

use std::collections::VecDeque;

use tympan_content::{
    BodyNode, BorrowedNode, MIXIN_TYPES, NodePath, PRIMARY_TYPE, ScanScope, ScannedDocument,
};

use crate::access_plan::AccessPlan;
use crate::node_source::{CandidateIterator, CandidateNode, NodeSourcePosition, QueryContext};
use crate::row_filter::{FilteredNode, RowFilter};
use crate::{Error, Result};

/// The parameters of a scan.
struct NodeScan<'a> {
    context: &'a QueryContext<'a>,
    access_plan: &'a AccessPlan,
    /// True if the scan evaluates the constraints. Where reading is restricted, they are evaluated later on what the
    /// viewer may read.
    applies_filter: bool,
}

/// The admitted nodes of a document: path, and position in the body.
type ScannedNodes = Vec<(NodePath, BodyNode)>;

/// Reads the nodes below `above` that an access plan admits.
pub(crate) fn scan_nodes<'a>(
    context: &'a QueryContext<'a>,
    access: &'a AccessPlan,
    above: &NodePath,
    is_flat: bool,
    after: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    // A node that the viewer does not see may make a negated condition true.
    let decides = !context.snapshot.has_viewer() || access.filter.is_monotone();
    let sieve = NodeScan { context, access_plan: access, applies_filter: decides };
    match begin_scan(sieve, above, is_flat, after) {
        Ok(candidates) => candidates,
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

fn begin_scan<'a>(
    sieve: NodeScan<'a>,
    above: &NodePath,
    is_flat: bool,
    after: Option<&NodeSourcePosition>,
) -> Result<CandidateIterator<'a>> {
    let context = sieve.context;
    let after = match after {
        Some(NodeSourcePosition::Scan { document, path }) => Some((document.clone(), path.clone())),
        _ => None,
    };
    // Read the part of the document that holds `above` first.
    let Some(start) = context.state.node(above)? else {
        return Ok(Box::new(std::iter::empty()));
    };
    let owner = start.record_path().clone();
    let is_past_owner = after.as_ref().is_some_and(|(document, _)| *document != owner);
    let (mut admitted, mut candidates) = (Vec::new(), VecDeque::new());
    if let (false, Some(node)) = (is_past_owner, start.as_borrowed()) {
        let mut path = above.as_str().to_owned();
        // The content root is below no node, but a scan of everything includes it.
        if above.is_root() && !is_flat {
            sieve.scan_node(&mut path, node, true, &mut admitted)?;
        }
        let depth = if is_flat { 1 } else { usize::MAX };
        sieve.scan_children(&mut path, node, depth, &mut admitted)?;
        candidates.extend(
            admitted
                .into_iter()
                .map(|(path, _)| CandidateNode::new(path.clone(), NodeSourcePosition::Path(path))),
        );
        finish_document(&mut candidates, &owner, after.as_ref());
    }
    let resumed = after.as_ref().map(|(document, _)| document).filter(|path| **path != owner);
    let resumes = resumed.is_some();
    // A node inside a document has no documents below it.
    let mut documents = if start.is_folder() {
        let scope = if is_flat { ScanScope::Children } else { ScanScope::Descendants };
        Some(context.state.scan_documents(above, scope, resumed)?)
    } else {
        None
    };
    let after = after.filter(|_| resumes);
    Ok(Box::new(std::iter::from_fn(move || {
        loop {
            if let Some(candidate) = candidates.pop_front() {
                return Some(Ok(candidate));
            }
            let document = documents.as_mut()?.next()?;
            let read = document.map_err(Error::from).and_then(|document| {
                sieve.scan_document(document, is_flat, after.as_ref(), &mut candidates)
            });
            if let Err(error) = read {
                documents = None;
                return Some(Err(error));
            }
        }
    })))
}

/// Sorts the nodes found in a document, and drops those already returned.
fn finish_document(
    candidates: &mut VecDeque<CandidateNode>,
    document: &NodePath,
    after: Option<&(NodePath, NodePath)>,
) {
    let last = after.filter(|(before, _)| before == document).map(|(_, path)| path);
    candidates.retain(|candidate| last.is_none_or(|last| candidate.path > *last));
    candidates.make_contiguous().sort_by(|left, right| left.path.cmp(&right.path));
    for candidate in candidates {
        let path = candidate.path.clone();
        candidate.position = NodeSourcePosition::Scan { document: document.clone(), path };
    }
}

impl NodeScan<'_> {
    /// Scans one document.
    fn scan_document(
        &self,
        document: ScannedDocument<'_>,
        is_flat: bool,
        after: Option<&(NodePath, NodePath)>,
        candidates: &mut VecDeque<CandidateNode>,
    ) -> Result<()> {
        let mut path = document.path_text();
        let is_container = document.is_container();
        let root = document.root_node();
        let mut admitted = Vec::new();
        self.scan_node(&mut path, root, is_container, &mut admitted)?;
        if !is_flat {
            self.scan_children(&mut path, root, usize::MAX, &mut admitted)?;
        }
        if admitted.is_empty() {
            return Ok(());
        }
        let opened = document.into_loaded()?;
        candidates.extend(admitted.into_iter().map(|(path, at)| {
            let node = Some(opened.node_at(path.clone(), at));
            CandidateNode {
                node,
                ..CandidateNode::new(path.clone(), NodeSourcePosition::Path(path))
            }
        }));
        finish_document(candidates, opened.path(), after);
        Ok(())
    }

    /// Scans the descendants of a node in the same document.
    fn scan_children(
        &self,
        path: &mut String,
        node: BorrowedNode<'_>,
        depth: usize,
        admitted: &mut ScannedNodes,
    ) -> Result<()> {
        let length = path.len();
        for child in node.children() {
            if length > 1 {
                path.push('/');
            }
            path.push_str(child.name());
            self.scan_node(path, child, false, admitted)?;
            if depth > 1 {
                self.scan_children(path, child, depth - 1, admitted)?;
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Scans one node.
    fn scan_node(
        &self,
        path: &mut String,
        node: BorrowedNode<'_>,
        is_container: bool,
        admitted: &mut ScannedNodes,
    ) -> Result<()> {
        self.context.count_row()?;
        let snapshot = self.context.snapshot;
        let subject = FilteredNode { path, node, is_container, score: 1.0, snapshot };
        if self.applies_filter && !matches_access_plan(self.access_plan, subject)? {
            return Ok(());
        }
        admitted.push((NodePath::new(path)?, node.body_node()));
        Ok(())
    }
}

/// Returns true if a node meets the types and constraints of an access plan.
pub(crate) fn matches_access_plan(access: &AccessPlan, subject: FilteredNode<'_>) -> Result<bool> {
    if let Some(types) = &access.accepted_types {
        let own =
            [PRIMARY_TYPE, MIXIN_TYPES].into_iter().filter_map(|name| subject.node.property(name));
        let mut own = own.flat_map(|property| property.values().filter_map(|value| value.as_str()));
        if !own.any(|name| types.contains(name)) {
            return Ok(false);
        }
    }
    Ok(is_path_match(&access.path_filter, subject.path)
        && access.filter.matches(&[Some(subject)])?)
}

fn is_path_match(filter: &RowFilter, path: &str) -> bool {
    filter.matches_path(path)
}
