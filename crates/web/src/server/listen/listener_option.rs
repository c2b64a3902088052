//! The options of a listener.

use std::sync::Arc;

use super::drain::ListenerDrain;
use super::listener_counter::ListenerCounters;
use super::listener_limit::ListenerLimits;
use crate::ip_network::IpNetwork;
use crate::server::fast_path::FastPath;
use crate::server::shortcut::Shortcut;
use crate::tls::TlsServer;

/// The options of one listener.
#[derive(Debug, Clone, Default)]
pub struct ListenerOptions {
    /// The limits.
    pub limits: ListenerLimits,
    /// The certificates; without them the listener uses cleartext.
    pub tls: Option<TlsServer>,
    /// Proxies whose connections begin with a PROXY header that names the client. Default none.
    pub proxies: Arc<[IpNetwork]>,
    /// The counters of the listener; share one instance to sum several listeners.
    pub counters: Arc<ListenerCounters>,
    /// The shutdown of the listener.
    pub drain: ListenerDrain,
    /// Handles requests on HTTP/1.1 connections before the service, where possible.
    pub fast_path: Option<Arc<dyn FastPath>>,
    /// Sends available responses before the service sees a request, on connections without TLS that are not on the fast
    /// path.
    pub shortcut: Option<Arc<dyn Shortcut>>,
}

impl From<ListenerLimits> for ListenerOptions {
    fn from(limits: ListenerLimits) -> Self {
        Self { limits, ..Self::default() }
    }
}
