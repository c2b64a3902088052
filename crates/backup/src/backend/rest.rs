//! A vault on a server that speaks restic's REST protocol, version 1 or 2: restic's own `rest-server`, rclone, and
//! others.
//!
//! In: an address, and a login. Out: a backend. Each file is a resource below its kind: `data/NAME`, without the
//! subfolders that other backends use.
//!
//! Invariants
//! * Every wait has a timeout, and every response a maximum length in bytes.
//! * A request is repeated while that can help. Before an interrupted upload is repeated, the backend checks whether
//!   the file exists.
//! * No error and no log contains a password.

use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, RANGE, SERVER};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use serde::Deserialize;
use tokio::runtime::Runtime;
use tympan_notation::error_chain_text;
use tympan_web::body_limit::limit_body;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::tls::TlsTrust;

use super::address::redact_address;
use super::vault_backend::VaultBackend;
use super::vault_file::{VaultFileKind, kind_folder_name};
use crate::object_id::VaultObjectId;

/// The media type that requests lists with lengths.
const REST_V2_MEDIA_TYPE: &str = "application/vnd.x.restic.rest.v2";
/// Maximum number of attempts per request.
const MAX_REQUEST_ATTEMPTS: u32 = 5;
/// The wait before the second attempt; it doubles with each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(250);
/// Timeout from the first byte sent to the head of the response: a pack takes a while over a slow line.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(15);
/// Maximum time without progress while a response is received.
const IDLE_TIMEOUT: Duration = Duration::from_mins(1);
/// Maximum length of a file or list.
const MAX_RESPONSE_BYTES: u64 = 1 << 30;

/// The address of a server in restic's notation: `rest:http://HOST:PORT/PATH/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestAddress {
    /// The URL without a user, ending with `/`.
    pub url: String,
    /// The user, if the address names one.
    pub user: Option<String>,
}

impl RestAddress {
    /// Parses an address; `None` if it does not begin with `rest:`.
    ///
    /// # Errors
    /// A message that describes the mistake and the correct form.
    pub fn parse(text: &str) -> Option<Result<Self, String>> {
        let rest = text.strip_prefix("rest:")?;
        Some(parse_rest_address(rest).map_err(|reason| {
            let text = redact_address(text);
            format!("`{text}` {reason}; write `rest:https://USER@HOST:PORT/PATH`")
        }))
    }
}

fn parse_rest_address(rest: &str) -> Result<RestAddress, &'static str> {
    let (scheme, rest) = rest.split_once("://").ok_or("names no server")?;
    if !matches!(scheme, "http" | "https") {
        return Err("names neither http nor https");
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains(['?', '#']) || path.contains('@') && authority.contains(':') {
        return Err("has a character in its path that is not allowed");
    }
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => {
            return Err(
                "contains a password, which others could see; pass it in a file or the environment",
            );
        }
        Some((user, host)) => (Some(user.to_owned()), host),
        None => (None, authority),
    };
    let path = path.trim_matches('/');
    let end = if path.is_empty() { String::new() } else { format!("{path}/") };
    let url = format!("{scheme}://{host}/{end}");
    let is_whole =
        url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(|host| !host.is_empty()));
    if is_whole { Ok(RestAddress { url, user }) } else { Err("names no server") }
}

/// The credentials for a server.
#[derive(Clone, Default)]
pub struct RestLogin {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
}

impl fmt::Debug for RestLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A vault on a REST server.
pub struct RestBackend {
    location: String,
    url: String,
    authorization: Option<HeaderValue>,
    client: HttpClient,
    /// Taken on drop.
    runtime: Option<Runtime>,
    connections: usize,
}

impl fmt::Debug for RestBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestBackend").field("place", &self.location).finish_non_exhaustive()
    }
}

impl Drop for RestBackend {
    fn drop(&mut self) {
        // Dropping a runtime waits for its tasks, which is not allowed on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An entry of a list, of either protocol version.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum RestListEntry {
    Named { name: String, size: u64 },
    Name(String),
}

/// Decodes a list; an empty one may be `null`.
pub(crate) fn parse_list(body: &[u8]) -> io::Result<Vec<RestListEntry>> {
    let listed: Option<Vec<RestListEntry>> = serde_json::from_slice(body)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    Ok(listed.unwrap_or_default())
}

/// A complete response.
struct RestResponse {
    status: StatusCode,
    length: Option<u64>,
    /// True if the server identifies as rclone, which also answers "not found" for what it cannot read.
    is_from_rclone: bool,
    body: Bytes,
}

/// The reason a request has no response.
struct RestFailure {
    error: io::Error,
    is_transient: bool,
}

#[derive(Clone)]
struct RestRequest {
    method: Method,
    uri: String,
    authorization: Option<HeaderValue>,
    /// The first and the last requested byte.
    range: Option<(u64, u64)>,
    body: Bytes,
}

impl RestBackend {
    /// Creates a backend for the server, without contacting it. `trust` selects the certificates that `https` servers
    /// must be signed by.
    ///
    /// # Errors
    /// If the login cannot be sent, or the system cannot create threads.
    pub fn new(
        address: RestAddress,
        login: Option<&RestLogin>,
        (trust, connections): (Option<TlsTrust>, usize),
    ) -> io::Result<Self> {
        let authorization = match login {
            None => None,
            Some(RestLogin { user, password }) => {
                let text = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
                let mut value = HeaderValue::from_str(&text).map_err(io::Error::other)?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("rest-vault")
            .enable_all()
            .build()?;
        let client = {
            let _entered = runtime.enter();
            HttpClient::new(ClientOptions {
                tls_trust: trust,
                response_timeout: Some(RESPONSE_TIMEOUT),
                ..ClientOptions::default()
            })
        };
        Ok(Self {
            location: format!("rest:{}", address.url),
            url: address.url,
            authorization,
            client,
            runtime: Some(runtime),
            connections,
        })
    }

    /// Returns the URL of a file.
    fn file_url(&self, kind: VaultFileKind, id: &VaultObjectId) -> String {
        match kind {
            VaultFileKind::Config => format!("{}config", self.url),
            _ => format!("{}{}/{id}", self.url, kind_folder_name(kind)),
        }
    }

    fn new_request(&self, method: Method, uri: String) -> RestRequest {
        let authorization = self.authorization.clone();
        RestRequest { method, uri, authorization, range: None, body: Bytes::new() }
    }

    /// Runs a future on the threads of this backend, from any thread.
    fn block_on_runtime<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let over = || io::Error::new(ErrorKind::Interrupted, "the program is shutting down");
        let runtime = self.runtime.as_ref().ok_or_else(over)?;
        let (done, receiver) = sync_channel(1);
        runtime.spawn(async move {
            // The calling thread blocks on this channel.
            done.send(work.await).ok();
        });
        receiver.recv().map_err(|_| over())
    }

    /// Sends a request until it gets a response or retrying is pointless. A request that fails with a server error
    /// (5xx) or because the server is busy (429) is retried.
    fn send_with_retries(&self, ask: RestRequest) -> io::Result<RestResponse> {
        let client = self.client.clone();
        self.block_on_runtime(async move {
            let mut pause = INITIAL_BACKOFF;
            for attempt in 1.. {
                match send_once(&client, ask.clone()).await {
                    Err(failure) if failure.is_transient && attempt < MAX_REQUEST_ATTEMPTS => {}
                    Err(failure) => return Err(failure.error),
                    Ok(response) => {
                        if !is_transient_status(response.status) || attempt == MAX_REQUEST_ATTEMPTS
                        {
                            return Ok(response);
                        }
                    }
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            Err(io::Error::other("no attempt was made"))
        })?
    }

    fn file_length(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Option<u64>> {
        let response =
            self.send_with_retries(self.new_request(Method::HEAD, self.file_url(kind, id)))?;
        match response.status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(response.length.unwrap_or(0))),
            status => Err(status_error(status)),
        }
    }
}

async fn send_once(client: &HttpClient, ask: RestRequest) -> Result<RestResponse, RestFailure> {
    let lasting = |error: io::Error| RestFailure { error, is_transient: false };
    let mut request =
        Request::builder().method(ask.method).uri(ask.uri).header(ACCEPT, REST_V2_MEDIA_TYPE);
    if let Some(authorization) = ask.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    if let Some((first, last)) = ask.range {
        request = request.header(RANGE, format!("bytes={first}-{last}"));
    }
    let request = request.body(Full::new(ask.body));
    let request = request.map_err(|error| lasting(io::Error::other(error)))?;
    let response = client.send(request).await.map_err(|error| RestFailure {
        is_transient: error.is_transient(),
        error: io::Error::new(
            if error.is_transient() { ErrorKind::ConnectionReset } else { ErrorKind::Other },
            error_chain_text(&error),
        ),
    })?;
    let status = response.status();
    let length = response.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let server = response.headers().get(SERVER);
    let is_of_rclone = server.is_some_and(|name| name.as_bytes().starts_with(b"rclone/"));
    // A range response is no longer than the requested range.
    let longest = match (status, ask.range) {
        (StatusCode::PARTIAL_CONTENT, Some((first, last))) => last - first + 1,
        _ => MAX_RESPONSE_BYTES,
    };
    let body =
        limit_body(response.into_body(), longest).with_idle_timeout(IDLE_TIMEOUT).collect().await;
    let body = body.map_err(|error| RestFailure {
        error: io::Error::new(
            ErrorKind::ConnectionReset,
            format!("the response was interrupted: {error}"),
        ),
        is_transient: true,
    })?;
    Ok(RestResponse { status, length, is_from_rclone: is_of_rclone, body: body.to_bytes() })
}

/// Returns true for a status that may pass: a server error, or a busy server.
fn is_transient_status(status: StatusCode) -> bool {
    let is_able = status != StatusCode::NOT_IMPLEMENTED;
    status.is_server_error() && is_able || status == StatusCode::TOO_MANY_REQUESTS
}

/// Converts an unsuccessful status to an error.
fn status_error(status: StatusCode) -> io::Error {
    let (kind, text) = match status {
        StatusCode::NOT_FOUND => return ErrorKind::NotFound.into(),
        StatusCode::UNAUTHORIZED => (
            ErrorKind::PermissionDenied,
            "the server rejected the user or the password; set TYMPAN_REST_USER, and TYMPAN_REST_PASSWORD or \
             `--rest-password-file`",
        ),
        StatusCode::FORBIDDEN => {
            (ErrorKind::PermissionDenied, "the server does not allow it; it may be append-only")
        }
        status if is_transient_status(status) => (ErrorKind::ResourceBusy, "the server failed"),
        _ => (ErrorKind::Other, "the server failed"),
    };
    io::Error::new(kind, format!("{text} (HTTP {})", status.as_u16()))
}

impl VaultBackend for RestBackend {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn connections(&self) -> usize {
        self.connections
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn create(&self) -> io::Result<()> {
        if self.contains(VaultFileKind::Config, &VaultObjectId::default())? {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let response = self.send_with_retries(
            self.new_request(Method::POST, format!("{}?create=true", self.url)),
        )?;
        if !response.status.is_success() {
            return Err(status_error(response.status));
        }
        for kind in
            [VaultFileKind::Key, VaultFileKind::Snapshot, VaultFileKind::Index, VaultFileKind::Pack]
        {
            if !self.list(kind)?.is_empty() {
                return Err(ErrorKind::AlreadyExists.into());
            }
        }
        Ok(())
    }

    fn list(&self, kind: VaultFileKind) -> io::Result<Vec<(VaultObjectId, u64)>> {
        let none = VaultObjectId::default();
        if kind == VaultFileKind::Config {
            return Ok(vec![(none, self.file_length(kind, &none)?.ok_or(ErrorKind::NotFound)?)]);
        }
        let response = self.send_with_retries(
            self.new_request(Method::GET, format!("{}{}/", self.url, kind_folder_name(kind))),
        )?;
        match response.status {
            // The location was never created. rclone answers with an empty list in that case, so from rclone this
            // status is a failure: treating it as a vault without snapshots, or without locks, would lose data.
            StatusCode::NOT_FOUND if !response.is_from_rclone => return Ok(Vec::new()),
            StatusCode::NOT_FOUND => {
                return Err(io::Error::other("rclone cannot list the location (HTTP 404)"));
            }
            status if !status.is_success() => return Err(status_error(status)),
            _ => {}
        }
        let mut objects = Vec::new();
        for entry in parse_list(&response.body)? {
            match entry {
                RestListEntry::Named { name, size } => {
                    objects.extend(name.parse().ok().map(|id| (id, size)))
                }
                // Servers of protocol version 1 report no lengths.
                RestListEntry::Name(name) => {
                    let Ok(id) = name.parse() else { continue };
                    objects.extend(self.file_length(kind, &id)?.map(|length| (id, length)));
                }
            }
        }
        Ok(objects)
    }

    fn contains(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<bool> {
        Ok(self.file_length(kind, id)?.is_some())
    }

    fn read(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<Vec<u8>> {
        let response =
            self.send_with_retries(self.new_request(Method::GET, self.file_url(kind, id)))?;
        if response.status.is_success() {
            Ok(response.body.into())
        } else {
            Err(status_error(response.status))
        }
    }

    fn read_range(
        &self,
        kind: VaultFileKind,
        id: &VaultObjectId,
        start: u64,
        length: usize,
    ) -> io::Result<Vec<u8>> {
        let Some(last) = (length as u64).checked_sub(1) else { return Ok(Vec::new()) };
        let mut ask = self.new_request(Method::GET, self.file_url(kind, id));
        ask.range = Some((start, start.saturating_add(last)));
        let response = self.send_with_retries(ask)?;
        let bytes = match response.status {
            StatusCode::PARTIAL_CONTENT => response.body,
            // A server without range support sends the whole file.
            status if status.is_success() => {
                let from = usize::try_from(start).unwrap_or(usize::MAX).min(response.body.len());
                response.body.slice(from..from.saturating_add(length).min(response.body.len()))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(ErrorKind::UnexpectedEof.into()),
            status => return Err(status_error(status)),
        };
        if bytes.len() == length { Ok(bytes.into()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    fn write(&self, kind: VaultFileKind, id: &VaultObjectId, bytes: &[u8]) -> io::Result<()> {
        let mut ask = self.new_request(Method::POST, self.file_url(kind, id));
        ask.body = Bytes::copy_from_slice(bytes);
        let sent = self.send_with_retries(ask);
        match sent {
            Ok(response) if response.status.is_success() => Ok(()),
            // Servers refuse to overwrite an existing file, such as one that was uploaded before the response was lost.
            // A file that has the same hash as its name and the same length is identical.
            result
                if self.file_length(kind, id)? == Some(bytes.len() as u64)
                    && kind != VaultFileKind::Config =>
            {
                result.map(|_| ())
            }
            Ok(response) => Err(status_error(response.status)),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, kind: VaultFileKind, id: &VaultObjectId) -> io::Result<()> {
        let response =
            self.send_with_retries(self.new_request(Method::DELETE, self.file_url(kind, id)))?;
        match response.status {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(status_error(status)),
        }
    }

    /// The protocol has a request for it, which also removes the contents of the folders; few servers implement it.
    fn remove_folders(&self) -> io::Result<()> {
        if self.contains(VaultFileKind::Config, &VaultObjectId::default())? {
            return Ok(());
        }
        for kind in [
            VaultFileKind::Key,
            VaultFileKind::Lock,
            VaultFileKind::Snapshot,
            VaultFileKind::Index,
            VaultFileKind::Pack,
        ] {
            if !self.list(kind)?.is_empty() {
                return Ok(());
            }
        }
        let response =
            self.send_with_retries(self.new_request(Method::DELETE, self.url.clone()))?;
        match response.status {
            StatusCode::NOT_IMPLEMENTED
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_FOUND
            | StatusCode::FORBIDDEN => Ok(()),
            status if status.is_success() => Ok(()),
            status => Err(status_error(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_show_no_password() {
        let check = |text: &str, expected: &str| {
            let description = match RestAddress::parse(text) {
                None => "none".to_owned(),
                Some(Err(reason)) => reason,
                Some(Ok(RestAddress { url, user })) => {
                    format!("{url} {}", user.unwrap_or_default())
                }
            };
            assert!(
                description.contains(expected) && !description.contains("s3cret"),
                "{text}: {description}"
            );
        };
        check("rest:http://localhost:8000", "http://localhost:8000/ ");
        check("rest:https://ann@host/a/b/", "https://host/a/b/ ann");
        check("rest:https://[::1]:8000/x", "https://[::1]:8000/x/");
        check(
            "rest:https://ann:s3cret@host/x",
            "`rest:https://ann:***@host/x` contains a password",
        );
        check("rest:https://ann:s3/s3cret@host/x", "character in its path");
        check("rest:host/x", "names no server");
        check("rest:ftp://host/x", "neither http nor https");
        check("rest:http:///x", "names no server");
        check("rest:http://host/x?token=s3cret", "character in its path");
        check("/srv/rest:x", "none");
    }
}
