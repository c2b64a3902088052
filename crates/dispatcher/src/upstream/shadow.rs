//! Shadow requests: a part of the fetched pages is also requested from other renders, and the responses are compared
//! (`/x-shadow`), so that a new version or another back end can be evaluated with real requests before visitors see it.
//!
//! Input: a page that a render of the farm returned for the cache. Output: counters and log lines; nothing that a
//! visitor gets.
//!
//! Invariants
//! * No visitor waits for a shadow: it is requested after the visitors have their page, with at most
//!   [`CONCURRENT_SHADOW_REQUESTS`] requests at a time; further ones are dropped.
//! * Responses of a shadow are not stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cache::file_response::is_same_media_type;
use crate::config::FarmConfig;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::response_body::MAX_BUFFERED_BODY_BYTES;
use crate::upstream::{Upstream, UpstreamRequest, VisitorBody};

/// The maximum number of concurrent shadow requests.
const CONCURRENT_SHADOW_REQUESTS: usize = 4;

/// The shadow of a farm.
#[derive(Debug)]
pub(crate) struct FarmShadow {
    upstream: Upstream,
    percent: f64,
    page_count: AtomicU64,
    request_permits: Arc<Semaphore>,
}

/// A fetched page.
#[derive(Debug)]
pub(crate) struct ShadowedPage {
    pub(crate) target: String,
    /// The headers of the request.
    pub(crate) request_headers: HeaderMap,
    /// The content type of the response.
    pub(crate) content_type: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

impl FarmShadow {
    /// Returns the shadow of a farm, if it has one.
    pub(crate) fn for_farm(farm: &FarmConfig, runtime: &DispatcherRuntime) -> Option<Self> {
        let (percent, renders) = farm.shadow_renders.clone()?;
        let mut shadow_farm = farm.clone();
        shadow_farm.name = format!("{} (shadow)", farm.name);
        (shadow_farm.renders, shadow_farm.retry_rounds, shadow_farm.has_failover) =
            (renders, 1, false);
        shadow_farm.health.has_circuit_breaker = true;
        let upstream = Upstream::new(&Arc::new(shadow_farm), runtime, None);
        let (turn, permits) =
            (AtomicU64::new(0), Arc::new(Semaphore::new(CONCURRENT_SHADOW_REQUESTS)));
        Some(Self { upstream, percent, page_count: turn, request_permits: permits })
    }

    /// Returns the permit for a request; `None` if enough requests are running.
    pub(super) fn try_acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.request_permits).try_acquire_owned().ok()
    }

    /// Returns true if the next page is in the sample, which is spread evenly.
    pub(super) fn is_next_sampled(&self) -> bool {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of pages needs no more than 52 bits"
        )]
        let turn = self.page_count.fetch_add(1, Ordering::Relaxed) as f64;
        let sampled_count = |turns: f64| (turns * self.percent / 100.0).floor();
        sampled_count(turn + 1.0) > sampled_count(turn)
    }
}

/// The result of a shadow comparison.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ShadowVerdict {
    Identical,
    Different(String),
    Failed,
}

impl FarmShadow {
    /// Requests the page from the shadow and compares the responses.
    pub(super) async fn compare_response(&self, fetched: ShadowedPage) -> ShadowVerdict {
        let ShadowedPage { target, request_headers, content_type: kind, body } = fetched;
        let call = UpstreamRequest {
            method: Method::GET,
            target,
            headers: request_headers,
            body: VisitorBody::empty(),
            sticky_render: None,
        };
        let Ok(response) = self.upstream.send(&call).await else { return ShadowVerdict::Failed };
        let (parts, mut shadow_body) = response.response.into_parts();
        if parts.status != StatusCode::OK {
            return ShadowVerdict::Different(format!(
                "status {} instead of 200",
                parts.status.as_u16()
            ));
        }
        let their_kind = parts.headers.get(header::CONTENT_TYPE);
        let is_same_kind = match (&kind, their_kind) {
            (Some(own), Some(their)) => is_same_media_type(own, their),
            (None, None) => true,
            _ => false,
        };
        if !is_same_kind {
            let text = |kind: Option<&HeaderValue>| {
                kind.map_or("none".to_owned(), |kind| {
                    String::from_utf8_lossy(kind.as_bytes()).into()
                })
            };
            let (own, their): (String, String) = (text(kind.as_ref()), text(their_kind));
            return ShadowVerdict::Different(format!("type {their} instead of {own}"));
        }
        let mut at = 0;
        while let Some(frame) = shadow_body.frame().await {
            let Ok(frame) = frame else { return ShadowVerdict::Failed };
            let piece = frame.into_data().unwrap_or_default();
            let own = body.get(at..).unwrap_or_default();
            let alike = own.iter().zip(&piece).take_while(|(own, their)| own == their).count();
            if alike < piece.len() || at + piece.len() > MAX_BUFFERED_BODY_BYTES {
                return ShadowVerdict::Different(format!("body differs at byte {}", at + alike));
            }
            at += piece.len();
        }
        if at < body.len() {
            return ShadowVerdict::Different(format!("body ends at byte {at} of {}", body.len()));
        }
        ShadowVerdict::Identical
    }
}
