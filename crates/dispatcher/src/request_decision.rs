//! What happens to a request, as a pure function of request and configuration.
//!
//! Not here: whether the cache holds the file and how fresh it is (`cache`, `freshness`).

use std::path::PathBuf;
use std::sync::Arc;

use http::Method;
use tympan_web::flush_message::{FLUSH_PATH, FlushMessage};

use crate::cacheability::{NotCacheableReason, check_request_cacheable, is_reserved_path};
use crate::config::{DispatcherConfig, FarmConfig, FilterRule, RuleVerdict, StatFileLayout};
use crate::farm_selection::{FarmMatch, select_farm};
use crate::filter;
use crate::request_view::RequestView;
use crate::surrogate_key::SURROGATE_KEY_HEADER;

/// What happens to a request.
#[derive(Debug, Clone)]
pub struct RequestDecision<'a> {
    /// The farm that serves it.
    pub farm: &'a Arc<FarmConfig>,
    /// How the farm was found.
    pub farm_match: FarmMatch,
    /// What happens there.
    pub action: RequestAction<'a>,
}

/// What happens to a request in its farm.
#[derive(Debug, Clone)]
pub enum RequestAction<'a> {
    /// It is a flush.
    Flush,
    /// It asks to forget one page (`PURGE`).
    Purge,
    /// It is refused; `None` if no rule matched.
    Refuse(Option<&'a FilterRule>),
    /// It asks for a file that belongs to the cache itself.
    RefuseReserved,
    /// It is forwarded, and the answer not stored.
    Pass(NotCacheableReason),
    /// It is served from the file below the document root, or fetched into it.
    Cache(PathBuf),
}

/// Decides about `request`; nothing if the configuration holds no farm.
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
    let (farm, found) = select_farm(config, request, admits)?;
    let action = decide_in_farm(farm, request);
    Some(RequestDecision { farm, farm_match: found, action })
}

/// Decides about a request in its farm.
pub(crate) fn decide_in_farm<'a>(farm: &'a FarmConfig, request: &RequestView) -> RequestAction<'a> {
    // A flush is subject to `/allowedClients` only; flush farms deny everything in `/filter`.
    if is_flush(request) {
        return RequestAction::Flush;
    }
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

/// Tells whether the farm's own rules let a request pass, whatever the list of vanity URLs says.
pub(crate) fn is_accepted(farm: &FarmConfig, request: &RequestView) -> bool {
    let Some(rules) = &farm.filter else { return true };
    filter::deciding_filter_rule(rules, request)
        .is_some_and(|rule| rule.verdict == RuleVerdict::Allow)
}

/// Tells whether a request is a flush, by its headers.
pub(crate) fn is_flush(request: &RequestView) -> bool {
    matches!(request.method, Method::GET | Method::POST) && FlushMessage::is_flush(&request.headers)
}

/// Tells whether a request flushes surrogate keys, as `PURGE` does with the same header.
fn names_surrogate_keys(request: &RequestView) -> bool {
    request.method == Method::POST
        && request.path.as_str() == FLUSH_PATH
        && request.headers.contains_key(SURROGATE_KEY_HEADER)
}

/// Decides where an accepted request is served from.
#[must_use]
pub(crate) fn decide_source<'a>(farm: &FarmConfig, request: &RequestView) -> RequestAction<'a> {
    match check_request_cacheable(farm, request) {
        Ok(file) => RequestAction::Cache(file),
        Err(reason) => RequestAction::Pass(reason),
    }
}

/// Tells whether the URL would show the configured stat file.
fn is_stat_file(farm: &FarmConfig, request: &RequestView) -> bool {
    let Some(cache) = &farm.cache else {
        return false;
    };
    let (StatFileLayout::Single(file), Some(docroot)) = (&cache.stat_files, &cache.docroot) else {
        return false;
    };
    *file == docroot.join(request.path.relative_file_path())
}
