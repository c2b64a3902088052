//! Jobs and workflows over HTTP: who may list, start, do, end and see what.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance, first_cookie, form_type};
use crate::support::PASSWORD;

const MODEL: &str = "/var/workflow/models/review";
const SEEN: &str = "/content/seen";
const HIDDEN: &str = "/content/hidden";

/// An author with a model of one step that the group `reviewers` does, two pages of which one is hidden, and people.
///
/// `ann` starts workflows, `bob` reviews, `eve` has nothing to do with either, `chief` is an administrator.
fn office() -> BlockingInstance {
    let author = BlockingInstance::author();
    author.run_jobs();
    author.done("POST", "/api/v1/groups", &json!({ "name": "reviewers" }));
    for (user, groups) in [
        ("ann", json!(["content-authors", "workflow-users"])),
        ("bob", json!(["reviewers"])),
        ("eve", json!(["workflow-users"])),
        ("chief", json!(["administrators"])),
    ] {
        author.add_user(user, &groups);
    }
    let mut form = String::from("jcr:primaryType=cq:WorkflowModel&title=Review");
    for (name, kind) in [("s", "START"), ("p", "PARTICIPANT"), ("e", "END")] {
        form.push_str(&format!("&nodes/{name}/type={kind}&nodes/{name}/title={name}"));
    }
    form.push_str("&nodes/p/metaData/PARTICIPANT=reviewers");
    for (name, from, to) in [("a", "s", "p"), ("b", "p", "e")] {
        form.push_str(&format!("&transitions/{name}/from={from}&transitions/{name}/to={to}"));
    }
    let made = author.post(MODEL, &form);
    assert!(made.status < 300, "{}", made.text());
    for page in [SEEN, HIDDEN] {
        let page = format!("/api/v1/nodes?path={page}");
        author.done("PUT", &page, &json!({ "type": "nt:unstructured" }));
    }
    let deny = |path: &str, principal: &str| {
        let entry = json!({ "allow": false, "principal": principal, "privileges": ["jcr:read"] });
        author.done("POST", &format!("/api/v1/permissions?path={path}"), &entry);
    };
    deny(HIDDEN, "ann");
    deny(SEEN, "bob");
    author
}

fn start(author: &BlockingInstance, user: &str, payload: &str) -> Answer {
    let form = format!("model={MODEL}&payload={payload}&data=why=new");
    author.post_as(user, "/api/v1/workflows", &form)
}

fn items(author: &BlockingInstance, user: &str) -> Vec<Value> {
    let inbox = author.ask(user, "GET", "/api/v1/workflows/inbox", &Value::Null);
    assert_eq!(inbox.status, 200, "{}", inbox.text());
    inbox.json()["items"].as_array().unwrap().clone()
}

/// Waits until a step is in somebody's inbox; gives its number.
fn item(author: &BlockingInstance, user: &str) -> i64 {
    loop {
        if let Some(item) = items(author, user).first() {
            return item["id"].as_i64().unwrap();
        }
        std::thread::yield_now();
    }
}

#[test]
fn jobs_are_looked_after_by_administrators_alone() {
    let author = office();
    let reads =
        ["", "/topics", "/queues", "/schedules", "/configurations", "?queue=x&state=queued"];
    let writes = [
        ("/retry", "id=1"),
        ("/stop", "id=1"),
        ("/cancel", "id=1"),
        ("/queues/pause", "queue=<main queue>"),
        ("/queues/resume", "queue=<main queue>"),
        ("/queues/set", "queue=<main queue>&set=queue.retries=3"),
        ("/queues", "name=mine&topic=a/b"),
    ];
    for path in reads {
        let path = format!("/api/v1/jobs{path}");
        let status = |user: &str| author.status(user, "GET", &path, &Value::Null);
        assert_eq!(["ann", "eve"].map(status), [403, 403], "{path}");
        assert_eq!(["admin", "chief"].map(status), [200, 200], "{path}");
        assert_eq!(author.send("GET", &path, &[], b"").status, 401, "{path}");
    }
    for (path, form) in writes {
        let path = format!("/api/v1/jobs{path}");
        let form = form.replace(' ', "+");
        let status = |user: &str| author.post_as(user, &path, &form).status;
        assert_eq!(["ann", "eve"].map(status), [403, 403], "{path}");
        let nobody = author.send("POST", &path, &[form_type()], form.as_bytes());
        assert_eq!(nobody.status, 401, "{path}");
        let done = author.post_as("chief", &path, &form);
        assert_eq!(done.status, 200, "{path}: {}", done.text());
    }
    // What was refused has not happened, what was allowed has.
    let queues = author.get("/api/v1/jobs/queues");
    let mine = queues["queues"].as_array().unwrap().iter().filter(|one| one["name"] == "mine");
    assert_eq!(mine.count(), 1);
}

#[test]
fn forms_are_taken_as_they_are_described() {
    let author = BlockingInstance::author();
    author.run_jobs();
    for (path, form, status, hint) in [
        (
            "/api/v1/jobs/stop",
            "id=1&force=true",
            400,
            "`force` is not a parameter of this endpoint",
        ),
        ("/api/v1/jobs/stop", "idd=1", 400, "did you mean `id`?"),
        ("/api/v1/jobs/stop", "id=1&id=2", 400, "`id` is given twice"),
        ("/api/v1/jobs/stop", "", 400, "`id` is missing"),
        ("/api/v1/jobs/stop", "id=one", 400, "`id` must be a number"),
        ("/api/v1/jobs/stop", "id=%FF", 400, "not UTF-8"),
        ("/api/v1/jobs/retry", "", 422, "specify either `id` or `queue`"),
        ("/api/v1/jobs/queues", "name=x&topic=", 422, "`topic` is missing: specify the topics"),
        ("/api/v1/jobs/queues", "name=&topic=a", 400, "`name` must be a string of 1"),
        ("/api/v1/jobs/queues/set", "queue=none", 404, "there is no queue `none`"),
        ("/api/v1/jobs/queues/set", "queue=none&set=x", 400, "`set` must be `name=value`"),
        ("/api/v1/jobs/queues/set", "queue=none&set=x=1", 422, "`x` is not a property"),
        ("/api/v1/workflows", "model=/x&payload=content", 400, ""),
        ("/api/v1/workflows", "model=/x&payload=/content", 409, "no workflow model"),
    ] {
        let answer = author.post(path, form);
        assert_eq!(answer.status, status, "{path} {form}: {}", answer.text());
        assert!(answer.text().contains(hint), "{path} {form}: {}", answer.text());
    }
    let json = author.ask("admin", "POST", "/api/v1/jobs/stop", &json!({ "id": 1 }));
    assert_eq!(json.status, 415, "{}", json.text());
}

/// A browser that sends its cookie by itself has no token against that.
#[test]
fn a_session_changes_no_job_without_its_token() {
    let author = BlockingInstance::author();
    let cookie = first_cookie(&author.log_in("admin", PASSWORD));
    for path in ["/api/v1/jobs/stop", "/api/v1/workflows/purge"] {
        let headers = [form_type(), ("cookie", cookie.clone())];
        let answer = author.send("POST", path, &headers, b"id=1");
        assert_eq!(answer.status, 403, "{path}: {}", answer.text());
        assert!(answer.text().contains("CSRF"), "{path}: {}", answer.text());
    }
}

#[test]
fn a_workflow_is_seen_by_who_started_it() {
    let author = office();
    // What may not be read cannot be the subject, and looks as if it were not there.
    for (user, payload, status) in [
        ("ann", HIDDEN, 404),
        ("ann", "/content/none", 404),
        ("bob", SEEN, 404),
        ("ann", SEEN, 201),
    ] {
        let answer = start(&author, user, payload);
        assert_eq!(answer.status, status, "{user} {payload}: {}", answer.text());
    }
    // `bob` does not see the model either.
    assert_eq!(start(&author, "bob", HIDDEN).status, 409);
    assert_eq!(author.get("/api/v1/workflows/models")["models"].as_array().unwrap().len(), 1);
    let models = author.ask("bob", "GET", "/api/v1/workflows/models", &Value::Null);
    assert_eq!(models.json()["models"], json!([]));

    let listed = |user: &str| {
        let answer = author.ask(user, "GET", "/api/v1/workflows", &Value::Null);
        answer.json()["workflows"].as_array().unwrap().clone()
    };
    let own = listed("ann");
    let id = own[0]["id"].as_i64().unwrap();
    assert_eq!((own.len(), &own[0]["payload"]), (1, &json!(SEEN)));
    assert_eq!(own[0]["data"]["why"], "new");
    assert_eq!([listed("bob").len(), listed("eve").len()], [0, 0]);
    assert_eq!([listed("admin").len(), listed("chief").len()], [1, 1]);
    let read = format!("/api/v1/workflows/instance?id={id}");
    let missing = "/api/v1/workflows/instance?id=999";
    for user in ["bob", "eve"] {
        let [hidden, absent] =
            [&*read, missing].map(|path| author.ask(user, "GET", path, &Value::Null));
        assert_eq!((hidden.status, absent.status), (404, 404), "{user}");
        let text = |answer: &Answer| answer.text().replace("999", &id.to_string());
        assert_eq!(text(&hidden), text(&absent), "{user}");
        for verb in ["suspend", "resume", "terminate"] {
            let path = format!("/api/v1/workflows/{verb}");
            assert_eq!(
                author.post_as(user, &path, &format!("id={id}")).status,
                404,
                "{user} {verb}"
            );
        }
        assert_eq!(author.post_as(user, "/api/v1/workflows/purge", "days=0").status, 403, "{user}");
    }
}

/// The step is bob's, through a group. He may not read the page, and is not told which it is.
#[test]
fn a_step_is_completed_by_who_is_assigned() {
    let author = office();
    let started = start(&author, "ann", SEEN);
    assert_eq!(started.status, 201, "{}", started.text());
    let read = format!("/api/v1/workflows/instance?id={}", started.json()["id"]);
    let step = item(&author, "bob");
    assert_eq!(items(&author, "bob")[0]["payload"], Value::Null);
    assert_eq!(items(&author, "chief")[0]["payload"], SEEN);
    assert_eq!([items(&author, "ann").len(), items(&author, "eve").len()], [0, 0]);
    for user in ["ann", "eve"] {
        for (verb, more) in [("complete", ""), ("delegate", "&to=bob"), ("delegate", "&to=nobody")]
        {
            let path = format!("/api/v1/workflows/{verb}");
            let answer = author.post_as(user, &path, &format!("item={step}{more}"));
            assert_eq!(answer.status, 404, "{user} {verb}{more}: {}", answer.text());
        }
    }
    let delegate = "/api/v1/workflows/delegate";
    assert_eq!(author.post_as("bob", delegate, &format!("item={step}&to=nobody")).status, 422);
    assert_eq!(author.post_as("bob", delegate, &format!("item={step}&to=eve")).status, 200);
    assert_eq!(
        author.post_as("bob", "/api/v1/workflows/complete", &format!("item={step}")).status,
        404
    );
    let complete = format!("item={step}&comment=fine&data=verdict=yes");
    assert_eq!(author.post_as("eve", "/api/v1/workflows/complete", &complete).status, 200);
    assert_eq!(author.post_as("eve", "/api/v1/workflows/complete", &complete).status, 404);
    let shown = author.ask("ann", "GET", &read, &Value::Null).json();
    assert!(shown["history"].to_string().contains("fine"), "{shown}");
    assert_eq!(shown["data"]["verdict"], "yes", "{shown}");
}

#[test]
fn a_model_with_an_unknown_process_is_reported_and_starts_nothing() {
    let author = office();
    let step = format!("{MODEL}/nodes/p");
    let saved = author
        .post(&step, "type=PROCESS&title=Watermark&metaData/PROCESS=com.example.WatermarkProcess");
    assert!(saved.status < 300, "{}", saved.text());
    let fault = "the step `Watermark` of `/var/workflow/models/review` names the unknown process \
                 `com.example.WatermarkProcess`; known processes are ";
    let models = author.ask("admin", "GET", "/api/v1/workflows/models", &Value::Null);
    let told = models.json()["models"][0].clone();
    assert!(told["fault"].as_str().unwrap().starts_with(fault), "{told}");
    assert_eq!(told["path"], MODEL);
    let refused = start(&author, "ann", SEEN);
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("WatermarkProcess"), "{}", refused.text());
}

#[test]
fn nobody_writes_in_the_name_of_workflow_steps() {
    let author = office();
    let write = |message: &str| {
        let operation =
            json!({ "op": "patch", "path": SEEN, "patch": { "properties": { "a": "b" } } });
        let batch = json!({ "operations": [operation], "message": message });
        author.status("admin", "POST", "/api/v1/batch", &batch)
    };
    // Launchers pass over revisions with such messages.
    assert_eq!(write("workflow step: Set of workflow 7"), 422);
    assert_eq!(write(" workflow step: x"), 422);
    assert_eq!(write("after the workflow step: x"), 200);
}
