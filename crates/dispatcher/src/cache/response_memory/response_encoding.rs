//! Encodings of bodies: their selection and creation.

use std::io::Write;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

/// The minimum size in bytes of an encoded body: an encoding would not make smaller ones shorter.
pub(crate) const MIN_ENCODED_BYTES: u64 = 1024;
/// The maximum size in bytes of a body to encode: a larger download is rarely text.
pub(crate) const MAX_ENCODED_BYTES: u64 = 4 * 1024 * 1024;

/// A medium Brotli quality: pages are encoded once and sent often, but a flush causes many encodings at once.
const BROTLI_QUALITY: i32 = 6;
const BROTLI_WINDOW: i32 = 22;
const ZSTD_LEVEL: i32 = 9;

/// An encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseEncoding {
    Brotli,
    Zstd,
    Gzip,
}

impl ResponseEncoding {
    /// All encodings, the most effective first.
    pub(crate) const ALL: [Self; 3] = [Self::Brotli, Self::Zstd, Self::Gzip];

    /// Returns the name in headers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    /// Encodes a body; returns `None` if that saves too little.
    pub(crate) fn encode(self, body: &[u8]) -> Option<Bytes> {
        let encoded = match self {
            Self::Brotli => encode_brotli(body),
            Self::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
            Self::Gzip => encode_gzip(body),
        };
        let encoded = encoded.ok()?;
        let is_worth_it = encoded.len() < body.len() - body.len() / 16;
        is_worth_it.then(|| Bytes::from(encoded))
    }
}

fn encode_brotli(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let parameters = brotli::enc::BrotliEncoderParams {
        quality: BROTLI_QUALITY,
        lgwin: BROTLI_WINDOW,
        size_hint: body.len(),
        ..Default::default()
    };
    let mut encoded = Vec::with_capacity(body.len() / 3);
    brotli::BrotliCompress(&mut &*body, &mut encoded, &parameters)?;
    Ok(encoded)
}

fn encode_gzip(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let encoded = Vec::with_capacity(body.len() / 3);
    let mut encoder = flate2::write::GzEncoder::new(encoded, flate2::Compression::new(7));
    encoder.write_all(body)?;
    encoder.finish()
}

/// Chooses an encoding that `accepted`, the value of `Accept-Encoding`, allows and for which `is_there` holds.
///
/// The visitor's weights take precedence, then the saving. The unencoded body ranks after any encoding of the same
/// weight.
pub(crate) fn choose_encoding(
    accepted: &[u8],
    is_there: impl Fn(ResponseEncoding) -> bool,
) -> Option<ResponseEncoding> {
    let accepted = std::str::from_utf8(accepted).ok()?;
    let identity_weight = encoding_weight(accepted, "identity");
    let mut best = None;
    for coding in ResponseEncoding::ALL {
        let weight = encoding_weight(accepted, coding.name())
            .or(encoding_weight(accepted, "*"))
            .unwrap_or(0);
        let beats = best.is_none_or(|(_, best_weight)| weight > best_weight);
        if weight > 0 && weight >= identity_weight.unwrap_or(0) && beats && is_there(coding) {
            best = Some((coding, weight));
        }
    }
    best.map(|(coding, _)| coding)
}

/// Returns the weight of a coding in thousandths; `None` if it is not named.
fn encoding_weight(accepted: &str, name: &str) -> Option<u32> {
    accepted.split(',').find_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let is_same = parts.next().is_some_and(|own| {
            own.eq_ignore_ascii_case(name) || (name == "gzip" && own.eq_ignore_ascii_case("x-gzip"))
        });
        if !is_same {
            return None;
        }
        let weight = parts.find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim().eq_ignore_ascii_case("q").then(|| parse_weight_thousandths(value.trim()))
        });
        Some(weight.unwrap_or(1000))
    })
}

/// Parses a weight such as `0.8`; an invalid one counts as 0.
fn parse_weight_thousandths(text: &str) -> u32 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return 0;
    }
    match whole {
        "1" => 1000,
        "0" => format!("{part:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

/// Returns true if a response with this head may be encoded.
pub(crate) fn is_encodable(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let kind = kind.to_ascii_lowercase();
    let is_text = kind.starts_with("text/")
        || kind.ends_with("+xml")
        || kind.ends_with("+json")
        || [
            "application/javascript",
            "application/json",
            "application/manifest",
            "application/xml",
            "application/wasm",
            "application/vnd.ms-fontobject",
            "font/ttf",
            "font/otf",
            "image/bmp",
            "image/x-icon",
            "image/vnd.microsoft.icon",
        ]
        .contains(&kind.as_str());
    let is_fixed = headers.get_all(header::CACHE_CONTROL).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("no-transform"))
    });
    is_text && !is_fixed && !headers.contains_key(header::CONTENT_ENCODING)
}

/// Adds `Accept-Encoding` to `Vary`, for downstream caches.
pub(crate) fn add_vary_accept_encoding(headers: &mut HeaderMap) {
    let names = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
        text.split(',').any(|name| matches!(name.trim(), "accept-encoding" | "*"))
    };
    if !headers.get_all(header::VARY).iter().any(names) {
        headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// Returns the tag of an encoded body, which differs from that of the unencoded body.
pub(crate) fn encoded_etag(tag: &HeaderValue, coding: ResponseEncoding) -> HeaderValue {
    let text = tag.to_str().unwrap_or("\"\"");
    let inner = text.strip_suffix('"').unwrap_or(text);
    HeaderValue::from_str(&format!("{inner}-{}\"", coding.name())).unwrap_or_else(|_| tag.clone())
}

#[cfg(test)]
mod tests {
    use super::{
        ResponseEncoding, choose_encoding, encoded_etag, is_encodable, parse_weight_thousandths,
    };
    use http::{HeaderMap, HeaderValue};
    use std::io::Read;

    #[test]
    fn the_visitors_weights_decide_then_the_saving() {
        use ResponseEncoding::{Brotli, Gzip, Zstd};
        let check = |accepted: &str, expected: Option<ResponseEncoding>| {
            assert_eq!(choose_encoding(accepted.as_bytes(), |_| true), expected, "{accepted}");
        };
        check("", None);
        check("gzip, deflate, br, zstd", Some(Brotli));
        check("gzip, deflate", Some(Gzip));
        check("GZIP;q=1.0, br;q=0.5", Some(Gzip));
        check("zstd, gzip", Some(Zstd));
        check("br;q=0, gzip;q=0.001", Some(Gzip));
        check("*", Some(Brotli));
        check("*;q=0", None);
        check("*, br;q=0", Some(Zstd));
        check("identity", None);
        check("identity, gzip;q=0.5", None);
        check("identity;q=0.5, gzip;q=0.5", Some(Gzip));
        check("identity;q=0, gzip", Some(Gzip));
        check("gzip;q=x, br;q=2", None);
        check("x-gzip", Some(Gzip));
        check("brotli", None);
        assert_eq!(choose_encoding(b"br, gzip", |coding| coding == Gzip), Some(Gzip));
        assert_eq!(choose_encoding(b"br", |coding| coding == Gzip), None);
        assert_eq!(choose_encoding(b"\xff", |_| true), None);
        for (text, expected) in
            [("1", 1000), ("0.8", 800), ("0.125", 125), ("0.", 0), ("0.1234", 0)]
        {
            assert_eq!(parse_weight_thousandths(text), expected, "{text}");
        }
    }

    #[test]
    fn encoded_bodies_decode_to_themselves() {
        let body: String = (0..3000).map(|number| format!("<p>{number}</p>")).collect();
        let body = body.as_bytes();
        let mut decoded = Vec::new();
        let gzip = ResponseEncoding::Gzip.encode(body).unwrap();
        flate2::read::GzDecoder::new(&*gzip).read_to_end(&mut decoded).unwrap();
        assert_eq!(decoded, body);
        let zstd = ResponseEncoding::Zstd.encode(body).unwrap();
        assert_eq!(zstd::bulk::decompress(&zstd, body.len()).unwrap(), body);
        let mut decoded = Vec::new();
        let encoded = ResponseEncoding::Brotli.encode(body).unwrap();
        brotli::BrotliDecompress(&mut &*encoded, &mut decoded).unwrap();
        assert_eq!(decoded, body);
        assert!(ResponseEncoding::Gzip.encode(b"short").is_none());
    }

    #[test]
    fn only_text_is_encoded() {
        let check = |kind: &str, control: &str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", HeaderValue::from_str(kind).unwrap());
            headers.insert("cache-control", HeaderValue::from_str(control).unwrap());
            assert_eq!(is_encodable(&headers), expected, "{kind} {control}");
        };
        check("text/html; charset=gbk", "max-age=1", true);
        check("image/svg+xml", "", true);
        check("image/png", "", false);
        check("application/octet-stream", "", false);
        check("text/html", "public, no-transform", false);
    }

    #[test]
    fn each_encoding_has_its_own_tag() {
        let tag = |text: &'static str| {
            encoded_etag(&HeaderValue::from_static(text), ResponseEncoding::Brotli)
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(tag("\"abc\""), "\"abc-br\"");
        assert_eq!(tag("W/\"abc\""), "W/\"abc-br\"");
    }
}
