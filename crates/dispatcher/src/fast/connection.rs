//! One connection of the lane: what was read and not answered, and what could not be sent yet.

use std::collections::VecDeque;
use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::{oneshot, watch};
use tympan_web::lane::{Closing, Handed, Lent};
use tympan_web::patience::Patience;
use tympan_web::wire::Wire;

use super::streams::Streams;
use crate::memory::{KeptBody, slice};

/// What one connection gets of a file before the others have their turn: the disk may be slower than the client.
const TURN_BYTES: u64 = 1024 * 1024;

/// A client that has not asked anything yet may stay for so long while others want its place.
const FIRST_MS: u64 = 2_000;

/// What is read of a client that goes on sending although nothing more is answered.
const MOST_DROPPED: usize = 1024 * 1024;

/// A connection that the lane serves.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) wire: Wire,
    pub(super) client: IpAddr,
    /// The same, for the log.
    pub(super) client_text: String,
    /// What was read and not answered.
    pub(super) unread: Vec<u8>,
    /// What could not be sent yet.
    pending: VecDeque<Piece>,
    /// How many bytes went out.
    pub(super) sent: u64,
    /// What may still be sent of a file in this turn.
    turn_left: u64,
    /// How many bytes were read and dropped since nothing more is answered.
    dropped: usize,
    /// What happens when everything is sent.
    pub(super) then: Then,
    /// When it ends if nothing happens, on the worker's clock.
    pub(super) deadline_ms: u64,
    pub(super) idle_ms: u64,
    /// With a client that takes its answers slowly.
    pub(super) patience: Patience,
    /// Whether there may be something to read: the kernel told so, and not all of it was read since.
    pub(super) may_read: bool,
    /// Whether nothing was done for it yet.
    pub(super) is_new: bool,
    pub(super) is_tls: bool,
    pub(super) requests_left: u64,
    pub(super) closing: Closing,
    /// Whether it is to end as others want its place.
    pub(super) is_wanted: bool,
    pub(super) ending: watch::Receiver<bool>,
    pub(super) done: oneshot::Sender<Option<Handed>>,
    /// What else belongs to a connection of HTTP/2.
    pub(super) http2: Option<Box<Streams>>,
}

/// What happens when everything is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    Close,
    /// The next request is not for the lane; see [`Handed::request_bytes`].
    Hand(Option<usize>),
    /// Nothing is answered any more, and what the client still sends is dropped.
    HearOut,
}

/// A part of an answer.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    File { file: Arc<File>, offset: u64, left: u64 },
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 4)
}

/// The connection cannot be used any more.
#[derive(Debug)]
pub(super) struct Broken;

impl Connection {
    pub(super) fn new(lent: Lent, done: oneshot::Sender<Option<Handed>>, now_ms: u64) -> Self {
        let Lent { wire, unread, peer, closing, ending, .. } = lent;
        let idle_ms = millis(lent.idle_timeout);
        Self {
            may_read: wire.may_hold_bytes(),
            wire,
            client: peer.addr.ip(),
            client_text: peer.addr.ip().to_canonical().to_string(),
            is_tls: peer.is_tls,
            unread,
            pending: VecDeque::new(),
            sent: 0,
            turn_left: TURN_BYTES,
            dropped: 0,
            then: Then::GoOn,
            deadline_ms: now_ms + idle_ms,
            idle_ms,
            patience: Patience::new(lent.stall_timeout),
            requests_left: lent.requests_left,
            closing,
            is_wanted: false,
            is_new: true,
            ending,
            done,
            http2: lent
                .http2
                .map(|http2| Box::new(Streams::new(http2, lent.stall_timeout, now_ms))),
        }
    }

    /// Tells whether something could not be sent yet.
    pub(super) fn is_blocked(&self) -> bool {
        !self.pending.is_empty() || self.wire.is_holding_back()
    }

    /// Tells whether sending paused although the client might take more.
    pub(super) fn has_paused(&self) -> bool {
        !self.pending.is_empty() && self.turn_left == 0
    }

    /// Tells whether it is to end when nothing is asked.
    pub(super) fn is_ending(&self) -> bool {
        self.is_wanted || *self.ending.borrow()
    }

    /// Returns since when nothing was asked, on the worker's clock, if others may have its place: for some time nobody may
    /// that of one who has asked nothing yet.
    pub(super) fn waits_since_ms(&self) -> Option<u64> {
        let is_waiting = match &self.http2 {
            Some(streams) => streams.is_waiting(),
            None => self.is_idle() && self.unread.is_empty(),
        };
        let first_ms = if self.sent == 0 { FIRST_MS } else { 0 };
        (is_waiting && !self.is_wanted)
            .then(|| self.deadline_ms.saturating_sub(self.idle_ms).saturating_add(first_ms))
    }

    /// Tells whether the next request can be answered.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_blocked() && self.then == Then::GoOn
    }

    /// Says that nothing more comes; returns whether the client may be in the middle of something. If it is, it has to be
    /// heard out: bytes that nobody reads reset the connection, and take its last answer from the client.
    pub(super) fn say_goodbye(&mut self) -> bool {
        self.then = Then::HearOut;
        self.wire.finish().is_ok() && self.hear_out()
    }

    /// Reads and drops what the client sends; returns whether it may go on.
    pub(super) fn hear_out(&mut self) -> bool {
        let mut piece = [0; 4 * 1024];
        while self.dropped < MOST_DROPPED {
            match self.wire.discard(&mut piece) {
                Ok(0) => return false,
                Ok(count) => self.dropped += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return self.dropped > 0 || !self.unread.is_empty();
                }
                Err(_gone) => return false,
            }
        }
        false
    }

    /// Sends a head without a body.
    pub(super) fn send_head(&mut self, head: &[u8]) -> Result<(), Broken> {
        self.send_small(head, Bytes::new())
    }

    /// Sends a head and a part of a body.
    pub(super) fn send(
        &mut self,
        head: &[u8],
        body: &KeptBody,
        (start, length): (u64, u64),
    ) -> Result<(), Broken> {
        match body {
            KeptBody::Memory(bytes) => self.send_small(head, slice(bytes, start, length)),
            KeptBody::File(file) => self.send_with_file(head, file, (start, length)),
        }
    }

    fn send_with_file(
        &mut self,
        head: &[u8],
        file: &Arc<File>,
        (start, length): (u64, u64),
    ) -> Result<(), Broken> {
        let part = (start, usize::try_from(length.min(TURN_BYTES)).unwrap_or(usize::MAX));
        let (of_head, of_file) = match self.wire.send_with_file(head, file, part, &mut self.sent) {
            Ok(sent) => sent,
            Err(error) => (not_now(error)?, 0),
        };
        let of_file = of_file as u64;
        if of_head == head.len() && of_file == length {
            return Ok(());
        }
        self.push(head.get(of_head..).unwrap_or_default());
        let (offset, left) = (start + of_file, length.saturating_sub(of_file));
        self.pending.push_back(Piece::File { file: Arc::clone(file), offset, left });
        self.turn_left = TURN_BYTES.saturating_sub(of_file);
        self.go_on()
    }

    fn send_small(&mut self, head: &[u8], mut body: Bytes) -> Result<(), Broken> {
        let sent = if self.then == Then::Close {
            self.wire.send_last(head, &body, &mut self.sent)
        } else {
            self.wire.send(head, &body, &mut self.sent)
        };
        let sent = sent.or_else(not_now)?;
        if sent == head.len() + body.len() {
            return Ok(());
        }
        self.push(head.get(sent..).unwrap_or_default());
        body.advance(sent.saturating_sub(head.len()).min(body.len()));
        self.pending.push_back(Piece::Bytes(body));
        // TLS may have taken a part only although the client would take more, of which the kernel does not tell.
        self.go_on()
    }

    fn push(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.pending.push_back(Piece::Bytes(Bytes::copy_from_slice(rest)));
        }
    }

    /// Sends what waits, as far as the client reads.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        self.turn_left = TURN_BYTES;
        self.go_on()
    }

    /// Sends what waits in the rest of this turn.
    fn go_on(&mut self) -> Result<(), Broken> {
        while let Some(piece) = self.pending.front_mut() {
            let (sent, is_done) = match piece {
                Piece::Bytes(bytes) if bytes.is_empty() => (Ok(0), true),
                Piece::Bytes(bytes) => {
                    let sent = self.wire.send(bytes, &[], &mut self.sent);
                    bytes.advance(*sent.as_ref().unwrap_or(&0));
                    (sent, bytes.is_empty())
                }
                Piece::File { left: 0, .. } => (Ok(0), true),
                Piece::File { .. } if self.turn_left == 0 => return Ok(()),
                Piece::File { file, offset, left } => {
                    let count = (*left).min(self.turn_left);
                    let part = (*offset, usize::try_from(count).unwrap_or(usize::MAX));
                    let sent = self.wire.send_file(file, part, &mut self.sent);
                    if matches!(sent, Ok(0)) {
                        // Someone cut the file; its announced length cannot be kept.
                        return Err(Broken);
                    }
                    let bytes = *sent.as_ref().unwrap_or(&0) as u64;
                    *offset += bytes;
                    *left = left.saturating_sub(bytes);
                    self.turn_left = self.turn_left.saturating_sub(bytes);
                    (sent, *left == 0)
                }
            };
            match sent {
                Ok(_) if is_done => drop(self.pending.pop_front()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return not_now(error).map(drop),
            }
        }
        self.wire.flush(&mut self.sent).or_else(|error| not_now(error).map(drop))
    }
}

/// Nothing was done, as far as it may be done later.
#[expect(clippy::needless_pass_by_value, reason = "so that `or_else` takes it")]
fn not_now(error: std::io::Error) -> Result<usize, Broken> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(0),
        _gone => Err(Broken),
    }
}

#[cfg(test)]
mod tests {
    use super::{Connection, TURN_BYTES};
    use crate::memory::KeptBody;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::{oneshot, watch};
    use tympan_web::lane::{Closing, Lent};
    use tympan_web::listen::Peer;
    use tympan_web::wire::Wire;

    /// Returns a connection, and its client.
    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, addr) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let ending = watch::channel(false).1;
        let lent = Lent {
            wire: Wire::free(stream),
            unread: Vec::new(),
            peer: Peer::new(addr, false),
            requests_left: 1,
            idle_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            closing: Closing::at_end(ending.clone()),
            ending,
            http2: None,
        };
        (Connection::new(lent, oneshot::channel().0, 0), client)
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
        connection.send(b"head", &KeptBody::File(Arc::new(file)), (0, LENGTH)).unwrap();
        let mut before = 4;
        let mut turns = 1;
        loop {
            assert!(
                connection.sent - before <= TURN_BYTES,
                "one turn sent {}",
                connection.sent - before
            );
            if !connection.is_blocked() {
                break;
            }
            before = connection.sent;
            connection.flush().unwrap();
            turns += 1;
            std::thread::yield_now();
        }
        assert!(turns >= LENGTH / TURN_BYTES);
        reader.join().unwrap();
    }
}
