//! The request of a visitor: its URL, the farm that serves it, the filter, and the decision what to do with it.

pub(crate) mod auth_check;
pub(crate) mod decision;
pub(crate) mod exchange;
pub(crate) mod farm_selection;
pub(crate) mod filter;
pub(crate) mod host_routing;
pub(crate) mod https_redirect;
pub(crate) mod rate_limit;
pub(crate) mod sticky_cookie;
pub(crate) mod traffic_share;
pub(crate) mod vanity_list;
pub(crate) mod view;
