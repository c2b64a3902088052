//! The rate limit of clients.

use std::net::IpAddr;

use http::{HeaderValue, StatusCode, header};

use crate::cache::response_memory::DispatcherResponse;
use crate::config::front_settings::RequestGate;
use crate::edge::own_response::own_response;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};

/// Counts a request of `client`; returns a response if the client exceeds its rate.
pub(crate) fn check_rate_limit(
    gate: &RequestGate,
    metrics: &DispatcherMetrics,
    client: IpAddr,
) -> Option<DispatcherResponse> {
    let wait = gate.admit(client).err()?;
    metrics.increment(DispatcherCounter::RateLimited);
    let mut response = own_response(StatusCode::TOO_MANY_REQUESTS);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
    Some(response)
}
