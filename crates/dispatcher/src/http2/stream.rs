//! One stream of a client: what of its answer waits to be sent.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tympan_web::patience::Patience;

use super::behind::WINDOW;
use super::frame::{self, Kind, MAX_PAYLOAD, Reason, flag};
use super::out::Out;

/// A piece of an answer behind its head.
#[derive(Debug)]
pub(super) enum Part {
    Bytes(Bytes),
    File {
        file: Arc<File>,
        offset: u64,
        left: u64,
    },
    /// Trailers, after which nothing comes.
    Trailers(Vec<u8>),
    /// The stream ends before its client has said everything.
    Reset(Reason),
}

/// A stream whose answer, or request, is not whole yet.
#[derive(Debug)]
pub(super) struct Stream {
    /// What may be sent.
    pub(super) send_window: i64,
    /// What the client may send.
    pub(super) receive_window: i64,
    /// Whether the client has sent everything.
    pub(super) has_asked: bool,
    /// Whether some of the answer was sent or waits to be.
    pub(super) is_answered: bool,
    /// Whether nothing is added to the answer any more.
    pub(super) is_whole: bool,
    /// Its number at the service behind, if that answers it.
    pub(super) behind: Option<u32>,
    /// What was sent of data of the service behind, and not told to it yet.
    pub(super) taken: u32,
    /// Whether it waits for its turn to send.
    pub(super) is_ready: bool,
    /// With a client that opens no window for it.
    patience: Patience,
    /// What was sent since that was noted last.
    sent: u64,
    /// Never begins with an empty piece, trailers or a reset.
    parts: VecDeque<Part>,
}

/// What a stream did in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It has more to send, if its window allows.
    More,
    /// Nothing waits, and more will come.
    Empty,
    /// It has sent everything.
    Done,
    /// It was reset.
    Reset,
}

/// A kept body was cut, so that its announced length cannot be kept.
#[derive(Debug)]
pub(super) struct Cut;

impl Stream {
    pub(super) fn new(
        (send_window, receive_window): (i64, i64),
        has_asked: bool,
        stall: Duration,
    ) -> Self {
        Self {
            send_window,
            receive_window,
            has_asked,
            patience: Patience::new(stall),
            sent: 0,
            is_answered: false,
            is_whole: false,
            behind: None,
            taken: 0,
            is_ready: false,
            parts: VecDeque::new(),
        }
    }

    /// Tells whether something waits to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Tells whether it waits for nothing but its own window.
    pub(super) fn is_stalled(&self) -> bool {
        self.is_waiting() && self.send_window <= 0
    }

    /// Notes whether it is stalled from now on; returns when it is given up then.
    pub(super) fn note_stall(&mut self, now_ms: u64) -> Option<u64> {
        let is_stalled = self.is_stalled();
        self.patience.note(now_ms, std::mem::take(&mut self.sent), is_stalled);
        self.patience.end_ms()
    }

    /// Returns how many bytes wait that are nowhere else.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        let bytes = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::File { .. } | Part::Trailers(_) | Part::Reset(_) => 0,
        };
        self.parts.iter().map(bytes).sum()
    }

    /// Adds a piece; one without a byte is left out.
    pub(super) fn push(&mut self, part: Part) {
        let is_empty = match &part {
            Part::Bytes(bytes) => bytes.is_empty(),
            Part::File { left, .. } => *left == 0,
            Part::Trailers(_) | Part::Reset(_) => false,
        };
        if !is_empty {
            self.parts.push_back(part);
        }
    }

    /// Writes one frame of data of at most `most` bytes and what needs no window behind it; returns how many bytes of the
    /// window that takes.
    pub(super) fn send(
        &mut self,
        number: u32,
        most: usize,
        out: &mut Out,
    ) -> Result<(usize, Turn), Cut> {
        let window = usize::try_from(self.send_window).unwrap_or(0);
        let most = most.min(window).min(MAX_PAYLOAD);
        let begin = out.frames.len();
        out.frames.extend_from_slice(&[0; frame::HEAD_BYTES]);
        let (length, is_over) = match self.parts.front_mut() {
            Some(Part::Bytes(bytes)) => {
                let length = bytes.len().min(most);
                out.push_body(bytes.split_to(length));
                (length, bytes.is_empty())
            }
            Some(Part::File { file, offset, left }) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(most);
                let place = out.frames.len();
                out.frames.resize(place + length, 0);
                let room = out.frames.get_mut(place..).unwrap_or_default();
                file.read_exact_at(room, *offset).map_err(|_cut| Cut)?;
                *offset += length as u64;
                *left -= length as u64;
                (length, *left == 0)
            }
            Some(Part::Trailers(_) | Part::Reset(_)) | None => (0, false),
        };
        if is_over {
            self.parts.pop_front();
        }
        self.send_window -= i64::try_from(length).unwrap_or(0);
        self.sent += length as u64;
        let is_last = matches!(self.parts.front(), None | Some(Part::Reset(_)));
        let ends = is_over && self.is_whole && is_last;
        let flags = if ends { flag::END_STREAM } else { 0 };
        if length == 0 {
            out.frames.truncate(begin);
        } else if let Some(head) = out.frames.get_mut(begin..begin + frame::HEAD_BYTES) {
            head.copy_from_slice(&frame::head_bytes(length, Kind::Data, flags, number));
        }
        match self.send_rest(number, &mut out.frames) {
            Turn::Empty if ends => Ok((length, Turn::Done)),
            turn => Ok((length, turn)),
        }
    }

    /// Writes what needs no window, if it is next.
    pub(super) fn send_rest(&mut self, number: u32, out: &mut Vec<u8>) -> Turn {
        match self.parts.front() {
            Some(Part::Bytes(_) | Part::File { .. }) => Turn::More,
            None => Turn::Empty,
            Some(Part::Trailers(block)) => {
                frame::push_block(out, number, true, &[block]);
                self.parts.pop_front();
                match self.parts.front() {
                    Some(_) => self.send_rest(number, out),
                    None => Turn::Done,
                }
            }
            Some(Part::Reset(reason)) => {
                frame::push_reset(out, number, *reason);
                Turn::Reset
            }
        }
    }

    /// Notes that so much was sent; returns what the service behind is to be told of it, and when enough has gathered.
    pub(super) fn note_taken(&mut self, length: usize) -> Option<(u32, u32)> {
        let behind = self.behind.filter(|_| !self.is_whole)?;
        self.taken += u32::try_from(length).unwrap_or(0);
        // Told in halves, so that most frames need no answer.
        if self.taken < WINDOW / 2 {
            return None;
        }
        Some((behind, std::mem::take(&mut self.taken)))
    }
}
