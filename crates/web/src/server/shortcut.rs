//! Available responses that are sent directly to the socket once the head of a request has been read, without hyper.
//!
//! In: the bytes of a head that announces no body. Out: the same response as that of the service, or `None`; then the
//! service handles the request.
//!
//! Invariants
//! * Nothing is read from the client here, and nothing is known of the data after the request.
//! * Files are sent from the page cache to the socket without a copy. A file that is not cached is read by a blocking
//!   thread, so that a disk delays no other connection.
//!
//! On failure: a client that reads nothing within the timeout or reads too slowly, or a file that ends early, ends the
//! connection, which tells the client that the response is incomplete.
//!
//! Not here: which requests have such a response (`server`).

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::server::connection_socket::head_send_flags;
use crate::server::listen::ConnectionPeer;
use crate::server::page_cache::{load_into_page_cache, would_block_on_disk};
use crate::server::slow_client_timeout::SlowClientTimeout;

/// Maximum length of a file that is sent this way, in bytes.
pub const MAX_SHORTCUT_FILE_BYTES: u64 = 256 * 1024;

/// Provides available responses to requests.
pub trait Shortcut: Send + Sync + Debug {
    /// Returns the response to a GET or HEAD; `None` if the service has to handle it. `head` is the complete head of
    /// one request without a body. Must not block, and may use the processor for about a millisecond at most.
    fn try_respond(&self, head: &[u8], peer: ConnectionPeer) -> Option<ReadyResponse>;
}

/// A complete response, after which the connection continues.
pub struct ReadyResponse {
    /// Status line and headers, including the empty line at the end.
    pub head: Vec<u8>,
    /// The body.
    pub body: ReadyResponseBody,
    /// Called with the number of body bytes that were sent, when the transfer is complete or has ended.
    pub on_sent: Box<dyn FnOnce(u64) + Send>,
}

/// The body of a response.
#[derive(Debug)]
pub enum ReadyResponseBody {
    /// No body.
    Empty,
    /// Bytes in memory.
    Bytes(Bytes),
    /// A part of a file, of at most [`MAX_SHORTCUT_FILE_BYTES`] bytes.
    File {
        /// The file; its position is not used.
        file: Arc<File>,
        /// Offset of the part.
        start: u64,
        /// Length of the part.
        length: u64,
    },
}

impl Debug for ReadyResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, body) = (String::from_utf8_lossy(&self.head), &self.body);
        f.debug_struct("ReadyResponse")
            .field("head", &head)
            .field("body", body)
            .finish_non_exhaustive()
    }
}

impl ReadyResponse {
    /// Adds the header that makes this the connection's last response.
    pub(crate) fn mark_connection_close(&mut self) {
        // Insert before the line that ends the head.
        self.head.truncate(self.head.len().saturating_sub(2));
        self.head.extend_from_slice(b"connection: close\r\n\r\n");
    }
}

impl ReadyResponseBody {
    fn length(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }
}

/// A response that is being sent.
struct ResponseTransfer {
    head: Vec<u8>,
    body: ReadyResponseBody,
    /// Number of bytes sent of head and body together.
    sent_bytes: u64,
    on_sent: Option<Box<dyn FnOnce(u64) + Send>>,
}

impl Drop for ResponseTransfer {
    fn drop(&mut self) {
        let of_body = self.sent_bytes.saturating_sub(self.head.len() as u64);
        if let Some(done) = self.on_sent.take() {
            done(of_body);
        }
    }
}

/// Sends a response.
///
/// # Errors
/// Of the socket; [`ErrorKind::TimedOut`] if the client reads nothing for `timeout`, or less than
/// [`SlowClientTimeout`] requires.
pub(crate) async fn send_ready_response(
    stream: &TcpStream,
    response: ReadyResponse,
    timeout: Duration,
) -> Result<()> {
    let ReadyResponse { head, body, on_sent } = response;
    let total = head.len() as u64 + body.length();
    // From here on `on_sent` is called in any case, even if this future is dropped.
    let mut sending = ResponseTransfer { head, body, sent_bytes: 0, on_sent: Some(on_sent) };
    if let ReadyResponseBody::File { file, start, length: length @ 1.. } = &sending.body
        && would_block_on_disk(file, *start, *length)
    {
        load_into_page_cache(Arc::clone(file), *start, *length).await;
    }
    let mut waiting: Option<(Instant, SlowClientTimeout)> = None;
    while sending.sent_bytes < total {
        match stream.try_io(Interest::WRITABLE, || sending.send_available(stream)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                sending.sent_bytes += count as u64;
                if let Some((since, client_timeout)) = &mut waiting {
                    client_timeout.record_progress(elapsed_ms(*since), count as u64, false);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let (since, client_timeout) = waiting
                    .get_or_insert_with(|| (Instant::now(), SlowClientTimeout::new(timeout)));
                let now_ms = elapsed_ms(*since);
                client_timeout.record_progress(now_ms, 0, true);
                let end_ms = client_timeout.deadline_ms().unwrap_or(now_ms);
                let rest = Duration::from_millis(end_ms.saturating_sub(now_ms));
                let writable = tokio::time::timeout(rest, stream.writable()).await;
                writable.map_err(|_| {
                    Error::new(ErrorKind::TimedOut, "the peer does not read, or reads too slowly")
                })??;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl ResponseTransfer {
    /// Sends as much as the socket accepts now.
    fn send_available(&self, stream: &TcpStream) -> Result<usize> {
        let at = usize::try_from(self.sent_bytes).unwrap_or(usize::MAX);
        let head = self.head.get(at..).unwrap_or_default();
        let of_body = self.sent_bytes.saturating_sub(self.head.len() as u64);
        match &self.body {
            ReadyResponseBody::Empty => Ok(send(stream, head, SendFlags::NOSIGNAL)?),
            ReadyResponseBody::Bytes(bytes) => {
                let rest = usize::try_from(of_body).ok().and_then(|at| bytes.get(at..));
                let slices = [IoSlice::new(head), IoSlice::new(rest.unwrap_or_default())];
                Ok(rustix::io::writev(stream, &slices)?)
            }
            ReadyResponseBody::File { length, .. } if !head.is_empty() => {
                Ok(send(stream, head, head_send_flags(*length) | SendFlags::NOSIGNAL)?)
            }
            ReadyResponseBody::File { file, start, length } => {
                let mut offset = start + of_body;
                let count = usize::try_from(length - of_body).unwrap_or(usize::MAX);
                Ok(rustix::fs::sendfile(stream, file, Some(&mut offset), count)?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::Sender;
    use std::task::{Context, Waker};

    use super::*;
    use crate::server::page_cache::tests::{forgotten, is_forgotten};

    async fn pair() -> (TcpStream, std::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().await.unwrap().0, client)
    }

    fn ready(body: ReadyResponseBody) -> (ReadyResponse, Arc<AtomicU64>) {
        let sent_bytes = Arc::new(AtomicU64::new(u64::MAX));
        let teller = Arc::clone(&sent_bytes);
        let done = Box::new(move |sent| teller.store(sent, Ordering::SeqCst));
        (ReadyResponse { head: b"head\r\n\r\n".to_vec(), body, on_sent: done }, sent_bytes)
    }

    fn file(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    #[tokio::test]
    async fn an_answer_comes_whole_from_memory_and_from_a_file() {
        let bytes: Vec<u8> = (0..MAX_SHORTCUT_FILE_BYTES).map(|at| (at % 251) as u8).collect();
        for (body, expected) in [
            (ReadyResponseBody::Empty, &bytes[..0]),
            (ReadyResponseBody::File { file: file(b""), start: 0, length: 0 }, &bytes[..0]),
            (ReadyResponseBody::Bytes(bytes.clone().into()), &bytes[..]),
            (
                ReadyResponseBody::File {
                    file: file(&bytes),
                    start: 0,
                    length: MAX_SHORTCUT_FILE_BYTES,
                },
                &bytes[..],
            ),
            (
                ReadyResponseBody::File { file: file(&bytes), start: 7, length: 1_000 },
                &bytes[7..1_007],
            ),
        ] {
            let (server, mut client) = pair().await;
            let (response, sent_bytes) = ready(body);
            // The reader starts late, so that the socket is full before.
            let reader = std::thread::spawn(move || {
                let mut received = Vec::new();
                client.read_to_end(&mut received).unwrap();
                received
            });
            send_ready_response(&server, response, Duration::from_secs(30)).await.unwrap();
            drop(server);
            assert_eq!(reader.join().unwrap(), [&b"head\r\n\r\n"[..], expected].concat());
            assert_eq!(sent_bytes.load(Ordering::SeqCst), expected.len() as u64);
        }
    }

    /// Returns a runtime on which no thread reads files until the returned sender is dropped.
    fn busy() -> (tokio::runtime::Runtime, Sender<()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
        let (release_sender, wait) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || wait.recv().ok());
        (runtime, release_sender)
    }

    #[test]
    fn nothing_is_sent_before_a_file_is_in_memory() {
        if !is_forgotten(0, MAX_SHORTCUT_FILE_BYTES) {
            return;
        }
        let (runtime, release_sender) = busy();
        runtime.block_on(async {
            let (server, mut client) = pair().await;
            let file = forgotten(0, MAX_SHORTCUT_FILE_BYTES);
            let (response, sent_bytes) =
                ready(ReadyResponseBody::File { file, start: 0, length: MAX_SHORTCUT_FILE_BYTES });
            let mut sending =
                Box::pin(send_ready_response(&server, response, Duration::from_secs(30)));
            let polled = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            client.set_nonblocking(true).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
            client.set_nonblocking(false).unwrap();
            drop(release_sender);
            let reader = std::thread::spawn(move || client.read_to_end(&mut Vec::new()).unwrap());
            sending.await.unwrap();
            drop(server);
            assert_eq!(sent_bytes.load(Ordering::SeqCst), MAX_SHORTCUT_FILE_BYTES);
            assert_eq!(reader.join().unwrap() as u64, 8 + MAX_SHORTCUT_FILE_BYTES);
        });
    }

    #[test]
    fn an_answer_that_is_given_up_while_its_file_is_read_is_reported() {
        if !is_forgotten(0, MAX_SHORTCUT_FILE_BYTES) {
            return;
        }
        let (runtime, release_sender) = busy();
        runtime.block_on(async {
            let (server, client) = pair().await;
            let file = forgotten(0, MAX_SHORTCUT_FILE_BYTES);
            let (response, sent_bytes) =
                ready(ReadyResponseBody::File { file, start: 0, length: MAX_SHORTCUT_FILE_BYTES });
            let mut sending =
                Box::pin(send_ready_response(&server, response, Duration::from_secs(30)));
            let polled = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            drop(sending);
            assert_eq!(sent_bytes.load(Ordering::SeqCst), 0);
            drop((client, release_sender));
        });
    }

    #[tokio::test]
    async fn what_cannot_be_sent_is_reported_with_what_was() {
        let (server, client) = pair().await;
        // A truncated file.
        let body = ReadyResponseBody::File { file: file(&[1; 10]), start: 0, length: 20 };
        let (response, sent_bytes) = ready(body);
        let error =
            send_ready_response(&server, response, Duration::from_secs(30)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(sent_bytes.load(Ordering::SeqCst), 10);
        drop((server, client));
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (server, client) = pair().await;
        // More than both socket buffers hold.
        let (response, sent_bytes) = ready(ReadyResponseBody::Bytes(vec![0; 64 << 20].into()));
        let error =
            send_ready_response(&server, response, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(sent_bytes.load(Ordering::SeqCst) < 64 << 20);
        drop(client);
    }
}
