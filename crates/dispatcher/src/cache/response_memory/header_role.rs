//! The role of request headers: the effect that a header can have on the response from a cache file.
//!
//! A cached response is used only for requests whose headers are all known here. An unknown header leads to the regular
//! path through rules and files, which is slower and always correct.

/// The role of a request header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestHeaderRole {
    /// It has no effect on this server's decisions.
    Irrelevant,
    /// It names the host.
    Host,
    /// It controls the connection.
    Connection,
    /// It may hold credentials.
    Cookie,
    /// It is a condition or requests a range.
    Condition,
    /// It lists the accepted encodings.
    Encoding,
    /// It requests `X-Cache-Info`.
    CacheInfo,
    /// It announces a body or another protocol.
    Body,
    /// It may change the answer.
    Other,
}

/// Returns the role of the header `name`.
pub(crate) fn header_role(name: &[u8]) -> RequestHeaderRole {
    let roles: &[(&str, RequestHeaderRole)] = match name.len() {
        2 => &[("te", RequestHeaderRole::Irrelevant)],
        3 => &[("dnt", RequestHeaderRole::Irrelevant)],
        4 => &[("host", RequestHeaderRole::Host), ("from", RequestHeaderRole::Irrelevant)],
        5 => &[("range", RequestHeaderRole::Condition)],
        6 => &[
            ("accept", RequestHeaderRole::Irrelevant),
            ("cookie", RequestHeaderRole::Cookie),
            ("origin", RequestHeaderRole::Irrelevant),
            ("pragma", RequestHeaderRole::Irrelevant),
            ("expect", RequestHeaderRole::Body),
        ],
        7 => &[
            ("referer", RequestHeaderRole::Irrelevant),
            ("sec-gpc", RequestHeaderRole::Irrelevant),
            ("purpose", RequestHeaderRole::Irrelevant),
            ("upgrade", RequestHeaderRole::Body),
            ("trailer", RequestHeaderRole::Body),
        ],
        8 => &[
            ("if-match", RequestHeaderRole::Condition),
            ("if-range", RequestHeaderRole::Condition),
            ("priority", RequestHeaderRole::Irrelevant),
        ],
        9 => &[
            ("sec-ch-ua", RequestHeaderRole::Irrelevant),
            ("save-data", RequestHeaderRole::Irrelevant),
        ],
        10 => &[
            ("user-agent", RequestHeaderRole::Irrelevant),
            ("connection", RequestHeaderRole::Connection),
            ("keep-alive", RequestHeaderRole::Irrelevant),
            ("tracestate", RequestHeaderRole::Irrelevant),
        ],
        11 => &[
            ("traceparent", RequestHeaderRole::Irrelevant),
            ("sec-purpose", RequestHeaderRole::Irrelevant),
        ],
        12 => &[("x-request-id", RequestHeaderRole::Irrelevant)],
        13 => &[
            ("if-none-match", RequestHeaderRole::Condition),
            ("cache-control", RequestHeaderRole::Irrelevant),
        ],
        14 => &[
            ("sec-fetch-dest", RequestHeaderRole::Irrelevant),
            ("sec-fetch-mode", RequestHeaderRole::Irrelevant),
            ("sec-fetch-site", RequestHeaderRole::Irrelevant),
            ("sec-fetch-user", RequestHeaderRole::Irrelevant),
            ("accept-charset", RequestHeaderRole::Irrelevant),
            ("content-length", RequestHeaderRole::Body),
            ("http2-settings", RequestHeaderRole::Body),
        ],
        15 => &[
            ("accept-encoding", RequestHeaderRole::Encoding),
            ("accept-language", RequestHeaderRole::Irrelevant),
            ("x-forwarded-for", RequestHeaderRole::Irrelevant),
            ("x-amzn-trace-id", RequestHeaderRole::Irrelevant),
        ],
        16 => &[
            ("sec-ch-ua-mobile", RequestHeaderRole::Irrelevant),
            ("x-forwarded-port", RequestHeaderRole::Irrelevant),
        ],
        17 => &[
            ("if-modified-since", RequestHeaderRole::Condition),
            ("x-forwarded-proto", RequestHeaderRole::Irrelevant),
            ("x-dispatcher-info", RequestHeaderRole::CacheInfo),
            ("transfer-encoding", RequestHeaderRole::Body),
        ],
        18 => &[("sec-ch-ua-platform", RequestHeaderRole::Irrelevant)],
        19 => &[("if-unmodified-since", RequestHeaderRole::Condition)],
        25 => &[("upgrade-insecure-requests", RequestHeaderRole::Irrelevant)],
        _ => &[],
    };
    let entry = roles.iter().find(|(own, _)| own.as_bytes().eq_ignore_ascii_case(name));
    entry.map_or(RequestHeaderRole::Other, |(_, role)| *role)
}

/// Returns true if a `Cookie` header may hold credentials. `cacheability::has_credentials` decides; this check has
/// no false negatives relative to it.
pub(crate) fn may_hold_credentials(cookies: &[u8]) -> bool {
    ["authorization", "login-token"]
        .iter()
        .any(|name| memchr::memmem::find(cookies, name.as_bytes()).is_some())
}

#[cfg(test)]
mod tests {
    use super::{RequestHeaderRole, header_role};

    #[test]
    fn names_are_found_in_any_case() {
        for (name, expected) in [
            ("Host", RequestHeaderRole::Host),
            ("CONNECTION", RequestHeaderRole::Connection),
            ("Cookie", RequestHeaderRole::Cookie),
            ("If-None-Match", RequestHeaderRole::Condition),
            ("if-unmodified-since", RequestHeaderRole::Condition),
            ("Upgrade-Insecure-Requests", RequestHeaderRole::Irrelevant),
            ("X-Dispatcher-Info", RequestHeaderRole::CacheInfo),
            ("Accept-Encoding", RequestHeaderRole::Encoding),
            ("Transfer-Encoding", RequestHeaderRole::Body),
            ("Content-Length", RequestHeaderRole::Body),
            ("Authorization", RequestHeaderRole::Other),
            ("CQ-Action", RequestHeaderRole::Other),
            ("CQ-Handle", RequestHeaderRole::Other),
            ("X-Forwarded-Host", RequestHeaderRole::Other),
            ("Via", RequestHeaderRole::Other),
            ("Server-Agent", RequestHeaderRole::Other),
            ("", RequestHeaderRole::Other),
        ] {
            assert_eq!(header_role(name.as_bytes()), expected, "{name}");
        }
    }
}
