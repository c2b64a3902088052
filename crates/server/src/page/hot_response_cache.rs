//! The cache of [`crate::page::hot_response`]: responses by path, and the paths whose rendering was cheap.

use std::collections::VecDeque;
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tympan_content::ChunkId;
use tympan_render::BlobBody;
use tympan_render::ledger::{DependencyDigest, ResponseFingerprint};

/// Number of header sets searched for an equal one; an instance has few kinds of files.
const MAX_SHARED_HEADER_SETS: usize = 16;

/// Cached responses by path.
#[derive(Debug)]
pub(crate) struct HotResponses {
    responses: Cache<String, Arc<HotResponse>>,
    /// Header sets shared by responses, because pictures differ only in their bytes. The newest is last.
    shared_headers: Mutex<VecDeque<Arc<HeaderMap>>>,
    /// The states for which the rendering of a path was cheap.
    cheap_render_roots: Cache<String, ChunkId>,
}

/// A cached response.
#[derive(Debug)]
pub(super) struct HotResponse {
    /// The root from which it was rendered.
    pub(super) root: ChunkId,
    pub(super) blob: BlobBody,
    /// Identifies the response in the ledger.
    pub(super) dependency_digest: DependencyDigest,
    pub(super) fingerprint: ResponseFingerprint,
    /// The headers common to all responses with this blob, whatever the request, without those that come from the blob
    /// itself.
    pub(super) headers: Arc<HeaderMap>,
}

impl HotResponses {
    /// Creates a cache of at most `count` responses.
    pub(super) fn new(count: usize) -> Self {
        Self {
            responses: Cache::new(count),
            shared_headers: Mutex::default(),
            cheap_render_roots: Cache::new(count),
        }
    }

    /// Returns the cached response of a path.
    pub(super) fn response_at(&self, path: &str) -> Option<Arc<HotResponse>> {
        self.responses.get(path)
    }

    /// Caches the response of a path.
    pub(super) fn store(&self, path: &str, response: HotResponse) {
        self.responses.insert(path.to_owned(), Arc::new(response));
    }

    /// Returns the state for which the rendering of a path was cheap.
    pub(super) fn cheap_render_root(&self, path: &str) -> Option<ChunkId> {
        self.cheap_render_roots.get(path)
    }

    /// Records that the rendering of a path was cheap for a state.
    pub(super) fn record_cheap_render(&self, path: &str, root: ChunkId) {
        self.cheap_render_roots.insert(path.to_owned(), root);
    }

    /// Records that the rendering of a path is not cheap.
    pub(super) fn forget_cheap_render(&self, path: &str) {
        self.cheap_render_roots.remove(path);
    }

    /// Returns a shared copy of equal headers, stored once for all responses that have them.
    pub(super) fn share_headers(&self, headers: HeaderMap) -> Arc<HeaderMap> {
        let mut alike = self.shared_headers.lock();
        if let Some(shared_headers) = alike.iter().rev().find(|candidate| ***candidate == headers) {
            return shared_headers.clone();
        }
        let new = Arc::new(headers);
        alike.push_back(new.clone());
        if alike.len() > MAX_SHARED_HEADER_SETS {
            alike.pop_front();
        }
        new
    }
}
