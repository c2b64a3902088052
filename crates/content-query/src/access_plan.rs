//! Chooses one source of nodes for each selector, by the estimated number of nodes and entries read.
//!
//! In: the constraints of a selector. Out: an [`AccessPlan`]. Estimates use the entry counts of maps, so they are exact
//! for a range of keys; only the number of nodes per document is an average.

use std::collections::BTreeSet;

use tympan_content::{
    Comparand, IndexFunction, IndexMap, JCR_CONTENT, KeySpan, LookupIndex, NodePath, PropertyIndex,
    ScanScope, Value, ValueKey, is_container_type, prefix_successor,
};

use crate::algebra::{
    QueryConstraint, QueryOptions, QueryOrdering, QuerySelector, TraversalPolicy,
};
use crate::full_text::{FullTextExpression, FullTextRequest};
use crate::full_text_hit::{FullTextCondition, FullTextLag, FullTextSearch, full_text_lag};
use crate::index_condition::{IndexCondition, IndexValueMatch, indexed_operand};
use crate::node_source::{
    IndexKeyLayout, IndexSpans, NodeSource, NodeSourcePosition, QueryContext, read_candidates,
    sorted_unique_paths,
};
use crate::row_filter::{RowFilter, bound_value};
use crate::{Error, Result};

/// The cost of reading a node by an index, relative to skipping one in a scan.
const INDEX_LOOKUP_COST: u64 = 10;
/// The cost of reading the document of a hit and selecting its matching nodes.
const FULL_TEXT_HIT_COST: u64 = 30;
/// The cost of querying the full-text index for one document.
const FULL_TEXT_LOOKUP_COST: u64 = 150;
/// Maximum number of paths collected from an index for sorting.
const MAX_GATHERED_PATHS: u64 = 50_000;

/// The plan for reading the nodes of one selector.
#[derive(Debug, Clone)]
pub(crate) struct AccessPlan {
    pub(crate) selector: String,
    pub(crate) source: NodeSource,
    /// The display name of the index in plans.
    pub(crate) index_name: String,
    /// The estimated number of nodes from the source.
    pub(crate) estimated_nodes: u64,
    pub(crate) cost: u64,
    /// The accepted node types; `None` for all.
    pub(crate) accepted_types: Option<BTreeSet<String>>,
    pub(crate) filter: RowFilter,
    /// The parts of the filter that depend only on paths.
    pub(crate) path_filter: RowFilter,
    /// The full-text query to check each node with, if the full-text index is not the source.
    pub(crate) full_text_check: Option<Box<FullTextSearch>>,
    /// The constraints, formatted for plans.
    pub(crate) constraint_texts: Vec<String>,
    /// True if the source yields nodes in the order of the first ordering.
    pub(crate) is_ordered: bool,
    /// True if the source omits nodes without a value of the first ordering, which must follow.
    pub(crate) omits_empty_values: bool,
}

/// The requirements of a query on a selector's nodes.
pub(crate) struct SelectorRequirements<'a> {
    pub(crate) selector: &'a str,
    pub(crate) node_type: &'a str,
    pub(crate) constraints: Vec<QueryConstraint>,
    pub(crate) orderings: &'a [QueryOrdering],
    /// The number of rows needed, if known.
    pub(crate) limit: Option<u64>,
    pub(crate) options: &'a QueryOptions,
    /// The columns that need an excerpt or counts.
    pub(crate) wants_excerpt: bool,
    pub(crate) facets: Vec<String>,
    /// The position to continue from.
    pub(crate) position: Option<&'a NodeSourcePosition>,
}

impl<'a> SelectorRequirements<'a> {
    /// Requires all nodes of a selector that satisfy constraints, in any order.
    pub(crate) fn all_matching(
        selector: &'a QuerySelector,
        constraints: Vec<QueryConstraint>,
    ) -> Self {
        Self {
            selector: &selector.name,
            node_type: &selector.node_type,
            constraints,
            orderings: &[],
            limit: None,
            options: &QueryOptions::NONE,
            wants_excerpt: false,
            facets: Vec::new(),
            position: None,
        }
    }
}

/// A possible source.
struct SourceCandidate {
    source: NodeSource,
    index_name: String,
    estimated_nodes: u64,
    cost: u64,
}

/// The region of the tree that contains the matching nodes.
struct PathRestriction {
    exact_path: Option<NodePath>,
    parent_path: Option<NodePath>,
    ancestor_path: Option<NodePath>,
}

impl PathRestriction {
    fn from_constraints(constraints: &[QueryConstraint]) -> Self {
        let mut region = Self { exact_path: None, parent_path: None, ancestor_path: None };
        for constraint in constraints {
            match constraint {
                QueryConstraint::Same { path, .. } => region.exact_path = Some(path.clone()),
                QueryConstraint::Child { path, .. } => region.parent_path = Some(path.clone()),
                QueryConstraint::Descendant { path, .. } => {
                    // If two paths overlap at all, the deeper one is more restrictive.
                    let is_deeper =
                        region.ancestor_path.as_ref().is_none_or(|below| path.is_within(below));
                    if is_deeper {
                        region.ancestor_path = Some(path.clone());
                    }
                }
                _ => {}
            }
        }
        region
    }

    /// Returns the node above all matching ones.
    fn containing_path(&self) -> Option<&NodePath> {
        self.exact_path.as_ref().or(self.parent_path.as_ref()).or(self.ancestor_path.as_ref())
    }

    /// Restricts the entries of one value to the paths in the region.
    fn narrow_span(&self, value: &KeySpan) -> KeySpan {
        let (prefix, end) = value;
        let with = |rest: &[u8]| [prefix, rest].concat();
        if let Some(same) = &self.exact_path {
            return (
                with(same.as_str().as_bytes()),
                with(&[same.as_str().as_bytes(), &[1]].concat()),
            );
        }
        match self.parent_path.as_ref().or(self.ancestor_path.as_ref()) {
            Some(above) if !above.is_root() => {
                let below = format!("{above}/");
                let start = with(below.as_bytes());
                let end = prefix_successor(&start);
                (start, end)
            }
            _ => (prefix.clone(), end.clone()),
        }
    }
}

/// Chooses the source of a selector's nodes.
///
/// # Errors
/// [`Error::QueryRefused`] if only a traversal is possible and the query forbids it; errors of the store.
pub(crate) fn plan_access(
    context: &QueryContext<'_>,
    requirements: &SelectorRequirements<'_>,
) -> Result<AccessPlan> {
    let types = accepted_types(context, requirements.node_type);
    let constraints: Vec<QueryConstraint> = requirements
        .constraints
        .iter()
        .flat_map(|requirement| requirement.conjuncts().into_iter().cloned())
        .collect();
    let planner = AccessPlanner {
        context,
        requirements,
        accepted_types: &types,
        path_restriction: PathRestriction::from_constraints(&constraints),
        constraints: &constraints,
    };
    let (choice, text_at, text) = match planner.full_text_candidate()? {
        Some((choice, at)) => match planner.cheaper_alternative(&choice)? {
            Some((rival, search)) => (rival, Some(at), Some(search)),
            None => (choice, Some(at), None),
        },
        None => (planner.cheapest_candidate()?, None, None),
    };
    let choice = planner.with_lag_note(choice);
    let ordered = match (text_at, requirements.position) {
        (None, None) => planner.ordered_candidate(&choice)?,
        _ => None,
    };
    let (choice, is_ordered, lacks_empty) = match ordered {
        Some((choice, lacks_empty)) => (choice, true, lacks_empty),
        None => (choice, false, false),
    };
    if matches!(choice.source, NodeSource::Scan { is_children_only: false, .. }) {
        planner.check_traversal()?;
    }
    // Constraints that the full-text index has evaluated are not evaluated again.
    let rest: Vec<QueryConstraint> = constraints
        .iter()
        .enumerate()
        .filter(|(at, _)| text_at != Some(*at))
        .map(|(_, constraint)| constraint.clone())
        .collect();
    let filters = rest
        .iter()
        .map(|remaining_constraint| RowFilter::new(remaining_constraint, &|_| 0))
        .collect::<Result<Vec<_>>>()?;
    let (about_paths, others): (Vec<_>, Vec<_>) =
        filters.into_iter().partition(RowFilter::is_path_only);
    Ok(AccessPlan {
        selector: requirements.selector.to_owned(),
        source: choice.source,
        index_name: choice.index_name,
        estimated_nodes: choice.estimated_nodes,
        cost: choice.cost,
        accepted_types: types,
        filter: RowFilter::And(others),
        path_filter: RowFilter::And(about_paths),
        full_text_check: text,
        constraint_texts: rest.iter().map(QueryConstraint::to_string).collect(),
        is_ordered,
        omits_empty_values: lacks_empty,
    })
}

fn stale_cursor_error() -> Error {
    let reason =
        "its cursor belongs to an index that no longer exists; start again without a cursor";
    Error::QueryRefused { reason: reason.to_owned() }
}

/// Returns the types of which a node must have one; `None` if all are accepted.
fn accepted_types(context: &QueryContext<'_>, node_type: &str) -> Option<BTreeSet<String>> {
    let subtypes =
        || context.node_types.subtypes(node_type).chain([node_type]).map(str::to_owned).collect();
    (node_type != "nt:base").then(subtypes)
}

struct AccessPlanner<'a> {
    context: &'a QueryContext<'a>,
    requirements: &'a SelectorRequirements<'a>,
    accepted_types: &'a Option<BTreeSet<String>>,
    path_restriction: PathRestriction,
    constraints: &'a [QueryConstraint],
}

impl AccessPlanner<'_> {
    /// Refuses or logs a query that no index serves, according to its options.
    fn check_traversal(&self) -> Result<()> {
        match self.requirements.options.traversal {
            Some(TraversalPolicy::Fail) => Err(Error::QueryRefused {
                reason: "no index serves it, and it specifies `TRAVERSAL FAIL`".to_owned(),
            }),
            Some(TraversalPolicy::Warn) => {
                tracing::warn!(reason = "no index serves it", "query traverses nodes");
                Ok(())
            }
            Some(TraversalPolicy::Ok) | None => Ok(()),
        }
    }

    /// Returns the full-text index as the source if it yields all nodes that match the words, with the position of the
    /// constraint it serves.
    fn full_text_candidate(&self) -> Result<Option<(SourceCandidate, usize)>> {
        let Some(index) = self.context.full_text else { return Ok(None) };
        let full_text =
            self.constraints.iter().enumerate().find_map(|(at, constraint)| match constraint {
                QueryConstraint::Contains { property, text, .. } => {
                    Some((at, property.clone(), text, false))
                }
                QueryConstraint::Similar { path, .. } => Some((at, None, path, true)),
                _ => None,
            });
        let Some((at, property, text, is_similar)) = full_text else { return Ok(None) };
        // A node whose path is known is checked individually.
        let is_known = self.path_restriction.exact_path.is_some() && !is_similar;
        let is_outside =
            self.path_restriction.containing_path().is_some_and(|above| !index.covers(above));
        let is_left = matches!(self.requirements.position, Some(NodeSourcePosition::Scan { .. }));
        if is_known || is_outside || is_left || self.can_cross_documents(property.as_deref()) {
            return Ok(None);
        }
        let FullTextLag::Changed(changed) = full_text_lag(self.context)? else { return Ok(None) };
        let text = bound_value(text)?.to_text();
        let expression = if is_similar {
            let path = NodePath::new(&text)?;
            // Similarity to a node reveals its content.
            if !self.context.snapshot.node(&path)?.is_some_and(|node| node.is_document_visible()) {
                return Ok(None);
            }
            FullTextExpression::Similar(path)
        } else {
            FullTextExpression::parse(&text)?
        };
        let condition = FullTextCondition { property, expression };
        let Some(request) = condition.to_request(index)? else { return Ok(None) };
        // The index counts documents. It knows only their words, and not always the property that contains them.
        let is_counted = changed.is_empty()
            && condition.property.is_none()
            && request.expression == condition.expression
            && self.constraints.len() == 1
            && self.requirements.node_type == "cq:Page";
        let request = FullTextRequest {
            node_types: self.accepted_types.iter().flatten().cloned().collect(),
            ancestor: self.path_restriction.containing_path().cloned(),
            facets: if is_counted { self.requirements.facets.clone() } else { Vec::new() },
            wants_excerpt: self.requirements.wants_excerpt,
            ..request
        };
        let index = match changed.len() {
            0 => "full text".to_owned(),
            count => format!("full text, and {count} documents that are not indexed yet"),
        };
        let search = FullTextSearch {
            request,
            condition,
            node_types: self.accepted_types.clone(),
            changed_documents: changed.clone(),
        };
        let source = NodeSource::FullText(Box::new(search));
        Ok(Some((SourceCandidate { source, index_name: index, estimated_nodes: 0, cost: 0 }, at)))
    }

    /// Returns another source whose nodes are checked in the full-text index one by one, if that is cheaper than
    /// reading its hits; `None` if the hits are needed for more than their nodes.
    fn cheaper_alternative(
        &self,
        text: &SourceCandidate,
    ) -> Result<Option<(SourceCandidate, Box<FullTextSearch>)>> {
        let (Some(index), NodeSource::FullText(search)) = (self.context.full_text, &text.source)
        else {
            return Ok(None);
        };
        let named = |best: SourceCandidate| {
            let index = format!("{}, each looked up in the {}", best.index_name, text.index_name);
            Some((SourceCandidate { index_name: index, ..best }, search.clone()))
        };
        match self.requirements.position {
            Some(NodeSourcePosition::Score { .. }) => return Ok(None),
            // The previous page came from such a source.
            Some(_) => return Ok(named(self.cheapest_candidate()?)),
            None => {}
        }
        let is_needed = matches!(search.condition.expression, FullTextExpression::Similar(_))
            || !self.requirements.facets.is_empty();
        if is_needed || self.constraints.len() < 2 {
            return Ok(None);
        }
        let best = self.cheapest_candidate()?;
        if matches!(best.source, NodeSource::Scan { is_children_only: false, .. }) {
            return Ok(None);
        }
        let asking =
            best.cost.saturating_add(best.estimated_nodes.saturating_mul(FULL_TEXT_LOOKUP_COST));
        // At most as many hits are needed as the other source has nodes; finding them may require reading all hits.
        let request = FullTextRequest { limit: 1, facets: Vec::new(), ..search.request.clone() };
        let hits = index
            .search(&request)?
            .estimated_total
            .saturating_add(search.changed_documents.len() as u64);
        let limit = self.requirements.limit.unwrap_or(u64::MAX).max(1);
        let share = best.estimated_nodes.max(1).div_ceil(limit).max(1);
        if asking >= hits.div_ceil(share).saturating_mul(FULL_TEXT_HIT_COST) {
            return Ok(None);
        }
        Ok(named(best))
    }

    /// Adds a note to a source that replaces a full-text index which is too far from the snapshot.
    fn with_lag_note(&self, choice: SourceCandidate) -> SourceCandidate {
        if !matches!(self.context.full_text_lag.get(), Some(FullTextLag::TooFar)) {
            return choice;
        }
        let index = format!(
            "{}, as the full-text index differs too much from this state",
            choice.index_name
        );
        SourceCandidate { index_name: index, ..choice }
    }

    /// Returns true if a property path may lead from one document to another, so that the words are not in the document
    /// of the matching node.
    fn can_cross_documents(&self, property: Option<&str>) -> bool {
        let Some((parents, _)) = property.and_then(|property| property.split_once('/')) else {
            return property == Some("*");
        };
        let is_closed = |name: &String| {
            let is_primary = self
                .context
                .node_types
                .find(name)
                .is_some_and(|node_type| !node_type.definition.flags.is_mixin);
            is_primary
                && (!is_container_type(name) || (name == "cq:Page" && parents == JCR_CONTENT))
        };
        !self.accepted_types.as_ref().is_some_and(|types| types.iter().all(is_closed))
    }

    /// Returns the cheapest source that can continue from the required position.
    fn cheapest_candidate(&self) -> Result<SourceCandidate> {
        let mut choices = self.path_candidates()?;
        choices.extend(self.type_candidate()?);
        for constraint in self.constraints {
            choices.extend(self.constraint_candidate(constraint)?);
        }
        let options = self.requirements.options;
        let is_named = options.index_name.is_some() || options.index_tag.is_some();
        if is_named && choices.iter().any(|choice| self.is_requested_index(choice)) {
            choices.retain(|choice| self.is_requested_index(choice));
        }
        if let Some(mark) = self.requirements.position {
            choices.retain(|choice| choice.source.can_resume_at(mark));
        }
        let best =
            choices.into_iter().min_by_key(|choice| choice.cost).ok_or_else(stale_cursor_error)?;
        match &best.source {
            NodeSource::Spans(spans) if spans.has_multiple_entries => self.gather_paths(best),
            _ => Ok(best),
        }
    }

    fn is_requested_index(&self, choice: &SourceCandidate) -> bool {
        let NodeSource::Spans(spans) = &choice.source else { return false };
        let indexes = self.context.state.property_indexes();
        let index = indexes.iter().find(|index| index.map_name() == spans.map_name);
        let options = self.requirements.options;
        index.is_some_and(|index| {
            options.index_name.as_ref().is_none_or(|name| index.name() == name)
                && options.index_tag.as_ref().is_none_or(|tag| index.has_tag(tag))
        })
    }

    /// Returns the sources that follow from the path constraints.
    fn path_candidates(&self) -> Result<Vec<SourceCandidate>> {
        if let Some(same) = &self.path_restriction.exact_path {
            let source = NodeSource::Nodes(vec![same.clone()]);
            return Ok(vec![SourceCandidate {
                source,
                index_name: "path".to_owned(),
                estimated_nodes: 1,
                cost: INDEX_LOOKUP_COST,
            }]);
        }
        let state = &self.context.state;
        let total = state.count_documents()?;
        if let Some(parent) = &self.path_restriction.parent_path {
            // Children in the parent's own document are not counted; there are few.
            let estimate =
                state.count_documents_below(parent, ScanScope::Children)?.saturating_add(1);
            let source = NodeSource::Scan { root_path: parent.clone(), is_children_only: true };
            return Ok(vec![SourceCandidate {
                source,
                index_name: "children".to_owned(),
                estimated_nodes: estimate,
                cost: estimate,
            }]);
        }
        let above = self.path_restriction.ancestor_path.clone().unwrap_or_else(NodePath::root);
        let documents = state.count_documents_below(&above, ScanScope::Descendants)?;
        let nodes = state.count_entries(state.lookup_map(LookupIndex::Type))?;
        // Estimates the number of nodes from the average document.
        let estimate = documents.saturating_mul(nodes.max(total)) / total.max(1) + 1;
        let index =
            if above.is_root() { "traverse".to_owned() } else { format!("traverse below {above}") };
        let source = NodeSource::Scan { root_path: above, is_children_only: false };
        Ok(vec![SourceCandidate {
            source,
            index_name: index,
            estimated_nodes: estimate,
            cost: estimate,
        }])
    }

    fn type_candidate(&self) -> Result<Option<SourceCandidate>> {
        let Some(types) = self.accepted_types else { return Ok(None) };
        let names = types.iter().map(String::as_str);
        let candidate =
            self.lookup_candidate(LookupIndex::Type, "node type", &names.collect::<Vec<_>>())?;
        // The root of the content has no index entry.
        let takes_root =
            types.contains("rep:root") && self.path_restriction.containing_path().is_none();
        Ok(candidate.map(|choice| {
            if !takes_root {
                return choice;
            }
            let root = NodeSource::Nodes(vec![NodePath::root()]);
            SourceCandidate { source: NodeSource::Union(vec![root, choice.source]), ..choice }
        }))
    }

    /// Returns the entries of given texts in a lookup index.
    fn lookup_candidate(
        &self,
        lookup: LookupIndex,
        index: &str,
        values: &[&str],
    ) -> Result<Option<SourceCandidate>> {
        let spans = values.iter().map(|value| {
            LookupIndex::value_span(value).map(|span| self.path_restriction.narrow_span(&span))
        });
        let Some(spans) = spans.collect() else { return Ok(None) };
        let spans = IndexSpans {
            map_name: lookup.map_name().to_owned(),
            map: self.context.state.lookup_map(lookup),
            spans,
            is_merged: true,
            is_descending: false,
            has_multiple_entries: false,
            key_layout: IndexKeyLayout::Text,
            path_suffix: String::new(),
        };
        let name = format!("{index} {}", values.join(", "));
        self.index_candidate(spans, name).map(Some)
    }

    fn index_candidate(&self, mut spans: IndexSpans, index: String) -> Result<SourceCandidate> {
        let mut estimate = 0_u64;
        let mut merged_spans = Vec::new();
        for span in std::mem::take(&mut spans.spans) {
            let count = self.context.state.count_entries_in(spans.map, &span)?;
            if count > 0 {
                estimate = estimate.saturating_add(count);
                merged_spans.push(span);
            }
        }
        spans.spans = merged_spans;
        let cost = estimate.saturating_mul(INDEX_LOOKUP_COST).saturating_add(1);
        Ok(SourceCandidate {
            source: NodeSource::Spans(spans),
            index_name: index,
            estimated_nodes: estimate,
            cost,
        })
    }

    /// Returns the cheapest source for one constraint.
    fn constraint_candidate(
        &self,
        constraint: &QueryConstraint,
    ) -> Result<Option<SourceCandidate>> {
        if let QueryConstraint::Or(parts) = constraint {
            return self.disjunction_candidate(parts);
        }
        let Some(condition) = IndexCondition::from_constraint(constraint)? else { return Ok(None) };
        let mut choices: Vec<SourceCandidate> =
            self.fixed_map_candidate(&condition)?.into_iter().collect();
        for index in self.context.state.property_indexes() {
            choices.extend(self.property_candidate(index, &condition)?);
        }
        Ok(choices.into_iter().min_by_key(|choice| choice.cost))
    }

    /// Combines the sources of all alternatives, if each yields nodes in path order.
    fn disjunction_candidate(&self, parts: &[QueryConstraint]) -> Result<Option<SourceCandidate>> {
        let (mut sources, mut names) = (Vec::new(), Vec::new());
        let (mut estimate, mut cost) = (0_u64, 0_u64);
        for part in parts {
            let mut best: Option<SourceCandidate> = None;
            for conjunct in part.conjuncts() {
                if let Some(choice) = self.constraint_candidate(conjunct)?
                    && choice.source.can_resume_at(&NodeSourcePosition::Path(NodePath::root()))
                    && best.as_ref().is_none_or(|best| choice.cost < best.cost)
                {
                    best = Some(choice);
                }
            }
            let Some(mut choice) = best else { return Ok(None) };
            if matches!(&choice.source, NodeSource::Spans(spans) if spans.has_multiple_entries) {
                choice = self.gather_paths(choice)?;
            }
            estimate = estimate.saturating_add(choice.estimated_nodes);
            cost = cost.saturating_add(choice.cost);
            names.push(choice.index_name);
            sources.push(choice.source);
        }
        let index = format!("union of {}", names.join(" and "));
        Ok(Some(SourceCandidate {
            source: NodeSource::Union(sources),
            index_name: index,
            estimated_nodes: estimate,
            cost,
        }))
    }

    /// Returns a source that looks up types, resource types and identifiers.
    fn fixed_map_candidate(
        &self,
        condition: &IndexCondition<'_>,
    ) -> Result<Option<SourceCandidate>> {
        let value_match = condition
            .value_match_for(IndexFunction::Value)
            .filter(|_| condition.function == IndexFunction::Value);
        let Some(IndexValueMatch::Equal(values)) = value_match else { return Ok(None) };
        let (lookup, index) = match condition.property {
            "sling:resourceType" => (LookupIndex::ResourceType, "resource type"),
            "jcr:uuid" => (LookupIndex::Uuid, "identifier"),
            "jcr:primaryType" | "jcr:mixinTypes"
                if !values.iter().any(|value| *value.to_text() == *"rep:root") =>
            {
                (LookupIndex::Type, "node type")
            }
            _ => return Ok(None),
        };
        // These maps contain only texts.
        if values.iter().any(|value| Comparand::new(value).keys().len() > 1) {
            return Ok(None);
        }
        let texts: Vec<_> = values.iter().map(|value| value.to_text()).collect();
        self.lookup_candidate(lookup, index, &texts.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    }

    /// Returns the suffix to cut from an index's paths if the index contains all nodes of this selector with a
    /// property; otherwise `None`.
    fn index_path_suffix<'p>(&self, index: &PropertyIndex, property: &'p str) -> Option<&'p str> {
        let (parents, name) = property.rsplit_once('/').unwrap_or(("", property));
        if name != index.property()
            || parents.contains('*')
            || self.context.state.property_map(index).is_none()
        {
            return None;
        }
        if parents != index.property_parent() {
            // Entries of an index on the bare property lead to the nodes that have it, wherever they are.
            return index.indexes_all_nodes().then_some(parents);
        }
        let has_types = index.indexes_all_types()
            || self.accepted_types.as_ref().is_some_and(|types| {
                types.iter().all(|name| index.indexes_types(std::iter::once(&**name)))
            });
        (has_types && index.covers_all_below(self.path_restriction.containing_path())).then_some("")
    }

    fn property_candidate(
        &self,
        index: &PropertyIndex,
        condition: &IndexCondition<'_>,
    ) -> Result<Option<SourceCandidate>> {
        let Some(value_match) = condition.value_match_for(index.function()) else {
            return Ok(None);
        };
        let Some(suffix) = self.index_path_suffix(index, condition.property) else {
            return Ok(None);
        };
        let is_in_pattern = |value: &Value| index.indexes_value(&value.to_text());
        let has_values = match value_match {
            IndexValueMatch::Equal(values) => values.iter().all(is_in_pattern),
            _ => !index.has_value_pattern(),
        };
        if !has_values {
            return Ok(None);
        }
        let Some(map) = self.context.state.property_map(index) else { return Ok(None) };
        let is_merged = matches!(value_match, IndexValueMatch::Equal(_));
        let mut spans = IndexSpans {
            map_name: index.map_name().to_owned(),
            map,
            spans: value_match.key_spans(),
            is_merged,
            is_descending: false,
            has_multiple_entries: false,
            key_layout: IndexKeyLayout::Property,
            path_suffix: suffix.to_owned(),
        };
        if is_merged && suffix.is_empty() {
            spans.spans =
                spans.spans.iter().map(|span| self.path_restriction.narrow_span(span)).collect();
        }
        spans.has_multiple_entries = !is_merged && self.has_multi_value_entries(map)?;
        let has_several = spans.has_multiple_entries;
        let expression = index.function().apply_to_name(condition.property);
        let choice =
            self.index_candidate(spans, format!("property {} [{expression}]", index.name()))?;
        Ok(Some(choice)
            .filter(|choice| !has_several || choice.estimated_nodes <= MAX_GATHERED_PATHS))
    }

    /// Returns true if an index contains properties with several values.
    fn has_multi_value_entries(&self, map: IndexMap) -> Result<bool> {
        Ok(self.context.state.count_entries_in(map, &ValueKey::multi_value_span())? > 0)
    }

    /// Collects the nodes of a range in which some nodes have several values, so that each node occurs once.
    fn gather_paths(&self, choice: SourceCandidate) -> Result<SourceCandidate> {
        let paths = read_candidates(self.context, &choice.source, None)
            .map(|candidate| Ok(candidate?.path))
            .collect::<Result<Vec<_>>>()?;
        Ok(SourceCandidate { source: NodeSource::Nodes(sorted_unique_paths(paths)), ..choice })
    }

    /// Returns an index that yields nodes in the required order, if it is cheaper than sorting those of `choice`; true
    /// with it if nodes without a value must follow.
    fn ordered_candidate(
        &self,
        choice: &SourceCandidate,
    ) -> Result<Option<(SourceCandidate, bool)>> {
        let Some(QueryOrdering { operand, is_descending }) = self.requirements.orderings.first()
        else {
            return Ok(None);
        };
        let Some((name, reading)) = indexed_operand(operand) else { return Ok(None) };
        let conditions = self
            .constraints
            .iter()
            .map(IndexCondition::from_constraint)
            .collect::<Result<Vec<_>>>()?;
        let mut about = conditions.into_iter().flatten();
        let same = about.find(|candidate| {
            candidate.property == name && candidate.value_match_for(reading).is_some()
        });
        let same = same.as_ref().and_then(|condition| condition.value_match_for(reading));
        let lacks_empty = same.is_none();
        // Nodes without a value come first in ascending order, so only descending order can append them at the end.
        if lacks_empty && !is_descending {
            return Ok(None);
        }
        let indexes = self.context.state.property_indexes();
        for index in indexes.iter().filter(|index| index.function() == reading) {
            let Some(suffix) = self.index_path_suffix(index, name) else { continue };
            let Some(map) = self.context.state.property_map(index) else { continue };
            if index.has_value_pattern() || self.has_multi_value_entries(map)? {
                continue;
            }
            let spans = IndexSpans {
                map_name: index.map_name().to_owned(),
                map,
                spans: same
                    .map_or_else(|| vec![ValueKey::valued_span()], IndexValueMatch::key_spans),
                is_merged: false,
                is_descending: *is_descending,
                has_multiple_entries: false,
                key_layout: IndexKeyLayout::Property,
                path_suffix: suffix.to_owned(),
            };
            let expression = reading.apply_to_name(name);
            let mut ordered_choice = self.index_candidate(
                spans,
                format!("property {} [{expression}], in its order", index.name()),
            )?;
            // About as many entries pass the other constraints as the other source yields.
            let limit = self.requirements.limit.unwrap_or(u64::MAX).max(1);
            let share =
                ordered_choice.estimated_nodes.max(1).div_ceil(choice.estimated_nodes.max(1));
            let reads = ordered_choice.estimated_nodes.min(limit.saturating_mul(share));
            ordered_choice.cost = reads.saturating_mul(INDEX_LOOKUP_COST).saturating_add(1);
            if ordered_choice.cost < choice.cost {
                return Ok(Some((ordered_choice, lacks_empty)));
            }
        }
        Ok(None)
    }
}
