//! The answer to a sampler, as extractors and assertions see it.

use std::io::Read as _;

/// A response with its body decoded.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) url: String,
    /// `200`, or `Non HTTP response code: ...`.
    pub(super) code: String,
    pub(super) message: String,
    /// Status line and headers, as they arrived.
    pub(super) headers: String,
    pub(super) request_headers: String,
    pub(super) body: String,
    pub(super) elapsed_ms: u64,
    pub(super) bytes: u64,
    pub(super) body_bytes: u64,
}

/// Largest body after decompression.
const MOST: u64 = 64 << 20;

/// Undoes the content coding; a body that does not decode stays as it is.
pub(crate) fn decode(body: Vec<u8>, coding: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    let is_sound = match coding.map(|coding| coding.trim().to_ascii_lowercase()).as_deref() {
        Some("gzip" | "x-gzip") => flate2::read::MultiGzDecoder::new(body.as_slice())
            .take(MOST)
            .read_to_end(&mut out)
            .is_ok(),
        Some("deflate") => {
            let wrapped = flate2::read::ZlibDecoder::new(body.as_slice())
                .take(MOST)
                .read_to_end(&mut out)
                .is_ok();
            wrapped || {
                out.clear();
                flate2::read::DeflateDecoder::new(body.as_slice())
                    .take(MOST)
                    .read_to_end(&mut out)
                    .is_ok()
            }
        }
        _ => false,
    };
    if is_sound { out } else { body }
}

/// Turns bytes into text by the charset of the content type.
pub(crate) fn to_text(body: Vec<u8>, content_type: Option<&str>) -> String {
    let charset = content_type.and_then(|kind| {
        let lower = kind.to_ascii_lowercase();
        let at = lower.find("charset=")?;
        Some(lower.get(at + 8..)?.trim_matches(['"', ' ', ';']).to_owned())
    });
    match String::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            let bytes = error.into_bytes();
            if charset.as_deref().is_none_or(|charset| charset.starts_with("iso-8859")) {
                bytes.iter().map(|&byte| char::from(byte)).collect()
            } else {
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}
