//! The views for administrators: what they show, and what they never show.

use std::sync::Arc;
use std::time::SystemTime;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tympan_jobs::{JobQueues, NewJob};
use tympan_server::{DispatcherAdmin, EffectiveSetting, SavedContent, SavedPage, SavedState};

use crate::support::TestInstance;

const AGENT: &str = "/etc/replication/agents.author/publish/jcr:content";

async fn view(instance: &TestInstance, name: &str) -> Value {
    instance.get(&format!("/api/v1/operations/{name}")).await.json()
}

#[tokio::test]
async fn a_paused_queue_is_shown_as_paused() {
    let instance = TestInstance::author().await;
    let queues = JobQueues::new(instance.state.pool().clone());
    queues.add_job(NewJob::new("some/topic", json!({})), SystemTime::now()).await.unwrap();
    let main = async || {
        let found = view(&instance, "jobs").await;
        let mut queues = found["queues"].as_array().unwrap().iter();
        let queue = queues.find(|queue| queue["name"] == "<main queue>").unwrap();
        (queue["paused"].clone(), queue["queued"].clone())
    };
    assert_eq!(main().await, (json!(false), json!(1)));
    let form = [("queue", "<main queue>")];
    assert_eq!(instance.try_post("/api/v1/jobs/queues/pause", &form).await.status, StatusCode::OK);
    assert_eq!(main().await, (json!(true), json!(1)));
    assert_eq!(view(&instance, "jobs").await["failed"], json!([]));
}

#[tokio::test]
async fn an_agent_is_edited_without_showing_its_secrets() {
    let instance = TestInstance::author().await;
    let form = [
        ("./enabled", "true"),
        ("./transportUri", "http://carl:quokka@127.0.0.1:4503/bin/receive"),
        ("./serializationType", "durbo"),
        ("./protocolHTTPHeaders", "Authorization: quokka"),
    ];
    instance.post(AGENT, &form).await;
    let found = view(&instance, "replication").await;
    assert!(!found.to_string().contains("quokka"), "{found}");
    let agent = &found["agents"][0];
    assert_eq!(agent["target"], "http://carl:***@127.0.0.1:4503/bin/receive");
    assert_eq!((&agent["isHere"], &agent["enabled"]), (&json!(true), &json!(true)));

    let change = async |fields: &[(&str, &str)]| {
        let form = [&[("role", "author"), ("name", "publish")][..], fields].concat();
        instance.try_post("/api/v1/operations/replication", &form).await.status
    };
    let fields =
        [("title", "First"), ("enabled", "false"), ("paths", "/content/a"), ("user", "ann")];
    assert_eq!(change(&fields).await, StatusCode::OK);
    // What was shown in place of the password is not stored.
    assert_eq!(
        change(&[("target", "http://carl:***@127.0.0.1:4503/bin/receive")]).await,
        StatusCode::OK
    );
    assert_eq!(
        instance.property(AGENT, "transportUri"),
        "String http://carl:quokka@127.0.0.1:4503/bin/receive"
    );
    let agent = view(&instance, "replication").await["agents"][0].clone();
    assert_eq!(
        (&agent["title"], &agent["enabled"], &agent["paths"], &agent["user"]),
        (&json!("First"), &json!(false), &json!(["/content/a"]), &json!("ann"))
    );
    assert_eq!(change(&[("paths", ""), ("user", "")]).await, StatusCode::OK);
    let agent = view(&instance, "replication").await["agents"][0].clone();
    assert_eq!((&agent["paths"], &agent["user"]), (&json!([]), &Value::Null));
    for wrong in
        [("target", "ftp://h"), ("target", "http://"), ("type", "pigeon"), ("paths", "content")]
    {
        let status = change(&[wrong]).await;
        assert!(status.is_client_error(), "{wrong:?}: {status}");
    }
}

#[tokio::test]
async fn the_health_of_all_components_is_shown_with_resources() {
    let instance = TestInstance::author().await;
    instance.instance.add_health_check("sundial", || Some("it is cloudy".to_owned()));
    let found = view(&instance, "health").await;
    let checks = found["checks"].as_array().unwrap();
    let sundial = checks.iter().find(|check| check["name"] == "sundial").unwrap();
    assert_eq!((&sundial["level"], &sundial["reason"]), (&json!("warn"), &json!("it is cloudy")));
    assert!(found["diskBytes"].as_u64().unwrap() > 0);
    assert_eq!(found["role"], "author");
}

#[tokio::test]
async fn the_settings_in_force_are_shown() {
    let instance = TestInstance::author().await;
    assert_eq!(view(&instance, "configuration").await["settings"], json!([]));
    instance.instance.set_effective_settings(vec![EffectiveSetting {
        key: "work.permits".to_owned(),
        value: "8".to_owned(),
        source: Some("tympan.toml:3".to_owned()),
        summary: "The number of permits".to_owned(),
    }]);
    let found = view(&instance, "configuration").await;
    assert_eq!(found["settings"][0]["source"], "tympan.toml:3");
    assert!(found["content"]["configurations"].is_array());
    let bob = instance.user("bob", &["content-authors"]).await;
    let refused =
        instance.request(Method::GET, "/api/v1/operations/configuration").bearer(&bob).send().await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(!refused.text().contains("permits"), "{refused:?}");
}

/// Serves one response on a port of its own; returns its URL and what was asked.
async fn dispatcher_that_answers(
    status: &'static str,
    body: &'static str,
) -> (String, tokio::task::JoinHandle<String>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = String::new();
        let mut piece = [0; 4096];
        // The client sends the body with the head or after it.
        while !asked.contains("\r\n\r\n") || (asked.starts_with("POST") && !asked.ends_with('}')) {
            let count = stream.read(&mut piece).await.unwrap();
            asked.push_str(std::str::from_utf8(&piece[..count]).unwrap());
        }
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(head.as_bytes()).await.unwrap();
        asked
    });
    (url, answering)
}

fn dispatcher(name: &str, url: &str) -> DispatcherAdmin {
    let token = Some("a-token-of-16-characters".to_owned());
    DispatcherAdmin { name: name.to_owned(), url: url.to_owned(), token }
}

#[tokio::test]
async fn a_dispatcher_is_shown_and_explains_an_address() {
    let instance = TestInstance::author().await;
    assert_eq!(view(&instance, "caches").await["dispatchers"], json!([]));
    let (url, asked) = dispatcher_that_answers("200 OK", r#"{"hit_ratio":80.0}"#).await;
    instance.instance.add_dispatcher(dispatcher("edge", &url));
    instance.instance.add_dispatcher(dispatcher("gone", "http://127.0.0.1:1"));
    let found = view(&instance, "caches").await;
    assert_eq!(found["dispatchers"][0]["status"]["hit_ratio"], 80.0);
    assert!(
        found["dispatchers"][1]["problem"].as_str().unwrap().contains("127.0.0.1:1"),
        "{found}"
    );
    assert!(!found.to_string().contains("a-token"), "{found}");
    let asked = asked.await.unwrap();
    assert!(asked.contains("GET /status.json"), "{asked}");
    assert!(asked.contains("uthorization: Bearer a-token-of-16-characters"), "{asked}");

    let (url, asked) = dispatcher_that_answers("200 OK", r#"{"cache":"not cacheable: x"}"#).await;
    instance.instance.add_dispatcher(dispatcher("edge", &url));
    let address = "/api/v1/operations/caches/explain?dispatcher=edge&url=/a.html%3Fb=c%26d";
    let reply = instance.get(address).await;
    assert_eq!(reply.json(), json!({ "cache": "not cacheable: x" }));
    assert!(asked.await.unwrap().starts_with("GET /explain?url=%2Fa%2Ehtml%3Fb%3Dc%26d "));
}

#[tokio::test]
async fn paths_are_flushed_at_a_dispatcher() {
    let instance = TestInstance::author().await;
    let (url, asked) = dispatcher_that_answers("200 OK", r#"{"paths":2,"farms":1}"#).await;
    instance.instance.add_dispatcher(dispatcher("edge", &url));
    let flush = async |fields: &[(&str, &str)]| {
        let form = [&[("dispatcher", "edge")][..], fields].concat();
        instance.try_post("/api/v1/operations/caches/flush", &form).await
    };
    assert_eq!(flush(&[("path", "content")]).await.status, StatusCode::UNPROCESSABLE_ENTITY);
    let reply = flush(&[("path", "/content/a"), ("path", "/content/b"), ("refetch", "true")]).await;
    assert_eq!(reply.json(), json!({ "paths": 2, "farms": 1 }));
    let asked = asked.await.unwrap();
    let body = asked.split("\r\n\r\n").nth(1).unwrap();
    let sent: Value = serde_json::from_str(body).unwrap();
    let paths = json!(["/content/a", "/content/b"]);
    assert_eq!(sent, json!({ "paths": paths, "refetch": paths, "tree": false }));

    let (url, _) = dispatcher_that_answers("403 Forbidden", "changes require the token\n").await;
    instance.instance.add_dispatcher(dispatcher("edge", &url));
    let refused = flush(&[("path", "/content/a")]).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text().contains("changes require the token"), "{refused:?}");
}

#[tokio::test]
async fn requests_of_the_last_hour_are_shown() {
    let instance = TestInstance::author().await;
    for _ in 0..3 {
        instance.get("/api/v1/me").await;
    }
    let found = view(&instance, "performance").await;
    assert!(found["requests"].as_u64().unwrap() >= 3, "{found}");
    assert_eq!(found["minutes"].as_array().unwrap().len(), 60);
    let classes = found["pageClasses"].as_array().unwrap();
    let goals: Vec<_> =
        classes.iter().map(|class| class["goalPercent"].as_u64().unwrap()).collect();
    assert_eq!(goals, [70, 25, 4, 1, 0]);
    assert_eq!((&classes[0]["fromMs"], &classes[4]["toMs"]), (&json!(0), &Value::Null));
}

#[tokio::test]
async fn logs_are_shown_without_the_secrets_in_addresses() {
    let instance = TestInstance::author().await;
    let login = instance.request(Method::GET, "/login/link?token=quokka").send().await;
    assert!(login.status.is_redirection());
    // Lines are written by another thread. Those of these requests have `%3F`.
    let found = loop {
        let found = instance.get("/api/v1/operations/logs?contains=LOGIN/link%3F").await.json();
        if found["lines"].as_array().is_some_and(|lines| !lines.is_empty()) {
            break found;
        }
        tokio::task::yield_now().await;
    };
    assert!(found.to_string().contains("token=***"), "{found}");
    assert!(!found.to_string().contains("quokka"), "{found}");
    let names: Vec<_> =
        found["files"].as_array().unwrap().iter().map(|file| file["name"].clone()).collect();
    assert_eq!(names, ["access.log", "request.log"]);
    for outside in ["..%2Fstate.db", "%2Fetc%2Fpasswd", "request.log%2F"] {
        let reply = instance.get(&format!("/api/v1/operations/logs?file={outside}")).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{outside}");
    }
}

#[tokio::test]
async fn schedules_and_indexes_are_shown() {
    let instance = TestInstance::author().await;
    let queues = JobQueues::new(instance.state.pool().clone());
    let job = NewJob::new("com/adobe/granite/maintenance/job/RevisionCleanupTask", json!({}));
    let now = SystemTime::now();
    queues.schedules().add("maintenance/garbage", "every 3600000ms", &job, now).await.unwrap();
    let found = view(&instance, "maintenance").await;
    assert_eq!(found["schedules"][0]["name"], "maintenance/garbage");
    assert!(found["schedules"][0]["nextRun"].is_string());
    assert!(found["indexes"].is_array() && found["slow"]["statements"].is_array(), "{found}");
}

/// A backup with one page in one state.
struct OnePage {
    docview: &'static str,
    has_files: bool,
}

impl SavedContent for OnePage {
    fn list_states(&self, limit: usize) -> Result<Vec<SavedState>, String> {
        let state =
            SavedState { id: "abc".to_owned(), time: SystemTime::UNIX_EPOCH, is_incomplete: false };
        Ok(vec![state].into_iter().take(limit).collect())
    }

    fn list_names(&self, state: &str, path: &str) -> Result<Vec<String>, String> {
        match (state, path) {
            ("abc", "/content") => Ok(vec!["lost".to_owned()]),
            _ => Err(format!("the snapshot `{state}` has no path `{path}`")),
        }
    }

    fn read_page(&self, _: &str, _: &str) -> Result<SavedPage, String> {
        Ok(SavedPage { docview: self.docview.into(), has_files: self.has_files })
    }
}

const LOST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:cq="http://www.day.com/jcr/cq/1.0" jcr:primaryType="cq:Page">
    <jcr:content jcr:primaryType="cq:PageContent" jcr:title="As it was">
        <text jcr:primaryType="nt:unstructured" text="the lost words"/>
    </jcr:content>
</jcr:root>"#;

async fn restore(instance: &TestInstance, path: &str) -> crate::support::Reply {
    let form = [("state", "abc"), ("path", path)];
    instance.try_post("/api/v1/operations/backup/restore", &form).await
}

#[tokio::test]
async fn one_page_is_restored_from_a_backup() {
    let instance = TestInstance::author().await;
    assert_eq!(restore(&instance, "/content/lost").await.status, StatusCode::NOT_FOUND);
    instance.instance.set_saved_content(Arc::new(OnePage { docview: LOST, has_files: false }));
    assert_eq!(view(&instance, "backup/states").await["states"][0]["id"], "abc");
    let names = view(&instance, "backup/pages?state=abc&path=/content").await["names"].clone();
    assert_eq!(names, json!(["lost"]));

    // A page that is missing is created again.
    let reply = restore(&instance, "/content/lost").await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    assert_eq!(reply.json()["wasMissing"], true);
    let content = "/content/lost/jcr:content";
    assert_eq!(instance.property(content, "jcr:title"), "String As it was");
    assert_eq!(instance.property(content, "cq:lastModifiedBy"), "String admin");

    // Of one that is there, the content is replaced, and pages below it stay.
    let below = [("./jcr:primaryType", "cq:Page"), ("./jcr:content/jcr:title", "Below")];
    instance.post("/content/lost/below", &below).await;
    instance.post(content, &[("./jcr:title", "Changed"), ("./extra", "x")]).await;
    assert_eq!(restore(&instance, "/content/lost").await.json()["wasMissing"], false);
    assert_eq!(instance.property(content, "jcr:title"), "String As it was");
    assert_eq!(instance.property(content, "extra"), "-");
    assert_eq!(instance.property("/content/lost/below/jcr:content", "jcr:title"), "String Below");
    for outside in ["/home/users/admin", "/apps/site"] {
        assert_eq!(restore(&instance, outside).await.status, StatusCode::NOT_FOUND, "{outside}");
    }
}

#[tokio::test]
async fn a_page_with_files_is_not_restored_in_part() {
    let instance = TestInstance::author().await;
    instance.instance.set_saved_content(Arc::new(OnePage { docview: LOST, has_files: true }));
    let reply = restore(&instance, "/content/lost").await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.text().contains("tympan backup restore"), "{reply:?}");
    assert_eq!(instance.property("/content/lost/jcr:content", "jcr:title"), "-");
}

#[tokio::test]
async fn models_are_shown_with_their_steps_and_transitions() {
    let instance = TestInstance::author().await;
    let mut form = vec![("jcr:primaryType", "cq:WorkflowModel"), ("title", "Review")];
    form.extend([("nodes/s/type", "START"), ("nodes/s/title", "Begin")]);
    form.extend([("nodes/e/type", "END"), ("nodes/e/title", "End")]);
    form.extend([("transitions/a/from", "s"), ("transitions/a/to", "e")]);
    instance.post("/var/workflow/models/review", &form).await;
    let found = view(&instance, "workflows").await;
    let models = found["models"].as_array().unwrap();
    let model = models.iter().find(|model| model["title"] == "Review").unwrap();
    assert_eq!(model["transitions"], json!([{ "from": "s", "to": "e", "rule": null }]));
    let step = json!({ "name": "s", "title": "Begin", "type": "START" });
    assert!(model["steps"].as_array().unwrap().contains(&step), "{model}");
    assert_eq!(found["workflows"], json!([]));
}
