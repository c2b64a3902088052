//! HTTP/2 on one connection (RFC 9113), one exchange at a time, without an async runtime.
//!
//! In: requests in HTTP/1.1 format, and bytes from the server. Out: bytes for the server, and responses in the form
//! that a [`TargetResponseReader`] parses.
//!
//! The library's connection reads from and writes to two buffers in memory. The owner of the socket moves bytes between
//! it and the buffers, and calls [`Http2ClientSession::advance_exchange`], which proceeds as far as the buffers allow;
//! it never blocks.
//!
//! Not here: sockets and TLS (`connection`).

use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::{Builder, Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{Request, Version};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tympan_web::http1_response_head::Http1ResponseHead;

use super::exchange::ExchangeFailure;
use super::response::TargetResponseReader;

/// Flow-control window in bytes, for one exchange and for the connection.
const FLOW_CONTROL_WINDOW: u32 = 16 << 20;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 256;

/// An HTTP/2 connection of a client.
#[derive(Debug)]
pub(super) struct Http2ClientSession {
    transport: Http2Transport,
    connection: Connection<Http2Transport, Bytes>,
    request_sender: SendRequest<Bytes>,
    exchange: Http2ExchangeState,
    is_closed: bool,
}

#[derive(Debug)]
enum Http2ExchangeState {
    Idle,
    /// Waits until the server allows another stream.
    AwaitingStream(Box<Request<()>>, Bytes),
    AwaitingResponse(ResponseFuture),
    ReceivingBody(RecvStream),
}

/// The progress of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Http2Progress {
    /// More data is expected from the server.
    Pending,
    Done,
    /// The server reports that it has not processed the request, so that it may be sent again.
    RefusedUnprocessed,
}

impl Http2ClientSession {
    /// Starts a session; the connection preface is the first output.
    pub(super) fn new() -> Result<Self, ExchangeFailure> {
        let wires = Http2Transport::default();
        let mut builder = Builder::new();
        builder.enable_push(false);
        builder
            .initial_window_size(FLOW_CONTROL_WINDOW)
            .initial_connection_window_size(FLOW_CONTROL_WINDOW);
        let handshake = pin!(builder.handshake::<_, Bytes>(wires.clone()));
        // The library waits only for the buffer, which accepts everything.
        match handshake.poll(&mut noop_context()) {
            Poll::Ready(Ok((requests, connection))) => Ok(Self {
                transport: wires,
                connection,
                request_sender: requests,
                exchange: Http2ExchangeState::Idle,
                is_closed: false,
            }),
            Poll::Ready(Err(_)) | Poll::Pending => Err(ExchangeFailure::Malformed),
        }
    }

    /// Begins an exchange with a request in HTTP/1.1 format.
    ///
    /// # Errors
    /// [`ExchangeFailure::Malformed`] for a request that HTTP/2 cannot represent.
    pub(super) fn begin_exchange(
        &mut self,
        bytes: &[u8],
        is_tls: bool,
    ) -> Result<(), ExchangeFailure> {
        let (request, body) = to_http2_request(bytes, is_tls).ok_or(ExchangeFailure::Malformed)?;
        self.exchange = Http2ExchangeState::AwaitingStream(Box::new(request), body);
        Ok(())
    }

    /// Receives bytes from the server; an empty slice marks the end of the connection.
    pub(super) fn receive_bytes(&self, bytes: &[u8]) {
        let mut buffers = self.transport.lock();
        buffers.is_closed |= bytes.is_empty();
        buffers.incoming.extend_from_slice(bytes);
    }

    /// Passes pending output to `write` as far as it accepts it.
    pub(super) fn write_output(
        &self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut buffers = self.transport.lock();
        while !buffers.outgoing.is_empty() {
            let written = write(&buffers.outgoing)?;
            buffers.outgoing.advance(written);
            if written == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns true if there is pending output.
    pub(super) fn has_output(&self) -> bool {
        !self.transport.lock().outgoing.is_empty()
    }

    /// Returns true if another exchange can begin.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_closed && !self.transport.lock().is_closed
    }

    /// Lets the connection respond to control frames of the server between exchanges.
    pub(super) fn poll_connection(&mut self) {
        if !self.is_closed {
            self.is_closed = Pin::new(&mut self.connection).poll(&mut noop_context()).is_ready();
        }
        // A server that sends GOAWAY accepts no more requests, though it may finish those in progress.
        self.is_closed |=
            matches!(self.request_sender.poll_ready(&mut noop_context()), Poll::Ready(Err(_)));
    }

    /// Advances the exchange as far as the buffers allow.
    ///
    /// # Errors
    /// The [`ExchangeFailure`] of the exchange.
    pub(super) fn advance_exchange(
        &mut self,
        reader: &mut TargetResponseReader,
    ) -> Result<Http2Progress, ExchangeFailure> {
        loop {
            self.poll_connection();
            match self.step_exchange(reader) {
                Ok(Http2ClientStep::Blocked) => return Ok(Http2Progress::Pending),
                Ok(Http2ClientStep::Advanced) => {}
                Ok(Http2ClientStep::Done) => {
                    self.exchange = Http2ExchangeState::Idle;
                    // Send the updates of released flow-control windows to the server.
                    self.poll_connection();
                    return Ok(Http2Progress::Done);
                }
                Err(error) => {
                    self.exchange = Http2ExchangeState::Idle;
                    return self.failure_from_step_error(&error);
                }
            }
        }
    }

    fn step_exchange(
        &mut self,
        reader: &mut TargetResponseReader,
    ) -> Result<Http2ClientStep, Http2StepError> {
        match &mut self.exchange {
            Http2ExchangeState::Idle => Ok(Http2ClientStep::Blocked),
            Http2ExchangeState::AwaitingStream(..) => {
                match self.request_sender.poll_ready(&mut noop_context()) {
                    Poll::Pending => Ok(Http2ClientStep::Blocked),
                    Poll::Ready(Err(error)) => Err(Http2StepError::Unsent(error)),
                    Poll::Ready(Ok(())) => self.send_request(),
                }
            }
            Http2ExchangeState::AwaitingResponse(response) => {
                match Pin::new(response).poll(&mut noop_context()) {
                    Poll::Pending => Ok(Http2ClientStep::Blocked),
                    Poll::Ready(Err(error)) => Err(Http2StepError::Http2(error)),
                    Poll::Ready(Ok(response)) => {
                        let (head, body) = response.into_parts();
                        reader.feed(&write_http1_head(&head)).map_err(Http2StepError::Reader)?;
                        self.exchange = Http2ExchangeState::ReceivingBody(body);
                        Ok(Http2ClientStep::Advanced)
                    }
                }
            }
            Http2ExchangeState::ReceivingBody(body) => match body.poll_data(&mut noop_context()) {
                Poll::Pending => Ok(Http2ClientStep::Blocked),
                Poll::Ready(Some(Err(error))) => Err(Http2StepError::Http2(error)),
                Poll::Ready(Some(Ok(data))) => {
                    reader.feed(&data).map_err(Http2StepError::Reader)?;
                    let released = body.flow_control().release_capacity(data.len());
                    released.map_err(Http2StepError::Http2)?;
                    Ok(Http2ClientStep::Advanced)
                }
                Poll::Ready(None) => {
                    reader.finish_at_eof().map_err(Http2StepError::Reader)?;
                    Ok(Http2ClientStep::Done)
                }
            },
        }
    }

    fn send_request(&mut self) -> Result<Http2ClientStep, Http2StepError> {
        let Http2ExchangeState::AwaitingStream(request, body) =
            std::mem::replace(&mut self.exchange, Http2ExchangeState::Idle)
        else {
            return Ok(Http2ClientStep::Blocked);
        };
        let sent = self.request_sender.send_request(*request, body.is_empty());
        let (response, mut stream) = sent.map_err(Http2StepError::Http2)?;
        if !body.is_empty() {
            // The library buffers what exceeds the server's window.
            stream.send_data(body, true).map_err(Http2StepError::Http2)?;
        }
        self.exchange = Http2ExchangeState::AwaitingResponse(response);
        Ok(Http2ClientStep::Advanced)
    }

    fn failure_from_step_error(
        &self,
        error: &Http2StepError,
    ) -> Result<Http2Progress, ExchangeFailure> {
        let error = match error {
            Http2StepError::Reader(failure) => return Err(*failure),
            Http2StepError::Unsent(_) => return Ok(Http2Progress::RefusedUnprocessed),
            Http2StepError::Http2(error) => error,
        };
        let is_unseen = error.reason() == Some(Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.reason() == Some(Reason::NO_ERROR));
        if error.is_remote() && is_unseen {
            return Ok(Http2Progress::RefusedUnprocessed);
        }
        Err(match self.transport.lock().is_closed {
            true => ExchangeFailure::NoResponse,
            false if error.is_remote() => ExchangeFailure::Reset,
            false => ExchangeFailure::Malformed,
        })
    }
}

enum Http2ClientStep {
    Blocked,
    Advanced,
    Done,
}

enum Http2StepError {
    Http2(h2::Error),
    /// The connection accepts no more requests.
    Unsent(#[expect(dead_code, reason = "read only by `Debug`")] h2::Error),
    Reader(ExchangeFailure),
}

/// Returns a context without a waker: everything is polled again when bytes arrive.
fn noop_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Converts an HTTP/1.1 request to HTTP/2; connection-specific headers are dropped.
fn to_http2_request(bytes: &[u8], is_tls: bool) -> Option<(Request<()>, Bytes)> {
    const OF_CONNECTIONS: [&str; 7] = [
        "host",
        "connection",
        "keep-alive",
        "proxy-connection",
        "transfer-encoding",
        "upgrade",
        "te",
    ];
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(used) = parsed.parse(bytes).ok()? else { return None };
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let host = parsed.headers.iter().find(is_host)?;
    let host = std::str::from_utf8(host.value).ok()?;
    let scheme = if is_tls { "https" } else { "http" };
    let mut request = Request::builder()
        .method(parsed.method?)
        .uri(format!("{scheme}://{host}{}", parsed.path?))
        .version(Version::HTTP_2);
    for header in parsed.headers.iter() {
        if !OF_CONNECTIONS.iter().any(|name| header.name.eq_ignore_ascii_case(name)) {
            request = request.header(header.name, header.value);
        }
    }
    let body = Bytes::copy_from_slice(bytes.get(used..).unwrap_or_default());
    Some((request.body(()).ok()?, body))
}

/// Writes a response head in HTTP/1.1 format.
fn write_http1_head(head: &http::response::Parts) -> Vec<u8> {
    let mut lines = Http1ResponseHead::with_reason(head.status.as_u16(), "");
    for (name, value) in &head.headers {
        lines.add_header(name.as_str(), value.as_bytes());
    }
    lines.finish()
}

/// The buffers for input from the server and output to it.
#[derive(Debug, Default)]
struct Http2Buffers {
    incoming: BytesMut,
    outgoing: BytesMut,
    is_closed: bool,
}

/// The two buffers as the transport of the library's connection.
#[derive(Debug, Clone, Default)]
struct Http2Transport(Arc<Mutex<Http2Buffers>>);

impl Http2Transport {
    fn lock(&self) -> std::sync::MutexGuard<'_, Http2Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Http2Transport {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut buffers = self.lock();
        if buffers.incoming.is_empty() {
            return if buffers.is_closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let length = out.remaining().min(buffers.incoming.len());
        out.put_slice(&buffers.incoming.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Http2Transport {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lock().outgoing.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::ResponseRetention;

    #[test]
    fn requests_lose_what_belongs_to_a_connection() {
        let text = b"POST /a?b HTTP/1.1\r\nConnection: keep-alive\r\nHost: h:8443\r\nX-One: 1\r\nContent-Length: 2\r\n\r\nhi";
        let (request, body) = to_http2_request(text, true).unwrap();
        assert_eq!(request.uri(), "https://h:8443/a?b");
        let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
        assert_eq!((names, &*body), (vec!["x-one", "content-length"], &b"hi"[..]));
        assert!(to_http2_request(b"GET / HTTP/1.1\r\n\r\n", false).is_none());
        assert!(to_http2_request(b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", false).is_none());
    }

    #[test]
    fn an_exchange_goes_through_two_buffers() {
        let mut session = Http2ClientSession::new().unwrap();
        session.begin_exchange(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", false).unwrap();
        let mut reader = TargetResponseReader::new(false, ResponseRetention::Body(100));
        assert_eq!(session.advance_exchange(&mut reader).unwrap(), Http2Progress::Pending);
        let mut sent = Vec::new();
        session
            .write_output(|bytes| {
                sent.extend_from_slice(bytes);
                Ok(bytes.len())
            })
            .unwrap();
        assert!(sent.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        // Settings; a header block with the indexed status 200; five bytes of body that end the stream.
        session.receive_bytes(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        session.receive_bytes(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88]);
        session.receive_bytes(&[0, 0, 5, 0, 1, 0, 0, 0, 1]);
        assert_eq!(session.advance_exchange(&mut reader).unwrap(), Http2Progress::Pending);
        session.receive_bytes(b"hello");
        assert_eq!(session.advance_exchange(&mut reader).unwrap(), Http2Progress::Done);
        assert!(session.is_usable());
        let response = reader.into_response();
        assert_eq!((response.status, &*response.body), (200, &b"hello"[..]));
        // A GOAWAY frame.
        session.receive_bytes(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        session.poll_connection();
        assert!(!session.is_usable());
    }
}
