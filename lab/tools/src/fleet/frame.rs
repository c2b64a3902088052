//! The frames between controller and agents: one byte for the kind, a length of four bytes, and a body.
//!
//! | frame | from | body |
//! |---|---|---|
//! | hello | agent | JSON: protocol, version, wanted index, processors |
//! | file | controller | number of the file, bytes; several of one file follow each other |
//! | job | controller | JSON: what to run, which portion, the names of the files |
//! | ready | agent | – |
//! | refused | agent | text: why the job cannot be run |
//! | ping, pong | both | number, and in the pong the agent's clock in microseconds |
//! | arrived | agent | number of the part of the run that is prepared |
//! | start | controller | when to start it, in microseconds of the agent's clock |
//! | interval | agent | what a worker measured in a second |
//! | tally | agent | JSON: samples since the last, threads, whether the plan asks to stop |
//! | rows | agent | lines of a result file |
//! | part | agent | JSON: how long the part took, facts about the generator |
//! | stop | controller | – |
//! | done | agent | JSON: faults outside of samples |

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// The protocol version; both sides must have the same.
pub(super) const PROTOCOL_VERSION: u32 = 4;
/// Maximum size in bytes of a frame body.
const MAX_FRAME_BYTES: u32 = 16 << 20;
/// Maximum number of file bytes in one frame.
pub(super) const FILE_CHUNK_BYTES: usize = 1 << 20;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum AgentFrameKind {
    Hello = 1,
    File,
    Job,
    Ready,
    Refused,
    Ping,
    Pong,
    PartPrepared,
    Start,
    Interval,
    Tally,
    Rows,
    PartDone,
    Stop,
    Done,
}

const FRAME_KINDS: [AgentFrameKind; 15] = [
    AgentFrameKind::Hello,
    AgentFrameKind::File,
    AgentFrameKind::Job,
    AgentFrameKind::Ready,
    AgentFrameKind::Refused,
    AgentFrameKind::Ping,
    AgentFrameKind::Pong,
    AgentFrameKind::PartPrepared,
    AgentFrameKind::Start,
    AgentFrameKind::Interval,
    AgentFrameKind::Tally,
    AgentFrameKind::Rows,
    AgentFrameKind::PartDone,
    AgentFrameKind::Stop,
    AgentFrameKind::Done,
];

/// Reads a frame; `None` at the end of the stream.
pub(super) fn read_frame(input: &mut dyn Read) -> io::Result<Option<(AgentFrameKind, Vec<u8>)>> {
    let mut head = [0; 5];
    let mut filled = 0;
    while filled < head.len() {
        match input.read(head.get_mut(filled..).unwrap_or_default()) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let [kind, length @ ..] = head;
    let length = u32::from_be_bytes(length);
    let kind = FRAME_KINDS.into_iter().find(|frame_kind| *frame_kind as u8 == kind);
    let Some(kind) = kind.filter(|_| length <= MAX_FRAME_BYTES) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a lab frame"));
    };
    let mut body = Vec::new();
    let read = input.take(length.into()).read_to_end(&mut body)?;
    if read < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((kind, body)))
}

/// Sends frames; may be used by several threads.
#[derive(Clone)]
pub(super) struct AgentFrameSender(Arc<Mutex<Box<dyn Write + Send>>>);

impl std::fmt::Debug for AgentFrameSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sender")
    }
}

impl AgentFrameSender {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        Self(Arc::new(Mutex::new(out)))
    }

    /// Sends a frame.
    pub(super) fn send_frame(&self, kind: AgentFrameKind, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).ok().filter(|&length| length <= MAX_FRAME_BYTES);
        let Some(length) = length else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the frame is too long"));
        };
        let mut frame = Vec::with_capacity(body.len() + 5);
        frame.push(kind as u8);
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(body);
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&frame)?;
        out.flush()
    }

    /// Sends a frame whose body is JSON.
    pub(super) fn send_json(
        &self,
        kind: AgentFrameKind,
        body: &impl serde::Serialize,
    ) -> io::Result<()> {
        self.send_frame(kind, &serde_json::to_vec(body)?)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use proptest::prelude::*;

    use super::*;

    struct FrameCollector(std::sync::mpsc::Sender<Vec<u8>>);

    impl Write for FrameCollector {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent(bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..5)) {
            let (out, sent) = channel();
            let sender = AgentFrameSender::new(Box::new(FrameCollector(out)));
            for body in &bodies {
                sender.send_frame(AgentFrameKind::Rows, body).unwrap();
            }
            drop(sender);
            let bytes: Vec<u8> = sent.into_iter().flatten().collect();
            let mut input = bytes.as_slice();
            for body in &bodies {
                prop_assert_eq!(read_frame(&mut input).unwrap(), Some((AgentFrameKind::Rows, body.clone())));
            }
            prop_assert_eq!(read_frame(&mut input).unwrap(), None);
        }

        #[test]
        fn what_is_no_frame_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            read_frame(&mut bytes.as_slice()).ok();
        }
    }

    #[test]
    fn every_kind_has_a_number_of_its_own_and_long_bodies_are_refused() {
        for (index, kind) in FRAME_KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
        }
        let mut long = [AgentFrameKind::Rows as u8, 0xFF, 0, 0, 0].as_slice();
        assert!(read_frame(&mut long).is_err());
        let mut cut = [AgentFrameKind::Rows as u8, 0, 0, 0, 9, 1, 2].as_slice();
        assert!(read_frame(&mut cut).is_err());
    }
}
