//! The browser cache of one user, as JMeter's cache manager keeps it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::net::Head;

/// What is known of a URL.
#[derive(Debug, Clone, Default)]
struct Entry {
    etag: Option<String>,
    last_modified: Option<String>,
    fresh_until: Option<SystemTime>,
}

/// Responses that were seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cache(HashMap<String, Entry>);

/// JMeter's default bound.
const MOST: usize = 5000;

impl Cache {
    /// Returns the headers that ask whether a URL has changed.
    pub(crate) fn conditions(&self, url: &str) -> Vec<(String, String)> {
        let Some(entry) = self.0.get(url) else { return Vec::new() };
        let mut headers = Vec::new();
        if let Some(date) = &entry.last_modified {
            headers.push(("If-Modified-Since".to_owned(), date.clone()));
        }
        if let Some(etag) = &entry.etag {
            headers.push(("If-None-Match".to_owned(), etag.clone()));
        }
        headers
    }

    /// Reports whether a URL needs not be asked for.
    pub(crate) fn is_fresh(&self, url: &str, now: SystemTime) -> bool {
        self.0.get(url).and_then(|entry| entry.fresh_until).is_some_and(|until| until > now)
    }

    /// Notes a response.
    pub(crate) fn note(&mut self, url: &str, status: u16, head: &Head, now: SystemTime) {
        if !(200..300).contains(&status) || (self.0.len() >= MOST && !self.0.contains_key(url)) {
            return;
        }
        let control = head.header("Cache-Control").unwrap_or_default().to_ascii_lowercase();
        if control.contains("no-store") {
            return;
        }
        let max_age = control
            .split(',')
            .find_map(|part| part.trim().strip_prefix("max-age="))
            .and_then(|seconds| seconds.parse().ok())
            .map(|seconds| now + Duration::from_secs(seconds));
        let expires = head.header("Expires").and_then(|date| httpdate::parse_http_date(date).ok());
        let is_uncached = control.contains("no-cache");
        let entry = Entry {
            etag: head.header("ETag").map(str::to_owned),
            last_modified: head.header("Last-Modified").map(str::to_owned),
            fresh_until: if is_uncached { None } else { max_age.or(expires) },
        };
        if entry.etag.is_some() || entry.last_modified.is_some() || entry.fresh_until.is_some() {
            self.0.insert(url.to_owned(), entry);
        }
    }
}
