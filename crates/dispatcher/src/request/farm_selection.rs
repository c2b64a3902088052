//! Selection of the farm for a request.
//!
//! Farms are tried from the last in the file to the first, their entries from the top down. An entry whose stated parts
//! all match wins, those that state a path or scheme before those that state only a host; then the first entry whose
//! host alone matches; then the last farm. Farms with a share of the visitors take precedence only over those.

use std::sync::Arc;

use crate::config::{DispatcherConfig, FarmConfig, VirtualHostPattern};
use crate::request::view::RequestView;

/// The way in which a farm was selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarmMatch {
    /// An entry of `/virtualhosts` matched.
    Matched,
    /// No entry matched; the last farm is used, with a warning.
    Default,
}

/// Returns the farm for `request`, or `None` if the configuration holds no farm.
#[must_use]
pub(crate) fn select_farm<'a>(
    config: &'a DispatcherConfig,
    request: &RequestView,
    admits: impl Fn(&FarmConfig) -> bool,
) -> Option<(&'a Arc<FarmConfig>, FarmMatch)> {
    let passes: [fn(&VirtualHostPattern, &RequestView) -> bool; 3] =
        [matches_virtual_host_precisely, matches_host_entry, matches_host];
    for pass in passes {
        let farm = config
            .farms
            .iter()
            .rev()
            .filter(|farm| admits(farm))
            .find(|farm| farm.virtual_hosts.iter().any(|entry| pass(entry, request)));
        if let Some(farm) = farm {
            return Some((farm, FarmMatch::Matched));
        }
    }
    let last = config.farms.iter().rev().find(|farm| admits(farm));
    last.or(config.farms.last()).map(|farm| (farm, FarmMatch::Default))
}

fn matches_virtual_host_precisely(entry: &VirtualHostPattern, request: &RequestView) -> bool {
    let states_more = entry.path_prefix.is_some() || entry.scheme.is_some();
    states_more && matches_host(entry, request) && {
        let scheme = entry.scheme.as_ref();
        let uri = entry.path_prefix.as_ref();
        scheme.is_none_or(|scheme| scheme.matches(request.scheme))
            && uri.is_none_or(|uri| uri.matches(request.path.as_str()))
    }
}

fn matches_host_entry(entry: &VirtualHostPattern, request: &RequestView) -> bool {
    entry.path_prefix.is_none() && entry.scheme.is_none() && matches_host(entry, request)
}

fn matches_host(entry: &VirtualHostPattern, request: &RequestView) -> bool {
    let default_port = if request.is_tls { "443" } else { "80" };
    let port = request.port.as_deref().unwrap_or(default_port);
    entry.host.matches(&request.host) && entry.port.as_ref().is_none_or(|own| own.matches(port))
}
