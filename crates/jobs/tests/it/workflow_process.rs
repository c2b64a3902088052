//! The processes and choosers that come with the engine, on real content.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value as Json, json};
use tokio::runtime::Handle;
use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::process::{standard_choosers, standard_processes};
use tympan_jobs::workflow::{
    ParticipantChooser, StepOutcome, StepRegistry, StepRun, WorkflowEngine, WorkflowHandler,
    WorkflowModelRoots, WorkflowProcess, WorkflowStart,
};

use crate::place::Place;
use crate::workflow::{MODELS, model, put};

const PAGE: &str = "/content/a";

fn repository() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", Property::text("A"))
        .with_property("cq:lastModifiedBy", Property::text("eve"))
        .with_property("count", Property::Single(Value::Long(1)));
    put(&repository, PAGE, Subtree::new("a", "cq:Page").with_child(content));
    put(&repository, "/content/b", Subtree::new("b", "cq:Page"));
    repository
}

fn step(arguments: &Json) -> StepRun {
    StepRun {
        workflow_id: 7,
        item_id: 1,
        model: "/m".to_owned(),
        payload: PAGE.to_owned(),
        initiator: "system".to_owned(),
        effective_user: "system".to_owned(),
        title: "a step".to_owned(),
        arguments: arguments.as_object().unwrap().clone(),
        data: Map::new(),
        saved_data: Map::new(),
    }
}

fn find(repository: &Repository, name: &str) -> Arc<dyn WorkflowProcess> {
    let all = standard_processes(repository).into_iter();
    all.into_iter().find(|one| one.name().ends_with(name)).unwrap()
}

/// Runs a process to its end, as a worker would that keeps what it remembers.
fn run(repository: &Repository, name: &str, mut step: StepRun) -> StepOutcome {
    let process = find(repository, name);
    loop {
        match process.run(&step, &JobContext::detached()) {
            StepOutcome::Wait { after, saved_data } if after.is_zero() => {
                step.saved_data = saved_data
            }
            outcome => return outcome,
        }
    }
}

fn done() -> StepOutcome {
    StepOutcome::Done(Map::new())
}

fn text(repository: &Repository, path: &str, name: &str) -> Option<String> {
    let node = repository.snapshot().unwrap().node(&NodePath::new(path).unwrap()).unwrap()?;
    node.property(name).map(|value| value.first().unwrap().to_text().into_owned())
}

fn is_there(repository: &Repository, path: &str) -> bool {
    repository.snapshot().unwrap().node(&NodePath::new(path).unwrap()).unwrap().is_some()
}

#[test]
fn properties_are_set_once_and_keep_their_type() {
    let repository = repository();
    let content = format!("{PAGE}/jcr:content");
    let arguments = json!({ "PROCESS_ARGS": "name=count,value=5,path=jcr:content" });
    assert_eq!(run(&repository, "SetPropertyProcess", step(&arguments)), done());
    assert_eq!(text(&repository, &content, "count").as_deref(), Some("5"));
    let root = repository.head_root().unwrap();
    assert_eq!(run(&repository, "SetPropertyProcess", step(&arguments)), done());
    assert_eq!(repository.head_root().unwrap(), root, "begun again it changes nothing");
    let gone = json!({ "name": "count", "path": "jcr:content" });
    assert_eq!(run(&repository, "SetPropertyProcess", step(&gone)), done());
    assert_eq!(text(&repository, &content, "count"), None);
    let missing = run(&repository, "SetPropertyProcess", step(&json!({})));
    let expected = "the step `a step` needs the argument `name`".to_owned();
    assert_eq!(missing, StepOutcome::Failed(expected));
}

#[test]
fn versions_are_kept_once() {
    let repository = repository();
    let arguments = json!({ "comment": "before", "label": "approved" });
    let versions = |repository: &Repository| {
        let snapshot = repository.snapshot().unwrap();
        snapshot.versions(&NodePath::new(PAGE).unwrap()).unwrap().len()
    };
    for _ in 0..2 {
        assert_eq!(run(&repository, "CreateVersionProcess", step(&arguments)), done());
        assert_eq!(versions(&repository), 1);
    }
}

#[test]
fn payloads_move_copy_and_go_also_when_begun_again() {
    let repository = repository();
    let copied = step(&json!({ "destination": "/content/b" }));
    let outcome = run(&repository, "CopyProcess", copied.clone());
    let StepOutcome::Done(data) = outcome else { panic!("{outcome:?}") };
    assert_eq!(data["copy"], json!("/content/b/a"));
    let refused = run(&repository, "CopyProcess", copied);
    assert_eq!(refused, StepOutcome::Failed("`/content/b/a` already exists".to_owned()));
    let mut moved = step(&json!({ "destination": "/content/c" }));
    let outcome = run(&repository, "MoveProcess", moved.clone());
    assert_eq!(outcome, StepOutcome::Moved { payload: "/content/c".to_owned() });
    assert!(is_there(&repository, "/content/c") && !is_there(&repository, PAGE));
    // Killed between the move and its record, it finds what it did.
    moved.saved_data = json!({ "to": "/content/c" }).as_object().unwrap().clone();
    let outcome = run(&repository, "MoveProcess", moved);
    assert_eq!(outcome, StepOutcome::Moved { payload: "/content/c".to_owned() });
    for _ in 0..2 {
        let gone = StepRun { payload: "/content/b/a".to_owned(), ..step(&json!({})) };
        assert_eq!(run(&repository, "DeleteNodeProcess", gone), done());
        assert!(!is_there(&repository, "/content/b/a"));
    }
}

#[test]
fn locks_belong_to_who_started_the_workflow() {
    let repository = repository();
    let content = format!("{PAGE}/jcr:content");
    let ann = || StepRun { initiator: "ann".to_owned(), ..step(&json!({})) };
    for _ in 0..2 {
        assert_eq!(run(&repository, "LockProcess", ann()), done());
        assert_eq!(text(&repository, &content, "jcr:lockOwner").as_deref(), Some("ann"));
    }
    let bob = StepRun { initiator: "bob".to_owned(), ..step(&json!({})) };
    assert!(matches!(run(&repository, "LockProcess", bob), StepOutcome::Failed(_)));
    for _ in 0..2 {
        assert_eq!(run(&repository, "UnlockProcess", ann()), done());
        assert_eq!(text(&repository, &content, "jcr:lockOwner"), None);
    }
}

#[test]
fn a_step_does_what_its_actor_may_do() {
    let repository = repository();
    let arguments = json!({ "name": "x", "value": "y", "path": "jcr:content" });
    let of = |actor: &str| StepRun { effective_user: actor.to_owned(), ..step(&arguments) };
    let refused = run(&repository, "SetPropertyProcess", of("nobody"));
    let StepOutcome::Failed(reason) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("acting as nobody"), "{reason}");
    assert_eq!(text(&repository, &format!("{PAGE}/jcr:content"), "x"), None);
    assert_eq!(run(&repository, "SetPropertyProcess", of("system")), done());
}

#[test]
fn waiting_ends_at_its_time() {
    let repository = repository();
    let wait = |arguments: Json| {
        find(&repository, "WaitProcess").run(&step(&arguments), &JobContext::detached())
    };
    let later = wait(json!({ "for": "30m" }));
    let StepOutcome::Wait { after, saved_data } = later else { panic!("{later:?}") };
    assert!(after <= Duration::from_secs(1800) && after > Duration::from_secs(1700));
    assert!(saved_data["until"].is_u64());
    assert_eq!(wait(json!({ "until": "2020-01-01T00:00:00.000Z" })), done());
    assert_eq!(wait(json!({ "until": "1000" })), done());
    assert!(matches!(wait(json!({ "until": "soon" })), StepOutcome::Failed(_)));
    assert!(matches!(wait(json!({})), StepOutcome::Failed(_)));
}

#[test]
fn choosers_name_people() {
    let repository = repository();
    let all = standard_choosers(&repository);
    let choose = |name: &str, step: StepRun| {
        let found: &Arc<dyn ParticipantChooser> =
            all.iter().find(|one| one.name().ends_with(name)).unwrap();
        found.choose_participant(&step)
    };
    let named = |name: &str| Ok(name.to_owned());
    assert_eq!(choose("WorkflowInitiatorParticipantChooser", step(&json!({}))), named("system"));
    assert_eq!(choose("PropertyParticipantChooser", step(&json!({}))), named("eve"));
    let other = step(&json!({ "property": "owner", "default": "editors" }));
    assert_eq!(choose("PropertyParticipantChooser", other), named("editors"));
    choose("PropertyParticipantChooser", step(&json!({ "property": "owner" }))).unwrap_err();
    let turn = step(&json!({ "participants": "ann, bob, eve" }));
    assert_eq!(choose("RandomParticipantChooser", turn), named("bob"), "the seventh instance");
    let mut known = step(&json!({ "variable": "who" }));
    known.data.insert("who".to_owned(), json!("cara"));
    assert_eq!(choose("VariableParticipantChooser", known), named("cara"));
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_name_unknown_steps_start_nothing() {
    let repository = repository();
    let place = Place::sqlite();
    let workflows = WorkflowEngine::new(place.open().await);
    put(&repository, &format!("{MODELS}/m"), model("m", "s:START one:PROCESS e:END s>one one>e"));
    let model = WorkflowModelRoots::default()
        .read_model(&repository.snapshot().unwrap(), &format!("{MODELS}/m"))
        .unwrap();
    let (payload, initiator) = (PAGE.to_owned(), "ann".to_owned());
    let start = WorkflowStart { model, payload, initiator, data: Map::new() };
    let handlers = WorkflowHandler::for_registry(
        &workflows,
        &Handle::current(),
        StepRegistry::standard(&repository),
    );
    assert_eq!(handlers.len(), 4);
    let refused =
        workflows.start_workflow(&start, SystemTime::now()).await.unwrap_err().to_string();
    let expected = format!(
        "the step `one` of `{MODELS}/m` names the unknown process `com.example.other.Noting`; known processes are "
    );
    assert!(refused.starts_with(&expected) && refused.contains("NoopProcess"), "{refused}");
}
