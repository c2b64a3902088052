//! The key of a cached response: all parts of a request that the rules evaluate.

use std::hash::{Hash, Hasher};

use http::{Method, Request, Version, header};
use quick_cache::Equivalent;

use super::header_role::{RequestHeaderRole, header_role, may_hold_credentials};

/// The method, protocol and headers with a bounded number of values, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct RequestFlags(u8);

impl RequestFlags {
    pub(crate) const HEAD: Self = Self(1);
    pub(crate) const TLS: Self = Self(2);
    pub(crate) const HTTP2: Self = Self(4);
    /// The request asks for `X-Cache-Info`.
    pub(crate) const CACHE_INFO: Self = Self(8);

    pub(crate) fn with_flag(self, other: Self, holds: bool) -> Self {
        if holds { Self(self.0 | other.0) } else { self }
    }

    pub(crate) fn is_head(self) -> bool {
        self.0 & Self::HEAD.0 != 0
    }

    pub(crate) fn is_http2(self) -> bool {
        self.0 & Self::HTTP2.0 != 0
    }
}

/// A borrowed key of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseKeyRef<'a> {
    pub(crate) flags: RequestFlags,
    /// The host as sent.
    pub(crate) host: &'a [u8],
    /// Path and query as sent.
    pub(crate) target: &'a [u8],
}

/// An owned [`ResponseKeyRef`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResponseKey {
    flags: RequestFlags,
    host: Box<[u8]>,
    target: Box<[u8]>,
}

impl ResponseKey {
    pub(crate) fn as_key_ref(&self) -> ResponseKeyRef<'_> {
        ResponseKeyRef { flags: self.flags, host: &self.host, target: &self.target }
    }

    /// Returns the length of its texts.
    pub(crate) fn text_length(&self) -> usize {
        self.host.len() + self.target.len()
    }

    /// Returns its approximate memory size in bytes, including its slot in the table.
    pub(crate) fn memory_bytes(&self) -> usize {
        const PLACE_BYTES: usize = 96;
        self.text_length() + size_of::<Self>() + PLACE_BYTES
    }
}

impl ResponseKeyRef<'_> {
    /// Returns the key of the same request with GET.
    pub(crate) fn as_get(self) -> Self {
        Self { flags: RequestFlags(self.flags.0 & !RequestFlags::HEAD.0), ..self }
    }

    pub(crate) fn to_key(self) -> ResponseKey {
        ResponseKey { flags: self.flags, host: self.host.into(), target: self.target.into() }
    }
}

impl Hash for ResponseKeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.flags.hash(state);
        self.host.hash(state);
        self.target.hash(state);
    }
}

impl Hash for ResponseKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_key_ref().hash(state);
    }
}

impl Equivalent<ResponseKey> for ResponseKeyRef<'_> {
    fn equivalent(&self, key: &ResponseKey) -> bool {
        self.flags == key.flags && *self.target == *key.target && *self.host == *key.host
    }
}

/// Returns the key of a request; `None` if part of it is not covered by keys.
pub(crate) fn response_key_of<B>(request: &Request<B>, is_tls: bool) -> Option<ResponseKey> {
    let is_head = request.method() == Method::HEAD;
    if !is_head && request.method() != Method::GET {
        return None;
    }
    let is_http2 = match request.version() {
        Version::HTTP_11 => false,
        Version::HTTP_2 => true,
        _ => return None,
    };
    let (mut has_info, mut hosts) = (false, 0);
    for (name, value) in request.headers() {
        match header_role(name.as_str().as_bytes()) {
            RequestHeaderRole::Body | RequestHeaderRole::Other => return None,
            RequestHeaderRole::Cookie if may_hold_credentials(value.as_bytes()) => return None,
            RequestHeaderRole::CacheInfo => has_info = true,
            RequestHeaderRole::Host => hosts += 1,
            RequestHeaderRole::Irrelevant
            | RequestHeaderRole::Connection
            | RequestHeaderRole::Cookie
            | RequestHeaderRole::Condition
            | RequestHeaderRole::Encoding => {}
        }
    }
    let uri = request.uri();
    let host = match (hosts, uri.authority()) {
        (1, None) => request.headers().get(header::HOST)?.as_bytes(),
        (0, Some(authority)) if is_http2 => authority.as_str().as_bytes(),
        _ => return None,
    };
    let target = uri.path_and_query()?.as_str().as_bytes();
    let kind = RequestFlags::default()
        .with_flag(RequestFlags::HEAD, is_head)
        .with_flag(RequestFlags::TLS, is_tls)
        .with_flag(RequestFlags::HTTP2, is_http2)
        .with_flag(RequestFlags::CACHE_INFO, has_info);
    Some(ResponseKeyRef { flags: kind, host, target }.to_key())
}

#[cfg(test)]
mod tests {
    use super::{RequestFlags, ResponseKey, response_key_of};
    use http::Request;

    fn key(target: &str, headers: &[(&str, &str)]) -> Option<ResponseKey> {
        let mut request = Request::get(target).header("Host", "h");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        response_key_of(&request.body(()).unwrap(), false)
    }

    #[test]
    fn harmless_headers_do_not_change_a_key() {
        let plain = key("/a.html", &[]).unwrap();
        let more = [("User-Agent", "x"), ("Cookie", "a=b"), ("If-None-Match", "\"x\"")];
        assert_eq!(key("/a.html", &more), Some(plain.clone()));
        assert_ne!(key("/a.html?x", &[]), Some(plain.clone()));
        assert_ne!(key("/a.html", &[("X-Dispatcher-Info", "1")]), Some(plain.clone()));
        let head = Request::head("/a.html").header("Host", "h").body(()).unwrap();
        let head = response_key_of(&head, false).unwrap();
        assert!(head != plain && head.as_key_ref().flags.is_head());
        assert_ne!(plain.as_key_ref().flags, RequestFlags::TLS);
    }

    #[test]
    fn what_the_rules_may_look_at_has_no_key() {
        for header in [
            ("Authorization", "x"),
            ("Cookie", "a=b; login-token=x"),
            ("Cookie", "authorization=x"),
            ("CQ-Action", "Test"),
            ("Via", "1.1 x"),
            ("X-Unknown", "1"),
            ("Host", "second"),
            ("Content-Length", "0"),
        ] {
            assert_eq!(key("/a.html", &[header]), None, "{header:?}");
        }
        assert_eq!(response_key_of(&Request::get("/a.html").body(()).unwrap(), false), None);
    }
}
