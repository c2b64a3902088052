//! One farm.

use std::path::PathBuf;
use std::time::Duration;

use super::access::{AccessList, Verdict, read_list};
use super::cache::{Cache, read_cache};
use super::filter::{FilterRule, read_filter};
use super::health::{HealthRules, read_health};
use super::read::{Entry, Reader};
use super::render::{Render, read_renders};
use super::variant_limit::{VariantLimit, read_variant_limit};
use super::virtual_host::VirtualHost;
use crate::any::{Block, Key, Position, Value};
use crate::glob::Glob;

/// Which request headers reach the renders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientHeaders {
    /// All that are meant for the other end.
    All,
    /// These, in lower case.
    Only(Vec<String>),
}

/// A group of URLs that renders are compared by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Category {
    /// Its label.
    pub name: String,
    /// The paths that belong to it.
    pub glob: Glob,
}

/// Folders whose visitors stay with one render.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sticky {
    /// The folders.
    pub paths: Vec<String>,
    /// Whether the cookie is hidden from scripts.
    pub is_http_only: bool,
    /// Whether the cookie is always marked `Secure`; otherwise only on TLS.
    pub is_always_secure: bool,
}

/// The visitors that a farm is for, when a new site is shown to some of them first.
#[derive(Debug, Clone, Default)]
pub struct Share {
    /// How many of a hundred visitors.
    pub percent: f64,
    /// Addresses that belong to it in any case.
    pub addresses: AccessList,
}

/// `/vanity_urls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VanityUrls {
    /// Where a render lists them.
    pub url: String,
    /// Where the list is kept.
    pub file: Option<PathBuf>,
    /// How often it is fetched.
    pub delay: Duration,
    /// Whether it is fetched at the start.
    pub loads_on_startup: bool,
}

/// `/sessionmanagement`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sessions {
    /// Where sessions are kept.
    pub directory: PathBuf,
    /// The header that holds the credentials.
    pub header: String,
    /// How long an idle session lives.
    pub timeout: Duration,
}

/// `/auth_checker`.
#[derive(Debug, Clone)]
pub struct AuthChecker {
    /// What is asked.
    pub url: String,
    /// Which paths are asked about.
    pub filter: AccessList,
    /// Which lines of the answer's head reach the visitor.
    pub headers: AccessList,
}

/// A dispatcher site.
#[derive(Debug, Clone)]
pub struct Farm {
    /// Its label.
    pub name: String,
    /// Where it stands.
    pub at: Position,
    /// Whether `X-Dispatcher-Info` is answered.
    pub has_info: bool,
    /// Which request headers reach the renders.
    pub client_headers: ClientHeaders,
    /// For which hosts it stands.
    pub virtual_hosts: Vec<VirtualHost>,
    /// Who draws its pages.
    pub renders: Vec<Render>,
    /// What may pass; `None` is everything.
    pub filter: Option<Vec<FilterRule>>,
    /// Short URLs that pass although the filter denies them.
    pub vanity_urls: Option<VanityUrls>,
    /// Whether flushes are forwarded to the render.
    pub propagates_flushes: bool,
    /// What is cached.
    pub cache: Option<Cache>,
    /// Who is logged in.
    pub sessions: Option<Sessions>,
    /// Who may see what is cached.
    pub auth_checker: Option<AuthChecker>,
    /// Groups of URLs that renders are compared by, at most eight.
    pub categories: Vec<Category>,
    /// Whose visitors stay with one render.
    pub sticky: Sticky,
    /// The page that tells whether a render is well.
    pub health_check: Option<String>,
    /// How often each render is asked for that page, if at all (`/x-interval`).
    pub probe_interval: Option<Duration>,
    /// After how many bad answers in a row a render is asked last (`/x-failures`).
    pub probe_failures: u32,
    /// The pause between rounds of attempts.
    pub retry_delay: Duration,
    /// How many rounds of attempts there are.
    pub rounds: u32,
    /// What a failed connection adds to a render's score.
    pub unavailable_penalty: Duration,
    /// Whether another render is asked after an error.
    pub has_failover: bool,
    /// Which visitors the farm is for, if not for all (`/x-share`).
    pub share: Option<Share>,
    /// Whether every answer tells by `Cache-Status` what the cache did (`/x-cacheStatus`).
    pub tells_cache_status: bool,
    /// When a render is left alone (`/x-health`).
    pub health: HealthRules,
    /// How many of a hundred fetched pages other renders are asked for, too, and which (`/x-shadow`).
    pub shadow: Option<(f64, Vec<Render>)>,
    /// Other dispatchers of the same site, which are asked for pages that are absent (`/x-siblings`).
    pub siblings: Vec<Render>,
    /// Whether these are told what is flushed here (`/x-passFlushes`).
    pub passes_flushes: bool,
    /// How many variants of one page clients may make renders draw (`/x-variantLimit`); nothing where that is not bounded.
    pub variant_limit: Option<VariantLimit>,
}

impl Farm {
    pub(super) fn new(key: &Key) -> Self {
        Self {
            name: key.name.clone(),
            at: key.at.clone(),
            has_info: false,
            client_headers: ClientHeaders::Only(Vec::new()),
            virtual_hosts: Vec::new(),
            renders: Vec::new(),
            filter: None,
            vanity_urls: None,
            propagates_flushes: false,
            cache: None,
            sessions: None,
            auth_checker: None,
            categories: Vec::new(),
            sticky: Sticky::default(),
            health_check: None,
            probe_interval: None,
            probe_failures: 2,
            retry_delay: Duration::from_secs(1),
            rounds: 5,
            unavailable_penalty: Duration::from_millis(100),
            has_failover: false,
            share: None,
            tells_cache_status: false,
            health: HealthRules::default(),
            shadow: None,
            siblings: Vec::new(),
            passes_flushes: false,
            variant_limit: Some(VariantLimit::default()),
        }
    }
}

pub(super) const FARM_KEYS: [&str; 27] = [
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
    "x-passFlushes",
    "x-share",
    "x-siblings",
    "x-shadow",
    "x-variantLimit",
];

pub(super) fn read_farm(reader: &mut Reader, key: &Key, block: &Block) -> Farm {
    let farm = read_sections(reader, key, block);
    if farm.virtual_hosts.is_empty() {
        reader.warn(&farm.at, "the farm has no `/virtualhosts`; it is used only as the last farm");
    }
    if farm.renders.is_empty() {
        reader.warn(&farm.at, "the farm has no `/renders`; it can only take flushes");
    }
    farm
}

/// Reads what a farm holds, without asking for what must not be missing.
pub(super) fn read_sections(reader: &mut Reader, key: &Key, block: &Block) -> Farm {
    let mut farm = Farm::new(key);
    for entry in reader.entries(block) {
        match entry.name() {
            "clientheaders" => farm.client_headers = read_client_headers(reader, &entry),
            "virtualhosts" => {
                farm.virtual_hosts = reader
                    .strings(&entry)
                    .iter()
                    .map(|text| VirtualHost::parse(&text.text))
                    .collect();
            }
            "stickyConnectionsFor" => farm.sticky.paths.extend(reader.text(&entry)),
            "x-variantLimit" if matches!(entry.value, Value::Text(_)) => {
                match reader.boolean(&entry) {
                    Some(false) => farm.variant_limit = None,
                    Some(true) => farm.variant_limit = Some(VariantLimit::default()),
                    None => {}
                }
            }
            "renders" | "render" | "filter" | "vanity_urls" | "cache" | "sessionmanagement"
            | "auth_checker" | "statistics" | "stickyConnections" | "health_check" | "x-health"
            | "x-share" | "x-siblings" | "x-shadow" | "x-variantLimit" => {
                match reader.block(&entry) {
                    Some(inner) => read_section(reader, &entry, inner, &mut farm),
                    // Without it, more would be shown than is meant.
                    None if matches!(
                        entry.name(),
                        "filter" | "sessionmanagement" | "auth_checker"
                    ) =>
                    {
                        let message = format!("`/{}` has to be a block", entry.name());
                        reader.error(entry.at(), message);
                    }
                    None => {}
                }
            }
            _ => read_switch(reader, &entry, &mut farm),
        }
    }
    farm
}

fn read_section(reader: &mut Reader, entry: &Entry<'_>, block: &Block, farm: &mut Farm) {
    match entry.name() {
        "renders" | "render" => farm.renders = read_renders(reader, block),
        "filter" => farm.filter = Some(read_filter(reader, block)),
        "vanity_urls" => farm.vanity_urls = read_vanity_urls(reader, entry, block),
        "cache" => farm.cache = Some(read_cache(reader, block)),
        "sessionmanagement" => farm.sessions = read_sessions(reader, entry, block),
        "auth_checker" => farm.auth_checker = read_auth_checker(reader, entry.at(), block),
        "statistics" => read_statistics(reader, block, &mut farm.categories),
        "stickyConnections" => read_sticky(reader, block, &mut farm.sticky),
        "x-health" => farm.health = read_health(reader, block),
        "x-share" => farm.share = Some(read_share(reader, block)),
        "x-siblings" => farm.siblings = read_renders(reader, block),
        "x-shadow" => farm.shadow = read_shadow(reader, block),
        "x-variantLimit" => {
            farm.variant_limit = read_variant_limit(reader, entry.at(), block);
        }
        _ => {
            for entry in reader.entries(block) {
                match entry.name() {
                    "url" => farm.health_check = reader.text(&entry),
                    "x-interval" => {
                        let interval = reader.seconds(&entry);
                        farm.probe_interval = interval.filter(|interval| !interval.is_zero());
                    }
                    "x-failures" => {
                        farm.probe_failures = reader.number(&entry).unwrap_or(2).max(1);
                    }
                    _ => reader.unknown(&entry, &["url", "x-interval", "x-failures"]),
                }
            }
        }
    }
}

fn read_switch(reader: &mut Reader, entry: &Entry<'_>, farm: &mut Farm) {
    match entry.name() {
        "info" => farm.has_info = reader.boolean(entry).unwrap_or(false),
        "propagateSyndPost" => {
            farm.propagates_flushes = reader.boolean(entry).unwrap_or(false);
        }
        "retryDelay" => farm.retry_delay = reader.seconds(entry).unwrap_or(farm.retry_delay),
        "numberOfRetries" => farm.rounds = reader.number(entry).unwrap_or(farm.rounds).max(1),
        "unavailablePenalty" => {
            let tenths = reader.number(entry).unwrap_or(1);
            farm.unavailable_penalty = Duration::from_millis(u64::from(tenths) * 100);
        }
        "failover" => farm.has_failover = reader.boolean(entry).unwrap_or(false),
        "x-cacheStatus" => farm.tells_cache_status = reader.boolean(entry).unwrap_or(false),
        "x-passFlushes" => farm.passes_flushes = reader.boolean(entry).unwrap_or(false),
        "homepage" => reader.warn(entry.at(), "`/homepage` has no effect"),
        _ => reader.unknown(entry, &FARM_KEYS),
    }
}

fn read_client_headers(reader: &mut Reader, entry: &Entry<'_>) -> ClientHeaders {
    let names = reader.strings(entry);
    if names.iter().any(|name| name.text == "*") {
        return ClientHeaders::All;
    }
    ClientHeaders::Only(names.iter().map(|name| name.text.to_ascii_lowercase()).collect())
}

fn read_vanity_urls(reader: &mut Reader, section: &Entry<'_>, block: &Block) -> Option<VanityUrls> {
    let mut vanity = VanityUrls {
        url: String::new(),
        file: None,
        delay: Duration::from_secs(300),
        loads_on_startup: true,
    };
    for entry in reader.entries(block) {
        match entry.name() {
            "url" => vanity.url = reader.text(&entry).unwrap_or_default(),
            "file" => vanity.file = reader.text(&entry).map(PathBuf::from),
            "delay" => vanity.delay = reader.seconds(&entry).unwrap_or(vanity.delay),
            "loadOnStartup" => vanity.loads_on_startup = reader.boolean(&entry).unwrap_or(true),
            _ => reader.unknown(&entry, &["url", "file", "delay", "loadOnStartup"]),
        }
    }
    if !vanity.url.starts_with('/') {
        reader.warn(
            section.at(),
            "`/vanity_urls` needs a `/url` that begins with a slash; the section is skipped",
        );
        return None;
    }
    Some(vanity)
}

fn read_sessions(reader: &mut Reader, section: &Entry<'_>, block: &Block) -> Option<Sessions> {
    let mut sessions = Sessions {
        directory: PathBuf::new(),
        header: "HTTP:authorization".to_owned(),
        timeout: Duration::from_secs(800),
    };
    for entry in reader.entries(block) {
        match entry.name() {
            "directory" => {
                sessions.directory = reader.text(&entry).map(PathBuf::from).unwrap_or_default();
            }
            "header" => sessions.header = reader.text(&entry).unwrap_or(sessions.header),
            "timeout" => sessions.timeout = reader.seconds(&entry).unwrap_or(sessions.timeout),
            "encode" => {
                reader.text(&entry);
            }
            _ => reader.unknown(&entry, &["directory", "header", "timeout", "encode"]),
        }
    }
    if sessions.directory.as_os_str().is_empty() || sessions.directory.parent().is_none() {
        reader.error(section.at(), "`/sessionmanagement` needs a `/directory` other than the root");
    }
    Some(sessions)
}

pub(super) fn read_auth_checker(
    reader: &mut Reader,
    at: &Position,
    block: &Block,
) -> Option<AuthChecker> {
    let mut checker = AuthChecker {
        url: String::new(),
        // To ask for nothing costs a request; not to ask shows to everyone what few may see.
        filter: AccessList::new(Verdict::Allow),
        headers: AccessList::default(),
    };
    for entry in reader.entries(block) {
        match entry.name() {
            "url" => checker.url = reader.text(&entry).unwrap_or_default(),
            "filter" => {
                if let Some(block) = reader.block(&entry) {
                    checker.filter = read_list(reader, block, Verdict::Allow);
                }
            }
            "headers" => {
                if let Some(block) = reader.block(&entry) {
                    checker.headers = read_list(reader, block, Verdict::Deny);
                }
            }
            _ => reader.unknown(&entry, &["url", "filter", "headers"]),
        }
    }
    if checker.filter.rules.is_empty() {
        let message = "`/auth_checker` has no `/filter` with rules, so every page is asked about";
        reader.warn(at, message);
        checker.filter.add_safe_rule(at);
    }
    if !checker.url.starts_with('/') {
        // Serving without the check would show to everyone what few may see.
        reader.error(at, "`/auth_checker` needs a `/url` that begins with a slash");
    }
    Some(checker)
}

fn read_shadow(reader: &mut Reader, block: &Block) -> Option<(f64, Vec<Render>)> {
    let (mut percent, mut renders) = (0.0, Vec::new());
    for entry in reader.entries(block) {
        match entry.name() {
            "percent" => percent = read_percent(reader, &entry).unwrap_or(percent),
            "renders" => {
                if let Some(block) = reader.block(&entry) {
                    renders = read_renders(reader, block);
                }
            }
            _ => reader.unknown(&entry, &["percent", "renders"]),
        }
    }
    if renders.is_empty() {
        reader.warn(&block.at, "`/x-shadow` has no `/renders`, so nothing is compared");
        return None;
    }
    Some((percent, renders))
}

/// Reads a number from 0 to 100.
fn read_percent(reader: &mut Reader, entry: &Entry<'_>) -> Option<f64> {
    let text = reader.value(entry)?;
    match text.text.trim().parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Some(percent),
        // Nobody is sent to a new site by a slip of the pen.
        _ => {
            let message = format!("`/percent` is a number from 0 to 100, not `{}`", text.text);
            reader.error(&text.at, message);
            None
        }
    }
}

fn read_share(reader: &mut Reader, block: &Block) -> Share {
    let mut share = Share::default();
    for entry in reader.entries(block) {
        match entry.name() {
            "percent" => {
                share.percent = read_percent(reader, &entry).unwrap_or(share.percent);
            }
            "addresses" => {
                if let Some(block) = reader.block(&entry) {
                    share.addresses = read_list(reader, block, Verdict::Deny);
                }
            }
            _ => reader.unknown(&entry, &["percent", "addresses"]),
        }
    }
    share
}

/// More categories than these are ignored, as documented.
const MAX_CATEGORIES: usize = 8;

fn read_statistics(reader: &mut Reader, block: &Block, categories: &mut Vec<Category>) {
    for entry in reader.entries(block) {
        if entry.name() != "categories" {
            reader.unknown(&entry, &["categories"]);
            continue;
        }
        let Some(inner) = reader.block(&entry) else {
            continue;
        };
        for (item, rule) in reader.rules(inner) {
            if categories.len() >= MAX_CATEGORIES {
                let at = item.at().unwrap_or(&rule.at);
                reader.warn(
                    at,
                    format!("only {MAX_CATEGORIES} categories count; this one is ignored"),
                );
                continue;
            }
            for entry in reader.entries(rule) {
                match (entry.name(), reader.value(&entry)) {
                    ("glob", Some(text)) => categories.push(Category {
                        name: item.name().unwrap_or_default().to_owned(),
                        glob: Glob::new(&text.text),
                    }),
                    ("glob", None) => {}
                    _ => reader.unknown(&entry, &["glob"]),
                }
            }
        }
    }
}

fn read_sticky(reader: &mut Reader, block: &Block, sticky: &mut Sticky) {
    for entry in reader.entries(block) {
        match entry.name() {
            "paths" => {
                let paths = reader.strings(&entry);
                sticky.paths.extend(paths.iter().map(|text| text.text.clone()));
            }
            "httpOnly" => sticky.is_http_only = reader.boolean(&entry).unwrap_or(false),
            "secure" => sticky.is_always_secure = reader.boolean(&entry).unwrap_or(false),
            _ => reader.unknown(&entry, &["paths", "httpOnly", "secure"]),
        }
    }
}
