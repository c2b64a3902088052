//! Health of an instance: every component is checked within a bounded time, even if a component hangs.
//!
//! In: an instance. Out: a [`ReadinessReport`], from which `/health` and `/health/ready` create their responses and
//! statuses.
//!
//! Invariants
//! * A report is complete within [`PROBE_TIMEOUT`]: a component that has not responded by then has failed.
//! * Each component is checked by one task at a time, whatever the number of requests, so a component that hangs blocks
//!   one thread.
//! * No check runs on the threads that serve requests, unless it never blocks.
//!
//! Not here: who may see the reasons, which `health` decides.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tympan_replicate::{agent_topic, read_agents};

use crate::Instance;

/// Total timeout of all checks. Load balancers often wait for one second.
const PROBE_TIMEOUT: Duration = Duration::from_millis(750);
/// How long the result of a dependency check is reused: load balancers check often, and buckets charge per request.
const PROBE_REUSE_PERIOD: Duration = Duration::from_secs(2);
/// Length of an agent's queue above which a warning is reported.
const AGENT_QUEUE_WARN_LENGTH: u64 = 1000;
/// Free bytes on the disk of the home folder below which a warning is reported.
const FREE_BYTES_WARN_LIMIT: u64 = 64 << 20;
/// Number of bytes written to check that the disk is writable.
const WRITE_PROBE_BYTES: usize = 64 << 10;

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

    fn level(&self) -> &'static str {
        match self {
            Self::Healthy => "ok",
            Self::Degraded(_) => "warn",
            Self::Failed(_) => "fail",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Healthy => None,
            Self::Degraded(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// A component and its health.
pub(crate) type HealthCheckResult = (&'static str, ComponentHealth);

/// The set of components to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadinessScope {
    /// All components.
    AllParts,
    /// The components required to serve requests.
    RequestParts,
}

/// The health of the components of an instance.
#[derive(Debug, Clone)]
pub(crate) struct ReadinessReport(Vec<HealthCheckResult>);

impl ReadinessReport {
    /// Returns true if a component has failed.
    fn is_failed(&self) -> bool {
        self.0.iter().any(|(_, condition)| matches!(condition, ComponentHealth::Failed(_)))
    }

    /// Returns the status for load balancers: 503 if a component has failed.
    pub(crate) fn status_code(&self) -> StatusCode {
        if self.is_failed() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    }

    /// Returns the worst health as a keyword: `ok`, `warn` or `fail`.
    pub(crate) fn worst_level(&self) -> &'static str {
        if self.is_failed() {
            return "fail";
        }
        let is_well = self.0.iter().all(|(_, condition)| *condition == ComponentHealth::Healthy);
        if is_well { "ok" } else { "warn" }
    }

    /// Describes all components with the reasons.
    pub(crate) fn checks_json(&self) -> Value {
        let check = |(name, condition): &HealthCheckResult| {
            json!({
                "name": name,
                "ok": *condition == ComponentHealth::Healthy,
                "level": condition.level(),
                "reason": condition.reason(),
            })
        };
        self.0.iter().map(check).collect()
    }
}

/// Checks a dependency of the instance and returns the reason if it does not work. May block.
type DependencyProbe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Receives the results of a check and the time at which it ended.
type ProbeRun = watch::Receiver<Option<(Vec<HealthCheckResult>, Instant)>>;

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
    /// Starts a check, unless one is running or one that ended less than `reused_for` ago can be reused.
    fn begin_probe<F>(
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
    fn begin_single_probe<F>(&self, name: &'static str, look: F) -> (&'static str, ProbeRun)
    where
        F: Future<Output = ComponentHealth> + Send + 'static,
    {
        self.begin_probe(name, Duration::ZERO, async move { vec![(name, look.await)] })
    }

    /// Starts the checks of all dependencies.
    fn begin_dependency_probes(&self) -> Vec<(&'static str, ProbeRun)> {
        let dependencies = self.dependencies.read().clone();
        let ask = |(name, dependency): (&'static str, DependencyProbe)| {
            let probe = run_blocking_probe(move || ComponentHealth::from_result(dependency()));
            self.begin_probe(name, PROBE_REUSE_PERIOD, async move { vec![(name, probe.await)] })
        };
        dependencies.into_iter().map(ask).collect()
    }
}

/// Returns the results of a check that are available by a deadline.
async fn probe_results(
    deadline: Instant,
    (name, mut run): (&'static str, ProbeRun),
) -> Vec<HealthCheckResult> {
    let failed = |reason: String| vec![(name, ComponentHealth::Failed(reason))];
    match tokio::time::timeout_at(deadline, run.wait_for(Option::is_some)).await {
        Ok(Ok(results)) => results.as_ref().map(|(checks, _)| checks.clone()).unwrap_or_default(),
        Ok(Err(_)) => failed("the look at it has ended without an answer".to_owned()),
        Err(_) => failed(format!("no answer within {} ms", PROBE_TIMEOUT.as_millis())),
    }
}

/// Runs a check that may block on a thread of its own.
async fn run_blocking_probe(
    look: impl FnOnce() -> ComponentHealth + Send + 'static,
) -> ComponentHealth {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|error| ComponentHealth::Failed(error.to_string()))
}

/// Checks the components of an instance.
pub(crate) async fn check_readiness(
    instance: &Arc<Instance>,
    scope: ReadinessScope,
) -> ReadinessReport {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let probes = &instance.readiness_probes;
    let mut runs = vec![
        probes.begin_single_probe("content", content_health(Arc::clone(instance))),
        probes.begin_single_probe("state", state_database_health(Arc::clone(instance))),
    ];
    runs.extend(probes.begin_dependency_probes());
    let mut at_once = Vec::new();
    if scope == ReadinessScope::AllParts {
        let home = instance.spool_folder.clone();
        runs.extend([
            probes.begin_single_probe("disk", run_blocking_probe(move || disk_health(&home))),
            probes.begin_single_probe("replication", replication_health(Arc::clone(instance))),
            probes.begin_single_probe("search", search_health(Arc::clone(instance))),
            probes.begin_single_probe("jobs", job_health(Arc::clone(instance))),
            probes.begin_probe("mounts", Duration::ZERO, mount_health(Arc::clone(instance))),
        ]);
        at_once.push(("pools", crate::observe::pool::pool_fault(instance)));
        at_once.extend(instance.health_checks.current_faults());
        let fragments = instance.renderer.fragments();
        at_once.push((
            "fragments",
            fragments.and_then(|fragments| fragments.report(0).operator_warning()),
        ));
    }
    let mut checks = Vec::new();
    for run in runs {
        checks.extend(probe_results(deadline, run).await);
    }
    let warnings =
        at_once.into_iter().map(|(name, fault)| (name, ComponentHealth::from_warning(fault)));
    checks.extend(warnings);
    ReadinessReport(checks)
}

/// Waits for a future no longer than for a check, for responses that can omit its output.
pub(crate) async fn within_probe_timeout<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PROBE_TIMEOUT, work).await.ok()
}

async fn content_health(instance: Arc<Instance>) -> ComponentHealth {
    run_blocking_probe(move || {
        let read = instance.repository.snapshot().map(drop);
        ComponentHealth::from_result(read.map_err(|error| error.to_string()))
    })
    .await
}

async fn state_database_health(instance: Arc<Instance>) -> ComponentHealth {
    // Any small table is sufficient.
    let read = instance.queues.paused_queues().await.map(drop);
    ComponentHealth::from_result(read.map_err(|error| error.to_string()))
}

/// Checks that the disk of a folder is writable, and how much space is free.
fn disk_health(folder: &Path) -> ComponentHealth {
    let file = folder.join("health-probe");
    let written = write_probe_file(&file);
    std::fs::remove_file(&file).ok();
    if let Err(error) = written {
        return ComponentHealth::Failed(format!(
            "nothing can be written below the home: {error}; make room, or see whether its disk is mounted to be read only"
        ));
    }
    let free = rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    match free {
        Ok(free) if free < FREE_BYTES_WARN_LIMIT => {
            ComponentHealth::Degraded(format!("the disk of the home has {} MiB left", free >> 20))
        }
        _ => ComponentHealth::Healthy,
    }
}

fn write_probe_file(file: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).open(file)?;
    file.write_all(&[0; WRITE_PROBE_BYTES])
}

async fn replication_health(instance: Arc<Instance>) -> ComponentHealth {
    let role = instance.role.name();
    let repository = instance.repository.clone();
    let read = move || {
        let snapshot = repository.snapshot().map_err(|error| error.to_string())?;
        read_agents(&snapshot, role).map_err(|error| error.to_string())
    };
    let agents = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(agents)) => agents,
        Ok(Err(reason)) => return ComponentHealth::Degraded(reason),
        Err(error) => return ComponentHealth::Degraded(error.to_string()),
    };
    let mut faults = Vec::new();
    for agent in agents {
        if let Some(reason) = instance.replicator.blocked_reason(&agent.name) {
            faults.push(format!("agent `{}` is blocked: {reason}", agent.name));
        }
        match instance.queues.count_jobs(&agent_topic(role, &agent.name)).await {
            Ok(count) if count > AGENT_QUEUE_WARN_LENGTH => {
                faults.push(format!("agent `{}` has {count} jobs waiting", agent.name));
            }
            Ok(_) => {}
            Err(error) => faults.push(error.to_string()),
        }
    }
    ComponentHealth::from_warning((!faults.is_empty()).then(|| faults.join("; ")))
}

async fn search_health(instance: Arc<Instance>) -> ComponentHealth {
    crate::observe::search_health::index_health(&instance, SystemTime::now()).await
}

async fn job_health(instance: Arc<Instance>) -> ComponentHealth {
    crate::api::job::queue_health(&instance, SystemTime::now()).await
}

async fn mount_health(instance: Arc<Instance>) -> Vec<HealthCheckResult> {
    let checks = crate::api::mount::mount_checks(&instance).await;
    checks.into_iter().map(|(name, fault)| (name, ComponentHealth::from_warning(fault))).collect()
}

impl Instance {
    /// Adds a check of a dependency without which the instance cannot serve requests, such as a database or a bucket.
    /// It runs when `/health` or `/health/ready` is requested. `ask` may block indefinitely; only one call runs at a
    /// time.
    pub fn add_dependency_probe(
        &self,
        name: &'static str,
        ask: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.readiness_probes.dependencies.write().push((name, Arc::new(ask)));
    }
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
            let reason = "no answer within 750 ms".to_owned();
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

    #[test]
    fn a_disk_that_takes_nothing_has_failed() {
        assert_eq!(
            write_probe_file(Path::new("/dev/full")).unwrap_err().kind(),
            std::io::ErrorKind::StorageFull
        );
        let dir = tempfile::tempdir().unwrap();
        assert!(!matches!(disk_health(dir.path()), ComponentHealth::Failed(_)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let ComponentHealth::Failed(reason) = disk_health(&dir.path().join("absent")) else {
            panic!()
        };
        assert!(reason.starts_with("nothing can be written below the home"), "{reason}");
    }

    #[test]
    fn the_worst_condition_decides() {
        let warning = ("pools", ComponentHealth::Degraded("full".to_owned()));
        let failure = ("content", ComponentHealth::Failed("gone".to_owned()));
        for (checks, status, level) in [
            (vec![("search", ComponentHealth::Healthy)], 200, "ok"),
            (vec![("search", ComponentHealth::Healthy), warning.clone()], 200, "warn"),
            (vec![failure, warning], 503, "fail"),
        ] {
            let report = ReadinessReport(checks);
            assert_eq!((report.status_code().as_u16(), report.worst_level()), (status, level));
        }
    }
}
