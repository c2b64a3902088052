//! Connections of HTTP/1.1: requests one after another, by the service alone or in turns with what answers before it.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::Body;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tower::Service;

use super::asked::Asked;
use super::connection::Connection;
use super::{BoxError, Limits};
use crate::lane::{Closing, Lane, Lent, OneRequest};
use crate::linger::Linger;
use crate::quiet::{self, Next};
use crate::seats::Seat;
use crate::shortcut::send_ready;
use crate::stall::WriteStall;
use crate::tls::Handshake;
use crate::wire::Wire;

impl<S, B> Connection<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    pub(super) async fn speak_http1(
        self,
        wire: Wire,
        handshake: Option<Handshake>,
        lane: Option<Arc<dyn Lane>>,
    ) -> Result<(), BoxError> {
        match lane {
            None => {
                let stream = WriteStall::new(wire, self.front.limits.stall_timeout);
                self.speak(stream, handshake).await
            }
            Some(lane) => self.take_turns(&*lane, wire, handshake).await,
        }
    }

    async fn speak<T>(self, stream: T, handshake: Option<Handshake>) -> Result<(), BoxError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { peer, front, service, seated, watchers: (watcher, _), .. } = self;
        let builder = http1_builder(&front.limits);
        let asked = Arc::new(Asked::new((peer, handshake), front, &seated));
        seated.seat.note_first();
        let stream = asked.linger(stream);
        let connection = builder.serve_connection(TokioIo::new(stream), answering(asked, service));
        let outcome = watcher.watch(connection).await;
        drop(seated);
        Ok(outcome?)
    }

    /// Lets the service answer one request after another, and holds nothing but the socket between them.
    pub(super) async fn take_requests(self, stream: TcpStream) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, ending, watchers } = self;
        let asked = Arc::new(Asked::new((peer, None), front, &seated));
        let (limits, seat) = (&asked.front.limits, &*seated.seat);
        seat.note_first();
        let (mut stream, mut unread) = (WriteStall::new(stream, limits.stall_timeout), Vec::new());
        // Both last for many requests: to make and drop them for each costs more than to read a head.
        let mut ends = ending.clone();
        let mut ended = pin!(end_of(&mut ends));
        let mut timer = pin!(tokio::time::sleep(limits.header_timeout));
        let mut is_leaving = false;
        loop {
            let now = Instant::now();
            if asked.requests.load(Ordering::Relaxed) > 0 {
                seat.note_waiting(now);
            }
            let deadline = now + limits.header_timeout;
            let next = quiet::next(&mut stream, &mut unread, limits.header_bytes);
            let next = tokio::select! {
                biased;
                next = next => next?,
                () = &mut ended => Next::End,
                () = seat.wanted(), if !is_leaving => {
                    // What has come by now is answered, as the last.
                    is_leaving = true;
                    if !unread.is_empty() || !is_silent(stream.get_ref()) {
                        continue;
                    }
                    asked.front.counters.evicted.fetch_add(1, Ordering::Relaxed);
                    Next::End
                }
                () = until(timer.as_mut(), deadline) => {
                    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "no head came");
                    return Err(late.into());
                }
            };
            let next = if unread.is_empty() || next != Next::End { next } else { Next::Other };
            // What hyper holds is held elsewhere than by the task, which lives as long as the connection.
            match next {
                Next::End => return Ok(stream.shutdown().await?),
                Next::Request(length) => {
                    seat.note_busy();
                    let head = unread.get(..length).unwrap_or_default();
                    if let Some((ready, is_last)) = asked.shortcut(head) {
                        send_ready(stream.get_ref(), ready, limits.stall_timeout).await?;
                        unread.drain(..length);
                        if is_last {
                            asked.expected.set(!unread.is_empty());
                            return Ok(Box::pin(finish(asked.linger(stream))).await?);
                        }
                        if unread.is_empty() {
                            // Who waits holds none.
                            unread = Vec::new();
                        } else {
                            // Who has sent many requests at once takes turns with the others.
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    let service = answering(Arc::clone(&asked), service.clone());
                    // Read already, out of sight of what lingers.
                    asked.expected.set(true);
                    let lingering = asked.linger(stream);
                    let one = OneRequest::first(lingering, std::mem::take(&mut unread), length);
                    match Box::pin(answer_one(limits, one, service, &ending)).await? {
                        Some(left) => (stream, unread) = left,
                        None => return Ok(()),
                    }
                }
                Next::Other => {
                    let service = answering(Arc::clone(&asked), service.clone());
                    asked.expected.set(true);
                    seat.note_busy();
                    let all = TokioIo::new(OneRequest::all(asked.linger(stream), unread));
                    let connection = http1_builder(limits).serve_connection(all, service);
                    return Ok(Box::pin(watchers.0.watch(connection)).await?);
                }
            }
        }
    }

    /// Lets the lane serve, and the service each request that is not for the lane.
    async fn take_turns(
        self,
        lane: &dyn Lane,
        wire: Wire,
        handshake: Option<Handshake>,
    ) -> Result<(), BoxError> {
        let Self { peer, front, service, seated, ending, watchers } = self;
        let limits = front.limits.clone();
        let stopped = front.drain.stopping();
        let (builder, closing) = (http1_builder(&limits), Closing::new(stopped, &seated.seats));
        let asked = Arc::new(Asked::new((peer, handshake), front, &seated));
        let mut current = (wire, Vec::new());
        loop {
            let lent = Lent {
                wire: current.0.lend()?,
                unread: current.1,
                peer,
                requests_left: limits
                    .max_requests
                    .saturating_sub(asked.requests.load(Ordering::Relaxed)),
                idle_timeout: limits.header_timeout,
                stall_timeout: limits.stall_timeout,
                closing: closing.clone(),
                ending: ending.clone(),
                http2: None,
            };
            let Some(handed) = lane.serve(lent).await else { return Ok(()) };
            let answered = limits.max_requests.saturating_sub(handed.requests_left);
            asked.requests.store(answered, Ordering::Relaxed);
            let stream = WriteStall::new(handed.wire.take_back()?, limits.stall_timeout);
            asked.expected.set(true);
            let stream = asked.linger(stream);
            let service = answering(Arc::clone(&asked), service.clone());
            let Some(length) = handed.request_bytes else {
                let all = TokioIo::new(OneRequest::all(stream, handed.unread));
                return Ok(watchers.0.watch(builder.serve_connection(all, service)).await?);
            };
            let one = OneRequest::first(stream, handed.unread, length);
            match answer_one(&limits, one, service, &ending).await? {
                Some((stream, unread)) => current = (stream.into_inner(), unread),
                None => return Ok(()),
            }
            // The lane knows what it waits for.
            seated.seat.note_busy();
        }
    }
}

/// Ends a connection so that its last answer arrives.
async fn finish<T: AsyncRead + AsyncWrite + Unpin>(mut stream: Linger<T>) -> std::io::Result<()> {
    stream.shutdown().await
}

/// Tells whether nothing has come that was not read.
fn is_silent(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = recv(stream, &mut [0_u8; 1][..], flags);
    peeked.is_err_and(|error| error == Errno::WOULDBLOCK)
}

/// Waits for a time by a timer that is put off often and hardly ever rings: it rings early, and sleeps on.
async fn until(mut timer: Pin<&mut Sleep>, deadline: Instant) {
    loop {
        timer.as_mut().await;
        if Instant::now() >= deadline {
            return;
        }
        timer.as_mut().reset(deadline);
    }
}

/// Waits until connections are to end.
async fn end_of(ending: &mut watch::Receiver<bool>) {
    // Without a sender nobody serves any more.
    ending.wait_for(|is_ending| *is_ending).await.ok();
}

/// Lets hyper answer one request. Gives the connection back, with what was read of it beyond, if the client may send
/// another one; it is ended otherwise.
async fn answer_one<T, S, B>(
    limits: &Limits,
    one: OneRequest<Linger<T>>,
    service: S,
    ending: &watch::Receiver<bool>,
) -> Result<Option<(T, Vec<u8>)>, BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let mut connection = http1_builder(limits).serve_connection(TokioIo::new(one), service);
    // Not `without_shutdown`, which gives a connection up that is to end before what is written to it is on its way.
    (&mut connection).await?;
    let mut one = connection.into_parts().io.into_inner();
    if !one.is_over() {
        return Ok(None);
    }
    if *ending.borrow() {
        one.shutdown().await?;
        return Ok(None);
    }
    let (stream, unread) = one.into_parts();
    Ok(Some((stream.into_inner(), unread)))
}

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(64 * 1024))
        .half_close(true);
    builder
}

/// Returns the service of one connection of HTTP/1.1.
fn answering<S, B>(
    asked: Arc<Asked>,
    service: S,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Either<B, Full<Bytes>>>,
    Error = S::Error,
    Future: Send,
>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    hyper::service::service_fn(move |request: Request<Incoming>| {
        let (asked, service) = (Arc::clone(&asked), service.clone());
        async move {
            asked.expected.set(!request.body().is_end_stream());
            let answering = Answering::begin(&asked.seat);
            let is_last = asked.requests.fetch_add(1, Ordering::Relaxed) + 1
                >= asked.front.limits.max_requests;
            let mut response = asked.answer(request, service).await?;
            drop(answering);
            if is_last || asked.is_to_end() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, S::Error>(response)
        }
    })
}

/// Notes that a request is being answered, until it is.
struct Answering<'a>(&'a Seat);

impl<'a> Answering<'a> {
    fn begin(seat: &'a Seat) -> Self {
        seat.note_busy();
        Self(seat)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.note_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, Linger, OneRequest, answer_one};
    use crate::linger::Expected;
    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio::sync::watch;

    /// Lets one request be answered for a client that takes what is sent in small pieces. Returns what it got, and whether
    /// the connection goes on.
    async fn exchange(head: &str) -> (String, bool) {
        let (near, mut far) = tokio::io::duplex(16);
        let ending = watch::channel(false);
        let unread = head.as_bytes().to_vec();
        let answering = tokio::spawn(async move {
            let stream: Linger<DuplexStream> = Linger::new(near, Expected::default());
            let one = OneRequest::first(stream, unread.clone(), unread.len());
            let service = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"body"))))
            });
            answer_one(&Limits::default(), one, service, &ending.1)
                .await
                .is_ok_and(|left| left.is_some())
        });
        let mut answer = String::new();
        far.read_to_string(&mut answer).await.unwrap();
        (answer, answering.await.unwrap())
    }

    #[tokio::test]
    async fn whoever_sends_what_cannot_be_read_is_told_so() {
        let (answer, goes_on) = exchange("GET /<a> HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!goes_on);
    }

    #[tokio::test]
    async fn an_answer_goes_out_whole_whether_or_not_it_is_the_last() {
        for (close, expected) in [("", true), ("Connection: close\r\n", false)] {
            let head = format!("GET /a HTTP/1.1\r\nHost: h\r\n{close}\r\n");
            let (answer, goes_on) = exchange(&head).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
            assert_eq!(goes_on, expected, "{close}");
        }
    }
}
