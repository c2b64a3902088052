//! The response to a sampler, as extractors and assertions access it.

use std::borrow::Cow;
use std::io::Read as _;
use std::sync::Arc;

use super::charset::JavaCharset;

/// A response with its body decoded.
#[derive(Debug, Clone, Default)]
pub struct SampleResponse {
    /// The URL of the request.
    pub url: String,
    /// `200`, or `Non HTTP response code: ...`.
    pub code: String,
    /// The reason phrase.
    pub message: String,
    /// Status line and headers as received.
    pub headers: String,
    /// The request as sent; `None` for samples without one.
    pub request: Option<Arc<[u8]>>,
    /// The decoded body.
    pub body: String,
    /// Duration of the sample in milliseconds.
    pub elapsed_ms: u64,
    /// Number of received bytes.
    pub bytes: u64,
    /// Number of bytes of the body.
    pub body_bytes: u64,
    /// What scripts asked for besides the response.
    pub script_directives: ScriptDirectives,
}

/// Directives that scripts set for a sample besides its response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScriptDirectives {
    /// Set if the sample is not reported.
    pub is_ignored: bool,
    /// Set if the thread ends.
    pub stops_thread: bool,
    /// Set if all threads end.
    pub stops_test: bool,
    /// Set if the thread begins its next iteration.
    pub starts_next_loop: bool,
}

impl SampleResponse {
    /// Returns the sent headers, one line each, without the request line.
    pub(super) fn request_headers_text(&self) -> Cow<'_, str> {
        let bytes = self.request.as_deref().unwrap_or_default();
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0);
        let head = bytes.get(..end).unwrap_or_default();
        let start = head.windows(2).position(|window| window == b"\r\n").map_or(end, |at| at + 2);
        String::from_utf8_lossy(head.get(start..).unwrap_or_default())
    }

    /// Returns the request in JMeter's format: method and URL, body, and cookies.
    pub(super) fn request_text(&self) -> String {
        let Some(bytes) = self.request.as_deref() else { return String::new() };
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let body = bytes.get(end.map_or(bytes.len(), |end| end + 4)..).unwrap_or_default();
        let first = bytes.split(|byte| *byte == b' ').next().unwrap_or_default();
        let method = String::from_utf8_lossy(first);
        let mut out = format!("{method} {}\n", self.url);
        if !matches!(&*method, "HEAD" | "OPTIONS" | "TRACE") {
            out.push_str(&format!("\n{method} data:\n{}\n", String::from_utf8_lossy(body)));
        }
        let headers = self.request_headers_text();
        let cookie = |line: &str| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("cookie").then(|| value.trim().to_owned())
        };
        match headers.lines().find_map(cookie) {
            Some(cookies) => out.push_str(&format!("\nCookie Data:\n{cookies}\n")),
            None => out.push_str("\n[no cookies]\n"),
        }
        out
    }
}

/// Maximum size of a body after decompression, in bytes.
const MAX_DECODED_BODY_BYTES: u64 = 64 << 20;

/// Decodes the content coding; a body that cannot be decoded is returned unchanged.
pub fn decode_content(body: Vec<u8>, coding: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let is_sound = match coding.map(|coding| coding.trim().to_ascii_lowercase()).as_deref() {
        Some("gzip" | "x-gzip") => flate2::read::MultiGzDecoder::new(body.as_slice())
            .take(MAX_DECODED_BODY_BYTES)
            .read_to_end(&mut out)
            .is_ok(),
        Some("deflate") => {
            let wrapped = flate2::read::ZlibDecoder::new(body.as_slice())
                .take(MAX_DECODED_BODY_BYTES)
                .read_to_end(&mut out)
                .is_ok();
            wrapped || {
                out.clear();
                flate2::read::DeflateDecoder::new(body.as_slice())
                    .take(MAX_DECODED_BODY_BYTES)
                    .read_to_end(&mut out)
                    .is_ok()
            }
        }
        Some("br") => brotli::Decompressor::new(body.as_slice(), 16 * 1024)
            .take(MAX_DECODED_BODY_BYTES)
            .read_to_end(&mut out)
            .is_ok(),
        Some("zstd") => zstd::stream::read::Decoder::with_buffer(body.as_slice())
            .and_then(|decoder| decoder.take(MAX_DECODED_BODY_BYTES).read_to_end(&mut out))
            .is_ok(),
        _ => false,
    };
    if is_sound { out } else { body }
}

/// Decodes bytes by the charset of the content type.
pub fn decode_text(body: Vec<u8>, content_type: Option<&str>) -> String {
    match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            let bytes = error.into_bytes();
            let charset = content_type.and_then(|kind| {
                let lower = kind.to_ascii_lowercase();
                let at = lower.find("charset=")?;
                Some(lower.get(at + 8..)?.trim_matches(['"', ' ', ';']).to_owned())
            });
            let charset = match charset.as_deref() {
                None => JavaCharset::Latin1,
                Some(name) => JavaCharset::find(name).unwrap_or_default(),
            };
            charset.decode(&bytes).into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_request_is_written_as_jmeter_writes_it() {
        let data = |request: &str| {
            let request = Some(Arc::from(request.as_bytes()));
            SampleResponse { url: "http://h/a?b".to_owned(), request, ..SampleResponse::default() }
                .request_text()
        };
        assert_eq!(
            data("POST /a?b HTTP/1.1\r\nHost: h\r\nCookie: a=1; b=2\r\n\r\nx=y"),
            "POST http://h/a?b\n\nPOST data:\nx=y\n\nCookie Data:\na=1; b=2\n"
        );
        assert_eq!(
            data("HEAD /a?b HTTP/1.1\r\nHost: h\r\n\r\n"),
            "HEAD http://h/a?b\n\n[no cookies]\n"
        );
        assert_eq!(SampleResponse::default().request_text(), "");
    }

    #[test]
    fn bodies_are_decoded_and_what_is_none_stays_as_it_is() {
        let text = b"hello hello hello".as_slice();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        let mut brotli = Vec::new();
        brotli::BrotliCompress(&mut &*text, &mut brotli, &Default::default()).unwrap();
        let zstd = zstd::stream::encode_all(text, 1).unwrap();
        for (coding, body) in [
            ("gzip", gzip.finish().unwrap()),
            ("br", brotli),
            (" ZSTD ", zstd),
            ("identity", text.to_vec()),
        ] {
            assert_eq!(decode_content(body.clone(), Some(coding)), text, "{coding}");
            let mut broken = body;
            broken.truncate(3);
            assert_eq!(decode_content(broken.clone(), Some(coding)), broken, "{coding}");
        }
        assert_eq!(decode_content(text.to_vec(), Some("br")), text);
        assert_eq!(decode_content(text.to_vec(), None), text);
    }
}
