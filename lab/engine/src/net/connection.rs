//! One non-blocking connection and the exchange on it.
//!
//! The owner registers the socket once, edge-triggered, and calls [`TargetConnection::handle_ready`] on each event.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use socket2::{Domain, Protocol, Socket, Type};

use super::exchange::{ExchangeFailure, ExchangeOutcome, SendAttempt, TargetRequest};
use super::http2::{Http2ClientSession, Http2Progress};
use super::response::TargetResponseReader;
use super::target::LoadTarget;
use super::tls::NegotiatedTls;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetConnectionState {
    Connecting,
    Handshaking,
    Established,
}

/// The result of an event.
#[derive(Debug)]
pub(crate) enum ExchangeProgress {
    /// The exchange continues, or there is none.
    Pending,
    /// The exchange ended; the connection may be reused if the response allows it.
    Done(Box<ExchangeOutcome>),
    /// The server closed an idle connection.
    Closed,
}

/// A socket to a target.
#[derive(Debug)]
pub(crate) struct TargetConnection {
    socket: TcpStream,
    target: Arc<LoadTarget>,
    tls_connection: Option<Box<ClientConnection>>,
    /// The HTTP/2 session, once the connection is open.
    http2_session: Option<Box<Http2ClientSession>>,
    state: TargetConnectionState,
    exchange: Option<ConnectionExchange>,
    exchange_count: u64,
}

#[derive(Debug)]
struct ConnectionExchange {
    request: TargetRequest,
    attempt: SendAttempt,
    written_bytes: usize,
    started_at: Instant,
    connect_time: Duration,
    first_byte_at: Option<Instant>,
    idle_since: Instant,
    received_bytes: u64,
    /// Set if the server reports that it has not processed the request.
    is_refused_unprocessed: bool,
    response_reader: TargetResponseReader,
}

impl TargetConnection {
    /// Starts connecting.
    ///
    /// # Errors
    /// The [`ExchangeFailure`] of the exchange that needed the connection.
    pub(crate) fn open(target: &Arc<LoadTarget>) -> Result<Self, ExchangeFailure> {
        let address = target.next_address().ok_or(ExchangeFailure::Resolve)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|_| ExchangeFailure::ResourcesExhausted)?;
        socket.set_nonblocking(true).map_err(|_| ExchangeFailure::Connect)?;
        if let Some(source) = target.source_address {
            let bound = socket.bind(&SocketAddr::new(source, 0).into());
            bound.map_err(|error| match error.raw_os_error() {
                Some(libc::EADDRINUSE) => ExchangeFailure::ResourcesExhausted,
                _ => ExchangeFailure::BindFailed,
            })?;
        }
        if let Some(window) = target.socket_buffer_size {
            // As in ab; the kernel applies its own limits.
            socket.set_send_buffer_size(window).ok();
            socket.set_recv_buffer_size(window).ok();
        }
        // A request is one write; the delay of Nagle's algorithm would be measured as server time.
        socket.set_tcp_nodelay(true).ok();
        let state = match socket.connect(&address.into()) {
            Ok(()) => TargetConnectionState::Connecting,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
                TargetConnectionState::Connecting
            }
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
                return Err(ExchangeFailure::ResourcesExhausted);
            }
            Err(_) => return Err(ExchangeFailure::Connect),
        };
        let tls = match &target.tls_config {
            None => None,
            Some((config, name)) => {
                let session = ClientConnection::new(Arc::clone(config), name.clone());
                Some(Box::new(session.map_err(|_| ExchangeFailure::Tls)?))
            }
        };
        Ok(Self {
            socket: socket.into(),
            target: Arc::clone(target),
            tls_connection: tls,
            http2_session: None,
            state,
            exchange: None,
            exchange_count: 0,
        })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn is_connected_to(&self, target: &Arc<LoadTarget>) -> bool {
        Arc::ptr_eq(&self.target, target)
    }

    /// Begins an exchange that started at `started`; the connection must be idle.
    pub(crate) fn begin_exchange(
        &mut self,
        (request, attempt): (TargetRequest, SendAttempt),
        started: Instant,
        buffer: &mut [u8],
    ) -> ExchangeProgress {
        self.exchange_count += 1;
        // A close that has arrived but is not yet processed would lose a request that must not be repeated.
        let is_closed = self.exchange_count > 1
            && !request.is_idempotent()
            && matches!(self.check_idle(buffer), ExchangeProgress::Closed);
        let mut reader = TargetResponseReader::new(request.is_head, request.retention);
        if self.target.is_http2 {
            reader = reader.with_version("HTTP/2");
        }
        self.exchange = Some(ConnectionExchange {
            request,
            attempt,
            written_bytes: 0,
            started_at: started,
            connect_time: Duration::ZERO,
            first_byte_at: None,
            idle_since: started,
            received_bytes: 0,
            is_refused_unprocessed: false,
            response_reader: reader,
        });
        if is_closed {
            return self.finish_exchange(Err(ExchangeFailure::NoResponse), false);
        }
        if self.state == TargetConnectionState::Established
            && self.tls_connection.is_none()
            && !self.target.is_http2
        {
            // The response cannot have arrived yet: only write, and leave reading to its event.
            return match self.write_plain() {
                Ok(()) => ExchangeProgress::Pending,
                Err(failure) => self.finish_exchange(Err(failure), false),
            };
        }
        self.handle_ready(buffer)
    }

    /// Advances the exchange as far as the socket allows.
    pub(crate) fn handle_ready(&mut self, buffer: &mut [u8]) -> ExchangeProgress {
        if self.exchange.is_none() {
            return self.check_idle(buffer);
        }
        match self.advance_exchange(buffer) {
            Ok(false) => ExchangeProgress::Pending,
            Ok(true) => self.finish_exchange(Ok(()), true),
            Err(failure) => self.finish_exchange(Err(failure), false),
        }
    }

    /// Ends the exchange because the run ends.
    pub(crate) fn abandon_exchange(&mut self, failure: ExchangeFailure) -> ExchangeProgress {
        if self.exchange.is_some() {
            self.finish_exchange(Err(failure), false)
        } else {
            ExchangeProgress::Closed
        }
    }

    /// Returns the failure if the exchange has exceeded a time limit of its request.
    pub(crate) fn timeout_failure(&self, now: Instant) -> Option<ExchangeFailure> {
        let exchange = self.exchange.as_ref()?;
        let (limit, since, failure) = if self.state == TargetConnectionState::Established {
            (exchange.request.idle_timeout, exchange.idle_since, ExchangeFailure::ResponseTimeout)
        } else {
            (exchange.request.connect_timeout, exchange.started_at, ExchangeFailure::ConnectTimeout)
        };
        limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit).then_some(failure)
    }

    fn check_idle(&mut self, buffer: &mut [u8]) -> ExchangeProgress {
        if self.http2_session.is_some() {
            return match self.advance_http2(buffer, false) {
                Ok(_) if self.http2_session.as_ref().is_some_and(|session| session.is_usable()) => {
                    ExchangeProgress::Pending
                }
                _ => ExchangeProgress::Closed,
            };
        }
        if let Some(tls) = &mut self.tls_connection {
            // Session tickets may arrive at any time.
            match tls.read_tls(&mut self.socket) {
                Ok(0) => return ExchangeProgress::Closed,
                Ok(_) => {
                    let is_sound = tls.process_new_packets().is_ok_and(|state| {
                        !state.peer_has_closed() && state.plaintext_bytes_to_read() == 0
                    });
                    return if is_sound {
                        ExchangeProgress::Pending
                    } else {
                        ExchangeProgress::Closed
                    };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return ExchangeProgress::Pending;
                }
                Err(_) => return ExchangeProgress::Closed,
            }
        }
        match self.socket.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => ExchangeProgress::Pending,
            _ => ExchangeProgress::Closed,
        }
    }

    fn advance_exchange(&mut self, buffer: &mut [u8]) -> Result<bool, ExchangeFailure> {
        if self.state == TargetConnectionState::Connecting {
            if !self.is_connected()? {
                return Ok(false);
            }
            self.state = if self.tls_connection.is_some() {
                TargetConnectionState::Handshaking
            } else {
                TargetConnectionState::Established
            };
            self.record_connected();
        }
        if self.target.is_http2 && (self.tls_connection.is_none() || self.http2_session.is_some()) {
            return self.advance_http2(buffer, true);
        }
        if self.tls_connection.is_some() {
            return self.advance_tls(buffer);
        }
        match self.write_plain() {
            Ok(()) => self.read_plain(buffer),
            // A server that rejects an upload responds and closes while the rest of it is still being sent.
            Err(failure) => match self.read_plain(buffer) {
                Ok(true) => Ok(true),
                _ => Err(failure),
            },
        }
    }

    /// Advances the HTTP/2 exchange as far as the socket allows; returns true at the end of the exchange.
    fn advance_http2(
        &mut self,
        buffer: &mut [u8],
        has_exchange: bool,
    ) -> Result<bool, ExchangeFailure> {
        if self.http2_session.is_none() {
            self.http2_session = Some(Box::new(Http2ClientSession::new()?));
        }
        loop {
            let Some(session) = &mut self.http2_session else { return Ok(false) };
            let mut advance = Http2Progress::Pending;
            match &mut self.exchange {
                Some(exchange) if has_exchange => {
                    if exchange.written_bytes == 0 {
                        session.begin_exchange(
                            &exchange.request.encoded_bytes,
                            self.tls_connection.is_some(),
                        )?;
                        exchange.written_bytes = exchange.request.encoded_bytes.len();
                    }
                    advance = session.advance_exchange(&mut exchange.response_reader)?;
                    if exchange.first_byte_at.is_none() && exchange.response_reader.has_head() {
                        exchange.first_byte_at = Some(Instant::now());
                    }
                    exchange.is_refused_unprocessed |= advance == Http2Progress::RefusedUnprocessed;
                }
                _ => session.poll_connection(),
            }
            self.write_frames()?;
            match advance {
                Http2Progress::Done => return Ok(true),
                Http2Progress::RefusedUnprocessed => return Err(ExchangeFailure::Reset),
                Http2Progress::Pending => {}
            }
            match self.read_frames(buffer) {
                Ok(length) => {
                    let Some(session) = &mut self.http2_session else { return Ok(false) };
                    let is_over = length == 0 && !session.is_usable();
                    session.receive_bytes(buffer.get(..length).unwrap_or_default());
                    if let Some(exchange) = &mut self.exchange {
                        exchange.received_bytes += length as u64;
                        exchange.idle_since = Instant::now();
                    }
                    // The library has already received the end of the connection and has nothing more to send.
                    if is_over {
                        return Err(ExchangeFailure::NoResponse);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(ExchangeFailure::Reset),
            }
        }
    }

    /// Writes the pending output of the session as far as the socket accepts it.
    fn write_frames(&mut self) -> Result<(), ExchangeFailure> {
        let Some(session) = &self.http2_session else { return Ok(()) };
        let socket = &mut self.socket;
        let written = match &mut self.tls_connection {
            None => session.write_output(|bytes| socket.write(bytes)),
            Some(tls) => loop {
                let written = session.write_output(|bytes| tls.writer().write(bytes));
                // The TLS buffer is bounded, so the rest follows after this is flushed.
                if flush_tls(tls, socket)? || !session.has_output() {
                    break written;
                }
            },
        };
        match written {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(ExchangeFailure::Reset),
            _ => Ok(()),
        }
    }

    /// Reads bytes of the server's frames; returns 0 at the end.
    fn read_frames(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls_connection else { return self.socket.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A server that closes without a close notification has still closed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                result => return result,
            }
            tls.read_tls(&mut self.socket)?;
            let packets = tls.process_new_packets();
            packets.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    fn is_connected(&self) -> Result<bool, ExchangeFailure> {
        match self.socket.take_error() {
            Ok(Some(error)) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
                return Err(ExchangeFailure::ResourcesExhausted);
            }
            Ok(None) => {}
            _ => return Err(ExchangeFailure::Connect),
        }
        Ok(self.socket.peer_addr().is_ok())
    }

    fn record_connected(&mut self) {
        if self.state == TargetConnectionState::Established
            && let Some(exchange) = &mut self.exchange
        {
            let now = Instant::now();
            exchange.connect_time = now.saturating_duration_since(exchange.started_at);
            exchange.idle_since = now;
        }
    }

    fn write_plain(&mut self) -> Result<(), ExchangeFailure> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        while let Some(rest) = exchange.request.encoded_bytes.get(exchange.written_bytes..)
            && !rest.is_empty()
        {
            match self.socket.write(rest) {
                Ok(written) => exchange.written_bytes += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server may respond and close before it has read everything: check for its response first.
                Err(_) if exchange.received_bytes > 0 => break,
                Err(_) => return Err(ExchangeFailure::Reset),
            }
        }
        Ok(())
    }

    fn read_plain(&mut self, buffer: &mut [u8]) -> Result<bool, ExchangeFailure> {
        let Some(exchange) = &mut self.exchange else { return Ok(false) };
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return exchange.response_reader.finish_at_eof().map(|()| true),
                Ok(length) => {
                    if exchange.accept_bytes(buffer.get(..length).unwrap_or_default())? {
                        return Ok(true);
                    }
                    // A short read is not the end: the peer's close may have come with the same event, which is not
                    // delivered twice.
                }
                Err(error) => match read_failure(&error) {
                    Some(failure) => return Err(failure),
                    None if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    None => {}
                },
            }
        }
    }

    fn advance_tls(&mut self, buffer: &mut [u8]) -> Result<bool, ExchangeFailure> {
        loop {
            let (Some(tls), Some(exchange)) = (&mut self.tls_connection, &mut self.exchange) else {
                return Ok(false);
            };
            if self.state == TargetConnectionState::Handshaking && !tls.is_handshaking() {
                self.state = TargetConnectionState::Established;
                if self.target.negotiated_tls.get().is_none()
                    && let Some(agreed) = NegotiatedTls::from_connection(tls)
                {
                    self.target.negotiated_tls.set(agreed).ok();
                }
                let now = Instant::now();
                exchange.connect_time = now.saturating_duration_since(exchange.started_at);
                exchange.idle_since = now;
                if self.target.is_http2 {
                    if tls.alpn_protocol() != Some(b"h2") {
                        return Err(ExchangeFailure::Http2Unsupported);
                    }
                    return self.advance_http2(buffer, true);
                }
            }
            if self.state == TargetConnectionState::Established {
                let rest = exchange
                    .request
                    .encoded_bytes
                    .get(exchange.written_bytes..)
                    .unwrap_or_default();
                exchange.written_bytes +=
                    tls.writer().write(rest).map_err(|_| ExchangeFailure::Tls)?;
            }
            let is_blocked = match flush_tls(tls, &mut self.socket) {
                // As without TLS; a socket that is no longer writable has reached its end, too.
                Err(_) if self.state == TargetConnectionState::Established => true,
                flushed => flushed?,
            };
            let mut is_at_end = false;
            match tls.read_tls(&mut self.socket) {
                Ok(0) => is_at_end = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_written = exchange.written_bytes == exchange.request.encoded_bytes.len();
                    if is_blocked || is_written || self.state == TargetConnectionState::Handshaking
                    {
                        return Ok(false);
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(ExchangeFailure::Reset),
            }
            tls.process_new_packets().map_err(|_| ExchangeFailure::Tls)?;
            if exchange.drain_tls(tls, buffer)? {
                return Ok(true);
            }
            if is_at_end {
                if self.state == TargetConnectionState::Handshaking {
                    return Err(ExchangeFailure::Tls);
                }
                return exchange.response_reader.finish_at_eof().map(|()| true);
            }
        }
    }

    fn finish_exchange(
        &mut self,
        result: Result<(), ExchangeFailure>,
        is_complete: bool,
    ) -> ExchangeProgress {
        let Some(exchange) = self.exchange.take() else { return ExchangeProgress::Closed };
        let ended = Instant::now();
        let is_open = match &self.http2_session {
            // In HTTP/2 a connection outlives its responses.
            Some(session) => session.is_usable(),
            None => {
                !exchange.response_reader.closes_connection()
                    && exchange.written_bytes == exchange.request.encoded_bytes.len()
                    && !exchange.response_reader.has_surplus()
            }
        };
        let kept_alive = is_complete && exchange.request.uses_keep_alive && is_open;
        // The server may close a persistent connection at the moment it is used; a response then never begins.
        let is_lost = self.exchange_count > 1
            && (exchange.received_bytes == 0 || exchange.is_refused_unprocessed)
            && matches!(result, Err(ExchangeFailure::NoResponse | ExchangeFailure::Reset));
        let next = match exchange.attempt {
            attempt if exchange.written_bytes == 0 || exchange.is_refused_unprocessed => {
                Some(attempt)
            }
            SendAttempt::First if exchange.request.is_idempotent() => Some(SendAttempt::Repeated),
            _ => None,
        };
        ExchangeProgress::Done(Box::new(ExchangeOutcome {
            retry: next.filter(|_| is_lost).map(|attempt| (exchange.request, attempt)),
            started_at: exchange.started_at,
            connect_time: exchange.connect_time,
            first_byte_at: exchange.first_byte_at.unwrap_or(ended),
            ended_at: ended,
            sent_bytes: exchange.written_bytes as u64,
            received_bytes: exchange.received_bytes,
            result: result.map(|()| exchange.response_reader.into_response()),
            is_connection_reusable: kept_alive,
        }))
    }
}

impl ConnectionExchange {
    /// Processes bytes of the response; returns true at its end.
    fn accept_bytes(&mut self, data: &[u8]) -> Result<bool, ExchangeFailure> {
        // The clock is read once per read only if the idle time is limited.
        if self.first_byte_at.is_none() || self.request.idle_timeout.is_some() {
            let now = Instant::now();
            self.first_byte_at.get_or_insert(now);
            self.idle_since = now;
        }
        let used = self.response_reader.feed(data)?;
        self.received_bytes += used as u64;
        if used < data.len() {
            self.response_reader.record_surplus();
        }
        Ok(self.response_reader.is_done())
    }

    fn drain_tls(
        &mut self,
        tls: &mut ClientConnection,
        buffer: &mut [u8],
    ) -> Result<bool, ExchangeFailure> {
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return self.response_reader.finish_at_eof().map(|()| true),
                Ok(length) => {
                    if self.accept_bytes(buffer.get(..length).unwrap_or_default())? {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(ExchangeFailure::Truncated),
            }
        }
    }
}

/// Writes the pending TLS output; returns true if the socket accepts no more.
fn flush_tls(tls: &mut ClientConnection, socket: &mut TcpStream) -> Result<bool, ExchangeFailure> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(ExchangeFailure::Reset),
        }
    }
    Ok(false)
}

fn read_failure(error: &io::Error) -> Option<ExchangeFailure> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
        _ => Some(ExchangeFailure::Reset),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::net::ResponseRetention;

    #[test]
    fn a_refusal_is_heard_although_the_upload_broke_off() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = LoadTarget::resolve(false, "127.0.0.1", port).unwrap();
        let mut connection = TargetConnection::open(&target).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        // More than the system buffers on both sides.
        let body = 64 << 20;
        let mut bytes = format!("POST / HTTP/1.1\r\nContent-Length: {body}\r\n\r\n").into_bytes();
        bytes.resize(bytes.len() + body, b'x');
        let request = TargetRequest {
            target,
            encoded_bytes: bytes.into(),
            is_head: false,
            retention: ResponseRetention::Nothing,
            uses_keep_alive: true,
            connect_timeout: None,
            idle_timeout: None,
        };
        let mut buffer = vec![0; 1024];
        let progress =
            connection.begin_exchange((request, SendAttempt::First), Instant::now(), &mut buffer);
        assert!(matches!(progress, ExchangeProgress::Pending), "{progress:?}");
        // Closing with unread data causes a reset.
        assert!(server.read(&mut buffer).unwrap() > 0);
        server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
        drop(server);
        let mut sockets = [PollFd::new(connection.socket(), PollFlags::empty())];
        poll(&mut sockets, None).unwrap();
        let ExchangeProgress::Done(reply) = connection.handle_ready(&mut buffer) else {
            panic!("no answer")
        };
        assert!(!reply.is_connection_reusable && reply.retry.is_none(), "{reply:?}");
        assert_eq!(reply.result.unwrap().status, 413);
    }
}
