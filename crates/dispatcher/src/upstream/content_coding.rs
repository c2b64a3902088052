//! Decoding of renders' bodies as they arrive.
//!
//! Input: a response's head and body. Output: the decoded body.
//!
//! Transfer codings (`Transfer-Encoding: gzip, chunked`) belong to one connection, so they are removed from each
//! response. An unsupported one makes the response unusable. Content codings (`Content-Encoding: gzip`, and `br`,
//! `zstd` and `deflate`) are removed where a page is stored: it was requested without `Accept-Encoding`, and is served
//! to visitors who accept no coding. Visitors who accept one get the page in a coding of `response_memory::encode`.
//!
//! Invariants
//! * A body that ends before its coding does, or is not valid in that coding, is aborted and never treated as complete.
//! * Memory is bounded: input is decoded in small pieces, and a body is aborted if one piece expands too much.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::{HeaderMap, HeaderName, header};
use http_body::{Body, Frame, SizeHint};

/// The error of a body that a render or a visitor sends.
pub(crate) type UpstreamBoxError = Box<dyn std::error::Error + Send + Sync>;

/// The size in bytes of the pieces in which input is decoded; each expands at most about a thousandfold.
const INPUT_PIECE_BYTES: usize = 4096;

/// The maximum output of one piece in bytes; a body that expands more is aborted. Brotli and zstd have no limit of
/// their own.
const MAX_PIECE_OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// The maximum window size of zstd; larger windows are not for content codings (RFC 9659).
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// A coding that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemovableCoding {
    Identity,
    Gzip,
    /// zlib, or raw deflate, which some servers send under this name.
    Deflate,
    Brotli,
    Zstd,
    Chunked,
}

/// The coding that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the response has the transfer coding `{0}`, which was not requested")]
pub(crate) struct UnknownCoding(String);

/// Returns the codings that a header lists, in the order in which they were applied.
fn parse_codings(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Vec<RemovableCoding>, UnknownCoding> {
    let values = headers.get_all(name).into_iter();
    let words = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let words = words.map(<[u8]>::trim_ascii).filter(|coding_name| !coding_name.is_empty());
    words
        .map(|coding_name| match coding_name.to_ascii_lowercase().as_slice() {
            b"identity" => Ok(RemovableCoding::Identity),
            b"gzip" | b"x-gzip" => Ok(RemovableCoding::Gzip),
            b"deflate" => Ok(RemovableCoding::Deflate),
            // These two are not transfer codings.
            b"br" if name == header::CONTENT_ENCODING => Ok(RemovableCoding::Brotli),
            b"zstd" if name == header::CONTENT_ENCODING => Ok(RemovableCoding::Zstd),
            b"chunked" => Ok(RemovableCoding::Chunked),
            unknown_coding => {
                Err(UnknownCoding(String::from_utf8_lossy(unknown_coding).into_owned()))
            }
        })
        .collect()
}

/// A body that is decoded as it is read.
#[derive(Debug)]
pub(crate) struct DecodedBody<B> {
    body: B,
    /// The first one decodes the coding that was applied last.
    decoders: Vec<CodingDecoder>,
    input: Bytes,
    /// The number of bytes still to come, if the connection does not mark the end.
    remaining_length: Option<u64>,
    is_ended: bool,
    is_done: bool,
}

/// The output of a decoder for one piece.
#[derive(Debug, Default)]
struct DecoderOutput(Vec<u8>);

impl Write for DecoderOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_PIECE_OUTPUT_BYTES {
            let reason = "the response body expands too much when decoded";
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type ZstdDecoder = zstd::stream::zio::Writer<DecoderOutput, zstd::stream::raw::Decoder<'static>>;

struct CodingDecoder {
    engine: CodingDecoderEngine,
    is_empty: bool,
}

enum CodingDecoderEngine {
    Gzip(MultiGzDecoder<DecoderOutput>),
    Deflate(DeflateDecoder),
    Brotli(Box<brotli::DecompressorWriter<DecoderOutput>>),
    Zstd(ZstdDecoder),
}

impl std::fmt::Debug for CodingDecoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CodingDecoder")
            .field("is_empty", &self.is_empty)
            .finish_non_exhaustive()
    }
}

impl CodingDecoder {
    /// Creates the decoder of a coding; `None` for a coding that changes no bytes.
    fn new_for_coding(coding: RemovableCoding) -> io::Result<Option<Self>> {
        let engine = match coding {
            RemovableCoding::Identity | RemovableCoding::Chunked => return Ok(None),
            RemovableCoding::Gzip => {
                CodingDecoderEngine::Gzip(MultiGzDecoder::new(DecoderOutput::default()))
            }
            RemovableCoding::Deflate => CodingDecoderEngine::Deflate(DeflateDecoder::default()),
            RemovableCoding::Brotli => {
                let output = DecoderOutput::default();
                CodingDecoderEngine::Brotli(Box::new(brotli::DecompressorWriter::new(
                    output,
                    INPUT_PIECE_BYTES,
                )))
            }
            RemovableCoding::Zstd => {
                let mut decoder = zstd::stream::raw::Decoder::new()?;
                let window = zstd::zstd_safe::DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX);
                decoder.set_parameter(window)?;
                CodingDecoderEngine::Zstd(ZstdDecoder::new(DecoderOutput::default(), decoder))
            }
        };
        Ok(Some(Self { engine, is_empty: true }))
    }

    fn decode(&mut self, piece: &[u8]) -> io::Result<Vec<u8>> {
        self.is_empty &= piece.is_empty();
        match &mut self.engine {
            CodingDecoderEngine::Gzip(decoder) => decoder.write_all(piece)?,
            CodingDecoderEngine::Deflate(decoder) => decoder.write_all(piece)?,
            CodingDecoderEngine::Brotli(decoder) => decoder.write_all(piece)?,
            CodingDecoderEngine::Zstd(decoder) => {
                decoder.write_all(piece)?;
                decoder.flush()?;
            }
        }
        Ok(self.take_output())
    }

    /// Returns the remaining output; an empty body needs no end marker of its coding.
    fn finish(&mut self) -> io::Result<Vec<u8>> {
        if !self.is_empty {
            match &mut self.engine {
                CodingDecoderEngine::Gzip(decoder) => decoder.try_finish()?,
                CodingDecoderEngine::Deflate(decoder) => decoder.finish()?,
                CodingDecoderEngine::Brotli(decoder) => decoder.close()?,
                CodingDecoderEngine::Zstd(decoder) => decoder.finish()?,
            }
        }
        Ok(self.take_output())
    }

    fn take_output(&mut self) -> Vec<u8> {
        let output = match &mut self.engine {
            CodingDecoderEngine::Gzip(decoder) => decoder.get_mut(),
            CodingDecoderEngine::Deflate(decoder) => &mut decoder.output,
            CodingDecoderEngine::Brotli(decoder) => decoder.get_mut(),
            CodingDecoderEngine::Zstd(decoder) => decoder.writer_mut(),
        };
        std::mem::take(&mut output.0)
    }
}

/// Decodes `deflate`, with the zlib frame or raw.
#[derive(Default)]
struct DeflateDecoder {
    /// The first byte, stored until the second one shows if there is a frame.
    first_byte: Option<u8>,
    engine: Option<Decompress>,
    is_ended: bool,
    output: DecoderOutput,
}

impl DeflateDecoder {
    fn write_all(&mut self, piece: &[u8]) -> io::Result<()> {
        let (mut input, joined_piece);
        match (self.first_byte, &self.engine, piece) {
            (None, None, [first]) => {
                self.first_byte = Some(*first);
                return Ok(());
            }
            (Some(first), None, piece) => {
                joined_piece = [&[first][..], piece].concat();
                input = joined_piece.as_slice();
            }
            _ => input = piece,
        }
        if self.engine.is_none() {
            let [first, second, ..] = input else { return Ok(()) };
            let is_framed =
                first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31);
            self.engine = Some(Decompress::new(is_framed));
        }
        let Some(engine) = &mut self.engine else { return Ok(()) };
        let mut buffer = [0; 4 * INPUT_PIECE_BYTES];
        while !self.is_ended {
            let (read, written) = (engine.total_in(), engine.total_out());
            let status = engine.decompress(input, &mut buffer, FlushDecompress::None)?;
            let length = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(0);
            let read = length(engine.total_in(), read);
            let written = length(engine.total_out(), written);
            self.output.write_all(buffer.get(..written).unwrap_or_default())?;
            input = input.get(read..).unwrap_or_default();
            self.is_ended = status == Status::StreamEnd;
            // With output space left, this input yields no more.
            if written < buffer.len() && (input.is_empty() || read == 0) {
                break;
            }
        }
        Ok(())
    }

    fn finish(&self) -> io::Result<()> {
        match self.is_ended {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl<B> DecodedBody<B> {
    /// Removes the transfer codings that a response's head names, except chunked, which the client reads. A length
    /// given together with them is ignored (RFC 9112, section 6.3).
    ///
    /// # Errors
    /// Fails for a coding that cannot be decoded.
    pub(crate) fn from_response(headers: &mut HeaderMap, body: B) -> Result<Self, UnknownCoding> {
        let mut decoded = Self {
            body,
            decoders: Vec::new(),
            input: Bytes::new(),
            remaining_length: None,
            is_ended: false,
            is_done: false,
        };
        let codings = parse_codings(headers, &header::TRANSFER_ENCODING)?;
        decoded.push_decoders(&codings).map_err(|error| UnknownCoding(error.to_string()))?;
        if !decoded.decoders.is_empty() {
            headers.remove(header::CONTENT_LENGTH);
        }
        // `identity` was a coding in RFC 2616. It hides the length from clients that no longer support it.
        if !codings.is_empty() && codings.iter().all(|coding| *coding == RemovableCoding::Identity)
        {
            let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            decoded.remaining_length = length.and_then(|length| length.trim().parse().ok());
        }
        Ok(decoded)
    }

    /// Removes the content codings as well, if all of them are supported, and the headers that describe the encoded
    /// body.
    pub(crate) fn decode_content_codings(&mut self, headers: &mut HeaderMap) {
        if !headers.contains_key(header::CONTENT_ENCODING) {
            return;
        }
        let Ok(codings) = parse_codings(headers, &header::CONTENT_ENCODING) else { return };
        if codings.contains(&RemovableCoding::Chunked) {
            return;
        }
        if self.push_decoders(&codings).is_err() {
            return;
        }
        headers.remove(header::CONTENT_ENCODING);
        if codings.iter().all(|coding| *coding == RemovableCoding::Identity) {
            return;
        }
        let is_empty = headers.get(header::CONTENT_LENGTH).is_some_and(|length| length == "0");
        if !is_empty {
            headers.remove(header::CONTENT_LENGTH);
        }
        for digest in ["content-md5", "content-digest", "repr-digest", "digest"] {
            headers.remove(digest);
        }
        // A strong tag identifies the encoded bytes.
        let tag = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let weak = tag.filter(|tag| !tag.starts_with("W/")).map(|tag| format!("W/{tag}"));
        if let Some(weak) = weak.and_then(|weak| weak.parse().ok()) {
            headers.insert(header::ETAG, weak);
        }
    }

    /// Adds decoders for all codings, or none of them.
    fn push_decoders(&mut self, codings: &[RemovableCoding]) -> io::Result<()> {
        let decoders = codings.iter().rev().map(|coding| CodingDecoder::new_for_coding(*coding));
        let decoders: Vec<Option<CodingDecoder>> = decoders.collect::<io::Result<_>>()?;
        self.decoders.extend(decoders.into_iter().flatten());
        Ok(())
    }

    /// Decodes the next piece of the input, or the remainder at its end; returns `None` if more input is needed or
    /// decoding is complete.
    fn decode_next(&mut self) -> io::Result<Option<Bytes>> {
        while !self.input.is_empty() {
            let piece = self.input.split_to(self.input.len().min(INPUT_PIECE_BYTES));
            let decoded = self.decode_from(0, piece.to_vec())?;
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
                rest.extend(self.decode_from(index + 1, own)?);
            }
            return Ok(Some(Bytes::from(rest)).filter(|rest| !rest.is_empty()));
        }
        Ok(None)
    }

    /// Passes bytes through the decoders, starting at this index.
    fn decode_from(&mut self, from: usize, mut bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        for decoder in self.decoders.iter_mut().skip(from) {
            bytes = decoder.decode(&bytes)?;
        }
        Ok(bytes)
    }
}

impl<B> DecodedBody<B>
where
    B: Body<Data = Bytes, Error: Into<UpstreamBoxError>> + Unpin,
{
    /// Polls the body, which ends after its announced length.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBoxError>>> {
        if self.remaining_length == Some(0) {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let frame = frame.map(|frame| frame.map_err(Into::into));
        let Some(left) = &mut self.remaining_length else { return Poll::Ready(frame) };
        Poll::Ready(match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= data.len() as u64;
                    Some(Ok(Frame::data(data)))
                }
                Err(frame) => Some(Ok(frame)),
            },
            None => Some(Err("the body is shorter than its declared length".into())),
            error => error,
        })
    }
}

impl<B> Body for DecodedBody<B>
where
    B: Body<Data = Bytes, Error: Into<UpstreamBoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = UpstreamBoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamBoxError>>> {
        let this = &mut *self;
        if this.decoders.is_empty() {
            return this.poll_body(cx);
        }
        loop {
            match this.decode_next() {
                Ok(Some(decoded)) => return Poll::Ready(Some(Ok(Frame::data(decoded)))),
                Ok(None) if this.is_done => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
            match ready!(this.poll_body(cx)) {
                None => this.is_ended = true,
                // Trailers describe the encoded body.
                Some(Ok(frame)) => this.input = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        if self.decoders.is_empty() {
            self.remaining_length == Some(0) || self.body.is_end_stream()
        } else {
            self.is_done
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (self.decoders.is_empty(), self.remaining_length) {
            (true, Some(left)) => SizeHint::with_exact(left),
            (true, None) => self.body.size_hint(),
            (false, _) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{DecodedBody, UnknownCoding};
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

    /// Reads a body that arrives in pieces of `size` bytes; returns `None` if it is broken.
    async fn read(head: &HeaderMap, body: &[u8], size: usize) -> Option<Vec<u8>> {
        let mut head = head.clone();
        let pieces: Vec<_> = body
            .chunks(size)
            .map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))))
            .collect();
        let body = StreamBody::new(stream::iter(pieces));
        let mut decoded = DecodedBody::from_response(&mut head, body).ok()?;
        decoded.decode_content_codings(&mut head);
        Some(decoded.collect().await.ok()?.to_bytes().to_vec())
    }

    #[tokio::test]
    async fn codings_are_taken_off_in_pieces_of_any_size() {
        let text: Vec<u8> = (0..50_000_u32).flat_map(u32::to_be_bytes).collect();
        let coded = gzip(&text);
        let two_members = [gzip(b"one"), gzip(b"two")].concat();
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
            assert_eq!(read(&head, &two_members, size).await.as_deref(), Some(&b"onetwo"[..]));
            // A truncated or invalid body is rejected.
            assert_eq!(read(&head, &coded[..coded.len() - 5], size).await, None);
            assert_eq!(read(&head, b"hello", size).await, None);
            assert_eq!(read(&head, b"", size).await.as_deref(), Some(&b""[..]));
            // An unsupported coding stays, and its header too.
            let head = headers(&[(ce.clone(), "compress")]);
            assert_eq!(read(&head, &coded, size).await.as_ref(), Some(&coded));
        }
        let mut head = headers(&[(te, "compress, chunked")]);
        let unknown = DecodedBody::from_response(&mut head, ()).err();
        assert_eq!(unknown, Some(UnknownCoding("compress".to_owned())));
    }

    fn brotli(text: &[u8]) -> Vec<u8> {
        let mut coded = Vec::new();
        let parameters = brotli::enc::BrotliEncoderParams { quality: 2, ..Default::default() };
        brotli::BrotliCompress(&mut &*text, &mut coded, &parameters).unwrap();
        coded
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn bare_deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[tokio::test]
    async fn each_content_coding_is_taken_off() {
        let text: Vec<u8> = (0..50_000_u32).flat_map(|number| (number / 7).to_be_bytes()).collect();
        let zstd = |text: &[u8]| zstd::bulk::compress(text, 3).unwrap();
        let ce = header::CONTENT_ENCODING;
        for size in [1, 7, 4096, 1_000_000] {
            for (name, coded) in [
                ("br", brotli(&text)),
                ("zstd", zstd(&text)),
                ("deflate", zlib(&text)),
                ("deflate", bare_deflate(&text)),
                ("gzip, br", brotli(&gzip(&text))),
                ("br, zstd", zstd(&brotli(&text))),
            ] {
                let head = headers(&[(ce.clone(), name)]);
                assert_eq!(read(&head, &coded, size).await.as_ref(), Some(&text), "{name} {size}");
                // A truncated or invalid body is rejected.
                assert_eq!(read(&head, &coded[..coded.len() - 5], size).await, None, "{name}");
                assert_eq!(read(&head, b"\xff\xff\xff\xff\xff", size).await, None, "{name}");
                assert_eq!(read(&head, b"", size).await.as_deref(), Some(&b""[..]), "{name}");
            }
        }
        // A small input that expands to a huge one is rejected.
        let zeros = vec![0; 64 * 1024 * 1024];
        for (name, coded) in [("br", brotli(&zeros)), ("zstd", zstd(&zeros))] {
            assert_eq!(read(&headers(&[(ce.clone(), name)]), &coded, 65536).await, None, "{name}");
        }
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
        let mut decoded = DecodedBody::from_response(&mut head, ()).unwrap();
        decoded.decode_content_codings(&mut head);
        assert_eq!(head, headers(&[(header::ETAG, "W/\"a\""), (header::VARY, "Accept-Encoding")]));
    }
}
