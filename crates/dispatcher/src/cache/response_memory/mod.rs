//! The memory cache in front of the document roots: responses of the regular path, stored ready to be sent again.
//!
//! Input: a response from a valid file, or from an old one while it is fetched again, with its source. Output: the same
//! response for the same request, as long as the regular path would produce it.
//!
//! Invariants
//! * A response is stored only for requests whose every part is in the key, or is known not to change responses
//!   ([`header_role`]).
//! * A cached response is used only while its file, its header file and its `.stat` files are unchanged: the change
//!   counter increases with every flush, every stored file and every change that the kernel reports of a watched
//!   folder, and a response that was checked at another count, or more than a second ago, is checked again.
//! * Responses stored by one configuration are not used by another.
//! * Memory stays below the limit; the least valuable responses are evicted first. Requests whose host and target are
//!   longer than [`MAX_KEY_BYTES`] are not recorded.
//!
//! Not here: the content of a response (`cache::file_response`, `edge::response_plan`) and the freshness of a file
//! (`cache::freshness`); both are called, not duplicated.

mod cached_response;
mod dispatcher_response;
mod folder_watcher;
mod header_role;
pub(crate) mod memory_responder;
mod response_encoding;
mod response_key;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

pub(crate) use cached_response::{
    CachedBody, CachedRepresentation, CachedResponse, ResponseSource, SMALL_BODY_BYTES,
    SMALL_TLS_BODY_BYTES, encode_response_head,
};
pub(crate) use dispatcher_response::{CacheFileContent, DispatcherResponse};
pub(crate) use header_role::{RequestHeaderRole, header_role, may_hold_credentials};
pub(crate) use response_encoding::{add_vary_accept_encoding, is_encodable};
pub(crate) use response_key::{RequestFlags, ResponseKey, ResponseKeyRef, response_key_of};

use crate::cache::Docroot;
use crate::config::StatFileLayout;
use folder_watcher::FolderWatcher;

/// The maximum memory of all cached responses in bytes.
const MAX_MEMORY_BYTES: u64 = 64 * 1024 * 1024;
/// The maximum size of a key in bytes. Longer keys would make 4096 counts of former uses take more than a few MiB;
/// frequently requested URLs are shorter.
const MAX_KEY_BYTES: usize = 2048;
/// The estimated size of a response in bytes, for the initial size of tables.
const ESTIMATED_RESPONSE_BYTES: u64 = 8 * 1024;

/// The cached responses of a dispatcher.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    responses: Cache<ResponseKey, Arc<CachedResponse>, CachedResponseWeight>,
    change_count: AtomicU64,
    folder_watcher: FolderWatcher,
    start_time: Instant,
    /// The use counts of evicted responses.
    evicted_hits: Cache<ResponseKey, u32>,
    encoding_queue: EncodingQueue,
}

/// The queue of responses to be encoded, one after the other.
#[derive(Debug, Default)]
struct EncodingQueue(Mutex<EncodingQueueState>);

#[derive(Debug, Default)]
struct EncodingQueueState {
    responses: VecDeque<(ResponseKey, Arc<CachedResponse>)>,
    has_worker: bool,
}

/// The maximum number of queued responses; others stay unencoded until they are stored anew.
const MAX_QUEUED_ENCODINGS: usize = 4096;

impl EncodingQueue {
    /// Adds a response; returns true if no worker is running yet.
    fn push(&self, key: ResponseKey, response: Arc<CachedResponse>) -> bool {
        let mut state = self.0.lock();
        if state.responses.len() >= MAX_QUEUED_ENCODINGS {
            return false;
        }
        state.responses.push_back((key, response));
        !std::mem::replace(&mut state.has_worker, true)
    }

    /// Takes the next response; if there is none, marks the worker as stopped.
    fn take_next(&self) -> Option<(ResponseKey, Arc<CachedResponse>)> {
        let mut state = self.0.lock();
        let next = state.responses.pop_front();
        state.has_worker = next.is_some();
        next
    }
}

/// The weight of a response toward the limit.
#[derive(Debug, Clone)]
struct CachedResponseWeight {
    /// The weight of an open file, which bounds the number of open files.
    file_bytes: u64,
}

impl Weighter<ResponseKey, Arc<CachedResponse>> for CachedResponseWeight {
    fn weight(&self, key: &ResponseKey, response: &Arc<CachedResponse>) -> u64 {
        let bytes = (key.memory_bytes() + response.memory_bytes()) as u64;
        match response.identity_body() {
            CachedBody::Memory(_) => bytes,
            CachedBody::File(_) => bytes.max(self.file_bytes),
        }
    }
}

/// A time read once for several requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LookupTime {
    /// The time of the dispatcher's clock.
    pub(crate) now: SystemTime,
    /// The time in milliseconds on the memory's own clock, which cannot be set back.
    memory_ms: u64,
}

impl Default for ResponseMemory {
    fn default() -> Self {
        Self {
            responses: Cache::with_weighter(
                usize::try_from(MAX_MEMORY_BYTES / ESTIMATED_RESPONSE_BYTES).unwrap_or(1024),
                MAX_MEMORY_BYTES,
                CachedResponseWeight { file_bytes: MAX_MEMORY_BYTES / max_open_files() },
            ),
            change_count: AtomicU64::new(0),
            folder_watcher: FolderWatcher::new(),
            start_time: Instant::now(),
            evicted_hits: Cache::new(4096),
            encoding_queue: EncodingQueue::default(),
        }
    }
}

/// Returns the maximum number of open files: most of the process's limit is for connections.
fn max_open_files() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    (limit.unwrap_or(u64::MAX) / 4).clamp(16, 4096)
}

impl ResponseMemory {
    /// Records that files changed: every response is checked against its file before it is used again.
    pub(crate) fn record_change(&self) {
        self.change_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads changes by other programs; changes complete before the call take effect.
    fn drain_changes(&self) {
        self.folder_watcher.drain_changes(|| self.record_change());
    }

    /// Returns the value of the change counter.
    fn change_count(&self) -> u64 {
        self.change_count.load(Ordering::SeqCst)
    }

    /// Removes all responses.
    pub(crate) fn clear(&self) {
        self.responses.clear();
        self.folder_watcher.unwatch_all();
        self.record_change();
    }

    /// Encodes all queued responses.
    fn encode_queued(&self) {
        while let Some((key, response)) = self.encoding_queue.take_next() {
            let Some(encoded_response) = response.with_encodings() else { continue };
            let is_still_cached = self
                .responses
                .peek(&key.as_key_ref())
                .is_some_and(|current| Arc::ptr_eq(&current, &response));
            if is_still_cached {
                self.responses.insert(key, Arc::new(encoded_response));
            }
        }
    }

    /// Returns the number of cached responses, and their approximate size in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.responses.len() as u64, self.responses.weight())
    }

    /// Reads the memory's own clock.
    pub(crate) fn lookup_time(&self, now: SystemTime) -> LookupTime {
        let memory_ms = u64::try_from(self.start_time.elapsed().as_millis()).unwrap_or(u64::MAX);
        LookupTime { now, memory_ms }
    }

    /// Watches the folders whose changes concern `file`; returns true if all of them are watched.
    fn watch_folders(&self, docroot: &Docroot, file: &Path, stat_files: &StatFileLayout) -> bool {
        let folders = file.ancestors().skip(1);
        let mut is_watched = true;
        for folder in folders {
            is_watched &= self.folder_watcher.watch_folder(&docroot.path().join(folder));
        }
        if let StatFileLayout::Single(stat) = stat_files {
            is_watched &=
                stat.parent().is_some_and(|folder| self.folder_watcher.watch_folder(folder));
        }
        is_watched
    }

    /// Returns the cached responses for which `is_wanted` holds, the most used first.
    pub(crate) fn hottest(
        &self,
        is_selected: impl Fn(&CachedResponse) -> bool,
    ) -> Vec<Arc<CachedResponse>> {
        let mut responses: Vec<Arc<CachedResponse>> = self
            .responses
            .iter()
            .map(|(_, response)| response)
            .filter(|response| is_selected(response))
            .collect();
        responses.sort_by_key(|response| std::cmp::Reverse(response.hits()));
        responses
    }
}
