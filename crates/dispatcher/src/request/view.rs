//! The view of a request that rules are applied to.

use std::net::IpAddr;

use http::request::Parts;
use http::{HeaderMap, Method, Version, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tympan_web::cache_path::{
    CanonicalPath, CanonicalPathError, EncodedSlashes, resolve_encoded_path,
    resolve_path_with_slashes,
};
use tympan_web::forwarded_client::forwarded_client_address;
use tympan_web::ip_network::{IpNetwork, any_network_contains};
use tympan_web::listen::ConnectionPeer;
use tympan_web::tls::{ClientCertificate, TlsHandshake};

use crate::config::parse_host;

/// The state of a visitor's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VisitorSession {
    /// The visitor sent no credentials, or credentials that no render has checked.
    #[default]
    Absent,
    /// The credentials were accepted once, but not recently.
    Expired,
    /// The credentials are accepted.
    Valid,
}

/// A request as the rules see it.
#[derive(Debug, Clone)]
pub struct RequestView {
    /// The method, such as `GET`.
    pub method: Method,
    /// The protocol, such as `HTTP/1.1`.
    pub protocol: &'static str,
    /// The scheme, `http` or `https`.
    pub scheme: &'static str,
    /// The host name in lower case, without port and trailing dot; empty if the request names none.
    pub host: String,
    /// The port in the `Host` header.
    pub port: Option<String>,
    /// The path in its canonical decoded form.
    pub path: CanonicalPath,
    /// The path without `//`, `.` and `..`, with escapes unchanged, as sent to renders.
    pub wire_path: String,
    /// The treatment of encoded slashes by which the path was read.
    pub(crate) encoded_slashes: EncodedSlashes,
    /// The text after `?`, as sent; a bare `?` is no query.
    pub query: Option<String>,
    /// The headers.
    pub headers: HeaderMap,
    /// The address of the client.
    pub client: IpAddr,
    /// The address of the peer: the client, or a trusted proxy.
    pub sender: IpAddr,
    /// True if the sender is a trusted proxy that wrote the `X-Forwarded-…` headers.
    pub is_proxied: bool,
    /// True if the connection is encrypted.
    pub is_tls: bool,
    /// The cipher suite of the connection.
    pub cipher: Option<&'static str>,
    /// The certificate of the client.
    pub certificate: Option<ClientCertificate>,
    /// The visitor's session in a farm with `/sessionmanagement`.
    pub session: VisitorSession,
    /// The render that produced the page which includes this part: all parts for one visitor come from one render.
    pub(crate) page_render: Option<String>,
}

impl RequestView {
    /// Reads the head of a request from `peer`.
    ///
    /// # Errors
    /// Fails for an invalid path; see [`CanonicalPathError`].
    pub fn from_head(head: &Parts, peer: ConnectionPeer) -> Result<Self, CanonicalPathError> {
        Self::from_head_with_slashes(head, peer, EncodedSlashes::Refuse)
    }

    /// As [`RequestView::from_head`], with another treatment of encoded slashes.
    ///
    /// # Errors
    /// Fails for an invalid path; see [`CanonicalPathError`].
    pub(crate) fn from_head_with_slashes(
        head: &Parts,
        peer: ConnectionPeer,
        encoded_slashes: EncodedSlashes,
    ) -> Result<Self, CanonicalPathError> {
        let raw = head.uri.path();
        let authority = head
            .headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok())
            .or_else(|| head.uri.authority().map(http::uri::Authority::as_str))
            .unwrap_or_default();
        let (host, port) = parse_host(authority);
        let handshake = head.extensions.get::<TlsHandshake>();
        Ok(Self {
            method: head.method.clone(),
            protocol: protocol_name(head.version),
            scheme: if peer.is_tls { "https" } else { "http" },
            host,
            port: port.map(str::to_owned),
            path: CanonicalPath::parse_with_slashes(raw, encoded_slashes)?,
            wire_path: resolve_path_with_slashes(raw, encoded_slashes)?,
            encoded_slashes,
            query: head.uri.query().filter(|query| !query.is_empty()).map(str::to_owned),
            headers: head.headers.clone(),
            client: peer.addr.ip().to_canonical(),
            sender: peer.addr.ip().to_canonical(),
            is_proxied: false,
            is_tls: peer.is_tls,
            cipher: handshake.and_then(|handshake| handshake.cipher),
            certificate: handshake.and_then(|handshake| handshake.client_certificate.clone()),
            session: VisitorSession::Absent,
            page_render: None,
        })
    }

    /// Creates a request for `url`, which may be a path or begin with `http://` or `https://`.
    ///
    /// # Errors
    /// Fails for an invalid path; see [`CanonicalPathError`].
    pub fn from_url(
        method: Method,
        url: &str,
        mut headers: HeaderMap,
    ) -> Result<Self, CanonicalPathError> {
        let is_tls = url.starts_with("https://");
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let (authority, target) = match rest {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", url),
        };
        let target = if target.is_empty() { "/" } else { target };
        let (raw, query) = target.split_once('?').unwrap_or((target, ""));
        let host_header = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let authority = host_header.unwrap_or(authority).to_owned();
        if let Ok(host) = http::HeaderValue::from_str(&authority) {
            headers.insert(header::HOST, host);
        }
        let (host, port) = parse_host(&authority);
        Ok(Self {
            method,
            protocol: "HTTP/1.1",
            scheme: if is_tls { "https" } else { "http" },
            host,
            port: port.map(str::to_owned),
            path: CanonicalPath::parse(raw)?,
            wire_path: utf8_percent_encode(&resolve_encoded_path(raw)?, PATH_ESCAPE_SET)
                .to_string(),
            encoded_slashes: EncodedSlashes::Refuse,
            query: (!query.is_empty()).then(|| query.to_owned()),
            headers,
            client: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            sender: IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            is_proxied: false,
            is_tls,
            cipher: None,
            certificate: None,
            session: VisitorSession::Absent,
            page_render: None,
        })
    }

    /// Sets the client and its connection facts from `X-Forwarded-…`, as far as `trusted` proxies wrote them; headers
    /// from other senders are removed.
    ///
    /// The client is the last address of the list that does not belong to a trusted proxy, because a client can forge
    /// the beginning of the list.
    pub(crate) fn apply_forwarded(&mut self, trusted: &[IpNetwork]) {
        if !any_network_contains(trusted, self.client) {
            for name in FORWARDED_HEADERS {
                self.headers.remove(name);
            }
            return;
        }
        self.is_proxied = true;
        self.client = forwarded_client_address(&self.headers, self.client, trusted);
        let value = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok());
        let is_tls = value("x-forwarded-proto").map(|scheme| scheme.eq_ignore_ascii_case("https"));
        let is_tls = is_tls.or(value("x-forwarded-ssl").map(|on| on.eq_ignore_ascii_case("on")));
        if let Some(is_tls) = is_tls {
            self.is_tls = is_tls;
            self.scheme = if is_tls { "https" } else { "http" };
        }
    }

    /// Sets the host that a proxy in front received; the first of a list is the visitor's.
    pub(crate) fn apply_forwarded_host(&mut self) {
        let forwarded = self.headers.get("x-forwarded-host").and_then(|host| host.to_str().ok());
        let first = forwarded.and_then(|hosts| hosts.split(',').next()).map(str::trim);
        if let Some(authority) = first.filter(|host| !host.is_empty()).map(str::to_owned) {
            let (host, port) = parse_host(&authority);
            self.port = port.map(str::to_owned);
            self.host = host;
        }
    }

    /// Returns the same request for another page: `path` is decoded, `query` is as sent.
    ///
    /// # Errors
    /// Fails for an invalid path; see [`CanonicalPathError`].
    pub(crate) fn with_target(
        &self,
        path: &str,
        query: Option<String>,
    ) -> Result<Self, CanonicalPathError> {
        let rooted = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let mut raw = encode_path(&rooted);
        if self.encoded_slashes == EncodedSlashes::Keep {
            // Such a path has no other `%2F`.
            raw = raw.replace("%252F", "%2F");
        }
        Ok(Self {
            path: CanonicalPath::parse_with_slashes(&raw, self.encoded_slashes)?,
            wire_path: resolve_path_with_slashes(&raw, self.encoded_slashes)?,
            query,
            ..self.clone()
        })
    }

    /// Returns the request line with the decoded path, as matched by globs on the whole line.
    #[must_use]
    pub fn request_line(&self) -> String {
        let (method, path, protocol) = (&self.method, &self.path, self.protocol);
        match &self.query {
            Some(query) => format!("{method} {path}?{query} {protocol}"),
            None => format!("{method} {path} {protocol}"),
        }
    }

    /// Returns the target for renders: the path with unchanged escapes, and the query.
    #[must_use]
    pub fn wire_target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.wire_path),
            None => self.wire_path.clone(),
        }
    }

    /// Returns true if a segment of the path has an encoded slash, which other servers may decode.
    #[must_use]
    pub(crate) fn has_kept_slash(&self) -> bool {
        self.encoded_slashes == EncodedSlashes::Keep && self.path.as_str().contains("%2F")
    }

    /// Returns true if the request is a GET or HEAD.
    #[must_use]
    pub fn is_get_or_head(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// Returns the value of the cookie `name`.
    ///
    /// Cookies may hold any bytes: one that is not text must not hide the others.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        let lists = self.headers.get_all(header::COOKIE).iter();
        let mut pairs = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b';'));
        pairs.find_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (key, value) = pair.split_at(at);
            let value = value.get(1..).unwrap_or_default().trim_ascii_end();
            (key.trim_ascii() == name.as_bytes()).then_some(value)
        })
    }
}

/// Returns a decoded path encoded for a URL.
pub(crate) fn encode_path(path: &str) -> String {
    utf8_percent_encode(path, DECODED_PATH_ESCAPE_SET).to_string()
}

/// The characters that users may type in a path but that a request line cannot contain; existing escapes stay.
const PATH_ESCAPE_SET: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'#');

/// The characters of a decoded path that must be escaped in a request line.
const DECODED_PATH_ESCAPE_SET: &AsciiSet = &PATH_ESCAPE_SET.add(b'%').add(b'?').add(b'\\');

/// The headers about a client that only a proxy may set.
const FORWARDED_HEADERS: [&str; 11] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-ssl",
    "x-forwarded-ssl-cipher",
    "x-forwarded-ssl-keysize",
    "x-forwarded-ssl-session-id",
    "x-forwarded-ssl-client-cert",
    "x-real-ip",
];

fn protocol_name(version: Version) -> &'static str {
    if version == Version::HTTP_10 {
        "HTTP/1.0"
    } else if version == Version::HTTP_2 {
        "HTTP/2.0"
    } else {
        "HTTP/1.1"
    }
}
