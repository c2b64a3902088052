//! The query engine: one for each served repository.
//!
//! In: a [`Snapshot`], which decides visibility, and a [`QueryRequest`]. Out: a [`QueryPage`] of rows with a cursor, or
//! a [`QueryExplanation`].
//!
//! Invariants
//! * A page continues exactly after the last row of the previous page, on any later state: a row that stays in the
//!   result at the same position occurs once.
//! * No query is stopped because of the number of nodes; limits apply to time and memory, and the error names the
//!   exceeded limit.
//!
//! Not here: HTTP, and authentication.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tympan_content::{Node, NodePath, Property, Snapshot, Value};

use crate::algebra::{ContentQuery, QueryColumn, QueryColumnContent, QueryConstraint};
use crate::cursor;
use crate::explanation::{QueryExplanation, QueryMeasurement, describe_plan};
use crate::full_text::{FullTextIndex, ReadableText, ReadableTextFn};
use crate::full_text_hit::{FullTextLag, full_text_lag};
use crate::node_source::{FacetCounts, QueryContext};
use crate::query_limits::QueryLimits;
use crate::query_plan::{MatchedRow, QueryPlan, plan_query};
use crate::row_filter::bound_value;
use crate::slow_statement::{
    NormalizedStatement, SlowStatement, SlowStatementLog, StatementTiming,
};
use crate::text_match::visit_texts;
use crate::{Error, Result};

/// Runs queries and records the slow ones.
pub struct QueryEngine {
    limits: QueryLimits,
    full_text: Arc<ArcSwapOption<Arc<dyn FullTextIndex>>>,
    slow_log: Arc<SlowStatementLog>,
}

/// A request for one page of a query's result.
#[derive(Debug, Clone)]
pub struct QueryRequest<'a> {
    /// The query.
    pub query: ContentQuery,
    /// The values of its variables.
    pub variables: BTreeMap<String, Value>,
    /// Maximum number of rows on the page; the query's own limit also applies.
    pub limit: Option<u64>,
    /// Number of rows to skip before the first one; the cost is that of reading them.
    pub offset: u64,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
    /// The origin of the query for the log of slow statements: a request path or a resource type.
    pub component: &'a str,
}

impl QueryRequest<'_> {
    /// Creates a request for the first page.
    #[must_use]
    pub fn new(query: ContentQuery) -> Self {
        let (limit, offset, cursor) = (None, 0, None);
        Self { query, variables: BTreeMap::new(), limit, offset, cursor, component: "" }
    }
}

/// A row of a result.
#[derive(Debug, Clone)]
pub struct QueryRow {
    /// The selectors, each with its node; `None` if an outer join found no match.
    pub nodes: Vec<(String, Option<Node>)>,
    /// The score of the text match; 1 without a full-text condition.
    pub score: f32,
    /// An excerpt of the text with the matching words marked.
    pub excerpt: Option<String>,
}

/// A page of a result.
#[derive(Debug, Clone, Default)]
pub struct QueryPage {
    /// The columns.
    pub columns: Vec<QueryColumn>,
    /// The rows.
    pub rows: Vec<QueryRow>,
    /// Completions or spelling corrections, if the query requests them.
    pub suggestions: Vec<String>,
    /// The cursor of the next page; `None` after the last page.
    pub cursor: Option<String>,
    /// For each requested property, its values with the number of rows that have them.
    pub facets: Vec<(String, Vec<(String, u64)>)>,
    /// The status of the full-text index for the page.
    pub full_text_status: FullTextIndexStatus,
}

/// The status of the full-text index for a page of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullTextIndexStatus {
    /// Not used: the query has no full-text condition, or there is no index.
    #[default]
    Unused,
    /// The index has the state of the snapshot.
    Current,
    /// The index has another state: once it is current, rows may have other scores, another order and other excerpts.
    Stale,
    /// The index is being built and has no state yet. Nodes are checked one by one, without features that only the
    /// index has: stems, words of files, completions and corrections.
    Building,
}

impl QueryRow {
    /// Returns the node of the first selector.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.nodes.first()?.1.as_ref()
    }

    /// Returns the value of a column in the row; `None` for `*`, which stands for all properties of [`QueryRow::node`].
    ///
    /// # Errors
    /// If the store fails.
    pub fn column_value(&self, column: &QueryColumn) -> Result<Option<Property>> {
        let node = self.nodes.iter().find(|(name, _)| *name == column.selector);
        let Some(node) = node.and_then(|(_, node)| node.as_ref()) else { return Ok(None) };
        Ok(match &column.content {
            QueryColumnContent::Property(name) if name == "jcr:path" => {
                Some(Property::Single(Value::Path(node.path().to_string())))
            }
            QueryColumnContent::Property(name) if name == "jcr:score" => {
                Some(Property::Single(Value::Double(f64::from(self.score))))
            }
            QueryColumnContent::Property(name) => {
                let (parents, name) = name.rsplit_once('/').unwrap_or(("", name));
                node.find_descendant(parents)?.and_then(|node| node.property(name))
            }
            QueryColumnContent::Excerpt(_) => self.excerpt.as_deref().map(Property::text),
            QueryColumnContent::All
            | QueryColumnContent::Facet(_)
            | QueryColumnContent::Suggest
            | QueryColumnContent::Spellcheck => None,
        })
    }
}

impl Default for QueryEngine {
    fn default() -> Self {
        Self::new(QueryLimits::default())
    }
}

impl QueryEngine {
    /// Creates an engine without a full-text index.
    #[must_use]
    pub fn new(limits: QueryLimits) -> Self {
        Self { limits, full_text: Arc::default(), slow_log: Arc::default() }
    }

    /// Returns an engine with other limits, for users with smaller resource quotas. It shares the full-text index and
    /// the list of slow statements.
    #[must_use]
    pub fn with_limits(&self, limits: QueryLimits) -> Self {
        Self {
            limits,
            full_text: Arc::clone(&self.full_text),
            slow_log: Arc::clone(&self.slow_log),
        }
    }

    /// Sets the full-text index.
    pub fn set_full_text_index(&self, index: Arc<dyn FullTextIndex>) {
        self.full_text.store(Some(Arc::new(index)));
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &QueryLimits {
        &self.limits
    }

    /// Returns the statements that were slow or that no index served, those with the longest total duration first.
    #[must_use]
    pub fn slow_statements(&self) -> Vec<SlowStatement> {
        self.slow_log.list()
    }

    /// Runs a query and returns a page of its rows.
    ///
    /// # Errors
    /// [`Error::Syntax`] for a variable without a value; [`Error::QueryRefused`], [`Error::QueryLimit`]; errors of the
    /// store.
    pub fn query_page(&self, snapshot: &Snapshot, request: &QueryRequest<'_>) -> Result<QueryPage> {
        let query = request.query.clone().bind(&request.variables)?;
        let full_text = self.full_text.load_full().and_then(|index| index.pinned_state());
        let snapshot = &snapshot.without_pending_edits();
        let context = self.create_context(snapshot, full_text.as_deref())?;
        let words_by = self.full_text_status(&context, &query)?;
        if let Some(words) = suggest_words(&context, &query)? {
            let columns = query_columns(&query);
            return Ok(QueryPage {
                columns,
                suggestions: words,
                full_text_status: words_by,
                ..QueryPage::default()
            });
        }
        let limit = min_option(request.limit, query.options.limit);
        let offset = request.offset.saturating_add(query.options.offset.unwrap_or(0));
        let statement = query.normalized();
        let position = request
            .cursor
            .as_deref()
            .map(|text| cursor::decode_cursor(text, &statement))
            .transpose()?;
        // After the first page the offset has been skipped, and a part of the query's own limit is used up.
        let (offset, limit) = match &position {
            Some((_, used)) => (
                0,
                min_option(request.limit, query.options.limit.map(|all| all.saturating_sub(*used))),
            ),
            None => (offset, limit),
        };
        let used = position.as_ref().map_or(0, |(_, used)| *used);
        let position = position.map(|(position, _)| position);
        let row_limit = limit.map(|limit| limit.saturating_add(offset).saturating_add(1));
        let plan = plan_query(&context, &query, row_limit, position.as_ref())?;
        let mut page = QueryPage {
            columns: query_columns(&query),
            full_text_status: words_by,
            ..QueryPage::default()
        };
        let mut last = None;
        let mut skip = offset;
        for row in plan.matched_rows(&context, position.as_ref()) {
            let row = row?;
            if skip > 0 {
                skip -= 1;
                continue;
            }
            if limit.is_some_and(|limit| page.rows.len() as u64 >= limit) {
                // There are more rows, unless the query's own limit is reached.
                let count = used + page.rows.len() as u64;
                let is_over = query.options.limit.is_some_and(|all| count >= all);
                let position = last.filter(|_| !is_over);
                page.cursor = position.map(|last| cursor::encode_cursor(&last, count, &statement));
                break;
            }
            last = Some(row.cursor_position(plan.is_sorted));
            page.rows.push(to_query_row(&query, row));
        }
        page.facets = count_facets(&context, &query)?;
        let statement = NormalizedStatement { text: &statement, component: request.component };
        self.record_slow_statement(&context, &statement, &plan, page.rows.len() as u64);
        Ok(page)
    }

    /// Explains the execution of a query and, if requested, runs it up to its limit and measures it.
    ///
    /// # Errors
    /// As [`QueryEngine::query_page`].
    pub fn explain(
        &self,
        snapshot: &Snapshot,
        request: &QueryRequest<'_>,
        is_run: bool,
    ) -> Result<QueryExplanation> {
        let query = request.query.clone().bind(&request.variables)?;
        let full_text = self.full_text.load_full().and_then(|index| index.pinned_state());
        let snapshot = &snapshot.without_pending_edits();
        let context = self.create_context(snapshot, full_text.as_deref())?;
        let limit = min_option(request.limit, query.options.limit);
        let row_limit = limit.map(|limit| limit.saturating_add(1));
        let plan = plan_query(&context, &query, row_limit, None)?;
        let mut explanation = describe_plan(&query, &plan);
        if is_run {
            let planned_in = context.elapsed();
            let limit =
                limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
            let mut rows = 0;
            let mut first = None;
            for row in plan.matched_rows(&context, None).take(limit) {
                row?;
                rows += 1;
                first.get_or_insert_with(|| context.elapsed());
            }
            explanation.measured = Some(QueryMeasurement {
                rows,
                rows_read: context.rows_read.get(),
                chunks_read: context.state.chunks_read(),
                planned: planned_in,
                first_row: first.unwrap_or_else(|| context.elapsed()),
                elapsed: context.elapsed(),
            });
        }
        Ok(explanation)
    }

    /// Counts rows, at most up to a bound.
    ///
    /// # Errors
    /// As [`QueryEngine::query_page`].
    pub fn count_rows(&self, snapshot: &Snapshot, query: &ContentQuery, bound: u64) -> Result<u64> {
        let full_text = self.full_text.load_full().and_then(|index| index.pinned_state());
        let snapshot = &snapshot.without_pending_edits();
        let context = self.create_context(snapshot, full_text.as_deref())?;
        let unordered = ContentQuery { orderings: Vec::new(), ..query.clone() };
        let plan = plan_query(&context, &unordered, Some(bound), None)?;
        let mut count = 0;
        for row in plan.matched_rows(&context, None) {
            row?;
            count += 1;
            if count >= bound {
                break;
            }
        }
        Ok(count)
    }

    /// Returns the status of the full-text index for a query.
    fn full_text_status(
        &self,
        context: &QueryContext<'_>,
        query: &ContentQuery,
    ) -> Result<FullTextIndexStatus> {
        if !query.is_full_text() || self.full_text.load().is_none() {
            return Ok(FullTextIndexStatus::Unused);
        }
        if context.full_text.is_none() {
            return Ok(FullTextIndexStatus::Building);
        }
        Ok(match full_text_lag(context)? {
            FullTextLag::Changed(changed) if changed.is_empty() => FullTextIndexStatus::Current,
            FullTextLag::Changed(_) | FullTextLag::TooFar => FullTextIndexStatus::Stale,
        })
    }

    fn create_context<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        full_text: Option<&'a dyn FullTextIndex>,
    ) -> Result<QueryContext<'a>> {
        Ok(QueryContext {
            snapshot,
            state: snapshot.state_reader()?,
            node_types: snapshot.node_types()?,
            full_text,
            full_text_lag: std::cell::OnceCell::new(),
            limits: &self.limits,
            start_time: (self.limits.clock)(),
            rows_read: Cell::new(0),
            facet_counts: RefCell::default(),
        })
    }

    /// Records a statement that was slow, or that no index served.
    fn record_slow_statement(
        &self,
        context: &QueryContext<'_>,
        statement: &NormalizedStatement<'_>,
        plan: &QueryPlan<'_>,
        rows: u64,
    ) {
        let elapsed = context.elapsed();
        let is_indexed = plan.is_indexed();
        if elapsed < self.limits.slow_threshold && is_indexed {
            return;
        }
        let plan = plan.index_names();
        let timing =
            StatementTiming { elapsed, row_count: rows, rows_read: context.rows_read.get() };
        let longest = self.slow_log.record_run(statement, &plan, is_indexed, &timing);
        if elapsed < self.limits.slow_threshold {
            return;
        }
        let NormalizedStatement { text: statement, component } = *statement;
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // The list is lost after a restart; the log contains each statement once.
        if longest < self.limits.slow_threshold {
            tracing::warn!(statement, plan, component, elapsed_ms, "slow query");
        } else {
            tracing::debug!(statement, elapsed_ms, "slow query");
        }
    }
}

fn min_option(left: Option<u64>, right: Option<u64>) -> Option<u64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (left, right) => left.or(right),
    }
}

fn query_columns(query: &ContentQuery) -> Vec<QueryColumn> {
    query.selects.first().map(|part| part.columns.clone()).unwrap_or_default()
}

fn to_query_row(query: &ContentQuery, row: MatchedRow) -> QueryRow {
    let part = query.selects.get(row.part_index);
    let names =
        part.into_iter().flat_map(|part| part.selectors().map(|selector| selector.name.clone()));
    QueryRow { nodes: names.zip(row.nodes).collect(), score: row.score, excerpt: row.excerpt }
}

/// Runs queries that return words instead of nodes; `None` for other queries.
fn suggest_words(context: &QueryContext<'_>, query: &ContentQuery) -> Result<Option<Vec<String>>> {
    /// Maximum number of words returned.
    const LIMIT: usize = 10;
    for constraint in query.selects.iter().filter_map(|part| part.constraint.as_ref()) {
        for conjunct in constraint.conjuncts() {
            let (text, is_suggestion) = match conjunct {
                QueryConstraint::Suggest { text, .. } => (text, true),
                QueryConstraint::Spellcheck { text, .. } => (text, false),
                _ => continue,
            };
            let text = bound_value(text)?.to_text();
            let Some(index) = context.full_text else { return Ok(Some(Vec::new())) };
            let reader = |document: &NodePath| readable_text(context, document);
            let reader = context.snapshot.is_restricted().then_some(&reader as ReadableTextFn<'_>);
            let words = if is_suggestion {
                index.suggest(&text, LIMIT, reader)
            } else {
                index.spellcheck(&text, LIMIT, reader)
            };
            return words.map(Some);
        }
    }
    Ok(None)
}

/// Returns the readable text of a document for the viewer, if the index has the document in the state of the snapshot.
fn readable_text(context: &QueryContext<'_>, document: &NodePath) -> Result<ReadableText> {
    let is_same = match full_text_lag(context)? {
        FullTextLag::Changed(changed) => changed.binary_search(document).is_err(),
        FullTextLag::TooFar => false,
    };
    let node = if is_same { context.snapshot.node(document)? } else { None };
    let Some(node) = node else { return Ok(ReadableText::Nothing) };
    if node.is_document_visible() {
        return Ok(ReadableText::Whole);
    }
    let mut texts = Vec::new();
    if let Some(body) = node.as_borrowed() {
        visit_texts(body, &mut |text| texts.push(text.to_owned()));
    }
    Ok(ReadableText::Partial(texts))
}

/// Counts the values of the requested properties that no index has counted.
fn count_facets(context: &QueryContext<'_>, query: &ContentQuery) -> Result<Vec<FacetCounts>> {
    let columns = query_columns(query);
    let facet_paths = columns.iter().filter_map(|column| match &column.content {
        QueryColumnContent::Facet(property) => Some(property.clone()),
        _ => None,
    });
    let facet_paths: Vec<String> = facet_paths.collect();
    let counted = context.facet_counts.borrow().clone();
    if facet_paths.is_empty() || !counted.is_empty() {
        return Ok(counted);
    }
    // A sorting plan holds the rows of one page, and temporarily some more.
    let whole = ContentQuery { orderings: Vec::new(), ..query.clone() };
    let plan = plan_query(context, &whole, None, None)?;
    let mut counts: Vec<HashMap<String, u64>> = vec![HashMap::new(); facet_paths.len()];
    for row in plan.matched_rows(context, None) {
        let row = row?;
        let Some(Some(node)) = row.nodes.first() else { continue };
        for (path, counts) in facet_paths.iter().zip(&mut counts) {
            let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
            let property = node.find_descendant(parents)?.and_then(|node| node.property(name));
            for value in property.iter().flat_map(|property| property.values()) {
                *counts.entry(value.to_text().into_owned()).or_default() += 1;
            }
            if counts.len() > context.limits.max_rows_in_memory {
                return Err(Error::QueryLimit {
                    limit: format!("`{path}` has too many values to count"),
                });
            }
        }
    }
    let sorted = |counts: HashMap<String, u64>| {
        let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
        counts.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        counts
    };
    Ok(facet_paths.into_iter().zip(counts.into_iter().map(sorted)).collect())
}

impl std::fmt::Debug for QueryEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueryEngine")
    }
}
