//! What a request header can change in the answer from a cache file.
//!
//! A kept answer is given only to requests of which every header is known here. A header that is not listed leads to the
//! full way through rules and files, which is slower and always right.

/// What a request header is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nothing that this server decides by.
    Harmless,
    /// It names the host.
    Host,
    /// It says what becomes of the connection.
    Connection,
    /// It may hold credentials.
    Cookie,
    /// It asks for a part, or for what is newer or different.
    Condition,
    /// It says which encodings of the body may be sent.
    Encoding,
    /// It asks for `X-Cache-Info`.
    Info,
    /// It announces a body or another protocol.
    Body,
    /// It may change the answer.
    Other,
}

/// Returns what the header `name` is for.
pub(crate) fn use_of(name: &[u8]) -> Use {
    let known: &[(&str, Use)] = match name.len() {
        2 => &[("te", Use::Harmless)],
        3 => &[("dnt", Use::Harmless)],
        4 => &[("host", Use::Host), ("from", Use::Harmless)],
        5 => &[("range", Use::Condition)],
        6 => &[
            ("accept", Use::Harmless),
            ("cookie", Use::Cookie),
            ("origin", Use::Harmless),
            ("pragma", Use::Harmless),
            ("expect", Use::Body),
        ],
        7 => &[
            ("referer", Use::Harmless),
            ("sec-gpc", Use::Harmless),
            ("purpose", Use::Harmless),
            ("upgrade", Use::Body),
            ("trailer", Use::Body),
        ],
        8 => &[
            ("if-match", Use::Condition),
            ("if-range", Use::Condition),
            ("priority", Use::Harmless),
        ],
        9 => &[("sec-ch-ua", Use::Harmless), ("save-data", Use::Harmless)],
        10 => &[
            ("user-agent", Use::Harmless),
            ("connection", Use::Connection),
            ("keep-alive", Use::Harmless),
            ("tracestate", Use::Harmless),
        ],
        11 => &[("traceparent", Use::Harmless), ("sec-purpose", Use::Harmless)],
        12 => &[("x-request-id", Use::Harmless)],
        13 => &[("if-none-match", Use::Condition), ("cache-control", Use::Harmless)],
        14 => &[
            ("sec-fetch-dest", Use::Harmless),
            ("sec-fetch-mode", Use::Harmless),
            ("sec-fetch-site", Use::Harmless),
            ("sec-fetch-user", Use::Harmless),
            ("accept-charset", Use::Harmless),
            ("content-length", Use::Body),
            ("http2-settings", Use::Body),
        ],
        15 => &[
            ("accept-encoding", Use::Encoding),
            ("accept-language", Use::Harmless),
            ("x-forwarded-for", Use::Harmless),
            ("x-amzn-trace-id", Use::Harmless),
        ],
        16 => &[("sec-ch-ua-mobile", Use::Harmless), ("x-forwarded-port", Use::Harmless)],
        17 => &[
            ("if-modified-since", Use::Condition),
            ("x-forwarded-proto", Use::Harmless),
            ("x-dispatcher-info", Use::Info),
            ("transfer-encoding", Use::Body),
        ],
        18 => &[("sec-ch-ua-platform", Use::Harmless)],
        19 => &[("if-unmodified-since", Use::Condition)],
        25 => &[("upgrade-insecure-requests", Use::Harmless)],
        _ => &[],
    };
    let found = known.iter().find(|(own, _)| own.as_bytes().eq_ignore_ascii_case(name));
    found.map_or(Use::Other, |(_, found)| *found)
}

/// Tells whether a `Cookie` header may hold credentials: `cacheable::has_credentials` decides, this only never overlooks
/// what that finds.
pub(crate) fn may_hold_credentials(cookies: &[u8]) -> bool {
    ["authorization", "login-token"]
        .iter()
        .any(|name| memchr::memmem::find(cookies, name.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::{Use, use_of};

    #[test]
    fn names_are_found_in_any_case() {
        for (name, expected) in [
            ("Host", Use::Host),
            ("CONNECTION", Use::Connection),
            ("Cookie", Use::Cookie),
            ("If-None-Match", Use::Condition),
            ("if-unmodified-since", Use::Condition),
            ("Upgrade-Insecure-Requests", Use::Harmless),
            ("X-Dispatcher-Info", Use::Info),
            ("Accept-Encoding", Use::Encoding),
            ("Transfer-Encoding", Use::Body),
            ("Content-Length", Use::Body),
            ("Authorization", Use::Other),
            ("CQ-Action", Use::Other),
            ("CQ-Handle", Use::Other),
            ("X-Forwarded-Host", Use::Other),
            ("Via", Use::Other),
            ("Server-Agent", Use::Other),
            ("", Use::Other),
        ] {
            assert_eq!(use_of(name.as_bytes()), expected, "{name}");
        }
    }
}
