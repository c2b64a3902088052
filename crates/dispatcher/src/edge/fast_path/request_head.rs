//! Parsing of a request head as far as the fast path needs it.
//!
//! The fast path refuses nothing: a request that is not plain is left to hyper with all its bytes, so that only one
//! server decides which requests are malformed, and where a request ends.

use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::cache::response_memory::{
    RequestFlags, RequestHeaderRole, ResponseKeyRef, header_role, may_hold_credentials,
};
use crate::edge::http2::hpack::FieldList;

/// The maximum number of headers; requests with more than a browser sends are left to hyper.
const MAX_FAST_PATH_HEADERS: usize = 48;

/// The maximum length of a head; for longer ones, hyper decides whether they are too long.
const MAX_FAST_PATH_HEAD_BYTES: usize = 12 * 1024;

/// The result of parsing the beginning of a client's input.
#[derive(Debug)]
pub(crate) enum HeadParseResult<'a> {
    /// The head is incomplete.
    Partial,
    /// A request that a cached response may match, and the length of its head.
    Eligible(FastRequest<'a>, usize),
    /// A complete request without a body, of this length.
    WithoutBody(usize),
    /// Anything else.
    Other,
}

/// A request that a cached response may match.
#[derive(Debug)]
pub(crate) struct FastRequest<'a> {
    pub(crate) response_key: ResponseKeyRef<'a>,
    /// The headers that `edge::response_plan` evaluates.
    pub(crate) conditions: Option<HeaderMap>,
    /// True if the client requests to close the connection.
    pub(crate) closes_connection: bool,
    /// The value of `Accept-Encoding`.
    pub(crate) accept_encoding: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
}

/// The accumulated result of scanning headers.
#[derive(Default)]
struct ScannedHeaders<'a> {
    host: Option<&'a [u8]>,
    connection_header_count: u32,
    closes_connection: bool,
    has_info_request: bool,
    is_eligible: bool,
    conditions: Option<HeaderMap>,
    accept_encoding: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
}

/// Parses the first request in `bytes`; the proxy in front reports by header if the client used TLS.
pub(crate) fn parse_request_head(bytes: &[u8], is_tls: bool) -> HeadParseResult<'_> {
    let mut headers =
        [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_FAST_PATH_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return HeadParseResult::Partial,
        Err(_hyper_says_what) => return HeadParseResult::Other,
    };
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version)
    else {
        return HeadParseResult::Other;
    };
    let Some(scanned) = ScannedHeaders::scan(request.headers) else {
        return HeadParseResult::Other;
    };
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        // A body is announced by its headers, regardless of the method; `CONNECT` opens a tunnel.
        return if method == "CONNECT" {
            HeadParseResult::Other
        } else {
            HeadParseResult::WithoutBody(length)
        };
    }
    let is_eligible =
        scanned.is_eligible && is_origin_form(target) && length <= MAX_FAST_PATH_HEAD_BYTES;
    let (Some(host), true) = (scanned.host, is_eligible) else {
        return HeadParseResult::WithoutBody(length);
    };
    let kind = RequestFlags::default()
        .with_flag(RequestFlags::HEAD, is_head)
        .with_flag(RequestFlags::TLS, is_tls)
        .with_flag(RequestFlags::CACHE_INFO, scanned.has_info_request);
    let plain = FastRequest {
        response_key: ResponseKeyRef { flags: kind, host, target: target.as_bytes() },
        conditions: scanned.conditions,
        closes_connection: scanned.closes_connection,
        accept_encoding: scanned.accept_encoding,
        referer: scanned.referer,
        user_agent: scanned.user_agent,
    };
    HeadParseResult::Eligible(plain, length)
}

/// Parses the fields of an HTTP/2 request without a body; returns `None` if no cached response can match, or if a field
/// is invalid.
pub(crate) fn parse_http2_fields(fields: &FieldList, is_tls: bool) -> Option<FastRequest<'_>> {
    let (mut method, mut target, mut host, mut scheme) = (None, None, None, None);
    let mut scanned = ScannedHeaders { is_eligible: true, ..ScannedHeaders::default() };
    let mut is_behind = false;
    for (name, value) in fields.iter() {
        if !value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..)) {
            return None;
        }
        let pseudo = match name {
            b":method" => &mut method,
            b":path" => &mut target,
            b":authority" => &mut host,
            b":scheme" => &mut scheme,
            _ => {
                is_behind = true;
                if !is_known_http2_field(name, value) {
                    return None;
                }
                scanned.add_header(name, value)?;
                continue;
            }
        };
        if is_behind || pseudo.replace(value).is_some() {
            return None;
        }
    }
    let is_head = match method? {
        b"GET" => false,
        b"HEAD" => true,
        _ => return None,
    };
    let target = std::str::from_utf8(target?).ok().filter(|target| is_origin_form(target))?;
    let is_usual = matches!(scheme?, b"https" | b"http") && scanned.is_eligible;
    if !is_usual || scanned.host.is_some() || scanned.connection_header_count > 0 {
        return None;
    }
    let kind = RequestFlags::HTTP2
        .with_flag(RequestFlags::HEAD, is_head)
        .with_flag(RequestFlags::TLS, is_tls)
        .with_flag(RequestFlags::CACHE_INFO, scanned.has_info_request);
    Some(FastRequest {
        response_key: ResponseKeyRef { flags: kind, host: host?, target: target.as_bytes() },
        conditions: scanned.conditions,
        closes_connection: false,
        accept_encoding: scanned.accept_encoding,
        referer: scanned.referer,
        user_agent: scanned.user_agent,
    })
}

/// Returns true if a field is allowed in HTTP/2 and known to [`header_role`].
fn is_known_http2_field(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"keep-alive" => false,
        b"te" => value == b"trailers",
        _ => !name.iter().any(u8::is_ascii_uppercase),
    }
}

impl<'a> ScannedHeaders<'a> {
    /// Scans the headers; returns `None` if there may be a body, or if the connection has special options.
    fn scan(headers: &[httparse::Header<'a>]) -> Option<Self> {
        let mut scanned = Self { is_eligible: true, ..Self::default() };
        for header in headers {
            scanned.add_header(header.name.as_bytes(), header.value)?;
        }
        (scanned.connection_header_count <= 1).then_some(scanned)
    }

    fn add_header(&mut self, name: &'a [u8], value: &'a [u8]) -> Option<()> {
        match header_role(name) {
            RequestHeaderRole::Body => return None,
            RequestHeaderRole::Host => {
                self.is_eligible &= self.host.replace(value).is_none();
            }
            RequestHeaderRole::Connection => {
                self.connection_header_count += 1;
                if value.eq_ignore_ascii_case(b"close") {
                    self.closes_connection = true;
                } else if !value.eq_ignore_ascii_case(b"keep-alive") {
                    return None;
                }
            }
            RequestHeaderRole::Cookie => self.is_eligible &= !may_hold_credentials(value),
            RequestHeaderRole::Condition => self.is_eligible &= self.add_condition(name, value),
            RequestHeaderRole::CacheInfo => self.has_info_request = true,
            RequestHeaderRole::Irrelevant => match name.len() {
                7 if name.eq_ignore_ascii_case(b"referer") => self.referer = Some(value),
                10 if name.eq_ignore_ascii_case(b"user-agent") => {
                    self.user_agent = Some(value);
                }
                _ => {}
            },
            // The first of several values counts, as in hyper.
            RequestHeaderRole::Encoding => drop(self.accept_encoding.get_or_insert(value)),
            RequestHeaderRole::Other => self.is_eligible = false,
        }
        Some(())
    }

    fn add_condition(&mut self, name: &[u8], value: &[u8]) -> bool {
        let name = HeaderName::from_bytes(name);
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) else { return false };
        self.conditions.get_or_insert_default().append(name, value);
        true
    }
}

/// Returns true if a target is a path and query that hyper accepts unchanged.
fn is_origin_form(target: &str) -> bool {
    target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::{HeadParseResult, parse_request_head};

    fn kind(head: &str) -> &'static str {
        let bytes = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
        match parse_request_head(bytes.as_bytes(), false) {
            HeadParseResult::Partial => "partial",
            HeadParseResult::Eligible(_, length) => {
                assert_eq!(length, bytes.len());
                "plain"
            }
            HeadParseResult::WithoutBody(length) => {
                assert_eq!(length, bytes.len());
                "single"
            }
            HeadParseResult::Other => "other",
        }
    }

    #[test]
    fn only_plain_requests_take_the_fast_path() {
        for (head, expected) in [
            ("GET /a.html HTTP/1.1\nHost: h", "plain"),
            ("HEAD /a.html?x=1 HTTP/1.1\nHost: h\nConnection: close", "plain"),
            ("GET /a.html HTTP/1.1\nhost: h\nconnection: Keep-Alive\nRange: bytes=0-1", "plain"),
            ("GET /a.html HTTP/1.1", "single"),
            ("GET /a.html HTTP/1.1\nHost: h\nHost: i", "single"),
            ("GET /a.html HTTP/1.1\nHost: h\nAuthorization: x", "single"),
            ("GET /a.html HTTP/1.1\nHost: h\nCookie: login-token=x", "single"),
            ("GET /a.html HTTP/1.1\nHost: h\nX-New: 1", "single"),
            ("GET http://h/a.html HTTP/1.1\nHost: h", "single"),
            ("GET /a.html#x HTTP/1.1\nHost: h", "single"),
            ("OPTIONS * HTTP/1.1\nHost: h", "single"),
            ("POST /a.html HTTP/1.1\nHost: h", "single"),
            ("POST /a.html HTTP/1.1\nHost: h\nContent-Length: 3", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nContent-Length: 0", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nTransfer-Encoding: chunked", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nUpgrade: h2c", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nExpect: 100-continue", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nConnection: close, x", "other"),
            ("GET /a.html HTTP/1.1\nHost: h\nConnection: close\nConnection: x", "other"),
            ("GET /a.html HTTP/1.0\nHost: h", "other"),
            ("CONNECT h:80 HTTP/1.1\nHost: h", "other"),
            ("GET /a.html HTTP/1.1\nHost : h", "other"),
            ("garbage", "other"),
        ] {
            assert_eq!(kind(head), expected, "{head}");
        }
        assert!(matches!(
            parse_request_head(b"GET /a.html HTTP/1.1\r\nHo", false),
            HeadParseResult::Partial
        ));
        assert!(matches!(parse_request_head(b"", false), HeadParseResult::Partial));
    }
}
