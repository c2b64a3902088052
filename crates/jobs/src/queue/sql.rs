//! Code shared by the statements of this crate: times as numbers, rows as jobs, and differences between the two
//! dialects.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, Row};
use tokio::sync::OwnedMutexGuard;

use crate::job::JobProgress;
use crate::{Error, Job, JobId, JobPriority, JobState, Result};

/// A writing transaction. In SQLite only one of this process is open at a time, because two would wait for each other
/// by sleeping. A transaction that is dropped changes nothing.
#[derive(Debug)]
pub struct WriteTransaction {
    sql_transaction: sqlx::Transaction<'static, sqlx::Any>,
    writes: Arc<DatabaseWrites>,
    _write_guard: Option<OwnedMutexGuard<()>>,
}

/// The writes of a process: each statement or transaction that is one sync. They are counted, and cut off if a test
/// requests it.
#[derive(Debug, Default)]
pub(crate) struct DatabaseWrites {
    completed_count: AtomicU64,
    /// The write at which the process counts as killed; 0 for none.
    cut_at: AtomicU64,
    /// True if that write is still executed.
    is_cut_after: AtomicBool,
}

impl DatabaseWrites {
    pub(crate) fn write_count(&self) -> u64 {
        self.completed_count.load(Ordering::Relaxed)
    }

    pub(crate) fn cut_off_at(&self, at: u64, side: WriteCutSide) {
        self.is_cut_after.store(side == WriteCutSide::After, Ordering::Relaxed);
        self.cut_at.store(self.write_count() + at, Ordering::Relaxed);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        let cut = self.cut_at.load(Ordering::Relaxed);
        cut > 0 && self.write_count() >= cut
    }

    /// Returns an error after the cut-off, as if the process were killed.
    pub(crate) fn check_cut_off(&self) -> Result<(), sqlx::Error> {
        if self.is_cut_off() { Err(sqlx::Error::PoolClosed) } else { Ok(()) }
    }

    /// Performs one write.
    pub(crate) async fn perform_write<T>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.check_cut_off()?;
        let number = self.completed_count.fetch_add(1, Ordering::Relaxed) + 1;
        if number != self.cut_at.load(Ordering::Relaxed) {
            return write.await;
        }
        if self.is_cut_after.load(Ordering::Relaxed) {
            write.await?;
        }
        Err(sqlx::Error::PoolClosed)
    }
}

/// The side of a write on which a process is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCutSide {
    /// The write is not executed.
    Before,
    /// The write is executed, but its result is lost.
    After,
}

impl WriteTransaction {
    pub(crate) fn new(
        inner: sqlx::Transaction<'static, sqlx::Any>,
        writes: Arc<DatabaseWrites>,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Self {
        Self { sql_transaction: inner, writes, _write_guard: turn }
    }

    /// Commits the transaction: when this returns, its changes are on disk.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        let Self { sql_transaction, writes, _write_guard: _turn } = self;
        writes.perform_write(sql_transaction.commit()).await
    }
}

impl Deref for WriteTransaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.sql_transaction
    }
}

impl DerefMut for WriteTransaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.sql_transaction
    }
}

/// The database's SQL dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SqlDialect {
    Sqlite,
    Postgres,
}

impl SqlDialect {
    /// Returns the dialect for the address of a pool.
    pub(crate) fn of_pool(pool: &AnyPool) -> Self {
        if pool.connect_options().database_url.scheme().starts_with("postgres") {
            Self::Postgres
        } else {
            Self::Sqlite
        }
    }

    /// Returns the statement that begins a writing transaction. In SQLite a transaction that begins with a read would
    /// fail at once when another one writes, instead of waiting for it.
    pub(crate) fn begin_write_sql(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// Returns the suffix of a row selection that makes workers skip locked rows.
    pub(crate) fn skip_locked_sql(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => " FOR UPDATE SKIP LOCKED",
        }
    }
}

/// The condition that a job is running. The index of leased jobs serves its first half; with the second half alone, all
/// jobs would be read, including ended ones.
macro_rules! runs {
    () => {
        "state IN ('ACTIVE', 'HELD') AND state || '' = 'ACTIVE'"
    };
}
pub(crate) use runs;

pub(crate) fn database_error(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

/// Returns a time as milliseconds since 1970; earlier times do not occur.
pub(crate) fn to_epoch_millis(time: SystemTime) -> i64 {
    duration_to_millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn duration_to_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 4)
}

pub(crate) fn from_epoch_millis(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

/// Joins job numbers for an `IN` list.
pub(crate) fn join_job_ids(ids: impl IntoIterator<Item = JobId>) -> String {
    ids.into_iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",")
}

/// Returns `$first, …` for an `IN` list of `count` texts.
pub(crate) fn sql_placeholders(first: usize, count: usize) -> String {
    (first..first + count).map(|number| format!("${number}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn progress_to_json(progress: &JobProgress) -> String {
    json!({ "done": progress.completed, "total": progress.total, "message": progress.message })
        .to_string()
}

fn parse_progress(text: &str) -> Option<JobProgress> {
    let value: Value = serde_json::from_str(text).ok()?;
    let number = |name: &str| value.get(name).and_then(Value::as_u64).unwrap_or_default();
    let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(JobProgress { completed: number("done"), total: number("total"), message })
}

pub(crate) fn job_from_row(row: &AnyRow) -> Result<Job> {
    let action = "read a job";
    let id: i64 = row.try_get("id").map_err(database_error(action))?;
    let text = |name: &str| row.try_get::<String, _>(name).map_err(database_error(action));
    let text_or_none =
        |name: &str| row.try_get::<Option<String>, _>(name).map_err(database_error(action));
    let number = |name: &str| row.try_get::<i64, _>(name).map_err(database_error(action));
    let time_or_none = |name: &str| -> Result<Option<SystemTime>> {
        let number = row.try_get::<Option<i64>, _>(name).map_err(database_error(action))?;
        Ok(number.map(from_epoch_millis))
    };
    let state = text("state")?;
    Ok(Job {
        id: JobId(id),
        topic: text("topic")?,
        properties: serde_json::from_str(&text("payload")?)
            .map_err(|source| Error::Payload { id, source })?,
        key: text_or_none("job_key")?,
        priority: JobPriority::from_rank(number("priority")?),
        tenant: text("tenant")?,
        state: JobState::from_name(&state).unwrap_or(JobState::Queued),
        attempt: u32::try_from(number("attempt")?.max(0)).unwrap_or(u32::MAX),
        run_at: from_epoch_millis(number("run_at")?),
        created_at: from_epoch_millis(number("created")?),
        started_at: time_or_none("started")?,
        ended_at: time_or_none("ended")?,
        user: text("created_by")?,
        worker: text_or_none("worker")?,
        progress: text_or_none("progress")?.and_then(|text| parse_progress(&text)),
        last_error: text_or_none("last_error")?,
    })
}
