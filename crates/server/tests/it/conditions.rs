//! Conditions, batches and problems of the JSON API, as its description tells them.

use serde_json::{Value, json};

use crate::blocking_instance::{Answer, BlockingInstance, basic};
use crate::support::PASSWORD;

fn send(
    author: &BlockingInstance,
    method: &str,
    path: &str,
    more: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut headers = vec![
        ("authorization", basic("admin", PASSWORD)),
        ("content-type", "application/json".to_owned()),
    ];
    headers.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    author.send(method, path, &headers, body.as_bytes())
}

#[test]
fn conditions_are_as_described() {
    let author = BlockingInstance::author();
    let send = |method: &str, path: &str, more: &[(&str, &str)], body: &str| {
        send(&author, method, path, more, body)
    };
    let node = "/api/v1/nodes?path=/content/n";
    let made = send("PUT", node, &[("If-None-Match", "*")], r#"{"properties":{"a":1,"b":["x"]}}"#);
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(send("PUT", node, &[("If-None-Match", "*")], "{}").status, 412);

    // A tag of a read guards a write; a stale one is refused with the current one.
    let read = send("GET", node, &[], "");
    let tag = read.header("etag").unwrap().to_owned();
    assert_eq!(send("GET", node, &[("If-None-Match", &tag)], "").status, 304);
    let value = read.json();
    assert_eq!(value["properties"]["a"], json!({ "type": "Long", "value": 1 }));
    let patch = r#"{"properties":{"a":null,"c":true}}"#;
    assert_eq!(send("PATCH", &format!("{node}&strict=true"), &[], patch).status, 428);
    assert_eq!(send("PATCH", node, &[("If-Match", &tag)], patch).status, 200);
    let stale = send("PATCH", node, &[("If-Match", &tag)], patch);
    assert_eq!(stale.status, 412);
    let problem = stale.json();
    let current = problem["currentTag"].as_str().unwrap();
    assert_eq!(stale.header("etag"), Some(current));
    assert_eq!(
        send("PATCH", node, &[("If-Match", current)], r#"{"properties":{"d":1.5}}"#).status,
        200
    );
}

/// A batch is one commit, or nothing.
#[test]
fn batches_are_as_described() {
    let author = BlockingInstance::author();
    let send = |method: &str, path: &str, more: &[(&str, &str)], body: &str| {
        send(&author, method, path, more, body)
    };
    let made = send("PUT", "/api/v1/nodes?path=/content/n", &[], "{}");
    assert_eq!(made.status, 201, "{}", made.text());
    let bad = r#"{"operations":[{"op":"put","path":"/content/x","node":{}},{"op":"delete","path":"/content/none"}]}"#;
    let failed = send("POST", "/api/v1/batch", &[], bad);
    assert_eq!(failed.status, 404, "{}", failed.text());
    let problem = failed.json();
    assert_eq!(problem["operation"], 1);
    assert_eq!(send("GET", "/api/v1/nodes?path=/content/x", &[], "").status, 404);
    let good = r#"{"operations":[{"op":"put","path":"/content/x","node":{}},{"op":"move","from":"/content/n","to":"/content/m"},{"op":"order","path":"/content/x","place":"first"}]}"#;
    let done = send("POST", "/api/v1/batch", &[], good);
    assert_eq!(done.status, 200, "{}", done.text());
    let listed = send("GET", "/api/v1/children?path=/content&limit=1", &[], "").json();
    assert_eq!(listed["items"][0]["name"], "x", "{listed}");
    let next = format!("/api/v1/children?path=/content&after={}", listed["next"].as_str().unwrap());
    let listed = send("GET", &next, &[], "").json();
    // The folder of assets is there from the start.
    assert_eq!(
        (&listed["items"][0]["name"], &listed["items"][1]["name"]),
        (&"dam".into(), &"m".into())
    );
    assert_eq!(listed["next"], Value::Null);
}

/// What is not known is refused with the nearest that is.
#[test]
fn problems_are_as_described() {
    let author = BlockingInstance::author();
    let send = |method: &str, path: &str, more: &[(&str, &str)], body: &str| {
        send(&author, method, path, more, body)
    };
    let node = "/api/v1/nodes?path=/content/n";
    let unknown = send("GET", "/api/v1/nodes?pth=/content", &[], "");
    assert_eq!(unknown.status, 400);
    assert!(unknown.text().contains("did you mean `path`?"), "{}", unknown.text());
    assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
    assert_eq!(send("PATCH", node, &[], r#"{"propertis":{}}"#).status, 400);
    let wrong = send("DELETE", "/api/v1/me", &[], "");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(author.send("GET", "/api/v1/me", &[], b"").status, 401);
}
