//! Execution of a query: the rows of its selections, joined, sorted and united.
//!
//! Invariants
//! * Without an order, or with one that an index provides, rows are read on demand.
//! * Rows are sorted with their path as the last key, so that their order is total and a page can resume after any row.

use tympan_content::{
    Error as ContentError, KeySpan, Node, NodePath, ValueKey, prefix_successor, split_entry,
};

use crate::access_plan::{AccessPlan, SelectorRequirements, plan_access};
use crate::algebra::{
    ContentQuery, JoinKind, QueryColumnContent, QueryConstraint, QueryJoin, QueryOperand,
    SelectStatement,
};
use crate::full_text_hit::DEFAULT_SCORE;
use crate::hash_join::{JoinPartners, JoinState};
use crate::join_constraint::{join_constraints, joined_property, outer_values};
use crate::node_scan::{matches_access_plan, scan_nodes};
use crate::node_source::{
    CandidateNode, NodeSource, NodeSourcePosition, QueryContext, read_candidates,
};
use crate::row_filter::{FilteredNode, RowExpression, RowFilter};
use crate::row_sort::{RowSortKey, check_memory, sort_rows};
use crate::{Error, Result};

/// A row found by a query.
#[derive(Debug, Clone)]
pub(crate) struct MatchedRow {
    /// One node for each selector; `None` where an outer join found no partner.
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) score: f32,
    pub(crate) excerpt: Option<String>,
    pub(crate) sort_keys: Vec<Option<Vec<u8>>>,
    pub(crate) position: RowPosition,
    /// The index of the row's part in a union.
    pub(crate) part_index: usize,
}

/// A position in the order of unsorted rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RowPosition {
    /// The position of a single selector.
    Single(NodeSourcePosition),
    /// The position of a join: the position before the current outer row, the current outer row, and its partners.
    Joined {
        previous_outer: Option<NodeSourcePosition>,
        outer_path: NodePath,
        inner_paths: Vec<Option<NodePath>>,
    },
}

/// The position at which a page ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CursorPosition {
    /// After a row of a part of the union, in the order of its source.
    Unsorted { part_index: usize, position: RowPosition },
    /// After a row in the order that the query specifies.
    Sorted { sort_keys: Vec<Option<Vec<u8>>>, paths: Vec<Option<NodePath>> },
}

pub(crate) type MatchedRowIterator<'a> = Box<dyn Iterator<Item = Result<MatchedRow>> + 'a>;

impl MatchedRow {
    pub(crate) fn paths(&self) -> Vec<Option<NodePath>> {
        self.nodes.iter().map(|node| node.as_ref().map(|node| node.path().clone())).collect()
    }

    pub(crate) fn cursor_position(&self, is_sorted: bool) -> CursorPosition {
        if is_sorted {
            return CursorPosition::Sorted {
                sort_keys: self.sort_keys.clone(),
                paths: self.paths(),
            };
        }
        CursorPosition::Unsorted { part_index: self.part_index, position: self.position.clone() }
    }
}

/// The plan of a selection.
pub(crate) struct SelectPlan<'q> {
    pub(crate) select: &'q SelectStatement,
    pub(crate) access_plan: AccessPlan,
    /// The conditions that are evaluated once all nodes of a row are known.
    residual_filter: Option<RowFilter>,
    orderings: Vec<(RowExpression, bool)>,
}

/// The plan of a query.
pub(crate) struct QueryPlan<'q> {
    pub(crate) query: &'q ContentQuery,
    pub(crate) parts: Vec<SelectPlan<'q>>,
    /// True if the query specifies an order for its rows.
    pub(crate) is_sorted: bool,
    /// The number of wanted rows, if known.
    limit: Option<u64>,
}

/// Plans a query that resumes at a position.
pub(crate) fn plan_query<'q>(
    context: &QueryContext<'_>,
    query: &'q ContentQuery,
    limit: Option<u64>,
    position: Option<&CursorPosition>,
) -> Result<QueryPlan<'q>> {
    let by_score = matches!(query.orderings.as_slice(), [one] if one.is_descending && matches!(one.operand, QueryOperand::Score(_)));
    let mut parts = Vec::new();
    let mut is_by_score = by_score && query.selects.len() == 1;
    for (number, select) in query.selects.iter().enumerate() {
        let mark = match position {
            Some(CursorPosition::Unsorted { part_index: part, position: mark })
                if *part == number =>
            {
                match mark {
                    RowPosition::Single(mark) => Some(mark),
                    RowPosition::Joined { previous_outer, .. } => previous_outer.as_ref(),
                }
            }
            _ => None,
        };
        let part = plan_select(context, query, select, limit, mark)?;
        is_by_score &= matches!(part.access_plan.source, NodeSource::FullText(_));
        parts.push(part);
    }
    // A page that another source sorted resumes in that order.
    is_by_score &= !matches!(position, Some(CursorPosition::Sorted { .. }));
    let is_sorted = !query.orderings.is_empty() && !is_by_score;
    Ok(QueryPlan { query, parts, is_sorted, limit })
}

fn plan_select<'q>(
    context: &QueryContext<'_>,
    query: &'q ContentQuery,
    select: &'q SelectStatement,
    limit: Option<u64>,
    mark: Option<&NodeSourcePosition>,
) -> Result<SelectPlan<'q>> {
    let names: Vec<&str> = select.selectors().map(|selector| &*selector.name).collect();
    let selector_index =
        |name: &str| names.iter().position(|selector_name| *selector_name == name).unwrap_or(0);
    let conjuncts: Vec<QueryConstraint> = select
        .constraint
        .iter()
        .flat_map(|constraint| constraint.conjuncts().into_iter().cloned())
        .collect();
    let (own, rest): (Vec<_>, Vec<_>) = conjuncts
        .iter()
        .cloned()
        .partition(|conjunct| is_about_selector(conjunct, &select.selector.name));
    let facets = select.columns.iter().filter_map(|column| match &column.content {
        QueryColumnContent::Facet(property) => Some(property.clone()),
        _ => None,
    });
    let is_single = select.joins.is_empty();
    let access = plan_access(
        context,
        &SelectorRequirements {
            selector: &select.selector.name,
            node_type: &select.selector.node_type,
            constraints: own,
            orderings: if is_single { &query.orderings } else { &[] },
            limit: limit.filter(|_| is_single),
            options: &query.options,
            wants_excerpt: select
                .columns
                .iter()
                .any(|column| matches!(column.content, QueryColumnContent::Excerpt(_))),
            facets: facets.collect(),
            position: mark,
        },
    )?;
    let all = |constraints: &[QueryConstraint]| {
        let filters =
            constraints.iter().map(|constraint| RowFilter::new(constraint, &selector_index));
        Ok::<_, Error>(RowFilter::And(filters.collect::<Result<_>>()?))
    };
    let orderings = query
        .orderings
        .iter()
        .map(|ordering| {
            (RowExpression::new(&ordering.operand, &selector_index), ordering.is_descending)
        })
        .collect();
    let residual = if rest.is_empty() { None } else { Some(all(&rest)?) };
    Ok(SelectPlan { select, access_plan: access, residual_filter: residual, orderings })
}

fn is_about_selector(constraint: &QueryConstraint, selector: &str) -> bool {
    let mut selectors = Vec::new();
    constraint.collect_selectors(&mut selectors);
    selectors.iter().all(|selector_name| *selector_name == selector)
}

impl QueryPlan<'_> {
    /// Runs the query from a position.
    pub(crate) fn matched_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        position: Option<&'a CursorPosition>,
    ) -> MatchedRowIterator<'a> {
        if self.is_sorted {
            return self.sorted_rows(context, position);
        }
        let (first, mark) = match position {
            Some(CursorPosition::Unsorted { part_index, position: mark }) => {
                (*part_index, Some(mark))
            }
            _ => (0, None),
        };
        let parts = self.parts.iter().enumerate().skip(first);
        Box::new(parts.flat_map(move |(number, part_index)| {
            let mark = mark.filter(|_| number == first);
            let rows = part_index.matched_rows(context, mark);
            self.without_duplicate_rows(context, number, rows)
        }))
    }

    /// Skips the rows that an earlier part of the union returns.
    fn without_duplicate_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        number: usize,
        rows: MatchedRowIterator<'a>,
    ) -> MatchedRowIterator<'a> {
        let rows = rows.map(move |row| row.map(|row| MatchedRow { part_index: number, ..row }));
        if self.query.union_all || number == 0 {
            return Box::new(rows);
        }
        Box::new(rows.filter_map(move |row| {
            let row = match row {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            for earlier in self.parts.iter().take(number) {
                match earlier.contains_row(context, &row) {
                    Ok(true) => return None,
                    Ok(false) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
            Some(Ok(row))
        }))
    }

    /// Merges the sorted rows of all parts.
    fn sorted_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        position: Option<&'a CursorPosition>,
    ) -> MatchedRowIterator<'a> {
        let mut parts = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let rows = part.sorted_rows(context, position, self.limit);
            parts.push(self.without_duplicate_rows(context, number, rows).peekable());
        }
        let descending: Vec<bool> =
            self.query.orderings.iter().map(|ordering| ordering.is_descending).collect();
        Box::new(std::iter::from_fn(move || {
            let mut least: Option<(usize, RowSortKey)> = None;
            for (at, part) in parts.iter_mut().enumerate() {
                match part.peek() {
                    Some(Err(_)) => return part.next(),
                    Some(Ok(row)) => {
                        let ranked = RowSortKey::new(row, &descending);
                        if least.as_ref().is_none_or(|(_, least)| ranked < *least) {
                            least = Some((at, ranked));
                        }
                    }
                    None => {}
                }
            }
            let (at, _) = least?;
            parts.get_mut(at)?.next()
        }))
    }
}

impl SelectPlan<'_> {
    /// Returns true if this part also returns a given row of another part.
    fn contains_row(&self, context: &QueryContext<'_>, row: &MatchedRow) -> Result<bool> {
        let Some(Some(node)) = row.nodes.first() else { return Ok(false) };
        let Some(subject) = filtered_node(node, row.score, context) else { return Ok(false) };
        if row.nodes.len() != self.select.joins.len() + 1
            || !matches_access_plan(&self.access_plan, subject)?
        {
            return Ok(false);
        }
        let text = match &self.access_plan.source {
            NodeSource::FullText(search) => Some(search),
            _ => self.access_plan.full_text_check.as_ref(),
        };
        if let Some(search) = text
            && search.look_up_node(context, node, subject)?.is_none()
        {
            return Ok(false);
        }
        if self.select.joins.is_empty() {
            return Ok(true);
        }
        let outer = MatchedRow { nodes: vec![Some(node.clone())], ..row.clone() };
        let rows = self.join_row(context, outer, &mut self.join_states())?;
        let mut rows = self.finish_rows(context, Box::new(rows.into_iter().map(Ok)));
        let paths = row.paths();
        rows.try_fold(false, |has, row| Ok(has || row?.paths() == paths))
    }

    /// Runs the part in the order of its source.
    fn matched_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        mark: Option<&'a RowPosition>,
    ) -> MatchedRowIterator<'a> {
        if self.select.joins.is_empty() {
            let mark = match mark {
                Some(RowPosition::Single(mark)) => Some(mark),
                _ => None,
            };
            return self.finish_rows(context, read_access_rows(context, &self.access_plan, mark));
        }
        let (previous_outer, skip) = match mark {
            Some(RowPosition::Joined { previous_outer, outer_path: outer, inner_paths }) => {
                (previous_outer.as_ref(), Some((outer, inner_paths)))
            }
            _ => (None, None),
        };
        let mut last = previous_outer.cloned();
        let mut states = self.join_states();
        let outer_rows = read_access_rows(context, &self.access_plan, previous_outer);
        let rows = outer_rows.flat_map(move |outer| -> MatchedRowIterator<'a> {
            let joined = |outer: MatchedRow| {
                let RowPosition::Single(mark) = outer.position.clone() else {
                    return Ok(Vec::new());
                };
                let rows = self.join_row(context, outer, &mut states)?;
                Ok(rows_after(rows, last.replace(mark).as_ref(), skip))
            };
            match outer.and_then(joined) {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        self.finish_rows(context, Box::new(rows))
    }

    fn join_states(&self) -> Vec<JoinState> {
        self.select.joins.iter().map(|_| JoinState::default()).collect()
    }

    /// Joins all selectors to one outer row. Partners are sorted by path.
    fn join_row(
        &self,
        context: &QueryContext<'_>,
        outer: MatchedRow,
        states: &mut [JoinState],
    ) -> Result<Vec<MatchedRow>> {
        let mut rows = vec![outer];
        for (join, state) in self.select.joins.iter().zip(states) {
            let mut next = Vec::new();
            for row in &rows {
                next.extend(self.join_partners(context, row, join, state)?);
                check_memory(context, next.len())?;
            }
            rows = next;
        }
        rows.sort_by_key(MatchedRow::paths);
        Ok(rows)
    }

    /// Returns the row combined with each partner that one join finds for it.
    fn join_partners(
        &self,
        context: &QueryContext<'_>,
        row: &MatchedRow,
        join: &QueryJoin,
        state: &mut JoinState,
    ) -> Result<Vec<MatchedRow>> {
        let names: Vec<&str> = self.select.selectors().map(|selector| &*selector.name).collect();
        let node = |name: &str| {
            let index = names.iter().position(|selector_name| *selector_name == name)?;
            row.nodes.get(index)?.as_ref()
        };
        let name = &*join.selector.name;
        let mut partners = Vec::new();
        if state.partners.is_none()
            && let Some(tied) = join_constraints(&join.condition, name, &node)?
        {
            let access = plan_access(context, &self.partner_requirements(join, tied))?;
            self.gather_partners(context, join, state, access.cost)?;
            if state.partners.is_none() {
                for partner in read_access_rows(context, &access, None) {
                    partners.extend(partner?.nodes.into_iter().flatten());
                }
            }
        }
        if let Some(gathered) = &state.partners {
            let values = outer_values(&join.condition, name, &node)?.unwrap_or_default();
            for partner in gathered.nodes_with_values(&values) {
                context.count_row()?;
                partners.push(partner.clone());
            }
        }
        let mut partners: Vec<Option<Node>> = partners.into_iter().map(Some).collect();
        if partners.is_empty() && join.kind == JoinKind::LeftOuter {
            partners.push(None);
        }
        let with = |partner: Option<Node>| {
            let nodes = row.nodes.iter().cloned().chain([partner]).collect();
            MatchedRow { nodes, ..row.clone() }
        };
        Ok(partners.into_iter().map(with).collect())
    }

    /// Describes the requirements of one join on its partners.
    fn partner_requirements<'w>(
        &self,
        join: &'w QueryJoin,
        mut constraints: Vec<QueryConstraint>,
    ) -> SelectorRequirements<'w> {
        // Outer joins are filtered when all partners are known.
        if join.kind == JoinKind::Inner {
            let own = self.select.constraint.iter().flat_map(QueryConstraint::conjuncts);
            constraints.extend(
                own.filter(|constraint| is_about_selector(constraint, &join.selector.name))
                    .cloned(),
            );
        }
        SelectorRequirements::all_matching(&join.selector, constraints)
    }

    /// Collects all partners of an equality join once looking them up row by row has cost as much, including the lookup
    /// for this row.
    fn gather_partners(
        &self,
        context: &QueryContext<'_>,
        join: &QueryJoin,
        state: &mut JoinState,
        cost: u64,
    ) -> Result<()> {
        state.lookup_cost = state.lookup_cost.saturating_add(cost);
        let name = &*join.selector.name;
        let (None, Some(property)) = (&state.partners, joined_property(&join.condition, name))
        else {
            return Ok(());
        };
        if state.full_access_plan.is_none() {
            let (selector, property) = (name.to_owned(), property.to_owned());
            let exists = QueryConstraint::Exists { selector, property };
            state.full_access_plan =
                Some(plan_access(context, &self.partner_requirements(join, vec![exists]))?);
        }
        let Some(all) = &state.full_access_plan else { return Ok(()) };
        // If all partners do not fit in memory, they are looked up as long as that reads fewer than all of them.
        let is_fit = all.estimated_nodes <= context.limits.max_rows_in_memory as u64;
        let is_helped = cost.saturating_mul(2) < all.cost;
        if state.lookup_cost >= all.cost && (is_fit || !is_helped) {
            let rows = read_access_rows(context, all, None);
            state.partners = Some(JoinPartners::gather_from_rows(context, rows, name, property)?);
        }
        Ok(())
    }

    /// Evaluates the remaining conditions, and computes the sort keys of the rows.
    fn finish_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        rows: MatchedRowIterator<'a>,
    ) -> MatchedRowIterator<'a> {
        if self.residual_filter.is_none() && self.orderings.is_empty() {
            return rows;
        }
        Box::new(rows.filter_map(move |row| {
            let finish = |mut row: MatchedRow| -> Result<Option<MatchedRow>> {
                let subjects: Vec<_> = row
                    .nodes
                    .iter()
                    .map(|node| {
                        node.as_ref().and_then(|node| filtered_node(node, row.score, context))
                    })
                    .collect();
                if let Some(residual) = &self.residual_filter
                    && !residual.matches(&subjects)?
                {
                    return Ok(None);
                }
                let keys = self.orderings.iter().map(|(operand, _)| operand.sort_key(&subjects));
                row.sort_keys = keys.collect::<Result<_>>()?;
                Ok(Some(row))
            };
            row.and_then(finish).transpose()
        }))
    }

    /// Runs the part in the wanted order.
    fn sorted_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        position: Option<&'a CursorPosition>,
        limit: Option<u64>,
    ) -> MatchedRowIterator<'a> {
        let descending: Vec<bool> =
            self.orderings.iter().map(|(_, descending)| *descending).collect();
        let behind = match position {
            Some(CursorPosition::Sorted { sort_keys, paths }) => Some(RowSortKey {
                sort_keys: sort_keys.clone(),
                descending: descending.clone(),
                paths: paths.clone(),
            }),
            _ => None,
        };
        if self.access_plan.is_ordered {
            return self.index_ordered_rows(context, behind, limit);
        }
        let sorted = || {
            sort_rows(
                context,
                self.matched_rows(context, None),
                behind.as_ref(),
                &descending,
                limit,
            )
        };
        match sorted() {
            Ok(rows) => Box::new(rows.into_iter().map(Ok)),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    /// Reads rows from an index that has them in order of the first key; rows with equal keys are sorted.
    fn index_ordered_rows<'a>(
        &'a self,
        context: &'a QueryContext<'a>,
        behind: Option<RowSortKey>,
        limit: Option<u64>,
    ) -> MatchedRowIterator<'a> {
        let descending: Vec<bool> =
            self.orderings.iter().map(|(_, descending)| *descending).collect();
        let is_in_empty =
            behind.as_ref().is_some_and(|behind| behind.sort_keys.first() == Some(&None));
        let empty_first = !descending.first().copied().unwrap_or(false);
        let access = narrow_access_plan(&self.access_plan, behind.as_ref());
        let mut rows =
            self.finish_rows(context, read_access_rows_owned(context, access)).peekable();
        let (order, limits) = (descending.clone(), behind.clone());
        let groups = std::iter::from_fn(move || {
            let first = match rows.next()? {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            let value = row_value_prefix(&first);
            let mut error = None;
            let group = std::iter::once(Ok(first)).chain(std::iter::from_fn(|| {
                let next = rows.next_if(|row| {
                    row.as_ref().map_or(true, |row| row_value_prefix(row) == value)
                })?;
                if let Err(failed) = next {
                    error = Some(failed);
                    return None;
                }
                Some(next)
            }));
            let sorted = sort_rows(context, Box::new(group), limits.as_ref(), &order, limit);
            Some(match error {
                Some(error) => Err(error),
                None => sorted,
            })
        });
        let groups = groups.flat_map(|group| -> MatchedRowIterator<'a> {
            match group {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        if !self.access_plan.omits_empty_values || empty_first {
            return Box::new(groups);
        }
        // In descending order, nodes without a value come last. They are read only when the others are used up.
        let empty = std::iter::once_with(move || {
            self.rows_without_key(context, behind.as_ref(), &descending, limit)
        });
        let empty = empty.flat_map(|rows| -> MatchedRowIterator<'a> {
            match rows {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        if is_in_empty { Box::new(empty) } else { Box::new(groups.chain(empty)) }
    }

    /// Finds the rows whose first key is empty.
    fn rows_without_key(
        &self,
        context: &QueryContext<'_>,
        behind: Option<&RowSortKey>,
        descending: &[bool],
        limit: Option<u64>,
    ) -> Result<Vec<MatchedRow>> {
        let own = self.select.constraint.iter().flat_map(QueryConstraint::conjuncts).cloned();
        let access = plan_access(
            context,
            &SelectorRequirements::all_matching(&self.select.selector, own.collect()),
        )?;
        let rows = self.finish_rows(context, read_access_rows_owned(context, access));
        let empty = rows
            .filter(|row| row.as_ref().map_or(true, |row| row.sort_keys.first() == Some(&None)));
        sort_rows(context, Box::new(empty), behind, descending, limit)
    }
}

/// Assigns positions to the joined rows of one outer row, and skips those up to the end of the previous page.
fn rows_after(
    mut rows: Vec<MatchedRow>,
    before: Option<&NodeSourcePosition>,
    skip: Option<(&NodePath, &Vec<Option<NodePath>>)>,
) -> Vec<MatchedRow> {
    for row in &mut rows {
        let mut paths = row.paths();
        let inner = paths.split_off(1);
        let outer = paths.pop().flatten().unwrap_or_else(NodePath::root);
        row.position = RowPosition::Joined {
            previous_outer: before.cloned(),
            outer_path: outer,
            inner_paths: inner,
        };
    }
    rows.retain(|row| match (&row.position, skip) {
        (
            RowPosition::Joined { outer_path: outer, inner_paths: inner, .. },
            Some((skipped, behind)),
        ) => outer != skipped || inner > behind,
        _ => true,
    });
    rows
}

/// Returns the value prefix of the index entry that led to a row.
fn row_value_prefix(row: &MatchedRow) -> Vec<u8> {
    match &row.position {
        RowPosition::Single(NodeSourcePosition::Key { key, .. }) => {
            split_entry(key).map(|(value, _)| value.to_vec()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Restricts an ordered index to start at the first key of the last row of the previous page.
fn narrow_access_plan(access: &AccessPlan, behind: Option<&RowSortKey>) -> AccessPlan {
    let mut access = access.clone();
    let (NodeSource::Spans(spans), Some(behind)) = (&mut access.source, behind) else {
        return access;
    };
    let entry = match behind.sort_keys.first() {
        Some(Some(key)) => {
            ValueKey::from_bytes(key).map(|key| key.entry_prefix()).unwrap_or_default()
        }
        _ => ValueKey::no_value_prefix(),
    };
    let is_backward = spans.is_descending;
    let cut = |(start, end): &KeySpan| -> Option<KeySpan> {
        let (start, end) = if is_backward {
            (start.clone(), end.clone().min(prefix_successor(&entry)))
        } else {
            (start.clone().max(entry.clone()), end.clone())
        };
        (start < end).then_some((start, end))
    };
    spans.spans = spans.spans.iter().filter_map(cut).collect();
    access
}

/// Prepares a node for filters.
fn filtered_node<'a>(
    node: &'a Node,
    score: f32,
    context: &'a QueryContext<'_>,
) -> Option<FilteredNode<'a>> {
    FilteredNode::from_node(node, score, context.snapshot)
}

/// Reads the nodes of one selector that meet its constraints.
fn read_access_rows<'a>(
    context: &'a QueryContext<'a>,
    access: &'a AccessPlan,
    mark: Option<&NodeSourcePosition>,
) -> MatchedRowIterator<'a> {
    let candidates = match &access.source {
        NodeSource::Scan { root_path, is_children_only } => {
            scan_nodes(context, access, root_path, *is_children_only, mark)
        }
        source => read_candidates(context, source, mark),
    };
    Box::new(candidates.filter_map(move |candidate| {
        candidate.and_then(|candidate| row_from_candidate(context, access, candidate)).transpose()
    }))
}

/// Like [`read_access_rows`], but takes ownership of the access plan.
fn read_access_rows_owned<'a>(
    context: &'a QueryContext<'a>,
    access: AccessPlan,
) -> MatchedRowIterator<'a> {
    if let NodeSource::Scan { .. } = &access.source {
        // A scan borrows its access plan, so its rows are collected first. The caller sorts them in any case.
        let rows: Vec<Result<MatchedRow>> = read_access_rows(context, &access, None).collect();
        return Box::new(rows.into_iter());
    }
    let candidates = read_candidates(context, &access.source, None);
    Box::new(candidates.filter_map(move |candidate| {
        candidate.and_then(|candidate| row_from_candidate(context, &access, candidate)).transpose()
    }))
}

/// Loads the node of a candidate, as far as the viewer may read it, and checks it.
fn row_from_candidate(
    context: &QueryContext<'_>,
    access: &AccessPlan,
    candidate: CandidateNode,
) -> Result<Option<MatchedRow>> {
    if !access.path_filter.matches_path(candidate.path.as_str()) {
        return Ok(None);
    }
    let (node, is_decided) = match candidate.node {
        // What a scan has admitted is valid for a viewer who sees everything.
        Some(node) => (Some(node).filter(Node::is_visible), !context.snapshot.has_viewer()),
        None => (context.snapshot.node(&candidate.path)?, false),
    };
    let Some(node) = node else { return Ok(None) };
    let Some(subject) = filtered_node(&node, candidate.score, context) else {
        let reason = "its body cannot be decoded";
        return Err(ContentError::Damaged { path: candidate.path, reason }.into());
    };
    if !is_decided && !matches_access_plan(access, subject)? {
        return Ok(None);
    }
    let CandidateNode { mut score, mut excerpt, position: mark, .. } = candidate;
    if let (NodeSource::FullText(search), NodeSourcePosition::Score { document, .. }) =
        (&access.source, &mark)
    {
        if !search.matches(&node, subject, document)? {
            return Ok(None);
        }
        // Score and excerpt may reveal parts of the document that the viewer does not see.
        if !node.is_document_visible() {
            (score, excerpt) = (DEFAULT_SCORE, None);
        }
    }
    if let Some(search) = &access.full_text_check {
        let Some(hit) = search.look_up_node(context, &node, subject)? else { return Ok(None) };
        (score, excerpt) = if node.is_document_visible() { hit } else { (DEFAULT_SCORE, None) };
    }
    let mark = RowPosition::Single(mark);
    Ok(Some(MatchedRow {
        nodes: vec![Some(node)],
        score,
        excerpt,
        sort_keys: Vec::new(),
        position: mark,
        part_index: 0,
    }))
}
