//! The connection limit of a listener: permits for connections, the queue of waiting clients, and the eviction of idle
//! connections.
//!
//! An idle keep-alive connection holds a permit just as a busy one does. While permits are scarce, each response is the
//! last one of its connection and tells its client so; the client reconnects behind those who wait. While no permit is
//! free, the longest idle connections are evicted ([`ConnectionLimiter::evict_longest_idle`]), as nginx closes its
//! reusable connections.
//!
//! Invariants
//! * The number of connections never exceeds the number of permits. Waiting clients receive permits in the order of
//!   arrival.
//! * A connection is closed only between two requests: a request that is in progress at the time of the eviction is
//!   answered.
//! * Recording the beginning or end of a request takes no lock.
//!
//! Not here: the refusal of clients when too many wait (`listen`), and the connections of the fast path
//! ([`FastPath::evict_idle`]).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::server::fast_path::FastPath;
use crate::server::listen::ListenerCounters;
use crate::server::permit_supply::PermitSupply;

/// One in this number of the evictable connections is evicted in addition to the number of waiting clients, as more are
/// likely to arrive soon.
const EXTRA_EVICTION_DIVISOR: usize = 8;
/// Maximum number of additional evictions.
const MAX_EXTRA_EVICTIONS: usize = 32;
/// Time to wait for an evicted connection before others are evicted instead.
const EVICTION_TIMEOUT_MS: u64 = 1_000;
/// Time that a client may stay connected before its first request.
const FIRST_REQUEST_GRACE_MS: u64 = 2_000;
/// Interval after which a waiting client tries again to evict connections.
const EVICTION_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// After all evictable connections have been evicted, the table is not scanned again for this time.
const EVICTION_SCAN_PAUSE_MS: u64 = 10;

/// The connection limit of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionLimiter {
    supply: Arc<PermitSupply>,
    max_waiters: usize,
    connections: Mutex<ConnectionTable>,
    fast_path: Option<Arc<dyn FastPath>>,
    /// Origin of all times.
    clock_start: Instant,
    /// No eviction scan takes place before this time.
    next_eviction_scan_ms: AtomicU64,
}

/// The open connections of a listener.
#[derive(Debug, Default)]
struct ConnectionTable {
    activities: Vec<Option<Arc<ConnectionActivity>>>,
    free_slots: Vec<usize>,
}

/// The activity of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    clock_start: Instant,
    /// Start of the wait for a request, or [`REQUEST_ACTIVE`] or [`RESPONSE_SENDING`].
    idle_since_ms: AtomicU64,
    /// Time at which the eviction of the connection was requested; 0 if it was not.
    eviction_requested_ms: AtomicU64,
    waker: AtomicWaker,
}

/// A request is being read or handled.
const REQUEST_ACTIVE: u64 = u64::MAX;
/// The response is complete, but may not have been sent completely.
const RESPONSE_SENDING: u64 = u64::MAX - 1;

/// A connection permit, held until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    slot: usize,
    /// `None` for a connection beyond the limit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        // Remove the entry before the permit can be reused.
        let mut connections =
            self.limiter.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = connections.activities.get_mut(self.slot) {
            *slot = None;
        }
        connections.free_slots.push(self.slot);
    }
}

/// A waiting client; counted until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionWaiter(Arc<ConnectionLimiter>);

impl ConnectionWaiter {
    fn begin_waiting(limiter: &Arc<ConnectionLimiter>) -> Self {
        limiter.supply.begin_waiting();
        Self(Arc::clone(limiter))
    }

    /// Waits for a permit and evicts idle connections.
    pub(crate) async fn wait_for_permit(self) -> ConnectionPermit {
        let limiter = Arc::clone(&self.0);
        let mut turn = pin!(limiter.supply.acquire());
        let permit = loop {
            tokio::select! {
                biased;
                permit = &mut turn => break permit,
                () = limiter.evict_and_pause() => {}
            }
        };
        drop(self);
        limiter.register_connection(Some(permit))
    }
}

impl Drop for ConnectionWaiter {
    fn drop(&mut self) {
        self.0.supply.end_waiting();
    }
}

impl ConnectionLimiter {
    /// Creates a limiter with `limit` permits; the number of waiting clients is limited to a quarter of that.
    pub(crate) fn new(
        limit: usize,
        counters: Arc<ListenerCounters>,
        fast_path: Option<Arc<dyn FastPath>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            supply: Arc::new(PermitSupply::new(limit, counters)),
            max_waiters: limit / 4,
            connections: Mutex::default(),
            fast_path,
            clock_start: Instant::now(),
            next_eviction_scan_ms: AtomicU64::new(0),
        })
    }

    /// Takes a permit if one is free and there are no waiters.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let permit = self.supply.try_acquire()?;
        Some(self.register_connection(Some(permit)))
    }

    /// Creates an additional permit for a connection that was accepted before the shutdown and has none.
    pub(crate) fn acquire_beyond_limit(self: &Arc<Self>) -> ConnectionPermit {
        self.register_connection(None)
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(self: &Arc<Self>) -> ConnectionPermit {
        ConnectionWaiter::begin_waiting(self).wait_for_permit().await
    }

    /// Begins to wait for a permit; `None` if too many clients wait.
    pub(crate) fn try_begin_waiting(self: &Arc<Self>) -> Option<ConnectionWaiter> {
        let may_wait = self.supply.waiter_count() < self.max_waiters;
        may_wait.then(|| ConnectionWaiter::begin_waiting(self))
    }

    /// Evicts connections, and waits until more may be evictable.
    async fn evict_and_pause(&self) {
        self.evict_longest_idle();
        tokio::time::sleep(EVICTION_RETRY_INTERVAL).await;
    }

    fn register_connection(
        self: &Arc<Self>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> ConnectionPermit {
        let activity = Arc::new(ConnectionActivity::new(self.clock_start));
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let number = connections.free_slots.pop().unwrap_or(connections.activities.len());
        let slot = Some(Arc::clone(&activity));
        match connections.activities.get_mut(number) {
            Some(free) => *free = slot,
            None => connections.activities.push(slot),
        }
        drop(connections);
        ConnectionPermit { activity, slot: number, limiter: Arc::clone(self), _permit: permit }
    }

    /// Returns the permits that are shared by all connections.
    pub(crate) fn supply(&self) -> &Arc<PermitSupply> {
        &self.supply
    }

    /// Waits until all connections have ended.
    pub(crate) async fn wait_empty(&self, limit: usize) {
        self.supply.wait_complete(limit).await;
    }

    /// Evicts the longest idle connections: as many as there are waiting clients, plus an extra number.
    fn evict_longest_idle(&self) {
        let now_ms = millis_since(self.clock_start);
        if now_ms < self.next_eviction_scan_ms.load(Ordering::Relaxed) {
            return;
        }
        let waiting = self.supply.waiter_count().max(1);
        let (leaving, are_all) = self.find_longest_idle(now_ms, waiting);
        leaving.iter().for_each(|activity| activity.request_eviction());
        if are_all {
            self.next_eviction_scan_ms.store(now_ms + EVICTION_SCAN_PAUSE_MS, Ordering::Relaxed);
        }
        if let Some(fast_path) = &self.fast_path {
            fast_path.evict_idle(waiting, self.supply.counters());
        }
    }

    /// Finds the longest idle connections for a number of waiting clients. Also returns whether these are all evictable
    /// connections.
    fn find_longest_idle(
        &self,
        now_ms: u64,
        waiting: usize,
    ) -> (Vec<Arc<ConnectionActivity>>, bool) {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let is_leaving = |activity: &&Arc<ConnectionActivity>| activity.is_leaving(now_ms);
        let leaving = connections.activities.iter().flatten().filter(is_leaving).count();
        if leaving >= waiting {
            return (Vec::new(), true);
        }
        let needed = waiting - leaving;
        let since = |activity: &Arc<ConnectionActivity>| {
            activity.evictable_since().filter(|since_ms| *since_ms <= now_ms)
        };
        let mut idle_connections: Vec<(u64, &Arc<ConnectionActivity>)> = connections
            .activities
            .iter()
            .flatten()
            .filter_map(|activity| Some((since(activity)?, activity)))
            .collect();
        idle_connections.sort_unstable_by_key(|(since_ms, _)| *since_ms);
        let count =
            needed + (idle_connections.len() / EXTRA_EVICTION_DIVISOR).min(MAX_EXTRA_EVICTIONS);
        let are_all = idle_connections.len() <= count;
        (
            idle_connections
                .into_iter()
                .take(count)
                .map(|(_, activity)| Arc::clone(activity))
                .collect(),
            are_all,
        )
    }
}

fn millis_since(begin: Instant) -> u64 {
    millis_between(begin, Instant::now())
}

fn millis_between(begin: Instant, now: Instant) -> u64 {
    let time = now.saturating_duration_since(begin);
    u64::try_from(time.as_millis()).unwrap_or(RESPONSE_SENDING - 1)
}

impl ConnectionActivity {
    /// Creates the state of a connection that is being set up; `begin` is the origin of its times.
    pub(crate) fn new(begin: Instant) -> Self {
        Self {
            clock_start: begin,
            idle_since_ms: AtomicU64::new(REQUEST_ACTIVE),
            eviction_requested_ms: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        }
    }

    /// Returns the start of the wait for a request, if the connection may be evicted.
    fn evictable_since(&self) -> Option<u64> {
        let since_ms = self.idle_since_ms.load(Ordering::Relaxed);
        (since_ms < RESPONSE_SENDING && !self.is_eviction_requested()).then_some(since_ms)
    }

    /// Returns true if the connection waits for a request.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since_ms.load(Ordering::Relaxed) < RESPONSE_SENDING
    }

    /// Records the start of the wait for the first request, for which the client has a grace period.
    pub(crate) fn record_first_wait(&self) {
        self.idle_since_ms
            .store(millis_since(self.clock_start) + FIRST_REQUEST_GRACE_MS, Ordering::Relaxed);
    }

    /// Records the start of the wait for a request.
    pub(crate) fn record_idle(&self, now: Instant) {
        self.idle_since_ms.store(millis_between(self.clock_start, now), Ordering::Relaxed);
    }

    /// Records the arrival of a part of a request.
    pub(crate) fn record_active(&self) {
        self.idle_since_ms.store(REQUEST_ACTIVE, Ordering::Relaxed);
    }

    /// Records that the response to a request is complete; it may not have been sent completely.
    pub(crate) fn record_answered(&self) {
        self.idle_since_ms.store(RESPONSE_SENDING, Ordering::Relaxed);
    }

    /// Requests the eviction of the connection.
    pub(crate) fn request_eviction(&self) {
        self.eviction_requested_ms.store(millis_since(self.clock_start).max(1), Ordering::Relaxed);
        self.waker.wake();
    }

    /// Returns true if the eviction of the connection was requested.
    pub(crate) fn is_eviction_requested(&self) -> bool {
        self.eviction_requested_ms.load(Ordering::Relaxed) > 0
    }

    /// Returns true if the eviction was requested so recently that the connection may still be closing.
    fn is_leaving(&self, now_ms: u64) -> bool {
        let wanted_ms = self.eviction_requested_ms.load(Ordering::Relaxed);
        wanted_ms > 0 && now_ms < wanted_ms + EVICTION_TIMEOUT_MS
    }

    /// Ready when the eviction of the connection is requested.
    fn poll_eviction(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_eviction_requested() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the eviction of the connection is requested. Only one task at a time may wait.
    pub(crate) async fn wait_eviction(&self) {
        poll_fn(|cx| self.poll_eviction(cx)).await;
    }

    /// Called by a reader without data; returns true if the connection is to be closed. Returns false while a response
    /// is in progress.
    pub(crate) fn should_leave(&self, cx: &Context<'_>) -> bool {
        match self.idle_since_ms.load(Ordering::Relaxed) {
            REQUEST_ACTIVE => return false,
            RESPONSE_SENDING => self.record_idle(Instant::now()),
            _waiting => {}
        }
        self.poll_eviction(cx).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(limit: usize) -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(limit, Arc::default(), None)
    }

    /// Takes permits for clients that were served one after the other.
    async fn answered(limiter: &Arc<ConnectionLimiter>, count: usize) -> Vec<ConnectionPermit> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.extend(limiter.try_acquire());
            tokio::time::advance(Duration::from_millis(10)).await;
            all.iter()
                .skip(all.len() - 1)
                .for_each(|permit| permit.activity.record_idle(Instant::now()));
        }
        all
    }

    fn wanted(all: &[ConnectionPermit]) -> Vec<usize> {
        let requested_number = |(number, permit): (usize, &ConnectionPermit)| {
            permit.activity.is_eviction_requested().then_some(number)
        };
        all.iter().enumerate().filter_map(requested_number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_waited_for_longest_leaves_first() {
        let limiter = seats(4);
        let all = answered(&limiter, 4).await;
        all[1].activity.record_active();
        limiter.evict_longest_idle();
        assert_eq!(wanted(&all), [0]);
        limiter.evict_longest_idle();
        assert_eq!(wanted(&all), [0], "one is about to leave");
        for expected in [&[0, 2][..], &[0, 2, 3], &[0, 1, 2, 3], &[0, 1, 2, 3]] {
            all[1].activity.record_idle(Instant::now());
            tokio::time::advance(Duration::from_millis(EVICTION_TIMEOUT_MS)).await;
            limiter.evict_longest_idle();
            assert_eq!(wanted(&all), expected, "who does not leave is not asked twice");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_nothing_yet_is_given_time() {
        let limiter = seats(1);
        let permit = limiter.try_acquire().unwrap();
        limiter.evict_longest_idle();
        assert!(!permit.activity.is_eviction_requested(), "it is being set up");
        permit.activity.record_first_wait();
        tokio::time::advance(Duration::from_millis(FIRST_REQUEST_GRACE_MS - 1)).await;
        limiter.evict_longest_idle();
        assert!(!permit.activity.is_eviction_requested());
        limiter.evict_longest_idle();
        tokio::time::advance(Duration::from_millis(1)).await;
        limiter.evict_longest_idle();
        assert!(!permit.activity.is_eviction_requested(), "nobody looks again so soon");
        tokio::time::advance(Duration::from_millis(EVICTION_SCAN_PAUSE_MS)).await;
        limiter.evict_longest_idle();
        assert!(permit.activity.is_eviction_requested());
    }

    #[tokio::test(start_paused = true)]
    async fn several_leave_for_several_and_some_more_of_many() {
        let limiter = seats(100);
        let all = answered(&limiter, 100).await;
        let (first, second) = (tokio::spawn(turn(&limiter)), tokio::spawn(turn(&limiter)));
        tokio::task::yield_now().await;
        tokio::time::advance(EVICTION_RETRY_INTERVAL).await;
        tokio::task::yield_now().await;
        assert!(wanted(&all).len() > 100 / EXTRA_EVICTION_DIVISOR, "{:?}", wanted(&all));
        drop(all);
        first.await.unwrap();
        second.await.unwrap();
        assert!(!limiter.supply().are_scarce());
        assert!(limiter.connections.lock().unwrap().activities.iter().all(Option::is_none));
    }

    fn turn(limiter: &Arc<ConnectionLimiter>) -> impl Future<Output = ()> + use<> {
        let limiter = Arc::clone(limiter);
        async move { drop(limiter.acquire().await) }
    }

    #[tokio::test(start_paused = true)]
    async fn slots_are_scarce_before_the_last_is_taken_and_while_a_connection_waits() {
        let limiter = seats(32);
        let mut all = answered(&limiter, 30).await;
        assert!(!limiter.supply().are_scarce(), "two are free");
        all.extend(answered(&limiter, 1).await);
        assert!(limiter.supply().are_scarce() && limiter.supply().must_close_connection());
        assert_eq!(limiter.supply().counters().closed_when_scarce.load(Ordering::Relaxed), 1);
        let few = self::seats(1);
        let only = few.try_acquire().unwrap();
        assert!(!few.supply().are_scarce(), "nobody wants the only one");
        assert!(few.try_acquire().is_none());
        let waits = tokio::spawn(turn(&few));
        tokio::task::yield_now().await;
        assert!(few.supply().are_scarce() && few.try_begin_waiting().is_none());
        assert_eq!(few.supply().counters().waiting.load(Ordering::Relaxed), 1);
        drop(only);
        waits.await.unwrap();
        assert_eq!(few.supply().counters().waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_is_none() {
        let limiter = seats(8);
        let all = answered(&limiter, 8).await;
        let wait = tokio::time::timeout(Duration::from_millis(1), limiter.acquire()).await;
        assert!(wait.is_err() && !limiter.supply().are_scarce());
        drop(all);
        assert!(limiter.try_acquire().is_some());
    }

    #[test]
    fn nobody_leaves_while_an_answer_is_made() {
        let activity = ConnectionActivity::new(Instant::now());
        let cx = Context::from_waker(std::task::Waker::noop());
        activity.request_eviction();
        assert!(!activity.should_leave(&cx));
        activity.record_answered();
        assert!(activity.should_leave(&cx));
    }
}
