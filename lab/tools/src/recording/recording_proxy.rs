//! A proxy that forwards requests and records the exchanges.
//!
//! In: an address to listen on, and the destination of the requests. Out: the [`ProxyExchange`]s, in the order of their
//! responses.
//!
//! It is a forward proxy for requests that name their host (`GET http://host/path`), and a reverse proxy for one site
//! if an upstream is given. Encrypted connections that a browser wants to tunnel cannot be read, so `CONNECT` is
//! answered with 501 and the advice to record the site through an upstream.
//!
//! With an upstream, responses are changed as far as needed for the client to stay with the proxy: see
//! [`rewrite_upstream_links`]. The recorded response is the site's original.
//!
//! On failure: if a site does not respond, the client receives 502, and the exchange is recorded with that status.
//!
//! Not here: processing of the exchanges ([`crate::comparison::verification`], [`crate::recording`]).

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest, ProbeResponse};
use tympan_lab_plan::AbsoluteUrl;
use tympan_web::http1_response_head::Http1ResponseHead;

use crate::{Error, Result};

/// Maximum length of a request's head, in bytes.
const MAX_REQUEST_HEAD_LEN: usize = 256 * 1024;
/// Delay before the next accept after an accept failed.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum length of a request's body, in bytes.
const MAX_REQUEST_BODY_LEN: usize = 256 * 1024 * 1024;
const HOP_BY_HOP_HEADERS: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "content-length",
    "expect",
];

/// One request and its response.
#[derive(Debug, Clone, PartialEq)]
pub struct ProxyExchange {
    /// Time from the proxy's start to the request's arrival.
    pub started_after: Duration,
    /// Time from the request to the last byte of the response.
    pub elapsed: Duration,
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// The URL the request was sent to.
    pub url: String,
    /// Path and query.
    pub target: String,
    /// The request's headers as received, without the connection headers.
    pub headers: Vec<(String, String)>,
    /// The request's body.
    pub body: Vec<u8>,
    /// The response's status.
    pub status: u16,
    /// The response's headers.
    pub response_headers: Vec<(String, String)>,
    /// The response's body.
    pub response_body: Vec<u8>,
    /// The reason why the site did not respond. The client then received a 502 from the proxy.
    pub failure: Option<String>,
}

type ProxyExchangeListener = dyn Fn(&ProxyExchange) + Send + Sync;

struct ProxyState {
    upstream: Option<AbsoluteUrl>,
    timeout: Duration,
    started: Instant,
    exchanges: Mutex<Vec<ProxyExchange>>,
    /// Open connections by their numbers.
    connections: Mutex<HashMap<u64, TcpStream>>,
    listener: Box<ProxyExchangeListener>,
    is_stopped: AtomicBool,
}

/// A running proxy. Dropping it stops the proxy.
pub struct RecordingProxy {
    address: SocketAddr,
    shared: Arc<ProxyState>,
}

impl std::fmt::Debug for RecordingProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordingProxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl RecordingProxy {
    /// Starts listening. `upstream` is the destination of requests that do not name a site.
    ///
    /// # Errors
    /// `Error::InvalidUrl`; [`Error::Engine`] if the address is in use.
    pub fn start(
        listen: SocketAddr,
        upstream: Option<&str>,
        timeout: Duration,
        watcher: impl Fn(&ProxyExchange) + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(listen).map_err(Error::Engine)?;
        let address = listener.local_addr().map_err(Error::Engine)?;
        let shared = Arc::new(ProxyState {
            upstream: upstream.map(AbsoluteUrl::parse).transpose()?,
            timeout,
            started: Instant::now(),
            exchanges: Mutex::default(),
            connections: Mutex::default(),
            listener: Box::new(watcher),
            is_stopped: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || accept_connections(&listener, &server))
            .map_err(Error::Engine)?;
        Ok(Self { address, shared })
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the exchanges recorded so far.
    #[must_use]
    pub fn exchanges(&self) -> Vec<ProxyExchange> {
        lock_mutex(&self.shared.exchanges).clone()
    }
}

impl Drop for RecordingProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then sees the flag.
        drop(TcpStream::connect(self.address));
        for (_, connection) in lock_mutex(&self.shared.connections).drain() {
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_connections(listener: &TcpListener, shared: &Arc<ProxyState>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if shared.is_stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            // The usual cause is too many open files, which does not end at once.
            std::thread::sleep(ACCEPT_RETRY_DELAY);
            continue;
        };
        if let Ok(handle) = stream.try_clone() {
            lock_mutex(&shared.connections).insert(number, handle);
        }
        let server = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("proxy".to_owned());
        let spawned = thread.spawn(move || {
            serve_connection(&stream, &server);
            lock_mutex(&server.connections).remove(&number);
        });
        // If no thread can be spawned, the connection is closed and the client retries.
        if spawned.is_err() {
            lock_mutex(&shared.connections).remove(&number);
        }
    }
}

/// A request as received.
#[derive(Debug, Default)]
struct ProxyRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    closes_connection: bool,
}

impl ProxyRequest {
    fn header(&self, name: &str) -> Option<&str> {
        let entry = self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        entry.map(|(_, value)| value.as_str())
    }
}

fn serve_connection(stream: &TcpStream, shared: &ProxyState) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = ProxyClientReader { stream: stream.try_clone().ok()?, buffer: Vec::new() };
    let mut client = ProbeClient::new(shared.timeout);
    loop {
        let request = reader.read_request()?;
        let is_last = request.closes_connection;
        let is_head = request.method == "HEAD";
        let response = forward_request(request, shared, &mut client);
        write_response(stream, &response, is_head, is_last)?;
        if is_last {
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
    }
}

/// Forwards a request, records the exchange, and returns the response for the client.
fn forward_request(
    request: ProxyRequest,
    shared: &ProxyState,
    client: &mut ProbeClient,
) -> ProbeResponse {
    if request.method == "CONNECT" {
        return text_response(
            501,
            "encrypted connections cannot be recorded; record the site with --target https://... instead",
        );
    }
    let url = match shared.destination(&request) {
        Ok(url) => url,
        Err(error) => return text_response(400, &error.to_string()),
    };
    let mut headers: Vec<(String, String)> = request
        .headers
        .iter()
        .filter(|(name, _)| !is_hop_by_hop(name) && !name.eq_ignore_ascii_case("host"))
        .cloned()
        .collect();
    // Recorded responses are compared and parsed, which compression would prevent.
    headers.retain(|(name, _)| !name.eq_ignore_ascii_case("accept-encoding"));
    let at = shared.started.elapsed();
    let question =
        ProbeRequest { method: &request.method, url: &url, headers: &headers, body: &request.body };
    let (mut response, failure) = match client.send(&question) {
        Ok(response) => (response, None),
        Err(error) => (text_response(502, &error.to_string()), Some(error.to_string())),
    };
    let exchange = ProxyExchange {
        started_after: at,
        elapsed: shared.started.elapsed().saturating_sub(at),
        method: request.method,
        url: url.to_string(),
        target: url.path_and_query.clone(),
        headers,
        body: request.body,
        status: response.status,
        response_headers: response.headers.clone(),
        response_body: response.body.clone(),
        failure,
    };
    lock_mutex(&shared.exchanges).push(exchange.clone());
    (shared.listener)(&exchange);
    if let Some(upstream) = &shared.upstream {
        rewrite_upstream_links(&mut response, upstream);
    }
    response
}

/// Changes an upstream response so that the client stays with the proxy. Links to the upstream's own address become
/// links to the same path on the proxy. Cookies for the upstream's host become cookies for the proxy, which is not
/// encrypted.
fn rewrite_upstream_links(response: &mut ProbeResponse, upstream: &AbsoluteUrl) {
    for (name, value) in &mut response.headers {
        if name.eq_ignore_ascii_case("location") {
            let Some(url) =
                AbsoluteUrl::parse(value).ok().filter(|url| url.is_same_server(upstream))
            else {
                continue;
            };
            let fragment = value.find('#').and_then(|at| value.get(at..)).unwrap_or_default();
            // A value that begins with two slashes would name another server.
            *value = format!("/{}{fragment}", url.path_and_query.trim_start_matches('/'));
        } else if name.eq_ignore_ascii_case("set-cookie") {
            let host = upstream.host.to_ascii_lowercase();
            // Browsers reject cookies with these name prefixes without `Secure`.
            let start = value.trim_start().to_ascii_lowercase();
            let has_prefix = start.starts_with("__host-") || start.starts_with("__secure-");
            let stays = |part: &&str| {
                let (key, attribute_value) = part.split_once('=').unwrap_or((part, ""));
                match key.trim().to_ascii_lowercase().as_str() {
                    "domain" => {
                        let domain =
                            attribute_value.trim().trim_start_matches('.').to_ascii_lowercase();
                        host != domain && !host.ends_with(&format!(".{domain}"))
                    }
                    "secure" => !upstream.is_tls || has_prefix,
                    // Browsers accept `SameSite=None` only with `Secure`.
                    "samesite" => {
                        !upstream.is_tls || !attribute_value.trim().eq_ignore_ascii_case("none")
                    }
                    _ => true,
                }
            };
            let (pair, words) = value.split_once(';').unwrap_or((value, ""));
            let attributes =
                words.split(';').filter(stays).filter(|attribute| !attribute.trim().is_empty());
            *value = [pair].into_iter().chain(attributes).collect::<Vec<&str>>().join(";");
        }
    }
}

impl ProxyState {
    /// Returns the destination of a request: the request's path on the upstream, or the host that the request names.
    fn destination(&self, request: &ProxyRequest) -> Result<AbsoluteUrl> {
        let path = match request.target.find("://") {
            Some(_) => AbsoluteUrl::parse(&request.target)?.path_and_query,
            None => request.target.clone(),
        };
        if let Some(upstream) = &self.upstream {
            return Ok(AbsoluteUrl { path_and_query: path, ..upstream.clone() });
        }
        if request.target.contains("://") {
            return Ok(AbsoluteUrl::parse(&request.target)?);
        }
        let host = request.header("Host").unwrap_or_default();
        Ok(AbsoluteUrl::parse(&format!("http://{host}{path}"))?)
    }
}

fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header))
        || name.to_ascii_lowercase().starts_with("proxy-")
}

fn text_response(status: u16, text: &str) -> ProbeResponse {
    ProbeResponse {
        status,
        headers: vec![("Content-Type".to_owned(), "text/plain; charset=utf-8".to_owned())],
        body: format!("{text}\n").into_bytes(),
        elapsed: Duration::ZERO,
    }
}

fn write_response(
    mut stream: &TcpStream,
    response: &ProbeResponse,
    is_head: bool,
    is_last: bool,
) -> Option<()> {
    let mut head = Http1ResponseHead::with_reason(response.status, "-");
    for (name, value) in &response.headers {
        let is_length = name.eq_ignore_ascii_case("content-length");
        if !is_hop_by_hop(name) || (is_head && is_length) {
            head.add_header(name, value.as_bytes());
        }
    }
    let has_body = !is_head && !matches!(response.status, 204 | 304);
    if has_body {
        head.add_number("Content-Length", response.body.len() as u64);
    }
    if is_last {
        head.add_header("Connection", b"close");
    }
    stream.write_all(&head.finish()).ok()?;
    if has_body {
        stream.write_all(&response.body).ok()?;
    }
    Some(())
}

/// Buffered bytes of a client that are not consumed yet.
struct ProxyClientReader {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl ProxyClientReader {
    /// Reads one request. Returns `None` at the end of the connection and for bytes that are not HTTP.
    fn read_request(&mut self) -> Option<ProxyRequest> {
        let (mut request, used) = loop {
            if let Some(head) = parse_request_head(&self.buffer)? {
                break head;
            }
            if self.buffer.len() > MAX_REQUEST_HEAD_LEN {
                return None;
            }
            self.read_more()?;
        };
        self.buffer.drain(..used);
        if request.header("Expect").is_some() {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
        }
        let is_chunked = request
            .header("Transfer-Encoding")
            .is_some_and(|coding| coding.to_ascii_lowercase().contains("chunked"));
        request.body = if is_chunked {
            self.read_chunked_body()?
        } else {
            let length =
                request.header("Content-Length").map_or(Some(0), |text| text.parse().ok())?;
            self.take_bytes(length)?
        };
        Some(request)
    }

    fn read_more(&mut self) -> Option<()> {
        let mut piece = [0; 16 * 1024];
        let read = self.stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        self.buffer.extend_from_slice(piece.get(..read)?);
        Some(())
    }

    fn take_bytes(&mut self, length: usize) -> Option<Vec<u8>> {
        if length > MAX_REQUEST_BODY_LEN {
            return None;
        }
        while self.buffer.len() < length {
            self.read_more()?;
        }
        Some(self.buffer.drain(..length).collect())
    }

    fn read_line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.buffer.len() > MAX_REQUEST_HEAD_LEN {
                return None;
            }
            self.read_more()?;
        }
    }

    fn read_chunked_body(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.read_line()?;
            let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
            if size == 0 {
                while !self.read_line()?.is_empty() {}
                return Some(body);
            }
            if body.len().saturating_add(size) > MAX_REQUEST_BODY_LEN {
                return None;
            }
            body.extend(self.take_bytes(size)?);
            self.read_line()?;
        }
    }
}

/// Parses the request head at the start of `bytes`. Returns `None` if it is invalid, and `Some(None)` if it is
/// incomplete.
fn parse_request_head(bytes: &[u8]) -> Option<Option<(ProxyRequest, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut parsed = httparse::Request::new(&mut headers);
    let used = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Some(None),
        Err(_) => return None,
    };
    let headers: Vec<(String, String)> = parsed
        .headers
        .iter()
        .map(|header| {
            (header.name.to_owned(), String::from_utf8_lossy(header.value).trim().to_owned())
        })
        .collect();
    let mut request = ProxyRequest {
        method: parsed.method?.to_owned(),
        target: parsed.path?.to_owned(),
        headers,
        ..ProxyRequest::default()
    };
    let connection = request.header("Connection").unwrap_or_default().to_ascii_lowercase();
    let is_old = parsed.version == Some(0);
    request.closes_connection =
        connection.contains("close") || (is_old && !connection.contains("keep-alive"));
    Some(Some((request, used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the value that the client receives for a header set by the upstream at `https://site`.
    #[track_caller]
    fn check(name: &str, value: &str, expected: &str) {
        let mut response = text_response(302, "");
        response.headers = vec![(name.to_owned(), value.to_owned())];
        rewrite_upstream_links(&mut response, &AbsoluteUrl::parse("https://site/").unwrap());
        assert_eq!(response.headers, [(name.to_owned(), expected.to_owned())]);
    }

    #[test]
    fn a_location_stays_here() {
        check("Location", "https://site/a?b#c", "/a?b#c");
        check("Location", "https://site//a/b", "/a/b");
        check("Location", "https://other//a", "https://other//a");
    }

    #[test]
    fn cookies_with_a_prefix_stay_secure() {
        check("Set-Cookie", "a=b; Path=/; Secure", "a=b; Path=/");
        for name in ["__Host-a", "__secure-a"] {
            let cookie = format!("{name}=b; Secure; Path=/");
            check("Set-Cookie", &cookie, &cookie);
        }
    }
}
