//! The change feed: clients that wait, cursors of other instances, and the end of a stream.

use std::thread;

use axum::body::Body;
use http::Method;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::blocking_instance::{BlockingInstance, basic};
use crate::support::PASSWORD;

fn author_with_node() -> BlockingInstance {
    let author = BlockingInstance::author();
    assert_eq!(author.post("/content/n", "./made=yes").status, 201);
    author
}

#[test]
fn a_waiting_client_is_answered_by_the_change() {
    let author = author_with_node();
    let cursor = author.get("/changes?since=now")["next"].as_str().unwrap().to_owned();
    let path = format!("/changes?since={cursor}&wait=60s&kind=changed&path=/content/**");
    let as_admin = [("authorization", basic("admin", PASSWORD))];
    let answer = thread::scope(|scope| {
        let waiting = scope.spawn(|| author.send("GET", &path, &as_admin, b""));
        assert_eq!(author.post("/content/n", "./value=1").status, 200);
        waiting.join().unwrap()
    });
    assert!(answer.text().contains("\"value\""), "{}", answer.text());
}

#[test]
fn a_foreign_cursor_is_refused() {
    let author = author_with_node();
    let foreign = format!("/changes?since=1-{}", "ab".repeat(32));
    let refused = author.ask("admin", "GET", &foreign, &Value::Null);
    assert_eq!(refused.status, 410, "{}", refused.text());
    let problem = refused.json();
    let newest = problem["newest"].as_str().unwrap();
    assert_eq!(author.get(&format!("/changes?since={newest}"))["isEnd"], true);
    assert_eq!(author.send("GET", "/changes", &[], b"").status, 401);
}

#[test]
fn a_stream_ends_with_the_server_and_says_so() {
    let author = author_with_node();
    let as_admin = [("authorization", basic("admin", PASSWORD))];
    let stream = author
        .instance()
        .as_admin(Method::GET, "/changes?path=/content")
        .header("accept", "text/event-stream")
        .header("last-event-id", "oldest");
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| author.send("GET", "/changes?since=now&wait=60s", &as_admin, b""));
        let events = author.runtime().block_on(async {
            let mut body = stream.open().await.into_body();
            let mut events = read_until(&mut body, |text| text.contains("event: change")).await;
            author.instance().instance.stop();
            events += &read_until(&mut body, |_| false).await;
            events
        });
        assert!(
            events.contains("event: end") && events.contains("the server is shutting down"),
            "{events}"
        );
        let answer = waiting.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    });
}

/// Reads a body until its text is enough, or to its end.
async fn read_until(body: &mut Body, is_enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    while !is_enough(&text) {
        let Some(frame) = body.frame().await else { break };
        let bytes = frame.unwrap().into_data().unwrap_or_default();
        text += std::str::from_utf8(&bytes).unwrap();
    }
    text
}
