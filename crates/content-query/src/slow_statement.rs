//! A bounded table of slow statements and of statements that no index served.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

/// The maximum number of statements in the table.
const MAX_LOGGED_STATEMENTS: usize = 500;
/// The maximum number of bytes stored of a statement.
const MAX_LOGGED_STATEMENT_BYTES: usize = 4_000;

/// A statement that was slow or that no index served.
#[derive(Debug, Clone, Serialize)]
pub struct SlowStatement {
    /// The statement as JCR-SQL2, with `$v` in place of each fixed value.
    pub statement: String,
    /// The number of runs that were slow or not served by an index.
    pub count: u64,
    /// The total duration of these runs, in milliseconds.
    pub total_ms: f64,
    /// The duration of the longest run, in milliseconds.
    pub max_ms: f64,
    /// The number of rows of the last run.
    pub rows: u64,
    /// The number of nodes and index entries read by the last run.
    pub rows_read: u64,
    /// The index used by the last run.
    pub plan: String,
    /// True if an index served the statement.
    pub is_indexed: bool,
    /// The component that issued the last run.
    pub component: String,
}

/// The measurements of one run.
pub(crate) struct StatementTiming {
    pub(crate) elapsed: Duration,
    pub(crate) row_count: u64,
    pub(crate) rows_read: u64,
}

/// A statement without its literals, and the component that issued it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NormalizedStatement<'a> {
    pub(crate) text: &'a str,
    pub(crate) component: &'a str,
}

#[derive(Debug, Default)]
pub(crate) struct SlowStatementLog(Mutex<BTreeMap<String, SlowStatement>>);

impl SlowStatementLog {
    /// Records a run of a statement. Returns the duration of its longest earlier run, or zero if the statement was not
    /// listed.
    pub(crate) fn record_run(
        &self,
        statement: &NormalizedStatement<'_>,
        plan: &str,
        is_indexed: bool,
        timing: &StatementTiming,
    ) -> Duration {
        let NormalizedStatement { text: statement, component } = *statement;
        let mut end = statement.len().min(MAX_LOGGED_STATEMENT_BYTES);
        while !statement.is_char_boundary(end) {
            end -= 1;
        }
        let statement = statement.get(..end).unwrap_or(statement);
        let mut statements = self.0.lock();
        if !statements.contains_key(statement) && statements.len() >= MAX_LOGGED_STATEMENTS {
            // The statement with the least cost is evicted.
            let least =
                statements.values().min_by(|left, right| left.total_ms.total_cmp(&right.total_ms));
            if let Some(least) = least.map(|least| least.statement.clone()) {
                statements.remove(&least);
            }
        }
        let entry = statements.entry(statement.to_owned()).or_insert_with(|| SlowStatement {
            statement: statement.to_owned(),
            count: 0,
            total_ms: 0.0,
            max_ms: 0.0,
            rows: 0,
            rows_read: 0,
            plan: String::new(),
            is_indexed,
            component: String::new(),
        });
        let elapsed = timing.elapsed.as_secs_f64() * 1_000.0;
        let before = Duration::from_secs_f64(entry.max_ms / 1_000.0);
        entry.count += 1;
        entry.total_ms += elapsed;
        entry.max_ms = entry.max_ms.max(elapsed);
        (entry.rows, entry.rows_read) = (timing.row_count, timing.rows_read);
        plan.clone_into(&mut entry.plan);
        entry.is_indexed = is_indexed;
        component.clone_into(&mut entry.component);
        before
    }

    pub(crate) fn list(&self) -> Vec<SlowStatement> {
        let mut list: Vec<SlowStatement> = self.0.lock().values().cloned().collect();
        list.sort_by(|left, right| right.total_ms.total_cmp(&left.total_ms));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_held_against_the_longest_before() {
        let log = SlowStatementLog::default();
        let statement = NormalizedStatement { text: "SELECT * FROM [cq:Page]", component: "here" };
        let run = |ms| {
            let timing =
                StatementTiming { elapsed: Duration::from_millis(ms), row_count: 1, rows_read: 2 };
            log.record_run(&statement, "none", false, &timing).as_millis()
        };
        assert_eq!([run(5), run(400), run(200), run(500)], [0, 5, 400, 400]);
        let list = log.list();
        assert_eq!((list.len(), list[0].count, list[0].max_ms), (1, 4, 500.0));
    }
}
