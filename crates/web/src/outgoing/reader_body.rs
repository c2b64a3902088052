//! Bodies from blocking readers: files and blobs, sent in pieces.
//!
//! A reader runs on the blocking pool and stays at most a few pieces ahead of the connection, so a slow client holds a
//! few hundred KiB whatever the length.

use std::io::Read;

use bytes::Bytes;
use futures_util::stream;
use http_body::{Body, Frame, SizeHint};
use http_body_util::StreamBody;
use tokio::sync::mpsc;

/// Number of bytes read, queued and sent at a time.
const BODY_CHUNK_BYTES: u64 = 128 * 1024;
/// Maximum number of pieces queued for the connection.
const MAX_QUEUED_CHUNKS: usize = 4;

/// Returns a body of the first `length` bytes of `reader`. If the reader ends early, the body fails, so that the peer
/// does not mistake the part for the whole.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn body_from_reader(
    reader: impl Read + Send + 'static,
    length: u64,
) -> impl Body<Data = Bytes, Error = std::io::Error> + Send {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED_CHUNKS);
    tokio::task::spawn_blocking(move || send_body_chunks(reader, length, &sender));
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece: std::io::Result<Bytes> = receiver.recv().await?;
        Some((piece.map(Frame::data), receiver))
    });
    SizedBody { body: Box::pin(StreamBody::new(pieces)), remaining_bytes: length }
}

/// Reads until the end, an error, or until the receiver is dropped.
fn send_body_chunks(
    mut reader: impl Read,
    length: u64,
    sender: &mpsc::Sender<std::io::Result<Bytes>>,
) {
    let mut left = length;
    while left > 0 {
        let chunk_length = left.min(BODY_CHUNK_BYTES);
        let mut piece = Vec::with_capacity(chunk_length as usize);
        let read = reader.by_ref().take(chunk_length).read_to_end(&mut piece).and_then(|count| {
            if count as u64 == chunk_length {
                Ok(Bytes::from(piece))
            } else {
                Err(std::io::ErrorKind::UnexpectedEof.into())
            }
        });
        let is_error = read.is_err();
        if sender.blocking_send(read).is_err() || is_error {
            return;
        }
        left -= chunk_length;
    }
}

/// A stream with a known length, sent with `Content-Length`.
struct SizedBody<B> {
    body: std::pin::Pin<Box<B>>,
    remaining_bytes: u64,
}

impl<B: Body<Data = Bytes>> Body for SizedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = std::task::ready!(self.body.as_mut().poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.remaining_bytes = self.remaining_bytes.saturating_sub(data.len() as u64);
        }
        std::task::Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.remaining_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining_bytes)
    }
}
