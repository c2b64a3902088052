//! Absolute URLs of requests: parsed, joined with references, and the credentials in them.

use crate::{Error, Result};

/// Returns the decoded `user:password` of an absolute URL, if it contains them.
pub fn parse_user_info(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    let login = percent_encoding::percent_decode_str(login).decode_utf8_lossy().into_owned();
    Some(if login.contains(':') { login } else { format!("{login}:") })
}

/// The parts of an absolute URL that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsoluteUrl {
    /// True for `https`.
    pub is_tls: bool,
    /// The host, with brackets if it is an IPv6 address.
    pub host: String,
    /// The port, also if it is the default of the scheme.
    pub port: u16,
    /// Path and query; at least `/`.
    pub path_and_query: String,
}

impl AbsoluteUrl {
    /// Parses `http://host[:port]/path?query`; a fragment is dropped.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub fn parse(text: &str) -> Result<Self> {
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
    pub fn is_same_server(&self, other: &Self) -> bool {
        self.is_tls == other.is_tls
            && self.port == other.port
            && self.host.eq_ignore_ascii_case(&other.host)
    }

    /// Resolves a `reference` from a document or a `Location` header at this URL.
    ///
    /// # Errors
    /// [`Error::InvalidUrl`].
    pub fn join(&self, reference: &str) -> Result<Self> {
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
