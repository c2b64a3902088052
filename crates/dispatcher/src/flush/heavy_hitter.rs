//! The most requested URLs, counted in bounded memory.
//!
//! If a new URL arrives and no slot is free, its counter replaces the smallest one and starts from its value
//! (Space-Saving, Metwally et al. 2005): a URL with more than `1/PLACES` of all requests is always among them, and a
//! count is too high by at most the smallest one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The number of counters.
const MAX_COUNTED_URLS: usize = 256;

/// The sampling interval: one of this number of requests is counted, with this weight, so that most hits do not take
/// the lock.
const SAMPLE_INTERVAL: u64 = 8;

/// The maximum length of a path in bytes; longer paths are truncated to bound the memory.
const MAX_COUNTED_PATH_BYTES: usize = 512;

/// The counters of one farm.
#[derive(Debug, Default)]
pub(crate) struct UrlHeavyHitters {
    request_count: AtomicU64,
    counts: Mutex<HashMap<String, u64>>,
}

impl UrlHeavyHitters {
    /// Counts a request.
    pub(crate) fn count_request(&self, path: &str) {
        if self.request_count.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE_INTERVAL) {
            self.count_path(path);
        }
    }

    fn count_path(&self, path: &str) {
        let path = path.get(..path.floor_char_boundary(MAX_COUNTED_PATH_BYTES)).unwrap_or(path);
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(path) {
            *count += SAMPLE_INTERVAL;
            return;
        }
        let mut start = 0;
        if counts.len() >= MAX_COUNTED_URLS {
            let least = counts.iter().min_by_key(|(_, count)| **count);
            if let Some((least, count)) = least.map(|(path, count)| (path.clone(), *count)) {
                counts.remove(&least);
                start = count;
            }
        }
        counts.insert(path.to_owned(), start + SAMPLE_INTERVAL);
    }

    /// Returns the `count` most requested URLs with their approximate counts.
    pub(crate) fn most_requested(&self, count: usize) -> Vec<(String, u64)> {
        let mut all: Vec<(String, u64)> =
            self.counts.lock().iter().map(|(path, count)| (path.clone(), *count)).collect();
        all.sort_by(|left, right| right.1.cmp(&left.1).then_with(|| left.0.cmp(&right.0)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_COUNTED_PATH_BYTES, MAX_COUNTED_URLS, UrlHeavyHitters};

    #[test]
    fn what_is_asked_most_stays_among_many() {
        let top = UrlHeavyHitters::default();
        for number in 0..20_000 {
            top.count_path(&format!("/rare/{number}"));
            if number % 4 == 0 {
                top.count_path("/hot.html");
            }
        }
        assert_eq!(top.most_requested(1)[0].0, "/hot.html");
        assert_eq!(top.most_requested(MAX_COUNTED_URLS * 2).len(), MAX_COUNTED_URLS);
        top.count_path(&"/ä".repeat(MAX_COUNTED_PATH_BYTES));
        assert!(
            top.most_requested(MAX_COUNTED_URLS)
                .iter()
                .all(|(path, _)| path.len() <= MAX_COUNTED_PATH_BYTES)
        );
    }
}
