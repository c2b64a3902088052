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

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;
use tympan_replicate::{agent_topic, read_agents};

use crate::Instance;
use crate::observe::readiness_probe::{
    ComponentHealth, HealthCheckResult, PROBE_TIMEOUT, probe_results, run_blocking_probe,
};

/// Length of an agent's queue above which a warning is reported.
const AGENT_QUEUE_WARN_LENGTH: u64 = 1000;
/// Free bytes on the disk of the home folder below which a warning is reported.
const FREE_BYTES_WARN_LIMIT: u64 = 64 << 20;
/// Number of bytes written to check that the disk is writable.
const WRITE_PROBE_BYTES: usize = 64 << 10;

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

    /// Returns the health of all components as Prometheus text: for each level of each component whether it is the
    /// present one. Checks of one name are one component.
    pub(crate) fn metrics_text(&self, role: &str) -> String {
        let mut components: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, condition) in &self.0 {
            let level = components.entry(name).or_insert("ok");
            if *level == "ok" || condition.level() == "fail" {
                *level = condition.level();
            }
        }
        let name = "tympan_health_check";
        let mut text = format!(
            "# HELP {name} 1 for the present level of a check of `/health`, which has the reason, 0 for the \
             others.\n# TYPE {name} gauge\n"
        );
        for (check, present) in components {
            for level in ["ok", "warn", "fail"] {
                let value = u8::from(level == present);
                let labels = format!("role=\"{role}\",check=\"{check}\",level=\"{level}\"");
                // Writing to a string cannot fail.
                writeln!(text, "{name}{{{labels}}} {value}").ok();
            }
        }
        text
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
        at_once.push(("pools", crate::observe::pool_report::pool_fault(instance)));
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
            "cannot write to the home folder: {error}; free some space, or check whether its disk is mounted \
             read-only"
        ));
    }
    let free = rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    match free {
        Ok(free) if free < FREE_BYTES_WARN_LIMIT => ComponentHealth::Degraded(format!(
            "the disk of the home folder has {} MiB left",
            free >> 20
        )),
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
        match instance.queues.statistics().count_jobs(&agent_topic(role, &agent.name)).await {
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
        self.readiness_probes.add_dependency(name, Arc::new(ask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(reason.starts_with("cannot write to the home folder"), "{reason}");
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

    #[test]
    fn checks_of_one_name_are_one_series_with_the_worst_level() {
        let mount = |condition| ("mounts", condition);
        let report = ReadinessReport(vec![
            mount(ComponentHealth::Degraded("slow".to_owned())),
            mount(ComponentHealth::Healthy),
            ("content", ComponentHealth::Failed("gone".to_owned())),
        ]);
        let text = report.metrics_text("author");
        let present: Vec<&str> = text.lines().filter(|line| line.ends_with(" 1")).collect();
        assert_eq!(
            present,
            [
                "tympan_health_check{role=\"author\",check=\"content\",level=\"fail\"} 1",
                "tympan_health_check{role=\"author\",check=\"mounts\",level=\"warn\"} 1",
            ]
        );
        assert_eq!(text.lines().count(), 2 + 2 * 3);
    }
}
