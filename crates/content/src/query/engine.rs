//! The query engine: one for each repository that is served.
//!
//! In: a [`Snapshot`], which decides what may be seen, and a [`Request`]. Out: a [`Page`] of rows with a cursor, or an
//! [`Explanation`].
//!
//! Invariants
//! * A page goes on exactly behind the row that the page before it ended with, on any later state: a row that stays in
//!   the result and keeps its place comes once.
//! * No query is stopped because of how many nodes there are; limits are for time and memory, and say what was exceeded.
//!
//! Not here: HTTP, and who asks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tympan_store::Root;

use super::access::{Counted, Facet, Ground};
use super::algebra::{Column, ColumnContent, Constraint, Query};
use super::cursor;
use super::explain::{Explanation, explain};
use super::filter::bound;
use super::full_text::{FullText, Readable, Reader};
use super::hits::{Lag, lag};
use super::rows::{Found, Planned, planned};
use super::slow::{SlowLog, SlowStatement, Statement, Timing};
use super::text_match::each_text;
use crate::property_index::Definitions;
use crate::{Error, Node, NodePath, Property, Result, Snapshot, Value};

/// What a query may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Rows that are held to be sorted.
    pub max_rows_in_memory: usize,
    /// Nodes and index entries that are looked at.
    pub max_rows_read: u64,
    /// Time.
    pub max_time: Duration,
    /// What a statement has to take to be listed as slow.
    pub slow: Duration,
    /// Tells the time, as a query measures what it takes.
    pub clock: fn() -> Instant,
}

impl Limits {
    /// Returns the smaller of these limits and of others, each for itself. What is listed as slow stays as it is here.
    #[must_use]
    pub fn at_most(&self, other: &Self) -> Self {
        Self {
            max_rows_in_memory: self.max_rows_in_memory.min(other.max_rows_in_memory),
            max_rows_read: self.max_rows_read.min(other.max_rows_read),
            max_time: self.max_time.min(other.max_time),
            slow: self.slow,
            clock: self.clock,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_rows_in_memory: 500_000,
            max_rows_read: u64::MAX,
            max_time: Duration::from_secs(60),
            slow: Duration::from_millis(100),
            clock: Instant::now,
        }
    }
}

/// Runs queries and remembers the slow ones.
pub struct QueryEngine {
    limits: Limits,
    full_text: Arc<ArcSwapOption<Arc<dyn FullText>>>,
    slow: Arc<SlowLog>,
}

/// A page of a query's result, as it is asked for.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The query.
    pub query: Query,
    /// Values of its variables.
    pub variables: BTreeMap<String, Value>,
    /// The most rows of the page; the query's own limit holds beside it.
    pub limit: Option<u64>,
    /// Rows to skip before the first one; it costs what reading them costs.
    pub offset: u64,
    /// Where to go on, from the page before.
    pub cursor: Option<String>,
    /// Who asks, for the log of slow statements: a request path or a resource type.
    pub component: &'a str,
}

impl Request<'_> {
    /// Asks for the first page.
    #[must_use]
    pub fn new(query: Query) -> Self {
        let (limit, offset, cursor) = (None, 0, None);
        Self { query, variables: BTreeMap::new(), limit, offset, cursor, component: "" }
    }
}

/// A row of a result.
#[derive(Debug, Clone)]
pub struct Row {
    /// The selectors, each with its node; none where an outer join found no partner.
    pub nodes: Vec<(String, Option<Node>)>,
    /// How well the text matches; 1 where there is no condition on it.
    pub score: f32,
    /// A part of the text with the words marked.
    pub excerpt: Option<String>,
}

/// A page of a result.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Completions or nearby words, where the query asked for these.
    pub words: Vec<String>,
    /// Where the next page begins; none behind the last one.
    pub cursor: Option<String>,
    /// For each property asked for, its values with the number of rows that have them.
    pub facets: Vec<(String, Vec<(String, u64)>)>,
    /// What the full-text index had to do with the page.
    pub words_by: WordsBy,
}

/// What the full-text index had to do with a page of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WordsBy {
    /// Nothing: no words decide, or there is no index.
    #[default]
    Nobody,
    /// It has the state that was asked.
    Index,
    /// It has another state: when it has come up, rows may have other scores, another order and excerpts.
    LateIndex,
    /// It is being built and has no state yet. Nodes are looked at one by one, so that what only the index knows is missing:
    /// stems, words of files, completions and corrections.
    NoIndexYet,
}

impl Row {
    /// Returns the node of the only selector, or of the first.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.nodes.first()?.1.as_ref()
    }

    /// Returns what a column shows of the row; nothing for `*`, which is all properties of [`Row::node`].
    ///
    /// # Errors
    /// If the store fails.
    pub fn value(&self, column: &Column) -> Result<Option<Property>> {
        let node = self.nodes.iter().find(|(name, _)| *name == column.selector);
        let Some(node) = node.and_then(|(_, node)| node.as_ref()) else { return Ok(None) };
        Ok(match &column.content {
            ColumnContent::Property(name) if name == "jcr:path" => {
                Some(Property::Single(Value::Path(node.path().to_string())))
            }
            ColumnContent::Property(name) if name == "jcr:score" => {
                Some(Property::Single(Value::Double(f64::from(self.score))))
            }
            ColumnContent::Property(name) => {
                let (parents, name) = name.rsplit_once('/').unwrap_or(("", name));
                node.find(parents)?.and_then(|node| node.property(name))
            }
            ColumnContent::Excerpt(_) => self.excerpt.as_deref().map(Property::text),
            ColumnContent::All
            | ColumnContent::Facet(_)
            | ColumnContent::Suggest
            | ColumnContent::Spellcheck => None,
        })
    }
}

impl Default for QueryEngine {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl QueryEngine {
    /// Makes an engine without a full-text index.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, full_text: Arc::default(), slow: Arc::default() }
    }

    /// Returns an engine with other limits, for people who may cost less. It uses the same full-text index and lists slow
    /// statements in the same place.
    #[must_use]
    pub fn with_limits(&self, limits: Limits) -> Self {
        Self { limits, full_text: Arc::clone(&self.full_text), slow: Arc::clone(&self.slow) }
    }

    /// Uses a full-text index from now on.
    pub fn use_full_text(&self, index: Arc<dyn FullText>) {
        self.full_text.store(Some(Arc::new(index)));
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the statements that were slow or that no index served, those that took longest in all first.
    #[must_use]
    pub fn slow(&self) -> Vec<SlowStatement> {
        self.slow.list()
    }

    /// Runs a query and returns a page of its rows.
    ///
    /// # Errors
    /// [`Error::Query`] for a variable without a value; [`Error::QueryRefused`], [`Error::QueryLimit`]; errors of the
    /// store.
    pub fn page(&self, snapshot: &Snapshot, request: &Request<'_>) -> Result<Page> {
        let query = request.query.clone().bind(&request.variables)?;
        let full_text = self.full_text.load_full().and_then(|index| index.state());
        let snapshot = &committed(snapshot);
        let ground = self.ground(snapshot, full_text.as_deref())?;
        let words_by = self.words_by(&ground, &query)?;
        if let Some(words) = words(&ground, &query)? {
            let columns = columns_of(&query);
            return Ok(Page { columns, words, words_by, ..Page::default() });
        }
        let limit = smaller(request.limit, query.options.limit);
        let offset = request.offset.saturating_add(query.options.offset.unwrap_or(0));
        let statement = query.normalized();
        let position =
            request.cursor.as_deref().map(|text| cursor::read(text, &statement)).transpose()?;
        // Behind the first page, the offset has been skipped; and of the query's own limit a part is used up.
        let (offset, limit) = match &position {
            Some((_, used)) => (
                0,
                smaller(request.limit, query.options.limit.map(|all| all.saturating_sub(*used))),
            ),
            None => (offset, limit),
        };
        let used = position.as_ref().map_or(0, |(_, used)| *used);
        let position = position.map(|(position, _)| position);
        let wanted = limit.map(|limit| limit.saturating_add(offset).saturating_add(1));
        let plan = planned(&ground, &query, wanted, position.as_ref())?;
        let mut page = Page { columns: columns_of(&query), words_by, ..Page::default() };
        let mut last = None;
        let mut skip = offset;
        for found in plan.rows(&ground, position.as_ref()) {
            let found = found?;
            if skip > 0 {
                skip -= 1;
                continue;
            }
            if limit.is_some_and(|limit| page.rows.len() as u64 >= limit) {
                // There is more, unless the query itself ends here.
                let count = used + page.rows.len() as u64;
                let is_over = query.options.limit.is_some_and(|all| count >= all);
                let position = last.filter(|_| !is_over);
                page.cursor = position.map(|last| cursor::write(&last, count, &statement));
                break;
            }
            last = Some(found.position(plan.is_sorted));
            page.rows.push(row(&query, found));
        }
        page.facets = facets(&ground, &query)?;
        let statement = Statement { text: &statement, component: request.component };
        self.note(&ground, &statement, &plan, page.rows.len() as u64);
        Ok(page)
    }

    /// Tells how a query would be run, and, if asked to, runs it to the end of its limit and measures that.
    ///
    /// # Errors
    /// As [`QueryEngine::page`].
    pub fn explain(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        is_run: bool,
    ) -> Result<Explanation> {
        let query = request.query.clone().bind(&request.variables)?;
        let full_text = self.full_text.load_full().and_then(|index| index.state());
        let snapshot = &committed(snapshot);
        let ground = self.ground(snapshot, full_text.as_deref())?;
        let limit = smaller(request.limit, query.options.limit);
        let wanted = limit.map(|limit| limit.saturating_add(1));
        let plan = planned(&ground, &query, wanted, None)?;
        let mut explanation = explain(&query, &plan);
        if is_run {
            let planned_in = ground.elapsed();
            let limit =
                limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
            let mut rows = 0;
            let mut first = None;
            for found in plan.rows(&ground, None).take(limit) {
                found?;
                rows += 1;
                first.get_or_insert_with(|| ground.elapsed());
            }
            explanation.measured = Some(super::explain::Measured {
                rows,
                rows_read: ground.rows_read.get(),
                chunks_read: ground.reads.chunks.load(std::sync::atomic::Ordering::Relaxed),
                planned: planned_in,
                first_row: first.unwrap_or_else(|| ground.elapsed()),
                elapsed: ground.elapsed(),
            });
        }
        Ok(explanation)
    }

    /// Counts rows, at most up to a bound.
    ///
    /// # Errors
    /// As [`QueryEngine::page`].
    pub fn count(&self, snapshot: &Snapshot, query: &Query, bound: u64) -> Result<u64> {
        let full_text = self.full_text.load_full().and_then(|index| index.state());
        let snapshot = &committed(snapshot);
        let ground = self.ground(snapshot, full_text.as_deref())?;
        let unordered = Query { orderings: Vec::new(), ..query.clone() };
        let plan = planned(&ground, &unordered, Some(bound), None)?;
        let mut count = 0;
        for found in plan.rows(&ground, None) {
            found?;
            count += 1;
            if count >= bound {
                break;
            }
        }
        Ok(count)
    }

    /// Tells what the full-text index has to do with a query.
    fn words_by(&self, ground: &Ground<'_>, query: &Query) -> Result<WordsBy> {
        if !query.is_about_words() || self.full_text.load().is_none() {
            return Ok(WordsBy::Nobody);
        }
        if ground.full_text.is_none() {
            return Ok(WordsBy::NoIndexYet);
        }
        Ok(match lag(ground)? {
            Lag::Changed(changed) if changed.is_empty() => WordsBy::Index,
            Lag::Changed(_) | Lag::Far => WordsBy::LateIndex,
        })
    }

    fn ground<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        full_text: Option<&'a dyn FullText>,
    ) -> Result<Ground<'a>> {
        let reads = snapshot.0.shared.reads();
        Ok(Ground {
            snapshot,
            reads: Counted { reads, chunks: AtomicU64::new(0) },
            maps: Root::read(reads, &snapshot.0.root)?.maps,
            definitions: Definitions::cached(&snapshot.0)?,
            types: snapshot.node_types()?,
            full_text,
            lag: std::cell::OnceCell::new(),
            limits: &self.limits,
            started: (self.limits.clock)(),
            rows_read: Cell::new(0),
            facets: RefCell::default(),
        })
    }

    /// Lists a statement that was slow, or that no index served.
    fn note(&self, ground: &Ground<'_>, statement: &Statement<'_>, plan: &Planned<'_>, rows: u64) {
        let elapsed = ground.elapsed();
        let is_indexed = plan.is_indexed();
        if elapsed < self.limits.slow && is_indexed {
            return;
        }
        let plan = plan.indexes();
        let timing = Timing { elapsed, rows, rows_read: ground.rows_read.get() };
        let longest = self.slow.note(statement, &plan, is_indexed, &timing);
        if elapsed < self.limits.slow {
            return;
        }
        let Statement { text: statement, component } = *statement;
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        // The list is gone after a restart; the log has each statement once.
        if longest < self.limits.slow {
            tracing::warn!(statement, plan, component, elapsed_ms, "slow query");
        } else {
            tracing::debug!(statement, elapsed_ms, "slow query");
        }
    }
}

/// Leaves out the pending edits of a session: indexes do not have them.
fn committed(snapshot: &Snapshot) -> Snapshot {
    if snapshot.0.overlay.is_empty() {
        return snapshot.clone();
    }
    let mut view = (*snapshot.0).clone();
    view.overlay = Default::default();
    view.order = Default::default();
    Snapshot(Arc::new(view), snapshot.1.clone())
}

fn smaller(left: Option<u64>, right: Option<u64>) -> Option<u64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (left, right) => left.or(right),
    }
}

fn columns_of(query: &Query) -> Vec<Column> {
    query.parts.first().map(|part| part.columns.clone()).unwrap_or_default()
}

fn row(query: &Query, found: Found) -> Row {
    let part = query.parts.get(found.part);
    let names = part.into_iter().flat_map(|part| part.selectors().map(|one| one.name.clone()));
    Row { nodes: names.zip(found.nodes).collect(), score: found.score, excerpt: found.excerpt }
}

/// Answers queries that ask for words in place of nodes.
fn words(ground: &Ground<'_>, query: &Query) -> Result<Option<Vec<String>>> {
    /// How many words are offered.
    const LIMIT: usize = 10;
    for constraint in query.parts.iter().filter_map(|part| part.constraint.as_ref()) {
        for one in constraint.conjuncts() {
            let (text, is_suggestion) = match one {
                Constraint::Suggest { text, .. } => (text, true),
                Constraint::Spellcheck { text, .. } => (text, false),
                _ => continue,
            };
            let text = bound(text)?.to_text();
            let Some(index) = ground.full_text else { return Ok(Some(Vec::new())) };
            let gate = ground.snapshot.1.as_ref();
            let is_bound = gate.is_some_and(|gate| !gate.is_unbound());
            let reader = |document: &NodePath| readable(ground, document);
            let reader = is_bound.then_some(&reader as Reader<'_>);
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

/// Tells what the viewer may read of a document that the index has in the state of the snapshot.
fn readable(ground: &Ground<'_>, document: &NodePath) -> Result<Readable> {
    let is_same = match lag(ground)? {
        Lag::Changed(changed) => changed.binary_search(document).is_err(),
        Lag::Far => false,
    };
    let node = if is_same { ground.snapshot.node(document)? } else { None };
    let Some(node) = node else { return Ok(Readable::Nothing) };
    if node.is_whole() {
        return Ok(Readable::Whole);
    }
    let mut texts = Vec::new();
    if let Some(body) = node.borrowed() {
        each_text(body, &mut |text| texts.push(text.to_owned()));
    }
    Ok(Readable::Part(texts))
}

/// Counts the values of the properties that the query asks to count, as far as no index has.
fn facets(ground: &Ground<'_>, query: &Query) -> Result<Vec<Facet>> {
    let columns = columns_of(query);
    let wanted = columns.iter().filter_map(|column| match &column.content {
        ColumnContent::Facet(property) => Some(property.clone()),
        _ => None,
    });
    let wanted: Vec<String> = wanted.collect();
    let counted = ground.facets.borrow().clone();
    if wanted.is_empty() || !counted.is_empty() {
        return Ok(counted);
    }
    // A plan that sorts keeps the rows of one page, and some more on the way.
    let whole = Query { orderings: Vec::new(), ..query.clone() };
    let plan = planned(ground, &whole, None, None)?;
    let mut counts: Vec<HashMap<String, u64>> = vec![HashMap::new(); wanted.len()];
    for found in plan.rows(ground, None) {
        let found = found?;
        let Some(Some(node)) = found.nodes.first() else { continue };
        for (path, counts) in wanted.iter().zip(&mut counts) {
            let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
            let property = node.find(parents)?.and_then(|node| node.property(name));
            for value in property.iter().flat_map(|property| property.values()) {
                *counts.entry(value.to_text().into_owned()).or_default() += 1;
            }
            if counts.len() > ground.limits.max_rows_in_memory {
                return Err(Error::QueryLimit {
                    what: format!("`{path}` has too many values to count"),
                });
            }
        }
    }
    let sorted = |counts: HashMap<String, u64>| {
        let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
        counts.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        counts
    };
    Ok(wanted.into_iter().zip(counts.into_iter().map(sorted)).collect())
}

impl std::fmt::Debug for QueryEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueryEngine")
    }
}
