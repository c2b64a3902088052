//! Checks for likely mistakes in a valid configuration.

use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, Method};

use crate::config::any_syntax::{ConfigDiagnostic, DiagnosticSeverity, SourcePosition};
use crate::config::pattern::{BrokenPatternPolicy, RulePattern};
use crate::config::{
    AccessList, CacheConfig, ClientHeaderPolicy, FarmConfig, FilterMatcher, FilterRule,
    LoadedConfig, RequestElement, RevalidateMode, RuleVerdict, StatFileLayout, VirtualHostPattern,
};
use crate::request::filter;
use crate::request::view::RequestView;

/// Requests that a public farm should refuse.
pub(crate) const DANGEROUS_REQUESTS: [&str; 65] = [
    "/admin",
    "/system/console",
    "/dav/crx.default",
    "/crx",
    "/crx/de/index.jsp",
    "/bin/crxde/logs",
    "/jcr:system/jcr:versionStorage.json",
    "/_jcr_system/_jcr_versionStorage.json",
    "/libs/wcm/core/content/siteadmin.html",
    "/libs/collab/core/content/admin.html",
    "/libs/cq/ui/content/dumplibs.html",
    "/libs/cq/core/content/login.json",
    "/libs/cq/core/content/welcome.html",
    "/libs/foundation/components/primary/cq/workflow/components/participants/json.GET.servlet",
    "/apps/sling/config/org.apache.felix.webconsole.internal.servlet.OsgiManager.config/jcr%3acontent/jcr%3adata",
    "/bin/querybuilder.json",
    "/bin/wcm/search/gql.servlet.json",
    "/content.feed.xml",
    "/content.feed.html",
    "/content.rss.xml",
    "/content.pages.json",
    "/content.languages.json",
    "/content.blueprint.json",
    "/content.-1.json",
    "/content.10.json",
    "/content.infinity.json",
    "/content.tidy.json",
    "/content.tidy.-1.blubber.json",
    "/content/dam.tidy.-100.json",
    "/content/content/geometrixx.sitemap.txt",
    "/content/any/page.query.json?statement=//*",
    "/content/any/page.qu%65ry.js%6Fn?statement=//*",
    "/content/any/page/_jcr_content.json",
    "/content/any/page/jcr:content.json",
    "/content/any/page/_jcr_content.feed",
    "/content/any/page/jcr:content.feed",
    "/content/any/page._jcr_content.feed",
    "/content/any/page.jcr:content.feed",
    "/content/any/page.docview.xml",
    "/content/any/page.docview.json",
    "/content/any/page.sysview.xml",
    "/content/../libs/foundation/components/text/text.jsp",
    "/content/.{.}/libs/foundation/components/text/text.jsp",
    "/etc.xml",
    "/etc/cloudservices.html",
    "/etc/linkchecker.html",
    "/etc/packages.html",
    "/etc/replication.html",
    "/home/users/a.json",
    "/home/users/a/admin/profile.json",
    "/home/users/a/admin/profile.xml",
    "/projects",
    "/tagging",
    "/var/linkchecker.html",
    "/var/statistics.json",
    "/welcome",
    // Spellings that a publisher reads as a different page than the text shows.
    "/content/any/page.1.json;a=b.html",
    "/content/any/page.infinity.json;x=1",
    "/content/any/page;x=1.infinity.json",
    "/content/any/page.infinity.json%3Ba=b.html",
    "/content/any/page.infinity%2ejson",
    "/etc.clientlibs/any.infinity.json",
    "/etc.clientlibs/any/clientlib.1.json",
    "/content/dam/any.jpg/jcr:content.infinity.json",
    "/content/dam/any.jpg/_jcr_content.-1.json",
];

/// Returns all diagnostics of a configuration: those of reading it, and warnings about likely mistakes.
#[must_use]
pub fn check_config(loaded: &LoadedConfig) -> Vec<ConfigDiagnostic> {
    let mut findings = loaded.diagnostics.clone();
    let farms = &loaded.config.farms;
    for farm in farms {
        let mut warn = |at: &SourcePosition, message: String| {
            findings.push(ConfigDiagnostic {
                position: at.clone(),
                severity: DiagnosticSeverity::Warning,
                message,
            });
        };
        check_filter(farm, &mut warn);
        if let Some(cache) = &farm.cache {
            check_cache_config(farm, cache, &mut warn);
        }
        if farm.client_headers == ClientHeaderPolicy::Only(Vec::new()) && !farm.renders.is_empty() {
            let name = &farm.name;
            warn(
                &farm.position,
                format!(
                    "/{name} has no `/clientheaders`, so renders receive no headers from visitors"
                ),
            );
        }
        check_forwarding(farm, &mut warn);
        check_nested_docroots(farm, farms, &mut warn);
    }
    findings
}

fn check_filter(farm: &FarmConfig, warn: &mut impl FnMut(&SourcePosition, String)) {
    let name = &farm.name;
    let has_renders = !farm.renders.is_empty();
    let Some(rules) = &farm.filter else {
        if has_renders {
            let message = format!("/{name} has no `/filter`, so every request reaches the renders");
            warn(&farm.position, message);
        }
        return;
    };
    // A farm that only flushes has no renders, and a fragment of a filter may begin with any rule.
    match rules.first().filter(|_| has_renders) {
        Some(rule) if denies_all(rule) => {}
        Some(rule) => warn(
            &rule.position,
            "the first rule of a filter should deny everything: /type \"deny\" /url \"*\""
                .to_owned(),
        ),
        None if has_renders => warn(
            &farm.position,
            format!("the filter of /{name} has no rules, so every request is refused"),
        ),
        None => {}
    }
    for url in DANGEROUS_REQUESTS {
        let Ok(view) = RequestView::from_url(Method::GET, url, HeaderMap::new()) else {
            continue;
        };
        if let Some(rule) = filter::deciding_filter_rule(rules, &view)
            && rule.verdict == RuleVerdict::Allow
        {
            warn(&rule.position, format!("this rule allows `GET {url}` to reach the renders"));
        }
    }
}

fn denies_all(rule: &FilterRule) -> bool {
    let is_all = |pattern: &RulePattern| match pattern {
        RulePattern::Glob(glob) => matches!(glob.source(), "*" | "/*"),
        other @ (RulePattern::Regex(_) | RulePattern::Invalid) => {
            other.matches("/any/path", BrokenPatternPolicy::MatchNone)
                && other.matches("/", BrokenPatternPolicy::MatchNone)
        }
    };
    let matches_all = match &rule.matcher {
        FilterMatcher::RequestLine(pattern) => is_all(pattern),
        FilterMatcher::Elements(elements) => matches!(
            elements.as_slice(),
            [(RequestElement::Url | RequestElement::Path, pattern)] if is_all(pattern)
        ),
    };
    rule.verdict == RuleVerdict::Deny && matches_all
}

fn check_cache_config(
    farm: &FarmConfig,
    cache: &CacheConfig,
    warn: &mut impl FnMut(&SourcePosition, String),
) {
    let name = &farm.name;
    let mut note = |text: &str| warn(&farm.position, format!("/{name}: {text}"));
    if cache.docroot.is_none() {
        note("`/cache` has no `/docroot`, so nothing is cached");
    }
    if cache.rules.rules.is_empty() {
        note("`/cache` has no `/rules`, so nothing is cached");
    }
    if allows_everyone(cache.allowed_clients.as_ref()) {
        note("anyone may flush; begin `/allowedClients` with a rule that denies `*`");
    }
    if cache.invalidate.rules.is_empty() {
        note(
            "`/cache` has no `/invalidate`, so pages that show a changed page are not invalidated",
        );
    } else if cache.stat_files == StatFileLayout::Level(0) {
        note(
            "`/statfileslevel` is 0, so every flush makes all pages stale; use 2 or more to separate sites",
        );
    }
    if cache.allow_authorized && farm.session_management.is_some() {
        note("`/sessionmanagement` needs `/allowAuthorized \"0\"`");
    }
    if cache.allow_authorized && farm.auth_checker.is_none() {
        note(
            "`/allowAuthorized` without `/auth_checker` serves to everyone what was fetched for one logged-in \
             visitor",
        );
    }
    let obeys_lives = cache.obeys_stale_directives || cache.revalidate == RevalidateMode::Expired;
    if obeys_lives && !cache.enable_ttl {
        note(
            "`/x-staleDirectives` and `/x-revalidate \"expired\"` have no effect without `/enableTTL \"1\"`, \
             as no copy expires",
        );
    }
    let refetches = cache.refetch_hot > 0 || cache.refetch_concurrency > 1;
    if refetches && !farm.virtual_hosts.iter().any(VirtualHostPattern::is_literal_host) {
        note(
            "pages are fetched again (`/x-refetchHot`, `/x-refetchConcurrency`), but `/virtualhosts` has no \
             literal host; pages that no visitor requested since the start are fetched with the host of the \
             last visitor's request, or with the render's own",
        );
    }
    if !cache.serve_stale_on_error {
        note("`/serveStaleOnError` is off, so visitors see errors while renders are down");
    }
    let ignored = &cache.ignore_url_params.rules;
    if ignored.is_empty() {
        note(
            "no `/ignoreUrlParams`, so every request with a campaign parameter reaches the renders",
        );
    } else if ignored.iter().all(|rule| rule.verdict == RuleVerdict::Deny) {
        note(
            "`/ignoreUrlParams` ignores no parameter: `deny` keeps a parameter, `allow` ignores it",
        );
    }
    if !cache.invalidate.rules.is_empty()
        && cache.grace_period.is_zero()
        && cache.flush_window.is_zero()
    {
        note(
            "no `/gracePeriod`, so each change of a batch makes all pages stale again; set 2 seconds, or \
             `/x-flushWindow`, to treat a batch as one change",
        );
    }
}

fn check_forwarding(farm: &FarmConfig, warn: &mut impl FnMut(&SourcePosition, String)) {
    if !farm.passes_flushes_to_siblings {
        return;
    }
    let name = &farm.name;
    if farm.siblings.is_empty() {
        warn(
            &farm.position,
            format!("/{name}: `/x-passFlushes` has no effect without `/x-siblings`"),
        );
    }
    if farm.cache.as_ref().is_none_or(|cache| cache.docroot.is_none()) {
        let message = "`/x-passFlushes` needs a `/cache` with a `/docroot`, where it stores the flushes for \
            siblings";
        warn(&farm.position, format!("/{name}: {message}"));
    }
}

fn allows_everyone(list: Option<&AccessList>) -> bool {
    // An address that no site would list shows if everyone may flush.
    list.is_none_or(|list| list.rules.is_empty() || list.allows("203.0.113.77"))
}

/// Reports document roots nested in each other, which do not use the same stat files.
fn check_nested_docroots(
    farm: &FarmConfig,
    farms: &[Arc<FarmConfig>],
    warn: &mut impl FnMut(&SourcePosition, String),
) {
    let root = |farm: &FarmConfig| farm.cache.as_ref().and_then(|cache| cache.docroot.clone());
    let Some(own) = root(farm) else { return };
    for nested_farm in farms {
        let Some(nested_root) = root(nested_farm) else { continue };
        if is_nested_path(&own, &nested_root) {
            warn(
                &farm.position,
                format!(
                    "the document root of /{} is inside that of /{}; levels of `.stat` files count from each \
                     root, so a flush of one may not reach the other",
                    farm.name, nested_farm.name
                ),
            );
        }
    }
}

fn is_nested_path(inner: &Path, outer: &Path) -> bool {
    inner != outer && inner.starts_with(outer)
}
