//! HTTP/2 on one connection (RFC 9113), one exchange at a time, without a runtime.
//!
//! In: requests as HTTP/1.1 writes them, and bytes of the server. Out: bytes for the server, and responses in the form that a
//! [`Reader`] reads.
//!
//! The library's connection reads from and writes to two buffers in memory. Whoever owns the socket moves bytes between it and
//! them, and calls [`Session::advance`], which goes as far as the buffers allow; it never blocks.
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

use super::Failure;
use super::response::Reader;

/// Bytes of bodies that a server may send ahead, for one exchange and for the connection.
const WINDOW: u32 = 16 << 20;
/// Most headers of a request.
const MAX_HEADERS: usize = 256;

/// An HTTP/2 connection of a client.
#[derive(Debug)]
pub(super) struct Session {
    wires: Wires,
    connection: Connection<Wires, Bytes>,
    requests: SendRequest<Bytes>,
    exchange: Exchange,
    is_over: bool,
}

#[derive(Debug)]
enum Exchange {
    None,
    /// Until the server allows another stream.
    Waiting(Box<Request<()>>, Bytes),
    Asked(ResponseFuture),
    Body(RecvStream),
}

/// How far an exchange has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advance {
    /// More has to come from the server.
    Pending,
    Done,
    /// The server says that it has not looked at the request, so that it may be sent again.
    Refused,
}

impl Session {
    /// Begins a connection: its preface is the first thing to be written.
    pub(super) fn new() -> Result<Self, Failure> {
        let wires = Wires::default();
        let mut builder = Builder::new();
        builder.enable_push(false);
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let handshake = pin!(builder.handshake::<_, Bytes>(wires.clone()));
        // The library waits for nothing but the buffer, which takes everything.
        match handshake.poll(&mut context()) {
            Poll::Ready(Ok((requests, connection))) => {
                Ok(Self { wires, connection, requests, exchange: Exchange::None, is_over: false })
            }
            Poll::Ready(Err(_)) | Poll::Pending => Err(Failure::Malformed),
        }
    }

    /// Begins an exchange with a request as HTTP/1.1 writes it.
    ///
    /// # Errors
    /// [`Failure::Malformed`] for a request that HTTP/2 cannot carry.
    pub(super) fn begin(&mut self, bytes: &[u8], is_tls: bool) -> Result<(), Failure> {
        let (request, body) = to_request(bytes, is_tls).ok_or(Failure::Malformed)?;
        self.exchange = Exchange::Waiting(Box::new(request), body);
        Ok(())
    }

    /// Takes bytes of the server; none for the end of the connection.
    pub(super) fn receive(&self, bytes: &[u8]) {
        let mut buffers = self.wires.lock();
        buffers.is_closed |= bytes.is_empty();
        buffers.incoming.extend_from_slice(bytes);
    }

    /// Writes what is for the server as far as `write` takes it.
    pub(super) fn write(
        &self,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut buffers = self.wires.lock();
        while !buffers.outgoing.is_empty() {
            let written = write(&buffers.outgoing)?;
            buffers.outgoing.advance(written);
            if written == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Reports whether something is for the server.
    pub(super) fn has_output(&self) -> bool {
        !self.wires.lock().outgoing.is_empty()
    }

    /// Reports whether another exchange can begin.
    pub(super) fn is_usable(&self) -> bool {
        !self.is_over && !self.wires.lock().is_closed
    }

    /// Lets the connection answer what the server says of it while there is no exchange.
    pub(super) fn idle(&mut self) {
        if !self.is_over {
            self.is_over = Pin::new(&mut self.connection).poll(&mut context()).is_ready();
        }
        // A server that goes away takes no more requests, though it may finish those that it has.
        self.is_over |= matches!(self.requests.poll_ready(&mut context()), Poll::Ready(Err(_)));
    }

    /// Goes on with the exchange as far as the buffers allow.
    ///
    /// # Errors
    /// The [`Failure`] of the exchange.
    pub(super) fn advance(&mut self, reader: &mut Reader) -> Result<Advance, Failure> {
        loop {
            self.idle();
            match self.step(reader) {
                Ok(Step::Blocked) => return Ok(Advance::Pending),
                Ok(Step::Moved) => {}
                Ok(Step::Done) => {
                    self.exchange = Exchange::None;
                    // Windows that were given back are told to the server.
                    self.idle();
                    return Ok(Advance::Done);
                }
                Err(error) => {
                    self.exchange = Exchange::None;
                    return self.failure_of(&error);
                }
            }
        }
    }

    fn step(&mut self, reader: &mut Reader) -> Result<Step, StepError> {
        match &mut self.exchange {
            Exchange::None => Ok(Step::Blocked),
            Exchange::Waiting(..) => match self.requests.poll_ready(&mut context()) {
                Poll::Pending => Ok(Step::Blocked),
                Poll::Ready(Err(error)) => Err(StepError::Unsent(error)),
                Poll::Ready(Ok(())) => self.send(),
            },
            Exchange::Asked(response) => match Pin::new(response).poll(&mut context()) {
                Poll::Pending => Ok(Step::Blocked),
                Poll::Ready(Err(error)) => Err(StepError::Library(error)),
                Poll::Ready(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    reader.feed(&head_of(&head)).map_err(StepError::Reader)?;
                    self.exchange = Exchange::Body(body);
                    Ok(Step::Moved)
                }
            },
            Exchange::Body(body) => match body.poll_data(&mut context()) {
                Poll::Pending => Ok(Step::Blocked),
                Poll::Ready(Some(Err(error))) => Err(StepError::Library(error)),
                Poll::Ready(Some(Ok(data))) => {
                    reader.feed(&data).map_err(StepError::Reader)?;
                    let released = body.flow_control().release_capacity(data.len());
                    released.map_err(StepError::Library)?;
                    Ok(Step::Moved)
                }
                Poll::Ready(None) => {
                    reader.end().map_err(StepError::Reader)?;
                    Ok(Step::Done)
                }
            },
        }
    }

    fn send(&mut self) -> Result<Step, StepError> {
        let Exchange::Waiting(request, body) =
            std::mem::replace(&mut self.exchange, Exchange::None)
        else {
            return Ok(Step::Blocked);
        };
        let sent = self.requests.send_request(*request, body.is_empty());
        let (response, mut stream) = sent.map_err(StepError::Library)?;
        if !body.is_empty() {
            // The library keeps what the server's window does not take yet.
            stream.send_data(body, true).map_err(StepError::Library)?;
        }
        self.exchange = Exchange::Asked(response);
        Ok(Step::Moved)
    }

    fn failure_of(&self, error: &StepError) -> Result<Advance, Failure> {
        let error = match error {
            StepError::Reader(failure) => return Err(*failure),
            StepError::Unsent(_) => return Ok(Advance::Refused),
            StepError::Library(error) => error,
        };
        let is_unseen = error.reason() == Some(Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.reason() == Some(Reason::NO_ERROR));
        if error.is_remote() && is_unseen {
            return Ok(Advance::Refused);
        }
        Err(match self.wires.lock().is_closed {
            true => Failure::NoResponse,
            false if error.is_remote() => Failure::Reset,
            false => Failure::Malformed,
        })
    }
}

enum Step {
    Blocked,
    Moved,
    Done,
}

enum StepError {
    Library(h2::Error),
    /// The connection takes no more requests.
    Unsent(#[expect(dead_code, reason = "told by the debugger only")] h2::Error),
    Reader(Failure),
}

/// Nobody waits: everything is asked again when bytes have come.
fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Turns a request of HTTP/1.1 into one of HTTP/2; headers that belong to a connection are left out.
fn to_request(bytes: &[u8], is_tls: bool) -> Option<(Request<()>, Bytes)> {
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

/// Writes the head of a response as HTTP/1.1 has it.
fn head_of(head: &http::response::Parts) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {} \r\n", head.status.as_u16()).into_bytes();
    for (name, value) in &head.headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// What has come from the server and what is for it.
#[derive(Debug, Default)]
struct Buffers {
    incoming: BytesMut,
    outgoing: BytesMut,
    is_closed: bool,
}

/// The two buffers, as the library's connection sees them.
#[derive(Debug, Clone, Default)]
struct Wires(Arc<Mutex<Buffers>>);

impl Wires {
    fn lock(&self) -> std::sync::MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Wires {
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

impl AsyncWrite for Wires {
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
    use super::super::Keep;
    use super::*;

    #[test]
    fn requests_lose_what_belongs_to_a_connection() {
        let text = b"POST /a?b HTTP/1.1\r\nConnection: keep-alive\r\nHost: h:8443\r\nX-One: 1\r\nContent-Length: 2\r\n\r\nhi";
        let (request, body) = to_request(text, true).unwrap();
        assert_eq!(request.uri(), "https://h:8443/a?b");
        let names: Vec<&str> = request.headers().keys().map(http::HeaderName::as_str).collect();
        assert_eq!((names, &*body), (vec!["x-one", "content-length"], &b"hi"[..]));
        assert!(to_request(b"GET / HTTP/1.1\r\n\r\n", false).is_none());
        assert!(to_request(b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", false).is_none());
    }

    #[test]
    fn an_exchange_goes_through_two_buffers() {
        let mut session = Session::new().unwrap();
        session.begin(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", false).unwrap();
        let mut reader = Reader::new(false, Keep::Body(100));
        assert_eq!(session.advance(&mut reader).unwrap(), Advance::Pending);
        let mut sent = Vec::new();
        session
            .write(|bytes| {
                sent.extend_from_slice(bytes);
                Ok(bytes.len())
            })
            .unwrap();
        assert!(sent.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
        // Settings; a head with the indexed status 200; five bytes of body that end the stream.
        session.receive(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        session.receive(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88]);
        session.receive(&[0, 0, 5, 0, 1, 0, 0, 0, 1]);
        assert_eq!(session.advance(&mut reader).unwrap(), Advance::Pending);
        session.receive(b"hello");
        assert_eq!(session.advance(&mut reader).unwrap(), Advance::Done);
        assert!(session.is_usable());
        let response = reader.into_response();
        assert_eq!((response.status, &*response.body), (200, &b"hello"[..]));
        // The server goes away.
        session.receive(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        session.idle();
        assert!(!session.is_usable());
    }
}
