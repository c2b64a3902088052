//! A save of an instance that is started over HTTP.

use std::time::SystemTime;

use http::{Method, StatusCode};
use serde_json::json;
use tympan_jobs::{JobQueues, NewJob};
use tympan_server::InstanceRole;

use crate::support::TestInstance;

const RUNS: &str = "/api/v1/backup/runs";
const TOPIC: &str = "tympan/backup/save";

#[tokio::test]
async fn an_instance_without_a_vault_starts_no_save() {
    let instance = TestInstance::author().await;
    let reply = instance.as_admin(Method::POST, RUNS).send().await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    assert!(reply.text().contains("set a vault in the section `[backup]`"), "{reply:?}");
}

#[tokio::test]
async fn one_save_is_started_whoever_asks_how_often() {
    let instance = TestInstance::author().await;
    let queues = JobQueues::new(instance.state.pool().clone());
    // As the program does for an instance with a vault.
    let job = NewJob::new(TOPIC, json!({}));
    queues.schedules().add("backup", "every 3600000ms", &job, SystemTime::now()).await.unwrap();
    instance.instance.set_backup_schedule("backup");
    assert!(queues.list_topic(TOPIC, 10).await.unwrap().is_empty());

    let started = instance.as_admin(Method::POST, RUNS).send().await;
    assert_eq!(started.status, StatusCode::OK, "{started:?}");
    let number = started.json()["job"].as_i64().unwrap();
    let jobs = queues.list_topic(TOPIC, 10).await.unwrap();
    assert_eq!(jobs.len(), 1);
    assert_eq!((jobs[0].id.0, jobs[0].user.as_str()), (number, "admin"));
    let again = instance.as_admin(Method::POST, RUNS).send().await;
    assert_eq!(again.json(), json!({ "job": number }), "it waits already");
    assert_eq!(queues.list_topic(TOPIC, 10).await.unwrap().len(), 1);

    let token = instance.user("ann", &["content-authors"]).await;
    let refused = instance.request(Method::POST, RUNS).bearer(&token).send().await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    let nobody = instance.request(Method::POST, RUNS).send().await;
    assert!(matches!(nobody.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN));
}

#[tokio::test]
async fn the_saves_of_an_instance_with_a_vault_are_for_administrators() {
    for (role, expected) in [
        (InstanceRole::Author, [401, 403, 403, 403, 200]),
        // A publisher has no such endpoint, whatever it saves.
        (InstanceRole::Publish, [404; 5]),
    ] {
        let instance = TestInstance::start(role, |_| {}).await;
        let queues = JobQueues::new(instance.state.pool().clone());
        let job = NewJob::new(TOPIC, json!({}));
        queues.schedules().add("backup", "every 3600000ms", &job, SystemTime::now()).await.unwrap();
        instance.instance.set_backup_schedule("backup");
        instance.instance.set_backup_run_source(|| Ok(Vec::new()));
        let mut tokens = vec![None];
        for (name, groups) in
            [("powerless", &[][..]), ("assets", &["dam-users"]), ("editor", &["content-authors"])]
        {
            let groups = if role == InstanceRole::Author { groups } else { &[] };
            tokens.push(Some(instance.user(name, groups).await));
        }
        tokens.push(Some(instance.token_of("admin").await));
        for method in [Method::GET, Method::POST] {
            for (token, expected) in tokens.iter().zip(expected) {
                let request = instance.request(method.clone(), RUNS);
                let request = match token {
                    Some(token) => request.bearer(token),
                    None => request,
                };
                let reply = request.send().await;
                assert_eq!(reply.status.as_u16(), expected, "{role:?} {method} {reply:?}");
            }
        }
        let started = queues.list_topic(TOPIC, 10).await.unwrap().len();
        assert_eq!(started, usize::from(role == InstanceRole::Author), "{role:?}");
    }
}
