//! Processing of flush messages.
//!
//! Order: the permission is checked; fetches of named files are overtaken; `.stat` files are touched; files are
//! removed, and those on the re-fetch list marked; the handler program (`invalidate_handler`) and the render are
//! notified; the response is sent, once notified siblings in reach have done the same; files are re-fetched in the
//! background. The stat files come first since a re-fetched file must be newer than they are.
//!
//! The calls, from the request to the file system:
//! 1. [`FlushService::answer_flush`] (or a sibling's message): permission, siblings, response;
//! 2. [`FlushService::carry_out_flush`]: handler program, message to the render;
//! 3. [`FlushService::apply_flush`]: handles of the message, overtaken fetches, re-fetching;
//! 4. [`FlushBatcher::enqueue_and_wait`], then `run_batch_worker` and `apply_batch` on a blocking thread: batches, flush
//!    numbers, counters;
//! 5. `FlushBatcher::apply_flushes_to_files`: stat files, and the handles with their effects;
//! 6. `Docroot::flush_handles` (`cache::file_flush`): the entries of each folder, down to `flush_entry`, which marks or
//!    removes one.

pub(crate) mod authorization;
pub(crate) mod batch;
pub(crate) mod batch_queue;
pub(crate) mod handle;
pub(crate) mod heavy_hitter;
pub(crate) mod hot_page;
pub(crate) mod hot_refetch_budget;
pub(crate) mod invalidate_handler;
pub(crate) mod numbering;
pub(crate) mod propagation;
pub(crate) mod refetch;
pub(crate) mod refetch_queue;
pub(crate) mod visit_address;
pub(crate) mod warm_up;
pub(crate) mod warm_up_plan;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tympan_web::body_limit::{is_body_timeout, limit_body};
use tympan_web::flush_message::{FlushAction, FlushMessage};

use crate::cache::cacheability::check_request_cacheable;
use crate::cache::outcome::CacheOutcome;
use crate::cache::page_variant;
use crate::cache::response_memory::{DispatcherResponse, ResponseMemory};
use crate::cache::surrogate_key::{SURROGATE_KEY_HEADER, flushed_keys};
use crate::cache::vary::HEADER_VARIANT_SLOTS;
use crate::cache::{FileEffect, FileFlushTarget};
use crate::config::FlushMode;
use crate::config::front_settings::RequestGate;
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::own_response::own_response;
use crate::edge::response_body::full_body;
use crate::farm_state::FarmState;
use crate::flush::authorization::is_flush_allowed;
use crate::flush::batch::FlushBatcher;
use crate::flush::batch_queue::DocrootFlush;
use crate::flush::handle::{candidate_paths, flush_names_file};
use crate::flush::hot_page::HotPageFinder;
use crate::flush::propagation::recording::FlushRecorder;
use crate::flush::propagation::{EventLogError, FlushEvent};
use crate::flush::refetch::PageRefetcher;
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::exchange::RequestExchange;
use crate::request::rate_limit::check_rate_limit;
use crate::request::view::RequestView;
use crate::upstream::request_coalescing::FetchCoalescer;
use crate::upstream::{BODY_TIMEOUT, UpstreamRequest, VisitorBody};

/// The maximum size of a flush's body in bytes.
const MAX_FLUSH_BODY_BYTES: u64 = 1024 * 1024;

/// The maximum time for which the handler program delays the response to a flush.
const HANDLER_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the handles of the variants of files.
fn variant_handles_of(files: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let pages = files.iter().filter(|file| !page_variant::is_variant_file(file));
    pages.map(|file| page_variant::variants_handle(file)).collect()
}

/// The cause for which a page is purged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PurgeCause {
    /// A request to purge it, from someone who may flush.
    Request,
    /// A request of a visitor that changed it.
    UnsafeMethod,
}

/// Carries out flushes: their effects on files, running fetches, siblings, handler programs and renders.
#[derive(Debug)]
pub(crate) struct FlushService {
    batcher: Arc<FlushBatcher>,
    refetcher: Arc<PageRefetcher>,
    recorder: FlushRecorder,
    hot_pages: HotPageFinder,
    request_gate: Arc<RequestGate>,
    runtime: Arc<DispatcherRuntime>,
    fetch_coalescer: Arc<FetchCoalescer>,
    response_memory: Arc<ResponseMemory>,
    metrics: Arc<DispatcherMetrics>,
}

impl FlushService {
    pub(crate) fn new(
        parts: &DispatcherParts,
        batcher: Arc<FlushBatcher>,
        refetcher: Arc<PageRefetcher>,
    ) -> Self {
        Self {
            batcher,
            refetcher,
            recorder: FlushRecorder::new(parts),
            hot_pages: HotPageFinder::new(parts),
            request_gate: Arc::clone(&parts.request_gate),
            runtime: Arc::clone(&parts.runtime),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            response_memory: Arc::clone(&parts.response_memory),
            metrics: Arc::clone(&parts.metrics),
        }
    }

    /// Carries out a flush and responds to it.
    pub(crate) async fn answer_flush(
        self: &Arc<Self>,
        exchange: &mut RequestExchange<'_>,
        body: Incoming,
        limit: u64,
    ) -> DispatcherResponse {
        let (farm, view) = (exchange.farm, exchange.view);
        self.runtime
            .write_log(LogLevel::Debug, || format!("Found farm {} for flush", farm.config.name));
        if !is_flush_allowed(&self.runtime.flush_keys, &farm.config, view) {
            // A header alone makes a flush, and unauthorized clients are subject to the common rate limit.
            if let Some(response) = check_rate_limit(&self.request_gate, &self.metrics, view.client)
            {
                return response;
            }
            self.metrics.increment(DispatcherCounter::FlushesRefused);
            self.runtime
                .write_log(LogLevel::Warn, || format!("Flushing rejected from {}", view.client));
            return own_response(StatusCode::FORBIDDEN);
        }
        let body =
            limit_body(body, limit.min(MAX_FLUSH_BODY_BYTES)).with_idle_timeout(BODY_TIMEOUT);
        let body = match body.with_min_read_rate(self.request_gate.min_body_rate).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let is_late = is_body_timeout(&*error);
                let status = if is_late {
                    StatusCode::REQUEST_TIMEOUT
                } else {
                    StatusCode::PAYLOAD_TOO_LARGE
                };
                return own_response(status);
            }
        };
        let message = match FlushMessage::parse(&view.headers, &body) {
            Ok(message) => message,
            Err(fault) => {
                self.runtime.write_log(LogLevel::Warn, || format!("Flush refused: {fault}"));
                return own_response(StatusCode::BAD_REQUEST);
            }
        };
        self.runtime.write_log(LogLevel::Info, || {
            let (action, handle) = (message.action.as_str(), &message.handle);
            format!("Activation detected: action={action} [{handle}]")
        });
        exchange.cache_label = "purge";
        if message.action == FlushAction::Test {
            return flush_accepted_response();
        }
        let call = UpstreamRequest {
            method: Method::POST,
            target: view.wire_target(),
            headers: view.headers.clone(),
            body: VisitorBody::empty(),
            sticky_render: None,
        };
        // The agent may disconnect; a flush that has begun is completed.
        let (service, farm) = (Arc::clone(self), Arc::clone(farm));
        let name = farm.config.name.clone();
        match tokio::spawn(service.flush_with_siblings(farm, message, Some(call))).await {
            Ok(Ok(Ok(()))) => {
                self.metrics.increment(DispatcherCounter::Flushes);
                flush_accepted_response()
            }
            Ok(Err(log_error)) => log_error.into_response(),
            Ok(Ok(Err(error))) => {
                tracing::error!(farm = %name, reason = %error, "flush failed");
                own_response(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Err(_panicked) => own_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Carries out a flush here and at the siblings; `call` is forwarded to the renders.
    async fn flush_with_siblings(
        self: Arc<Self>,
        farm: Arc<FarmState>,
        message: FlushMessage,
        call: Option<UpstreamRequest>,
    ) -> Result<std::io::Result<()>, EventLogError> {
        let event = FlushEvent::from_flush(&message);
        let event_number = self.recorder.log_event_for_siblings(&farm, event).await?;
        let result = Arc::clone(&self).carry_out_flush(Arc::clone(&farm), message, call).await;
        self.recorder.wait_for_siblings(&farm, event_number).await;
        Ok(result)
    }

    /// Carries out a flush that an administrator requested, and returns true if it was successful; a failure is logged.
    /// The flush is completed even if the caller stops waiting.
    pub(crate) async fn flush_for_administrator(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        message: FlushMessage,
    ) -> bool {
        let (service, name) = (Arc::clone(self), farm.config.name.clone());
        let task = tokio::spawn(service.flush_with_siblings(Arc::clone(farm), message, None));
        match task.await {
            Ok(Ok(Ok(()))) => {
                self.metrics.increment(DispatcherCounter::Flushes);
                true
            }
            Ok(Ok(Err(error))) => {
                tracing::error!(farm = %name, reason = %error, "flush failed");
                false
            }
            // Both are logged already.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Purges one page: deletes its file, or marks it where flushes are soft.
    pub(crate) async fn answer_purge(
        self: &Arc<Self>,
        exchange: &mut RequestExchange<'_>,
    ) -> DispatcherResponse {
        let (farm, view) = (exchange.farm, exchange.view);
        if !is_flush_allowed(&self.runtime.flush_keys, &farm.config, view) {
            self.metrics.increment(DispatcherCounter::FlushesRefused);
            self.runtime
                .write_log(LogLevel::Warn, || format!("Flushing rejected from {}", view.client));
            return own_response(StatusCode::FORBIDDEN);
        }
        exchange.cache_label = "purge";
        let keys =
            view.headers.contains_key(SURROGATE_KEY_HEADER).then(|| flushed_keys(&view.headers));
        let event = match &keys {
            Some(keys) => FlushEvent::Keys(keys.clone()),
            None => FlushEvent::Page(view.wire_target()),
        };
        // The client may disconnect; a purge that has begun is completed.
        let (service, farm, view) = (Arc::clone(self), Arc::clone(farm), view.clone());
        let purge_task = async move {
            let event_number = service.recorder.log_event_for_siblings(&farm, event).await?;
            let result = match keys {
                Some(keys) => service.purge_by_keys(&farm, keys).await,
                None => service.purge_page(&farm, &view, PurgeCause::Request).await,
            };
            service.recorder.wait_for_siblings(&farm, event_number).await;
            Ok::<_, EventLogError>(result)
        };
        match tokio::spawn(purge_task).await {
            Ok(Err(log_error)) => log_error.into_response(),
            Ok(Ok(None | Some(Ok(false)))) => own_response(StatusCode::NOT_FOUND),
            Ok(Ok(Some(Ok(true)))) => flush_accepted_response(),
            Ok(Ok(Some(Err(error)))) => {
                tracing::error!(farm = %exchange.farm.config.name, reason = %error, "purge failed");
                own_response(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Err(_panicked) => own_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Invalidates the pages that a request with an unsafe method changed: its own, and those of the same origin that
    /// the response names (RFC 9111, section 4.4).
    pub(crate) async fn invalidate_changed_pages(
        self: &Arc<Self>,
        exchange: &RequestExchange<'_>,
        response: &HeaderMap,
    ) {
        let own = exchange.view.wire_target();
        let named = [header::LOCATION, header::CONTENT_LOCATION];
        let mut targets: BTreeSet<String> = named
            .iter()
            .filter_map(|name| {
                same_origin_target(exchange.view, response.get(name)?.to_str().ok()?)
            })
            .collect();
        // Its own response may have been stored in place of the page.
        let is_stored = matches!(exchange.outcome, CacheOutcome::Miss { .. });
        if is_stored {
            targets.remove(&own);
        } else {
            targets.insert(own);
        }
        for target in targets {
            let Ok(view) = RequestView::from_url(Method::GET, &target, HeaderMap::new()) else {
                continue;
            };
            let event = FlushEvent::Page(target);
            let is_logged =
                self.recorder.log_event_for_siblings(exchange.farm, event).await.is_ok();
            let purged = self.purge_page(exchange.farm, &view, PurgeCause::UnsafeMethod).await;
            if !is_logged || matches!(purged, Some(Err(_))) {
                tracing::warn!(path = %view.path, "cannot invalidate a changed page everywhere");
            }
        }
    }

    /// Purges one page and returns true if it was in the cache; `None` if the farm does not cache it.
    async fn purge_page(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        view: &RequestView,
        cause: PurgeCause,
    ) -> Option<std::io::Result<bool>> {
        let mut page = view.clone();
        page.method = Method::GET;
        let file = check_request_cacheable(&farm.config, &page).ok()?;
        let (root, cache) = (farm.docroot.as_ref()?, farm.config.cache.as_ref()?);
        // What was changed must not be shown any more.
        let mode = match cause {
            PurgeCause::Request => cache.flush_mode,
            PurgeCause::UnsafeMethod => FlushMode::Delete,
        };
        let root = Arc::clone(root);
        let (fetches, clock) = (Arc::clone(&self.fetch_coalescer), self.runtime.clock.clone());
        let absolute = farm.absolute_path(&file);
        let variants = variant_handles_of(&BTreeSet::from([file.clone()]));
        // The handle of a page covers them, but a page with a query has none.
        let slots = 0..if page_variant::is_variant_file(&file) { HEADER_VARIANT_SLOTS } else { 0 };
        let slot_files: Vec<PathBuf> =
            slots.map(|slot| page_variant::header_variant_file(&file, slot)).collect();
        let effect = match mode {
            FlushMode::Soft => FileEffect::Mark,
            FlushMode::Delete => FileEffect::Delete,
        };
        let work = move || -> std::io::Result<bool> {
            match cause {
                PurgeCause::Request => root.record_flush(clock.tick()),
                // Visitors may send these, and must not end what is cached of other pages.
                PurgeCause::UnsafeMethod => root.negative_cache.remove(&file),
            }
            fetches.mark_flushed(|file_in_fetch| {
                let relative_file = file_in_fetch.strip_prefix(root.path()).ok();
                let is_variant = |handle: &PathBuf| {
                    relative_file.is_some_and(|relative_file| {
                        flush_names_file(FlushAction::Activate, handle, relative_file)
                    })
                };
                file_in_fetch == absolute
                    || variants.iter().any(is_variant)
                    || relative_file.is_some_and(|own| slot_files.iter().any(|slot| slot == own))
            });
            let docroot = root.docroot_for_writing()?;
            let mut is_cached = absolute.symlink_metadata().is_ok();
            let targets: Vec<FileFlushTarget<'_>> =
                variants.iter().map(|handle| FileFlushTarget { handle, effect }).collect();
            fetches.with_stores_blocked(|| {
                let result = docroot.flush_handles(&targets, &BTreeSet::new());
                is_cached |= result.removed_count + result.marked_count > 0;
                result.first_error.map_or(Ok(()), Err)?;
                for file in slot_files.iter().filter(|file| docroot.exists(file)).chain([&file]) {
                    match mode {
                        FlushMode::Soft => {
                            docroot.mark_file_stale(file).first_error.map_or(Ok(()), Err)?;
                        }
                        FlushMode::Delete => docroot.remove_cache_file(file)?,
                    }
                }
                Ok::<_, std::io::Error>(())
            })?;
            Ok(is_cached)
        };
        Some(self.run_purge(work).await)
    }

    /// Purges all pages that carry one of these keys; `None` if the farm has no cache.
    async fn purge_by_keys(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        keys: Vec<String>,
    ) -> Option<std::io::Result<bool>> {
        let (root, cache) = (farm.docroot.as_ref()?, farm.config.cache.as_ref()?);
        let (root, mode) = (Arc::clone(root), cache.flush_mode);
        let service = Arc::clone(self);
        let work = move || -> std::io::Result<bool> {
            let docroot = root.docroot_for_writing()?;
            root.record_flush(service.runtime.clock.tick());
            root.surrogate_keys.load_existing_keys(&docroot);
            let count = service.fetch_coalescer.with_stores_blocked(|| {
                let files =
                    root.surrogate_keys.flush_keys(&keys, service.runtime.clock.tick(), &docroot);
                for file in &files {
                    match mode {
                        FlushMode::Soft => {
                            docroot.mark_file_stale(file).first_error.map_or(Ok(()), Err)?
                        }
                        FlushMode::Delete => docroot.remove_cache_file(file)?,
                    }
                }
                Ok::<_, std::io::Error>(files.len())
            })?;
            service
                .runtime
                .write_log(LogLevel::Info, || format!("Flushed {count} files by their keys"));
            Ok(true)
        };
        Some(self.run_purge(work).await)
    }

    async fn run_purge(
        &self,
        work: impl FnOnce() -> std::io::Result<bool> + Send + 'static,
    ) -> std::io::Result<bool> {
        let result = tokio::task::spawn_blocking(work).await;
        self.response_memory.record_change();
        let result = result.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()));
        if result.is_ok() {
            self.metrics.increment(DispatcherCounter::Flushes);
        }
        result
    }

    /// Carries out a flush; `call` is forwarded to the renders.
    async fn carry_out_flush(
        self: Arc<Self>,
        farm: Arc<FarmState>,
        message: FlushMessage,
        call: Option<UpstreamRequest>,
    ) -> std::io::Result<()> {
        let handler_call = self.apply_flush(&farm, message).await?;
        invalidate_handler::wait_for_calls(handler_call, &farm.config.name, HANDLER_TIMEOUT).await;
        if let Some(call) = call.filter(|_| farm.config.propagates_flushes) {
            tokio::spawn(async move {
                if farm.upstream.send(&call).await.is_err() {
                    tracing::warn!(farm = %farm.config.name, "cannot forward a flush to the render");
                }
            });
        }
        Ok(())
    }

    /// Updates the files of a flush and starts the handler program; returns the call, which continues independently.
    async fn apply_flush(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        mut message: FlushMessage,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        if let (Some(root), Some(cache)) = (&farm.docroot, &farm.config.cache) {
            let hot_uris = self.hot_pages.hot_deleted_pages(farm, cache, &message);
            message.refetch.extend(hot_uris);
            let mut refetch_targets = self.refetcher.parse_targets(farm, &message.refetch);
            let refetch_files: BTreeSet<PathBuf> =
                refetch_targets.iter().map(|target| target.file.clone()).collect();
            let handles = candidate_paths(&message.handle);
            let mut variants = variant_handles_of(&refetch_files);
            // The handle of a file, such as an asset, is not a prefix of its variants' names.
            let files = handles.iter().filter(|handle| handle.extension().is_some());
            variants.extend(files.map(|handle| page_variant::variants_handle(handle)));
            let flush = DocrootFlush {
                handles,
                variant_handles: variants,
                refetch_files,
                message: message.clone(),
            };
            // Visitors of a listed file must not find it marked before it is queued for re-fetching.
            let announcement = farm.refetch_queue.announce_files(flush.refetch_files.clone());
            self.overtake_fetches(farm, &flush);
            let result = self.batcher.enqueue_and_wait(farm, Arc::clone(root), flush).await;
            let stale_uris = self.hot_pages.hot_stale_pages(farm, cache, &message);
            refetch_targets.extend(self.refetcher.parse_targets(farm, &stale_uris));
            message.refetch.extend(stale_uris);
            self.refetcher.queue_refetches(farm, refetch_targets, message.sequence);
            drop(announcement);
            result?;
        }
        let cache = farm.config.cache.as_ref();
        let program = cache.and_then(|cache| cache.invalidate_handler.as_ref());
        Ok(program.and_then(|program| farm.handlers.queue_call(program, &message)))
    }

    /// Prevents fetches that began before the flush from storing the files it names.
    fn overtake_fetches(&self, farm: &FarmState, flush: &DocrootFlush) {
        let Some(docroot) = &farm.docroot else { return };
        docroot.record_flush(self.runtime.clock.tick());
        self.fetch_coalescer.mark_flushed(|file| {
            let Ok(below) = file.strip_prefix(docroot.path()) else {
                return false;
            };
            let mut handles = flush.handles.iter().chain(&flush.variant_handles);
            flush.refetch_files.contains(below)
                || handles.any(|handle| flush_names_file(flush.message.action, handle, below))
        });
    }
}

impl EventLogError {
    /// Returns the response to a flush that siblings would never receive and that was therefore not carried out.
    fn into_response(self) -> DispatcherResponse {
        match self {
            Self::TakenOver => {
                let mut response = own_response(StatusCode::SERVICE_UNAVAILABLE);
                // A new connection reaches the process that carries out flushes.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                response
            }
            Self::WriteFailed => own_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// Returns path and query of a reference, if it leads to the origin of the request.
fn same_origin_target(view: &RequestView, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or(reference);
    let absolute = match reference.strip_prefix("//") {
        Some(rest) => Some(rest),
        None => reference.strip_prefix("http://").or_else(|| reference.strip_prefix("https://")),
    };
    if let Some(rest) = absolute {
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let own = view.headers.get(header::HOST)?.to_str().ok()?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        return authority.eq_ignore_ascii_case(own).then_some(target);
    }
    if reference.starts_with('/') {
        return Some(reference.to_owned());
    }
    let folder = view.wire_path.rsplit_once('/').map_or("", |(folder, _)| folder);
    match reference.starts_with('?') {
        true => Some(format!("{}{reference}", view.wire_path)),
        false => Some(format!("{folder}/{reference}")),
    }
}

fn flush_accepted_response() -> DispatcherResponse {
    let mut response = Response::new(full_body("<H1>OK</H1>\r\n"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
    response.into()
}

#[cfg(test)]
mod tests {
    use crate::cache::page_variant;
    use crate::cache::{Docroot, FileEffect, FileFlushTarget};
    use crate::config::DispatcherConfig;
    use crate::config::any_syntax::ConfigSources;
    use crate::flush::handle::flush_names_file;
    use crate::{Dispatcher, DispatcherRuntime};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use tympan_web::cache_path::CanonicalPath;
    use tympan_web::flush_message::{FlushAction, FlushMessage};

    #[test]
    fn a_flush_that_is_given_up_announces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }}
                /cache {{ /docroot \"{}\" /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }} }} }} }}",
            folder.path().display()
        );
        let parse_result = DispatcherConfig::parse(
            text.as_bytes(),
            Path::new("test.any"),
            &ConfigSources::default(),
        );
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let state = Dispatcher::new(parse_result.config, DispatcherRuntime::default())
            .unwrap()
            .current_state();
        let farm = &state.parts.farms[0];
        let docroot = farm.docroot.as_ref().unwrap().docroot_for_writing().unwrap();
        let message = FlushMessage {
            action: FlushAction::Activate,
            handle: "/content/a".to_owned(),
            scope: None,
            refetch: vec!["/content/a.html".to_owned()],
            sequence: None,
            numbering: None,
        };
        // No file is changed before this lock is released.
        let number_guard = docroot.flush_numbers.lock();
        let mut flush_task =
            Box::pin(Arc::clone(&state.flushes).carry_out_flush(Arc::clone(farm), message, None));
        assert!(flush_task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let is_refetch_announced = || farm.refetch_queue.contains(Path::new("content/a.html"));
        assert!(is_refetch_announced());
        drop(flush_task);
        assert!(!is_refetch_announced());
        drop(number_guard);
    }

    proptest! {
        /// A flush of a page removes all its made-up variants, and none of its neighbors' files.
        #[test]
        fn a_flush_of_a_page_takes_all_its_selector_and_suffix_files(
            urls in prop::collection::vec(
                "/content/(a|ab|b)(\\.[ax2]{1,2}){0,2}\\.(html|jpg|x7)(/[ab](\\.(html|jpg|x7|2))?){0,2}(/s\\.(html|x7))?",
                1..12,
            ),
            is_gone: bool,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
            let mut files = Vec::new();
            for url in &urls {
                let path = CanonicalPath::parse(url).unwrap();
                let Ok(file) = page_variant::variant_file(&path, "", folder.path()) else { continue };
                let absolute = folder.path().join(&file);
                std::fs::create_dir_all(absolute.parent().unwrap()).ok();
                // Only one of `/a.x7` and `/a.x7/s.html` can be stored: `x7` is no page's extension.
                if std::fs::write(&absolute, "page").is_ok() {
                    files.push((url, file));
                }
            }
            let handle = Path::new("content/a");
            let action = if is_gone { FlushAction::Delete } else { FlushAction::Activate };
            let targets = [FileFlushTarget { handle, effect: FileEffect::Delete }];
            let result = docroot.flush_handles(&targets, &BTreeSet::new());
            prop_assert!(result.first_error.is_none());
            for (url, file) in files {
                let is_own = url.starts_with("/content/a.");
                prop_assert_eq!(folder.path().join(&file).exists(), !is_own, "{}", url);
                prop_assert_eq!(flush_names_file(action, handle, &file), is_own, "{}", url);
            }
        }
    }

    #[test]
    fn a_flush_names_the_files_of_its_handle() {
        let check = |action, handle: &str, file: &str, expected: bool| {
            assert_eq!(
                flush_names_file(action, Path::new(handle), Path::new(file)),
                expected,
                "{action:?} {handle} {file}"
            );
        };
        let site = "content/en";
        for action in [FlushAction::Activate, FlushAction::Delete] {
            check(action, site, "content/en", true);
            check(action, site, "content/en.html", true);
            check(action, site, "content/en.x.html", true);
            check(action, site, "content/en.html/suffix.html", true);
            check(action, site, "content/en.html.s~/suffix.html", true);
            check(action, site, "content/en/_jcr_content/image.png", true);
            check(action, site, "content/en/jcr:content/image.png", true);
            check(action, site, "content/english.html", false);
            check(action, site, "content/de.html", false);
            check(action, site, "other/en.html", false);
        }
        check(FlushAction::Activate, site, "content/en/sub.html", false);
        check(FlushAction::Delete, site, "content/en/sub.html", true);
        check(FlushAction::Delete, "", "content/en.html", true);
        check(FlushAction::Activate, "", "content/en.html", false);
        check(FlushAction::Activate, "a.jpg", "a.jpg.thumb.png", true);
    }
}
