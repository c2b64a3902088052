//! What a kept answer is found by: everything of a request that the rules look at.

use std::hash::{Hash, Hasher};

use http::{Method, Request, Version, header};
use quick_cache::Equivalent;

use super::uses::{Use, may_hold_credentials, use_of};

/// Method, protocol and headers with a bounded number of values, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Kind(u8);

impl Kind {
    pub(crate) const HEAD: Self = Self(1);
    pub(crate) const TLS: Self = Self(2);
    pub(crate) const HTTP2: Self = Self(4);
    /// The request asks for `X-Cache-Info`.
    pub(crate) const INFO: Self = Self(8);

    pub(crate) fn with(self, other: Self, holds: bool) -> Self {
        if holds { Self(self.0 | other.0) } else { self }
    }

    pub(crate) fn is_head(self) -> bool {
        self.0 & Self::HEAD.0 != 0
    }

    pub(crate) fn is_http2(self) -> bool {
        self.0 & Self::HTTP2.0 != 0
    }
}

/// A request by what decides about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRef<'a> {
    pub(crate) kind: Kind,
    /// As it was sent.
    pub(crate) host: &'a [u8],
    /// Path and query as they were sent.
    pub(crate) target: &'a [u8],
}

/// A [`KeyRef`] that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    kind: Kind,
    host: Box<[u8]>,
    target: Box<[u8]>,
}

impl Key {
    pub(crate) fn borrowed(&self) -> KeyRef<'_> {
        KeyRef { kind: self.kind, host: &self.host, target: &self.target }
    }

    /// Returns how long it is.
    pub(crate) fn length(&self) -> usize {
        self.host.len() + self.target.len()
    }

    /// Returns about how many bytes of memory it takes with its place in the table.
    pub(crate) fn bytes(&self) -> usize {
        const PLACE_BYTES: usize = 96;
        self.length() + size_of::<Self>() + PLACE_BYTES
    }
}

impl KeyRef<'_> {
    /// Returns the key of the same request by GET.
    pub(crate) fn as_get(self) -> Self {
        Self { kind: Kind(self.kind.0 & !Kind::HEAD.0), ..self }
    }

    pub(crate) fn to_key(self) -> Key {
        Key { kind: self.kind, host: self.host.into(), target: self.target.into() }
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
        self.host.hash(state);
        self.target.hash(state);
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.kind == key.kind && *self.target == *key.target && *self.host == *key.host
    }
}

/// Returns the key of a request; nothing if something in it is not covered by keys.
pub(crate) fn key_of<B>(request: &Request<B>, is_tls: bool) -> Option<Key> {
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
        match use_of(name.as_str().as_bytes()) {
            Use::Body | Use::Other => return None,
            Use::Cookie if may_hold_credentials(value.as_bytes()) => return None,
            Use::Info => has_info = true,
            Use::Host => hosts += 1,
            Use::Harmless | Use::Connection | Use::Cookie | Use::Condition | Use::Encoding => {}
        }
    }
    let uri = request.uri();
    let host = match (hosts, uri.authority()) {
        (1, None) => request.headers().get(header::HOST)?.as_bytes(),
        (0, Some(authority)) if is_http2 => authority.as_str().as_bytes(),
        _ => return None,
    };
    let target = uri.path_and_query()?.as_str().as_bytes();
    let kind = Kind::default()
        .with(Kind::HEAD, is_head)
        .with(Kind::TLS, is_tls)
        .with(Kind::HTTP2, is_http2)
        .with(Kind::INFO, has_info);
    Some(KeyRef { kind, host, target }.to_key())
}

#[cfg(test)]
mod tests {
    use super::{Key, Kind, key_of};
    use http::Request;

    fn key(target: &str, headers: &[(&str, &str)]) -> Option<Key> {
        let mut request = Request::get(target).header("Host", "h");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        key_of(&request.body(()).unwrap(), false)
    }

    #[test]
    fn harmless_headers_do_not_change_a_key() {
        let plain = key("/a.html", &[]).unwrap();
        let more = [("User-Agent", "x"), ("Cookie", "a=b"), ("If-None-Match", "\"x\"")];
        assert_eq!(key("/a.html", &more), Some(plain.clone()));
        assert_ne!(key("/a.html?x", &[]), Some(plain.clone()));
        assert_ne!(key("/a.html", &[("X-Dispatcher-Info", "1")]), Some(plain.clone()));
        let head = Request::head("/a.html").header("Host", "h").body(()).unwrap();
        let head = key_of(&head, false).unwrap();
        assert!(head != plain && head.borrowed().kind.is_head());
        assert_ne!(plain.borrowed().kind, Kind::TLS);
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
        assert_eq!(key_of(&Request::get("/a.html").body(()).unwrap(), false), None);
    }
}
