//! One thread of the fast path: waits for sockets and answers eligible requests.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use tympan_web::decimal_digits::DecimalDigits;
use tympan_web::fast_path::ReturnedConnection;
use tympan_web::listen::ListenerCounters;

use super::connection::{AfterSendAction, ConnectionBroken, FastConnection};
use super::log_buffer::{FastLogBuffer, ServedResponse};
use super::request_head::{FastRequest, HeadParseResult, parse_request_head};
use super::{WorkerCommand, WorkerMailbox};
use crate::cache::file_response::CacheFileResponse;
use crate::cache::response_memory::{
    CachedRepresentation, CachedResponse, LookupTime, encode_response_head,
};
use crate::dispatcher::Dispatcher;
use crate::dispatcher_state::DispatcherState;
use crate::edge::http2::OutputBuffer;
use crate::edge::http2::hpack::{FieldList, push_date};
use crate::observe::metrics::DispatcherCounter;

/// The number of bytes read from a socket at once, and the longest head that the fast path waits for.
const READ_BUFFER_BYTES: usize = 16 * 1024;
/// The number of sockets served before the changes of other processes are read again.
const MAX_EVENTS_PER_BATCH: usize = 256;
/// The event ID that signals commands.
const WAKE_EVENT: u64 = u64::MAX;
/// The maximum time in milliseconds for which log lines are batched, as passing them on wakes another thread.
const MAX_LOG_DELAY_MS: u64 = 20;
/// The resolution of timers in milliseconds.
const TIMER_TICK_MS: u64 = 1000;
/// The number of buffers read from one client before the others get their turn.
const MAX_READS_PER_TURN: usize = 4;
/// The divisor of the number of idle connections that gives the additional evictions besides the requested ones,
/// limited to `MAX_EXTRA_EVICTIONS`: others will connect soon.
const EXTRA_EVICTION_DIVISOR: usize = 16;
const MAX_EXTRA_EVICTIONS: usize = 32;
/// The time in milliseconds for which further input of a client is read after the last response.
const DRAIN_TIMEOUT_MS: u64 = 2000;

/// One thread of the fast path.
#[derive(Debug)]
pub(super) struct FastWorker {
    pub(super) dispatcher: Dispatcher,
    pub(super) mailbox: Arc<WorkerMailbox>,
    epoll_fd: OwnedFd,
    /// Boxed, because each is some hundred bytes long and must not be moved for each turn.
    connections: Vec<Option<Box<FastConnection>>>,
    pub(super) free_slots: Vec<usize>,
    pub(super) read_buffer: Vec<u8>,
    response_head: Vec<u8>,
    pub(super) log_buffer: FastLogBuffer,
    pub(super) date_header: DateHeader,
    /// The slots for which the service made progress.
    ready_slots: Vec<usize>,
    /// A buffer that HTTP/2 connections use in turn.
    pub(super) http2_fields: FieldList,
    pub(super) http2_output: OutputBuffer,
    started_at: Instant,
    last_sweep_ms: u64,
}

/// The state that all requests of a batch share.
pub(super) struct RequestBatch {
    pub(super) dispatcher_state: Arc<DispatcherState>,
    pub(super) lookup_time: LookupTime,
    pub(super) now_ms: u64,
}

impl RequestBatch {
    /// Calls `send` with the cached response to a request; returns `None` if there is no match. Ranges and conditions
    /// are resolved already.
    pub(super) fn with_cached_response<T>(
        &self,
        client: IpAddr,
        request: &FastRequest<'_>,
        send: impl FnOnce(SelectedRepresentation<'_>) -> T,
    ) -> Option<T> {
        let memory = &self.dispatcher_state.memory_responder;
        let response = memory.find_cached(&request.response_key, self.lookup_time)?;
        let is_head = request.response_key.flags.is_head();
        let get_response =
            memory.find_cached_get(&request.response_key, &response, self.lookup_time);
        let variant = get_response.as_ref().unwrap_or(&response);
        let representation = variant.choose_representation(
            request.accept_encoding,
            request.conditions.as_ref(),
            is_head,
        );
        let conditional = match &request.conditions {
            None => None,
            Some(conditions) => Some(variant.conditional_response(
                representation,
                conditions,
                is_head,
                self.lookup_time.now,
            )?),
        };
        // Checked last, because the regular path checks again.
        self.dispatcher_state.parts.request_gate.admit(client.to_canonical()).ok()?;
        let status = conditional.as_ref().map_or(StatusCode::OK, |conditional| conditional.status);
        memory.record_cached_hit(&response, is_head, status);
        self.dispatcher_state.parts.metrics.increment(DispatcherCounter::FastPathHits);
        Some(send(SelectedRepresentation { response: &response, representation, conditional }))
    }
}

/// The cached response to a request, with the representation that the request selects.
pub(super) struct SelectedRepresentation<'a> {
    pub(super) response: &'a CachedResponse,
    pub(super) representation: &'a CachedRepresentation,
    /// The result of the request's conditions and ranges; `None` for the whole representation.
    pub(super) conditional: Option<CacheFileResponse>,
}

/// The current date as a header.
#[derive(Debug, Default)]
pub(super) struct DateHeader {
    second: u64,
    header_line: String,
    http2_block: Vec<u8>,
}

impl DateHeader {
    /// Updates the date for all responses of a batch. It is the system time, as in hyper, regardless of the
    /// dispatcher's clock.
    fn update(&mut self) {
        let now = SystemTime::now();
        let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.second != second {
            self.second = second;
            let text = httpdate::fmt_http_date(now);
            self.http2_block.clear();
            push_date(&mut self.http2_block, &text);
            self.header_line = format!("date: {text}\r\n\r\n");
        }
    }

    /// Returns the header line, followed by the end of the head.
    fn header_line(&self) -> &[u8] {
        self.header_line.as_bytes()
    }

    /// Returns the encoded HTTP/2 field.
    pub(super) fn http2_block(&self) -> &[u8] {
        &self.http2_block
    }
}

/// Closes the mailbox however the thread ends.
struct MailboxCloser(Arc<WorkerMailbox>);

impl Drop for MailboxCloser {
    fn drop(&mut self) {
        self.0.close_mailbox();
    }
}

impl FastWorker {
    pub(super) fn new(
        dispatcher: Dispatcher,
        mailbox: Arc<WorkerMailbox>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = epoll::EventData::new_u64(WAKE_EVENT);
        epoll::add(&epoll, &mailbox.wake_fd, wake, epoll::EventFlags::IN)?;
        Ok(Self {
            dispatcher,
            mailbox,
            epoll_fd: epoll,
            connections: Vec::new(),
            free_slots: Vec::new(),
            read_buffer: vec![0; READ_BUFFER_BYTES],
            response_head: Vec::with_capacity(1024),
            log_buffer: FastLogBuffer::default(),
            date_header: DateHeader::default(),
            ready_slots: Vec::new(),
            http2_fields: FieldList::default(),
            http2_output: OutputBuffer::default(),
            started_at: Instant::now(),
            last_sweep_ms: 0,
        })
    }

    /// Serves until the stop command.
    pub(super) fn run_event_loop(mut self) {
        let _closing = MailboxCloser(Arc::clone(&self.mailbox));
        let mut events = Vec::with_capacity(MAX_EVENTS_PER_BATCH);
        loop {
            events.clear();
            let timeout = self.poll_timeout();
            let waited = epoll::wait(
                &self.epoll_fd,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(reason = %error, "fast path worker stopped");
                    return;
                }
            }
            let is_stopped = events.iter().any(|event| event.data.u64() == WAKE_EVENT)
                && self.process_commands();
            let batch = self.new_batch();
            for event in &events {
                if let Ok(slot) = usize::try_from(event.data.u64()) {
                    let flags = event.flags;
                    self.serve_connection(slot, flags, &batch);
                }
            }
            for slot in std::mem::take(&mut self.ready_slots) {
                self.serve_connection(slot, epoll::EventFlags::OUT, &batch);
            }
            if self.log_buffer.pending_ms(batch.now_ms) >= MAX_LOG_DELAY_MS {
                self.log_buffer.flush_to_writers(&batch.dispatcher_state.parts.runtime);
            }
            if is_stopped {
                self.log_buffer.flush_to_writers(&batch.dispatcher_state.parts.runtime);
                return;
            }
            if batch.now_ms >= self.last_sweep_ms + TIMER_TICK_MS {
                self.last_sweep_ms = batch.now_ms;
                self.close_expired(batch.now_ms);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timespec> {
        if self.log_buffer.has_text() {
            let left = MAX_LOG_DELAY_MS.saturating_sub(self.log_buffer.pending_ms(self.now_ms()));
            let left = Duration::from_millis(left.max(1));
            return Some(Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() });
        }
        let has_connections = self.connections.len() > self.free_slots.len();
        has_connections.then_some(Timespec { tv_sec: 1, tv_nsec: 0 })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn new_batch(&mut self) -> RequestBatch {
        self.date_header.update();
        let dispatcher_state = self.dispatcher.current_state();
        let lookup_time = dispatcher_state.memory_responder.lookup_time();
        RequestBatch { dispatcher_state, lookup_time, now_ms: self.now_ms() }
    }

    /// Processes all commands; returns true if one was to stop.
    fn process_commands(&mut self) -> bool {
        let mut is_stopped = false;
        for command in self.mailbox.take_commands() {
            match command {
                WorkerCommand::Serve(lent_connection, done) => {
                    self.add_connection(Box::new(FastConnection::new(
                        *lent_connection,
                        done,
                        self.now_ms(),
                    )));
                }
                WorkerCommand::Sweep => self.close_idle(),
                WorkerCommand::Evict(count, counters) => self.evict_idle(count, &counters),
                WorkerCommand::ServiceReady(slot) => self.ready_slots.push(slot),
                WorkerCommand::Stop => is_stopped = true,
            }
        }
        is_stopped
    }

    fn add_connection(&mut self, connection: Box<FastConnection>) {
        let slot = self.free_slots.pop().unwrap_or(self.connections.len());
        let data = epoll::EventData::new_u64(slot as u64);
        // Report each change once, so that waiting for a slow reader costs no system call. The first event comes at
        // once, as a socket is writable at first; input that came with the connection is answered then.
        let added = connection
            .wire
            .descriptor()
            .and_then(|socket| Ok(epoll::add(&self.epoll_fd, socket, data, socket_event_flags())?));
        if let Err(error) = added {
            tracing::debug!(reason = %error, "cannot register a connection of the fast path with epoll");
            self.dispatcher
                .current_state()
                .parts
                .metrics
                .increment(DispatcherCounter::FastPathRefusals);
            self.put_connection(slot, None);
            return hand_back(connection, None);
        }
        self.put_connection(slot, Some(connection));
    }

    /// Fills or frees a slot.
    pub(super) fn put_connection(&mut self, slot: usize, connection: Option<Box<FastConnection>>) {
        if connection.is_none() {
            self.free_slots.push(slot);
        }
        match self.connections.get_mut(slot) {
            Some(connection_slot) => *connection_slot = connection,
            None => self.connections.push(connection),
        }
    }

    /// Takes a connection out of its slot if `holds` returns true for it.
    fn take_connection_if(
        &mut self,
        slot: usize,
        holds: impl FnOnce(&FastConnection) -> bool,
    ) -> Option<Box<FastConnection>> {
        self.connections.get_mut(slot)?.take_if(|connection| holds(connection))
    }

    /// Closes the connections whose deadline has passed.
    fn close_expired(&mut self, now_ms: u64) {
        let is_overdue = |connection: &FastConnection| connection.deadline_ms <= now_ms;
        // This thread may itself be late, so input that arrived by now counts.
        for slot in self.serve_matching(is_overdue) {
            if let Some(connection) = self.take_connection_if(slot, is_overdue) {
                self.free_slots.push(slot);
                self.close_expired_connection(connection);
            }
        }
    }

    /// Closes the idle connections, when all are to end.
    fn close_idle(&mut self) {
        let is_over = |connection: &FastConnection| {
            (connection.http2_state.is_some() || connection.is_idle())
                && connection.should_end_when_idle()
        };
        // A request that arrived by now is still answered.
        self.serve_matching(is_over);
    }

    /// Closes idle connections, the longest idle first; a request that arrived by now is still answered.
    fn evict_idle(&mut self, count: usize, counters: &ListenerCounters) {
        let now_ms = self.now_ms();
        let since_ms = |connection_slot: &Option<Box<FastConnection>>| {
            connection_slot.as_ref()?.idle_since_ms().filter(|since_ms| *since_ms <= now_ms)
        };
        let connection_slots = self.connections.iter().enumerate();
        let mut waiting: Vec<(u64, usize)> = connection_slots
            .filter_map(|(slot, connection_slot)| Some((since_ms(connection_slot)?, slot)))
            .collect();
        waiting.sort_unstable();
        waiting.truncate(count + (waiting.len() / EXTRA_EVICTION_DIVISOR).min(MAX_EXTRA_EVICTIONS));
        for (_, slot) in &waiting {
            if let Some(Some(connection)) = self.connections.get_mut(*slot) {
                connection.is_marked_for_eviction = true;
            }
        }
        counters.evicted.fetch_add(waiting.len() as u64, Ordering::Relaxed);
        let is_ending = |connection: &FastConnection| connection.is_marked_for_eviction;
        self.serve_matching(is_ending);
    }

    /// Serves the connections for which `holds` returns true as if they had events, and returns their slots.
    fn serve_matching(&mut self, holds: impl Fn(&FastConnection) -> bool) -> Vec<usize> {
        let connection_slots = self.connections.iter().enumerate();
        let matching_slot = |(slot, connection_slot): (usize, &Option<Box<FastConnection>>)| {
            connection_slot.as_ref().is_some_and(|connection| holds(connection)).then_some(slot)
        };
        let slots: Vec<usize> = connection_slots.filter_map(matching_slot).collect();
        if !slots.is_empty() {
            let batch = self.new_batch();
            for slot in &slots {
                self.serve_connection(
                    *slot,
                    epoll::EventFlags::IN | epoll::EventFlags::OUT,
                    &batch,
                );
            }
        }
        slots
    }

    /// Closes a connection whose responses are sent, after reading the client's remaining input.
    pub(super) fn drain_and_close(
        &mut self,
        slot: usize,
        mut connection: Box<FastConnection>,
        now_ms: u64,
    ) {
        if connection.begin_drain() {
            connection.deadline_ms = now_ms + DRAIN_TIMEOUT_MS;
            self.put_connection(slot, Some(connection));
        } else {
            self.free_slots.push(slot);
            close_connection(connection);
        }
    }

    /// Serves a connection that has events.
    fn serve_connection(&mut self, slot: usize, flags: epoll::EventFlags, batch: &RequestBatch) {
        let Some(mut connection) = self.take_connection_if(slot, |_| true) else { return };
        if connection.after_send == AfterSendAction::Drain {
            if connection.drain_input() {
                return self.put_connection(slot, Some(connection));
            }
            self.free_slots.push(slot);
            return close_connection(connection);
        }
        if let Some(streams) = connection.http2_state.take() {
            return self.serve_http2_connection(slot, connection, streams, flags, batch);
        }
        // Errors and ends of input are found by reading, too.
        connection.may_read |= flags != epoll::EventFlags::OUT;
        let sent_before = connection.sent_bytes;
        let has_ended = flags.contains(epoll::EventFlags::RDHUP);
        if self.advance_connection(&mut connection, has_ended, batch).is_err() {
            self.free_slots.push(slot);
            return close_connection(connection);
        }
        let is_over = connection.is_idle() && connection.should_end_when_idle();
        match connection.after_send {
            _ if connection.is_blocked() => {
                self.keep_connection(slot, connection, sent_before, batch)
            }
            AfterSendAction::HandBack(request_bytes) => {
                self.free_slots.push(slot);
                if let Ok(socket) = connection.wire.descriptor() {
                    epoll::delete(&self.epoll_fd, socket).ok();
                }
                hand_back(connection, request_bytes);
            }
            AfterSendAction::Continue if !is_over => {
                self.keep_connection(slot, connection, sent_before, batch)
            }
            AfterSendAction::Continue | AfterSendAction::Close | AfterSendAction::Drain => {
                self.drain_and_close(slot, connection, batch.now_ms)
            }
        }
    }

    /// Stores a connection that had sent the given number of bytes before this turn.
    fn keep_connection(
        &mut self,
        slot: usize,
        mut connection: Box<FastConnection>,
        sent_before: u64,
        batch: &RequestBatch,
    ) {
        let is_blocked = connection.is_blocked();
        let sent_length = connection.sent_bytes - sent_before;
        connection.slow_client_timeout.record_progress(batch.now_ms, sent_length, is_blocked);
        // Bytes of an incomplete head, or input while a response waits, are no progress.
        if let Some(end_ms) = connection.slow_client_timeout.deadline_ms() {
            connection.deadline_ms = end_ms;
        } else if sent_length > 0 {
            connection.deadline_ms = batch.now_ms.saturating_add(connection.idle_timeout_ms);
        }
        if connection.has_paused() || (connection.may_read && !is_blocked) {
            return self.requeue_connection(slot, connection);
        }
        self.put_connection(slot, Some(connection));
    }

    /// Stores a connection and re-arms its events, behind the others.
    pub(super) fn requeue_connection(&mut self, slot: usize, connection: Box<FastConnection>) {
        let data = epoll::EventData::new_u64(slot as u64);
        let rearm_result = connection.wire.descriptor().and_then(|socket| {
            Ok(epoll::modify(&self.epoll_fd, socket, data, socket_event_flags())?)
        });
        if rearm_result.is_err() {
            // No more events would be reported for it.
            self.dispatcher
                .current_state()
                .parts
                .metrics
                .increment(DispatcherCounter::FastPathRefusals);
            self.free_slots.push(slot);
            return close_connection(connection);
        }
        self.put_connection(slot, Some(connection));
    }

    /// Serves a connection until there is nothing to read, its client reads too slowly, or it must leave the fast path.
    fn advance_connection(
        &mut self,
        connection: &mut FastConnection,
        has_ended: bool,
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let was_blocked = connection.is_blocked();
        connection.flush_pending()?;
        let is_new = connection.is_new;
        connection.is_new = false;
        if (was_blocked || is_new) && connection.is_idle() && !connection.unread.is_empty() {
            let unread = std::mem::take(&mut connection.unread);
            self.answer_requests(connection, &unread, batch)?;
        }
        for _ in 0..MAX_READS_PER_TURN {
            if !(connection.may_read && connection.is_idle()) {
                break;
            }
            self.read_input(connection, has_ended, batch)?;
        }
        Ok(())
    }

    fn read_input(
        &mut self,
        connection: &mut FastConnection,
        has_ended: bool,
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let outcome = match connection.wire.receive(&mut buffer[..]) {
            Ok(received) if received.bytes == 0 => Err(ConnectionBroken),
            Ok(received) => {
                // The end of input that came with these bytes is not reported again.
                connection.may_read = has_ended || received.has_more;
                let input = buffer.get(..received.bytes).unwrap_or_default();
                if connection.unread.is_empty() {
                    self.answer_requests(connection, input, batch)
                } else {
                    let mut unread = std::mem::take(&mut connection.unread);
                    unread.extend_from_slice(input);
                    self.answer_requests(connection, &unread, batch)
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

    /// Answers the requests in `bytes` up to the first one that is not eligible; the remainder stays with the
    /// connection.
    fn answer_requests(
        &mut self,
        connection: &mut FastConnection,
        bytes: &[u8],
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let mut rest = bytes;
        while !rest.is_empty() && connection.is_idle() {
            match parse_request_head(rest, connection.is_tls) {
                HeadParseResult::Partial if rest.len() < READ_BUFFER_BYTES => break,
                HeadParseResult::Eligible(request, length) => {
                    if self.serve_from_memory(connection, &request, batch)? {
                        rest = rest.get(length..).unwrap_or_default();
                    } else {
                        connection.after_send = AfterSendAction::HandBack(Some(length));
                    }
                }
                HeadParseResult::WithoutBody(length) => {
                    connection.after_send = AfterSendAction::HandBack(Some(length))
                }
                HeadParseResult::Partial | HeadParseResult::Other => {
                    connection.after_send = AfterSendAction::HandBack(None)
                }
            }
        }
        connection.unread.extend_from_slice(rest);
        Ok(())
    }

    /// Sends the cached response to a request; returns true if there was one.
    fn serve_from_memory(
        &mut self,
        connection: &mut FastConnection,
        request: &FastRequest<'_>,
        batch: &RequestBatch,
    ) -> Result<bool, ConnectionBroken> {
        let client = connection.client_addr;
        let result = batch.with_cached_response(client, request, |selected| {
            self.send_cached(connection, request, selected, batch)
        });
        result.transpose().map(|result| result.is_some())
    }

    fn send_cached(
        &mut self,
        connection: &mut FastConnection,
        request: &FastRequest<'_>,
        selected: SelectedRepresentation<'_>,
        batch: &RequestBatch,
    ) -> Result<(), ConnectionBroken> {
        let SelectedRepresentation { response, representation, conditional } = selected;
        let now = batch.lookup_time.now;
        let is_head = request.response_key.flags.is_head();
        connection.requests_left = connection.requests_left.saturating_sub(1);
        let closes_connection = request.closes_connection
            || connection.requests_left == 0
            || connection.is_marked_for_eviction
            || connection.listener_closing.must_close();
        let (status, length, body_range) = match conditional {
            None => {
                self.write_response_head(
                    representation.head.parts(),
                    response,
                    now,
                    closes_connection,
                );
                (200, Some(representation.length), (0, representation.length))
            }
            Some(conditional) => {
                let head = encode_response_head(
                    request.response_key.flags,
                    conditional.status,
                    &conditional.headers,
                );
                self.write_response_head(head.parts(), response, now, closes_connection);
                (
                    conditional.status.as_u16(),
                    announced_length(&conditional.headers),
                    (conditional.start, conditional.length),
                )
            }
        };
        let served_response =
            ServedResponse { client: &connection.client_text, request, response, status, length };
        let runtime = &batch.dispatcher_state.parts.runtime;
        self.log_buffer.record_response(runtime, now, batch.now_ms, served_response);
        if closes_connection {
            connection.after_send = AfterSendAction::Close;
        }
        if is_head || body_range.1 == 0 {
            connection.send_head(&self.response_head)?;
        } else {
            connection.send_response(&self.response_head, &representation.body, body_range)?;
        }
        Ok(())
    }

    /// Writes a complete head from the parts before and after the age.
    fn write_response_head(
        &mut self,
        [before_age, after_age]: [&[u8]; 2],
        response: &CachedResponse,
        now: SystemTime,
        closes_connection: bool,
    ) {
        let age = DecimalDigits::from_number(response.age_seconds(now));
        self.response_head.clear();
        self.response_head.extend_from_slice(before_age);
        self.response_head.extend_from_slice(age.as_bytes());
        self.response_head.extend_from_slice(after_age);
        if closes_connection {
            self.response_head.extend_from_slice(b"connection: close\r\n");
        }
        match response.source.has_own_date {
            true => self.response_head.extend_from_slice(b"\r\n"),
            false => self.response_head.extend_from_slice(self.date_header.header_line()),
        }
    }
}

/// Returns the epoll events to watch for on a socket.
fn socket_event_flags() -> epoll::EventFlags {
    use epoll::EventFlags;
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

/// Closes a connection after pending output was sent.
pub(super) fn close_connection(connection: Box<FastConnection>) {
    let FastConnection { mut wire, after_send, return_sender, listener_closing, .. } = *connection;
    if after_send != AfterSendAction::Drain {
        wire.close_notify();
    }
    // The receiver of this notification may end the fast path, so drop all of its resources first.
    drop((wire, listener_closing));
    return_sender.send(None).ok();
}

/// Returns a connection to the listener.
fn hand_back(connection: Box<FastConnection>, request_bytes: Option<usize>) {
    let FastConnection { wire, unread, return_sender, requests_left, .. } = *connection;
    // The receiver is gone when the runtime has ended.
    return_sender
        .send(Some(ReturnedConnection { socket: wire, unread, requests_left, request_bytes }))
        .ok();
}

pub(super) fn announced_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(http::header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
