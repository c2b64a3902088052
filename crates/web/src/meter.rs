//! What happens on an HTTP/2 connection: which streams wait for whom, and whether the client plays by the rules.
//!
//! HTTP/1.1 has one request at a time, so timers at its socket are enough. An HTTP/2 client can keep a connection lively
//! while it takes no byte of its answers, holds the connection open without asking anything, or asks and takes back in
//! a loop; only the streams tell.
//!
//! A client of which nothing moves is closed. One that lets an answer wait while it takes others loses that answer alone,
//! later ([`Streams`]): hyper does not tell whether an answer waits for its window or for its turn.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::Instant;
use tracing::debug;

use crate::seats::Seat;

/// So many requests that were taken back before their answer are nobody's impatience, if they are most of all.
const MAX_CANCELED: u64 = 100;

tokio::task_local! {
    /// The answer that this task sends.
    static OFFER: Arc<Offer>;
}

/// Since when the client could take more of one answer.
#[derive(Debug, Default)]
struct Offer(Mutex<Option<Instant>>);

impl Offer {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until the client took nothing for so long.
    async fn overdue(&self, after: Duration) {
        loop {
            let now = Instant::now();
            let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match since.unwrap_or(now).checked_add(after) {
                Some(end) if end <= now => return,
                Some(end) => tokio::time::sleep_until(end).await,
                // What does not fit into the clock is for ever.
                None => std::future::pending().await,
            }
        }
    }
}

/// Runs the streams of a connection, and ends those of whose answer the client took nothing for too long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams {
    /// How long that is.
    pub(crate) after: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let after = self.after;
        let offer = Arc::new(Offer::default());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = OFFER.scope(Arc::clone(&offer), stream) => {}
                // h2 resets a stream that nobody holds any more.
                () = offer.overdue(after) => debug!("an answer was given up, as its client takes nothing of it"),
            }
        });
    }
}

/// The streams of one connection.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Requests whose answer has not been sent whole.
    active: AtomicUsize,
    /// Answers of which the client could take more now.
    offered: AtomicUsize,
    requests: AtomicU64,
    canceled: AtomicU64,
    /// When a request came, an answer ended, or a client took something.
    moved: Mutex<Instant>,
    /// What others see of the connection, if it has a seat.
    seat: Option<Arc<Seat>>,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Closed {
    #[error("the client asked nothing for a while")]
    Idle,
    #[error("the client takes nothing of its answers")]
    Stalled,
    #[error("the client takes back most of its requests")]
    Flood,
}

impl Meter {
    pub(crate) fn new(seat: Option<Arc<Seat>>) -> Arc<Self> {
        Arc::new(Self {
            seat,
            active: AtomicUsize::new(0),
            offered: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            canceled: AtomicU64::new(0),
            moved: Mutex::new(Instant::now()),
        })
    }

    fn note(&self) {
        *self.moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Counts a request until its answer is sent or given up.
    pub(crate) fn begin(self: &Arc<Self>) -> Stream {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if self.active.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(seat) = &self.seat
        {
            seat.note_busy();
        }
        self.note();
        Stream { meter: Arc::clone(self), is_answered: false, is_offered: false }
    }

    /// Waits until there is a reason to close the connection.
    pub(crate) async fn closed(&self, idle: Duration, stall: Duration) -> Closed {
        let pause = idle.min(stall).min(Duration::from_secs(4)) / 4;
        loop {
            tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
            if self.judge(idle, stall, Instant::now()).is_none() {
                continue;
            }
            // This process may be what is late: what the client sent meanwhile is looked at first.
            tokio::task::yield_now().await;
            if let Some(closed) = self.judge(idle, stall, Instant::now()) {
                return closed;
            }
        }
    }

    fn judge(&self, idle: Duration, stall: Duration, now: Instant) -> Option<Closed> {
        let moved = *self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let still = now.saturating_duration_since(moved);
        let canceled = self.canceled.load(Ordering::Relaxed);
        if canceled >= MAX_CANCELED && canceled * 2 > self.requests.load(Ordering::Relaxed) {
            return Some(Closed::Flood);
        }
        if self.active.load(Ordering::Relaxed) == 0 {
            return (still >= idle).then_some(Closed::Idle);
        }
        (self.offered.load(Ordering::Relaxed) > 0 && still >= stall).then_some(Closed::Stalled)
    }
}

/// One request and its answer.
#[derive(Debug)]
pub(crate) struct Stream {
    meter: Arc<Meter>,
    is_answered: bool,
    is_offered: bool,
}

impl Stream {
    /// Watches the answer's body from now on.
    pub(crate) fn answer<B>(mut self, body: B) -> Metered<B> {
        self.is_answered = true;
        self.offer(true);
        Metered { body, rest: Bytes::new(), stream: self }
    }

    /// Notes whether the client could take more now.
    fn offer(&mut self, is_offered: bool) {
        self.meter.note();
        // Elsewhere there is nothing to give up.
        OFFER.try_with(|offer| offer.set(is_offered.then(Instant::now))).ok();
        match (self.is_offered, is_offered) {
            (false, true) => {
                self.meter.offered.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                self.meter.offered.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        self.is_offered = is_offered;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.offer(false);
        if self.meter.active.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(seat) = &self.meter.seat
        {
            seat.note_waiting(Instant::now());
        }
        if !self.is_answered {
            self.meter.canceled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What is given out of a body at once: a frame, so that what the client has not taken is seen.
const PIECE: usize = 16 * 1024;

/// A body that tells a [`Meter`] when the client takes something.
#[derive(Debug)]
pub(crate) struct Metered<B> {
    body: B,
    /// What the body gave, and the client was not offered.
    rest: Bytes,
    stream: Stream,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut frame = if this.rest.is_empty() {
            Pin::new(&mut this.body).poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.rest)))))
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(bytes) = frame.data_mut()
            && bytes.len() > PIECE
        {
            this.rest = bytes.split_off(PIECE);
        }
        // A body that has nothing yet waits for its source, not for the client.
        this.stream.offer(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(body.lower().saturating_add(rest));
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::{Closed, MAX_CANCELED, Meter, PIECE};
    use bytes::Bytes;
    use http_body::Body;
    use http_body_util::{BodyExt, Full};
    use std::time::Duration;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(60);
    const STALL: Duration = Duration::from_secs(30);

    #[test]
    fn only_a_client_that_lets_answers_wait_is_stalled() {
        let meter = Meter::new(None);
        let judge =
            |seconds| meter.judge(IDLE, STALL, Instant::now() + Duration::from_secs(seconds));
        assert_eq!(judge(59), None);
        assert_eq!(judge(61), Some(Closed::Idle));
        let stream = meter.begin();
        assert_eq!(judge(1000), None, "a slow render is not the client's fault");
        let body = stream.answer(Full::new(Bytes::from_static(b"page")));
        assert_eq!(judge(29), None);
        assert_eq!(judge(31), Some(Closed::Stalled));
        drop(body);
        assert_eq!(judge(31), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_was_late_counts() {
        let meter = Meter::new(None);
        let connection = async {
            tokio::time::sleep(Duration::from_secs(59)).await;
            let stream = meter.begin();
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(stream);
        };
        let late = tokio::spawn(async { tokio::time::advance(Duration::from_secs(70)).await });
        tokio::select! {
            biased;
            closed = meter.closed(IDLE, STALL) => panic!("{closed}"),
            () = connection => {}
        }
        late.await.unwrap();
    }

    #[test]
    fn many_requests_taken_back_are_a_flood() {
        let meter = Meter::new(None);
        let judge = || meter.judge(IDLE, STALL, Instant::now());
        for _ in 1..MAX_CANCELED {
            drop(meter.begin());
        }
        assert_eq!(judge(), None);
        drop(meter.begin());
        assert_eq!(judge(), Some(Closed::Flood));
        for _ in 0..MAX_CANCELED {
            drop(meter.begin().answer(Full::<Bytes>::default()));
        }
        assert_eq!(judge(), None, "an honest client may be impatient too");
    }

    #[tokio::test]
    async fn a_large_body_is_offered_in_pieces() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2 * PIECE + 7).collect();
        let mut body = Meter::new(None).begin().answer(Full::<Bytes>::from(bytes.clone()));
        let mut seen = Vec::new();
        for length in [PIECE, PIECE, 7] {
            assert!(!body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some((bytes.len() - seen.len()) as u64));
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), length);
            seen.extend_from_slice(&piece);
        }
        assert!(seen == bytes && body.is_end_stream());
    }
}
