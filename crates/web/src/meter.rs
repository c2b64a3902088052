//! What happens on an HTTP/2 connection: which streams wait for whom, and whether the client plays by the rules.
//!
//! HTTP/1.1 has one request at a time, so timers at its socket are enough. An HTTP/2 client can keep a connection lively
//! while it takes no byte of its answers, holds the connection open without asking anything, or asks and takes back in
//! a loop; only the streams tell.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// So many requests that were taken back before their answer are nobody's impatience, if they are most of all.
const MAX_CANCELED: u64 = 100;

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
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
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
        self.active.fetch_add(1, Ordering::Relaxed);
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
        Metered { body, stream: self }
    }

    /// Notes whether the client could take more now.
    fn offer(&mut self, is_offered: bool) {
        self.meter.note();
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
        self.meter.active.fetch_sub(1, Ordering::Relaxed);
        if !self.is_answered {
            self.meter.canceled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A body that tells a [`Meter`] when the client takes something.
#[derive(Debug)]
pub(crate) struct Metered<B> {
    body: B,
    stream: Stream,
}

impl<B: Body + Unpin> Body for Metered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // A body that has nothing yet waits for its source, not for the client.
        self.stream.offer(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::{Closed, MAX_CANCELED, Meter};
    use bytes::Bytes;
    use http_body_util::Full;
    use std::time::Duration;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(60);
    const STALL: Duration = Duration::from_secs(30);

    #[test]
    fn only_a_client_that_lets_answers_wait_is_stalled() {
        let meter = Meter::new();
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
        let meter = Meter::new();
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
        let meter = Meter::new();
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
}
