//! One connection of the fast path: its unanswered input and its unsent output.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::{oneshot, watch};
use tympan_web::connection_socket::ConnectionSocket;
use tympan_web::fast_path::{KeepAlivePolicy, LentConnection, ReturnedConnection};
use tympan_web::slow_client_timeout::SlowClientTimeout;

use super::http2_stream::FastHttp2State;
use crate::cache::response_memory::CachedBody;
use crate::edge::response_body::slice_bytes;

/// The number of bytes of a file that one connection sends before the others get their turn: the disk may be slower
/// than the client.
const MAX_FILE_BYTES_PER_TURN: u64 = 1024 * 1024;

/// The time in milliseconds for which a client without a request keeps its slot while others want it.
const NEW_CLIENT_GRACE_MS: u64 = 2_000;

/// The maximum number of bytes read from a client that keeps sending although nothing more is answered.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;

/// A connection that the fast path serves.
#[derive(Debug)]
pub(super) struct FastConnection {
    pub(super) wire: ConnectionSocket,
    pub(super) client_addr: IpAddr,
    /// The client address as text, for the log.
    pub(super) client_text: String,
    /// The bytes that were read but not answered.
    pub(super) unread: Vec<u8>,
    /// The output that could not be sent yet.
    pending_pieces: VecDeque<OutgoingPiece>,
    /// The number of bytes sent.
    pub(super) sent_bytes: u64,
    /// The number of bytes of a file that may still be sent in this turn.
    turn_bytes_left: u64,
    /// The number of bytes read and discarded since the last response.
    discarded_bytes: usize,
    /// The action after everything is sent.
    pub(super) after_send: AfterSendAction,
    /// The time at which the connection ends if nothing happens, on the worker's clock.
    pub(super) deadline_ms: u64,
    pub(super) idle_timeout_ms: u64,
    /// The timeout for a client that reads its responses slowly.
    pub(super) slow_client_timeout: SlowClientTimeout,
    /// True if there may be input: the kernel reported it, and not all of it was read since.
    pub(super) may_read: bool,
    /// True if the connection was not served yet.
    pub(super) is_new: bool,
    pub(super) is_tls: bool,
    pub(super) requests_left: u64,
    pub(super) listener_closing: KeepAlivePolicy,
    /// True if the connection is to end because others want its slot.
    pub(super) is_marked_for_eviction: bool,
    shutdown_signal: watch::Receiver<bool>,
    pub(super) return_sender: oneshot::Sender<Option<ReturnedConnection>>,
    /// The additional state of an HTTP/2 connection.
    pub(super) http2_state: Option<Box<FastHttp2State>>,
}

/// The action after everything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterSendAction {
    Continue,
    Close,
    /// The next request is not for the fast path; see [`ReturnedConnection::request_bytes`].
    HandBack(Option<usize>),
    /// Nothing is answered any more, and further input of the client is discarded.
    Drain,
}

/// A part of a response.
#[derive(Debug)]
enum OutgoingPiece {
    Bytes(Bytes),
    File { file: Arc<File>, offset: u64, remaining: u64 },
}

fn to_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

/// The connection cannot be used any more.
#[derive(Debug)]
pub(super) struct ConnectionBroken;

impl FastConnection {
    pub(super) fn new(
        lent_connection: LentConnection,
        done: oneshot::Sender<Option<ReturnedConnection>>,
        now_ms: u64,
    ) -> Self {
        let LentConnection { socket, unread, peer, keep_alive_policy, end_signal, .. } =
            lent_connection;
        let idle_ms = to_millis(lent_connection.idle_timeout);
        Self {
            may_read: socket.may_have_buffered_input(),
            wire: socket,
            client_addr: peer.addr.ip(),
            client_text: peer.addr.ip().to_canonical().to_string(),
            is_tls: peer.is_tls,
            unread,
            pending_pieces: VecDeque::new(),
            sent_bytes: 0,
            turn_bytes_left: MAX_FILE_BYTES_PER_TURN,
            discarded_bytes: 0,
            after_send: AfterSendAction::Continue,
            deadline_ms: now_ms + idle_ms,
            idle_timeout_ms: idle_ms,
            slow_client_timeout: SlowClientTimeout::new(lent_connection.write_timeout),
            requests_left: lent_connection.requests_left,
            listener_closing: keep_alive_policy,
            is_marked_for_eviction: false,
            is_new: true,
            shutdown_signal: end_signal,
            return_sender: done,
            http2_state: lent_connection.http2.map(|http2| {
                Box::new(FastHttp2State::new(http2, lent_connection.write_timeout, now_ms))
            }),
        }
    }

    /// Returns true if output is pending.
    pub(super) fn is_blocked(&self) -> bool {
        !self.pending_pieces.is_empty() || self.wire.has_unsent_bytes()
    }

    /// Returns true if sending paused although the client might accept more.
    pub(super) fn has_paused(&self) -> bool {
        !self.pending_pieces.is_empty() && self.turn_bytes_left == 0
    }

    /// Returns true if the connection is to end when it becomes idle.
    pub(super) fn should_end_when_idle(&self) -> bool {
        self.is_marked_for_eviction || *self.shutdown_signal.borrow()
    }

    /// Returns the time since which the connection is idle, on the worker's clock, if others may take its slot; `None`
    /// otherwise. A connection without any request yet is protected for some time.
    pub(super) fn idle_since_ms(&self) -> Option<u64> {
        let is_waiting = match &self.http2_state {
            Some(streams) => streams.is_idle(),
            None => self.is_idle() && self.unread.is_empty(),
        };
        let first_ms = if self.sent_bytes == 0 { NEW_CLIENT_GRACE_MS } else { 0 };
        (is_waiting && !self.is_marked_for_eviction)
            .then(|| self.deadline_ms.saturating_sub(self.idle_timeout_ms).saturating_add(first_ms))
    }

    /// Returns true if the next request can be answered.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_blocked() && self.after_send == AfterSendAction::Continue
    }

    /// Shuts down the sending side; returns true if the client may still be sending. In that case its input must be
    /// read to the end: unread bytes reset the connection, and the client loses its last response.
    pub(super) fn begin_drain(&mut self) -> bool {
        self.after_send = AfterSendAction::Drain;
        self.wire.close_write().is_ok() && self.drain_input()
    }

    /// Reads and discards the client's input; returns true if more may come.
    pub(super) fn drain_input(&mut self) -> bool {
        let mut piece = [0; 4 * 1024];
        while self.discarded_bytes < MAX_DISCARDED_BYTES {
            match self.wire.discard(&mut piece) {
                Ok(0) => return false,
                Ok(count) => self.discarded_bytes += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.discarded_bytes > 0 || !self.unread.is_empty();
                }
                Err(_gone) => return false,
            }
        }
        false
    }

    /// Sends a head without a body.
    pub(super) fn send_head(&mut self, head: &[u8]) -> Result<(), ConnectionBroken> {
        self.send_small(head, Bytes::new())
    }

    /// Sends a head and a part of a body.
    pub(super) fn send_response(
        &mut self,
        head: &[u8],
        body: &CachedBody,
        (start, length): (u64, u64),
    ) -> Result<(), ConnectionBroken> {
        match body {
            CachedBody::Memory(bytes) => self.send_small(head, slice_bytes(bytes, start, length)),
            CachedBody::File(file) => self.send_with_file(head, file, (start, length)),
        }
    }

    fn send_with_file(
        &mut self,
        head: &[u8],
        file: &Arc<File>,
        (start, length): (u64, u64),
    ) -> Result<(), ConnectionBroken> {
        let part =
            (start, usize::try_from(length.min(MAX_FILE_BYTES_PER_TURN)).unwrap_or(usize::MAX));
        let (of_head, of_file) =
            match self.wire.send_with_file(head, file, part, &mut self.sent_bytes) {
                Ok(sent) => sent,
                Err(error) => (zero_if_would_block(error)?, 0),
            };
        let of_file = of_file as u64;
        if of_head == head.len() && of_file == length {
            return Ok(());
        }
        self.push_pending(head.get(of_head..).unwrap_or_default());
        let (offset, left) = (start + of_file, length.saturating_sub(of_file));
        self.pending_pieces.push_back(OutgoingPiece::File {
            file: Arc::clone(file),
            offset,
            remaining: left,
        });
        self.turn_bytes_left = MAX_FILE_BYTES_PER_TURN.saturating_sub(of_file);
        self.send_pending()
    }

    fn send_small(&mut self, head: &[u8], mut body: Bytes) -> Result<(), ConnectionBroken> {
        let sent = if self.after_send == AfterSendAction::Close {
            self.wire.send_last(head, &body, &mut self.sent_bytes)
        } else {
            self.wire.send(head, &body, &mut self.sent_bytes)
        };
        let sent = sent.or_else(zero_if_would_block)?;
        if sent == head.len() + body.len() {
            return Ok(());
        }
        self.push_pending(head.get(sent..).unwrap_or_default());
        body.advance(sent.saturating_sub(head.len()).min(body.len()));
        self.pending_pieces.push_back(OutgoingPiece::Bytes(body));
        // TLS may have accepted only a part although the client would accept more, and the kernel does not report that.
        self.send_pending()
    }

    fn push_pending(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.pending_pieces.push_back(OutgoingPiece::Bytes(Bytes::copy_from_slice(rest)));
        }
    }

    /// Sends pending output, as far as the client reads.
    pub(super) fn flush_pending(&mut self) -> Result<(), ConnectionBroken> {
        self.turn_bytes_left = MAX_FILE_BYTES_PER_TURN;
        self.send_pending()
    }

    /// Sends pending output within the rest of this turn.
    fn send_pending(&mut self) -> Result<(), ConnectionBroken> {
        while let Some(piece) = self.pending_pieces.front_mut() {
            let (sent, is_done) = match piece {
                OutgoingPiece::Bytes(bytes) if bytes.is_empty() => (Ok(0), true),
                OutgoingPiece::Bytes(bytes) => {
                    let sent = self.wire.send(bytes, &[], &mut self.sent_bytes);
                    bytes.advance(*sent.as_ref().unwrap_or(&0));
                    (sent, bytes.is_empty())
                }
                OutgoingPiece::File { remaining: 0, .. } => (Ok(0), true),
                OutgoingPiece::File { .. } if self.turn_bytes_left == 0 => return Ok(()),
                OutgoingPiece::File { file, offset, remaining } => {
                    let count = (*remaining).min(self.turn_bytes_left);
                    let part = (*offset, usize::try_from(count).unwrap_or(usize::MAX));
                    let sent = self.wire.send_file(file, part, &mut self.sent_bytes);
                    if matches!(sent, Ok(0)) {
                        // The file was truncated, so its announced length cannot be met.
                        return Err(ConnectionBroken);
                    }
                    let bytes = *sent.as_ref().unwrap_or(&0) as u64;
                    *offset += bytes;
                    *remaining = remaining.saturating_sub(bytes);
                    self.turn_bytes_left = self.turn_bytes_left.saturating_sub(bytes);
                    (sent, *remaining == 0)
                }
            };
            match sent {
                Ok(_) if is_done => drop(self.pending_pieces.pop_front()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return zero_if_would_block(error).map(drop),
            }
        }
        self.wire.flush(&mut self.sent_bytes).or_else(|error| zero_if_would_block(error).map(drop))
    }
}

/// Maps an error to 0 bytes done if the operation would block.
#[expect(clippy::needless_pass_by_value, reason = "so that `or_else` takes it")]
fn zero_if_would_block(error: std::io::Error) -> Result<usize, ConnectionBroken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
        _gone => Err(ConnectionBroken),
    }
}

#[cfg(test)]
mod tests {
    use super::{FastConnection, MAX_FILE_BYTES_PER_TURN};
    use crate::cache::response_memory::CachedBody;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::{oneshot, watch};
    use tympan_web::connection_socket::ConnectionSocket;
    use tympan_web::fast_path::{KeepAlivePolicy, LentConnection};
    use tympan_web::listen::ConnectionPeer;

    /// Returns a connection, and its client.
    fn pair() -> (FastConnection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, addr) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let ending = watch::channel(false).1;
        let lent_connection = LentConnection {
            socket: ConnectionSocket::from_detached(stream),
            unread: Vec::new(),
            peer: ConnectionPeer::new(addr, false),
            requests_left: 1,
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            keep_alive_policy: KeepAlivePolicy::until_stopped(ending.clone()),
            end_signal: ending,
            http2: None,
        };
        (FastConnection::new(lent_connection, oneshot::channel().0, 0), client)
    }

    #[test]
    fn a_large_file_is_sent_in_turns_however_fast_its_client_reads() {
        const LENGTH: u64 = 64 * 1024 * 1024;
        let file = tempfile::tempfile().unwrap();
        file.set_len(LENGTH).unwrap();
        let (mut connection, mut client) = pair();
        let reader = std::thread::spawn(move || {
            let mut piece = vec![0; 1024 * 1024];
            let mut total = 0;
            while total < LENGTH + 4 {
                total += client.read(&mut piece).unwrap() as u64;
            }
        });
        connection.send_response(b"head", &CachedBody::File(Arc::new(file)), (0, LENGTH)).unwrap();
        let mut before = 4;
        let mut turns = 1;
        loop {
            assert!(
                connection.sent_bytes - before <= MAX_FILE_BYTES_PER_TURN,
                "one turn sent {}",
                connection.sent_bytes - before
            );
            if !connection.is_blocked() {
                break;
            }
            before = connection.sent_bytes;
            connection.flush_pending().unwrap();
            turns += 1;
            std::thread::yield_now();
        }
        assert!(turns >= LENGTH / MAX_FILE_BYTES_PER_TURN);
        reader.join().unwrap();
    }
}
