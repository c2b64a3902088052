//! The state of a dispatcher with one configuration.

use std::sync::Arc;

use tympan_web::client::HttpClient;

use crate::cache::response_memory::ResponseMemory;
use crate::config::DispatcherConfig;
use crate::config::compiled_settings::CompiledSettings;
use crate::config::front_settings::RequestGate;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::farm_state::FarmState;
use crate::flush::propagation::CatchUpGate;
use crate::flush::visit_address::ListenerPorts;
use crate::observe::log::LogLevel;
use crate::observe::metrics::DispatcherMetrics;
use crate::request::traffic_share::FarmShares;
use crate::upstream::request_coalescing::FetchCoalescer;

/// The state of a dispatcher with one configuration.
#[derive(Debug)]
pub(crate) struct DispatcherState {
    pub(crate) config: DispatcherConfig,
    pub(crate) settings: CompiledSettings,
    pub(crate) farms: Vec<Arc<FarmState>>,
    pub(crate) runtime: DispatcherRuntime,
    pub(crate) fetch_coalescer: Arc<FetchCoalescer>,
    pub(crate) response_memory: Arc<ResponseMemory>,
    /// The serial number of this configuration, which distinguishes it from earlier ones.
    pub(crate) config_serial: u64,
    pub(crate) metrics: Arc<DispatcherMetrics>,
    pub(crate) shares: Arc<FarmShares>,
    pub(crate) has_shares: bool,
    /// The client for rules that proxy to another server.
    pub(crate) proxy_client: HttpClient,
    /// The checks applied to each request first.
    pub(crate) request_gate: RequestGate,
    /// The ID that distinguishes this dispatcher from its siblings.
    pub(crate) instance_id: Arc<str>,
    pub(crate) catch_up_gate: Arc<CatchUpGate>,
    /// The ports on which visitors connect.
    pub(crate) listener_ports: Arc<ListenerPorts>,
}

impl DispatcherState {
    /// Writes to the dispatcher's own log.
    pub(crate) fn log(&self, level: LogLevel, text: impl FnOnce() -> String) {
        self.runtime.log.write(&self.runtime.clock, level, text);
    }
}
