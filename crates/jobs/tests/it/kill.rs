//! Kills: the process of a worker is killed at points that a seed chooses; no job is lost.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::sync::watch;
use tympan_jobs::{
    JOB_MIGRATIONS, Job, JobContext, JobHandler, JobOutcome, JobQueues, JobWorker,
    JobWorkerOptions, MaxParallel, NewJob, QUEUE_FACTORY, QueueConfig,
};
use tympan_testkit::StateDatabase;

/// The variable that makes a run of this test a worker on the database that it names.
const WORKER: &str = "TYMPAN_TEST_WORKER";
/// Jobs that are added between two kills.
const JOBS: i64 = 60;

fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(6)
}

/// Writes down what it does, and does nothing else.
struct Noting(File);

impl JobHandler for Noting {
    fn topic(&self) -> &str {
        "a/**"
    }

    fn run(&self, job: &Job, _context: &JobContext) -> JobOutcome {
        // One write, so that neither another thread nor a kill tears the line.
        let line = format!("{} {}\n", job.properties, job.attempt);
        (&self.0).write_all(line.as_bytes()).unwrap();
        if job.properties.as_i64().is_some_and(|number| number % 7 == 0) && job.attempt == 1 {
            return JobOutcome::Retry { after: None, reason: "once".to_owned() };
        }
        JobOutcome::Done
    }
}

async fn open(dir: &Path) -> JobQueues {
    let state = StateDatabase::open(&dir.join("state.db")).await.unwrap();
    state.migrate_tables("jobs", JOB_MIGRATIONS).await.unwrap();
    JobQueues::new(state.pool().clone())
}

/// What the killed process runs; without the variable it is no test.
#[test]
fn a_worker_on_a_database_that_the_environment_names() {
    let Some(dir) = std::env::var_os(WORKER).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let queues = open(&dir).await;
        queues.release_all_claims().await.unwrap();
        let done = OpenOptions::new().append(true).create(true).open(dir.join("done")).unwrap();
        let name = format!("worker-{}", std::process::id());
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(10),
            cores: 4,
            ..JobWorkerOptions::new("author", name)
        };
        let worker = JobWorker::new(queues, options);
        worker.set_queue_configs(vec![QueueConfig {
            max_parallel: MaxParallel::Cores,
            retries: None,
            retry_delay: Duration::ZERO,
            pid: format!("{QUEUE_FACTORY}-a"),
            ..QueueConfig::new("a", &["a/*"])
        }]);
        worker.register_handler(Arc::new(Noting(done)));
        let (_stop, stopped) = watch::channel(false);
        worker.run(stopped).await;
    });
}

fn start(dir: &Path) -> Child {
    let name = "kill::a_worker_on_a_database_that_the_environment_names";
    Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(WORKER, dir)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

fn lines(dir: &Path) -> Vec<(i64, u32)> {
    let text = std::fs::read_to_string(dir.join("done")).unwrap_or_default();
    let line = |line: &str| -> Option<(i64, u32)> {
        let (number, attempt) = line.split_once(' ')?;
        Some((number.parse().ok()?, attempt.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_workers_lose_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let queues = open(dir.path()).await;
    let mut seed = 0x5eed_0a4b_u64;
    let mut added = 0;
    for _ in 0..kills() {
        let mut child = start(dir.path());
        let jobs = (added..added + JOBS).map(|number| NewJob::new("a/b", json!(number)));
        queues.add_jobs(jobs.collect(), SystemTime::now()).await.unwrap();
        added += JOBS;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // The point is a number of runs that were seen, so that it lies in the middle of work.
        let wanted = lines(dir.path()).len() + usize::try_from(seed % 50).unwrap() + 1;
        while lines(dir.path()).len() < wanted
            && queues.statistics().count_jobs("a/b").await.unwrap() > 0
        {
            tokio::task::yield_now().await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut child = start(dir.path());
    while queues.statistics().count_jobs("a/b").await.unwrap() > 0 {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let mut runs: BTreeMap<i64, u32> = BTreeMap::new();
    for (number, _) in lines(dir.path()) {
        *runs.entry(number).or_default() += 1;
    }
    let missing: Vec<i64> = (0..added).filter(|number| !runs.contains_key(number)).collect();
    assert!(missing.is_empty(), "never ran: {missing:?}");
    let again = runs.iter().filter(|(number, count)| **count > 1 + u32::from(*number % 7 == 0));
    println!("{} kills, {added} jobs, {} of them run again", kills(), again.count());
}
