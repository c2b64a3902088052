//! A request in progress, with the facts for its log line.

use std::sync::Arc;

use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::farm_state::FarmState;
use crate::request::view::RequestView;

/// A request in progress, with the facts for its log line.
pub(crate) struct RequestExchange<'a> {
    pub(crate) farm: &'a Arc<FarmState>,
    pub(crate) view: &'a RequestView,
    /// The value `hit`, `miss`, `none` or `purge` for the log.
    pub(crate) cache_label: &'static str,
    pub(crate) render: Option<String>,
    /// The value of the header `X-Cache-Info`.
    pub(crate) cache_info: String,
    /// The warning given in the log.
    pub(crate) warning: Option<String>,
    /// The cache outcome, for the counters and the header `Cache-Status`.
    pub(crate) outcome: CacheOutcome,
    /// True if a visitor chose the URL, as opposed to an include or an error document.
    pub(crate) is_visitor_request: bool,
    /// True if it waited for a page that was for visitors with other headers.
    pub(crate) has_waited_in_vain: bool,
}

impl<'a> RequestExchange<'a> {
    pub(crate) fn new(farm: &'a Arc<FarmState>, view: &'a RequestView) -> Self {
        Self {
            farm,
            view,
            cache_label: "none",
            render: None,
            cache_info: String::new(),
            warning: None,
            outcome: CacheOutcome::Bypassed,
            is_visitor_request: false,
            has_waited_in_vain: false,
        }
    }

    /// Records that the response is not stored, with the reason.
    pub(crate) fn record_pass(&mut self, reason: NotCacheableReason) {
        self.cache_info = format!("not cacheable: {reason}");
        self.outcome = CacheOutcome::Pass(reason);
    }
}
