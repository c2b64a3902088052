//! What happens to a request before farms and caches see it: ordered rules per host.
//!
//! In: [`HostSettings`]. Out: [`Routed`], the request that farms get, or an end of it. A pure function but for the
//! conditions that ask whether a file exists.
//!
//! Rules behave as httpd's `mod_rewrite` in a vhost: a pattern is searched in the decoded path, `$1` stands for its
//! groups, `%1` for those of the last condition, `%{NAME}` for a variable. As in httpd, a rule that sends the visitor
//! elsewhere or ends the request comes before anything is asked about access, and access is a matter of two paths: the one
//! of the URL, and the one that was looked up in the end.
//!
//! Invariants
//! * A rewritten path is resolved like one that was sent, so that no rule leads out of the site's root.
//! * Nothing is served or proxied that an access rule refuses, whatever rules led to it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use regex::{Captures, Regex, RegexBuilder};

use crate::Error;
use crate::glob::Glob;
use crate::request::RequestView;
use crate::settings::{
    AccessSettings, ConditionSettings, HostSettings, RuleSettings, fault, read_documents,
    read_headers,
};

/// The rules of all hosts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    hosts: Vec<Host>,
    rewrites_lookups: bool,
}

/// The rules of one host.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    names: Vec<Glob>,
    document_root: Option<PathBuf>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) error_documents: BTreeMap<u16, String>,
    rules: Vec<Rule>,
    access: Vec<Access>,
}

#[derive(Debug, Clone)]
struct Rule {
    pattern: Regex,
    conditions: Vec<Condition>,
    action: Action,
    query: Query,
    is_last: bool,
    /// Whether the path that it makes is the URL's from then on.
    passes_through: bool,
    /// Whether it is for paths of URLs alone.
    is_of_url: bool,
    keeps_host: bool,
    /// Variables for later rules.
    sets: Vec<(String, String)>,
    /// Whether all rules are tried again once it applied.
    begins_again: bool,
    escaped_groups: Option<GroupEscaping>,
}

/// How what a pattern found is written into a target.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupEscaping {
    space: EscapedSpace,
    /// The characters that are escaped; without a list, all but letters, digits and `_`.
    only: Option<String>,
}

/// What a space in a group is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EscapedSpace {
    /// `+`, as in a query.
    Plus,
    /// `%20`, as in a path.
    Code,
}

impl GroupEscaping {
    fn read(settings: &RuleSettings) -> Result<Option<Self>, Error> {
        let only = settings.escape_only.clone();
        let space = match settings.escape_groups.as_deref() {
            None if only.is_some() => {
                let reason = "it says how `escape_groups` does its work, which is not there";
                return Err(fault("host.rule.escape_only", reason));
            }
            None => return Ok(None),
            Some("query") => EscapedSpace::Plus,
            Some("path") => EscapedSpace::Code,
            Some(other) => {
                let reason = format!("`{other}` is neither `query` nor `path`");
                return Err(fault("host.rule.escape_groups", reason));
            }
        };
        Ok(Some(Self { space, only }))
    }

    fn escape(&self, text: &str) -> String {
        let mut escaped = String::with_capacity(text.len());
        for char in text.chars() {
            let mut bytes = [0; 4];
            let char_text = &*char.encode_utf8(&mut bytes);
            let is_listed = self.only.as_ref().is_none_or(|only| only.contains(char));
            match (char, self.space) {
                (' ', EscapedSpace::Plus) if is_listed => escaped.push('+'),
                // A listed letter is escaped, too.
                _ if is_listed && self.only.is_some() => {
                    for byte in char_text.bytes() {
                        escaped.push_str(percent_encoding::percent_encode_byte(byte));
                    }
                }
                _ if is_listed => escaped.extend(utf8_percent_encode(char_text, IN_GROUP)),
                _ => escaped.push(char),
            }
        }
        escaped
    }
}

/// What a group must not hold bare where it is escaped: all but letters, digits and `_`.
const IN_GROUP: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_');

/// Rules that begin again are tried so often; httpd stops at 32,000 rounds.
const MAX_ROUNDS: usize = 1000;

/// Refuses requests.
#[derive(Debug, Clone)]
struct Access {
    of: Of,
    pattern: Regex,
    conditions: Vec<Condition>,
}

/// Which path an access rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Url,
    File,
    Either,
    Sent,
}

#[derive(Debug, Clone)]
enum Action {
    Rewrite(String),
    Redirect { target: String, status: StatusCode, escapes: bool },
    Proxy(String),
    Answer(StatusCode),
    Pass,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Query {
    Keep,
    Append,
    Drop,
}

#[derive(Debug, Clone)]
struct Condition {
    test: String,
    check: Check,
    is_negated: bool,
    is_alternative: bool,
}

#[derive(Debug, Clone)]
enum Check {
    Matches(Regex),
    IsFile,
    IsDirectory,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Routed {
    /// Farms serve it, perhaps under another path.
    Serve(Option<Box<RequestView>>),
    /// The visitor is sent elsewhere.
    Redirect(StatusCode, HeaderValue),
    /// Another server answers.
    Proxy(Proxied),
    /// It ends here.
    Answer(StatusCode),
}

/// Where another server is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proxied {
    /// The whole URL.
    pub(crate) url: String,
    /// The URL's part before what the pattern left of the path.
    base: String,
    /// The part of the visitor's path that the base stands for.
    prefix: String,
    /// Whether the other server gets the visitor's `Host`.
    pub(crate) keeps_host: bool,
}

impl Proxied {
    /// Turns a redirect of the other server into one that comes back here.
    pub(crate) fn reverse(&self, headers: &mut HeaderMap) {
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let Some(rest) = location.and_then(|location| location.strip_prefix(&self.base)) else {
            return;
        };
        let own = utf8_percent_encode(&self.prefix, IN_PATH).to_string();
        if let Ok(location) = HeaderValue::from_str(&format!("{own}{rest}")) {
            headers.insert(LOCATION, location);
        }
    }
}

/// What a path must not hold bare when it is written into a URL.
pub(crate) const IN_PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'#').add(b'%').add(b'?').add(b'\\');

/// As [`IN_PATH`], where `%` begins an escape.
const IN_ESCAPED_PATH: &AsciiSet = &IN_PATH.remove(b'%');

impl Routes {
    pub(crate) fn compile(hosts: &[HostSettings], rewrites_lookups: bool) -> Result<Self, Error> {
        let hosts = hosts.iter().map(Host::compile).collect::<Result<_, _>>()?;
        Ok(Self { hosts, rewrites_lookups })
    }

    /// Returns the rules for a host.
    pub(crate) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts
            .iter()
            .find(|host| host.names.is_empty() || host.names.iter().any(|glob| glob.matches(name)))
    }

    /// Tells whether a request's host and target alone decide what the rules of its host do, and answers keep the
    /// headers that describe their bodies.
    pub(crate) fn is_decided_by_target(&self, name: &str) -> bool {
        let Some(host) = self.host(name) else { return true };
        let describes = |name: &HeaderName| DESCRIBING.contains(name);
        host.rules.iter().all(Rule::is_decided_by_target)
            && host.access.iter().all(Access::is_decided_by_target)
            && !host.headers.iter().any(|(name, _)| describes(name))
    }

    /// Applies the rules of the request's host.
    pub(crate) fn apply(&self, view: &RequestView) -> Routed {
        let Some(host) = self.host(&view.host) else {
            return Routed::Serve(None);
        };
        let mut way = Way::new(view);
        let proxied = match host.lead(&mut way) {
            Led::Ended(routed) => return routed,
            Led::Proxied(proxied) => Some(proxied),
            Led::Through => None,
        };
        // What it is about is as it was sent; what is known of the visitor is the same.
        let unled = Way { environment: way.environment.clone(), ..Way::new(view) };
        // Farms may look up what was sent, whatever the rules made of it.
        let is_sent = proxied.is_none() && !self.rewrites_lookups;
        let refuses = |access: &Access| match access.of {
            Of::Sent => access.refuses(host, &unled, false),
            Of::Either if is_sent && access.refuses(host, &unled, false) => true,
            Of::Url | Of::File | Of::Either => access.refuses(host, &way, proxied.is_some()),
        };
        if host.access.iter().any(refuses) {
            return Routed::Answer(StatusCode::FORBIDDEN);
        }
        match proxied {
            Some(proxied) => Routed::Proxy(proxied),
            None => Routed::Serve(way.current.filter(|_| self.rewrites_lookups)),
        }
    }
}

/// A request on its way through the rules.
struct Way<'a> {
    sent: &'a RequestView,
    /// The path of the URL, where a rule that passes through changed it.
    url: Option<String>,
    /// What the rules made of the request.
    current: Option<Box<RequestView>>,
    /// Whether the path is another one than the URL's.
    is_rewritten: bool,
    /// What rules have set.
    environment: BTreeMap<String, String>,
}

impl<'a> Way<'a> {
    fn new(sent: &'a RequestView) -> Self {
        Self { sent, url: None, current: None, is_rewritten: false, environment: BTreeMap::new() }
    }

    fn view(&self) -> &RequestView {
        self.current.as_deref().unwrap_or(self.sent)
    }

    fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(self.sent.path.as_str())
    }
}

/// Where rules led a request.
enum Led {
    Through,
    Proxied(Proxied),
    Ended(Routed),
}

impl Host {
    /// Leads a request through the rules.
    fn lead(&self, way: &mut Way<'_>) -> Led {
        let (mut is_over, mut may_proxy) = (false, true);
        let (mut rules, mut rounds) = (self.rules.iter(), 0);
        while let Some(rule) = rules.next() {
            let counts = if rule.is_of_url { !way.is_rewritten } else { !is_over };
            let is_shut = !may_proxy && matches!(rule.action, Action::Proxy(_));
            if !counts || is_shut {
                continue;
            }
            let Some((filled, set)) = rule.fill(self, way) else { continue };
            way.environment.extend(set);
            match filled {
                Filled::Rewritten(path, query) => match way.view().with_target(&path, query) {
                    Ok(next) => {
                        way.current = Some(Box::new(next));
                        way.is_rewritten = true;
                    }
                    Err(_climbs) => {
                        return Led::Ended(Routed::Answer(StatusCode::BAD_REQUEST));
                    }
                },
                Filled::Passed if rule.is_of_url => may_proxy = false,
                Filled::Passed => break,
                Filled::Unchanged => {}
                Filled::Proxied(proxied) => return Led::Proxied(proxied),
                Filled::Ended(routed) => return Led::Ended(routed),
            }
            if rule.passes_through {
                way.url = Some(way.view().path.as_str().to_owned());
                way.is_rewritten = false;
            }
            if rule.begins_again {
                rounds += 1;
                if rounds > MAX_ROUNDS {
                    return Led::Ended(Routed::Answer(StatusCode::INTERNAL_SERVER_ERROR));
                }
                (rules, is_over) = (self.rules.iter(), false);
                continue;
            }
            is_over |= rule.is_last || rule.passes_through;
        }
        Led::Through
    }
}

/// What a rule that matched does.
enum Filled {
    Rewritten(String, Option<String>),
    Unchanged,
    Passed,
    Proxied(Proxied),
    Ended(Routed),
}

impl Host {
    fn compile(settings: &HostSettings) -> Result<Self, Error> {
        Ok(Self {
            names: settings
                .names
                .iter()
                .map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
                .map(|name| Glob::new(&name))
                .collect(),
            document_root: settings.document_root.clone(),
            headers: read_headers(&settings.headers)?,
            error_documents: read_documents(&settings.error_documents)?,
            rules: settings.rule.iter().map(Rule::compile).collect::<Result<_, _>>()?,
            access: settings.access.iter().map(Access::compile).collect::<Result<_, _>>()?,
        })
    }
}

impl Access {
    fn compile(settings: &AccessSettings) -> Result<Self, Error> {
        Ok(Self {
            of: match settings.of.as_deref() {
                None => Of::Either,
                Some("url") => Of::Url,
                Some("file") => Of::File,
                Some("sent") => Of::Sent,
                Some(other) => {
                    let reason = format!("`{other}` is none of `url`, `file` and `sent`");
                    return Err(fault("host.access.of", reason));
                }
            },
            pattern: read_pattern(settings.pattern.as_deref().unwrap_or(""), false)?,
            conditions: settings.when.iter().map(Condition::compile).collect::<Result<_, _>>()?,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        self.conditions.iter().all(Condition::is_decided_by_target)
    }

    /// Tells whether a request ends here that went this way.
    fn refuses(&self, host: &Host, way: &Way<'_>, is_proxied: bool) -> bool {
        // What another server answers is no file of this one.
        let file = (!is_proxied).then(|| way.view().path.as_str());
        let is_meant = |path: &str| self.pattern.is_match(path);
        let is_meant = match self.of {
            Of::Url | Of::Sent => is_meant(way.url()),
            Of::File => file.is_some_and(is_meant),
            Of::Either => is_meant(way.url()) || file.is_some_and(is_meant),
        };
        let mut scope = Scope::new(host, way, None);
        is_meant && hold(&self.conditions, &mut scope)
    }
}

impl Rule {
    fn compile(settings: &RuleSettings) -> Result<Self, Error> {
        let mut actions = Vec::new();
        actions.extend(settings.rewrite.clone().map(Action::Rewrite));
        if let Some(target) = settings.redirect.clone() {
            let status = read_status(settings.status.unwrap_or(302), 300..400)?;
            actions.push(Action::Redirect { target, status, escapes: !settings.no_escape });
        }
        actions.extend(settings.proxy.clone().map(Action::Proxy));
        if let Some(status) = settings.answer {
            actions.push(Action::Answer(read_status(status, 200..600)?));
        }
        actions.extend(settings.pass.then_some(Action::Pass));
        let count = actions.len();
        let (Some(action), 1) = (actions.pop(), count) else {
            return Err(fault(
                "host.rule",
                format!(
                    "a rule has one of `rewrite`, `redirect`, `proxy`, `answer` and `pass`, not {count}"
                ),
            ));
        };
        if settings.pass_through && !matches!(action, Action::Rewrite(_)) {
            return Err(fault("host.rule.pass_through", "only a `rewrite` makes another path"));
        }
        if let Action::Proxy(target) = &action
            && !target.starts_with("http://")
        {
            return Err(fault(
                "host.rule.proxy",
                format!("`{target}` does not begin with `http://`"),
            ));
        }
        Ok(Self {
            pattern: read_pattern(settings.pattern.as_deref().unwrap_or(""), settings.ignore_case)?,
            conditions: settings.when.iter().map(Condition::compile).collect::<Result<_, _>>()?,
            action,
            query: match settings.query.as_deref() {
                None | Some("keep") => Query::Keep,
                Some("append") => Query::Append,
                Some("drop") => Query::Drop,
                Some(other) => {
                    let reason = format!("`{other}` is none of `keep`, `append` and `drop`");
                    return Err(fault("host.rule.query", reason));
                }
            },
            is_last: settings.last,
            passes_through: settings.pass_through,
            is_of_url: settings.of_url,
            keeps_host: settings.keep_host,
            sets: settings.set.clone().into_iter().collect(),
            begins_again: settings.again,
            escaped_groups: GroupEscaping::read(settings)?,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        let target = match &self.action {
            Action::Rewrite(target) | Action::Redirect { target, .. } | Action::Proxy(target) => {
                target.as_str()
            }
            Action::Answer(_) | Action::Pass => "",
        };
        names_target_alone(target) && self.conditions.iter().all(Condition::is_decided_by_target)
    }

    /// Applies the rule, and returns the variables that it sets as well; nothing if it does not match.
    fn fill(&self, host: &Host, way: &Way<'_>) -> Option<(Filled, Vec<(String, String)>)> {
        let view = way.view();
        let groups = self.pattern.captures(view.path.as_str())?;
        let mut scope = Scope::new(host, way, Some(&groups));
        if !hold(&self.conditions, &mut scope) {
            return None;
        }
        let set = self.sets.iter().map(|(name, value)| (name.clone(), scope.expand(value)));
        let set: Vec<_> = set.collect();
        let filled = match &self.action {
            Action::Rewrite(target) if target == "-" => Filled::Unchanged,
            Action::Rewrite(target) => {
                let (path, query) = self.target(&scope, target);
                Filled::Rewritten(path, query)
            }
            Action::Redirect { target, status, escapes } => {
                let (path, query) = self.target(&scope, target);
                Filled::Ended(redirect(view, *status, &path, query.as_deref(), *escapes))
            }
            Action::Proxy(target) => {
                let (url, query) = self.target(&scope, target);
                // What a visitor wrote must not choose the server.
                if authority(&url) != authority(target) {
                    let refused = Filled::Ended(Routed::Answer(StatusCode::BAD_REQUEST));
                    return Some((refused, set));
                }
                // What is escaped already is not escaped again.
                let in_path = if self.escaped_groups.is_some() { IN_ESCAPED_PATH } else { IN_PATH };
                let mut url = utf8_percent_encode(&url, in_path).to_string();
                if let Some(query) = query {
                    url = format!("{url}?{query}");
                }
                let base = target.split(['$', '%', '?']).next().unwrap_or(target).to_owned();
                let rest = groups.get(1).map_or("", |group| group.as_str());
                let prefix = view.path.as_str().strip_suffix(rest).unwrap_or_default().to_owned();
                let keeps_host = self.keeps_host;
                Filled::Proxied(Proxied { url, base, prefix, keeps_host })
            }
            Action::Answer(status) => Filled::Ended(Routed::Answer(*status)),
            Action::Pass => Filled::Passed,
        };
        Some((filled, set))
    }

    /// Fills a target's path and query, and merges the visitor's query. A `?` in what a pattern found in the path stays a
    /// part of the path, as it was sent as one.
    fn target(&self, scope: &Scope<'_>, template: &str) -> (String, Option<String>) {
        let (path, own) = split_target(template);
        let expand = |template| scope.expand_escaping(template, self.escaped_groups.as_ref());
        let (path, own) = (expand(path), own.map(expand));
        let theirs = scope.view.query.as_deref();
        let query = match (self.query, own.as_deref()) {
            (Query::Append, Some(own)) if !own.is_empty() => {
                Some(theirs.map_or_else(|| own.to_owned(), |theirs| format!("{own}&{theirs}")))
            }
            (Query::Append | Query::Keep, None) | (Query::Append, Some(_)) => {
                theirs.map(str::to_owned)
            }
            (Query::Keep | Query::Drop, Some(own)) => Some(own.to_owned()),
            (Query::Drop, None) => None,
        };
        (path, query.filter(|query| !query.is_empty()))
    }
}

/// Tells whether all conditions hold; an alternative one holds the next up as well.
fn hold(conditions: &[Condition], scope: &mut Scope<'_>) -> bool {
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

/// Tells whether the variables in a template are such that the target of a request decides them.
fn names_target_alone(template: &str) -> bool {
    template.match_indices("%{").all(|(at, _)| {
        let rest = template.get(at + 2..).unwrap_or_default();
        let name = rest.split('}').next().unwrap_or_default();
        DECIDED_BY_TARGET.contains(&name)
    })
}

/// Splits the template of a target at its first `?` that no backslash stands before.
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

/// Returns the part of a URL, or of a template for one, that names the server.
fn authority(url: &str) -> &str {
    let rest = url.strip_prefix("http://").unwrap_or_default();
    rest.split(['/', '?', '$', '%']).next().unwrap_or_default()
}

fn redirect(
    view: &RequestView,
    status: StatusCode,
    path: &str,
    query: Option<&str>,
    escapes: bool,
) -> Routed {
    let path =
        if escapes { utf8_percent_encode(path, IN_PATH).to_string() } else { path.to_owned() };
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
            // Browsers take all that is behind `#` for themselves.
            let (before, fragment) =
                absolute.split_at(absolute.find('#').unwrap_or(absolute.len()));
            format!("{before}?{query}{fragment}")
        }
        None => absolute,
    };
    match HeaderValue::from_str(&location) {
        Ok(location) => Routed::Redirect(status, location),
        Err(_control_characters) => Routed::Answer(StatusCode::BAD_REQUEST),
    }
}

impl Condition {
    fn compile(settings: &ConditionSettings) -> Result<Self, Error> {
        let check = match (settings.pattern.as_deref(), settings.is.as_deref()) {
            (Some(pattern), None) => Check::Matches(read_pattern(pattern, settings.ignore_case)?),
            (None, Some("file")) => Check::IsFile,
            (None, Some("directory")) => Check::IsDirectory,
            _ => {
                return Err(fault(
                    "host.rule.when",
                    "a condition has either `match` or `is = \"file\"` or `is = \"directory\"`",
                ));
            }
        };
        Ok(Self {
            test: settings.test.clone(),
            check,
            is_negated: settings.negate,
            is_alternative: settings.or,
        })
    }

    fn is_decided_by_target(&self) -> bool {
        names_target_alone(&self.test) && matches!(self.check, Check::Matches(_))
    }

    fn holds(&self, scope: &mut Scope<'_>) -> bool {
        let text = scope.expand(&self.test);
        let holds = match &self.check {
            Check::IsFile => PathBuf::from(&text).is_file(),
            Check::IsDirectory => PathBuf::from(&text).is_dir(),
            Check::Matches(pattern) => match pattern.captures(&text) {
                Some(groups) => {
                    let text = |group: Option<regex::Match<'_>>| {
                        group.map(|group| group.as_str().to_owned()).unwrap_or_default()
                    };
                    scope.condition = groups.iter().map(text).collect();
                    true
                }
                None => false,
            },
        };
        holds != self.is_negated
    }
}

fn read_pattern(pattern: &str, ignores_case: bool) -> Result<Regex, Error> {
    RegexBuilder::new(pattern).case_insensitive(ignores_case).build().map_err(|error| {
        fault("match", format!("cannot read the regular expression '{pattern}': {error}"))
    })
}

fn read_status(status: u16, allowed: std::ops::Range<u16>) -> Result<StatusCode, Error> {
    let code = StatusCode::from_u16(status).ok().filter(|_| allowed.contains(&status));
    code.ok_or_else(|| {
        fault(
            "host.rule",
            format!("the status {status} is not from {} to {}", allowed.start, allowed.end - 1),
        )
    })
}

/// What templates may refer to.
struct Scope<'a> {
    host: &'a Host,
    view: &'a RequestView,
    way: &'a Way<'a>,
    rule: Option<&'a Captures<'a>>,
    condition: Vec<String>,
}

impl<'a> Scope<'a> {
    fn new(host: &'a Host, way: &'a Way<'a>, rule: Option<&'a Captures<'a>>) -> Self {
        Self { host, view: way.view(), way, rule, condition: Vec::new() }
    }

    /// Fills a template: `$1`, `%1`, `%{NAME}`, and `\$` for a plain sign.
    fn expand(&self, template: &str) -> String {
        self.expand_escaping(template, None)
    }

    /// As [`Scope::expand`], with groups escaped if that is asked for.
    fn expand_escaping(&self, template: &str, groups: Option<&GroupEscaping>) -> String {
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
                        filled.push_str(&self.variable(name));
                        tail
                    }
                    None => {
                        filled.push(sign);
                        after
                    }
                },
                (sign, Some(digit)) if digit.is_ascii_digit() => {
                    let index = digit.to_digit(10).unwrap_or(0) as usize;
                    let group = self.group(sign, index);
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

    fn group(&self, sign: char, index: usize) -> &str {
        match sign {
            '$' => {
                self.rule.and_then(|groups| groups.get(index)).map_or("", |group| group.as_str())
            }
            _ => self.condition.get(index).map_or("", String::as_str),
        }
    }

    fn variable(&self, name: &str) -> String {
        let view = self.view;
        let header = |name: &str| {
            let value = view.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        match name {
            "REQUEST_URI" => self.way.url().to_owned(),
            "REQUEST_FILENAME" | "SCRIPT_FILENAME" => view.path.as_str().to_owned(),
            "QUERY_STRING" => view.query.clone().unwrap_or_default(),
            "REQUEST_METHOD" => view.method.to_string(),
            "REQUEST_SCHEME" => view.scheme.to_owned(),
            "THE_REQUEST" => self.way.sent.line(),
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
                (None, Some(name)) => self.way.environment.get(name).cloned().unwrap_or_default(),
                (None, None) => String::new(),
            },
        }
    }
}

/// Variables that the first line of a request and its host decide.
const DECIDED_BY_TARGET: [&str; 13] = [
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

/// Headers that differ between the answers from one file.
const DESCRIBING: [HeaderName; 10] = [
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

/// Variables that conditions and targets may name; the converter reports others.
pub(crate) fn is_variable(name: &str) -> bool {
    const KNOWN: [&str; 20] = [
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
        "HTTP_USER_AGENT",
        "HTTP_REFERER",
        "HTTP_COOKIE",
        "HTTP_ACCEPT",
        "REMOTE_ADDR",
        "REMOTE_HOST",
        "HTTPS",
        "SERVER_PORT",
        "DOCUMENT_ROOT",
        "HTTP",
    ];
    KNOWN.contains(&name) || name.starts_with("HTTP:")
}
