//! Fetches that are under way: one per cache file, however many visitors wait.
//!
//! Invariants
//! * At most one fetch per file is joined by visitors; a second one runs beside it only when a flush named the file
//!   while the first was under way, and then the first stores nothing.
//! * A fetch never stores what a flush named while it ran: storing and naming exclude each other.
//! * Nobody who comes after a flush gets what a fetch from before it brings.
//! * However long a fetch takes, those who wait for it do not go to the render all at once.
//! * A fetch goes on when the visitor who caused it leaves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cacheability::NotCacheableReason;
use crate::response_body::FetchedPage;
use crate::upstream::UpstreamFailure;

/// Visitors do not wait for each other at a file whose last answer could not be stored, for this long.
const PASS_MEMORY_DURATION: Duration = Duration::from_secs(2);
/// So many such files are remembered.
const MAX_REMEMBERED_PASSES: usize = 4096;
/// Visitors wait for twice the time that their farm says, and no shorter than this, before they are turned away.
const MIN_WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// How a fetch ended.
#[derive(Debug, Clone)]
pub(crate) enum FetchOutcome {
    /// With a page for everyone.
    Shared(Arc<FetchedPage>),
    /// With an answer for its own visitor only.
    Unshared(NotCacheableReason),
    /// Without an answer.
    Failed(UpstreamFailure),
    /// Given up, as it was not wanted or its answer not good enough: who waits looks and enters anew.
    Retry,
}

/// One fetch.
#[derive(Debug)]
pub(crate) struct PendingFetch {
    file: PathBuf,
    is_flushed: AtomicBool,
    state: watch::Sender<PendingFetchState>,
    /// When one of those who wait last went to fetch for itself.
    last_pass_at: Mutex<Option<Instant>>,
}

/// How far a fetch is.
#[derive(Debug, Default)]
struct PendingFetchState {
    /// Known before the end where those who wait read along.
    outcome: Option<FetchOutcome>,
    is_finished: bool,
}

/// How long a visitor waits for the fetches of others.
#[derive(Debug)]
pub(crate) struct FetchWait {
    /// So often one of those who wait may fetch for itself; zero if nobody wants to wait.
    pass_period: Duration,
    deadline: Instant,
    has_started: bool,
}

impl FetchWait {
    pub(crate) fn new(period: Duration) -> Self {
        let longest = period.saturating_mul(2).max(MIN_WAIT_TIMEOUT);
        Self { pass_period: period, deadline: Instant::now() + longest, has_started: false }
    }

    /// Tells whether no fetch was waited for yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.has_started
    }
}

/// How a wait for another one's fetch ended.
#[derive(Debug)]
pub(crate) enum FetchWaitResult {
    /// With the fetch.
    Finished(FetchOutcome),
    /// It takes long, and of those who wait this one is to fetch for itself.
    FetchSelf,
    /// It takes too long.
    TimedOut,
}

impl PendingFetch {
    /// Waits until it is known how the fetch ends.
    pub(crate) async fn wait_for_outcome(&self) -> FetchOutcome {
        self.wait_until(|state| state.outcome.is_some()).await
    }

    /// Waits for the end of the fetch.
    pub(crate) async fn wait_for_end(&self) -> FetchOutcome {
        self.wait_until(|state| state.is_finished).await
    }

    async fn wait_until(&self, is_reached: impl Fn(&PendingFetchState) -> bool) -> FetchOutcome {
        let mut state = self.state.subscribe();
        let reached = state.wait_for(|state| is_reached(state)).await;
        let outcome = reached.ok().and_then(|state| state.outcome.clone());
        outcome.unwrap_or(FetchOutcome::Failed(UpstreamFailure::ConnectionBroken))
    }

    /// Waits for the fetch as a visitor does who came to it.
    pub(crate) async fn wait_as_visitor(&self, waiting: &mut FetchWait) -> FetchWaitResult {
        // Whoever waited already came before any later fetch began.
        let is_late = !std::mem::replace(&mut waiting.has_started, true) && self.is_flushed();
        let mut ended = std::pin::pin!(async {
            if is_late {
                self.wait_for_end().await;
                return FetchOutcome::Retry;
            }
            self.wait_for_outcome().await
        });
        let period = waiting.pass_period.max(Duration::from_millis(1));
        loop {
            let until = (Instant::now() + period).min(waiting.deadline);
            match tokio::time::timeout_at(until, &mut ended).await {
                Ok(outcome) => return FetchWaitResult::Finished(outcome),
                Err(_) if waiting.pass_period.is_zero() || self.try_start_own_fetch(period) => {
                    return FetchWaitResult::FetchSelf;
                }
                Err(_) if Instant::now() >= waiting.deadline => return FetchWaitResult::TimedOut,
                Err(_another_one_may) => {}
            }
        }
    }

    /// Lets one of those who wait go in each period.
    fn try_start_own_fetch(&self, period: Duration) -> bool {
        let (mut passed, now) = (self.last_pass_at.lock(), Instant::now());
        let may_pass = passed.is_none_or(|last| now.duration_since(last) >= period);
        if may_pass {
            *passed = Some(now);
        }
        may_pass
    }

    /// Tells whether a flush named the file since the fetch began.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::SeqCst)
    }
}

/// What a request for a file finds.
#[derive(Debug)]
pub(crate) enum FetchRole {
    /// It has to fetch.
    Lead(FetchTicket),
    /// Another one does.
    Join(Arc<PendingFetch>),
    /// The last answers were for single visitors, so it fetches for itself.
    Pass(NotCacheableReason),
}

/// All fetches of a dispatcher.
#[derive(Debug, Default)]
pub(crate) struct FetchCoalescer {
    slots: Mutex<HashMap<PathBuf, FetchSlot>>,
    /// Whether another process has taken the cache over.
    has_stopped_storing: AtomicBool,
    /// Held for reading while a file is put into place, for writing while a flush names or removes files.
    store_lock: RwLock<()>,
    remembered_passes: Mutex<HashMap<PathBuf, (Instant, NotCacheableReason)>>,
}

#[derive(Debug, Default)]
struct FetchSlot {
    /// The fetch that visitors join.
    current_fetch: Option<Arc<PendingFetch>>,
    /// The one that a flush overtook.
    overtaken_fetch: Option<Arc<PendingFetch>>,
}

impl FetchCoalescer {
    /// Joins the fetch of `file`, or begins it.
    pub(crate) fn join_or_pass(self: &Arc<Self>, file: &Path) -> FetchRole {
        if let Some(reason) = self.remembered_pass(file) {
            return FetchRole::Pass(reason);
        }
        self.join_or_lead(file)
    }

    /// Joins the fetch of `file`, or begins it, whatever the last answers were.
    pub(crate) fn join_or_lead(self: &Arc<Self>, file: &Path) -> FetchRole {
        let mut slots = self.slots.lock();
        let slot = slots.entry(file.to_owned()).or_default();
        if let Some(flight) = &slot.current_fetch {
            return FetchRole::Join(Arc::clone(flight));
        }
        let flight = Arc::new(PendingFetch {
            file: file.to_owned(),
            is_flushed: AtomicBool::new(false),
            state: watch::Sender::new(PendingFetchState::default()),
            last_pass_at: Mutex::new(None),
        });
        slot.current_fetch = Some(Arc::clone(&flight));
        FetchRole::Lead(FetchTicket {
            coalescer: Arc::clone(self),
            pending_fetch: flight,
            outcome: None,
        })
    }

    /// Tells whether a fetch of `file` is under way.
    pub(crate) fn is_fetching(&self, file: &Path) -> bool {
        self.slots.lock().get(file).is_some_and(|slot| slot.current_fetch.is_some())
    }

    /// Returns how many files are being fetched.
    pub(crate) fn pending_count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Notes that a flush names all files for which `is_named` holds; their fetches store nothing.
    pub(crate) fn mark_flushed(&self, is_named: impl Fn(&Path) -> bool) {
        let _nothing_is_stored = self.store_lock.write();
        for (file, slot) in self.slots.lock().iter_mut() {
            if !is_named(file) {
                continue;
            }
            let Some(flight) = &slot.current_fetch else {
                continue;
            };
            flight.is_flushed.store(true, Ordering::SeqCst);
            // The next visitor begins anew, but a storm of flushes must not make a storm of fetches.
            if slot.overtaken_fetch.is_none() {
                slot.overtaken_fetch = slot.current_fetch.take();
            }
        }
    }

    /// Lets no fetch store anything from now on: another process obeys the flushes.
    pub(crate) fn stop_storing(&self) {
        let _nothing_is_stored = self.store_lock.write();
        self.has_stopped_storing.store(true, Ordering::SeqCst);
    }

    /// Tells whether another process obeys the flushes by now.
    pub(crate) fn has_stopped_storing(&self) -> bool {
        self.has_stopped_storing.load(Ordering::SeqCst)
    }

    /// Runs `remove` while no file is put into place.
    ///
    /// Body and header file are two files: one that removes the old pair while a new one comes could leave the new body
    /// without its headers.
    pub(crate) fn with_stores_blocked<T>(&self, remove: impl FnOnce() -> T) -> T {
        let _nothing_is_stored = self.store_lock.write();
        remove()
    }

    fn remembered_pass(&self, file: &Path) -> Option<NotCacheableReason> {
        let passes = self.remembered_passes.lock();
        let (until, reason) = passes.get(file)?;
        (*until > Instant::now()).then_some(*reason)
    }

    fn remember_pass(&self, file: &Path, reason: NotCacheableReason) {
        let now = Instant::now();
        let mut passes = self.remembered_passes.lock();
        if passes.len() >= MAX_REMEMBERED_PASSES {
            passes.retain(|_, (until, _)| *until > now);
        }
        if passes.len() < MAX_REMEMBERED_PASSES {
            passes.insert(file.to_owned(), (now + PASS_MEMORY_DURATION, reason));
        }
    }
}

/// The right and duty to fetch a file; dropping it tells all who wait.
#[derive(Debug)]
pub(crate) struct FetchTicket {
    coalescer: Arc<FetchCoalescer>,
    pending_fetch: Arc<PendingFetch>,
    outcome: Option<FetchOutcome>,
}

impl FetchTicket {
    /// Runs `store` unless a flush named the file since the fetch began.
    ///
    /// # Errors
    /// [`NotCacheableReason::Flushed`], or what `store` returns.
    pub(crate) fn store_unless_flushed(
        &self,
        store: impl FnOnce() -> Result<(), NotCacheableReason>,
    ) -> Result<(), NotCacheableReason> {
        let _no_flush_names_files = self.coalescer.store_lock.read();
        if self.pending_fetch.is_flushed() || self.coalescer.has_stopped_storing() {
            return Err(NotCacheableReason::Flushed);
        }
        store()
    }

    /// Tells those who wait for the fetch how it will end; it goes on until [`FetchTicket::finish_fetch`].
    pub(crate) fn announce_outcome(&self, outcome: FetchOutcome) {
        self.pending_fetch.state.send_modify(|state| state.outcome = Some(outcome));
    }

    /// Ends the fetch.
    pub(crate) fn finish_fetch(mut self, outcome: FetchOutcome) {
        if let FetchOutcome::Unshared(reason) = outcome {
            self.coalescer.remember_pass(&self.pending_fetch.file, reason);
        }
        self.outcome = Some(outcome);
    }
}

impl Drop for FetchTicket {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) =
            self.coalescer.slots.lock().entry(self.pending_fetch.file.clone())
        {
            let slot = entry.get_mut();
            for place in [&mut slot.current_fetch, &mut slot.overtaken_fetch] {
                if place.as_ref().is_some_and(|flight| Arc::ptr_eq(flight, &self.pending_fetch)) {
                    *place = None;
                }
            }
            if slot.current_fetch.is_none() && slot.overtaken_fetch.is_none() {
                entry.remove();
            }
        }
        // A ticket that is dropped unused, as by a panic, must not leave visitors waiting.
        let outcome = self.outcome.take();
        self.pending_fetch.state.send_modify(|state| {
            let known = outcome.or_else(|| state.outcome.take());
            state.outcome =
                Some(known.unwrap_or(FetchOutcome::Failed(UpstreamFailure::ConnectionBroken)));
            state.is_finished = true;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FetchCoalescer, FetchOutcome, FetchRole, FetchTicket, FetchWait, FetchWaitResult,
        PendingFetch,
    };
    use crate::cacheability::NotCacheableReason;
    use crate::upstream::UpstreamFailure;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::time::Instant;

    const FILE: &str = "/docroot/a.html";

    fn lead(flights: &Arc<FetchCoalescer>) -> FetchTicket {
        match flights.join_or_pass(Path::new(FILE)) {
            FetchRole::Lead(ticket) => ticket,
            role => panic!("expected to lead, not {role:?}"),
        }
    }

    fn join(flights: &Arc<FetchCoalescer>) -> Arc<PendingFetch> {
        match flights.join_or_pass(Path::new(FILE)) {
            FetchRole::Join(flight) => flight,
            role => panic!("expected to join, not {role:?}"),
        }
    }

    const HALF_A_MINUTE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_second_joins_and_learns_the_outcome() {
        let flights = Arc::new(FetchCoalescer::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        ticket.finish_fetch(FetchOutcome::Failed(UpstreamFailure::Timeout));
        assert!(matches!(
            flight.wait_for_outcome().await,
            FetchOutcome::Failed(UpstreamFailure::Timeout)
        ));
        assert_eq!(flights.pending_count(), 0);
    }

    #[tokio::test]
    async fn a_lost_ticket_frees_those_who_wait() {
        let flights = Arc::new(FetchCoalescer::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        drop(ticket);
        assert!(matches!(flight.wait_for_outcome().await, FetchOutcome::Failed(_)));
        drop(lead(&flights));
    }

    #[tokio::test]
    async fn who_waits_for_a_fetch_that_is_given_up_enters_anew() {
        let flights = Arc::new(FetchCoalescer::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        ticket.finish_fetch(FetchOutcome::Retry);
        let mut waiting = FetchWait::new(HALF_A_MINUTE);
        let waited = flight.wait_as_visitor(&mut waiting).await;
        assert!(matches!(waited, FetchWaitResult::Finished(FetchOutcome::Retry)), "{waited:?}");
        drop(lead(&flights));
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_who_wait_long_one_goes_in_each_period_and_the_last_ones_in_vain() {
        let flights = Arc::new(FetchCoalescer::default());
        let ticket = lead(&flights);
        let begun = Instant::now();
        let wait = |_: u32| {
            let flight = join(&flights);
            async move {
                let waited = flight.wait_as_visitor(&mut FetchWait::new(HALF_A_MINUTE)).await;
                (format!("{waited:?}"), begun.elapsed().as_secs())
            }
        };
        let waited = futures_util::future::join_all((0..100).map(wait)).await;
        let count = |text: &str, at| {
            let is_it =
                |(waited, seconds): &&(String, u64)| (waited.as_str(), *seconds) == (text, at);
            waited.iter().filter(is_it).count()
        };
        assert_eq!(
            (count("FetchSelf", 30), count("FetchSelf", 60), count("TimedOut", 60)),
            (1, 1, 98)
        );
        let none = join(&flights).wait_as_visitor(&mut FetchWait::new(Duration::ZERO)).await;
        assert!(matches!(none, FetchWaitResult::FetchSelf), "who is not to wait does not");
        drop(ticket);
    }

    #[tokio::test]
    async fn who_comes_after_a_second_flush_waits_for_the_end_of_the_fetch_before_it() {
        let flights = Arc::new(FetchCoalescer::default());
        let first = lead(&flights);
        flights.mark_flushed(|_| true);
        let second = lead(&flights);
        let early = join(&flights);
        flights.mark_flushed(|_| true);
        let late = join(&flights);
        assert!(Arc::ptr_eq(&early, &late) && late.is_flushed());
        let (mut came_early, mut came_late) =
            (FetchWait::new(HALF_A_MINUTE), FetchWait::new(HALF_A_MINUTE));
        // Who came before the flush and waited already takes what comes.
        came_early.has_started = true;
        let reading_along = late.wait_as_visitor(&mut came_late);
        second.announce_outcome(FetchOutcome::Failed(UpstreamFailure::Timeout));
        let waited = early.wait_as_visitor(&mut came_early).await;
        assert!(
            matches!(
                waited,
                FetchWaitResult::Finished(FetchOutcome::Failed(UpstreamFailure::Timeout))
            ),
            "{waited:?}"
        );
        second.finish_fetch(FetchOutcome::Failed(UpstreamFailure::Timeout));
        let waited = reading_along.await;
        assert!(matches!(waited, FetchWaitResult::Finished(FetchOutcome::Retry)), "{waited:?}");
        drop(first);
    }

    #[test]
    fn a_flush_overtakes_a_fetch_once() {
        let flights = Arc::new(FetchCoalescer::default());
        let first = lead(&flights);
        flights.mark_flushed(|file| file == Path::new(FILE));
        assert_eq!(first.store_unless_flushed(|| Ok(())), Err(NotCacheableReason::Flushed));
        let second = lead(&flights);
        assert_eq!(second.store_unless_flushed(|| Ok(())), Ok(()));
        flights.mark_flushed(|file| file == Path::new(FILE));
        assert_eq!(second.store_unless_flushed(|| Ok(())), Err(NotCacheableReason::Flushed));
        assert!(join(&flights).is_flushed(), "two fetches are enough");
        drop((first, second));
        assert_eq!(flights.pending_count(), 0);
        assert_eq!(lead(&flights).store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_of_another_file_changes_nothing() {
        let flights = Arc::new(FetchCoalescer::default());
        let ticket = lead(&flights);
        flights.mark_flushed(|file| file == Path::new("/docroot/b.html"));
        assert_eq!(ticket.store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_for_one_are_remembered_for_a_while() {
        let flights = Arc::new(FetchCoalescer::default());
        lead(&flights).finish_fetch(FetchOutcome::Unshared(NotCacheableReason::CacheControl));
        assert!(matches!(
            flights.join_or_pass(Path::new(FILE)),
            FetchRole::Pass(NotCacheableReason::CacheControl)
        ));
        tokio::time::advance(super::PASS_MEMORY_DURATION).await;
        drop(lead(&flights));
    }
}
