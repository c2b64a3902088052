//! The registration of this process among those that share the database, and the data it retains.
//!
//! Not here: the heartbeat that reports both (`heartbeat`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::advisory_lock::AdvisoryLockKeys;
use super::commit_token::CommitTokens;
use super::database_error::database_error;
use super::options::PostgresOptions;
use crate::error::{Error, Result};
use crate::interface::root_retention::RootPins;

/// The maximum number of attempts for a transaction that conflicts with another.
pub(super) const MAX_TRANSACTION_ATTEMPTS: usize = 8;

/// The identity of a process, and the data it retains.
#[derive(Debug)]
pub(super) struct StoreProcess {
    /// The number in the application name, by which other processes detect if the process has connections.
    registered_id: i64,
    /// The number under which the data it retains is listed; changes if the process was declared dead.
    id: AtomicI64,
    pub(super) pins: RootPins,
    pub(super) holds: ProcessHolds,
    pub(super) tokens: CommitTokens,
}

impl StoreProcess {
    /// Registers the process, unless the server has too few connections for all.
    pub(super) async fn register(
        connection: &mut PgConnection,
        options: &PostgresOptions,
        keys: AdvisoryLockKeys,
    ) -> Result<Self> {
        let failed = database_error("cannot register this process with the database");
        let requested_connections =
            options.max_connections.saturating_add(PostgresOptions::EXTRA_CONNECTIONS);
        let mut transaction = connection.begin().await.map_err(&failed)?;
        let lock = format!("select pg_advisory_xact_lock({})", keys.registry);
        transaction.execute(AssertSqlSafe(lock)).await.map_err(&failed)?;
        // A process without any connection is dead, however recent its last heartbeat is.
        let query = "select coalesce(sum(connections), 0)::bigint, \
                       current_setting('max_connections')::bigint \
                       - current_setting('superuser_reserved_connections')::bigint \
                       - coalesce(current_setting('reserved_connections', true)::bigint, 0) \
                     from process where exists (select 1 from pg_stat_activity \
                       where application_name = $1 || process.id)";
        let prefix = application_prefix(&options.schema);
        let row = sqlx::query(query).bind(&prefix);
        let row = row.fetch_one(&mut *transaction).await.map_err(&failed)?;
        let number = |column| {
            let number: i64 = row.try_get(column).map_err(&failed)?;
            Ok::<u32, Error>(u32::try_from(number).unwrap_or(0))
        };
        let (used_connections, allowed) = (number(0)?, number(1)?);
        if used_connections.saturating_add(requested_connections) > allowed {
            return Err(Error::TooManyConnections {
                requested: requested_connections,
                in_use: used_connections,
                server_limit: allowed,
            });
        }
        let insert = "insert into process (connections) values ($1) returning id";
        let row = sqlx::query(insert).bind(i64::from(requested_connections));
        let row = row.fetch_one(&mut *transaction).await.map_err(&failed)?;
        let id: i64 = row.try_get(0).map_err(&failed)?;
        sqlx::query("select set_config('application_name', $1, false)")
            .bind(format!("{prefix}{id}"))
            .execute(&mut *transaction)
            .await
            .map_err(&failed)?;
        transaction.commit().await.map_err(&failed)?;
        Ok(Self {
            registered_id: id,
            id: AtomicI64::new(id),
            pins: RootPins::default(),
            holds: ProcessHolds::default(),
            tokens: CommitTokens::default(),
        })
    }

    pub(super) fn id(&self) -> i64 {
        self.id.load(Ordering::SeqCst)
    }

    /// Stores the number of a new registration.
    pub(super) fn set_id(&self, id: i64) {
        self.id.store(id, Ordering::SeqCst);
    }

    pub(super) fn application_name(&self, schema: &str) -> String {
        format!("{}{}", application_prefix(schema), self.registered_id)
    }
}

fn application_prefix(schema: &str) -> String {
    format!("tympan {schema} ")
}

/// The live holds of this process, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessHolds(Arc<Mutex<(i64, BTreeSet<i64>)>>);

impl ProcessHolds {
    /// Begins a hold of this process.
    pub(super) fn begin_hold(&self) -> ProcessHoldGuard {
        let mut holds = self.0.lock();
        holds.0 += 1;
        let number = holds.0;
        holds.1.insert(number);
        ProcessHoldGuard { hold_number: number, holds: self.clone() }
    }

    /// Returns the newest live hold.
    pub(super) fn newest_hold(&self) -> Option<i64> {
        self.0.lock().1.last().copied()
    }

    /// Returns the numbers of the live holds, in order.
    pub(super) fn hold_numbers(&self) -> Vec<i64> {
        self.0.lock().1.iter().copied().collect()
    }
}

/// Ends a hold when it is dropped. The database is updated with the next heartbeat or collection.
pub(super) struct ProcessHoldGuard {
    pub(super) hold_number: i64,
    holds: ProcessHolds,
}

impl Drop for ProcessHoldGuard {
    fn drop(&mut self) {
        self.holds.0.lock().1.remove(&self.hold_number);
    }
}

/// Statements that remove the processes of `$1` and everything they retain.
pub(super) const REMOVE_PROCESSES: [&str; 5] = [
    "delete from pin where process = any($1)",
    "delete from keep where process = any($1)",
    "delete from hold where process = any($1)",
    "delete from token where process = any($1)",
    "delete from process where id = any($1)",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_end_when_they_are_dropped() {
        let holds = ProcessHolds::default();
        let (first, second) = (holds.begin_hold(), holds.begin_hold());
        assert_eq!(holds.newest_hold(), Some(second.hold_number));
        drop(second);
        assert_eq!(
            (holds.newest_hold(), holds.hold_numbers()),
            (Some(first.hold_number), vec![first.hold_number])
        );
        drop(first);
        assert_eq!(holds.newest_hold(), None);
    }
}
