//! One stream of a client, with the pending parts of its response.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tympan_web::slow_client_timeout::SlowClientTimeout;

use super::frame::{self, FrameKind, Http2ErrorCode, MAX_PAYLOAD_BYTES, frame_flag};
use super::output_buffer::OutputBuffer;

/// The number of bytes of one response that the service may send ahead of the client.
pub(super) const RESPONSE_WINDOW_BYTES: u32 = 32 * 1024;

/// A part of a response after its head.
#[derive(Debug)]
pub(super) enum StreamPart {
    Bytes(Bytes),
    File {
        file: Arc<File>,
        offset: u64,
        remaining: u64,
    },
    /// Trailers, which end the response.
    Trailers(Vec<u8>),
    /// The stream ends before its client has sent everything.
    Reset(Http2ErrorCode),
}

/// A stream whose response or request is incomplete.
#[derive(Debug)]
pub(super) struct Http2Stream {
    /// The number of bytes that may be sent.
    pub(super) send_window: i64,
    /// The number of bytes that the client may send.
    pub(super) receive_window: i64,
    /// True if the client has sent everything.
    pub(super) is_request_complete: bool,
    /// True if part of the response was sent or is pending.
    pub(super) is_response_started: bool,
    /// True if nothing more is added to the response.
    pub(super) is_response_complete: bool,
    /// Its stream number at the service behind, if that handles it.
    pub(super) service_stream: Option<u32>,
    /// The number of bytes sent for the service behind that were not reported to it yet.
    unreported_bytes: u32,
    /// True if it is queued for sending.
    pub(super) is_queued: bool,
    /// The timeout for a client that opens no window for it.
    stall_timeout: SlowClientTimeout,
    /// The number of bytes sent since the last progress record.
    sent_bytes: u64,
    /// Never begins with an empty part, trailers or a reset.
    parts: VecDeque<StreamPart>,
}

/// The outcome of a stream's turn to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamSendOutcome {
    /// It has more to send, if its window allows.
    Pending,
    /// Nothing is pending, but more will come.
    Empty,
    /// It has sent everything.
    Done,
    /// It was reset.
    Reset,
}

/// A cached body was truncated, so that its announced length cannot be met.
#[derive(Debug)]
pub(super) struct TruncatedBody;

impl Http2Stream {
    pub(super) fn new(
        (send_window, receive_window): (i64, i64),
        has_asked: bool,
        stall_timeout: Duration,
    ) -> Self {
        Self {
            send_window,
            receive_window,
            is_request_complete: has_asked,
            stall_timeout: SlowClientTimeout::new(stall_timeout),
            sent_bytes: 0,
            is_response_started: false,
            is_response_complete: false,
            service_stream: None,
            unreported_bytes: 0,
            is_queued: false,
            parts: VecDeque::new(),
        }
    }

    /// Returns true if output is pending.
    pub(super) fn has_pending_output(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Returns true if it waits only for its own window.
    pub(super) fn is_stalled(&self) -> bool {
        self.has_pending_output() && self.send_window <= 0
    }

    /// Updates the stall state; returns the time at which a stalled stream is given up.
    pub(super) fn update_stall(&mut self, now_ms: u64) -> Option<u64> {
        let is_stalled = self.is_stalled();
        self.stall_timeout.record_progress(
            now_ms,
            std::mem::take(&mut self.sent_bytes),
            is_stalled,
        );
        self.stall_timeout.deadline_ms()
    }

    /// Returns the number of pending bytes that are stored nowhere else.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        let bytes = |part: &StreamPart| match part {
            StreamPart::Bytes(bytes) => bytes.len(),
            StreamPart::File { .. } | StreamPart::Trailers(_) | StreamPart::Reset(_) => 0,
        };
        self.parts.iter().map(bytes).sum()
    }

    /// Appends a part; an empty one is dropped.
    pub(super) fn push_part(&mut self, part: StreamPart) {
        let is_empty = match &part {
            StreamPart::Bytes(bytes) => bytes.is_empty(),
            StreamPart::File { remaining, .. } => *remaining == 0,
            StreamPart::Trailers(_) | StreamPart::Reset(_) => false,
        };
        if !is_empty {
            self.parts.push_back(part);
        }
    }

    /// Writes one data frame of at most `most` bytes and the following parts that need no window; returns the number of
    /// window bytes used.
    pub(super) fn send_data_frame(
        &mut self,
        number: u32,
        most: usize,
        out: &mut OutputBuffer,
    ) -> Result<(usize, StreamSendOutcome), TruncatedBody> {
        let window = usize::try_from(self.send_window).unwrap_or(0);
        let most = most.min(window).min(MAX_PAYLOAD_BYTES);
        let begin = out.frames.len();
        out.frames.extend_from_slice(&[0; frame::FRAME_HEADER_BYTES]);
        let (length, is_over) = match self.parts.front_mut() {
            Some(StreamPart::Bytes(bytes)) => {
                let length = bytes.len().min(most);
                out.push_body(bytes.split_to(length));
                (length, bytes.is_empty())
            }
            Some(StreamPart::File { file, offset, remaining }) => {
                let length = usize::try_from(*remaining).unwrap_or(usize::MAX).min(most);
                let start = out.frames.len();
                out.frames.resize(start + length, 0);
                let target = out.frames.get_mut(start..).unwrap_or_default();
                file.read_exact_at(target, *offset).map_err(|_cut| TruncatedBody)?;
                *offset += length as u64;
                *remaining -= length as u64;
                (length, *remaining == 0)
            }
            Some(StreamPart::Trailers(_) | StreamPart::Reset(_)) | None => (0, false),
        };
        if is_over {
            self.parts.pop_front();
        }
        self.send_window -= i64::try_from(length).unwrap_or(0);
        self.sent_bytes += length as u64;
        let is_last = matches!(self.parts.front(), None | Some(StreamPart::Reset(_)));
        let ends = is_over && self.is_response_complete && is_last;
        let flags = if ends { frame_flag::END_STREAM } else { 0 };
        if length == 0 {
            out.frames.truncate(begin);
        } else if let Some(head) = out.frames.get_mut(begin..begin + frame::FRAME_HEADER_BYTES) {
            head.copy_from_slice(&frame::encode_frame_header(
                length,
                FrameKind::Data,
                flags,
                number,
            ));
        }
        match self.send_windowless_parts(number, &mut out.frames) {
            StreamSendOutcome::Empty if ends => Ok((length, StreamSendOutcome::Done)),
            turn => Ok((length, turn)),
        }
    }

    /// Writes the next parts if they need no window.
    fn send_windowless_parts(&mut self, number: u32, out: &mut Vec<u8>) -> StreamSendOutcome {
        match self.parts.front() {
            Some(StreamPart::Bytes(_) | StreamPart::File { .. }) => StreamSendOutcome::Pending,
            None => StreamSendOutcome::Empty,
            Some(StreamPart::Trailers(block)) => {
                frame::push_field_block(out, number, true, &[block]);
                self.parts.pop_front();
                match self.parts.front() {
                    Some(_) => self.send_windowless_parts(number, out),
                    None => StreamSendOutcome::Done,
                }
            }
            Some(StreamPart::Reset(reason)) => {
                frame::push_reset(out, number, *reason);
                StreamSendOutcome::Reset
            }
        }
    }

    /// Records that `length` bytes were sent; returns the report for the service behind once enough bytes have
    /// accumulated.
    pub(super) fn record_sent(&mut self, length: usize) -> Option<(u32, u32)> {
        let behind = self.service_stream.filter(|_| !self.is_response_complete)?;
        self.unreported_bytes += u32::try_from(length).unwrap_or(0);
        // Reported in halves of the window, so that most frames need no report.
        if self.unreported_bytes < RESPONSE_WINDOW_BYTES / 2 {
            return None;
        }
        Some((behind, std::mem::take(&mut self.unreported_bytes)))
    }
}
