//! The configuration of one farm.

use std::path::PathBuf;
use std::time::Duration;

use super::access_list::{AccessList, RuleVerdict, read_access_list};
use super::cache::{CacheConfig, read_cache};
use super::filter::{FilterRule, read_filter};
use super::health::{HealthRules, read_health};
use super::reader::{ConfigEntry, ConfigReader};
use super::render::{RenderConfig, read_renders};
use super::variant_limit::{VariantLimit, read_variant_limit};
use super::virtual_host::VirtualHostPattern;
use crate::config::any_syntax::{ConfigBlock, ConfigKey, ConfigValue, SourcePosition};
use crate::config::glob::DispatcherGlob;

/// The request headers that are forwarded to the renders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHeaderPolicy {
    /// All end-to-end headers.
    All,
    /// These headers, in lower case.
    Only(Vec<String>),
}

/// A group of URLs by which renders are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatisticsCategory {
    /// Its label.
    pub name: String,
    /// The paths that belong to it.
    pub glob: DispatcherGlob,
}

/// Folders whose visitors stay with one render.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StickyConfig {
    /// The folders.
    pub paths: Vec<String>,
    /// True if the cookie is hidden from scripts.
    pub is_http_only: bool,
    /// True if the cookie is always marked `Secure`; otherwise only on TLS.
    pub is_always_secure: bool,
}

/// The share of visitors that a farm serves, when a new site is shown to some of them first.
#[derive(Debug, Clone, Default)]
pub struct ShareConfig {
    /// The percentage of visitors.
    pub percent: f64,
    /// Addresses that always belong to the share.
    pub addresses: AccessList,
}

/// `/vanity_urls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VanityUrlsConfig {
    /// The URL at which a render lists them.
    pub url: String,
    /// The file in which the list is stored.
    pub list_file: Option<PathBuf>,
    /// The interval between fetches of the list.
    pub fetch_interval: Duration,
    /// True if the list is fetched at the start.
    pub is_fetched_at_start: bool,
}

/// `/sessionmanagement`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionManagementConfig {
    /// The folder in which sessions are stored.
    pub directory: PathBuf,
    /// The header that holds the credentials.
    pub header: String,
    /// The lifetime of an idle session.
    pub timeout: Duration,
}

/// `/auth_checker`.
#[derive(Debug, Clone)]
pub struct AuthCheckerConfig {
    /// The URL of the check.
    pub url: String,
    /// The paths that need a check.
    pub filter: AccessList,
    /// The header lines of the response that are passed to the visitor.
    pub headers: AccessList,
}

/// The configuration of a farm.
#[derive(Debug, Clone)]
pub struct FarmConfig {
    /// Its label.
    pub name: String,
    /// The position of its definition.
    pub position: SourcePosition,
    /// True if `X-Dispatcher-Info` is answered.
    pub answers_info_requests: bool,
    /// True if the farm is a shared HTTP cache, and not the cache that Adobe documents (`/x-http`).
    pub is_http_cache: bool,
    /// The request headers that are forwarded to the renders.
    pub client_headers: ClientHeaderPolicy,
    /// The virtual hosts that the farm serves.
    pub virtual_hosts: Vec<VirtualHostPattern>,
    /// The renders of the farm.
    pub renders: Vec<RenderConfig>,
    /// The rules for permitted requests; `None` permits everything.
    pub filter: Option<Vec<FilterRule>>,
    /// Short URLs that are permitted although the filter denies them.
    pub vanity_urls: Option<VanityUrlsConfig>,
    /// True if flushes are forwarded to the render.
    pub propagates_flushes: bool,
    /// The configuration of the cache.
    pub cache: Option<CacheConfig>,
    /// The configuration of login sessions.
    pub session_management: Option<SessionManagementConfig>,
    /// The configuration of permission checks for cached pages.
    pub auth_checker: Option<AuthCheckerConfig>,
    /// Groups of URLs by which renders are compared, at most eight.
    pub categories: Vec<StatisticsCategory>,
    /// The configuration of visitors that stay with one render.
    pub sticky: StickyConfig,
    /// The URL that reports if a render is healthy.
    pub health_check: Option<String>,
    /// The interval at which each render's health page is requested; `None` if it is not requested (`/x-interval`).
    pub probe_interval: Option<Duration>,
    /// The number of consecutive failed probes after which a render is tried last (`/x-failures`).
    pub probe_failures: u32,
    /// The pause between rounds of attempts.
    pub retry_delay: Duration,
    /// The number of rounds of attempts.
    pub retry_rounds: u32,
    /// The penalty that a failed connection adds to a render's score.
    pub unavailable_penalty: Duration,
    /// True if another render is tried after an error.
    pub has_failover: bool,
    /// The share of visitors that the farm serves; `None` for all (`/x-share`).
    pub visitor_share: Option<ShareConfig>,
    /// True if every response reports the cache result in `Cache-Status` (`/x-cacheStatus`).
    pub sends_cache_status: bool,
    /// The rules for suspending a render (`/x-health`).
    pub health: HealthRules,
    /// The percentage of fetched pages that are also requested from other renders, and these renders (`/x-shadow`).
    pub shadow_renders: Option<(f64, Vec<RenderConfig>)>,
    /// Other dispatchers of the same site, which are asked for absent pages (`/x-siblings`).
    pub siblings: Vec<RenderConfig>,
    /// True if flushes are passed on to the siblings (`/x-passFlushes`).
    pub passes_flushes_to_siblings: bool,
    /// The number of variants of one page that clients may make renders produce (`/x-variantLimit`); `None` if
    /// unlimited.
    pub variant_limit: Option<VariantLimit>,
}

impl FarmConfig {
    pub(super) fn new(key: &ConfigKey) -> Self {
        Self {
            name: key.name.clone(),
            position: key.position.clone(),
            answers_info_requests: false,
            is_http_cache: false,
            client_headers: ClientHeaderPolicy::Only(Vec::new()),
            virtual_hosts: Vec::new(),
            renders: Vec::new(),
            filter: None,
            vanity_urls: None,
            propagates_flushes: false,
            cache: None,
            session_management: None,
            auth_checker: None,
            categories: Vec::new(),
            sticky: StickyConfig::default(),
            health_check: None,
            probe_interval: None,
            probe_failures: 2,
            retry_delay: Duration::from_secs(1),
            retry_rounds: 5,
            unavailable_penalty: Duration::from_millis(100),
            has_failover: false,
            visitor_share: None,
            sends_cache_status: false,
            health: HealthRules::default(),
            shadow_renders: None,
            siblings: Vec::new(),
            passes_flushes_to_siblings: false,
            variant_limit: Some(VariantLimit::default()),
        }
    }
}

pub(super) const FARM_KEYS: [&str; 28] = [
    "info",
    "clientheaders",
    "virtualhosts",
    "renders",
    "render",
    "filter",
    "vanity_urls",
    "propagateSyndPost",
    "cache",
    "sessionmanagement",
    "auth_checker",
    "statistics",
    "stickyConnectionsFor",
    "stickyConnections",
    "health_check",
    "retryDelay",
    "numberOfRetries",
    "unavailablePenalty",
    "failover",
    "homepage",
    "x-cacheStatus",
    "x-health",
    "x-http",
    "x-passFlushes",
    "x-share",
    "x-siblings",
    "x-shadow",
    "x-variantLimit",
];

pub(super) fn read_farm(
    reader: &mut ConfigReader,
    key: &ConfigKey,
    block: &ConfigBlock,
) -> FarmConfig {
    let farm = read_farm_sections(reader, key, block);
    if farm.virtual_hosts.is_empty() {
        reader.add_warning(
            &farm.position,
            "the farm has no `/virtualhosts`; it is used only as the last farm",
        );
    }
    if farm.renders.is_empty() {
        reader
            .add_warning(&farm.position, "the farm has no `/renders`; it can only receive flushes");
    }
    farm
}

/// Reads the sections of a farm, without checking for required ones.
pub(super) fn read_farm_sections(
    reader: &mut ConfigReader,
    key: &ConfigKey,
    block: &ConfigBlock,
) -> FarmConfig {
    let mut farm = FarmConfig::new(key);
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "clientheaders" => farm.client_headers = read_client_headers(reader, &entry),
            "virtualhosts" => {
                farm.virtual_hosts = reader
                    .plain_values(&entry)
                    .iter()
                    .map(|text| VirtualHostPattern::parse(&text.text))
                    .collect();
            }
            "stickyConnectionsFor" => farm.sticky.paths.extend(reader.read_text(&entry)),
            "x-variantLimit" if matches!(entry.value, ConfigValue::Text(_)) => {
                match reader.read_boolean(&entry) {
                    Some(false) => farm.variant_limit = None,
                    Some(true) => farm.variant_limit = Some(VariantLimit::default()),
                    None => {}
                }
            }
            "renders" | "render" | "filter" | "vanity_urls" | "cache" | "sessionmanagement"
            | "auth_checker" | "statistics" | "stickyConnections" | "health_check" | "x-health"
            | "x-share" | "x-siblings" | "x-shadow" | "x-variantLimit" => {
                match reader.read_block(&entry) {
                    Some(inner) => read_farm_section(reader, &entry, inner, &mut farm),
                    // Without it, more would be shown than intended.
                    None if matches!(
                        entry.name(),
                        "filter" | "sessionmanagement" | "auth_checker"
                    ) =>
                    {
                        let message = format!("`/{}` must be a block", entry.name());
                        reader.add_error(entry.position(), message);
                    }
                    None => {}
                }
            }
            _ => read_farm_switch(reader, &entry, &mut farm),
        }
    }
    if farm.is_http_cache {
        farm.sends_cache_status = true;
        if let Some(cache) = &mut farm.cache {
            cache.apply_http_rules();
        }
    }
    farm
}

fn read_farm_section(
    reader: &mut ConfigReader,
    entry: &ConfigEntry<'_>,
    block: &ConfigBlock,
    farm: &mut FarmConfig,
) {
    match entry.name() {
        "renders" | "render" => farm.renders = read_renders(reader, block),
        "filter" => farm.filter = Some(read_filter(reader, block)),
        "vanity_urls" => farm.vanity_urls = read_vanity_urls(reader, entry, block),
        "cache" => farm.cache = Some(read_cache(reader, block)),
        "sessionmanagement" => farm.session_management = read_sessions(reader, entry, block),
        "auth_checker" => farm.auth_checker = read_auth_checker(reader, entry.position(), block),
        "statistics" => read_statistics(reader, block, &mut farm.categories),
        "stickyConnections" => read_sticky(reader, block, &mut farm.sticky),
        "x-health" => farm.health = read_health(reader, block),
        "x-share" => farm.visitor_share = Some(read_share(reader, block)),
        "x-siblings" => farm.siblings = read_renders(reader, block),
        "x-shadow" => farm.shadow_renders = read_shadow(reader, block),
        "x-variantLimit" => {
            farm.variant_limit = read_variant_limit(reader, entry.position(), block);
        }
        _ => {
            for entry in reader.labelled_entries(block) {
                match entry.name() {
                    "url" => farm.health_check = reader.read_text(&entry),
                    "x-interval" => {
                        let interval = reader.read_seconds(&entry);
                        farm.probe_interval = interval.filter(|interval| !interval.is_zero());
                    }
                    "x-failures" => {
                        farm.probe_failures = reader.read_number(&entry).unwrap_or(2).max(1);
                    }
                    _ => reader.warn_of_unknown_key(&entry, &["url", "x-interval", "x-failures"]),
                }
            }
        }
    }
}

fn read_farm_switch(reader: &mut ConfigReader, entry: &ConfigEntry<'_>, farm: &mut FarmConfig) {
    match entry.name() {
        "info" => farm.answers_info_requests = reader.read_boolean(entry).unwrap_or(false),
        "propagateSyndPost" => {
            farm.propagates_flushes = reader.read_boolean(entry).unwrap_or(false);
        }
        "retryDelay" => farm.retry_delay = reader.read_seconds(entry).unwrap_or(farm.retry_delay),
        "numberOfRetries" => {
            farm.retry_rounds = reader.read_number(entry).unwrap_or(farm.retry_rounds).max(1)
        }
        "unavailablePenalty" => {
            let tenths = reader.read_number(entry).unwrap_or(1);
            farm.unavailable_penalty = Duration::from_millis(u64::from(tenths) * 100);
        }
        "failover" => farm.has_failover = reader.read_boolean(entry).unwrap_or(false),
        "x-http" => farm.is_http_cache = reader.read_boolean(entry).unwrap_or(false),
        "x-cacheStatus" => farm.sends_cache_status = reader.read_boolean(entry).unwrap_or(false),
        "x-passFlushes" => {
            farm.passes_flushes_to_siblings = reader.read_boolean(entry).unwrap_or(false)
        }
        "homepage" => reader.add_warning(entry.position(), "`/homepage` has no effect"),
        _ => reader.warn_of_unknown_key(entry, &FARM_KEYS),
    }
}

fn read_client_headers(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> ClientHeaderPolicy {
    let names = reader.plain_values(entry);
    if names.iter().any(|name| name.text == "*") {
        return ClientHeaderPolicy::All;
    }
    ClientHeaderPolicy::Only(names.iter().map(|name| name.text.to_ascii_lowercase()).collect())
}

fn read_vanity_urls(
    reader: &mut ConfigReader,
    section: &ConfigEntry<'_>,
    block: &ConfigBlock,
) -> Option<VanityUrlsConfig> {
    let mut vanity = VanityUrlsConfig {
        url: String::new(),
        list_file: None,
        fetch_interval: Duration::from_secs(300),
        is_fetched_at_start: true,
    };
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "url" => vanity.url = reader.read_text(&entry).unwrap_or_default(),
            "file" => vanity.list_file = reader.read_text(&entry).map(PathBuf::from),
            "delay" => {
                vanity.fetch_interval = reader.read_seconds(&entry).unwrap_or(vanity.fetch_interval)
            }
            "loadOnStartup" => {
                vanity.is_fetched_at_start = reader.read_boolean(&entry).unwrap_or(true)
            }
            _ => reader.warn_of_unknown_key(&entry, &["url", "file", "delay", "loadOnStartup"]),
        }
    }
    if !vanity.url.starts_with('/') {
        reader.add_warning(
            section.position(),
            "`/vanity_urls` needs a `/url` that begins with a slash; the section is skipped",
        );
        return None;
    }
    Some(vanity)
}

fn read_sessions(
    reader: &mut ConfigReader,
    section: &ConfigEntry<'_>,
    block: &ConfigBlock,
) -> Option<SessionManagementConfig> {
    let mut sessions = SessionManagementConfig {
        directory: PathBuf::new(),
        header: "HTTP:authorization".to_owned(),
        timeout: Duration::from_secs(800),
    };
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "directory" => {
                sessions.directory =
                    reader.read_text(&entry).map(PathBuf::from).unwrap_or_default();
            }
            "header" => sessions.header = reader.read_text(&entry).unwrap_or(sessions.header),
            "timeout" => sessions.timeout = reader.read_seconds(&entry).unwrap_or(sessions.timeout),
            "encode" => {
                reader.read_text(&entry);
            }
            _ => reader.warn_of_unknown_key(&entry, &["directory", "header", "timeout", "encode"]),
        }
    }
    if sessions.directory.as_os_str().is_empty() || sessions.directory.parent().is_none() {
        reader.add_error(
            section.position(),
            "`/sessionmanagement` needs a `/directory` other than the root",
        );
    }
    Some(sessions)
}

pub(super) fn read_auth_checker(
    reader: &mut ConfigReader,
    at: &SourcePosition,
    block: &ConfigBlock,
) -> Option<AuthCheckerConfig> {
    let mut checker = AuthCheckerConfig {
        url: String::new(),
        // A needless check costs a request; a missing check shows restricted pages to everyone.
        filter: AccessList::new(RuleVerdict::Allow),
        headers: AccessList::default(),
    };
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "url" => checker.url = reader.read_text(&entry).unwrap_or_default(),
            "filter" => {
                if let Some(block) = reader.read_block(&entry) {
                    checker.filter = read_access_list(reader, block, RuleVerdict::Allow);
                }
            }
            "headers" => {
                if let Some(block) = reader.read_block(&entry) {
                    checker.headers = read_access_list(reader, block, RuleVerdict::Deny);
                }
            }
            _ => reader.warn_of_unknown_key(&entry, &["url", "filter", "headers"]),
        }
    }
    if checker.filter.rules.is_empty() {
        let message = "`/auth_checker` has no `/filter` with rules, so every page is checked";
        reader.add_warning(at, message);
        checker.filter.add_safe_rule(at);
    }
    if !checker.url.starts_with('/') {
        // Serving without the check would show restricted pages to everyone.
        reader.add_error(at, "`/auth_checker` needs a `/url` that begins with a slash");
    }
    Some(checker)
}

fn read_shadow(reader: &mut ConfigReader, block: &ConfigBlock) -> Option<(f64, Vec<RenderConfig>)> {
    let (mut percent, mut renders) = (0.0, Vec::new());
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "percent" => percent = read_percent(reader, &entry).unwrap_or(percent),
            "renders" => {
                if let Some(block) = reader.read_block(&entry) {
                    renders = read_renders(reader, block);
                }
            }
            _ => reader.warn_of_unknown_key(&entry, &["percent", "renders"]),
        }
    }
    if renders.is_empty() {
        reader
            .add_warning(&block.position, "`/x-shadow` has no `/renders`, so nothing is compared");
        return None;
    }
    Some((percent, renders))
}

/// Reads a number from 0 to 100.
fn read_percent(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> Option<f64> {
    let text = reader.read_value(entry)?;
    match text.text.trim().parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Some(percent),
        // A typing error must not direct visitors to a new site.
        _ => {
            let message = format!("`/percent` must be a number from 0 to 100, not `{}`", text.text);
            reader.add_error(&text.position, message);
            None
        }
    }
}

fn read_share(reader: &mut ConfigReader, block: &ConfigBlock) -> ShareConfig {
    let mut share = ShareConfig::default();
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "percent" => {
                share.percent = read_percent(reader, &entry).unwrap_or(share.percent);
            }
            "addresses" => {
                if let Some(block) = reader.read_block(&entry) {
                    share.addresses = read_access_list(reader, block, RuleVerdict::Deny);
                }
            }
            _ => reader.warn_of_unknown_key(&entry, &["percent", "addresses"]),
        }
    }
    share
}

/// The maximum number of categories; more are ignored, as documented.
const MAX_CATEGORIES: usize = 8;

fn read_statistics(
    reader: &mut ConfigReader,
    block: &ConfigBlock,
    categories: &mut Vec<StatisticsCategory>,
) {
    for entry in reader.labelled_entries(block) {
        if entry.name() != "categories" {
            reader.warn_of_unknown_key(&entry, &["categories"]);
            continue;
        }
        let Some(inner) = reader.read_block(&entry) else {
            continue;
        };
        for (item, rule) in reader.rule_blocks(inner) {
            if categories.len() >= MAX_CATEGORIES {
                let at = item.position().unwrap_or(&rule.position);
                reader.add_warning(
                    at,
                    format!("only {MAX_CATEGORIES} categories are supported; this one is ignored"),
                );
                continue;
            }
            for entry in reader.labelled_entries(rule) {
                match (entry.name(), reader.read_value(&entry)) {
                    ("glob", Some(text)) => categories.push(StatisticsCategory {
                        name: item.name().unwrap_or_default().to_owned(),
                        glob: DispatcherGlob::new(&text.text),
                    }),
                    ("glob", None) => {}
                    _ => reader.warn_of_unknown_key(&entry, &["glob"]),
                }
            }
        }
    }
}

fn read_sticky(reader: &mut ConfigReader, block: &ConfigBlock, sticky: &mut StickyConfig) {
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "paths" => {
                let paths = reader.plain_values(&entry);
                sticky.paths.extend(paths.iter().map(|text| text.text.clone()));
            }
            "httpOnly" => sticky.is_http_only = reader.read_boolean(&entry).unwrap_or(false),
            "secure" => sticky.is_always_secure = reader.read_boolean(&entry).unwrap_or(false),
            _ => reader.warn_of_unknown_key(&entry, &["paths", "httpOnly", "secure"]),
        }
    }
}
