//! The listener for visitors without TLS, which redirects them to the same address with TLS.
//!
//! Input: `[dispatcher.https_redirect]` and a request. Output: a redirect, or the file for a challenge of a certificate
//! authority.
//!
//! Invariants
//! * No page is served here, and no request received here reaches a farm or a render.
//! * The host is the one that the visitor named, as [`tympan_web::request_head`] reads it; without a host no redirect is
//!   possible.
//! * The response to a challenge comes from one folder, by a name of letters, digits, `-` and `_`.

use std::net::SocketAddr;
use std::path::PathBuf;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use schemars::JsonSchema;
use serde::Deserialize;
use tympan_web::request_head;

use crate::edge::response_body::{ResponseBody, full_body};

/// The path at which certificate authorities request the response to a challenge (RFC 8555, section 8.3).
const ACME_CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// The maximum size of a response to a challenge in bytes.
const MAX_CHALLENGE_BYTES: u64 = 4096;

/// `[dispatcher.https_redirect]`; changes take effect at the next start.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HttpsRedirectSettings {
    /// The address to listen on, such as `"0.0.0.0:80"`; default: none. Set it where the dispatcher itself speaks TLS
    /// to visitors.
    pub address: Option<SocketAddr>,
    /// The port of `https` addresses; default 443. Set it where visitors reach TLS at another port.
    pub port: Option<u16>,
    /// The folder in which a certificate renewal program puts responses to challenges (`webroot`, without
    /// `.well-known/acme-challenge`); default: challenges are redirected like everything else, which authorities
    /// follow.
    pub challenges: Option<PathBuf>,
}

impl HttpsRedirectSettings {
    /// Responds to a request.
    pub(crate) fn respond<B>(&self, request: Request<B>) -> Response<ResponseBody> {
        let (mut head, _) = request.into_parts();
        if request_head::normalize_authority(&mut head).is_err() {
            return plain_text_response(StatusCode::BAD_REQUEST, "the request has no host\n");
        }
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        if let Some(name) = head.uri.path().strip_prefix(ACME_CHALLENGE_PATH)
            && let Some(folder) = self.challenges.as_ref().filter(|_| is_read)
        {
            return match read_challenge_response(folder, name) {
                Some(text) => plain_text_response(StatusCode::OK, text),
                None => plain_text_response(StatusCode::NOT_FOUND, "there is no such challenge\n"),
            };
        }
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let Some(host) = host.map(host_without_port).filter(|host| !host.is_empty()) else {
            return plain_text_response(StatusCode::BAD_REQUEST, "the request has no host\n");
        };
        let port = self.port.filter(|port| *port != 443);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        // A request that may change something must be sent again unchanged; old clients would turn it into a GET.
        let status =
            if is_read { StatusCode::MOVED_PERMANENTLY } else { StatusCode::PERMANENT_REDIRECT };
        match HeaderValue::from_str(&format!("https://{host}{port}{target}")) {
            Ok(location) => {
                let mut response = plain_text_response(status, "");
                response.headers_mut().insert(header::LOCATION, location);
                response
            }
            Err(_control_characters) => {
                plain_text_response(StatusCode::BAD_REQUEST, "the target is malformed\n")
            }
        }
    }
}

/// Returns a host without its port.
fn host_without_port(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => host.get(..=end).unwrap_or(host),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// Returns the response to a challenge; `None` if the file is absent.
fn read_challenge_response(folder: &std::path::Path, name: &str) -> Option<Vec<u8>> {
    let is_name = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if !is_name {
        return None;
    }
    let file = folder.join(ACME_CHALLENGE_PATH.trim_matches('/')).join(name);
    let is_file = file
        .metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_CHALLENGE_BYTES);
    is_file.then(|| std::fs::read(file).ok()).flatten()
}

fn plain_text_response(
    status: StatusCode,
    text: impl Into<bytes::Bytes>,
) -> Response<ResponseBody> {
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::HttpsRedirectSettings;
    use http::{Request, Response, StatusCode};
    use http_body_util::BodyExt;

    use crate::edge::response_body::ResponseBody;

    fn ask(
        settings: &HttpsRedirectSettings,
        method: &str,
        target: &str,
        host: &str,
    ) -> Response<ResponseBody> {
        let request = Request::builder().method(method).uri(target);
        let request = if host.is_empty() { request } else { request.header("host", host) };
        settings.respond(request.body(()).unwrap())
    }

    #[test]
    fn visitors_are_sent_to_the_same_address_with_tls() {
        let usual = HttpsRedirectSettings::default();
        let port_settings =
            HttpsRedirectSettings { port: Some(8443), ..HttpsRedirectSettings::default() };
        for (settings, method, target, host, expected) in [
            (&usual, "GET", "/a%20b.html?x=1", "www.a.com", "301 https://www.a.com/a%20b.html?x=1"),
            (&usual, "HEAD", "/", "www.a.com:80", "301 https://www.a.com/"),
            (&usual, "POST", "/form", "www.a.com", "308 https://www.a.com/form"),
            (&usual, "GET", "http://b.com/x", "a.com", "301 https://b.com/x"),
            (&usual, "GET", "//evil.com/", "a.com", "301 https://a.com//evil.com/"),
            (&port_settings, "GET", "/", "[::1]:8080", "301 https://[::1]:8443/"),
            (&usual, "GET", "/", "", "400 "),
            (&usual, "GET", "/", "a b", "400 "),
            (&usual, "GET", "/", "user@a.com", "400 "),
            (&usual, "GET", "/", ":80", "400 "),
            (
                &usual,
                "GET",
                "/.well-known/acme-challenge/t",
                "a.com",
                "301 https://a.com/.well-known/acme-challenge/t",
            ),
        ] {
            let response = ask(settings, method, target, host);
            let location = response.headers().get("location");
            let location = location.map_or("", |location| location.to_str().unwrap());
            let summary = format!("{} {location}", response.status().as_u16());
            assert_eq!(summary, expected, "{method} {target} {host}");
        }
    }

    #[tokio::test]
    async fn challenges_come_from_their_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join(".well-known/acme-challenge");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("to-ken_1"), "to-ken_1.proof").unwrap();
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        let challenges = Some(folder.path().to_owned());
        let settings = HttpsRedirectSettings { challenges, ..HttpsRedirectSettings::default() };
        let response = ask(&settings, "GET", "/.well-known/acme-challenge/to-ken_1", "a.com");
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&*body, b"to-ken_1.proof");
        for name in ["", "none", "../../secret", "..%2f..%2fsecret", "to-ken_1/"] {
            let target = format!("/.well-known/acme-challenge/{name}");
            assert_eq!(
                ask(&settings, "GET", &target, "a.com").status(),
                StatusCode::NOT_FOUND,
                "{name}"
            );
        }
    }
}
