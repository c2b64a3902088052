//! What queries over HTTP may cost, by who asks.
//!
//! In: the budgets of the configuration. Out: the engine that a viewer's query runs on.
//!
//! Queries that templates make are not meant here: a site's developer wrote them, and they run on the engine of
//! administrators whoever visits the page.

use std::sync::Arc;
use std::time::Duration;

use tympan_content::Viewer;
use tympan_content::query::{QueryEngine, QueryLimits};

use crate::failure::Result;
use crate::{Instance, InstanceRole};

/// What queries over HTTP may cost, by who asks.
#[derive(Debug, Clone)]
pub struct QueryBudgets {
    /// Of administrators, and of templates; the other two get no more.
    pub administrators: QueryLimits,
    /// Of users who have logged in.
    pub users: QueryLimits,
    /// Of visitors without a login.
    pub visitors: QueryLimits,
    /// Whether a publisher answers queries of visitors at all.
    pub allows_visitors: bool,
}

impl Default for QueryBudgets {
    /// Visitors are told to log in; where they are not, a query of theirs ends after two seconds.
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

/// The engines of an instance: one set of limits for each kind of asker.
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
}

impl Instance {
    /// Returns the engine for a viewer's query.
    pub(crate) fn query_engine_for(&self, viewer: &Viewer) -> Result<&QueryEngine> {
        let engines = &self.query_engines;
        Ok(match viewer.is_anonymous() {
            true => &engines.visitors,
            false if self.is_administrator(viewer)? => &engines.administrators,
            false => &engines.users,
        })
    }

    /// Tells whether queries of visitors without a login are answered.
    pub(crate) fn are_visitor_queries_allowed(&self) -> bool {
        self.role == InstanceRole::Publish && self.query_engines.allows_visitors
    }
}
