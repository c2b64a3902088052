//! Parses one response incrementally.
//!
//! Invariants
//! * [`TargetResponseReader::feed`] never panics and uses memory only for an incomplete head and for what
//!   [`ResponseRetention`] requires.
//! * The result does not depend on how the input is split.
//!
//! Protocol violations: bare line feeds, spaces before colons, folded lines and unknown codings are accepted, as in
//! browsers; two different lengths, or an invalid chunk size, are [`ExchangeFailure::Malformed`].

use std::mem::MaybeUninit;

use httparse::{ParserConfig, Status};

use super::exchange::{ExchangeFailure, ResponseRetention, TargetResponse};
use super::response_head::TargetResponseHead;

/// Maximum size of a head in bytes.
const MAX_HEAD_BYTES: usize = 256 * 1024;
const MAX_HEADERS: usize = 256;
/// Maximum preallocation, because a server may announce a length that it does not send.
const MAX_BODY_PREALLOCATION: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResponseReadState {
    Head,
    FixedLength(u64),
    ChunkSize {
        value: u64,
        digits: u8,
        in_chunk_extension: bool,
    },
    ChunkData(u64),
    /// The line break after a chunk.
    ChunkEnd,
    /// The trailer, and whether the current line is empty so far.
    Trailer {
        is_empty: bool,
    },
    UntilClose,
    Done,
}

/// The parser state of one response.
#[derive(Debug)]
pub(crate) struct TargetResponseReader {
    state: ResponseReadState,
    is_head_request: bool,
    retention: ResponseRetention,
    partial_head: Vec<u8>,
    closes_connection: bool,
    has_surplus: bool,
    /// The version to report instead of that of the status line.
    version_override: Option<&'static str>,
    response: TargetResponse,
}

impl TargetResponseReader {
    pub(crate) fn new(is_head: bool, keep: ResponseRetention) -> Self {
        Self {
            state: ResponseReadState::Head,
            is_head_request: is_head,
            retention: keep,
            partial_head: Vec::new(),
            closes_connection: false,
            has_surplus: false,
            version_override: None,
            response: TargetResponse::default(),
        }
    }

    /// Returns a reader that reports `version` instead of the version of the status line.
    pub(crate) fn with_version(self, version: &'static str) -> Self {
        Self { version_override: Some(version), ..self }
    }

    /// Returns true if the head is complete.
    pub(crate) fn has_head(&self) -> bool {
        self.response.status != 0
    }

    /// Parses bytes and returns how many of them belong to this response.
    ///
    /// # Errors
    /// [`ExchangeFailure::Malformed`].
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<usize, ExchangeFailure> {
        let mut rest = data;
        while !rest.is_empty() && self.state != ResponseReadState::Done {
            let used = self.step_state(rest)?;
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(data.len() - rest.len())
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == ResponseReadState::Done
    }

    /// Returns true if the connection cannot be reused.
    pub(crate) fn closes_connection(&self) -> bool {
        self.closes_connection
    }

    /// Records that unexpected bytes followed the response.
    pub(crate) fn record_surplus(&mut self) {
        self.has_surplus = true;
    }

    pub(crate) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Handles the end of the connection, which ends a body without other framing.
    pub(crate) fn finish_at_eof(&mut self) -> Result<(), ExchangeFailure> {
        match self.state {
            ResponseReadState::UntilClose => {
                self.state = ResponseReadState::Done;
                Ok(())
            }
            ResponseReadState::Done => Ok(()),
            ResponseReadState::Head if self.partial_head.is_empty() => {
                Err(ExchangeFailure::NoResponse)
            }
            _ => Err(ExchangeFailure::Truncated),
        }
    }

    pub(crate) fn into_response(self) -> TargetResponse {
        self.response
    }

    fn step_state(&mut self, data: &[u8]) -> Result<usize, ExchangeFailure> {
        match self.state {
            ResponseReadState::Head => self.read_head(data),
            ResponseReadState::FixedLength(left) => {
                let used = self.accept_body(data, left);
                let left = left - used as u64;
                self.state = if left == 0 {
                    ResponseReadState::Done
                } else {
                    ResponseReadState::FixedLength(left)
                };
                Ok(used)
            }
            ResponseReadState::ChunkData(left) => {
                let used = self.accept_body(data, left);
                let left = left - used as u64;
                self.state = if left == 0 {
                    ResponseReadState::ChunkEnd
                } else {
                    ResponseReadState::ChunkData(left)
                };
                Ok(used)
            }
            ResponseReadState::UntilClose => Ok(self.accept_body(data, u64::MAX)),
            ResponseReadState::ChunkSize { .. }
            | ResponseReadState::ChunkEnd
            | ResponseReadState::Trailer { .. } => {
                let byte = data.first().copied().unwrap_or_default();
                self.state = self.next_state(byte)?;
                Ok(1)
            }
            ResponseReadState::Done => Ok(0),
        }
    }

    fn next_state(&self, byte: u8) -> Result<ResponseReadState, ExchangeFailure> {
        match self.state {
            ResponseReadState::ChunkSize { value, digits, in_chunk_extension } => match byte {
                b'\n' if digits == 0 => Err(ExchangeFailure::Malformed),
                b'\n' if value == 0 => Ok(ResponseReadState::Trailer { is_empty: true }),
                b'\n' => Ok(ResponseReadState::ChunkData(value)),
                _ if in_chunk_extension => Ok(self.state),
                b'\r' | b' ' | b'\t' | b';' if digits > 0 => {
                    Ok(ResponseReadState::ChunkSize { value, digits, in_chunk_extension: true })
                }
                _ => {
                    let digit = char::from(byte).to_digit(16).ok_or(ExchangeFailure::Malformed)?;
                    if digits >= 16 {
                        return Err(ExchangeFailure::Malformed);
                    }
                    let value = (value << 4) | u64::from(digit);
                    Ok(ResponseReadState::ChunkSize {
                        value,
                        digits: digits + 1,
                        in_chunk_extension: false,
                    })
                }
            },
            ResponseReadState::ChunkEnd => match byte {
                b'\r' => Ok(ResponseReadState::ChunkEnd),
                b'\n' => Ok(CHUNK_SIZE_START),
                _ => Err(ExchangeFailure::Malformed),
            },
            ResponseReadState::Trailer { is_empty } => Ok(match byte {
                b'\n' if is_empty => ResponseReadState::Done,
                b'\n' => ResponseReadState::Trailer { is_empty: true },
                b'\r' => self.state,
                _ => ResponseReadState::Trailer { is_empty: false },
            }),
            state => Ok(state),
        }
    }

    fn accept_body(&mut self, data: &[u8], limit: u64) -> usize {
        let used = usize::try_from(limit).unwrap_or(usize::MAX).min(data.len());
        self.response.body_bytes += used as u64;
        if let ResponseRetention::Body(max) = self.retention {
            let capacity = max.saturating_sub(self.response.body.len()).min(used);
            self.response.body.extend_from_slice(data.get(..capacity).unwrap_or_default());
        }
        used
    }

    /// Reserves capacity for a body of known length, so that it is copied once.
    fn reserve_body(&mut self, length: u64) {
        if let ResponseRetention::Body(max) = self.retention {
            let capacity =
                usize::try_from(length).unwrap_or(max).min(max).min(MAX_BODY_PREALLOCATION);
            self.response.body.reserve_exact(capacity);
        }
    }

    fn read_head(&mut self, data: &[u8]) -> Result<usize, ExchangeFailure> {
        if self.partial_head.is_empty() {
            if let Some(used) = self.parse_head(data)? {
                return Ok(used);
            }
            self.partial_head.extend_from_slice(data);
            return self.check_head_size(data.len());
        }
        let before = self.partial_head.len();
        let mut whole = std::mem::take(&mut self.partial_head);
        whole.extend_from_slice(data);
        if let Some(used) = self.parse_head(&whole)? {
            // The head was incomplete without `data`, so it ends inside it.
            return Ok(used.saturating_sub(before));
        }
        self.partial_head = whole;
        self.check_head_size(data.len())
    }

    fn check_head_size(&self, used: usize) -> Result<usize, ExchangeFailure> {
        if self.partial_head.len() > MAX_HEAD_BYTES {
            Err(ExchangeFailure::Malformed)
        } else {
            Ok(used)
        }
    }

    /// Parses a head at the start of `data`; `None` if it is incomplete.
    fn parse_head(&mut self, data: &[u8]) -> Result<Option<usize>, ExchangeFailure> {
        // Initialized only as far as there are headers: most responses have a dozen.
        let mut headers = [MaybeUninit::uninit(); MAX_HEADERS];
        let mut parsed = httparse::Response::new(&mut []);
        let mut config = ParserConfig::default();
        config
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .allow_multiple_spaces_in_response_status_delimiters(true)
            .ignore_invalid_headers_in_responses(true);
        let used = match config.parse_response_with_uninit_headers(&mut parsed, data, &mut headers)
        {
            Ok(Status::Complete(used)) => used,
            Ok(Status::Partial) => return Ok(None),
            Err(_) => return Err(ExchangeFailure::Malformed),
        };
        let status = parsed.code.ok_or(ExchangeFailure::Malformed)?;
        self.response.head_bytes += used as u64;
        // Another response follows an interim response; 101 ends HTTP and is never requested.
        if (100..200).contains(&status) && status != 101 {
            return Ok(Some(used));
        }
        self.response.status = status;
        let framing = ResponseFraming::from_head(&parsed)?;
        self.response.server_timing = framing.server_timing;
        self.response.is_cache_hit = framing.is_cache_hit;
        let is_old = parsed.version == Some(0);
        self.closes_connection = framing.closes_connection || (is_old && !framing.is_keep_alive);
        if self.retention != ResponseRetention::Nothing {
            let head = copy_head(&parsed, status, used, self.version_override);
            if let ResponseRetention::StyleSheet(max) = self.retention {
                self.retention = if head.is_style_sheet() {
                    ResponseRetention::Body(max)
                } else {
                    ResponseRetention::Head
                };
            }
            self.response.head = Some(head);
        }
        let has_no_body = self.is_head_request || status == 204 || status == 304;
        self.state = match (has_no_body, framing.is_chunked, framing.content_length) {
            (true, ..) | (false, false, Some(0)) => ResponseReadState::Done,
            (false, true, _) => CHUNK_SIZE_START,
            (false, false, Some(length)) => {
                self.reserve_body(length);
                ResponseReadState::FixedLength(length)
            }
            (false, false, None) => {
                self.closes_connection = true;
                ResponseReadState::UntilClose
            }
        };
        Ok(Some(used))
    }
}

const CHUNK_SIZE_START: ResponseReadState =
    ResponseReadState::ChunkSize { value: 0, digits: 0, in_chunk_extension: false };

fn copy_head(
    parsed: &httparse::Response<'_, '_>,
    status: u16,
    size: usize,
    version: Option<&'static str>,
) -> TargetResponseHead {
    let own = if parsed.version == Some(0) { "HTTP/1.0" } else { "HTTP/1.1" };
    let version = version.unwrap_or(own);
    let headers = parsed.headers.iter().map(|header| (header.name, header.value));
    TargetResponseHead::new(version, status, parsed.reason.unwrap_or_default(), headers, size)
}

/// The framing of the body, as the head specifies it.
#[derive(Debug, Default)]
struct ResponseFraming {
    content_length: Option<u64>,
    is_chunked: bool,
    closes_connection: bool,
    is_keep_alive: bool,
    /// All values of the header, joined into one list.
    server_timing: Option<Box<str>>,
    /// The cache state that headers report.
    is_cache_hit: Option<bool>,
}

impl ResponseFraming {
    fn from_head(parsed: &httparse::Response<'_, '_>) -> Result<Self, ExchangeFailure> {
        let mut framing = Self::default();
        for header in parsed.headers.iter() {
            let (name, value) = (header.name, header.value.trim_ascii());
            match name.len() {
                14 if name.eq_ignore_ascii_case("content-length") => {
                    framing.add_content_length(value)?
                }
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    framing.is_chunked |= has_header_token(value, b"chunked");
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    framing.closes_connection |= has_header_token(value, b"close");
                    framing.is_keep_alive |= has_header_token(value, b"keep-alive");
                }
                13 if name.eq_ignore_ascii_case("server-timing") => {
                    let value = String::from_utf8_lossy(value);
                    framing.server_timing = Some(match framing.server_timing.take() {
                        Some(before) => format!("{before},{value}").into(),
                        None => value.into(),
                    });
                }
                3 | 7 | 12 => framing.add_cache_header(name, value),
                _ => {}
            }
        }
        Ok(framing)
    }

    /// Evaluates a header if it reports a cache state.
    fn add_cache_header(&mut self, name: &str, value: &[u8]) {
        if let Some(is_hit) = cache_hit_from_header(name, &String::from_utf8_lossy(value)) {
            self.is_cache_hit = Some(is_hit || self.is_cache_hit == Some(true));
        }
    }

    fn add_content_length(&mut self, value: &[u8]) -> Result<(), ExchangeFailure> {
        for part in value.split(|&byte| byte == b',') {
            let digits =
                std::str::from_utf8(part.trim_ascii()).map_err(|_| ExchangeFailure::Malformed)?;
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(ExchangeFailure::Malformed);
            }
            let length = digits.parse().map_err(|_| ExchangeFailure::Malformed)?;
            if self.content_length.is_some_and(|previous_length| previous_length != length) {
                return Err(ExchangeFailure::Malformed);
            }
            self.content_length = Some(length);
        }
        Ok(())
    }
}

/// Returns the cache state that a header reports; `None` if it reports none.
pub fn cache_hit_from_header(name: &str, value: &str) -> Option<bool> {
    let holds = |words: &[&str]| {
        let value = value.to_ascii_lowercase();
        words.iter().any(|marker| value.contains(marker))
    };
    match name.len() {
        // An age of 0 means that the response was fetched in this second, possibly by this request.
        3 if name.eq_ignore_ascii_case("Age") => {
            value.trim().parse::<u64>().ok().filter(|age| *age > 0).map(|_| true)
        }
        7 if name.eq_ignore_ascii_case("X-Cache") => Some(holds(&["hit"])),
        12 if name.eq_ignore_ascii_case("Cache-Status") => Some(holds(&["; hit", ";hit"])),
        12 if name.eq_ignore_ascii_case("X-Cache-Info") => {
            Some(holds(&["target file cached", "found in cache"]))
        }
        _ => None,
    }
}

fn has_header_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(
        pieces: &[&[u8]],
        is_head: bool,
    ) -> Result<(u16, Vec<u8>, bool, usize), ExchangeFailure> {
        let mut reader = TargetResponseReader::new(is_head, ResponseRetention::Body(1 << 20));
        let mut over = 0;
        for piece in pieces {
            let used = reader.feed(piece)?;
            over += piece.len() - used;
        }
        if !reader.is_done() {
            reader.finish_at_eof()?;
        }
        let closes = reader.closes_connection();
        let response = reader.into_response();
        Ok((response.status, response.body, closes, over))
    }

    #[track_caller]
    fn check(text: &str, status: u16, body: &str, closes: bool) {
        let whole = read(&[text.as_bytes()], false);
        assert_eq!(whole, Ok((status, body.as_bytes().to_vec(), closes, 0)), "{text}");
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(read(&bytes, false), whole, "in single bytes: {text}");
    }

    #[test]
    fn every_framing_reads_whatever_the_pieces() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", false);
        check("HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", 200, "hi", false);
        check("HTTP/1.1 200\r\ncontent-length : 2, 2\r\n\r\nhi", 200, "hi", false);
        check("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", true);
        check(
            "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi",
            200,
            "hi",
            false,
        );
        check("HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, "until the end", true);
        check("HTTP/1.1 204 No Content\r\n\r\n", 204, "", false);
        check("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 304, "", false);
        check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n003\r\n ho\r\n0\r\nT: x\r\n\r\n",
            200,
            "hi ho",
            false,
        );
        check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
            200,
            "x",
            true,
        );
    }

    #[test]
    fn broken_framing_is_distinguished() {
        let cases: [(&str, ExchangeFailure); 6] = [
            ("", ExchangeFailure::NoResponse),
            ("HTTP/1.1 200 OK\r\nContent-Le", ExchangeFailure::Truncated),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", ExchangeFailure::Truncated),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nhi",
                ExchangeFailure::Malformed,
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                ExchangeFailure::Malformed,
            ),
            ("SSH-2.0-OpenSSH\r\n", ExchangeFailure::Malformed),
        ];
        for (text, failure) in cases {
            assert_eq!(read(&[text.as_bytes()], false), Err(failure), "{text}");
        }
    }

    #[test]
    fn a_head_tells_what_arrived() {
        let text = b"HTTP/1.1 404 Not Here\r\nA: 1\r\na:  2 \r\nEmpty:\r\nB: \xff\r\nContent-Length: 0\r\n\r\n";
        let mut reader = TargetResponseReader::new(false, ResponseRetention::Head);
        assert_eq!(reader.feed(text).unwrap(), text.len());
        let head = reader.into_response().head.unwrap();
        assert_eq!(
            head.text(),
            "HTTP/1.1 404 Not Here\nA: 1\na: 2\nEmpty: \nB: \u{fffd}\nContent-Length: 0\n"
        );
        assert_eq!(
            (head.reason(), head.header("a"), head.header("EMPTY")),
            ("Not Here", Some("1"), Some(""))
        );
        assert_eq!(head.header_values("A").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(head.header("C"), None);
        let pairs: Vec<_> = head.headers().collect();
        assert_eq!(pairs[3..], [("B", "\u{fffd}"), ("Content-Length", "0")]);
        assert_eq!(TargetResponseHead::default().reason(), "");
    }

    #[test]
    fn a_head_response_has_no_body_and_bytes_left_over_are_counted() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(read(&[text], true), Ok((200, Vec::new(), false, 0)));
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxyz";
        assert_eq!(read(&[text], false), Ok((200, b"x".to_vec(), false, 2)));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_read_the_same(
            data in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(0usize..200, 0..6),
        ) {
            let mut text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            text.extend_from_slice(&data);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(text.get(from..cut).unwrap());
                from = cut;
            }
            pieces.push(text.get(from..).unwrap());
            let whole = read(&[&text], false);
            let pieced = read(&pieces, false);
            match (&whole, &pieced) {
                // An error is detected at its byte, before or after a split; the kind must not differ.
                (Err(one), Err(other)) => prop_assert_eq!(one, other),
                _ => prop_assert_eq!(&whole, &pieced),
            }
        }
    }
}
