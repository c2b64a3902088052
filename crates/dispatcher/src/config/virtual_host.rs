//! Entries of `/virtualhosts`: `[scheme://]host[:port][/uri]`.

use crate::config::glob::DispatcherGlob;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualHostPattern {
    /// The entry as written in the file.
    pub source: String,
    /// `https`, if the entry names a scheme.
    pub scheme: Option<DispatcherGlob>,
    /// The host's name, in lower case.
    pub host: DispatcherGlob,
    /// The port, if the entry names one; otherwise any port matches.
    pub port: Option<DispatcherGlob>,
    /// The path prefix, if the entry names one.
    pub path_prefix: Option<DispatcherGlob>,
}

impl VirtualHostPattern {
    /// Parses an entry; every text is valid.
    #[must_use]
    pub fn parse(source: &str) -> Self {
        let (scheme, rest) = match source.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, source),
        };
        let (authority, uri) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (host, port) = parse_host(authority);
        // `/path1/invalidate.cache` alone is an entry for every host.
        let host = if host.is_empty() { "*" } else { &host };
        Self {
            source: source.to_owned(),
            scheme: scheme.map(|scheme| DispatcherGlob::new(&scheme.to_ascii_lowercase())),
            host: DispatcherGlob::new(host),
            port: port.map(DispatcherGlob::new),
            path_prefix: (!uri.is_empty() && uri != "/*")
                .then(|| DispatcherGlob::new(&prefix_glob(uri))),
        }
    }

    /// Returns true if the host is a literal name, which visitors can be assumed to know the site by.
    pub(crate) fn is_literal_host(&self) -> bool {
        is_literal_pattern(self.host.source())
    }
}

/// Returns true if a pattern has no wildcards and matches only itself.
pub(crate) fn is_literal_pattern(pattern: &str) -> bool {
    !pattern.is_empty() && !pattern.contains(['*', '?', '['])
}

/// Returns the glob for a path prefix, with or without the trailing star.
fn prefix_glob(uri: &str) -> String {
    format!("{}*", uri.trim_end_matches('*'))
}

/// Parses `host:port`: the name in normalized form, in lower case and without a trailing dot, and the port.
pub(crate) fn parse_host(authority: &str) -> (String, Option<&str>) {
    let (name, port) = split_port(authority);
    (name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(), port)
}

/// Splits `host:port`; an address in brackets keeps its colons.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    let after_bracket = authority.rfind(']').map_or(0, |at| at + 1);
    match authority.rfind(':') {
        Some(colon) if colon >= after_bracket => {
            let port = authority.get(colon + 1..).filter(|port| !port.is_empty());
            (authority.get(..colon).unwrap_or(authority), port)
        }
        _ => (authority, None),
    }
}
