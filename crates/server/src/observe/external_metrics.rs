//! Metrics of components outside this crate, such as blob stores; included in `/metrics` unchanged.

use parking_lot::RwLock;

type MetricsSource = Box<dyn Fn(&str) -> String + Send + Sync>;

/// The metrics sources besides the instance's own.
#[derive(Default)]
pub(crate) struct ExternalMetrics(RwLock<Vec<MetricsSource>>);

impl ExternalMetrics {
    /// Adds a source.
    pub(crate) fn add(&self, source: MetricsSource) {
        self.0.write().push(source);
    }

    /// Returns the metrics of all sources as text.
    pub(crate) fn metrics_text(&self, role: &str) -> String {
        self.0.read().iter().map(|source| source(role)).collect()
    }
}

impl std::fmt::Debug for ExternalMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watched")
    }
}
