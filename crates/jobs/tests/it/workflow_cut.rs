//! Cuts: the process ends at every single write of a workflow's progress, before and after it, and another one goes on.
//!
//! What must hold: the instance comes to its end, every step is recorded exactly once, and what steps do outside of the
//! database is done once, or twice where the process ended between the effect and its record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};
use tokio::runtime::Handle;
use tympan_content::Repository;
use tympan_jobs::workflow::{
    StepOutcome, StepRegistry, StepRun, WorkflowEngine, WorkflowFilter, WorkflowHandler,
    WorkflowModelRoots, WorkflowProcess, WorkflowStart, WorkflowState,
};
use tympan_jobs::{JobClaim, JobContext, JobHandler, JobOutcome, JobQueues, WriteCutSide};

use crate::place::{Place, both};
use crate::workflow::{MODELS, model, put};

/// What steps did to the world: how often each was done.
type World = Arc<Mutex<BTreeMap<String, u32>>>;

/// Does something that no database takes back.
struct Effect(World);

impl WorkflowProcess for Effect {
    fn name(&self) -> &str {
        "org.example.Noting"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        *self.0.lock().entry(format!("{} {}", step.workflow_id, step.title)).or_default() += 1;
        if step.title == "polled" && step.saved_data.is_empty() {
            let keep = json!({ "begun": true }).as_object().unwrap().clone();
            return StepOutcome::Wait { after: Duration::ZERO, saved_data: keep };
        }
        let mut data = Map::new();
        data.insert(step.title.clone(), Json::from(true));
        StepOutcome::Done(data)
    }
}

/// A process as far as it matters here: its queues, and handlers that are called one after the other.
struct One {
    queues: JobQueues,
    workflows: WorkflowEngine,
    handlers: Vec<Arc<dyn JobHandler>>,
}

impl One {
    async fn start(place: &Place, repository: &Repository, world: &World) -> Self {
        let queues = place.open().await;
        // The one before is dead.
        queues.release_all_claims().await.unwrap();
        let workflows = WorkflowEngine::new(queues.clone());
        let steps =
            StepRegistry::standard(repository).with_process(Arc::new(Effect(world.clone())));
        let handlers = WorkflowHandler::for_registry(&workflows, &Handle::current(), steps);
        Self { queues, workflows, handlers }
    }

    /// Works until nothing is left to do or the process is cut off. Tells whether it came to the end.
    async fn work(&self) -> bool {
        let claim = JobClaim { worker: "w", lease: Duration::from_secs(60) };
        loop {
            if self.queues.is_cut_off() {
                return false;
            }
            let topics = self.queues.statistics().topic_statistics().await.unwrap();
            let topics: Vec<String> = topics
                .into_iter()
                .filter(|(_, one)| one.queued > 0)
                .map(|(name, _)| name)
                .collect();
            if topics.is_empty() {
                return true;
            }
            for topic in topics {
                let jobs = self.queues.claim_jobs(&topic, "", 1, claim, SystemTime::now()).await;
                let Ok(jobs) = jobs else { return false };
                for job in jobs {
                    let base = topic.split("/job").next().unwrap();
                    let handler = self.handlers.iter().find(|one| one.topic().starts_with(base));
                    let (handler, running) = (handler.unwrap().clone(), job.clone());
                    let context = JobContext::detached();
                    let outcome =
                        tokio::task::spawn_blocking(move || handler.run(&running, &context));
                    let now = SystemTime::now();
                    let stored = match outcome.await.unwrap() {
                        JobOutcome::Done => self.queues.finish_job(job.id, "w").await,
                        JobOutcome::Wait { .. } | JobOutcome::Retry { .. } => {
                            self.queues.fail_job(job.id, "w", "", Some(now), now).await
                        }
                        outcome => {
                            assert!(self.queues.is_cut_off(), "{outcome:?}");
                            return false;
                        }
                    };
                    if stored.is_err() {
                        assert!(self.queues.is_cut_off());
                        return false;
                    }
                }
            }
        }
    }
}

fn start(repository: &Repository, payload: &str) -> WorkflowStart {
    let model = WorkflowModelRoots::default()
        .read_model(&repository.snapshot().unwrap(), &format!("{MODELS}/outer"))
        .unwrap();
    let (payload, initiator) = (payload.to_owned(), "ann".to_owned());
    WorkflowStart { model, payload, initiator, data: Map::new() }
}

/// Returns how often each step's end is recorded for the instances about a payload.
async fn recorded(workflows: &WorkflowEngine, payload: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let filter = WorkflowFilter { payload: Some(payload.to_owned()), ..WorkflowFilter::default() };
    for instance in workflows.list_instances(&filter, 100).await.unwrap() {
        for entry in workflows.list_history(instance.id).await.unwrap() {
            let is_notice = instance.title == "Notice";
            let name = if is_notice { "notice" } else { &entry.title };
            if entry.action == "completed" || (is_notice && entry.action == "started") {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    counts
}

const STEPS: [&str; 8] = ["first", "left", "polled", "inside", "part", "told", "last", "notice"];

/// Runs one workflow that is cut at a write; tells whether there was such a write.
async fn cut(place: &Place, repository: &Repository, at: u64, side: WriteCutSide) -> bool {
    let world = World::default();
    let payload = format!("/content/{at}-{side:?}");
    let one = One::start(place, repository, &world).await;
    one.queues.cut_off_writes(at, side);
    // What was not acknowledged may have happened or not.
    let begun = one.workflows.start_workflow(&start(repository, &payload), SystemTime::now()).await;
    let is_whole = begun.is_ok() && one.work().await;
    let two = One::start(place, repository, &world).await;
    let filter = WorkflowFilter { payload: Some(payload.clone()), ..WorkflowFilter::default() };
    if two.workflows.list_instances(&filter, 10).await.unwrap().is_empty() {
        assert!(begun.is_err(), "an acknowledged start is lost at write {at}");
        two.workflows
            .start_workflow(&start(repository, &payload), SystemTime::now())
            .await
            .unwrap();
    }
    assert!(two.work().await);
    let place = format!("cut {side:?} write {at}");
    for instance in two.workflows.list_instances(&filter, 10).await.unwrap() {
        let is_notice = instance.title == "Notice";
        let expected = if is_notice { WorkflowState::Running } else { WorkflowState::Completed };
        assert_eq!(instance.state, expected, "{place}: {}", instance.title);
        if instance.title == "outer" {
            for step in ["first", "left", "polled", "inside", "last"] {
                assert_eq!(instance.data.get(step), Some(&json!(true)), "{place}: {step}");
            }
        }
        if is_notice {
            two.workflows.terminate(instance.id, "ann", None, SystemTime::now()).await.unwrap();
        }
    }
    let counts = recorded(&two.workflows, &payload).await;
    for step in STEPS {
        assert_eq!(counts.get(step), Some(&1), "{place}: the record of `{step}`: {counts:?}");
    }
    for (step, times) in world.lock().iter() {
        let most = if step.ends_with("polled") { 3 } else { 2 };
        assert!((1..=most).contains(times), "{place}: `{step}` was done {times} times");
    }
    let twice = world.lock().values().filter(|times| **times > 1).count();
    assert!(twice <= 2, "{place}: more than the step that was cut was done again");
    !is_whole
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_goes_on_wherever_the_process_ends() {
    let repository = Repository::in_memory().unwrap();
    let outer = "s:START first:PROCESS split:AND_SPLIT left:PROCESS polled:EXTERNAL_PROCESS join:AND_JOIN \
                 part:CONTAINER told:PROCESS last:PROCESS e:END \
                 s>first first>split split>left split>polled left>join polled>join join>part part>told told>last last>e";
    put(
        &repository,
        &format!("{MODELS}/inner"),
        model("inner", "s:START inside:PROCESS e:END s>inside inside>e"),
    );
    put(&repository, &format!("{MODELS}/outer"), model("outer", outer));
    let mut session = repository.session("ann").unwrap();
    let text = |text: &str| tympan_content::Property::text(text);
    let data = |step: &str| {
        tympan_content::NodePath::new(&format!("{MODELS}/outer/nodes/{step}/metaData")).unwrap()
    };
    session.set_property(&data("part"), "SUB_WORKFLOW", text(&format!("{MODELS}/inner"))).unwrap();
    session.set_property(&data("told"), "PROCESS", text("NotifyProcess")).unwrap();
    session.set_property(&data("told"), "reader", text("bob")).unwrap();
    session.commit("models", SystemTime::now()).unwrap();
    // PostgreSQL is asked at every third write: each needs connections of its own. `make torture` asks for all.
    let sparse = if std::env::var_os("TYMPAN_CUTS").is_some() { 1 } else { 3 };
    for (place, stride) in both().iter().zip([1, sparse]) {
        let mut at = 1;
        let mut cuts = 0;
        loop {
            let before = cut(place, &repository, at, WriteCutSide::Before).await;
            let after = cut(place, &repository, at, WriteCutSide::After).await;
            cuts += u32::from(before) + u32::from(after);
            if !before && !after {
                break;
            }
            at += stride;
        }
        println!("{cuts} cuts");
        assert!(cuts >= 10, "only {cuts} cuts");
    }
}
