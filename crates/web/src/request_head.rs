//! Checks of a request head that every server makes before it interprets the request.
//!
//! * The host that a request is for is determined once, so that farms, caches, renders and instances cannot interpret it
//!   in different ways. Input: a head with a `Host` header, a target with a host of its own (absolute form, HTTP/2),
//!   both, or neither. Output: exactly one `Host` header, and a target that begins with a slash.
//! * Of the transfer codings only `chunked` is supported, because an intermediary may read any other one differently.

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Uri, Version, header, request::Parts};

/// The reason why a head is refused with 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// HTTP/1.1 without `Host`.
    #[error("the request has no host")]
    MissingHost,
    /// More than one `Host`, or one that contradicts the authority of HTTP/2.
    #[error("the request has more than one host")]
    ConflictingHosts,
    /// A `Host` that is not a name or address with an optional port.
    #[error("the host is malformed")]
    MalformedHost,
    /// A target that is neither a path nor an HTTP URL: `index.html`, which reads as a host, or `ftp://host/`.
    #[error("the target is neither a path nor an HTTP URL")]
    InvalidTarget,
    /// `CONNECT`, which requests a tunnel.
    #[error("`CONNECT` is not supported")]
    TunnelRequested,
}

/// Sets the host of a request.
///
/// # Errors
/// See [`AuthorityError`]. The host of a target in absolute form takes precedence over `Host` (RFC 9112, section
/// 3.2.2).
pub fn normalize_authority(head: &mut Parts) -> Result<(), AuthorityError> {
    if head.method == Method::CONNECT {
        return Err(AuthorityError::TunnelRequested);
    }
    let is_web = |scheme: &str| scheme == "http" || scheme == "https";
    if head.uri.authority().is_some() && !head.uri.scheme_str().is_some_and(is_web) {
        return Err(AuthorityError::InvalidTarget);
    }
    let mut named = head.headers.get_all(header::HOST).iter();
    let (first, second) = (named.next(), named.next());
    if second.is_some() {
        return Err(AuthorityError::ConflictingHosts);
    }
    let own = head.uri.authority().map(|authority| authority.as_str().to_owned());
    let host = match (&own, first) {
        (Some(own), named) => {
            let is_other = named.is_some_and(|named| !is_same_authority(named, own));
            if head.version == Version::HTTP_2 && is_other {
                return Err(AuthorityError::ConflictingHosts);
            }
            own.as_str()
        }
        (None, Some(named)) => named.to_str().map_err(|_| AuthorityError::MalformedHost)?,
        (None, None) if head.version >= Version::HTTP_11 => {
            return Err(AuthorityError::MissingHost);
        }
        (None, None) => return Ok(()),
    };
    if !is_authority(host) {
        return Err(AuthorityError::MalformedHost);
    }
    if own.is_some() {
        let host = HeaderValue::from_str(host).map_err(|_| AuthorityError::MalformedHost)?;
        head.headers.insert(header::HOST, host);
        let slash = || PathAndQuery::from_static("/");
        let target = head.uri.path_and_query().cloned().unwrap_or_else(slash);
        // Only a target without a path, such as `http://host?a=b`, is not a valid target by itself.
        head.uri = Uri::from(target);
    }
    Ok(())
}

/// Returns true if a body has no transfer coding, or `chunked` alone. Answer anything else with 501 (RFC 9112, section
/// 6.1).
#[must_use]
pub fn has_supported_transfer_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// Returns true if the host of a request is an IP address or `localhost`, or is not given. A browser that another site
/// directed to this machine by a name of its own sends that name.
#[must_use]
pub fn is_addressed_by_ip(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = host else { return true };
    let is_address = host.parse::<std::net::SocketAddr>().is_ok()
        || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let name = host.split(':').next().unwrap_or(host);
    is_address || name.eq_ignore_ascii_case("localhost")
}

fn is_same_authority(named: &HeaderValue, own: &str) -> bool {
    named.as_bytes().eq_ignore_ascii_case(own.as_bytes())
}

/// Returns true if a text is a name, an IPv4 address or an IPv6 address in brackets, with or without a port.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => ("", port),
            _ => return false,
        },
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_name_byte = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%".contains(&byte) || !byte.is_ascii()
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|port| {
            port.is_empty()
                || (port.len() <= 5
                    && port.bytes().all(|byte| byte.is_ascii_digit())
                    && port.parse::<u16>().is_ok())
        });
    // Like httpd, reject an empty label between two dots.
    host.len() <= 255 && host.bytes().all(is_name_byte) && !host.contains("..") && is_port
}

#[cfg(test)]
mod tests {
    use super::{
        AuthorityError, has_supported_transfer_coding, is_addressed_by_ip, normalize_authority,
    };
    use http::header::{HOST, TRANSFER_ENCODING};
    use http::{HeaderMap, Request, Version};

    fn check(
        target: &str,
        version: Version,
        hosts: &[&str],
        expected: Result<(&str, &str), AuthorityError>,
    ) {
        let mut request = Request::builder().uri(target).version(version);
        for host in hosts {
            request = request.header("host", *host);
        }
        let mut head = request.body(()).unwrap().into_parts().0;
        let settled = normalize_authority(&mut head).map(|()| {
            let host = head.headers.get("host").map_or("", |host| host.to_str().unwrap());
            (host.to_owned(), head.uri.to_string())
        });
        let expected = expected.map(|(host, uri)| (host.to_owned(), uri.to_owned()));
        assert_eq!(settled, expected, "{target} {version:?} {hosts:?}");
    }

    #[test]
    fn one_host_is_settled_on() {
        let v1 = Version::HTTP_11;
        let v2 = Version::HTTP_2;
        check("/a?b", v1, &["h:80"], Ok(("h:80", "/a?b")));
        check("/a", v1, &["[::1]:8080"], Ok(("[::1]:8080", "/a")));
        check("/a", v1, &[], Err(AuthorityError::MissingHost));
        check("/a", Version::HTTP_10, &[], Ok(("", "/a")));
        check("/a", v1, &["h", "h"], Err(AuthorityError::ConflictingHosts));
        check("http://own/a?b", v1, &["other"], Ok(("own", "/a?b")));
        check("http://own", v1, &["own"], Ok(("own", "/")));
        check("https://own/a", v2, &[], Ok(("own", "/a")));
        check("https://own/a", v2, &["OWN"], Ok(("own", "/a")));
        check("https://own/a", v2, &["other"], Err(AuthorityError::ConflictingHosts));
        check("http://user@own/a", v1, &["own"], Err(AuthorityError::MalformedHost));
        check("HTTPS://own/a", v1, &["own"], Ok(("own", "/a")));
        check("index.html", v1, &["own"], Err(AuthorityError::InvalidTarget));
        check("own:80", v1, &["own"], Err(AuthorityError::InvalidTarget));
        check("ftp://own/a", v1, &["own"], Err(AuthorityError::InvalidTarget));
        for broken in [
            "h h", "h..", "h..x", "h/x", "a@b", "a,b", "h:x", "h:99999", "[::1", "[x]", "h:80:90",
            "a\"b",
        ] {
            check("/a", v1, &[broken], Err(AuthorityError::MalformedHost));
        }
        check("/a", v1, &[""], Ok(("", "/a")));
    }

    #[test]
    fn only_chunked_is_a_supported_transfer_coding() {
        let check = |codings: &[&str], expected| {
            let mut headers = HeaderMap::new();
            for coding in codings {
                headers.append(TRANSFER_ENCODING, coding.parse().unwrap());
            }
            assert_eq!(has_supported_transfer_coding(&headers), expected, "{codings:?}");
        };
        check(&[], true);
        check(&["chunked"], true);
        check(&["Chunked"], true);
        check(&["gzip, chunked"], false);
        check(&["gzip", "chunked"], false);
        check(&["chunked", "chunked"], false);
        check(&["identity"], false);
        check(&[""], false);
    }

    proptest::proptest! {
        #[test]
        fn what_is_settled_stays(host in "[ -~]{0,20}", target in "/[a-z?]{0,10}") {
            let request = Request::builder().uri(target).header("host", host);
            let mut head = request.body(()).unwrap().into_parts().0;
            if normalize_authority(&mut head).is_ok() {
                let before = (head.uri.clone(), head.headers.clone());
                normalize_authority(&mut head).unwrap();
                proptest::prop_assert_eq!(before, (head.uri, head.headers));
            }
        }
    }

    #[test]
    fn a_name_that_another_site_chose_is_no_address() {
        for (host, expected) in [
            ("127.0.0.1", true),
            ("127.0.0.1:4504", true),
            ("[::1]", true),
            ("[::1]:4504", true),
            ("localhost", true),
            ("LOCALHOST:4504", true),
            ("evil.example", false),
            ("evil.example:4504", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:4504", false),
            ("localhost.", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            assert_eq!(is_addressed_by_ip(&headers), expected, "{host}");
        }
        assert!(is_addressed_by_ip(&HeaderMap::new()));
    }
}
