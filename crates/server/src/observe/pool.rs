//! The pools of an instance: current use, waiting requests, and waits that timed out.
//!
//! In: a function for each external pool, such as database connections. Out: gauges and counters in one format for all
//! pools, to show which pool is too small.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tympan_web::listen::ListenerCounters;

/// The state of a pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolState {
    /// Name of the pool: `work`, `pictures`, `connections`, `state`, `store` (the repository's database),
    /// `back-end-orders`.
    pub name: String,
    /// Number of slots in use.
    pub in_use: u64,
    /// Number of free slots that are ready; slots that would have to be created are not counted.
    pub idle: u64,
    /// Maximum number of slots.
    pub limit: u64,
    /// Number of waiters.
    pub waiting: u64,
    /// Number of waits that timed out since the start.
    pub timeouts: u64,
    /// Number of requests refused immediately because too many were waiting, since the start.
    pub refused: u64,
}

impl PoolState {
    /// Returns the state of the connections of a listener, of which at most `limit` are open.
    pub fn of_connections(counters: &ListenerCounters, limit: u64) -> Self {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Self {
            name: CONNECTION_POOL_NAME.to_owned(),
            in_use: read(&counters.open),
            idle: 0,
            limit,
            waiting: read(&counters.waiting),
            timeouts: read(&counters.wait_timed_out),
            refused: read(&counters.refused),
        }
    }

    /// Returns the state of a pool of database connections.
    pub fn of_database(name: &str, pool: &sqlx::AnyPool) -> Self {
        let (size, idle) = (u64::from(pool.size()), pool.num_idle() as u64);
        Self {
            name: name.to_owned(),
            in_use: size.saturating_sub(idle),
            idle,
            limit: u64::from(pool.options().get_max_connections()),
            ..Self::default()
        }
    }
}

type PoolStateSource = Box<dyn Fn() -> Vec<PoolState> + Send + Sync>;

/// The name of the pool of open connections.
const CONNECTION_POOL_NAME: &str = "connections";

/// The pools outside this crate.
#[derive(Default)]
pub(crate) struct ExternalPools(Mutex<Vec<PoolStateSource>>);

impl ExternalPools {
    pub(crate) fn add(&self, source: PoolStateSource) {
        self.0.lock().push(source);
    }

    /// Returns the states of all pools.
    pub(super) fn states(&self) -> Vec<PoolState> {
        self.0.lock().iter().flat_map(|source| source()).collect()
    }
}

impl fmt::Debug for ExternalPools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pools")
    }
}

/// A semaphore with a bounded FIFO queue.
#[derive(Debug)]
pub(crate) struct AdmissionGate {
    permits: Arc<tokio::sync::Semaphore>,
    limit: usize,
    max_waiting: usize,
    waiting: AtomicU64,
    timeouts: AtomicU64,
    refused: AtomicU64,
}

/// The reason why no permit was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionRefusal {
    /// Too many requests are waiting.
    QueueFull,
    /// No permit became free in time.
    TimedOut,
}

impl AdmissionGate {
    pub(crate) fn new(limit: usize, most_waiting: usize) -> Self {
        Self {
            permits: Arc::new(tokio::sync::Semaphore::new(limit)),
            limit,
            max_waiting: most_waiting,
            waiting: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Waits for a permit. Permits are granted in order of arrival.
    pub(crate) async fn acquire(
        &self,
        timeout: std::time::Duration,
    ) -> Result<tokio::sync::OwnedSemaphorePermit, AdmissionRefusal> {
        // If there are no waiters, take a free permit immediately.
        if self.waiting.load(Ordering::Relaxed) == 0
            && let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned()
        {
            return Ok(permit);
        }
        let waits = GateWaiter::enter(self);
        if waits.waiting_before >= self.max_waiting as u64 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(AdmissionRefusal::QueueFull);
        }
        let permit = tokio::time::timeout(timeout, Arc::clone(&self.permits).acquire_owned()).await;
        match permit {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                self.timeouts.fetch_add(1, Ordering::Relaxed);
                Err(AdmissionRefusal::TimedOut)
            }
        }
    }

    /// Takes a permit if one is free and there are no waiters.
    pub(crate) fn try_acquire(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let is_awaited = self.waiting.load(Ordering::Relaxed) > 0;
        if is_awaited { None } else { self.permits.try_acquire().ok() }
    }

    pub(crate) fn free_permits(&self) -> usize {
        self.permits.available_permits()
    }

    /// Returns the state as that of a pool with this name.
    pub(super) fn pool_state(&self, name: &str) -> PoolState {
        let free = self.free_permits() as u64;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PoolState {
            name: name.to_owned(),
            in_use: (self.limit as u64).saturating_sub(free),
            idle: free,
            limit: self.limit as u64,
            waiting: read(&self.waiting),
            timeouts: read(&self.timeouts),
            refused: read(&self.refused),
        }
    }
}

/// Counts a waiter until it is dropped.
struct GateWaiter<'a> {
    gate: &'a AdmissionGate,
    waiting_before: u64,
}

impl<'a> GateWaiter<'a> {
    fn enter(gate: &'a AdmissionGate) -> Self {
        Self { gate, waiting_before: gate.waiting.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for GateWaiter<'_> {
    fn drop(&mut self) {
        self.gate.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names the exhausted pools with their limits; `None` if there are none.
pub(super) fn exhausted_pools(states: &[PoolState]) -> Option<String> {
    let is_full = |pool: &&PoolState| pool.limit > 0 && pool.in_use >= pool.limit;
    // Requests without a connection do not wait long before they are refused.
    let is_awaited = |pool: &&PoolState| pool.waiting > 0 || pool.name == CONNECTION_POOL_NAME;
    let descriptions: Vec<String> = states
        .iter()
        .filter(is_full)
        .filter(is_awaited)
        .map(|pool| {
            let PoolState { name, limit, waiting, .. } = pool;
            let others = match waiting {
                0 => String::new(),
                waiting => format!(", and {waiting} are waiting for one"),
            };
            format!("all {limit} slots of the pool `{name}` are in use{others}")
        })
        .collect();
    (!descriptions.is_empty()).then(|| descriptions.join("; "))
}

/// Writes the states as Prometheus text.
pub(super) fn to_prometheus(states: &[PoolState], role: &str) -> String {
    type Read = fn(&PoolState) -> u64;
    let rows: [(&str, &str, &str, Read); 6] = [
        ("in_use", "gauge", "Slots in use; at the limit, others wait.", |pool| pool.in_use),
        ("idle", "gauge", "Idle slots, ready for use.", |pool| pool.idle),
        ("limit", "gauge", "Maximum number of slots.", |pool| pool.limit),
        ("waiting", "gauge", "Callers waiting for a slot.", |pool| pool.waiting),
        (
            "timeouts_total",
            "counter",
            "Waits that timed out; a rise means that the pool is too small.",
            |pool| pool.timeouts,
        ),
        (
            "refused_total",
            "counter",
            "Callers refused at once because too many were waiting; a rise means overload.",
            |pool| pool.refused,
        ),
    ];
    let mut text = String::new();
    for (name, kind, help, read) in rows {
        let name = format!("tympan_pool_{name}");
        // Writing to a string cannot fail.
        write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").ok();
        for pool in states {
            let pool_name = pool.name.replace(['\\', '"', '\n'], "_");
            let value = read(pool);
            writeln!(text, "{name}{{role=\"{role}\",pool=\"{pool_name}\"}} {value}").ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn who_came_first_is_first_and_a_crowd_is_refused() {
        let gate = Arc::new(AdmissionGate::new(1, 2));
        let permit = gate.acquire(LONG).await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..2 {
            let (gate, order) = (Arc::clone(&gate), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let permit = gate.acquire(LONG).await.unwrap();
                order.lock().push(number);
                drop(permit);
            }));
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.pool_state("work").waiting, 2);
        assert_eq!(gate.acquire(LONG).await.unwrap_err(), AdmissionRefusal::QueueFull);
        drop(permit);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock(), [0, 1]);
        let state = gate.pool_state("work");
        assert_eq!((state.in_use, state.idle, state.waiting, state.refused), (0, 1, 0, 1));
    }

    #[test]
    fn a_pool_that_is_used_up_is_named_with_its_limit() {
        let pool = |name: &str, in_use, waiting| PoolState {
            name: name.to_owned(),
            in_use,
            limit: 20,
            waiting,
            ..PoolState::default()
        };
        assert_eq!(exhausted_pools(&[pool("work", 19, 0), pool("store", 20, 0)]), None);
        assert_eq!(
            exhausted_pools(&[
                pool("store", 20, 3),
                pool("work", 5, 0),
                pool("connections", 20, 0)
            ])
            .as_deref(),
            Some(
                "all 20 slots of the pool `store` are in use, and 3 are waiting for one; \
                 all 20 slots of the pool `connections` are in use"
            )
        );
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends() {
        let gate = AdmissionGate::new(1, 1);
        let _place = gate.acquire(LONG).await.unwrap();
        assert_eq!(
            gate.acquire(Duration::from_secs(1)).await.unwrap_err(),
            AdmissionRefusal::TimedOut
        );
        let state = gate.pool_state("work");
        assert_eq!((state.timeouts, state.waiting), (1, 0));
    }

    #[test]
    fn each_pool_has_a_line_in_each_group() {
        let pool = PoolState { name: "a\"b".to_owned(), in_use: 3, ..PoolState::default() };
        let text =
            to_prometheus(&[pool.clone(), PoolState { name: "c".to_owned(), ..pool }], "publish");
        assert_eq!(text.matches("# TYPE").count(), 6);
        assert!(text.contains("tympan_pool_in_use{role=\"publish\",pool=\"a_b\"} 3\n"), "{text}");
        assert_eq!(text.matches("pool=\"c\"").count(), 6);
    }
}
