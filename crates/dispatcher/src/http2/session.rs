//! The server's side of one connection of HTTP/2, as a pure machine: bytes in, steps and bytes out.
//!
//! Invariants
//! * At most `max_streams` streams are open; of each, what waits is a reference to a kept body, or at most
//!   [`behind::WINDOW`](super::behind::WINDOW) bytes of the service behind.
//! * What waits to be sent and is no answer is bounded by what was read, and nothing is read while the client takes
//!   nothing.
//! * A block of fields is held up to `header_bytes` and some; one that goes on, or whose fields count many times that, is
//!   cut with `ENHANCE_YOUR_CALM`.
//! * An answer for which its client opens no window, or too small ones, is given up in time, whatever else the client does
//!   ([`Patience`](tympan_web::patience::Patience)). While the window of all is short, answers that wait get at least as much of it as new ones.
//! * After an error of the connection nothing is read any more, and a GOAWAY tells why.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tympan_web::lane::{STREAM_WINDOW, connection_window};

use super::calm::Calm;
use super::frame::{
    self, HEAD_BYTES, Head, Kind, MAX_31, MAX_PAYLOAD, PREFACE, Reason, flag, read_number, setting,
    without_padding,
};
use super::hpack::{Decoder, Fault, Fields, NO_TABLE};
use super::out::Out;
use super::stream::{Cut, Part, Stream, Turn};

/// The window that both sides begin with.
const FIRST_WINDOW: u32 = 65_535;
/// Pieces that one block of fields may come in.
const MOST_PIECES: u32 = 16;
/// Less data than this brings a client no patience.
const LITTLE: usize = 256;
/// Streams that this side ended and of which the client may not know.
const MOST_RESETS: usize = 128;
/// The ping whose answer tells that the client knows of the end.
const LAST_PING: &[u8] = b"farewell";

/// The bounds of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Streams at once.
    pub(crate) max_streams: u32,
    /// What the fields of a request may count.
    pub(crate) header_bytes: usize,
    /// How long the client may open no window for an answer.
    pub(crate) stall: Duration,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// More bytes are needed.
    Wait,
    /// A request, whose fields were read; whether it is without a body.
    Request { stream: u32, is_whole: bool },
    /// The trailers of a request that the service behind answers, whose fields were read.
    Trailers { behind: u32 },
    /// A piece of the body of a request that the service behind answers.
    Data { behind: u32, bytes: &'a [u8], is_last: bool },
    /// Nothing is read any more.
    Over,
}

/// A block of fields that is not whole.
#[derive(Debug)]
struct Block {
    stream: u32,
    ends_stream: bool,
    bytes: Vec<u8>,
    pieces: u32,
}

/// How far the end of a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// The client was told that the end comes, and may not have heard of it.
    Announced,
    /// Requests beyond this stream are not looked at.
    After(u32),
    /// Nothing is read, and nothing is answered.
    Now,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Session {
    bounds: Bounds,
    /// What was read of the preface.
    greeted: usize,
    has_settings: bool,
    decoder: Decoder,
    block: Option<Block>,
    streams: HashMap<u32, Stream>,
    /// Those that have something to send and a window.
    ready: VecDeque<u32>,
    /// What is to be sent next.
    pub(crate) out: Out,
    send_window: i64,
    /// The window of a new stream.
    first_window: i64,
    receive_window: i64,
    last_stream: u32,
    resets: VecDeque<u32>,
    calm: Calm,
    /// The time, as it was noted last.
    now_ms: u64,
    /// How many bytes of bodies were sent.
    taken: u64,
    ending: Ending,
    is_table_told: bool,
    /// Changes whenever the client did something useful, or took something of an answer.
    progress: u64,
    /// What the service behind is still to be told.
    news: Vec<(u32, News)>,
}

/// What the service behind is told of one of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// So many bytes of its answer were taken.
    Taken(u32),
    /// Its answer is not wanted any more.
    Ended(Reason),
}

impl Session {
    pub(crate) fn new(bounds: Bounds, now_ms: u64) -> Self {
        let mut out = Out::default();
        let header_bytes = u32::try_from(bounds.header_bytes).unwrap_or(u32::MAX);
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, bounds.max_streams),
            (setting::INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (setting::MAX_HEADER_LIST_SIZE, header_bytes),
        ];
        frame::push_settings(&mut out.frames, &settings);
        let receive_window = connection_window(bounds.max_streams);
        frame::push_window(&mut out.frames, 0, receive_window.saturating_sub(FIRST_WINDOW));
        Self {
            bounds,
            greeted: 0,
            has_settings: false,
            decoder: Decoder::default(),
            block: None,
            streams: HashMap::new(),
            ready: VecDeque::new(),
            out,
            send_window: FIRST_WINDOW.into(),
            first_window: FIRST_WINDOW.into(),
            receive_window: receive_window.into(),
            last_stream: 0,
            resets: VecDeque::new(),
            calm: Calm::new(now_ms),
            now_ms,
            taken: 0,
            ending: Ending::No,
            is_table_told: false,
            progress: 0,
            news: Vec::new(),
        }
    }

    /// Notes the time.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.calm.tick(now_ms);
        self.now_ms = now_ms;
    }

    /// Ends the answers for which the client opened no window in time; returns how many.
    pub(crate) fn give_up_stalled(&mut self) -> usize {
        let now_ms = self.now_ms;
        let mut late = Vec::new();
        for (number, stream) in &mut self.streams {
            if stream.note_stall(now_ms).is_some_and(|end_ms| end_ms <= now_ms) {
                late.push(*number);
            }
        }
        for number in &late {
            self.reset(*number, Reason::CANCEL);
        }
        late.len()
    }

    /// Returns when the next of these answers is given up.
    pub(crate) fn stall_end_ms(&mut self) -> Option<u64> {
        let now_ms = self.now_ms;
        self.streams.values_mut().filter_map(|stream| stream.note_stall(now_ms)).min()
    }

    /// Tells whether answers wait for nothing but the window of all.
    pub(crate) fn wants_window(&self) -> bool {
        let wants = |stream: &Stream| stream.is_waiting() && !stream.is_stalled();
        self.send_window <= 0 && self.streams.values().any(wants)
    }

    /// Returns how many bytes of bodies the client took.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns a number that changes when the client does something useful.
    pub(crate) fn progress(&self) -> u64 {
        self.progress
    }

    /// Returns how many answers wait for their client.
    pub(crate) fn waiting(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_waiting()).count()
    }

    /// Returns how many bytes wait that are nowhere else.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.streams.values().map(Stream::waiting_bytes).sum()
    }

    /// Tells whether requests are not answered whole.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Tells whether a block of fields has begun and not ended.
    pub(crate) fn is_within_block(&self) -> bool {
        self.block.is_some() || !self.has_settings
    }

    /// Tells whether there is something to send, and a window for it.
    pub(crate) fn can_send(&self) -> bool {
        !self.out.is_empty() || (self.send_window > 0 && !self.ready.is_empty())
    }

    /// Tells whether the connection ends when `out` is sent.
    pub(crate) fn is_over(&self) -> bool {
        match self.ending {
            Ending::Now => true,
            Ending::After(_) => self.streams.is_empty(),
            Ending::No | Ending::Announced => false,
        }
    }

    /// Takes what the service behind is to be told of its streams.
    pub(super) fn take_news(&mut self) -> Vec<(u32, News)> {
        std::mem::take(&mut self.news)
    }

    /// Ends the connection: those requests are answered that the client sends before it hears of it.
    pub(crate) fn announce_end(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::Announced;
            frame::push_goaway(&mut self.out.frames, MAX_31, Reason::NO_ERROR);
            frame::push(&mut self.out.frames, Kind::Ping, (0, 0), LAST_PING);
        }
    }

    /// Ends the connection at once.
    pub(crate) fn fail(&mut self, reason: Reason) {
        if self.ending != Ending::Now {
            let last = match self.ending {
                // Later ones are never said to have been looked at.
                Ending::After(last) => last,
                Ending::No | Ending::Announced | Ending::Now => self.last_stream,
            };
            self.ending = Ending::Now;
            frame::push_goaway(&mut self.out.frames, last, reason);
            self.streams.clear();
            self.news.clear();
            self.ready.clear();
            self.block = None;
        }
    }

    /// Reads the next frames of `input` up to one that concerns others.
    pub(crate) fn step<'a>(&mut self, input: &mut &'a [u8], fields: &mut Fields) -> Step<'a> {
        match self.try_step(input, fields) {
            Ok(step) => step,
            Err(reason) => {
                self.fail(reason);
                Step::Over
            }
        }
    }

    fn try_step<'a>(
        &mut self,
        input: &mut &'a [u8],
        fields: &mut Fields,
    ) -> Result<Step<'a>, Reason> {
        loop {
            if self.ending == Ending::Now {
                return Ok(Step::Over);
            }
            if self.greeted < PREFACE.len() {
                let rest = PREFACE.get(self.greeted..).unwrap_or_default();
                let length = rest.len().min(input.len());
                let (begin, behind) = input.split_at(length);
                if !rest.starts_with(begin) {
                    return Err(Reason::PROTOCOL_ERROR);
                }
                self.greeted += length;
                *input = behind;
                if self.greeted < PREFACE.len() {
                    return Ok(Step::Wait);
                }
            }
            let Some(head) = Head::read(input) else { return Ok(Step::Wait) };
            if head.length > MAX_PAYLOAD {
                return Err(Reason::FRAME_SIZE_ERROR);
            }
            let Some(payload) = input.get(HEAD_BYTES..HEAD_BYTES + head.length) else {
                return Ok(Step::Wait);
            };
            *input = input.get(HEAD_BYTES + head.length..).unwrap_or_default();
            if let Some(step) = self.read_frame(head, payload, fields)? {
                return Ok(step);
            }
        }
    }

    fn read_frame<'a>(
        &mut self,
        head: Head,
        payload: &'a [u8],
        fields: &mut Fields,
    ) -> Result<Option<Step<'a>>, Reason> {
        if !self.has_settings && (head.kind != Kind::Settings || head.has(flag::ACK)) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if self.block.is_some() {
            return match head.kind {
                Kind::Continuation => self.read_continuation(head, payload, fields),
                _ => Err(Reason::PROTOCOL_ERROR),
            };
        }
        match head.kind {
            Kind::Data => self.read_data(head, payload),
            Kind::Headers => self.read_headers(head, payload, fields),
            Kind::Reset => self.read_reset(head, payload),
            Kind::WindowUpdate => self.read_window(head, payload).map(|()| None),
            Kind::Settings => self.read_settings(head, payload).map(|()| None),
            Kind::Ping => self.read_ping(head, payload).map(|()| None),
            Kind::Priority if head.stream == 0 => Err(Reason::PROTOCOL_ERROR),
            Kind::Priority if payload.len() != 5 => Err(Reason::FRAME_SIZE_ERROR),
            Kind::Goaway if head.stream != 0 => Err(Reason::PROTOCOL_ERROR),
            Kind::Goaway if payload.len() < 8 => Err(Reason::FRAME_SIZE_ERROR),
            Kind::Priority | Kind::Goaway | Kind::Unknown => self.calm.spend().map(|()| None),
            Kind::PushPromise | Kind::Continuation => Err(Reason::PROTOCOL_ERROR),
        }
    }

    fn read_headers<'a>(
        &mut self,
        head: Head,
        payload: &[u8],
        fields: &mut Fields,
    ) -> Result<Option<Step<'a>>, Reason> {
        if head.stream.is_multiple_of(2) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let piece = without_padding(head, payload).ok_or(Reason::PROTOCOL_ERROR)?;
        let skipped = if head.has(flag::PRIORITY) { 5 } else { 0 };
        let piece = piece.get(skipped..).ok_or(Reason::FRAME_SIZE_ERROR)?;
        let ends_stream = head.has(flag::END_STREAM);
        if head.has(flag::END_HEADERS) {
            return self.read_block((head.stream, ends_stream), piece, fields);
        }
        let block = Block { stream: head.stream, ends_stream, bytes: piece.to_vec(), pieces: 1 };
        self.block = Some(block);
        Ok(None)
    }

    fn read_continuation<'a>(
        &mut self,
        head: Head,
        payload: &[u8],
        fields: &mut Fields,
    ) -> Result<Option<Step<'a>>, Reason> {
        let most = self.bounds.header_bytes.saturating_add(MAX_PAYLOAD);
        let Some(mut block) = self.block.take().filter(|block| block.stream == head.stream) else {
            return Err(Reason::PROTOCOL_ERROR);
        };
        block.pieces += 1;
        if block.pieces > MOST_PIECES || block.bytes.len() + payload.len() > most {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            return self.read_block((block.stream, block.ends_stream), &block.bytes, fields);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// Reads a whole block: every block, as all of them change the table.
    fn read_block<'a>(
        &mut self,
        (number, ends_stream): (u32, bool),
        block: &[u8],
        fields: &mut Fields,
    ) -> Result<Option<Step<'a>>, Reason> {
        let outcome = self.decoder.decode(block, fields, self.bounds.header_bytes);
        outcome.map_err(|fault| match fault {
            Fault::Malformed => Reason::COMPRESSION_ERROR,
            Fault::Endless => Reason::ENHANCE_YOUR_CALM,
        })?;
        if number <= self.last_stream {
            return self.read_trailers((number, ends_stream), fields.is_too_long());
        }
        self.last_stream = number;
        if let Ending::After(_) = self.ending {
            self.calm.spend()?;
            self.note_reset(number);
            return Ok(None);
        }
        self.calm.note_request();
        self.progress += 1;
        if self.streams.len() >= self.bounds.max_streams as usize {
            self.calm.spend()?;
            self.reset(number, Reason::REFUSED_STREAM);
            return Ok(None);
        }
        if fields.is_too_long() {
            self.refuse_fields(number, ends_stream);
            return Ok(None);
        }
        Ok(Some(Step::Request { stream: number, is_whole: ends_stream }))
    }

    fn read_trailers<'a>(
        &mut self,
        (number, ends_stream): (u32, bool),
        is_too_long: bool,
    ) -> Result<Option<Step<'a>>, Reason> {
        let Some(stream) = self.streams.get_mut(&number) else {
            self.calm.spend()?;
            // They may have been on their way when the stream was reset.
            let is_late = self.resets.contains(&number);
            return if is_late { Ok(None) } else { Err(Reason::STREAM_CLOSED) };
        };
        if stream.has_asked {
            return Err(Reason::STREAM_CLOSED);
        }
        if !ends_stream || is_too_long {
            self.reset_for_fault(number, Reason::PROTOCOL_ERROR)?;
            return Ok(None);
        }
        stream.has_asked = true;
        let behind = stream.behind;
        self.progress += 1;
        self.forget_if_done(number);
        Ok(behind.map(|behind| Step::Trailers { behind }))
    }

    fn read_data<'a>(&mut self, head: Head, payload: &'a [u8]) -> Result<Option<Step<'a>>, Reason> {
        if head.stream == 0 || head.stream > self.last_stream {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let bytes = without_padding(head, payload).ok_or(Reason::PROTOCOL_ERROR)?;
        let is_last = head.has(flag::END_STREAM);
        let length = i64::try_from(payload.len()).unwrap_or(i64::MAX);
        self.receive_window -= length;
        if self.receive_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        if bytes.is_empty() && !is_last {
            self.calm.spend()?;
        }
        let padding = u32::try_from(payload.len() - bytes.len()).unwrap_or(0);
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            self.calm.spend()?;
            self.grant_all(u32::try_from(payload.len()).unwrap_or(0));
            let is_late = self.resets.contains(&head.stream);
            return if is_late { Ok(None) } else { Err(Reason::STREAM_CLOSED) };
        };
        if stream.has_asked {
            return Err(Reason::STREAM_CLOSED);
        }
        stream.receive_window -= length;
        if stream.receive_window < 0 {
            self.grant_all(u32::try_from(payload.len()).unwrap_or(0));
            self.reset_for_fault(head.stream, Reason::FLOW_CONTROL_ERROR)?;
            return Ok(None);
        }
        stream.has_asked = is_last;
        let behind = stream.behind;
        if behind.is_none() {
            self.grant_all(u32::try_from(bytes.len()).unwrap_or(0));
        }
        if padding > 0 {
            // Nobody behind hears of it.
            self.grant_all(padding);
            self.grant(head.stream, padding);
        }
        if bytes.len() >= LITTLE {
            self.calm.note_data(0);
        }
        self.progress += 1;
        self.forget_if_done(head.stream);
        Ok(behind.map(|behind| Step::Data { behind, bytes, is_last }))
    }

    fn read_reset<'a>(&mut self, head: Head, payload: &[u8]) -> Result<Option<Step<'a>>, Reason> {
        if head.stream == 0 || head.stream > self.last_stream {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if payload.len() != 4 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        self.calm.spend()?;
        let reason = Reason(read_number(payload).unwrap_or(0));
        let Some(stream) = self.streams.remove(&head.stream) else { return Ok(None) };
        if !stream.is_answered {
            self.calm.note_cancel()?;
        }
        self.news.extend(stream.behind.map(|behind| (behind, News::Ended(reason))));
        Ok(None)
    }

    fn read_window(&mut self, head: Head, payload: &[u8]) -> Result<(), Reason> {
        if payload.len() != 4 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        if head.stream > self.last_stream {
            return Err(Reason::PROTOCOL_ERROR);
        }
        self.calm.spend()?;
        let bytes = i64::from(read_number(payload).unwrap_or(0) & MAX_31);
        if head.stream == 0 {
            if bytes == 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
            self.send_window += bytes;
            if self.send_window > i64::from(MAX_31) {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(()) };
        stream.send_window += bytes;
        let fault = match bytes {
            0 => Some(Reason::PROTOCOL_ERROR),
            _ if stream.send_window > i64::from(MAX_31) => Some(Reason::FLOW_CONTROL_ERROR),
            _ => None,
        };
        match fault {
            None => self.make_ready(head.stream),
            Some(reason) => self.reset_for_fault(head.stream, reason)?,
        }
        Ok(())
    }

    fn read_settings(&mut self, head: Head, payload: &[u8]) -> Result<(), Reason> {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has(flag::ACK) && !settings.is_empty()) {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        if head.has(flag::ACK) {
            return self.calm.spend();
        }
        if std::mem::replace(&mut self.has_settings, true) {
            self.calm.spend()?;
        }
        for &[a, b, c, d, e, f] in settings {
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                setting::ENABLE_PUSH if value > 1 => return Err(Reason::PROTOCOL_ERROR),
                setting::MAX_FRAME_SIZE if !(16_384..=0x00ff_ffff).contains(&value) => {
                    return Err(Reason::PROTOCOL_ERROR);
                }
                setting::INITIAL_WINDOW_SIZE => {
                    // Each costs as much as there are streams.
                    self.calm.spend()?;
                    self.set_first_window(value)?;
                }
                // This side writes with no table, and no frame beyond what every client takes.
                _ => {}
            }
        }
        frame::push(&mut self.out.frames, Kind::Settings, (flag::ACK, 0), &[]);
        Ok(())
    }

    fn set_first_window(&mut self, value: u32) -> Result<(), Reason> {
        if value > MAX_31 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        let change = i64::from(value) - self.first_window;
        self.first_window = value.into();
        for stream in self.streams.values_mut() {
            stream.send_window += change;
            if stream.send_window > i64::from(MAX_31) {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
        }
        let numbers: Vec<u32> = self.streams.keys().copied().collect();
        for number in numbers {
            self.make_ready(number);
        }
        Ok(())
    }

    fn read_ping(&mut self, head: Head, payload: &[u8]) -> Result<(), Reason> {
        if head.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if payload.len() != 8 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        self.calm.spend()?;
        if !head.has(flag::ACK) {
            frame::push(&mut self.out.frames, Kind::Ping, (flag::ACK, 0), payload);
        } else if self.ending == Ending::Announced && payload == LAST_PING {
            self.ending = Ending::After(self.last_stream);
            frame::push_goaway(&mut self.out.frames, self.last_stream, Reason::NO_ERROR);
        }
        Ok(())
    }

    /// Lets the client send so many bytes more, in all.
    fn grant_all(&mut self, bytes: u32) {
        self.receive_window += i64::from(bytes);
        frame::push_window(&mut self.out.frames, 0, bytes);
    }

    fn grant(&mut self, number: u32, bytes: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && !stream.has_asked
        {
            stream.receive_window += i64::from(bytes);
            frame::push_window(&mut self.out.frames, number, bytes);
        }
    }

    /// Answers that the fields are too many.
    fn refuse_fields(&mut self, number: u32, is_whole: bool) {
        let mut block = Vec::new();
        super::hpack::push_status(&mut block, http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        self.push_head(number, true, &[&block]);
        if !is_whole {
            self.reset(number, Reason::NO_ERROR);
        }
    }

    /// Ends a stream at once for a mistake of the client, who took its request back by it.
    fn reset_for_fault(&mut self, number: u32, reason: Reason) -> Result<(), Reason> {
        if self.streams.get(&number).is_some_and(|stream| !stream.is_answered) {
            self.calm.note_cancel()?;
        }
        self.reset(number, reason);
        Ok(())
    }

    /// Ends a stream at once.
    fn reset(&mut self, number: u32, reason: Reason) {
        let stream = self.streams.remove(&number);
        let behind = stream.and_then(|stream| stream.behind);
        self.news.extend(behind.map(|behind| (behind, News::Ended(reason))));
        self.note_reset(number);
        frame::push_reset(&mut self.out.frames, number, reason);
    }

    fn note_reset(&mut self, number: u32) {
        if self.resets.len() >= MOST_RESETS {
            self.resets.pop_front();
        }
        self.resets.push_back(number);
    }

    fn push_head(&mut self, number: u32, ends_stream: bool, parts: &[&[u8]]) {
        if std::mem::replace(&mut self.is_table_told, true) {
            return frame::push_block(&mut self.out.frames, number, ends_stream, parts);
        }
        let mut all: Vec<&[u8]> = vec![&[NO_TABLE]];
        all.extend_from_slice(parts);
        frame::push_block(&mut self.out.frames, number, ends_stream, &all);
    }

    fn make_ready(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && stream.send_window > 0
            && stream.is_waiting()
            && !std::mem::replace(&mut stream.is_ready, true)
        {
            self.ready.push_back(number);
        }
        if self.ready.len() > 2 * self.bounds.max_streams as usize {
            // Of streams that ended before their turn, as none comes while the window of all is closed.
            self.ready.retain(|number| self.streams.contains_key(number));
        }
    }

    /// Forgets a stream on which both sides have said everything.
    fn forget_if_done(&mut self, number: u32) {
        let is_done = |stream: &Stream| stream.has_asked && stream.is_whole && !stream.is_waiting();
        if self.streams.get(&number).is_some_and(is_done) {
            self.streams.remove(&number);
        }
    }
}

/// Answers.
impl Session {
    /// Answers a request without a body: a head in parts, and what stands behind it.
    pub(crate) fn answer(&mut self, number: u32, head: &[&[u8]], body: Kept) {
        let length = body.length();
        self.push_head(number, length == 0, head);
        if length == 0 {
            return;
        }
        if let Kept::Bytes(bytes) = &body
            && self.send_window >= length
            && self.first_window >= length
            && bytes.len() <= MAX_PAYLOAD
            // Those that wait have a frame for each of these.
            && (self.ready.is_empty() || self.has_frame_beside(length))
        {
            self.send_window -= length;
            self.taken += bytes.len() as u64;
            self.progress += 1;
            self.calm.note_data(bytes.len());
            return frame::push(
                &mut self.out.frames,
                Kind::Data,
                (flag::END_STREAM, number),
                bytes,
            );
        }
        let mut stream = Stream::new((self.first_window, 0), true, self.bounds.stall);
        stream.is_answered = true;
        stream.is_whole = true;
        stream.push(match body {
            Kept::Bytes(bytes) => Part::Bytes(bytes),
            Kept::File { file, offset, length } => Part::File { file, offset, left: length },
        });
        self.streams.insert(number, stream);
        self.make_ready(number);
    }

    /// Tells whether the window of all has room for a frame beside so many bytes.
    fn has_frame_beside(&self, length: i64) -> bool {
        usize::try_from(self.send_window - length).is_ok_and(|rest| rest >= MAX_PAYLOAD)
    }

    /// Leaves a request to the service behind, which calls it by another number.
    pub(super) fn leave(&mut self, number: u32, is_whole: bool, behind: u32) {
        let windows = (self.first_window, STREAM_WINDOW.into());
        let mut stream = Stream::new(windows, is_whole, self.bounds.stall);
        stream.behind = Some(behind);
        self.streams.insert(number, stream);
    }

    /// Says that a request was not looked at.
    pub(crate) fn refuse(&mut self, number: u32) {
        self.reset(number, Reason::REFUSED_STREAM);
    }

    /// Passes a head, interim or last, or trailers on.
    pub(super) fn pass_head(&mut self, number: u32, block: &[u8], ends_stream: bool) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.is_answered = true;
        stream.is_whole |= ends_stream;
        self.progress += 1;
        if stream.is_waiting() {
            return stream.push(Part::Trailers(block.to_vec()));
        }
        self.push_head(number, ends_stream, &[block]);
        self.forget_if_done(number);
    }

    /// Passes a piece of a body on.
    pub(super) fn pass_data(&mut self, number: u32, bytes: bytes::Bytes, is_last: bool) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.is_whole |= is_last;
        self.progress += 1;
        stream.push(Part::Bytes(bytes));
        if stream.is_waiting() {
            return self.make_ready(number);
        }
        if is_last {
            frame::push(&mut self.out.frames, Kind::Data, (flag::END_STREAM, number), &[]);
            self.forget_if_done(number);
        }
    }

    /// Passes on that the service behind ended a stream.
    pub(super) fn pass_reset(&mut self, number: u32, reason: Reason) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.behind = None;
        self.progress += 1;
        if stream.is_whole && stream.is_waiting() {
            return stream.push(Part::Reset(reason));
        }
        self.reset(number, reason);
    }

    /// Passes on that the service behind took so many bytes of a body; of all bodies, for stream 0.
    pub(super) fn pass_window(&mut self, number: u32, bytes: u32) {
        match number {
            0 => self.grant_all(bytes),
            number => self.grant(number, bytes),
        }
    }

    /// Ends all streams that a service that has gone had not ended, and takes back what it holds of the window.
    pub(crate) fn abandon(&mut self) {
        let mut left = Vec::new();
        for (number, stream) in &mut self.streams {
            if stream.behind.take().is_some() && !(stream.is_whole && stream.has_asked) {
                left.push(*number);
            }
        }
        for number in left {
            self.reset(number, Reason::INTERNAL_ERROR);
        }
        self.news.clear();
        let held = i64::from(connection_window(self.bounds.max_streams)) - self.receive_window;
        self.grant_all(u32::try_from(held).unwrap_or(0));
    }

    /// Writes data into `out` until it holds `most` bytes, stream by stream.
    pub(crate) fn fill(&mut self, most: usize) {
        while self.out.len() < most && self.send_window > 0 {
            let Some(number) = self.ready.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.is_ready = false;
            let window = usize::try_from(self.send_window).unwrap_or(0);
            let begin = self.out.frames.len();
            let (length, turn) = match stream.send(number, window, &mut self.out) {
                Ok(sent) => sent,
                Err(Cut) => {
                    self.out.frames.truncate(begin);
                    self.reset(number, Reason::INTERNAL_ERROR);
                    continue;
                }
            };
            if length > 0 {
                self.progress += 1;
                self.calm.note_data(length);
            }
            self.send_window -= i64::try_from(length).unwrap_or(0);
            self.taken += length as u64;
            let told = stream.note_taken(length);
            self.news.extend(told.map(|(behind, bytes)| (behind, News::Taken(bytes))));
            match turn {
                Turn::More => self.make_ready(number),
                Turn::Empty => {}
                Turn::Done => self.forget_if_done(number),
                Turn::Reset => {
                    self.streams.remove(&number);
                    self.note_reset(number);
                }
            }
        }
    }
}

/// A body that is kept.
#[derive(Debug)]
pub(crate) enum Kept {
    Bytes(bytes::Bytes),
    File { file: std::sync::Arc<std::fs::File>, offset: u64, length: u64 },
}

impl Kept {
    fn length(&self) -> i64 {
        match self {
            Self::Bytes(bytes) => i64::try_from(bytes.len()).unwrap_or(i64::MAX),
            Self::File { length, .. } => i64::try_from(*length).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
