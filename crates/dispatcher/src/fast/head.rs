//! Reading the head of a request as far as the lane needs it.
//!
//! The lane refuses nothing: what is not plain is left to hyper with all its bytes, so that only one server judges what is
//! malformed, and where a request ends.

use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http2::hpack::Fields;
use crate::memory::{KeyRef, Kind, Use, may_hold_credentials, use_of};

/// More headers than a browser sends are left to hyper.
const MAX_HEADERS: usize = 48;

/// What stands at the beginning of what a client sent.
#[derive(Debug)]
pub(crate) enum Read<'a> {
    /// No whole head yet.
    Partial,
    /// A request that a kept answer may fit; the length of its head.
    Plain(Plain<'a>, usize),
    /// A whole request without a body, of this length.
    Single(usize),
    /// Anything else.
    Other,
}

/// A request that a kept answer may fit.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) key: KeyRef<'a>,
    /// Headers that `plan` looks at.
    pub(crate) conditions: Option<HeaderMap>,
    /// Whether the client wants the connection to end.
    pub(crate) closes: bool,
    /// The value of `Accept-Encoding`.
    pub(crate) accepted: Option<&'a [u8]>,
    pub(crate) referer: Option<&'a [u8]>,
    pub(crate) user_agent: Option<&'a [u8]>,
}

/// What headers say, one after the other.
#[derive(Default)]
struct Seen<'a> {
    host: Option<&'a [u8]>,
    connections: u32,
    closes: bool,
    has_info: bool,
    is_plain: bool,
    conditions: Option<HeaderMap>,
    accepted: Option<&'a [u8]>,
    referer: Option<&'a [u8]>,
    user_agent: Option<&'a [u8]>,
}

/// Reads the first request in `bytes`; whether the client came by TLS says the proxy before us.
pub(crate) fn read(bytes: &[u8], is_tls: bool) -> Read<'_> {
    let mut headers = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut []);
    let length = match request.parse_with_uninit_headers(bytes, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Read::Partial,
        Err(_hyper_says_what) => return Read::Other,
    };
    let (Some(method), Some(target), Some(1)) = (request.method, request.path, request.version)
    else {
        return Read::Other;
    };
    let Some(seen) = Seen::of(request.headers) else { return Read::Other };
    let is_head = method == "HEAD";
    if !is_head && method != "GET" {
        // A body is announced by its headers, whatever the method; `CONNECT` opens a tunnel.
        return if method == "CONNECT" { Read::Other } else { Read::Single(length) };
    }
    let (Some(host), true) = (seen.host, seen.is_plain && is_origin_form(target)) else {
        return Read::Single(length);
    };
    let kind = Kind::default()
        .with(Kind::HEAD, is_head)
        .with(Kind::TLS, is_tls)
        .with(Kind::INFO, seen.has_info);
    let plain = Plain {
        key: KeyRef { kind, host, target: target.as_bytes() },
        conditions: seen.conditions,
        closes: seen.closes,
        accepted: seen.accepted,
        referer: seen.referer,
        user_agent: seen.user_agent,
    };
    Read::Plain(plain, length)
}

/// Reads the fields of a request of HTTP/2 without a body; nothing if no kept answer may fit, or something is wrong.
pub(crate) fn read_fields(fields: &Fields, is_tls: bool) -> Option<Plain<'_>> {
    let (mut method, mut target, mut host, mut scheme) = (None, None, None, None);
    let mut seen = Seen { is_plain: true, ..Seen::default() };
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
                if !is_plain_field(name, value) {
                    return None;
                }
                seen.add(name, value)?;
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
    let is_usual = matches!(scheme?, b"https" | b"http") && seen.is_plain;
    if !is_usual || seen.host.is_some() || seen.connections > 0 {
        return None;
    }
    let kind = Kind::HTTP2
        .with(Kind::HEAD, is_head)
        .with(Kind::TLS, is_tls)
        .with(Kind::INFO, seen.has_info);
    Some(Plain {
        key: KeyRef { kind, host: host?, target: target.as_bytes() },
        conditions: seen.conditions,
        closes: false,
        accepted: seen.accepted,
        referer: seen.referer,
        user_agent: seen.user_agent,
    })
}

/// Tells whether a field is one that HTTP/2 allows, of those that [`use_of`] knows.
fn is_plain_field(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"keep-alive" => false,
        b"te" => value == b"trailers",
        _ => !name.iter().any(u8::is_ascii_uppercase),
    }
}

impl<'a> Seen<'a> {
    /// Looks through the headers; nothing if there may be a body, or the connection is no ordinary one.
    fn of(headers: &[httparse::Header<'a>]) -> Option<Self> {
        let mut seen = Self { is_plain: true, ..Self::default() };
        for header in headers {
            seen.add(header.name.as_bytes(), header.value)?;
        }
        (seen.connections <= 1).then_some(seen)
    }

    fn add(&mut self, name: &'a [u8], value: &'a [u8]) -> Option<()> {
        match use_of(name) {
            Use::Body => return None,
            Use::Host => {
                self.is_plain &= self.host.replace(value).is_none();
            }
            Use::Connection => {
                self.connections += 1;
                if value.eq_ignore_ascii_case(b"close") {
                    self.closes = true;
                } else if !value.eq_ignore_ascii_case(b"keep-alive") {
                    return None;
                }
            }
            Use::Cookie => self.is_plain &= !may_hold_credentials(value),
            Use::Condition => self.is_plain &= self.add_condition(name, value),
            Use::Info => self.has_info = true,
            Use::Harmless => match name.len() {
                7 if name.eq_ignore_ascii_case(b"referer") => self.referer = Some(value),
                10 if name.eq_ignore_ascii_case(b"user-agent") => {
                    self.user_agent = Some(value);
                }
                _ => {}
            },
            // Of several, the first counts, as on the way through hyper.
            Use::Encoding => drop(self.accepted.get_or_insert(value)),
            Use::Other => self.is_plain = false,
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

/// Tells whether a target is a path and query that hyper takes as they are.
fn is_origin_form(target: &str) -> bool {
    target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
}

#[cfg(test)]
mod tests {
    use super::{Read, read};

    fn kind(head: &str) -> &'static str {
        let bytes = format!("{}\r\n\r\n", head.replace('\n', "\r\n"));
        match read(bytes.as_bytes(), false) {
            Read::Partial => "partial",
            Read::Plain(_, length) => {
                assert_eq!(length, bytes.len());
                "plain"
            }
            Read::Single(length) => {
                assert_eq!(length, bytes.len());
                "single"
            }
            Read::Other => "other",
        }
    }

    #[test]
    fn only_plain_requests_are_for_the_lane() {
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
        assert!(matches!(read(b"GET /a.html HTTP/1.1\r\nHo", false), Read::Partial));
        assert!(matches!(read(b"", false), Read::Partial));
    }
}
