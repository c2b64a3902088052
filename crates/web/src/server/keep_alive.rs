//! Waiting for the next request without any memory besides the socket.
//!
//! hyper holds 16 KiB of buffers and the state of a request for as long as it has a connection, and most connections
//! are idle most of the time. So the head of a request is read here, and hyper has the connection from then until its
//! response is written.
//!
//! Invariants
//! * Bytes reach hyper exactly as the client sent them.
//! * Anything that is not plainly a GET or HEAD without a body is left to hyper, with all that follows on the
//!   connection.
//! * A head is scanned once, in however many pieces it arrives.

use std::future::poll_fn;
use std::io::Result;
use std::pin::Pin;
use std::task::ready;

use memchr::memchr;
use tokio::io::{AsyncRead, ReadBuf};

/// Number of bytes per read.
const READ_CHUNK_BYTES: usize = 4 * 1024;
/// Prefixes of headers that announce a body, or require more than a response. `Upgrade-Insecure-Requests`, which
/// browsers send with every request, does not match.
const COMPLEX_HEADER_PREFIXES: [&[u8]; 4] =
    [b"content-length", b"transfer-encoding", b"expect:", b"upgrade:"];

/// The input received from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepAliveInput {
    /// This number of bytes forms one complete request without a body.
    Request(usize),
    /// Other data, or an incomplete request.
    Other,
    /// The end of the stream, without data.
    End,
}

/// Waits for a request. All data read is added to `unread`, of which at most `max` bytes are scanned.
///
/// # Errors
/// Of the socket.
pub(crate) async fn wait_for_input<T: AsyncRead + Unpin>(
    stream: &mut T,
    unread: &mut Vec<u8>,
    max: usize,
) -> Result<KeepAliveInput> {
    let mut head = RequestHeadScan::default();
    loop {
        if let Some(next) = head.scan_new_bytes(unread) {
            return Ok(next);
        }
        if unread.len() >= max {
            return Ok(KeepAliveInput::Other);
        }
        if read_available(stream, unread).await? == 0 {
            return Ok(if unread.is_empty() { KeepAliveInput::End } else { KeepAliveInput::Other });
        }
    }
}

/// Appends the available data; returns the number of bytes, zero at the end.
async fn read_available<T: AsyncRead + Unpin>(
    stream: &mut T,
    bytes: &mut Vec<u8>,
) -> Result<usize> {
    poll_fn(|cx| {
        // Use the stack, so that a waiting connection holds no buffer.
        let mut piece = [std::mem::MaybeUninit::uninit(); READ_CHUNK_BYTES];
        let mut buffer = ReadBuf::uninit(&mut piece);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer))?;
        bytes.extend_from_slice(buffer.filled());
        Ok(buffer.filled().len()).into()
    })
    .await
}

/// The scan state of an incomplete head.
#[derive(Debug, Default)]
struct RequestHeadScan {
    /// Start of the current incomplete line.
    line_start: usize,
    /// Number of bytes scanned for its end.
    scanned_bytes: usize,
}

impl RequestHeadScan {
    /// Scans the data that arrived since the last call; `None` until the head is complete.
    fn scan_new_bytes(&mut self, bytes: &[u8]) -> Option<KeepAliveInput> {
        if !may_be_get_or_head(bytes) {
            return Some(KeepAliveInput::Other);
        }
        while let Some(length) = bytes.get(self.scanned_bytes..).and_then(|new| memchr(b'\n', new))
        {
            let end = self.scanned_bytes + length + 1;
            let line = bytes.get(self.line_start..end).unwrap_or_default();
            if matches!(line, b"\r\n" | b"\n") {
                return Some(KeepAliveInput::Request(end));
            }
            let begins = |name: &&[u8]| {
                line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
            };
            if COMPLEX_HEADER_PREFIXES.iter().any(begins) {
                return Some(KeepAliveInput::Other);
            }
            (self.line_start, self.scanned_bytes) = (end, end);
        }
        self.scanned_bytes = bytes.len();
        None
    }
}

/// Returns true if this is, or may become, a GET or HEAD.
fn may_be_get_or_head(bytes: &[u8]) -> bool {
    [&b"GET "[..], b"HEAD "].iter().any(|method| {
        let length = method.len().min(bytes.len());
        bytes.get(..length) == method.get(..length)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends pieces one by one; returns the detected input and the unread bytes.
    async fn seen(pieces: &[&str], max: usize) -> (KeepAliveInput, String) {
        let mut stream = stream_of(pieces);
        let mut unread = Vec::new();
        let next = wait_for_input(&mut stream, &mut unread, max).await.unwrap();
        (next, String::from_utf8(unread).unwrap())
    }

    /// Returns a stream that delivers one piece per read.
    fn stream_of(pieces: &[&str]) -> impl AsyncRead + Unpin {
        let pieces: Vec<Vec<u8>> =
            pieces.iter().map(|piece| piece.as_bytes().to_vec()).rev().collect();
        PiecewiseReader(pieces)
    }

    struct PiecewiseReader(Vec<Vec<u8>>);

    impl AsyncRead for PiecewiseReader {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> std::task::Poll<Result<()>> {
            buffer.put_slice(&self.0.pop().unwrap_or_default());
            Ok(()).into()
        }
    }

    #[track_caller]
    fn check(runtime: &tokio::runtime::Runtime, text: &str, expected: KeepAliveInput) {
        let whole = runtime.block_on(seen(&[text], 1024));
        assert_eq!(whole, (expected, text.to_owned()), "{text:?}");
        // The result must be the same byte by byte, as early as possible.
        let bytes: Vec<&str> = text.split("").filter(|letter| !letter.is_empty()).collect();
        let (next, read) = runtime.block_on(seen(&bytes, 1024));
        assert_eq!(next, expected, "{text:?} byte by byte");
        assert!(text.starts_with(&read));
    }

    #[test]
    fn requests_without_a_body_are_distinguished_from_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let check = |text: &str, expected| check(&runtime, text, expected);
        check("", KeepAliveInput::End);
        check("GET / HTTP/1.1\r\nHost: h\r\n\r\n", KeepAliveInput::Request(27));
        check("HEAD / HTTP/1.0\n\n", KeepAliveInput::Request(17));
        // Requests that browsers send.
        check(
            "GET / HTTP/1.1\r\nUpgrade-Insecure-Requests: 1\r\n\r\n",
            KeepAliveInput::Request(48),
        );
        check("GET / HTTP/1.1\r\n", KeepAliveInput::Other);
        for input in [
            "POST / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GETS / HTTP/1.1\r\n\r\n",
            "get / HTTP/1.1\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\nTRANSFER-ENCODING: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nexpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        ] {
            check(input, KeepAliveInput::Other);
        }
    }

    #[test]
    fn what_follows_a_request_is_kept_and_a_long_head_is_left_to_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let two_requests = "GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n";
        let (next, unread) = runtime.block_on(seen(&[two_requests], 1024));
        assert_eq!((next, unread.as_str()), (KeepAliveInput::Request(19), two_requests));
        let long = format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(100));
        let (next, unread) = runtime.block_on(seen(&[&long, "a", "a"], 100));
        assert_eq!((next, unread), (KeepAliveInput::Other, long));
    }
}
