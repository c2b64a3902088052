//! The states of all pools of an instance, for its metrics and its health.

use crate::Instance;
use crate::observe::pool::{PoolState, exhausted_pools, to_prometheus};
use crate::page::image::image_pool_state;

impl Instance {
    /// Adds an external pool to `/metrics`.
    pub fn add_pool_source(&self, source: impl Fn() -> Vec<PoolState> + Send + Sync + 'static) {
        self.external_pools.add(Box::new(source));
    }
}

/// Returns the metrics of all pools as Prometheus text.
pub(crate) fn pool_metrics(instance: &Instance, role: &str) -> String {
    let mut states = pool_states(instance);
    states.extend(image_pool_state(instance));
    to_prometheus(&states, role)
}

/// Names the exhausted pools with their limits: all slots are in use and there are waiters. The pool of pictures is
/// excluded: its slots are the processors, for which requests wait whenever several pictures are rendered.
pub(crate) fn pool_fault(instance: &Instance) -> Option<String> {
    exhausted_pools(&pool_states(instance))
}

/// Returns the pool of requests that render or edit.
pub(crate) fn work_pool_state(instance: &Instance) -> PoolState {
    instance.work_gate.pool_state("work")
}

/// Returns all pools except that of pictures.
fn pool_states(instance: &Instance) -> Vec<PoolState> {
    let mut states = vec![work_pool_state(instance)];
    if let Some(back_ends) = instance.renderer.backends() {
        states.extend(back_ends.counts().into_iter().map(|(name, counts)| PoolState {
            name: format!("back-end-{name}"),
            in_use: counts.in_flight,
            idle: counts.max_connections.saturating_sub(counts.in_flight),
            limit: counts.max_connections,
            waiting: counts.waiting_renders,
            timeouts: counts.failures,
            refused: counts.unanswered,
        }));
    }
    states.extend(instance.external_pools.states());
    states
}
