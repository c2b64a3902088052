//! Resource limits of queries over HTTP, by user.
//!
//! In: the limits of the configuration. Out: the engine that runs a viewer's query, and the budget of other requests that
//! read as much as a query may.
//!
//! Other requests that walk content have the same limits ([`ReadBudget`]). Queries of templates are not limited by this:
//! the developer of the site wrote them, and they run on the engine of administrators for every visitor of the page.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_content::{Node, Viewer};
use tympan_content_query::{QueryEngine, QueryLimits};

use crate::failure::{RequestFailure, Result};

/// Resource limits of queries over HTTP, by user.
#[derive(Debug, Clone)]
pub struct QueryBudgets {
    /// Limits of administrators and of templates; the other two are never higher.
    pub administrators: QueryLimits,
    /// Limits of logged-in users.
    pub users: QueryLimits,
    /// Limits of anonymous visitors.
    pub visitors: QueryLimits,
    /// True if a publisher accepts queries of anonymous visitors.
    pub allows_visitors: bool,
}

impl Default for QueryBudgets {
    /// Visitors have to log in; if visitor queries are allowed, they are limited to two seconds.
    fn default() -> Self {
        let administrators = QueryLimits::default();
        let users = QueryLimits {
            max_rows_read: 10_000_000,
            max_time: Duration::from_secs(30),
            ..administrators.clone()
        };
        let visitors = QueryLimits {
            max_rows_in_memory: 10_000,
            max_rows_read: 100_000,
            max_time: Duration::from_secs(2),
            ..administrators.clone()
        };
        Self { administrators, users, visitors, allows_visitors: false }
    }
}

/// The query engines of an instance: one set of limits for each class of users.
#[derive(Debug)]
pub(crate) struct QueryEngines {
    pub(crate) administrators: Arc<QueryEngine>,
    users: QueryEngine,
    visitors: QueryEngine,
    allows_visitors: bool,
}

impl QueryEngines {
    pub(crate) fn new(budgets: &QueryBudgets) -> Self {
        let most = &budgets.administrators;
        let administrators = QueryEngine::new(most.clone());
        let users = administrators.with_limits(most.min_with(&budgets.users));
        let visitors = users.with_limits(users.limits().min_with(&budgets.visitors));
        let administrators = Arc::new(administrators);
        let is_open_to_visitors = budgets.allows_visitors;
        Self { administrators, users, visitors, allows_visitors: is_open_to_visitors }
    }

    /// Returns the engine for a viewer's query; `is_administrator` is called only for logged-in users.
    pub(crate) fn engine_for(
        &self,
        viewer: &Viewer,
        is_administrator: impl FnOnce() -> Result<bool>,
    ) -> Result<&QueryEngine> {
        Ok(match viewer.is_anonymous() {
            true => &self.visitors,
            false if is_administrator()? => &self.administrators,
            false => &self.users,
        })
    }

    /// Returns true if a publisher accepts queries of anonymous visitors.
    pub(crate) fn allows_visitors(&self) -> bool {
        self.allows_visitors
    }
}

/// The nodes and the time that a request may still spend on reading, by the limits of the viewer's queries.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    limits: QueryLimits,
    /// The limit of nodes, and the key that sets it.
    max_nodes: (u64, &'static str),
    start_time: Instant,
    nodes_read: u64,
}

impl ReadBudget {
    /// Creates the budget of a request that reads nodes one after the other, as many as a query may read.
    pub(crate) fn for_reading(limits: &QueryLimits) -> Self {
        let max_nodes = (limits.max_rows_read, "query.max_rows_read");
        Self { limits: limits.clone(), max_nodes, start_time: (limits.clock)(), nodes_read: 0 }
    }

    /// Creates the budget of a request that holds the nodes in memory, as many as a query may hold.
    pub(crate) fn for_memory(limits: &QueryLimits) -> Self {
        let in_memory = u64::try_from(limits.max_rows_in_memory).unwrap_or(u64::MAX);
        let reading = Self::for_reading(limits);
        match in_memory < reading.max_nodes.0 {
            true => Self { max_nodes: (in_memory, "query.max_rows_in_memory"), ..reading },
            false => reading,
        }
    }

    /// Counts nodes that were read. `advice` says how to read less.
    ///
    /// # Errors
    /// [`RequestFailure`] with 422 if a limit is exceeded.
    pub(crate) fn count_nodes(&mut self, nodes: usize, advice: &str) -> Result<()> {
        let QueryLimits { max_time, clock, .. } = &self.limits;
        let (max_nodes, key) = self.max_nodes;
        self.nodes_read = self.nodes_read.saturating_add(nodes as u64);
        let reached = if self.nodes_read > max_nodes {
            format!("it has read {max_nodes} nodes (`{key}`)")
        } else if clock().saturating_duration_since(self.start_time) > *max_time {
            format!("it has run for {} s (`query.max_time`)", max_time.as_secs_f64())
        } else {
            return Ok(());
        };
        Err(RequestFailure::unprocessable(format!("the request was stopped: {reached}; {advice}")))
    }

    /// Counts a node.
    ///
    /// # Errors
    /// As [`ReadBudget::count_nodes`].
    pub(crate) fn count_node(&mut self) -> Result<()> {
        self.count_nodes(1, "ask for a smaller part")
    }

    /// Counts a node and its listed descendants.
    ///
    /// # Errors
    /// As [`ReadBudget::count_nodes`]; if content fails.
    pub(crate) fn count_subtree(&mut self, top: &Node) -> Result<()> {
        self.count_node()?;
        top.visit_listed_descendants(|_| self.count_node())
    }
}
