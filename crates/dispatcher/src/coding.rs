//! Codings of renders' bodies, taken off as they arrive.
//!
//! In: an answer's head and body. Out: the body as it is, whatever coding it came in.
//!
//! Transfer codings (`Transfer-Encoding: gzip, chunked`) belong to one connection, so each answer loses them; one that nobody
//! here can read makes the answer unusable. Content codings (`Content-Encoding: gzip`) are taken off where a page is stored: it
//! was asked for without `Accept-Encoding`, and goes to visitors who take no coding.
//!
//! Invariants
//! * A body that ends before its coding does, or is none of that coding, is broken off and never whole.
//! * Memory is bounded: input is decoded in small pieces, however much comes of them.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame, SizeHint};

use crate::upstream::BoxError;

/// Input is decoded in pieces of this size; each makes at most about a thousand times as much.
const PIECE_BYTES: usize = 4096;

/// A coding that can be taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
    Chunked,
}

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer came in the transfer coding `{0}`, which nobody asked for")]
pub(crate) struct UnknownCoding(String);

/// Returns the codings that a header lists, in the order in which they were applied.
fn codings_of(headers: &HeaderMap, name: &HeaderName) -> Result<Vec<Coding>, UnknownCoding> {
    let values = headers.get_all(name).into_iter();
    let words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let words = words.map(<[u8]>::trim_ascii).filter(|word| !word.is_empty());
    words
        .map(|word| match word.to_ascii_lowercase().as_slice() {
            b"identity" => Ok(Coding::Identity),
            b"gzip" | b"x-gzip" => Ok(Coding::Gzip),
            b"chunked" => Ok(Coding::Chunked),
            other => Err(UnknownCoding(String::from_utf8_lossy(other).into_owned())),
        })
        .collect()
}

/// A body whose codings are taken off.
#[derive(Debug)]
pub(crate) struct Decoded<B> {
    body: B,
    /// The first one takes off what was put on last.
    decoders: Vec<Decoder>,
    input: Bytes,
    /// How many bytes are still to come, where the connection does not tell the end.
    left: Option<u64>,
    is_ended: bool,
    is_done: bool,
}

#[derive(Debug)]
struct Decoder {
    writer: MultiGzDecoder<Vec<u8>>,
    is_empty: bool,
}

impl Decoder {
    fn new() -> Self {
        Self { writer: MultiGzDecoder::new(Vec::new()), is_empty: true }
    }

    fn decode(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        self.is_empty &= piece.is_empty();
        self.writer.write_all(piece)?;
        Ok(std::mem::take(self.writer.get_mut()))
    }

    /// Returns what was left; an empty body needs no end of its coding.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        if !self.is_empty {
            self.writer.try_finish()?;
        }
        Ok(std::mem::take(self.writer.get_mut()))
    }
}

impl<B> Decoded<B> {
    /// Takes off the transfer codings that an answer's head names, but for chunks, which the client reads. A length that is told
    /// beside them does not count (RFC 9112, section 6.3).
    ///
    /// # Errors
    /// A coding that cannot be taken off.
    pub(crate) fn of_answer(headers: &mut HeaderMap, body: B) -> Result<Self, UnknownCoding> {
        let mut decoded = Self {
            body,
            decoders: Vec::new(),
            input: Bytes::new(),
            left: None,
            is_ended: false,
            is_done: false,
        };
        let codings = codings_of(headers, &header::TRANSFER_ENCODING)?;
        decoded.push_decoders(&codings);
        if !decoded.decoders.is_empty() {
            headers.remove(header::CONTENT_LENGTH);
        }
        // `identity` was a coding once (RFC 2616). It hides the length from clients that have forgotten it.
        if !codings.is_empty() && codings.iter().all(|coding| *coding == Coding::Identity) {
            let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            decoded.left = length.and_then(|length| length.trim().parse().ok());
        }
        Ok(decoded)
    }

    /// Takes off the content codings as well, if all of them can be, and what the head says of the coded body.
    pub(crate) fn take_off_content_codings(&mut self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CONTENT_ENCODING) {
            return;
        }
        let Ok(codings) = codings_of(headers, &header::CONTENT_ENCODING) else { return };
        if codings.contains(&Coding::Chunked) {
            return;
        }
        headers.remove(header::CONTENT_ENCODING);
        if !codings.contains(&Coding::Gzip) {
            return;
        }
        self.push_decoders(&codings);
        let is_empty = headers.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
        if !is_empty {
            headers.remove(header::CONTENT_LENGTH);
        }
        for digest in ["content-md5", "content-digest", "repr-digest", "digest"] {
            headers.remove(digest);
        }
        // A strong tag stands for the coded bytes.
        let tag = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let weak = tag.filter(|tag| !tag.starts_with("W/")).map(|tag| format!("W/{tag}"));
        if let Some(weak) = weak.and_then(|weak| weak.parse().ok()) {
            headers.insert(header::ETAG, weak);
        }
    }

    fn push_decoders(&mut self, codings: &[Coding]) {
        let count = codings.iter().filter(|coding| **coding == Coding::Gzip).count();
        self.decoders.extend((0..count).map(|_| Decoder::new()));
    }

    /// Decodes the next piece of the input, or what is left at its end; nothing if more input is needed or all is done.
    fn decode(&mut self) -> io::Result<Option<Bytes>> {
        while !self.input.is_empty() {
            let piece = self.input.split_to(self.input.len().min(PIECE_BYTES));
            let decoded = self.through(0, piece.to_vec())?;
            if !decoded.is_empty() {
                return Ok(Some(decoded.into()));
            }
        }
        if self.is_ended && !self.is_done {
            self.is_done = true;
            let mut rest = Vec::new();
            for index in 0..self.decoders.len() {
                let Some(decoder) = self.decoders.get_mut(index) else { break };
                let own = decoder.finish()?;
                rest.extend(self.through(index + 1, own)?);
            }
            return Ok(Some(Bytes::from(rest)).filter(|rest| !rest.is_empty()));
        }
        Ok(None)
    }

    /// Sends bytes through the decoders from the one with this index on.
    fn through(&mut self, from: usize, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        for decoder in self.decoders.iter_mut().skip(from) {
            bytes = decoder.decode(&bytes)?;
        }
        Ok(bytes)
    }
}

impl<B> Decoded<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    /// Reads on, and ends where the length says so.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == Some(0) {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let frame = frame.map(|frame| frame.map_err(Into::into));
        let Some(left) = &mut self.left else { return Poll::Ready(frame) };
        Poll::Ready(match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= data.len() as u64;
                    Some(Ok(Frame::data(data)))
                }
                Err(frame) => Some(Ok(frame)),
            },
            None => Some(Err("the body ended before its length".into())),
            error => error,
        })
    }
}

impl<B> Body for Decoded<B>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.decoders.is_empty() {
            return this.poll_body(cx);
        }
        loop {
            match this.decode() {
                Ok(Some(decoded)) => return Poll::Ready(Some(Ok(Frame::data(decoded)))),
                Ok(None) if this.is_done => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            match ready!(this.poll_body(cx)) {
                None => this.is_ended = true,
                // Trailers tell of the coded body.
                Some(Ok(frame)) => this.input = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        if self.decoders.is_empty() {
            self.left == Some(0) || self.body.is_end_stream()
        } else {
            self.is_done
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (self.decoders.is_empty(), self.left) {
            (true, Some(left)) => SizeHint::with_exact(left),
            (true, None) => self.body.size_hint(),
            (false, _) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Decoded, UnknownCoding};
    use bytes::Bytes;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::stream;
    use http::{HeaderMap, HeaderName, HeaderValue, header};
    use http_body::Frame;
    use http_body_util::{BodyExt, StreamBody};
    use std::convert::Infallible;
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn headers(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    /// Reads a body that comes in pieces of `size` bytes; nothing if it is broken.
    async fn read(head: &HeaderMap, body: &[u8], size: usize) -> Option<Vec<u8>> {
        let mut head = head.clone();
        let pieces: Vec<_> = body
            .chunks(size)
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(stream::iter(pieces));
        let mut decoded = Decoded::of_answer(&mut head, body).ok()?;
        decoded.take_off_content_codings(&mut head);
        Some(decoded.collect().await.ok()?.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn codings_are_taken_off_in_pieces_of_any_size() {
        let text: Vec<u8> = (0..50_000_u32).flat_map(u32::to_be_bytes).collect();
        let coded = gzip(&text);
        let two = [gzip(b"one"), gzip(b"two")].concat();
        let (te, ce) = (header::TRANSFER_ENCODING, header::CONTENT_ENCODING);
        for size in [1, 7, 4096, 1_000_000] {
            for name in [&te, &ce] {
                for value in ["gzip", "GZip", "x-gzip", "identity, gzip"] {
                    let head = headers(&[(name.clone(), value)]);
                    assert_eq!(read(&head, &coded, size).await.as_ref(), Some(&text), "{value}");
                }
                let head = headers(&[(name.clone(), "identity")]);
                assert_eq!(read(&head, &text, size).await.as_ref(), Some(&text));
            }
            let both = headers(&[(te.clone(), "gzip, chunked"), (ce.clone(), "gzip")]);
            assert_eq!(read(&both, &gzip(&coded), size).await.as_ref(), Some(&text));
            let head = headers(&[(ce.clone(), "gzip")]);
            assert_eq!(read(&head, &two, size).await.as_deref(), Some(&b"onetwo"[..]));
            // A piece, or something else, is no body.
            assert_eq!(read(&head, &coded[..coded.len() - 5], size).await, None);
            assert_eq!(read(&head, b"hello", size).await, None);
            assert_eq!(read(&head, b"", size).await.as_deref(), Some(&b""[..]));
            // What nobody can take off stays, and is told.
            let head = headers(&[(ce.clone(), "br")]);
            assert_eq!(read(&head, &coded, size).await.as_ref(), Some(&coded));
        }
        let mut head = headers(&[(te, "compress, chunked")]);
        let unknown = Decoded::of_answer(&mut head, ()).err();
        assert_eq!(unknown, Some(UnknownCoding("compress".to_owned())));
    }

    #[tokio::test]
    async fn a_length_counts_beside_the_coding_that_is_none() {
        let head =
            headers(&[(header::TRANSFER_ENCODING, "identity"), (header::CONTENT_LENGTH, "5")]);
        assert_eq!(read(&head, b"hello and more", 3).await.as_deref(), Some(&b"hello"[..]));
        assert_eq!(read(&head, b"hell", 3).await, None);
    }

    #[test]
    fn a_head_says_nothing_of_the_coded_body_any_more() {
        let mut head = headers(&[
            (header::CONTENT_ENCODING, "gzip"),
            (header::CONTENT_LENGTH, "77"),
            (header::ETAG, "\"a\""),
            (header::VARY, "Accept-Encoding"),
        ]);
        let mut decoded = Decoded::of_answer(&mut head, ()).unwrap();
        decoded.take_off_content_codings(&mut head);
        assert_eq!(head, headers(&[(header::ETAG, "W/\"a\""), (header::VARY, "Accept-Encoding")]));
    }
}
