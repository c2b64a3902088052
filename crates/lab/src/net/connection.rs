//! One connection and the exchange on it; it never blocks.
//!
//! The owner registers the socket once, edge-triggered, and calls [`Connection::ready`] on each event.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use socket2::{Domain, Protocol, Socket, Type};

use super::http2::{Advance, Session};
use super::response::Reader;
use super::tls::Agreed;
use super::{Attempt, Failure, Reply, Request, Target};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Handshaking,
    Open,
}

/// What an event brought.
#[derive(Debug)]
pub(crate) enum Progress {
    /// The exchange goes on, or there is none.
    Pending,
    /// The exchange ended; the connection may be used again if the reply says so.
    Done(Box<Reply>),
    /// The server closed an idle connection.
    Dead,
}

/// A socket to a target.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    target: Arc<Target>,
    tls: Option<Box<ClientConnection>>,
    /// What speaks HTTP/2, once the connection is open.
    session: Option<Box<Session>>,
    state: State,
    exchange: Option<Exchange>,
    exchanges: u64,
}

#[derive(Debug)]
struct Exchange {
    request: Request,
    attempt: Attempt,
    written: usize,
    started: Instant,
    connect: Duration,
    first_byte: Option<Instant>,
    quiet_since: Instant,
    received: u64,
    /// The server has not looked at the request, as it says.
    is_refused: bool,
    reader: Reader,
}

impl Connection {
    /// Starts to connect.
    ///
    /// # Errors
    /// The [`Failure`] of the exchange that needed the connection.
    pub(crate) fn open(target: &Arc<Target>) -> Result<Self, Failure> {
        let address = target.address().ok_or(Failure::Resolve)?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|_| Failure::Exhausted)?;
        socket.set_nonblocking(true).map_err(|_| Failure::Connect)?;
        if let Some(source) = target.source {
            let bound = socket.bind(&SocketAddr::new(source, 0).into());
            bound.map_err(|error| match error.raw_os_error() {
                Some(libc::EADDRINUSE) => Failure::Exhausted,
                _ => Failure::Bind,
            })?;
        }
        if let Some(window) = target.window {
            // As ab does it; the kernel takes what it allows.
            socket.set_send_buffer_size(window).ok();
            socket.set_recv_buffer_size(window).ok();
        }
        // A request is one write; Nagle's wait would be measured as the server's time.
        socket.set_tcp_nodelay(true).ok();
        let state = match socket.connect(&address.into()) {
            Ok(()) => State::Connecting,
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => State::Connecting,
            Err(error) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
                return Err(Failure::Exhausted);
            }
            Err(_) => return Err(Failure::Connect),
        };
        let tls = match &target.tls {
            None => None,
            Some((config, name)) => {
                let session = ClientConnection::new(Arc::clone(config), name.clone());
                Some(Box::new(session.map_err(|_| Failure::Tls)?))
            }
        };
        Ok(Self {
            socket: socket.into(),
            target: Arc::clone(target),
            tls,
            session: None,
            state,
            exchange: None,
            exchanges: 0,
        })
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn leads_to(&self, target: &Arc<Target>) -> bool {
        Arc::ptr_eq(&self.target, target)
    }

    /// Begins an exchange that started at `started`; the connection must be idle.
    pub(crate) fn begin(
        &mut self,
        (request, attempt): (Request, Attempt),
        started: Instant,
        buffer: &mut [u8],
    ) -> Progress {
        self.exchanges += 1;
        // A close that has arrived and was not looked at yet would lose a request that may not be repeated.
        let is_closed = self.exchanges > 1
            && !request.is_repeatable()
            && matches!(self.look_at_idle(buffer), Progress::Dead);
        let mut reader = Reader::new(request.is_head, request.keep);
        if self.target.is_http2 {
            reader = reader.of_version("HTTP/2");
        }
        self.exchange = Some(Exchange {
            request,
            attempt,
            written: 0,
            started,
            connect: Duration::ZERO,
            first_byte: None,
            quiet_since: started,
            received: 0,
            is_refused: false,
            reader,
        });
        if is_closed {
            return self.finish(Err(Failure::NoResponse), false);
        }
        if self.state == State::Open && self.tls.is_none() && !self.target.is_http2 {
            // The response cannot be there yet: only write, and leave reading to its event.
            return match self.write_plain() {
                Ok(()) => Progress::Pending,
                Err(failure) => self.finish(Err(failure), false),
            };
        }
        self.ready(buffer)
    }

    /// Goes as far as the socket allows.
    pub(crate) fn ready(&mut self, buffer: &mut [u8]) -> Progress {
        if self.exchange.is_none() {
            return self.look_at_idle(buffer);
        }
        match self.advance(buffer) {
            Ok(false) => Progress::Pending,
            Ok(true) => self.finish(Ok(()), true),
            Err(failure) => self.finish(Err(failure), false),
        }
    }

    /// Ends the exchange because the run ends.
    pub(crate) fn abandon(&mut self, failure: Failure) -> Progress {
        if self.exchange.is_some() { self.finish(Err(failure), false) } else { Progress::Dead }
    }

    /// Returns the failure if the exchange has waited longer than its request allows.
    pub(crate) fn overdue(&self, now: Instant) -> Option<Failure> {
        let exchange = self.exchange.as_ref()?;
        let (limit, since, failure) = if self.state == State::Open {
            (exchange.request.response_timeout, exchange.quiet_since, Failure::ResponseTimeout)
        } else {
            (exchange.request.connect_timeout, exchange.started, Failure::ConnectTimeout)
        };
        limit.is_some_and(|limit| now.saturating_duration_since(since) >= limit).then_some(failure)
    }

    fn look_at_idle(&mut self, buffer: &mut [u8]) -> Progress {
        if self.session.is_some() {
            return match self.exchange_frames(buffer, false) {
                Ok(_) if self.session.as_ref().is_some_and(|session| session.is_usable()) => {
                    Progress::Pending
                }
                _ => Progress::Dead,
            };
        }
        if let Some(tls) = &mut self.tls {
            // Session tickets arrive whenever the server likes.
            match tls.read_tls(&mut self.socket) {
                Ok(0) => return Progress::Dead,
                Ok(_) => {
                    let is_sound = tls.process_new_packets().is_ok_and(|state| {
                        !state.peer_has_closed() && state.plaintext_bytes_to_read() == 0
                    });
                    return if is_sound { Progress::Pending } else { Progress::Dead };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Progress::Pending,
                Err(_) => return Progress::Dead,
            }
        }
        match self.socket.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Progress::Pending,
            _ => Progress::Dead,
        }
    }

    fn advance(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        if self.state == State::Connecting {
            if !self.is_connected()? {
                return Ok(false);
            }
            self.state = if self.tls.is_some() { State::Handshaking } else { State::Open };
            self.note_connected();
        }
        if self.target.is_http2 && (self.tls.is_none() || self.session.is_some()) {
            return self.exchange_frames(buffer, true);
        }
        if self.tls.is_some() {
            return self.advance_tls(buffer);
        }
        match self.write_plain() {
            Ok(()) => self.read_plain(buffer),
            // A server that refuses an upload answers and closes while the rest of it is still being sent.
            Err(failure) => match self.read_plain(buffer) {
                Ok(true) => Ok(true),
                _ => Err(failure),
            },
        }
    }

    /// Goes on by HTTP/2 as far as the socket allows; true at the end of the exchange.
    fn exchange_frames(&mut self, buffer: &mut [u8], has_exchange: bool) -> Result<bool, Failure> {
        if self.session.is_none() {
            self.session = Some(Box::new(Session::new()?));
        }
        loop {
            let Some(session) = &mut self.session else { return Ok(false) };
            let mut advance = Advance::Pending;
            match &mut self.exchange {
                Some(exchange) if has_exchange => {
                    if exchange.written == 0 {
                        session.begin(&exchange.request.bytes, self.tls.is_some())?;
                        exchange.written = exchange.request.bytes.len();
                    }
                    advance = session.advance(&mut exchange.reader)?;
                    if exchange.first_byte.is_none() && exchange.reader.has_head() {
                        exchange.first_byte = Some(Instant::now());
                    }
                    exchange.is_refused |= advance == Advance::Refused;
                }
                _ => session.idle(),
            }
            self.write_frames()?;
            match advance {
                Advance::Done => return Ok(true),
                Advance::Refused => return Err(Failure::Reset),
                Advance::Pending => {}
            }
            match self.read_frames(buffer) {
                Ok(length) => {
                    let Some(session) = &mut self.session else { return Ok(false) };
                    let is_over = length == 0 && !session.is_usable();
                    session.receive(buffer.get(..length).unwrap_or_default());
                    if let Some(exchange) = &mut self.exchange {
                        exchange.received += length as u64;
                        exchange.quiet_since = Instant::now();
                    }
                    // The library has heard of the end before, and has nothing more to say.
                    if is_over {
                        return Err(Failure::NoResponse);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Failure::Reset),
            }
        }
    }

    /// Writes what the session has for the server as far as the socket takes it.
    fn write_frames(&mut self) -> Result<(), Failure> {
        let Some(session) = &self.session else { return Ok(()) };
        let socket = &mut self.socket;
        let written = match &mut self.tls {
            None => session.write(|bytes| socket.write(bytes)),
            Some(tls) => loop {
                let written = session.write(|bytes| tls.writer().write(bytes));
                // What TLS keeps is bounded, so that the rest follows when this is gone.
                if flush(tls, socket)? || !session.has_output() {
                    break written;
                }
            },
        };
        match written {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(Failure::Reset),
            _ => Ok(()),
        }
    }

    /// Reads bytes of the server's frames; none at the end.
    fn read_frames(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return self.socket.read(buffer) };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A server that closes without saying so has closed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                found => return found,
            }
            tls.read_tls(&mut self.socket)?;
            let packets = tls.process_new_packets();
            packets.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    fn is_connected(&self) -> Result<bool, Failure> {
        match self.socket.take_error() {
            Ok(Some(error)) if error.raw_os_error() == Some(libc::EADDRNOTAVAIL) => {
                return Err(Failure::Exhausted);
            }
            Ok(None) => {}
            _ => return Err(Failure::Connect),
        }
        Ok(self.socket.peer_addr().is_ok())
    }

    fn note_connected(&mut self) {
        if self.state == State::Open
            && let Some(exchange) = &mut self.exchange
        {
            let now = Instant::now();
            exchange.connect = now.saturating_duration_since(exchange.started);
            exchange.quiet_since = now;
        }
    }

    fn write_plain(&mut self) -> Result<(), Failure> {
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        while let Some(rest) = exchange.request.bytes.get(exchange.written..)
            && !rest.is_empty()
        {
            match self.socket.write(rest) {
                Ok(written) => exchange.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server may answer and close before it has read everything: look for its answer first.
                Err(_) if exchange.received > 0 => break,
                Err(_) => return Err(Failure::Reset),
            }
        }
        Ok(())
    }

    fn read_plain(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        let Some(exchange) = &mut self.exchange else { return Ok(false) };
        loop {
            match self.socket.read(buffer) {
                Ok(0) => return exchange.reader.end().map(|()| true),
                Ok(length) => {
                    if exchange.take(buffer.get(..length).unwrap_or_default())? {
                        return Ok(true);
                    }
                    // A short read is not the end: the peer's close may have come with the same event, which
                    // does not come twice.
                }
                Err(error) => match read_fault(&error) {
                    Some(failure) => return Err(failure),
                    None if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    None => {}
                },
            }
        }
    }

    fn advance_tls(&mut self, buffer: &mut [u8]) -> Result<bool, Failure> {
        loop {
            let (Some(tls), Some(exchange)) = (&mut self.tls, &mut self.exchange) else {
                return Ok(false);
            };
            if self.state == State::Handshaking && !tls.is_handshaking() {
                self.state = State::Open;
                if self.target.agreed.get().is_none()
                    && let Some(agreed) = Agreed::of(tls)
                {
                    self.target.agreed.set(agreed).ok();
                }
                let now = Instant::now();
                exchange.connect = now.saturating_duration_since(exchange.started);
                exchange.quiet_since = now;
                if self.target.is_http2 {
                    if tls.alpn_protocol() != Some(b"h2") {
                        return Err(Failure::NoHttp2);
                    }
                    return self.exchange_frames(buffer, true);
                }
            }
            if self.state == State::Open {
                let rest = exchange.request.bytes.get(exchange.written..).unwrap_or_default();
                exchange.written += tls.writer().write(rest).map_err(|_| Failure::Tls)?;
            }
            let is_blocked = match flush(tls, &mut self.socket) {
                // As without TLS; a socket that cannot be written to any more has an end, too.
                Err(_) if self.state == State::Open => true,
                flushed => flushed?,
            };
            let mut is_at_end = false;
            match tls.read_tls(&mut self.socket) {
                Ok(0) => is_at_end = true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let is_written = exchange.written == exchange.request.bytes.len();
                    if is_blocked || is_written || self.state == State::Handshaking {
                        return Ok(false);
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Err(Failure::Reset),
            }
            tls.process_new_packets().map_err(|_| Failure::Tls)?;
            if exchange.drain(tls, buffer)? {
                return Ok(true);
            }
            if is_at_end {
                if self.state == State::Handshaking {
                    return Err(Failure::Tls);
                }
                return exchange.reader.end().map(|()| true);
            }
        }
    }

    fn finish(&mut self, result: Result<(), Failure>, is_complete: bool) -> Progress {
        let Some(exchange) = self.exchange.take() else { return Progress::Dead };
        let ended = Instant::now();
        let is_open = match &self.session {
            // By HTTP/2 a connection outlives its responses.
            Some(session) => session.is_usable(),
            None => {
                !exchange.reader.closes()
                    && exchange.written == exchange.request.bytes.len()
                    && !exchange.reader.has_surplus()
            }
        };
        let kept_alive = is_complete && exchange.request.keep_alive && is_open;
        // The server may close a kept connection at the moment it is used; nothing of a response says so.
        let is_lost = self.exchanges > 1
            && (exchange.received == 0 || exchange.is_refused)
            && matches!(result, Err(Failure::NoResponse | Failure::Reset));
        let next = match exchange.attempt {
            attempt if exchange.written == 0 || exchange.is_refused => Some(attempt),
            Attempt::First if exchange.request.is_repeatable() => Some(Attempt::Repeated),
            _ => None,
        };
        Progress::Done(Box::new(Reply {
            again: next.filter(|_| is_lost).map(|attempt| (exchange.request, attempt)),
            started: exchange.started,
            connect: exchange.connect,
            first_byte: exchange.first_byte.unwrap_or(ended),
            ended,
            sent: exchange.written as u64,
            received: exchange.received,
            result: result.map(|()| exchange.reader.into_response()),
            kept_alive,
        }))
    }
}

impl Exchange {
    /// Takes bytes of the response; true at its end.
    fn take(&mut self, data: &[u8]) -> Result<bool, Failure> {
        // The clock is read once per read only where silence is bounded.
        if self.first_byte.is_none() || self.request.response_timeout.is_some() {
            let now = Instant::now();
            self.first_byte.get_or_insert(now);
            self.quiet_since = now;
        }
        let used = self.reader.feed(data)?;
        self.received += used as u64;
        if used < data.len() {
            self.reader.note_surplus();
        }
        Ok(self.reader.is_done())
    }

    fn drain(&mut self, tls: &mut ClientConnection, buffer: &mut [u8]) -> Result<bool, Failure> {
        loop {
            match tls.reader().read(buffer) {
                Ok(0) => return self.reader.end().map(|()| true),
                Ok(length) => {
                    if self.take(buffer.get(..length).unwrap_or_default())? {
                        return Ok(true);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(_) => return Err(Failure::Cut),
            }
        }
    }
}

/// Writes what the session has to say; true if the socket takes no more.
fn flush(tls: &mut ClientConnection, socket: &mut TcpStream) -> Result<bool, Failure> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Err(Failure::Reset),
        }
    }
    Ok(false)
}

fn read_fault(error: &io::Error) -> Option<Failure> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => None,
        _ => Some(Failure::Reset),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::super::Keep;
    use super::*;

    #[test]
    fn a_refusal_is_heard_although_the_upload_broke_off() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Target::resolve(false, "127.0.0.1", port).unwrap();
        let mut connection = Connection::open(&target).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        // More than the system takes from one side and keeps for the other.
        let body = 64 << 20;
        let mut bytes = format!("POST / HTTP/1.1\r\nContent-Length: {body}\r\n\r\n").into_bytes();
        bytes.resize(bytes.len() + body, b'x');
        let request = Request {
            target,
            bytes: bytes.into(),
            is_head: false,
            keep: Keep::Nothing,
            keep_alive: true,
            connect_timeout: None,
            response_timeout: None,
        };
        let mut buffer = vec![0; 1024];
        let begun = connection.begin((request, Attempt::First), Instant::now(), &mut buffer);
        assert!(matches!(begun, Progress::Pending), "{begun:?}");
        // What it has not read makes its close a reset.
        assert!(server.read(&mut buffer).unwrap() > 0);
        server.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
        drop(server);
        let mut sockets = [PollFd::new(connection.socket(), PollFlags::empty())];
        poll(&mut sockets, None).unwrap();
        let Progress::Done(reply) = connection.ready(&mut buffer) else { panic!("no answer") };
        assert!(!reply.kept_alive && reply.again.is_none(), "{reply:?}");
        assert_eq!(reply.result.unwrap().status, 413);
    }
}
