//! The state shared by the callers and the background tasks of a store: pools of connections, caches, counters.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection, Postgres};

use super::advisory_lock::AdvisoryLockKeys;
use super::database_error::{database_error, unresponsive_error};
use super::options::PostgresOptions;
use super::process::StoreProcess;
use super::ref_cache::RefCache;
use super::schema;
use crate::chunk_cache::{ChunkCache, new_chunk_cache};
use crate::error::{Error, Result};
use crate::layered::chunk_disk_cache::ChunkDiskCache;

/// The state shared by the callers and the background tasks of a store.
pub(super) struct PostgresStoreState {
    pub(super) options: PostgresOptions,
    pub(super) lock_keys: AdvisoryLockKeys,
    /// Connections for reads and commits.
    pub(super) main_pool: PgPool,
    /// Connections for work that must continue when the main pool is exhausted: the heartbeat, a collection, outcomes.
    pub(super) side_pool: PgPool,
    /// The connection options for the listener.
    pub(super) connect_options: PgConnectOptions,
    pub(super) process: StoreProcess,
    pub(super) ref_cache: RefCache,
    pub(super) cache: ChunkCache,
    pub(super) disk_cache: Option<ChunkDiskCache>,
    pub(super) write_failure: OnceLock<String>,
    pub(super) counters: AtomicPostgresCounters,
    last_loss: ConnectionLossTime,
}

/// The time when a connection was last lost. Connections opened before then are tested before use.
type ConnectionLossTime = Arc<Mutex<Option<Instant>>>;

#[derive(Debug, Default)]
pub(super) struct AtomicPostgresCounters {
    pub(super) busy_rejections: AtomicU64,
    pub(super) chunks_read: AtomicU64,
    pub(super) read_round_trips: AtomicU64,
    pub(super) outcome_lookups: AtomicU64,
    pub(super) waiting_calls: AtomicU64,
}

/// Counts a waiting call for as long as it waits.
struct WaitingCallGuard<'a>(&'a AtomicU64);

impl<'a> WaitingCallGuard<'a> {
    fn start_waiting(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for WaitingCallGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PostgresStoreState {
    /// Waits for the result of `statements` statements. A live server cancels each of them in time; if the server does
    /// not respond, returns [`unresponsive_error`].
    pub(super) async fn with_statement_timeout<T>(
        &self,
        statements: u32,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let PostgresOptions { statement_timeout, wait_timeout, .. } = self.options;
        if statement_timeout.is_zero() {
            return work.await;
        }
        let limit = statement_timeout.saturating_mul(statements).saturating_add(wait_timeout);
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(unresponsive_error()))
    }

    /// Acquires a connection for reads and commits.
    pub(super) async fn acquire_connection(&self) -> Result<PoolConnection<Postgres>> {
        let _waits = WaitingCallGuard::start_waiting(&self.counters.waiting_calls);
        self.main_pool.acquire().await.map_err(|source| {
            let used = self
                .main_pool
                .size()
                .saturating_sub(self.main_pool.num_idle().try_into().unwrap_or(0));
            if matches!(source, sqlx::Error::PoolTimedOut) && used >= self.options.max_connections {
                self.counters.busy_rejections.fetch_add(1, Ordering::Relaxed);
                let Self { options, .. } = self;
                return Error::ConnectionsBusy {
                    connection_limit: options.max_connections,
                    wait_time: options.wait_timeout,
                };
            }
            Error::Database { action: "cannot connect to the database", source }
        })
    }

    /// Closes a connection that failed, and marks the others to be tested before use.
    pub(super) fn discard_connection(&self, mut connection: PoolConnection<Postgres>) {
        connection.close_on_drop();
        *self.last_loss.lock() = Some(Instant::now());
    }

    pub(super) fn disable_writes(&self, reason: String) {
        tracing::error!(reason, "the store no longer accepts writes");
        // Only the first reason is stored.
        self.write_failure.get_or_init(|| reason);
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.write_failure.get() {
            Some(reason) => Err(Error::WriteDisabled { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

/// Connects to the database, and registers this process.
pub(super) async fn connect_store(
    options: PostgresOptions,
    connect: PgConnectOptions,
    near: Option<ChunkDiskCache>,
) -> Result<Arc<PostgresStoreState>> {
    let keys = AdvisoryLockKeys::for_schema(&options.schema);
    let failed = database_error("cannot connect to the database");
    let first =
        tokio::time::timeout(options.wait_timeout, PgConnection::connect_with(&connect)).await;
    let mut first = first.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(&failed)?;
    set_up_session(&mut first, &options).await.map_err(&failed)?;
    schema::migrate_schema(&mut first, &options.schema, keys).await?;
    let process = StoreProcess::register(&mut first, &options, keys).await?;
    // Other processes detect by this name that the process has connections.
    let connect = connect.application_name(&process.application_name(&options.schema));
    let losses = ConnectionLossTime::default();
    let main = pool_options(&options, options.max_connections, &losses)
        .connect_with(connect.clone())
        .await;
    let main = main.map_err(&failed)?;
    let side = pool_options(&options, PostgresOptions::EXTRA_CONNECTIONS - 1, &losses)
        .connect_lazy_with(connect.clone());
    first.close().await.ok();
    let cache = new_chunk_cache(options.cache_size);
    Ok(Arc::new(PostgresStoreState {
        lock_keys: keys,
        main_pool: main,
        side_pool: side,
        connect_options: connect,
        process,
        ref_cache: RefCache::default(),
        cache,
        disk_cache: near,
        write_failure: OnceLock::new(),
        counters: AtomicPostgresCounters::default(),
        last_loss: losses,
        options,
    }))
}

fn pool_options(
    options: &PostgresOptions,
    connections: u32,
    losses: &ConnectionLossTime,
) -> PgPoolOptions {
    let set = options.clone();
    let losses = Arc::clone(losses);
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(options.wait_timeout)
        .idle_timeout(options.idle_timeout)
        // A dead connection causes an error, after which the same work is retried on another one.
        .test_before_acquire(false)
        .before_acquire(move |connection, use_so_far| {
            let last = *losses.lock();
            let is_doubtful = last.is_some_and(|last| last.elapsed() < use_so_far.age);
            Box::pin(async move {
                // After an error here the pool closes this connection and takes another.
                if is_doubtful { connection.ping().await.map(|()| true) } else { Ok(true) }
            })
        })
        .after_connect(move |connection, _| {
            let set = set.clone();
            Box::pin(async move { set_up_session(connection, &set).await })
        })
}

/// Sets the parameters of every connection. They are not startup parameters, because connection poolers reject those.
async fn set_up_session(
    connection: &mut PgConnection,
    options: &PostgresOptions,
) -> sqlx::Result<()> {
    // A commit must survive a crash of the server, whatever the server's default. A transaction whose client disappears
    // silently would otherwise hold its locks for as long as the network connection exists.
    let set = "select set_config('search_path', $1, false), set_config('statement_timeout', $2, false), \
               set_config('idle_in_transaction_session_timeout', $2, false), set_config('lock_timeout', $3, false), \
               set_config('synchronous_commit', case current_setting('synchronous_commit') \
                 when 'off' then 'on' when 'local' then 'on' else current_setting('synchronous_commit') end, false)";
    let limit = options.statement_timeout.as_millis().to_string();
    let wait = options.wait_timeout.as_millis().to_string();
    sqlx::query(set)
        .bind(&options.schema)
        .bind(limit)
        .bind(wait)
        .execute(connection)
        .await
        .map(drop)
}
