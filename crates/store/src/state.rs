//! Small mutable state in SQL: jobs, logins, ledgers, audit. One schema and one query text for SQLite and PostgreSQL.
//!
//! In: the file `state.db` of a home, or the URL of a database.
//! Out: a pool of connections; each room owns its tables and brings its migrations.
//!
//! Invariants
//! * A transaction that was committed survives a power cut: `synchronous` is `FULL`.
//! * A migration step is applied once, in order, and never half.
//!
//! Query texts use what both dialects take: `$1` placeholders, columns of `BIGINT` and `TEXT`, `ON CONFLICT`.
//!
//! Not here: any table but `migration`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyPool, Executor, Row, Transaction};

use crate::error::{Error, Result};

/// Readers of a WAL do not wait for each other or for the writer; more connections would only wait for the processor.
const SQLITE_CONNECTIONS: u32 = 4;
/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(10);

/// The database of small mutable state.
#[derive(Clone, Debug)]
pub struct State {
    pool: AnyPool,
    begin: &'static str,
}

impl State {
    /// Opens a SQLite file, creating it if it is missing.
    ///
    /// # Errors
    /// [`Error::State`] if it cannot be opened or is not a SQLite file.
    pub async fn open(file: &Path) -> Result<Self> {
        let url = format!("sqlite://{}?mode=rwc", escaped(file));
        let action = format!("cannot open `{}`", file.display());
        // Made here, as the engine would let others on the machine read what it holds about logins. Files beside it
        // get the same mode.
        let made = OpenOptions::new().append(true).create(true).mode(0o600).open(file);
        made.map_err(|source| failed(&action)(source.into()))?;
        Self::connect_sqlite(&url, SQLITE_CONNECTIONS, action).await
    }

    /// Opens an empty database in memory, gone when the last clone is dropped.
    ///
    /// # Errors
    /// [`Error::State`]; none that SQLite documents.
    pub async fn memory() -> Result<Self> {
        // Each connection would be a database of its own.
        let action = "cannot open a database in memory".to_owned();
        Self::connect_sqlite("sqlite::memory:", 1, action).await
    }

    /// Connects to a database server.
    ///
    /// # Errors
    /// [`Error::State`] if it cannot be reached, or speaks a protocol that this program does not.
    pub async fn connect(url: &str) -> Result<Self> {
        install_drivers();
        // The URL may hold a password, so that no message names it.
        let pool = AnyPoolOptions::new().connect(url).await;
        Ok(Self { pool: pool.map_err(failed("cannot connect to the database"))?, begin: "BEGIN" })
    }

    async fn connect_sqlite(url: &str, connections: u32, action: String) -> Result<Self> {
        install_drivers();
        let pragmas = format!(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; \
             PRAGMA busy_timeout = {};",
            BUSY.as_millis()
        );
        let pool = AnyPoolOptions::new()
            .max_connections(connections)
            // A database in memory lives as long as its connection.
            .min_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .after_connect(move |connection, _| {
                let pragmas = pragmas.clone();
                Box::pin(async move {
                    let set = sqlx::raw_sql(sqlx::AssertSqlSafe(pragmas));
                    connection.execute(set).await.map(drop)
                })
            })
            .connect(url)
            .await;
        Ok(Self {
            pool: pool.map_err(failed(&action))?,
            // A transaction that begins by reading and then writes would fail at once when another one writes,
            // instead of waiting for it.
            begin: "BEGIN IMMEDIATE",
        })
    }

    /// Returns the pool, for single statements.
    #[must_use]
    pub fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Begins a transaction that will write.
    ///
    /// # Errors
    /// [`Error::State`]; transient if another writer takes too long.
    pub async fn begin(&self) -> Result<Transaction<'static, sqlx::Any>> {
        let transaction = self.pool.begin_with(self.begin).await;
        transaction.map_err(failed("cannot begin a transaction"))
    }

    /// Brings the tables of a room up to date: applies the steps that the database has not seen, in one transaction.
    ///
    /// Steps are only ever appended to; a step that has been released never changes.
    ///
    /// # Errors
    /// [`Error::StateNewer`] if a newer program has been at work, [`Error::State`] if a step fails: none is applied then.
    pub async fn migrate(&self, room: &str, steps: &[&'static str]) -> Result<()> {
        let action = format!("cannot bring the tables of `{room}` up to date");
        let failed = |source| Error::State { action: action.clone(), source };
        let mut transaction = self.begin().await?;
        transaction
            .execute(
                "CREATE TABLE IF NOT EXISTS migration \
                 (room TEXT NOT NULL, step BIGINT NOT NULL, PRIMARY KEY (room, step))",
            )
            .await
            .map_err(failed)?;
        let row = sqlx::query("SELECT COUNT(*) FROM migration WHERE room = $1")
            .bind(room)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failed)?;
        let done: i64 = row.try_get(0).map_err(failed)?;
        let done = usize::try_from(done).unwrap_or(usize::MAX);
        if done > steps.len() {
            return Err(Error::StateNewer {
                room: room.to_owned(),
                found: done,
                known: steps.len(),
            });
        }
        for (number, step) in steps.iter().enumerate().skip(done) {
            let run = transaction.execute(sqlx::raw_sql(*step)).await;
            run.map_err(failed)?;
            sqlx::query("INSERT INTO migration (room, step) VALUES ($1, $2)")
                .bind(room)
                .bind(i64::try_from(number + 1).unwrap_or(i64::MAX))
                .execute(&mut *transaction)
                .await
                .map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)
    }

    /// Closes all connections, so that the write-ahead log is folded into the file.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

fn failed(action: &str) -> impl Fn(sqlx::Error) -> Error + '_ {
    move |source| Error::State { action: action.to_owned(), source }
}

fn install_drivers() {
    static ONCE: Once = Once::new();
    ONCE.call_once(sqlx::any::install_default_drivers);
}

/// Escapes the characters of a path that mean something in a URL.
fn escaped(file: &Path) -> String {
    let mut url = String::new();
    for byte in file.to_string_lossy().chars() {
        match byte {
            '%' | '?' | '#' | ' ' | '"' | '<' | '>' | '`' | '{' | '}' => {
                url.push_str(&format!("%{:02X}", u32::from(byte)));
            }
            other => url.push(other),
        }
    }
    url
}
