//! Nodes that match a full-text condition, found from the hits of the full-text index.
//!
//! A hit is a document. It is only a candidate: the nodes in it that have a wanted type are checked one by one against
//! what the viewer can see of them. The index alone decides only for the document's own node, and only if the viewer
//! sees the whole document, because the index knows stems and the text of files.
//!
//! Invariants
//! * All pages of one query come from one state of the index.
//! * Documents that differ between that state and the snapshot are checked directly; hits on them are ignored.
//! * Documents are ordered by descending score, then by path; the nodes of one document by path.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tympan_content::{BorrowedNode, MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE};

use crate::Result;
use crate::full_text::{
    FullTextExpression, FullTextHit, FullTextIndex, FullTextPosition, FullTextRequest,
};
use crate::node_source::{CandidateIterator, CandidateNode, NodeSourcePosition, QueryContext};
use crate::row_filter::FilteredNode;

/// Number of hits requested from the full-text index at a time.
const HIT_PAGE_SIZE: usize = 100;
/// The score of nodes whose full-text relevance was not computed.
pub(crate) const DEFAULT_SCORE: f32 = 1.0;
/// The maximum number of documents that may differ between the index and the snapshot. Above it, the index is not used.
const MAX_CHANGED_DOCUMENTS: usize = 1000;

/// A full-text condition.
#[derive(Debug, Clone)]
pub(crate) struct FullTextCondition {
    pub(crate) property: Option<String>,
    pub(crate) expression: FullTextExpression,
}

/// A search of the full-text index, and the condition on the nodes of the documents found.
#[derive(Debug, Clone)]
pub(crate) struct FullTextSearch {
    /// The index request. Its hits include at least all documents that hold wanted nodes, as far as the index has them.
    pub(crate) request: FullTextRequest,
    pub(crate) condition: FullTextCondition,
    /// The node types of which a node must have at least one; `None` for any type.
    pub(crate) node_types: Option<BTreeSet<String>>,
    /// The documents that the index has in another state or does not have, sorted.
    pub(crate) changed_documents: Arc<[NodePath]>,
}

/// The difference between the full-text index and the snapshot.
#[derive(Debug, Clone)]
pub(crate) enum FullTextLag {
    /// The documents that differ, sorted.
    Changed(Arc<[NodePath]>),
    /// The difference is unknown, or too large for checking the changed documents to be worthwhile.
    TooFar,
}

/// Returns the difference between the full-text index and the snapshot. The cost is proportional to the difference.
///
/// # Errors
/// Errors of the store.
pub(crate) fn full_text_lag<'a>(context: &'a QueryContext<'_>) -> Result<&'a FullTextLag> {
    if let Some(lag) = context.full_text_lag.get() {
        return Ok(lag);
    }
    let lag = compute_full_text_lag(context)?;
    Ok(context.full_text_lag.get_or_init(|| lag))
}

fn compute_full_text_lag(context: &QueryContext<'_>) -> Result<FullTextLag> {
    let indexed = context.full_text.and_then(|index| Some((index, index.indexed_root()?)));
    let Some((index, indexed)) = indexed else { return Ok(FullTextLag::TooFar) };
    if indexed == context.snapshot.root_id() {
        return Ok(FullTextLag::Changed(Arc::default()));
    }
    // The indexed state may belong to another history and no longer exist.
    let Some(changes) = context.state.documents_changed_since(&indexed) else {
        return Ok(FullTextLag::TooFar);
    };
    let mut changed = Vec::new();
    for path in changes {
        let path = path?;
        if index.covers(&path) {
            changed.push(path);
        }
        if changed.len() > MAX_CHANGED_DOCUMENTS {
            return Ok(FullTextLag::TooFar);
        }
    }
    changed.sort();
    Ok(FullTextLag::Changed(changed.into()))
}

impl FullTextCondition {
    /// Returns a request that finds at least all documents in which a node meets the condition; `None` if no words
    /// restrict them.
    ///
    /// # Errors
    /// If the index fails.
    pub(crate) fn to_request(&self, index: &dyn FullTextIndex) -> Result<Option<FullTextRequest>> {
        let Some(expression) = required_expression(&self.expression) else { return Ok(None) };
        // A name that is not a property may be the path of a node. A prefixed name is treated as a property where one
        // exists, because very many documents may have the words elsewhere. The index also knows which names are names
        // of nodes.
        let may_restrict = |property: &str| {
            let name = property.rsplit_once('/').map_or(property, |(_, name)| name);
            name.contains(':') && !property.contains('*')
        };
        let property = match &self.property {
            Some(property) if may_restrict(property) && index.has_property(property)? => {
                Some(property.clone())
            }
            _ => None,
        };
        Ok(Some(FullTextRequest {
            expression,
            property,
            node_types: Vec::new(),
            ancestor: None,
            after: None,
            limit: HIT_PAGE_SIZE,
            facets: Vec::new(),
            wants_excerpt: false,
        }))
    }
}

/// Removes the negated parts of an expression, because a document that has an excluded word may hold nodes that do not.
/// Returns `None` if no word is required.
fn required_expression(expression: &FullTextExpression) -> Option<FullTextExpression> {
    Some(match expression {
        FullTextExpression::And(parts) => {
            let parts: Vec<_> = parts.iter().filter_map(required_expression).collect();
            if parts.is_empty() {
                return None;
            }
            FullTextExpression::And(parts)
        }
        FullTextExpression::Or(parts) => {
            FullTextExpression::Or(parts.iter().map(required_expression).collect::<Option<_>>()?)
        }
        FullTextExpression::Not(_) => return None,
        FullTextExpression::Boost(inner, by) => {
            FullTextExpression::Boost(Box::new(required_expression(inner)?), *by)
        }
        leaf => leaf.clone(),
    })
}

impl FullTextSearch {
    /// Returns true if a node of a document meets the condition.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn matches(
        &self,
        node: &Node,
        subject: FilteredNode<'_>,
        document: &NodePath,
    ) -> Result<bool> {
        let FullTextCondition { property, expression } = &self.condition;
        let words = subject.text_words(property.as_deref())?;
        if words.matches(expression) {
            return Ok(true);
        }
        let is_hit =
            node.path() == document && !self.is_changed(document) && node.is_document_visible();
        // The words of a single property are matched without weights, except those of a file.
        let is_weighed = match property.as_deref() {
            None => true,
            Some(property) => {
                let is_file = property.rsplit('/').next() == Some("jcr:data");
                is_file && subject.any_property(property, &mut |_| true)?
            }
        };
        Ok(is_hit && is_weighed && matches_hit(expression, &|part| words.matches(part)))
    }

    /// Returns the score and excerpt that the index would give for a node, if it would find the node.
    ///
    /// # Errors
    /// If the store or the index fails.
    pub(crate) fn look_up_node(
        &self,
        context: &QueryContext<'_>,
        node: &Node,
        subject: FilteredNode<'_>,
    ) -> Result<Option<(f32, Option<String>)>> {
        let document = node.record_path();
        let Some(index) = context.full_text.filter(|index| index.covers(document)) else {
            return Ok(None);
        };
        if !self.matches(node, subject, document)? {
            return Ok(None);
        }
        if self.is_changed(document) {
            return Ok(Some((DEFAULT_SCORE, None)));
        }
        Ok(index.find_hit(&self.request, document)?.map(|hit| (hit.score, hit.excerpt)))
    }

    fn is_changed(&self, document: &NodePath) -> bool {
        self.changed_documents.binary_search(document).is_ok()
    }

    /// Collects the nodes in a document that have a wanted type, whether or not the viewer sees them.
    fn collect_nodes(
        &self,
        context: &QueryContext<'_>,
        hit: &FullTextHit,
        into: &mut VecDeque<CandidateNode>,
    ) -> Result<()> {
        let node = context.state.node(&hit.path)?.filter(|node| node.summary().is_some());
        let Some(node) = node else { return Ok(()) };
        let Some(body) = node.as_borrowed() else { return Ok(()) };
        let mut paths = Vec::new();
        self.collect_matching_paths(context, hit.path.as_str(), body, &mut paths)?;
        paths.sort();
        into.extend(paths.into_iter().map(|path| CandidateNode {
            position: NodeSourcePosition::Score {
                score: hit.score,
                document: hit.path.clone(),
                path: path.clone(),
            },
            path,
            score: hit.score,
            excerpt: hit.excerpt.clone(),
            node: None,
        }));
        Ok(())
    }

    fn collect_matching_paths(
        &self,
        context: &QueryContext<'_>,
        path: &str,
        node: BorrowedNode<'_>,
        into: &mut Vec<NodePath>,
    ) -> Result<()> {
        context.count_row()?;
        for child in node.children() {
            let above = path.trim_end_matches('/');
            self.collect_matching_paths(
                context,
                &format!("{above}/{}", child.name()),
                child,
                into,
            )?;
        }
        let has_type = self.node_types.as_ref().is_none_or(|types| {
            let own =
                [PRIMARY_TYPE, MIXIN_TYPES].into_iter().filter_map(|name| node.property(name));
            let mut own =
                own.flat_map(|property| property.values().filter_map(|value| value.as_str()));
            own.any(|name| types.contains(name))
        });
        if has_type {
            into.push(NodePath::new(path)?);
        }
        Ok(())
    }
}

/// Evaluates the condition for a document that the index found by [`required_expression`]: the required parts are
/// present, whatever `matches` returns.
fn matches_hit(
    expression: &FullTextExpression,
    matches: &dyn Fn(&FullTextExpression) -> bool,
) -> bool {
    match expression {
        FullTextExpression::And(parts) => parts.iter().all(|part| matches_hit(part, matches)),
        FullTextExpression::Or(_) => {
            required_expression(expression).as_ref() == Some(expression) || matches(expression)
        }
        FullTextExpression::Not(inner) => !matches(inner),
        FullTextExpression::Boost(inner, _) => matches_hit(inner, matches),
        _ => true,
    }
}

/// Compares hits by their position in the result order; the earlier hit is less.
fn compare_hits(left: &FullTextHit, right: &FullTextHit) -> Ordering {
    right.score.total_cmp(&left.score).then_with(|| left.path.cmp(&right.path))
}

/// Reads the hits of one search in order.
struct FullTextHitReader<'a> {
    context: &'a QueryContext<'a>,
    search: FullTextSearch,
    page_hits: VecDeque<FullTextHit>,
    is_last_page: bool,
    /// The remaining hits in documents that the index does not have.
    changed_hits: VecDeque<FullTextHit>,
    candidates: VecDeque<CandidateNode>,
}

/// Reads the nodes of the hits, page by page.
pub(crate) fn read_hits<'a>(
    context: &'a QueryContext<'a>,
    search: &FullTextSearch,
    after: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    let unscored =
        |path: &NodePath| FullTextHit { path: path.clone(), score: DEFAULT_SCORE, excerpt: None };
    let mut hits = FullTextHitReader {
        context,
        search: search.clone(),
        page_hits: VecDeque::new(),
        is_last_page: false,
        changed_hits: search.changed_documents.iter().map(unscored).collect(),
        candidates: VecDeque::new(),
    };
    let mut failed = None;
    if let Some(NodeSourcePosition::Score { score, document, path }) = after {
        failed = hits.resume_after(*score, document, path).err();
    }
    Box::new(failed.map(Err).into_iter().chain(std::iter::from_fn(move || hits.next().transpose())))
}

impl FullTextHitReader<'_> {
    /// Continues after a given node of a document.
    fn resume_after(&mut self, score: f32, document: &NodePath, path: &NodePath) -> Result<()> {
        let last = FullTextHit { path: document.clone(), score, excerpt: None };
        self.changed_hits.retain(|hit| compare_hits(&last, hit).is_lt());
        self.search.collect_nodes(self.context, &last, &mut self.candidates)?;
        self.candidates.retain(|candidate| candidate.path > *path);
        self.search.request.after = Some(FullTextPosition { score, path: document.clone() });
        Ok(())
    }

    fn next(&mut self) -> Result<Option<CandidateNode>> {
        loop {
            if let Some(candidate) = self.candidates.pop_front() {
                return Ok(Some(candidate));
            }
            self.fetch_next_page()?;
            let is_changed_next = match (self.changed_hits.front(), self.page_hits.front()) {
                (Some(changed), Some(hit)) => compare_hits(changed, hit).is_lt(),
                (changed, _) => changed.is_some(),
            };
            let hit = if is_changed_next {
                self.changed_hits.pop_front()
            } else {
                self.page_hits.pop_front()
            };
            let Some(hit) = hit else { return Ok(None) };
            self.context.count_row()?;
            self.search.collect_nodes(self.context, &hit, &mut self.candidates)?;
        }
    }

    /// Requests the next page if the current one is used up.
    fn fetch_next_page(&mut self) -> Result<()> {
        let Some(index) = self.context.full_text else { return Ok(()) };
        while self.page_hits.is_empty() && !self.is_last_page {
            let request = &mut self.search.request;
            let results = index.search(request)?;
            self.is_last_page = results.hits.len() < request.limit;
            if let Some(last) = results.hits.last() {
                request.after =
                    Some(FullTextPosition { score: last.score, path: last.path.clone() });
            }
            // The facet counts of the index include documents that the viewer may not read.
            if !results.facets.is_empty() && !self.context.snapshot.has_viewer() {
                *self.context.facet_counts.borrow_mut() = results.facets;
            }
            // Facets are counted once for all pages.
            request.facets.clear();
            self.page_hits.extend(results.hits);
            let search = &self.search;
            self.page_hits.retain(|hit| !search.is_changed(&hit.path));
        }
        Ok(())
    }
}
