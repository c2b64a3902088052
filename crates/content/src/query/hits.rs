//! Nodes that a condition on words admits, from the hits of the full-text index.
//!
//! A hit is a document. It is a candidate, no more: the nodes in it that have a wanted type are looked at one by one, on
//! what the viewer sees of them. Only for the document's own node, and only if the viewer sees the whole document, the
//! index has the last word, as it knows stems and the text of files.
//!
//! Invariants
//! * All pages of one query come from one state of the index.
//! * Documents that differ between that state and the snapshot are looked at themselves; hits on them do not count.
//! * Documents come by falling score, then by path; the nodes of one by path.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tympan_store::Root;

use super::access::{Candidate, Candidates, Ground, Mark};
use super::filter::Subject;
use super::full_text::{FullText, TextExpression, TextHit, TextPosition, TextRequest};
use super::plan::HITS;
use crate::borrowed::BorrowedNode;
use crate::subtree::{MIXIN_TYPES, PRIMARY_TYPE};
use crate::{Node, NodePath, Result, Snapshot, keys};

/// The score of nodes whose words were not weighed.
pub(crate) const UNSCORED: f32 = 1.0;
/// If more documents differ between the index and the snapshot, the index is not used.
const MAX_CHANGED: usize = 1000;

/// A condition on words.
#[derive(Debug, Clone)]
pub(crate) struct TextCondition {
    pub(crate) property: Option<String>,
    pub(crate) expression: TextExpression,
}

/// Hits of the full-text index, and what is to be found in their documents.
#[derive(Debug, Clone)]
pub(crate) struct TextSearch {
    /// What gives at least all documents that hold wanted nodes, as far as the index has them.
    pub(crate) request: TextRequest,
    pub(crate) condition: TextCondition,
    /// The types of which a node must have one; none for any.
    pub(crate) types: Option<BTreeSet<String>>,
    /// The documents that the index has in another state, or not at all; sorted.
    pub(crate) changed: Arc<[NodePath]>,
}

/// How far the full-text index is from the snapshot.
#[derive(Debug, Clone)]
pub(crate) enum Lag {
    /// The documents that differ, sorted.
    Changed(Arc<[NodePath]>),
    /// So far that looking at what differs is no help, or unknown.
    Far,
}

/// Returns how far the full-text index is from the snapshot. It costs in proportion to what differs.
///
/// # Errors
/// Errors of the store.
pub(crate) fn lag<'a>(ground: &'a Ground<'_>) -> Result<&'a Lag> {
    if let Some(lag) = ground.lag.get() {
        return Ok(lag);
    }
    let lag = find_lag(ground)?;
    Ok(ground.lag.get_or_init(|| lag))
}

fn find_lag(ground: &Ground<'_>) -> Result<Lag> {
    let indexed = ground.full_text.and_then(|index| Some((index, index.indexed_root()?)));
    let Some((index, indexed)) = indexed else { return Ok(Lag::Far) };
    if indexed == ground.snapshot.root_id() {
        return Ok(Lag::Changed(Arc::default()));
    }
    let reads = ground.snapshot.0.shared.reads();
    // The state of another history may be gone.
    let Ok(indexed) = Root::read(reads, &indexed) else { return Ok(Lag::Far) };
    let content = |maps: &std::collections::BTreeMap<String, tympan_store::Map>| {
        maps.get("content").copied().unwrap_or_default()
    };
    let mut changed = Vec::new();
    for change in content(&indexed.maps).diff(&content(&ground.maps), reads) {
        let path = keys::path_of(&change?.key)?;
        if index.covers(&path) {
            changed.push(path);
        }
        if changed.len() > MAX_CHANGED {
            return Ok(Lag::Far);
        }
    }
    changed.sort();
    Ok(Lag::Changed(changed.into()))
}

impl TextCondition {
    /// Asks for at least all documents in which a node meets the condition; nothing if no words tell which.
    ///
    /// # Errors
    /// If the index fails.
    pub(crate) fn request(&self, index: &dyn FullText) -> Result<Option<TextRequest>> {
        let Some(expression) = wanted_words(&self.expression) else { return Ok(None) };
        // What is no property may be the path of a node. One with a prefix is taken for a property where there is one,
        // as documents that have the words elsewhere may be very many; the index knows which names are those of nodes
        // too.
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
        Ok(Some(TextRequest {
            expression,
            property,
            node_types: Vec::new(),
            below: None,
            after: None,
            limit: HITS,
            facets: Vec::new(),
            excerpt: false,
        }))
    }
}

/// Leaves out what must not be there: a document that has it may hold nodes that do not. Nothing if no word has to be
/// there.
fn wanted_words(expression: &TextExpression) -> Option<TextExpression> {
    Some(match expression {
        TextExpression::And(parts) => {
            let parts: Vec<_> = parts.iter().filter_map(wanted_words).collect();
            if parts.is_empty() {
                return None;
            }
            TextExpression::And(parts)
        }
        TextExpression::Or(parts) => {
            TextExpression::Or(parts.iter().map(wanted_words).collect::<Option<_>>()?)
        }
        TextExpression::Not(_) => return None,
        TextExpression::Boost(inner, by) => {
            TextExpression::Boost(Box::new(wanted_words(inner)?), *by)
        }
        word => word.clone(),
    })
}

impl TextSearch {
    /// Tells whether a node of a document meets the condition.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn holds(
        &self,
        node: &Node,
        subject: Subject<'_>,
        document: &NodePath,
    ) -> Result<bool> {
        let TextCondition { property, expression } = &self.condition;
        let words = subject.words(property.as_deref())?;
        if words.matches(expression) {
            return Ok(true);
        }
        let is_hit = node.path() == document && !self.is_changed(document) && node.is_whole();
        // The words of one property are found as they are, but for those of a file.
        let is_weighed = match property.as_deref() {
            None => true,
            Some(property) => {
                let is_file = property.rsplit('/').next() == Some("jcr:data");
                is_file && subject.properties(property, &mut |_| true)?
            }
        };
        Ok(is_hit && is_weighed && holds_for_hit(expression, &|part| words.matches(part)))
    }

    /// Tells whether the index would give a node, and with what score and excerpt.
    ///
    /// # Errors
    /// If the store or the index fails.
    pub(crate) fn look_up(
        &self,
        ground: &Ground<'_>,
        node: &Node,
        subject: Subject<'_>,
    ) -> Result<Option<(f32, Option<String>)>> {
        let document = node.document_path();
        let Some(index) = ground.full_text.filter(|index| index.covers(document)) else {
            return Ok(None);
        };
        if !self.holds(node, subject, document)? {
            return Ok(None);
        }
        if self.is_changed(document) {
            return Ok(Some((UNSCORED, None)));
        }
        Ok(index.find(&self.request, document)?.map(|hit| (hit.score, hit.excerpt)))
    }

    fn is_changed(&self, document: &NodePath) -> bool {
        self.changed.binary_search(document).is_ok()
    }

    /// Finds the nodes in a document that have a wanted type, whether the viewer sees them or not.
    fn nodes(
        &self,
        ground: &Ground<'_>,
        found: &TextHit,
        into: &mut VecDeque<Candidate>,
    ) -> Result<()> {
        let whole = Snapshot(ground.snapshot.0.clone(), None);
        let Some(node) = whole.document_node(&found.path)? else { return Ok(()) };
        let Some(body) = node.borrowed() else { return Ok(()) };
        let mut paths = Vec::new();
        self.add(ground, found.path.as_str(), body, &mut paths)?;
        paths.sort();
        into.extend(paths.into_iter().map(|path| Candidate {
            mark: Mark::Score {
                score: found.score,
                document: found.path.clone(),
                path: path.clone(),
            },
            path,
            score: found.score,
            excerpt: found.excerpt.clone(),
            node: None,
        }));
        Ok(())
    }

    fn add(
        &self,
        ground: &Ground<'_>,
        path: &str,
        node: BorrowedNode<'_>,
        into: &mut Vec<NodePath>,
    ) -> Result<()> {
        ground.count_row()?;
        for child in node.children() {
            let above = path.trim_end_matches('/');
            self.add(ground, &format!("{above}/{}", child.name()), child, into)?;
        }
        let has_type = self.types.as_ref().is_none_or(|types| {
            let own =
                [PRIMARY_TYPE, MIXIN_TYPES].into_iter().filter_map(|name| node.property(name));
            let mut own = own.flat_map(|one| one.values().filter_map(|value| value.as_str()));
            own.any(|name| types.contains(name))
        });
        if has_type {
            into.push(NodePath::new(path)?);
        }
        Ok(())
    }
}

/// Decides the condition for a document that the index found by [`wanted_words`]: what must be there is, whatever
/// `matches` says.
fn holds_for_hit(expression: &TextExpression, matches: &dyn Fn(&TextExpression) -> bool) -> bool {
    match expression {
        TextExpression::And(parts) => parts.iter().all(|part| holds_for_hit(part, matches)),
        TextExpression::Or(_) => {
            wanted_words(expression).as_ref() == Some(expression) || matches(expression)
        }
        TextExpression::Not(inner) => !matches(inner),
        TextExpression::Boost(inner, _) => holds_for_hit(inner, matches),
        _ => true,
    }
}

/// Compares by place: what comes first is less.
fn place(one: &TextHit, other: &TextHit) -> Ordering {
    other.score.total_cmp(&one.score).then_with(|| one.path.cmp(&other.path))
}

/// The hits of one search, in their order.
struct Hits<'a> {
    ground: &'a Ground<'a>,
    search: TextSearch,
    page: VecDeque<TextHit>,
    is_last: bool,
    /// The documents that the index does not have, still to come.
    changed: VecDeque<TextHit>,
    found: VecDeque<Candidate>,
}

/// Reads the nodes of the hits page by page.
pub(crate) fn hits<'a>(
    ground: &'a Ground<'a>,
    search: &TextSearch,
    after: Option<&Mark>,
) -> Candidates<'a> {
    let unscored = |path: &NodePath| TextHit { path: path.clone(), score: UNSCORED, excerpt: None };
    let mut hits = Hits {
        ground,
        search: search.clone(),
        page: VecDeque::new(),
        is_last: false,
        changed: search.changed.iter().map(unscored).collect(),
        found: VecDeque::new(),
    };
    let mut failed = None;
    if let Some(Mark::Score { score, document, path }) = after {
        failed = hits.resume(*score, document, path).err();
    }
    Box::new(failed.map(Err).into_iter().chain(std::iter::from_fn(move || hits.next().transpose())))
}

impl Hits<'_> {
    /// Goes on behind a node of a document.
    fn resume(&mut self, score: f32, document: &NodePath, path: &NodePath) -> Result<()> {
        let last = TextHit { path: document.clone(), score, excerpt: None };
        self.changed.retain(|hit| place(&last, hit).is_lt());
        self.search.nodes(self.ground, &last, &mut self.found)?;
        self.found.retain(|candidate| candidate.path > *path);
        self.search.request.after = Some(TextPosition { score, path: document.clone() });
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Candidate>> {
        loop {
            if let Some(candidate) = self.found.pop_front() {
                return Ok(Some(candidate));
            }
            self.fill()?;
            let is_changed_next = match (self.changed.front(), self.page.front()) {
                (Some(changed), Some(hit)) => place(changed, hit).is_lt(),
                (changed, _) => changed.is_some(),
            };
            let hit =
                if is_changed_next { self.changed.pop_front() } else { self.page.pop_front() };
            let Some(hit) = hit else { return Ok(None) };
            self.ground.count_row()?;
            self.search.nodes(self.ground, &hit, &mut self.found)?;
        }
    }

    /// Asks for the next page if there is none left of the last one.
    fn fill(&mut self) -> Result<()> {
        let Some(index) = self.ground.full_text else { return Ok(()) };
        while self.page.is_empty() && !self.is_last {
            let request = &mut self.search.request;
            let found = index.search(request)?;
            self.is_last = found.hits.len() < request.limit;
            if let Some(last) = found.hits.last() {
                request.after = Some(TextPosition { score: last.score, path: last.path.clone() });
            }
            // The index counts what a viewer may not read, too.
            if !found.facets.is_empty() && self.ground.snapshot.1.is_none() {
                *self.ground.facets.borrow_mut() = found.facets;
            }
            // Counted once, for all pages.
            request.facets.clear();
            self.page.extend(found.hits);
            let search = &self.search;
            self.page.retain(|hit| !search.is_changed(&hit.path));
        }
        Ok(())
    }
}
