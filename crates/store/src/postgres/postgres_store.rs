//! A store on PostgreSQL: opening, closing, counters.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::options::PostgresOptions;
use super::runtime_bridge::AsyncRuntimeBridge;
use super::store_state::{PostgresStoreState, connect_store};
use super::{heartbeat, ref_listener};
use crate::error::Result;
use crate::layered::chunk_disk_cache::ChunkDiskCache;

/// The maximum time for deregistering the process when the store is closed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Chunks, small blobs and refs in a PostgreSQL database.
pub struct PostgresStore {
    pub(super) state: Arc<PostgresStoreState>,
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

impl PostgresStore {
    /// Connects to a database, creates missing tables, and registers this process.
    ///
    /// # Errors
    /// [`Error::DatabaseSettings`](crate::Error::DatabaseSettings), [`Error::Database`](crate::Error::Database) if the
    /// database cannot be reached within the configured wait time,
    /// [`Error::StateDatabaseNewer`](crate::Error::StateDatabaseNewer) if a newer program has used it,
    /// [`Error::TooManyConnections`](crate::Error::TooManyConnections) if the server does not have enough connections
    /// for all processes.
    pub fn open(options: PostgresOptions) -> Result<Self> {
        let connect = options.connect_options()?;
        let bridge = AsyncRuntimeBridge::start_runtime()?;
        let near = options.disk_cache.as_ref().and_then(ChunkDiskCache::open);
        let shared = bridge.block_on(connect_store(options, connect, near))?;
        bridge.spawn_task(ref_listener::run_ref_listener(Arc::clone(&shared)));
        bridge.spawn_task(heartbeat::run_heartbeat(Arc::clone(&shared)));
        Ok(Self { state: shared, bridge })
    }

    /// Returns the counters since the store was opened.
    #[must_use]
    pub fn counters(&self) -> PostgresCounters {
        let PostgresStoreState { counters, main_pool, options, .. } = &*self.state;
        let (size, idle) = (u64::from(main_pool.size()), main_pool.num_idle() as u64);
        PostgresCounters {
            connections_in_use: size.saturating_sub(idle),
            idle_connections: idle,
            connection_limit: u64::from(options.max_connections),
            waiting_calls: counters.waiting_calls.load(Ordering::Relaxed),
            busy_rejections: counters.busy_rejections.load(Ordering::Relaxed),
            chunks_read: counters.chunks_read.load(Ordering::Relaxed),
            read_round_trips: counters.read_round_trips.load(Ordering::Relaxed),
            outcome_lookups: counters.outcome_lookups.load(Ordering::Relaxed),
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

    pub(super) fn run_blocking<T, F>(
        &self,
        work: impl FnOnce(Arc<PostgresStoreState>) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.bridge.block_on(work(Arc::clone(&self.state)))
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
