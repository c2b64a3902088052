//! Counters of parts that this room does not know, such as the places that blobs lie in: shown in `/metrics` as they come.

use parking_lot::RwLock;

type MetricsSource = Box<dyn Fn(&str) -> String + Send + Sync>;

/// What is shown besides the instance's own counters.
#[derive(Default)]
pub(crate) struct ExternalMetrics(RwLock<Vec<MetricsSource>>);

impl ExternalMetrics {
    /// Returns the text of all sources.
    pub(crate) fn metrics_text(&self, role: &str) -> String {
        self.0.read().iter().map(|source| source(role)).collect()
    }
}

impl std::fmt::Debug for ExternalMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}

impl crate::Instance {
    /// Adds what `source` returns for the name of the role, as Prometheus text, to `/metrics`. It must answer without
    /// waiting.
    pub fn add_metrics_source(&self, source: impl Fn(&str) -> String + Send + Sync + 'static) {
        self.external_metrics.0.write().push(Box::new(source));
    }
}
