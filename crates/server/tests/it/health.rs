//! What an instance says of itself: by status, whatever hangs; and logging in where nothing can be written.

use std::sync::{Arc, Barrier};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::Request;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tympan_jobs::{JobClaim, JobQueues, NewJob};
use tympan_server::admin_router;

use crate::support::{PASSWORD, TestInstance};

/// Returns the level and the reason of a check.
fn check(health: &Value, name: &str) -> (String, String) {
    let checks = health["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no `{name}` in {health}"));
    let text = |member: &str| check[member].as_str().unwrap_or_default().to_owned();
    (text("level"), text("reason"))
}

async fn health(instance: &TestInstance, path: &str) -> (StatusCode, Value) {
    let reply = instance.get(path).await;
    assert_eq!(reply.header("cache-control"), "no-store");
    (reply.status, reply.json())
}

#[tokio::test]
async fn a_well_instance_is_healthy_and_ready() {
    let instance = TestInstance::author().await;
    let (status, all) = health(&instance, "/health").await;
    assert_eq!((status, &all["status"]), (StatusCode::OK, &json!("ok")), "{all}");
    for name in ["content", "state", "disk", "replication", "search", "jobs", "pools"] {
        assert_eq!(check(&all, name), ("ok".to_owned(), String::new()));
    }
    let (status, ready) = health(&instance, "/health/ready").await;
    assert_eq!((status, &ready["status"]), (StatusCode::OK, &json!("ok")), "{ready}");
}

/// Nothing here waits for the bucket: it answers when the test has all it wants to know.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_hangs_is_reported_by_status() {
    let instance = TestInstance::author().await;
    let answer = Arc::new(Barrier::new(2));
    let asked = Arc::clone(&answer);
    instance.instance.add_dependency_probe("bucket", move || {
        asked.wait();
        Ok(())
    });
    for path in ["/health", "/health/ready", "/health"] {
        let (status, told) = health(&instance, path).await;
        assert_eq!((status, &told["status"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("fail")));
        let (level, reason) = check(&told, "bucket");
        assert_eq!(level, "fail");
        assert!(reason.starts_with("no response within"), "{reason}");
        assert_eq!(check(&told, "content").0, "ok");
    }
    answer.wait();
}

#[tokio::test]
async fn a_dependency_that_fails_says_why() {
    let instance = TestInstance::publish().await;
    instance.instance.add_dependency_probe("database", || Err("it is gone".to_owned()));
    let (status, told) = health(&instance, "/health/ready").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(check(&told, "database"), ("fail".to_owned(), "it is gone".to_owned()));
}

#[tokio::test]
async fn jobs_that_failed_for_good_are_reported_by_status() {
    let now = SystemTime::now();
    let day_before = now - Duration::from_hours(25);
    // An old failure is for the list of jobs.
    for (ended, expected) in [(now, 503), (day_before, 200)] {
        let instance = TestInstance::author().await;
        let queues = JobQueues::new(instance.state.pool().clone());
        let id = queues.add_job(NewJob::new("my/topic", json!({})), ended).await.unwrap();
        let claim = JobClaim { worker: "w", lease: Duration::from_secs(60) };
        queues.claim_jobs("my/topic", "", 1, claim, ended).await.unwrap();
        queues.fail_job(id, "w", "no", None, ended).await.unwrap();
        let (status, told) = health(&instance, "/health").await;
        assert_eq!(status.as_u16(), expected, "{told}");
        let (level, reason) = check(&told, "jobs");
        assert_eq!(level, if expected == 503 { "fail" } else { "ok" });
        assert_eq!(reason.contains("1 of the topic `my/topic`"), expected == 503, "{reason}");
        let (status, _) = health(&instance, "/health/ready").await;
        assert_eq!(status, StatusCode::OK, "requests are answered all the same");
    }
}

#[tokio::test]
async fn requests_are_counted_by_method_and_class_of_status() {
    let instance = TestInstance::author().await;
    instance.get("/health/ready").await;
    instance.get("/content/nothing.json").await;
    instance.try_post("/content/a", &[(":operation", "bogus")]).await;
    let router = admin_router(instance.instance.clone());
    let request =
        Request::builder().uri("/metrics").header("host", "localhost").body(Body::empty()).unwrap();
    let answer = router.oneshot(request).await.unwrap();
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&bytes);
    for (method, class) in [("GET", "2xx"), ("GET", "4xx"), ("POST", "4xx")] {
        let line = format!(
            "\ntympan_request_duration_seconds_count{{role=\"author\",method=\"{method}\",status=\"{class}\"}} 1\n"
        );
        assert!(text.contains(&line), "{line} in {text}");
    }
}

/// Lets the state database take nothing more, as on a full disk.
async fn fill(instance: &TestInstance) {
    let pool = instance.state.pool();
    let run = async |text: &'static str| sqlx::raw_sql(text).execute(pool).await;
    run("CREATE TABLE filler (bytes TEXT)").await.unwrap();
    run("PRAGMA max_page_count = 1").await.unwrap();
    for statement in [
        "INSERT INTO filler VALUES (hex(zeroblob(1000)))",
        // The last page of the table of logins may have room left.
        "INSERT INTO login (token_hash, kind, user_name, created) \
         VALUES (hex(randomblob(32)), 'session', 'nobody', 0)",
    ] {
        let error = loop {
            if let Err(error) = run(statement).await {
                break error;
            }
        };
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("13"), "{error}");
    }
}

#[tokio::test]
async fn an_administrator_logs_in_on_a_full_disk() {
    let instance = TestInstance::author().await;
    let log_in = async |password: &str| {
        let form = [("user", "admin"), ("password", password)];
        instance.request(Method::POST, "/login").form(&form).send().await
    };
    fill(&instance).await;
    assert_eq!(log_in("wrong").await.status, StatusCode::UNAUTHORIZED);
    let reply = log_in(PASSWORD).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    let cookie = reply.header("set-cookie").split(';').next().unwrap().to_owned();
    let me = async |cookie: &str| {
        let request = instance.request(Method::GET, "/api/v1/me").header("cookie", cookie);
        request.send().await
    };
    let mine = me(&cookie).await;
    assert_eq!((mine.status, &mine.json()["user"]), (StatusCode::OK, &json!("admin")));
    // What ends sessions ends this one.
    let out = instance.request(Method::POST, "/logout").header("cookie", &cookie).send().await;
    assert!(out.status.is_success(), "{out:?}");
    assert_ne!(me(&cookie).await.status, StatusCode::OK);
    let reply = log_in(PASSWORD).await;
    let cookie = reply.header("set-cookie").split(';').next().unwrap().to_owned();
    assert_eq!(me(&cookie).await.status, StatusCode::OK);
    instance.edit(|session| {
        tympan_server::set_password(session, "admin", "another-violet-harbor").unwrap();
    });
    assert_ne!(me(&cookie).await.status, StatusCode::OK, "the password has changed");
}

/// Other changes say what is wrong.
#[tokio::test]
async fn a_full_state_database_is_reported_as_a_full_disk() {
    let instance = TestInstance::author().await;
    fill(&instance).await;
    // Too long for what room is left in any page.
    let queue = format!("com_day_cq_replication_job_{}", "x".repeat(4000));
    let reply = instance.try_post("/api/v1/jobs/queues/pause", &[("queue", &queue)]).await;
    assert_eq!(reply.status, StatusCode::INSUFFICIENT_STORAGE, "{reply:?}");
}
