//! Checks of components within a bounded time, each by one task.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

/// Total timeout of all checks. Load balancers often wait for one second.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(750);
/// How long the result of a dependency check is reused: load balancers check often, and buckets charge per request.
const PROBE_REUSE_PERIOD: Duration = Duration::from_secs(2);

/// The health of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ComponentHealth {
    /// The component works.
    Healthy,
    /// The component works but needs attention.
    Degraded(String),
    /// The component does not work.
    Failed(String),
}

impl ComponentHealth {
    /// Converts a fault to `Degraded`.
    pub(crate) fn from_warning(fault: Option<String>) -> Self {
        fault.map_or(Self::Healthy, Self::Degraded)
    }

    /// Converts an error to `Failed`.
    pub(crate) fn from_result(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Healthy)
    }

    /// Returns the health as a keyword: `ok`, `warn` or `fail`.
    pub(super) fn level(&self) -> &'static str {
        match self {
            Self::Healthy => "ok",
            Self::Degraded(_) => "warn",
            Self::Failed(_) => "fail",
        }
    }

    /// Returns the reason, unless the component works.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Healthy => None,
            Self::Degraded(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// A component and its health.
pub(crate) type HealthCheckResult = (&'static str, ComponentHealth);

/// Checks a dependency of the instance and returns the reason if it does not work. May block.
pub(super) type DependencyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Receives the results of a check and the time at which it ended.
pub(super) type ProbeRun = watch::Receiver<Option<(Vec<HealthCheckResult>, Instant)>>;

/// The running checks, and the external dependencies.
#[derive(Default)]
pub(crate) struct ReadinessProbes {
    runs: Mutex<HashMap<&'static str, ProbeRun>>,
    dependencies: RwLock<Vec<(&'static str, DependencyProbe)>>,
}

impl std::fmt::Debug for ReadinessProbes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

impl ReadinessProbes {
    /// Adds a dependency.
    pub(super) fn add_dependency(&self, name: &'static str, probe: DependencyProbe) {
        self.dependencies.write().push((name, probe));
    }

    /// Starts a check, unless one is running or one that ended less than `reused_for` ago can be reused.
    pub(super) fn begin_probe<F>(
        &self,
        name: &'static str,
        reused_for: Duration,
        look: F,
    ) -> (&'static str, ProbeRun)
    where
        F: Future<Output = Vec<HealthCheckResult>> + Send + 'static,
    {
        let mut runs = self.runs.lock();
        if let Some(run) = runs.get(name) {
            let is_usable = match &*run.borrow() {
                Some((_, ended)) => ended.elapsed() < reused_for,
                // A check that panicked has dropped its sender.
                None => run.has_changed().is_ok(),
            };
            if is_usable {
                return (name, run.clone());
            }
        }
        let (tell, result_receiver) = watch::channel(None);
        runs.insert(name, result_receiver.clone());
        tokio::spawn(async move {
            let checks = look.await;
            tell.send_replace(Some((checks, Instant::now())));
        });
        (name, result_receiver)
    }

    /// Starts a check with a single result.
    pub(super) fn begin_single_probe<F>(
        &self,
        name: &'static str,
        look: F,
    ) -> (&'static str, ProbeRun)
    where
        F: Future<Output = ComponentHealth> + Send + 'static,
    {
        self.begin_probe(name, Duration::ZERO, async move { vec![(name, look.await)] })
    }

    /// Starts the checks of all dependencies.
    pub(super) fn begin_dependency_probes(&self) -> Vec<(&'static str, ProbeRun)> {
        let dependencies = self.dependencies.read().clone();
        let ask = |(name, dependency): (&'static str, DependencyProbe)| {
            let probe = run_blocking_probe(move || ComponentHealth::from_result(dependency()));
            self.begin_probe(name, PROBE_REUSE_PERIOD, async move { vec![(name, probe.await)] })
        };
        dependencies.into_iter().map(ask).collect()
    }
}

/// Returns the results of a check that are available by a deadline.
pub(super) async fn probe_results(
    deadline: Instant,
    (name, mut run): (&'static str, ProbeRun),
) -> Vec<HealthCheckResult> {
    let failed = |reason: String| vec![(name, ComponentHealth::Failed(reason))];
    match tokio::time::timeout_at(deadline, run.wait_for(Option::is_some)).await {
        Ok(Ok(results)) => results.as_ref().map(|(checks, _)| checks.clone()).unwrap_or_default(),
        Ok(Err(_)) => failed("the check ended without a result".to_owned()),
        Err(_) => failed(format!("no response within {} ms", PROBE_TIMEOUT.as_millis())),
    }
}

/// Runs a check that may block on a thread of its own.
pub(super) async fn run_blocking_probe(
    look: impl FnOnce() -> ComponentHealth + Send + 'static,
) -> ComponentHealth {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|error| ComponentHealth::Failed(error.to_string()))
}

/// Waits for a future no longer than for a check, for responses that can omit its output.
pub(crate) async fn within_probe_timeout<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PROBE_TIMEOUT, work).await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_hangs_has_failed_and_is_asked_by_one_task() {
        let probes = ReadinessProbes::default();
        let probe_count = Arc::new(AtomicUsize::new(0));
        let (answer_sender, answered) = watch::channel(false);
        for _ in 0..3 {
            let (probe_count, mut answered) = (Arc::clone(&probe_count), answered.clone());
            let run = probes.begin_single_probe("bucket", async move {
                probe_count.fetch_add(1, Ordering::SeqCst);
                answered.wait_for(|answered| *answered).await.ok();
                ComponentHealth::Healthy
            });
            let results = probe_results(Instant::now() + PROBE_TIMEOUT, run).await;
            let reason = "no response within 750 ms".to_owned();
            assert_eq!(results, [("bucket", ComponentHealth::Failed(reason))]);
        }
        assert_eq!(probe_count.load(Ordering::SeqCst), 1);
        answer_sender.send_replace(true);
        let run = probes.begin_single_probe("bucket", async { ComponentHealth::Healthy });
        assert_eq!(
            probe_results(Instant::now() + PROBE_TIMEOUT, run).await,
            [("bucket", ComponentHealth::Healthy)]
        );
        let run = probes
            .begin_single_probe("bucket", async { ComponentHealth::Degraded("slow".to_owned()) });
        let results = probe_results(Instant::now() + PROBE_TIMEOUT, run).await;
        assert_eq!(results, [("bucket", ComponentHealth::Degraded("slow".to_owned()))]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_a_dependency_is_reused_for_a_moment() {
        let probes = ReadinessProbes::default();
        let begin = |condition: ComponentHealth| {
            let look = async move { vec![("bucket", condition)] };
            probe_results(
                Instant::now() + PROBE_TIMEOUT,
                probes.begin_probe("bucket", PROBE_REUSE_PERIOD, look),
            )
        };
        let failed_health = || ComponentHealth::Failed("gone".to_owned());
        assert_eq!(begin(ComponentHealth::Healthy).await, [("bucket", ComponentHealth::Healthy)]);
        assert_eq!(begin(failed_health()).await, [("bucket", ComponentHealth::Healthy)]);
        tokio::time::advance(PROBE_REUSE_PERIOD).await;
        assert_eq!(begin(failed_health()).await, [("bucket", failed_health())]);
    }
}
