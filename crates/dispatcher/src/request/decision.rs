//! The decision about a request, as a pure function of request and configuration.
//!
//! Not here: the presence and freshness of the file in the cache (`cache`, `freshness`).

use std::path::PathBuf;
use std::sync::Arc;

use http::Method;
use tympan_web::flush_message::{FLUSH_PATH, FlushMessage};

use crate::cache::cacheability::{check_request_cacheable, is_reserved_path};
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::surrogate_key::SURROGATE_KEY_HEADER;
use crate::config::{DispatcherConfig, FarmConfig, FilterRule, RuleVerdict, StatFileLayout};
use crate::request::farm_selection::{FarmMatch, select_farm};
use crate::request::filter;
use crate::request::view::RequestView;

/// The decision about a request.
#[derive(Debug, Clone)]
pub struct RequestDecision<'a> {
    /// The farm that serves it.
    pub farm: &'a Arc<FarmConfig>,
    /// The way in which the farm was selected.
    pub farm_match: FarmMatch,
    /// The action in the farm.
    pub action: RequestAction<'a>,
}

/// The action for a request in its farm.
#[derive(Debug, Clone)]
pub enum RequestAction<'a> {
    /// Purge one page (`PURGE`).
    Purge,
    /// Refuse the request; `None` if no rule matched.
    Refuse(Option<&'a FilterRule>),
    /// Refuse the request for a file that belongs to the cache itself.
    RefuseReserved,
    /// Forward the request, and do not store the response.
    Pass(NotCacheableReason),
    /// Serve the file below the document root, or fetch into it.
    Cache(PathBuf),
}

/// Decides about `request`, which is not a flush; `None` if the configuration holds no farm.
#[must_use]
pub fn decide_request<'a>(
    config: &'a DispatcherConfig,
    request: &RequestView,
) -> Option<RequestDecision<'a>> {
    decide_request_among(config, request, |_| true)
}

/// Decides about `request` among the farms for which `admits` holds.
#[must_use]
pub(crate) fn decide_request_among<'a>(
    config: &'a DispatcherConfig,
    request: &RequestView,
    admits: impl Fn(&FarmConfig) -> bool,
) -> Option<RequestDecision<'a>> {
    let (farm, farm_match) = select_farm(config, request, admits)?;
    let action = decide_in_farm(farm, request);
    Some(RequestDecision { farm, farm_match, action })
}

/// Decides about a request in its farm. A flush is not decided here: the filter does not apply to it.
pub(crate) fn decide_in_farm<'a>(farm: &'a FarmConfig, request: &RequestView) -> RequestAction<'a> {
    if request.method.as_str() == "PURGE" || names_surrogate_keys(request) {
        return RequestAction::Purge;
    }
    if is_reserved_path(&request.path) || is_stat_file(farm, request) {
        return RequestAction::RefuseReserved;
    }
    if let Some(rules) = &farm.filter {
        match filter::deciding_filter_rule(rules, request) {
            Some(rule) if rule.verdict == RuleVerdict::Allow => {}
            rule => return RequestAction::Refuse(rule),
        }
    }
    decide_source(farm, request)
}

/// Returns true if the farm's own rules permit a request, regardless of the list of vanity URLs.
pub(crate) fn is_accepted(farm: &FarmConfig, request: &RequestView) -> bool {
    let Some(rules) = &farm.filter else { return true };
    filter::deciding_filter_rule(rules, request)
        .is_some_and(|rule| rule.verdict == RuleVerdict::Allow)
}

/// Returns true if a request is a flush, according to its method and headers.
#[must_use]
pub fn is_flush(request: &RequestView) -> bool {
    matches!(request.method, Method::GET | Method::POST) && FlushMessage::is_flush(&request.headers)
}

/// Returns true if a request flushes surrogate keys, as `PURGE` does with the same header.
fn names_surrogate_keys(request: &RequestView) -> bool {
    request.method == Method::POST
        && request.path.as_str() == FLUSH_PATH
        && request.headers.contains_key(SURROGATE_KEY_HEADER)
}

/// Decides the source of the response to a permitted request.
#[must_use]
pub(crate) fn decide_source<'a>(farm: &FarmConfig, request: &RequestView) -> RequestAction<'a> {
    match check_request_cacheable(farm, request) {
        Ok(file) => RequestAction::Cache(file),
        Err(reason) => RequestAction::Pass(reason),
    }
}

/// Returns true if the URL would expose the configured stat file.
fn is_stat_file(farm: &FarmConfig, request: &RequestView) -> bool {
    let Some(cache) = &farm.cache else {
        return false;
    };
    let (StatFileLayout::Single(file), Some(docroot)) = (&cache.stat_files, &cache.docroot) else {
        return false;
    };
    *file == docroot.join(request.path.relative_file_path())
}
