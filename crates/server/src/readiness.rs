//! Whether an instance does its work: every part is looked at within a bounded time, whatever hangs.
//!
//! In: an instance. Out: a [`Report`], from which `/health` and `/health/ready` make their answers and statuses.
//!
//! Invariants
//! * A report is there within [`WITHIN`]: what has not answered by then has failed.
//! * Each part is looked at by one task at a time, however many ask, so that a part that hangs holds one thread.
//! * No look runs on the threads that serve requests, unless it waits for nothing.
//!
//! Not here: who is told the reasons, which `health` decides.

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
use tympan_replicate::{agents, topic_of};

use crate::Instance;

/// How long all looks together may take. Balancers often wait for a second.
const WITHIN: Duration = Duration::from_millis(750);
/// For how long what a dependency answered is reused: balancers ask often, and buckets cost by the request.
const REUSED_FOR: Duration = Duration::from_secs(2);
/// The longest that a queue of an agent may grow before it is reported.
const QUEUE_WARN: u64 = 1000;
/// Fewer free bytes on the disk of the home are reported.
const FREE_BYTES_WARN: u64 = 64 << 20;
/// What is written to the disk to see whether it takes anything.
const PROBE_BYTES: usize = 64 << 10;

/// The condition of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It works.
    Well,
    /// It works, and somebody should look.
    Degraded(String),
    /// It does not do its work.
    Failed(String),
}

impl Condition {
    /// Takes a fault for something that somebody should look at.
    pub(crate) fn of_warning(fault: Option<String>) -> Self {
        fault.map_or(Self::Well, Self::Degraded)
    }

    /// Takes an error for a part that does not do its work.
    pub(crate) fn of_result(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Well)
    }

    fn level(&self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Degraded(_) => "warn",
            Self::Failed(_) => "fail",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Well => None,
            Self::Degraded(reason) | Self::Failed(reason) => Some(reason),
        }
    }
}

/// A part and its condition.
pub(crate) type Check = (&'static str, Condition);

/// Which parts are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All.
    Everything,
    /// Those without which no request can be answered.
    Requests,
}

/// The conditions of the parts of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Report(Vec<Check>);

impl Report {
    /// Tells whether a part has failed.
    fn is_failed(&self) -> bool {
        self.0.iter().any(|(_, condition)| matches!(condition, Condition::Failed(_)))
    }

    /// Returns the status by which a balancer goes: 503 if a part does not do its work.
    pub(crate) fn status(&self) -> StatusCode {
        if self.is_failed() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    }

    /// Returns the worst condition as a word: `ok`, `warn` or `fail`.
    pub(crate) fn word(&self) -> &'static str {
        if self.is_failed() {
            return "fail";
        }
        let is_well = self.0.iter().all(|(_, condition)| *condition == Condition::Well);
        if is_well { "ok" } else { "warn" }
    }

    /// Describes all parts with the reasons.
    pub(crate) fn checks(&self) -> Value {
        let check = |(name, condition): &Check| {
            json!({
                "name": name,
                "ok": *condition == Condition::Well,
                "level": condition.level(),
                "reason": condition.reason(),
            })
        };
        self.0.iter().map(check).collect()
    }
}

/// Asks whether something that the instance depends on works, and returns why not. It may block.
type Dependency = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What is told when a look ends, and when that was.
type Run = watch::Receiver<Option<(Vec<Check>, Instant)>>;

/// The looks that run, and the dependencies that are kept elsewhere.
#[derive(Default)]
pub(crate) struct Probes {
    runs: Mutex<HashMap<&'static str, Run>>,
    dependencies: RwLock<Vec<(&'static str, Dependency)>>,
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

impl Probes {
    /// Begins a look, unless one runs or one that ended less than `reused_for` ago will do.
    fn begin<F>(&self, name: &'static str, reused_for: Duration, look: F) -> (&'static str, Run)
    where
        F: Future<Output = Vec<Check>> + Send + 'static,
    {
        let mut runs = self.runs.lock();
        if let Some(run) = runs.get(name) {
            let is_usable = match &*run.borrow() {
                Some((_, ended)) => ended.elapsed() < reused_for,
                // A look that panicked has left nobody who could tell.
                None => run.has_changed().is_ok(),
            };
            if is_usable {
                return (name, run.clone());
            }
        }
        let (tell, told) = watch::channel(None);
        runs.insert(name, told.clone());
        tokio::spawn(async move {
            let checks = look.await;
            tell.send_replace(Some((checks, Instant::now())));
        });
        (name, told)
    }

    /// Begins a look that gives one condition.
    fn begin_one<F>(&self, name: &'static str, look: F) -> (&'static str, Run)
    where
        F: Future<Output = Condition> + Send + 'static,
    {
        self.begin(name, Duration::ZERO, async move { vec![(name, look.await)] })
    }

    /// Begins to ask all dependencies.
    fn begin_dependencies(&self) -> Vec<(&'static str, Run)> {
        let dependencies = self.dependencies.read().clone();
        let ask = |(name, dependency): (&'static str, Dependency)| {
            let asked = blocking(move || Condition::of_result(dependency()));
            self.begin(name, REUSED_FOR, async move { vec![(name, asked.await)] })
        };
        dependencies.into_iter().map(ask).collect()
    }
}

/// Returns what a look found by a deadline.
async fn found_by(deadline: Instant, (name, mut run): (&'static str, Run)) -> Vec<Check> {
    let failed = |reason: String| vec![(name, Condition::Failed(reason))];
    match tokio::time::timeout_at(deadline, run.wait_for(Option::is_some)).await {
        Ok(Ok(found)) => found.as_ref().map(|(checks, _)| checks.clone()).unwrap_or_default(),
        Ok(Err(_)) => failed("the look at it has ended without an answer".to_owned()),
        Err(_) => failed(format!("no answer within {} ms", WITHIN.as_millis())),
    }
}

/// Runs a look that may block on a thread of its own.
async fn blocking(look: impl FnOnce() -> Condition + Send + 'static) -> Condition {
    let looked = tokio::task::spawn_blocking(look).await;
    looked.unwrap_or_else(|error| Condition::Failed(error.to_string()))
}

/// Looks at the parts of an instance.
pub(crate) async fn report(instance: &Arc<Instance>, scope: Scope) -> Report {
    let deadline = Instant::now() + WITHIN;
    let probes = &instance.probes;
    let mut runs = vec![
        probes.begin_one("content", content(Arc::clone(instance))),
        probes.begin_one("state", state(Arc::clone(instance))),
    ];
    runs.extend(probes.begin_dependencies());
    let mut at_once = Vec::new();
    if scope == Scope::Everything {
        let home = instance.spool.clone();
        runs.extend([
            probes.begin_one("disk", blocking(move || disk(&home))),
            probes.begin_one("replication", replication(Arc::clone(instance))),
            probes.begin_one("search", search(Arc::clone(instance))),
            probes.begin_one("jobs", jobs(Arc::clone(instance))),
            probes.begin("mounts", Duration::ZERO, mounts(Arc::clone(instance))),
        ]);
        at_once.push(("pools", crate::pool::fault(instance)));
        at_once.extend(instance.checks.all());
        let fragments = instance.renderer.fragments();
        at_once.push(("fragments", fragments.and_then(|fragments| fragments.report(0).fault())));
    }
    let mut checks = Vec::new();
    for run in runs {
        checks.extend(found_by(deadline, run).await);
    }
    let warnings = at_once.into_iter().map(|(name, fault)| (name, Condition::of_warning(fault)));
    checks.extend(warnings);
    Report(checks)
}

/// Waits for something no longer than for a look, for answers that can do without it.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(WITHIN, work).await.ok()
}

async fn content(instance: Arc<Instance>) -> Condition {
    blocking(move || {
        let read = instance.repository.snapshot().map(drop);
        Condition::of_result(read.map_err(|error| error.to_string()))
    })
    .await
}

async fn state(instance: Arc<Instance>) -> Condition {
    // Any small table will do.
    let read = instance.queues.paused().await.map(drop);
    Condition::of_result(read.map_err(|error| error.to_string()))
}

/// Looks whether the disk of a folder takes a file, and how much is free.
fn disk(folder: &Path) -> Condition {
    let file = folder.join("health-probe");
    let written = write_probe(&file);
    std::fs::remove_file(&file).ok();
    if let Err(error) = written {
        return Condition::Failed(format!(
            "nothing can be written below the home: {error}; make room, or see whether its disk is mounted to be read only"
        ));
    }
    let free = rustix::fs::statvfs(folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    match free {
        Ok(free) if free < FREE_BYTES_WARN => {
            Condition::Degraded(format!("the disk of the home has {} MiB left", free >> 20))
        }
        _ => Condition::Well,
    }
}

fn write_probe(file: &Path) -> std::io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).open(file)?;
    file.write_all(&[0; PROBE_BYTES])
}

async fn replication(instance: Arc<Instance>) -> Condition {
    let role = instance.role.name();
    let repository = instance.repository.clone();
    let read = move || {
        let snapshot = repository.snapshot().map_err(|error| error.to_string())?;
        agents(&snapshot, role).map_err(|error| error.to_string())
    };
    let agents = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(agents)) => agents,
        Ok(Err(reason)) => return Condition::Degraded(reason),
        Err(error) => return Condition::Degraded(error.to_string()),
    };
    let mut faults = Vec::new();
    for agent in agents {
        if let Some(reason) = instance.replicator.blocked(&agent.name) {
            faults.push(format!("agent `{}` is blocked: {reason}", agent.name));
        }
        match instance.queues.count(&topic_of(role, &agent.name)).await {
            Ok(count) if count > QUEUE_WARN => {
                faults.push(format!("agent `{}` has {count} jobs waiting", agent.name));
            }
            Ok(_) => {}
            Err(error) => faults.push(error.to_string()),
        }
    }
    Condition::of_warning((!faults.is_empty()).then(|| faults.join("; ")))
}

async fn search(instance: Arc<Instance>) -> Condition {
    crate::search::condition(&instance, SystemTime::now()).await
}

async fn jobs(instance: Arc<Instance>) -> Condition {
    crate::api::job::condition(&instance, SystemTime::now()).await
}

async fn mounts(instance: Arc<Instance>) -> Vec<Check> {
    let checks = crate::api::mount::checks(&instance).await;
    checks.into_iter().map(|(name, fault)| (name, Condition::of_warning(fault))).collect()
}

impl Instance {
    /// Looks at something that the instance cannot answer requests without, such as a database or a bucket, whenever
    /// `/health` or `/health/ready` is asked. `ask` may block for as long as it likes: one call runs at a time.
    pub fn probe_dependency(
        &self,
        name: &'static str,
        ask: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.probes.dependencies.write().push((name, Arc::new(ask)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_hangs_has_failed_and_is_asked_by_one_task() {
        let probes = Probes::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, answered) = watch::channel(false);
        for _ in 0..3 {
            let (asked, mut answered) = (Arc::clone(&asked), answered.clone());
            let run = probes.begin_one("bucket", async move {
                asked.fetch_add(1, Ordering::SeqCst);
                answered.wait_for(|answered| *answered).await.ok();
                Condition::Well
            });
            let found = found_by(Instant::now() + WITHIN, run).await;
            let reason = "no answer within 750 ms".to_owned();
            assert_eq!(found, [("bucket", Condition::Failed(reason))]);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        answer.send_replace(true);
        let run = probes.begin_one("bucket", async { Condition::Well });
        assert_eq!(found_by(Instant::now() + WITHIN, run).await, [("bucket", Condition::Well)]);
        let run = probes.begin_one("bucket", async { Condition::Degraded("slow".to_owned()) });
        let found = found_by(Instant::now() + WITHIN, run).await;
        assert_eq!(found, [("bucket", Condition::Degraded("slow".to_owned()))]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_of_a_dependency_is_reused_for_a_moment() {
        let probes = Probes::default();
        let begin = |condition: Condition| {
            let look = async move { vec![("bucket", condition)] };
            found_by(Instant::now() + WITHIN, probes.begin("bucket", REUSED_FOR, look))
        };
        let gone = || Condition::Failed("gone".to_owned());
        assert_eq!(begin(Condition::Well).await, [("bucket", Condition::Well)]);
        assert_eq!(begin(gone()).await, [("bucket", Condition::Well)]);
        tokio::time::advance(REUSED_FOR).await;
        assert_eq!(begin(gone()).await, [("bucket", gone())]);
    }

    #[test]
    fn a_disk_that_takes_nothing_has_failed() {
        assert_eq!(
            write_probe(Path::new("/dev/full")).unwrap_err().kind(),
            std::io::ErrorKind::StorageFull
        );
        let dir = tempfile::tempdir().unwrap();
        assert!(!matches!(disk(dir.path()), Condition::Failed(_)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let Condition::Failed(reason) = disk(&dir.path().join("absent")) else { panic!() };
        assert!(reason.starts_with("nothing can be written below the home"), "{reason}");
    }

    #[test]
    fn the_worst_condition_decides() {
        let warning = ("pools", Condition::Degraded("full".to_owned()));
        let failure = ("content", Condition::Failed("gone".to_owned()));
        for (checks, status, word) in [
            (vec![("search", Condition::Well)], 200, "ok"),
            (vec![("search", Condition::Well), warning.clone()], 200, "warn"),
            (vec![failure, warning], 503, "fail"),
        ] {
            let report = Report(checks);
            assert_eq!((report.status().as_u16(), report.word()), (status, word));
        }
    }
}
