//! What is known of answers to visitors, so that the same request can be answered on the thread that reads it.
//!
//! In: a visitor's request. Out: for pictures and files the answer that the same request got, if content is in the same
//! state and the bytes are in memory or in a file; for pages and data a new drawing, if the last one of the same state was little work;
//! nothing otherwise, and the request is drawn on the pool as any other.
//!
//! Invariants
//! * Kept is only what used nothing of its request but the URL, and only what anybody may get. Members get it if they see
//!   all content as somebody without a login does.
//! * An answer is given again only for the root that it was drawn from, and only after the ledger took it as if it had
//!   been drawn anew: each change that concerns it is told to the caches that have it.
//! * Nothing here waits: for no database, not for the ledger, which answers at once or not at all, and for no disk but to
//!   open a file and send it, which most often lies in memory. This runs on the threads that all connections share.
//! * A page is drawn here only from a state that it was drawn from on the pool, which has read then what it needs, and took
//!   no more than [`INLINE_RENDER_LIMIT`]. It takes a place among those who draw. Its bytes are never kept.
//!
//! Not here: the bytes (`tympan_blobs` keeps those that are asked for often).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tympan_content::ChunkId;
use tympan_render::ledger::{DependencyDigest, ResponseFingerprint};
use tympan_render::{BlobBody, RenderOutcome, RenderResponse, RenderResponseBody, RequestFacts};
use tympan_web::shortcut::ReadyResponseBody;

use crate::login::RequestIdentity;
use crate::page::{
    AnonymousPageRequest, SURROGATE_CAPABILITY, render_inline, send_available_blob,
    send_blob_to_socket,
};
use crate::{Instance, InstanceRole};

/// Longer URLs are drawn each time.
const MAX_CACHED_PATH_BYTES: usize = 1024;

/// The time of a drawing that may be done where requests are read: other connections of the same thread wait for
/// so long, which is about what a busy thread takes to come round to them anyway.
const INLINE_RENDER_LIMIT: Duration = Duration::from_millis(1);

/// Longer bodies are drawn on the pool.
const MAX_INLINE_BODY_BYTES: usize = 256 * 1024;

/// So many sets of headers are looked through for one that is alike: an instance has few kinds of files.
const MAX_SHARED_HEADER_SETS: usize = 16;

/// Answers by their paths.
#[derive(Debug)]
pub(crate) struct HotResponses {
    responses: Cache<String, Arc<HotResponse>>,
    /// Headers that answers share: pictures differ in their bytes alone. The newest is the last.
    shared_headers: Mutex<VecDeque<Arc<HeaderMap>>>,
    /// The states of which drawings were little work.
    cheap_render_roots: Cache<String, ChunkId>,
}

/// An answer for a listener's shortcut.
pub(crate) struct ShortcutResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: ShortcutHeaders,
    pub(crate) body: ReadyResponseBody,
}

/// The headers of an answer, without those that tell its length and time.
pub(crate) enum ShortcutHeaders {
    /// Those of most drawings, and this media type.
    Rendered(&'static str),
    /// Any.
    Other(HeaderMap),
}

/// What is known of an answer.
#[derive(Debug)]
struct HotResponse {
    /// The state that it was drawn from.
    root: ChunkId,
    blob: BlobBody,
    /// What the ledger knows it by.
    dependency_digest: DependencyDigest,
    fingerprint: ResponseFingerprint,
    /// The headers of all answers of this blob, whatever was asked of it, without those that the blob itself gives.
    headers: Arc<HeaderMap>,
}

impl HotResponses {
    /// Returns headers that are the same, and are kept once for all answers that have them.
    fn share_headers(&self, headers: HeaderMap) -> Arc<HeaderMap> {
        let mut alike = self.shared_headers.lock();
        if let Some(known) = alike.iter().rev().find(|known| ***known == headers) {
            return known.clone();
        }
        let new = Arc::new(headers);
        alike.push_back(new.clone());
        if alike.len() > MAX_SHARED_HEADER_SETS {
            alike.pop_front();
        }
        new
    }
}

impl Instance {
    /// Remembers so many answers of stored bytes, for as long as content stays as it is. For instances whose repository
    /// tells its newest root without waiting, and whose scripts change with content alone.
    pub fn enable_hot_responses(&self, count: usize) {
        self.hot_responses.get_or_init(|| HotResponses {
            responses: Cache::new(count),
            shared_headers: Mutex::default(),
            cheap_render_roots: Cache::new(count),
        });
    }

    /// Answers at once what was answered before; nothing if it has to be drawn.
    pub(crate) fn serve_hot_response(
        &self,
        parts: &Parts,
        identity: Option<&RequestIdentity>,
    ) -> Option<Response> {
        if parts.uri.query().is_some() {
            return None;
        }
        let asked = (&parts.method, parts.uri.path(), &parts.headers);
        self.serve_hot_response_with(asked, identity, |blob, headers, is_head| {
            send_available_blob(&self.repository, blob, headers, is_head)
        })
    }

    /// Returns the head of the same answer, and what its body is sent from, as plainly as the socket takes it.
    pub(crate) fn shortcut_hot_response(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<ShortcutResponse> {
        let mut body = ReadyResponseBody::Empty;
        let response = self.serve_hot_response_with(
            (method, path, headers),
            None,
            |blob, headers, is_head| {
                let (response, found) =
                    send_blob_to_socket(&self.repository, blob, headers, is_head)?;
                body = found;
                Some(response)
            },
        )?;
        crate::metrics::increment(&self.metrics.answered_by_shortcut);
        let (head, _) = response.into_parts();
        Some(ShortcutResponse {
            status: head.status,
            headers: ShortcutHeaders::Other(head.headers),
            body,
        })
    }

    /// Draws what visitors get for a GET of a path, and returns the head of the answer and its body; nothing if it has to be
    /// drawn on the pool. `headers` are those that were sent besides.
    pub(crate) fn shortcut_rendered_response(
        &self,
        visit: &AnonymousPageRequest<'_>,
        headers: &HeaderMap,
    ) -> Option<ShortcutResponse> {
        let path = visit.path;
        let known = &self.hot_responses.get()?.cheap_render_roots;
        let root = known.get(path)?;
        if !may_be_hot(self, (&Method::GET, path, headers))
            || self.repository.head_root().ok()? != root
        {
            return None;
        }
        let _place = self.work_gate.try_acquire()?;
        let begin = Instant::now();
        // A drawing that panics is drawn on the pool, which answers for it.
        let drawn = catch_unwind(AssertUnwindSafe(|| render_inline(self, visit))).ok().flatten();
        // What is drawn otherwise now has to show first that it is little work.
        if drawn.is_none() || begin.elapsed() > 4 * INLINE_RENDER_LIMIT {
            known.remove(path);
        }
        let (headers, body) = drawn?;
        crate::metrics::increment(&self.metrics.drawn_by_shortcut);
        Some(ShortcutResponse {
            status: StatusCode::OK,
            headers,
            body: ReadyResponseBody::Bytes(body),
        })
    }

    /// Answers what was answered before by what `send` makes of its blob.
    fn serve_hot_response_with(
        &self,
        (method, path, headers): (&Method, &str, &HeaderMap),
        identity: Option<&RequestIdentity>,
        send: impl FnOnce(&BlobBody, &HeaderMap, bool) -> Option<Response>,
    ) -> Option<Response> {
        if !may_be_hot(self, (method, path, headers)) {
            return None;
        }
        let known = self.hot_responses.get()?.responses.get(path)?;
        let ledger = self.dependency_ledger.as_ref()?;
        let ticket = ledger.begin_rendering();
        if self.repository.head_root().ok()? != known.root {
            return None;
        }
        if identity.is_some_and(|identity| !self.sees_as_anonymous(identity)) {
            return None;
        }
        let mut response = send(&known.blob, headers, method == Method::HEAD)?;
        if !ledger.record_if_known(
            (ticket, known.root),
            path,
            known.dependency_digest,
            &known.fingerprint,
        ) {
            return None;
        }
        let headers = response.headers_mut();
        known.headers.iter().for_each(|(name, value)| {
            headers.insert(name, value.clone());
        });
        crate::metrics::increment(&self.metrics.answered_at_once);
        Some(response)
    }
}

impl Instance {
    /// Tells whether a member sees all content as somebody without a login does. Whoever drew the present state has read its
    /// policies.
    fn sees_as_anonymous(&self, identity: &RequestIdentity) -> bool {
        let sight_of = |identity| {
            let snapshot =
                self.repository.snapshot().ok()?.as_viewer(&self.viewer_of(identity).ok()?);
            snapshot.access_fingerprint().filter(|_| snapshot.failure().is_none())
        };
        let own = sight_of(Some(identity));
        own.is_some() && own == sight_of(None)
    }
}

/// Tells whether a request without a query may be answered as another one was.
fn may_be_hot(instance: &Instance, (method, path, headers): (&Method, &str, &HeaderMap)) -> bool {
    instance.role == InstanceRole::Publish
        && matches!(*method, Method::GET | Method::HEAD)
        && path.len() <= MAX_CACHED_PATH_BYTES
        && !path.contains(';')
        && !headers.contains_key(SURROGATE_CAPABILITY)
        && !instance.timing_disclosure.header_audience.includes(None)
        && !instance.timing_disclosure.comment_audience.includes(None)
}

/// What the drawing of an answer is remembered by: taken before the answer goes its way.
pub(crate) struct HotResponseCandidate {
    root: ChunkId,
    blob: BlobBody,
    dependency_digest: DependencyDigest,
    fingerprint: ResponseFingerprint,
}

impl HotResponseCandidate {
    /// Takes what has to be known of a drawing, if it may be given again.
    pub(crate) fn from_rendered(
        instance: &Instance,
        drawn: &RenderResponse,
        root: Option<ChunkId>,
        look: Option<&ResponseFingerprint>,
    ) -> Option<Self> {
        instance.hot_responses.get()?;
        let root = root?;
        let read = instance.dependency_ledger.as_ref()?.digest_dependencies(drawn);
        let RenderResponseBody::Blob(blob) = &drawn.body else { return None };
        let is_repeatable = drawn.outcome == RenderOutcome::Ok
            && drawn.failed_component_count == 0
            && !drawn.reads.facts.intersects(RequestFacts::HOST)
            && !drawn.reads.facts.intersects(RequestFacts::ACCOUNTS);
        let look = look.filter(|_| is_repeatable)?.clone();
        Some(Self { root, blob: blob.clone(), dependency_digest: read, fingerprint: look })
    }

    /// Remembers the answer that a visitor got.
    pub(crate) fn store(self, instance: &Instance, path: &str, response: &Response) {
        let Some(hot) = instance.hot_responses.get() else { return };
        if response.status() != StatusCode::OK || path.len() > MAX_CACHED_PATH_BYTES {
            return;
        }
        let mut headers = response.headers().clone();
        let Self { root, blob, dependency_digest: read, fingerprint: look } = self;
        // Each answer has its own.
        [header::CONTENT_LENGTH, header::CONTENT_RANGE].iter().for_each(|name| {
            headers.remove(name);
        });
        if headers.get(header::ETAG).is_some_and(|tag| tag.as_bytes() == blob.etag.as_bytes()) {
            headers.remove(header::ETAG);
        }
        let modified = blob.last_modified.map(httpdate::fmt_http_date);
        if modified.is_some_and(|date| {
            headers.get(header::LAST_MODIFIED).is_some_and(|sent| *sent == *date)
        }) {
            headers.remove(header::LAST_MODIFIED);
        }
        let headers = hot.share_headers(headers);
        hot.responses.insert(
            path.to_owned(),
            Arc::new(HotResponse {
                root,
                blob,
                dependency_digest: read,
                fingerprint: look,
                headers,
            }),
        );
    }
}

/// Remembers that a drawing of visitors' answer was little work, for the state that it is of; `spent` is the time that it
/// took. Nothing is remembered of what has no look: it shows data of other systems, which would have to be waited for.
pub(crate) fn record_render_cost(
    instance: &Instance,
    (path, root): (&str, Option<ChunkId>),
    (drawn, look): (&RenderResponse, Option<&ResponseFingerprint>),
    spent: Duration,
) {
    let (Some(hot), Some(root)) = (instance.hot_responses.get(), root) else { return };
    let is_little = spent <= INLINE_RENDER_LIMIT
        && look.is_some()
        && path.len() <= MAX_CACHED_PATH_BYTES
        && drawn.outcome == RenderOutcome::Ok
        && drawn.failed_component_count == 0
        && drawn.reads.query_count == 0
        && is_short_text(drawn);
    match is_little {
        true => hot.cheap_render_roots.insert(path.to_owned(), root),
        false => drop(hot.cheap_render_roots.remove(path)),
    }
}

/// Tells whether an answer is a page or data, rather than a picture or a file.
fn is_short_text(drawn: &RenderResponse) -> bool {
    let is_text = ["text/html", "application/json"]
        .iter()
        .any(|essence| drawn.content_type.starts_with(essence));
    let RenderResponseBody::Bytes(bytes) = &drawn.body else { return false };
    is_text && bytes.len() <= MAX_INLINE_BODY_BYTES
}
