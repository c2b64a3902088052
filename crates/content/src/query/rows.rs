//! Running a query: rows of one selection, joined, sorted, united.
//!
//! Invariants
//! * Without an order, or with one that an index has, rows are read as they are asked for.
//! * Rows are sorted with their path as the last key, so that their order is total and a page can go on behind any row.

use super::access::{Candidate, Ground, Mark, Source, candidates};
use super::algebra::{ColumnContent, Constraint, Join, JoinKind, Operand, Query, Select};
use super::filter::{Expression, Filter, Subject};
use super::hash_join::{JoinState, Partners};
use super::hits::UNSCORED;
use super::join::{inner_property, outer_values, tie};
use super::plan::{Access, Wanted, plan};
use super::scan::{admits, scan};
use super::sort::{Ranked, check_memory, gather};
use crate::value_key::{Span, ValueKey, split_entry};
use crate::{Error, Node, NodePath, Result};

/// A row as it is found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// A node for each selector; none where an outer join found no partner.
    pub(crate) nodes: Vec<Option<Node>>,
    pub(crate) score: f32,
    pub(crate) excerpt: Option<String>,
    pub(crate) keys: Vec<Option<Vec<u8>>>,
    pub(crate) mark: RowMark,
    /// The place of its part in a union.
    pub(crate) part: usize,
}

/// A place in the order in which rows without an order are found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RowMark {
    /// Of one selector.
    One(Mark),
    /// Of a join: where the outer row before this one was, this outer row, and its partners.
    Joined { before: Option<Mark>, outer: NodePath, inner: Vec<Option<NodePath>> },
}

/// Where a page ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Position {
    /// Behind a row of a part of the union, in the order of its source.
    Found { part: usize, mark: RowMark },
    /// Behind a row in the order that the query asks for.
    Sorted { keys: Vec<Option<Vec<u8>>>, paths: Vec<Option<NodePath>> },
}

pub(crate) type FoundRows<'a> = Box<dyn Iterator<Item = Result<Found>> + 'a>;

impl Found {
    pub(crate) fn paths(&self) -> Vec<Option<NodePath>> {
        self.nodes.iter().map(|node| node.as_ref().map(|node| node.path().clone())).collect()
    }

    pub(crate) fn position(&self, is_sorted: bool) -> Position {
        if is_sorted {
            return Position::Sorted { keys: self.keys.clone(), paths: self.paths() };
        }
        Position::Found { part: self.part, mark: self.mark.clone() }
    }
}

/// A selection, planned.
pub(crate) struct Part<'q> {
    pub(crate) select: &'q Select,
    pub(crate) access: Access,
    /// What is decided once all nodes of a row are there.
    residual: Option<Filter>,
    orderings: Vec<(Expression, bool)>,
}

/// A query, planned.
pub(crate) struct Planned<'q> {
    pub(crate) query: &'q Query,
    pub(crate) parts: Vec<Part<'q>>,
    /// Whether rows come in an order that the query asks for.
    pub(crate) is_sorted: bool,
    /// How many rows are wanted, if that is known.
    limit: Option<u64>,
}

/// Plans a query that goes on at a position.
pub(crate) fn planned<'q>(
    ground: &Ground<'_>,
    query: &'q Query,
    limit: Option<u64>,
    position: Option<&Position>,
) -> Result<Planned<'q>> {
    let by_score = matches!(query.orderings.as_slice(), [one] if one.descending && matches!(one.operand, Operand::Score(_)));
    let mut parts = Vec::new();
    let mut is_by_score = by_score && query.parts.len() == 1;
    for (number, select) in query.parts.iter().enumerate() {
        let mark = match position {
            Some(Position::Found { part, mark }) if *part == number => match mark {
                RowMark::One(mark) => Some(mark),
                RowMark::Joined { before, .. } => before.as_ref(),
            },
            _ => None,
        };
        let part = plan_part(ground, query, select, limit, mark)?;
        is_by_score &= matches!(part.access.source, Source::FullText(_));
        parts.push(part);
    }
    // A page that another source sorted goes on in that way.
    is_by_score &= !matches!(position, Some(Position::Sorted { .. }));
    let is_sorted = !query.orderings.is_empty() && !is_by_score;
    Ok(Planned { query, parts, is_sorted, limit })
}

fn plan_part<'q>(
    ground: &Ground<'_>,
    query: &'q Query,
    select: &'q Select,
    limit: Option<u64>,
    mark: Option<&Mark>,
) -> Result<Part<'q>> {
    let names: Vec<&str> = select.selectors().map(|selector| &*selector.name).collect();
    let place = |name: &str| names.iter().position(|known| *known == name).unwrap_or(0);
    let conjuncts: Vec<Constraint> =
        select.constraint.iter().flat_map(|one| one.conjuncts().into_iter().cloned()).collect();
    let (own, rest): (Vec<_>, Vec<_>) =
        conjuncts.iter().cloned().partition(|one| is_about(one, &select.selector.name));
    let facets = select.columns.iter().filter_map(|column| match &column.content {
        ColumnContent::Facet(property) => Some(property.clone()),
        _ => None,
    });
    let is_single = select.joins.is_empty();
    let access = plan(
        ground,
        &Wanted {
            selector: &select.selector.name,
            node_type: &select.selector.node_type,
            constraints: own,
            orderings: if is_single { &query.orderings } else { &[] },
            limit: limit.filter(|_| is_single),
            options: &query.options,
            excerpt: select
                .columns
                .iter()
                .any(|column| matches!(column.content, ColumnContent::Excerpt(_))),
            facets: facets.collect(),
            mark,
        },
    )?;
    let all = |constraints: &[Constraint]| {
        let filters = constraints.iter().map(|one| Filter::new(one, &place));
        Ok::<_, Error>(Filter::And(filters.collect::<Result<_>>()?))
    };
    let orderings = query
        .orderings
        .iter()
        .map(|one| (Expression::new(&one.operand, &place), one.descending))
        .collect();
    let residual = if rest.is_empty() { None } else { Some(all(&rest)?) };
    Ok(Part { select, access, residual, orderings })
}

fn is_about(constraint: &Constraint, selector: &str) -> bool {
    let mut selectors = Vec::new();
    constraint.selectors(&mut selectors);
    selectors.iter().all(|one| *one == selector)
}

impl Planned<'_> {
    /// Runs the query from a position on.
    pub(crate) fn rows<'a>(
        &'a self,
        ground: &'a Ground<'a>,
        position: Option<&'a Position>,
    ) -> FoundRows<'a> {
        if self.is_sorted {
            return self.sorted_rows(ground, position);
        }
        let (first, mark) = match position {
            Some(Position::Found { part, mark }) => (*part, Some(mark)),
            _ => (0, None),
        };
        let parts = self.parts.iter().enumerate().skip(first);
        Box::new(parts.flat_map(move |(number, part)| {
            let mark = mark.filter(|_| number == first);
            let rows = part.rows(ground, mark);
            self.without_earlier(ground, number, rows)
        }))
    }

    /// Leaves out the rows that an earlier part of the union has.
    fn without_earlier<'a>(
        &'a self,
        ground: &'a Ground<'a>,
        number: usize,
        rows: FoundRows<'a>,
    ) -> FoundRows<'a> {
        let rows = rows.map(move |row| row.map(|row| Found { part: number, ..row }));
        if self.query.union_all || number == 0 {
            return Box::new(rows);
        }
        Box::new(rows.filter_map(move |row| {
            let row = match row {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            for earlier in self.parts.iter().take(number) {
                match earlier.has(ground, &row) {
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
        ground: &'a Ground<'a>,
        position: Option<&'a Position>,
    ) -> FoundRows<'a> {
        let mut parts = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let rows = part.sorted_rows(ground, position, self.limit);
            parts.push(self.without_earlier(ground, number, rows).peekable());
        }
        let descending: Vec<bool> = self.query.orderings.iter().map(|one| one.descending).collect();
        Box::new(std::iter::from_fn(move || {
            let mut least: Option<(usize, Ranked)> = None;
            for (at, part) in parts.iter_mut().enumerate() {
                match part.peek() {
                    Some(Err(_)) => return part.next(),
                    Some(Ok(row)) => {
                        let ranked = Ranked::new(row, &descending);
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

impl Part<'_> {
    /// Tells whether this part gives a row of another part, too.
    fn has(&self, ground: &Ground<'_>, row: &Found) -> Result<bool> {
        let Some(Some(node)) = row.nodes.first() else { return Ok(false) };
        let Some(subject) = subject(node, row.score, ground) else { return Ok(false) };
        if row.nodes.len() != self.select.joins.len() + 1 || !admits(&self.access, subject)? {
            return Ok(false);
        }
        let text = match &self.access.source {
            Source::FullText(search) => Some(search),
            _ => self.access.text.as_ref(),
        };
        if let Some(search) = text
            && search.look_up(ground, node, subject)?.is_none()
        {
            return Ok(false);
        }
        if self.select.joins.is_empty() {
            return Ok(true);
        }
        let outer = Found { nodes: vec![Some(node.clone())], ..row.clone() };
        let rows = self.joined(ground, outer, &mut self.join_states())?;
        let mut rows = self.finished(ground, Box::new(rows.into_iter().map(Ok)));
        let paths = row.paths();
        rows.try_fold(false, |has, row| Ok(has || row?.paths() == paths))
    }

    /// Runs the part in the order of its source.
    fn rows<'a>(&'a self, ground: &'a Ground<'a>, mark: Option<&'a RowMark>) -> FoundRows<'a> {
        if self.select.joins.is_empty() {
            let mark = match mark {
                Some(RowMark::One(mark)) => Some(mark),
                _ => None,
            };
            return self.finished(ground, access_rows(ground, &self.access, mark));
        }
        let (before, skip) = match mark {
            Some(RowMark::Joined { before, outer, inner }) => {
                (before.as_ref(), Some((outer, inner)))
            }
            _ => (None, None),
        };
        let mut last = before.cloned();
        let mut states = self.join_states();
        let outer_rows = access_rows(ground, &self.access, before);
        let rows = outer_rows.flat_map(move |outer| -> FoundRows<'a> {
            let joined = |outer: Found| {
                let RowMark::One(mark) = outer.mark.clone() else { return Ok(Vec::new()) };
                let rows = self.joined(ground, outer, &mut states)?;
                Ok(behind(rows, last.replace(mark).as_ref(), skip))
            };
            match outer.and_then(joined) {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        self.finished(ground, Box::new(rows))
    }

    fn join_states(&self) -> Vec<JoinState> {
        self.select.joins.iter().map(|_| JoinState::default()).collect()
    }

    /// Joins all selectors to one outer row. Partners are sorted by path.
    fn joined(
        &self,
        ground: &Ground<'_>,
        outer: Found,
        states: &mut [JoinState],
    ) -> Result<Vec<Found>> {
        let mut rows = vec![outer];
        for (join, state) in self.select.joins.iter().zip(states) {
            let mut next = Vec::new();
            for row in &rows {
                next.extend(self.partners(ground, row, join, state)?);
                check_memory(ground, next.len())?;
            }
            rows = next;
        }
        rows.sort_by_key(Found::paths);
        Ok(rows)
    }

    /// Returns a row with each partner that one join finds for it.
    fn partners(
        &self,
        ground: &Ground<'_>,
        row: &Found,
        join: &Join,
        state: &mut JoinState,
    ) -> Result<Vec<Found>> {
        let names: Vec<&str> = self.select.selectors().map(|selector| &*selector.name).collect();
        let node = |name: &str| {
            let place = names.iter().position(|known| *known == name)?;
            row.nodes.get(place)?.as_ref()
        };
        let name = &*join.selector.name;
        let mut found = Vec::new();
        if state.gathered.is_none()
            && let Some(tied) = tie(&join.on, name, &node)?
        {
            let access = plan(ground, &self.inner(join, tied))?;
            self.gather_partners(ground, join, state, access.cost)?;
            if state.gathered.is_none() {
                for partner in access_rows(ground, &access, None) {
                    found.extend(partner?.nodes.into_iter().flatten());
                }
            }
        }
        if let Some(gathered) = &state.gathered {
            let values = outer_values(&join.on, name, &node)?.unwrap_or_default();
            for partner in gathered.of(&values) {
                ground.count_row()?;
                found.push(partner.clone());
            }
        }
        let mut found: Vec<Option<Node>> = found.into_iter().map(Some).collect();
        if found.is_empty() && join.kind == JoinKind::LeftOuter {
            found.push(None);
        }
        let with = |partner: Option<Node>| {
            let nodes = row.nodes.iter().cloned().chain([partner]).collect();
            Found { nodes, ..row.clone() }
        };
        Ok(found.into_iter().map(with).collect())
    }

    /// Describes the partners that one join wants.
    fn inner<'w>(&self, join: &'w Join, mut constraints: Vec<Constraint>) -> Wanted<'w> {
        // Outer joins are filtered when all partners are there.
        if join.kind == JoinKind::Inner {
            let own = self.select.constraint.iter().flat_map(Constraint::conjuncts);
            constraints.extend(own.filter(|one| is_about(one, &join.selector.name)).cloned());
        }
        Wanted::all(&join.selector, constraints)
    }

    /// Gathers all partners of an equality once looking them up row by row has cost as much, this row's look-up
    /// included.
    fn gather_partners(
        &self,
        ground: &Ground<'_>,
        join: &Join,
        state: &mut JoinState,
        cost: u64,
    ) -> Result<()> {
        state.spent = state.spent.saturating_add(cost);
        let name = &*join.selector.name;
        let (None, Some(property)) = (&state.gathered, inner_property(&join.on, name)) else {
            return Ok(());
        };
        if state.all.is_none() {
            let (selector, property) = (name.to_owned(), property.to_owned());
            let exists = Constraint::Exists { selector, property };
            state.all = Some(plan(ground, &self.inner(join, vec![exists]))?);
        }
        let Some(all) = &state.all else { return Ok(()) };
        // So many that they do not fit are looked up for as long as that reads less than all of them.
        let is_fit = all.estimate <= ground.limits.max_rows_in_memory as u64;
        let is_helped = cost.saturating_mul(2) < all.cost;
        if state.spent >= all.cost && (is_fit || !is_helped) {
            let rows = access_rows(ground, all, None);
            state.gathered = Some(Partners::gather(ground, rows, (name, property))?);
        }
        Ok(())
    }

    /// Decides what is left to decide, and finds what rows are sorted by.
    fn finished<'a>(&'a self, ground: &'a Ground<'a>, rows: FoundRows<'a>) -> FoundRows<'a> {
        if self.residual.is_none() && self.orderings.is_empty() {
            return rows;
        }
        Box::new(rows.filter_map(move |row| {
            let finish = |mut row: Found| -> Result<Option<Found>> {
                let subjects: Vec<_> = row
                    .nodes
                    .iter()
                    .map(|node| node.as_ref().and_then(|node| subject(node, row.score, ground)))
                    .collect();
                if let Some(residual) = &self.residual
                    && !residual.holds(&subjects)?
                {
                    return Ok(None);
                }
                let keys = self.orderings.iter().map(|(operand, _)| operand.sort_key(&subjects));
                row.keys = keys.collect::<Result<_>>()?;
                Ok(Some(row))
            };
            row.and_then(finish).transpose()
        }))
    }

    /// Runs the part in the wanted order.
    fn sorted_rows<'a>(
        &'a self,
        ground: &'a Ground<'a>,
        position: Option<&'a Position>,
        limit: Option<u64>,
    ) -> FoundRows<'a> {
        let descending: Vec<bool> =
            self.orderings.iter().map(|(_, descending)| *descending).collect();
        let behind = match position {
            Some(Position::Sorted { keys, paths }) => Some(Ranked {
                keys: keys.clone(),
                descending: descending.clone(),
                paths: paths.clone(),
            }),
            _ => None,
        };
        if self.access.is_ordered {
            return self.rows_of_index(ground, behind, limit);
        }
        let sorted =
            || gather(ground, self.rows(ground, None), behind.as_ref(), &descending, limit);
        match sorted() {
            Ok(rows) => Box::new(rows.into_iter().map(Ok)),
            Err(error) => Box::new(std::iter::once(Err(error))),
        }
    }

    /// Reads rows from an index that has them in order of the first key; those with equal keys are sorted.
    fn rows_of_index<'a>(
        &'a self,
        ground: &'a Ground<'a>,
        behind: Option<Ranked>,
        limit: Option<u64>,
    ) -> FoundRows<'a> {
        let descending: Vec<bool> =
            self.orderings.iter().map(|(_, descending)| *descending).collect();
        let is_in_empty = behind.as_ref().is_some_and(|behind| behind.keys.first() == Some(&None));
        let empty_first = !descending.first().copied().unwrap_or(false);
        let access = narrowed(&self.access, behind.as_ref());
        let mut rows = self.finished(ground, access_rows_owned(ground, access)).peekable();
        let (order, limits) = (descending.clone(), behind.clone());
        let groups = std::iter::from_fn(move || {
            let first = match rows.next()? {
                Ok(row) => row,
                Err(error) => return Some(Err(error)),
            };
            let value = value_of(&first);
            let mut error = None;
            let group = std::iter::once(Ok(first)).chain(std::iter::from_fn(|| {
                let next =
                    rows.next_if(|row| row.as_ref().map_or(true, |row| value_of(row) == value))?;
                if let Err(failed) = next {
                    error = Some(failed);
                    return None;
                }
                Some(next)
            }));
            let sorted = gather(ground, Box::new(group), limits.as_ref(), &order, limit);
            Some(match error {
                Some(error) => Err(error),
                None => sorted,
            })
        });
        let groups = groups.flat_map(|group| -> FoundRows<'a> {
            match group {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        if !self.access.lacks_empty || empty_first {
            return Box::new(groups);
        }
        // Falling order: nodes without a value come last. They are looked for only when the others are used up.
        let empty = std::iter::once_with(move || {
            self.empty_rows(ground, behind.as_ref(), &descending, limit)
        });
        let empty = empty.flat_map(|rows| -> FoundRows<'a> {
            match rows {
                Ok(rows) => Box::new(rows.into_iter().map(Ok)),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        });
        if is_in_empty { Box::new(empty) } else { Box::new(groups.chain(empty)) }
    }

    /// Finds the rows whose first key is empty.
    fn empty_rows(
        &self,
        ground: &Ground<'_>,
        behind: Option<&Ranked>,
        descending: &[bool],
        limit: Option<u64>,
    ) -> Result<Vec<Found>> {
        let own = self.select.constraint.iter().flat_map(Constraint::conjuncts).cloned();
        let access = plan(ground, &Wanted::all(&self.select.selector, own.collect()))?;
        let rows = self.finished(ground, access_rows_owned(ground, access));
        let empty =
            rows.filter(|row| row.as_ref().map_or(true, |row| row.keys.first() == Some(&None)));
        gather(ground, Box::new(empty), behind, descending, limit)
    }
}

/// Marks the joined rows of one outer row, and leaves out those up to where a page ended.
fn behind(
    mut rows: Vec<Found>,
    before: Option<&Mark>,
    skip: Option<(&NodePath, &Vec<Option<NodePath>>)>,
) -> Vec<Found> {
    for row in &mut rows {
        let mut paths = row.paths();
        let inner = paths.split_off(1);
        let outer = paths.pop().flatten().unwrap_or_else(NodePath::root);
        row.mark = RowMark::Joined { before: before.cloned(), outer, inner };
    }
    rows.retain(|row| match (&row.mark, skip) {
        (RowMark::Joined { outer, inner, .. }, Some((skipped, behind))) => {
            outer != skipped || inner > behind
        }
        _ => true,
    });
    rows
}

/// Returns the value's part of the index entry that led to a row.
fn value_of(row: &Found) -> Vec<u8> {
    match &row.mark {
        RowMark::One(Mark::Key { key, .. }) => {
            split_entry(key).map(|(value, _)| value.to_vec()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Begins an ordered index at the first key of the row that a page ended with.
fn narrowed(access: &Access, behind: Option<&Ranked>) -> Access {
    let mut access = access.clone();
    let (Source::Spans(spans), Some(behind)) = (&mut access.source, behind) else { return access };
    let entry = match behind.keys.first() {
        Some(Some(key)) => ValueKey::from_bytes(key).map(|key| key.entry()).unwrap_or_default(),
        _ => vec![crate::value_key::NONE],
    };
    let is_backward = spans.is_backward;
    let cut = |(start, end): &Span| -> Option<Span> {
        let (start, end) = if is_backward {
            (start.clone(), end.clone().min(crate::value_key::successor(&entry)))
        } else {
            (start.clone().max(entry.clone()), end.clone())
        };
        (start < end).then_some((start, end))
    };
    spans.spans = spans.spans.iter().filter_map(cut).collect();
    access
}

/// Makes a node ready for filters.
pub(crate) fn subject<'a>(
    node: &'a Node,
    score: f32,
    ground: &'a Ground<'_>,
) -> Option<Subject<'a>> {
    Subject::of(node, score, ground.snapshot)
}

/// Reads the nodes of one selector that meet its constraints.
fn access_rows<'a>(
    ground: &'a Ground<'a>,
    access: &'a Access,
    mark: Option<&Mark>,
) -> FoundRows<'a> {
    let found = match &access.source {
        Source::Scan { above, is_flat } => scan(ground, access, above, *is_flat, mark),
        source => candidates(ground, source, mark),
    };
    Box::new(found.filter_map(move |candidate| {
        candidate.and_then(|candidate| row_of(ground, access, candidate)).transpose()
    }))
}

/// As [`access_rows`], of an access that is not kept elsewhere.
fn access_rows_owned<'a>(ground: &'a Ground<'a>, access: Access) -> FoundRows<'a> {
    if let Source::Scan { .. } = &access.source {
        // A scan reads through its access; such a one is gathered, as whoever asks sorts it anyway.
        let rows: Vec<Result<Found>> = access_rows(ground, &access, None).collect();
        return Box::new(rows.into_iter());
    }
    let found = candidates(ground, &access.source, None);
    Box::new(found.filter_map(move |candidate| {
        candidate.and_then(|candidate| row_of(ground, &access, candidate)).transpose()
    }))
}

/// Finds the node of a candidate, as far as the viewer may read it, and checks it.
fn row_of(ground: &Ground<'_>, access: &Access, candidate: Candidate) -> Result<Option<Found>> {
    if !access.path_filter.admits_path(candidate.path.as_str()) {
        return Ok(None);
    }
    let (node, is_decided) = match candidate.node {
        // What a scan has admitted holds for whoever sees all that is there.
        Some(node) => (Some(node).filter(Node::is_seen), ground.snapshot.1.is_none()),
        None => (ground.snapshot.node(&candidate.path)?, false),
    };
    let Some(node) = node else { return Ok(None) };
    let Some(subject) = subject(&node, candidate.score, ground) else {
        return Err(Error::Damaged { path: candidate.path, reason: "its body cannot be read" });
    };
    if !is_decided && !admits(access, subject)? {
        return Ok(None);
    }
    let Candidate { mut score, mut excerpt, mark, .. } = candidate;
    if let (Source::FullText(search), Mark::Score { document, .. }) = (&access.source, &mark) {
        if !search.holds(&node, subject, document)? {
            return Ok(None);
        }
        // Score and excerpt may tell of what the viewer does not see of the document.
        if !node.is_whole() {
            (score, excerpt) = (UNSCORED, None);
        }
    }
    if let Some(search) = &access.text {
        let Some(hit) = search.look_up(ground, &node, subject)? else { return Ok(None) };
        (score, excerpt) = if node.is_whole() { hit } else { (UNSCORED, None) };
    }
    let mark = RowMark::One(mark);
    Ok(Some(Found { nodes: vec![Some(node)], score, excerpt, keys: Vec::new(), mark, part: 0 }))
}
