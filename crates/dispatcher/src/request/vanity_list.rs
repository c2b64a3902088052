//! Short URLs that are permitted although the filter denies them, listed by a render.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Limited};
use parking_lot::RwLock;

use crate::config::VanityUrlsConfig;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::observe::log::LogLevel;
use crate::upstream::{Upstream, UpstreamRequest};

/// The maximum size of the list in bytes.
const MAX_VANITY_LIST_BYTES: usize = 16 * 1024 * 1024;

/// The URLs of a farm.
#[derive(Debug, Default)]
pub(crate) struct VanityList(RwLock<Arc<HashSet<String>>>);

impl VanityList {
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.0.read().contains(path)
    }

    fn replace_urls(&self, text: &str) -> usize {
        let urls: HashSet<String> = text
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with('/'))
            .map(str::to_owned)
            .collect();
        let count = urls.len();
        *self.0.write() = Arc::new(urls);
        count
    }

    /// Replaces the URLs by those of a fetched list; returns false if the text is no list.
    fn replace_by_list(&self, text: &str) -> bool {
        let is_list = is_vanity_list(text);
        if is_list {
            self.replace_urls(text);
        }
        is_list
    }

    /// Loads the list stored by the last run.
    pub(crate) fn load_file(&self, file: &Path, runtime: &DispatcherRuntime) {
        if let Ok(text) = std::fs::read_to_string(file) {
            let count = self.replace_urls(&text);
            runtime.log.write(&runtime.clock, LogLevel::Info, || {
                format!("Loaded {count} vanity URLs from file {}", file.display())
            });
        }
    }

    /// Fetches the list periodically.
    pub(crate) async fn keep_loading(
        &self,
        upstream: &Upstream,
        urls: &VanityUrlsConfig,
        runtime: &DispatcherRuntime,
    ) {
        if !urls.is_fetched_at_start {
            tokio::time::sleep(urls.fetch_interval).await;
        }
        loop {
            match fetch_vanity_list(upstream, &urls.url).await {
                Some(text) if self.replace_by_list(&text) => {
                    if let Some(file) = &urls.list_file {
                        store_vanity_list(file, &text);
                    }
                }
                Some(_) | None => runtime.log.write(&runtime.clock, LogLevel::Warn, || {
                    format!("Unable to fetch vanity URLs from {}", urls.url)
                }),
            }
            tokio::time::sleep(urls.fetch_interval).await;
        }
    }
}

/// Returns true if a text is a list of paths, if only an empty one. A login page or a report of an error is not.
fn is_vanity_list(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.all(|line| line.starts_with(['/', '#']))
}

async fn fetch_vanity_list(upstream: &Upstream, url: &str) -> Option<String> {
    let response = upstream.send(&UpstreamRequest::get(url.to_owned())).await.ok()?;
    if response.response.status() != http::StatusCode::OK {
        return None;
    }
    let body = Limited::new(response.response.into_body(), MAX_VANITY_LIST_BYTES);
    let bytes = body.collect().await.ok()?.to_bytes();
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Stores the list for the next start; it is written atomically.
fn store_vanity_list(file: &Path, text: &str) {
    let folder = file.parent().unwrap_or(Path::new("."));
    let outcome = tempfile::NamedTempFile::new_in(folder).and_then(|mut temporary| {
        use std::io::Write;
        temporary.write_all(text.as_bytes())?;
        temporary.persist(file).map_err(|error| error.error)
    });
    if let Err(error) = outcome {
        tracing::warn!(file = %file.display(), reason = %error, "cannot store the vanity URLs");
    }
}

#[cfg(test)]
mod tests {
    use super::VanityList;

    #[test]
    fn what_is_no_list_keeps_the_old_one() {
        let list = VanityList::default();
        assert!(list.replace_by_list("/a\r\n\n# comment\n /b \n"));
        for other in ["<html>\n/c\n</html>", "{\"error\": 1}", "/c\nSign in"] {
            assert!(!list.replace_by_list(other), "{other}");
            assert!(list.contains("/a") && list.contains("/b") && !list.contains("/c"), "{other}");
        }
        assert!(list.replace_by_list("/c\n"));
        assert!(list.contains("/c") && !list.contains("/a"));
        assert!(list.replace_by_list(""));
        assert!(!list.contains("/c"));
    }
}
