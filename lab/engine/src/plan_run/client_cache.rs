//! The browser cache of one user, with the behavior of JMeter's cache manager.
//!
//! A response with `Vary` is valid only for requests with the same values of the headers that it names.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::net::TargetResponseHead;

/// The cache entry of a URL.
#[derive(Debug, Clone, Default)]
struct ClientCacheEntry {
    etag: Option<String>,
    last_modified: Option<String>,
    fresh_until: Option<SystemTime>,
    /// The headers that select the variant; each variant has an entry under its own key.
    vary: Option<String>,
}

/// Cached responses.
#[derive(Debug, Clone, Default)]
pub struct ClientCache(HashMap<String, ClientCacheEntry>);

/// The freshness lifetime of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheFreshnessMode {
    /// Never fresh: each request revalidates the response.
    AlwaysRevalidate,
    /// As specified by `Cache-Control` and `Expires`.
    ExplicitHeaders,
    /// The same; a response with neither is fresh for a tenth of its age, or for a year if that is unknown.
    JMeterHeuristic,
}

/// A response with its request.
#[derive(Debug)]
pub struct CacheableExchange<'a> {
    /// The URL.
    pub url: &'a str,
    /// The request headers.
    pub request_headers: &'a [(Arc<str>, Arc<str>)],
    /// The status.
    pub status: u16,
    /// Status line and headers of the response.
    pub head: &'a TargetResponseHead,
}

/// JMeter's default limit.
const MAX_ENTRIES: usize = 5000;
const UNKNOWN_AGE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

impl ClientCache {
    /// Returns the conditional headers that revalidate a URL.
    pub fn conditional_headers(
        &self,
        url: &str,
        request: &[(Arc<str>, Arc<str>)],
    ) -> Vec<(String, String)> {
        let Some(entry) = self.find_entry(url, request) else { return Vec::new() };
        let mut headers = Vec::new();
        if let Some(date) = &entry.last_modified {
            headers.push(("If-Modified-Since".to_owned(), date.clone()));
        }
        if let Some(etag) = &entry.etag {
            headers.push(("If-None-Match".to_owned(), etag.clone()));
        }
        headers
    }

    /// Returns true if the response for a URL is fresh and no request is needed.
    pub fn is_fresh(&self, url: &str, request: &[(Arc<str>, Arc<str>)], now: SystemTime) -> bool {
        let entry = self.find_entry(url, request);
        entry.and_then(|entry| entry.fresh_until).is_some_and(|until| until > now)
    }

    fn find_entry(&self, url: &str, request: &[(Arc<str>, Arc<str>)]) -> Option<&ClientCacheEntry> {
        let entry = self.0.get(url)?;
        match &entry.vary {
            None => Some(entry),
            Some(vary) => self.0.get(&variant_key(url, vary, request)),
        }
    }

    /// Stores a response.
    pub fn record_response(
        &mut self,
        exchanged: &CacheableExchange<'_>,
        freshness: CacheFreshnessMode,
        now: SystemTime,
    ) {
        let CacheableExchange { url, request_headers: request, status, head } = exchanged;
        if !(200..300).contains(status)
            || (self.0.len() >= MAX_ENTRIES && !self.0.contains_key(*url))
        {
            return;
        }
        let vary = head.header_values("Vary").collect::<Vec<_>>().join(", ");
        if vary.split(',').any(|name| name.trim() == "*") {
            return;
        }
        let control = head.header("Cache-Control").unwrap_or_default().to_ascii_lowercase();
        if control.contains("no-store") {
            return;
        }
        let mut entry = ClientCacheEntry {
            etag: head.header("ETag").map(str::to_owned),
            last_modified: head.header("Last-Modified").map(str::to_owned),
            fresh_until: compute_fresh_until(head, &control, freshness, now),
            vary: None,
        };
        let tells = ["ETag", "Last-Modified", "Expires", "Cache-Control"];
        if !tells.iter().any(|name| head.header(name).is_some()) {
            return;
        }
        if !vary.is_empty() {
            self.0.insert(variant_key(url, &vary, request), entry);
            entry = ClientCacheEntry { vary: Some(vary), ..ClientCacheEntry::default() };
        }
        self.0.insert((*url).to_owned(), entry);
    }
}

/// Returns the time until which a response is fresh.
fn compute_fresh_until(
    head: &TargetResponseHead,
    control: &str,
    freshness: CacheFreshnessMode,
    now: SystemTime,
) -> Option<SystemTime> {
    if freshness == CacheFreshnessMode::AlwaysRevalidate || control.contains("no-cache") {
        return None;
    }
    let max_age = control
        .split(',')
        .find_map(|part| part.trim().strip_prefix("max-age="))
        .and_then(|seconds| seconds.parse().ok())
        .and_then(|seconds| now.checked_add(Duration::from_secs(seconds)));
    let date = |name: &str| {
        head.header(name)
            .map(|date| httpdate::parse_http_date(date).unwrap_or(SystemTime::UNIX_EPOCH))
    };
    let by_age = || {
        let age = match (date("Date"), date("Last-Modified")) {
            (Some(date), Some(modified)) => date.duration_since(modified).unwrap_or_default() / 10,
            _ => UNKNOWN_AGE_LIFETIME,
        };
        (freshness == CacheFreshnessMode::JMeterHeuristic).then(|| now + age)
    };
    max_age.or_else(|| date("Expires")).or_else(by_age)
}

/// Returns the key of the responses to requests that agree in the headers that `vary` names. JMeter compares names
/// case-sensitively.
fn variant_key(url: &str, vary: &str, request: &[(Arc<str>, Arc<str>)]) -> String {
    let mut key = format!("vary-{vary}");
    for name in vary.split(',').map(str::trim) {
        for (_, value) in request.iter().filter(|(header_name, _)| &**header_name == name) {
            key.push('-');
            key.push_str(name);
            key.push('=');
            key.push_str(value);
        }
    }
    format!("{key}-{url}")
}
