//! The destination of requests: scheme, host and port, resolved once.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::tls::{self, NegotiatedTls, TlsClientOptions};
use crate::{Error, Result};

/// A server with its resolved addresses.
#[derive(Debug)]
pub(crate) struct LoadTarget {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) tls_config: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The local address that connections are bound to; `None` if the system chooses it.
    pub(crate) source_address: Option<IpAddr>,
    /// True if connections use HTTP/2; without TLS from the first byte on.
    pub(crate) is_http2: bool,
    /// Size in bytes of the kernel's socket buffers; `None` if the system chooses it.
    pub(crate) socket_buffer_size: Option<usize>,
    /// The TLS parameters that the first handshake negotiated.
    pub(crate) negotiated_tls: OnceLock<NegotiatedTls>,
    addresses: Vec<SocketAddr>,
    next_address: AtomicUsize,
}

impl LoadTarget {
    /// Resolves `host` and prepares TLS for `https`.
    ///
    /// # Errors
    /// [`Error::Resolve`], [`Error::Tls`].
    pub(crate) fn resolve(is_tls: bool, host: &str, port: u16) -> Result<Arc<Self>> {
        Self::resolve_from_source(is_tls, host, port, None)
    }

    fn resolve_from_source(
        is_tls: bool,
        host: &str,
        port: u16,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let lost = |source| Error::Resolve { host: host.to_owned(), source };
        let mut addresses: Vec<_> = (bare, port).to_socket_addrs().map_err(lost)?.collect();
        // Loopback servers commonly listen on IPv4 only, and a refused first address would be an error sample.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        if addresses.is_empty() {
            return Err(lost(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
        }
        if addresses.first().is_some_and(SocketAddr::is_ipv4) && source.is_none() {
            addresses.retain(SocketAddr::is_ipv4);
        }
        Self::with_addresses((is_tls, host, port), addresses, source)
    }

    /// Resolves the comma-separated `names` as the addresses of `host`, and prepares TLS for `https`.
    ///
    /// # Errors
    /// [`Error::Resolve`] if none of them has an address, [`Error::Tls`].
    fn resolve_names(
        (is_tls, host, port): (bool, &str, u16),
        names: &str,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        let of = |name: &str| (name, port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let mut addresses = Vec::new();
        let mut lost = io::Error::new(io::ErrorKind::NotFound, "the plan gives it no address");
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match of(name.trim_start_matches('[').trim_end_matches(']')) {
                Ok(resolved) => addresses.extend(resolved),
                Err(error) => lost = error,
            }
        }
        if addresses.is_empty() {
            return Err(Error::Resolve { host: host.to_owned(), source: lost });
        }
        Self::with_addresses((is_tls, host, port), addresses, source)
    }

    fn with_addresses(
        (is_tls, host, port): (bool, &str, u16),
        mut addresses: Vec<SocketAddr>,
        source: Option<IpAddr>,
    ) -> Result<Arc<Self>> {
        // A source address reaches only addresses of the same family.
        if let Some(source) = source
            && addresses.iter().any(|address| address.is_ipv4() == source.is_ipv4())
        {
            addresses.retain(|address| address.is_ipv4() == source.is_ipv4());
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let tls = if is_tls { Some(tls::client_tls_config(bare)?) } else { None };
        Ok(Arc::new(Self {
            host: host.to_owned(),
            port,
            tls_config: tls,
            source_address: source,
            is_http2: false,
            socket_buffer_size: None,
            negotiated_tls: OnceLock::new(),
            addresses,
            next_address: AtomicUsize::new(0),
        }))
    }

    /// Returns the same server with the given TLS options and socket buffer size.
    ///
    /// # Errors
    /// As [`tls::client_tls_config_with`].
    pub(crate) fn with_tls_options(
        &self,
        speech: &TlsClientOptions,
        window: Option<usize>,
    ) -> Result<Arc<Self>> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let tls = self
            .tls_config
            .as_ref()
            .map(|_| tls::client_tls_config_with(bare, speech))
            .transpose()?;
        Ok(Arc::new(Self {
            host: self.host.clone(),
            port: self.port,
            tls_config: tls,
            source_address: self.source_address,
            is_http2: speech.is_http2,
            socket_buffer_size: window,
            negotiated_tls: OnceLock::new(),
            addresses: self.addresses.clone(),
            next_address: AtomicUsize::new(0),
        }))
    }

    /// Returns the address for the next connection, in rotation.
    pub(crate) fn next_address(&self) -> Option<SocketAddr> {
        let turn = self.next_address.fetch_add(1, Ordering::Relaxed);
        self.addresses.get(turn % self.addresses.len().max(1)).copied()
    }

    /// Returns the value of the `Host` header; the default port of the scheme is omitted.
    pub(crate) fn authority(&self) -> String {
        match (self.tls_config.is_some(), self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

/// Scheme, host and port, the addresses that the plan itself assigns to the host, and the local address.
type TargetKey = (bool, String, u16, Option<String>, Option<IpAddr>);

/// The targets of a run, each resolved once.
#[derive(Debug, Default)]
pub(crate) struct TargetRegistry {
    targets_by_key: Mutex<HashMap<TargetKey, Arc<LoadTarget>>>,
    /// The address that all requests go to instead of their own.
    detour_address: Option<SocketAddr>,
    /// Addresses that override name resolution, by lowercase host name.
    host_overrides: HashMap<String, String>,
    /// True if each connection makes a full TLS handshake.
    disables_tls_resumption: bool,
    /// True if connections use HTTP/2.
    is_http2: bool,
}

impl TargetRegistry {
    /// Creates a registry that sends everything to `detour` in plain HTTP if it is given; otherwise the names in
    /// `hosts` resolve to the addresses there.
    pub(crate) fn with_detour(detour: Option<SocketAddr>, hosts: &HashMap<String, String>) -> Self {
        let small =
            |(name, addresses): (&String, &String)| (name.to_ascii_lowercase(), addresses.clone());
        Self {
            detour_address: detour,
            host_overrides: hosts.iter().map(small).collect(),
            ..Self::default()
        }
    }

    /// Creates a registry in which each connection makes a full TLS handshake if `forgets_sessions` is true.
    pub(crate) fn without_tls_resumption(forgets_sessions: bool) -> Self {
        Self { disables_tls_resumption: forgets_sessions, ..Self::default() }
    }

    /// Returns the registry with HTTP/2 enabled if `is_http2` is true.
    pub(crate) fn with_http2(self, is_http2: bool) -> Self {
        Self { is_http2, ..self }
    }

    /// Returns the target, which is resolved at its first use.
    ///
    /// # Errors
    /// As [`LoadTarget::resolve`].
    pub(crate) fn get_or_resolve(
        &self,
        is_tls: bool,
        host: &str,
        port: u16,
    ) -> Result<Arc<LoadTarget>> {
        if let Some(detour) = self.detour_address {
            let key = (false, detour.ip().to_string(), detour.port(), None, None);
            return self.get_or_resolve_key(key);
        }
        self.get_or_resolve_at((is_tls, host, port), None, None)
    }

    /// Returns the target of a host with optional overriding addresses (comma-separated names or addresses) and an
    /// optional local address.
    ///
    /// # Errors
    /// As [`LoadTarget::resolve_names`].
    pub(crate) fn get_or_resolve_at(
        &self,
        (is_tls, host, port): (bool, &str, u16),
        addresses: Option<&str>,
        source: Option<IpAddr>,
    ) -> Result<Arc<LoadTarget>> {
        if self.detour_address.is_some() {
            return self.get_or_resolve(is_tls, host, port);
        }
        let name = host.to_ascii_lowercase();
        // Options of the run override those of the plan.
        let address_override =
            self.host_overrides.get(&name).cloned().or_else(|| addresses.map(str::to_owned));
        self.get_or_resolve_key((is_tls, name, port, address_override, source))
    }

    fn get_or_resolve_key(&self, key: TargetKey) -> Result<Arc<LoadTarget>> {
        let mut targets = self.targets_by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(target) = targets.get(&key) {
            return Ok(Arc::clone(target));
        }
        let (is_tls, host, port, addresses, source) = &key;
        let target = match addresses {
            Some(addresses) => {
                LoadTarget::resolve_names((*is_tls, host, *port), addresses, *source)?
            }
            None => LoadTarget::resolve_from_source(*is_tls, host, *port, *source)?,
        };
        let (forgets_sessions, is_http2) = (self.disables_tls_resumption, self.is_http2);
        let target = match forgets_sessions || is_http2 {
            true => {
                let speech = TlsClientOptions {
                    disables_resumption: forgets_sessions,
                    is_http2,
                    ..TlsClientOptions::default()
                };
                target.with_tls_options(&speech, None)?
            }
            false => target,
        };
        targets.insert(key, Arc::clone(&target));
        Ok(target)
    }
}

/// Returns the decoded `user:password` of an absolute URL, if it contains them.
pub(crate) fn parse_user_info(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    let login = percent_encoding::percent_decode_str(login).decode_utf8_lossy().into_owned();
    Some(if login.contains(':') { login } else { format!("{login}:") })
}

/// The parts of an absolute URL that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AbsoluteUrl {
    pub(crate) is_tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query; at least `/`.
    pub(crate) path_and_query: String,
}

impl AbsoluteUrl {
    /// Parses `http://host[:port]/path?query`; a fragment is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |reason| Error::InvalidUrl { url: text.to_owned(), reason };
        let is_blank = |c: char| c.is_whitespace() || c.is_control();
        if text.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) && text.chars().any(is_blank) {
            return Err(wrong("it contains a space or a control character; write %20"));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(wrong("its scheme is neither http nor https")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) =
            split_port(authority).ok_or_else(|| wrong("its port is not a number"))?;
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let default = if is_tls { 443 } else { 80 };
        let target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port: port.unwrap_or(default),
            path_and_query: target,
        })
    }

    /// Returns true if both have the same scheme, host and port.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        self.is_tls == other.is_tls
            && self.port == other.port
            && self.host.eq_ignore_ascii_case(&other.host)
    }

    /// Resolves a `reference` from a document or a `Location` header at this URL.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub(crate) fn join(&self, reference: &str) -> Result<Self> {
        // Pages and servers write spaces where they are invalid; browsers encode them.
        let reference = reference.trim().replace(' ', "%20");
        let reference = reference.as_str();
        if reference.chars().any(char::is_control) {
            return Self::parse(reference);
        }
        if reference.contains("://") {
            return Self::parse(reference);
        }
        let scheme = if self.is_tls { "https" } else { "http" };
        if reference.starts_with("//") {
            return Self::parse(&format!("{scheme}:{reference}"));
        }
        let reference = reference.split('#').next().unwrap_or_default();
        let path = self.path_and_query.split('?').next().unwrap_or("/");
        let target = if reference.is_empty() {
            self.path_and_query.clone()
        } else if reference.starts_with('/') {
            reference.to_owned()
        } else if reference.starts_with('?') {
            format!("{path}{reference}")
        } else {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{folder}/{reference}")
        };
        Ok(Self { path_and_query: remove_dot_segments(&target), ..self.clone() })
    }
}

impl std::fmt::Display for AbsoluteUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        match (self.is_tls, self.port) {
            (true, 443) | (false, 80) => {
                write!(f, "{scheme}://{}{}", self.host, self.path_and_query)
            }
            _ => write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path_and_query),
        }
    }
}

fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    if let Some(end) = authority.find(']') {
        let (host, rest) = authority.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => Some((host, None)),
        };
    }
    match authority.split_once(':') {
        Some((host, "")) => Some((host, None)),
        Some((host, port)) => Some((host, Some(port.parse().ok()?))),
        None => Some((authority, None)),
    }
}

/// Removes `.` and `..` segments of the path (RFC 3986, 5.2.4).
fn remove_dot_segments(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    if !path.contains("/.") {
        return target.to_owned();
    }
    let mut segments: Vec<&str> = Vec::new();
    let ends_in_folder = path.ends_with("/.") || path.ends_with("/..") || path.ends_with('/');
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let mut out = format!("/{}", segments.join("/"));
    if ends_in_folder && !out.ends_with('/') {
        out.push('/');
    }
    if let Some(query) = query {
        out.push('?');
        out.push_str(query);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(base: &str, reference: &str, expected: &str) {
        let url = AbsoluteUrl::parse(base).unwrap().join(reference).unwrap();
        let scheme = if url.is_tls { "https" } else { "http" };
        assert_eq!(format!("{scheme}://{}:{}{}", url.host, url.port, url.path_and_query), expected);
    }

    #[test]
    fn references_are_resolved_as_browsers_do() {
        let base = "http://site.example/a/b.html?x=1";
        check(base, "/c?d", "http://site.example:80/c?d");
        check(base, "c.css", "http://site.example:80/a/c.css");
        check(base, "../c.css", "http://site.example:80/c.css");
        check(base, "../../c/./d/", "http://site.example:80/c/d/");
        check(base, "?y=2", "http://site.example:80/a/b.html?y=2");
        check(base, " c d ", "http://site.example:80/a/c%20d");
        check(base, "", "http://site.example:80/a/b.html?x=1");
        check(base, "//other.example/x", "http://other.example:80/x");
        check(base, "https://other.example", "https://other.example:443/");
        check("http://u:p@[::1]:81?q", "x#frag", "http://[::1]:81/x");
    }

    #[test]
    fn credentials_of_an_address_are_found() {
        let check =
            |url: &str, login: Option<&str>| assert_eq!(parse_user_info(url).as_deref(), login);
        check("http://ann:s%40%2Fx@h:1/a@b", Some("ann:s@/x"));
        check("http://ann@h", Some("ann:"));
        check("http://h/a@b?c@d", None);
        check("h", None);
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "site.example",
            "ftp://x/",
            "http:///x",
            "http://x:port/",
            "http://x/a b",
            "http://x/\r\nA: b",
        ] {
            assert!(AbsoluteUrl::parse(text).is_err(), "{text}");
        }
    }
}
