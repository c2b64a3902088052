//! The store shared by several machines: chunks, small blobs, refs and leases in PostgreSQL.
//!
//! In: [`ChunkBatch`]es, each of which is one transaction. Out: verified chunks, from memory, from a folder on the
//! local disk, or by one round trip; and refs, which are cached in memory as long as the database sends notifications
//! of updates.
//!
//! Invariants
//! * A commit succeeds or fails, and the caller learns which: a lost connection is never the final result.
//! * Data that a process relies on is retained while the process sends heartbeats. If other processes declared it dead,
//!   it no longer writes.
//! * Chunks never change, so every cache of them stays valid forever; only refs are watched.
//!
//! On failure: a transaction that conflicted with another, or whose connection was lost before the end, is retried. An
//! exhausted pool returns [`Error::ConnectionsBusy`] after the configured wait time.
//!
//! Not here: jobs, logins and similar state (`state_database`). The tables are in `docs/formats/postgres.md`.

mod commit;
mod commit_outcome;
mod garbage_collection;
mod mark_set;
mod note;
mod options;
mod process;
mod ref_cache;
mod runtime_bridge;
mod schema;
mod store_query;

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres};

use crate::chunk::Chunk;
use crate::chunk_batch::ChunkBatch;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::error::{Error, Result};
use crate::garbage_collection::{
    GarbageCollectionOptions, GarbageCollectionProgress, GarbageCollectionReport,
};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::local::ChunkWeigher;
use crate::root_retention::{CollectionHold, RootLease, RootPin};

use crate::chunk_disk_cache::ChunkDiskCache;
pub use garbage_collection::PostgresCollection;
pub use options::{ChunkDiskCacheOptions, PostgresOptions};
use process::StoreProcess;
use ref_cache::RefCache;
use runtime_bridge::AsyncRuntimeBridge;

/// The maximum time for deregistering the process when the store is closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Chunks, small blobs and refs in a PostgreSQL database.
pub struct PostgresStore {
    state: Arc<PostgresStoreState>,
    bridge: AsyncRuntimeBridge,
}

/// Counters of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresCounters {
    /// Number of calls that found no free connection in time; a rise means that the pool is too small or the database
    /// too slow.
    pub busy_rejections: u64,
    /// Number of chunks read from the database; a steady rise means that the caches are too small.
    pub chunks_read: u64,
    /// Number of round trips for chunks.
    pub read_round_trips: u64,
    /// Number of commits whose outcome had to be queried; a rise means that the network or server fails.
    pub outcome_lookups: u64,
    /// Number of connections for reads and commits that are in use now.
    pub connections_in_use: u64,
    /// Number of connections that are open and idle now.
    pub idle_connections: u64,
    /// The maximum number of connections.
    pub connection_limit: u64,
    /// Number of calls that wait for a connection now.
    pub waiting_calls: u64,
}

/// The state shared by the callers and the background tasks of a store.
struct PostgresStoreState {
    options: PostgresOptions,
    lock_keys: AdvisoryLockKeys,
    /// Connections for reads and commits.
    main_pool: PgPool,
    /// Connections for work that must continue when the main pool is exhausted: the heartbeat, a collection, outcomes.
    side_pool: PgPool,
    /// The connection options for the listener.
    connect_options: PgConnectOptions,
    process: StoreProcess,
    ref_cache: RefCache,
    cache: Cache<ChunkId, Chunk, ChunkWeigher>,
    disk_cache: Option<ChunkDiskCache>,
    write_failure: OnceLock<String>,
    counters: AtomicPostgresCounters,
    last_loss: ConnectionLossTime,
}

/// The time when a connection was last lost. Connections opened before then are tested before use.
type ConnectionLossTime = Arc<Mutex<Option<Instant>>>;

#[derive(Debug, Default)]
struct AtomicPostgresCounters {
    busy_rejections: AtomicU64,
    chunks_read: AtomicU64,
    read_round_trips: AtomicU64,
    outcome_lookups: AtomicU64,
    waiting_calls: AtomicU64,
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

/// The numbers of the advisory locks of one repository; a database may hold several.
#[derive(Clone, Copy, Debug)]
struct AdvisoryLockKeys {
    /// Held while tables are created or migrated.
    migration: i64,
    /// Held while processes are counted.
    registry: i64,
    /// Held shared by writers until they commit; a collection holds it exclusively for the moment at which it takes
    /// effect.
    safe_point: i64,
    /// Held by the one collection that runs.
    collection: i64,
}

impl AdvisoryLockKeys {
    fn for_schema(schema: &str) -> Self {
        let key = |purpose: &str| {
            let hash = blake3::hash(format!("tympan {schema} {purpose}").as_bytes());
            hash.as_bytes().first_chunk::<8>().map_or(0, |head| i64::from_le_bytes(*head))
        };
        Self {
            migration: key("migration"),
            registry: key("registry"),
            safe_point: key("safepoint"),
            collection: key("collection"),
        }
    }

    /// Returns the statement that begins a transaction that writes chunks or relies on them.
    fn begin_write_statement(self) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("begin; select pg_advisory_xact_lock_shared({})", self.safe_point))
    }
}

impl PostgresStore {
    /// Connects to a database, creates missing tables, and registers this process.
    ///
    /// # Errors
    /// [`Error::DatabaseSettings`], [`Error::Database`] if the database cannot be reached within the configured wait
    /// time, [`Error::StateDatabaseNewer`] if a newer program has used it, [`Error::TooManyConnections`] if the server
    /// does not have enough connections for all processes.
    pub fn open(options: PostgresOptions) -> Result<Self> {
        let connect = options.connect_options()?;
        let bridge = AsyncRuntimeBridge::start_runtime()?;
        let near = options.disk_cache.as_ref().and_then(ChunkDiskCache::open);
        let shared = bridge.block_on(connect_store(options, connect, near))?;
        bridge.spawn_task(ref_cache::run_ref_listener(Arc::clone(&shared)));
        bridge.spawn_task(process::run_heartbeat(Arc::clone(&shared)));
        Ok(Self { state: shared, bridge })
    }

    /// Returns the counters since the store was opened.
    #[must_use]
    pub fn counters(&self) -> PostgresCounters {
        let PostgresStoreState { counters: counts, main_pool: main, options, .. } = &*self.state;
        let (size, idle) = (u64::from(main.size()), main.num_idle() as u64);
        PostgresCounters {
            connections_in_use: size.saturating_sub(idle),
            idle_connections: idle,
            connection_limit: u64::from(options.max_connections),
            waiting_calls: counts.waiting_calls.load(Ordering::Relaxed),
            busy_rejections: counts.busy_rejections.load(Ordering::Relaxed),
            chunks_read: counts.chunks_read.load(Ordering::Relaxed),
            read_round_trips: counts.read_round_trips.load(Ordering::Relaxed),
            outcome_lookups: counts.outcome_lookups.load(Ordering::Relaxed),
        }
    }

    /// Sends an empty request to check that the database responds.
    ///
    /// # Errors
    /// If the database does not respond.
    pub fn ping(&self) -> Result<()> {
        self.run_blocking(|shared| async move { shared.ping().await })
    }

    /// Returns the reason why the store accepts no more writes, or `None` if it accepts them.
    #[must_use]
    pub fn write_failure(&self) -> Option<&str> {
        self.state.write_failure.get().map(String::as_str)
    }

    /// Returns true if refs are read from memory, because the database sends notifications of updates.
    #[must_use]
    pub fn is_ref_cache_live(&self) -> bool {
        self.state.ref_cache.is_live()
    }

    fn run_blocking<T, F>(&self, work: impl FnOnce(Arc<PostgresStoreState>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.bridge.block_on(work(Arc::clone(&self.state)))
    }
}

async fn connect_store(
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
    let items = usize::try_from(options.cache_size.as_bytes() / 4_096).unwrap_or(usize::MAX);
    let cache = Cache::with_weighter(items.max(16), options.cache_size.as_bytes(), ChunkWeigher);
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

/// The error of a server that does not respond although the connection is open.
#[derive(Debug, thiserror::Error)]
#[error("the server does not respond")]
struct UnresponsiveServer;

/// Returns the error for an unresponsive server; the waiting caller treats the connection as lost.
fn unresponsive_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, UnresponsiveServer))
}

/// Returns true if a server did not respond, so that a retry would take as long.
fn is_unresponsive_error(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    error.get_ref().is_some_and(|inner| inner.is::<UnresponsiveServer>())
}

/// Returns a function that adds the failed action to a database error.
fn database_error(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

impl PostgresStoreState {
    /// Waits for the result of `statements` statements. A live server cancels each of them in time; if the server does
    /// not respond, returns [`unresponsive_error`].
    async fn with_statement_timeout<T>(
        &self,
        statements: u32,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let PostgresOptions { statement_timeout, wait_timeout: wait, .. } = self.options;
        if statement_timeout.is_zero() {
            return work.await;
        }
        let limit = statement_timeout.saturating_mul(statements).saturating_add(wait);
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(unresponsive_error()))
    }

    /// Acquires a connection for reads and commits.
    async fn acquire_connection(&self) -> Result<PoolConnection<Postgres>> {
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
    fn discard_connection(&self, mut connection: PoolConnection<Postgres>) {
        connection.close_on_drop();
        *self.last_loss.lock() = Some(Instant::now());
    }

    fn disable_writes(&self, reason: String) {
        tracing::error!(reason, "the store no longer accepts writes");
        // Only the first reason is stored.
        self.write_failure.get_or_init(|| reason);
    }

    fn check_writable(&self) -> Result<()> {
        match self.write_failure.get() {
            Some(reason) => Err(Error::WriteDisabled { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

impl ReadChunks for PostgresStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.state.cache.get(id) {
            return Ok(chunk);
        }
        let mut chunks = self.read_chunks(std::slice::from_ref(id))?;
        chunks.pop().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let cached_chunks: Vec<Option<Chunk>> =
            ids.iter().map(|id| self.state.find_cached_chunk(id)).collect();
        if cached_chunks.iter().all(Option::is_some) {
            return Ok(cached_chunks.into_iter().flatten().collect());
        }
        let pairs = ids.iter().copied().zip(cached_chunks).collect();
        self.run_blocking(|shared| async move { shared.load_missing_chunks(pairs).await })
    }

    fn has_costly_round_trips(&self) -> bool {
        true
    }
}

impl ChunkStore for PostgresStore {
    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<[u8; 32]> = ids.iter().map(|id| *id.as_bytes()).collect();
        self.run_blocking(|shared| async move {
            shared.contains_hashes(store_query::HashKind::Chunk, hashes).await
        })
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let id = *id;
        self.run_blocking(|shared| async move { shared.load_blob(&id).await })
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        let hash = *id.digest();
        let presence = self.run_blocking(|shared| async move {
            shared.contains_hashes(store_query::HashKind::Blob, vec![hash]).await
        })?;
        Ok(presence == [true])
    }

    fn commit(&self, batch: ChunkBatch) -> Result<()> {
        self.state.check_writable()?;
        let prepared = commit::PreparedBatch::new(batch)?;
        self.run_blocking(|shared| shared.commit_batch(prepared))
    }

    fn sync(&self) -> Result<()> {
        // Every commit is durable when it returns, because the server may crash independently of this process.
        self.state.check_writable()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        if let Some(root) = self.state.ref_cache.find_ref(name) {
            return Ok(root);
        }
        let name = name.to_owned();
        self.run_blocking(|shared| async move { shared.load_ref(&name).await })
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        if let Some(all) = self.state.ref_cache.all_refs() {
            return Ok(all);
        }
        self.run_blocking(|shared| async move { shared.load_refs().await })
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        let name = name.to_owned();
        self.run_blocking(|shared| async move { shared.load_history(&name, before, limit).await })
    }

    fn list_leases(&self) -> Result<Vec<RootLease>> {
        self.run_blocking(|shared| async move { shared.load_leases().await })
    }

    fn pin_root(&self, root: ChunkId) -> RootPin {
        self.state.process.pins.pin_root(root)
    }

    fn begin_hold(&self) -> Result<CollectionHold> {
        self.state.check_writable()?;
        let hold = self.run_blocking(PostgresStoreState::begin_hold)?;
        Ok(CollectionHold::new(hold))
    }

    fn collect_garbage(
        &self,
        options: &GarbageCollectionOptions,
        pace: &mut dyn FnMut(&GarbageCollectionProgress) -> ControlFlow<()>,
    ) -> Result<GarbageCollectionReport> {
        self.begin_collection(options)?.run_to_end(pace)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.state);
        let goodbye = async move { shared.deregister_process().await };
        self.bridge.shut_down(goodbye, SHUTDOWN_TIMEOUT);
        // The tasks that share the cache may end a little later.
        if let Some(near) = &self.state.disk_cache {
            near.close();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.state.options)
            .finish_non_exhaustive()
    }
}

/// Converts a time to the format of the tables: microseconds since 1970.
fn time_to_micros(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

fn time_from_micros(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Reads a hash from a column.
fn hash_from_column(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| Error::FileMalformed {
        file: "database".to_owned(),
        fault: "the length of a hash is not 32 bytes",
    })
}
