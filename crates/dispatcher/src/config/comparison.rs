//! Comparison of two configurations: the decisions that a changed configuration makes differently, before it is used.
//!
//! Input: two configurations with their settings, and URLs. Output: the keys and rules that differ, and the requests
//! that are answered differently. In addition to the given URLs it tries requests that a public farm should refuse, and
//! one request for each pattern in either configuration, so that a changed rule shows even if no URL was given for it.
//!
//! Not here: the content of caches (`explanation`); both configurations are assumed to start with the same files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use http::{HeaderMap, Method};
use serde::Serialize;

use crate::Error;
use crate::config::any_syntax::{ConfigBlock, ConfigValue, QuoteStyle};
use crate::config::check::DANGEROUS_REQUESTS;
use crate::config::compiled_settings::CompiledSettings;
use crate::config::explanation::{explain_host_rules, filter_rule_name};
use crate::config::pattern::RulePattern;
use crate::config::settings::DispatcherSettings;
use crate::config::{
    AccessList, CacheConfig, DispatcherConfig, FarmConfig, FilterMatcher, RequestElement,
};
use crate::request::decision::{RequestAction, decide_request};
use crate::request::filter;
use crate::request::view::{RequestView, encode_path};

/// One of two configurations.
#[derive(Debug, Clone)]
pub struct ComparedConfig {
    /// Its syntax tree, with includes resolved.
    pub syntax_tree: ConfigBlock,
    /// Its typed configuration.
    pub config: DispatcherConfig,
    /// Its section `[dispatcher]`.
    pub settings: DispatcherSettings,
}

/// The differences between two configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConfigComparison {
    /// The keys and rules that only one of them has, or that have a different order.
    pub keys: Vec<ConfigKeyChange>,
    /// The requests that they decide differently.
    pub requests: Vec<RequestDecisionChange>,
    /// The number of requests tried.
    pub tried: usize,
}

impl fmt::Display for ConfigComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.keys {
            writeln!(f, "{change}")?;
        }
        for change in &self.requests {
            writeln!(f, "{change}")?;
        }
        let (keys, requests) = (self.keys.len(), self.requests.len());
        let tried = self.tried;
        write!(f, "{keys} keys differ; {requests} of {tried} requests are answered differently")
    }
}

/// A key with its value that differs between two configurations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigKeyChange {
    /// The kind of change.
    pub change: ConfigKeyChangeKind,
    /// Its labels from the root, and its value.
    pub key: String,
    /// Its source position.
    pub at: String,
}

/// The kind of change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfigKeyChangeKind {
    /// Only the old configuration has it.
    Removed,
    /// Only the new one has it.
    Added,
    /// The order of the items below it differs.
    Reordered,
}

/// A request that two configurations decide differently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestDecisionChange {
    /// Method and URL.
    pub request: String,
    /// The decision of the old configuration, and the deciding rule.
    pub old: String,
    /// The decision of the new configuration.
    pub new: String,
}

impl fmt::Display for ConfigKeyChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.change {
            ConfigKeyChangeKind::Removed => '-',
            ConfigKeyChangeKind::Added => '+',
            ConfigKeyChangeKind::Reordered => '~',
        };
        write!(f, "{sign} {}  ({})", self.key, self.at)
    }
}

impl fmt::Display for RequestDecisionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    old: {}\n    new: {}", self.request, self.old, self.new)
    }
}

/// Compares two configurations; `urls` are paths, or begin with `http://` or `https://`.
///
/// # Errors
/// [`Error::Setting`] if the settings are invalid.
pub fn compare_configs(
    old: &ComparedConfig,
    new: &ComparedConfig,
    urls: &[String],
) -> Result<ConfigComparison, Error> {
    let switches = [old.settings.compile_settings()?, new.settings.compile_settings()?];
    let hosts = probe_hosts_of([&old.config, &new.config]);
    let mut targets: BTreeSet<String> = urls.iter().cloned().collect();
    let own = DANGEROUS_REQUESTS.iter().map(|url| (*url).to_owned());
    for target in own.chain(probe_paths_of([&old.config, &new.config])) {
        targets.extend(hosts.iter().map(|host| format!("{host}{target}")));
    }
    let mut comparison = ConfigComparison {
        keys: compare_config_trees(&old.syntax_tree, &new.syntax_tree),
        ..ConfigComparison::default()
    };
    for url in &targets {
        for method in [Method::GET, Method::HEAD, Method::POST] {
            comparison.tried += 1;
            let [before, after] = [(&old.config, &switches[0]), (&new.config, &switches[1])]
                .map(|(config, switches)| summarize_decision(config, switches, &method, url));
            if before.outcome == after.outcome {
                continue;
            }
            let request = format!("{method} {url}");
            let (old, new) = (before.to_string(), after.to_string());
            comparison.requests.push(RequestDecisionChange { request, old, new });
            // A difference for GET usually applies to the other methods as well.
            break;
        }
    }
    Ok(comparison)
}

/// The decision about a request, and its reason.
struct DecisionSummary {
    outcome: String,
    reason: String,
}

impl fmt::Display for DecisionSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason.is_empty() {
            true => f.write_str(&self.outcome),
            false => write!(f, "{}, by {}", self.outcome, self.reason),
        }
    }
}

fn summarize_decision(
    config: &DispatcherConfig,
    switches: &CompiledSettings,
    method: &Method,
    url: &str,
) -> DecisionSummary {
    let alone = |outcome: String| DecisionSummary { outcome, reason: String::new() };
    let mut view = match RequestView::from_url(method.clone(), url, HeaderMap::new()) {
        Ok(view) => view,
        Err(fault) => return alone(format!("400: {fault}")),
    };
    let routed = switches.routes.route_request(&view);
    let (rules, ended) = explain_host_rules(switches, Some(routed), &mut view);
    if ended.is_some() {
        return alone(rules.unwrap_or_default());
    }
    let rewritten = rules.map(|rules| format!("{rules}, ")).unwrap_or_default();
    let Some(decision) = decide_request(config, &view) else {
        return alone(format!("{rewritten}404: no farm"));
    };
    let farm = decision.farm;
    let outcome = match &decision.action {
        RequestAction::Purge => "a flush".to_owned(),
        RequestAction::RefuseReserved => "refused as a file reserved for the cache".to_owned(),
        RequestAction::Refuse(_) if farm.vanity_urls.is_some() => {
            "refused unless it is a vanity URL".to_owned()
        }
        RequestAction::Refuse(_) => "refused".to_owned(),
        RequestAction::Pass(reason) => format!("forwarded, not cacheable: {reason}"),
        RequestAction::Cache(file) => {
            let obeys = farm.cache.as_ref().is_some_and(|cache| obeys_stat_file(cache, &view));
            let stat = if obeys { "obeys .stat files" } else { "obeys no .stat file" };
            let root = farm.cache.as_ref().and_then(|cache| cache.docroot.as_deref());
            let file = root.unwrap_or("".as_ref()).join(file);
            format!("cached as {}, {stat}", file.display())
        }
    };
    let outcome = format!("{rewritten}farm /{}: {outcome}", farm.name);
    DecisionSummary { outcome, reason: explain_decision(farm, &view) }
}

fn obeys_stat_file(cache: &CacheConfig, view: &RequestView) -> bool {
    cache.invalidate.allows(view.path.as_str())
}

fn explain_decision(farm: &FarmConfig, view: &RequestView) -> String {
    let Some(rules) = &farm.filter else { return "a farm without a filter".to_owned() };
    filter::deciding_filter_rule(rules, view).map_or_else(|| "no rule".to_owned(), filter_rule_name)
}

/// A key and its value as text, with its position.
struct FlatConfigLine {
    text: String,
    position: String,
}

/// Lists all keys of a block with their labels, in order; appends the items of each block to `lists`.
fn flatten_block(
    block: &ConfigBlock,
    prefix: &str,
    lines: &mut Vec<FlatConfigLine>,
    lists: &mut BTreeMap<String, Vec<String>>,
) {
    for item in &block.items {
        let name = item.name().map(|name| format!("/{name}")).unwrap_or_default();
        let path = format!("{prefix}{name}");
        let at = item.position().map(ToString::to_string).unwrap_or_default();
        let text = match &item.value {
            ConfigValue::Absent => path.clone(),
            ConfigValue::Text(value) => {
                let mark = if value.quote == QuoteStyle::Single { '\'' } else { '"' };
                format!("{path} {mark}{}{mark}", value.text)
            }
            ConfigValue::Block(inner) => {
                // A rule of a list is one line and is compared as a whole.
                match block_as_one_line(inner) {
                    Some(rule) => format!("{path} {rule}"),
                    None => {
                        flatten_block(inner, &path, lines, lists);
                        path.clone()
                    }
                }
            }
        };
        lists.entry(prefix.to_owned()).or_default().push(text.clone());
        lines.push(FlatConfigLine { text, position: at });
    }
}

/// Returns a block whose items are all single values as one line; `None` for other blocks.
fn block_as_one_line(block: &ConfigBlock) -> Option<String> {
    let mut parts = Vec::new();
    for item in &block.items {
        let ConfigValue::Text(value) = &item.value else { return None };
        let mark = if value.quote == QuoteStyle::Single { '\'' } else { '"' };
        let name = item.name()?;
        parts.push(format!("/{name} {mark}{}{mark}", value.text));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(" ")))
}

fn compare_config_trees(old: &ConfigBlock, new: &ConfigBlock) -> Vec<ConfigKeyChange> {
    let (mut lines, mut lists) = ([Vec::new(), Vec::new()], [BTreeMap::new(), BTreeMap::new()]);
    for ((block, lines), lists) in [old, new].into_iter().zip(&mut lines).zip(&mut lists) {
        flatten_block(block, "", lines, lists);
    }
    let [old_lines, new_lines] = &lines;
    let mut changes = Vec::new();
    for (own, other_lines, change) in [
        (old_lines, new_lines, ConfigKeyChangeKind::Removed),
        (new_lines, old_lines, ConfigKeyChangeKind::Added),
    ] {
        let mut left: BTreeMap<&str, usize> = BTreeMap::new();
        for line in other_lines {
            *left.entry(&line.text).or_default() += 1;
        }
        for line in own {
            match left.get_mut(line.text.as_str()).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => changes.push(ConfigKeyChange {
                    change,
                    key: line.text.clone(),
                    at: line.position.clone(),
                }),
            }
        }
    }
    let [old_lists, new_lists] = &lists;
    for (path, items) in old_lists {
        let Some(others) = new_lists.get(path).filter(|others| *others != items) else { continue };
        let sorted = |items: &Vec<String>| {
            let mut items = items.clone();
            items.sort();
            items
        };
        if sorted(items) == sorted(others) {
            let is_first = |line: &&FlatConfigLine| others.first() == Some(&line.text);
            let at = new_lines.iter().find(is_first).map(|line| line.position.clone());
            let key = if path.is_empty() { "/".to_owned() } else { path.clone() };
            changes.push(ConfigKeyChange {
                change: ConfigKeyChangeKind::Reordered,
                key,
                at: at.unwrap_or_default(),
            });
        }
    }
    changes
}

/// Returns the URL prefixes of the hosts that either configuration names, and of one host that neither names.
fn probe_hosts_of(configs: [&DispatcherConfig; 2]) -> BTreeSet<String> {
    let mut hosts = BTreeSet::from(["http://unknown.invalid".to_owned()]);
    for entry in
        configs.iter().flat_map(|config| &config.farms).flat_map(|farm| &farm.virtual_hosts)
    {
        let host = sample_match_of_glob(entry.host.source());
        let port =
            entry.port.as_ref().map(|port| format!(":{}", sample_match_of_glob(port.source())));
        let scheme = entry.scheme.as_ref().map_or("http", |scheme| match scheme.matches("https") {
            true => "https",
            false => "http",
        });
        hosts.insert(format!("{scheme}://{host}{}", port.unwrap_or_default()));
    }
    hosts
}

/// Returns a matching path for each pattern of either configuration.
fn probe_paths_of(configs: [&DispatcherConfig; 2]) -> BTreeSet<String> {
    let mut probes: BTreeSet<String> = ["/", "/content/x.html"].map(str::to_owned).into();
    for farm in configs.iter().flat_map(|config| &config.farms) {
        for rule in farm.filter.iter().flatten() {
            probes.extend(probe_paths_of_rule(&rule.matcher));
        }
        let Some(cache) = &farm.cache else { continue };
        for pattern in patterns_of_lists(&[&cache.rules, &cache.invalidate]) {
            let samples = sample_matches_of(pattern).into_iter();
            probes.extend(samples.map(|sample| match sample.starts_with('/') {
                true => encode_path(&sample),
                false => format!("/content/{}", encode_path(&sample)),
            }));
        }
        for pattern in patterns_of_lists(&[&cache.ignore_url_params, &cache.key_params]) {
            let samples = sample_matches_of(pattern).into_iter();
            probes.extend(samples.map(|name| format!("/content/x.html?{}=1", encode_path(&name))));
        }
    }
    probes
}

fn patterns_of_lists<'a>(lists: &[&'a AccessList]) -> Vec<&'a RulePattern> {
    lists.iter().flat_map(|list| &list.rules).map(|rule| &rule.pattern).collect()
}

fn probe_paths_of_rule(matcher: &FilterMatcher) -> Vec<String> {
    let elements = match matcher {
        FilterMatcher::RequestLine(pattern) => {
            let targets = sample_matches_of(pattern);
            let target = |line: &String| {
                let mut words =
                    line.split_ascii_whitespace().filter(|field| field.starts_with('/'));
                words.next().map(encode_target)
            };
            return targets.iter().filter_map(target).collect();
        }
        FilterMatcher::Elements(elements) => elements,
    };
    let samples = |requested_element: RequestElement| {
        let pattern = elements.iter().find(|(element, _)| *element == requested_element);
        pattern.map(|(_, pattern)| sample_matches_of(pattern)).unwrap_or_default()
    };
    let first = |requested_element, before: &str| {
        let sample = samples(requested_element).into_iter().find(|sample| !sample.is_empty());
        sample.map(|sample| format!("{before}{sample}")).unwrap_or_default()
    };
    let mut paths = samples(RequestElement::Url);
    let bases = match samples(RequestElement::Path) {
        bases if bases.is_empty() && paths.is_empty() => vec!["/content/x".to_owned()],
        bases => bases,
    };
    let mut extensions = samples(RequestElement::Extension);
    if extensions.is_empty() {
        extensions.push("html".to_owned());
    }
    for base in &bases {
        for extension in &extensions {
            let dot = if extension.is_empty() { "" } else { "." };
            let selectors = first(RequestElement::Selectors, ".");
            let suffix = first(RequestElement::Suffix, "");
            paths.push(format!("{base}{selectors}{dot}{extension}{suffix}"));
        }
    }
    let query = first(RequestElement::Query, "?");
    let is_path = |path: &String| path.starts_with('/');
    paths.iter().filter(|path| is_path(path)).map(|path| encode_path(path) + &query).collect()
}

fn encode_target(target: &str) -> String {
    match target.split_once('?') {
        Some((path, query)) => format!("{}?{query}", encode_path(path)),
        None => encode_path(target),
    }
}

/// Returns texts that a pattern matches; empty for a regular expression that is more than a choice of words.
fn sample_matches_of(pattern: &RulePattern) -> Vec<String> {
    match pattern {
        RulePattern::Glob(glob) => vec![sample_match_of_glob(glob.source())],
        RulePattern::Regex(regex) => {
            let source = regex.as_str();
            let source = source.strip_prefix("(?s)^(?:").and_then(|rest| rest.strip_suffix(")$"));
            let source = source.unwrap_or_default();
            let inner = source.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
            let is_word = |token: &str| {
                token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/:".contains(&byte))
            };
            let words = inner.unwrap_or(source).split('|');
            words.filter(|token| is_word(token)).map(str::to_owned).collect()
        }
        RulePattern::Invalid => Vec::new(),
    }
}

/// Returns a text that a glob matches.
fn sample_match_of_glob(glob: &str) -> String {
    let (mut sample, mut rest) = (String::new(), glob.chars().peekable());
    while let Some(char) = rest.next() {
        match char {
            '*' if rest.peek() == Some(&'*') => {}
            '*' | '?' => sample.push('x'),
            '[' => {
                let class: String = rest.by_ref().take_while(|char| *char != ']').collect();
                let is_negated = class.starts_with(['!', '^']);
                let first = class.chars().next().filter(|_| !is_negated);
                sample.push(first.unwrap_or('0'));
            }
            char => sample.push(char),
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::{sample_match_of_glob, sample_matches_of};
    use crate::config::any_syntax::{ConfigText, QuoteStyle, SourcePosition};
    use crate::config::glob::DispatcherGlob;
    use crate::config::pattern::{BrokenPatternPolicy, RulePattern};
    use std::path::Path;

    #[test]
    fn a_sample_of_a_glob_is_matched_by_it() {
        for (glob, expected) in [
            ("*", "x"),
            ("/content/*", "/content/x"),
            ("/content/**/*.html", "/content/x/x.html"),
            ("*[o]men.html*", "xomen.htmlx"),
            ("a?[0-9]", "ax0"),
            ("[!a]b", "0b"),
            ("", ""),
        ] {
            let sample = sample_match_of_glob(glob);
            assert_eq!(sample, expected, "{glob}");
            assert!(DispatcherGlob::new(glob).matches(&sample), "{glob}");
        }
    }

    #[test]
    fn a_sample_of_an_expression_is_a_word_of_its_choice() {
        for (source, expected) in [
            ("(css|js|html)", &["css", "js", "html"][..]),
            ("html", &["html"]),
            ("(sys|doc)view", &[]),
            ("(a.*|b)", &["b"]),
            ("()", &[""]),
        ] {
            let at = SourcePosition { file: Path::new("x.any").into(), line: 1, column: 1 };
            let text =
                ConfigText { text: source.to_owned(), quote: QuoteStyle::Single, position: at };
            let pattern = RulePattern::parse(&text).unwrap();
            let samples = sample_matches_of(&pattern);
            assert_eq!(samples, expected, "{source}");
            assert!(
                samples.iter().all(|one| pattern.matches(one, BrokenPatternPolicy::MatchNone)),
                "{source}"
            );
        }
    }
}
