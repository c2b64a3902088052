//! Monitoring of an HTTP/2 connection: detects stalled streams and misbehaving clients.
//!
//! HTTP/1.1 has one request at a time, so timers at its socket are sufficient. An HTTP/2 client can keep a connection
//! active while it reads nothing of its responses, hold the connection open without requests, or send and cancel
//! requests in a loop; only the streams show that.
//!
//! A connection without any progress is closed. If the client stalls one response while it reads others, only that
//! response is canceled, and later ([`StreamExecutor`]): hyper does not report whether a response waits for its window
//! or for its turn.

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

use crate::server::connection_limit::ConnectionActivity;

/// From this number on, requests canceled before their response count as abuse if they are the majority of all
/// requests.
const MAX_CANCELED_REQUESTS: u64 = 100;

tokio::task_local! {
    /// The response that this task sends.
    static OFFER: Arc<SendWaitStart>;
}

/// Start of the wait for the client to read more of a response.
#[derive(Debug, Default)]
struct SendWaitStart(Mutex<Option<Instant>>);

impl SendWaitStart {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until the client has read nothing for the given time.
    async fn wait_overdue(&self, after: Duration) {
        loop {
            let now = Instant::now();
            let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match since.unwrap_or(now).checked_add(after) {
                Some(end) if end <= now => return,
                Some(end) => tokio::time::sleep_until(end).await,
                // A deadline beyond the range of the clock means no timeout.
                None => std::future::pending().await,
            }
        }
    }
}

/// Runs the streams of a connection, and ends those whose client has read nothing of the response for too long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamExecutor {
    /// The timeout of a response.
    pub(crate) write_timeout: Duration,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let after = self.write_timeout;
        let offer = Arc::new(SendWaitStart::default());
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = OFFER.scope(Arc::clone(&offer), stream) => {}
                // h2 resets a stream when its last handle is dropped.
                () = offer.wait_overdue(after) => debug!("response aborted; the client stopped reading it"),
            }
        });
    }
}

/// The streams of one connection.
#[derive(Debug)]
pub(crate) struct StreamMonitor {
    /// Number of requests whose response has not been sent completely.
    active_requests: AtomicUsize,
    /// Number of responses that wait for the client to read.
    waiting_responses: AtomicUsize,
    request_count: AtomicU64,
    canceled_requests: AtomicU64,
    /// Time of the last request, the last completed response, or the last read by the client.
    last_progress: Mutex<Instant>,
    /// The shared activity of the connection, if it has a permit.
    activity: Option<Arc<ConnectionActivity>>,
}

/// The reason to close a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Http2CloseReason {
    #[error("the client sent no requests for too long")]
    Idle,
    #[error("the client does not read its responses")]
    WriteTimeout,
    #[error("the client cancels most of its requests")]
    CancelFlood,
}

impl StreamMonitor {
    pub(crate) fn new(activity: Option<Arc<ConnectionActivity>>) -> Arc<Self> {
        Arc::new(Self {
            activity,
            active_requests: AtomicUsize::new(0),
            waiting_responses: AtomicUsize::new(0),
            request_count: AtomicU64::new(0),
            canceled_requests: AtomicU64::new(0),
            last_progress: Mutex::new(Instant::now()),
        })
    }

    fn record_progress(&self) {
        *self.last_progress.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Counts a request until its response is sent or dropped.
    pub(crate) fn begin_stream(self: &Arc<Self>) -> MonitoredStream {
        self.request_count.fetch_add(1, Ordering::Relaxed);
        if self.active_requests.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(activity) = &self.activity
        {
            activity.record_active();
        }
        self.record_progress();
        MonitoredStream {
            monitor: Arc::clone(self),
            is_answered: false,
            is_waiting_for_client: false,
        }
    }

    /// Waits until the connection must be closed, and returns the reason.
    pub(crate) async fn wait_close_reason(
        &self,
        idle: Duration,
        write_timeout: Duration,
    ) -> Http2CloseReason {
        let pause = idle.min(write_timeout).min(Duration::from_secs(4)) / 4;
        loop {
            tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
            if self.close_reason(idle, write_timeout, Instant::now()).is_none() {
                continue;
            }
            // This process may be the cause of the delay: first handle what the client has sent in the meantime.
            tokio::task::yield_now().await;
            if let Some(closed) = self.close_reason(idle, write_timeout, Instant::now()) {
                return closed;
            }
        }
    }

    fn close_reason(
        &self,
        idle: Duration,
        write_timeout: Duration,
        now: Instant,
    ) -> Option<Http2CloseReason> {
        let moved = *self.last_progress.lock().unwrap_or_else(PoisonError::into_inner);
        let still = now.saturating_duration_since(moved);
        let canceled = self.canceled_requests.load(Ordering::Relaxed);
        if canceled >= MAX_CANCELED_REQUESTS
            && canceled * 2 > self.request_count.load(Ordering::Relaxed)
        {
            return Some(Http2CloseReason::CancelFlood);
        }
        if self.active_requests.load(Ordering::Relaxed) == 0 {
            return (still >= idle).then_some(Http2CloseReason::Idle);
        }
        (self.waiting_responses.load(Ordering::Relaxed) > 0 && still >= write_timeout)
            .then_some(Http2CloseReason::WriteTimeout)
    }
}

/// A request and its response.
#[derive(Debug)]
pub(crate) struct MonitoredStream {
    monitor: Arc<StreamMonitor>,
    is_answered: bool,
    is_waiting_for_client: bool,
}

impl MonitoredStream {
    /// Monitors the response body from now on.
    pub(crate) fn monitor_body<B>(mut self, body: B) -> MonitoredBody<B> {
        self.is_answered = true;
        self.set_waiting_for_client(true);
        MonitoredBody { body, pending_bytes: Bytes::new(), stream: self }
    }

    /// Records whether the response waits for the client.
    fn set_waiting_for_client(&mut self, is_offered: bool) {
        self.monitor.record_progress();
        // Outside a stream task there is nothing to cancel.
        OFFER.try_with(|offer| offer.set(is_offered.then(Instant::now))).ok();
        match (self.is_waiting_for_client, is_offered) {
            (false, true) => {
                self.monitor.waiting_responses.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                self.monitor.waiting_responses.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        self.is_waiting_for_client = is_offered;
    }
}

impl Drop for MonitoredStream {
    fn drop(&mut self) {
        self.set_waiting_for_client(false);
        if self.monitor.active_requests.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(activity) = &self.monitor.activity
        {
            activity.record_idle(Instant::now());
        }
        if !self.is_answered {
            self.monitor.canceled_requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Maximum size of a piece of the body: one frame, so that data that the client has not read is detected.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// A body that reports the progress of its client to a [`StreamMonitor`].
#[derive(Debug)]
pub(crate) struct MonitoredBody<B> {
    body: B,
    /// Data from the body that has not been passed on.
    pending_bytes: Bytes,
    stream: MonitoredStream,
}

impl<B: Body<Data = Bytes> + Unpin> Body for MonitoredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let mut frame = if this.pending_bytes.is_empty() {
            Pin::new(&mut this.body).poll_frame(cx)
        } else {
            Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut this.pending_bytes)))))
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut frame
            && let Some(bytes) = frame.data_mut()
            && bytes.len() > MAX_FRAME_BYTES
        {
            this.pending_bytes = bytes.split_off(MAX_FRAME_BYTES);
        }
        // A body without data waits for its source, not for the client.
        this.stream.set_waiting_for_client(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.pending_bytes.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.pending_bytes.len() as u64);
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
    use super::{Http2CloseReason, MAX_CANCELED_REQUESTS, MAX_FRAME_BYTES, StreamMonitor};
    use bytes::Bytes;
    use http_body::Body;
    use http_body_util::{BodyExt, Full};
    use std::time::Duration;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(60);
    const STALL: Duration = Duration::from_secs(30);

    #[test]
    fn only_a_client_that_lets_answers_wait_is_stalled() {
        let meter = StreamMonitor::new(None);
        let close_reason = |seconds| {
            meter.close_reason(IDLE, STALL, Instant::now() + Duration::from_secs(seconds))
        };
        assert_eq!(close_reason(59), None);
        assert_eq!(close_reason(61), Some(Http2CloseReason::Idle));
        let stream = meter.begin_stream();
        assert_eq!(close_reason(1000), None, "a slow render is not the client's fault");
        let body = stream.monitor_body(Full::new(Bytes::from_static(b"page")));
        assert_eq!(close_reason(29), None);
        assert_eq!(close_reason(31), Some(Http2CloseReason::WriteTimeout));
        drop(body);
        assert_eq!(close_reason(31), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_was_late_counts() {
        let meter = StreamMonitor::new(None);
        let connection = async {
            tokio::time::sleep(Duration::from_secs(59)).await;
            let stream = meter.begin_stream();
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(stream);
        };
        let late = tokio::spawn(async { tokio::time::advance(Duration::from_secs(70)).await });
        tokio::select! {
            biased;
            closed = meter.wait_close_reason(IDLE, STALL) => panic!("{closed}"),
            () = connection => {}
        }
        late.await.unwrap();
    }

    #[test]
    fn many_requests_taken_back_are_a_flood() {
        let meter = StreamMonitor::new(None);
        let close_reason = || meter.close_reason(IDLE, STALL, Instant::now());
        for _ in 1..MAX_CANCELED_REQUESTS {
            drop(meter.begin_stream());
        }
        assert_eq!(close_reason(), None);
        drop(meter.begin_stream());
        assert_eq!(close_reason(), Some(Http2CloseReason::CancelFlood));
        for _ in 0..MAX_CANCELED_REQUESTS {
            drop(meter.begin_stream().monitor_body(Full::<Bytes>::default()));
        }
        assert_eq!(close_reason(), None, "an honest client may be impatient too");
    }

    #[tokio::test]
    async fn a_large_body_is_offered_in_pieces() {
        let bytes: Vec<u8> = (0..=255).cycle().take(2 * MAX_FRAME_BYTES + 7).collect();
        let mut body = StreamMonitor::new(None)
            .begin_stream()
            .monitor_body(Full::<Bytes>::from(bytes.clone()));
        let mut received = Vec::new();
        for length in [MAX_FRAME_BYTES, MAX_FRAME_BYTES, 7] {
            assert!(!body.is_end_stream());
            assert_eq!(body.size_hint().exact(), Some((bytes.len() - received.len()) as u64));
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), length);
            received.extend_from_slice(&piece);
        }
        assert!(received == bytes && body.is_end_stream());
    }
}
