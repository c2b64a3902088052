//! What the statements of this room share: times as numbers, rows as jobs, and where the two dialects differ.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AnyPool, Row};
use tokio::sync::OwnedMutexGuard;

use crate::job::Progress;
use crate::{Error, Job, JobId, JobState, Priority, Result};

/// A transaction that writes. In SQLite only one of this process is open at a time: two would wait for each other by
/// sleeping.
pub(crate) struct Transaction {
    inner: sqlx::Transaction<'static, sqlx::Any>,
    writes: Arc<Writes>,
    _turn: Option<OwnedMutexGuard<()>>,
}

/// The writes of a process: each statement or transaction that is one on disk. Counted, and cut off where a test says so.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    done: AtomicU64,
    /// The write at which the process counts as killed; 0 for none.
    cut: AtomicU64,
    /// Whether that write still happens.
    is_cut_after: AtomicBool,
}

impl Writes {
    pub(crate) fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(crate) fn cut(&self, at: u64, side: CutSide) {
        self.is_cut_after.store(side == CutSide::After, Ordering::Relaxed);
        self.cut.store(self.count() + at, Ordering::Relaxed);
    }

    pub(crate) fn is_cut(&self) -> bool {
        let cut = self.cut.load(Ordering::Relaxed);
        cut > 0 && self.count() >= cut
    }

    /// Refuses what a killed process would not do.
    pub(crate) fn check(&self) -> Result<(), sqlx::Error> {
        if self.is_cut() { Err(sqlx::Error::PoolClosed) } else { Ok(()) }
    }

    /// Does one write.
    pub(crate) async fn one<T>(
        &self,
        write: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        self.check()?;
        let number = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if number != self.cut.load(Ordering::Relaxed) {
            return write.await;
        }
        if self.is_cut_after.load(Ordering::Relaxed) {
            write.await?;
        }
        Err(sqlx::Error::PoolClosed)
    }
}

/// On which side of a write a process is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutSide {
    /// The write does not happen.
    Before,
    /// It happens, and nobody hears of it.
    After,
}

impl Transaction {
    pub(crate) fn new(
        inner: sqlx::Transaction<'static, sqlx::Any>,
        writes: Arc<Writes>,
        turn: Option<OwnedMutexGuard<()>>,
    ) -> Self {
        Self { inner, writes, _turn: turn }
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        let Self { inner, writes, _turn } = self;
        writes.one(inner.commit()).await
    }
}

impl Deref for Transaction {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.inner
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.inner
    }
}

/// Which database is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// Finds out from the address of a pool.
    pub(crate) fn of(pool: &AnyPool) -> Self {
        if pool.connect_options().database_url.scheme().starts_with("postgres") {
            Self::Postgres
        } else {
            Self::Sqlite
        }
    }

    /// Returns how a transaction that will write begins. In SQLite one that begins by reading would fail at once when
    /// another one writes, instead of waiting for it.
    pub(crate) fn begin(self) -> &'static str {
        match self {
            Self::Sqlite => "BEGIN IMMEDIATE",
            Self::Postgres => "BEGIN",
        }
    }

    /// Returns what a choice of rows ends with, so that workers do not wait for each other.
    pub(crate) fn skip_locked(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::Postgres => " FOR UPDATE SKIP LOCKED",
        }
    }
}

/// The condition that a job runs. The index of leased jobs serves its first half; by the second alone, all jobs would be
/// read, those that ended included.
macro_rules! runs {
    () => {
        "state IN ('ACTIVE', 'HELD') AND state || '' = 'ACTIVE'"
    };
}
pub(crate) use runs;

pub(crate) fn database(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

/// Writes a time as milliseconds since 1970; earlier ones do not occur.
pub(crate) fn millis(time: SystemTime) -> i64 {
    span_millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn span_millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX / 4)
}

pub(crate) fn time(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.unsigned_abs())
}

/// Joins numbers for an `IN` list.
pub(crate) fn numbers(ids: impl IntoIterator<Item = JobId>) -> String {
    ids.into_iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",")
}

/// Returns `$first, …` for an `IN` list of `count` texts.
pub(crate) fn places(first: usize, count: usize) -> String {
    (first..first + count).map(|place| format!("${place}")).collect::<Vec<_>>().join(", ")
}

pub(crate) fn progress_json(progress: &Progress) -> String {
    json!({ "done": progress.done, "total": progress.total, "message": progress.message })
        .to_string()
}

fn progress_of(text: &str) -> Option<Progress> {
    let value: Value = serde_json::from_str(text).ok()?;
    let number = |name: &str| value.get(name).and_then(Value::as_u64).unwrap_or_default();
    let message = value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Progress { done: number("done"), total: number("total"), message })
}

pub(crate) fn job_of(row: &AnyRow) -> Result<Job> {
    let action = "read a job";
    let id: i64 = row.try_get("id").map_err(database(action))?;
    let text = |name: &str| row.try_get::<String, _>(name).map_err(database(action));
    let text_or_none =
        |name: &str| row.try_get::<Option<String>, _>(name).map_err(database(action));
    let number = |name: &str| row.try_get::<i64, _>(name).map_err(database(action));
    let time_or_none = |name: &str| -> Result<Option<SystemTime>> {
        let number = row.try_get::<Option<i64>, _>(name).map_err(database(action))?;
        Ok(number.map(time))
    };
    let state = text("state")?;
    Ok(Job {
        id: JobId(id),
        topic: text("topic")?,
        properties: serde_json::from_str(&text("payload")?)
            .map_err(|source| Error::Payload { id, source })?,
        key: text_or_none("job_key")?,
        priority: Priority::of_rank(number("priority")?),
        tenant: text("tenant")?,
        state: JobState::find(&state).unwrap_or(JobState::Queued),
        attempt: u32::try_from(number("attempt")?.max(0)).unwrap_or(u32::MAX),
        run_at: time(number("run_at")?),
        created: time(number("created")?),
        started: time_or_none("started")?,
        ended: time_or_none("ended")?,
        user: text("created_by")?,
        worker: text_or_none("worker")?,
        progress: text_or_none("progress")?.and_then(|text| progress_of(&text)),
        last_error: text_or_none("last_error")?,
    })
}
