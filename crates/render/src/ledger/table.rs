//! The ledger in the database: one row for each URL, and one for each publisher.
//!
//! A row holds the whole set. URLs are found by path in memory only, so that a row costs a tenth of one row per
//! dependency. Publishers that share a database have separate rows.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Row as _};

use super::flush_scope::FlushScopeRows;
use super::ledger_error::{LedgerError, LedgerResult};
use super::response_fingerprint::ResponseFingerprint;
use crate::dependency::{DEPENDENCY_FORMAT, DependencySet};

/// The tables of the ledger; a released step never changes.
pub const MIGRATIONS: &[&str] = &[
    "CREATE TABLE ledger_publisher (
        publisher TEXT PRIMARY KEY,
        boot TEXT NOT NULL,
        state BIGINT NOT NULL,
        format BIGINT NOT NULL,
        seen BIGINT NOT NULL)",
    // SQLite stores bytes unchanged under any type name; this one is PostgreSQL's.
    "CREATE TABLE ledger_url (
        publisher TEXT NOT NULL,
        kind BIGINT NOT NULL,
        url TEXT NOT NULL,
        dependencies BYTEA NOT NULL,
        PRIMARY KEY (publisher, kind, url))",
    "ALTER TABLE ledger_url ADD COLUMN look BYTEA",
    "ALTER TABLE ledger_publisher ADD COLUMN drawn_by TEXT",
];

/// Rows per statement: enough to make the cost of the statement negligible.
const ROWS_PER_STATEMENT: usize = 100;

/// Flags before the dependencies: only faults were rendered; copies may be of a state at which no follower was.
const FAULT_FLAG: u8 = 1;
const STRAY_FLAG: u8 = 2;

/// The state in which a publisher was left.
mod publisher_state {
    /// It runs, or was killed.
    pub(super) const OPEN: i64 = 0;
    /// It ended after storing everything.
    pub(super) const CLOSED: i64 = 1;
    /// Its rows were taken over.
    pub(super) const TAKEN_OVER: i64 = 2;
}

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LedgerRowKind {
    Url,
    Scope,
}

impl LedgerRowKind {
    fn code(self) -> i64 {
        match self {
            Self::Url => 0,
            Self::Scope => 1,
        }
    }
}

/// A stored row.
#[derive(Debug)]
pub(super) struct LedgerRow {
    pub(super) kind: LedgerRowKind,
    pub(super) url: String,
    pub(super) dependencies: DependencySet,
    pub(super) fingerprint: Option<ResponseFingerprint>,
    /// True if only faults were rendered.
    pub(super) is_fault: bool,
    /// For a URL, true if copies may be of a state at which no follower was; for a folder, true if it may show an
    /// earlier change.
    pub(super) is_stray: bool,
}

/// The stored state of a publisher.
#[derive(Debug)]
pub(super) struct StoredLedger {
    pub(super) rows: Vec<LedgerRow>,
    /// True if these rows and the journal cover everything that it rendered.
    pub(super) is_complete: bool,
    /// The fingerprint of everything besides content that affected its renderings; `None` if unknown.
    pub(super) renderer_fingerprint: Option<String>,
}

/// A publisher without a recent heartbeat.
#[derive(Debug)]
pub(super) struct DeadPublisher {
    publisher: String,
    state: i64,
    /// The time of its latest heartbeat, or of the takeover after it.
    last_seen: i64,
    format: i64,
}

impl DeadPublisher {
    pub(super) fn publisher_name(&self) -> &str {
        &self.publisher
    }
}

/// A URL whose row has to be stored.
#[derive(Debug)]
pub(super) struct UnstoredUrl {
    pub(super) url: Arc<str>,
    /// Its dependencies.
    pub(super) dependencies: Arc<DependencySet>,
    /// The fingerprint of its response.
    pub(super) fingerprint: Option<Arc<ResponseFingerprint>>,
    /// True if only faults were rendered.
    pub(super) is_fault: bool,
    /// True if copies may be of a state at which no follower is.
    pub(super) is_stray: bool,
}

/// The changes to store.
#[derive(Debug)]
pub(super) struct LedgerBatch {
    pub(super) rows: Vec<UnstoredUrl>,
    pub(super) removed_urls: Vec<Arc<str>>,
    pub(super) scopes: FlushScopeRows,
    /// The journal file to empty after storing.
    pub(super) journal_file: usize,
}

/// The columns of a row: kind, URL, dependencies and fingerprint.
type LedgerRowColumns<'a> = (LedgerRowKind, &'a str, Vec<u8>, Option<Vec<u8>>);

/// The rows of one publisher.
pub(super) struct LedgerTable {
    pool: AnyPool,
    publisher: String,
    boot: String,
    begin_statement: &'static str,
}

impl LedgerTable {
    pub(super) fn new(pool: AnyPool, publisher: String, boot: String) -> Self {
        // A transaction of SQLite that begins with a read would fail at once if another one writes.
        let is_server = pool.connect_options().database_url.scheme().starts_with("postgres");
        let begin = if is_server { "BEGIN" } else { "BEGIN IMMEDIATE" };
        Self { pool, publisher, boot, begin_statement: begin }
    }

    /// Returns true if other publishers may use the database.
    pub(super) fn is_shared(&self) -> bool {
        self.begin_statement == "BEGIN"
    }

    /// Reads this publisher's rows and records that it is running.
    pub(super) async fn open(&self, now: SystemTime) -> LedgerResult<StoredLedger> {
        self.try_open(now).await.map_err(|source| LedgerError::Database { action: "open", source })
    }

    async fn try_open(&self, now: SystemTime) -> sqlx::Result<StoredLedger> {
        let mut transaction = self.pool.begin_with(self.begin_statement).await?;
        let sql = "SELECT boot, state, format, drawn_by FROM ledger_publisher WHERE publisher = $1";
        let query = sqlx::query(sql).bind(&self.publisher);
        let row = query.fetch_optional(&mut *transaction).await?;
        // Renderings before the first start with a ledger are unknown.
        let (mut is_whole, mut drawn_by) = (false, None);
        if let Some(row) = row {
            drawn_by = row.try_get(3)?;
            let (boot, left): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
            let format: i64 = row.try_get(2)?;
            is_whole =
                format == DEPENDENCY_FORMAT && (left != publisher_state::OPEN || boot == self.boot);
            if format != DEPENDENCY_FORMAT {
                // The contents of these rows are no longer valid; everything is flushed instead.
                sqlx::query("DELETE FROM ledger_url WHERE publisher = $1")
                    .bind(&self.publisher)
                    .execute(&mut *transaction)
                    .await?;
            }
        }
        let rows = read_publisher_rows(&mut transaction, &self.publisher).await?;
        let sql = "INSERT INTO ledger_publisher (publisher, boot, state, format, seen) \
                   VALUES ($1, $2, $3, $4, $5) ON CONFLICT (publisher) DO UPDATE SET \
                   boot = excluded.boot, state = excluded.state, format = excluded.format, seen = excluded.seen";
        sqlx::query(sql)
            .bind(&self.publisher)
            .bind(&self.boot)
            .bind(publisher_state::OPEN)
            .bind(DEPENDENCY_FORMAT)
            .bind(to_unix_millis(now))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(StoredLedger { rows, is_complete: is_whole, renderer_fingerprint: drawn_by })
    }

    /// Stores the fingerprint of everything besides content that affects renderings.
    pub(super) async fn set_renderer_fingerprint(&self, drawn_by: &str) -> LedgerResult<()> {
        let sql = "UPDATE ledger_publisher SET drawn_by = $1 WHERE publisher = $2";
        let done = sqlx::query(sql).bind(drawn_by).bind(&self.publisher).execute(&self.pool).await;
        done.map(drop).map_err(|source| LedgerError::Database { action: "open", source })
    }

    /// Stores a batch in one transaction; returns true if this publisher was considered alive. If not, its other rows
    /// are deleted, now or later; these stay.
    pub(super) async fn write_batch(&self, batch: &LedgerBatch) -> LedgerResult<bool> {
        self.try_write_batch(batch)
            .await
            .map_err(|source| LedgerError::Database { action: "write", source })
    }

    async fn try_write_batch(&self, batch: &LedgerBatch) -> sqlx::Result<bool> {
        let mut transaction = self.pool.begin_with(self.begin_statement).await?;
        // The publisher that has taken over deletes only what it took over.
        let sql = "UPDATE ledger_publisher SET state = $1 WHERE publisher = $2 AND state = $3";
        let back = sqlx::query(sql)
            .bind(publisher_state::OPEN)
            .bind(&self.publisher)
            .bind(publisher_state::TAKEN_OVER)
            .execute(&mut *transaction)
            .await?;
        let deletions = batch.removed_urls.iter().map(|url| (LedgerRowKind::Url, &**url));
        let deletions = deletions
            .chain(batch.scopes.deletions.iter().map(|url| (LedgerRowKind::Scope, &**url)));
        for (kind, url) in deletions {
            sqlx::query("DELETE FROM ledger_url WHERE publisher = $1 AND kind = $2 AND url = $3")
                .bind(&self.publisher)
                .bind(kind.code())
                .bind(url)
                .execute(&mut *transaction)
                .await?;
        }
        let rows = batch.rows.iter().map(|row| {
            let mut read =
                vec![(u8::from(row.is_fault) * FAULT_FLAG) | (u8::from(row.is_stray) * STRAY_FLAG)];
            read.extend(row.dependencies.to_bytes());
            (
                LedgerRowKind::Url,
                &*row.url,
                read,
                row.fingerprint.as_ref().map(|look| look.to_bytes()),
            )
        });
        let scopes = batch.scopes.upserts.iter().map(|(is_due, url)| {
            (LedgerRowKind::Scope, url.as_str(), vec![u8::from(*is_due) * STRAY_FLAG], None)
        });
        let rows: Vec<LedgerRowColumns<'_>> = rows.chain(scopes).collect();
        for rows in rows.chunks(ROWS_PER_STATEMENT) {
            self.insert_rows(&mut transaction, rows).await?;
        }
        transaction.commit().await?;
        Ok(back.rows_affected() == 0)
    }

    async fn insert_rows(
        &self,
        connection: &mut AnyConnection,
        rows: &[LedgerRowColumns<'_>],
    ) -> sqlx::Result<()> {
        let placeholders: Vec<String> = (0..rows.len())
            .map(|row| row * 4 + 2)
            .map(|at| format!("($1, ${at}, ${}, ${}, ${})", at + 1, at + 2, at + 3))
            .collect();
        let text = format!(
            "INSERT INTO ledger_url (publisher, kind, url, dependencies, look) VALUES {} \
             ON CONFLICT (publisher, kind, url) DO UPDATE SET \
             dependencies = excluded.dependencies, look = excluded.look",
            placeholders.join(", ")
        );
        // The text consists of parameter numbers.
        let mut query = sqlx::query(AssertSqlSafe(text)).bind(&self.publisher);
        for (kind, url, read, look) in rows {
            let look = look.as_deref();
            query = query.bind(kind.code()).bind(*url).bind(read.as_slice()).bind(look);
        }
        query.execute(connection).await.map(drop)
    }

    /// Sends a heartbeat; returns true if this publisher was still considered alive.
    pub(super) async fn send_heartbeat(&self, now: SystemTime) -> LedgerResult<bool> {
        let failed = |source| LedgerError::Database { action: "maintain", source };
        let sql = "UPDATE ledger_publisher SET seen = $1 WHERE publisher = $2 AND state = $3";
        let query = sqlx::query(sql)
            .bind(to_unix_millis(now))
            .bind(&self.publisher)
            .bind(publisher_state::OPEN);
        let done = query.execute(&self.pool).await.map_err(failed)?;
        if done.rows_affected() > 0 {
            return Ok(true);
        }
        let sql = "UPDATE ledger_publisher SET seen = $1, state = $3 WHERE publisher = $2";
        let query = sqlx::query(sql)
            .bind(to_unix_millis(now))
            .bind(&self.publisher)
            .bind(publisher_state::OPEN);
        query.execute(&self.pool).await.map_err(failed)?;
        Ok(false)
    }

    /// Returns the publishers without a heartbeat for longer than a duration.
    pub(super) async fn dead_publishers(
        &self,
        now: SystemTime,
        silence: Duration,
    ) -> LedgerResult<Vec<DeadPublisher>> {
        let sql = "SELECT publisher, state, seen, format FROM ledger_publisher \
                   WHERE seen < $1 AND publisher <> $2 AND (state <> $3 OR EXISTS \
                   (SELECT 1 FROM ledger_url WHERE ledger_url.publisher = ledger_publisher.publisher))";
        let since = to_unix_millis(now) - i64::try_from(silence.as_millis()).unwrap_or(i64::MAX);
        let query =
            sqlx::query(sql).bind(since).bind(&self.publisher).bind(publisher_state::TAKEN_OVER);
        let read = async {
            let rows = query.fetch_all(&self.pool).await?;
            let publishers = rows.iter().map(|row| {
                let (publisher, state) = (row.try_get(0)?, row.try_get(1)?);
                Ok(DeadPublisher {
                    publisher,
                    state,
                    last_seen: row.try_get(2)?,
                    format: row.try_get(3)?,
                })
            });
            publishers.collect::<sqlx::Result<Vec<DeadPublisher>>>()
        };
        read.await.map_err(|source| LedgerError::Database { action: "maintain", source })
    }

    /// Takes the rows of a dead publisher; `None` if another publisher was faster.
    pub(super) async fn take_over(
        &self,
        publisher: &mut DeadPublisher,
        now: SystemTime,
    ) -> LedgerResult<Option<StoredLedger>> {
        let result = self.try_take_over(publisher, now).await;
        result.map_err(|source| LedgerError::Database { action: "take over", source })
    }

    async fn try_take_over(
        &self,
        publisher: &mut DeadPublisher,
        now: SystemTime,
    ) -> sqlx::Result<Option<StoredLedger>> {
        let mut transaction = self.pool.begin_with(self.begin_statement).await?;
        let sql =
            "UPDATE ledger_publisher SET state = $1, seen = $2 WHERE publisher = $3 AND seen = $4";
        let done = sqlx::query(sql)
            .bind(publisher_state::TAKEN_OVER)
            .bind(to_unix_millis(now))
            .bind(&publisher.publisher)
            .bind(publisher.last_seen)
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        let rows = read_publisher_rows(&mut transaction, &publisher.publisher).await?;
        transaction.commit().await?;
        // The journal of a publisher that was killed lies on its own machine.
        let is_whole =
            publisher.state == publisher_state::CLOSED && publisher.format == DEPENDENCY_FORMAT;
        (publisher.state, publisher.last_seen) = (publisher_state::TAKEN_OVER, to_unix_millis(now));
        Ok(Some(StoredLedger { rows, is_complete: is_whole, renderer_fingerprint: None }))
    }

    /// Returns the publishers that have rows here, running or not, and those whose rows were taken over.
    pub(super) async fn publisher_names(&self) -> LedgerResult<[Vec<String>; 2]> {
        let failed = |source| LedgerError::Database { action: "read", source };
        let query = sqlx::query("SELECT publisher, state FROM ledger_publisher ORDER BY publisher");
        let rows = query.fetch_all(&self.pool).await.map_err(failed)?;
        let (mut here, mut retired_names) = (Vec::new(), Vec::new());
        for row in rows {
            let left: i64 = row.try_get(1).map_err(failed)?;
            let list =
                if left == publisher_state::TAKEN_OVER { &mut retired_names } else { &mut here };
            list.push(row.try_get(0).map_err(failed)?);
        }
        Ok([here, retired_names])
    }

    /// Deletes the rows of a publisher, as they are stored elsewhere, unless it is back: it considers them stored then.
    pub(super) async fn delete_publisher(&self, publisher: &DeadPublisher) -> LedgerResult<()> {
        let done = self.try_delete_publisher(publisher).await;
        done.map_err(|source| LedgerError::Database { action: "take over", source })
    }

    async fn try_delete_publisher(&self, publisher: &DeadPublisher) -> sqlx::Result<()> {
        let mut transaction = self.pool.begin_with(self.begin_statement).await?;
        // Changes no value, but locks the publisher's row until its rows are deleted.
        let sql = "UPDATE ledger_publisher SET seen = $1 \
                   WHERE publisher = $2 AND state = $3 AND seen = $1";
        let done = sqlx::query(sql)
            .bind(publisher.last_seen)
            .bind(&publisher.publisher)
            .bind(publisher.state)
            .execute(&mut *transaction)
            .await?;
        if done.rows_affected() > 0 {
            sqlx::query("DELETE FROM ledger_url WHERE publisher = $1")
                .bind(&publisher.publisher)
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await
    }

    /// Records that everything is stored.
    pub(super) async fn close(&self) -> LedgerResult<()> {
        let sql = "UPDATE ledger_publisher SET state = $1 WHERE publisher = $2";
        let done = sqlx::query(sql)
            .bind(publisher_state::CLOSED)
            .bind(&self.publisher)
            .execute(&self.pool)
            .await;
        done.map(drop).map_err(|source| LedgerError::Database { action: "close", source })
    }
}

impl fmt::Debug for LedgerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.publisher)
    }
}

/// Reads the rows of a publisher. If a set cannot be decoded, its URL depends on everything.
async fn read_publisher_rows(
    connection: &mut AnyConnection,
    publisher: &str,
) -> sqlx::Result<Vec<LedgerRow>> {
    let sql = "SELECT kind, url, dependencies, look FROM ledger_url WHERE publisher = $1";
    let rows = sqlx::query(sql).bind(publisher).fetch_all(connection).await?;
    let rows = rows.iter().map(|row| {
        let (kind, bytes): (i64, Vec<u8>) = (row.try_get(0)?, row.try_get(2)?);
        let kind = if kind == LedgerRowKind::Url.code() {
            LedgerRowKind::Url
        } else {
            LedgerRowKind::Scope
        };
        let (bits, read) = match bytes.split_first() {
            Some((bits, read)) => (*bits, DependencySet::from_bytes(read)),
            None => (STRAY_FLAG, None),
        };
        let (is_fault, is_stray) = (bits & FAULT_FLAG != 0, bits & STRAY_FLAG != 0);
        let read = read.unwrap_or_else(DependencySet::on_anything);
        let look: Option<Vec<u8>> = row.try_get(3)?;
        let look = look.and_then(|look| ResponseFingerprint::from_bytes(&look));
        Ok(LedgerRow {
            kind,
            url: row.try_get(1)?,
            dependencies: read,
            fingerprint: look,
            is_fault,
            is_stray,
        })
    });
    rows.collect()
}

fn to_unix_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::flush_scope::FlushScopes;

    const MINUTE: Duration = Duration::from_mins(1);

    async fn pool() -> AnyPool {
        sqlx::any::install_default_drivers();
        let options = sqlx::any::AnyPoolOptions::new().max_connections(1);
        let pool = options.connect("sqlite::memory:").await.unwrap();
        for step in MIGRATIONS {
            sqlx::raw_sql(*step).execute(&pool).await.unwrap();
        }
        pool
    }

    async fn count(table: &LedgerTable) -> usize {
        let mut connection = table.pool.acquire().await.unwrap();
        read_publisher_rows(&mut connection, &table.publisher).await.unwrap().len()
    }

    fn batch() -> LedgerBatch {
        let (read, look) = (Arc::new(DependencySet::on_anything()), None);
        let row = UnstoredUrl {
            url: "/a.html".into(),
            dependencies: read,
            fingerprint: look,
            is_fault: false,
            is_stray: false,
        };
        let scopes = FlushScopes::default().take_rows();
        LedgerBatch { rows: vec![row], removed_urls: Vec::new(), scopes, journal_file: 0 }
    }

    #[tokio::test]
    async fn rows_of_a_publisher_that_comes_back_while_it_is_taken_over_stay() {
        let pool = pool().await;
        let table = |name: &str| LedgerTable::new(pool.clone(), name.to_owned(), "boot".to_owned());
        let (taker, slow) = (table("taker"), table("slow"));
        let begin = SystemTime::UNIX_EPOCH + MINUTE;
        taker.open(begin).await.unwrap();
        let take = async |now| {
            let mut publisher = taker.dead_publishers(now, MINUTE).await.unwrap().pop().unwrap();
            assert_eq!(taker.take_over(&mut publisher, now).await.unwrap().unwrap().rows.len(), 1);
            publisher
        };
        slow.open(begin).await.unwrap();
        slow.write_batch(&batch()).await.unwrap();
        let publisher = take(begin + 2 * MINUTE).await;
        // It was not dead, and stores everything again.
        assert!(!slow.send_heartbeat(begin + 2 * MINUTE).await.unwrap());
        slow.write_batch(&batch()).await.unwrap();
        taker.delete_publisher(&publisher).await.unwrap();
        assert_eq!(count(&slow).await, 1);
        // It was dead and restarted: it has read its rows.
        let publisher = take(begin + 4 * MINUTE).await;
        assert_eq!(slow.open(begin + 4 * MINUTE).await.unwrap().rows.len(), 1);
        taker.delete_publisher(&publisher).await.unwrap();
        assert_eq!(count(&slow).await, 1);
        // It rendered something before it learned of the takeover.
        let publisher = take(begin + 6 * MINUTE).await;
        assert!(
            !slow.write_batch(&batch()).await.unwrap(),
            "its other rows have to be stored again"
        );
        taker.delete_publisher(&publisher).await.unwrap();
        assert_eq!(count(&slow).await, 1);
        assert!(slow.write_batch(&batch()).await.unwrap());
        let publisher = take(begin + 8 * MINUTE).await;
        taker.delete_publisher(&publisher).await.unwrap();
        assert_eq!(count(&slow).await, 0);
    }
}
