//! An explanation of how a request is answered, and why, as text.
//!
//! Reads the document root but changes nothing, so that it can be used next to a running dispatcher.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::{HeaderMap, Method};
use serde::Serialize;
use tympan_web::http_date::format_http_date;

use crate::Error;
use crate::cache::STALE_MARK_MODE;
use crate::cache::freshness::{CacheFileFreshness, FreshnessInput, assess_freshness};
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::config::compiled_settings::CompiledSettings;
use crate::config::settings::DispatcherSettings;
use crate::config::{
    CacheConfig, DispatcherConfig, FarmConfig, FilterRule, RuleVerdict, StatFileLayout,
};
use crate::request::decision::{RequestAction, decide_request, decide_source, is_flush};
use crate::request::farm_selection::FarmMatch;
use crate::request::filter;
use crate::request::host_routing::RouteOutcome;
use crate::request::view::RequestView;

/// A request to explain.
#[derive(Debug, Clone, Copy)]
pub struct ExplainedRequest<'a> {
    /// Its method.
    pub method: &'a Method,
    /// A path, or a URL that begins with `http://` or `https://`.
    pub url: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The time of the request.
    pub now: SystemTime,
}

/// The explanation of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestExplanation {
    /// The request as the rules see it.
    pub request: String,
    /// The effect of the rules of `tympan.toml`, if any apply.
    pub rules: Option<String>,
    /// The farm, and the reason for its selection.
    pub farm: String,
    /// The decision of the filter, and the deciding rule.
    pub filter: String,
    /// The cacheability of the request, and the path of its file or the reason against caching.
    pub cache: String,
    /// The `.stat` file that the page obeys.
    pub stat: Option<String>,
    /// The current state in the cache.
    pub state: Option<String>,
    /// True if the visitor gets a response other than a refusal.
    pub is_served: bool,
}

impl fmt::Display for RequestExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("request", Some(&self.request)),
            ("rules", self.rules.as_ref()),
            ("farm", Some(&self.farm)),
            ("filter", Some(&self.filter)),
            ("cache", Some(&self.cache)),
            ("stat", self.stat.as_ref()),
            ("state", self.state.as_ref()),
        ];
        for (name, text) in rows {
            if let Some(text) = text {
                writeln!(f, "{name:<8} {text}")?;
            }
        }
        Ok(())
    }
}

/// Explains how a request would be answered.
///
/// # Errors
/// [`Error::Setting`] if the settings cannot be used, or [`Error::Path`] for a path that would be answered with 400.
pub fn explain_request(
    config: &DispatcherConfig,
    settings: &DispatcherSettings,
    question: &ExplainedRequest<'_>,
) -> Result<RequestExplanation, Error> {
    explain_with_settings(config, &settings.compile_settings()?, question)
}

/// Explains as [`explain_request`] does, with compiled settings.
///
/// # Errors
/// [`Error::Path`] for a path that would be answered with 400.
pub(crate) fn explain_with_settings(
    config: &DispatcherConfig,
    switches: &CompiledSettings,
    question: &ExplainedRequest<'_>,
) -> Result<RequestExplanation, Error> {
    let ExplainedRequest { method, url, headers, now } = *question;
    let mut view = RequestView::from_url(method.clone(), url, headers.clone())?;
    if switches.uses_forwarded_host {
        view.apply_forwarded_host();
    }
    let routed = (!is_flush(&view)).then(|| switches.routes.route_request(&view));
    let (rules, ended) = explain_host_rules(switches, routed, &mut view);
    let mut explanation = RequestExplanation {
        request: format!("{} at host `{}` over {}", view.request_line(), view.host, view.scheme),
        rules,
        farm: "none: the configuration has no farm".to_owned(),
        filter: "not consulted".to_owned(),
        cache: "not consulted".to_owned(),
        stat: None,
        state: None,
        is_served: false,
    };
    if let Some(is_served) = ended {
        explanation.farm = "not consulted".to_owned();
        explanation.is_served = is_served;
        return Ok(explanation);
    }
    let Some(decision) = decide_request(config, &view) else {
        return Ok(explanation);
    };
    let farm = decision.farm;
    let match_reason = match decision.farm_match {
        FarmMatch::Matched => "by its virtual hosts",
        FarmMatch::Default => "as the last farm, since no virtual host matches",
    };
    explanation.farm = format!("/{} ({}), {match_reason}", farm.name, farm.position);
    if is_flush(&view) {
        explanation.filter = "not consulted: the headers make it a flush".to_owned();
        return Ok(explanation);
    }
    explanation.filter = match &decision.action {
        RequestAction::Purge => {
            "not consulted: the method requests removal of the page from the cache".to_owned()
        }
        RequestAction::RefuseReserved => "denied: the file is reserved for the cache".to_owned(),
        _ => explain_filter(farm, &view),
    };
    match file_if_accepted(&decision.action, farm, &view) {
        None => {}
        Some(Err(reason)) => {
            explanation.is_served = true;
            explanation.cache = format!("not cacheable: {reason}");
        }
        Some(Ok(file)) => {
            explanation.is_served = true;
            if let Some(cache) = &farm.cache {
                explain_cache(&mut explanation, cache, &file, &view, now);
            }
        }
    }
    Ok(explanation)
}

/// Explains the effect of the host rules; if they end the request, also returns true if it is served.
pub(crate) fn explain_host_rules(
    switches: &CompiledSettings,
    routed: Option<RouteOutcome>,
    view: &mut RequestView,
) -> (Option<String>, Option<bool>) {
    let (text, is_served) = match routed {
        None => return (None, None),
        Some(RouteOutcome::Serve(rewritten)) => {
            let text = rewritten.map(|rewritten| {
                *view = *rewritten;
                format!("rewritten to {}", view.wire_target())
            });
            if switches.declines_root_url && view.path.as_str() == "/" {
                (
                    format!(
                        "answered with 404 by `decline_root`{}",
                        text.map(|text| format!(", {text}")).unwrap_or_default()
                    ),
                    false,
                )
            } else {
                return (text, None);
            }
        }
        Some(RouteOutcome::Redirect(status, location)) => {
            let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
            (format!("redirected with {} to {location}", status.as_u16()), true)
        }
        Some(RouteOutcome::Respond(status)) => {
            (format!("answered with {}", status.as_u16()), false)
        }
        Some(RouteOutcome::Proxy(proxied)) => {
            (format!("answered by {}, never cached", proxied.url), true)
        }
    };
    (Some(text), Some(is_served))
}

fn file_if_accepted(
    action: &RequestAction<'_>,
    farm: &FarmConfig,
    view: &RequestView,
) -> Option<Result<PathBuf, NotCacheableReason>> {
    match action {
        RequestAction::Purge | RequestAction::Refuse(_) | RequestAction::RefuseReserved => None,
        RequestAction::Pass(_) | RequestAction::Cache(_) => Some(match decide_source(farm, view) {
            RequestAction::Cache(file) => Ok(file),
            RequestAction::Pass(reason) => Err(reason),
            _ => Err(NotCacheableReason::NoDocroot),
        }),
    }
}

fn explain_filter(farm: &FarmConfig, view: &RequestView) -> String {
    let Some(rules) = &farm.filter else {
        return "allowed: the farm has no filter".to_owned();
    };
    match filter::deciding_filter_rule(rules, view) {
        None => "denied: no rule matches".to_owned(),
        Some(rule) => {
            let verdict = match rule.verdict {
                RuleVerdict::Allow => "allowed",
                RuleVerdict::Deny => "denied",
            };
            format!("{verdict} by {}", filter_rule_name(rule))
        }
    }
}

pub(crate) fn filter_rule_name(rule: &FilterRule) -> String {
    match &rule.label {
        Some(label) => format!("/{label} ({})", rule.position),
        None => format!("the rule at {}", rule.position),
    }
}

fn explain_cache(
    explanation: &mut RequestExplanation,
    cache: &CacheConfig,
    file: &Path,
    view: &RequestView,
    now: SystemTime,
) {
    let Some(docroot) = &cache.docroot else {
        return;
    };
    let whole = docroot.join(file);
    explanation.cache = format!("cacheable as {}", whole.display());
    let obeys = cache.invalidate.allows(view.path.as_str());
    let stat = nearest_stat_file(docroot, file, &cache.stat_files);
    explanation.stat = Some(match (&stat, obeys) {
        (_, false) => "obeys none: the path is not in /invalidate".to_owned(),
        (Some((path, _)), true) => format!("obeys {}", path.display()),
        (None, true) => "obeys the nearest .stat file, but there is none yet".to_owned(),
    });
    let Ok(metadata) = std::fs::symlink_metadata(&whole) else {
        explanation.state = Some("absent: the next request fetches it".to_owned());
        return;
    };
    let Ok(fetched) = metadata.modified() else {
        return;
    };
    let mut ttl = whole.into_os_string();
    ttl.push(".ttl");
    let expires = cache.enable_ttl.then(|| modified_at(Path::new(&ttl))).flatten();
    let facts = FreshnessInput {
        now,
        fetch_time: fetched,
        is_marked: metadata.permissions().mode() & STALE_MARK_MODE != 0,
        flush_time: stat.as_ref().filter(|_| obeys).map(|(_, time)| *time),
        previous_flush_time: stat.filter(|_| obeys).and_then(|(path, time)| {
            let used = std::fs::symlink_metadata(path).ok()?.accessed().ok()?;
            (used < time).then_some(used)
        }),
        expiry: expires,
    };
    let fetched = format_http_date(fetched).unwrap_or_default();
    explanation.state = Some(match assess_freshness(facts, cache.stale_limits()) {
        CacheFileFreshness::Valid => format!("fresh, fetched {fetched}"),
        CacheFileFreshness::Expired => format!("expired, fetched {fetched}"),
        CacheFileFreshness::Stale => format!("stale, fetched {fetched}"),
        CacheFileFreshness::Marked => format!("marked by a flush, fetched {fetched}"),
    });
}

fn nearest_stat_file(
    docroot: &Path,
    file: &Path,
    stat_files: &StatFileLayout,
) -> Option<(PathBuf, SystemTime)> {
    let level = match stat_files {
        StatFileLayout::Single(file) => return Some((file.clone(), modified_at(file)?)),
        StatFileLayout::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let depth = folder.components().count();
    folder.ancestors().skip(depth.saturating_sub(level)).find_map(|folder| {
        let stat = docroot.join(folder).join(".stat");
        modified_at(&stat).map(|time| (stat, time))
    })
}

fn modified_at(file: &Path) -> Option<SystemTime> {
    std::fs::symlink_metadata(file).ok()?.modified().ok()
}
