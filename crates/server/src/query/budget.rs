//! Resource limits of queries over HTTP, by user.
//!
//! In: the limits of the configuration. Out: the engine that runs a viewer's query.
//!
//! Other requests that walk content have the same limits ([`ReadBudget`]). Queries of templates are not limited by this: the developer of the site wrote them, and they run on the engine of
//! administrators for every visitor of the page.

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

/// The nodes and the time that a request which is no query may still take.
#[derive(Debug)]
pub(crate) struct ReadBudget {
    remaining_nodes: u64,
    deadline: Option<Instant>,
    clock: fn() -> Instant,
}

impl ReadBudget {
    /// Creates the budget of a request that only counts nodes, as many as a query with these limits may read.
    pub(crate) fn for_reading(limits: &QueryLimits) -> Self {
        let deadline = (limits.clock)().checked_add(limits.max_time);
        Self { remaining_nodes: limits.max_rows_read, deadline, clock: limits.clock }
    }

    /// Creates the budget of a request that holds the nodes in memory, as many as a query with these limits may.
    pub(crate) fn for_memory(limits: &QueryLimits) -> Self {
        let in_memory = u64::try_from(limits.max_rows_in_memory).unwrap_or(u64::MAX);
        let reading = Self::for_reading(limits);
        Self { remaining_nodes: reading.remaining_nodes.min(in_memory), ..reading }
    }

    /// Counts a node.
    ///
    /// # Errors
    /// [`RequestFailure`] with 422 if the nodes or the time are used up.
    pub(crate) fn count_node(&mut self) -> Result<()> {
        let is_late = || self.deadline.is_some_and(|deadline| (self.clock)() > deadline);
        match self.remaining_nodes.checked_sub(1).filter(|_| !is_late()) {
            Some(remaining) => self.remaining_nodes = remaining,
            None => {
                let message = "this concerns more nodes than a request of yours may read; ask for a smaller part";
                return Err(RequestFailure::unprocessable(message));
            }
        }
        Ok(())
    }

    /// Counts a node and its listed descendants.
    ///
    /// # Errors
    /// As [`ReadBudget::count_node`]; if content fails.
    pub(crate) fn count_subtree(&mut self, top: &Node) -> Result<()> {
        self.count_node()?;
        top.visit_listed_descendants(|_| self.count_node())
    }
}
