//! The state of a dispatcher with one configuration.
//!
//! Its methods are beside their subjects: creation (`dispatcher`), answers (`request_pipeline`), warm-up
//! (`flush::warm_up`), disk quotas and their metrics (`cache::quota_enforcement`), status (`observe::status`).

use std::sync::Arc;

use tympan_web::client::HttpClient;

use crate::cache::response_memory::memory_responder::MemoryResponder;
use crate::cached_page_service::CachedPageService;
use crate::config::DispatcherConfig;
use crate::dispatcher_parts::DispatcherParts;
use crate::flush::FlushService;
use crate::flush::propagation::CatchUpGate;
use crate::flush::propagation::receiver::SiblingFlushReceiver;
use crate::flush::refetch::PageRefetcher;
use crate::request::traffic_share::FarmShares;
use crate::upstream::page_fetch::PageFetcher;
use crate::upstream::page_include::IncludeFiller;
use crate::upstream::sibling_copy::SiblingCopyServer;
use crate::upstream::websocket::TunnelLimiter;

/// The state of a dispatcher with one configuration.
#[derive(Debug)]
pub(crate) struct DispatcherState {
    pub(crate) config: DispatcherConfig,
    pub(crate) parts: DispatcherParts,
    pub(crate) shares: Arc<FarmShares>,
    /// The client for rules that proxy to another server.
    pub(crate) proxy_client: HttpClient,
    /// The limit of WebSockets to servers behind proxy rules.
    pub(crate) tunnels: TunnelLimiter,
    pub(crate) catch_up_gate: Arc<CatchUpGate>,
    pub(crate) memory_responder: MemoryResponder,
    pub(crate) fetcher: Arc<PageFetcher>,
    pub(crate) cached_page_service: Arc<CachedPageService>,
    pub(crate) include_filler: IncludeFiller,
    pub(crate) sibling_copies: SiblingCopyServer,
    pub(crate) refetcher: Arc<PageRefetcher>,
    pub(crate) flushes: Arc<FlushService>,
    pub(crate) sibling_receiver: Arc<SiblingFlushReceiver>,
}
