//! Ordered rules per host, applied to a request before farms and caches see it.
//!
//! Input: [`HostSettings`]. Output: [`RouteOutcome`], the request for the farms, or a final response. A pure function
//! except for conditions that check if a file exists.
//!
//! Rules behave as httpd's `mod_rewrite` in a vhost: a pattern is searched in the decoded path, `$1` refers to its
//! groups, `%1` to those of the last condition, `%{NAME}` to a variable. As in httpd, a rule that redirects the visitor
//! or ends the request is applied before access is checked. Access is checked for two paths: the path of the URL, and
//! the path that is finally looked up.
//!
//! Invariants
//! * A rewritten path is resolved like one that was sent, so that no rule leads out of the site's root.
//! * Nothing that an access rule refuses is served or proxied, whatever rules led to it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use regex::{Captures, Regex, RegexBuilder};

use crate::Error;
use crate::config::glob::DispatcherGlob;
use crate::config::setting_text::parse_error_documents;
use crate::config::setting_text::parse_headers;
use crate::config::setting_text::settings_error;
use crate::config::settings::{AccessSettings, ConditionSettings, HostSettings, RuleSettings};
use crate::request::view::RequestView;

/// The rules of all hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostRoutes {
    hosts: Vec<RouteHost>,
    rewrites_lookups: bool,
}

/// The rules of one host.
#[derive(Debug, Clone)]
pub(crate) struct RouteHost {
    names: Vec<DispatcherGlob>,
    document_root: Option<PathBuf>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) error_documents: BTreeMap<u16, String>,
    rules: Vec<RouteRule>,
    access_rules: Vec<RouteAccessRule>,
}

#[derive(Debug, Clone)]
struct RouteRule {
    pattern: Regex,
    conditions: Vec<RouteCondition>,
    action: RouteAction,
    query_handling: QueryHandling,
    is_last: bool,
    /// True if the resulting path is the URL's path for later rules.
    passes_through: bool,
    /// True if the rule applies to URL paths only.
    is_url_rule: bool,
    keeps_host: bool,
    /// The variables that it sets for later rules.
    variables: Vec<(String, String)>,
    /// True if all rules are tried again after it applied.
    restarts_rules: bool,
    group_escaping: Option<GroupEscaping>,
}

/// The escaping of groups in a target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupEscaping {
    space: EscapedSpace,
    /// The characters to escape; `None` means all except letters, digits and `_`.
    escaped_chars: Option<String>,
}

/// The escape for a space in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EscapedSpace {
    /// `+`, as in a query.
    Plus,
    /// `%20`, as in a path.
    PercentEncoded,
}

impl GroupEscaping {
    fn from_settings(settings: &RuleSettings) -> Result<Option<Self>, Error> {
        let only = settings.escape_only.clone();
        let space = match settings.escape_groups.as_deref() {
            None if only.is_some() => {
                let reason = "it has no effect without `escape_groups`";
                return Err(settings_error("host.rule.escape_only", reason));
            }
            None => return Ok(None),
            Some("query") => EscapedSpace::Plus,
            Some("path") => EscapedSpace::PercentEncoded,
            Some(keyword) => {
                let reason = format!("`{keyword}` is neither `query` nor `path`");
                return Err(settings_error("host.rule.escape_groups", reason));
            }
        };
        Ok(Some(Self { space, escaped_chars: only }))
    }

    fn escape(&self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for char in text.chars() {
            let mut bytes = [0; 4];
            let char_text = &*char.encode_utf8(&mut bytes);
            let is_listed = self.escaped_chars.as_ref().is_none_or(|only| only.contains(char));
            match (char, self.space) {
                (' ', EscapedSpace::Plus) if is_listed => escaped.push('+'),
                // A listed letter is escaped, too.
                _ if is_listed && self.escaped_chars.is_some() => {
                    for byte in char_text.bytes() {
                        escaped.push_str(percent_encoding::percent_encode_byte(byte));
                    }
                }
                _ if is_listed => escaped.extend(utf8_percent_encode(char_text, GROUP_ESCAPE_SET)),
                _ => escaped.push(char),
            }
        }
        escaped
    }
}

/// The characters that are escaped in a group: all except letters, digits and `_`.
const GROUP_ESCAPE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_');

/// The maximum number of restarts of the rules; httpd stops at 32,000 rounds.
const MAX_RESTARTS: usize = 1000;

/// A rule that refuses requests.
#[derive(Debug, Clone)]
struct RouteAccessRule {
    path_kind: AccessPathKind,
    pattern: Regex,
    conditions: Vec<RouteCondition>,
}

/// The path that an access rule checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessPathKind {
    Url,
    File,
    UrlOrFile,
    Original,
}

#[derive(Debug, Clone)]
enum RouteAction {
    Rewrite(String),
    Redirect { target: String, status: StatusCode, escapes: bool },
    Proxy { target: String, opens_websockets: bool },
    Respond(StatusCode),
    Pass,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueryHandling {
    Keep,
    Append,
    Drop,
}

#[derive(Debug, Clone)]
struct RouteCondition {
    subject: String,
    check: RouteConditionCheck,
    is_negated: bool,
    is_alternative: bool,
}

#[derive(Debug, Clone)]
enum RouteConditionCheck {
    Matches(Regex),
    IsFile,
    IsDirectory,
}

/// The outcome of routing a request.
#[derive(Debug)]
pub(crate) enum RouteOutcome {
    /// Farms serve the request, possibly under another path.
    Serve(Option<Box<RequestView>>),
    /// The visitor is redirected.
    Redirect(StatusCode, HeaderValue),
    /// The request is proxied to another server.
    Proxy(ProxyTarget),
    /// The request ends with this status.
    Respond(StatusCode),
}

/// The target of a proxied request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyTarget {
    /// The complete URL.
    pub(crate) url: String,
    /// The URL without the part of the path that the pattern left.
    base_url: String,
    /// The prefix of the visitor's path that the base URL replaces.
    path_prefix: String,
    /// True if the other server gets the visitor's `Host`.
    pub(crate) keeps_host: bool,
    /// True if the other server may open WebSockets.
    pub(crate) opens_websockets: bool,
}

impl ProxyTarget {
    /// Rewrites a redirect of the other server to point back to this one.
    pub(crate) fn rewrite_location(&self, headers: &mut HeaderMap) {
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let Some(rest) = location.and_then(|location| location.strip_prefix(&self.base_url)) else {
            return;
        };
        let own = utf8_percent_encode(&self.path_prefix, URL_PATH_ESCAPE_SET).to_string();
        if let Ok(location) = HeaderValue::from_str(&format!("{own}{rest}")) {
            headers.insert(LOCATION, location);
        }
    }
}

/// The characters that are escaped when a path is written into a URL.
pub(crate) const URL_PATH_ESCAPE_SET: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'#').add(b'%').add(b'?').add(b'\\');

/// As [`URL_PATH_ESCAPE_SET`], where `%` begins an escape.
const ESCAPED_PATH_ESCAPE_SET: &AsciiSet = &URL_PATH_ESCAPE_SET.remove(b'%');

impl HostRoutes {
    pub(crate) fn compile(hosts: &[HostSettings], rewrites_lookups: bool) -> Result<Self, Error> {
        let hosts = hosts.iter().map(RouteHost::compile).collect::<Result<_, _>>()?;
        Ok(Self { hosts, rewrites_lookups })
    }

    /// Returns the rules for a host; `None` if it has none.
    pub(crate) fn find_host(&self, name: &str) -> Option<&RouteHost> {
        self.hosts
            .iter()
            .find(|host| host.names.is_empty() || host.names.iter().any(|glob| glob.matches(name)))
    }

    /// Returns true if the host and target of a request alone decide the effect of its host's rules, and responses keep
    /// the headers that describe their bodies.
    pub(crate) fn is_decided_by_target(&self, name: &str) -> bool {
        let Some(host) = self.find_host(name) else { return true };
        let describes = |name: &HeaderName| PER_RESPONSE_HEADERS.contains(name);
        host.rules.iter().all(RouteRule::is_decided_by_target)
            && host.access_rules.iter().all(RouteAccessRule::is_decided_by_target)
            && !host.headers.iter().any(|(name, _)| describes(name))
    }

    /// Applies the rules of the request's host.
    pub(crate) fn route_request(&self, view: &RequestView) -> RouteOutcome {
        let Some(host) = self.find_host(&view.host) else {
            return RouteOutcome::Serve(None);
        };
        let mut progress = RouteProgress::new(view);
        let proxied = match host.apply_rules(&mut progress) {
            RuleListOutcome::Ended(routed) => return routed,
            RuleListOutcome::Proxy(proxied) => Some(proxied),
            RuleListOutcome::Serve => None,
        };
        // Access is checked for the path as sent, with the same facts about the visitor.
        let unled =
            RouteProgress { variables: progress.variables.clone(), ..RouteProgress::new(view) };
        // Farms may look up the path as sent, regardless of the rules.
        let is_sent = proxied.is_none() && !self.rewrites_lookups;
        let refuses = |access: &RouteAccessRule| match access.path_kind {
            AccessPathKind::Original => access.refuses_request(host, &unled, false),
            AccessPathKind::UrlOrFile if is_sent && access.refuses_request(host, &unled, false) => {
                true
            }
            AccessPathKind::Url | AccessPathKind::File | AccessPathKind::UrlOrFile => {
                access.refuses_request(host, &progress, proxied.is_some())
            }
        };
        if host.access_rules.iter().any(refuses) {
            return RouteOutcome::Respond(StatusCode::FORBIDDEN);
        }
        match proxied {
            Some(proxied) => RouteOutcome::Proxy(proxied),
            None => {
                RouteOutcome::Serve(progress.rewritten_request.filter(|_| self.rewrites_lookups))
            }
        }
    }
}

/// The state of a request while rules are applied.
struct RouteProgress<'a> {
    original_request: &'a RequestView,
    /// The URL path, if a pass-through rule changed it.
    url_path: Option<String>,
    /// The request as rewritten by the rules.
    rewritten_request: Option<Box<RequestView>>,
    /// True if the path differs from the URL's path.
    is_rewritten: bool,
    /// The variables set by rules.
    variables: BTreeMap<String, String>,
}

impl<'a> RouteProgress<'a> {
    fn new(sent: &'a RequestView) -> Self {
        Self {
            original_request: sent,
            url_path: None,
            rewritten_request: None,
            is_rewritten: false,
            variables: BTreeMap::new(),
        }
    }

    fn current_request(&self) -> &RequestView {
        self.rewritten_request.as_deref().unwrap_or(self.original_request)
    }

    fn url_path(&self) -> &str {
        self.url_path.as_deref().unwrap_or(self.original_request.path.as_str())
    }
}

/// The outcome of applying all rules.
enum RuleListOutcome {
    Serve,
    Proxy(ProxyTarget),
    Ended(RouteOutcome),
}

impl RouteHost {
    /// Applies the rules to a request.
    fn apply_rules(&self, progress: &mut RouteProgress<'_>) -> RuleListOutcome {
        let (mut is_over, mut may_proxy) = (false, true);
        let (mut rules, mut restarts) = (self.rules.iter(), 0);
        while let Some(rule) = rules.next() {
            let counts = if rule.is_url_rule { !progress.is_rewritten } else { !is_over };
            let is_shut = !may_proxy && matches!(rule.action, RouteAction::Proxy { .. });
            if !counts || is_shut {
                continue;
            }
            let Some((filled, set)) = rule.apply_rule(self, progress) else { continue };
            progress.variables.extend(set);
            match filled {
                RuleEffect::Rewritten(path, query) => {
                    match progress.current_request().with_target(&path, query) {
                        Ok(next) => {
                            progress.rewritten_request = Some(Box::new(next));
                            progress.is_rewritten = true;
                        }
                        Err(_climbs) => {
                            return RuleListOutcome::Ended(RouteOutcome::Respond(
                                StatusCode::BAD_REQUEST,
                            ));
                        }
                    }
                }
                RuleEffect::Pass if rule.is_url_rule => may_proxy = false,
                RuleEffect::Pass => break,
                RuleEffect::Unchanged => {}
                RuleEffect::Proxy(proxied) => return RuleListOutcome::Proxy(proxied),
                RuleEffect::Ended(routed) => return RuleListOutcome::Ended(routed),
            }
            if rule.passes_through {
                progress.url_path = Some(progress.current_request().path.as_str().to_owned());
                progress.is_rewritten = false;
            }
            if rule.restarts_rules {
                restarts += 1;
                if restarts > MAX_RESTARTS {
                    return RuleListOutcome::Ended(RouteOutcome::Respond(
                        StatusCode::INTERNAL_SERVER_ERROR,
                    ));
                }
                (rules, is_over) = (self.rules.iter(), false);
                continue;
            }
            is_over |= rule.is_last || rule.passes_through;
        }
        RuleListOutcome::Serve
    }
}

/// The effect of a matching rule.
enum RuleEffect {
    Rewritten(String, Option<String>),
    Unchanged,
    Pass,
    Proxy(ProxyTarget),
    Ended(RouteOutcome),
}

impl RouteHost {
    fn compile(settings: &HostSettings) -> Result<Self, Error> {
        Ok(Self {
            names: settings
                .names
                .iter()
                .map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
                .map(|name| DispatcherGlob::new(&name))
                .collect(),
            document_root: settings.document_root.clone(),
            headers: parse_headers(&settings.headers)?,
            error_documents: parse_error_documents(&settings.error_documents)?,
            rules: settings.rule.iter().map(RouteRule::compile).collect::<Result<_, _>>()?,
            access_rules: settings
                .access
                .iter()
                .map(RouteAccessRule::compile)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl RouteAccessRule {
    fn compile(settings: &AccessSettings) -> Result<Self, Error> {
        Ok(Self {
            path_kind: match settings.of.as_deref() {
                None => AccessPathKind::UrlOrFile,
                Some("url") => AccessPathKind::Url,
                Some("file") => AccessPathKind::File,
                Some("sent") => AccessPathKind::Original,
                Some(keyword) => {
                    let reason = format!("`{keyword}` is not one of `url`, `file` and `sent`");
                    return Err(settings_error("host.access.of", reason));
                }
            },
            pattern: compile_route_regex(settings.pattern.as_deref().unwrap_or(""), false)?,
            conditions: settings
                .when
                .iter()
                .map(RouteCondition::compile)
                .collect::<Result<_, _>>()?,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        self.conditions.iter().all(RouteCondition::is_decided_by_target)
    }

    /// Returns true if an access rule refuses a request with this progress.
    fn refuses_request(
        &self,
        host: &RouteHost,
        progress: &RouteProgress<'_>,
        is_proxied: bool,
    ) -> bool {
        // A proxied response has no local file.
        let file = (!is_proxied).then(|| progress.current_request().path.as_str());
        let is_meant = |path: &str| self.pattern.is_match(path);
        let is_meant = match self.path_kind {
            AccessPathKind::Url | AccessPathKind::Original => is_meant(progress.url_path()),
            AccessPathKind::File => file.is_some_and(is_meant),
            AccessPathKind::UrlOrFile => {
                is_meant(progress.url_path()) || file.is_some_and(is_meant)
            }
        };
        let mut scope = RouteTemplateScope::new(host, progress, None);
        is_meant && do_conditions_hold(&self.conditions, &mut scope)
    }
}

impl RouteRule {
    fn compile(settings: &RuleSettings) -> Result<Self, Error> {
        let mut actions = Vec::new();
        actions.extend(settings.rewrite.clone().map(RouteAction::Rewrite));
        if let Some(target) = settings.redirect.clone() {
            let status = parse_status(settings.status.unwrap_or(302), 300..400)?;
            actions.push(RouteAction::Redirect { target, status, escapes: !settings.no_escape });
        }
        actions.extend(settings.proxy.as_deref().map(
            |target| match target.strip_prefix("ws://") {
                Some(rest) => {
                    RouteAction::Proxy { target: format!("http://{rest}"), opens_websockets: true }
                }
                None => RouteAction::Proxy { target: target.to_owned(), opens_websockets: false },
            },
        ));
        if let Some(status) = settings.answer {
            actions.push(RouteAction::Respond(parse_status(status, 200..600)?));
        }
        actions.extend(settings.pass.then_some(RouteAction::Pass));
        let count = actions.len();
        let (Some(action), 1) = (actions.pop(), count) else {
            return Err(settings_error(
                "host.rule",
                format!(
                    "a rule must have one of `rewrite`, `redirect`, `proxy`, `answer` and `pass`, not {count}"
                ),
            ));
        };
        if settings.pass_through && !matches!(action, RouteAction::Rewrite(_)) {
            return Err(settings_error(
                "host.rule.pass_through",
                "it is valid only with `rewrite`",
            ));
        }
        if let RouteAction::Proxy { target, .. } = &action
            && !target.starts_with("http://")
        {
            return Err(settings_error(
                "host.rule.proxy",
                format!("`{target}` does not begin with `http://` or `ws://`"),
            ));
        }
        Ok(Self {
            pattern: compile_route_regex(
                settings.pattern.as_deref().unwrap_or(""),
                settings.ignore_case,
            )?,
            conditions: settings
                .when
                .iter()
                .map(RouteCondition::compile)
                .collect::<Result<_, _>>()?,
            action,
            query_handling: match settings.query.as_deref() {
                None | Some("keep") => QueryHandling::Keep,
                Some("append") => QueryHandling::Append,
                Some("drop") => QueryHandling::Drop,
                Some(keyword) => {
                    let reason = format!("`{keyword}` is not one of `keep`, `append` and `drop`");
                    return Err(settings_error("host.rule.query", reason));
                }
            },
            is_last: settings.last,
            passes_through: settings.pass_through,
            is_url_rule: settings.of_url,
            keeps_host: settings.keep_host,
            variables: settings.set.clone().into_iter().collect(),
            restarts_rules: settings.again,
            group_escaping: GroupEscaping::from_settings(settings)?,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        let target = match &self.action {
            RouteAction::Rewrite(target)
            | RouteAction::Redirect { target, .. }
            | RouteAction::Proxy { target, .. } => target.as_str(),
            RouteAction::Respond(_) | RouteAction::Pass => "",
        };
        depends_on_target_only(target)
            && self.conditions.iter().all(RouteCondition::is_decided_by_target)
    }

    /// Applies the rule and returns its effect with the variables that it sets; `None` if it does not match.
    fn apply_rule(
        &self,
        host: &RouteHost,
        progress: &RouteProgress<'_>,
    ) -> Option<(RuleEffect, Vec<(String, String)>)> {
        let view = progress.current_request();
        let groups = self.pattern.captures(view.path.as_str())?;
        let mut scope = RouteTemplateScope::new(host, progress, Some(&groups));
        if !do_conditions_hold(&self.conditions, &mut scope) {
            return None;
        }
        let set = self.variables.iter().map(|(name, value)| (name.clone(), scope.expand(value)));
        let set: Vec<_> = set.collect();
        let filled = match &self.action {
            RouteAction::Rewrite(target) if target == "-" => RuleEffect::Unchanged,
            RouteAction::Rewrite(target) => {
                let (path, query) = self.fill_target(&scope, target);
                RuleEffect::Rewritten(path, query)
            }
            RouteAction::Redirect { target, status, escapes } => {
                let (path, query) = self.fill_target(&scope, target);
                RuleEffect::Ended(build_redirect(view, *status, &path, query.as_deref(), *escapes))
            }
            RouteAction::Proxy { target, opens_websockets } => {
                let (url, query) = self.fill_target(&scope, target);
                // Visitor input must not choose the server.
                if url_authority(&url) != url_authority(target) {
                    let refused = RuleEffect::Ended(RouteOutcome::Respond(StatusCode::BAD_REQUEST));
                    return Some((refused, set));
                }
                // Text that is already escaped is not escaped again.
                let in_path = if self.group_escaping.is_some() {
                    ESCAPED_PATH_ESCAPE_SET
                } else {
                    URL_PATH_ESCAPE_SET
                };
                let mut url = utf8_percent_encode(&url, in_path).to_string();
                if let Some(query) = query {
                    url = format!("{url}?{query}");
                }
                let base = target.split(['$', '%', '?']).next().unwrap_or(target).to_owned();
                let rest = groups.get(1).map_or("", |group| group.as_str());
                let prefix = view.path.as_str().strip_suffix(rest).unwrap_or_default().to_owned();
                let keeps_host = self.keeps_host;
                RuleEffect::Proxy(ProxyTarget {
                    url,
                    base_url: base,
                    path_prefix: prefix,
                    keeps_host,
                    opens_websockets: *opens_websockets,
                })
            }
            RouteAction::Respond(status) => RuleEffect::Ended(RouteOutcome::Respond(*status)),
            RouteAction::Pass => RuleEffect::Pass,
        };
        Some((filled, set))
    }

    /// Expands a target's path and query, and merges the visitor's query. A `?` in a group from the path stays a part
    /// of the path, as it was sent.
    fn fill_target(
        &self,
        scope: &RouteTemplateScope<'_>,
        template: &str,
    ) -> (String, Option<String>) {
        let (path, own) = split_target(template);
        let expand = |template| scope.expand_with_escaping(template, self.group_escaping.as_ref());
        let (path, own) = (expand(path), own.map(expand));
        let sent_query = scope.view.query.as_deref();
        let query = match (self.query_handling, own.as_deref()) {
            (QueryHandling::Append, Some(own)) if !own.is_empty() => Some(
                sent_query
                    .map_or_else(|| own.to_owned(), |sent_query| format!("{own}&{sent_query}")),
            ),
            (QueryHandling::Append | QueryHandling::Keep, None)
            | (QueryHandling::Append, Some(_)) => sent_query.map(str::to_owned),
            (QueryHandling::Keep | QueryHandling::Drop, Some(own)) => Some(own.to_owned()),
            (QueryHandling::Drop, None) => None,
        };
        (path, query.filter(|query| !query.is_empty()))
    }
}

/// Returns true if all conditions hold; an alternative condition that holds also satisfies the next one.
fn do_conditions_hold(conditions: &[RouteCondition], scope: &mut RouteTemplateScope<'_>) -> bool {
    let mut conditions = conditions.iter();
    while let Some(condition) = conditions.next() {
        let mut holds = condition.holds(scope);
        let mut last = condition;
        while last.is_alternative {
            let Some(next) = conditions.next() else { break };
            holds = holds || next.holds(scope);
            last = next;
        }
        if !holds {
            return false;
        }
    }
    true
}

/// Returns true if the target of a request alone decides the variables in a template.
fn depends_on_target_only(template: &str) -> bool {
    template.match_indices("%{").all(|(at, _)| {
        let rest = template.get(at + 2..).unwrap_or_default();
        let name = rest.split('}').next().unwrap_or_default();
        TARGET_VARIABLES.contains(&name)
    })
}

/// Splits the template of a target at its first unescaped `?`.
fn split_target(template: &str) -> (&str, Option<&str>) {
    let mut is_escaped = false;
    let mark = template.bytes().position(|byte| {
        let was_escaped = is_escaped;
        is_escaped = byte == b'\\' && !was_escaped;
        byte == b'?' && !was_escaped
    });
    match mark.and_then(|at| template.split_at_checked(at)) {
        Some((path, query)) => (path, query.get(1..)),
        None => (template, None),
    }
}

/// Returns the server part of a URL or URL template.
fn url_authority(url: &str) -> &str {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    rest.split(['/', '?', '$', '%']).next().unwrap_or_default()
}

fn build_redirect(
    view: &RequestView,
    status: StatusCode,
    path: &str,
    query: Option<&str>,
    escapes: bool,
) -> RouteOutcome {
    let path = if escapes {
        utf8_percent_encode(path, URL_PATH_ESCAPE_SET).to_string()
    } else {
        path.to_owned()
    };
    let absolute = if path.starts_with('/') && !path.starts_with("//") {
        let host = view.headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
        match host {
            Some(host) => format!("{}://{host}{path}", view.scheme),
            None => path,
        }
    } else {
        path
    };
    let location = match query {
        Some(query) => {
            // Browsers do not send the part after `#`.
            let (before, fragment) =
                absolute.split_at(absolute.find('#').unwrap_or(absolute.len()));
            format!("{before}?{query}{fragment}")
        }
        None => absolute,
    };
    match HeaderValue::from_str(&location) {
        Ok(location) => RouteOutcome::Redirect(status, location),
        Err(_control_characters) => RouteOutcome::Respond(StatusCode::BAD_REQUEST),
    }
}

impl RouteCondition {
    fn compile(settings: &ConditionSettings) -> Result<Self, Error> {
        let check = match (settings.pattern.as_deref(), settings.is.as_deref()) {
            (Some(pattern), None) => {
                RouteConditionCheck::Matches(compile_route_regex(pattern, settings.ignore_case)?)
            }
            (None, Some("file")) => RouteConditionCheck::IsFile,
            (None, Some("directory")) => RouteConditionCheck::IsDirectory,
            _ => {
                return Err(settings_error(
                    "host.rule.when",
                    "a condition must have either `match` or `is = \"file\"` or `is = \"directory\"`",
                ));
            }
        };
        Ok(Self {
            subject: settings.test.clone(),
            check,
            is_negated: settings.negate,
            is_alternative: settings.or,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        depends_on_target_only(&self.subject)
            && matches!(self.check, RouteConditionCheck::Matches(_))
    }

    fn holds(&self, scope: &mut RouteTemplateScope<'_>) -> bool {
        let text = scope.expand(&self.subject);
        let holds = match &self.check {
            RouteConditionCheck::IsFile => PathBuf::from(&text).is_file(),
            RouteConditionCheck::IsDirectory => PathBuf::from(&text).is_dir(),
            RouteConditionCheck::Matches(pattern) => match pattern.captures(&text) {
                Some(groups) => {
                    let text = |group: Option<regex::Match<'_>>| {
                        group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                    };
                    scope.condition_groups = groups.iter().map(text).collect();
                    true
                }
                None => false,
            },
        };
        holds != self.is_negated
    }
}

fn compile_route_regex(pattern: &str, ignores_case: bool) -> Result<Regex, Error> {
    RegexBuilder::new(pattern).case_insensitive(ignores_case).build().map_err(|error| {
        settings_error("match", format!("cannot read the regular expression '{pattern}': {error}"))
    })
}

fn parse_status(status: u16, allowed: std::ops::Range<u16>) -> Result<StatusCode, Error> {
    let code = StatusCode::from_u16(status).ok().filter(|_| allowed.contains(&status));
    code.ok_or_else(|| {
        settings_error(
            "host.rule",
            format!("the status {status} is not from {} to {}", allowed.start, allowed.end - 1),
        )
    })
}

/// The values that templates may refer to.
struct RouteTemplateScope<'a> {
    host: &'a RouteHost,
    view: &'a RequestView,
    progress: &'a RouteProgress<'a>,
    rule_captures: Option<&'a Captures<'a>>,
    condition_groups: Vec<String>,
}

impl<'a> RouteTemplateScope<'a> {
    fn new(
        host: &'a RouteHost,
        progress: &'a RouteProgress<'a>,
        rule: Option<&'a Captures<'a>>,
    ) -> Self {
        Self {
            host,
            view: progress.current_request(),
            progress,
            rule_captures: rule,
            condition_groups: Vec::new(),
        }
    }

    /// Expands a template: `$1`, `%1`, `%{NAME}`, and `\$` for a literal sign.
    fn expand(&self, template: &str) -> String {
        self.expand_with_escaping(template, None)
    }

    /// As [`RouteTemplateScope::expand`], with groups escaped if requested.
    fn expand_with_escaping(&self, template: &str, groups: Option<&GroupEscaping>) -> String {
        let mut filled = String::with_capacity(template.len() + 32);
        let mut rest = template;
        while let Some(at) = rest.find(['$', '%', '\\']) {
            let (plain, tail) = rest.split_at(at);
            filled.push_str(plain);
            let mut chars = tail.chars();
            let sign = chars.next().unwrap_or_default();
            let after = chars.as_str();
            rest = match (sign, chars.next()) {
                ('\\', Some(next)) => {
                    filled.push(next);
                    chars.as_str()
                }
                ('%', Some('{')) => match after.get(1..).and_then(|name| name.split_once('}')) {
                    Some((name, tail)) => {
                        filled.push_str(&self.variable_value(name));
                        tail
                    }
                    None => {
                        filled.push(sign);
                        after
                    }
                },
                (sign, Some(digit)) if digit.is_ascii_digit() => {
                    let index = digit.to_digit(10).unwrap_or(0) as usize;
                    let group = self.captured_group(sign, index);
                    match groups {
                        Some(escaping) => filled.push_str(&escaping.escape(group)),
                        None => filled.push_str(group),
                    }
                    chars.as_str()
                }
                (sign, _) => {
                    filled.push(sign);
                    after
                }
            };
        }
        filled.push_str(rest);
        filled
    }

    fn captured_group(&self, sign: char, index: usize) -> &str {
        match sign {
            '$' => self
                .rule_captures
                .and_then(|groups| groups.get(index))
                .map_or("", |group| group.as_str()),
            _ => self.condition_groups.get(index).map_or("", String::as_str),
        }
    }

    fn variable_value(&self, name: &str) -> String {
        let view = self.view;
        let header = |name: &str| {
            let value = view.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        match name {
            "REQUEST_URI" => self.progress.url_path().to_owned(),
            "REQUEST_FILENAME" | "SCRIPT_FILENAME" => view.path.as_str().to_owned(),
            "QUERY_STRING" => view.query.clone().unwrap_or_default(),
            "REQUEST_METHOD" => view.method.to_string(),
            "REQUEST_SCHEME" => view.scheme.to_owned(),
            "THE_REQUEST" => self.progress.original_request.request_line(),
            "SERVER_PROTOCOL" => view.protocol.to_owned(),
            "SERVER_NAME" => view.host.clone(),
            "HTTP_HOST" => header("host"),
            "HTTP_USER_AGENT" => header("user-agent"),
            "HTTP_REFERER" => header("referer"),
            "HTTP_COOKIE" => header("cookie"),
            "HTTP_ACCEPT" => header("accept"),
            "REMOTE_ADDR" | "REMOTE_HOST" => view.client.to_string(),
            "HTTPS" => if view.is_tls { "on" } else { "off" }.to_owned(),
            "SERVER_PORT" => {
                let default = if view.is_tls { "443" } else { "80" };
                view.port.clone().unwrap_or_else(|| default.to_owned())
            }
            "DOCUMENT_ROOT" => {
                let root = self.host.document_root.as_deref();
                root.map(|root| root.display().to_string().trim_end_matches('/').to_owned())
                    .unwrap_or_default()
            }
            _ => match (name.strip_prefix("HTTP:"), name.strip_prefix("ENV:")) {
                (Some(name), _) => header(name),
                (None, Some(name)) => {
                    self.progress.variables.get(name).cloned().unwrap_or_default()
                }
                (None, None) => String::new(),
            },
        }
    }
}

/// The variables that the request line and its host decide.
const TARGET_VARIABLES: [&str; 13] = [
    "REQUEST_URI",
    "REQUEST_FILENAME",
    "SCRIPT_FILENAME",
    "QUERY_STRING",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "THE_REQUEST",
    "SERVER_PROTOCOL",
    "SERVER_NAME",
    "HTTP_HOST",
    "HTTPS",
    "SERVER_PORT",
    "DOCUMENT_ROOT",
];

/// The headers that differ between responses from one file.
const PER_RESPONSE_HEADERS: [HeaderName; 10] = [
    http::header::ACCEPT_RANGES,
    http::header::AGE,
    http::header::CONNECTION,
    http::header::CONTENT_LENGTH,
    http::header::CONTENT_RANGE,
    http::header::CONTENT_TYPE,
    http::header::DATE,
    http::header::ETAG,
    http::header::LAST_MODIFIED,
    http::header::TRANSFER_ENCODING,
];

/// Returns true if conditions and targets may use the variable; the converter reports others.
pub(crate) fn is_supported_variable(name: &str) -> bool {
    const CLIENT_VARIABLES: [&str; 7] = [
        "HTTP",
        "HTTP_ACCEPT",
        "HTTP_COOKIE",
        "HTTP_REFERER",
        "HTTP_USER_AGENT",
        "REMOTE_ADDR",
        "REMOTE_HOST",
    ];
    TARGET_VARIABLES.contains(&name)
        || CLIENT_VARIABLES.contains(&name)
        || name.starts_with("HTTP:")
}
