//! The store that several machines share: chunks, small blobs, refs and leases in PostgreSQL.
//!
//! In: [`Batch`]es, each of which is one transaction. Out: verified chunks, from memory, from a folder beside the
//! process, or by one round trip; and refs, which are kept in memory as long as the database says when they move.
//!
//! Invariants
//! * A commit is done or not done, and the caller learns which: a lost connection is no answer.
//! * What a process relies on stays while it says that it lives; if others took it for dead, it writes no more.
//! * Chunks never change, so that every cache of them is right forever; only refs are watched.
//!
//! On failure: what met another transaction, or a connection that was lost before the end, is tried again. A pool that
//! is used up answers [`Error::Busy`] after the configured wait.
//!
//! Not here: jobs, logins and the like (`state`). The tables are in `docs/formats/postgres.md`.

mod bridge;
mod collect;
mod commit;
mod follow;
mod notes;
mod options;
mod outcome;
mod process;
mod read;
mod schema;
mod walk;

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

use crate::batch::Batch;
use crate::chunk::Chunk;
use crate::chunk_store::{ChunkStore, ReadChunks};
use crate::collect::{CollectOptions, Collected, Progress};
use crate::error::{Error, Result};
use crate::history::Revision;
use crate::id::{BlobId, ChunkId};
use crate::keep::{Hold, Lease, Pin};
use crate::local::ChunkBytes;

use crate::near::Near;
use bridge::Bridge;
pub use collect::PostgresCollection;
use follow::Followed;
pub use options::{NearCache, PostgresOptions};
use process::Process;

/// How long the end of a store may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// Chunks, small blobs and refs in a PostgreSQL database.
pub struct PostgresStore {
    shared: Arc<Shared>,
    bridge: Bridge,
}

/// What a store has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresCounters {
    /// Calls that found no free connection in time; a rise means that the pool is too small or the database too slow.
    pub busy: u64,
    /// Chunks that were read from the database; a steady rise means that the caches are too small.
    pub chunks_read: u64,
    /// Round trips for chunks.
    pub reads: u64,
    /// Commits of which the outcome had to be found out; a rise means a network or server that fails.
    pub outcomes: u64,
    /// Connections for reads and commits that are taken now.
    pub in_use: u64,
    /// Connections that are open and free now.
    pub idle: u64,
    /// Connections that there may be.
    pub limit: u64,
    /// Calls that wait for a connection now.
    pub waiting: u64,
}

/// What the caller's side and the tasks of a store share.
struct Shared {
    options: PostgresOptions,
    keys: Keys,
    /// Connections for reads and commits.
    main: PgPool,
    /// Connections for what must go on when those are used up: the heartbeat, a collection, outcomes.
    side: PgPool,
    /// How to connect, for the one that listens.
    connect: PgConnectOptions,
    process: Process,
    refs: Followed,
    cache: Cache<ChunkId, Chunk, ChunkBytes>,
    near: Option<Near>,
    poison: OnceLock<String>,
    counts: Counts,
    losses: Losses,
}

/// When a connection was lost last: those of before are tried before they are used.
type Losses = Arc<Mutex<Option<Instant>>>;

#[derive(Debug, Default)]
struct Counts {
    busy: AtomicU64,
    chunks_read: AtomicU64,
    reads: AtomicU64,
    outcomes: AtomicU64,
    waiting: AtomicU64,
}

/// Counts one that waits, for as long as it does.
struct Waits<'a>(&'a AtomicU64);

impl<'a> Waits<'a> {
    fn enter(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers of the advisory locks of one repository; a database may hold several.
#[derive(Clone, Copy, Debug)]
struct Keys {
    /// Held while tables are made.
    migration: i64,
    /// Held while processes are counted.
    registry: i64,
    /// Shared by writers until they commit; a collection takes it alone for the moment at which it takes effect.
    safepoint: i64,
    /// Held by the one collection that runs.
    collection: i64,
}

impl Keys {
    fn of(schema: &str) -> Self {
        let key = |purpose: &str| {
            let hash = blake3::hash(format!("tympan {schema} {purpose}").as_bytes());
            hash.as_bytes().first_chunk::<8>().map_or(0, |head| i64::from_le_bytes(*head))
        };
        Self {
            migration: key("migration"),
            registry: key("registry"),
            safepoint: key("safepoint"),
            collection: key("collection"),
        }
    }

    /// The beginning of a transaction that writes chunks or relies on them.
    fn begin_writing(self) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("begin; select pg_advisory_xact_lock_shared({})", self.safepoint))
    }
}

impl PostgresStore {
    /// Connects to a database, makes the tables that are missing, and registers this process.
    ///
    /// # Errors
    /// [`Error::DatabaseSettings`], [`Error::Database`] if it cannot be reached within the configured wait,
    /// [`Error::StateNewer`] if a newer program has been at work, [`Error::TooManyConnections`] if the server has not
    /// enough of them for all processes.
    pub fn open(options: PostgresOptions) -> Result<Self> {
        let connect = options.connect()?;
        let bridge = Bridge::start()?;
        let near = options.near.as_ref().and_then(Near::open);
        let shared = bridge.wait(connect_all(options, connect, near))?;
        bridge.spawn(follow::run(Arc::clone(&shared)));
        bridge.spawn(process::run(Arc::clone(&shared)));
        Ok(Self { shared, bridge })
    }

    /// Returns what has been counted since the store was opened.
    #[must_use]
    pub fn counters(&self) -> PostgresCounters {
        let Shared { counts, main, options, .. } = &*self.shared;
        let (size, idle) = (u64::from(main.size()), main.num_idle() as u64);
        PostgresCounters {
            in_use: size.saturating_sub(idle),
            idle,
            limit: u64::from(options.max_connections),
            waiting: counts.waiting.load(Ordering::Relaxed),
            busy: counts.busy.load(Ordering::Relaxed),
            chunks_read: counts.chunks_read.load(Ordering::Relaxed),
            reads: counts.reads.load(Ordering::Relaxed),
            outcomes: counts.outcomes.load(Ordering::Relaxed),
        }
    }

    /// Asks the database for nothing, to see whether it answers.
    ///
    /// # Errors
    /// If it does not.
    pub fn ping(&self) -> Result<()> {
        self.run(|shared| async move { shared.ping().await })
    }

    /// Returns why the store accepts no more writes, if so.
    #[must_use]
    pub fn poisoned(&self) -> Option<&str> {
        self.shared.poison.get().map(String::as_str)
    }

    /// Tells whether refs are read from memory, because the database says when they move.
    #[must_use]
    pub fn is_following(&self) -> bool {
        self.shared.refs.is_live()
    }

    fn run<T, F>(&self, work: impl FnOnce(Arc<Shared>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.bridge.wait(work(Arc::clone(&self.shared)))
    }
}

async fn connect_all(
    options: PostgresOptions,
    connect: PgConnectOptions,
    near: Option<Near>,
) -> Result<Arc<Shared>> {
    let keys = Keys::of(&options.schema);
    let failed = failed("cannot connect to the database");
    let first = tokio::time::timeout(options.wait, PgConnection::connect_with(&connect)).await;
    let mut first = first.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(&failed)?;
    set_up(&mut first, &options).await.map_err(&failed)?;
    schema::migrate(&mut first, &options.schema, keys).await?;
    let process = Process::register(&mut first, &options, keys).await?;
    // By this name others see that the process has connections.
    let connect = connect.application_name(&process.application_name(&options.schema));
    let losses = Losses::default();
    let main = pool(&options, options.max_connections, &losses).connect_with(connect.clone()).await;
    let main = main.map_err(&failed)?;
    let side =
        pool(&options, PostgresOptions::BESIDE - 1, &losses).connect_lazy_with(connect.clone());
    first.close().await.ok();
    let items = usize::try_from(options.cache.as_bytes() / 4_096).unwrap_or(usize::MAX);
    let cache = Cache::with_weighter(items.max(16), options.cache.as_bytes(), ChunkBytes);
    Ok(Arc::new(Shared {
        keys,
        main,
        side,
        connect,
        process,
        refs: Followed::default(),
        cache,
        near,
        poison: OnceLock::new(),
        counts: Counts::default(),
        losses,
        options,
    }))
}

fn pool(options: &PostgresOptions, connections: u32, losses: &Losses) -> PgPoolOptions {
    let set = options.clone();
    let losses = Arc::clone(losses);
    PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(options.wait)
        .idle_timeout(options.idle)
        // A dead connection shows itself by an error, after which the same work is tried with another one.
        .test_before_acquire(false)
        .before_acquire(move |connection, use_so_far| {
            let last = *losses.lock();
            let is_doubtful = last.is_some_and(|last| last.elapsed() < use_so_far.age);
            Box::pin(async move {
                // A fault here has the pool close this connection and take another.
                if is_doubtful { connection.ping().await.map(|()| true) } else { Ok(true) }
            })
        })
        .after_connect(move |connection, _| {
            let set = set.clone();
            Box::pin(async move { set_up(connection, &set).await })
        })
}

/// Sets what every connection works with. Not as startup parameters, which poolers between refuse.
async fn set_up(connection: &mut PgConnection, options: &PostgresOptions) -> sqlx::Result<()> {
    // A commit must outlive the server, whatever its default. A transaction whose client is gone without a word would
    // otherwise keep its locks for as long as the network does.
    let set = "select set_config('search_path', $1, false), set_config('statement_timeout', $2, false), \
               set_config('idle_in_transaction_session_timeout', $2, false), set_config('lock_timeout', $3, false), \
               set_config('synchronous_commit', case current_setting('synchronous_commit') \
                 when 'off' then 'on' when 'local' then 'on' else current_setting('synchronous_commit') end, false)";
    let limit = options.statement_timeout.as_millis().to_string();
    let wait = options.wait.as_millis().to_string();
    sqlx::query(set)
        .bind(&options.schema)
        .bind(limit)
        .bind(wait)
        .execute(connection)
        .await
        .map(drop)
}

/// A server that says nothing, though the connection to it stands.
#[derive(Debug, thiserror::Error)]
#[error("the server does not answer")]
struct Silence;

/// The error of such a server: to whoever waits, the connection is lost.
fn silence() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, Silence))
}

/// Tells whether a server said nothing, so that trying again would take as long.
fn is_silence(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    error.get_ref().is_some_and(|inner| inner.is::<Silence>())
}

/// Says what was tried when it fails.
fn failed(action: &'static str) -> impl Fn(sqlx::Error) -> Error {
    move |source| Error::Database { action, source }
}

impl Shared {
    /// Waits for `statements` of a server, which breaks each of them off in time if it lives; without an answer from one
    /// that does not, [`silence`] is the error.
    async fn within<T>(
        &self,
        statements: u32,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let PostgresOptions { statement_timeout, wait, .. } = self.options;
        if statement_timeout.is_zero() {
            return work.await;
        }
        let limit = statement_timeout.saturating_mul(statements).saturating_add(wait);
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(silence()))
    }

    /// Takes a connection for reads and commits.
    async fn connection(&self) -> Result<PoolConnection<Postgres>> {
        let _waits = Waits::enter(&self.counts.waiting);
        self.main.acquire().await.map_err(|source| {
            let used =
                self.main.size().saturating_sub(self.main.num_idle().try_into().unwrap_or(0));
            if matches!(source, sqlx::Error::PoolTimedOut) && used >= self.options.max_connections {
                self.counts.busy.fetch_add(1, Ordering::Relaxed);
                let Self { options, .. } = self;
                return Error::Busy { connections: options.max_connections, waited: options.wait };
            }
            Error::Database { action: "cannot connect to the database", source }
        })
    }

    /// Gives up a connection that failed, and doubts the others.
    fn lose(&self, mut connection: PoolConnection<Postgres>) {
        connection.close_on_drop();
        *self.losses.lock() = Some(Instant::now());
    }

    fn poison(&self, reason: String) {
        tracing::error!(reason, "the store accepts no more writes");
        // The first reason is the one that counts.
        self.poison.get_or_init(|| reason);
    }

    fn check_open(&self) -> Result<()> {
        match self.poison.get() {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

impl ReadChunks for PostgresStore {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        if let Some(chunk) = self.shared.cache.get(id) {
            return Ok(chunk);
        }
        let mut chunks = self.read_many(std::slice::from_ref(id))?;
        chunks.pop().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let found: Vec<Option<Chunk>> = ids.iter().map(|id| self.shared.find_at_hand(id)).collect();
        if found.iter().all(Option::is_some) {
            return Ok(found.into_iter().flatten().collect());
        }
        let pairs = ids.iter().copied().zip(found).collect();
        self.run(|shared| async move { shared.fill(pairs).await })
    }

    fn has_costly_round_trips(&self) -> bool {
        true
    }
}

impl ChunkStore for PostgresStore {
    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let hashes: Vec<[u8; 32]> = ids.iter().map(|id| *id.as_bytes()).collect();
        self.run(|shared| async move { shared.contains(read::Kind::Chunk, hashes).await })
    }

    fn read_blob(&self, id: &BlobId) -> Result<Option<Bytes>> {
        let id = *id;
        self.run(|shared| async move { shared.load_blob(&id).await })
    }

    fn contains_blob(&self, id: &BlobId) -> Result<bool> {
        let hash = *id.digest();
        let found =
            self.run(|shared| async move { shared.contains(read::Kind::Blob, vec![hash]).await })?;
        Ok(found == [true])
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        self.shared.check_open()?;
        let prepared = commit::Prepared::new(batch)?;
        self.run(|shared| shared.commit(prepared))
    }

    fn flush(&self) -> Result<()> {
        // Every commit is durable when it returns, as the server may fall without this process.
        self.shared.check_open()
    }

    fn read_ref(&self, name: &str) -> Result<Option<ChunkId>> {
        if let Some(known) = self.shared.refs.find(name) {
            return Ok(known);
        }
        let name = name.to_owned();
        self.run(|shared| async move { shared.load_ref(&name).await })
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        if let Some(all) = self.shared.refs.all() {
            return Ok(all);
        }
        self.run(|shared| async move { shared.load_refs().await })
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        let name = name.to_owned();
        self.run(|shared| async move { shared.load_history(&name, before, limit).await })
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.run(|shared| async move { shared.load_leases().await })
    }

    fn pin(&self, root: ChunkId) -> Pin {
        self.shared.process.pins.pin(root)
    }

    fn hold(&self) -> Result<Hold> {
        self.shared.check_open()?;
        let held = self.run(Shared::begin_hold)?;
        Ok(Hold::new(held))
    }

    fn collect(
        &self,
        options: &CollectOptions,
        pace: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Collected> {
        self.begin_collection(options)?.run(pace)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let goodbye = async move { shared.leave().await };
        self.bridge.stop(goodbye, GOODBYE);
        // The tasks that share it may end a little later.
        if let Some(near) = &self.shared.near {
            near.close();
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// A time as the tables have it: microseconds since 1970.
fn to_micros(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_micros()).unwrap_or(i64::MAX),
    }
}

fn from_micros(micros: i64) -> SystemTime {
    let distance = Duration::from_micros(micros.unsigned_abs());
    let time = if micros < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    };
    time.unwrap_or(UNIX_EPOCH)
}

/// Reads a hash from a column.
fn hash_of(bytes: &[u8]) -> Result<[u8; 32]> {
    bytes.try_into().map_err(|_| Error::FileMalformed {
        file: "database".to_owned(),
        fault: "a hash has another length than 32 bytes",
    })
}
