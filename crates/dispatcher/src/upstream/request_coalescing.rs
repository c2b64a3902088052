//! Pending fetches: one per cache file, however many visitors wait.
//!
//! Invariants
//! * Visitors join at most one fetch per file; a second one runs in parallel only if a flush named the file during the
//!   first one, and then the first stores nothing.
//! * A fetch never stores a file that a flush named while it ran: storing and naming exclude each other.
//! * A request that comes after a flush never gets the result of a fetch from before it.
//! * However long a fetch takes, its waiting visitors do not go to the render all at once.
//! * A fetch continues if the visitor who caused it disconnects.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::edge::response_body::FetchedPage;
use crate::upstream::UpstreamFailure;

/// The time for which visitors do not wait for each other at a file whose last response could not be stored.
const PASS_MEMORY_DURATION: Duration = Duration::from_secs(2);
/// The maximum number of such files remembered.
const MAX_REMEMBERED_PASSES: usize = 4096;
/// The minimum time for which visitors wait before they are turned away; otherwise twice the time configured in the
/// farm.
const MIN_WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome of a fetch.
#[derive(Debug, Clone)]
pub(crate) enum FetchOutcome {
    /// A page for all visitors.
    Shared(Arc<FetchedPage>),
    /// A response for its own visitor only.
    Unshared(NotCacheableReason),
    /// No response.
    Failed(UpstreamFailure),
    /// Given up, as it was not wanted or its response not good enough: waiting requests look up the file again.
    Retry,
}

/// A pending fetch.
#[derive(Debug)]
pub(crate) struct PendingFetch {
    file: PathBuf,
    is_flushed: AtomicBool,
    state: watch::Sender<PendingFetchState>,
    /// The time at which a waiting visitor last started its own fetch.
    last_pass_at: Mutex<Option<Instant>>,
}

/// The progress of a fetch.
#[derive(Debug, Default)]
struct PendingFetchState {
    /// Set before the end if waiting visitors read the growing file.
    outcome: Option<FetchOutcome>,
    is_finished: bool,
}

/// The wait of a visitor for the fetches of others.
#[derive(Debug)]
pub(crate) struct FetchWait {
    /// The interval at which one waiting visitor may fetch for itself; zero if visitors do not wait.
    pass_period: Duration,
    deadline: Instant,
    has_started: bool,
}

impl FetchWait {
    pub(crate) fn new(period: Duration) -> Self {
        let longest = period.saturating_mul(2).max(MIN_WAIT_TIMEOUT);
        Self { pass_period: period, deadline: Instant::now() + longest, has_started: false }
    }

    /// Returns true if no fetch was awaited yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.has_started
    }
}

/// The result of waiting for the fetch of another request.
#[derive(Debug)]
pub(crate) enum FetchWaitResult {
    /// The fetch finished.
    Finished(FetchOutcome),
    /// The fetch is slow, and this visitor is the one to fetch for itself.
    FetchSelf,
    /// The wait timed out.
    TimedOut,
}

impl PendingFetch {
    /// Waits until the outcome of the fetch is known.
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

    /// Waits for the fetch on behalf of a visitor.
    pub(crate) async fn wait_as_visitor(&self, waiting: &mut FetchWait) -> FetchWaitResult {
        // A visitor who was waiting already came before any later fetch began.
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

    /// Permits one waiting visitor in each period.
    fn try_start_own_fetch(&self, period: Duration) -> bool {
        let (mut passed, now) = (self.last_pass_at.lock(), Instant::now());
        let may_pass = passed.is_none_or(|last| now.duration_since(last) >= period);
        if may_pass {
            *passed = Some(now);
        }
        may_pass
    }

    /// Returns true if a flush named the file since the fetch began.
    pub(crate) fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::SeqCst)
    }
}

/// The role of a request for a file.
#[derive(Debug)]
pub(crate) enum FetchRole {
    /// It has to fetch the file.
    Lead(FetchTicket),
    /// It waits for a pending fetch.
    Join(Arc<PendingFetch>),
    /// The last responses were for single visitors, so it fetches for itself.
    Pass(NotCacheableReason),
}

/// All pending fetches of a dispatcher.
#[derive(Debug, Default)]
pub(crate) struct FetchCoalescer {
    slots: Mutex<HashMap<PathBuf, FetchSlot>>,
    /// True if another process has taken over the cache.
    has_stopped_storing: AtomicBool,
    /// Held for reading while a file is put into place, and for writing while a flush names or removes files.
    store_lock: RwLock<()>,
    remembered_passes: Mutex<HashMap<PathBuf, (Instant, NotCacheableReason)>>,
}

#[derive(Debug, Default)]
struct FetchSlot {
    /// The fetch that visitors join.
    current_fetch: Option<Arc<PendingFetch>>,
    /// The fetch that a flush overtook.
    overtaken_fetch: Option<Arc<PendingFetch>>,
}

impl FetchCoalescer {
    /// Joins the fetch of `file`, or starts it.
    pub(crate) fn join_or_pass(self: &Arc<Self>, file: &Path) -> FetchRole {
        if let Some(reason) = self.remembered_pass(file) {
            return FetchRole::Pass(reason);
        }
        self.join_or_lead(file)
    }

    /// Joins the fetch of `file`, or starts it, regardless of the last responses.
    pub(crate) fn join_or_lead(self: &Arc<Self>, file: &Path) -> FetchRole {
        let mut slots = self.slots.lock();
        let slot = slots.entry(file.to_owned()).or_default();
        if let Some(fetch) = &slot.current_fetch {
            return FetchRole::Join(Arc::clone(fetch));
        }
        let fetch = Arc::new(PendingFetch {
            file: file.to_owned(),
            is_flushed: AtomicBool::new(false),
            state: watch::Sender::new(PendingFetchState::default()),
            last_pass_at: Mutex::new(None),
        });
        slot.current_fetch = Some(Arc::clone(&fetch));
        FetchRole::Lead(FetchTicket {
            coalescer: Arc::clone(self),
            pending_fetch: fetch,
            outcome: None,
        })
    }

    /// Returns true if a fetch of `file` is pending.
    pub(crate) fn is_fetching(&self, file: &Path) -> bool {
        self.slots.lock().get(file).is_some_and(|slot| slot.current_fetch.is_some())
    }

    /// Returns the number of files being fetched.
    pub(crate) fn pending_count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Records that a flush names all files for which `is_named` holds; their pending fetches store nothing.
    pub(crate) fn mark_flushed(&self, is_named: impl Fn(&Path) -> bool) {
        let _nothing_is_stored = self.store_lock.write();
        for (file, slot) in self.slots.lock().iter_mut() {
            if !is_named(file) {
                continue;
            }
            let Some(fetch) = &slot.current_fetch else {
                continue;
            };
            fetch.is_flushed.store(true, Ordering::SeqCst);
            // The next visitor starts a new fetch, but a storm of flushes must not cause a storm of fetches.
            if slot.overtaken_fetch.is_none() {
                slot.overtaken_fetch = slot.current_fetch.take();
            }
        }
    }

    /// Prevents all fetches from storing from now on: another process handles the flushes.
    pub(crate) fn stop_storing(&self) {
        let _nothing_is_stored = self.store_lock.write();
        self.has_stopped_storing.store(true, Ordering::SeqCst);
    }

    /// Returns true if another process handles the flushes.
    pub(crate) fn has_stopped_storing(&self) -> bool {
        self.has_stopped_storing.load(Ordering::SeqCst)
    }

    /// Runs `remove` while no file is put into place.
    ///
    /// Body and header file are two files: removing the old pair during a replacement could leave the new body without
    /// its headers.
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

/// The exclusive right to fetch a file; dropping it notifies all waiting requests.
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
    /// [`NotCacheableReason::Flushed`], or the error of `store`.
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

    /// Announces the outcome to waiting requests; the fetch continues until [`FetchTicket::finish_fetch`].
    pub(crate) fn announce_outcome(&self, outcome: FetchOutcome) {
        self.pending_fetch.state.send_modify(|state| state.outcome = Some(outcome));
    }

    /// Finishes the fetch.
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
            for fetch_slot in [&mut slot.current_fetch, &mut slot.overtaken_fetch] {
                if fetch_slot.as_ref().is_some_and(|fetch| Arc::ptr_eq(fetch, &self.pending_fetch))
                {
                    *fetch_slot = None;
                }
            }
            if slot.current_fetch.is_none() && slot.overtaken_fetch.is_none() {
                entry.remove();
            }
        }
        // A ticket that is dropped unused, for example by a panic, must not leave visitors waiting.
        let outcome = self.outcome.take();
        self.pending_fetch.state.send_modify(|state| {
            let final_outcome = outcome.or_else(|| state.outcome.take());
            state.outcome = Some(
                final_outcome.unwrap_or(FetchOutcome::Failed(UpstreamFailure::ConnectionBroken)),
            );
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
    use crate::cache::not_cacheable_reason::NotCacheableReason;
    use crate::upstream::UpstreamFailure;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::time::Instant;

    const FILE: &str = "/docroot/a.html";

    fn lead(fetches: &Arc<FetchCoalescer>) -> FetchTicket {
        match fetches.join_or_pass(Path::new(FILE)) {
            FetchRole::Lead(ticket) => ticket,
            role => panic!("expected to lead, not {role:?}"),
        }
    }

    fn join(fetches: &Arc<FetchCoalescer>) -> Arc<PendingFetch> {
        match fetches.join_or_pass(Path::new(FILE)) {
            FetchRole::Join(fetch) => fetch,
            role => panic!("expected to join, not {role:?}"),
        }
    }

    const HALF_A_MINUTE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_second_joins_and_learns_the_outcome() {
        let fetches = Arc::new(FetchCoalescer::default());
        let ticket = lead(&fetches);
        let fetch = join(&fetches);
        ticket.finish_fetch(FetchOutcome::Failed(UpstreamFailure::Timeout));
        assert!(matches!(
            fetch.wait_for_outcome().await,
            FetchOutcome::Failed(UpstreamFailure::Timeout)
        ));
        assert_eq!(fetches.pending_count(), 0);
    }

    #[tokio::test]
    async fn a_lost_ticket_frees_those_who_wait() {
        let fetches = Arc::new(FetchCoalescer::default());
        let ticket = lead(&fetches);
        let fetch = join(&fetches);
        drop(ticket);
        assert!(matches!(fetch.wait_for_outcome().await, FetchOutcome::Failed(_)));
        drop(lead(&fetches));
    }

    #[tokio::test]
    async fn who_waits_for_a_fetch_that_is_given_up_enters_anew() {
        let fetches = Arc::new(FetchCoalescer::default());
        let ticket = lead(&fetches);
        let fetch = join(&fetches);
        ticket.finish_fetch(FetchOutcome::Retry);
        let mut waiting = FetchWait::new(HALF_A_MINUTE);
        let waited = fetch.wait_as_visitor(&mut waiting).await;
        assert!(matches!(waited, FetchWaitResult::Finished(FetchOutcome::Retry)), "{waited:?}");
        drop(lead(&fetches));
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_who_wait_long_one_goes_in_each_period_and_the_last_ones_in_vain() {
        let fetches = Arc::new(FetchCoalescer::default());
        let ticket = lead(&fetches);
        let start = Instant::now();
        let wait = |_: u32| {
            let fetch = join(&fetches);
            async move {
                let waited = fetch.wait_as_visitor(&mut FetchWait::new(HALF_A_MINUTE)).await;
                (format!("{waited:?}"), start.elapsed().as_secs())
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
        let none = join(&fetches).wait_as_visitor(&mut FetchWait::new(Duration::ZERO)).await;
        assert!(matches!(none, FetchWaitResult::FetchSelf), "who is not to wait does not");
        drop(ticket);
    }

    #[tokio::test]
    async fn who_comes_after_a_second_flush_waits_for_the_end_of_the_fetch_before_it() {
        let fetches = Arc::new(FetchCoalescer::default());
        let first = lead(&fetches);
        fetches.mark_flushed(|_| true);
        let second = lead(&fetches);
        let early = join(&fetches);
        fetches.mark_flushed(|_| true);
        let late = join(&fetches);
        assert!(Arc::ptr_eq(&early, &late) && late.is_flushed());
        let (mut came_early, mut came_late) =
            (FetchWait::new(HALF_A_MINUTE), FetchWait::new(HALF_A_MINUTE));
        // A visitor who waited since before the flush accepts any result.
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
        let fetches = Arc::new(FetchCoalescer::default());
        let first = lead(&fetches);
        fetches.mark_flushed(|file| file == Path::new(FILE));
        assert_eq!(first.store_unless_flushed(|| Ok(())), Err(NotCacheableReason::Flushed));
        let second = lead(&fetches);
        assert_eq!(second.store_unless_flushed(|| Ok(())), Ok(()));
        fetches.mark_flushed(|file| file == Path::new(FILE));
        assert_eq!(second.store_unless_flushed(|| Ok(())), Err(NotCacheableReason::Flushed));
        assert!(join(&fetches).is_flushed(), "two fetches are enough");
        drop((first, second));
        assert_eq!(fetches.pending_count(), 0);
        assert_eq!(lead(&fetches).store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_of_another_file_changes_nothing() {
        let fetches = Arc::new(FetchCoalescer::default());
        let ticket = lead(&fetches);
        fetches.mark_flushed(|file| file == Path::new("/docroot/b.html"));
        assert_eq!(ticket.store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_for_one_are_remembered_for_a_while() {
        let fetches = Arc::new(FetchCoalescer::default());
        lead(&fetches).finish_fetch(FetchOutcome::Unshared(NotCacheableReason::CacheControl));
        assert!(matches!(
            fetches.join_or_pass(Path::new(FILE)),
            FetchRole::Pass(NotCacheableReason::CacheControl)
        ));
        tokio::time::advance(super::PASS_MEMORY_DURATION).await;
        drop(lead(&fetches));
    }
}
