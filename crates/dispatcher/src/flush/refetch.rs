//! Background re-fetching of flushed pages, in the order in which they were named.
//!
//! Invariants
//! * A waiting page is not queued twice; one that is being fetched is queued once more.
//! * At most `/x-refetchConcurrency` pages of a farm are fetched at once, so that a flush does not overload renders.
//! * After a reload, waiting pages are fetched with the new configuration, or dropped with their farm.
//! * A page that waits for a lagging render does not occupy the slot of another page. Of the pages that wait, one is
//!   tried at a time on behalf of all: a lagging render is not slowed down further.
//!
//! On failure: a page is tried three times, then left to the next visitor. A render that reports content older than the
//! flush is asked again for half a minute.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::Mutex;
use tokio::time::Instant;
use tympan_web::flush_message::FlushMessage;

use crate::cache::cacheability::check_request_cacheable;
use crate::cache::page_variant;
use crate::config::glob::Glob;
use crate::config::{FarmConfig, is_literal_pattern};
use crate::dispatcher::{DispatcherState, FarmState};
use crate::flush::visit_address::{ListenerPorts, VisitAddress};
use crate::observe::log::LogLevel;
use crate::observe::metrics::DispatcherCounter;
use crate::request::view::RequestView;
use crate::upstream::header_forwarding::{ForwardPurpose, request_headers};
use crate::upstream::page_fetch::{FetchResult, PageFetch, is_outdated_response, spawn_fetch};
use crate::upstream::request_coalescing::{FetchOutcome, FetchRole, PendingFetch};
use crate::upstream::{UpstreamRequest, VisitorBody};

/// The maximum number of attempts for a page.
const MAX_FETCH_ATTEMPTS: u32 = 3;
/// The number of unsuccessful waits for visitors' fetches that counts as a failure.
const MAX_JOINED_FETCHES: u32 = 10;
/// The pause after the first failure; it doubles.
const INITIAL_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The time for which a page waits for a render to have the flushed content.
const LAGGING_RENDER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause until a lagging render is asked again, for one of the pages that wait for it.
const LAGGING_RENDER_RETRY_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of waiting pages; further ones are left to visitors.
const MAX_QUEUED_PAGES: usize = 10_000;

/// The queue of a farm's pages to re-fetch.
#[derive(Debug, Default)]
pub(crate) struct RefetchQueue(Mutex<RefetchQueueState>);

#[derive(Debug, Default)]
struct RefetchQueueState {
    waiting_items: VecDeque<RefetchItem>,
    /// The files in `waiting` and in `behind`.
    waiting_files: HashSet<PathBuf>,
    running_files: HashSet<PathBuf>,
    /// Pages whose render was lagging, the least recently tried one first.
    postponed_items: VecDeque<RefetchItem>,
    /// True if a task retries the pages in `behind`.
    has_retry_task: bool,
    /// Files that flushes are about to queue, with the number of these flushes; see [`AnnouncedRefetch`].
    announced_files: HashMap<PathBuf, usize>,
    worker_count: u32,
    /// The dispatcher and farm that process the queue since the last reload.
    successor: Option<(Weak<DispatcherState>, Weak<FarmState>)>,
}

#[derive(Debug)]
struct RefetchItem {
    view: RequestView,
    file: PathBuf,
    sequence: Option<u64>,
    /// The time until which the page waits for a lagging render.
    retry_deadline: Option<Instant>,
}

impl RefetchQueueState {
    /// Returns true if a new worker must be started for the waiting pages.
    fn try_start_worker(&mut self, workers: u32) -> bool {
        let is_new = self.worker_count < workers;
        self.worker_count += u32::from(is_new);
        is_new
    }
}

impl RefetchQueue {
    /// Returns true if a page waits or is being fetched.
    pub(crate) fn contains(&self, file: &Path) -> bool {
        let state = self.0.lock();
        state.waiting_files.contains(file)
            || state.running_files.contains(file)
            || state.announced_files.contains_key(file)
    }

    /// Counts `files` as waiting, from before they are marked until the returned value is dropped.
    pub(crate) fn announce_files(self: &Arc<Self>, files: BTreeSet<PathBuf>) -> AnnouncedRefetch {
        let mut state = self.0.lock();
        for file in &files {
            *state.announced_files.entry(file.clone()).or_default() += 1;
        }
        drop(state);
        AnnouncedRefetch { queue: Arc::clone(self), files }
    }

    /// Returns the number of waiting pages.
    pub(crate) fn len(&self) -> u64 {
        let state = self.0.lock();
        (state.waiting_items.len() + state.postponed_items.len()) as u64
    }

    /// Adds a page; returns true if a new worker must be started for it.
    fn push(&self, item: RefetchItem, workers: u32) -> bool {
        let mut state = self.0.lock();
        if state.waiting_files.contains(&item.file) {
            // The later flush requests the newer content.
            let RefetchQueueState { waiting_items: waiting, postponed_items: behind, .. } =
                &mut *state;
            let mut items = waiting.iter_mut().chain(behind);
            if let Some(waiting) = items.find(|waiting| waiting.file == item.file) {
                waiting.sequence = waiting.sequence.max(item.sequence);
            }
            return false;
        }
        if state.waiting_files.len() >= MAX_QUEUED_PAGES {
            return false;
        }
        state.waiting_files.insert(item.file.clone());
        state.waiting_items.push_back(item);
        state.try_start_worker(workers)
    }

    /// Puts back a page whose render was lagging; returns true if a retry task must be started.
    fn postpone(&self, item: RefetchItem) -> bool {
        let mut state = self.0.lock();
        state.running_files.remove(&item.file);
        // A page flushed again in the meantime is waiting already.
        if !state.waiting_files.insert(item.file.clone()) {
            return false;
        }
        state.postponed_items.push_back(item);
        !std::mem::replace(&mut state.has_retry_task, true)
    }

    /// Releases the least recently tried page of those whose render was lagging; returns true if a new worker must be
    /// started for it, or `None` if there is no such page.
    fn retry_postponed(&self, workers: u32) -> Option<bool> {
        let mut state = self.0.lock();
        let Some(item) = state.postponed_items.pop_front() else {
            state.has_retry_task = false;
            return None;
        };
        state.waiting_items.push_front(item);
        Some(state.try_start_worker(workers))
    }

    /// Releases all pages whose render was lagging, as it has caught up; returns the number of new workers to start.
    fn release_postponed(&self, workers: u32) -> usize {
        let mut state = self.0.lock();
        let mut released = std::mem::take(&mut state.postponed_items);
        let count = released.len();
        released.append(&mut state.waiting_items);
        state.waiting_items = released;
        (0..count).take_while(|_| state.try_start_worker(workers)).count()
    }

    /// Takes the next page that is not being fetched; if there is none, the worker ends.
    fn take_next(&self) -> Option<RefetchItem> {
        let mut state = self.0.lock();
        let next =
            state.waiting_items.iter().position(|item| !state.running_files.contains(&item.file));
        match next.and_then(|next| state.waiting_items.remove(next)) {
            Some(item) => {
                state.waiting_files.remove(&item.file);
                state.running_files.insert(item.file.clone());
                Some(item)
            }
            None => {
                state.worker_count -= 1;
                None
            }
        }
    }

    fn mark_done(&self, file: &Path) {
        self.0.lock().running_files.remove(file);
    }

    /// Hands over the waiting pages to another configuration.
    pub(crate) fn hand_over(&self, inner: &Arc<DispatcherState>, farm: &Arc<FarmState>) {
        self.0.lock().successor = Some((Arc::downgrade(inner), Arc::downgrade(farm)));
    }

    /// Drops the waiting pages, as their farm no longer exists.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock();
        state.waiting_items.clear();
        state.postponed_items.clear();
        state.waiting_files.clear();
    }

    /// Returns the dispatcher and the farm of the last reload.
    fn successor(&self) -> Option<(Arc<DispatcherState>, Arc<FarmState>)> {
        let state = self.0.lock();
        let (inner, farm) = state.successor.as_ref()?;
        Some((inner.upgrade()?, farm.upgrade()?))
    }
}

/// Files that a flush is about to queue. Dropping it withdraws the announcement, also if the flush is given up: a page
/// that waits for nothing would stay out of date forever.
#[derive(Debug)]
pub(crate) struct AnnouncedRefetch {
    queue: Arc<RefetchQueue>,
    files: BTreeSet<PathBuf>,
}

impl Drop for AnnouncedRefetch {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        for file in &self.files {
            if let Some(flushes) = state.announced_files.get_mut(file) {
                *flushes -= 1;
                if *flushes == 0 {
                    state.announced_files.remove(file);
                }
            }
        }
    }
}

/// Parses a URI of a re-fetch list; `None` if it cannot be cached.
///
/// The page is requested with the address of the visitor for whom it was stored: its links may contain host and scheme.
pub(crate) fn parse_refetch_target(
    farm: &FarmState,
    uri: &str,
    doors: &ListenerPorts,
) -> Option<(RequestView, PathBuf)> {
    let mut view = RequestView::from_url(Method::GET, uri, HeaderMap::new()).ok()?;
    let file = check_request_cacheable(&farm.farm, &view).ok()?;
    let visits = farm.docroot.as_ref().map(|root| &root.visits);
    let of_others = || {
        let site = visits.and_then(|visits| visits.find_site_visit(&file));
        match own_address(&farm.farm, doors) {
            // A visit under another name must not determine the address of new pages.
            Some(own) => {
                let site = site.filter(|site| site.is_at_address(&own, doors));
                Some(match site {
                    Some(site) => site.with_name_of(&own),
                    None => Arc::new(own),
                })
            }
            None => site.or_else(|| visits.filter(|_| view.host.is_empty())?.last_visit()),
        }
    };
    let visit = visits.and_then(|visits| visits.find_page_visit(&file)).or_else(of_others);
    if let Some(visit) = visit {
        visit.apply_to_request(&mut view);
    }
    Some((view, file))
}

/// Returns the public address of the farm, if a literal one is configured.
fn own_address(farm: &FarmConfig, doors: &ListenerPorts) -> Option<VisitAddress> {
    let entry = farm.virtual_hosts.iter().find(|entry| entry.is_literal_host())?;
    let name = entry.host.source();
    let port = entry.port.as_ref().map(Glob::source).filter(|port| is_literal_pattern(port));
    let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let is_tls = match entry.scheme.as_ref().map(Glob::source) {
        Some("https") => true,
        Some("http") => false,
        _ => doors.is_tls_only(),
    };
    Some(VisitAddress::direct(HeaderValue::from_str(&host).ok()?, is_tls))
}

impl DispatcherState {
    /// Queues the pages that `message` lists.
    pub(crate) fn queue_refetches(self: &Arc<Self>, farm: &Arc<FarmState>, message: &FlushMessage) {
        let workers = max_refetch_workers(farm);
        for uri in &message.refetch {
            let Some((view, file)) = parse_refetch_target(farm, uri, &self.listener_ports) else {
                self.log(LogLevel::Debug, || format!("nothing to re-fetch for [{uri}]"));
                continue;
            };
            let item = RefetchItem { view, file, sequence: message.sequence, retry_deadline: None };
            if farm.refetch_queue.push(item, workers) {
                tokio::spawn(Arc::clone(self).run_refetch_worker(Arc::clone(farm)));
            }
        }
    }

    fn run_refetch_worker(
        self: Arc<Self>,
        farm: Arc<FarmState>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            while let Some(item) = farm.refetch_queue.take_next() {
                // The queue outlives a reload, and its farm may have other renders and rules since then.
                let newer = farm.refetch_queue.successor();
                let (inner, farm) = newer.unwrap_or_else(|| (Arc::clone(&self), Arc::clone(&farm)));
                if check_request_cacheable(&farm.farm, &item.view)
                    .is_ok_and(|file| file == item.file)
                {
                    inner.refetch_item(&farm, item).await;
                } else {
                    farm.refetch_queue.mark_done(&item.file);
                    inner.response_memory.record_change();
                }
            }
        })
    }

    /// Fetches one page, or puts it back.
    async fn refetch_item(self: &Arc<Self>, farm: &Arc<FarmState>, item: RefetchItem) {
        let key = farm.absolute_path(&item.file);
        let (mut failures, mut joined) = (0, 0);
        let is_done = loop {
            match self.attempt_refetch(farm, &key, &item).await {
                RefetchOutcome::Completed => break true,
                RefetchOutcome::RenderBehind
                    if item.retry_deadline.is_none_or(|until| Instant::now() < until) =>
                {
                    return self.postpone_refetch(farm, item);
                }
                RefetchOutcome::RenderBehind => break false,
                RefetchOutcome::Retry if joined < MAX_JOINED_FETCHES => {
                    joined += 1;
                    continue;
                }
                RefetchOutcome::Retry | RefetchOutcome::Failed => failures += 1,
            }
            if failures == MAX_FETCH_ATTEMPTS {
                break false;
            }
            tokio::time::sleep(INITIAL_RETRY_DELAY * 2_u32.pow(failures - 1)).await;
        };
        farm.refetch_queue.mark_done(&item.file);
        // Cached responses that use the old file while it is awaited must be checked again.
        self.response_memory.record_change();
        self.metrics.increment(if is_done {
            DispatcherCounter::Refetches
        } else {
            DispatcherCounter::RefetchFailures
        });
        if !is_done {
            tracing::warn!(farm = %farm.farm.name, path = %item.view.path, "a flushed page could not be fetched again");
        } else if item.retry_deadline.is_some() {
            for _ in 0..farm.refetch_queue.release_postponed(max_refetch_workers(farm)) {
                tokio::spawn(Arc::clone(self).run_refetch_worker(Arc::clone(farm)));
            }
        }
    }

    /// Puts back a page whose render was lagging. A lagging publisher receives the content by itself, and another one
    /// may have it already.
    fn postpone_refetch(self: &Arc<Self>, farm: &Arc<FarmState>, item: RefetchItem) {
        let until = item.retry_deadline.unwrap_or_else(|| Instant::now() + LAGGING_RENDER_TIMEOUT);
        if farm.refetch_queue.postpone(RefetchItem { retry_deadline: Some(until), ..item }) {
            tokio::spawn(Arc::clone(self).retry_postponed_refetches(Arc::clone(farm)));
        }
    }

    /// Periodically retries the pages whose render was lagging.
    async fn retry_postponed_refetches(self: Arc<Self>, farm: Arc<FarmState>) {
        loop {
            tokio::time::sleep(LAGGING_RENDER_RETRY_DELAY).await;
            match farm.refetch_queue.retry_postponed(max_refetch_workers(&farm)) {
                None => return,
                Some(false) => {}
                Some(true) => {
                    drop(tokio::spawn(Arc::clone(&self).run_refetch_worker(Arc::clone(&farm))))
                }
            }
        }
    }

    async fn attempt_refetch(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        key: &Path,
        item: &RefetchItem,
    ) -> RefetchOutcome {
        let first = match self.fetch_coalescer.join_or_lead(key) {
            FetchRole::Join(pending_fetch) => {
                return await_visitor_fetch(&pending_fetch, item).await;
            }
            FetchRole::Pass(_) => return RefetchOutcome::Failed,
            FetchRole::Lead(ticket) => {
                let cache = farm.farm.cache.as_ref();
                let target = cache.map(|cache| page_variant::variant_target(cache, &item.view));
                let fetch = PageFetch {
                    call: UpstreamRequest {
                        method: Method::GET,
                        target: target.unwrap_or_else(|| item.view.wire_target()),
                        headers: request_headers(&farm.farm, &item.view, ForwardPurpose::Cache),
                        body: VisitorBody::empty(),
                        sticky_render: None,
                    },
                    file: item.file.clone(),
                    path: item.view.path.as_str().to_owned(),
                    host: item.view.headers.get(header::HOST).cloned(),
                    visit: None,
                    min_sequence: item.sequence,
                    cache_info: "caching",
                };
                spawn_fetch(self, farm, ticket, fetch).await
            }
        };
        match first {
            Ok(FetchResult::Page(_)) => RefetchOutcome::Completed,
            Ok(FetchResult::Uncached(response, ..))
                if matches!(response.status().as_u16(), 404 | 410) =>
            {
                RefetchOutcome::Completed
            }
            Ok(FetchResult::Outdated) => RefetchOutcome::RenderBehind,
            _ => RefetchOutcome::Failed,
        }
    }
}

/// Waits for a visitor's fetch, which is sufficient if it began after the flush.
async fn await_visitor_fetch(fetch: &PendingFetch, item: &RefetchItem) -> RefetchOutcome {
    let outcome = fetch.wait_for_outcome().await;
    if fetch.is_flushed() {
        // Its result is not stored.
        fetch.wait_for_end().await;
        return RefetchOutcome::Retry;
    }
    match outcome {
        FetchOutcome::Retry => RefetchOutcome::Retry,
        FetchOutcome::Shared(page) if is_outdated_response(item.sequence, &page.headers) => {
            RefetchOutcome::RenderBehind
        }
        FetchOutcome::Shared(_) => RefetchOutcome::Completed,
        FetchOutcome::Unshared(_) | FetchOutcome::Failed(_) => RefetchOutcome::Failed,
    }
}

/// Returns the maximum number of concurrent re-fetches of a farm.
fn max_refetch_workers(farm: &FarmState) -> u32 {
    farm.farm.cache.as_ref().map_or(1, |cache| cache.refetch_concurrency)
}

/// The outcome of one attempt to fetch a page.
enum RefetchOutcome {
    /// The file is new, or was removed because the page no longer exists.
    Completed,
    /// The render has older content than the flush.
    RenderBehind,
    /// A fetch by a visitor had no result.
    Retry,
    Failed,
}
