//! Background re-fetching of flushed pages, in the order in which they were named.
//!
//! Invariants
//! * At most `/x-refetchConcurrency` pages of a farm are fetched at once, so that a flush does not overload renders.
//! * After a reload, waiting pages are fetched with the new configuration, or dropped with their farm.
//! * A page that waits for a lagging render does not occupy the slot of another page. Of the pages that wait, one is
//!   tried at a time on behalf of all: a lagging render is not slowed down further.
//!
//! On failure: a page is tried three times, then left to the next visitor. A render that reports content older than the
//! flush is asked again for half a minute.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use parking_lot::RwLock;
use tokio::time::Instant;

use crate::cache::cacheability::check_request_cacheable;
use crate::cache::page_variant;
use crate::cache::response_memory::ResponseMemory;
use crate::config::glob::DispatcherGlob;
use crate::config::{FarmConfig, is_literal_pattern};
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::farm_state::FarmState;
use crate::flush::refetch_queue::RefetchItem;
use crate::flush::visit_address::{ListenerPorts, VisitAddress};
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::view::RequestView;
use crate::upstream::header_forwarding::{ForwardPurpose, request_headers};
use crate::upstream::page_fetch::{FetchResult, PageFetch, PageFetcher, is_outdated_response};
use crate::upstream::request_coalescing::{FetchCoalescer, FetchOutcome, FetchRole, PendingFetch};
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

/// A page of a re-fetch list.
#[derive(Debug)]
pub(crate) struct RefetchTarget {
    view: RequestView,
    /// The page's file below the document root.
    pub(super) file: PathBuf,
}

/// Parses a URI of a re-fetch list; `None` if it cannot be cached.
///
/// The page is requested with the address of the visitor for whom it was stored: its links may contain host and scheme.
fn parse_refetch_target(
    farm: &FarmState,
    uri: &str,
    listener_ports: &ListenerPorts,
) -> Option<RefetchTarget> {
    let mut view = RequestView::from_url(Method::GET, uri, HeaderMap::new()).ok()?;
    let file = check_request_cacheable(&farm.config, &view).ok()?;
    let visits = farm.docroot.as_ref().map(|root| &root.visits);
    let of_others = || {
        let site = visits.and_then(|visits| visits.find_site_visit(&file));
        match own_address(&farm.config, listener_ports) {
            // A visit under another name must not determine the address of new pages.
            Some(own) => {
                let site = site.filter(|site| site.is_at_address(&own, listener_ports));
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
    Some(RefetchTarget { view, file })
}

/// Returns the public address of the farm, if a literal one is configured.
fn own_address(farm: &FarmConfig, listener_ports: &ListenerPorts) -> Option<VisitAddress> {
    let entry = farm.virtual_hosts.iter().find(|entry| entry.is_literal_host())?;
    let name = entry.host.source();
    let port =
        entry.port.as_ref().map(DispatcherGlob::source).filter(|port| is_literal_pattern(port));
    let host = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let is_tls = match entry.scheme.as_ref().map(DispatcherGlob::source) {
        Some("https") => true,
        Some("http") => false,
        _ => listener_ports.is_tls_only(),
    };
    Some(VisitAddress::direct(HeaderValue::from_str(&host).ok()?, is_tls))
}

/// Fetches flushed pages again in the background.
#[derive(Debug)]
pub(crate) struct PageRefetcher {
    fetcher: Arc<PageFetcher>,
    farms: Arc<[Arc<FarmState>]>,
    runtime: Arc<DispatcherRuntime>,
    fetch_coalescer: Arc<FetchCoalescer>,
    response_memory: Arc<ResponseMemory>,
    metrics: Arc<DispatcherMetrics>,
    listener_ports: Arc<ListenerPorts>,
    /// The refetcher of the configuration in use since the last reload, shared with those of earlier configurations.
    successor: Arc<RwLock<Weak<PageRefetcher>>>,
}

impl PageRefetcher {
    /// Creates the refetcher of a configuration; `old` is that of the previous one.
    pub(crate) fn new(
        parts: &DispatcherParts,
        fetcher: Arc<PageFetcher>,
        old: Option<&Self>,
    ) -> Self {
        Self {
            fetcher,
            farms: Arc::clone(&parts.farms),
            runtime: Arc::clone(&parts.runtime),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            response_memory: Arc::clone(&parts.response_memory),
            metrics: Arc::clone(&parts.metrics),
            listener_ports: Arc::clone(&parts.listener_ports),
            successor: old.map(|old| Arc::clone(&old.successor)).unwrap_or_default(),
        }
    }

    /// Takes over the pages that wait in the queues of the previous configuration.
    pub(crate) fn take_over_queues(self: &Arc<Self>) {
        *self.successor.write() = Arc::downgrade(self);
    }

    /// Returns the refetcher and the farm that process a farm's queue since the last reload.
    fn successor_for(&self, farm: &FarmState) -> Option<(Arc<Self>, Arc<FarmState>)> {
        let successor = self.successor.read().upgrade()?;
        let has_same_queue =
            |own: &&Arc<FarmState>| Arc::ptr_eq(&own.refetch_queue, &farm.refetch_queue);
        let farm = Arc::clone(successor.farms.iter().find(has_same_queue)?);
        Some((successor, farm))
    }

    /// Returns the pages of a re-fetch list that can be cached.
    pub(crate) fn parse_targets(&self, farm: &FarmState, uris: &[String]) -> Vec<RefetchTarget> {
        let parse = |uri: &String| {
            let target = parse_refetch_target(farm, uri, &self.listener_ports);
            if target.is_none() {
                self.runtime
                    .write_log(LogLevel::Debug, || format!("nothing to re-fetch for [{uri}]"));
            }
            target
        };
        uris.iter().filter_map(parse).collect()
    }

    /// Queues pages; a render must have reached the number of the flush, `sequence`.
    pub(crate) fn queue_refetches(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        targets: Vec<RefetchTarget>,
        sequence: Option<u64>,
    ) {
        let workers = max_refetch_workers(farm);
        for RefetchTarget { view, file } in targets {
            let item = RefetchItem { view, file, sequence, retry_deadline: None };
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
                let newer = self.successor_for(&farm);
                let (refetcher, farm) =
                    newer.unwrap_or_else(|| (Arc::clone(&self), Arc::clone(&farm)));
                if check_request_cacheable(&farm.config, &item.view)
                    .is_ok_and(|file| file == item.file)
                {
                    refetcher.refetch_item(&farm, item).await;
                } else {
                    farm.refetch_queue.mark_done(&item.file);
                    refetcher.response_memory.record_change();
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
            tracing::warn!(farm = %farm.config.name, path = %item.view.path, "cannot fetch a flushed page \
                again");
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
                let cache = farm.config.cache.as_ref();
                let target = cache.map(|cache| page_variant::variant_target(cache, &item.view));
                let fetch = PageFetch {
                    call: UpstreamRequest {
                        method: Method::GET,
                        target: target.unwrap_or_else(|| item.view.wire_target()),
                        headers: request_headers(&farm.config, &item.view, ForwardPurpose::Cache),
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
                self.fetcher.spawn_fetch(farm, ticket, fetch).await
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
    farm.config.cache.as_ref().map_or(1, |cache| cache.refetch_concurrency)
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
