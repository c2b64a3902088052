//! The store of a running instance, read over HTTP: the base of a clone on another machine, or the source of a standby.
//!
//! In: ids. Out: chunks and blobs, checked against the ids; refs, history, leases. Reads are synchronous for the caller
//! and run on a separate runtime.
//!
//! Invariants
//! * Nothing is returned that does not match its hash, even if the remote side is hostile.
//! * Every response is bounded in bytes and every wait in time.
//!
//! On failure: a request is retried a few times while that can help, then the error is returned. While the remote side
//! does not respond, requests fail at once, except for periodic probes.
//!
//! Not here: which requests are made at which time. `docs/formats/remote-store.md` describes the exchange.

use std::fmt;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;
use tympan_blobs::{BlobContent, ReadBlobs};
use tympan_store::{
    BaseStore, BlobId, Chunk, ChunkId, Error, IdParseError, ReadChunks, RefUpdate, Revision,
    RootLease,
};
use tympan_web::body_limit::limit_body;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::tls::TlsTrust;

use crate::delivery::frame_codec::{
    MAX_FRAME_BYTES, MAX_REQUEST_IDS, MAX_RESPONSE_BYTES, decode_frames, encode_blob_ids,
    encode_chunk_ids,
};
use crate::delivery::message::REPLICATION_KEY_HEADER;
use crate::shared_store::circuit_breaker::{CircuitDecision, StoreCircuitBreaker};
use crate::shared_store::store_service::{
    STORE_PATH, WireLease, WireLeaseRequest, WireRevision, from_unix_micros,
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// The maximum number of attempts of a request.
const MAX_ATTEMPTS: u32 = 4;
/// The wait before the first retry; it doubles with each further one.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
/// The maximum time without progress while a response is received.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time until a response is complete; for large blobs, only the idle timeout applies.
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(2);
/// The maximum length of a JSON response, in bytes.
const MAX_JSON_BYTES: u64 = 16 << 20;
/// The capacity of the cache of recently read chunks, in bytes.
const CHUNK_CACHE_BYTES: u64 = 64 << 20;
/// The number of ids per request.
const ID_BATCH_SIZE: usize = 1_024;

/// The credentials of a client.
#[derive(Clone)]
pub enum RemoteStoreCredentials {
    /// The key shared by the instances of a farm.
    Key(String),
    /// A token of the user `admin`.
    Token(String),
}

impl fmt::Debug for RemoteStoreCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The store of an instance at a URL.
pub struct RemoteStore {
    url: String,
    authorization: (&'static str, HeaderValue),
    client: HttpClient,
    /// The runtime; taken when the store is dropped.
    runtime: Option<Runtime>,
    chunk_cache: Cache<ChunkId, Chunk, CachedChunkWeighter>,
    /// The folder in which large blobs are spooled while they are read.
    spool_dir: PathBuf,
    circuit_breaker: StoreCircuitBreaker,
}

#[derive(Clone, Copy, Debug)]
struct CachedChunkWeighter;

impl Weighter<ChunkId, Chunk> for CachedChunkWeighter {
    fn weight(&self, _: &ChunkId, chunk: &Chunk) -> u64 {
        chunk.bytes().len() as u64 + 128
    }
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({})", self.url)
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        // Dropping a runtime waits for its tasks, which is not allowed on a thread of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The failure of one request.
struct RemoteRequestFailure {
    reason: String,
    is_transient: bool,
    status: Option<StatusCode>,
}

impl RemoteRequestFailure {
    fn transient(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: true, status: None }
    }

    fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: false, status: None }
    }

    /// Returns true if the error comes from an instance, and not from a proxy in front of one that is down.
    fn is_instance_response(&self) -> bool {
        self.status.is_some_and(|status| !matches!(status.as_u16(), 502..=504))
    }
}

/// One request in a form that can be sent repeatedly.
#[derive(Clone)]
struct RemoteStoreRequest {
    method: Method,
    path_and_query: String,
    body: Bytes,
    max_response_bytes: u64,
}

impl RemoteStore {
    /// Creates a client of the store of the instance at `url`, such as `https://author.example.org`. Large blobs are
    /// spooled in the folder `spool`, which is created when needed.
    ///
    /// # Errors
    /// [`Error::Remote`] for a URL or credentials that cannot be used, or if the system cannot create threads.
    pub fn new(
        url: &str,
        credentials: &RemoteStoreCredentials,
        trust: Option<TlsTrust>,
        spool: &Path,
    ) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let fault =
            |reason: String| Error::Remote { base: url.clone(), reason, is_transient: false };
        let (name, value) = match credentials {
            RemoteStoreCredentials::Key(key) => (REPLICATION_KEY_HEADER, key.clone()),
            RemoteStoreCredentials::Token(token) => ("authorization", format!("Bearer {token}")),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|error| fault(error.to_string()))?;
        value.set_sensitive(true);
        let uri: Result<http::Uri, _> = url.parse();
        if !uri.is_ok_and(|uri| uri.authority().is_some() && uri.scheme().is_some()) {
            return Err(fault("it is not a URL".to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("remote-store")
            .enable_all()
            .build()
            .map_err(|error| fault(error.to_string()))?;
        let client = {
            let _entered = runtime.enter();
            HttpClient::new(ClientOptions { tls_trust: trust, ..ClientOptions::default() })
        };
        Ok(Self {
            authorization: (name, value),
            client,
            runtime: Some(runtime),
            chunk_cache: Cache::with_weighter(16_384, CHUNK_CACHE_BYTES, CachedChunkWeighter),
            spool_dir: spool.to_owned(),
            circuit_breaker: StoreCircuitBreaker::default(),
            url,
        })
    }

    fn unavailable_error(&self, fault: RemoteRequestFailure) -> Error {
        let RemoteRequestFailure { reason, is_transient, .. } = fault;
        Error::Remote { base: self.url.clone(), reason, is_transient }
    }

    fn malformed_response_error(&self, reason: impl fmt::Display) -> Error {
        self.unavailable_error(RemoteRequestFailure::permanent(reason.to_string()))
    }

    /// Runs a request unless the remote side is known to be down, and records whether it responds. `work` receives the
    /// maximum number of attempts.
    fn run_with_breaker<T: Send + 'static, F>(
        &self,
        work: impl FnOnce(u32) -> F,
    ) -> Result<T, RemoteRequestFailure>
    where
        F: Future<Output = Result<T, RemoteRequestFailure>> + Send + 'static,
    {
        let attempts = match self.circuit_breaker.decide_request(Instant::now()) {
            CircuitDecision::Allow => MAX_ATTEMPTS,
            CircuitDecision::Probe => 1,
            CircuitDecision::Reject(reason) => return Err(RemoteRequestFailure::transient(reason)),
        };
        let done = self.block_on(work(attempts));
        match &done {
            Err(fault) if fault.is_transient && !fault.is_instance_response() => {
                if self.circuit_breaker.failure_reason().is_none() {
                    tracing::warn!(reason = fault.reason, target = self.url, "base unreachable");
                }
                self.circuit_breaker.record_failure(&fault.reason, Instant::now());
            }
            _ => {
                if self.circuit_breaker.failure_reason().is_some() {
                    tracing::info!(target = self.url, "base responds again");
                }
                self.circuit_breaker.record_success();
            }
        }
        done
    }

    /// Runs a request on the store's own runtime and blocks this thread until it is complete.
    fn block_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, RemoteRequestFailure>> + Send + 'static,
    ) -> Result<T, RemoteRequestFailure> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else {
            return Err(RemoteRequestFailure::permanent("the client is closed"));
        };
        runtime.spawn(async move {
            // Sending fails if the caller's thread has ended; the result is then not needed.
            sender.send(work.await).ok();
        });
        receiver
            .recv()
            .unwrap_or_else(|_| Err(RemoteRequestFailure::permanent("the request was canceled")))
    }

    /// Sends a request until there is a response or a further retry cannot help.
    fn send_with_retries(&self, ask: &RemoteStoreRequest) -> Result<Bytes, RemoteRequestFailure> {
        let (client, url, ask) = (self.client.clone(), self.url.clone(), ask.clone());
        let authorization = self.authorization.clone();
        self.run_with_breaker(|attempts| async move {
            let mut wait = FIRST_RETRY_DELAY;
            let mut attempt = 1;
            loop {
                let sent = send_once(&client, &url, &authorization, &ask);
                let response =
                    tokio::time::timeout(RESPONSE_TIMEOUT, sent).await.unwrap_or_else(|_| {
                        let waited = RESPONSE_TIMEOUT.as_secs();
                        Err(RemoteRequestFailure::transient(format!(
                            "its response was not complete after {waited} s"
                        )))
                    });
                match response {
                    Err(fault) if fault.is_transient && attempt < attempts => {
                        tokio::time::sleep(wait).await;
                        wait *= 2;
                        attempt += 1;
                    }
                    response => return response,
                }
            }
        })
    }

    fn get_json<T: DeserializeOwned>(&self, path_and_query: &str) -> Result<T> {
        let ask = RemoteStoreRequest {
            method: Method::GET,
            path_and_query: path_and_query.to_owned(),
            body: Bytes::new(),
            max_response_bytes: MAX_JSON_BYTES,
        };
        let body = self.send_with_retries(&ask).map_err(|fault| self.unavailable_error(fault))?;
        serde_json::from_slice(&body).map_err(|error| self.malformed_response_error(error))
    }

    fn post_body(&self, path_and_query: &str, body: Bytes, max: u64) -> Result<Bytes> {
        let ask = RemoteStoreRequest {
            method: Method::POST,
            path_and_query: path_and_query.to_owned(),
            body,
            max_response_bytes: max,
        };
        self.send_with_retries(&ask).map_err(|fault| self.unavailable_error(fault))
    }

    /// Reads the objects with the given ids, in as many requests as needed.
    fn read_frames<I>(
        &self,
        path: &str,
        ids: &[I],
        encode: fn(&[I]) -> Bytes,
    ) -> Result<Vec<Option<Bytes>>> {
        let max = (MAX_RESPONSE_BYTES + MAX_FRAME_BYTES + 64 * MAX_REQUEST_IDS) as u64;
        let mut frames = Vec::with_capacity(ids.len());
        while let Some(rest) = ids.get(frames.len()..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..ID_BATCH_SIZE).unwrap_or(rest);
            let body = self.post_body(path, encode(part), max)?;
            let part_frames = decode_frames(&body, part.len())
                .map_err(|error| self.malformed_response_error(error))?;
            frames.extend(part_frames);
        }
        Ok(frames)
    }

    /// Reads a note of this repository beside the blobs of the instance.
    pub(crate) fn read_note(&self, name: &str, max: u64) -> Result<Option<Bytes>> {
        let path_and_query = format!("/note/{}", encode_query(name));
        let ask = RemoteStoreRequest {
            method: Method::GET,
            path_and_query,
            body: Bytes::new(),
            max_response_bytes: max,
        };
        self.send_if_exists(&ask)
    }

    /// Lists notes with the times at which they were written.
    pub(crate) fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let path_and_query = format!("/notes?prefix={}", encode_query(prefix));
        let listed: Vec<(String, i64)> = self.get_json(&path_and_query)?;
        Ok(listed.into_iter().map(|(name, at)| (name, from_unix_micros(at))).collect())
    }

    /// Writes a note.
    pub(crate) fn write_note(&self, name: &str, body: Bytes) -> Result<()> {
        let path_and_query = format!("/note/{}", encode_query(name));
        let ask = RemoteStoreRequest {
            method: Method::PUT,
            path_and_query,
            body,
            max_response_bytes: MAX_JSON_BYTES,
        };
        self.send_with_retries(&ask).map(drop).map_err(|fault| self.unavailable_error(fault))
    }

    /// Removes a note; returns `false` if it does not exist.
    pub(crate) fn delete_note(&self, name: &str) -> Result<bool> {
        let path_and_query = format!("/note/{}", encode_query(name));
        let ask = RemoteStoreRequest {
            method: Method::DELETE,
            path_and_query,
            body: Bytes::new(),
            max_response_bytes: MAX_JSON_BYTES,
        };
        Ok(self.send_if_exists(&ask)?.is_some())
    }

    /// Sends a request for an object that may not exist.
    fn send_if_exists(&self, ask: &RemoteStoreRequest) -> Result<Option<Bytes>> {
        match self.send_with_retries(ask) {
            Ok(body) => Ok(Some(body)),
            Err(RemoteRequestFailure { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(None),
            Err(fault) => Err(self.unavailable_error(fault)),
        }
    }

    fn parse_root(&self, root: Option<String>) -> Result<Option<ChunkId>> {
        let parse = |root: String| {
            root.parse().map_err(|error: IdParseError| self.malformed_response_error(error))
        };
        root.map(parse).transpose()
    }

    fn blob_path(id: &BlobId) -> String {
        format!("/blob/{}", id.to_string().replace('#', "/"))
    }
}

/// Sends a request once and reads the response.
async fn send_once(
    client: &HttpClient,
    url: &str,
    (name, value): &(&'static str, HeaderValue),
    ask: &RemoteStoreRequest,
) -> Result<Bytes, RemoteRequestFailure> {
    let response = send_for_head(client, url, name, value, ask).await?;
    let body = limit_body(response.into_body(), ask.max_response_bytes)
        .with_idle_timeout(IDLE_TIMEOUT)
        .collect()
        .await;
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if tympan_web::body_limit::is_body_too_large(error.as_ref()) => {
            Err(RemoteRequestFailure::permanent(error.to_string()))
        }
        Err(error) => {
            Err(RemoteRequestFailure::transient(format!("the response was interrupted: {error}")))
        }
    }
}

/// Sends a request and returns the head of the response, if the status is a success.
async fn send_for_head(
    client: &HttpClient,
    url: &str,
    name: &'static str,
    value: &HeaderValue,
    ask: &RemoteStoreRequest,
) -> Result<http::Response<hyper::body::Incoming>, RemoteRequestFailure> {
    let uri = format!("{url}{STORE_PATH}{}", ask.path_and_query);
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    let request = Request::builder()
        .method(ask.method.clone())
        .uri(&uri)
        .header(header::HOST, host.split('/').next().unwrap_or(host))
        .header(header::CONTENT_TYPE, "application/json")
        .header(name, value)
        .body(Full::new(ask.body.clone()))
        .map_err(|error| RemoteRequestFailure::permanent(error.to_string()))?;
    let response = client.send(request).await.map_err(|error| {
        let mut reason = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            reason = format!("{reason}: {cause}");
        }
        RemoteRequestFailure { reason, is_transient: error.is_transient(), status: None }
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body =
        limit_body(response.into_body(), 64 * 1024).with_idle_timeout(IDLE_TIMEOUT).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let response_json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let message =
        response_json.get("error").and_then(serde_json::Value::as_str).unwrap_or_default();
    Err(RemoteRequestFailure {
        reason: format!("it answered {status}: {message}"),
        is_transient: matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504),
        status: Some(status),
    })
}

impl ReadChunks for RemoteStore {
    fn read_chunk(&self, id: &ChunkId) -> Result<Chunk> {
        let chunks = self.read_chunks(std::slice::from_ref(id))?;
        chunks.into_iter().next().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_chunks(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> =
            ids.iter().map(|id| self.chunk_cache.get(id)).collect();
        let is_absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let missing_ids: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(is_absent).collect();
        let frames = self.read_frames("/chunks/read", &missing_ids, encode_chunk_ids)?;
        let mut pairs = missing_ids.iter().zip(frames);
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_none()) {
            let Some((id, frame)) = pairs.next() else { break };
            let bytes = frame.ok_or(Error::ChunkMissing { id: *id })?;
            if ChunkId::hash_of(&bytes) != *id {
                let fault = "the received content does not match its hash";
                return Err(Error::ChunkDamaged { id: *id, fault });
            }
            let parsed = Chunk::parse(bytes)?;
            self.chunk_cache.insert(*id, parsed.clone());
            *chunk = Some(parsed);
        }
        Ok(chunks.into_iter().flatten().collect())
    }
}

impl BaseStore for RemoteStore {
    fn display_name(&self) -> String {
        self.url.clone()
    }

    fn contains_chunks(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = Vec::with_capacity(ids.len());
        for part in ids.chunks(ID_BATCH_SIZE) {
            let body =
                self.post_body("/chunks/lacking", encode_chunk_ids(part), part.len() as u64)?;
            if body.len() != part.len() {
                return Err(self.malformed_response_error(
                    "the response does not have the length of the request",
                ));
            }
            present.extend(body.iter().map(|lacks| *lacks == 0));
        }
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let frames = self.read_frames("/blobs/read", ids, encode_blob_ids)?;
        for (id, bytes) in ids.iter().zip(&frames) {
            if bytes.as_ref().is_some_and(|bytes| BlobId::hash_of(bytes) != *id) {
                let fault = "the received content does not match its hash";
                return Err(Error::BlobDamaged { id: *id, fault });
            }
        }
        Ok(frames)
    }

    fn list_refs(&self) -> Result<Vec<(String, ChunkId)>> {
        let refs: Vec<(String, String)> = self.get_json("/refs")?;
        let parse = |(name, root): (String, String)| {
            Ok((
                name,
                root.parse().map_err(|error: IdParseError| self.malformed_response_error(error))?,
            ))
        };
        refs.into_iter().map(parse).collect()
    }

    fn ref_history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        let mut revisions: Vec<Revision> = Vec::new();
        let mut before = before;
        while revisions.len() < limit {
            let page_limit = (limit - revisions.len()).min(1_000);
            let from = before.map(|before| format!("&before={before}")).unwrap_or_default();
            let name_in_url = encode_query(name);
            let page: Vec<WireRevision> =
                self.get_json(&format!("/history?ref={name_in_url}&limit={page_limit}{from}"))?;
            let is_last = page.len() < page_limit;
            for revision in page {
                // Without this check, a hostile instance could continue the list without end.
                if before.is_some_and(|before| revision.sequence >= before) {
                    return Err(self.malformed_response_error("its revisions are not in order"));
                }
                before = Some(revision.sequence);
                let update = RefUpdate {
                    name: name.to_owned(),
                    expected_root: self.parse_root(revision.old)?,
                    new_root: self.parse_root(revision.new)?,
                    updated_at: from_unix_micros(revision.at),
                    author: revision.author,
                    message: revision.message,
                };
                revisions.push(Revision { sequence: revision.sequence, update });
            }
            if is_last {
                break;
            }
        }
        Ok(revisions)
    }

    fn find_lease(&self, holder: &str) -> Result<Option<RootLease>> {
        let lease: WireLease = self.get_json(&format!("/lease?holder={}", encode_query(holder)))?;
        let expires = lease.expires.map(from_unix_micros);
        let root = self.parse_root(lease.root)?;
        Ok(root.map(|root| RootLease { holder: holder.to_owned(), root, expires_at: expires }))
    }

    fn grant_lease(&self, lease: &RootLease) -> Result<()> {
        // The clocks of two machines differ, so the remaining duration is used.
        let now = SystemTime::now();
        let life = lease.expires_at.map(|until| until.duration_since(now).unwrap_or_default());
        let grant = WireLeaseRequest {
            holder: lease.holder.clone(),
            root: lease.root.to_string(),
            seconds: life.map_or(u64::MAX, |life| life.as_secs().max(1)),
        };
        let body = serde_json::to_vec(&grant)
            .map_err(|error| self.malformed_response_error(error))?
            .into();
        let ask = RemoteStoreRequest {
            method: Method::PUT,
            path_and_query: "/lease".to_owned(),
            body,
            max_response_bytes: MAX_JSON_BYTES,
        };
        match self.send_with_retries(&ask) {
            Ok(_) => Ok(()),
            Err(RemoteRequestFailure { status: Some(StatusCode::NOT_FOUND), .. }) => {
                Err(Error::ChunkMissing { id: lease.root })
            }
            Err(fault) => Err(self.unavailable_error(fault)),
        }
    }

    fn release_lease(&self, holder: &str) -> Result<()> {
        let path_and_query = format!("/lease?holder={}", encode_query(holder));
        let ask = RemoteStoreRequest {
            method: Method::DELETE,
            path_and_query,
            body: Bytes::new(),
            max_response_bytes: MAX_JSON_BYTES,
        };
        self.send_with_retries(&ask).map(drop).map_err(|fault| self.unavailable_error(fault))
    }

    fn outage_reason(&self) -> Option<String> {
        self.circuit_breaker.failure_reason()
    }
}

impl ReadBlobs for RemoteStore {
    fn open(&self, id: &BlobId) -> tympan_blobs::Result<Option<BlobContent>> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.spool_dir)
            .map_err(tympan_blobs::Error::Source)?;
        let mut file =
            tempfile::tempfile_in(&self.spool_dir).map_err(tympan_blobs::Error::Source)?;
        let ask = RemoteStoreRequest {
            method: Method::GET,
            path_and_query: Self::blob_path(id),
            body: Bytes::new(),
            max_response_bytes: id.length(),
        };
        let (client, url) = (self.client.clone(), self.url.clone());
        let (authorization, id) = (self.authorization.clone(), *id);
        let fetched = self.run_with_breaker(|_| async move {
            let (name, value) = &authorization;
            let response = send_for_head(&client, &url, name, value, &ask).await?;
            let mut body = limit_body(response.into_body(), ask.max_response_bytes)
                .with_idle_timeout(IDLE_TIMEOUT);
            let mut hash = Sha256::new();
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                let frame =
                    frame.map_err(|error| RemoteRequestFailure::transient(error.to_string()))?;
                if let Ok(data) = frame.into_data() {
                    hash.update(&data);
                    length += data.len() as u64;
                    file.write_all(&data)
                        .map_err(|error| RemoteRequestFailure::transient(error.to_string()))?;
                }
            }
            file.seek(SeekFrom::Start(0))
                .map_err(|error| RemoteRequestFailure::transient(error.to_string()))?;
            Ok((file, BlobId::new(hash.finalize().into(), length)))
        });
        match fetched {
            Ok((file, actual)) if actual == id => {
                Ok(Some(BlobContent::File { file, length: id.length() }))
            }
            Ok((_, actual)) => Err(self
                .malformed_response_error(format!(
                    "the blob {id} was requested, but {actual} was received"
                ))
                .into()),
            Err(RemoteRequestFailure { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(None),
            Err(fault) => Err(self.unavailable_error(fault).into()),
        }
    }

    fn contains(&self, id: &BlobId) -> tympan_blobs::Result<bool> {
        let ask = RemoteStoreRequest {
            method: Method::HEAD,
            path_and_query: Self::blob_path(id),
            body: Bytes::new(),
            max_response_bytes: 1,
        };
        match self.send_with_retries(&ask) {
            Ok(_) => Ok(true),
            Err(RemoteRequestFailure { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(false),
            Err(fault) => Err(self.unavailable_error(fault).into()),
        }
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// Encodes a text for a query string.
fn encode_query(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
