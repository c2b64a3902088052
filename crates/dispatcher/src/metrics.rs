//! What the dispatcher counts.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter; the index into [`COUNTERS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    Hits,
    Stale,
    Misses,
    Passes,
    Collapsed,
    Refused,
    Stored,
    StoreFailures,
    RenderFailures,
    Flushes,
    FlushesRefused,
    FilesDeleted,
    FilesMarked,
    Refetches,
    RefetchFailures,
    BytesStored,
}

/// Every counter: name and what a rise means.
pub(crate) const COUNTERS: [(Counter, &str, &str); 16] = [
    (Counter::Hits, "hits", "Requests served from a fresh file; a rise is good."),
    (
        Counter::Stale,
        "stale",
        "Requests served from a file that is being replaced; it follows flushes.",
    ),
    (
        Counter::Misses,
        "misses",
        "Requests whose page was fetched and stored; a rise without flushes means new URLs.",
    ),
    (
        Counter::Passes,
        "passes",
        "Requests forwarded without storing; a rise means that pages are not cacheable.",
    ),
    (
        Counter::Collapsed,
        "collapsed",
        "Requests that waited for another one's fetch; a rise means a herd that was held off.",
    ),
    (
        Counter::Refused,
        "refused",
        "Requests refused by a filter or for their path; a rise may be an attack.",
    ),
    (Counter::Stored, "stored", "Files put into the cache."),
    (
        Counter::StoreFailures,
        "store_failures",
        "Pages that could not be stored; a rise means a full or read-only disk.",
    ),
    (
        Counter::RenderFailures,
        "render_failures",
        "Requests that no render answered; a rise means that renders are down or slow.",
    ),
    (Counter::Flushes, "flushes", "Flushes obeyed."),
    (
        Counter::FlushesRefused,
        "flushes_refused",
        "Flushes from addresses that may not flush; check /allowedClients.",
    ),
    (Counter::FilesDeleted, "files_deleted", "Files and folders that flushes removed."),
    (Counter::FilesMarked, "files_marked", "Files that flushes marked as stale."),
    (Counter::Refetches, "refetches", "Flushed files that were fetched again in the background."),
    (
        Counter::RefetchFailures,
        "refetch_failures",
        "Background fetches given up; visitors fetch these pages instead.",
    ),
    (Counter::BytesStored, "bytes_stored", "Bytes of bodies put into the cache."),
];

/// The counters of a dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    values: [AtomicU64; COUNTERS.len()],
}

impl Metrics {
    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    pub(crate) fn add(&self, counter: Counter, by: u64) {
        if let Some(value) = self.values.get(counter as usize) {
            value.fetch_add(by, Ordering::Relaxed);
        }
    }

    pub(crate) fn value(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize).map_or(0, |value| value.load(Ordering::Relaxed))
    }

    /// Returns the share of requests that no render was asked for, in percent.
    pub(crate) fn hit_ratio(&self) -> f64 {
        let served = self.value(Counter::Hits) + self.value(Counter::Stale);
        let asked = served + self.value(Counter::Misses) + self.value(Counter::Passes);
        #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
        let ratio = served as f64 * 100.0 / asked.max(1) as f64;
        ratio
    }

    /// Returns all counters, and `gauges`, in Prometheus' text format.
    pub(crate) fn to_text(&self, gauges: &[(&str, &str, u64)]) -> String {
        let mut text = String::new();
        let mut write = |name: &str, help: &str, kind: &str, value: u64| {
            let name = format!("tympan_dispatcher_{name}");
            // Writing to a string cannot fail.
            writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}").ok();
        };
        for (counter, name, help) in COUNTERS {
            write(&format!("{name}_total"), help, "counter", self.value(counter));
        }
        for (name, help, value) in gauges {
            write(name, help, "gauge", *value);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNTERS, Counter, Metrics};

    #[test]
    fn every_counter_stands_at_its_own_place() {
        for (index, (counter, name, _)) in COUNTERS.iter().enumerate() {
            assert_eq!(*counter as usize, index, "{name}");
        }
    }

    #[test]
    fn text_and_ratio() {
        let metrics = Metrics::default();
        metrics.add(Counter::Hits, 3);
        metrics.count(Counter::Misses);
        assert!((metrics.hit_ratio() - 75.0).abs() < 1e-9);
        let text = metrics.to_text(&[("queue", "Waiting.", 7)]);
        assert!(text.contains("\ntympan_dispatcher_hits_total 3\n"), "{text}");
        assert!(
            text.ends_with("# TYPE tympan_dispatcher_queue gauge\ntympan_dispatcher_queue 7\n")
        );
    }
}
