//! Kills: a process that carries out workflows is killed at random; each workflow goes on where it was.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::Map;
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tympan_content::Repository;
use tympan_jobs::workflow::{
    StepOutcome, StepRegistry, StepRun, WorkflowEngine, WorkflowHandler, WorkflowModelRoots,
    WorkflowProcess, WorkflowStart, WorkflowState,
};
use tympan_jobs::{JOB_MIGRATIONS, JobContext, JobQueues, JobWorker, JobWorkerOptions};
use tympan_testkit::StateDatabase;
use tympan_testkit::postgres_server::PostgresServer;

use crate::workflow::{MODELS, model, put};

/// The variables that make a run of this test a worker: where it writes down what it does, and on which database it works.
const WORKER: &str = "TYMPAN_TEST_WORKFLOWS";
const DATABASE: &str = "TYMPAN_TEST_DATABASE";
const SCHEMA: &str = "TYMPAN_TEST_SCHEMA";
/// Workflows that are started between two kills.
const WORKFLOWS: usize = 8;

fn kills() -> u64 {
    std::env::var("TYMPAN_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(4)
}

struct Noting(Mutex<std::fs::File>);

impl WorkflowProcess for Noting {
    fn name(&self) -> &str {
        "org.example.Noting"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        // One write, so that neither another thread nor a kill tears the line.
        let line = format!("{} {}\n", step.workflow_id, step.title);
        self.0.lock().write_all(line.as_bytes()).unwrap();
        StepOutcome::Done(Map::new())
    }
}

async fn open(dir: &Path, database: Option<(&str, &str)>) -> JobQueues {
    let state = match database {
        Some((url, schema)) => StateDatabase::connect(url, schema).await.unwrap(),
        None => StateDatabase::open(&dir.join("state.db")).await.unwrap(),
    };
    state.migrate_tables("jobs", JOB_MIGRATIONS).await.unwrap();
    JobQueues::new(state.pool().clone())
}

/// What the killed process runs; without the variable it is no test.
#[test]
fn a_process_that_carries_out_workflows() {
    let Some(dir) = std::env::var_os(WORKER).map(PathBuf::from) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (url, schema) = (std::env::var(DATABASE).ok(), std::env::var(SCHEMA).ok());
        let queues = open(&dir, url.as_deref().zip(schema.as_deref())).await;
        // No other process works on it.
        queues.release_all_claims().await.unwrap();
        let done = OpenOptions::new().append(true).create(true).open(dir.join("done")).unwrap();
        let name = format!("worker-{}", std::process::id());
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(10),
            cores: 4,
            ..JobWorkerOptions::new("author", name)
        };
        let worker = JobWorker::new(queues.clone(), options);
        let steps = StepRegistry::default().with_process(Arc::new(Noting(Mutex::new(done))));
        let workflows = WorkflowEngine::new(queues);
        for handler in WorkflowHandler::for_registry(&workflows, &Handle::current(), steps) {
            worker.register_handler(handler);
        }
        let (_stop, stopped) = watch::channel(false);
        worker.run(stopped).await;
    });
}

fn spawn(dir: &Path, database: Option<(&str, &str)>) -> Child {
    let name = "workflow_kill::a_process_that_carries_out_workflows";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--nocapture"]).env(WORKER, dir);
    if let Some((url, schema)) = database {
        command.env(DATABASE, url).env(SCHEMA, schema);
    }
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

fn lines(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("done")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

const STEPS: [&str; 6] = ["one", "two", "three", "left", "right", "last"];

async fn run(dir: &TempDir, database: Option<(&str, &str)>) {
    let (dir, queues) = (dir.path(), open(dir.path(), database).await);
    let workflows = WorkflowEngine::new(queues);
    let repository = Repository::in_memory().unwrap();
    let parts = "s:START one:PROCESS two:PROCESS three:PROCESS split:AND_SPLIT left:PROCESS right:PROCESS \
                 join:AND_JOIN last:PROCESS e:END \
                 s>one one>two two>three three>split split>left split>right left>join right>join join>last last>e";
    put(&repository, &format!("{MODELS}/m"), model("m", parts));
    let model = WorkflowModelRoots::default()
        .read_model(&repository.snapshot().unwrap(), &format!("{MODELS}/m"))
        .unwrap();
    let mut seed = 0x5eed_0b57_u64;
    let mut started = Vec::new();
    for round in 0..=kills() {
        let mut child = spawn(dir, database);
        for number in 0..WORKFLOWS {
            let (payload, initiator) = (format!("/content/{round}/{number}"), "ann".to_owned());
            let start =
                WorkflowStart { model: model.clone(), payload, initiator, data: Map::new() };
            started.push(workflows.start_workflow(&start, SystemTime::now()).await.unwrap());
        }
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        // The point is a number of steps that were seen, so that it lies in the middle of work.
        let wanted = lines(dir).len() + usize::try_from(seed % 40).unwrap() + 1;
        let is_last = round == kills();
        for id in &started {
            while workflows.find_instance(*id).await.unwrap().unwrap().state
                != WorkflowState::Completed
            {
                if !is_last && lines(dir).len() >= wanted {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut done: BTreeMap<String, u32> = BTreeMap::new();
    for line in lines(dir) {
        *done.entry(line).or_default() += 1;
    }
    for id in &started {
        let history = workflows.list_history(*id).await.unwrap();
        for step in STEPS {
            let ends = history.iter().filter(|one| one.title == step && one.action == "completed");
            assert_eq!(ends.count(), 1, "the record of `{step}` of {id}: {history:?}");
            assert!(done.contains_key(&format!("{id} {step}")), "`{step}` of {id} never ran");
        }
    }
    let again = done.values().filter(|times| **times > 1).count();
    println!("{} kills, {} workflows, {again} steps done again", kills(), started.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_no_step_of_a_workflow() {
    run(&tempfile::tempdir().unwrap(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_no_step_of_a_workflow_on_postgresql() {
    let url = PostgresServer::shared_server().url();
    let schema = PostgresServer::unique_schema_name();
    run(&tempfile::tempdir().unwrap(), Some((&url, &schema))).await;
}
