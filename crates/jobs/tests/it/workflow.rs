//! Workflows: from models in content to their end, over crashes, people and launchers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_jobs::workflow::{
    StepActionContext, StepOutcome, StepRegistry, StepRun, WorkflowEngine, WorkflowFilter,
    WorkflowHandler, WorkflowLauncher, WorkflowModelRoots, WorkflowProcess, WorkflowStart,
    WorkflowState,
};
use tympan_jobs::{JobContext, JobFilter, JobQueues, JobWorker, JobWorkerOptions, WORKFLOW_TOPIC};

use crate::place::both;

/// A process that notes each run and does what its arguments say.
struct Noting(Arc<Mutex<Vec<String>>>);

impl WorkflowProcess for Noting {
    fn name(&self) -> &str {
        "org.example.Noting"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        self.0.lock().push(step.title.clone());
        let argument =
            step.arguments.get("PROCESS_ARGS").and_then(Json::as_str).unwrap_or_default();
        if argument == "poll" && step.saved_data.get("asked").and_then(Json::as_i64) != Some(2) {
            let asked = step.saved_data.get("asked").and_then(Json::as_i64).unwrap_or_default() + 1;
            let keep = json!({ "asked": asked }).as_object().unwrap().clone();
            return StepOutcome::Wait { after: Duration::ZERO, saved_data: keep };
        }
        let mut data = Map::new();
        if let Some((name, value)) = argument.split_once('=') {
            data.insert(name.to_owned(), value.into());
        }
        StepOutcome::Done(data)
    }
}

/// Builds a model of `name:KIND:argument` and `from>to?rule`.
pub(crate) fn model(name: &str, parts: &str) -> Subtree {
    let mut nodes = Subtree::new("nodes", "nt:unstructured");
    let mut ways = Subtree::new("transitions", "nt:unstructured");
    for (number, part) in parts.split_whitespace().enumerate() {
        if let Some((from, to)) = part.split_once('>') {
            let (to, rule) = to.split_once('?').unwrap_or((to, ""));
            ways.put_child(
                Subtree::new(format!("w{number}"), "cq:WorkflowTransition")
                    .with_property("from", Property::text(from))
                    .with_property("to", Property::text(to))
                    .with_property("rule", Property::text(rule)),
            );
        } else {
            let mut texts = part.splitn(3, ':');
            let (step, kind) = (texts.next().unwrap(), texts.next().unwrap());
            let argument = texts.next().unwrap_or_default();
            let mut data = Subtree::new("metaData", "nt:unstructured");
            let name = if kind == "PARTICIPANT" { "PARTICIPANT" } else { "PROCESS_ARGS" };
            data = data.with_property(name, Property::text(argument));
            data = data.with_property("PROCESS", Property::text("com.example.other.Noting"));
            nodes.put_child(
                Subtree::new(step, "cq:WorkflowNode")
                    .with_property("type", Property::text(kind))
                    .with_property("title", Property::text(step))
                    .with_child(data),
            );
        }
    }
    let model = Subtree::new(name, "cq:WorkflowModel");
    model.with_property("title", Property::text(name)).with_child(nodes).with_child(ways)
}

pub(crate) fn put(repository: &Repository, path: &str, tree: Subtree) {
    let mut session = repository.session("ann").unwrap();
    let path = NodePath::new(path).unwrap();
    let mut missing = Vec::new();
    let mut at = path.parent();
    while let Some(folder) = at.filter(|folder| !folder.is_root()) {
        if session.node(&folder).unwrap().is_some() {
            break;
        }
        at = folder.parent();
        missing.push(folder);
    }
    for folder in missing.iter().rev() {
        session.add_node(folder, "nt:unstructured").unwrap();
    }
    session.put_node(&path, tree).unwrap();
    session.commit("put", SystemTime::now()).unwrap();
}

pub(crate) struct Running {
    pub(crate) workflows: WorkflowEngine,
    pub(crate) queues: JobQueues,
    pub(crate) repository: Repository,
    pub(crate) seen: Arc<Mutex<Vec<String>>>,
    pub(crate) stop: watch::Sender<bool>,
}

pub(crate) const MODELS: &str = "/var/workflow/models";

impl Running {
    pub(crate) fn start_on(queues: JobQueues, repository: Repository) -> Self {
        Self::start_with(queues, repository, StepRegistry::default())
    }

    /// Starts a worker that knows these steps beside one that notes what it does.
    pub(crate) fn start_with(
        queues: JobQueues,
        repository: Repository,
        steps: StepRegistry,
    ) -> Self {
        let workflows = WorkflowEngine::new(queues.clone());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let name = format!("w{:p}", Arc::as_ptr(&seen));
        let options = JobWorkerOptions {
            poll_interval: Duration::from_millis(20),
            ..JobWorkerOptions::new("author", name)
        };
        let worker = JobWorker::new(queues.clone(), options);
        let steps = steps.with_process(Arc::new(Noting(seen.clone())));
        for handler in WorkflowHandler::for_registry(&workflows, &Handle::current(), steps) {
            worker.register_handler(handler);
        }
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(worker.run(stopped));
        Self { workflows, queues, repository, seen, stop }
    }

    pub(crate) async fn begin(&self, name: &str) -> i64 {
        let snapshot = self.repository.snapshot().unwrap();
        let model = WorkflowModelRoots::default()
            .read_model(&snapshot, &format!("{MODELS}/{name}"))
            .unwrap();
        let start = WorkflowStart {
            model,
            payload: "/content/a".to_owned(),
            initiator: "ann".to_owned(),
            data: Map::new(),
        };
        self.workflows.start_workflow(&start, SystemTime::now()).await.unwrap()
    }

    pub(crate) async fn until(&self, id: i64, state: WorkflowState) {
        while self.workflows.find_instance(id).await.unwrap().unwrap().state != state {
            tokio::task::yield_now().await;
        }
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_people_and_splits_come_to_an_end() {
    for place in both() {
        let running = Running::start_on(place.open().await, Repository::in_memory().unwrap());
        put(
            &running.repository,
            &format!("{MODELS}/review"),
            model(
                "review",
                "s:START one:PROCESS:kind=image split:AND_SPLIT left:PROCESS right:EXTERNAL_PROCESS:poll \
                 join:AND_JOIN check:PARTICIPANT:editors or:OR_SPLIT fix:PROCESS e:END \
                 s>one one>split split>left split>right left>join right>join join>check check>or \
                 or>fix?verdict==no or>e fix>e",
            ),
        );
        let id = running.begin("review").await;
        let editors = ["editors".to_owned()];
        let items = loop {
            let items = running.workflows.list_inbox(&editors, 10).await.unwrap();
            if !items.is_empty() {
                break items;
            }
            tokio::task::yield_now().await;
        };
        let seen = running.seen();
        assert_eq!((seen[0].as_str(), seen.len()), ("one", 5), "{seen:?}");
        assert_eq!(seen.iter().filter(|name| *name == "right").count(), 3, "it polls");
        assert!(running.workflows.list_inbox(&["bob".to_owned()], 10).await.unwrap().is_empty());
        let now = SystemTime::now();
        let data = json!({ "verdict": "no" }).as_object().unwrap().clone();
        let complete = |names: &'static [&'static str], route: Option<&'static str>| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let (workflows, item, data) = (running.workflows.clone(), items[0].id, data.clone());
            async move {
                let action = StepActionContext { user: "cara", comment: Some("blurred"), now };
                workflows.complete_participant_step(item, &names, route, data, &action).await
            }
        };
        complete(&["bob"], None).await.unwrap_err();
        complete(&["editors"], Some("nowhere")).await.unwrap_err();
        complete(&["editors"], None).await.unwrap();
        complete(&["editors"], None).await.unwrap_err();
        running.until(id, WorkflowState::Completed).await;
        assert_eq!(running.seen().last().unwrap(), "fix");
        let found = running.workflows.find_instance(id).await.unwrap().unwrap();
        assert_eq!(found.data["kind"], json!("image"));
        let history = running.workflows.list_history(id).await.unwrap();
        let lines: Vec<_> =
            history.iter().map(|entry| (entry.action.as_str(), entry.user.as_str())).collect();
        assert_eq!(lines[0], ("started", "ann"));
        let said = history.iter().find(|entry| entry.comment.is_some()).unwrap();
        assert_eq!((said.user.as_str(), said.comment.as_deref()), ("cara", Some("blurred")));
        let past = now - Duration::from_secs(60);
        assert_eq!(running.workflows.purge_ended(past, None).await.unwrap(), 0);
        let later = now + Duration::from_secs(60);
        assert_eq!(running.workflows.purge_ended(later, Some("/other")).await.unwrap(), 0);
        assert_eq!(running.workflows.purge_ended(later, None).await.unwrap(), 1);
        assert!(running.workflows.list_history(id).await.unwrap().is_empty());
        running.stop.send_replace(true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_a_model_have_a_topic_of_their_own() {
    let place = crate::place::Place::sqlite();
    let running = Running::start_on(place.open().await, Repository::in_memory().unwrap());
    let inner = model("model", "s:START one:PROCESS e:END s>one one>e");
    let page = Subtree::new("update_asset", "cq:Page")
        .with_child(Subtree::new("jcr:content", "cq:PageContent").with_child(inner));
    put(&running.repository, "/etc/workflow/models/dam/update_asset", page);
    let snapshot = running.repository.snapshot().unwrap();
    let found = WorkflowModelRoots::default().find_models(&snapshot).unwrap();
    assert_eq!(found[0].0, "/etc/workflow/models/dam/update_asset");
    let model = found.into_iter().next().unwrap().1.unwrap();
    let (payload, initiator) = ("/content/a".to_owned(), "ann".to_owned());
    let start = WorkflowStart { model, payload, initiator, data: Map::new() };
    let id = running.workflows.start_workflow(&start, SystemTime::now()).await.unwrap();
    running.until(id, WorkflowState::Completed).await;
    let topics = running.queues.statistics().topic_statistics().await.unwrap();
    let topic = format!("{WORKFLOW_TOPIC}/etc/workflow/models/dam/update_asset/jcr_content/model");
    assert_eq!(topics.keys().collect::<Vec<_>>(), [&topic]);
    running.stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_and_ended_instances_do_not_go_on() {
    let place = crate::place::Place::sqlite();
    let running = Running::start_on(place.open().await, Repository::in_memory().unwrap());
    let parts = "s:START check:PARTICIPANT:initiator one:PROCESS e:END s>check check>one one>e";
    put(&running.repository, &format!("{MODELS}/m"), model("m", parts));
    let (first, second) = (running.begin("m").await, running.begin("m").await);
    let now = SystemTime::now();
    let ann = ["ann".to_owned()];
    let items = running.workflows.list_inbox(&ann, 10).await.unwrap();
    assert_eq!(items.len(), 2);
    assert!(
        running
            .workflows
            .set_workflow_state(first, WorkflowState::Suspended, "ann", now)
            .await
            .unwrap()
    );
    assert_eq!(running.workflows.list_inbox(&ann, 10).await.unwrap().len(), 1);
    let done = |item: i64| {
        let workflows = running.workflows.clone();
        async move {
            let names = ["ann".to_owned()];
            let action = StepActionContext { user: "ann", comment: None, now };
            workflows.complete_participant_step(item, &names, None, Map::new(), &action).await
        }
    };
    done(items[0].id).await.unwrap_err();
    assert!(
        running
            .workflows
            .set_workflow_state(first, WorkflowState::Running, "ann", now)
            .await
            .unwrap()
    );
    done(items[0].id).await.unwrap();
    running.until(first, WorkflowState::Completed).await;
    running.workflows.terminate(second, "bob", Some("no need"), now).await.unwrap();
    running.workflows.terminate(second, "bob", None, now).await.unwrap_err();
    done(items[1].id).await.unwrap_err();
    assert_eq!(running.seen(), ["one"]);
    running.stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_instances_leave_nothing() {
    let place = crate::place::Place::sqlite();
    let running = Running::start_on(place.open().await, Repository::in_memory().unwrap());
    let metadata = Subtree::new("metaData", "nt:unstructured")
        .with_property("transient", Property::Single(Value::Boolean(true)));
    let tree = model("m", "s:START one:PROCESS e:END s>one one>e").with_child(metadata);
    put(&running.repository, &format!("{MODELS}/m"), tree);
    let id = running.begin("m").await;
    while running.workflows.find_instance(id).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(running.seen(), ["one"]);
    assert!(running.workflows.list_history(id).await.unwrap().is_empty());
    running.stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_start_workflows_exactly_once() {
    for place in both() {
        let repository = Repository::in_memory().unwrap();
        let queues = place.open().await;
        let workflows = WorkflowEngine::new(queues.clone());
        put(
            &repository,
            &format!("{MODELS}/m"),
            model("m", "s:START check:PARTICIPANT:ann e:END s>check check>e"),
        );
        let launcher = Subtree::new("dam", "cq:WorkflowLauncher")
            .with_property("eventType", Property::Single(Value::Long(1)))
            .with_property("glob", Property::text("/content/dam(/((?!/skip).)*/)original"))
            .with_property("nodetype", Property::text("nt:unstructured"))
            .with_property("conditions", Property::text("kind==image"))
            .with_property("runModes", Property::text("author"))
            .with_property("workflow", Property::text(format!("{MODELS}/m")));
        put(&repository, "/conf/global/settings/workflow/launcher/config/dam", launcher);
        let asset = |kind: &str| {
            Subtree::new("original", "nt:unstructured").with_property("kind", Property::text(kind))
        };
        put(&repository, "/content/dam/old/original", asset("image"));
        let launch = WorkflowLauncher::new(workflows.clone(), repository.clone(), &["author"]);
        let now = SystemTime::now();
        assert!(launch.process_next_changes(now).await.unwrap(), "it begins with what is there");
        for number in 0..5 {
            put(&repository, &format!("/content/dam/a{number}/original"), asset("image"));
        }
        put(&repository, "/content/dam/text/original", asset("text"));
        put(&repository, "/content/dam/a/skip/original", asset("image"));
        put(&repository, "/content/other/original", asset("image"));
        // Two processes at once, and one that was started again: each change counts once.
        let second = WorkflowLauncher::new(
            WorkflowEngine::new(place.open().await),
            repository.clone(),
            &["author"],
        );
        let (left, right) =
            tokio::join!(launch.process_next_changes(now), second.process_next_changes(now));
        assert!(left.is_ok() && right.is_ok());
        while !launch.process_next_changes(now).await.unwrap() {}
        let started = workflows.list_instances(&WorkflowFilter::default(), 100).await.unwrap();
        let about: BTreeSet<_> = started.iter().map(|one| one.payload.clone()).collect();
        let wanted: BTreeSet<_> =
            (0..5).map(|number| format!("/content/dam/a{number}/original")).collect();
        assert_eq!((started.len(), about), (5, wanted));
        let publish = WorkflowLauncher::new(workflows.clone(), repository.clone(), &["publish"]);
        put(&repository, "/content/dam/late/original", asset("image"));
        publish.process_next_changes(now).await.unwrap();
        let all = workflows.list_instances(&WorkflowFilter::default(), 100).await.unwrap();
        assert_eq!(all.len(), 5, "the launcher is for authors");
        assert!(queues.list_jobs(&JobFilter::default(), 10).await.unwrap().is_empty());
    }
}

#[test]
fn models_that_lead_nowhere_are_refused() {
    let repository = Repository::in_memory().unwrap();
    let check = |name: &str, parts: &str, expected: &str| {
        put(&repository, &format!("{MODELS}/{name}"), model(name, parts));
        let read = WorkflowModelRoots::default()
            .read_model(&repository.snapshot().unwrap(), &format!("{MODELS}/{name}"));
        assert_eq!(
            read.unwrap_err().to_string(),
            format!("the model `{MODELS}/{name}` {expected}")
        );
    };
    check("a", "x:PROCESS e:END x>e", "has no step of type START");
    check("b", "s:START e:END s>gone", "has a transition to the missing step `gone`");
    check("c", "s:START x:PROCESS s>x", "does not define what follows the step `x`");
    check("d", "s:START p:PARTICIPANT e:END s>p p>e", "has a step `p` without `PARTICIPANT`");
    let missing = WorkflowModelRoots::default()
        .read_model(&repository.snapshot().unwrap(), &format!("{MODELS}/nothing"))
        .unwrap_err();
    assert_eq!(missing.to_string(), format!("there is no workflow model at `{MODELS}/nothing`"));
}

#[test]
fn models_are_read_below_their_roots_only() {
    let repository = Repository::in_memory().unwrap();
    let parts = "s:START one:PROCESS e:END s>one one>e";
    let read = |at: &str| {
        put(&repository, at, model("m", parts));
        WorkflowModelRoots::default()
            .read_model(&repository.snapshot().unwrap(), at)
            .map(|model| model.path)
    };
    for at in [
        "/var/workflow/models/m",
        "/etc/workflow/models/deep/m",
        "/conf/global/settings/workflow/models/m",
    ] {
        assert_eq!(read(at).unwrap(), at);
    }
    for at in [
        "/content/dam/m",
        "/content/dam/var/workflow/models/m",
        "/var/workflow/models-of-mine/m",
        "/conf/site/settings/workflow/models/m",
    ] {
        let refused = read(at).unwrap_err().to_string();
        assert!(refused.contains("models are allowed only below"), "{at}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_below_the_configured_roots_only() {
    let place = crate::place::Place::sqlite();
    let repository = Repository::in_memory().unwrap();
    let steps = StepRegistry::standard(&repository);
    let running = Running::start_with(place.open().await, repository.clone(), steps);
    let roots = WorkflowModelRoots::new(&["/conf/site/models".to_owned()]).unwrap();
    let workflows = running.workflows.clone().with_model_roots(roots);
    let parts = "s:START one:PROCESS e:END s>one one>e";
    for at in ["/conf/site/models/m", "/var/workflow/models/m", "/conf/site/models-of-mine/m"] {
        put(&repository, at, model("m", parts));
    }
    let through = model("through", "s:START c:CONTAINER e:END s>c c>e");
    put(&repository, "/conf/site/models/through", through);
    let mut session = repository.session("ann").unwrap();
    let data = NodePath::new("/conf/site/models/through/nodes/c/metaData").unwrap();
    session.set_property(&data, "MODEL", Property::text("/var/workflow/models/m")).unwrap();
    session.commit("lead elsewhere", SystemTime::now()).unwrap();
    let snapshot = repository.snapshot().unwrap();
    let found = workflows.model_roots().find_models(&snapshot).unwrap();
    let found: Vec<_> = found.into_iter().map(|(path, _)| path).collect();
    assert_eq!(found, ["/conf/site/models/m", "/conf/site/models/through"]);
    let read = |at: &str| workflows.model_roots().read_model(&snapshot, at);
    assert_eq!(read("/conf/site/models/m").unwrap().path, "/conf/site/models/m");
    for at in ["/var/workflow/models/m", "/conf/site/models-of-mine/m", "/conf/site/models"] {
        let reason = read(at).unwrap_err().to_string();
        assert!(reason.contains("models are allowed only below /conf/site/models"), "{reason}");
    }
    // All that share the queues have the same roots, a model that goes through another one too.
    let others = WorkflowEngine::new(running.queues.clone());
    assert_eq!(others.model_roots(), workflows.model_roots());
    let reason = others.check_model(&read("/conf/site/models/through").unwrap()).unwrap_err();
    assert!(reason.to_string().contains("there is no workflow model"), "{reason}");
    for open in ["/", "/content/models", "/content", "/home/users/ann", "models", "/tmp/m"] {
        assert!(WorkflowModelRoots::new(&[open.to_owned()]).is_err(), "{open}");
    }
    running.stop.send_replace(true);
}
