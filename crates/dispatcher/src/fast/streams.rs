//! Connections of HTTP/2 on the lane: kept answers from here, everything else from the service behind.
//!
//! Invariants
//! * Nothing is read of a client that takes nothing, nor while the service takes nothing of its uploads.
//! * One buffer of a worker holds what is to be sent, and stays with a connection only while its client takes nothing.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use tympan_web::lane::Http2;
use tympan_web::patience::Patience;

use super::Order;
use super::connection::{Broken, Connection};
use super::head::{Plain, read_fields};
use super::log::Given;
use super::worker::{Batch, Worker, announced, close, decimal};
use crate::hit::Told;
use crate::http2::Reason;
use crate::http2::behind::{Behind, Bell};
use crate::http2::hpack::Fields;
use crate::http2::session::{Bounds, Kept, Session, Step};
use crate::memory::{Form, KeptBody, Ready, slice, write_head};
use crate::metrics::Counter;

/// What is encrypted and sent at once.
const SEND_BYTES: usize = 48 * 1024;
/// What one connection gets before the others have their turn.
const TURN_BYTES: usize = 1024 * 1024;
/// What is read of one client before the others have their turn, in buffers.
const TURN_READS: usize = 4;

/// What a connection of HTTP/2 has beyond its socket.
#[derive(Debug)]
pub(super) struct Streams {
    session: Session,
    door: Http2,
    behind: Option<Behind>,
    /// Whether the client takes nothing now.
    is_blocked: bool,
    /// What may still be sent in this turn.
    turn_left: usize,
    /// Whether there may be whole frames in what was read.
    has_frames: bool,
    /// When the client did something useful or took something, on the worker's clock.
    moved_ms: u64,
    /// With a client that takes nothing, or opens no window for all answers.
    patience: Patience,
}

impl Streams {
    pub(super) fn new(door: Http2, stall: Duration, now_ms: u64) -> Self {
        let Http2 { max_streams, header_bytes, .. } = door;
        Self {
            session: Session::new(Bounds { max_streams, header_bytes, stall }, now_ms),
            door,
            behind: None,
            is_blocked: false,
            turn_left: TURN_BYTES,
            has_frames: false,
            moved_ms: now_ms,
            patience: Patience::new(stall),
        }
    }

    /// Tells whether nothing is asked.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_blocked && !self.session.has_streams() && !self.session.is_within_block()
    }

    /// Tells whether nothing is to be read now.
    fn is_busy(&self) -> bool {
        self.is_blocked || self.turn_left == 0 || self.behind.as_ref().is_some_and(Behind::is_full)
    }

    /// Lets the service go on.
    fn pump(&mut self) {
        let Some(behind) = &mut self.behind else { return };
        if behind.pump(&mut self.session).is_err() {
            self.behind = None;
            self.session.abandon();
        }
    }

    /// Sends what there is, until the client takes no more or the turn is over.
    fn send(&mut self, connection: &mut Connection) -> Result<(), Broken> {
        self.is_blocked = true;
        if !is_done(connection.wire.flush(&mut connection.sent))? {
            return Ok(());
        }
        while self.turn_left > 0 {
            self.session.fill(SEND_BYTES);
            let out = &mut self.session.out;
            if out.is_empty() {
                self.is_blocked = false;
                return Ok(());
            }
            let count = match connection.wire.send_all(&out.slices(), &mut connection.sent) {
                Ok(count) => count,
                Err(error) => {
                    is_done(Err(error))?;
                    0
                }
            };
            out.advance(count);
            self.turn_left = self.turn_left.saturating_sub(count);
            if count == 0 || connection.wire.is_holding_back() {
                return Ok(());
            }
        }
        self.is_blocked = false;
        Ok(())
    }

    /// Returns when something is given up if nothing happens: an answer or the whole connection.
    fn deadline_ms(&mut self, idle_ms: u64) -> u64 {
        let session = &mut self.session;
        // The service is waited for no longer than its own bounds say.
        let is_idle = !session.has_streams() || session.is_within_block();
        let idle_end_ms =
            (is_idle && !self.is_blocked).then(|| self.moved_ms.saturating_add(idle_ms));
        let ends = [self.patience.end_ms(), session.stall_end_ms(), idle_end_ms];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Leaves a request to the service.
    fn leave(&mut self, request: (u32, bool), fields: &Fields, ring: impl FnOnce() -> Arc<Bell>) {
        if self.behind.as_ref().is_some_and(|behind| behind.is_idle() && !behind.has_numbers()) {
            self.behind = None;
            self.session.abandon();
        }
        if self.behind.is_none() {
            let (behind, far) = Behind::open(ring(), self.door.max_streams);
            // Nobody takes it when the listener ends.
            if self.door.service.send(far).is_ok() {
                self.behind = Some(behind);
            }
        }
        match self.behind.as_mut().filter(|behind| behind.has_numbers()) {
            Some(behind) => behind.ask(&mut self.session, request, fields),
            None => self.session.refuse(request.0),
        }
    }
}

/// Tells whether something was done, or can be done later.
fn is_done(outcome: std::io::Result<()>) -> Result<bool, Broken> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(_gone) => Err(Broken),
    }
}

impl Worker {
    /// Does what can be done for a connection that has news.
    pub(super) fn serve_streams(
        &mut self,
        slot: usize,
        (mut connection, mut streams): (Box<Connection>, Box<Streams>),
        flags: EventFlags,
        batch: &Batch,
    ) {
        connection.may_read |= flags != EventFlags::OUT;
        let before = (connection.sent, streams.session.progress(), streams.is_blocked);
        let taken = streams.session.taken();
        if connection.is_ending() {
            streams.session.announce_end();
        }
        streams.session.tick(batch.now_ms);
        streams.turn_left = TURN_BYTES;
        if streams.session.out.is_empty() {
            std::mem::swap(&mut streams.session.out, &mut self.out);
        }
        let has_ended = flags.contains(EventFlags::RDHUP);
        let outcome = self.proceed_streams(slot, (&mut connection, &mut streams), has_ended, batch);
        if streams.session.out.is_empty() {
            let out = std::mem::take(&mut streams.session.out);
            if out.capacity() > self.out.capacity() {
                self.out = out;
            }
        }
        if outcome.is_err() {
            self.free.push(slot);
            return close(connection);
        }
        if streams.session.is_over() && !streams.session.can_send() && !streams.is_blocked {
            return self.part(slot, connection, batch.now_ms);
        }
        let has_moved =
            before.1 != streams.session.progress() || (before.2 && before.0 != connection.sent);
        if has_moved {
            streams.moved_ms = batch.now_ms;
        }
        let taken = if before.2 {
            connection.sent - before.0
        } else {
            // Heads and answers to pings are no progress of answers that wait.
            streams.session.taken() - taken
        };
        let is_waiting = streams.is_blocked || streams.session.wants_window();
        streams.patience.note(batch.now_ms, taken, is_waiting);
        connection.deadline_ms = streams.deadline_ms(connection.idle_ms);
        let has_paused = !streams.is_blocked && streams.session.can_send();
        let can_read = (connection.may_read || streams.has_frames) && !streams.is_blocked;
        let is_full = streams.behind.as_ref().is_some_and(Behind::is_full);
        connection.http2 = Some(streams);
        if has_paused || (can_read && !is_full) {
            return self.put_again(slot, connection);
        }
        self.put(slot, Some(connection));
    }

    fn proceed_streams(
        &mut self,
        slot: usize,
        (connection, streams): (&mut Connection, &mut Streams),
        has_ended: bool,
        batch: &Batch,
    ) -> Result<(), Broken> {
        let mut reads = 0;
        loop {
            streams.pump();
            streams.send(connection)?;
            if streams.is_busy() || streams.session.is_over() {
                break;
            }
            if streams.has_frames {
                let unread = std::mem::take(&mut connection.unread);
                self.read_streams(slot, (&mut *connection, &mut *streams), &unread, batch)?;
            } else if connection.may_read && reads < TURN_READS {
                reads += 1;
                self.receive_streams(slot, (&mut *connection, &mut *streams), has_ended, batch)?;
            } else {
                break;
            }
        }
        let given_up = streams.session.give_up_stalled();
        if given_up > 0 {
            batch.inner.metrics.add(Counter::AnswersGivenUp, given_up as u64);
        }
        // What was sent may let the service go on.
        streams.pump();
        if streams.is_blocked { Ok(()) } else { streams.send(connection) }
    }

    fn receive_streams(
        &mut self,
        slot: usize,
        (connection, streams): (&mut Connection, &mut Streams),
        has_ended: bool,
        batch: &Batch,
    ) -> Result<(), Broken> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = match connection.wire.receive(&mut buffer[..]) {
            Ok(received) if received.bytes == 0 => Err(Broken),
            Ok(received) => {
                connection.may_read = has_ended || received.has_more;
                let news = buffer.get(..received.bytes).unwrap_or_default();
                if connection.unread.is_empty() {
                    self.read_streams(slot, (connection, streams), news, batch)
                } else {
                    let mut unread = std::mem::take(&mut connection.unread);
                    unread.extend_from_slice(news);
                    self.read_streams(slot, (connection, streams), &unread, batch)
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The end that was told is still to be read.
                connection.may_read = has_ended;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_gone) => Err(Broken),
        };
        self.buffer = buffer;
        outcome
    }

    /// Reads the frames in `bytes`; what is left stays with the connection.
    fn read_streams(
        &mut self,
        slot: usize,
        (connection, streams): (&mut Connection, &mut Streams),
        bytes: &[u8],
        batch: &Batch,
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        let mut fields = std::mem::take(&mut self.fields);
        streams.has_frames = false;
        let mut outcome = Ok(());
        loop {
            if streams.session.out.len() >= SEND_BYTES {
                outcome = streams.send(connection);
            }
            if outcome.is_err() {
                break;
            }
            if streams.is_busy() {
                streams.has_frames = true;
                break;
            }
            match streams.session.step(&mut rest, &mut fields) {
                Step::Wait => break,
                Step::Over => {
                    rest = &[];
                    break;
                }
                Step::Request { stream, is_whole } => {
                    let is_given = is_whole
                        && read_fields(&fields, connection.is_tls).is_some_and(|plain| {
                            self.give_stream((&*connection, &mut *streams), (stream, &plain), batch)
                        });
                    if !is_given {
                        let mailbox = &self.mailbox;
                        streams.leave((stream, is_whole), &fields, || {
                            let mailbox = Arc::clone(mailbox);
                            Bell::new(move || {
                                mailbox.send(Order::News(slot)).ok();
                            })
                        });
                    }
                }
                Step::Trailers { behind } => {
                    if let Some(service) = &mut streams.behind {
                        service.push_trailers(behind, &fields);
                    }
                }
                Step::Data { behind, bytes, is_last } => {
                    if let Some(service) = &mut streams.behind {
                        service.push_data(behind, bytes, is_last);
                    }
                }
            }
        }
        self.fields = fields;
        connection.unread.extend_from_slice(rest);
        outcome
    }

    /// Gives the kept answer to a request; returns whether there was one.
    fn give_stream(
        &mut self,
        (connection, streams): (&Connection, &mut Streams),
        (stream, plain): (u32, &Plain<'_>),
        batch: &Batch,
    ) -> bool {
        let client = &connection.client_text;
        let given = batch.with_kept(connection.client, plain, |ready, form, told| {
            self.give_kept(
                &mut streams.session,
                (stream, client, plain),
                (ready, form, told),
                batch,
            );
        });
        given.is_some()
    }

    fn give_kept(
        &mut self,
        session: &mut Session,
        (stream, client, plain): (u32, &str, &Plain<'_>),
        (ready, form, told): (&Ready, &Form, Option<Told>),
        batch: &Batch,
    ) {
        let now = batch.moment.now;
        let written;
        let (status, length, part, [before_age, after_age]) = match told {
            None => (200, Some(form.length), (0, form.length), form.head.parts()),
            Some(told) => {
                written = write_head(plain.key.kind, told.status, &told.headers);
                let part = (told.start, told.length);
                (told.status.as_u16(), announced(&told.headers), part, written.parts())
            }
        };
        let mut digits = [0_u8; 20];
        let age = decimal(ready.age(now), &mut digits);
        // No number has so many digits that its length takes a second byte.
        let age_length = [u8::try_from(age.len()).unwrap_or(0)];
        let parts = [before_age, &age_length[..], age, after_age, self.date.block()];
        let (start, length_of_part) = if plain.key.kind.is_head() { (0, 0) } else { part };
        let body = match &form.body {
            KeptBody::Memory(bytes) => Kept::Bytes(slice(bytes, start, length_of_part)),
            KeptBody::File(file) => {
                Kept::File { file: Arc::clone(file), offset: start, length: length_of_part }
            }
        };
        session.answer(stream, &parts, body);
        let given = Given { ready, status, length };
        let times = (now, batch.now_ms);
        self.logs.note(&batch.inner.runtime, times, (client, plain), given);
    }

    /// Closes a connection whose time is over; one of HTTP/2 is told why.
    pub(super) fn end_streams(&mut self, mut connection: Box<Connection>) {
        let mut given_up = u64::from(connection.is_blocked());
        if let Some(mut streams) = connection.http2.take() {
            given_up = streams.session.waiting() as u64;
            let is_late = streams.session.has_streams();
            streams.session.fail(if is_late { Reason::CANCEL } else { Reason::NO_ERROR });
            streams.turn_left = TURN_BYTES;
            // Who takes nothing hears nothing.
            streams.send(&mut connection).ok();
        }
        if given_up > 0 {
            self.dispatcher.current().metrics.add(Counter::AnswersGivenUp, given_up);
        }
        close(connection);
    }
}
