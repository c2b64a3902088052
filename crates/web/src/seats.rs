//! Seats: the places for the connections of one listener, who waits for one, and who leaves when others wait.
//!
//! A kept connection on which nothing is asked takes a seat as one that is busy does. So while hardly any seat is free, each
//! answer is the last of its connection, of which its client is told: it comes again, behind those who wait. While none is
//! free, those leave that have been waited for longest ([`Seats::evict`]), as nginx closes its reusable connections.
//!
//! Invariants
//! * No more connections are seated than there are seats. Who waits is seated in the order of arrival.
//! * A connection leaves between two requests only: one that is asked to leave in the middle of a request gets its answer.
//! * To note that a request begins or ends takes no lock.
//!
//! Not here: who is refused when too many wait (`listen`), and the connections of a lane ([`Lane::evict`]).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::lane::Lane;
use crate::listen::Counters;

/// Seats are scarce while fewer than one of so many is free.
const SCARCE_PART: usize = 16;
/// One of so many of those who may leave does, beside as many as wait: others will come soon.
const SPARE_PART: usize = 8;
/// No more than so many leave beside those.
const MOST_SPARE: usize = 32;
/// One that was asked to leave is waited for so long before others are asked in its stead.
const LEAVE_MS: u64 = 1_000;
/// A client that has not asked anything yet may stay for so long.
const FIRST_MS: u64 = 2_000;
/// After this time who waits asks again whether anybody may leave.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// When all who may leave were asked to, the seats are not looked at again for so long.
const PAUSE_MS: u64 = 10;

/// The seats of one listener.
#[derive(Debug)]
pub(crate) struct Seats {
    free: Arc<Semaphore>,
    /// Fewer free ones are too few.
    scarce: usize,
    waiting: AtomicUsize,
    most_waiting: usize,
    taken: Mutex<Taken>,
    lane: Option<Arc<dyn Lane>>,
    counters: Arc<Counters>,
    /// The zero of all times.
    begin: Instant,
    /// Before that time nobody looks at the seats again.
    next_look_ms: AtomicU64,
}

/// Who sits where.
#[derive(Debug, Default)]
struct Taken {
    seats: Vec<Option<Arc<Seat>>>,
    free: Vec<usize>,
}

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Seat {
    begin: Instant,
    /// Since when a request is waited for, or [`BUSY`] or [`ANSWERED`].
    since_ms: AtomicU64,
    /// When the connection was asked to leave; 0 before that.
    wanted_ms: AtomicU64,
    waker: AtomicWaker,
}

/// A request is being read or answered.
const BUSY: u64 = u64::MAX;
/// The answer is there; it may still be on its way.
const ANSWERED: u64 = u64::MAX - 1;

/// A seat that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) seat: Arc<Seat>,
    pub(crate) seats: Arc<Seats>,
    number: usize,
    /// None beyond the limit.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Seated {
    fn drop(&mut self) {
        // Before others may take it.
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = taken.seats.get_mut(self.number) {
            *place = None;
        }
        taken.free.push(self.number);
    }
}

/// One that waits for a seat, and is counted for as long as it does.
#[derive(Debug)]
pub(crate) struct Waiting(Arc<Seats>);

impl Waiting {
    fn begin(seats: &Arc<Seats>) -> Self {
        seats.waiting.fetch_add(1, Ordering::Relaxed);
        seats.counters.waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(seats))
    }

    /// Waits, and lets those leave of whom nothing is asked.
    pub(crate) async fn take(self) -> Seated {
        let seats = Arc::clone(&self.0);
        let mut turn = pin!(Arc::clone(&seats.free).acquire_owned());
        let permit = loop {
            tokio::select! {
                biased;
                permit = &mut turn => match permit {
                    Ok(permit) => break permit,
                    // Nobody closes the semaphore.
                    Err(_closed) => std::future::pending().await,
                },
                () = seats.look_again() => {}
            }
        };
        drop(self);
        seats.seat(Some(permit))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        self.0.counters.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seats {
    /// Makes `limit` seats, for which a quarter as many may wait.
    pub(crate) fn new(
        limit: usize,
        counters: Arc<Counters>,
        lane: Option<Arc<dyn Lane>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(limit)),
            scarce: limit / SCARCE_PART,
            waiting: AtomicUsize::new(0),
            most_waiting: limit / 4,
            taken: Mutex::default(),
            lane,
            counters,
            begin: Instant::now(),
            next_look_ms: AtomicU64::new(0),
        })
    }

    /// Takes a seat if one is free and nobody waits for it.
    pub(crate) fn take_now(self: &Arc<Self>) -> Option<Seated> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(self.seat(Some(permit)))
    }

    /// Makes another seat for one who came before the end and has none.
    pub(crate) fn add(self: &Arc<Self>) -> Seated {
        self.seat(None)
    }

    /// Waits for a seat.
    pub(crate) async fn take(self: &Arc<Self>) -> Seated {
        Waiting::begin(self).take().await
    }

    /// Begins to wait for a seat, unless too many do.
    pub(crate) fn begin_to_wait(self: &Arc<Self>) -> Option<Waiting> {
        let may_wait = self.waiting.load(Ordering::Relaxed) < self.most_waiting;
        may_wait.then(|| Waiting::begin(self))
    }

    /// Lets connections leave, and waits until more might.
    async fn look_again(&self) {
        self.evict();
        tokio::time::sleep(LOOK_AGAIN).await;
    }

    fn seat(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Seated {
        let seat = Arc::new(Seat::new(self.begin));
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let number = taken.free.pop().unwrap_or(taken.seats.len());
        let place = Some(Arc::clone(&seat));
        match taken.seats.get_mut(number) {
            Some(free) => *free = place,
            None => taken.seats.push(place),
        }
        drop(taken);
        Seated { seat, number, seats: Arc::clone(self), _permit: permit }
    }

    /// Tells whether answers are to be the last of their connections.
    pub(crate) fn are_scarce(&self) -> bool {
        self.free.available_permits() < self.scarce || self.waiting.load(Ordering::Relaxed) > 0
    }

    /// The same, of an answer that is given now and would not be the last one otherwise: it is counted.
    pub(crate) fn ask_back(&self) -> bool {
        let are_scarce = self.are_scarce();
        if are_scarce {
            self.counters.released.fetch_add(1, Ordering::Relaxed);
        }
        are_scarce
    }

    /// Returns when all connections have left.
    pub(crate) async fn emptied(&self, limit: usize) {
        let all = u32::try_from(limit).unwrap_or(u32::MAX);
        // Nobody closes the semaphore.
        self.free.acquire_many(all).await.ok();
    }

    /// Asks connections to leave of which a request was waited for longest: as many as wait for their seats, and some.
    fn evict(&self) {
        let now_ms = millis_since(self.begin);
        if now_ms < self.next_look_ms.load(Ordering::Relaxed) {
            return;
        }
        let waiting = self.waiting.load(Ordering::Relaxed).max(1);
        let (leaving, are_all) = self.longest(now_ms, waiting);
        leaving.iter().for_each(|seat| seat.want());
        if are_all {
            self.next_look_ms.store(now_ms + PAUSE_MS, Ordering::Relaxed);
        }
        if let Some(lane) = &self.lane {
            lane.evict(waiting, &self.counters);
        }
    }

    /// Finds the seats whose clients have asked nothing for longest, for so many who wait, and tells whether these are all of
    /// those who may leave.
    fn longest(&self, now_ms: u64, waiting: usize) -> (Vec<Arc<Seat>>, bool) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_leaving = |seat: &&Arc<Seat>| seat.is_leaving(now_ms);
        let leaving = taken.seats.iter().flatten().filter(is_leaving).count();
        if leaving >= waiting {
            return (Vec::new(), true);
        }
        let needed = waiting - leaving;
        let since = |seat: &Arc<Seat>| seat.since().filter(|since_ms| *since_ms <= now_ms);
        let mut found: Vec<(u64, &Arc<Seat>)> =
            taken.seats.iter().flatten().filter_map(|seat| Some((since(seat)?, seat))).collect();
        found.sort_unstable_by_key(|(since_ms, _)| *since_ms);
        let count = needed + (found.len() / SPARE_PART).min(MOST_SPARE);
        let are_all = found.len() <= count;
        (found.into_iter().take(count).map(|(_, seat)| Arc::clone(seat)).collect(), are_all)
    }
}

fn millis_since(begin: Instant) -> u64 {
    millis_between(begin, Instant::now())
}

fn millis_between(begin: Instant, now: Instant) -> u64 {
    let time = now.saturating_duration_since(begin);
    u64::try_from(time.as_millis()).unwrap_or(ANSWERED - 1)
}

impl Seat {
    /// Makes the seat of a connection that is being set up, by a clock that began then.
    pub(crate) fn new(begin: Instant) -> Self {
        Self {
            begin,
            since_ms: AtomicU64::new(BUSY),
            wanted_ms: AtomicU64::new(0),
            waker: AtomicWaker::new(),
        }
    }

    /// Returns since when a request is waited for, of a client that may be asked to leave.
    fn since(&self) -> Option<u64> {
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        (since_ms < ANSWERED && !self.is_wanted()).then_some(since_ms)
    }

    /// Tells whether a request is waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        self.since_ms.load(Ordering::Relaxed) < ANSWERED
    }

    /// Notes that the first request is waited for from now on: its client is given some time.
    pub(crate) fn note_first(&self) {
        self.since_ms.store(millis_since(self.begin) + FIRST_MS, Ordering::Relaxed);
    }

    /// Notes that a request is waited for from now on.
    pub(crate) fn note_waiting(&self, now: Instant) {
        self.since_ms.store(millis_between(self.begin, now), Ordering::Relaxed);
    }

    /// Notes that something of a request came.
    pub(crate) fn note_busy(&self) {
        self.since_ms.store(BUSY, Ordering::Relaxed);
    }

    /// Notes that a request has its answer, which may still have to be sent.
    pub(crate) fn note_answered(&self) {
        self.since_ms.store(ANSWERED, Ordering::Relaxed);
    }

    /// Asks the connection to leave.
    pub(crate) fn want(&self) {
        self.wanted_ms.store(millis_since(self.begin).max(1), Ordering::Relaxed);
        self.waker.wake();
    }

    /// Tells whether the connection is asked to leave.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_ms.load(Ordering::Relaxed) > 0
    }

    /// Tells whether the connection was asked to leave and may be about to.
    fn is_leaving(&self, now_ms: u64) -> bool {
        let wanted_ms = self.wanted_ms.load(Ordering::Relaxed);
        wanted_ms > 0 && now_ms < wanted_ms + LEAVE_MS
    }

    /// Is ready when the connection is asked to leave.
    fn poll_wanted(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.is_wanted() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the connection is asked to leave. One task at a time may wait.
    pub(crate) async fn wanted(&self) {
        poll_fn(|cx| self.poll_wanted(cx)).await;
    }

    /// Tells a reader that found nothing whether to leave. While an answer is made, nobody leaves.
    pub(crate) fn leaves(&self, cx: &Context<'_>) -> bool {
        match self.since_ms.load(Ordering::Relaxed) {
            BUSY => return false,
            ANSWERED => self.note_waiting(Instant::now()),
            _waiting => {}
        }
        self.poll_wanted(cx).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(limit: usize) -> Arc<Seats> {
        Seats::new(limit, Arc::default(), None)
    }

    /// Takes seats of clients that were answered one after the other.
    async fn answered(seats: &Arc<Seats>, count: usize) -> Vec<Seated> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.extend(seats.take_now());
            tokio::time::advance(Duration::from_millis(10)).await;
            all.iter().skip(all.len() - 1).for_each(|one| one.seat.note_waiting(Instant::now()));
        }
        all
    }

    fn wanted(all: &[Seated]) -> Vec<usize> {
        let wanted = |(number, one): (usize, &Seated)| one.seat.is_wanted().then_some(number);
        all.iter().enumerate().filter_map(wanted).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_waited_for_longest_leaves_first() {
        let seats = seats(4);
        let all = answered(&seats, 4).await;
        all[1].seat.note_busy();
        seats.evict();
        assert_eq!(wanted(&all), [0]);
        seats.evict();
        assert_eq!(wanted(&all), [0], "one is about to leave");
        for expected in [&[0, 2][..], &[0, 2, 3], &[0, 1, 2, 3], &[0, 1, 2, 3]] {
            all[1].seat.note_waiting(Instant::now());
            tokio::time::advance(Duration::from_millis(LEAVE_MS)).await;
            seats.evict();
            assert_eq!(wanted(&all), expected, "who does not leave is not asked twice");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_asked_nothing_yet_is_given_time() {
        let seats = seats(1);
        let one = seats.take_now().unwrap();
        seats.evict();
        assert!(!one.seat.is_wanted(), "it is being set up");
        one.seat.note_first();
        tokio::time::advance(Duration::from_millis(FIRST_MS - 1)).await;
        seats.evict();
        assert!(!one.seat.is_wanted());
        seats.evict();
        tokio::time::advance(Duration::from_millis(1)).await;
        seats.evict();
        assert!(!one.seat.is_wanted(), "nobody looks again so soon");
        tokio::time::advance(Duration::from_millis(PAUSE_MS)).await;
        seats.evict();
        assert!(one.seat.is_wanted());
    }

    #[tokio::test(start_paused = true)]
    async fn several_leave_for_several_and_some_more_of_many() {
        let seats = seats(100);
        let all = answered(&seats, 100).await;
        let (one, two) = (tokio::spawn(turn(&seats)), tokio::spawn(turn(&seats)));
        tokio::task::yield_now().await;
        tokio::time::advance(LOOK_AGAIN).await;
        tokio::task::yield_now().await;
        assert!(wanted(&all).len() > 100 / SPARE_PART, "{:?}", wanted(&all));
        drop(all);
        one.await.unwrap();
        two.await.unwrap();
        assert!(!seats.are_scarce());
        assert!(seats.taken.lock().unwrap().seats.iter().all(Option::is_none));
    }

    fn turn(seats: &Arc<Seats>) -> impl Future<Output = ()> + use<> {
        let seats = Arc::clone(seats);
        async move { drop(seats.take().await) }
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_scarce_before_the_last_is_taken_and_while_somebody_waits() {
        let seats = seats(32);
        let mut all = answered(&seats, 30).await;
        assert!(!seats.are_scarce(), "two are free");
        all.extend(answered(&seats, 1).await);
        assert!(seats.are_scarce() && seats.ask_back());
        assert_eq!(seats.counters.released.load(Ordering::Relaxed), 1);
        let few = self::seats(1);
        let only = few.take_now().unwrap();
        assert!(!few.are_scarce(), "nobody wants the only one");
        assert!(few.take_now().is_none());
        let waits = tokio::spawn(turn(&few));
        tokio::task::yield_now().await;
        assert!(few.are_scarce() && few.begin_to_wait().is_none());
        assert_eq!(few.counters.waiting.load(Ordering::Relaxed), 1);
        drop(only);
        waits.await.unwrap();
        assert_eq!(few.counters.waiting.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_given_up_is_none() {
        let seats = seats(8);
        let all = answered(&seats, 8).await;
        let wait = tokio::time::timeout(Duration::from_millis(1), seats.take()).await;
        assert!(wait.is_err() && !seats.are_scarce());
        drop(all);
        assert!(seats.take_now().is_some());
    }

    #[test]
    fn nobody_leaves_while_an_answer_is_made() {
        let seat = Seat::new(Instant::now());
        let cx = Context::from_waker(std::task::Waker::noop());
        seat.want();
        assert!(!seat.leaves(&cx));
        seat.note_answered();
        assert!(seat.leaves(&cx));
    }
}
