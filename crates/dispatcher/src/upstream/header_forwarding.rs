//! Header forwarding: the headers that are sent to a render, and those that are returned to the visitor.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use tympan_web::sling_url::REFUSED_READINGS;

use crate::config::{ClientHeaderPolicy, FarmConfig};
use crate::request::filter;
use crate::request::view::RequestView;

/// The header in which a render names the addresses that its body includes, separated by spaces.
pub(crate) const INCLUDE_HEADER: HeaderName = HeaderName::from_static("x-tympan-include");

/// The headers with conditions on a different page.
pub(crate) const CONDITIONAL_HEADERS: [HeaderName; 6] =
    [RANGE, IF_RANGE, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE];

/// The header that tells a render that the request comes from a dispatcher.
const SERVER_AGENT_HEADER: HeaderName = HeaderName::from_static("server-agent");
const DISPATCHER_AGENT_VALUE: HeaderValue = HeaderValue::from_static("Communique-Dispatcher");
/// The header that tells a render that includes are processed (ESI 1.0, section 6).
const SURROGATE_CAPABILITY_HEADER: HeaderName = HeaderName::from_static("surrogate-capability");
const SSI_CAPABILITY_VALUE: HeaderValue =
    HeaderValue::from_static("tympan=\"Surrogate/1.0 SSI/1.0\"");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_SSL: HeaderName = HeaderName::from_static("x-forwarded-ssl");
const FORWARDED_CIPHER: HeaderName = HeaderName::from_static("x-forwarded-ssl-cipher");
const FORWARDED_KEY_SIZE: HeaderName = HeaderName::from_static("x-forwarded-ssl-keysize");
const FORWARDED_SESSION: HeaderName = HeaderName::from_static("x-forwarded-ssl-session-id");
const FORWARDED_CERTIFICATE: HeaderName = HeaderName::from_static("x-forwarded-ssl-client-cert");

/// The headers about the visitor's connection, which are sent whatever the policy for client headers is.
const ADDED_HEADERS: [HeaderName; 8] = [
    VIA,
    FORWARDED_FOR,
    FORWARDED_PORT,
    FORWARDED_SSL,
    FORWARDED_CIPHER,
    FORWARDED_KEY_SIZE,
    FORWARDED_SESSION,
    FORWARDED_CERTIFICATE,
];

/// Headers by which servers take a request for one with another URL or method. No cache key has them, so a visitor could
/// replace a page for all others with them. A farm passes them on if `/clientheaders` names them, or if a trusted proxy
/// sends them.
const ORIGIN_OVERRIDE_HEADERS: [&str; 18] = [
    "forwarded",
    "front-end-https",
    "x-forwarded-host",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-host",
    "x-original-url",
    "x-rewrite-url",
    "x-url-scheme",
    "x-wap-profile",
];

/// The number of dispatchers after which a request is considered to loop.
const MAX_DISPATCHER_HOPS: usize = 8;

/// The purpose of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardPurpose {
    /// For this visitor only.
    Pass,
    /// For the cache, so headers specific to one visitor's copy must not influence it.
    Cache,
}

/// Returns the headers of the request to a render for `request`.
pub(crate) fn request_headers(
    farm: &FarmConfig,
    request: &RequestView,
    purpose: ForwardPurpose,
) -> HeaderMap {
    let mut headers = proxy_headers(&farm.client_headers, request, purpose);
    let may_lead_astray = farm.is_http_cache
        && purpose == ForwardPurpose::Cache
        && farm.client_headers == ClientHeaderPolicy::All
        && !request.is_proxied;
    if may_lead_astray {
        for name in ORIGIN_OVERRIDE_HEADERS {
            headers.remove(name);
        }
    }
    if let Some(refused) = refused_readings_header(farm, request) {
        headers.insert(REFUSED_READINGS, refused);
    }
    headers
}

/// Returns true if a visitor's headers may have made a render respond for another URL or method.
pub(crate) fn has_origin_override(headers: &HeaderMap) -> bool {
    ORIGIN_OVERRIDE_HEADERS.iter().any(|name| headers.contains_key(*name))
}

/// Returns true if requests to renders for the same URL may differ in the header `name`, when the client's headers are
/// forwarded by this policy and responses are to be stored.
pub(crate) fn may_differ_between_requests(policy: &ClientHeaderPolicy, name: &HeaderName) -> bool {
    let is_constant = is_hop_by_hop(name)
        || CONDITIONAL_HEADERS.contains(name)
        || [
            ACCEPT_ENCODING,
            CONTENT_LENGTH,
            EXPECT,
            REFUSED_READINGS,
            SERVER_AGENT_HEADER,
            SURROGATE_CAPABILITY_HEADER,
        ]
        .contains(name);
    if is_constant {
        return false;
    }
    match policy {
        ClientHeaderPolicy::All => true,
        ClientHeaderPolicy::Only(names) => {
            ADDED_HEADERS.contains(name) || names.iter().any(|own| own == name.as_str())
        }
    }
}

/// Returns the readings of the path that the filter refuses although it permits the literal text.
fn refused_readings_header(farm: &FarmConfig, request: &RequestView) -> Option<HeaderValue> {
    let refused = filter::refused_readings(farm.filter.as_deref()?, request);
    let depths: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if depths.is_empty() { None } else { HeaderValue::from_str(&depths.join(",")).ok() }
}

/// Returns the headers of the request to a server for `request`, as permitted by `client_headers`.
pub(crate) fn proxy_headers(
    client_headers: &ClientHeaderPolicy,
    request: &RequestView,
    purpose: ForwardPurpose,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(request.headers.len() + 4);
    let connection = connection_named_headers(&request.headers);
    for (name, value) in &request.headers {
        let is_allowed = match client_headers {
            ClientHeaderPolicy::All => true,
            ClientHeaderPolicy::Only(names) => names.iter().any(|own| own == name.as_str()),
        };
        let is_kept = is_allowed
            && !is_hop_by_hop(name)
            && *name != CONTENT_LENGTH
            // Only the filter sets this header.
            && *name != REFUSED_READINGS
            // Handled here, when the body is read.
            && *name != EXPECT
            // `Host` is not a connection header; without it, pages would be rendered for the render's own name.
            && (*name == HOST || !connection.contains(name));
        if is_kept {
            headers.append(name, value.clone());
        }
    }
    if purpose == ForwardPurpose::Cache {
        for name in [
            ACCEPT_ENCODING,
            RANGE,
            IF_RANGE,
            IF_MATCH,
            IF_NONE_MATCH,
            IF_MODIFIED_SINCE,
            IF_UNMODIFIED_SINCE,
        ] {
            headers.remove(name);
        }
    }
    join_cookie_lines(&mut headers);
    add_dispatcher_headers(&mut headers, request);
    headers
}

/// Joins the cookie lines of HTTP/2 into the one that HTTP/1.1 has (RFC 9113, section 8.2.3).
fn join_cookie_lines(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn add_dispatcher_headers(headers: &mut HeaderMap, request: &RequestView) {
    let host = request.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    append_to_list_header(headers, &request.headers, VIA, &format!("1.1 {host} (dispatcher)"));
    let sender = request.sender.to_string();
    append_to_list_header(headers, &request.headers, FORWARDED_FOR, &sender);
    let port = request.port.as_deref().unwrap_or(if request.is_tls { "443" } else { "80" });
    // A trusted proxy knows the port that the visitor connected to.
    let is_told = request.is_proxied && headers.contains_key(FORWARDED_PORT);
    if let Ok(port) = HeaderValue::from_str(port)
        && !is_told
    {
        headers.insert(FORWARDED_PORT, port);
    }
    if request.is_tls {
        headers.insert(FORWARDED_SSL, HeaderValue::from_static("on"));
    }
    if request.is_tls && !request.is_proxied {
        // A visitor's own statements about its connection are not trusted.
        for name in [FORWARDED_CIPHER, FORWARDED_KEY_SIZE, FORWARDED_SESSION, FORWARDED_CERTIFICATE]
        {
            headers.remove(name);
        }
    }
    if let Some(cipher) = request.cipher {
        // This connection may be a proxy's, and says nothing about the visitor's.
        headers.remove(FORWARDED_SESSION);
        headers.remove(FORWARDED_CERTIFICATE);
        headers.insert(FORWARDED_CIPHER, HeaderValue::from_static(cipher));
        let bits = if cipher.contains("AES_128") { "128" } else { "256" };
        headers.insert(FORWARDED_KEY_SIZE, HeaderValue::from_static(bits));
    }
    if let Some(certificate) = &request.certificate {
        let text = STANDARD.encode(certificate.der());
        if let Ok(text) = HeaderValue::from_str(&text) {
            headers.insert(FORWARDED_CERTIFICATE, text);
        }
    }
    headers.insert(SERVER_AGENT_HEADER, DISPATCHER_AGENT_VALUE);
    headers.insert(SURROGATE_CAPABILITY_HEADER, SSI_CAPABILITY_VALUE);
}

/// Adds the host that the visitor requested, as `mod_proxy` does.
pub(crate) fn add_forwarded_host(headers: &mut HeaderMap, request: &RequestView) {
    let Some(host) = request.headers.get(HOST) else { return };
    if request.is_proxied {
        // The first one of the list is the visitor's, as seen by the proxy in front.
        if let Ok(host) = host.to_str() {
            append_to_list_header(headers, &request.headers, FORWARDED_HOST, host);
        }
    } else {
        headers.insert(FORWARDED_HOST, host.clone());
    }
}

/// Appends `own` to a header that each hop extends, whether or not the list of client headers names it.
fn append_to_list_header(headers: &mut HeaderMap, client: &HeaderMap, name: HeaderName, own: &str) {
    let mut values: Vec<&str> =
        client.get_all(&name).iter().filter_map(|value| value.to_str().ok()).collect();
    values.push(own);
    if let Ok(value) = HeaderValue::from_str(&values.join(", ")) {
        headers.insert(name, value);
    }
}

/// Returns true if the request passed so many dispatchers that it loops.
pub(crate) fn is_in_forwarding_loop(request: &RequestView) -> bool {
    let passed: usize = request
        .headers
        .get_all(VIA)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .map(|value| value.matches("(dispatcher)").count())
        .sum();
    passed >= MAX_DISPATCHER_HOPS
}

/// Removes the headers of a render's response that are not meant for the visitor.
pub(crate) fn clean_response_headers(headers: &mut HeaderMap) {
    for name in connection_named_headers(headers) {
        headers.remove(name);
    }
    let own: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_hop_by_hop(name) || name.as_str() == "dispatcher")
        .cloned()
        .collect();
    for name in own {
        headers.remove(name);
    }
}

fn connection_named_headers(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE].contains(name)
        || matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "proxy-authenticate" | "proxy-authorization"
        )
}
