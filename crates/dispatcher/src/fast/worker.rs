//! One thread of the lane: waits for sockets, answers what it can.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, StatusCode};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use tympan_web::lane::Handed;
use tympan_web::listen::Counters;

use super::connection::{Broken, Connection, Then};
use super::head::{Plain, Read, read};
use super::log::{Given, Logs};
use super::{Mailbox, Order};
use crate::dispatcher::{Dispatcher, Inner};
use crate::hit::Told;
use crate::http2::Out;
use crate::http2::hpack::{Fields, push_date};
use crate::memory::{Form, Moment, Ready, write_head};
use crate::metrics::Counter;

/// What is read from a socket at once, and the longest head that the lane waits for.
const BUFFER_BYTES: usize = 16 * 1024;
/// Sockets that are served before the changes of others are read again.
const BATCH: usize = 256;
/// The event that tells of orders.
const WAKE: u64 = u64::MAX;
/// Log lines wait for each other this long at most, as handing some on wakes another thread.
const LOG_PAUSE_MS: u64 = 20;
/// Timers are this coarse.
const TICK_MS: u64 = 1000;
/// What is read of one client before the others have their turn, in buffers.
const TURN_READS: usize = 4;
/// Beside those whose places are wanted, one of so many leaves, but no more than so many: others will come soon.
const SPARE_PART: usize = 16;
const MOST_SPARE: usize = 32;
/// How long the rest of what a client sends is read when nothing more is answered.
const HEAR_OUT_MS: u64 = 2000;

/// One thread of the lane.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) dispatcher: Dispatcher,
    pub(super) mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    /// Each is of some hundred bytes, which are not to be moved for each turn.
    connections: Vec<Option<Box<Connection>>>,
    pub(super) free: Vec<usize>,
    pub(super) buffer: Vec<u8>,
    head: Vec<u8>,
    pub(super) logs: Logs,
    pub(super) date: Date,
    /// Slots for which the service did something.
    news: Vec<usize>,
    /// What connections of HTTP/2 use by turns.
    pub(super) fields: Fields,
    pub(super) out: Out,
    started: Instant,
    swept_ms: u64,
}

/// What all requests of a batch share.
pub(super) struct Batch {
    pub(super) inner: Arc<Inner>,
    pub(super) moment: Moment,
    pub(super) now_ms: u64,
}

impl Batch {
    /// Lets `give` answer a request from what is kept; nothing if that does not fit. Parts and conditions come decided.
    pub(super) fn with_kept<T>(
        &self,
        client: IpAddr,
        plain: &Plain<'_>,
        give: impl FnOnce(&Ready, &Form, Option<Told>) -> T,
    ) -> Option<T> {
        let inner = &self.inner;
        let ready = inner.find_kept(&plain.key, self.moment)?;
        let is_head = plain.key.kind.is_head();
        let whole = inner.find_whole(&plain.key, &ready, self.moment);
        let shown = whole.as_ref().unwrap_or(&ready);
        let form = shown.form(plain.accepted, plain.conditions.as_ref(), is_head);
        let told = match &plain.conditions {
            None => None,
            Some(conditions) => Some(shown.tell(form, conditions, is_head, self.moment.now)?),
        };
        // Last, as whoever answers instead asks again.
        inner.gate.admit(client.to_canonical()).ok()?;
        let status = told.as_ref().map_or(StatusCode::OK, |told| told.status);
        inner.note_kept(&ready, is_head, status);
        inner.metrics.count(Counter::LaneHits);
        Some(give(&ready, form, told))
    }
}

/// The date of now as a head has it.
#[derive(Debug, Default)]
pub(super) struct Date {
    second: u64,
    line: String,
    block: Vec<u8>,
}

impl Date {
    /// Sets it, for all answers of a batch. It is the real one, as hyper's, whatever clock the dispatcher was given.
    fn set(&mut self) {
        let now = SystemTime::now();
        let second = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.second != second {
            self.second = second;
            let text = httpdate::fmt_http_date(now);
            self.block.clear();
            push_date(&mut self.block, &text);
            self.line = format!("date: {text}\r\n\r\n");
        }
    }

    /// Returns it as a line with the end of the head.
    fn line(&self) -> &[u8] {
        self.line.as_bytes()
    }

    /// Returns it as a field of HTTP/2.
    pub(super) fn block(&self) -> &[u8] {
        &self.block
    }
}

/// Closes the mailbox however the thread ends.
struct Closing(Arc<Mailbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Worker {
    pub(super) fn new(dispatcher: Dispatcher, mailbox: Arc<Mailbox>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = epoll::EventData::new_u64(WAKE);
        epoll::add(&epoll, &mailbox.wake, wake, epoll::EventFlags::IN)?;
        Ok(Self {
            dispatcher,
            mailbox,
            epoll,
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            head: Vec::with_capacity(1024),
            logs: Logs::default(),
            date: Date::default(),
            news: Vec::new(),
            fields: Fields::default(),
            out: Out::default(),
            started: Instant::now(),
            swept_ms: 0,
        })
    }

    /// Serves until it is told to stop.
    pub(super) fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.mailbox));
        let mut events = Vec::with_capacity(BATCH);
        loop {
            events.clear();
            let timeout = self.timeout();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(reason = %error, "the lane for kept answers ends");
                    return;
                }
            }
            let is_stopped = events.iter().any(|event| event.data.u64() == WAKE) && self.obey();
            let batch = self.batch();
            for event in &events {
                if let Ok(slot) = usize::try_from(event.data.u64()) {
                    let flags = event.flags;
                    self.serve(slot, flags, &batch);
                }
            }
            for slot in std::mem::take(&mut self.news) {
                self.serve(slot, epoll::EventFlags::OUT, &batch);
            }
            if self.logs.wait_since(batch.now_ms) >= LOG_PAUSE_MS {
                self.logs.hand_on(&batch.inner.runtime);
            }
            if is_stopped {
                self.logs.hand_on(&batch.inner.runtime);
                return;
            }
            if batch.now_ms >= self.swept_ms + TICK_MS {
                self.swept_ms = batch.now_ms;
                self.end_overdue(batch.now_ms);
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        if self.logs.has_text() {
            let left = LOG_PAUSE_MS.saturating_sub(self.logs.wait_since(self.now_ms()));
            let left = Duration::from_millis(left.max(1));
            return Some(Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() });
        }
        let has_connections = self.connections.len() > self.free.len();
        has_connections.then_some(Timespec { tv_sec: 1, tv_nsec: 0 })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn batch(&mut self) -> Batch {
        self.date.set();
        let inner = self.dispatcher.current();
        let moment = inner.moment();
        Batch { inner, moment, now_ms: self.now_ms() }
    }

    /// Obeys all orders; returns whether one was to stop.
    fn obey(&mut self) -> bool {
        let mut is_stopped = false;
        for order in self.mailbox.take() {
            match order {
                Order::Serve(lent, done) => {
                    self.add(Box::new(Connection::new(*lent, done, self.now_ms())));
                }
                Order::Sweep => self.end_idle(),
                Order::Evict(count, counters) => self.evict(count, &counters),
                Order::News(slot) => self.news.push(slot),
                Order::Stop => is_stopped = true,
            }
        }
        is_stopped
    }

    fn add(&mut self, connection: Box<Connection>) {
        let slot = self.free.pop().unwrap_or(self.connections.len());
        let data = epoll::EventData::new_u64(slot as u64);
        // Told once for each change, so that waiting for a slow reader costs no call. The first change comes at once, as
        // a socket can be written to; what came with the connection is answered then.
        let added = connection
            .wire
            .descriptor()
            .and_then(|socket| Ok(epoll::add(&self.epoll, socket, data, changes())?));
        if let Err(error) = added {
            tracing::debug!(reason = %error, "the lane cannot wait for a connection");
            self.dispatcher.current().metrics.count(Counter::LaneRefusals);
            self.put(slot, None);
            return hand_on(connection, None);
        }
        self.put(slot, Some(connection));
    }

    /// Fills a slot, or frees it.
    pub(super) fn put(&mut self, slot: usize, connection: Option<Box<Connection>>) {
        if connection.is_none() {
            self.free.push(slot);
        }
        match self.connections.get_mut(slot) {
            Some(place) => *place = connection,
            None => self.connections.push(connection),
        }
    }

    /// Takes a connection out of its slot if `holds`.
    fn take_if(
        &mut self,
        slot: usize,
        holds: impl FnOnce(&Connection) -> bool,
    ) -> Option<Box<Connection>> {
        self.connections.get_mut(slot)?.take_if(|connection| holds(connection))
    }

    /// Ends the connections whose time is over.
    fn end_overdue(&mut self, now_ms: u64) {
        let is_overdue = |connection: &Connection| connection.deadline_ms <= now_ms;
        // This thread may be what is late: what arrived meanwhile counts.
        for slot in self.serve_where(is_overdue) {
            if let Some(connection) = self.take_if(slot, is_overdue) {
                self.free.push(slot);
                self.end_streams(connection);
            }
        }
    }

    /// Ends the connections that wait for nothing but another request, when all are to end.
    fn end_idle(&mut self) {
        let is_over = |connection: &Connection| {
            (connection.http2.is_some() || connection.is_idle()) && connection.is_ending()
        };
        // A request that arrived by now is answered.
        self.serve_where(is_over);
    }

    /// Ends connections on which nothing is asked, those first that have been waited for longest; a request that arrived by
    /// now is answered.
    fn evict(&mut self, count: usize, counters: &Counters) {
        let now_ms = self.now_ms();
        let since_ms = |place: &Option<Box<Connection>>| {
            place.as_ref()?.waits_since_ms().filter(|since_ms| *since_ms <= now_ms)
        };
        let places = self.connections.iter().enumerate();
        let mut waiting: Vec<(u64, usize)> =
            places.filter_map(|(slot, place)| Some((since_ms(place)?, slot))).collect();
        waiting.sort_unstable();
        waiting.truncate(count + (waiting.len() / SPARE_PART).min(MOST_SPARE));
        for (_, slot) in &waiting {
            if let Some(Some(connection)) = self.connections.get_mut(*slot) {
                connection.is_wanted = true;
            }
        }
        counters.evicted.fetch_add(waiting.len() as u64, Ordering::Relaxed);
        let is_ending = |connection: &Connection| connection.is_wanted;
        self.serve_where(is_ending);
    }

    /// Serves the connections for which `holds` as if they had news, and returns their slots.
    fn serve_where(&mut self, holds: impl Fn(&Connection) -> bool) -> Vec<usize> {
        let places = self.connections.iter().enumerate();
        let wanted = |(slot, place): (usize, &Option<Box<Connection>>)| {
            place.as_ref().is_some_and(|connection| holds(connection)).then_some(slot)
        };
        let slots: Vec<usize> = places.filter_map(wanted).collect();
        if !slots.is_empty() {
            let batch = self.batch();
            for slot in &slots {
                self.serve(*slot, epoll::EventFlags::IN | epoll::EventFlags::OUT, &batch);
            }
        }
        slots
    }

    /// Ends a connection whose answers are sent, after hearing its client out.
    pub(super) fn part(&mut self, slot: usize, mut connection: Box<Connection>, now_ms: u64) {
        if connection.say_goodbye() {
            connection.deadline_ms = now_ms + HEAR_OUT_MS;
            self.put(slot, Some(connection));
        } else {
            self.free.push(slot);
            close(connection);
        }
    }

    /// Does what can be done for a connection that has news.
    fn serve(&mut self, slot: usize, flags: epoll::EventFlags, batch: &Batch) {
        let Some(mut connection) = self.take_if(slot, |_| true) else { return };
        if connection.then == Then::HearOut {
            if connection.hear_out() {
                return self.put(slot, Some(connection));
            }
            self.free.push(slot);
            return close(connection);
        }
        if let Some(streams) = connection.http2.take() {
            return self.serve_streams(slot, (connection, streams), flags, batch);
        }
        // Errors and ends are found by reading, too.
        connection.may_read |= flags != epoll::EventFlags::OUT;
        let sent = connection.sent;
        let has_ended = flags.contains(epoll::EventFlags::RDHUP);
        if self.proceed(&mut connection, has_ended, batch).is_err() {
            self.free.push(slot);
            return close(connection);
        }
        let is_over = connection.is_idle() && connection.is_ending();
        match connection.then {
            _ if connection.is_blocked() => self.keep(slot, connection, sent, batch),
            Then::Hand(request_bytes) => {
                self.free.push(slot);
                if let Ok(socket) = connection.wire.descriptor() {
                    epoll::delete(&self.epoll, socket).ok();
                }
                hand_on(connection, request_bytes);
            }
            Then::GoOn if !is_over => self.keep(slot, connection, sent, batch),
            Then::GoOn | Then::Close | Then::HearOut => self.part(slot, connection, batch.now_ms),
        }
    }

    /// Keeps a connection that had sent so many bytes before this turn.
    fn keep(&mut self, slot: usize, mut connection: Box<Connection>, sent: u64, batch: &Batch) {
        let is_blocked = connection.is_blocked();
        let taken = connection.sent - sent;
        connection.patience.note(batch.now_ms, taken, is_blocked);
        // Bytes of a head that goes on, or of one while an answer waits, are no progress.
        if let Some(end_ms) = connection.patience.end_ms() {
            connection.deadline_ms = end_ms;
        } else if taken > 0 {
            connection.deadline_ms = batch.now_ms.saturating_add(connection.idle_ms);
        }
        if connection.has_paused() || (connection.may_read && !is_blocked) {
            return self.put_again(slot, connection);
        }
        self.put(slot, Some(connection));
    }

    /// Keeps a connection that is told of anew, behind the others.
    pub(super) fn put_again(&mut self, slot: usize, connection: Box<Connection>) {
        let data = epoll::EventData::new_u64(slot as u64);
        let told = connection
            .wire
            .descriptor()
            .and_then(|socket| Ok(epoll::modify(&self.epoll, socket, data, changes())?));
        if told.is_err() {
            // Nothing would be told of it any more.
            self.dispatcher.current().metrics.count(Counter::LaneRefusals);
            self.free.push(slot);
            return close(connection);
        }
        self.put(slot, Some(connection));
    }

    /// Goes on until the connection has nothing to read, its client reads too slowly, or it is not for the lane any more.
    fn proceed(
        &mut self,
        connection: &mut Connection,
        has_ended: bool,
        batch: &Batch,
    ) -> Result<(), Broken> {
        let was_blocked = connection.is_blocked();
        connection.flush()?;
        let is_new = connection.is_new;
        connection.is_new = false;
        if (was_blocked || is_new) && connection.is_idle() && !connection.unread.is_empty() {
            let unread = std::mem::take(&mut connection.unread);
            self.answer_all(connection, &unread, batch)?;
        }
        for _ in 0..TURN_READS {
            if !(connection.may_read && connection.is_idle()) {
                break;
            }
            self.read_more(connection, has_ended, batch)?;
        }
        Ok(())
    }

    fn read_more(
        &mut self,
        connection: &mut Connection,
        has_ended: bool,
        batch: &Batch,
    ) -> Result<(), Broken> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = match connection.wire.receive(&mut buffer[..]) {
            Ok(received) if received.bytes == 0 => Err(Broken),
            Ok(received) => {
                // The end that came with these bytes is not told again.
                connection.may_read = has_ended || received.has_more;
                let news = buffer.get(..received.bytes).unwrap_or_default();
                if connection.unread.is_empty() {
                    self.answer_all(connection, news, batch)
                } else {
                    let mut unread = std::mem::take(&mut connection.unread);
                    unread.extend_from_slice(news);
                    self.answer_all(connection, &unread, batch)
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

    /// Answers the requests in `bytes` up to the first one that is not for the lane; what is left stays with the
    /// connection.
    fn answer_all(
        &mut self,
        connection: &mut Connection,
        bytes: &[u8],
        batch: &Batch,
    ) -> Result<(), Broken> {
        let mut rest = bytes;
        while !rest.is_empty() && connection.is_idle() {
            match read(rest, connection.is_tls) {
                Read::Partial if rest.len() < BUFFER_BYTES => break,
                Read::Plain(plain, length) => {
                    if self.answer(connection, &plain, batch)? {
                        rest = rest.get(length..).unwrap_or_default();
                    } else {
                        connection.then = Then::Hand(Some(length));
                    }
                }
                Read::Single(length) => connection.then = Then::Hand(Some(length)),
                Read::Partial | Read::Other => connection.then = Then::Hand(None),
            }
        }
        connection.unread.extend_from_slice(rest);
        Ok(())
    }

    /// Gives the kept answer to a request; returns whether there was one.
    fn answer(
        &mut self,
        connection: &mut Connection,
        plain: &Plain<'_>,
        batch: &Batch,
    ) -> Result<bool, Broken> {
        let client = connection.client;
        let given = batch.with_kept(client, plain, |ready, form, told| {
            self.give(connection, plain, (ready, form, told), batch)
        });
        given.transpose().map(|given| given.is_some())
    }

    fn give(
        &mut self,
        connection: &mut Connection,
        plain: &Plain<'_>,
        (ready, form, told): (&Ready, &Form, Option<Told>),
        batch: &Batch,
    ) -> Result<(), Broken> {
        let now = batch.moment.now;
        let is_head = plain.key.kind.is_head();
        connection.requests_left = connection.requests_left.saturating_sub(1);
        let closes = plain.closes
            || connection.requests_left == 0
            || connection.is_wanted
            || connection.closing.is_due();
        let (status, length, part) = match told {
            None => {
                self.compose(form.head.parts(), ready, now, closes);
                (200, Some(form.length), (0, form.length))
            }
            Some(told) => {
                let head = write_head(plain.key.kind, told.status, &told.headers);
                self.compose(head.parts(), ready, now, closes);
                (told.status.as_u16(), announced(&told.headers), (told.start, told.length))
            }
        };
        let given = Given { ready, status, length };
        let times = (now, batch.now_ms);
        self.logs.note(&batch.inner.runtime, times, (&connection.client_text, plain), given);
        if closes {
            connection.then = Then::Close;
        }
        if is_head || part.1 == 0 {
            connection.send_head(&self.head)?;
        } else {
            connection.send(&self.head, &form.body, part)?;
        }
        Ok(())
    }

    /// Writes a whole head, from what stands before the age and what stands behind it.
    fn compose(
        &mut self,
        [before_age, after_age]: [&[u8]; 2],
        ready: &Ready,
        now: SystemTime,
        closes: bool,
    ) {
        let mut digits = [0_u8; 20];
        self.head.clear();
        self.head.extend_from_slice(before_age);
        self.head.extend_from_slice(decimal(ready.age(now), &mut digits));
        self.head.extend_from_slice(after_age);
        if closes {
            self.head.extend_from_slice(b"connection: close\r\n");
        }
        self.head.extend_from_slice(self.date.line());
    }
}

/// What the kernel tells of a socket.
fn changes() -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET
}

/// Ends a connection after what was sent.
pub(super) fn close(connection: Box<Connection>) {
    let Connection { mut wire, then, done, closing, .. } = *connection;
    if then != Then::HearOut {
        wire.leave();
    }
    // Whoever hears that it has ended may end the lane: nothing of it may be held here by then.
    drop((wire, closing));
    done.send(None).ok();
}

/// Gives a connection back to the listener.
fn hand_on(connection: Box<Connection>, request_bytes: Option<usize>) {
    let Connection { wire, unread, done, requests_left, .. } = *connection;
    // Nobody waits any more when the runtime has ended.
    done.send(Some(Handed { wire, unread, requests_left, request_bytes })).ok();
}

pub(super) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(http::header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Writes a number.
pub(super) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        if let Some(digit) = digits.get_mut(start) {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        }
        number /= 10;
        if number == 0 {
            return digits.get(start..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, 99, 12_345, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
