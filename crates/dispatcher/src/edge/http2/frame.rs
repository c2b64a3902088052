//! HTTP/2 frames (RFC 9113, section 4): their headers and their encoding.

/// The size of the header before each frame's payload.
pub(super) const FRAME_HEADER_BYTES: usize = 9;
/// The maximum payload that each side may send by default; this side never negotiates another one.
pub(super) const MAX_PAYLOAD_BYTES: usize = 16 * 1024;
/// The client's connection preface.
pub(super) const CLIENT_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest window, and the largest stream number.
pub(super) const MAX_31_BIT: u32 = 0x7fff_ffff;

/// The type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    Goaway,
    WindowUpdate,
    Continuation,
    /// A frame of an extension, which is ignored.
    Unknown,
}

impl FrameKind {
    fn from_number(number: u8) -> Self {
        const ALL: [FrameKind; 10] = [
            FrameKind::Data,
            FrameKind::Headers,
            FrameKind::Priority,
            FrameKind::Reset,
            FrameKind::Settings,
            FrameKind::PushPromise,
            FrameKind::Ping,
            FrameKind::Goaway,
            FrameKind::WindowUpdate,
            FrameKind::Continuation,
        ];
        ALL.get(usize::from(number)).copied().unwrap_or(Self::Unknown)
    }
}

/// Flag bits of frames.
pub(super) mod frame_flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Setting identifiers.
pub(super) mod setting_id {
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The error code of a stream or a connection (RFC 9113, section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Http2ErrorCode(pub(crate) u32);

impl Http2ErrorCode {
    pub(crate) const NO_ERROR: Self = Self(0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(1);
    pub(crate) const INTERNAL_ERROR: Self = Self(2);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(3);
    pub(crate) const STREAM_CLOSED: Self = Self(5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(6);
    pub(crate) const REFUSED_STREAM: Self = Self(7);
    pub(crate) const CANCEL: Self = Self(8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(11);
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) length: usize,
    pub(super) kind: FrameKind,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    pub(super) fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Parses the header at the beginning of `bytes`; `None` if it is incomplete.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[a, b, c, kind, flags, s, t, u, v], _) =
            bytes.split_first_chunk::<FRAME_HEADER_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind: FrameKind::from_number(kind),
            flags,
            stream: u32::from_be_bytes([s, t, u, v]) & MAX_31_BIT,
        })
    }
}

/// Reads a four-byte number at the beginning of a payload.
pub(super) fn read_u32(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Removes the padding from the payload of a frame that may be padded; `None` if the padding length is invalid.
pub(super) fn strip_padding(head: FrameHeader, payload: &[u8]) -> Option<&[u8]> {
    if !head.has_flag(frame_flag::PADDED) {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(*padding))?)
}

/// Returns the encoded header.
pub(super) fn encode_frame_header(
    length: usize,
    kind: FrameKind,
    flags: u8,
    stream: u32,
) -> [u8; FRAME_HEADER_BYTES] {
    // Every payload length fits three bytes.
    let [_, a, b, c] = u32::try_from(length).unwrap_or(0).to_be_bytes();
    let [s, t, u, v] = stream.to_be_bytes();
    [a, b, c, kind as u8, flags, s, t, u, v]
}

/// Writes a frame.
pub(super) fn push_frame(
    out: &mut Vec<u8>,
    kind: FrameKind,
    (flags, stream): (u8, u32),
    payload: &[u8],
) {
    out.extend_from_slice(&encode_frame_header(payload.len(), kind, flags, stream));
    out.extend_from_slice(payload);
}

/// Writes a complete field block; `parts` are concatenated in it.
pub(super) fn push_field_block(out: &mut Vec<u8>, stream: u32, ends_stream: bool, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let end = if ends_stream { frame_flag::END_STREAM } else { 0 };
    if length <= MAX_PAYLOAD_BYTES {
        let flags = end | frame_flag::END_HEADERS;
        out.extend_from_slice(&encode_frame_header(length, FrameKind::Headers, flags, stream));
        for part in parts {
            out.extend_from_slice(part);
        }
        return;
    }
    let whole = parts.concat();
    let mut pieces = whole.chunks(MAX_PAYLOAD_BYTES).peekable();
    let mut kind = (FrameKind::Headers, end);
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() { frame_flag::END_HEADERS } else { 0 };
        push_frame(out, kind.0, (kind.1 | last, stream), piece);
        kind = (FrameKind::Continuation, 0);
    }
}

/// Writes a window update.
pub(super) fn push_window_update(out: &mut Vec<u8>, stream: u32, bytes: u32) {
    if bytes > 0 {
        push_frame(out, FrameKind::WindowUpdate, (0, stream), &bytes.to_be_bytes());
    }
}

/// Writes a stream reset.
pub(super) fn push_reset(out: &mut Vec<u8>, stream: u32, reason: Http2ErrorCode) {
    push_frame(out, FrameKind::Reset, (0, stream), &reason.0.to_be_bytes());
}

/// Writes a settings frame.
pub(super) fn push_settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
    out.extend_from_slice(&encode_frame_header(settings.len() * 6, FrameKind::Settings, 0, 0));
    for (number, value) in settings {
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Writes a GOAWAY frame: no stream beyond `last` is processed.
pub(super) fn push_goaway(out: &mut Vec<u8>, last: u32, reason: Http2ErrorCode) {
    let mut payload = [0; 8];
    let (stream, number) = payload.split_at_mut(4);
    stream.copy_from_slice(&last.to_be_bytes());
    number.copy_from_slice(&reason.0.to_be_bytes());
    push_frame(out, FrameKind::Goaway, (0, 0), &payload);
}

#[cfg(test)]
mod tests {
    use super::{FrameHeader, FrameKind, frame_flag, push_field_block, push_frame, strip_padding};

    #[test]
    fn heads_come_back() {
        let mut out = Vec::new();
        push_frame(&mut out, FrameKind::Ping, (frame_flag::ACK, 7), b"12345678");
        let head = FrameHeader::parse(&out).unwrap();
        assert_eq!(head, FrameHeader { length: 8, kind: FrameKind::Ping, flags: 1, stream: 7 });
        assert_eq!(FrameHeader::parse(&out[..8]), None);
        out[3] = 10;
        assert_eq!(FrameHeader::parse(&out).unwrap().kind, FrameKind::Unknown);
        out[5] |= 0x80;
        assert_eq!(FrameHeader::parse(&out).unwrap().stream, 7, "one bit is reserved");
    }

    #[test]
    fn padding_is_taken_away() {
        let head = |flags| FrameHeader { length: 0, kind: FrameKind::Data, flags, stream: 1 };
        assert_eq!(strip_padding(head(0), b"\x02ab"), Some(&b"\x02ab"[..]));
        assert_eq!(strip_padding(head(frame_flag::PADDED), b"\x02abcd"), Some(&b"ab"[..]));
        assert_eq!(strip_padding(head(frame_flag::PADDED), b"\x02ab"), Some(&b""[..]));
        assert_eq!(strip_padding(head(frame_flag::PADDED), b"\x03ab"), None);
        assert_eq!(strip_padding(head(frame_flag::PADDED), b""), None);
    }

    #[test]
    fn a_long_block_is_cut() {
        let mut out = Vec::new();
        push_field_block(&mut out, 3, true, &[&[1; 20_000], &[2; 20_000]]);
        let mut frames = Vec::new();
        let mut rest = &out[..];
        while let Some(head) = FrameHeader::parse(rest) {
            frames.push((head.kind, head.flags, head.length));
            rest = &rest[9 + head.length..];
        }
        let expected = [
            (FrameKind::Headers, frame_flag::END_STREAM, 16_384),
            (FrameKind::Continuation, 0, 16_384),
            (FrameKind::Continuation, frame_flag::END_HEADERS, 7_232),
        ];
        assert_eq!(frames, expected);
    }
}
