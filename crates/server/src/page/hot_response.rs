//! Cached facts about responses to visitors, which allow the thread that reads a request to answer it directly.
//!
//! In: a visitor's request. Out: for pictures and files, the response to the same earlier request, if the content is in
//! the same state and the bytes are in memory or in a file; for pages and data, a new rendering, if the last one of the
//! same state was cheap; otherwise `None`, and the request is rendered on the pool like any other.
//!
//! Invariants
//! * A response is stored only if it depends on nothing of its request but the URL, and only if it is public. Logged-in
//!   members receive it if they see all content as an anonymous visitor does.
//! * A response is reused only for the root from which it was rendered, and only after the ledger has recorded it as if
//!   it had been rendered again, so that the caches that hold it are told of every change that affects it.
//! * Nothing here blocks: neither on a database, nor on the ledger, which answers immediately or not at all, nor on a
//!   disk, except to open a file and send it, which is usually in the page cache. This code runs on the threads shared
//!   by all connections.
//! * A page is rendered here only from a state from which it was rendered on the pool before, so that the data it needs
//!   has been read, and only if that took at most [`INLINE_RENDER_LIMIT`]. The rendering takes a work permit. Its bytes
//!   are never stored.
//!
//! Not here: the bytes (`tympan_blobs` caches those that are requested often).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use tympan_content::{ChunkId, Viewer};
use tympan_render::ledger::{DependencyDigest, ResponseFingerprint};
use tympan_render::{BlobBody, RenderOutcome, RenderResponse, RenderResponseBody, RequestFacts};
use tympan_web::http_date::format_http_date;
use tympan_web::shortcut::ReadyResponseBody;

use crate::login::RequestIdentity;
use crate::page::hot_response_cache::{HotResponse, HotResponses};
use crate::page::{
    AnonymousPageRequest, SURROGATE_CAPABILITY, render_inline, send_available_blob,
    send_blob_to_socket,
};
use crate::{Instance, InstanceRole};

/// Maximum length of a cached URL path, in bytes; longer ones are rendered each time.
const MAX_CACHED_PATH_BYTES: usize = 1024;

/// Maximum time of a rendering on a connection thread. Other connections of the same thread wait for that time, which
/// is about as long as a busy thread takes to serve them anyway.
const INLINE_RENDER_LIMIT: Duration = Duration::from_millis(1);

/// Maximum size of a body rendered on a connection thread, in bytes; larger ones are rendered on the pool.
const MAX_INLINE_BODY_BYTES: usize = 256 * 1024;

/// A response for the shortcut of a listener.
pub(crate) struct ShortcutResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: ShortcutHeaders,
    pub(crate) body: ReadyResponseBody,
}

/// The headers of a response, without length and date.
pub(crate) enum ShortcutHeaders {
    /// The headers of most renderings, with this media type.
    Rendered(&'static str),
    /// Any other headers.
    Other(HeaderMap),
}

impl Instance {
    /// Enables the cache, with at most `count` responses of stored bytes, each valid while the content does not change.
    /// Suitable for instances whose repository returns its latest root without blocking, and whose scripts change only
    /// with the content.
    pub fn enable_hot_responses(&self, count: usize) {
        self.hot_responses.get_or_init(|| HotResponses::new(count));
    }

    /// Returns a cached response; `None` if the request has to be rendered.
    pub(crate) fn serve_hot_response(
        &self,
        parts: &Parts,
        identity: Option<&RequestIdentity>,
    ) -> Option<Response> {
        if parts.uri.query().is_some() {
            return None;
        }
        let Parts { method, uri, headers, .. } = parts;
        self.serve_hot_response_with(
            method,
            uri.path(),
            headers,
            identity,
            |blob, headers, is_head| send_available_blob(&self.repository, blob, headers, is_head),
        )
    }

    /// Returns the head of the same response and the source of its body, in the form that the socket can send most
    /// directly.
    pub(crate) fn shortcut_hot_response(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<ShortcutResponse> {
        let mut body = ReadyResponseBody::Empty;
        let response =
            self.serve_hot_response_with(method, path, headers, None, |blob, headers, is_head| {
                let (response, socket_body) =
                    send_blob_to_socket(&self.repository, blob, headers, is_head)?;
                body = socket_body;
                Some(response)
            })?;
        crate::observe::metrics::increment(&self.metrics.fast_path_hits);
        let (head, _) = response.into_parts();
        Some(ShortcutResponse {
            status: head.status,
            headers: ShortcutHeaders::Other(head.headers),
            body,
        })
    }

    /// Renders the response to a visitor's GET request for a path, and returns its head and its body; `None` if it has
    /// to be rendered on the pool. `headers` are the other request headers.
    pub(crate) fn shortcut_rendered_response(
        &self,
        visit: &AnonymousPageRequest<'_>,
        headers: &HeaderMap,
    ) -> Option<ShortcutResponse> {
        let path = visit.path;
        let hot_responses = self.hot_responses.get()?;
        let root = hot_responses.cheap_render_root(path)?;
        if !may_be_hot(self, &Method::GET, path, headers)
            || self.repository.head_root().ok()? != root
        {
            return None;
        }
        let _place = self.work_gate.try_acquire()?;
        let begin = Instant::now();
        // After a panic the request is rendered on the pool, which handles the error.
        let inline_response =
            catch_unwind(AssertUnwindSafe(|| render_inline(self, visit))).ok().flatten();
        // A path that has become expensive has to prove again that it is cheap.
        if inline_response.is_none() || begin.elapsed() > 4 * INLINE_RENDER_LIMIT {
            hot_responses.forget_cheap_render(path);
        }
        let (headers, body) = inline_response?;
        crate::observe::metrics::increment(&self.metrics.fast_path_renders);
        Some(ShortcutResponse {
            status: StatusCode::OK,
            headers,
            body: ReadyResponseBody::Bytes(body),
        })
    }

    /// Returns a cached response that `send` builds from its blob.
    fn serve_hot_response_with(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        identity: Option<&RequestIdentity>,
        send: impl FnOnce(&BlobBody, &HeaderMap, bool) -> Option<Response>,
    ) -> Option<Response> {
        if !may_be_hot(self, method, path, headers) {
            return None;
        }
        let hot_response = self.hot_responses.get()?.response_at(path)?;
        let ledger = self.dependency_ledger.as_ref()?;
        let ticket = ledger.begin_rendering();
        if self.repository.head_root().ok()? != hot_response.root {
            return None;
        }
        if identity.is_some_and(|identity| !self.sees_as_anonymous(identity)) {
            return None;
        }
        let mut response = send(&hot_response.blob, headers, method == Method::HEAD)?;
        if !ledger.record_if_known(
            (ticket, hot_response.root),
            path,
            hot_response.dependency_digest,
            &hot_response.fingerprint,
        ) {
            return None;
        }
        let headers = response.headers_mut();
        hot_response.headers.iter().for_each(|(name, value)| {
            headers.insert(name, value.clone());
        });
        crate::observe::metrics::increment(&self.metrics.response_cache_hits);
        Some(response)
    }
}

impl Instance {
    /// Returns true if a member sees all content as an anonymous visitor does. The policies of the current state were
    /// read when it was first rendered.
    fn sees_as_anonymous(&self, identity: &RequestIdentity) -> bool {
        let fingerprint_for = |viewer: &Viewer| {
            let snapshot = self.repository.snapshot().ok()?.as_viewer(viewer);
            snapshot.access_fingerprint().filter(|_| snapshot.failure().is_none())
        };
        let own = fingerprint_for(&identity.viewer());
        own.is_some() && own == fingerprint_for(&Viewer::anonymous())
    }
}

/// Returns true if a request without a query string may receive a cached response.
fn may_be_hot(instance: &Instance, method: &Method, path: &str, headers: &HeaderMap) -> bool {
    instance.role == InstanceRole::Publish
        && matches!(*method, Method::GET | Method::HEAD)
        && path.len() <= MAX_CACHED_PATH_BYTES
        && !path.contains(';')
        && !headers.contains_key(SURROGATE_CAPABILITY)
        && !instance.timing_disclosure.header_audience.includes(None)
        && !instance.timing_disclosure.comment_audience.includes(None)
}

/// The data needed to cache a response, captured before the response is sent.
pub(crate) struct HotResponseCandidate {
    root: ChunkId,
    blob: BlobBody,
    dependency_digest: DependencyDigest,
    fingerprint: ResponseFingerprint,
}

impl HotResponseCandidate {
    /// Captures the data of a rendering, if it may be reused.
    pub(crate) fn from_rendered(
        instance: &Instance,
        response: &RenderResponse,
        root: Option<ChunkId>,
        look: Option<&ResponseFingerprint>,
    ) -> Option<Self> {
        instance.hot_responses.get()?;
        let root = root?;
        let read = instance.dependency_ledger.as_ref()?.digest_dependencies(response);
        let RenderResponseBody::Blob(blob) = &response.body else { return None };
        let is_repeatable = response.outcome == RenderOutcome::Ok
            && response.failed_component_count == 0
            && !response.reads.facts.intersects(RequestFacts::HOST)
            && !response.reads.facts.intersects(RequestFacts::ACCOUNTS);
        let look = look.filter(|_| is_repeatable)?.clone();
        Some(Self { root, blob: blob.clone(), dependency_digest: read, fingerprint: look })
    }

    /// Caches the response that a visitor received.
    pub(crate) fn store(self, instance: &Instance, path: &str, response: &Response) {
        let Some(responses) = instance.hot_responses.get() else { return };
        if response.status() != StatusCode::OK || path.len() > MAX_CACHED_PATH_BYTES {
            return;
        }
        let mut headers = response.headers().clone();
        let Self { root, blob, dependency_digest, fingerprint } = self;
        // These differ between responses.
        [header::CONTENT_LENGTH, header::CONTENT_RANGE].iter().for_each(|name| {
            headers.remove(name);
        });
        if headers.get(header::ETAG).is_some_and(|tag| tag.as_bytes() == blob.etag.as_bytes()) {
            headers.remove(header::ETAG);
        }
        let modified = blob.last_modified.and_then(format_http_date);
        if modified.is_some_and(|date| {
            headers.get(header::LAST_MODIFIED).is_some_and(|sent| *sent == *date)
        }) {
            headers.remove(header::LAST_MODIFIED);
        }
        let headers = responses.share_headers(headers);
        responses.store(path, HotResponse { root, blob, dependency_digest, fingerprint, headers });
    }
}

/// Records that rendering a visitor's response was cheap for its state; `spent` is the time it took. Responses without
/// a fingerprint are not recorded: they show data of other systems, for which a connection thread would have to wait.
pub(crate) fn record_render_cost(
    instance: &Instance,
    (path, root): (&str, Option<ChunkId>),
    (response, look): (&RenderResponse, Option<&ResponseFingerprint>),
    spent: Duration,
) {
    let (Some(responses), Some(root)) = (instance.hot_responses.get(), root) else { return };
    let is_little = spent <= INLINE_RENDER_LIMIT
        && look.is_some()
        && path.len() <= MAX_CACHED_PATH_BYTES
        && response.outcome == RenderOutcome::Ok
        && response.failed_component_count == 0
        && response.reads.query_count == 0
        && is_short_text(response);
    match is_little {
        true => responses.record_cheap_render(path, root),
        false => responses.forget_cheap_render(path),
    }
}

/// Returns true if a response is a page or data rather than a picture or a file.
fn is_short_text(response: &RenderResponse) -> bool {
    let is_text = ["text/html", "application/json"]
        .iter()
        .any(|essence| response.content_type.starts_with(essence));
    let RenderResponseBody::Bytes(bytes) = &response.body else { return false };
    is_text && bytes.len() <= MAX_INLINE_BODY_BYTES
}
