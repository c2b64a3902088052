//! Warm-up: filling a cold cache at the start, from a list of pages (`[dispatcher.warm_up]`).
//!
//! Input: a file with URLs, a sitemap, or an access log, whose most requested pages come first. Each page is processed
//! like a visitor's request, through the rules of hosts, farms and filters. Therefore nothing is fetched that visitors
//! could not request, and pages flushed in the meantime are not stored.
//!
//! Invariants
//! * Visitors do not wait: at most [`WarmUpPlan::concurrency`](super::warm_up_plan::WarmUpPlan::concurrency) pages are fetched at once, besides all other requests.
//! * Pages that are fresh in the cache are not requested.
//!
//! On failure: a page that cannot be fetched is left to its visitors; after [`MAX_CONSECUTIVE_FAILURES`] in a row all
//! others are, too.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, header};
use tympan_web::access_log;

use crate::cache::CacheFileLookup;
use crate::cache::freshness::{CacheFileFreshness, assess_freshness};
use crate::cache::page_variant;
use crate::dispatcher::Dispatcher;
use crate::dispatcher_state::DispatcherState;
use crate::farm_state::FarmState;
use crate::observe::metrics::DispatcherCounter;
use crate::request::decision::{RequestAction, decide_request_among};
use crate::request::host_routing::RouteOutcome;
use crate::request::view::RequestView;
use crate::upstream::header_forwarding::{ForwardPurpose, request_headers};
use crate::upstream::page_fetch::{FetchResult, PageFetch};
use crate::upstream::request_coalescing::{FetchOutcome, FetchRole};
use crate::upstream::{UpstreamRequest, VisitorBody};

/// The maximum number of different URLs of a file that are counted.
const MAX_COUNTED_URLS: usize = 200_000;
/// The number of consecutive failures after which the warm-up ends.
const MAX_CONSECUTIVE_FAILURES: u32 = 50;

/// Returns the URLs and paths named by a line of a list, of a sitemap or of an access log; of a log only pages
/// successfully requested by GET.
#[must_use]
pub fn urls_of_line(line: &str) -> Vec<String> {
    let line = line.trim();
    if line.contains("<loc>") {
        let parts = line.split("<loc>").skip(1);
        let ended = parts.filter_map(|part| part.split_once("</loc>"));
        return ended.map(|(url, _)| url.trim().replace("&amp;", "&")).collect();
    }
    let is_url = ["/", "http://", "https://"].iter().any(|begin| line.starts_with(begin));
    if is_url {
        return line.split_ascii_whitespace().take(1).map(str::to_owned).collect();
    }
    let Ok(logged) = access_log::parse_access_log_line(line) else { return Vec::new() };
    let mut words = logged.request.split(' ');
    let target = match (words.next(), words.next()) {
        (Some("GET"), Some(target)) if matches!(logged.status, 200 | 206 | 304) => target,
        _ => return Vec::new(),
    };
    if target.starts_with('/') { vec![target.to_owned()] } else { Vec::new() }
}

/// Reads the URLs of a file, the most frequent first, otherwise in file order.
fn read_urls(file: &Path, max_pages: usize) -> io::Result<Vec<String>> {
    let mut lines = BufReader::new(File::open(file)?);
    let mut counts: HashMap<String, (u64, usize)> = HashMap::new();
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        for url in urls_of_line(&String::from_utf8_lossy(&line)) {
            let next = counts.len();
            match counts.get_mut(&url) {
                Some((count, _)) => *count += 1,
                None if next < MAX_COUNTED_URLS => drop(counts.insert(url, (1, next))),
                None => {}
            }
        }
        line.clear();
    }
    let mut urls: Vec<(String, (u64, usize))> = counts.into_iter().collect();
    urls.sort_by_key(|(_, (count, first))| (std::cmp::Reverse(*count), *first));
    Ok(urls.into_iter().take(max_pages).map(|(url, _)| url).collect())
}

/// The outcome for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WarmUpOutcome {
    Fetched,
    Fresh,
    /// It is not cached, or visitors may not request it.
    Uncacheable,
    Failed,
}

impl Dispatcher {
    /// Runs the warm-up according to the settings.
    pub(crate) async fn run_warm_up(self) {
        let settings = self.current_state().parts.settings.warm_up.clone();
        let Some(file) = settings.url_file.clone() else { return };
        let (named, max_pages) = (file.clone(), settings.max_pages);
        let read = tokio::task::spawn_blocking(move || read_urls(&named, max_pages)).await;
        let urls = match read {
            Ok(Ok(urls)) => urls,
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), reason = %error, "cannot read the URLs for the warm-up");
                return;
            }
            Err(_panicked) => return,
        };
        let (counts, failures) = ([const { AtomicU64::new(0) }; 4], AtomicU32::new(0));
        let warm_url = |url: String| {
            let (host, counts, failures) = (settings.host.as_deref(), &counts, &failures);
            // The configuration may have changed since the last page.
            let inner = self.current_state();
            async move {
                if failures.load(Ordering::Relaxed) >= MAX_CONSECUTIVE_FAILURES
                    || inner.parts.fetch_coalescer.has_stopped_storing()
                {
                    return;
                }
                let warmed = inner.warm_page(&url, host).await;
                if let Some(count) = counts.get(warmed as usize) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
                match warmed {
                    WarmUpOutcome::Failed => {
                        inner.parts.metrics.increment(DispatcherCounter::WarmUpFailures);
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                    WarmUpOutcome::Fetched => {
                        inner.parts.metrics.increment(DispatcherCounter::WarmedUp);
                        failures.store(0, Ordering::Relaxed);
                    }
                    WarmUpOutcome::Fresh | WarmUpOutcome::Uncacheable => {}
                }
            }
        };
        stream::iter(urls).for_each_concurrent(settings.concurrency, warm_url).await;
        let [fetched, fresh, skipped, failed] =
            counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        if failures.load(Ordering::Relaxed) >= MAX_CONSECUTIVE_FAILURES {
            tracing::warn!(file = %file.display(), failed, "warm-up stopped, as renders do not respond");
        }
        tracing::info!(file = %file.display(), fetched, fresh, skipped, failed, "cache warmed up");
    }
}

impl DispatcherState {
    /// Fetches one page if it is not fresh.
    async fn warm_page(self: &Arc<Self>, url: &str, host: Option<&str>) -> WarmUpOutcome {
        let Some((view, farm, file)) = self.warm_up_target(url, host) else {
            return WarmUpOutcome::Uncacheable;
        };
        let Some(cache) = &farm.config.cache else { return WarmUpOutcome::Uncacheable };
        let Some(docroot) = farm.docroot.as_ref().map(|root| root.docroot_for_reading()) else {
            return WarmUpOutcome::Uncacheable;
        };
        match docroot.look_up_file(&file, cache.enable_ttl) {
            Ok(CacheFileLookup::File(copy)) => {
                let now = self.parts.runtime.clock.now();
                let facts = docroot.freshness_facts(cache, &file, view.path.as_str(), &copy, now);
                if assess_freshness(facts, cache.stale_limits()) == CacheFileFreshness::Valid {
                    return WarmUpOutcome::Fresh;
                }
            }
            Ok(CacheFileLookup::Absent) => {}
            Ok(CacheFileLookup::Directory) | Err(_) => return WarmUpOutcome::Uncacheable,
        }
        let ticket = match self.parts.fetch_coalescer.join_or_lead(&farm.absolute_path(&file)) {
            FetchRole::Lead(ticket) => ticket,
            FetchRole::Join(pending_fetch) => {
                return match pending_fetch.wait_for_outcome().await {
                    FetchOutcome::Shared(_) => WarmUpOutcome::Fresh,
                    // The fetch of another request handles it.
                    FetchOutcome::Unshared(_) | FetchOutcome::Retry => WarmUpOutcome::Uncacheable,
                    FetchOutcome::Failed(_) => WarmUpOutcome::Failed,
                };
            }
            FetchRole::Pass(_) => return WarmUpOutcome::Uncacheable,
        };
        let fetch = PageFetch {
            call: UpstreamRequest {
                method: Method::GET,
                target: page_variant::variant_target(cache, &view),
                headers: request_headers(&farm.config, &view, ForwardPurpose::Cache),
                body: VisitorBody::empty(),
                sticky_render: None,
            },
            file,
            path: view.path.as_str().to_owned(),
            host: view.headers.get(header::HOST).cloned(),
            // There is no visitor.
            visit: None,
            min_sequence: None,
            cache_info: "caching",
        };
        match self.fetcher.spawn_fetch(farm, ticket, fetch).await {
            Ok(FetchResult::Page(_)) => WarmUpOutcome::Fetched,
            Ok(FetchResult::Uncached(response, ..)) if !response.status().is_server_error() => {
                WarmUpOutcome::Uncacheable
            }
            _ => WarmUpOutcome::Failed,
        }
    }

    /// Returns the cache location of a page that every visitor may request.
    fn warm_up_target(
        &self,
        url: &str,
        host: Option<&str>,
    ) -> Option<(RequestView, &Arc<FarmState>, PathBuf)> {
        let mut headers = HeaderMap::new();
        let host = host.or_else(|| self.default_host()).filter(|_| url.starts_with('/'));
        if let Some(host) = host.and_then(|host| HeaderValue::from_str(host).ok()) {
            headers.insert(header::HOST, host);
        }
        let view = RequestView::from_url(Method::GET, url, headers).ok()?;
        let view = match self.parts.settings.routes.route_request(&view) {
            RouteOutcome::Serve(rewritten) => rewritten.map_or(view, |rewritten| *rewritten),
            RouteOutcome::Redirect(..) | RouteOutcome::Respond(_) | RouteOutcome::Proxy(_) => {
                return None;
            }
        };
        // Farms with a share serve only some of the visitors.
        let decision =
            decide_request_among(&self.config, &view, |farm| farm.visitor_share.is_none())?;
        let RequestAction::Cache(file) = decision.action else { return None };
        let state =
            self.parts.farms.iter().find(|state| Arc::ptr_eq(&state.config, decision.farm))?;
        let is_private =
            state.config.auth_checker.is_some() || state.config.session_management.is_some();
        (!is_private).then_some((view, state, file))
    }

    /// Returns the first literal host name, starting with the last farm, the order in which farms are tried.
    fn default_host(&self) -> Option<&str> {
        let mut entries = self.config.farms.iter().rev().flat_map(|farm| &farm.virtual_hosts);
        entries.find(|entry| entry.is_literal_host()).map(|entry| entry.host.source())
    }
}

#[cfg(test)]
mod tests {
    use super::{read_urls, urls_of_line};

    #[test]
    fn lines_of_lists_sitemaps_and_logs_name_urls() {
        let logged = |request: &str, status| {
            format!(
                "127.0.0.1 - - [21/Nov/2026:00:50:16 +0000] \"{request}\" {status} 12 \"-\" \"x\""
            )
        };
        for (line, expected) in [
            ("/a.html", &["/a.html"][..]),
            ("  https://h/a.html  # more\n", &["https://h/a.html"]),
            ("# a comment", &[]),
            ("", &[]),
            (
                "<url><loc>http://h/a?x=1&amp;y=2</loc></url><url><loc> /b </loc></url>",
                &["http://h/a?x=1&y=2", "/b"],
            ),
            ("<loc>http://h/cut", &[]),
            (&logged("GET /a.html?x HTTP/1.1", 200), &["/a.html?x"]),
            (&logged("GET /a.html HTTP/1.1", 304), &["/a.html"]),
            (&logged("GET /a.html HTTP/1.1", 404), &[]),
            (&logged("POST /a.html HTTP/1.1", 200), &[]),
            (&logged("GET http://h/ HTTP/1.1", 200), &[]),
            ("nonsense", &[]),
        ] {
            assert_eq!(urls_of_line(line), expected, "{line}");
        }
    }

    #[test]
    fn what_was_asked_for_most_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("urls");
        std::fs::write(&file, b"/a\n/b\n\xff\xfe\n/c\n/b\n/c\n/c").unwrap();
        assert_eq!(read_urls(&file, 10).unwrap(), ["/c", "/b", "/a"]);
        assert_eq!(read_urls(&file, 1).unwrap(), ["/c"]);
    }
}
