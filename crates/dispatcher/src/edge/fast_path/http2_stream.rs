//! HTTP/2 connections on the fast path: cached responses come from here, everything else from the service behind.
//!
//! Invariants
//! * No input is read from a client that accepts no output, nor while the service accepts none of its uploads.
//! * One buffer of a worker holds the output, and stays with a connection only while its client accepts none.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use tympan_web::decimal_digits::DecimalDigits;
use tympan_web::fast_path::FastPathHttp2;
use tympan_web::slow_client_timeout::SlowClientTimeout;

use super::WorkerCommand;
use super::connection::{ConnectionBroken, FastConnection};
use super::log_buffer::ServedResponse;
use super::request_head::{FastRequest, parse_http2_fields};
use super::worker::{
    FastWorker, RequestBatch, SelectedRepresentation, announced_length, close_connection,
};
use crate::cache::response_memory::{CachedBody, encode_response_head};
use crate::edge::http2::Http2ErrorCode;
use crate::edge::http2::connection::{
    Http2Connection, Http2Limits, Http2ReadStep, Http2ResponseBody,
};
use crate::edge::http2::hpack::FieldList;
use crate::edge::http2::service_connection::{ServiceConnection, ServiceNotifier};
use crate::edge::response_body::slice_bytes;
use crate::observe::metrics::DispatcherCounter;

/// The number of bytes encrypted and sent at once.
const SEND_CHUNK_BYTES: usize = 48 * 1024;
/// The number of bytes sent to one connection before the others get their turn.
const MAX_BYTES_PER_TURN: usize = 1024 * 1024;
/// The number of buffers read from one client before the others get their turn.
const MAX_READS_PER_TURN: usize = 4;

/// The state of an HTTP/2 connection beyond its socket.
#[derive(Debug)]
pub(super) struct FastHttp2State {
    connection: Http2Connection,
    http2_listener: FastPathHttp2,
    service_connection: Option<ServiceConnection>,
    /// True if the client currently accepts no output.
    is_blocked: bool,
    /// The number of bytes that may still be sent in this turn.
    turn_bytes_left: usize,
    /// True if the input may contain complete frames.
    may_have_frames: bool,
    /// The time at which the client last made progress or accepted output, on the worker's clock.
    last_progress_ms: u64,
    /// The timeout for a client that accepts no output, or opens no window for all responses.
    slow_client_timeout: SlowClientTimeout,
}

impl FastHttp2State {
    pub(super) fn new(settings: FastPathHttp2, stall_timeout: Duration, now_ms: u64) -> Self {
        let FastPathHttp2 { max_streams, max_header_bytes, .. } = settings;
        Self {
            connection: Http2Connection::new(
                Http2Limits { max_streams, max_header_bytes, stall_timeout },
                now_ms,
            ),
            http2_listener: settings,
            service_connection: None,
            is_blocked: false,
            turn_bytes_left: MAX_BYTES_PER_TURN,
            may_have_frames: false,
            last_progress_ms: now_ms,
            slow_client_timeout: SlowClientTimeout::new(stall_timeout),
        }
    }

    /// Returns true if no request is open.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_blocked && !self.connection.has_streams() && !self.connection.is_within_block()
    }

    /// Returns true if reading is paused.
    fn is_read_paused(&self) -> bool {
        self.is_blocked
            || self.turn_bytes_left == 0
            || self.service_connection.as_ref().is_some_and(ServiceConnection::is_full)
    }

    /// Lets the service make progress.
    fn advance_service(&mut self) {
        let Some(behind) = &mut self.service_connection else { return };
        if behind.pump(&mut self.connection).is_err() {
            self.service_connection = None;
            self.connection.abandon_service_streams();
        }
    }

    /// Sends output until the client accepts no more or the turn is over.
    fn send_output(&mut self, connection: &mut FastConnection) -> Result<(), ConnectionBroken> {
        self.is_blocked = true;
        if !is_done_unless_blocked(connection.wire.flush(&mut connection.sent_bytes))? {
            return Ok(());
        }
        while self.turn_bytes_left > 0 {
            self.connection.fill_output(SEND_CHUNK_BYTES);
            let out = &mut self.connection.output;
            if out.is_empty() {
                self.is_blocked = false;
                return Ok(());
            }
            let count =
                match connection.wire.send_slices(&out.io_slices(), &mut connection.sent_bytes) {
                    Ok(count) => count,
                    Err(error) => {
                        is_done_unless_blocked(Err(error))?;
                        0
                    }
                };
            out.advance(count);
            self.turn_bytes_left = self.turn_bytes_left.saturating_sub(count);
            if count == 0 || connection.wire.has_unsent_bytes() {
                return Ok(());
            }
        }
        self.is_blocked = false;
        Ok(())
    }

    /// Returns the time at which a response or the whole connection is given up if nothing happens.
    fn next_deadline_ms(&mut self, idle_ms: u64) -> u64 {
        let session = &mut self.connection;
        // The service is awaited for no longer than its own limits.
        let is_idle = !session.has_streams() || session.is_within_block();
        let idle_end_ms =
            (is_idle && !self.is_blocked).then(|| self.last_progress_ms.saturating_add(idle_ms));
        let ends =
            [self.slow_client_timeout.deadline_ms(), session.next_stall_deadline_ms(), idle_end_ms];
        ends.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Forwards a request to the service.
    fn forward_to_service(
        &mut self,
        stream: u32,
        is_complete: bool,
        fields: &FieldList,
        ring: impl FnOnce() -> Arc<ServiceNotifier>,
    ) {
        if self
            .service_connection
            .as_ref()
            .is_some_and(|behind| behind.is_idle() && !behind.has_free_stream_id())
        {
            self.service_connection = None;
            self.connection.abandon_service_streams();
        }
        if self.service_connection.is_none() {
            let (behind, far) = ServiceConnection::open(ring(), self.http2_listener.max_streams);
            // The receiver is gone when the listener ends.
            if self.http2_listener.service_pipes.send(far).is_ok() {
                self.service_connection = Some(behind);
            }
        }
        match self.service_connection.as_mut().filter(|behind| behind.has_free_stream_id()) {
            Some(behind) => {
                behind.forward_request(&mut self.connection, stream, is_complete, fields)
            }
            None => self.connection.refuse_stream(stream),
        }
    }
}

/// Returns true if the operation succeeded, and false if it would block.
fn is_done_unless_blocked(outcome: std::io::Result<()>) -> Result<bool, ConnectionBroken> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(_gone) => Err(ConnectionBroken),
    }
}

impl FastWorker {
    /// Serves a connection that has events.
    pub(super) fn serve_http2_connection(
        &mut self,
        slot: usize,
        mut connection: Box<FastConnection>,
        mut streams: Box<FastHttp2State>,
        flags: EventFlags,
        batch: &RequestBatch,
    ) {
        connection.may_read |= flags != EventFlags::OUT;
        let before =
            (connection.sent_bytes, streams.connection.progress_count(), streams.is_blocked);
        let sent_before = streams.connection.sent_body_bytes();
        if connection.should_end_when_idle() {
            streams.connection.begin_shutdown();
        }
        streams.connection.advance_time(batch.now_ms);
        streams.turn_bytes_left = MAX_BYTES_PER_TURN;
        if streams.connection.output.is_empty() {
            std::mem::swap(&mut streams.connection.output, &mut self.http2_output);
        }
        let has_ended = flags.contains(EventFlags::RDHUP);
        let outcome =
            self.advance_http2_connection(slot, &mut connection, &mut streams, has_ended, batch);
        if streams.connection.output.is_empty() {
            let out = std::mem::take(&mut streams.connection.output);
            if out.capacity() > self.http2_output.capacity() {
                self.http2_output = out;
            }
        }
        if outcome.is_err() {
            self.free_slots.push(slot);
            return close_connection(connection);
        }
        if streams.connection.is_closing() && !streams.connection.can_send() && !streams.is_blocked
        {
            return self.drain_and_close(slot, connection, batch.now_ms);
        }
        let has_moved = before.1 != streams.connection.progress_count()
            || (before.2 && before.0 != connection.sent_bytes);
        if has_moved {
            streams.last_progress_ms = batch.now_ms;
        }
        let sent_length = if before.2 {
            connection.sent_bytes - before.0
        } else {
            // Heads and responses to pings are no progress of waiting responses.
            streams.connection.sent_body_bytes() - sent_before
        };
        let is_waiting = streams.is_blocked || streams.connection.is_blocked_by_window();
        streams.slow_client_timeout.record_progress(batch.now_ms, sent_length, is_waiting);
        connection.deadline_ms = streams.next_deadline_ms(connection.idle_timeout_ms);
        let has_paused = !streams.is_blocked && streams.connection.can_send();
        let can_read = (connection.may_read || streams.may_have_frames) && !streams.is_blocked;
        let is_full = streams.service_connection.as_ref().is_some_and(ServiceConnection::is_full);
        connection.http2_state = Some(streams);
        if has_paused || (can_read && !is_full) {
            return self.requeue_connection(slot, connection);
        }
        self.put_connection(slot, Some(connection));
    }

    fn advance_http2_connection(
        &mut self,
        slot: usize,
        connection: &mut FastConnection,
        streams: &mut FastHttp2State,
        has_ended: bool,
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let mut reads = 0;
        loop {
            streams.advance_service();
            streams.send_output(connection)?;
            if streams.is_read_paused() || streams.connection.is_closing() {
                break;
            }
            if streams.may_have_frames {
                let unread = std::mem::take(&mut connection.unread);
                self.read_http2_frames(slot, connection, streams, &unread, batch)?;
            } else if connection.may_read && reads < MAX_READS_PER_TURN {
                reads += 1;
                self.receive_http2_input(slot, connection, streams, has_ended, batch)?;
            } else {
                break;
            }
        }
        let given_up = streams.connection.reset_stalled_streams();
        if given_up > 0 {
            batch
                .dispatcher_state
                .parts
                .metrics
                .add(DispatcherCounter::ResponsesAbandoned, given_up as u64);
        }
        // The output sent may let the service make progress.
        streams.advance_service();
        if streams.is_blocked { Ok(()) } else { streams.send_output(connection) }
    }

    fn receive_http2_input(
        &mut self,
        slot: usize,
        connection: &mut FastConnection,
        streams: &mut FastHttp2State,
        has_ended: bool,
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let outcome = match connection.wire.receive(&mut buffer[..]) {
            Ok(received) if received.bytes == 0 => Err(ConnectionBroken),
            Ok(received) => {
                connection.may_read = has_ended || received.has_more;
                let input = buffer.get(..received.bytes).unwrap_or_default();
                if connection.unread.is_empty() {
                    self.read_http2_frames(slot, connection, streams, input, batch)
                } else {
                    let mut unread = std::mem::take(&mut connection.unread);
                    unread.extend_from_slice(input);
                    self.read_http2_frames(slot, connection, streams, &unread, batch)
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // The reported end of input is still to be read.
                connection.may_read = has_ended;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_gone) => Err(ConnectionBroken),
        };
        self.read_buffer = buffer;
        outcome
    }

    /// Parses the frames in `bytes`; the remainder stays with the connection.
    fn read_http2_frames(
        &mut self,
        slot: usize,
        connection: &mut FastConnection,
        streams: &mut FastHttp2State,
        bytes: &[u8],
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let mut rest = bytes;
        let mut fields = std::mem::take(&mut self.http2_fields);
        streams.may_have_frames = false;
        let mut outcome = Ok(());
        loop {
            if streams.connection.output.len() >= SEND_CHUNK_BYTES {
                outcome = streams.send_output(connection);
            }
            if outcome.is_err() {
                break;
            }
            if streams.is_read_paused() {
                streams.may_have_frames = true;
                break;
            }
            match streams.connection.read_step(&mut rest, &mut fields) {
                Http2ReadStep::NeedMoreData => break,
                Http2ReadStep::Closed => {
                    rest = &[];
                    break;
                }
                Http2ReadStep::Request { stream, is_complete } => {
                    let is_answered = is_complete
                        && parse_http2_fields(&fields, connection.is_tls).is_some_and(|request| {
                            self.serve_from_memory_on_stream(
                                connection, streams, stream, &request, batch,
                            )
                        });
                    if !is_answered {
                        let mailbox = &self.mailbox;
                        streams.forward_to_service(stream, is_complete, &fields, || {
                            let mailbox = Arc::clone(mailbox);
                            ServiceNotifier::new(move || {
                                mailbox.send_command(WorkerCommand::ServiceReady(slot)).ok();
                            })
                        });
                    }
                }
                Http2ReadStep::Trailers { service_stream } => {
                    if let Some(service) = &mut streams.service_connection {
                        service.forward_trailers(service_stream, &fields);
                    }
                }
                Http2ReadStep::Data { service_stream, bytes, is_last } => {
                    if let Some(service) = &mut streams.service_connection {
                        service.forward_data(service_stream, bytes, is_last);
                    }
                }
            }
        }
        self.http2_fields = fields;
        connection.unread.extend_from_slice(rest);
        outcome
    }

    /// Sends the cached response to a request; returns true if there was one.
    fn serve_from_memory_on_stream(
        &mut self,
        connection: &FastConnection,
        streams: &mut FastHttp2State,
        stream: u32,
        request: &FastRequest<'_>,
        batch: &RequestBatch,
    ) -> bool {
        let client = &connection.client_text;
        let session = &mut streams.connection;
        let result = batch.with_cached_response(connection.client_addr, request, |selected| {
            self.send_cached_on_stream(session, stream, client, request, selected, batch);
        });
        result.is_some()
    }

    fn send_cached_on_stream(
        &mut self,
        session: &mut Http2Connection,
        stream: u32,
        client: &str,
        request: &FastRequest<'_>,
        selected: SelectedRepresentation<'_>,
        batch: &RequestBatch,
    ) {
        let SelectedRepresentation { response, representation, conditional } = selected;
        let now = batch.lookup_time.now;
        let conditional_head;
        let (status, length, body_range, [before_age, after_age]) = match conditional {
            None => (
                200,
                Some(representation.length),
                (0, representation.length),
                representation.head.parts(),
            ),
            Some(conditional) => {
                conditional_head = encode_response_head(
                    request.response_key.flags,
                    conditional.status,
                    &conditional.headers,
                );
                let body_range = (conditional.start, conditional.length);
                (
                    conditional.status.as_u16(),
                    announced_length(&conditional.headers),
                    body_range,
                    conditional_head.parts(),
                )
            }
        };
        let age = DecimalDigits::from_number(response.age_seconds(now));
        let age = age.as_bytes();
        // A decimal number has so few digits that its length fits one byte.
        let age_length = [u8::try_from(age.len()).unwrap_or(0)];
        let date: &[u8] =
            if response.source.has_own_date { &[] } else { self.date_header.http2_block() };
        let parts = [before_age, &age_length[..], age, after_age, date];
        let (start, length_of_part) =
            if request.response_key.flags.is_head() { (0, 0) } else { body_range };
        let body = match &representation.body {
            CachedBody::Memory(bytes) => {
                Http2ResponseBody::Bytes(slice_bytes(bytes, start, length_of_part))
            }
            CachedBody::File(file) => Http2ResponseBody::File {
                file: Arc::clone(file),
                offset: start,
                length: length_of_part,
            },
        };
        session.send_response(stream, &parts, body);
        let served_response = ServedResponse { client, request, response, status, length };
        let runtime = &batch.dispatcher_state.parts.runtime;
        self.log_buffer.record_response(runtime, now, batch.now_ms, served_response);
    }

    /// Closes a connection whose deadline has passed; an HTTP/2 client is sent the reason.
    pub(super) fn close_expired_connection(&mut self, mut connection: Box<FastConnection>) {
        let mut given_up = u64::from(connection.is_blocked());
        if let Some(mut streams) = connection.http2_state.take() {
            given_up = streams.connection.waiting_count() as u64;
            let is_late = streams.connection.has_streams();
            streams.connection.close_with_error(if is_late {
                Http2ErrorCode::CANCEL
            } else {
                Http2ErrorCode::NO_ERROR
            });
            streams.turn_bytes_left = MAX_BYTES_PER_TURN;
            // A client that accepts no output does not get the reason.
            streams.send_output(&mut connection).ok();
        }
        if given_up > 0 {
            self.dispatcher
                .current_state()
                .parts
                .metrics
                .add(DispatcherCounter::ResponsesAbandoned, given_up);
        }
        close_connection(connection);
    }
}
