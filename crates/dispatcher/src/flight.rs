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

use crate::cacheable::Reason;
use crate::page::Page;
use crate::upstream::Failure;

/// Visitors do not wait for each other at a file whose last answer could not be stored, for this long.
const PASS_MEMORY: Duration = Duration::from_secs(2);
/// So many such files are remembered.
const PASS_MEMORY_ENTRIES: usize = 4096;
/// Visitors wait for twice the time that their farm says, and no shorter than this, before they are turned away.
const MIN_PATIENCE: Duration = Duration::from_secs(60);

/// How a fetch ended.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// With a page for everyone.
    Shared(Arc<Page>),
    /// With an answer for its own visitor only.
    Alone(Reason),
    /// Without an answer.
    Failed(Failure),
    /// Given up, as it was not wanted or its answer not good enough: who waits looks and enters anew.
    Again,
}

/// One fetch.
#[derive(Debug)]
pub(crate) struct Flight {
    file: PathBuf,
    is_flushed: AtomicBool,
    state: watch::Sender<State>,
    /// When one of those who wait last went to fetch for itself.
    passed: Mutex<Option<Instant>>,
}

/// How far a fetch is.
#[derive(Debug, Default)]
struct State {
    /// Known before the end where those who wait read along.
    outcome: Option<Outcome>,
    is_over: bool,
}

/// How long a visitor waits for the fetches of others.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// So often one of those who wait may fetch for itself; zero if nobody wants to wait.
    period: Duration,
    deadline: Instant,
    has_begun: bool,
}

impl Waiting {
    pub(crate) fn new(period: Duration) -> Self {
        let longest = period.saturating_mul(2).max(MIN_PATIENCE);
        Self { period, deadline: Instant::now() + longest, has_begun: false }
    }

    /// Tells whether no fetch was waited for yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.has_begun
    }
}

/// How a wait for another one's fetch ended.
#[derive(Debug)]
pub(crate) enum Waited {
    /// With the fetch.
    Ended(Outcome),
    /// It takes long, and of those who wait this one is to fetch for itself.
    MayPass,
    /// It takes too long.
    InVain,
}

impl Flight {
    /// Waits until it is known how the fetch ends.
    pub(crate) async fn outcome(&self) -> Outcome {
        self.when(|state| state.outcome.is_some()).await
    }

    /// Waits for the end of the fetch.
    pub(crate) async fn end(&self) -> Outcome {
        self.when(|state| state.is_over).await
    }

    async fn when(&self, is_reached: impl Fn(&State) -> bool) -> Outcome {
        let mut state = self.state.subscribe();
        let reached = state.wait_for(|state| is_reached(state)).await;
        let outcome = reached.ok().and_then(|state| state.outcome.clone());
        outcome.unwrap_or(Outcome::Failed(Failure::Broken))
    }

    /// Waits for the fetch as a visitor does who came to it.
    pub(crate) async fn wait(&self, waiting: &mut Waiting) -> Waited {
        // Whoever waited already came before any later fetch began.
        let is_late = !std::mem::replace(&mut waiting.has_begun, true) && self.is_flushed();
        let mut ended = std::pin::pin!(async {
            if is_late {
                self.end().await;
                return Outcome::Again;
            }
            self.outcome().await
        });
        let period = waiting.period.max(Duration::from_millis(1));
        loop {
            let until = (Instant::now() + period).min(waiting.deadline);
            match tokio::time::timeout_at(until, &mut ended).await {
                Ok(outcome) => return Waited::Ended(outcome),
                Err(_) if waiting.period.is_zero() || self.may_pass(period) => {
                    return Waited::MayPass;
                }
                Err(_) if Instant::now() >= waiting.deadline => return Waited::InVain,
                Err(_another_one_may) => {}
            }
        }
    }

    /// Lets one of those who wait go in each period.
    fn may_pass(&self, period: Duration) -> bool {
        let (mut passed, now) = (self.passed.lock(), Instant::now());
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
pub(crate) enum Role {
    /// It has to fetch.
    Lead(Ticket),
    /// Another one does.
    Join(Arc<Flight>),
    /// The last answers were for single visitors, so it fetches for itself.
    Pass(Reason),
}

/// All fetches of a dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    slots: Mutex<HashMap<PathBuf, Slot>>,
    /// Whether another process has taken the cache over.
    is_closed: AtomicBool,
    /// Held for reading while a file is put into place, for writing while a flush names or removes files.
    gate: RwLock<()>,
    passes: Mutex<HashMap<PathBuf, (Instant, Reason)>>,
}

#[derive(Debug, Default)]
struct Slot {
    /// The fetch that visitors join.
    current: Option<Arc<Flight>>,
    /// The one that a flush overtook.
    overtaken: Option<Arc<Flight>>,
}

impl Flights {
    /// Joins the fetch of `file`, or begins it.
    pub(crate) fn enter(self: &Arc<Self>, file: &Path) -> Role {
        if let Some(reason) = self.remembered_pass(file) {
            return Role::Pass(reason);
        }
        self.lead_or_join(file)
    }

    /// Joins the fetch of `file`, or begins it, whatever the last answers were.
    pub(crate) fn lead_or_join(self: &Arc<Self>, file: &Path) -> Role {
        let mut slots = self.slots.lock();
        let slot = slots.entry(file.to_owned()).or_default();
        if let Some(flight) = &slot.current {
            return Role::Join(Arc::clone(flight));
        }
        let flight = Arc::new(Flight {
            file: file.to_owned(),
            is_flushed: AtomicBool::new(false),
            state: watch::Sender::new(State::default()),
            passed: Mutex::new(None),
        });
        slot.current = Some(Arc::clone(&flight));
        Role::Lead(Ticket { flights: Arc::clone(self), flight, outcome: None })
    }

    /// Tells whether a fetch of `file` is under way.
    pub(crate) fn is_fetching(&self, file: &Path) -> bool {
        self.slots.lock().get(file).is_some_and(|slot| slot.current.is_some())
    }

    /// Returns how many files are being fetched.
    pub(crate) fn count(&self) -> usize {
        self.slots.lock().len()
    }

    /// Notes that a flush names all files for which `is_named` holds; their fetches store nothing.
    pub(crate) fn flush(&self, is_named: impl Fn(&Path) -> bool) {
        let _nothing_is_stored = self.gate.write();
        for (file, slot) in self.slots.lock().iter_mut() {
            if !is_named(file) {
                continue;
            }
            let Some(flight) = &slot.current else {
                continue;
            };
            flight.is_flushed.store(true, Ordering::SeqCst);
            // The next visitor begins anew, but a storm of flushes must not make a storm of fetches.
            if slot.overtaken.is_none() {
                slot.overtaken = slot.current.take();
            }
        }
    }

    /// Lets no fetch store anything from now on: another process obeys the flushes.
    pub(crate) fn close(&self) {
        let _nothing_is_stored = self.gate.write();
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Tells whether another process obeys the flushes by now.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Runs `remove` while no file is put into place.
    ///
    /// Body and header file are two files: one that removes the old pair while a new one comes could leave the new body
    /// without its headers.
    pub(crate) fn while_nothing_is_stored<T>(&self, remove: impl FnOnce() -> T) -> T {
        let _nothing_is_stored = self.gate.write();
        remove()
    }

    fn remembered_pass(&self, file: &Path) -> Option<Reason> {
        let passes = self.passes.lock();
        let (until, reason) = passes.get(file)?;
        (*until > Instant::now()).then_some(*reason)
    }

    fn remember_pass(&self, file: &Path, reason: Reason) {
        let now = Instant::now();
        let mut passes = self.passes.lock();
        if passes.len() >= PASS_MEMORY_ENTRIES {
            passes.retain(|_, (until, _)| *until > now);
        }
        if passes.len() < PASS_MEMORY_ENTRIES {
            passes.insert(file.to_owned(), (now + PASS_MEMORY, reason));
        }
    }
}

/// The right and duty to fetch a file; dropping it tells all who wait.
#[derive(Debug)]
pub(crate) struct Ticket {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    outcome: Option<Outcome>,
}

impl Ticket {
    /// Runs `store` unless a flush named the file since the fetch began.
    ///
    /// # Errors
    /// [`Reason::Flushed`], or what `store` returns.
    pub(crate) fn store_unless_flushed(
        &self,
        store: impl FnOnce() -> Result<(), Reason>,
    ) -> Result<(), Reason> {
        let _no_flush_names_files = self.flights.gate.read();
        if self.flight.is_flushed() || self.flights.is_closed() {
            return Err(Reason::Flushed);
        }
        store()
    }

    /// Tells those who wait for the fetch how it will end; it goes on until [`Ticket::finish`].
    pub(crate) fn announce(&self, outcome: Outcome) {
        self.flight.state.send_modify(|state| state.outcome = Some(outcome));
    }

    /// Ends the fetch.
    pub(crate) fn finish(mut self, outcome: Outcome) {
        if let Outcome::Alone(reason) = outcome {
            self.flights.remember_pass(&self.flight.file, reason);
        }
        self.outcome = Some(outcome);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) =
            self.flights.slots.lock().entry(self.flight.file.clone())
        {
            let slot = entry.get_mut();
            for place in [&mut slot.current, &mut slot.overtaken] {
                if place.as_ref().is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
                    *place = None;
                }
            }
            if slot.current.is_none() && slot.overtaken.is_none() {
                entry.remove();
            }
        }
        // A ticket that is dropped unused, as by a panic, must not leave visitors waiting.
        let outcome = self.outcome.take();
        self.flight.state.send_modify(|state| {
            let known = outcome.or_else(|| state.outcome.take());
            state.outcome = Some(known.unwrap_or(Outcome::Failed(Failure::Broken)));
            state.is_over = true;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Flight, Flights, Outcome, Role, Ticket, Waited, Waiting};
    use crate::cacheable::Reason;
    use crate::upstream::Failure;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::time::Instant;

    const FILE: &str = "/docroot/a.html";

    fn lead(flights: &Arc<Flights>) -> Ticket {
        match flights.enter(Path::new(FILE)) {
            Role::Lead(ticket) => ticket,
            role => panic!("expected to lead, not {role:?}"),
        }
    }

    fn join(flights: &Arc<Flights>) -> Arc<Flight> {
        match flights.enter(Path::new(FILE)) {
            Role::Join(flight) => flight,
            role => panic!("expected to join, not {role:?}"),
        }
    }

    const HALF_A_MINUTE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_second_joins_and_learns_the_outcome() {
        let flights = Arc::new(Flights::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        ticket.finish(Outcome::Failed(Failure::Timeout));
        assert!(matches!(flight.outcome().await, Outcome::Failed(Failure::Timeout)));
        assert_eq!(flights.count(), 0);
    }

    #[tokio::test]
    async fn a_lost_ticket_frees_those_who_wait() {
        let flights = Arc::new(Flights::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        drop(ticket);
        assert!(matches!(flight.outcome().await, Outcome::Failed(_)));
        drop(lead(&flights));
    }

    #[tokio::test]
    async fn who_waits_for_a_fetch_that_is_given_up_enters_anew() {
        let flights = Arc::new(Flights::default());
        let ticket = lead(&flights);
        let flight = join(&flights);
        ticket.finish(Outcome::Again);
        let mut waiting = Waiting::new(HALF_A_MINUTE);
        let waited = flight.wait(&mut waiting).await;
        assert!(matches!(waited, Waited::Ended(Outcome::Again)), "{waited:?}");
        drop(lead(&flights));
    }

    #[tokio::test(start_paused = true)]
    async fn of_those_who_wait_long_one_goes_in_each_period_and_the_last_ones_in_vain() {
        let flights = Arc::new(Flights::default());
        let ticket = lead(&flights);
        let begun = Instant::now();
        let wait = |_: u32| {
            let flight = join(&flights);
            async move {
                let waited = flight.wait(&mut Waiting::new(HALF_A_MINUTE)).await;
                (format!("{waited:?}"), begun.elapsed().as_secs())
            }
        };
        let waited = futures_util::future::join_all((0..100).map(wait)).await;
        let count = |text: &str, at| {
            let is_it =
                |(waited, seconds): &&(String, u64)| (waited.as_str(), *seconds) == (text, at);
            waited.iter().filter(is_it).count()
        };
        assert_eq!((count("MayPass", 30), count("MayPass", 60), count("InVain", 60)), (1, 1, 98));
        let none = join(&flights).wait(&mut Waiting::new(Duration::ZERO)).await;
        assert!(matches!(none, Waited::MayPass), "who is not to wait does not");
        drop(ticket);
    }

    #[tokio::test]
    async fn who_comes_after_a_second_flush_waits_for_the_end_of_the_fetch_before_it() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights);
        flights.flush(|_| true);
        let second = lead(&flights);
        let early = join(&flights);
        flights.flush(|_| true);
        let late = join(&flights);
        assert!(Arc::ptr_eq(&early, &late) && late.is_flushed());
        let (mut came_early, mut came_late) =
            (Waiting::new(HALF_A_MINUTE), Waiting::new(HALF_A_MINUTE));
        // Who came before the flush and waited already takes what comes.
        came_early.has_begun = true;
        let reading_along = late.wait(&mut came_late);
        second.announce(Outcome::Failed(Failure::Timeout));
        let waited = early.wait(&mut came_early).await;
        assert!(matches!(waited, Waited::Ended(Outcome::Failed(Failure::Timeout))), "{waited:?}");
        second.finish(Outcome::Failed(Failure::Timeout));
        let waited = reading_along.await;
        assert!(matches!(waited, Waited::Ended(Outcome::Again)), "{waited:?}");
        drop(first);
    }

    #[test]
    fn a_flush_overtakes_a_fetch_once() {
        let flights = Arc::new(Flights::default());
        let first = lead(&flights);
        flights.flush(|file| file == Path::new(FILE));
        assert_eq!(first.store_unless_flushed(|| Ok(())), Err(Reason::Flushed));
        let second = lead(&flights);
        assert_eq!(second.store_unless_flushed(|| Ok(())), Ok(()));
        flights.flush(|file| file == Path::new(FILE));
        assert_eq!(second.store_unless_flushed(|| Ok(())), Err(Reason::Flushed));
        assert!(join(&flights).is_flushed(), "two fetches are enough");
        drop((first, second));
        assert_eq!(flights.count(), 0);
        assert_eq!(lead(&flights).store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[test]
    fn a_flush_of_another_file_changes_nothing() {
        let flights = Arc::new(Flights::default());
        let ticket = lead(&flights);
        flights.flush(|file| file == Path::new("/docroot/b.html"));
        assert_eq!(ticket.store_unless_flushed(|| Ok(())), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_for_one_are_remembered_for_a_while() {
        let flights = Arc::new(Flights::default());
        lead(&flights).finish(Outcome::Alone(Reason::CacheControl));
        assert!(matches!(flights.enter(Path::new(FILE)), Role::Pass(Reason::CacheControl)));
        tokio::time::advance(super::PASS_MEMORY).await;
        drop(lead(&flights));
    }
}
