//! The metrics of the connections of clients, in one table: name, meaning of an increase, and counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_web::listen::ListenerCounters;

/// A metric that shows when more clients hold connections than allowed, as name, description and counter.
type ConnectionMetricSpec = (&'static str, &'static str, fn(&ListenerCounters) -> &AtomicU64);

const CONNECTION_METRICS: [ConnectionMetricSpec; 3] = [
    (
        "tympan_connections_saturated_total",
        "Connections that arrived while all connection slots were in use; raise max_connections if this \
         repeats.",
        |counters| &counters.saturated,
    ),
    (
        "tympan_connections_evicted_total",
        "Idle connections closed because others were waiting; raise max_connections.",
        |counters| &counters.evicted,
    ),
    (
        "tympan_connections_released_total",
        "Connections closed after a response because few connection slots were free; raise max_connections.",
        |counters| &counters.closed_when_scarce,
    ),
];

/// Returns a source that writes the counters of the main listener as Prometheus text.
pub fn connection_metrics_source(
    counters: Arc<ListenerCounters>,
) -> impl Fn(&str) -> String + Send + Sync {
    move |role| {
        let line = |(name, help, read): &ConnectionMetricSpec| {
            let value = read(&counters).load(Ordering::Relaxed);
            format!(
                "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n"
            )
        };
        CONNECTION_METRICS.iter().map(line).collect()
    }
}
