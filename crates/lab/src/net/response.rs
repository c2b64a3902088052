//! Reads one response from whatever pieces the socket gives.
//!
//! Invariants
//! * [`Reader::feed`] never panics and uses memory only for an incomplete head and for what [`Keep`] asks.
//! * The outcome does not depend on where the pieces are cut.
//!
//! Responses that break rules: bare line feeds, spaces before colons, folded lines and unknown codings are accepted,
//! as browsers do; two different lengths, or a chunk size that is no number, are [`Failure::Malformed`].

use std::mem::MaybeUninit;

use httparse::{ParserConfig, Status};

use super::{Failure, Response};

/// What of a response its reader wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Status and sizes.
    Nothing,
    /// Also the head.
    Head,
    /// Also the body, up to this many bytes.
    Body(usize),
    /// The head, and the body of a style sheet, up to this many bytes.
    Style(usize),
}

/// A head as it arrived: one text, and where in it names and values stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// Status line and headers, a line each; every byte that is no UTF-8 is replaced.
    text: String,
    /// Where the reason phrase stands.
    reason: (u32, u32),
    headers: Vec<Mark>,
}

/// Where a header stands: its value begins two bytes behind its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    start: u32,
    name_end: u32,
    end: u32,
}

impl Head {
    /// Returns the head of a status line (`version` as in `HTTP/1.1`) and headers.
    pub(crate) fn new<'a>(
        (version, status, reason): (&str, u16, &str),
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        size: usize,
    ) -> Self {
        // Heads are bounded far below what 32 bits count.
        let place = |text: &String| u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut text = String::with_capacity(size + 16);
        text.push_str(version);
        text.push(' ');
        for divisor in [100, 10, 1] {
            text.push(char::from(b'0' + (status / divisor % 10) as u8));
        }
        text.push(' ');
        let from = place(&text);
        text.push_str(reason);
        let reason = (from, place(&text));
        text.push('\n');
        let mut marks = Vec::with_capacity(16);
        for (name, value) in headers {
            let start = place(&text);
            text.push_str(name);
            let name_end = place(&text);
            text.push_str(": ");
            match std::str::from_utf8(value) {
                Ok(value) => text.push_str(value),
                Err(_) => text.push_str(&String::from_utf8_lossy(value)),
            }
            marks.push(Mark { start, name_end, end: place(&text) });
            text.push('\n');
        }
        Self { text, reason, headers: marks }
    }

    fn part(&self, from: u32, to: u32) -> &str {
        self.text.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Returns names as sent, and values.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|mark| {
            (self.part(mark.start, mark.name_end), self.part(mark.name_end + 2, mark.end))
        })
    }

    /// Returns the first value of the header `name`, whatever its case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mark = self.headers.iter().find(|mark| self.is_named(mark, name))?;
        Some(self.part(mark.name_end + 2, mark.end))
    }

    fn is_named(&self, mark: &Mark, name: &str) -> bool {
        // Most names differ in length already.
        (mark.name_end - mark.start) as usize == name.len()
            && self.part(mark.start, mark.name_end).eq_ignore_ascii_case(name)
    }

    /// Reports whether the body is a style sheet.
    pub(crate) fn is_style(&self) -> bool {
        let media_type = self.header("Content-Type").unwrap_or_default();
        media_type.trim_start().get(..8).is_some_and(|kind| kind.eq_ignore_ascii_case("text/css"))
    }

    /// Returns what follows the status.
    pub(crate) fn reason(&self) -> &str {
        self.part(self.reason.0, self.reason.1)
    }

    /// Returns the head as it arrived, a line each.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the same, without a copy.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Returns all values of the header `name`.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.headers
            .iter()
            .filter(move |mark| self.is_named(mark, name))
            .map(|mark| self.part(mark.name_end + 2, mark.end))
    }
}

/// Largest head that is read.
const MAX_HEAD: usize = 256 * 1024;
const MAX_HEADERS: usize = 256;
/// What a server says of a length it does not send costs no more than this.
const MOST_ROOM: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    Length(u64),
    Size {
        value: u64,
        digits: u8,
        in_extension: bool,
    },
    Chunk(u64),
    /// The line break after a chunk.
    Break,
    /// The trailer; whether the line so far is empty.
    Trailer {
        is_empty: bool,
    },
    UntilClose,
    Done,
}

/// The state of one response.
#[derive(Debug)]
pub(crate) struct Reader {
    phase: Phase,
    is_head: bool,
    keep: Keep,
    partial: Vec<u8>,
    closes: bool,
    has_surplus: bool,
    /// The version that heads tell, if not that of their status line.
    version: Option<&'static str>,
    response: Response,
}

impl Reader {
    pub(crate) fn new(is_head: bool, keep: Keep) -> Self {
        Self {
            phase: Phase::Head,
            is_head,
            keep,
            partial: Vec::new(),
            closes: false,
            has_surplus: false,
            version: None,
            response: Response::default(),
        }
    }

    /// Returns a reader of responses that come by another version than that of their status line.
    pub(crate) fn of_version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Reports whether the head has come.
    pub(crate) fn has_head(&self) -> bool {
        self.response.status != 0
    }

    /// Takes bytes and returns how many of them belong to this response.
    ///
    /// # Errors
    /// [`Failure::Malformed`].
    pub(crate) fn feed(&mut self, data: &[u8]) -> Result<usize, Failure> {
        let mut rest = data;
        while !rest.is_empty() && self.phase != Phase::Done {
            let used = self.step(rest)?;
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(data.len() - rest.len())
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Reports whether the connection cannot be used again.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Notes that bytes followed the response; nobody asked for them.
    pub(crate) fn note_surplus(&mut self) {
        self.has_surplus = true;
    }

    pub(crate) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Takes the end of the connection: the end of a body that has no other.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        match self.phase {
            Phase::UntilClose => {
                self.phase = Phase::Done;
                Ok(())
            }
            Phase::Done => Ok(()),
            Phase::Head if self.partial.is_empty() => Err(Failure::NoResponse),
            _ => Err(Failure::Cut),
        }
    }

    pub(crate) fn into_response(self) -> Response {
        self.response
    }

    fn step(&mut self, data: &[u8]) -> Result<usize, Failure> {
        match self.phase {
            Phase::Head => self.read_head(data),
            Phase::Length(left) => {
                let used = self.take(data, left);
                let left = left - used as u64;
                self.phase = if left == 0 { Phase::Done } else { Phase::Length(left) };
                Ok(used)
            }
            Phase::Chunk(left) => {
                let used = self.take(data, left);
                let left = left - used as u64;
                self.phase = if left == 0 { Phase::Break } else { Phase::Chunk(left) };
                Ok(used)
            }
            Phase::UntilClose => Ok(self.take(data, u64::MAX)),
            Phase::Size { .. } | Phase::Break | Phase::Trailer { .. } => {
                let byte = data.first().copied().unwrap_or_default();
                self.phase = self.after_byte(byte)?;
                Ok(1)
            }
            Phase::Done => Ok(0),
        }
    }

    fn after_byte(&self, byte: u8) -> Result<Phase, Failure> {
        match self.phase {
            Phase::Size { value, digits, in_extension } => match byte {
                b'\n' if digits == 0 => Err(Failure::Malformed),
                b'\n' if value == 0 => Ok(Phase::Trailer { is_empty: true }),
                b'\n' => Ok(Phase::Chunk(value)),
                _ if in_extension => Ok(self.phase),
                b'\r' | b' ' | b'\t' | b';' if digits > 0 => {
                    Ok(Phase::Size { value, digits, in_extension: true })
                }
                _ => {
                    let digit = char::from(byte).to_digit(16).ok_or(Failure::Malformed)?;
                    if digits >= 16 {
                        return Err(Failure::Malformed);
                    }
                    let value = (value << 4) | u64::from(digit);
                    Ok(Phase::Size { value, digits: digits + 1, in_extension: false })
                }
            },
            Phase::Break => match byte {
                b'\r' => Ok(Phase::Break),
                b'\n' => Ok(SIZE),
                _ => Err(Failure::Malformed),
            },
            Phase::Trailer { is_empty } => Ok(match byte {
                b'\n' if is_empty => Phase::Done,
                b'\n' => Phase::Trailer { is_empty: true },
                b'\r' => self.phase,
                _ => Phase::Trailer { is_empty: false },
            }),
            other => Ok(other),
        }
    }

    fn take(&mut self, data: &[u8], limit: u64) -> usize {
        let used = usize::try_from(limit).unwrap_or(usize::MAX).min(data.len());
        self.response.body_bytes += used as u64;
        if let Keep::Body(max) = self.keep {
            let room = max.saturating_sub(self.response.body.len()).min(used);
            self.response.body.extend_from_slice(data.get(..room).unwrap_or_default());
        }
        used
    }

    /// Makes room for a body whose length is known, so that it is copied once.
    fn make_room(&mut self, length: u64) {
        if let Keep::Body(max) = self.keep {
            let room = usize::try_from(length).unwrap_or(max).min(max).min(MOST_ROOM);
            self.response.body.reserve_exact(room);
        }
    }

    fn read_head(&mut self, data: &[u8]) -> Result<usize, Failure> {
        if self.partial.is_empty() {
            if let Some(used) = self.parse_head(data)? {
                return Ok(used);
            }
            self.partial.extend_from_slice(data);
            return self.bounded(data.len());
        }
        let before = self.partial.len();
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(data);
        if let Some(used) = self.parse_head(&whole)? {
            // The head was incomplete without `data`, so it ends inside it.
            return Ok(used.saturating_sub(before));
        }
        self.partial = whole;
        self.bounded(data.len())
    }

    fn bounded(&self, used: usize) -> Result<usize, Failure> {
        if self.partial.len() > MAX_HEAD { Err(Failure::Malformed) } else { Ok(used) }
    }

    /// Reads a head at the start of `data`; `None` if it is not complete yet.
    fn parse_head(&mut self, data: &[u8]) -> Result<Option<usize>, Failure> {
        // Filled as far as there are headers: most responses have a dozen.
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
            Err(_) => return Err(Failure::Malformed),
        };
        let status = parsed.code.ok_or(Failure::Malformed)?;
        self.response.head_bytes += used as u64;
        // An interim response announces another one; 101 ends HTTP and is never asked for.
        if (100..200).contains(&status) && status != 101 {
            return Ok(Some(used));
        }
        self.response.status = status;
        let framing = Framing::of(&parsed)?;
        self.response.server_timing = framing.server_timing;
        self.response.is_hit = framing.is_hit;
        let is_old = parsed.version == Some(0);
        self.closes = framing.closes || (is_old && !framing.keeps_alive);
        if self.keep != Keep::Nothing {
            let head = copy_head(&parsed, status, used, self.version);
            if let Keep::Style(max) = self.keep {
                self.keep = if head.is_style() { Keep::Body(max) } else { Keep::Head };
            }
            self.response.head = Some(head);
        }
        let has_no_body = self.is_head || status == 204 || status == 304;
        self.phase = match (has_no_body, framing.is_chunked, framing.length) {
            (true, ..) | (false, false, Some(0)) => Phase::Done,
            (false, true, _) => SIZE,
            (false, false, Some(length)) => {
                self.make_room(length);
                Phase::Length(length)
            }
            (false, false, None) => {
                self.closes = true;
                Phase::UntilClose
            }
        };
        Ok(Some(used))
    }
}

const SIZE: Phase = Phase::Size { value: 0, digits: 0, in_extension: false };

fn copy_head(
    parsed: &httparse::Response<'_, '_>,
    status: u16,
    size: usize,
    version: Option<&'static str>,
) -> Head {
    let own = if parsed.version == Some(0) { "HTTP/1.0" } else { "HTTP/1.1" };
    let version = version.unwrap_or(own);
    let headers = parsed.headers.iter().map(|header| (header.name, header.value));
    Head::new((version, status, parsed.reason.unwrap_or_default()), headers, size)
}

/// How the head says that the body ends.
#[derive(Debug, Default)]
struct Framing {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps_alive: bool,
    /// All values of the header, as one list.
    server_timing: Option<Box<str>>,
    /// What headers say of a cache.
    is_hit: Option<bool>,
}

impl Framing {
    fn of(parsed: &httparse::Response<'_, '_>) -> Result<Self, Failure> {
        let mut framing = Self::default();
        for header in parsed.headers.iter() {
            let (name, value) = (header.name, header.value.trim_ascii());
            match name.len() {
                14 if name.eq_ignore_ascii_case("content-length") => framing.add_length(value)?,
                17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                    framing.is_chunked |= has_token(value, b"chunked");
                }
                10 if name.eq_ignore_ascii_case("connection") => {
                    framing.closes |= has_token(value, b"close");
                    framing.keeps_alive |= has_token(value, b"keep-alive");
                }
                13 if name.eq_ignore_ascii_case("server-timing") => {
                    let value = String::from_utf8_lossy(value);
                    framing.server_timing = Some(match framing.server_timing.take() {
                        Some(before) => format!("{before},{value}").into(),
                        None => value.into(),
                    });
                }
                3 | 7 | 12 => framing.add_cache(name, value),
                _ => {}
            }
        }
        Ok(framing)
    }

    /// Adds what a header says of a cache, if it is one that does.
    fn add_cache(&mut self, name: &str, value: &[u8]) {
        if let Some(is_hit) = cache_says(name, &String::from_utf8_lossy(value)) {
            self.is_hit = Some(is_hit || self.is_hit == Some(true));
        }
    }

    fn add_length(&mut self, value: &[u8]) -> Result<(), Failure> {
        for part in value.split(|&byte| byte == b',') {
            let digits = std::str::from_utf8(part.trim_ascii()).map_err(|_| Failure::Malformed)?;
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(Failure::Malformed);
            }
            let length = digits.parse().map_err(|_| Failure::Malformed)?;
            if self.length.is_some_and(|known| known != length) {
                return Err(Failure::Malformed);
            }
            self.length = Some(length);
        }
        Ok(())
    }
}

/// Returns whether a header says that a cache answered or that none did; nothing if it says neither.
pub(crate) fn cache_says(name: &str, value: &str) -> Option<bool> {
    let holds = |words: &[&str]| {
        let value = value.to_ascii_lowercase();
        words.iter().any(|word| value.contains(word))
    };
    match name.len() {
        // One that is 0 was fetched this second, by whoever asked.
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

fn has_token(value: &[u8], token: &[u8]) -> bool {
    value.split(|&byte| byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]], is_head: bool) -> Result<(u16, Vec<u8>, bool, usize), Failure> {
        let mut reader = Reader::new(is_head, Keep::Body(1 << 20));
        let mut over = 0;
        for piece in pieces {
            let used = reader.feed(piece)?;
            over += piece.len() - used;
        }
        if !reader.is_done() {
            reader.end()?;
        }
        let closes = reader.closes();
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
    fn broken_framing_is_told_apart() {
        let cases: [(&str, Failure); 6] = [
            ("", Failure::NoResponse),
            ("HTTP/1.1 200 OK\r\nContent-Le", Failure::Cut),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi", Failure::Cut),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nhi",
                Failure::Malformed,
            ),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Failure::Malformed),
            ("SSH-2.0-OpenSSH\r\n", Failure::Malformed),
        ];
        for (text, failure) in cases {
            assert_eq!(read(&[text.as_bytes()], false), Err(failure), "{text}");
        }
    }

    #[test]
    fn a_head_tells_what_arrived() {
        let text = b"HTTP/1.1 404 Not Here\r\nA: 1\r\na:  2 \r\nEmpty:\r\nB: \xff\r\nContent-Length: 0\r\n\r\n";
        let mut reader = Reader::new(false, Keep::Head);
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
        assert_eq!(head.all("A").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(head.header("C"), None);
        let pairs: Vec<_> = head.headers().collect();
        assert_eq!(pairs[3..], [("B", "\u{fffd}"), ("Content-Length", "0")]);
        assert_eq!(Head::default().reason(), "");
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
                // A fault is seen at its byte, before or after a cut; which one must not differ.
                (Err(one), Err(other)) => prop_assert_eq!(one, other),
                _ => prop_assert_eq!(&whole, &pieced),
            }
        }
    }
}
