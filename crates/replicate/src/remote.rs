//! The store of a running instance, read over HTTP: what a clone on another machine lies over, or a standby follows.
//!
//! In: ids. Out: chunks and blobs, checked against them; refs, history, leases. Reads are synchronous for the caller and
//! wait for a runtime of their own.
//!
//! Invariants
//! * Nothing is returned that does not have its hash, however hostile the other side is.
//! * Every answer is bounded in bytes and every wait in time.
//!
//! On failure: a request is sent again a few times while that can help, then the error says so. While nobody answers,
//! requests fail at once, but for one from time to time that looks again.
//!
//! Not here: what is asked when. `docs/formats/remote-store.md` describes the exchange.

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
use tympan_store::{Base, BlobId, Chunk, ChunkId, Error, Lease, ReadChunks, RefUpdate, Revision};
use tympan_web::client::{Client, Options};
use tympan_web::limit::limited;
use tympan_web::tls::Trust;

use crate::frames::{
    ANSWER_BYTES, MAX_FRAME, MAX_IDS, decode_frames, encode_blob_ids, encode_chunk_ids,
};
use crate::outage::{Outage, Turn};
use crate::send::KEY_HEADER;
use crate::serve::{STORE_PATH, WireGrant, WireLease, WireRevision, time};

type Result<T, E = Error> = std::result::Result<T, E>;

/// How often a request is sent.
const ATTEMPTS: u32 = 4;
/// The wait before the second time; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// An answer must go on within this time.
const STALL: Duration = Duration::from_secs(30);
/// An answer must be complete within this time; large blobs take as long as they go on.
const PATIENCE: Duration = Duration::from_mins(2);
/// No answer in JSON is longer.
const MAX_JSON: u64 = 16 << 20;
/// Memory for chunks that were read lately.
const CACHE_BYTES: u64 = 64 << 20;
/// Ids that are asked for together.
const TOGETHER: usize = 1_024;

/// What a client proves itself with.
#[derive(Clone)]
pub enum Credentials {
    /// The key that the instances of a farm share.
    Key(String),
    /// A token of the user `admin`.
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The store of an instance at a URL.
pub struct RemoteStore {
    url: String,
    authorization: (&'static str, HeaderValue),
    client: Client,
    /// Taken when the store is dropped.
    runtime: Option<Runtime>,
    cache: Cache<ChunkId, Chunk, ChunkBytes>,
    /// Where large blobs are kept while they are read.
    spool: PathBuf,
    outage: Outage,
}

#[derive(Clone, Copy, Debug)]
struct ChunkBytes;

impl Weighter<ChunkId, Chunk> for ChunkBytes {
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

/// What went wrong with one request.
struct Fault {
    reason: String,
    is_transient: bool,
    status: Option<StatusCode>,
}

impl Fault {
    fn transient(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: true, status: None }
    }

    fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: false, status: None }
    }

    /// Tells whether an instance said this, and no proxy in front of one that is down.
    fn is_answer(&self) -> bool {
        self.status.is_some_and(|status| !matches!(status.as_u16(), 502..=504))
    }
}

/// One request, so that it can be sent again.
#[derive(Clone)]
struct Ask {
    method: Method,
    place: String,
    body: Bytes,
    max: u64,
}

impl RemoteStore {
    /// Reads the store of the instance at `url`, such as `https://author.example.org`. Large blobs pass through the
    /// folder `spool`, which is made when it is needed.
    ///
    /// # Errors
    /// [`Error::Remote`] for a URL or credentials that cannot be used, or if the system gives no threads.
    pub fn new(
        url: &str,
        credentials: &Credentials,
        trust: Option<Trust>,
        spool: &Path,
    ) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let fault =
            |reason: String| Error::Remote { base: url.clone(), reason, is_transient: false };
        let (name, value) = match credentials {
            Credentials::Key(key) => (KEY_HEADER, key.clone()),
            Credentials::Token(token) => ("authorization", format!("Bearer {token}")),
        };
        let mut value = HeaderValue::from_str(&value).map_err(|error| fault(error.to_string()))?;
        value.set_sensitive(true);
        let uri: Result<http::Uri, _> = url.parse();
        if !uri.is_ok_and(|uri| uri.authority().is_some() && uri.scheme().is_some()) {
            return Err(fault("it is no URL".to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("remote-store")
            .enable_all()
            .build()
            .map_err(|error| fault(error.to_string()))?;
        let client = {
            let _entered = runtime.enter();
            Client::new(Options { trust, ..Options::default() })
        };
        Ok(Self {
            authorization: (name, value),
            client,
            runtime: Some(runtime),
            cache: Cache::with_weighter(16_384, CACHE_BYTES, ChunkBytes),
            spool: spool.to_owned(),
            outage: Outage::default(),
            url,
        })
    }

    fn fault(&self, fault: Fault) -> Error {
        let Fault { reason, is_transient, .. } = fault;
        Error::Remote { base: self.url.clone(), reason, is_transient }
    }

    fn malformed(&self, reason: impl fmt::Display) -> Error {
        self.fault(Fault::lasting(reason.to_string()))
    }

    /// Runs a request unless the other side is known to be down, and notes whether it answers. `work` is given how often
    /// it may send.
    fn reach<T: Send + 'static, F>(&self, work: impl FnOnce(u32) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let attempts = match self.outage.turn(Instant::now()) {
            Turn::Go => ATTEMPTS,
            Turn::Probe => 1,
            Turn::Refuse(reason) => return Err(Fault::transient(reason)),
        };
        let done = self.wait(work(attempts));
        match &done {
            Err(fault) if fault.is_transient && !fault.is_answer() => {
                if self.outage.reason().is_none() {
                    tracing::warn!(reason = fault.reason, target = self.url, "the base is down");
                }
                self.outage.begin(&fault.reason, Instant::now());
            }
            _ => {
                if self.outage.reason().is_some() {
                    tracing::info!(target = self.url, "the base answers again");
                }
                self.outage.end();
            }
        }
        done
    }

    /// Runs a request on the store's own runtime and waits for it on this thread.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime else {
            return Err(Fault::lasting("it was closed"));
        };
        runtime.spawn(async move {
            // Nobody listens any more when the caller's thread has died.
            sender.send(work.await).ok();
        });
        receiver.recv().unwrap_or_else(|_| Err(Fault::lasting("the request was ended")))
    }

    /// Sends a request until there is an answer or no hope.
    fn ask(&self, ask: &Ask) -> Result<Bytes, Fault> {
        let (client, url, ask) = (self.client.clone(), self.url.clone(), ask.clone());
        let authorization = self.authorization.clone();
        self.reach(|attempts| async move {
            let mut wait = FIRST_WAIT;
            let mut attempt = 1;
            loop {
                let sent = send(&client, &url, &authorization, &ask);
                let answer = tokio::time::timeout(PATIENCE, sent).await.unwrap_or_else(|_| {
                    let waited = PATIENCE.as_secs();
                    Err(Fault::transient(format!("its answer was not complete after {waited} s")))
                });
                match answer {
                    Err(fault) if fault.is_transient && attempt < attempts => {
                        tokio::time::sleep(wait).await;
                        wait *= 2;
                        attempt += 1;
                    }
                    answer => return answer,
                }
            }
        })
    }

    fn get<T: DeserializeOwned>(&self, place: &str) -> Result<T> {
        let ask =
            Ask { method: Method::GET, place: place.to_owned(), body: Bytes::new(), max: MAX_JSON };
        let body = self.ask(&ask).map_err(|fault| self.fault(fault))?;
        serde_json::from_slice(&body).map_err(|error| self.malformed(error))
    }

    fn post(&self, place: &str, body: Bytes, max: u64) -> Result<Bytes> {
        let ask = Ask { method: Method::POST, place: place.to_owned(), body, max };
        self.ask(&ask).map_err(|fault| self.fault(fault))
    }

    /// Reads what some ids name, in as many requests as it takes.
    fn read_frames<I>(
        &self,
        place: &str,
        ids: &[I],
        encode: fn(&[I]) -> Bytes,
    ) -> Result<Vec<Option<Bytes>>> {
        let max = (ANSWER_BYTES + MAX_FRAME + 64 * MAX_IDS) as u64;
        let mut frames = Vec::with_capacity(ids.len());
        while let Some(rest) = ids.get(frames.len()..).filter(|rest| !rest.is_empty()) {
            let part = rest.get(..TOGETHER).unwrap_or(rest);
            let body = self.post(place, encode(part), max)?;
            let answer = decode_frames(&body, part.len()).map_err(|error| self.malformed(error))?;
            frames.extend(answer);
        }
        Ok(frames)
    }

    /// Reads a note that this repository left beside the blobs of the instance.
    pub(crate) fn read_note(&self, name: &str, max: u64) -> Result<Option<Bytes>> {
        let place = format!("/note/{}", encode_query(name));
        let ask = Ask { method: Method::GET, place, body: Bytes::new(), max };
        self.found(&ask)
    }

    /// Lists notes with the times at which they were written.
    pub(crate) fn list_notes(&self, prefix: &str) -> Result<Vec<(String, SystemTime)>> {
        let place = format!("/notes?prefix={}", encode_query(prefix));
        let listed: Vec<(String, i64)> = self.get(&place)?;
        Ok(listed.into_iter().map(|(name, at)| (name, time(at))).collect())
    }

    /// Leaves a note.
    pub(crate) fn write_note(&self, name: &str, body: Bytes) -> Result<()> {
        let place = format!("/note/{}", encode_query(name));
        let ask = Ask { method: Method::PUT, place, body, max: MAX_JSON };
        self.ask(&ask).map(drop).map_err(|fault| self.fault(fault))
    }

    /// Removes a note; `false` if it is not there.
    pub(crate) fn delete_note(&self, name: &str) -> Result<bool> {
        let place = format!("/note/{}", encode_query(name));
        let ask = Ask { method: Method::DELETE, place, body: Bytes::new(), max: MAX_JSON };
        Ok(self.found(&ask)?.is_some())
    }

    /// Sends a request about something that may not be there.
    fn found(&self, ask: &Ask) -> Result<Option<Bytes>> {
        match self.ask(ask) {
            Ok(body) => Ok(Some(body)),
            Err(Fault { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(None),
            Err(fault) => Err(self.fault(fault)),
        }
    }

    fn parse_root(&self, root: Option<String>) -> Result<Option<ChunkId>> {
        let parse = |root: String| root.parse().map_err(|error: Error| self.malformed(error));
        root.map(parse).transpose()
    }

    fn blob_place(id: &BlobId) -> String {
        format!("/blob/{}", id.to_string().replace('#', "/"))
    }
}

/// Sends a request once and reads the answer.
async fn send(
    client: &Client,
    url: &str,
    (name, value): &(&'static str, HeaderValue),
    ask: &Ask,
) -> Result<Bytes, Fault> {
    let response = start(client, url, (name, value), ask).await?;
    let body = limited(response.into_body(), ask.max).stalling_at_most(STALL).collect().await;
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if tympan_web::limit::is_too_large(error.as_ref()) => {
            Err(Fault::lasting(error.to_string()))
        }
        Err(error) => Err(Fault::transient(format!("the answer broke off: {error}"))),
    }
}

/// Sends a request and returns the answer's head, if it is a good one.
async fn start(
    client: &Client,
    url: &str,
    (name, value): (&'static str, &HeaderValue),
    ask: &Ask,
) -> Result<http::Response<hyper::body::Incoming>, Fault> {
    let uri = format!("{url}{STORE_PATH}{}", ask.place);
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    let request = Request::builder()
        .method(ask.method.clone())
        .uri(&uri)
        .header(header::HOST, host.split('/').next().unwrap_or(host))
        .header(header::CONTENT_TYPE, "application/json")
        .header(name, value)
        .body(Full::new(ask.body.clone()))
        .map_err(|error| Fault::lasting(error.to_string()))?;
    let response = client.send(request).await.map_err(|error| {
        let mut reason = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            reason = format!("{reason}: {cause}");
        }
        Fault { reason, is_transient: error.is_transient(), status: None }
    })?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let body = limited(response.into_body(), 64 * 1024).stalling_at_most(STALL).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let said = said.get("error").and_then(serde_json::Value::as_str).unwrap_or_default();
    Err(Fault {
        reason: format!("it answered {status}: {said}"),
        is_transient: matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504),
        status: Some(status),
    })
}

impl ReadChunks for RemoteStore {
    fn read(&self, id: &ChunkId) -> Result<Chunk> {
        let chunks = self.read_many(std::slice::from_ref(id))?;
        chunks.into_iter().next().ok_or(Error::ChunkMissing { id: *id })
    }

    fn read_many(&self, ids: &[ChunkId]) -> Result<Vec<Chunk>> {
        let mut chunks: Vec<Option<Chunk>> = ids.iter().map(|id| self.cache.get(id)).collect();
        let is_absent = |(id, chunk): (&ChunkId, &Option<Chunk>)| chunk.is_none().then_some(*id);
        let asked: Vec<ChunkId> = ids.iter().zip(&chunks).filter_map(is_absent).collect();
        let frames = self.read_frames("/chunks/read", &asked, encode_chunk_ids)?;
        let mut found = asked.iter().zip(frames);
        for chunk in chunks.iter_mut().filter(|chunk| chunk.is_none()) {
            let Some((id, frame)) = found.next() else { break };
            let bytes = frame.ok_or(Error::ChunkMissing { id: *id })?;
            if ChunkId::of(&bytes) != *id {
                let fault = "what came for it has another hash";
                return Err(Error::ChunkDamaged { id: *id, fault });
            }
            let parsed = Chunk::parse(bytes)?;
            self.cache.insert(*id, parsed.clone());
            *chunk = Some(parsed);
        }
        Ok(chunks.into_iter().flatten().collect())
    }
}

impl Base for RemoteStore {
    fn name(&self) -> String {
        self.url.clone()
    }

    fn contains_many(&self, ids: &[ChunkId]) -> Result<Vec<bool>> {
        let mut present = Vec::with_capacity(ids.len());
        for part in ids.chunks(TOGETHER) {
            let body = self.post("/chunks/lacking", encode_chunk_ids(part), part.len() as u64)?;
            if body.len() != part.len() {
                return Err(self.malformed("the answer is not as long as the question"));
            }
            present.extend(body.iter().map(|lacks| *lacks == 0));
        }
        Ok(present)
    }

    fn read_blobs(&self, ids: &[BlobId]) -> Result<Vec<Option<Bytes>>> {
        let frames = self.read_frames("/blobs/read", ids, encode_blob_ids)?;
        for (id, bytes) in ids.iter().zip(&frames) {
            if bytes.as_ref().is_some_and(|bytes| BlobId::of(bytes) != *id) {
                let fault = "what came for it has another hash";
                return Err(Error::BlobDamaged { id: *id, fault });
            }
        }
        Ok(frames)
    }

    fn refs(&self) -> Result<Vec<(String, ChunkId)>> {
        let refs: Vec<(String, String)> = self.get("/refs")?;
        let parse = |(name, root): (String, String)| {
            Ok((name, root.parse().map_err(|error: Error| self.malformed(error))?))
        };
        refs.into_iter().map(parse).collect()
    }

    fn history(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Vec<Revision>> {
        let mut found: Vec<Revision> = Vec::new();
        let mut before = before;
        while found.len() < limit {
            let asked = (limit - found.len()).min(1_000);
            let from = before.map(|before| format!("&before={before}")).unwrap_or_default();
            let name_in_url = encode_query(name);
            let page: Vec<WireRevision> =
                self.get(&format!("/history?ref={name_in_url}&limit={asked}{from}"))?;
            let is_last = page.len() < asked;
            for one in page {
                // Without this, a hostile instance could go on forever.
                if before.is_some_and(|before| one.sequence >= before) {
                    return Err(self.malformed("its revisions are not in order"));
                }
                before = Some(one.sequence);
                let update = RefUpdate {
                    name: name.to_owned(),
                    expected: self.parse_root(one.old)?,
                    new: self.parse_root(one.new)?,
                    at: time(one.at),
                    author: one.author,
                    message: one.message,
                };
                found.push(Revision { sequence: one.sequence, update });
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    fn lease(&self, holder: &str) -> Result<Option<Lease>> {
        let lease: WireLease = self.get(&format!("/lease?holder={}", encode_query(holder)))?;
        let expires = lease.expires.map(time);
        let root = self.parse_root(lease.root)?;
        Ok(root.map(|root| Lease { holder: holder.to_owned(), root, expires }))
    }

    fn grant(&self, lease: &Lease) -> Result<()> {
        // The clocks of two machines differ: what counts is for how long.
        let now = SystemTime::now();
        let life = lease.expires.map(|until| until.duration_since(now).unwrap_or_default());
        let grant = WireGrant {
            holder: lease.holder.clone(),
            root: lease.root.to_string(),
            seconds: life.map_or(u64::MAX, |life| life.as_secs().max(1)),
        };
        let body = serde_json::to_vec(&grant).map_err(|error| self.malformed(error))?.into();
        let ask = Ask { method: Method::PUT, place: "/lease".to_owned(), body, max: MAX_JSON };
        match self.ask(&ask) {
            Ok(_) => Ok(()),
            Err(Fault { status: Some(StatusCode::NOT_FOUND), .. }) => {
                Err(Error::ChunkMissing { id: lease.root })
            }
            Err(fault) => Err(self.fault(fault)),
        }
    }

    fn release(&self, holder: &str) -> Result<()> {
        let place = format!("/lease?holder={}", encode_query(holder));
        let ask = Ask { method: Method::DELETE, place, body: Bytes::new(), max: MAX_JSON };
        self.ask(&ask).map(drop).map_err(|fault| self.fault(fault))
    }

    fn outage(&self) -> Option<String> {
        self.outage.reason()
    }
}

impl ReadBlobs for RemoteStore {
    fn open(&self, id: &BlobId) -> tympan_blobs::Result<Option<BlobContent>> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.spool)
            .map_err(tympan_blobs::Error::Source)?;
        let mut file = tempfile::tempfile_in(&self.spool).map_err(tympan_blobs::Error::Source)?;
        let ask = Ask {
            method: Method::GET,
            place: Self::blob_place(id),
            body: Bytes::new(),
            max: id.length(),
        };
        let (client, url) = (self.client.clone(), self.url.clone());
        let (authorization, id) = (self.authorization.clone(), *id);
        let fetched = self.reach(|_| async move {
            let (name, value) = &authorization;
            let response = start(&client, &url, (name, value), &ask).await?;
            let mut body = limited(response.into_body(), ask.max).stalling_at_most(STALL);
            let mut hash = Sha256::new();
            let mut length = 0;
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| Fault::transient(error.to_string()))?;
                if let Ok(data) = frame.into_data() {
                    hash.update(&data);
                    length += data.len() as u64;
                    file.write_all(&data).map_err(|error| Fault::transient(error.to_string()))?;
                }
            }
            file.seek(SeekFrom::Start(0)).map_err(|error| Fault::transient(error.to_string()))?;
            Ok((file, BlobId::new(hash.finalize().into(), length)))
        });
        match fetched {
            Ok((file, actual)) if actual == id => {
                Ok(Some(BlobContent::File { file, length: id.length() }))
            }
            Ok((_, actual)) => {
                Err(self.malformed(format!("for the blob {id} came {actual}")).into())
            }
            Err(Fault { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(None),
            Err(fault) => Err(self.fault(fault).into()),
        }
    }

    fn contains(&self, id: &BlobId) -> tympan_blobs::Result<bool> {
        let ask =
            Ask { method: Method::HEAD, place: Self::blob_place(id), body: Bytes::new(), max: 1 };
        match self.ask(&ask) {
            Ok(_) => Ok(true),
            Err(Fault { status: Some(StatusCode::NOT_FOUND), .. }) => Ok(false),
            Err(fault) => Err(self.fault(fault).into()),
        }
    }

    fn is_remote(&self) -> bool {
        true
    }
}

/// Returns a text as it stands in a query.
fn encode_query(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
