//! The parts of a dispatcher that its owners share: each owner copies those that it uses into private fields.

use std::sync::Arc;

use crate::cache::response_memory::ResponseMemory;
use crate::config::compiled_settings::CompiledSettings;
use crate::config::front_settings::RequestGate;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::farm_state::FarmState;
use crate::flush::visit_address::ListenerPorts;
use crate::observe::metrics::DispatcherMetrics;
use crate::upstream::request_coalescing::FetchCoalescer;

/// The shared parts of a dispatcher with one configuration.
#[derive(Debug, Clone)]
pub(crate) struct DispatcherParts {
    pub(crate) settings: Arc<CompiledSettings>,
    pub(crate) farms: Arc<[Arc<FarmState>]>,
    pub(crate) runtime: Arc<DispatcherRuntime>,
    pub(crate) fetch_coalescer: Arc<FetchCoalescer>,
    pub(crate) response_memory: Arc<ResponseMemory>,
    pub(crate) metrics: Arc<DispatcherMetrics>,
    /// The checks applied to each request first.
    pub(crate) request_gate: Arc<RequestGate>,
    /// The ports on which visitors connect.
    pub(crate) listener_ports: Arc<ListenerPorts>,
    /// The ID that distinguishes this dispatcher from its siblings.
    pub(crate) instance_id: Arc<str>,
    /// The serial number of this configuration, which distinguishes it from earlier ones.
    pub(crate) config_serial: u64,
    /// True if a farm serves only a share of the visitors.
    pub(crate) has_shares: bool,
}
