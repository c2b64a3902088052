//! Why a request is answered as it is, in words.
//!
//! Reads the document root but changes nothing, so that it can be asked beside a running dispatcher.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use http::{HeaderMap, Method};
use serde::Serialize;

use crate::Error;
use crate::cache::MARK;
use crate::cacheable::Reason;
use crate::config::{Cache, Config, Farm, FilterRule, StatFiles, Verdict};
use crate::decision::{Action, decide, is_flush, place};
use crate::farm::Found;
use crate::filter;
use crate::freshness::{Facts, Freshness, judge};
use crate::request::RequestView;
use crate::route::Routed;
use crate::settings::{Settings, Switches};

/// A request to explain.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its method.
    pub method: &'a Method,
    /// A path, or a URL that begins with `http://` or `https://`.
    pub url: &'a str,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// When it comes.
    pub now: SystemTime,
}

/// What would happen to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The request as the rules see it.
    pub request: String,
    /// What the rules of `tympan.toml` make of it, if they concern it.
    pub rules: Option<String>,
    /// The farm, and why this one.
    pub farm: String,
    /// Whether it may pass, and which rule says so.
    pub filter: String,
    /// Whether it is cached, and where or why not.
    pub cache: String,
    /// Which `.stat` file the page obeys.
    pub stat: Option<String>,
    /// What is in the cache now.
    pub state: Option<String>,
    /// Whether the visitor gets an answer other than a refusal.
    pub is_served: bool,
}

impl fmt::Display for Explanation {
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

/// Tells what would happen to a request.
///
/// # Errors
/// [`Error::Setting`] if the settings cannot be used, or [`Error::Path`] for a path that would be answered with 400.
pub fn explain(
    config: &Config,
    settings: &Settings,
    question: &Question<'_>,
) -> Result<Explanation, Error> {
    let Question { method, url, headers, now } = *question;
    let mut view = RequestView::from_url(method.clone(), url, headers.clone())?;
    let switches = settings.switches()?;
    if switches.uses_forwarded_host {
        view.use_forwarded_host();
    }
    let routed = (!is_flush(&view)).then(|| switches.routes.apply(&view));
    let (rules, ended) = explain_rules(&switches, routed, &mut view);
    let mut explanation = Explanation {
        request: format!("{} at host `{}` over {}", view.line(), view.host, view.scheme),
        rules,
        farm: "none: the configuration holds no farm".to_owned(),
        filter: "not asked".to_owned(),
        cache: "not asked".to_owned(),
        stat: None,
        state: None,
        is_served: false,
    };
    if let Some(is_served) = ended {
        explanation.farm = "not asked".to_owned();
        explanation.is_served = is_served;
        return Ok(explanation);
    }
    let Some(decision) = decide(config, &view) else {
        return Ok(explanation);
    };
    let farm = decision.farm;
    let found = match decision.found {
        Found::Matched => "by its virtual hosts",
        Found::Default => "as the last one, since no virtual host matches",
    };
    explanation.farm = format!("/{} ({}), {found}", farm.name, farm.at);
    explanation.filter = match &decision.action {
        Action::Flush => "not asked: the headers make it a flush".to_owned(),
        Action::Purge => "not asked: the method asks to forget the page".to_owned(),
        Action::RefuseReserved => "denied: the file belongs to the cache itself".to_owned(),
        _ => explain_filter(farm, &view),
    };
    match place_if_open(&decision.action, farm, &view) {
        None => {}
        Some(Err(reason)) => {
            explanation.is_served = true;
            explanation.cache = format!("not cacheable: {reason}");
        }
        Some(Ok(file)) => {
            explanation.is_served = true;
            if let Some(cache) = &farm.cache {
                explain_cache(&mut explanation, cache, (&file, &view), now);
            }
        }
    }
    Ok(explanation)
}

/// Tells what the rules of hosts do; if the request ends with them, also whether it is served.
pub(crate) fn explain_rules(
    switches: &Switches,
    routed: Option<Routed>,
    view: &mut RequestView,
) -> (Option<String>, Option<bool>) {
    let (text, is_served) = match routed {
        None => return (None, None),
        Some(Routed::Serve(rewritten)) => {
            let text = rewritten.map(|rewritten| {
                *view = *rewritten;
                format!("rewritten to {}", view.wire_target())
            });
            if switches.declines_root && view.path.as_str() == "/" {
                (format!("answered with 404 by `decline_root`{}", text.unwrap_or_default()), false)
            } else {
                return (text, None);
            }
        }
        Some(Routed::Redirect(status, location)) => {
            let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
            (format!("redirected with {} to {location}", status.as_u16()), true)
        }
        Some(Routed::Answer(status)) => (format!("answered with {}", status.as_u16()), false),
        Some(Routed::Proxy(proxied)) => {
            (format!("answered by {}, never cached", proxied.url), true)
        }
    };
    (Some(text), Some(is_served))
}

fn place_if_open(
    action: &Action<'_>,
    farm: &Farm,
    view: &RequestView,
) -> Option<Result<PathBuf, Reason>> {
    match action {
        Action::Flush | Action::Purge | Action::Refuse(_) | Action::RefuseReserved => None,
        Action::Pass(_) | Action::Cache(_) => Some(match place(farm, view) {
            Action::Cache(file) => Ok(file),
            Action::Pass(reason) => Err(reason),
            _ => Err(Reason::NoDocroot),
        }),
    }
}

fn explain_filter(farm: &Farm, view: &RequestView) -> String {
    let Some(rules) = &farm.filter else {
        return "allowed: the farm has no filter".to_owned();
    };
    match filter::deciding(rules, view) {
        None => "denied: no rule matches".to_owned(),
        Some(rule) => {
            let verdict = match rule.verdict {
                Verdict::Allow => "allowed",
                Verdict::Deny => "denied",
            };
            format!("{verdict} by {}", name_of(rule))
        }
    }
}

pub(crate) fn name_of(rule: &FilterRule) -> String {
    match &rule.label {
        Some(label) => format!("/{label} ({})", rule.at),
        None => format!("the rule at {}", rule.at),
    }
}

fn explain_cache(
    explanation: &mut Explanation,
    cache: &Cache,
    (file, view): (&Path, &RequestView),
    now: SystemTime,
) {
    let Some(docroot) = &cache.docroot else {
        return;
    };
    let whole = docroot.join(file);
    explanation.cache = format!("cacheable as {}", whole.display());
    let obeys = cache.invalidate.allows(view.path.as_str());
    let stat = nearest_stat(docroot, file, &cache.stat_files);
    explanation.stat = Some(match (&stat, obeys) {
        (_, false) => "obeys none: the path is not in /invalidate".to_owned(),
        (Some((path, _)), true) => format!("obeys {}", path.display()),
        (None, true) => "obeys the nearest .stat file, but there is none yet".to_owned(),
    });
    let Ok(metadata) = std::fs::symlink_metadata(&whole) else {
        explanation.state = Some("absent: the next visitor fetches it".to_owned());
        return;
    };
    let Ok(fetched) = metadata.modified() else {
        return;
    };
    let mut ttl = whole.into_os_string();
    ttl.push(".ttl");
    let expires = cache.enable_ttl.then(|| modified(Path::new(&ttl))).flatten();
    let facts = Facts {
        now,
        fetched,
        is_marked: metadata.permissions().mode() & MARK != 0,
        flushed: stat.as_ref().filter(|_| obeys).map(|(_, time)| *time),
        flushed_before: stat.filter(|_| obeys).and_then(|(path, time)| {
            let used = std::fs::symlink_metadata(path).ok()?.accessed().ok()?;
            (used < time).then_some(used)
        }),
        expires,
    };
    let fetched = httpdate::fmt_http_date(fetched);
    explanation.state = Some(match judge(facts, cache.patience()) {
        Freshness::Valid => format!("fresh, fetched {fetched}"),
        Freshness::Expired => format!("expired, fetched {fetched}"),
        Freshness::Stale => format!("stale, fetched {fetched}"),
        Freshness::Marked => format!("marked by a flush, fetched {fetched}"),
    });
}

fn nearest_stat(
    docroot: &Path,
    file: &Path,
    stat_files: &StatFiles,
) -> Option<(PathBuf, SystemTime)> {
    let level = match stat_files {
        StatFiles::Single(file) => return Some((file.clone(), modified(file)?)),
        StatFiles::Level(level) => usize::try_from(*level).unwrap_or(usize::MAX),
    };
    let folder = file.parent().unwrap_or(Path::new(""));
    let depth = folder.components().count();
    folder.ancestors().skip(depth.saturating_sub(level)).find_map(|folder| {
        let stat = docroot.join(folder).join(".stat");
        modified(&stat).map(|time| (stat, time))
    })
}

fn modified(file: &Path) -> Option<SystemTime> {
    std::fs::symlink_metadata(file).ok()?.modified().ok()
}
