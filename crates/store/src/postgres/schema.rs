//! The tables: created and migrated by the first process that connects. See `docs/formats/postgres.md`.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::advisory_lock::AdvisoryLockKeys;
use super::database_error::database_error;
use crate::error::{Error, Result};

/// The migration steps from an empty schema to the current tables. A released step never changes.
const SCHEMA_STEPS: &[&str] = &[include_str!("step_1.sql"), include_str!("step_2.sql")];

/// The stage of a collection, as stored in the table `collection`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub(super) enum CollectionStage {
    /// No collection is running.
    Idle = 0,
    /// The collection marks. Condemned rows are a proposal without effect.
    Mark = 1,
    /// The collection sweeps. Condemned rows are about to be deleted, and count as absent for writers.
    Sweep = 2,
}

impl CollectionStage {
    pub(super) fn from_number(number: i16) -> Self {
        match number {
            1 => Self::Mark,
            2 => Self::Sweep,
            _ => Self::Idle,
        }
    }
}

/// Migrates the tables to the current version; other processes wait in the meantime.
pub(super) async fn migrate_schema(
    connection: &mut PgConnection,
    schema: &str,
    keys: AdvisoryLockKeys,
) -> Result<()> {
    let failed = database_error("cannot bring the tables of the chunk store up to date");
    let mut transaction = connection.begin().await.map_err(&failed)?;
    let lock = format!("select pg_advisory_xact_lock({})", keys.migration);
    transaction.execute(AssertSqlSafe(lock)).await.map_err(&failed)?;
    // The search path is set when a connection begins, and the schema is its first entry.
    let table_query = sqlx::query("select to_regclass('format') is not null");
    let table_row = table_query.fetch_one(&mut *transaction).await.map_err(&failed)?;
    let mut done = 0;
    if table_row.try_get(0).map_err(&failed)? {
        let row = sqlx::query("select version from format");
        let row = row.fetch_one(&mut *transaction).await.map_err(&failed)?;
        done = usize::try_from(row.try_get::<i32, _>(0).map_err(&failed)?).unwrap_or(0);
    } else {
        let make = format!("create schema if not exists \"{schema}\"");
        transaction.execute(AssertSqlSafe(make)).await.map_err(&failed)?;
    }
    if done > SCHEMA_STEPS.len() {
        let table_group = "the chunk store".to_owned();
        return Err(Error::StateDatabaseNewer {
            table_group,
            applied_steps: done,
            known_steps: SCHEMA_STEPS.len(),
        });
    }
    for step in SCHEMA_STEPS.iter().skip(done) {
        transaction.execute(sqlx::raw_sql(*step)).await.map_err(&failed)?;
    }
    if done < SCHEMA_STEPS.len() {
        let version = i32::try_from(SCHEMA_STEPS.len()).unwrap_or(i32::MAX);
        let set = sqlx::query("update format set version = $1").bind(version);
        set.execute(&mut *transaction).await.map_err(&failed)?;
    }
    transaction.commit().await.map_err(&failed)
}
