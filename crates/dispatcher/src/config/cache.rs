//! `/cache`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tympan_notation::ByteSize;

use super::access_list::{AccessList, RuleVerdict, read_access_list, read_path_list};
use super::disk_quota::DiskQuota;
use super::reader::{ConfigEntry, ConfigReader};
use crate::cache::freshness::GracePeriod;
use crate::config::any_syntax::ConfigBlock;
use crate::config::glob::DispatcherGlob;

/// The layout of `.stat` files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatFileLayout {
    /// `.stat` in the document root and in folders down to this level.
    Level(u32),
    /// One file at any path.
    Single(PathBuf),
}

/// The effect of a flush on the files of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// The files are deleted, as documented.
    Delete,
    /// The files are marked stale and served while one request to a render replaces them (`/x-flushMode "soft"`).
    Soft,
}

/// The copies that are revalidated with renders, which need not send unchanged content again (`/x-revalidate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RevalidateMode {
    /// None: every page is requested in full.
    Never,
    /// Copies whose own lifetime ended, by tag or date.
    Expired,
    /// As `Expired`; also copies invalidated by a flush, by strong tag.
    Flushed,
}

/// The cache of a farm.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// The document root; without it nothing is cached.
    pub docroot: Option<PathBuf>,
    /// The layout of `.stat` files.
    pub stat_files: StatFileLayout,
    /// True if requests with credentials are cached.
    pub allow_authorized: bool,
    /// True if a stale file is served when no render responds.
    pub serve_stale_on_error: bool,
    /// The paths that are cached.
    pub rules: AccessList,
    /// The paths that obey `.stat` files.
    pub invalidate: AccessList,
    /// The program that is run for each flush.
    pub invalidate_handler: Option<String>,
    /// The clients that may flush; `None` or an empty list allows everyone.
    pub allowed_clients: Option<AccessList>,
    /// The query parameters to ignore.
    pub ignore_url_params: AccessList,
    /// True if requests for pages to be stored are sent to renders without ignored parameters (`/x-stripIgnored`).
    pub strips_ignored_params: bool,
    /// Parameters whose values create separate pages (`/x-cacheKeyParams`).
    pub key_params: AccessList,
    /// Response headers to store with the file, in lower case.
    pub headers: Vec<String>,
    /// Permissions of new files and folders, before the umask.
    pub mode: u32,
    /// The time for which a stale file is served after the last touch of its `.stat`.
    pub grace_period: Duration,
    /// True if `Cache-Control` and `Expires` of the render limit a file's lifetime.
    pub enable_ttl: bool,
    /// The effect of a flush on the files of its handle.
    pub flush_mode: FlushMode,
    /// The maximum number of concurrent re-fetches of flushed files (`/x-refetchConcurrency`).
    pub refetch_concurrency: u32,
    /// The maximum time for which a marked file is served (`/x-maxStale`).
    pub max_stale: Duration,
    /// The token that authorizes a flush in place of an allowed address (`/x-flushToken`).
    pub flush_token: Option<String>,
    /// The name that a client certificate must have to authorize a flush (`/x-flushCertificate`).
    pub flush_certificate: Option<String>,
    /// The time window in which flushes touch `.stat` files together, at its end (`/x-flushWindow`); zero if each flush
    /// touches them separately.
    pub flush_window: Duration,
    /// True if text bodies are sent in an encoding that the visitor accepts (`/x-compress`).
    pub compress: bool,
    /// The number of most visited flushed pages that are re-fetched automatically (`/x-refetchHot`).
    pub refetch_hot: u32,
    /// The maximum number of automatic re-fetches per minute (`/x-refetchBudget`).
    pub refetch_budget: u32,
    /// The time for which a visitor waits for another visitor's fetch before fetching itself (`/x-collapseWait`).
    pub collapse_wait: Duration,
    /// The disk quota of the document root (`/x-maxSize`, `/x-maxFiles`, `/x-minFree`).
    pub disk_quota: DiskQuota,
    /// The copies that renders may confirm with 304 (`/x-revalidate`).
    pub revalidate: RevalidateMode,
    /// True if `stale-while-revalidate` and `stale-if-error` of renders are honored (`/x-staleDirectives`).
    pub obeys_stale_directives: bool,
    /// True if the rules of HTTP decide what is stored and how long it is used (`/x-http` of the farm).
    pub is_http_cache: bool,
    /// The lifetime of responses that state none, in a farm with `/x-http` (`/x-defaultTTL`); zero for none.
    pub default_lifetime: Duration,
    /// The time for which errors are cached, by status (`/x-negativeTTL`).
    pub negative_ttls: BTreeMap<u16, Duration>,
}

/// The minimum length of a token, so that a random token cannot be guessed.
const MIN_TOKEN_BYTES: usize = 16;

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            docroot: None,
            stat_files: StatFileLayout::Level(0),
            allow_authorized: false,
            serve_stale_on_error: false,
            rules: AccessList::default(),
            invalidate: AccessList::default(),
            invalidate_handler: None,
            allowed_clients: None,
            ignore_url_params: AccessList::default(),
            strips_ignored_params: false,
            key_params: AccessList::default(),
            headers: Vec::new(),
            mode: 0o755,
            grace_period: Duration::ZERO,
            enable_ttl: false,
            flush_mode: FlushMode::Delete,
            refetch_concurrency: 1,
            max_stale: Duration::from_secs(24 * 60 * 60),
            flush_token: None,
            flush_certificate: None,
            flush_window: Duration::ZERO,
            compress: false,
            refetch_hot: 0,
            refetch_budget: 600,
            collapse_wait: Duration::from_secs(30),
            disk_quota: DiskQuota::default(),
            revalidate: RevalidateMode::Never,
            obeys_stale_directives: false,
            is_http_cache: false,
            default_lifetime: Duration::ZERO,
            negative_ttls: BTreeMap::new(),
        }
    }
}

impl CacheConfig {
    /// Switches on what a shared HTTP cache always does.
    pub(super) fn apply_http_rules(&mut self) {
        self.is_http_cache = true;
        self.enable_ttl = true;
        self.obeys_stale_directives = true;
        if self.revalidate == RevalidateMode::Never {
            self.revalidate = RevalidateMode::Expired;
        }
    }

    /// Returns true if a list names a response header; an entry with a star is a pattern.
    pub(crate) fn stores_header(&self, name: &str) -> bool {
        self.headers.iter().any(|own| match own.contains('*') {
            true => DispatcherGlob::new(own).matches(name),
            false => own == name,
        })
    }

    /// Returns the time limits for serving flushed files.
    pub(crate) fn stale_limits(&self) -> GracePeriod {
        GracePeriod { grace: self.grace_period, has_window: !self.flush_window.is_zero() }
    }
}

pub(super) const CACHE_KEYS: [&str; 33] = [
    "docroot",
    "statfile",
    "statfileslevel",
    "allowAuthorized",
    "serveStaleOnError",
    "rules",
    "invalidate",
    "invalidateHandler",
    "allowedClients",
    "ignoreUrlParams",
    "x-cacheKeyParams",
    "x-stripIgnored",
    "headers",
    "mode",
    "gracePeriod",
    "enableTTL",
    "x-flushMode",
    "x-refetchConcurrency",
    "x-maxStale",
    "x-collapseWait",
    "x-flushToken",
    "x-flushCertificate",
    "x-flushWindow",
    "x-compress",
    "x-refetchHot",
    "x-refetchBudget",
    "x-maxSize",
    "x-maxFiles",
    "x-minFree",
    "x-revalidate",
    "x-staleDirectives",
    "x-negativeTTL",
    "x-defaultTTL",
];

pub(super) fn read_cache(reader: &mut ConfigReader, block: &ConfigBlock) -> CacheConfig {
    let mut cache = CacheConfig::default();
    let (mut level, mut single) = (None, None);
    for entry in reader.labelled_entries(block) {
        match entry.name() {
            "docroot" => cache.docroot = reader.read_text(&entry).map(PathBuf::from),
            "statfile" => single = reader.read_text(&entry).filter(|file| !file.is_empty()),
            "statfileslevel" => level = reader.read_number(&entry),
            "allowAuthorized" => {
                cache.allow_authorized = reader.read_boolean(&entry).unwrap_or(false);
            }
            "serveStaleOnError" => {
                cache.serve_stale_on_error = reader.read_boolean(&entry).unwrap_or(false);
            }
            "allowedClients" => cache.allowed_clients = Some(read_allowed_clients(reader, &entry)),
            "rules" | "invalidate" | "ignoreUrlParams" | "x-cacheKeyParams" => {
                // A page invalidated needlessly costs one more rendering; a page not invalidated stays outdated.
                let is_of_flushes = entry.name() == "invalidate";
                let safe = if is_of_flushes { RuleVerdict::Allow } else { RuleVerdict::Deny };
                let block = reader.read_block(&entry);
                let read = |block| match entry.name() {
                    "rules" => read_path_list(reader, block),
                    _ => read_access_list(reader, block, safe),
                };
                let Some(list) = block.map(read) else {
                    continue;
                };
                match entry.name() {
                    "rules" => cache.rules = list,
                    "invalidate" => cache.invalidate = list,
                    "ignoreUrlParams" => cache.ignore_url_params = list,
                    _ => cache.key_params = list,
                }
            }
            "invalidateHandler" => cache.invalidate_handler = reader.read_text(&entry),
            "headers" => {
                cache.headers = reader
                    .plain_values(&entry)
                    .iter()
                    .map(|text| text.text.to_ascii_lowercase())
                    .collect();
            }
            "mode" => cache.mode = reader.read_octal(&entry).unwrap_or(cache.mode),
            "gracePeriod" => cache.grace_period = reader.read_seconds(&entry).unwrap_or_default(),
            "enableTTL" => cache.enable_ttl = reader.read_boolean(&entry).unwrap_or(false),
            _ => read_extension_key(reader, &entry, &mut cache),
        }
    }
    cache.stat_files = match (level, single) {
        (None, Some(file)) => StatFileLayout::Single(PathBuf::from(file)),
        (level, _) => StatFileLayout::Level(level.unwrap_or(0)),
    };
    cache
}

/// Reads `/allowedClients`, which allows everyone only if it is empty.
fn read_allowed_clients(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> AccessList {
    let block = reader.read_block(entry);
    let mut list = match block {
        Some(block) => read_access_list(reader, block, RuleVerdict::Deny),
        None => AccessList::default(),
    };
    if list.rules.is_empty() && block.is_none_or(|block| !block.items.is_empty()) {
        reader.add_warning(
            entry.position(),
            "`/allowedClients` has no rules, so no address may flush",
        );
        list.add_safe_rule(entry.position());
    }
    list
}

fn read_extension_key(reader: &mut ConfigReader, entry: &ConfigEntry<'_>, cache: &mut CacheConfig) {
    match entry.name() {
        "x-flushMode" => match reader.read_text(entry).as_deref() {
            Some("delete") => cache.flush_mode = FlushMode::Delete,
            Some("soft") => cache.flush_mode = FlushMode::Soft,
            Some(other) => reader.add_warning(
                entry.position(),
                format!("`/x-flushMode` must be `delete` or `soft`, not `{other}`"),
            ),
            None => {}
        },
        "x-revalidate" => match reader.read_text(entry).as_deref() {
            Some("0") => cache.revalidate = RevalidateMode::Never,
            Some("expired") => cache.revalidate = RevalidateMode::Expired,
            Some("flushed") => cache.revalidate = RevalidateMode::Flushed,
            Some(other) => reader.add_warning(
                entry.position(),
                format!("`/x-revalidate` must be `0`, `expired` or `flushed`, not `{other}`"),
            ),
            None => {}
        },
        "x-staleDirectives" => {
            cache.obeys_stale_directives = reader.read_boolean(entry).unwrap_or(false);
        }
        "x-negativeTTL" => {
            if let Some(block) = reader.read_block(entry) {
                cache.negative_ttls = read_negative_ttls(reader, block);
            }
        }
        "x-refetchConcurrency" => {
            cache.refetch_concurrency = reader.read_number(entry).unwrap_or(1).max(1);
        }
        "x-stripIgnored" => {
            cache.strips_ignored_params = reader.read_boolean(entry).unwrap_or(false)
        }
        "x-defaultTTL" => cache.default_lifetime = reader.read_seconds(entry).unwrap_or_default(),
        "x-flushWindow" => cache.flush_window = reader.read_seconds(entry).unwrap_or_default(),
        "x-compress" => cache.compress = reader.read_boolean(entry).unwrap_or(false),
        "x-refetchHot" => cache.refetch_hot = reader.read_number(entry).unwrap_or(0),
        "x-refetchBudget" => {
            cache.refetch_budget = reader.read_number(entry).unwrap_or(cache.refetch_budget);
        }
        "x-maxStale" => cache.max_stale = reader.read_seconds(entry).unwrap_or(cache.max_stale),
        "x-collapseWait" => {
            cache.collapse_wait = reader.read_seconds(entry).unwrap_or(cache.collapse_wait);
        }
        "x-maxSize" => {
            cache.disk_quota.max_bytes = read_size(reader, entry).filter(|size| *size > 0)
        }
        "x-maxFiles" => {
            cache.disk_quota.max_files =
                reader.read_number(entry).filter(|count| *count > 0).map(u64::from);
        }
        "x-minFree" => cache.disk_quota.min_free = read_size(reader, entry),
        "x-flushCertificate" => {
            cache.flush_certificate = reader.read_text(entry).filter(|name| !name.is_empty());
        }
        "x-flushToken" => match reader.read_value(entry) {
            Some(token) if token.text.len() >= MIN_TOKEN_BYTES => {
                cache.flush_token = Some(token.text.clone());
            }
            Some(token) => reader.add_error(
                &token.position,
                format!("`/x-flushToken` needs at least {MIN_TOKEN_BYTES} characters"),
            ),
            None => {}
        },
        _ => reader.warn_of_unknown_key(entry, &CACHE_KEYS),
    }
}

/// The maximum time for which an error is cached.
const MAX_NEGATIVE_TTL: Duration = Duration::from_secs(60 * 60);

fn read_negative_ttls(reader: &mut ConfigReader, block: &ConfigBlock) -> BTreeMap<u16, Duration> {
    let mut negative = BTreeMap::new();
    for entry in reader.labelled_entries(block) {
        let status = entry.name().parse::<u16>().ok();
        let Some(status) = status.filter(|status| matches!(status, 404 | 410 | 500..=599)) else {
            let message =
                format!("`/{}` is not `/404`, `/410` or one of `/500` to `/599`", entry.name());
            reader.add_warning(entry.position(), message);
            continue;
        };
        match reader.read_seconds(&entry) {
            Some(time) if time > MAX_NEGATIVE_TTL => {
                let seconds = MAX_NEGATIVE_TTL.as_secs();
                let message =
                    format!("`/{status}` must be at most {seconds} seconds; the maximum is used");
                reader.add_warning(entry.position(), message);
                negative.insert(status, MAX_NEGATIVE_TTL);
            }
            Some(time) if !time.is_zero() => drop(negative.insert(status, time)),
            _ => {}
        }
    }
    negative
}

fn read_size(reader: &mut ConfigReader, entry: &ConfigEntry<'_>) -> Option<u64> {
    let text = reader.read_value(entry)?;
    let size = text.text.parse().ok().map(ByteSize::as_bytes);
    if size.is_none() {
        let message =
            format!("`/{}` must be a size such as `20 GiB`, not `{}`", entry.name(), text.text);
        reader.add_error(&text.position, message);
    }
    size
}
