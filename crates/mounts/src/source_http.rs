//! Sends requests to HTTP sources, from a thread that may block.
//!
//! Invariants
//! * Credentials are sent only to the location's host: redirects are not followed.
//! * The host's name must not resolve to a nearer network than at first, or to an address that serves secrets, unless
//!   `[outgoing]` lists it.
//! * Every wait is limited: for the response, for each chunk, and for the whole response in proportion to its length.
//! * Requests that may be repeated are retried a few times; a rejected request is not.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use tokio::runtime::Handle;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::outgoing_policy::OutgoingPolicy;
use tympan_web::tls::TlsTrust;

use crate::mount_location::MountLocation;
use crate::mount_source::MountSourceError;

/// Default maximum time without data from a location.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum time allowed for a response, and the minimum rate in bytes per second beyond that.
const MIN_RESPONSE_TIME: Duration = Duration::from_secs(60);
const MIN_BYTES_PER_SECOND: u64 = 4 * 1024;
/// Maximum number of attempts per request, and the delay before the first retry.
const MAX_REQUEST_ATTEMPTS: u32 = 3;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);

/// Characters that are escaped in the path of a URL.
const URL_PATH_ESCAPES: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Escapes one part of a path or query.
pub(crate) fn escape_url_part(bytes: &[u8]) -> String {
    percent_encode(bytes, URL_PATH_ESCAPES).to_string()
}

/// Escapes the parts of a path that [`super::name_escaping::escape_name`] produced, for a URL. Returns `None` if a part
/// is not an escaped name.
pub(crate) fn escape_url_path(escaped: &str) -> Option<String> {
    let parts: Option<Vec<String>> = escaped
        .split('/')
        .map(|name| super::name_escaping::unescape_name(name).map(|name| escape_url_part(&name)))
        .collect();
    parts.map(|parts| parts.join("/"))
}

/// The network access of sources: the runtime for requests, and the nearby addresses to which hosts may resolve.
#[derive(Debug, Clone)]
pub(crate) struct SourceNetwork {
    pub(crate) runtime: Handle,
    pub(crate) outgoing_policy: OutgoingPolicy,
}

/// An HTTP client for one host.
#[derive(Debug, Clone)]
pub(crate) struct SourceHost {
    client: HttpClient,
    runtime: Handle,
    basic_authorization: Option<HeaderValue>,
    /// Scheme, host and port.
    origin: String,
    idle_timeout: Duration,
}

impl SourceHost {
    /// Creates a client for the host of `url`, an HTTP or HTTPS address.
    pub(crate) fn new(
        url: &str,
        location: &MountLocation,
        network: &SourceNetwork,
    ) -> Result<Self, String> {
        let uri: http::Uri = url.parse().map_err(|_| format!("`{url}` is not a valid address"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(format!("`{url}` names no host"));
        };
        let trust = match (&location.tls_trust, scheme) {
            (Some(trust), _) => Some(trust.clone()),
            (None, "https") => Some(TlsTrust::system_roots().map_err(|error| error.to_string())?),
            (None, _) => None,
        };
        let timeout = location.idle_timeout.unwrap_or(DEFAULT_IDLE_TIMEOUT);
        // The configuration names the host, which therefore may be on a nearby network.
        let outgoing = Some(Arc::new(network.outgoing_policy.for_configured_host(&uri)));
        let options = ClientOptions {
            response_timeout: Some(timeout),
            tls_trust: trust,
            outgoing_policy: outgoing,
            ..ClientOptions::default()
        };
        Ok(Self {
            client: HttpClient::new(options),
            runtime: network.runtime.clone(),
            basic_authorization: basic_authorization(location)?,
            origin: format!("{scheme}://{authority}"),
            idle_timeout: timeout,
        })
    }

    /// Returns scheme, host and port.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns the host as sent in the request's header.
    pub(crate) fn authority(&self) -> &str {
        self.origin.split_once("://").map_or("", |(_, authority)| authority)
    }

    /// Requests a path with query and these headers. Returns a successful response.
    pub(crate) fn send_request(
        &self,
        method: &Method,
        target: &str,
        headers: &[(&'static str, String)],
        body: &'static str,
    ) -> Result<SourceResponse, MountSourceError> {
        let location =
            || format!("{}{}", self.origin, target.split('?').next().unwrap_or_default());
        let unreachable =
            |reason: String| MountSourceError::Unreachable { location: location(), reason };
        let mut failure = unreachable(String::new());
        for attempt in 0..MAX_REQUEST_ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(FIRST_RETRY_DELAY * 2_u32.pow(attempt - 1));
            }
            let mut request = Request::builder()
                .method(method)
                .uri(format!("{}{target}", self.origin))
                .header(header::ACCEPT_ENCODING, "identity")
                .header(header::USER_AGENT, "tympan");
            for (name, value) in headers {
                request = request.header(*name, value.as_str());
            }
            if let Some(basic) = &self.basic_authorization {
                request = request.header(header::AUTHORIZATION, basic.clone());
            }
            let refused =
                |reason: String| MountSourceError::Refused { location: location(), reason };
            let request = request
                .body(Full::new(Bytes::from_static(body.as_bytes())))
                .map_err(|error| refused(error.to_string()))?;
            let response = match self.runtime.block_on(self.client.send(request)) {
                Ok(response) => response,
                Err(error) => {
                    failure = unreachable(tympan_notation::error_chain_text(&error));
                    if error.is_transient() {
                        continue;
                    }
                    return Err(failure);
                }
            };
            let status = response.status();
            if status.is_success() {
                return Ok(SourceResponse::new(response, self, location()));
            }
            if !(status.is_server_error() || matches!(status.as_u16(), 408 | 429)) {
                return Err(refused(refusal_reason(
                    status,
                    response.headers().get(header::LOCATION),
                )));
            }
            failure = unreachable(format!("it answered {status}"));
        }
        Err(failure)
    }
}

fn basic_authorization(location: &MountLocation) -> Result<Option<HeaderValue>, String> {
    let Some(user) = &location.user else { return Ok(None) };
    let secret = location.secret.as_ref().map_or("", |secret| secret.expose_secret());
    let text = format!("Basic {}", STANDARD.encode(format!("{user}:{secret}")));
    let mut value = HeaderValue::from_str(&text).map_err(|error| error.to_string())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn refusal_reason(status: StatusCode, location: Option<&HeaderValue>) -> String {
    match (status.as_u16(), location.and_then(|location| location.to_str().ok())) {
        (300..=399, Some(location)) => {
            // Redirects are not followed, because they may lead anywhere.
            format!(
                "it answered {status} and redirects to `{}`; mount that address",
                location.split('?').next().unwrap_or_default()
            )
        }
        (401 | 403, _) => {
            format!("it answered {status}; check the credentials of its `[[mounts.location]]`")
        }
        _ => format!("it answered {status}"),
    }
}

/// A response whose body is read in chunks.
pub(crate) struct SourceResponse {
    head: http::response::Parts,
    body: Incoming,
    chunk: Bytes,
    runtime: Handle,
    idle_timeout: Duration,
    started_at: Instant,
    received_bytes: u64,
    location: String,
}

impl SourceResponse {
    fn new(response: Response<Incoming>, host: &SourceHost, location: String) -> Self {
        let (head, body) = response.into_parts();
        Self {
            head,
            body,
            chunk: Bytes::new(),
            runtime: host.runtime.clone(),
            idle_timeout: host.idle_timeout,
            started_at: Instant::now(),
            received_bytes: 0,
            location,
        }
    }

    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// Returns the requested address, without its query.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Waits for the next chunk. Returns false at the end.
    fn read_next_chunk(&mut self) -> io::Result<bool> {
        loop {
            let frame = self.body.frame();
            let frame = self
                .runtime
                .block_on(async { tokio::time::timeout(self.idle_timeout, frame).await })
                .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it stopped sending data"))?;
            let Some(frame) = frame else { return Ok(false) };
            let frame = frame.map_err(io::Error::other)?;
            let Ok(piece) = frame.into_data() else { continue };
            self.received_bytes += piece.len() as u64;
            let allowed =
                MIN_RESPONSE_TIME + Duration::from_secs(self.received_bytes / MIN_BYTES_PER_SECOND);
            if self.started_at.elapsed() > allowed {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it sends too slowly"));
            }
            if !piece.is_empty() {
                self.chunk = piece;
                return Ok(true);
            }
        }
    }
}

impl Read for SourceResponse {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.chunk.is_empty() && !self.read_next_chunk()? {
            return Ok(0);
        }
        let piece = self.chunk.split_to(self.chunk.len().min(buffer.len()));
        if let Some(buffer) = buffer.get_mut(..piece.len()) {
            buffer.copy_from_slice(&piece);
        }
        Ok(piece.len())
    }
}

impl std::fmt::Debug for SourceResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceResponse").field("place", &self.location).finish_non_exhaustive()
    }
}
