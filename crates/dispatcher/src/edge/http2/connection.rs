//! The server side of one HTTP/2 connection as a pure state machine: bytes in, steps and bytes out.
//!
//! Invariants
//! * At most `max_streams` streams are open; the pending data of each is a reference to a cached body, or at most
//!   [`stream::RESPONSE_WINDOW_BYTES`](super::stream::RESPONSE_WINDOW_BYTES) bytes of the
//!   service behind.
//! * Pending output other than responses is bounded by the input, and no input is read while the client accepts no
//!   output.
//! * A field block is buffered up to slightly more than `max_header_bytes`; one that continues, or whose fields count
//!   many times that, is ended with `ENHANCE_YOUR_CALM`.
//! * A response for which its client opens no window, or too small ones, is given up in time, whatever else the client
//!   does ([`GracePeriod`](tympan_web::slow_client_timeout::SlowClientTimeout)). While the connection window is short,
//!   waiting responses get at least as much of it as new ones.
//! * After a connection error no more input is read, and a GOAWAY reports the reason.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tympan_web::fast_path::{HTTP2_STREAM_WINDOW, http2_connection_window};

use super::abuse_limit::Http2AbuseLimit;
use super::frame::{
    self, CLIENT_PREFACE, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Http2ErrorCode, MAX_31_BIT,
    MAX_PAYLOAD_BYTES, frame_flag, read_u32, setting_id, strip_padding,
};
use super::hpack::{FieldList, HpackDecoder, HpackError, TABLE_SIZE_ZERO};
use super::output_buffer::OutputBuffer;
use super::stream::{Http2Stream, StreamPart, StreamSendOutcome, TruncatedBody};

/// The initial window size of both sides.
const INITIAL_WINDOW: u32 = 65_535;
/// The maximum number of frames of one field block.
const MAX_BLOCK_FRAMES: u32 = 16;
/// The minimum size of data that earns a client credits.
const MIN_USEFUL_DATA_BYTES: usize = 256;
/// The maximum number of streams remembered that this side reset and that the client may still use.
const MAX_REMEMBERED_RESETS: usize = 128;
/// The payload of the ping whose acknowledgment shows that the client received the shutdown notice.
const FAREWELL_PING: &[u8] = b"farewell";

/// The limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Http2Limits {
    /// The maximum number of concurrent streams.
    pub(crate) max_streams: u32,
    /// The maximum size of the fields of a request.
    pub(crate) max_header_bytes: usize,
    /// The maximum time for which the client may open no window for a response.
    pub(crate) stall_timeout: Duration,
}

/// The result of reading.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Http2ReadStep<'a> {
    /// More bytes are needed.
    NeedMoreData,
    /// A request whose fields were read; `is_complete` is true if it has no body.
    Request { stream: u32, is_complete: bool },
    /// The trailers of a request that the service behind handles, whose fields were read.
    Trailers { service_stream: u32 },
    /// A piece of the body of a request that the service behind handles.
    Data { service_stream: u32, bytes: &'a [u8], is_last: bool },
    /// No more input is read.
    Closed,
}

/// An incomplete field block.
#[derive(Debug)]
struct PartialFieldBlock {
    stream: u32,
    ends_stream: bool,
    bytes: Vec<u8>,
    frame_count: u32,
}

/// The state of a connection's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http2Shutdown {
    Open,
    /// The shutdown notice was sent, but the client may not have received it.
    Announced,
    /// Requests beyond this stream are not processed.
    LastStream(u32),
    /// No input is read, and no response is sent.
    Immediate,
}

/// The state of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Http2Connection {
    limits: Http2Limits,
    /// The number of bytes of the preface read so far.
    preface_bytes: usize,
    has_client_settings: bool,
    decoder: HpackDecoder,
    partial_block: Option<PartialFieldBlock>,
    streams: HashMap<u32, Http2Stream>,
    /// The streams that have data to send and a window.
    ready_streams: VecDeque<u32>,
    /// The output to send next.
    pub(crate) output: OutputBuffer,
    send_window: i64,
    /// The initial window of a new stream.
    initial_send_window: i64,
    receive_window: i64,
    last_stream: u32,
    reset_streams: VecDeque<u32>,
    abuse_limit: Http2AbuseLimit,
    /// The current time as last set.
    now_ms: u64,
    /// The number of body bytes sent.
    sent_body_bytes: u64,
    shutdown: Http2Shutdown,
    is_table_size_sent: bool,
    /// Changes whenever the client makes progress or reads part of a response.
    progress: u64,
    /// The pending notices for the service behind.
    notices: Vec<(u32, StreamNotice)>,
}

/// A notice for the service behind about one of its streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamNotice {
    /// The number of bytes of its response that were sent.
    WindowOpened(u32),
    /// Its response is no longer wanted.
    Reset(Http2ErrorCode),
}

impl Http2Connection {
    pub(crate) fn new(bounds: Http2Limits, now_ms: u64) -> Self {
        let mut out = OutputBuffer::default();
        let header_bytes = u32::try_from(bounds.max_header_bytes).unwrap_or(u32::MAX);
        let settings = [
            (setting_id::MAX_CONCURRENT_STREAMS, bounds.max_streams),
            (setting_id::INITIAL_WINDOW_SIZE, HTTP2_STREAM_WINDOW),
            (setting_id::MAX_HEADER_LIST_SIZE, header_bytes),
        ];
        frame::push_settings(&mut out.frames, &settings);
        let receive_window = http2_connection_window(bounds.max_streams);
        frame::push_window_update(
            &mut out.frames,
            0,
            receive_window.saturating_sub(INITIAL_WINDOW),
        );
        Self {
            limits: bounds,
            preface_bytes: 0,
            has_client_settings: false,
            decoder: HpackDecoder::default(),
            partial_block: None,
            streams: HashMap::new(),
            ready_streams: VecDeque::new(),
            output: out,
            send_window: INITIAL_WINDOW.into(),
            initial_send_window: INITIAL_WINDOW.into(),
            receive_window: receive_window.into(),
            last_stream: 0,
            reset_streams: VecDeque::new(),
            abuse_limit: Http2AbuseLimit::new(now_ms),
            now_ms,
            sent_body_bytes: 0,
            shutdown: Http2Shutdown::Open,
            is_table_size_sent: false,
            progress: 0,
            notices: Vec::new(),
        }
    }

    /// Sets the current time.
    pub(crate) fn advance_time(&mut self, now_ms: u64) {
        self.abuse_limit.advance_time(now_ms);
        self.now_ms = now_ms;
    }

    /// Resets the responses for which the client opened no window in time; returns their number.
    pub(crate) fn reset_stalled_streams(&mut self) -> usize {
        let now_ms = self.now_ms;
        let mut late = Vec::new();
        for (number, stream) in &mut self.streams {
            if stream.update_stall(now_ms).is_some_and(|end_ms| end_ms <= now_ms) {
                late.push(*number);
            }
        }
        for number in &late {
            self.reset_stream(*number, Http2ErrorCode::CANCEL);
        }
        late.len()
    }

    /// Returns the time at which the next stalled response is given up.
    pub(crate) fn next_stall_deadline_ms(&mut self) -> Option<u64> {
        let now_ms = self.now_ms;
        self.streams.values_mut().filter_map(|stream| stream.update_stall(now_ms)).min()
    }

    /// Returns true if responses wait only for the connection window.
    pub(crate) fn is_blocked_by_window(&self) -> bool {
        let wants = |stream: &Http2Stream| stream.has_pending_output() && !stream.is_stalled();
        self.send_window <= 0 && self.streams.values().any(wants)
    }

    /// Returns the number of body bytes that the client accepted.
    pub(crate) fn sent_body_bytes(&self) -> u64 {
        self.sent_body_bytes
    }

    /// Returns a number that changes when the client makes progress.
    pub(crate) fn progress_count(&self) -> u64 {
        self.progress
    }

    /// Returns the number of responses that wait for their client.
    pub(crate) fn waiting_count(&self) -> usize {
        self.streams.values().filter(|stream| stream.has_pending_output()).count()
    }

    /// Returns the number of pending bytes that are stored nowhere else.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.streams.values().map(Http2Stream::waiting_bytes).sum()
    }

    /// Returns true if requests are not completely answered.
    pub(crate) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Returns true if a field block has begun but not ended.
    pub(crate) fn is_within_block(&self) -> bool {
        self.partial_block.is_some() || !self.has_client_settings
    }

    /// Returns true if there is data to send and a window for it.
    pub(crate) fn can_send(&self) -> bool {
        !self.output.is_empty() || (self.send_window > 0 && !self.ready_streams.is_empty())
    }

    /// Returns true if the connection ends when `out` is sent.
    pub(crate) fn is_closing(&self) -> bool {
        match self.shutdown {
            Http2Shutdown::Immediate => true,
            Http2Shutdown::LastStream(_) => self.streams.is_empty(),
            Http2Shutdown::Open | Http2Shutdown::Announced => false,
        }
    }

    /// Takes the pending notices for the service behind.
    pub(super) fn take_notices(&mut self) -> Vec<(u32, StreamNotice)> {
        std::mem::take(&mut self.notices)
    }

    /// Starts a graceful shutdown: requests that the client sends before it receives the notice are still answered.
    pub(crate) fn begin_shutdown(&mut self) {
        if self.shutdown == Http2Shutdown::Open {
            self.shutdown = Http2Shutdown::Announced;
            frame::push_goaway(&mut self.output.frames, MAX_31_BIT, Http2ErrorCode::NO_ERROR);
            frame::push_frame(&mut self.output.frames, FrameKind::Ping, (0, 0), FAREWELL_PING);
        }
    }

    /// Ends the connection at once with an error.
    pub(crate) fn close_with_error(&mut self, reason: Http2ErrorCode) {
        if self.shutdown != Http2Shutdown::Immediate {
            let last = match self.shutdown {
                // The last stream ID in a GOAWAY must not increase.
                Http2Shutdown::LastStream(last) => last,
                Http2Shutdown::Open | Http2Shutdown::Announced | Http2Shutdown::Immediate => {
                    self.last_stream
                }
            };
            self.shutdown = Http2Shutdown::Immediate;
            frame::push_goaway(&mut self.output.frames, last, reason);
            self.streams.clear();
            self.notices.clear();
            self.ready_streams.clear();
            self.partial_block = None;
        }
    }

    /// Reads the next frames of `input` up to one that concerns the caller.
    pub(crate) fn read_step<'a>(
        &mut self,
        input: &mut &'a [u8],
        fields: &mut FieldList,
    ) -> Http2ReadStep<'a> {
        match self.try_read_step(input, fields) {
            Ok(step) => step,
            Err(reason) => {
                self.close_with_error(reason);
                Http2ReadStep::Closed
            }
        }
    }

    fn try_read_step<'a>(
        &mut self,
        input: &mut &'a [u8],
        fields: &mut FieldList,
    ) -> Result<Http2ReadStep<'a>, Http2ErrorCode> {
        loop {
            if self.shutdown == Http2Shutdown::Immediate {
                return Ok(Http2ReadStep::Closed);
            }
            if self.preface_bytes < CLIENT_PREFACE.len() {
                let rest = CLIENT_PREFACE.get(self.preface_bytes..).unwrap_or_default();
                let length = rest.len().min(input.len());
                let (begin, behind) = input.split_at(length);
                if !rest.starts_with(begin) {
                    return Err(Http2ErrorCode::PROTOCOL_ERROR);
                }
                self.preface_bytes += length;
                *input = behind;
                if self.preface_bytes < CLIENT_PREFACE.len() {
                    return Ok(Http2ReadStep::NeedMoreData);
                }
            }
            let Some(head) = FrameHeader::parse(input) else {
                return Ok(Http2ReadStep::NeedMoreData);
            };
            if head.length > MAX_PAYLOAD_BYTES {
                return Err(Http2ErrorCode::FRAME_SIZE_ERROR);
            }
            let Some(payload) = input.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + head.length)
            else {
                return Ok(Http2ReadStep::NeedMoreData);
            };
            *input = input.get(FRAME_HEADER_BYTES + head.length..).unwrap_or_default();
            if let Some(step) = self.read_frame(head, payload, fields)? {
                return Ok(step);
            }
        }
    }

    fn read_frame<'a>(
        &mut self,
        head: FrameHeader,
        payload: &'a [u8],
        fields: &mut FieldList,
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        if !self.has_client_settings
            && (head.kind != FrameKind::Settings || head.has_flag(frame_flag::ACK))
        {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        if self.partial_block.is_some() {
            return match head.kind {
                FrameKind::Continuation => self.read_continuation(head, payload, fields),
                _ => Err(Http2ErrorCode::PROTOCOL_ERROR),
            };
        }
        match head.kind {
            FrameKind::Data => self.read_data(head, payload),
            FrameKind::Headers => self.read_headers(head, payload, fields),
            FrameKind::Reset => self.read_reset(head, payload),
            FrameKind::WindowUpdate => self.read_window_update(head, payload).map(|()| None),
            FrameKind::Settings => self.read_settings(head, payload).map(|()| None),
            FrameKind::Ping => self.read_ping(head, payload).map(|()| None),
            FrameKind::Priority if head.stream == 0 => Err(Http2ErrorCode::PROTOCOL_ERROR),
            FrameKind::Priority if payload.len() != 5 => Err(Http2ErrorCode::FRAME_SIZE_ERROR),
            FrameKind::Goaway if head.stream != 0 => Err(Http2ErrorCode::PROTOCOL_ERROR),
            FrameKind::Goaway if payload.len() < 8 => Err(Http2ErrorCode::FRAME_SIZE_ERROR),
            FrameKind::Priority | FrameKind::Goaway | FrameKind::Unknown => {
                self.abuse_limit.charge_frame().map(|()| None)
            }
            FrameKind::PushPromise | FrameKind::Continuation => Err(Http2ErrorCode::PROTOCOL_ERROR),
        }
    }

    fn read_headers<'a>(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        fields: &mut FieldList,
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        if head.stream.is_multiple_of(2) {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        let piece = strip_padding(head, payload).ok_or(Http2ErrorCode::PROTOCOL_ERROR)?;
        let skipped = if head.has_flag(frame_flag::PRIORITY) { 5 } else { 0 };
        let piece = piece.get(skipped..).ok_or(Http2ErrorCode::FRAME_SIZE_ERROR)?;
        let ends_stream = head.has_flag(frame_flag::END_STREAM);
        if head.has_flag(frame_flag::END_HEADERS) {
            return self.read_block((head.stream, ends_stream), piece, fields);
        }
        let block = PartialFieldBlock {
            stream: head.stream,
            ends_stream,
            bytes: piece.to_vec(),
            frame_count: 1,
        };
        self.partial_block = Some(block);
        Ok(None)
    }

    fn read_continuation<'a>(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
        fields: &mut FieldList,
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        let most = self.limits.max_header_bytes.saturating_add(MAX_PAYLOAD_BYTES);
        let Some(mut block) = self.partial_block.take().filter(|block| block.stream == head.stream)
        else {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        };
        block.frame_count += 1;
        if block.frame_count > MAX_BLOCK_FRAMES || block.bytes.len() + payload.len() > most {
            return Err(Http2ErrorCode::ENHANCE_YOUR_CALM);
        }
        block.bytes.extend_from_slice(payload);
        if head.has_flag(frame_flag::END_HEADERS) {
            return self.read_block((block.stream, block.ends_stream), &block.bytes, fields);
        }
        self.partial_block = Some(block);
        Ok(None)
    }

    /// Reads a whole field block. Every block must be read, because each changes the table.
    fn read_block<'a>(
        &mut self,
        (number, ends_stream): (u32, bool),
        block: &[u8],
        fields: &mut FieldList,
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        let outcome = self.decoder.decode_block(block, fields, self.limits.max_header_bytes);
        outcome.map_err(|fault| match fault {
            HpackError::Malformed => Http2ErrorCode::COMPRESSION_ERROR,
            HpackError::TooLarge => Http2ErrorCode::ENHANCE_YOUR_CALM,
        })?;
        if number <= self.last_stream {
            return self.read_trailers(number, ends_stream, fields.is_too_long());
        }
        self.last_stream = number;
        if let Http2Shutdown::LastStream(_) = self.shutdown {
            self.abuse_limit.charge_frame()?;
            self.remember_reset(number);
            return Ok(None);
        }
        self.abuse_limit.record_request();
        self.progress += 1;
        if self.streams.len() >= self.limits.max_streams as usize {
            self.abuse_limit.charge_frame()?;
            self.reset_stream(number, Http2ErrorCode::REFUSED_STREAM);
            return Ok(None);
        }
        if fields.is_too_long() {
            self.refuse_oversized_fields(number, ends_stream);
            return Ok(None);
        }
        Ok(Some(Http2ReadStep::Request { stream: number, is_complete: ends_stream }))
    }

    fn read_trailers<'a>(
        &mut self,
        number: u32,
        ends_stream: bool,
        is_too_long: bool,
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        let Some(stream) = self.streams.get_mut(&number) else {
            self.abuse_limit.charge_frame()?;
            // The frames may have been in transit when the stream was reset.
            if !self.reset_streams.contains(&number) {
                return Err(Http2ErrorCode::STREAM_CLOSED);
            }
            if !ends_stream {
                // Such a request is malformed, also if its response was faster (RFC 9113, section 8.1).
                frame::push_reset(&mut self.output.frames, number, Http2ErrorCode::PROTOCOL_ERROR);
            }
            return Ok(None);
        };
        if stream.is_request_complete {
            return Err(Http2ErrorCode::STREAM_CLOSED);
        }
        if !ends_stream || is_too_long {
            self.reset_for_client_error(number, Http2ErrorCode::PROTOCOL_ERROR)?;
            return Ok(None);
        }
        stream.is_request_complete = true;
        let behind = stream.service_stream;
        self.progress += 1;
        self.remove_if_done(number);
        Ok(behind.map(|behind| Http2ReadStep::Trailers { service_stream: behind }))
    }

    fn read_data<'a>(
        &mut self,
        head: FrameHeader,
        payload: &'a [u8],
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        if head.stream == 0 || head.stream > self.last_stream {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        let bytes = strip_padding(head, payload).ok_or(Http2ErrorCode::PROTOCOL_ERROR)?;
        let is_last = head.has_flag(frame_flag::END_STREAM);
        let length = i64::try_from(payload.len()).unwrap_or(i64::MAX);
        self.receive_window -= length;
        if self.receive_window < 0 {
            return Err(Http2ErrorCode::FLOW_CONTROL_ERROR);
        }
        if bytes.is_empty() && !is_last {
            self.abuse_limit.charge_frame()?;
        }
        let padding = u32::try_from(payload.len() - bytes.len()).unwrap_or(0);
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            self.abuse_limit.charge_frame()?;
            self.grant_connection_window(u32::try_from(payload.len()).unwrap_or(0));
            let is_late = self.reset_streams.contains(&head.stream);
            return if is_late { Ok(None) } else { Err(Http2ErrorCode::STREAM_CLOSED) };
        };
        if stream.is_request_complete {
            return Err(Http2ErrorCode::STREAM_CLOSED);
        }
        stream.receive_window -= length;
        if stream.receive_window < 0 {
            self.grant_connection_window(u32::try_from(payload.len()).unwrap_or(0));
            self.reset_for_client_error(head.stream, Http2ErrorCode::FLOW_CONTROL_ERROR)?;
            return Ok(None);
        }
        stream.is_request_complete = is_last;
        let behind = stream.service_stream;
        if behind.is_none() {
            self.grant_connection_window(u32::try_from(bytes.len()).unwrap_or(0));
        }
        if padding > 0 {
            // The service behind does not receive the padding.
            self.grant_connection_window(padding);
            self.grant_stream_window(head.stream, padding);
        }
        if bytes.len() >= MIN_USEFUL_DATA_BYTES {
            self.abuse_limit.record_data(0);
        }
        self.progress += 1;
        self.remove_if_done(head.stream);
        Ok(behind.map(|behind| Http2ReadStep::Data { service_stream: behind, bytes, is_last }))
    }

    fn read_reset<'a>(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<Http2ReadStep<'a>>, Http2ErrorCode> {
        if head.stream == 0 || head.stream > self.last_stream {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        if payload.len() != 4 {
            return Err(Http2ErrorCode::FRAME_SIZE_ERROR);
        }
        self.abuse_limit.charge_frame()?;
        let reason = Http2ErrorCode(read_u32(payload).unwrap_or(0));
        let Some(stream) = self.streams.remove(&head.stream) else { return Ok(None) };
        if !stream.is_response_started {
            self.abuse_limit.record_cancel()?;
        }
        self.notices
            .extend(stream.service_stream.map(|behind| (behind, StreamNotice::Reset(reason))));
        Ok(None)
    }

    fn read_window_update(
        &mut self,
        head: FrameHeader,
        payload: &[u8],
    ) -> Result<(), Http2ErrorCode> {
        if payload.len() != 4 {
            return Err(Http2ErrorCode::FRAME_SIZE_ERROR);
        }
        if head.stream > self.last_stream {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        self.abuse_limit.charge_frame()?;
        let bytes = i64::from(read_u32(payload).unwrap_or(0) & MAX_31_BIT);
        if head.stream == 0 {
            if bytes == 0 {
                return Err(Http2ErrorCode::PROTOCOL_ERROR);
            }
            self.send_window += bytes;
            if self.send_window > i64::from(MAX_31_BIT) {
                return Err(Http2ErrorCode::FLOW_CONTROL_ERROR);
            }
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(()) };
        stream.send_window += bytes;
        let fault = match bytes {
            0 => Some(Http2ErrorCode::PROTOCOL_ERROR),
            _ if stream.send_window > i64::from(MAX_31_BIT) => {
                Some(Http2ErrorCode::FLOW_CONTROL_ERROR)
            }
            _ => None,
        };
        match fault {
            None => self.mark_stream_ready(head.stream),
            Some(reason) => self.reset_for_client_error(head.stream, reason)?,
        }
        Ok(())
    }

    fn read_settings(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2ErrorCode> {
        if head.stream != 0 {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() || (head.has_flag(frame_flag::ACK) && !settings.is_empty()) {
            return Err(Http2ErrorCode::FRAME_SIZE_ERROR);
        }
        if head.has_flag(frame_flag::ACK) {
            return self.abuse_limit.charge_frame();
        }
        if std::mem::replace(&mut self.has_client_settings, true) {
            self.abuse_limit.charge_frame()?;
        }
        for &[a, b, c, d, e, f] in settings {
            let value = u32::from_be_bytes([c, d, e, f]);
            match u16::from_be_bytes([a, b]) {
                setting_id::ENABLE_PUSH if value > 1 => return Err(Http2ErrorCode::PROTOCOL_ERROR),
                setting_id::MAX_FRAME_SIZE if !(16_384..=0x00ff_ffff).contains(&value) => {
                    return Err(Http2ErrorCode::PROTOCOL_ERROR);
                }
                setting_id::INITIAL_WINDOW_SIZE => {
                    // Each change costs time proportional to the number of streams.
                    self.abuse_limit.charge_frame()?;
                    self.set_initial_window(value)?;
                }
                // This side encodes without a table, and sends no frame larger than the default maximum.
                _ => {}
            }
        }
        frame::push_frame(&mut self.output.frames, FrameKind::Settings, (frame_flag::ACK, 0), &[]);
        Ok(())
    }

    fn set_initial_window(&mut self, value: u32) -> Result<(), Http2ErrorCode> {
        if value > MAX_31_BIT {
            return Err(Http2ErrorCode::FLOW_CONTROL_ERROR);
        }
        let change = i64::from(value) - self.initial_send_window;
        self.initial_send_window = value.into();
        for stream in self.streams.values_mut() {
            stream.send_window += change;
            if stream.send_window > i64::from(MAX_31_BIT) {
                return Err(Http2ErrorCode::FLOW_CONTROL_ERROR);
            }
        }
        let numbers: Vec<u32> = self.streams.keys().copied().collect();
        for number in numbers {
            self.mark_stream_ready(number);
        }
        Ok(())
    }

    fn read_ping(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), Http2ErrorCode> {
        if head.stream != 0 {
            return Err(Http2ErrorCode::PROTOCOL_ERROR);
        }
        if payload.len() != 8 {
            return Err(Http2ErrorCode::FRAME_SIZE_ERROR);
        }
        self.abuse_limit.charge_frame()?;
        if !head.has_flag(frame_flag::ACK) {
            frame::push_frame(
                &mut self.output.frames,
                FrameKind::Ping,
                (frame_flag::ACK, 0),
                payload,
            );
        } else if self.shutdown == Http2Shutdown::Announced && payload == FAREWELL_PING {
            self.shutdown = Http2Shutdown::LastStream(self.last_stream);
            frame::push_goaway(&mut self.output.frames, self.last_stream, Http2ErrorCode::NO_ERROR);
        }
        Ok(())
    }

    /// Grants the client more bytes of the connection window.
    fn grant_connection_window(&mut self, bytes: u32) {
        self.receive_window += i64::from(bytes);
        frame::push_window_update(&mut self.output.frames, 0, bytes);
    }

    fn grant_stream_window(&mut self, number: u32, bytes: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && !stream.is_request_complete
        {
            stream.receive_window += i64::from(bytes);
            frame::push_window_update(&mut self.output.frames, number, bytes);
        }
    }

    /// Responds that the fields are too large.
    fn refuse_oversized_fields(&mut self, number: u32, is_whole: bool) {
        let mut block = Vec::new();
        super::hpack::push_status(&mut block, http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        self.push_head(number, true, &[&block]);
        if !is_whole {
            self.reset_stream(number, Http2ErrorCode::NO_ERROR);
        }
    }

    /// Resets a stream because of a client error, which counts as a canceled request.
    fn reset_for_client_error(
        &mut self,
        number: u32,
        reason: Http2ErrorCode,
    ) -> Result<(), Http2ErrorCode> {
        if self.streams.get(&number).is_some_and(|stream| !stream.is_response_started) {
            self.abuse_limit.record_cancel()?;
        }
        self.reset_stream(number, reason);
        Ok(())
    }

    /// Resets a stream.
    fn reset_stream(&mut self, number: u32, reason: Http2ErrorCode) {
        let stream = self.streams.remove(&number);
        let behind = stream.and_then(|stream| stream.service_stream);
        self.notices.extend(behind.map(|behind| (behind, StreamNotice::Reset(reason))));
        self.remember_reset(number);
        frame::push_reset(&mut self.output.frames, number, reason);
    }

    fn remember_reset(&mut self, number: u32) {
        if self.reset_streams.len() >= MAX_REMEMBERED_RESETS {
            self.reset_streams.pop_front();
        }
        self.reset_streams.push_back(number);
    }

    fn push_head(&mut self, number: u32, ends_stream: bool, parts: &[&[u8]]) {
        if std::mem::replace(&mut self.is_table_size_sent, true) {
            return frame::push_field_block(&mut self.output.frames, number, ends_stream, parts);
        }
        let mut all: Vec<&[u8]> = vec![&[TABLE_SIZE_ZERO]];
        all.extend_from_slice(parts);
        frame::push_field_block(&mut self.output.frames, number, ends_stream, &all);
    }

    fn mark_stream_ready(&mut self, number: u32) {
        if let Some(stream) = self.streams.get_mut(&number)
            && stream.send_window > 0
            && stream.has_pending_output()
            && !std::mem::replace(&mut stream.is_queued, true)
        {
            self.ready_streams.push_back(number);
        }
        if self.ready_streams.len() > 2 * self.limits.max_streams as usize {
            // Remove streams that ended before their turn, as no turn comes while the connection window is closed.
            self.ready_streams.retain(|number| self.streams.contains_key(number));
        }
    }

    /// Removes a stream that both sides have ended.
    fn remove_if_done(&mut self, number: u32) {
        let is_done = |stream: &Http2Stream| {
            stream.is_request_complete
                && stream.is_response_complete
                && !stream.has_pending_output()
        };
        if self.streams.get(&number).is_some_and(is_done) {
            self.streams.remove(&number);
        }
    }
}

/// Sending of responses.
impl Http2Connection {
    /// Leave window for one frame of the waiting streams for each frame sent here.
    pub(crate) fn send_response(&mut self, number: u32, head: &[&[u8]], body: Http2ResponseBody) {
        let length = body.length();
        self.push_head(number, length == 0, head);
        if length == 0 {
            return;
        }
        if let Http2ResponseBody::Bytes(bytes) = &body
            && self.send_window >= length
            && self.initial_send_window >= length
            && bytes.len() <= MAX_PAYLOAD_BYTES
            // Each waiting stream has a frame for each of these.
            && (self.ready_streams.is_empty() || self.has_window_for_frame(length))
        {
            self.send_window -= length;
            self.sent_body_bytes += bytes.len() as u64;
            self.progress += 1;
            self.abuse_limit.record_data(bytes.len());
            return frame::push_frame(
                &mut self.output.frames,
                FrameKind::Data,
                (frame_flag::END_STREAM, number),
                bytes,
            );
        }
        let mut stream =
            Http2Stream::new((self.initial_send_window, 0), true, self.limits.stall_timeout);
        stream.is_response_started = true;
        stream.is_response_complete = true;
        stream.push_part(match body {
            Http2ResponseBody::Bytes(bytes) => StreamPart::Bytes(bytes),
            Http2ResponseBody::File { file, offset, length } => {
                StreamPart::File { file, offset, remaining: length }
            }
        });
        self.streams.insert(number, stream);
        self.mark_stream_ready(number);
    }

    /// Returns true if the connection window has space for a frame besides `length` bytes.
    fn has_window_for_frame(&self, length: i64) -> bool {
        usize::try_from(self.send_window - length).is_ok_and(|rest| rest >= MAX_PAYLOAD_BYTES)
    }

    /// Assigns a request to the service behind, which uses another stream number for it.
    pub(super) fn assign_to_service(&mut self, number: u32, is_whole: bool, behind: u32) {
        let windows = (self.initial_send_window, HTTP2_STREAM_WINDOW.into());
        let mut stream = Http2Stream::new(windows, is_whole, self.limits.stall_timeout);
        stream.service_stream = Some(behind);
        self.streams.insert(number, stream);
    }

    /// Refuses a stream as not processed.
    pub(crate) fn refuse_stream(&mut self, number: u32) {
        self.reset_stream(number, Http2ErrorCode::REFUSED_STREAM);
    }

    /// Forwards a head, interim or final, or trailers.
    pub(super) fn forward_head(&mut self, number: u32, block: &[u8], ends_stream: bool) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.is_response_started = true;
        stream.is_response_complete |= ends_stream;
        self.progress += 1;
        if stream.has_pending_output() {
            return stream.push_part(StreamPart::Trailers(block.to_vec()));
        }
        self.push_head(number, ends_stream, &[block]);
        self.remove_if_done(number);
    }

    /// Forwards a piece of a body.
    pub(super) fn forward_data(&mut self, number: u32, bytes: bytes::Bytes, is_last: bool) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.is_response_complete |= is_last;
        self.progress += 1;
        stream.push_part(StreamPart::Bytes(bytes));
        if stream.has_pending_output() {
            return self.mark_stream_ready(number);
        }
        if is_last {
            frame::push_frame(
                &mut self.output.frames,
                FrameKind::Data,
                (frame_flag::END_STREAM, number),
                &[],
            );
            self.remove_if_done(number);
        }
    }

    /// Forwards a reset by the service behind.
    pub(super) fn forward_reset(&mut self, number: u32, reason: Http2ErrorCode) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        stream.service_stream = None;
        self.progress += 1;
        if stream.is_response_complete && stream.has_pending_output() {
            return stream.push_part(StreamPart::Reset(reason));
        }
        self.reset_stream(number, reason);
    }

    /// Forwards a window update of the service behind; stream 0 means the connection window.
    pub(super) fn forward_window_update(&mut self, number: u32, bytes: u32) {
        match number {
            0 => self.grant_connection_window(bytes),
            number => self.grant_stream_window(number, bytes),
        }
    }

    /// Ends all streams that a closed service had not ended, and restores the window that it held.
    pub(crate) fn abandon_service_streams(&mut self) {
        let mut left = Vec::new();
        for (number, stream) in &mut self.streams {
            if stream.service_stream.take().is_some()
                && !(stream.is_response_complete && stream.is_request_complete)
            {
                left.push(*number);
            }
        }
        for number in left {
            self.reset_stream(number, Http2ErrorCode::INTERNAL_ERROR);
        }
        self.notices.clear();
        let held_bytes =
            i64::from(http2_connection_window(self.limits.max_streams)) - self.receive_window;
        self.grant_connection_window(u32::try_from(held_bytes).unwrap_or(0));
    }

    /// Writes data into `out` until it holds `most` bytes, stream by stream.
    pub(crate) fn fill_output(&mut self, most: usize) {
        while self.output.len() < most && self.send_window > 0 {
            let Some(number) = self.ready_streams.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.is_queued = false;
            let window = usize::try_from(self.send_window).unwrap_or(0);
            let begin = self.output.frames.len();
            let (length, turn) = match stream.send_data_frame(number, window, &mut self.output) {
                Ok(sent) => sent,
                Err(TruncatedBody) => {
                    self.output.frames.truncate(begin);
                    self.reset_stream(number, Http2ErrorCode::INTERNAL_ERROR);
                    continue;
                }
            };
            if length > 0 {
                self.progress += 1;
                self.abuse_limit.record_data(length);
            }
            self.send_window -= i64::try_from(length).unwrap_or(0);
            self.sent_body_bytes += length as u64;
            let notice = stream.record_sent(length);
            self.notices
                .extend(notice.map(|(behind, bytes)| (behind, StreamNotice::WindowOpened(bytes))));
            match turn {
                StreamSendOutcome::Pending => self.mark_stream_ready(number),
                StreamSendOutcome::Empty => {}
                StreamSendOutcome::Done => self.remove_if_done(number),
                StreamSendOutcome::Reset => {
                    self.streams.remove(&number);
                    self.remember_reset(number);
                }
            }
        }
    }
}

/// A cached body.
#[derive(Debug)]
pub(crate) enum Http2ResponseBody {
    Bytes(bytes::Bytes),
    File { file: std::sync::Arc<std::fs::File>, offset: u64, length: u64 },
}

impl Http2ResponseBody {
    fn length(&self) -> i64 {
        match self {
            Self::Bytes(bytes) => i64::try_from(bytes.len()).unwrap_or(i64::MAX),
            Self::File { length, .. } => i64::try_from(*length).unwrap_or(i64::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
