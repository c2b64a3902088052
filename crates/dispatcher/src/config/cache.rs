//! `/cache`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::access::{AccessList, Verdict, read_list};
use super::bounds::{DiskBounds, parse_size};
use super::read::{Entry, Reader};
use crate::any::Block;
use crate::freshness::Patience;

/// Which `.stat` files there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatFiles {
    /// `.stat` in the document root and in folders down to this level.
    Level(u32),
    /// One file anywhere.
    Single(PathBuf),
}

/// What a flush does to the files of its handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// They are deleted, as documented.
    Delete,
    /// They are marked stale and served while one render replaces them (`/x-flushMode "soft"`).
    Soft,
}

/// Which copies are offered to renders, that they need not send again what did not change (`/x-revalidate`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revalidate {
    /// None: every page is asked for as a whole.
    Never,
    /// Those whose own time ran out, by tag or date.
    Expired,
    /// These, and by strong tags also those that a flush made out of date.
    Flushed,
}

/// The cache of a farm.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Where files live; without it nothing is cached.
    pub docroot: Option<PathBuf>,
    /// Which `.stat` files count.
    pub stat_files: StatFiles,
    /// Whether requests with credentials are cached.
    pub allow_authorized: bool,
    /// Whether a stale file is served when no render answers.
    pub serve_stale_on_error: bool,
    /// Which paths are cached.
    pub rules: AccessList,
    /// Which paths obey `.stat` files.
    pub invalidate: AccessList,
    /// The program to call for each flush.
    pub invalidate_handler: Option<String>,
    /// Who may flush; `None` or empty is everyone.
    pub allowed_clients: Option<AccessList>,
    /// Parameters to ignore.
    pub ignore_url_params: AccessList,
    /// Whether renders are asked for pages to be stored without ignored parameters (`/x-stripIgnored`).
    pub strips_ignored: bool,
    /// Parameters whose values make pages of their own (`/x-cacheKeyParams`).
    pub key_params: AccessList,
    /// Response headers to store beside the file, in lower case.
    pub headers: Vec<String>,
    /// Permissions of new files and folders, before the umask.
    pub mode: u32,
    /// How long a stale file is served after the last touch of its `.stat`.
    pub grace_period: Duration,
    /// Whether `Cache-Control` and `Expires` of the render end a file's life.
    pub enable_ttl: bool,
    /// What a flush does to the files of its handle.
    pub flush_mode: FlushMode,
    /// How many flushed files are fetched again at once (`/x-refetchConcurrency`).
    pub refetch_concurrency: u32,
    /// How long a marked file is served at most (`/x-maxStale`).
    pub max_stale: Duration,
    /// What a flush may show in place of an allowed address (`/x-flushToken`).
    pub flush_token: Option<String>,
    /// The name for which a client's certificate must be made out so that it may flush (`/x-flushCertificate`).
    pub flush_certificate: Option<String>,
    /// Flushes of so long a time touch `.stat` files together, at its end (`/x-flushWindow`); zero for each by itself.
    pub flush_window: Duration,
    /// Whether bodies of text are sent in an encoding that the visitor takes (`/x-compress`).
    pub compress: bool,
    /// How many of the most visited pages that a flush concerns are fetched again by themselves (`/x-refetchHot`).
    pub refetch_hot: u32,
    /// How many pages are fetched again by themselves in a minute (`/x-refetchBudget`).
    pub refetch_budget: u32,
    /// How long a visitor waits for another visitor's fetch before fetching itself (`/x-collapseWait`).
    pub collapse_wait: Duration,
    /// What the document root may take of the disk (`/x-maxSize`, `/x-maxFiles`, `/x-minFree`).
    pub bounds: DiskBounds,
    /// Which copies renders may confirm with 304 (`/x-revalidate`).
    pub revalidate: Revalidate,
    /// Whether `stale-while-revalidate` and `stale-if-error` of renders count (`/x-staleDirectives`).
    pub obeys_stale_directives: bool,
    /// How long errors are remembered, by their status (`/x-negativeTTL`).
    pub negative: BTreeMap<u16, Duration>,
}

/// A token of random characters that nobody guesses.
const MIN_TOKEN_BYTES: usize = 16;

impl Default for Cache {
    fn default() -> Self {
        Self {
            docroot: None,
            stat_files: StatFiles::Level(0),
            allow_authorized: false,
            serve_stale_on_error: false,
            rules: AccessList::default(),
            invalidate: AccessList::default(),
            invalidate_handler: None,
            allowed_clients: None,
            ignore_url_params: AccessList::default(),
            strips_ignored: false,
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
            bounds: DiskBounds::default(),
            revalidate: Revalidate::Never,
            obeys_stale_directives: false,
            negative: BTreeMap::new(),
        }
    }
}

impl Cache {
    /// Returns how long flushed files stay in use.
    pub(crate) fn patience(&self) -> Patience {
        Patience { grace: self.grace_period, has_window: !self.flush_window.is_zero() }
    }
}

pub(super) const CACHE_KEYS: [&str; 32] = [
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
];

pub(super) fn read_cache(reader: &mut Reader, block: &Block) -> Cache {
    let mut cache = Cache::default();
    let (mut level, mut single) = (None, None);
    for entry in reader.entries(block) {
        match entry.name() {
            "docroot" => cache.docroot = reader.text(&entry).map(PathBuf::from),
            "statfile" => single = reader.text(&entry).filter(|file| !file.is_empty()),
            "statfileslevel" => level = reader.number(&entry),
            "allowAuthorized" => {
                cache.allow_authorized = reader.boolean(&entry).unwrap_or(false);
            }
            "serveStaleOnError" => {
                cache.serve_stale_on_error = reader.boolean(&entry).unwrap_or(false);
            }
            "allowedClients" => cache.allowed_clients = Some(read_clients(reader, &entry)),
            "rules" | "invalidate" | "ignoreUrlParams" | "x-cacheKeyParams" => {
                // A page that goes out of date for nothing is drawn once more; one that does not stays old.
                let is_of_flushes = entry.name() == "invalidate";
                let safe = if is_of_flushes { Verdict::Allow } else { Verdict::Deny };
                let block = reader.block(&entry);
                let Some(list) = block.map(|block| read_list(reader, block, safe)) else {
                    continue;
                };
                match entry.name() {
                    "rules" => cache.rules = list,
                    "invalidate" => cache.invalidate = list,
                    "ignoreUrlParams" => cache.ignore_url_params = list,
                    _ => cache.key_params = list,
                }
            }
            "invalidateHandler" => cache.invalidate_handler = reader.text(&entry),
            "headers" => {
                cache.headers = reader
                    .strings(&entry)
                    .iter()
                    .map(|text| text.text.to_ascii_lowercase())
                    .collect();
            }
            "mode" => cache.mode = reader.octal(&entry).unwrap_or(cache.mode),
            "gracePeriod" => cache.grace_period = reader.seconds(&entry).unwrap_or_default(),
            "enableTTL" => cache.enable_ttl = reader.boolean(&entry).unwrap_or(false),
            _ => read_extension(reader, &entry, &mut cache),
        }
    }
    cache.stat_files = match (level, single) {
        (None, Some(file)) => StatFiles::Single(PathBuf::from(file)),
        (level, _) => StatFiles::Level(level.unwrap_or(0)),
    };
    cache
}

/// Reads `/allowedClients`, which is for everyone only where nothing stands in it.
fn read_clients(reader: &mut Reader, entry: &Entry<'_>) -> AccessList {
    let block = reader.block(entry);
    let mut list = match block {
        Some(block) => read_list(reader, block, Verdict::Deny),
        None => AccessList::default(),
    };
    if list.rules.is_empty() && block.is_none_or(|block| !block.items.is_empty()) {
        reader.warn(entry.at(), "`/allowedClients` holds no rule, so no address may flush");
        list.add_safe_rule(entry.at());
    }
    list
}

fn read_extension(reader: &mut Reader, entry: &Entry<'_>, cache: &mut Cache) {
    match entry.name() {
        "x-flushMode" => match reader.text(entry).as_deref() {
            Some("delete") => cache.flush_mode = FlushMode::Delete,
            Some("soft") => cache.flush_mode = FlushMode::Soft,
            Some(other) => reader
                .warn(entry.at(), format!("`/x-flushMode` is `delete` or `soft`, not `{other}`")),
            None => {}
        },
        "x-revalidate" => match reader.text(entry).as_deref() {
            Some("0") => cache.revalidate = Revalidate::Never,
            Some("expired") => cache.revalidate = Revalidate::Expired,
            Some("flushed") => cache.revalidate = Revalidate::Flushed,
            Some(other) => reader.warn(
                entry.at(),
                format!("`/x-revalidate` is `0`, `expired` or `flushed`, not `{other}`"),
            ),
            None => {}
        },
        "x-staleDirectives" => {
            cache.obeys_stale_directives = reader.boolean(entry).unwrap_or(false);
        }
        "x-negativeTTL" => {
            if let Some(block) = reader.block(entry) {
                cache.negative = read_negative(reader, block);
            }
        }
        "x-refetchConcurrency" => {
            cache.refetch_concurrency = reader.number(entry).unwrap_or(1).max(1);
        }
        "x-stripIgnored" => cache.strips_ignored = reader.boolean(entry).unwrap_or(false),
        "x-flushWindow" => cache.flush_window = reader.seconds(entry).unwrap_or_default(),
        "x-compress" => cache.compress = reader.boolean(entry).unwrap_or(false),
        "x-refetchHot" => cache.refetch_hot = reader.number(entry).unwrap_or(0),
        "x-refetchBudget" => {
            cache.refetch_budget = reader.number(entry).unwrap_or(cache.refetch_budget);
        }
        "x-maxStale" => cache.max_stale = reader.seconds(entry).unwrap_or(cache.max_stale),
        "x-collapseWait" => {
            cache.collapse_wait = reader.seconds(entry).unwrap_or(cache.collapse_wait);
        }
        "x-maxSize" => cache.bounds.max_bytes = read_size(reader, entry).filter(|size| *size > 0),
        "x-maxFiles" => {
            cache.bounds.max_files = reader.number(entry).filter(|count| *count > 0).map(u64::from);
        }
        "x-minFree" => cache.bounds.min_free = read_size(reader, entry),
        "x-flushCertificate" => {
            cache.flush_certificate = reader.text(entry).filter(|name| !name.is_empty());
        }
        "x-flushToken" => match reader.value(entry) {
            Some(token) if token.text.len() >= MIN_TOKEN_BYTES => {
                cache.flush_token = Some(token.text.clone());
            }
            Some(token) => reader.error(
                &token.at,
                format!("`/x-flushToken` needs at least {MIN_TOKEN_BYTES} characters"),
            ),
            None => {}
        },
        _ => reader.unknown(entry, &CACHE_KEYS),
    }
}

/// An error that is remembered for longer is a page that nobody misses.
const MAX_NEGATIVE: Duration = Duration::from_secs(60 * 60);

fn read_negative(reader: &mut Reader, block: &Block) -> BTreeMap<u16, Duration> {
    let mut negative = BTreeMap::new();
    for entry in reader.entries(block) {
        let status = entry.name().parse::<u16>().ok();
        let Some(status) = status.filter(|status| matches!(status, 404 | 410 | 500..=599)) else {
            let message =
                format!("`/{}` is none of `/404`, `/410` and `/500` to `/599`", entry.name());
            reader.warn(entry.at(), message);
            continue;
        };
        match reader.seconds(&entry) {
            Some(time) if time > MAX_NEGATIVE => {
                let seconds = MAX_NEGATIVE.as_secs();
                let message = format!("`/{status}` is at most {seconds} seconds, which count");
                reader.warn(entry.at(), message);
                negative.insert(status, MAX_NEGATIVE);
            }
            Some(time) if !time.is_zero() => drop(negative.insert(status, time)),
            _ => {}
        }
    }
    negative
}

fn read_size(reader: &mut Reader, entry: &Entry<'_>) -> Option<u64> {
    let text = reader.value(entry)?;
    let size = parse_size(&text.text);
    if size.is_none() {
        let message = format!("`/{}` is a size like `20 GiB`, not `{}`", entry.name(), text.text);
        reader.error(&text.at, message);
    }
    size
}
