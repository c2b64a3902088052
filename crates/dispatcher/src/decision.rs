//! What happens to a request, as a pure function of request and configuration.
//!
//! Not here: whether the cache holds the file and how fresh it is (`cache`, `freshness`).

use std::path::PathBuf;
use std::sync::Arc;

use http::Method;
use tympan_web::flush_message::{FLUSH_PATH, FlushMessage};

use crate::cacheable::{Reason, check_request, is_reserved};
use crate::config::{Config, Farm, FilterRule, StatFiles, Verdict};
use crate::farm::{Found, select};
use crate::filter;
use crate::request::RequestView;
use crate::tags::SURROGATE_KEY;

/// What happens to a request.
#[derive(Debug, Clone)]
pub struct Decision<'a> {
    /// The farm that serves it.
    pub farm: &'a Arc<Farm>,
    /// How the farm was found.
    pub found: Found,
    /// What happens there.
    pub action: Action<'a>,
}

/// What happens to a request in its farm.
#[derive(Debug, Clone)]
pub enum Action<'a> {
    /// It is a flush.
    Flush,
    /// It asks to forget one page (`PURGE`).
    Purge,
    /// It is refused; `None` if no rule matched.
    Refuse(Option<&'a FilterRule>),
    /// It asks for a file that belongs to the cache itself.
    RefuseReserved,
    /// It is forwarded, and the answer not stored.
    Pass(Reason),
    /// It is served from the file below the document root, or fetched into it.
    Cache(PathBuf),
}

/// Decides about `request`; nothing if the configuration holds no farm.
#[must_use]
pub fn decide<'a>(config: &'a Config, request: &RequestView) -> Option<Decision<'a>> {
    decide_among(config, request, |_| true)
}

/// Decides about `request` among the farms for which `admits` holds.
#[must_use]
pub(crate) fn decide_among<'a>(
    config: &'a Config,
    request: &RequestView,
    admits: impl Fn(&Farm) -> bool,
) -> Option<Decision<'a>> {
    let (farm, found) = select(config, request, admits)?;
    let action = decide_in(farm, request);
    Some(Decision { farm, found, action })
}

/// Decides about a request in its farm.
pub(crate) fn decide_in<'a>(farm: &'a Farm, request: &RequestView) -> Action<'a> {
    // A flush is subject to `/allowedClients` only; flush farms deny everything in `/filter`.
    if is_flush(request) {
        return Action::Flush;
    }
    if request.method.as_str() == "PURGE" || names_keys(request) {
        return Action::Purge;
    }
    if is_reserved(&request.path) || is_stat_file(farm, request) {
        return Action::RefuseReserved;
    }
    if let Some(rules) = &farm.filter {
        match filter::deciding(rules, request) {
            Some(rule) if rule.verdict == Verdict::Allow => {}
            rule => return Action::Refuse(rule),
        }
    }
    place(farm, request)
}

/// Tells whether the farm's own rules let a request pass, whatever the list of vanity URLs says.
pub(crate) fn is_accepted(farm: &Farm, request: &RequestView) -> bool {
    let Some(rules) = &farm.filter else { return true };
    filter::deciding(rules, request).is_some_and(|rule| rule.verdict == Verdict::Allow)
}

/// Tells whether a request is a flush, by its headers.
pub(crate) fn is_flush(request: &RequestView) -> bool {
    matches!(request.method, Method::GET | Method::POST) && FlushMessage::is_flush(&request.headers)
}

/// Tells whether a request flushes surrogate keys, as `PURGE` does with the same header.
fn names_keys(request: &RequestView) -> bool {
    request.method == Method::POST
        && request.path.as_str() == FLUSH_PATH
        && request.headers.contains_key(SURROGATE_KEY)
}

/// Decides where an accepted request is served from.
#[must_use]
pub(crate) fn place<'a>(farm: &Farm, request: &RequestView) -> Action<'a> {
    match check_request(farm, request) {
        Ok(file) => Action::Cache(file),
        Err(reason) => Action::Pass(reason),
    }
}

/// Tells whether the URL would show the configured stat file.
fn is_stat_file(farm: &Farm, request: &RequestView) -> bool {
    let Some(cache) = &farm.cache else {
        return false;
    };
    let (StatFiles::Single(file), Some(docroot)) = (&cache.stat_files, &cache.docroot) else {
        return false;
    };
    *file == docroot.join(request.path.relative_file())
}
