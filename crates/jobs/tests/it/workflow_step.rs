//! Steps that do not go their usual way: late, sent back, failed, chosen for, within another workflow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use serde_json::Map;
use tympan_content::{NodePath, Property, Repository};
use tympan_jobs::JobContext;
use tympan_jobs::workflow::{
    StepActionContext, StepOutcome, StepRegistry, StepRun, WorkItem, WorkflowFilter,
    WorkflowProcess, WorkflowState,
};
use tympan_web::outgoing_policy::OutgoingPolicy;

use crate::place::{Place, both};
use crate::workflow::{MODELS, Running, model, put};

/// Stores a model, with arguments of steps as `step name value`.
fn put_model(repository: &Repository, name: &str, parts: &str, arguments: &[[&str; 3]]) {
    put(repository, &format!("{MODELS}/{name}"), model(name, parts));
    let mut session = repository.session("ann").unwrap();
    for [step, argument, value] in arguments {
        let data = NodePath::new(&format!("{MODELS}/{name}/nodes/{step}/metaData")).unwrap();
        session.set_property(&data, argument, Property::text(*value)).unwrap();
    }
    session.commit("arguments", SystemTime::now()).unwrap();
}

async fn item_for(running: &Running, name: &str) -> WorkItem {
    loop {
        let names = [name.to_owned()];
        if let Some(item) = running.workflows.list_inbox(&names, 10).await.unwrap().pop() {
            return item;
        }
        tokio::task::yield_now().await;
    }
}

async fn complete(running: &Running, item: i64, user: &str) {
    let names = [user.to_owned()];
    let action = StepActionContext { user, comment: None, now: SystemTime::now() };
    running
        .workflows
        .complete_participant_step(item, &names, None, Map::new(), &action)
        .await
        .unwrap();
}

async fn actions(running: &Running, id: i64) -> Vec<String> {
    let history = running.workflows.list_history(id).await.unwrap();
    history.iter().map(|one| format!("{} {} {}", one.step, one.action, one.user)).collect()
}

const REVIEW: &str = "s:START check:PARTICIPANT:bob one:PROCESS e:END s>check check>one one>e";

#[tokio::test(flavor = "multi_thread")]
async fn steps_that_are_late_go_on_jump_or_go_to_somebody_else() {
    for place in both() {
        let repository = Repository::in_memory().unwrap();
        put_model(&repository, "advance", REVIEW, &[["check", "timeoutMillis", "1"]]);
        let jump = "s:START check:PARTICIPANT:bob one:PROCESS other:PROCESS e:END \
                    s>check check>one one>e other>e";
        // Nothing but the time-out leads to `other`, so that it lies outside: a way is needed for a step to count.
        let jump = format!("{jump} check>other?verdict==no");
        put_model(
            &repository,
            "jump",
            &jump,
            &[
                ["check", "timeoutMillis", "1"],
                ["check", "timeoutHandler", "JumpTimeoutHandler"],
                ["check", "timeoutTarget", "other"],
            ],
        );
        put_model(
            &repository,
            "escalate",
            REVIEW,
            &[
                ["check", "timeoutMillis", "1"],
                ["check", "timeoutHandler", "org.example.EscalateTimeoutHandler"],
                ["check", "timeoutParticipant", "eve"],
            ],
        );
        put_model(&repository, "patient", REVIEW, &[["check", "timeout", "2d"]]);
        let running = Running::start_on(place.open().await, repository);
        let advanced = running.begin("advance").await;
        running.until(advanced, WorkflowState::Completed).await;
        assert!(actions(&running, advanced).await.contains(&"check completed timeout".to_owned()));
        let jumped = running.begin("jump").await;
        running.until(jumped, WorkflowState::Completed).await;
        assert_eq!(running.seen(), ["one", "other"]);
        let escalated = running.begin("escalate").await;
        let item = item_for(&running, "eve").await;
        assert_eq!(item.workflow_id, escalated);
        complete(&running, item.id, "eve").await;
        running.until(escalated, WorkflowState::Completed).await;
        let patient = running.begin("patient").await;
        let item = item_for(&running, "bob").await;
        let open = |all: &std::collections::BTreeMap<String, tympan_jobs::TopicStatistics>| {
            all.values().map(|one| one.queued).sum::<u64>()
        };
        assert_eq!(
            open(&running.queues.statistics().topic_statistics().await.unwrap()),
            1,
            "the time-out waits"
        );
        complete(&running, item.id, "bob").await;
        running.until(patient, WorkflowState::Completed).await;
        assert_eq!(
            open(&running.queues.statistics().topic_statistics().await.unwrap()),
            0,
            "and goes with its step"
        );
        running.stop.send_replace(true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_go_back_within_their_split() {
    let repository = Repository::in_memory().unwrap();
    let parts = "s:START draft:PARTICIPANT:ann split:AND_SPLIT left:PARTICIPANT:bob right:PARTICIPANT:eve \
                 join:AND_JOIN last:PARTICIPANT:cara e:END \
                 s>draft draft>split split>left split>right left>join right>join join>last last>e";
    put_model(&repository, "m", parts, &[]);
    let place = Place::sqlite();
    let running = Running::start_on(place.open().await, repository);
    let id = running.begin("m").await;
    complete(&running, item_for(&running, "ann").await.id, "ann").await;
    let left = item_for(&running, "bob").await;
    let back = |item: i64, user: &'static str, to: Option<&'static str>| {
        let workflows = running.workflows.clone();
        async move {
            let names = [user.to_owned()];
            let comment = Some("once more");
            let action = StepActionContext { user, comment, now: SystemTime::now() };
            workflows.step_back(item, to, &names, &action).await
        }
    };
    back(left.id, "bob", Some("draft")).await.unwrap_err();
    complete(&running, left.id, "bob").await;
    complete(&running, item_for(&running, "eve").await.id, "eve").await;
    let last = item_for(&running, "cara").await;
    back(last.id, "bob", None).await.unwrap_err();
    assert_eq!(running.workflows.back_targets(last.id).await.unwrap(), ["draft"]);
    back(last.id, "cara", Some("left")).await.unwrap_err();
    back(last.id, "cara", None).await.unwrap();
    complete(&running, item_for(&running, "ann").await.id, "ann").await;
    complete(&running, item_for(&running, "bob").await.id, "bob").await;
    complete(&running, item_for(&running, "eve").await.id, "eve").await;
    complete(&running, item_for(&running, "cara").await.id, "cara").await;
    running.until(id, WorkflowState::Completed).await;
    assert!(actions(&running, id).await.contains(&"last stepped back cara".to_owned()));
    running.stop.send_replace(true);
}

/// Fails until it is told not to.
struct Failing(Arc<AtomicBool>);

impl WorkflowProcess for Failing {
    fn name(&self) -> &str {
        "org.example.Failing"
    }

    fn run(&self, _step: &StepRun, _context: &JobContext) -> StepOutcome {
        if self.0.load(Ordering::SeqCst) {
            return StepOutcome::Done(Map::new());
        }
        StepOutcome::Failed("the printer is on fire".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_steps_are_listed_and_restarted() {
    for place in both() {
        let repository = Repository::in_memory().unwrap();
        let parts = "s:START one:PROCESS e:END s>one one>e";
        put_model(&repository, "m", parts, &[["one", "PROCESS", "org.example.Failing"]]);
        let is_mended = Arc::new(AtomicBool::new(false));
        let steps = StepRegistry::default().with_process(Arc::new(Failing(is_mended.clone())));
        let running = Running::start_with(place.open().await, repository, steps);
        let id = running.begin("m").await;
        let failed = loop {
            if let Some(failed) = running.workflows.list_failed_steps(10).await.unwrap().pop() {
                break failed;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((failed.workflow_id, failed.reason.as_str()), (id, "the printer is on fire"));
        is_mended.store(true, Ordering::SeqCst);
        running
            .workflows
            .restart_failed_step(failed.item_id, "bob", SystemTime::now())
            .await
            .unwrap();
        running.until(id, WorkflowState::Completed).await;
        assert!(actions(&running, id).await.contains(&"one restarted bob".to_owned()));
        running
            .workflows
            .restart_failed_step(failed.item_id, "bob", SystemTime::now())
            .await
            .unwrap_err();
        running.stop.send_replace(true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_go_through_another_workflow() {
    for place in both() {
        let repository = Repository::in_memory().unwrap();
        let inner =
            "s:START inside:PROCESS:kind=image ask:PARTICIPANT:bob e:END s>inside inside>ask ask>e";
        put_model(&repository, "inner", inner, &[]);
        let path = format!("{MODELS}/inner");
        let outer = "s:START part:CONTAINER after:PROCESS e:END s>part part>after after>e";
        put_model(&repository, "outer", outer, &[["part", "SUB_WORKFLOW", &path]]);
        let steps = StepRegistry::standard(&repository);
        let running = Running::start_with(place.open().await, repository, steps);
        let id = running.begin("outer").await;
        let item = item_for(&running, "bob").await;
        assert_ne!(item.workflow_id, id);
        assert!(
            running
                .workflows
                .set_workflow_state(id, WorkflowState::Suspended, "ann", SystemTime::now())
                .await
                .unwrap()
        );
        assert!(running.workflows.list_inbox(&["bob".to_owned()], 10).await.unwrap().is_empty());
        assert!(
            running
                .workflows
                .set_workflow_state(id, WorkflowState::Running, "ann", SystemTime::now())
                .await
                .unwrap()
        );
        complete(&running, item.id, "bob").await;
        running.until(id, WorkflowState::Completed).await;
        assert_eq!(running.seen(), ["inside", "after"]);
        let found = running.workflows.find_instance(id).await.unwrap().unwrap();
        assert_eq!(found.data["kind"], serde_json::json!("image"), "what the part left");
        let second = running.begin("outer").await;
        let item = item_for(&running, "bob").await;
        running.workflows.terminate(second, "ann", None, SystemTime::now()).await.unwrap();
        let part = running.workflows.find_instance(item.workflow_id).await.unwrap().unwrap();
        assert_eq!(part.state, WorkflowState::Aborted, "parts end with the whole");
        running.stop.send_replace(true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn choosers_assign_and_notices_wait_in_the_inbox() {
    let repository = Repository::in_memory().unwrap();
    let parts = "s:START ask:DYNAMIC_PARTICIPANT tell:PROCESS e:END s>ask ask>tell tell>e";
    put_model(
        &repository,
        "m",
        parts,
        &[
            ["ask", "DYNAMIC_PARTICIPANT", "org.example.RandomParticipantChooser"],
            ["ask", "participants", "bob"],
            ["tell", "PROCESS", "NotifyProcess"],
            ["tell", "reader", "eve"],
            ["tell", "title", "It is done"],
        ],
    );
    let steps = StepRegistry::standard(&repository);
    let place = Place::sqlite();
    let running = Running::start_with(place.open().await, repository, steps);
    let id = running.begin("m").await;
    complete(&running, item_for(&running, "bob").await.id, "bob").await;
    let notice = item_for(&running, "eve").await;
    running.until(id, WorkflowState::Completed).await;
    assert_eq!((notice.title.as_str(), notice.payload.as_str()), ("It is done", "/content/a"));
    complete(&running, notice.id, "eve").await;
    running.until(notice.workflow_id, WorkflowState::Completed).await;
    let all = running.workflows.list_instances(&WorkflowFilter::default(), 10).await.unwrap();
    assert_eq!(all.len(), 2);
    running.stop.send_replace(true);
}

/// Answers three requests: the work has begun, it goes on, it is done. Returns its address and what it was asked.
fn other_system() -> (String, Arc<parking_lot::Mutex<Vec<String>>>) {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/work", listener.local_addr().unwrap());
    let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let noted = asked.clone();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let mut reader = BufReader::new(&stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if line.trim().is_empty() {
                    break;
                }
                let lower = line.to_lowercase();
                if let Some(count) = lower.strip_prefix("content-length:") {
                    length = count.trim().parse().unwrap();
                }
                head.push_str(&line);
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            noted.lock().push(format!("{head}\n{}", String::from_utf8(body).unwrap()));
            let (status, more, body) = match number {
                0 => ("202 Accepted", "Location: /orders/7\r\n", ""),
                1 => ("202 Accepted", "", ""),
                _ => ("200 OK", "", r#"{"pages":3}"#),
            };
            let length = body.len();
            let text = format!(
                "HTTP/1.1 {status}\r\n{more}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            (&stream).write_all(text.as_bytes()).unwrap();
        }
    });
    (address, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_system_is_asked_until_it_is_done() {
    let repository = Repository::in_memory().unwrap();
    let (address, asked) = other_system();
    let parts = "s:START out:EXTERNAL_PROCESS e:END s>out out>e";
    put_model(
        &repository,
        "m",
        parts,
        &[
            ["out", "PROCESS", "HttpExternalProcess"],
            ["out", "start", &address],
            ["out", "every", "0s"],
        ],
    );
    let host = address.parse::<http::Uri>().unwrap().authority().unwrap().to_string();
    let outgoing = OutgoingPolicy::new(&[host], Vec::new()).unwrap();
    let steps = StepRegistry::standard(&repository).with_external_hosts(&outgoing);
    let place = Place::sqlite();
    let running = Running::start_with(place.open().await, repository, steps);
    let id = running.begin("m").await;
    running.until(id, WorkflowState::Completed).await;
    let asked = asked.lock().clone();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked[0].starts_with("POST /work ") && asked[0].contains(r#""payload":"/content/a""#));
    assert!(asked[1].starts_with("GET /orders/7 ") && asked[2].starts_with("GET /orders/7 "));
    let keys: std::collections::BTreeSet<_> = asked
        .iter()
        .filter_map(|one| one.lines().find(|line| line.contains("idempotency")))
        .collect();
    assert_eq!(keys.len(), 1);
    let found = running.workflows.find_instance(id).await.unwrap().unwrap();
    assert!(!found.data.contains_key("pages"), "what the other system says is not kept");
    running.stop.send_replace(true);
}

/// Notes in whose name it is carried out.
struct Noted(Arc<parking_lot::Mutex<Vec<String>>>);

impl WorkflowProcess for Noted {
    fn name(&self) -> &str {
        "com.example.Noted"
    }

    fn run(&self, step: &StepRun, _context: &JobContext) -> StepOutcome {
        self.0.lock().push(step.effective_user.clone());
        StepOutcome::Done(Map::new())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_acts_for_who_started_it_or_for_a_service_user_and_nobody_else() {
    let repository = Repository::in_memory().unwrap();
    let users = tympan_content::Subtree::new("users", "rep:AuthorizableFolder").with_child(
        tympan_content::Subtree::new("publishing", "rep:SystemUser")
            .with_property("rep:authorizableId", "publishing")
            .with_property("rep:principalName", "publishing"),
    );
    let mut session = repository.session("system").unwrap();
    session.put_node(&NodePath::new("/users").unwrap(), users).unwrap();
    session.mark_as_received();
    session.commit("users", SystemTime::now()).unwrap();
    let parts =
        "s:START ask:PARTICIPANT:bob one:PROCESS two:PROCESS e:END s>ask ask>one one>two two>e";
    let arguments = [
        ["one", "PROCESS", "com.example.Noted"],
        ["two", "PROCESS", "com.example.Noted"],
        ["two", "serviceUser", "publishing"],
    ];
    put_model(&repository, "m", parts, &arguments);
    let actors = Arc::default();
    let steps =
        StepRegistry::standard(&repository).with_process(Arc::new(Noted(Arc::clone(&actors))));
    let place = Place::sqlite();
    let running = Running::start_with(place.open().await, repository.clone(), steps);
    let id = running.begin("m").await;
    complete(&running, item_for(&running, "bob").await.id, "bob").await;
    running.until(id, WorkflowState::Completed).await;
    assert_eq!(*actors.lock(), ["ann", "publishing"], "not bob, who completed a step");
    running.stop.send_replace(true);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_systems_are_asked_only_if_they_are_listed() {
    let (address, asked) = other_system();
    let authority = address.parse::<http::Uri>().unwrap().authority().unwrap().clone();
    let port = authority.port_u16().unwrap();
    for (listed, start) in [
        (Vec::new(), address.clone()),
        (vec!["localhost".to_owned()], format!("http://localhost:{port}/work")),
        (vec!["example.com".to_owned()], format!("http://2130706433:{port}/work")),
        (vec!["example.com".to_owned()], format!("http://[::ffff:127.0.0.1]:{port}/work")),
    ] {
        let outgoing = OutgoingPolicy::new(&listed, Vec::new()).unwrap();
        let repository = Repository::in_memory().unwrap();
        let process = StepRegistry::standard(&repository).with_external_hosts(&outgoing);
        let arguments = [["out", "PROCESS", "HttpExternalProcess"], ["out", "start", &*start]];
        put_model(&repository, "m", "s:START out:EXTERNAL_PROCESS e:END s>out out>e", &arguments);
        let place = Place::sqlite();
        let running = Running::start_with(place.open().await, repository, process);
        running.begin("m").await;
        let reason = loop {
            if let Some(failed) = running.workflows.list_failed_steps(10).await.unwrap().pop() {
                break failed.reason;
            }
            tokio::task::yield_now().await;
        };
        assert!(reason.contains("are not allowed"), "{start}: {reason}");
        running.stop.send_replace(true);
    }
    assert!(asked.lock().is_empty());
}
